//! The cache as the worker knows it: it learns from indexes that go by, asks the supervisor for files, and has it keep those that come.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use belljar_core::{Rule, SandboxId};
use bytes::{Buf, Bytes, BytesMut};
use flate2::read::GzDecoder;
use hyper::body::{Frame, SizeHint};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue,
    IF_RANGE, RANGE, TRANSFER_ENCODING,
};
use hyper::{Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use url::Url;

use super::opened::Asked;
use super::outbox::Outbox;
use crate::cache::{
    Check, Credentials, Index, Learned, Room, Said, Wanted, credentials, may_be_one, read_index,
};
use crate::door::message::{Wish, Word};
use crate::policy::{Destination, decide};

/// The longest index that is read, as it comes and unpacked.
const LONGEST_INDEX: usize = 16 << 20;
const LONGEST_UNPACKED: u64 = 32 << 20;
/// How much is heard of indexes at a time, of all sandboxes and of one; in units.
const UNIT: usize = 64 << 10;
const MOST_HEARD: usize = (128 << 20) / UNIT;
const MOST_HEARD_OF_ONE: usize = (32 << 20) / UNIT;
/// How many are understood at a time: each takes a few times its length.
const MOST_READ: usize = 2;
/// How long whoever asks for a file waits for indexes that came before to be understood.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest address that is looked for.
const LONGEST_URL: usize = 2048;
/// How many files of one sandbox are brought at a time.
const MOST_BROUGHT: usize = 32;
/// How much of a file is read at a time.
const CHUNK: usize = 16 * 1024;

/// The header that says that an answer comes from here.
const FROM_HERE: &str = "x-belljar-cache";

/// What the sandboxes' caches share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    room: Room,
    /// Room for what is heard, and places to understand it.
    heard: Arc<Semaphore>,
    reading: Arc<Semaphore>,
}

impl Default for Shared {
    fn default() -> Self {
        let [heard, reading] = [MOST_HEARD, MOST_READ].map(|most| Arc::new(Semaphore::new(most)));
        Self { room: Room::default(), heard, reading }
    }
}

/// The cache of one sandbox.
#[derive(Debug)]
pub(super) struct Cache {
    sandbox: SandboxId,
    outbox: Outbox,
    /// The registries.
    of: Vec<Rule>,
    learned: Mutex<Learned>,
    /// How many indexes are being read.
    reading: watch::Sender<usize>,
    /// Room for what is heard, its own and of all, and places to understand it.
    heard: [Arc<Semaphore>; 2],
    places: Arc<Semaphore>,
    brought: Arc<Semaphore>,
}

/// A request that may be for a file, or for an index.
#[derive(Debug)]
pub(super) struct Question {
    url: Url,
    credentials: Option<Credentials>,
}

impl Cache {
    pub(super) fn new(sandbox: SandboxId, of: Vec<Rule>, outbox: Outbox, shared: Shared) -> Self {
        Self {
            sandbox,
            outbox,
            of,
            learned: Mutex::new(Learned::new(shared.room)),
            reading: watch::Sender::new(0),
            heard: [Arc::new(Semaphore::new(MOST_HEARD_OF_ONE)), shared.heard],
            places: shared.reading,
            brought: Arc::new(Semaphore::new(MOST_BROUGHT)),
        }
    }

    /// Whether this is one of the registries.
    pub(super) fn is_about(&self, destination: &Destination, port: u16) -> bool {
        self.of.iter().any(|rule| decide::covers(rule, destination, port))
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request is to the cache, if it is anything: one for all of something.
    pub(super) fn question(&self, asked: &Asked, headers: &HeaderMap) -> Option<Question> {
        let is_part = [RANGE, IF_RANGE, TRANSFER_ENCODING].iter().any(|name| headers.contains_key(name));
        let is_empty = headers.get(CONTENT_LENGTH).is_none_or(|length| length == "0");
        if asked.method != "GET" || is_part || !is_empty || !self.is_about(&asked.host, asked.port) {
            return None;
        }
        let scheme = if asked.tls { "https" } else { "http" };
        let url: Url = format!("{scheme}://{}:{}{}", asked.host, asked.port, asked.target).parse().ok()?;
        // What could be read in two ways is neither.
        if url[url::Position::BeforePath..] != asked.target || url.as_str().len() > LONGEST_URL {
            return None;
        }
        let credentials = credentials(&url, headers);
        Some(Question { url, credentials })
    }

    /// What must be found at an address, as far as indexes have said, once those that came before have been read.
    pub(super) async fn wanted(&self, question: &Question) -> Option<Wanted> {
        let mut reading = self.reading.subscribe();
        tokio::time::timeout(PATIENCE, reading.wait_for(|count| *count == 0)).await.ok()?.ok()?;
        self.learned().wanted(&question.url, question.credentials.as_ref())
    }

    fn word(&self, wanted: Wanted, wish: Wish) -> Word {
        Word::Cache { sandbox: self.sandbox.clone(), wanted, wish }
    }

    /// The answer that is kept, if there is one.
    pub(super) async fn find(self: &Arc<Self>, wanted: &Wanted) -> Option<Response<FromDisk>> {
        let (file, length) =
            self.outbox.handed(|serial| self.word(wanted.clone(), Wish::Find { serial })).await?;
        if length == 0 && !wanted.digest.check().passes() {
            self.outbox.say(self.word(wanted.clone(), Wish::Discard)).await;
            return None;
        }
        let body = FromDisk::new(self.clone(), wanted.clone(), file, length);
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        headers.insert(FROM_HERE, HeaderValue::from_static("hit"));
        Some(response)
    }

    /// Who listens to an answer: to keep it, or to learn from it.
    pub(super) async fn listen(
        self: &Arc<Self>,
        question: Question,
        wanted: Option<Wanted>,
        (status, headers): (StatusCode, &HeaderMap),
    ) -> Option<Ear> {
        if status != StatusCode::OK || headers.contains_key(CONTENT_RANGE) {
            return None;
        }
        let encoding = headers.get_all(CONTENT_ENCODING).iter().collect::<Vec<_>>();
        match wanted {
            Some(wanted) if encoding.is_empty() => self.bring(wanted).await.map(Ear::File),
            Some(_) => None,
            None => {
                let is_packed = match encoding[..] {
                    [] => false,
                    [one] if one == "gzip" || one == "x-gzip" => true,
                    _ => return None,
                };
                self.overhear(question, is_packed, headers).map(Ear::Index)
            }
        }
    }

    async fn bring(&self, wanted: Wanted) -> Option<Bringing> {
        let place = self.brought.clone().try_acquire_owned().ok()?;
        let (pipe, _) = self.outbox.handed(|serial| self.word(wanted, Wish::Keep { serial })).await?;
        let pipe = pipe::Sender::from_owned_fd(pipe).ok()?;
        Some(Bringing { pipe, rest: Bytes::new(), _place: place })
    }

    fn overhear(
        self: &Arc<Self>,
        question: Question,
        is_packed: bool,
        headers: &HeaderMap,
    ) -> Option<Overheard> {
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !may_be_one(&question.url, content_type, self.learned().registries()) {
            return None;
        }
        let (content_type, heard, room) = (content_type.to_owned(), Vec::new(), Vec::new());
        Some(Overheard { cache: self.clone(), question, content_type, is_packed, heard, room })
    }

    /// Learns from an index.
    fn learn(&self, question: Question, content_type: &str, body: &[u8]) {
        let registries = self.learned().registries().to_vec();
        match read_index(&question.url, content_type, body, &registries) {
            Some(Index::Files(named)) => {
                // Nobody waits for what takes long.
                let said = Said::new(&question.url, question.credentials, &named);
                self.learned().files(said);
            }
            Some(Index::Registry(registry)) => self.learned().registry(registry),
            None => {}
        }
    }
}

/// Asks for answers in a form that can be read: as plain as the client takes them.
pub(super) fn ask_plainly(headers: &mut HeaderMap) {
    let is_gzip = |word: &str| {
        let (name, quality) = word.split_once(';').unwrap_or((word, ""));
        let quality = quality.trim().strip_prefix("q=").and_then(|quality| quality.parse::<f32>().ok());
        name.trim() == "gzip" && quality.is_none_or(|quality| quality > 0.0)
    };
    let takes = |value: &HeaderValue| value.to_str().is_ok_and(|list| list.split(',').any(is_gzip));
    let is_packed = headers.get_all(ACCEPT_ENCODING).iter().any(takes);
    let encoding = HeaderValue::from_static(if is_packed { "gzip" } else { "identity" });
    headers.insert(ACCEPT_ENCODING, encoding);
}

/// Somebody who listens to an answer that goes by.
pub(super) enum Ear {
    Index(Overheard),
    File(Bringing),
}

impl Ear {
    /// Waits until more can be heard; whether there is any use in that.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match self {
            Self::Index(_) => Poll::Ready(true),
            Self::File(bringing) => bringing.poll(context),
        }
    }

    /// Hears more; whether there is any use in the rest.
    pub(super) fn hear(&mut self, bytes: &Bytes) -> bool {
        match self {
            Self::Index(overheard) => overheard.hear(bytes),
            Self::File(bringing) => {
                bringing.rest = bytes.clone();
                true
            }
        }
    }

    /// That was all of it.
    pub(super) fn end(self) {
        match self {
            Self::Index(overheard) => overheard.end(),
            Self::File(bringing) => drop(tokio::spawn(bringing.end())),
        }
    }
}

/// What may be an index, and is not over.
pub(super) struct Overheard {
    cache: Arc<Cache>,
    question: Question,
    content_type: String,
    is_packed: bool,
    heard: Vec<u8>,
    /// As much as was heard takes.
    room: Vec<OwnedSemaphorePermit>,
}

impl Overheard {
    fn hear(&mut self, bytes: &[u8]) -> bool {
        self.heard.extend_from_slice(bytes);
        while self.heard.len() > self.room.len() / 2 * UNIT {
            let [own, all] = self.cache.heard.clone().map(Semaphore::try_acquire_owned);
            let (Ok(own), Ok(all)) = (own, all) else { return false };
            self.room.extend([own, all]);
        }
        self.heard.len() <= LONGEST_INDEX
    }

    /// Reads it. Whoever asks for a file waits for that.
    fn end(self) {
        let Self { cache, question, content_type, is_packed, heard, room } = self;
        cache.reading.send_modify(|count| *count += 1);
        let places = cache.places.clone();
        let reading = Reading(cache);
        let read = move || {
            let _room = room;
            match unpacked(heard, is_packed) {
                Ok(body) => reading.0.learn(question, &content_type, &body),
                Err(error) => tracing::debug!(%error, "an index cannot be read"),
            }
        };
        tokio::spawn(async move {
            let _place = places.acquire().await;
            let _ = tokio::task::spawn_blocking(read).await;
        });
    }
}

/// An index that is being read.
struct Reading(Arc<Cache>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.reading.send_modify(|count| *count -= 1);
    }
}

fn unpacked(bytes: Vec<u8>, is_packed: bool) -> io::Result<Vec<u8>> {
    if !is_packed {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    GzDecoder::new(&bytes[..]).take(LONGEST_UNPACKED + 1).read_to_end(&mut unpacked)?;
    if unpacked.len() as u64 > LONGEST_UNPACKED {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(unpacked)
}

/// A file on its way to the supervisor.
pub(super) struct Bringing {
    pipe: pipe::Sender,
    /// What was heard and is not on its way yet.
    rest: Bytes,
    _place: OwnedSemaphorePermit,
}

impl Bringing {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        while !self.rest.is_empty() {
            if ready!(self.pipe.poll_write_ready(context)).is_err() {
                return Poll::Ready(false);
            }
            match self.pipe.try_write(&self.rest) {
                Ok(count) => self.rest.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(false),
            }
        }
        Poll::Ready(true)
    }

    async fn end(mut self) {
        // Whoever does not want it any more has said why.
        let _ = self.pipe.write_all(&self.rest).await;
    }
}

/// The body of an answer that is kept. What is not what it should be does not come to its end.
pub(super) struct FromDisk {
    cache: Arc<Cache>,
    wanted: Wanted,
    file: tokio::fs::File,
    left: u64,
    check: Option<Check>,
    buffer: BytesMut,
}

impl FromDisk {
    fn new(cache: Arc<Cache>, wanted: Wanted, file: OwnedFd, length: u64) -> Self {
        let mut file = tokio::fs::File::from_std(file.into());
        file.set_max_buf_size(CHUNK);
        let check = Some(wanted.digest.check());
        Self { cache, wanted, file, left: length, check, buffer: BytesMut::new() }
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }

    pub(super) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.buffer.resize(CHUNK, 0);
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.file).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= count as u64;
        let bytes = self.buffer.split_to(count).freeze();
        if let Some(check) = &mut self.check {
            check.push(&bytes);
        }
        let is_over = self.left == 0 || count == 0;
        if is_over && !(self.left == 0 && self.check.take().is_some_and(Check::passes)) {
            let (outbox, word) =
                (self.cache.outbox.clone(), self.cache.word(self.wanted.clone(), Wish::Discard));
            tokio::spawn(async move { outbox.say(word).await });
            let wrong = "what is kept of it is spoiled, and is thrown away; ask again";
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::InvalidData, wrong))));
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}
