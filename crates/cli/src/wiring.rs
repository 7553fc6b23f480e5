//! The only file that names the providers: which rungs there are, and what they are built from.

use std::path::PathBuf;

use belljar_core::{Error, ErrorCode, Provider, ProviderName, Result};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use belljar_providers::local::Local;
use serde::Serialize;

/// How one thing that the walls need stands on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "made by the providers crate once it is wired")]
pub(crate) enum Health {
    Ok,
    Degraded,
    Missing,
}

/// One thing that was tried on this host, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) area: String,
    pub(crate) status: Health,
    pub(crate) finding: String,
    pub(crate) advice: Option<String>,
}

/// The provider of this name. Those whose sandboxes outlive a command keep them in the data directory `home`.
pub(crate) fn provider(name: ProviderName, home: Option<PathBuf>) -> Result<Box<dyn Provider>> {
    match name {
        ProviderName::Jail => Ok(Box::new(Jail::new(Home::open(home)?)?)),
        ProviderName::Local => Ok(Box::new(Local::new())),
        ProviderName::Fake => Err(Error::new(ErrorCode::InvalidArgument, "the `fake` provider is for tests")),
    }
}

/// The provider whose sandboxes outlive the command that made them.
pub(crate) fn lasting(home: Option<PathBuf>) -> Result<Box<dyn Provider>> {
    provider(ProviderName::Jail, home)
}

/// Tries everything that the walls need on this host.
pub(crate) async fn examine(home: Option<PathBuf>) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Err(error) = Home::open(home) {
        checks.push(unusable_home(error));
    }
    checks
}

fn unusable_home(error: Error) -> Check {
    Check {
        name: "data directory".into(),
        area: "host".into(),
        status: Health::Missing,
        finding: error.message,
        advice: error.hint,
    }
}
