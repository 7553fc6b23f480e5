//! Frames on a byte stream: twelve bytes of header, then the payload.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Wall;

/// Bytes of a frame's header: payload length, conversation (both little-endian), kind, stream, two zero bytes.
pub const HEADER_BYTES: usize = 12;

/// The largest control message. Room for the longest command line that the kernel takes.
pub const MAX_CONTROL: usize = 4 * 1024 * 1024;

/// The largest piece of data in one frame.
pub const MAX_DATA: usize = 64 * 1024;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A message in JSON.
    Control,
    /// Bytes of a stream; none means that it ended.
    Data(u8),
    /// Leave to send this many more bytes of a stream (four bytes, little-endian).
    Credit(u8),
}

/// One unit on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The conversation it belongs to.
    pub id: u32,
    /// What it carries.
    pub kind: FrameKind,
    /// The bytes.
    pub payload: Vec<u8>,
}

/// What can be wrong with bytes that claim to be frames. The connection cannot go on after one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A frame kind that does not exist.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A payload longer than its kind allows.
    #[error("frame of {length} bytes where at most {limit} are allowed")]
    TooLong {
        /// What was claimed.
        length: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A stream number that does not exist or that its kind has no use for, or padding that is not zero.
    #[error("malformed frame header")]
    Header,
    /// A credit frame that is not four bytes.
    #[error("malformed credit frame")]
    Credit,
    /// A control frame that does not hold the expected message.
    #[error("malformed message: {0}")]
    Message(String),
}

impl Frame {
    /// A control frame with this message.
    pub fn control<M: Serialize>(id: u32, message: &M) -> Self {
        let payload = serde_json::to_vec(message).unwrap_or_default();
        Self { id, kind: FrameKind::Control, payload }
    }

    /// A data frame; at most [`MAX_DATA`] bytes.
    pub fn data(id: u32, stream: u8, bytes: &[u8]) -> Self {
        debug_assert!(bytes.len() <= MAX_DATA);
        Self { id, kind: FrameKind::Data(stream), payload: bytes.to_vec() }
    }

    /// A frame that says a stream ended.
    pub fn end(id: u32, stream: u8) -> Self {
        Self::data(id, stream, &[])
    }

    /// A frame that grants this many more bytes.
    pub fn credit(id: u32, stream: u8, bytes: u32) -> Self {
        Self { id, kind: FrameKind::Credit(stream), payload: bytes.to_le_bytes().to_vec() }
    }

    /// The message of a control frame.
    pub fn message<M: DeserializeOwned>(&self) -> Result<M, CodecError> {
        serde_json::from_slice(&self.payload).map_err(|error| CodecError::Message(error.to_string()))
    }

    /// The bytes granted by a credit frame.
    pub fn credit_bytes(&self) -> Result<u32, CodecError> {
        let bytes: [u8; 4] = self.payload.as_slice().try_into().map_err(|_| CodecError::Credit)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Appends the frame as it goes on the wire.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&header(self.id, self.kind, self.payload.len()));
        out.extend_from_slice(&self.payload);
    }
}

/// The header of a frame, for callers that keep the payload elsewhere.
pub(super) fn header(id: u32, kind: FrameKind, length: usize) -> [u8; HEADER_BYTES] {
    let (kind, stream) = match kind {
        FrameKind::Control => (0, 0),
        FrameKind::Data(stream) => (1, stream),
        FrameKind::Credit(stream) => (2, stream),
    };
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&id.to_le_bytes());
    bytes[8] = kind;
    bytes[9] = stream;
    bytes
}

/// Turns bytes as they come into frames. It never holds more than one incomplete frame beyond what it was fed, and
/// refuses a frame by its header before its payload arrives.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How much of the buffer has been given out.
    taken: usize,
    max_control: usize,
}

impl Decoder {
    /// A decoder that takes control messages up to this many bytes.
    pub fn new(max_control: usize) -> Self {
        Self { buffer: Vec::new(), taken: 0, max_control }
    }

    /// Takes bytes from the wire.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(4 * MAX_DATA);
        } else if self.taken > 0 {
            self.buffer.drain(..self.taken);
        }
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, CodecError> {
        let waiting = &self.buffer[self.taken..];
        let Some((head, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (length, id) = (word(0) as usize, word(4));
        if head[9] > 2 || head[10] != 0 || head[11] != 0 {
            return Err(CodecError::Header);
        }
        let (kind, limit) = match head[8] {
            0 if head[9] != 0 => return Err(CodecError::Header),
            0 => (FrameKind::Control, self.max_control),
            1 => (FrameKind::Data(head[9]), MAX_DATA),
            2 => (FrameKind::Credit(head[9]), 4),
            other => return Err(CodecError::Kind(other)),
        };
        if length > limit && Wall::FrameBounds.stands() {
            return Err(CodecError::TooLong { length, limit });
        }
        if matches!(kind, FrameKind::Credit(_)) && length != limit {
            return Err(CodecError::Credit);
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let payload = payload.to_vec();
        self.taken += HEADER_BYTES + length;
        Ok(Some(Frame { id, kind, payload }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let kind = prop_oneof![
            Just(FrameKind::Control),
            (0u8..3).prop_map(FrameKind::Data),
            (0u8..3).prop_map(FrameKind::Credit)
        ];
        (any::<u32>(), kind, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
            |(id, kind, mut payload)| {
                if matches!(kind, FrameKind::Credit(_)) {
                    payload.resize(4, 0);
                }
                Frame { id, kind, payload }
            },
        )
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(frames in proptest::collection::vec(any_frame(), 0..8), cut in 1usize..64) {
            let mut bytes = Vec::new();
            frames.iter().for_each(|frame| frame.encode(&mut bytes));
            let mut decoder = Decoder::new(MAX_CONTROL);
            let mut decoded = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.feed(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    decoded.push(frame);
                }
            }
            prop_assert_eq!(decoded, frames);
        }

        #[test]
        fn garbage_is_refused_or_waited_for_but_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(1024);
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }

    #[test]
    fn one_frame_has_one_way_to_be_written() {
        let mut with_stream = header(1, FrameKind::Control, 0);
        with_stream[9] = 1;
        for (head, trouble) in
            [(with_stream, CodecError::Header), (header(1, FrameKind::Credit(0), 3), CodecError::Credit)]
        {
            let mut decoder = Decoder::new(100);
            decoder.feed(&head);
            assert_eq!(decoder.next_frame(), Err(trouble), "refused by its header");
        }
    }

    #[test]
    fn a_length_that_lies_is_refused_by_its_header() {
        let mut decoder = Decoder::new(100);
        decoder.feed(&header(1, FrameKind::Control, 101));
        assert_eq!(decoder.next_frame(), Err(CodecError::TooLong { length: 101, limit: 100 }));
        let mut decoder = Decoder::new(100);
        decoder.feed(&header(1, FrameKind::Data(1), MAX_DATA + 1));
        assert!(decoder.next_frame().is_err());
    }
}
