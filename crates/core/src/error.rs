//! The one error type that crosses crate boundaries upward: a stable code, what failed, and what to do about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Capability, ProviderName};

/// The result of anything that can fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A closed set of reasons. Each has a page under `docs/errors/` that says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// An option, path or value is wrong; nothing was started.
    InvalidArgument,
    /// The named sandbox, execution, file or template is not there.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// The caller (or the user inside the sandbox) may not do this.
    PermissionDenied,
    /// The provider does not have this ability.
    Unsupported,
    /// The host lacks a kernel feature or a program that the walls need.
    HostFeature,
    /// A bound was reached: disk, size, count.
    ResourceExhausted,
    /// The command could not be started: not found inside the sandbox.
    CommandNotFound,
    /// The command could not be started: found, but it cannot be executed.
    CommandNotExecutable,
    /// A step of a build, or an installation, did not end well; nothing of it is kept.
    StepFailed,
    /// The sandbox has ended.
    SandboxGone,
    /// The sandbox is paused, and this needs one that runs.
    Paused,
    /// A newer engine has taken over the sandbox, and nothing is done for this one any more.
    Fenced,
    /// The data directory is in use by, or was written by, an incompatible version.
    Version,
    /// Contact with the sandbox was lost; what happened to the call is not known.
    Lost,
    /// There is no room now; the error says when to try again.
    Overloaded,
    /// It cannot be done now, and can be later.
    Unavailable,
    /// A fault of ours.
    Internal,
}

impl ErrorCode {
    /// Every code, for the documentation and its test.
    pub const ALL: [Self; 18] = [
        Self::InvalidArgument,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::Unsupported,
        Self::HostFeature,
        Self::ResourceExhausted,
        Self::CommandNotFound,
        Self::CommandNotExecutable,
        Self::StepFailed,
        Self::SandboxGone,
        Self::Paused,
        Self::Fenced,
        Self::Version,
        Self::Lost,
        Self::Overloaded,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The code as it stands in JSON and as the name of its page.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::Unsupported => "unsupported",
            Self::HostFeature => "host_feature",
            Self::ResourceExhausted => "resource_exhausted",
            Self::CommandNotFound => "command_not_found",
            Self::CommandNotExecutable => "command_not_executable",
            Self::StepFailed => "step_failed",
            Self::SandboxGone => "sandbox_gone",
            Self::Paused => "paused",
            Self::Fenced => "fenced",
            Self::Version => "version",
            Self::Lost => "lost",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What failed, why, and the next step. The status of sandboxed code is never carried here: that is a
/// [`Termination`](crate::Termination).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    /// The stable code that programs match on.
    pub code: ErrorCode,
    /// What failed and why, as a lower-case sentence fragment.
    pub message: String,
    /// What to do next, when there is something to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// When it is worth trying again, in milliseconds from now, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Error {
    /// An error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, retry_after_ms: None }
    }

    /// The same error with a next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with a time after which it is worth trying again.
    #[must_use]
    pub fn retry_after(mut self, span: std::time::Duration) -> Self {
        self.retry_after_ms = u64::try_from(span.as_millis()).ok();
        self
    }

    /// What a provider answers when asked for an ability it does not declare.
    pub fn unsupported(provider: ProviderName, capability: Capability) -> Self {
        Self::new(ErrorCode::Unsupported, format!("the `{provider}` provider has no `{capability}` ability"))
            .hint("`belljar inspect` lists what a sandbox can do; another provider may have it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelled_the_same_everywhere() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{code}\""));
        }
    }
}
