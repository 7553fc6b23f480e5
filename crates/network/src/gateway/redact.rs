//! Keys that an upstream says back are not passed on.

use memchr::memmem::Finder;
use zeroize::Zeroizing;

/// Puts asterisks where a key would be, in bytes that come in pieces.
#[derive(Debug, Default)]
pub struct Redactor {
    keys: Vec<Key>,
    /// The end of what came, which may be the beginning of a key.
    held: Zeroizing<Vec<u8>>,
}

#[derive(Clone)]
struct Key(Zeroizing<Vec<u8>>);

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key(***)")
    }
}

impl Redactor {
    /// One that looks for these.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let keys = keys.into_iter().filter(|key| !key.is_empty());
        let keys = keys.map(|key| Key(Zeroizing::new(key.as_bytes().to_vec())));
        Self { keys: keys.collect(), held: Zeroizing::default() }
    }

    /// What can be passed on now.
    pub fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        if self.keys.is_empty() {
            return piece.to_vec();
        }
        let mut bytes = std::mem::take(&mut *self.held);
        bytes.extend_from_slice(piece);
        for Key(key) in &self.keys {
            let finder = Finder::new(&key[..]);
            let mut from = 0;
            while let Some(at) = finder.find(&bytes[from..]) {
                bytes[from + at..from + at + key.len()].fill(b'*');
                from += at + key.len();
            }
        }
        let held = self.keys.iter().map(|Key(key)| beginning(&bytes, key)).max().unwrap_or(0);
        let rest = bytes.split_off(bytes.len() - held);
        *self.held = rest;
        bytes
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut *self.held)
    }
}

/// How much of the end of these bytes is a beginning of the key.
fn beginning(bytes: &[u8], key: &[u8]) -> usize {
    let most = bytes.len().min(key.len() - 1);
    (1..=most).rev().find(|length| bytes.ends_with(&key[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_however_it_is_cut() {
        let text = b"data: {\"key\": \"k-aab-k-aaab\"} k-aak-aaab k-aaa";
        let expected = "data: {\"key\": \"k-aab-******\"} k-aa****** k-aaa".as_bytes();
        for size in 1..=text.len() {
            let mut redactor = Redactor::new(["k-aaab", ""]);
            let mut passed: Vec<u8> = text.chunks(size).flat_map(|piece| redactor.pass(piece)).collect();
            passed.extend(redactor.finish());
            assert_eq!(
                String::from_utf8_lossy(&passed),
                String::from_utf8_lossy(expected),
                "in pieces of {size}"
            );
        }
    }

    #[test]
    fn nothing_waits_that_need_not() {
        let mut redactor = Redactor::new(["secret-key"]);
        assert_eq!(redactor.pass(b"event: ping\n\n"), b"event: ping\n\n");
        assert_eq!(redactor.pass(b"s"), b"");
        assert_eq!(redactor.pass(b"o"), b"so");
        assert!(!format!("{redactor:?}").contains("secret"));
    }
}
