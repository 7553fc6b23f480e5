//! The house keeps its arrows: crates depend downward only, and `unsafe` stays where the walls are.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Which crates of the workspace each may depend on. Arrows point down; a new one needs a reason.
const ALLOWED: [(&str, &[&str]); 13] = [
    ("belljar-core", &[]),
    ("belljar-guest", &["belljar-core"]),
    ("belljar-jail", &["belljar-core"]),
    ("belljar-network", &["belljar-core", "belljar-jail"]),
    ("belljar-layers", &["belljar-core"]),
    ("belljar-recipe", &["belljar-core"]),
    ("belljar-providers", &["belljar-core", "belljar-jail", "belljar-layers"]),
    ("belljar-templates", &["belljar-core", "belljar-layers", "belljar-providers", "belljar-recipe"]),
    ("belljar-engine", &["belljar-core", "belljar-providers"]),
    (
        "belljar",
        &[
            "belljar-core",
            "belljar-engine",
            "belljar-layers",
            "belljar-network",
            "belljar-providers",
            "belljar-templates",
        ],
    ),
    ("belljar-bench", &["belljar-core", "belljar-jail", "belljar-network", "belljar-providers"]),
    ("belljar-floor", &[]),
    // Outside the house: it looks at whatever reads foreign bytes, and nothing knows it.
    ("belljar-fuzz", &["belljar", "belljar-core", "belljar-guest", "belljar-jail", "belljar-network"]),
];

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn arrows_point_down() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} has no place in the house yet"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let target = dependency["name"].as_str().unwrap();
            let inside = target == "belljar" || target.starts_with("belljar-");
            assert!(!inside || allowed.contains(&target), "{name} must not know {target}");
        }
    }
}

#[test]
fn unsafe_lives_with_the_walls() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        // The floor launcher is no part of Belljar: it measures bare system calls, and nothing depends on it.
        if ["belljar-jail", "belljar-guest", "belljar-floor"].contains(&name) {
            continue;
        }
        for target in package["targets"].as_array().unwrap() {
            let kinds = target["kind"].as_array().unwrap();
            // The doors that libFuzzer calls are C symbols, one line each, and never shipped.
            let door = name == "belljar-fuzz" && kinds.iter().any(|kind| kind == "bin");
            if !door && kinds.iter().any(|kind| kind == "lib" || kind == "bin") {
                let root = target["src_path"].as_str().unwrap();
                let source = std::fs::read_to_string(Path::new(root)).unwrap();
                assert!(source.contains("#![forbid(unsafe_code)]"), "{root} does not forbid unsafe code");
            }
        }
    }
}

/// Where the wall clock is read, and why a jump of it does no harm there.
const WALL_CLOCK: [(&str, &str); 7] = [
    ("crates/cli/src/commands/ls.rs", "the age in a listing"),
    ("crates/engine/src/clock.rs", "when things happened, and how long what is over is kept"),
    ("crates/network/src/door/clock.rs", "when flows began"),
    ("crates/providers/src/fake/sandbox.rs", "when it was made"),
    (
        "crates/providers/src/jail/gateway.rs",
        "when tokens end, which is written down and outlives every process; no sandbox ends by it",
    ),
    (
        "crates/providers/src/jail/record.rs",
        "when it was made, and how long the record of what has ended is kept",
    ),
    ("crates/providers/src/local/sandbox.rs", "when it was made"),
];

#[test]
fn deadlines_do_not_know_the_wall_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut found = Vec::new();
    let mut open: Vec<_> = ["core", "guest", "jail", "network", "providers", "engine", "cli"]
        .map(|name| root.join("crates").join(name).join("src"))
        .to_vec();
    while let Some(directory) = open.pop() {
        for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let source = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            if ["SystemTime", "UNIX_EPOCH", "Realtime", "CLOCK_REALTIME"]
                .iter()
                .any(|word| source.contains(word))
            {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    let allowed: Vec<&str> = WALL_CLOCK.iter().map(|(path, _)| *path).collect();
    assert_eq!(
        found, allowed,
        "time that decides anything is monotonic: a jump of the clock must end no sandbox"
    );
}
