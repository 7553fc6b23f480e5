//! The contracts that every rung of the isolation ladder fulfils.
//!
//! A provider must implement four things: [`Sandbox::execute`], [`Sandbox::upload`], [`Sandbox::download`] and
//! [`Sandbox::cleanup`]. Everything richer is a capability, reached through an accessor that answers with a typed
//! error where the provider lacks it.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{
    CallTotals, Capabilities, Capability, Ending, Entry, Error, ErrorCode, ExecEvent, ExecId, ExecInfo,
    ExecRequest, ExecResult, FilePath, Gateway, Network, Position, PtySize, Result, SandboxId, SandboxSpec,
    UserName, WatchEvent,
};

/// Bytes that arrive piece by piece; an error ends them.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>;

/// The rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderName {
    /// A model of a sandbox in memory, for tests.
    Fake,
    /// A subprocess in a temporary directory: no isolation, for development.
    Local,
    /// Namespaces, cgroups, seccomp and Landlock.
    Jail,
}

impl ProviderName {
    /// The providers a user can choose.
    pub const CHOICES: [Self; 2] = [Self::Jail, Self::Local];
}

impl FromStr for ProviderName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::CHOICES.into_iter().find(|name| name.to_string() == text).ok_or_else(|| {
            Error::new(ErrorCode::InvalidArgument, format!("unknown provider `{}`", text.escape_debug()))
                .hint("choose `jail` (the default) or `local` (no isolation)")
        })
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Fake => "fake",
            Self::Local => "local",
            Self::Jail => "jail",
        })
    }
}

/// Makes sandboxes.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Which rung this is.
    fn name(&self) -> ProviderName;

    /// What its sandboxes can do beyond the four basic methods.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox that is ready to execute. On error nothing is left behind. The caller may drop this future:
    /// then whatever had been made is removed, at the latest by the next sweep.
    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>>;

    /// Finds a sandbox that an earlier process created; `not_found` if this provider's sandboxes do not outlive
    /// their creator or there is none of that name.
    async fn open(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        Err(Error::new(ErrorCode::NotFound, format!("no sandbox `{id}`"))
            .hint("`belljar ls` lists the ones there are"))
    }

    /// The sandboxes that [`open`](Self::open) would find, the newest first.
    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        Ok(Vec::new())
    }
}

/// One sandbox. All methods may be called from several tasks at once.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Its name.
    fn id(&self) -> &SandboxId;

    /// Which rung it stands on.
    fn provider(&self) -> ProviderName;

    /// Runs a command to its end. Fails only when the command could not be started or asked about; how the command
    /// itself ended is in the result. If the caller drops this future, the command is killed.
    async fn execute(&self, request: ExecRequest) -> Result<ExecResult>;

    /// Writes a file, replacing what is there and making missing parent directories. The bytes are taken as fast
    /// as they can be stored. On error, or if the caller drops this future, the file may be partly written.
    async fn upload(&self, path: &FilePath, user: UserName, content: ByteStream) -> Result<u64>;

    /// Reads a regular file. The bytes come as fast as the caller takes them; dropping the stream stops the reading.
    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream>;

    /// Ends every process and removes everything. Calling it again is not an error. Once it returned, nothing of
    /// the sandbox is left; if the caller drops this future the removal goes on or is finished by the next sweep.
    async fn cleanup(&self) -> Result<()>;

    /// Streaming, input, terminals and signals ([`Capability::Stream`], `Stdin`, `Pty`, `Signal`).
    fn execs(&self) -> Result<&dyn Execs> {
        Err(Error::unsupported(self.provider(), Capability::Stream))
    }

    /// Richer file operations ([`Capability::Files`]).
    fn files(&self) -> Result<&dyn Files> {
        Err(Error::unsupported(self.provider(), Capability::Files))
    }

    /// Life and resources ([`Capability::Control`]).
    fn control(&self) -> Result<&dyn Control> {
        Err(Error::unsupported(self.provider(), Capability::Control))
    }

    /// What it may reach and has reached ([`Capability::Network`]).
    fn network(&self) -> Result<&dyn Network> {
        Err(Error::unsupported(self.provider(), Capability::Network))
    }

    /// What it may ask of the gateway, and has asked ([`Capability::Network`]).
    fn gateway(&self) -> Result<&dyn Gateway> {
        Err(Error::unsupported(self.provider(), Capability::Network))
    }
}

/// Commands that are watched and steered while they run.
#[async_trait]
pub trait Execs: Send + Sync {
    /// Starts a command. It goes on when the handle is dropped, until its time-out or the sandbox's end.
    async fn start(&self, request: ExecRequest) -> Result<Box<dyn ExecHandle>>;

    /// Follows a command that runs or has run: its kept output from this position on, then live, then its end. No byte
    /// before the position comes again and none after it is left out uncounted; of a gap around it the rest is told. A
    /// position beyond what was written is refused as `invalid_argument`.
    async fn attach(&self, exec: ExecId, from: Position) -> Result<Box<dyn ExecHandle>>;

    /// Waits for the end of a command, which may be past already, and for nothing of its output. Cheap: hundreds may be
    /// waited for at a time.
    async fn wait(&self, exec: ExecId) -> Result<Ending>;

    /// The commands this sandbox knows of, the oldest first.
    async fn list(&self) -> Result<Vec<ExecInfo>>;

    /// Sends a signal to every process of a command.
    async fn signal(&self, exec: ExecId, signal: i32) -> Result<()>;

    /// Tells a command's terminal its new size.
    async fn resize(&self, exec: ExecId, size: PtySize) -> Result<()>;

    /// Kills a command with its whole tree; it ends as [`Termination::Killed`](crate::Termination::Killed).
    async fn kill(&self, exec: ExecId) -> Result<()>;
}

/// A command being followed. Input and output go on independently: one task may wait in `write` while another waits
/// in `next`, and a caller that sends input must do both, or a command that waits for its output to be taken never
/// reads on.
#[async_trait]
pub trait ExecHandle: Send + Sync {
    /// The next event; `None` after [`ExecEvent::Finished`]. May be dropped and called again without loss.
    async fn next(&self) -> Result<Option<ExecEvent>>;

    /// Sends input; an empty piece means end of file. Waits while the command does not read.
    async fn write(&self, input: Bytes) -> Result<()>;
}

/// File operations beyond reading and writing one.
#[async_trait]
pub trait Files: Send + Sync {
    /// Describes what is at a path, without following a final link.
    async fn stat(&self, path: &FilePath, user: UserName) -> Result<Entry>;

    /// Lists a directory, sorted by name, down to this depth (1 is the directory itself).
    async fn list(&self, path: &FilePath, user: UserName, depth: u32) -> Result<Vec<Entry>>;

    /// Makes a directory and its parents; answers whether it was new.
    async fn make_dir(&self, path: &FilePath, user: UserName) -> Result<bool>;

    /// Moves or renames.
    async fn rename(&self, from: &FilePath, to: &FilePath, user: UserName) -> Result<()>;

    /// Removes a file or a whole directory, never following links.
    async fn remove(&self, path: &FilePath, user: UserName) -> Result<()>;

    /// Unpacks a tar stream below a directory.
    async fn unpack(&self, path: &FilePath, user: UserName, tar: ByteStream) -> Result<()>;

    /// Packs a file or directory as a tar stream whose names start with its last component.
    async fn pack(&self, path: &FilePath, user: UserName) -> Result<ByteStream>;

    /// Reports changes in a directory until the stream is dropped.
    async fn watch(
        &self,
        path: &FilePath,
        user: UserName,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>>;
}

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// It executes.
    Running,
    /// Its processes stand still in memory.
    Paused,
    /// Its time was over.
    Expired,
    /// Someone ended it.
    Killed,
    /// It ended without anyone asking: its monitor or its first process died.
    Lost,
}

impl SandboxState {
    /// Whether it has not ended.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Expired => "expired",
            Self::Killed => "killed",
            Self::Lost => "lost",
        })
    }
}

/// What is known of a sandbox from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// Its name.
    pub id: SandboxId,
    /// The rung it stands on.
    pub provider: ProviderName,
    /// Where it is in its life.
    pub state: SandboxState,
    /// What it was made from.
    pub spec: SandboxSpec,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// How much of its life is left, while it has not ended. It stays the same while it is paused.
    pub remaining: Option<Duration>,
    /// What this host could not give it, in plain words; empty when every wall and limit stands.
    pub losses: Vec<String>,
    /// What it had used in the end, if it has ended and whoever looked after it could still say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<SandboxStats>,
}

/// What a sandbox uses and has used. A figure that the kernel cannot give is `None`, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxStats {
    /// Processor time of everything in it so far, in microseconds.
    pub cpu_us: Option<u64>,
    /// The part of that which is in the [`Usage`](crate::Usage) of no execution that has ended: file operations, what
    /// executions left behind, and those that still run. The two are read at the same moment, so that the usages of
    /// all executions and this are together exactly the whole.
    pub besides_cpu_us: Option<u64>,
    /// Memory held now.
    pub memory_bytes: Option<u64>,
    /// The most memory held so far.
    pub peak_memory_bytes: Option<u64>,
    /// Memory held, added up over time: a kibibyte for two seconds is 2048. It is looked at when something happens, and
    /// every second while an execution runs.
    pub memory_byte_seconds: Option<u64>,
    /// Processes and threads now.
    pub processes: Option<u64>,
    /// Processes killed for want of memory so far.
    pub oom_kills: Option<u64>,
    /// Bytes read from block devices so far.
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices so far.
    pub write_bytes: Option<u64>,
    /// Bytes of its own layer in use.
    pub disk_bytes: Option<u64>,
    /// The same added up over time, as [`memory_byte_seconds`](Self::memory_byte_seconds).
    pub disk_byte_seconds: Option<u64>,
    /// Bytes that left through the door so far, as it said a second ago, or once it has ended, in all.
    pub egress_bytes: Option<u64>,
    /// Bytes that came in through it, likewise.
    pub ingress_bytes: Option<u64>,
    /// What it had the gateway do so far, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<CallTotals>,
    /// Executions running now.
    pub executions: u32,
}

/// The life and the resources of a sandbox.
#[async_trait]
pub trait Control: Send + Sync {
    /// What is known of it.
    async fn info(&self) -> Result<SandboxInfo>;

    /// What it uses.
    async fn stats(&self) -> Result<SandboxStats>;

    /// Lets it live this long from now.
    async fn extend(&self, ttl: Duration) -> Result<()>;

    /// Stops every process of its executions ([`Capability::Pause`]), and with them the clocks of its life and of their
    /// time-outs. Returns when the kernel says that all stand still; on error they go on. Meanwhile files and kept output can
    /// be had, and it can be ended; what would start a command is refused as `paused`. Pausing it again is not an error.
    async fn pause(&self) -> Result<()>;

    /// Lets it go on where it stood. Resuming one that runs is not an error.
    async fn resume(&self) -> Result<()>;

    /// Sees to it that nothing which an older engine asks for is begun any more, not even what it has sent already; that is
    /// then refused as `fenced`. Where nobody but the caller can reach a sandbox there is nothing to do.
    async fn fence(&self) -> Result<()> {
        Ok(())
    }

    /// Ends every process at once; the record of it stays until [`Sandbox::cleanup`].
    async fn kill(&self) -> Result<()>;

    /// Waits until the sandbox has ended, and says how. Nothing of it runs any more then.
    async fn ended(&self) -> Result<SandboxState>;
}
