//! What `--help` says, word for word, for every command.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::process::Command;

fn help(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(words)
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{words:?}");
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_of_everything() {
    insta::assert_snapshot!("belljar", help(&[]));
    for command in [
        "run",
        "create",
        "exec",
        "attach",
        "cp",
        "ls",
        "inspect",
        "logs",
        "stats",
        "extend",
        "kill",
        "rm",
        "net",
        "egress",
        "policy",
        "recording",
        "template",
        "snapshot",
        "cache",
        "token",
        "calls",
        "pause",
        "resume",
        "engine",
        "sessions",
        "events",
        "usage",
        "backup",
        "restore",
        "doctor",
        "completions",
        "version",
    ] {
        let text = help(&[command]);
        assert!(text.contains("Examples:"), "{command} shows no example");
        assert!(text.contains("--json"), "{command} has no --json");
        insta::assert_snapshot!(command, text);
    }
    for words in [
        ["net", "set"],
        ["net", "show"],
        ["policy", "check"],
        ["policy", "test"],
        ["recording", "ls"],
        ["recording", "show"],
        ["recording", "export"],
        ["recording", "import"],
        ["recording", "rm"],
        ["template", "build"],
        ["template", "import"],
        ["template", "export"],
        ["template", "ls"],
        ["template", "inspect"],
        ["template", "files"],
        ["template", "cat"],
        ["template", "diff"],
        ["template", "rm"],
        ["template", "verify"],
        ["template", "gc"],
        ["cache", "ls"],
        ["cache", "rm"],
        ["cache", "limit"],
        ["token", "create"],
        ["token", "ls"],
        ["token", "revoke"],
        ["token", "extend"],
    ] {
        let text = help(&words);
        assert!(text.contains("Examples:") && text.contains("--json"), "{words:?}");
        insta::assert_snapshot!(words.join("-"), text);
    }
}
