//! The directory that stands for a sandbox's file system.

use std::io;
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, FilePath, Result, SandboxId};
use tempfile::TempDir;

const HOME: &str = "home/user";
const TMP: &str = "tmp";

/// A temporary directory with a home and a `tmp`; removed when dropped.
#[derive(Debug)]
pub(super) struct Place {
    root: PathBuf,
    directory: Option<TempDir>,
}

impl Place {
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        let make = || -> io::Result<Self> {
            let directory = tempfile::Builder::new().prefix(&format!("belljar-{id}-")).tempdir()?;
            let root = directory.path().canonicalize()?;
            std::fs::create_dir_all(root.join(HOME))?;
            std::fs::create_dir(root.join(TMP))?;
            Ok(Self { root, directory: Some(directory) })
        };
        make().map_err(|error| {
            file_error("make the directory of the sandbox in", &std::env::temp_dir(), &error)
        })
    }

    pub(super) fn home(&self) -> PathBuf {
        self.root.join(HOME)
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.root.join(TMP)
    }

    /// Where a path of the sandbox is on the host. `..` is taken away by name, before any link is looked at.
    pub(super) fn resolve(&self, path: &FilePath) -> Result<PathBuf> {
        let text = path.as_str();
        let start = if text.starts_with('/') { "" } else { HOME };
        let mut parts: Vec<&str> = Vec::new();
        for part in start.split('/').chain(text.split('/')) {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        if !matches!(parts.as_slice(), ["home", "user", ..] | ["tmp", ..]) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("`{path}` is outside of the sandbox's directory"),
            )
            .hint("the `local` provider has only /home/user and /tmp; relative paths start at /home/user"));
        }
        Ok(self.root.join(parts.join("/")))
    }

    /// Removes the directory; again is not an error.
    pub(super) fn remove(&mut self) -> Result<()> {
        let Some(directory) = self.directory.take() else { return Ok(()) };
        directory.close().map_err(|error| file_error("remove", &self.root, &error))
    }
}

/// What went wrong with a file, in the words of the contract.
pub(super) fn file_error(step: &str, path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::PermissionDenied,
        io::ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            ErrorCode::InvalidArgument
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ErrorCode::ResourceExhausted
        }
        _ => ErrorCode::Internal,
    };
    Error::new(code, format!("cannot {step} `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_directory() {
        let place = Place::make(&SandboxId::from_random([1; 16])).unwrap();
        let resolve = |text: &str| place.resolve(&text.parse().unwrap());
        assert_eq!(resolve("a/../b").unwrap(), place.home().join("b"));
        assert_eq!(resolve("/tmp/x").unwrap(), place.tmp().join("x"));
        assert_eq!(resolve("../../../../tmp/x").unwrap(), place.tmp().join("x"));
        assert_eq!(resolve("/home/user").unwrap(), place.home());
        for outside in ["/etc/passwd", "../../etc/passwd", "/", "..", "/tmp/../etc", "/home/other"] {
            assert_eq!(resolve(outside).unwrap_err().code, ErrorCode::InvalidArgument, "{outside}");
        }
    }
}
