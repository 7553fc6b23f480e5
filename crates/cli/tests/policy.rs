//! `belljar policy` through the built program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Exit status, standard output and standard error.
fn belljar(directory: &Path, words: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(words)
        .current_dir(directory)
        .env("BELLJAR_HOME", directory.join("home"))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_file_is_told_as_it_is_understood() {
    let directory = tempfile::tempdir().unwrap();
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy-files.md")).unwrap();
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    fs::write(directory.path().join("policy.toml"), example).unwrap();
    let (status, stdout, stderr) = belljar(directory.path(), &["policy", "check", "policy.toml"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    for line in [
        "mode    allowlist",
        "allow   pypi",
        "allow   GET,HEAD api.example.org:80/v1/*",
        "allow   db.example.org:5432,8000-8100 private",
        "deny    secrets.example.org",
    ] {
        assert!(stdout.lines().any(|shown| shown == line), "{line} in {stdout}");
    }
    let (status, json, _) = belljar(directory.path(), &["policy", "check", "--json", "policy.toml"]);
    let object: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &object["errors"]), (0, &Value::Array(Vec::new())));
    // What it says is itself a policy file.
    fs::write(directory.path().join("policy.json"), object["policy"].to_string()).unwrap();
    assert_eq!(belljar(directory.path(), &["policy", "check", "policy.json"]), (0, stdout, String::new()));
    assert!(!directory.path().join("home").exists(), "it needs no data directory");
}

#[test]
fn everything_wrong_is_told_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let text = "mode = \"allowlist\"\nallow = [\"*\", \"a.org\"]\nalow = []\n";
    fs::write(directory.path().join("p.toml"), text).unwrap();
    let (status, stdout, stderr) = belljar(directory.path(), &["policy", "check", "p.toml"]);
    assert_eq!((status, stdout.as_str()), (1, ""));
    let places: Vec<&str> = stderr.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["p.toml:2:10", "p.toml:3:1"]);
    let (status, stdout, _) = belljar(directory.path(), &["policy", "check", "--json", "p.toml"]);
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status, &object["policy"], &object["left_out"]), (1, &Value::Null, &Value::from(0)));
    assert_eq!(
        (&object["errors"][1]["line"], &object["errors"][1]["column"]),
        (&Value::from(3), &Value::from(1))
    );
    let (status, _, stderr) = belljar(directory.path(), &["run", "--policy", "p.toml", "--", "true"]);
    assert_eq!(status, 125);
    assert!(stderr.contains("option `--policy`") && stderr.contains("line 2, column 10"), "{stderr}");
}

#[test]
fn what_would_be_decided_is_told_with_the_rule() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("p.toml"), "mode = \"open\"\ndeny = [\"*.example.net\"]\n").unwrap();
    let test = |words: &[&str]| belljar(directory.path(), &[&["policy", "test"], words].concat());
    let (status, stdout, _) = test(&["p.toml", "https://example.org/", "example.com:5432"]);
    assert_eq!(status, 0);
    assert_eq!(
        stdout,
        "allowed  https://example.org/: by the mode open\nallowed  example.com:5432: by the mode open\n"
    );
    let (status, stdout, _) = test(&["p.toml", "https://a.example.net/", "http://169.254.169.254/"]);
    assert_eq!(status, 1);
    assert!(stdout.contains("deny rule 1, `*.example.net`") && stdout.contains("credentials"), "{stdout}");
    let (status, stdout, _) =
        test(&["--json", "--allow", "example.org:8443", "https://example.org:8443", "example.org:22"]);
    let object: Value = serde_json::from_str(&stdout).unwrap();
    let results = &object["results"];
    assert_eq!(
        (status, &results[0]["allowed"], &results[1]["allowed"]),
        (1, &Value::from(true), &Value::from(false))
    );
    assert_eq!(results[0]["rule"]["text"], "example.org:8443");
    assert_eq!(results[1]["reason"], "port_not_listed");
    assert!(results[1]["message"].as_str().unwrap().contains("--allow"));
    let (status, _, stderr) = test(&["p.toml"]);
    assert!(status == 125 && stderr.contains("nothing was named"), "{stderr}");
    assert!(!directory.path().join("home").exists(), "it needs no data directory");
}
