//! One sandbox as the worker knows it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_core::{
    ExecId, Flow, FlowKind, GATEWAY_NAME, HostName, NetworkPolicy, Purpose, Recording, SandboxId, Verdict,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::cache::{self, Cache};
use super::dial;
use super::gate::Gate;
use super::limits::{Limits, Reached};
use super::names::{Forgotten, Names};
use super::opened::Trust;
use super::outbox::Outbox;
use super::resolver::{AT_ONCE, NoAddress, Resolver};
use super::rooms::{Room, Rooms};
use super::tape::Recorder;
use crate::authority::Opener;
use crate::door::clock::now_ms;
use crate::door::message::{Opening, Word};
use crate::door::purposes::GENERATION;
use crate::policy::{Allowed, Denied, Destination, Reason};
use crate::recording::{Finder, Reader, Veil};

/// What all its connections share.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) id: SandboxId,
    attributed: bool,
    /// The policy in force; nothing once the sandbox has ended.
    policy: watch::Sender<Option<Arc<NetworkPolicy>>>,
    pub(super) limits: Arc<Limits>,
    /// Room for its busiest connections.
    pub(super) room: dial::Room,
    names: Mutex<Names>,
    marks: Mutex<HashMap<u32, ExecId>>,
    outbox: Outbox,
    resolver: Arc<Resolver>,
    pub(super) gate: Gate,
    /// By what TLS is opened, if it can be.
    pub(super) opener: Option<Opener>,
    pub(super) trust: Arc<Trust>,
    /// Places for connections whose TLS is open.
    rooms: Arc<Rooms>,
    asking: Arc<Semaphore>,
    /// Room for requests inside TLS that are under way.
    under_way: Arc<Semaphore>,
    /// Who writes everything down, if somebody does.
    pub(super) recorder: Option<Arc<Recorder>>,
    /// What is answered from, if that is a recording.
    pub(super) replay: Option<Arc<Finder>>,
    /// What registries serve and is kept, if it is to have that.
    pub(super) cache: Option<Arc<Cache>>,
    /// Places for bodies that are read whole, to be found there: of this sandbox, and of all.
    bodies: [Arc<Semaphore>; 2],
    /// How many were turned away since that was last told: as in [`TOLD_TOGETHER`].
    turned_away: [AtomicU64; 3],
}

/// What all sandboxes share.
pub(super) struct Means {
    pub(super) outbox: Outbox,
    pub(super) resolver: Arc<Resolver>,
    pub(super) gate: Gate,
    pub(super) trust: Arc<Trust>,
    /// Places for connections whose TLS is open.
    pub(super) rooms: Arc<Rooms>,
    /// Places for bodies that are read whole, to be found in a recording.
    pub(super) bodies: Arc<Semaphore>,
    pub(super) cache: cache::Shared,
}

/// The most requests of one sandbox inside opened TLS that are under way: the head of each is in our memory.
const MOST_UNDER_WAY: usize = 256;

/// The most bodies of one sandbox that are read whole at a time.
const MOST_BODIES: usize = 4;

/// Why they were turned away whose refusals are told together: its own limits, its tenant's, and room of ours.
const TOLD_TOGETHER: [(Reason, &str); 3] = [
    (Reason::TooManyRequests, "connections or look-ups"),
    (Reason::TenantTooManyRequests, "connections or look-ups"),
    (Reason::NoRoom, "requests inside TLS"),
];

impl Served {
    pub(super) fn new(mut opening: Opening, means: Means, tape: Option<OwnedFd>) -> io::Result<Self> {
        let (mut recorder, mut replay) = (None, None);
        if let Some(plan) = opening.recording.take() {
            let file = File::from(tape.ok_or(io::ErrorKind::InvalidData)?);
            match &plan.how {
                Recording::Record(how) => {
                    recorder = Some(Arc::new(Recorder::new(&opening.sandbox, how.clone(), &plan, file)?));
                }
                Recording::Replay(how) => {
                    let veil = Veil::new(plan.secrets.iter().map(String::as_str), &[]);
                    replay = Some(Arc::new(Finder::new(Reader::new(file)?, how.clone(), veil)));
                }
            }
        }
        let of = opening.cache.take();
        let Opening { sandbox, policy, brought, attributed, moved, names, first_place, authority, .. } =
            opening;
        let policy = policy.with_brought(brought);
        let Means { outbox, resolver, gate, trust, rooms, bodies, cache } = means;
        let cache = of.map(|of| Arc::new(Cache::new(sandbox.clone(), of, outbox.clone(), cache)));
        let opener = authority.and_then(|authority| match Opener::new(&sandbox, &authority) {
            Ok(opener) => Some(opener),
            Err(error) => {
                tracing::error!(%sandbox, %error, "cannot use its certificate authority: no TLS is opened");
                None
            }
        });
        let bounds = policy.rules().map(|rules| rules.limits).unwrap_or_default();
        Ok(Self {
            id: sandbox,
            attributed,
            policy: watch::Sender::new(Some(Arc::new(policy))),
            limits: Arc::new(Limits::new(bounds, moved)),
            room: dial::Room::default(),
            names: Mutex::new(Names::restored(names, first_place)),
            marks: Mutex::default(),
            outbox,
            resolver,
            gate,
            opener,
            trust,
            rooms,
            asking: Arc::new(Semaphore::new(AT_ONCE)),
            under_way: Arc::new(Semaphore::new(MOST_UNDER_WAY)),
            recorder,
            replay,
            cache,
            bodies: [Arc::new(Semaphore::new(MOST_BODIES)), bodies],
            turned_away: Default::default(),
        })
    }

    /// Judges by another policy from now on; those who wait for that are told.
    pub(super) fn set_policy(&self, policy: NetworkPolicy) {
        self.limits.set(policy.rules().map(|rules| rules.limits).unwrap_or_default());
        self.policy.send_replace(Some(Arc::new(policy)));
    }

    /// The sandbox has ended, and whatever is open with it.
    pub(super) fn close(&self) {
        self.policy.send_replace(None);
    }

    pub(super) fn policy(&self) -> watch::Receiver<Option<Arc<NetworkPolicy>>> {
        self.policy.subscribe()
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<u32, ExecId>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a connection to this address is meant to lead.
    pub(super) fn destination(&self, address: IpAddr) -> Result<Destination, Forgotten> {
        let name = self.names().name(address)?;
        Ok(name.map_or(Destination::Address(address), Destination::Name))
    }

    /// The address that stands for a name, once the supervisor will remember it.
    pub(super) async fn address_of(&self, name: &HostName) -> IpAddr {
        let (address, new) = self.names().address(name);
        if let Some(place) = new {
            self.say(Word::Named { sandbox: self.id.clone(), place, name: name.clone() }).await;
        }
        address.into()
    }

    /// The execution that a mark stands for. Where the host cannot tell, nothing; where it can, and this is none, an error.
    pub(super) async fn whose(&self, mark: u32) -> Result<Option<ExecId>, Unattributed> {
        if !self.attributed {
            return Ok(None);
        }
        let known = self.marks().get(&mark).copied();
        if let Some(exec) = known {
            return Ok(Some(exec));
        }
        let exec = self.outbox.whose(&self.id, mark).await.ok_or(Unattributed)?;
        let mut marks = self.marks();
        if marks.len() >= GENERATION {
            marks.clear();
        }
        marks.insert(mark, exec);
        Ok(Some(exec))
    }

    /// A place for a connection whose TLS is opened, if there is one.
    pub(super) fn opened_room(&self) -> Option<Arc<Room>> {
        self.rooms.take(&self.id).map(Arc::new)
    }

    /// Room for a request inside opened TLS. One that finds none is counted among those who were turned away.
    pub(super) fn room_for_request(&self) -> Option<OwnedSemaphorePermit> {
        let room = self.under_way.clone().try_acquire_owned().ok();
        if room.is_none() {
            self.turned_away[2].fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    /// Waits for a place for a body that is read whole.
    pub(super) async fn room_for_body(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        let [own, all] = self.bodies.clone();
        // In this order, so that nobody holds a place of all while it waits for its own.
        let own = own.acquire_owned().await.ok()?;
        Some([own, all.acquire_owned().await.ok()?])
    }

    /// Counts one of many that were turned away, which are told together: nobody is to fill the list with them.
    pub(super) fn turned_away(&self, reached: Reached) {
        self.turned_away[usize::from(reached.is_tenants())].fetch_add(1, Ordering::Relaxed);
    }

    /// What there is to tell of those.
    pub(super) fn tell_turned_away(self: &Arc<Self>) -> Vec<Word> {
        let told = self.turned_away.iter().zip(TOLD_TOGETHER).filter_map(|(count, (reason, of_what))| {
            let count = count.swap(0, Ordering::Relaxed);
            if count == 0 {
                return None;
            }
            let what = format!("{count} {of_what} within a second");
            let trip = self.trip(None, FlowKind::Tcp, "*".into(), None);
            let (sandbox, number) = (self.id.clone(), trip.number);
            let flow = Box::new(trip.refused(&denied(what, reason)));
            Some(Word::Flow { sandbox, trip: number, flow })
        });
        told.collect()
    }

    /// The addresses of a name that may be known.
    pub(super) async fn look_up(&self, name: &HostName) -> Result<Vec<IpAddr>, NoAddress> {
        if name.as_str() == GATEWAY_NAME {
            // It has no address, and needs none.
            return Ok(Vec::new());
        }
        self.resolver.look_up(name, &self.asking).await
    }

    /// Why something is refused, once the recording that it would be missing from has ended before its time.
    pub(super) fn is_unrecorded(&self, what: &str) -> Option<Denied> {
        let why = self.recorder.as_ref()?.ended()?;
        Some(recording_ended(what, &why))
    }

    /// The same, as soon as that is so.
    pub(super) async fn unrecorded(&self, what: &str) -> Denied {
        match &self.recorder {
            Some(recorder) => recording_ended(what, &recorder.ends().await),
            None => std::future::pending().await,
        }
    }

    /// Tells that its recording has ended before its time, when that is so.
    pub(super) async fn tell_of_recording(self: Arc<Self>) {
        let Some(recorder) = &self.recorder else { return };
        let why = recorder.ends().await;
        let trip = self.trip(None, FlowKind::Tcp, "*".into(), None);
        trip.failed(format!("the recording ended: {why}")).await;
    }

    pub(super) async fn say(&self, word: Word) {
        self.outbox.say(word).await;
    }

    /// Begins to write down something.
    pub(super) fn trip(
        self: &Arc<Self>,
        exec: Option<ExecId>,
        kind: FlowKind,
        host: String,
        port: Option<u16>,
    ) -> Trip {
        let flow = Flow {
            seq: 0,
            time_ms: now_ms(),
            exec,
            // The supervisor knows, and says so.
            purpose: Purpose::default(),
            owner: None,
            kind,
            host,
            port,
            request: None,
            address: None,
            verdict: Verdict::Allowed,
            rule: None,
            sent: 0,
            received: 0,
            cached: 0,
            duration_us: 0,
        };
        let number = self.outbox.next_number();
        Trip { served: self.clone(), number, flow, began: Instant::now() }
    }
}

/// Nobody can tell which execution it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unattributed;

/// Something that is under way, to be written down at its end.
#[derive(Debug)]
pub(super) struct Trip {
    served: Arc<Served>,
    number: u64,
    pub(super) flow: Flow,
    began: Instant,
}

impl Trip {
    pub(super) fn allowed_by(&mut self, allowed: &Allowed) {
        self.flow.rule = allowed.rule.as_ref().map(ToString::to_string);
    }

    /// Says that it begins; to be done before anything goes through.
    pub(super) async fn begin(&self) {
        self.served.say(self.begun()).await;
    }

    /// What is said when it begins.
    pub(super) fn begun(&self) -> Word {
        let (sandbox, flow) = (self.served.id.clone(), Box::new(self.flow.clone()));
        Word::Began { sandbox, trip: self.number, flow }
    }

    /// Says that it is told in other words.
    pub(super) async fn told(self) {
        self.served.say(Word::Told { sandbox: self.served.id.clone(), trip: self.number }).await;
    }

    /// Writes down how it ended.
    pub(super) async fn end(mut self, verdict: Verdict) {
        self.flow.verdict = verdict;
        self.flow.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let served = self.served.clone();
        let (sandbox, flow) = (served.id.clone(), Box::new(self.flow));
        served.say(Word::Flow { sandbox, trip: self.number, flow }).await;
    }

    /// Writes down that it was denied; to be done before whoever asked can know.
    pub(super) async fn denied(self, denied: &Denied) {
        let (served, number, began) = (self.served.clone(), self.number, self.began);
        let flow = self.refused(denied);
        let verdict = flow.verdict.clone();
        Trip { served, number, flow, began }.end(verdict).await;
    }

    fn refused(mut self, denied: &Denied) -> Flow {
        self.flow.rule = denied.rule.as_ref().map(ToString::to_string);
        self.flow.verdict = Verdict::Denied {
            reason: denied.reason.as_str().to_owned(),
            what: denied.what.clone(),
            how_to_grant: denied.how_to_grant.clone(),
        };
        self.flow
    }

    pub(super) async fn failed(self, error: impl ToString) {
        self.end(Verdict::Failed { error: error.to_string() }).await;
    }
}

fn recording_ended(what: &str, why: &str) -> Denied {
    let how_to_grant = format!(
        "The recording ended: {why}. The sandbox's owner can make another, with more room (`--record-max`)."
    );
    Denied { what: what.to_owned(), reason: Reason::RecordingEnded, rule: None, how_to_grant }
}

/// Why what was asked for is refused that no rule is about.
pub(super) fn denied(what: String, reason: Reason) -> Denied {
    let how_to_grant = match reason {
        Reason::Forgotten => "Look the name up again, and connect to the address that it has now.",
        Reason::TooManyConnections => {
            "Close connections that are not needed, or have the sandbox's owner raise the limit `connections`."
        }
        Reason::TooManyRequests => {
            "Ask less often, or have the sandbox's owner raise the limit `requests_per_second`."
        }
        Reason::VolumeUsedUp => "The sandbox's owner can raise the limit `total_bytes`.",
        Reason::TenantTooManyConnections => {
            "Close connections that are not needed, in any of the tenant's sandboxes, or have whoever runs the engine raise \
             `connections` of the tenant (`belljar engine --tenants`)."
        }
        Reason::TenantTooManyRequests => {
            "Ask less often, in all of the tenant's sandboxes, or have whoever runs the engine raise `requests_per_second` of the \
             tenant (`belljar engine --tenants`)."
        }
        Reason::TenantVolumeUsedUp => {
            "Wait for the next day (UTC), or have whoever runs the engine raise `total_bytes` of the tenant \
             (`belljar engine --tenants`)."
        }
        Reason::NoRoom => "Wait until something that is under way has ended, and ask again.",
        Reason::NotRecorded => {
            "Only what was asked when the recording was made can be asked again. Its owner can record it anew, or have requests known \
             again by less (`--match`, `--ignore`)."
        }
        Reason::Malformed => "Send plain, well-formed HTTP/1.1 or TLS.",
        _ => "Ask from a process of an execution.",
    };
    Denied { what, reason, rule: None, how_to_grant: how_to_grant.into() }
}

impl From<Reached> for Reason {
    fn from(reached: Reached) -> Self {
        match reached {
            Reached::Connections => Self::TooManyConnections,
            Reached::Requests => Self::TooManyRequests,
            Reached::Total => Self::VolumeUsedUp,
            Reached::TenantConnections => Self::TenantTooManyConnections,
            Reached::TenantRequests => Self::TenantTooManyRequests,
            Reached::TenantTotal => Self::TenantVolumeUsedUp,
        }
    }
}
