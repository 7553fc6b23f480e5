//! A provider for tests of the commands: its commands do what they are told beforehand, its files are a map.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    ByteStream, Capabilities, Capability, Ending, Error, ErrorCode, ExecEvent, ExecHandle, ExecId, ExecInfo,
    ExecRequest, ExecResult, Execs, FilePath, Position, Provider, ProviderName, PtySize, Result, Sandbox,
    SandboxId, SandboxSpec, UserName,
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::io::AsyncWrite;

use crate::outlet::Outlet;

/// What was written to an [`outlet`].
#[derive(Clone, Default)]
pub(crate) struct Sunk(Arc<Mutex<[Vec<u8>; 2]>>);

impl Sunk {
    pub(crate) fn stdout(&self) -> Vec<u8> {
        self.0.lock().unwrap()[0].clone()
    }

    pub(crate) fn stderr(&self) -> Vec<u8> {
        self.0.lock().unwrap()[1].clone()
    }
}

struct Pen(Sunk, usize);

impl AsyncWrite for Pen {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.0.0.lock().unwrap()[self.1].extend_from_slice(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// An outlet whose bytes can be looked at.
pub(crate) fn outlet() -> (Outlet, Sunk) {
    let sunk = Sunk::default();
    (Outlet::new(Pen(sunk.clone(), 0), Pen(sunk.clone(), 1)), sunk)
}

#[derive(Default)]
struct Record {
    events: Mutex<VecDeque<ExecEvent>>,
    failure: Option<Error>,
    request: Mutex<Option<ExecRequest>>,
    files: Mutex<BTreeMap<String, Bytes>>,
    removed: AtomicUsize,
}

/// Makes sandboxes in which every command plays the same script.
pub(crate) struct Scripted(Arc<Record>);

impl Scripted {
    /// Commands start, do this, and (without a `Finished`) are lost.
    pub(crate) fn new(events: Vec<ExecEvent>) -> Self {
        Self(Arc::new(Record { events: Mutex::new(events.into()), ..Record::default() }))
    }

    /// Commands do not start.
    pub(crate) fn failing(error: Error) -> Self {
        Self(Arc::new(Record { failure: Some(error), ..Record::default() }))
    }

    /// How often a sandbox was cleaned up.
    pub(crate) fn removed(&self) -> usize {
        self.0.removed.load(Ordering::Relaxed)
    }

    /// What was asked last.
    pub(crate) fn request(&self) -> ExecRequest {
        self.0.request.lock().unwrap().clone().unwrap()
    }
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> ProviderName {
        ProviderName::Fake
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[Capability::Stream])
    }

    async fn create(&self, _: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(Stage { id: SandboxId::from_random([1; 16]), record: Arc::clone(&self.0) }))
    }
}

struct Stage {
    id: SandboxId,
    record: Arc<Record>,
}

#[async_trait]
impl Sandbox for Stage {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn provider(&self) -> ProviderName {
        ProviderName::Fake
    }

    async fn execute(&self, _: ExecRequest) -> Result<ExecResult> {
        Err(Error::unsupported(ProviderName::Fake, Capability::Limits))
    }

    async fn upload(&self, path: &FilePath, _: UserName, content: ByteStream) -> Result<u64> {
        let pieces: Vec<Bytes> = content.try_collect().await?;
        let bytes = Bytes::from(pieces.concat());
        let count = bytes.len() as u64;
        self.record.files.lock().unwrap().insert(path.to_string(), bytes);
        Ok(count)
    }

    async fn download(&self, path: &FilePath, _: UserName) -> Result<ByteStream> {
        let found = self.record.files.lock().unwrap().get(path.as_str()).cloned();
        let bytes = found.ok_or_else(|| Error::new(ErrorCode::NotFound, format!("no file `{path}`")))?;
        Ok(stream::iter([Ok(bytes)]).boxed())
    }

    async fn cleanup(&self) -> Result<()> {
        self.record.removed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn execs(&self) -> Result<&dyn Execs> {
        Ok(self)
    }
}

#[async_trait]
impl Execs for Stage {
    async fn start(&self, request: ExecRequest) -> Result<Box<dyn ExecHandle>> {
        if let Some(error) = &self.record.failure {
            return Err(error.clone());
        }
        *self.record.request.lock().unwrap() = Some(request);
        let mut events = self.record.events.lock().unwrap().clone();
        events.push_front(ExecEvent::Started { exec: ExecId(1), start: Duration::from_millis(1) });
        Ok(Box::new(Play(Mutex::new(events))))
    }

    async fn attach(&self, _: ExecId, _: Position) -> Result<Box<dyn ExecHandle>> {
        Err(Error::unsupported(ProviderName::Fake, Capability::Stream))
    }

    async fn wait(&self, _: ExecId) -> Result<Ending> {
        Err(Error::unsupported(ProviderName::Fake, Capability::Stream))
    }

    async fn list(&self) -> Result<Vec<ExecInfo>> {
        Ok(Vec::new())
    }

    async fn signal(&self, _: ExecId, _: i32) -> Result<()> {
        Ok(())
    }

    async fn resize(&self, _: ExecId, _: PtySize) -> Result<()> {
        Ok(())
    }

    async fn kill(&self, _: ExecId) -> Result<()> {
        Ok(())
    }
}

struct Play(Mutex<VecDeque<ExecEvent>>);

#[async_trait]
impl ExecHandle for Play {
    async fn next(&self) -> Result<Option<ExecEvent>> {
        Ok(self.0.lock().unwrap().pop_front())
    }

    async fn write(&self, _: Bytes) -> Result<()> {
        Ok(())
    }
}
