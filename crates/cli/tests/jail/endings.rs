//! How a command's end is told: statuses, words, figures.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Bell, long, marked, marker, not_promised_rootless, patience, send, span, until};

/// Runs a command in a new sandbox; answers the exit status of the program and its object.
fn ending(bell: &Bell, words: &[&str]) -> (i32, Value) {
    let output = bell.run(&[&["run", "--json"], words].concat());
    let object = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), object)
}

#[test]
fn a_result_is_told_in_full() {
    let bell = Bell::new();
    let output = bell.run(&["run", "--json", "--", "python3", "-c", "print(6*7)"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [r#""exit_code":0"#, r#""stdout":"42\n""#, r#""termination":"exited""#] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object["stderr"], "");
    assert!(object["signal"].is_null());
    assert_eq!(object["truncated"], false);
    let counted = !not_promised_rootless("kills for want of memory are counted");
    assert_eq!(object["oom_kills"], if counted { 0.into() } else { Value::Null });
    assert!(object["duration_ms"].as_f64().unwrap() > 0.0 && object["start_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_status_of_the_commands_own_is_passed_on_and_is_always_exited() {
    let bell = Bell::new();
    for code in [0, 1, 3, 124, 125, 126, 127, 137, 143, 255] {
        let (status, object) =
            ending(&bell, &["--", "python3", "-c", &format!("import sys; sys.exit({code})")]);
        assert_eq!(status, code);
        assert_eq!(object["exit_code"], code);
        assert_eq!(object["termination"], "exited");
        assert!(object["signal"].is_null());
    }
}

#[test]
fn a_time_out_ends_the_command_in_time() {
    let bell = Bell::alone();
    let begin = Instant::now();
    let (status, object) = ending(&bell, &["--timeout", &span(1), "--", "sleep", "6000"]);
    let took = begin.elapsed();
    assert_eq!(status, 124);
    assert_eq!(object["termination"], "timed_out");
    assert!(object["exit_code"].is_null() && object["signal"].is_null(), "{object}");
    // How late it is on a quiet machine is for the bench to say; here it is told from one that waits for the command.
    assert!(took < patience(Duration::from_secs(30)), "took {took:?}");
}

#[test]
fn a_time_out_is_not_put_off_by_a_command_that_ignores_signals() {
    let bell = Bell::new();
    let script = "trap '' INT TERM HUP QUIT; (trap '' TERM; sleep 6000) & while :; do sleep 6000; done";
    let (status, object) = ending(&bell, &["--timeout", &span(1), "--", "sh", "-c", script]);
    assert_eq!((status, &object["termination"]), (124, &Value::from("timed_out")));
}

#[test]
fn a_signal_from_inside_is_named() {
    let bell = Bell::new();
    for (name, number) in [("9", 9), ("TERM", 15), ("SEGV", 11), ("INT", 2)] {
        let (status, object) = ending(&bell, &["--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(status, 128 + number);
        assert_eq!(object["termination"], "signaled", "{name}");
        assert_eq!(object["signal"], number);
        assert!(object["exit_code"].is_null());
    }
}

#[test]
fn too_much_memory_is_its_own_ending_and_leaves_the_sandbox_whole() {
    if not_promised_rootless("memory is bounded per process, which is refused more instead of being killed") {
        return;
    }
    let bell = Bell::new();
    // Piece by piece: one piece larger than the machine would be refused, not killed.
    let bomb = "x = []\nwhile True: x.append(b'x' * (16 << 20))";
    let (status, object) = ending(&bell, &["--memory", "256m", "--", "python3", "-c", bomb]);
    assert_eq!(status, 137);
    assert_eq!(object["termination"], "out_of_memory");
    assert!(object["exit_code"].is_null() && object["signal"].is_null(), "{object}");
    assert!(object["oom_kills"].as_u64().unwrap() >= 1);

    let id = bell.create(&["--memory", "256m"]);
    let first = || bell.shell(&id, "cut -d' ' -f22 /proc/1/stat")["stdout"].as_str().unwrap().to_owned();
    let before = first();
    assert!(before.trim().parse::<u64>().is_ok(), "{before}");
    for _ in 0..3 {
        let output = bell.run(&["exec", "--json", &id, "--", "python3", "-c", bomb]);
        assert_eq!(output.status.code(), Some(137));
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["termination"], "out_of_memory", "{object}");
        let object = bell.shell(&id, "echo well");
        assert_eq!((&object["exit_code"], &object["stdout"]), (&Value::from(0), &Value::from("well\n")));
        assert_eq!(object["oom_kills"], 0, "kills of an earlier execution are not told again");
        assert_eq!(first(), before, "PID 1 is the same process");
    }
    assert_eq!(bell.state(&id).as_deref(), Some("running"));
    assert_eq!(bell.json(&["stats", &id])["sandboxes"][0]["stats"]["oom_kills"], 4 - 1);
}

#[test]
fn a_kill_from_outside_is_told_as_killed() {
    let bell = Bell::new();
    for whole in [false, true] {
        let (id, mark) = (bell.create(&[]), marker());
        let words = ["exec", "--json", &id, "--", "sh", "-c", "while :; do sleep 1; done", &mark];
        let child = bell.command(&words).spawn().unwrap();
        until("the command runs", long(), || !marked(&mark).is_empty());
        let killed = if whole { bell.run(&["kill", &id]) } else { bell.run(&["kill", "--exec", "1", &id]) };
        assert!(killed.status.success(), "{killed:?}");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(137), "{output:?}");
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["termination"], "killed", "{object}");
        assert!(object["exit_code"].is_null() && object["signal"].is_null(), "{object}");
        assert_eq!(bell.state(&id).as_deref(), Some(if whole { "killed" } else { "running" }));
    }
}

#[test]
fn a_lost_sandbox_is_told_as_lost_and_is_never_a_success() {
    let bell = Bell::new();
    let (id, mark) = (bell.create(&[]), marker());
    let words = ["exec", "--json", &id, "--", "sh", "-c", "while :; do sleep 1; done", &mark];
    let child = bell.command(&words).spawn().unwrap();
    until("the command runs", long(), || !marked(&mark).is_empty());
    send(bell.keepers(&id).monitor, rustix::process::Signal::KILL);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let told = object["termination"] == "lost" || object["error"]["code"] == "lost";
    assert!(told && object["exit_code"].is_null(), "{object}");
    until("it is known as lost", long(), || bell.state(&id).as_deref() == Some("lost"));
}

#[test]
fn what_cannot_be_run_has_its_own_statuses() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let cases: [(&str, i32, &str); 5] = [
        ("no-such-command", 127, "command_not_found"),
        ("/no/such/file", 127, "command_not_found"),
        ("/dev/null", 126, "command_not_executable"),
        ("/etc", 126, "command_not_executable"),
        ("/etc/passwd", 126, "command_not_executable"),
    ];
    for (command, status, code) in cases {
        for words in [&["run", "--json", "--", command][..], &["exec", "--json", &id, "--", command]] {
            let output = bell.run(words);
            assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
            let object: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(object["error"]["code"], code, "{words:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(command), "{words:?} names it");
        }
    }
    assert_eq!(bell.shell(&id, "true")["exit_code"], 0);
}

#[test]
fn figures_of_use_are_true() {
    let bell = Bell::new();
    let busy = "import time\nwhile time.process_time() < 0.3: pass";
    let object = bell.json(&["run", "--", "python3", "-c", busy]);
    assert!(object["usage"]["cpu_ms"].as_u64().unwrap() >= 300, "{object}");
    assert!(object["duration_ms"].as_f64().unwrap() >= 300.0, "{object}");

    if not_promised_rootless("memory and processes of an execution are counted") {
        return;
    }
    let object = bell.json(&["run", "--", "python3", "-c", "x = b'x' * (100 << 20)"]);
    let peak = object["usage"]["peak_memory_bytes"].as_u64().unwrap();
    assert!((100 << 20..2 << 30).contains(&peak), "{object}");

    let object = bell.json(&["run", "--", "sh", "-c", "echo a | cat | cat; true"]);
    assert!(object["usage"]["processes"].as_u64().unwrap() >= 2, "{object}");

    // An execution's figures are its own, not its sandbox's.
    let id = bell.create(&[]);
    assert!(bell.python(&id, busy)["usage"]["cpu_ms"].as_u64().unwrap() >= 300);
    let object = bell.shell(&id, "true");
    assert!(object["usage"]["cpu_ms"].as_u64().unwrap() < 300, "{object}");
    assert!(bell.python(&id, "x = b'x' * (200 << 20)")["exit_code"] == 0);
    let object = bell.shell(&id, "true");
    assert!(object["usage"]["peak_memory_bytes"].as_u64().is_none_or(|peak| peak < 100 << 20), "{object}");
}

#[test]
fn standard_output_and_error_stay_apart_and_exact() {
    let bell = Bell::new();
    let object = bell.json(&["run", "--", "sh", "-c", "echo out; echo err >&2; echo out2; echo err2 >&2"]);
    assert_eq!(object["stdout"], "out\nout2\n");
    assert_eq!(object["stderr"], "err\nerr2\n");
    let object = bell.json(&["run", "--", "printf", "a\\377b"]);
    assert_eq!(object["stdout"], "a\u{fffd}b");
    assert_eq!(object["stdout_base64"], "Yf9i");
    assert!(object.get("stderr_base64").is_none());
    let output = bell.run(&["run", "--", "sh", "-c", "printf 'a\\000\\377'; printf '\\033[31m' >&2; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"a\0\xff"[..], &b"\x1b[31m"[..]));
}
