//! Rules as people write them: `example.org:8443`, `192.0.2.0/24:5432`, `GET,HEAD http://example.org/v1/*`, `pypi`.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use super::name::{HostName, HostPattern, NameError};
use super::path::{PathError, PathPattern};
use super::rule::{IpNet, PortRange, Rule, SetName, Target};

/// Why something is not a rule; the text says how to write it. What was given is shortened and escaped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Nothing there.
    #[error("a rule is empty; write a host, such as `example.org` or `example.org:8443`")]
    Empty,
    /// Longer than any rule within the bounds.
    #[error("a rule has {0} bytes, and {max} is the most", max = MAX_TEXT)]
    TooLong(usize),
    /// A control character.
    #[error("`{}` holds a control character", shown(.0))]
    Control(String),
    /// Not the name of a host.
    #[error("`{}` is not a host: {why}", shown(.host))]
    Host {
        /// What was given.
        host: String,
        /// What is wrong with it.
        why: NameError,
    },
    /// `*` alone.
    #[error(
        "`*` is not a host; for everything that is public use the mode `open`, for all below a name `*.example.org`"
    )]
    Everything,
    /// One label, which is more likely a set that was misspelt.
    #[error(
        "`{label}` is neither a set (pypi, npm, crates, debian, github) nor a full name; for a host of one label name its port \
         (`{label}:443`) or write a dot after it (`{label}.`)",
        label = shown(.0)
    )]
    OneLabel(String),
    /// A user or password before the host.
    #[error("`{}` names a user; a rule is about hosts only", shown(.0))]
    User(String),
    /// Neither `http` nor `https`.
    #[error("`{}` is neither http:// nor https://; for other protocols write the host and its port, `example.org:22`", shown(.0))]
    Scheme(String),
    /// An address of version six without brackets.
    #[error("`{}`: put brackets around an address of version six, `[2001:db8::]/32:443`", shown(.0))]
    Brackets(String),
    /// Not a block of addresses.
    #[error("`{}` is not a block of addresses; write `192.0.2.0/24` or `[2001:db8::]/32`", shown(.0))]
    Net(String),
    /// `192.0.2.1/24`.
    #[error("`{}` has bits beyond its prefix; write the first address of the block, or leave the prefix out", shown(.0))]
    BitsBeyondPrefix(String),
    /// A block of addresses that are allowed on no port.
    #[error("`{0}` names no port, and addresses have no usual ones; write `{0}:443` or `{0}:8000-8100`")]
    NetWithoutPorts(IpNet),
    /// Requests that are denied by address could be made by name.
    #[error("`{0}` is denied for some requests only; deny the addresses for all, or name the host")]
    RequestsOfDeniedNet(IpNet),
    /// `private` widens, and a denial cannot.
    #[error("`private` has no meaning where something is denied; leave it out")]
    PrivateDenied,
    /// Not a port or a range of ports.
    #[error("`{}` is not a port; ports go from 1 to 65535, written `443`, `80,443` or `8000-8100`", shown(.0))]
    Port(String),
    /// Not a method of HTTP.
    #[error("`{}` is not a method of HTTP; write `GET` or `GET,HEAD`", shown(.0))]
    Method(String),
    /// Not a path.
    #[error("`{}` is not a path: {why}", shown(.path))]
    Path {
        /// What was given.
        path: String,
        /// What is wrong with it.
        why: PathError,
    },
    /// Not one of the ready-made sets.
    #[error("`{}` is not a set; there are pypi, npm, crates, debian and github", shown(.0))]
    Set(String),
    /// A set with ports, methods or paths.
    #[error("the set `{0}` brings its own ports; leave ports, methods and paths out")]
    NarrowedSet(SetName),
    /// None or several of host, net and set.
    #[error("a rule has exactly one of `host`, `net` and `set`")]
    Targets,
    /// More of something than a rule can have.
    #[error("a rule has {count} {what}, and {most} is the most")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        most: usize,
    },
}

const MAX_TEXT: usize = 128 * 1024;

/// The beginning of what was given, safe to print.
fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Reads a host or `*.host`.
pub(super) fn host_pattern(text: &str) -> Result<HostPattern, RuleError> {
    if text == "*" {
        return Err(RuleError::Everything);
    }
    text.parse().map_err(|why| RuleError::Host { host: text.into(), why })
}

impl FromStr for Rule {
    type Err = RuleError;

    /// Reads `[METHOD,... ][http[s]://]HOST[:PORT,...][/PATH][ /PATH ...][ private]`, where HOST is a name, `*.name`,
    /// an address or a block of addresses; or the name of a set.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text.len() > MAX_TEXT {
            return Err(RuleError::TooLong(text.len()));
        }
        if text.contains(char::is_control) {
            return Err(RuleError::Control(text.into()));
        }
        let mut words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let private = words.len() > 1 && words.pop_if(|word| *word == "private").is_some();
        let further = words.iter().position(|word| word.starts_with('/')).unwrap_or(words.len());
        let further = words.split_off(further);
        let (methods, place) = match words[..] {
            [] => return Err(RuleError::Empty),
            [place] => (None, place),
            [methods, place] => (Some(methods), place),
            [_, _, third, ..] => {
                return Err(RuleError::Path { path: third.into(), why: PathError::Relative });
            }
        };
        let mut rule = read_place(place)?;
        rule.private = private;
        for word in further {
            rule.paths.push(path(word)?);
        }
        if let Some(methods) = methods {
            // Two words by mistake are rarely in capitals.
            if methods.contains(|c: char| c.is_lowercase()) {
                return Err(RuleError::Method(methods.into()));
            }
            rule.methods = methods.split(',').map(str::parse).collect::<Result<_, _>>()?;
        }
        rule.check()?;
        Ok(rule)
    }
}

fn path(text: &str) -> Result<PathPattern, RuleError> {
    text.parse().map_err(|why| RuleError::Path { path: text.into(), why })
}

/// Reads `[http[s]://]HOST[:PORT,...][/PATH]`.
fn read_place(place: &str) -> Result<Rule, RuleError> {
    let (usual_port, rest) = match place.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Some(80), rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Some(443), rest),
        Some(_) => return Err(RuleError::Scheme(place.into())),
        None => (None, place),
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    if authority.contains('@') {
        return Err(RuleError::User(place.into()));
    }
    let (host, is_address, after) = split_host(rest, usual_port.is_some())?;
    let (ports, after) = split_ports(after)?;
    let target = if is_address {
        Target::Net(host.parse()?)
    } else if let (Ok(set), None, true, "") = (host.parse(), usual_port, ports.is_empty(), after) {
        Target::Set(set)
    } else if usual_port.is_none() && ports.is_empty() && !host.contains('.') && HostName::parse(host).is_ok()
    {
        return Err(RuleError::OneLabel(host.into()));
    } else {
        Target::Host(host_pattern(host)?)
    };
    let mut rule = Rule::about(target);
    rule.ports = ports;
    if rule.ports.is_empty() {
        rule.ports.extend(usual_port.map(PortRange::one));
    }
    if !after.is_empty() {
        rule.paths.push(path(after)?);
    }
    Ok(rule)
}

/// Splits the host from what follows it, and says whether it is an address. A prefix belongs to an address, except in a
/// URL, where a slash begins a path.
fn split_host(text: &str, in_url: bool) -> Result<(&str, bool, &str), RuleError> {
    let (end, is_address) = if text.starts_with('[') {
        (text.find(']').ok_or_else(|| RuleError::Brackets(text.into()))? + 1, true)
    } else {
        let end = text.find([':', '/']).unwrap_or(text.len());
        (end, text[..end].parse::<Ipv4Addr>().is_ok())
    };
    let (host, after) = text.split_at(end);
    if !is_address && after.strip_prefix(':').is_some_and(authority_has_colon) {
        return Err(RuleError::Brackets(text.into()));
    }
    if !is_address || in_url || !after.starts_with('/') {
        return Ok((host, is_address, after));
    }
    let prefix = after[1..].find([':', '/']).map_or(after.len(), |at| at + 1);
    let (host, after) = text.split_at(end + prefix);
    Ok((host, is_address, after))
}

fn authority_has_colon(text: &str) -> bool {
    text.split('/').next().is_some_and(|authority| authority.contains(':'))
}

/// Splits `:PORT,...` from the path after it.
fn split_ports(text: &str) -> Result<(Vec<PortRange>, &str), RuleError> {
    if text.is_empty() || text.starts_with('/') {
        return Ok((Vec::new(), text));
    }
    let Some(text) = text.strip_prefix(':') else { return Err(RuleError::Port(text.into())) };
    let (ports, after) = text.split_at(text.find('/').unwrap_or(text.len()));
    Ok((ports.split(',').map(str::parse).collect::<Result<_, _>>()?, after))
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.methods.is_empty() {
            joined(formatter, &self.methods, ",")?;
            formatter.write_str(" ")?;
        }
        match &self.target {
            Target::Set(set) => set.fmt(formatter)?,
            Target::Net(net) => {
                net.fmt(formatter)?;
                // So that the path is not taken for a prefix.
                if net.is_one() && self.ports.is_empty() && !self.paths.is_empty() {
                    write!(formatter, "/{}", net.prefix())?;
                }
            }
            Target::Host(host) => {
                host.fmt(formatter)?;
                if self.ports.is_empty() && !host.to_string().contains('.') {
                    formatter.write_str(".")?;
                }
            }
        }
        if !self.ports.is_empty() {
            formatter.write_str(":")?;
            joined(formatter, &self.ports, ",")?;
        }
        joined(formatter, &self.paths, " ")?;
        formatter.write_str(if self.private { " private" } else { "" })
    }
}

fn joined<T: fmt::Display>(formatter: &mut fmt::Formatter<'_>, items: &[T], between: &str) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        formatter.write_str(if at == 0 { "" } else { between })?;
        item.fmt(formatter)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_people_write() {
        for (text, normal) in [
            ("example.org", "example.org"),
            ("  Example.ORG.  ", "example.org"),
            ("example.org:8443", "example.org:8443"),
            ("example.org:8000-8100", "example.org:8000-8100"),
            ("example.org:80,443,8000-8100", "example.org:80,443,8000-8100"),
            ("*.example.org", "*.example.org"),
            ("192.0.2.0/24:5432", "192.0.2.0/24:5432"),
            ("192.0.2.7:22", "192.0.2.7:22"),
            ("192.0.2.7/32:22", "192.0.2.7:22"),
            ("[2001:db8::]/32:443", "[2001:db8::]/32:443"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
            ("GET https://api.example.org/v1/*", "GET api.example.org:443/v1/*"),
            ("GET,HEAD http://example.org/v1/*", "GET,HEAD example.org:80/v1/*"),
            ("GET example.org /a /b private", "GET example.org/a /b private"),
            ("http://example.org:8080/", "example.org:8080/"),
            ("HTTPS://example.org", "example.org:443"),
            ("http://192.0.2.7/24", "192.0.2.7:80/24"),
            ("192.0.2.7/32/24", "192.0.2.7/32/24"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("example.org private", "example.org private"),
            ("pypi", "pypi"),
            ("PyPI", "pypi"),
            ("pypi private", "pypi private"),
            ("pypi.", "pypi."),
            ("pypi:443", "pypi:443"),
            ("db:5432", "db:5432"),
            ("private:80", "private:80"),
        ] {
            let rule: Rule = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(rule.to_string(), normal, "{text}");
            assert_eq!(normal.parse::<Rule>().unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_says_how_to_write_it() {
        for (text, says) in [
            ("", "is empty"),
            ("   ", "is empty"),
            ("*", "mode `open`"),
            ("*:443", "mode `open`"),
            ("pipy", "neither a set"),
            ("private", "neither a set"),
            ("a_b.org", "letters, digits"),
            ("127.1:80", "taken for an address"),
            ("0x7f000001:80", "taken for an address"),
            ("example.org:0", "not a port"),
            ("example.org:", "not a port"),
            ("example.org:http", "not a port"),
            ("example.org:90-80", "not a port"),
            ("user@example.org", "names a user"),
            ("https://user:pass@example.org/", "names a user"),
            ("ssh://example.org", "http:// nor https://"),
            ("2001:db8::1", "brackets"),
            ("2001:db8::/32:443", "brackets"),
            ("[2001:db8::", "brackets"),
            ("[2001:db8::1]443", "not a port"),
            ("[example.org]:80", "block of addresses"),
            ("192.0.2.1/24:80", "beyond its prefix"),
            ("192.0.2.0/33:80", "block of addresses"),
            ("192.0.2.7/v1", "block of addresses"),
            ("http://example.org/a?b", "servers read it differently"),
            ("http://example.org/a/../b", "servers read it differently"),
            ("http://example.org/a*", "whole segment"),
            ("GET PUT http://example.org", "begins with `/`"),
            ("GET,, example.org", "not a method"),
            ("get example.org", "not a method"),
            ("exam ple.org", "not a method"),
            ("GET pypi", "brings its own ports"),
            ("example.org\tx", "control character"),
            ("example.org\0", "control character"),
            ("/v1", "is empty"),
        ] {
            let error = text.parse::<Rule>().expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let long = "x".repeat(MAX_TEXT + 1).parse::<Rule>().unwrap_err();
        assert!(long.to_string().len() < 200, "{long}");
        let long = format!("{}.org", "x".repeat(5000)).parse::<Rule>().unwrap_err();
        assert!(long.to_string().len() < 200, "{long}");
    }

    fn name() -> impl Strategy<Value = HostName> {
        "[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?(\\.[a-z]([a-z0-9-]{0,4}[a-z0-9])?){0,3}|pypi|npm|private"
            .prop_filter_map("a number", |text| HostName::parse(&text).ok())
    }

    fn target() -> impl Strategy<Value = Target> {
        let net = (any::<std::net::IpAddr>(), 0..=128_u8).prop_map(|(address, prefix)| {
            let bits = |width: u8| u32::from(width.saturating_sub(prefix));
            let address = match address {
                std::net::IpAddr::V4(v4) => {
                    let kept = u32::MAX.checked_shl(bits(32)).unwrap_or(0);
                    Ipv4Addr::from_bits(v4.to_bits() & kept).into()
                }
                std::net::IpAddr::V6(v6) => {
                    let kept = u128::MAX.checked_shl(bits(128)).unwrap_or(0);
                    std::net::Ipv6Addr::from_bits(v6.to_bits() & kept).into()
                }
            };
            IpNet::new(address, prefix).unwrap_or(IpNet::one(address))
        });
        prop_oneof![
            name().prop_map(|name| Target::Host(HostPattern::Exact(name))),
            name().prop_map(|name| Target::Host(HostPattern::Below(name))),
            net.prop_map(Target::Net),
            proptest::sample::select(&SetName::ALL[..]).prop_map(Target::Set),
        ]
    }

    prop_compose! {
        fn rule()(
            target in target(),
            ports in vec((1..=u16::MAX, 0..100_u16).prop_map(|(first, more)| {
                PortRange::new(first, first.saturating_add(more)).unwrap()
            }), 0..4),
            methods in vec("[A-Z]{1,5}", 0..3),
            paths in vec("(/(\\*|[a-z0-9~_.-]{1,4}[a-z]|%C3%A9))+/?|/", 0..3),
            private in any::<bool>(),
        ) -> Rule {
            let set = matches!(target, Target::Set(_));
            Rule {
                target,
                ports: if set { Vec::new() } else { ports },
                methods: if set { Vec::new() } else { methods.iter().map(|text| text.parse().unwrap()).collect() },
                paths: if set { Vec::new() } else { paths.iter().map(|text| text.parse().unwrap()).collect() },
                private,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(rule in rule()) {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }

        #[test]
        fn no_text_makes_it_panic(text in "(?s).{0,60}|[a-z0-9:/\\[\\]*., -]{0,40}") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }
    }
}
