//! A layer of what a sandbox has written: its own files, which lie over those of its template. They are whatever hostile code made
//! of them: every one is opened by the descriptor of its directory, through no link, and only what layers may have is copied.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::offence::{Offence, Refused};
use crate::stack::{DEEPEST, OPAQUE, open_beneath};
use crate::unpack::{MOST_IDS, NOBODY};

/// The most bytes of files that are copied, holes among them.
const MOST_BYTES: u64 = 64 << 30;
/// The longest list of attributes.
const LONGEST_LIST: usize = 64 << 10;
/// What marks a directory that hides what lies below it, by those who may set such attributes.
const TRUSTED_OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// How the names of all attributes begin by which the kernel knows layers.
const MARKS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// One of the directories that hold what a sandbox has written.
#[derive(Debug)]
pub struct Upper {
    /// The directory.
    pub files: OwnedFd,
    /// Where it is inside, without the first slash.
    pub target: PathBuf,
}

/// The numbers of users inside, as the files have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// From this one on.
    From(u32),
    /// All are one.
    One,
}

/// What becomes of the times of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// They stay.
    Kept,
    /// All are this, in seconds since 1970, so that the same work makes the same layer.
    All(i64),
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// How many files, directories and links.
    pub entries: u64,
    /// How many bytes of files.
    pub bytes: u64,
    /// How many were left out: pipes, sockets and devices.
    pub left_out: u64,
}

/// Copies what a sandbox has written into an empty directory, without what is at these paths.
pub fn capture(
    uppers: &[Upper],
    into: &OwnedFd,
    (ids, times): (Ids, Times),
    without: &[&Path],
) -> Result<Captured, Refused> {
    let mut copy =
        Copy { ids, times, without, links: HashMap::new(), captured: Captured::default(), dated: Vec::new() };
    for upper in uppers {
        let what = || format!("cannot copy what is over `/{}`", upper.target.display());
        let target = copy.make_way(into, &upper.target).map_err(Refused::io(what()))?;
        let from = rustix::fs::openat(&upper.files, ".", directory(), Mode::empty());
        let from = from.map_err(|error| Refused::io(what())(error.into()))?;
        copy.links.clear();
        copy.node(&from, &target, &upper.target)?;
        copy.below((&from, &target), into, &upper.target, 0)?;
    }
    // The inner ones first: whatever is made in a directory changes its time.
    while let Some((path, times)) = copy.dated.pop() {
        let dated = open_beneath(into, &path).and_then(|node| rustix::fs::futimens(&node, &times));
        dated.map_err(|error| failed(&path, "date")(error))?;
    }
    Ok(copy.captured)
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn failed(path: &Path, what: &str) -> impl FnOnce(Errno) -> Refused {
    let what = format!("cannot {what} `/{}`", path.display().to_string().escape_debug());
    move |error| Refused::io(what)(error.into())
}

struct Copy<'a> {
    ids: Ids,
    times: Times,
    without: &'a [&'a Path],
    /// Files with several names: where the first of them is.
    links: HashMap<(u64, u64), PathBuf>,
    captured: Captured,
    /// Directories, with the times that they are to have.
    dated: Vec<(PathBuf, Timestamps)>,
}

impl Copy<'_> {
    /// The directories that lead to a place of the layer.
    fn make_way(&self, into: &OwnedFd, target: &Path) -> io::Result<OwnedFd> {
        let mut at = open_beneath(into, Path::new(""))?;
        for part in target.components() {
            match rustix::fs::mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            at = open_beneath(&at, Path::new(part.as_os_str()))?;
        }
        Ok(at)
    }

    fn below(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        root: &OwnedFd,
        path: &Path,
        depth: usize,
    ) -> Result<(), Refused> {
        if depth > DEEPEST {
            return Err(Refused::offence(Offence::Name, path.as_os_str().as_bytes(), "is too deep"));
        }
        let entries = Dir::read_from(from).map_err(failed(path, "read"))?;
        for entry in entries {
            let entry = entry.map_err(failed(path, "read"))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let place = path.join(OsStr::from_bytes(name.to_bytes()));
            if !self.without.contains(&place.as_path()) {
                self.entry((from, to), name, root, place, depth)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        name: &CStr,
        root: &OwnedFd,
        path: PathBuf,
        depth: usize,
    ) -> Result<(), Refused> {
        let stat =
            rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed(&path, "look at"))?;
        self.captured.entries += 1;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let inner = rustix::fs::openat(from, name, directory(), Mode::empty())
                    .map_err(failed(&path, "open"))?;
                match rustix::fs::mkdirat(to, name, Mode::RWXU) {
                    // What is mounted there was copied before.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(failed(&path, "make")(error)),
                }
                let made = open_beneath(to, Path::new(OsStr::from_bytes(name.to_bytes())))
                    .map_err(failed(&path, "open"))?;
                self.node(&inner, &made, &path)?;
                self.below((&inner, &made), root, &path, depth + 1)
            }
            FileType::RegularFile => self.file((from, to), name, root, (&path, &stat)),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new()).map_err(failed(&path, "read"))?;
                rustix::fs::symlinkat(target, to, name).map_err(failed(&path, "make"))?;
                if let Some((uid, gid)) = self.owner(&stat) {
                    rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(failed(&path, "give"))?;
                }
                let times = self.times_of(&stat);
                rustix::fs::utimensat(to, name, &times, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(failed(&path, "date"))
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                rustix::fs::mknodat(to, name, FileType::CharacterDevice, Mode::empty(), 0)
                    .map_err(failed(&path, "mark"))
            }
            _ => {
                self.captured.entries -= 1;
                self.captured.left_out += 1;
                Ok(())
            }
        }
    }

    fn file(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        name: &CStr,
        root: &OwnedFd,
        (path, stat): (&Path, &Stat),
    ) -> Result<(), Refused> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)) {
                let (Some(parent), Some(file)) = (first.parent(), first.file_name()) else { return Ok(()) };
                let parent = open_beneath(root, parent).map_err(failed(path, "link"))?;
                return rustix::fs::linkat(&parent, file, to, name, AtFlags::empty())
                    .map_err(failed(path, "link"));
            }
            self.links.insert((stat.st_dev, stat.st_ino), path.to_owned());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = rustix::fs::openat(from, name, flags, Mode::empty()).map_err(failed(path, "open"))?;
        // What was a file may be something else by now.
        let now = rustix::fs::fstat(&source).map_err(failed(path, "look at"))?;
        if FileType::from_raw_mode(now.st_mode) != FileType::RegularFile {
            return Err(Refused::offence(
                Offence::Special,
                path.as_os_str().as_bytes(),
                "changed while it was copied",
            ));
        }
        let said = u64::try_from(now.st_size).unwrap_or(u64::MAX);
        if self.captured.bytes.saturating_add(said) > MOST_BYTES {
            // Holes cost whoever made them nothing, and us the time to read them.
            let why = format!("is one more than the {MOST_BYTES} bytes that are copied");
            return Err(Refused::offence(Offence::Bomb, path.as_os_str().as_bytes(), why));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made =
            rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600)).map_err(failed(path, "make"))?;
        let made = File::from(made);
        let bytes = copy_sparse(File::from(source.try_clone().map_err(io_failed(path))?), &made, said);
        self.captured.bytes += bytes.map_err(io_failed(path))?;
        let made = OwnedFd::from(made);
        self.dress(&source, &made, (path, &now))?;
        rustix::fs::futimens(&made, &self.times_of(&now)).map_err(failed(path, "date"))
    }

    /// Makes a directory of the layer what the one that was written is.
    fn node(&mut self, from: &OwnedFd, to: &OwnedFd, path: &Path) -> Result<(), Refused> {
        let stat = rustix::fs::fstat(from).map_err(failed(path, "look at"))?;
        self.dress(from, to, (path, &stat))?;
        self.dated.push((path.to_owned(), self.times_of(&stat)));
        Ok(())
    }

    fn dress(&self, from: &OwnedFd, to: &OwnedFd, (path, stat): (&Path, &Stat)) -> Result<(), Refused> {
        if let Some((uid, gid)) = self.owner(stat) {
            rustix::fs::fchown(to, Some(uid), Some(gid)).map_err(failed(path, "give"))?;
        }
        // After the owner, whose change takes bits away.
        rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))
            .map_err(failed(path, "set the mode of"))?;
        let mut list = vec![0; LONGEST_LIST];
        let length = match rustix::fs::flistxattr(from, &mut list[..]) {
            Err(Errno::NOTSUP) => 0,
            length => length.map_err(failed(path, "read the attributes of"))?,
        };
        for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let is_mark = MARKS.iter().any(|mark| name.starts_with(mark));
            let is_opaque = name == TRUSTED_OPAQUE || name == OPAQUE.as_bytes();
            if is_mark && (name.ends_with(b".redirect") || name.ends_with(b".metacopy")) {
                let why = "is another file by an attribute";
                return Err(Refused::offence(Offence::OverlayAttribute, path.as_os_str().as_bytes(), why));
            }
            if !is_opaque && (is_mark || !name.starts_with(b"user.")) {
                continue;
            }
            let mut value = vec![0; LONGEST_LIST];
            let length = rustix::fs::fgetxattr(from, OsStr::from_bytes(name), &mut value[..])
                .map_err(failed(path, "read the attributes of"))?;
            let name = if is_opaque { OsStr::new(OPAQUE) } else { OsStr::from_bytes(name) };
            if is_opaque && &value[..length] != b"y" {
                continue;
            }
            rustix::fs::fsetxattr(to, name, &value[..length], XattrFlags::empty())
                .map_err(failed(path, "set the attributes of"))?;
        }
        Ok(())
    }

    /// Whose it is inside; nothing where all is one user's.
    fn owner(&self, stat: &Stat) -> Option<(Uid, Gid)> {
        let Ids::From(first) = self.ids else { return None };
        let inside = |id: u32| id.checked_sub(first).filter(|id| u64::from(*id) < MOST_IDS).unwrap_or(NOBODY);
        Some((Uid::from_raw(inside(stat.st_uid)), Gid::from_raw(inside(stat.st_gid))))
    }

    fn times_of(&self, stat: &Stat) -> Timestamps {
        let time = match self.times {
            Times::Kept => Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
            Times::All(seconds) => Timespec { tv_sec: seconds, tv_nsec: 0 },
        };
        Timestamps { last_access: time, last_modification: time }
    }
}

fn io_failed(path: &Path) -> impl FnOnce(io::Error) -> Refused {
    Refused::io(format!("cannot copy `/{}`", path.display().to_string().escape_debug()))
}

/// Copies a file without its holes, and no more than was there when it was looked at.
fn copy_sparse(mut from: File, mut to: &File, length: u64) -> io::Result<u64> {
    let mut at = 0;
    while at < length {
        let data = match rustix::fs::seek(&from, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data.min(length),
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let hole =
            rustix::fs::seek(&from, rustix::fs::SeekFrom::Hole(data)).unwrap_or(length).clamp(data, length);
        if hole == data {
            break;
        }
        from.seek(SeekFrom::Start(data))?;
        to.seek(SeekFrom::Start(data))?;
        io::copy(&mut (&mut from).take(hole - data), &mut to)?;
        at = hole;
    }
    to.set_len(length)?;
    Ok(length)
}
