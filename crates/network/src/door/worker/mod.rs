//! The worker: reads what sandboxes send, and lets through what may.

mod cache;
mod connection;
mod dial;
mod dns;
mod first;
mod gate;
mod http;
mod limits;
mod names;
mod opened;
mod outbox;
mod relay;
mod replay;
mod resolver;
mod rooms;
mod served;
mod tape;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::{Moved, SandboxId, Tenant};
use rustix::net::sockopt::set_socket_linger;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use self::gate::Gate;
use self::limits::Limits;
use self::opened::Trust;
use self::outbox::Outbox;
use self::resolver::Resolver;
use self::rooms::Rooms;
use self::served::{Means, Served};
use super::clock::today;
use super::message::{Opening, Order, TenantShare, Word};
use crate::channel::Channel;

/// How often the supervisor hears how many bytes went through.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long the connections of a sandbox that has ended may take to be closed.
const CLOSING: Duration = Duration::from_secs(1);

/// Gives up all rights, and works until the supervisor is gone, to which `channel` leads. The process must be of one thread.
pub fn run(channel: OwnedFd) -> io::Result<()> {
    let trust = Trust::find();
    belljar_jail::rights::confine_worker()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(256).build()?;
    let worked = runtime.block_on(work(channel, trust));
    // Somebody may still wait for a resolver.
    runtime.shutdown_background();
    worked
}

async fn work(channel: OwnedFd, trust: Trust) -> io::Result<()> {
    let channel = Channel::new(channel)?;
    let (outbox, mut words) = Outbox::new();
    let (ready, mut made) = mpsc::channel(1);
    let mut worker = Worker {
        sandboxes: HashMap::new(),
        tenants: HashMap::new(),
        day: today(),
        outbox,
        resolver: Arc::default(),
        gate: Gate::default(),
        trust: Arc::new(trust),
        rooms: Rooms::new(MOST_OPENED),
        bodies: Arc::new(Semaphore::new(MOST_BODIES)),
        cache: cache::Shared::default(),
        pending: HashMap::new(),
        ready,
    };
    let mut tick = tokio::time::interval(TOLD_EVERY);
    loop {
        tokio::select! {
            order = channel.receive::<Order>() => match order? {
                Some((order, sockets)) => worker.obey(order, sockets),
                None => return Ok(()),
            },
            word = next(&mut words) => channel.send(&word, &[]).await?,
            Some(made) = made.recv() => worker.take_in(made),
            _ = tick.tick() => worker.tell_moved(),
        }
    }
}

/// The worker has an outbox itself, so that there is always a next word.
async fn next(words: &mut mpsc::Receiver<Word>) -> Word {
    match words.recv().await {
        Some(word) => word,
        None => std::future::pending().await,
    }
}

struct Worker {
    sandboxes: HashMap<SandboxId, Open>,
    /// Those that have limits.
    tenants: HashMap<Tenant, Arc<Limits>>,
    day: u64,
    outbox: Outbox,
    resolver: Arc<Resolver>,
    gate: Gate,
    trust: Arc<Trust>,
    rooms: Arc<Rooms>,
    bodies: Arc<Semaphore>,
    cache: cache::Shared,
    /// Sandboxes whose recordings are being looked into, and what was said of them meanwhile.
    pending: HashMap<SandboxId, Vec<Order>>,
    ready: mpsc::Sender<Made>,
}

/// A sandbox that is about to be served.
struct Made {
    id: SandboxId,
    serial: u64,
    told: Moved,
    tenant: Option<Arc<Limits>>,
    sockets: Vec<OwnedFd>,
    served: io::Result<Served>,
}

/// The most connections whose TLS is open, of one sandbox and of all: each takes up to a megabyte.
const MOST_OPENED: [usize; 2] = [64, 1024];

/// The most bodies of all sandboxes that are read whole at a time, to be found in recordings: each takes up to 16 MiB.
const MOST_BODIES: usize = 16;

/// A sandbox that is served, until this is dropped.
struct Open {
    served: Arc<Served>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// What was told of what went through.
    told: Moved,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.served.close();
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Worker {
    /// Whether it is served, or about to be.
    fn knows(&self, sandbox: &SandboxId) -> bool {
        self.sandboxes.contains_key(sandbox) || self.pending.contains_key(sandbox)
    }

    /// Takes in a sandbox whose recording has been looked into, and then what was said of it meanwhile.
    fn take_in(&mut self, made: Made) {
        let orders = self.pending.remove(&made.id).unwrap_or_default();
        self.opened(made);
        orders.into_iter().for_each(|order| self.obey(order, Vec::new()));
    }

    fn obey(&mut self, order: Order, sockets: Vec<OwnedFd>) {
        if let Order::Policy { sandbox, .. } | Order::Close { sandbox, .. } = &order
            && let Some(pending) = self.pending.get_mut(sandbox)
        {
            return pending.push(order);
        }
        match order {
            // Told twice, it is served once.
            Order::Open(opening) if self.knows(&opening.sandbox) => {
                let Opening { sandbox, policy, brought, tenant, serial, .. } = *opening;
                let policy = Box::new(policy);
                self.obey(Order::Policy { sandbox, policy, brought, tenant, serial }, Vec::new());
            }
            Order::Open(opening) => self.open(*opening, sockets),
            Order::Policy { sandbox, policy, brought, tenant, serial } => {
                let tenant = tenant.map(|share| self.share(share));
                if let Some(open) = self.sandboxes.get(&sandbox) {
                    open.served.limits.set_tenant(tenant);
                    open.served.set_policy(policy.with_brought(brought));
                }
                self.done(serial);
            }
            Order::Close { sandbox, serial } => match self.sandboxes.remove(&sandbox) {
                Some(open) => self.close(sandbox, open, serial),
                None => self.done(serial),
            },
            Order::Whose { serial, exec } => self.outbox.answered(serial, exec),
            Order::Handed { serial, length } => {
                self.outbox.hand(serial, sockets.into_iter().next().map(|file| (file, length)));
            }
            Order::Sync { serial } => self.done(serial),
            Order::Gateway => self.gate.replace(sockets),
        }
    }

    /// Ends what is open, and says so once all of it has been said.
    fn close(&self, sandbox: SandboxId, open: Open, serial: u64) {
        let (outbox, told, served) = (self.outbox.clone(), open.told, open.served.clone());
        drop(open);
        tokio::spawn(async move {
            let all = async {
                // Each connection holds on to it.
                while Arc::strong_count(&served) > 1 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let _ = tokio::time::timeout(CLOSING, all).await;
            if let Some(recorder) = &served.recorder {
                recorder.finish().await;
            }
            let more = between(told, served.limits.moved());
            outbox.say(Word::Moved { sandbox, more }).await;
            outbox.say(Word::Done { serial }).await;
        });
    }

    /// Says that an order was carried out, after all that connections say on account of it now.
    fn done(&self, serial: u64) {
        self.say(Word::Done { serial });
    }

    fn say(&self, word: Word) {
        let outbox = self.outbox.clone();
        tokio::spawn(async move { outbox.say(word).await });
    }

    /// The limits that all sandboxes of a tenant have in common, as they are from now on.
    fn share(&mut self, share: TenantShare) -> Arc<Limits> {
        let TenantShare { tenant, bounds, day } = share;
        let new = || {
            let moved = Moved { sent: day.on(self.day).bytes, ..Moved::default() };
            Arc::new(Limits::new(bounds, moved))
        };
        let limits = self.tenants.entry(tenant).or_insert_with(new);
        limits.set(bounds);
        limits.clone()
    }

    /// What tenants have moved counts for a day; those without sandboxes are forgotten then.
    fn look_at_the_day(&mut self) {
        let today = today();
        // Not where a clock was set back, and the day comes again.
        if today > self.day {
            self.day = today;
            self.tenants.retain(|_, limits| Arc::strong_count(limits) > 1);
            self.tenants.values().for_each(|limits| limits.begin_anew());
        }
    }

    fn open(&mut self, mut opening: Opening, mut sockets: Vec<OwnedFd>) {
        let (serial, told) = (opening.serial, opening.moved);
        let tenant = opening.tenant.take().map(|share| self.share(share));
        let id = opening.sandbox.clone();
        let means = Means {
            outbox: self.outbox.clone(),
            resolver: self.resolver.clone(),
            gate: self.gate.clone(),
            trust: self.trust.clone(),
            rooms: self.rooms.clone(),
            bodies: self.bodies.clone(),
            cache: self.cache.clone(),
        };
        let tape = opening.recording.is_some().then(|| sockets.pop()).flatten();
        let Some(tape) = tape else {
            let made = Served::new(opening, means, None);
            return self.opened(Made { id, serial, told, tenant, sockets, served: made });
        };
        // A file may take a while to be looked into, and nobody else waits for that.
        self.pending.insert(id.clone(), Vec::new());
        let ready = self.ready.clone();
        tokio::spawn(async move {
            let made = tokio::task::spawn_blocking(move || Served::new(opening, means, Some(tape))).await;
            let served = made.unwrap_or_else(|error| Err(io::Error::other(error)));
            let _ = ready.send(Made { id, serial, told, tenant, sockets, served }).await;
        });
    }

    /// Serves a sandbox of which all is known.
    fn opened(&mut self, made: Made) {
        let Made { id, serial, told, tenant, sockets, served } = made;
        let served = match served {
            Ok(served) => Arc::new(served),
            Err(error) => {
                tracing::error!(sandbox = %id, %error, "its recording cannot be used: it is not served");
                return self.done(serial);
            }
        };
        served.limits.set_tenant(tenant);
        let mut tasks = vec![tokio::spawn(served.clone().tell_of_recording())];
        let mut sockets = sockets.into_iter();
        while let (Some(tcp), Some(questions)) = (sockets.next(), sockets.next()) {
            match listener(tcp) {
                Ok(listener) => tasks.push(tokio::spawn(accept(served.clone(), listener))),
                Err(error) => tracing::error!(sandbox = %id, %error, "cannot take in connections"),
            }
            let served = served.clone();
            tasks.push(tokio::spawn(async move {
                if let Err(error) = dns::serve(served, questions).await {
                    tracing::error!(%error, "questions about names are not answered any more");
                }
            }));
        }
        self.sandboxes.insert(id, Open { served, tasks, told });
        self.done(serial);
    }

    fn tell_moved(&mut self) {
        self.look_at_the_day();
        let mut words = Vec::new();
        for (id, open) in &mut self.sandboxes {
            words.extend(open.served.tell_turned_away());
            let now = open.served.limits.moved();
            let told = std::mem::replace(&mut open.told, now);
            if now != told {
                words.push(Word::Moved { sandbox: id.clone(), more: between(told, now) });
            }
        }
        words.into_iter().for_each(|word| self.say(word));
    }
}

/// What was moved since.
fn between(then: Moved, now: Moved) -> Moved {
    Moved { sent: now.sent - then.sent, received: now.received - then.received, complete: false }
}

fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Takes in every connection; each is served by itself.
async fn accept(served: Arc<Served>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(tokio::spawn(connection::serve(served.clone(), client))),
            // A connection that was reset meanwhile is not said here. Descriptors may be short.
            Err(error) => {
                tracing::warn!(sandbox = %served.id, %error, "cannot take in a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Has a connection end with a reset when it is closed.
fn lingerless(socket: &TcpStream) {
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
}
