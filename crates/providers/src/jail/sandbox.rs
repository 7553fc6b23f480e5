//! One jail, as the rest of Belljar sees it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use belljar_core::{
    ByteStream, Capability, Control, Error, ErrorCode, ExecRequest, ExecResult, Execs, FilePath, Files,
    Gateway, Network, ProviderName, Result, Sandbox, SandboxId, SandboxInfo, SandboxState, SandboxStats,
    UserName,
};
use belljar_jail::control::{Answer, Ended, Request};
use belljar_jail::sweep;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use super::calls;
use super::connection::{self, Way};
use super::egress;
use super::execs::{self, JailExecs, unexpected};
use super::files::{self, JailFiles};
use super::network::JailNetwork;
use super::record::{Lease, built, ended, is_alive};

/// How long the end of a sandbox may take before we say that it did not end.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A sandbox behind the native walls.
#[derive(Debug)]
pub(super) struct Jailed {
    id: SandboxId,
    way: Way,
    execs: JailExecs,
    files: JailFiles,
    control: JailControl,
    tie: Option<Arc<Tie>>,
    network: Option<JailNetwork>,
    /// Has the door look after it, where that was not done when it was made.
    recall: Option<AbortHandle>,
}

impl Drop for Jailed {
    fn drop(&mut self) {
        if let Some(recall) = &self.recall {
            recall.abort();
        }
    }
}

/// What we hold of a sandbox that is to end with us.
#[derive(Debug)]
pub(super) struct Tie {
    /// The launcher sees by it that we are gone, and we that it is.
    launcher: Mutex<UnixStream>,
    /// The lease: others see by it that we are there.
    _lease: fs::File,
}

impl Tie {
    pub(super) fn new(launcher: UnixStream, lease: fs::File) -> Self {
        Self { launcher: Mutex::new(launcher), _lease: lease }
    }

    /// Waits until the launcher has ended. It says nothing more before that.
    async fn broken(&self) {
        let _ = self.launcher.lock().await.read(&mut [0]).await;
    }
}

impl Jailed {
    /// `network` is there if there is a door.
    pub(super) fn new(id: SandboxId, way: Way, tie: Option<Tie>, network: Option<JailNetwork>) -> Self {
        let tie = tie.map(Arc::new);
        Self {
            execs: JailExecs { way: way.clone(), network: network.clone() },
            files: JailFiles { way: way.clone() },
            control: JailControl { way: way.clone(), tie: tie.clone() },
            id,
            way,
            tie,
            network,
            recall: None,
        }
    }

    /// The same of one that is there already: a door that is gone meanwhile is opened again, while this is used.
    pub(super) fn recalled(mut self) -> Self {
        let network = self.network.clone().filter(|network| network.is_granted);
        if let Some(network) = network.filter(|network| is_alive(&network.way.state_dir)) {
            let recall = async move {
                if let Err(error) = network.see_to().await {
                    tracing::warn!(sandbox = %network.id, %error, "the door does not look after it");
                }
            };
            self.recall = Some(tokio::spawn(recall).abort_handle());
        }
        self
    }
}

#[async_trait]
impl Sandbox for Jailed {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn provider(&self) -> ProviderName {
        ProviderName::Jail
    }

    async fn execute(&self, request: ExecRequest) -> Result<ExecResult> {
        request.check()?;
        execs::execute(&self.execs, request).await
    }

    async fn upload(&self, path: &FilePath, user: UserName, content: ByteStream) -> Result<u64> {
        files::upload(&self.way, path, user, content).await
    }

    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        files::download(&self.way, path, user).await
    }

    async fn cleanup(&self) -> Result<()> {
        if !self.way.state_dir.exists() {
            return Ok(());
        }
        end(&self.way, self.tie.as_deref()).await?;
        remove(&self.way.state_dir).await
    }

    fn execs(&self) -> Result<&dyn Execs> {
        Ok(&self.execs)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }

    fn control(&self) -> Result<&dyn Control> {
        Ok(&self.control)
    }

    fn network(&self) -> Result<&dyn Network> {
        match &self.network {
            Some(network) => Ok(network),
            None => Err(Error::unsupported(ProviderName::Jail, Capability::Network)),
        }
    }

    fn gateway(&self) -> Result<&dyn Gateway> {
        match &self.network {
            Some(network) => Ok(network),
            None => Err(Error::unsupported(ProviderName::Jail, Capability::Network)),
        }
    }
}

/// Ends a sandbox and waits until its launcher has taken the walls down.
async fn end(way: &Way, tie: Option<&Tie>) -> Result<()> {
    let state_dir = &way.state_dir;
    // A sandbox that has ended, or is ending, cannot be asked; its lock tells when it is over.
    let asked = way.ask(Request::Kill).await;
    if let Err(error) = &asked
        && error.code == ErrorCode::Fenced
    {
        return Err(error.clone());
    }
    let started = Instant::now();
    if let (Ok(_), Some(tie)) = (&asked, tie) {
        // The lock tells as well, but only when asked.
        let _ = tokio::time::timeout(END_PATIENCE / 3, tie.broken()).await;
    }
    let mut forced = false;
    let mut pause = Duration::from_micros(200);
    while is_alive(state_dir) {
        let unheard = matches!(&asked, Err(error) if error.code == ErrorCode::Lost);
        if !forced && (unheard || started.elapsed() > END_PATIENCE / 3) {
            forced = true;
            end_without_asking(state_dir).await?;
        }
        if started.elapsed() > END_PATIENCE {
            return Err(Error::new(
                ErrorCode::Internal,
                format!(
                    "the sandbox in {} did not end within {} s",
                    state_dir.display(),
                    END_PATIENCE.as_secs()
                ),
            )
            .hint("try again; a process stuck in the kernel can delay it"));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(())
}

/// Kills a monitor that does not answer; its guest goes with it, and the launcher takes the walls down.
async fn end_without_asking(state_dir: &Path) -> Result<()> {
    let built = built(state_dir);
    blocking(move || {
        if let Some(monitor) = built.and_then(|built| built.monitor) {
            monitor.kill();
        }
        Ok(())
    })
    .await
}

/// If the launcher itself was killed, its cgroups are still there.
fn sweep_slot(state_dir: &Path) {
    if let Some(slot) = built(state_dir).and_then(|built| built.slot) {
        sweep::slot(slot);
    }
}

async fn remove(state_dir: &Path) -> Result<()> {
    // Until then the door writes there.
    egress::counted(state_dir).await;
    let state_dir = state_dir.to_owned();
    blocking(move || {
        sweep_slot(&state_dir);
        match fs::remove_dir_all(&state_dir) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                fs::remove_dir_all(&state_dir).map_err(|error| crate::home::problem(&state_dir, &error))
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(crate::home::problem(&state_dir, &error))
            }
            _ => Ok(()),
        }
    })
    .await
}

/// Runs something that waits for the disk, or the kernel, beside the async work.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::new(ErrorCode::Internal, format!("a worker thread failed: {error}")))
    })
}

/// What is known of the sandbox in this directory, alive or not.
pub(super) async fn info(way: &Way) -> Result<SandboxInfo> {
    let state_dir = &way.state_dir;
    let lease = Lease::read(state_dir).ok_or_else(connection::gone)?;
    let built = built(state_dir).unwrap_or_default();
    let (mut state, mut remaining, mut stats) = (SandboxState::Running, None, None);
    if is_alive(state_dir) {
        match way.ask(Request::Status).await {
            Ok(Answer::Status { state: said, remaining: left, .. }) => {
                (state, remaining) = (said, Some(left))
            }
            Err(error) if error.code == ErrorCode::Fenced => return Err(error),
            // It has just ended, or cannot say.
            _ => {}
        }
    } else {
        Ended { state, stats } = ended(state_dir);
        stats = stats.map(|stats| calls::with_totals(egress::with_moved(stats, state_dir), state_dir));
    }
    Ok(SandboxInfo {
        id: lease.id,
        provider: ProviderName::Jail,
        state,
        spec: lease.spec,
        created_ms: lease.created_ms,
        remaining,
        losses: built.losses,
        stats,
    })
}

/// The life of one sandbox.
#[derive(Debug)]
struct JailControl {
    way: Way,
    tie: Option<Arc<Tie>>,
}

#[async_trait]
impl Control for JailControl {
    async fn info(&self) -> Result<SandboxInfo> {
        info(&self.way).await
    }

    async fn stats(&self) -> Result<SandboxStats> {
        match self.way.ask(Request::Status).await? {
            Answer::Status { stats, .. } => {
                let state_dir = self.way.state_dir.clone();
                blocking(move || Ok(calls::with_totals(egress::with_moved(*stats, &state_dir), &state_dir)))
                    .await
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn extend(&self, ttl: Duration) -> Result<()> {
        self.way.ask(Request::Extend { ttl }).await.map(drop)
    }

    async fn pause(&self) -> Result<()> {
        self.way.ask(Request::Pause).await.map(drop)
    }

    async fn resume(&self) -> Result<()> {
        self.way.ask(Request::Resume).await.map(drop)
    }

    async fn fence(&self) -> Result<()> {
        self.way.ask(Request::Fence).await.map(drop)
    }

    async fn ended(&self) -> Result<SandboxState> {
        let mut pause = Duration::from_millis(1);
        while is_alive(&self.way.state_dir) {
            // It is heard of when the guest is dead, or the monitor; what the launcher does then takes a moment.
            if let Ok((_sender, mut receiver)) = self.way.open(Request::AwaitEnd).await {
                let _ = receiver.next().await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
        egress::counted(&self.way.state_dir).await;
        // Whoever removed the record asked for the end.
        let there = self.way.state_dir.exists();
        Ok(if there { ended(&self.way.state_dir).state } else { SandboxState::Killed })
    }

    async fn kill(&self) -> Result<()> {
        end(&self.way, self.tie.as_deref()).await?;
        egress::counted(&self.way.state_dir).await;
        let state_dir = self.way.state_dir.clone();
        blocking(move || {
            sweep_slot(&state_dir);
            Ok(())
        })
        .await
    }
}
