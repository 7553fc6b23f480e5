//! Paths of HTTP requests as rules name them, and the one form in which paths are compared.

use std::fmt;
use std::str::FromStr;

/// Which paths a rule is about: `/v1/users` is that path alone, `/v1/*` everything below, and a `*` between slashes any
/// one segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern(Box<str>);

/// Why something is not a pattern of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin at the root.
    #[error("a path begins with `/`")]
    Relative,
    /// More than [`PathPattern::MAX_LEN`] bytes.
    #[error("a path has at most 1024 bytes")]
    TooLong,
    /// Servers would not agree on what it means.
    #[error(
        "servers read it differently: leave out `//`, `.` and `..`, `;`, `?`, `#`, `\\`, spaces and the escapes \
         of these, of `/`, of `%` and of control characters"
    )]
    Ambiguous,
    /// `*` beside other characters.
    #[error("`*` stands for a whole segment: `/v1/*`, `/users/*/keys`")]
    Star,
}

impl PathPattern {
    /// The longest pattern, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Whether the pattern is about this path, which must be plain (see [`plain_path`]).
    pub fn matches(&self, plain: &str) -> bool {
        let mut segments = plain.split('/');
        let mut patterns = self.0.split('/').peekable();
        while let Some(pattern) = patterns.next() {
            let Some(segment) = segments.next() else { return false };
            match (pattern, patterns.peek()) {
                ("*", None) => return true,
                ("*", Some(_)) if !segment.is_empty() => {}
                _ if pattern == segment => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    /// The same, for whatever must not slip through: letters of either case are alike.
    pub fn matches_in_any_case(&self, path: &str) -> bool {
        let lower = Self(self.0.to_ascii_lowercase().into_boxed_str());
        lower.matches(&path.to_ascii_lowercase())
    }
}

impl FromStr for PathPattern {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        if text.len() > Self::MAX_LEN {
            return Err(PathError::TooLong);
        }
        if !text.starts_with('/') {
            return Err(PathError::Relative);
        }
        let plain = plain_path(text).ok_or(PathError::Ambiguous)?;
        if plain.split('/').any(|segment| segment.contains('*') && segment != "*") {
            return Err(PathError::Star);
        }
        Ok(Self(plain.into_boxed_str()))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The path (without its query) in the form in which paths are compared, or nothing when two servers could read it
/// differently. Escapes of characters that need none are resolved; the other escapes are in upper case.
pub fn plain_path(path: &str) -> Option<String> {
    let mut plain = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let byte = if first == b'%' {
            let (escape, after) = rest.split_at_checked(2)?;
            rest = after;
            hexadecimal(escape)?
        } else {
            first
        };
        match (first == b'%', byte) {
            (_, byte) if is_unreserved(byte) => plain.push(char::from(byte)),
            (
                false,
                b'/' | b':' | b'@' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=',
            ) => {
                plain.push(char::from(byte));
            }
            (false, _) => return None,
            (true, b'/' | b'\\' | b'%' | b';' | b'?' | b'#' | 0..0x20 | 0x7f) => return None,
            (true, _) => plain.push_str(&format!("%{byte:02X}")),
        }
    }
    let body = plain.strip_prefix('/')?;
    let mut segments = body.split('/').peekable();
    while let Some(segment) = segments.next() {
        let inner = segments.peek().is_some();
        if matches!(segment, "." | "..") || (inner && segment.is_empty()) {
            return None;
        }
    }
    Some(plain)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn hexadecimal(escape: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let [high, low] = escape else { return None };
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_paths() {
        for (path, plain) in [
            ("/", "/"),
            ("/v1/", "/v1/"),
            ("/v1/a%20b", "/v1/a%20b"),
            ("/%76%31/%7Euser", "/v1/~user"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a.b/..c/d..", "/a.b/..c/d.."),
            ("/@scope/name:tag", "/@scope/name:tag"),
        ] {
            assert_eq!(plain_path(path).as_deref(), Some(plain), "{path}");
        }
    }

    #[test]
    fn paths_that_servers_read_differently() {
        for path in [
            "",
            "v1",
            "*",
            "//",
            "/a//b",
            "//a",
            "/a//",
            "/./a",
            "/a/.",
            "/a/..",
            "/../a",
            "/a/../b",
            "/%2e%2e/a",
            "/%2E./a",
            "/a/%2e",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a;b",
            "/a;/b",
            "/a%3bb",
            "/a%00",
            "/a%0d%0a",
            "/a%7f",
            "/a%252e",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%+1",
            "/a#b",
            "/a?b",
            "/a%23",
            "/a%3f",
            "/a b",
            "/a\tb",
            "/caf\u{e9}",
            "/\u{2215}a",
            "/a|b",
            "/a\"b",
        ] {
            assert_eq!(plain_path(path), None, "{path:?}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, matching, others) in [
            (
                "/v1/*",
                vec!["/v1/", "/v1/a", "/v1/a/b", "/v1/a/"],
                vec!["/v1", "/", "/v10/a", "/V1/a", "/v2/v1/a"],
            ),
            ("/v1", vec!["/v1"], vec!["/v1/", "/v1/a", "/v"]),
            ("/*", vec!["/", "/a", "/a/b"], vec![]),
            (
                "/u/*/keys",
                vec!["/u/a/keys"],
                vec!["/u//keys", "/u/keys", "/u/a/b/keys", "/u/a/keys/", "/u/a"],
            ),
            ("/%7ea", vec!["/~a"], vec!["/a"]),
        ] {
            let pattern: PathPattern = pattern.parse().unwrap();
            matching.iter().for_each(|path| assert!(pattern.matches(path), "{pattern} {path}"));
            others.iter().for_each(|path| assert!(!pattern.matches(path), "{pattern} {path}"));
        }
        let pattern: PathPattern = "/Admin/*".parse().unwrap();
        assert!(pattern.matches_in_any_case("/aDMIN/x") && !pattern.matches("/aDMIN/x"));
        for (text, why) in [
            ("v1", PathError::Relative),
            ("/a*", PathError::Star),
            ("/a/../b", PathError::Ambiguous),
            (&"/a".repeat(513), PathError::TooLong),
        ] {
            assert_eq!(text.parse::<PathPattern>(), Err(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn plain_stays_plain(path in "[/a.%2eEfF5~;*-]{0,24}") {
            if let Some(plain) = plain_path(&path) {
                prop_assert_eq!(plain_path(&plain), Some(plain));
            }
        }

        #[test]
        fn no_path_makes_it_panic(path in "(?s).{0,40}") {
            let _ = (plain_path(&path), path.parse::<PathPattern>());
        }
    }
}
