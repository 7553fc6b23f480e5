//! Connections to the host of one client's requests, over TLS that is verified.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::connection::Stop;
use super::super::dial::{Peer, dial};
use super::super::limits::Place;
use super::super::served::denied;
use super::super::tape::Pause;
use super::streams::{Counted, Counts};
use super::{Connection, Passing, Speech, WAITING, WINDOW, WINDOW_OF_ALL};
use crate::http::MAX_HEAD;
use crate::policy::{Allowed, Destination};
use crate::recording::Way;

/// How long a host may take to agree on TLS.
const GREETING: Duration = Duration::from_secs(15);

/// How long a connection may take to be good for another request.
const SETTLING: Duration = Duration::from_millis(100);

/// The body of a request on its way, counted.
pub(super) struct Sending {
    body: Incoming,
    passing: Arc<Passing>,
    pause: Pause,
}

impl Sending {
    pub(super) fn new(body: Incoming, passing: Arc<Passing>) -> Self {
        Self { body, passing, pause: Pause::default() }
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let taped = this.passing.taped.get();
        ready!(this.pause.poll(taped, context));
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            if let Some(bytes) = frame.data_ref() {
                this.passing.sent.add(bytes.len() as u64);
            }
            taped.inspect(|taped| taped.frame(Way::Out, frame));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One connection to the host.
pub(super) struct Upstream {
    sender: Sender,
    pub(super) peer: Peer,
    /// All but the first take a place of their own.
    _place: Option<Place>,
}

enum Sender {
    /// For one request at a time.
    One(http1::SendRequest<Sending>),
    /// For many.
    Many(http2::SendRequest<Sending>),
}

impl Upstream {
    /// The version that is spoken on it.
    pub(super) fn version(&self) -> Version {
        match &self.sender {
            Sender::One(_) => Version::HTTP_11,
            Sender::Many(_) => Version::HTTP_2,
        }
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Sending>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match &mut self.sender {
            Sender::One(sender) => sender.send_request(request).await,
            Sender::Many(sender) => sender.send_request(request).await,
        }
    }
}

/// The connections to the host, for as long as the client's lasts.
#[derive(Default)]
pub(super) struct Upstreams {
    kept: Mutex<Vec<Upstream>>,
    opened: Mutex<bool>,
    /// One is opened after the other: the next may do with the one before.
    opening: tokio::sync::Mutex<()>,
    tasks: Mutex<JoinSet<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upstreams {
    /// Gives back a connection that is good for another request.
    pub(super) fn give_back(&self, upstream: Upstream) {
        if matches!(upstream.sender, Sender::One(_)) {
            locked(&self.kept).push(upstream);
        }
    }

    /// A connection that is good for a request now, if there is one.
    async fn take(&self, is_brought: bool) -> Option<Upstream> {
        loop {
            let mut upstream = {
                let mut kept = locked(&self.kept);
                // Those of before a change of the policy may lead elsewhere.
                kept.retain(|upstream| matches!(upstream.peer, Peer::Gateway) == is_brought);
                // One that takes many is shared.
                let shared = kept.iter().find_map(|upstream| match &upstream.sender {
                    Sender::Many(sender) if !sender.is_closed() => Some(Upstream {
                        sender: Sender::Many(sender.clone()),
                        peer: upstream.peer,
                        _place: None,
                    }),
                    _ => None,
                });
                match shared {
                    Some(shared) => return Some(shared),
                    None => kept.pop()?,
                }
            };
            if let Sender::One(sender) = &mut upstream.sender
                && matches!(tokio::time::timeout(SETTLING, sender.ready()).await, Ok(Ok(())))
            {
                return Some(upstream);
            }
        }
    }

    /// A connection for a request.
    pub(super) async fn get(
        &self,
        connection: &Connection,
        (speech, is_brought): (Speech, bool),
        allowed: &Allowed,
        counts: &Arc<Counts>,
    ) -> Result<Upstream, Stop> {
        if let Some(upstream) = self.take(is_brought).await {
            return Ok(upstream);
        }
        let _opening = self.opening.lock().await;
        match self.take(is_brought).await {
            Some(upstream) => Ok(upstream),
            None => self.open(connection, (speech, is_brought), allowed, counts).await,
        }
    }

    /// Connects to the host.
    async fn open(
        &self,
        connection: &Connection,
        (speech, is_brought): (Speech, bool),
        allowed: &Allowed,
        counts: &Arc<Counts>,
    ) -> Result<Upstream, Stop> {
        let served = &connection.served;
        let is_first = !std::mem::replace(&mut *locked(&self.opened), true);
        let place = match served.limits.connection() {
            _ if is_first => None,
            Ok(place) => Some(place),
            Err(reached) => return Err(denied(connection.what.clone(), reached.into()).into()),
        };
        if is_brought && let Destination::Name(host) = &allowed.destination {
            let socket = served.gate.bring(&served.id, connection.exec, Some(host)).await?;
            let socket = Counted::new(socket, served.limits.clone(), counts.clone());
            return self.plain(TokioIo::new(socket), Peer::Gateway, place).await;
        }
        let policy = connection.policy()?;
        let (socket, peer) = dial((served, connection.exec), &policy, allowed).await?;
        let socket = Counted::new(socket, served.limits.clone(), counts.clone()).within(&served.room);
        if speech == Speech::Plain {
            return self.plain(TokioIo::new(socket), peer, place).await;
        }
        let name = match &allowed.destination {
            Destination::Name(name) => ServerName::try_from(name.to_string()).map_err(io::Error::other)?,
            Destination::Address(address) => ServerName::from(*address),
        };
        let connector = TlsConnector::from(served.trust.config(speech == Speech::Several));
        let greeting = tokio::time::timeout(GREETING, connector.connect(name, socket)).await;
        let stream = greeting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let is_two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        if is_two {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW_OF_ALL);
            builder.max_send_buf_size(WAITING);
            let (sender, task) = builder.handshake(stream).await.map_err(io::Error::other)?;
            self.attend(async move { drop(task.await) });
            let shared = Sender::Many(sender.clone());
            locked(&self.kept).push(Upstream { sender: shared, peer, _place: place });
            Ok(Upstream { sender: Sender::Many(sender), peer, _place: None })
        } else {
            self.plain(stream, peer, place).await
        }
    }

    /// Speaks the older version on a connection.
    async fn plain<S>(&self, stream: S, peer: Peer, place: Option<Place>) -> Result<Upstream, Stop>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD);
        let (sender, task) = builder.handshake(stream).await.map_err(io::Error::other)?;
        self.attend(async move { drop(task.with_upgrades().await) });
        Ok(Upstream { sender: Sender::One(sender), peer, _place: place })
    }

    /// Has a connection be attended to, until the client is gone.
    fn attend(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}
