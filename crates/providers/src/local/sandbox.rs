//! One sandbox of the `local` provider: its directory, its executions, its life.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use belljar_core::{
    ByteStream, Capability, Control, Ending, Error, ErrorCode, ExecEvent, ExecHandle, ExecId, ExecInfo,
    ExecRequest, ExecResult, Execs, FilePath, Position, ProviderName, PtySize, Result, Sandbox, SandboxId,
    SandboxInfo, SandboxSpec, SandboxState, SandboxStats, Stdin, UserName,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rustix::process::Signal;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::execution::{Execution, Surroundings};
use super::journal::{Follower, Pace};
use super::place::{Place, file_error};
use super::tree::Tree;
use crate::names::Held;

/// How many executions that ended are remembered for `attach`, each with its kept output.
const REMEMBERED: usize = 32;

const DOWNLOAD_PIECE: usize = 64 << 10;

/// What this rung cannot give, for people to read.
const LOSSES: [&str; 2] = [
    "no isolation: commands can reach the files, processes and network of the user who runs belljar",
    "no limits: memory, processors, processes and disk are not bounded",
];

/// The handle of a sandbox; what it stands for ends with it.
pub(super) struct LocalSandbox {
    inner: Arc<Inner>,
}

struct Inner {
    id: SandboxId,
    spec: SandboxSpec,
    env: BTreeMap<OsString, OsString>,
    shell: &'static str,
    created_ms: u64,
    deadline: watch::Sender<Instant>,
    expiry: AbortHandle,
    life: Mutex<Life>,
}

struct Life {
    state: SandboxState,
    place: Place,
    /// Held while there is anything of the sandbox, if only its record.
    name: Option<Held>,
    last: u32,
    executions: BTreeMap<ExecId, Arc<Execution>>,
    tasks: JoinSet<()>,
}

impl LocalSandbox {
    pub(super) fn create(id: SandboxId, name: Held, spec: SandboxSpec) -> Result<Self> {
        let place = Place::make(&id)?;
        let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
        let env = environment(&place, shell, &spec);
        let created_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let deadline = watch::Sender::new(from_now(spec.ttl));
        let life = Life {
            state: SandboxState::Running,
            place,
            name: Some(name),
            last: 0,
            executions: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        let inner = Arc::new_cyclic(|inner| Inner {
            id,
            spec,
            env,
            shell,
            created_ms,
            expiry: tokio::spawn(expire(Weak::clone(inner), deadline.subscribe())).abort_handle(),
            deadline,
            life: Mutex::new(life),
        });
        Ok(Self { inner })
    }
}

/// The end of a life of this length; one beyond what a clock can hold ends in thirty years.
fn from_now(ttl: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(30 * 365 * 86_400);
    Instant::now() + ttl.min(LONG)
}

/// Everything a command finds in its environment. Only the values of `PATH` and `LANG` come from the host.
fn environment(place: &Place, shell: &str, spec: &SandboxSpec) -> BTreeMap<OsString, OsString> {
    let host = |name: &str, default: &str| {
        std::env::var_os(name).filter(|value| !value.is_empty()).unwrap_or_else(|| default.into())
    };
    let own: [(&str, OsString); 9] = [
        ("PATH", host("PATH", "/usr/local/bin:/usr/bin:/bin")),
        ("LANG", host("LANG", "C.UTF-8")),
        ("HOME", place.home().into()),
        ("TMPDIR", place.tmp().into()),
        ("USER", "user".into()),
        ("LOGNAME", "user".into()),
        ("SHELL", shell.into()),
        ("TERM", "dumb".into()),
        ("PYTHONUNBUFFERED", "1".into()),
    ];
    let asked = spec.env.iter().map(|(name, value)| (name.into(), value.into()));
    own.into_iter().map(|(name, value)| (name.into(), value)).chain(asked).collect()
}

/// Ends the sandbox when its deadline, which may move meanwhile, has come.
async fn expire(inner: Weak<Inner>, mut deadline: watch::Receiver<Instant>) {
    loop {
        let until = *deadline.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(until) => break,
            moved = deadline.changed() => if moved.is_err() { return },
        }
    }
    if let Some(inner) = inner.upgrade() {
        inner.end(SandboxState::Expired).await;
    }
}

impl Inner {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locked life of a sandbox that runs.
    fn running(&self) -> Result<MutexGuard<'_, Life>> {
        let life = self.life();
        if life.state == SandboxState::Running {
            return Ok(life);
        }
        Err(Error::new(ErrorCode::SandboxGone, format!("sandbox `{}` has ended ({})", self.id, life.state))
            .hint("create a new one; give it a longer life if this one expired"))
    }

    fn resolve(&self, path: &FilePath) -> Result<PathBuf> {
        self.running()?.place.resolve(path)
    }

    /// Every process of this sandbox.
    fn tree(&self) -> Tree {
        Tree { mark: format!("{}/", self.id), leader: None }
    }

    async fn start(&self, request: ExecRequest) -> Result<Arc<Execution>> {
        request.check()?;
        refuse_root(request.user)?;
        if request.pty.is_some() {
            return Err(Error::unsupported(ProviderName::Local, Capability::Pty));
        }
        let cwd = match &request.cwd {
            Some(path) => self.resolve(path)?,
            None => self.running()?.place.home(),
        };
        let metadata =
            tokio::fs::metadata(&cwd).await.map_err(|error| file_error("start in", &cwd, &error))?;
        if !metadata.is_dir() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("`{}` is not a directory", cwd.display()),
            ));
        }

        // One lock around the check, the start and the entry: whoever ends the sandbox finds every process.
        let mut life = self.running()?;
        let known =
            request.key.as_deref().and_then(|key| life.executions.values().find(|known| known.has_key(key)));
        if let Some(known) = known {
            return Err(request.repeats(known.exec));
        }
        let exec = ExecId(life.last + 1);
        let mark = format!("{}/{exec}/", self.id);
        while life.tasks.try_join_next().is_some() {}
        let surroundings =
            Surroundings { cwd: &cwd, env: &self.env, shell: self.shell, tasks: &mut life.tasks };
        let execution = Arc::new(Execution::start(exec, mark, request, surroundings)?);
        life.last = exec.0;
        life.executions.insert(exec, Arc::clone(&execution));
        life.forget();
        Ok(execution)
    }

    fn find(&self, exec: ExecId) -> Result<Arc<Execution>> {
        self.running()?.executions.get(&exec).cloned().ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("sandbox `{}` knows no execution {exec}", self.id))
        })
    }

    /// Ends every process. A sandbox that ended stays what it was.
    async fn end(&self, state: SandboxState) {
        let executions: Vec<_> = {
            let mut life = self.life();
            if life.state == SandboxState::Running {
                life.state = state;
            }
            life.executions.values().cloned().collect()
        };
        executions.iter().for_each(|execution| execution.kill());
        for execution in &executions {
            execution.finished().await;
        }
        let tree = self.tree();
        if tokio::task::spawn_blocking(move || tree.kill()).await.is_err() {
            tracing::warn!(sandbox = %self.id, "the search for left-over processes broke off");
        }
    }

    async fn remove(&self) -> Result<()> {
        self.end(SandboxState::Killed).await;
        let mut life = self.life();
        life.tasks.abort_all();
        life.place.remove()?;
        life.name = None;
        Ok(())
    }
}

impl Life {
    /// Keeps what runs and the latest of what ended.
    fn forget(&mut self) {
        let ended: Vec<_> = self.executions.values().filter(|e| !e.is_running()).map(|e| e.exec).collect();
        for exec in ended.iter().take(ended.len().saturating_sub(REMEMBERED)) {
            self.executions.remove(exec);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.expiry.abort();
        let life = self.life();
        if life.state == SandboxState::Running {
            self.tree().kill();
            life.executions.values().for_each(|execution| execution.abandon());
        }
    }
}

fn refuse_root(user: UserName) -> Result<()> {
    match user {
        UserName::User => Ok(()),
        UserName::Root => Err(Error::unsupported(ProviderName::Local, Capability::Root)),
    }
}

/// Kills a command whose caller went away.
struct KillOnDrop(Arc<Execution>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.0.is_running() {
            self.0.kill();
        }
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn id(&self) -> &SandboxId {
        &self.inner.id
    }

    fn provider(&self) -> ProviderName {
        ProviderName::Local
    }

    async fn execute(&self, mut request: ExecRequest) -> Result<ExecResult> {
        // Nobody could send any.
        request.stdin = Stdin::Empty;
        let execution = KillOnDrop(self.inner.start(request).await?);
        let follower = execution.0.follow(Pace::Set);
        let mut result = ExecResult::collect([]);
        while let Some(event) = follower.next().await {
            result.apply(event);
        }
        Ok(result)
    }

    async fn upload(&self, path: &FilePath, user: UserName, mut content: ByteStream) -> Result<u64> {
        refuse_root(user)?;
        let target = self.inner.resolve(path)?;
        let failed = |error| file_error("write", Path::new(path.as_str()), &error);
        if let Some(parent) = target.parent() {
            tokio::fs::create_dir_all(parent).await.map_err(failed)?;
        }
        let mut file = File::create(&target).await.map_err(failed)?;
        let mut stored = 0;
        while let Some(piece) = content.next().await {
            let piece = piece?;
            file.write_all(&piece).await.map_err(failed)?;
            stored += piece.len() as u64;
        }
        file.flush().await.map_err(failed)?;
        Ok(stored)
    }

    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        refuse_root(user)?;
        let source = self.inner.resolve(path)?;
        let shown = path.as_str().to_owned();
        let failed = move |error| file_error("read", Path::new(&shown), &error);
        let metadata = tokio::fs::metadata(&source).await.map_err(&failed)?;
        // Asked before opening: opening a pipe would wait for its other end.
        if !metadata.is_file() {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("`{path}` is not a regular file")));
        }
        let file = File::open(&source).await.map_err(&failed)?;
        Ok(Box::pin(stream::try_unfold((file, failed), |(mut file, failed)| async move {
            let mut piece = Vec::with_capacity(DOWNLOAD_PIECE);
            match file.read_buf(&mut piece).await {
                Ok(0) => Ok(None),
                Ok(_) => Ok(Some((Bytes::from(piece), (file, failed)))),
                Err(error) => Err(failed(error)),
            }
        })))
    }

    async fn cleanup(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        // A task of its own, so that it goes on when the caller does not wait.
        tokio::spawn(async move { inner.remove().await }).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorCode::Internal, format!("the removal broke off: {error}")))
        })
    }

    fn execs(&self) -> Result<&dyn Execs> {
        Ok(self)
    }

    fn control(&self) -> Result<&dyn Control> {
        Ok(self)
    }
}

struct LocalHandle {
    execution: Arc<Execution>,
    follower: Follower,
}

impl LocalHandle {
    fn boxed(execution: Arc<Execution>, follower: Follower) -> Box<dyn ExecHandle> {
        Box::new(Self { execution, follower })
    }
}

#[async_trait]
impl ExecHandle for LocalHandle {
    async fn next(&self) -> Result<Option<ExecEvent>> {
        Ok(self.follower.next().await)
    }

    async fn write(&self, input: Bytes) -> Result<()> {
        self.execution.write(input).await
    }
}

#[async_trait]
impl Execs for LocalSandbox {
    async fn start(&self, request: ExecRequest) -> Result<Box<dyn ExecHandle>> {
        let execution = self.inner.start(request).await?;
        let follower = execution.follow(Pace::Set);
        Ok(LocalHandle::boxed(execution, follower))
    }

    async fn attach(&self, exec: ExecId, from: Position) -> Result<Box<dyn ExecHandle>> {
        let execution = self.inner.find(exec)?;
        let follower = execution.follow_from(from)?;
        Ok(LocalHandle::boxed(execution, follower))
    }

    async fn wait(&self, exec: ExecId) -> Result<Ending> {
        Ok(self.inner.find(exec)?.finished().await)
    }

    async fn list(&self) -> Result<Vec<ExecInfo>> {
        Ok(self.inner.running()?.executions.values().map(|execution| execution.info()).collect())
    }

    async fn signal(&self, exec: ExecId, signal: i32) -> Result<()> {
        let execution = self.inner.find(exec)?;
        // The number of a process that was waited for may be someone else's by now.
        if !execution.is_running() {
            return Err(Error::new(ErrorCode::NotFound, format!("execution {exec} has ended")));
        }
        let named = Signal::from_named_raw(signal).ok_or_else(|| {
            Error::new(ErrorCode::InvalidArgument, format!("there is no signal {signal}"))
                .hint("use a number such as 15 (TERM), 2 (INT) or 9 (KILL)")
        })?;
        let sent = tokio::task::spawn_blocking(move || execution.signal(named)).await;
        sent.map_err(|error| Error::new(ErrorCode::Internal, format!("the signal was not sent: {error}")))
    }

    async fn resize(&self, _exec: ExecId, _size: PtySize) -> Result<()> {
        Err(Error::unsupported(ProviderName::Local, Capability::Pty))
    }

    async fn kill(&self, exec: ExecId) -> Result<()> {
        let execution = self.inner.find(exec)?;
        if execution.is_running() {
            execution.kill();
            execution.finished().await;
        }
        Ok(())
    }
}

#[async_trait]
impl Control for LocalSandbox {
    async fn info(&self) -> Result<SandboxInfo> {
        let state = self.inner.life().state;
        let remaining = self.inner.deadline.borrow().saturating_duration_since(Instant::now());
        Ok(SandboxInfo {
            id: self.inner.id.clone(),
            provider: ProviderName::Local,
            state,
            spec: self.inner.spec.clone(),
            created_ms: self.inner.created_ms,
            remaining: (state == SandboxState::Running).then_some(remaining),
            losses: LOSSES.map(str::to_owned).to_vec(),
            stats: None,
        })
    }

    async fn stats(&self) -> Result<SandboxStats> {
        let executions = self.inner.running()?.executions.values().filter(|e| e.is_running()).count();
        let tree = self.inner.tree();
        let processes = tokio::task::spawn_blocking(move || tree.count()).await.unwrap_or_default();
        Ok(SandboxStats { processes, executions: executions as u32, ..SandboxStats::default() })
    }

    async fn extend(&self, ttl: Duration) -> Result<()> {
        let _life = self.inner.running()?;
        self.inner.deadline.send_replace(from_now(ttl));
        Ok(())
    }

    async fn pause(&self) -> Result<()> {
        Err(Error::unsupported(ProviderName::Local, Capability::Pause))
    }

    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported(ProviderName::Local, Capability::Pause))
    }

    async fn kill(&self) -> Result<()> {
        self.inner.end(SandboxState::Killed).await;
        Ok(())
    }

    async fn ended(&self) -> Result<SandboxState> {
        loop {
            let state = self.inner.life().state;
            match state {
                SandboxState::Running => tokio::time::sleep(Duration::from_millis(50)).await,
                state => return Ok(state),
            }
        }
    }
}
