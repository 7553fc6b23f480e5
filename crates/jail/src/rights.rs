//! What a process outside gives up before it reads anything that comes from inside.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use belljar_core::Wall;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::landlock::{self, Reach};
use crate::namespaces::check;
use crate::seccomp;
use crate::slot;

/// The host's user id under which the door's worker runs, where there is root to give it: nobody else's.
const WORKER: u32 = slot::FIRST_ID - 1;
/// The same for the gateway.
const GATEWAY: u32 = slot::FIRST_ID - 2;

/// Where a program finds what it needs to look up names.
const TO_LOOK_UP_NAMES: [&str; 7] =
    ["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/run/resolvconf", "/proc/sys/net"];

/// More than it ever needs: a connection takes some kilobytes, a look-up that waits a thread's stack.
const MOST_MEMORY: u64 = 2 << 30;
/// Threads of all workers of the host.
const MOST_THREADS: u64 = 4096;

/// Takes the rights of the door's worker away: what is left is the network, and what is needed to look up names.
pub fn confine_worker() -> io::Result<()> {
    confine(WORKER)
}

/// Takes the rights of the gateway away, after it has got its keys. What is left is the same, in the hands of another user:
/// whoever takes over the worker cannot look into it.
pub fn confine_gateway() -> io::Result<()> {
    confine(GATEWAY)
}

fn confine(user: u32) -> io::Result<()> {
    most_descriptors()?;
    let places = landlock::places(&TO_LOOK_UP_NAMES).map_err(io::Error::other)?;
    let root = rustix::process::geteuid().is_root();
    if Wall::WorkerLimits.stands() {
        bound(Resource::Core, 0)?;
        bound(Resource::Data, MOST_MEMORY)?;
        if root {
            bound(Resource::Nproc, MOST_THREADS)?;
        }
    }
    give_up((root && Wall::WorkerUser.stands()).then_some(user))?;
    if landlock::abi() >= 1 && Wall::WorkerLandlock.stands() {
        let places: Vec<_> = places.iter().map(AsFd::as_fd).collect();
        let rules = landlock::ruleset(&places, &[], &[], Reach::OwnDomain).map_err(io::Error::other)?;
        landlock::restrict_self(rules.as_fd())?;
    }
    if Wall::WorkerFilter.stands() {
        seccomp::compile_for_worker().install_silently()?;
    }
    Ok(())
}

/// Capabilities by which root makes files as an archive says they are: whose they are, and whatever their rights.
const TO_MAKE_FILES: u64 = (1 << 0) | (1 << 1) | (1 << 3) | (1 << 4) | (1 << 27);

/// Takes the rights of whoever unpacks a stranger's archive away: what is left is to read these directories and to make files in that one.
/// It ends with whoever started it. The process must be of one thread.
pub fn confine_unpacker(readable: &[BorrowedFd<'_>], writable: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain system call on numbers.
    unsafe { check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)) }?;
    bound(Resource::Core, 0)?;
    bound(Resource::Data, MOST_MEMORY)?;
    if rustix::process::geteuid().is_root() {
        // What is absolute leads into the layer, whoever follows it.
        rustix::process::fchdir(writable)?;
        rustix::process::chroot(".")?;
        keep_capabilities(TO_MAKE_FILES)?;
    }
    give_up(None)?;
    if landlock::abi() >= 1 {
        let rules = landlock::layer_ruleset(readable, writable).map_err(io::Error::other)?;
        landlock::restrict_self(rules.as_fd())?;
    }
    seccomp::compile_for_unpacker().install_silently()
}

fn keep_capabilities(kept: u64) -> io::Result<()> {
    let header: [u32; 2] = [0x2008_0522, 0];
    let (low, high) = (kept as u32, (kept >> 32) as u32);
    let sets: [u32; 6] = [low, low, 0, high, high, 0];
    // SAFETY: header and sets have the layout of version 3 and outlive the call.
    unsafe { check(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) as i32) }.map(drop)
}

/// Lowers a limit for good.
fn bound(resource: Resource, most: u64) -> io::Result<()> {
    let least = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(least), maximum: Some(least) })?)
}

/// Closes whatever was handed down by whoever started us, but for the three that were meant.
pub fn close_others() -> io::Result<()> {
    // SAFETY: plain system call on numbers. Nothing of ours is open yet, as the caller promises by calling this first.
    unsafe { check(libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) as i32) }.map(drop)
}

/// Lets the process have as many descriptors as it may.
pub fn most_descriptors() -> io::Result<()> {
    let files = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })?)
}

/// Becomes another user, if one is given, without any capability or way to get one. The process must be of one thread.
pub(crate) fn give_up(user: Option<u32>) -> io::Result<()> {
    if let Some(user) = user {
        // SAFETY: plain system calls on numbers and valid pointers; the process is single-threaded. All capabilities
        // are cleared by hand, because the launcher's securebits keep them across changes of user.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) as i32)?;
            check(libc::syscall(libc::SYS_setresgid, user, user, user) as i32)?;
            check(libc::syscall(libc::SYS_setresuid, user, user, user) as i32)?;
            let header: [u32; 2] = [0x2008_0522, 0];
            let none = [0u32; 6];
            check(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) as i32)?;
        }
    }
    // SAFETY: plain system calls on numbers.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
    }
    Ok(())
}
