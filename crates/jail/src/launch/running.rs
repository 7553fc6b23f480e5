//! The launcher's long wait, and what it does at the end of it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use belljar_core::SandboxState;
use rustix::process::{WaitOptions, wait};

use super::Privileged;
use crate::control::SOCKET_FILE;
use crate::log::note;
use crate::monitor::write_ended;

/// A sandbox with its monitor.
pub(super) struct Running {
    pub(super) state_dir: PathBuf,
    pub(super) spool: OwnedFd,
    pub(super) _lock: File,
    pub(super) privileged: Option<Privileged>,
}

impl Running {
    /// Waits for guest and monitor, and removes what only root can remove.
    pub(super) fn wait(self) {
        // The creator waits for our end of these; and a tie must break when it goes, not when we do.
        for fd in 0..2 {
            // SAFETY: closes descriptors that nothing here uses any more.
            unsafe { libc::close(fd) };
        }
        while !matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {}
        self.remove_cgroups();
        write_ended(&self.spool, SandboxState::Lost);
        let _ = fs::remove_file(self.state_dir.join(SOCKET_FILE));
        let _ = fs::remove_dir(self.state_dir.join("stage"));
    }

    pub(super) fn remove_cgroups(&self) {
        if let Some(Privileged { group, .. }) = &self.privileged {
            let _ = group.kill();
            if let Err(error) = group.remove() {
                note(format_args!("cannot remove cgroups: {error}"));
            }
        }
    }
}
