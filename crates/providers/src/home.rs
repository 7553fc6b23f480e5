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

    /// Where the layers of templates are kept, and which there are.
    pub fn catalog(&self) -> PathBuf {
        self.path.join("layers")
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

/// Holds the lock shared, and writes the version where there is none. Nobody waits to have the lock alone for that:
/// whoever came first may hold it for as long as it lives.
fn check_version(path: &Path, lock: &File) -> Result<()> {
    flock(lock, FlockOperation::LockShared).map_err(|error| problem(path, &error.into()))?;
    let version_path = path.join(VERSION_FILE);
    if !version_path.exists() {
        write_version(path, &version_path).map_err(|error| problem(&version_path, &error))?;
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

/// Whole or not at all, and never over one that somebody else wrote meanwhile.
fn write_version(directory: &Path, version_path: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::with_prefix_in("version.", directory)?;
    writeln!(file, "{LAYOUT}")?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(version_path) {
        Err(taken) if taken.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop).map_err(|failed| failed.error),
    }
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
    fn those_who_come_first_at_once_all_open_it() {
        const AT_ONCE: usize = 8;
        for _ in 0..50 {
            let directory = tempfile::tempdir().unwrap();
            let all_there = std::sync::Barrier::new(AT_ONCE);
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                for _ in 0..AT_ONCE {
                    let tell = tell.clone();
                    let (path, all_there) = (directory.path(), &all_there);
                    scope.spawn(move || {
                        all_there.wait();
                        tell.send(open(path)).unwrap();
                    });
                }
                // Nobody lets go before all have it.
                let next = || told.recv_timeout(std::time::Duration::from_secs(60)).unwrap().unwrap();
                let homes: Vec<Home> = std::iter::repeat_with(next).take(AT_ONCE).collect();
                assert_eq!(homes.len(), AT_ONCE);
            });
            assert_eq!(fs::read_to_string(directory.path().join(VERSION_FILE)).unwrap(), "1\n");
            let strays = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(strays.filter(|name| name.to_string_lossy().starts_with("version.")).count(), 0);
        }
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
