//! One operation: which requests are it, what of them is let through, and what is made of them.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_core::{HostName, Method, OperationName, PathPattern, plain_path};
use serde_json::Value;

use super::body::{BadBody, Members};
use super::headers::name_of;
use super::kind::{CallKind, Kind};
use super::price::Prices;

/// Something that the gateway does for sandboxes that are granted it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its name.
    pub name: OperationName,
    /// What it speaks.
    pub kind: Kind,
    /// Where it leads.
    pub upstream: Upstream,
    /// Where clients find it.
    pub mount: String,
    /// The key it takes, by its name in the configuration.
    pub secret: Option<String>,
    /// The header in which the key goes, and the text around it.
    pub header: Option<(String, String)>,
    /// Whether what sandboxes ask of the upstream itself, by its own name, is made with the key as well.
    pub in_place: bool,
    /// The user in whose name the key is a password.
    pub user: Option<String>,
    /// The models that may be named; any where there are none.
    pub models: Vec<String>,
    /// Members of the body that are set, whatever the request says; null takes one away.
    pub pin: BTreeMap<String, Value>,
    /// Members that are numbers, and are lowered to these.
    pub at_most: BTreeMap<String, u64>,
    /// How much a model may say at most.
    pub max_output: Option<u64>,
    /// How much it may read at most that is not in the request itself.
    pub max_input: u64,
    /// The members that may be there; any where nothing is said.
    pub allow: Option<Vec<String>>,
    /// Members that may not be there.
    pub deny: Vec<String>,
    /// Whether requests may name tools that the provider runs itself, some of which reach addresses that the request names.
    pub hosted_tools: bool,
    /// The calls of a kind that lists them.
    pub methods: Vec<Method>,
    /// Their paths.
    pub paths: Vec<PathPattern>,
    /// Whether repositories may be written to.
    pub push: bool,
    /// What models cost.
    pub prices: BTreeMap<String, Prices>,
    /// How often it may be called in a minute, by one sandbox.
    pub requests_per_minute: Option<u32>,
    /// How many calls of one sandbox may be open.
    pub concurrent: Option<u32>,
    /// The longest body.
    pub max_body: u64,
    /// How long the upstream may say nothing.
    pub timeout: Duration,
}

/// Where an operation leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// The host's name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What is put before every path.
    pub base: String,
}

impl Upstream {
    /// Reads an address as people write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err("an upstream begins with `https://`".into()),
        };
        if rest.contains(['?', '#', '@']) {
            return Err("an upstream is a host and perhaps a path, without user, `?` or `#`".into());
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let base = path.trim_end_matches('/');
        if !base.is_empty() && plain_path(base).as_deref() != Some(base) {
            return Err(format!("the path `{base}` could be read in more than one way"));
        }
        let default = if tls { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            // The last colon may be in an address of version six.
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| format!("`{port}` is not a port"))?)
            }
            _ => (authority, default),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let fits = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                host.parse::<std::net::Ipv4Addr>().is_ok() || host.parse::<belljar_core::HostName>().is_ok()
            }
        };
        if !fits || port == 0 {
            return Err(format!("`{authority}` is not a host and a port"));
        }
        Ok(Self { tls, host: inner.unwrap_or(host).to_owned(), port, base: base.to_owned() })
    }

    /// Whether what is sent there stays on this machine.
    pub fn is_local(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The host as it stands in a request.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// A request as it was sent, below the mount.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path, in its one plain reading.
    pub path: &'a str,
    /// Its query, without the question mark.
    pub query: Option<&'a str>,
}

/// A call that may be made, as it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// What it is.
    pub kind: CallKind,
    /// Path and query at the upstream.
    pub target: String,
    /// The body, where it is not passed on as it was sent.
    pub body: Option<String>,
    /// The model that is asked.
    pub model: Option<String>,
    /// How much it may say at most, as far as that is known.
    pub max_output: Option<u64>,
}

/// Why a call is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// It is none of the operation's calls.
    #[error("`{method} {path}` is no call of the operation `{operation}`")]
    Call {
        /// Its method.
        method: String,
        /// Its path.
        path: String,
        /// The operation.
        operation: OperationName,
    },
    /// It names a model that is not listed.
    #[error("the model `{asked}` is not among those of this operation: {models}")]
    Model {
        /// What it asks for.
        asked: String,
        /// What it could ask for.
        models: String,
    },
    /// It names something that it may not.
    #[error("the parameter `{0}` is not allowed by this operation")]
    Parameter(String),
    /// A parameter is not what it should be.
    #[error("the parameter `{0}` is not a whole number")]
    NotANumber(String),
    /// Its body cannot be understood in one way.
    #[error(transparent)]
    Body(#[from] BadBody),
}

impl Operation {
    /// The host that sandboxes ask as if they had the key, if there is one.
    pub fn host_in_place(&self) -> Option<HostName> {
        self.in_place.then(|| self.upstream.host.parse().ok()).flatten()
    }

    /// What is left of a path at the upstream itself.
    pub fn below_base<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.upstream.base.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    /// What is left of a path below the mount of this operation.
    pub fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.mount.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    /// Which of the operation's calls this is.
    pub fn call<'a>(&self, sent: &Sent<'a>) -> Option<(CallKind, Option<&'a str>)> {
        match self.kind {
            Kind::Git => self.is_git(sent).then_some((CallKind::Other, None)),
            Kind::Http => {
                let method = self.methods.iter().any(|method| method.as_str() == sent.method);
                let path = self.paths.iter().any(|path| path.matches(sent.path));
                (method && path).then_some((CallKind::Other, None))
            }
            kind => kind.call(sent.method, sent.path),
        }
    }

    fn is_git(&self, sent: &Sent<'_>) -> bool {
        let services: &[&str] =
            if self.push { &["git-upload-pack", "git-receive-pack"] } else { &["git-upload-pack"] };
        let path = self.paths.iter().any(|path| path.matches(sent.path));
        let call = match (sent.method, sent.query) {
            ("GET", Some(query)) => {
                let service = query.strip_prefix("service=");
                sent.path.ends_with("/info/refs") && service.is_some_and(|name| services.contains(&name))
            }
            ("POST", None) => services
                .iter()
                .any(|service| sent.path.strip_suffix(service).is_some_and(|rest| rest.ends_with('/'))),
            _ => false,
        };
        path && call
    }

    /// Whether the body of this call is looked at, and so must be had whole.
    pub fn reads_body(&self, kind: CallKind) -> bool {
        kind == CallKind::Model
            || !(self.pin.is_empty()
                && self.at_most.is_empty()
                && self.deny.is_empty()
                && self.allow.is_none())
    }

    /// Makes of a request what is sent on, or refuses it.
    pub fn prepare(&self, sent: &Sent<'_>, body: Option<&[u8]>) -> Result<Prepared, NotAllowed> {
        let Some((kind, found)) = self.call(sent) else {
            return Err(NotAllowed::Call {
                method: sent.method.into(),
                path: sent.path.into(),
                operation: self.name.clone(),
            });
        };
        let mut path = sent.path.to_owned();
        let mut prepared =
            Prepared { kind, target: String::new(), body: None, model: None, max_output: None };
        // The model that Gemini is asked for stands in the path.
        if let (Kind::Gemini, Some(model)) = (self.kind, found) {
            let pinned = self.pin.get("model").and_then(Value::as_str);
            let asked = pinned.unwrap_or(model);
            let call = path.rsplit_once(':').map(|(_, call)| call);
            path = call.map_or_else(|| path.clone(), |call| format!("/v1beta/models/{asked}:{call}"));
            self.check_model(asked)?;
            prepared.model = Some(asked.to_owned());
        }
        if let Some(body) = body.filter(|_| self.reads_body(kind) && kind != CallKind::Hello) {
            let members = self.prepare_body(body, &mut prepared)?;
            prepared.body = Some(members.write());
        }
        if kind == CallKind::Model {
            let names = sent.query.into_iter().flat_map(|query| query.split('&')).map(name_of);
            if let Some(name) =
                names.into_iter().find(|name| name == "model" || ELSEWHERE.contains(&name.as_str()))
            {
                return Err(NotAllowed::Parameter(name));
            }
        }
        let query = sent.query.map(|query| format!("?{query}")).unwrap_or_default();
        prepared.target = format!("{}{path}{query}", self.upstream.base);
        Ok(prepared)
    }

    fn prepare_body(&self, body: &[u8], prepared: &mut Prepared) -> Result<Members, NotAllowed> {
        let mut members = Members::parse(body)?;
        if let Some(allow) = &self.allow {
            let other = members.names().find(|name| !allow.iter().any(|allowed| allowed == name));
            if let Some(name) = other {
                return Err(NotAllowed::Parameter(name.to_owned()));
            }
        }
        for name in &self.deny {
            if members.has(name)? {
                return Err(NotAllowed::Parameter(name.clone()));
            }
        }
        let pins = self.pin.iter().filter(|(name, _)| self.kind != Kind::Gemini || name.as_str() != "model");
        for (name, value) in pins {
            members.set(name, value)?;
        }
        for (name, most) in &self.at_most {
            bound(&mut members, name, *most)?;
        }
        if prepared.kind == CallKind::Model {
            for name in ELSEWHERE {
                if members.has(name)? {
                    return Err(NotAllowed::Parameter(name.into()));
                }
            }
            if !self.hosted_tools {
                self.take_out_tools(&mut members)?;
            }
            if self.kind != Kind::Gemini {
                let asked = members.get("model")?.and_then(|model| Some(model.as_str()?.to_owned()));
                let asked = asked.unwrap_or_default();
                self.check_model(&asked)?;
                prepared.model = Some(asked);
            }
            prepared.max_output = self.bound_output(&mut members)?;
            if self.kind == Kind::OpenaiChat && members.get("stream")? == Some(Value::Bool(true)) {
                // Else a stream does not say what it used.
                members.set("stream_options.include_usage", &Value::Bool(true))?;
            }
        }
        Ok(members)
    }

    fn check_model(&self, asked: &str) -> Result<(), NotAllowed> {
        if self.models.is_empty() || self.models.iter().any(|model| model == asked) {
            return Ok(());
        }
        Err(NotAllowed::Model { asked: asked.to_owned(), models: self.models.join(", ") })
    }

    /// Takes tools out that the provider runs itself: by them it would reach what the sandbox must not. Whoever offers them to a
    /// model goes on without; what has no other purpose is refused.
    fn take_out_tools(&self, members: &mut Members) -> Result<(), NotAllowed> {
        for name in RUN_BY_PROVIDERS {
            if members.has(name)? {
                return Err(NotAllowed::Parameter(name.into()));
            }
        }
        if members.retain("tools", |tool| self.is_run_by_client(tool))? {
            // A list of none is an error to some, and so is to choose among none.
            for name in ["tools", "tool_choice", "toolConfig"] {
                members.set(name, &Value::Null)?;
            }
        }
        Ok(())
    }

    fn is_run_by_client(&self, tool: &Members) -> Result<bool, NotAllowed> {
        if self.kind == Kind::Gemini {
            // Each kind of tool has a member of its own.
            return Ok(tool
                .names()
                .all(|name| matches!(name, "functionDeclarations" | "function_declarations")));
        }
        let kind = match tool.get("type")? {
            None => return Ok(true),
            Some(kind) => kind.as_str().unwrap_or_default().to_owned(),
        };
        let is_own = |own: &&str| kind == **own || kind.strip_prefix(*own).is_some_and(dated);
        // Where it says where it is run, that may be at the provider.
        Ok(RUN_BY_CLIENTS.iter().any(is_own) && !tool.has("environment")?)
    }

    /// Bounds how much a model may say, and tells that.
    fn bound_output(&self, members: &mut Members) -> Result<Option<u64>, NotAllowed> {
        let names: &[&str] = match self.kind {
            Kind::OpenaiChat => &["max_tokens", "max_completion_tokens"],
            Kind::OpenaiResponses => &["max_output_tokens"],
            Kind::Gemini => &["generationConfig.maxOutputTokens"],
            _ => &["max_tokens"],
        };
        let mut said = None;
        for name in names {
            if let Some(most) = self.max_output {
                bound(members, name, most)?;
            }
            said = said.max(members.get(name)?.and_then(|value| value.as_u64()));
        }
        if let (None, Some(most)) = (said, self.max_output) {
            // OpenAI's own newer models know the newer name only, and most others the older.
            let newer = self.kind == Kind::OpenaiChat && self.upstream.host == "api.openai.com";
            members.set(names[usize::from(newer)], &Value::from(most))?;
            said = Some(most);
        }
        Ok(said)
    }
}

/// What has the provider reach something by itself.
const RUN_BY_PROVIDERS: [&str; 5] =
    ["mcp_servers", "web_search_options", "plugins", "search_parameters", "enable_search"];

/// What has a router ask another model, or another provider.
const ELSEWHERE: [&str; 6] =
    ["models", "fallbacks", "api_base", "base_url", "api_key", "custom_llm_provider"];

/// Tools that whoever asks runs itself.
const RUN_BY_CLIENTS: [&str; 9] = [
    "function",
    "custom",
    "bash",
    "text_editor",
    "computer",
    "memory",
    "local_shell",
    "shell",
    "apply_patch",
];

/// Whether this is the date behind the name of a tool.
fn dated(rest: &str) -> bool {
    rest.strip_prefix('_')
        .is_some_and(|date| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Lowers a number that is too high.
fn bound(members: &mut Members, name: &str, most: u64) -> Result<(), NotAllowed> {
    match members.get(name)? {
        None | Some(Value::Null) => Ok(()),
        Some(value) => match value.as_u64() {
            Some(number) if number <= most => Ok(()),
            Some(_) => Ok(members.set(name, &Value::from(most))?),
            None => Err(NotAllowed::NotANumber(name.to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::config::Config;

    fn operation(body: &str) -> Operation {
        let text = format!("[secrets]\nk = {{ env = \"K\" }}\n[operations.op]\n{body}");
        Config::read(&text).unwrap().operations.into_values().next().unwrap()
    }

    fn post(path: &str) -> Sent<'_> {
        Sent { method: "POST", path, query: None }
    }

    fn prepared(operation: &Operation, sent: Sent<'_>, body: &str) -> Result<String, NotAllowed> {
        operation.prepare(&sent, Some(body.as_bytes())).map(|prepared| prepared.body.unwrap_or_default())
    }

    #[test]
    fn what_is_pinned_is_set_and_what_is_bounded_is_lowered() {
        let chat = operation(
            "kind = \"anthropic\"\nmodels = [\"small\"]\nmax_output = 100\nremove = [\"metadata\"]\n\
             pin = { temperature = 0 }\nat_most = { top_k = 5 }",
        );
        let body = r#"{"model":"small","max_tokens":64000,"temperature":1,"metadata":{"user_id":"x"},"top_k":9,"new_field":{"a":1.50}}"#;
        assert_eq!(
            prepared(&chat, post("/v1/messages"), body).unwrap(),
            r#"{"model":"small","max_tokens":100,"temperature":0,"top_k":5,"new_field":{"a":1.50}}"#
        );
        let less = prepared(&chat, post("/v1/messages"), r#"{"model":"small","max_tokens":7}"#).unwrap();
        assert_eq!(less, r#"{"model":"small","max_tokens":7,"temperature":0}"#);
        let none = prepared(&chat, post("/v1/messages"), r#"{"MODEL":"small"}"#).unwrap();
        assert_eq!(none, r#"{"MODEL":"small","temperature":0,"max_tokens":100}"#);
        for (body, wrong) in [
            (r#"{"model":"large"}"#, "the model `large` is not among"),
            (r#"{"model":["small"]}"#, "the model `` is not among"),
            (r#"{}"#, "the model `` is not among"),
            (r#"{"model":"small","max_tokens":"many"}"#, "`max_tokens` is not a whole number"),
            (r#"{"model":"small","max_tokens":1e9}"#, "`max_tokens` is not a whole number"),
            (r#"{"model":"small","model":"large"}"#, "twice"),
            ("[]", "not an object"),
        ] {
            let error = prepared(&chat, post("/v1/messages"), body).unwrap_err().to_string();
            assert!(error.contains(wrong), "{body}: {error}");
        }
    }

    #[test]
    fn a_pinned_model_is_the_one_that_is_asked() {
        let chat = operation("kind = \"openai-chat\"\nmodels = [\"small\"]\npin = { model = \"small\" }");
        let body =
            prepared(&chat, post("/v1/chat/completions"), r#"{"model":"large","stream":true}"#).unwrap();
        assert_eq!(body, r#"{"model":"small","stream":true,"stream_options":{"include_usage":true}}"#);
        let gemini = operation("kind = \"gemini\"\npin = { model = \"small\" }\nmax_output = 9");
        let sent = Sent { query: Some("alt=sse"), ..post("/v1beta/models/large:streamGenerateContent") };
        let made = gemini.prepare(&sent, Some(b"{\"contents\":[]}")).unwrap();
        assert_eq!(made.target, "/v1beta/models/small:streamGenerateContent?alt=sse");
        assert_eq!(made.body.as_deref(), Some(r#"{"contents":[],"generationConfig":{"maxOutputTokens":9}}"#));
        assert_eq!((made.model.as_deref(), made.max_output), (Some("small"), Some(9)));
        for name in ["models", "v1beta", "generateContent"] {
            let path = format!("/v1beta/models/{name}:generateContent");
            let made = gemini.prepare(&post(&path), Some(b"{}")).unwrap();
            assert_eq!(made.target, "/v1beta/models/small:generateContent");
        }
    }

    #[test]
    fn tools_that_the_provider_runs_are_not_for_sandboxes() {
        let (claude, codex) = (operation("kind = \"anthropic\""), operation("kind = \"openai-responses\""));
        let (gemini, nothing) = (operation("kind = \"gemini\""), r#"{"model":"m"}"#);
        for (operation, path, body, left) in [
            (
                &claude,
                "/v1/messages",
                r#"{"model":"m","tools":[{"type":"web_search_20250305","x":"\ud800"}]}"#,
                nothing,
            ),
            (
                &claude,
                "/v1/messages",
                r#"{"model":"m","tools":[{"type":"web_fetch_20250910","name":"f"}],"tool_choice":{"type":"auto"}}"#,
                nothing,
            ),
            (
                &claude,
                "/v1/messages",
                r#"{"model":"m","tools":[{"name":"a", "x": 1.50},{"Type":"code_execution_20250522"}]}"#,
                r#"{"model":"m","tools":[{"name":"a", "x": 1.50}]}"#,
            ),
            (
                &codex,
                "/v1/responses",
                r#"{"model":"m","tools":[{"type":"mcp","server_url":"https://x"}]}"#,
                nothing,
            ),
            (
                &codex,
                "/v1/responses",
                r#"{"model":"m","tools":[{"type":"shell","environment":{"type":"container_auto"}},{"type":"web_search"}]}"#,
                nothing,
            ),
            (
                &gemini,
                "/v1beta/models/m:generateContent",
                r#"{"tools":[{"googleSearch":{}},{"functionDeclarations":[]},{"functionDeclarations":[],"codeExecution":{}}]}"#,
                r#"{"tools":[{"functionDeclarations":[]}]}"#,
            ),
        ] {
            assert_eq!(prepared(operation, post(path), body).unwrap(), left, "{body}");
        }
        let refused = [
            (&claude, "/v1/messages", r#"{"model":"m","mcp_servers":[{"url":"https://x"}]}"#),
            (&codex, "/v1/responses", r#"{"model":"m","web_search_options":{}}"#),
        ];
        for (operation, path, body) in refused {
            let error = prepared(operation, post(path), body).unwrap_err();
            assert!(matches!(error, NotAllowed::Parameter(_)), "{body}: {error}");
        }
        for body in [
            r#"{"model":"m","tools":{"0":{"type":"mcp_toolset"}}}"#,
            r#"{"model":"m","tools":[{"type":"custom","type":"web_search_20250305"}]}"#,
            r#"{"model":"m","tools":[{"type":"web_search_20250305\ud800"}]}"#,
            r#"{"model":"m","mcp_servers":["\ud800"]}"#,
            r#"{"model":"m","tools":[1]}"#,
        ] {
            assert!(prepared(&claude, post("/v1/messages"), body).is_err(), "{body}");
        }
        let fine = r#"{"model":"m","tools":[{"name":"a","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"type":"custom"}]}"#;
        assert_eq!(prepared(&claude, post("/v1/messages"), fine).unwrap(), fine);
        let fine = r#"{"model":"m","tools":[{"type":"function","name":"a"},{"type":"local_shell"}]}"#;
        assert_eq!(prepared(&codex, post("/v1/responses"), fine).unwrap(), fine);
        let free = operation("kind = \"anthropic\"\nhosted_tools = true");
        assert!(prepared(&free, post("/v1/messages"), refused[0].2).is_ok());
    }

    #[test]
    fn only_what_is_listed_may_be_there() {
        let strict =
            operation("kind = \"openai-chat\"\nallow = [\"model\", \"messages\"]\ndeny = [\"messages.x\"]");
        let path = "/v1/chat/completions";
        assert!(prepared(&strict, post(path), r#"{"model":"a","messages":{}}"#).is_ok());
        let error = prepared(&strict, post(path), r#"{"model":"a","tools":[]}"#).unwrap_err();
        assert_eq!(error, NotAllowed::Parameter("tools".into()));
        assert!(prepared(&strict, post(path), r#"{"model":"a","messages":{"x":1}}"#).is_err());
    }

    #[test]
    fn repositories_are_read_and_only_written_where_that_is_said() {
        let read = operation("kind = \"git\"\nupstream = \"https://forge.example\"\npaths = [\"/me/*\"]");
        let write = operation(
            "kind = \"git\"\nupstream = \"https://forge.example\"\npaths = [\"/me/*\"]\npush = true",
        );
        let refs = |service| Sent { method: "GET", path: "/me/p.git/info/refs", query: Some(service) };
        for (sent, reads, writes) in [
            (refs("service=git-upload-pack"), true, true),
            (refs("service=git-receive-pack"), false, true),
            (refs("service=git-upload-pack&x=1"), false, false),
            (post("/me/p.git/git-upload-pack"), true, true),
            (post("/me/p.git/git-receive-pack"), false, true),
            (post("/other/p.git/git-upload-pack"), false, false),
            (post("/me/p.git/settings"), false, false),
            (Sent { method: "GET", path: "/me/p.git/info/refs", query: None }, false, false),
        ] {
            assert_eq!(
                (read.call(&sent).is_some(), write.call(&sent).is_some()),
                (reads, writes),
                "{sent:?}"
            );
        }
    }

    #[test]
    fn a_mount_is_whole_segments() {
        let chat = operation("kind = \"anthropic\"");
        assert_eq!(chat.below("/anthropic/v1/messages"), Some("/v1/messages"));
        assert_eq!(chat.below("/anthropic"), Some(""));
        assert_eq!(chat.below("/anthropical/v1"), None);
        assert_eq!(chat.below("/v1/messages"), None);
    }
}
