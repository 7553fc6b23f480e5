//! What the executions of a sandbox are a part of, for as long as the worker may tell of their flows.

use std::collections::HashMap;
use std::mem;

use belljar_core::{ExecId, Purpose};

/// As many marks as the worker remembers at most. Once it has heard of so many it forgets them all, and asks again.
pub(super) const GENERATION: usize = 4096;

/// Those that were asked for last, and those before them: whatever the worker still knows is among them.
#[derive(Debug, Default)]
pub(super) struct Purposes {
    newer: HashMap<ExecId, Purpose>,
    older: HashMap<ExecId, Purpose>,
}

impl Purposes {
    pub(super) fn note(&mut self, exec: ExecId, purpose: Purpose) {
        if purpose.is_empty() {
            return;
        }
        if self.newer.len() >= GENERATION && !self.newer.contains_key(&exec) {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.insert(exec, purpose);
    }

    pub(super) fn of(&self, exec: Option<ExecId>) -> Purpose {
        let known = exec.and_then(|exec| self.newer.get(&exec).or_else(|| self.older.get(&exec)));
        known.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_was_asked_for_lately_is_known_and_no_more_than_that() {
        let purpose = |number: u32| Purpose { stage: Some(number.to_string()), tool_call: None };
        let mut purposes = Purposes::default();
        let last = 3 * GENERATION as u32;
        for number in 1..=last {
            purposes.note(ExecId(number), purpose(number));
            purposes.note(ExecId(number + last), Purpose::default());
        }
        for number in [last, last - GENERATION as u32 + 1] {
            assert_eq!(purposes.of(Some(ExecId(number))), purpose(number));
        }
        assert_eq!(purposes.of(Some(ExecId(1))), Purpose::default(), "forgotten");
        purposes.note(ExecId(1), purpose(1));
        assert_eq!(purposes.of(Some(ExecId(1))), purpose(1), "asked for again");
        assert_eq!(purposes.of(None), Purpose::default());
        assert!(purposes.newer.len() + purposes.older.len() <= 2 * GENERATION);
    }
}
