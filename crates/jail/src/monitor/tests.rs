//! The monitor without a sandbox: what clients are answered, and what reaches the guest.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use belljar_core::wire::{self, Decoder, Event, Exit, Frame, FrameKind, MAX_CONTROL};
use belljar_core::{Error, ErrorCode, ExecId, ExecRequest, OutputMode, Position, SandboxState, Stream};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{KEPT_EXECUTIONS, Monitor, Service};
use crate::clock::boottime;
use crate::control::{Answer, CONVERSATION, Open, PROTOCOL, Request};

/// What all spools may have together, as in a sandbox with a small disk.
const KEEPS: u64 = 32 << 20;

/// A monitor's service with both its sides in our hands.
struct Desk {
    service: Service,
    guest: UnixStream,
    heard: Decoder,
    directory: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (guest, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let given = Monitor {
            guest: guest.into(),
            guest_process: pidfd_open(getpid(), PidfdFlags::empty()).unwrap(),
            listener: listener.into(),
            tie: None,
            launcher: None,
            deadline: boottime() + Duration::from_secs(3600),
            probe: None,
            can_pause: true,
            freezer: None,
            disk: None,
            doorway: None,
            spool: OwnedFd::from(std::fs::File::open(directory.path()).unwrap()),
            keeps: KEEPS,
            peer_uid: rustix::process::geteuid().as_raw(),
        };
        let service = Service::new(given).unwrap();
        Self { service, guest: ours, heard: Decoder::new(MAX_CONTROL), directory }
    }

    /// A connection that has been taken in and not been heard.
    fn connect(&mut self) -> Caller {
        let stream = UnixStream::connect(self.directory.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let id = self.service.next_client;
        self.service.accept();
        Caller { id, stream, heard: Decoder::new(MAX_CONTROL) }
    }

    /// Hears what has come from a connection, and sends what there is to send.
    fn serve(&mut self, caller: &Caller) {
        self.service.hear_client(caller.id);
        self.service.pump();
    }

    fn ask(&mut self, epoch: Option<u64>, request: Request) -> Answer {
        let mut caller = self.connect();
        caller.say(epoch, request);
        self.serve(&caller);
        caller.answer()
    }

    /// What the guest was told since last asked.
    fn told(&mut self) -> Vec<(u32, wire::Request)> {
        let mut bytes = [0; 65536];
        while let Ok(count) = self.guest.read(&mut bytes) {
            self.heard.feed(&bytes[..count]);
        }
        let frames = std::iter::from_fn(|| self.heard.next_frame().unwrap());
        let requests = frames.filter(|frame| frame.kind == FrameKind::Control);
        requests.map(|frame| (frame.id, frame.message().unwrap())).collect()
    }

    /// The guest says something that is not heard yet.
    fn sends(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.guest.write_all(&bytes).unwrap();
    }

    fn whose(&mut self, mark: u32) -> Option<ExecId> {
        match self.ask(Some(0), Request::Whose { mark }) {
            Answer::Whose(caller) => caller.map(|caller| caller.exec),
            other => panic!("{other:?}"),
        }
    }

    /// The guest says something.
    fn says(&mut self, id: u32, event: &Event) {
        self.service.on_guest_frame(&Frame::control(id, event));
        self.service.pump();
    }

    /// Runs an execution from its request to its end.
    fn run_through(&mut self, request: ExecRequest) -> ExecId {
        let mut caller = self.connect();
        caller.say(None, exec(request));
        self.serve(&caller);
        let id = self.told().last().unwrap().0;
        self.says(id, &Event::Started { pid: 2, start_us: 1 });
        self.says(id, &Event::Exited(ended()));
        assert!(matches!(caller.answer(), Answer::Started { .. }));
        assert!(matches!(caller.answer(), Answer::Finished { .. }));
        ExecId(id)
    }
}

struct Caller {
    id: u64,
    stream: UnixStream,
    heard: Decoder,
}

impl Caller {
    fn say(&mut self, epoch: Option<u64>, request: Request) {
        let mut bytes = Vec::new();
        Frame::control(CONVERSATION, &Open { protocol: PROTOCOL, epoch, request }).encode(&mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    fn answer(&mut self) -> Answer {
        self.frame().message().unwrap()
    }

    fn frame(&mut self) -> Frame {
        let mut bytes = [0; 65536];
        loop {
            if let Some(frame) = self.heard.next_frame().unwrap() {
                return frame;
            }
            let count = self.stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "closed without an answer");
            self.heard.feed(&bytes[..count]);
        }
    }
}

fn exec(request: ExecRequest) -> Request {
    Request::Exec { request: Box::new(request), kill_on_close: false }
}

fn keyed(key: &str) -> ExecRequest {
    ExecRequest { key: Some(key.into()), ..ExecRequest::argv(["true"]) }
}

fn ended() -> Exit {
    Exit {
        code: Some(0),
        signal: None,
        killed: None,
        duration_us: 1,
        cpu_us: None,
        processes: None,
        read_bytes: None,
        write_bytes: None,
    }
}

fn refusal(answer: Answer) -> Error {
    match answer {
        Answer::Failed(error) => error,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_an_older_engine_had_sent_before_the_fence_is_not_begun() {
    for (epoch, starts) in [(1, false), (2, true), (3, true)] {
        let mut desk = Desk::new();
        let mut old = desk.connect();
        old.say(Some(epoch), exec(ExecRequest::argv(["true"])));
        // Its bytes are in the socket, and nobody has read them.
        assert!(matches!(desk.ask(Some(2), Request::Fence), Answer::Done));
        assert!(desk.told().is_empty());
        desk.serve(&old);
        let told = desk.told();
        assert_eq!(told.iter().any(|(_, request)| matches!(request, wire::Request::Spawn(_))), starts);
        if !starts {
            assert_eq!(refusal(old.answer()).code, ErrorCode::Fenced);
            assert!(told.is_empty(), "{told:?}");
        }
    }
}

#[test]
fn a_higher_epoch_shuts_out_lower_ones_and_nobody_else() {
    let mut desk = Desk::new();
    let refused = |answer: Answer| matches!(answer, Answer::Failed(error) if error.code == ErrorCode::Fenced);
    assert!(!refused(desk.ask(Some(5), Request::Status)));
    assert!(!refused(desk.ask(Some(5), Request::Executions)));
    assert!(!refused(desk.ask(Some(7), Request::Executions)), "any operation raises it");
    for request in [
        Request::Status,
        Request::Executions,
        Request::Fence,
        Request::Extend { ttl: Duration::from_secs(1) },
        Request::Attach { exec: ExecId(1), from: Position::START },
        Request::KillExec { exec: ExecId(1) },
        Request::Kill,
    ] {
        assert!(refused(desk.ask(Some(6), request.clone())), "{request:?}");
    }
    assert!(desk.service.ending.is_none(), "a kill that was refused kills nothing");
    assert!(
        matches!(desk.ask(None, Request::Status), Answer::Status { .. }),
        "without an engine all is as before"
    );
    assert!(matches!(desk.ask(Some(7), Request::Fence), Answer::Done), "twice is no error");
    let error = refusal(desk.ask(None, Request::Fence));
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

#[test]
fn a_key_is_remembered_when_its_execution_is_not() {
    let mut desk = Desk::new();
    let first = desk.run_through(keyed("first"));
    for number in 0..2 * KEPT_EXECUTIONS {
        desk.run_through(keyed(&format!("other-{number}")));
    }
    assert!(!desk.service.executions.contains_key(&first.0), "so the case says nothing");
    let error = refusal(desk.ask(None, exec(keyed("first"))));
    assert_eq!(error.code, ErrorCode::AlreadyExists);
    assert!(error.message.contains(&format!("execution {first} ")), "{error}");
    assert!(desk.told().is_empty());
}

/// Few large outputs or many, of executions under way and of ended ones: the sum is bounded, and the last one's own word
/// is kept whatever those before it said.
#[test]
fn all_that_is_kept_stays_within_the_bound_of_the_sandbox() {
    let mut desk = Desk::new();
    let frame = |id| Frame::data(id, wire::stream::OUTPUT, &[b'x'; 1 << 16]);
    let mut running = Vec::new();
    for number in 0..100 {
        let mut caller = desk.connect();
        caller.say(None, exec(ExecRequest { output: OutputMode::Spool, ..ExecRequest::argv(["yes"]) }));
        desk.serve(&caller);
        let id = desk.told().last().unwrap().0;
        desk.says(id, &Event::Started { pid: 2, start_us: 1 });
        desk.service.drop_client(caller.id);
        for _ in 0..if number < 4 { 150 } else { 4 } {
            desk.service.on_guest_frame(&frame(id));
        }
        if number % 2 == 0 {
            desk.says(id, &Event::Exited(ended()));
            // Hostile guests talk on.
            desk.service.on_guest_frame(&frame(id));
        } else {
            running.push(id);
        }
        desk.told();
        let kept = bytes_below(desk.directory.path());
        assert!(kept <= KEEPS, "{kept} bytes are kept after {number}");
    }
    assert!(bytes_below(desk.directory.path()) > KEEPS / 4, "so the case says nothing");
    desk.service.on_guest_frame(&Frame::data(running[49], wire::stream::OUTPUT, b"the last word"));
    let spool = desk.directory.path().join(running[49].to_string());
    let texts = std::fs::read_dir(spool).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    assert!(texts.into_iter().any(|text| text.ends_with(b"the last word")));
}

fn bytes_below(directory: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { bytes_below(&path) } else { path.metadata().unwrap().len() }).sum()
}

#[test]
fn what_comes_too_late_for_an_execution_does_not_undo_it() {
    let mut desk = Desk::new();
    let exec = desk.run_through(keyed("once"));
    assert!(matches!(desk.ask(None, Request::KillExec { exec }), Answer::Done));
    // The guest knows nothing of it any more, and says so.
    desk.says(exec.0, &Event::Failed(Error::new(ErrorCode::NotFound, "not under way")));
    let Answer::Executions(list) = desk.ask(None, Request::Executions) else { panic!("a list") };
    assert_eq!(list.iter().map(|info| info.exec).collect::<Vec<_>>(), [exec]);
    assert!(list[0].termination.is_some());
}

#[test]
fn output_that_went_straight_to_its_caller_is_counted_for_those_who_come_later() {
    let mut desk = Desk::new();
    let mut caller = desk.connect();
    caller.say(None, exec(ExecRequest { output: OutputMode::Flow, ..ExecRequest::argv(["true"]) }));
    desk.serve(&caller);
    let id = desk.told().last().unwrap().0;
    desk.says(id, &Event::Started { pid: 2, start_us: 1 });
    desk.service.on_guest_frame(&Frame::data(id, wire::stream::OUTPUT, b"0123456789"));
    desk.service.pump();
    desk.service.drop_client(caller.id);
    desk.service.on_guest_frame(&Frame::data(id, wire::stream::OUTPUT, b"rest"));
    desk.says(id, &Event::Exited(ended()));
    for (from, gap) in [(0, Some(10)), (7, Some(3)), (10, None)] {
        let mut late = desk.connect();
        late.say(None, Request::Attach { exec: ExecId(id), from: Position { stdout: from, stderr: 0 } });
        desk.serve(&late);
        assert!(matches!(late.answer(), Answer::Started { .. }));
        if let Some(expected) = gap {
            let told = late.answer();
            assert!(
                matches!(told, Answer::Gap { stream: Stream::Stdout, bytes } if bytes == expected),
                "from {from}: {told:?}"
            );
        }
        assert_eq!(late.frame().payload, b"rest");
        assert!(matches!(late.answer(), Answer::Finished { .. }));
    }
    let beyond = Position { stdout: 15, stderr: 0 };
    let error = refusal(desk.ask(None, Request::Attach { exec: ExecId(id), from: beyond }));
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

#[test]
fn the_start_is_told_before_output_that_came_with_it() {
    let mut desk = Desk::new();
    let mut caller = desk.connect();
    caller.say(None, exec(ExecRequest { output: OutputMode::Flow, ..ExecRequest::argv(["true"]) }));
    desk.serve(&caller);
    let id = desk.told().last().unwrap().0;
    // All of it is heard before anything is sent on.
    desk.service.on_guest_frame(&Frame::control(id, &Event::Started { pid: 2, start_us: 1 }));
    desk.service.on_guest_frame(&Frame::data(id, wire::stream::OUTPUT, b"at once"));
    desk.says(id, &Event::Exited(ended()));
    assert!(matches!(caller.answer(), Answer::Started { .. }));
    assert_eq!(caller.frame().payload, b"at once");
    assert!(matches!(caller.answer(), Answer::Finished { .. }));
}

#[test]
fn one_who_waits_hears_the_end_and_nothing_else() {
    let mut desk = Desk::new();
    let mut caller = desk.connect();
    caller.say(None, exec(ExecRequest::argv(["true"])));
    desk.serve(&caller);
    let id = desk.told().last().unwrap().0;
    let mut waiter = desk.connect();
    waiter.say(None, Request::Wait { exec: ExecId(id) });
    desk.serve(&waiter);
    desk.says(id, &Event::Started { pid: 2, start_us: 1 });
    desk.service.on_guest_frame(&Frame::data(id, wire::stream::OUTPUT, b"output"));
    desk.says(id, &Event::Exited(ended()));
    for mut waiter in [waiter, desk.connect()] {
        if desk.service.clients.contains_key(&waiter.id) {
            waiter.say(None, Request::Wait { exec: ExecId(id) });
            desk.serve(&waiter);
        }
        assert!(matches!(waiter.answer(), Answer::Finished { .. }));
        assert_eq!(waiter.stream.read(&mut [0; 1]).unwrap(), 0, "the connection is closed");
    }

    // One that is not started after all has no end to wait for.
    let mut caller = desk.connect();
    caller.say(None, exec(ExecRequest::argv(["missing"])));
    desk.serve(&caller);
    let id = desk.told().last().unwrap().0;
    let mut waiter = desk.connect();
    waiter.say(None, Request::Wait { exec: ExecId(id) });
    desk.serve(&waiter);
    desk.says(id, &Event::Failed(Error::new(ErrorCode::CommandNotFound, "missing")));
    assert_eq!(refusal(waiter.answer()).code, ErrorCode::CommandNotFound);
    assert_eq!(refusal(desk.ask(None, Request::Wait { exec: ExecId(id) })).code, ErrorCode::NotFound);
}

#[test]
fn a_pause_is_told_when_the_guest_says_so_and_the_clock_stands_meanwhile() {
    let mut desk = Desk::new();
    let remaining = |desk: &mut Desk| match desk.ask(None, Request::Status) {
        Answer::Status { state, remaining, .. } => (state, remaining),
        other => panic!("{other:?}"),
    };
    let mut caller = desk.connect();
    caller.say(None, Request::Pause);
    desk.serve(&caller);
    let [(0, wire::Request::Pause { serial })] = desk.told()[..] else { panic!("the guest is asked once") };
    assert_eq!(refusal(desk.ask(None, exec(keyed("key")))).code, ErrorCode::Paused);
    let (state, before) = remaining(&mut desk);
    assert_eq!(state, SandboxState::Running, "not before the guest has said so");
    desk.says(0, &Event::Paused { serial: serial + 1 });
    assert_eq!(remaining(&mut desk), (SandboxState::Running, before), "this was an answer to something else");
    desk.says(0, &Event::Paused { serial });
    assert!(matches!(caller.answer(), Answer::Done));
    assert_eq!(remaining(&mut desk), (SandboxState::Paused, before));
    assert!(matches!(desk.ask(None, Request::Pause), Answer::Done), "twice is no error");
    assert!(desk.told().is_empty());
    assert!(matches!(desk.ask(None, Request::Resume), Answer::Done));
    let told = desk.told();
    assert!(
        matches!(told[..], [(0, wire::Request::Deadline { .. }), (0, wire::Request::Resume)]),
        "{told:?}"
    );
    let (state, after) = remaining(&mut desk);
    assert!(state == SandboxState::Running && after <= before, "{state} {after:?} {before:?}");
    assert!(matches!(desk.ask(None, Request::Resume), Answer::Done), "twice is no error");
    assert!(desk.told().is_empty());
}

#[test]
fn one_who_pauses_is_told_that_another_resumed() {
    let mut desk = Desk::new();
    let mut caller = desk.connect();
    caller.say(None, Request::Pause);
    desk.serve(&caller);
    assert!(matches!(desk.ask(None, Request::Resume), Answer::Done));
    assert_eq!(refusal(caller.answer()).code, ErrorCode::Lost);
    let [(0, wire::Request::Pause { serial }), ..] = desk.told()[..] else { panic!("the guest was asked") };
    // Its answer comes too late, while the next one is waited for.
    let mut caller = desk.connect();
    caller.say(None, Request::Pause);
    desk.serve(&caller);
    desk.says(0, &Event::Paused { serial });
    assert_eq!(desk.service.state(), SandboxState::Running);
    desk.says(0, &Event::Paused { serial: serial + 1 });
    assert_eq!(desk.service.state(), SandboxState::Paused);
}

#[test]
fn without_a_cgroup_there_is_no_pause_and_a_plain_word_about_it() {
    let mut desk = Desk::new();
    desk.service.given.can_pause = false;
    let error = refusal(desk.ask(None, Request::Pause));
    assert_eq!(error.code, ErrorCode::Unsupported);
    assert!(error.message.contains("without root"), "{error}");
    assert!(desk.told().is_empty());
}

#[test]
fn marks_are_known_as_soon_as_the_guest_has_sent_them_and_after_the_end() {
    let mut desk = Desk::new();
    let mut caller = desk.connect();
    caller.say(Some(7), exec(keyed("one")));
    desk.serve(&caller);
    let id = desk.told().last().unwrap().0;
    let cgroup = (5 << 32) | 1234;
    assert_eq!(desk.whose(1234), None);
    // Behind more than is read at once, and unheard until somebody asks; whose epoch does not count.
    for _ in 0..3 {
        desk.sends(&Frame::data(id + 9, wire::stream::OUTPUT, &[0; 48 << 10]));
    }
    desk.sends(&Frame::control(id, &Event::Leaf { cgroup }));
    assert_eq!(desk.whose(1234), Some(ExecId(id)), "the lower half counts");
    assert_eq!(desk.whose(5), None);
    // It is said once, before the start; whatever else is said is not believed.
    desk.says(id, &Event::Leaf { cgroup: 77 });
    desk.says(id, &Event::Started { pid: 2, start_us: 1 });
    desk.says(id, &Event::Leaf { cgroup: 78 });
    desk.says(id + 1, &Event::Leaf { cgroup: 79 });
    assert_eq!([77, 78, 79].map(|mark| desk.whose(mark)), [None; 3]);
    desk.says(id, &Event::Exited(ended()));
    for number in 0..KEPT_EXECUTIONS + 2 {
        desk.run_through(keyed(&format!("later-{number}")));
    }
    assert!(!desk.service.executions.contains_key(&id), "it is forgotten otherwise");
    assert_eq!(desk.whose(1234), Some(ExecId(id)));
}

#[test]
fn only_who_has_a_doorway_hands_it_out() {
    let mut desk = Desk::new();
    let refused = desk.ask(None, Request::Doorway);
    assert!(matches!(&refused, Answer::Failed(error) if error.code == ErrorCode::Unsupported), "{refused:?}");
    let socket = || OwnedFd::from(UnixStream::pair().unwrap().0);
    let family = || crate::doorway::Sockets { tcp: socket(), dns: socket() };
    for (v6, count) in [(None, 2), (Some(family()), 4)] {
        desk.service.given.doorway = Some(crate::doorway::Doorway { v4: family(), v6, marks: true });
        // Again and again, and whatever engine came before.
        for epoch in [9, 1] {
            desk.ask(Some(9), Request::Fence);
            let mut caller = desk.connect();
            caller.say(Some(epoch), Request::Doorway);
            desk.serve(&caller);
            let mut bytes = [0; 4096];
            let (length, arrived) = crate::doorway::take(&caller.stream, &mut bytes).unwrap();
            caller.heard.feed(&bytes[..length]);
            assert!(matches!(caller.answer(), Answer::Doorway { marks: true }));
            assert_eq!(arrived.len(), count);
            assert_eq!(caller.stream.read(&mut bytes).unwrap(), 0, "that was all");
        }
    }
    assert_eq!(desk.service.epoch, 9, "and nobody's epoch was taken from it");
}
