//! Processes, as the host sees them.

use std::fs;
use std::path::{Path, PathBuf};

use super::is_rootless;

/// The first host id of the first sandbox slot.
pub const FIRST_ID: u32 = 0x7000_0000;
/// How many each has.
pub const IDS_PER_SLOT: u32 = 65_536;

/// A process as the host sees it.
#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub uid: u32,
    pub command: String,
}

impl Process {
    /// Reads one; `None` if it is gone or a zombie.
    pub fn read(pid: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)
        };
        let uid = field("Uid:")?.parse().ok()?;
        let parent = field("PPid:")?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        (field("State:") != Some("Z")).then(|| Self {
            pid,
            parent,
            uid,
            command: String::from_utf8_lossy(&command).into_owned(),
        })
    }

    /// What tells the sandbox that a process belongs to from others: the block of its ids or, rootless, its pid namespace
    /// (to which the monitor does not belong).
    pub fn slot(&self) -> Option<u32> {
        if is_rootless() {
            let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
            let own =
                namespace(&self.pid.to_string()).filter(|own| Some(own) != namespace("self").as_ref())?;
            return own.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok();
        }
        Some(self.uid.checked_sub(FIRST_ID)? / IDS_PER_SLOT)
    }
}

/// All of them.
pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::read).collect()
}

/// Those of one sandbox.
pub fn in_slot(slot: u32) -> Vec<Process> {
    let mut found = processes();
    found.retain(|process| process.slot() == Some(slot));
    found
}

/// Those that have a file open.
pub fn holding(path: &Path) -> Vec<Process> {
    let mut found = processes();
    found.retain(|process| {
        let fds = fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target == path)
    });
    found
}

/// The cgroups of a slot, in every hierarchy.
pub fn cgroups(slot: u32) -> Vec<PathBuf> {
    fn search(directory: &Path, depth: u32, number: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if directory.ends_with("belljar") && entry.file_name() == number {
                found.push(entry.path());
            } else if depth > 0 {
                search(&entry.path(), depth - 1, number, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), 5, &slot.to_string(), &mut found);
    found
}

/// Sends a signal to a process that is there.
pub fn send(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// What the threads of a process wait for, and those of every process of ours.
pub fn threads(pid: i32) -> String {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let processes = pids.filter_map(Process::read);
    let ours = processes.filter(|process| process.pid == pid || process.command.contains("belljar"));
    let describe = |process: Process| {
        let command: String = process.command.replace('\0', " ").chars().take(160).collect();
        let tasks = fs::read_dir(format!("/proc/{}/task", process.pid)).into_iter().flatten().flatten();
        let tasks = tasks.map(|task| {
            let says = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            format!("  {} in {}, call {}", says("comm").trim(), says("wchan"), says("syscall"))
        });
        format!("{} {command}\n{}", process.pid, tasks.collect::<String>())
    };
    ours.map(describe).collect()
}
