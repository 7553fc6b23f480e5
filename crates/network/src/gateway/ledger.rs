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
    /// Calls that have begun, as they count should they never end, by their request's id.
    #[serde(default)]
    open: BTreeMap<String, Call>,
}

/// A line of the list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    /// A call begins.
    Began { began: Box<Call> },
    /// One is over.
    Call(Box<Call>),
}

impl Counts for Counted {
    type Entry = Line;

    fn count(&mut self, line: &Line) {
        let call = match line {
            Line::Began { began } => {
                self.open.insert(began.request_id.clone(), (**began).clone());
                return;
            }
            Line::Call(call) => call,
        };
        self.open.remove(&call.request_id);
        self.seq = call.seq;
        self.totals.add(call);
        if let Some(token) = &call.token {
            let spent = self.spent.entry(token.clone()).or_default();
            *spent = spent.and(Spent::of(call));
        }
    }

    fn gives_way(line: &Line) -> bool {
        match line {
            // Those that are open are counted where a file begins.
            Line::Began { .. } => true,
            Line::Call(call) => call.refused,
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

    /// Writes down that a call begins. Where that is not possible, it has not begun.
    pub(crate) fn begin(&mut self, call: Call) -> io::Result<()> {
        let id = call.request_id.clone();
        let written = self.0.push(&Line::Began { began: Box::new(call) });
        if written.is_err() {
            self.0.counts_mut().open.remove(&id);
        }
        written
    }

    /// Writes down the calls of which nothing will be heard any more, and says what they count as.
    pub(crate) fn give_up(&mut self) -> Vec<Spent> {
        let lost: Vec<Call> = self.0.counts().open.values().cloned().collect();
        lost.into_iter()
            .map(|call| {
                let spent = Spent::of(&call);
                if let Err(error) = self.push(call) {
                    tracing::error!(%error, "cannot write down a call");
                }
                spent
            })
            .collect()
    }

    /// What was spent with each token, by its id.
    pub(crate) fn spent(&self) -> &BTreeMap<String, Spent> {
        &self.0.counts().spent
    }

    /// Writes down a call, with the next number.
    pub(crate) fn push(&mut self, mut call: Call) -> io::Result<()> {
        call.seq = self.0.counts().seq + 1;
        self.0.push(&Line::Call(Box::new(call)))
    }
}
