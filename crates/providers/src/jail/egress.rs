//! What went through the door, as it is written down in a sandbox's directory: lines of JSON in a file that is put aside when
//! it has grown.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::{FLOW_FILES, Flow, FlowStream, MOVED_FILE, Moved, Owner, POLICY_FILE, SandboxStats};
use futures_util::stream;
use rustix::fs::{Mode, OFlags};

use super::record::{Lease, is_alive, read_json};
use super::sandbox::blocking;
use crate::home::problem;

/// A longer line is none of ours, and passed over.
const MAX_LINE: usize = 64 << 10;
/// How much is read at once.
const PIECE: usize = 64 << 10;
/// How long it is between two looks for more.
const PAUSE: Duration = Duration::from_millis(100);
/// So many looks in vain are the end, of a sandbox that has ended (what it had under way is written when it is cut), and
/// where the last line is not whole.
const LAST_LOOKS: u32 = 5;

/// How long the door may take to count what a sandbox that has ended had moved.
const COUNTING: Duration = Duration::from_secs(1);

/// Adds what the sandbox has moved. One without a network has moved nothing.
pub(super) fn with_moved(stats: SandboxStats, state_dir: &Path) -> SandboxStats {
    let moved = moved(state_dir);
    let (sent, received) = (moved.map(|moved| moved.sent), moved.map(|moved| moved.received));
    SandboxStats { egress_bytes: sent, ingress_bytes: received, ..stats }
}

fn moved(state_dir: &Path) -> Option<Moved> {
    if !state_dir.join(POLICY_FILE).exists() {
        return Some(Moved { complete: true, ..Moved::default() });
    }
    read_json(&state_dir.join(MOVED_FILE))
}

/// Waits a moment for the last count of a sandbox that has ended.
pub(super) async fn counted(state_dir: &Path) {
    let all = async {
        while !moved(state_dir).is_none_or(|moved| moved.complete) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = tokio::time::timeout(COUNTING, all).await;
}

/// The flows of a sandbox after this number; with `follow`, until it has ended.
pub(super) fn flows(state_dir: PathBuf, after: u64, follow: bool) -> FlowStream {
    let following = Following {
        log: Log { state_dir, after, files: VecDeque::new() },
        owner: None,
        ready: VecDeque::new(),
        follow,
        in_vain: 0,
        over: false,
    };
    Box::pin(stream::unfold(following, |mut following| async {
        let next = following.next().await?;
        Some((next, following))
    }))
}

struct Following {
    log: Log,
    /// Whose the sandbox is, once that was looked for.
    owner: Option<Option<Owner>>,
    ready: VecDeque<Flow>,
    follow: bool,
    /// Looks that found nothing, since nobody waits for more than what is there.
    in_vain: u32,
    over: bool,
}

impl Following {
    async fn next(&mut self) -> Option<belljar_core::Result<Flow>> {
        loop {
            if let Some(flow) = self.ready.pop_front() {
                let owner = self.owner.clone().flatten();
                return Some(Ok(Flow { owner, ..flow }));
            }
            if self.over {
                return None;
            }
            let nowhere = Log { state_dir: PathBuf::new(), after: 0, files: VecDeque::new() };
            let (mut log, follow) = (std::mem::replace(&mut self.log, nowhere), self.follow);
            let owner = self.owner.take();
            let looked = blocking(move || {
                // Before the look: what is written until it ends is seen.
                let goes_on = follow && is_alive(&log.state_dir);
                let owner = owner.unwrap_or_else(|| Lease::read(&log.state_dir)?.spec.owner);
                let found = log.read().map_err(|error| problem(&log.state_dir, &error))?;
                Ok((log, owner, found, goes_on))
            });
            let (log, owner, found, goes_on) = match looked.await {
                Ok(looked) => looked,
                Err(error) => {
                    self.over = true;
                    return Some(Err(error));
                }
            };
            (self.log, self.owner) = (log, Some(owner));
            match found {
                Found::Flows(flows) => {
                    self.in_vain = 0;
                    self.ready.extend(flows);
                    continue;
                }
                Found::Nothing | Found::Rest if goes_on => {}
                Found::Nothing if !self.follow => return None,
                Found::Nothing | Found::Rest if self.in_vain >= LAST_LOOKS => return None,
                Found::Nothing | Found::Rest => self.in_vain += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    /// Those of a piece that was read, perhaps none.
    Flows(Vec<Flow>),
    /// There is no more.
    Nothing,
    /// There is no more but the beginning of a line.
    Rest,
}

/// The files, read in order.
struct Log {
    state_dir: PathBuf,
    /// The number of the last flow that was told.
    after: u64,
    /// What is being read, and what comes after it.
    files: VecDeque<Opened>,
}

struct Opened {
    file: File,
    inode: u64,
    line: Vec<u8>,
    /// Whether the line is too long, and only its end is looked for.
    is_skipped: bool,
}

impl Log {
    /// Reads on.
    fn read(&mut self) -> io::Result<Found> {
        let mut piece = vec![0; PIECE];
        loop {
            let Some(current) = self.files.front_mut() else {
                if self.look_for_newer()? {
                    continue;
                }
                return Ok(Found::Nothing);
            };
            let count = current.file.read(&mut piece)?;
            if count > 0 {
                let mut flows = current.take(&piece[..count]);
                flows.retain(|flow| {
                    let is_new = flow.seq > self.after;
                    self.after = self.after.max(flow.seq);
                    is_new
                });
                return Ok(Found::Flows(flows));
            }
            let has_rest = !current.line.is_empty();
            // Whoever found a newer one has read this to its end since, and nothing is added to it any more.
            if self.files.len() > 1 {
                self.files.pop_front();
                continue;
            }
            if !self.look_for_newer()? {
                return Ok(if has_rest { Found::Rest } else { Found::Nothing });
            }
        }
    }

    /// Opens what has come since the last file that is known, the older first; whether there was any.
    fn look_for_newer(&mut self) -> io::Result<bool> {
        let [newer, older] = FLOW_FILES.map(|name| self.state_dir.join(name));
        // In this order: one that is put aside meanwhile is found twice, not never.
        let newer = open(&newer)?;
        let known = self.files.back().map(|file| file.inode);
        let newest = newer.as_ref().map(|file| file.inode);
        if known.is_some() && known == newest {
            return Ok(false);
        }
        let older = open(&older)?.filter(|file| ![known, newest].contains(&Some(file.inode)));
        let found = older.is_some() || newer.is_some();
        self.files.extend(older.into_iter().chain(newer));
        Ok(found)
    }
}

impl Opened {
    /// The flows that these bytes complete. A line that is none is passed over: one who is killed leaves half a line.
    fn take(&mut self, bytes: &[u8]) -> Vec<Flow> {
        let mut flows = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.is_skipped |= self.line.len() + part.len() > MAX_LINE;
            if self.is_skipped {
                self.line.clear();
            } else {
                self.line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                flows.extend(serde_json::from_slice::<Flow>(&self.line).ok());
                self.line.clear();
                self.is_skipped = false;
            }
        }
        flows
    }
}

/// `None` if there is no such file.
fn open(path: &Path) -> io::Result<Option<Opened>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let inode = file.metadata()?.ino();
    Ok(Some(Opened { file, inode, line: Vec::new(), is_skipped: false }))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use belljar_core::{FlowKind, Purpose, Verdict};
    use futures_util::StreamExt;

    use super::*;

    fn flow(seq: u64) -> Flow {
        Flow {
            seq,
            time_ms: 1,
            exec: None,
            purpose: Purpose::default(),
            owner: None,
            kind: FlowKind::Tcp,
            host: "example.org".into(),
            port: Some(443),
            request: None,
            address: None,
            verdict: Verdict::Allowed,
            rule: None,
            sent: 0,
            received: 0,
            cached: 0,
            duration_us: 0,
        }
    }

    fn line(seq: u64) -> Vec<u8> {
        let mut line = serde_json::to_vec(&flow(seq)).unwrap();
        line.push(b'\n');
        line
    }

    /// A sandbox's directory, of one that has ended unless its lock is held.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn append(&self, bytes: &[u8]) {
            let path = self.0.path().join(FLOW_FILES[0]);
            OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
        }

        fn rotate(&self) {
            let [newer, older] = FLOW_FILES.map(|name| self.0.path().join(name));
            fs::rename(newer, older).unwrap();
        }

        fn live(&self) -> File {
            let lock = File::create(self.0.path().join(belljar_jail::control::LOCK_FILE)).unwrap();
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
            lock
        }

        /// What is there, in one look.
        fn all_now(&self, after: u64) -> Vec<u64> {
            let mut log = Log { state_dir: self.0.path().to_owned(), after, files: VecDeque::new() };
            let mut seen = Vec::new();
            while let Found::Flows(flows) = log.read().unwrap() {
                seen.extend(flows.iter().map(|flow| flow.seq));
            }
            seen
        }

        async fn all(&self, after: u64) -> Vec<u64> {
            let flows = flows(self.0.path().to_owned(), after, false);
            flows.map(|flow| flow.unwrap().seq).collect().await
        }
    }

    #[tokio::test]
    async fn both_files_are_told_in_order_and_what_is_no_flow_is_passed_over() {
        let place = Place::new();
        assert_eq!(place.all(0).await, [0; 0]);
        place.append(&line(1));
        place.append(b"{\"seq\":\n");
        place.append(&line(2));
        place.rotate();
        place.append(&[&vec![b'x'; 3 * MAX_LINE][..], b"\n"].concat());
        place.append(&line(3));
        place.append(&line(5));
        assert_eq!(place.all(0).await, [1, 2, 3, 5]);
        assert_eq!(place.all(2).await, [3, 5]);
        assert_eq!(place.all(9).await, [0; 0]);
    }

    #[tokio::test]
    async fn half_a_line_is_waited_for_but_not_for_ever() {
        let place = Place::new();
        let whole = line(1);
        place.append(&whole[..20]);
        assert_eq!(place.all(0).await, [0; 0]);
        let mut log = Log { state_dir: place.0.path().to_owned(), after: 0, files: VecDeque::new() };
        assert_eq!(log.read().unwrap(), Found::Flows(Vec::new()));
        assert_eq!(log.read().unwrap(), Found::Rest);
        place.append(&whole[20..]);
        assert_eq!(log.read().unwrap(), Found::Flows(vec![flow(1)]));
        assert_eq!(log.read().unwrap(), Found::Nothing);
    }

    #[test]
    fn what_is_put_aside_is_read_to_its_end_first() {
        let place = Place::new();
        let mut log = Log { state_dir: place.0.path().to_owned(), after: 0, files: VecDeque::new() };
        assert_eq!(log.read().unwrap(), Found::Nothing);
        place.append(&line(1));
        assert_eq!(log.read().unwrap(), Found::Flows(vec![flow(1)]));
        assert_eq!(log.read().unwrap(), Found::Nothing);
        place.append(&line(2));
        place.rotate();
        place.append(&line(3));
        place.rotate();
        place.append(&line(4));
        for seq in 2..=4 {
            assert_eq!(log.read().unwrap(), Found::Flows(vec![flow(seq)]));
        }
        assert_eq!(log.read().unwrap(), Found::Nothing);
        place.rotate();
        assert_eq!(place.all_now(3), [4], "put aside, and nothing new yet");
    }

    #[test]
    fn what_is_put_aside_with_what_was_before_is_told_once() {
        let place = Place::new();
        let mut log = Log { state_dir: place.0.path().to_owned(), after: 0, files: VecDeque::new() };
        place.append(&line(5));
        assert_eq!(log.read().unwrap(), Found::Flows(vec![flow(5)]));
        place.append(&line(6));
        // Another file with what was kept and all of this one takes its place.
        let [newer, older] = FLOW_FILES.map(|name| place.0.path().join(name));
        fs::write(&older, [line(1), line(3), line(5), line(6)].concat()).unwrap();
        assert_eq!(place.all_now(0), [1, 3, 5, 6], "while both are there");
        fs::remove_file(newer).unwrap();
        place.append(&line(7));
        assert_eq!(log.read().unwrap(), Found::Flows(vec![flow(6)]));
        assert_eq!(log.read().unwrap(), Found::Flows(Vec::new()), "all of it was told");
        assert_eq!(log.read().unwrap(), Found::Flows(vec![flow(7)]));
        assert_eq!(place.all_now(0), [1, 3, 5, 6, 7]);
    }

    #[tokio::test]
    async fn what_comes_is_told_across_files_until_the_sandbox_has_ended() {
        let place = Place::new();
        let alive = place.live();
        let mut flows = flows(place.0.path().to_owned(), 0, true);
        for seq in 1..=6 {
            let later = async {
                place.append(&line(seq));
                if seq % 2 == 0 {
                    // Put aside just after it was written.
                    place.rotate();
                }
            };
            let (next, ()) = futures_util::future::join(flows.next(), later).await;
            assert_eq!(next.unwrap().unwrap().seq, seq);
        }
        drop(alive);
        place.append(&line(7));
        assert_eq!(flows.next().await.unwrap().unwrap().seq, 7, "the last words");
        assert!(flows.next().await.is_none());
    }
}
