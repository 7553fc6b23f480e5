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
    pub(super) losses: Vec<String>,
}

impl Lease {
    /// Makes the sandbox's directory with its lease in it.
    pub(super) fn write(directory: &Path, id: &SandboxId, spec: &SandboxSpec) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let lease = Self { id: id.clone(), spec: spec.clone(), created_ms };
        DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .and_then(|()| write_json(&directory.join(LEASE_FILE), &lease))
            .map_err(|error| {
                let _ = fs::remove_dir_all(directory);
                problem(directory, &error)
            })?;
        Ok(lease)
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
    /// It is being made, or has just ended: not ours to judge yet.
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
    let now = SystemTime::now();
    let age = now.duration_since(UNIX_EPOCH + Duration::from_millis(lease.created_ms)).unwrap_or_default();
    let ended =
        fs::symlink_metadata(directory.join(SPOOL_DIR).join(ENDED_FILE)).and_then(|found| found.modified());
    let since_end = ended.ok().map(|end| now.duration_since(end).unwrap_or_default());
    match since_end {
        None if age < LAUNCH => Remains::Fresh,
        None if lease.spec.tied_to_creator => Remains::Forgotten,
        // Its creator removes it in a moment, if it lives.
        Some(since) if lease.spec.tied_to_creator => {
            if since < LAUNCH {
                Remains::Fresh
            } else {
                Remains::Forgotten
            }
        }
        since => {
            if since.unwrap_or(age) < RETENTION {
                Remains::Kept
            } else {
                Remains::Forgotten
            }
        }
    }
}

/// Whether launcher or monitor live.
pub(super) fn is_alive(directory: &Path) -> bool {
    File::open(directory.join(LOCK_FILE))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err())
}

/// How a sandbox ended, as its monitor left word.
pub(super) fn ended(directory: &Path) -> SandboxState {
    read_json::<Ended>(&directory.join(SPOOL_DIR).join(ENDED_FILE))
        .map_or(SandboxState::Lost, |ended| ended.state)
}

fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?.write_all(&text)
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
