//! What the monitor gives up before it hears anyone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use belljar_core::Wall;

use crate::landlock::{self, Reach};
use crate::namespaces::check;
use crate::seccomp::Program;

/// Takes the monitor's privileges away: it becomes the sandbox's own unmapped user, may touch nothing of the file
/// system but its spool, and ask nothing of the kernel but what `filter` lets it.
pub(crate) fn confine(owner: Option<u32>, spool: &OwnedFd, filter: &Program) -> io::Result<()> {
    // Every client and every spool is a descriptor.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: files.maximum, maximum: files.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most)?;
    if let (Some(owner), true) = (owner, Wall::MonitorUser.stands()) {
        // SAFETY: plain system calls on numbers and valid pointers; the process is single-threaded. All capabilities
        // are cleared by hand, because the launcher's securebits keep them across changes of user.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) as i32)?;
            check(libc::syscall(libc::SYS_setresgid, owner, owner, owner) as i32)?;
            check(libc::syscall(libc::SYS_setresuid, owner, owner, owner) as i32)?;
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
    if landlock::abi() >= 1 && Wall::MonitorLandlock.stands() {
        let rules =
            landlock::ruleset(&[], &[spool.as_fd()], &[], Reach::Anywhere).map_err(io::Error::other)?;
        landlock::restrict_self(rules.as_fd())?;
    }
    if Wall::MonitorFilter.stands() {
        filter.install_silently()?;
    }
    Ok(())
}
