//! The boot clock: monotonic, counts suspended time, and is the same inside and outside a sandbox.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine booted.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
