//! The launcher's long wait, and what it does at the end of it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use belljar_core::SandboxState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitOptions, wait};

use super::Privileged;
use crate::control::SOCKET_FILE;
use crate::monitor::write_ended;
use crate::plan::Plan;

/// A sandbox with its monitor.
pub(super) struct Running {
    pub(super) plan: Plan,
    pub(super) guest: OwnedFd,
    pub(super) spool: OwnedFd,
    pub(super) _lock: File,
    pub(super) privileged: Option<Privileged>,
}

impl Running {
    /// Waits for guest and monitor, and removes what only root can remove. Our end of the creator's socket stays open to
    /// the end of this process, after the lock is gone: so the creator hears that all is over.
    pub(super) fn wait(mut self) {
        while !matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {
            // The guest cannot end before its processes, and those that stand still may not hear that they are to.
            if let Some(privileged) = &self.privileged {
                privileged.group.thaw_executions();
            }
        }
        self.privileged = None;
        write_ended(&self.spool, SandboxState::Lost, None);
        let _ = fs::remove_file(self.plan.state_dir.join(SOCKET_FILE));
    }

    /// The sandbox has its own copy of the tree; ours would only keep the disk alive. There is no hurry, while all the
    /// processors have to do with the sandbox's first command; and if that was all, our copy goes when we do.
    pub(super) fn let_go_of_stage(&self) {
        const WHILE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let ended = poll(&mut [PollFd::new(&self.guest, PollFlags::IN)], Some(&WHILE));
        if self.privileged.is_some() && ended == Ok(0) {
            let _ = rustix::mount::unmount(&self.plan.stage, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
