//! A session that is looked after now.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use belljar_core::{
    Ending, Error, ErrorCode, ExecEvent, ExecHandle, ExecId, ExecInfo, ExecRequest, Result, Sandbox,
    SandboxId, SandboxStats, Termination, Usage,
};
use bytes::Bytes;
use tokio::sync::watch;

use crate::admission::Permit;
use crate::engine::{Shared, gone, joined};
use crate::event::{Happening, TransferKind};
use crate::failpoint;
use crate::meter::{Amount, Meter};
use crate::redact::without_tokens;
use crate::session::{OnIdle, Session, SessionState};

/// What is held in memory of a session.
pub(crate) struct Live {
    pub(crate) id: SandboxId,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) on_idle: OnIdle,
    idle: Option<Duration>,
    used_at: Mutex<Instant>,
    busy: AtomicUsize,
    /// Held while that changes, so that the log has it in the same order.
    pub(crate) paused: tokio::sync::Mutex<bool>,
    /// Held while what it may reach changes, for the same reason.
    pub(crate) network: tokio::sync::Mutex<()>,
    execs: AtomicU64,
    transfers: AtomicU64,
    /// Whether something can still begin. Held while it does, so that the end comes after it.
    pub(crate) open: tokio::sync::RwLock<bool>,
    /// Executions whose end is not written down yet.
    unfinished: watch::Sender<usize>,
    over: watch::Sender<bool>,
    _permit: Permit,
}

/// Of an execution that nobody can say anything about.
pub(crate) const UNKNOWN: Meter = Meter {
    cpu_us: Amount::UNKNOWN,
    read_bytes: Amount::UNKNOWN,
    write_bytes: Amount::UNKNOWN,
    ..Meter::ZERO
};

/// How an execution ended that nobody knows the end of.
pub(crate) fn lost(exec: u64) -> Happening {
    Happening::ExecFinished { exec, termination: Termination::Lost, duration_us: None, meter: UNKNOWN }
}

/// How an execution ended.
pub(crate) fn finished(exec: u64, ending: &Ending) -> Happening {
    Happening::ExecFinished {
        exec,
        termination: ending.termination,
        duration_us: u64::try_from(ending.duration.as_micros()).ok(),
        meter: meter_of(&ending.usage),
    }
}

/// The key by which a sandbox knows an execution.
pub(crate) fn key_of(exec: u64, request: &ExecRequest) -> String {
    request.key.clone().unwrap_or_else(|| format!("{}{exec}", ExecRequest::ENGINE_KEYS))
}

/// The number that an engine gave an execution, by its key.
pub(crate) fn number_of(info: &ExecInfo) -> Option<u64> {
    info.key.as_deref()?.strip_prefix(ExecRequest::ENGINE_KEYS)?.parse().ok()
}

/// Hides a key that is the engine's own business.
pub(crate) fn hide_key(info: &mut ExecInfo) {
    info.key = info.key.take().filter(|key| !key.starts_with(ExecRequest::ENGINE_KEYS));
}

async fn kill_by_key(sandbox: &dyn Sandbox, key: &str) -> Result<()> {
    let execs = sandbox.execs()?;
    let found = execs.list().await?.into_iter().find(|info| info.key.as_deref() == Some(key));
    match found {
        Some(info) => execs.kill(info.exec).await,
        None => Ok(()),
    }
}

/// What an execution used.
fn meter_of(usage: &Usage) -> Meter {
    Meter {
        cpu_us: Amount::from(usage.cpu_us),
        read_bytes: Amount::from(usage.read_bytes),
        write_bytes: Amount::from(usage.write_bytes),
        ..Meter::ZERO
    }
}

/// What a sandbox used, all in all.
pub(crate) fn meter_of_all(stats: &SandboxStats, executions: Meter) -> Meter {
    // Where the kernel does not count for the whole, the sum of the parts is what there is.
    let whole = |whole: Option<u64>, parts: Amount| whole.map_or(parts, Amount::from);
    Meter {
        cpu_us: whole(stats.cpu_us, executions.cpu_us),
        memory_byte_seconds: Amount::from(stats.memory_byte_seconds),
        read_bytes: whole(stats.read_bytes, executions.read_bytes),
        write_bytes: whole(stats.write_bytes, executions.write_bytes),
        disk_byte_seconds: Amount::from(stats.disk_byte_seconds),
        // Counted for the whole: connections outlive the executions that made them.
        egress_bytes: Amount::from(stats.egress_bytes),
        ..executions
    }
}

/// How long is waited for what a follower heard.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Counts as use for as long as it is held.
pub(crate) struct Busy(Arc<Live>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Live {
    pub(crate) fn new(
        session: &Session,
        sandbox: Arc<dyn Sandbox>,
        permit: Permit,
        execs: u64,
        transfers: u64,
    ) -> Self {
        Self {
            id: session.id.clone(),
            sandbox,
            on_idle: session.request.on_idle,
            idle: session.request.idle,
            used_at: Mutex::new(Instant::now()),
            busy: AtomicUsize::new(0),
            paused: tokio::sync::Mutex::new(session.state == SessionState::Paused),
            network: tokio::sync::Mutex::default(),
            execs: AtomicU64::new(execs),
            transfers: AtomicU64::new(transfers),
            open: tokio::sync::RwLock::new(true),
            unfinished: watch::Sender::new(0),
            over: watch::Sender::new(false),
            _permit: permit,
        }
    }

    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(self.clone())
    }

    /// Whether nothing has happened for as long as it is allowed to idle. This clock too stands still in a pause.
    pub(crate) fn is_idle(&self) -> bool {
        let since = || self.used_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let runs = || self.paused.try_lock().is_ok_and(|paused| !*paused);
        let rests = || self.busy.load(Ordering::SeqCst) == 0 && runs();
        self.idle.is_some_and(|idle| rests() && since() >= idle)
    }

    /// Its time to idle begins anew.
    fn touch(&self) {
        *self.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn is_over(&self) {
        self.over.send_replace(true);
    }

    pub(crate) async fn until_over(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Waits until the end of every execution is written down.
    pub(crate) async fn until_quiet(&self) {
        let _ = self.unfinished.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// An execution that the engine watches over.
struct Watched {
    inner: Box<dyn ExecHandle>,
    /// Its start, which was read ahead.
    first: Mutex<Option<ExecEvent>>,
    /// The end as it was heard here, for when nobody else could hear it any more.
    heard: watch::Sender<Option<Ending>>,
    recorded: watch::Receiver<bool>,
}

#[async_trait]
impl ExecHandle for Watched {
    /// What the caller is told of the end has been written down before.
    async fn next(&self) -> Result<Option<ExecEvent>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        if first.is_some() {
            return Ok(first);
        }
        let event = self.inner.next().await?;
        if let Some(ExecEvent::Finished { termination, usage, duration, oom_kills }) = event {
            self.heard.send_replace(Some(Ending { termination, usage, duration, oom_kills }));
            let _ = self.recorded.clone().wait_for(|recorded| *recorded).await;
        }
        Ok(event)
    }

    async fn write(&self, input: Bytes) -> Result<()> {
        self.inner.write(input).await
    }
}

impl Shared {
    /// Runs a command: written down, started, written down, and watched until its end is written down too.
    pub(crate) async fn exec(
        self: &Arc<Self>,
        live: &Arc<Live>,
        request: ExecRequest,
    ) -> Result<Box<dyn ExecHandle>> {
        request.check_callers_key()?;
        let (shared, live) = (self.clone(), live.clone());
        joined(tokio::spawn(async move { shared.start(&live, request).await })).await
    }

    async fn start(
        self: &Arc<Self>,
        live: &Arc<Live>,
        mut request: ExecRequest,
    ) -> Result<Box<dyn ExecHandle>> {
        let open = live.open.read().await;
        if !*open {
            return Err(gone());
        }
        let busy = live.busy();
        let exec = live.execs.fetch_add(1, Ordering::SeqCst) + 1;
        let told = Box::new(without_tokens(&request));
        self.intend(&live.id, Happening::ExecAccepted { exec, request: told }).await?;
        failpoint::pass("exec.accepted");
        let key = key_of(exec, &request);
        request.key = Some(key.clone());
        let started = async {
            let handle = live.sandbox.execs()?.start(request).await?;
            match handle.next().await? {
                Some(ExecEvent::Started { exec: inside, start }) => Ok((handle, inside, start)),
                // A provider that does not keep its word. What began is not told as refused and left running.
                _ => {
                    kill_by_key(&*live.sandbox, &key).await?;
                    Err(Error::new(ErrorCode::Internal, "the provider did not say that the execution began"))
                }
            }
        };
        match started.await {
            Ok((handle, inside, start)) => {
                failpoint::pass("exec.started");
                self.record(&live.id, &[Happening::ExecStarted { exec, inside }]).await?;
                failpoint::pass("exec.recorded");
                let (heard, hears) = watch::channel(None);
                let recorded = self.watch(live, exec, inside, busy, hears);
                let first = Mutex::new(Some(ExecEvent::Started { exec: inside, start }));
                Ok(Box::new(Watched { inner: handle, first, heard, recorded }))
            }
            Err(error) => {
                self.record(&live.id, &[Happening::ExecRefused { exec, error: error.clone() }]).await?;
                Err(error)
            }
        }
    }

    /// Waits for the end of an execution and writes it down, whoever else follows it.
    pub(crate) fn watch(
        self: &Arc<Self>,
        live: &Arc<Live>,
        exec: u64,
        inside: ExecId,
        busy: Busy,
        mut hears: watch::Receiver<Option<Ending>>,
    ) -> watch::Receiver<bool> {
        let (done, recorded) = watch::channel(false);
        live.unfinished.send_modify(|count| *count += 1);
        let (shared, live) = (self.clone(), live.clone());
        tokio::spawn(async move {
            let ending = match live.sandbox.execs() {
                Ok(execs) => execs.wait(inside).await,
                Err(error) => Err(error),
            };
            // Its sandbox may have been removed before we could ask, and whoever follows it know more.
            let ending = match ending {
                Err(error) => match tokio::time::timeout(LAST_WORD, hears.wait_for(Option::is_some)).await {
                    Ok(Ok(heard)) => heard.ok_or(error),
                    _ => Err(error),
                },
                known => known,
            };
            failpoint::pass("exec.finished");
            let what = match ending {
                Ok(ending) => finished(exec, &ending),
                Err(error) => {
                    tracing::warn!(session = %live.id, exec, %error, "lost sight of an execution");
                    lost(exec)
                }
            };
            // If it cannot be written at all, a newer engine does.
            let _ = shared.record(&live.id, &[what]).await;
            failpoint::pass("exec.ended");
            live.unfinished.send_modify(|count| *count -= 1);
            done.send_replace(true);
            drop(busy);
        });
        recorded
    }

    /// Writes down that bytes go in, and how that went.
    pub(crate) async fn transfer<T>(
        &self,
        live: &Arc<Live>,
        kind: TransferKind,
        path: String,
        work: impl Future<Output = Result<(T, Option<u64>)>>,
    ) -> Result<T> {
        let open = live.open.read().await;
        if !*open {
            return Err(gone());
        }
        let _busy = live.busy();
        let transfer = live.transfers.fetch_add(1, Ordering::SeqCst) + 1;
        self.intend(&live.id, Happening::Transfer { transfer, kind, path }).await?;
        failpoint::pass("transfer.begun");
        let done = work.await;
        failpoint::pass("transfer.done");
        let (bytes, error) = match &done {
            Ok((_, bytes)) => (*bytes, None),
            Err(error) => (None, Some(error.clone())),
        };
        let _ = self.record(&live.id, &[Happening::Transferred { transfer, bytes, error }]).await;
        done.map(|(answer, _)| answer)
    }

    pub(crate) async fn pause(&self, live: &Live) -> Result<()> {
        let mut paused = live.paused.lock().await;
        live.sandbox.control()?.pause().await?;
        failpoint::pass("pause.done");
        if !std::mem::replace(&mut *paused, true) {
            self.record(&live.id, &[Happening::Paused]).await?;
        }
        Ok(())
    }

    pub(crate) async fn resume(&self, live: &Live) -> Result<()> {
        let mut paused = live.paused.lock().await;
        live.sandbox.control()?.resume().await?;
        failpoint::pass("resume.done");
        live.touch();
        if std::mem::replace(&mut *paused, false) {
            self.record(&live.id, &[Happening::Resumed]).await?;
        }
        Ok(())
    }
}
