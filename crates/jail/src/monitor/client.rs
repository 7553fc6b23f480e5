//! One connection to the monitor, and what it is for.

use belljar_core::{ExecId, Position};

use super::input::Input;
use super::link::Link;
use crate::spool::Reader;

/// What a connection is for, once its first frame told.
#[derive(Debug)]
pub(super) enum Role {
    /// Not said yet.
    New,
    /// Follows an execution.
    Follower {
        exec: ExecId,
        /// Reads the spool, unless output comes to this client directly.
        reader: Option<Reader>,
        /// From where on it follows.
        from: Position,
        started: bool,
        /// Its data frames are the execution's input.
        feeds: bool,
        kill_on_close: bool,
    },
    /// Waits for the end of an execution.
    Waits { exec: ExecId },
    /// A file operation, by its conversation with the guest.
    Files { conversation: u32, input: Input },
    /// Waits for everything to stand still.
    AwaitsPause,
    /// Waits for the sandbox to end.
    AwaitsEnd,
    /// Everything was said; goes when the last byte is out.
    Closing,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) link: Link,
    pub(super) role: Role,
    /// Bytes passed to it directly for which the guest was not yet granted new credit, by stream.
    pub(super) owed: [u32; 3],
}

impl Role {
    /// The execution that it is about, if it waits for something of one.
    pub(super) fn execution(&self) -> Option<ExecId> {
        match self {
            Self::Follower { exec, .. } | Self::Waits { exec } => Some(*exec),
            Self::New | Self::Files { .. } | Self::AwaitsPause | Self::AwaitsEnd | Self::Closing => None,
        }
    }
}

impl Client {
    pub(super) fn new(link: Link) -> Self {
        Self { link, role: Role::New, owed: [0; 3] }
    }
}
