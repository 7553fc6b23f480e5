//! Finding and killing the processes of a command or of a whole sandbox.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The variable by which processes are recognised after they lost their parents.
pub(super) const MARK: &str = "BELLJAR_EXEC";

/// More than enough for killed processes to be gone; a process that the kernel cannot end is then left to it.
const ROUNDS: u32 = 400;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);

/// Which processes are meant.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// How the value of [`MARK`] starts.
    pub(super) mark: String,
    /// The command's first process, if it has not been waited for.
    pub(super) leader: Option<i32>,
}

impl Tree {
    /// Sends a signal once to every process found.
    pub(super) fn signal(&self, signal: Signal) {
        for pid in self.members(&mut HashSet::new()) {
            send(pid, signal);
        }
    }

    /// Kills until nothing is found any more. Blocks for as long as the killed processes take to go.
    pub(super) fn kill(&self) {
        let mut known = HashSet::new();
        for _ in 0..ROUNDS {
            if let Some(leader) = self.leader.and_then(Pid::from_raw) {
                // It may be empty already, which is what is wanted.
                let _ = kill_process_group(leader, Signal::KILL);
            }
            let members = self.members(&mut known);
            if members.is_empty() {
                return;
            }
            members.into_iter().for_each(|pid| send(pid, Signal::KILL));
            std::thread::sleep(BETWEEN_ROUNDS);
        }
        tracing::warn!(mark = self.mark, "processes of an execution could not be killed");
    }

    /// How many processes there are; `None` where there is no `/proc`.
    pub(super) fn count(&self) -> Option<u64> {
        fs::metadata("/proc/self/stat").ok()?;
        Some(self.members(&mut HashSet::new()).len() as u64)
    }

    /// The living processes that are marked, in the leader's group, or below one of them or of those known earlier.
    fn members(&self, known: &mut HashSet<i32>) -> Vec<i32> {
        let processes = processes();
        let mark = format!("{MARK}={}", self.mark);
        for process in &processes {
            let led = self.leader.is_some_and(|leader| process.pid == leader || process.group == leader);
            if led || process.is_marked(&mark) {
                known.insert(process.pid);
            }
        }
        loop {
            let before = known.len();
            known.extend(
                processes.iter().filter(|p| known.contains(&p.parent)).map(|p| p.pid).collect::<Vec<_>>(),
            );
            if known.len() == before {
                break;
            }
        }
        processes.iter().filter(|p| p.alive && known.contains(&p.pid)).map(|p| p.pid).collect()
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // The process may have ended since it was seen.
        let _ = kill_process(pid, signal);
    }
}

struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    alive: bool,
}

impl Process {
    /// Reads `pid (name) state ppid pgrp …`; the name may hold anything, also parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, _) = stat.split_once(' ')?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let alive = !matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, parent, group, alive })
    }

    fn is_marked(&self, mark: &str) -> bool {
        fs::read(format!("/proc/{}/environ", self.pid))
            .is_ok_and(|environ| environ.split(|&byte| byte == 0).any(|var| var.starts_with(mark.as_bytes())))
    }
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            entry.file_name().to_str()?.parse::<u32>().ok()?;
            let stat = fs::read(entry.path().join("stat")).ok()?;
            Process::parse(&String::from_utf8_lossy(&stat))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_the_fields_after_it() {
        let process = Process::parse("12 (a) S 1 1) R 7 8 9 0").unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.alive), (12, 7, 8, true));
        assert!(!Process::parse("12 (sh) Z 7 8 9").unwrap().alive);
        assert!(Process::parse("").is_none());
    }
}
