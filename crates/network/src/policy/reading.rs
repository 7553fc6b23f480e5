//! What a path could mean to some server. Where servers disagree, a denial covers every reading, and a grant none.

use std::collections::BTreeSet;

use belljar_core::plain_path;

/// A path as it was sent, without its query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It has one meaning.
    Plain(String),
    /// It has these meanings, depending on the server.
    Ambiguous(BTreeSet<String>),
    /// It has several, which nobody asked for; or it is too long to think about.
    Beyond,
}

/// The longest path that is read.
const MAX_LEN: usize = 8 * 1024;
/// The longest whose meanings are found out where there are several.
const MAX_UNCLEAR: usize = 1024;

impl Reading {
    /// Reads the target of a request: a path, perhaps with a query.
    /// What it could mean is found out only where that is asked for: it takes a while.
    pub(super) fn of(target: &str, with_meanings: bool) -> Self {
        let path = target.split('?').next().unwrap_or(target);
        if path.len() > MAX_LEN {
            return Self::Beyond;
        }
        match plain_path(path) {
            Some(plain) => Self::Plain(plain),
            None if !with_meanings || path.len() > MAX_UNCLEAR => Self::Beyond,
            None => Self::Ambiguous(meanings(path.as_bytes())),
        }
    }
}

/// Every combination of the liberties that servers take: decoding once or twice, other slashes, parameters of segments,
/// cutting at what ends a path, joining slashes, and resolving dots.
fn meanings(path: &[u8]) -> BTreeSet<String> {
    let decoded = decode(path);
    let twice = decode(&decoded);
    let mut meanings = BTreeSet::new();
    for bytes in [path.to_vec(), decoded, twice] {
        for liberties in 0..1_u8 << LIBERTIES.len() {
            let mut bytes = bytes.clone();
            for (at, liberty) in LIBERTIES.iter().enumerate() {
                if liberties & 1 << at != 0 {
                    bytes = liberty(&bytes);
                }
            }
            meanings.insert(encode(&bytes));
        }
    }
    meanings
}

type Liberty = fn(&[u8]) -> Vec<u8>;

const LIBERTIES: [Liberty; 5] = [end, straighten, drop_parameters, join_slashes, resolve_dots];

fn decode(path: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        match (byte, digit(path.get(at + 1)), digit(path.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.extend(u8::try_from(high * 16 + low));
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

fn end(path: &[u8]) -> Vec<u8> {
    path.split(|byte| b"?#\0".contains(byte)).next().unwrap_or_default().to_vec()
}

fn straighten(path: &[u8]) -> Vec<u8> {
    path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect()
}

fn drop_parameters(path: &[u8]) -> Vec<u8> {
    let segments: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or_default())
        .collect();
    segments.join(&b'/')
}

fn join_slashes(path: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    joined.dedup_by(|one, other| *one == b'/' && *other == b'/');
    joined
}

fn resolve_dots(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut segments = path.split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            b".." if kept.len() > 1 => drop(kept.pop()),
            b"." | b".." => {}
            _ => kept.push(segment),
        }
        if last && matches!(segment, b"." | b"..") {
            kept.push(b"");
        }
    }
    kept.join(&b'/')
}

/// As patterns are written: what needs no escape has none, and a path begins at the root.
fn encode(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len() + 1);
    if !path.starts_with(b"/") {
        text.push('/');
    }
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"-._~/:@!$&'()*+,=".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trick_has_its_reading() {
        for target in [
            "/public/../admin/x",
            "/public/%2e%2e/admin/x",
            "/public/%2E./admin/x",
            "//admin/x",
            "/./admin/x",
            "/admin//x",
            "/public/..%2fadmin/x",
            "/public%2f..%2fadmin%2fx",
            "/public\\..\\admin\\x",
            "\\admin\\x",
            "/public/..%5cadmin%5cx",
            "/admin;a=b/x",
            "/admin;/x",
            "/admin/x;jsessionid=1",
            "/public/..;/admin/x",
            "/%2561dmin/x",
            "/public/%252e%252e/admin/x",
            "/admin%2fx",
            "/admin/x%00.png",
            "/admin/x%23y",
            "/admin/x#y",
            "/admin/x%3fy",
            "admin/x",
            "/public/%252e%252e%255cadmin//x",
            "/a/b/../../admin/x?q=/..",
        ] {
            let Reading::Ambiguous(meanings) = Reading::of(target, true) else { panic!("{target} is plain") };
            assert!(meanings.contains("/admin/x"), "{target}: {meanings:?}");
            assert!(meanings.len() <= 96);
        }
        assert_eq!(Reading::of("/%61dmin/x?y=/../z", true), Reading::Plain("/admin/x".into()));
        assert_eq!(Reading::of(&"/a".repeat(5000), true), Reading::Beyond);
        // However much there is to read in it, few readings are kept.
        for piece in ["/a;b", "/%2e%2e/x", "/a%252f..", "\\a;/.", "/a%3b;%253b/..;"] {
            let Reading::Ambiguous(meanings) = Reading::of(&piece.repeat(150), true) else { continue };
            assert!(meanings.len() <= 96, "{piece}: {}", meanings.len());
        }
    }
}
