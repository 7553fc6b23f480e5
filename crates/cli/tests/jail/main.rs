//! The jail through the built program: endings, walls, bombs and lives. Needs a kernel with everything that `belljar
//! doctor` asks for, and root; without them these tests fail, they do not skip. An ordinary user can ask for what
//! rootless sandboxes promise (see `surroundings`): then each test says what of it is not promised.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod attacks;
mod bombs;
mod endings;
mod faults;
mod life;
mod pause;
#[path = "../surroundings/mod.rs"]
mod surroundings;
mod walls;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use surroundings::processes::{Process, cgroups, holding, in_slot, processes, send};
use surroundings::{belljar, is_rootless, not_promised_rootless, patience, slowness, span};

/// For conditions that have no bound of their own.
fn long() -> Duration {
    patience(Duration::from_secs(20))
}

fn second() -> Duration {
    patience(Duration::from_secs(1))
}

/// Where the issue states a bound in seconds, the tests of this program do not compete for the processors.
static TURNS: RwLock<()> = RwLock::new(());

enum Turn {
    Shared(#[expect(dead_code, reason = "held until dropped")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held until dropped")] RwLockWriteGuard<'static, ()>),
}

/// The built program with a data directory of its own. Dropping it removes its sandboxes.
struct Bell {
    home: tempfile::TempDir,
    _turn: Turn,
}

impl Bell {
    fn new() -> Self {
        Self::with(Turn::Shared(TURNS.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// For a test with a stated bound: no other test runs meanwhile, and the template is warm.
    fn alone() -> Self {
        let bell = Self::with(Turn::Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner)));
        assert!(bell.run(&["run", "--", "true"]).status.success());
        bell
    }

    fn with(turn: Turn) -> Self {
        is_rootless();
        Self { home: tempfile::tempdir().unwrap(), _turn: turn }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        match words {
            // What is given no time of its own is given the usual time, for a slow machine.
            [verb @ ("run" | "exec"), rest @ ..]
                if slowness() > 1 && !words.contains(&"--timeout") && !words.contains(&"-d") =>
            {
                command.args([verb, "--timeout", &span(30)]).args(rest)
            }
            ["create", rest @ ..] if slowness() > 1 && !words.contains(&"--ttl") => {
                command.args(["create", "--ttl", &span(300)]).args(rest)
            }
            words => command.args(words),
        };
        command.env("BELLJAR_HOME", self.home.path()).env_remove("BELLJAR_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs with `--json` and answers the one object.
    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[&[words[0], "--json"], &words[1..]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{words:?}: {error}: {} {}", output.status, String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Creates a sandbox and answers its id.
    fn create(&self, options: &[&str]) -> String {
        let object = self.json(&[&["create"], options].concat());
        object["sandbox_id"].as_str().unwrap_or_else(|| panic!("not created: {object}")).to_owned()
    }

    fn shell(&self, id: &str, script: &str) -> Value {
        self.json(&["exec", id, "--", "sh", "-c", script])
    }

    fn python(&self, id: &str, script: &str) -> Value {
        self.json(&["exec", id, "--", "python3", "-c", script])
    }

    /// Starts a Python program in the background of a sandbox and waits until it has said this line; answers all it said.
    fn background(&self, id: &str, script: &str, line: &str) -> String {
        let exec = self.json(&["exec", "-d", "--timeout", "10m", id, "--", "python3", "-uc", script]);
        let number = exec["exec"].to_string();
        let mut said = String::new();
        until(&format!("`{line}`"), long(), || {
            let execution = self.json(&["logs", id, &number])["executions"][0].clone();
            said = execution["stdout"].as_str().unwrap_or_default().to_owned();
            assert!(execution["termination"].is_null(), "it ended: {execution}");
            // A line may come in pieces.
            said.split_inclusive('\n').any(|said| said.starts_with(line) && said.ends_with('\n'))
        });
        said
    }

    /// The state that `ls -a` shows, which also sweeps; `None` when it is not listed.
    fn state(&self, id: &str) -> Option<String> {
        let listed = self.json(&["ls", "-a"]);
        let sandboxes = listed["sandboxes"].as_array().unwrap();
        let found = sandboxes.iter().find(|sandbox| sandbox["id"] == id)?;
        Some(found["state"].as_str().unwrap().to_owned())
    }

    /// Waits until its launcher has ended, and sees how the sandbox is said to have ended.
    fn assert_ended(&self, id: &str, how: &str) {
        until("it has ended", long(), || self.state(id).as_deref() != Some("running"));
        assert_eq!(self.state(id).as_deref(), Some(how));
    }

    fn directory(&self, id: &str) -> PathBuf {
        self.home.path().join("sandboxes").join(id)
    }

    /// The processes outside that look after a sandbox: they hold its lock.
    fn keepers(&self, id: &str) -> Keepers {
        let lock = self.directory(id).join("lock");
        if is_rootless() {
            return self.own_keepers(&lock);
        }
        let (launchers, monitors): (Vec<Process>, Vec<Process>) =
            holding(&lock).into_iter().partition(|process| process.uid == 0);
        assert_eq!((launchers.len(), monitors.len()), (1, 1), "one launcher, one monitor without privileges");
        Keepers { launcher: launchers[0].pid, monitor: monitors[0].pid, slot: monitors[0].slot().unwrap() }
    }

    /// The same without root: they have the user's own id, and the monitor lets nobody see what it has open.
    fn own_keepers(&self, lock: &Path) -> Keepers {
        let all = processes();
        let launchers = holding(lock);
        assert_eq!(launchers.len(), 1, "one launcher: {launchers:?}");
        let launcher = launchers[0].pid;
        let (guests, monitors): (Vec<&Process>, Vec<&Process>) =
            all.iter().filter(|process| process.parent == launcher).partition(|child| child.slot().is_some());
        assert_eq!((guests.len(), monitors.len()), (1, 1), "one guest, one monitor: {guests:?} {monitors:?}");
        Keepers { launcher, monitor: monitors[0].pid, slot: guests[0].slot().unwrap() }
    }

    /// Sees that nothing of an ended sandbox is left but (perhaps) its record.
    fn assert_gone(&self, slot: u32) {
        self.run(&["ls"]);
        until("no process with its ids", second(), || in_slot(slot).is_empty());
        // The launcher takes them down after the last process has ended.
        until("its cgroups are gone", long(), || cgroups(slot).is_empty());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.home.path().to_str().unwrap()), "its mounts are gone: {mounts}");
        let loops = fs::read_dir("/sys/block").unwrap().flatten();
        let ours = loops
            .filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok())
            .find(|file| file.contains(self.home.path().to_str().unwrap()));
        assert_eq!(ours, None, "its loop devices are gone");
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let ids = String::from_utf8(self.run(&["ls", "-a", "-q"]).stdout).unwrap();
        let words: Vec<&str> = ["rm", "-f"].into_iter().chain(ids.lines()).collect();
        if words.len() > 2 {
            let output = self.run(&words);
            if !std::thread::panicking() {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let left: Vec<_> = fs::read_dir(self.home.path().join("sandboxes")).unwrap().collect();
                assert!(left.is_empty(), "{left:?}");
            }
        }
    }
}

/// The processes outside a sandbox that belong to it, and its number on this machine (see [`Process::slot`]).
struct Keepers {
    launcher: i32,
    monitor: i32,
    slot: u32,
}

/// The processes inside sandboxes that have this word in their command line.
fn marked(marker: &str) -> Vec<Process> {
    let mut found = processes();
    found.retain(|process| process.slot().is_some() && process.command.contains(marker));
    found
}

/// Polls until the condition holds; panics when the time is over.
fn until(what: &str, longest: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + longest;
    loop {
        let late = Instant::now() >= deadline;
        if condition() {
            return;
        }
        assert!(!late, "not within {longest:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A word that nothing else on this machine has in its command line.
fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    format!("marker-{}-{}-{time}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The users of a sandbox, of whom rootless sandboxes have one.
fn users() -> &'static [&'static str] {
    if not_promised_rootless("the same as root inside: there is no `--user root`") {
        &["user"]
    } else {
        &["user", "root"]
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
