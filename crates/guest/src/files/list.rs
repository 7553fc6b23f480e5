//! Descriptions of files.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use belljar_core::wire::Event;
use belljar_core::{Entry, Error, ErrorCode, FileKind};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, open, readlinkat, statat};

use super::descent::{Descent, below};
use super::place::Place;
use crate::worker::Answer;

/// The most entries in one message.
const CHUNK: usize = 256;

/// The most bytes of names in one message; escaped they may be six times as many.
const CHUNK_BYTES: usize = 64 * 1024;

/// The most entries in one listing.
const MAX_ENTRIES: usize = 100_000;

/// Describes what a path itself names, be it a link.
pub(crate) fn stat(place: &Place, answer: &mut Answer) -> Result<(), Error> {
    let found = statat(CWD, place.path(), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| place.failed(errno))?;
    let name = place.name();
    let target = target_of(CWD, place.path(), &found);
    let path = place.to_string();
    answer.event(&Event::Entries(vec![entry(name.as_os_str().as_bytes(), path, &found, target)]))
}

/// Describes everything in a directory, each directory before what is in it, names in order.
pub(crate) fn list(place: &Place, depth: u32, answer: &mut Answer) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = open(place.path(), flags, Mode::empty()).map_err(|errno| place.failed(errno))?;
    let mut descent = Descent::new(top);
    let mut listing = Listing { place, chunk: Vec::new(), bytes: 0, count: 0, answer };
    let mut levels = vec![listing.names(&descent)?];
    while let Some(names) = levels.last_mut() {
        let Some(name) = names.next() else {
            levels.pop();
            descent.leave().map_err(|errno| place.failed(errno))?;
            continue;
        };
        let is_directory = listing.add(&descent, &name)?;
        if is_directory && descent.depth() + 1 < depth as usize && listing.enter(&mut descent, &name)? {
            levels.push(listing.names(&descent)?);
        }
    }
    listing.flush()
}

struct Listing<'a> {
    place: &'a Place,
    chunk: Vec<Entry>,
    /// Of the names in the chunk.
    bytes: usize,
    count: usize,
    answer: &'a mut Answer,
}

impl Listing<'_> {
    fn names(&self, descent: &Descent) -> Result<std::vec::IntoIter<std::ffi::CString>, Error> {
        let names = descent.names(MAX_ENTRIES - self.count).map_err(|errno| self.place.failed(errno))?;
        Ok(names.ok_or_else(|| self.too_many())?.into_iter())
    }

    /// Adds one entry; whether it is a directory.
    fn add(&mut self, descent: &Descent, name: &CStr) -> Result<bool, Error> {
        let found = match statat(descent.current(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            // Gone since its directory was read.
            Err(rustix::io::Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(below(self.place, descent, name, errno)),
        };
        if self.count == MAX_ENTRIES {
            return Err(self.too_many());
        }
        self.count += 1;
        let target = target_of(descent.current(), name, &found);
        let asked = self.place.to_string();
        let path =
            format!("{}/{}", asked.trim_end_matches('/'), String::from_utf8_lossy(&descent.path_of(name)));
        self.bytes += name.count_bytes() + path.len() + target.as_ref().map_or(0, String::len);
        self.chunk.push(entry(name.to_bytes(), path, &found, target));
        if self.chunk.len() == CHUNK || self.bytes > CHUNK_BYTES {
            self.flush()?;
        }
        Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    }

    /// Goes into a directory unless this user may not, or it is no longer there; whether it did.
    fn enter(&self, descent: &mut Descent, name: &CStr) -> Result<bool, Error> {
        use rustix::io::Errno;
        match descent.enter(name) {
            Ok(()) => Ok(true),
            Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(errno) => Err(below(self.place, descent, name, errno)),
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.bytes = 0;
        match std::mem::take(&mut self.chunk) {
            empty if empty.is_empty() => Ok(()),
            entries => self.answer.event(&Event::Entries(entries)),
        }
    }

    fn too_many(&self) -> Error {
        let message = format!("`{}`: more than {MAX_ENTRIES} entries", self.place);
        Error::new(ErrorCode::ResourceExhausted, message)
            .hint("list with less depth, or a directory below it")
    }
}

fn target_of(at: impl AsFd, path: impl rustix::path::Arg, found: &Stat) -> Option<String> {
    let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
    let target = is_link.then(|| readlinkat(at, path, Vec::new()).ok()).flatten()?;
    Some(String::from_utf8_lossy(target.to_bytes()).into_owned())
}

fn entry(name: &[u8], path: String, found: &Stat, target: Option<String>) -> Entry {
    Entry {
        name: String::from_utf8_lossy(name).into_owned(),
        path,
        kind: match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Other,
        },
        size: found.st_size as u64,
        mode: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
        modified_ms: found
            .st_mtime
            .saturating_mul(1000)
            .saturating_add(found.st_mtime_nsec as i64 / 1_000_000),
        target,
    }
}
