//! Decisions against an oracle that is too simple to be wrong: strings, loops over bits, and a table of addresses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use belljar_core::{NetworkPolicy, Rule, Rules};
use belljar_network::policy::{Destination, Look, Request, decide};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const NAMES: [&str; 7] = ["org", "a.org", "x.a.org", "y.x.a.org", "b.org", "xa.org", "a.org.b.org"];
const PORTS: [u16; 5] = [22, 80, 443, 444, 8080];
const METHODS: [&str; 3] = ["GET", "POST", "PUT"];
const PATTERNS: [&str; 5] = ["/v1/*", "/v1/a", "/*", "/v2/*", "/*/a"];
/// Paths, and every way in which a server might understand them.
const PATHS: [(&str, &[&str]); 8] = [
    ("/v1/a", &["/v1/a"]),
    ("/v1/b", &["/v1/b"]),
    ("/v2/a?x=/v1/", &["/v2/a"]),
    ("/", &["/"]),
    ("/v1/../v2/a", &["/v1/../v2/a", "/v2/a"]),
    ("/v1/%2e%2e/v2/a", &["/v1/../v2/a", "/v2/a", "/v1/%2e%2e/v2/a"]),
    ("/v1%2fa", &["/v1%2Fa", "/v1/a"]),
    ("/v%31/%61", &["/v1/a"]),
];
const NETS: [(&str, u8); 9] = [
    ("8.8.0.0", 16),
    ("8.8.8.8", 32),
    ("0.0.0.0", 0),
    ("10.0.0.0", 8),
    ("10.1.2.3", 32),
    ("127.0.0.1", 32),
    ("169.254.0.0", 16),
    ("169.254.169.254", 32),
    ("::", 0),
];

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Public,
    Private,
    Metadata,
    Never,
}

/// Addresses, what they are, the block of that kind, and what else they could lead to.
const ADDRESSES: [(&str, Class, &str, u8, Option<&str>); 8] = [
    ("8.8.8.8", Class::Public, "", 0, None),
    ("1.1.1.1", Class::Public, "", 0, None),
    ("10.1.2.3", Class::Private, "10.0.0.0", 8, None),
    ("10.9.9.9", Class::Private, "10.0.0.0", 8, None),
    ("169.254.169.254", Class::Metadata, "169.254.0.0", 16, None),
    ("127.0.0.1", Class::Never, "", 0, None),
    ("::ffff:10.1.2.3", Class::Private, "::ffff:0.0.0.0", 96, Some("10.1.2.3")),
    ("::ffff:8.8.8.8", Class::Private, "::ffff:0.0.0.0", 96, Some("8.8.8.8")),
];

#[derive(Clone, Debug)]
struct Plain {
    host: Option<(bool, &'static str)>,
    net: (&'static str, u8),
    ports: Vec<u16>,
    methods: Vec<&'static str>,
    paths: Vec<&'static str>,
    private: bool,
}

impl Plain {
    fn text(&self) -> String {
        let mut text = self.methods.join(",");
        if !text.is_empty() {
            text.push(' ');
        }
        match self.host {
            Some((below, name)) => {
                text += if below { "*." } else { "" };
                text += name;
                if self.ports.is_empty() && !below {
                    text.push('.');
                }
            }
            None if self.net.0.contains(':') => text += &format!("[{}]/{}", self.net.0, self.net.1),
            None => text += &format!("{}/{}", self.net.0, self.net.1),
        }
        if !self.ports.is_empty() {
            text.push(':');
            text += &self.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        }
        text += &self.paths.join(" ");
        text + if self.private { " private" } else { "" }
    }

    fn has_port(&self, port: u16, without: &[u16]) -> bool {
        if self.ports.is_empty() {
            without.is_empty() || without.contains(&port)
        } else {
            self.ports.contains(&port)
        }
    }

    fn names(&self, name: &str) -> bool {
        match self.host {
            Some((true, own)) => name.ends_with(&format!(".{own}")),
            Some((false, own)) => name == own,
            None => false,
        }
    }

    fn holds(&self, ip: IpAddr) -> bool {
        self.host.is_none() && in_net(self.net.0, self.net.1, ip)
    }

    fn about_requests(&self) -> bool {
        !self.methods.is_empty() || !self.paths.is_empty()
    }
}

fn bits(ip: IpAddr) -> Vec<bool> {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    octets.iter().flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1 == 1)).collect()
}

fn in_net(net: &str, prefix: u8, ip: IpAddr) -> bool {
    let (net, ip) = (bits(net.parse().unwrap()), bits(ip));
    net.len() == ip.len() && net.iter().zip(&ip).take(prefix.into()).all(|(one, other)| one == other)
}

fn pattern_matches(pattern: &str, path: &str) -> bool {
    match pattern {
        "/*/a" => path.strip_suffix("/a").is_some_and(|rest| rest.len() > 1 && rest[1..].find('/').is_none()),
        _ => match pattern.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => pattern == path,
        },
    }
}

/// What is asked: to whom, at which address, and what.
#[derive(Clone, Debug)]
struct Ask {
    name: Option<&'static str>,
    port: u16,
    address: usize,
    method: &'static str,
    path: usize,
    /// As TLS that nobody opens, or as a request.
    tls: bool,
}

fn oracle(open: bool, allow: &[Plain], deny: &[Plain], ask: &Ask) -> bool {
    let (ip, class, block, block_prefix, inner) = ADDRESSES[ask.address];
    let ip: IpAddr = ip.parse().unwrap();
    let inner: Option<IpAddr> = inner.map(|inner| inner.parse().unwrap());
    let meanings = PATHS[ask.path].1;
    let clear = meanings.len() == 1;
    let targets = |rule: &Plain, any: bool| match ask.name {
        Some(name) => rule.names(name),
        None => rule.holds(ip) || (any && inner.is_some_and(|inner| rule.holds(inner))),
    };
    for rule in deny.iter().filter(|rule| rule.has_port(ask.port, &[])) {
        // By address, the whole host is denied, whatever the rule says of requests.
        if rule.holds(ip) || inner.is_some_and(|inner| rule.holds(inner)) {
            return false;
        }
        if targets(rule, true) {
            let method = rule.methods.is_empty() || rule.methods.contains(&ask.method);
            let path = rule.paths.is_empty()
                || rule.paths.iter().any(|own| meanings.iter().any(|path| pattern_matches(own, path)));
            if ask.tls || (method && path) || !rule.about_requests() {
                return false;
            }
        }
    }
    let grants = |rule: &&Plain| {
        let request = (rule.methods.is_empty() || rule.methods.contains(&ask.method))
            && (rule.paths.is_empty()
                || (clear && rule.paths.iter().any(|own| pattern_matches(own, meanings[0]))));
        let visible = !ask.tls && !open;
        targets(rule, false)
            && rule.has_port(ask.port, &[80, 443])
            && (!rule.about_requests() || (visible && request))
    };
    let granting: Vec<&Plain> = allow.iter().filter(grants).collect();
    if granting.is_empty() && !open {
        return false;
    }
    // If a rule about the whole connection allows it, the door looks no closer.
    let whole = granting.iter().any(|rule| !rule.about_requests());
    let private = granting.iter().any(|rule| rule.private && (!whole || !rule.about_requests()));
    let reachable = |ip: IpAddr, class: Class, block: (&str, u8)| {
        let nets = || {
            let plain =
                |rule: &&Plain| !rule.about_requests() || (ask.name.is_none() && !whole && grants(rule));
            allow.iter().filter(plain).filter(|rule| rule.holds(ip) && rule.has_port(ask.port, &[80, 443]))
        };
        match class {
            Class::Public => true,
            Class::Never => false,
            Class::Metadata => nets().any(|rule| rule.net.1 == if ip.is_ipv4() { 32 } else { 128 }),
            Class::Private => {
                private
                    || nets().any(|rule| {
                        let inside =
                            rule.net.1 >= block.1 && in_net(block.0, block.1, rule.net.0.parse().unwrap());
                        rule.private || inside
                    })
            }
        }
    };
    let inner_reachable =
        inner.is_none_or(|inner| match ADDRESSES.iter().find(|entry| entry.0 == inner.to_string()) {
            Some((_, class, block, prefix, _)) => reachable(inner, *class, (block, *prefix)),
            None => false,
        });
    reachable(ip, class, (block, block_prefix)) && inner_reachable
}

/// The door's own order of questions.
fn decided(policy: &NetworkPolicy, ask: &Ask) -> bool {
    let ip: IpAddr = ADDRESSES[ask.address].0.parse().unwrap();
    let destination = match ask.name {
        Some(name) => Destination::Name(name.parse().unwrap()),
        None => Destination::Address(ip),
    };
    if let Destination::Name(name) = &destination
        && decide::name(policy, name).is_err()
    {
        return false;
    }
    let Ok(allowed) = decide::connect(policy, &destination, ask.port) else { return false };
    if ask.tls {
        let asked = match &destination {
            Destination::Name(name) => Some(name),
            Destination::Address(_) => None,
        };
        let unopened = allowed.look == Look::Any && decide::tls(policy, &allowed, asked).is_ok();
        return unopened && decide::address(policy, &allowed, ip).is_ok();
    }
    let target = PATHS[ask.path].0;
    let request =
        Request { host: &destination, port: ask.port, method: ask.method, target, tls: ask.port == 443 };
    let Ok(allowed) = decide::request(policy, &allowed, request) else { return false };
    decide::address(policy, &allowed, ip).is_ok()
}

fn plain(allow: bool) -> impl Strategy<Value = Plain> {
    let host = proptest::option::weighted(0.7, (any::<bool>(), select(&NAMES[..])));
    let requests = (vec(select(&METHODS[..]), 0..2), vec(select(&PATTERNS[..]), 0..2), any::<bool>());
    (host, select(&NETS[..]), vec(select(&PORTS[..]), 0..3), requests, any::<bool>()).prop_map(
        move |(host, net, mut ports, (methods, paths, whole), private)| {
            let whole = whole || (!allow && host.is_none());
            if host.is_none() && ports.is_empty() && allow {
                ports = vec![80];
            }
            Plain {
                host,
                net,
                ports,
                methods: if whole { Vec::new() } else { methods },
                paths: if whole { Vec::new() } else { paths },
                private: private && allow,
            }
        },
    )
}

fn ask() -> impl Strategy<Value = Ask> {
    let name = proptest::option::weighted(0.7, select(&NAMES[..]));
    (name, select(&PORTS[..]), 0..ADDRESSES.len(), select(&METHODS[..]), 0..PATHS.len(), any::<bool>())
        .prop_map(|(name, port, address, method, path, tls)| Ask { name, port, address, method, path, tls })
}

fn policy(open: bool, allow: &[Plain], deny: &[Plain]) -> NetworkPolicy {
    let list = |rules: &[Plain]| rules.iter().map(|rule| rule.text().parse::<Rule>().unwrap()).collect();
    let rules = Rules { allow: list(allow), deny: list(deny), ..Rules::default() };
    if open { NetworkPolicy::Open(rules) } else { NetworkPolicy::Allowlist(rules) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn decisions_are_those_of_the_oracle(
        open in any::<bool>(),
        allow in vec(plain(true), 0..5),
        deny in vec(plain(false), 0..3),
        asks in vec(ask(), 8),
    ) {
        let policy = policy(open, &allow, &deny);
        for ask in asks {
            prop_assert_eq!(decided(&policy, &ask), oracle(open, &allow, &deny, &ask), "{} {:?}", policy, ask);
        }
    }

    #[test]
    fn a_denial_only_takes_away(
        open in any::<bool>(),
        allow in vec(plain(true), 0..5),
        deny in vec(plain(false), 1..4),
        ask in ask(),
    ) {
        if decided(&policy(open, &allow, &deny), &ask) {
            prop_assert!(decided(&policy(open, &allow, &[]), &ask), "{:?}", ask);
        }
    }

    #[test]
    fn a_name_is_known_when_some_port_is_open(
        open in any::<bool>(),
        allow in vec(plain(true), 0..4),
        deny in vec(plain(false), 0..4),
        name in select(&NAMES[..]),
    ) {
        let policy = policy(open, &allow, &deny);
        let name: belljar_core::HostName = name.parse().unwrap();
        let destination = Destination::Name(name.clone());
        let mut ports = (1..=500).chain([8079, 8080, 8081, 65535]);
        let open = ports.any(|port| decide::connect(&policy, &destination, port).is_ok());
        prop_assert_eq!(decide::name(&policy, &name).is_ok(), open, "{}", policy);
    }
}
