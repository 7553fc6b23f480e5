//! Who asks: an engine that serves elsewhere, as a provider.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::wire::{Frame, FrameKind, MAX_DATA, stream};
use belljar_core::{
    ByteStream, Call, Capabilities, Capability, Control, Ending, Entry, Error, ErrorCode, ExecEvent,
    ExecHandle, ExecId, ExecInfo, ExecRequest, ExecResult, Execs, FilePath, Files, FlowStream, Gateway,
    Grant, Issued, Network, NetworkPolicy, Position, Provider, ProviderName, PtySize, Result, Sandbox,
    SandboxId, SandboxInfo, SandboxSpec, SandboxState, SandboxStats, Stdin, TokenRecord, UserName,
    WatchEvent,
};
use belljar_providers::frames::{self, FrameReceiver, FrameSender};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::{Answer, Ask, CONVERSATION, Open, Operation, PROTOCOL, SOCKET_FILE};
use crate::event::Event;
use crate::meter::Meter;
use crate::price::Cost;
use crate::session::{Session, SessionRequest, Tenant};
use crate::store::{Accepted, Page, Query};

/// An engine that serves a data directory.
#[derive(Clone, Debug)]
pub struct Client {
    home: PathBuf,
    provider: ProviderName,
    capabilities: Capabilities,
    epoch: u64,
}

/// How often an engine that dies while it is greeted is greeted again.
const GREETINGS: u32 = 20;
/// How long it is given each time.
const MOMENT: Duration = Duration::from_millis(20);

/// A conversation with the engine.
struct Talk {
    sender: FrameSender,
    receiver: FrameReceiver,
}

enum Incoming {
    Answer(Answer),
    Data { stream: u8, bytes: Vec<u8> },
}

impl Talk {
    async fn begin(socket: UnixStream, ask: Ask) -> Result<Self> {
        let (mut sender, receiver) = frames::split(socket);
        sender.begin(&Frame::control(CONVERSATION, &Open { protocol: PROTOCOL, ask })).await?;
        Ok(Self { sender, receiver })
    }

    async fn next(&mut self) -> Result<Incoming> {
        incoming(self.receiver.next().await)
    }

    /// The one answer to a question.
    async fn answer(&mut self) -> Result<Answer> {
        match self.next().await? {
            Incoming::Answer(answer) => Ok(answer),
            Incoming::Data { .. } => Err(unexpected("data")),
        }
    }
}

fn incoming(frame: std::io::Result<Option<Frame>>) -> Result<Incoming> {
    let frame = frame.map_err(|error| unexpected(&error.to_string()))?.ok_or_else(lost)?;
    match frame.kind {
        FrameKind::Data(stream) => Ok(Incoming::Data { stream, bytes: frame.payload }),
        FrameKind::Control => match frame.message::<Answer>() {
            Ok(Answer::Failed(error)) => Err(error),
            Ok(answer) => Ok(Incoming::Answer(answer)),
            Err(error) => Err(unexpected(&error.to_string())),
        },
        FrameKind::Credit(_) => Err(unexpected("credit")),
    }
}

fn lost() -> Error {
    Error::new(ErrorCode::Lost, "contact with the engine was lost; what happened to the call is not known")
        .hint("sandboxes go on without it; `belljar ls` shows them")
}

fn unexpected(what: &str) -> Error {
    Error::new(ErrorCode::Version, format!("cannot understand the engine: {what}"))
        .hint("restart the engine with this version of Belljar")
}

/// Turns an answer into what was asked for.
macro_rules! expect {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => Err(unexpected(&format!("{other:?}").chars().take(80).collect::<String>())),
        }
    };
}

/// A list that comes in parts.
macro_rules! list {
    ($talk:expr, $part:ident) => {{
        let (mut talk, mut all) = ($talk, Vec::new());
        loop {
            match talk.answer().await? {
                Answer::$part(some) => all.extend(some),
                last => return expect!(last, Answer::Done => all),
            }
        }
    }};
}

impl Client {
    /// The engine that serves this data directory; `None` if none does.
    pub async fn find(home: &Path) -> Result<Option<Self>> {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let (provider, capabilities) = (ProviderName::Jail, Capabilities::default());
        let nobody = Self { home: home.to_owned(), provider, capabilities, epoch: 0 };
        for _ in 0..GREETINGS {
            let socket = match frames::connect_in(home, SOCKET_FILE).await {
                Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => return Ok(None),
                connected => connected.map_err(|error| {
                    Error::new(ErrorCode::Internal, format!("cannot reach the engine: {error}"))
                })?,
            };
            match Talk::begin(socket, Ask::Hello).await?.answer().await {
                // It died in this moment. Another may come, or none.
                Err(error) if error.code == ErrorCode::Lost => tokio::time::sleep(MOMENT).await,
                greeted => {
                    return expect!(greeted?, Answer::Welcome { provider, capabilities, epoch } =>
                        Some(Self { provider, capabilities, epoch, ..nobody }));
                }
            }
        }
        Err(lost())
    }

    /// Which engine it is: each has a higher number than the one before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Connects and asks. An engine that was there and is not any more is lost, not missing: what it was to look for may
    /// well be there.
    async fn open(&self, ask: Ask) -> Result<Talk> {
        let socket = frames::connect_in(&self.home, SOCKET_FILE).await.map_err(|_| lost())?;
        Talk::begin(socket, ask).await
    }

    async fn ask(&self, ask: Ask) -> Result<Answer> {
        self.open(ask).await?.answer().await
    }

    /// Makes a session, or finds the one that was made for the same key.
    pub async fn session_for(&self, request: SessionRequest) -> Result<Accepted> {
        let ask = Ask::Create { request: Box::new(request), hold: false };
        expect!(self.ask(ask).await?, Answer::Accepted(accepted) => *accepted)
    }

    /// What is remembered of a session.
    pub async fn session(&self, id: &SandboxId) -> Result<Session> {
        expect!(self.ask(Ask::Session(id.clone())).await?, Answer::Session(session) => *session)
    }

    /// Some sessions.
    pub async fn sessions(&self, query: Query) -> Result<Page> {
        expect!(self.ask(Ask::Sessions(query)).await?, Answer::Sessions(page) => page)
    }

    /// A session's log after this number, once there is something or the session has ended.
    pub async fn events(&self, id: &SandboxId, after: u64, limit: u32) -> Result<Vec<Event>> {
        let ask = Ask::Events { id: id.clone(), after, limit };
        expect!(self.ask(ask).await?, Answer::Events(events) => events)
    }

    /// The number of the last entry in a session's log.
    pub async fn last_event(&self, id: &SandboxId) -> Result<u64> {
        expect!(self.ask(Ask::LastEvent(id.clone())).await?, Answer::Count(number) => number)
    }

    /// What a tenant's ended sessions used.
    pub async fn used(&self, tenant: &Tenant) -> Result<(Meter, Cost)> {
        expect!(self.ask(Ask::Used(tenant.clone())).await?, Answer::Used { meter, cost } => (meter, cost))
    }
}

#[async_trait]
impl Provider for Client {
    fn name(&self) -> ProviderName {
        self.provider
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        // It is tied to this connection, not to the engine.
        let hold = std::mem::take(&mut spec.tied_to_creator);
        let request = Box::new(SessionRequest { spec, ..SessionRequest::default() });
        let mut talk = self.open(Ask::Create { request, hold }).await?;
        let accepted = expect!(talk.answer().await?, Answer::Accepted(accepted) => *accepted)?;
        let tie = hold.then_some(talk);
        Ok(Arc::new(Remote { client: self.clone(), id: accepted.session().id.clone(), _tie: tie }))
    }

    async fn open(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        let remote = Remote { client: self.clone(), id: id.clone(), _tie: None };
        expect!(remote.ask(Operation::Exists).await?, Answer::Exists(_) => ())?;
        Ok(Arc::new(remote))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        list!(self.open(Ask::List).await?, Sandboxes)
    }
}

/// A sandbox of an engine.
struct Remote {
    client: Client,
    id: SandboxId,
    /// While this lives, so does the sandbox.
    _tie: Option<Talk>,
}

impl Remote {
    async fn open(&self, what: Operation) -> Result<Talk> {
        self.client.open(Ask::Of { id: self.id.clone(), what: Box::new(what) }).await
    }

    async fn ask(&self, what: Operation) -> Result<Answer> {
        self.open(what).await?.answer().await
    }

    async fn done(&self, what: Operation) -> Result<()> {
        expect!(self.ask(what).await?, Answer::Done => ())
    }

    /// Sends bytes and waits for what came of them, which may be before all were sent.
    async fn feed(&self, what: Operation, mut content: ByteStream) -> Result<Answer> {
        let Talk { mut sender, mut receiver } = self.open(what).await?;
        let feed = async {
            while let Some(piece) = content.next().await {
                for part in piece?.chunks(MAX_DATA) {
                    if sender.send(&Frame::data(CONVERSATION, stream::INPUT, part)).await.is_err() {
                        // It has said why.
                        return Ok(());
                    }
                }
            }
            let _ = sender.send(&Frame::end(CONVERSATION, stream::INPUT)).await;
            Ok::<(), Error>(())
        };
        let answered = async {
            match incoming(receiver.next().await)? {
                Incoming::Answer(answer) => Ok(answer),
                Incoming::Data { .. } => Err(unexpected("data")),
            }
        };
        tokio::pin!(answered);
        tokio::select! {
            biased;
            answer = &mut answered => answer,
            fed = feed => {
                fed?;
                answered.await
            }
        }
    }

    /// The bytes that an operation sends.
    async fn take(&self, what: Operation) -> Result<ByteStream> {
        let mut talk = self.open(what).await?;
        let first = piece(&mut talk).await?;
        let rest = futures_util::stream::unfold(Some(talk), |talk| async {
            let mut talk = talk?;
            match piece(&mut talk).await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(talk))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(match first {
            Some(bytes) => Box::pin(futures_util::stream::once(async { Ok(bytes) }).chain(rest)),
            None => Box::pin(futures_util::stream::empty()),
        })
    }

    async fn follow(&self, what: Operation) -> Result<Following> {
        let Talk { sender, receiver } = self.open(what).await?;
        let mut reading = Reading { receiver, first: None, finished: false };
        reading.first = reading.next().await?;
        Ok(Following { sender: Mutex::new(sender), reading: Mutex::new(reading) })
    }
}

async fn piece(talk: &mut Talk) -> Result<Option<Bytes>> {
    match talk.next().await? {
        Incoming::Data { bytes, .. } => Ok(Some(bytes.into())),
        Incoming::Answer(answer) => expect!(answer, Answer::Done => None),
    }
}

struct Following {
    sender: Mutex<FrameSender>,
    reading: Mutex<Reading>,
}

struct Reading {
    receiver: FrameReceiver,
    /// Read ahead, when following began.
    first: Option<ExecEvent>,
    finished: bool,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<ExecEvent>> {
        if self.finished {
            return Ok(None);
        }
        if let Some(event) = self.first.take() {
            return Ok(Some(event));
        }
        Ok(Some(match incoming(self.receiver.next().await)? {
            Incoming::Data { stream: number, bytes } => {
                ExecEvent::Output { stream: stream::output(number), bytes: bytes.into() }
            }
            Incoming::Answer(Answer::Started { exec, start_us }) => {
                ExecEvent::Started { exec, start: Duration::from_micros(start_us) }
            }
            Incoming::Answer(Answer::Gap { stream, bytes }) => ExecEvent::Gap { stream, bytes },
            Incoming::Answer(Answer::Denied(denied)) => ExecEvent::Denied(denied),
            Incoming::Answer(answer) => {
                let Ending { termination, usage, duration, oom_kills } =
                    expect!(answer, Answer::Finished(ending) => ending)?;
                self.finished = true;
                ExecEvent::Finished { termination, usage, duration, oom_kills }
            }
        }))
    }
}

#[async_trait]
impl ExecHandle for Following {
    async fn next(&self) -> Result<Option<ExecEvent>> {
        self.reading.lock().await.next().await
    }

    async fn write(&self, input: Bytes) -> Result<()> {
        let mut sender = self.sender.lock().await;
        if input.is_empty() {
            return sender.send(&Frame::end(CONVERSATION, stream::INPUT)).await.map_err(|_| lost());
        }
        for part in input.chunks(MAX_DATA) {
            sender.send(&Frame::data(CONVERSATION, stream::INPUT, part)).await.map_err(|_| lost())?;
        }
        Ok(())
    }
}

#[async_trait]
impl Sandbox for Remote {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn provider(&self) -> ProviderName {
        self.client.provider
    }

    async fn execute(&self, mut request: ExecRequest) -> Result<ExecResult> {
        request.check()?;
        // Nobody can send input here, and a command that waited for it would wait in vain.
        request.stdin = Stdin::Empty;
        let handle = self.follow(Operation::Exec { request, kill_on_close: true }).await?;
        let mut events = Vec::new();
        while let Some(event) = handle.next().await? {
            events.push(event);
        }
        Ok(ExecResult::collect(events))
    }

    async fn upload(&self, path: &FilePath, user: UserName, content: ByteStream) -> Result<u64> {
        let what = Operation::Upload { path: path.clone(), user };
        expect!(self.feed(what, content).await?, Answer::Count(bytes) => bytes)
    }

    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        self.take(Operation::Download { path: path.clone(), user }).await
    }

    async fn cleanup(&self) -> Result<()> {
        match self.done(Operation::Cleanup).await {
            Err(error) if error.code == ErrorCode::NotFound => Ok(()),
            done => done,
        }
    }

    fn execs(&self) -> Result<&dyn Execs> {
        Ok(self)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self)
    }

    fn control(&self) -> Result<&dyn Control> {
        Ok(self)
    }

    fn network(&self) -> Result<&dyn Network> {
        match self.client.capabilities.has(Capability::Network) {
            true => Ok(self),
            false => Err(Error::unsupported(self.client.provider, Capability::Network)),
        }
    }

    fn gateway(&self) -> Result<&dyn Gateway> {
        match self.client.capabilities.has(Capability::Network) {
            true => Ok(self),
            false => Err(Error::unsupported(self.client.provider, Capability::Network)),
        }
    }
}

#[async_trait]
impl Gateway for Remote {
    async fn issue(&self, grant: Grant) -> Result<Issued> {
        grant.check()?;
        let what = Operation::IssueToken { grant: Box::new(grant) };
        expect!(self.ask(what).await?, Answer::Issued(issued) => *issued)
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        list!(self.open(Operation::Tokens).await?, Tokens)
    }

    async fn revoke(&self, id: &str) -> Result<TokenRecord> {
        let what = Operation::RevokeToken { token: id.to_owned() };
        expect!(self.ask(what).await?, Answer::Token(record) => *record)
    }

    async fn extend(&self, id: &str, life: Duration) -> Result<TokenRecord> {
        Grant::check_life(life)?;
        let what = Operation::ExtendToken { token: id.to_owned(), life };
        expect!(self.ask(what).await?, Answer::Token(record) => *record)
    }

    async fn renew(&self) -> Result<()> {
        self.done(Operation::RenewTokens).await
    }

    async fn calls(&self, after: u64) -> Result<Vec<Call>> {
        list!(self.open(Operation::Calls { after }).await?, Calls)
    }
}

#[async_trait]
impl Execs for Remote {
    async fn start(&self, request: ExecRequest) -> Result<Box<dyn ExecHandle>> {
        request.check()?;
        Ok(Box::new(self.follow(Operation::Exec { request, kill_on_close: false }).await?))
    }

    async fn attach(&self, exec: ExecId, from: Position) -> Result<Box<dyn ExecHandle>> {
        Ok(Box::new(self.follow(Operation::Attach { exec, from }).await?))
    }

    async fn wait(&self, exec: ExecId) -> Result<Ending> {
        expect!(self.ask(Operation::Wait { exec }).await?, Answer::Finished(ending) => ending)
    }

    async fn list(&self) -> Result<Vec<ExecInfo>> {
        list!(self.open(Operation::Executions).await?, Executions)
    }

    async fn signal(&self, exec: ExecId, signal: i32) -> Result<()> {
        self.done(Operation::Signal { exec, signal }).await
    }

    async fn resize(&self, exec: ExecId, size: PtySize) -> Result<()> {
        self.done(Operation::Resize { exec, size }).await
    }

    async fn kill(&self, exec: ExecId) -> Result<()> {
        self.done(Operation::KillExec { exec }).await
    }
}

#[async_trait]
impl Files for Remote {
    async fn stat(&self, path: &FilePath, user: UserName) -> Result<Entry> {
        let what = Operation::Stat { path: path.clone(), user };
        expect!(self.ask(what).await?, Answer::Entry(entry) => *entry)
    }

    async fn list(&self, path: &FilePath, user: UserName, depth: u32) -> Result<Vec<Entry>> {
        list!(self.open(Operation::ListFiles { path: path.clone(), user, depth }).await?, Entries)
    }

    async fn make_dir(&self, path: &FilePath, user: UserName) -> Result<bool> {
        let what = Operation::MakeDir { path: path.clone(), user };
        expect!(self.ask(what).await?, Answer::Made(made) => made)
    }

    async fn rename(&self, from: &FilePath, to: &FilePath, user: UserName) -> Result<()> {
        self.done(Operation::Rename { from: from.clone(), to: to.clone(), user }).await
    }

    async fn remove(&self, path: &FilePath, user: UserName) -> Result<()> {
        self.done(Operation::Remove { path: path.clone(), user }).await
    }

    async fn unpack(&self, path: &FilePath, user: UserName, tar: ByteStream) -> Result<()> {
        let what = Operation::Unpack { path: path.clone(), user };
        expect!(self.feed(what, tar).await?, Answer::Done => ())
    }

    async fn pack(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        self.take(Operation::Pack { path: path.clone(), user }).await
    }

    async fn watch(&self, path: &FilePath, user: UserName) -> Result<BoxStream<'static, Result<WatchEvent>>> {
        let mut talk = self.open(Operation::Watch { path: path.clone(), user }).await?;
        expect!(talk.answer().await?, Answer::Done => ())?;
        Ok(Box::pin(futures_util::stream::unfold(Some(talk), |talk| async {
            let mut talk = talk?;
            match talk.answer().await {
                Ok(Answer::Changed(change)) => Some((Ok(change), Some(talk))),
                Ok(_) => None,
                Err(error) => Some((Err(error), None)),
            }
        })))
    }
}

#[async_trait]
impl Control for Remote {
    async fn info(&self) -> Result<SandboxInfo> {
        expect!(self.ask(Operation::Info).await?, Answer::Info(info) => *info)
    }

    async fn stats(&self) -> Result<SandboxStats> {
        expect!(self.ask(Operation::Stats).await?, Answer::Stats(stats) => *stats)
    }

    async fn extend(&self, ttl: Duration) -> Result<()> {
        self.done(Operation::Extend { ttl }).await
    }

    async fn pause(&self) -> Result<()> {
        self.done(Operation::Pause).await
    }

    async fn resume(&self) -> Result<()> {
        self.done(Operation::Resume).await
    }

    async fn kill(&self) -> Result<()> {
        self.done(Operation::Kill).await
    }

    async fn ended(&self) -> Result<SandboxState> {
        expect!(self.ask(Operation::Ended).await?, Answer::State(state) => state)
    }
}

#[async_trait]
impl Network for Remote {
    async fn policy(&self) -> Result<NetworkPolicy> {
        expect!(self.ask(Operation::NetworkPolicy).await?, Answer::Policy(policy) => *policy)
    }

    async fn set_policy(&self, policy: NetworkPolicy) -> Result<()> {
        policy.check()?;
        self.done(Operation::SetNetwork { policy: Box::new(policy) }).await
    }

    async fn flows(&self, after: u64, follow: bool) -> Result<FlowStream> {
        let mut talk = self.open(Operation::Flows { after, follow }).await?;
        expect!(talk.answer().await?, Answer::Done => ())?;
        Ok(Box::pin(futures_util::stream::unfold(Some((talk, VecDeque::new())), |listening| async {
            let (mut talk, mut heard) = listening?;
            loop {
                if let Some(flow) = heard.pop_front() {
                    return Some((Ok(flow), Some((talk, heard))));
                }
                match talk.answer().await {
                    Ok(Answer::Flows(more)) => heard.extend(more),
                    Ok(Answer::Done) => return None,
                    Ok(other) => {
                        let what = format!("{other:?}").chars().take(80).collect::<String>();
                        return Some((Err(unexpected(&what)), None));
                    }
                    Err(error) => return Some((Err(error), None)),
                }
            }
        })))
    }
}
