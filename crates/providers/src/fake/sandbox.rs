//! One modelled sandbox.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    ByteStream, Capability, Error, ErrorCode, ExecId, ExecRequest, ExecResult, FilePath, Output,
    ProviderName, Result, Sandbox, SandboxId, SandboxSpec, Termination, Usage, UserName,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
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
    deadline: Instant,
    gone: watch::Sender<bool>,
    name: Mutex<Option<Held>>,
}

impl FakeSandbox {
    pub(super) fn new(id: SandboxId, name: Held, spec: SandboxSpec, programs: Programs) -> Self {
        let own = [
            ("PATH", "/usr/bin:/bin"),
            ("HOME", Tree::HOME),
            ("TMPDIR", Tree::TMP),
            ("LANG", "C.UTF-8"),
            ("PYTHONUNBUFFERED", "1"),
        ];
        let mut env: BTreeMap<_, _> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        env.extend(spec.env);
        Self {
            id,
            env,
            programs,
            files: Arc::new(Mutex::new(Tree::new())),
            last: AtomicU32::new(0),
            keys: Mutex::default(),
            deadline: Instant::now() + spec.ttl.min(LONGEST_LIFE),
            gone: watch::Sender::new(false),
            name: Mutex::new(Some(name)),
        }
    }

    fn check(&self, user: UserName) -> Result<()> {
        if *self.gone.borrow() || Instant::now() >= self.deadline {
            return Err(Error::new(ErrorCode::SandboxGone, format!("sandbox `{}` has ended", self.id))
                .hint("create a new one"));
        }
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

    /// Waits until the sandbox has ended.
    async fn ended(&self) {
        let mut gone = self.gone.subscribe();
        tokio::select! {
            () = tokio::time::sleep_until(self.deadline) => {}
            // The sender is part of this sandbox, so the wait cannot be cut off.
            _ = gone.wait_for(|gone| *gone) => {}
        }
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
        let began = Instant::now();
        let termination = tokio::select! {
            termination = machine.run(&request.command) => termination,
            () = tokio::time::sleep(request.timeout) => Termination::TimedOut,
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
        self.gone.send_replace(true);
        self.with_files(|files| *files = Tree::new());
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
}
