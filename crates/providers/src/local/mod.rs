//! The lowest rung: subprocesses in a temporary directory, for development. There is **no isolation**: a command can
//! read and change whatever the user who runs Belljar can, and limits are not enforced.
//!
//! What it does promise: an environment built from an allow-list, a home and a `/tmp` of its own, time-outs, bounded
//! output, and the end of the process tree. A process is counted to the tree if it descends from the command, is in its
//! process group, or carries its mark in the environment; one that sheds all three (a daemon started with an empty
//! environment) escapes, and so does everything but the process group where there is no `/proc`.
//!
//! Paths given to `upload`, `download` and `cwd` speak of the sandbox: `/home/user/x` is `<directory>/home/user/x`, `/tmp/x`
//! is `<directory>/tmp/x`, relative ones start at `/home/user`, and any other absolute path is refused. Commands see
//! the host's own paths; `$HOME` and `$TMPDIR` point into the directory.

mod execution;
mod journal;
mod place;
mod sandbox;
mod tree;

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use async_trait::async_trait;
use belljar_core::{
    Capabilities, Capability, Error, ErrorCode, Provider, ProviderName, Result, Sandbox, SandboxId,
    SandboxSpec,
};

use crate::names::Names;
use sandbox::LocalSandbox;

/// Makes sandboxes that are subprocesses in temporary directories. They end with the value that stands for them.
#[derive(Clone, Debug, Default)]
pub struct Local {
    names: Names,
}

impl Local {
    /// The provider; it has nothing to configure.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> ProviderName {
        ProviderName::Local
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[Capability::Stream, Capability::Stdin, Capability::Signal, Capability::Control])
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        spec.check()?;
        spec.network.check_without_door(ProviderName::Local)?;
        spec.check_without_recording(ProviderName::Local)?;
        if spec.template != "host" {
            return Err(Error::new(
                ErrorCode::NotFound,
                format!("the `local` provider has no template `{}`", spec.template.escape_debug()),
            )
            .hint("use `host`, or another provider"));
        }
        let id = match spec.id.take() {
            Some(id) => id,
            None => SandboxId::from_random(random_bytes()?),
        };
        let name = self.names.take(&id)?;
        Ok(Arc::new(LocalSandbox::create(id, name, spec)?))
    }
}

fn random_bytes() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Error::new(ErrorCode::HostFeature, format!("cannot read /dev/urandom: {error}")))?;
    Ok(bytes)
}
