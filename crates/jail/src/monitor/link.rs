//! A framed socket that never blocks: bytes are read and written when the kernel has room, frames come and go whole.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_core::wire::{CodecError, Decoder, Frame};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::doorway;

/// How much is read at once.
const READ_BYTES: usize = 128 * 1024;

/// One end of a framed connection.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    decoder: Decoder,
    outgoing: Vec<u8>,
    sent: usize,
}

/// Whether the other side is still there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Open,
    Closed,
}

impl Link {
    /// Frames over a non-blocking socket, with control messages up to this size.
    pub(super) fn new(socket: OwnedFd, max_control: usize) -> Self {
        Self { socket, decoder: Decoder::new(max_control), outgoing: Vec::new(), sent: 0 }
    }

    /// Reads once; the bytes become frames through [`next_frame`](Self::next_frame).
    pub(super) fn fill(&mut self, buffer: &mut Vec<u8>) -> io::Result<Presence> {
        buffer.resize(READ_BYTES, 0);
        match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Presence::Closed),
            Ok((count, _)) => {
                self.decoder.feed(&buffer[..count]);
                Ok(Presence::Open)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Presence::Open),
            Err(error) => Err(error.into()),
        }
    }

    /// The next whole frame that has arrived.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, CodecError> {
        self.decoder.next_frame()
    }

    /// Puts a frame in line and sends what the kernel takes. An error shows at the next [`fill`](Self::fill).
    pub(super) fn queue(&mut self, frame: &Frame) {
        frame.encode(&mut self.outgoing);
        if self.pending() > 64 * 1024 {
            let _ = self.flush();
        }
    }

    /// Sends a frame with descriptors, to one to whom nothing has been said yet. If that cannot be done at once, it is an error.
    pub(super) fn send_with(&mut self, frame: &Frame, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.pending() > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let sent = doorway::pass(&self.socket, &bytes, descriptors)?;
        self.outgoing.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends what the kernel takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match send(&self.socket, &self.outgoing[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Keep the buffer from creeping along forever.
                    if self.sent > 1 << 20 {
                        self.outgoing.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        if self.outgoing.capacity() > 1 << 20 {
            self.outgoing.shrink_to(64 * 1024);
        }
        self.sent = 0;
        Ok(())
    }

    /// Bytes waiting to be sent.
    pub(super) fn pending(&self) -> usize {
        self.outgoing.len() - self.sent
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
