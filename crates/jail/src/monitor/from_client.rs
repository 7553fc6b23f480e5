//! What clients ask: executions, files, and the sandbox's own state.

use belljar_core::wire::{self, Frame, FrameKind};
use belljar_core::{
    Error, ErrorCode, ExecId, ExecRequest, OutputMode, Position, SandboxSpec, SandboxState, Stdin, Wall,
};

use super::client::Role;
use super::execution::{COMMAND, Execution, Sink};
use super::input::Input;
use super::link::Presence;
use super::{
    FIRST_FILE_CONVERSATION, FULL_SPOOL, FULL_SPOOLS, MOST_SPOOLS, SMALL_SPOOL, Service, answer,
    guest_deadline,
};
use crate::cgroup::Probe;
use crate::control::{Answer, Open, PROTOCOL, Request, no_such_execution};
use crate::log::note;
use crate::spool::{Bounds, Spool};

/// Bytes of commands in one answer, at most; as JSON they can be six times as long.
const MOST_LISTED: usize = wire::MAX_CONTROL / 8;

impl Service {
    pub(super) fn hear_client(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        if !self.reads_from(client) {
            // It was only asked whether it is still there.
            return self.drop_client(id);
        }
        self.take_client_frames(id);
        let Some(client) = self.clients.get_mut(&id) else { return };
        match client.link.fill(&mut self.buffer) {
            Ok(Presence::Open) => self.take_client_frames(id),
            _ => self.drop_client(id),
        }
    }

    /// Deals with the frames that have arrived from a client, as long as it may send.
    pub(super) fn take_client_frames(&mut self, id: u64) {
        while self.clients.get(&id).is_some_and(|client| self.reads_from(client)) {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.link.next_frame() {
                Ok(Some(frame)) => self.on_client_frame(id, &frame),
                Ok(None) => return,
                Err(_) => return self.drop_client(id),
            }
        }
    }

    pub(super) fn on_client_frame(&mut self, id: u64, frame: &Frame) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match (&mut client.role, frame.kind) {
            (Role::New, FrameKind::Control) => match frame.message::<Open>() {
                Ok(open) if open.protocol == PROTOCOL => match self.admit(&open) {
                    Ok(()) => self.begin(id, open.request),
                    Err(error) => self.finish(id, &Answer::Failed(error)),
                },
                Ok(open) => {
                    let problem =
                        format!("this sandbox speaks version {PROTOCOL}, the caller {}", open.protocol);
                    let error = Error::new(ErrorCode::Version, problem)
                        .hint("use the belljar that created it, or remove it with `belljar rm -f`");
                    self.finish(id, &Answer::Failed(error));
                }
                Err(error) => {
                    self.finish(
                        id,
                        &Answer::Failed(Error::new(ErrorCode::InvalidArgument, error.to_string())),
                    );
                }
            },
            (Role::Follower { exec, feeds: true, .. }, FrameKind::Data(wire::stream::INPUT)) => {
                let exec = exec.0;
                if let Some(execution) = self.executions.get_mut(&exec) {
                    execution.input.push(&frame.payload);
                    execution.input.send(exec, &mut self.guest);
                }
            }
            (Role::Files { conversation, input }, FrameKind::Data(wire::stream::INPUT)) => {
                input.push(&frame.payload);
                input.send(*conversation, &mut self.guest);
            }
            _ => self.drop_client(id),
        }
    }

    /// Lets in whoever is not older than those who came before.
    fn admit(&mut self, open: &Open) -> Result<(), Error> {
        match (open.epoch, &open.request) {
            (_, Request::Doorway | Request::Whose { .. }) => Ok(()),
            (Some(epoch), _) if epoch < self.epoch => {
                let newest = self.epoch;
                let problem =
                    format!("a newer engine has taken over (its epoch is {newest}, this one's {epoch})");
                Err(Error::new(ErrorCode::Fenced, problem)
                    .hint("stop this engine; the newer one has the sandbox"))
            }
            (None, Request::Fence) => {
                Err(Error::new(ErrorCode::InvalidArgument, "there is no epoch to fence with"))
            }
            (epoch, _) => {
                self.epoch = epoch.unwrap_or(self.epoch);
                Ok(())
            }
        }
    }

    pub(super) fn begin(&mut self, client: u64, request: Request) {
        match request {
            Request::Exec { request, kill_on_close } => self.start_execution(client, *request, kill_on_close),
            Request::Attach { exec, from } => self.attach(client, exec, from),
            Request::Wait { exec } if self.executions.contains_key(&exec.0) => {
                self.set_role(client, Role::Waits { exec });
            }
            Request::Wait { exec } => self.finish(client, &Answer::Failed(no_such_execution(exec))),
            Request::Signal { exec, signal } => self.steer(client, exec, wire::Request::Signal { signal }),
            Request::KillExec { exec } => self.steer(client, exec, wire::Request::Kill),
            Request::Resize { exec, size } => self.steer(client, exec, wire::Request::Resize(size)),
            Request::Executions => {
                // However many there are, they fit into one answer.
                let room = COMMAND.min(MOST_LISTED / self.executions.len().max(1));
                let list = self.executions.values().map(|execution| execution.info(room)).collect();
                self.finish(client, &Answer::Executions(list));
            }
            Request::File(request) => {
                self.look_at_meters();
                let conversation = self.next_file;
                self.next_file = self.next_file.checked_add(1).unwrap_or(FIRST_FILE_CONVERSATION);
                self.guest.queue(&Frame::control(conversation, &wire::Request::File(request)));
                self.set_role(client, Role::Files { conversation, input: Input::new() });
            }
            Request::Status => {
                let status = self.status();
                self.finish(client, &status);
            }
            Request::Extend { ttl } if ttl.is_zero() || ttl > SandboxSpec::MAX_TTL => {
                let error = Error::new(
                    ErrorCode::InvalidArgument,
                    format!("a time to live of {ttl:?} is out of range"),
                )
                .hint("a sandbox lives for up to 365 days from now");
                self.finish(client, &Answer::Failed(error));
            }
            Request::Extend { ttl } => {
                self.deadline = self.life_clock().saturating_add(ttl);
                let deadline_ms = guest_deadline(self.deadline);
                self.guest.queue(&Frame::control(0, &wire::Request::Deadline { deadline_ms }));
                let status = self.status();
                self.finish(client, &status);
            }
            Request::Pause => self.pause(client),
            Request::Resume => self.resume(client),
            Request::Fence => self.finish(client, &Answer::Done),
            Request::Kill => {
                self.set_role(client, Role::AwaitsEnd);
                self.ending = Some(SandboxState::Killed);
            }
            Request::AwaitEnd => self.set_role(client, Role::AwaitsEnd),
            Request::Doorway => self.hand_out_doorway(client),
            Request::Disk => self.hand_out_disk(client),
            Request::Whose { mark } => self.tell_whose(client, mark),
        }
    }

    pub(super) fn set_role(&mut self, client: u64, role: Role) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.role = role;
        }
    }

    pub(super) fn start_execution(&mut self, client: u64, request: ExecRequest, kill_on_close: bool) {
        if let Err(error) = request.check() {
            return self.finish(client, &Answer::Failed(error));
        }
        if let Some(known) = request.key.as_deref().and_then(|key| self.with_key(key)) {
            return self.finish(client, &Answer::Failed(request.repeats(known)));
        }
        if let Err(error) = self.refuse_while_paused() {
            return self.finish(client, &Answer::Failed(error));
        }
        let id = self.next_exec;
        self.next_exec += 1;
        let sink = match request.output {
            OutputMode::Flow => Sink::Client(client),
            OutputMode::Spool => self.new_spool(id, Position::START),
        };
        let alone = self.executions.values().all(|execution| execution.outcome.is_some());
        let peak_is_ours =
            alone && self.given.probe.as_ref().is_some_and(|probe| probe.reset_memory_peak() || id == 1);
        let reader = match &sink {
            Sink::Spool(spool) => Some(spool.reader()),
            _ => None,
        };
        let execution = Execution {
            id: ExecId(id),
            command: request.command.clone(),
            user: request.user,
            key: request.key,
            purpose: request.purpose,
            sink,
            passed: Position::START,
            input: Input::new(),
            start_us: None,
            outcome: None,
            oom_baseline: self.given.probe.as_ref().and_then(Probe::oom_kills),
            peak_is_ours,
            is_marked: false,
        };
        self.executions.insert(id, execution);
        self.look_at_meters();
        let spawn = wire::Spawn {
            command: request.command,
            cwd: request.cwd,
            env: request.env,
            user: request.user,
            stdin: request.stdin,
            pty: request.pty,
            timeout_ms: u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX),
            output: request.output,
        };
        self.guest.queue(&Frame::control(id, &wire::Request::Spawn(spawn)));
        let feeds = request.stdin == Stdin::Piped || request.pty.is_some();
        self.set_role(
            client,
            Role::Follower {
                exec: ExecId(id),
                reader,
                from: Position::START,
                started: false,
                feeds,
                kill_on_close,
            },
        );
    }

    /// The execution with this key, if there is or was one.
    fn with_key(&self, key: &str) -> Option<ExecId> {
        let known = self.executions.values().find(|execution| execution.key.as_deref() == Some(key));
        let old = || self.old_keys.iter().find(|(old, _)| old == key);
        known.map(|execution| execution.id).or_else(|| old().map(|(_, exec)| *exec))
    }

    /// What a new spool may hold, if there is room for one: at most half of what is left for all, and less when many
    /// executions are kept, so that a sandbox has a bound as a whole and no execution is left without.
    fn spool_bounds(&self) -> Option<Bounds> {
        if !Wall::SpoolBound.stands() {
            return Some(Bounds { head: u32::MAX / 2, ..Bounds::default() });
        }
        let (mut held, mut spools) = (0, 1);
        for execution in self.executions.values() {
            if let Sink::Spool(spool) = &execution.sink {
                // What has ended says no more.
                held += if execution.outcome.is_some() { spool.kept() } else { spool.most() };
                spools += 1;
            }
        }
        let left = self.given.keeps.saturating_sub(held);
        let set_aside = MOST_SPOOLS.saturating_sub(spools) * Bounds::LEAST;
        let most = if self.executions.len() < FULL_SPOOLS { FULL_SPOOL } else { SMALL_SPOOL };
        let share = (left.saturating_sub(set_aside) / 2).clamp(Bounds::LEAST, most);
        (share <= left).then(|| Bounds::within(share))
    }

    /// A place for output of which this much has gone elsewhere.
    pub(super) fn new_spool(&self, id: u32, from: Position) -> Sink {
        let Some(bounds) = self.spool_bounds() else {
            note(format_args!("[exec {id}] cannot keep output: the sandbox has as much as it may"));
            return Sink::Dropped(from);
        };
        match Spool::create_at(&self.given.spool, &id.to_string(), bounds, from) {
            Ok(spool) => Sink::Spool(spool),
            Err(error) => {
                note(format_args!("[exec {id}] cannot keep output: {error}"));
                Sink::Dropped(from)
            }
        }
    }

    pub(super) fn attach(&mut self, client: u64, exec: ExecId, from: Position) {
        let Some(execution) = self.executions.get(&exec.0) else {
            return self.finish(client, &Answer::Failed(no_such_execution(exec)));
        };
        let reader = match &execution.sink {
            Sink::Spool(spool) => spool.reader_from(from),
            Sink::Client(_) | Sink::Dropped(_) => None,
        };
        let end = execution.end();
        if !from.is_within(end) {
            return self.finish(client, &Answer::Failed(from.beyond(end)));
        }
        if reader.is_none() && execution.outcome.is_none() {
            let error = Error::new(ErrorCode::NotFound, format!("the output of execution {exec} is not kept"))
                .hint("it goes straight to its caller; start it in the background with `belljar exec -d` to keep it");
            return self.finish(client, &Answer::Failed(error));
        }
        let role = Role::Follower { exec, reader, from, started: false, feeds: true, kill_on_close: false };
        self.set_role(client, role);
    }

    pub(super) fn steer(&mut self, client: u64, exec: ExecId, request: wire::Request) {
        let reply = if self.executions.contains_key(&exec.0) {
            self.guest.queue(&Frame::control(exec.0, &request));
            Answer::Done
        } else {
            Answer::Failed(no_such_execution(exec))
        };
        self.finish(client, &reply);
    }

    pub(super) fn status(&mut self) -> Answer {
        let remaining = self.deadline.saturating_sub(self.life_clock());
        Answer::Status { state: self.state(), remaining, stats: Box::new(self.stats()) }
    }

    /// Says the last word to a client.
    pub(super) fn finish(&mut self, client: u64, last: &Answer) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.link.queue(&answer(last));
            client.role = Role::Closing;
        }
    }

    pub(super) fn answer_followers(&mut self, exec: ExecId, last: &Answer) {
        for client in self.clients.values_mut() {
            if client.role.execution() == Some(exec) {
                client.link.queue(&answer(last));
                client.role = Role::Closing;
            }
        }
    }

    /// A connection closed, or broke the rules.
    pub(super) fn drop_client(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else { return };
        match client.role {
            Role::Follower { exec, kill_on_close, .. } => {
                let running =
                    self.executions.get(&exec.0).is_some_and(|execution| execution.outcome.is_none());
                if kill_on_close && running {
                    self.guest.queue(&Frame::control(exec.0, &wire::Request::Kill));
                }
                self.grant(exec.0, client.owed);
            }
            Role::Files { conversation, .. } => {
                self.look_at_meters();
                self.guest.queue(&Frame::control(conversation, &wire::Request::Kill));
            }
            Role::New | Role::Waits { .. } | Role::AwaitsPause | Role::AwaitsEnd | Role::Closing => {}
        }
    }
}
