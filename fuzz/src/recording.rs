//! A recording that somebody else made, or damaged: whatever is in it, it is read in bounds or refused, and can be gone on with.

use std::fs::File;
use std::io::Write;

use belljar_network::recording::{Entry, Finder, Lookup, Question, Reader, Veil, Writer};

/// What every recording begins with; the fuzzer need not find it.
const MAGIC: &[u8] = b"belljar recording 1\n";
const MOST: u64 = 1 << 20;

/// Reads everything, asks for something, and goes on writing.
pub fn check(bytes: &[u8]) {
    let (whole, bytes) = match bytes.split_first() {
        Some((first, rest)) if first % 2 == 1 => (false, rest),
        _ => (true, bytes),
    };
    let mut file = tempfile::tempfile().unwrap();
    if whole {
        file.write_all(MAGIC).unwrap();
    }
    file.write_all(bytes).unwrap();
    let again = || -> File { file.try_clone().unwrap() };
    let Ok(reader) = Reader::new(again()) else { return };
    for summary in reader.entries() {
        if let Ok(Entry::Exchange(exchange)) = reader.entry(summary) {
            let read = reader.content(&exchange.answer, MOST);
            assert!(read.is_err() || read.is_ok_and(|bytes| bytes.len() as u64 <= MOST));
        }
    }
    let how = serde_json::from_str(r#"{"name": "r"}"#).unwrap();
    let finder = Finder::new(reader, how, Veil::new(["very-secret"], &[]));
    let question = Question {
        host: "a.example",
        port: 443,
        tls: true,
        method: "POST",
        target: "/x?y=1",
        content_type: Some("application/json"),
        range: None,
        body: b"{\"a\": 1}",
    };
    if let Ok(Err(missing)) = finder.find(&question) {
        assert!(missing.to_string().len() < 100_000);
    }
    let Ok(mut writer) = Writer::new(again(), 1 << 30) else { return };
    writer.entry(&Entry::Lookup(Lookup { at_ms: 1, name: "added.example".into(), found: true })).unwrap();
    writer.finish().unwrap();
    let read = Reader::new(again()).unwrap();
    assert_eq!(read.entries().last().map(|entry| entry.host.as_str()), Some("added.example"));
}
