//! One modelled sandbox.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use belljar_core::{
    ByteStream, Capability, Control, Error, ErrorCode, ExecId, ExecRequest, ExecResult, FilePath, Flow,
    FlowStream, Network, NetworkPolicy, Output, ProviderName, Result, Sandbox, SandboxId, SandboxInfo,
    SandboxSpec, SandboxState, SandboxStats, Termination, Usage, UserName,
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::machine::Machine;
use super::tree::parent;
use super::{Programs, Tree};
use crate::names::Held;

const DOWNLOAD_PIECE: usize = 64 << 10;

/// Thirty years: what a clock can hold for sure.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 365 * 86_400);

pub(super) struct FakeSandbox {
    id: SandboxId,
    env: BTreeMap<String, String>,
    programs: Programs,
    files: Arc<Mutex<Tree>>,
    last: AtomicU32,
    keys: Mutex<BTreeMap<String, ExecId>>,
    spec: SandboxSpec,
    policy: Mutex<NetworkPolicy>,
    flows: Option<Arc<[Flow]>>,
    created_ms: u64,
    running: AtomicU32,
    life: watch::Sender<Life>,
    name: Mutex<Option<Held>>,
}

/// Where it is in its life.
#[derive(Clone, Copy, Debug)]
struct Life {
    state: SandboxState,
    /// As if it were not paused.
    deadline: Instant,
    paused: Option<Instant>,
}

impl Life {
    /// How much of it is left.
    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(self.paused.unwrap_or_else(Instant::now))
    }

    /// Where it is now.
    fn state(&self) -> SandboxState {
        match self.state {
            SandboxState::Running | SandboxState::Paused if self.remaining().is_zero() => {
                SandboxState::Expired
            }
            state => state,
        }
    }
}

/// Counts an execution while it runs.
struct Running<'a>(&'a AtomicU32);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FakeSandbox {
    pub(super) fn new(
        id: SandboxId,
        name: Held,
        spec: SandboxSpec,
        programs: Programs,
        flows: Option<Arc<[Flow]>>,
    ) -> Self {
        let own = [
            ("PATH", "/usr/bin:/bin"),
            ("HOME", Tree::HOME),
            ("TMPDIR", Tree::TMP),
            ("LANG", "C.UTF-8"),
            ("PYTHONUNBUFFERED", "1"),
        ];
        let mut env: BTreeMap<_, _> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        env.extend(spec.env.clone());
        let deadline = Instant::now() + spec.ttl.min(LONGEST_LIFE);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id,
            env,
            programs,
            files: Arc::new(Mutex::new(Tree::new())),
            last: AtomicU32::new(0),
            keys: Mutex::default(),
            policy: Mutex::new(spec.network.clone()),
            spec,
            flows,
            created_ms: u64::try_from(created.as_millis()).unwrap_or(u64::MAX),
            running: AtomicU32::new(0),
            life: watch::Sender::new(Life { state: SandboxState::Running, deadline, paused: None }),
            name: Mutex::new(Some(name)),
        }
    }

    fn check(&self, user: UserName) -> Result<()> {
        self.alive()?;
        match user {
            UserName::User => Ok(()),
            UserName::Root => Err(Error::unsupported(ProviderName::Fake, Capability::Root)),
        }
    }

    /// The name of the execution for this request, unless there was one with its key.
    fn number(&self, request: &ExecRequest) -> Result<ExecId> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = request.key.as_ref().and_then(|key| keys.get(key)) {
            return Err(request.repeats(*known));
        }
        let exec = ExecId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        keys.extend(request.key.clone().map(|key| (key, exec)));
        Ok(exec)
    }

    /// Its life, unless it has ended.
    fn alive(&self) -> Result<Life> {
        let life = *self.life.borrow();
        if life.state().is_alive() {
            return Ok(life);
        }
        Err(Error::new(ErrorCode::SandboxGone, format!("sandbox `{}` has ended", self.id))
            .hint("create a new one"))
    }

    /// Waits until the sandbox has ended.
    async fn ended(&self) {
        // The sender is part of this sandbox, so no wait here can be cut off.
        let mut changes = self.life.subscribe();
        loop {
            let life = *changes.borrow_and_update();
            if !life.state().is_alive() {
                return;
            }
            let expired = async {
                match life.paused {
                    None => tokio::time::sleep_until(life.deadline).await,
                    Some(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expired => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Goes on with some work, but not while the sandbox is paused.
    async fn unpaused<T>(&self, work: impl Future<Output = T>) -> T {
        let mut changes = self.life.subscribe();
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                _ = changes.wait_for(|life| life.paused.is_some()) => {}
                done = &mut work => return done,
            }
            let _ = changes.wait_for(|life| life.paused.is_none()).await;
        }
    }

    /// Lets this much time pass in which the sandbox is not paused.
    async fn pass(&self, span: Duration) {
        let (mut changes, mut left) = (self.life.subscribe(), span.min(LONGEST_LIFE));
        loop {
            let began = Instant::now();
            tokio::select! {
                biased;
                _ = changes.wait_for(|life| life.paused.is_some()) => left = left.saturating_sub(began.elapsed()),
                () = tokio::time::sleep(left) => return,
            }
            let _ = changes.wait_for(|life| life.paused.is_none()).await;
        }
    }

    fn end(&self) {
        self.life.send_modify(|life| {
            life.state = match life.state() {
                SandboxState::Running | SandboxState::Paused => SandboxState::Killed,
                ended => ended,
            };
        });
    }

    fn with_files<T>(&self, act: impl FnOnce(&mut Tree) -> T) -> T {
        act(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn provider(&self) -> ProviderName {
        ProviderName::Fake
    }

    async fn execute(&self, request: ExecRequest) -> Result<ExecResult> {
        request.check()?;
        self.check(request.user)?;
        if self.alive()?.paused.is_some() {
            return Err(Error::new(ErrorCode::Paused, format!("sandbox `{}` is paused", self.id))
                .hint("resume it first"));
        }
        if request.pty.is_some() {
            return Err(Error::unsupported(ProviderName::Fake, Capability::Pty));
        }
        let asked = request.cwd.as_ref().map_or(Tree::HOME, FilePath::as_str);
        let cwd = Tree::absolute(Tree::HOME, asked);
        if !self.with_files(|files| files.is_directory(&cwd)) {
            return Err(Error::new(ErrorCode::NotFound, format!("there is no directory `{asked}`")));
        }
        let mut env = self.env.clone();
        env.extend(request.env.clone());
        let mut machine = Machine {
            programs: self.programs.clone(),
            files: Arc::clone(&self.files),
            env,
            variables: BTreeMap::new(),
            cwd,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        machine.check(&request.command)?;

        let exec = self.number(&request)?;
        let _running = Running::new(&self.running);
        let began = Instant::now();
        let termination = tokio::select! {
            termination = self.unpaused(machine.run(&request.command)) => termination,
            () = self.pass(request.timeout) => Termination::TimedOut,
            () = self.ended() => Termination::Killed,
        };
        Ok(ExecResult {
            exec,
            termination,
            stdout: Output { head: machine.stdout, ..Output::default() },
            stderr: Output { head: machine.stderr, ..Output::default() },
            start: Duration::ZERO,
            duration: began.elapsed(),
            usage: Usage::default(),
            oom_kills: None,
            denied: Vec::new(),
        })
    }

    async fn upload(&self, path: &FilePath, user: UserName, mut content: ByteStream) -> Result<u64> {
        self.check(user)?;
        let mut bytes = Vec::new();
        while let Some(piece) = content.next().await {
            bytes.extend_from_slice(&piece?);
        }
        self.check(user)?;
        let path = Tree::absolute(Tree::HOME, path.as_str());
        let stored = bytes.len() as u64;
        self.with_files(|files| {
            files.make_directories(parent(&path))?;
            files.write(&path, bytes)
        })?;
        Ok(stored)
    }

    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        self.check(user)?;
        let path = Tree::absolute(Tree::HOME, path.as_str());
        let mut content = self.with_files(|files| files.read(&path).map(Bytes::copy_from_slice))?;
        let pieces = std::iter::from_fn(move || {
            (!content.is_empty()).then(|| Ok(content.split_to(DOWNLOAD_PIECE.min(content.len()))))
        });
        Ok(Box::pin(stream::iter(pieces)))
    }

    async fn cleanup(&self) -> Result<()> {
        self.end();
        self.with_files(|files| *files = Tree::new());
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    fn control(&self) -> Result<&dyn Control> {
        Ok(self)
    }

    fn network(&self) -> Result<&dyn Network> {
        match self.flows {
            Some(_) => Ok(self),
            None => Err(Error::unsupported(ProviderName::Fake, Capability::Network)),
        }
    }
}

#[async_trait]
impl Network for FakeSandbox {
    async fn policy(&self) -> Result<NetworkPolicy> {
        self.alive()?;
        Ok(self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn set_policy(&self, policy: NetworkPolicy) -> Result<()> {
        policy.check()?;
        self.alive()?;
        if self.spec.network == NetworkPolicy::None {
            return Err(Error::new(ErrorCode::InvalidArgument, "the sandbox was made without a network")
                .hint("make one with the mode `allowlist`"));
        }
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
        Ok(())
    }

    async fn flows(&self, after: u64, follow: bool) -> Result<FlowStream> {
        let known = self.flows.iter().filter(|_| self.spec.network != NetworkPolicy::None);
        let told: Vec<_> =
            known.flat_map(|flows| flows.iter()).filter(|flow| flow.seq > after).cloned().map(Ok).collect();
        let mut life = self.life.subscribe();
        // There are no more, and those who follow are not told so before the end.
        let end = async move {
            if follow {
                let _ = life.wait_for(|life| !life.state().is_alive()).await;
            }
        };
        Ok(stream::iter(told).chain(end.into_stream().filter_map(|()| async { None })).boxed())
    }
}

#[async_trait]
impl Control for FakeSandbox {
    async fn info(&self) -> Result<SandboxInfo> {
        let life = *self.life.borrow();
        let state = life.state();
        Ok(SandboxInfo {
            id: self.id.clone(),
            provider: ProviderName::Fake,
            state,
            spec: self.spec.clone(),
            created_ms: self.created_ms,
            remaining: state.is_alive().then(|| life.remaining()),
            losses: Vec::new(),
            stats: None,
        })
    }

    async fn stats(&self) -> Result<SandboxStats> {
        self.alive()?;
        let executions = self.running.load(Ordering::Relaxed);
        Ok(SandboxStats { processes: Some(executions.into()), executions, ..SandboxStats::default() })
    }

    async fn extend(&self, ttl: Duration) -> Result<()> {
        self.alive()?;
        self.life.send_modify(|life| {
            life.deadline = life.paused.unwrap_or_else(Instant::now) + ttl.min(LONGEST_LIFE);
        });
        Ok(())
    }

    async fn pause(&self) -> Result<()> {
        self.alive()?;
        self.life.send_modify(|life| {
            life.state = SandboxState::Paused;
            life.paused.get_or_insert_with(Instant::now);
        });
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.alive()?;
        self.life.send_modify(|life| {
            life.state = SandboxState::Running;
            life.deadline += life.paused.take().map_or(Duration::ZERO, |since| since.elapsed());
        });
        Ok(())
    }

    async fn kill(&self) -> Result<()> {
        self.end();
        Ok(())
    }

    async fn ended(&self) -> Result<SandboxState> {
        let mut life = self.life.subscribe();
        loop {
            let now = *life.borrow_and_update();
            if !now.state().is_alive() {
                return Ok(now.state());
            }
            // Its time may be over without anybody doing anything.
            let _ = tokio::time::timeout(now.remaining(), life.changed()).await;
        }
    }
}
