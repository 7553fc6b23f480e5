//! The attacks, a file for each class.

mod doorway;
mod files;
mod host_files;
mod lifetime;
mod monitor;
mod namespaces;
mod network;
mod output;
mod proc;
mod resources;
mod syscalls;

pub(crate) use self::doorway::NETWORK;

use crate::attack::Attack;

/// All attacks. Those that take longest come first, so that no worker is left with one at the end.
pub(crate) fn all() -> Vec<Attack> {
    [
        lifetime::attacks(),
        resources::attacks(),
        monitor::attacks(),
        host_files::attacks(),
        output::attacks(),
        files::attacks(),
        proc::attacks(),
        namespaces::attacks(),
        syscalls::attacks(),
        network::attacks(),
        doorway::attacks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
