//! What is kept on disk about a sandbox: the lease, written before anything else exists, and how it ended.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_core::{Error, ErrorCode, LEASE_FILE, Result, SandboxId, SandboxSpec, SandboxState};
use belljar_jail::control::{
    ENDED_FILE, EXECUTIONS_FILE, Ended, LOCK_FILE, MAX_EXECUTIONS, Remembered, SPOOL_DIR,
};
use belljar_jail::record::Built;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::home::problem;
use crate::names::taken;

/// None of these files is longer.
pub(super) const MAX_RECORD: u64 = MAX_EXECUTIONS as u64 + 2;

/// What was promised, before anything was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) id: SandboxId,
    pub(super) spec: SandboxSpec,
    pub(super) created_ms: u64,
}

impl Lease {
    /// Makes the sandbox's directory with its lease in it. While the answer is held, everyone can tell that the sandbox's
    /// creator is still about; it is let go however the creator ends. A name that another sandbox has is refused; what
    /// nobody will ask for any more makes room.
    pub(super) fn write(directory: &Path, id: &SandboxId, spec: &SandboxSpec) -> Result<File> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let lease = Self { id: id.clone(), spec: spec.clone(), created_ms };
        let text = serde_json::to_vec(&lease).unwrap_or_default();
        if text.len() as u64 > MAX_RECORD {
            let problem = format!(
                "what the sandbox is to be made from has {} bytes; the most is {MAX_RECORD}",
                text.len()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, problem)
                .hint("give it fewer or shorter variables; bring large content in as files"));
        }
        let make = || DirBuilder::new().mode(0o700).create(directory);
        make()
            .or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists if is_abandoned(directory) => {
                    fs::remove_dir_all(directory)?;
                    make()
                }
                _ => Err(error),
            })
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => taken(id),
                _ => problem(directory, &error),
            })?;
        let write = || -> io::Result<File> {
            let mut file = create(&directory.join(LEASE_FILE))?;
            // Before there is anything to read: nobody ever sees a lease of a living creator free.
            flock(&file, FlockOperation::LockExclusive)?;
            file.write_all(&text)?;
            Ok(file)
        };
        write().map_err(|error| {
            let _ = fs::remove_dir_all(directory);
            problem(directory, &error)
        })
    }

    /// Reads a lease; `None` if there is none (any more) or it is not one of ours.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        read_json(&directory.join(LEASE_FILE))
    }
}

/// What the launcher left word of having built; `None` if it did not get so far.
pub(super) fn built(directory: &Path) -> Option<Built> {
    read_json(&directory.join(LOCK_FILE))
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
    if lease.spec.tied_to_creator || built(directory).is_none() {
        return Remains::Forgotten;
    }
    let now = SystemTime::now();
    let age = now.duration_since(UNIX_EPOCH + Duration::from_millis(lease.created_ms)).unwrap_or_default();
    let ended =
        fs::symlink_metadata(directory.join(SPOOL_DIR).join(ENDED_FILE)).and_then(|found| found.modified());
    let since_end = ended.ok().map(|end| now.duration_since(end).unwrap_or_default());
    if since_end.unwrap_or(age) < RETENTION { Remains::Kept } else { Remains::Forgotten }
}

/// Whether nobody lives in a directory, and nobody will ask for what is there.
fn is_abandoned(directory: &Path) -> bool {
    !is_alive(directory)
        && match Lease::read(directory) {
            Some(lease) => remains(directory, &lease) == Remains::Forgotten,
            None => is_old(directory),
        }
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
pub(super) fn ended(directory: &Path) -> Ended {
    read_json(&directory.join(SPOOL_DIR).join(ENDED_FILE))
        .unwrap_or(Ended { state: SandboxState::Lost, stats: None })
}

/// The executions of a sandbox that has ended, as its monitor left word; `None` if it left none at all.
pub(super) fn executions(directory: &Path) -> Option<Vec<Remembered>> {
    let spool = directory.join(SPOOL_DIR);
    let has_ended = || spool.join(ENDED_FILE).exists();
    read_json(&spool.join(EXECUTIONS_FILE)).or_else(|| has_ended().then(Vec::new))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)
}

pub(super) fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
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

    fn leave_word(directory: &Path) {
        fs::write(directory.join(LOCK_FILE), serde_json::to_vec(&Built::default()).unwrap()).unwrap();
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
        leave_word(&directory);
        for hour in [-1i64, 0, 1] {
            lease.created_ms = now.saturating_add_signed(hour * 3_600_000);
            assert_eq!(remains(&directory, &lease), Remains::Kept, "the clock jumped by {hour} h");
        }
    }

    #[test]
    fn a_name_is_taken_until_nobody_will_ask_for_it() {
        let home = tempfile::tempdir().unwrap();
        let (id, spec) = (SandboxId::from_random([3; 16]), SandboxSpec::default());
        let directory = home.path().join(id.as_str());
        let again = || Lease::write(&directory, &id, &spec).map_err(|error| error.code);
        let held = again().unwrap();
        fs::write(directory.join("proof"), "").unwrap();
        assert_eq!(again().unwrap_err(), belljar_core::ErrorCode::AlreadyExists, "it is being made");
        leave_word(&directory);
        drop(held);
        assert_eq!(again().unwrap_err(), belljar_core::ErrorCode::AlreadyExists, "its record is kept");
        assert!(directory.join("proof").exists(), "being refused harms nothing");
        fs::remove_file(directory.join(LOCK_FILE)).unwrap();
        let _held = again().expect("a launch that was never finished makes room");
        assert!(!directory.join("proof").exists());
    }

    #[test]
    fn what_was_tied_is_forgotten_as_soon_as_its_creator_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("tied");
        let (held, lease) = written(&directory, true);
        leave_word(&directory);
        assert_eq!(remains(&directory, &lease), Remains::Fresh);
        drop(held);
        assert_eq!(remains(&directory, &lease), Remains::Forgotten);
    }
}
