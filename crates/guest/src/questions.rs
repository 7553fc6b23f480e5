//! What the sandbox's filter leaves to the guest: calls that take memory of the kernel's which no limit counts, so that
//! their number is what can be bounded.
//!
//! A netlink socket holds what waits in it: the guest makes it and hands it over. A socket that listens holds the
//! connections that nobody has accepted, a UDP socket what was begun and not finished and copies of what was sent, a
//! TCP socket the least that the kernel leaves each, whatever the limit: the guest lets the call go on while there are
//! few of them. They must be made by whoever asks, for what is counted of them is counted as their maker's.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use belljar_core::{Wall, wire};
use libc::{SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_RAW, SOCK_STREAM, c_int, c_long};
use rustix::io::Errno;

use crate::sockets::{Sockets, listeners};
use crate::{clock, leaf, members};

/// The fewest and the most sockets that may listen at a time.
const LISTENERS: (u64, u64) = (4, 256);
/// A connection that nobody has accepted, with the most that the sandbox's `tcp_rmem` lets it receive.
const UNACCEPTED: u64 = 40 << 10;
/// How many wait at a listener where the kernel does not say.
const LONGEST_BACKLOG: u64 = 4096;

/// The low bits of a socket's type; the rest are SOCK_CLOEXEC and the like.
const SOCKET_TYPE: c_int = 0xf;

/// How long one waits for those who may be about to do the same, and how long it is between two looks at them.
const PATIENCE_US: u64 = 1_000_000;
const AGAIN_US: u64 = 10_000;

/// Above this many threads that were let go on, those that have left the call are forgotten.
const MANY: usize = 256;

/// What one wants to have more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// A socket that listens.
    Listener,
    /// A UDP or ICMP socket.
    Datagrams,
    /// A TCP socket, made or accepted.
    Stream,
}

/// Whether there may be one more.
enum Room {
    Free,
    /// That depends on those who were let go on.
    Unknown,
    None,
}

/// The door at which the filter asks.
pub(crate) struct Questions {
    door: OwnedFd,
    word: u64,
    sockets: Sockets,
    netlink_sockets: u64,
    listeners: u64,
    datagram_sockets: u64,
    stream_sockets: u64,
    /// Threads that were let go on and may not have done it yet.
    underway: Vec<(u32, Wish)>,
    /// Those that have no answer yet.
    waiting: VecDeque<Caller>,
}

struct Caller {
    id: u64,
    thread: u32,
    wish: Wish,
    since_us: u64,
}

impl Questions {
    pub(crate) fn adopt(given: wire::Questions) -> Result<Self, Errno> {
        let most = |wall: Wall, count: u64| if wall.stands() { count } else { u64::MAX };
        Ok(Self {
            door: leaf::adopt(given.fd)?,
            word: given.word,
            sockets: Sockets::open(),
            netlink_sockets: given.netlink_sockets.into(),
            listeners: most(
                Wall::ListenerCount,
                most_listeners(given.unaccepted) + u64::from(given.foreign_listeners),
            ),
            datagram_sockets: most(Wall::DatagramCount, given.datagram_sockets.into()),
            stream_sockets: most(Wall::StreamCount, given.stream_sockets.into()),
            underway: Vec::new(),
            waiting: VecDeque::new(),
        })
    }

    /// Hears one who asks, and answers unless it has to wait. One who is gone meanwhile needs no answer.
    pub(crate) fn hear(&mut self) {
        // SAFETY: an all-zero structure is valid, and what the kernel asks for.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the one that this request writes.
        if unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } != 0 {
            return;
        }
        let (id, thread) = (asked.id, asked.pid);
        let (family, kind) = (asked.data.args[0] as c_int, asked.data.args[1] as c_int);
        let wish = match c_long::from(asked.data.nr) {
            libc::SYS_listen => Wish::Listener,
            libc::SYS_accept | libc::SYS_accept4 => Wish::Stream,
            _ if family == libc::AF_NETLINK => {
                return match self.open_netlink(kind) {
                    Ok(socket) => self.hand_over(id, &socket, kind & SOCK_CLOEXEC),
                    Err(errno) => self.refuse(id, errno),
                };
            }
            _ if kind & SOCKET_TYPE == SOCK_STREAM => Wish::Stream,
            _ => Wish::Datagrams,
        };
        // One who asks anew has left the call before.
        self.underway.retain(|(other, _)| *other != thread);
        let now_us = clock::now_us();
        self.waiting.push_back(Caller { id, thread, wish, since_us: now_us });
        self.answer(now_us);
    }

    /// Answers those that wait, as far as can be said now. Those with the same wish have their turn in order.
    pub(crate) fn answer(&mut self, now_us: u64) {
        let mut unknown = Vec::new();
        for caller in std::mem::take(&mut self.waiting) {
            let Caller { id, thread, wish, since_us } = caller;
            let room = if unknown.contains(&wish) { Room::Unknown } else { self.room(wish) };
            match room {
                Room::Free => {
                    self.underway.push((thread, wish));
                    self.go_on(id);
                }
                Room::Unknown if now_us.saturating_sub(since_us) < PATIENCE_US => {
                    unknown.push(wish);
                    self.waiting.push_back(caller);
                }
                Room::Unknown | Room::None => self.refuse(id, wish.refusal()),
            }
        }
    }

    /// When to try again to answer those that wait.
    pub(crate) fn next_us(&self, now_us: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(now_us + AGAIN_US)
    }

    /// Whether there is room for one more. Unix sockets that listen or accept are not told from others, for the guest may
    /// not look at the descriptors of those inside; but what they hold is counted, so one that listens takes no room.
    fn room(&mut self, wish: Wish) -> Room {
        let most = match wish {
            Wish::Listener => self.listeners,
            Wish::Datagrams => self.datagram_sockets,
            Wish::Stream => self.stream_sockets,
        };
        if self.underway.len() >= MANY {
            self.forget_those_who_left();
        }
        // The sum of all sockets is had for less than the number of some, and hardly ever too large.
        let few = |count: Option<u64>, underway: u64| {
            count.is_some_and(|count| count.saturating_add(underway) < most)
        };
        if few(self.sockets.all(), self.underway_for(wish)) {
            return Room::Free;
        }
        self.forget_those_who_left();
        let underway = self.underway_for(wish);
        let count = match wish {
            // Counting those that listen costs more than counting all of TCP.
            Wish::Listener if few(self.sockets.tcp(), underway) => return Room::Free,
            Wish::Listener => listeners(most),
            Wish::Datagrams => self.sockets.datagrams(),
            Wish::Stream => self.sockets.streams(),
        };
        match count {
            Some(_) if few(count, underway) => Room::Free,
            Some(count) if count < most => Room::Unknown,
            _ => Room::None,
        }
    }

    fn underway_for(&self, wish: Wish) -> u64 {
        self.underway.iter().filter(|(_, other)| *other == wish).count() as u64
    }

    /// One who sleeps or is gone has left the call; others may be about to add one.
    fn forget_those_who_left(&mut self) {
        self.underway.retain(|(thread, _)| matches!(members::state(*thread), Some(b'R' | b'D')));
    }

    fn open_netlink(&mut self, kind: c_int) -> Result<OwnedFd, Errno> {
        let plain = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
        if plain != SOCK_RAW && plain != SOCK_DGRAM {
            return Err(Errno::from_raw_os_error(libc::ESOCKTNOSUPPORT));
        }
        if self.sockets.netlink().is_none_or(|count| count >= self.netlink_sockets) {
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

    /// Has the kernel do what was asked for.
    fn go_on(&self, id: u64) {
        self.send(id, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    fn refuse(&self, id: u64, errno: Errno) {
        self.send(id, -errno.raw_os_error(), 0);
    }

    fn send(&self, id: u64, error: c_int, flags: u32) {
        let answer = libc::seccomp_notif_resp { id, val: 0, error, flags };
        // SAFETY: the structure is the one that this request reads. It fails for one who is gone.
        unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }

    fn raw(&self) -> RawFd {
        self.door.as_raw_fd()
    }
}

impl Wish {
    /// What one hears for whom there is no room: servers that accept wait a while and try again.
    fn refusal(self) -> Errno {
        match self {
            Self::Listener => Errno::NOBUFS,
            Self::Datagrams | Self::Stream => Errno::NFILE,
        }
    }
}

impl AsFd for Questions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

/// How many sockets may listen, if what waits at them is to stay within so many bytes.
fn most_listeners(bytes: u64) -> u64 {
    let backlog = fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
    let backlog = backlog.and_then(|text| text.trim().parse().ok()).unwrap_or(LONGEST_BACKLOG);
    (bytes / (UNACCEPTED * (backlog + 1))).clamp(LISTENERS.0, LISTENERS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_memory_the_fewer_listen() {
        assert_eq!(most_listeners(0), LISTENERS.0);
        assert_eq!(most_listeners(u64::MAX), LISTENERS.1);
    }
}
