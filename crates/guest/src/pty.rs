//! Terminals.

use std::os::fd::{AsFd, OwnedFd};

use belljar_core::PtySize;
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Both ends of a new terminal.
pub(crate) struct Terminal {
    /// The guest's end, which does not block.
    pub(crate) master: OwnedFd,
    /// The command's end.
    pub(crate) slave: OwnedFd,
}

impl Terminal {
    /// A terminal of this size that belongs to this user.
    pub(crate) fn open(size: PtySize, uid: u32, gid: u32) -> Result<Self, Errno> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        // Without a mapped root there is one id, and the terminal is its own already.
        if rustix::fs::fchown(&slave, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).is_ok() {
            let _ = rustix::fs::fchmod(&slave, Mode::from_raw_mode(0o620));
        }
        resize(&master, size)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        Ok(Self { master, slave })
    }
}

/// Changes the size of a terminal by its guest's end.
pub(crate) fn resize(master: impl AsFd, size: PtySize) -> Result<(), Errno> {
    tcsetwinsize(master, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })
}
