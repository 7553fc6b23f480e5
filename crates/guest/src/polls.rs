//! What the guest waits for, and on whose behalf.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A descriptor's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The control socket.
    Socket,
    /// A child ended.
    Children,
    /// The alarm rang.
    Alarm,
    /// The filter asks on behalf of someone.
    Question,
    /// A part of a conversation.
    Conversation(u32, Part),
}

/// A descriptor's role in its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Whether the program was started.
    Report,
    /// How it ended.
    Status,
    /// A stream into the sandbox takes more.
    Input,
    /// A stream out of the sandbox has more.
    Output(u8),
    /// A file operation has something to say.
    Results,
}

/// The descriptors of one turn of the loop.
#[derive(Default)]
pub(crate) struct Polls<'fd> {
    descriptors: Vec<PollFd<'fd>>,
    tokens: Vec<Token>,
}

impl<'fd> Polls<'fd> {
    /// Waits for any of these conditions of a descriptor.
    pub(crate) fn add(&mut self, fd: BorrowedFd<'fd>, flags: PollFlags, token: Token) {
        self.descriptors.push(PollFd::from_borrowed_fd(fd, flags));
        self.tokens.push(token);
    }

    /// Waits until a part of a conversation can be read.
    pub(crate) fn read(&mut self, fd: BorrowedFd<'fd>, id: u32, part: Part) {
        self.add(fd, PollFlags::IN, Token::Conversation(id, part));
    }

    /// Waits until a part of a conversation can be written.
    pub(crate) fn write(&mut self, fd: BorrowedFd<'fd>, id: u32, part: Part) {
        self.add(fd, PollFlags::OUT, Token::Conversation(id, part));
    }

    /// Waits (or only looks) and returns what is ready, in the order in which it was added.
    pub(crate) fn turn(mut self, only_look: bool) -> Result<Vec<(Token, PollFlags)>, Errno> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut self.descriptors, only_look.then_some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let states = self.descriptors.iter().map(PollFd::revents);
        Ok(self.tokens.into_iter().zip(states).filter(|(_, state)| !state.is_empty()).collect())
    }
}
