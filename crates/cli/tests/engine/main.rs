//! `belljar engine` is killed at any moment, and nothing that was accepted is lost, run twice or orphaned.
//!
//! `BELLJAR_ENGINE_SEEDS` says how many random moments are tried (20, all of them in `make soak`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../surroundings/mod.rs"]
mod surroundings;

mod crash;
mod everyday;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::surroundings::{belljar, patience};

/// A data directory and the engine that serves it now.
struct House {
    directory: tempfile::TempDir,
    program: PathBuf,
    engine: Option<Child>,
}

impl House {
    fn new() -> Self {
        Self::of(belljar())
    }

    fn of(program: PathBuf) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), program, engine: None }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env("BELLJAR_HOME", self.home()).env_remove("BELLJAR_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[&[words[0], "--json"], &words[1..]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Starts an engine and waits until it serves; answers how long that took.
    fn start(&mut self, place_to_die: Option<&str>) -> Duration {
        let begun = Instant::now();
        let mut command = self.command(&["engine", "--patience", "30s"]);
        if let Some(place) = place_to_die {
            command.env("BELLJAR_FAILPOINT", place);
            // Whatever ends is forgotten at once, or never.
            command.args(["--most", if place == "forget.removed" { "0" } else { "1000" }]);
        }
        let mut engine = command.stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(engine.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.engine = Some(engine);
        if place_to_die.is_none() {
            assert!(line.starts_with("serving "), "the engine said {line:?}");
        }
        begun.elapsed()
    }

    /// Kills the engine as nothing else does.
    fn kill(&mut self) {
        let mut engine = self.engine.take().unwrap();
        engine.kill().unwrap();
        engine.wait().unwrap();
    }

    fn events(&self, id: &str) -> Vec<Value> {
        let listed = self.json(&["events", id]);
        listed["events"].as_array().unwrap_or_else(|| panic!("no log of {id}: {listed}")).clone()
    }

    /// The processes of sandboxes of this data directory, by what they hold open.
    fn keepers(&self) -> Vec<i32> {
        let sandboxes = self.home().join("sandboxes");
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| holds(*pid, &sandboxes)).collect()
    }
}

fn holds(pid: i32, below: &Path) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target.starts_with(below))
}

impl Drop for House {
    fn drop(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            let _ = engine.kill();
            let _ = engine.wait();
        }
        let ids = String::from_utf8(self.run(&["ls", "-a", "-q"]).stdout).unwrap_or_default();
        let words: Vec<&str> = ["rm", "-f"].into_iter().chain(ids.lines()).collect();
        self.run(&words);
    }
}

/// How often each word stands in a log.
fn counted(events: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(event["event"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience(Duration::from_secs(30));
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
