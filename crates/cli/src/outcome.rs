//! The one place that decides exit statuses: the command's own, 124 on a time-out, 125 when Belljar failed, 126 and
//! 127 when the command could not be started, 137 on out-of-memory and kill, 128 and the signal when we were
//! interrupted.

use std::io;
use std::process::ExitCode;

use belljar_core::{Error, ErrorCode, Termination};

use crate::interrupt::Interrupt;

/// What this process exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u8);

impl Status {
    /// Everything went well.
    pub(crate) const SUCCESS: Self = Self(0);
    /// `doctor` found that something needed is missing on this host, or `policy` that not everything is as it was hoped.
    pub(crate) const UNFIT: Self = Self(1);
    /// Belljar itself failed.
    pub(crate) const FAILED: Self = Self(125);

    /// Passes on how a command inside a sandbox ended.
    pub(crate) fn of(termination: Termination) -> Self {
        Self(termination.shell_status())
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.0)
    }
}

/// Why there is no [`Status`] of a command to pass on.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something that is printed with its hint.
    Error(Error),
    /// The user or the system told us to stop.
    Interrupted(Interrupt),
    /// Whoever read our output went away; there is nobody to tell.
    BrokenPipe,
}

impl Failure {
    /// A fault of ours or of the host.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::Error(Error::new(ErrorCode::Internal, message))
    }

    /// Our own standard output or error could not be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::BrokenPipe;
        }
        Self::Error(
            Error::new(ErrorCode::ResourceExhausted, format!("cannot write the output: {error}"))
                .hint("see whether the disk that standard output goes to is full"),
        )
    }

    /// What to exit with.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Error(error) => match error.code {
                ErrorCode::CommandNotFound => Status(127),
                ErrorCode::CommandNotExecutable => Status(126),
                _ => Status::FAILED,
            },
            Self::Interrupted(Interrupt::Int) => Status(130),
            Self::Interrupted(Interrupt::Term) => Status(143),
            Self::BrokenPipe => Status(141),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_that_could_not_start_differs_from_our_own_failure() {
        for code in ErrorCode::ALL {
            let expected = match code {
                ErrorCode::CommandNotFound => 127,
                ErrorCode::CommandNotExecutable => 126,
                _ => 125,
            };
            assert_eq!(Failure::Error(Error::new(code, "x")).status(), Status(expected), "{code}");
        }
        assert_eq!(Failure::Interrupted(Interrupt::Int).status(), Status(130));
        assert_eq!(Failure::Interrupted(Interrupt::Term).status(), Status(143));
    }
}
