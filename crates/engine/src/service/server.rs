//! Who answers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::wire::{Frame, FrameKind, MAX_CONTROL, MAX_DATA, stream};
use belljar_core::{ByteStream, Ending, Error, ErrorCode, ExecEvent, ExecHandle, Provider, Result, Sandbox};
use belljar_providers::frames::{self, FrameReceiver, FrameSender};
use bytes::Bytes;
use futures_util::future::FusedFuture;
use futures_util::{FutureExt, StreamExt};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Answer, Ask, CONVERSATION, Open, Operation, PROTOCOL, SOCKET_FILE};
use crate::engine::{Engine, gone};
use crate::session::SessionRequest;

/// Bytes of a list that go into one answer, unless one of its items has more.
const PORTION: usize = MAX_CONTROL / 4;
/// How many flows are sent together at most.
const FLOWS_AT_ONCE: usize = 256;
/// How long a caller may take to say what it wants.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// Held by the one engine of a data directory.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock; refuses if another engine has it.
    pub fn take(home: &Path) -> Result<Self> {
        let path = home.join("engine.lock");
        let trouble = |error: io::Error| {
            Error::new(ErrorCode::Internal, format!("cannot use {}: {error}", path.display()))
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(trouble)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(Error::new(ErrorCode::AlreadyExists, format!("another engine serves {}", home.display()))
                    .hint("stop that one first, or choose another data directory with --home"))
            }
            Err(error) => Err(trouble(error.into())),
        }
    }

    /// The number of the last engine that had it. A database can be replaced by an older one; this is not.
    pub fn epoch(&self) -> u64 {
        let mut digits = [0; 20];
        let length = self.0.read_at(&mut digits, 0).unwrap_or(0);
        std::str::from_utf8(&digits[..length]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Writes ours down, before anybody hears of it.
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        let write = || {
            self.0.write_all_at(epoch.to_string().as_bytes(), 0)?;
            self.0.sync_data()
        };
        write().map_err(|error| {
            Error::new(ErrorCode::Internal, format!("cannot write down the engine's number: {error}"))
        })
    }
}

/// Where callers come in. From its making on they can connect, and wait until they are served.
#[derive(Debug)]
pub struct Reception(UnixListener);

impl Reception {
    /// Opens the door of a data directory.
    pub fn open(home: &Path) -> Result<Self> {
        let path = home.join(SOCKET_FILE);
        let trouble = |error: io::Error| {
            Error::new(ErrorCode::Internal, format!("cannot listen on {}: {error}", path.display()))
        };
        // Whoever made it held the lock that we hold now.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(trouble(error)),
            _ => {}
        }
        // By descriptor, for the path may be longer than a socket's can be.
        let directory = File::open(home).map_err(trouble)?;
        let place = format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd());
        let listener = UnixListener::bind(place).map_err(trouble)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(trouble)?;
        Ok(Self(listener))
    }

    /// Serves callers until told to stop; then no session is taken any more, and those who are here may finish what they
    /// are at. Only our own user, and root, are let in.
    pub async fn serve(self, engine: &Engine, stop: impl Future<Output = ()>) {
        let mut callers = JoinSet::new();
        let mut stop = pin!(stop.fuse());
        while !(stop.is_terminated() && callers.is_empty()) {
            tokio::select! {
                () = &mut stop, if !stop.is_terminated() => engine.drain(),
                Some(_) = callers.join_next() => {}
                accepted = self.0.accept() => match accepted {
                    Ok((socket, _)) if is_let_in(&socket) => {
                        callers.spawn(converse(engine.clone(), socket));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        // Out of descriptors, most likely: those who are here will leave.
                        tracing::warn!(%error, "cannot take in a caller");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
}

fn is_let_in(socket: &UnixStream) -> bool {
    match socket.peer_cred() {
        Ok(peer) if [rustix::process::geteuid().as_raw(), 0].contains(&peer.uid()) => return true,
        Ok(peer) => tracing::warn!(user = peer.uid(), "a stranger was turned away"),
        Err(error) => tracing::warn!(%error, "a caller without a name was turned away"),
    }
    false
}

/// One caller.
struct Caller {
    sender: FrameSender,
    receiver: FrameReceiver,
}

impl Caller {
    async fn say(&mut self, answer: &Answer) -> io::Result<()> {
        self.sender.send(&Frame::control(CONVERSATION, answer)).await
    }

    /// Says a list in as many answers as it takes; the last word is the caller's.
    async fn list<T: Serialize>(&mut self, list: Vec<T>, part: fn(Vec<T>) -> Answer) -> io::Result<()> {
        for portion in portions(list) {
            self.say(&part(portion)).await?;
        }
        Ok(())
    }

    /// What comes of something that takes its time, unless the caller goes away meanwhile.
    async fn unless_gone<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T, Broken> {
        tokio::select! {
            done = work => Ok(done?),
            // It has nothing more to say.
            _ = self.receiver.next() => Err(Broken::Gone),
        }
    }

    async fn data(&mut self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(MAX_DATA) {
            self.sender.send(&Frame::data(CONVERSATION, stream, piece)).await?;
        }
        Ok(())
    }
}

/// Cuts a list so that each part fits into an answer.
fn portions<T: Serialize>(list: Vec<T>) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for item in list {
        let length = serde_json::to_vec(&item).map_or(0, |text| text.len());
        match parts.last_mut() {
            Some(part) if length <= room => {
                room -= length;
                part.push(item);
            }
            _ => {
                room = PORTION.saturating_sub(length);
                parts.push(vec![item]);
            }
        }
    }
    parts
}

async fn converse(engine: Engine, socket: UnixStream) {
    let (sender, receiver) = frames::split(socket);
    let mut caller = Caller { sender, receiver };
    let first = tokio::time::timeout(FIRST_WORD, caller.receiver.next()).await;
    let Ok(Ok(Some(frame))) = first else { return };
    let outcome = match frame.message::<Open>() {
        Ok(open) if open.protocol == PROTOCOL => answer(&engine, open.ask, &mut caller).await,
        Ok(open) => Err(Error::new(
            ErrorCode::Version,
            format!("the engine speaks protocol {PROTOCOL}, and its caller {}", open.protocol),
        )
        .hint("restart the engine with this version of Belljar")
        .into()),
        Err(error) => {
            Err(Error::new(ErrorCode::Version, format!("cannot understand the caller: {error}")).into())
        }
    };
    if let Err(Broken::Told(error)) = outcome {
        let _ = caller.say(&Answer::Failed(error)).await;
    }
}

/// Why an operation came to no answer.
enum Broken {
    /// The caller is to be told.
    Told(Error),
    /// The caller is gone.
    Gone,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

async fn answer(engine: &Engine, ask: Ask, caller: &mut Caller) -> Result<(), Broken> {
    let answer = match ask {
        Ask::Hello => Answer::Welcome {
            provider: engine.name(),
            capabilities: engine.capabilities(),
            epoch: engine.shared.epoch,
        },
        Ask::Create { request, hold: false } => return create(engine, *request, caller).await,
        Ask::Create { request, hold: true } => return hold(engine, *request, caller).await,
        Ask::List => {
            caller.list(engine.list().await?, Answer::Sandboxes).await?;
            Answer::Done
        }
        Ask::Sessions(query) => Answer::Sessions(engine.sessions(&query).await?),
        Ask::Session(id) => Answer::Session(Box::new(engine.session(&id).await?)),
        Ask::Events { id, after, limit } => {
            let events = caller.unless_gone(engine.events(&id, after, limit)).await?;
            // The rest can be asked for.
            Answer::Events(portions(events).into_iter().next().unwrap_or_default())
        }
        Ask::LastEvent(id) => Answer::Count(engine.last_event(&id).await?),
        Ask::Used(tenant) => {
            let (meter, cost) = engine.used(&tenant).await?;
            Answer::Used { meter, cost }
        }
        Ask::Of { id, what } => {
            let sandbox = match engine.open(&id).await {
                // What we remember was there once.
                Err(error) if error.code == ErrorCode::NotFound && !matches!(*what, Operation::Exists) => {
                    engine.session(&id).await?;
                    return match *what {
                        Operation::Cleanup => Ok(caller.say(&Answer::Done).await?),
                        _ => Err(gone().into()),
                    };
                }
                opened => opened?,
            };
            operate(sandbox, *what, caller).await?
        }
    };
    Ok(caller.say(&answer).await?)
}

async fn create(engine: &Engine, request: SessionRequest, caller: &mut Caller) -> Result<(), Broken> {
    let request = SessionRequest { held: false, ..request };
    let accepted = caller.unless_gone(Engine::create(engine, request)).await?;
    Ok(caller.say(&Answer::Accepted(Box::new(accepted))).await?)
}

/// Makes a session that lives no longer than the caller's connection.
async fn hold(engine: &Engine, request: SessionRequest, caller: &mut Caller) -> Result<(), Broken> {
    if request.key.is_some() {
        return Err(Error::new(ErrorCode::InvalidArgument, "what has a key can be others' as well")
            .hint("leave out the key, or do not tie the session to its caller")
            .into());
    }
    let request = SessionRequest { held: true, ..request };
    let accepted = caller.unless_gone(Engine::create(engine, request)).await?;
    let id = accepted.session().id.clone();
    let ours = engine.live(&id);
    if caller.say(&Answer::Accepted(Box::new(accepted))).await.is_ok() {
        // It says nothing more; it is there, or it is gone.
        let _ = caller.receiver.next().await;
    }
    // Another may have the name by now.
    let is_ours = match (engine.live(&id), ours) {
        (Ok(now), Ok(ours)) => Arc::ptr_eq(&now, &ours),
        (Ok(_), Err(_)) => false,
        (Err(_), _) => true,
    };
    if is_ours && let Ok(sandbox) = engine.open(&id).await {
        sandbox.cleanup().await?;
    }
    Ok(())
}

async fn operate(sandbox: Arc<dyn Sandbox>, what: Operation, caller: &mut Caller) -> Result<Answer, Broken> {
    Ok(match what {
        Operation::Exists => Answer::Exists(sandbox.provider()),
        Operation::Info => Answer::Info(Box::new(sandbox.control()?.info().await?)),
        Operation::Stats => Answer::Stats(Box::new(sandbox.control()?.stats().await?)),
        Operation::Extend { ttl } => done(sandbox.control()?.extend(ttl).await)?,
        Operation::Pause => done(sandbox.control()?.pause().await)?,
        Operation::Resume => done(sandbox.control()?.resume().await)?,
        Operation::Kill => done(sandbox.control()?.kill().await)?,
        Operation::Cleanup => done(sandbox.cleanup().await)?,
        Operation::Ended => Answer::State(caller.unless_gone(sandbox.control()?.ended()).await?),
        Operation::Exec { request, kill_on_close } => {
            let handle = sandbox.execs()?.start(request).await?;
            // It runs, whether or not the caller is still there to hear of it.
            let Some(ExecEvent::Started { exec, start }) = handle.next().await? else {
                return Err(Error::new(ErrorCode::Internal, "an execution did not begin").into());
            };
            let said = caller.say(&Answer::Started { exec, start_us: micros(start) }).await;
            let outcome = match said {
                Ok(()) => follow(&*handle, caller).await,
                Err(_) => Err(Broken::Gone),
            };
            if matches!(outcome, Err(Broken::Gone)) && kill_on_close {
                let _ = sandbox.execs()?.kill(exec).await;
            }
            return outcome;
        }
        Operation::Attach { exec, from } => {
            let handle = sandbox.execs()?.attach(exec, from).await?;
            return follow(&*handle, caller).await;
        }
        Operation::Wait { exec } => Answer::Finished(caller.unless_gone(sandbox.execs()?.wait(exec)).await?),
        Operation::Executions => {
            caller.list(sandbox.execs()?.list().await?, Answer::Executions).await?;
            Answer::Done
        }
        Operation::Signal { exec, signal } => done(sandbox.execs()?.signal(exec, signal).await)?,
        Operation::Resize { exec, size } => done(sandbox.execs()?.resize(exec, size).await)?,
        Operation::KillExec { exec } => done(sandbox.execs()?.kill(exec).await)?,
        Operation::Upload { path, user } => {
            Answer::Count(fed(caller, |content| sandbox.upload(&path, user, content)).await?)
        }
        Operation::Unpack { path, user } => {
            let files = sandbox.files()?;
            done(fed(caller, |content| files.unpack(&path, user, content)).await)?
        }
        Operation::Download { path, user } => give(sandbox.download(&path, user).await?, caller).await?,
        Operation::Pack { path, user } => give(sandbox.files()?.pack(&path, user).await?, caller).await?,
        Operation::Stat { path, user } => Answer::Entry(Box::new(sandbox.files()?.stat(&path, user).await?)),
        Operation::ListFiles { path, user, depth } => {
            caller.list(sandbox.files()?.list(&path, user, depth).await?, Answer::Entries).await?;
            Answer::Done
        }
        Operation::MakeDir { path, user } => Answer::Made(sandbox.files()?.make_dir(&path, user).await?),
        Operation::Rename { from, to, user } => done(sandbox.files()?.rename(&from, &to, user).await)?,
        Operation::Remove { path, user } => done(sandbox.files()?.remove(&path, user).await)?,
        Operation::NetworkPolicy => Answer::Policy(Box::new(sandbox.network()?.policy().await?)),
        Operation::SetNetwork { policy } => done(sandbox.network()?.set_policy(*policy).await)?,
        Operation::Flows { after, follow } => {
            let flows = sandbox.network()?.flows(after, follow).await?;
            // What is there already goes together.
            let mut flows = flows.ready_chunks(FLOWS_AT_ONCE);
            caller.say(&Answer::Done).await?;
            loop {
                let some = tokio::select! {
                    some = flows.next() => some,
                    _ = caller.receiver.next() => return Err(Broken::Gone),
                };
                let Some(some) = some else { return Ok(Answer::Done) };
                // An error is the last of them.
                let mut error = None;
                let good =
                    some.into_iter().map_while(|flow| flow.map_err(|told| error = Some(told)).ok()).collect();
                caller.list(good, Answer::Flows).await?;
                if let Some(error) = error {
                    return Err(error.into());
                }
            }
        }
        Operation::IssueToken { grant } => Answer::Issued(Box::new(sandbox.gateway()?.issue(*grant).await?)),
        Operation::Tokens => {
            caller.list(sandbox.gateway()?.tokens().await?, Answer::Tokens).await?;
            Answer::Done
        }
        Operation::RevokeToken { token } => Answer::Token(Box::new(sandbox.gateway()?.revoke(&token).await?)),
        Operation::ExtendToken { token, life } => {
            Answer::Token(Box::new(sandbox.gateway()?.extend(&token, life).await?))
        }
        Operation::RenewTokens => done(sandbox.gateway()?.renew().await)?,
        Operation::Calls { after } => {
            caller.list(sandbox.gateway()?.calls(after).await?, Answer::Calls).await?;
            Answer::Done
        }
        Operation::Watch { path, user } => {
            let mut changes = sandbox.files()?.watch(&path, user).await?;
            caller.say(&Answer::Done).await?;
            loop {
                tokio::select! {
                    change = changes.next() => match change {
                        Some(change) => caller.say(&Answer::Changed(change?)).await?,
                        None => return Ok(Answer::Done),
                    },
                    _ = caller.receiver.next() => return Err(Broken::Gone),
                }
            }
        }
    })
}

fn done(outcome: Result<()>) -> Result<Answer, Broken> {
    outcome?;
    Ok(Answer::Done)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Does something with the bytes that the caller sends. A caller that goes away in the middle ends it with an error.
async fn fed<T, F: Future<Output = Result<T>>>(
    caller: &mut Caller,
    work: impl FnOnce(ByteStream) -> F,
) -> Result<T> {
    let (sender, receiver) = mpsc::channel::<Result<Bytes>>(4);
    let content = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let feed = async {
        loop {
            let piece = match caller.receiver.next().await {
                Ok(Some(Frame { kind: FrameKind::Data(stream::INPUT), payload, .. }))
                    if payload.is_empty() =>
                {
                    break;
                }
                Ok(Some(Frame { kind: FrameKind::Data(stream::INPUT), payload, .. })) => Ok(payload.into()),
                _ => Err(Error::new(ErrorCode::Lost, "the caller went away before it had sent everything")),
            };
            let last = piece.is_err();
            if sender.send(piece).await.is_err() || last {
                break;
            }
        }
        drop(sender);
        // What was sent is being written; only that decides now.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = work(Box::pin(content)) => done,
        () = feed => unreachable!("it waits for ever"),
    }
}

/// Sends the caller a stream of bytes.
async fn give(mut content: ByteStream, caller: &mut Caller) -> Result<Answer, Broken> {
    while let Some(piece) = content.next().await {
        caller.data(stream::OUTPUT, &piece?).await?;
    }
    Ok(Answer::Done)
}

/// Sends the caller what happens in an execution, and the execution what the caller sends.
async fn follow(handle: &dyn ExecHandle, caller: &mut Caller) -> Result<Answer, Broken> {
    let Caller { sender, receiver } = caller;
    let input = async {
        loop {
            match receiver.next().await {
                Ok(Some(Frame { kind: FrameKind::Data(stream::INPUT), payload, .. })) => {
                    // A command that reads no more is no reason to stop listening to it.
                    let _ = handle.write(payload.into()).await;
                }
                _ => return,
            }
        }
    };
    tokio::select! {
        outcome = tell(handle, sender) => outcome,
        () = input => Err(Broken::Gone),
    }
}

async fn tell(handle: &dyn ExecHandle, sender: &mut FrameSender) -> Result<Answer, Broken> {
    while let Some(event) = handle.next().await? {
        let answer = match event {
            ExecEvent::Started { exec, start } => Answer::Started { exec, start_us: micros(start) },
            ExecEvent::Output { stream: which, bytes } => {
                let number = stream::number(which);
                for piece in bytes.chunks(MAX_DATA) {
                    sender.send(&Frame::data(CONVERSATION, number, piece)).await?;
                }
                continue;
            }
            ExecEvent::Gap { stream, bytes } => Answer::Gap { stream, bytes },
            ExecEvent::Denied(denied) => Answer::Denied(denied),
            ExecEvent::Finished { termination, usage, duration, oom_kills } => {
                return Ok(Answer::Finished(Ending { termination, usage, duration, oom_kills }));
            }
        };
        sender.send(&Frame::control(CONVERSATION, &answer)).await?;
    }
    Err(Error::new(ErrorCode::Lost, "the execution ended without a word").into())
}
