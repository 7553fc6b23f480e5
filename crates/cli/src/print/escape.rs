//! Text that comes out of a sandbox must not steer the terminal it is shown on.

use std::borrow::Cow;

use belljar_core::Wall;

/// Whether a character could move the cursor, hide or reorder text, end a line, or stand there unseen.
fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Makes every dangerous character visible, newlines included.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_dangerous) || !Wall::TerminalFilter.stands() {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if is_dangerous(c) && u32::from(c) < 0x80 => escaped += &format!("\\x{:02x}", u32::from(c)),
            c if is_dangerous(c) => escaped += &format!("\\u{{{:x}}}", u32::from(c)),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// The same for JSON, where such characters stand in strings only and have a way to be written: what is meant stays what
/// it was.
pub(crate) fn escape_json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_dangerous) || !Wall::TerminalFilter.stands() {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_dangerous(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped += &format!("\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Removes escape sequences from a stream of output, except colours; lines, tabs and carriage returns stay. Pieces may
/// be cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Sieve {
    state: State,
    sequence: String,
    incomplete: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte: one more character belongs to it.
    Charset,
    /// After `ESC [`.
    Control,
    /// In a string that ends with BEL or `ESC \` (titles, clipboard, device control).
    CommandText,
    /// In such a string, after ESC.
    CommandEscape,
}

impl Sieve {
    /// What may be shown of the next piece.
    pub(crate) fn pass(&mut self, piece: &[u8]) -> String {
        if !Wall::TerminalFilter.stands() {
            return String::from_utf8_lossy(piece).into_owned();
        }
        let mut bytes = std::mem::take(&mut self.incomplete);
        bytes.extend_from_slice(piece);
        let mut shown = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            chunk.valid().chars().for_each(|c| self.take(c, &mut shown));
            let invalid = chunk.invalid();
            let may_go_on = chunks.peek().is_none()
                && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if may_go_on {
                self.incomplete = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.take(char::REPLACEMENT_CHARACTER, &mut shown);
            }
        }
        shown
    }

    fn take(&mut self, c: char, shown: &mut String) {
        self.state = match (self.state, c) {
            (State::CommandText, '\x07' | '\u{9c}') => State::Text,
            (State::CommandText, '\x1b') => State::CommandEscape,
            (State::CommandText, _) => State::CommandText,
            (State::CommandEscape, '\\') => State::Text,
            (State::CommandEscape, _) => State::CommandText,
            (_, '\x1b') => State::Escape,
            (State::Escape, '[') | (State::Text, '\u{9b}') => {
                self.sequence.clear();
                State::Control
            }
            (State::Escape, ']' | 'P' | 'X' | '^' | '_')
            | (State::Text, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => State::CommandText,
            (State::Escape, ' '..='/') => State::Charset,
            (State::Escape | State::Charset, _) => State::Text,
            (State::Control, '0'..='9' | ';' | ':') if self.sequence.len() < 64 => {
                self.sequence.push(c);
                State::Control
            }
            (State::Control, 'm') if !self.sequence.contains('?') => {
                *shown += &format!("\x1b[{}m", self.sequence);
                State::Text
            }
            (State::Control, ' '..='?') => {
                self.sequence.push('?');
                State::Control
            }
            (State::Control, _) => State::Text,
            (State::Text, c) => {
                if !is_dangerous(c) || matches!(c, '\n' | '\r' | '\t') {
                    shown.push(c);
                }
                State::Text
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_and_steers_nothing() {
        let said = "a\u{9b}31m\u{7f}\u{202e}\u{e0041}\n\u{1b}\"ä\\";
        let plain = serde_json::to_string(said).unwrap();
        assert!(plain.contains(is_dangerous), "the control");
        let escaped = escape_json(&plain);
        assert!(!escaped.contains(is_dangerous), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), said);
        assert!(matches!(escape_json("[1, \"plain ä\"]"), Cow::Borrowed(_)));
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(escape("plain é 名"), "plain é 名");
        assert_eq!(escape("a\u{e0041}\u{ad}\u{3164}"), "a\\u{e0041}\\u{ad}\\u{3164}");
        assert_eq!(escape("a\x1b]0;x\x07\n\u{9b}2J\u{202e}"), "a\\x1b]0;x\\x07\\n\\u{9b}2J\\u{202e}");
    }

    fn sieved(pieces: &[&[u8]]) -> String {
        let mut sieve = Sieve::default();
        pieces.iter().map(|piece| sieve.pass(piece)).collect()
    }

    #[test]
    fn colours_stay_and_everything_else_goes() {
        let cases: [(&[u8], &str); 10] = [
            (b"\x1b[1;31mred\x1b[0m\n", "\x1b[1;31mred\x1b[0m\n"),
            (b"a\x1b[2Jb\x1b[10;10Hc", "abc"),
            (b"a\x1b]52;c;ZXZpbA==\x07b", "ab"),
            (b"a\x1b]0;title\x1b\\b", "ab"),
            (b"a\x1bP1$q\x1b\\b\x1bcd", "abd"),
            (b"a\x1b[?1049hb\x1b[>4;1mc", "abc"),
            (b"a\x1b(0b\x08c\x00", "abc"),
            ("a\u{9b}2Jb\u{9d}x\u{9c}c".as_bytes(), "abc"),
            (b"bad \xff byte", "bad \u{fffd} byte"),
            (b"tab\tand\r\n", "tab\tand\r\n"),
        ];
        for (input, expected) in cases {
            assert_eq!(sieved(&[input]), expected);
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            assert_eq!(sieved(&bytes), expected, "cut into single bytes");
        }
        assert_eq!(sieved(&["é".as_bytes().split_at(1).0, "é".as_bytes().split_at(1).1]), "é");
    }
}
