//! What a sandbox is made from.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode, Limits, NetworkPolicy, Result, SandboxId};

/// Everything that decides what a new sandbox looks like. The same spec serves every provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// Its name, chosen by the caller so that it can be written down before anything is made. A provider mints one where
    /// there is none, and refuses one that another sandbox has, alive or kept, as `already_exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SandboxId>,
    /// The environment to start from; `host` is the machine's own programs.
    pub template: String,
    /// What it may use.
    pub limits: Limits,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// Variables added to the template's own for every execution.
    pub env: BTreeMap<String, String>,
    /// How long it lives; the sandbox ends itself after that, whatever happens to the host's processes.
    pub ttl: Duration,
    /// Free-form words to find it by.
    pub labels: BTreeMap<String, String>,
    /// End the sandbox when the process that created it goes away.
    pub tied_to_creator: bool,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            id: None,
            template: "host".into(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            env: BTreeMap::new(),
            ttl: Duration::from_secs(300),
            labels: BTreeMap::new(),
            tied_to_creator: false,
        }
    }
}

impl SandboxSpec {
    /// The longest life that can be asked for.
    pub const MAX_TTL: Duration = Duration::from_secs(365 * 86_400);

    /// Refuses what no provider could honour.
    pub fn check(&self) -> Result<()> {
        self.limits.check().map_err(|(field, problem)| {
            Error::new(ErrorCode::InvalidArgument, format!("limit `{field}`: {problem}"))
        })?;
        if self.ttl.is_zero() || self.ttl > Self::MAX_TTL {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("a time to live of {:?} is out of range", self.ttl),
            )
            .hint("a sandbox lives for up to 365 days; it can be extended while it runs"));
        }
        check_env(&self.env)
    }
}

/// Refuses variables that a process could not be given.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("environment variable `{}` cannot be set", name.escape_debug()),
            )
            .hint("a name must be non-empty and hold no `=`; neither name nor value may hold a NUL byte"));
        }
    }
    Ok(())
}
