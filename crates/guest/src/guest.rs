//! The loop: one thread, one wait, and every message in the order in which it came.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;
use std::time::Duration;

use belljar_core::wire::{Event, Frame, FrameKind, KillReason, MAX_DATA, PROTOCOL, Request, stream};
use belljar_core::{Error, ErrorCode};
use rustix::event::PollFlags;
use rustix::process::Signal;

use crate::clock::{self, Alarm};
use crate::connection::Connection;
use crate::end::End;
use crate::execution::Execution;
use crate::locks::Locks;
use crate::members;
use crate::operation::Operation;
use crate::polls::{Part, Polls, Token};
use crate::reap::Children;
use crate::setup::Setup;

/// The most conversations at a time, those counted that only wait for what they left behind.
const MAX_CONVERSATIONS: usize = 256;

/// How often, and how long apart, a guest that is not the first process tries to kill everything before it ends.
const LAST_PASSES: usize = 500;
const LAST_PASS: Duration = Duration::from_millis(2);

/// How often those are looked for that outlived their keeper.
const STRAY_ROUNDS: usize = 100;

/// The conversation that is the connection itself.
const CONNECTION: u32 = 0;

enum Conversation {
    Execution(Box<Execution>),
    Operation(Box<Operation>),
}

/// How often it is looked whether all stand still that should.
const FREEZE_LOOK_US: u64 = 1000;

/// While executions are to stand still.
struct Paused {
    serial: u32,
    told: bool,
}

/// Everything that the guest knows.
pub(crate) struct Guest {
    connection: Connection,
    setup: Setup,
    deadline_us: u64,
    paused: Option<Paused>,
    children: Children,
    alarm: Alarm,
    conversations: BTreeMap<u32, Conversation>,
    scratch: Vec<u8>,
}

impl Guest {
    /// Waits for the first message and answers it.
    pub(crate) fn greet(mut connection: Connection, children: Children, alarm: Alarm) -> Result<Self, End> {
        let mut scratch = vec![0; MAX_DATA];
        let frame = loop {
            if let Some(frame) = connection.next_frame()? {
                break frame;
            }
            let mut polls = Polls::default();
            polls.add(connection.as_fd(), PollFlags::IN, Token::Socket);
            polls.turn(false).map_err(|errno| End::Failed { step: "wait", errno })?;
            connection.receive(&mut scratch)?;
        };
        let (CONNECTION, FrameKind::Control, Ok(Request::Init(init))) =
            (frame.id, frame.kind, frame.message())
        else {
            return Err(End::Violation("the first message is not Init".into()));
        };
        let deadline_us = init.deadline_ms.saturating_mul(1000);
        let setup = match Setup::new(*init) {
            Ok(setup) => setup,
            Err(end) => {
                part(&mut connection, &end);
                return Err(end);
            }
        };
        connection.event(CONNECTION, &Event::Ready { protocol: PROTOCOL });
        let conversations = BTreeMap::new();
        Ok(Self { connection, setup, deadline_us, paused: None, children, alarm, conversations, scratch })
    }

    /// Serves until there is a reason to end.
    pub(crate) fn serve(mut self) -> End {
        loop {
            if let Err(end) = self.turn() {
                part(&mut self.connection, &end);
                self.kill_everything();
                return end;
            }
        }
    }

    fn turn(&mut self) -> Result<(), End> {
        while let Some(frame) = self.connection.next_frame()? {
            self.take(&frame)?;
        }
        self.settle();
        self.connection.flush()?;
        let now = clock::now_us();
        if now >= self.deadline_us && self.paused.is_none() {
            return Err(End::Deadline);
        }
        for conversation in self.conversations.values_mut() {
            if let Conversation::Execution(execution) = conversation {
                execution.tick(now);
            }
        }
        self.forget_what_is_over();
        self.tell_pause();
        if self.paused.is_none() {
            self.bound_locks(now);
        }
        if let Some(questions) = &mut self.setup.questions {
            questions.answer(now);
        }
        self.set_alarm()?;
        for (token, state) in self.wait()? {
            self.ready(token, state)?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<(Token, PollFlags)>, End> {
        let congested = self.connection.is_congested();
        let mut polls = Polls::default();
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN | PollFlags::RDHUP, !self.connection.is_overfull());
        flags.set(PollFlags::OUT, self.connection.is_waiting());
        polls.add(self.connection.as_fd(), flags, Token::Socket);
        polls.add(self.children.as_fd(), PollFlags::IN, Token::Children);
        polls.add(self.alarm.as_fd(), PollFlags::IN, Token::Alarm);
        if let Some(questions) = &self.setup.questions {
            polls.add(questions.as_fd(), PollFlags::IN, Token::Question);
        }
        let mut only_look = false;
        for conversation in self.conversations.values() {
            match conversation {
                Conversation::Execution(execution) => {
                    execution.wait(&mut polls, congested);
                    only_look |= !congested && execution.can_settle();
                }
                Conversation::Operation(operation) => operation.wait(&mut polls, congested),
            }
        }
        polls.turn(only_look).map_err(|errno| End::Failed { step: "wait", errno })
    }

    fn ready(&mut self, token: Token, state: PollFlags) -> Result<(), End> {
        match token {
            Token::Socket if state.intersects(PollFlags::HUP | PollFlags::ERR) => Err(End::Closed),
            Token::Socket if state.intersects(PollFlags::IN | PollFlags::RDHUP) => {
                self.connection.receive(&mut self.scratch)
            }
            Token::Socket => Ok(()),
            Token::Alarm => {
                self.alarm.acknowledge();
                Ok(())
            }
            Token::Question => {
                if let Some(questions) =
                    self.setup.questions.as_mut().filter(|_| state.contains(PollFlags::IN))
                {
                    questions.hear();
                }
                Ok(())
            }
            Token::Children => {
                self.reap();
                Ok(())
            }
            Token::Conversation(id, part) => {
                self.go_on(id, part);
                Ok(())
            }
        }
    }

    fn go_on(&mut self, id: u32, part: Part) {
        match self.conversations.get_mut(&id) {
            Some(Conversation::Execution(it)) => it.ready(part, &mut self.connection, &mut self.scratch),
            Some(Conversation::Operation(it)) => it.ready(part, &mut self.connection, &mut self.scratch),
            None => {}
        }
    }

    fn reap(&mut self) {
        let mut keeper_ended = false;
        for ended in self.children.reap() {
            // An orphan of some execution belongs to nobody here.
            let whose = self.conversations.values_mut().find(|it| it.child() == Some(ended.pid));
            match whose {
                Some(Conversation::Execution(it)) => {
                    keeper_ended |= it.is_kept();
                    it.reaped(ended, &mut self.connection);
                }
                Some(Conversation::Operation(it)) => it.reaped(ended, &mut self.connection),
                None => {}
            }
        }
        if keeper_ended {
            self.kill_strays();
        }
    }

    /// Kills what is below nobody that we started: the processes of an execution that killed its own keeper.
    fn kill_strays(&self) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let strays = || {
            let kept: HashSet<i32> = self
                .conversations
                .values()
                .filter_map(Conversation::child)
                .flat_map(|child| members::descendants(child).into_iter().chain([child]))
                .collect();
            members::descendants(own).into_iter().filter(|pid| !kept.contains(pid)).collect()
        };
        // Those that fork meanwhile are found in the next round.
        for _ in 0..STRAY_ROUNDS {
            if members::signal(strays, Signal::KILL) == 0 {
                return;
            }
        }
    }

    /// Ends the execution whose process hoards locks.
    fn bound_locks(&mut self, now: u64) {
        let Some(locks) = &mut self.setup.locks else { return };
        let mut executions: Vec<&mut Execution> =
            self.conversations.values_mut().filter_map(Conversation::execution).collect();
        if !locks.is_due(now, !executions.is_empty()) {
            return;
        }
        // Every one is asked, for each remembers what it said.
        let worked = executions.iter_mut().fold(false, |worked, execution| execution.has_worked() | worked);
        let Some(hoarder) = worked.then(|| locks.hoarder(now)).flatten() else { return };
        for execution in executions.iter_mut().filter(|execution| execution.has(hoarder)) {
            execution.kill(KillReason::TooManyLocks);
        }
        // It may belong to none of them, or not be listed while others come and go.
        members::signal(|| vec![hoarder], Signal::KILL);
    }

    /// Stops all executions; what is said here is heard by those that are about to start, too, as they are born there.
    fn pause(&mut self, serial: u32) {
        let now = clock::now_us();
        self.conversations.values_mut().filter_map(Conversation::execution).for_each(|it| it.freeze(now));
        self.paused = Some(Paused { serial, told: false });
    }

    fn resume(&mut self) {
        let now = clock::now_us();
        self.conversations.values_mut().filter_map(Conversation::execution).for_each(|it| it.thaw(now));
        self.paused = None;
    }

    /// Says that all executions stand still, once they do.
    fn tell_pause(&mut self) {
        let Some(Paused { serial, told: told @ false }) = &mut self.paused else { return };
        if self.conversations.values_mut().filter_map(Conversation::execution).all(|it| it.is_frozen()) {
            *told = true;
            self.connection.event(CONNECTION, &Event::Paused { serial: *serial });
        }
    }

    fn settle(&mut self) {
        for conversation in self.conversations.values_mut() {
            if let Conversation::Execution(execution) = conversation {
                execution.settle(&mut self.connection, &mut self.scratch);
            }
        }
    }

    fn forget_what_is_over(&mut self) {
        self.conversations.retain(|_, conversation| match conversation {
            Conversation::Execution(execution) => !execution.is_over(),
            Conversation::Operation(operation) => !operation.is_over(),
        });
    }

    fn set_alarm(&mut self) -> Result<(), End> {
        let next = self.conversations.values().filter_map(|conversation| match conversation {
            Conversation::Execution(execution) => execution.next_us(),
            Conversation::Operation(_) => None,
        });
        let answer = self.setup.questions.as_ref().and_then(|questions| questions.next_us(clock::now_us()));
        let (look, deadline) = match &self.paused {
            None => (self.setup.locks.as_ref().and_then(Locks::next_us), self.deadline_us),
            Some(Paused { told: false, .. }) => (Some(clock::now_us() + FREEZE_LOOK_US), u64::MAX),
            Some(Paused { told: true, .. }) => (None, u64::MAX),
        };
        let at = next.chain(answer).chain(look).chain([deadline]).min().unwrap_or(deadline);
        let failed = |error: std::io::Error| End::Failed {
            step: "set the alarm",
            errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
        };
        self.alarm.set(at).map_err(failed)
    }

    fn take(&mut self, frame: &Frame) -> Result<(), End> {
        let id = frame.id;
        match frame.kind {
            FrameKind::Control => {
                let request = frame.message().map_err(|error| End::Violation(error.to_string()))?;
                self.answer(id, request)
            }
            FrameKind::Data(stream::INPUT) => match self.conversations.get_mut(&id) {
                Some(Conversation::Execution(it)) => it.accept(&frame.payload, &mut self.connection),
                Some(Conversation::Operation(it)) => it.accept(&frame.payload, &mut self.connection),
                // It ended while this was on its way.
                None => Ok(()),
            },
            FrameKind::Data(other) => {
                Err(End::Violation(format!("data on stream {other}, which leads outward")))
            }
            FrameKind::Credit(stream) => {
                let bytes = frame.credit_bytes().map_err(|error| End::Violation(error.to_string()))?;
                match self.conversations.get_mut(&id) {
                    Some(Conversation::Execution(it)) => it.grant(stream, bytes),
                    Some(Conversation::Operation(it)) => it.grant(bytes, &mut self.connection),
                    None => {}
                }
                Ok(())
            }
        }
    }

    fn answer(&mut self, id: u32, request: Request) -> Result<(), End> {
        let of_connection = matches!(
            request,
            Request::Init(_) | Request::Deadline { .. } | Request::Pause { .. } | Request::Resume
        );
        if of_connection != (id == CONNECTION) {
            return Err(End::Violation(format!("a request that does not belong on conversation {id}")));
        }
        match request {
            Request::Init(_) => return Err(End::Violation("a second Init".into())),
            Request::Deadline { deadline_ms } => self.deadline_us = deadline_ms.saturating_mul(1000),
            Request::Pause { serial } => self.pause(serial),
            Request::Resume => self.resume(),
            Request::Spawn(spawn) => {
                let arrived_us = clock::now_us();
                let room = self.room_for(id)?;
                let (setup, connection) = (&self.setup, &mut self.connection);
                let begun = room.and_then(|()| Execution::begin(id, &spawn, arrived_us, setup, connection));
                self.begin(id, begun.map(|it| Conversation::Execution(Box::new(it))));
            }
            Request::File(request) => {
                let setup = &self.setup;
                let begun = self.room_for(id)?.and_then(|()| Operation::begin(id, request, setup));
                self.begin(id, begun.map(|it| Conversation::Operation(Box::new(it))));
            }
            Request::Signal { .. } | Request::Kill | Request::Resize(_) => self.interfere(id, &request),
        }
        Ok(())
    }

    fn room_for(&self, id: u32) -> Result<Result<(), Error>, End> {
        if self.conversations.contains_key(&id) {
            return Err(End::Violation(format!("conversation {id} was begun twice")));
        }
        if self.conversations.len() < MAX_CONVERSATIONS {
            return Ok(Ok(()));
        }
        let message = format!("{MAX_CONVERSATIONS} commands and file operations are under way already");
        let hint = "wait for some to end; a command whose background processes live on counts too";
        Ok(Err(Error::new(ErrorCode::ResourceExhausted, message).hint(hint)))
    }

    fn begin(&mut self, id: u32, begun: Result<Conversation, Error>) {
        match begun {
            Ok(conversation) => drop(self.conversations.insert(id, conversation)),
            Err(error) => self.connection.event(id, &Event::Failed(error)),
        }
    }

    fn interfere(&mut self, id: u32, request: &Request) {
        match (self.conversations.get_mut(&id), request) {
            (Some(Conversation::Execution(it)), Request::Kill) => it.kill(KillReason::Asked),
            (Some(Conversation::Operation(it)), Request::Kill) => it.break_off(&mut self.connection),
            (Some(Conversation::Execution(it)), Request::Resize(size)) => it.resize(*size),
            (Some(Conversation::Execution(it)), Request::Signal { signal }) => match named(*signal) {
                Some(signal) => it.signal(signal),
                None => eprintln!("belljar-guest: there is no signal {signal}"),
            },
            (Some(_), _) => {}
            (None, _) => {
                let message = format!("conversation {id} is not under way");
                self.connection.event(id, &Event::Failed(Error::new(ErrorCode::NotFound, message)));
            }
        }
    }

    /// Ends what the kernel would end by itself if this were the first process of a namespace.
    fn kill_everything(&mut self) {
        let passes = if std::process::id() == 1 { 0 } else { LAST_PASSES };
        for _ in 0..passes {
            self.conversations.retain(|_, conversation| match conversation {
                Conversation::Execution(it) => !it.is_gone(),
                Conversation::Operation(it) => it.child().is_some(),
            });
            for conversation in self.conversations.values_mut() {
                match conversation {
                    Conversation::Execution(it) => it.kill(KillReason::Asked),
                    Conversation::Operation(it) => it.break_off(&mut self.connection),
                }
            }
            if self.conversations.is_empty() {
                return;
            }
            std::thread::sleep(LAST_PASS);
            self.reap();
        }
    }
}

impl Conversation {
    fn execution(&mut self) -> Option<&mut Execution> {
        match self {
            Self::Execution(execution) => Some(execution),
            Self::Operation(_) => None,
        }
    }

    fn child(&self) -> Option<i32> {
        match self {
            Self::Execution(execution) => execution.child(),
            Self::Operation(operation) => operation.child(),
        }
    }
}

/// The signal of this number, if there is one.
fn named(number: i32) -> Option<Signal> {
    if !(1..=64).contains(&number) {
        return None;
    }
    // SAFETY: the kernel knows every number from 1 to 64, and nothing is done with it but sending it.
    Some(unsafe { Signal::from_raw_unchecked(number) })
}

/// Tells the peer why, if it still listens and there is something to tell.
fn part(connection: &mut Connection, end: &End) {
    let error = match end {
        End::Closed | End::Deadline => return,
        End::Refused(error) => error.clone(),
        other => Error::new(ErrorCode::Internal, other.to_string()),
    };
    connection.event(CONNECTION, &Event::Failed(error));
    let _ = connection.flush();
}
