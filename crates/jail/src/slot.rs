//! Slots: each sandbox has a number of its own on this machine while it lives, and with it a block of user ids and a
//! cgroup. A slot is held by a file lock, so it comes free when its last holder dies, however it dies.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_core::Wall;
use rustix::fs::{FlockOperation, flock};

/// The first host id of slot 0. Above what login tools, distributions and container managers hand out.
pub(crate) const FIRST_ID: u32 = 0x7000_0000;

/// How many ids a slot has.
const IDS: u32 = 65_536;

/// Where slots are locked; machine-wide, so that data directories do not take each other's ids.
pub const DIRECTORY: &str = "/run/belljar/slots";

/// How many slots a machine has.
pub const SLOTS: u32 = 4096;

/// Why no slot could be had.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The directory of locks could not be made.
    #[error("cannot make {path}: {source}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A lock file could not be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// All are taken.
    #[error("all {SLOTS} sandbox slots of this machine are in use")]
    Exhausted,
}

/// A number that no other live sandbox of this machine has.
#[derive(Debug)]
pub struct Slot {
    number: u32,
    // Held for its lock; forked processes share it.
    _lock: File,
}

impl Slot {
    /// The number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The host id that is id 0 inside.
    pub fn root_id(&self) -> u32 {
        if Wall::UserIds.stands() { self.first_id() } else { 0 }
    }

    fn first_id(&self) -> u32 {
        first_id(self.number)
    }

    /// How many ids are mapped, from [`root_id`](Self::root_id) on.
    pub fn mapped_ids(&self) -> u32 {
        IDS - 1
    }

    /// The host id that owns the sandbox's user namespace and runs its monitor. It is not mapped, so nothing inside
    /// can become it, and it is this sandbox's alone, so that per-user counts are too.
    pub fn owner_id(&self) -> u32 {
        self.first_id() + IDS - 1
    }
}

/// The host id that is id 0 inside, with this number.
pub fn first_id(number: u32) -> u32 {
    FIRST_ID + number * IDS
}

/// Whether the caller's user namespace has the ids of all slots, given its `uid_map`. Root of the host has; root of a
/// container often has not.
pub fn has_all_ids(uid_map: &str) -> bool {
    let numbers = |line: &str| -> Option<(u64, u64)> {
        let mut fields = line.split_ascii_whitespace();
        let (first, count) = (fields.next()?.parse().ok()?, fields.nth(1)?.parse().ok()?);
        Some((first, count))
    };
    let (first, end) = (u64::from(FIRST_ID), u64::from(FIRST_ID) + u64::from(SLOTS) * u64::from(IDS));
    uid_map.lines().filter_map(numbers).any(|(start, count)| start <= first && start + count >= end)
}

/// Takes this very slot, if nobody holds it.
pub fn try_hold(directory: &Path, number: u32) -> Option<Slot> {
    let lock = open_lock(directory, number).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(Slot { number, _lock: lock })
}

fn open_lock(directory: &Path, number: u32) -> Result<File, SlotError> {
    let path = directory.join(number.to_string());
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|source| SlotError::Open { path, source })
}

/// Takes a free slot for which `usable` agrees, beginning the search at a place derived from `seed`.
pub fn acquire<T, E: From<SlotError>>(
    directory: &Path,
    seed: &[u8],
    mut usable: impl FnMut(&Slot) -> Result<Option<T>, E>,
) -> Result<(Slot, T), E> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|source| SlotError::Directory { path: directory.to_owned(), source })?;
    let start = seed.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    for offset in 0..SLOTS {
        let number = start.wrapping_add(offset) % SLOTS;
        let lock = open_lock(directory, number)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let slot = Slot { number, _lock: lock };
        if let Some(value) = usable(&slot)? {
            return Ok((slot, value));
        }
    }
    Err(SlotError::Exhausted.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(directory: &Path) -> Result<Slot, SlotError> {
        acquire(directory, b"seed", |_| Ok::<_, SlotError>(Some(()))).map(|(slot, ())| slot)
    }

    #[test]
    fn slots_are_exclusive_and_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let first = take(directory.path()).unwrap();
        let second = take(directory.path()).unwrap();
        assert_ne!(first.number(), second.number());
        let number = first.number();
        drop(first);
        assert_eq!(take(directory.path()).unwrap().number(), number);
    }

    #[test]
    fn blocks_of_ids_neither_overlap_nor_hold_host_root() {
        let directory = tempfile::tempdir().unwrap();
        let slot = take(directory.path()).unwrap();
        assert!(slot.root_id() >= FIRST_ID);
        assert_eq!(slot.root_id() + slot.mapped_ids(), slot.owner_id());
        assert!(FIRST_ID.checked_add(SLOTS * IDS - 1).is_some());
    }

    #[test]
    fn root_of_a_container_lacks_ids() {
        assert!(has_all_ids("         0          0 4294967295\n"));
        assert!(!has_all_ids("         0       1000          1\n"));
        assert!(!has_all_ids("         0     100000      65536\n"));
        assert!(!has_all_ids("nonsense"));
    }

    #[test]
    fn a_refused_slot_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        let (slot, ()) = acquire(directory.path(), b"x", |slot| {
            seen.push(slot.number());
            Ok::<_, SlotError>((seen.len() == 3).then_some(()))
        })
        .unwrap();
        assert_eq!(seen.len(), 3);
        assert_eq!(slot.number(), seen[2]);
    }
}
