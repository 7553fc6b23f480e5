//! The switch that stops and starts the executions of a sandbox, where they all share one group for it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The open `freezer.state` of `box`, which outlives the privilege to open it; see [`super::Group::freezer_switch`].
#[derive(Debug)]
pub struct Freezer(File);

impl Freezer {
    pub(super) fn open(path: &Path) -> io::Result<Freezer> {
        OpenOptions::new().read(true).write(true).open(path).map(Freezer)
    }

    /// Asks for everything to stand still, or to go on. Whether it does shows in [`Freezer::is_frozen`].
    pub fn request(&self, frozen: bool) {
        let _ = self.0.write_at(if frozen { b"FROZEN" } else { b"THAWED" }, 0);
    }

    /// Whether everything stands still.
    pub fn is_frozen(&self) -> bool {
        let mut state = [0; 16];
        self.0.read_at(&mut state, 0).is_ok_and(|count| state[..count].trim_ascii() == b"FROZEN")
    }
}
