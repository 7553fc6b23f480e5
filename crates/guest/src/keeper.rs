//! What stands in for a cgroup where the guest may not make one: a small process between the guest and an execution.
//!
//! It is the reaper of the execution's orphans, so that whatever a command forks, however often, stays below it in
//! the process tree and can be found there. It passes on how the first process ended and ends with the last one.

use std::os::fd::RawFd;

use crate::child::{self, Plan};
use crate::reap::Ended;
use crate::step::{Step, Stopped};

/// Becomes the keeper of a new execution; never returns. Runs after fork: nothing here allocates.
pub(crate) fn keep(plan: &Plan, status: RawFd) -> ! {
    // SAFETY: these calls take numbers only.
    let first = unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::fork()
    };
    if first == 0 {
        child::run(plan);
    }
    if first == -1 {
        child::report(plan.report, Stopped::now(Step::Fork));
    }
    leave_only(status);
    while let Some(ended) = Ended::wait(0) {
        if ended.pid == first {
            let message = ended.to_bytes();
            // SAFETY: the buffer is live; a message this small goes into the pipe in one piece.
            unsafe { libc::write(status, message.as_ptr().cast(), message.len()) };
        }
    }
    // SAFETY: ends this process without running anything of the guest's.
    unsafe { libc::_exit(0) }
}

/// Closes everything but one descriptor, so that the keeper holds no end of the execution's pipes open.
fn leave_only(fd: RawFd) {
    let fd = fd as u32;
    // SAFETY: closes descriptors of this process, of which only `fd` is used from here on.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        libc::syscall(libc::SYS_close_range, fd + 1, u32::MAX, 0);
    }
}
