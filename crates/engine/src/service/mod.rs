//! The engine on a unix socket: what is said, and both who says it and who answers.
//!
//! One connection carries one operation. Its first frame is an [`Open`], answers follow, bulk bytes travel as data frames,
//! and closing it early means that the caller no longer wants it.

mod client;
mod server;

use std::time::Duration;

use belljar_core::{
    Call, Capabilities, Denial, Ending, Entry, Error, ExecId, ExecInfo, ExecRequest, FilePath, Flow, Grant,
    Issued, NetworkPolicy, Position, ProviderName, PtySize, SandboxId, SandboxInfo, SandboxState,
    SandboxStats, Stream, TokenRecord, UserName, WatchEvent,
};
use serde::{Deserialize, Serialize};

pub use self::client::Client;
pub use self::server::{Lock, Reception};
use crate::event::Event;
use crate::meter::Meter;
use crate::price::Cost;
use crate::session::{Session, SessionRequest, Tenant};
use crate::store::{Accepted, Page, Query};

/// The version of this protocol.
pub const PROTOCOL: u32 = 1;

/// The engine's socket in the data directory.
pub const SOCKET_FILE: &str = "engine.sock";

/// The conversation number on which everything is said.
const CONVERSATION: u32 = 1;

/// The first frame of a connection.
#[derive(Debug, Serialize, Deserialize)]
struct Open {
    protocol: u32,
    ask: Ask,
}

/// What can be asked of an engine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// `Welcome`.
    Hello,
    /// `Accepted`. With `hold` a new one lives no longer than this connection.
    Create { request: Box<SessionRequest>, hold: bool },
    /// `Sandboxes`.
    List,
    /// `Sessions`.
    Sessions(Query),
    /// `Session`.
    Session(SandboxId),
    /// `Events`, as many as fit, once there are some or the session has ended.
    Events { id: SandboxId, after: u64, limit: u32 },
    /// `Count`: the number of the last entry.
    LastEvent(SandboxId),
    /// `Used`.
    Used(Tenant),
    /// Something of one sandbox.
    Of { id: SandboxId, what: Box<Operation> },
}

/// What can be asked of a sandbox.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Exists,
    Info,
    Stats,
    Extend { ttl: Duration },
    Pause,
    Resume,
    Kill,
    Cleanup,
    Ended,
    Exec { request: ExecRequest, kill_on_close: bool },
    Attach { exec: ExecId, from: Position },
    Wait { exec: ExecId },
    Executions,
    Signal { exec: ExecId, signal: i32 },
    Resize { exec: ExecId, size: PtySize },
    KillExec { exec: ExecId },
    Upload { path: FilePath, user: UserName },
    Download { path: FilePath, user: UserName },
    Unpack { path: FilePath, user: UserName },
    Pack { path: FilePath, user: UserName },
    Stat { path: FilePath, user: UserName },
    ListFiles { path: FilePath, user: UserName, depth: u32 },
    MakeDir { path: FilePath, user: UserName },
    Rename { from: FilePath, to: FilePath, user: UserName },
    Remove { path: FilePath, user: UserName },
    Watch { path: FilePath, user: UserName },
    NetworkPolicy,
    SetNetwork { policy: Box<NetworkPolicy> },
    Flows { after: u64, follow: bool },
    IssueToken { grant: Box<Grant> },
    Tokens,
    RevokeToken { token: String },
    ExtendToken { token: String, life: Duration },
    RenewTokens,
    Calls { after: u64 },
}

/// What an engine answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Welcome {
        provider: ProviderName,
        capabilities: Capabilities,
        epoch: u64,
    },
    Accepted(Box<Accepted>),
    Session(Box<Session>),
    Sessions(Page),
    Events(Vec<Event>),
    Used {
        meter: Meter,
        cost: Cost,
    },
    /// Some sandboxes; the last are followed by `Done`.
    Sandboxes(Vec<SandboxInfo>),
    Exists(ProviderName),
    Info(Box<SandboxInfo>),
    Stats(Box<SandboxStats>),
    State(SandboxState),
    /// Some executions; the last are followed by `Done`.
    Executions(Vec<ExecInfo>),
    Started {
        exec: ExecId,
        start_us: u64,
    },
    Gap {
        stream: Stream,
        bytes: u64,
    },
    Denied(Vec<Denial>),
    Finished(Ending),
    /// A count.
    Count(u64),
    Entry(Box<Entry>),
    /// Some entries of a listing; the last is followed by `Done`.
    Entries(Vec<Entry>),
    Made(bool),
    Changed(WatchEvent),
    Policy(Box<NetworkPolicy>),
    /// Some of what went through the door; the last is followed by `Done`.
    Flows(Vec<Flow>),
    /// A token, once.
    Issued(Box<Issued>),
    Token(Box<TokenRecord>),
    /// Some tokens; the last are followed by `Done`.
    Tokens(Vec<TokenRecord>),
    /// Some calls; the last are followed by `Done`.
    Calls(Vec<Call>),
    Done,
    Failed(Error),
}
