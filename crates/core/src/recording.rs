//! Recordings of a sandbox's network: what is written into one, and what is answered from one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{ByteSize, Error, ErrorCode, Result, Rule};

/// The directory of recordings in a data directory.
pub const RECORDINGS: &str = "recordings";
/// The file of a sandbox's directory that says what its network has to do with one.
pub const RECORDING_FILE: &str = "recording.json";

/// The name of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordingName(String);

impl RecordingName {
    /// The most bytes of a name.
    pub const MAX: usize = 64;
    /// What the file of a recording ends with.
    pub const ENDING: &str = ".bjr";

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its file.
    pub fn file(&self) -> String {
        format!("{}{}", self.0, Self::ENDING)
    }
}

impl fmt::Display for RecordingName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for RecordingName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins && text.len() <= Self::MAX && text.bytes().all(fits) {
            return Ok(Self(text.to_owned()));
        }
        let wrong = format!("`{}` is not the name of a recording", text.escape_debug());
        Err(Error::new(ErrorCode::InvalidArgument, wrong).hint(format!(
            "a name has up to {} of the characters A-Z a-z 0-9 . _ - and begins with a letter or a digit",
            Self::MAX
        )))
    }
}

impl TryFrom<String> for RecordingName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<RecordingName> for String {
    fn from(name: RecordingName) -> Self {
        name.0
    }
}

/// What a sandbox's network has to do with a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recording {
    /// Everything that goes through the door is written into one.
    Record(Record),
    /// Nothing goes through the door: one is answered from.
    Replay(Replay),
}

impl Recording {
    /// Which.
    pub fn name(&self) -> &RecordingName {
        match self {
            Self::Record(record) => &record.name,
            Self::Replay(replay) => &replay.name,
        }
    }

    /// Refuses what cannot be.
    pub fn check(&self) -> Result<()> {
        let (words, what) = match self {
            Self::Record(record) => (record.headers.iter().chain(&record.secrets), "headers and variables"),
            Self::Replay(replay) => (replay.ignore.iter().chain([].iter()), "names"),
        };
        let (mut count, mut bytes) = (0, 0);
        for word in words {
            count += 1;
            bytes += word.len();
        }
        if count > 256 || bytes > 16 << 10 {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("{count} {what} are too many"))
                .hint("name up to 256, of 16 KiB together"));
        }
        Ok(())
    }
}

/// How a recording is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its name.
    pub name: RecordingName,
    /// The most bytes that its file may have.
    #[serde(default = "Record::most")]
    pub most: ByteSize,
    /// Hosts whose TLS stays closed, and of which therefore only bytes are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<Rule>,
    /// Variables of the sandbox whose values must not be in it, beside those whose names say that they are secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Headers whose values must not be in it, beside the usual ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
}

impl Record {
    /// The most bytes of a file, unless something else is said.
    pub fn most() -> ByteSize {
        ByteSize(4 << 30)
    }
}

/// How a recording is answered from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// Its name.
    pub name: RecordingName,
    /// By what a request is known again.
    #[serde(default)]
    pub matching: Matching,
    /// Names of parameters in queries and of members in JSON whose values do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
    /// Whether answers take as long as they took.
    #[serde(default)]
    pub timing: bool,
}

/// What the door is told of a recording.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingPlan {
    /// What is to be done.
    pub how: Recording,
    /// Values that must not be written down.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Variables by which programs find the gateway, without the token.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for RecordingPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets = self.secrets.len();
        formatter.debug_struct("RecordingPlan").field("how", &self.how).field("secrets", &secrets).finish()
    }
}

/// By what a request is known again, beside its method, host and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matching {
    /// Its query.
    pub query: bool,
    /// Its body.
    pub body: bool,
}

impl Default for Matching {
    fn default() -> Self {
        Self { query: true, body: true }
    }
}

impl FromStr for Matching {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut matching = Self { query: false, body: false };
        for word in text.split(',') {
            match word.trim() {
                "query" => matching.query = true,
                "body" => matching.body = true,
                "path" => {}
                other => {
                    let wrong = format!("requests are not known again by `{}`", other.escape_debug());
                    return Err(Error::new(ErrorCode::InvalidArgument, wrong).hint(
                        "give `path`, `path,query`, `path,body` or `path,query,body`; method and host always count",
                    ));
                }
            }
        }
        Ok(matching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_files() {
        for good in ["a", "run-1.2_x", "0", &"a".repeat(64)] {
            assert_eq!(good.parse::<RecordingName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-a", "a/b", "../a", "a b", "é", &"a".repeat(65)] {
            assert!(bad.parse::<RecordingName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_counts_is_said_in_words() {
        assert_eq!("path,query,body".parse::<Matching>().unwrap(), Matching::default());
        assert_eq!("path".parse::<Matching>().unwrap(), Matching { query: false, body: false });
        assert!("headers".parse::<Matching>().is_err());
    }
}
