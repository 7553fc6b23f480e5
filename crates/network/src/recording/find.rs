//! Which recorded exchange a request is: by its method, host and path, its query and its body, and the order in which the same was
//! asked before.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_core::Replay;
use hyper::header::HeaderMap;
use serde_json::Value;

use super::entry::{Entry, Exchange, Stream, header};
use super::file::{Hash, Reader, Summary, What};
use super::veil::Veil;
use crate::policy::shortened;

/// The longest body that is compared.
const MAX_BODY: u64 = 64 << 20;
/// How many differences are shown.
const MOST_SHOWN: usize = 8;
/// How much of a body is looked at for them, and how many places in it.
const MAX_SHOWN_BODY: u64 = 1 << 20;
const MOST_PLACES: usize = 10_000;
/// A body with more marks than that is compared as it is: it would take many times its length to understand it.
const MOST_MARKS: usize = 200_000;
/// Numbers of so many digits are not understood to the last.
const LONG_NUMBER: usize = 20;

/// A request that is to be known again.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Whom it asks.
    pub host: &'a str,
    /// On which port.
    pub port: u16,
    /// Whether inside TLS.
    pub tls: bool,
    /// Its method.
    pub method: &'a str,
    /// Its path and query.
    pub target: &'a str,
    /// What its body is said to be.
    pub content_type: Option<&'a str>,
    /// Which part it asks for, if not for all.
    pub range: Option<&'a str>,
    /// Its body.
    pub body: &'a [u8],
}

/// A request that is not in the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What was asked.
    pub what: String,
    /// How the nearest that was recorded differs, line by line.
    pub nearest: Vec<String>,
    /// Whether it was recorded, and has been answered as often as it was asked.
    pub used_up: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.used_up {
            return write!(formatter, "{} was asked more often than it was recorded", self.what);
        }
        write!(formatter, "{} is not in the recording", self.what)?;
        if self.nearest.is_empty() {
            return write!(formatter, ", and nothing like it");
        }
        write!(formatter, "; the nearest that is (-) and what was asked (+):")?;
        self.nearest.iter().try_for_each(|line| write!(formatter, "\n  {line}"))
    }
}

/// Finds what was recorded.
#[derive(Debug)]
pub struct Finder {
    reader: Reader,
    how: Replay,
    veil: Veil,
    /// Requests by method, host, port and path.
    groups: HashMap<String, Vec<usize>>,
    /// Streams by host and port, and by the path of the request that they began with.
    streams: HashMap<Place, Vec<usize>>,
    /// Whether names lead anywhere.
    names: HashMap<String, bool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What recorded requests are known by, once somebody asked for one like them.
    keys: HashMap<usize, Hash>,
    /// How often what is known by this was answered.
    answered: HashMap<Hash, usize>,
    /// How many streams to a place were begun.
    begun: HashMap<Place, usize>,
}

/// Where a stream leads: host, port, and what counts of the target of the request that it began with, if it did.
type Place = (String, u16, Option<String>);

impl Finder {
    /// Finds in a recording.
    pub fn new(reader: Reader, how: Replay, veil: Veil) -> Self {
        let mut groups: HashMap<String, Vec<usize>> = HashMap::new();
        let mut streams: HashMap<Place, Vec<usize>> = HashMap::new();
        let mut names = HashMap::new();
        // They are written down as they end; what was asked first comes first.
        let mut order: Vec<usize> = (0..reader.entries().len()).collect();
        order.sort_by_key(|at| reader.entries()[*at].at_ms);
        for at in order {
            let entry = &reader.entries()[at];
            match entry.kind {
                What::Request if entry.status > 0 => groups.entry(group_of(entry)).or_default().push(at),
                What::Stream => {
                    let upgraded = (!entry.method.is_empty()).then(|| place(&entry.target, &how));
                    streams.entry((entry.host.clone(), entry.port, upgraded)).or_default().push(at);
                }
                What::Lookup => *names.entry(entry.host.clone()).or_insert(false) |= entry.status == 1,
                _ => {}
            }
            if matches!(entry.kind, What::Request | What::Stream) {
                names.insert(entry.host.clone(), true);
            }
        }
        Self { reader, how, veil, groups, streams, names, state: Mutex::default() }
    }

    /// The recording.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes the credentials of a request for secrets, as was done when it was recorded.
    pub fn learn(&self, headers: &HeaderMap, target: &str) {
        self.veil.learn(headers, target);
    }

    /// How it is answered from.
    pub fn how(&self) -> &Replay {
        &self.how
    }

    /// Whether a name leads anywhere; nothing if nobody asked.
    pub fn name(&self, name: &str) -> Option<bool> {
        self.names.get(&self.veil.host(name)).copied()
    }

    /// Whether something else than HTTP was said to this host.
    pub fn has_stream(&self, host: &str, port: u16) -> bool {
        self.streams.contains_key(&(self.veil.host(host), port, None))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next stream to this host, that began with a request of this target or without any.
    pub fn stream(&self, host: &str, port: u16, target: Option<&str>) -> io::Result<Option<Stream>> {
        let target = target.map(|target| place(&self.veil.target(target), &self.how));
        let place = (self.veil.host(host), port, target);
        let Some(all) = self.streams.get(&place) else { return Ok(None) };
        let at = {
            let mut state = self.state();
            let begun = state.begun.entry(place).or_default();
            *begun += 1;
            all.get(*begun - 1).copied()
        };
        let Some(at) = at else { return Ok(None) };
        match self.reader.entry(&self.reader.entries()[at])? {
            Entry::Stream(stream) => Ok(Some(*stream)),
            _ => Ok(None),
        }
    }

    /// The exchange that a request is.
    pub fn find(&self, question: &Question<'_>) -> io::Result<Result<Exchange, Missing>> {
        let target = self.veil.target(question.target);
        let (host, method) = (self.veil.host(question.host), self.veil.method(question.method));
        let asked = Question { host: &host, method: &method, target: &target, ..question.clone() };
        let body = self.veiled(question.body);
        let asked = Question { body: &body, ..asked };
        let name = group(&asked);
        let Some(members) = self.groups.get(&name) else { return Ok(Err(self.missing(&asked))) };
        let key = self.key(&asked);
        let mut state = self.state();
        let mut same = Vec::new();
        for at in members {
            let own = match state.keys.get(at) {
                Some(own) => *own,
                None => {
                    let own = self.recorded_key(&self.reader.entries()[*at])?;
                    state.keys.insert(*at, own);
                    own
                }
            };
            if own == key {
                same.push(*at);
            }
        }
        let Some(last) = same.last() else {
            drop(state);
            return Ok(Err(self.missing(&asked)));
        };
        let answered = state.answered.entry(key).or_default();
        // What only reads may be read again.
        let found = match same.get(*answered) {
            Some(at) => *at,
            None if matches!(question.method, "GET" | "HEAD") => *last,
            None => {
                let what = what(&asked);
                return Ok(Err(Missing { what, nearest: Vec::new(), used_up: true }));
            }
        };
        *answered += 1;
        drop(state);
        match self.reader.entry(&self.reader.entries()[found])? {
            Entry::Exchange(exchange) => Ok(Ok(*exchange)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn veiled(&self, bytes: &[u8]) -> Vec<u8> {
        let mut veiling = self.veil.veiling();
        let mut out = veiling.pass(bytes);
        out.extend(veiling.finish());
        out
    }

    fn recorded_key(&self, summary: &Summary) -> io::Result<Hash> {
        let body_matters = self.how.matching.body && summary.sent > 0;
        let (body, content_type) = if body_matters {
            match self.reader.entry(summary)? {
                Entry::Exchange(exchange) => (
                    self.reader.content(&exchange.body, MAX_BODY)?,
                    header(&exchange.headers, "content-type").map(str::to_owned),
                ),
                _ => (Vec::new(), None),
            }
        } else {
            (Vec::new(), None)
        };
        Ok(self.key(&Question {
            host: &summary.host,
            port: summary.port,
            tls: summary.tls,
            method: &summary.method,
            target: &summary.target,
            content_type: content_type.as_deref(),
            range: Some(summary.range.as_str()).filter(|range| !range.is_empty()),
            body: &body,
        }))
    }

    /// What a request is known by.
    fn key(&self, question: &Question<'_>) -> Hash {
        let mut text = group(question).into_bytes();
        if self.how.matching.query {
            text.push(b'\n');
            text.extend(query(question.target, &self.how.ignore).into_bytes());
        }
        if let Some(range) = question.range {
            text.extend(format!("\n{range}").into_bytes());
        }
        if self.how.matching.body && !question.body.is_empty() {
            text.push(b'\n');
            text.extend(
                Hash::of(&self.plain_body(question.content_type, question.body)).to_string().into_bytes(),
            );
        }
        Hash::of(&text)
    }

    /// A body without what is another each time.
    fn plain_body(&self, content_type: Option<&str>, body: &[u8]) -> Vec<u8> {
        let kind = content_type.unwrap_or_default().to_ascii_lowercase();
        if let Some(boundary) = boundary(content_type.unwrap_or_default()) {
            return without(body, boundary.as_bytes());
        }
        if (kind.contains("json") || body.first() == Some(&b'{'))
            && marks(body) <= MOST_MARKS
            && let Ok(mut value) = serde_json::from_slice::<Value>(body)
        {
            forget(&mut value, &self.how.ignore);
            let mut plain = value.to_string().into_bytes();
            plain.extend(long_numbers(body).flatten());
            return plain;
        }
        if kind.starts_with("application/x-www-form-urlencoded")
            && let Ok(text) = std::str::from_utf8(body)
        {
            return query(&format!("?{text}"), &self.how.ignore).into_bytes();
        }
        body.to_vec()
    }

    /// What to say of a request that is not there.
    fn missing(&self, asked: &Question<'_>) -> Missing {
        let what = what(asked);
        let entries = self.reader.entries();
        let nearest = entries
            .iter()
            .filter(|entry| entry.kind == What::Request && entry.status > 0)
            .map(|entry| (likeness(entry, asked), entry))
            .filter(|(likeness, _)| *likeness > 0)
            .max_by_key(|(likeness, _)| *likeness);
        let nearest = nearest.map(|(_, entry)| self.differences(entry, asked)).unwrap_or_default();
        Missing { what, nearest, used_up: false }
    }

    fn differences(&self, entry: &Summary, asked: &Question<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        let recorded = Question {
            host: &entry.host,
            port: entry.port,
            tls: entry.tls,
            method: &entry.method,
            target: &entry.target,
            content_type: None,
            range: None,
            body: &[],
        };
        let mut differ = |recorded: &str, asked: &str| {
            if recorded != asked {
                lines.extend([format!("- {}", shortened(recorded)), format!("+ {}", shortened(asked))]);
            }
        };
        differ(&self::what(&recorded), &self::what(asked));
        if lines.is_empty() {
            let body = match self.reader.entry(entry) {
                Ok(Entry::Exchange(exchange)) => self.reader.content(&exchange.body, MAX_SHOWN_BODY),
                _ => Ok(Vec::new()),
            };
            match body {
                _ if asked.range.unwrap_or_default() != entry.range => {
                    lines.extend([format!("- range: {}", shortened(&entry.range))]);
                    lines.extend([format!("+ range: {}", shortened(asked.range.unwrap_or_default()))]);
                }
                _ if asked.body.len() as u64 > MAX_SHOWN_BODY => lines.push("  its body is another".into()),
                Ok(body) => body_differences(&body, asked.body, &mut lines),
                Err(_) => lines.push("  its body is another".into()),
            }
        }
        let left_out = lines.len().saturating_sub(2 * MOST_SHOWN);
        lines.truncate(2 * MOST_SHOWN);
        if left_out > 0 {
            lines.push(format!("  and {} more differences", left_out.div_ceil(2)));
        }
        lines
    }
}

/// A request as it is said.
fn what(question: &Question<'_>) -> String {
    let scheme = if question.tls { "https" } else { "http" };
    let usual = if question.tls { 443 } else { 80 };
    let port = if question.port == usual { String::new() } else { format!(":{}", question.port) };
    format!("{} {scheme}://{}{port}{}", shortened(question.method), question.host, shortened(question.target))
}

/// A query without what does not count, in an order of its own.
fn query(target: &str, ignored: &[String]) -> String {
    let Some((_, query)) = target.split_once('?') else { return String::new() };
    let counts = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        !pair.is_empty() && !ignored.iter().any(|own| own == name)
    };
    let mut pairs: Vec<&str> = query.split('&').filter(counts).collect();
    pairs.sort_unstable();
    pairs.join("&")
}

/// What counts of the target of a request for another protocol.
fn place(target: &str, how: &Replay) -> String {
    let query = if how.matching.query { query(target, &how.ignore) } else { String::new() };
    format!("{}?{query}", path(target))
}

/// How many values there are in JSON, at most.
fn marks(body: &[u8]) -> usize {
    body.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count()
}

/// The digits of numbers that are longer than is understood, each with what ends it.
fn long_numbers(body: &[u8]) -> impl Iterator<Item = impl Iterator<Item = u8>> {
    let runs = body.split(|byte| !byte.is_ascii_digit()).filter(|run| run.len() >= LONG_NUMBER);
    runs.map(|run| run.iter().copied().chain([b'\n']))
}

fn path(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

fn group(question: &Question<'_>) -> String {
    let Question { host, port, tls, method, target, .. } = question;
    format!("{method} {tls} {host}:{port} {}", path(target))
}

fn group_of(entry: &Summary) -> String {
    format!("{} {} {}:{} {}", entry.method, entry.tls, entry.host, entry.port, path(&entry.target))
}

/// How alike a recorded request is.
fn likeness(entry: &Summary, asked: &Question<'_>) -> usize {
    let same_host = entry.host == asked.host;
    let (own, other) = (path(&entry.target), path(asked.target));
    if !same_host && own != other {
        return 0;
    }
    let common = own.split('/').zip(other.split('/')).take_while(|(own, other)| own == other).count();
    let most = own.split('/').count().max(other.split('/').count());
    let query = if entry.target == asked.target { 20 } else { 0 };
    let body = usize::from(entry.sent == asked.body.len() as u64);
    let method = if entry.method == asked.method { 40 } else { 0 };
    usize::from(same_host) * 200 + 100 * common / most.max(1) + query + body + method
}

/// The word between the parts of a form, which is another each time.
fn boundary(content_type: &str) -> Option<&str> {
    if !content_type.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/")) {
        return None;
    }
    let at = content_type.to_ascii_lowercase().find("boundary=")?;
    let word = content_type[at + 9..].split(';').next()?.trim().trim_matches('"');
    (!word.is_empty()).then_some(word)
}

fn without(body: &[u8], word: &[u8]) -> Vec<u8> {
    let finder = memchr::memmem::Finder::new(word);
    let (mut out, mut from) = (Vec::with_capacity(body.len()), 0);
    while let Some(at) = finder.find(&body[from..]) {
        let start = from + at;
        // Only where parts begin: the same word may be what is said in one.
        let begins = body[..start]
            .strip_suffix(b"--")
            .is_some_and(|before| before.is_empty() || before.ends_with(b"\n"));
        let end = start + word.len();
        out.extend_from_slice(&body[from..if begins { start } else { end }]);
        from = end;
    }
    out.extend_from_slice(&body[from..]);
    out
}

/// Takes members out of a JSON value, wherever they are.
fn forget(value: &mut Value, names: &[String]) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !names.iter().any(|own| own == name));
            members.values_mut().for_each(|value| forget(value, names));
        }
        Value::Array(elements) => elements.iter_mut().for_each(|value| forget(value, names)),
        _ => {}
    }
}

/// How two bodies differ: by member where they are JSON, and else by line.
fn body_differences(recorded: &[u8], asked: &[u8], lines: &mut Vec<String>) {
    let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let (own, other) = match (parse(recorded), parse(asked)) {
        (Some(own), Some(other)) => (leaves(&own), leaves(&other)),
        _ => (by_line(recorded), by_line(asked)),
    };
    for (name, value) in &own {
        match other.get(name) {
            Some(other) if other == value => {}
            Some(other) => lines.extend([format!("- {name}: {value}"), format!("+ {name}: {other}")]),
            None => lines.push(format!("- {name}: {value}")),
        }
    }
    for (name, value) in other.iter().filter(|(name, _)| !own.contains_key(*name)) {
        lines.push(format!("+ {name}: {value}"));
    }
}

fn by_line(bytes: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().take(MOST_PLACES).enumerate();
    lines.map(|(number, line)| (format!("line {:>4}", number + 1), shortened(line))).collect()
}

/// Every value that is in another, by the way to it.
fn leaves(value: &Value) -> BTreeMap<String, String> {
    fn walk(value: &Value, place: &str, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                members
                    .iter()
                    .for_each(|(name, value)| walk(value, &format!("{place}/{}", shortened(name)), found));
            }
            Value::Array(elements) if !elements.is_empty() => {
                elements
                    .iter()
                    .enumerate()
                    .for_each(|(at, value)| walk(value, &format!("{place}/{at}"), found));
            }
            _ if found.len() >= MOST_PLACES => {}
            value => drop(found.insert(place.to_owned(), shortened(&value.to_string()))),
        }
    }
    let mut found = BTreeMap::new();
    walk(value, "", &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Content, MAX_PIECE, Writer};
    use super::*;

    /// A recording of these requests: method, target, content type, body; each is answered with its number.
    fn finder(requests: &[(&str, &str, &str, &str)], how: impl FnOnce(&mut Replay)) -> Finder {
        let file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(file.try_clone().unwrap(), 1 << 30).unwrap();
        for (number, (method, target, kind, body)) in requests.iter().enumerate() {
            let pieces =
                body.as_bytes().chunks(MAX_PIECE).map(|piece| writer.piece(piece).unwrap()).collect();
            let exchange = Exchange {
                at_ms: number as u64,
                host: "a.example".into(),
                port: 443,
                tls: true,
                method: (*method).into(),
                target: (*target).into(),
                headers: vec![("content-type".into(), (*kind).into())],
                body: Content { length: body.len() as u64, pieces, ..Content::default() },
                status: 200 + number as u16,
                ..Exchange::default()
            };
            writer.entry(&Entry::Exchange(Box::new(exchange))).unwrap();
        }
        let name = "r".parse().unwrap();
        let mut replay = Replay { name, matching: Default::default(), ignore: Vec::new(), timing: false };
        how(&mut replay);
        Finder::new(Reader::new(file).unwrap(), replay, Veil::new(["very-secret"], &[]))
    }

    fn ask(finder: &Finder, (method, target, kind, body): (&str, &str, &str, &str)) -> Result<u16, Missing> {
        let question = Question {
            host: "a.example",
            port: 443,
            tls: true,
            method,
            target,
            content_type: Some(kind),
            range: None,
            body: body.as_bytes(),
        };
        finder.find(&question).unwrap().map(|exchange| exchange.status)
    }

    #[test]
    fn the_same_request_is_known_again_in_its_turn() {
        let json = "application/json";
        let get = ("GET", "/x?b=2&a=1", "", "");
        let post = ("POST", "/x", json, r#"{"a": 1, "b": [2]}"#);
        let finder = finder(&[get, post, get, post], |_| ());
        assert_eq!(ask(&finder, ("GET", "/x?a=1&b=2", "", "")), Ok(200), "whatever the order of its query");
        assert_eq!(ask(&finder, get), Ok(202));
        assert_eq!(ask(&finder, get), Ok(202), "what only reads may be read again");
        assert_eq!(ask(&finder, ("POST", "/x", json, r#"{"b":[2],"a":1}"#)), Ok(201), "of its members");
        assert_eq!(ask(&finder, post), Ok(203));
        let missing = ask(&finder, post).unwrap_err();
        assert!(
            missing.used_up && missing.to_string().contains("more often than it was recorded"),
            "{missing}"
        );
    }

    #[test]
    fn what_is_another_each_time_can_be_left_out() {
        let form = |word: &str| format!("--{word}\r\nx\r\n--{word}--");
        let (one, other) = (form("one"), form("other"));
        let all = [
            ("POST", "/form", "multipart/form-data; boundary=one", one.as_str()),
            ("POST", "/json?t=1", "application/json", r#"{"id": "1", "in": {"nonce": "x", "a": 1}}"#),
            ("POST", "/body", "text/plain", "one"),
        ];
        let own = finder(&all, |how| how.ignore = vec!["nonce".into(), "t".into(), "id".into()]);
        assert_eq!(ask(&own, ("POST", "/form", "multipart/form-data; boundary=\"other\"", &other)), Ok(200));
        let json = ("POST", "/json?t=2", "application/json", r#"{"in": {"nonce": "y", "a": 1}, "id": "2"}"#);
        assert_eq!(ask(&own, json), Ok(201));
        assert!(ask(&own, ("POST", "/body", "text/plain", "two")).is_err());
        let own = finder(&all, |how| how.matching = "path".parse().unwrap());
        assert_eq!(ask(&own, ("POST", "/body?x", "text/plain", "two")), Ok(202));
        let own = finder(&[("GET", "/s?key=***", "", ""), ("POST", "/s", "", "a *********** b")], |_| ());
        assert_eq!(ask(&own, ("GET", "/s?key=another", "", "")), Ok(200), "secrets are not compared");
        assert_eq!(ask(&own, ("POST", "/s", "", "a very-secret b")), Ok(201));
    }

    #[test]
    fn what_only_looks_the_same_is_another() {
        let (json, form) = ("application/json", "multipart/form-data; boundary=0");
        let part = |amount: &str| format!("--0\r\n\r\n{amount}\r\n--0--");
        let (little, much) = (part("100"), part("100000"));
        let finder = finder(
            &[
                ("POST", "/n", json, r#"{"n": 123456789012345678901}"#),
                ("POST", "/f", form, &little),
                ("GET", "/r", "", ""),
            ],
            |_| (),
        );
        assert!(ask(&finder, ("POST", "/n", json, r#"{"n": 123456789012345678909}"#)).is_err());
        assert_eq!(ask(&finder, ("POST", "/n", json, r#"{"n":123456789012345678901}"#)), Ok(200));
        assert!(ask(&finder, ("POST", "/f", form, &much)).is_err());
        assert_eq!(ask(&finder, ("POST", "/f", form, &little)), Ok(201));
        let question = Question {
            host: "a.example",
            port: 443,
            tls: true,
            method: "GET",
            target: "/r",
            content_type: None,
            range: Some("bytes=10-19"),
            body: b"",
        };
        let missing = finder.find(&question).unwrap().unwrap_err();
        assert_eq!(missing.nearest, ["- range: ", "+ range: bytes=10-19"]);
    }

    #[test]
    fn bodies_that_would_take_much_to_understand_are_not() {
        let many = format!("[{}0]", "0,".repeat(MOST_MARKS));
        let finder = finder(
            &[("POST", "/x", "application/json", &many), ("POST", "/y", "application/json", "[1]")],
            |_| (),
        );
        assert_eq!(ask(&finder, ("POST", "/x", "application/json", &many)), Ok(200));
        assert!(
            ask(&finder, ("POST", "/x", "application/json", &many.replace("[0", "[ 0"))).is_err(),
            "as it is"
        );
        let long = format!("[{}0]", "0,".repeat(1 << 20));
        let missing = ask(&finder, ("POST", "/y", "application/json", &long)).unwrap_err();
        assert_eq!(missing.nearest, ["  its body is another"]);
        let missing = ask(&finder, ("POST", "/y", "application/json", &many)).unwrap_err();
        assert!(missing.nearest.len() <= 2 * MOST_SHOWN + 1);
    }

    #[test]
    fn what_is_not_there_is_shown_beside_what_is() {
        let json = "application/json";
        let finder = finder(
            &[("GET", "/simple/pandas/", "", ""), ("POST", "/v1", json, r#"{"a": 1, "b": {"c": [1, 2]}}"#)],
            |_| (),
        );
        let missing = ask(&finder, ("GET", "/simple/numpy/", "", "")).unwrap_err().to_string();
        assert_eq!(
            missing,
            "GET https://a.example/simple/numpy/ is not in the recording; the nearest that is (-) and what was asked (+):\n  \
             - GET https://a.example/simple/pandas/\n  + GET https://a.example/simple/numpy/"
        );
        let missing =
            ask(&finder, ("POST", "/v1", json, r#"{"a": 1, "b": {"c": [1, 3], "d": true}}"#)).unwrap_err();
        assert_eq!(missing.nearest, ["- /b/c/1: 2", "+ /b/c/1: 3", "+ /b/d: true"]);
    }
}
