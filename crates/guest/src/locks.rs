//! Locks on files: memory of the kernel's that no limit counts, in lists that the whole machine walks. Nothing bounds them
//! when they are taken, so the guest looks now and then how many there are.
//!
//! A look makes everybody on the machine who takes a lock wait for a moment, and the guest for some milliseconds; so it
//! looks only when executions have used the processor since the last time.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::leaf;

/// The most locks that everything inside may hold together.
const MOST: usize = 4096;

/// How long between two looks, and how long when there were too many.
const EVERY_US: u64 = 250_000;
const AGAIN_US: u64 = 20_000;

/// The kernel's table of locks, as this sandbox's processes see it.
pub(crate) struct Locks {
    table: OwnedFd,
    next_us: Option<u64>,
}

impl Locks {
    pub(crate) fn adopt(fd: i32) -> Result<Self, Errno> {
        Ok(Self { table: leaf::adopt(fd)?, next_us: None })
    }

    /// When to look next, if there is anything to look for.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.next_us
    }

    /// Whether it is time to look. While nothing runs it never is, and what starts has some time first.
    pub(crate) fn is_due(&mut self, now_us: u64, running: bool) -> bool {
        let due = running && self.next_us.is_some_and(|next| next <= now_us);
        if !running {
            self.next_us = None;
        } else if due || self.next_us.is_none() {
            self.next_us = Some(now_us + EVERY_US);
        }
        due
    }

    /// The process that holds the most locks, if there are too many; then the next look is soon.
    pub(crate) fn hoarder(&mut self, now_us: u64) -> Option<i32> {
        let mut counter = Counter::default();
        let mut piece = [0; 4096];
        rustix::fs::seek(&self.table, rustix::fs::SeekFrom::Start(0)).ok()?;
        while counter.total <= MOST {
            match rustix::io::read(&self.table, &mut piece) {
                Ok(0) | Err(_) => return None,
                Ok(count) => counter.add(&piece[..count]),
            }
        }
        self.next_us = Some(now_us + AGAIN_US);
        counter.most()
    }
}

/// Counts the lines of the table by process.
#[derive(Default)]
struct Counter {
    total: usize,
    held: HashMap<i32, usize>,
    begun: Vec<u8>,
}

impl Counter {
    fn add(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                if let Some(process) = process(&self.begun) {
                    self.total += 1;
                    *self.held.entry(process).or_default() += 1;
                }
                self.begun.clear();
            }
        }
    }

    fn most(&self) -> Option<i32> {
        self.held.iter().max_by_key(|(_, count)| **count).map(|(process, _)| *process)
    }
}

/// The process that a line names. Those of no process are on descriptors that others outside may hold as well; inside,
/// the filter lets nobody take such.
fn process(line: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(line).ok()?;
    // "1: POSIX  ADVISORY  WRITE 17 08:01:42 0 EOF", with an arrow behind the number if it waits for another.
    let fields = text.split_ascii_whitespace().skip(1);
    fields.filter(|field| *field != "->").nth(3)?.parse().ok().filter(|process| *process > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_with_the_most_is_found() {
        let mut counter = Counter::default();
        let table = "1: POSIX  ADVISORY  WRITE 17 08:01:42 0 EOF\n1: -> POSIX  ADVISORY  WRITE 18 08:01:42 0 9\n\
                     2: FLOCK  ADVISORY  READ  18 08:01:43 0 EOF\n3: OFDLCK ADVISORY  WRITE -1 08:01:44 0 EOF\n\
                     4: POSIX  ADVISORY  READ  1";
        for piece in table.as_bytes().chunks(7).chain([b"9 00:0f:1 0 1\n".as_slice()]) {
            counter.add(piece);
        }
        assert_eq!((counter.total, counter.most()), (4, Some(18)));
        assert_eq!(counter.held, HashMap::from([(17, 1), (18, 2), (19, 1)]));
    }

    #[test]
    fn a_look_is_due_now_and_then_while_something_runs() {
        let table = std::fs::File::open("/proc/locks").unwrap();
        let mut locks = Locks { table: table.into(), next_us: None };
        assert!(!locks.is_due(1_000_000, false) && locks.next_us().is_none());
        assert!(!locks.is_due(1_000_000, true));
        assert_eq!(locks.next_us(), Some(1_000_000 + EVERY_US));
        assert!(!locks.is_due(1_000_001, true));
        assert!(locks.is_due(1_000_000 + EVERY_US, true));
        assert!(!locks.is_due(1_000_001 + EVERY_US, true));
        assert!(!locks.is_due(u64::MAX, false) && locks.next_us().is_none());
        assert_eq!(locks.hoarder(0), None);
    }
}
