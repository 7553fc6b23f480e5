//! What the launcher leaves in a sandbox's directory about what it built, for whoever must end it without being able to
//! ask. It is the content of the [lock file](crate::control::LOCK_FILE).

use std::fs;

use serde::{Deserialize, Serialize};

/// What was built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// The block of ids and cgroups it uses; `None` when rootless.
    pub slot: Option<u32>,
    /// Its monitor.
    pub monitor: Option<ProcessMark>,
    /// What this host could not give, in plain words.
    pub losses: Vec<String>,
}

/// A process, told from a later one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMark {
    pid: i32,
    started: u64,
}

impl ProcessMark {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: start_time(pid)? })
    }

    /// Kills it, if it is still the same.
    pub fn kill(self) {
        use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // Held by the descriptor from here on, so what the number says now stays true.
        if start_time(self.pid) == Some(self.started) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}

/// When a process started, in clock ticks since boot: the 22nd field, counted after the name in parentheses.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_only_has_the_same_number_is_not_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let mark = ProcessMark::of(pid).unwrap();
        ProcessMark { started: mark.started - 1, ..mark }.kill();
        assert!(child.try_wait().unwrap().is_none(), "the wrong process was killed");
        mark.kill();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
