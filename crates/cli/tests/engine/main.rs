//! `belljar engine` is killed at any moment, and nothing that was accepted is lost, run twice or orphaned.
//!
//! | variable | meaning, and what it is in `make soak` |
//! |---|---|
//! | `BELLJAR_ENGINE_SEEDS` | how many random moments to be killed at are tried (20; 200) |
//! | `BELLJAR_ENGINE_SUSPEND` | for how many seconds the machine is suspended (5; 60) |
//! | `BELLJAR_ENGINE_SESSIONS` | how many short sessions there are (300; 20000) |

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../surroundings/mod.rs"]
mod surroundings;

mod crash;
mod everyday;
mod faults;
mod load;
mod readers;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use belljar_engine::service::Client;
use serde_json::Value;

use crate::surroundings::processes::{Process, in_slot};
use crate::surroundings::{belljar, patience, span};

/// A data directory and the engine that serves it now.
struct House {
    directory: tempfile::TempDir,
    home: PathBuf,
    program: PathBuf,
    engine: Option<Child>,
    /// What every program that is started here finds in its environment.
    environment: Vec<(&'static str, PathBuf)>,
}

impl House {
    fn new() -> Self {
        Self::of(belljar())
    }

    fn of(program: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            home: directory.path().join("home"),
            directory,
            program,
            engine: None,
            environment: Vec::new(),
        }
    }

    fn home(&self) -> &Path {
        &self.home
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env("BELLJAR_HOME", self.home()).env_remove("BELLJAR_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
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
        // Whatever ends is forgotten at once, or never.
        let most = if place_to_die == Some("forget.removed") { "0" } else { "1000000" };
        let mut command = self.command(&["engine", "--patience", "30s", "--most", most]);
        command.envs(place_to_die.map(|place| ("BELLJAR_FAILPOINT", place)));
        let (took, line) = self.serve(command);
        assert!(place_to_die.is_some() || line.starts_with("serving "), "the engine said {line:?}");
        took
    }

    /// The same with these options.
    fn start_with(&mut self, options: &[&str]) {
        let (_, line) = self.serve(self.command(&[&["engine"], options].concat()));
        assert!(line.starts_with("serving "), "the engine said {line:?}");
    }

    fn serve(&mut self, mut command: Command) -> (Duration, String) {
        let begun = Instant::now();
        let mut engine = command.stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(engine.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.engine = Some(engine);
        (begun.elapsed(), line)
    }

    /// The engine, for programs.
    async fn client(&self) -> Client {
        Client::find(self.home()).await.unwrap().expect("an engine that serves")
    }

    /// What the engine holds in memory, in bytes.
    fn resident(&self) -> u64 {
        let pid = self.engine.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    }

    /// Kills the engine as nothing else does.
    fn kill(&mut self) {
        let mut engine = self.engine.take().unwrap();
        engine.kill().unwrap();
        engine.wait().unwrap();
    }

    /// A sandbox that lives for so many seconds.
    fn create(&self, seconds: u32) -> String {
        let made = self.json(&["create", "--ttl", &span(seconds)]);
        made["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// Starts a shell script whose end nobody waits for; answers its number.
    fn begin(&self, id: &str, script: &str) -> String {
        let begun = self.json(&["exec", "-d", id, "--", "sh", "-c", script]);
        begun["exec"].as_u64().unwrap_or_else(|| panic!("{begun}")).to_string()
    }

    fn shell(&self, id: &str, script: &str) -> Value {
        self.json(&["exec", id, "--", "sh", "-c", script])
    }

    /// The state of a sandbox that is there, or was.
    fn state(&self, id: &str) -> String {
        let listed = self.json(&["ls", "-a"]);
        let all = listed["sandboxes"].as_array().unwrap();
        let found = all.iter().find(|one| one["id"] == id).unwrap_or_else(|| panic!("no {id}: {listed}"));
        found["state"].as_str().unwrap().to_owned()
    }

    fn events(&self, id: &str) -> Vec<Value> {
        let listed = self.json(&["events", id]);
        listed["events"].as_array().unwrap_or_else(|| panic!("no log of {id}: {listed}")).clone()
    }

    /// What a sandbox's launcher left word of.
    fn built(&self, id: &str) -> Value {
        serde_json::from_slice(&fs::read(self.home.join("sandboxes").join(id).join("lock")).unwrap()).unwrap()
    }

    fn monitor(&self, id: &str) -> i32 {
        i32::try_from(self.built(id)["monitor"]["pid"].as_i64().unwrap()).unwrap()
    }

    /// The processes with a sandbox's own ids: those inside, and its monitor.
    fn inside(&self, id: &str) -> Vec<Process> {
        in_slot(u32::try_from(self.built(id)["slot"].as_u64().unwrap()).unwrap())
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

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A number from the environment, for runs longer than usual.
fn setting(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect("a number"))
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
