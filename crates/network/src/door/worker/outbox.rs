//! What the worker has to say, in order, and the questions it has asked.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_core::{ExecId, SandboxId};
use tokio::sync::{mpsc, oneshot};

use crate::door::message::Word;

/// Words that wait to be sent; then whoever wants to say more waits.
const WAITING: usize = 1024;

/// How long the supervisor may take to hand something over.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something that the supervisor hands over, and how long it is.
type Handed = Option<(OwnedFd, u64)>;

/// Says words. All copies are one.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    words: mpsc::Sender<Word>,
    questions: Arc<Questions>,
}

#[derive(Debug, Default)]
struct Questions {
    serial: AtomicU64,
    asked: Mutex<HashMap<u64, oneshot::Sender<Option<ExecId>>>>,
    wished: Mutex<HashMap<u64, oneshot::Sender<Handed>>>,
}

impl Outbox {
    /// An outbox, and where its words come out.
    pub(super) fn new() -> (Self, mpsc::Receiver<Word>) {
        let (words, out) = mpsc::channel(WAITING);
        (Self { words, questions: Arc::default() }, out)
    }

    pub(super) async fn say(&self, word: Word) {
        // Without a supervisor there is nobody to say it to, and the worker ends.
        let _ = self.words.send(word).await;
    }

    /// A number that no other has.
    pub(super) fn next_number(&self) -> u64 {
        self.questions.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks which execution has a mark.
    pub(super) async fn whose(&self, sandbox: &SandboxId, mark: u32) -> Option<ExecId> {
        let serial = self.next_number();
        let (answer, answered) = oneshot::channel();
        self.asked().insert(serial, answer);
        self.say(Word::Whose { sandbox: sandbox.clone(), mark, serial }).await;
        answered.await.ok().flatten()
    }

    /// Passes an answer on.
    pub(super) fn answered(&self, serial: u64, exec: Option<ExecId>) {
        if let Some(asked) = self.asked().remove(&serial) {
            let _ = asked.send(exec);
        }
    }

    /// Asks for something to be handed over.
    pub(super) async fn handed(&self, word: impl FnOnce(u64) -> Word) -> Handed {
        let serial = self.next_number();
        let (answer, answered) = oneshot::channel();
        self.wished().insert(serial, answer);
        self.say(word(serial)).await;
        let handed = tokio::time::timeout(PATIENCE, answered).await;
        self.wished().remove(&serial);
        handed.ok()?.ok().flatten()
    }

    /// Hands it to whoever asked.
    pub(super) fn hand(&self, serial: u64, handed: Handed) {
        if let Some(wished) = self.wished().remove(&serial) {
            let _ = wished.send(handed);
        }
    }

    fn wished(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Handed>>> {
        self.questions.wished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Option<ExecId>>>> {
        self.questions.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
