//! What sandboxes are for, through the built program and the real walls: ordinary work, files and output in and out,
//! wrong input, and life without root. Needs root, as the walls do; without it these tests fail instead of passing
//! unseen. An ordinary user can ask for what rootless sandboxes promise (see `surroundings`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod bad_input;
mod denied;
mod rootless;
#[path = "../surroundings/mod.rs"]
mod surroundings;
mod transfer;
mod work;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use surroundings::{belljar, is_rootless, lacks_rootless, not_promised_rootless, patience};

/// After this a program under test counts as hanging. No test waits for it to pass.
fn longest() -> Duration {
    patience(Duration::from_secs(300))
}

/// What the processes of Belljar may hold at their peak.
const MOST_MEMORY_KIB: u64 = 64 * 1024;

/// A data directory of its own, with everything in it removed at the end, and a place for files of the host.
struct Host {
    directory: tempfile::TempDir,
}

/// How a program ended, what it said, and how much memory it ever had.
struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
    peak_kib: u64,
}

impl Host {
    fn new() -> Self {
        is_rootless();
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// A path for a file of the host.
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file of the host, and tells its path.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        command.args(words).current_dir(self.directory.path());
        command.env("BELLJAR_HOME", self.home()).env_remove("BELLJAR_LOG").stdin(Stdio::null());
        command
    }

    fn belljar(&self, words: &[&str]) -> Ended {
        finish(&mut self.command(words))
    }

    /// Runs it, expects success, and tells what it said.
    fn ok(&self, words: &[&str]) -> String {
        self.belljar(words).success(words)
    }

    /// Runs it with `--json`, and tells the object, however it ended.
    fn json(&self, words: &[&str]) -> Value {
        let (verb, rest) = words.split_first().unwrap();
        let ended = self.belljar(&[&[*verb, "--json"], rest].concat());
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {ended}"))
    }

    /// Makes a sandbox that lives until the test ends.
    fn create(&self, options: &[&str]) -> String {
        self.ok(&[&["create", "--ttl", "1h", "--quiet"], options].concat()).trim().to_owned()
    }

    /// Runs a script of bash in a new sandbox, expects success, and tells what it said.
    fn bash(&self, options: &[&str], script: &str) -> String {
        let script = format!("set -euo pipefail\n{script}");
        self.ok(&[&["run", "--timeout", "4m"], options, &["--", "bash", "-c", &script]].concat())
    }

    /// The launchers, monitors and guests of this data directory, as process ids. A guest is known by its parent.
    fn processes(&self) -> Vec<i32> {
        let programs = self.home().join("programs");
        let mut parents = BTreeMap::new();
        let mut ours = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let parent = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse::<i32>().unwrap();
            parents.insert(pid, parent);
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if words.starts_with(programs.as_os_str().as_encoded_bytes()) {
                ours.push(pid);
            }
        }
        let below = |mut pid: i32| {
            while let Some(parent) = parents.get(&pid) {
                if ours.contains(&pid) {
                    return true;
                }
                pid = *parent;
            }
            false
        };
        parents.keys().copied().filter(|pid| below(*pid)).collect()
    }

    /// Nothing of this data directory is running, and none of its sandboxes is on record.
    fn assert_nothing_made(&self, about: &str) {
        // The last of them lets go of the sandbox's lock, which the program waits for, a moment before it is gone.
        let deadline = Instant::now() + longest();
        while !self.processes().is_empty() {
            assert!(Instant::now() < deadline, "{about}: processes were left: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
        let sandboxes = self.home().join("sandboxes");
        let left: Vec<_> =
            fs::read_dir(sandboxes).into_iter().flatten().flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "{about}: {left:?} was left");
        if self.home().join("version").exists() {
            assert_eq!(self.json(&["ls", "-a"])["sandboxes"], serde_json::json!([]), "{about}");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let listed = finish(&mut self.command(&["ls", "-a", "-q"]));
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let ids: Vec<&str> = text.split_whitespace().collect();
        if !ids.is_empty() {
            finish(&mut self.command(&[&["rm", "-f"], &ids[..]].concat()));
        }
    }
}

impl Ended {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[track_caller]
    fn success(&self, about: impl std::fmt::Debug) -> String {
        assert!(self.status.success(), "{about:?}: {self}");
        self.text()
    }

    /// Ended with this status and an error that has these words in it and a hint or an example beside.
    #[track_caller]
    fn refused(&self, status: i32, named: &[&str]) {
        assert_eq!(self.status.code(), Some(status), "{self}");
        let error = self.stderr.lines().find(|line| line.starts_with("error: "));
        assert!(error.is_some(), "no error is told: {self}");
        for word in named {
            assert!(self.stderr.contains(word), "{word:?} is not named: {self}");
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.stdout[..self.stdout.len().min(2000)];
        write!(
            formatter,
            "{}\nstdout: {}\nstderr: {}",
            self.status,
            String::from_utf8_lossy(shown),
            self.stderr
        )
    }
}

/// Runs a program to its end with everything that it says.
fn finish(command: &mut Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut said = Vec::new();
    let reader = std::thread::spawn(move || stdout.read_to_end(&mut said).map(|_| said).unwrap());
    let (status, stderr, peak_kib) = wait(child);
    Ended { status, stdout: reader.join().unwrap(), stderr, peak_kib }
}

/// Runs a program to its end with its standard output into `sha256sum`, and tells the sum.
fn finish_into_sum(command: &mut Command) -> (Ended, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let sum = std::thread::spawn(move || sum(stdout));
    let (status, stderr, peak_kib) = wait(child);
    (Ended { status, stdout: Vec::new(), stderr, peak_kib }, sum.join().unwrap())
}

/// Waits for a child and kills it if it hangs. Its peak memory is looked at while it runs: what the kernel reports
/// after the end counts the test's own memory, from before exec, as the child's.
fn wait(mut child: Child) -> (ExitStatus, String, u64) {
    let mut stderr = child.stderr.take().unwrap();
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    let pid = Pid::from_child(&child);
    let status_file = format!("/proc/{}/status", child.id());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait().unwrap()));
    let (started, mut peak) = (std::time::Instant::now(), 0);
    let status = loop {
        match receive.recv_timeout(std::time::Duration::from_millis(5)) {
            Ok(status) => break Some(status),
            Err(_) if started.elapsed() > longest() => break None,
            Err(_) => peak = peak.max(memory_peak(&status_file)),
        }
    };
    if status.is_none() {
        let _ = kill_process(pid, Signal::KILL);
    }
    let stderr = errors.join().unwrap();
    (status.unwrap_or_else(|| panic!("it hangs: {stderr}")), stderr, peak)
}

/// The most memory, in KiB, that the process had so far; 0 when it has ended.
fn memory_peak(status_file: &str) -> u64 {
    let status = std::fs::read_to_string(status_file).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// The SHA-256 of all that can be read from there.
fn sum(from: impl Into<Stdio>) -> String {
    let output = Command::new("sha256sum").stdin(from).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn sum_of(path: &Path) -> String {
    sum(fs::File::open(path).unwrap())
}

/// Writes bytes that do not compress and do not repeat, the same for the same length.
fn write_noise(mut to: impl Write, length: u64) {
    let (mut state, mut left) = (0x9e37_79b9_7f4a_7c15_u64 ^ length, length);
    let mut piece = vec![0_u8; 1 << 16];
    while left > 0 {
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let count = left.min(piece.len() as u64) as usize;
        to.write_all(&piece[..count]).unwrap();
        left -= count as u64;
    }
}

/// Runs a program of the host that a test needs, and fails the test if it cannot.
fn tool(command: &mut Command) -> String {
    let name = command.get_program().to_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("this test needs {name:?} on the host: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
