//! A child in namespaces of its own, and the id maps of its user namespace.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use belljar_core::Wall;

use crate::slot::Slot;

/// The flag of `clone3`; libc's constant is too narrow to hold it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What [`clone_into_namespaces`] returned to whom.
#[derive(Debug)]
pub enum Forked {
    /// In the child: process 1 of its pid namespace, waiting for its id maps.
    Child,
    /// In the parent.
    Parent {
        /// The child's process number.
        pid: i32,
        /// The child, whatever becomes of its number.
        pidfd: OwnedFd,
    },
}

/// Forks into new user and pid namespaces (the others are entered by the child, while the parent goes on), and into a
/// version-two cgroup if one is given. The calling process must be single-threaded: then the child may go on as after
/// any fork.
pub fn clone_into_namespaces(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    clone(libc::CLONE_NEWUSER | standing(&[(Wall::PidNamespace, libc::CLONE_NEWPID)]), cgroup)
}

/// A plain fork, into a version-two cgroup if one is given. The calling process must be single-threaded.
pub fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    clone(0, cgroup)
}

fn clone(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    let mut pidfd: i32 = -1;
    // SAFETY: an all-zero clone_args is valid: no stack, no tls, nothing shared.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (flags | libc::CLONE_PIDFD) as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    arguments.pidfd = (&raw mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork; the structure and the pidfd slot live across the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => {
            // SAFETY: the kernel has just given us this descriptor, and only us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Forked::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// As [`clone_into_namespaces`], with the effective user and group id of the slot's owner, so that the namespaces are counted for that
/// user. Capabilities stay as they are. The child keeps those ids until it has ids of its own.
pub fn clone_as_owner(slot: &Slot, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    set_effective(slot.owner_id())?;
    let forked = clone_into_namespaces(cgroup);
    if !matches!(forked, Ok(Forked::Child)) {
        set_effective(0)?;
    }
    forked
}

/// In the child: enters network, ipc and uts namespaces of its own.
pub fn enter_namespaces() -> io::Result<()> {
    let flags = standing(&[
        (Wall::NetNamespace, libc::CLONE_NEWNET),
        (Wall::IpcNamespace, libc::CLONE_NEWIPC),
        (Wall::UtsNamespace, libc::CLONE_NEWUTS),
    ]);
    // SAFETY: plain system call; the process is single-threaded.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

fn standing(namespaces: &[(Wall, libc::c_int)]) -> libc::c_int {
    namespaces.iter().filter(|(wall, _)| wall.stands()).fold(0, |flags, (_, flag)| flags | flag)
}

fn set_effective(id: u32) -> io::Result<()> {
    const KEEP: u32 = u32::MAX;
    // The bit keeps our capabilities while the effective id is not 0.
    const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
    // SAFETY: plain system calls on numbers; the process is single-threaded, so raw calls change all there is.
    unsafe {
        check(libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0))?;
        let (first, second) = if id == 0 {
            (libc::SYS_setresuid, libc::SYS_setresgid)
        } else {
            (libc::SYS_setresgid, libc::SYS_setresuid)
        };
        check(libc::syscall(first, KEEP, id, KEEP) as i32)?;
        check(libc::syscall(second, KEEP, id, KEEP) as i32)?;
    }
    Ok(())
}

/// Maps the slot's block of ids into the child's user namespace.
pub fn map_block(pid: i32, slot: &Slot) -> io::Result<()> {
    let map = format!("0 {} {}\n", slot.root_id(), slot.mapped_ids());
    fs::write(format!("/proc/{pid}/uid_map"), &map)?;
    fs::write(format!("/proc/{pid}/gid_map"), &map)
}

/// Maps the caller's own id to this one inside: all that an ordinary user may do.
pub fn map_single(pid: i32, inside: u32) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    fs::write(format!("/proc/{pid}/setgroups"), "deny\n")?;
    fs::write(format!("/proc/{pid}/uid_map"), format!("{inside} {uid} 1\n"))?;
    fs::write(format!("/proc/{pid}/gid_map"), format!("{inside} {gid} 1\n"))
}

/// The child's user namespace, as a descriptor.
pub fn user_namespace(pid: i32) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into())
}

/// In a child whose ids are mapped: becomes root of its user namespace.
pub fn become_root() -> io::Result<()> {
    // SAFETY: plain system calls on numbers, in a single-threaded process.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, 0, 0, 0) as i32)?;
        check(libc::syscall(libc::SYS_setresuid, 0, 0, 0) as i32)?;
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) as i32)?;
    }
    Ok(())
}

/// Brings up the loopback interface of the current network namespace.
pub fn loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: an all-zero ifreq is valid, and its name field is longer than "lo".
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which `request` is.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })?;
    Ok(())
}

/// What this process is called in lists of processes; at most 15 bytes are kept.
pub(crate) fn name_process(name: &CStr) {
    // SAFETY: the name is a live C string, which the kernel only reads.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
