//! The floor is what the bench divides by: if a part of it were missing, every ratio would look worse than it is, and
//! if it left something behind, every later number would be wrong.

#![allow(clippy::unwrap_used, reason = "a test that fails has to fail loudly")]

use std::fs;
use std::process::{Command, Output};

const FLOOR: &str = env!("CARGO_BIN_EXE_belljar-floor");

fn floor(arguments: &[&str]) -> Output {
    Command::new(FLOOR).args(arguments).output().unwrap()
}

/// Whether to go on; without root only if whoever runs the tests said that they may be skipped.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let root =
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"));
    if !root {
        let allowed = std::env::var_os("BELLJAR_ALLOW_UNPRIVILEGED_TESTS").is_some_and(|value| value == "1");
        assert!(allowed, "this test needs root; BELLJAR_ALLOW_UNPRIVILEGED_TESTS=1 lets it be skipped");
        eprintln!("SKIPPED: this test needs root");
    }
    root
}

#[test]
fn every_part_is_there_inside() {
    if is_root() {
        let output = floor(&["check"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn launches_are_timed_and_leave_nothing() {
    if !is_root() {
        return;
    }
    let child = Command::new(FLOOR).arg("3").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mark = format!("belljar-floor-{}", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("floor, reaped"));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&mark));
    let hierarchies =
        mounts.lines().filter(|line| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("cgroup")));
    let places = hierarchies.filter_map(|line| line.split(' ').nth(1)).chain(["/tmp"]);
    for place in places {
        let left = fs::read_dir(place)
            .unwrap()
            .flatten()
            .find(|entry| entry.file_name().to_string_lossy().starts_with(&mark));
        assert!(left.is_none(), "{left:?} is left");
    }
}

#[test]
fn a_program_that_fails_is_an_error() {
    if is_root() {
        let output = floor(&["1", "/bin/false"]);
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("/bin/false"), "{error}");
    }
}

#[test]
fn nonsense_is_answered_with_help() {
    for arguments in [&["0"][..], &["-1"], &["fast"], &[]] {
        let output = floor(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage"));
    }
    assert!(floor(&["--help"]).status.success());
}
