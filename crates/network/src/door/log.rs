//! The list of a sandbox's flows, in its directory, and what was denied to whom.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use belljar_core::{Denial, ExecId, FLOW_FILES, Flow, Verdict};
use serde::{Deserialize, Serialize};

use crate::journal::{self, Journal};

/// Executions whose denials are remembered.
const MOST_EXECUTIONS: usize = 256;
/// Different denials that are remembered of each.
const MOST_DENIALS: usize = 32;

/// What has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// The number of the last flow.
    pub(super) seq: u64,
    /// Bytes that left.
    pub(super) sent: u64,
    /// Bytes that came in.
    pub(super) received: u64,
}

impl journal::Counts for Counts {
    type Entry = Flow;

    fn count(&mut self, flow: &Flow) {
        self.seq = flow.seq;
        self.sent = self.sent.saturating_add(flow.sent);
        self.received = self.received.saturating_add(flow.received);
    }

    fn gives_way(flow: &Flow) -> bool {
        matches!(flow.verdict, Verdict::Denied { .. }) && flow.sent == 0 && flow.received == 0
    }
}

/// One sandbox's list.
#[derive(Debug)]
pub(super) struct FlowLog {
    journal: Journal<Counts>,
    denials: Denials,
}

/// What each execution was denied.
#[derive(Debug, Default)]
struct Denials(BTreeMap<ExecId, Vec<Denial>>);

impl Denials {
    fn take(&mut self, flow: &Flow) {
        let (Verdict::Denied { reason, what, how_to_grant }, Some(exec)) = (&flow.verdict, flow.exec) else {
            return;
        };
        if !self.0.contains_key(&exec) && self.0.len() >= MOST_EXECUTIONS {
            self.0.pop_first();
        }
        let denials = self.0.entry(exec).or_default();
        if let Some(same) = denials.iter_mut().find(|denial| denial.what == *what && denial.reason == *reason)
        {
            same.times += 1;
        } else if denials.len() < MOST_DENIALS {
            denials.push(Denial {
                what: what.clone(),
                reason: reason.clone(),
                rule: flow.rule.clone(),
                how_to_grant: how_to_grant.clone(),
                times: 1,
            });
        }
    }
}

impl FlowLog {
    /// Opens the list in a directory, and reads what is there.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let mut denials = Denials::default();
        let journal = Journal::open(directory, FLOW_FILES, |flow| denials.take(flow))?;
        Ok(Self { journal, denials })
    }

    pub(super) fn counts(&self) -> Counts {
        *self.journal.counts()
    }

    /// Writes down a flow, with the next number.
    pub(super) fn push(&mut self, mut flow: Flow) -> io::Result<()> {
        flow.seq = self.counts().seq + 1;
        self.denials.take(&flow);
        self.journal.push(&flow)
    }

    /// What an execution was denied.
    pub(super) fn denials(&self, exec: ExecId) -> Vec<Denial> {
        self.denials.0.get(&exec).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use belljar_core::{FlowKind, Purpose};

    use super::*;
    use crate::journal::MOST_BYTES;

    fn flow(exec: u32, what: Option<&str>) -> Flow {
        Flow {
            seq: 0,
            time_ms: 1,
            exec: Some(ExecId(exec)),
            purpose: Purpose::default(),
            owner: None,
            kind: FlowKind::Tcp,
            host: "a.example".into(),
            port: Some(443),
            request: None,
            address: None,
            verdict: what.map_or(Verdict::Allowed, |what| Verdict::Denied {
                reason: "not_listed".into(),
                what: what.into(),
                how_to_grant: "ask".into(),
            }),
            rule: None,
            sent: 3,
            received: 4,
            cached: 0,
            duration_us: 5,
        }
    }

    fn lines(directory: &Path, name: &str) -> Vec<String> {
        fs::read_to_string(directory.join(name)).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_is_written_is_counted_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = FlowLog::open(directory.path()).unwrap();
        log.push(flow(1, None)).unwrap();
        log.push(flow(2, Some("a"))).unwrap();
        log.push(flow(2, Some("a"))).unwrap();
        log.push(flow(2, Some("b"))).unwrap();
        let check = |log: &FlowLog| {
            assert_eq!(log.counts(), Counts { seq: 4, sent: 12, received: 16 });
            let times: Vec<_> =
                log.denials(ExecId(2)).into_iter().map(|denial| (denial.what, denial.times)).collect();
            assert_eq!(times, [("a".into(), 2), ("b".into(), 1)]);
            assert_eq!(log.denials(ExecId(1)), []);
        };
        check(&log);
        // Cut off in the middle of a line.
        drop(log);
        let newer = directory.path().join(FLOW_FILES[0]);
        OpenOptions::new().append(true).open(newer).unwrap().write_all(b"{\"seq\": 5, \"ti").unwrap();
        let mut log = FlowLog::open(directory.path()).unwrap();
        check(&log);
        log.push(flow(3, None)).unwrap();
        let last = lines(directory.path(), FLOW_FILES[0]).pop().unwrap();
        assert_eq!(serde_json::from_str::<Flow>(&last).unwrap().seq, 5);
    }

    #[test]
    fn files_are_bounded_and_nothing_that_was_counted_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = FlowLog::open(directory.path()).unwrap();
        let long = "x".repeat(4000);
        let count = 3 * MOST_BYTES / 4000;
        for exec in 0..count {
            log.push(flow(exec as u32, Some(&long))).unwrap();
        }
        for name in FLOW_FILES {
            assert!(directory.path().join(name).metadata().unwrap().len() <= 2 * MOST_BYTES);
        }
        let counts = log.counts();
        assert_eq!(counts, Counts { seq: count, sent: 3 * count, received: 4 * count });
        assert!(log.denials.0.len() <= MOST_EXECUTIONS);
        assert_eq!(FlowLog::open(directory.path()).unwrap().counts(), counts);
    }
}
