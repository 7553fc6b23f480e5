//! `run` through the built program, on the rung that works on every machine: what scripts rely on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn belljar(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["run", "--provider", "local"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("BELLJAR_LOG");
    command
}

fn run(words: &[&str]) -> Output {
    belljar(words).output().unwrap()
}

#[test]
fn json_has_the_documented_fields() {
    let output = run(&["--json", "--", "sh", "-c", "echo 42; echo oops >&2"]);
    assert_eq!(output.status.code(), Some(0));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["exit_code"], 0);
    assert_eq!(object["termination"], "exited");
    assert_eq!(object["stdout"], "42\n");
    assert_eq!(object["stderr"], "oops\n");
    assert_eq!(object["truncated"], false);
    assert!(object["signal"].is_null());
    assert!(object["duration_ms"].is_number() && object["start_ms"].is_number());
    assert!(object["sandbox_id"].as_str().unwrap().starts_with("bj-"));
    for figure in ["cpu_ms", "peak_memory_bytes", "read_bytes", "write_bytes", "processes"] {
        assert!(object["usage"].get(figure).is_some(), "{figure}");
    }
}

#[test]
fn endings_have_their_statuses() {
    for (words, status, termination) in [
        (&["--", "sh", "-c", "exit 3"][..], 3, "exited"),
        (&["--", "sh", "-c", "kill -9 $$"], 137, "signaled"),
        (&["--timeout", "200ms", "--", "sleep", "60"], 124, "timed_out"),
    ] {
        assert_eq!(run(words).status.code(), Some(status), "{words:?}");
        let output = run(&[&["--json"], words].concat());
        assert_eq!(output.status.code(), Some(status), "{words:?}");
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["termination"], termination);
    }
    let output = run(&["--json", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["error"]["code"], "command_not_found");
    assert_eq!(run(&["--", "/dev/null"]).status.code(), Some(126));
}

#[test]
fn a_time_out_is_explained() {
    let output = run(&["--timeout", "200ms", "--", "sleep", "60"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("belljar: timed out") && stderr.contains("--timeout"), "{stderr}");
    assert!(run(&["--quiet", "--timeout", "200ms", "--", "sleep", "60"]).stderr.is_empty());
}

#[test]
fn bytes_pass_unchanged_both_ways() {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut child = belljar(&["--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == bytes, "{} bytes came back of {}", output.stdout.len(), bytes.len());
}

#[test]
fn a_command_that_says_much_more_than_it_hears_does_not_hang() {
    let mut child = belljar(&["--", "sh", "-c", "while read x; do head -c 2000000 /dev/zero; done"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all("line\n".repeat(8).as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.stdout.len(), 16_000_000);
}

#[test]
fn nothing_is_inherited_and_what_is_given_arrives() {
    let output =
        belljar(&["--env", "GIVEN=a=b", "--", "env"]).env("SECRET_TOKEN", "s3cret").output().unwrap();
    let env = String::from_utf8(output.stdout).unwrap();
    assert!(env.contains("GIVEN=a=b\n") && !env.contains("s3cret"), "{env}");
}

#[test]
fn scripts_and_files_go_in_and_results_come_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("script.sh"), "cat data > result; echo done").unwrap();
    std::fs::write(dir.path().join("data"), b"\x00\xff").unwrap();
    let mut command =
        belljar(&["--file", "data:data", "--out", "result", "--out", "result:copy", "script.sh"]);
    let output = command.current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"done\n");
    assert_eq!(std::fs::read(dir.path().join("result")).unwrap(), b"\x00\xff");
    assert_eq!(std::fs::read(dir.path().join("copy")).unwrap(), b"\x00\xff");
}

/// Starts a command that tells its home and process, and waits for both.
fn started() -> (Child, BufReader<std::process::ChildStdout>, String, i32) {
    let mut child =
        belljar(&["--", "sh", "-c", "echo $HOME; echo $$; while :; do sleep 1; done"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut text = String::new();
        stdout.read_line(&mut text).unwrap();
        text.trim().to_owned()
    };
    let (home, pid) = (line(), line().parse().unwrap());
    assert!(std::path::Path::new(&home).exists());
    (child, stdout, home, pid)
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut child, mut stdout, home, pid) = started();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status));
        assert!(!std::path::Path::new(&home).exists(), "its directory is gone");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "its process is gone");
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let mut child = belljar(&["--", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 2]).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn log_lines_name_sandbox_and_execution() {
    let output = run(&["--log", "debug", "--", "true"]);
    let log = String::from_utf8(output.stderr).unwrap();
    let line = log.lines().find(|line| line.contains("started")).unwrap_or_default();
    assert!(line.contains("[sandbox bj-") && line.contains("[exec 1]"), "{log}");
}
