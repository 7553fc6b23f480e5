//! What must not be in a recording is taken out before anything is written: headers and parameters that carry credentials, whatever
//! they say; and values that are known to be secret, wherever they stand.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use belljar_core::TOKEN_PREFIX;
use hyper::header::HeaderMap;

use super::entry::Header;
use crate::gateway::redact::Redactor;

/// What stands in the place of something that was taken out.
const HIDDEN: &str = "***";
/// Headers that carry credentials.
const HEADERS: [&str; 18] = [
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
    "sec-websocket-key",
];
/// Words in names of headers and parameters that say the same.
const WORDS: [&str; 10] = [
    "token",
    "secret",
    "password",
    "passwd",
    "api-key",
    "apikey",
    "api_key",
    "signature",
    "credential",
    "authorization",
];
/// Parameters of queries that carry credentials, whose names are not clear enough in headers.
const PARAMETERS: [&str; 5] = ["key", "sig", "auth", "code", "assertion"];
/// A value that is shorter would be found everywhere.
const SHORTEST: usize = 6;
/// The same of one that was not known before.
const SHORTEST_LEARNED: usize = 8;
/// The most that are learned.
const MOST_LEARNED: usize = 32;
/// So many digits after the beginning of a token are not there by chance.
const FEWEST: usize = 16;
/// The longest run of digits that is taken for one.
const LONGEST: usize = 128;

/// What is taken out of one sandbox's recording.
#[derive(Debug)]
pub struct Veil {
    headers: HashSet<String>,
    /// In every form in which they may stand.
    values: RwLock<Vec<String>>,
    /// How many were learned on the way.
    learned: AtomicUsize,
}

impl Veil {
    /// One for these values, and these headers beside the usual ones.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>, headers: &[String]) -> Self {
        let mut forms: Vec<String> = Vec::new();
        for value in values.into_iter().filter(|value| value.len() >= SHORTEST) {
            forms.extend(all_forms(value));
        }
        // The longest first, so that none is found inside another.
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        let headers = headers.iter().map(|name| name.to_ascii_lowercase());
        let headers = headers.chain(HEADERS.map(str::to_owned)).collect();
        Self { headers, values: RwLock::new(forms), learned: AtomicUsize::new(0) }
    }

    fn values(&self) -> RwLockReadGuard<'_, Vec<String>> {
        self.values.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the credentials of a request for secrets from here on: hosts say them back.
    pub fn learn(&self, headers: &HeaderMap, target: &str) {
        let carried = headers.iter().filter(|(name, _)| self.hides(name.as_str()));
        let carried = carried.filter_map(|(_, value)| value.to_str().ok()).flat_map(credentials);
        let query = target.split_once('?').map(|(_, query)| query).unwrap_or_default();
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let asked = pairs.filter(|(name, _)| is_secret_parameter(name)).map(|(_, value)| value);
        for value in carried.chain(asked).filter(|value| value.len() >= SHORTEST_LEARNED) {
            if self.values().iter().any(|own| own == value) {
                continue;
            }
            if self.learned.fetch_add(1, Ordering::Relaxed) >= MOST_LEARNED {
                return;
            }
            let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
            values.extend(all_forms(value));
            values.sort_by_key(|form| std::cmp::Reverse(form.len()));
        }
    }

    /// Whether nothing is known to be secret.
    pub fn is_empty(&self) -> bool {
        self.values().is_empty()
    }

    fn hides(&self, header: &str) -> bool {
        self.headers.contains(header) || WORDS.iter().any(|word| header.contains(word))
    }

    /// Headers as they are written down.
    pub fn headers(&self, headers: &HeaderMap) -> Vec<Header> {
        let written = headers.iter().map(|(name, value)| {
            let value = if self.hides(name.as_str()) {
                HIDDEN.to_owned()
            } else {
                self.text(&String::from_utf8_lossy(value.as_bytes()))
            };
            (name.as_str().to_owned(), value)
        });
        written.collect()
    }

    /// Path and query as they are written down.
    pub fn target(&self, target: &str) -> String {
        let Some((path, query)) = target.split_once('?') else { return self.text(target) };
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) if !value.is_empty() && is_secret_parameter(name) => {
                format!("{name}={HIDDEN}")
            }
            _ => pair.to_owned(),
        });
        let query: Vec<String> = pairs.collect();
        self.text(&format!("{path}?{}", query.join("&")))
    }

    /// Any text, likewise.
    pub fn text(&self, text: &str) -> String {
        let mut veiling = self.veiling();
        let mut bytes = veiling.pass(text.as_bytes());
        bytes.extend(veiling.finish());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Bytes that come in pieces, likewise: as many as they were.
    pub fn veiling(&self) -> Veiling {
        Veiling {
            redactor: Redactor::new(self.values().iter().map(String::as_str)),
            has_values: !self.is_empty(),
            held: Vec::new(),
        }
    }

    /// Whether something that is known to be secret is in these bytes.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        let mut veiling = self.veiling();
        let mut out = veiling.pass(bytes);
        out.extend(veiling.finish());
        out != bytes
    }
}

/// The credentials in a header: behind the word for their kind, or each of several.
fn credentials(value: &str) -> impl Iterator<Item = &str> {
    let bare = match value.split_once(' ') {
        Some((kind, rest)) if !kind.contains('=') => rest.trim(),
        _ => value,
    };
    let several = bare
        .split([';', ','])
        .filter_map(|part| part.trim().split_once('='))
        .map(|(_, value)| value.trim_matches('"'));
    std::iter::once(bare).chain(several)
}

fn is_secret_parameter(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    PARAMETERS.contains(&name.as_str()) || WORDS.iter().any(|word| name.contains(word))
}

/// A value as it may stand in headers, queries and bodies.
fn all_forms(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    let encoded: String = value
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect();
    forms.extend([encoded.to_ascii_lowercase(), encoded]);
    let json = serde_json::to_string(value).unwrap_or_default();
    forms.push(json.trim_matches('"').to_owned());
    forms.push(value.bytes().map(|byte| format!("{byte:02x}")).collect());
    // Where it stands among others that are encoded together, what is certain of it depends on how many are before it.
    for before in 0..3 {
        let bytes = [&b"\0\0"[..before], value.as_bytes()].concat();
        let whole = bytes.len() / 3 * 3;
        let skipped = if before == 0 { 0 } else { 4 };
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let text = engine.encode(&bytes[..whole]);
            forms.extend(text.get(skipped..).map(str::to_owned));
        }
    }
    forms.retain(|form| form.len() >= SHORTEST);
    forms.sort();
    forms.dedup();
    forms
}

/// Takes secrets out of bytes that come in pieces.
#[derive(Debug)]
pub struct Veiling {
    redactor: Redactor,
    has_values: bool,
    /// The end of what came, which may be the beginning of a token.
    held: Vec<u8>,
}

impl Veiling {
    /// What can be written down now.
    pub fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.held);
        if self.has_values {
            bytes.extend(self.redactor.pass(piece));
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
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let mut written = veil().headers(&headers);
        written.sort();
        let expected = [
            ("accept", "text/html, **************"),
            ("authorization", "***"),
            ("x-my-token-2", "***"),
            ("x-own", "***"),
        ];
        assert_eq!(written, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            veil().target("/a?x=1&api_key=2&key=3&X-Amz-Signature=4&b"),
            "/a?x=1&api_key=***&key=***&X-Amz-Signature=***&b"
        );
        assert_eq!(veil().target(&format!("/v1/{TOKEN}?q")), format!("/v1/bjt_{}?q", "*".repeat(64)));
    }

    #[test]
    fn credentials_are_hidden_wherever_they_come_again() {
        let veil = veil();
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer learned-value-1".parse().unwrap());
        headers.insert("cookie", "a=learned-value-2; b=1".parse().unwrap());
        headers.insert("accept", "not-a-secret".parse().unwrap());
        veil.learn(&headers, "/x?api_key=learned-value-3&q=not-a-secret");
        for text in ["learned-value-1", "learned-value-2", "learned-value-3"] {
            assert!(veil.is_in(format!("you said {text}").as_bytes()), "{text}");
        }
        assert!(!veil.is_in(b"not-a-secret Bearer"));
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
