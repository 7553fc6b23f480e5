//! The process that forks launchers for us, started when the first is wanted.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use belljar_core::{Result, Wall};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixStream;

use super::launcher_failed;
use crate::home::problem;

/// The nursery of one provider. It ends when this is dropped; the launchers it forked live on.
#[derive(Debug, Default)]
pub(super) struct Nursery(Mutex<Option<Socket>>);

impl Nursery {
    /// Starts the process if there is none.
    pub(super) fn wake(&self, program: &Path) -> Result<()> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if socket.is_none() {
            *socket = Some(start(program).map_err(|error| problem(program, &error))?);
        }
        Ok(())
    }

    /// Has a launcher forked, and answers our end of its socket. A nursery that was killed is started anew.
    pub(super) fn fork_launcher(&self, program: &Path, log: &File) -> Result<UnixStream> {
        let failed = |error: io::Error| launcher_failed(&error.to_string());
        // The launcher's end is one that waits, unlike ours.
        let (ours, theirs) = Socket::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let ours = UnixStream::from_std(ours).map_err(failed)?;
        for attempt in 0..2 {
            self.wake(program)?;
            let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(nursery) = socket.as_ref() else { continue };
            match order(nursery, &theirs, log) {
                Ok(()) => return Ok(ours),
                Err(error) if attempt > 0 => return Err(failed(error)),
                Err(_) => *socket = None,
            }
        }
        Err(launcher_failed("its nursery ends as soon as it is started"))
    }
}

fn start(program: &Path) -> io::Result<Socket> {
    let (ours, theirs) = Socket::pair()?;
    let mut nursery = Command::new(program);
    if Wall::CleanEnvironment.stands() {
        nursery.env_clear();
    }
    #[cfg(feature = "ablation")]
    nursery.envs([belljar_core::wall::ablation::passed_on()]);
    let mut child =
        nursery.arg("nursery").current_dir("/").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn()?;
    // It is waited for wherever it ends, so that no trace of it stays in the process table.
    std::thread::Builder::new().name("nursery".into()).stack_size(64 * 1024).spawn(move || child.wait())?;
    Ok(ours)
}

fn order(nursery: &Socket, launcher: &Socket, log: &File) -> io::Result<()> {
    let descriptors = [launcher.as_fd(), log.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(nursery, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
