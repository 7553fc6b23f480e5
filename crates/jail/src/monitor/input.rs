//! Bytes on their way into the sandbox, no faster than the guest takes them.

use belljar_core::wire::{Frame, MAX_DATA, WINDOW, stream};

use super::link::Link;

/// The input of one conversation.
#[derive(Debug)]
pub(super) struct Input {
    credit: u32,
    waiting: Vec<u8>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Open,
    Reached,
    Sent,
}

impl Input {
    /// Input that has not ended.
    pub(super) fn new() -> Self {
        Self { credit: WINDOW, waiting: Vec::new(), end: End::Open }
    }

    /// Whether more may be taken from the client.
    pub(super) fn wants_more(&self) -> bool {
        self.end == End::Open && self.waiting.is_empty() && self.credit > 0
    }

    /// Takes a piece from the client; an empty one is the end.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.end != End::Open {
            return;
        }
        if bytes.is_empty() {
            self.end = End::Reached;
        } else {
            self.waiting.extend_from_slice(bytes);
        }
    }

    /// The guest takes this much more.
    pub(super) fn grant(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(bytes);
    }

    /// Sends what may be sent.
    pub(super) fn send(&mut self, conversation: u32, guest: &mut Link) {
        while !self.waiting.is_empty() && self.credit > 0 {
            let count = self.waiting.len().min(MAX_DATA).min(self.credit as usize);
            guest.queue(&Frame::data(conversation, stream::INPUT, &self.waiting[..count]));
            self.waiting.drain(..count);
            self.credit -= count as u32;
        }
        if self.waiting.is_empty() && self.end == End::Reached {
            guest.queue(&Frame::end(conversation, stream::INPUT));
            self.end = End::Sent;
        }
    }
}
