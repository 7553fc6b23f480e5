//! What breaks around a sandbox: its first process, its memory while it speaks, its readers, the kernel under it.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::{Bell, belljar, in_slot, long, marked, marker, not_promised_rootless, send, text, until};

/// The first process inside, as the host sees it.
fn guest(slot: u32) -> i32 {
    let found = in_slot(slot).into_iter().find(|process| process.command.starts_with("belljar-guest"));
    found.expect("a guest").pid
}

#[test]
fn a_killed_guest_takes_its_sandbox_with_it_and_that_is_told() {
    let bell = Bell::new();
    let (id, mark) = (bell.create(&[]), marker());
    let keepers = bell.keepers(&id);
    let words = ["exec", "--json", &id, "--", "sh", "-c", "while :; do sleep 1; done", &mark];
    let child = bell.command(&words).spawn().unwrap();
    until("the command runs", long(), || !marked(&mark).is_empty());
    send(guest(keepers.slot), Signal::KILL);
    let output = child.wait_with_output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(125), "{object}");
    assert!(object["termination"] == "lost" || object["error"]["code"] == "lost", "{object}");
    bell.assert_gone(keepers.slot);
    until("it is known as lost", long(), || bell.state(&id).as_deref() == Some("lost"));
    assert_eq!(bell.run(&["exec", &id, "--", "true"]).status.code(), Some(125));
}

#[test]
fn what_was_said_before_the_memory_ran_out_is_kept() {
    if not_promised_rootless("memory is bounded per process, and more is refused instead of killed") {
        return;
    }
    let bell = Bell::new();
    let bomb = "
import sys
held = []
for number in range(100000):
    print(number, flush=True)
    held.append(bytearray(1 << 20))
";
    let object = bell.json(&["run", "--memory", "64m", "--", "python3", "-c", bomb]);
    assert_eq!(object["termination"], "out_of_memory", "{object}");
    let said = object["stdout"].as_str().unwrap();
    let lines = said.lines().count();
    let expected: String = (0..lines).map(|number| format!("{number}\n")).collect();
    assert_eq!(said, expected, "every line, in order and whole");
    assert!((8..64).contains(&lines), "{lines} MiB of 64");
}

/// The most memory that a process has held, in bytes.
fn peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// The processor time that a sandbox's processes have used, in ticks.
fn used(slot: u32) -> u64 {
    let ticks = |pid: i32| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    in_slot(slot).iter().filter_map(|process| ticks(process.pid)).sum()
}

#[test]
fn a_reader_that_stops_costs_no_memory_and_one_that_vanishes_ends_its_run() {
    let bell = Bell::new();
    let mark = marker();
    let mut run =
        bell.command(&["run", "--timeout", "5m", "--", "sh", "-c", "yes; :", &mark]).spawn().unwrap();
    until("it runs", long(), || !marked(&mark).is_empty());
    let id = text(&bell.run(&["ls", "-q"]).stdout).trim().to_owned();
    let keepers = bell.keepers(&id);
    let mut first = [0; 4096];
    run.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"y\ny\n"));
    let client = i32::try_from(run.id()).unwrap();
    send(client, Signal::STOP);
    // With nobody to read, all come to rest: nobody spins, nobody gathers.
    let (mut last, mut quiet) = (used(keepers.slot), 0);
    until("everything is at rest", long(), || {
        let now = used(keepers.slot);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        quiet == 20
    });
    for (who, pid) in [("monitor", keepers.monitor), ("guest", guest(keepers.slot))] {
        assert!(peak(pid) < 16 << 20, "the {who} held {} bytes", peak(pid));
    }
    assert_eq!(bell.run(&["run", "--", "true"]).status.code(), Some(0), "others go on");
    send(client, Signal::KILL);
    run.wait().unwrap();
    until("nothing inside is left", long(), || in_slot(keepers.slot).is_empty());
    bell.assert_gone(keepers.slot);
    assert!(!bell.directory(&id).exists(), "not even its record");
}

#[test]
fn bombs_of_every_kind_at_once_are_each_told_apart_and_harm_no_neighbour() {
    if not_promised_rootless("memory is bounded per process, and more is refused instead of killed") {
        return;
    }
    let bell = Bell::new();
    let neighbour = bell.create(&[]);
    let forks = "
import os, time
count = 0
try:
    while True:
        if os.fork() == 0: time.sleep(100)
        count += 1
except OSError as error: print('stopped', error.errno, count < 64)
";
    let fill = "
try:
    with open('fill', 'wb', buffering=0) as file:
        while True: file.write(bytes(1 << 20))
except OSError as error: print('stopped', error.errno)
";
    let grow = "
held = []
while True: held.append(bytearray(1 << 20))
";
    let limits = ["--memory", "96m", "--pids", "64", "--cpus", "0.5"];
    let start = |more: &[&str], script: &str| {
        let words = [&["run", "--json"], &limits[..], more, &["--", "python3", "-c", script]].concat();
        bell.command(&words).spawn().unwrap()
    };
    let bombs: Vec<_> = (0..3)
        .flat_map(|_| {
            [
                ("fork", start(&[], forks)),
                ("disk", start(&["--disk", "16m"], fill)),
                ("memory", start(&[], grow)),
                ("time", start(&["--timeout", "2s"], "while True: pass")),
            ]
        })
        .collect();
    for number in 0..20 {
        let object = bell.shell(&neighbour, &format!("echo {number}"));
        assert_eq!(
            (&object["exit_code"], &object["stdout"]),
            (&0.into(), &format!("{number}\n").into()),
            "{object}"
        );
    }
    for (kind, bomb) in bombs {
        let output = bomb.wait_with_output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (ending, said) = match kind {
            "fork" => ("exited", "stopped 11 True\n"),
            "disk" => ("exited", "stopped 28\n"),
            "memory" => ("out_of_memory", ""),
            _ => ("timed_out", ""),
        };
        assert_eq!(
            (&object["termination"], &object["stdout"]),
            (&ending.into(), &said.into()),
            "{kind}: {object}"
        );
    }
}

/// Starts a program under a kernel that does not know one system call.
const WITHOUT: &str = r#"
import ctypes, os, struct, sys
number = int(sys.argv[1])
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// A wall that cannot be built is an error or is told as missing; it is never left out in silence.
#[test]
fn a_kernel_that_lacks_a_wall_gets_no_sandbox_that_seems_whole() {
    let bell = Bell::new();
    let create = |number: libc::c_long| {
        let belljar = belljar().to_str().unwrap().to_owned();
        let mut command = Command::new("python3");
        command.args(["-c", WITHOUT, &number.to_string(), &belljar, "create", "--json"]);
        command.env("BELLJAR_HOME", bell.home.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
        object
    };
    // The control: a call that nobody makes is not missed.
    let whole = create(libc::SYS_acct);
    let id = whole["sandbox_id"].as_str().unwrap_or_else(|| panic!("{whole}"));
    assert_eq!(bell.json(&["inspect", id])["sandbox"]["losses"], Value::Array(Vec::new()));
    for (name, number) in [
        ("pivot_root", libc::SYS_pivot_root),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
        ("landlock_restrict_self", libc::SYS_landlock_restrict_self),
        ("capset", libc::SYS_capset),
        ("setgroups", libc::SYS_setgroups),
        ("unshare", libc::SYS_unshare),
    ] {
        let object = create(number);
        match object["sandbox_id"].as_str() {
            None => assert!(object["error"]["message"].is_string(), "{name}: {object}"),
            Some(id) => {
                let losses = bell.json(&["inspect", id])["sandbox"]["losses"].clone();
                let told = losses.as_array().is_some_and(|losses| !losses.is_empty());
                // Its monitor or guest could not confine itself and ended: nothing runs there.
                let refused = || bell.run(&["exec", id, "--", "true"]).status.code() == Some(125);
                assert!(told || refused(), "{name} is missed by nobody: {object}");
            }
        }
    }
    let sandboxes = fs::read_dir(bell.home.path().join("sandboxes")).unwrap().flatten();
    let listed = text(&bell.run(&["ls", "-a", "-q"]).stdout).to_owned();
    for left in sandboxes {
        assert!(listed.contains(left.file_name().to_str().unwrap()), "{left:?} was left by a failed launch");
    }
}
