//! Sandboxes that stand still in memory.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::{Bell, in_slot, long, marked, marker, not_promised_rootless, second, send, text, until};

fn cannot_pause() -> bool {
    not_promised_rootless("pausing: there is no cgroup that could be frozen")
}

/// Processor time of a process so far, in clock ticks.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Starts something in the background that has this mark on its command line; answers its process once it is there.
fn background(bell: &Bell, id: &str, program: &str, mark: &str) -> i32 {
    let started = bell.run(&["exec", "-d", id, "--", "python3", "-c", program, mark]);
    assert!(started.status.success(), "{started:?}");
    let mut pid = 0;
    until("it runs", long(), || {
        pid = marked(mark).first().map_or(0, |process| process.pid);
        pid != 0
    });
    pid
}

fn succeeds(bell: &Bell, words: &[&str]) -> String {
    let output = bell.run(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn what_is_paused_uses_no_processor_and_goes_on_as_the_same_process() {
    if cannot_pause() {
        return;
    }
    let bell = Bell::alone();
    let (id, mark) = (bell.create(&[]), marker());
    let pid = background(&bell, &id, "while True: pass", &mark);
    until("it works", long(), || ticks(pid) > 5);
    assert_eq!(succeeds(&bell, &["pause", &id]).trim(), id);
    let before = ticks(pid);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ticks(pid), before, "it stands still");
    assert_eq!(bell.state(&id).as_deref(), Some("paused"));
    assert_eq!(bell.json(&["inspect", &id])["sandbox"]["state"], "paused");
    assert_eq!(bell.json(&["resume", &id])["sandbox_ids"][0], id.as_str());
    until("it goes on", long(), || ticks(pid) > before);
    assert_eq!(bell.state(&id).as_deref(), Some("running"));
    assert_eq!(marked(&mark).len(), 1, "it is the same process");
}

#[test]
fn nothing_starts_while_paused_but_files_and_output_can_be_had() {
    if cannot_pause() {
        return;
    }
    let bell = Bell::alone();
    let id = bell.create(&[]);
    succeeds(&bell, &["exec", "-d", &id, "--", "sh", "-c", "echo said; sleep 600"]);
    until("it has spoken", long(), || text(&bell.run(&["logs", &id]).stdout).contains("said"));
    succeeds(&bell, &["pause", &id]);
    let refused = bell.run(&["exec", &id, "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    let words = text(&refused.stderr);
    assert!(words.contains("paused") && words.contains("belljar resume"), "{words}");
    assert_eq!(succeeds(&bell, &["logs", &id]), "said\n");
    let file = bell.home.path().join("file");
    std::fs::write(&file, "meanwhile").unwrap();
    succeeds(&bell, &["cp", file.to_str().unwrap(), &format!("{id}:file")]);
    assert_eq!(succeeds(&bell, &["cp", &format!("{id}:file"), "-"]), "meanwhile");
    let running = bell.run(&["rm", &id]);
    assert!(!running.status.success() && text(&running.stderr).contains("is paused"), "{running:?}");
    succeeds(&bell, &["resume", &id]);
    succeeds(&bell, &["exec", &id, "--", "true"]);
}

#[test]
fn a_connection_inside_survives() {
    if cannot_pause() {
        return;
    }
    const TALK: &str = r#"
import os, socket, sys
one, other = socket.socketpair()
listener = socket.create_server(("127.0.0.1", 0))
far = socket.create_connection(listener.getsockname())
near, _ = listener.accept()
if os.fork() == 0:
    count = 0
    while True:
        near.sendall(far_byte := other.recv(1))
        count += 1
number = 0
while True:
    one.sendall(bytes([number % 256]))
    assert far.recv(1) == bytes([number % 256])
    number += 1
    if number % 100 == 0:
        open("next", "w").write(str(number)); os.rename("next", "count")
"#;
    let bell = Bell::alone();
    let (id, mark) = (bell.create(&[]), marker());
    background(&bell, &id, TALK, &mark);
    let count = || text(&bell.run(&["cp", &format!("{id}:count"), "-"]).stdout).parse::<u64>().unwrap_or(0);
    until("they talk", long(), || count() > 0);
    for _ in 0..5 {
        succeeds(&bell, &["pause", &id]);
        let before = count();
        assert_eq!(count(), before);
        succeeds(&bell, &["resume", &id]);
        until("they go on", long(), || count() > before);
    }
}

#[test]
fn a_paused_run_does_not_time_out_and_its_command_line_waits() {
    if cannot_pause() {
        return;
    }
    let bell = Bell::alone();
    let (id, mark) = (bell.create(&[]), marker());
    let words = ["exec", "--timeout", &crate::span(2), &id, "--", "sh", "-c", "sleep 600; :", &mark];
    let mut child = bell.command(&words).stdin(Stdio::null()).spawn().unwrap();
    until("it runs", long(), || !marked(&mark).is_empty());
    succeeds(&bell, &["pause", &id]);
    std::thread::sleep(crate::patience(Duration::from_secs(3)));
    assert!(child.try_wait().unwrap().is_none(), "its time stands still");
    assert!(!marked(&mark).is_empty());
    succeeds(&bell, &["resume", &id]);
    assert_eq!(child.wait().unwrap().code(), Some(124));
}

#[test]
fn whatever_is_paused_can_be_ended() {
    if cannot_pause() {
        return;
    }
    let bell = Bell::alone();
    type End = fn(&Bell, &str);
    let ends: [(&str, End); 4] = [
        ("kill", |bell, id| drop(succeeds(bell, &["kill", id]))),
        ("rm", |bell, id| drop(succeeds(bell, &["rm", "-f", id]))),
        ("the monitor's end", |bell, id| send(bell.keepers(id).monitor, Signal::KILL)),
        ("the end of launcher and monitor", |bell, id| {
            let keepers = bell.keepers(id);
            send(keepers.launcher, Signal::KILL);
            send(keepers.monitor, Signal::KILL);
        }),
    ];
    for (how, end) in ends {
        let (id, mark) = (bell.create(&[]), marker());
        background(&bell, &id, "while True: pass", &mark);
        let slot = bell.keepers(&id).slot;
        succeeds(&bell, &["pause", &id]);
        end(&bell, &id);
        until(how, second(), || marked(&mark).is_empty() && in_slot(slot).is_empty());
        bell.assert_gone(slot);
    }
}

#[test]
fn a_launcher_that_was_killed_leaves_a_paused_sandbox_that_can_be_resumed_and_ended() {
    if cannot_pause() {
        return;
    }
    let bell = Bell::alone();
    let (id, mark) = (bell.create(&[]), marker());
    let pid = background(&bell, &id, "while True: pass", &mark);
    let keepers = bell.keepers(&id);
    succeeds(&bell, &["pause", &id]);
    send(keepers.launcher, Signal::KILL);
    let before = ticks(pid);
    succeeds(&bell, &["resume", &id]);
    until("it goes on", long(), || ticks(pid) > before);
    succeeds(&bell, &["pause", &id]);
    succeeds(&bell, &["rm", "-f", &id]);
    until("nothing is left", second(), || in_slot(keepers.slot).is_empty());
    bell.assert_gone(keepers.slot);
}

#[test]
fn a_fork_bomb_can_be_paused() {
    if cannot_pause() {
        return;
    }
    const BOMB: &str = "
import os
while True:
    try: os.fork()
    except OSError: pass
";
    let bell = Bell::alone();
    let (id, mark) = (bell.create(&["--pids", "64", "--memory", "256m"]), marker());
    background(&bell, &id, BOMB, &mark);
    until("it is full", long(), || marked(&mark).len() >= 60);
    succeeds(&bell, &["pause", &id]);
    let used = || marked(&mark).iter().map(|process| (process.pid, ticks(process.pid))).collect::<Vec<_>>();
    let before = used();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(used(), before, "all of it stands still");
    succeeds(&bell, &["resume", &id]);
    until("it goes on", long(), || used() != before);
    succeeds(&bell, &["pause", &id]);
    succeeds(&bell, &["kill", &id]);
    until("nothing is left", second(), || marked(&mark).is_empty());
}
