//! What this host can and cannot do for a sandbox. Nothing is believed because a version number says so: each
//! feature is tried, in a process that is thrown away, and the finding says what happened.
//!
//! Mounts are made in mount namespaces that end with their process, so whatever becomes of a probe, no mount and no
//! file stays behind.

mod files;
mod host;
mod limits;
mod namespaces;
mod probe;
#[cfg(test)]
mod tests;
mod walls;

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use self::probe::Proof;
#[cfg(test)]
pub(crate) use self::probe::in_child_within;

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Users, processes, mounts, names and networks of a sandbox's own.
    Namespaces,
    /// The file system of a sandbox.
    Files,
    /// What stands behind the namespaces: the system-call filter, Landlock, privileges.
    Walls,
    /// Memory, processes and processor time.
    Limits,
    /// Settings of the host that make an escape harder.
    Host,
    /// Where Belljar keeps its data.
    Data,
    /// What sandboxes are made from.
    Template,
    /// A real one.
    Sandbox,
}

impl fmt::Display for Area {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Namespaces => "namespaces",
            Self::Files => "files",
            Self::Walls => "walls",
            Self::Limits => "limits",
            Self::Host => "host",
            Self::Data => "data",
            Self::Template => "template",
            Self::Sandbox => "sandbox",
        })
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It works. There may still be advice.
    Ok,
    /// Sandboxes work, and lack something.
    Degraded,
    /// Sandboxes do not work.
    Missing,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What it is about.
    pub area: Area,
    /// What was tried; no two checks share a name.
    pub name: String,
    /// What came of it.
    pub status: Status,
    /// What happened, in plain words.
    pub finding: String,
    /// What to do, where there is something to do.
    pub advice: Option<String>,
}

impl Check {
    /// Something that works.
    pub fn ok(area: Area, name: &str, finding: impl Into<String>) -> Self {
        Self { area, name: name.into(), status: Status::Ok, finding: finding.into(), advice: None }
    }

    /// Something without which sandboxes lack something.
    pub fn degraded(
        area: Area,
        name: &str,
        finding: impl Into<String>,
        advice: impl Into<Option<String>>,
    ) -> Self {
        let (name, finding, advice) = (name.into(), finding.into(), advice.into());
        Self { area, name, status: Status::Degraded, finding, advice }
    }

    /// Something without which there are no sandboxes.
    pub fn missing(
        area: Area,
        name: &str,
        finding: impl Into<String>,
        advice: impl Into<Option<String>>,
    ) -> Self {
        Self { status: Status::Missing, ..Self::degraded(area, name, finding, advice) }
    }

    /// Something that every sandbox needs.
    fn required(area: Area, name: &str, proof: Proof, advice: &str) -> Self {
        match proof {
            Ok(finding) => Self::ok(area, name, finding),
            Err(finding) => Self::missing(area, name, finding, advice.to_owned()),
        }
    }

    /// Something that sandboxes can do without.
    fn useful(area: Area, name: &str, proof: Proof, advice: &str) -> Self {
        match proof {
            Ok(finding) => Self::ok(area, name, finding),
            Err(finding) => Self::degraded(area, name, finding, advice.to_owned()),
        }
    }
}

/// Tries everything, as the user that runs this: root of the host, or anyone else, for whom less is possible. Takes
/// a second or so, and leaves nothing behind.
pub fn examine() -> Vec<Check> {
    let mut checks = namespaces::examine();
    checks.extend(files::examine());
    checks.extend(walls::examine());
    checks.extend(limits::examine());
    checks.extend(host::examine());
    checks
}

/// Prints what [`examine`] finds as one line of JSON; the answer is the exit status.
pub fn run() -> i32 {
    let mut line = serde_json::to_vec(&examine()).unwrap_or_default();
    line.push(b'\n');
    let mut stdout = io::stdout();
    match stdout.write_all(&line).and_then(|()| stdout.flush()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
