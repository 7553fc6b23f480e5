//! The program's face: its help, and that a broken promise is a failure.

#![allow(clippy::unwrap_used, reason = "a test that fails has to fail loudly")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

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

/// The server or the proxy, until it is dropped.
struct Peer(Child);

impl Peer {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar-peer"));
        let mut peer = Self(command.args(words).stdout(Stdio::piped()).spawn().unwrap());
        let mut said = String::new();
        BufReader::new(peer.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "{words:?}");
        peer
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// An address of this machine that nobody else uses.
fn free(host: &str) -> String {
    std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string()
}

#[test]
fn the_client_reaches_the_server_with_the_proxy_and_without() {
    let (server, proxy) = (free("127.77.0.1"), free("127.77.0.2"));
    let work = |words: &[&str], to: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_belljar-work")).args(words).arg(to).output().unwrap();
        let times: Vec<u64> =
            String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().unwrap()).collect();
        output.status.success().then_some(times)
    };
    assert_eq!(work(&["ask", "fresh", "1"], &server), None, "nobody is there yet");
    let _server = Peer::start(&["serve", &server]);
    let _proxy = Peer::start(&["proxy", &proxy, &server]);
    for to in [&*server, &*proxy] {
        for how in ["fresh", "kept"] {
            assert_eq!(work(&["ask", how, "7"], to).unwrap().len(), 7, "{how} {to}");
        }
        for (way, form) in [("down", "raw"), ("down", "http"), ("up", "raw"), ("up", "http")] {
            assert_eq!(work(&["move", way, form, "3000001"], to).unwrap().len(), 1, "{way} {form} {to}");
        }
    }
}
