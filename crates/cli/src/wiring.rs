//! The only file that names the providers: which rungs there are, and what they are built from.

use std::path::PathBuf;

use belljar_core::{Error, ErrorCode, Provider, ProviderName, Result};
use belljar_providers::doctor;
pub(crate) use belljar_providers::doctor::{Area, Check, Status as Health};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use belljar_providers::local::Local;

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
    match Home::open(home) {
        Ok(home) => doctor::examine(&home).await,
        Err(error) => vec![unusable_home(error)],
    }
}

fn unusable_home(error: Error) -> Check {
    Check {
        area: Area::Data,
        name: "data directory".into(),
        status: Health::Missing,
        finding: error.message,
        advice: error.hint,
    }
}
