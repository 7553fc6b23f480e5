//! Why the guest ends. Its end is the end of the sandbox: the kernel kills everything else in the namespace.

use std::fmt;

use rustix::io::Errno;

/// A reason to end.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer went away.
    Closed,
    /// The time of the sandbox is over.
    Deadline,
    /// The peer does not speak the protocol.
    Violation(String),
    /// The peer speaks another version of the protocol, or asks for what this host cannot give.
    Refused(belljar_core::Error),
    /// The kernel refused something that the guest cannot do without.
    Failed { step: &'static str, errno: Errno },
}

impl End {
    /// The exit status: 0 when the sandbox ended as planned.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Closed | Self::Deadline => 0,
            Self::Violation(_) | Self::Refused(_) => 2,
            Self::Failed { .. } => 1,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => formatter.write_str("the control socket closed"),
            Self::Deadline => formatter.write_str("the deadline passed"),
            Self::Violation(what) => write!(formatter, "protocol violation: {what}"),
            Self::Refused(error) => write!(formatter, "{error}"),
            Self::Failed { step, errno } => write!(formatter, "could not {step}: {errno}"),
        }
    }
}
