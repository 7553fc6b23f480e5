//! Whether memory, processes and processor time of a whole sandbox can be bounded, and all of it stopped and killed.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};

use super::probe::{Failing, Proof, in_child};
use super::{Area, Check, is_root};
use crate::cgroup::{CgroupError, Controller, Group, Layout, Limits};
use crate::namespaces::check;
use crate::slot::SLOTS;

const LIMITS: Limits = Limits { memory: 64 << 20, pids: 8, cpu_millis: 500 };

/// The slot whose groups a doctor of this process number makes: beyond those of sandboxes, which a sweep may remove.
pub(super) fn slot(process: u32) -> u32 {
    SLOTS + process % 100_000
}

pub(super) fn examine() -> Vec<Check> {
    if !is_root() {
        return without_root();
    }
    let layout = match Layout::detect() {
        Ok(layout) => layout,
        Err(error) => return vec![no_groups(&error)],
    };
    let scratch = match Group::create(&layout, slot(std::process::id()), &LIMITS) {
        Ok(group) => Scratch(group),
        Err(error) => return vec![no_groups(&error)],
    };
    let found = format!("this host has {} cgroups; made a group in each hierarchy", layout.kind());
    let mut checks = vec![Check::ok(Area::Limits, "cgroups", found)];
    let boxes = match scratch.boxes() {
        Ok(boxes) => boxes,
        Err(error) => return vec![no_groups(&error)],
    };
    let mut required = |name, controller, proof| {
        checks.push(Check::required(Area::Limits, name, proof, &controller_advice(controller)));
    };
    required("memory limit", Controller::Memory, memory(&boxes));
    required("processor limit", Controller::Cpu, processors(&boxes));
    required("process limit", Controller::Pids, in_child(|| processes(&boxes)));
    checks.push(Check::required(
        Area::Limits,
        "freeze and kill",
        freeze_and_kill(&scratch.0, &boxes),
        "needs Linux 5.2 or newer with cgroup v2 mounted, or CONFIG_CGROUP_FREEZER",
    ));
    checks
}

/// Groups that are gone when this value is.
struct Scratch(Group);

impl Scratch {
    /// The directories of the groups that executions run in, one for each hierarchy.
    fn boxes(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let mut boxes = self.0.join_dirs()?;
        boxes.extend(self.0.leaf_dirs()?.into_iter().map(|leaf| leaf.fd));
        Ok(boxes)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.remove();
    }
}

/// What an ordinary user cannot have, in plain words, and what there is instead.
fn without_root() -> Vec<Check> {
    let lost = |name, finding: &str| {
        Check::degraded(Area::Limits, name, finding, "run belljar as root for limits that hold".to_owned())
    };
    vec![
        lost("memory limit", "without root memory is bounded for each process, not for the whole sandbox"),
        lost("processor limit", "without root processor time is not bounded"),
        lost("process limit", "without root processes are counted together with all others of your user"),
    ]
}

fn no_groups(error: &CgroupError) -> Check {
    let advice = match error {
        CgroupError::MissingController { controller } => controller_advice(*controller),
        CgroupError::NotEnabled { line, path } => format!("as root: echo '{line}' > {}", path.display()),
        _ => "mount the cgroup hierarchies writable; inside a container, run it with --privileged \
              --cgroupns=host or use the host itself"
            .into(),
    };
    let mut finding = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        finding = format!("{finding}: {cause}");
    }
    Check::missing(Area::Limits, "cgroups", finding, advice)
}

fn controller_advice(controller: Controller) -> String {
    let (option, boot) = match controller {
        Controller::Memory => {
            ("CONFIG_MEMCG", " (some kernels also need the boot parameter cgroup_enable=memory)")
        }
        Controller::Pids => ("CONFIG_CGROUP_PIDS", ""),
        Controller::Cpu | Controller::Cpuacct => ("CONFIG_CFS_BANDWIDTH", ""),
        Controller::Freezer => ("CONFIG_CGROUP_FREEZER", ""),
        Controller::Io => ("CONFIG_BLK_CGROUP", ""),
    };
    format!("needs a kernel with {option}{boot}, and the cgroup controller `{controller}` mounted or enabled")
}

/// The first of these files that some group has.
fn read(boxes: &[OwnedFd], names: &[&str]) -> Result<String, String> {
    for name in names {
        for directory in boxes {
            let Ok(file) = openat(directory, *name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
                continue;
            };
            let text = io::read_to_string(std::fs::File::from(file)).failing(&format!("read {name}"))?;
            return Ok(text.trim().to_owned());
        }
    }
    Err(format!("no group has a file {}", names.join(" or ")))
}

fn expect(what: &str, found: String, wanted: &[String]) -> Result<(), String> {
    if wanted.contains(&found) {
        Ok(())
    } else {
        Err(format!("{what} was set to {} and reads {found}", wanted[0]))
    }
}

fn memory(boxes: &[OwnedFd]) -> Proof {
    let found = read(boxes, &["memory.max", "memory.limit_in_bytes"])?;
    expect("the memory limit", found, &[LIMITS.memory.to_string()])?;
    Ok(format!("set to {} MiB, and read back so", LIMITS.memory >> 20))
}

fn processors(boxes: &[OwnedFd]) -> Proof {
    let found = read(boxes, &["cpu.max", "cpu.cfs_quota_us"])?;
    expect("the processor limit", found, &["50000 100000".into(), "50000".into()])?;
    Ok("set to half a processor, and read back so".into())
}

fn processes(boxes: &[OwnedFd]) -> Proof {
    expect("the process limit", read(boxes, &["pids.max"])?, &[LIMITS.pids.to_string()])?;
    enter(boxes)?;
    let mut idle = Vec::new();
    for made in 1..=LIMITS.pids {
        match Idle::fork(|| ()) {
            Ok(child) => idle.push(child),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                return Ok(format!("set to {}, and fork was refused with {made} processes", LIMITS.pids));
            }
            Err(error) => return Err(format!("cannot fork: {error}")),
        }
    }
    Err(format!("a group with a limit of {} processes has more", LIMITS.pids))
}

/// Moves the calling process into the groups.
fn enter(boxes: &[OwnedFd]) -> Result<(), String> {
    for directory in boxes {
        openat(directory, c"cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::io::write(file, b"0"))
            .failing("enter a cgroup")?;
    }
    Ok(())
}

/// A child that does nothing; it is gone when this value is.
struct Idle(i32);

impl Idle {
    /// Forks one that does this first. The caller is a probe: single-threaded.
    fn fork(first: impl FnOnce()) -> io::Result<Self> {
        // SAFETY: a process of one thread forks; the child never returns from here.
        let pid = check(unsafe { libc::fork() })?;
        if pid == 0 {
            first();
            // SAFETY: plain system calls; no signal is handled, so `pause` ends with the process.
            unsafe {
                libc::pause();
                libc::_exit(0)
            }
        }
        Ok(Self(pid))
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        // SAFETY: plain system calls on numbers, for an unreaped child of ours.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

fn freeze_and_kill(group: &Group, boxes: &[OwnedFd]) -> Proof {
    in_child(|| {
        let (ready, say) = io::pipe().failing("make a pipe")?;
        let child = Idle::fork(|| {
            let _ = rustix::io::write(&say, &[u8::from(enter(boxes).is_ok())]);
        })
        .failing("fork")?;
        let mut entered = [0];
        rustix::io::read(&ready, &mut entered).failing("hear from a process in a cgroup")?;
        if entered != [1] {
            return Err("a process could not enter the groups".into());
        }
        group.freeze(true).failing("freeze a group")?;
        group.kill().failing("kill a frozen group")?;
        let mut status = 0;
        // SAFETY: plain system call on a child of ours and a valid pointer.
        let ended = unsafe { libc::waitpid(child.0, &raw mut status, libc::WNOHANG) } == child.0;
        if ended {
            // It is reaped; its number is not ours any more.
            std::mem::forget(child);
        }
        match ended {
            true => Ok("froze a group with a process in it, and killed it whole".into()),
            false => Err("a killed group left a process alive".into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_option_that_brings_it() {
        let check = no_groups(&CgroupError::MissingController { controller: Controller::Pids });
        assert!(check.finding.contains("`pids`"), "{}", check.finding);
        assert!(check.advice.unwrap().contains("CONFIG_CGROUP_PIDS"));
        let path = "/sys/fs/cgroup/cgroup.subtree_control".into();
        let check = no_groups(&CgroupError::NotEnabled { line: "+pids".into(), path });
        assert_eq!(check.advice.unwrap(), "as root: echo '+pids' > /sys/fs/cgroup/cgroup.subtree_control");
    }

    #[test]
    fn its_groups_are_never_those_of_a_sandbox() {
        for process in [0, 1, 99_999, 100_000, 4_194_304] {
            assert!(slot(process) >= SLOTS);
        }
    }
}
