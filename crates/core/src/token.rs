//! What a sandbox may ask of the gateway, and the tokens by which it does. A token itself is never kept: only its hash is.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode, HostName, Result};

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

impl Budget {
    /// Dollars in millionths.
    pub fn micro(dollars: f64) -> std::result::Result<u64, String> {
        let micro = (dollars * 1e6).round();
        if (0.0..9e15).contains(&micro) {
            Ok(micro as u64)
        } else {
            Err(format!("{dollars} is no amount of dollars"))
        }
    }
}

/// What every token begins with, so that it is known for one wherever it is found.
pub const TOKEN_PREFIX: &str = "bjt_";

/// Puts stars in the place of tokens in a text that is kept or shown.
pub fn hide_tokens(text: &mut String) {
    const HIDDEN: &str = "***";
    /// So many digits are not there by chance.
    const FEWEST: usize = 16;
    let mut from = 0;
    while let Some(at) = text[from..].find(TOKEN_PREFIX) {
        let begin = from + at + TOKEN_PREFIX.len();
        let digits = text[begin..].bytes().take_while(u8::is_ascii_hexdigit).count();
        from = begin;
        if digits >= FEWEST {
            text.replace_range(begin..begin + digits, HIDDEN);
            from += HIDDEN.len();
        }
    }
}

/// What a token is to be good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// These operations, and no others.
    pub operations: Vec<OperationName>,
    /// For so long. If that is not said, for as long as somebody renews it, and else for [`DEFAULT_LIFE`](Self::DEFAULT_LIFE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<Duration>,
    /// Whether whoever looks after the sandbox renews it: it ends [`RENEWAL`](Self::RENEWAL) after nobody does any more, and with
    /// its life at the latest.
    #[serde(default, skip_serializing_if = "is_false")]
    pub renewed: bool,
    /// For so much.
    #[serde(default)]
    pub budget: Budget,
    /// In whose hands it is meant to be; a word of the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Grant {
    /// How long a token lives for which nothing else is said.
    pub const DEFAULT_LIFE: Duration = Duration::from_secs(300);
    /// The longest life of a token. It can be extended, from outside.
    pub const MAX_LIFE: Duration = Duration::from_secs(86_400);
    /// How far ahead the end of a token is, at most, that is renewed.
    pub const RENEWAL: Duration = Duration::from_secs(600);
    /// The most tokens that are good for one sandbox at a time.
    pub const MAX_TOKENS: usize = 64;
    /// The most operations of one token.
    pub const MAX_OPERATIONS: usize = 64;
    /// The most bytes of an agent's name.
    pub const MAX_AGENT: usize = 64;

    /// A grant of these operations, everything else at its default.
    pub fn of(operations: Vec<OperationName>) -> Self {
        Self { operations, life: None, renewed: false, budget: Budget::default(), agent: None }
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
        self.life.map_or(Ok(()), Self::check_life)?;
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

    /// Refuses a life that no token has.
    pub fn check_life(life: Duration) -> Result<()> {
        if life.is_zero() || life > Self::MAX_LIFE {
            let hours = Self::MAX_LIFE.as_secs() / 3600;
            let wrong = format!("a token lives between a moment and {hours} hours");
            return Err(Error::new(ErrorCode::InvalidArgument, wrong));
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
    /// When it ends, unless it is renewed or extended before.
    pub expires_ms: u64,
    /// Hosts that the sandbox asks as if it had a key: the gateway makes those requests, with the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostName>,
    /// When it was revoked, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
}

/// Whether a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It is.
    Good,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

impl fmt::Display for TokenState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Good => "good",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        })
    }
}

impl TokenRecord {
    /// When a token that is issued now ends, if nobody does anything about it.
    pub fn first_end(grant: &Grant, now_ms: u64) -> u64 {
        let life = match (grant.renewed, grant.life) {
            (true, life) => life.map_or(Grant::RENEWAL, |life| life.min(Grant::RENEWAL)),
            (false, life) => life.unwrap_or(Grant::DEFAULT_LIFE),
        };
        now_ms.saturating_add(milliseconds(life))
    }

    /// Whether it is good.
    pub fn state(&self, now_ms: u64) -> TokenState {
        match self.revoked_ms {
            Some(_) => TokenState::Revoked,
            None if now_ms >= self.expires_ms => TokenState::Expired,
            None => TokenState::Good,
        }
    }

    /// Takes it back. Once is enough.
    pub fn revoke(&mut self, now_ms: u64) {
        self.revoked_ms.get_or_insert(now_ms);
    }

    /// Lets it live this long from now. What has ended stays so.
    pub fn extend(&mut self, life: Duration, now_ms: u64) -> Result<()> {
        Grant::check_life(life)?;
        let state = self.state(now_ms);
        if state != TokenState::Good {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("the token `{}` is {state}, and stays so", self.id),
            )
            .hint("create another with `belljar token create`"));
        }
        let so_far = Duration::from_millis(now_ms.saturating_sub(self.issued_ms));
        self.grant.life = Some(so_far.saturating_add(life));
        let ahead = if self.grant.renewed { life.min(Grant::RENEWAL) } else { life };
        self.expires_ms = now_ms.saturating_add(milliseconds(ahead));
        Ok(())
    }

    /// Puts off its end, if it is good and one that is renewed; whether that changed anything.
    pub fn renew(&mut self, now_ms: u64) -> bool {
        if !self.grant.renewed || self.state(now_ms) != TokenState::Good {
            return false;
        }
        let last = self.grant.life.map_or(u64::MAX, |life| self.issued_ms.saturating_add(milliseconds(life)));
        let end = now_ms.saturating_add(milliseconds(Grant::RENEWAL)).min(last);
        let later = end > self.expires_ms;
        self.expires_ms = self.expires_ms.max(end);
        later
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A token, once.
#[derive(Clone, Serialize, Deserialize)]
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
            Grant { life: Some(Duration::ZERO), ..fine.clone() },
            Grant { life: Some(long), ..fine.clone() },
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
            hosts: Vec::new(),
            revoked_ms: None,
        };
        let env = BTreeMap::from([("KEY".to_owned(), "bjt_canary".to_owned())]);
        let issued = Issued { record, token: "bjt_canary".into(), env };
        assert!(!format!("{issued:?}").contains("canary"));
    }

    fn record(grant: Grant, now_ms: u64) -> TokenRecord {
        let expires_ms = TokenRecord::first_end(&grant, now_ms);
        let (id, hash) = ("tk-1".into(), "ab".into());
        TokenRecord { id, hash, grant, issued_ms: now_ms, expires_ms, hosts: Vec::new(), revoked_ms: None }
    }

    #[test]
    fn what_has_ended_stays_so() {
        let minute = Duration::from_secs(60);
        let mut token = record(Grant { life: Some(minute), ..Grant::of(Vec::new()) }, 1000);
        assert_eq!((token.state(60_999), token.state(61_000)), (TokenState::Good, TokenState::Expired));
        assert!(!token.renew(2000), "nobody said that it is");
        token.extend(minute, 31_000).unwrap();
        assert_eq!(token.expires_ms, 91_000);
        assert_eq!(token.extend(minute, 91_000).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(token.expires_ms, 91_000);
        token.revoke(50_000);
        token.revoke(60_000);
        assert_eq!((token.revoked_ms, token.state(0)), (Some(50_000), TokenState::Revoked));
        assert!(token.extend(minute, 51_000).is_err());
        for bad in [Duration::ZERO, Duration::from_secs(86_401)] {
            assert!(record(Grant::of(Vec::new()), 0).extend(bad, 0).is_err());
        }
    }

    #[test]
    fn what_is_renewed_never_ends_far_ahead_nor_after_its_life() {
        let renewed = Grant { renewed: true, ..Grant::of(Vec::new()) };
        let mut token = record(renewed.clone(), 0);
        assert_eq!(token.expires_ms, 600_000);
        assert!(token.renew(60_000) && !token.renew(60_000));
        assert_eq!(token.expires_ms, 660_000);
        assert!(!token.renew(660_000), "nobody came in time");
        let hour = Duration::from_secs(3600);
        let mut token = record(Grant { life: Some(hour), ..renewed.clone() }, 0);
        assert_eq!(token.expires_ms, 600_000);
        for minute in 1..60 {
            token.renew(minute * 60_000);
            assert!(token.expires_ms <= (minute + 10) * 60_000 && token.expires_ms <= 3_600_000);
        }
        assert_eq!(token.state(3_600_000), TokenState::Expired);
        let mut brief = record(Grant { life: Some(Duration::from_secs(1)), ..renewed }, 0);
        assert!(!brief.renew(500) && brief.expires_ms == 1000);
        brief.extend(hour, 500).unwrap();
        assert_eq!(brief.expires_ms, 600_500);
        assert!(brief.renew(60_000) && brief.expires_ms == 660_000);
    }
}
