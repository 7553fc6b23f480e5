//! The program's face: its help, and that a broken promise is a failure.

#![allow(clippy::unwrap_used, reason = "a test that fails has to fail loudly")]

use std::process::{Command, Output};

const SPECIFICATION: &str = "\
| promise | key | bound | tolerance |
|---|---|--:|--:|
| fast | `start.true.library.over_floor` | <= 2 | 10 % |
| many | `rate.best_per_second` | >= 150 | 10 % |
";

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_belljar-bench")).args(arguments).output().unwrap()
}

/// Judges results with these numbers; answers with success and what was said.
fn judge(values: &str, more: &[&str]) -> (bool, String) {
    let scratch = tempfile::tempdir().unwrap();
    let (results, specification) = (scratch.path().join("results.json"), scratch.path().join("spec.md"));
    std::fs::write(&specification, SPECIFICATION).unwrap();
    let machine = r#"{"kernel":"6","processor":"x","processors":2,"memory_mib":1,"load_before":0.0}"#;
    let report = format!(
        r#"{{"belljar":"0","taken":"now","machine":{machine},"quick":true,"values":{values},"not_available":{{}},"tables":[]}}"#
    );
    std::fs::write(&results, report).unwrap();
    let (results, specification) = (results.to_str().unwrap(), specification.to_str().unwrap());
    let mut arguments = vec!["--check", "--from", results, "--specification", specification];
    arguments.extend(more);
    let output = bench(&arguments);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn kept_promises_are_a_success() {
    let values = r#"{"start.true.library.over_floor":1.9,"rate.best_per_second":140.0}"#;
    let (success, said) = judge(values, &[]);
    assert!(success && said.contains("kept within noise") && !said.contains("BROKEN"), "{said}");
}

#[test]
fn a_broken_promise_is_a_failure() {
    let values = r#"{"start.true.library.over_floor":2.3,"rate.best_per_second":300.0}"#;
    let (success, said) = judge(values, &[]);
    assert!(!success && said.contains("BROKEN"), "{said}");
}

#[test]
fn a_number_that_is_missing_is_a_failure_unless_allowed() {
    let values = r#"{"rate.best_per_second":300.0}"#;
    let (success, said) = judge(values, &[]);
    assert!(!success && said.contains("NOT MEASURED"), "{said}");
    assert!(judge(values, &["--allow-missing"]).0);
}

#[test]
fn there_is_help_and_nonsense_is_refused() {
    let help = bench(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.status.success() && text.contains("--only") && text.contains("neighbour"), "{text}");
    assert_eq!(bench(&["--only", "speed"]).status.code(), Some(2));
    assert_eq!(bench(&["--from", "x.json"]).status.code(), Some(2));
    let missing = bench(&["--check", "--from", "/no/such/file.json"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/file.json"));
    assert!(!missing.status.success());
}

#[test]
fn the_load_times_itself() {
    let work = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_belljar-work")).args(arguments).output().unwrap()
    };
    let scratch = tempfile::tempdir().unwrap();
    for arguments in
        [&["cpu", "1000"][..], &["syscalls", "100"], &["files", "10", scratch.path().to_str().unwrap()]]
    {
        let output = work(arguments);
        let nanoseconds: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(output.status.success() && nanoseconds > 0, "{arguments:?}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    assert!(work(&["--help"]).status.success());
    assert_eq!(work(&["bomb", "host", "1"]).status.code(), Some(2));
}
