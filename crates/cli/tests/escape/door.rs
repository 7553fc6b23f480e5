//! The door of a data directory: its processes, and its end.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::attack::within;
use crate::sweep::{Process, processes};

/// The supervisor of the door of this data directory.
pub(crate) fn supervisor(home: &Path) -> Option<i32> {
    let part = format!(" door-supervisor {} ", home.display());
    processes().into_iter().find(|process| process.command.contains(&part)).map(|process| process.pid)
}

/// Its worker.
pub(crate) fn worker(home: &Path) -> Option<i32> {
    let supervisor = supervisor(home)?;
    let works =
        |process: &Process| process.parent == supervisor && process.command.ends_with(" door-worker ");
    processes().into_iter().find(works).map(|process| process.pid)
}

/// Ends it, and sees that both are gone.
pub(crate) fn close(home: &Path) {
    let worker = worker(home);
    if let Some(supervisor) = supervisor(home).and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(supervisor, rustix::process::Signal::KILL);
        let gone = |pid: i32| Process::read(pid).is_none();
        let both = [Some(supervisor.as_raw_pid()), worker];
        let ended = within(Duration::from_secs(10), || both.into_iter().flatten().all(gone));
        assert!(ended, "a door that was killed is still there: {both:?}");
    }
    let _ = fs::remove_file(home.join("door.sock"));
}
