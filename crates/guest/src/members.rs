//! Signals to every process of a group whose members are known by their numbers.

use std::collections::HashSet;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Sends a signal to every member. A number may pass to another process at any moment, so each process is first
/// pinned by a descriptor and then has to be listed once more.
pub(crate) fn signal(list: impl Fn() -> Vec<i32>, signal: Signal) -> usize {
    let pinned: Vec<_> = list()
        .into_iter()
        .filter_map(|number| {
            let pid = Pid::from_raw(number)?;
            Some((number, pidfd_open(pid, PidfdFlags::empty()).ok()?))
        })
        .collect();
    if pinned.is_empty() {
        return 0;
    }
    let still: HashSet<i32> = list().into_iter().collect();
    let members = pinned.iter().filter(|(number, _)| still.contains(number));
    members.filter(|(_, pidfd)| pidfd_send_signal(pidfd, signal).is_ok()).count()
}

/// The living descendants of a process.
pub(crate) fn descendants(ancestor: i32) -> Vec<i32> {
    let Ok(numbers) = fs::read_dir("/proc") else { return Vec::new() };
    let processes: Vec<(i32, i32, bool)> = numbers
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let pid = name.to_str()?.parse().ok()?;
            let (parent, living) = parent(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
            Some((pid, parent, living))
        })
        .collect();
    let mut family = HashSet::from([ancestor]);
    // Parents need not come before their children in the listing, so go round until nobody is added.
    loop {
        let before = family.len();
        for (pid, parent, _) in &processes {
            if family.contains(parent) {
                family.insert(*pid);
            }
        }
        if family.len() == before {
            break;
        }
    }
    let living = processes.iter().filter(|(pid, _, living)| *living && *pid != ancestor);
    living.map(|(pid, ..)| *pid).filter(|pid| family.contains(pid)).collect()
}

/// The state of a process or thread, as the letter that the kernel has for it; `None` if there is no such one.
pub(crate) fn state(number: u32) -> Option<u8> {
    let stat = fs::read(format!("/proc/{number}/stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).copied()
}

/// The parent named in a `stat` file, and whether the process lives. The second field is a name in parentheses that
/// may itself hold anything, so the fields are counted from its end.
fn parent(stat: &[u8]) -> Option<(i32, bool)> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, !matches!(state, "Z" | "X")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_a_parent() {
        assert_eq!(parent(b"7 (a) R 1 (b) S 42 7 7"), Some((42, true)));
        assert_eq!(parent(b"7 (sh) Z 1 7 7"), Some((1, false)));
        assert_eq!(parent(b"nonsense"), None);
    }

    #[test]
    fn one_who_waits_sleeps() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        while state(child.id()) != Some(b'S') {}
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(state(child.id()), None);
    }

    #[test]
    fn a_child_is_found() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let found = descendants(std::process::id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&(child.id() as i32)));
    }
}
