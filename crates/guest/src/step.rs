//! The steps from fork to exec, and how a child tells which one stopped it.

use libc::c_long;

/// A step that can fail. The numbers travel over the report pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Fork,
    Session,
    Cgroup,
    Stdio,
    Terminal,
    Limits,
    Groups,
    Bounding,
    Ids,
    Capabilities,
    Landlock,
    Filter,
    Directory,
    Descriptors,
    Interpreter,
    Execute,
}

impl Step {
    const ALL: [Self; 16] = [
        Self::Fork,
        Self::Session,
        Self::Cgroup,
        Self::Stdio,
        Self::Terminal,
        Self::Limits,
        Self::Groups,
        Self::Bounding,
        Self::Ids,
        Self::Capabilities,
        Self::Landlock,
        Self::Filter,
        Self::Directory,
        Self::Descriptors,
        Self::Interpreter,
        Self::Execute,
    ];

    /// What was being done, for a message.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Fork => "create a process",
            Self::Session => "start a session",
            Self::Cgroup => "enter its cgroup",
            Self::Stdio => "set up its standard streams",
            Self::Terminal => "take its terminal",
            Self::Limits => "set its resource limits",
            Self::Groups => "leave supplementary groups",
            Self::Bounding => "drop capabilities for good",
            Self::Ids => "change its user",
            Self::Capabilities => "set its capabilities",
            Self::Landlock => "enter its Landlock rules",
            Self::Filter => "narrow its system-call filter",
            Self::Directory => "enter its working directory",
            Self::Descriptors => "close inherited descriptors",
            Self::Interpreter => "find its interpreter",
            Self::Execute => "execute the program",
        }
    }
}

/// Where a child was stopped, and by which error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) step: Step,
    pub(crate) errno: i32,
}

impl Stopped {
    /// Bytes of a report.
    pub(crate) const BYTES: usize = 5;

    /// This step, stopped by the current `errno`.
    pub(crate) fn now(step: Step) -> Self {
        // SAFETY: errno is always there to be read.
        Self { step, errno: unsafe { *libc::__errno_location() } }
    }

    /// The report as it goes through the pipe.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.errno.to_le_bytes();
        [self.step as u8, a, b, c, d]
    }

    /// The report as it came through the pipe.
    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [step, a, b, c, d] = bytes;
        let step = *Step::ALL.get(usize::from(step))?;
        Some(Self { step, errno: i32::from_le_bytes([a, b, c, d]) })
    }
}

/// Turns a system call's -1 into the step that it stopped.
pub(crate) fn check(step: Step, result: c_long) -> Result<c_long, Stopped> {
    if result == -1 { Err(Stopped::now(step)) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for step in Step::ALL {
            let stopped = Stopped { step, errno: libc::EACCES };
            assert_eq!(Stopped::from_bytes(stopped.to_bytes()), Some(stopped));
        }
        assert_eq!(Stopped::from_bytes([200, 0, 0, 0, 0]), None);
    }
}
