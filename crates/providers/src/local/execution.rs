//! One command: starting it, looking after it, and its end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_core::{
    Command, Ending, Error, ErrorCode, ExecId, ExecInfo, ExecRequest, Position, Result, Stdin, Stream,
    Termination,
};
use bytes::Bytes;
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::journal::{Follower, Journal, Pace};
use super::tree::{MARK, Tree};

const PIECE: usize = 64 << 10;

/// A command that runs or has run. Its processes are looked after by a task that its sandbox owns.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) exec: ExecId,
    request: ExecRequest,
    tree: Tree,
    journal: Arc<Journal>,
    kill: Arc<Notify>,
    input: Option<mpsc::Sender<Bytes>>,
}

/// Where and with what a command starts.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) cwd: &'a Path,
    /// The whole environment but for what the request adds.
    pub(super) env: &'a BTreeMap<OsString, OsString>,
    pub(super) shell: &'a str,
    /// Owns the task that looks after the command.
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl Execution {
    /// Starts a command with nothing of ours but these surroundings.
    pub(super) fn start(
        exec: ExecId,
        mark: String,
        request: ExecRequest,
        surroundings: Surroundings<'_>,
    ) -> Result<Self> {
        let Surroundings { cwd, env, shell, tasks } = surroundings;
        let arrived = Instant::now();
        let argv: Vec<&str> = match &request.command {
            Command::Argv(argv) => argv.iter().map(String::as_str).collect(),
            Command::Shell(line) => vec![shell, "-c", line],
        };
        let mut command = tokio::process::Command::new(argv[0]);
        command
            .args(&argv[1..])
            .env_clear()
            .envs(env)
            .envs(&request.env)
            .env(MARK, &mark)
            .current_dir(cwd)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(if request.stdin == Stdin::Piped { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| start_error(argv[0], &error))?;

        let tree = Tree { mark, leader: child.id().and_then(|pid| i32::try_from(pid).ok()) };
        let journal = Arc::new(Journal::new(exec, arrived.elapsed(), request.output));
        let kill = Arc::new(Notify::new());
        let (input, pieces) = mpsc::channel(1);
        let stdin = child.stdin.take();
        let input = stdin.is_some().then_some(input);
        let supervision = Supervision {
            child,
            tree: tree.clone(),
            journal: Arc::clone(&journal),
            kill: Arc::clone(&kill),
            timeout: request.timeout,
        };
        tasks.spawn(supervision.run(stdin, pieces));
        Ok(Self { exec, request, tree, journal, kill, input })
    }

    pub(super) fn info(&self) -> ExecInfo {
        ExecInfo {
            exec: self.exec,
            command: self.request.command.clone(),
            user: self.request.user,
            termination: self.journal.termination(),
            key: self.request.key.clone(),
            purpose: self.request.purpose.clone(),
            said: self.journal.said(),
        }
    }

    /// Whether it was asked for with this key.
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.request.key.as_deref() == Some(key)
    }

    pub(super) fn is_running(&self) -> bool {
        self.journal.termination().is_none()
    }

    pub(super) fn follow(&self, pace: Pace) -> Follower {
        Follower::new(Arc::clone(&self.journal), pace)
    }

    /// A follower that comes later, for whom nobody waits.
    pub(super) fn follow_from(&self, from: Position) -> Result<Follower> {
        Follower::from(Arc::clone(&self.journal), from)
    }

    /// Asks for the end of the whole tree; without effect on a command that ended.
    pub(super) fn kill(&self) {
        self.kill.notify_one();
    }

    /// Tells followers that it was killed together with whoever looked after it.
    pub(super) fn abandon(&self) {
        self.journal.finish(Termination::Killed, Duration::ZERO);
    }

    /// Waits for the end.
    pub(super) async fn finished(&self) -> Ending {
        self.journal.finished().await
    }

    /// Sends a signal to every process found.
    pub(super) fn signal(&self, signal: Signal) {
        self.tree.signal(signal);
    }

    /// Sends input, waiting while the command does not read; an empty piece is the end of it.
    pub(super) async fn write(&self, piece: Bytes) -> Result<()> {
        let Some(input) = &self.input else {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("execution {} was started without input", self.exec),
            )
            .hint("start it with piped input"));
        };
        input.send(piece).await.map_err(|_| {
            Error::new(
                ErrorCode::InvalidArgument,
                format!("execution {} does not read input any more", self.exec),
            )
        })
    }
}

fn start_error(program: &str, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::CommandNotFound,
        io::ErrorKind::ArgumentListTooLong => ErrorCode::InvalidArgument,
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => ErrorCode::ResourceExhausted,
        io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            ErrorCode::CommandNotExecutable
        }
        _ if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => ErrorCode::CommandNotExecutable,
        _ => ErrorCode::Internal,
    };
    Error::new(code, format!("cannot start `{}`: {error}", program.escape_debug()))
}

/// Why a command came to its end.
enum End {
    Itself(io::Result<ExitStatus>),
    TimedOut,
    Killed,
}

/// The task that looks after a command.
struct Supervision {
    child: Child,
    tree: Tree,
    journal: Arc<Journal>,
    kill: Arc<Notify>,
    timeout: Duration,
}

impl Supervision {
    async fn run(mut self, stdin: Option<ChildStdin>, pieces: mpsc::Receiver<Bytes>) {
        let began = Instant::now();
        let (mut stdout, mut stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let end = {
            let carry = async {
                tokio::join!(
                    pump(&self.journal, Stream::Stdout, stdout.as_mut()),
                    pump(&self.journal, Stream::Stderr, stderr.as_mut()),
                    feed(stdin, pieces),
                );
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = self.kill.notified() => End::Killed,
                status = self.child.wait() => End::Itself(status),
                () = tokio::time::sleep(self.timeout) => End::TimedOut,
                () = carry => unreachable!("carrying never ends by itself"),
            }
        };
        let termination = match end {
            End::Itself(status) => status.map_or(Termination::Lost, of_status),
            End::TimedOut | End::Killed => {
                let tree = self.tree.clone();
                // The first process is not waited for until the killing is over: its number stays taken.
                let killing = tokio::task::spawn_blocking(move || tree.kill()).await;
                let waited = self.child.wait().await;
                match (killing, waited, end) {
                    (Err(_), ..) | (_, Err(_), _) => Termination::Lost,
                    (_, _, End::TimedOut) => Termination::TimedOut,
                    _ => Termination::Killed,
                }
            }
        };
        drain(&self.journal, Stream::Stdout, stdout.as_ref());
        drain(&self.journal, Stream::Stderr, stderr.as_ref());
        self.journal.finish(termination, began.elapsed());

        // Processes it left behind may go on writing; they would be killed by a closed pipe and stopped by a full one.
        tokio::join!(discard(stdout), discard(stderr));
    }
}

fn of_status(status: ExitStatus) -> Termination {
    match (status.code(), status.signal()) {
        (Some(code), _) => Termination::Exited { code },
        (None, Some(signal)) => Termination::Signaled { signal },
        (None, None) => Termination::Lost,
    }
}

/// Takes output as it comes. Nothing is lost when this is dropped: what was read is in the journal.
async fn pump(journal: &Journal, stream: Stream, source: Option<&mut (impl AsyncRead + Unpin)>) {
    let Some(source) = source else { return };
    let mut buffer = vec![0; PIECE];
    loop {
        journal.room().await;
        match source.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => journal.push(stream, &buffer[..count]),
        }
    }
}

/// Takes what is in the pipe now, without waiting for whoever still holds its other end.
fn drain(journal: &Journal, stream: Stream, source: Option<&impl AsFd>) {
    let Some(source) = source else { return };
    let mut buffer = vec![0; PIECE];
    // A pipe holds at most a mebibyte unless a privileged process enlarged it; someone may be filling it meanwhile.
    let mut left = 1 << 20;
    while left > 0 {
        match rustix::io::read(source, &mut buffer[..]) {
            Ok(0) => return,
            Ok(count) => {
                journal.push(stream, &buffer[..count]);
                left -= count.min(left);
            }
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

async fn discard(source: Option<impl AsyncRead + Unpin>) {
    let Some(mut source) = source else { return };
    // A pipe that cannot be read any more needs no reader.
    let _ = tokio::io::copy(&mut source, &mut tokio::io::sink()).await;
}

/// Passes input on until an empty piece, or until the command does not take it.
async fn feed(stdin: Option<ChildStdin>, mut pieces: mpsc::Receiver<Bytes>) {
    let Some(mut stdin) = stdin else { return };
    while let Some(piece) = pieces.recv().await {
        if piece.is_empty() || stdin.write_all(&piece).await.is_err() {
            return;
        }
    }
}
