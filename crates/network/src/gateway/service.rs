//! Serving calls: whose token it is, what it may, within which budget; then on to the upstream with the key, and back without.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use belljar_core::{Call, ExecId, OperationName, SandboxId, TokenRecord, plain_path};
use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tokio::time::Instant;

use super::body::Members;
use super::budget::{Account, Spent};
use super::config::Config;
use super::kind::{CallKind, Kind};
use super::operation::{NotAllowed, Operation, Prepared, Sent};
use super::price::Prices;
use super::redact::Redactor;
use super::refusal::{Cause, Refusal};
use super::secret::Secret;
use super::token::{self, Worthless};
use super::upstream::{Answer, Client, Failed, Sending};
use super::usage::{Asked, Reader, Wire};
use crate::door::clock::now_ms;
use crate::policy::shortened;

/// The most tokens of a model that are set aside for a call whose bound is not known.
const UNBOUNDED_OUTPUT: u64 = 128_000;
/// How much of a refused request is read to its end, and for how long.
const MOST_UNREAD: u64 = 1 << 20;
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How much of bodies is held at once, in kibibytes: of one sandbox, and of all.
const ROOM_EACH: usize = 64 << 10;
const ROOM: usize = 512 << 10;
/// A body that is longer is looked into while others are served.
const LONG_BODY: usize = 256 << 10;
/// How many bytes of a request are at least one token, for what is set aside.
const BYTES_PER_TOKEN: u64 = 3;

/// What is sent back.
type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Hears of every call once it is over.
pub type Ledger = Box<dyn Fn(&SandboxId, Call) + Send + Sync>;

/// Everything the gateway knows.
pub struct Gateway {
    config: Config,
    secrets: BTreeMap<String, Result<Secret, String>>,
    client: Client,
    clients: Mutex<HashMap<SandboxId, Arc<Customer>>>,
    ledger: Ledger,
    /// Room for the bodies of all.
    room: Arc<Semaphore>,
    /// Numbers calls.
    calls: AtomicU64,
    /// What the numbers of this process begin with.
    epoch: u64,
}

/// A sandbox that may call.
struct Customer {
    tokens: Mutex<Vec<TokenRecord>>,
    accounts: Mutex<HashMap<String, Arc<Mutex<Account>>>>,
    session: Arc<Mutex<Account>>,
    uses: Mutex<HashMap<OperationName, Arc<Use>>>,
    /// Room for bodies that are read whole, in kibibytes.
    room: Arc<Semaphore>,
}

/// How an operation is used by one sandbox.
#[derive(Default)]
struct Use {
    open: AtomicU32,
    rate: Mutex<Option<(f64, Instant)>>,
}

/// A sandbox as it is introduced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Introduction {
    /// Its tokens.
    pub tokens: Vec<TokenRecord>,
    /// What was spent before with each of them, by its id.
    pub spent: BTreeMap<String, Spent>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gateway {
    /// A gateway with its keys, which are got now.
    pub fn new(config: Config, client: Client, ledger: Ledger) -> Self {
        let secrets = config.secrets.iter().map(|(name, source)| (name.clone(), source.read())).collect();
        Self {
            config,
            secrets,
            client,
            clients: Mutex::default(),
            ledger,
            room: Arc::new(Semaphore::new(ROOM)),
            calls: AtomicU64::new(0),
            epoch: now_ms(),
        }
    }

    /// Which keys could not be got, and why.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.secrets
            .iter()
            .filter_map(|(name, secret)| Some((name.as_str(), secret.as_ref().err()?.as_str())))
    }

    /// Serves a sandbox from now on. Of one that is served already only the tokens are taken: what calls that are being made have
    /// set aside is known here alone.
    pub fn introduce(&self, sandbox: SandboxId, introduction: Introduction) {
        if locked(&self.clients).contains_key(&sandbox) {
            return self.set_tokens(&sandbox, introduction.tokens);
        }
        let Introduction { tokens, spent } = introduction;
        let session = spent.values().copied().fold(Spent::default(), Spent::and);
        let accounts = tokens.iter().map(|record| {
            let before = spent.get(&record.id).copied().unwrap_or_default();
            (record.id.clone(), Arc::new(Mutex::new(Account::new(record.grant.budget, before))))
        });
        let customer = Customer {
            accounts: Mutex::new(accounts.collect()),
            tokens: Mutex::new(tokens),
            session: Arc::new(Mutex::new(Account::new(self.config.session_budget, session))),
            uses: Mutex::default(),
            room: Arc::new(Semaphore::new(ROOM_EACH)),
        };
        locked(&self.clients).insert(sandbox, Arc::new(customer));
    }

    /// Takes these for the tokens of a sandbox from now on.
    pub fn set_tokens(&self, sandbox: &SandboxId, tokens: Vec<TokenRecord>) {
        let Some(customer) = locked(&self.clients).get(sandbox).cloned() else { return };
        for record in &tokens {
            let mut accounts = locked(&customer.accounts);
            let new = || Arc::new(Mutex::new(Account::new(record.grant.budget, Spent::default())));
            locked(accounts.entry(record.id.clone()).or_insert_with(new)).set_budget(record.grant.budget);
        }
        *locked(&customer.tokens) = tokens;
    }

    /// A sandbox has ended, and all its tokens with it.
    pub fn forget(&self, sandbox: &SandboxId) {
        locked(&self.clients).remove(sandbox);
    }

    /// Serves a connection of a sandbox to its end.
    pub async fn serve(self: Arc<Self>, sandbox: SandboxId, exec: Option<ExecId>, connection: UnixStream) {
        let served = hyper::service::service_fn(|request| {
            let gateway = self.clone();
            let sandbox = sandbox.clone();
            async move { Ok::<_, Infallible>(gateway.call(sandbox, exec, request).await) }
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        server.timer(TokioTimer::new()).max_buf_size(128 * 1024).max_headers(128);
        if let Err(error) = server.serve_connection(TokioIo::new(connection), served).await {
            tracing::debug!(%sandbox, %error, "a call broke");
        }
    }

    async fn call(
        self: Arc<Self>,
        sandbox: SandboxId,
        exec: Option<ExecId>,
        request: Request<Incoming>,
    ) -> Reply {
        let began = Instant::now();
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path();
        let told = Call {
            seq: 0,
            time_ms: now_ms(),
            request_id: format!("bjr_{:x}_{number:x}", self.epoch),
            exec,
            token: None,
            operation: None,
            request: format!("{} {}", shortened(request.method().as_str()), shortened(path)),
            model: None,
            status: 0,
            error: None,
            refused: false,
            usage: None,
            is_final: false,
            nano_dollars: None,
            counted_tokens: 0,
            counted_nano_dollars: 0,
            duration_us: 0,
        };
        let mut open = Open { gateway: self.clone(), sandbox, told, began, aside: None, _place: None };
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        let made = self.try_call(&mut open, &head, &mut body).await;
        if let Some(body) = body {
            // An answer is taken back where something is not read that was sent.
            let _ = tokio::time::timeout(LAST_WORDS, whole(body, MOST_UNREAD)).await;
        }
        match made {
            Ok(Made { response, wire, prices, keys, timeout }) => {
                open.pass(response, (wire, prices), keys, timeout)
            }
            Err(Stop::Hello) => {
                open.told.status = 200;
                reply(StatusCode::OK, HeaderMap::new(), Bytes::new())
            }
            Err(Stop::Refused(wire, cause)) => open.refuse(wire, cause),
        }
    }

    async fn try_call(
        &self,
        open: &mut Open,
        head: &Parts,
        unread: &mut Option<Incoming>,
    ) -> Result<Made, Stop> {
        let plain = |cause| Stop::Refused(None, cause);
        let path = plain_path(head.uri.path())
            .ok_or_else(|| plain(malformed("belongs to a path that could be read in more than one way")))?;
        let mounted: Vec<&Operation> =
            self.config.operations.values().filter(|operation| operation.below(&path).is_some()).collect();
        let wire = mounted.first().and_then(|operation| wire(operation.kind));
        let refused = |cause| Stop::Refused(wire, cause);
        let (given, query) =
            credentials(&head.headers, head.uri.query(), wire == Some(Wire::Gemini)).map_err(refused)?;
        let customer = locked(&self.clients).get(&open.sandbox).cloned();
        let customer = customer.ok_or_else(|| refused(Cause::BadToken))?;
        let record = {
            let tokens = locked(&customer.tokens);
            token::find(&tokens, given.as_deref(), now_ms()).cloned()
        };
        let record = record.map_err(|worthless| {
            refused(match worthless {
                Worthless::Missing | Worthless::Unknown => Cause::BadToken,
                Worthless::Expired => Cause::Expired,
            })
        })?;
        open.told.token = Some(record.id.clone());
        let method = head.method.as_str();
        let fitting = mounted.iter().filter_map(|operation| {
            let sent = Sent { method, path: operation.below(&path)?, query: query.as_deref() };
            Some((*operation, sent, operation.call(&sent)?.0))
        });
        let mut fitting: Vec<_> = fitting.collect();
        let granted = |operation: &Operation| record.grant.operations.contains(&operation.name);
        let Some(at) = fitting.iter().position(|(operation, ..)| granted(operation)) else {
            let nearest = fitting.first().map(|(operation, ..)| operation.name.clone());
            open.told.operation = nearest;
            return Err(refused(Cause::OutOfScope));
        };
        let (operation, sent, kind) = fitting.swap_remove(at);
        let wire = self::wire(operation.kind);
        let refused = |cause| Stop::Refused(wire, cause);
        open.told.operation = Some(operation.name.clone());
        if kind == CallKind::Hello {
            return Err(Stop::Hello);
        }
        open._place = Some(customer.place(operation).map_err(refused)?);
        let encoded = head.headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity");
        let length = unread.as_ref().and_then(|body| body.size_hint().exact());
        if matches!(head.method, Method::GET | Method::HEAD) && length != Some(0) {
            return Err(refused(malformed("belongs to a method that has none")));
        }
        if length.is_some_and(|length| length > operation.max_body) {
            return Err(refused(Cause::BodyTooLarge { most: operation.max_body }));
        }
        let gone = || refused(malformed("is gone"));
        // Until there is an answer.
        let mut room: Option<[OwnedSemaphorePermit; 2]> = None;
        let mut question = None;
        let (prepared, body) = if operation.reads_body(kind)
            && !matches!(head.method, Method::GET | Method::HEAD)
        {
            if encoded {
                return Err(refused(malformed("is compressed, and cannot be looked into")));
            }
            let body = unread.take().ok_or_else(gone)?;
            // Its size is known, or may be the largest; all of it is had at once, so that nobody waits for one who waits.
            let size = length.unwrap_or(operation.max_body);
            let read = async {
                room = Some([hold(&customer.room, size).await?, hold(&self.room, size).await?]);
                whole(body, operation.max_body).await
            };
            let whole = tokio::time::timeout(operation.timeout, read).await;
            let whole = whole.unwrap_or_else(|_| Err(malformed("did not come in time"))).map_err(refused)?;
            let prepare = || {
                let mut prepared =
                    operation.prepare(&sent, Some(&whole)).map_err(|wrong| cause(operation, wrong))?;
                let body = prepared.body.take().map_or(whole.clone(), |body| Bytes::from(body.into_bytes()));
                let model = wire.filter(|_| kind == CallKind::Model);
                let asked = model.map(|wire| asked(wire, &body)).transpose()?;
                Ok((prepared, body, asked))
            };
            // What takes long must not hold everybody up.
            let prepared = if whole.len() > LONG_BODY { block_in_place(prepare) } else { prepare() };
            let (prepared, body, asked) = prepared.map_err(refused)?;
            question = asked;
            (prepared, Outgoing::Whole(body))
        } else {
            let prepared =
                operation.prepare(&sent, None).map_err(|wrong| refused(cause(operation, wrong)))?;
            (prepared, Outgoing::Passing(unread.take().ok_or_else(gone)?, operation.max_body))
        };
        open.told.model = prepared.model.as_deref().map(shortened);
        let prices = prepared.model.as_ref().and_then(|model| operation.prices.get(model)).cloned();
        let most = match (&body, &question) {
            (Outgoing::Whole(bytes), Some(asked)) => {
                most(&prepared, asked, bytes.len() as u64, prices.as_ref())
            }
            _ => Spent { requests: 1, ..Spent::default() },
        };
        if question.is_some() && prices.is_none() && customer.has_money(&record) {
            let problem = "has no price here, and there is a budget in dollars".into();
            return Err(refused(Cause::ParameterNotAllowed { name: "model".into(), problem }));
        }
        open.aside = Some(customer.set_aside(&record, most).map_err(refused)?);
        let (headers, keys) = self.headers(operation, &head.headers).map_err(refused)?;
        let answered = self.forward(operation, &head.method, &prepared.target, headers, body).await;
        drop(room);
        let response = answered.map_err(|failed| refused(unanswered(&failed, operation.timeout)))?;
        let encoding = response.headers().get(header::CONTENT_ENCODING);
        if !keys.is_empty() && encoding.is_some_and(|value| value != "identity") {
            // A key could be in there, and nobody would see it.
            return Err(refused(Cause::UpstreamUnreachable));
        }
        let wire = wire.filter(|_| kind == CallKind::Model);
        Ok(Made { response, wire, prices, keys, timeout: operation.timeout })
    }

    /// The headers that go to the upstream, and what of them must not come back.
    fn headers(&self, operation: &Operation, given: &HeaderMap) -> Result<(HeaderMap, Vec<String>), Cause> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            if !is_dropped(name.as_str())
                && operation.header.as_ref().is_none_or(|(own, _)| name != own.as_str())
            {
                headers.append(name.clone(), value.clone());
            }
        }
        let host = HeaderValue::try_from(operation.upstream.authority()).map_err(|_| Cause::SecretMissing)?;
        headers.insert(header::HOST, host);
        // What comes back is looked into.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let Some(name) = &operation.secret else { return Ok((headers, Vec::new())) };
        let secret = match self.secrets.get(name) {
            Some(Ok(secret)) => secret,
            _ => return Err(Cause::SecretMissing),
        };
        let (header, value) = match (&operation.header, &operation.user) {
            (Some((header, around)), _) => (header.clone(), around.replacen("{}", secret.expose(), 1)),
            (None, user) => {
                let user = user.as_deref().unwrap_or_default();
                let pair =
                    base64::engine::general_purpose::STANDARD.encode(format!("{user}:{}", secret.expose()));
                ("authorization".to_owned(), format!("Basic {pair}"))
            }
        };
        let mut keys = vec![secret.expose().to_owned()];
        if let Some(pair) = value.strip_prefix("Basic ") {
            keys.push(pair.to_owned());
        }
        let header = HeaderName::try_from(header).map_err(|_| Cause::SecretMissing)?;
        let mut value = HeaderValue::try_from(value).map_err(|_| Cause::SecretMissing)?;
        value.set_sensitive(true);
        headers.insert(header, value);
        Ok((headers, keys))
    }

    async fn forward(
        &self,
        operation: &Operation,
        method: &Method,
        target: &str,
        headers: HeaderMap,
        body: Outgoing,
    ) -> Result<Response<Answer>, Failed> {
        let wrong = || Failed::Broken(operation.upstream.authority(), "the target is not one".into());
        let body = match body {
            Outgoing::Whole(bytes) => full(bytes),
            Outgoing::Passing(body, most) => {
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                Limited::new(body, most).map_err(io::Error::other).boxed_unsync()
            }
        };
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.headers_mut() = headers;
        *request.uri_mut() = target.parse().map_err(|_| wrong())?;
        self.client.send(&operation.upstream, request, operation.timeout).await
    }
}

impl Customer {
    /// Whether an operation may be called once more now; the place is given back when this is dropped.
    fn place(&self, operation: &Operation) -> Result<Place, Cause> {
        let used = locked(&self.uses).entry(operation.name.clone()).or_default().clone();
        if let Some(most) = operation.requests_per_minute {
            let per_second = f64::from(most) / 60.0;
            let mut rate = locked(&used.rate);
            let now = Instant::now();
            let level = rate.map_or(f64::from(most), |(level, at)| {
                (level + now.duration_since(at).as_secs_f64() * per_second).min(f64::from(most))
            });
            if level < 1.0 {
                let retry_after = Duration::from_secs_f64((1.0 - level) / per_second);
                return Err(Cause::RateExceeded { retry_after });
            }
            *rate = Some((level - 1.0, now));
        }
        let most = operation.concurrent.unwrap_or(u32::MAX);
        let free = |open: u32| (open < most).then(|| open + 1);
        match used.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(_) => Ok(Place(used)),
            Err(_) => Err(Cause::RateExceeded { retry_after: Duration::from_secs(1) }),
        }
    }

    /// Whether a budget is in money.
    fn has_money(&self, record: &TokenRecord) -> bool {
        record.grant.budget.micro_dollars.is_some() || locked(&self.session).has_money()
    }

    /// Sets aside what a call may cost, of all budgets or of none.
    fn set_aside(&self, record: &TokenRecord, most: Spent) -> Result<Aside, Cause> {
        let own = locked(&self.accounts).get(&record.id).cloned();
        let named = [("token", own), ("session", Some(self.session.clone()))];
        let named: Vec<(&str, Arc<Mutex<Account>>)> =
            named.into_iter().filter_map(|(name, account)| Some((name, account?))).collect();
        // Always in this order, so that two calls do not wait for each other.
        let mut locks: Vec<(&str, MutexGuard<'_, Account>)> =
            named.iter().map(|(name, account)| (*name, locked(account))).collect();
        for (name, account) in &locks {
            account.check(most).map_err(|used_up| Cause::BudgetUsedUp {
                budget: format!("the {name}'s budget of {} {}", used_up.most, used_up.what),
            })?;
        }
        locks.iter_mut().for_each(|(_, account)| account.set_aside(most));
        drop(locks);
        Ok(Aside { accounts: named.into_iter().map(|(_, account)| account).collect(), most })
    }
}

/// A place among the open calls of an operation.
struct Place(Arc<Use>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is set aside for a call.
struct Aside {
    accounts: Vec<Arc<Mutex<Account>>>,
    most: Spent,
}

impl Aside {
    fn settle(self, cost: Spent) {
        for account in &self.accounts {
            locked(account).settle(self.most, cost);
        }
    }
}

/// What a call may cost at most.
fn most(prepared: &Prepared, asked: &Asked, length: u64, prices: Option<&Prices>) -> Spent {
    let input = length / BYTES_PER_TOKEN + 1;
    let output =
        prepared.max_output.or(asked.max_output).unwrap_or(UNBOUNDED_OUTPUT).saturating_mul(asked.answers);
    let nano_dollars = prices.and_then(|prices| prices.at_most(input, output)).map_or(0, |cost| cost.0);
    Spent { requests: 1, tokens: input.saturating_add(output), nano_dollars, unknown: 0 }
}

/// What a body asks of a model.
fn asked(wire: Wire, body: &[u8]) -> Result<Asked, Cause> {
    let members = Members::parse(body).map_err(|bad| malformed(&bad.to_string()))?;
    Asked::read(wire, members.texts())
        .map_err(|wrong| Cause::ParameterNotAllowed { name: wrong.member, problem: wrong.problem.to_owned() })
}

fn malformed(problem: &str) -> Cause {
    Cause::BodyMalformed { problem: problem.to_owned() }
}

/// Why an operation does not make a call, as it is said.
fn cause(operation: &Operation, wrong: NotAllowed) -> Cause {
    match wrong {
        NotAllowed::Call { .. } => Cause::OutOfScope,
        NotAllowed::Model { asked, .. } => Cause::ModelNotAllowed {
            asked: (!asked.is_empty()).then_some(asked),
            allowed: operation.models.clone(),
        },
        NotAllowed::Parameter(name) => {
            Cause::ParameterNotAllowed { name, problem: "is not one that this operation takes".into() }
        }
        NotAllowed::NotANumber(name) => {
            Cause::ParameterNotAllowed { name, problem: "is not a whole number".into() }
        }
        NotAllowed::Body(bad) => malformed(&bad.to_string()),
    }
}

fn unanswered(failed: &Failed, after: Duration) -> Cause {
    // Whoever is inside can have this said as often as it likes.
    tracing::debug!(%failed, "an upstream did not answer");
    match failed {
        Failed::Unreachable(..) | Failed::Broken(..) => Cause::UpstreamUnreachable,
        Failed::Late(_) => Cause::UpstreamTimedOut { after },
    }
}

/// A body on its way out.
enum Outgoing {
    Whole(Bytes),
    Passing(Incoming, u64),
}

/// A call that was made.
struct Made {
    response: Response<Answer>,
    wire: Option<Wire>,
    prices: Option<Prices>,
    keys: Vec<String>,
    timeout: Duration,
}

enum Stop {
    Hello,
    Refused(Option<Wire>, Cause),
}

/// A call that is open; it is told when this is dropped.
struct Open {
    gateway: Arc<Gateway>,
    sandbox: SandboxId,
    told: Call,
    began: Instant,
    aside: Option<Aside>,
    _place: Option<Place>,
}

impl Open {
    fn refuse(mut self, wire: Option<Wire>, cause: Cause) -> Reply {
        self.told.refused = !matches!(cause, Cause::UpstreamUnreachable | Cause::UpstreamTimedOut { .. });
        self.told.error = Some(cause.as_str().to_owned());
        let (what, request_id) = (self.told.request.clone(), self.told.request_id.clone());
        let answer = Refusal { what, cause, request_id }.answer(wire);
        self.told.status = answer.status;
        let mut headers = HeaderMap::new();
        for (name, value) in &answer.headers {
            if let Ok(value) = HeaderValue::try_from(value.as_str()) {
                headers.insert(*name, value);
            }
        }
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::FORBIDDEN);
        reply(status, headers, Bytes::from(answer.body))
    }

    /// Passes an answer on.
    fn pass(
        mut self,
        response: Response<Answer>,
        (wire, prices): (Option<Wire>, Option<Prices>),
        keys: Vec<String>,
        timeout: Duration,
    ) -> Reply {
        let (mut head, body) = response.into_parts();
        self.told.status = head.status.as_u16();
        let hop: Vec<HeaderName> =
            head.headers.keys().filter(|name| is_hop(name.as_str())).cloned().collect();
        for name in hop {
            head.headers.remove(name);
        }
        for value in head.headers.values_mut() {
            if let Some(clean) = without(value, &keys) {
                *value = clean;
            }
        }
        if let Ok(id) = HeaderValue::try_from(self.told.request_id.as_str()) {
            head.headers.insert("x-belljar-request-id", id);
        }
        // Its words for the status may be anything.
        head.extensions.clear();
        let reader = wire.map(Reader::new);
        let redactor = Redactor::new(keys.iter().map(String::as_str));
        let passing = Passing {
            body,
            redactor,
            reader,
            prices,
            late: Box::pin(tokio::time::sleep(timeout)),
            timeout,
            is_over: false,
            open: self,
        };
        Response::from_parts(head, passing.boxed_unsync())
    }

    /// Says what counts against budgets. Whoever breaks off before a provider has said what was used does not get it for nothing.
    fn count(&mut self, most: Spent) {
        let told = &mut self.told;
        if told.refused || told.status >= 400 {
            return;
        }
        let used = told.usage.map_or(0, |usage| usage.total());
        let paid = told.nano_dollars.unwrap_or(0);
        let known = told.is_final || told.model.is_none();
        told.counted_tokens = if known { used } else { used.max(most.tokens) };
        told.counted_nano_dollars = if known { paid } else { paid.max(most.nano_dollars) };
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(aside) = self.aside.take() {
            self.count(aside.most);
            aside.settle(Spent::of(&self.told));
        }
        self.told.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        (self.gateway.ledger)(&self.sandbox, self.told.clone());
    }
}

/// The body of an answer on its way in.
struct Passing {
    body: Answer,
    redactor: Redactor,
    /// Where a model was asked.
    reader: Option<Reader>,
    prices: Option<Prices>,
    late: Pin<Box<tokio::time::Sleep>>,
    timeout: Duration,
    is_over: bool,
    open: Open,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            let polled = Pin::new(&mut self.body).poll_frame(context);
            let Poll::Ready(frame) = polled else {
                if self.late.as_mut().poll(context).is_ready() {
                    self.is_over = true;
                    self.open.told.error = Some("the upstream said nothing for too long".into());
                    return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
                }
                return Poll::Pending;
            };
            let next = Instant::now() + self.timeout;
            self.late.as_mut().reset(next);
            let bytes = match frame {
                None => {
                    self.is_over = true;
                    let rest = self.redactor.finish();
                    if let Some(reader) = &mut self.reader {
                        reader.push(&rest);
                    }
                    rest
                }
                Some(Err(error)) => {
                    self.is_over = true;
                    self.open.told.error = Some(shortened(&format!("the upstream broke off: {error}")));
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let mut passed = self.redactor.pass(&data);
                        if self.body.is_end_stream() {
                            // Nobody asks for what comes after all that was announced.
                            self.is_over = true;
                            passed.extend(self.redactor.finish());
                        }
                        if let Some(reader) = &mut self.reader {
                            reader.push(&passed);
                        }
                        passed
                    }
                    // Trailers are nobody's business here.
                    Err(_) => Vec::new(),
                },
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(bytes)))));
            }
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let told = &mut self.open.told;
        let Some(reader) = &mut self.reader else {
            told.is_final = true;
            return;
        };
        if self.is_over && told.error.is_none() {
            reader.end();
        }
        let report = reader.report();
        told.usage = report.usage.usage();
        told.is_final = report.usage.is_final();
        let cost = self.prices.as_ref().and_then(|prices| prices.cost_of(&report));
        told.nano_dollars = cost.map(|cost| cost.0);
        if told.error.is_none() {
            told.error = report
                .error
                .as_ref()
                .map(|failure| shortened(&format!("{}: {}", failure.kind, failure.message)));
        }
        if told.error.is_none() && !self.is_over {
            told.error = Some("the caller broke off".into());
        }
    }
}

fn wire(kind: Kind) -> Option<Wire> {
    match kind {
        Kind::Anthropic => Some(Wire::AnthropicMessages),
        Kind::OpenaiChat => Some(Wire::OpenaiChat),
        Kind::OpenaiResponses => Some(Wire::OpenaiResponses),
        Kind::Gemini => Some(Wire::Gemini),
        Kind::BraveSearch | Kind::Git | Kind::Http => None,
    }
}

fn reply(status: StatusCode, headers: HeaderMap, body: Bytes) -> Reply {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn full(bytes: Bytes) -> Sending {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Waits for room for a body of this size, or for all that one sandbox may have.
async fn hold(room: &Arc<Semaphore>, size: u64) -> Result<OwnedSemaphorePermit, Cause> {
    let kibibytes = usize::try_from(size >> 10).unwrap_or(ROOM_EACH).clamp(1, ROOM_EACH);
    let permits = u32::try_from(kibibytes).unwrap_or(u32::MAX);
    room.clone().acquire_many_owned(permits).await.map_err(|_| malformed("has no room"))
}

/// A whole body, if it is not too long.
async fn whole(mut body: Incoming, most: u64) -> Result<Bytes, Cause> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| malformed("was cut off"))?;
        if let Some(data) = frame.data_ref() {
            if (all.len() + data.len()) as u64 > most {
                return Err(Cause::BodyTooLarge { most });
            }
            all.extend_from_slice(data);
        }
    }
    Ok(all.freeze())
}

/// Where tokens are looked for.
const TOKEN_HEADERS: [&str; 4] = ["x-api-key", "x-goog-api-key", "api-key", "x-subscription-token"];

/// The token of a request, and its query without it, where it may stand there. Whoever gives two different ones gives none.
fn credentials(
    headers: &HeaderMap,
    query: Option<&str>,
    in_query: bool,
) -> Result<(Option<String>, Option<String>), Cause> {
    let mut found: Vec<String> = Vec::new();
    let text =
        |value: &HeaderValue| value.to_str().map(|text| text.trim().to_owned()).map_err(|_| Cause::BadToken);
    for name in TOKEN_HEADERS {
        for value in headers.get_all(name) {
            found.push(text(value)?);
        }
    }
    for value in headers.get_all(header::AUTHORIZATION) {
        let value = text(value)?;
        let (scheme, rest) = value.split_once(' ').ok_or(Cause::BadToken)?;
        if scheme.eq_ignore_ascii_case("bearer") {
            found.push(rest.trim().to_owned());
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair =
                base64::engine::general_purpose::STANDARD.decode(rest.trim()).map_err(|_| Cause::BadToken)?;
            let pair = String::from_utf8(pair).map_err(|_| Cause::BadToken)?;
            found.push(pair.split_once(':').ok_or(Cause::BadToken)?.1.to_owned());
        } else {
            return Err(Cause::BadToken);
        }
    }
    let mut rest: Vec<&str> = Vec::new();
    for part in query.into_iter().flat_map(|query| query.split('&')) {
        match part.strip_prefix("key=").filter(|_| in_query) {
            Some(key) => found.push(key.to_owned()),
            None => rest.push(part),
        }
    }
    found.dedup();
    if found.len() > 1 {
        return Err(Cause::BadToken);
    }
    let rest = (!rest.is_empty()).then(|| rest.join("&"));
    Ok((found.pop(), rest))
}

/// Headers about one connection only.
const HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn is_hop(name: &str) -> bool {
    HOP.contains(&name)
}

/// Headers of a request that do not go on: about the connection, about who somebody is, and about ways.
fn is_dropped(name: &str) -> bool {
    is_hop(name)
        || TOKEN_HEADERS.contains(&name)
        || name.starts_with("x-forwarded-")
        || matches!(
            name,
            "host"
                | "content-length"
                | "authorization"
                | "cookie"
                | "forwarded"
                | "via"
                | "expect"
                | "accept-encoding"
                | "x-real-ip"
                | "range"
                | "if-range"
        )
}

/// A value without these keys, if it has one of them.
fn without(value: &HeaderValue, keys: &[String]) -> Option<HeaderValue> {
    let mut redactor = Redactor::new(keys.iter().map(String::as_str));
    let mut clean = redactor.pass(value.as_bytes());
    clean.extend(redactor.finish());
    (clean != value.as_bytes())
        .then(|| HeaderValue::from_bytes(&clean).unwrap_or(HeaderValue::from_static("")))
}
