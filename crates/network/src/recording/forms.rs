//! In which forms a secret may stand in headers, queries and bodies.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::gateway::redact::{Word, without_lines};

/// A form that is shorter would be found everywhere.
pub(super) const SHORTEST: usize = 6;
/// What is longer is looked for in parts, so that no form is long.
const PART: usize = 128;

/// By the standard, nothing else stays as it is in percent-encoding, beside letters and digits.
const UNRESERVED: &[u8] = b"-_.~";
/// What does, and whether a space is a plus: by the standard, as forms have it, with slashes, in paths, and as browsers have it.
const PLAIN: [(&[u8], bool); 7] = [
    (UNRESERVED, false),
    (UNRESERVED, true),
    (b"*-._", true),
    (b"-_.~/", false),
    (b"-_.~!$&'()*+,;=:@/", false),
    (b"-_.!~*'()", false),
    (b"-_.!~*'();/?:@&=+$,#", false),
];
/// What JSON is written with beside what must be: nothing, as Go has it, and as .NET has it.
const ESCAPED: [&[u8]; 3] = [b"", b"<>&", b"<>&'+`"];
/// How HTML has quotation marks and apostrophes.
const QUOTES: [[&str; 2]; 4] = [["\"", "'"], ["&quot;", "&#39;"], ["&quot;", "&#x27;"], ["&#34;", "&#39;"]];

/// All forms of a value, each once.
pub(super) fn forms(value: &str) -> Vec<Word> {
    let bytes = value.as_bytes();
    let count = bytes.len().div_ceil(PART).max(1);
    let mut forms: Vec<Vec<u8>> = Vec::new();
    for part in bytes.chunks(bytes.len().div_ceil(count).max(1)) {
        of_part(part, &mut forms);
    }
    let once = |forms: &mut Vec<Vec<u8>>| {
        forms.sort();
        forms.dedup();
    };
    once(&mut forms);
    let mut forms: Vec<Vec<u8>> = forms.into_iter().map(without_lines).collect();
    forms.retain(|form| form.len() >= SHORTEST);
    once(&mut forms);
    forms.into_iter().map(|form| Arc::new(Zeroizing::new(form))).collect()
}

fn of_part(part: &[u8], forms: &mut Vec<Vec<u8>>) {
    forms.push(part.to_vec());
    for upper in [true, false] {
        forms.extend(PLAIN.map(|(plain, plus)| percent(part, plain, plus, upper)));
        let once = percent(part, UNRESERVED, false, upper);
        forms.push(percent(&once, UNRESERVED, false, upper));
        for escaped in ESCAPED {
            forms.extend([false, true].map(|slash| json(part, escaped, slash, upper)));
        }
        let mut digits = Vec::with_capacity(part.len() * 2);
        part.iter().for_each(|byte| hex(*byte, upper, &mut digits));
        forms.push(digits);
    }
    forms.extend(QUOTES.map(|quotes| html(part, quotes)));
    if let Ok(text) = std::str::from_utf8(part) {
        forms.push(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
        forms.push(text.encode_utf16().flat_map(u16::to_be_bytes).collect());
    }
    for encoded in (0..3).flat_map(|before| base64(part, before)) {
        for upper in [true, false] {
            forms.push(percent(&encoded, UNRESERVED, false, upper));
        }
        forms.push(json(&encoded, b"", true, false));
        forms.push(encoded);
    }
}

/// Writes a byte in two digits.
fn hex(byte: u8, upper: bool, out: &mut Vec<u8>) {
    let digits = if upper { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    out.extend([byte >> 4, byte & 15].map(|digit| digits[usize::from(digit)]));
}

fn percent(bytes: &[u8], plain: &[u8], plus: bool, upper: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 3);
    for byte in bytes {
        match byte {
            byte if byte.is_ascii_alphanumeric() || plain.contains(byte) => out.push(*byte),
            b' ' if plus => out.push(b'+'),
            byte => {
                out.push(b'%');
                hex(*byte, upper, &mut out);
            }
        }
    }
    out
}

fn json(bytes: &[u8], escaped: &[u8], slash: bool, upper: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    let unit = |unit: u16, out: &mut Vec<u8>| {
        out.extend(b"\\u");
        unit.to_be_bytes().iter().for_each(|byte| hex(*byte, upper, out));
    };
    for character in String::from_utf8_lossy(bytes).chars() {
        let must_be = character < ' ' || character.is_ascii() && escaped.contains(&(character as u8));
        match character {
            '"' | '\\' => out.extend([b'\\', character as u8]),
            '/' if slash => out.extend(b"\\/"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            // Those who escape what need not be escape all that is not ASCII.
            character if must_be || (!character.is_ascii() && !escaped.is_empty()) => {
                character.encode_utf16(&mut [0; 2]).iter().for_each(|half| unit(*half, &mut out));
            }
            character => out.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out
}

fn html(bytes: &[u8], [quote, apostrophe]: [&str; 2]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', quote).replace('\'', apostrophe).into_bytes()
}

/// What is certain of these bytes in base64, where so many others are before them and more may follow.
fn base64(bytes: &[u8], before: usize) -> [Vec<u8>; 2] {
    let all = [&b"\0\0"[..before], bytes].concat();
    let certain = (before * 8).div_ceil(6)..all.len() * 8 / 6;
    [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD]
        .map(|engine| engine.encode(&all).as_bytes()[certain.clone()].to_vec())
}
