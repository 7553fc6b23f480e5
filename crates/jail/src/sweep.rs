//! Finding what a crash left behind. A slot whose lock is free has no living launcher or monitor, so whatever still
//! exists under its number belongs to nobody.

use std::path::Path;

use crate::cgroup::{Group, Layout};
use crate::slot::{self, SLOTS};

/// Kills and removes the cgroups of slots that nobody holds. Answers how many there were. Without root there are no
/// slots, and nothing to sweep.
pub fn orphans() -> usize {
    if !rustix::process::geteuid().is_root() {
        return 0;
    }
    let Ok(layout) = Layout::detect() else { return 0 };
    let slots = layout.slots().into_iter().filter(|number| *number < SLOTS);
    slots.filter(|number| remove_unheld(&layout, *number)).count()
}

/// The same for one slot, whose sandbox is known to have ended.
pub fn slot(number: u32) {
    if let Ok(layout) = Layout::detect() {
        remove_unheld(&layout, number);
    }
}

fn remove_unheld(layout: &Layout, number: u32) -> bool {
    let Some(_held) = slot::try_hold(Path::new(slot::DIRECTORY), number) else { return false };
    let Some(group) = Group::open_existing(layout, number) else { return false };
    group.kill().is_ok() && group.remove().is_ok()
}
