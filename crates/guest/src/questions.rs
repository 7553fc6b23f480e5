//! What the sandbox's filter leaves to the guest: calls that take memory of the kernel's which no limit counts, so that
//! their number is what can be bounded.
//!
//! A netlink socket holds what waits in it: the guest makes it and hands it over. A socket that listens holds the
//! connections that nobody has accepted: the guest lets the call go on while there are few of them.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use belljar_core::{Wall, wire};
use libc::{SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_RAW, c_int, c_long};
use rustix::io::Errno;

use crate::{clock, leaf, members};

/// The fewest and the most sockets that may listen at a time.
const LISTENERS: (u64, u64) = (4, 256);
/// A connection that nobody has accepted, with the most that the sandbox's `tcp_rmem` lets it receive.
const UNACCEPTED: u64 = 40 << 10;
/// How many wait at a listener where the kernel does not say.
const LONGEST_BACKLOG: u64 = 4096;

/// How long one waits for those who may be about to listen, and how long it is between two looks at them.
const PATIENCE_US: u64 = 1_000_000;
const AGAIN_US: u64 = 10_000;

/// Whether one more may listen.
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
    netlink_sockets: u64,
    listeners: u64,
    /// Threads that were let go on to listen and may not have done it yet.
    about_to_listen: Vec<u32>,
    /// Those that ask for it, and have no answer yet.
    want_to_listen: VecDeque<Caller>,
}

struct Caller {
    id: u64,
    thread: u32,
    since_us: u64,
}

impl Questions {
    pub(crate) fn adopt(given: wire::Questions) -> Result<Self, Errno> {
        Ok(Self {
            door: leaf::adopt(given.fd)?,
            word: given.word,
            netlink_sockets: given.netlink_sockets.into(),
            listeners: if Wall::ListenerCount.stands() { most_listeners(given.unaccepted) } else { u64::MAX },
            about_to_listen: Vec::new(),
            want_to_listen: VecDeque::new(),
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
        let (id, thread, now_us) = (asked.id, asked.pid, clock::now_us());
        if c_long::from(asked.data.nr) == libc::SYS_listen {
            self.about_to_listen.retain(|other| *other != thread);
            self.want_to_listen.push_back(Caller { id, thread, since_us: now_us });
            return self.answer(now_us);
        }
        let kind = asked.data.args[1] as c_int;
        match self.open_netlink(kind) {
            Ok(socket) => self.hand_over(id, &socket, kind & SOCK_CLOEXEC),
            Err(errno) => self.refuse(id, errno),
        }
    }

    /// Answers those that want to listen, as far as can be said now.
    pub(crate) fn answer(&mut self, now_us: u64) {
        while let Some(Caller { id, thread, since_us }) = self.want_to_listen.front() {
            let (id, thread, waited) = (*id, *thread, now_us.saturating_sub(*since_us));
            match self.room() {
                Room::Free => {
                    self.about_to_listen.push(thread);
                    self.go_on(id);
                }
                Room::Unknown if waited < PATIENCE_US => return,
                Room::Unknown | Room::None => self.refuse(id, Errno::NOBUFS),
            }
            self.want_to_listen.pop_front();
        }
    }

    /// When to try again to answer those that wait.
    pub(crate) fn next_us(&self, now_us: u64) -> Option<u64> {
        (!self.want_to_listen.is_empty()).then_some(now_us + AGAIN_US)
    }

    /// Whether there is room for one more that listens. Unix sockets are not told from others, for the guest may not look
    /// at the descriptors of those inside; but what they hold is counted, so one that listens takes no room.
    fn room(&mut self) -> Room {
        // One who sleeps, asks anew or is gone has left the call; others may be about to add one.
        self.about_to_listen.retain(|thread| matches!(members::state(*thread), Some(b'R' | b'D')));
        let underway = self.about_to_listen.len() as u64;
        // Counting those that listen costs more than counting all, which are hardly ever too many.
        let few =
            |count: Option<u64>| count.is_some_and(|count| count.saturating_add(underway) < self.listeners);
        if few(tcp_sockets()) {
            return Room::Free;
        }
        match listeners(self.listeners) {
            Some(count) if few(Some(count)) => Room::Free,
            Some(count) if count < self.listeners => Room::Unknown,
            _ => Room::None,
        }
    }

    fn open_netlink(&self, kind: c_int) -> Result<OwnedFd, Errno> {
        let plain = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
        if plain != SOCK_RAW && plain != SOCK_DGRAM {
            return Err(Errno::from_raw_os_error(libc::ESOCKTNOSUPPORT));
        }
        if in_use(&["NETLINK"]).is_none_or(|count| count >= self.netlink_sockets) {
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

/// How many TCP sockets there are in this network namespace, whatever they do.
fn tcp_sockets() -> Option<u64> {
    in_use(&["TCP", "TCPv6"])
}

/// How many sockets of these protocols there are in this network namespace, bound or not.
fn in_use(protocols: &[&str]) -> Option<u64> {
    count(&fs::read_to_string("/proc/net/protocols").ok()?, protocols)
}

fn count(table: &str, protocols: &[&str]) -> Option<u64> {
    let mut fields = table.lines().map(str::split_whitespace);
    let lines = fields.by_ref().filter_map(|mut line| {
        let name = line.next()?;
        protocols.contains(&name).then(|| line.nth(1)?.parse::<u64>().ok())
    });
    let counts = lines.collect::<Option<Vec<u64>>>()?;
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// How many sockets listen in this network namespace, counted no further than to this number.
fn listeners(most: u64) -> Option<u64> {
    let four =
        listening(BufReader::with_capacity(SHORTER_THAN_A_LINE, File::open("/proc/net/tcp").ok()?), most)?;
    match File::open("/proc/net/tcp6") {
        Ok(file) => Some(four + listening(BufReader::with_capacity(SHORTER_THAN_A_LINE, file), most)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(four),
        Err(_) => None,
    }
}

/// The kernel makes as many lines as fit into what it is asked for, and looking for the next one may cost it much.
const SHORTER_THAN_A_LINE: usize = 128;

/// Those that listen come first.
fn listening(table: impl BufRead, most: u64) -> Option<u64> {
    const LISTEN: &str = "0A";
    let mut count = 0;
    for line in table.lines().skip(1) {
        if count >= most || line.ok()?.split_whitespace().nth(3) != Some(LISTEN) {
            break;
        }
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_as_the_kernel_tells() {
        let table = "protocol  size sockets  memory press maxhdr  slab module     cl co\n\
                     PACKET    1472      0      -1   NI       0   no   kernel      n  n\n\
                     TCPv6     2616      3       0   no     320   yes  kernel      y  y\n\
                     TCP       2424      4       0   no     320   yes  kernel      y  y\n\
                     NETLINK   1096     17      -1   NI       0   no   kernel      n  n\n";
        assert_eq!(count(table, &["NETLINK"]), Some(17));
        assert_eq!(count(table, &["TCP", "TCPv6"]), Some(7));
        assert_eq!(count("protocol  size\n", &["TCP"]), None);
        assert_eq!(count("TCP  2424\n", &["TCP"]), None);
        assert!(in_use(&["NETLINK"]).is_some() && tcp_sockets().is_some());
    }

    #[test]
    fn those_that_listen_are_counted() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                     0: 0100007F:B2E7 00000000:0000 0A 00000000:00000000 00:00000000\n\
                     1: 0100007F:B2E8 00000000:0000 0A 00000000:00000000 00:00000000\n\
                     2: 0100007F:B2E7 0100007F:8C4E 01 00000000:00000000 00:00000000\n\
                     3: 0100007F:B2E9 00000000:0000 0A 00000000:00000000 00:00000000\n";
        assert_eq!(listening(table.as_bytes(), 100), Some(2));
        assert_eq!(listening(table.as_bytes(), 1), Some(1));
        let before = listeners(1_000_000).unwrap();
        let _held = [(); 64].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        assert!(listeners(1_000_000).unwrap() + 32 >= before + 64);
        assert_eq!(listeners(1).unwrap().min(1), 1);
    }

    #[test]
    fn the_less_memory_the_fewer_listen() {
        assert_eq!(most_listeners(0), LISTENERS.0);
        assert_eq!(most_listeners(u64::MAX), LISTENERS.1);
    }
}
