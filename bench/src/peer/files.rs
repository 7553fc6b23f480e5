//! A server of files behind a line that all its clients share.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};

use super::tls;

/// How much goes through the line at once.
const PIECE: usize = 16 * 1024;

/// Serves until it is killed; what was asked for is written down beside the directory, in `asked`.
pub(crate) fn run(
    address: &str,
    directory: &Path,
    pace: u64,
    (key, certificate): (&Path, &Path),
) -> io::Result<()> {
    let config = Arc::new(tls::config(key, certificate, &[])?);
    let asked = OpenOptions::new().create(true).append(true).open(directory.with_extension("asked"))?;
    let server =
        Arc::new(Server { directory: directory.to_owned(), pace, free: Mutex::new(Instant::now()), asked });
    let listener = TcpListener::bind(address)?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept()?;
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        let server = server.clone();
        // Clients hang up as they like.
        std::thread::spawn(move || drop(server.serve(StreamOwned::new(connection, stream))));
    }
}

struct Server {
    directory: PathBuf,
    /// Bytes in a second.
    pace: u64,
    /// When the line is free again.
    free: Mutex<Instant>,
    asked: File,
}

impl Server {
    fn serve(&self, stream: impl Read + Write) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let path = first.split_ascii_whitespace().nth(1).unwrap_or("/");
            let to = reader.get_mut();
            match self.find(path) {
                Some((file, kind)) => {
                    let length = file.metadata()?.len();
                    writeln!(&self.asked, "{path} {length}")?;
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
                    );
                    to.write_all(head.as_bytes())?;
                    self.send(file, to)?;
                }
                None => to.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
            }
            to.flush()?;
        }
    }

    fn find(&self, path: &str) -> Option<(File, &'static str)> {
        let below = Path::new(path.trim_start_matches('/'));
        if !below.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let place = self.directory.join(below);
        if place.is_dir() {
            return Some((File::open(place.join("index.html")).ok()?, "text/html"));
        }
        Some((File::open(place).ok()?, "application/octet-stream"))
    }

    /// Sends a file, each piece when it is its turn on the line.
    fn send(&self, mut file: File, to: &mut impl Write) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = file.read(&mut piece)?;
            if count == 0 {
                return Ok(());
            }
            let due = {
                let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
                *free =
                    (*free).max(Instant::now()) + Duration::from_secs_f64(count as f64 / self.pace as f64);
                *free
            };
            sleep(due.saturating_duration_since(Instant::now()));
            to.write_all(&piece[..count])?;
        }
    }
}
