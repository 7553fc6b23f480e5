//! Serving calls: whose token it is, what it may, within which budget; then on to the upstream with the key, and back without.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use belljar_core::{Call, HostName, SandboxId, Tenant, TokenRecord, plain_path};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tokio::time::Instant;

use super::answer::{Open, Reply, full, reply};
use super::body::{Members, mentions};
use super::budget::{Account, Spent};
use super::config::Config;
use super::customer::{Customer, Introduction, ROOM_EACH, TenantBudget, locked};
use super::headers::{credentials, is_dropped, is_encoded, is_same, without_credentials};
use super::kind::{CallKind, Kind};
use super::message::Visit;
use super::operation::{NotAllowed, Operation, Prepared, Sent};
use super::price::Prices;
use super::refusal::Cause;
use super::secret::Secret;
use super::token::{self, Worthless};
use super::upstream::{Answer, Client, Failed};
use super::usage::{Asked, Wire};
use crate::door::clock::now_ms;
use crate::policy::shortened;

/// The most tokens of a model that are set aside for a call whose bound is not known.
const UNBOUNDED_OUTPUT: u64 = 128_000;
/// How much of a refused request is read to its end, and for how long.
const MOST_UNREAD: u64 = 64 << 20;
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How much of bodies of all sandboxes is held at once, in kibibytes.
const ROOM: usize = 512 << 10;
/// How much of a body is read before there is room for all of it, and how long it may be silent.
const LITTLE: u64 = 128 << 10;
const SILENCE: Duration = Duration::from_secs(60);
/// A body that is longer is looked into while others are served.
const LONG_BODY: usize = 256 << 10;
/// How many long bodies are worked on at once.
const LONG_WORK: usize = 2;
/// Members by which a model is told to read what is not in the request. What is has at most as many tokens as bytes.
const KEPT_ELSEWHERE: [&str; 14] = [
    "previous_response_id",
    "conversation",
    "conversation_id",
    "prompt_id",
    "file_id",
    "file_ids",
    "file_url",
    "file_uri",
    "image_url",
    "url",
    "cached_content",
    "container",
    "thread_id",
    "vector_store_ids",
];

/// Hears of every call.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// It begins, and counts as this should nothing else be heard of it. Whether that is written down: else it must not begin.
    async fn began(&self, sandbox: &SandboxId, call: Call) -> bool;
    /// It is over.
    fn ended(&self, sandbox: &SandboxId, call: Call);
}

/// Everything the gateway knows.
pub struct Gateway {
    config: Config,
    secrets: BTreeMap<String, Result<Secret, String>>,
    client: Client,
    clients: Mutex<HashMap<SandboxId, Arc<Customer>>>,
    /// The accounts of tenants, which their sandboxes share.
    tenants: Mutex<HashMap<Tenant, Arc<Mutex<Account>>>>,
    ledger: Arc<dyn Ledger>,
    /// Places for work on long bodies, which takes several times as much memory as they do.
    long_work: Semaphore,
    /// Room for the bodies of all.
    room: Arc<Semaphore>,
}

impl Gateway {
    /// A gateway with its keys, which are got now.
    pub fn new(config: Config, client: Client, ledger: Arc<dyn Ledger>) -> Self {
        let secrets = config.secrets.iter().map(|(name, source)| (name.clone(), source.read())).collect();
        Self {
            config,
            secrets,
            client,
            clients: Mutex::default(),
            tenants: Mutex::default(),
            ledger,
            room: Arc::new(Semaphore::new(ROOM)),
            long_work: Semaphore::new(LONG_WORK),
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
        let tenant = introduction.tenant.clone().map(|tenant| self.account(tenant));
        let known = locked(&self.clients).get(&sandbox).cloned();
        match known {
            Some(customer) => {
                customer.set_tenant(tenant);
                customer.set_tokens(introduction.tokens);
            }
            None => {
                let customer = Customer::new(introduction, self.config.session_budget);
                customer.set_tenant(tenant);
                locked(&self.clients).insert(sandbox, Arc::new(customer));
            }
        }
    }

    /// The account of a tenant: of one that is known only the budget is taken, for the same reason.
    fn account(&self, tenant: TenantBudget) -> Arc<Mutex<Account>> {
        let TenantBudget { tenant, budget, day, spent } = tenant;
        let mut tenants = locked(&self.tenants);
        let account =
            tenants.entry(tenant).or_insert_with(|| Arc::new(Mutex::new(Account::daily(budget, spent, day))));
        locked(account).set_budget(budget);
        account.clone()
    }

    /// Takes these for the tokens of a sandbox from now on.
    pub fn set_tokens(&self, sandbox: &SandboxId, tokens: Vec<TokenRecord>) {
        let customer = locked(&self.clients).get(sandbox).cloned();
        if let Some(customer) = customer {
            customer.set_tokens(tokens);
        }
    }

    /// Has a call be heard of that is over.
    pub(super) fn tell(&self, sandbox: &SandboxId, call: Call) {
        self.ledger.ended(sandbox, call);
    }

    /// A sandbox has ended, and all its tokens with it.
    pub fn forget(&self, sandbox: &SandboxId) {
        locked(&self.clients).remove(sandbox);
    }

    /// Serves a connection of a sandbox to its end.
    pub(crate) async fn serve(self: Arc<Self>, visit: Visit, connection: UnixStream) {
        let served = hyper::service::service_fn(|request| {
            let (gateway, visit) = (self.clone(), visit.clone());
            async move { Ok::<_, Infallible>(gateway.call(visit, request).await) }
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        server.timer(TokioTimer::new()).max_buf_size(128 * 1024).max_headers(128);
        if let Err(error) = server.serve_connection(TokioIo::new(connection), served).await {
            tracing::debug!(sandbox = %visit.sandbox, %error, "a call broke");
        }
    }

    async fn call(
        self: Arc<Self>,
        Visit { sandbox, exec, host }: Visit,
        request: Request<Incoming>,
    ) -> Reply {
        let began = Instant::now();
        let path = request.uri().path();
        let told = Call {
            seq: 0,
            time_ms: now_ms(),
            request_id: request_id(),
            exec,
            token: None,
            operation: None,
            request: format!("{} {}", shortened(request.method().as_str()), shortened(path)),
            model: None,
            status: 0,
            error: None,
            refused: false,
            free: true,
            usage: None,
            is_final: false,
            nano_dollars: None,
            counted_tokens: 0,
            counted_nano_dollars: 0,
            duration_us: 0,
        };
        let mut open = Open {
            gateway: self.clone(),
            sandbox,
            told,
            began,
            aside: None,
            is_sent: false,
            is_unanswered: false,
            _place: None,
        };
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        let made = self.try_call(&mut open, host.as_ref(), &head, &mut body).await;
        if let Some(body) = body {
            // An answer is taken back where something is not read that was sent.
            let _ = tokio::time::timeout(LAST_WORDS, pass_over(body, MOST_UNREAD)).await;
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
        host: Option<&HostName>,
        head: &Parts,
        unread: &mut Option<Incoming>,
    ) -> Result<Made, Stop> {
        let plain = |cause| Stop::Refused(None, cause);
        let path = plain_path(head.uri.path())
            .ok_or_else(|| plain(malformed("belongs to a path that could be read in more than one way")))?;
        let found = self.found(host, &path);
        let wire = found.first().and_then(|(operation, _)| wire(operation.kind));
        let refused = |cause| Stop::Refused(wire, cause);
        let (given, query) = match host {
            Some(_) if wire == Some(Wire::Gemini) => (None, head.uri.query().and_then(without_credentials)),
            Some(_) => (None, head.uri.query().map(str::to_owned)),
            None => {
                credentials(&head.headers, head.uri.query(), wire == Some(Wire::Gemini)).map_err(refused)?
            }
        };
        let customer = locked(&self.clients).get(&open.sandbox).cloned();
        let customer = customer.ok_or_else(|| refused(Cause::BadToken))?;
        let record = {
            let tokens = locked(&customer.tokens);
            match host {
                // It is known whose it is, and asks as it would without a gateway.
                Some(host) => token::for_host(&tokens, host, now_ms()).cloned(),
                None => token::find(&tokens, given.as_deref(), now_ms()).cloned(),
            }
        };
        let record = record.map_err(|worthless| {
            refused(match worthless {
                Worthless::Missing | Worthless::Unknown => Cause::BadToken,
                Worthless::Expired => Cause::Expired,
            })
        })?;
        open.told.token = Some(record.id.clone());
        let method = head.method.as_str();
        let fitting = found.iter().filter_map(|(operation, below)| {
            let sent = Sent { method, path: below, query: query.as_deref() };
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
        let encoded = is_encoded(&head.headers);
        let length = unread.as_ref().and_then(|body| body.size_hint().exact());
        if matches!(head.method, Method::GET | Method::HEAD) && length != Some(0) {
            return Err(refused(malformed("belongs to a method that has none")));
        }
        if length.is_some_and(|length| length > operation.max_body) {
            return Err(refused(Cause::BodyTooLarge { most: operation.max_body }));
        }
        let gone = || refused(malformed("is gone"));
        // Until there is an answer.
        let mut room = Vec::new();
        let mut question = None;
        let (prepared, body) = if operation.reads_body(kind)
            && !matches!(head.method, Method::GET | Method::HEAD)
        {
            if encoded {
                return Err(refused(malformed("is compressed, and cannot be looked into")));
            }
            let body = unread.as_mut().ok_or_else(gone)?;
            let read = self.read(&customer, body, operation.max_body, &mut room);
            let whole = tokio::time::timeout(operation.timeout, read).await;
            let whole = whole.unwrap_or_else(|_| Err(malformed("did not come in time"))).map_err(refused)?;
            drop(unread.take());
            let prepare = || {
                let mut prepared =
                    operation.prepare(&sent, Some(&whole)).map_err(|wrong| cause(operation, wrong))?;
                let body = prepared.body.take().map_or(whole.clone(), |body| Bytes::from(body.into_bytes()));
                let model = wire.filter(|_| kind == CallKind::Model);
                let asked = model.map(|wire| asked(wire, &body)).transpose()?;
                // What it has the model read besides.
                let elsewhere = asked.is_some() && mentions(&body, &KEPT_ELSEWHERE);
                Ok((prepared, body, asked.map(|asked| (asked, elsewhere))))
            };
            // What takes long must not hold everybody up.
            let prepared = if whole.len() > LONG_BODY {
                let _place = self.long_work.acquire().await.map_err(|_| gone())?;
                block_in_place(prepare)
            } else {
                prepare()
            };
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
            (Outgoing::Whole(bytes), Some((asked, elsewhere))) => {
                let elsewhere = if *elsewhere { operation.max_input } else { 0 };
                let input = (bytes.len() as u64).saturating_add(elsewhere);
                most(&prepared, asked, input, prices.as_ref())
            }
            _ => Spent { requests: 1, ..Spent::default() },
        };
        // The body may have been long in coming.
        if !customer.has_good(&record.id, now_ms()) {
            return Err(refused(Cause::Expired));
        }
        if question.is_some() && prices.is_none() && customer.has_money(&record) {
            let problem = "has no price here, and there is a budget in dollars".into();
            return Err(refused(Cause::ParameterNotAllowed { name: "model".into(), problem }));
        }
        let (mut headers, keys) = self.headers(operation, &head.headers).map_err(refused)?;
        if let Outgoing::Whole(_) = body {
            // It was read as this, and must be by whoever gets it.
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        open.aside = Some(customer.set_aside(&record, most).map_err(refused)?);
        if !self.ledger.began(&open.sandbox, open.as_it_may_end(most)).await {
            return Err(refused(Cause::NotWritten));
        }
        open.told.free = false;
        open.is_sent = true;
        let answered = self.forward(operation, &head.method, &prepared.target, headers, body).await;
        drop(room);
        let response = answered.map_err(|failed| {
            // For whoever looks at it from outside.
            open.told.error = Some(shortened(&failed.to_string()));
            refused(unanswered(&failed, operation))
        })?;
        if !keys.is_empty() && is_encoded(response.headers()) {
            // A key could be in there, and nobody would see it.
            return Err(refused(Cause::UpstreamFailed {
                problem: "gave an answer that cannot be looked into",
            }));
        }
        let wire = wire.filter(|_| kind == CallKind::Model);
        Ok(Made { response, wire, prices, keys, timeout: operation.timeout })
    }

    /// Reads a body. After a little of it room is taken as it comes, twice as much each time: who only says that much will come, or is
    /// slow to say it, holds nobody up. Nobody waits for room who has some, so that no two wait for each other.
    async fn read(
        &self,
        customer: &Customer,
        body: &mut Incoming,
        most: u64,
        room: &mut Vec<OwnedSemaphorePermit>,
    ) -> Result<Bytes, Cause> {
        let little = hold(&customer.little, LITTLE).await?;
        let mut all = BytesMut::new();
        let mut held = LITTLE;
        while let Some(frame) = next_frame(body).await? {
            let Some(data) = frame.data_ref() else { continue };
            let length = (all.len() + data.len()) as u64;
            if length > most {
                return Err(Cause::BodyTooLarge { most });
            }
            while length > held {
                for room_of in [&customer.room, &self.room] {
                    room.push(hold_now(room_of, held)?);
                }
                held *= 2;
            }
            all.extend_from_slice(data);
        }
        if room.is_empty() {
            room.push(little);
        }
        Ok(all.freeze())
    }

    /// The operations that a request may mean, by its path below them: at the gateway itself, or at the host that it was sent to.
    fn found<'a>(&'a self, host: Option<&HostName>, path: &'a str) -> Vec<(&'a Operation, &'a str)> {
        let all = self.config.operations.values();
        let found = all.filter_map(|operation| {
            let below = match host {
                Some(_) if operation.host_in_place().as_ref() != host => None,
                Some(_) => operation.below_base(path),
                None => operation.below(path),
            };
            Some((operation, below?))
        });
        found.collect()
    }

    /// The headers that go to the upstream, and what of them must not come back.
    fn headers(&self, operation: &Operation, given: &HeaderMap) -> Result<(HeaderMap, Vec<String>), Cause> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            if !is_dropped(name.as_str())
                && operation.header.as_ref().is_none_or(|(own, _)| !is_same(name.as_str(), own))
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

/// What a call that reads so much may cost at most.
fn most(prepared: &Prepared, asked: &Asked, input: u64, prices: Option<&Prices>) -> Spent {
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

fn unanswered(failed: &Failed, operation: &Operation) -> Cause {
    match failed {
        Failed::Unreachable(..) => Cause::UpstreamUnreachable,
        Failed::Broken(..) => Cause::UpstreamFailed { problem: "broke off before it answered" },
        Failed::TooLong => Cause::BodyTooLarge { most: operation.max_body },
        Failed::Late(_) => Cause::UpstreamTimedOut { after: operation.timeout },
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

fn wire(kind: Kind) -> Option<Wire> {
    match kind {
        Kind::Anthropic => Some(Wire::AnthropicMessages),
        Kind::OpenaiChat => Some(Wire::OpenaiChat),
        Kind::OpenaiResponses => Some(Wire::OpenaiResponses),
        Kind::Gemini => Some(Wire::Gemini),
        Kind::BraveSearch | Kind::Git | Kind::Http => None,
    }
}

/// What names a call, and says nothing of others.
fn request_id() -> String {
    let mut random = [0; 12];
    // Without randomness there would be no tokens either.
    let _ = getrandom(&mut random, GetRandomFlags::empty());
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("bjr_{digits}")
}

/// Room for so much more of a body, if there is some now.
fn hold_now(room: &Arc<Semaphore>, size: u64) -> Result<OwnedSemaphorePermit, Cause> {
    let kibibytes = u32::try_from(size >> 10).unwrap_or(u32::MAX);
    let held = room.clone().try_acquire_many_owned(kibibytes);
    held.map_err(|_| Cause::RateExceeded { retry_after: Duration::from_secs(1) })
}

/// Waits for room for a body of this size, or for all that one sandbox may have.
async fn hold(room: &Arc<Semaphore>, size: u64) -> Result<OwnedSemaphorePermit, Cause> {
    let kibibytes = usize::try_from(size >> 10).unwrap_or(ROOM_EACH).clamp(1, ROOM_EACH);
    let permits = u32::try_from(kibibytes).unwrap_or(u32::MAX);
    room.clone().acquire_many_owned(permits).await.map_err(|_| malformed("has no room"))
}

/// The next of a body; nothing at its end.
async fn next_frame(body: &mut Incoming) -> Result<Option<Frame<Bytes>>, Cause> {
    match tokio::time::timeout(SILENCE, body.frame()).await {
        Ok(frame) => frame.transpose().map_err(|_| malformed("was cut off")),
        Err(_) => Err(malformed("did not come in time")),
    }
}

/// Reads what is left of a body, if it is not much.
async fn pass_over(mut body: Incoming, most: u64) {
    let mut length = 0;
    while let Ok(Some(frame)) = next_frame(&mut body).await {
        length += frame.data_ref().map_or(0, |data| data.len() as u64);
        if length > most {
            return;
        }
    }
}
