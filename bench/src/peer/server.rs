//! A server of as many bytes as are asked for, with a thread for each connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use rustls::{ServerConnection, StreamOwned};

use super::tls;
use crate::flow::{Flow, Kind, PIECE};

/// Serves until it is killed; over TLS, with a key and a certificate.
pub(crate) fn run(address: &str, identity: Option<(&Path, &Path)>) -> io::Result<()> {
    let config = identity.map(|(key, certificate)| tls::config(key, certificate, &[])).transpose()?;
    let config = config.map(Arc::new);
    let listener = TcpListener::bind(address)?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept()?;
        let config = config.clone();
        std::thread::spawn(move || {
            let served = stream.set_nodelay(true).and_then(|()| match config {
                None => serve(stream),
                Some(config) => {
                    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                    serve(StreamOwned::new(connection, stream))
                }
            });
            if let Err(error) = served {
                eprintln!("belljar-peer: {error}");
            }
        });
    }
}

fn serve(stream: impl Read + Write) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(PIECE, stream);
    let mut same = Flow::new(Kind::Same, None)?;
    let mut line = String::new();
    loop {
        line.clear();
        match reader.read_line(&mut line) {
            Ok(0) => return Ok(()),
            // It hangs up without a word, of TLS.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["GET", path, "HTTP/1.1"] => {
                let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
                let (mut other, bytes) = match parts.as_slice() {
                    [kind, pace, bytes] => {
                        (Some(Flow::new(kind.parse()?, Some(number(pace)?))?), number(bytes)?)
                    }
                    parts => (None, number(&parts.concat())?),
                };
                fields(&mut reader)?;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
                other.as_mut().unwrap_or(&mut same).give(head.as_bytes(), bytes, reader.get_mut())?;
            }
            ["PUT", _, "HTTP/1.1"] => {
                let bytes = fields(&mut reader)?;
                take(&mut reader, bytes)?;
                same.give(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, reader.get_mut())?;
            }
            ["down", bytes] => same.give(b"", number(bytes)?, reader.get_mut())?,
            ["up", bytes] => {
                let bytes = number(bytes)?;
                take(&mut reader, bytes)?;
                same.give(b"taken\n", 0, reader.get_mut())?;
            }
            _ => return Err(io::Error::other(format!("not understood: `{}`", line.escape_debug()))),
        }
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(io::Error::other)
}

/// Reads the fields of a request; says how long its body is.
fn fields(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Ok(length);
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = number(value.trim())?;
        }
    }
}

fn take(reader: &mut impl BufRead, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let there = reader.fill_buf()?.len();
        if there == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = left.min(there as u64);
        reader.consume(now as usize);
        left -= now;
    }
    Ok(())
}
