//! A command from its start to the end of the last thing it left behind.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_core::wire::{Event, Exit, KillReason, Spawn};
use belljar_core::{Error, ErrorCode, PtySize, Wall};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::clock;
use crate::connection::Connection;
use crate::end::End;
use crate::flow::{Inlet, Outlet};
use crate::group::Group;
use crate::polls::{Part, Polls};
use crate::pty;
use crate::reap::Ended;
use crate::setup::Setup;
use crate::spawn::{self, Launched, Names};
use crate::step::Stopped;

/// How long to wait before killing again what may have forked away from a kill.
const KILL_AGAIN_US: u64 = 10_000;

/// Less processor time than this is no work: a few thousand system calls.
const WORK_US: u64 = 5_000;

/// One execution.
pub(crate) struct Execution {
    id: u32,
    arrived_us: u64,
    deadline_us: u64,
    stage: Stage,
    group: Group,
    input: Inlet,
    outlets: Vec<Outlet>,
    terminal: Option<OwnedFd>,
    status: Option<OwnedFd>,
    killed: Option<KillReason>,
    kill_again_us: Option<u64>,
    /// Since when it stands still.
    frozen_us: Option<u64>,
    /// Processor time when it was last seen to work.
    worked_us: u64,
}

enum Stage {
    /// Forked; the report pipe will say whether it reached exec.
    Starting { report: OwnedFd, heard: Vec<u8>, names: Names },
    /// The program runs.
    Running { started_us: u64 },
    /// The first process ended; told once the streams are settled.
    Ended { exit: Exit },
    /// The peer knows the end. Streams may still be held by what was left behind.
    Told,
    /// It never reached exec, and the peer knows.
    Failed,
}

/// When its time is over, on the boot clock.
fn deadline(arrived_us: u64, request: &Spawn) -> u64 {
    if !Wall::TimeOut.stands() {
        return u64::MAX;
    }
    arrived_us.saturating_add(request.timeout_ms.saturating_mul(1000))
}

impl Execution {
    /// Forks a child for this request; what went wrong before that is the peer's to know.
    pub(crate) fn begin(
        id: u32,
        request: &Spawn,
        arrived_us: u64,
        setup: &Setup,
        connection: &mut Connection,
    ) -> Result<Self, Error> {
        let Launched { names, group, input, outlets, terminal, report, status } =
            spawn::launch(id, request, setup, connection)?;
        Ok(Self {
            id,
            arrived_us,
            deadline_us: deadline(arrived_us, request),
            stage: Stage::Starting { report, heard: Vec::new(), names },
            group,
            input,
            outlets,
            terminal,
            status,
            killed: None,
            kill_again_us: None,
            frozen_us: None,
            worked_us: 0,
        })
    }

    /// Says what it waits for. Streams are left alone until the start is told, and out of the way of congestion.
    pub(crate) fn wait<'fd>(&'fd self, polls: &mut Polls<'fd>, congested: bool) {
        let mut readable = |fd: BorrowedFd<'fd>, part| polls.read(fd, self.id, part);
        if let Stage::Starting { report, .. } = &self.stage {
            return readable(report.as_fd(), Part::Report);
        }
        if let Some(status) = &self.status {
            readable(status.as_fd(), Part::Status);
        }
        if !congested {
            for outlet in &self.outlets {
                if let Some(fd) = outlet.readable() {
                    readable(fd, Part::Output(outlet.stream()));
                }
            }
        }
        if let Some(fd) = self.input.writable() {
            polls.write(fd, self.id, Part::Input);
        }
    }

    /// Goes on with a part that is ready.
    pub(crate) fn ready(&mut self, part: Part, connection: &mut Connection, scratch: &mut [u8]) {
        match part {
            Part::Report => self.read_report(connection),
            Part::Status => self.read_status(connection),
            Part::Input => self.input.pump(self.id, connection),
            Part::Output(stream) => {
                if let Some(outlet) = self.outlets.iter_mut().find(|outlet| outlet.stream() == stream) {
                    outlet.pump(self.id, connection, scratch);
                }
            }
            Part::Results => {}
        }
    }

    /// Whether there is output to send before the end can be told, and credit to send it.
    pub(crate) fn can_settle(&self) -> bool {
        matches!(self.stage, Stage::Ended { .. }) && self.outlets.iter().any(Outlet::can_settle)
    }

    /// Sends what was in the pipes when the first process ended, then tells the end.
    pub(crate) fn settle(&mut self, connection: &mut Connection, scratch: &mut [u8]) {
        let Stage::Ended { exit } = &self.stage else { return };
        let exit = *exit;
        for outlet in &mut self.outlets {
            if outlet.can_settle() && !connection.is_congested() {
                outlet.pump(self.id, connection, scratch);
            }
        }
        if self.outlets.iter().all(Outlet::is_settled) {
            connection.event(self.id, &Event::Exited(exit));
            self.stage = Stage::Told;
        }
    }

    fn read_report(&mut self, connection: &mut Connection) {
        let Stage::Starting { report, heard, names } = &mut self.stage else { return };
        let mut message = [0; 32];
        loop {
            match rustix::io::read(&*report, &mut message) {
                Ok(count) if count > 0 => heard.extend_from_slice(&message[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => break,
            }
        }
        // Its number comes first, except from a keeper that could not fork.
        let (pid, failure) = match heard.as_slice() {
            [a, b, c, d, failure @ ..] if failure.len() != 1 => {
                (u32::from_le_bytes([*a, *b, *c, *d]), failure)
            }
            failure => (0, failure),
        };
        let stopped = failure.try_into().ok().and_then(Stopped::from_bytes);
        let now = clock::now_us();
        self.stage = match stopped {
            Some(stopped) => {
                connection.event(self.id, &Event::Failed(names.explain(stopped)));
                self.outlets.clear();
                Stage::Failed
            }
            None => {
                let start_us = now.saturating_sub(self.arrived_us);
                connection.event(self.id, &Event::Started { pid, start_us });
                Stage::Running { started_us: now }
            }
        };
    }

    fn read_status(&mut self, connection: &mut Connection) {
        let Some(status) = &self.status else { return };
        let mut message = [0; Ended::BYTES];
        match rustix::io::read(status, &mut message) {
            Ok(Ended::BYTES) => self.ended(Ended::from_bytes(&message), connection),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => {
                self.status = None;
                if matches!(self.stage, Stage::Starting { .. } | Stage::Running { .. }) {
                    self.ended(Ended::unseen(0), connection);
                }
            }
        }
    }

    /// Takes note that the guest's own child of this execution was reaped.
    pub(crate) fn reaped(&mut self, ended: Ended, connection: &mut Connection) {
        match self.group.reaped(ended) {
            Some(first) => self.ended(first, connection),
            None => {
                self.read_status(connection);
                self.status = None;
                if matches!(self.stage, Stage::Starting { .. } | Stage::Running { .. }) {
                    self.ended(Ended::unseen(0), connection);
                }
            }
        }
    }

    fn ended(&mut self, ended: Ended, connection: &mut Connection) {
        self.read_report(connection);
        if let Stage::Starting { .. } = self.stage {
            let error =
                Error::new(ErrorCode::Internal, "the keeper of the execution was killed at its start");
            connection.event(self.id, &Event::Failed(error));
            self.stage = Stage::Failed;
        }
        let Stage::Running { started_us } = self.stage else { return };
        let (cpu_us, processes) = self.group.usage();
        let exit = Exit {
            code: ended.code(),
            signal: ended.signal(),
            killed: self.killed,
            duration_us: clock::now_us().saturating_sub(started_us),
            cpu_us: cpu_us.or(Some(ended.cpu_us)),
            processes,
            read_bytes: Some(ended.read_bytes),
            write_bytes: Some(ended.write_bytes),
        };
        self.outlets.iter_mut().for_each(Outlet::settle);
        self.stage = Stage::Ended { exit };
    }

    /// Takes bytes for its standard input.
    pub(crate) fn accept(&mut self, bytes: &[u8], connection: &mut Connection) -> Result<(), End> {
        self.input.accept(self.id, bytes, connection)
    }

    /// Takes note of credit for one of its streams.
    pub(crate) fn grant(&mut self, stream: u8, bytes: u32) {
        self.outlets
            .iter_mut()
            .filter(|outlet| outlet.stream() == stream)
            .for_each(|outlet| outlet.grant(bytes));
    }

    /// Sends a signal to all its processes.
    pub(crate) fn signal(&self, signal: Signal) {
        self.group.signal(signal);
    }

    /// Changes the size of its terminal, if it has one.
    pub(crate) fn resize(&self, size: PtySize) {
        if let Some(master) = &self.terminal {
            let _ = pty::resize(master, size);
        }
    }

    /// Kills all its processes, also those that outlived the first one.
    pub(crate) fn kill(&mut self, reason: KillReason) {
        self.killed.get_or_insert(reason);
        self.group.kill();
        self.kill_again_us = Some(clock::now_us() + KILL_AGAIN_US);
    }

    /// Stops it with its clock.
    pub(crate) fn freeze(&mut self, now_us: u64) {
        self.frozen_us.get_or_insert(now_us);
        self.group.freeze(true);
    }

    /// Lets it go on, with as much time as it had left.
    pub(crate) fn thaw(&mut self, now_us: u64) {
        self.group.freeze(false);
        if let Some(since_us) = self.frozen_us.take() {
            self.deadline_us = self.deadline_us.saturating_add(now_us.saturating_sub(since_us));
        }
    }

    /// Whether it stands still, or nothing of it is left.
    pub(crate) fn is_frozen(&self) -> bool {
        self.group.is_frozen()
    }

    /// Whether this process is one of its own.
    pub(crate) fn has(&self, process: i32) -> bool {
        self.group.members().contains(&process)
    }

    /// Whether it has used the processor since it was last seen to, or the kernel does not say.
    pub(crate) fn has_worked(&mut self) -> bool {
        let used = self.group.usage().0;
        let worked = used.is_none_or(|used| used >= self.worked_us.saturating_add(WORK_US));
        self.worked_us = used.filter(|_| worked).unwrap_or(self.worked_us);
        worked
    }

    /// When it next has something to do without being told.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let running = matches!(self.stage, Stage::Starting { .. } | Stage::Running { .. });
        let timed = running && self.killed.is_none() && self.frozen_us.is_none();
        let deadline = timed.then_some(self.deadline_us);
        self.kill_again_us.into_iter().chain(deadline).min()
    }

    /// Does what its time has come for.
    pub(crate) fn tick(&mut self, now_us: u64) {
        if self.next_us().is_none_or(|at| at > now_us) {
            return;
        }
        if self.group.is_gone() {
            self.kill_again_us = None;
        } else {
            self.kill(KillReason::TimedOut);
        }
    }

    /// Whether nothing of it is left, so that it can be forgotten.
    pub(crate) fn is_over(&mut self) -> bool {
        let told = matches!(self.stage, Stage::Told | Stage::Failed);
        told && self.outlets.iter().all(Outlet::is_ended) && self.group.is_gone()
    }

    /// Whether none of its processes is left.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.group.is_gone()
    }

    /// The guest's own child of this execution, until it is reaped.
    pub(crate) fn child(&self) -> Option<i32> {
        self.group.child()
    }

    /// Whether its processes are held together by a keeper.
    pub(crate) fn is_kept(&self) -> bool {
        self.group.is_kept()
    }
}
