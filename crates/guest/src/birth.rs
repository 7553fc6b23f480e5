//! Forking into a cgroup. A child that is born in its group never was outside it, and the kernel need not wait for
//! all processors, as it does when a process is moved.

use std::os::fd::{AsRawFd, BorrowedFd};

/// The flag of `clone3`; libc's constant is too narrow to hold it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks; the child is born in this version-two cgroup if one is given. Returns what `fork` does.
///
/// # Safety
///
/// As for `fork`: the caller has one thread, and the child goes on from here as a copy of it.
pub(crate) unsafe fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> i32 {
    let Some(cgroup) = cgroup else {
        // SAFETY: passed on to our caller.
        return unsafe { libc::fork() };
    };
    // SAFETY: an all-zero clone_args is valid: nothing shared, no stack of its own.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: the structure outlives the call and its size is given; without shared memory this is a fork.
    unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) as i32 }
}
