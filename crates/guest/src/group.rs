//! Everything that an execution started, to be signalled and killed as one.

use rustix::process::{Pid, Signal};

use crate::leaf::Leaf;
use crate::members;
use crate::reap::Ended;

/// The processes of one execution.
pub(crate) enum Group {
    /// In cgroups of their own. `child` is the first process.
    Leaf { leaf: Leaf, child: Option<i32> },
    /// Below a keeper, which is the guest's own child.
    Kept { keeper: Option<i32> },
}

impl Group {
    /// The process that the guest itself forked, until it is reaped.
    pub(crate) fn child(&self) -> Option<i32> {
        match self {
            Self::Leaf { child, .. } => *child,
            Self::Kept { keeper } => *keeper,
        }
    }

    /// Whether a keeper holds the processes together.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }

    /// Its processes, as far as they can be listed while they come and go.
    pub(crate) fn members(&self) -> Vec<i32> {
        match self {
            Self::Leaf { leaf, .. } => leaf.members(),
            Self::Kept { keeper: Some(keeper) } => members::descendants(*keeper),
            Self::Kept { keeper: None } => Vec::new(),
        }
    }

    /// Sends a signal to every process of the execution.
    pub(crate) fn signal(&self, signal: Signal) {
        members::signal(|| self.members(), signal);
    }

    /// Kills every process of the execution. Processes that fork meanwhile may make it necessary again.
    pub(crate) fn kill(&self) {
        match self {
            Self::Leaf { leaf, child } => {
                leaf.kill();
                // The first process may not have entered its cgroup yet. It is not reaped, so the number is its own.
                if let Some(pid) = child.and_then(Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
            Self::Kept { .. } => self.signal(Signal::KILL),
        }
    }

    /// Stops its processes or lets them go on, if they have a cgroup of their own.
    pub(crate) fn freeze(&self, frozen: bool) {
        if let Self::Leaf { leaf, .. } = self {
            leaf.freeze(frozen);
        }
    }

    /// Whether none of its processes moves, where that is up to its own cgroup.
    pub(crate) fn is_frozen(&self) -> bool {
        match self {
            Self::Leaf { leaf, .. } => leaf.is_frozen(),
            Self::Kept { .. } => true,
        }
    }

    /// Takes note that the guest's own child was reaped. Returns how the first process ended if this was it.
    pub(crate) fn reaped(&mut self, ended: Ended) -> Option<Ended> {
        match self {
            Self::Leaf { child, .. } => {
                *child = None;
                Some(ended)
            }
            Self::Kept { keeper } => {
                *keeper = None;
                None
            }
        }
    }

    /// Whether no process is left; removes the cgroups if so.
    pub(crate) fn is_gone(&mut self) -> bool {
        match self {
            Self::Leaf { leaf, child } => child.is_none() && leaf.remove(),
            Self::Kept { keeper } => keeper.is_none(),
        }
    }

    /// Processor time and the most processes at once, as far as the kernel counted them for the group.
    pub(crate) fn usage(&self) -> (Option<u64>, Option<u64>) {
        match self {
            Self::Leaf { leaf, .. } => (leaf.cpu_us(), leaf.peak()),
            Self::Kept { .. } => (None, None),
        }
    }
}
