//! A server of HTTP over TLS, HTTP/1.1 and HTTP/2, which answers every request with the same few bytes; or a provider that streams.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What is answered.
const ANSWER: &[u8] = &[b'b'; 128];

/// A server with this key and certificate, which speaks these.
pub(super) fn config(key: &Path, certificate: &Path, protocols: &[&str]) -> io::Result<ServerConfig> {
    let wrong = io::Error::other::<rustls::pki_types::pem::Error>;
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong)?;
    let chain = vec![CertificateDer::from_pem_file(certificate).map_err(wrong)?];
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Serves until it is killed.
pub(super) fn run(address: &str, key: &Path, certificate: &Path) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(config(key, certificate, &["h2", "http/1.1"])?));
    serve(address, move |socket| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(socket).await?;
            let is_two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let answer = service_fn(async |request: Request<Incoming>| {
                request.into_body().collect().await?;
                Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from_static(ANSWER))))
            });
            let stream = TokioIo::new(stream);
            let served = if is_two {
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(stream, answer)
                    .await
            } else {
                hyper::server::conn::http1::Builder::new().serve_connection(stream, answer).await
            };
            served.map_err(io::Error::other)
        }
    })
}

/// A provider that says a word, and then another every so often, until whoever asked is gone.
pub(super) fn run_provider(address: &str, every: Duration) -> io::Result<()> {
    serve(address, move |socket| async move {
        let answer = service_fn(async |request: Request<Incoming>| {
            request.into_body().collect().await?;
            let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"small\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
            let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"word \"}}\n\n";
            let words = stream::unfold(start, move |word| async move {
                if word != start {
                    tokio::time::sleep(every).await;
                }
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(word.as_bytes()))), delta))
            });
            let mut response = Response::new(StreamBody::new(Box::pin(words)));
            let kind = hyper::header::HeaderValue::from_static("text/event-stream");
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
            Ok::<_, hyper::Error>(response)
        });
        let served =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
        served.map_err(io::Error::other)
    })
}

fn serve<F>(address: &str, converse: impl Fn(tokio::net::TcpStream) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = TcpListener::bind(address).await?;
        println!("ready");
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            // One that breaks is the client's concern.
            tokio::task::spawn_local(converse(socket));
        }
    })
}
