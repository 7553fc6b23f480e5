//! The end of a sandbox.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_core::{Ending, Error, ErrorCode, SandboxState, SandboxStats, Termination, Usage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, pidfd_send_signal};
use serde::Serialize;

use super::client::Role;
use super::execution::COMMAND;
use super::link::Presence;
use super::{FAREWELL, Service, answer};
use crate::clock::boottime;
use crate::control::{Answer, ENDED_FILE, EXECUTIONS_FILE, Ended, MAX_EXECUTIONS, Remembered};

impl Service {
    /// Kills the guest, and with it everything inside; then tells those who still listen.
    pub(super) fn farewell(&mut self, state: SandboxState) {
        // Signals do not reach what stands still by this switch.
        if let Some(freezer) = &self.given.freezer {
            freezer.request(false);
        }
        let _ = pidfd_send_signal(&self.given.guest_process, Signal::KILL);
        let until = boottime() + FAREWELL;
        wait_until_readable(&self.given.guest_process, until);
        let termination = if state == SandboxState::Lost { Termination::Lost } else { Termination::Killed };
        // What the guest had said before it died still counts.
        while let Ok(Presence::Open) = self.guest.fill(&mut self.buffer) {
            let mut any = false;
            while let Ok(Some(frame)) = self.guest.next_frame() {
                self.on_guest_frame(&frame);
                any = true;
            }
            if !any {
                break;
            }
        }
        for execution in self.executions.values_mut() {
            execution.start_us.get_or_insert(0);
            execution.outcome.get_or_insert(Ending {
                termination,
                usage: Usage::default(),
                duration: Duration::ZERO,
                oom_kills: None,
            });
        }
        for client in self.clients.values_mut() {
            let last = match client.role {
                Role::AwaitsEnd => Answer::Done,
                Role::Files { .. } | Role::AwaitsPause | Role::New => Answer::Failed(gone(state)),
                Role::Follower { .. } | Role::Waits { .. } | Role::Closing => continue,
            };
            client.link.queue(&answer(&last));
            client.role = Role::Closing;
        }
        // Everyone inside is dead, and the counters are still there: the launcher waits for our end.
        let stats = self.stats();
        self.write_executions();
        write_ended(&self.given.spool, state, Some(stats));
        while !self.clients.is_empty() && boottime() < until {
            if self.pump() {
                continue;
            }
            let mut polled: Vec<PollFd<'_>> =
                self.clients.values().map(|client| PollFd::new(&client.link, PollFlags::OUT)).collect();
            if !polled.is_empty() {
                let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                let _ = poll(&mut polled, Some(&second));
            }
        }
    }
}

impl Service {
    /// Leaves word of how the executions ended, for as many of the last as have room. Of a sandbox that ends with its
    /// creator nobody will ask.
    fn write_executions(&self) {
        if self.given.tie.is_some() {
            return;
        }
        let mut room = MAX_EXECUTIONS;
        let last = self.executions.values().rev().filter_map(|execution| {
            Some(Remembered {
                info: execution.info(COMMAND),
                start_us: execution.start_us?,
                ending: execution.outcome?,
                end: execution.end(),
            })
        });
        let mut kept: Vec<Remembered> = last
            .take_while(|one| {
                let length = serde_json::to_vec(one).map_or(usize::MAX, |text| text.len() + 1);
                room.checked_sub(length).map(|left| room = left).is_some()
            })
            .collect();
        if kept.is_empty() {
            return;
        }
        kept.reverse();
        leave(&self.given.spool, EXECUTIONS_FILE, &kept);
    }
}

fn gone(state: SandboxState) -> Error {
    Error::new(ErrorCode::SandboxGone, format!("the sandbox has ended ({state})"))
}

fn wait_until_readable(fd: &OwnedFd, until: Duration) {
    loop {
        let left = until.saturating_sub(boottime());
        if left.is_zero() {
            return;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut polled = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Leaves word of how the sandbox ended, unless there is some already.
pub(crate) fn write_ended(spool: impl AsFd, state: SandboxState, stats: Option<SandboxStats>) {
    leave(spool, ENDED_FILE, &Ended { state, stats });
}

/// Writes a file of this name, unless there is one.
fn leave(spool: impl AsFd, name: &str, what: &impl Serialize) {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(spool, name, flags, Mode::from_raw_mode(0o600)) else { return };
    let text = serde_json::to_vec(what).unwrap_or_default();
    let _ = io::Write::write_all(&mut std::fs::File::from(file), &text);
}
