//! The nursery: one process that forks a launcher for each sandbox that its creator asks for. Forking a small process
//! that is already there, and has looked at the host once, is cheaper than starting a program each time.
//!
//! Its one input is the socket on standard input. Each message brings a descriptor: the launcher's own socket to the
//! creator. The nursery ends when the creator closes its end; launchers live on. What any of them has to say for people
//! goes to the log on standard error.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_core::Wall;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::launch;
use crate::namespaces::{check, name_process};

/// How long a turn at the processor is for our own processes: enough for what they do when woken, and far less than
/// an execution's (`guest/src/child.rs`).
const TURN: Duration = Duration::from_micros(300);

/// Serves until the creator goes away; in a launcher's process, until its sandbox has ended.
pub fn run() -> i32 {
    // Whatever our creator had open and forgot to mark is not for us to keep, nor is its directory or its terminal.
    // SAFETY: plain system calls on numbers; nothing has been opened yet. Launchers that end are not to be waited for.
    unsafe {
        if Wall::DescriptorsClosed.stands() {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
        }
        libc::setsid();
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
    name_process(c"belljar-nursery");
    take_short_turns();
    launch::look_around();
    // SAFETY: standard input is open for as long as this process lives.
    let creator = unsafe { BorrowedFd::borrow_raw(0) };
    loop {
        match receive(creator) {
            Ok(Some(creator)) => match fork_for(creator) {
                Ok(true) => return launch::run(),
                Ok(false) => {}
                // The creator sees its socket close without an answer.
                Err(error) => eprintln!("belljar-jail: cannot fork a launcher: {error}"),
            },
            Ok(None) => return 0,
            Err(error) => {
                eprintln!("belljar-jail: cannot hear the creator: {error}");
                return 1;
            }
        }
    }
}

/// Has the scheduler give this process and all that come from it (launchers, monitors, guests) short turns: whoever
/// asks for less is let in at once beside those who never pause. Linux before 6.12 gives the same to all.
fn take_short_turns() {
    // SAFETY: zeros are valid attributes; they are live, and their size is true. All but the turns stay as they are.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let size = size_of_val(&attributes);
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 {
            attributes.sched_runtime = TURN.as_nanos() as u64;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

/// True in the launcher's process, which then has its streams in their places and nothing else open.
fn fork_for(creator: OwnedFd) -> io::Result<bool> {
    // SAFETY: the process is single-threaded, so the child may go on as after any fork.
    if check(unsafe { libc::fork() })? != 0 {
        return Ok(false);
    }
    for place in [0, 1] {
        // SAFETY: plain system calls on numbers; what had these numbers is not used any more.
        if unsafe { libc::dup2(creator.as_raw_fd(), place) } == -1 {
            // SAFETY: ends this process, which can tell nobody why.
            unsafe { libc::_exit(1) };
        }
    }
    // SAFETY: plain system call; a launcher waits for its children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    Ok(true)
}

/// The next launcher's socket; `None` when the creator has gone.
fn receive(creator: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let received = match recvmsg(creator, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        if let Some(launcher) = descriptors.flatten().next() {
            return Ok(Some(launcher));
        }
        eprintln!("belljar-jail: an order without a descriptor");
    }
}
