//! The data directory: where sandboxes, templates and the programs of the walls live. It has a version, so that a
//! Belljar that lays it out differently refuses it instead of harming it, and a lock, so that only one process at a
//! time changes its layout.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_core::{Error, ErrorCode, Result, SandboxId};
use rustix::fs::{FlockOperation, flock};

/// The layout that this version writes and reads.
const LAYOUT: u32 = 1;
const VERSION_FILE: &str = "version";
const LOCK_FILE: &str = "lock";

/// An open data directory. While any copy of this value lives, no process may change the layout.
#[derive(Clone, Debug)]
pub struct Home {
    path: PathBuf,
    _lock: Arc<File>,
}

impl Home {
    /// Opens the directory, making it where it is missing: `path`, or `$BELLJAR_HOME`, or the platform's place for
    /// data (`/var/lib/belljar` for root, `~/.local/share/belljar` otherwise).
    pub fn open(path: Option<PathBuf>) -> Result<Self> {
        let path = match path {
            Some(path) => path,
            None => default_path()?,
        };
        let path = std::path::absolute(&path).map_err(|error| problem(&path, &error))?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| problem(&path, &error))?;
        own_and_private(&path)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|error| problem(&lock_path, &error))?;
        check_version(&path, &lock)?;
        for directory in ["sandboxes", "templates", "programs", "stage"] {
            let directory = path.join(directory);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)
                .map_err(|error| problem(&directory, &error))?;
        }
        Ok(Self { path, _lock: Arc::new(lock) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.path.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Where templates are kept.
    pub fn templates(&self) -> PathBuf {
        self.path.join("templates")
    }

    /// An empty directory for launchers to mount on, each where only it sees that.
    pub(crate) fn stage(&self) -> PathBuf {
        self.path.join("stage")
    }

    /// Where launchers and monitors write what goes wrong.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("sandboxes.log")
    }

    pub(crate) fn programs(&self) -> PathBuf {
        self.path.join("programs")
    }
}

/// Says which path could not be used and what to do; never only "permission denied".
pub(crate) fn problem(path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot use {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::new(ErrorCode::ResourceExhausted, message)
                .hint("free some disk space there, or choose another data directory with BELLJAR_HOME")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(ErrorCode::PermissionDenied, message)
                .hint("choose a data directory of your own with BELLJAR_HOME or --home")
        }
        _ => Error::new(ErrorCode::Internal, message)
            .hint("choose another data directory with BELLJAR_HOME or --home"),
    }
}

fn default_path() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = from("BELLJAR_HOME") {
        return Ok(path);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/belljar".into());
    }
    from("XDG_DATA_HOME")
        .or_else(|| Some(from("HOME")?.join(".local/share")))
        .map(|path| path.join("belljar"))
        .ok_or_else(|| {
            Error::new(ErrorCode::InvalidArgument, "neither HOME nor BELLJAR_HOME is set")
                .hint("set BELLJAR_HOME to a directory of your own")
        })
}

/// Others must not be able to put things where we run programs from.
fn own_and_private(path: &Path) -> Result<()> {
    let we = rustix::process::geteuid().as_raw();
    let link = fs::symlink_metadata(path).map_err(|error| problem(path, &error))?;
    if link.is_symlink() && link.uid() != we {
        return Err(Error::new(
            ErrorCode::PermissionDenied,
            format!("data directory {} is a link that somebody else made", path.display()),
        )
        .hint("choose a data directory of your own with BELLJAR_HOME or --home"));
    }
    let metadata = fs::metadata(path).map_err(|error| problem(path, &error))?;
    let owner = metadata.uid();
    if owner != we {
        return Err(Error::new(
            ErrorCode::PermissionDenied,
            format!("data directory {} belongs to user {owner}, and you are {we}", path.display()),
        )
        .hint("choose a data directory of your own with BELLJAR_HOME or --home"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(|error| problem(path, &error))?;
    }
    Ok(())
}

/// Holds the lock shared, after having written the version under an exclusive one where there was none.
fn check_version(path: &Path, lock: &File) -> Result<()> {
    let version_path = path.join(VERSION_FILE);
    let share = || flock(lock, FlockOperation::LockShared).map_err(|error| problem(path, &error.into()));
    share()?;
    if !version_path.exists() {
        flock(lock, FlockOperation::LockExclusive).map_err(|error| problem(path, &error.into()))?;
        if !version_path.exists() {
            let temporary = path.join("version.new");
            File::create(&temporary)
                .and_then(|mut file| writeln!(file, "{LAYOUT}").and_then(|()| file.sync_all()))
                .and_then(|()| fs::rename(&temporary, &version_path))
                .map_err(|error| problem(&version_path, &error))?;
        }
        share()?;
    }
    let mut text = String::new();
    File::open(&version_path)
        .and_then(|file| file.take(64).read_to_string(&mut text))
        .map_err(|error| problem(&version_path, &error))?;
    if text.trim() == LAYOUT.to_string() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::Version,
        format!(
            "data directory {} has layout version `{}`, and this Belljar uses {LAYOUT}",
            path.display(),
            text.trim().escape_debug()
        ),
    )
    .hint("use the Belljar that made it, or another data directory with BELLJAR_HOME or --home"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<Home> {
        Home::open(Some(path.to_owned()))
    }

    #[test]
    fn a_new_directory_gets_a_version_and_opens_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/home");
        let first = open(&path).unwrap();
        let second = open(&path).unwrap();
        assert_eq!(first.path(), second.path());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn another_version_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()).unwrap());
        let version = directory.path().join(VERSION_FILE);
        fs::write(&version, "99\n").unwrap();
        let error = open(directory.path()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Version);
        assert!(error.message.contains("99"), "{error}");
        assert_eq!(fs::read_to_string(&version).unwrap(), "99\n");
    }

    #[test]
    fn a_path_that_cannot_be_a_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = open(&file.join("home")).unwrap_err();
        assert!(error.message.contains("file"), "{error}");
    }
}
