//! Killed at random moments under load, and at every place where something was just written or done.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::failpoint;
use serde_json::Value;

use crate::surroundings::{ablated, announce, patience};
use crate::{House, counted, setting, until};

/// How many there are at once, at most.
const SESSIONS: usize = 50;

/// Random numbers that are the same every time (xorshift).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// A command whose end a caller was told of.
struct Finished {
    sandbox: String,
    /// What the command leaves in a file.
    mark: String,
    code: i64,
    /// The engine was alive then. Without one, commands work as well, and nobody remembers them.
    by_engine: bool,
}

/// What callers were told.
#[derive(Default)]
struct Told {
    created: BTreeSet<String>,
    removed: BTreeSet<String>,
    finished: Vec<Finished>,
}

/// One caller: creates, executes, uploads, pauses, removes, until it is told to stop. Calls that fail because the engine
/// died are as if nobody had been told anything.
fn call(house: &House, mut dice: Dice, name: usize, stop: &AtomicBool, told: &Mutex<Told>) {
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let there: Vec<String> = {
            let told = told.lock().unwrap();
            told.created.difference(&told.removed).cloned().collect()
        };
        let one = there.get(dice.roll(there.len().max(1) as u64) as usize).cloned();
        match (dice.roll(10), one) {
            (0..2, _) if there.len() >= SESSIONS => {}
            (0..2, _) | (_, None) => {
                let made: Value = said(house, &["create", "--json", "--ttl", "10m"]);
                if let Some(id) = made["sandbox_id"].as_str() {
                    told.lock().unwrap().created.insert(id.to_owned());
                }
            }
            (2..7, Some(id)) => {
                let mark = format!("{name}-{number}");
                let status = dice.roll(3) as i64;
                // Each run of it appends a line: two lines would be two runs.
                let script = format!("echo {mark} >> marks; seq 1 200; exit {status}");
                let result = said(house, &["exec", "--json", &id, "--", "sh", "-c", &script]);
                if let Some(code) = result["exit_code"].as_i64() {
                    assert_eq!(code, status, "{result}");
                    assert_eq!(result["stdout"].as_str().unwrap().lines().count(), 200, "whole");
                    let by_engine = !stop.load(Ordering::SeqCst);
                    told.lock().unwrap().finished.push(Finished { sandbox: id, mark, code, by_engine });
                }
            }
            (7, Some(id)) => {
                said(house, &["cp", "--json", "/etc/hostname", &format!("{id}:name")]);
            }
            (8, Some(id)) => {
                said(house, &["pause", "--json", &id]);
                said(house, &["resume", "--json", &id]);
            }
            (_, Some(id)) => {
                if said(house, &["rm", "-f", "--json", &id])["sandbox_ids"].is_array() {
                    told.lock().unwrap().removed.insert(id);
                }
            }
        }
    }
}

/// The object that a command printed, or nothing.
fn said(house: &House, words: &[&str]) -> Value {
    serde_json::from_slice(&house.run(words).stdout).unwrap_or(Value::Null)
}

#[test]
fn killed_at_random_moments_under_load_it_loses_nothing() {
    let mut house = House::new();
    // The template is looked for once, which takes longer than any engine will live here.
    assert!(house.run(&["run", "--", "true"]).status.success());
    let told = Mutex::new(Told::default());
    let mut slowest = Duration::ZERO;
    for seed in 0..setting("BELLJAR_ENGINE_SEEDS", 20) {
        slowest = slowest.max(house.start(None));
        let stop = AtomicBool::new(false);
        let mut dice = Dice::new(seed + 1);
        let moment = Duration::from_millis(100 + dice.roll(900));
        let mut engine = house.engine.take().unwrap();
        std::thread::scope(|scope| {
            for name in 0..6 {
                let (house, stop, told) = (&house, &stop, &told);
                scope.spawn(move || {
                    call(
                        house,
                        Dice::new(seed * 100 + name as u64 + 7),
                        seed as usize * 100 + name,
                        stop,
                        told,
                    )
                });
            }
            // Not for anything to be ready: this is the random moment.
            std::thread::sleep(moment);
            stop.store(true, Ordering::SeqCst);
            engine.kill().unwrap();
            engine.wait().unwrap();
        });
    }
    slowest = slowest.max(house.start(None));
    assert!(slowest < patience(Duration::from_secs(10)), "it took {slowest:?} to take over");
    announce(&format!("the slowest of the engines served {slowest:?} after its start"));
    let told = told.into_inner().unwrap();
    assert!(!told.created.is_empty() && !told.finished.is_empty(), "the control: something was done");
    judge(&house, &told);
}

/// Compares what callers were told with what is there and what is on record.
fn judge(house: &House, told: &Told) {
    let listed = house.json(&["ls"]);
    let running: BTreeSet<&str> =
        listed["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    for id in &told.created {
        let gone = told.removed.contains(id);
        let events = house.events(id);
        let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "{id}: in order, without gaps");
        let counts = counted(&events);
        assert_eq!(counts["created"], 1, "{id}: {counts:?}");
        // Nobody but its own callers ended it; a removal whose answer was lost may have happened.
        let ended = counts.contains_key("ended");
        assert!(running.contains(id.as_str()) != ended, "{id} runs or has ended: {counts:?}");
        assert!(!gone || ended, "{id} was removed");
        // Every execution has one fate.
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        let fates = of("exec_finished") + of("exec_refused") + of("exec_interrupted");
        assert_eq!(fates, of("exec_accepted"), "{id}: {counts:?}");
        assert!(of("exec_started") <= of("exec_accepted"));
        if !ended {
            // It may have been killed between a pause and its resume.
            assert!(house.run(&["resume", id]).status.success());
            let marks = house.json(&["exec", id, "--", "sh", "-c", "cat marks 2>/dev/null; true"]);
            let marks: Vec<&str> = marks["stdout"].as_str().unwrap().lines().collect();
            let once: BTreeSet<&&str> = marks.iter().collect();
            assert_eq!(marks.len(), once.len(), "{id}: something ran twice: {marks:?}");
            for Finished { mark, .. } in told.finished.iter().filter(|end| end.sandbox == *id) {
                assert!(once.contains(&mark.as_str()), "{id}: {mark} was told to have run");
            }
        }
        for Finished { mark, code, .. } in
            told.finished.iter().filter(|end| end.by_engine && end.sandbox == *id)
        {
            let exec =
                events.iter().find(|event| event["request"].to_string().contains(&format!("echo {mark} >>")));
            let exec = exec.unwrap_or_else(|| panic!("{id}: {mark} is not on record"))["exec"].as_u64();
            let end = events
                .iter()
                .find(|event| event["event"] == "exec_finished" && event["exec"].as_u64() == exec);
            assert_eq!(end.map(|end| end["code"].as_i64()), Some(Some(*code)), "{id}: {mark}");
        }
    }
    // What runs is on record, and what is on disk runs or has ended.
    for id in &running {
        assert!(!house.events(id).is_empty());
    }
    // What ended in this moment is still being taken down; nothing may stay that nobody owns.
    until("every lease has an owner", || {
        let listed = house.json(&["ls", "-a"]);
        let known: BTreeSet<&str> =
            listed["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
        // One whose lease was not written was cut off before anything was made; it is swept when it is old.
        let is_written =
            |path: PathBuf| fs::metadata(path.join("lease.json")).is_ok_and(|lease| lease.len() > 0);
        fs::read_dir(house.home().join("sandboxes"))
            .unwrap()
            .flatten()
            .all(|entry| known.contains(entry.file_name().to_str().unwrap()) || !is_written(entry.path()))
    });
}

#[test]
fn killed_at_every_place_it_loses_nothing() {
    let program = ablated().unwrap();
    for place in failpoint::ALL {
        let mut house = House::of(program.clone());
        house.start(None);
        let there = house.json(&["create", "--ttl", "10m"])["sandbox_id"].as_str().unwrap().to_owned();
        house.kill();
        house.start(Some(place));
        let mut dying = house.engine.take().unwrap();
        // All that can happen to a session, until the engine is dead.
        let begun = Instant::now();
        let steps: [&[&str]; 7] = [
            &["exec", "--json", &there, "--", "sh", "-c", "echo once >> marks"],
            &["cp", "--json", "/etc/hostname", &format!("{there}:name")],
            &["pause", "--json", &there],
            &["resume", "--json", &there],
            &["create", "--json", "--ttl", "10m"],
            &["run", "--json", "--", "true"],
            &["rm", "-f", "--json", &there],
        ];
        for step in steps {
            house.run(step);
            if dying.try_wait().unwrap().is_some() {
                break;
            }
        }
        if place == "forget.removed" {
            // In its own time.
            until("it died", || dying.try_wait().unwrap().is_some());
        }
        let dead = dying.try_wait().unwrap();
        let _ = dying.kill();
        let _ = dying.wait();
        assert!(dead.is_some(), "nothing led to {place} within {:?}", begun.elapsed());

        house.start(None);
        let events = house.events(&there);
        let counts = counted(&events);
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        let over = |fates: &[&str]| fates.iter().map(|name| of(name)).sum::<usize>();
        assert_eq!(
            over(&["exec_finished", "exec_refused", "exec_interrupted"]),
            of("exec_accepted"),
            "{place}: {counts:?}"
        );
        assert_eq!(over(&["transferred", "transfer_interrupted"]), of("transfer"), "{place}: {counts:?}");
        if of("ended") == 0 {
            house.run(&["resume", &there]);
            let marks = house.json(&["exec", &there, "--", "sh", "-c", "cat marks 2>/dev/null | wc -l"]);
            let ran = of("exec_finished");
            assert_eq!(
                marks["stdout"].as_str().map(str::trim),
                Some(&*ran.to_string()),
                "{place}: once or never: {counts:?}"
            );
        }
        // Every sandbox that is there belongs to a session that says so.
        for one in house.json(&["ls"])["sandboxes"].as_array().unwrap() {
            let counts = counted(&house.events(one["id"].as_str().unwrap()));
            assert!(counts.contains_key("created") && !counts.contains_key("ended"), "{place}: {counts:?}");
        }
    }
}
