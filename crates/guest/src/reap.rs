//! Taking note of every process that ends. As the first process of its namespace the guest inherits all orphans.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// How a process ended and what it and the children it waited for had used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pid: i32,
    status: i32,
    pub(crate) cpu_us: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
}

impl Ended {
    /// Bytes of the message with which a keeper passes this on.
    pub(crate) const BYTES: usize = 40;

    /// Waits for any child. `None` when none has ended (with `WNOHANG`) or none is left. Does not allocate.
    pub(crate) fn wait(flags: i32) -> Option<Self> {
        let mut status = 0;
        // SAFETY: rusage is plain numbers, for which all zeros is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: both pointers are to live values of the right type.
            let pid = unsafe { libc::wait4(-1, &raw mut status, flags, &raw mut usage) };
            if pid > 0 {
                return Some(Self::new(pid, status, &usage));
            }
            if pid == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return None;
            }
        }
    }

    fn new(pid: i32, status: i32, usage: &libc::rusage) -> Self {
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Self {
            pid,
            status,
            cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
            read_bytes: usage.ru_inblock as u64 * 512,
            write_bytes: usage.ru_oublock as u64 * 512,
        }
    }

    /// What is told of a process whose end nobody saw.
    pub(crate) fn unseen(pid: i32) -> Self {
        Self { pid, status: libc::SIGKILL, cpu_us: 0, read_bytes: 0, write_bytes: 0 }
    }

    /// Its exit status, when it exited.
    pub(crate) fn code(&self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }

    /// The signal, when one ended it.
    pub(crate) fn signal(&self) -> Option<i32> {
        libc::WIFSIGNALED(self.status).then(|| libc::WTERMSIG(self.status))
    }

    /// As a message.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.pid as u64, self.status as u64, self.cpu_us, self.read_bytes, self.write_bytes];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From a message.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            pid: word(0) as i32,
            status: word(1) as i32,
            cpu_us: word(2),
            read_bytes: word(3),
            write_bytes: word(4),
        }
    }
}

/// A descriptor that becomes readable when a child ends.
pub(crate) struct Children {
    signals: OwnedFd,
}

impl Children {
    /// Blocks `SIGCHLD`, so that it comes by the descriptor only.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the set is initialised before use, and signalfd's result is a descriptor of our own.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            if libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) == -1 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self { signals: OwnedFd::from_raw_fd(fd) }),
            }
        }
    }

    /// Every process that has ended since.
    pub(crate) fn reap(&mut self) -> Vec<Ended> {
        let mut message = [0; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.signals, &mut message).is_ok() {}
        std::iter::from_fn(|| Ended::wait(libc::WNOHANG)).collect()
    }
}

impl AsFd for Children {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_survives_the_pipe() {
        let ended = Ended { pid: 7, status: 3 << 8, cpu_us: 1, read_bytes: 512, write_bytes: u64::MAX };
        assert_eq!(Ended::from_bytes(&ended.to_bytes()), ended);
        assert_eq!((ended.code(), ended.signal()), (Some(3), None));
        assert_eq!(Ended::unseen(7).signal(), Some(libc::SIGKILL));
    }
}
