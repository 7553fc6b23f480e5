//! The sandbox's file system: read-only layers of the host under a copy-on-write layer of its own, devices, and
//! nothing else. Everything is put together in a staging directory, in a mount namespace that only we see, before
//! anything untrusted runs; the sandbox then gets a copy of the finished tree.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use belljar_core::Wall;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    move_mount, open_tree,
};

use crate::disk::{self, DiskError};
use crate::namespaces::check;
use crate::plan::{Layer, OwnFile, Plan};

/// The devices that a sandbox has, by the kernel's numbers.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Which step of building the file system failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount namespace could not be made our own.
    #[error("cannot make the mounts private: {0}")]
    Private(io::Error),
    /// The staging area could not be prepared.
    #[error("cannot prepare {path}: {source}")]
    Stage {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A host directory could not be taken as a layer.
    #[error("cannot take {path} as a layer: {source}")]
    Clone {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The ids of a layer could not be mapped.
    #[error("cannot map the ids of {path}: {source}")]
    Idmap {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something could not be mounted.
    #[error("cannot mount {what} on {target}: {source}")]
    Mount {
        /// What.
        what: &'static str,
        /// Where, as seen inside.
        target: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A template names a place that is not an absolute path of plain components.
    #[error("the template mounts on {0}, which is not a plain absolute path")]
    Target(PathBuf),
    /// The sandbox's own layer could not be made.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Whose eyes the tree is built for.
#[derive(Debug, Clone, Copy)]
pub enum Ownership<'a> {
    /// Root of the host builds it; host ids 0 and up become the sandbox's through this user namespace.
    Mapped {
        /// The sandbox's user namespace.
        user_namespace: BorrowedFd<'a>,
        /// The host id of root inside.
        root_id: u32,
    },
    /// An ordinary user builds it inside the sandbox's own user namespace; ids stay as they are.
    Own,
}

impl Ownership<'_> {
    fn give_to_root(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Mapped { root_id, .. } => chown(path, Some(root_id), Some(root_id)),
            Self::Own => Ok(()),
        }
    }
}

/// The finished tree.
#[derive(Debug)]
pub struct Tree {
    /// The sandbox's root.
    pub root: OwnedFd,
    /// The file system that holds the sandbox's own layer, to ask how full it is.
    pub disk: OwnedFd,
}

/// Makes the caller's mount namespace its own: nothing mounted from here on is seen elsewhere.
pub fn make_private() -> Result<(), MountError> {
    use rustix::mount::MountPropagationFlags as Flags;
    mount_change("/", Flags::PRIVATE | Flags::REC).map_err(|error| MountError::Private(error.into()))
}

/// Builds the tree. The caller is in a mount namespace that it will discard on error.
pub fn assemble(plan: &Plan, ownership: Ownership<'_>) -> Result<Tree, MountError> {
    let stage = plan.stage.as_path();
    let staged = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| MountError::Stage { path, source }
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("belljar", stage, "tmpfs", flags, c"size=64k,mode=0755").map_err(|e| staged(stage)(e.into()))?;
    // Overlay options hold paths without quoting, so they are given relative to here.
    std::env::set_current_dir(stage).map_err(staged(stage))?;

    let disk = Path::new("disk");
    make_dir(disk, 0o755).map_err(staged(disk))?;
    disk::mount_on(disk, plan, ownership)?;
    let disk_fd = open_path(disk).map_err(staged(disk))?;

    let root = Path::new("root");
    make_dir(root, 0o755).map_err(staged(root))?;
    let (source, above) = (plan.root.clone(), plan.above.clone());
    let base = Layer { source, target: "/".into(), above, copy_on_write: true };
    mount_layer(0, &base, ownership, |upper| identity_files(plan, upper, ownership))?;
    for (number, layer) in plan.layers.iter().enumerate() {
        mount_layer(number + 1, layer, ownership, |_| Ok(()))?;
    }
    cover(&plan.covered, ownership)?;
    for (name, mode) in [("tmp", 0o1777), ("run", 0o755)] {
        let backing = disk.join(name);
        make_dir(&backing, mode).and_then(|()| ownership.give_to_root(&backing)).map_err(staged(&backing))?;
        let target = root.join(name);
        mount_bind(&backing, &target).map_err(|error| mount_error("own directory", &target, error))?;
    }
    devices(&root.join("dev"), plan, ownership)?;
    if !Wall::NoSys.stands() {
        let sys = root.join("sys");
        make_dir(&sys, 0o755).or_else(exists_is_fine).map_err(staged(&sys))?;
        mount_bind_recursive("/sys", &sys).map_err(|error| mount_error("the host's /sys", &sys, error))?;
    }
    let root = open_path(root).map_err(staged(root))?;
    Ok(Tree { root, disk: disk_fd })
}

/// What a mount of ordinary files does without.
pub(crate) fn plain_files() -> MountFlags {
    let nosuid = if Wall::NoSuid.stands() { MountFlags::NOSUID } else { MountFlags::empty() };
    let nodev = if Wall::NoDev.stands() { MountFlags::NODEV } else { MountFlags::empty() };
    nosuid | nodev
}

fn mount_error(what: &'static str, target: &Path, source: impl Into<io::Error>) -> MountError {
    let target = Path::new("/").join(target.strip_prefix("root").unwrap_or(target));
    MountError::Mount { what, target, source: source.into() }
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    // The mode above passed through the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn exists_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Where a layer goes in the staged tree.
fn staged_target(target: &Path) -> Result<PathBuf, MountError> {
    placed(Path::new("root"), target).ok_or_else(|| MountError::Target(target.to_owned()))
}

/// Where an absolute path of plain components is below this directory.
fn placed(directory: &Path, target: &Path) -> Option<PathBuf> {
    let mut components = target.components();
    if components.next() != Some(Component::RootDir) {
        return None;
    }
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    components.clone().all(plain).then(|| directory.join(components.as_path()))
}

/// Mounts one layer, with those that lie over it: read-only as it is, or under an upper directory on the sandbox's disk
/// that `fill` may put first files into.
fn mount_layer(
    number: usize,
    layer: &Layer,
    ownership: Ownership<'_>,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), MountError> {
    let target = staged_target(&layer.target)?;
    let lower = clone_read_only(&layer.source, ownership)?;
    if !layer.copy_on_write || (number > 0 && !Wall::OwnLayer.stands()) {
        return attach(&lower, &target).map_err(|error| mount_error("read-only layer", &target, error));
    }
    let upper = upper(number);
    let work = PathBuf::from(format!("disk/work{number}"));
    for path in [&upper, &work] {
        make_dir(path, 0o755)
            .and_then(|()| ownership.give_to_root(path))
            .map_err(|source| MountError::Stage { path: path.clone(), source })?;
    }
    fill(&upper).map_err(|source| MountError::Stage { path: upper.clone(), source })?;
    let above = layer.above.iter().map(|source| clone_read_only(source, ownership));
    let mut lowers = Vec::new();
    for (depth, tree) in above.chain([Ok(lower)]).enumerate() {
        let place = PathBuf::from(format!("lower{number}.{depth}"));
        make_dir(&place, 0o755).map_err(|source| MountError::Stage { path: place.clone(), source })?;
        attach(&tree?, &place).map_err(|error| mount_error("layer", &target, error))?;
        lowers.push(place.display().to_string());
    }
    let extra = match ownership {
        Ownership::Mapped { .. } if layer.above.is_empty() => "index=off,metacopy=off,xino=off",
        // What layers say of what lies below them is said by attributes that anybody may set, and nobody inside can.
        Ownership::Mapped { .. } => "userxattr,index=off,metacopy=off,xino=off",
        Ownership::Own => "userxattr",
    };
    let lowers = lowers.join(":");
    let options =
        format!("lowerdir={lowers},upperdir={},workdir={},{extra}\0", upper.display(), work.display());
    let options = std::ffi::CStr::from_bytes_until_nul(options.as_bytes()).unwrap_or_default();
    mount("belljar", &target, "overlay", plain_files(), options)
        .map_err(|error| mount_error("copy-on-write layer", &target, error))
}

/// Where the sandbox's own files over a layer are: 0 is the root, and the others follow as they are planned.
fn upper(number: usize) -> PathBuf {
    PathBuf::from(format!("disk/upper{number}"))
}

/// Puts an empty file of the sandbox's own over each of these.
fn cover(covered: &[PathBuf], ownership: Ownership<'_>) -> Result<(), MountError> {
    if covered.is_empty() {
        return Ok(());
    }
    let empty = Path::new("empty");
    let staged = |source| MountError::Stage { path: empty.to_owned(), source };
    fs::write(empty, "")
        .and_then(|()| fs::set_permissions(empty, fs::Permissions::from_mode(0o444)))
        .and_then(|()| ownership.give_to_root(empty))
        .map_err(staged)?;
    // Root inside could else fill the staging area through it, which is no part of its disk.
    let attributes =
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    for target in covered {
        let target = staged_target(target)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, empty, flags)
            .map_err(io::Error::from)
            .and_then(|tree| {
                set_attributes(tree.as_fd(), attributes, None, false)?;
                attach(&tree, &target)
            })
            .map_err(|error| mount_error("an empty file", &target, error))?;
    }
    Ok(())
}

/// What differs from sandbox to sandbox in `/etc`.
fn identity_files(plan: &Plan, upper: &Path, ownership: Ownership<'_>) -> io::Result<()> {
    let etc = upper.join("etc");
    make_dir(&etc, 0o755)?;
    ownership.give_to_root(&etc)?;
    let mut machine_id = [0u8; 16];
    rustix::rand::getrandom(&mut machine_id, rustix::rand::GetRandomFlags::empty())?;
    let machine_id: String = machine_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let hosts = format!("127.0.0.1 localhost {0}\n::1 localhost ip6-localhost {0}\n", plan.id);
    let files = [("hostname", format!("{}\n", plan.id)), ("machine-id", machine_id + "\n"), ("hosts", hosts)];
    for (name, content) in files {
        let path = etc.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        ownership.give_to_root(&path)?;
    }
    for file in &plan.files {
        own_file(file, upper, ownership)?;
    }
    Ok(())
}

/// Copies a file to where the sandbox has it, with the directories that lead there.
fn own_file(file: &OwnFile, upper: &Path, ownership: Ownership<'_>) -> io::Result<()> {
    let place = placed(upper, &file.target).ok_or(io::ErrorKind::InvalidInput)?;
    let within = |path: &&Path| *path != upper && path.starts_with(upper);
    let mut above: Vec<&Path> = place.ancestors().skip(1).take_while(within).collect();
    while let Some(directory) = above.pop() {
        if !directory.exists() {
            make_dir(directory, 0o755)?;
            ownership.give_to_root(directory)?;
        }
    }
    fs::write(&place, fs::read(&file.source)?)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o644))?;
    ownership.give_to_root(&place)
}

/// A detached, read-only copy of the mount at `source`, in the sandbox's ids.
fn clone_read_only(source: &Path, ownership: Ownership<'_>) -> Result<OwnedFd, MountError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let recursive = matches!(ownership, Ownership::Own);
    if recursive {
        // In a user namespace of our own the kernel does not let us uncover what the host mounted on top.
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = open_tree(CWD, source, flags)
        .map_err(|error| MountError::Clone { path: source.to_owned(), source: error.into() })?;
    let read_only = [
        (Wall::ReadOnlyLayers, libc::MOUNT_ATTR_RDONLY),
        (Wall::NoSuid, libc::MOUNT_ATTR_NOSUID),
        (Wall::NoDev, libc::MOUNT_ATTR_NODEV),
    ];
    let read_only = read_only
        .into_iter()
        .filter(|(wall, _)| wall.stands())
        .fold(0, |set, (_, attribute)| set | attribute);
    let (attributes, user_namespace) = match ownership {
        Ownership::Mapped { user_namespace, .. } => {
            (read_only | libc::MOUNT_ATTR_IDMAP, Some(user_namespace))
        }
        Ownership::Own => (read_only, None),
    };
    set_attributes(tree.as_fd(), attributes, user_namespace, recursive)
        .map_err(|error| MountError::Idmap { path: source.to_owned(), source: error })?;
    Ok(tree)
}

fn set_attributes(
    tree: BorrowedFd<'_>,
    attributes: u64,
    user_namespace: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    let attribute = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the structure outlives the call and its size is given; the path is a valid empty string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attribute,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result as i32).map(drop)
}

fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    Ok(move_mount(tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A `/dev` of our own making: a handful of devices, the usual links, shared memory.
fn devices(dev: &Path, plan: &Plan, ownership: Ownership<'_>) -> Result<(), MountError> {
    if !Wall::OwnDev.stands() {
        return mount_bind_recursive("/dev", dev).map_err(|error| mount_error("the host's /dev", dev, error));
    }
    let staged = |source| MountError::Stage { path: dev.to_owned(), source };
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("belljar", dev, "tmpfs", flags, c"size=64k,nr_inodes=64,mode=0755")
        .map_err(|error| mount_error("devices", dev, error))?;
    for (name, major, minor) in DEVICES {
        let target = dev.join(name);
        match ownership {
            Ownership::Mapped { .. } if Wall::OwnDevices.stands() => make_device(&target, major, minor)
                .and_then(|()| ownership.give_to_root(&target))
                .map_err(|error| mount_error("device", &target, error))?,
            _ => borrow_device(&Path::new("/dev").join(name), &target)?,
        }
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, target) in links {
        symlink(target, dev.join(name)).map_err(staged)?;
    }
    make_dir(&dev.join("pts"), 0o755).map_err(staged)?;
    let shm = dev.join("shm");
    make_dir(&shm, 0o1777).map_err(staged)?;
    let bounded = (plan.limits.memory.0 / 8).min(64 << 20);
    let size = if Wall::SharedMemoryBytes.stands() { bounded } else { 0 };
    let options = format!("size={size},nr_inodes=4096,mode=1777\0");
    let options = std::ffi::CStr::from_bytes_until_nul(options.as_bytes()).unwrap_or_default();
    mount("belljar", &shm, "tmpfs", flags | MountFlags::NODEV, options)
        .map_err(|error| mount_error("shared memory", &shm, error))
}

/// A node of the sandbox's own: locks, times and permissions of the host's are not shared.
fn make_device(target: &Path, major: u32, minor: u32) -> io::Result<()> {
    use rustix::fs::{FileType, Mode, makedev, mknodat};
    mknodat(CWD, target, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))?;
    // The mode above passed through the umask.
    fs::set_permissions(target, fs::Permissions::from_mode(0o666))
}

/// The host's own node, for those who may not make any.
fn borrow_device(source: &Path, target: &Path) -> Result<(), MountError> {
    fs::write(target, "").map_err(|source| MountError::Stage { path: target.to_owned(), source })?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let device = open_tree(CWD, source, flags)
        .map_err(|error| MountError::Clone { path: source.to_owned(), source: error.into() })?;
    verify_device(&device, source)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    set_attributes(device.as_fd(), attributes, None, false)
        .and_then(|()| attach(&device, target))
        .map_err(|error| mount_error("device", target, error))
}

/// A host on which `/dev/null` is not the null device must not hand that to a sandbox.
fn verify_device(device: &OwnedFd, source: &Path) -> Result<(), MountError> {
    let stat = rustix::fs::fstat(device)
        .map_err(|error| MountError::Clone { path: source.to_owned(), source: error.into() })?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice {
        return Ok(());
    }
    let source_error = io::Error::new(io::ErrorKind::InvalidData, "it is not a character device");
    Err(MountError::Clone { path: source.to_owned(), source: source_error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_cannot_leave_the_tree() {
        assert_eq!(staged_target(Path::new("/usr")).unwrap(), Path::new("root/usr"));
        assert_eq!(staged_target(Path::new("/")).unwrap(), Path::new("root"));
        for bad in ["usr", "/usr/../../etc", "../x", ""] {
            assert!(staged_target(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
