//! What the monitor gives up before it hears anyone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use belljar_core::Wall;

use crate::landlock::{self, Reach};
use crate::rights;
use crate::seccomp::Program;

/// Takes the monitor's privileges away: it becomes the sandbox's own unmapped user, may touch nothing of the file
/// system but its spool, and ask nothing of the kernel but what `filter` lets it.
pub(crate) fn confine(owner: Option<u32>, spool: &OwnedFd, filter: &Program) -> io::Result<()> {
    // Every client and every spool is a descriptor.
    rights::most_descriptors()?;
    rights::give_up(owner.filter(|_| Wall::MonitorUser.stands()))?;
    if landlock::abi() >= 1 && Wall::MonitorLandlock.stands() {
        let rules =
            landlock::ruleset(&[], &[spool.as_fd()], &[], Reach::Anywhere).map_err(io::Error::other)?;
        landlock::restrict_self(rules.as_fd())?;
    }
    if Wall::MonitorFilter.stands() {
        filter.install_silently()?;
    }
    Ok(())
}
