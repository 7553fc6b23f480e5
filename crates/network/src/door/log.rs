//! The list of a sandbox's flows, in its directory: lines of JSON in two files of bounded size, the newer and the one before.
//! Each file begins with what had been counted before it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_core::{Denial, ExecId, FLOW_FILES, Flow, Verdict};
use serde::{Deserialize, Serialize};

/// A file that is longer than this becomes the older one.
const MOST_BYTES: u64 = 4 << 20;
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

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Beginning {
    before: Counts,
}

/// One sandbox's list.
#[derive(Debug)]
pub(super) struct FlowLog {
    directory: PathBuf,
    file: File,
    length: u64,
    counts: Counts,
    denials: BTreeMap<ExecId, Vec<Denial>>,
}

impl FlowLog {
    /// Opens the list in a directory, and reads what is there.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let [newer, older] = FLOW_FILES.map(|name| directory.join(name));
        let file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&newer)?;
        let length = file.metadata()?.len();
        let mut log = Self {
            directory: directory.to_owned(),
            file,
            length,
            counts: Counts::default(),
            denials: BTreeMap::new(),
        };
        for path in [older, newer] {
            log.read(&path)?;
        }
        if length == 0 {
            log.begin()?;
        } else {
            // A line that was cut off must not spoil the next.
            log.write(b"\n")?;
        }
        Ok(log)
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file.take(4 * MOST_BYTES)).split(b'\n') {
            let line = line?;
            if let Ok(Beginning { before }) = serde_json::from_slice(&line) {
                self.counts = before;
            } else if let Ok(flow) = serde_json::from_slice::<Flow>(&line) {
                self.take(&flow);
            }
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes down a flow, with the next number.
    pub(super) fn push(&mut self, mut flow: Flow) -> io::Result<()> {
        flow.seq = self.counts.seq + 1;
        let mut line = serde_json::to_vec(&flow)?;
        line.push(b'\n');
        if self.length + line.len() as u64 > MOST_BYTES {
            self.turn()?;
        }
        self.take(&flow);
        self.write(&line)
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.length += line.len() as u64;
        self.file.write_all(line)
    }

    fn begin(&mut self) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Beginning { before: self.counts })?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Makes the newer file the older, and begins another.
    fn turn(&mut self) -> io::Result<()> {
        let [newer, older] = FLOW_FILES.map(|name| self.directory.join(name));
        fs::rename(&newer, older)?;
        self.file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&newer)?;
        self.length = 0;
        self.begin()
    }

    fn take(&mut self, flow: &Flow) {
        self.counts.seq = flow.seq;
        self.counts.sent = self.counts.sent.saturating_add(flow.sent);
        self.counts.received = self.counts.received.saturating_add(flow.received);
        let (Verdict::Denied { reason, what, how_to_grant }, Some(exec)) = (&flow.verdict, flow.exec) else {
            return;
        };
        if !self.denials.contains_key(&exec) && self.denials.len() >= MOST_EXECUTIONS {
            self.denials.pop_first();
        }
        let denials = self.denials.entry(exec).or_default();
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

    /// What an execution was denied.
    pub(super) fn denials(&self, exec: ExecId) -> Vec<Denial> {
        self.denials.get(&exec).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::{FlowKind, Purpose};

    use super::*;

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
        log.write(b"{\"seq\": 5, \"ti").unwrap();
        drop(log);
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
            assert!(directory.path().join(name).metadata().unwrap().len() <= MOST_BYTES);
        }
        let counts = log.counts();
        assert_eq!(counts, Counts { seq: count, sent: 3 * count, received: 4 * count });
        assert!(log.denials.len() <= MOST_EXECUTIONS);
        assert_eq!(FlowLog::open(directory.path()).unwrap().counts(), counts);
    }
}
