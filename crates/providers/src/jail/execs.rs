//! Commands in a jail.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use belljar_core::wire::stream;
use belljar_core::{
    Ending, Error, ErrorCode, ExecEvent, ExecHandle, ExecId, ExecInfo, ExecRequest, ExecResult, Execs,
    Position, PtySize, Result, Stdin,
};
use belljar_jail::control::{Answer, Request};
use bytes::Bytes;
use tokio::sync::Mutex;

use super::afterwards;
use super::connection::{self, Incoming, Receiver, Sender, Way};
use super::network::JailNetwork;
use super::recording;

/// How long a monitor may say nothing after a command's time is over.
const SILENCE: Duration = Duration::from_secs(30);

/// The commands of one sandbox.
#[derive(Debug)]
pub(super) struct JailExecs {
    pub(super) way: Way,
    pub(super) network: Option<JailNetwork>,
}

/// Runs a command to its end; dropping the future kills it.
pub(super) async fn execute(execs: &JailExecs, mut request: ExecRequest) -> Result<ExecResult> {
    // Nobody can send input here, and a command that waited for it would wait in vain.
    request.stdin = Stdin::Empty;
    recording::check_variables(&execs.way.state_dir, &request.env)?;
    let timeout = request.timeout;
    let request = Request::Exec { request: Box::new(request), kill_on_close: true };
    let handle = execs.follow(request, Some(timeout)).await?;
    let mut events = Vec::new();
    while let Some(event) = handle.next().await? {
        events.push(event);
    }
    Ok(ExecResult::collect(events))
}

impl JailExecs {
    /// Follows a command from its start, or says why it could not be started or found.
    async fn follow(&self, request: Request, timeout: Option<Duration>) -> Result<JailHandle> {
        let (sender, receiver) = self.way.open(request).await?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (way, network) = (self.way.clone(), self.network.clone());
        let mut following = Following {
            receiver,
            first: None,
            exec: None,
            ending: None,
            finished: false,
            deadline,
            way,
            network,
        };
        following.first = following.next().await?;
        Ok(JailHandle { sender: Mutex::new(sender), receiver: Mutex::new(following) })
    }

    async fn steer(&self, request: Request) -> Result<()> {
        self.way.ask(request).await.map(drop)
    }

    async fn wait_for(&self, exec: ExecId) -> Result<Ending> {
        let (_sender, mut receiver) = self.way.open(Request::Wait { exec }).await?;
        match receiver.next().await?.ok_or_else(connection::lost)? {
            Incoming::Answer(Answer::Finished { termination, usage, duration_us, oom_kills }) => {
                Ok(Ending { termination, usage, duration: Duration::from_micros(duration_us), oom_kills })
            }
            Incoming::Answer(Answer::Failed(error)) => Err(error),
            Incoming::Answer(other) => Err(unexpected(&other)),
            Incoming::Data { .. } => Err(Error::new(ErrorCode::Internal, "data where none was expected")),
        }
    }
}

#[async_trait]
impl Execs for JailExecs {
    async fn start(&self, request: ExecRequest) -> Result<Box<dyn ExecHandle>> {
        request.check()?;
        recording::check_variables(&self.way.state_dir, &request.env)?;
        let timeout = request.timeout;
        let request = Request::Exec { request: Box::new(request), kill_on_close: false };
        Ok(Box::new(self.follow(request, Some(timeout)).await?))
    }

    async fn attach(&self, exec: ExecId, from: Position) -> Result<Box<dyn ExecHandle>> {
        match self.follow(Request::Attach { exec, from }, None).await {
            Err(error) if error.code == ErrorCode::SandboxGone => {
                afterwards::attach(&self.way.state_dir, self.network.clone(), exec, from).await
            }
            followed => Ok(Box::new(followed?)),
        }
    }

    async fn wait(&self, exec: ExecId) -> Result<Ending> {
        match self.wait_for(exec).await {
            Err(error) if error.code == ErrorCode::SandboxGone => {
                afterwards::wait(&self.way.state_dir, exec).await
            }
            ending => ending,
        }
    }

    async fn list(&self) -> Result<Vec<ExecInfo>> {
        match self.way.ask(Request::Executions).await {
            Ok(Answer::Executions(list)) => Ok(list),
            Ok(other) => Err(unexpected(&other)),
            Err(error) if error.code == ErrorCode::SandboxGone => afterwards::list(&self.way.state_dir).await,
            Err(error) => Err(error),
        }
    }

    async fn signal(&self, exec: ExecId, signal: i32) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("{signal} is not a signal"))
                .hint("signals go from 1 to 64; 15 is TERM, 9 is KILL"));
        }
        self.steer(Request::Signal { exec, signal }).await
    }

    async fn resize(&self, exec: ExecId, size: PtySize) -> Result<()> {
        self.steer(Request::Resize { exec, size }).await
    }

    async fn kill(&self, exec: ExecId) -> Result<()> {
        self.steer(Request::KillExec { exec }).await
    }
}

struct JailHandle {
    sender: Mutex<Sender>,
    receiver: Mutex<Following>,
}

struct Following {
    receiver: Receiver,
    /// Read ahead, when following began.
    first: Option<ExecEvent>,
    /// Which it is, once that is known.
    exec: Option<ExecId>,
    /// The end, if it has come and what was denied is to be told first.
    ending: Option<Ended>,
    finished: bool,
    /// When the command must have ended, if anybody still watches over it.
    deadline: Option<Instant>,
    way: Way,
    network: Option<JailNetwork>,
}

struct Ended {
    event: ExecEvent,
    /// Whether what was denied has been asked for.
    is_explained: bool,
}

impl Following {
    async fn next(&mut self) -> Result<Option<ExecEvent>> {
        if let Some(event) = self.first.take() {
            return Ok(Some(event));
        }
        while !self.finished && self.ending.is_none() {
            let Some(incoming) = self.incoming().await? else { return Err(connection::lost()) };
            match event(incoming)? {
                Some(event @ ExecEvent::Finished { .. }) => {
                    self.ending = Some(Ended { event, is_explained: false });
                }
                Some(event) => {
                    if let ExecEvent::Started { exec, .. } = event {
                        self.exec = Some(exec);
                    }
                    return Ok(Some(event));
                }
                None => {}
            }
        }
        Ok(self.end().await)
    }

    /// What was denied, if anything was, and then the end.
    async fn end(&mut self) -> Option<ExecEvent> {
        let ending = self.ending.as_mut()?;
        if let (false, Some(network), Some(exec)) = (ending.is_explained, &self.network, self.exec) {
            let denied = network.denials(exec).await;
            ending.is_explained = true;
            if !denied.is_empty() {
                return Some(ExecEvent::Denied(denied));
            }
        }
        self.finished = true;
        self.ending.take().map(|ending| ending.event)
    }
}

impl Following {
    /// What comes next. A monitor that was stopped would never say that the time is over.
    async fn incoming(&mut self) -> Result<Option<Incoming>> {
        let Some(deadline) = self.deadline else { return self.receiver.next().await };
        let mut silence = deadline.saturating_duration_since(Instant::now()) + SILENCE;
        loop {
            if let Ok(incoming) = tokio::time::timeout(silence, self.receiver.next()).await {
                return incoming;
            }
            // The time may stand still because the sandbox is paused, or have done so; then whoever keeps it answers.
            self.way.ask(Request::Status).await?;
            silence = SILENCE;
        }
    }
}

#[async_trait]
impl ExecHandle for JailHandle {
    async fn next(&self) -> Result<Option<ExecEvent>> {
        self.receiver.lock().await.next().await
    }

    async fn write(&self, input: Bytes) -> Result<()> {
        self.sender.lock().await.send_input(&input).await
    }
}

fn event(incoming: Incoming) -> Result<Option<ExecEvent>> {
    Ok(Some(match incoming {
        Incoming::Data { bytes, .. } if bytes.is_empty() => return Ok(None),
        Incoming::Data { stream: number, bytes } => {
            ExecEvent::Output { stream: stream::output(number), bytes: bytes.into() }
        }
        Incoming::Answer(Answer::Started { exec, start_us }) => {
            ExecEvent::Started { exec, start: Duration::from_micros(start_us) }
        }
        Incoming::Answer(Answer::Gap { stream, bytes }) => ExecEvent::Gap { stream, bytes },
        Incoming::Answer(Answer::Finished { termination, usage, duration_us, oom_kills }) => {
            ExecEvent::Finished {
                termination,
                usage,
                duration: Duration::from_micros(duration_us),
                oom_kills,
            }
        }
        Incoming::Answer(Answer::Failed(error)) => return Err(error),
        Incoming::Answer(other) => return Err(unexpected(&other)),
    }))
}

pub(super) fn unexpected(answer: &Answer) -> Error {
    let mut words = format!("{answer:?}");
    words = words.chars().take(120).collect();
    Error::new(ErrorCode::Internal, format!("the monitor answered {words}"))
}
