//! What breaks around an engine: disks, databases, clocks, machines, monitors.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::surroundings::processes::{in_slot, send};
use crate::surroundings::{SmallDisk, patience};
use crate::{House, counted, setting, until};

/// What a log says of the end of an execution.
fn end_of(events: &[Value], exec: usize) -> &Value {
    let mut ends = events.iter().filter(|event| event["event"] == "exec_finished" && event["exec"] == exec);
    let end = ends.next().unwrap_or_else(|| panic!("{exec} has no end: {events:?}"));
    assert!(ends.next().is_none(), "{exec} has two ends: {events:?}");
    end
}

/// The same, once it is there. Executions are counted in a log as they are inside, unless some ran without an engine.
fn end_in_time(house: &House, id: &str, exec: &str) -> Value {
    let exec: usize = exec.parse().unwrap();
    until("its end is on record", || {
        let ended = |event: &Value| event["event"] == "exec_finished" && event["exec"] == exec;
        house.events(id).iter().any(ended)
    });
    end_of(&house.events(id), exec).clone()
}

#[test]
fn what_ended_while_there_was_no_engine_has_its_true_result() {
    let mut house = House::new();
    house.start(None);
    let id = house.create(4);
    let gate = house.home().join("gate");
    let first = house.begin(&id, "while [ ! -e gate ]; do sleep 0.05; done; echo through; exit 7");
    let second = house.begin(&id, "echo begun; while :; do sleep 1; done");
    house.kill();
    // Nobody looks; the first goes on and ends, then the sandbox does.
    fs::write(&gate, "").unwrap();
    assert!(house.run(&["cp", gate.to_str().unwrap(), &format!("{id}:gate")]).status.success());
    until("its time is over", || house.state(&id) == "expired");
    house.start(None);
    let events = house.events(&id);
    assert_eq!(counted(&events)["exec_finished"], 2, "{events:?}");
    let end = end_of(&events, 1);
    assert_eq!((&end["termination"], &end["code"]), (&"exited".into(), &7.into()), "{end}");
    assert_eq!(end_of(&events, 2)["termination"], "killed");
    assert_eq!(events.last().unwrap()["reason"], "expired", "{events:?}");
    for (exec, said) in [(&first, "through\n"), (&second, "begun\n")] {
        let logs = house.json(&["logs", &id, exec]);
        assert_eq!(logs["executions"][0]["stdout"], said, "{logs}");
    }
}

#[test]
fn a_full_disk_is_said_and_gotten_over_without_a_restart() {
    let mut house = House::new();
    let disk = SmallDisk::mount(house.directory.path().join("disk"));
    house.home = disk.0.join("home");
    house.start(None);
    let id = house.create(600);
    let running = house.begin(&id, "while [ ! -e stop ]; do sleep 0.05; done; exit 5");
    disk.fill();
    let refused = house.json(&["create"]);
    assert_eq!(refused["error"]["code"], "resource_exhausted", "{refused}");
    // The log has room for some more, or not; what is told as done was done.
    let mut done = 0;
    for number in 0..20 {
        let result = house.shell(&id, &format!("echo {number} >> marks"));
        match result["exit_code"].as_i64() {
            Some(code) => {
                assert_eq!(code, 0, "{result}");
                done += 1;
            }
            None => assert_eq!(result["error"]["code"], "resource_exhausted", "{result}"),
        }
    }
    assert_eq!(house.state(&id), "running");
    disk.relieve();
    let after = house.create(600);
    assert_eq!(house.shell(&after, "echo works")["stdout"], "works\n");
    let marks = house.shell(&id, "cat marks 2>/dev/null | wc -l; touch stop");
    assert_eq!(marks["stdout"].as_str().map(str::trim), Some(&*done.to_string()), "nothing else ran");
    assert_eq!(end_in_time(&house, &id, &running)["code"], 5);
    // What was refused is no session any more, and the database is whole.
    house.kill();
    house.start(None);
    assert_eq!(house.json(&["ls"])["sandboxes"].as_array().unwrap().len(), 2);
    assert!(house.run(&["rm", "-f", &id, &after]).status.success());
    house.kill();
}

/// Holds a database so that nobody else can write, until a line comes.
const HOLD: &str = "
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute('BEGIN EXCLUSIVE')
print('held', flush=True)
sys.stdin.readline()
held.execute('ROLLBACK')
";

#[test]
fn a_database_that_others_hold_delays_and_loses_nothing() {
    let mut house = House::new();
    house.start(None);
    let id = house.create(600);
    let exec = house.begin(&id, "while [ ! -e stop ]; do sleep 0.05; done; exit 5");
    let database = house.home().join("engine.db");
    assert!(database.exists(), "{database:?}");
    let mut holder = Command::new("python3");
    holder.args(["-c", HOLD]).arg(&database).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let begun = Instant::now();
    // Readers do not care.
    assert_eq!(house.state(&id), "running");
    assert_eq!(counted(&house.events(&id))["exec_started"], 1);
    // Whoever wants something done is told to try again, and nothing was done.
    let refused = house.shell(&id, "touch done-though-refused");
    assert_eq!(refused["error"]["code"], "unavailable", "{refused}");
    assert!(refused["error"]["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{refused}");
    let created = house.json(&["create"]);
    assert_eq!(created["error"]["code"], "unavailable", "{created}");
    // The issue is ten seconds of it; each refusal took some of them.
    std::thread::sleep(Duration::from_secs(10).saturating_sub(begun.elapsed()));
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(house.shell(&id, "ls done-though-refused; touch stop")["stdout"], "");
    assert_eq!(end_in_time(&house, &id, &exec)["code"], 5);
    let events = house.events(&id);
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "in order, without gaps");
}

/// Moves the time of day, and no other clock, by as many seconds as a file says.
const SKEW: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, which, now);
    const char *path = getenv("TEST_SKEW");
    if (failed || which != CLOCK_REALTIME || !path) return failed;
    char text[32] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
    if (file >= 0) close(file);
    return 0;
}
"#;

#[test]
fn a_clock_that_jumps_ends_nobody_and_makes_nobody_immortal() {
    let mut house = House::new();
    let (source, shim) = (house.directory.path().join("skew.c"), house.directory.path().join("skew.so"));
    fs::write(&source, SKEW).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source);
    assert!(compiler.status().unwrap().success());
    let skew = house.directory.path().join("seconds");
    fs::write(&skew, "0").unwrap();
    house.environment = vec![("LD_PRELOAD", shim), ("TEST_SKEW", skew.clone())];
    house.start(None);
    let time_of = |house: &House, id: &str| house.events(id).last().unwrap()["time_ms"].as_u64().unwrap();
    let long = house.create(600);
    let before = time_of(&house, &long);
    for hour in ["3600", "-3600"] {
        let short = house.create(3);
        let began = Instant::now();
        let exec = house.begin(&long, "sleep 0.5; exit 4");
        fs::write(&skew, hour).unwrap();
        // The control: it did jump.
        assert_eq!(house.shell(&long, "echo still here")["stdout"], "still here\n");
        let moved = time_of(&house, &long).abs_diff(before);
        assert!((3_000_000..4_200_000).contains(&moved), "{moved}");
        until("the end of its time", || house.state(&short) == "expired");
        assert!(
            began.elapsed() >= patience(Duration::from_secs(3)) - Duration::from_millis(100),
            "not before"
        );
        let end = end_in_time(&house, &long, &exec);
        assert_eq!(end["code"], 4);
        let took = end["duration_us"].as_u64().unwrap();
        assert!((400_000..30_000_000).contains(&took), "measured by another clock: {took}");
        assert_eq!(house.events(&short).last().unwrap()["reason"], "expired");
        // A new engine believes no more of it.
        house.kill();
        house.start(None);
        assert_eq!(house.state(&long), "running");
    }
}

#[test]
fn a_machine_that_was_suspended_goes_on_where_it_was() {
    let mut house = House::new();
    house.start(None);
    let id = house.create(600);
    let exec = house.begin(&id, "for number in $(seq 1 400); do echo $number; sleep 0.005; done; exit 6");
    let everyone = || -> BTreeSet<i32> {
        let inside = house.inside(&id).into_iter().map(|process| process.pid);
        inside.chain(house.keepers()).chain(house.engine.iter().map(|engine| engine.id() as i32)).collect()
    };
    // Some come and go; once all that are there are stopped, nobody new comes.
    let signal = |pid: &i32, signal| {
        let _ = kill_process(Pid::from_raw(*pid).unwrap(), signal);
    };
    let mut stopped = BTreeSet::new();
    while !everyone().is_subset(&stopped) {
        stopped.extend(everyone().iter().inspect(|pid| signal(pid, Signal::STOP)));
    }
    // This is the fault itself: time passes and nobody notices.
    std::thread::sleep(Duration::from_secs(setting("BELLJAR_ENGINE_SUSPEND", 5)));
    stopped.iter().for_each(|pid| signal(pid, Signal::CONT));
    let whole: String = (1..=400).map(|number| format!("{number}\n")).collect();
    assert_eq!(end_in_time(&house, &id, &exec)["code"], 6);
    assert_eq!(house.json(&["logs", &id, &exec])["executions"][0]["stdout"], whole);
    assert_eq!(house.shell(&id, "echo works")["stdout"], "works\n");
    assert_eq!(house.create(60).len(), id.len());
}

/// When a process started, in ticks since boot.
fn started(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

#[test]
fn a_number_that_another_process_has_by_now_is_nobody_to_kill() {
    let house = House::new();
    let id = house.create(600);
    let lock = house.home().join("sandboxes").join(&id).join("lock");
    let (written, mut built, monitor) = (fs::read(&lock).unwrap(), house.built(&id), house.monitor(&id));
    let mut innocent = Command::new("sleep").arg("600").spawn().unwrap();
    // It came later, as the kernel counts it: in ticks.
    while started(innocent.id()) == built["monitor"]["started"] {
        innocent.kill().unwrap();
        innocent.wait().unwrap();
        innocent = Command::new("sleep").arg("600").spawn().unwrap();
    }
    built["monitor"]["pid"] = innocent.id().into();
    fs::write(&lock, serde_json::to_vec(&built).unwrap()).unwrap();
    // It does not answer, so it is to be killed without being asked.
    send(monitor, Signal::STOP);
    let removed = house.run(&["rm", "-f", &id]);
    assert!(innocent.try_wait().unwrap().is_none(), "the wrong process was killed");
    assert!(!removed.status.success(), "what still lives is not told as removed: {removed:?}");
    send(monitor, Signal::CONT);
    fs::write(&lock, written).unwrap();
    assert!(house.run(&["rm", "-f", &id]).status.success());
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[test]
fn a_killed_monitor_or_guest_is_told_and_nothing_is_left() {
    let mut house = House::new();
    house.start(None);
    let guest = |house: &House, id: &str| {
        let inside = house.inside(id);
        inside.iter().find(|process| process.command.starts_with("belljar-guest")).expect("a guest").pid
    };
    for victim in [House::monitor, guest] {
        let (id, neighbour) = (house.create(600), house.create(600));
        let slot = u32::try_from(house.built(&id)["slot"].as_u64().unwrap()).unwrap();
        assert_eq!(house.begin(&id, "while :; do sleep 1; done"), "1");
        send(victim(&house, &id), Signal::KILL);
        until("it is on record", || counted(&house.events(&id)).contains_key("ended"));
        let events = house.events(&id);
        assert_eq!(end_of(&events, 1)["termination"], "lost", "{events:?}");
        assert_eq!(events.last().unwrap()["reason"], "lost", "{events:?}");
        let used = &events.last().unwrap()["meter"]["cpu_us"];
        assert!(
            used["unknown"].as_u64() > Some(0) || used["known"].as_u64() > Some(0),
            "not nothing: {used}"
        );
        assert_eq!(house.state(&id), "lost");
        assert_eq!(house.shell(&id, "true")["error"]["code"], "sandbox_gone");
        assert_eq!(house.shell(&neighbour, "echo unharmed")["stdout"], "unharmed\n");
        until("nothing of it runs", || in_slot(slot).is_empty());
        assert!(house.run(&["rm", "-f", &id, &neighbour]).status.success());
    }
}

#[test]
fn who_is_told_to_stop_ends_well_and_leaves_everything_running() {
    let mut house = House::new();
    house.start(None);
    let id = house.create(600);
    let exec = house.begin(&id, "while [ ! -e stop ]; do sleep 0.05; done; exit 3");
    let mut engine = house.engine.take().unwrap();
    send(i32::try_from(engine.id()).unwrap(), Signal::TERM);
    assert!(engine.wait().unwrap().success(), "a normal end");
    assert_eq!(house.shell(&id, "echo without")["stdout"], "without\n");
    house.start(None);
    assert_eq!(house.shell(&id, "touch stop; echo with")["stdout"], "with\n");
    assert_eq!(end_in_time(&house, &id, &exec)["code"], 3);
}

#[test]
fn who_is_told_to_stop_lets_its_callers_finish_and_told_twice_does_not_wait() {
    let mut house = House::new();
    house.start_with(&["--grace", "10m"]);
    let id = house.create(600);
    let wait = |file: &str| {
        let script = format!("touch {file}.begun; while [ ! -e {file} ]; do sleep 0.05; done; exit 3");
        let caller = house.command(&["exec", "--json", &id, "--", "sh", "-c", &script]).spawn().unwrap();
        let begun = format!("test -e {file}.begun");
        until("it has begun", || house.shell(&id, &begun)["exit_code"] == 0);
        caller
    };
    let (first, second) = (wait("first"), wait("second"));
    let follower = house.command(&["events", &id, "--follow"]).spawn().unwrap();
    let mut engine = house.engine.take().unwrap();
    let stop = || send(i32::try_from(engine.id()).unwrap(), Signal::TERM);
    stop();
    let told = follower.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("shutting down"), "who waits for news is told at once: {told}");
    let refused = house.json(&["create"]);
    assert_eq!(refused["error"]["code"], "unavailable", "{refused}");
    assert_eq!(house.shell(&id, "touch first")["exit_code"], 0, "whoever has a sandbox is served");
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(3), "a caller who was there finishes");
    stop();
    assert!(engine.wait().unwrap().success(), "a normal end");
    let left = second.wait_with_output().unwrap();
    let left: Value = serde_json::from_slice(&left.stdout).unwrap();
    assert_eq!(left["error"]["code"], "lost", "{left}");
    house.start(None);
    assert_eq!(house.shell(&id, "touch second; echo with")["stdout"], "with\n", "the sandbox went on");
}
