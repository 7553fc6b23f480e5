//! Belljar as a library, as the bench uses it: a warm provider on a data directory of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_core::{
    ByteSize, CpuCount, Door, ExecRequest, ExecResult, Grant, Limits, NetworkPolicy, Provider, Recording,
    Sandbox, SandboxSpec, UserName,
};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::error::{BenchError, Result, at};

/// Where the program of the load is put inside.
const WORK: &str = "/tmp/belljar-work";

/// A provider whose sandboxes end with this process.
#[derive(Clone)]
pub(crate) struct Bell {
    home: PathBuf,
    jail: Arc<Jail>,
}

impl Bell {
    /// Opens a data directory below `scratch`.
    pub(crate) fn open(scratch: &Path) -> Result<Self> {
        let home = scratch.join("home");
        Ok(Self { jail: Arc::new(Jail::new(Home::open(Some(home.clone()))?)?), home })
    }

    /// The same with a door for its sandboxes.
    pub(crate) fn open_with(
        scratch: &Path,
        door: impl FnOnce(&Path) -> Result<Arc<dyn Door>>,
    ) -> Result<Self> {
        let home = scratch.join("home");
        let jail = Jail::new(Home::open(Some(home.clone()))?)?;
        Ok(Self { jail: Arc::new(jail.with_door(door(&home)?)), home })
    }

    /// The data directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Makes a sandbox with the default limits.
    pub(crate) async fn create(&self) -> Result<Arc<dyn Sandbox>> {
        self.create_with(Limits::default()).await
    }

    /// Makes a sandbox with these limits.
    pub(crate) async fn create_with(&self, limits: Limits) -> Result<Arc<dyn Sandbox>> {
        self.create_granted(limits, NetworkPolicy::None).await
    }

    /// Makes a sandbox with these limits and this network.
    pub(crate) async fn create_granted(
        &self,
        limits: Limits,
        network: NetworkPolicy,
    ) -> Result<Arc<dyn Sandbox>> {
        self.make(SandboxSpec { limits, network, ..SandboxSpec::default() }).await
    }

    /// Makes a sandbox with this network, for which the gateway does this.
    pub(crate) async fn create_for(
        &self,
        network: NetworkPolicy,
        grant: Option<Grant>,
    ) -> Result<Arc<dyn Sandbox>> {
        self.make(SandboxSpec { network, grant, ..SandboxSpec::default() }).await
    }

    /// Makes a sandbox with this network, with which a recording has this to do.
    pub(crate) async fn create_recorded(
        &self,
        network: NetworkPolicy,
        recording: Option<Recording>,
    ) -> Result<Arc<dyn Sandbox>> {
        self.make(SandboxSpec { network, recording, ..SandboxSpec::default() }).await
    }

    /// Makes a sandbox that ends with us.
    pub(crate) async fn make(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let ttl = Duration::from_secs(1800);
        Ok(self.jail.create(SandboxSpec { ttl, tied_to_creator: true, ..spec }).await?)
    }

    /// Puts the program of the load into a sandbox; answers with its path there.
    pub(crate) async fn bring_work(&self, sandbox: &dyn Sandbox) -> Result<&'static str> {
        let program = beside("belljar-work")?;
        let bytes = Bytes::from(std::fs::read(&program).map_err(at(&program))?);
        let stream = futures_util::stream::iter([Ok(bytes)]);
        sandbox.upload(&WORK.parse()?, UserName::User, Box::pin(stream)).await?;
        run(sandbox, ExecRequest::argv(["chmod", "755", WORK])).await?;
        Ok(WORK)
    }
}

/// Small limits for a sandbox that will try to take everything: two processors and little else.
pub(crate) fn bomb_limits() -> Limits {
    let memory = ByteSize::mib(256);
    Limits { memory, cpus: CpuCount(2000), pids: 128, disk: ByteSize::mib(64), inodes: 4096, open_files: 256 }
}

/// Runs a command that must succeed.
pub(crate) async fn run(sandbox: &dyn Sandbox, request: ExecRequest) -> Result<ExecResult> {
    let result = sandbox.execute(request).await?;
    if result.termination.is_success() {
        return Ok(result);
    }
    Err(BenchError::Failed {
        program: format!("a command in {}", sandbox.id()),
        why: format!(
            "{:?}: {}",
            result.termination,
            String::from_utf8_lossy(&result.stderr.to_bytes()).trim()
        ),
    })
}

/// A program that is built together with this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
    let path = own.with_file_name(name);
    if path.exists() { Ok(path) } else { Err(BenchError::Unbuilt(path)) }
}

/// Makes this many sandboxes, as so many callers would at once. On error those that were made end with us.
pub(crate) async fn create_all(bell: &Bell, count: usize, callers: usize) -> Result<Vec<Arc<dyn Sandbox>>> {
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let bell = bell.clone();
        let share = count / callers + usize::from(caller < count % callers);
        tasks.spawn(async move {
            let mut sandboxes = Vec::with_capacity(share);
            for _ in 0..share {
                sandboxes.push(bell.create().await?);
            }
            Ok::<_, BenchError>(sandboxes)
        });
    }
    gather(tasks).await
}

/// Removes them, a few at a time.
pub(crate) async fn remove_all(sandboxes: Vec<Arc<dyn Sandbox>>) -> Result<()> {
    let mut tasks = JoinSet::new();
    let share = sandboxes.len().div_ceil(4).max(1);
    for some in sandboxes.chunks(share) {
        let some = some.to_vec();
        tasks.spawn(async move {
            for sandbox in some {
                sandbox.cleanup().await?;
            }
            Ok::<_, BenchError>(Vec::<()>::new())
        });
    }
    gather(tasks).await.map(drop)
}

async fn gather<T: 'static>(mut tasks: JoinSet<Result<Vec<T>>>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done.map_err(|error| BenchError::Invalid(format!("a caller failed: {error}")))??);
    }
    Ok(all)
}
