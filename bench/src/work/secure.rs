//! The client of servers that speak TLS (`belljar-peer serve-tls`, or what stands before one), and of the gateway.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub(super) type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// A server, and whom to believe.
pub(super) struct Server {
    host: String,
    config: Arc<ClientConfig>,
}

impl Server {
    /// The server at `HOST:PORT`, whose certificate one of those in the file vouches for.
    pub(super) fn new(host: &str, believed: &Path) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(believed).map_err(io::Error::other)? {
            let _ = roots.add(certificate.map_err(io::Error::other)?);
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self { host: host.to_owned(), config: Arc::new(config) })
    }

    pub(super) fn connect(&self) -> io::Result<Stream> {
        let socket = TcpStream::connect(&self.host)?;
        socket.set_nodelay(true)?;
        let name = self.host.rsplit_once(':').map_or(&*self.host, |(name, _)| name).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let connection = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(BufReader::new(StreamOwned::new(connection, socket)))
    }

    fn request(&self, stream: &mut Stream) -> io::Result<()> {
        let request = format!("GET /128 HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        stream.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line.starts_with("HTTP/") && !line.contains(" 200") {
                return Err(io::Error::other(format!("it was answered {}", line.trim())));
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse::<u64>().ok();
            }
            if line == "\r\n" {
                break;
            }
        }
        let length = length.ok_or_else(|| io::Error::other("an answer does not say how long it is"))?;
        io::copy(&mut stream.take(length), &mut io::sink()).map(drop)
    }

    /// Makes requests one after the other on one connection, and prints how long each took.
    pub(super) fn ask(&self, count: u64) -> io::Result<()> {
        let mut stream = self.connect()?;
        let mut told = String::new();
        for _ in 0..count {
            let start = Instant::now();
            self.request(&mut stream)?;
            let _ = writeln!(told, "{}", start.elapsed().as_nanos());
        }
        print!("{told}");
        Ok(())
    }

    /// Makes requests on several connections for a while, and prints how many there were in a second.
    pub(super) fn load(&self, connections: u64, span: Duration) -> io::Result<()> {
        let count = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..connections)
                .map(|_| {
                    scope.spawn(|| {
                        let mut stream = self.connect()?;
                        while start.elapsed() < span {
                            self.request(&mut stream)?;
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        io::Result::Ok(())
                    })
                })
                .collect();
            clients
                .into_iter()
                .try_for_each(|client| client.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        })?;
        println!("{}", count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Has the gateway stream this many answers at once; says `streaming` once all have begun, and holds them until it is killed.
pub(super) fn stream(count: u64) -> io::Result<()> {
    let variable = |name: &str| std::env::var(name).map_err(io::Error::other);
    let (token, base) = (variable("ANTHROPIC_AUTH_TOKEN")?, variable("ANTHROPIC_BASE_URL")?);
    let rest = base.trim_start_matches("http://");
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let body = r#"{"model":"small","max_tokens":100,"stream":true,"messages":[]}"#;
    let request = format!(
        "POST /{path}/v1/messages HTTP/1.1\r\nHost: {host}\r\nx-api-key: {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect((host, 80))?;
        stream.write_all(request.as_bytes())?;
        held.push(stream);
    }
    for stream in &mut held {
        let mut first = [0; 12];
        stream.read_exact(&mut first)?;
        if !first.ends_with(b"200") {
            return Err(io::Error::other(format!("it was answered {}", String::from_utf8_lossy(&first))));
        }
        stream.set_nonblocking(true)?;
    }
    println!("streaming");
    let mut buffer = [0; 65536];
    loop {
        for stream in &mut held {
            match stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
