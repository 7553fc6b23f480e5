//! The guest's side of a spawn: what can be decided, opened and allocated before the fork.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use belljar_core::wire::{Account, Event, Spawn, stream};
use belljar_core::{Command, Error, ErrorCode, Stdin, UserName, Wall};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::account::Identity;
use crate::birth;
use crate::child::{self, Plan, Pointers, SCRIPT_SHELL};
use crate::connection::Connection;
use crate::flow::{Inlet, Outlet};
use crate::group::Group;
use crate::keeper;
use crate::leaf::Leaf;
use crate::pty::Terminal;
use crate::setup::Setup;
use crate::step::{Step, Stopped};

/// Where programs are looked for when the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A child on its way to exec.
pub(crate) struct Launched {
    pub(crate) names: Names,
    pub(crate) group: Group,
    pub(crate) input: Inlet,
    pub(crate) outlets: Vec<Outlet>,
    pub(crate) terminal: Option<OwnedFd>,
    /// Says the first process's number, then nothing more or why it could not be started.
    pub(crate) report: OwnedFd,
    /// Says how the first process ended, when there is a keeper.
    pub(crate) status: Option<OwnedFd>,
}

/// What an error message has to name.
pub(crate) struct Names {
    program: String,
    directory: String,
}

impl Names {
    /// The error for a child that was stopped on its way.
    pub(crate) fn explain(&self, stopped: Stopped) -> Error {
        let program = &self.program;
        let errno = Errno::from_raw_os_error(stopped.errno);
        match (stopped.step, stopped.errno) {
            (Step::Fork | Step::Execute, libc::EAGAIN) => {
                Error::new(ErrorCode::ResourceExhausted, format!("`{program}`: no room for another process"))
                    .hint("the sandbox is at its limit of processes; end some or give it more with --pids")
            }
            (Step::Execute, libc::ENOENT) => {
                Error::new(ErrorCode::CommandNotFound, format!("`{program}`: command not found"))
                    .hint("the program is looked up inside the sandbox, in its PATH")
            }
            (Step::Interpreter, _) => Error::new(
                ErrorCode::CommandNotExecutable,
                format!("`{program}`: its interpreter or loader is not in the sandbox"),
            ),
            (Step::Execute, libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::ENOTDIR) => {
                Error::new(ErrorCode::CommandNotExecutable, format!("`{program}`: cannot be executed")).hint(
                    "it must be a regular file with the execute permission, in a format the kernel knows",
                )
            }
            (Step::Execute, libc::E2BIG) => {
                Error::new(ErrorCode::InvalidArgument, format!("`{program}`: its arguments are too long"))
            }
            (Step::Directory, _) => {
                let mut error = crate::failure::at(&self.directory, errno);
                error.message = format!("working directory {}", error.message);
                error
            }
            (step, _) => Error::new(
                ErrorCode::Internal,
                format!("`{program}`: could not {}: {}", step.words(), std::io::Error::from(errno)),
            ),
        }
    }
}

/// Starts a child for this request.
pub(crate) fn launch(
    id: u32,
    request: &Spawn,
    setup: &Setup,
    connection: &mut Connection,
) -> Result<Launched, Error> {
    let account = setup.account(request.user)?;
    let argv = arguments(&request.command, &setup.shell);
    let program = argv.first().filter(|word| !word.is_empty()).cloned();
    let program = program.ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "the command is empty"))?;
    let environment = environment(request, setup, account);
    let directory = setup.path_of(account, request.cwd.as_ref().map_or(".", |path| path.as_str()));
    let names = Names { program, directory };
    let failed = |step| {
        let names = &names;
        move |errno: Errno| names.explain(Stopped { step, errno: errno.raw_os_error() })
    };

    let streams = Streams::open(request, account).map_err(failed(Step::Stdio))?;
    let (report, report_child) = out_pipe().map_err(failed(Step::Stdio))?;
    let leaf = match setup.leaves.as_slice() {
        [] => None,
        parents => Some(Leaf::create(parents, id).map_err(failed(Step::Cgroup))?),
    };
    let doors = leaf.as_ref().map(Leaf::doors).transpose().map_err(failed(Step::Cgroup))?.unwrap_or_default();
    let status = match leaf {
        Some(_) => None,
        None => Some(out_pipe().map_err(failed(Step::Stdio))?),
    };

    let plan = Plan {
        script: script(&argv)?,
        candidates: candidates(&names.program, environment.get("PATH").map_or(DEFAULT_PATH, String::as_str))?,
        arguments: Pointers::new(argv.iter().map(|word| text(word)).collect::<Result<_, _>>()?),
        environment: Pointers::new(
            environment
                .iter()
                .map(|(name, value)| text(&format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
        ),
        directory: text(&names.directory)?,
        identity: Identity::new(account, setup.changes_ids()),
        limits: setup.limits.clone(),
        stdio: streams.child_side(),
        terminal: request.pty.is_some(),
        doors: doors.iter().chain(&setup.joins).map(AsRawFd::as_raw_fd).collect(),
        report: report_child.as_raw_fd(),
    };
    if let Some(cgroup) = leaf.as_ref().map(Leaf::number).transpose().map_err(failed(Step::Cgroup))?.flatten()
    {
        // Whoever sees a packet of the child's can find out whose it is.
        connection.event_now(id, &Event::Leaf { cgroup });
    }
    let birthplace = leaf.as_ref().and_then(Leaf::birthplace);
    let forked = fork(&plan, birthplace, status.as_ref().map(|(_, writer)| writer.as_raw_fd()));
    let group = match (leaf, forked) {
        (Some(leaf), Ok(child)) => Group::Leaf { leaf, child: Some(child) },
        (None, Ok(keeper)) => Group::Kept { keeper: Some(keeper) },
        (_, Err(stopped)) => return Err(names.explain(stopped)),
    };
    let status = status.map(|(reader, _)| reader);
    let Streams { input, outlets, terminal, .. } = streams;
    Ok(Launched { names, group, input, outlets, terminal, report, status })
}

fn fork(plan: &Plan, birthplace: Option<BorrowedFd<'_>>, status: Option<RawFd>) -> Result<i32, Stopped> {
    // SAFETY: the guest has one thread, and the child runs code that neither allocates nor returns.
    match unsafe { birth::fork_into(birthplace) } {
        -1 => Err(match Stopped::now(Step::Fork) {
            full @ Stopped { errno: libc::EAGAIN | libc::ENOMEM, .. } => full,
            Stopped { errno, .. } if birthplace.is_some() => Stopped { step: Step::Cgroup, errno },
            other => other,
        }),
        0 => match status {
            None => child::run(plan),
            Some(status) => keeper::keep(plan, status),
        },
        child => Ok(child),
    }
}

fn arguments(command: &Command, shell: &str) -> Vec<String> {
    match command {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(line) => vec![shell.to_owned(), "-c".to_owned(), line.clone()],
    }
}

fn environment(request: &Spawn, setup: &Setup, account: &Account) -> BTreeMap<String, String> {
    let name = match request.user {
        // Templates may have somebody else in its place.
        UserName::User => setup.environment.get("USER").map_or("user", String::as_str),
        UserName::Root => "root",
    };
    let mut environment = setup.environment.clone();
    if !Wall::CleanEnvironment.stands() {
        environment.extend(std::env::vars());
    }
    for (variable, value) in [("HOME", account.home.as_str()), ("USER", name), ("LOGNAME", name)] {
        environment.insert(variable.to_owned(), value.to_owned());
    }
    environment.extend(request.env.clone());
    environment
}

fn candidates(program: &str, path: &str) -> Result<Vec<CString>, Error> {
    if program.contains('/') {
        return Ok(vec![text(program)?]);
    }
    // An empty part of PATH means the working directory.
    let place =
        |part: &str| if part.is_empty() { format!("./{program}") } else { format!("{part}/{program}") };
    path.split(':').map(|part| text(&place(part))).collect()
}

fn script(argv: &[String]) -> Result<Pointers, Error> {
    let arguments = argv.iter().map(|word| text(word)).collect::<Result<Vec<_>, _>>()?;
    Ok(Pointers::new([SCRIPT_SHELL.to_owned()].into_iter().chain(arguments).collect()))
}

fn text(word: &str) -> Result<CString, Error> {
    CString::new(word).map_err(|_| {
        Error::new(ErrorCode::InvalidArgument, format!("`{}` holds a NUL byte", word.escape_debug()))
    })
}

/// The streams of a new execution, both sides.
struct Streams {
    input: Inlet,
    outlets: Vec<Outlet>,
    terminal: Option<OwnedFd>,
    child: [Option<OwnedFd>; 3],
}

impl Streams {
    fn open(request: &Spawn, account: &Account) -> Result<Self, Errno> {
        match request.pty {
            Some(size) => {
                let Terminal { master, slave } = Terminal::open(size, account.uid, account.gid)?;
                let mut input = Inlet::new(Some(rustix::io::fcntl_dupfd_cloexec(&master, 3)?), true);
                if request.stdin == Stdin::Empty {
                    input.end();
                }
                let output = Outlet::new(rustix::io::fcntl_dupfd_cloexec(&master, 3)?, stream::OUTPUT, true);
                let copy = || rustix::io::fcntl_dupfd_cloexec(&slave, 3);
                let child = [Some(copy()?), Some(copy()?), Some(slave)];
                Ok(Self { input, outlets: vec![output], terminal: Some(master), child })
            }
            None => {
                let (input, stdin) = match request.stdin {
                    Stdin::Empty => (None, None),
                    Stdin::Piped => {
                        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                        rustix::io::ioctl_fionbio(&writer, true)?;
                        (Some(writer), Some(reader))
                    }
                };
                let (output, stdout) = out_pipe()?;
                let (error, stderr) = out_pipe()?;
                let outlets = vec![
                    Outlet::new(output, stream::OUTPUT, false),
                    Outlet::new(error, stream::ERROR, false),
                ];
                let child = [stdin, Some(stdout), Some(stderr)];
                Ok(Self { input: Inlet::new(input, false), outlets, terminal: None, child })
            }
        }
    }

    fn child_side(&self) -> [Option<RawFd>; 3] {
        let [stdin, stdout, stderr] = &self.child;
        [stdin, stdout, stderr].map(|fd| fd.as_ref().map(AsRawFd::as_raw_fd))
    }
}

fn out_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_as_execvp_does() {
        let found = |program, path| {
            let list = candidates(program, path).unwrap();
            list.into_iter().map(|path| path.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(found("ls", "/a::/b"), ["/a/ls", "./ls", "/b/ls"]);
        assert_eq!(found("x/ls", "/a"), ["x/ls"]);
    }

    #[test]
    fn a_shell_line_goes_to_the_shell_of_the_template() {
        assert_eq!(arguments(&Command::Shell("a b".into()), "/bin/bash"), ["/bin/bash", "-c", "a b"]);
    }
}
