//! The list of a sandbox's calls, in its directory, and what was spent with each token.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use belljar_core::{CALL_FILES, Call, CallTotals};
use serde::{Deserialize, Serialize};

use super::budget::Spent;
use crate::journal::{Counts, Journal};

/// What has been counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    seq: u64,
    /// What was spent with each token, by its id.
    spent: BTreeMap<String, Spent>,
    /// What all came to.
    #[serde(default)]
    totals: CallTotals,
}

impl Counts for Counted {
    type Entry = Call;

    fn count(&mut self, call: &Call) {
        self.seq = call.seq;
        self.totals.add(call);
        if let Some(token) = &call.token {
            let spent = self.spent.entry(token.clone()).or_default();
            *spent = spent.and(Spent::of(call));
        }
    }
}

/// One sandbox's list.
#[derive(Debug)]
pub(crate) struct CallLog(Journal<Counted>);

impl CallLog {
    /// Opens the list in a directory, and reads what is there.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        Journal::open(directory, CALL_FILES, |_| ()).map(Self)
    }

    /// What was spent with each token, by its id.
    pub(crate) fn spent(&self) -> &BTreeMap<String, Spent> {
        &self.0.counts().spent
    }

    /// Writes down a call, with the next number.
    pub(crate) fn push(&mut self, mut call: Call) -> io::Result<()> {
        call.seq = self.0.counts().seq + 1;
        self.0.push(&call)
    }
}
