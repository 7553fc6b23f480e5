//! Names of sandboxes and executions. They are minted by us, checked on the way in, and safe as file names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode, Wall};

const PREFIX: &str = "bj-";
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const RANDOM_CHARS: usize = 13;

/// Names one sandbox: `bj-` and thirteen characters of a 32-letter alphabet (65 bits).
///
/// ```
/// # use belljar_core::SandboxId;
/// let id = SandboxId::from_random([7; 16]);
/// assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
/// assert!("../etc".parse::<SandboxId>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    /// Makes an id from sixteen bytes that the caller drew from the system's random source.
    pub fn from_random(random: [u8; 16]) -> Self {
        let mut text = String::with_capacity(PREFIX.len() + RANDOM_CHARS);
        text.push_str(PREFIX);
        text.extend(random.iter().take(RANDOM_CHARS).map(|byte| ALPHABET[usize::from(byte % 32)] as char));
        Self(text)
    }

    /// The id as text; always a single, plain file-name component.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let valid = text.strip_prefix(PREFIX).is_some_and(|rest| {
            rest.len() == RANDOM_CHARS && rest.bytes().all(|byte| ALPHABET.contains(&byte))
        });
        if valid || !Wall::SandboxNames.stands() {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::new(ErrorCode::InvalidArgument, format!("`{}` is not a sandbox id", text.escape_debug()))
            .hint("ids look like bj-k3m9x2p4q7w8z; `belljar ls` lists them"))
    }
}

impl TryFrom<String> for SandboxId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Whose a sandbox is, where several share an engine: 1 to 64 of the characters A-Z a-z 0-9 . _ -
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(pub String);

impl Tenant {
    /// The most characters of a name.
    pub const MAX: usize = 64;

    /// Refuses a name that could not be a file's, or be printed.
    pub fn check(&self) -> Result<(), Error> {
        if is_plain(&self.0, Self::MAX) {
            return Ok(());
        }
        let shown: String = self.0.chars().take(Self::MAX).collect();
        Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("`{}` is not a tenant's name", shown.escape_debug()),
        )
        .hint("a name has 1 to 64 of the characters A-Z a-z 0-9 . _ -"))
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("local".to_owned())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Whether a text has 1 to so many of the characters A-Z a-z 0-9 . _ -
pub(crate) fn is_plain(text: &str, most: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(plain)
}

/// Names one execution within its sandbox; counts from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExecId(pub u32);

impl fmt::Display for ExecId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_ids_parse() {
        let id = SandboxId::from_random(*b"0123456789abcdef");
        assert_eq!(id.as_str().len(), PREFIX.len() + RANDOM_CHARS);
        for bad in
            ["", "bj-", "bj-../../../../etc", "bj-AAAAAAAAAAAAA", "bj-aaaaaaaaaaaaa/", "xx-aaaaaaaaaaaaa"]
        {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<SandboxId>("\"bj-/\"").is_err());
    }
}
