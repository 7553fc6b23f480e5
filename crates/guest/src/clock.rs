//! The boot clock, which runs on while the machine sleeps, and the one alarm that is set on it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Microseconds of the boot clock.
pub(crate) fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// A descriptor that becomes readable at a moment of the boot clock.
pub(crate) struct Alarm {
    timer: OwnedFd,
    set_for: u64,
}

impl Alarm {
    /// An alarm that is not set.
    pub(crate) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { timer, set_for: 0 })
    }

    /// Sets the alarm for this moment, in microseconds. One in the past rings at once.
    pub(crate) fn set(&mut self, at_us: u64) -> io::Result<()> {
        if self.set_for == at_us {
            return Ok(());
        }
        // A time of zero would switch the timer off, and one beyond the kernel's range would be refused.
        let at = at_us.clamp(1, i64::MAX as u64 / 2000);
        let value = Timespec { tv_sec: (at / 1_000_000) as i64, tv_nsec: (at % 1_000_000 * 1000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        self.set_for = at_us;
        Ok(())
    }

    /// Takes note that it rang; it has to be set again.
    pub(crate) fn acknowledge(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.timer, &mut count);
        self.set_for = 0;
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
