//! The engine: takes requests, writes them down, has them carried out, and writes down what came of it, in that order.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::{
    Capability, Error, ErrorCode, Owner, Provider, Result, Sandbox, SandboxId, SandboxState, SandboxStats,
    TenantLimits,
};
use futures_util::{StreamExt, stream};
use tokio::sync::{oneshot, watch};

use crate::admission::{Admission, Capacity, Overloaded, Permit};
use crate::clock::now_ms;
use crate::event::{Event, Happening, token_issued};
use crate::failpoint;
use crate::live::Live;
use crate::meter::Meter;
use crate::price::{Cost, PriceTable};
use crate::session::{EndReason, OnIdle, Session, SessionRequest, SessionState, Tenant};
use crate::store::{self, Accepted, Execution, Page, Query, Retention, Store, StoreError};

/// How long the watchers of a session's executions may take to learn of its end.
const LAST_NEWS: Duration = Duration::from_secs(10);

/// How long a caller waits for something to be written down that does not concern them.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long it is between two renewals of tokens; much shorter than the time for which they are renewed.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(60);

/// How many sandboxes' tokens are renewed side by side.
const RENEWED_AT_ONCE: usize = 16;

/// What an engine is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many sessions there is room for.
    pub capacity: Capacity,
    /// How long a request waits for room, if it does not say.
    pub patience: Duration,
    /// How long ended sessions are kept.
    pub keep: Duration,
    /// How many of them at most.
    pub most_kept: u32,
    /// How often is looked for what is idle or need not be kept.
    pub rounds: Duration,
    /// What use costs.
    pub prices: PriceTable,
    /// What the sandboxes of a tenant may use together. Whoever makes the provider sees to it.
    pub tenants: TenantLimits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capacity: Capacity { running: 2400, waiting: 10_000 },
            patience: Duration::from_secs(60),
            keep: Duration::from_secs(24 * 3600),
            most_kept: 10_000,
            rounds: Duration::from_secs(1),
            prices: PriceTable::default(),
            tenants: TenantLimits::default(),
        }
    }
}

/// Sessions that outlive it. Copies are the same engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) epoch: u64,
    config: Config,
    admission: Arc<Admission>,
    live: Mutex<HashMap<SandboxId, Arc<Live>>>,
    /// Sessions that are still to be taken over.
    left: Mutex<BTreeSet<SandboxId>>,
    /// Counts what was written, so that readers of logs know when to look again.
    news: watch::Sender<u64>,
    draining: AtomicBool,
}

impl Engine {
    /// Takes over the store and every session in it. The provider is made for the engine's number, by which sandboxes
    /// tell it from those before it; it is higher than theirs and than `above`.
    pub async fn start(
        store: Arc<dyn Store>,
        above: u64,
        provider: impl FnOnce(u64) -> Result<Arc<dyn Provider>>,
        config: Config,
    ) -> Result<Self> {
        let epoch = store.take_over(above).await?;
        let shared = Arc::new(Shared {
            store,
            provider: provider(epoch)?,
            epoch,
            admission: Admission::new(config.capacity),
            config,
            live: Mutex::default(),
            left: Mutex::default(),
            news: watch::Sender::new(0),
            draining: AtomicBool::new(false),
        });
        shared.recover().await?;
        tokio::spawn(rounds(Arc::downgrade(&shared)));
        tokio::spawn(renewals(Arc::downgrade(&shared)));
        Ok(Self { shared })
    }

    /// Makes a session and waits until it runs. With a key it is made even if the caller stops waiting, and whoever asks
    /// again with the same key gets it, also after its end. Without one nobody could ask for it: dropping the future gives
    /// it up.
    pub async fn create(&self, request: SessionRequest) -> Result<Accepted> {
        request.check()?;
        if request.idle.is_some() && request.on_idle == OnIdle::Pause {
            let (provider, pause) = (&self.shared.provider, Capability::Pause);
            if !provider.capabilities().has(pause) {
                return Err(Error::unsupported(provider.name(), pause));
            }
        }
        if self.shared.draining.load(Ordering::SeqCst) {
            return Err(shutting_down());
        }
        let (shared, has_key) = (self.shared.clone(), request.key.is_some());
        let (_stays, leaves) = oneshot::channel::<()>();
        let leaves = async move {
            let _ = leaves.await;
            if has_key {
                std::future::pending::<()>().await;
            }
        };
        let made = joined(tokio::spawn(async move {
            let accepted = shared.create(request, leaves).await?;
            Ok(Unclaimed { accepted: Some(accepted), shared: (!has_key).then_some(shared) })
        }));
        made.await?.claim()
    }

    /// What is remembered of a session.
    pub async fn session(&self, id: &SandboxId) -> Result<Session> {
        self.shared.store.session(id).await?.ok_or_else(|| unknown(id))
    }

    /// Some sessions, the newest first.
    pub async fn sessions(&self, query: &Query) -> Result<Page> {
        Ok(self.shared.store.sessions(query).await?)
    }

    /// The executions of a session.
    pub async fn executions(&self, id: &SandboxId) -> Result<Vec<Execution>> {
        self.session(id).await?;
        Ok(self.shared.store.executions(id).await?)
    }

    /// A session's log after this number; waits for news if there is none yet and the session has not ended.
    pub async fn events(&self, id: &SandboxId, after: u64, limit: u32) -> Result<Vec<Event>> {
        let mut news = self.shared.news.subscribe();
        loop {
            let session = self.session(id).await?;
            let events = self.shared.store.events(id, after, limit).await?;
            if !events.is_empty() || session.state.is_ended() {
                return Ok(events);
            }
            if self.shared.draining.load(Ordering::SeqCst) {
                return Err(shutting_down());
            }
            if news.changed().await.is_err() {
                return Ok(events);
            }
        }
    }

    /// The number of the last entry in a session's log.
    pub async fn last_event(&self, id: &SandboxId) -> Result<u64> {
        self.shared.store.last_event(id).await?.ok_or_else(|| unknown(id))
    }

    /// What a tenant's ended sessions used, and what that costs at today's prices.
    pub async fn used(&self, tenant: &Tenant) -> Result<(Meter, Cost)> {
        let meter = self.shared.store.used(tenant).await?;
        Ok((meter, self.shared.config.prices.cost(&meter, now_ms())))
    }

    /// Ends a session. Ending one that has ended is not an error.
    pub async fn end(&self, id: &SandboxId) -> Result<()> {
        let shared = self.shared.clone();
        let id = id.clone();
        joined(tokio::spawn(async move { shared.end(&id, EndReason::Killed).await })).await
    }

    /// How many sessions have room and how many wait for it.
    pub fn counts(&self) -> (usize, usize) {
        self.shared.admission.counts()
    }

    /// Takes no more sessions, and keeps nobody waiting for news. Sessions that run go on without us, and are taken over by
    /// the next engine.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.news.send_modify(|count| *count += 1);
    }

    /// A session that runs.
    pub(crate) fn live(&self, id: &SandboxId) -> Result<Arc<Live>> {
        let found = self.shared.live().get(id).cloned();
        found.ok_or_else(|| if self.shared.left().contains(id) { not_taken_over(id) } else { gone() })
    }
}

fn shutting_down() -> Error {
    Error::new(ErrorCode::Unavailable, "the engine is shutting down")
        .hint("try again in a moment")
        .retry_after(Duration::from_secs(5))
}

/// A session that ends unless somebody learns its name.
struct Unclaimed {
    accepted: Option<Accepted>,
    shared: Option<Arc<Shared>>,
}

impl Unclaimed {
    fn claim(mut self) -> Result<Accepted> {
        self.accepted.take().ok_or_else(gone)
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let (Some(accepted), Some(shared)) = (self.accepted.take(), self.shared.take()) {
            tokio::spawn(async move {
                let id = &accepted.session().id;
                if let Err(error) = shared.give_up(id).await {
                    tracing::warn!(session = %id, %error, "cannot end a session that nobody knows of");
                }
            });
        }
    }
}

/// The answer of a task that goes on whether or not anybody waits for it.
pub(crate) async fn joined<T>(task: tokio::task::JoinHandle<Result<T>>) -> Result<T> {
    task.await.unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, format!("a task failed: {error}"))))
}

impl Shared {
    pub(crate) fn live(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn left(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what is about to be done; if it cannot be written it must not be done.
    pub(crate) async fn intend(&self, id: &SandboxId, what: Happening) -> Result<()> {
        self.store.append(self.epoch, id, std::slice::from_ref(&what), now_ms()).await?;
        self.news.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Writes down what has happened: a disk that is full, or a database that is held by others, is waited for.
    pub(crate) async fn record(&self, id: &SandboxId, what: &[Happening]) -> Result<(), StoreError> {
        let mut pause = Duration::from_millis(50);
        loop {
            match self.store.append(self.epoch, id, what, now_ms()).await {
                Ok(_) => break,
                Err(error @ (StoreError::Busy | StoreError::Full | StoreError::Database(_))) => {
                    tracing::warn!(session = %id, %error, "cannot write down what happened yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(2));
                }
                Err(error) => {
                    tracing::error!(session = %id, %error, happened = ?what, "cannot write down what happened");
                    return Err(error);
                }
            }
        }
        self.news.send_modify(|count| *count += 1);
        Ok(())
    }

    async fn create(
        self: &Arc<Self>,
        request: SessionRequest,
        leaves: impl Future<Output = ()>,
    ) -> Result<Accepted> {
        let id = match &request.spec.id {
            Some(id) => self.free_name(id).await?,
            None => belljar_providers::new_id()?,
        };
        let session = store::accepted(id, self.provider.name(), request, now_ms());
        let session = match self.store.accept(self.epoch, &session).await? {
            Accepted::New(session) => session,
            Accepted::Known(session) => return self.until_made(&session.id).await.map(Accepted::Known),
        };
        self.news.send_modify(|count| *count += 1);
        failpoint::pass("create.accepted");
        let tenant = session.request.tenant.clone();
        let patience = session.request.patience.unwrap_or(self.config.patience);
        let admitted = tokio::select! {
            admitted = self.admission.admit(tenant, patience) => admitted,
            () = leaves => {
                let error = Error::new(ErrorCode::Lost, "its caller went away before there was room");
                return Err(self.never_made(&session.id, EndReason::Interrupted, error).await);
            }
        };
        match admitted {
            Ok(permit) => self.make(session, permit).await.map(Accepted::New),
            Err(overloaded) => {
                Err(self.never_made(&session.id, EndReason::QueueTimeout, overloaded.into()).await)
            }
        }
    }

    /// Ends a session of which nobody knows, and leaves nothing.
    async fn give_up(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        self.end(id, EndReason::Interrupted).await?;
        self.provider.open(id).await?.cleanup().await
    }

    /// A name that the caller chose: free, or that of a session of which nothing is left but the record, which goes then.
    async fn free_name(&self, id: &SandboxId) -> Result<SandboxId> {
        if let Some(session) = self.store.session(id).await?.filter(|session| session.state.is_ended()) {
            match self.provider.open(id).await {
                Err(error) if error.code == ErrorCode::NotFound => {
                    self.store.forget(self.epoch, std::slice::from_ref(&session.id)).await?;
                }
                _ => return Err(StoreError::Taken(id.clone()).into()),
            }
        }
        Ok(id.clone())
    }

    /// Waits for a session that somebody else asked for.
    async fn until_made(&self, id: &SandboxId) -> Result<Session> {
        let mut news = self.news.subscribe();
        loop {
            let session = self.store.session(id).await?.ok_or_else(|| unknown(id))?;
            match (session.state, &session.error) {
                (SessionState::Queued | SessionState::Creating, _) => {}
                (
                    SessionState::Ended {
                        reason: EndReason::Failed | EndReason::QueueTimeout | EndReason::Interrupted,
                    },
                    Some(error),
                ) => return Err(error.clone()),
                _ => return Ok(session),
            }
            if news.changed().await.is_err() {
                return Ok(session);
            }
        }
    }

    async fn make(self: &Arc<Self>, session: Session, permit: Permit) -> Result<Session> {
        let id = session.id.clone();
        if let Err(error) = self.intend(&id, Happening::Admitted).await {
            return Err(self.never_made(&id, EndReason::Failed, error).await);
        }
        failpoint::pass("create.admitted");
        let mut spec = session.request.spec.clone();
        spec.id = Some(id.clone());
        if let Some(grant) = &mut spec.grant {
            grant.renewed = true;
        }
        spec.owner = Some(Owner { tenant: session.request.tenant.clone(), session: id.clone() });
        match self.provider.create(spec).await {
            Ok(sandbox) => {
                failpoint::pass("create.made");
                let mut happened = vec![Happening::Created];
                if session.request.spec.grant.is_some()
                    && let Ok(gateway) = sandbox.gateway()
                {
                    happened.extend(gateway.tokens().await.unwrap_or_default().iter().map(token_issued));
                }
                self.record(&id, &happened).await?;
                failpoint::pass("create.recorded");
                self.keep(&session, sandbox, permit, 0, 0);
                self.store.session(&id).await?.ok_or_else(|| unknown(&id))
            }
            Err(error) => Err(self.never_made(&id, EndReason::Failed, error).await),
        }
    }

    /// Writes down that a session came to nothing; the answer is what its caller is told, who need not wait until a disk
    /// has room again.
    async fn never_made(self: &Arc<Self>, id: &SandboxId, reason: EndReason, error: Error) -> Error {
        let ending = Happening::Ending { reason, error: Some(error.clone()) };
        let last = [ending, Happening::Ended { reason, meter: Meter::ZERO }];
        let (shared, id) = (self.clone(), id.clone());
        let written = tokio::spawn(async move { shared.record(&id, &last).await });
        match tokio::time::timeout(AT_ONCE, written).await {
            Ok(Ok(Err(unwritten))) => unwritten.into(),
            _ => error,
        }
    }

    /// Looks after a session from now on, until its sandbox has ended.
    pub(crate) fn keep(
        self: &Arc<Self>,
        session: &Session,
        sandbox: Arc<dyn Sandbox>,
        permit: Permit,
        execs: u64,
        transfers: u64,
    ) -> Arc<Live> {
        let live = Arc::new(Live::new(session, sandbox, permit, execs, transfers));
        self.live().insert(session.id.clone(), live.clone());
        let (shared, watched) = (self.clone(), live.clone());
        tokio::spawn(async move {
            let ended = match watched.sandbox.control() {
                Ok(control) => control.ended().await,
                Err(error) => Err(error),
            };
            let state = ended.unwrap_or_else(|error| {
                tracing::warn!(session = %watched.id, %error, "lost sight of a sandbox");
                SandboxState::Lost
            });
            shared.finish(&watched, EndReason::from(state)).await;
        });
        live
    }

    /// Ends a session and waits until it has.
    pub(crate) async fn end(self: &Arc<Self>, id: &SandboxId, reason: EndReason) -> Result<()> {
        let Some(live) = self.live().get(id).cloned() else {
            let session = self.store.session(id).await?.ok_or_else(|| unknown(id))?;
            return if session.state.is_ended() {
                self.end_what_is_left(id).await
            } else {
                Err(not_yet(&session))
            };
        };
        self.record(id, &[Happening::Ending { reason, error: None }]).await?;
        failpoint::pass("end.asked");
        live.sandbox.control()?.kill().await?;
        live.until_over().await;
        Ok(())
    }

    /// A session that has ended should have no sandbox that lives; if it has one after all, it is not spared.
    async fn end_what_is_left(&self, id: &SandboxId) -> Result<()> {
        match self.provider.open(id).await {
            Ok(sandbox) => sandbox.control()?.kill().await,
            Err(error) if error.code == ErrorCode::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes down that a session is over. Its executions' watchers have the word before.
    async fn finish(self: &Arc<Self>, live: &Live, reason: EndReason) {
        // What is beginning fails now, and says so first.
        *live.open.write().await = false;
        if tokio::time::timeout(LAST_NEWS, live.until_quiet()).await.is_err() {
            tracing::warn!(session = %live.id, "executions did not say how they ended");
        }
        failpoint::pass("end.removed");
        let stats = crate::recovery::final_stats(&*live.sandbox).await;
        // The sandbox knows that it was killed, and we may know why.
        let asked = self.patiently(|| self.store.session(&live.id)).await.ok().flatten();
        let reason = asked.and_then(|session| session.state.reason()).unwrap_or(reason);
        if let Err(error) = self.close(&live.id, reason, stats).await {
            tracing::error!(session = %live.id, %error, "cannot write down the end of a session");
        }
        self.live().remove(&live.id);
        live.is_over();
    }

    /// Writes the last entries of a session's log.
    pub(crate) async fn close(
        &self,
        id: &SandboxId,
        reason: EndReason,
        stats: Option<SandboxStats>,
    ) -> Result<(), StoreError> {
        let executions = self.patiently(|| self.store.executions(id)).await?;
        let mut last: Vec<Happening> = Vec::new();
        let mut meter = Meter::default();
        for execution in executions {
            meter += match execution.meter {
                Some(known) => known,
                None if execution.state.is_over() => Meter::default(),
                None => {
                    last.push(crate::live::lost(execution.exec));
                    crate::live::UNKNOWN
                }
            };
        }
        for transfer in self.patiently(|| self.store.open_transfers(id)).await? {
            last.push(Happening::TransferInterrupted { transfer });
        }
        // What was never made used nothing; of what ran, somebody should know.
        let meter = match &stats {
            Some(stats) => crate::live::meter_of_all(stats, meter),
            None if reason == EndReason::Interrupted => meter,
            None => crate::live::meter_of_all(&SandboxStats::default(), meter),
        };
        last.push(Happening::Ended { reason, meter });
        self.record(id, &last).await
    }

    /// Reads what must be known to go on.
    pub(crate) async fn patiently<T, F>(&self, read: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = store::Result<T>>,
    {
        loop {
            match read().await {
                Err(StoreError::Busy | StoreError::Full) => {
                    tokio::time::sleep(Duration::from_millis(100)).await
                }
                other => return other,
            }
        }
    }

    pub(crate) fn room(&self) -> Permit {
        self.admission.take()
    }

    /// Forgets what need not be kept: first what is left on disk, then the record, so that nothing is left without one.
    async fn forget(&self) -> Result<usize> {
        let keep = u64::try_from(self.config.keep.as_millis()).unwrap_or(u64::MAX);
        let retention =
            Retention { ended_before_ms: now_ms().saturating_sub(keep), most: self.config.most_kept };
        let mut gone = Vec::new();
        for id in self.store.forgettable(retention).await? {
            let removed = match self.provider.open(&id).await {
                Ok(sandbox) => sandbox.cleanup().await,
                Err(error) if error.code == ErrorCode::NotFound => Ok(()),
                Err(error) => Err(error),
            };
            match removed {
                Ok(()) => gone.push(id),
                Err(error) => {
                    tracing::warn!(session = %id, %error, "cannot remove what is left of a session")
                }
            }
        }
        if !gone.is_empty() {
            failpoint::pass("forget.removed");
            self.store.forget(self.epoch, &gone).await?;
        }
        Ok(gone.len())
    }

    /// Puts off the end of tokens, of all sessions that live.
    async fn renew_tokens(&self) {
        let all: Vec<Arc<Live>> = self.live().values().cloned().collect();
        let renew = |live: Arc<Live>| async move {
            // Where there is no gateway there are no tokens.
            let Ok(gateway) = live.sandbox.gateway() else { return };
            if let Err(error) = gateway.renew().await {
                tracing::warn!(session = %live.id, %error, "cannot renew its tokens");
            }
        };
        stream::iter(all).for_each_concurrent(RENEWED_AT_ONCE, renew).await;
    }

    async fn look_for_idle(self: &Arc<Self>) {
        let idle: Vec<Arc<Live>> = self.live().values().filter(|live| live.is_idle()).cloned().collect();
        for live in idle {
            if let Err(error) = self.put_to_rest(&live).await {
                tracing::warn!(session = %live.id, %error, "cannot put an idle session to rest");
            }
        }
    }

    /// Ends or pauses an idle session. Whoever begins something meanwhile is first, or comes too late.
    async fn put_to_rest(self: &Arc<Self>, live: &Live) -> Result<()> {
        let Ok(mut open) = live.open.try_write() else { return Ok(()) };
        if !*open || !live.is_idle() {
            return Ok(());
        }
        if live.on_idle == OnIdle::Pause {
            return self.pause(live).await;
        }
        *open = false;
        drop(open);
        let ended = self.end(&live.id, EndReason::Idle).await;
        if ended.is_err() {
            *live.open.write().await = true;
        }
        ended
    }
}

/// Looks again and again for what is idle or need not be kept, for as long as there is an engine.
async fn rounds(shared: std::sync::Weak<Shared>) {
    loop {
        let Some(engine) = shared.upgrade() else { return };
        if let Err(error) = engine.take_over_the_rest().await {
            tracing::warn!(%error, "cannot take over the rest");
        }
        engine.look_for_idle().await;
        if let Err(error) = engine.forget().await {
            tracing::warn!(%error, "cannot forget old sessions");
        }
        let pause = engine.config.rounds;
        drop(engine);
        tokio::time::sleep(pause).await;
    }
}

/// Renews tokens at once, and again and again, for as long as there is an engine. Once there is none they end by themselves.
async fn renewals(shared: std::sync::Weak<Shared>) {
    loop {
        let Some(engine) = shared.upgrade() else { return };
        engine.renew_tokens().await;
        drop(engine);
        tokio::time::sleep(BETWEEN_RENEWALS).await;
    }
}

pub(crate) fn unknown(id: &SandboxId) -> Error {
    Error::new(ErrorCode::NotFound, format!("no sandbox `{id}`"))
        .hint("`belljar ls -a` lists the ones there are")
}

pub(crate) fn gone() -> Error {
    Error::new(ErrorCode::SandboxGone, "the sandbox has ended")
        .hint("create a new one; `belljar ls -a` shows how it ended")
}

fn not_yet(session: &Session) -> Error {
    Error::new(ErrorCode::Unavailable, format!("sandbox {} is {}", session.id, session.state))
        .hint("wait until it runs")
        .retry_after(Duration::from_secs(1))
}

fn not_taken_over(id: &SandboxId) -> Error {
    Error::new(ErrorCode::Unavailable, format!("sandbox {id} could not be taken over yet"))
        .hint("it is tried again every second; the engine's log says what is wrong")
        .retry_after(Duration::from_secs(1))
}

impl From<Overloaded> for Error {
    fn from(overloaded: Overloaded) -> Self {
        Self::new(ErrorCode::Overloaded, "there is no room for another sandbox")
            .hint("try again later, end sandboxes that are not needed, or start the engine with more room")
            .retry_after(overloaded.retry_after)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::Fenced { .. } => {
                Self::new(ErrorCode::Fenced, message).hint("another engine has taken over; ask that one")
            }
            StoreError::NoSession(_) => Self::new(ErrorCode::NotFound, message),
            StoreError::Taken(_) => Self::new(ErrorCode::AlreadyExists, message)
                .hint("remove it with `belljar rm -f`, or let the new one be given a name of its own"),
            StoreError::Impossible(_) => Self::new(ErrorCode::SandboxGone, message),
            StoreError::Full => Self::new(ErrorCode::ResourceExhausted, message)
                .hint("free some space where the data directory is"),
            StoreError::Busy => Self::new(ErrorCode::Unavailable, message)
                .hint("somebody else holds the database; it is tried again")
                .retry_after(Duration::from_secs(5)),
            StoreError::Newer { .. } => Self::new(ErrorCode::Version, message)
                .hint("use the Belljar that wrote it, or another data directory"),
            StoreError::Foreign(_) => Self::new(ErrorCode::InvalidArgument, message)
                .hint("give a file that `belljar backup` has written"),
            StoreError::Inconsistent(_) | StoreError::Database(_) => Self::new(ErrorCode::Internal, message),
        }
    }
}
