//! A process that does one file operation as a user of the sandbox, and so can do no more than that user could.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use belljar_core::wire::{Event, FileRequest, Frame, MAX_DATA, stream};
use belljar_core::{Error, ErrorCode};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::account::Identity;
use crate::birth;
use crate::failure;
use crate::files;
use crate::setup::Setup;
use crate::step::{Step, Stopped, check};

/// The most memory that a worker may have of its own, for what it parses is foreign.
const MEMORY: u64 = 64 * 1024 * 1024;

/// A worker and its pipes, neither of which blocks.
pub(crate) struct Worker {
    pub(crate) pid: i32,
    pub(crate) input: OwnedFd,
    pub(crate) results: OwnedFd,
}

/// Forks a worker.
pub(crate) fn start(request: FileRequest, setup: &Setup) -> Result<Worker, Error> {
    let account = setup.account(request.user)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failure::at("pipe", errno));
    let (stdin, input) = pipe()?;
    let (results, stdout) = pipe()?;
    for end in [&input, &results] {
        rustix::io::ioctl_fionbio(end, true).map_err(|errno| failure::at("pipe", errno))?;
    }
    let files = setup.files().map_err(|errno| failure::at("make a cgroup for file operations", errno))?;
    // SAFETY: the guest has one thread, so the child may go on as an ordinary program; it never returns.
    match unsafe { birth::fork_into(files.birthplace()) } {
        -1 => Err(Error::new(ErrorCode::ResourceExhausted, "no room for a process to do the file operation")
            .hint("the sandbox is at its limit of processes; end some or give it more with --pids")),
        0 => {
            let identity = Identity::new(account, setup.changes_ids());
            let mut answer = Answer;
            let done = match become_worker(&identity, setup, stdin.as_raw_fd(), stdout.as_raw_fd()) {
                Ok(()) => files::run(request.operation, account.directory(), &mut answer),
                Err(stopped) => Err(unprepared(stopped)),
            };
            if let Err(error) = done {
                let _ = answer.event(&Event::Failed(error));
            }
            // SAFETY: ends this process without running anything of the guest's.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(Worker { pid, input, results }),
    }
}

fn unprepared(stopped: Stopped) -> Error {
    let reason = io::Error::from_raw_os_error(stopped.errno);
    Error::new(
        ErrorCode::Internal,
        format!("the file operation could not {}: {reason}", stopped.step.words()),
    )
}

fn become_worker(identity: &Identity, setup: &Setup, stdin: RawFd, stdout: RawFd) -> Result<(), Stopped> {
    // What it writes counts as the sandbox's memory, as if a command had written it.
    for door in &setup.file_joins {
        rustix::io::write(door, b"0")
            .map_err(|errno| Stopped { step: Step::Cgroup, errno: errno.raw_os_error() })?;
    }
    let given = setup.limits.iter().find(|(resource, ..)| *resource == libc::RLIMIT_DATA);
    let most = given.map_or(MEMORY, |(_, _, hard)| MEMORY.min(*hard));
    let memory = (libc::RLIMIT_DATA, most, most);
    // SAFETY: takes numbers and pointers to live values only. Both pipe ends are above 2.
    unsafe {
        check(Step::Stdio, i64::from(libc::dup2(stdin, 0)))?;
        check(Step::Stdio, i64::from(libc::dup2(stdout, 1)))?;
        for (resource, soft, hard) in setup.limits.iter().chain([&memory]) {
            let limit = libc::rlimit64 { rlim_cur: *soft, rlim_max: *hard };
            let nothing = std::ptr::null_mut::<libc::rlimit64>();
            let result = libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const limit, nothing);
            check(Step::Limits, result)?;
        }
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::umask(0o022);
    }
    identity.assume()?;
    // SAFETY: takes numbers only; from here on the worker uses its standard streams and what it opens itself.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        check(Step::Descriptors, libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0))?;
    }
    Ok(())
}

/// What a worker says to the guest: events, and data as a [`Write`]. Each write becomes one or more frames.
pub(crate) struct Answer;

impl Answer {
    /// Says an event.
    pub(crate) fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.frame(&Frame::control(0, event)).map_err(|error| gone(&error))
    }

    /// Says that the data is complete.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.frame(&Frame::end(0, stream::OUTPUT)).map_err(|error| gone(&error))
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(rustix::stdio::stdout(), rest) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl Write for Answer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(MAX_DATA);
        if count > 0 {
            self.frame(&Frame::data(0, stream::OUTPUT, &bytes[..count]))?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn gone(error: &io::Error) -> Error {
    failure::at_io("the guest", error)
}
