//! Bytes that are moved to see how fast they move: what they are like, and how many of them in a second. The client and the server have
//! it in common.

use std::fs::File;
use std::io::{self, Read, Write};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How much is read or written at once.
pub(crate) const PIECE: usize = 256 * 1024;
/// So many bytes have a number at their beginning where no piece may be like another.
const NUMBERED: usize = 16 * 1024;
/// How much of a body goes together with its head.
const FIRST: u64 = 1024;

/// What bytes are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All the same.
    Same,
    /// Without any order; none of them comes again.
    Noise,
    /// Words, in no order that comes again.
    Text,
}

impl FromStr for Kind {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        match text {
            "noise" => Ok(Self::Noise),
            "text" => Ok(Self::Text),
            _ => Err(io::Error::other(format!("there are no bytes like `{}`", text.escape_debug()))),
        }
    }
}

/// Bytes without an end.
pub(crate) struct Flow {
    kind: Kind,
    piece: Vec<u8>,
    number: u64,
    /// How many in a second, where that is bounded.
    pace: Option<u64>,
}

impl Flow {
    pub(crate) fn new(kind: Kind, pace: Option<u64>) -> io::Result<Self> {
        let mut piece = vec![b'b'; PIECE];
        if kind != Kind::Same {
            File::open("/dev/urandom")?.read_exact(&mut piece)?;
        }
        if kind == Kind::Text {
            let words =
                ["the", "bell", "jar", "under", "which", "nothing", "is", "heard", "air", "of", "glass", "a"];
            let text = piece
                .iter()
                .flat_map(|byte| [words[usize::from(*byte) % words.len()], " "].concat().into_bytes());
            piece = text.take(PIECE).collect();
        }
        Ok(Self { kind, piece, number: 0, pace })
    }

    /// Sends so many of them after a head; the first together with it.
    pub(crate) fn give(&mut self, head: &[u8], bytes: u64, to: &mut impl Write) -> io::Result<()> {
        let start = Instant::now();
        let mut given = bytes.min(FIRST);
        to.write_all(&[head, &self.next()[..given as usize]].concat())?;
        while given < bytes {
            let now = (bytes - given).min(PIECE as u64);
            to.write_all(&self.next()[..now as usize])?;
            given += now;
            if let Some(pace) = self.pace {
                let due = Duration::from_secs_f64(given as f64 / pace as f64);
                sleep(due.saturating_sub(start.elapsed()));
            }
        }
        to.flush()
    }

    fn next(&mut self) -> &[u8] {
        if self.kind != Kind::Same {
            for part in self.piece.chunks_exact_mut(NUMBERED) {
                self.number += 1;
                part[..16].copy_from_slice(format!("{:016x}", self.number).as_bytes());
            }
        }
        &self.piece
    }
}
