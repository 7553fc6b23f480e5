//! Requests to upstreams: over TLS that is verified by the system's certificates, on connections that are kept for a while.

use std::collections::HashMap;
use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::LengthLimitError;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::operation::Upstream;

/// How long a host may take to accept a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(15);
/// A connection that nobody used for as long is not used again: the other side may be closing it.
const KEPT: Duration = Duration::from_secs(20);
/// Connections that are kept for one host.
const MOST_KEPT: usize = 32;

/// What is sent.
pub type Sending = UnsyncBoxBody<Bytes, io::Error>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The host was not reached, so that nothing was asked.
    #[error("cannot reach {0}: {1}")]
    Unreachable(String, io::Error),
    /// It did not answer in time.
    #[error("{0} did not answer in time")]
    Late(String),
    /// It broke off.
    #[error("{0} broke off: {1}")]
    Broken(String, String),
    /// What was to be sent is longer than it may be, and was cut off.
    #[error("the body is too long")]
    TooLong,
}

impl Failed {
    fn broken(host: String, error: &hyper::Error) -> Self {
        let cause =
            error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::get_ref);
        match cause {
            Some(cause) if cause.is::<LengthLimitError>() => Self::TooLong,
            _ => Self::Broken(host, error.to_string()),
        }
    }
}

/// Sends requests.
pub struct Client {
    tls: TlsConnector,
    kept: Arc<Kept>,
}

/// By where they lead, and whether TLS is spoken: what was plain must not carry what goes over TLS.
type Kept = Mutex<HashMap<Way, Vec<(SendRequest<Sending>, Instant)>>>;

/// Whether TLS is spoken, the host and its port.
type Way = (bool, String, u16);

fn way(upstream: &Upstream) -> Way {
    (upstream.tls, upstream.host.clone(), upstream.port)
}

impl Client {
    /// A client that believes what the system believes.
    pub fn new() -> Self {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate of the system cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        Self::trusting(roots)
    }

    /// One that believes these.
    pub fn trusting(roots: RootCertStore) -> Self {
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { tls: TlsConnector::from(Arc::new(config)), kept: Arc::default() }
    }

    /// Sends a request, and waits for the head of the answer. Where a connection that was kept had been closed before anything of
    /// it went out, it goes out on another; what may have been heard is not said twice.
    pub async fn send(
        &self,
        upstream: &Upstream,
        request: Request<Sending>,
        timeout: Duration,
    ) -> Result<Response<Answer>, Failed> {
        let host = upstream.authority();
        let late = || Failed::Late(host.clone());
        if let Some(mut kept) = self.take(&way(upstream)) {
            let sent =
                tokio::time::timeout(timeout, kept.try_send_request(request)).await.map_err(|_| late())?;
            match sent {
                Ok(response) => return Ok(self.answer(response, kept, way(upstream))),
                Err(mut error) => {
                    let Some(request) = error.take_message() else {
                        return Err(Failed::broken(host, &error.into_error()));
                    };
                    return self.send_anew(upstream, request, timeout).await;
                }
            }
        }
        self.send_anew(upstream, request, timeout).await
    }

    async fn send_anew(
        &self,
        upstream: &Upstream,
        request: Request<Sending>,
        timeout: Duration,
    ) -> Result<Response<Answer>, Failed> {
        let host = upstream.authority();
        let connect = tokio::time::timeout(CONNECT, self.connect(upstream)).await;
        let connected = connect.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let mut fresh = connected.map_err(|error| Failed::Unreachable(host.clone(), error))?;
        match tokio::time::timeout(timeout, fresh.send_request(request)).await {
            Ok(Ok(response)) => Ok(self.answer(response, fresh, way(upstream))),
            Ok(Err(error)) => Err(Failed::broken(host, &error)),
            Err(_) => Err(Failed::Late(host)),
        }
    }

    async fn connect(&self, upstream: &Upstream) -> io::Result<SendRequest<Sending>> {
        let stream = TcpStream::connect((upstream.host.as_str(), upstream.port)).await?;
        stream.set_nodelay(true)?;
        if !upstream.tls {
            return converse(stream).await;
        }
        let name = ServerName::try_from(upstream.host.clone()).map_err(io::Error::other)?;
        converse(self.tls.connect(name, stream).await?).await
    }

    fn take(&self, way: &Way) -> Option<SendRequest<Sending>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = kept.get_mut(way)?;
        waiting.retain(|(sender, since)| since.elapsed() < KEPT && !sender.is_closed());
        let at = waiting.iter().rposition(|(sender, _)| sender.is_ready())?;
        Some(waiting.swap_remove(at).0)
    }

    fn answer(
        &self,
        response: Response<Incoming>,
        sender: SendRequest<Sending>,
        way: Way,
    ) -> Response<Answer> {
        response.map(|body| Answer { body, back: Some((self.kept.clone(), way, sender)) })
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

/// Speaks HTTP on a connection, in a task that ends with it.
async fn converse<S>(stream: S) -> io::Result<SendRequest<Sending>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an upstream broke");
        }
    });
    Ok(sender)
}

/// The body of an answer. Its connection is kept once it is read to its end, and closed if it is dropped before.
pub struct Answer {
    body: Incoming,
    back: Option<(Arc<Kept>, Way, SendRequest<Sending>)>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let is_over = matches!(&polled, Poll::Ready(None)) || self.body.is_end_stream();
        if is_over && let Some((kept, way, sender)) = self.back.take() {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = kept.entry(way).or_default();
            if waiting.len() < MOST_KEPT && !sender.is_closed() {
                waiting.push((sender, Instant::now()));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_plain_is_not_kept_for_tls() {
        let ways = ["http://a.example", "https://a.example", "https://a.example:8443", "http://b.example"];
        let ways = ways.map(|text| way(&Upstream::parse(text).unwrap()));
        for (at, one) in ways.iter().enumerate() {
            assert!(ways[at + 1..].iter().all(|other| one != other), "{one:?}");
        }
        assert_eq!(
            ways[0],
            way(&Upstream::parse("http://a.example:80/x").unwrap()),
            "the same host, another path"
        );
    }
}
