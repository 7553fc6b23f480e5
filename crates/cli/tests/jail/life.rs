//! Nothing outlives its sandbox: not a daemon that did everything to, whoever else was killed before.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{Bell, cgroups, in_slot, long, marked, marker, patience, second, send, span, until};

/// Forks twice with a session of its own, ignores what can be ignored, and stays. So does its starter, until its input ends.
const DAEMON: &str = r#"
import os, signal, sys, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for fd in (0, 1, 2): os.close(fd)
        os.execvp("sh", ["sh", "-c", "trap '' HUP INT QUIT TERM USR1 USR2 PIPE ALRM; while :; do sleep 1000; done", "daemon-" + sys.argv[1]])
    os._exit(0)
os.wait()
if sys.argv[2] == "read": sys.stdin.read()
else:
    while True: time.sleep(1000)
"#;

/// Starts a foreground command whose daemon is seen to live before this returns; answers its slot too.
fn with_daemon(bell: &Bell, words: &[&str], mark: &str, stays: &str) -> (Child, u32) {
    let words = [words, &["--", "python3", "-c", DAEMON, mark, stays]].concat();
    let child = bell.command(&words).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let slot = daemon_lives(mark);
    (child, slot)
}

/// Waits for the daemon, which must be an orphan in a session of its own; answers its slot.
fn daemon_lives(mark: &str) -> u32 {
    let daemon = format!("daemon-{mark}");
    let mut slot = None;
    until("the daemon lives", long(), || {
        slot = marked(&daemon).first().and_then(crate::Process::slot);
        slot.is_some()
    });
    slot.unwrap()
}

fn gone_within(mark: &str, longest: Duration) {
    until("nothing with the mark is left", longest, || marked(mark).is_empty());
}

#[test]
fn a_daemon_ends_with_its_run() {
    let bell = Bell::alone();
    let mark = marker();
    let (mut child, slot) = with_daemon(&bell, &["run", "-i"], &mark, "read");
    drop(child.stdin.take());
    let status = child.wait().unwrap();
    gone_within(&mark, second());
    assert_eq!(status.code(), Some(0));
    bell.assert_gone(slot);
    assert!(bell.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().is_empty(), "run leaves no record");
}

#[test]
fn a_daemon_ends_with_the_time_out_of_its_run() {
    let bell = Bell::alone();
    let mark = marker();
    let (mut child, slot) = with_daemon(&bell, &["run", "--timeout", &span(2)], &mark, "stay");
    assert_eq!(child.wait().unwrap().code(), Some(124));
    gone_within(&mark, second());
    bell.assert_gone(slot);
}

#[test]
fn a_daemon_ends_with_kill_and_with_rm() {
    let bell = Bell::alone();
    for words in [&["kill"][..], &["rm", "-f"]] {
        let (id, mark) = (bell.create(&[]), marker());
        let (mut child, slot) = with_daemon(&bell, &["exec", &id], &mark, "stay");
        assert_eq!(bell.keepers(&id).slot, slot);
        let begin = Instant::now();
        let ended = bell.run(&[words, &[&id]].concat());
        gone_within(&mark, second().saturating_sub(begin.elapsed()));
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(child.wait().unwrap().code(), Some(137), "{words:?}");
        bell.assert_gone(slot);
        let expected = (words[0] == "kill").then(|| "killed".to_owned());
        assert_eq!(bell.state(&id), expected, "{words:?}");
        assert_eq!(bell.directory(&id).exists(), expected.is_some());
    }
}

#[test]
fn a_daemon_of_a_killed_execution_ends_with_it() {
    let bell = Bell::alone();
    let (id, mark) = (bell.create(&[]), marker());
    let (mut child, _) = with_daemon(&bell, &["exec", &id], &mark, "stay");
    let killed = bell.run(&["kill", "--exec", "1", &id]);
    assert!(killed.status.success(), "{killed:?}");
    gone_within(&mark, second());
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert_eq!(bell.state(&id).as_deref(), Some("running"));
}

#[test]
fn a_time_to_live_ends_everything() {
    let bell = Bell::alone();
    let (begin, ttl) = (Instant::now(), patience(Duration::from_secs(3)));
    let (id, mark) = (bell.create(&["--ttl", &span(3)]), marker());
    let created = begin.elapsed();
    let (mut child, slot) = with_daemon(&bell, &["exec", &id], &mark, "stay");
    gone_within(&mark, (ttl + created + second()).saturating_sub(begin.elapsed()));
    assert!(begin.elapsed() >= ttl, "it lived its time");
    assert_ne!(child.wait().unwrap().code(), Some(0));
    bell.assert_gone(slot);
    bell.assert_ended(&id, "expired");
}

/// What is killed besides the command line, and what `ls -a` says afterwards.
fn killed_keepers(launcher: bool, monitor: bool) {
    let bell = Bell::alone();
    let (begin, ttl) = (Instant::now(), patience(Duration::from_secs(3)));
    let (id, mark) = (bell.create(&["--ttl", &span(3)]), marker());
    let created = begin.elapsed();
    let (mut child, slot) = with_daemon(&bell, &["exec", &id], &mark, "stay");
    let keepers = bell.keepers(&id);
    child.kill().unwrap();
    child.wait().unwrap();
    if launcher {
        send(keepers.launcher, Signal::KILL);
    }
    if monitor {
        send(keepers.monitor, Signal::KILL);
    }
    gone_within(&mark, (ttl + created + second()).saturating_sub(begin.elapsed()));
    until("nothing inside is left", second(), || in_slot(slot).is_empty());
    bell.assert_gone(slot);
    let expected = if monitor { "lost" } else { "expired" };
    bell.assert_ended(&id, expected);
    let output = bell.run(&["exec", &id, "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(bell.run(&["rm", &id]).status.success());
    assert!(!bell.directory(&id).exists());
}

#[test]
fn a_daemon_ends_in_time_when_the_command_line_is_killed() {
    killed_keepers(false, false);
}

#[test]
fn a_daemon_ends_in_time_when_the_command_line_and_the_monitor_are_killed() {
    killed_keepers(false, true);
}

#[test]
fn a_daemon_ends_in_time_when_the_command_line_and_the_launcher_are_killed() {
    killed_keepers(true, false);
}

#[test]
fn a_daemon_ends_in_time_when_command_line_launcher_and_monitor_are_killed() {
    killed_keepers(true, true);
}

#[test]
fn the_guest_keeps_the_deadline_when_the_monitor_is_stopped() {
    let bell = Bell::alone();
    let (begin, ttl) = (Instant::now(), patience(Duration::from_secs(3)));
    let (id, mark) = (bell.create(&["--ttl", &span(3)]), marker());
    let created = begin.elapsed();
    let (mut child, slot) = with_daemon(&bell, &["exec", &id], &mark, "stay");
    let monitor = bell.keepers(&id).monitor;
    send(monitor, Signal::STOP);
    let bound = ttl + created + patience(Duration::from_millis(1500));
    let ended = std::panic::catch_unwind(|| gone_within(&mark, bound.saturating_sub(begin.elapsed())));
    let lived = begin.elapsed();
    send(monitor, Signal::CONT);
    ended.unwrap();
    assert!(lived >= ttl, "it lived its time");
    assert_ne!(child.wait().unwrap().code(), Some(0));
    until("the walls are down", long(), || cgroups(slot).is_empty());
    bell.assert_gone(slot);
    bell.assert_ended(&id, "expired");
}

#[test]
fn a_killed_run_leaves_nothing() {
    let bell = Bell::alone();
    let mark = marker();
    let (mut child, slot) = with_daemon(&bell, &["run"], &mark, "stay");
    child.kill().unwrap();
    gone_within(&mark, second());
    child.wait().unwrap();
    until("nothing inside is left", second(), || in_slot(slot).is_empty());
    bell.assert_gone(slot);
    assert_eq!(bell.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().len(), 0);
    let records = std::fs::read_dir(bell.home.path().join("sandboxes")).unwrap().count();
    assert_eq!(records, 0, "nobody knows its name any more");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let bell = Bell::alone();
        let mark = marker();
        let (mut child, slot) = with_daemon(&bell, &["run"], &mark, "stay");
        send(i32::try_from(child.id()).unwrap(), signal);
        let ended = child.wait().unwrap();
        gone_within(&mark, second());
        assert_eq!(ended.code(), Some(status));
        bell.assert_gone(slot);
        assert!(bell.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().is_empty());
    }
}

#[test]
fn a_sandbox_lives_on_without_its_creator_until_extended_time_is_over() {
    let bell = Bell::alone();
    let id = bell.create(&["--ttl", &span(2)]);
    assert!(bell.run(&["extend", &id, &span(4)]).status.success());
    let (extended, mark) = (Instant::now(), marker());
    let (mut child, slot) = with_daemon(&bell, &["exec", &id], &mark, "stay");
    gone_within(&mark, patience(Duration::from_secs(5)).saturating_sub(extended.elapsed()));
    assert!(extended.elapsed() >= patience(Duration::from_millis(3900)), "it lived its longer time");
    assert_ne!(child.wait().unwrap().code(), Some(0));
    bell.assert_gone(slot);
    bell.assert_ended(&id, "expired");
}
