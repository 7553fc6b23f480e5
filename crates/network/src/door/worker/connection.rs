//! One connection: whose it is, where it leads, whether it may, and then its bytes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::{ExecId, FlowKind, HostName, NetworkPolicy, Verdict};
use belljar_jail::arrival;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::cache::Cache;
use super::dial::{Peer, Width, dial};
use super::first::{First, Opening, first_words};
use super::http::{Requests, refusal};
use super::limits::{Place, Way};
use super::opened::{self, Counts};
use super::relay::{Broken, Pieces, Tally, send};
use super::served::{Served, Trip, denied};
use super::tape::{Conversation, Recorder};
use super::{dns, lingerless, replay};
use crate::authority::Opener;
use crate::client_hello::ClientHello;
use crate::http::Head;
use crate::policy::{Allowed, Denied, Destination, Look, Reason, Request, decide};
use crate::recording;

/// A connection on which nothing moves for as long is closed.
pub(super) const IDLE: Duration = Duration::from_secs(900);
/// The same where one side has no more to say.
const HALF_IDLE: Duration = Duration::from_secs(60);
/// How long a client that is refused may take to say in which language.
const LANGUAGE: Duration = Duration::from_millis(500);
/// How long it may take to hear the refusal.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long a client may be silent until it is clear that the other side begins, where that matters.
const SILENCE: Duration = Duration::from_secs(1);
/// Where clients have the first word.
const HTTP_PORTS: [u16; 4] = [80, 443, 8080, 8443];

/// The policy as it is now, and as it will be.
pub(super) type Policies = watch::Receiver<Option<Arc<NetworkPolicy>>>;

/// Why a connection ends before its time.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is refused, before anything of it went through.
    Denied(Denied),
    /// It is refused in the middle, where no word would be understood.
    Cut(Denied),
    /// It broke.
    Io(io::Error),
    /// Nothing moved.
    Idle,
    /// The sandbox has ended.
    Over,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Denied> for Stop {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl Stop {
    pub(super) fn from_broken(broken: Broken, what: &str) -> Self {
        match broken {
            Broken::Io(error) => Self::Io(error),
            Broken::Limit(reached) => Self::Cut(denied(what.to_owned(), reached.into())),
        }
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(served: Arc<Served>, client: TcpStream) {
    let Ok(meant) = client.local_addr() else { return };
    let Ok(mark) = arrival::mark(client.as_fd()) else { return lingerless(&client) };
    let place = served.limits.connection();
    if let Err(reached) = place
        && !served.limits.try_request()
    {
        // It has no place to wait in, and not even one on the list.
        served.turned_away(reached);
        return lingerless(&client);
    }
    let exec = served.whose(mark).await;
    let host = served.destination(meant.ip());
    let name = host.as_ref().map_or_else(|_| meant.ip().to_string(), ToString::to_string);
    let trip = served.trip(exec.ok().flatten(), FlowKind::Tcp, name.clone(), Some(meant.port()));
    let what = format!("a connection to {name} port {}", meant.port());
    let place = match place {
        Ok(place) => place,
        Err(reached) => {
            trip.denied(&denied(what, reached.into())).await;
            return lingerless(&client);
        }
    };
    if meant.port() == belljar_jail::doorway::DNS_PORT {
        return dns::serve_stream(&served, exec, client, place).await;
    }
    match served.limits.request().await {
        Ok(()) => {}
        Err(reached) if reached.is_haste() => {
            served.turned_away(reached);
            return lingerless(&client);
        }
        Err(reached) => return turn_away(&client, trip, &denied(what, reached.into())).await,
    }
    let (exec, destination) = match (exec, host) {
        (Ok(exec), Ok(destination)) => (exec, destination),
        (Err(_), _) => return turn_away(&client, trip, &denied(what, Reason::Unattributed)).await,
        (_, Err(_)) => return turn_away(&client, trip, &denied(what, Reason::Forgotten)).await,
    };
    if let Some(unrecorded) = served.is_unrecorded(&what) {
        return turn_away(&client, trip, &unrecorded).await;
    }
    let policies = served.policy();
    let Some(policy) = policies.borrow().clone() else { return lingerless(&client) };
    if served.replay.is_some() {
        let allowed = Allowed::recorded(destination, meant.port());
        let connection = Connection { served, client, exec, meant, allowed, policies, what, _place: place };
        return replay::serve(&Arc::new(connection), trip).await;
    }
    match decide::connect(&policy, &destination, meant.port()) {
        Ok(allowed) => {
            let connection =
                Connection { served, client, exec, meant, allowed, policies, what, _place: place };
            Arc::new(connection).go(&policy, trip).await;
        }
        Err(denied) => turn_away(&client, trip, &denied).await,
    }
}

/// Refuses a connection of which nothing has been read, in its own language if it has one.
async fn turn_away(client: &TcpStream, trip: Trip, denied: &Denied) {
    let exec = trip.flow.exec;
    trip.denied(denied).await;
    let mut opening = Opening::default();
    let first = tokio::time::timeout(LANGUAGE, first_words(client, &mut opening)).await;
    match first {
        Ok(Ok(First::Http)) => answer(client, &refusal(denied, exec)).await,
        Ok(Ok(First::Tls(_) | First::BadTls(_))) => answer(client, ACCESS_DENIED).await,
        _ => lingerless(client),
    }
}

/// A fatal alert of TLS: access denied.
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// Says a last word, and waits a moment for the client to take it: closing with unread bytes would take it back.
async fn answer(client: &TcpStream, word: &[u8]) {
    let said = async {
        send(client, word).await?;
        rustix::net::shutdown(client, rustix::net::Shutdown::Write)?;
        while !super::relay::receive(client, 64 * 1024).await?.is_empty() {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LAST_WORDS, said).await;
}

/// A connection that may be made.
pub(super) struct Connection {
    pub(super) served: Arc<Served>,
    pub(super) client: TcpStream,
    pub(super) exec: Option<ExecId>,
    meant: SocketAddr,
    pub(super) allowed: Allowed,
    pub(super) policies: Policies,
    pub(super) what: String,
    _place: Place,
}

/// By what a client that is looked into is opened, if it speaks TLS, and for which name.
type ToOpen<'a> = (Option<&'a Opener>, Option<HostName>);

/// In which language a refusal is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Language {
    #[default]
    Unknown,
    Tls,
    Http,
}

/// What is known of the bytes that a client sends.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    language: Language,
    /// What a client that speaks TLS asked for.
    hello: Option<ClientHello>,
    /// Whether that TLS is opened.
    is_opened: bool,
    /// The last request of one that speaks HTTP.
    request: Option<(Destination, u16, String, String)>,
}

impl Seen {
    fn get(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn language(&self) -> Language {
        self.get().language
    }

    /// Takes note that TLS is opened, and answers the name that was asked for.
    fn opened(&self) -> Option<HostName> {
        let mut known = self.get();
        known.is_opened = true;
        known.hello.as_ref().and_then(|hello| hello.sni.clone())
    }

    /// Takes note of a request that may be made.
    pub(super) fn request(&self, head: &Head) {
        self.get().request = Some((head.host.clone(), head.port, head.method.clone(), head.target.clone()));
    }
}

impl Connection {
    async fn go(self: Arc<Self>, policy: &Arc<NetworkPolicy>, mut trip: Trip) {
        trip.allowed_by(&self.allowed);
        let (sent, received) = (Tally::default(), Tally::default());
        let seen = Seen::default();
        let mut requests = Requests::new(&self, &seen, &sent, &received);
        let mut opening = Opening::default();
        let opened = Arc::new(Counts::default());
        let mut begun = self.begin(policy, &seen, &mut opening).await;
        if let Ok(None) = begun {
            let going = (&mut requests, &mut opening);
            begun = self.try_go(policy, &mut trip, &seen, going, (&sent, &received)).await;
        }
        let outcome = match begun {
            Ok(None) => Ok(()),
            Ok(Some((opener, name))) => self.go_opened(opener, (opening.bytes, name), &opened).await,
            Err(stop) => Err(stop),
        };
        let exec = self.exec;
        let is_cut = matches!(outcome, Err(Stop::Denied(_) | Stop::Cut(_)));
        if opened.requests() > 0 && !is_cut {
            // What was asked for was written down by request.
            if outcome.is_err() {
                lingerless(&self.client);
            }
            return trip.told().await;
        }
        match requests.into_last() {
            // The same in plain HTTP, but for the last.
            Some(last) => std::mem::replace(&mut trip, last).told().await,
            None => {
                (trip.flow.sent, trip.flow.received) = (sent.get(), received.get());
                // What was asked inside TLS is told by request.
                if opened.requests() == 0 {
                    trip.flow.sent += opened.sent.get();
                    trip.flow.received += opened.received.get();
                }
                if seen.language() == Language::Tls {
                    trip.flow.kind = FlowKind::Tls;
                }
            }
        }
        match outcome {
            Ok(()) => trip.end(Verdict::Allowed).await,
            Err(Stop::Over) => {
                trip.end(Verdict::Allowed).await;
                lingerless(&self.client);
            }
            Err(Stop::Idle) => {
                trip.failed("nothing moved for too long").await;
                lingerless(&self.client);
            }
            Err(Stop::Io(error)) => {
                trip.failed(error).await;
                lingerless(&self.client);
            }
            Err(Stop::Cut(denied)) => {
                trip.denied(&denied).await;
                lingerless(&self.client);
            }
            Err(Stop::Denied(denied)) => {
                trip.denied(&denied).await;
                match seen.language() {
                    Language::Http => answer(&self.client, &refusal(&denied, exec)).await,
                    Language::Tls if sent.get() == 0 && opened.requests() == 0 => {
                        answer(&self.client, ACCESS_DENIED).await
                    }
                    Language::Tls | Language::Unknown => lingerless(&self.client),
                }
            }
        }
    }

    /// Serves one whose requests are looked at, for as long as there is room for it.
    async fn go_opened(
        self: &Arc<Self>,
        opener: Option<&Opener>,
        first: (Vec<u8>, Option<HostName>),
        counts: &Arc<Counts>,
    ) -> Result<(), Stop> {
        let Some(room) = self.served.opened_room() else {
            return Err(denied(self.what.clone(), Reason::NoRoom).into());
        };
        tokio::select! {
            served = opened::serve(self, opener, first, (counts, &room)) => served,
            () = room.given_up() => {
                Err(io::Error::other("nothing was asked on it, and its place went to another").into())
            }
        }
    }

    /// Where only some requests are allowed, or all are recorded or looked for in the cache, reads the first words. Where it is HTTP that is
    /// looked into, says so.
    async fn begin(
        &self,
        policy: &NetworkPolicy,
        seen: &Seen,
        opening: &mut Opening,
    ) -> Result<Option<ToOpen<'_>>, Stop> {
        if self.allowed.look == Look::Any && !(self.is_looked_into() && self.has_first_words().await) {
            return Ok(None);
        }
        self.open(policy, seen, opening).await?;
        self.to_open(seen)
    }

    /// Whether its requests are recorded, or looked for in the cache.
    fn is_looked_into(&self) -> bool {
        let is_kept = |cache: &Arc<Cache>| cache.is_about(&self.allowed.destination, self.allowed.port);
        self.served.recorder.is_some() || self.served.cache.as_ref().is_some_and(is_kept)
    }

    /// By what the first words show that are looked into: whether it is to be opened.
    fn to_open(&self, seen: &Seen) -> Result<Option<ToOpen<'_>>, Stop> {
        let is_any = self.allowed.look == Look::Any;
        let is_closed =
            |recorder: &Arc<Recorder>| recorder.is_closed(&self.allowed.destination, self.allowed.port);
        match seen.language() {
            Language::Http if self.is_looked_into() => {
                seen.opened();
                Ok(Some((None, None)))
            }
            Language::Http => Ok(None),
            Language::Tls if is_any && self.served.recorder.as_ref().is_some_and(is_closed) => Ok(None),
            Language::Tls => match &self.served.opener {
                Some(opener) => Ok(Some((Some(opener), seen.opened()))),
                None => Err(decide::unseen(&self.allowed).into()),
            },
            Language::Unknown if is_any => Ok(None),
            Language::Unknown => Err(denied(self.what.clone(), Reason::Malformed).into()),
        }
    }

    /// Whether the client has the first word. On ports of HTTP it may take its time; on others there are hosts that begin.
    async fn has_first_words(&self) -> bool {
        if HTTP_PORTS.contains(&self.allowed.port) {
            return true;
        }
        tokio::time::timeout(SILENCE, self.client.peek(&mut [0])).await.is_ok()
    }

    /// Passes on what either side says. Where it shows late that it is HTTP that is looked into, and the host has said nothing, nothing
    /// was passed on.
    async fn try_go<'a>(
        &'a self,
        policy: &Arc<NetworkPolicy>,
        trip: &mut Trip,
        seen: &Seen,
        (requests, opening): (&mut Requests<'a>, &mut Opening),
        (sent, received): (&Tally, &'a Tally),
    ) -> Result<Option<ToOpen<'a>>, Stop> {
        // Where only some requests are allowed nothing is dialled before one was.
        let dialled_for = match self.allowed.look {
            Look::Any => self.allowed.clone(),
            Look::Requests => requests.first(opening).await?,
        };
        let mut policies = self.policies.clone();
        let mut policy = policy.clone();
        let (upstream, peer) = loop {
            tokio::select! {
                biased;
                _ = policies.changed() => {
                    policy = policies.borrow_and_update().clone().ok_or(Stop::Over)?;
                    self.judge_before(&policy, seen)?;
                }
                dialled = dial((&self.served, self.exec), &policy, &dialled_for) => break dialled?,
            }
        };
        let _ = self.client.set_nodelay(true);
        trip.flow.address = peer.address();
        trip.begin().await;
        let width = Width::new(&self.served.room, &upstream);
        let limits = &*self.served.limits;
        let tape = self.served.recorder.as_ref().map(|recorder| {
            let host = self.allowed.destination.to_string();
            Conversation::new(recorder.clone(), self.exec, &host, self.allowed.port)
        });
        let up = async {
            if self.allowed.look == Look::Any && opening.bytes.is_empty() {
                self.open(&*self.policy()?, seen, opening).await?;
                if let Some(tape) = tape.as_ref().filter(|tape| tape.is_silent())
                    && let Some(to_open) = self.to_open(seen)?
                {
                    tape.forget();
                    return Ok(Some(to_open));
                }
            }
            if seen.language() == Language::Http {
                let to = (&upstream, tape.as_ref());
                return requests.pass(opening, to, (peer, &width)).await.map(|()| None);
            }
            let first = std::mem::take(&mut opening.bytes);
            if let (Some(tape), false) = (&tape, first.is_empty()) {
                tape.hear(recording::Way::Out)?;
                tape.say(recording::Way::Out, first.clone()).await;
            }
            send(&upstream, &first).await?;
            sent.add(first.len() as u64);
            let broken = |broken| Stop::from_broken(broken, &self.what);
            limits.passed(Way::Out, first.len() as u64).await.map_err(|reached| broken(reached.into()))?;
            drop(first);
            Pieces::new(&self.client, &upstream, &width)
                .taped(tape.as_ref(), recording::Way::Out)
                .pass(sent, (limits, Way::Out))
                .await
                .map(|()| None)
                .map_err(broken)
        };
        let down = async {
            let broken = |broken| Stop::from_broken(broken, &self.what);
            Pieces::new(&upstream, &self.client, &width)
                .taped(tape.as_ref(), recording::Way::In)
                .pass(received, (limits, Way::In))
                .await
                .map_err(broken)
        };
        let (mut up, mut down) = (pin!(up), pin!(down));
        let (mut sending, mut receiving, mut moved) = (true, true, 0);
        while sending || receiving {
            tokio::select! {
                // What the policy says now comes before anything that is sent.
                biased;
                _ = policies.changed() => {
                    let policy = policies.borrow_and_update().clone().ok_or(Stop::Over)?;
                    self.judge_again(&policy, seen, peer).map_err(Stop::Cut)?;
                }
                unrecorded = self.served.unrecorded(&self.what) => return Err(Stop::Cut(unrecorded)),
                ended = &mut up, if sending => match ended? {
                    None => sending = false,
                    to_open => return Ok(to_open),
                },
                ended = &mut down, if receiving => { ended?; receiving = false; }
                // Whoever has no more to say may be gone altogether, which shows when it is told something.
                _ = self.client.ready(Interest::ERROR), if !sending => break,
                _ = upstream.ready(Interest::ERROR), if !receiving => break,
                () = tokio::time::sleep(if sending && receiving { IDLE } else { HALF_IDLE }) => {
                    let now = sent.get() + received.get();
                    if now == moved {
                        return Err(Stop::Idle);
                    }
                    moved = now;
                }
            }
        }
        Ok(None)
    }

    pub(super) fn policy(&self) -> Result<Arc<NetworkPolicy>, Stop> {
        self.policies.borrow().clone().ok_or(Stop::Over)
    }

    /// Reads and judges the first words of the client.
    async fn open(&self, policy: &NetworkPolicy, seen: &Seen, opening: &mut Opening) -> Result<(), Stop> {
        match first_words(&self.client, opening).await? {
            First::Http => seen.get().language = Language::Http,
            First::Other => {}
            First::BadTls(bad) => {
                seen.get().language = Language::Tls;
                return Err(denied(format!("{}, on which {bad}", self.what), Reason::Malformed).into());
            }
            First::Tls(hello) => {
                seen.get().language = Language::Tls;
                decide::tls(policy, &self.allowed, hello.sni.as_ref())?;
                seen.get().hello = Some(hello);
            }
        }
        Ok(())
    }

    /// Whether it is still allowed, by the policy as it is now, to this address.
    fn judge_again(&self, policy: &NetworkPolicy, seen: &Seen, peer: Peer) -> Result<(), Denied> {
        let allowed = self.judge_before(policy, seen)?;
        if allowed.look == Look::Any || seen.get().request.is_some() {
            peer.judge(policy, &allowed)?;
        }
        Ok(())
    }

    /// The same while it has no address yet.
    fn judge_before(&self, policy: &NetworkPolicy, seen: &Seen) -> Result<Allowed, Denied> {
        let allowed = decide::connect(policy, &self.allowed.destination, self.meant.port())?;
        let known = seen.get();
        if allowed.look == Look::Requests && known.language != Language::Http && !known.is_opened {
            return Err(decide::unseen(&allowed));
        }
        if let Some(hello) = &known.hello {
            decide::tls(policy, &allowed, hello.sni.as_ref())?;
        }
        match &known.request {
            Some((host, port, method, target)) => {
                decide::request(policy, &allowed, Request { host, port: *port, method, target, tls: false })
            }
            None => Ok(allowed),
        }
    }
}
