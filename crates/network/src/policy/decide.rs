//! The stages of a decision. Each is a pure function of the policy as it is now, so that tightening it takes effect at
//! once.
//!
//! The door asks in this order: may a [`name`] be known; may a connection be made ([`connect`]); for each address that
//! the name leads to, may it be dialled ([`address`]); and for what it can see inside, may the name in [`tls`] be asked
//! for, and may each [`request`] be made. Where [`connect`] says [`Look::Requests`], nothing is dialled before a request
//! was allowed, and then for that request's [`Allowed`].

use std::fmt;
use std::net::IpAddr;

use belljar_core::{GATEWAY_NAME, HostName, IpNet, NetworkPolicy, Rule, Rules, Target, Wall};

use super::address::{Grant, block, readings};
use super::denied::{Denied, List, Reason, RuleRef, shortened};
use super::reading::Reading;

/// Where a connection is to lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// To the host of this name, whatever its address.
    Name(HostName),
    /// To this address, given as such.
    Address(IpAddr),
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(formatter),
            Self::Address(IpAddr::V4(address)) => address.fmt(formatter),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}

/// What a connection was allowed as, by the policy as it was: when that changes, the stages begin anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Where it leads.
    pub destination: Destination,
    /// To which port.
    pub port: u16,
    /// The rule that allows it; none in the mode `open`, which needs none.
    pub rule: Option<RuleRef>,
    /// How closely the bytes must be looked at.
    pub look: Look,
    /// The places of all rules that allow it.
    granting: Vec<usize>,
    private: bool,
}

impl Allowed {
    /// What leads to a recording, and nowhere else: no rule is about it.
    pub fn recorded(destination: Destination, port: u16) -> Self {
        Self { destination, port, rule: None, look: Look::Requests, granting: Vec::new(), private: false }
    }
}

/// How closely the bytes of a connection must be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// They may be anything. What shows itself as TLS or plain HTTP is judged as such.
    Any,
    /// They must be HTTP, plain or inside TLS that is opened, and every request must be judged; what is not HTTP is refused.
    Requests,
}

/// A request of HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The host that it names.
    pub host: &'a Destination,
    /// The port that it names, or the one that is usual.
    pub port: u16,
    /// Its method.
    pub method: &'a str,
    /// Its target as it was sent: a path, perhaps with a query.
    pub target: &'a str,
    /// Whether it came over TLS.
    pub tls: bool,
}

impl Request<'_> {
    /// As it is written.
    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// The port at which the gateway asks others.
const BROUGHT_PORT: u16 = 443;

/// May this name be known: is there a port on which it may be connected to?
pub fn name(policy: &NetworkPolicy, name: &HostName) -> Result<(), Denied> {
    let destination = Destination::Name(name.clone());
    // Whether a port is allowed changes nowhere else than at these.
    let mut ports = vec![1];
    let after = |port: u16| port.checked_add(1);
    if let Some(rules) = policy.rules() {
        ports.extend(rules.allow.iter().flat_map(Rule::opened_ports).map(|range| range.first()));
        ports.extend(rules.deny.iter().flat_map(Rule::closed_ports).filter_map(|range| after(range.last())));
    }
    ports.sort_unstable();
    ports.dedup();
    let mut denials = Vec::new();
    for port in ports {
        match connect(policy, &destination, port) {
            Ok(_) => return Ok(()),
            Err(denied) => denials.push(denied),
        }
    }
    // The denial that says most: of a rule that stands in the way, rather than of one that is missing.
    let missing = |denied: &Denied| matches!(denied.reason, Reason::NotListed | Reason::PortNotListed);
    let telling = denials.iter().position(|denied| !missing(denied)).unwrap_or(0);
    let denied = denials.swap_remove(telling);
    let how_to_grant = match denied.reason {
        Reason::NotListed | Reason::PortNotListed => how_to_allow(&name.to_string()),
        _ => denied.how_to_grant,
    };
    Err(Denied { what: format!("to look up the name {name}"), how_to_grant, ..denied })
}

/// May a connection be made to this port of this destination?
pub fn connect(policy: &NetworkPolicy, destination: &Destination, port: u16) -> Result<Allowed, Denied> {
    let case = Case { destination, port, what: format!("a connection to {destination} port {port}") };
    let rules = case.rules(policy)?;
    // The gateway speaks nothing else.
    let is_gateway = matches!(destination, Destination::Name(name) if name.as_str() == GATEWAY_NAME);
    // And what it asks for others is asked of it by requests.
    let is_brought = is_brought(rules, destination, port);
    let mut look = if is_gateway || is_brought { Look::Requests } else { Look::Any };
    for (index, rule) in rules.deny.iter().enumerate() {
        match case.denies(rule) {
            Denies::Nothing => {}
            Denies::Everything(reason) => return Err(case.denied_by(reason, index, rule)),
            Denies::Requests => look = Look::Requests,
        }
    }
    let allowed = case.allowed(policy, rules, look)?;
    if let Destination::Address(ip) = destination {
        address(policy, &allowed, *ip)?;
    }
    // Which of the rules about requests it is, the request decides; until then nothing private is granted.
    let by_requests = allowed.granting.iter().any(|index| rules.allow[*index].is_about_requests());
    Ok(Allowed { private: allowed.private && !by_requests, ..allowed })
}

/// Whether the gateway asks what is asked of this destination.
pub fn is_brought(rules: &Rules, destination: &Destination, port: u16) -> bool {
    port == BROUGHT_PORT && matches!(destination, Destination::Name(name) if rules.brought.contains(name))
}

/// May this address be dialled for what was allowed? To be asked for each address that a name leads to, before it is
/// dialled; and where it is the host's own, [`own_address`] as well.
pub fn address(policy: &NetworkPolicy, allowed: &Allowed, ip: IpAddr) -> Result<(), Denied> {
    let case = Case::of_address(allowed, ip);
    let rules = case.rules(policy)?;
    for reading in readings(ip) {
        for (index, rule) in rules.deny.iter().enumerate() {
            match &rule.target {
                Target::Set(_) => return Err(case.denied_by(Reason::UnresolvedSet, index, rule)),
                Target::Net(net) if net.contains(reading) && closes(rule, case.port) => {
                    return Err(case.denied_by(Reason::DeniedByRule, index, rule));
                }
                Target::Net(_) | Target::Host(_) => {}
            }
        }
        let Some((special, kind)) = block(reading).filter(|_| Wall::PublicAddresses.stands()) else {
            continue;
        };
        let grant = kind.grant();
        let suits = |rule: &Rule, net: IpNet| match grant {
            Grant::Nothing => false,
            Grant::ItsOwnAddress => net.is_one(),
            Grant::PrivateOrNet => rule.private || special.covers(net),
        };
        let granted = (grant == Grant::PrivateOrNet && allowed.private)
            || case.is_granted_by_net(rules, allowed, reading, suits);
        if !granted {
            return Err(case.not_public(reading, grant, kind.words(), allowed));
        }
    }
    Ok(())
}

/// May this address be dialled although it is the host's own, of whatever kind? A rule about it alone grants that, and neither
/// a name that leads there, nor `private`, nor the mode `open`.
pub fn own_address(policy: &NetworkPolicy, allowed: &Allowed, ip: IpAddr) -> Result<(), Denied> {
    let case = Case::of_address(allowed, ip);
    let rules = case.rules(policy)?;
    if !Wall::HostAddresses.stands() || case.is_granted_by_net(rules, allowed, ip, |_, net| net.is_one()) {
        return Ok(());
    }
    let how = how_to_allow(&format!("{}:{}", Destination::Address(ip), case.port));
    let how = format!("{ip} is an address of the host itself. {how}");
    Err(case.denied(Reason::HostItself, allowed.rule.clone(), how))
}

/// May a client that speaks TLS on an allowed connection ask for this name?
pub fn tls(policy: &NetworkPolicy, allowed: &Allowed, asked: Option<&HostName>) -> Result<(), Denied> {
    let name = asked.map_or_else(|| "no name".to_owned(), HostName::to_string);
    let Allowed { destination, port, .. } = allowed;
    let what = format!("TLS that asks for {name} on a connection to {destination} port {port}");
    let case = Case { destination, port: *port, what };
    let rules = case.rules(policy)?;
    match (destination, asked) {
        (Destination::Name(own), Some(asked)) if own == asked => Ok(()),
        (Destination::Name(_), _) => Err(case.denied(Reason::OtherName, None, SAME_NAME.into())),
        (Destination::Address(_), None) => Ok(()),
        (Destination::Address(_), Some(asked)) => {
            let named = Case { destination: &Destination::Name(asked.clone()), ..case };
            for (index, rule) in rules.deny.iter().enumerate() {
                match named.denies(rule) {
                    Denies::Nothing => {}
                    Denies::Everything(reason) => return Err(named.denied_by(reason, index, rule)),
                    Denies::Requests => return Err(named.unseen(List::Deny, index, rule)),
                }
            }
            Ok(())
        }
    }
}

/// May this request be made on an allowed connection? The answer says by which rule: [`address`] must be asked again
/// with it when the connection was not dialled for the same rule.
pub fn request(policy: &NetworkPolicy, allowed: &Allowed, request: Request<'_>) -> Result<Allowed, Denied> {
    let (scheme, Request { host, port, method, target, .. }) = (request.scheme(), request);
    let what = format!("{} {scheme}://{host}:{port}{}", shortened(method), shortened(target));
    let case = Case { destination: &allowed.destination, port: allowed.port, what };
    let rules = case.rules(policy)?;
    let same_host = match (&allowed.destination, host) {
        (Destination::Address(_), Destination::Name(_)) => true,
        (own, asked) => own == asked,
    };
    if !same_host || port != allowed.port {
        return Err(case.denied(Reason::OtherName, None, SAME_NAME.into()));
    }
    let named = Case { destination: host, port, what: case.what.clone() };
    let looked_into = |rule: &Rule| {
        !rule.paths.is_empty()
            && [&case, &named].iter().any(|case| matches!(case.denies(rule), Denies::Requests))
    };
    let reading = Reading::of(target, rules.deny.iter().any(looked_into));
    for (index, rule) in rules.deny.iter().enumerate() {
        for case in [&case, &named] {
            match case.denies(rule) {
                Denies::Everything(reason) => return Err(case.denied_by(reason, index, rule)),
                Denies::Requests if denies_request(rule, method, &reading) => {
                    return Err(case.denied_by(Reason::DeniedByRule, index, rule));
                }
                Denies::Requests | Denies::Nothing => {}
            }
        }
    }
    let plain = rules
        .allow
        .iter()
        .any(|rule| case.is_about(rule) && opens(rule, case.port) && !rule.is_about_requests());
    if plain || matches!(policy, NetworkPolicy::Open(_)) {
        return case.allowed(policy, rules, allowed.look);
    }
    let matching =
        rules.allow.iter().enumerate().filter(|(_, rule)| case.is_about(rule) && opens(rule, case.port));
    let (granting, others): (Vec<_>, Vec<_>) =
        matching.partition(|(_, rule)| allows_request(rule, method, &reading));
    if !granting.is_empty() {
        return Ok(case.allow(&granting, allowed.look));
    }
    let Some((index, rule)) = others.into_iter().next() else { return Err(case.not_listed(policy, rules)) };
    let plain_path = match &reading {
        Reading::Plain(path) => Some(path),
        Reading::Ambiguous(_) | Reading::Beyond => None,
    };
    let (reason, how_to_grant) = match plain_path {
        Some(path) => {
            (Reason::RequestNotListed, how_to_allow(&format!("{method} {scheme}://{host}:{port}{path}")))
        }
        None => (
            Reason::AmbiguousPath,
            format!("Send a path without {UNCLEAR}, or ask the sandbox's owner for a rule without paths."),
        ),
    };
    Err(case.denied(reason, Some(RuleRef::new(List::Allow, index, rule)), how_to_grant))
}

/// Whether a rule is about a host and a port.
pub fn covers(rule: &Rule, destination: &Destination, port: u16) -> bool {
    Case { destination, port, what: String::new() }.is_about(rule) && opens(rule, port)
}

/// Why nobody looks into TLS that would have to be looked into.
pub fn unseen(allowed: &Allowed) -> Denied {
    let what = format!("TLS on a connection to {} port {}", allowed.destination, allowed.port);
    Denied { what, reason: Reason::Unseen, rule: allowed.rule.clone(), how_to_grant: UNSEEN.into() }
}

const UNSEEN: &str = "The sandbox's owner can grant the host with a rule without methods and paths, or make a sandbox with this \
                      rule from the start: its TLS is opened then.";
const SAME_NAME: &str = "Ask for the host by the name under which it was looked up and connected to.";
const UNCLEAR: &str = "`//`, `.` and `..` segments, `;`, `\\` and their escapes";

fn how_to_allow(rule: &str) -> String {
    // As it stands between quotes in a shell.
    let rule = shortened(rule).replace('\'', r"'\''");
    format!("The sandbox's owner can grant it with `--allow '{rule}'`, or under `allow` in its policy file.")
}

fn opens(rule: &Rule, port: u16) -> bool {
    rule.opened_ports().iter().any(|range| range.contains(port))
}

fn closes(rule: &Rule, port: u16) -> bool {
    rule.closed_ports().iter().any(|range| range.contains(port))
}

fn allows_request(rule: &Rule, method: &str, reading: &Reading) -> bool {
    let method = rule.methods.is_empty() || rule.methods.iter().any(|own| own.as_str() == method);
    let path = match reading {
        _ if rule.paths.is_empty() => true,
        Reading::Plain(path) => rule.paths.iter().any(|own| own.matches(path)),
        Reading::Ambiguous(_) | Reading::Beyond => false,
    };
    method && path
}

fn denies_request(rule: &Rule, method: &str, reading: &Reading) -> bool {
    let method =
        rule.methods.is_empty() || rule.methods.iter().any(|own| own.as_str().eq_ignore_ascii_case(method));
    let matches = |path: &String| rule.paths.iter().any(|own| own.matches_in_any_case(path));
    let path = match reading {
        _ if rule.paths.is_empty() => true,
        Reading::Plain(path) => matches(path),
        Reading::Ambiguous(meanings) => meanings.iter().any(matches),
        Reading::Beyond => true,
    };
    method && path
}

/// What a rule denies of a connection.
enum Denies {
    Nothing,
    Requests,
    Everything(Reason),
}

/// What is being judged.
struct Case<'a> {
    destination: &'a Destination,
    port: u16,
    what: String,
}

impl<'a> Case<'a> {
    /// Whether an address may be dialled for what was allowed.
    fn of_address(allowed: &'a Allowed, ip: IpAddr) -> Self {
        let what = match &allowed.destination {
            Destination::Name(name) => {
                format!("a connection to {name} port {} at its address {ip}", allowed.port)
            }
            own @ Destination::Address(_) => format!("a connection to {own} port {}", allowed.port),
        };
        Case { destination: &allowed.destination, port: allowed.port, what }
    }

    /// Whether there is a rule about addresses, this one among them, that suits.
    fn is_granted_by_net(
        &self,
        rules: &Rules,
        allowed: &Allowed,
        ip: IpAddr,
        suits: impl Fn(&Rule, IpNet) -> bool,
    ) -> bool {
        rules.allow.iter().enumerate().any(|(index, rule)| {
            let Target::Net(net) = rule.target else { return false };
            let applies = !rule.is_about_requests() || allowed.granting.contains(&index);
            suits(rule, net) && applies && net.contains(ip) && opens(rule, self.port)
        })
    }

    fn rules<'p>(&self, policy: &'p NetworkPolicy) -> Result<&'p Rules, Denied> {
        let how = || how_to_allow(&format!("{}:{}", self.destination, self.port));
        policy.rules().ok_or_else(|| self.denied(Reason::NoNetwork, None, how()))
    }

    /// Whether a rule that allows is about this destination: an address is only what it is.
    fn is_about(&self, rule: &Rule) -> bool {
        match (&rule.target, self.destination) {
            (Target::Host(pattern), Destination::Name(name)) => pattern.matches(name),
            (Target::Net(net), Destination::Address(address)) => net.contains(*address),
            _ => false,
        }
    }

    /// What a rule denies: an address is whatever it could lead to.
    fn denies(&self, rule: &Rule) -> Denies {
        let about = match (&rule.target, self.destination) {
            (Target::Set(_), _) => return Denies::Everything(Reason::UnresolvedSet),
            (Target::Host(pattern), Destination::Name(name)) => pattern.matches(name),
            (Target::Net(net), Destination::Address(address)) => {
                readings(*address).into_iter().any(|ip| net.contains(ip))
            }
            _ => false,
        };
        match &rule.target {
            _ if !about || !closes(rule, self.port) => Denies::Nothing,
            Target::Host(_) if rule.is_about_requests() => Denies::Requests,
            _ => Denies::Everything(Reason::DeniedByRule),
        }
    }

    /// By which rule a connection is allowed, if by one.
    fn allowed(&self, policy: &NetworkPolicy, rules: &Rules, look: Look) -> Result<Allowed, Denied> {
        let matching =
            rules.allow.iter().enumerate().filter(|(_, rule)| self.is_about(rule) && opens(rule, self.port));
        let (requests, plain): (Vec<_>, Vec<_>) = matching.partition(|(_, rule)| rule.is_about_requests());
        match (policy, &plain[..], &requests[..]) {
            (NetworkPolicy::Open(_), ..) | (_, [_, ..], _) => Ok(self.allow(&plain, look)),
            (_, [], [_, ..]) => Ok(self.allow(&requests, Look::Requests)),
            (_, [], []) => Err(self.not_listed(policy, rules)),
        }
    }

    fn allow(&self, granting: &[(usize, &Rule)], look: Look) -> Allowed {
        // Of several, the one that grants most is named.
        let most = granting.iter().find(|(_, rule)| rule.private).or(granting.first());
        Allowed {
            destination: self.destination.clone(),
            port: self.port,
            rule: most.map(|(index, rule)| RuleRef::new(List::Allow, *index, rule)),
            look,
            granting: granting.iter().map(|(index, _)| *index).collect(),
            private: most.is_some_and(|(_, rule)| rule.private),
        }
    }

    fn denied(&self, reason: Reason, rule: Option<RuleRef>, how_to_grant: String) -> Denied {
        Denied { what: self.what.clone(), reason, rule, how_to_grant }
    }

    fn denied_by(&self, reason: Reason, index: usize, rule: &Rule) -> Denied {
        let rule = RuleRef::new(List::Deny, index, rule);
        let how = match reason {
            Reason::UnresolvedSet => {
                format!("The sandbox's owner must resolve the set `{}` or take it out.", rule.text)
            }
            _ => format!(
                "The sandbox's owner can grant it only by taking the rule `{}` out of `deny`.",
                rule.text
            ),
        };
        self.denied(reason, Some(rule), how)
    }

    fn unseen(&self, list: List, index: usize, rule: &Rule) -> Denied {
        self.denied(Reason::Unseen, Some(RuleRef::new(list, index, rule)), UNSEEN.into())
    }

    fn not_listed(&self, policy: &NetworkPolicy, rules: &Rules) -> Denied {
        debug_assert!(matches!(policy, NetworkPolicy::Allowlist(_)), "what is open needs no list");
        let other_port = rules.allow.iter().enumerate().find(|(_, rule)| self.is_about(rule));
        let reason = if other_port.is_some() { Reason::PortNotListed } else { Reason::NotListed };
        let rule = other_port.map(|(index, rule)| RuleRef::new(List::Allow, index, rule));
        let mut how = how_to_allow(&format!("{}:{}", self.destination, self.port));
        let unresolved = rules.allow.iter().find_map(|rule| match rule.target {
            Target::Set(set) => Some(set),
            Target::Host(_) | Target::Net(_) => None,
        });
        if let (Some(set), None) = (unresolved, &rule) {
            how.push_str(&format!(" The set `{set}` is not resolved, and allows nothing yet."));
        }
        self.denied(reason, rule, how)
    }

    fn not_public(&self, ip: IpAddr, grant: Grant, kind: &str, allowed: &Allowed) -> Denied {
        let address = Destination::Address(ip);
        let Self { destination, port, .. } = self;
        let (reason, how) = match (grant, destination) {
            (Grant::Nothing, _) => (Reason::Loopback, format!("Nothing can grant it: {ip} is {kind}.")),
            (Grant::ItsOwnAddress, _) => (Reason::Metadata, how_to_allow(&format!("{address}:{port}"))),
            (Grant::PrivateOrNet, Destination::Name(name)) => {
                (Reason::NotPublic, how_to_allow(&format!("{name}:{port} private")))
            }
            (Grant::PrivateOrNet, Destination::Address(_)) => {
                (Reason::NotPublic, how_to_allow(&format!("{address}:{port}")))
            }
        };
        let how = if grant == Grant::Nothing { how } else { format!("{ip} is {kind}. {how}") };
        self.denied(reason, allowed.rule.clone(), how)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], deny: &[&str]) -> Rules {
        let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Rules { allow: list(allow), deny: list(deny), ..Rules::default() }
    }

    fn allowlist(allow: &[&str], deny: &[&str]) -> NetworkPolicy {
        NetworkPolicy::Allowlist(rules(allow, deny))
    }

    fn open(allow: &[&str], deny: &[&str]) -> NetworkPolicy {
        NetworkPolicy::Open(rules(allow, deny))
    }

    fn to(text: &str) -> Destination {
        match text.parse() {
            Ok(address) => Destination::Address(address),
            Err(_) => Destination::Name(text.parse().unwrap()),
        }
    }

    fn connected(policy: &NetworkPolicy, destination: &str, port: u16) -> Result<Allowed, Reason> {
        connect(policy, &to(destination), port).map_err(|denied| denied.reason)
    }

    fn dialled(policy: &NetworkPolicy, destination: &str, port: u16, ip: &str) -> Result<(), Reason> {
        let allowed = connected(policy, destination, port).unwrap();
        address(policy, &allowed, ip.parse().unwrap()).map_err(|denied| denied.reason)
    }

    fn requested(policy: &NetworkPolicy, host: &str, method: &str, target: &str) -> Result<Allowed, Reason> {
        let host = to(host);
        let allowed = connect(policy, &host, 80).unwrap();
        let asked = Request { host: &host, port: 80, method, target, tls: false };
        request(policy, &allowed, asked).map_err(|denied| denied.reason)
    }

    fn known(policy: &NetworkPolicy, host: &str) -> Result<(), Reason> {
        name(policy, &host.parse().unwrap()).map_err(|denied| denied.reason)
    }

    #[test]
    fn no_policy_no_network() {
        assert_eq!(connected(&NetworkPolicy::None, "a.org", 443), Err(Reason::NoNetwork));
        assert_eq!(known(&NetworkPolicy::None, "a.org"), Err(Reason::NoNetwork));
        assert_eq!(connected(&allowlist(&[], &[]), "a.org", 443), Err(Reason::NotListed));
        assert_eq!(known(&allowlist(&[], &[]), "a.org"), Err(Reason::NotListed));
    }

    #[test]
    fn an_allow_list_denies_the_rest() {
        let policy = allowlist(&["a.org", "*.b.org:8443", "192.0.2.0/24:22", "8.8.8.8:53"], &[]);
        for (destination, port, expected) in [
            ("a.org", 443, None),
            ("a.org", 80, None),
            ("a.org", 22, Some(Reason::PortNotListed)),
            ("x.a.org", 443, Some(Reason::NotListed)),
            ("a.org.evil.org", 443, Some(Reason::NotListed)),
            ("x.b.org", 8443, None),
            ("b.org", 8443, Some(Reason::NotListed)),
            ("192.0.2.7", 22, None),
            ("192.0.2.7", 443, Some(Reason::PortNotListed)),
            ("8.8.8.8", 53, None),
            ("8.8.4.4", 53, Some(Reason::NotListed)),
            ("::ffff:8.8.8.8", 53, Some(Reason::NotListed)),
        ] {
            assert_eq!(connected(&policy, destination, port).err(), expected, "{destination} {port}");
        }
        assert_eq!(known(&policy, "a.org"), Ok(()));
        assert_eq!(known(&policy, "x.b.org"), Ok(()));
        assert_eq!(known(&policy, "c.org"), Err(Reason::NotListed));
    }

    #[test]
    fn a_denial_wins() {
        let policy = allowlist(
            &["*.a.org", "b.org:1-1000", "0.0.0.0/0:1-65535"],
            &["x.a.org", "b.org:1-442", "8.8.0.0/16"],
        );
        assert_eq!(connected(&policy, "x.a.org", 443), Err(Reason::DeniedByRule));
        assert_eq!(known(&policy, "x.a.org"), Err(Reason::DeniedByRule));
        assert_eq!(connected(&policy, "b.org", 80), Err(Reason::DeniedByRule));
        assert!(connected(&policy, "b.org", 443).is_ok() && known(&policy, "b.org").is_ok());
        assert_eq!(connected(&policy, "8.8.8.8", 80), Err(Reason::DeniedByRule));
        assert_eq!(dialled(&policy, "y.a.org", 443, "8.8.8.8"), Err(Reason::DeniedByRule));
        assert_eq!(dialled(&policy, "y.a.org", 443, "1.1.1.1"), Ok(()));
        assert_eq!(dialled(&policy, "y.a.org", 443, "::ffff:8.8.8.8"), Err(Reason::NotPublic));
        let policy = allowlist(&["b.org:443,8080-8090"], &["b.org:443", "b.org:8000-8090"]);
        assert_eq!(known(&policy, "b.org"), Err(Reason::DeniedByRule));
        // Denied in whatever form it is written.
        let policy = open(&["[::]/0:80 private", "0.0.0.0/0:80 private"], &["10.0.0.0/8"]);
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::"] {
            assert_eq!(connected(&policy, address, 80), Err(Reason::DeniedByRule), "{address}");
        }
        assert!(connected(&policy, "::ffff:11.1.2.3", 80).is_ok());
    }

    #[test]
    fn open_is_what_is_public() {
        let policy = open(&["db.org private", "10.0.0.5:5432"], &["evil.org", "*.evil.org"]);
        assert!(connected(&policy, "a.org", 12345).is_ok() && connected(&policy, "8.8.8.8", 53).is_ok());
        assert_eq!(connected(&policy, "evil.org", 443), Err(Reason::DeniedByRule));
        assert_eq!(known(&policy, "x.evil.org"), Err(Reason::DeniedByRule));
        assert_eq!(connected(&policy, "10.0.0.6", 5432), Err(Reason::NotPublic));
        assert!(connected(&policy, "10.0.0.5", 5432).is_ok());
        assert_eq!(connected(&policy, "10.0.0.5", 22), Err(Reason::NotPublic));
        assert_eq!(dialled(&policy, "a.org", 443, "10.0.0.6"), Err(Reason::NotPublic));
        assert_eq!(dialled(&policy, "a.org", 5432, "10.0.0.5"), Ok(()));
        assert_eq!(dialled(&policy, "db.org", 443, "10.0.0.6"), Ok(()));
        assert_eq!(dialled(&policy, "db.org", 5432, "10.0.0.6"), Err(Reason::NotPublic));
        // A raw address does not hide a name that is denied.
        let raw = connected(&policy, "8.8.8.8", 443).unwrap();
        let asks =
            |name: &str| tls(&policy, &raw, Some(&name.parse().unwrap())).map_err(|denied| denied.reason);
        assert_eq!((asks("a.org"), asks("x.evil.org")), (Ok(()), Err(Reason::DeniedByRule)));
        let host = to("evil.org");
        let asked = Request { host: &host, port: 443, method: "GET", target: "/", tls: false };
        assert_eq!(request(&policy, &raw, asked).unwrap_err().reason, Reason::DeniedByRule);
    }

    #[test]
    fn what_private_does_not_grant() {
        let policy = allowlist(
            &[
                "a.org private",
                "b.org",
                "127.0.0.0/8:80",
                "169.254.0.0/16:80",
                "169.254.169.254:8080",
                "0.0.0.0/0:80 private",
            ],
            &[],
        );
        for (address, expected) in [
            ("10.0.0.1", Ok(())),
            ("fd00::1", Ok(())),
            ("100.64.0.1", Ok(())),
            ("::ffff:8.8.8.8", Ok(())),
            ("127.0.0.1", Err(Reason::Loopback)),
            ("0.0.0.0", Err(Reason::Loopback)),
            ("::", Err(Reason::Loopback)),
            ("::1", Err(Reason::Loopback)),
            ("::ffff:127.0.0.1", Err(Reason::Loopback)),
            ("64:ff9b::7f00:1", Err(Reason::Loopback)),
            ("169.254.169.254", Err(Reason::Metadata)),
            ("::ffff:169.254.169.254", Err(Reason::Metadata)),
            ("fd00:ec2::254", Err(Reason::Metadata)),
            ("168.63.129.16", Err(Reason::Metadata)),
            ("100.100.100.200", Err(Reason::Metadata)),
        ] {
            assert_eq!(dialled(&policy, "a.org", 80, address), expected, "{address}");
        }
        assert_eq!(connected(&policy, "127.0.0.1", 80), Err(Reason::Loopback));
        assert_eq!(connected(&policy, "169.254.1.1", 80), Err(Reason::Metadata));
        assert!(connected(&policy, "169.254.169.254", 8080).is_ok(), "granted by its own address alone");
        // A block that happens to hold private addresses does not grant them.
        let wide = allowlist(&["0.0.0.0/0:80", "10.1.0.0/16:81"], &[]);
        assert!(connected(&wide, "8.8.8.8", 80).is_ok() && connected(&wide, "10.1.2.3", 81).is_ok());
        assert_eq!(connected(&wide, "10.1.2.3", 80), Err(Reason::NotPublic));
    }

    #[test]
    fn the_hosts_own_addresses_need_a_rule_about_each_alone() {
        let own = "8.8.8.8";
        for (policy, expected) in [
            (open(&[], &[]), Err(Reason::HostItself)),
            (open(&["8.8.8.8:80"], &[]), Ok(())),
            (open(&["8.8.8.8:81", "8.8.8.0/24:80", "0.0.0.0/0:80 private"], &[]), Err(Reason::HostItself)),
            (allowlist(&["a.org private"], &[]), Err(Reason::HostItself)),
            (allowlist(&["a.org", "8.8.8.8:80"], &[]), Ok(())),
        ] {
            let allowed = connected(&policy, "a.org", 80).unwrap();
            let judged = own_address(&policy, &allowed, own.parse().unwrap());
            assert_eq!(judged.map_err(|denied| denied.reason), expected, "{policy:?}");
        }
        let denied =
            own_address(&open(&[], &[]), &connected(&open(&[], &[]), own, 80).unwrap(), own.parse().unwrap());
        let text = denied.unwrap_err().to_string();
        assert!(text.contains("of the host itself") && text.contains("--allow '8.8.8.8:80'"), "{text}");
    }

    #[test]
    fn requests_are_judged_one_by_one() {
        let policy = allowlist(
            &["GET,HEAD http://a.org/v1/*", "POST http://a.org/v2/* private"],
            &["a.org/v1/secret/*"],
        );
        let connection = connected(&policy, "a.org", 80).unwrap();
        assert_eq!(connection.look, Look::Requests);
        for (method, target, expected) in [
            ("GET", "/v1/x", None),
            ("GET", "/v1/x?y=/../z", None),
            ("GET", "/%76%31/x", None),
            ("HEAD", "/v1/", None),
            ("POST", "/v2/x", None),
            ("POST", "/v1/x", Some(Reason::RequestNotListed)),
            ("get", "/v1/x", Some(Reason::RequestNotListed)),
            ("GET", "/v2/x", Some(Reason::RequestNotListed)),
            ("GET", "/", Some(Reason::RequestNotListed)),
            ("GET", "/v1/../v3", Some(Reason::AmbiguousPath)),
            ("GET", "/v1//x", Some(Reason::AmbiguousPath)),
            ("GET", "/v1/%2e%2e/x", Some(Reason::AmbiguousPath)),
            ("GET", "/v1/a%2fb", Some(Reason::AmbiguousPath)),
            ("GET", "/v1/a;b", Some(Reason::AmbiguousPath)),
            ("GET", "/v1/secret/x", Some(Reason::DeniedByRule)),
            ("GET", "/v1/SECRET/x", Some(Reason::DeniedByRule)),
            ("GET", "/v1/x/..%2fsecret/x", Some(Reason::DeniedByRule)),
            ("GET", "/v1/%73ecret/x", Some(Reason::DeniedByRule)),
        ] {
            assert_eq!(requested(&policy, "a.org", method, target).err(), expected, "{method} {target}");
        }
        // What one rule says of addresses is not what another says.
        let private = "10.0.0.1".parse().unwrap();
        let get = requested(&policy, "a.org", "GET", "/v1/x").unwrap();
        let post = requested(&policy, "a.org", "POST", "/v2/x").unwrap();
        assert!(address(&policy, &get, private).is_err() && address(&policy, &post, private).is_ok());
        assert!(address(&policy, &connection, private).is_err());
        assert_eq!(post.rule.unwrap().index, 1);
    }

    #[test]
    fn rules_about_requests_look_inside_tls() {
        let policy =
            allowlist(&["GET https://a.org/v1/*", "GET b.org:8443", "c.org", "d.org"], &["POST d.org"]);
        let a = connected(&policy, "a.org", 443).unwrap();
        assert_eq!((a.look, known(&policy, "a.org")), (Look::Requests, Ok(())));
        assert_eq!(unseen(&a).reason, Reason::Unseen);
        let a_org = to("a.org");
        let asked = |target| Request { host: &a_org, port: 443, method: "GET", target, tls: true };
        assert!(request(&policy, &a, asked("/v1/x")).is_ok());
        let denied = request(&policy, &a, asked("/v2/x")).unwrap_err();
        assert_eq!(denied.reason, Reason::RequestNotListed);
        assert!(
            denied.how_to_grant.contains("`--allow 'GET https://a.org:443/v2/x'`"),
            "{}",
            denied.how_to_grant
        );
        let b = connected(&policy, "b.org", 8443).unwrap();
        assert_eq!(b.look, Look::Requests);
        let reason = |allowed, name: Option<&str>| {
            tls(&policy, allowed, name.map(|name| name.parse().unwrap()).as_ref())
                .map_err(|denied| denied.reason)
        };
        assert_eq!(reason(&b, Some("b.org")), Ok(()));
        assert_eq!(reason(&b, Some("a.org")), Err(Reason::OtherName));
        assert_eq!(connected(&policy, "d.org", 443).unwrap().look, Look::Requests);
        assert_eq!(connected(&policy, "d.org", 80).unwrap().look, Look::Requests);
        let c = connected(&policy, "c.org", 443).unwrap();
        assert_eq!((c.look, reason(&c, Some("c.org"))), (Look::Any, Ok(())));
        assert_eq!(reason(&c, Some("a.org")), Err(Reason::OtherName));
        assert_eq!(reason(&c, None), Err(Reason::OtherName));
    }

    #[test]
    fn a_request_names_its_connection() {
        let policy = allowlist(&["a.org", "b.org", "192.0.2.7:80"], &[]);
        let allowed = connected(&policy, "a.org", 80).unwrap();
        let ask = |allowed: &Allowed, host: &str, port| {
            let host = to(host);
            let asked = Request { host: &host, port, method: "GET", target: "/", tls: false };
            request(&policy, allowed, asked)
                .map(|allowed| allowed.rule.unwrap().index)
                .map_err(|denied| denied.reason)
        };
        assert_eq!(ask(&allowed, "a.org", 80), Ok(0));
        assert_eq!(ask(&allowed, "b.org", 80), Err(Reason::OtherName));
        assert_eq!(ask(&allowed, "a.org", 8080), Err(Reason::OtherName));
        assert_eq!(ask(&allowed, "192.0.2.7", 80), Err(Reason::OtherName));
        let raw = connected(&policy, "192.0.2.7", 80).unwrap();
        assert_eq!(ask(&raw, "192.0.2.7", 80), Ok(2));
        assert_eq!(ask(&raw, "192.0.2.8", 80), Err(Reason::OtherName));
        assert_eq!(ask(&raw, "any.org", 80), Ok(2));
        // What the policy is now counts, not what it was.
        let tighter = allowlist(&["b.org"], &[]);
        let host = to("a.org");
        let asked = Request { host: &host, port: 80, method: "GET", target: "/", tls: false };
        assert_eq!(request(&tighter, &allowed, asked).unwrap_err().reason, Reason::NotListed);
        // Also for an address in another form than the one that is denied.
        let wide = ["[::]/0:80 private", "0.0.0.0/0:80 private"];
        let host = to("::ffff:10.1.2.3");
        let allowed = connect(&open(&wide, &[]), &host, 80).unwrap();
        let asked = Request { host: &host, ..asked };
        assert!(request(&open(&wide, &[]), &allowed, asked).is_ok());
        let denied = request(&open(&wide, &["10.0.0.0/8"]), &allowed, asked).unwrap_err();
        assert_eq!(denied.reason, Reason::DeniedByRule);
    }

    #[test]
    fn sets_that_are_not_resolved() {
        let policy = allowlist(&["pypi"], &[]);
        let denied = connect(&policy, &to("packages.example"), 443).unwrap_err();
        assert!(
            denied.reason == Reason::NotListed && denied.how_to_grant.contains("set `pypi` is not resolved")
        );
        for policy in [allowlist(&["a.org"], &["github"]), open(&[], &["github"])] {
            assert_eq!(connected(&policy, "a.org", 443), Err(Reason::UnresolvedSet));
            assert_eq!(connected(&policy, "8.8.8.8", 443), Err(Reason::UnresolvedSet));
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let policy = allowlist(&["a.org"], &["b.org"]);
        let text = connect(&policy, &to("c.org"), 22).unwrap_err().to_string();
        assert_eq!(
            text,
            "Belljar refused a connection to c.org port 22: nothing in its policy allows this host. The sandbox's owner can grant \
             it with `--allow 'c.org:22'`, or under `allow` in its policy file. Do not try another route: everything that leaves \
             the sandbox is judged by the same rules."
        );
        let text = connect(&policy, &to("b.org"), 22).unwrap_err().to_string();
        assert!(
            text.contains("(deny rule 1, `b.org`)") && text.contains("taking the rule `b.org` out"),
            "{text}"
        );
        let allowed = connect(&policy, &to("a.org"), 80).unwrap();
        let text = address(&policy, &allowed, "10.0.0.1".parse().unwrap()).unwrap_err().to_string();
        assert!(
            text.contains("10.0.0.1 is a private address") && text.contains("--allow 'a.org:80 private'"),
            "{text}"
        );
        let host = to("a.org");
        let target = "/\u{1b}[2J".repeat(500);
        let asked = Request { host: &host, port: 8080, method: "GET", target: &target, tls: false };
        let text = request(&policy, &allowed, asked).unwrap_err().to_string();
        assert!(text.len() < 3000 && !text.contains('\u{1b}'), "{text}");
        // What is said to grant it does.
        let policy = allowlist(&["GET http://a.org/v1/*"], &[]);
        for (destination, port, grant) in
            [("c.org", 22, "c.org:22"), ("2606::1", 22, "[2606::1]:22"), ("10.0.0.1", 1, "10.0.0.1:1")]
        {
            let denied = connect(&policy, &to(destination), port).unwrap_err();
            assert!(denied.how_to_grant.contains(&format!("--allow '{grant}'")), "{denied}");
            assert!(connected(&allowlist(&[grant], &[]), destination, port).is_ok());
        }
        let json = serde_json::to_value(connect(&policy, &to("c.org"), 22).unwrap_err()).unwrap();
        assert_eq!(json["reason"], "not_listed");
    }

    #[test]
    fn what_is_said_to_grant_it_is_one_word_of_a_shell() {
        let policy = allowlist(&["GET http://a.org/v1/*"], &[]);
        let allowed = connect(&policy, &to("a.org"), 80).unwrap();
        for path in ["/it's", "/'; touch /tmp/x; '", "/$(id)`id`", "/a'\\''b"] {
            let host = to("a.org");
            let asked = Request { host: &host, port: 80, method: "GET", target: path, tls: false };
            let denied = request(&policy, &allowed, asked).unwrap_err();
            let Some((_, command)) = denied.how_to_grant.split_once("`--allow ") else { continue };
            let (word, _) = command.rsplit_once("`, or under").unwrap();
            let shell = std::process::Command::new("sh")
                .args(["-c", &format!("printf '<%s>' {word}")])
                .output()
                .unwrap();
            assert_eq!(
                String::from_utf8_lossy(&shell.stdout),
                format!("<GET http://a.org:80{path}>"),
                "{denied}"
            );
        }
    }
}
