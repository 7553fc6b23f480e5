//! `belljar policy`: what a policy says, and what it would decide, without a sandbox.

use std::fmt::Write as _;
use std::net::IpAddr;

use belljar_core::{Error, ErrorCode, HostName, NetworkPolicy, Result};
use belljar_network::policy::{Allowed, Denied, Destination, Look, Reason, Request, RuleRef, decide};
use belljar_network::recording::{Summary, What, shelf};
use belljar_providers::home::Home;
use serde::Serialize;

use super::Context;
use crate::args::{PolicyCheckArgs, PolicyTestArgs, read_file};
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::escape::escape;
use crate::wiring;

pub(crate) fn check(context: &Context, args: &PolicyCheckArgs) -> Result<Status, Failure> {
    let printer = context.printer;
    let found = match read_file(&args.file)? {
        Ok(policy) => {
            if printer.json {
                printer.object(&serde_json::json!({ "policy": policy, "errors": [], "left_out": 0 }))?;
            } else {
                printer.out(&describe(&policy, printer))?;
            }
            return Ok(Status::SUCCESS);
        }
        Err(found) => found,
    };
    if printer.json {
        let errors: Vec<_> = found
            .errors
            .iter()
            .map(|error| serde_json::json!({ "line": error.line, "column": error.column, "reason": error.reason }))
            .collect();
        printer
            .object(&serde_json::json!({ "policy": null, "errors": errors, "left_out": found.left_out }))?;
    } else {
        let place = args.file.display();
        for error in &found.errors {
            printer.complaint(&format!("{place}:{}:{}: {}", error.line, error.column, error.reason));
        }
        if found.left_out > 0 {
            printer.complaint(&format!("{place}: and {} more", found.left_out));
        }
    }
    Ok(Status::UNFIT)
}

/// A policy in lines: its mode, its rules in order, its limits.
pub(super) fn describe(policy: &NetworkPolicy, printer: Printer) -> String {
    let mut text = format!("mode    {}\n", policy.mode());
    let Some(rules) = policy.rules() else { return text };
    for (word, list) in [("allow", &rules.allow), ("deny", &rules.deny)] {
        for rule in list {
            let _ = writeln!(text, "{word:<7} {}", printer.foreign(&rule.to_string()));
        }
    }
    let limits = &rules.limits;
    let _ = writeln!(
        text,
        "limits  connections {}, requests_per_second {}, bytes_per_second {}, total_bytes {}",
        limits.connections, limits.requests_per_second, limits.bytes_per_second, limits.total_bytes
    );
    text
}

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Judged {
    Allowed,
    Denied,
    /// What it depends on was taken out of the recording.
    Unclear,
}

/// What would become of one address.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    url: &'a str,
    status: Judged,
    allowed: bool,
    rule: Option<RuleRef>,
    reason: Option<&'static str>,
    message: Option<String>,
}

pub(crate) async fn test(context: &Context, args: PolicyTestArgs) -> Result<Status, Failure> {
    let (policy, mut urls, recording) = args.plan()?;
    let mut wanted = urls.iter().map(|url| Wanted::parse(url).map(Some)).collect::<Result<Vec<_>>>()?;
    let mut is_whole = true;
    if let Some(name) = recording {
        let reader = shelf::open(Home::open(context.home.clone())?.path(), &name)?;
        for (url, recorded) in reader.entries().iter().filter_map(Wanted::recorded) {
            urls.push(url);
            wanted.push(recorded);
        }
        is_whole = reader.entries().iter().all(|entry| entry.kind != What::Full);
    }
    let policy = match policy.rules().and_then(belljar_core::Rules::unresolved) {
        Some(_) => wiring::expand(context.home.clone(), policy).await?,
        None => policy,
    };
    let outcomes: Vec<Outcome<'_>> =
        urls.iter().zip(&wanted).map(|(url, wanted)| outcome(url, wanted.as_ref(), &policy)).collect();
    let printer = context.printer;
    if printer.json {
        printer.object(&serde_json::json!({ "results": outcomes }))?;
    } else {
        for outcome in &outcomes {
            let line = match (&outcome.message, &outcome.rule) {
                (Some(message), _) if outcome.status == Judged::Unclear => {
                    format!("unclear  {}: {message}", outcome.url)
                }
                (Some(message), _) => format!("denied   {}: {message}", outcome.url),
                (None, Some(rule)) => format!("allowed  {}: by {rule}", outcome.url),
                (None, None) => format!("allowed  {}: by the mode {}", outcome.url, policy.mode()),
            };
            // One is one line, wherever it is printed.
            printer.out(&format!("{}\n", escape(&line)))?;
        }
    }
    if !is_whole {
        printer.complaint("there was no room in the recording for all that happened: the rest is not judged");
    }
    let all = is_whole && outcomes.iter().all(|outcome| outcome.allowed);
    Ok(if all { Status::SUCCESS } else { Status::UNFIT })
}

/// What would become of something that was wanted, as far as it can be told what that was.
fn outcome<'a>(url: &'a str, wanted: Option<&Wanted>, policy: &NetworkPolicy) -> Outcome<'a> {
    match wanted.map_or(Ok(None), |wanted| wanted.judge(policy)) {
        Ok(Some(allowed)) => Outcome {
            url,
            status: Judged::Allowed,
            allowed: true,
            rule: allowed.rule,
            reason: None,
            message: None,
        },
        Ok(None) => Outcome {
            url,
            status: Judged::Unclear,
            allowed: false,
            rule: None,
            reason: None,
            message: Some("what this depends on was taken out of the recording".into()),
        },
        Err(denied) => Outcome {
            url,
            status: Judged::Denied,
            allowed: false,
            reason: Some(denied.reason.as_str()),
            message: Some(denied.to_string()),
            rule: denied.rule,
        },
    }
}

/// Something that code in a sandbox could want of the network.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    destination: Destination,
    port: u16,
    how: How,
}

#[derive(Debug, PartialEq, Eq)]
enum How {
    /// A bare connection.
    Connect,
    /// HTTP, plain or inside TLS.
    Request { tls: bool, method: String, target: String },
    /// A request that goes over to another protocol.
    Upgrade { tls: bool, method: String, target: String },
}

impl Wanted {
    /// Reads `[METHOD ]http[s]://HOST[:PORT][/PATH]` or `HOST:PORT`.
    fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(ErrorCode::InvalidArgument, format!("`{}` {why}", text.escape_debug()))
                .hint("write https://example.org/, 'POST http://example.org/v1' or example.org:5432")
        };
        let (method, place) = text.trim().split_once(' ').unwrap_or(("GET", text.trim()));
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(wrong("does not begin with a method or an address"));
        }
        let (scheme, rest) = match place.split_once("://") {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None => (String::new(), place),
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) =
            split_port(authority).ok_or_else(|| wrong("does not name a port from 1 to 65535"))?;
        let destination = destination(host).map_err(|why| wrong(&format!("names no host: {why}")))?;
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let (port, how) = match scheme.as_str() {
            "https" => (port.unwrap_or(443), How::Request { tls: true, method: method.to_owned(), target }),
            "http" => (port.unwrap_or(80), How::Request { tls: false, method: method.to_owned(), target }),
            "" if target == "/" && !text.trim().contains(' ') => {
                (port.ok_or_else(|| wrong("names neither http, https nor a port"))?, How::Connect)
            }
            "" => return Err(wrong("does not say whether http or https is spoken")),
            _ => return Err(wrong("is neither http nor https")),
        };
        Ok(Self { destination, port, how })
    }

    /// What was wanted when a recording was made, if it still says so, and how it is said.
    fn recorded(entry: &Summary) -> Option<(String, Option<Self>)> {
        let Summary { host, port, tls, method, target, .. } = entry;
        let (said, how) = match entry.kind {
            What::Request | What::Stream if !method.is_empty() => {
                let scheme = if *tls { "https" } else { "http" };
                let said = format!("{method} {scheme}://{host}:{port}{target}");
                let (tls, method, target) = (*tls, method.clone(), target.clone());
                let how = match entry.kind {
                    What::Stream => How::Upgrade { tls, method, target },
                    _ => How::Request { tls, method, target },
                };
                (said, how)
            }
            What::Stream => (format!("{host}:{port}"), How::Connect),
            _ => return None,
        };
        let destination = destination(host).ok();
        Some((said, destination.map(|destination| Self { destination, port: *port, how })))
    }

    /// What the door would decide, as far as it can be known before a name is looked up. Nothing where it depends on what was taken out
    /// of a recording.
    fn judge(&self, policy: &NetworkPolicy) -> Result<Option<Allowed>, Denied> {
        if let Destination::Name(name) = &self.destination {
            decide::name(policy, name)?;
        }
        let allowed = decide::connect(policy, &self.destination, self.port)?;
        match &self.how {
            How::Connect => Ok(Some(allowed)),
            How::Upgrade { method, target, .. } if allowed.look == Look::Requests => Err(Denied {
                what: format!(
                    "{method} {target} of {}, which goes over to another protocol",
                    self.destination
                ),
                reason: Reason::Malformed,
                rule: allowed.rule,
                how_to_grant: "Grant the host by a rule without methods and paths.".into(),
            }),
            How::Request { tls, method, target } | How::Upgrade { tls, method, target } => {
                if *tls {
                    let asked = match &self.destination {
                        Destination::Name(name) => Some(name),
                        Destination::Address(_) => None,
                    };
                    decide::tls(policy, &allowed, asked)?;
                    // What no rule looks into stays closed.
                    if allowed.look == Look::Any {
                        return Ok(Some(allowed));
                    }
                }
                if allowed.look == Look::Requests && is_veiled(method, target) {
                    return Ok(None);
                }
                let request = Request { host: &self.destination, port: self.port, method, target, tls: *tls };
                decide::request(policy, &allowed, request).map(Some)
            }
        }
    }
}

/// Whether something that rules are about is not there any more.
fn is_veiled(method: &str, target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    method.contains('*') || path.contains("***")
}

/// Splits a port from a host, if there is one.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let after_host = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    match authority[after_host..].rfind(':') {
        None => Some((authority, None)),
        Some(colon) => {
            let (host, port) = authority.split_at(after_host + colon);
            let port = port[1..].parse().ok().filter(|port| *port > 0)?;
            Some((host, Some(port)))
        }
    }
}

fn destination(host: &str) -> Result<Destination, String> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(Destination::Address(address));
    }
    HostName::parse(host).map(Destination::Name).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use belljar_core::Rules;

    use super::*;

    fn verdict(policy: &NetworkPolicy, url: &str) -> String {
        match Wanted::parse(url).unwrap().judge(policy) {
            Ok(Some(allowed)) => allowed.rule.map_or("open".to_owned(), |rule| rule.text),
            Ok(None) => "unclear".to_owned(),
            Err(denied) => denied.reason.to_string(),
        }
    }

    #[test]
    fn what_would_be_decided() {
        let rules = |allow: &[&str], deny: &[&str]| Rules {
            allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
            deny: deny.iter().map(|text| text.parse().unwrap()).collect(),
            ..Rules::default()
        };
        let list = NetworkPolicy::Allowlist(rules(
            &["a.org", "*.b.org:8443", "GET http://c.org/v1/*", "192.0.2.0/24:5432", "[2001:db8::1]:22"],
            &["bad.b.org"],
        ));
        for (url, expected) in [
            ("https://a.org/x", "a.org"),
            ("http://a.org", "a.org"),
            ("a.org:22", "port_not_listed"),
            ("https://x.b.org:8443", "*.b.org:8443"),
            ("https://bad.b.org:8443", "denied_by_rule"),
            ("http://c.org/v1/x?q#f", "GET c.org:80/v1/*"),
            ("POST http://c.org/v1/x", "request_not_listed"),
            ("http://c.org/v2", "request_not_listed"),
            ("https://other.org/", "not_listed"),
            ("169.254.169.254:80", "not_listed"),
            ("http://c.org/v1/******", "unclear"),
            ("http://c.org/v1/x?key=***", "GET c.org:80/v1/*"),
            ("http://a.org/v1/******", "a.org"),
            ("http://other.org/v1/******", "not_listed"),
        ] {
            assert_eq!(verdict(&list, url), expected, "{url}");
        }
        let open = NetworkPolicy::Open(rules(&[], &["a.org"]));
        assert_eq!(verdict(&open, "https://b.org"), "open");
        assert_eq!(verdict(&open, "https://a.org"), "denied_by_rule");
        assert_eq!(verdict(&open, "http://169.254.169.254/latest"), "metadata");
        assert_eq!(verdict(&open, "http://127.0.0.1:8080/"), "loopback");
        assert_eq!(verdict(&open, "http://[::1]/"), "loopback");
        assert_eq!(verdict(&NetworkPolicy::None, "https://a.org"), "no_network");
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        for url in [
            "",
            "a.org",
            "a.org/x",
            "ftp://a.org",
            "https://",
            "https://a.org:0",
            "https://a.org:x",
            "GET a.org:80",
            "http://127.1/",
            "http://u@a.org/",
            "G=T http://a.org/",
            "https://a_b.org:443:443",
        ] {
            let error = Wanted::parse(url).expect_err(url);
            assert!(error.hint.is_some(), "{url}: {error}");
        }
    }

    #[test]
    fn a_policy_in_lines() {
        let rules = Rules {
            allow: vec!["pypi".parse().unwrap(), "a.org:22".parse().unwrap()],
            deny: vec!["b.org".parse().unwrap()],
            ..Rules::default()
        };
        assert_eq!(
            describe(&NetworkPolicy::Allowlist(rules), Printer::default()),
            "mode    allowlist\nallow   pypi\nallow   a.org:22\ndeny    b.org\nlimits  connections 256, \
             requests_per_second 200, bytes_per_second 64 MiB, total_bytes 10 GiB\n"
        );
        assert_eq!(describe(&NetworkPolicy::None, Printer::default()), "mode    none\n");
    }
}
