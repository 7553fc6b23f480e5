//! What a sandbox is made from.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Error, ErrorCode, Grant, Limits, NetworkPolicy, ProviderName, Recording, Result, Rule, SandboxId, Tenant,
};

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
    /// What it may ask of the gateway, by a token that it finds in its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// What its network has to do with a recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<Recording>,
    /// Registries whose files are kept for the next sandbox, and may be had from there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache: Vec<Rule>,
    /// Variables added to the template's own for every execution.
    pub env: BTreeMap<String, String>,
    /// How long it lives; the sandbox ends itself after that, whatever happens to the host's processes.
    pub ttl: Duration,
    /// Free-form words to find it by.
    pub labels: BTreeMap<String, String>,
    /// End the sandbox when the process that created it goes away.
    pub tied_to_creator: bool,
    /// Whose it is. Engines say so of what they make; from their callers they do not take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// Whose a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The tenant, whose limits all its sandboxes share.
    pub tenant: Tenant,
    /// The session.
    pub session: SandboxId,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            id: None,
            template: "host".into(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            grant: None,
            recording: None,
            cache: Vec::new(),
            env: BTreeMap::new(),
            ttl: Duration::from_secs(300),
            labels: BTreeMap::new(),
            tied_to_creator: false,
            owner: None,
        }
    }
}

impl SandboxSpec {
    /// The longest life that can be asked for.
    pub const MAX_TTL: Duration = Duration::from_secs(365 * 86_400);
    /// How many labels it may have.
    pub const MAX_LABELS: usize = 64;
    /// The most bytes of a label's name.
    pub const MAX_LABEL_NAME: usize = 63;
    /// The most bytes of a label's value.
    pub const MAX_LABEL_VALUE: usize = 255;

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
        self.network.check()?;
        if let Some(grant) = &self.grant {
            grant.check()?;
        }
        self.check_recording()?;
        self.check_cache()?;
        if let Some(owner) = &self.owner {
            owner.tenant.check()?;
        }
        check_env(&self.env)?;
        self.check_redacted()?;
        Self::check_labels(&self.labels)
    }

    /// Refuses to record what cannot happen.
    pub fn check_recording(&self) -> Result<()> {
        let Some(recording) = &self.recording else { return Ok(()) };
        recording.check()?;
        let is_walled = self.network == NetworkPolicy::None && self.grant.is_none();
        if is_walled && matches!(recording, Recording::Record(_)) {
            let wrong = "there is nothing to record without a network";
            return Err(Error::new(ErrorCode::InvalidArgument, wrong)
                .hint("allow something with `--allow RULE`, or everything with `--net open`"));
        }
        Ok(())
    }

    /// Refuses to keep the value of a variable out of a recording that there is none of.
    fn check_redacted(&self) -> Result<()> {
        let Some(Recording::Record(record)) = &self.recording else { return Ok(()) };
        match record.secrets.iter().find(|name| !self.env.contains_key(*name)) {
            None => Ok(()),
            Some(name) => {
                let wrong =
                    format!("there is no variable `{}` whose value could be redacted", name.escape_debug());
                Err(Error::new(ErrorCode::InvalidArgument, wrong)
                    .hint("give the variable to the sandbox, with `-e NAME=VALUE`"))
            }
        }
    }

    /// The most registries.
    pub const MAX_REGISTRIES: usize = 64;

    /// Refuses to keep what is not fetched.
    pub fn check_cache(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::new(ErrorCode::InvalidArgument, what).hint(hint));
        if self.cache.len() > Self::MAX_REGISTRIES {
            return wrong(format!("{} registries are too many", self.cache.len()), "name up to 64");
        }
        if let Some(rule) = self.cache.iter().find(|rule| rule.is_about_requests()) {
            return wrong(
                format!("`{rule}` is more than a registry"),
                "name its host, as in `packages.example.org`, or a set such as pypi",
            );
        }
        match (&self.network, &self.recording) {
            _ if self.cache.is_empty() => Ok(()),
            (_, Some(Recording::Replay(_))) => {
                wrong("a recording is answered from, so nothing is fetched".into(), "leave `--cache` out")
            }
            (NetworkPolicy::None, _) => wrong(
                "without a network nothing is fetched that could be kept".into(),
                "allow the registry as well, as in `--allow pypi --cache pypi`",
            ),
            _ => Ok(()),
        }
    }

    /// Refuses to record and to keep things where there is no door.
    pub fn check_without_recording(&self, provider: ProviderName) -> Result<()> {
        match &self.recording {
            None if self.cache.is_empty() => Ok(()),
            _ => Err(Error::new(
                ErrorCode::Unsupported,
                format!("the `{provider}` provider has no door at which something could be recorded or kept"),
            )
            .hint("use the provider `jail`")),
        }
    }

    /// Refuses labels that would burden everybody who lists sandboxes.
    pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
        if labels.len() > Self::MAX_LABELS {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("{} labels are too many", labels.len()),
            )
            .hint(format!("a sandbox has at most {}", Self::MAX_LABELS)));
        }
        if labels.contains_key("") {
            return Err(Error::new(ErrorCode::InvalidArgument, "a label has no name").hint("give it one"));
        }
        let too_long = |name: &str, value: &str| {
            name.len() > Self::MAX_LABEL_NAME || value.len() > Self::MAX_LABEL_VALUE
        };
        match labels.iter().find(|(name, value)| too_long(name, value)) {
            Some((name, _)) => {
                let shown: String = name.chars().take(Self::MAX_LABEL_NAME).collect();
                Err(Error::new(
                    ErrorCode::InvalidArgument,
                    format!("label `{}` is too long", shown.escape_debug()),
                )
                .hint(format!(
                    "a name has at most {} bytes, a value {}",
                    Self::MAX_LABEL_NAME,
                    Self::MAX_LABEL_VALUE
                )))
            }
            None => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_in_every_way() {
        let check = |labels: Vec<(String, String)>| {
            SandboxSpec { labels: labels.into_iter().collect(), ..SandboxSpec::default() }.check()
        };
        let label = |name: usize, value: usize| vec![("n".repeat(name), "v".repeat(value))];
        let many = |count: usize| (0..count).map(|number| (number.to_string(), String::new())).collect();
        for good in [label(1, 0), label(63, 255), many(64)] {
            check(good).unwrap();
        }
        for bad in [label(0, 1), label(64, 0), label(1, 256), many(65)] {
            let error = check(bad).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument);
            assert!(error.hint.is_some(), "{error}");
        }
    }
}
