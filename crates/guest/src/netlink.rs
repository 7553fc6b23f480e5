//! Netlink sockets for those inside. What waits in one is memory of the kernel's that no limit counts, so nobody may have
//! more than a few: the sandbox's filter leaves the call to the guest, which makes the socket and hands it over.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use belljar_core::wire;
use libc::{SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_RAW, c_int, c_long};
use rustix::io::Errno;

use crate::leaf;

/// The door at which netlink sockets are asked for.
pub(crate) struct Netlink {
    listener: OwnedFd,
    most: u64,
    word: u64,
}

impl Netlink {
    pub(crate) fn adopt(given: wire::Netlink) -> Result<Self, Errno> {
        let listener = leaf::adopt(given.fd)?;
        Ok(Self { listener, most: given.most.into(), word: given.word })
    }

    /// Answers one who asks. One who is gone meanwhile needs no answer.
    pub(crate) fn answer(&self) {
        // SAFETY: an all-zero structure is valid, and what the kernel asks for.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the one that this request writes.
        if unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } != 0 {
            return;
        }
        let kind = asked.data.args[1] as c_int;
        match self.open(kind) {
            Ok(socket) => self.hand_over(asked.id, &socket, kind & SOCK_CLOEXEC),
            Err(errno) => self.refuse(asked.id, errno),
        }
    }

    fn open(&self, kind: c_int) -> Result<OwnedFd, Errno> {
        let plain = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
        if plain != SOCK_RAW && plain != SOCK_DGRAM {
            return Err(Errno::from_raw_os_error(libc::ESOCKTNOSUPPORT));
        }
        if sockets_in_use().is_none_or(|count| count >= self.most) {
            return Err(Errno::NOBUFS);
        }
        let (low, high) = (self.word & 0xffff_ffff, self.word >> 32);
        let family = c_long::from(libc::AF_NETLINK);
        let protocol = c_long::from(libc::NETLINK_ROUTE);
        // SAFETY: this call takes numbers only; the last two are for the filter, the kernel does not look at them.
        let socket = unsafe {
            libc::syscall(libc::SYS_socket, family, c_long::from(kind | SOCK_CLOEXEC), protocol, low, high)
        };
        if socket < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOBUFS));
        }
        // SAFETY: the kernel has just given us this descriptor, and only us.
        Ok(unsafe { OwnedFd::from_raw_fd(socket as RawFd) })
    }

    /// Puts the socket among the caller's descriptors; the number it gets there is what its call returns.
    fn hand_over(&self, id: u64, socket: &OwnedFd, close_on_exec: c_int) {
        let handed = libc::seccomp_notif_addfd {
            id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: socket.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: close_on_exec as u32,
        };
        // SAFETY: the structure is the one that this request reads.
        let result = unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const handed) };
        if result < 0 {
            // Its table of descriptors is full, or it is gone.
            let error = std::io::Error::last_os_error();
            self.refuse(id, Errno::from_io_error(&error).unwrap_or(Errno::MFILE));
        }
    }

    fn refuse(&self, id: u64, errno: Errno) {
        let refusal = libc::seccomp_notif_resp { id, val: 0, error: -errno.raw_os_error(), flags: 0 };
        // SAFETY: the structure is the one that this request reads. It fails for one who is gone.
        unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const refusal) };
    }

    fn raw(&self) -> RawFd {
        self.listener.as_raw_fd()
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// How many netlink sockets there are in this network namespace, bound or not.
fn sockets_in_use() -> Option<u64> {
    count(&std::fs::read_to_string("/proc/net/protocols").ok()?)
}

fn count(table: &str) -> Option<u64> {
    let line = table.lines().find(|line| line.starts_with("NETLINK "))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_as_the_kernel_tells() {
        let table = "protocol  size sockets  memory press maxhdr  slab module     cl co\n\
                     PACKET    1472      0      -1   NI       0   no   kernel      n  n\n\
                     NETLINK   1096     17      -1   NI       0   no   kernel      n  n\n";
        assert_eq!(count(table), Some(17));
        assert_eq!(count("protocol  size\n"), None);
        assert!(sockets_in_use().is_some());
    }
}
