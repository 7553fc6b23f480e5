//! What the sandbox has used: read from the kernel's counters, and added up over time where those only tell the moment.

use std::time::Duration;

use belljar_core::{SandboxStats, Usage};

use super::Service;
use super::pause::Pause;
use crate::cgroup::{self, Probe};
use crate::clock::boottime;

/// How often it is looked while an execution runs. On an idle sandbox nothing is done.
const EVERY: Duration = Duration::from_secs(1);

/// Something held, added up over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Integral {
    /// Byte-microseconds up to the last look.
    sum: u128,
    /// What was held then, if that could be told.
    held: Option<u64>,
}

impl Integral {
    /// Adds what was held since the last look for as long as it has been, and takes note of what is held now.
    fn look(&mut self, elapsed: Duration, held: Option<u64>) {
        self.sum += u128::from(self.held.unwrap_or(0)) * elapsed.as_micros();
        self.held = held;
    }

    /// In byte-seconds; `None` if it could never be told what is held.
    fn byte_seconds(self) -> Option<u64> {
        self.held.map(|_| u64::try_from(self.sum / 1_000_000).unwrap_or(u64::MAX))
    }
}

/// The sums that the monitor keeps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meters {
    looked: Option<Duration>,
    memory: Integral,
    disk: Integral,
    /// Processor time that was told of executions that ended.
    told_cpu_us: u64,
}

impl Meters {
    fn look(&mut self, now: Duration, memory: Option<u64>, disk: Option<u64>) {
        let elapsed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_sub(looked));
        self.looked = Some(now);
        self.memory.look(elapsed, memory);
        self.disk.look(elapsed, disk);
    }

    /// The processor time to tell of an execution, given what the guest says and what all have used. The parts never come
    /// to more than the whole, whatever a guest claims.
    fn tell(&mut self, claimed: Option<u64>, all: Option<u64>) -> Option<u64> {
        let told = match (claimed, all) {
            (Some(claimed), Some(all)) => Some(claimed.min(all.saturating_sub(self.told_cpu_us))),
            (claimed, _) => claimed,
        };
        self.told_cpu_us = self.told_cpu_us.saturating_add(told.unwrap_or(0));
        told
    }
}

impl Service {
    /// Looks at what is held now. Called when something happens, so that it counts from then on.
    pub(super) fn look_at_meters(&mut self) {
        let memory = self.given.probe.as_ref().and_then(Probe::memory_current);
        self.meters.look(boottime(), memory, self.disk_bytes());
    }

    /// The same, with everything else that the kernel counts.
    pub(super) fn read_meters(&mut self) -> (Option<cgroup::Usage>, Option<u64>) {
        let (usage, disk) = (self.given.probe.as_ref().map(Probe::read), self.disk_bytes());
        self.meters.look(boottime(), usage.and_then(|usage| usage.memory_current), disk);
        (usage, disk)
    }

    fn disk_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::fstatvfs(self.given.disk.as_ref()?).ok()?;
        Some((disk.f_blocks - disk.f_bfree) * disk.f_frsize)
    }

    /// How long to wait for things to happen, as far as meters are concerned.
    pub(super) fn meter_patience(&self) -> Duration {
        let running = self.executions.values().any(|execution| execution.outcome.is_none());
        // What stands still holds what it holds.
        if !running || self.given.probe.is_none() || self.pause != Pause::Not {
            return Duration::MAX;
        }
        self.meters.looked.map_or(Duration::ZERO, |looked| (looked + EVERY).saturating_sub(boottime()))
    }

    /// Looks again if it is time.
    pub(super) fn see_to_meters(&mut self) {
        if self.meter_patience().is_zero() {
            self.look_at_meters();
        }
    }

    /// What an execution that has just ended is told to have used.
    pub(super) fn usage_to_tell(&mut self, claimed: Usage, all: Option<&cgroup::Usage>) -> Usage {
        let cpu_us = self.meters.tell(claimed.cpu_us, all.and_then(|all| all.cpu_usec));
        Usage { cpu_us, ..claimed }
    }

    /// Everything about what the sandbox uses, read at one moment.
    pub(super) fn stats(&mut self) -> SandboxStats {
        let (usage, disk_bytes) = self.read_meters();
        let usage = usage.unwrap_or_default();
        let running = self.executions.values().filter(|execution| execution.outcome.is_none()).count();
        SandboxStats {
            cpu_us: usage.cpu_usec,
            besides_cpu_us: usage.cpu_usec.map(|all| all.saturating_sub(self.meters.told_cpu_us)),
            memory_bytes: usage.memory_current,
            peak_memory_bytes: usage.memory_peak,
            memory_byte_seconds: self.meters.memory.byte_seconds(),
            processes: usage.pids_current,
            oom_kills: usage.oom_kills,
            read_bytes: usage.read_bytes,
            write_bytes: usage.write_bytes,
            disk_bytes,
            disk_byte_seconds: self.meters.disk.byte_seconds(),
            // The door knows.
            egress_bytes: None,
            ingress_bytes: None,
            gateway: None,
            executions: u32::try_from(running).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_held_counts_for_as_long_as_it_is() {
        let mut meters = Meters::default();
        assert_eq!(meters.memory.byte_seconds(), None, "nothing is known yet");
        meters.look(7 * SECOND, Some(100), None);
        assert_eq!(meters.memory.byte_seconds(), Some(0));
        meters.look(9 * SECOND, Some(50), None);
        meters.look(9 * SECOND + SECOND / 2, Some(1000), None);
        assert_eq!(meters.memory.byte_seconds(), Some(225));
        assert_eq!(meters.disk.byte_seconds(), None, "unknown is unknown");
        // More than a number of byte-microseconds would hold in 64 bits.
        let (much, year) = (64 << 30, 365 * 86_400 * SECOND);
        meters.look(9 * SECOND + SECOND / 2, Some(much), None);
        meters.look(9 * SECOND + SECOND / 2 + year, Some(0), None);
        assert_eq!(meters.memory.byte_seconds(), Some(225 + much * 365 * 86_400));
    }

    #[test]
    fn parts_never_come_to_more_than_the_whole() {
        let mut meters = Meters::default();
        assert_eq!(meters.tell(Some(30), Some(100)), Some(30));
        assert_eq!(meters.tell(Some(u64::MAX), Some(100)), Some(70), "a guest may claim what it likes");
        assert_eq!(meters.tell(Some(1), Some(100)), Some(0));
        assert_eq!(meters.tell(None, Some(150)), None);
        assert_eq!(meters.told_cpu_us, 100);
    }
}
