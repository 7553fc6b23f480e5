//! What takes real root to try: becoming another user, and cgroups. Elsewhere these tests say that they did not run.

#![allow(clippy::unwrap_used, reason = "a test that fails has to fail loudly")]

mod harness;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_core::UserName;
use belljar_core::wire::{Account, Event, FileOperation, Init, KillReason, LeafDir, PROTOCOL, Request};
use harness::{Guest, argv, init, path, shell};

const USER: u32 = 1000;

/// CAP_CHOWN and CAP_DAC_OVERRIDE.
const ROOT_KEEPS: u64 = 0b11;

/// Whether to go on; without root only if whoever runs the tests said that they may be skipped.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let allowed = std::env::var_os("BELLJAR_ALLOW_UNPRIVILEGED_TESTS").is_some_and(|value| value == "1");
        assert!(allowed, "this test needs root; BELLJAR_ALLOW_UNPRIVILEGED_TESTS=1 lets it be skipped");
        eprintln!("SKIPPED: this test needs root");
    }
    root
}

fn begin(change: impl FnOnce(&mut Init)) -> Guest {
    begin_below(&[], change)
}

/// A guest that is the first process of a namespace.
const AS_FIRST: [&str; 6] = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"];

fn begin_below(starter: &[&str], change: impl FnOnce(&mut Init)) -> Guest {
    let mut guest = Guest::below(starter);
    let mut hello = init(guest.home.path().to_str().unwrap());
    let account = |uid, capabilities| Account { uid, gid: uid, capabilities, ..hello.user.clone() };
    (hello.root, hello.user) = (Some(account(0, ROOT_KEEPS)), account(USER, 0));
    change(&mut hello);
    std::os::unix::fs::chown(guest.home.path(), Some(USER), Some(USER)).unwrap();
    guest.send(0, &Request::Init(Box::new(hello)));
    assert_eq!(guest.event(0), Event::Ready { protocol: PROTOCOL });
    guest
}

#[test]
fn a_user_has_no_capability_and_root_a_few() {
    if !is_root() {
        return;
    }
    let mut guest = begin(|_| {});
    let status = guest.run(argv(&["cat", "/proc/self/status"])).text();
    let expected = ["Uid:\t1000\t1000\t1000\t1000", "Gid:\t1000\t1000\t1000\t1000", "Groups:\t \n"];
    let none =
        ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|set| format!("{set}:\t0000000000000000"));
    for field in expected.into_iter().chain(none.iter().map(String::as_str)) {
        assert!(status.contains(field), "{field} not in {status}");
    }
    let mut request = argv(&["cat", "/proc/self/status"]);
    request.user = UserName::Root;
    let status = guest.run(request).text();
    for field in ["Uid:\t0\t0\t0\t0", "CapEff:\t0000000000000003", "CapBnd:\t0000000000000003"] {
        assert!(status.contains(field), "{field} not in {status}");
    }
}

#[test]
fn a_file_operation_can_do_no_more_than_its_user() {
    if !is_root() {
        return;
    }
    let mut guest = begin(|_| {});
    let secret = guest.home.path().join("secret");
    fs::write(&secret, "of root").unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let refused = guest.file(FileOperation::Read { path: path("secret") });
    assert_eq!(refused.failure().code, belljar_core::ErrorCode::PermissionDenied);
    assert_eq!(
        guest.file_with(FileOperation::Write { path: path("own"), mode: 0o600 }, b"x").events,
        [Event::Done]
    );
    let own = std::os::unix::fs::MetadataExt::uid(&guest.home.path().join("own").metadata().unwrap());
    assert_eq!(own, USER);
    let mut terminal = harness::on_terminal("test -w $(tty) && echo mine", 24, 80);
    terminal.timeout_ms = 10_000;
    assert!(guest.run(terminal).text().contains("mine"));
}

/// A descriptor that the guest inherits, out of the way of the control socket's number.
fn inheritable(directory: &Path) -> OwnedFd {
    let fd = rustix::io::fcntl_dupfd_cloexec(fs::File::open(directory).unwrap(), 50).unwrap();
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
    fd
}

/// A cgroup of this test's own, removed with everything below it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(hierarchy: &str, name: &str) -> Option<Self> {
        let directory = Path::new(hierarchy).join(format!("belljar-test-{name}-{}", std::process::id()));
        if !Path::new(hierarchy).join("cgroup.procs").exists() || fs::create_dir(&directory).is_err() {
            eprintln!("SKIPPED: no cgroup can be made below {hierarchy}");
            return None;
        }
        Some(Self(directory))
    }

    fn open(&self) -> OwnedFd {
        inheritable(&self.0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.0).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(&self.0);
    }
}

fn v2() -> &'static str {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        "/sys/fs/cgroup"
    } else {
        "/sys/fs/cgroup/unified"
    }
}

fn in_cgroups(hierarchy: &str, is_v2: bool, join: &str, name: &str) {
    if !is_root() {
        return;
    }
    let Some(leaves) = Cgroup::new(hierarchy, name) else { return };
    let joined = Cgroup::new(join, name);
    let (leaf_fd, join_fd) = (leaves.open(), joined.as_ref().map(Cgroup::open));
    // In a namespace of its own, so that process numbers there are not those out here.
    let mut guest = begin_below(&AS_FIRST, |hello| {
        hello.leaf_dirs = vec![LeafDir { fd: leaf_fd.as_raw_fd(), v2: is_v2 }];
        hello.join_dirs = join_fd.iter().map(AsRawFd::as_raw_fd).collect();
    });
    let inside = guest.run(argv(&["cat", "/proc/self/cgroup"]));
    assert!(
        inside.text().contains(&format!("{}/e1", leaves.0.file_name().unwrap().to_str().unwrap())),
        "{inside:?}"
    );
    assert_eq!(inside.exit().code, Some(0));
    if let Some(joined) = &joined {
        assert!(inside.text().contains(joined.0.file_name().unwrap().to_str().unwrap()), "{inside:?}");
    }

    // Whoever sees its packets can tell whose they are before it can send any.
    let id = guest.spawn(shell("sleep 1000"));
    if is_v2 {
        let told = guest.event(id);
        let leaf = fs::metadata(leaves.0.join(format!("e{id}"))).unwrap();
        assert_eq!(told, Event::Leaf { cgroup: leaf.ino() });
    }
    guest.started(id);
    guest.send(id, &Request::Kill);
    guest.finish(id);

    let mut request = shell("setsid sh -c '(sleep 1000 & echo $!); exit 0' & wait; sleep 1000");
    request.timeout_ms = 1500;
    let id = guest.spawn(request);
    let daemon: u32 = guest.read_until(id, "\n").trim().parse().unwrap();
    let exit = guest.finish(id).exit();
    assert_eq!(exit.killed, Some(KillReason::TimedOut));
    assert!(!is_v2 || exit.cpu_us.is_some_and(|cpu| cpu > 0));
    let looked = guest.run(shell(&format!("test -e /proc/{daemon} && echo lives")));
    assert_eq!(looked.text(), "", "the daemon outlived the time-out");

    // Ready only once there is a `sleep`: until then its process has the shell's own handler, which would swallow the signal.
    let script =
        "trap 'exit 9' TERM; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo ready; wait";
    let id = guest.spawn(shell(script));
    guest.read_until(id, "ready");
    guest.send(id, &Request::Signal { signal: libc::SIGTERM });
    assert_eq!(guest.finish(id).exit().code, Some(9));
    // The guest tries again to remove a leaf whenever a child is reaped; only the newest may still be there, and the
    // one for file operations.
    let left = || {
        fs::read_dir(&leaves.0)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir() && entry.file_name() != "files")
            .count()
    };
    let settled = (0..100).any(|_| guest.run(argv(&["true"])).exit.is_some() && left() <= 1);
    assert!(settled, "{} leaves are left", left());
    drop(guest);
}

#[test]
fn an_execution_has_a_cgroup_of_its_own() {
    in_cgroups(v2(), true, "/sys/fs/cgroup/freezer", "v2");
}

#[test]
fn an_execution_has_a_cgroup_of_its_own_in_the_old_hierarchy() {
    in_cgroups("/sys/fs/cgroup/pids", false, "/sys/fs/cgroup/freezer", "v1");
}

#[test]
fn as_the_first_process_it_reaps_every_orphan_and_takes_everything_with_it() {
    if !is_root() {
        return;
    }
    let mut guest = begin_below(&AS_FIRST, |_| {});
    let outcome = guest.run(shell("(sh -c 'exit 3' &); kill -SEGV 1; kill -KILL 1; echo $PPID"));
    assert_eq!(outcome.exit().code, Some(0));
    // A look may come in the moment between an end and its reaping; what nobody reaps is there at every look.
    let mut zombies = || guest.run(shell("grep -l '^State:.Z' /proc/[0-9]*/status")).text();
    let last = (0..100).map(|_| zombies()).find(String::is_empty);
    assert!(last.is_some(), "never reaped: {}", zombies());
    let id = guest.spawn(shell("setsid sleep 1000 >/dev/null & cat /proc/1/comm"));
    assert_eq!(guest.read_until(id, "\n"), "belljar-guest\n");
    guest.finish(id);
    drop(guest);
}

#[test]
fn a_child_that_cannot_enter_its_cgroup_does_not_run() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tasks"), "").unwrap();
    let fd = inheritable(directory.path());
    let mut guest = begin(|hello| hello.leaf_dirs = vec![LeafDir { fd: fd.as_raw_fd(), v2: true }]);
    let refused = guest.run(argv(&["echo", "ran"]));
    assert!(refused.failure().message.contains("cgroup"), "{refused:?}");
    assert!(!directory.path().join("e1").exists());
}
