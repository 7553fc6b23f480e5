//! What TLS is spoken on: the client's connection from its first word on, and connections to hosts whose bytes are counted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::super::connection::Connection;
use super::super::dial::Room;
use super::super::limits::{Limits, Reached, Way};
use super::super::relay::Tally;

/// The client, of whom some words have been read before.
pub(in super::super) struct Client {
    connection: Arc<Connection>,
    first: Vec<u8>,
    counts: Arc<Counts>,
    heard: u64,
}

/// How much a client may say that is not passed on: for each request, and besides.
const FOR_EACH: u64 = 128 * 1024;
const BESIDES: u64 = 1 << 20;

impl Client {
    pub(in super::super) fn new(connection: Arc<Connection>, first: Vec<u8>, counts: Arc<Counts>) -> Self {
        Self { connection, first, counts, heard: 0 }
    }

    /// Counts what was heard: who keeps saying what is no request is not heard any more.
    fn hear(&mut self, count: usize) -> io::Result<()> {
        self.heard += count as u64;
        let passed_on = self.counts.sent.get().saturating_mul(2);
        let most = BESIDES + passed_on + self.counts.requests().saturating_mul(FOR_EACH);
        if self.heard <= most {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, "the client says too much that is no request"))
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..count]);
            self.first.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let connection = self.connection.clone();
        let client = &connection.client;
        loop {
            ready!(client.poll_read_ready(context))?;
            match client.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(self.hear(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let client = &self.connection.client;
        loop {
            ready!(client.poll_write_ready(context))?;
            match client.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whoever is gone needs not be told.
        let _ = rustix::net::shutdown(&self.connection.client, rustix::net::Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

/// What went through, and the limit that was reached by it, if one was.
#[derive(Debug, Default)]
pub(in super::super) struct Counts {
    pub(in super::super) sent: Tally,
    pub(in super::super) received: Tally,
    requests: AtomicU64,
    reached: Mutex<Option<Reached>>,
}

impl Counts {
    /// For one who is listened to however much it says.
    pub(in super::super) fn unbounded() -> Self {
        let counts = Self::default();
        counts.requests.store(u64::MAX >> 20, Ordering::Relaxed);
        counts
    }

    /// How many requests there were.
    pub(in super::super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The number of another request.
    pub(in super::super) fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn reached(&self) -> Option<Reached> {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<(), Reached>> + Send>>;

/// A connection to a host: as fast as the limits allow.
pub(super) struct Counted {
    socket: TcpStream,
    limits: Arc<Limits>,
    counts: Arc<Counts>,
    waiting: Option<Waiting>,
    /// Where it may be given more room, and how much it has moved.
    room: Option<Room>,
    moved: u64,
    place: Option<OwnedSemaphorePermit>,
}

impl Counted {
    pub(super) fn new(socket: TcpStream, limits: Arc<Limits>, counts: Arc<Counts>) -> Self {
        Self { socket, limits, counts, waiting: None, room: None, moved: 0, place: None }
    }

    /// Has it be given more room once it has moved much.
    pub(super) fn within(self, room: &Room) -> Self {
        Self { room: Some(room.clone()), ..self }
    }

    /// Counts what was moved. What must be waited for on account of it is waited for before the next.
    fn moved(&mut self, way: Way, bytes: usize, context: &mut Context<'_>) -> io::Result<()> {
        let bytes = bytes as u64;
        self.moved = self.moved.saturating_add(bytes);
        if self.place.is_none() {
            self.place = self.room.as_ref().and_then(|room| room.widen(&self.socket, self.moved));
        }
        match way {
            Way::Out => self.counts.sent.add(bytes),
            Way::In => self.counts.received.add(bytes),
        }
        let limits = self.limits.clone();
        self.waiting = Some(Box::pin(async move { limits.passed(way, bytes).await }));
        match self.poll_waiting(context) {
            Poll::Ready(waited) => waited,
            Poll::Pending => Ok(()),
        }
    }

    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(waiting) = &mut self.waiting else { return Poll::Ready(Ok(())) };
        let waited = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(waited.map_err(|reached| {
            *self.counts.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(reached);
            io::Error::new(io::ErrorKind::QuotaExceeded, "a limit of the network is reached")
        }))
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_waiting(context))?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        let count = buffer.filled().len() - before;
        Poll::Ready(self.moved(Way::In, count, context))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_waiting(context))?;
        let count = ready!(Pin::new(&mut self.socket).poll_write(context, bytes))?;
        Poll::Ready(self.moved(Way::Out, count, context).map(|()| count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
