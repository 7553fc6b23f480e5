//! What a provider can do beyond the four basic methods.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One ability beyond `execute`, `upload`, `download` and `cleanup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Output arrives while the command runs.
    Stream,
    /// Input can be sent while the command runs.
    Stdin,
    /// The command can have a terminal.
    Pty,
    /// Signals can be sent to a running command.
    Signal,
    /// Files can be listed, moved, removed, watched, and carried as tar.
    Files,
    /// The life of the sandbox can be extended, and its use of resources read.
    Control,
    /// The sandbox can be paused in memory and resumed.
    Pause,
    /// What it may reach can be granted, changed while it runs, and read afterwards.
    Network,
    /// Executions can run as root of the sandbox.
    Root,
    /// Code inside cannot reach the host: files, processes, network.
    Isolation,
    /// Memory, processors, processes and disk are bounded.
    Limits,
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stream => "stream",
            Self::Stdin => "stdin",
            Self::Pty => "pty",
            Self::Signal => "signal",
            Self::Files => "files",
            Self::Control => "control",
            Self::Pause => "pause",
            Self::Network => "network",
            Self::Root => "root",
            Self::Isolation => "isolation",
            Self::Limits => "limits",
        })
    }
}

/// The set of abilities that a provider declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capabilities(Vec<Capability>);

impl Capabilities {
    /// The given abilities, sorted and without repetition.
    pub fn of(capabilities: &[Capability]) -> Self {
        let mut list = capabilities.to_vec();
        list.sort_unstable();
        list.dedup();
        Self(list)
    }

    /// Whether this ability is declared.
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// The declared abilities in a stable order.
    pub fn iter(&self) -> impl Iterator<Item = Capability> + '_ {
        self.0.iter().copied()
    }
}
