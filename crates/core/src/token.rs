//! What a sandbox may ask of the gateway, and the tokens by which it does. A token itself is never kept: only its hash is.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode, Result};

/// The name of an operation of the gateway, such as `llm:chat`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperationName(String);

impl OperationName {
    /// The most bytes of a name.
    pub const MAX: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OperationName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":-_.".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        if begins && text.len() <= Self::MAX && text.bytes().all(fits) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("`{}` is not the name of an operation", text.escape_debug()),
        )
        .hint("names look like `llm:chat`: small letters, digits and `:-_.`; `belljar gateway check` lists them"))
    }
}

impl TryFrom<String> for OperationName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<OperationName> for String {
    fn from(name: OperationName) -> Self {
        name.0
    }
}

impl fmt::Display for OperationName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// What may be spent; what is not given is not bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of language models, whichever kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_dollars: Option<u64>,
}

/// What a token is to be good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// These operations, and no others.
    pub operations: Vec<OperationName>,
    /// For so long.
    #[serde(default = "default_life")]
    pub life: Duration,
    /// For so much.
    #[serde(default)]
    pub budget: Budget,
    /// In whose hands it is meant to be; a word of the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

fn default_life() -> Duration {
    Grant::DEFAULT_LIFE
}

impl Grant {
    /// How long a token lives for which nothing else is said.
    pub const DEFAULT_LIFE: Duration = Duration::from_secs(300);
    /// The longest life of a token. It can be extended, from outside.
    pub const MAX_LIFE: Duration = Duration::from_secs(86_400);
    /// The most operations of one token.
    pub const MAX_OPERATIONS: usize = 64;
    /// The most bytes of an agent's name.
    pub const MAX_AGENT: usize = 64;

    /// A grant of these operations, everything else at its default.
    pub fn of(operations: Vec<OperationName>) -> Self {
        Self { operations, life: Self::DEFAULT_LIFE, budget: Budget::default(), agent: None }
    }

    /// Refuses what cannot be honoured.
    pub fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::new(ErrorCode::InvalidArgument, text));
        if self.operations.is_empty() || self.operations.len() > Self::MAX_OPERATIONS {
            return wrong(format!(
                "a token is for 1 to {} operations, not {}",
                Self::MAX_OPERATIONS,
                self.operations.len()
            ));
        }
        if self.life.is_zero() || self.life > Self::MAX_LIFE {
            return wrong(format!(
                "a token lives between a moment and {} hours",
                Self::MAX_LIFE.as_secs() / 3600
            ));
        }
        let plain = |text: &String| {
            !text.is_empty()
                && text.len() <= Self::MAX_AGENT
                && text.chars().all(|character| !character.is_control())
        };
        if self.agent.as_ref().is_some_and(|agent| !plain(agent)) {
            return wrong(format!("an agent's name has 1 to {} printable characters", Self::MAX_AGENT));
        }
        Ok(())
    }
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Names it; says nothing of it.
    pub id: String,
    /// Its SHA-256, in hexadecimal.
    pub hash: String,
    /// What it is good for.
    pub grant: Grant,
    /// When it was issued, in milliseconds since 1970.
    pub issued_ms: u64,
    /// When it ends.
    pub expires_ms: u64,
}

/// A token, once.
#[derive(Clone)]
pub struct Issued {
    /// What is kept of it.
    pub record: TokenRecord,
    /// The token itself.
    pub token: String,
    /// Variables by which clients of the operations' kinds find the gateway and the token.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for Issued {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Issued").field("record", &self.record).finish_non_exhaustive()
    }
}

/// By this name sandboxes find the gateway, at port 80.
pub const GATEWAY_NAME: &str = "gateway.belljar";

/// The file in a sandbox's directory that holds its tokens' records, as JSON.
pub const TOKENS_FILE: &str = "tokens.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["llm:chat", "search:web", "a", "git_read.v2"] {
            assert_eq!(good.parse::<OperationName>().unwrap().as_str(), good);
        }
        for bad in ["", "LLM", "llm chat", "../x", ":x", "a/b", "9x", &"a".repeat(65)] {
            assert!(bad.parse::<OperationName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn grants_have_bounds() {
        let fine = Grant::of(vec!["llm:chat".parse().unwrap()]);
        fine.check().unwrap();
        let long = Duration::from_secs(86_401);
        for bad in [
            Grant { operations: Vec::new(), ..fine.clone() },
            Grant { operations: vec![fine.operations[0].clone(); 65], ..fine.clone() },
            Grant { life: Duration::ZERO, ..fine.clone() },
            Grant { life: long, ..fine.clone() },
            Grant { agent: Some("a\nb".into()), ..fine.clone() },
            Grant { agent: Some(String::new()), ..fine.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_token_does_not_show_itself() {
        let record = TokenRecord {
            id: "tk-1".into(),
            hash: "ab".into(),
            grant: Grant::of(Vec::new()),
            issued_ms: 0,
            expires_ms: 0,
        };
        let env = BTreeMap::from([("KEY".to_owned(), "bjt_canary".to_owned())]);
        let issued = Issued { record, token: "bjt_canary".into(), env };
        assert!(!format!("{issued:?}").contains("canary"));
    }
}
