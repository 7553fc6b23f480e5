//! Writing down what a sandbox's network does, in a thread of its own: nobody who passes bytes on waits for a disk, but where more
//! comes than can be written.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, ready};

use belljar_core::{ExecId, HostName, Record, RecordingPlan, SandboxId};
use bytes::Bytes;
use hyper::header::HeaderMap;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::door::clock::now_ms;
use crate::gateway::headers::is_encoded;
use crate::policy::{Destination, decide};
use crate::recording::{
    Content, Entry, Exchange, Lookup, MAX_PIECE, Meta, Stream, Veil, Veiling, Way, Writer,
};

/// How much may wait to be written.
const MOST_BEHIND: usize = 8 << 20;
/// Where so much waits, pieces are no longer packed: that takes longer than anything else.
const MUCH_BEHIND: usize = 1 << 20;
/// The most times that are kept of one content.
const MOST_MARKS: usize = 4096;
/// What comes within so many microseconds came together.
const TOGETHER: u64 = 500;
/// The most turns that are kept of one conversation.
const MOST_TURNS: usize = 8192;

/// The status of an answer that goes over to another protocol.
const SWITCHING: u16 = 101;

/// The number of a content that is being written down.
pub(super) type Number = u64;

/// What is to be written down.
enum Job {
    Bytes {
        number: Number,
        bytes: Bytes,
        us: u64,
    },
    /// A request is over, with these as its contents.
    Exchange(Box<Exchange>, [Number; 2]),
    /// The next of a conversation, by the one who says it.
    Turn(Number, Way, Bytes, u64),
    /// A conversation is over.
    Stream(Box<Stream>, Number),
    Lookup(Lookup),
    /// Write the index, and say when that is done.
    Finish(oneshot::Sender<()>),
}

/// What has been said and not been written.
#[derive(Debug, Default)]
struct Behind {
    bytes: AtomicUsize,
    less: Notify,
}

impl Behind {
    fn is_too_much(&self) -> bool {
        self.bytes.load(Ordering::Acquire) > MOST_BEHIND
    }
}

/// Writes down the network of one sandbox.
#[derive(Debug)]
pub(super) struct Recorder {
    jobs: mpsc::Sender<Job>,
    behind: Arc<Behind>,
    veil: Arc<Veil>,
    how: Record,
    next: AtomicU64,
}

impl Recorder {
    /// Begins to write into a file.
    pub(super) fn new(
        sandbox: &SandboxId,
        how: Record,
        plan: &RecordingPlan,
        file: File,
    ) -> io::Result<Self> {
        let veil = Arc::new(Veil::new(plan.secrets.iter().map(String::as_str), &how.headers));
        let mut writer = Writer::new(file, how.most.0)?;
        if let Some(other) = writer.whose().filter(|whose| *whose != sandbox.as_str()) {
            return Err(io::Error::other(format!("it is the recording of {other}")));
        }
        let env = plan.env.iter().map(|(name, value)| (name.clone(), veil.text(value))).collect();
        writer.entry(&Entry::Meta(Meta { sandbox: sandbox.to_string(), at_ms: now_ms(), env }))?;
        let (jobs, work) = mpsc::channel();
        let behind = Arc::new(Behind::default());
        let desk = Desk { writer, veil: veil.clone(), open: HashMap::new(), turns: HashMap::new() };
        let thread = std::thread::Builder::new().name("recorder".into());
        let (behind_too, id) = (behind.clone(), sandbox.clone());
        thread.spawn(move || {
            if let Err(error) = desk.work(&work, &behind_too) {
                tracing::error!(sandbox = %id, %error, "the recording ends here");
            }
            // Nobody waits for one who is gone.
            while let Ok(job) = work.recv() {
                drop(job);
                behind_too.bytes.store(0, Ordering::Release);
                behind_too.less.notify_waiters();
            }
        })?;
        Ok(Self { jobs, behind, veil, how, next: AtomicU64::new(0) })
    }

    /// Whether TLS to this host stays closed.
    pub(super) fn is_closed(&self, destination: &Destination, port: u16) -> bool {
        self.how.closed.iter().any(|rule| decide::covers(rule, destination, port))
    }

    fn say(&self, job: Job) {
        // A thread that has ended has said why.
        let _ = self.jobs.send(job);
    }

    fn number(&self) -> Number {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn bytes(&self, number: Number, bytes: Bytes, us: u64) {
        self.behind.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        self.say(Job::Bytes { number, bytes, us });
    }

    /// A name was looked up.
    pub(super) fn lookup(&self, name: &HostName, found: bool) {
        self.say(Job::Lookup(Lookup { at_ms: now_ms(), name: name.to_string(), found }));
    }

    /// Waits until more can be written.
    async fn caught_up(self: Arc<Self>) {
        loop {
            let less = self.behind.less.notified();
            if !self.behind.is_too_much() {
                return;
            }
            less.await;
        }
    }

    /// Waits, if more has come than can be written.
    pub(super) async fn keep_up(self: &Arc<Self>) {
        if self.behind.is_too_much() {
            self.clone().caught_up().await;
        }
    }

    /// Writes everything that was said before, and the index.
    pub(super) async fn finish(&self) {
        let (done, finished) = oneshot::channel();
        self.say(Job::Finish(done));
        let _ = finished.await;
    }
}

/// A pause for who passes bytes on, while more has come than can be written.
#[derive(Default)]
pub(super) struct Pause(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Pause {
    pub(super) fn poll(&mut self, taped: Option<&Taped>, context: &mut Context<'_>) -> Poll<()> {
        if self.0.is_none() {
            match taped {
                Some(taped) if taped.recorder.behind.is_too_much() => {
                    self.0 = Some(Box::pin(taped.recorder.clone().caught_up()));
                }
                _ => return Poll::Ready(()),
            }
        }
        if let Some(pause) = &mut self.0 {
            ready!(pause.as_mut().poll(context));
        }
        self.0 = None;
        Poll::Ready(())
    }
}

/// A request that is written down when this is dropped.
#[derive(Debug)]
pub(super) struct Taped {
    recorder: Arc<Recorder>,
    exchange: Mutex<Exchange>,
    numbers: [Number; 2],
    began: Instant,
}

impl Taped {
    pub(super) fn new(recorder: Arc<Recorder>, exec: Option<ExecId>, mut exchange: Exchange) -> Self {
        exchange.at_ms = now_ms();
        exchange.exec = exec.map(|exec| exec.0);
        let numbers = [recorder.number(), recorder.number()];
        Self { recorder, exchange: Mutex::new(exchange), numbers, began: Instant::now() }
    }

    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The headers of the request.
    pub(super) fn asked(&self, headers: &HeaderMap) {
        let mut exchange = self.exchange();
        self.recorder.veil.learn(headers, &exchange.target);
        exchange.target = self.recorder.veil.target(&exchange.target);
        exchange.headers = self.recorder.veil.headers(headers);
        exchange.body.withheld = self.cannot_look_into(headers);
    }

    /// The head of the answer.
    pub(super) fn answered(&self, status: u16, headers: &HeaderMap) {
        let mut exchange = self.exchange();
        exchange.status = status;
        exchange.waited_us = self.us();
        exchange.answer_headers = self.recorder.veil.headers(headers);
        exchange.answer.withheld = self.cannot_look_into(headers);
    }

    /// Whether something that is known to be secret could be in there, and nobody would see it.
    fn cannot_look_into(&self, headers: &HeaderMap) -> bool {
        is_encoded(headers) && !self.recorder.veil.is_empty()
    }

    /// More of one of the bodies.
    pub(super) fn pass(&self, way: Way, bytes: &Bytes) {
        let us = self.us();
        let number = match way {
            Way::Out => self.numbers[0],
            Way::In => self.numbers[1],
        };
        self.recorder.bytes(number, bytes.clone(), us);
    }

    /// What is said after it has gone over to another protocol; it is written down with that.
    pub(super) fn converse(&self) -> Conversation {
        let exchange = self.exchange().clone();
        let Exchange { at_ms, exec, ref host, port, .. } = exchange;
        let host = host.clone();
        let stream =
            Stream { at_ms, exec, host, port, upgrade: Some(Box::new(exchange)), ..Stream::default() };
        Conversation::of(self.recorder.clone(), stream)
    }

    pub(super) fn failed(&self, error: &str) {
        self.exchange().error = Some(self.recorder.veil.text(error));
    }
}

impl Drop for Taped {
    fn drop(&mut self) {
        let exchange = std::mem::take(&mut *self.exchange());
        if exchange.status == SWITCHING {
            // It is told with the conversation.
            return;
        }
        self.recorder.say(Job::Exchange(Box::new(exchange), self.numbers));
    }
}

/// A conversation in another language than HTTP, which is written down when this is dropped.
#[derive(Debug)]
pub(super) struct Conversation {
    recorder: Arc<Recorder>,
    stream: Stream,
    number: Number,
    began: Instant,
}

impl Conversation {
    pub(super) fn new(recorder: Arc<Recorder>, exec: Option<ExecId>, host: String, port: u16) -> Self {
        let exec = exec.map(|exec| exec.0);
        Self::of(recorder, Stream { at_ms: now_ms(), exec, host, port, ..Stream::default() })
    }

    fn of(recorder: Arc<Recorder>, stream: Stream) -> Self {
        let number = recorder.number();
        Self { recorder, stream, number, began: Instant::now() }
    }

    /// More of what one side says; waits where more has come than can be written.
    pub(super) async fn say(&self, way: Way, bytes: Vec<u8>) {
        self.recorder.behind.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        let us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.recorder.say(Job::Turn(self.number, way, bytes.into(), us));
        self.recorder.keep_up().await;
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let stream = std::mem::take(&mut self.stream);
        self.recorder.say(Job::Stream(Box::new(stream), self.number));
    }
}

/// Where it is written.
struct Desk {
    writer: Writer,
    veil: Arc<Veil>,
    open: HashMap<Number, Taking>,
    turns: HashMap<Number, Turns>,
}

/// A conversation: what has been said by turns, and the turn that goes on.
#[derive(Default)]
struct Turns {
    over: Vec<(Way, Content)>,
    now: Option<(Way, Taking)>,
}

impl Turns {
    fn push(&mut self, way: Way, bytes: &[u8], us: u64, veil: &Veil, writer: &mut Writer) -> io::Result<()> {
        if self.now.as_ref().is_some_and(|(own, _)| *own != way) {
            self.turn(writer)?;
        }
        if self.over.len() >= MOST_TURNS {
            return Ok(());
        }
        let (_, taking) = self.now.get_or_insert_with(|| (way, Taking::new(veil)));
        taking.push(bytes, us, writer)
    }

    fn turn(&mut self, writer: &mut Writer) -> io::Result<()> {
        if let Some((way, taking)) = self.now.take() {
            self.over.push((way, taking.finish(writer, false)?));
        }
        Ok(())
    }
}

/// A content of which more may come.
struct Taking {
    veiling: Veiling,
    /// What is not yet a whole piece.
    rest: Vec<u8>,
    content: Content,
}

impl Taking {
    fn new(veil: &Veil) -> Self {
        Self { veiling: veil.veiling(), rest: Vec::new(), content: Content::default() }
    }

    fn push(&mut self, bytes: &[u8], us: u64, writer: &mut Writer) -> io::Result<()> {
        let content = &mut self.content;
        content.length += bytes.len() as u64;
        let is_full = content.marks.len() >= MOST_MARKS;
        match content.marks.last_mut() {
            Some((length, last)) if is_full || us.saturating_sub(*last) < TOGETHER => {
                *length += bytes.len() as u64;
            }
            _ => content.marks.push((bytes.len() as u64, us)),
        }
        self.rest.extend(self.veiling.pass(bytes));
        self.put(writer)
    }

    fn put(&mut self, writer: &mut Writer) -> io::Result<()> {
        while self.rest.len() >= MAX_PIECE {
            self.content.pieces.push(writer.piece(&self.rest[..MAX_PIECE])?);
            self.rest.drain(..MAX_PIECE);
        }
        Ok(())
    }

    /// All of it, as it is written down.
    fn finish(mut self, writer: &mut Writer, withheld: bool) -> io::Result<Content> {
        let rest = self.veiling.finish();
        self.rest.extend(rest);
        self.put(writer)?;
        if !self.rest.is_empty() {
            self.content.pieces.push(writer.piece(&self.rest)?);
        }
        if withheld {
            self.content.pieces.clear();
        }
        Ok(Content { withheld, ..self.content })
    }
}

impl Desk {
    fn work(mut self, jobs: &mpsc::Receiver<Job>, behind: &Behind) -> io::Result<()> {
        while let Ok(job) = jobs.recv() {
            let size = match &job {
                Job::Bytes { bytes, .. } | Job::Turn(_, _, bytes, _) => bytes.len(),
                _ => 0,
            };
            self.writer.hurry(behind.bytes.load(Ordering::Acquire) > MUCH_BEHIND);
            let done = self.job(job);
            let before = behind.bytes.fetch_sub(size, Ordering::AcqRel);
            if size > 0 && before.saturating_sub(size) <= MOST_BEHIND {
                behind.less.notify_waiters();
            }
            done?;
        }
        self.writer.finish()
    }

    fn job(&mut self, job: Job) -> io::Result<()> {
        match job {
            Job::Bytes { number, bytes, us } => {
                let veil = &self.veil;
                self.open.entry(number).or_insert_with(|| Taking::new(veil)).push(
                    &bytes,
                    us,
                    &mut self.writer,
                )
            }
            Job::Turn(number, way, bytes, us) => {
                let turns = self.turns.entry(number).or_default();
                turns.push(way, &bytes, us, &self.veil, &mut self.writer)
            }
            Job::Exchange(mut exchange, [body, answer]) => {
                for (number, content) in [(body, &mut exchange.body), (answer, &mut exchange.answer)] {
                    if let Some(taking) = self.open.remove(&number) {
                        *content = taking.finish(&mut self.writer, content.withheld)?;
                    }
                }
                exchange.answer.cut = exchange.error.is_some();
                self.writer.entry(&Entry::Exchange(exchange))
            }
            Job::Stream(mut stream, number) => {
                let mut turns = self.turns.remove(&number).unwrap_or_default();
                turns.turn(&mut self.writer)?;
                if turns.over.len() >= MOST_TURNS {
                    stream.error = Some("there were more turns than are kept".into());
                }
                stream.said = turns.over;
                self.writer.entry(&Entry::Stream(stream))
            }
            Job::Lookup(lookup) => self.writer.entry(&Entry::Lookup(lookup)),
            Job::Finish(done) => {
                self.writer.finish()?;
                // Whoever asked may be gone.
                let _ = done.send(());
                Ok(())
            }
        }
    }
}
