//! Every input that was kept, replayed without a fuzzer: the corpus, and what once broke something (`found`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use belljar_fuzz::TARGETS;

fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target);
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut inputs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    inputs
}

#[test]
fn every_kept_input_holds() {
    for (target, check) in TARGETS {
        let corpus = inputs("corpus", target);
        assert!(!corpus.is_empty(), "{target} has no corpus");
        for path in corpus.iter().chain(&inputs("found", target)) {
            let bytes = fs::read(path).unwrap();
            let held = std::panic::catch_unwind(|| check(&bytes));
            assert!(held.is_ok(), "{target}: a property does not hold for {}", path.display());
        }
    }
}

#[test]
fn the_corpus_stays_small() {
    let all = TARGETS.iter().flat_map(|(target, _)| inputs("corpus", target));
    let bytes: u64 = all.map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes < 500_000, "the corpus has {bytes} bytes; minimise it with scripts/fuzz minimise");
}

#[test]
fn every_target_has_its_program() {
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let programs = manifest.matches("[[bin]]").count();
    assert_eq!(programs, TARGETS.len());
    for (target, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} has no program");
    }
}
