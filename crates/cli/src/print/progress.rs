//! A line on the terminal that says how far a long copy is.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use belljar_core::{ByteSize, ByteStream};
use futures_util::StreamExt;

use super::{Printer, escape};

/// Copies smaller than this are over before anybody wonders.
const WORTH_SHOWING: u64 = 32 * 1024 * 1024;

/// Passes a stream on and shows how much of it has passed, on a terminal and once it is long.
pub(crate) fn shown(stream: ByteStream, printer: Printer, name: &str, total: Option<u64>) -> ByteStream {
    let short = total.is_some_and(|total| total < WORTH_SHOWING);
    if !printer.errors_to_terminal || printer.quiet || short {
        return stream;
    }
    let mut line = Line { name: escape::escape(name).into_owned(), total, done: 0, drawn: None };
    Box::pin(stream.inspect(move |piece| line.advance(piece.as_ref().map_or(0, |bytes| bytes.len() as u64))))
}

struct Line {
    name: String,
    total: Option<u64>,
    done: u64,
    drawn: Option<Instant>,
}

impl Line {
    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() > Duration::from_millis(100));
        if self.done >= WORTH_SHOWING && due {
            self.drawn = Some(Instant::now());
            let _ = write!(io::stderr(), "\r\x1b[K{}", self.text());
        }
    }

    fn text(&self) -> String {
        match self.total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = (self.done.min(total) as f64 / total as f64 * 100.0) as u64;
                format!("{}  {} of {}  {percent}%", self.name, ByteSize(self.done), ByteSize(total))
            }
            None => format!("{}  {}", self.name, ByteSize(self.done)),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is() {
        let line = |total| Line { name: "big.bin".into(), total, done: 64 << 20, drawn: None }.text();
        assert_eq!(line(Some(128 << 20)), "big.bin  64 MiB of 128 MiB  50%");
        assert_eq!(line(None), "big.bin  64 MiB");
    }
}
