//! Files inside a sandbox, as seen from outside.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode};

/// A path inside the sandbox. Relative ones start at the user's home. Whatever it says, it is resolved in the
/// sandbox's own view and never on the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(String);

impl FilePath {
    /// The longest path, in bytes, that the kernel takes.
    pub const MAX: usize = 4095;

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FilePath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let problem = if text.is_empty() {
            "is empty".to_owned()
        } else if text.len() > Self::MAX {
            format!("has {} bytes; the most is {}", text.len(), Self::MAX)
        } else if text.contains('\0') {
            "holds a NUL byte".to_owned()
        } else if text.contains('\n') {
            "holds a newline".to_owned()
        } else if text.split('/').any(|part| part.len() > 255) {
            "has a component of more than 255 bytes".to_owned()
        } else {
            return Ok(Self(text.to_owned()));
        };
        let shown: String = text.chars().take(60).collect();
        Err(Error::new(ErrorCode::InvalidArgument, format!("path `{}` {problem}", shown.escape_debug()))
            .hint("give a path inside the sandbox, such as /home/user/data.csv"))
    }
}

impl TryFrom<String> for FilePath {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> Self {
        path.0
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What kind of thing a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// A file or directory, described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its last component; bytes that are not UTF-8 are shown as `�`.
    pub name: String,
    /// Its path as asked for, or below the listed directory.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner inside the sandbox.
    pub uid: u32,
    /// Its group inside the sandbox.
    pub gid: u32,
    /// When it was last changed, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where it points, when it is a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What happened to a watched path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    /// It was made, or moved here.
    Created,
    /// It was written and closed.
    Written,
    /// It was removed, or moved away.
    Removed,
    /// Its permissions or owner changed.
    Attributes,
    /// More happened than could be kept; look at the directory again.
    Overflow,
}

/// One change below a watched directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// What happened.
    pub kind: WatchKind,
    /// To what, relative to the watched directory.
    pub path: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_are_refused_by_name_of_the_offence() {
        let cases = [
            (String::new(), "empty"),
            ("a\0b".to_owned(), "NUL"),
            ("a\nb".to_owned(), "newline"),
            ("a/".repeat(3000), "the most is 4095"),
            ("a".repeat(256), "255"),
        ];
        for (path, word) in cases {
            let error = path.parse::<FilePath>().unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
        assert!("../../etc/shadow".parse::<FilePath>().is_ok(), "resolved inside, so harmless");
    }
}
