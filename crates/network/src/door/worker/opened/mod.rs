//! TLS that is opened: clients speak with the door as if it were the host, each request is judged, and those that may be made go on over
//! TLS of the door's own, which is verified. What goes through is HTTP/1.1 or HTTP/2 on either side. What is recorded comes this way
//! too where it is plain, for here answers are understood.

mod asked;
mod streams;
mod telling;
pub(super) mod upgrade;
mod upstream;

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use belljar_core::{FlowKind, HostName, NetworkPolicy, Verdict};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_EXTENSIONS,
};
use hyper::http::request::Parts;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, AlertDescription, ClientConfig, RootCertStore};

pub(super) use self::asked::Asked;
use self::asked::{overriding, strip_answer};
pub(super) use self::streams::{Client, Counts};
use self::telling::{FromHost, Source, Telling};
use self::upstream::{Sending, Upstreams};
use super::cache;
use super::connection::{Connection, IDLE, Stop};
use super::dial::Peer;
use super::http::Refusal;
use super::relay::Tally;
use super::rooms::{Busy, Room};
use super::served::{Trip, denied};
use super::tape::{Conversation, Pause, Taped};
use crate::authority::Opener;
use crate::http::{MAX_HEAD, MAX_HEADERS};
use crate::policy::{Denied, Look, Reason, decide, shortened};
use crate::recording::Exchange;

/// How long a client may take to agree on TLS.
const GREETING: Duration = Duration::from_secs(30);
/// How long the head of a request may take, and a client be silent between two.
const PATIENCE: Duration = Duration::from_secs(300);
/// How many requests a client may have under way on one connection.
const MOST_STREAMS: u32 = 32;
/// The longest head of a request of HTTP/2.
const MAX_HEADERS_SIZE: u32 = 16 * 1024;
/// How much of each is on its way at a time.
const WINDOW: u32 = 64 * 1024;
/// And of all on a connection.
const WINDOW_OF_ALL: u32 = 256 * 1024;
/// How much of an answer waits for a client.
const WAITING: usize = 16 * 1024;

/// Whom the door believes: those whom the system believes.
#[derive(Debug)]
pub(super) struct Trust {
    certificates: Vec<CertificateDer<'static>>,
    /// To speak HTTP/1.1, and to speak HTTP/2 as well.
    configs: OnceLock<[Arc<ClientConfig>; 2]>,
}

impl Trust {
    /// Finds the system's certificates, while its files can be read.
    pub(super) fn find() -> Self {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate of the system cannot be read");
        }
        Self { certificates: found.certs, configs: OnceLock::new() }
    }

    fn config(&self, several: bool) -> Arc<ClientConfig> {
        let configs = self.configs.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(self.certificates.iter().cloned());
            let one = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            let with = |protocols: &[&[u8]]| {
                let mut config = one.clone();
                config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
                Arc::new(config)
            };
            [with(&[b"http/1.1"]), with(&[b"h2", b"http/1.1"])]
        });
        configs[usize::from(several)].clone()
    }
}

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    /// HTTP/1.1, without TLS.
    Plain,
    /// The same inside TLS.
    One,
    /// HTTP/2 inside TLS, with several requests under way at once.
    Several,
}

impl Speech {
    pub(super) fn is_tls(self) -> bool {
        self != Self::Plain
    }

    pub(super) fn kind(self) -> FlowKind {
        if self.is_tls() { FlowKind::Tls } else { FlowKind::Http }
    }
}

/// What a client speaks on.
pub(super) trait Spoken: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Spoken for S {}

/// Agrees with a client, of whom these words have been read, on how to speak: TLS is opened by this, if it is TLS.
pub(super) async fn greet(
    connection: &Arc<Connection>,
    opener: Option<&Opener>,
    first: Vec<u8>,
    counts: &Arc<Counts>,
) -> Result<(Box<dyn Spoken>, Speech), Stop> {
    let client = Client::new(connection.clone(), first, counts.clone());
    let Some(opener) = opener else { return Ok((Box::new(client), Speech::Plain)) };
    let config = opener.config(&connection.allowed.destination).map_err(io::Error::other)?;
    let greeting = tokio::time::timeout(GREETING, TlsAcceptor::from(config).accept(client)).await;
    let stream = greeting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(distrusted)?;
    let _ = connection.client.set_nodelay(true);
    let several = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((Box::new(stream), if several { Speech::Several } else { Speech::One }))
}

/// Has a service answer a client's requests, as long as there are any.
pub(super) async fn converse<S, B>(
    stream: Box<dyn Spoken>,
    speech: Speech,
    service: S,
) -> Result<(), hyper::Error>
where
    S: HttpService<Incoming, ResBody = B, Error = Infallible, Future: Send + 'static>,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let stream = TokioIo::new(stream);
    if speech == Speech::Several {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(MOST_STREAMS);
        builder.max_header_list_size(MAX_HEADERS_SIZE).max_send_buf_size(WAITING);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW_OF_ALL);
        builder.serve_connection(stream, service).await
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_headers(MAX_HEADERS);
        builder
            .preserve_header_case(true)
            .max_buf_size(MAX_HEAD)
            .serve_connection(stream, service)
            .with_upgrades()
            .await
    }
}

/// Serves a client whose requests are looked at, of whom these words have been read, to its end.
pub(super) async fn serve(
    connection: &Arc<Connection>,
    opener: Option<&Opener>,
    (first, name): (Vec<u8>, Option<HostName>),
    (counts, room): (&Arc<Counts>, &Arc<Room>),
) -> Result<(), Stop> {
    let (stream, speech) = greet(connection, opener, first, counts).await?;
    let opened = Arc::new(Opened {
        connection: connection.clone(),
        name,
        speech,
        counts: counts.clone(),
        room: room.clone(),
        upstreams: Upstreams::default(),
        under_way: Mutex::default(),
        bridge: Mutex::default(),
        has_gone_over: AtomicBool::new(false),
    });
    let service = {
        let opened = opened.clone();
        service_fn(move |request| opened.clone().answer(request))
    };
    let served = async {
        converse(stream, speech, service).await?;
        let bridge = opened.bridge.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(bridge) = bridge
            && let Err(error) = bridge.carry().await
        {
            tracing::debug!(%error, "a connection that had gone over to another protocol broke");
        }
        Ok::<(), hyper::Error>(())
    };
    let mut policies = connection.policies.clone();
    let (mut served, mut moved) = (pin!(served), 0);
    loop {
        tokio::select! {
            // What the policy says now comes before anything that is sent.
            biased;
            _ = policies.changed() => {
                let policy = policies.borrow_and_update().clone().ok_or(Stop::Over)?;
                opened.judge_again(&policy).map_err(Stop::Cut)?;
            }
            unrecorded = connection.served.unrecorded(&connection.what) => return Err(Stop::Cut(unrecorded)),
            ended = &mut served => {
                return match (opened.counts.reached(), ended) {
                    (Some(reached), _) => Err(Stop::Cut(denied(connection.what.clone(), reached.into()))),
                    (None, Err(error)) if counts.requests() == 0 => Err(io::Error::other(error).into()),
                    // How its requests ended is written down with each.
                    (None, _) => Ok(()),
                };
            }
            () = tokio::time::sleep(IDLE) => {
                let now = counts.sent.get() + counts.received.get();
                if now == moved {
                    return Err(Stop::Idle);
                }
                moved = now;
            }
        }
    }
}

/// Says what it means that a client does not go on once it has seen our certificate.
fn distrusted(error: io::Error) -> io::Error {
    let alert = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => Some(*alert),
        _ => None,
    };
    let why = match (alert, error.kind()) {
        (
            Some(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError,
            ),
            _,
        ) => "the client does not believe the certificate by which its TLS is opened",
        (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            "the client hung up when it saw the certificate by which its TLS is opened"
        }
        _ => return error,
    };
    let alert = alert.map_or_else(String::new, |alert| format!(" ({alert:?})"));
    io::Error::other(format!(
        "{why}{alert}: it may have authorities of its own, or know the host's certificate; a rule without methods and paths \
         leaves its TLS closed"
    ))
}

/// A client whose requests are looked at.
struct Opened {
    connection: Arc<Connection>,
    /// The host that it asked for.
    name: Option<HostName>,
    speech: Speech,
    counts: Arc<Counts>,
    room: Arc<Room>,
    upstreams: Upstreams,
    /// Requests that may be made, and where they go.
    under_way: Mutex<HashMap<u64, (Asked, Option<Peer>)>>,
    /// What comes after the last request, where that goes over to another protocol.
    bridge: Mutex<Option<upgrade::Bridge>>,
    /// Whether it has, and there are no requests any more that could be judged.
    has_gone_over: AtomicBool,
}

type Answer = Either<Full<Bytes>, Telling>;

impl Opened {
    fn under_way(&self) -> MutexGuard<'_, HashMap<u64, (Asked, Option<Peer>)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is still allowed, with all that is under way, by the policy as it is now.
    fn judge_again(&self, policy: &NetworkPolicy) -> Result<(), Denied> {
        let own = &self.connection.allowed;
        let allowed = decide::connect(policy, &own.destination, own.port)?;
        if self.speech.is_tls() {
            decide::tls(policy, &allowed, self.name.as_ref())?;
        }
        if allowed.look == Look::Requests && self.has_gone_over.load(Ordering::Relaxed) {
            let what = format!("{}, which has gone over to another protocol", self.connection.what);
            return Err(Denied { what, ..decide::unseen(&allowed) });
        }
        for (asked, peer) in self.under_way().values() {
            let allowed = decide::request(policy, &allowed, asked.request())?;
            peer.map_or(Ok(()), |peer| peer.judge(policy, &allowed))?;
        }
        Ok(())
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
        let serial = self.counts.next_request();
        // Rules about requests know no other protocol.
        let upgrades = self.connection.allowed.look == Look::Any;
        let wish =
            (upgrades && upgrade::is_asked(request.headers())).then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        let connection = &self.connection;
        let own = &connection.allowed;
        let Some(room) = connection.served.room_for_request() else {
            let refusal = Refusal::new(&denied(connection.what.clone(), Reason::NoRoom), connection.exec);
            return Ok(said(&refusal, Reason::NoRoom));
        };
        let room = (room, self.room.busy());
        let asked = Asked::read(&parts, (self.speech.is_tls(), upgrades));
        if asked.is_err() {
            // What may be large does not wait.
            parts.headers = HeaderMap::new();
        }
        // Whatever it is, it counts.
        let limited = connection.served.limits.request().await;
        if let Err(reached) = limited
            && reached.is_haste()
        {
            // Told together with others.
            connection.served.turned_away(reached);
            let refusal = Refusal::new(&denied(connection.what.clone(), reached.into()), connection.exec);
            return Ok(said(&refusal, reached.into()));
        }
        let trip = |host: String, port| {
            connection.served.trip(connection.exec, self.speech.kind(), host, Some(port))
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(bad) => {
                let denied = denied(format!("a request on {}: {bad}", connection.what), Reason::Malformed);
                return Ok(self.refuse(trip(own.destination.to_string(), own.port), &denied).await);
            }
        };
        let mut trip = trip(asked.host.to_string(), asked.port);
        trip.flow.request = Some(format!("{} {}", shortened(&asked.method), shortened(&asked.target)));
        if let Err(reached) = limited {
            return Ok(self.refuse(trip, &denied(asked.to_string(), reached.into())).await);
        }
        if let Some(unrecorded) = connection.served.is_unrecorded(&asked.to_string()) {
            return Ok(self.refuse(trip, &unrecorded).await);
        }
        let passing = Arc::new(Passing::new(self.clone(), serial, trip, room));
        Ok(match passing.pass(&asked, (parts, body), wish.is_some()).await {
            Ok(mut response) => {
                let is_other = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                if let (true, Some(client)) = (is_other, wish) {
                    let host = hyper::upgrade::on(&mut response);
                    passing.converse(response.headers());
                    self.has_gone_over.store(true, Ordering::Relaxed);
                    let bridge = upgrade::Bridge { client, host, passing: passing.clone() };
                    *self.bridge.lock().unwrap_or_else(PoisonError::into_inner) = Some(bridge);
                }
                let (mut head, body) = response.into_parts();
                strip_answer(&mut head.headers);
                if is_other {
                    upgrade::ask(&mut head.headers);
                }
                head.version = Version::HTTP_11;
                passing.taped.get().inspect(|taped| taped.answered(head.status.as_u16(), &head.headers));
                let telling = Telling { source: body, passing, pause: Pause::default() };
                Response::from_parts(head, Either::Right(telling))
            }
            Err(Stop::Denied(denied) | Stop::Cut(denied)) => match passing.take() {
                Some(trip) => self.refuse(trip, &denied).await,
                None => said(&Refusal::new(&denied, connection.exec), denied.reason),
            },
            Err(stop) => {
                let why = match stop {
                    Stop::Io(error) => error.to_string(),
                    _ => "the sandbox has ended".to_owned(),
                };
                passing.taped.get().inspect(|taped| taped.failed(&why));
                if let Some(trip) = passing.take() {
                    trip.failed(&why).await;
                }
                plain_answer(StatusCode::BAD_GATEWAY, format!("{} did not answer: {why}\n", own.destination))
            }
        })
    }

    async fn refuse(&self, trip: Trip, denied: &Denied) -> Response<Answer> {
        trip.denied(denied).await;
        said(&Refusal::new(denied, self.connection.exec), denied.reason)
    }
}

/// What a client is answered whose request is refused.
pub(super) fn said<B>(refusal: &Refusal, reason: Reason) -> Response<Either<Full<Bytes>, B>> {
    let status = StatusCode::from_bytes(&refusal.status.as_bytes()[..3]).unwrap_or(StatusCode::FORBIDDEN);
    let mut response = plain_answer(status, refusal.body.clone());
    let reason = HeaderValue::from_static(reason.as_str());
    response.headers_mut().insert(HeaderName::from_static("x-belljar-denied"), reason);
    response
}

/// An answer of plain text.
pub(super) fn plain_answer<B>(status: StatusCode, text: String) -> Response<Either<Full<Bytes>, B>> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A request that is under way: until nothing of it moves any more, either way, when this is dropped, and it is written down.
struct Passing {
    opened: Arc<Opened>,
    serial: u64,
    trip: Mutex<Option<Trip>>,
    /// Given back when it is over.
    _room: (OwnedSemaphorePermit, Busy),
    sent: Tally,
    received: Tally,
    cached: Tally,
    /// Whether an answer has come.
    is_answered: AtomicBool,
    failed: Mutex<Option<String>>,
    /// What is written down of it in a recording.
    taped: OnceLock<Taped>,
    /// And of what is said after it has gone over to another protocol.
    conversation: OnceLock<Conversation>,
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.opened.under_way().remove(&self.serial);
        let Some(mut trip) = self.take() else { return };
        (trip.flow.sent, trip.flow.received) = (self.sent.get(), self.received.get());
        trip.flow.cached = self.cached.get();
        let failed = self.failed.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let verdict = match failed {
            Some(error) => Verdict::Failed { error },
            None if self.is_answered.load(Ordering::Relaxed) => Verdict::Allowed,
            None => Verdict::Failed { error: "the client did not wait for an answer".into() },
        };
        if let (Some(taped), Verdict::Failed { error }) = (self.taped.get(), &verdict) {
            taped.failed(error);
        }
        tokio::spawn(trip.end(verdict));
    }
}

impl Passing {
    fn new(opened: Arc<Opened>, serial: u64, trip: Trip, room: (OwnedSemaphorePermit, Busy)) -> Self {
        Self {
            opened,
            serial,
            trip: Mutex::new(Some(trip)),
            _room: room,
            sent: Tally::default(),
            received: Tally::default(),
            cached: Tally::default(),
            is_answered: AtomicBool::new(false),
            failed: Mutex::default(),
            taped: OnceLock::new(),
            conversation: OnceLock::new(),
        }
    }

    fn trip(&self) -> MutexGuard<'_, Option<Trip>> {
        self.trip.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be written down, by somebody else.
    fn take(&self) -> Option<Trip> {
        self.trip().take()
    }

    /// It goes over to another protocol, with this answer.
    fn converse(&self, headers: &HeaderMap) {
        if let Some(taped) = self.taped.get() {
            taped.answered(StatusCode::SWITCHING_PROTOCOLS.as_u16(), headers);
            self.conversation.get_or_init(|| taped.converse());
        }
    }

    fn failed(&self, error: String) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Judges a request and makes it, unless its answer is kept; answers the head of the answer, and where its body comes from.
    async fn pass(
        self: &Arc<Self>,
        asked: &Asked,
        (mut parts, body): (Parts, Incoming),
        upgrades: bool,
    ) -> Result<Response<Source>, Stop> {
        let Opened { connection, upstreams, counts, .. } = &*self.opened;
        // As it is now, after the wait.
        let policy = connection.policy()?;
        let allowed = decide::request(&policy, &connection.allowed, asked.request())?;
        if let Some(header) = overriding(&parts.headers) {
            let what =
                format!("{asked} with the header {}, which can mean another request", shortened(header));
            return Err(denied(what, Reason::Malformed).into());
        }
        if let Some(trip) = &mut *self.trip() {
            trip.allowed_by(&allowed);
        }
        // From here on it is judged again when the policy changes.
        self.opened.under_way().insert(self.serial, (asked.clone(), None));
        let own = &connection.allowed;
        let is_brought =
            policy.rules().is_some_and(|rules| decide::is_brought(rules, &own.destination, own.port));
        // What the gateway asks with its keys is nobody else's.
        let cache = connection.served.cache.as_ref().filter(|_| !is_brought && body.is_end_stream());
        let question = cache.and_then(|cache| Some((cache, cache.question(asked, &parts.headers)?)));
        let wanted = match &question {
            Some((cache, question)) => cache.wanted(question).await,
            None => None,
        };
        let mut upstream =
            upstreams.get(connection, (self.opened.speech, is_brought), &allowed, counts).await?;
        upstream.peer.judge(&*connection.policy()?, &allowed)?;
        if let Some((_, peer)) = self.opened.under_way().get_mut(&self.serial) {
            *peer = Some(upstream.peer);
        }
        // What is kept is had by those who could ask for it now.
        if let (Some((cache, _)), Some(wanted)) = (&question, &wanted)
            && let Some(kept) = cache.find(wanted).await
        {
            let policy = connection.policy()?;
            upstream.peer.judge(&policy, &decide::request(&policy, own, asked.request())?)?;
            self.begin(asked, &parts.headers, upstream.peer.address()).await;
            upstreams.give_back(upstream);
            self.is_answered.store(true, Ordering::Relaxed);
            return Ok(kept.map(|body| Source::Disk(Box::new(body))));
        }
        if connection.served.recorder.is_some() {
            // What comes back is looked into, by whoever reads the recording and by ourselves.
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            parts.headers.remove(SEC_WEBSOCKET_EXTENSIONS);
        } else if question.is_some() {
            cache::ask_plainly(&mut parts.headers);
        }
        self.begin(asked, &parts.headers, upstream.peer.address()).await;
        asked
            .address(&mut parts, upstream.version(), &body)
            .map_err(|bad| denied(format!("{asked}: {bad}"), Reason::Malformed))?;
        if upgrades && upstream.version() == Version::HTTP_11 {
            upgrade::ask(&mut parts.headers);
        }
        let body = Sending::new(body, self.clone());
        let response = upstream.send(Request::from_parts(parts, body)).await;
        let response = response.map_err(|error| match counts.reached() {
            Some(reached) => Stop::Denied(denied(asked.to_string(), reached.into())),
            None => io::Error::other(error).into(),
        })?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrades {
            return Err(io::Error::other("the host speaks another protocol").into());
        }
        self.is_answered.store(true, Ordering::Relaxed);
        let ear = match question {
            Some((cache, question)) => {
                cache.listen(question, wanted, (response.status(), response.headers())).await
            }
            None => None,
        };
        Ok(response.map(|body| Source::Host(Box::new(FromHost { body, upstream: Some(upstream), ear }))))
    }

    /// Says that it begins, and begins to write it down.
    async fn begin(&self, asked: &Asked, headers: &HeaderMap, address: Option<IpAddr>) {
        let Opened { connection, speech, .. } = &*self.opened;
        let begun = self.trip().as_mut().map(|trip| {
            trip.flow.address = address;
            trip.begun()
        });
        if let Some(begun) = begun {
            connection.served.say(begun).await;
        }
        if let Some(recorder) = &connection.served.recorder {
            let exchange = Exchange {
                host: asked.host.to_string(),
                port: asked.port,
                tls: asked.tls,
                version: if *speech == Speech::Several { "2" } else { "1.1" }.into(),
                method: asked.method.clone(),
                target: asked.target.clone(),
                ..Exchange::default()
            };
            let taped = self.taped.get_or_init(|| Taped::new(recorder.clone(), connection.exec, exchange));
            taped.asked(headers);
        }
    }
}
