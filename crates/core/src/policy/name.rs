//! Names of hosts in one normal form, so that the name that is checked is the name that is dialled.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host's name: lower-case ASCII, labels of letters, digits and hyphens, no trailing dot, and nothing that a resolver
/// could take for an address. There is no other way to hold a name, so two names are the same host exactly when they
/// are equal.
///
/// ```
/// # use belljar_core::HostName;
/// assert_eq!(HostName::parse("Example.ORG.").unwrap().as_str(), "example.org");
/// assert!(HostName::parse("127.1").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Box<str>);

/// Why something is not the name of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there, or only a dot.
    #[error("it is empty")]
    Empty,
    /// More than [`HostName::MAX_LEN`] bytes.
    #[error("it is longer than 253 bytes")]
    TooLong,
    /// Two dots in a row, or one at the beginning.
    #[error("it has an empty label")]
    EmptyLabel,
    /// A label of more than 63 bytes.
    #[error("it has a label longer than 63 bytes")]
    LabelTooLong,
    /// Something else than letters, digits, hyphens and dots.
    #[error("a name holds letters, digits, hyphens and dots only")]
    Character,
    /// A label that begins or ends with a hyphen.
    #[error("a label neither begins nor ends with a hyphen")]
    Hyphen,
    /// `127.1`, `0x7f.1`, `2130706433`: resolvers take these for addresses.
    #[error("it would be taken for an address; write addresses in full, such as 192.0.2.7:443")]
    Address,
    /// Letters that no name of the DNS can hold.
    #[error("it cannot be written as an internationalised name")]
    Unicode,
}

impl HostName {
    /// The longest name, in bytes of its normal form.
    pub const MAX_LEN: usize = 253;

    /// Reads a name that a person wrote, in any script, and brings it into its normal form.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_ascii() {
            return Self::from_wire(text.as_bytes());
        }
        // Every letter becomes at least one byte, so nothing longer than this can become a name.
        if text.chars().count() > Self::MAX_LEN + 1 {
            return Err(NameError::TooLong);
        }
        Self::from_wire(to_ascii(text)?.as_bytes())
    }

    /// Reads a name as protocols carry it: in ASCII, or it is none.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, NameError> {
        let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > Self::MAX_LEN {
            return Err(NameError::TooLong);
        }
        for label in bytes.split(|byte| *byte == b'.') {
            check_label(label)?;
        }
        let name = bytes.to_ascii_lowercase();
        if name.rsplit(|byte| *byte == b'.').next().is_some_and(is_number) {
            return Err(NameError::Address);
        }
        let name = String::from_utf8(name).map_err(|_| NameError::Character)?;
        Ok(Self(name.into_boxed_str()))
    }

    /// The name in its normal form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its labels, the leftmost first.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// Whether this name lies below the other, at any depth.
    pub fn is_below(&self, other: &Self) -> bool {
        self.0.strip_suffix(&*other.0).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }
}

fn check_label(label: &[u8]) -> Result<(), NameError> {
    if label.is_empty() {
        return Err(NameError::EmptyLabel);
    }
    if !label.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
        return Err(NameError::Character);
    }
    if label.len() > 63 {
        return Err(NameError::LabelTooLong);
    }
    if label.starts_with(b"-") || label.ends_with(b"-") {
        return Err(NameError::Hyphen);
    }
    Ok(())
}

/// Whether a last label makes the whole an address to `inet_aton` and its kin: decimal, octal or hexadecimal.
fn is_number(label: &[u8]) -> bool {
    let hexadecimal = label.strip_prefix(b"0x").is_some_and(|rest| rest.iter().all(u8::is_ascii_hexdigit));
    hexadecimal || label.iter().all(u8::is_ascii_digit)
}

#[cfg(feature = "idna")]
fn to_ascii(text: &str) -> Result<String, NameError> {
    idna::domain_to_ascii_strict(text).map_err(|_| NameError::Unicode)
}

#[cfg(not(feature = "idna"))]
fn to_ascii(_: &str) -> Result<String, NameError> {
    Err(NameError::Unicode)
}

impl FromStr for HostName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for HostName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Which names a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This name and no other.
    Exact(HostName),
    /// Every name below this one, at any depth, and not itself: `*.example.org`.
    Below(HostName),
}

impl HostPattern {
    /// Whether the pattern is about this name.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exact(own) => own == name,
            Self::Below(own) => name.is_below(own),
        }
    }
}

impl FromStr for HostPattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.strip_prefix("*.") {
            Some(rest) => HostName::parse(rest).map(Self::Below),
            None => HostName::parse(text).map(Self::Exact),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(formatter),
            Self::Below(name) => write!(formatter, "*.{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[test]
    fn names_have_one_form() {
        for (text, normal) in [
            ("example.org", "example.org"),
            ("EXAMPLE.Org", "example.org"),
            ("example.org.", "example.org"),
            ("a-b.example", "a-b.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("1.2.3.4.example.org", "1.2.3.4.example.org"),
            ("3com.com", "3com.com"),
            ("0xzz", "0xzz"),
            ("a.0x7g", "a.0x7g"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(name(text).as_str(), normal, "{text}");
        }
    }

    #[cfg(feature = "idna")]
    #[test]
    fn names_in_any_script() {
        for (text, normal) in [
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("bu\u{308}cher.example", "xn--bcher-kva.example"),
            ("example。org", "example.org"),
            ("ｅｘａｍｐｌｅ.org", "example.org"),
            // A Cyrillic letter makes another name, and not one that looks the same.
            ("ex\u{430}mple.org", "xn--exmple-4nf.org"),
        ] {
            assert_eq!(name(text).as_str(), normal, "{text}");
        }
        for text in ["１２７.1", "example.org\u{ff0f}a", "a\u{200b}\u{2028}b.org", "\u{ff05}00.org"] {
            assert!(HostName::parse(text).is_err(), "{text:?}");
        }
        // A zero-width space is nothing at all, and leaves no trace.
        assert_eq!(name("exam\u{200b}ple.org").as_str(), "example.org");
    }

    #[test]
    fn what_is_no_name() {
        use NameError::*;
        let long = format!("{}.org", "a".repeat(64));
        let longer = format!("{}org", "a.".repeat(126));
        for (text, why) in [
            ("", Empty),
            (".", Empty),
            ("..", EmptyLabel),
            (".org", EmptyLabel),
            ("a..org", EmptyLabel),
            ("example.org..", EmptyLabel),
            ("*", Character),
            ("*.org", Character),
            ("exa mple.org", Character),
            (" example.org", Character),
            ("example.org\t", Character),
            ("example.org\n", Character),
            ("example.org\0", Character),
            ("allowed.com\0.evil.org", Character),
            ("allowed.com@evil.org", Character),
            ("evil.org#allowed.com", Character),
            ("evil.org\\allowed.com", Character),
            ("evil.org/allowed.com", Character),
            ("evil.org?allowed.com", Character),
            ("example.org:443", Character),
            ("example%2eorg", Character),
            ("a_b.org", Character),
            ("[::1]", Character),
            ("-a.org", Hyphen),
            ("a-.org", Hyphen),
            ("127.0.0.1", Address),
            ("127.1", Address),
            ("127.1.", Address),
            ("0x7f.1", Address),
            ("0X7F000001", Address),
            ("0x7f.0x0.0x0.0x1", Address),
            ("2130706433", Address),
            ("017700000001", Address),
            ("0177.0.0.01", Address),
            ("example.0x", Address),
            ("1", Address),
            (&long, LabelTooLong),
            (&longer, TooLong),
        ] {
            assert_eq!(HostName::parse(text), Err(why), "{text:?}");
        }
        assert_eq!(HostName::from_wire("bücher.example".as_bytes()), Err(Character));
        assert!(HostName::parse(&"a.".repeat(127)).is_ok(), "253 bytes are a name");
    }

    #[test]
    fn patterns_match_whole_labels() {
        let exact: HostPattern = "allowed.com".parse().unwrap();
        let below: HostPattern = "*.allowed.com".parse().unwrap();
        for (host, is_exact, is_below) in [
            ("allowed.com", true, false),
            ("a.allowed.com", false, true),
            ("a.b.allowed.com", false, true),
            ("evil-allowed.com", false, false),
            ("evilallowed.com", false, false),
            ("allowed.com.evil.tld", false, false),
            ("com", false, false),
        ] {
            assert_eq!(
                (exact.matches(&name(host)), below.matches(&name(host))),
                (is_exact, is_below),
                "{host}"
            );
        }
        for text in ["*", "*.", "**.org", "*.*.org", "a.*.org", "*org", "*.127.1"] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_normal_form_stays(text in "(?s).{0,80}") {
            if let Ok(name) = HostName::parse(&text) {
                prop_assert_eq!(HostName::parse(name.as_str()), Ok(name.clone()));
                prop_assert_eq!(HostName::from_wire(name.as_str().as_bytes()), Ok(name));
            }
        }

        #[test]
        fn likely_names_too(text in "[a-zA-Z0-9ü.-]{0,40}") {
            if let Ok(name) = HostName::parse(&text) {
                prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b)));
                prop_assert_eq!(HostName::parse(name.as_str()), Ok(name));
            }
        }
    }
}
