//! The body of a request: where it ends, so that the next request is found.

use super::{Bad, Framing, MAX_TRAILERS, is_token};

/// Finds the end of a body as it arrives, in pieces of any size.
#[derive(Clone, Debug)]
pub struct BodyReader {
    state: State,
}

/// What the first of some bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Content of the body; may be empty.
    pub content: &'a [u8],
    /// How many of the bytes it took, together with what stands around it.
    pub taken: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// So much content, and then the end.
    Length { left: u64 },
    /// The size of a chunk, as far as it is there.
    Size { size: u64, digits: u32 },
    /// The line feed after a size.
    SizeEnd { size: u64 },
    /// Inside a chunk.
    Chunk { left: u64 },
    /// The two bytes after a chunk.
    ChunkEnd { line_feed: bool },
    /// The trailers, with the line so far.
    Trailers { line: Vec<u8>, total: usize },
    /// The end.
    Over,
}

/// The longest size of a chunk, in digits.
const MAX_DIGITS: u32 = 15;

const SIZE: State = State::Size { size: 0, digits: 0 };

impl BodyReader {
    /// A reader of a body with this framing.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Over,
            Framing::Length(left) => State::Length { left },
            Framing::Chunked => SIZE,
        };
        Self { state }
    }

    /// Whether the body is complete: what follows is the next request.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// How much is left of a body whose length was said before: so much can be passed on without being looked at, if
    /// [`pass_over`](Self::pass_over) is told.
    pub fn plain(&self) -> Option<u64> {
        match self.state {
            State::Length { left } => Some(left),
            _ => None,
        }
    }

    /// Counts content that was passed on without being looked at; it must be [`plain`](Self::plain) and no more than that.
    pub fn pass_over(&mut self, count: u64) {
        if let State::Length { left } = &mut self.state {
            *left = left.saturating_sub(count);
            if *left == 0 {
                self.state = State::Over;
            }
        }
    }

    /// Takes the first of these bytes, up to the end of one run of content. To be called until the bytes are used up or
    /// the body is over. After an error the reader is done with.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<Piece<'a>, Bad> {
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            match &mut self.state {
                State::Over => break,
                State::Length { left } | State::Chunk { left } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= count as u64;
                    if *left == 0 {
                        let chunked = matches!(self.state, State::Chunk { .. });
                        self.state = if chunked { State::ChunkEnd { line_feed: false } } else { State::Over };
                    }
                    return Ok(Piece { content: &rest[..count], taken: taken + count });
                }
                _ => {
                    self.step(rest[0])?;
                    taken += 1;
                }
            }
        }
        Ok(Piece { content: &[], taken })
    }

    /// One byte of what stands around the chunks.
    fn step(&mut self, byte: u8) -> Result<(), Bad> {
        let next = match (&mut self.state, byte) {
            (State::Size { size, digits }, b'\r') if *digits > 0 => State::SizeEnd { size: *size },
            (State::Size { size, digits }, _) => {
                let digit =
                    char::from(byte).to_digit(16).filter(|_| *digits < MAX_DIGITS).ok_or(Bad::Chunk)?;
                State::Size { size: *size << 4 | u64::from(digit), digits: *digits + 1 }
            }
            (State::SizeEnd { size: 0 }, b'\n') => State::Trailers { line: Vec::new(), total: 0 },
            (State::SizeEnd { size }, b'\n') => State::Chunk { left: *size },
            (State::ChunkEnd { line_feed: false }, b'\r') => State::ChunkEnd { line_feed: true },
            (State::ChunkEnd { line_feed: true }, b'\n') => SIZE,
            (State::Trailers { total, .. }, _) => {
                *total += 1;
                if *total > MAX_TRAILERS {
                    return Err(Bad::Trailers);
                }
                return self.trailer(byte);
            }
            _ => return Err(Bad::Chunk),
        };
        self.state = next;
        Ok(())
    }

    fn trailer(&mut self, byte: u8) -> Result<(), Bad> {
        let State::Trailers { line, .. } = &mut self.state else { return Ok(()) };
        match (line.last(), byte) {
            (Some(b'\r'), b'\n') if line.len() == 1 => self.state = State::Over,
            (Some(b'\r'), b'\n') => {
                let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
                let well_formed =
                    line.contains(&b':') && !name.is_empty() && name.iter().copied().all(is_token);
                line.clear();
                return if well_formed { Ok(()) } else { Err(Bad::Trailers) };
            }
            (Some(b'\r'), _) | (_, 0..=8 | 10..=12 | 14..0x20 | 0x7f) => return Err(Bad::Trailers),
            _ => line.push(byte),
        }
        Ok(())
    }
}

/// Writes some content of a chunked body anew. Nothing is written for nothing, which would be the end.
pub fn write_chunk(content: &[u8], out: &mut Vec<u8>) {
    if !content.is_empty() {
        out.extend(format!("{:x}\r\n", content.len()).bytes());
        out.extend(content);
        out.extend(b"\r\n");
    }
}

/// The end of a chunked body, without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
