//! The child's side of a spawn: from fork to exec. Everything it needs was allocated before; nothing here allocates.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;
use std::ptr;

use belljar_core::Wall;
use libc::{c_char, c_long};

use crate::account::Identity;
use crate::step::{Step, Stopped, check};

/// Everything that a child needs, decided before the fork.
pub(crate) struct Plan {
    /// The program's arguments, as text that the pointer lists refer to.
    pub(crate) arguments: Pointers,
    /// The same for a script without an interpreter line: `/bin/sh`, the script (filled in late), the arguments.
    pub(crate) script: Pointers,
    /// The environment.
    pub(crate) environment: Pointers,
    /// Where the program may be, in order.
    pub(crate) candidates: Vec<CString>,
    /// Where it starts.
    pub(crate) directory: CString,
    /// Who it becomes.
    pub(crate) identity: Identity,
    /// Its resource limits.
    pub(crate) limits: Vec<(u32, u64, u64)>,
    /// Its standard streams; one that is not given stays the guest's own (the null device).
    pub(crate) stdio: [Option<RawFd>; 3],
    /// Whether its standard input is to be its controlling terminal.
    pub(crate) terminal: bool,
    /// The files of version-one cgroups to enter by.
    pub(crate) doors: Vec<RawFd>,
    /// Where it says its number, and why it failed if it does.
    pub(crate) report: RawFd,
}

/// A list of C strings with its null-terminated list of pointers.
pub(crate) struct Pointers {
    _text: Vec<CString>,
    list: Vec<*const c_char>,
}

impl Pointers {
    /// The list for these strings.
    pub(crate) fn new(text: Vec<CString>) -> Self {
        let list = text.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
        Self { _text: text, list }
    }
}

/// The shell that runs a script without an interpreter line.
pub(crate) const SCRIPT_SHELL: &CStr = c"/bin/sh";

/// The place in the script's argument list where the script itself goes.
const SCRIPT: usize = 1;

/// The report pipe's number in the child, once everything else is closed.
const REPORT: RawFd = 3;

/// The child's out-of-memory score: it goes before the guest and its file operations.
const OOM_SCORE: &[u8] = b"500";

/// How long a turn at the processor is for an execution: twice what a process has by default on a small machine.
const TURN_NANOS: u64 = 3_000_000;

/// Becomes the program, or says why not. Never returns.
pub(crate) fn run(plan: &Plan) -> ! {
    take_long_turns();
    // SAFETY: takes no arguments.
    let pid = unsafe { libc::getpid() }.to_le_bytes();
    // SAFETY: the buffer is live.
    unsafe { libc::write(plan.report, pid.as_ptr().cast(), pid.len()) };
    let mut report_to = plan.report;
    let Err(stopped) = become_program(plan, &mut report_to);
    report(report_to, stopped);
    // SAFETY: ends this process without running anything of the guest's.
    unsafe { libc::_exit(127) }
}

/// Says where a child was stopped.
pub(crate) fn report(pipe: RawFd, stopped: Stopped) {
    let message = stopped.to_bytes();
    // SAFETY: the buffer is live; a message this small goes into the pipe in one piece.
    unsafe { libc::write(pipe, message.as_ptr().cast(), message.len()) };
}

enum Never {}

fn become_program(plan: &Plan, report_to: &mut RawFd) -> Result<Never, Stopped> {
    // SAFETY: takes no arguments.
    check(Step::Session, c_long::from(unsafe { libc::setsid() }))?;
    enter_cgroups(plan)?;
    take_stdio(plan)?;
    set_limits(plan)?;
    plan.identity.assume()?;
    // As the target user, so that it goes only where that user may.
    // SAFETY: the path is a live C string.
    check(Step::Directory, c_long::from(unsafe { libc::chdir(plan.directory.as_ptr()) }))?;
    reset_signals();
    close_the_rest(plan.report, report_to)?;
    execute(plan)
}

fn enter_cgroups(plan: &Plan) -> Result<(), Stopped> {
    for door in &plan.doors {
        // SAFETY: the buffer is live.
        check(Step::Cgroup, unsafe { libc::write(*door, c"0".as_ptr().cast(), 1) } as c_long)?;
    }
    // SAFETY: path and buffer are live. Where the kernel does not allow it, the score stays what it was.
    unsafe {
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file != -1 {
            libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(file);
        }
    }
    Ok(())
}

fn take_stdio(plan: &Plan) -> Result<(), Stopped> {
    for (target, source) in (0..).zip(plan.stdio) {
        if let Some(source) = source {
            // SAFETY: the guest's own descriptors are all above 2, so none is overwritten before its turn.
            check(Step::Stdio, c_long::from(unsafe { libc::dup2(source, target) }))?;
        }
    }
    if plan.terminal {
        // SAFETY: this request takes a number.
        check(Step::Terminal, c_long::from(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }))?;
    }
    Ok(())
}

fn set_limits(plan: &Plan) -> Result<(), Stopped> {
    for (resource, soft, hard) in &plan.limits {
        let limit = libc::rlimit64 { rlim_cur: *soft, rlim_max: *hard };
        let nothing = ptr::null_mut::<libc::rlimit64>();
        // SAFETY: the limit is live, and the old one is not asked for.
        let result = unsafe { libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const limit, nothing) };
        check(Step::Limits, result)?;
    }
    // SAFETY: takes a number.
    unsafe { libc::umask(0o022) };
    Ok(())
}

/// Has the scheduler give the execution long turns, so that whoever is woken beside it, our own processes and other
/// sandboxes' among them, need not wait for its end. Born with the guest's short ones, the child itself was let in at
/// once. It comes first, for with turns of another length the scheduler may think again about who is next.
fn take_long_turns() {
    // SAFETY: zeros are valid attributes; they are live, and their size is true. All but the turns stay as they are.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let size = size_of_val(&attributes);
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 {
            attributes.sched_runtime = TURN_NANOS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

fn reset_signals() {
    // The kernel's own call, because libc refuses to touch two signals that a parent may have left ignored.
    let by_default = [0u64; 4];
    let nothing = ptr::null_mut::<u64>();
    // SAFETY: a kernel sigaction is four words, and all zeros asks for the default action; the mask is eight bytes;
    // the set is initialised before use. The two signals that cannot be changed are refused without effect.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, by_default.as_ptr(), nothing, 8);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Leaves the child with its standard streams and, until exec, the report pipe. The process stays undumpable until
/// exec, which makes it dumpable again by itself.
fn close_the_rest(report: RawFd, report_to: &mut RawFd) -> Result<(), Stopped> {
    if report != REPORT {
        // SAFETY: takes numbers only; nothing below uses what had this number before.
        check(Step::Descriptors, c_long::from(unsafe { libc::dup3(report, REPORT, libc::O_CLOEXEC) }))?;
        *report_to = REPORT;
    }
    if Wall::DescriptorsClosed.stands() {
        // SAFETY: as above.
        check(Step::Descriptors, unsafe { libc::syscall(libc::SYS_close_range, REPORT + 1, u32::MAX, 0) })?;
    }
    Ok(())
}

/// Tries the candidates as `execvp` does.
fn execute(plan: &Plan) -> Result<Never, Stopped> {
    let mut last = Stopped { step: Step::Execute, errno: libc::ENOENT };
    for candidate in &plan.candidates {
        // SAFETY: the path and both lists are live and end in null.
        unsafe {
            libc::execve(candidate.as_ptr(), plan.arguments.list.as_ptr(), plan.environment.list.as_ptr());
        }
        let stopped = Stopped::now(Step::Execute);
        match stopped.errno {
            libc::ENOEXEC if is_script(candidate) => return execute_script(plan, candidate),
            // SAFETY: the path is a live C string.
            libc::ENOENT if unsafe { libc::access(candidate.as_ptr(), libc::F_OK) } == 0 => {
                return Err(Stopped { step: Step::Interpreter, errno: libc::ENOENT });
            }
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => last = stopped,
            _ => return Err(stopped),
        }
    }
    Err(last)
}

/// Whether a file that the kernel cannot execute may be a script: not if it says that it is a program.
fn is_script(candidate: &CStr) -> bool {
    let mut start = [0u8; 4];
    // SAFETY: path and buffer are live; the descriptor is our own.
    unsafe {
        let file = libc::open(candidate.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file == -1 {
            return true;
        }
        libc::read(file, start.as_mut_ptr().cast(), start.len());
        libc::close(file);
    }
    start != *b"\x7fELF"
}

fn execute_script(plan: &Plan, script: &CStr) -> Result<Never, Stopped> {
    // SAFETY: the list was made with a place for the script, and this process, alone after fork, is its only user;
    // path and lists are live and end in null.
    unsafe {
        let list = plan.script.list.as_ptr().cast_mut();
        *list.add(SCRIPT) = script.as_ptr();
        libc::execve(SCRIPT_SHELL.as_ptr(), list, plan.environment.list.as_ptr());
    }
    Err(Stopped { step: Step::Execute, errno: libc::ENOEXEC })
}
