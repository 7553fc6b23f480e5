//! Without root: a sandbox of an ordinary user has the same door, and says where less is known.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::surroundings::belljar;
use crate::surroundings::processes::{Process, processes, send};
use crate::world::{Canary, HttpServer, OTHER, OWN_PRIVATE, SERVER, World};

/// An ordinary user in a world, with a program and a data directory of its own.
struct Somebody {
    world: World,
    uid: u32,
}

impl Somebody {
    fn new() -> Self {
        let world = World::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let uid = 63_000 + std::process::id() % 100 * 10 + NEXT.fetch_add(1, Ordering::Relaxed);
        let somebody = Self { world, uid };
        fs::set_permissions(somebody.world.home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Not by ourselves: a process that another test starts meanwhile would have the copy open to be written, and nobody could run it.
        let copied = Command::new("cp").arg(belljar()).arg(somebody.path("belljar")).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(somebody.path("belljar"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(somebody.path("own")).unwrap();
        chown(somebody.path("own"), Some(uid), Some(uid)).unwrap();
        somebody
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.home.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.path("belljar"));
        command.args(words).uid(self.uid).gid(self.uid).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.path("own"));
        command.env("BELLJAR_HOME", self.path("own/data")).current_dir(self.path("own"));
        command.output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[&[words[0], "--json"], &words[1..]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// The processes of this user's door that play a part.
    fn door(&self, part: &str) -> Option<Process> {
        let plays = |process: &Process| {
            process.uid == self.uid && process.command.split('\0').nth(1).is_some_and(|word| word == part)
        };
        processes().into_iter().find(plays)
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        let listed = String::from_utf8_lossy(&self.run(&["ls", "-aq"]).stdout).into_owned();
        let ids: Vec<&str> = listed.split_whitespace().collect();
        if !ids.is_empty() {
            self.run(&[&["rm", "-f"], &ids[..]].concat());
        }
        if let Some(supervisor) = self.door("door-supervisor") {
            send(supervisor.pid, rustix::process::Signal::KILL);
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("own/data/door.log")).unwrap_or_default();
            eprintln!("the door says:\n{log}");
        }
    }
}

/// Fetches each place given, and says what came of it.
const FETCH: &str = "import sys, urllib.request
for place in sys.argv[1:]:
    try: print(place, urllib.request.urlopen(f'http://{place}', timeout=10).read().decode().strip())
    except OSError as error: print(place, 'failed', error)";

#[test]
fn a_granted_host_is_reached_and_another_is_not() {
    let somebody = Somebody::new();
    let (server, own) =
        (HttpServer::start(&format!("{SERVER}:80")), HttpServer::start(&format!("{OWN_PRIVATE}:8080")));
    let canaries = [format!("{OTHER}:80"), format!("{OWN_PRIVATE}:2525"), "127.0.0.1:2626".to_owned()];
    let canaries = canaries.map(|address| Canary::start(&address));
    let id = somebody.json(&["create", "--allow", "server.test", "--allow", &format!("{OWN_PRIVATE}:8080")]);
    let id = id["sandbox_id"].as_str().unwrap_or_else(|| panic!("{id}")).to_owned();
    let own_place = format!("{OWN_PRIVATE}:8080/own");
    let places = [
        "server.test/granted",
        &own_place,
        "other.test/denied",
        &format!("{OTHER}/denied"),
        &format!("{OWN_PRIVATE}:2525/denied"),
        "local.test:2626/denied",
    ];
    let ran = somebody.json(&[&["exec", &id, "--", "python3", "-c", FETCH][..], &places].concat());
    let lines: Vec<&str> = ran["stdout"].as_str().unwrap().lines().collect();
    assert_eq!(lines.len(), places.len(), "{ran}");
    for (place, line) in places.iter().zip(&lines) {
        let reached = line.contains("served GET");
        assert_eq!(reached, !place.contains("denied"), "{place}: {ran}");
    }
    assert_eq!((server.asked().len(), own.asked().len()), (1, 1), "{:?} {:?}", server.asked(), own.asked());
    assert_eq!(canaries.map(|canary| canary.visits()), [0; 3], "{ran}");

    // Executions have no cgroups of their own here, so that they cannot be told apart; that is said, and nothing is guessed.
    let flows = somebody.json(&["egress", &id])["flows"].as_array().unwrap().clone();
    let verdict = |host: &str, verdict: &str| {
        flows.iter().any(|flow| flow["host"] == host && flow["verdict"] == verdict)
    };
    assert!(verdict("server.test", "allowed") && verdict(OWN_PRIVATE, "allowed"), "{flows:?}");
    assert!(verdict("other.test", "denied") && verdict(OTHER, "denied"), "{flows:?}");
    assert!(flows.iter().all(|flow| flow["exec"].is_null()), "{flows:?}");
    let losses = somebody.json(&["inspect", &id])["sandbox"]["losses"].to_string();
    assert!(losses.contains("which execution"), "{losses}");
}

#[test]
fn the_worker_has_what_an_ordinary_user_can_give_up_given_up() {
    let somebody = Somebody::new();
    let made = somebody.json(&["create", "--allow", "server.test"]);
    assert!(made["sandbox_id"].is_string(), "{made}");
    let worker = somebody.door("door-worker").expect("a worker");
    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid)).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    };
    assert_eq!(
        (field("NoNewPrivs:"), field("CapEff:"), field("CapPrm:")),
        ("1".into(), "0".repeat(16), "0".repeat(16))
    );
    // Nobody looks into it: not even its own user, who cannot be told from a sandbox's by the kernel.
    let environment = format!("/proc/{}/environ", worker.pid);
    let read = Command::new("cat").arg(&environment).uid(somebody.uid).gid(somebody.uid).output().unwrap();
    assert!(!read.status.success(), "{read:?}");
    // The control: its supervisor can be looked into.
    let supervisor = somebody.door("door-supervisor").expect("a supervisor").pid;
    let environment = format!("/proc/{supervisor}/environ");
    let read = Command::new("cat").arg(&environment).uid(somebody.uid).gid(somebody.uid).output().unwrap();
    assert!(read.status.success() && !read.stdout.is_empty(), "{read:?}");
}
