//! The supervisor: knows the sandboxes of a data directory, and keeps a worker at work.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::wire::Frame;
use belljar_core::{
    AUTHORITY_FILE, Authority, CachePlan, Call, Error, ErrorCode, ExecId, Flow, HostName, MOVED_FILE, Moved,
    NetworkPolicy, POLICY_FILE, RECORDING_FILE, RECORDINGS, Recording, RecordingPlan, Result, SandboxId,
    TOKENS_FILE, Tenant, TokenRecord, Verdict, Wall, hide_tokens,
};
use belljar_jail::control;
use belljar_jail::doorway::{self, Doorway};
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use super::cache::{Keeper, find_plan};
use super::log::{Counts, FlowLog};
use super::message::{Answer, Ask, Opening, Order, TenantShare, Word};
use super::post::{Books, Post};
use super::purposes::Purposes;
use super::tenants::{self, Tenants};
use super::{LOCK_FILE, SOCKET_FILE, place};
use crate::channel::{self, Channel};
use crate::gateway;
use crate::gateway::budget::Spent;
use crate::gateway::customer::{Introduction, TenantBudget};
use crate::gateway::ledger::CallLog;

/// A door that nobody needs is closed after this long.
const UNNEEDED: Duration = Duration::from_secs(60);
/// How long a worker may take to carry out an order, deaths included.
const PATIENCE: Duration = Duration::from_secs(10);
/// A worker that lives shorter than this is not replaced at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The longest pause before another worker is started.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest question of a caller, and the longest policy.
const MAX_ASK: u64 = 64 * 1024;
pub(super) const MAX_POLICY: u64 = 8 << 20;
/// So many names may have been given addresses and not be in the list yet, when a door dies.
const AHEAD: u64 = 256;
/// Questions of the worker that are passed on to monitors at once; each takes a thread.
const ASKING: usize = 64;
/// Those that wait for that.
const ASKED: usize = 10_000;
/// What may be under way of one sandbox, as far as that is remembered.
const MOST_OPEN: usize = 10_000;
/// The longest of what stands in a flow that is under way, together.
const LONGEST_FLOW: usize = 4096;
/// Names that are remembered of a sandbox for the next worker.
const MOST_NAMES: usize = 4096;

/// Starts a worker or a gateway, which finds the channel at its standard input.
pub type Start = Box<dyn Fn(OwnedFd) -> io::Result<Child> + Send + Sync>;

/// Keeps the door of a data directory, until nobody needs it. Returns at once if another does.
pub async fn run(home: &Path, start: Start, start_gateway: Start) -> io::Result<()> {
    belljar_jail::rights::most_descriptors()?;
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(home.join(LOCK_FILE))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let supervisor = Arc::new(Supervisor {
        home: home.to_owned(),
        sandboxes: home.join("sandboxes"),
        state: Mutex::default(),
        fresh: Notify::new(),
        asking: Arc::new(Semaphore::new(ASKING)),
        asked: Arc::new(Semaphore::new(ASKED)),
        post: Arc::new(Post::new()),
        keeper: Keeper::new(home),
    });
    supervisor.find_all().await;
    let gateway = tokio::spawn(supervisor.post.clone().keep(start_gateway, supervisor.clone()));
    let worker = tokio::spawn(supervisor.clone().keep_working(start));
    let socket = home.join(SOCKET_FILE);
    // Whoever made it held the lock that we hold now.
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = place::listen(home, SOCKET_FILE)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    let (stop_worker, stop_gateway) = (worker.abort_handle(), gateway.abort_handle());
    let kept = tokio::select! {
        () = supervisor.serve(listener) => Ok(()),
        // They never end by themselves; whoever comes next starts anew.
        _ = worker => Err(io::Error::other("nobody keeps the worker at work")),
        _ = gateway => Err(io::Error::other("nobody keeps the gateway at work")),
    };
    let _ = fs::remove_file(&socket);
    stop_worker.abort();
    stop_gateway.abort();
    kept
}

struct Supervisor {
    home: PathBuf,
    sandboxes: PathBuf,
    state: Mutex<State>,
    /// There is another worker.
    fresh: Notify,
    /// Places for questions to monitors.
    asking: Arc<Semaphore>,
    /// Places for questions that wait to be passed on.
    asked: Arc<Semaphore>,
    post: Arc<Post>,
    keeper: Keeper,
}

#[derive(Default)]
struct State {
    kept: HashMap<SandboxId, Kept>,
    tenants: Tenants,
    worker: Option<Arc<Channel>>,
    /// Who waits for a worker to have carried out an order.
    waiting: HashMap<u64, oneshot::Sender<()>>,
    serial: u64,
    callers: usize,
}

/// A sandbox that is served.
struct Kept {
    doorway: Doorway,
    policy: NetworkPolicy,
    /// By what its TLS is opened, if it can be.
    authority: Option<Authority>,
    /// What its network has to do with a recording, and the file of that.
    recording: Option<(RecordingPlan, OwnedFd)>,
    /// The registries of which files are kept for it.
    cache: Option<CachePlan>,
    /// Its tenant, if that has limits.
    tenant: Option<Tenant>,
    names: VecDeque<(u32, HostName)>,
    first_place: u32,
    /// What executions are a part of.
    purposes: Purposes,
    /// What has begun and not ended.
    open: HashMap<u64, Flow>,
    /// What went through, of flows that have not ended as well.
    moved: Moved,
    /// What the file says of that.
    written: Option<Moved>,
    log: FlowLog,
    /// Its tokens and calls, if it has any.
    customer: Option<Customer>,
    /// Held while the gateway is told of its tokens, so that what was read first is not told last.
    introducing: Arc<tokio::sync::Mutex<()>>,
}

/// A sandbox as the gateway's customer.
struct Customer {
    tokens: Vec<TokenRecord>,
    calls: CallLog,
}

impl Customer {
    /// Finds out whether a sandbox has tokens.
    fn find(directory: &Path) -> io::Result<Option<Self>> {
        let Some(tokens) = read_tokens(directory) else { return Ok(None) };
        Ok(Some(Self { tokens, calls: CallLog::open(directory)? }))
    }

    fn introduction(&self, sandbox: &SandboxId, tenant: Option<TenantBudget>) -> gateway::message::Order {
        let spent = self.calls.spent().clone();
        let introduction = Introduction { tokens: self.tokens.clone(), spent, tenant };
        gateway::message::Order::Introduce { sandbox: sandbox.clone(), introduction: Box::new(introduction) }
    }
}

/// The tokens of a sandbox, if it was ever given any. What cannot be read grants nothing.
fn read_tokens(directory: &Path) -> Option<Vec<TokenRecord>> {
    match read(&directory.join(TOKENS_FILE), MAX_POLICY) {
        Ok(tokens) => Some(tokens),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "the tokens cannot be read");
            Some(Vec::new())
        }
    }
}

impl Books for Supervisor {
    fn introductions(&self) -> Vec<gateway::message::Order> {
        let state = self.state();
        state.kept.iter().filter_map(|(id, kept)| kept.introduction(id, &state.tenants)).collect()
    }

    fn called(&self, sandbox: &SandboxId, call: Call) {
        let mut state = self.state();
        let State { kept, tenants, .. } = &mut *state;
        let Some(kept) = kept.get_mut(sandbox) else { return };
        if let Some(tenant) = &kept.tenant {
            tenants.spent(&self.home, tenant, Spent::of(&call));
        }
        if let Some(Err(error)) = kept.customer.as_mut().map(|customer| customer.calls.push(call)) {
            tracing::error!(%sandbox, %error, "cannot write down a call");
        }
    }

    fn began(&self, sandbox: &SandboxId, call: Call) -> bool {
        let mut state = self.state();
        let customer = state.kept.get_mut(sandbox).and_then(|kept| kept.customer.as_mut());
        let Some(customer) = customer else { return false };
        match customer.calls.begin(call) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%sandbox, %error, "a call is not made: it cannot be written down");
                false
            }
        }
    }

    fn gone(&self) {
        let mut state = self.state();
        let State { kept, tenants, .. } = &mut *state;
        kept.values_mut().for_each(|kept| kept.give_up_calls(&self.home, tenants));
    }
}

impl State {
    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// What the worker is told of a sandbox. None that has a tenant with limits is served without them.
    fn opening(&self, sandbox: &SandboxId, serial: u64) -> Option<Order> {
        let kept = self.kept.get(sandbox)?;
        Some(Order::Open(Box::new(Opening {
            sandbox: sandbox.clone(),
            policy: kept.policy.clone(),
            brought: kept.brought(),
            tenant: self.share(kept)?,
            attributed: kept.doorway.marks,
            authority: kept.authority.clone(),
            recording: kept.recording.as_ref().map(|(plan, _)| plan.clone()),
            cache: kept.cache.as_ref().map(|plan| plan.of.clone()),
            moved: kept.moved,
            names: kept.names.iter().cloned().collect(),
            first_place: kept.first_place,
            serial,
        })))
    }

    /// What its tenant may use, which may be without limits; nothing if that is not known.
    fn share(&self, kept: &Kept) -> Option<Option<TenantShare>> {
        match &kept.tenant {
            Some(tenant) => Some(Some(self.tenants.share(tenant)?)),
            None => Some(None),
        }
    }
}

impl Kept {
    /// Counts calls of which nothing will be heard any more.
    fn give_up_calls(&mut self, home: &Path, tenants: &mut Tenants) {
        let lost = self.customer.as_mut().map(|customer| customer.calls.give_up()).unwrap_or_default();
        if let Some(tenant) = &self.tenant {
            lost.into_iter().for_each(|spent| tenants.spent(home, tenant, spent));
        }
    }

    /// The sockets that the worker is handed, and the file of a recording after them.
    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = self.doorway.descriptors().into_iter().map(|socket| socket.try_clone_to_owned());
        let file = self.recording.iter().map(|(_, file)| file.try_clone());
        sockets.chain(file).collect()
    }

    /// Hosts that the gateway asks for it, by one of its tokens or another.
    fn brought(&self) -> Vec<HostName> {
        let tokens = self.customer.iter().flat_map(|customer| &customer.tokens);
        let good = tokens.filter(|record| record.revoked_ms.is_none());
        let hosts: BTreeSet<&HostName> = good.flat_map(|record| &record.hosts).collect();
        hosts.into_iter().cloned().collect()
    }

    /// What the gateway is told of it, if it is a customer there.
    fn introduction(&self, sandbox: &SandboxId, tenants: &Tenants) -> Option<gateway::message::Order> {
        let tenant = self.tenant.as_ref().and_then(|tenant| tenants.budget(tenant));
        Some(self.customer.as_ref()?.introduction(sandbox, tenant))
    }

    fn write_flow(&mut self, mut flow: Flow) {
        // Whoever took the worker over may say anything, and people will read it.
        let mut texts = vec![&mut flow.host];
        texts.extend(flow.request.as_mut().into_iter().chain(flow.rule.as_mut()));
        match &mut flow.verdict {
            Verdict::Allowed => {}
            Verdict::Denied { reason, what, how_to_grant } => texts.extend([reason, what, how_to_grant]),
            Verdict::Failed { error } => texts.push(error),
        }
        for text in texts {
            hide_tokens(text);
            if text.contains(char::is_control) {
                *text = text.escape_debug().to_string();
            }
        }
        if let Err(error) = self.log.push(flow) {
            tracing::error!(%error, "cannot write down a flow");
        }
    }

    /// A flow with what it was part of, whatever the worker says of that. Whose it was is the same for all, and in the lease.
    fn explained(&self, flow: Flow) -> Flow {
        Flow { purpose: self.purposes.of(flow.exec), owner: None, ..flow }
    }

    /// Writes down what had begun when the worker died.
    fn write_open(&mut self) {
        let mut open: Vec<(u64, Flow)> = self.open.drain().collect();
        open.sort_by_key(|(trip, _)| *trip);
        for (_, flow) in open {
            let error = "the door died while it was under way; its bytes are not counted here".to_owned();
            self.write_flow(Flow { verdict: Verdict::Failed { error }, ..flow });
        }
    }

    fn write_moved(&mut self, directory: &Path) {
        if self.written == Some(self.moved) {
            return;
        }
        // Seen whole or not at all. The directory may be on its way out.
        let new = directory.join(format!("{MOVED_FILE}.new"));
        let text = serde_json::to_vec(&self.moved).unwrap_or_default();
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, directory.join(MOVED_FILE)));
        match written {
            Ok(()) => self.written = Some(self.moved),
            Err(error) => tracing::debug!(%error, "cannot write down how much was moved"),
        }
    }
}

impl Supervisor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self, sandbox: &SandboxId) -> PathBuf {
        self.sandboxes.join(sandbox.as_str())
    }

    /// Takes in every sandbox that is there: a door before this one may have died.
    async fn find_all(self: &Arc<Self>) {
        let Ok(entries) = fs::read_dir(&self.sandboxes) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<SandboxId>().ok()) else { continue };
            if entry.path().join(POLICY_FILE).exists()
                && let Err(error) = self.take_in(&id).await
            {
                // Those that have ended are gone.
                match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        tracing::debug!(sandbox = %id, %error, "not taken in");
                    }
                    _ => tracing::warn!(sandbox = %id, %error, "not served"),
                }
            }
        }
    }

    /// Serves callers until nobody needs the door any more.
    async fn serve(self: &Arc<Self>, listener: UnixListener) {
        let mut idle_since = Instant::now();
        let mut look = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) if is_let_in(&socket) => {
                        self.state().callers += 1;
                        let supervisor = self.clone();
                        tokio::spawn(async move {
                            supervisor.converse(socket).await;
                            supervisor.state().callers -= 1;
                        });
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot take in a caller");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                _ = look.tick() => {
                    self.write_moved();
                    let needed = {
                        let state = self.state();
                        !state.kept.is_empty() || state.callers > 0
                    };
                    if needed {
                        idle_since = Instant::now();
                    } else if idle_since.elapsed() >= UNNEEDED {
                        return;
                    }
                }
            }
        }
    }

    /// One caller: a question a line.
    async fn converse(self: &Arc<Self>, socket: UnixStream) {
        let (read, mut write) = socket.into_split();
        let mut read = BufReader::new(read);
        loop {
            let mut line = Vec::new();
            match (&mut read).take(MAX_ASK).read_until(b'\n', &mut line).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
            let answer = match serde_json::from_slice(&line) {
                Ok(Ask::SeeTo { sandbox }) => self.see_to(&sandbox).await.map(|()| Answer::Done),
                Ok(Ask::Denials { sandbox, exec }) => Ok(self.denials(&sandbox, exec).await),
                Err(error) => {
                    Err(Error::new(ErrorCode::Version, format!("the door does not understand: {error}"))
                        .hint("sandboxes of another version of Belljar are served by its own door"))
                }
            };
            let mut line = serde_json::to_vec(&answer.unwrap_or_else(Answer::Failed)).unwrap_or_default();
            line.push(b'\n');
            if write.write_all(&line).await.is_err() {
                return;
            }
        }
    }

    async fn see_to(self: &Arc<Self>, sandbox: &SandboxId) -> Result<()> {
        if !self.state().kept.contains_key(sandbox) {
            self.take_in(sandbox).await.map_err(|error| {
                Error::new(ErrorCode::Lost, format!("the door cannot reach the sandbox's network: {error}"))
                    .hint("`belljar ls -a` shows whether it has ended")
            })?;
            self.carried_out(|state, serial| state.opening(sandbox, serial)).await?;
            return self.introduce(sandbox).await;
        }
        let directory = self.directory(sandbox);
        let policy = read_policy(&directory).map_err(|error| {
            Error::new(ErrorCode::Internal, format!("cannot read the sandbox's policy: {error}"))
        })?;
        let found = tenants::find(&self.home, &directory);
        // Where that is not known, what was known of it before holds on.
        let unknown = found.as_ref().err().map(|error| {
            Error::new(ErrorCode::Internal, format!("the sandbox has its new policy, but {error}"))
                .hint("start the engine again: it writes down what tenants may use")
        });
        {
            let mut state = self.state();
            let tenant = found.ok().map(|found| found.map(|found| state.tenants.note(found)));
            if let Some(kept) = state.kept.get_mut(sandbox) {
                kept.policy = policy;
                kept.tenant = tenant.unwrap_or_else(|| kept.tenant.take());
            }
        }
        self.look_at_tokens(sandbox);
        self.carried_out(|state, serial| {
            let kept = state.kept.get(sandbox)?;
            let (policy, brought, tenant) =
                (Box::new(kept.policy.clone()), kept.brought(), state.share(kept)?);
            Some(Order::Policy { sandbox: sandbox.clone(), policy, brought, tenant, serial })
        })
        .await?;
        self.introduce(sandbox).await?;
        unknown.map_or(Ok(()), Err)
    }

    /// Takes a sandbox's tokens as they are in its directory now.
    fn look_at_tokens(&self, sandbox: &SandboxId) {
        let directory = self.directory(sandbox);
        let Some(tokens) = read_tokens(&directory) else { return };
        let mut state = self.state();
        let Some(kept) = state.kept.get_mut(sandbox) else { return };
        match &mut kept.customer {
            Some(customer) => customer.tokens = tokens,
            none => match Customer::find(&directory) {
                Ok(found) => *none = found,
                Err(error) => tracing::error!(%sandbox, %error, "cannot open the list of calls"),
            },
        }
    }

    /// Has the gateway know a sandbox's tokens as they are now, if it has any.
    async fn introduce(&self, sandbox: &SandboxId) -> Result<()> {
        let introducing = self.state().kept.get(sandbox).map(|kept| kept.introducing.clone());
        let Some(introducing) = introducing else { return Ok(()) };
        let _introducing = introducing.lock().await;
        self.look_at_tokens(sandbox);
        let order = {
            let state = self.state();
            state.kept.get(sandbox).and_then(|kept| kept.introduction(sandbox, &state.tenants))
        };
        match order {
            Some(order) => self.post.tell(order).await,
            None => Ok(()),
        }
    }

    /// Gets the sockets of a sandbox from its monitor, and watches for its end. The worker is not told yet.
    async fn take_in(self: &Arc<Self>, sandbox: &SandboxId) -> io::Result<()> {
        let (home, directory) = (self.home.clone(), self.directory(sandbox));
        let end = await_end(&directory).await?;
        let kept = tokio::task::spawn_blocking(move || {
            let doorway = doorway::fetch(&directory)?;
            let found = tenants::find(&home, &directory)?;
            let log = FlowLog::open(&directory)?;
            let policy = read_policy(&directory)?;
            let Counts { seq, sent, received } = log.counts();
            // What had not ended when a door before this one died is in the file only.
            let before: Moved = read(&directory.join(MOVED_FILE), MAX_ASK).unwrap_or_default();
            let moved = Moved {
                sent: sent.max(before.sent),
                received: received.max(before.received),
                complete: false,
            };
            // Every name that was given an address is in the list of flows, but perhaps the last few.
            let first_place = u32::try_from((seq + AHEAD) % u64::from(u32::MAX)).unwrap_or(0);
            let (names, purposes, open) = (VecDeque::new(), Purposes::default(), HashMap::new());
            let mut kept = Kept {
                doorway,
                policy,
                authority: find_authority(&directory)?,
                recording: find_recording(&home, &directory)?,
                cache: find_plan(&directory)?,
                tenant: None,
                names,
                first_place,
                purposes,
                open,
                moved,
                written: None,
                log,
                customer: Customer::find(&directory)?,
                introducing: Arc::default(),
            };
            kept.write_moved(&directory);
            io::Result::Ok((kept, found))
        });
        let (mut kept, found) = kept.await.map_err(io::Error::other)??;
        {
            let mut state = self.state();
            kept.tenant = found.map(|found| state.tenants.note(found));
            if !state.kept.contains_key(sandbox) {
                // Those of a door before this one.
                kept.give_up_calls(&self.home, &mut state.tenants);
            }
            if kept.customer.is_some() {
                self.post.need();
            }
            // Another caller may have been faster; both have the same.
            state.kept.entry(sandbox.clone()).or_insert(kept);
        }
        let (supervisor, sandbox) = (self.clone(), sandbox.clone());
        tokio::spawn(async move {
            end.wait().await;
            supervisor.close(&sandbox).await;
        });
        Ok(())
    }

    async fn close(&self, sandbox: &SandboxId) {
        // The last flows are written down before the list is let go.
        let close = |_: &mut State, serial| Some(Order::Close { sandbox: sandbox.clone(), serial });
        if let Err(error) = self.carried_out(close).await {
            tracing::warn!(%sandbox, %error, "the worker did not let go of a sandbox");
        }
        self.post.mention(gateway::message::Order::Forget { sandbox: sandbox.clone() }).await;
        let kept = self.state().kept.remove(sandbox);
        if let Some(mut kept) = kept {
            kept.give_up_calls(&self.home, &mut self.state().tenants);
            kept.moved.complete = true;
            kept.write_moved(&self.directory(sandbox));
        }
    }

    /// Writes down how much has been moved, where that has changed.
    fn write_moved(&self) {
        let mut state = self.state();
        let State { kept, tenants, .. } = &mut *state;
        for (sandbox, kept) in &mut *kept {
            kept.write_moved(&self.directory(sandbox));
        }
        tenants.write(&self.home, |tenant| kept.values().any(|kept| kept.tenant.as_ref() == Some(tenant)));
    }

    async fn denials(&self, sandbox: &SandboxId, exec: ExecId) -> Answer {
        // What the worker has said before counts.
        let _ = self.carried_out(|_, serial| Some(Order::Sync { serial })).await;
        let state = self.state();
        Answer::Denials(state.kept.get(sandbox).map(|kept| kept.log.denials(exec)).unwrap_or_default())
    }

    /// Has the worker carry out an order, or the next one, should it die meanwhile.
    async fn carried_out(&self, mut order: impl FnMut(&mut State, u64) -> Option<Order>) -> Result<()> {
        let done = async {
            loop {
                let fresh = self.fresh.notified();
                let (sent, order, done) = {
                    let mut state = self.state();
                    let serial = state.serial();
                    let (said, done) = oneshot::channel();
                    let Some(order) = order(&mut state, serial) else { return };
                    state.waiting.insert(serial, said);
                    let sockets = match &order {
                        Order::Open(opening) => match state.kept.get(&opening.sandbox) {
                            Some(kept) => kept.copies(),
                            None => return,
                        },
                        _ => Ok(Vec::new()),
                    };
                    (state.worker.clone().zip(sockets.ok()), order, done)
                };
                if let Some((worker, sockets)) = sent {
                    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                    if worker.send(&order, &sockets).await.is_ok() && done.await.is_ok() {
                        return;
                    }
                }
                // The next worker is told everything anyhow; this makes sure that it has heard.
                fresh.await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.map_err(|_| {
            Error::new(ErrorCode::Unavailable, "the door does not come to work")
                .hint("see `door.log` in the data directory")
                .retry_after(Duration::from_secs(1))
        })
    }

    /// Keeps a worker at work, for ever.
    async fn keep_working(self: Arc<Self>, start: Start) {
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            if let Err(error) = self.employ(&start).await {
                tracing::warn!(%error, "the worker is gone");
            }
            {
                let mut state = self.state();
                state.worker = None;
                state.waiting.clear();
                state.kept.values_mut().for_each(Kept::write_open);
            }
            pause = if began.elapsed() > SHORT_LIFE {
                Duration::ZERO
            } else {
                (pause * 2).clamp(Duration::from_millis(5), LONGEST_PAUSE)
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One worker, from its start to its end.
    async fn employ(self: &Arc<Self>, start: &Start) -> io::Result<()> {
        let (ours, theirs) = channel::pair()?;
        let mut child = start(theirs)?;
        let channel = Arc::new(Channel::new(ours)?);
        let all: Vec<(Order, Vec<OwnedFd>)> = {
            let mut state = self.state();
            state.worker = Some(channel.clone());
            let serial = state.serial();
            state
                .kept
                .iter()
                .filter_map(|(id, kept)| Some((state.opening(id, serial)?, kept.copies().ok()?)))
                .collect()
        };
        let tell = async {
            for (order, sockets) in all {
                let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                channel.send(&order, &sockets).await?;
            }
            self.post.worker(channel.clone()).await;
            self.fresh.notify_waiters();
            io::Result::Ok(())
        };
        let hear = async {
            while let Some(word) = channel.receive_word::<Word>().await? {
                self.hear(word, &channel);
            }
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        let heard = tokio::try_join!(tell, hear).map(|((), never): ((), ())| never);
        let _ = child.kill().await;
        heard
    }

    fn hear(self: &Arc<Self>, word: Word, channel: &Arc<Channel>) {
        let mut state = self.state();
        match word {
            Word::Done { serial } => {
                if let Some(waiting) = state.waiting.remove(&serial) {
                    let _ = waiting.send(());
                }
            }
            Word::Whose { sandbox, mark, serial } => {
                // More than that no worker of ours asks at once.
                let Ok(asked) = self.asked.clone().try_acquire_owned() else { return };
                if !state.kept.contains_key(&sandbox) {
                    return;
                }
                let (supervisor, channel) = (self.clone(), channel.clone());
                tokio::spawn(async move {
                    let _asked = asked;
                    let _place = supervisor.asking.acquire().await;
                    let directory = supervisor.directory(&sandbox);
                    let ask = tokio::task::spawn_blocking(move || doorway::whose(&directory, mark));
                    let caller = ask.await.ok().and_then(io::Result::ok).flatten();
                    let exec = caller.as_ref().map(|caller| caller.exec);
                    // Before the worker can tell of it.
                    if let Some(caller) = caller
                        && let Some(kept) = supervisor.state().kept.get_mut(&sandbox)
                    {
                        kept.purposes.note(caller.exec, caller.purpose);
                    }
                    let _ = channel.send(&Order::Whose { serial, exec }, &[]).await;
                });
            }
            Word::Named { sandbox, place, name } => {
                if let Some(kept) = state.kept.get_mut(&sandbox) {
                    if kept.names.len() == MOST_NAMES {
                        kept.names.pop_front();
                    }
                    kept.names.push_back((place, name));
                }
            }
            Word::Began { sandbox, trip, flow } => {
                if let Some(kept) = state.kept.get_mut(&sandbox)
                    && kept.open.len() < MOST_OPEN
                    && length(&flow) < LONGEST_FLOW
                {
                    let flow = kept.explained(*flow);
                    kept.open.insert(trip, flow);
                }
            }
            Word::Told { sandbox, trip } => {
                if let Some(kept) = state.kept.get_mut(&sandbox) {
                    kept.open.remove(&trip);
                }
            }
            Word::Flow { sandbox, trip, flow } => {
                if let Some(kept) = state.kept.get_mut(&sandbox) {
                    let began = kept.open.remove(&trip).filter(|began| began.exec == flow.exec);
                    let flow = match began {
                        // What it was part of may be forgotten since.
                        Some(began) => Flow { purpose: began.purpose, owner: None, ..*flow },
                        None => kept.explained(*flow),
                    };
                    kept.write_flow(flow);
                }
            }
            Word::Cache { sandbox, wanted, wish } => {
                // More than that no worker of ours asks at once.
                let Ok(asked) = self.asked.clone().try_acquire_owned() else { return };
                let plan = state.kept.get(&sandbox).and_then(|kept| kept.cache.clone());
                let (supervisor, channel) = (self.clone(), channel.clone());
                tokio::spawn(async move {
                    supervisor.keeper.grant(wish, wanted, plan, &channel).await;
                    drop(asked);
                });
            }
            Word::Moved { sandbox, more } => {
                let State { kept, tenants, .. } = &mut *state;
                if let Some(Kept { moved, tenant, .. }) = kept.get_mut(&sandbox) {
                    moved.sent = moved.sent.saturating_add(more.sent);
                    moved.received = moved.received.saturating_add(more.received);
                    if let Some(tenant) = tenant {
                        tenants.moved(tenant, more.sent.saturating_add(more.received));
                    }
                }
            }
        }
    }
}

/// How much is written in a flow.
fn length(flow: &Flow) -> usize {
    let texts = [Some(&flow.host), flow.request.as_ref(), flow.rule.as_ref()];
    texts.into_iter().flatten().map(String::len).sum()
}

/// What the network of a sandbox has to do with a recording, and its file.
fn find_recording(home: &Path, directory: &Path) -> io::Result<Option<(RecordingPlan, OwnedFd)>> {
    let plan: RecordingPlan = match read(&directory.join(RECORDING_FILE), MAX_POLICY) {
        Ok(plan) => plan,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let path = home.join(RECORDINGS).join(plan.how.name().file());
    let is_written = matches!(plan.how, Recording::Record(_));
    let file = OpenOptions::new().read(true).write(is_written).open(path)?;
    // Nobody removes it as long as it is needed.
    flock(&file, FlockOperation::NonBlockingLockShared)?;
    Ok(Some((plan, file.into())))
}

fn is_let_in(socket: &UnixStream) -> bool {
    let we = rustix::process::geteuid().as_raw();
    !Wall::DoorPeers.stands() || socket.peer_cred().is_ok_and(|peer| peer.uid() == we || peer.uid() == 0)
}

fn read_policy(directory: &Path) -> io::Result<NetworkPolicy> {
    let policy = read(&directory.join(POLICY_FILE), MAX_POLICY)?;
    Ok(if Wall::DoorPolicy.stands() { policy } else { NetworkPolicy::Open(Default::default()) })
}

fn find_authority(directory: &Path) -> io::Result<Option<Authority>> {
    match read(&directory.join(AUTHORITY_FILE), MAX_ASK) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

pub(super) fn read<T: DeserializeOwned>(path: &Path, most: u64) -> io::Result<T> {
    let mut text = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// The end of a sandbox, to be waited for.
struct End(UnixStream);

impl End {
    async fn wait(mut self) {
        let mut buffer = [0; 256];
        // Whatever its monitor says is the end, and so is its going away.
        let _ = self.0.read(&mut buffer).await;
    }
}

/// Asks a sandbox's monitor to say when it has ended.
async fn await_end(directory: &Path) -> io::Result<End> {
    let mut socket = place::connect(directory, control::SOCKET_FILE).await?;
    let request = control::Request::AwaitEnd;
    let open = control::Open { protocol: control::PROTOCOL, epoch: None, request };
    let mut bytes = Vec::new();
    Frame::control(control::CONVERSATION, &open).encode(&mut bytes);
    socket.write_all(&bytes).await?;
    Ok(End(socket))
}
