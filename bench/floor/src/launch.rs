//! One launch, timed: with nothing around the program, or with everything that the floor stands for.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use libc::c_char;

use crate::cgroup::{Groups, Hierarchies};
use crate::child::{self, Birth};
use crate::stage::{Mount, Stage};

/// The flag of `clone3`; libc's constant is too narrow to hold it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// A block of host ids that nobody else uses, below those of Belljar's sandboxes.
const ID_MAP: &str = "0 1862270976 65536\n";

/// How long a launch took, in nanoseconds.
pub(crate) struct Times {
    /// Until the program was waited for.
    pub(crate) reaped: u64,
    /// Until its cgroups were gone as well.
    pub(crate) removed: u64,
}

/// How much is built around the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One of each kind.
    Least,
    /// The mounts and cgroups of one of Belljar's sandboxes.
    Same,
}

/// Launches one after the other.
pub(crate) struct Launcher {
    hierarchies: Hierarchies,
    stage: Stage,
    /// Programs write their output there, for ours belongs to whoever asks for times.
    output: File,
    count: u64,
}

impl Launcher {
    /// A launcher for this host.
    pub(crate) fn new(hierarchies: Hierarchies, mounts: &[Mount]) -> io::Result<Self> {
        // SAFETY: plain system call.
        if unsafe { libc::geteuid() } != 0 {
            return Err(io::Error::other("the floor needs root; try again with sudo"));
        }
        let output = OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Self { hierarchies, stage: Stage::make(mounts)?, output, count: 0 })
    }

    /// Launches the program behind everything, and waits for it.
    pub(crate) fn floor(&mut self, command: &[CString], extent: Extent) -> io::Result<Times> {
        let argv = pointers(command);
        let start = Instant::now();
        self.count += 1;
        let name = format!("belljar-floor-{}-{}", std::process::id(), self.count);
        let groups = Groups::make(&self.hierarchies, &name, extent)?;
        let (released, mut release) = io::pipe()?;
        let birth = Birth {
            joins: groups.joins(),
            released: released.as_raw_fd(),
            output: self.output.as_raw_fd(),
            stage: &self.stage.directory,
            overlay: &self.stage.overlay,
            more: (extent == Extent::Same).then_some(&self.stage.more),
            argv: &argv,
        };
        let pid = clone(&groups)?;
        if pid == 0 {
            child::become_program(&birth);
        }
        let mapped = fs::write(format!("/proc/{pid}/uid_map"), ID_MAP)
            .and_then(|()| fs::write(format!("/proc/{pid}/gid_map"), ID_MAP))
            .and_then(|()| io::Write::write_all(&mut release, b"1"));
        // Without the byte the child reads an end of file and goes.
        drop(release);
        let status = wait(pid)?;
        let reaped = nanoseconds(start);
        drop(groups);
        let removed = nanoseconds(start);
        mapped?;
        succeeded(status, command)?;
        Ok(Times { reaped, removed })
    }

    /// Forks and executes the program with nothing around it.
    pub(crate) fn bare(&self, command: &[CString]) -> io::Result<Times> {
        let argv = pointers(command);
        let start = Instant::now();
        // SAFETY: this process is single-threaded; the child only executes the program or ends.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: ends the child at once when it could not become the program.
            0 => unsafe { libc::_exit(child::exec(&argv, self.output.as_raw_fd())) },
            _ => {}
        }
        let status = wait(pid)?;
        let reaped = nanoseconds(start);
        succeeded(status, command)?;
        Ok(Times { reaped, removed: reaped })
    }
}

fn pointers(command: &[CString]) -> Vec<*const c_char> {
    command.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
}

fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Forks into all namespaces at once (but that of cgroups, which the child enters once it is in its cgroups).
fn clone(groups: &Groups) -> io::Result<i32> {
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    // SAFETY: an all-zero clone_args is valid: no stack, no tls, nothing shared.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(birthplace) = &groups.birthplace {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = birthplace.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM this is a fork of a single-threaded process; the structure lives across the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
}

fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: waits for our own child; the status is a local.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn succeeded(status: i32, command: &[CString]) -> io::Result<()> {
    if status == 0 {
        return Ok(());
    }
    let program = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let how = match libc::WEXITSTATUS(status) {
        120 => "cannot be executed".to_owned(),
        step @ 101..=117 => format!("was not reached: step {step} of the child failed (see child.rs)"),
        code => format!("ended with status {code} (raw {status:#x})"),
    };
    Err(io::Error::other(format!("{program} {how}")))
}
