//! What leaves a sandbox, as it is told afterwards, and who lets it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;

use async_trait::async_trait;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{
    Authority, Error, ErrorCode, ExecId, Grant, Issued, NetworkPolicy, Owner, Purpose, Recording, Result,
    SandboxId,
};

/// Something that went through the door, or was turned away there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Its place in the sandbox's list, from 1. Where numbers are missing, entries were dropped for want of room.
    pub seq: u64,
    /// When it began, in milliseconds since 1970.
    pub time_ms: u64,
    /// The execution whose process opened the socket; none where the host cannot tell.
    pub exec: Option<ExecId>,
    /// What that is a part of, in its caller's words.
    #[serde(default, flatten)]
    pub purpose: Purpose,
    /// Whose sandbox it left, and in which session.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// What was seen of it.
    pub kind: FlowKind,
    /// The name or address that was asked for, safe to print.
    pub host: String,
    /// The port, unless a name was only looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Method and path of a request that could be seen, safe to print.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The address that was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Bytes that left the sandbox.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// Bytes that it was given instead, from the cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// Whether there is nothing to say.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What was seen of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowKind {
    /// A name was looked up.
    Dns,
    /// A connection of which nothing more is known.
    Tcp,
    /// A connection that speaks TLS.
    Tls,
    /// One request of plain HTTP.
    Http,
}

impl FlowKind {
    /// The kind as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Http => "http",
        }
    }
}

impl fmt::Display for FlowKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// What came of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It went through.
    Allowed,
    /// The policy, or a limit, was against it.
    Denied {
        /// Why, as one word.
        reason: String,
        /// What was asked for, in words.
        what: String,
        /// How the sandbox's owner could grant it.
        how_to_grant: String,
    },
    /// It was allowed, and did not work out there.
    Failed {
        /// Why.
        error: String,
    },
}

/// Something that an execution was denied, in words for whoever reads its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// What it wanted.
    pub what: String,
    /// Why it was denied, as one word.
    pub reason: String,
    /// The rule that denied it, or fell short of granting it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// How the sandbox's owner could grant it.
    pub how_to_grant: String,
    /// How often it was tried.
    pub times: u64,
}

impl fmt::Display for Denial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "denied {} ({})", self.what, self.reason)?;
        if self.times > 1 {
            write!(formatter, ", {} times", self.times)?;
        }
        write!(formatter, ". {}", self.how_to_grant)
    }
}

/// Bytes that a sandbox moved through the door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// That left it.
    pub sent: u64,
    /// That came in.
    pub received: u64,
    /// Whether it has ended, and this is all.
    pub complete: bool,
}

/// Flows that arrive one by one; an error ends them.
pub type FlowStream = Pin<Box<dyn Stream<Item = Result<Flow>> + Send>>;

/// What a sandbox may reach and has reached ([`Capability::Network`](crate::Capability::Network)).
#[async_trait]
pub trait Network: Send + Sync {
    /// What it may reach now, sets resolved.
    async fn policy(&self) -> Result<NetworkPolicy>;

    /// Changes that. Once this returns, the door judges by the new policy, and connections that it does not allow are cut.
    /// A sandbox that was made without a network cannot be given one.
    async fn set_policy(&self, policy: NetworkPolicy) -> Result<()>;

    /// What went through the door after this number; with `follow`, also what will, until the sandbox ends.
    async fn flows(&self, after: u64, follow: bool) -> Result<FlowStream>;
}

/// The one way out of sandboxes, as those see it who make them. A sandbox's directory holds the policy in force
/// ([`POLICY_FILE`]), and its monitor the sockets at which its traffic arrives.
#[async_trait]
pub trait Door: fmt::Debug + Send + Sync {
    /// Has the door serve a sandbox, by the policy that its directory holds now. Returns once that is in force. If there is
    /// no door it is opened. May be called again at any time.
    async fn see_to(&self, sandbox: &SandboxId) -> Result<()>;

    /// Makes a token for operations of the gateway, if there are such. Nothing is kept of it.
    async fn issue(&self, grant: &Grant) -> Result<Issued> {
        let names: Vec<_> = grant.operations.iter().map(ToString::to_string).collect();
        Err(Error::new(ErrorCode::Unsupported, format!("there is no gateway here for {}", names.join(", "))))
    }

    /// Makes a certificate authority for this sandbox. Nothing is kept of it; the door reads it from the sandbox's directory
    /// ([`AUTHORITY_FILE`](crate::AUTHORITY_FILE)).
    fn authority(&self, sandbox: &SandboxId) -> Result<Authority> {
        Err(Error::new(ErrorCode::Unsupported, format!("there is nobody here who opens TLS for `{sandbox}`")))
    }

    /// Makes room for a recording that is to be made, or looks into the one that is to be answered from: the variables that a sandbox was
    /// given when it was made, to find the gateway by.
    async fn recording(&self, recording: &Recording) -> Result<BTreeMap<String, String>> {
        let wrong = format!("there is nobody here who keeps the recording `{}`", recording.name());
        Err(Error::new(ErrorCode::Unsupported, wrong))
    }

    /// What an execution was denied so far. Everything that its processes could know of is among it.
    async fn denials(&self, sandbox: &SandboxId, exec: ExecId) -> Result<Vec<Denial>>;
}

/// The file in a sandbox's directory that holds the policy in force, sets resolved, as JSON.
pub const POLICY_FILE: &str = "network.json";
/// The file there that holds what the sandbox was made from, as JSON: `spec` is a [`SandboxSpec`](crate::SandboxSpec).
pub const LEASE_FILE: &str = "lease.json";
/// The file in the data directory that holds what tenants may use, as JSON: a [`TenantLimits`](crate::TenantLimits). A sandbox
/// that has an owner is not served without it.
pub const TENANTS_FILE: &str = "tenants.json";
/// The file in its directory that holds how much it has moved, as JSON; while it runs, at most a second old.
pub const MOVED_FILE: &str = "egress.moved";
/// The files there that hold its flows as lines of JSON: the newer, and the one before.
pub const FLOW_FILES: [&str; 2] = ["egress", "egress.old"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;

    #[test]
    fn whose_a_flow_was_stands_beside_the_rest_and_may_be_missing() {
        let mut flow = Flow {
            seq: 1,
            time_ms: 2,
            exec: Some(ExecId(3)),
            purpose: Purpose { stage: Some("coder".into()), tool_call: Some("toolu_01".into()) },
            owner: Some(Owner { tenant: Tenant("acme".into()), session: SandboxId::from_random([7; 16]) }),
            kind: FlowKind::Dns,
            host: "example.org".into(),
            port: None,
            request: None,
            address: None,
            verdict: Verdict::Allowed,
            rule: None,
            sent: 0,
            received: 0,
            cached: 0,
            duration_us: 4,
        };
        let json = serde_json::to_value(&flow).unwrap();
        for (field, value) in [
            ("tenant", "acme"),
            ("session", "bj-hhhhhhhhhhhhh"),
            ("stage", "coder"),
            ("tool_call", "toolu_01"),
        ] {
            assert_eq!(json[field], value, "{json}");
        }
        assert_eq!(serde_json::from_value::<Flow>(json).unwrap(), flow);
        (flow.purpose, flow.owner) = (Purpose::default(), None);
        let json = serde_json::to_value(&flow).unwrap();
        assert!(
            ["tenant", "session", "stage", "tool_call"].iter().all(|field| json.get(field).is_none()),
            "{json}"
        );
        assert_eq!(serde_json::from_value::<Flow>(json).unwrap(), flow);
    }
}
