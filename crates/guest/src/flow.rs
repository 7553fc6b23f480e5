//! One stream of a conversation in each direction, between a pipe (or terminal) and the connection, under credit.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_core::wire::{MAX_DATA, WINDOW, stream};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::end::End;

/// What a terminal takes for the end of its input.
const END_OF_TRANSMISSION: u8 = 4;

/// How much may still come from a terminal after its first process ended before that end is told. A terminal cannot
/// say how much it holds; this is more than it can.
const TERMINAL_HOLDS: u64 = 1024 * 1024;

/// A stream out of the sandbox. It is read only while there is credit, so that its writer waits for the peer.
pub(crate) struct Outlet {
    source: Option<OwnedFd>,
    stream: u8,
    terminal: bool,
    credit: u64,
    owed: u64,
}

impl Outlet {
    /// Forwards from this end of a pipe, which must not block.
    pub(crate) fn new(source: OwnedFd, stream: u8, terminal: bool) -> Self {
        Self { source: Some(source), stream, terminal, credit: u64::from(WINDOW), owed: 0 }
    }

    /// The number of the stream.
    pub(crate) fn stream(&self) -> u8 {
        self.stream
    }

    /// Takes note of more credit.
    pub(crate) fn grant(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(u64::from(bytes));
    }

    /// The descriptor to wait for, while there is credit for what it would give.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().filter(|_| self.credit > 0).map(AsFd::as_fd)
    }

    /// Notes how much is in the pipe now: that much has to be sent before [`Outlet::is_settled`].
    pub(crate) fn settle(&mut self) {
        let Some(source) = &self.source else { return };
        self.owed = if self.terminal {
            TERMINAL_HOLDS
        } else {
            rustix::io::ioctl_fionread(source).unwrap_or(TERMINAL_HOLDS)
        };
    }

    /// Whether everything that was in the pipe at [`Outlet::settle`] has been sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.source.is_none() || self.owed == 0
    }

    /// Whether a read would bring the stream nearer to being settled.
    pub(crate) fn can_settle(&self) -> bool {
        !self.is_settled() && self.credit > 0
    }

    /// Whether the stream ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.source.is_none()
    }

    /// Forwards one piece.
    pub(crate) fn pump(&mut self, id: u32, connection: &mut Connection, scratch: &mut [u8]) {
        let Some(source) = &self.source else { return };
        let room = self.credit.min(MAX_DATA as u64).min(scratch.len() as u64) as usize;
        if room == 0 {
            return;
        }
        match rustix::io::read(source, &mut scratch[..room]) {
            Ok(count) if count > 0 => {
                connection.data(id, self.stream, &scratch[..count]);
                self.credit -= count as u64;
                self.owed = self.owed.saturating_sub(count as u64);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => self.owed = 0,
            // A terminal whose last holder closed it answers EIO.
            Ok(_) | Err(_) => {
                connection.data(id, self.stream, &[]);
                self.source = None;
            }
        }
    }
}

/// A stream into the sandbox. What the pipe cannot take yet waits here, never more than the window.
pub(crate) struct Inlet {
    sink: Option<OwnedFd>,
    queue: VecDeque<u8>,
    room: usize,
    ending: bool,
    terminal: bool,
}

impl Inlet {
    /// Forwards to this end of a pipe, which must not block; to nowhere if there is none.
    pub(crate) fn new(sink: Option<OwnedFd>, terminal: bool) -> Self {
        Self { sink, queue: VecDeque::new(), room: WINDOW as usize, ending: false, terminal }
    }

    /// The descriptor to wait for, while there is something to give it.
    pub(crate) fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.sink.as_ref().filter(|_| !self.queue.is_empty()).map(AsFd::as_fd)
    }

    /// Takes bytes from the peer; none means that the stream ends.
    pub(crate) fn accept(&mut self, id: u32, bytes: &[u8], connection: &mut Connection) -> Result<(), End> {
        if self.ending {
            return Err(End::Violation(format!("data after the end of input on conversation {id}")));
        }
        if bytes.len() > self.room {
            return Err(End::Violation(format!("more input than the window on conversation {id}")));
        }
        if bytes.is_empty() {
            self.end();
        } else {
            self.room -= bytes.len();
            self.queue.extend(bytes);
        }
        self.pump(id, connection);
        Ok(())
    }

    /// Ends the stream once all that waits has been taken.
    pub(crate) fn end(&mut self) {
        self.ending = true;
        if self.terminal {
            self.queue.push_back(END_OF_TRANSMISSION);
        }
    }

    /// Gives the pipe as much as it takes now, and the peer leave to send as much again.
    pub(crate) fn pump(&mut self, id: u32, connection: &mut Connection) {
        let mut taken = 0;
        while let Some(sink) = &self.sink
            && !self.queue.is_empty()
        {
            let (first, _) = self.queue.as_slices();
            match rustix::io::write(sink, first) {
                Ok(count) => {
                    taken += count;
                    self.queue.drain(..count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // Nobody reads it any more: what still comes is taken and forgotten.
                Err(_) => self.sink = None,
            }
        }
        if self.sink.is_none() {
            taken += self.queue.len();
            self.queue = VecDeque::new();
        }
        if self.queue.is_empty() && self.ending && !self.terminal {
            self.sink = None;
        }
        if taken > 0 && !self.ending {
            self.room += taken;
            connection.credit(id, stream::INPUT, taken);
        }
    }
}
