//! The sandbox's own layer: a file system with a hard bound on bytes and on files.
//!
//! Small disks are memory, charged to the sandbox and always smaller than its memory limit, so that a full disk is
//! an error of its own and not an out-of-memory kill. Larger ones are a preallocated image on the host's disk, whose
//! file has no name any more once it is mounted: whatever happens, nothing of it is left.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_core::Wall;
use rustix::fs::FallocateFlags;
use rustix::mount::{MountFlags, mount};

use crate::mounts::{Ownership, plain_files};
use crate::namespaces::check;
use crate::plan::Plan;

/// Which step of making the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A memory-backed disk could not be mounted.
    #[error("cannot mount a memory-backed disk: {0}")]
    Memory(io::Error),
    /// More disk than memory allows, but only root of the host can mount an image.
    #[error(
        "a disk of {disk} bytes needs an image, which only root can mount; without root at most {most} bytes"
    )]
    NeedsRoot {
        /// What was asked for.
        disk: u64,
        /// What can be had.
        most: u64,
    },
    /// The image could not be reserved.
    #[error("cannot reserve {bytes} bytes for the disk image: {source}")]
    Reserve {
        /// How many.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
    /// `mkfs.ext4` is missing or failed.
    #[error("cannot format the disk image: {0}")]
    Format(String),
    /// No loop device could be had.
    #[error("cannot attach the disk image to a loop device: {0}")]
    Loop(io::Error),
    /// The image could not be mounted.
    #[error("cannot mount the disk image: {0}")]
    Mount(io::Error),
}

/// The most that a memory-backed disk may take of a sandbox's memory.
fn most_in_memory(memory: u64) -> u64 {
    memory / 4 * 3
}

/// Mounts the disk on `target`, owned by root inside.
pub(crate) fn mount_on(target: &Path, plan: &Plan, ownership: Ownership<'_>) -> Result<(), DiskError> {
    let (bytes, inodes) = (plan.limits.disk.0, plan.limits.inodes);
    let most = most_in_memory(plan.limits.memory.0);
    match ownership {
        _ if bytes <= most => mount_memory(target, bytes, inodes, ownership).map_err(DiskError::Memory),
        Ownership::Own => Err(DiskError::NeedsRoot { disk: bytes, most }),
        Ownership::Mapped { root_id, .. } => mount_image(target, plan, root_id),
    }
}

fn mount_memory(target: &Path, bytes: u64, inodes: u64, ownership: Ownership<'_>) -> io::Result<()> {
    let owner = match ownership {
        Ownership::Mapped { root_id, .. } => format!(",uid={root_id},gid={root_id}"),
        Ownership::Own => String::new(),
    };
    // For this file system 0 is no bound.
    let bytes = if Wall::DiskBytes.stands() { bytes } else { 0 };
    let inodes = if Wall::DiskFiles.stands() { inodes } else { 0 };
    let options = format!("size={bytes},nr_inodes={inodes},mode=0755{owner}\0");
    let options = CStr::from_bytes_until_nul(options.as_bytes()).unwrap_or_default();
    Ok(mount("belljar", target, "tmpfs", plain_files(), options)?)
}

fn mount_image(target: &Path, plan: &Plan, root_id: u32) -> Result<(), DiskError> {
    let path = plan.state_dir.join("disk.img");
    let bytes = plan.limits.disk.0;
    let reserve = |source| DiskError::Reserve { bytes, source };
    let image = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(reserve)?;
    let mounted = rustix::fs::fallocate(&image, FallocateFlags::empty(), 0, bytes)
        .map_err(|error| reserve(error.into()))
        .and_then(|()| format_image(&path, plan.limits.inodes, root_id))
        .and_then(|()| attach_loop(&image).map_err(DiskError::Loop))
        .and_then(|(device_path, _device)| {
            let flags = plain_files() | MountFlags::NOATIME;
            mount(&device_path, target, "ext4", flags, c"nodiscard")
                .map_err(|error| DiskError::Mount(error.into()))
        });
    // From here on the kernel alone holds the image.
    let removed = std::fs::remove_file(&path).map_err(reserve);
    mounted.and(removed)
}

fn format_image(path: &Path, inodes: u64, root_id: u32) -> Result<(), DiskError> {
    let program = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .ok_or_else(|| DiskError::Format("mkfs.ext4 is not installed (package e2fsprogs)".into()))?;
    let output = Command::new(program)
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-N", &inodes.to_string(), "-E"])
        .arg(format!("nodiscard,root_owner={root_id}:{root_id}"))
        .arg(path)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| DiskError::Format(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(DiskError::Format(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Attaches the image to a free loop device that goes away with its last user.
fn attach_loop(image: &File) -> io::Result<(PathBuf, File)> {
    const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
    const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    const LO_FLAGS_DIRECT_IO: u32 = 16;
    /// `struct loop_config` of the kernel's interface.
    #[repr(C)]
    struct LoopConfig {
        fd: u32,
        block_size: u32,
        info: LoopInfo,
        reserved: [u64; 8],
    }
    /// `struct loop_info64` of the kernel's interface.
    #[repr(C)]
    struct LoopInfo {
        device: u64,
        inode: u64,
        rdevice: u64,
        offset: u64,
        size_limit: u64,
        number: u32,
        encrypt_type: u32,
        encrypt_key_size: u32,
        flags: u32,
        file_name: [u8; 64],
        crypt_name: [u8; 64],
        encrypt_key: [u8; 32],
        init: [u64; 2],
    }
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    loop {
        // SAFETY: the request takes no argument.
        let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        // SAFETY: all-zero is a valid loop_config.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = image.as_raw_fd() as u32;
        // Past the host's page cache, which no group would be charged for, and so without a thread of the kernel that
        // copies from it. Where the file system of the image cannot do it, the kernel goes through the cache.
        config.info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
        // Not those of the device below, which may be larger than the blocks of the file system inside.
        config.block_size = 512;
        // SAFETY: LOOP_CONFIGURE reads a loop_config, which `config` is.
        match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }) {
            Ok(_) => return Ok((path, device)),
            // Someone else took it between the two calls.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
}
