//! Where probes run: in a process of their own, if they like in namespaces of its own, always with a time limit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};
use rustix::pipe::{PipeFlags, pipe_with};

use super::is_root;
use crate::mounts;
use crate::namespaces::{self, Forked, check};
use crate::plan::USER_ID;
use crate::slot::{self, SLOTS, Slot};

/// What a probe found: what works, or which step did not and why.
pub(super) type Proof = Result<String, String>;

/// A probe that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer of a probe that is read.
const MAX_ANSWER: u64 = 1 << 20;
/// Ends an answer, so that nobody waits for stray processes that hold the pipe.
const END: u8 = 0;
/// Over this directory a probe mounts a file system that only it sees.
const SCRATCH: &str = "/tmp";

/// Words for a step that failed.
pub(super) trait Failing<T> {
    /// `what` as what cannot be done.
    fn failing(self, what: &str) -> Result<T, String>;
}

impl<T, E: std::error::Error> Failing<T> for Result<T, E> {
    fn failing(self, what: &str) -> Result<T, String> {
        self.map_err(|error| {
            let mut words = format!("cannot {what}: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                words = format!("{words}: {error}");
                cause = error.source();
            }
            words
        })
    }
}

/// Runs a probe in a child, and kills it with all it started when it is done or takes too long.
pub(super) fn in_child(probe: impl FnOnce() -> Proof) -> Proof {
    in_child_within(PATIENCE, probe)
}

pub(crate) fn in_child_within(patience: Duration, probe: impl FnOnce() -> Proof) -> Proof {
    let deadline = Instant::now() + patience;
    let (answer, say) = pipe_with(PipeFlags::CLOEXEC).failing("make a pipe")?;
    // SAFETY: after `fork` the C library's allocator is usable in the child, which has one thread, takes no lock that
    // another thread of ours could hold, and leaves by `_exit`.
    let pid = check(unsafe { libc::fork() }).failing("fork")?;
    // A group of its own, so that all of it can be killed; said on both sides because either may come first.
    // SAFETY: plain system call on numbers; for the child, 0 is itself.
    unsafe { libc::setpgid(pid, pid) };
    if pid == 0 {
        // SAFETY: plain system call on numbers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
        drop(answer);
        leave(say, probe)
    }
    let child = Group(pid);
    drop(say);
    let mut bytes = Vec::new();
    let answered = read_until(&answer, deadline, &mut bytes);
    drop(child);
    match answered {
        Ok(()) => parse(&bytes),
        Err(error) => Err(format!("the probe did not answer: {error}")),
    }
}

/// A child that leads a process group, which ends with this value.
struct Group(i32);

impl Drop for Group {
    fn drop(&mut self) {
        // The leader is reaped last: until then nobody else can have its number.
        // SAFETY: plain system calls on numbers, for an unreaped child of ours.
        unsafe {
            libc::kill(-self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Says what a probe finds and ends the process, without running anything that belongs to the parent.
fn leave(say: OwnedFd, probe: impl FnOnce() -> Proof) -> ! {
    // The usual report takes locks that another thread may have held when we were forked.
    std::panic::set_hook(Box::new(|_| {}));
    let proof = catch_unwind(AssertUnwindSafe(probe)).unwrap_or_else(|_| Err("the probe panicked".into()));
    let (sign, words) = match &proof {
        Ok(words) => (b'+', words),
        Err(words) => (b'-', words),
    };
    let mut message = vec![sign];
    message.extend_from_slice(words.as_bytes());
    message.push(END);
    let _ = File::from(say).write_all(&message);
    // SAFETY: ends this process at once.
    unsafe { libc::_exit(0) }
}

fn parse(answer: &[u8]) -> Proof {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match answer {
        [b'+', rest @ .., END] => Ok(words(rest)),
        [b'-', rest @ .., END] => Err(words(rest)),
        _ => Err("the probe died without a word".into()),
    }
}

fn read_until(pipe: &OwnedFd, deadline: Instant, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut ready = [PollFd::new(pipe, PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
            Err(rustix::io::Errno::INTR) => continue,
            ready => ready?,
        };
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) if bytes.len() as u64 + count as u64 > MAX_ANSWER => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it said too much"));
            }
            Ok(count) => {
                bytes.extend_from_slice(&buffer[..count]);
                if bytes.last() == Some(&END) {
                    return Ok(());
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs a probe where a sandbox's first process finds itself: in new user, pid, network, ipc and uts namespaces, its
/// ids mapped as a launch would map them, all capabilities of the user namespace in hand.
pub(super) fn in_namespaces(probe: impl FnOnce() -> Proof) -> Proof {
    in_child(|| {
        let slot = borrow_slot()?;
        Inner::start(slot.as_ref(), probe)?.answer()
    })
}

/// Runs a probe in a mount namespace of its own, in an empty directory that only it sees. What the probe gets is the
/// slot whose ids it may use, if the host's root runs it; otherwise it is in namespaces as [`in_namespaces`] makes.
pub(super) fn in_scratch(probe: impl FnOnce(Option<&Slot>) -> Proof) -> Proof {
    if is_root() {
        return in_child(|| probe(borrow_slot()?.as_ref()));
    }
    in_namespaces(|| {
        enter_scratch()?;
        probe(None)
    })
}

/// A block of ids beyond those of any sandbox; its lock lies where only this process sees it. Nothing without root.
fn borrow_slot() -> Result<Option<Slot>, String> {
    if !is_root() {
        return Ok(None);
    }
    enter_scratch()?;
    // Beyond this there are no more blocks of ids.
    let number = SLOTS + std::process::id() % 1000;
    match slot::try_hold(Path::new(SCRATCH), number) {
        Some(slot) => Ok(Some(slot)),
        None => Err("cannot lock a slot".into()),
    }
}

fn enter_scratch() -> Result<(), String> {
    // SAFETY: plain system call; the process is single-threaded.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).failing("make a mount namespace")?;
    mounts::make_private().map_err(|error| error.to_string())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("belljar", SCRATCH, "tmpfs", flags, c"size=64m,mode=0755")
        .failing(&format!("mount a tmpfs on {SCRATCH}"))?;
    std::env::set_current_dir(SCRATCH).failing(&format!("enter {SCRATCH}"))
}

/// A process in namespaces of its own, with its ids mapped; it dies with this value.
pub(super) struct Inner {
    pid: i32,
    answer: OwnedFd,
}

impl Inner {
    /// Starts one that runs `probe`. The caller is itself a probe: single-threaded.
    pub(super) fn start(slot: Option<&Slot>, probe: impl FnOnce() -> Proof) -> Result<Self, String> {
        let (release, released) = pipe_with(PipeFlags::CLOEXEC).failing("make a pipe")?;
        let (answer, say) = pipe_with(PipeFlags::CLOEXEC).failing("make a pipe")?;
        let forked = match slot {
            Some(slot) => namespaces::clone_as_owner(slot, None),
            None => namespaces::clone_into_namespaces(None),
        };
        let pid = match forked.failing("create namespaces")? {
            Forked::Parent { pid, .. } => pid,
            Forked::Child => leave(say, || {
                drop(released);
                namespaces::enter_namespaces().failing("create namespaces")?;
                File::from(release).read_exact(&mut [0]).failing("be released")?;
                if slot.is_some() {
                    namespaces::become_root().failing("become root of the user namespace")?;
                }
                probe()
            }),
        };
        let inner = Self { pid, answer };
        match slot {
            Some(slot) => namespaces::map_block(pid, slot),
            None => namespaces::map_single(pid, USER_ID),
        }
        .failing("map user ids")?;
        File::from(released).write_all(&[1]).failing("release the probe")?;
        Ok(inner)
    }

    /// Starts one that only exists, for the sake of its user namespace.
    pub(super) fn idle(slot: &Slot) -> Result<Self, String> {
        Self::start(Some(slot), || {
            // SAFETY: takes no arguments. Handles no signal, so it does not return.
            unsafe { libc::pause() };
            Err("woken up".into())
        })
    }

    /// Its user namespace.
    pub(super) fn user_namespace(&self) -> Result<OwnedFd, String> {
        namespaces::user_namespace(self.pid).failing("open a user namespace")
    }

    /// Waits for what the probe found. The time limit is that of the surrounding probe.
    fn answer(&self) -> Proof {
        let mut bytes = Vec::new();
        let answer = self.answer.try_clone().failing("copy a descriptor")?;
        File::from(answer).take(MAX_ANSWER).read_to_end(&mut bytes).failing("read a probe's answer")?;
        parse(&bytes)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: plain system calls on numbers, for an unreaped child of ours.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// That a call was refused with the one error that shows the wall, and not with another or not at all.
pub(super) fn refused<T>(what: &str, result: io::Result<T>, errno: i32) -> Result<(), String> {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(format!("{what} failed for another reason than it should: {error}")),
        Ok(_) => Err(format!("{what} was not refused")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_answers_fails_panics_or_is_killed() {
        assert_eq!(in_child(|| Ok("yes".into())), Ok("yes".into()));
        assert_eq!(in_child(|| Err("no".into())), Err("no".into()));
        assert_eq!(in_child(|| panic!("on purpose")), Err("the probe panicked".into()));
        let slow = in_child_within(Duration::from_millis(50), || {
            // SAFETY: takes no arguments.
            unsafe { libc::pause() };
            Ok(String::new())
        });
        assert_eq!(slow, Err("the probe did not answer: it took too long".into()));
        let dead = in_child(|| {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        });
        assert_eq!(dead, Err("the probe died without a word".into()));
    }
}
