//! Output of a sandbox on its way to a terminal.

use belljar_cli::fuzzing;

use crate::script::Script;

/// Passes the input through the sieve, cut in two ways, and through the escape for names.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let cut = script.below(16) + 1;
    let output = script.rest();
    let whole = fuzzing::sieved([output].into_iter());
    assert_eq!(fuzzing::sieved(output.chunks(cut)), whole, "cutting changes nothing");
    harmless(&whole);
    let again = fuzzing::sieved([whole.as_bytes()].into_iter());
    assert_eq!(again, whole, "what may be shown stays");
    let name = String::from_utf8_lossy(output);
    let shown = fuzzing::escaped(&name);
    assert!(!shown.chars().any(steers), "{shown:?}");
}

/// Only colours are left of the sequences, and of the controls only those that lay out lines.
fn harmless(text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find(|c| steers(c) && !matches!(c, '\n' | '\r' | '\t')) {
        let sequence =
            rest[at..].strip_prefix("\x1b[").unwrap_or_else(|| panic!("left in: {:?}", &rest[at..]));
        let end = sequence.find(|c: char| !matches!(c, '0'..='9' | ';' | ':')).expect("it ends");
        assert!(sequence[end..].starts_with('m') && end < 256, "not a colour: {sequence:?}");
        rest = &sequence[end..];
    }
}

/// Characters that move the cursor, begin a sequence or turn text around.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}
