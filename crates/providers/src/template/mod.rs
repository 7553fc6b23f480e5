//! What a sandbox's file system is made of before it writes anything.
//!
//! A template is a generated root (the lower layer of `/`), a list of host directories mounted over it, and the
//! environment every process starts from. Every machine has `host`: its own `/usr` and toolchains, nothing to download, and
//! nothing of the machine's owner inside. All others are layers, over that or over nothing (`layered`).

mod accounts;
mod cache;
pub(crate) mod certificates;
mod host;
mod interpreter;
pub(crate) mod layered;
mod prefix;
mod probe;
mod sets;
mod settings;
mod skeleton;
mod source;
mod tree;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, NetworkPolicy, Rule, SetName};
use belljar_jail::plan::User;
use serde::{Deserialize, Serialize};

pub use interpreter::{Interpreter, Language};
pub use settings::{PackageSource, PackageTool};

/// The template that every machine has: its own programs.
pub const HOST: &str = "host";

/// Everything a launcher needs to know to give a sandbox its files and its environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// The name it was asked for by.
    pub name: String,
    /// SHA-256 in hex of the root, the mounts, the environment and the state of the system directories.
    pub digest: String,
    /// The generated root, the lowest read-only layer of `/`. Shared by all sandboxes of this digest, so nobody may
    /// write to it: one that differs from its digest is thrown away by the next call that builds.
    pub root: PathBuf,
    /// The layers that lie over the root, the uppermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<PathBuf>,
    /// The layer with the files that were generated, which say whom programs believe.
    pub generated: PathBuf,
    /// What is mounted over the root, parents before children.
    pub mounts: Vec<Mount>,
    /// Files of the mounts that must not be seen, because they may hold credentials: they read as empty.
    pub covered: Vec<PathBuf>,
    /// The whole environment of a process inside, sorted by name.
    pub env: Vec<(String, String)>,
    /// The shell inside.
    pub shell: PathBuf,
    /// Who the default user is.
    pub user: User,
    /// Where executions start, if not in their user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// What was not found or was refused, each with the next step, for a person to read.
    pub notes: Vec<String>,
    /// The language toolchains a sandbox sees.
    pub interpreters: Vec<Interpreter>,
    /// Where the package tools inside fetch from, free of credentials: what a network grant for installs must name.
    pub package_sources: Vec<PackageSource>,
    /// The ready-made sets of hosts, those that could be resolved.
    sets: BTreeMap<SetName, Vec<Rule>>,
}

impl Template {
    /// What the ready-made sets of hosts stand for on this machine. One that is missing could not be resolved.
    pub fn sets(&self) -> &BTreeMap<SetName, Vec<Rule>> {
        &self.sets
    }

    /// The policy with its sets resolved, as it is to be kept and enforced: whoever makes a sandbox, or changes its policy,
    /// calls this before the policy is written down. A set that stands for nothing here is refused.
    pub fn expand(&self, policy: &NetworkPolicy) -> Result<NetworkPolicy, Error> {
        let expanded = match policy {
            NetworkPolicy::None => return Ok(NetworkPolicy::None),
            NetworkPolicy::Allowlist(rules) => NetworkPolicy::Allowlist(rules.expand(&self.sets)),
            NetworkPolicy::Open(rules) => NetworkPolicy::Open(rules.expand(&self.sets)),
        };
        if let Some(set) = expanded.rules().and_then(belljar_core::Rules::unresolved) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("the set `{set}` stands for no host: this machine's settings name none"),
            )
            .hint("name the hosts themselves, as in `--allow packages.example.org`; `belljar doctor` says what is missing"));
        }
        expanded.check()?;
        Ok(expanded)
    }
}

/// One host directory seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The directory on the host.
    pub source: PathBuf,
    /// Where it appears, absolute inside. It exists in the root or in an earlier mount.
    pub target: PathBuf,
    /// What lies over it, the uppermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<PathBuf>,
    /// True: root inside may change it, in an overlay of the sandbox's own. False: a read-only bind.
    pub copy_on_write: bool,
}

/// Why a template could not be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// No template has this name.
    #[error("there is no template named `{}`", name.escape_debug())]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The host lacks a directory the template is made of.
    #[error("the host template needs the directory {path}, which is missing")]
    MissingDirectory {
        /// The missing directory.
        path: PathBuf,
    },
    /// The host has no shell.
    #[error("the host template needs /bin/bash or /bin/sh, and neither exists")]
    MissingShell,
    /// The cache directory cannot be made or written.
    #[error("cannot prepare the template cache {path}")]
    PrepareCache {
        /// The cache directory, or the file in it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory of the root could not be made.
    #[error("cannot create the directory {path}")]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the root could not be written.
    #[error("cannot write {path}")]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A symbolic link of the root could not be made.
    #[error("cannot create the symbolic link {path}")]
    CreateLink {
        /// The link.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The mode or owner of a path of the root could not be set.
    #[error("cannot set the mode or owner of {path}")]
    SetAttributes {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The root could not be read back to compute its digest.
    #[error("cannot read back {path} to compute the template's digest")]
    Digest {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The finished root could not be moved to its place.
    #[error("cannot move the finished template to {path}")]
    Publish {
        /// Its place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A layer could not be read.
    #[error("cannot read the layers of the template")]
    Layers {
        /// What the system said.
        source: io::Error,
    },
    /// The template is to be used by somebody it does not know.
    #[error("the template says that `{0}` uses it, whom its /etc/passwd does not know")]
    UnknownUser(String),
    /// The answer could not be kept for the next call.
    #[error("cannot store the resolved template in {path}")]
    Store {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The template `host`, built under `cache_dir` if this host has not got it yet.
///
/// Blocking: the first call on a host runs the interpreters it finds (each with a time limit) and writes a few
/// megabytes; later calls only stat what the answer depends on. Safe to call from several threads and processes at
/// once. On error nothing is left at the places that count, only (after a crash) a `.build-*` directory.
pub fn host(cache_dir: &Path) -> Result<Template, TemplateError> {
    host::resolve(&source::Source::current(), cache_dir)
}
