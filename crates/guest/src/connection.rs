//! The control socket: frames in, frames out, never waiting for the peer.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_core::wire::{Decoder, Event, Frame, HEADER_BYTES, MAX_CONTROL, MAX_DATA};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::end::End;

/// When this many bytes wait to be taken by the peer, nothing more is read from the sandbox's pipes.
const CONGESTED: usize = 512 * 1024;

/// When this many bytes wait, no more requests are read either: a peer that asks without listening has to wait.
const OVERFULL: usize = 4 * 1024 * 1024;

/// The guest's side of the control socket.
pub(crate) struct Connection {
    socket: OwnedFd,
    decoder: Decoder,
    outgoing: VecDeque<u8>,
}

impl Connection {
    /// Speaks over this socket, which must not block.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, decoder: Decoder::new(MAX_CONTROL), outgoing: VecDeque::new() }
    }

    /// Reads what has come, once.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<(), End> {
        match rustix::io::read(&self.socket, &mut *scratch) {
            Ok(0) => Err(End::Closed),
            Ok(count) => {
                self.decoder.feed(&scratch[..count]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(Errno::CONNRESET) => Err(End::Closed),
            Err(errno) => Err(End::Failed { step: "read the control socket", errno }),
        }
    }

    /// The next frame among what was read.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, End> {
        self.decoder.next_frame().map_err(|error| End::Violation(error.to_string()))
    }

    /// Queues an event.
    pub(crate) fn event(&mut self, id: u32, event: &Event) {
        self.queue(&Frame::control(id, event));
    }

    /// Sends an event, with all that waits before it. Waits for a peer that is slow to take it, but not for one that stands
    /// still: then it stays queued. What goes wrong shows at the next flush.
    pub(crate) fn event_now(&mut self, id: u32, event: &Event) {
        const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
        self.event(id, event);
        while self.flush().is_ok() && self.is_waiting() {
            let taken = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&PATIENCE));
            if !matches!(taken, Ok(1..) | Err(Errno::INTR)) {
                return;
            }
        }
    }

    /// Queues a piece of data; an empty one ends the stream. The caller has the credit for it.
    pub(crate) fn data(&mut self, id: u32, stream: u8, bytes: &[u8]) {
        debug_assert!(bytes.len() <= MAX_DATA);
        self.queue(&Frame::data(id, stream, bytes));
    }

    /// Queues leave for the peer to send this much more.
    pub(crate) fn credit(&mut self, id: u32, stream: u8, bytes: usize) {
        self.queue(&Frame::credit(id, stream, bytes as u32));
    }

    fn queue(&mut self, frame: &Frame) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + frame.payload.len());
        frame.encode(&mut bytes);
        self.outgoing.extend(bytes);
    }

    /// Gives the peer as much as it takes now.
    pub(crate) fn flush(&mut self) -> Result<(), End> {
        while !self.outgoing.is_empty() {
            let (first, _) = self.outgoing.as_slices();
            match rustix::net::send(&self.socket, first, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(End::Closed),
                Err(errno) => return Err(End::Failed { step: "write the control socket", errno }),
            }
        }
        if self.outgoing.capacity() > 4 * MAX_DATA {
            self.outgoing = VecDeque::new();
        }
        Ok(())
    }

    /// Whether anything waits to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether so much waits that nothing should be added which can stay where it is.
    pub(crate) fn is_congested(&self) -> bool {
        self.outgoing.len() >= CONGESTED
    }

    /// Whether so much waits that even requests should stay where they are.
    pub(crate) fn is_overfull(&self) -> bool {
        self.outgoing.len() >= OVERFULL
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
