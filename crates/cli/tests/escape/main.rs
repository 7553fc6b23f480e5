//! The escape suite: hostile code against every wall, with proof that each attack works where its walls are missing, and
//! that each wall is missed when it is gone.
//!
//! `cargo test -p belljar --test escape -- FS SY-io-uring` tries the attacks whose names begin so. Needs root; as an
//! ordinary user with `BELLJAR_ESCAPE_ROOTLESS=1` it holds the jail to what it promises there. `BELLJAR_TEST_BINARY` and
//! `BELLJAR_TEST_ABLATED` name programs built elsewhere; with `BELLJAR_ESCAPE_ABLATION=0` nothing is shown by taking
//! walls down, and the suite says so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a suite that cannot go on should panic")]

mod attack;
mod canary;
mod classes;
mod door;
mod hostile;
mod matrix;
mod possess;
mod promises;
#[path = "../surroundings/mod.rs"]
mod surroundings;
mod sweep;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Instant;

use belljar_core::Wall;
use serde_json::json;

use crate::attack::{Attack, Control, Outcome, Ring};
use crate::canary::{Field, Programs};
use crate::matrix::Matrix;
use crate::promises::{Promise, Promises};
use crate::sweep::{State, sweep};

/// Attacks that are tried at the same time, each in a world of its own.
const WORKERS: usize = 2;

fn main() -> ExitCode {
    // The same program plays other parts: the first process of a sandbox that has turned hostile, and a launcher's.
    let mut words = std::env::args();
    let name = words.next().unwrap_or_default();
    if name == "belljar-guest" {
        return hostile::guest();
    }
    let words: Vec<String> = words.collect();
    if words.first().is_some_and(|word| word == hostile::LAUNCHER) {
        return hostile::launcher(&words[1..]);
    }
    if words.iter().any(|word| word == "--list") {
        // For tools that ask every test program for its tests.
        println!("escape: test\n\n1 test, 0 benchmarks");
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    match suite(&chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("escape suite: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn suite(chosen: &[&str]) -> Result<(), String> {
    let begun = Instant::now();
    let root = rustix::process::geteuid().is_root();
    let may = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
    if !root && !may("BELLJAR_ESCAPE_ROOTLESS") && !may("BELLJAR_TEST_ROOTLESS") {
        if may("BELLJAR_ALLOW_UNPRIVILEGED_TESTS") {
            println!("SKIPPED: the escape suite needs root, or BELLJAR_ESCAPE_ROOTLESS=1 to be held to less");
            return Ok(());
        }
        return Err("it needs root: run it with sudo -E, or set BELLJAR_ESCAPE_ROOTLESS=1".into());
    }
    let provider = if root { "jail" } else { "jail-rootless" };
    let attacks = classes::all();
    let ids: Vec<&str> = attacks.iter().map(|attack| attack.id).collect();
    for (index, id) in ids.iter().enumerate() {
        if ids[..index].contains(id) {
            return Err(format!("two attacks are called {id}"));
        }
    }
    let text = include_str!("promises.toml");
    let promises = Promises::read(text, provider)?;
    let local = Promises::read(text, "local")?;
    for promises in [&promises, &local] {
        let strangers = promises.strangers(&ids);
        if !strangers.is_empty() {
            return Err(format!("promises.toml names what is no attack: {strangers:?}"));
        }
    }
    let ablation = std::env::var_os("BELLJAR_ESCAPE_ABLATION").is_none_or(|value| value != "0");
    if !ablation {
        println!("NOT SHOWN: no wall is taken down in this run (BELLJAR_ESCAPE_ABLATION=0)");
    }
    let programs = programs(ablation)?;
    released_programs_keep_their_walls(&programs)?;

    let attacks: Vec<Attack> = attacks
        .into_iter()
        .filter(|attack| chosen.is_empty() || chosen.iter().any(|word| attack.id.starts_with(word)))
        .collect();
    if attacks.is_empty() {
        return Err(format!("no attack begins with any of {chosen:?}"));
    }
    let total = attacks.len();
    println!("{total} attacks on the provider {provider}");
    let trial = Trial {
        ablation,
        promises,
        local,
        queue: Mutex::new(attacks.into()),
        matrix: Mutex::default(),
        reports: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(total) {
            scope.spawn(|| trial.work(&programs));
        }
    });
    trial.conclude(chosen.is_empty(), provider, begun)
}

struct Trial {
    ablation: bool,
    promises: Promises,
    local: Promises,
    queue: Mutex<VecDeque<Attack>>,
    matrix: Mutex<Matrix>,
    reports: Mutex<Vec<Report>>,
}

/// What came of one attack.
struct Report {
    id: &'static str,
    tries: &'static str,
    verdict: &'static str,
    control: String,
    problems: Vec<String>,
}

impl Trial {
    fn work(&self, programs: &Programs) {
        let field = Field::new(programs);
        // The first sandbox of a data directory prepares it, for each of the two programs.
        let builds: &[&[Wall]] = if self.ablation { &[&[], &[Wall::TimeOut]] } else { &[&[]] };
        for down in builds {
            let ring = Ring::new(&field, down);
            let _ = ring.run(&["run", "--", "true"]);
            let _ = hostile::run_patched(&ring, &json!({}), &["--", "true"]);
            let _ = ring.run(&[&["run"], classes::NETWORK, &["--", "true"]].concat());
            tidy(&ring);
        }
        loop {
            let Some(attack) = self.queue.lock().unwrap().pop_front() else { return };
            let begun = Instant::now();
            let report = self.judge(&attack, &field);
            let shown = if report.problems.is_empty() { "ok  " } else { "FAIL" };
            let took = begun.elapsed().as_millis();
            println!("{shown} {:<28} {:<13} {} [{took} ms]", report.id, report.verdict, report.control);
            for problem in &report.problems {
                println!("     {}: {problem}", report.id);
            }
            self.reports.lock().unwrap().push(report);
        }
    }

    /// Tries an attack against everything, then without what stops it.
    fn judge(&self, attack: &Attack, field: &Field) -> Report {
        let mut report = Report {
            id: attack.id,
            tries: attack.tries,
            verdict: "",
            control: String::new(),
            problems: Vec::new(),
        };
        let promise = self.promises.of(attack.id);
        let rootless = !rustix::process::geteuid().is_root();
        let untried = match promise {
            Some(Promise::NotApplicable(why)) => Some(why.clone()),
            _ if rootless && attack.is_by_root() => Some("there is no root inside".to_owned()),
            _ => None,
        };
        if let Some(why) = untried {
            report.verdict = "not tried";
            report.control = why;
            return report;
        }
        let outcome = attempt(attack, field, &[], Mode::Plain, &mut report.problems);
        report.verdict = match (&outcome, promise) {
            (Outcome::Stopped(_), Some(Promise::Stopped)) => "stopped",
            (Outcome::Stopped(_), Some(Promise::NotPromised(_))) => "stopped, not promised",
            (Outcome::Won(_), Some(Promise::NotPromised(_))) => "not promised",
            (Outcome::Won(how), _) => {
                report.problems.push(format!("ESCAPE: {} ({how})", attack.tries));
                "ESCAPED"
            }
            (Outcome::Broken(how), _) => {
                report.problems.push(format!("it could not be tried: {how}"));
                "broken"
            }
            (_, _) => {
                report.problems.push("nothing is promised about it in promises.toml".to_owned());
                "unknown"
            }
        };
        report.control = self.control(attack, field, &mut report.problems);
        report
    }

    fn control(&self, attack: &Attack, field: &Field, problems: &mut Vec<String>) -> String {
        let expect = |outcome: Outcome, problems: &mut Vec<String>, how: &str| match outcome {
            Outcome::Won(_) => format!("works {how}"),
            Outcome::Stopped(why) | Outcome::Broken(why) => {
                problems.push(format!("INERT: it does not work {how} either: {why}"));
                format!("inert {how}")
            }
        };
        match &attack.control {
            Control::Moot(why) => {
                for wall in attack.walls {
                    self.matrix.lock().unwrap().row(*wall).moot.push((attack.id, *why));
                }
                format!("moot: {why}")
            }
            Control::Local => {
                if !matches!(self.local.of(attack.id), Some(Promise::NotPromised(_))) {
                    problems.push("it works with the local provider, which promises otherwise".to_owned());
                }
                let outcome = attempt(attack, field, &[], Mode::Local, problems);
                expect(outcome, problems, "without a sandbox")
            }
            Control::Sabotage => {
                let outcome = attempt(attack, field, &[], Mode::Sabotage, problems);
                expect(outcome, problems, "when it is let")
            }
            Control::Naive(attempt) => {
                let ring = Ring::new(field, &[]);
                let outcome = attempt(&ring);
                let outcome = field.canaries.touched().map_or(outcome, Outcome::Won);
                tidy(&ring);
                expect(outcome, problems, "on a program that trusts")
            }
            Control::WallsDown if !self.ablation => "not shown".to_owned(),
            Control::WallsDown => self.ablate(attack, field, problems),
        }
    }

    /// Takes down all walls that stop it, and then all but one.
    fn ablate(&self, attack: &Attack, field: &Field, problems: &mut Vec<String>) -> String {
        let names = |walls: &[Wall]| walls.iter().map(|wall| wall.name()).collect::<Vec<_>>().join(", ");
        let down = |kept: Option<Wall>| -> Vec<Wall> {
            attack.walls.iter().chain(attack.also).copied().filter(|wall| Some(*wall) != kept).collect()
        };
        let without_all = attempt(attack, field, &down(None), Mode::Plain, problems);
        if let Outcome::Stopped(why) | Outcome::Broken(why) = without_all {
            problems.push(format!("INERT: it does not work without {} either: {why}", names(attack.walls)));
            for wall in attack.walls {
                self.matrix.lock().unwrap().row(*wall).missed.push((attack.id, why.clone()));
            }
            return format!("inert without {}", names(attack.walls));
        }
        for wall in attack.walls {
            let alone = match attack.walls {
                [_] => Outcome::Stopped(String::new()),
                _ => attempt(attack, field, &down(Some(*wall)), Mode::Plain, problems),
            };
            let mut matrix = self.matrix.lock().unwrap();
            match alone {
                Outcome::Stopped(_) => matrix.row(*wall).noticed.push(attack.id),
                Outcome::Won(how) | Outcome::Broken(how) => {
                    problems.push(format!("{wall} alone does not stop it: {how}"));
                    matrix.row(*wall).missed.push((attack.id, how));
                }
            }
        }
        format!("works without {}", names(attack.walls))
    }

    fn conclude(self, everything: bool, provider: &str, begun: Instant) -> Result<(), String> {
        let matrix = self.matrix.into_inner().unwrap();
        let mut reports = self.reports.into_inner().unwrap();
        reports.sort_by_key(|report| report.id);
        let failed = reports.iter().filter(|report| !report.problems.is_empty()).count();
        let unnoticed = if everything && self.ablation { matrix.unnoticed() } else { Vec::new() };
        let mut text = String::new();
        if self.ablation {
            text = matrix.text();
            println!("\n{text}");
        }
        let directory = results();
        let listed: Vec<_> = reports
            .iter()
            .map(|report| {
                json!({"id": report.id, "tries": report.tries, "verdict": report.verdict,
                    "control": report.control, "problems": report.problems})
            })
            .collect();
        let object = json!({"provider": provider, "attacks": listed, "walls": matrix.json()});
        let written = std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(directory.join("matrix.txt"), &text))
            .and_then(|()| std::fs::write(directory.join("matrix.json"), format!("{object:#}\n")));
        match written {
            Ok(()) => println!("written to {}", directory.display()),
            Err(error) => println!("the results could not be written to {}: {error}", directory.display()),
        }
        let stopped = reports.iter().filter(|report| report.verdict.starts_with("stopped")).count();
        let moot = reports.iter().filter(|report| report.control.starts_with("moot")).count();
        let inert = reports.iter().filter(|report| report.control.starts_with("inert")).count();
        let escaped = reports.iter().filter(|report| report.verdict == "ESCAPED").count();
        println!(
            "{} attacks: {stopped} stopped, {escaped} escapes, {inert} inert, {moot} moot, {failed} with problems; \
             {} walls, {} unnoticed; {} s",
            reports.len(),
            Wall::ALL.len(),
            unnoticed.len(),
            begun.elapsed().as_secs()
        );
        if !unnoticed.is_empty() {
            let names: Vec<&str> = unnoticed.iter().map(|wall| wall.name()).collect();
            return Err(format!("nobody notices when these walls are missing: {}", names.join(", ")));
        }
        if failed > 0 { Err(format!("{failed} attacks with problems")) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Local,
    Sabotage,
}

/// Tries an attack once, ends what it left, and sees whether the host is as before.
fn attempt(attack: &Attack, field: &Field, down: &[Wall], mode: Mode, problems: &mut Vec<String>) -> Outcome {
    let before = State::of(&field.homes());
    let mut ring = Ring::new(field, down);
    (ring.local, ring.sabotage) = (mode == Mode::Local, mode == Mode::Sabotage);
    let outcome = attack.attempt(&ring);
    tidy(&ring);
    let sandboxes = ring.sandboxes.borrow();
    // Where a wall is down, what it would have kept away may be there; the next attempt starts from what is then.
    if let (Err(left), true) = (sweep(&before, &field.homes(), &sandboxes), down.is_empty()) {
        problems.push(format!("the host is not as before: {left}"));
    }
    outcome
}

/// Ends and removes what an attempt left.
fn tidy(ring: &Ring<'_>) {
    for place in ring.field.homes() {
        let home = place.to_string_lossy();
        let listed = ring.run(&["ls", "--home", &home, "-a", "-q"]).text();
        let words = ["rm", "--home", &home, "-f"].into_iter().chain(listed.split_whitespace());
        let words: Vec<&str> = words.collect();
        if words.len() > 4 {
            ring.run(&words);
        }
        // Each attempt has a door of its own: it knows which walls are down.
        door::close(&place);
    }
    let _ = std::fs::remove_dir_all(&ring.scratch);
}

/// The two builds: given by name, or built now.
fn programs(ablation: bool) -> Result<Programs, String> {
    let normal = surroundings::belljar();
    if !ablation {
        return Ok(Programs { normal, ablated: PathBuf::from("/nonexistent") });
    }
    let begun = Instant::now();
    let ablated = surroundings::ablated()?;
    println!("the build whose walls can be taken down: {} s", begun.elapsed().as_secs());
    Ok(Programs { normal, ablated })
}

fn results() -> PathBuf {
    std::env::var_os("BELLJAR_ESCAPE_RESULTS")
        .map_or_else(|| surroundings::target_directory().join("escape"), PathBuf::from)
}

/// A build for use does not know of walls that can be taken down: not the variable, and not by another way.
fn released_programs_keep_their_walls(programs: &Programs) -> Result<(), String> {
    let holds = |path: &Path| -> Result<bool, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let variable: &[u8] = b"BELLJAR_ABLATE";
        Ok(bytes.windows(variable.len()).any(|window| window == variable))
    };
    if holds(&programs.normal)? {
        return Err(format!(
            "{} can have its walls taken down: it is no build for use",
            programs.normal.display()
        ));
    }
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut command = Command::new(&programs.normal);
    command.env("BELLJAR_HOME", home.path()).env("BELLJAR_ABLATE", "seccomp,no-such-wall");
    command.args([
        "run",
        "--",
        "python3",
        "-c",
        "import ctypes; print(ctypes.CDLL(None).syscall(425, 1, 0))",
    ]);
    let ended = attack::finish(&mut command);
    if ended.text().trim() != "-1" {
        return Err(format!("the variable made a difference to a build for use: {ended:?}"));
    }
    Ok(())
}
