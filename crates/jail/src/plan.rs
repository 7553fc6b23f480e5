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
    /// An empty directory to mount on.
    pub stage: PathBuf,
    /// The lowest layer of the root file system.
    pub root: PathBuf,
    /// What lies over that, the uppermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<PathBuf>,
    /// What is mounted on top of it.
    pub layers: Vec<Layer>,
    /// Files of those that read as empty inside; absolute paths of plain components.
    pub covered: Vec<PathBuf>,
    /// Files of its own, in place of those of the lower layer.
    #[serde(default)]
    pub files: Vec<OwnFile>,
    /// What it may use.
    pub limits: Limits,
    /// The variables of every execution.
    pub env: BTreeMap<String, String>,
    /// The shell inside.
    pub shell: String,
    /// Who the default user is.
    #[serde(default)]
    pub user: User,
    /// Whether the root is a template's own, with directories of its own: then whatever is in it may be written to, as far as
    /// permissions go, and not only what is known.
    #[serde(default)]
    pub own_root: bool,
    /// Where executions start; in their user's home if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// How long it lives.
    pub ttl: Duration,
    /// The guest program.
    pub guest: PathBuf,
    /// Whether its network leads to the door; otherwise it leads nowhere.
    #[serde(default)]
    pub doorway: bool,
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
    /// What lies over it, the uppermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<PathBuf>,
    /// Whether root inside may change its own copy of it; otherwise it is read-only.
    pub copy_on_write: bool,
}

/// Who the default user of a sandbox is. An ordinary user's sandboxes have one id only, whatever is said here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Its number; 0 is root inside.
    pub uid: u32,
    /// That of its group.
    pub gid: u32,
    /// Its home.
    pub home: String,
}

/// The number of the default user, and of its group, where nothing else is said.
pub const USER_ID: u32 = 1000;

impl Default for User {
    fn default() -> Self {
        Self { uid: USER_ID, gid: USER_ID, home: "/home/user".into() }
    }
}

/// A file that a sandbox has for itself, as a copy that everybody inside can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnFile {
    /// What is copied, on the host.
    pub source: PathBuf,
    /// Where it is inside; an absolute path of plain components.
    pub target: PathBuf,
}

/// The launcher's one line of answer on standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The guest runs and the monitor listens; a [`Built`](crate::record::Built) says more.
    Ready,
    /// Nothing was left behind.
    Failed(Error),
}
