//! Answers of providers, and what they say was used.

use belljar_network::gateway::usage::{Known, Reader, Report, Wire};

use crate::script::Script;

/// Reads the input as an answer, whole, in pieces and cut off.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let wire = Wire::ALL[script.below(Wire::ALL.len())];
    let size = script.below(64) + 1;
    let bytes = script.rest();
    let (whole, over) = read(wire, bytes, bytes.len().max(1));
    assert_eq!(read(wire, bytes, size), (whole.clone(), over.clone()), "cutting changes nothing");
    holds(bytes, &whole);
    holds(bytes, &over);
    // What was known of the beginning is still known: nothing is unsaid, and the first id and model stay.
    let (before, _) = read(wire, &bytes[..bytes.len() / 2], size);
    for (first, last) in [(&before.id, &whole.id), (&before.model, &whole.model)] {
        assert!(first.is_none() || first == last);
    }
    assert!(before.error.is_none() || before.error == whole.error);
    assert!(before.usage == Known::Unknown || whole.usage != Known::Unknown);
    assert!(before.web_searches <= whole.web_searches);
}

/// What is known before the end of the body is told, and after it.
fn read(wire: Wire, bytes: &[u8], size: usize) -> (Report, Report) {
    let mut reader = Reader::new(wire);
    for piece in bytes.chunks(size) {
        reader.push(piece);
    }
    let report = reader.report();
    reader.end();
    (report, reader.report())
}

fn holds(bytes: &[u8], report: &Report) {
    if let Some(usage) = report.usage.usage() {
        assert!(usage.reasoning <= usage.output);
        assert!(usage.total() >= usage.input() && usage.total() >= usage.output);
        // Figures come from digits, and those that are not 0 from others than that.
        assert!(bytes.iter().any(u8::is_ascii_digit));
        assert!(usage.total() == 0 || bytes.iter().any(|byte| (b'1'..=b'9').contains(byte)));
    }
    assert!(report.ended || !report.usage.is_final());
    for text in [&report.id, &report.model].into_iter().flatten() {
        assert!((1..=256).contains(&text.len()));
    }
    if let Some(error) = &report.error {
        assert!(error.kind.len() <= 4096 && !error.message.contains(char::is_control));
    }
}
