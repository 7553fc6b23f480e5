//! What is said between the outside and the guest, the first process inside a sandbox.
//!
//! One stream socket carries [`Frame`]s both ways. A frame belongs to a conversation, named by a number that the
//! outside chose when it sent the [`Request`] that began it (0 is the connection itself). Bulk bytes travel as data
//! frames of that conversation, under a credit window so that no conversation can hold up another; an empty data
//! frame means that this stream ended. Everything else is JSON in control frames; those of file operations count as
//! output, for a listing can be as long as a file.

mod codec;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use codec::{CodecError, Decoder, Frame, FrameKind, HEADER_BYTES, MAX_CONTROL, MAX_DATA};

use crate::{Command, Entry, Error, FilePath, OutputMode, PtySize, Stdin, UserName, WatchEvent};

/// The version of this protocol. Both sides say theirs first, and part if they differ.
pub const PROTOCOL: u32 = 1;

/// How many bytes of one stream may be on their way before the receiver grants more with a credit frame.
pub const WINDOW: u32 = 256 * 1024;

/// The streams of a conversation.
pub mod stream {
    /// Into the sandbox: standard input, the content of a file, a tar archive.
    pub const INPUT: u8 = 0;
    /// Out of the sandbox: standard output, the terminal, the content of a file, a tar archive.
    pub const OUTPUT: u8 = 1;
    /// Out of the sandbox: standard error.
    pub const ERROR: u8 = 2;

    /// The number of an output.
    pub fn number(output: crate::Stream) -> u8 {
        match output {
            crate::Stream::Stdout => OUTPUT,
            crate::Stream::Stderr => ERROR,
        }
    }

    /// The output of this number; what is not standard error is standard output.
    pub fn output(number: u8) -> crate::Stream {
        if number == ERROR { crate::Stream::Stderr } else { crate::Stream::Stdout }
    }
}

/// The first message to the guest, on conversation 0: how this sandbox is made. The descriptors named here are
/// inherited by the guest under these numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Init {
    /// [`PROTOCOL`] of the outside.
    pub protocol: u32,
    /// When everything must end, in milliseconds of the boot clock.
    pub deadline_ms: u64,
    /// The default user.
    pub user: Account,
    /// Root inside, where this host can give it.
    pub root: Option<Account>,
    /// The variables that every execution starts from; nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// The shell for [`Command::Shell`].
    pub shell: String,
    /// Directories (descriptors) in each of which every execution gets a cgroup of its own: one of version two it is
    /// born in, one of version one it enters through `tasks`.
    pub leaf_dirs: Vec<LeafDir>,
    /// Directories (descriptors) of version-one cgroups that every execution's first process enters as they are.
    pub join_dirs: Vec<i32>,
    /// Resource limits `(resource, soft, hard)` for everything but the guest itself.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// What the filter leaves to the guest, if there is a filter.
    pub questions: Option<Questions>,
    /// The kernel's table of locks (a descriptor), if their number is to be bounded.
    pub locks_fd: Option<i32>,
}

/// What those inside may have of things that hold memory of the kernel's which no limit counts. The filter asks the
/// guest, which answers by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Questions {
    /// The descriptor on which the filter asks.
    pub fd: i32,
    /// The word by which the filter knows the guest's own call.
    pub word: u64,
    /// The most netlink sockets at a time; the guest opens them.
    pub netlink_sockets: u32,
    /// The most bytes in connections that nobody has accepted; the guest lets as many sockets listen.
    pub unaccepted: u64,
    /// The most UDP and ICMP sockets at a time.
    pub datagram_sockets: u32,
    /// The most TCP sockets at a time, those included that are closed and not gone.
    pub stream_sockets: u32,
    /// Sockets that listen in the sandbox's network and are held outside, which do not count as its own.
    #[serde(default)]
    pub foreign_listeners: u32,
}

/// A directory under which executions get their own cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafDir {
    /// The descriptor.
    pub fd: i32,
    /// Whether it is cgroup v2 (then it has `cgroup.kill` and `cpu.stat`).
    pub v2: bool,
}

/// How to become one of the sandbox's users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Home directory.
    pub home: String,
    /// Where its executions start, and relative paths; its home if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Capabilities kept, as a bit set; 0 for none.
    pub capabilities: u64,
    /// Landlock ruleset to enter (descriptor), where the kernel has Landlock.
    pub landlock_fd: Option<i32>,
}

impl Account {
    /// Where its executions start, and relative paths.
    pub fn directory(&self) -> &str {
        self.directory.as_deref().unwrap_or(&self.home)
    }
}

/// What the outside asks of the guest. The frame's conversation number names the execution or operation.
///
/// A number begins one conversation only. `Signal`, `Kill` and `Resize` for one that is not (any more) there are
/// answered with [`Event::Failed`] (`not_found`), which may cross a normal end on its way; data and credit for it are
/// passed over. Whatever breaks these rules, or the credit window, ends the guest and so the sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Conversation 0 only, once, first.
    Init(Box<Init>),
    /// Begins an execution: [`Event::Leaf`] where it has one, [`Event::Started`] or [`Event::Failed`], data, then
    /// [`Event::Exited`].
    Spawn(Spawn),
    /// Sends a signal, 1 to 64, to every process of this execution.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Kills every process of this execution, also those its first process left behind, or breaks off this file
    /// operation, which then fails as `lost`.
    Kill,
    /// Changes the size of this execution's terminal.
    Resize(PtySize),
    /// Begins a file operation.
    File(FileRequest),
    /// Conversation 0 only: stops the executions and all clocks; [`Event::Paused`] once the kernel says that they stand.
    Pause {
        /// Comes back with the answer.
        serial: u32,
    },
    /// Conversation 0 only: lets everything go on.
    Resume,
    /// Conversation 0 only: moves the deadline of the sandbox.
    Deadline {
        /// In milliseconds of the boot clock.
        deadline_ms: u64,
    },
}

/// A command for the guest to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    /// What to run.
    pub command: Command,
    /// Where; the account's home when not given.
    pub cwd: Option<FilePath>,
    /// Variables on top of [`Init::env`].
    pub env: BTreeMap<String, String>,
    /// Who.
    pub user: UserName,
    /// Where input comes from.
    pub stdin: Stdin,
    /// With a terminal of this size; with [`Stdin::Empty`] it reads end of file at once.
    pub pty: Option<PtySize>,
    /// How long its first process may run, in milliseconds from the request's arrival, on the boot clock.
    pub timeout_ms: u64,
    /// What the outside does with output; the guest itself always obeys the credit it is given.
    pub output: OutputMode,
}

/// Something to do with files, as a user of the sandbox and in its own view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    /// As whom.
    pub user: UserName,
    /// What.
    pub operation: FileOperation,
}

/// The file operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOperation {
    /// Sends a regular file on [`stream::OUTPUT`], up to the size it had when opened, and its end; then
    /// [`Event::Done`].
    Read {
        /// Which.
        path: FilePath,
    },
    /// Takes [`stream::INPUT`] until its end and writes it; then [`Event::Done`].
    Write {
        /// Where to.
        path: FilePath,
        /// Permission bits of a new file.
        mode: u32,
    },
    /// [`Event::Entries`] with one entry.
    Stat {
        /// Of what.
        path: FilePath,
    },
    /// [`Event::Entries`], with paths below the one asked for, until [`Event::Done`].
    List {
        /// Of which directory.
        path: FilePath,
        /// How deep; 1 is the directory itself.
        depth: u32,
    },
    /// [`Event::Made`].
    MakeDir {
        /// Which.
        path: FilePath,
    },
    /// [`Event::Done`].
    Rename {
        /// From here.
        from: FilePath,
        /// To there.
        to: FilePath,
    },
    /// Removes a tree without following links; [`Event::Done`].
    Remove {
        /// Which.
        path: FilePath,
    },
    /// Takes a tar archive on [`stream::INPUT`]; then [`Event::Done`].
    Unpack {
        /// Below which directory.
        path: FilePath,
    },
    /// Sends a tar archive on [`stream::OUTPUT`]; then [`Event::Done`].
    Pack {
        /// Of what.
        path: FilePath,
    },
    /// [`Event::Done`] when the watch stands, then [`Event::Changed`] until [`Request::Kill`].
    Watch {
        /// Which directory.
        path: FilePath,
    },
}

/// What the guest answers, on the conversation it belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Conversation 0, once: the guest is ready.
    Ready {
        /// [`PROTOCOL`] of the guest.
        protocol: u32,
    },
    /// Conversation 0: the executions stand still.
    Paused {
        /// Of the request.
        serial: u32,
    },
    /// The execution has a version-two cgroup of its own. Said, and sent, before any process is in it.
    Leaf {
        /// Its number in the kernel.
        cgroup: u64,
    },
    /// The program runs its first instruction.
    Started {
        /// Its process number inside.
        pid: u32,
        /// From the request's arrival at the guest to `execve`, in microseconds.
        start_us: u64,
    },
    /// The command's first process ended and all output it had written by then has been sent. The streams stay open
    /// while processes it left behind hold them; each still ends with an empty data frame.
    Exited(Exit),
    /// The request could not be done; ends the conversation.
    Failed(Error),
    /// Descriptions of files.
    Entries(Vec<Entry>),
    /// Whether the directory was new; ends the conversation.
    Made {
        /// It was.
        new: bool,
    },
    /// Something changed in a watched directory.
    Changed(Vec<WatchEvent>),
    /// The operation is complete (or, for a watch, has begun).
    Done,
}

/// How the first process of an execution ended, as the kernel said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit status, when it exited.
    pub code: Option<i32>,
    /// Signal, when one ended it.
    pub signal: Option<i32>,
    /// Why the guest killed it, if it did.
    pub killed: Option<KillReason>,
    /// From first instruction to end, in microseconds.
    pub duration_us: u64,
    /// Processor time of the execution's own cgroup, or of the processes waited for.
    pub cpu_us: Option<u64>,
    /// The most processes and threads at once.
    pub processes: Option<u64>,
    /// Bytes read from block devices by the processes waited for.
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices by the processes waited for.
    pub write_bytes: Option<u64>,
}

/// Why the guest killed an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// Its time was over.
    TimedOut,
    /// It was told to.
    Asked,
    /// Its processes held more locks on files than all of the sandbox may.
    TooManyLocks,
}
