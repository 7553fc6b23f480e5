//! What a sandbox may reach.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode};

/// What may leave the sandbox. There is one policy today: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkPolicy {
    /// No address, name or socket outside the sandbox can be reached.
    #[default]
    None,
}

impl FromStr for NetworkPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Self::None),
            "allowlist" | "open" | "record" | "replay" => Err(Error::new(
                ErrorCode::Unsupported,
                format!("network policy `{text}` is not available in this version"),
            )
            .hint("leave `--net` out, or use `--net none`; bring files in with `--file SRC:DST`")),
            _ => Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("unknown network policy `{}`", text.escape_debug()),
            )
            .hint("the only policy in this version is `none`")),
        }
    }
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("none"),
        }
    }
}
