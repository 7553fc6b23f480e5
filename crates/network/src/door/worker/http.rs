//! Plain HTTP: each request is read, judged and written anew; what the server answers is passed on as it is.

use std::time::Duration;

use belljar_core::{ExecId, FlowKind, Verdict};
use tokio::net::TcpStream;

use super::connection::{Connection, Seen, Stop};
use super::dial::{Peer, Width};
use super::first::Opening;
use super::limits::Way;
use super::relay::{Pieces, Tally, receive, send};
use super::served::{Trip, denied};
use super::tape::Conversation;
use crate::http::{BodyReader, Framing, Head, HeadReader, LAST_CHUNK, Progress, write_chunk};
use crate::policy::{Allowed, Denied, Look, Reason, Request, decide, shortened};
use crate::recording;

/// How long a head may take once it has begun.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much is read at a time.
const AT_ONCE: usize = 64 * 1024;

/// Where requests go.
struct To<'a> {
    upstream: &'a TcpStream,
    width: &'a Width<'a>,
    tape: Option<&'a Conversation>,
}

/// The requests of one connection.
pub(super) struct Requests<'a> {
    connection: &'a Connection,
    seen: &'a Seen,
    sent: &'a Tally,
    received: &'a Tally,
    /// The request that is under way, and what had gone through before it.
    current: Option<(Trip, u64, u64)>,
    /// One that was judged before there was anybody to send it to.
    judged: Option<Box<Head>>,
}

impl<'a> Requests<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        seen: &'a Seen,
        sent: &'a Tally,
        received: &'a Tally,
    ) -> Self {
        Self { connection, seen, sent, received, current: None, judged: None }
    }

    /// The last request, to be written down with the connection's end.
    pub(super) fn into_last(mut self) -> Option<Trip> {
        self.take_current()
    }

    fn take_current(&mut self) -> Option<Trip> {
        let (mut trip, sent, received) = self.current.take()?;
        trip.flow.sent = self.sent.get() - sent;
        trip.flow.received = self.received.get() - received;
        Some(trip)
    }

    /// Reads and judges the first request; says as what it was allowed.
    pub(super) async fn first(&mut self, opening: &mut Opening) -> Result<Allowed, Stop> {
        let head = self
            .head(opening)
            .await?
            .ok_or(std::io::ErrorKind::UnexpectedEof)
            .map_err(std::io::Error::from)?;
        let allowed = self.judge(&head).await?;
        self.judged = Some(head);
        Ok(allowed)
    }

    /// Passes on every request that may be made, until there are no more; what is passed on is written down here, if it is.
    pub(super) async fn pass(
        &mut self,
        opening: &mut Opening,
        (upstream, tape): (&TcpStream, Option<&Conversation>),
        (peer, width): (Peer, &Width<'_>),
    ) -> Result<(), Stop> {
        let to = To { upstream, width, tape };
        loop {
            let head = match self.judged.take() {
                Some(head) => head,
                None => {
                    let Some(head) = self.head(opening).await? else { break };
                    let allowed = self.judge(&head).await?;
                    peer.judge(&*self.connection.policy()?, &allowed)?;
                    head
                }
            };
            if let Some((trip, ..)) = &mut self.current {
                trip.flow.address = peer.address();
                trip.begin().await;
            }
            self.forward(&head.write(), &to).await?;
            self.body(&head, opening, &to).await?;
            if !head.keep_alive {
                // Nothing after this would be a request; but the client is not gone.
                loop {
                    let more = receive(&self.connection.client, AT_ONCE).await?.len() as u64;
                    if more == 0 {
                        break;
                    }
                    let passed = self.connection.served.limits.passed(Way::Out, more).await;
                    let what = &self.connection.what;
                    passed.map_err(|reached| Stop::Cut(denied(what.clone(), reached.into())))?;
                    tokio::task::yield_now().await;
                }
                break;
            }
        }
        let _ = rustix::net::shutdown(upstream, rustix::net::Shutdown::Write);
        Ok(())
    }

    /// The next head; nothing where the client has no more requests.
    async fn head(&self, opening: &mut Opening) -> Result<Option<Box<Head>>, Stop> {
        let client = &self.connection.client;
        if opening.bytes.is_empty() {
            // Between requests a connection may rest.
            opening.bytes = receive(client, AT_ONCE).await?;
        }
        let rest = async {
            let mut reader = HeadReader::new();
            loop {
                if opening.bytes.is_empty() {
                    return if reader.is_empty() {
                        Ok(None)
                    } else {
                        Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())
                    };
                }
                match reader.push(&opening.bytes) {
                    Ok(Progress::Done(head, taken)) => {
                        opening.bytes.drain(..taken);
                        return Ok(Some(head));
                    }
                    Ok(Progress::More) => opening.bytes = receive(client, AT_ONCE).await?,
                    Err(bad) => {
                        let what = format!("a request on {}: {bad}", self.connection.what);
                        return Err(Stop::Denied(denied(what, Reason::Malformed)));
                    }
                }
            }
        };
        let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        tokio::time::timeout(PATIENCE, rest).await.unwrap_or_else(|_| late())
    }

    /// Whether a request may be made; it is under way from here on.
    async fn judge(&mut self, head: &Head) -> Result<Allowed, Stop> {
        if let Some(trip) = self.take_current() {
            trip.end(Verdict::Allowed).await;
        }
        let connection = self.connection;
        let allowed = &connection.allowed;
        let mut trip =
            connection.served.trip(connection.exec, FlowKind::Http, head.host.to_string(), Some(head.port));
        trip.flow.request = Some(format!("{} {}", shortened(&head.method), shortened(&head.target)));
        let request = Request {
            host: &head.host,
            port: head.port,
            method: &head.method,
            target: &head.target,
            tls: false,
        };
        self.current = Some((trip, self.sent.get(), self.received.get()));
        let what = || format!("{} http://{}{}", shortened(&head.method), head.host, shortened(&head.target));
        connection.served.limits.request().await.map_err(|reached| denied(what(), reached.into()))?;
        // As it is now, after the wait.
        let allowed = decide::request(&*connection.policy()?, allowed, request)?;
        if let (Look::Requests, Some(header)) = (allowed.look, head.overriding()) {
            let what =
                format!("{} with the header {}, which can mean another request", what(), shortened(header));
            return Err(denied(what, Reason::Malformed).into());
        }
        self.seen.request(head);
        if let Some((trip, ..)) = &mut self.current {
            trip.allowed_by(&allowed);
        }
        Ok(allowed)
    }

    async fn forward(&self, bytes: &[u8], to: &To<'_>) -> Result<(), Stop> {
        if let Some(tape) = to.tape {
            tape.hear(recording::Way::Out)?;
            tape.say(recording::Way::Out, bytes.to_vec()).await;
        }
        send(to.upstream, bytes).await?;
        self.passed(bytes.len() as u64).await
    }

    /// Counts what was sent.
    async fn passed(&self, bytes: u64) -> Result<(), Stop> {
        self.sent.add(bytes);
        let connection = self.connection;
        let passed = connection.served.limits.passed(Way::Out, bytes).await;
        passed.map_err(|reached| Stop::Cut(denied(connection.what.clone(), reached.into())))
    }

    /// Passes on the body, written anew.
    async fn body(&self, head: &Head, opening: &mut Opening, to: &To<'_>) -> Result<(), Stop> {
        let mut reader = BodyReader::new(head.framing);
        let chunked = head.framing == Framing::Chunked;
        let pieces = Pieces::new(&self.connection.client, to.upstream, to.width);
        let mut pieces = pieces.taped(to.tape, recording::Way::Out);
        while !reader.is_over() {
            if opening.bytes.is_empty()
                && let Some(left) = reader.plain()
            {
                let bytes = pieces.pass_on(left).await?;
                if bytes == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
                reader.pass_over(bytes);
                self.passed(bytes).await?;
                continue;
            }
            if opening.bytes.is_empty() {
                opening.bytes = receive(&self.connection.client, AT_ONCE).await?;
                if opening.bytes.is_empty() {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
            }
            // All that is there at once: chunks may be of single bytes.
            let (mut out, mut taken) = (Vec::with_capacity(opening.bytes.len()), 0);
            while !reader.is_over() && taken < opening.bytes.len() {
                let piece = reader.take(&opening.bytes[taken..]).map_err(|bad| {
                    denied(format!("a request on {}: {bad}", self.connection.what), Reason::Malformed)
                })?;
                taken += piece.taken;
                if chunked {
                    write_chunk(piece.content, &mut out);
                } else {
                    out.extend(piece.content);
                }
            }
            if chunked && reader.is_over() {
                out.extend(LAST_CHUNK);
            }
            opening.bytes.drain(..taken);
            self.forward(&out, to).await?;
            // Others have their turn, however fast it comes.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// What a client of HTTP is answered whose request is refused.
pub(super) struct Refusal {
    pub(super) status: &'static str,
    pub(super) body: String,
}

impl Refusal {
    pub(super) fn new(denied: &Denied, exec: Option<ExecId>) -> Self {
        let call = exec.map_or_else(String::new, |exec| format!(" This was asked for by execution {exec}."));
        Self { status: status(denied.reason), body: format!("{denied}{call}\n") }
    }
}

fn status(reason: Reason) -> &'static str {
    match reason {
        Reason::Malformed => "400 Bad Request",
        Reason::TooManyRequests
        | Reason::TooManyConnections
        | Reason::TenantTooManyRequests
        | Reason::TenantTooManyConnections
        | Reason::NoRoom => "429 Too Many Requests",
        _ => "403 Forbidden",
    }
}

/// The same as it is sent where it is plain.
pub(super) fn refusal(denied: &Denied, exec: Option<ExecId>) -> Vec<u8> {
    let Refusal { status, body } = Refusal::new(denied, exec);
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Belljar-Denied: {}\r\nConnection: close\r\n\r\n{body}",
        body.len(),
        denied.reason
    )
    .into_bytes()
}
