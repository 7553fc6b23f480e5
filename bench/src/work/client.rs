//! The client of the bench's server (`belljar-peer serve`): times its requests itself, wherever it runs.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Instant;

use crate::flow::{Flow, Kind, PIECE};

/// The size of a small answer.
const SMALL: u64 = 128;

/// Makes requests one after the other, and prints how long each took: with its connection, until its answer is there.
pub(super) fn ask(kept: bool, count: u64, host: &str) -> io::Result<()> {
    let address = resolve(host)?;
    let request = format!("GET /{SMALL} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut told = String::new();
    let mut connection = None;
    for _ in 0..count {
        let start = Instant::now();
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => connect_to(address)?,
        };
        stream.get_mut().write_all(request.as_bytes())?;
        let length = answer(&mut stream)?;
        let body = io::copy(&mut (&mut stream).take(length), &mut io::sink())?;
        let _ = writeln!(told, "{}", start.elapsed().as_nanos());
        if (length, body) != (SMALL, SMALL) {
            return Err(io::Error::other("an answer has another length than was asked for"));
        }
        connection = kept.then_some(stream);
    }
    print!("{told}");
    Ok(())
}

/// What is to be moved one way on one connection.
pub(super) struct Load {
    pub(super) up: bool,
    pub(super) http: bool,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    /// How many bytes in a second at most.
    pub(super) pace: Option<u64>,
}

impl Load {
    /// Moves it, and prints how long it took until the other side had, or had sent, all of it.
    pub(super) fn carry<S: Read + Write>(&self, mut stream: BufReader<S>, host: &str) -> io::Result<()> {
        let Self { up, http, bytes, kind, pace } = *self;
        let mut flow = Flow::new(kind, pace)?;
        let path = match (kind, pace) {
            (Kind::Noise, Some(pace)) => format!("noise/{pace}/{bytes}"),
            (Kind::Text, Some(pace)) => format!("text/{pace}/{bytes}"),
            _ => bytes.to_string(),
        };
        let start = Instant::now();
        let head = match (up, http) {
            (false, false) => format!("down {bytes}\n"),
            (true, false) => format!("up {bytes}\n"),
            (false, true) => format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            (true, true) => format!("PUT / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {bytes}\r\n\r\n"),
        };
        if up {
            flow.give(head.as_bytes(), bytes, stream.get_mut())?;
            let taken =
                if http { answer(&mut stream).map(|_| "taken".to_owned()) } else { line(&mut stream) }?;
            if taken != "taken" {
                return Err(io::Error::other(format!("the server said `{taken}`")));
            }
        } else {
            stream.get_mut().write_all(head.as_bytes())?;
            if http && answer(&mut stream)? != bytes {
                return Err(io::Error::other("the answer has another length than was asked for"));
            }
            let (mut piece, mut left) = (vec![0; PIECE], bytes);
            while left > 0 {
                match stream.read(&mut piece)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    count => left = left.saturating_sub(count as u64),
                }
            }
        }
        println!("{}", start.elapsed().as_nanos());
        Ok(())
    }
}

fn resolve(host: &str) -> io::Result<SocketAddr> {
    host.to_socket_addrs()?.next().ok_or_else(|| io::Error::other(format!("{host} has no address")))
}

/// A connection to a host.
pub(super) fn connect(host: &str) -> io::Result<BufReader<TcpStream>> {
    connect_to(resolve(host)?)
}

fn connect_to(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.by_ref().take(64 * 1024).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// Reads the head of an answer; says how long its body is.
fn answer(stream: &mut impl BufRead) -> io::Result<u64> {
    let status = line(stream)?;
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(format!("the server said `{status}`")));
    }
    let mut length = 0;
    loop {
        let field = line(stream)?;
        if field.is_empty() {
            return Ok(length);
        }
        if let Some(value) = field.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
}
