//! Pausing: every process of the executions stands still, and so do the clocks of the sandbox.
//!
//! Where each execution has a group that can be frozen (version two), the guest does it, and says when the kernel has.
//! Where all of them share one (version one) it is done here.

use std::time::Duration;

use belljar_core::wire::{self, Frame};
use belljar_core::{Error, ErrorCode, SandboxState};

use super::client::Role;
use super::{Service, answer, guest_deadline};
use crate::cgroup::Freezer;
use crate::clock::boottime;
use crate::control::Answer;

/// How long processes may take to stand still. Callers wait a little longer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the clocks stand at most: a sandbox that nobody wants back does not hold its memory for good.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long it is between two looks whether they do.
const AGAIN: Duration = Duration::from_millis(2);

/// Whether the sandbox stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// It runs.
    Not,
    /// It is told to, and its clocks stand.
    Freezing { since: Duration, guest_did: bool },
    /// It does.
    Frozen { since: Duration },
}

impl Pause {
    /// Since when the clocks stand.
    fn since(self) -> Option<Duration> {
        match self {
            Self::Not => None,
            Self::Freezing { since, .. } | Self::Frozen { since } => Some(since),
        }
    }

    /// What the clocks say.
    fn clock(self, now: Duration) -> Duration {
        self.since().map_or(now, |since| since.max(now.saturating_sub(LONGEST)))
    }
}

impl Service {
    /// The time by which the sandbox's life is measured.
    pub(super) fn life_clock(&self) -> Duration {
        self.pause.clock(boottime())
    }

    /// How long to wait for things to happen, as far as pausing is concerned.
    pub(super) fn pause_patience(&self) -> Duration {
        match self.pause {
            Pause::Freezing { .. } => AGAIN,
            _ => Duration::MAX,
        }
    }

    pub(super) fn state(&self) -> SandboxState {
        match self.pause {
            Pause::Frozen { .. } => SandboxState::Paused,
            Pause::Not | Pause::Freezing { .. } => SandboxState::Running,
        }
    }

    /// Refuses what cannot begin while everything stands still.
    pub(super) fn refuse_while_paused(&self) -> Result<(), Error> {
        if self.pause == Pause::Not {
            return Ok(());
        }
        Err(Error::new(ErrorCode::Paused, "the sandbox is paused")
            .hint("let it go on with `belljar resume ID`"))
    }

    pub(super) fn pause(&mut self, client: u64) {
        if !self.given.can_pause {
            let error = Error::new(
                ErrorCode::Unsupported,
                "this sandbox cannot be paused: without root it has no cgroup that could be frozen",
            )
            .hint("run Belljar as root of the host to have sandboxes that can");
            return self.finish(client, &Answer::Failed(error));
        }
        if matches!(self.pause, Pause::Frozen { .. }) {
            return self.finish(client, &Answer::Done);
        }
        self.set_role(client, Role::AwaitsPause);
        if self.pause == Pause::Not {
            self.pauses += 1;
            self.pause = Pause::Freezing { since: boottime(), guest_did: false };
            self.guest.queue(&Frame::control(0, &wire::Request::Pause { serial: self.pauses }));
            if let Some(freezer) = &self.given.freezer {
                freezer.request(true);
            }
        }
    }

    pub(super) fn resume(&mut self, client: u64) {
        self.thaw();
        self.tell_pausers(&Answer::Failed(Error::new(ErrorCode::Lost, "the sandbox was resumed meanwhile")));
        self.finish(client, &Answer::Done);
    }

    /// The guest says that the executions stand still.
    pub(super) fn on_paused(&mut self, serial: u32) {
        if let (Pause::Freezing { guest_did, .. }, true) = (&mut self.pause, serial == self.pauses) {
            *guest_did = true;
            self.see_to_pause();
        }
    }

    /// Sees whether everything stands still by now, or should have.
    pub(super) fn see_to_pause(&mut self) {
        let Pause::Freezing { since, guest_did } = self.pause else { return };
        if guest_did && self.given.freezer.as_ref().is_none_or(Freezer::is_frozen) {
            self.pause = Pause::Frozen { since };
            self.tell_pausers(&Answer::Done);
        } else if boottime().saturating_sub(since) > PATIENCE {
            self.thaw();
            let problem =
                format!("not all processes stood still within {} s, so they go on", PATIENCE.as_secs());
            let error = Error::new(ErrorCode::ResourceExhausted, problem)
                .hint("try again; one that waits for a disk, or a great many, can take longer");
            self.tell_pausers(&Answer::Failed(error));
        }
    }

    /// Lets everything go on; what was left of the sandbox's life is left now.
    fn thaw(&mut self) {
        if self.pause == Pause::Not {
            return;
        }
        let now = boottime();
        self.deadline = self.deadline.saturating_add(now.saturating_sub(self.pause.clock(now)));
        self.pause = Pause::Not;
        if let Some(freezer) = &self.given.freezer {
            freezer.request(false);
        }
        let deadline_ms = guest_deadline(self.deadline);
        self.guest.queue(&Frame::control(0, &wire::Request::Deadline { deadline_ms }));
        self.guest.queue(&Frame::control(0, &wire::Request::Resume));
    }

    fn tell_pausers(&mut self, last: &Answer) {
        for client in self.clients.values_mut().filter(|client| matches!(client.role, Role::AwaitsPause)) {
            client.link.queue(&answer(last));
            client.role = Role::Closing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_stand_still_but_not_for_good() {
        let hours = |count: u64| Duration::from_secs(count * 3600);
        let paused = Pause::Frozen { since: hours(5) };
        assert_eq!(Pause::Not.clock(hours(7)), hours(7));
        assert_eq!(paused.clock(hours(7)), hours(5));
        assert_eq!(paused.clock(hours(5) + LONGEST), hours(5));
        assert_eq!(paused.clock(hours(6) + LONGEST), hours(6), "they go again");
    }
}
