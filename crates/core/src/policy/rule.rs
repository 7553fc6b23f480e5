//! One line of a policy: what it is about, and how it is written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::name::{HostName, HostPattern};
use super::path::PathPattern;
use super::text::RuleError;

/// What may be reached, or may not. In JSON it is written as text (see [`Rule::from_str`]) or as an object with the
/// same fields.
///
/// ```
/// # use belljar_core::Rule;
/// let rule: Rule = "GET,HEAD http://Example.org/v1/*".parse().unwrap();
/// assert_eq!(rule.to_string(), "GET,HEAD example.org:80/v1/*");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which hosts.
    pub target: Target,
    /// Which of their ports. None named: those of the web (80 and 443) where something is allowed, and all where it is
    /// denied.
    pub ports: Vec<PortRange>,
    /// Which methods of HTTP; none named: all, and protocols other than HTTP too.
    pub methods: Vec<Method>,
    /// Which paths; none named: all, and protocols other than HTTP too.
    pub paths: Vec<PathPattern>,
    /// Whether the host may have an address that is not public.
    pub private: bool,
}

/// Which hosts a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Those with such a name, wherever it leads.
    Host(HostPattern),
    /// Those with such an address, whatever they are called.
    Net(IpNet),
    /// Those that a package tool is set up to use. About nothing until it is resolved.
    Set(SetName),
}

impl Rule {
    /// How many ports or ranges of ports a rule can name.
    pub const MAX_PORTS: usize = 64;
    /// How many methods a rule can name.
    pub const MAX_METHODS: usize = 16;
    /// How many paths a rule can name.
    pub const MAX_PATHS: usize = 64;

    /// A rule about this and nothing more.
    pub fn about(target: Target) -> Self {
        Self { target, ports: Vec::new(), methods: Vec::new(), paths: Vec::new(), private: false }
    }

    /// Whether only some requests of HTTP are meant, so that they must be seen to be judged.
    pub fn is_about_requests(&self) -> bool {
        !self.methods.is_empty() || !self.paths.is_empty()
    }

    /// The ports this rule opens, when it stands among what is allowed.
    pub fn opened_ports(&self) -> &[PortRange] {
        const WEB: &[PortRange] = &[PortRange::one(80), PortRange::one(443)];
        if self.ports.is_empty() { WEB } else { &self.ports }
    }

    /// The ports this rule closes, when it stands among what is denied.
    pub fn closed_ports(&self) -> &[PortRange] {
        const ALL: &[PortRange] = &[PortRange { first: 1, last: u16::MAX }];
        if self.ports.is_empty() { ALL } else { &self.ports }
    }

    /// What the rule stands for: itself, or the members of its set.
    pub(super) fn members(&self, resolved: &BTreeMap<SetName, Vec<Rule>>) -> Vec<Rule> {
        let members = match &self.target {
            Target::Set(name) => resolved.get(name),
            Target::Host(_) | Target::Net(_) => None,
        };
        match members {
            Some(members) => members
                .iter()
                .map(|member| Rule { private: member.private || self.private, ..member.clone() })
                .collect(),
            None => vec![self.clone()],
        }
    }

    /// Refuses what is out of bounds or can mean nothing, in either list.
    pub fn check(&self) -> Result<(), RuleError> {
        let counts = [
            ("ports", self.ports.len(), Self::MAX_PORTS),
            ("methods", self.methods.len(), Self::MAX_METHODS),
            ("paths", self.paths.len(), Self::MAX_PATHS),
        ];
        if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
            return Err(RuleError::TooMany { what, count, most });
        }
        match self.target {
            Target::Set(name) if !self.ports.is_empty() || self.is_about_requests() => {
                Err(RuleError::NarrowedSet(name))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what cannot stand among what is allowed.
    pub fn check_allowing(&self) -> Result<(), RuleError> {
        self.check()?;
        match self.target {
            Target::Net(net) if self.ports.is_empty() => Err(RuleError::NetWithoutPorts(net)),
            _ => Ok(()),
        }
    }

    /// Refuses what cannot stand among what is denied.
    pub fn check_denying(&self) -> Result<(), RuleError> {
        self.check()?;
        match self.target {
            Target::Net(net) if self.is_about_requests() => Err(RuleError::RequestsOfDeniedNet(net)),
            _ if self.private => Err(RuleError::PrivateDenied),
            _ => Ok(()),
        }
    }
}

/// One port or several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// This port alone.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// These ports and those between, or nothing when there are none.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first >= 1 && first <= last).then_some(Self { first, last })
    }

    /// The lowest port.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Whether the port is one of them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        number(first)
            .zip(number(last))
            .and_then(|(first, last)| Self::new(first, last))
            .ok_or_else(|| RuleError::Port(text.into()))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { first, last } if first == last => first.fmt(formatter),
            Self { first, last } => write!(formatter, "{first}-{last}"),
        }
    }
}

/// A block of addresses, such as `192.0.2.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNet {
    address: IpAddr,
    prefix: u8,
}

impl IpNet {
    /// The block with this many leading bits in common, or nothing when the address has bits beyond them.
    pub const fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let width = width(address);
        if prefix > width || left_aligned(address) & !mask(prefix) != 0 {
            return None;
        }
        Some(Self { address, prefix })
    }

    /// This address alone.
    pub const fn one(address: IpAddr) -> Self {
        Self { address, prefix: width(address) }
    }

    /// The first address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// How many leading bits its addresses have in common.
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether it holds one address only.
    pub const fn is_one(self) -> bool {
        self.prefix == width(self.address)
    }

    /// Whether the address lies in it. One of version four never lies in a block of version six.
    pub const fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && left_aligned(address) & mask(self.prefix) == left_aligned(self.address)
    }

    /// Whether every address of the other lies in it.
    pub const fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The bits of the address, the first in the highest place for both versions.
const fn left_aligned(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => (address.to_bits() as u128) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

const fn mask(prefix: u8) -> u128 {
    match u128::MAX.checked_shr(prefix as u32) {
        Some(rest) => !rest,
        None => u128::MAX,
    }
}

impl FromStr for IpNet {
    type Err = RuleError;

    /// Reads `192.0.2.0/24`, `192.0.2.7`, `2001:db8::/32` and, with the address in brackets, `[2001:db8::]/32`.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Net(text.into());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let parsed: IpAddr = bare.unwrap_or(address).parse().map_err(|_| wrong())?;
        if bare.is_some() && parsed.is_ipv4() {
            return Err(wrong());
        }
        let Some(prefix) = prefix else { return Ok(Self::one(parsed)) };
        let digits =
            !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = if digits { prefix.parse().map_err(|_| wrong())? } else { return Err(wrong()) };
        if prefix > width(parsed) {
            return Err(wrong());
        }
        Self::new(parsed, prefix).ok_or_else(|| RuleError::BitsBeyondPrefix(text.into()))
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => address.fmt(formatter)?,
            IpAddr::V6(address) => write!(formatter, "[{address}]")?,
        }
        if self.is_one() { Ok(()) } else { write!(formatter, "/{}", self.prefix) }
    }
}

/// A method of HTTP, in upper case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Method(Box<str>);

impl Method {
    /// The longest method, in bytes.
    pub const MAX_LEN: usize = 32;

    /// The method's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Method {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let fits = (1..=Self::MAX_LEN).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-') {
            return Ok(Self(text.to_ascii_uppercase().into_boxed_str()));
        }
        Err(RuleError::Method(text.into()))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A ready-made set: the hosts that a package tool of the host is set up to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetName {
    /// What pip installs from.
    Pypi,
    /// What npm installs from.
    Npm,
    /// What cargo fetches from.
    Crates,
    /// What apt installs from.
    Debian,
    /// What git and gh need of GitHub.
    Github,
}

impl SetName {
    /// Every set.
    pub const ALL: [Self; 5] = [Self::Pypi, Self::Npm, Self::Crates, Self::Debian, Self::Github];

    /// The set's name as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pypi => "pypi",
            Self::Npm => "npm",
            Self::Crates => "crates",
            Self::Debian => "debian",
            Self::Github => "github",
        }
    }
}

impl FromStr for SetName {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::ALL
            .into_iter()
            .find(|set| text.eq_ignore_ascii_case(set.as_str()))
            .ok_or_else(|| RuleError::Set(text.into()))
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A rule as an object: exactly one of host, net and set, and what narrows or widens it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(default, borrow)]
    host: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    net: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    set: Option<Cow<'a, str>>,
    #[serde(default)]
    ports: Vec<PortField>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    private: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a port is a number from 1 to 65535, or text such as \"8000-8100\"")]
enum PortField {
    Number(u16),
    Range(String),
}

impl TryFrom<Fields<'_>> for Rule {
    type Error = RuleError;

    fn try_from(fields: Fields<'_>) -> Result<Self, RuleError> {
        let target = match (fields.host, fields.net, fields.set) {
            (Some(host), None, None) => Target::Host(super::text::host_pattern(&host)?),
            (None, Some(net), None) => Target::Net(net.parse()?),
            (None, None, Some(set)) => Target::Set(set.parse()?),
            _ => return Err(RuleError::Targets),
        };
        let port = |field: PortField| match field {
            PortField::Number(port) => {
                PortRange::new(port, port).ok_or_else(|| RuleError::Port(port.to_string()))
            }
            PortField::Range(text) => text.parse(),
        };
        let path = |text: String| text.parse().map_err(|why| RuleError::Path { path: text, why });
        let rule = Self {
            target,
            ports: fields.ports.into_iter().map(port).collect::<Result<_, _>>()?,
            methods: fields.methods.iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
            paths: fields.paths.into_iter().map(path).collect::<Result<_, _>>()?,
            private: fields.private,
        };
        rule.check()?;
        Ok(rule)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrObject;

        impl<'de> Visitor<'de> for TextOrObject {
            type Value = Rule;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(
                    "a rule: text such as \"example.org:443\", or an object with `host`, `net` or `set`",
                )
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rule, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Rule, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                Rule::try_from(fields).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(TextOrObject)
    }
}

impl From<HostName> for Target {
    fn from(name: HostName) -> Self {
        Self::Host(HostPattern::Exact(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_what_they_say() {
        let net: IpNet = "192.0.2.0/24".parse().unwrap();
        assert!(net.contains("192.0.2.255".parse().unwrap()) && !net.contains("192.0.3.0".parse().unwrap()));
        assert!(!net.contains("::ffff:192.0.2.1".parse().unwrap()));
        let all: IpNet = "::/0".parse().unwrap();
        assert!(all.contains("::1".parse().unwrap()) && !all.contains("1.2.3.4".parse().unwrap()));
        assert!(all.covers("[2001:db8::]/32".parse().unwrap()) && !all.covers(net));
        assert!(!"192.0.2.0/25".parse::<IpNet>().unwrap().covers(net));
        let one: IpNet = "192.0.2.7".parse().unwrap();
        assert!(one.is_one() && net.covers(one) && one.contains(one.address()));
        for text in [
            "192.0.2.1/24",
            "192.0.2.0/33",
            "192.0.2/24",
            "192.0.2.0/",
            "192.0.2.0/+8",
            "192.0.2.0/024x",
            "[192.0.2.0]/24",
            "2001:db8::1/32",
            "fe80::1%eth0",
            "::/129",
            "0x7f.1",
            "",
            "/8",
            "127.1/8",
        ] {
            assert!(text.parse::<IpNet>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_and_methods() {
        assert_eq!("80-90".parse::<PortRange>().unwrap(), PortRange::new(80, 90).unwrap());
        for text in ["", "0", "65536", "90-80", "-", "1-", "-1", "+80", "80-90-100", "a", "0-5"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        assert_eq!("m-search".parse::<Method>().unwrap().as_str(), "M-SEARCH");
        for text in ["", "GE T", "G\u{e9}T", "*", &"A".repeat(33)] {
            assert!(text.parse::<Method>().is_err(), "{text}");
        }
    }

    #[test]
    fn objects_are_rules_too() {
        for (object, text) in [
            (r#"{"host": "Example.org"}"#, "example.org"),
            (
                r#"{"host": "*.example.org", "ports": [443, "8000-8100"], "private": true}"#,
                "*.example.org:443,8000-8100 private",
            ),
            (r#"{"net": "2001:db8::/32", "ports": ["53"]}"#, "[2001:db8::]/32:53"),
            (r#"{"set": "pypi"}"#, "pypi"),
            (r#"{"host": "db."}"#, "db."),
            (r#"{"host": "a.org", "methods": ["get"], "paths": ["/v1/*", "/v2"]}"#, "GET a.org/v1/* /v2"),
        ] {
            let rule: Rule = serde_json::from_str(object).unwrap();
            assert_eq!(rule.to_string(), text, "{object}");
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{text}\""));
            assert_eq!(text.parse::<Rule>().unwrap(), rule);
        }
        for object in [
            "{}",
            r#"{"host": "a.org", "net": "192.0.2.0/24"}"#,
            r#"{"host": "a.org", "port": 80}"#,
            r#"{"host": "a.org", "ports": [0]}"#,
            r#"{"host": "a.org", "ports": [70000]}"#,
            r#"{"host": "a.org:80"}"#,
            r#"{"host": "*"}"#,
            r#"{"set": "pip"}"#,
            r#"{"set": "pypi", "ports": [80]}"#,
            r#"{"host": "a.org", "paths": ["v1"]}"#,
            "7",
            "[]",
        ] {
            assert!(serde_json::from_str::<Rule>(object).is_err(), "{object}");
        }
    }

    #[test]
    fn rules_that_can_mean_nothing() {
        let rule = |text: &str| text.parse::<Rule>().unwrap();
        assert!(
            rule("192.0.2.0/24").check_allowing().is_err() && rule("192.0.2.0/24").check_denying().is_ok()
        );
        assert!(
            rule("192.0.2.7:80/v1").check_allowing().is_ok()
                && rule("192.0.2.7:80/v1").check_denying().is_err()
        );
        assert!(
            rule("a.org private").check_allowing().is_ok() && rule("a.org private").check_denying().is_err()
        );
        let mut many = rule("a.org");
        many.ports = (1..=65).map(PortRange::one).collect();
        assert!(matches!(many.check(), Err(RuleError::TooMany { what: "ports", count: 65, most: 64 })));
    }
}
