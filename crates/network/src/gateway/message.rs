//! What is said between the gateway, the supervisor that keeps it, and the worker that brings it callers.

use belljar_core::{Call, ExecId, HostName, SandboxId};
use serde::{Deserialize, Serialize};

use super::customer::Introduction;

/// What the supervisor tells the gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Serve a sandbox; one that is served has these tokens from now on.
    Introduce { sandbox: SandboxId, introduction: Box<Introduction> },
    /// It has ended.
    Forget { sandbox: SandboxId },
    /// There is another worker; the channel to it comes along.
    Worker,
    /// That a call begins is written down, or cannot be.
    Noted { serial: u64, is_written: bool },
    /// Say [`Word::Done`] after everything that was to be said before.
    Sync { serial: u64 },
}

/// What the gateway tells the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// Everything that was ordered before is done, and everything said.
    Done { serial: u64 },
    /// A call begins, and counts as this should nothing else be heard of it; answered with [`Order::Noted`].
    Began { sandbox: SandboxId, call: Box<Call>, serial: u64 },
    /// A call is over.
    Called { sandbox: SandboxId, call: Box<Call> },
}

/// What the worker says of somebody whom it brings; the connection comes along.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    pub(crate) sandbox: SandboxId,
    pub(crate) exec: Option<ExecId>,
    /// The host that they asked, where it is not the gateway itself.
    pub(crate) host: Option<HostName>,
}
