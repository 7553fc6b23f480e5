//! Answering from a recording: nothing is dialled, and what was not recorded is refused by name.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belljar_core::Verdict;
use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RANGE};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::connection::{Connection, Stop};
use super::first::{First, Opening, first_words};
use super::http::Refusal;
use super::lingerless;
use super::opened::{Asked, Client, Counts, Speech, converse, greet, plain_answer, upgrade};
use super::rooms::Room;
use super::served::{Trip, denied};
use crate::policy::{Denied, Reason, shortened};
use crate::recording::{Content, Exchange, Finder, Hash, Header, Missing, Question, Stream, Unmask, Way};

/// The longest body of a request that is compared.
const MAX_BODY: usize = 16 << 20;
/// One that is said to be as short is read without asking for room.
const SHORT_BODY: u64 = 64 << 10;
/// How long a body may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much of what a client says is read at a time.
const AT_ONCE: usize = 64 << 10;

/// Serves a connection from the recording, to its end.
pub(super) async fn serve(connection: &Arc<Connection>, trip: Trip) {
    let Some(finder) = connection.served.replay.clone() else { return lingerless(&connection.client) };
    let mut policies = connection.policies.clone();
    let over = async { while policies.changed().await.is_ok() && policies.borrow_and_update().is_some() {} };
    tokio::select! {
        biased;
        // The sandbox has ended.
        () = over => lingerless(&connection.client),
        () = answer(connection, &finder, trip) => {}
    }
}

async fn answer(connection: &Arc<Connection>, finder: &Arc<Finder>, trip: Trip) {
    let (host, port) = (connection.allowed.destination.to_string(), connection.allowed.port);
    // Where a conversation was recorded, the host may have the first word.
    if finder.has_stream(&host, port) {
        return retell(connection, finder, trip).await;
    }
    let mut opening = Opening::default();
    let opener = match first_words(&connection.client, &mut opening).await {
        Ok(First::Tls(_)) => connection.served.opener.as_ref(),
        Ok(First::Http) => None,
        Ok(First::Other | First::BadTls(_)) => {
            let what = format!("{}, of which nothing is in the recording", connection.what);
            trip.denied(&denied(what, Reason::NotRecorded)).await;
            return lingerless(&connection.client);
        }
        Err(error) => {
            trip.failed(error).await;
            return lingerless(&connection.client);
        }
    };
    let counts = Arc::new(Counts::default());
    let Some(room) = connection.served.opened_room() else {
        trip.denied(&denied(connection.what.clone(), Reason::NoRoom)).await;
        return lingerless(&connection.client);
    };
    let (stream, speech) = match greet(connection, opener, opening.bytes, &counts).await {
        Ok(greeted) => greeted,
        Err(Stop::Io(error)) => {
            trip.failed(error).await;
            return lingerless(&connection.client);
        }
        Err(_) => return lingerless(&connection.client),
    };
    // What is asked is told by request.
    trip.told().await;
    let player =
        Player { connection: connection.clone(), finder: finder.clone(), speech, counts, room: room.clone() };
    let player = Arc::new(player);
    let service = service_fn(move |request| player.clone().play(request));
    tokio::select! {
        ended = converse(stream, speech, service) => if let Err(error) = ended {
            tracing::debug!(%error, "a client of a recording broke off");
        },
        // Nothing was asked on it, and its place went to another.
        () = room.given_up() => {}
    }
}

/// Who answers the requests of one connection.
struct Player {
    connection: Arc<Connection>,
    finder: Arc<Finder>,
    speech: Speech,
    counts: Arc<Counts>,
    room: Arc<Room>,
}

type Answer = Either<Full<Bytes>, Played>;

impl Player {
    async fn play(self: Arc<Self>, mut request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
        self.counts.next_request();
        let wish = upgrade::is_asked(request.headers()).then(|| hyper::upgrade::on(&mut request));
        let (parts, body) = request.into_parts();
        let connection = &self.connection;
        let own = &connection.allowed;
        let Some(_place) = connection.served.room_for_request() else {
            let refusal = Refusal::new(&denied(connection.what.clone(), Reason::NoRoom), connection.exec);
            return Ok(super::opened::said(&refusal, Reason::NoRoom));
        };
        let _busy = self.room.busy();
        if let Err(reached) = connection.served.limits.request().await {
            connection.served.turned_away(reached);
            let refusal = Refusal::new(&denied(connection.what.clone(), reached.into()), connection.exec);
            return Ok(super::opened::said(&refusal, reached.into()));
        }
        let trip = |host: String, port| {
            connection.served.trip(connection.exec, self.speech.kind(), host, Some(port))
        };
        let asked = match Asked::read(&parts, (self.speech.is_tls(), true)) {
            Ok(asked) => asked,
            Err(bad) => {
                let denied = denied(format!("a request on {}: {bad}", connection.what), Reason::Malformed);
                return Ok(self.refuse(trip(own.destination.to_string(), own.port), &denied).await);
            }
        };
        let mut trip = trip(asked.host.to_string(), asked.port);
        trip.flow.request = Some(format!("{} {}", shortened(&asked.method), shortened(&asked.target)));
        if let Some(client) = wish {
            return Ok(self.go_over(client, &asked, &parts.headers, trip).await);
        }
        let (body, room) = match self.read(body).await {
            Ok(read) => read,
            Err(why) => {
                let what = format!("{asked}, whose body {why}");
                return Ok(self.refuse(trip, &denied(what, Reason::Malformed)).await);
            }
        };
        self.finder.learn(&parts.headers, &asked.target);
        let sent = body.len() as u64;
        let refusal = match self.find(&asked, &parts.headers, body, room).await {
            Ok(Ok(exchange)) if exchange.answer.withheld => denied(
                format!("{asked}, whose answer was not kept: a secret could not be taken out of it"),
                Reason::NotRecorded,
            ),
            Ok(Ok(exchange)) => {
                trip.flow.sent = sent;
                trip.flow.received = exchange.answer.length;
                trip.flow.rule = Some(format!("recording `{}`", self.finder.how().name));
                trip.end(Verdict::Allowed).await;
                return Ok(self.played(exchange, parts.method == Method::HEAD));
            }
            Ok(Err(missing)) => denied(missing.to_string(), Reason::NotRecorded),
            Err(error) => {
                trip.failed(&error).await;
                return Ok(plain_answer(
                    StatusCode::BAD_GATEWAY,
                    format!("The recording cannot be read: {error}\n"),
                ));
            }
        };
        Ok(self.refuse(trip, &refusal).await)
    }

    /// Finds what was answered, where nobody waits for it but the one who asked.
    async fn find(
        &self,
        asked: &Asked,
        headers: &HeaderMap,
        body: Bytes,
        room: Option<[OwnedSemaphorePermit; 2]>,
    ) -> io::Result<Result<Exchange, Missing>> {
        let (finder, asked) = (self.finder.clone(), asked.clone());
        let [content_type, range] = [CONTENT_TYPE, RANGE]
            .map(|name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned));
        let find = move || {
            let _room = room;
            finder.find(&Question {
                host: &asked.host.to_string(),
                port: asked.port,
                tls: asked.tls,
                method: &asked.method,
                target: &asked.target,
                content_type: content_type.as_deref(),
                range: range.as_deref(),
                body: &body,
            })
        };
        tokio::task::spawn_blocking(find).await.map_err(io::Error::other)?
    }

    /// Reads a body, few long ones at a time; and gives the room that it takes.
    async fn read(&self, body: Incoming) -> Result<(Bytes, Option<[OwnedSemaphorePermit; 2]>), String> {
        let is_short = body.size_hint().upper().is_some_and(|most| most <= SHORT_BODY);
        let read = async {
            let room = if is_short { None } else { self.connection.served.room_for_body().await };
            // What is said in bodies is listened to as it comes.
            let body = body.map_frame(|frame| {
                self.counts.sent.add(frame.data_ref().map_or(0, Bytes::len) as u64);
                frame
            });
            let read = Limited::new(body, MAX_BODY).collect().await;
            Ok((read.map_err(|error| format!("cannot be read: {error}"))?.to_bytes(), room))
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.unwrap_or_else(|_| Err("did not come in time".into()))
    }

    /// Goes over to WebSocket, and says what was said there.
    async fn go_over(
        &self,
        client: OnUpgrade,
        asked: &Asked,
        headers: &HeaderMap,
        trip: Trip,
    ) -> Response<Answer> {
        let found = self.finder.stream(&asked.host.to_string(), asked.port, Some(&asked.target));
        let Ok(Some(stream)) = found else {
            let what =
                format!("{asked}, by WebSocket, is not in the recording, or was not asked for as often");
            return self.refuse(trip, &denied(what, Reason::NotRecorded)).await;
        };
        let mut response = Response::new(Either::Left(Full::default()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let protocol = stream.upgrade.iter().flat_map(|upgrade| &upgrade.answer_headers);
        for (name, value) in protocol.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-protocol"))
        {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()))
            {
                response.headers_mut().insert(name, value);
            }
        }
        upgrade::ask(response.headers_mut());
        if let Some(accept) = headers.get("sec-websocket-key").and_then(|key| accepted(key.as_bytes())) {
            response.headers_mut().insert("sec-websocket-accept", accept);
        }
        let (connection, finder) = (self.connection.clone(), self.finder.clone());
        tokio::spawn(async move {
            let Ok(client) = client.await else { return };
            let told = tell(&connection, &finder, stream, TokioIo::new(client), true).await;
            settle(&finder, trip, told).await;
        });
        response
    }

    async fn refuse(&self, trip: Trip, denied: &Denied) -> Response<Answer> {
        trip.denied(denied).await;
        super::opened::said(&Refusal::new(denied, self.connection.exec), denied.reason)
    }

    fn played(&self, exchange: Exchange, is_head: bool) -> Response<Answer> {
        let headers = header_map(&exchange.answer_headers);
        let body = if is_head {
            Either::Left(Full::default())
        } else {
            Either::Right(Played::new(
                self.finder.clone(),
                exchange.answer,
                header_map(&exchange.answer_trailers),
            ))
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(exchange.status).unwrap_or(StatusCode::BAD_GATEWAY);
        *response.headers_mut() = headers;
        response
    }
}

/// Headers as they were recorded.
fn header_map(recorded: &[Header]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in recorded {
        let header = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()));
        if let (Ok(name), Ok(value)) = header {
            headers.append(name, value);
        }
    }
    headers
}

/// The body of an answer, as it was recorded.
struct Played {
    finder: Arc<Finder>,
    pieces: std::vec::IntoIter<Hash>,
    /// What has been read and not been said.
    rest: Bytes,
    /// When what is to be said, if it takes its time: bytes, and microseconds after the request.
    marks: std::vec::IntoIter<(u64, u64)>,
    began: Option<Instant>,
    next: Option<(u64, Pin<Box<Sleep>>)>,
    is_cut: bool,
    trailers: HeaderMap,
}

impl Played {
    fn new(finder: Arc<Finder>, content: Content, trailers: HeaderMap) -> Self {
        Self {
            began: finder.how().timing.then(Instant::now),
            finder,
            pieces: content.pieces.into_iter(),
            rest: Bytes::new(),
            marks: content.marks.into_iter(),
            next: None,
            is_cut: content.cut,
            trailers,
        }
    }

    /// How much may be said now.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<u64> {
        let Some(began) = self.began else { return Poll::Ready(u64::MAX) };
        if self.next.is_none() {
            let Some((bytes, us)) = self.marks.next() else { return Poll::Ready(u64::MAX) };
            let due = began + Duration::from_micros(us);
            self.next = Some((bytes, Box::pin(tokio::time::sleep_until(due))));
        }
        if let Some((bytes, sleep)) = &mut self.next {
            ready!(sleep.as_mut().poll(context));
            return Poll::Ready(*bytes);
        }
        Poll::Ready(u64::MAX)
    }
}

impl Body for Played {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        while self.rest.is_empty() {
            let Some(hash) = self.pieces.next() else {
                let (broken, trailers) =
                    (std::mem::take(&mut self.is_cut), std::mem::take(&mut self.trailers));
                let last = (!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers)));
                return Poll::Ready(if broken {
                    Some(Err(io::ErrorKind::ConnectionReset.into()))
                } else {
                    last
                });
            };
            match self.finder.reader().piece(hash) {
                Ok(bytes) => self.rest = bytes.into(),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let due = ready!(self.poll_due(context));
        let count = self.rest.len().min(usize::try_from(due).unwrap_or(usize::MAX));
        let said = self.rest.split_to(count);
        match &mut self.next {
            Some((bytes, _)) if *bytes > count as u64 => *bytes -= count as u64,
            next => *next = None,
        }
        Poll::Ready(Some(Ok(Frame::data(said))))
    }
}

/// The answer to the key of a client that asks for WebSocket.
fn accepted(key: &[u8]) -> Option<HeaderValue> {
    const KNOWN: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = Sha1::new().chain_update(key).chain_update(KNOWN).finalize();
    HeaderValue::try_from(STANDARD.encode(digest)).ok()
}

/// Says what the host said in a conversation that began without a request.
async fn retell(connection: &Arc<Connection>, finder: &Finder, trip: Trip) {
    let (host, port) = (connection.allowed.destination.to_string(), connection.allowed.port);
    let told = match finder.stream(&host, port, None) {
        Ok(Some(stream)) => {
            let client = Client::new(connection.clone(), Vec::new(), Arc::new(Counts::unbounded()));
            tell(connection, finder, stream, client, false).await
        }
        Ok(None) => {
            let what = format!("{}, of which there were fewer when it was recorded", connection.what);
            Err(Stop::Denied(denied(what, Reason::NotRecorded)))
        }
        Err(error) => Err(error.into()),
    };
    let is_told = told.is_ok();
    settle(finder, trip, told).await;
    if !is_told {
        lingerless(&connection.client);
    }
}

/// Writes down how a conversation ended.
async fn settle(finder: &Finder, mut trip: Trip, told: Result<(u64, u64), Stop>) {
    match told {
        Ok((heard, said)) => {
            (trip.flow.sent, trip.flow.received) = (heard, said);
            trip.flow.rule = Some(format!("recording `{}`", finder.how().name));
            trip.end(Verdict::Allowed).await;
        }
        Err(Stop::Denied(denied) | Stop::Cut(denied)) => trip.denied(&denied).await,
        Err(Stop::Io(error)) => trip.failed(error).await,
        Err(Stop::Idle | Stop::Over) => trip.failed("the sandbox has ended").await,
    }
}

/// Says what the host said, each time that the client has said what it said then: how many bytes were heard, and said.
async fn tell(
    connection: &Connection,
    finder: &Finder,
    stream: Stream,
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    is_framed: bool,
) -> Result<(u64, u64), Stop> {
    let (mut heard, mut said) = (0, 0);
    let mut ear = Ear { unmask: is_framed.then(Unmask::default), rest: Vec::new() };
    for (way, content) in &stream.said {
        for hash in &content.pieces {
            let bytes = finder.reader().piece(*hash)?;
            match way {
                Way::In => {
                    client.write_all(&bytes).await?;
                    client.flush().await?;
                    said += bytes.len() as u64;
                }
                Way::Out => {
                    ear.hear(connection, &mut client, &bytes).await?;
                    heard += bytes.len() as u64;
                }
            }
        }
    }
    client.shutdown().await?;
    Ok((heard, said))
}

/// Hears what a client says.
struct Ear {
    unmask: Option<Unmask>,
    /// What was heard before it was due.
    rest: Vec<u8>,
}

impl Ear {
    /// Hears just this.
    async fn hear(
        &mut self,
        connection: &Connection,
        client: &mut (impl AsyncRead + Unpin),
        expected: &[u8],
    ) -> Result<(), Stop> {
        let mut buffer = vec![0; AT_ONCE];
        while self.rest.len() < expected.len() && expected.starts_with(&self.rest) {
            let count = client.read(&mut buffer).await?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            match &mut self.unmask {
                Some(unmask) => self.rest.extend(unmask.pass(&buffer[..count])),
                None => self.rest.extend_from_slice(&buffer[..count]),
            }
        }
        if !self.rest.starts_with(expected) {
            let same = self.rest.iter().zip(expected).take_while(|(said, own)| said == own).count();
            let what = format!(
                "what was said on {}, which is another from byte {same} of what was said when it was recorded",
                connection.what
            );
            return Err(Stop::Denied(denied(what, Reason::NotRecorded)));
        }
        self.rest.drain(..expected.len());
        Ok(())
    }
}
