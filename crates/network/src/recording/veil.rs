//! What must not be in a recording is taken out before anything is written: headers and parameters that carry credentials, whatever
//! they say; and values that are known to be secret, wherever they stand.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belljar_core::TOKEN_PREFIX;
use hyper::header::HeaderMap;
use zeroize::Zeroizing;

use super::entry::Header;
use super::forms::{SHORTEST, forms};
use crate::gateway::redact::{Redactor, Word, Words};

/// What stands in the place of something that was taken out.
const HIDDEN: &str = "***";
/// Headers that carry credentials.
const HEADERS: [&str; 21] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "x-auth-token",
    "x-access-token",
    "x-amz-security-token",
    "x-csrf-token",
    "x-xsrf-token",
    "x-subscription-token",
    "private-token",
    "x-gitlab-token",
    "x-vault-token",
    "x-github-token",
    "x-auth-key",
    "x-registry-auth",
    "ocp-apim-subscription-key",
    "sec-websocket-key",
];
/// Headers that are addresses, with parameters of their own.
const ADDRESSES: [&str; 5] = ["location", "content-location", "referer", "refresh", "link"];
/// The header by which browsers, which can send no other with WebSocket, send tokens too.
const PROTOCOLS: &str = "sec-websocket-protocol";
/// Words in names of headers and parameters that say the same.
const WORDS: [&str; 16] = [
    "token",
    "secret",
    "password",
    "passwd",
    "api-key",
    "apikey",
    "api_key",
    "access-key",
    "accesskey",
    "access_key",
    "private-key",
    "privatekey",
    "private_key",
    "signature",
    "credential",
    "authorization",
];
/// Parameters of queries that carry credentials, whose names are not clear enough in headers.
const PARAMETERS: [&str; 10] =
    ["key", "sig", "auth", "code", "assertion", "session", "sessionid", "session_id", "pwd", "jwt"];
/// A value that was not known before, and is shorter, would be found everywhere.
const SHORTEST_LEARNED: usize = 8;
/// One that is shorter, or has a path in it, is not looked for in paths: whoever is recorded would hide its paths by it.
const SHORTEST_IN_PATHS: usize = 12;
/// So many bytes are learned of one request, and no more of what is longer.
const LONGEST_LEARNED: usize = 4 << 10;
/// The most that are learned, and the most bytes of all of them: whoever is recorded decides, and others wait.
const MOST_LEARNED: (usize, usize) = (256, 16 << 10);
/// So many digits after the beginning of a token are not there by chance.
const FEWEST: usize = 16;
/// The longest run of digits that is taken for one.
const LONGEST: usize = 128;

/// What is taken out of one sandbox's recording.
#[derive(Debug)]
pub struct Veil {
    headers: HashSet<String>,
    /// Never changed, but replaced: nobody who looks for something holds a lock.
    known: RwLock<Arc<Known>>,
}

/// What is known to be secret at one time, in every form in which it may stand.
#[derive(Debug, Default)]
struct Known {
    /// What was so from the beginning.
    given: Arc<Words>,
    /// The same as it would stand in the name of a host.
    hosts: Arc<Words>,
    /// What was learned on the way, too.
    all: Arc<Words>,
    /// As much of that as may be in paths.
    paths: Arc<Words>,
    learned: VecDeque<Learned>,
}

/// A value that was learned on the way.
#[derive(Clone, Debug)]
struct Learned {
    value: Zeroizing<String>,
    forms: Vec<Word>,
}

impl Learned {
    fn new(value: String) -> Self {
        Self { forms: forms(&value), value: Zeroizing::new(value) }
    }

    fn is_for_paths(&self) -> bool {
        self.value.len() >= SHORTEST_IN_PATHS && !self.value.contains('/')
    }
}

impl Known {
    fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let values: Vec<&str> = values.into_iter().filter(|value| value.len() >= SHORTEST).collect();
        let given = Arc::new(Words::new(values.iter().flat_map(|value| forms(value))));
        let hosts =
            values.iter().map(|value| Arc::new(Zeroizing::new(value.to_ascii_lowercase().into_bytes())));
        let hosts = Arc::new(Words::new(hosts));
        Self { all: given.clone(), paths: given.clone(), given, hosts, learned: VecDeque::new() }
    }

    fn has_learned(&self, value: &str) -> bool {
        self.learned.iter().any(|own| *own.value == value)
    }

    /// With more that was learned. Where that is too much, half of it is forgotten, and what was learned first before the rest.
    fn with(&self, values: Vec<String>) -> Self {
        let mut learned = self.learned.clone();
        let new: Vec<Learned> = values.into_iter().map(Learned::new).collect();
        learned.extend(new.iter().cloned());
        let size = |learned: &VecDeque<Learned>| learned.iter().map(|own| own.value.len()).sum::<usize>();
        let (mut all, mut paths, mut added) = (&self.all, &self.paths, new);
        let (most, most_bytes) = MOST_LEARNED;
        if learned.len() > most || size(&learned) > most_bytes {
            while learned.len() > most / 2 || size(&learned) > most_bytes / 2 {
                learned.pop_front();
            }
            (all, paths, added) = (&self.given, &self.given, learned.iter().cloned().collect());
        }
        let forms = |own: &Learned| own.forms.clone();
        let all = Arc::new(all.with(added.iter().flat_map(forms)));
        let paths = Arc::new(paths.with(added.iter().filter(|own| own.is_for_paths()).flat_map(forms)));
        Self { given: self.given.clone(), hosts: self.hosts.clone(), all, paths, learned }
    }
}

impl Veil {
    /// One for these values, and these headers beside the usual ones.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>, headers: &[String]) -> Self {
        let headers = headers.iter().map(|name| name.to_ascii_lowercase());
        let headers = headers.chain(HEADERS.map(str::to_owned)).collect();
        Self { headers, known: RwLock::new(Arc::new(Known::new(values))) }
    }

    fn known(&self) -> Arc<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the credentials of a request for secrets from here on: hosts say them back.
    pub fn learn(&self, headers: &HeaderMap, target: &str) {
        let carried = headers.iter().filter(|(name, value)| self.hides(name.as_str(), value.as_bytes()));
        let carried = carried.filter_map(|(_, value)| value.to_str().ok()).flat_map(credentials);
        let query = target.split_once('?').map(|(_, query)| query).unwrap_or_default();
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let asked = pairs.filter(|(name, _)| is_secret_parameter(name));
        let asked = asked.flat_map(|(_, value)| [value.to_owned(), decoded(value)]);
        let known = self.known();
        let (mut new, mut left): (Vec<String>, _) = (Vec::new(), LONGEST_LEARNED);
        for mut value in carried.chain(asked).filter(|value| value.len() >= SHORTEST_LEARNED) {
            shorten(&mut value, LONGEST_LEARNED);
            if !known.has_learned(&value) && !new.contains(&value) {
                shorten(&mut value, left);
                left -= value.len();
                new.push(value);
            }
        }
        new.retain(|value| value.len() >= SHORTEST_LEARNED);
        if !new.is_empty() {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            *known = Arc::new(known.with(new));
        }
    }

    /// Whether nothing is known to be secret.
    pub fn is_empty(&self) -> bool {
        self.known().all.is_empty()
    }

    fn hides(&self, header: &str, value: &[u8]) -> bool {
        self.headers.contains(header)
            || WORDS.iter().any(|word| header.contains(word))
            || (header == PROTOCOLS && bears_token(value))
    }

    /// Headers as they are written down.
    pub fn headers(&self, headers: &HeaderMap) -> Vec<Header> {
        let known = self.known();
        let written = headers.iter().map(|(name, value)| {
            let value = if self.hides(name.as_str(), value.as_bytes()) {
                HIDDEN.to_owned()
            } else {
                let text = String::from_utf8_lossy(value.as_bytes());
                if ADDRESSES.contains(&name.as_str()) {
                    veiled(&known.all, &without_parameters(&text, &['&', '#', ' ', '>', '"']))
                } else {
                    veiled(&known.all, &text)
                }
            };
            (veiled(&known.given, name.as_str()), value)
        });
        written.collect()
    }

    /// Path and query as they are written down.
    pub fn target(&self, target: &str) -> String {
        let known = self.known();
        match target.split_once('?') {
            None => veiled(&known.paths, target),
            Some((path, query)) => {
                let query = without_parameters(&format!("?{query}"), &['&']);
                format!("{}{}", veiled(&known.paths, path), veiled(&known.all, &query))
            }
        }
    }

    /// The name of a host, likewise.
    pub fn host(&self, host: &str) -> String {
        veiled(&self.known().hosts, host)
    }

    /// A method, likewise.
    pub fn method(&self, method: &str) -> String {
        veiled(&self.known().given, method)
    }

    /// Any text, likewise.
    pub fn text(&self, text: &str) -> String {
        veiled(&self.known().all, text)
    }

    /// Bytes that come in pieces, likewise: as many as they were.
    pub fn veiling(&self) -> Veiling {
        Veiling::new(self.known().all.clone())
    }

    /// Whether something that is known to be secret is in these bytes.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        let mut veiling = self.veiling();
        let mut out = veiling.pass(bytes);
        out.extend(veiling.finish());
        out != bytes
    }
}

/// A text without these words.
fn veiled(words: &Arc<Words>, text: &str) -> String {
    let mut redactor = Redactor::across_lines(words.clone());
    redactor.add(text.as_bytes());
    let mut bytes = redactor.finish();
    hide(&mut bytes, true);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An address without the values of parameters that carry credentials; each ends with one of these.
fn without_parameters(address: &str, ends: &[char]) -> String {
    let mut out = String::with_capacity(address.len());
    let mut is_parameter = false;
    for part in address.split_inclusive(|character| character == '?' || ends.contains(&character)) {
        let text = part.trim_end_matches(|character| character == '?' || ends.contains(&character));
        match text.split_once('=') {
            Some((name, value)) if is_parameter && !value.is_empty() && is_secret_parameter(name) => {
                out.extend([name, "=", HIDDEN, &part[text.len()..]]);
            }
            _ => out.push_str(part),
        }
        is_parameter = part.ends_with(['?', '&', '#']);
    }
    out
}

fn shorten(value: &mut String, most: usize) {
    while value.len() > most {
        value.pop();
    }
}

/// The credentials in a header: behind the word for their kind, or each of several; and a password that is packed with a name.
fn credentials(value: &str) -> Vec<String> {
    let (kind, bare) = match value.split_once(' ') {
        Some((kind, rest)) if !kind.contains('=') => (kind, rest.trim()),
        _ => ("", value),
    };
    let several = bare.split([';', ',']).filter_map(|part| part.trim().split_once('='));
    let mut all: Vec<String> = several.map(|(_, value)| value.trim_matches('"').to_owned()).collect();
    all.push(bare.to_owned());
    if kind.eq_ignore_ascii_case("basic")
        && let Ok(pair) = STANDARD.decode(bare)
        && let Ok(pair) = String::from_utf8(pair)
        && let Some((_, password)) = pair.split_once(':')
    {
        all.push(password.to_owned());
    }
    all
}

/// Whether one of the protocols that are asked for is a token.
fn bears_token(protocols: &[u8]) -> bool {
    let protocols = String::from_utf8_lossy(protocols).to_ascii_lowercase();
    WORDS.iter().chain(&["bearer", "auth", "jwt"]).any(|word| protocols.contains(word))
}

fn is_secret_parameter(name: &str) -> bool {
    let name = decoded(name).to_ascii_lowercase();
    PARAMETERS.contains(&name.as_str()) || WORDS.iter().any(|word| name.contains(word))
}

/// A parameter as it is meant.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = &more[2..];
            }
            (b'+', _) => {
                out.push(b' ');
                rest = more;
            }
            _ => {
                out.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Takes secrets out of bytes that come in pieces.
#[derive(Debug)]
pub struct Veiling {
    redactor: Redactor,
    has_words: bool,
    /// The end of what came, which may be the beginning of a token.
    held: Vec<u8>,
}

impl Veiling {
    fn new(words: Arc<Words>) -> Self {
        Self { has_words: !words.is_empty(), redactor: Redactor::across_lines(words), held: Vec::new() }
    }

    /// What can be written down now.
    pub fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        self.pass_framed(piece, &[])
    }

    /// The same of bytes in which these, in order, are heads of frames: what is said goes on behind them.
    pub fn pass_framed(&mut self, piece: &[u8], heads: &[Range<usize>]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.held);
        if self.has_words {
            let mut from = 0;
            for head in heads {
                self.redactor.add(&piece[from..head.start]);
                self.redactor.pass_over(&piece[head.clone()]);
                from = head.end;
            }
            self.redactor.add(&piece[from..]);
            bytes.extend(self.redactor.release());
        } else {
            bytes.extend_from_slice(piece);
        }
        let held = hide(&mut bytes, false);
        self.held = bytes.split_off(bytes.len() - held);
        bytes
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend(self.redactor.finish());
        hide(&mut bytes, true);
        bytes
    }
}

/// Puts asterisks where tokens are. Says how many bytes at the end may belong to one that goes on.
fn hide(bytes: &mut [u8], is_last: bool) -> usize {
    let prefix = TOKEN_PREFIX.as_bytes();
    let mut from = 0;
    while let Some(at) = memchr::memmem::find(&bytes[from..], prefix) {
        let begin = from + at + prefix.len();
        let digits = bytes[begin..].iter().take(LONGEST).take_while(|byte| byte.is_ascii_hexdigit()).count();
        if !is_last && digits < LONGEST && begin + digits == bytes.len() {
            return bytes.len() - (from + at);
        }
        if digits >= FEWEST {
            bytes[begin..begin + digits].fill(b'*');
        }
        from = begin + digits;
    }
    if is_last {
        return 0;
    }
    let tail = &bytes[from..];
    (1..prefix.len()).rev().find(|length| tail.ends_with(&prefix[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::*;

    const TOKEN: &str = "bjt_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn veil() -> Veil {
        Veil::new(["s3cret/value+1", "short"], &["X-Own".to_owned()])
    }

    #[test]
    fn headers_and_parameters_that_carry_credentials_are_hidden() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("x-own", "y"),
            ("x-my-token-2", "z"),
            ("accept", "text/html, s3cret/value+1"),
            ("ocp-apim-subscription-key", "a"),
            ("x-auth-key", "b"),
            ("x-registry-auth", "c"),
            ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.abc"),
            ("location", "https://a.example/x?api_key=d&y=1#access_token=e"),
            ("referer", "https://a.example/?api%5Fkey=f"),
            ("link", "</?token=g>; rel=\"next\", </?page=2>"),
            ("s3cret-name", "h"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let veil = Veil::new(["s3cret/value+1", "short", "s3cret-name", "HostSecret"], &["X-Own".to_owned()]);
        let mut written = veil.headers(&headers);
        written.sort();
        let expected = [
            ("***********", "h"),
            ("accept", "text/html, **************"),
            ("authorization", "***"),
            ("link", "</?token=***>; rel=\"next\", </?page=2>"),
            ("location", "https://a.example/x?api_key=***&y=1#access_token=***"),
            ("ocp-apim-subscription-key", "***"),
            ("referer", "https://a.example/?api%5Fkey=***"),
            ("sec-websocket-protocol", "***"),
            ("x-auth-key", "***"),
            ("x-my-token-2", "***"),
            ("x-own", "***"),
            ("x-registry-auth", "***"),
        ];
        assert_eq!(written, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            veil.target(
                "/a?x=1&api_key=2&key=3&X-Amz-Signature=4&b&access_key=5&session=6&private_key=7&pwd=8"
            ),
            "/a?x=1&api_key=***&key=***&X-Amz-Signature=***&b&access_key=***&session=***&private_key=***&pwd=***"
        );
        assert_eq!(veil.host("a.hostsecret.example"), "a.**********.example");
        assert_eq!(veil.method("S3CRET-NAME"), "S3CRET-NAME");
        assert_eq!(veil.method("s3cret-name"), "***********");
        assert_eq!(veil.target(&format!("/v1/{TOKEN}?q")), format!("/v1/bjt_{}?q", "*".repeat(64)));
    }

    #[test]
    fn credentials_are_hidden_wherever_they_come_again() {
        let veil = veil();
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer learned-value-1".parse().unwrap());
        headers.insert("cookie", "a=learned-value-2; b=1".parse().unwrap());
        headers.insert("accept", "not-a-secret".parse().unwrap());
        let basic = STANDARD.encode("me:learned-value-4");
        headers.insert("proxy-authorization", format!("Basic {basic}").parse().unwrap());
        veil.learn(&headers, "/x?api_key=learned-value-3&q=not-a-secret&key=learned%2Fvalue+5");
        for text in
            ["learned-value-1", "learned-value-2", "learned-value-3", "learned-value-4", "learned/value 5"]
        {
            assert!(veil.is_in(format!("you said {text}").as_bytes()), "{text}");
        }
        assert!(!veil.is_in(b"not-a-secret Bearer"));
    }

    fn learn(veil: &Veil, credential: &str) {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", credential.parse().unwrap());
        veil.learn(&headers, "/");
    }

    /// Whoever is recorded says itself what is learned.
    #[test]
    fn what_is_learned_hides_no_paths_and_no_hosts() {
        let veil = veil();
        for credential in ["/admin/delete-all", "delete-all", "server.example", "a-long-credential"] {
            learn(&veil, credential);
        }
        let target = "/admin/delete-all/of/server?x=delete-all";
        assert_eq!(veil.target(target), "/admin/delete-all/of/server?x=**********");
        assert_eq!(veil.host("server.example"), "server.example");
        assert_eq!(veil.method("delete-all"), "delete-all");
        assert_eq!(veil.target("/a-long-credential/s3cret/value+1"), "/*****************/**************");
    }

    #[test]
    fn much_is_learned_and_the_latest_is_known() {
        let veil = veil();
        for number in 0..1000 {
            learn(&veil, &format!("credential-{number:04}"));
            learn(&veil, &format!("credential-{number:04}"));
        }
        let known = veil.known();
        assert!(
            known.learned.len() > 100 && known.learned.len() <= MOST_LEARNED.0,
            "{}",
            known.learned.len()
        );
        assert!(veil.is_in(b"credential-0999") && veil.is_in(b"credential-0900"));
        assert!(!veil.is_in(b"credential-0001") && veil.is_in(b"s3cret/value+1"));
        // However long each is.
        for number in 0..40 {
            learn(&veil, &format!("{number:02}{}", "&a".repeat(14_000)));
        }
        let bytes: usize = veil.known().learned.iter().map(|own| own.value.len()).sum();
        assert!(bytes <= MOST_LEARNED.1, "{bytes}");
        let echo = format!("39{}", "&a".repeat(2000));
        assert!(!veil.text(&echo).contains('a'), "{}", veil.text(&echo));
    }

    /// Who looks for something does not wait for one who waits for it.
    #[test]
    fn others_learn_while_one_looks() {
        let (veil, is_over) = (Arc::new(veil()), Arc::new(AtomicBool::new(false)));
        for _ in 0..2 {
            let (veil, is_over) = (veil.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    drop((veil.veiling(), veil.is_empty()));
                }
            });
        }
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            (0..500).for_each(|number| learn(&veil, &format!("credential-{number}")));
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_secs(100)).expect("nobody waits for good");
        is_over.store(true, Ordering::Relaxed);
    }

    #[test]
    fn a_value_is_found_in_what_others_make_of_it() {
        let (value, long) =
            ("Ab/c+d e&f\"g<h", "a-long-value-that-is-broken-into-lines-somewhere-in-its-midst");
        let veil = Veil::new([value, long, "sixsix", "line one\nline two"], &[]);
        let lines = |text: String, end: &str| {
            let parts: Vec<&str> =
                (0..text.len()).step_by(19).map(|at| &text[at..text.len().min(at + 19)]).collect();
            parts.join(end)
        };
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        for text in [
            "Ab%2fc%2bd%20e%26f%22g%3ch",
            "Ab/c%2Bd%20e%26f%22g%3Ch",
            "Ab%2Fc%2Bd+e%26f%22g%3Ch",
            "Ab%252Fc%252Bd%2520e%2526f%2522g%253Ch",
            r#"Ab\/c+d e&f\"g<h"#,
            r#"Ab/c+d e\u0026f\"g\u003ch"#,
            r#"Ab/c\u002Bd e\u0026f\"g\u003Ch"#,
            "Ab/c+d e&amp;f&quot;g&lt;h",
            "41622F632B6420652666226 73C68".replace(' ', "").as_str(),
            &lines(STANDARD.encode(long), "\r\n"),
            &lines(STANDARD.encode(format!("xy{long}")), "\\n"),
            &STANDARD.encode("u:sixsix"),
            &STANDARD.encode("me:sixsix and more"),
            "line one\\nline two",
            "line one\r\nline two",
        ] {
            assert!(veil.is_in(text.as_bytes()), "{text}");
            assert_eq!(veil.text(text).len(), text.len(), "{text}");
        }
        assert!(veil.is_in(&utf16(value)));
        // One secret that another begins with, cut behind it, and one in frames.
        let veil = Veil::new(["short-secret", "short-secret-and-more"], &[]);
        let mut veiling = veil.veiling();
        let mut out = veiling.pass(b"short-secret");
        out.extend(veiling.pass(b"-and-more."));
        out.extend(veiling.finish());
        assert_eq!(String::from_utf8_lossy(&out), "*********************.");
        let mut veiling = veil.veiling();
        let mut out = veiling.pass_framed(b"HHshort-HHse", &[0..2, 8..10]);
        out.extend(veiling.pass_framed(b"HcreHt.", &[0..1, 4..5]));
        out.extend(veiling.finish());
        assert_eq!(String::from_utf8_lossy(&out), "HH******HH**H***H*.");
    }

    #[test]
    fn a_value_is_found_however_it_is_written() {
        let value = "s3cret/value+1";
        let veil = veil();
        for text in [
            value.to_owned(),
            "s3cret%2Fvalue%2B1".to_owned(),
            "s3cret%2fvalue%2b1".to_owned(),
            STANDARD_NO_PAD.encode(value),
            STANDARD_NO_PAD.encode(format!("user:{value}")),
            STANDARD_NO_PAD.encode(format!("me:{value}")),
            STANDARD_NO_PAD.encode(format!("a:{value} and more")),
            URL_SAFE_NO_PAD.encode(format!("{{\"k\":\"{value}\"}}")),
            "7333637265742f76616c75652b31".to_owned(),
        ] {
            assert!(veil.is_in(text.as_bytes()), "{text}");
            assert_eq!(veil.text(&text).len(), text.len(), "{text}");
        }
        for text in ["short", "", "s3cret", "bjt_", "bjt_0123", "nothing of it"] {
            assert!(!veil.is_in(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        /// However the bytes are cut into pieces.
        #[test]
        fn pieces_hide_nothing(cuts in proptest::collection::vec(0usize..200, 0..12), before in ".{0,20}", after in ".{0,20}") {
            let text = format!("{before}s3cret/value+1 bjt_ {TOKEN}{after}");
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < text.len()).collect();
            cuts.sort_unstable();
            let mut veiling = veil().veiling();
            let (mut out, mut from) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([text.len()]) {
                out.extend(veiling.pass(&text.as_bytes()[from..cut]));
                from = cut;
            }
            out.extend(veiling.finish());
            prop_assert_eq!(out.len(), text.len());
            let out = String::from_utf8_lossy(&out);
            prop_assert!(!out.contains("s3cret/value+1") && !out.contains(&TOKEN[..24]), "{}", out);
        }
    }
}
