//! With real control groups, so as root.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::detect::{Controller, Hierarchy, Version};
use super::tree::{Setting, Tree};
use super::*;

const LIMITS: Limits = Limits { memory: 64 << 20, pids: 16, cpu_millis: 500 };
/// A host id that stands for root inside a sandbox.
const GUEST_ID: u32 = 1_900_000;

/// Says whether tests that need root can run; fails where they must and cannot.
fn privileged() -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    let allowed = std::env::var_os("BELLJAR_ALLOW_UNPRIVILEGED_TESTS").is_some_and(|value| value == "1");
    assert!(allowed, "this test needs root; set BELLJAR_ALLOW_UNPRIVILEGED_TESTS=1 to skip it");
    println!("SKIPPED: this test needs root");
    false
}

/// Runs a test as the host is, and where that can be done also as if it had no version two.
fn on_each_layout(test: impl Fn(&Layout)) {
    if !privileged() {
        return;
    }
    let layout = Layout::detect().unwrap();
    test(&layout);
    if layout.kind() == Kind::Hybrid {
        test(&Layout::detect_without_v2().unwrap());
    }
}

/// A group that is gone after the test, whatever the test does.
struct Scratch(Group);

impl Scratch {
    fn slot() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        900_000 + std::process::id() % 100_000 * 100 + NEXT.fetch_add(1, Ordering::Relaxed)
    }

    fn new(layout: &Layout, limits: &Limits) -> Scratch {
        Scratch(Group::create(layout, Scratch::slot(), limits).unwrap())
    }

    fn with(&self, controller: Controller) -> Option<&Tree> {
        self.0.trees.iter().find(|tree| tree.has(controller))
    }

    fn enter_box(&self, child: &Child) {
        self.0.trees.iter().try_for_each(|tree| enter(&tree.executions(), child.pid)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let cleaned = self.0.kill().and_then(|()| self.0.remove());
        if !thread::panicking() {
            cleaned.unwrap();
        }
    }
}

/// A forked process that waits for [`Child::go`], then does nothing but `body`.
struct Child {
    pid: i32,
    start: io::PipeWriter,
}

impl Child {
    fn fork(body: impl FnOnce() -> i32) -> Child {
        let (gate, start) = io::pipe().unwrap();
        let writer = start.as_raw_fd();
        // SAFETY: the child only makes system calls and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            // SAFETY: closes the child's copy of a descriptor it does not use, and ends the child without running
            // the parent's exit handlers.
            unsafe {
                libc::close(writer);
                let mut byte = 0u8;
                if libc::read(gate.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                    libc::_exit(101);
                }
                libc::_exit(body());
            }
        }
        Child { pid, start }
    }

    /// A child in the box that leaves its session, doubles, and ignores what can be ignored.
    fn stubborn(scratch: &Scratch) -> Child {
        let (ready, report) = io::pipe().unwrap();
        let report_fd = report.as_raw_fd();
        let child = Child::fork(|| {
            // SAFETY: the one pointer is to a byte that lives as long as the program.
            unsafe {
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
                libc::setsid();
                libc::fork();
                libc::write(report_fd, b"!".as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        });
        scratch.enter_box(&child);
        child.go();
        for _ in 0..2 {
            assert_eq!(rustix::io::read(&ready, &mut [0u8; 1]), Ok(1));
        }
        child
    }

    fn go(&self) {
        assert_eq!(rustix::io::write(&self.start, b"!"), Ok(1));
    }

    fn wait(self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is valid for the call; the pid is an unreaped child of ours.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        status
    }

    fn exit_code(self) -> i32 {
        let status = self.wait();
        assert!(libc::WIFEXITED(status), "child ended with status {status:#x}");
        libc::WEXITSTATUS(status)
    }

    fn groups(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap()
    }
}

/// Touches `size` bytes of fresh memory.
fn touch(size: usize) -> i32 {
    // SAFETY: a new private mapping is written within its bounds.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return 100;
        }
        for page in (0..size).step_by(4096) {
            memory.cast::<u8>().add(page).write_volatile(1);
        }
    }
    0
}

fn settings_of(tree: &Tree, limits: &Limits) -> Vec<Setting> {
    if tree.is_v2() { v2::settings(tree, limits) } else { v1::settings(tree, limits) }
}

#[test]
fn limits_are_what_was_asked_for() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &LIMITS);
        for setting in scratch.0.trees.iter().flat_map(|tree| settings_of(tree, &LIMITS)) {
            let read = fs::read_to_string(&setting.path).unwrap();
            assert_eq!(read.trim(), setting.value, "{}", setting.path.display());
        }
        let Some(pids) = scratch.with(Controller::Pids) else { panic!("no pids controller") };
        assert_eq!(fs::read_to_string(pids.executions().join("pids.max")).unwrap(), "16\n");
        assert_eq!(fs::read_to_string(pids.top().join("pids.max")).unwrap(), "48\n");
    });
}

#[test]
fn the_settings_of_a_pure_v2_host() {
    let hierarchy = Hierarchy {
        mount: "/cg".into(),
        version: Version::Two,
        controllers: vec![Controller::Memory, Controller::Pids, Controller::Cpu],
        nsdelegate: true,
    };
    let tree = Tree::new(&hierarchy, 7);
    let enabled = [tree.shared(), tree.top(), tree.executions()].map(|group| {
        let (path, line) = v2::enabled_in(&tree, group).unwrap();
        format!("{} = {line}", path.display())
    });
    assert_eq!(
        enabled,
        [
            "/cg/belljar/cgroup.subtree_control = +memory +pids +cpu",
            "/cg/belljar/7/cgroup.subtree_control = +memory +pids +cpu",
            "/cg/belljar/7/box/cgroup.subtree_control = +pids",
        ]
    );
    let settings: Vec<_> = v2::settings(&tree, &LIMITS)
        .iter()
        .map(|setting| format!("{} = {}", setting.path.display(), setting.value))
        .collect();
    assert_eq!(
        settings,
        [
            "/cg/belljar/7/box/cgroup.max.descendants = 4096",
            "/cg/belljar/7/box/cgroup.max.depth = 1",
            "/cg/belljar/7/memory.max = 100663296",
            "/cg/belljar/7/memory.swap.max = 0",
            "/cg/belljar/7/box/memory.max = 67108864",
            "/cg/belljar/7/box/memory.swap.max = 0",
            "/cg/belljar/7/pids.max = 48",
            "/cg/belljar/7/box/pids.max = 16",
            "/cg/belljar/7/cpu.max = 70000 100000",
            "/cg/belljar/7/box/cpu.max = 50000 100000",
        ]
    );
}

#[test]
fn tiny_quotas_are_raised_to_the_least_the_kernel_takes() {
    assert_eq!(Limits { cpu_millis: 0, ..LIMITS }.cpu_quota_micros(), 1_000);
    assert_eq!(Limits { cpu_millis: 2_000, ..LIMITS }.cpu_quota_micros(), 200_000);
}

#[test]
fn forks_beyond_the_limit_fail() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &Limits { pids: 4, ..LIMITS });
        let child = Child::fork(|| {
            for count in 0..100 {
                // SAFETY: the grandchildren only wait to be killed.
                match unsafe { libc::fork() } {
                    0 => loop {
                        // SAFETY: takes no arguments.
                        unsafe { libc::pause() };
                    },
                    -1 => return count,
                    _ => {}
                }
            }
            100
        });
        scratch.enter_box(&child);
        child.go();
        assert_eq!(child.exit_code(), 3, "one process and three forks are four");
        let usage = scratch.0.probe().unwrap().read();
        assert_eq!(usage.pids_current, Some(3));
    });
}

#[test]
fn running_out_of_memory_kills_in_the_box_and_is_counted() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &Limits { memory: 16 << 20, ..LIMITS });
        let probe = scratch.0.probe().unwrap();
        assert_eq!(probe.read().oom_kills, Some(0));

        let guest = Child::fork(|| 0);
        scratch.0.enter_guest(guest.pid).unwrap();
        let greedy = Child::fork(|| touch(64 << 20));
        scratch.enter_box(&greedy);
        greedy.go();
        let status = greedy.wait();
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status:#x}");

        let usage = probe.read();
        assert_eq!(usage.oom_kills, Some(1));
        assert!(usage.memory_peak.unwrap() >= 15 << 20, "{usage:?}");
        assert!(usage.cpu_usec.unwrap() > 0, "{usage:?}");
        // Version two lets nobody set it back before Linux 6.12.
        if probe.reset_memory_peak() {
            assert!(probe.read().memory_peak.unwrap() < 15 << 20, "{:?}", probe.read());
        } else {
            assert_eq!(layout.kind(), Kind::V2);
        }
        guest.go();
        assert_eq!(guest.exit_code(), 0, "the guest outlives it");
    });
}

#[test]
fn kill_empties_and_remove_leaves_nothing() {
    on_each_layout(|layout| {
        for frozen in [false, true] {
            let scratch = Scratch::new(layout, &LIMITS);
            let children: Vec<_> = (0..3).map(|_| Child::stubborn(&scratch)).collect();
            assert!(scratch.0.is_populated().unwrap());
            let busy = Group::create(layout, scratch.0.slot, &LIMITS).unwrap_err();
            assert!(matches!(busy, CgroupError::SlotBusy { .. }), "{busy}");
            if frozen {
                scratch.0.freeze(true).unwrap();
            }

            scratch.0.kill().unwrap();
            assert!(!scratch.0.is_populated().unwrap());
            for child in children {
                assert_eq!(libc::WTERMSIG(child.wait()), libc::SIGKILL);
            }
            let found = Group::open_existing(layout, scratch.0.slot).unwrap();
            found.remove().unwrap();
            found.remove().unwrap();
            assert!(Group::open_existing(layout, scratch.0.slot).is_none());
        }
    });
}

/// The way of kernels and hosts without the switch, on whatever host this is.
#[test]
fn killing_one_by_one_empties_too() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &LIMITS);
        let children: Vec<_> = (0..3).map(|_| Child::stubborn(&scratch)).collect();
        let gone = patiently(KILL_PATIENCE, || {
            scratch.0.kill_each()?;
            Ok(!scratch.0.is_populated()?)
        });
        assert!(gone.unwrap());
        for child in children {
            assert_eq!(libc::WTERMSIG(child.wait()), libc::SIGKILL);
        }
    });
}

#[test]
fn a_frozen_group_stands_still_until_thawed() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &LIMITS);
        let child = Child::fork(|| 7);
        scratch.0.enter_guest(child.pid).unwrap();
        scratch.0.freeze(true).unwrap();
        child.go();
        assert!(scratch.0.is_frozen().unwrap());
        scratch.0.freeze(false).unwrap();
        assert_eq!(child.exit_code(), 7);
    });
}

/// Where version two is missing, one switch stops all executions and nothing else.
#[test]
fn the_switch_stops_executions_and_not_the_guest() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &LIMITS);
        let Some(switch) = scratch.0.freezer_switch().unwrap() else {
            assert_ne!(layout.kind(), Kind::V1, "version one has a switch");
            return;
        };
        let (guest, execution) = (Child::fork(|| 7), Child::fork(|| 8));
        scratch.0.enter_guest(guest.pid).unwrap();
        scratch.enter_box(&execution);
        switch.request(true);
        assert!(patiently(FREEZE_PATIENCE, || Ok(switch.is_frozen())).unwrap());
        execution.go();
        guest.go();
        assert_eq!(guest.exit_code(), 7, "the guest goes on");
        assert!(switch.is_frozen());
        switch.request(false);
        assert_eq!(execution.exit_code(), 8);

        // What stands still by it is killed all the same.
        let stubborn = Child::stubborn(&scratch);
        switch.request(true);
        assert!(patiently(FREEZE_PATIENCE, || Ok(switch.is_frozen())).unwrap());
        scratch.0.kill().unwrap();
        assert_eq!(libc::WTERMSIG(stubborn.wait()), libc::SIGKILL);
    });
}

#[test]
fn stale_groups_are_replaced_however_deep_they_are() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &LIMITS);
        let tree = scratch.with(Controller::Pids).unwrap();
        if tree.is_v2() {
            println!("SKIPPED: version two bounds the depth");
            return;
        }
        let mut here = open(&tree.executions()).unwrap();
        for _ in 0..300 {
            let name = "a-rather-long-name-for-a-control-group";
            rustix::fs::mkdirat(&here, name, rustix::fs::Mode::RWXU).unwrap();
            here = open_directory(std::os::fd::AsFd::as_fd(&here), name).unwrap();
        }
        Group::create(layout, scratch.0.slot, &LIMITS).unwrap();
        assert_eq!(
            fs::read_dir(tree.executions())
                .unwrap()
                .filter(|entry| entry.as_ref().unwrap().path().is_dir())
                .count(),
            0
        );
    });
}

#[test]
fn an_error_leaves_nothing_behind() {
    on_each_layout(|layout| {
        let slot = Scratch::slot();
        // No kernel takes this many processes as a limit.
        let error = Group::create(layout, slot, &Limits { pids: u32::MAX, ..LIMITS }).unwrap_err();
        assert!(matches!(error, CgroupError::Limit { .. }), "{error}");
        assert!(Group::open_existing(layout, slot).is_none());
    });
}

fn write_at(directory: RawFd, file: &std::ffi::CStr, value: &[u8]) -> bool {
    // SAFETY: the string and the value outlive the calls.
    unsafe {
        let file = libc::openat(directory, file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        file >= 0 && libc::write(file, value.as_ptr().cast(), value.len()) == value.len() as isize
    }
}

#[test]
fn the_guest_can_place_its_children_and_change_no_limit() {
    on_each_layout(|layout| {
        let scratch = Scratch::new(layout, &LIMITS);
        scratch.0.delegate(GUEST_ID, GUEST_ID).unwrap();
        let leaves = scratch.0.leaf_dirs().unwrap();
        let joins = scratch.0.join_dirs().unwrap();
        assert!(leaves.first().is_some_and(|leaf| leaf.v2) || layout.kind() == Kind::V1);
        let all: Vec<RawFd> = leaves
            .iter()
            .map(|leaf| leaf.fd.as_raw_fd())
            .chain(joins.iter().map(AsRawFd::as_raw_fd))
            .collect();

        let (finish, hold) = io::pipe().unwrap();
        let (report, done) = io::pipe().unwrap();
        let (finish_fd, hold_fd, done_fd) = (finish.as_raw_fd(), hold.as_raw_fd(), done.as_raw_fd());
        let guest = Child::fork(|| {
            // SAFETY: takes no pointers; the raw calls change only this process.
            let dropped = unsafe {
                libc::close(hold_fd);
                libc::syscall(libc::SYS_setresgid, GUEST_ID, GUEST_ID, GUEST_ID) == 0
                    && libc::syscall(libc::SYS_setresuid, GUEST_ID, GUEST_ID, GUEST_ID) == 0
            };
            if !dropped {
                return 1;
            }
            for leaf in &leaves {
                // SAFETY: the name is a C string.
                if unsafe { libc::mkdirat(leaf.fd.as_raw_fd(), c"x1".as_ptr(), 0o755) } != 0 {
                    return 2;
                }
                if !write_at(leaf.fd.as_raw_fd(), c"x1/cgroup.procs", b"0") {
                    return 3;
                }
            }
            for join in &joins {
                if !write_at(join.as_raw_fd(), c"tasks", b"0") {
                    return 4;
                }
            }
            let limits = [
                c"pids.max",
                c"memory.max",
                c"memory.limit_in_bytes",
                c"memory.memsw.limit_in_bytes",
                c"cpu.max",
                c"cpu.cfs_quota_us",
                c"cgroup.subtree_control",
                c"cgroup.max.descendants",
                c"../pids.max",
                c"../memory.limit_in_bytes",
                c"../cgroup.subtree_control",
                c"../guest/pids.max",
                c"../../cgroup.procs",
                c"../../../cgroup.procs",
            ];
            for directory in &all {
                for limit in limits {
                    if write_at(*directory, limit, b"0") {
                        return 5;
                    }
                }
                // SAFETY: the name is a C string.
                if unsafe { libc::mkdirat(*directory, c"../escape".as_ptr(), 0o755) } == 0 {
                    return 6;
                }
            }
            let mut byte = 0u8;
            // SAFETY: one byte is read and written through pointers to it.
            unsafe {
                libc::write(done_fd, (&raw const byte).cast(), 1);
                libc::read(finish_fd, (&raw mut byte).cast(), 1);
            }
            0
        });
        drop(done);
        scratch.0.enter_guest(guest.pid).unwrap();
        guest.go();
        if rustix::io::read(&report, &mut [0u8; 1]) == Ok(1) {
            let groups = guest.groups();
            let slot = scratch.0.slot;
            for line in groups.lines().filter(|line| line.contains("belljar")) {
                let leaf = line.starts_with("0:") || line.contains("pids");
                let place =
                    if leaf { format!("/belljar/{slot}/box/x1") } else { format!("/belljar/{slot}/box") };
                assert!(line.ends_with(&place), "{groups}");
            }
            assert_eq!(groups.matches("belljar").count(), scratch.0.trees.len(), "{groups}");
        }
        drop(hold);
        assert_eq!(
            guest.exit_code(),
            0,
            "1: setuid, 2: mkdir, 3: leaf, 4: join, 5: a limit, 6: a group beside"
        );
    });
}
