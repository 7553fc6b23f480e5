//! For the door: the sockets at which the sandbox's traffic arrives, and whose packets have which mark.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;

use belljar_core::{Error, ErrorCode, ExecId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::Role;
use super::{Service, answer};
use crate::control::{Answer, Caller};

/// How many are known at a time: executions that run, and the last of those that do not.
const MOST: usize = 4096;
/// So often the guest is heard before a mark is said to be unknown: more often than it takes to read all that can be on its way.
/// It has sent each before the first packet of its execution.
const HEARINGS: u32 = 64;

/// The marks of executions: the lower halves of their cgroups' numbers.
#[derive(Debug, Default)]
pub(super) struct Marks {
    known: BTreeMap<u32, Caller>,
    /// The oldest first.
    order: VecDeque<(u32, ExecId)>,
}

impl Marks {
    /// Takes note of a mark. If there are too many, the oldest is forgotten that is of no execution which `runs`.
    fn note(&mut self, mark: u32, caller: Caller, runs: impl Fn(ExecId) -> bool) {
        let exec = caller.exec;
        // A number may be had again, by a cgroup that is made when the other is long gone.
        self.known.insert(mark, caller);
        self.order.push_back((mark, exec));
        if self.order.len() <= MOST {
            return;
        }
        let oldest = self.order.iter().position(|(_, exec)| !runs(*exec)).unwrap_or(0);
        if let Some((mark, exec)) = self.order.remove(oldest)
            && self.known.get(&mark).is_some_and(|caller| caller.exec == exec)
        {
            self.known.remove(&mark);
        }
    }
}

impl Service {
    /// The guest says which cgroup it has made for an execution. It says so once, before there is a process in it.
    pub(super) fn on_leaf(&mut self, exec: ExecId, cgroup: u64) {
        let Self { marks, executions, .. } = self;
        let Some(execution) = executions.get_mut(&exec.0) else { return };
        if execution.is_marked || execution.start_us.is_some() {
            return;
        }
        execution.is_marked = true;
        let caller = Caller { exec, purpose: execution.purpose.clone() };
        // Packets carry no more of it.
        let mark = cgroup as u32;
        marks.note(mark, caller, |exec| executions.get(&exec.0).is_some_and(|one| one.outcome.is_none()));
    }

    pub(super) fn tell_whose(&mut self, client: u64, mark: u32) {
        for _ in 0..HEARINGS {
            // What it has sent may be unheard, and whoever asks has seen a packet that came after it.
            if self.marks.known.contains_key(&mark) || !self.guest_has_spoken() || !self.hear_guest() {
                break;
            }
        }
        let caller = self.marks.known.get(&mark).cloned();
        self.finish(client, &Answer::Whose(caller));
    }

    /// Whether there is something to hear. That it is gone is not: others will notice.
    fn guest_has_spoken(&self) -> bool {
        let mut polled = [PollFd::new(&self.guest, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(1)) && polled[0].revents().contains(PollFlags::IN)
    }

    pub(super) fn hand_out_doorway(&mut self, client: u64) {
        let Some(doorway) = &self.given.doorway else {
            let error = Error::new(ErrorCode::Unsupported, "this sandbox was made without a network")
                .hint("make another with `--net` or `--allow`");
            return self.finish(client, &Answer::Failed(error));
        };
        let said = answer(&Answer::Doorway { marks: doorway.marks });
        let Some(caller) = self.clients.get_mut(&client) else { return };
        match caller.link.send_with(&said, &doorway.descriptors()) {
            Ok(()) => caller.role = Role::Closing,
            Err(_) => self.drop_client(client),
        }
    }

    /// For whoever copies the sandbox's files: the file system that they are on.
    pub(super) fn hand_out_disk(&mut self, client: u64) {
        let Some(disk) = &self.given.disk else {
            let error =
                Error::new(ErrorCode::Unsupported, "the files of this sandbox cannot be had from outside")
                    .hint("a sandbox that root made gives its files");
            return self.finish(client, &Answer::Failed(error));
        };
        let Some(caller) = self.clients.get_mut(&client) else { return };
        match caller.link.send_with(&answer(&Answer::Disk), &[disk.as_fd()]) {
            Ok(()) => caller.role = Role::Closing,
            Err(_) => self.drop_client(client),
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::Purpose;

    use super::*;

    fn caller(exec: u32) -> Caller {
        Caller { exec: ExecId(exec), purpose: Purpose::default() }
    }

    #[test]
    fn the_newest_are_known_and_those_that_run() {
        let mut marks = Marks::default();
        let last = MOST as u32 + 100;
        for number in 1..=last {
            marks.note(number, caller(number), |exec| exec == ExecId(1));
        }
        assert_eq!((marks.known.len(), marks.order.len()), (MOST, MOST));
        assert_eq!(marks.known.get(&1), Some(&caller(1)), "it runs");
        assert_eq!(marks.known.get(&2), None);
        assert_eq!(marks.known.get(&last), Some(&caller(last)));
        assert_eq!(marks.known.get(&(last - MOST as u32 + 2)), Some(&caller(last - MOST as u32 + 2)));
    }

    #[test]
    fn a_number_that_is_had_again_is_the_later_ones() {
        let mut marks = Marks::default();
        marks.note(7, caller(1), |_| false);
        marks.note(7, caller(2), |_| false);
        for number in 1..MOST as u32 {
            marks.note(number + 100, caller(number + 2), |_| false);
        }
        assert_eq!(marks.known.get(&7), Some(&caller(2)), "the first was forgotten, not the second");
    }
}
