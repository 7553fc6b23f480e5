//! What an execution has said so far, kept within bounds, for any number of followers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::{Ending, ExecEvent, ExecId, OutputMode, Position, Result, Stream, Termination, Usage};
use bytes::Bytes;
use tokio::sync::watch;

/// How much is kept from the beginning, and again from the end.
const KEPT: usize = 32 << 20;

/// How far a command with [`OutputMode::Flow`] may run ahead of its caller.
const WINDOW: u64 = 256 << 10;

/// What a piece costs beyond its bytes, so that many small ones are bounded too.
const PIECE_COST: usize = 96;

#[derive(Debug)]
struct Piece {
    stream: Stream,
    bytes: Bytes,
    /// How many bytes of each stream came before it.
    before: [u64; 2],
}

impl Piece {
    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_COST
    }
}

#[derive(Debug, Default)]
struct State {
    head: Vec<Piece>,
    head_cost: usize,
    /// Pieces between head and tail that were dropped.
    dropped: usize,
    tail: VecDeque<Piece>,
    tail_cost: usize,
    totals: [u64; 2],
    finished: Option<Ending>,
}

/// The record of one execution.
#[derive(Debug)]
pub(super) struct Journal {
    exec: ExecId,
    start: Duration,
    capacity: usize,
    state: Mutex<State>,
    /// Told whenever something was added.
    changes: watch::Sender<()>,
    /// How many bytes the caller took; `u64::MAX` when nobody is waited for.
    taken: watch::Sender<u64>,
}

impl Journal {
    pub(super) fn new(exec: ExecId, start: Duration, mode: OutputMode) -> Self {
        let taken = match mode {
            OutputMode::Flow => 0,
            OutputMode::Spool => u64::MAX,
        };
        Self {
            exec,
            start,
            capacity: KEPT,
            state: Mutex::default(),
            changes: watch::Sender::new(()),
            taken: watch::Sender::new(taken),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until more output may be taken from the command.
    pub(super) async fn room(&self) {
        let has_room = |taken: &u64| self.state().totals.iter().sum::<u64>().saturating_sub(*taken) < WINDOW;
        // The sender is part of this journal, so the wait cannot be cut off.
        let _ = self.taken.subscribe().wait_for(has_room).await;
    }

    /// Adds output.
    pub(super) fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state();
        let piece = Piece { stream, bytes: Bytes::copy_from_slice(bytes), before: state.totals };
        state.totals[stream as usize] += bytes.len() as u64;
        if state.dropped == 0 && state.tail.is_empty() && state.head_cost + piece.cost() <= self.capacity {
            state.head_cost += piece.cost();
            state.head.push(piece);
        } else {
            state.tail_cost += piece.cost();
            state.tail.push_back(piece);
            while state.tail_cost > self.capacity {
                let Some(oldest) = state.tail.pop_front() else { break };
                state.tail_cost -= oldest.cost();
                state.dropped += 1;
            }
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// Notes how it ended, unless that is known already; nothing comes after it.
    pub(super) fn finish(&self, termination: Termination, duration: Duration) {
        let (usage, oom_kills) = (Usage::default(), None);
        self.state().finished.get_or_insert(Ending { termination, usage, duration, oom_kills });
        self.changes.send_replace(());
    }

    /// How it ended, if it did.
    pub(super) fn termination(&self) -> Option<Termination> {
        self.state().finished.map(|ending| ending.termination)
    }

    /// How much there has been of its output.
    pub(super) fn said(&self) -> Position {
        let [stdout, stderr] = self.state().totals;
        Position { stdout, stderr }
    }

    /// Waits for the end.
    pub(super) async fn finished(&self) -> Ending {
        let mut changes = self.changes.subscribe();
        loop {
            // Read before the wait, and subscribed to before that, so that nothing can come unnoticed in between.
            if let Some(ending) = self.state().finished {
                return ending;
            }
            // The sender is part of this journal, so the wait cannot be cut off.
            let _ = changes.changed().await;
        }
    }
}

/// Whether a command waits for a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// It does, if its mode is [`OutputMode::Flow`].
    Set,
    /// It does not.
    Free,
}

/// One reader of a journal.
#[derive(Debug)]
pub(super) struct Follower {
    journal: Arc<Journal>,
    pace: Pace,
    cursor: Mutex<Cursor>,
}

/// How far a follower has come.
#[derive(Debug, Default)]
struct Cursor {
    started: bool,
    ended: bool,
    /// The number of the next piece.
    next: usize,
    /// How many bytes of each stream were delivered or reported missing.
    position: [u64; 2],
}

impl Follower {
    pub(super) fn new(journal: Arc<Journal>, pace: Pace) -> Self {
        Self { journal, pace, cursor: Mutex::default() }
    }

    /// One that reads on from a position and sets no pace.
    pub(super) fn from(journal: Arc<Journal>, from: Position) -> Result<Self> {
        let [stdout, stderr] = journal.state().totals;
        let end = Position { stdout, stderr };
        if !from.is_within(end) {
            return Err(from.beyond(end));
        }
        let cursor = Cursor { position: [from.stdout, from.stderr], ..Cursor::default() };
        Ok(Self { journal, pace: Pace::Free, cursor: Mutex::new(cursor) })
    }

    /// The next event; `None` after the last. Dropping the future loses nothing: an event is taken only when it is
    /// returned.
    pub(super) async fn next(&self) -> Option<ExecEvent> {
        loop {
            // Subscribed before looking, so that nothing can come unnoticed in between.
            let mut changes = self.journal.changes.subscribe();
            {
                let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
                if cursor.ended {
                    return None;
                }
                if let Some(event) = cursor.step(&self.journal) {
                    if self.pace == Pace::Set {
                        self.took(cursor.position.iter().sum());
                    }
                    return Some(event);
                }
            }
            // The sender is part of the journal that this follower holds, so it cannot be gone.
            let _ = changes.changed().await;
        }
    }

    fn took(&self, bytes: u64) {
        self.journal.taken.send_if_modified(|taken| {
            let grows = *taken < bytes;
            *taken = bytes.max(*taken);
            grows
        });
    }
}

impl Cursor {
    fn step(&mut self, journal: &Journal) -> Option<ExecEvent> {
        if !self.started {
            self.started = true;
            return Some(ExecEvent::Started { exec: journal.exec, start: journal.start });
        }
        let state = journal.state();
        let tail_start = state.head.len() + state.dropped;
        loop {
            let piece = match self.next.checked_sub(tail_start) {
                Some(index) => state.tail.get(index),
                None if self.next < state.head.len() => state.head.get(self.next),
                None => {
                    let resume = state.tail.front().map_or(state.totals, |piece| piece.before);
                    for stream in [Stream::Stdout, Stream::Stderr] {
                        let bytes = resume[stream as usize].saturating_sub(self.position[stream as usize]);
                        if bytes > 0 {
                            self.position[stream as usize] += bytes;
                            return Some(ExecEvent::Gap { stream, bytes });
                        }
                    }
                    self.next = tail_start;
                    state.tail.front()
                }
            };
            let Some(piece) = piece else { break };
            self.next += 1;
            let position = &mut self.position[piece.stream as usize];
            // Who came later may have had some of it.
            let had = position.saturating_sub(piece.before[piece.stream as usize]);
            let bytes = piece.bytes.slice(piece.bytes.len().min(had as usize)..);
            if !bytes.is_empty() {
                *position += bytes.len() as u64;
                return Some(ExecEvent::Output { stream: piece.stream, bytes });
            }
        }
        let Ending { termination, usage, duration, oom_kills } = state.finished?;
        self.ended = true;
        Some(ExecEvent::Finished { termination, usage, duration, oom_kills })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Without its caller a command goes on, so it must not wait for one.
        if self.pace == Pace::Set {
            self.took(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::ExecResult;

    use super::*;

    fn journal(capacity: usize, mode: OutputMode) -> Arc<Journal> {
        let mut journal = Journal::new(ExecId(1), Duration::ZERO, mode);
        journal.capacity = capacity;
        Arc::new(journal)
    }

    async fn read(follower: Follower) -> ExecResult {
        let mut events = Vec::new();
        while let Some(event) = follower.next().await {
            events.push(event);
        }
        ExecResult::collect(events)
    }

    #[tokio::test]
    async fn head_and_tail_are_kept_and_the_gap_is_counted() {
        let journal = journal(2 * (1 + PIECE_COST), OutputMode::Spool);
        let early = Follower::new(Arc::clone(&journal), Pace::Set);
        early.next().await;
        for (number, byte) in (b'a'..=b'z').enumerate() {
            let stream = if number % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
            journal.push(stream, &[byte]);
        }
        journal.finish(Termination::Exited { code: 0 }, Duration::ZERO);
        for follower in [early, Follower::new(Arc::clone(&journal), Pace::Free)] {
            let result = read(follower).await;
            assert_eq!(
                (&result.stdout.head[..], result.stdout.gap, &result.stdout.tail[..]),
                (&b"a"[..], 11, &b"y"[..])
            );
            assert_eq!(
                (&result.stderr.head[..], result.stderr.gap, &result.stderr.tail[..]),
                (&b"b"[..], 11, &b"z"[..])
            );
            assert!(result.termination.is_success());
        }
    }

    #[tokio::test]
    async fn one_who_reads_on_gets_the_rest_and_no_more() {
        let journal = journal(2 * (3 + PIECE_COST), OutputMode::Spool);
        for byte in b'a'..=b'z' {
            journal.push(Stream::Stdout, &[byte; 3]);
        }
        journal.finish(Termination::Exited { code: 0 }, Duration::ZERO);
        // Two pieces at each end are kept, of three bytes each.
        let whole: Vec<Option<u8>> = [&b"aaabbb"[..], &b"yyyzzz"[..]]
            .map(|kept| kept.iter().copied().map(Some).collect::<Vec<_>>())
            .join(&vec![None; 66][..]);
        for from in 0..=78u64 {
            let follower =
                Follower::from(Arc::clone(&journal), Position { stdout: from, stderr: 0 }).unwrap();
            let mut rest = Vec::new();
            while let Some(event) = follower.next().await {
                match event {
                    ExecEvent::Output { bytes, .. } => rest.extend(bytes.iter().copied().map(Some)),
                    ExecEvent::Gap { bytes, .. } => rest.extend((0..bytes).map(|_| None)),
                    _ => {}
                }
            }
            assert_eq!(rest, whole[from as usize..], "from {from}");
        }
        assert!(Follower::from(journal, Position { stdout: 79, stderr: 0 }).is_err());
    }

    #[tokio::test]
    async fn flow_waits_for_the_caller_and_not_for_its_absence() {
        use futures_util::FutureExt;

        let journal = journal(KEPT, OutputMode::Flow);
        let caller = Follower::new(Arc::clone(&journal), Pace::Set);
        let full = vec![0; WINDOW as usize];
        journal.push(Stream::Stdout, &full);
        assert!(journal.room().now_or_never().is_none(), "the caller has taken nothing");
        caller.next().await;
        caller.next().await;
        assert!(journal.room().now_or_never().is_some(), "the caller has taken everything");
        journal.push(Stream::Stdout, &full);
        assert!(journal.room().now_or_never().is_none());
        drop(caller);
        assert!(journal.room().now_or_never().is_some(), "there is no caller any more");
    }
}
