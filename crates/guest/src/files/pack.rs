//! A file or tree as a tar archive.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_core::Error;
use belljar_core::wire::MAX_DATA;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::descent::{Descent, below};
use super::place::Place;
use crate::worker::Answer;

/// The most names that one directory may hold to be packed.
const MAX_NAMES: usize = 500_000;

/// Sends an archive whose names start with the last component of the path.
pub(crate) fn pack(place: &Place, answer: &mut Answer) -> Result<(), Error> {
    let mut archive = Builder::new(BufWriter::with_capacity(MAX_DATA, &mut *answer));
    if let Err(error) = fill(place, &mut archive) {
        // Dropped, it would write the end of an archive, and what is missing would not be missed.
        std::mem::forget(archive);
        return Err(error);
    }
    let written = archive.into_inner().and_then(|buffer| Ok(buffer.into_inner().map(drop)?));
    written.map_err(|error| place.failed_io(&error))?;
    answer.end()
}

type Archive<'a> = Builder<BufWriter<&'a mut Answer>>;

fn fill(place: &Place, archive: &mut Archive<'_>) -> Result<(), Error> {
    let root = place.name();
    let found = statat(CWD, place.path(), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| place.failed(errno))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let top = open(place.path(), flags, Mode::empty()).map_err(|errno| place.failed(errno))?;
        append_directory(archive, &root, &found).map_err(|error| place.failed_io(&error))?;
        return pack_tree(place, &root, Descent::new(top), archive);
    }
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile | FileType::Symlink => {}
        _ => return Err(place.offence("is neither a file nor a directory nor a link")),
    }
    append(archive, &root, CWD, place.path(), &found).map_err(|error| place.failed_io(&error))
}

fn pack_tree(
    place: &Place,
    root: &Path,
    mut descent: Descent,
    archive: &mut Archive<'_>,
) -> Result<(), Error> {
    let names = |descent: &Descent| {
        let names = descent.names(MAX_NAMES).map_err(|errno| place.failed(errno))?;
        names.map(Vec::into_iter).ok_or_else(|| place.offence("a directory holds too many names to pack"))
    };
    let mut levels = vec![names(&descent)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.next() else {
            levels.pop();
            descent.leave().map_err(|errno| place.failed(errno))?;
            continue;
        };
        let failed = |descent: &Descent, errno| below(place, descent, &name, errno);
        let found = match statat(descent.current(), &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(failed(&descent, errno)),
        };
        let path = packed_name(root, &descent, &name);
        let appended = if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            append_directory(archive, &path, &found)
        } else {
            append(archive, &path, descent.current(), &*name, &found)
        };
        appended.map_err(|error| failed(&descent, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            descent.enter(&name).map_err(|errno| failed(&descent, errno))?;
            levels.push(names(&descent)?);
        }
    }
    Ok(())
}

fn packed_name(root: &Path, descent: &Descent, name: &CStr) -> PathBuf {
    root.join(OsStr::from_bytes(&descent.path_of(name)))
}

fn header(kind: EntryType, found: &Stat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(found.st_mode & 0o7777);
    header.set_uid(u64::from(found.st_uid));
    header.set_gid(u64::from(found.st_gid));
    header.set_mtime(found.st_mtime.max(0) as u64);
    header
}

fn append_directory(archive: &mut Archive<'_>, path: &Path, found: &Stat) -> io::Result<()> {
    archive.append_data(&mut header(EntryType::Directory, found, 0), path, io::empty())
}

/// Appends a file or link; anything else is left out.
fn append(
    archive: &mut Archive<'_>,
    path: &Path,
    at: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg + Copy,
    found: &Stat,
) -> io::Result<()> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let target = readlinkat(at, name, Vec::new())?;
            let target = Path::new(OsStr::from_bytes(target.to_bytes())).to_owned();
            archive.append_link(&mut header(EntryType::Symlink, found, 0), path, target)
        }
        FileType::RegularFile => {
            let flags =
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = openat(at, name, flags, Mode::empty())?;
            let found = fstat(&file)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                return Ok(());
            }
            let size = found.st_size as u64;
            let content = Pinned { file: File::from(file), left: size };
            archive.append_data(&mut header(EntryType::Regular, &found, size), path, content)
        }
        _ => Ok(()),
    }
}

/// A file of exactly the size that was promised: cut where it grew, zeros where it shrank.
struct Pinned {
    file: File,
    left: u64,
}

impl Read for Pinned {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let room = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = match self.file.read(&mut bytes[..room])? {
            0 => {
                bytes[..room].fill(0);
                room
            }
            count => count,
        };
        self.left -= count as u64;
        Ok(count)
    }
}
