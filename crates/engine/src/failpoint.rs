//! Places to be killed at. Tests name one, and the engine dies there as by `kill -9`; in a build for use they are
//! nothing.

/// Every place, in the order of a session's life.
pub const ALL: [&str; 16] = [
    "create.accepted",
    "create.admitted",
    "create.made",
    "create.recorded",
    "exec.accepted",
    "exec.started",
    "exec.recorded",
    "exec.finished",
    "exec.ended",
    "transfer.begun",
    "transfer.done",
    "pause.done",
    "resume.done",
    "end.asked",
    "end.removed",
    "forget.removed",
];

/// The variable that names the place, and which visit to it is the last one: `exec.started:3`.
#[cfg(feature = "failpoints")]
pub const VARIABLE: &str = "BELLJAR_FAILPOINT";

/// Dies here, if a test asked for it.
#[cfg(feature = "failpoints")]
pub(crate) fn pass(name: &str) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static VISITS: AtomicU64 = AtomicU64::new(0);
    debug_assert!(ALL.contains(&name), "{name} is not in the list");
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    let (place, visit) = wanted.split_once(':').unwrap_or((&wanted, "1"));
    if place == name && VISITS.fetch_add(1, Ordering::SeqCst) + 1 == visit.parse().unwrap_or(1) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal may take a moment; nothing more is to happen.
        loop {
            std::thread::park();
        }
    }
}

/// Nothing.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn pass(name: &str) {
    debug_assert!(ALL.contains(&name), "{name} is not in the list");
}
