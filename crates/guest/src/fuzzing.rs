//! The doors for the fuzz targets: what of the file operations reads foreign names and archives.

use std::path::{Path, PathBuf};

use belljar_core::{Error, FilePath};

pub use crate::files::inside;

/// Takes an archive apart below a directory, as a worker does.
pub fn unpack(archive: &[u8], directory: &Path) -> Result<(), Error> {
    crate::files::unpack_from(archive, directory)
}

/// Where a path of a request is.
pub fn place(home: &str, path: &FilePath) -> PathBuf {
    crate::files::place_of(home, path)
}
