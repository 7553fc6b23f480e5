//! Bad input through the built program: the option or file is named, the status is 125, nothing is made.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::process::{Command, Output};

fn belljar(words: &[&str]) -> (Output, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(words)
        .env("BELLJAR_HOME", home.path().join("home"))
        .env_remove("BELLJAR_LOG")
        .output()
        .unwrap();
    (output, home)
}

#[test]
fn bad_options_are_named_and_nothing_is_made() {
    let long = format!("/dev/null:{}", "a/".repeat(2100));
    let cases: [(&[&str], &str); 34] = [
        (&["run", "--memory", "-1", "--", "true"], "--memory"),
        (&["run", "--memory", "1e30", "--", "true"], "--memory"),
        (&["run", "--memory", "lots", "--", "true"], "--memory"),
        (&["run", "--memory=-1", "--", "true"], "--memory"),
        (&["run", "--template", "No such", "--", "true"], "No such"),
        (&["run", "--provider", "nope", "--", "true"], "nope"),
        (&["run", "--net", "all", "--", "true"], "--net"),
        (&["run", "--allow", "exa mple.org", "--", "true"], "--allow"),
        (&["run", "--allow", "*", "--", "true"], "--allow"),
        (&["run", "--deny", "example.org", "--", "true"], "--deny"),
        (&["run", "--net", "none", "--allow", "example.org", "--", "true"], "--allow"),
        (&["run", "--policy", "/nonexistent/policy.toml", "--", "true"], "/nonexistent/policy.toml"),
        (&["create", "--policy", "/dev/null"], "--policy"),
        (&["net", "set", "bj-aaaaaaaaaaaaa"], "policy"),
        (&["egress", "--after", "-1", "bj-aaaaaaaaaaaaa"], "--after"),
        (&["policy", "check", "/nonexistent/policy.toml"], "/nonexistent/policy.toml"),
        (&["run", "--record", "../up", "--", "true"], "--record"),
        (&["run", "--record", "r", "--", "true"], "without a network"),
        (&["run", "--replay", "r", "--match", "headers", "--", "true"], "--match"),
        (&["recording", "export", "--format", "pdf", "r", "-"], "--format"),
        (&["recording", "rm", "a/b"], "name of a recording"),
        (&["policy", "test", "--allow", "example.org", "ftp://example.org/"], "ftp://example.org/"),
        (&["run", "--file", "/nonexistent/x:y", "--", "true"], "/nonexistent/x"),
        (&["run", "--file", "/dev/null:a\nb", "--", "true"], "newline"),
        (&["run", "--file", &long, "--", "true"], "4095"),
        (&["run", "--out", "x:/nonexistent/dir/x", "--", "true"], "/nonexistent/dir"),
        (&["run", "--env", "TOKEN", "--", "true"], "--env"),
        (&["run"], "CMD"),
        (&["run", "--frobnicate", "--", "true"], "--frobnicate"),
        (&["exec", "bj-nope", "true"], "bj-nope"),
        (&["cp", "a", "b"], "sandbox"),
        (&["kill", "--signal", "INT", "bj-aaaaaaaaaaaaa"], "--exec"),
        (&["ls", "--log", "loud"], "--log"),
        (&["create", "--provider", "local"], "--provider"),
    ];
    for (words, named) in cases {
        let (output, home) = belljar(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{words:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(named), "{words:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{words:?}");
        assert!(!home.path().join("home").exists(), "{words:?} made the data directory");
    }
}

#[test]
fn with_json_the_error_is_an_object_too() {
    for words in [&["run", "--json", "--memory", "lots", "--", "true"][..], &["run", "--json", "--nope"]] {
        let (output, _home) = belljar(words);
        assert_eq!(output.status.code(), Some(125));
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["error"]["code"], "invalid_argument");
        assert!(object["error"]["message"].is_string());
        assert!(object["error"].get("hint").is_some());
    }
}

#[test]
fn messages_have_no_colour_away_from_a_terminal() {
    let (output, _home) = belljar(&["run", "--memory", "lots", "--", "true"]);
    assert!(!output.stderr.contains(&0x1b));
}

#[test]
fn version_and_completions_need_nothing() {
    let (output, home) = belljar(&["version", "--json"]);
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    for shell in ["bash", "zsh", "fish"] {
        let (output, _home) = belljar(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
    }
    assert!(!home.path().join("home").exists());
}
