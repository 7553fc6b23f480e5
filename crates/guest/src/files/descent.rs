//! Going down into a tree and up again without following links, without long paths and without a descriptor for every
//! level, so that depth costs nothing; and the removal of a tree.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_core::Error;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawDir, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::place::Place;
use crate::failure;

/// How often a directory may turn out not to be empty after it was emptied.
const MAX_REFILLS: usize = 1000;

/// A place in a tree: the directory one is in, and the way back up.
pub(crate) struct Descent {
    current: OwnedFd,
    way: Vec<(CString, Identity)>,
}

/// What makes a directory itself.
type Identity = (u64, u64);

impl Descent {
    /// At the top of a tree.
    pub(crate) fn new(top: OwnedFd) -> Self {
        Self { current: top, way: Vec::new() }
    }

    /// The directory one is in.
    pub(crate) fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// How far down one is.
    pub(crate) fn depth(&self) -> usize {
        self.way.len()
    }

    /// The path from the top to a name in the current directory.
    pub(crate) fn path_of(&self, name: &CStr) -> Vec<u8> {
        let parts: Vec<&[u8]> =
            self.way.iter().map(|(name, _)| name.to_bytes()).chain([name.to_bytes()]).collect();
        parts.join(&b'/')
    }

    /// Goes down into a directory, which must not be a link.
    pub(crate) fn enter(&mut self, name: &CStr) -> Result<(), Errno> {
        let above = identity(&self.current)?;
        self.current = open_directory(self.current.as_fd(), name)?;
        self.way.push((name.to_owned(), above));
        Ok(())
    }

    /// Goes up again, and says from where. Somebody may have moved the directory meanwhile; then up is not where one
    /// came from, and that is an error.
    pub(crate) fn leave(&mut self) -> Result<Option<CString>, Errno> {
        let Some((name, above)) = self.way.pop() else { return Ok(None) };
        let parent = open_directory(self.current.as_fd(), c"..")?;
        if identity(&parent)? != above {
            return Err(Errno::NOENT);
        }
        self.current = parent;
        Ok(Some(name))
    }

    /// The names in the current directory, in order.
    pub(crate) fn names(&self, most: usize) -> Result<Option<Vec<CString>>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.current)? {
            let entry = entry?;
            if !is_dots(entry.file_name()) {
                if names.len() == most {
                    return Ok(None);
                }
                names.push(entry.file_name().to_owned());
            }
        }
        names.sort_unstable();
        Ok(Some(names))
    }
}

fn identity(directory: &OwnedFd) -> Result<Identity, Errno> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn is_dots(name: &CStr) -> bool {
    name == c"." || name == c".."
}

/// Opens a directory that must not be a link.
pub(crate) fn open_directory(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Removes a file, a link or a tree.
pub(crate) fn remove(place: &Place) -> Result<(), Error> {
    let path = place.path();
    if path.file_name().is_none() {
        return Err(place.offence("the root directory and what `..` leads to cannot be removed"));
    }
    let failed = |errno| place.failed(errno);
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
        // Not a directory after all: it was the removal itself that was not permitted.
        Errno::NOTDIR | Errno::LOOP => failed(Errno::PERM),
        other => failed(other),
    })?;
    empty(place, &mut Descent::new(top))?;
    unlinkat(CWD, path, AtFlags::REMOVEDIR).map_err(failed)
}

fn empty(place: &Place, descent: &mut Descent) -> Result<(), Error> {
    let mut refills = 0;
    loop {
        if let Some(directory) = remove_files(place, descent)? {
            descent.enter(&directory).map_err(|errno| below(place, descent, &directory, errno))?;
            continue;
        }
        let Some(name) = descent.leave().map_err(|errno| place.failed(errno))? else { return Ok(()) };
        match unlinkat(descent.current(), &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if refills < MAX_REFILLS => refills += 1,
            Err(errno) => return Err(below(place, descent, &name, errno)),
        }
    }
}

/// Removes everything in the current directory up to the first directory, and says which that is.
fn remove_files(place: &Place, descent: &Descent) -> Result<Option<CString>, Error> {
    // A descriptor of its own, so that reading starts at the beginning each time.
    let directory = open_directory(descent.current(), c".").map_err(|errno| place.failed(errno))?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|errno| place.failed(errno))?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            return Ok(Some(name.to_owned()));
        }
        match unlinkat(descent.current(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(below(place, descent, name, errno)),
        }
    }
    Ok(None)
}

/// An error about something below a place.
pub(crate) fn below(place: &Place, descent: &Descent, name: &CStr, errno: Errno) -> Error {
    let path = descent.path_of(name);
    // The message has to stay readable, however deep it happened.
    let shown: String = String::from_utf8_lossy(&path).chars().take(200).collect();
    failure::at(format_args!("{place}/{shown}"), errno)
}
