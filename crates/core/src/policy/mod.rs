//! What a sandbox may reach.

mod name;
mod path;
mod rule;
mod text;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use name::{HostName, HostPattern, NameError};
pub use path::{PathError, PathPattern, plain_path};
pub use rule::{IpNet, Method, PortRange, Rule, SetName, Target};
pub use text::RuleError;

use crate::{ByteSize, Error, ErrorCode, GATEWAY_NAME, ProviderName};

/// What may leave the sandbox.
///
/// In JSON it is `"none"`, or an object: `{"mode": "allowlist", "allow": ["pypi", "example.org:8443"], "deny": [],
/// "limits": {}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkPolicy {
    /// No address, name or socket outside the sandbox can be reached.
    #[default]
    None,
    /// What is allowed can be reached, unless it is denied; nothing else.
    Allowlist(Rules),
    /// Whatever is public can be reached, unless it is denied; what is not public needs a rule that allows it. That
    /// rule is about hosts and ports only.
    Open(Rules),
}

/// What is allowed and denied, and how much of it. A denial always wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What may be reached.
    pub allow: Vec<Rule>,
    /// What may not be reached, whatever is allowed.
    pub deny: Vec<Rule>,
    /// How much of the network may be used.
    pub limits: NetLimits,
    /// Hosts of which the gateway asks what is asked of them over TLS, with its key. Nobody writes them: tokens say them.
    pub brought: Vec<HostName>,
}

impl Rules {
    /// How many rules a policy can have, of both kinds together.
    pub const MAX: usize = 1000;

    /// Replaces each set by the rules that it was resolved to. A set that was not resolved stays, and then allows nothing,
    /// or, where it is denied, denies everything.
    #[must_use]
    pub fn expand(&self, resolved: &BTreeMap<SetName, Vec<Rule>>) -> Self {
        let allow = self.allow.iter().flat_map(|rule| rule.members(resolved)).collect();
        // What is denied is denied wherever it is.
        let deny = self.deny.iter().flat_map(|rule| rule.members(resolved));
        let deny = deny.map(|rule| Rule { private: false, ..rule }).collect();
        Self { allow, deny, limits: self.limits, brought: self.brought.clone() }
    }

    /// A set that is still only a name.
    pub fn unresolved(&self) -> Option<SetName> {
        self.allow.iter().chain(&self.deny).find_map(|rule| match rule.target {
            Target::Set(name) => Some(name),
            Target::Host(_) | Target::Net(_) => None,
        })
    }
}

/// How much of the network a sandbox may use. Every field is always enforced; one that is left out has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetLimits {
    /// Connections open at once.
    pub connections: u32,
    /// New connections, look-ups of names and requests that can be seen, each, per second.
    pub requests_per_second: u32,
    /// Bytes in both directions per second.
    #[serde(deserialize_with = "size")]
    pub bytes_per_second: ByteSize,
    /// Bytes in both directions, in all its life.
    #[serde(deserialize_with = "size")]
    pub total_bytes: ByteSize,
}

impl Default for NetLimits {
    /// Enough for the installs and calls of an agent at work, and an end for one that loops.
    fn default() -> Self {
        Self {
            connections: 256,
            requests_per_second: 200,
            bytes_per_second: ByteSize::mib(64),
            total_bytes: ByteSize::gib(10),
        }
    }
}

impl NetLimits {
    /// Names the first field that is out of bounds, with what would be right.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let counts = [
            ("connections", u64::from(self.connections), 1..=10_000),
            ("requests_per_second", u64::from(self.requests_per_second), 1..=1_000_000),
            ("bytes_per_second", self.bytes_per_second.0, 1024..=1 << 40),
            ("total_bytes", self.total_bytes.0, 1..=1 << 60),
        ];
        match counts.into_iter().find(|(_, value, bounds)| !bounds.contains(value)) {
            Some((field, value, bounds)) => {
                Err((field, format!("{value} is out of range: {} to {}", bounds.start(), bounds.end())))
            }
            None => Ok(()),
        }
    }
}

/// A size as a number of bytes or as text with a unit.
pub(crate) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of bytes, or text with a unit such as \"8m\" or \"1.5GiB\"")]
    enum Form {
        Bytes(u64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Bytes(bytes) => Ok(ByteSize(bytes)),
        Form::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

impl NetworkPolicy {
    /// The rules, where there are any.
    pub fn rules(&self) -> Option<&Rules> {
        match self {
            Self::None => None,
            Self::Allowlist(rules) | Self::Open(rules) => Some(rules),
        }
    }

    /// The policy's name without its rules.
    pub fn mode(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Allowlist(_) => "allowlist",
            Self::Open(_) => "open",
        }
    }

    /// The same, and the gateway makes what is asked of these hosts over TLS, and of no others.
    pub fn with_brought(self, hosts: Vec<HostName>) -> Self {
        let rule = |host: &HostName| format!("https://{host}/*").parse::<Rule>().ok();
        let mut policy = self;
        match &mut policy {
            Self::None => {}
            Self::Allowlist(rules) | Self::Open(rules) => {
                let new: Vec<Rule> =
                    hosts.iter().filter_map(rule).filter(|rule| !rules.allow.contains(rule)).collect();
                rules.allow.extend(new);
                rules.brought = hosts;
            }
        }
        policy
    }

    /// The same, and the gateway within reach.
    pub fn with_gateway(self) -> Self {
        let rule = format!("http://{GATEWAY_NAME}/*").parse::<Rule>();
        let add = |mut rules: Rules| {
            rules.allow.extend(rule.ok().filter(|rule| !rules.allow.contains(rule)));
            rules
        };
        match self {
            Self::None => Self::Allowlist(add(Rules::default())),
            Self::Allowlist(rules) => Self::Allowlist(add(rules)),
            // There every name can be reached.
            Self::Open(rules) => Self::Open(rules),
        }
    }

    /// Whether a rule is about requests that may come over TLS, so that it must be opened to see them.
    pub fn looks_inside_tls(&self) -> bool {
        let beyond_plain = |ports: &[PortRange]| ports.iter().any(|range| *range != PortRange::one(80));
        self.rules().is_some_and(|rules| {
            let allowed = rules.allow.iter().map(|rule| (rule, rule.opened_ports()));
            let mut all = allowed.chain(rules.deny.iter().map(|rule| (rule, rule.closed_ports())));
            all.any(|(rule, ports)| rule.is_about_requests() && beyond_plain(ports))
        })
    }

    /// Refuses to grant a network where there is no door to watch it.
    pub fn check_without_door(&self, provider: ProviderName) -> Result<(), Error> {
        if *self == Self::None {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::Unsupported,
            format!("the `{provider}` provider cannot grant a network (policy `{}`)", self.mode()),
        )
        .hint("use the policy `none`; bring files in with `--file SRC:DST`"))
    }

    /// Refuses what is out of bounds or can mean nothing.
    pub fn check(&self) -> Result<(), Error> {
        let Some(rules) = self.rules() else { return Ok(()) };
        let wrong = |what: String| Error::new(ErrorCode::InvalidArgument, format!("network policy: {what}"));
        let count = rules.allow.len() + rules.deny.len();
        if count > Rules::MAX {
            return Err(wrong(format!("it has {count} rules, and {} is the most", Rules::MAX))
                .hint("name hosts together, as in `*.example.org` or `192.0.2.0/24:443`"));
        }
        if let (Self::Open(_), Some(rule)) = (self, rules.allow.iter().find(|rule| rule.is_about_requests()))
        {
            return Err(wrong(format!(
                "in the mode `open`, rule `{rule:.120}` allows nothing that is not allowed"
            ))
            .hint("leave out its methods and paths, or name under `deny` what must not be requested"));
        }
        let allow = rules.allow.iter().map(|rule| (rule, rule.check_allowing()));
        let deny = rules.deny.iter().map(|rule| (rule, rule.check_denying()));
        for (rule, checked) in allow.chain(deny) {
            checked.map_err(|error| wrong(format!("rule `{rule:.120}`: {error}")))?;
        }
        rules.limits.check().map_err(|(field, problem)| wrong(format!("limit `{field}`: {problem}")))
    }
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.mode())?;
        let Some(rules) = self.rules() else { return Ok(()) };
        for (word, rules) in [("allow", &rules.allow), ("deny", &rules.deny)] {
            for (at, rule) in rules.iter().enumerate() {
                write!(formatter, "{}{rule}", if at == 0 { format!("; {word} ") } else { ", ".into() })?;
            }
        }
        Ok(())
    }
}

/// A policy as an object.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Object<Mode, List> {
    mode: Mode,
    #[serde(default)]
    allow: List,
    #[serde(default)]
    deny: List,
    #[serde(default)]
    limits: NetLimits,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    None,
    Allowlist,
    Open,
}

impl Serialize for NetworkPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(Rules { allow, deny, limits, .. }) = self.rules() else {
            return serializer.serialize_str(self.mode());
        };
        Object { mode: self.mode(), allow, deny, limits: *limits }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NetworkPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrObject;

        impl<'de> Visitor<'de> for WordOrObject {
            type Value = NetworkPolicy;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a network policy: \"none\", or an object with `mode`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<NetworkPolicy, E> {
                match text {
                    "none" => Ok(NetworkPolicy::None),
                    "allowlist" | "open" => {
                        Err(E::custom(format!("write {{\"mode\": \"{text}\"}} with its rules")))
                    }
                    _ => Err(E::unknown_variant(text, &["none", "allowlist", "open"])),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NetworkPolicy, A::Error> {
                let object = Object::<Mode, Vec<Rule>>::deserialize(MapAccessDeserializer::new(map))?;
                let Object { mode, allow, deny, limits } = object;
                let rules = Rules { allow, deny, limits, brought: Vec::new() };
                match mode {
                    Mode::Allowlist => Ok(NetworkPolicy::Allowlist(rules)),
                    Mode::Open => Ok(NetworkPolicy::Open(rules)),
                    Mode::None if rules == Rules::default() => Ok(NetworkPolicy::None),
                    Mode::None => Err(A::Error::custom("the mode `none` has no rules and no limits")),
                }
            }
        }

        deserializer.deserialize_any(WordOrObject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<NetworkPolicy, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn policies_in_json() {
        assert_eq!(read("\"none\""), Ok(NetworkPolicy::None));
        assert_eq!(serde_json::to_string(&NetworkPolicy::None).unwrap(), "\"none\"");
        assert_eq!(read(r#"{"mode": "none"}"#), Ok(NetworkPolicy::None));
        let policy = read(
            r#"{"mode": "allowlist", "allow": ["pypi", {"host": "db.example.org", "ports": [5432], "private": true}],
                "deny": ["POST http://example.org/admin/*"], "limits": {"connections": 8, "total_bytes": "1g"}}"#,
        )
        .unwrap();
        let rules = policy.rules().unwrap();
        assert_eq!((rules.allow.len(), rules.deny.len()), (2, 1));
        assert_eq!(
            rules.limits,
            NetLimits { connections: 8, total_bytes: ByteSize::gib(1), ..NetLimits::default() }
        );
        assert_eq!(
            policy.to_string(),
            "allowlist; allow pypi, db.example.org:5432 private; deny POST example.org:80/admin/*"
        );
        assert_eq!(read(&serde_json::to_string(&policy).unwrap()), Ok(policy));
        assert_eq!(read(r#"{"mode": "open"}"#), Ok(NetworkPolicy::Open(Rules::default())));
    }

    #[test]
    fn what_is_no_policy() {
        for json in [
            "\"allowlist\"",
            "\"open\"",
            "\"all\"",
            "null",
            "{}",
            "[]",
            r#"{"mode": "all"}"#,
            r#"{"allow": ["a.org"]}"#,
            r#"{"mode": "none", "allow": ["a.org"]}"#,
            r#"{"mode": "open", "allowed": []}"#,
            r#"{"mode": "open", "mode": "open"}"#,
            r#"{"mode": "allowlist", "allow": ["*"]}"#,
            r#"{"mode": "open", "limits": {"connection": 8}}"#,
            r#"{"mode": "open", "limits": {"total_bytes": "much"}}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn sets_become_their_members() {
        let rule = |text: &str| text.parse::<Rule>().unwrap();
        let rules = Rules {
            allow: vec![rule("pypi"), rule("a.org"), rule("npm private")],
            deny: vec![rule("github"), rule("pypi")],
            ..Rules::default()
        };
        let resolved = BTreeMap::from([
            (SetName::Pypi, vec![rule("index.example:443"), rule("files.example:443 private")]),
            (SetName::Npm, vec![rule("npm.example")]),
        ]);
        let expanded = rules.expand(&resolved);
        let texts = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts(&expanded.allow),
            ["index.example:443", "files.example:443 private", "a.org", "npm.example private"]
        );
        assert_eq!(
            texts(&expanded.deny),
            ["github", "index.example:443", "files.example:443"],
            "what is not resolved stays, and a denial is never about private addresses alone"
        );
        assert_eq!(expanded.unresolved(), Some(SetName::Github));
        assert_eq!(expanded.expand(&resolved), expanded);
        assert!(NetworkPolicy::Allowlist(expanded).check().is_ok());
    }

    #[test]
    fn without_a_door_nothing_is_granted() {
        let jail = ProviderName::Jail;
        assert!(NetworkPolicy::None.check_without_door(jail).is_ok());
        for policy in [NetworkPolicy::Allowlist(Rules::default()), NetworkPolicy::Open(Rules::default())] {
            assert_eq!(policy.check_without_door(jail).unwrap_err().code, ErrorCode::Unsupported);
        }
    }

    #[test]
    fn bounds_are_checked() {
        let with = |change: &dyn Fn(&mut Rules)| {
            let mut rules = Rules::default();
            change(&mut rules);
            NetworkPolicy::Allowlist(rules).check()
        };
        let rule: Rule = "example.org".parse().unwrap();
        let requests = Rules { allow: vec!["GET example.org".parse().unwrap()], ..Rules::default() };
        assert!(NetworkPolicy::Allowlist(requests.clone()).check().is_ok());
        assert!(NetworkPolicy::Open(requests).check().is_err());
        assert!(with(&|rules| rules.allow = vec![rule.clone(); 1000]).is_ok());
        for change in [
            &(|rules: &mut Rules| {
                rules.allow = vec![rule.clone(); 500];
                rules.deny = vec![rule.clone(); 501];
            }) as &dyn Fn(&mut Rules),
            &|rules| rules.allow.push("192.0.2.0/24".parse().unwrap()),
            &|rules| rules.deny.push("a.org private".parse().unwrap()),
            &|rules| rules.allow.push(Rule { methods: vec!["GET".parse().unwrap(); 17], ..rule.clone() }),
            &|rules| rules.allow.push(Rule { paths: vec!["/".parse().unwrap(); 65], ..rule.clone() }),
            &|rules| rules.limits.connections = 0,
            &|rules| rules.limits.requests_per_second = 0,
            &|rules| rules.limits.bytes_per_second = ByteSize(1023),
            &|rules| rules.limits.total_bytes = ByteSize(0),
        ] {
            let error = with(change).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument);
            assert!(error.message.len() < 400, "{error}");
        }
    }
}
