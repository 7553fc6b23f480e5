//! The gateway's configuration: where keys come from, and what is done with them for whom. A file that is not wholly understood
//! is none.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use belljar_core::{Budget, ByteSize, HostName, Method, OperationName, PathPattern, Span};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use super::kind::Kind;
use super::operation::{Operation, Upstream};
use super::price::Prices;
use super::secret::Source;
use crate::policy::file::{FileError, FileErrors};

/// The file in the data directory.
pub const FILE: &str = "gateway.toml";
/// The largest file that is read.
pub const MAX_SIZE: u64 = 1 << 20;

/// The longest body of a request, unless an operation says otherwise.
const MAX_BODY: ByteSize = ByteSize(32 << 20);
/// How much a model may read that is kept elsewhere, likewise.
const MAX_INPUT: u64 = 200_000;
/// How long an upstream may say nothing, likewise.
const TIMEOUT: Span = Span(Duration::from_secs(600));

/// What the gateway does, and with what.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where keys come from.
    pub secrets: BTreeMap<String, Source>,
    /// What is done.
    pub operations: BTreeMap<OperationName, Operation>,
    /// What each session may spend, unless its token may spend less.
    pub session_budget: Budget,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    secrets: BTreeMap<String, Source>,
    #[serde(default)]
    operations: BTreeMap<String, Spanned<OperationText>>,
    #[serde(default)]
    budget: BudgetsText,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetsText {
    #[serde(default)]
    session: BudgetText,
}

/// A budget as people write it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BudgetText {
    requests: Option<u64>,
    tokens: Option<u64>,
    dollars: Option<f64>,
}

impl BudgetText {
    fn read(&self) -> Result<Budget, String> {
        let micro_dollars = self.dollars.map(Budget::micro).transpose()?;
        Ok(Budget { requests: self.requests, tokens: self.tokens, micro_dollars })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationText {
    kind: Kind,
    upstream: Option<String>,
    mount: Option<String>,
    secret: Option<String>,
    header: Option<String>,
    value: Option<String>,
    user: Option<String>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    pin: BTreeMap<String, Value>,
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    at_most: BTreeMap<String, u64>,
    max_output: Option<u64>,
    max_input: Option<u64>,
    allow: Option<Vec<String>>,
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default)]
    hosted_tools: bool,
    #[serde(default)]
    in_place: bool,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    push: bool,
    #[serde(default)]
    prices: BTreeMap<String, Prices>,
    requests_per_minute: Option<u32>,
    concurrent: Option<u32>,
    max_body: Option<String>,
    timeout: Option<String>,
}

impl Config {
    /// Reads a file.
    pub fn read(text: &str) -> Result<Self, FileErrors> {
        let file: Text = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            FileErrors { errors: vec![FileError::at(text, at, error.message())], left_out: 0 }
        })?;
        let mut errors = Vec::new();
        let mut config = Self { secrets: file.secrets, ..Self::default() };
        match file.budget.session.read() {
            Ok(budget) => config.session_budget = budget,
            Err(wrong) => errors.push(FileError::at(text, 0, &format!("budget: {wrong}"))),
        }
        for (name, operation) in file.operations {
            let at = operation.span().start;
            match config.operation(&name, operation.into_inner()) {
                Ok(operation) => drop(config.operations.insert(operation.name.clone(), operation)),
                Err(wrong) => errors.push(FileError::at(text, at, &format!("operation `{name}`: {wrong}"))),
            }
        }
        match errors.is_empty() {
            true => Ok(config),
            false => Err(FileErrors { errors, left_out: 0 }),
        }
    }

    fn operation(&self, name: &str, text: OperationText) -> Result<Operation, String> {
        let name: OperationName = name.parse().map_err(|error: belljar_core::Error| error.to_string())?;
        let kind = text.kind;
        let upstream = text.upstream.as_deref().or(kind.upstream());
        let upstream =
            Upstream::parse(upstream.ok_or("`upstream` is missing: say where it leads, as `https://host`")?)?;
        let mount = text.mount.unwrap_or_else(|| kind.mount(&name));
        if mount.len() < 2
            || mount.ends_with('/')
            || belljar_core::plain_path(&mount).as_deref() != Some(&mount)
        {
            return Err(format!("`mount` is a plain path like `/anthropic`, not `{mount}`"));
        }
        let taken = self.operations.values().find(|other| {
            let nested = other.below(&mount).is_some() || mount_is_above(&mount, &other.mount);
            nested && (other.kind == kind || other.kind.is_listed() || kind.is_listed())
        });
        if let Some(other) = taken {
            return Err(format!(
                "its mount `{mount}` is in the way of operation `{}` at `{}`; give it another `mount`",
                other.name, other.mount
            ));
        }
        let secret = text.secret;
        if let Some(secret) = &secret {
            if !self.secrets.contains_key(secret) {
                return Err(format!("there is no `{secret}` under `secrets`"));
            }
            if !upstream.tls && !upstream.is_local() {
                return Err("a key goes over TLS only, or stays on this machine: make `upstream` begin with `https://`".into());
            }
        }
        if text.in_place
            && !(upstream.tls && upstream.port == 443 && upstream.host.parse::<HostName>().is_ok())
        {
            return Err(
                "`in_place` is for an `upstream` with a name, over TLS at its usual port: `https://host`"
                    .into(),
            );
        }
        let header = match (text.header, text.value, kind.header()) {
            (Some(header), value, _) => {
                Some((header.to_ascii_lowercase(), value.unwrap_or_else(|| "{}".into())))
            }
            (None, Some(value), Some((header, _))) => Some((header.to_owned(), value)),
            (None, Some(_), None) => return Err("`value` needs a `header` to stand in".into()),
            (None, None, default) => default.map(|(header, value)| (header.to_owned(), value.to_owned())),
        };
        if let Some((header, value)) = &header {
            check_header(header, value)?;
        }
        if kind == Kind::Http && secret.is_some() && header.is_none() {
            return Err("say in which `header` the key goes".into());
        }
        if kind.is_listed() && text.paths.is_empty() {
            return Err("`paths` is missing: list what may be asked for, as in `[\"/v1/*\"]`".into());
        }
        if kind == Kind::Http && text.methods.is_empty() {
            return Err("`methods` is missing: list what may be done, as in `[\"GET\"]`".into());
        }
        if !(kind.is_listed() || text.paths.is_empty() && text.methods.is_empty()) {
            return Err(
                "`paths` and `methods` are known for this kind; only `git` and `http` list them".into()
            );
        }
        let methods = text.methods.iter().map(|method| method.parse::<Method>());
        let methods = methods.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let paths = text.paths.iter().map(|path| path.parse::<PathPattern>());
        let paths = paths.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let mut pin = text.pin;
        pin.extend(text.remove.into_iter().map(|name| (name, Value::Null)));
        let names =
            pin.keys().chain(text.at_most.keys()).chain(&text.deny).chain(text.allow.iter().flatten());
        let plain = |name: &String| {
            !name.is_empty()
                && name.split('.').all(|part| !part.is_empty())
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if let Some(name) = names.into_iter().find(|name| !plain(name)) {
            return Err(format!("`{name}` is not the name of a parameter"));
        }
        if text.max_output == Some(0) || text.concurrent == Some(0) || text.requests_per_minute == Some(0) {
            return Err("`max_output`, `concurrent` and `requests_per_minute` are at least 1".into());
        }
        Ok(Operation {
            name,
            kind,
            upstream,
            mount,
            secret,
            header,
            user: text.user.or_else(|| (kind == Kind::Git).then(|| "x-access-token".into())),
            models: text.models,
            pin,
            at_most: text.at_most,
            max_input: text.max_input.unwrap_or(MAX_INPUT),
            max_output: text.max_output,
            allow: text.allow,
            deny: text.deny,
            hosted_tools: text.hosted_tools,
            in_place: text.in_place,
            methods,
            paths,
            push: text.push,
            prices: text.prices,
            requests_per_minute: text.requests_per_minute,
            concurrent: text.concurrent,
            max_body: typed(text.max_body, MAX_BODY)?.0,
            timeout: typed(text.timeout, TIMEOUT)?.0,
        })
    }
}

/// A value as people type it.
fn typed<T: FromStr<Err: fmt::Display>>(text: Option<String>, default: T) -> Result<T, String> {
    text.map_or(Ok(default), |text| text.parse().map_err(|error: T::Err| error.to_string()))
}

fn mount_is_above(mount: &str, other: &str) -> bool {
    other.strip_prefix(mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Headers that are not a key's place.
const NOT_FOR_KEYS: [&str; 6] =
    ["host", "content-length", "transfer-encoding", "connection", "content-type", "accept-encoding"];

fn check_header(header: &str, value: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if header.is_empty() || !header.bytes().all(fits) || NOT_FOR_KEYS.contains(&header) {
        return Err(format!("`{header}` is not a header in which a key can go"));
    }
    let plain = value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if value.matches("{}").count() != 1 || !plain {
        return Err(format!(
            "`value` is a line with one `{{}}` where the key goes, not `{}`",
            value.escape_debug()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[secrets]
anthropic = { env = "ANTHROPIC_API_KEY" }
forge = { file = "/run/keys/forge" }
tool = { command = ["pass", "show", "tool"] }

[operations."llm:chat"]
kind = "anthropic"
secret = "anthropic"
models = ["small"]
max_output = 4096
pin = { temperature = 0, "thinking.type" = "disabled" }
remove = ["metadata"]
at_most = { top_k = 40 }

[operations."code:read"]
kind = "git"
upstream = "https://forge.example"
secret = "forge"
paths = ["/me/*"]

[operations."data:read"]
kind = "http"
upstream = "https://data.example/api"
secret = "tool"
header = "X-Key"
methods = ["GET"]
paths = ["/v1/*"]
timeout = "20s"
max_body = "1m"

[operations."llm:local"]
kind = "openai-chat"
upstream = "http://127.0.0.1:11434"

[budget.session]
dollars = 1.5
"#;

    #[test]
    fn a_whole_file_is_read() {
        let config = Config::read(GOOD).unwrap();
        let chat = &config.operations[&"llm:chat".parse().unwrap()];
        assert_eq!(chat.upstream.authority(), "api.anthropic.com");
        assert_eq!(chat.header, Some(("x-api-key".into(), "{}".into())));
        assert_eq!(chat.pin["metadata"], Value::Null);
        let data = &config.operations[&"data:read".parse().unwrap()];
        assert_eq!((data.mount.as_str(), data.upstream.base.as_str()), ("/data/read", "/api"));
        assert_eq!((data.max_body, data.timeout), (1 << 20, Duration::from_secs(20)));
        assert_eq!(config.operations[&"code:read".parse().unwrap()].user.as_deref(), Some("x-access-token"));
        assert_eq!(config.session_budget.micro_dollars, Some(1_500_000));
        assert!(!config.operations[&"llm:local".parse().unwrap()].upstream.tls);
    }

    #[test]
    fn the_page_has_an_example_that_is_read() {
        let page = include_str!("../../../../docs/gateway.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(Config::read(example).unwrap().operations.len(), 4);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let op = |body: &str| format!("[secrets]\nk = {{ env = \"K\" }}\n[operations.\"a:b\"]\n{body}");
        for (text, line, wrong) in [
            ("x = 1".to_owned(), 1, "unknown field"),
            (op("kind = \"telepathy\""), 4, "unknown variant"),
            (op("kind = \"http\""), 3, "`upstream` is missing"),
            (op("kind = \"http\"\nupstream = \"ftp://x\""), 3, "begins with `https://`"),
            (op("kind = \"http\"\nupstream = \"https://me@x\""), 3, "without user"),
            (op("kind = \"http\"\nupstream = \"https://x/a/../b\""), 3, "more than one way"),
            (op("kind = \"http\"\nupstream = \"https://x:0\""), 3, "not a host and a port"),
            (op("kind = \"anthropic\"\nsecret = \"other\""), 3, "no `other` under `secrets`"),
            (
                op("kind = \"openai-chat\"\nsecret = \"k\"\nupstream = \"http://models.example\""),
                3,
                "over TLS only",
            ),
            (op("kind = \"anthropic\"\nmount = \"/\""), 3, "`mount` is a plain path"),
            (op("kind = \"anthropic\"\npaths = [\"/x\"]"), 3, "only `git` and `http`"),
            (op("kind = \"http\"\nupstream = \"https://x\"\nmethods = [\"GET\"]"), 3, "`paths` is missing"),
            (
                op(
                    "kind = \"http\"\nupstream = \"https://x\"\nmethods = [\"GET\"]\npaths = [\"/\"]\nsecret = \"k\"",
                ),
                3,
                "in which `header`",
            ),
            (op("kind = \"anthropic\"\nsecret = \"k\"\nheader = \"Host\""), 3, "not a header"),
            (op("kind = \"anthropic\"\nvalue = \"Bearer\""), 3, "one `{}`"),
            (op("kind = \"anthropic\"\npin = { \"a..b\" = 1 }"), 3, "not the name of a parameter"),
            (op("kind = \"anthropic\"\nmax_output = 0"), 3, "at least 1"),
            (
                op("kind = \"anthropic\"\n[operations.\"c:d\"]\nkind = \"anthropic\""),
                5,
                "in the way of operation `a:b`",
            ),
            (op("kind = \"anthropic\"\n[budget.session]\ndollars = -1"), 1, "no amount of dollars"),
        ] {
            let error = Config::read(&text).unwrap_err();
            let first = &error.errors[0];
            assert!(first.reason.contains(wrong) && first.line == line, "{text}\n{error}");
        }
    }

    #[test]
    fn upstreams_are_read_as_people_write_them() {
        for (text, authority, base) in [
            ("https://a.example", "a.example", ""),
            ("https://a.example:8443/x/", "a.example:8443", "/x"),
            ("http://[::1]:80/", "[::1]", ""),
            ("https://10.0.0.1", "10.0.0.1", ""),
        ] {
            let upstream = Upstream::parse(text).unwrap();
            assert_eq!((upstream.authority().as_str(), upstream.base.as_str()), (authority, base), "{text}");
        }
        for text in
            ["https://", "https://:1", "https://a b", "https://[::1", "https://a:99999", "//a", "https://a?b"]
        {
            assert!(Upstream::parse(text).is_err(), "{text}");
        }
    }
}
