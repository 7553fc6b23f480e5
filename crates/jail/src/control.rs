//! What is said with a sandbox's monitor. One connection carries one operation: its first frame is an [`Open`],
//! answers follow, and closing it early means that the caller no longer wants it.

use std::time::Duration;

use belljar_core::wire::{Event, FileRequest};
use belljar_core::{
    Ending, Error, ErrorCode, ExecId, ExecInfo, ExecRequest, Position, PtySize, Purpose, SandboxState,
    SandboxStats, Stream, Termination, Usage,
};
use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const PROTOCOL: u32 = 2;

/// The conversation number on which everything is said.
pub const CONVERSATION: u32 = 1;

/// The first frame of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Open {
    /// [`PROTOCOL`] of the caller.
    pub protocol: u32,
    /// Which engine asks: the monitor does nothing for one whose number is lower than the highest it has heard. Without
    /// one nobody is meant but the caller, and nothing is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// What it wants.
    pub request: Request,
}

/// What can be asked of a monitor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Runs a command: `Started`, output, `Finished`. Input data frames are its standard input.
    Exec {
        /// The command.
        request: Box<ExecRequest>,
        /// Kill it if this connection closes before its end.
        kill_on_close: bool,
    },
    /// Follows an execution.
    Attach {
        /// Which.
        exec: ExecId,
        /// From where on.
        #[serde(default)]
        from: Position,
    },
    /// `Finished` when an execution has ended, without its output.
    Wait {
        /// Which.
        exec: ExecId,
    },
    /// Signals every process of an execution; `Done`.
    Signal {
        /// Which.
        exec: ExecId,
        /// The signal.
        signal: i32,
    },
    /// Kills an execution; `Done`.
    KillExec {
        /// Which.
        exec: ExecId,
    },
    /// Resizes the terminal of an execution; `Done`.
    Resize {
        /// Which.
        exec: ExecId,
        /// To what.
        size: PtySize,
    },
    /// `Executions`.
    Executions,
    /// A file operation: the guest's events follow as `Guest`, bulk bytes as data frames.
    File(FileRequest),
    /// `Status`.
    Status,
    /// Lets the sandbox live this long from now; `Status`.
    Extend {
        /// How long.
        ttl: Duration,
    },
    /// Stops all executions and the clocks; `Done` when they stand still.
    Pause,
    /// Lets them go on; `Done`.
    Resume,
    /// Nothing but the epoch that comes with it: `Done`, after which no operation of an older one can begin.
    Fence,
    /// Ends the sandbox; `Done` once every process is dead.
    Kill,
    /// Only waits for that; `Done` once every process is dead.
    AwaitEnd,
    /// `Doorway`, with the sockets at which the sandbox's traffic arrives. For the door, which is no engine: whatever
    /// epoch comes with it is passed over.
    Doorway,
    /// `Disk`, with the file system of the sandbox's own files.
    Disk,
    /// `Whose`. For the door as well.
    Whose {
        /// The mark of a packet or connection.
        mark: u32,
    },
}

/// What a monitor answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The execution runs.
    Started {
        /// Its number.
        exec: ExecId,
        /// From the request's arrival to the first instruction, in microseconds.
        start_us: u64,
    },
    /// Output that was not kept.
    Gap {
        /// Of which stream.
        stream: Stream,
        /// How much.
        bytes: u64,
    },
    /// The execution is over; the connection closes.
    Finished {
        /// How.
        termination: Termination,
        /// What it used.
        usage: Usage,
        /// From first instruction to end, in microseconds.
        duration_us: u64,
        /// Kills for want of memory meanwhile.
        oom_kills: Option<u64>,
    },
    /// What the guest said about a file operation.
    Guest(Event),
    /// All executions.
    Executions(Vec<ExecInfo>),
    /// How the sandbox is.
    Status {
        /// Whether it runs or is paused.
        state: SandboxState,
        /// What is left of its life.
        remaining: Duration,
        /// What it uses.
        stats: Box<SandboxStats>,
    },
    /// Two sockets of each family come along: for connections, and for questions about names.
    Doorway {
        /// Whether what arrives has the mark of its execution.
        marks: bool,
    },
    /// A descriptor comes along.
    Disk,
    /// The execution whose packets have this mark, if one is known.
    Whose(Option<Caller>),
    /// It is done.
    Done,
    /// It could not be done.
    Failed(Error),
}

/// Who sends packets with a mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Which execution.
    pub exec: ExecId,
    /// What it is a part of.
    #[serde(default, skip_serializing_if = "Purpose::is_empty")]
    pub purpose: Purpose,
}

/// How a sandbox ended, as its monitor (or, if that was killed, its launcher) left it on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub state: SandboxState,
    /// What it had used.
    #[serde(default)]
    pub stats: Option<SandboxStats>,
}

/// An execution of a sandbox that has ended, as its monitor left it on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    /// What it was.
    pub info: ExecInfo,
    /// From the request's arrival to its first instruction, in microseconds.
    pub start_us: u64,
    /// How it ended.
    pub ending: Ending,
    /// How much it had said; its spool has what was kept of that.
    pub end: Position,
}

/// The name of the file with those in the sandbox's spool directory.
pub const EXECUTIONS_FILE: &str = "executions.json";
/// The most bytes it has.
pub const MAX_EXECUTIONS: usize = 1 << 20;
/// The name of the file that says how the sandbox itself ended.
pub const ENDED_FILE: &str = "ended.json";
/// The name of the monitor's socket in the sandbox's directory.
pub const SOCKET_FILE: &str = "control.sock";
/// The name of the lock that launcher and monitor hold while they live.
pub const LOCK_FILE: &str = "lock";
/// The directory that the monitor may write to.
pub const SPOOL_DIR: &str = "spool";

/// What is said of an execution that nobody knows.
pub fn no_such_execution(exec: ExecId) -> Error {
    Error::new(ErrorCode::NotFound, format!("no execution {exec} in this sandbox"))
        .hint("`belljar inspect ID` lists its executions")
}
