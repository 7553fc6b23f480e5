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

/// What stays as it is in percent-encoding, beside letters and digits: by the standard, in paths, and as browsers and forms have it.
const PLAIN: [&[u8]; 4] = [b"-_.~", b"-_.~/", b"-_.!~*'()", b"*-._"];
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
    let mut forms: Vec<Vec<u8>> = forms.iter().map(|form| without_lines(form)).collect();
    forms.retain(|form| form.len() >= SHORTEST);
    forms.sort();
    forms.dedup();
    forms.into_iter().map(|form| Arc::new(Zeroizing::new(form))).collect()
}

fn of_part(part: &[u8], forms: &mut Vec<Vec<u8>>) {
    forms.push(part.to_vec());
    for upper in [true, false] {
        for plain in PLAIN {
            for plus in [false, true] {
                let once = percent(part, plain, plus, upper);
                forms.push(percent(&once, PLAIN[0], false, upper));
                forms.push(once);
            }
        }
        for escaped in ESCAPED {
            forms.extend([false, true].map(|slash| json(part, escaped, slash, upper)));
        }
        forms.push(part.iter().flat_map(|byte| hex(*byte, upper)).collect());
    }
    forms.extend(QUOTES.map(|quotes| html(part, quotes)));
    if let Ok(text) = std::str::from_utf8(part) {
        forms.push(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
        forms.push(text.encode_utf16().flat_map(u16::to_be_bytes).collect());
    }
    for encoded in (0..3).flat_map(|before| base64(part, before)) {
        for upper in [true, false] {
            forms.push(percent(&encoded, PLAIN[0], false, upper));
        }
        forms.push(json(&encoded, b"", true, false));
        forms.push(encoded);
    }
}

fn hex(byte: u8, upper: bool) -> Vec<u8> {
    if upper { format!("{byte:02X}") } else { format!("{byte:02x}") }.into_bytes()
}

fn percent(bytes: &[u8], plain: &[u8], plus: bool, upper: bool) -> Vec<u8> {
    let encode = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || plain.contains(byte) => vec![*byte],
        b' ' if plus => vec![b'+'],
        byte => [vec![b'%'], hex(*byte, upper)].concat(),
    };
    bytes.iter().flat_map(encode).collect()
}

fn json(bytes: &[u8], escaped: &[u8], slash: bool, upper: bool) -> Vec<u8> {
    let unit = |unit: u16| {
        let digits = unit.to_be_bytes().into_iter().flat_map(|byte| hex(byte, upper));
        [b'\\', b'u'].into_iter().chain(digits).collect::<Vec<u8>>()
    };
    let encode = |character: char| match character {
        '"' | '\\' => vec![b'\\', character as u8],
        '/' if slash => b"\\/".to_vec(),
        '\n' => b"\\n".to_vec(),
        '\r' => b"\\r".to_vec(),
        '\t' => b"\\t".to_vec(),
        character if character < ' ' => unit(character as u16),
        character if character.is_ascii() && !escaped.contains(&(character as u8)) => vec![character as u8],
        // Those who escape what must not be leave nothing else as it is.
        character if !escaped.is_empty() => {
            character.encode_utf16(&mut [0; 2]).iter().flat_map(|half| unit(*half)).collect()
        }
        character => character.to_string().into_bytes(),
    };
    String::from_utf8_lossy(bytes).chars().flat_map(encode).collect()
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
