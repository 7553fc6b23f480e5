//! The client of the bench's server (`belljar-peer serve`): times its requests itself, wherever it runs.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Instant;

/// How much is read or written at once.
const PIECE: usize = 256 * 1024;
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
            None => connect(address)?,
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

/// Moves bytes one way on one connection, and prints how long it took until the other side had, or had sent, all of them.
pub(super) fn carry(up: bool, http: bool, bytes: u64, host: &str) -> io::Result<()> {
    let mut stream = connect(resolve(host)?)?;
    let start = Instant::now();
    let head = match (up, http) {
        (false, false) => format!("down {bytes}\n"),
        (true, false) => format!("up {bytes}\n"),
        (false, true) => format!("GET /{bytes} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        (true, true) => format!("PUT / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {bytes}\r\n\r\n"),
    };
    stream.get_mut().write_all(head.as_bytes())?;
    let mut piece = vec![b'b'; PIECE];
    let mut left = bytes;
    if up {
        while left > 0 {
            let now = left.min(PIECE as u64) as usize;
            stream.get_mut().write_all(&piece[..now])?;
            left -= now as u64;
        }
        let taken = if http { answer(&mut stream).map(|_| "taken".to_owned()) } else { line(&mut stream) }?;
        if taken != "taken" {
            return Err(io::Error::other(format!("the server said `{taken}`")));
        }
    } else {
        if http && answer(&mut stream)? != bytes {
            return Err(io::Error::other("the answer has another length than was asked for"));
        }
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

fn resolve(host: &str) -> io::Result<SocketAddr> {
    host.to_socket_addrs()?.next().ok_or_else(|| io::Error::other(format!("{host} has no address")))
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
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
        if let Some(value) = field.strip_prefix("Content-Length: ") {
            length = value.parse().map_err(io::Error::other)?;
        }
    }
}
