//! Running a command: what is asked, what happens meanwhile, how it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::is_plain;
use crate::spec::check_env;
use crate::{Denial, Error, ErrorCode, ExecId, FilePath, Result};

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments; the program is looked up in the sandbox's `PATH`.
    Argv(Vec<String>),
    /// A line for the template's shell.
    Shell(String),
}

/// Who runs it inside the sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserName {
    /// The default user, without any capability.
    #[default]
    User,
    /// Root of the sandbox's user namespace, with a short list of capabilities; never root of the host.
    Root,
}

impl FromStr for UserName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "user" => Ok(Self::User),
            "root" => Ok(Self::Root),
            _ => {
                Err(Error::new(ErrorCode::InvalidArgument, format!("unknown user `{}`", text.escape_debug()))
                    .hint("use `user` (the default, no capabilities) or `root` (root of the sandbox only)"))
            }
        }
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::User => "user",
            Self::Root => "root",
        })
    }
}

/// Where standard input comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// End of file at once.
    #[default]
    Empty,
    /// Sent by the caller while the command runs.
    Piped,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// What happens when output comes faster than the caller takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// Output goes to a bounded spool: the command never waits, head and tail are kept, the gap is counted.
    #[default]
    Spool,
    /// Every byte reaches the caller, and the command waits for the caller.
    Flow,
}

/// One command to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// What to run.
    pub command: Command,
    /// Where; the user's home when not given.
    #[serde(default)]
    pub cwd: Option<FilePath>,
    /// Variables on top of the sandbox's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Who.
    #[serde(default)]
    pub user: UserName,
    /// Where input comes from.
    #[serde(default)]
    pub stdin: Stdin,
    /// Give it a terminal; then there is no separate standard error.
    #[serde(default)]
    pub pty: Option<PtySize>,
    /// How long it may run before its whole process tree is killed.
    pub timeout: Duration,
    /// What happens to output nobody takes.
    #[serde(default)]
    pub output: OutputMode,
    /// A word of the caller's by which it knows this request again. A sandbox that knows an execution with the same key
    /// refuses the request as `already_exists`, so that one which may have been heard can safely be sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What it is a part of.
    #[serde(default, skip_serializing_if = "Purpose::is_empty")]
    pub purpose: Purpose,
}

impl ExecRequest {
    /// The time-out of an execution for which none is given.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
    /// The most characters of a key.
    pub const MAX_KEY: usize = 64;
    /// What keys begin with that an engine gave, because its caller gave none.
    pub const ENGINE_KEYS: &'static str = "belljar.engine.";

    /// A request to run this program, everything else at its default.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A request to run this shell line, everything else at its default.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Command::Shell(line.into()))
    }

    fn new(command: Command) -> Self {
        Self {
            command,
            cwd: None,
            env: BTreeMap::new(),
            user: UserName::User,
            stdin: Stdin::Empty,
            pty: None,
            timeout: Self::DEFAULT_TIMEOUT,
            output: OutputMode::Spool,
            key: None,
            purpose: Purpose::default(),
        }
    }

    /// Refuses what no process could be started with.
    pub fn check(&self) -> Result<()> {
        let problem = match &self.command {
            Command::Argv(argv) if argv.first().is_none_or(String::is_empty) => Some("the command is empty"),
            Command::Argv(argv) if argv.iter().any(|word| word.contains('\0')) => {
                Some("an argument holds a NUL byte")
            }
            Command::Shell(line) if line.contains('\0') => Some("the command holds a NUL byte"),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::new(ErrorCode::InvalidArgument, problem)
                .hint("give a program and its arguments, none of them with a NUL byte"));
        }
        if let Some(key) = self.key.as_ref().filter(|key| !is_plain(key, Self::MAX_KEY)) {
            return Err(no_key(key).hint("a key has 1 to 64 of the characters A-Z a-z 0-9 . _ -"));
        }
        self.purpose.check()?;
        check_env(&self.env)
    }

    /// The same for a request that no engine has made: the keys of engines are not for others.
    pub fn check_callers_key(&self) -> Result<()> {
        self.check()?;
        match &self.key {
            Some(key) if key.starts_with(Self::ENGINE_KEYS) => Err(no_key(key)
                .hint(format!("keys that begin with `{}` are given by engines", Self::ENGINE_KEYS))),
            _ => Ok(()),
        }
    }

    /// What is answered when an execution has the key of this request.
    pub fn repeats(&self, exec: ExecId) -> Error {
        let key = self.key.as_deref().unwrap_or_default();
        Error::new(ErrorCode::AlreadyExists, format!("execution {exec} has the key `{key}` already"))
            .hint("follow that execution, or give the new one a key of its own")
    }
}

fn no_key(key: &str) -> Error {
    let shown: String = key.chars().take(ExecRequest::MAX_KEY).collect();
    Error::new(
        ErrorCode::InvalidArgument,
        format!("`{}` cannot be the key of an execution", shown.escape_debug()),
    )
}

/// What an execution is a part of, in the caller's own words: whatever it does on the network is told with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purpose {
    /// The stage of the work, such as `coder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The tool call that asked for it, such as `toolu_01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
}

impl Purpose {
    /// The most characters of a word.
    pub const MAX_WORD: usize = 64;

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses words that are too long, or could not be printed.
    pub fn check(&self) -> Result<()> {
        for (what, word) in [("stage", &self.stage), ("tool call", &self.tool_call)] {
            if let Some(word) = word {
                Self::check_word(what, word)?;
            }
        }
        Ok(())
    }

    /// The same for one of them.
    pub fn check_word(what: &str, word: &str) -> Result<()> {
        let printable = word.bytes().all(|byte| byte.is_ascii_graphic());
        if printable && (1..=Self::MAX_WORD).contains(&word.len()) {
            return Ok(());
        }
        let shown: String = word.chars().take(Self::MAX_WORD).collect();
        Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("`{}` cannot be the {what} of an execution", shown.escape_debug()),
        )
        .hint("give 1 to 64 printable ASCII characters, without spaces"))
    }
}

/// Which output a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How far a reader of a command's output has come, in bytes of each stream; those that were dropped count as read. As text
/// it is the two numbers with a dash between.
///
/// ```
/// # use belljar_core::Position;
/// let position: Position = "123-45".parse().unwrap();
/// assert_eq!(position, Position { stdout: 123, stderr: 45 });
/// assert_eq!(position.to_string(), "123-45");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

impl Position {
    /// Nothing has been read.
    pub const START: Self = Self { stdout: 0, stderr: 0 };

    /// How far it is in one stream.
    pub fn get(self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    /// The same, to be changed.
    pub fn of(&mut self, stream: Stream) -> &mut u64 {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Whether it is at or behind another in both streams.
    pub fn is_within(self, other: Self) -> bool {
        self.stdout <= other.stdout && self.stderr <= other.stderr
    }

    /// Goes on past an event.
    pub fn pass(&mut self, event: &ExecEvent) {
        match event {
            ExecEvent::Output { stream, bytes } => *self.of(*stream) += bytes.len() as u64,
            ExecEvent::Gap { stream, bytes } => *self.of(*stream) += bytes,
            ExecEvent::Started { .. } | ExecEvent::Denied(_) | ExecEvent::Finished { .. } => {}
        }
    }

    /// What is answered to one who wants to read on from here, where there is less.
    pub fn beyond(self, end: Self) -> Error {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("position {self} is beyond the end of the output, which is at {end}"),
        )
        .hint("read on from where a reader of the same execution has come to, or from 0-0")
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.stdout, self.stderr)
    }
}

impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let numbers = text.split_once('-').and_then(|(one, other)| Some((number(one)?, number(other)?)));
        let (stdout, stderr) = numbers.ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            Error::new(ErrorCode::InvalidArgument, format!("`{}` is not a position", shown.escape_debug()))
                .hint("a position is the bytes read of standard output and of standard error, as in 123-45")
        })?;
        Ok(Self { stdout, stderr })
    }
}

impl TryFrom<String> for Position {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Position> for String {
    fn from(position: Position) -> Self {
        position.to_string()
    }
}

/// What happens while a command runs, in order. The last one is always `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecEvent {
    /// The process exists.
    Started {
        /// Its name for `attach`, `logs` and signals.
        exec: ExecId,
        /// From the request's arrival to the program's first instruction.
        start: Duration,
    },
    /// It wrote something.
    Output {
        /// Where to.
        stream: Stream,
        /// What.
        bytes: Bytes,
    },
    /// This many bytes of one stream were dropped here because nobody took them in time.
    Gap {
        /// Of which stream.
        stream: Stream,
        /// How many.
        bytes: u64,
    },
    /// It was denied this on the network. Comes at most once, just before its end.
    Denied(Vec<Denial>),
    /// It ended.
    Finished {
        /// How.
        termination: Termination,
        /// What it used.
        usage: Usage,
        /// From its first instruction to its end.
        duration: Duration,
        /// Processes of the sandbox that the kernel killed for want of memory meanwhile; `None` if it cannot say.
        oom_kills: Option<u64>,
    },
}

/// How a command ended. Only `Exited { code: 0 }` is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "termination")]
pub enum Termination {
    /// By itself, with this status.
    Exited {
        /// Its exit status.
        code: i32,
    },
    /// By a signal that neither Belljar nor the memory limit sent.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// Killed because its time was over.
    TimedOut,
    /// Killed by the kernel because the sandbox reached its memory limit.
    OutOfMemory,
    /// Killed because its processes held too many locks on files.
    TooManyLocks,
    /// Killed because someone asked Belljar to, or its sandbox ended.
    Killed,
    /// Contact was lost: how it ended is not known.
    Lost,
}

impl Termination {
    /// The word used in `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited { .. } => "exited",
            Self::Signaled { .. } => "signaled",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory => "out_of_memory",
            Self::TooManyLocks => "too_many_locks",
            Self::Killed => "killed",
            Self::Lost => "lost",
        }
    }

    /// The exit status, when it exited by itself.
    pub fn exit_code(self) -> Option<i32> {
        match self {
            Self::Exited { code } => Some(code),
            _ => None,
        }
    }

    /// The signal, when one from inside ended it.
    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Signaled { signal } => Some(signal),
            _ => None,
        }
    }

    /// Whether it succeeded.
    pub fn is_success(self) -> bool {
        self == Self::Exited { code: 0 }
    }

    /// The status with which a command line passes this on, after docker's habits.
    pub fn shell_status(self) -> u8 {
        match self {
            Self::Exited { code } => code as u8,
            Self::Signaled { signal } => 128u8.wrapping_add(signal as u8),
            Self::TimedOut => 124,
            Self::OutOfMemory | Self::TooManyLocks | Self::Killed => 137,
            Self::Lost => 125,
        }
    }
}

/// What a command used. A figure that the kernel cannot give is `None`, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of all its processes until its first one ended, in microseconds.
    pub cpu_us: Option<u64>,
    /// The most memory that the sandbox held while it ran.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes read from block devices.
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices.
    pub write_bytes: Option<u64>,
    /// The most processes and threads it had at once.
    pub processes: Option<u64>,
}

/// What one stream left behind: the whole of it, or its head and tail with a counted gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The bytes up to the gap (all of them when there is none).
    pub head: Vec<u8>,
    /// How many bytes are missing between head and tail.
    pub gap: u64,
    /// The bytes after the gap.
    pub tail: Vec<u8>,
}

impl Output {
    /// The most bytes kept from the beginning.
    pub const HEAD: usize = 32 << 20;
    /// The bytes kept from the end, at least; at most twice as many.
    pub const TAIL: usize = 16 << 20;

    /// The bytes as one, with a line that says what is missing where something is.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut all = self.head.clone();
        if self.gap > 0 {
            all.extend_from_slice(format!("\n[belljar: {} bytes dropped here]\n", self.gap).as_bytes());
        }
        all.extend_from_slice(&self.tail);
        all
    }

    /// Appends a piece of output. What goes beyond the bound falls out between head and tail, and is counted.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = if self.gap == 0 && self.tail.is_empty() {
            Self::HEAD.saturating_sub(self.head.len())
        } else {
            0
        };
        let (head, tail) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        self.tail.extend_from_slice(tail);
        // In large steps, so that each byte is moved once.
        if self.tail.len() > 2 * Self::TAIL {
            let surplus = self.tail.len() - Self::TAIL;
            self.tail.drain(..surplus);
            self.gap += surplus as u64;
        }
    }

    /// Notes that bytes are missing here.
    pub fn push_gap(&mut self, bytes: u64) {
        self.gap += bytes;
    }
}

/// How a command went, once it is over.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecResult {
    /// Its name in the sandbox.
    pub exec: ExecId,
    /// How it ended.
    pub termination: Termination,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// From the request's arrival to the first instruction.
    pub start: Duration,
    /// From the first instruction to the end.
    pub duration: Duration,
    /// What it used.
    pub usage: Usage,
    /// Processes of the sandbox killed for want of memory meanwhile.
    pub oom_kills: Option<u64>,
    /// What it was denied on the network.
    pub denied: Vec<Denial>,
}

impl ExecResult {
    /// Folds events into a result; an execution that never says `Finished` was [`Termination::Lost`].
    pub fn collect(events: impl IntoIterator<Item = ExecEvent>) -> Self {
        let mut result = Self {
            exec: ExecId(0),
            termination: Termination::Lost,
            stdout: Output::default(),
            stderr: Output::default(),
            start: Duration::ZERO,
            duration: Duration::ZERO,
            usage: Usage::default(),
            oom_kills: None,
            denied: Vec::new(),
        };
        events.into_iter().for_each(|event| result.apply(event));
        result
    }

    fn output(&mut self, stream: Stream) -> &mut Output {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Takes one more event into account.
    pub fn apply(&mut self, event: ExecEvent) {
        match event {
            ExecEvent::Started { exec, start } => (self.exec, self.start) = (exec, start),
            ExecEvent::Output { stream, bytes } => self.output(stream).push(&bytes),
            ExecEvent::Gap { stream, bytes } => self.output(stream).push_gap(bytes),
            ExecEvent::Denied(denied) => self.denied = denied,
            ExecEvent::Finished { termination, usage, duration, oom_kills } => {
                self.termination = termination;
                self.usage = usage;
                self.duration = duration;
                self.oom_kills = oom_kills;
            }
        }
    }
}

/// How a command ended, apart from its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// How.
    pub termination: Termination,
    /// What it used.
    pub usage: Usage,
    /// From its first instruction to its end.
    pub duration: Duration,
    /// Processes of the sandbox killed for want of memory meanwhile.
    pub oom_kills: Option<u64>,
}

/// What is known of an execution from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecInfo {
    /// Its name.
    pub exec: ExecId,
    /// What it runs.
    pub command: Command,
    /// Who runs it.
    pub user: UserName,
    /// How it ended, or `None` while it runs.
    pub termination: Option<Termination>,
    /// The key that its caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What it is a part of.
    #[serde(default, skip_serializing_if = "Purpose::is_empty")]
    pub purpose: Purpose,
    /// How much it has said so far.
    #[serde(default)]
    pub said: Position,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_told_apart() {
        let statuses = [
            (Termination::Exited { code: 0 }, 0),
            (Termination::Exited { code: 3 }, 3),
            (Termination::Signaled { signal: 15 }, 143),
            (Termination::TimedOut, 124),
            (Termination::OutOfMemory, 137),
            (Termination::TooManyLocks, 137),
            (Termination::Killed, 137),
            (Termination::Lost, 125),
        ];
        for (termination, status) in statuses {
            assert_eq!(termination.shell_status(), status);
            assert_eq!(termination.is_success(), status == 0);
        }
    }

    #[test]
    fn positions_are_read_as_they_are_written() {
        for text in ["0-0", "123-45", "18446744073709551615-0"] {
            let position: Position = text.parse().unwrap();
            assert_eq!(serde_json::to_string(&position).unwrap(), format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Position>(&format!("\"{text}\"")).unwrap(), position);
        }
        for text in ["", "-", "1", "1-", "-1", "+1-2", "1-2-3", " 1-2", "1-18446744073709551616", "a-b"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stream_without_an_end_is_lost_not_success() {
        let started = ExecEvent::Started { exec: ExecId(1), start: Duration::ZERO };
        let result = ExecResult::collect([started]);
        assert_eq!(result.termination, Termination::Lost);
    }

    #[test]
    fn output_is_bounded_and_the_gap_exact() {
        let mut output = Output::default();
        let piece: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        for number in 0..200u64 {
            output.push(&piece);
            let kept = (output.head.len() + output.tail.len()) as u64;
            assert_eq!(kept + output.gap, (number + 1) << 20);
            assert!(kept <= (Output::HEAD + 2 * Output::TAIL) as u64);
        }
        assert!(output.gap > 0 && output.head.starts_with(&piece) && output.tail.ends_with(&piece));
    }

    #[test]
    fn requests_that_cannot_be_run_are_refused() {
        assert!(ExecRequest::argv(Vec::<String>::new()).check().is_err());
        assert!(ExecRequest::argv(["a\0b"]).check().is_err());
        assert!(ExecRequest::shell("a\0b").check().is_err());
        let mut request = ExecRequest::argv(["true"]);
        assert!(request.check().is_ok());
        request.env.insert("A=B".into(), String::new());
        assert!(request.check().is_err());
        request.env.clear();
        for (key, good) in [("a", true), ("Az09._-", true), (&"k".repeat(64), true)].into_iter().chain([
            ("", false),
            ("a b", false),
            ("é", false),
            ("a/b", false),
            (&"k".repeat(65), false),
        ]) {
            request.key = Some(key.into());
            assert_eq!(request.check().is_ok(), good, "{key}");
        }
    }
}
