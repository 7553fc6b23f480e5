//! What one sandbox has learned from the indexes that were fetched for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::header::HeaderMap;
use serde::{Deserialize, Serialize};
use url::Url;

use super::digest::Digest;
use super::index::{Named, Registry};

/// The most files that are remembered of one sandbox, and of all: each takes about a hundred bytes.
const MOST_OWN: usize = 1 << 16;
const MOST_OF_ALL: usize = 1 << 19;
/// The most indexes that are remembered of one sandbox.
const MOST_INDEXES: usize = 4096;
/// The most registries of cargo that are remembered of one sandbox.
const MOST_REGISTRIES: usize = 16;

/// Headers that say nothing of who asks. Whatever else there is may be a credential, and is taken for one.
const HARMLESS: [&str; 31] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "cargo-protocol",
    "connection",
    "content-length",
    "dnt",
    "host",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "npm-auth-type",
    "npm-command",
    "npm-in-ci",
    "npm-scope",
    "npm-session",
    "pacote-integrity",
    "pacote-pkg-id",
    "pacote-req-type",
    "pacote-version",
    "pragma",
    "priority",
    "proxy-connection",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "te",
    "upgrade-insecure-requests",
    "user-agent",
    "x-pypi-client",
];

/// What stands for the credentials of a request: whoever does not have them cannot make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Credentials(String);

impl Credentials {
    /// Those of several requests that were needed.
    pub(crate) fn and(one: Option<&Self>, other: Option<&Self>) -> Option<Self> {
        if one.is_none() && other.is_none() {
            return None;
        }
        let text = |credentials: Option<&Self>| credentials.map_or("", |own| own.0.as_str()).to_owned();
        Some(Self(blake3::hash(format!("{}\n{}", text(one), text(other)).as_bytes()).to_string()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The credentials of a request, if it has any. What is asked for in a query counts as one: there are addresses that are secret.
pub(crate) fn credentials(url: &Url, headers: &HeaderMap) -> Option<Credentials> {
    let mut secrets: Vec<(&str, &[u8])> = headers
        .iter()
        .filter(|(name, _)| !HARMLESS.contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    secrets.extend(url.query().map(|query| ("?", query.as_bytes())));
    if secrets.is_empty() {
        return None;
    }
    secrets.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for part in secrets.iter().flat_map(|(name, value)| [name.as_bytes(), value]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(Credentials(hasher.finalize().to_string()))
}

/// A file that a sandbox asks for, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// Where it is, without its query.
    pub(crate) url: String,
    pub(crate) digest: Digest,
    /// What was needed to know of it and to ask for it.
    pub(crate) credentials: Option<Credentials>,
}

/// Room for what all sandboxes learn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room(Arc<AtomicUsize>);

impl Room {
    fn take(&self, count: usize) -> bool {
        let more = |taken: usize| taken.checked_add(count).filter(|sum| *sum <= MOST_OF_ALL);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The start of an address's hash.
type Key = u128;

fn key(url: &str) -> Key {
    let hash = blake3::hash(url.as_bytes());
    let mut start = [0; 16];
    start.copy_from_slice(&hash.as_bytes()[..16]);
    Key::from_le_bytes(start)
}

/// What one index said.
#[derive(Debug)]
pub(crate) struct Said {
    index: Key,
    credentials: Option<Credentials>,
    /// By key.
    files: Vec<(Key, Digest)>,
}

impl Said {
    /// What the index at an address, fetched with these credentials, says.
    pub(crate) fn new(url: &Url, credentials: Option<Credentials>, named: &[Named]) -> Self {
        let mut files: Vec<_> = named.iter().map(|named| (key(named.url.as_str()), named.digest)).collect();
        files.sort_by_key(|(key, _)| *key);
        Self { index: key(url.as_str()), credentials, files }
    }
}

/// All that a sandbox has learned.
#[derive(Debug)]
pub(crate) struct Learned {
    room: Room,
    /// The latest last.
    said: VecDeque<Said>,
    registries: Vec<Registry>,
}

impl Learned {
    pub(crate) fn new(room: Room) -> Self {
        Self { room, said: VecDeque::new(), registries: Vec::new() }
    }

    /// The registries of cargo whose settings it has seen.
    pub(crate) fn registries(&self) -> &[Registry] {
        &self.registries
    }

    pub(crate) fn registry(&mut self, registry: Registry) {
        self.registries.retain(|known| known.root != registry.root);
        if self.registries.len() == MOST_REGISTRIES {
            self.registries.remove(0);
        }
        self.registries.push(registry);
    }

    /// Takes in what an index says, in place of what it said before. Where there is no room the oldest is forgotten.
    pub(crate) fn files(&mut self, said: Said) {
        let index = said.index;
        if let Some(place) = self.said.iter().position(|said| said.index == index) {
            self.forget(place);
        }
        if said.files.is_empty() || said.files.len() > MOST_OWN {
            return;
        }
        if self.said.len() >= MOST_INDEXES {
            self.forget(0);
        }
        while self.said.iter().map(|said| said.files.len()).sum::<usize>() + said.files.len() > MOST_OWN {
            self.forget(0);
        }
        while !self.room.take(said.files.len()) {
            if self.said.is_empty() {
                return;
            }
            self.forget(0);
        }
        self.said.push_back(said);
    }

    fn forget(&mut self, place: usize) {
        if let Some(said) = self.said.remove(place) {
            self.room.give_back(said.files.len());
        }
    }

    /// What must be at this address, if an index has said so, asked for with these credentials.
    pub(crate) fn wanted(&self, url: &Url, credentials: Option<&Credentials>) -> Option<Wanted> {
        let key = key(url.as_str());
        let mut all = self.said.iter().rev().filter_map(|said| {
            let place = said.files.binary_search_by_key(&key, |(key, _)| *key).ok()?;
            Some((said, said.files[place].1))
        });
        let (said, digest) = all.next()?;
        // Where indexes say different things, none of them is believed.
        if all.any(|(_, other)| other != digest) {
            return None;
        }
        let credentials = Credentials::and(said.credentials.as_ref(), credentials);
        Some(Wanted { url: url[..url::Position::AfterPath].to_owned(), digest, credentials })
    }
}

impl Drop for Learned {
    fn drop(&mut self) {
        let all = self.said.iter().map(|said| said.files.len()).sum();
        self.room.give_back(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> Url {
        url.parse().unwrap()
    }

    fn named(url: &str, byte: u8) -> Named {
        Named { url: at(url), digest: Digest::Sha256([byte; 32]) }
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_latest_word_of_an_index_counts() {
        let mut learned = Learned::new(Room::default());
        let (index, other) = (at("https://i.example/a/"), at("https://i.example/b/"));
        let file = at("https://f.example/a.whl");
        let digest = |learned: &Learned| learned.wanted(&file, None).map(|wanted| wanted.digest.bytes()[0]);
        assert_eq!(digest(&learned), None);
        let both = [named("https://f.example/a.whl", 1), named("https://f.example/b.whl", 9)];
        learned.files(Said::new(&index, None, &both));
        assert_eq!(digest(&learned), Some(1));
        learned.files(Said::new(&other, None, &[named("https://f.example/a.whl", 2)]));
        assert_eq!(digest(&learned), None, "they contradict each other");
        learned.files(Said::new(&other, None, &[named("https://f.example/a.whl", 3)]));
        learned.files(Said::new(&index, None, &[named("https://f.example/a.whl", 3)]));
        assert_eq!(digest(&learned), Some(3));
        assert!(
            learned.wanted(&at("https://f.example/b.whl"), None).is_none(),
            "said before, and not any more"
        );
        assert!(learned.wanted(&at("http://f.example/a.whl"), None).is_none());
        assert!(learned.wanted(&at("https://f.example:8443/a.whl"), None).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let room = Room::default();
        let many: Vec<Named> =
            (0..MOST_OWN / 2).map(|n| named(&format!("https://f.example/{n}"), 1)).collect();
        let mut all: Vec<Learned> = (0..10).map(|_| Learned::new(room.clone())).collect();
        for learned in &mut all {
            for index in 0..5 {
                learned.files(Said::new(&at(&format!("https://i.example/{index}/")), None, &many));
            }
            assert!(learned.said.len() <= 2);
            for index in 0..MOST_INDEXES + 9 {
                learned.files(Said::new(&at(&format!("https://i.example/empty/{index}")), None, &[]));
            }
            assert!(learned.said.len() <= 2, "what says nothing is not remembered");
        }
        assert_eq!(room.0.load(Ordering::Relaxed), MOST_OF_ALL);
        assert!(all[9].said.is_empty(), "no room is left");
        let first = all.remove(0);
        drop(first);
        all[8].files(Said::new(&at("https://i.example/0/"), None, &many));
        assert_eq!(all[8].said.len(), 1);
        drop(all);
        assert_eq!(room.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn whatever_may_be_a_credential_is_one() {
        let url = at("https://f.example/a.whl");
        let plain = headers(&[
            ("accept", "*/*"),
            ("user-agent", "pip"),
            ("npm-session", "1"),
            ("range", "bytes=0-1"),
        ]);
        assert!(credentials(&url, &plain).is_some(), "a header that nobody knows");
        let plain = headers(&[("accept", "*/*"), ("user-agent", "pip"), ("npm-session", "1")]);
        assert_eq!(credentials(&url, &plain), None);
        let of = |url: &Url, name, value| credentials(url, &headers(&[(name, value)])).map(|own| own.0);
        let one = of(&url, "authorization", "Bearer one");
        assert!(one.is_some());
        assert_ne!(one, of(&url, "authorization", "Bearer two"));
        assert_ne!(one, of(&url, "x-api-key", "Bearer one"));
        assert_eq!(one, of(&at("https://f.example/b.whl"), "authorization", "Bearer one"));
        assert!(credentials(&at("https://f.example/a.whl?signed=1"), &HeaderMap::new()).is_some());
    }

    #[test]
    fn credentials_of_the_index_are_needed_too() {
        let mut learned = Learned::new(Room::default());
        let file = at("https://f.example/a.whl");
        let secret = credentials(&file, &headers(&[("authorization", "x")]));
        let wanted =
            |learned: &Learned, with: Option<&Credentials>| learned.wanted(&file, with).unwrap().credentials;
        learned.files(Said::new(&at("https://i.example/a/"), None, &[named("https://f.example/a.whl", 1)]));
        let public = wanted(&learned, None);
        assert_eq!(public, None);
        let asked = wanted(&learned, secret.as_ref());
        learned.files(Said::new(
            &at("https://i.example/a/"),
            secret.clone(),
            &[named("https://f.example/a.whl", 1)],
        ));
        let named_in_private = wanted(&learned, None);
        let both = wanted(&learned, secret.as_ref());
        assert!(asked.is_some() && named_in_private.is_some() && both.is_some());
        assert!(asked != named_in_private && asked != both && both != named_in_private);
    }
}
