//! Words that must not be passed on, found in bytes that come in pieces: keys that an upstream says back, and secrets on their way into
//! a recording.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

/// One of them.
pub type Word = Arc<Zeroizing<Vec<u8>>>;

/// By how many bits of a hash it is known how words begin.
const BITS: u32 = 18;
/// So many bytes at the beginning of a word are looked at for that.
const BEGINNING: usize = 4;

/// What is looked for. Words are kept in order: those that stand at one place of a text are found by halving, however many there are.
#[derive(Clone, Default)]
pub struct Words {
    all: Vec<Word>,
    /// For each the longest other that it begins with.
    within: Vec<Option<usize>>,
    /// A bit for each way in which one begins.
    beginnings: Vec<u64>,
    /// So many bytes of each count for that.
    beginning: usize,
    longest: usize,
}

impl fmt::Debug for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Words({})", self.all.len())
    }
}

/// The bit of how something begins.
fn bit(beginning: &[u8]) -> (usize, u64) {
    let number = beginning.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    let hash = number.wrapping_mul(0x9E37_79B1) >> (32 - BITS);
    (hash as usize / 64, 1 << (hash % 64))
}

impl Words {
    /// These, but for empty ones.
    pub fn new(words: impl IntoIterator<Item = Word>) -> Self {
        Self::default().with(words)
    }

    /// With more.
    pub fn with(&self, more: impl IntoIterator<Item = Word>) -> Self {
        let mut all = self.all.clone();
        all.extend(more.into_iter().filter(|word| !word.is_empty()));
        // What is in order already costs little.
        all.sort_by(|one, other| one.as_slice().cmp(other));
        all.dedup();
        let mut within: Vec<Option<usize>> = Vec::with_capacity(all.len());
        for (at, word) in all.iter().enumerate() {
            let mut shorter = at.checked_sub(1);
            while let Some(other) = shorter
                && !word.starts_with(&all[other])
            {
                shorter = within[other];
            }
            within.push(shorter);
        }
        let lengths = || all.iter().map(|word| word.len());
        let beginning = lengths().min().unwrap_or(0).min(BEGINNING);
        let longest = lengths().max().unwrap_or(0);
        let mut beginnings = vec![0; if all.is_empty() { 0 } else { 1 << (BITS - 6) }];
        for word in &all {
            let (at, bit) = bit(&word[..beginning]);
            beginnings[at] |= bit;
        }
        Self { all, within, beginnings, beginning, longest }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one may begin as this does.
    fn may_begin(&self, text: &[u8]) -> bool {
        text.get(..self.beginning).is_none_or(|beginning| {
            let (at, bit) = bit(beginning);
            self.beginnings.get(at).is_some_and(|bits| bits & bit != 0)
        })
    }

    /// How long the longest is that this begins with.
    fn longest_at(&self, text: &[u8]) -> Option<usize> {
        let text = &text[..text.len().min(self.longest)];
        // The last in order that is not behind it is that one, or begins with it.
        let mut at = self.all.partition_point(|word| word.as_slice() <= text).checked_sub(1);
        while let Some(word) = at {
            if text.starts_with(&self.all[word]) {
                return Some(self.all[word].len());
            }
            at = self.within[word];
        }
        None
    }

    /// Whether this is the beginning of one that goes on.
    fn is_begun(&self, text: &[u8]) -> bool {
        let next = self.all.partition_point(|word| word.as_slice() <= text);
        self.all.get(next).is_some_and(|word| word.starts_with(text))
    }
}

/// A word without the ends of lines in it, as it is looked for across them.
pub fn without_lines(word: Vec<u8>) -> Vec<u8> {
    if memchr::memchr3(b'\r', b'\n', b'\\', &word).is_none() {
        return word;
    }
    let mut redactor = Redactor::across_lines(Arc::default());
    redactor.add(&word);
    redactor.end_escape();
    std::mem::take(&mut *redactor.text)
}

/// Puts asterisks where a word would be, in bytes that come in pieces.
#[derive(Debug, Default)]
pub struct Redactor {
    words: Arc<Words>,
    /// Whether words are found though lines end in their midst, also as that is written in JSON.
    is_across_lines: bool,
    /// What came and was not passed on, with asterisks.
    out: Vec<u8>,
    /// The bytes of it that words are looked for in, as they came.
    text: Zeroizing<Vec<u8>>,
    /// And where each of these is.
    places: Vec<usize>,
    /// Whether the last byte that came may begin the end of a line.
    is_escaped: bool,
}

impl Redactor {
    /// One that looks for these.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let words = keys.into_iter().map(|key| Arc::new(Zeroizing::new(key.as_bytes().to_vec())));
        Self { words: Arc::new(Words::new(words)), ..Self::default() }
    }

    /// One that looks for these, which have no ends of lines, as if there were none.
    pub fn across_lines(words: Arc<Words>) -> Self {
        Self { words, is_across_lines: true, ..Self::default() }
    }

    /// What can be passed on now.
    pub fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        if self.words.is_empty() {
            return piece.to_vec();
        }
        self.add(piece);
        self.release()
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Vec<u8> {
        self.end_escape();
        self.hide();
        self.text.clear();
        self.places.clear();
        std::mem::take(&mut self.out)
    }

    /// Takes in more.
    pub fn add(&mut self, mut piece: &[u8]) {
        if !self.is_across_lines {
            return self.look_at(piece);
        }
        while let Some((first, rest)) = piece.split_first() {
            match (std::mem::take(&mut self.is_escaped), first) {
                (true, b'n' | b'r') | (false, b'\r' | b'\n') => self.pass_over(&[*first]),
                (true, _) => {
                    self.end_of_escape();
                    continue;
                }
                (false, b'\\') => {
                    self.pass_over(&[*first]);
                    self.is_escaped = true;
                }
                (false, _) => {
                    let plain = memchr::memchr3(b'\r', b'\n', b'\\', piece).unwrap_or(piece.len());
                    self.look_at(&piece[..plain]);
                    piece = &piece[plain..];
                    continue;
                }
            }
            piece = rest;
        }
    }

    /// Takes in what no word is looked for in, and what may be in the midst of one.
    pub fn pass_over(&mut self, piece: &[u8]) {
        self.end_escape();
        self.out.extend_from_slice(piece);
    }

    fn look_at(&mut self, piece: &[u8]) {
        let begin = self.out.len();
        self.out.extend_from_slice(piece);
        self.text.extend_from_slice(piece);
        self.places.extend(begin..self.out.len());
    }

    /// The last byte begins no end of a line, and counts.
    fn end_of_escape(&mut self) {
        self.text.push(b'\\');
        self.places.push(self.out.len() - 1);
    }

    fn end_escape(&mut self) {
        if std::mem::take(&mut self.is_escaped) {
            self.end_of_escape();
        }
    }

    /// Puts asterisks where whole words are, one in another or not.
    fn hide(&mut self) {
        let mut hidden = 0;
        for at in 0..self.text.len() {
            let text = &self.text[at..];
            if self.words.may_begin(text)
                && let Some(length) = self.words.longest_at(text)
            {
                let end = (at + length).max(hidden);
                self.places[at.max(hidden)..end].iter().for_each(|place| self.out[*place] = b'*');
                hidden = end;
            }
        }
    }

    /// What can be passed on of what was taken in: all but an end that may be the beginning of a word.
    pub fn release(&mut self) -> Vec<u8> {
        self.hide();
        let last = self.text.len().saturating_sub(self.words.longest.saturating_sub(1));
        let is_begun = |at: &usize| {
            let text = &self.text[*at..];
            self.words.may_begin(text) && self.words.is_begun(text)
        };
        let begun = (last..self.text.len()).find(is_begun).unwrap_or(self.text.len());
        let end = self.out.len() - usize::from(self.is_escaped);
        let count = self.places.get(begun).copied().unwrap_or(end);
        self.text.drain(..begun);
        self.places.drain(..begun);
        self.places.iter_mut().for_each(|place| *place -= count);
        let held = self.out.split_off(count);
        std::mem::replace(&mut self.out, held)
    }
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
    fn words_are_found_in_words_and_across_lines() {
        let words =
            ["abc-def", "abc-defghi", "hijkl", "-----"].map(|word| Arc::new(Zeroizing::new(word.into())));
        let words = Arc::new(Words::new(words));
        for (text, expected) in [
            ("abc-def", "*******"),
            ("abc-defghi", "**********"),
            ("abc-defghx", "*******ghx"),
            ("abc-defghijkl abc-deh", "************* abc-deh"),
            ("ab\r\nc-\\ndef\\", "**\r\n**\\n***\\"),
            ("-------x", "*******x"),
            ("ab\\xc-def", "ab\\xc-def"),
        ] {
            for size in 1..=text.len() {
                let mut redactor = Redactor::across_lines(words.clone());
                let mut out: Vec<u8> =
                    text.as_bytes().chunks(size).flat_map(|piece| redactor.pass(piece)).collect();
                out.extend(redactor.finish());
                assert_eq!(String::from_utf8_lossy(&out), expected, "{text} in pieces of {size}");
            }
        }
        assert_eq!(without_lines(b"a\nb\\nc\\x\\".to_vec()), b"abc\\x\\");
    }

    /// However alike the words are, none is looked for by itself.
    #[test]
    fn many_words_are_found_as_fast_as_few() {
        let many = (0..4000)
            .map(|number| Arc::new(Zeroizing::new(format!("{}{number:04}", "a".repeat(100)).into())));
        let words = Words::new(many);
        assert!(words.within.iter().all(Option::is_none));
        let text = format!("{}0007", "a".repeat(200));
        let found: Vec<usize> =
            (0..text.len()).filter(|at| words.longest_at(&text.as_bytes()[*at..]).is_some()).collect();
        assert_eq!(found, [100]);
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
