//! A server of as many bytes as are asked for, with a thread for each connection.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// How much is read or written at once.
const PIECE: usize = 256 * 1024;

pub(crate) fn run(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let content: Arc<[u8]> = vec![b'b'; PIECE].into();
    println!("ready");
    loop {
        let (stream, _) = listener.accept()?;
        let content = content.clone();
        std::thread::spawn(move || {
            if let Err(error) = serve(&stream, &content) {
                eprintln!("belljar-peer: {error}");
            }
        });
    }
}

fn serve(stream: &TcpStream, content: &[u8]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(PIECE, stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["GET", path, "HTTP/1.1"] => {
                let bytes = number(path.trim_start_matches('/'))?;
                fields(&mut reader)?;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
                give(stream, head.as_bytes(), bytes, content)?;
            }
            ["PUT", _, "HTTP/1.1"] => {
                let bytes = fields(&mut reader)?;
                take(&mut reader, bytes)?;
                give(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, content)?;
            }
            ["down", bytes] => give(stream, b"", number(bytes)?, content)?,
            ["up", bytes] => {
                let bytes = number(bytes)?;
                take(&mut reader, bytes)?;
                give(stream, b"taken\n", 0, content)?;
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

/// Sends a head and a body; a small one as one piece.
fn give(mut stream: &TcpStream, head: &[u8], bytes: u64, content: &[u8]) -> io::Result<()> {
    let first = bytes.min(1024);
    stream.write_all(&[head, &content[..first as usize]].concat())?;
    let mut left = bytes - first;
    while left > 0 {
        let now = left.min(content.len() as u64);
        stream.write_all(&content[..now as usize])?;
        left -= now;
    }
    Ok(())
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
