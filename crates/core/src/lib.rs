//! The words and contracts that every part of Belljar shares: ids, limits, requests, results, errors, the
//! [`Provider`] and [`Sandbox`] traits, and the messages spoken with the program inside a sandbox.
//!
//! Nothing here does I/O, starts a thread or knows an operating system; everything may depend on it, and it depends
//! on no other crate of the workspace.

#![forbid(unsafe_code)]

mod authority;
mod cache;
mod call;
mod capability;
#[cfg(feature = "conformance")]
pub mod conformance;
mod egress;
mod error;
mod exec;
mod file;
mod gateway;
mod id;
mod limits;
mod moment;
mod policy;
mod provider;
mod recording;
mod spec;
mod tenants;
mod token;
pub mod wall;
pub mod wire;

pub use authority::{AUTHORITY_FILE, Authority};
pub use cache::{CACHE, CACHE_FILE, CachePlan};
pub use call::{CALL_FILES, Call, CallTotals, ModelUsage};
pub use capability::{Capabilities, Capability};
pub use egress::{
    Denial, Door, FLOW_FILES, Flow, FlowKind, FlowStream, LEASE_FILE, MOVED_FILE, Moved, Network,
    POLICY_FILE, TENANTS_FILE, Verdict,
};
pub use error::{Error, ErrorCode, Result};
pub use exec::{
    Command, Ending, ExecEvent, ExecInfo, ExecRequest, ExecResult, Output, OutputMode, Position, PtySize,
    Purpose, Stdin, Stream, Termination, Usage, UserName,
};
pub use file::{Entry, FileKind, FilePath, WatchEvent, WatchKind};
pub use gateway::Gateway;
pub use id::{ExecId, SandboxId, Tenant};
pub use limits::{ByteSize, CpuCount, Limits, ParseError, Span};
pub use moment::{exact_moment, moment};
pub use policy::{
    HostName, HostPattern, IpNet, Method, NameError, NetLimits, NetworkPolicy, PathError, PathPattern,
    PortRange, Rule, RuleError, Rules, SetName, Target, plain_path,
};
pub use provider::{
    ByteStream, Control, ExecHandle, Execs, Files, Provider, ProviderName, Sandbox, SandboxInfo,
    SandboxState, SandboxStats,
};
pub use recording::{
    Matching, RECORDING_FILE, RECORDINGS, Record, Recording, RecordingName, RecordingPlan, Replay,
};
pub use spec::{Owner, SandboxSpec};
pub use tenants::{GatewayShare, NetShare, Share, TenantLimits};
pub use token::{
    Budget, GATEWAY_NAME, Grant, Issued, OperationName, TOKEN_PREFIX, TOKENS_FILE, TokenRecord, TokenState,
    hide_tokens,
};
pub use wall::Wall;
