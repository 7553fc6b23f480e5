//! What the launcher is told, and what it answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use belljar_core::{Error, Limits, SandboxId};
use serde::{Deserialize, Serialize};

/// Everything the launcher needs to build one sandbox. It arrives as one line of JSON on standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The sandbox's name.
    pub id: SandboxId,
    /// Its own directory on the host, made by the caller and locked by nobody yet.
    pub state_dir: PathBuf,
    /// The lower layer of the root file system.
    pub root: PathBuf,
    /// What is mounted on top of it.
    pub layers: Vec<Layer>,
    /// What it may use.
    pub limits: Limits,
    /// The variables of every execution.
    pub env: BTreeMap<String, String>,
    /// The shell inside.
    pub shell: String,
    /// How long it lives.
    pub ttl: Duration,
    /// The guest program.
    pub guest: PathBuf,
}

/// What the creator writes to the launcher's standard input once it knows of the sandbox, so that it lives on by
/// itself. A sandbox that was not told so ends when that input closes.
pub const LIVE_ON: &[u8] = b"!";

/// A directory of the host that is seen inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it is inside; an absolute path of plain components.
    pub target: PathBuf,
    /// Whether root inside may change its own copy of it; otherwise it is read-only.
    pub copy_on_write: bool,
}

/// The launcher's one line of answer on standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The guest runs and the monitor listens.
    Ready(Ready),
    /// Nothing was left behind.
    Failed(Error),
}

/// What was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The guest's process number on the host, for people.
    pub guest_pid: i32,
    /// The monitor's process number on the host, for people.
    pub monitor_pid: i32,
    /// The block of ids and cgroups it uses; `None` when rootless.
    pub slot: Option<u32>,
    /// What this host could not give, in plain words.
    pub losses: Vec<String>,
}
