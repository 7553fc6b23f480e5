//! Where templates are built, and what is heard of it.

use std::io;
use std::path::Path;
use std::time::Duration;

use belljar_core::{
    ByteSize, CpuCount, Error, ErrorCode, Limits, NetworkPolicy, Result, Rule, SetName, Stream,
};
use belljar_layers::{Catalog, Digest, Held, Record, Unpacker};
use belljar_providers::jail::Jail;
use belljar_providers::jail::templates::catalog;

/// The time that all files of a built template have: 1980, before which some archives know none.
pub(crate) const EPOCH: i64 = 315_532_800;

/// What builds templates, and under which conditions.
pub struct Workshop {
    pub(crate) jail: Jail,
    pub(crate) catalog: Catalog,
    pub(crate) how: How,
    pub(crate) unpacker: Box<dyn Unpacker>,
    /// Nothing that was made is collected meanwhile.
    pub(crate) held: Held,
}

/// Under which conditions steps run.
#[derive(Clone, Debug)]
pub struct How {
    /// What they may reach.
    pub network: NetworkPolicy,
    /// Registries whose files are kept, and had from there.
    pub cache: Vec<Rule>,
    /// What they may use.
    pub limits: Limits,
    /// How long one may take.
    pub timeout: Duration,
    /// Whether all is done again, whatever was done before.
    pub anew: bool,
}

impl How {
    /// What builds may use if nothing else is said: of the disk that holds this directory, a part of what is free.
    pub fn default_limits(directory: &Path) -> Limits {
        let free = rustix::fs::statvfs(directory).map_or(0, |disk| disk.f_bavail * disk.f_frsize);
        let disk = ByteSize((free / 4).clamp(ByteSize::gib(2).0, ByteSize::gib(10).0) & !((1 << 20) - 1));
        let memory = ByteSize::gib(4);
        Limits { memory, disk, inodes: 1 << 20, pids: 2048, cpus: CpuCount(4000), ..Limits::default() }
    }

    /// How long a step may take if nothing else is said.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
}

/// What is heard of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step begins, or was done before.
    Step {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        all: usize,
        /// What it is.
        text: String,
        /// Whether it was done before.
        kept: bool,
    },
    /// A program of a step says something.
    Output {
        /// Where.
        stream: Stream,
        /// What.
        bytes: Vec<u8>,
    },
    /// Something that people should know.
    Note(String),
}

/// Whom it is told.
pub type Tell<'a> = &'a mut (dyn FnMut(Progress) + Send);

impl Workshop {
    /// With this provider, and somebody to unpack archives.
    pub fn new(jail: Jail, unpacker: Box<dyn Unpacker>, how: How) -> Result<Self> {
        let catalog = catalog(jail.home())?;
        let held = catalog.store().hold().map_err(failed)?;
        Ok(Self { jail, catalog, how, unpacker, held })
    }

    /// Where the templates are.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// What came of this, if it was done before and is not to be done anew.
    pub(crate) fn recall(&self, key: &Digest) -> Result<Option<Record>> {
        if self.how.anew { Ok(None) } else { self.catalog.recall(key).map_err(failed) }
    }

    /// Gives a template a name.
    pub fn name(&self, name: &str, record: &Record, origin: &str) -> Result<belljar_layers::Named> {
        self.catalog.name(&self.held, name, record, origin).map_err(failed)
    }
}

/// The registries that this machine has settings for, as what steps may reach, and as what is kept.
pub async fn registries(jail: &Jail) -> Result<(Vec<Rule>, Vec<Rule>)> {
    let known = jail.known_sets().await?;
    let is_registry = |set: &SetName| *set != SetName::Github;
    let rules = |sets: &[SetName]| -> Result<Vec<Rule>> {
        let parsed = sets.iter().map(|set| set.as_str().parse::<Rule>());
        parsed
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))
    };
    let reached: Vec<_> = known.iter().copied().filter(is_registry).collect();
    let kept: Vec<_> = reached.iter().copied().filter(|set| *set != SetName::Debian).collect();
    Ok((rules(&reached)?, rules(&kept)?))
}

pub(crate) fn failed(error: io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::ResourceExhausted,
        _ => ErrorCode::Internal,
    };
    Error::new(code, format!("cannot build the template: {error}"))
}
