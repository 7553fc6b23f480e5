//! The time of day, for the list of flows and for what is counted by the day, and nothing else.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_MS: u64 = 86_400_000;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The days since 1970, which begin at midnight UTC.
pub(crate) fn today() -> u64 {
    now_ms() / DAY_MS
}
