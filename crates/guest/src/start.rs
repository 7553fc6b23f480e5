//! What the guest does to itself before it listens.

use std::os::fd::{FromRawFd, OwnedFd};

use belljar_core::Wall;
use rustix::io::{Errno, FdFlags};

use crate::clock::Alarm;
use crate::connection::Connection;
use crate::end::End;
use crate::reap::Children;

/// The descriptor of the control socket.
const CONTROL: i32 = 3;

/// Makes the process fit to be what everything in the sandbox descends from.
pub(crate) fn prepare() -> Result<(Connection, Children, Alarm), End> {
    let socket = control_socket()?;
    // SAFETY: these calls take numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        if Wall::NoNewPrivileges.stands() {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        }
        if libc::getpid() != 1 {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        }
        // It may lead a session already.
        libc::setsid();
        // A peer that goes away is an error like others.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    let failed = |step| {
        move |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            End::Failed { step, errno }
        }
    };
    let children = Children::new().map_err(failed("hear of children"))?;
    let alarm = Alarm::new().map_err(failed("make an alarm"))?;
    Ok((Connection::new(socket), children, alarm))
}

fn control_socket() -> Result<OwnedFd, End> {
    let failed = |errno| End::Failed { step: "take over the control socket", errno };
    // SAFETY: this is the first thing that happens, so whatever has this number was inherited and is ours to own.
    let socket = unsafe { OwnedFd::from_raw_fd(CONTROL) };
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(failed)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
    Ok(socket)
}
