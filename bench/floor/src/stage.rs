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
    pub(crate) fn make(layers: &[PathBuf]) -> io::Result<Self> {
        let base = std::env::temp_dir().join(format!("belljar-floor-{}", std::process::id()));
        let (lower, directory) = (base.join("lower"), base.join("stage"));
        let stage = Self {
            overlay: c_string(
                format!("lowerdir={},upperdir=disk/upper,workdir=disk/work,userxattr", lower.display())
                    .as_bytes(),
            )?,
            directory: c_string(directory.as_os_str().as_bytes())?,
            more: more(layers)?,
            base,
        };
        make_dir(&stage.base)?;
        make_dir(&lower)?;
        make_dir(&directory)?;
        for name in DIRECTORIES {
            make_dir(&lower.join(name))?;
        }
        for layer in layers {
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

/// What the jail masks of `/proc`, as far as this kernel has it.
const MASKED_FILES: [&str; 27] = [
    "buddyinfo",
    "cmdline",
    "config.gz",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "locks",
    "modules",
    "mtrr",
    "pagetypeinfo",
    "partitions",
    "sched_debug",
    "schedstat",
    "slabinfo",
    "softirqs",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
    "zoneinfo",
];
const MASKED_DIRECTORIES: [&str; 8] = ["acpi", "asound", "bus", "driver", "fs", "irq", "pressure", "scsi"];
const READ_ONLY: [&str; 2] = ["sys", "tty"];

fn is_open(path: &Path) -> bool {
    path.ancestors().all(|path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o5 == 0o5))
}

fn more(layers: &[PathBuf]) -> io::Result<More> {
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
    for (number, layer) in layers.iter().enumerate() {
        let (upper, work) = (format!("disk/upper{number}"), format!("disk/work{number}"));
        // Where ids of the floor may not walk, another directory costs the same.
        let lower = if is_open(layer) { layer } else { Path::new("/usr") };
        let options = format!("lowerdir={},upperdir={upper},workdir={work},userxattr", lower.display());
        more.directories.extend([c_string(upper.as_bytes())?, c_string(work.as_bytes())?]);
        let target = Path::new("root").join(layer.strip_prefix("/").unwrap_or(layer));
        more.layers.push((c_string(options.as_bytes())?, c_string(target.as_os_str().as_bytes())?));
    }
    let names = [&MASKED_FILES[..], &MASKED_DIRECTORIES, &READ_ONLY];
    for (masks, names) in more.masks.iter_mut().zip(names) {
        let paths = names.iter().map(|name| Path::new("/proc").join(name)).filter(|path| path.exists());
        *masks = paths.map(|path| c_string(path.as_os_str().as_bytes())).collect::<io::Result<_>>()?;
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
