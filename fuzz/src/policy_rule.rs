//! Rules and names of hosts as people and protocols write them.

use belljar_core::{HostName, HostPattern, NetworkPolicy, Rule, Rules, Target, plain_path};
use belljar_network::policy::{Destination, Request, decide};

/// Reads the input as a rule, the name of a host, and the target of a request, one per line.
pub fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let [rule, name, target] = std::array::from_fn(|_| lines.next().unwrap_or_default());
    let name = host(name);
    if let Some(plain) = plain_path(target) {
        assert_eq!(plain_path(&plain).as_ref(), Some(&plain), "what is plain stays plain");
    }
    match rule.parse::<Rule>() {
        Ok(rule) => {
            assert!(rule.check().is_ok());
            assert_eq!(rule.to_string().parse::<Rule>().as_ref(), Ok(&rule), "what is written is read");
            if let Some(name) = name {
                judged(rule, name, target);
            }
        }
        Err(error) => assert!(error.to_string().len() < 2000),
    }
}

fn host(text: &str) -> Option<HostName> {
    let wire = HostName::from_wire(text.as_bytes());
    let name = HostName::parse(text).ok()?;
    assert!(name.as_str().len() <= HostName::MAX_LEN);
    assert!(name.as_str().bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.')));
    assert_eq!(HostName::parse(name.as_str()).as_ref(), Ok(&name), "the normal form stays");
    assert!(wire.is_err() || wire.as_ref() == Ok(&name));
    assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
    Some(name)
}

/// What a single rule allows is what it names, and where it also denies, it allows nothing.
fn judged(rule: Rule, name: HostName, target: &str) {
    let both = Rules { allow: vec![rule.clone()], deny: vec![rule.clone()], ..Rules::default() };
    let rules = Rules { allow: vec![rule.clone()], ..Rules::default() };
    let policy = NetworkPolicy::Allowlist(rules);
    let named = match &rule.target {
        Target::Host(HostPattern::Exact(own)) => own == &name,
        Target::Host(HostPattern::Below(own)) => name.as_str().ends_with(&format!(".{own}")),
        Target::Net(_) | Target::Set(_) => false,
    };
    let known = decide::name(&policy, &name).is_ok();
    assert!(named || !known, "{rule} {name}");
    let destination = Destination::Name(name);
    for port in [1, 22, 80, 443, 8080, 65_535] {
        let Ok(allowed) = decide::connect(&policy, &destination, port) else { continue };
        assert!(known && named);
        assert!(decide::address(&policy, &allowed, [127, 0, 0, 1].into()).is_err());
        let request = Request { host: &destination, port, method: "GET", target, tls: port == 443 };
        let requested = decide::request(&policy, &allowed, request);
        if let (Ok(_), false) = (&requested, rule.paths.is_empty()) {
            let plain = plain_path(target.split('?').next().unwrap())
                .expect("only what is plain is allowed by a path");
            assert!(rule.paths.iter().any(|path| path.matches(&plain)));
        }
        let denying = NetworkPolicy::Allowlist(both.clone());
        if let (Ok(allowed), Ok(_)) = (decide::connect(&denying, &destination, port), requested) {
            assert!(decide::request(&denying, &allowed, request).is_err(), "{rule}: a denial wins");
        }
    }
}
