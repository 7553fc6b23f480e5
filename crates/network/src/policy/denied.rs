//! Why something was refused, in words that a person and a program can act on.

use std::fmt;

use belljar_core::Rule;
use serde::{Deserialize, Serialize};

/// A refusal. Its text is one paragraph: what was refused, why, who can grant it and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Denied {
    /// What was asked for.
    pub what: String,
    /// Why it was refused.
    pub reason: Reason,
    /// The rule that refused it, or that fell short of granting it.
    pub rule: Option<RuleRef>,
    /// How the sandbox's owner could grant it.
    pub how_to_grant: String,
}

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The sandbox has no network at all.
    NoNetwork,
    /// Nothing allows this host.
    NotListed,
    /// The host is allowed, and this port is not.
    PortNotListed,
    /// A rule denies it.
    DeniedByRule,
    /// A set among what is denied was not resolved, so that nothing is known to be outside it.
    UnresolvedSet,
    /// The address is not public.
    NotPublic,
    /// An address at which clouds serve credentials.
    Metadata,
    /// The host's own loopback, or what systems take for it.
    Loopback,
    /// Another address of the host's own.
    HostItself,
    /// Only some requests are allowed, and in TLS they cannot be seen.
    Unseen,
    /// Only some requests are allowed, and this is not one of them.
    RequestNotListed,
    /// Only some paths are allowed, and servers would read this one differently.
    AmbiguousPath,
    /// The name given to the server is not the one that was connected to.
    OtherName,
    /// Nobody can tell which execution asked for it.
    Unattributed,
    /// The address was made up for a name that is no longer remembered.
    Forgotten,
    /// What was sent could be read in more than one way.
    Malformed,
    /// As many connections are open as there may be.
    TooManyConnections,
    /// More was asked for in a second than may be.
    TooManyRequests,
    /// As many bytes went through as may in all.
    VolumeUsedUp,
    /// As many connections are open as all sandboxes of the tenant may have.
    TenantTooManyConnections,
    /// They asked for more in a second than they may.
    TenantTooManyRequests,
    /// As many bytes went through today as they may move in a day.
    TenantVolumeUsedUp,
    /// The door has as much under way as it has room for.
    NoRoom,
    /// It is not in the recording that is answered from.
    NotRecorded,
    /// It would be missing from the recording that is made.
    RecordingEnded,
}

impl Reason {
    /// The reason as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoNetwork => "no_network",
            Self::NotListed => "not_listed",
            Self::PortNotListed => "port_not_listed",
            Self::DeniedByRule => "denied_by_rule",
            Self::UnresolvedSet => "unresolved_set",
            Self::NotPublic => "not_public",
            Self::Metadata => "metadata",
            Self::Loopback => "loopback",
            Self::HostItself => "host_itself",
            Self::Unseen => "unseen",
            Self::RequestNotListed => "request_not_listed",
            Self::AmbiguousPath => "ambiguous_path",
            Self::OtherName => "other_name",
            Self::Unattributed => "unattributed",
            Self::Forgotten => "forgotten",
            Self::Malformed => "malformed",
            Self::TooManyConnections => "too_many_connections",
            Self::TooManyRequests => "too_many_requests",
            Self::VolumeUsedUp => "volume_used_up",
            Self::TenantTooManyConnections => "tenant_too_many_connections",
            Self::TenantTooManyRequests => "tenant_too_many_requests",
            Self::TenantVolumeUsedUp => "tenant_volume_used_up",
            Self::NoRoom => "no_room",
            Self::NotRecorded => "not_recorded",
            Self::RecordingEnded => "recording_ended",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::NoNetwork => "the sandbox has no network",
            Self::NotListed => "nothing in its policy allows this host",
            Self::PortNotListed => "its policy allows this host, but not this port",
            Self::DeniedByRule => "its policy denies it",
            Self::UnresolvedSet => "its policy denies a set whose hosts are not known",
            Self::NotPublic => "the address is not public",
            Self::Metadata => "clouds serve credentials at this address",
            Self::Loopback | Self::HostItself => "this address is the host itself",
            Self::Unseen => "its policy is about single requests, which cannot be seen inside TLS",
            Self::RequestNotListed => "its policy allows other methods or paths of this host",
            Self::AmbiguousPath => {
                "servers read this path differently, so that no rule about paths can allow it"
            }
            Self::OtherName => "the name given to the server is not the one that was connected to",
            Self::Unattributed => "it cannot be told which execution asked for it",
            Self::Forgotten => "the address was made up for a name that is no longer remembered",
            Self::Malformed => "what was sent could be read in more than one way",
            Self::TooManyConnections => "as many connections are open as its policy allows",
            Self::TooManyRequests => "it asked for more in a second than its policy allows",
            Self::VolumeUsedUp => "it has moved as many bytes as its policy allows",
            Self::TenantTooManyConnections => {
                "all sandboxes of its tenant together have as many connections as the tenant may"
            }
            Self::TenantTooManyRequests => {
                "all sandboxes of its tenant together asked for more in a second than the tenant may"
            }
            Self::NotRecorded => "nothing leaves the sandbox: it is answered from a recording",
            Self::RecordingEnded => "it would be missing from the recording of its network, which has ended",
            Self::TenantVolumeUsedUp => {
                "all sandboxes of its tenant together have moved as many bytes today as the tenant may"
            }
            Self::NoRoom => "the door has as much under way as it has room for",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRef {
    /// In which list it stands.
    pub list: List,
    /// Its place there, from 0.
    pub index: usize,
    /// The rule as it is written, shortened when it is long.
    pub text: String,
}

/// The two lists of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// What is allowed.
    Allow,
    /// What is denied.
    Deny,
}

impl RuleRef {
    pub(super) fn new(list: List, index: usize, rule: &Rule) -> Self {
        Self { list, index, text: shortened(&rule.to_string()) }
    }
}

impl fmt::Display for RuleRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = match self.list {
            List::Allow => "allow",
            List::Deny => "deny",
        };
        write!(formatter, "{list} rule {}, `{}`", self.index + 1, self.text)
    }
}

/// The beginning of a text from inside the sandbox, safe to print.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    let mut short = String::new();
    for character in text.chars().take(MOST) {
        match character {
            // They do no harm, and people read this.
            '\'' | '"' => short.push(character),
            _ => short.extend(character.escape_debug()),
        }
    }
    if text.chars().nth(MOST).is_some() {
        short.push_str("...");
    }
    short
}

impl fmt::Display for Denied {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Belljar refused {}: {}", self.what, self.reason.sentence())?;
        if let Some(rule) = &self.rule {
            write!(formatter, " ({rule})")?;
        }
        write!(
            formatter,
            ". {} Do not try another route: everything that leaves the sandbox is judged by the same rules.",
            self.how_to_grant
        )
    }
}
