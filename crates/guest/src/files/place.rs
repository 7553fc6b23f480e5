//! A path of a request, and what can be done with it in one step.

use std::fmt;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, FilePath};
use rustix::io::Errno;

use crate::failure;

/// A path as it was asked for (which is how messages name it), and where that is.
pub(crate) struct Place {
    asked: String,
    path: PathBuf,
}

impl Place {
    /// A path of this account's request: relative ones start at its home.
    pub(crate) fn new(home: &str, asked: &FilePath) -> Self {
        Self { asked: asked.as_str().to_owned(), path: Path::new(home).join(asked.as_str()) }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its last component; for a path without one (`/`, `..`) that of what it leads to.
    pub(crate) fn name(&self) -> PathBuf {
        let name = self.path.file_name().map(PathBuf::from);
        let real = || fs::canonicalize(&self.path).ok()?.file_name().map(PathBuf::from);
        name.or_else(real).unwrap_or_else(|| PathBuf::from("."))
    }

    /// An error of the kernel about it.
    pub(crate) fn failed(&self, errno: Errno) -> Error {
        failure::at(self, errno)
    }

    /// An error of the standard library about it.
    pub(crate) fn failed_io(&self, error: &std::io::Error) -> Error {
        failure::at_io(self, error)
    }

    /// An error in our own words about it.
    pub(crate) fn offence(&self, offence: &str) -> Error {
        failure::offence(self, offence)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.asked)
    }
}

/// Makes a directory and those above it; whether it was new.
pub(crate) fn make_directories(place: &Place) -> Result<bool, Error> {
    match fs::metadata(place.path()) {
        Ok(found) if found.is_dir() => return Ok(false),
        Ok(_) => {
            let message = format!("`{place}`: it exists already and is not a directory");
            return Err(Error::new(ErrorCode::AlreadyExists, message));
        }
        Err(_) => {}
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(place.path());
    made.map(|()| true).map_err(|error| place.failed_io(&error))
}

/// Makes the directories above a place.
pub(crate) fn make_parents(place: &Place) -> Result<(), Error> {
    let Some(parent) = place.path().parent() else { return Ok(()) };
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(parent);
    made.map_err(|error| place.failed_io(&error))
}

/// Renames, within one file system.
pub(crate) fn rename(from: &Place, to: &Place) -> Result<(), Error> {
    let Err(error) = fs::rename(from.path(), to.path()) else { return Ok(()) };
    // The kernel does not say which of the two it means.
    let about = if fs::symlink_metadata(from.path()).is_err() { from } else { to };
    Err(about.failed_io(&error))
}
