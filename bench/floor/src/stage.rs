//! The directories that launches share: an almost empty lower layer, and the place over which each launch mounts.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::child::More;

/// What the lower layer holds besides links into `/usr`.
const DIRECTORIES: [&str; 6] = ["usr", "proc", "tmp", "dev", "etc", "run"];
/// What is a link into `/usr` on a merged host; copied where it is one.
const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// What a sandbox has mounted besides its root, its own directories and its devices.
pub(crate) enum Mount {
    /// A copy-on-write layer over this directory.
    Layer(PathBuf),
    /// What of `/proc` is covered, or only to be read.
    Mask { path: PathBuf, read_only: bool },
}

impl Mount {
    /// As on the command line: a path is a layer, below `/proc` it is covered, and behind `ro:` it is only to be read.
    pub(crate) fn parse(word: &str) -> Self {
        match word.strip_prefix("ro:") {
            Some(path) => Self::Mask { path: path.into(), read_only: true },
            None if word.starts_with("/proc/") => Self::Mask { path: word.into(), read_only: false },
            None => Self::Layer(word.into()),
        }
    }
}

fn layers(mounts: &[Mount]) -> impl Iterator<Item = &Path> {
    mounts.iter().filter_map(|mount| match mount {
        Mount::Layer(path) => Some(path.as_path()),
        Mount::Mask { .. } => None,
    })
}

/// Removed when dropped.
pub(crate) struct Stage {
    base: PathBuf,
    /// Covered by each launch, for itself alone.
    pub(crate) directory: CString,
    /// The options of the overlay, relative to `directory` but for the lower layer.
    pub(crate) overlay: CString,
    /// All other mounts of a sandbox.
    pub(crate) more: More,
}

impl Stage {
    /// Makes the directories in the host's directory for temporary files.
    pub(crate) fn make(mounts: &[Mount]) -> io::Result<Self> {
        let base = std::env::temp_dir().join(format!("belljar-floor-{}", std::process::id()));
        let (lower, directory) = (base.join("lower"), base.join("stage"));
        let stage = Self {
            overlay: c_string(
                format!("lowerdir={},upperdir=disk/upper,workdir=disk/work,userxattr", lower.display())
                    .as_bytes(),
            )?,
            directory: c_string(directory.as_os_str().as_bytes())?,
            more: more(mounts)?,
            base,
        };
        make_dir(&stage.base)?;
        make_dir(&lower)?;
        make_dir(&directory)?;
        for name in DIRECTORIES {
            make_dir(&lower.join(name))?;
        }
        for layer in layers(mounts) {
            make_all(&lower, layer)?;
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

/// Makes the directories on the way to `target` below `base`.
fn make_all(base: &Path, target: &Path) -> io::Result<()> {
    let mut path = base.to_owned();
    for part in target.strip_prefix("/").unwrap_or(target) {
        path.push(part);
        if !path.exists() {
            make_dir(&path)?;
        }
    }
    Ok(())
}

fn is_open(path: &Path) -> bool {
    path.ancestors().all(|path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o5 == 0o5))
}

fn more(mounts: &[Mount]) -> io::Result<More> {
    let mut more = More {
        directories: vec![c"disk/tmp".into(), c"disk/run".into()],
        layers: Vec::new(),
        links: vec![
            (c"/proc/self/fd", c"root/dev/fd"),
            (c"/proc/self/fd/0", c"root/dev/stdin"),
            (c"/proc/self/fd/1", c"root/dev/stdout"),
            (c"/proc/self/fd/2", c"root/dev/stderr"),
            (c"pts/ptmx", c"root/dev/ptmx"),
        ],
        masks: Default::default(),
    };
    for mount in mounts {
        let Mount::Mask { path, read_only } = mount else { continue };
        let kind = if *read_only { 2 } else { usize::from(path.is_dir()) };
        more.masks[kind].push(c_string(path.as_os_str().as_bytes())?);
    }
    for (number, layer) in layers(mounts).enumerate() {
        let (upper, work) = (format!("disk/upper{number}"), format!("disk/work{number}"));
        // Where ids of the floor may not walk, another directory costs the same.
        let lower = if is_open(layer) { layer } else { Path::new("/usr") };
        let options = format!("lowerdir={},upperdir={upper},workdir={work},userxattr", lower.display());
        more.directories.extend([c_string(upper.as_bytes())?, c_string(work.as_bytes())?]);
        let target = Path::new("root").join(layer.strip_prefix("/").unwrap_or(layer));
        more.layers.push((c_string(options.as_bytes())?, c_string(target.as_os_str().as_bytes())?));
    }
    Ok(more)
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
