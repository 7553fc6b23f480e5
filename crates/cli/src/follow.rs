//! Following one command: its output to us, our input and terminal size to it, until it ends.

use std::cell::Cell;
use std::io::IsTerminal;

use belljar_core::{
    Denial, ExecEvent, ExecHandle, ExecId, ExecRequest, ExecResult, Execs, OutputMode, Sandbox, Stdin,
    Stream, Termination,
};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::outcome::Failure;
use crate::outlet::Outlet;
use crate::print::Printer;
use crate::print::escape::Sieve;
use crate::terminal::{self, RawMode, Resizes};

/// Typed in a raw terminal, this leaves a command running (docker's keys).
const DETACH: &[u8] = b"\x10\x11";

/// What becomes of output.
pub(crate) enum Sink<'a> {
    /// It is kept for one object at the end.
    Keep,
    /// It is passed on byte for byte.
    Pass(&'a mut Outlet),
    /// It is passed on without what could steer a terminal.
    Sieve(&'a mut Outlet, Box<[Sieve; 2]>),
}

impl Sink<'_> {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Keep => Ok(()),
            Self::Pass(outlet) => outlet.write(stream, bytes).await,
            Self::Sieve(outlet, sieves) => {
                let text = sieves[stream as usize].pass(bytes);
                outlet.write(stream, text.as_bytes()).await
            }
        }
    }
}

/// What a followed command gets from us.
#[derive(Default)]
pub(crate) struct Ours {
    input: Option<mpsc::Receiver<Bytes>>,
    terminal: Option<(Option<RawMode>, Resizes)>,
    detachable: bool,
}

impl Ours {
    /// Input where it is wanted, and the terminal.
    pub(crate) fn new(input: bool, tty: bool, detachable: bool) -> Result<Self, Failure> {
        let terminal = if tty { Some((RawMode::enter()?, Resizes::new()?)) } else { None };
        let input = if input { Some(terminal::input()?) } else { None };
        Ok(Self { input, terminal, detachable: detachable && tty })
    }
}

/// How following ended.
pub(crate) enum Followed {
    /// The command ended.
    Ended(Box<ExecResult>),
    /// The user left it running.
    Left,
}

/// Follows a command to its end. `started` learns its number as soon as there is one. If the caller drops this future,
/// the command goes on.
pub(crate) async fn follow(
    execs: &dyn Execs,
    handle: Box<dyn ExecHandle>,
    ours: Ours,
    mut sink: Sink<'_>,
    printer: Printer,
    started: &Cell<Option<ExecId>>,
) -> Result<Followed, Failure> {
    let Ours { input, mut terminal, detachable } = ours;
    let mut result = ExecResult::collect([]);
    // Input is sent while output is taken: a command may not read on before its output has gone.
    let mut feeding = input.is_some();
    let feed = feed(handle.as_ref(), input, detachable);
    tokio::pin!(feed);
    loop {
        let resized = async {
            match &mut terminal {
                Some((_, resizes)) => resizes.next().await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            event = handle.next() => event?,
            size = resized => {
                if let Some(exec) = started.get() {
                    execs.resize(exec, size).await?;
                }
                continue;
            }
            fed = &mut feed, if feeding => match fed {
                Fed::Ended => {
                    feeding = false;
                    continue;
                }
                Fed::Detached => return Ok(Followed::Left),
            },
        };
        let Some(event) = event else { break };
        let finished = matches!(event, ExecEvent::Finished { .. });
        match &event {
            ExecEvent::Started { exec, .. } => {
                tracing::Span::current().record("exec", exec.0);
                tracing::debug!("started");
                started.set(Some(*exec));
            }
            ExecEvent::Output { stream, bytes } => {
                // Taking it may wait for our own reader, and input must go on meanwhile.
                let taken = sink.take(*stream, bytes);
                tokio::pin!(taken);
                loop {
                    tokio::select! {
                        biased;
                        taken = &mut taken => break taken?,
                        fed = &mut feed, if feeding => match fed {
                            Fed::Ended => feeding = false,
                            Fed::Detached => return Ok(Followed::Left),
                        },
                    }
                }
            }
            ExecEvent::Gap { bytes, .. } if !matches!(sink, Sink::Keep) => {
                printer.notice(&format!("{bytes} bytes of output are missing here"));
            }
            ExecEvent::Denied(denied) if !matches!(sink, Sink::Keep) => say_denied(denied, printer),
            _ => {}
        }
        if matches!(sink, Sink::Keep) || !matches!(event, ExecEvent::Output { .. }) {
            result.apply(event);
        }
        if finished {
            break;
        }
    }
    tracing::debug!("ended: {}", result.termination.as_str());
    Ok(Followed::Ended(Box::new(result)))
}

enum Fed {
    Ended,
    Detached,
}

/// Sends our input to its end. A command that closed its input, or ended meanwhile, is no failure: its end tells.
async fn feed(handle: &dyn ExecHandle, input: Option<mpsc::Receiver<Bytes>>, detachable: bool) -> Fed {
    let Some(mut input) = input else { return Fed::Ended };
    loop {
        let piece = input.recv().await.unwrap_or_default();
        if detachable && piece.windows(DETACH.len()).any(|keys| keys == DETACH) {
            return Fed::Detached;
        }
        let end = piece.is_empty();
        let sent = handle.write(piece).await.inspect_err(|error| tracing::debug!("input: {error}"));
        if end || sent.is_err() {
            return Fed::Ended;
        }
    }
}

/// What the user asked for with `-i`, `-t` and `--json`.
#[derive(Clone, Copy)]
pub(crate) struct Wishes {
    /// Forward input even from a terminal.
    pub(crate) interactive: bool,
    /// Give the command a terminal.
    pub(crate) tty: bool,
    /// Whether the provider can take input at all.
    pub(crate) can_take_input: bool,
}

/// Runs a command in a sandbox and follows it, or waits for it where the provider cannot stream.
pub(crate) async fn run_and_follow(
    sandbox: &dyn Sandbox,
    mut request: ExecRequest,
    wishes: Wishes,
    outlet: &mut Outlet,
    printer: Printer,
    started: &Cell<Option<ExecId>>,
) -> Result<ExecResult, Failure> {
    let asked = wishes.interactive || wishes.tty;
    let input = asked || (wishes.can_take_input && !std::io::stdin().is_terminal());
    request.stdin = if input { Stdin::Piped } else { Stdin::Empty };
    request.pty = wishes.tty.then(terminal::size);
    request.output = if printer.json { OutputMode::Spool } else { OutputMode::Flow };
    let execs = match sandbox.execs() {
        Ok(execs) => execs,
        Err(error) if asked => return Err(error.into()),
        Err(_) => {
            request.stdin = Stdin::Empty;
            request.output = OutputMode::Spool;
            let result = sandbox.execute(request).await?;
            if !printer.json {
                outlet.write(Stream::Stdout, &result.stdout.to_bytes()).await?;
                outlet.write(Stream::Stderr, &result.stderr.to_bytes()).await?;
                say_denied(&result.denied, printer);
            }
            return Ok(result);
        }
    };
    let handle = execs.start(request).await?;
    let ours = Ours::new(input, wishes.tty, false)?;
    let sink = if printer.json { Sink::Keep } else { Sink::Pass(outlet) };
    match follow(execs, handle, ours, sink, printer, started).await? {
        Followed::Ended(result) => Ok(*result),
        Followed::Left => Err(Failure::internal("left a command that cannot be left")),
    }
}

/// Says what a command wanted of the network and did not get: its own words about it are often no help.
fn say_denied(denied: &[Denial], printer: Printer) {
    denied.iter().for_each(|denial| printer.notice(&denial.to_string()));
}

/// Says on standard error what an exit status alone would not tell, and what to do about it.
pub(crate) fn explain(
    result: &ExecResult,
    timeout: std::time::Duration,
    memory: Option<String>,
    printer: Printer,
) {
    if printer.json {
        return;
    }
    let limit = memory.map_or(String::new(), |memory| format!(" of {memory}"));
    let text = match result.termination {
        Termination::TimedOut => {
            let span = crate::print::table::span(timeout);
            format!("timed out: killed after {span}; allow more time with --timeout")
        }
        Termination::OutOfMemory => {
            format!("out of memory: the sandbox reached its limit{limit}; allow more with --memory")
        }
        Termination::TooManyLocks => {
            "too many locks: its processes held more than 4096 locks on files, which is all that a sandbox may have; \
             let it lock fewer files or ranges at a time"
                .to_owned()
        }
        Termination::Killed => {
            "killed: someone ended the command, or its sandbox ended; a longer life is --ttl".to_owned()
        }
        Termination::Lost => {
            "lost: contact with the sandbox broke, and how the command ended is not known; try `belljar doctor`"
                .to_owned()
        }
        Termination::Exited { code: 0 } => return,
        _ => match result.oom_kills.filter(|kills| *kills > 0) {
            Some(kills) => format!(
                "{kills} of its processes were killed at the memory limit{limit}; allow more with --memory"
            ),
            None => return,
        },
    };
    printer.notice(&text);
}
