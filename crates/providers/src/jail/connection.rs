//! One conversation with a sandbox's monitor.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_core::wire::{Frame, FrameKind, MAX_DATA, stream};
use belljar_core::{Error, ErrorCode, Result};
use belljar_jail::control::{Answer, CONVERSATION, Open, PROTOCOL, Request, SOCKET_FILE};
use tokio::net::UnixStream;

use crate::frames::{self, FrameReceiver, FrameSender};

/// What a monitor sends.
#[derive(Debug)]
pub(super) enum Incoming {
    Answer(Answer),
    Data { stream: u8, bytes: Vec<u8> },
}

/// The half that is read.
#[derive(Debug)]
pub(super) struct Receiver(FrameReceiver);

/// The half that is written.
#[derive(Debug)]
pub(super) struct Sender(FrameSender);

/// The way to a sandbox's monitor, and the engine in whose name one comes, if any.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) state_dir: PathBuf,
    pub(super) epoch: Option<u64>,
}

impl Way {
    /// Connects and asks.
    pub(super) async fn open(&self, request: Request) -> Result<(Sender, Receiver)> {
        let Self { state_dir, epoch } = self;
        let (mut sender, receiver) = frames::split(connect(state_dir).await?);
        sender
            .begin(&Frame::control(CONVERSATION, &Open { protocol: PROTOCOL, epoch: *epoch, request }))
            .await?;
        Ok((Sender(sender), Receiver(receiver)))
    }

    /// Asks for something that has one answer, which a monitor gives at once.
    pub(super) async fn ask(&self, request: Request) -> Result<Answer> {
        tokio::time::timeout(PATIENCE, self.ask_patiently(request)).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn ask_patiently(&self, request: Request) -> Result<Answer> {
        let (_sender, mut receiver) = self.open(request).await?;
        match receiver.next().await? {
            Some(Incoming::Answer(Answer::Failed(error))) => Err(error),
            Some(Incoming::Answer(answer)) => Ok(answer),
            _ => Err(lost()),
        }
    }
}

/// Connects; a monitor with many callers at its door lets them wait.
async fn connect(state_dir: &Path) -> Result<UnixStream> {
    let patience = Instant::now() + PATIENCE;
    loop {
        match frames::connect_in(state_dir, SOCKET_FILE).await {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(unreachable(state_dir, &error));
            }
            Err(_) if Instant::now() > patience => return Err(lost()),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// No directory or nobody listening means that the sandbox has ended; anything else is a trouble of ours.
fn unreachable(state_dir: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => gone(),
        _ => crate::home::problem(state_dir, error),
    }
}

/// A monitor that says nothing for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

impl Sender {
    async fn send(&mut self, frame: &Frame) -> Result<()> {
        self.0.send(frame).await.map_err(|_| lost())
    }

    /// Sends input; an empty piece ends it.
    pub(super) async fn send_input(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return self.send(&Frame::end(CONVERSATION, stream::INPUT)).await;
        }
        for piece in bytes.chunks(MAX_DATA) {
            self.send(&Frame::data(CONVERSATION, stream::INPUT, piece)).await?;
        }
        Ok(())
    }
}

impl Receiver {
    /// What comes next; `None` when the monitor closed. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Incoming>> {
        match self.0.next().await {
            Ok(frame) => frame.map(incoming).transpose(),
            Err(error) => Err(Error::new(ErrorCode::Internal, format!("monitor: {error}"))),
        }
    }
}

fn incoming(frame: Frame) -> Result<Incoming> {
    match frame.kind {
        FrameKind::Data(stream) => Ok(Incoming::Data { stream, bytes: frame.payload }),
        FrameKind::Control => frame.message().map(Incoming::Answer).map_err(|error| {
            Error::new(ErrorCode::Version, format!("cannot understand the monitor: {error}"))
        }),
        FrameKind::Credit(_) => Err(Error::new(ErrorCode::Internal, "the monitor sent a credit frame")),
    }
}

pub(super) fn gone() -> Error {
    Error::new(ErrorCode::SandboxGone, "the sandbox has ended")
        .hint("create a new one; `belljar ls -a` shows how it ended")
}

pub(super) fn silent() -> Error {
    Error::new(ErrorCode::Lost, "the sandbox's monitor does not answer")
        .hint("`belljar rm -f` ends the sandbox without asking it")
}

pub(super) fn lost() -> Error {
    Error::new(ErrorCode::Lost, "contact with the sandbox was lost")
        .hint("`belljar ls -a` shows how it ended")
}
