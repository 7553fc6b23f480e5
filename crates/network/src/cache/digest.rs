//! Hashes by which indexes name files.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// The hash of a file. Those that can be made to fit another file are not understood.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Digest {
    /// SHA-256.
    Sha256([u8; 32]),
    /// SHA-512.
    Sha512([u8; 64]),
}

impl Digest {
    /// Reads a hash as it is usual for this algorithm: in hexadecimal digits.
    pub fn from_hex(algorithm: &str, text: &str) -> Option<Self> {
        match algorithm {
            "sha256" => Some(Self::Sha256(hex(text)?)),
            "sha512" => Some(Self::Sha512(hex(text)?)),
            _ => None,
        }
    }

    /// Reads what npm calls integrity: several hashes, each in base64 after its algorithm. The strongest counts.
    pub fn from_integrity(text: &str) -> Option<Self> {
        let read = |name: &str| {
            text.split_ascii_whitespace().find_map(|word| {
                let hash = word.strip_prefix(name)?.strip_prefix('-')?;
                // Options may follow.
                STANDARD.decode(hash.split('?').next()?).ok()
            })
        };
        if let Some(hash) = read("sha512") {
            return Some(Self::Sha512(hash.try_into().ok()?));
        }
        Some(Self::Sha256(read("sha256")?.try_into().ok()?))
    }

    /// The algorithm's name.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "sha256",
            Self::Sha512(_) => "sha512",
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Sha256(bytes) => bytes,
            Self::Sha512(bytes) => bytes,
        }
    }

    /// To find out whether something has it.
    pub(crate) fn check(&self) -> Check {
        Check {
            expected: *self,
            state: match self {
                Self::Sha256(_) => State::Sha256(sha2::Sha256::new()),
                Self::Sha512(_) => State::Sha512(sha2::Sha512::new()),
            },
        }
    }
}

fn hex<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * LENGTH {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = [0; LENGTH];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:", self.algorithm())?;
        self.bytes().iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = text.split_once(':').and_then(|(algorithm, hash)| Self::from_hex(algorithm, hash));
        read.ok_or_else(|| format!("`{}` is not a hash", text.escape_debug()))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Whether something that comes by and by has a hash.
#[derive(Debug)]
pub(crate) struct Check {
    expected: Digest,
    state: State,
}

#[derive(Debug)]
enum State {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Check {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// Whether all that came has it.
    pub(crate) fn passes(self) -> bool {
        let found: &[u8] = match self.state {
            State::Sha256(state) => &state.finalize(),
            State::Sha512(state) => &state.finalize(),
        };
        found == self.expected.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn hashes_are_read_in_all_their_spellings() {
        let digest = Digest::from_hex("sha256", EMPTY).unwrap();
        assert_eq!(digest.to_string(), format!("sha256:{EMPTY}"));
        assert_eq!(Digest::from_hex("sha256", &EMPTY.to_uppercase()), Some(digest));
        let integrity = format!("sha256-{}", STANDARD.encode(digest.bytes()));
        assert_eq!(Digest::from_integrity(&integrity), Some(digest));
        let strong = Digest::Sha512([7; 64]);
        let both = format!("sha1-AAAA {integrity} sha512-{}?opt", STANDARD.encode(strong.bytes()));
        assert_eq!(Digest::from_integrity(&both), Some(strong));
        assert_eq!(Digest::try_from(strong.to_string()), Ok(strong));
        // A weaker hash is not taken in place of a stronger one that is broken.
        assert_eq!(Digest::from_integrity(&format!("{integrity} sha512-AAAA")), None);
        for (algorithm, text) in
            [("sha256", ""), ("sha256", "zz"), ("sha256", &EMPTY[1..]), ("md5", "00"), ("sha1", EMPTY)]
        {
            assert_eq!(Digest::from_hex(algorithm, text), None, "{algorithm} {text}");
        }
        assert_eq!(Digest::from_integrity("sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="), None);
    }

    #[test]
    fn what_has_another_hash_is_seen() {
        let digest = Digest::from_hex("sha256", EMPTY).unwrap();
        assert!(digest.check().passes());
        let mut check = digest.check();
        check.push(b"x");
        assert!(!check.passes());
        let sha512 = Digest::Sha512(sha2::Sha512::digest(b"ab").into());
        let mut check = sha512.check();
        check.push(b"a");
        check.push(b"b");
        assert!(check.passes());
    }
}
