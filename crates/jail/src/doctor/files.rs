//! Whether a sandbox's file system can be built: layers of the host, a bounded layer of its own, paths that cannot
//! leave a directory.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::Duration;

use belljar_core::{ByteSize, Limits, SandboxId};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, move_mount, open_tree, unmount,
};

use super::probe::{Failing, Inner, Proof, in_child, in_scratch, refused};
use super::{Area, Check, is_root};
use crate::disk;
use crate::mounts::Ownership;
use crate::namespaces::check;
use crate::plan::Plan;
use crate::slot::Slot;

/// The directory that every template takes as a layer.
const LAYER: &str = "/usr";
const SMALL_DISK: u64 = 1 << 20;
const FEW_FILES: u64 = 64;

pub(super) fn examine() -> Vec<Check> {
    let required = |name, proof, advice: &str| Check::required(Area::Files, name, proof, advice);
    vec![
        required(
            "read-only layers",
            in_scratch(read_only_layer),
            "needs Linux 5.12 or newer (open_tree, mount_setattr)",
        ),
        id_mapped(),
        required(
            "copy-on-write layers",
            in_scratch(copy_on_write),
            "needs CONFIG_OVERLAY_FS (`modprobe overlay`) and Linux 5.19 or newer for layers with mapped ids, 5.11 \
             without root",
        ),
        required("disk bound: bytes", in_scratch(bound_on_bytes), "needs CONFIG_TMPFS"),
        required("disk bound: files", in_scratch(bound_on_files), "needs CONFIG_TMPFS"),
        large_disks(),
        required("paths that stay inside", in_child(beneath), "needs Linux 5.6 or newer (openat2)"),
    ]
}

fn id_mapped() -> Check {
    let name = "mapped ids";
    if !is_root() {
        return Check::degraded(
            Area::Files,
            name,
            "only root can map the owners of files: inside, the host's files belong to nobody",
            "run belljar as root for sandboxes with users of their own".to_owned(),
        );
    }
    let advice = "needs Linux 5.12 or newer and a file system under /usr that can map ids (ext4, xfs, btrfs; \
                  overlayfs from 5.19 on; not NFS, and ZFS only from 2.2 on)";
    Check::required(Area::Files, name, in_scratch(mapped_layer), advice)
}

fn large_disks() -> Check {
    let name = "large disks";
    if !is_root() {
        return Check::degraded(
            Area::Files,
            name,
            "only root can mount a disk image: disks are at most three quarters of a sandbox's memory",
            "run belljar as root for larger ones".to_owned(),
        );
    }
    let advice = "small disks work all the same; for large ones install e2fsprogs (mkfs.ext4), and have \
                  CONFIG_BLK_DEV_LOOP and CONFIG_EXT4_FS (`modprobe loop ext4`) and /dev/loop-control";
    Check::useful(Area::Files, name, in_scratch(large_disk), advice)
}

/// Mounts a read-only copy of a host directory on `target`, its ids mapped where a user namespace is given.
fn mount_layer(user_namespace: Option<BorrowedFd<'_>>, target: &str) -> Result<(), String> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mut at_flags = libc::AT_EMPTY_PATH;
    if !is_root() {
        // What the host mounted below cannot be uncovered by an ordinary user.
        flags |= OpenTreeFlags::AT_RECURSIVE;
        at_flags |= libc::AT_RECURSIVE;
    }
    let tree = open_tree(CWD, LAYER, flags).failing(&format!("take {LAYER} as a layer"))?;
    let mapping = if user_namespace.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | mapping,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: the structure outlives the call and its size is given; the path is a valid empty string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            at_flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result as i32).failing(&match user_namespace {
        Some(_) => format!("map the ids of {LAYER}"),
        None => format!("make a layer of {LAYER} read-only"),
    })?;
    fs::create_dir(target).failing("make a directory")?;
    move_mount(&tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(&format!("mount a layer of {LAYER}"))
}

fn read_only_layer(_: Option<&Slot>) -> Proof {
    mount_layer(None, "layer")?;
    let entries = fs::read_dir("layer").failing("list a layer")?.count();
    refused("writing to a read-only layer", File::create("layer/belljar-doctor"), libc::EROFS)?;
    Ok(format!("took {LAYER} ({entries} entries) as a layer, and writing to it was refused"))
}

fn mapped_layer(slot: Option<&Slot>) -> Proof {
    let slot = slot.ok_or("only root can map ids")?;
    let inner = Inner::idle(slot)?;
    mount_layer(Some(inner.user_namespace()?.as_fd()), "layer")?;
    let outside = fs::metadata(LAYER).failing(&format!("look at {LAYER}"))?.uid();
    let inside = fs::metadata("layer").failing("look at a layer")?.uid();
    if inside == slot.root_id() + outside {
        Ok(format!("{LAYER}, which belongs to user {outside}, became a sandbox's own (user {inside})"))
    } else {
        Err(format!("{LAYER} was mapped to user {inside} instead of {}", slot.root_id() + outside))
    }
}

fn copy_on_write(slot: Option<&Slot>) -> Proof {
    let inner = slot.map(Inner::idle).transpose()?;
    let user_namespace = inner.as_ref().map(Inner::user_namespace).transpose()?;
    mount_layer(user_namespace.as_ref().map(AsFd::as_fd), "lower")?;
    for name in ["upper", "work", "merged"] {
        fs::create_dir(name).failing("make a directory")?;
        if let Some(slot) = slot {
            chown(name, Some(slot.root_id()), Some(slot.root_id())).failing("give a directory away")?;
        }
    }
    let options: &CStr = match slot {
        Some(_) => c"lowerdir=lower,upperdir=upper,workdir=work,index=off,metacopy=off,xino=off",
        None => c"lowerdir=lower,upperdir=upper,workdir=work,userxattr",
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("belljar", "merged", "overlay", flags, options).failing("mount an overlay on a tmpfs")?;
    let seen = Path::new("merged/bin").exists();
    fs::write("merged/belljar-doctor", "x").failing("write to an overlay")?;
    let kept = Path::new("upper/belljar-doctor").exists();
    unmount("merged", UnmountFlags::empty()).failing("unmount an overlay")?;
    match (seen, kept) {
        (true, true) => Ok(format!("wrote to a copy of {LAYER}; the change went to memory")),
        (false, _) => Err(format!("an overlay over {LAYER} does not show what is in it")),
        (_, false) => Err("what was written to an overlay did not arrive in its upper directory".into()),
    }
}

/// The plan of a sandbox with this disk, for the code that makes disks.
fn plan(memory: ByteSize, disk: u64) -> Result<Plan, String> {
    let limits = Limits { memory, disk: ByteSize(disk), inodes: FEW_FILES, ..Limits::default() };
    // The name is what tells a loop device of ours from others.
    let state_dir = std::env::current_dir().failing("find the current directory")?.join("belljar-doctor");
    fs::create_dir(&state_dir).failing("make a directory")?;
    Ok(Plan {
        id: SandboxId::from_random([0; 16]),
        stage: state_dir.clone(),
        state_dir,
        root: "/".into(),
        above: Vec::new(),
        layers: Vec::new(),
        files: Vec::new(),
        covered: Vec::new(),
        limits,
        env: Default::default(),
        shell: String::new(),
        user: Default::default(),
        own_root: false,
        directory: None,
        ttl: Duration::ZERO,
        guest: Default::default(),
        doorway: false,
    })
}

/// Mounts a disk on `disk`, as a launch would; what comes back keeps its user namespace.
fn mount_disk(slot: Option<&Slot>, memory: ByteSize, bytes: u64) -> Result<Option<(Inner, OwnedFd)>, String> {
    let held = match slot {
        Some(slot) => {
            let inner = Inner::idle(slot)?;
            let user_namespace = inner.user_namespace()?;
            Some((inner, user_namespace))
        }
        None => None,
    };
    let ownership = match (slot, &held) {
        (Some(slot), Some((_, fd))) => {
            Ownership::Mapped { user_namespace: fd.as_fd(), root_id: slot.root_id() }
        }
        _ => Ownership::Own,
    };
    fs::create_dir("disk").failing("make a directory")?;
    disk::mount_on(Path::new("disk"), &plan(memory, bytes)?, ownership).map_err(|error| error.to_string())?;
    Ok(held)
}

fn bound_on_bytes(slot: Option<&Slot>) -> Proof {
    let _held = mount_disk(slot, Limits::MIN_MEMORY, SMALL_DISK)?;
    let mut file = File::create("disk/file").failing("write to a bounded disk")?;
    let piece = [1; 4096];
    for written in (0..=SMALL_DISK).step_by(piece.len()) {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Ok(format!(
                    "a disk of {} was full after {} KiB",
                    ByteSize(SMALL_DISK),
                    written >> 10
                ));
            }
            Err(error) => return Err(format!("cannot write to a bounded disk: {error}")),
        }
    }
    Err(format!("a disk of {} took more than that", ByteSize(SMALL_DISK)))
}

fn bound_on_files(slot: Option<&Slot>) -> Proof {
    let _held = mount_disk(slot, Limits::MIN_MEMORY, SMALL_DISK)?;
    for made in 0..=FEW_FILES {
        match File::create(format!("disk/{made}")) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Ok(format!("a disk for {FEW_FILES} files took {made} beside its own"));
            }
            Err(error) => return Err(format!("cannot make files on a bounded disk: {error}")),
        }
    }
    Err(format!("a disk for {FEW_FILES} files took more than that"))
}

fn large_disk(slot: Option<&Slot>) -> Proof {
    // A disk as large as the memory does not fit in it, so it becomes an image.
    let _held = mount_disk(slot, Limits::MIN_MEMORY, Limits::MIN_MEMORY.0)?;
    let tried = fs::write("disk/file", "x").failing("write to a disk image");
    // Here and now, so that the loop device is free again when we say so.
    unmount("disk", UnmountFlags::empty()).failing("unmount a disk image")?;
    tried?;
    Ok("formatted an image, and mounted it through a loop device".into())
}

fn beneath() -> Proof {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = rustix::fs::open(LAYER, flags | OFlags::DIRECTORY, Mode::empty())
        .failing(&format!("open {LAYER}"))?;
    // A rename or a mount anywhere on the machine makes the kernel unsure of a way back; then it is asked again.
    let open = |path: &str| loop {
        match openat2(&directory, path, flags, Mode::empty(), ResolveFlags::BENEATH) {
            Err(rustix::io::Errno::AGAIN) => {}
            opened => break opened,
        }
    };
    open("bin").failing(&format!("open {LAYER}/bin with openat2"))?;
    for path in ["..", "bin/../..", "/etc"] {
        refused(&format!("leaving a directory by `{path}`"), open(path).map_err(Into::into), libc::EXDEV)?;
    }
    Ok("every way out of a directory was refused".into())
}
