//! What is kept on disk about a sandbox: the lease, written before anything else exists, and how it ended.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_core::{Result, SandboxId, SandboxSpec, SandboxState};
use belljar_jail::control::{ENDED_FILE, Ended, LOCK_FILE, SPOOL_DIR};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::home::problem;

const LEASE_FILE: &str = "lease.json";
const BUILT_FILE: &str = "built.json";
/// None of these files is longer.
const MAX_RECORD: u64 = 1 << 20;

/// What was promised, before anything was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) id: SandboxId,
    pub(super) spec: SandboxSpec,
    pub(super) created_ms: u64,
}

/// What the launcher said it built.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BuiltRecord {
    pub(super) slot: Option<u32>,
    pub(super) monitor: Option<ProcessMark>,
    pub(super) losses: Vec<String>,
}

/// A process, told from a later one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessMark {
    pid: i32,
    started: u64,
}

impl ProcessMark {
    /// The process that has this number now.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: start_time(pid)? })
    }

    /// Kills it, if it is still the same.
    pub(super) fn kill(self) {
        use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // Held by the descriptor from here on, so what the number says now stays true.
        if start_time(self.pid) == Some(self.started) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}

/// When a process started, in clock ticks since boot: the 22nd field, counted after the name in parentheses.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

impl Lease {
    /// Makes the sandbox's directory with its lease in it. While the answer is held, everyone can tell that the sandbox's
    /// creator is still about; it is let go however the creator ends.
    pub(super) fn write(directory: &Path, id: &SandboxId, spec: &SandboxSpec) -> Result<File> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let lease = Self { id: id.clone(), spec: spec.clone(), created_ms };
        DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .and_then(|()| {
                let mut file = create(&directory.join(LEASE_FILE))?;
                // Before there is anything to read: nobody ever sees a lease of a living creator free.
                flock(&file, FlockOperation::LockExclusive)?;
                file.write_all(&serde_json::to_vec(&lease)?)?;
                Ok(file)
            })
            .map_err(|error| {
                let _ = fs::remove_dir_all(directory);
                problem(directory, &error)
            })
    }

    /// Reads a lease; `None` if there is none (any more) or it is not one of ours.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        read_json(&directory.join(LEASE_FILE))
    }
}

impl BuiltRecord {
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(BUILT_FILE);
        write_json(&path, self).map_err(|error| problem(&path, &error))
    }

    pub(super) fn read(directory: &Path) -> Self {
        read_json(&directory.join(BUILT_FILE)).unwrap_or_default()
    }
}

/// What a sandbox's directory says about it, when nobody lives there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    /// Its creator is still about, making or removing it: not ours to judge.
    Fresh,
    /// It ended, and its record is kept for whoever made it.
    Kept,
    /// Nobody will ask for it again.
    Forgotten,
}

/// A launch is over by then, one way or the other.
const LAUNCH: Duration = Duration::from_secs(120);
/// How long the record of an ended sandbox is kept.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Judges the directory of a sandbox that is not alive.
pub(super) fn remains(directory: &Path, lease: &Lease) -> Remains {
    if is_held(&directory.join(LEASE_FILE)) {
        return Remains::Fresh;
    }
    // Nobody else knows its name.
    if lease.spec.tied_to_creator || !directory.join(BUILT_FILE).exists() {
        return Remains::Forgotten;
    }
    let now = SystemTime::now();
    let age = now.duration_since(UNIX_EPOCH + Duration::from_millis(lease.created_ms)).unwrap_or_default();
    let ended =
        fs::symlink_metadata(directory.join(SPOOL_DIR).join(ENDED_FILE)).and_then(|found| found.modified());
    let since_end = ended.ok().map(|end| now.duration_since(end).unwrap_or_default());
    if since_end.unwrap_or(age) < RETENTION { Remains::Kept } else { Remains::Forgotten }
}

/// Whether a directory has been left alone for longer than a launch takes.
pub(super) fn is_old(directory: &Path) -> bool {
    let changed = fs::symlink_metadata(directory).and_then(|found| found.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > LAUNCH))
}

/// Whether launcher or monitor live.
pub(super) fn is_alive(directory: &Path) -> bool {
    is_held(&directory.join(LOCK_FILE))
}

/// Whether some process holds the lock on this file.
fn is_held(path: &Path) -> bool {
    match File::open(path) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
        // Not being able to look is no proof of death.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// How a sandbox ended, as its monitor left word.
pub(super) fn ended(directory: &Path) -> SandboxState {
    read_json::<Ended>(&directory.join(SPOOL_DIR).join(ENDED_FILE))
        .map_or(SandboxState::Lost, |ended| ended.state)
}

fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    create(path)?.write_all(&serde_json::to_vec(value)?)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(directory: &Path, tied_to_creator: bool) -> (File, Lease) {
        let id = SandboxId::from_random([3; 16]);
        let spec = SandboxSpec { tied_to_creator, ..SandboxSpec::default() };
        let held = Lease::write(directory, &id, &spec).unwrap();
        (held, Lease::read(directory).unwrap())
    }

    #[test]
    fn what_a_living_creator_makes_is_left_alone_whatever_the_clock_says() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("made");
        let (held, mut lease) = written(&directory, false);
        let now = lease.created_ms;
        for hour in [-1i64, 0, 1] {
            lease.created_ms = now.saturating_add_signed(hour * 3_600_000);
            assert_eq!(remains(&directory, &lease), Remains::Fresh, "the clock jumped by {hour} h");
        }
        drop(held);
        assert_eq!(remains(&directory, &lease), Remains::Forgotten, "a launch that was never finished");
        BuiltRecord::default().write(&directory).unwrap();
        for hour in [-1i64, 0, 1] {
            lease.created_ms = now.saturating_add_signed(hour * 3_600_000);
            assert_eq!(remains(&directory, &lease), Remains::Kept, "the clock jumped by {hour} h");
        }
    }

    #[test]
    fn what_was_tied_is_forgotten_as_soon_as_its_creator_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("tied");
        let (held, lease) = written(&directory, true);
        BuiltRecord::default().write(&directory).unwrap();
        assert_eq!(remains(&directory, &lease), Remains::Fresh);
        drop(held);
        assert_eq!(remains(&directory, &lease), Remains::Forgotten);
    }

    #[test]
    fn a_process_that_only_has_the_same_number_is_not_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let mark = ProcessMark::of(pid).unwrap();
        ProcessMark { started: mark.started - 1, ..mark }.kill();
        assert!(child.try_wait().unwrap().is_none(), "the wrong process was killed");
        mark.kill();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
