//! The time of day, for the list of flows and nothing else.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
