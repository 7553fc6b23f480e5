//! The directories that launches share: an almost empty lower layer, and the place over which each launch mounts.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What the lower layer holds besides links into `/usr`.
const DIRECTORIES: [&str; 5] = ["usr", "proc", "tmp", "dev", "etc"];
/// What is a link into `/usr` on a merged host; copied where it is one.
const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Removed when dropped.
pub(crate) struct Stage {
    base: PathBuf,
    /// Covered by each launch, for itself alone.
    pub(crate) directory: CString,
    /// The options of the overlay, relative to `directory` but for the lower layer.
    pub(crate) overlay: CString,
}

impl Stage {
    /// Makes the directories in the host's directory for temporary files.
    pub(crate) fn make() -> io::Result<Self> {
        let base = std::env::temp_dir().join(format!("belljar-floor-{}", std::process::id()));
        let (lower, directory) = (base.join("lower"), base.join("stage"));
        let stage = Self {
            overlay: c_string(
                format!("lowerdir={},upperdir=upper,workdir=work,userxattr", lower.display()).as_bytes(),
            )?,
            directory: c_string(directory.as_os_str().as_bytes())?,
            base,
        };
        make_dir(&stage.base)?;
        make_dir(&lower)?;
        make_dir(&directory)?;
        for name in DIRECTORIES {
            make_dir(&lower.join(name))?;
        }
        for name in LINKS {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                symlink(target, lower.join(name))?;
            }
        }
        Ok(stage)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(io::Error::other)
}

/// Makes a directory through which the ids of a user namespace may walk, whatever the umask says.
fn make_dir(path: &Path) -> io::Result<()> {
    let problem = |error| io::Error::other(format!("{}: {error}", path.display()));
    fs::create_dir(path).map_err(problem)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(problem)
}
