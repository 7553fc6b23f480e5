//! A tar archive taken apart below a directory. The `tar` crate only reads it; everything is created here, and nothing
//! outside that directory, whatever the names in the archive say.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use belljar_core::{Error, ErrorCode};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timestamps, fchmod, futimens, linkat, mkdirat, open,
    openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::time::Timespec;
use tar::{Archive, Entry, EntryType};

use super::place::{self, Place};
use super::read_write::copy;
use crate::failure;

/// The most entries of one archive.
const MAX_ENTRIES: usize = 1_000_000;

const LEAVES: &str = "it would leave the target directory through `..`";
const ABSOLUTE: &str = "its name is absolute";
const THROUGH_LINK: &str = "it would be written through a symbolic link";

/// Takes an archive apart below a place, which is made if it is not there.
pub(crate) fn unpack(archive: impl Read, place: &Place) -> Result<(), Error> {
    place::make_directories(place)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(place.path(), flags, Mode::empty()).map_err(|errno| place.failed(errno))?;
    let mut target = Target { root, late_modes: Vec::new() };
    let malformed = |error: &std::io::Error| {
        Error::new(ErrorCode::InvalidArgument, format!("`{place}`: the archive cannot be read: {error}"))
    };
    let mut archive = Archive::new(archive);
    for (count, entry) in archive.entries().map_err(|error| malformed(&error))?.enumerate() {
        if count == MAX_ENTRIES {
            let message = format!("`{place}`: the archive has more than {MAX_ENTRIES} entries");
            return Err(Error::new(ErrorCode::ResourceExhausted, message));
        }
        target.create(&mut entry.map_err(|error| malformed(&error))?)?;
    }
    target.finish()?;
    // The peer may send padding after the archive's end; take it, so that it is not left waiting.
    copy(&mut archive.into_inner(), &mut std::io::sink()).map_err(|error| malformed(&error))
}

struct Target {
    root: OwnedFd,
    /// Directories whose permissions would keep out what is still to come, set at the end.
    late_modes: Vec<(PathBuf, Mode)>,
}

/// A name of an entry, to be created in an open directory.
struct Spot {
    parent: OwnedFd,
    name: CString,
    shown: String,
}

impl Target {
    fn create(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), Error> {
        let kind = entry.header().entry_type();
        let raw = entry.path_bytes().into_owned();
        let shown = String::from_utf8_lossy(&raw).into_owned();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let path = inside(&raw).map_err(|offence| failure::offence(&shown, offence))?;
        let mode = Mode::from_raw_mode(entry.header().mode().unwrap_or(0o644) & 0o777);
        if path.as_os_str().is_empty() {
            return match kind {
                EntryType::Directory => Ok(()),
                _ => Err(failure::offence(shown, "it would replace the target directory itself")),
            };
        }
        if kind == EntryType::Directory {
            return self.directory(&path, mode, &shown);
        }
        let spot = self.spot(&path, shown)?;
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => spot.file(entry, mode),
            EntryType::Symlink => spot.symlink(entry),
            EntryType::Link => self.link(&spot, entry),
            EntryType::Char | EntryType::Block => Err(spot.offence("it is a device")),
            EntryType::Fifo => Err(spot.offence("it is a pipe")),
            other => Err(spot
                .offence(&format!("it is of a kind that is not unpacked ({:?})", other.as_byte() as char))),
        }
    }

    fn spot(&self, path: &Path, shown: String) -> Result<Spot, Error> {
        let parent = self.open_parents(path.parent().unwrap_or(Path::new("")), &shown)?;
        let name = path.file_name().and_then(|name| CString::new(name.as_bytes()).ok());
        let name = name.ok_or_else(|| failure::offence(&shown, "its name cannot be used"))?;
        Ok(Spot { parent, name, shown })
    }

    /// Opens a directory below the target, never through a link.
    fn open_below(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    /// The same, making what is missing.
    fn open_parents(&self, path: &Path, shown: &str) -> Result<OwnedFd, Error> {
        let failed = |errno| refusal(shown, errno);
        match self.open_below(path) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(failed),
        }
        let above = self.open_parents(path.parent().unwrap_or(Path::new("")), shown)?;
        let name = path.file_name().unwrap_or(OsStr::new("."));
        match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.open_below(path).map_err(failed),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn directory(&mut self, path: &Path, mode: Mode, shown: &str) -> Result<(), Error> {
        let spot = self.spot(path, shown.to_owned())?;
        match mkdirat(&spot.parent, &spot.name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(spot.failed(errno)),
        }
        let directory = spot.open_directory()?;
        if mode.contains(Mode::RWXU) {
            return fchmod(&directory, mode).map_err(|errno| spot.failed(errno));
        }
        fchmod(&directory, mode | Mode::RWXU).map_err(|errno| spot.failed(errno))?;
        self.late_modes.push((path.to_owned(), mode));
        Ok(())
    }

    fn link(&self, spot: &Spot, entry: &Entry<'_, impl Read>) -> Result<(), Error> {
        let target = entry.link_name_bytes().ok_or_else(|| spot.offence("it is a link to nothing"))?;
        let path = inside(&target)
            .map_err(|_| spot.offence("it is a hard link that leads out of the target directory"))?;
        let source = path.file_name().ok_or_else(|| spot.offence("it is a hard link to a directory"))?;
        let parent =
            self.open_below(path.parent().unwrap_or(Path::new(""))).map_err(|errno| spot.failed(errno))?;
        let found = statat(&parent, source, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| spot.failed(errno))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(spot.offence("it is a hard link to something that is not a regular file"));
        }
        // The kernel finds a link to itself in the way only after it was cleared away.
        if statat(&spot.parent, &spot.name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|there| there.st_ino == found.st_ino)
        {
            return Ok(());
        }
        spot.clear(false)?;
        linkat(&parent, source, &spot.parent, &spot.name, AtFlags::empty())
            .map_err(|errno| spot.failed(errno))
    }

    fn finish(&mut self) -> Result<(), Error> {
        for (path, mode) in std::mem::take(&mut self.late_modes).into_iter().rev() {
            let shown = path.to_string_lossy().into_owned();
            let directory = self.spot(&path, shown)?.open_directory()?;
            fchmod(&directory, mode).map_err(|errno| failure::at(path.display(), errno))?;
        }
        Ok(())
    }
}

impl Spot {
    fn failed(&self, errno: Errno) -> Error {
        refusal(&self.shown, errno)
    }

    fn offence(&self, offence: &str) -> Error {
        failure::offence(&self.shown, offence)
    }

    fn open_directory(&self) -> Result<OwnedFd, Error> {
        super::descent::open_directory(self.parent.as_fd(), &self.name).map_err(|errno| match errno {
            Errno::NOTDIR if self.is_link() => self.offence(THROUGH_LINK),
            errno => self.failed(errno),
        })
    }

    fn is_link(&self) -> bool {
        statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
    }

    /// Makes the name free, if what has it may be replaced.
    fn clear(&self, may_be_link: bool) -> Result<(), Error> {
        let found = match statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => FileType::from_raw_mode(found.st_mode),
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(self.failed(errno)),
        };
        match found {
            FileType::RegularFile => {}
            FileType::Symlink if may_be_link => {}
            FileType::Symlink => return Err(self.offence(THROUGH_LINK)),
            FileType::Directory => return Err(self.offence("a directory is in its place")),
            _ => return Err(self.offence("something that is not a regular file is in its place")),
        }
        unlinkat(&self.parent, &self.name, AtFlags::empty()).map_err(|errno| self.failed(errno))
    }

    fn file(&self, entry: &mut Entry<'_, impl Read>, mode: Mode) -> Result<(), Error> {
        self.clear(false)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.parent, &self.name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|errno| self.failed(errno))?);
        copy(entry, &mut file).map_err(|error| failure::at_io(&self.shown, &error))?;
        fchmod(&file, mode).map_err(|errno| self.failed(errno))?;
        let changed =
            entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
        let time = Timespec { tv_sec: changed, tv_nsec: 0 };
        // A time that the file system cannot keep is not worth failing for.
        let _ = futimens(&file, &Timestamps { last_access: time, last_modification: time });
        Ok(())
    }

    fn symlink(&self, entry: &Entry<'_, impl Read>) -> Result<(), Error> {
        let target = entry.link_name_bytes().ok_or_else(|| self.offence("it is a link to nothing"))?;
        self.clear(true)?;
        symlinkat(OsStr::from_bytes(&target), &self.parent, &self.name).map_err(|errno| self.failed(errno))
    }
}

/// The kernel's refusals to resolve a name, in the words of the offence.
fn refusal(shown: &str, errno: Errno) -> Error {
    match errno {
        Errno::LOOP => failure::offence(shown, THROUGH_LINK),
        Errno::XDEV => failure::offence(shown, LEAVES),
        errno => failure::at(shown, errno),
    }
}

/// A name of an archive as a path that stays below where it starts, or the offence.
pub fn inside(name: &[u8]) -> Result<PathBuf, &'static str> {
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => return Err(LEAVES),
            Component::RootDir | Component::Prefix(_) => return Err(ABSOLUTE),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        assert_eq!(inside(b"./a//b/."), Ok(PathBuf::from("a/b")));
        assert_eq!(inside(b"a/../b"), Err(LEAVES));
        assert_eq!(inside(b"/etc/passwd"), Err(ABSOLUTE));
        assert_eq!(inside(b"./"), Ok(PathBuf::new()));
    }
}
