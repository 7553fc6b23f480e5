//! Without root: the same walls as far as the kernel gives them to an ordinary user, and plain words about the rest.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use super::{Ended, belljar, finish, longest};

/// An ordinary user with a program, a home and a data directory, and nothing running for it at the end. Every test has
/// a user of its own, since the kernel counts processes by user.
struct Somebody {
    directory: tempfile::TempDir,
    uid: u32,
}

impl Somebody {
    fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests need root to become an ordinary user: run them as root, do not skip them"
        );
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let uid = 52_000 + std::process::id() % 1000 * 10 + NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let somebody = Self { directory, uid };
        // Not by ourselves: a process that another test starts meanwhile would have the copy open to be written, and nobody could run it.
        let copied = Command::new("cp").arg(belljar()).arg(somebody.path("belljar")).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(somebody.path("belljar"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(somebody.path("own")).unwrap();
        chown(somebody.path("own"), Some(uid), Some(uid)).unwrap();
        somebody
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("belljar"));
        command.args(words).uid(self.uid).gid(self.uid).current_dir(self.path("own")).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.path("own"));
        command.env("BELLJAR_HOME", self.path("own/data")).stdin(Stdio::null());
        command
    }

    fn belljar(&self, words: &[&str]) -> Ended {
        finish(&mut self.command(words))
    }

    fn ok(&self, words: &[&str]) -> String {
        self.belljar(words).success(words)
    }

    fn sh(&self, options: &[&str], script: &str) -> Ended {
        self.belljar(&[&["run"], options, &["--", "sh", "-c", script]].concat())
    }

    fn json(&self, words: &[&str]) -> Value {
        let (verb, rest) = words.split_first().unwrap();
        let ended = self.belljar(&[&[*verb, "--json"], rest].concat());
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {ended}"))
    }

    /// Every process of this user on the host.
    fn processes(&self) -> Vec<i32> {
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:\t"))?;
            let alive = !status.contains("\nState:\tZ");
            (alive && uid.split('\t').next()? == self.uid.to_string()).then_some(pid)
        });
        processes.collect()
    }

    /// Waits until these processes are gone.
    #[track_caller]
    fn assert_gone(&self, processes: &[i32]) {
        for pid in processes {
            let Ok(descriptor) = pidfd_open(Pid::from_raw(*pid).unwrap(), PidfdFlags::empty()) else {
                continue;
            };
            let mut waited = [PollFd::new(&descriptor, PollFlags::IN)];
            let patience = Timespec { tv_sec: longest().as_secs() as i64, tv_nsec: 0 };
            assert_eq!(poll(&mut waited, Some(&patience)), Ok(1), "process {pid} lives on");
        }
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        let listed = self.belljar(&["ls", "-a", "-q"]);
        let text = listed.text();
        let ids: Vec<&str> = text.split_whitespace().collect();
        if !ids.is_empty() {
            self.belljar(&[&["rm", "-f"], &ids[..]].concat());
        }
    }
}

#[test]
fn commands_run_and_end_as_with_root() {
    let somebody = Somebody::new();
    let object = somebody.json(&["run", "--", "id", "-u"]);
    assert_eq!((&object["termination"], &object["exit_code"]), (&"exited".into(), &0.into()), "{object}");
    assert_eq!(object["stdout"], "1000\n");
    assert_eq!(somebody.sh(&[], "exit 3").status.code(), Some(3));
    assert_eq!(somebody.sh(&[], "kill -9 $$").status.code(), Some(137));
    let object = somebody.json(&["run", "--timeout", "300ms", "--", "sleep", "600"]);
    assert_eq!(object["termination"], "timed_out");
    somebody.belljar(&["run", "--", "no-such-command"]).refused(127, &["no-such-command"]);
    assert_eq!(somebody.json(&["ls", "-a"])["sandboxes"], serde_json::json!([]));
    somebody.assert_gone(&somebody.processes());
}

#[test]
fn files_go_in_and_out() {
    let somebody = Somebody::new();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(somebody.path("own/in"), &bytes).unwrap();
    chown(somebody.path("own/in"), Some(somebody.uid), None).unwrap();
    somebody.ok(&["run", "--file", "in:in", "--out", "copy:out", "--", "cp", "in", "copy"]);
    assert!(fs::read(somebody.path("own/out")).unwrap() == bytes);
    let id = somebody.ok(&["create", "--quiet"]).trim().to_owned();
    somebody.ok(&["cp", "in", &format!("{id}:in")]);
    somebody.ok(&["cp", &format!("{id}:in"), "again"]);
    assert!(fs::read(somebody.path("own/again")).unwrap() == bytes);
}

#[test]
fn the_namespaces_hold() {
    let somebody = Somebody::new();
    let canary = somebody.path("own/canary");
    fs::write(&canary, "secret of the host").unwrap();
    fs::set_permissions(&canary, fs::Permissions::from_mode(0o644)).unwrap();
    let readable = finish(Command::new("cat").arg(&canary).uid(somebody.uid).gid(somebody.uid));
    assert_eq!(readable.text(), "secret of the host", "positive control: the user itself can read it");

    let canary = canary.display();
    let script = format!(
        "cat {canary} /proc/1/root{canary} /proc/self/root{canary} ../..{canary}; find / -name canary 2>/dev/null"
    );
    let ended = somebody.sh(&[], &script);
    assert!(!ended.text().contains("secret") && !ended.text().contains("canary"), "{ended}");

    let mut witness = Command::new("sleep").arg("86411").uid(somebody.uid).gid(somebody.uid).spawn().unwrap();
    let ended = somebody.sh(&[], "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1");
    assert!(!ended.text().contains("86411"), "a process of the host is seen: {ended}");
    assert!(witness.try_wait().unwrap().is_none(), "a process of the host was killed");
    witness.kill().unwrap();
    witness.wait().unwrap();

    let net =
        somebody.sh(&[], "grep -c : /proc/net/dev; cat /proc/net/route | wc -l; cat /proc/net/unix | wc -l");
    assert_eq!(net.success("net").lines().collect::<Vec<_>>()[..2], ["1", "1"], "loopback alone, no route");
    let walls = "grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t' ' '";
    let expected = "CapPrm: 0000000000000000\nCapEff: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n";
    let mut said: Vec<_> = somebody.sh(&[], walls).text().lines().map(str::to_owned).collect();
    let mut expected: Vec<_> = expected.lines().map(str::to_owned).collect();
    said.sort();
    expected.sort();
    assert_eq!(said, expected);
    for denied in [
        "unshare -U true",
        "mount -t tmpfs x /mnt",
        "touch /usr/x",
        "touch /etc/x",
        "chroot / true",
        "su -c true",
    ] {
        assert!(!somebody.sh(&[], denied).status.success(), "{denied}");
    }
    let env = somebody.command(&["run", "--", "env"]).env("SECRET_TOKEN", "s3cret").output().unwrap();
    assert!(env.status.success() && !String::from_utf8_lossy(&env.stdout).contains("s3cret"));
}

#[test]
fn disk_files_and_processes_are_bounded() {
    let somebody = Somebody::new();
    let ended = somebody.sh(
        &["--disk", "4m"],
        "head -c 20000000 /dev/zero > x; stat -c %s x; head -c 20000000 /dev/zero > /tmp/y",
    );
    assert!(ended.stderr.contains("No space left on device"), "{ended}");
    let size: u64 = ended.text().trim().parse().unwrap();
    assert!((2_000_000..=4 << 20).contains(&size), "{size}");
    let control = somebody.sh(&["--disk", "64m"], "head -c 20000000 /dev/zero > x; stat -c %s x");
    assert_eq!(control.success("control"), "20000000\n");

    let spawn = "i=0; while [ $i -lt 40 ]; do sleep 600 & i=$((i+1)); done; echo all";
    let ended = somebody.sh(&["--pids", "20"], spawn);
    assert!(!ended.text().contains("all") && ended.stderr.to_lowercase().contains("fork"), "{ended}");
    assert_eq!(somebody.sh(&["--pids", "100"], spawn).success("control"), "all\n");
    somebody.assert_gone(&somebody.processes());
}

/// Ignores what can be ignored, leaves its session, and has no parent of its own.
const DAEMON: &str = "(trap '' HUP INT TERM QUIT; setsid setsid sleep 86412 </dev/null >/dev/null 2>&1 &) ; \
    until grep -qs 86412 /proc/[0-9]*/cmdline; do :; done; echo up";

#[test]
fn daemons_end_with_their_sandbox() {
    let somebody = Somebody::new();
    assert_eq!(somebody.sh(&[], DAEMON).text(), "up\n");
    somebody.assert_gone(&somebody.processes());

    for end in [&["kill"][..], &["rm", "-f"]] {
        let id = somebody.ok(&["create", "--quiet"]).trim().to_owned();
        assert_eq!(somebody.ok(&["exec", &id, "--", "sh", "-c", DAEMON]), "up\n");
        let living = somebody.processes();
        assert!(living.len() > 2, "positive control: {living:?}");
        somebody.ok(&[end, &[&id]].concat());
        somebody.assert_gone(&living);
    }
}

#[test]
fn daemons_end_when_everyone_who_knew_them_was_killed() {
    let somebody = Somebody::new();
    let id = somebody.ok(&["create", "--quiet", "--ttl", "5s"]).trim().to_owned();
    assert_eq!(somebody.ok(&["exec", &id, "--", "sh", "-c", DAEMON]), "up\n");
    let living = somebody.processes();
    let programs = somebody.path("own/data/programs");
    let mut killed = 0;
    for pid in &living {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if words.starts_with(programs.as_os_str().as_encoded_bytes()) {
            killed += usize::from(kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).is_ok());
        }
    }
    assert!(killed > 0, "no launcher and no monitor was found among {living:?}");
    somebody.assert_gone(&living);
}

#[test]
fn what_is_lost_is_said_and_what_is_missing_is_refused() {
    let somebody = Somebody::new();
    let created = somebody.belljar(&["create"]);
    let id = created.success("create").trim().to_owned();
    let losses = somebody.json(&["inspect", &id])["sandbox"]["losses"].clone();
    let losses: Vec<_> = losses.as_array().unwrap().iter().map(|loss| loss.as_str().unwrap()).collect();
    for word in ["memory", "processor", "--user root"] {
        assert!(losses.iter().any(|loss| loss.contains(word)), "{word}: {losses:?}");
        assert!(created.stderr.contains(word), "{word}: {created}");
    }
    let text = somebody.ok(&["inspect", &id]);
    assert!(losses.iter().all(|loss| text.contains(loss)), "{text}");
    let capabilities = somebody.json(&["inspect", &id])["capabilities"].clone();
    assert!(
        !capabilities.as_array().unwrap().iter().any(|one| one == "root" || one == "limits"),
        "{capabilities}"
    );

    somebody.belljar(&["exec", "--user", "root", &id, "--", "true"]).refused(125, &["root", "hint: "]);
    somebody.belljar(&["run", "--user", "root", "--", "true"]).refused(125, &["root", "hint: "]);
    assert_eq!(somebody.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().len(), 1, "only the first");
}

#[test]
fn what_this_user_may_not_read_or_write_is_named() {
    let somebody = Somebody::new();
    fs::write(somebody.path("own/secret"), "x").unwrap();
    fs::set_permissions(somebody.path("own/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(somebody.path("own/closed")).unwrap();
    fs::set_permissions(somebody.path("own/closed"), fs::Permissions::from_mode(0o700)).unwrap();
    for file in ["secret", "closed"] {
        let ended = somebody.belljar(&["run", "--file", &format!("{file}:x"), "--", "true"]);
        ended.refused(125, &["--file", file, "permission denied", "hint: "]);
    }
    assert!(!Path::new(&somebody.path("own/data")).exists(), "something was made");

    let theirs = somebody.path("own/closed");
    let ended = somebody.belljar(&["run", "--home", theirs.to_str().unwrap(), "--", "true"]);
    ended.refused(125, &[theirs.to_str().unwrap(), "hint: "]);
    let above = somebody.path("data");
    let ended = somebody.belljar(&["run", "--home", above.to_str().unwrap(), "--", "true"]);
    ended.refused(125, &[above.to_str().unwrap(), "hint: "]);
    let ended = somebody.belljar(&["run", "--out", &format!("x:{}/x", theirs.display()), "--", "touch", "x"]);
    ended.refused(125, &["--out", "closed"]);
}

/// Without cgroups a process of ours keeps an execution together, and code with the same user id can kill it.
#[test]
fn a_command_that_kills_its_keeper_does_not_outlive_it() {
    let somebody = Somebody::new();
    let id = somebody.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    let script = "setsid sleep 1000 & sleep 1000 & kill -9 $PPID; sleep 1000";
    somebody.belljar(&["exec", "--timeout", "5s", &id, "--", "sh", "-c", script]);
    let left = somebody.belljar(&["exec", &id, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
    let said = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(!said.contains("sleep 1000"), "{said}");
    somebody.ok(&["rm", "-f", &id]);
}

#[test]
fn pausing_is_refused_with_a_plain_reason_and_not_declared() {
    let somebody = Somebody::new();
    let id = somebody.ok(&["create"]).trim().to_owned();
    let error = &somebody.json(&["pause", &id])["error"];
    assert_eq!(error["code"], "unsupported", "{error}");
    assert!(error["message"].as_str().unwrap().contains("without root"), "{error}");
    let inspected = somebody.json(&["inspect", &id]);
    let abilities = inspected["capabilities"].as_array().unwrap();
    assert!(!abilities.iter().any(|ability| ability == "pause"), "{abilities:?}");
    assert_eq!(inspected["sandbox"]["state"], "running");
    // Nothing was stopped.
    somebody.ok(&["exec", &id, "--", "true"]);
}
