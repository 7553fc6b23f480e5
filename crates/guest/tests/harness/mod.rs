//! A guest of one's own: the built program as an ordinary child, with a socket pair for its control socket.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a harness that fails has to fail loudly")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use belljar_core::wire::{
    Account, Decoder, Event, Exit, FileOperation, FileRequest, Frame, FrameKind, Init, MAX_CONTROL, MAX_DATA,
    PROTOCOL, Request, Spawn, WINDOW, stream,
};
use belljar_core::{Command, Error, OutputMode, PtySize, Stdin, UserName};
use tempfile::TempDir;

/// Longer than anything here takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A guest and the peer's end of its socket.
pub struct Guest {
    pub home: TempDir,
    pub process: Child,
    socket: UnixStream,
    decoder: Decoder,
    next: u32,
    /// Data that came for conversations other than the one waited for.
    waiting: Vec<Frame>,
    /// Whether data is credited as it comes.
    pub generous: bool,
}

/// Milliseconds of the boot clock.
pub fn now_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// What the guest is told first, with this home.
pub fn init(home: &str) -> Init {
    let account = Account {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        home: home.to_owned(),
        directory: None,
        capabilities: 0,
        landlock_fd: None,
    };
    Init {
        protocol: PROTOCOL,
        deadline_ms: now_ms() + 600_000,
        user: account,
        root: None,
        env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
        shell: "/bin/sh".to_owned(),
        leaf_dirs: Vec::new(),
        join_dirs: Vec::new(),
        rlimits: Vec::new(),
        questions: None,
        locks_fd: None,
    }
}

/// A request to run a shell line, everything else at its default.
pub fn shell(line: &str) -> Spawn {
    Spawn {
        command: Command::Shell(line.to_owned()),
        cwd: None,
        env: BTreeMap::new(),
        user: UserName::User,
        stdin: Stdin::Empty,
        pty: None,
        timeout_ms: 300_000,
        output: OutputMode::Flow,
    }
}

/// A request to run a program.
pub fn argv(words: &[&str]) -> Spawn {
    Spawn { command: Command::Argv(words.iter().map(|word| (*word).to_owned()).collect()), ..shell("") }
}

/// A request to run a shell line with input.
pub fn piped(line: &str) -> Spawn {
    Spawn { stdin: Stdin::Piped, ..shell(line) }
}

/// A request to run a shell line on a terminal.
pub fn on_terminal(line: &str, rows: u16, cols: u16) -> Spawn {
    Spawn { stdin: Stdin::Piped, pty: Some(PtySize { rows, cols }), ..shell(line) }
}

/// What came of a command or file operation.
#[derive(Debug, Default)]
pub struct Outcome {
    pub output: Vec<u8>,
    pub error: Vec<u8>,
    pub exit: Option<Exit>,
    pub pid: u32,
    pub events: Vec<Event>,
    pub failed: Option<Error>,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    pub fn exit(&self) -> Exit {
        self.exit.unwrap_or_else(|| panic!("did not end: {self:?}"))
    }

    pub fn failure(&self) -> &Error {
        self.failed.as_ref().unwrap_or_else(|| panic!("did not fail: {self:?}"))
    }
}

impl Guest {
    /// A guest that is ready.
    pub fn start() -> Self {
        let mut guest = Self::silent();
        let hello = init(guest.home.path().to_str().unwrap());
        guest.send(0, &Request::Init(Box::new(hello)));
        assert_eq!(guest.event(0), Event::Ready { protocol: PROTOCOL });
        guest
    }

    /// A guest that was not told anything yet.
    pub fn silent() -> Self {
        Self::below(&[])
    }

    /// A guest that was not told anything yet, started by another program.
    pub fn below(starter: &[&str]) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let theirs = OwnedFd::from(theirs);
        let words = [starter, &[env!("CARGO_BIN_EXE_belljar-guest")]].concat();
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
        let number = theirs.as_raw_fd();
        // SAFETY: only calls that are safe between fork and exec; `dup2` to itself would leave close-on-exec set.
        unsafe {
            command.pre_exec(move || {
                let result =
                    if number == 3 { libc::fcntl(3, libc::F_SETFD, 0) } else { libc::dup2(number, 3) };
                if result == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let process = command.spawn().unwrap();
        Self {
            home: tempfile::tempdir().unwrap(),
            process,
            socket,
            decoder: Decoder::new(MAX_CONTROL),
            next: 1,
            waiting: Vec::new(),
            generous: true,
        }
    }

    /// Sends a request.
    pub fn send(&mut self, id: u32, request: &Request) {
        self.frame(&Frame::control(id, request));
    }

    /// Sends a frame.
    pub fn frame(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.raw(&bytes);
    }

    /// Sends bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Sends bytes to a guest that may have ended.
    pub fn raw_or_gone(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Begins an execution.
    pub fn spawn(&mut self, request: Spawn) -> u32 {
        self.begin(&Request::Spawn(request))
    }

    /// Begins a conversation.
    pub fn begin(&mut self, request: &Request) -> u32 {
        let id = self.next;
        self.next += 1;
        self.send(id, request);
        id
    }

    /// The next frame, or `None` when the guest closed the socket.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let mut bytes = vec![0; 65536];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                if let (FrameKind::Data(stream), true) = (frame.kind, self.generous) {
                    let _ = self.socket.write_all(&encoded(&Frame::credit(
                        frame.id,
                        stream,
                        frame.payload.len() as u32,
                    )));
                }
                return Some(frame);
            }
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Ok(count) => self.decoder.feed(&bytes[..count]),
                Err(error) => panic!("nothing from the guest: {error}"),
            }
        }
    }

    /// The next frame of one conversation.
    pub fn frame_of(&mut self, id: u32) -> Frame {
        if let Some(at) = self.waiting.iter().position(|frame| frame.id == id) {
            return self.waiting.remove(at);
        }
        loop {
            let frame = self.next_frame().expect("the guest is gone");
            if frame.id == id {
                return frame;
            }
            self.waiting.push(frame);
        }
    }

    /// The next event of one conversation, data left aside.
    pub fn event(&mut self, id: u32) -> Event {
        loop {
            let frame = self.frame_of(id);
            if frame.kind == FrameKind::Control {
                return frame.message().unwrap();
            }
        }
    }

    /// Waits until an execution has started; its process.
    pub fn started(&mut self, id: u32) -> u32 {
        match self.event(id) {
            Event::Started { pid, .. } => pid,
            other => panic!("not started: {other:?}"),
        }
    }

    /// Reads output until it holds this text; everything read.
    pub fn read_until(&mut self, id: u32, text: &str) -> String {
        let mut output = Vec::new();
        loop {
            let frame = self.frame_of(id);
            match frame.kind {
                FrameKind::Data(stream::OUTPUT) => output.extend(frame.payload),
                FrameKind::Control
                    if frame.message::<Event>().is_ok_and(|it| matches!(it, Event::Exited(_))) =>
                {
                    panic!("ended before `{text}`: {}", String::from_utf8_lossy(&output))
                }
                _ => {}
            }
            let so_far = String::from_utf8_lossy(&output);
            if so_far.contains(text) {
                return so_far.into_owned();
            }
        }
    }

    /// Gathers everything of a conversation until this holds.
    pub fn gather(&mut self, id: u32, until: impl Fn(&Frame, &Outcome) -> bool) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            let frame = self.frame_of(id);
            match frame.kind {
                FrameKind::Data(stream::OUTPUT) => outcome.output.extend(&frame.payload),
                FrameKind::Data(_) => outcome.error.extend(&frame.payload),
                FrameKind::Credit(_) => {}
                FrameKind::Control => match frame.message().unwrap() {
                    Event::Started { pid, .. } => outcome.pid = pid,
                    Event::Exited(exit) => outcome.exit = Some(exit),
                    Event::Failed(error) => outcome.failed = Some(error),
                    event => outcome.events.push(event),
                },
            }
            if outcome.failed.is_some() || until(&frame, &outcome) {
                return outcome;
            }
        }
    }

    /// Runs a command to its end.
    pub fn run(&mut self, request: Spawn) -> Outcome {
        let id = self.spawn(request);
        self.finish(id)
    }

    /// Gathers an execution until its first process ended.
    pub fn finish(&mut self, id: u32) -> Outcome {
        self.gather(id, |_, outcome| outcome.exit.is_some())
    }

    /// Does a file operation without input.
    pub fn file(&mut self, operation: FileOperation) -> Outcome {
        let listing = matches!(operation, FileOperation::List { .. });
        let id = self.begin(&Request::File(FileRequest { user: UserName::User, operation }));
        self.done(id, listing)
    }

    /// Does a file operation with input.
    pub fn file_with(&mut self, operation: FileOperation, content: &[u8]) -> Outcome {
        let id = self.begin(&Request::File(FileRequest { user: UserName::User, operation }));
        match self.feed(id, content) {
            Some(early) => early,
            None => self.done(id, false),
        }
    }

    fn done(&mut self, id: u32, listing: bool) -> Outcome {
        self.gather(id, |_, outcome| {
            let last = |event: &Event| !matches!(event, Event::Changed(_));
            let ends = outcome.events.last().is_some_and(last);
            ends && !(listing && matches!(outcome.events.last(), Some(Event::Entries(_))))
        })
    }

    /// Sends input as credit allows, then its end. Returns early if the conversation fails meanwhile.
    pub fn feed(&mut self, id: u32, content: &[u8]) -> Option<Outcome> {
        let mut credit = WINDOW as usize;
        let mut rest = content;
        while !rest.is_empty() {
            let count = rest.len().min(credit).min(MAX_DATA);
            if count > 0 {
                self.frame(&Frame::data(id, stream::INPUT, &rest[..count]));
                rest = &rest[count..];
                credit -= count;
                continue;
            }
            let frame = self.next_frame().expect("the guest is gone");
            match frame.kind {
                FrameKind::Credit(stream::INPUT) if frame.id == id => {
                    credit += frame.credit_bytes().unwrap() as usize;
                }
                FrameKind::Control if frame.id == id => {
                    let event: Event = frame.message().unwrap();
                    if let Event::Failed(error) = event {
                        return Some(Outcome { failed: Some(error), ..Outcome::default() });
                    }
                    self.waiting.push(frame);
                }
                _ => self.waiting.push(frame),
            }
        }
        self.frame(&Frame::end(id, stream::INPUT));
        None
    }

    /// Whether the guest has ended by itself: waits for it, and gives its status.
    pub fn end(mut self) -> i32 {
        while self.next_frame().is_some() {}
        self.process.wait().unwrap().code().unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// Waits until a process is gone; the kernel tells, so nothing is slept for.
pub fn wait_gone(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
    let mut polls = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polls, Some(&patience)), Ok(1), "process {pid:?} lives on");
}

/// A path for a request.
pub fn path(text: &str) -> belljar_core::FilePath {
    text.parse().unwrap()
}
