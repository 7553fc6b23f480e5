//! What is said: by callers to the door, by the supervisor to the worker, and back.

use belljar_core::{
    Authority, Denial, Error, ExecId, Flow, HostName, Moved, NetLimits, NetworkPolicy, RecordingPlan, Rule,
    SandboxId, Tenant,
};
use serde::{Deserialize, Serialize};

use super::tenants::Day;
use crate::cache::Wanted;

/// What a caller asks, as a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Serve this sandbox by the policy that its directory holds now.
    SeeTo { sandbox: SandboxId },
    /// What was this execution denied?
    Denials { sandbox: SandboxId, exec: ExecId },
}

/// What it is answered, likewise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Done,
    Denials(Vec<Denial>),
    Failed(Error),
}

/// What the supervisor tells the worker. Sockets come along with `Open`: connections and questions about names, of the older
/// family and then of the newer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Serve a sandbox.
    Open(Box<Opening>),
    /// Judge by another policy from now on; answered with [`Word::Done`].
    Policy {
        sandbox: SandboxId,
        policy: Box<NetworkPolicy>,
        brought: Vec<HostName>,
        tenant: Option<TenantShare>,
        serial: u64,
    },
    /// The sandbox has ended.
    Close { sandbox: SandboxId, serial: u64 },
    /// The answer to [`Word::Whose`].
    Whose { serial: u64, exec: Option<ExecId> },
    /// Say [`Word::Done`] after everything that was to be said before.
    Sync { serial: u64 },
    /// The answer to [`Wish::Find`], with a file of this length, and to [`Wish::Keep`], with a pipe; or with nothing.
    Handed { serial: u64, length: u64 },
    /// There is another gateway; the channel to it comes along.
    Gateway,
}

/// A sandbox to be served, and what is known of it from before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) sandbox: SandboxId,
    pub(super) policy: NetworkPolicy,
    /// Hosts that the gateway asks for it.
    pub(super) brought: Vec<HostName>,
    /// What its tenant may use, if that has limits.
    pub(super) tenant: Option<TenantShare>,
    /// Whether marks tell executions apart on this host.
    pub(super) attributed: bool,
    /// By what its TLS is opened, if it can be.
    pub(super) authority: Option<Authority>,
    /// What its network has to do with a recording, the file of which comes along after the sockets.
    pub(super) recording: Option<RecordingPlan>,
    /// Registries of which files are kept, if it is to have them.
    pub(super) cache: Option<Vec<Rule>>,
    /// What it has moved so far.
    pub(super) moved: Moved,
    /// Names that were given addresses, with their places.
    pub(super) names: Vec<(u32, HostName)>,
    /// Where there are none: the first place that none has had.
    pub(super) first_place: u32,
    pub(super) serial: u64,
}

/// What the sandboxes of a tenant may use together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TenantShare {
    pub(super) tenant: Tenant,
    pub(super) bounds: NetLimits,
    /// What they have moved today; a worker that has served one of them knows better.
    pub(super) day: Day,
}

/// What the worker tells the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// An order was carried out.
    Done { serial: u64 },
    /// Which execution has this mark?
    Whose { sandbox: SandboxId, mark: u32, serial: u64 },
    /// A name was given an address.
    Named { sandbox: SandboxId, place: u32, name: HostName },
    /// Something begins that goes through, so that it is known should the worker die.
    Began { sandbox: SandboxId, trip: u64, flow: Box<Flow> },
    /// What began is told in other words.
    Told { sandbox: SandboxId, trip: u64 },
    /// Something happened, which may have begun before. Its number is given by the supervisor.
    Flow { sandbox: SandboxId, trip: u64, flow: Box<Flow> },
    /// It has to do with a file that may be kept.
    Cache { sandbox: SandboxId, wanted: Wanted, wish: Wish },
    /// It has moved so much more.
    Moved { sandbox: SandboxId, more: Moved },
}

/// What is wished of the cache, of a file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wish {
    /// To have it, if it is kept.
    Find { serial: u64 },
    /// To have it kept: it comes from its registry.
    Keep { serial: u64 },
    /// To be rid of it: what is kept is not what it should be.
    Discard,
}
