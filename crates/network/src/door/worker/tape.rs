//! Writing down what a sandbox's network does, in a thread of its own: nobody who passes bytes on waits for a disk, but where more
//! comes than can be written.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::task::{Context, Poll, ready};

use belljar_core::{ExecId, HostName, Record, RecordingPlan, SandboxId};
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use tokio::sync::{Notify, oneshot, watch};
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
/// The most turns of one conversation.
const MOST_TURNS: usize = 8192;
/// How bodies begin that are packed, as gzip and as zstd.
const PACKED: [&[u8]; 2] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd]];
/// Words in the type of an answer that is to be read, and not a file that may be packed.
const READABLE: [&str; 6] = ["text", "json", "xml", "html", "javascript", "urlencoded"];

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
        keep: Keep,
    },
    /// A request is over, with these as its contents.
    Exchange(Box<Exchange>, [Number; 2]),
    /// The next of a conversation.
    Turn {
        number: Number,
        way: Way,
        said: Said,
        us: u64,
    },
    /// A conversation is over.
    Stream(Box<Stream>, Number),
    Lookup(Lookup),
    /// Write the index, and say when that is done.
    Finish(oneshot::Sender<()>),
}

/// Whether a body is kept: not where something that is known to be secret could be in there, and nobody would see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keep {
    #[default]
    Always,
    UnlessPacked,
    Never,
}

/// Bytes of a conversation, of which some are heads of frames.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) bytes: Vec<u8>,
    pub(super) heads: Vec<Range<usize>>,
}

impl From<Vec<u8>> for Said {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, heads: Vec::new() }
    }
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
    /// Why no more is written, once that is so.
    ended: watch::Receiver<Option<String>>,
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
        let (end, ended) = watch::channel(None);
        thread.spawn(move || {
            if let Err(error) = desk.work(&work, &behind_too) {
                tracing::error!(sandbox = %id, %error, "the recording ends here: nothing more goes through");
                end.send_replace(Some(error.to_string()));
            }
            // Nobody waits for one who is gone.
            while let Ok(job) = work.recv() {
                drop(job);
                behind_too.bytes.store(0, Ordering::Release);
                behind_too.less.notify_waiters();
            }
        })?;
        Ok(Self { jobs, behind, veil, how, next: AtomicU64::new(0), ended })
    }

    /// Why no more is written, if that is so.
    pub(super) fn ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// Waits until no more is written, and says why.
    pub(super) async fn ends(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // It has come to its proper end.
            _ => std::future::pending().await,
        }
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

    fn bytes(&self, number: Number, bytes: Bytes, us: u64, keep: Keep) {
        self.behind.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        self.say(Job::Bytes { number, bytes, us, keep });
    }

    /// A name was looked up.
    pub(super) fn lookup(&self, name: &HostName, found: bool) {
        self.say(Job::Lookup(Lookup { at_ms: now_ms(), name: self.veil.host(name.as_str()), found }));
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
    /// What becomes of the bodies, once it is known.
    keep: [OnceLock<Keep>; 2],
    began: Instant,
}

impl Taped {
    pub(super) fn new(recorder: Arc<Recorder>, exec: Option<ExecId>, mut exchange: Exchange) -> Self {
        exchange.at_ms = now_ms();
        exchange.exec = exec.map(|exec| exec.0);
        exchange.host = recorder.veil.host(&exchange.host);
        exchange.method = recorder.veil.method(&exchange.method);
        let numbers = [recorder.number(), recorder.number()];
        let keep = Default::default();
        Self { recorder, exchange: Mutex::new(exchange), numbers, keep, began: Instant::now() }
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
        self.keep[0].get_or_init(|| self.keeps(headers, true));
    }

    /// The head of the answer.
    pub(super) fn answered(&self, status: u16, headers: &HeaderMap) {
        let mut exchange = self.exchange();
        exchange.status = status;
        exchange.waited_us = self.us();
        exchange.answer_headers = self.recorder.veil.headers(headers);
        let kind =
            headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()).to_lowercase());
        let is_readable = kind.is_some_and(|kind| READABLE.iter().any(|word| kind.contains(word)));
        self.keep[1].get_or_init(|| self.keeps(headers, is_readable));
    }

    /// What becomes of a body with these headers, which should be readable or may be a file.
    fn keeps(&self, headers: &HeaderMap, is_readable: bool) -> Keep {
        if self.recorder.veil.is_empty() {
            Keep::Always
        } else if is_encoded(headers) {
            Keep::Never
        } else if is_readable {
            Keep::UnlessPacked
        } else {
            Keep::Always
        }
    }

    /// More of one of the bodies, or what is behind it.
    pub(super) fn frame(&self, way: Way, frame: &Frame<Bytes>) {
        if let Some(bytes) = frame.data_ref() {
            self.pass(way, bytes);
        }
        if let Some(trailers) = frame.trailers_ref() {
            self.trailers(way, trailers);
        }
    }

    fn pass(&self, way: Way, bytes: &Bytes) {
        let us = self.us();
        let at = way_index(way);
        let keep = self.keep[at].get().copied().unwrap_or_default();
        self.recorder.bytes(self.numbers[at], bytes.clone(), us, keep);
    }

    fn trailers(&self, way: Way, trailers: &HeaderMap) {
        let trailers = self.recorder.veil.headers(trailers);
        let mut exchange = self.exchange();
        match way {
            Way::Out => exchange.trailers = trailers,
            Way::In => exchange.answer_trailers = trailers,
        }
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
    /// What is written of it, if anything is.
    stream: Mutex<Option<Box<Stream>>>,
    number: Number,
    began: Instant,
    /// Who spoke last, and how many turns there were.
    turns: Mutex<(Option<Way>, usize)>,
}

impl Conversation {
    pub(super) fn new(recorder: Arc<Recorder>, exec: Option<ExecId>, host: &str, port: u16) -> Self {
        let exec = exec.map(|exec| exec.0);
        let host = recorder.veil.host(host);
        Self::of(recorder, Stream { at_ms: now_ms(), exec, host, port, ..Stream::default() })
    }

    fn of(recorder: Arc<Recorder>, stream: Stream) -> Self {
        let (number, stream) = (recorder.number(), Mutex::new(Some(Box::new(stream))));
        Self { recorder, stream, number, began: Instant::now(), turns: Mutex::default() }
    }

    fn turns(&self) -> MutexGuard<'_, (Option<Way>, usize)> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Box<Stream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether nobody has said anything.
    pub(super) fn is_silent(&self) -> bool {
        self.turns().1 == 0
    }

    /// It is told in other words.
    pub(super) fn forget(&self) {
        self.take();
    }

    /// To be asked before something is passed on: whether it would be written down.
    pub(super) fn hear(&self, way: Way) -> io::Result<()> {
        if let Some(why) = self.recorder.ended() {
            return Err(io::Error::other(format!("the recording ended: {why}")));
        }
        let mut turns = self.turns();
        let (last, count) = &mut *turns;
        if last.replace(way) != Some(way) {
            *count += 1;
        }
        if *count <= MOST_TURNS {
            return Ok(());
        }
        let error =
            format!("there were more turns than the {MOST_TURNS} that are recorded of one conversation");
        if let Some(stream) = &mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            stream.error = Some(error.clone());
        }
        Err(io::Error::other(error))
    }

    /// More of what one side says, after that; waits where more has come than can be written.
    pub(super) async fn say(&self, way: Way, said: impl Into<Said>) {
        let said = said.into();
        self.recorder.behind.bytes.fetch_add(said.bytes.len(), Ordering::AcqRel);
        let us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.recorder.say(Job::Turn { number: self.number, way, said, us });
        self.recorder.keep_up().await;
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(stream) = self.take() {
            self.recorder.say(Job::Stream(stream, self.number));
        }
    }
}

/// Where it is written.
struct Desk {
    writer: Writer,
    veil: Arc<Veil>,
    open: HashMap<Number, Taking>,
    turns: HashMap<Number, Turns>,
}

fn way_index(way: Way) -> usize {
    match way {
        Way::Out => 0,
        Way::In => 1,
    }
}

/// A conversation: what has been said by turns.
struct Turns {
    all: Vec<(Way, Content)>,
    /// What each side says, whose secrets may go on from turn to turn.
    voices: [Voice; 2],
}

/// What one side says.
struct Voice {
    veiling: Veiling,
    /// What is written for turns of which not everything can be yet, in order: which, how much is due, and what of it is there.
    open: VecDeque<(usize, usize, Vec<u8>)>,
}

impl Voice {
    /// Gives to each turn what is its own of this.
    fn give(&mut self, mut veiled: &[u8], all: &mut [(Way, Content)], writer: &mut Writer) -> io::Result<()> {
        // The last may go on.
        let last = all.len().saturating_sub(1);
        while let Some((turn, due, rest)) = self.open.front_mut() {
            let (now, later) = veiled.split_at((*due).min(veiled.len()));
            rest.extend_from_slice(now);
            (*due, veiled) = (*due - now.len(), later);
            let is_over = *due == 0 && *turn != last;
            put(rest, &mut all[*turn].1, is_over, writer)?;
            if !is_over {
                break;
            }
            self.open.pop_front();
        }
        Ok(())
    }

    fn finish(mut self, all: &mut [(Way, Content)], writer: &mut Writer) -> io::Result<()> {
        let veiled = self.veiling.finish();
        self.give(&veiled, all, writer)?;
        for (turn, _, mut rest) in self.open {
            put(&mut rest, &mut all[turn].1, true, writer)?;
        }
        Ok(())
    }
}

impl Turns {
    fn new(veil: &Veil) -> Self {
        let voice = || Voice { veiling: veil.veiling(), open: VecDeque::new() };
        Self { all: Vec::new(), voices: [voice(), voice()] }
    }

    fn push(&mut self, way: Way, said: &Said, us: u64, writer: &mut Writer) -> io::Result<()> {
        if self.all.last().is_none_or(|(last, _)| *last != way) {
            self.all.push((way, Content::default()));
        }
        let turn = self.all.len() - 1;
        mark(&mut self.all[turn].1, said.bytes.len(), us);
        let voice = &mut self.voices[way_index(way)];
        match voice.open.back_mut() {
            Some((last, due, _)) if *last == turn => *due += said.bytes.len(),
            _ => voice.open.push_back((turn, said.bytes.len(), Vec::new())),
        }
        let veiled = voice.veiling.pass_framed(&said.bytes, &said.heads);
        voice.give(&veiled, &mut self.all, writer)
    }

    fn finish(mut self, writer: &mut Writer) -> io::Result<Vec<(Way, Content)>> {
        for voice in self.voices {
            voice.finish(&mut self.all, writer)?;
        }
        Ok(self.all)
    }
}

/// Takes note that so many bytes came.
fn mark(content: &mut Content, bytes: usize, us: u64) {
    content.length += bytes as u64;
    let is_full = content.marks.len() >= MOST_MARKS;
    match content.marks.last_mut() {
        Some((length, last)) if is_full || us.saturating_sub(*last) < TOGETHER => *length += bytes as u64,
        _ => content.marks.push((bytes as u64, us)),
    }
}

/// Writes whole pieces of what there is, and the rest if that is all.
fn put(rest: &mut Vec<u8>, content: &mut Content, is_over: bool, writer: &mut Writer) -> io::Result<()> {
    while rest.len() >= MAX_PIECE {
        content.pieces.push(writer.piece(&rest[..MAX_PIECE])?);
        rest.drain(..MAX_PIECE);
    }
    if is_over && !rest.is_empty() {
        content.pieces.push(writer.piece(rest)?);
        rest.clear();
    }
    Ok(())
}

/// A body of which more may come.
struct Taking {
    veiling: Veiling,
    keep: Keep,
    /// How it begins.
    first: Vec<u8>,
    /// What is not yet a whole piece.
    rest: Vec<u8>,
    content: Content,
}

impl Taking {
    fn new(veil: &Veil, keep: Keep) -> Self {
        let (veiling, content) = (veil.veiling(), Content::default());
        Self { veiling, keep, first: Vec::new(), rest: Vec::new(), content }
    }

    /// Whether nothing of it is written.
    fn is_withheld(&self) -> bool {
        match self.keep {
            Keep::Always => false,
            Keep::UnlessPacked => PACKED.iter().any(|packed| self.first.starts_with(packed)),
            Keep::Never => true,
        }
    }

    fn push(&mut self, bytes: &[u8], us: u64, writer: &mut Writer) -> io::Result<()> {
        mark(&mut self.content, bytes.len(), us);
        let missing = PACKED[1].len().saturating_sub(self.first.len());
        self.first.extend(bytes.iter().take(missing));
        if self.is_withheld() {
            return Ok(());
        }
        self.rest.extend(self.veiling.pass(bytes));
        put(&mut self.rest, &mut self.content, false, writer)
    }

    /// All of it, as it is written down.
    fn finish(mut self, writer: &mut Writer) -> io::Result<Content> {
        if self.is_withheld() {
            return Ok(Content { withheld: true, ..self.content });
        }
        self.rest.extend(self.veiling.finish());
        put(&mut self.rest, &mut self.content, true, writer)?;
        Ok(self.content)
    }
}

impl Desk {
    fn work(mut self, jobs: &mpsc::Receiver<Job>, behind: &Behind) -> io::Result<()> {
        loop {
            if self.writer.is_full() {
                self.writer.finish()?;
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "it has as many bytes as it may have",
                ));
            }
            let Ok(job) = jobs.recv() else { break };
            let size = match &job {
                Job::Bytes { bytes, .. } => bytes.len(),
                Job::Turn { said, .. } => said.bytes.len(),
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
            Job::Bytes { number, bytes, us, keep } => {
                let taking = self.open.entry(number).or_insert_with(|| Taking::new(&self.veil, keep));
                taking.push(&bytes, us, &mut self.writer)
            }
            Job::Turn { number, way, said, us } => {
                let turns = self.turns.entry(number).or_insert_with(|| Turns::new(&self.veil));
                turns.push(way, &said, us, &mut self.writer)
            }
            Job::Exchange(mut exchange, [body, answer]) => {
                for (number, content) in [(body, &mut exchange.body), (answer, &mut exchange.answer)] {
                    if let Some(taking) = self.open.remove(&number) {
                        *content = taking.finish(&mut self.writer)?;
                    }
                }
                exchange.answer.cut = exchange.error.is_some();
                self.writer.entry(&Entry::Exchange(exchange))
            }
            Job::Stream(mut stream, number) => {
                if let Some(turns) = self.turns.remove(&number) {
                    stream.said = turns.finish(&mut self.writer)?;
                }
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

#[cfg(test)]
mod tests {
    use belljar_core::{ByteSize, Recording};
    use hyper::header::{CONTENT_ENCODING, HeaderValue};

    use super::*;
    use crate::recording::{Reader, What};

    const SECRET: &str = "s3cret/value+1";

    fn recorder(most: u64) -> (Arc<Recorder>, File) {
        let name = "r".parse().unwrap();
        let (closed, secrets, headers) = Default::default();
        let how = Record { name, most: ByteSize(most), closed, secrets, headers };
        let plan = RecordingPlan {
            how: Recording::Record(how.clone()),
            secrets: vec![SECRET.into()],
            env: Default::default(),
        };
        let file = tempfile::tempfile().unwrap();
        let sandbox = "bj-aaaaaaaaaaaaa".parse().unwrap();
        (Arc::new(Recorder::new(&sandbox, how, &plan, file.try_clone().unwrap()).unwrap()), file)
    }

    async fn entries(recorder: &Recorder, file: &File) -> (Reader, Vec<Entry>) {
        recorder.finish().await;
        let reader = Reader::new(file.try_clone().unwrap()).unwrap();
        let entries = reader.entries().iter().map(|entry| reader.entry(entry).unwrap()).collect();
        (reader, entries)
    }

    /// Bytes that cannot be made smaller.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    #[tokio::test]
    async fn what_cannot_be_looked_into_is_not_written_at_all() {
        let (recorder, file) = recorder(1 << 30);
        let body = |first: &[u8]| Frame::data(Bytes::from([first, &noise(300_000)].concat()));
        for (name, value, first, is_kept) in [
            (CONTENT_ENCODING, "gzip", &b"xx"[..], false),
            (CONTENT_TYPE, "application/json", &[0x1f, 0x8b], false),
            (CONTENT_TYPE, "text/plain", &[0x28, 0xb5, 0x2f, 0xfd], false),
            (CONTENT_TYPE, "text/plain", b"xx", true),
            (CONTENT_TYPE, "application/octet-stream", &[0x1f, 0x8b], true),
        ] {
            let before = file.metadata().unwrap().len();
            let taped = Taped::new(recorder.clone(), None, Exchange::default());
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            taped.asked(&HeaderMap::new());
            taped.answered(200, &headers);
            taped.frame(Way::In, &Frame::data(Bytes::copy_from_slice(&first[..1])));
            taped.frame(Way::In, &body(&first[1..]));
            let trailers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(SECRET))]);
            taped.frame(Way::In, &Frame::trailers(trailers));
            drop(taped);
            let (_, entries) = entries(&recorder, &file).await;
            let Some(Entry::Exchange(exchange)) = entries.last() else { panic!("{entries:?}") };
            let Content { length, withheld, pieces, .. } = &exchange.answer;
            assert_eq!(*length, 300_000 + first.len() as u64);
            assert_eq!((*withheld, pieces.is_empty()), (!is_kept, !is_kept), "{value}");
            let written = file.metadata().unwrap().len() - before;
            assert_eq!(written > 50_000, is_kept, "{value}: {written}");
            assert_eq!(exchange.answer_trailers[0].1, "*".repeat(SECRET.len()));
        }
    }

    #[tokio::test]
    async fn secrets_are_found_though_they_are_said_by_turns() {
        let (recorder, file) = recorder(1 << 30);
        let conversation = Conversation::new(recorder.clone(), None, "a.example", 1);
        for letter in SECRET.bytes().chain(*b"!") {
            for (way, bytes) in [(Way::Out, vec![letter]), (Way::In, b"ok".to_vec())] {
                conversation.hear(way).unwrap();
                conversation.say(way, bytes).await;
            }
        }
        drop(conversation);
        let (reader, entries) = entries(&recorder, &file).await;
        let Some(Entry::Stream(stream)) = entries.last() else { panic!("{entries:?}") };
        let mut said = [String::new(), String::new()];
        for (way, content) in &stream.said {
            let bytes = reader.content(content, 100).unwrap();
            assert_eq!(bytes.len() as u64, content.length);
            said[way_index(*way)].push_str(std::str::from_utf8(&bytes).unwrap());
        }
        assert_eq!(said, ["*".repeat(SECRET.len()) + "!", "ok".repeat(SECRET.len() + 1)]);
        assert_eq!(stream.said.len(), 2 * SECRET.len() + 2);
    }

    #[tokio::test]
    async fn nothing_is_passed_on_that_is_not_written() {
        let (recorder, file) = recorder(1 << 30);
        let conversation = Conversation::new(recorder.clone(), None, "a.example", 1);
        assert!(conversation.is_silent());
        for turn in 0..MOST_TURNS {
            conversation.hear(if turn % 2 == 0 { Way::Out } else { Way::In }).unwrap();
        }
        conversation.hear(Way::In).expect("the last goes on");
        let error = conversation.hear(Way::Out).unwrap_err().to_string();
        assert!(error.contains("more turns"), "{error}");
        drop(conversation);
        let (_, entries) = entries(&recorder, &file).await;
        assert!(
            matches!(entries.last(), Some(Entry::Stream(stream)) if stream.error.is_some()),
            "{entries:?}"
        );
        // Where there is no room for more, nothing goes on.
        let (recorder, file) = self::recorder(100_000);
        let conversation = Conversation::new(recorder.clone(), None, "a.example", 1);
        conversation.hear(Way::Out).unwrap();
        assert_eq!(recorder.ended(), None);
        conversation.say(Way::Out, noise(300_000)).await;
        let why = recorder.ends().await;
        assert!(why.contains("as many bytes"), "{why}");
        assert!(conversation.hear(Way::Out).unwrap_err().to_string().contains(&why));
        let reader = Reader::new(file).unwrap();
        assert_eq!(reader.entries().last().unwrap().kind, What::Full);
    }
}
