//! On this machine, as root.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::probe::in_child_within;
use super::*;
use crate::cgroup::Layout;

/// Says whether tests that need root can run; fails where they must and cannot.
fn privileged() -> bool {
    if is_root() {
        return true;
    }
    let allowed = std::env::var_os("BELLJAR_ALLOW_UNPRIVILEGED_TESTS").is_some_and(|value| value == "1");
    assert!(allowed, "this test needs root; set BELLJAR_ALLOW_UNPRIVILEGED_TESTS=1 to skip it");
    println!("SKIPPED: this test needs root");
    false
}

/// What a doctor could leave behind in its own process: mounts, descriptors, children.
fn surroundings() -> (String, Vec<String>) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut open: Vec<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    open.sort();
    (mounts, open)
}

/// Loop devices whose image is one of a doctor.
fn loop_devices() -> Vec<String> {
    fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok())
        .filter(|path| path.contains("belljar-doctor"))
        .collect()
}

/// Examines in a process of one thread, to which every orphan would fall, and checks there that nothing is left.
fn examine_alone(identity: impl FnOnce()) -> Vec<Check> {
    let answer = in_child_within(Duration::from_secs(60), || {
        // SAFETY: plain system calls on numbers.
        unsafe {
            // Mounts of tests beside this one are not its own.
            assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        }
        identity();
        let before = surroundings();
        let checks = examine();
        assert_eq!(surroundings(), before);
        // SAFETY: plain system call on numbers.
        let child = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!(child, -1, "no child is left, alive or dead");
        let slots = Layout::detect().unwrap().slots();
        assert!(!slots.contains(&limits::slot(std::process::id())));
        // The kernel lets go of a device a moment after its last user.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !loop_devices().is_empty() {
            assert!(Instant::now() < deadline, "{:?}", loop_devices());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(serde_json::to_string(&checks).unwrap())
    });
    serde_json::from_str(&answer.unwrap()).unwrap()
}

fn check_form(checks: &[Check]) {
    let names: BTreeSet<&str> = checks.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names.len(), checks.len(), "names are unique");
    for check in checks {
        assert!(!check.finding.is_empty(), "{check:?}");
        assert!(check.status == Status::Ok || check.advice.is_some(), "{check:?}");
    }
}

#[test]
fn this_machine_has_what_sandboxes_need_and_nothing_is_left() {
    if !privileged() {
        return;
    }
    let checks = examine_alone(|| ());
    check_form(&checks);
    let missing: Vec<&Check> = checks.iter().filter(|check| check.status == Status::Missing).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let proved = |name: &str| checks.iter().any(|check| check.name == name && check.status == Status::Ok);
    for name in ["user namespaces", "mapped ids", "disk bound: files", "system-call filter", "process limit"]
    {
        assert!(proved(name), "{name}");
    }
}

#[test]
fn an_ordinary_user_is_told_what_is_lost() {
    if !privileged() {
        return;
    }
    let checks = examine_alone(|| {
        // SAFETY: plain system calls on numbers, in a process of one thread.
        unsafe {
            libc::setgroups(0, std::ptr::null());
            assert_eq!(libc::setgid(65_534), 0);
            assert_eq!(libc::setuid(65_534), 0);
            // A change of user makes /proc/self root's until the process is dumpable again, as after an exec.
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
    });
    check_form(&checks);
    let missing: Vec<&Check> = checks.iter().filter(|check| check.status == Status::Missing).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let lost: Vec<&str> = checks
        .iter()
        .filter(|check| check.status == Status::Degraded)
        .map(|check| check.name.as_str())
        .collect();
    let mut expected = vec!["mapped ids", "large disks", "memory limit", "processor limit", "process limit"];
    if crate::landlock::abi() < 6 {
        expected.insert(2, "Landlock");
    }
    assert_eq!(lost, expected);
}

#[test]
fn checks_travel_as_json() {
    let check = Check::degraded(Area::Walls, "Landlock", "none", "newer kernel".to_owned());
    let text = serde_json::to_string(&check).unwrap();
    assert_eq!(
        text,
        r#"{"area":"walls","name":"Landlock","status":"degraded","finding":"none","advice":"newer kernel"}"#
    );
    assert_eq!(serde_json::from_str::<Check>(&text).unwrap(), check);
    assert!(!Path::new("/tmp/belljar-doctor").exists());
}
