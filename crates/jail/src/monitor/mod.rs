//! The monitor: one small process per sandbox, outside it and without privileges. It holds the guest's socket, the
//! output spools and the deadline, and serves whoever asks about the sandbox. When it ends, the guest does too.

mod client;
mod execution;
mod input;
mod link;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_core::wire::{self, Event, Exit, Frame, FrameKind};
use belljar_core::{
    Error, ErrorCode, ExecId, ExecRequest, OutputMode, SandboxState, SandboxStats, Stdin, Stream,
    Termination, Usage,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Signal, pidfd_send_signal};

use self::client::{Client, Role};
use self::execution::{Execution, Outcome, Sink, termination};
use self::input::Input;
use self::link::{Link, Presence};
use crate::cgroup::Probe;
use crate::clock::boottime;
use crate::control::{Answer, CONVERSATION, ENDED_FILE, Ended, Open, PROTOCOL, Request};
use crate::spool::{Bounds, Piece, Spool};

/// A client's answers wait here at most; then its spool is not read further until it takes some.
const CLIENT_BUFFER: usize = 128 * 1024;
/// Messages from the guest are small.
const MAX_GUEST_CONTROL: usize = 1024 * 1024;
/// Connections at once.
const MAX_CLIENTS: usize = 512;
/// Finished executions whose output is kept.
const KEPT_EXECUTIONS: usize = 64;
/// File operations have numbers apart from executions.
const FIRST_FILE_CONVERSATION: u32 = 1 << 31;
/// How long a killed guest may take to be gone, and clients to take their last answers.
const FAREWELL: Duration = Duration::from_secs(5);

/// What the monitor is given.
#[derive(Debug)]
pub struct Monitor {
    /// The control socket to the guest.
    pub guest: OwnedFd,
    /// The guest itself.
    pub guest_process: OwnedFd,
    /// Where clients connect.
    pub listener: OwnedFd,
    /// Closes when the creator goes away, which ends the sandbox unless it said [`LIVE_ON`](crate::plan::LIVE_ON).
    pub tie: Option<OwnedFd>,
    /// When the sandbox ends, on the boot clock.
    pub deadline: Duration,
    /// What the kernel says about its use of resources.
    pub probe: Option<Probe>,
    /// The file system of its own layer, if it can be asked.
    pub disk: Option<OwnedFd>,
    /// The directory for spools.
    pub spool: OwnedFd,
    /// Who may connect, besides root.
    pub peer_uid: u32,
}

impl Monitor {
    /// Serves until the sandbox ends.
    pub fn run(self) -> io::Result<SandboxState> {
        let guest = self.guest.try_clone()?;
        rustix::io::ioctl_fionbio(&guest, true)?;
        let mut service = Service {
            guest: Link::new(guest, MAX_GUEST_CONTROL),
            deadline: self.deadline,
            clients: BTreeMap::new(),
            executions: BTreeMap::new(),
            next_client: 0,
            next_exec: 1,
            next_file: FIRST_FILE_CONVERSATION,
            buffer: Vec::new(),
            ending: None,
            given: self,
        };
        let state = service.serve()?;
        service.farewell(state);
        Ok(state)
    }
}

struct Service {
    given: Monitor,
    guest: Link,
    deadline: Duration,
    clients: BTreeMap<u64, Client>,
    executions: BTreeMap<u32, Execution>,
    next_client: u64,
    next_exec: u32,
    next_file: u32,
    buffer: Vec<u8>,
    ending: Option<SandboxState>,
}

impl Service {
    fn serve(&mut self) -> io::Result<SandboxState> {
        let mut behind = false;
        loop {
            let now = boottime();
            if now >= self.deadline {
                return Ok(SandboxState::Expired);
            }
            let ready = self.wait(if behind { Duration::ZERO } else { self.deadline - now })?;
            if ready.guest.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && !self.hear_guest() {
                let expired = boottime() >= self.deadline;
                return Ok(if expired { SandboxState::Expired } else { SandboxState::Lost });
            }
            if ready.tie && !self.hear_creator() {
                return Ok(SandboxState::Killed);
            }
            if ready.listener {
                self.accept();
            }
            for (id, flags) in ready.clients {
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.hear_client(id);
                }
            }
            behind = self.pump();
            if let Some(state) = self.ending {
                return Ok(state);
            }
        }
    }

    fn wait(&self, longest: Duration) -> io::Result<Ready> {
        let mut order = Vec::with_capacity(self.clients.len());
        let wants = |link: &Link, read: bool| {
            let read = if read { PollFlags::IN } else { PollFlags::empty() };
            let write = if link.pending() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            read | write
        };
        let mut polled = vec![
            PollFd::new(&self.guest, wants(&self.guest, true)),
            PollFd::new(&self.given.listener, PollFlags::IN),
        ];
        if let Some(tie) = &self.given.tie {
            polled.push(PollFd::new(tie, PollFlags::IN));
        }
        let first_client = polled.len();
        for (id, client) in &self.clients {
            order.push(*id);
            polled.push(PollFd::new(&client.link, wants(&client.link, self.reads_from(client))));
        }
        let timeout =
            Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Ready {
            guest: polled[0].revents(),
            listener: !polled[1].revents().is_empty(),
            tie: self.given.tie.is_some() && !polled[2].revents().is_empty(),
            clients: order.into_iter().zip(polled[first_client..].iter().map(PollFd::revents)).collect(),
        })
    }

    /// Hears the creator's one word; false when it went away without.
    fn hear_creator(&mut self) -> bool {
        let Some(tie) = &self.given.tie else { return true };
        let spoke = matches!(rustix::io::read(tie, &mut [0; 1]), Ok(1));
        if spoke {
            self.given.tie = None;
        }
        spoke
    }

    /// Whether a client's next bytes can be dealt with now.
    fn reads_from(&self, client: &Client) -> bool {
        match &client.role {
            Role::New => true,
            Role::Follower { exec, feeds, .. } => {
                !*feeds || self.executions.get(&exec.0).is_none_or(|execution| execution.input.wants_more())
            }
            Role::Files { input, .. } => input.wants_more(),
            Role::AwaitsEnd | Role::Closing => false,
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.given.listener, flags) else { return };
        let allowed = rustix::net::sockopt::socket_peercred(&socket)
            .is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == self.given.peer_uid);
        if !allowed || self.clients.len() >= MAX_CLIENTS {
            return;
        }
        self.clients.insert(self.next_client, Client::new(Link::new(socket, wire::MAX_CONTROL)));
        self.next_client += 1;
    }

    /// Takes what the guest sent; false when it is gone.
    fn hear_guest(&mut self) -> bool {
        let present = matches!(self.guest.fill(&mut self.buffer), Ok(Presence::Open));
        loop {
            match self.guest.next_frame() {
                Ok(Some(frame)) => self.on_guest_frame(&frame),
                Ok(None) => return present,
                Err(_) => return false,
            }
        }
    }

    fn on_guest_frame(&mut self, frame: &Frame) {
        if frame.id >= FIRST_FILE_CONVERSATION {
            self.on_file_frame(frame);
            return;
        }
        let Some(execution) = self.executions.get_mut(&frame.id) else { return };
        match frame.kind {
            FrameKind::Data(number) => {
                let stream = if number == wire::stream::ERROR { Stream::Stderr } else { Stream::Stdout };
                match execution.sink {
                    Sink::Client(client) => self.pass_on(client, frame),
                    _ => {
                        execution.keep(stream, &frame.payload);
                        if !frame.payload.is_empty() {
                            self.guest.queue(&Frame::credit(frame.id, number, frame.payload.len() as u32));
                        }
                    }
                }
            }
            FrameKind::Credit(_) => {
                execution.input.grant(frame.credit_bytes().unwrap_or(0));
                execution.input.send(frame.id, &mut self.guest);
            }
            FrameKind::Control => match frame.message() {
                Ok(Event::Started { start_us, .. }) => execution.start_us = Some(start_us),
                Ok(Event::Exited(exit)) => self.on_exit(frame.id, &exit),
                Ok(Event::Failed(error)) => {
                    self.executions.remove(&frame.id);
                    self.answer_followers(ExecId(frame.id), &Answer::Failed(error));
                }
                _ => {}
            },
        }
    }

    /// Hands a guest's data frame to a client at that client's pace.
    fn pass_on(&mut self, client: u64, frame: &Frame) {
        let FrameKind::Data(stream) = frame.kind else { return };
        if let Some(client) = self.clients.get_mut(&client) {
            let passed = Frame { id: CONVERSATION, ..frame.clone() };
            client.link.queue(&passed);
            if let Some(owed) = client.owed.get_mut(usize::from(stream)) {
                *owed += frame.payload.len() as u32;
            }
        }
    }

    fn on_exit(&mut self, id: u32, exit: &Exit) {
        let now = self.given.probe.as_ref().map(Probe::read);
        let Some(execution) = self.executions.get_mut(&id) else { return };
        let oom_kills = match (now.as_ref().and_then(|usage| usage.oom_kills), execution.oom_baseline) {
            (Some(now), Some(before)) => Some(now.saturating_sub(before)),
            _ => None,
        };
        let peak = now.and_then(|usage| usage.memory_peak).filter(|_| execution.peak_is_ours);
        execution.outcome = Some(Outcome {
            termination: termination(exit, oom_kills),
            usage: Usage {
                cpu_ms: exit.cpu_us.map(|us| us.div_ceil(1000)),
                peak_memory_bytes: peak,
                read_bytes: exit.read_bytes,
                write_bytes: exit.write_bytes,
                processes: exit.processes,
            },
            duration: Duration::from_micros(exit.duration_us),
            oom_kills,
        });
        self.forget_old_executions();
    }

    fn forget_old_executions(&mut self) {
        let finished: Vec<u32> = self
            .executions
            .iter()
            .filter(|(_, execution)| execution.outcome.is_some())
            .map(|(id, _)| *id)
            .collect();
        let followed = |id: u32| {
            self.clients
                .values()
                .any(|client| matches!(&client.role, Role::Follower { exec, .. } if exec.0 == id))
        };
        let surplus = finished.len().saturating_sub(KEPT_EXECUTIONS);
        let old: Vec<u32> = finished.into_iter().take(surplus).filter(|id| !followed(*id)).collect();
        for id in old {
            self.executions.remove(&id);
            remove_spool(&self.given.spool, id);
        }
    }

    fn on_file_frame(&mut self, frame: &Frame) {
        let owner = self.clients.iter_mut().find(|(_, client)| {
            matches!(&client.role, Role::Files { conversation, .. } if *conversation == frame.id)
        });
        let Some((id, client)) = owner.map(|(id, client)| (*id, client)) else { return };
        match frame.kind {
            FrameKind::Data(_) => self.pass_on(id, frame),
            FrameKind::Credit(_) => {
                if let Role::Files { conversation, input } = &mut client.role {
                    input.grant(frame.credit_bytes().unwrap_or(0));
                    input.send(*conversation, &mut self.guest);
                }
            }
            FrameKind::Control => {
                if let Ok(event) = frame.message::<Event>() {
                    client.link.queue(&answer(&Answer::Guest(event)));
                }
            }
        }
    }

    fn hear_client(&mut self, id: u64) {
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
    fn take_client_frames(&mut self, id: u64) {
        while self.clients.get(&id).is_some_and(|client| self.reads_from(client)) {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.link.next_frame() {
                Ok(Some(frame)) => self.on_client_frame(id, &frame),
                Ok(None) => return,
                Err(_) => return self.drop_client(id),
            }
        }
    }

    fn on_client_frame(&mut self, id: u64, frame: &Frame) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match (&mut client.role, frame.kind) {
            (Role::New, FrameKind::Control) => match frame.message::<Open>() {
                Ok(open) if open.protocol == PROTOCOL => self.begin(id, open.request),
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

    fn begin(&mut self, client: u64, request: Request) {
        match request {
            Request::Exec { request, kill_on_close } => self.start_execution(client, *request, kill_on_close),
            Request::Attach { exec } => self.attach(client, exec),
            Request::Signal { exec, signal } => self.steer(client, exec, wire::Request::Signal { signal }),
            Request::KillExec { exec } => self.steer(client, exec, wire::Request::Kill),
            Request::Resize { exec, size } => self.steer(client, exec, wire::Request::Resize(size)),
            Request::Executions => {
                let list = self.executions.values().map(Execution::info).collect();
                self.finish(client, &Answer::Executions(list));
            }
            Request::File(request) => {
                let conversation = self.next_file;
                self.next_file = self.next_file.checked_add(1).unwrap_or(FIRST_FILE_CONVERSATION);
                self.guest.queue(&Frame::control(conversation, &wire::Request::File(request)));
                self.set_role(client, Role::Files { conversation, input: Input::new() });
            }
            Request::Status => {
                let status = self.status();
                self.finish(client, &status);
            }
            Request::Extend { ttl } => {
                self.deadline = boottime().saturating_add(ttl);
                let deadline_ms = guest_deadline(self.deadline);
                self.guest.queue(&Frame::control(0, &wire::Request::Deadline { deadline_ms }));
                let status = self.status();
                self.finish(client, &status);
            }
            Request::Kill => {
                self.set_role(client, Role::AwaitsEnd);
                self.ending = Some(SandboxState::Killed);
            }
        }
    }

    fn set_role(&mut self, client: u64, role: Role) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.role = role;
        }
    }

    fn start_execution(&mut self, client: u64, request: ExecRequest, kill_on_close: bool) {
        if let Err(error) = request.check() {
            return self.finish(client, &Answer::Failed(error));
        }
        let id = self.next_exec;
        self.next_exec += 1;
        let sink = match request.output {
            OutputMode::Flow => Sink::Client(client),
            OutputMode::Spool => self.new_spool(id),
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
            sink,
            input: Input::new(),
            start_us: None,
            outcome: None,
            oom_baseline: self.given.probe.as_ref().and_then(|probe| probe.read().oom_kills),
            peak_is_ours,
        };
        self.executions.insert(id, execution);
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
            Role::Follower { exec: ExecId(id), reader, started: false, feeds, kill_on_close },
        );
    }

    fn new_spool(&self, id: u32) -> Sink {
        match Spool::create(&self.given.spool, &id.to_string(), Bounds::default()) {
            Ok(spool) => Sink::Spool(spool),
            Err(error) => {
                eprintln!("[exec {id}] cannot keep output: {error}");
                Sink::Dropped { stdout: 0, stderr: 0 }
            }
        }
    }

    fn attach(&mut self, client: u64, exec: ExecId) {
        let role = match self.executions.get(&exec.0).map(|execution| &execution.sink) {
            Some(Sink::Spool(spool)) => {
                let reader = Some(spool.reader());
                Role::Follower { exec, reader, started: false, feeds: true, kill_on_close: false }
            }
            Some(_) => {
                let error = Error::new(ErrorCode::NotFound, format!("the output of execution {exec} was not kept"))
                    .hint("it went straight to its caller; start it in the background with `belljar exec -d` to keep it");
                return self.finish(client, &Answer::Failed(error));
            }
            None => return self.finish(client, &Answer::Failed(no_such_execution(exec))),
        };
        self.set_role(client, role);
    }

    fn steer(&mut self, client: u64, exec: ExecId, request: wire::Request) {
        let reply = if self.executions.contains_key(&exec.0) {
            self.guest.queue(&Frame::control(exec.0, &request));
            Answer::Done
        } else {
            Answer::Failed(no_such_execution(exec))
        };
        self.finish(client, &reply);
    }

    fn status(&self) -> Answer {
        let usage = self.given.probe.as_ref().map(Probe::read);
        let disk_bytes = self
            .given
            .disk
            .as_ref()
            .and_then(|disk| rustix::fs::fstatvfs(disk).ok())
            .map(|disk| (disk.f_blocks - disk.f_bfree) * disk.f_frsize);
        let stats = SandboxStats {
            cpu_ms: usage.as_ref().and_then(|usage| usage.cpu_usec).map(|us| us / 1000),
            memory_bytes: usage.as_ref().and_then(|usage| usage.memory_current),
            peak_memory_bytes: usage.as_ref().and_then(|usage| usage.memory_peak),
            processes: usage.as_ref().and_then(|usage| usage.pids_current),
            oom_kills: usage.as_ref().and_then(|usage| usage.oom_kills),
            disk_bytes,
            executions: self.executions.values().filter(|execution| execution.outcome.is_none()).count()
                as u32,
        };
        Answer::Status { remaining: self.deadline.saturating_sub(boottime()), stats }
    }

    /// Says the last word to a client.
    fn finish(&mut self, client: u64, last: &Answer) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.link.queue(&answer(last));
            client.role = Role::Closing;
        }
    }

    fn answer_followers(&mut self, exec: ExecId, last: &Answer) {
        for client in self.clients.values_mut() {
            if matches!(&client.role, Role::Follower { exec: followed, .. } if *followed == exec) {
                client.link.queue(&answer(last));
                client.role = Role::Closing;
            }
        }
    }

    /// A connection closed, or broke the rules.
    fn drop_client(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else { return };
        match client.role {
            Role::Follower { exec, kill_on_close, .. } => {
                let running =
                    self.executions.get(&exec.0).is_some_and(|execution| execution.outcome.is_none());
                if kill_on_close && running {
                    self.guest.queue(&Frame::control(exec.0, &wire::Request::Kill));
                }
                self.take_over_output(id, exec, &client.owed);
            }
            Role::Files { conversation, .. } => {
                self.guest.queue(&Frame::control(conversation, &wire::Request::Kill));
            }
            Role::New | Role::AwaitsEnd | Role::Closing => {}
        }
    }

    /// The client that took output directly is gone: from here on it is kept on disk.
    fn take_over_output(&mut self, client: u64, exec: ExecId, owed: &[u32; 3]) {
        let direct = self
            .executions
            .get(&exec.0)
            .is_some_and(|execution| matches!(execution.sink, Sink::Client(taker) if taker == client));
        if !direct {
            return;
        }
        let sink = self.new_spool(exec.0);
        if let Some(execution) = self.executions.get_mut(&exec.0) {
            execution.sink = sink;
        }
        for (stream, bytes) in owed.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            self.guest.queue(&Frame::credit(exec.0, stream as u8, *bytes));
        }
    }

    /// Moves everything that can move: spools to their followers, bytes to sockets, credit to the guest. Whether a
    /// follower that would take more has been left behind, for the sake of the others.
    fn pump(&mut self) -> bool {
        let mut behind = false;
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            // Its input may have been waiting for credit that has come meanwhile.
            self.take_client_frames(id);
            let unread = self.pump_follower(id);
            let Some(client) = self.clients.get_mut(&id) else { continue };
            if client.link.flush().is_err() {
                self.drop_client(id);
                continue;
            }
            if client.link.pending() == 0 {
                behind |= unread;
                let owed = std::mem::take(&mut client.owed);
                let conversation = match &client.role {
                    Role::Follower { exec, .. } => Some(exec.0),
                    Role::Files { conversation, .. } => Some(*conversation),
                    _ => None,
                };
                if matches!(client.role, Role::Closing) {
                    self.clients.remove(&id);
                }
                if let Some(conversation) = conversation {
                    for (stream, bytes) in owed.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
                        self.guest.queue(&Frame::credit(conversation, stream as u8, *bytes));
                    }
                }
            }
        }
        // An error here shows as the guest's end at the next read.
        let _ = self.guest.flush();
        behind
    }

    /// Gives a follower what there is for it, as far as its buffer goes; true if the buffer was the limit.
    fn pump_follower(&mut self, id: u64) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        let Role::Follower { exec, reader, started, .. } = &mut client.role else { return false };
        let Some(execution) = self.executions.get(&exec.0) else {
            // Forgotten while being followed from afar.
            let error = no_such_execution(*exec);
            self.finish(id, &Answer::Failed(error));
            return false;
        };
        if let (false, Some(start_us)) = (*started, execution.start_us) {
            *started = true;
            client.link.queue(&answer(&Answer::Started { exec: *exec, start_us }));
        }
        if !*started {
            return false;
        }
        if let (Some(reader), Sink::Spool(spool)) = (reader, &execution.sink) {
            while client.link.pending() < CLIENT_BUFFER {
                match reader.next(spool) {
                    Ok(Some(Piece::Bytes(stream, bytes))) => {
                        client.link.queue(&Frame::data(CONVERSATION, stream_number(stream), &bytes));
                    }
                    Ok(Some(Piece::Gap(stream, bytes))) => {
                        client.link.queue(&answer(&Answer::Gap { stream, bytes }))
                    }
                    Ok(None) => break,
                    Err(error) => {
                        let error =
                            Error::new(ErrorCode::Internal, format!("cannot read kept output: {error}"));
                        self.finish(id, &Answer::Failed(error));
                        return false;
                    }
                }
            }
            if client.link.pending() >= CLIENT_BUFFER {
                return true;
            }
        }
        let Some(outcome) = execution.outcome else { return false };
        if let Sink::Dropped { stdout, stderr } = execution.sink {
            for (stream, bytes) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
                if bytes > 0 {
                    client.link.queue(&answer(&Answer::Gap { stream, bytes }));
                }
            }
        }
        let direct = matches!(execution.sink, Sink::Client(taker) if taker == id);
        let exec = *exec;
        self.finish(id, &finished(&outcome));
        if direct {
            self.take_over_output(id, exec, &[0; 3]);
        }
        false
    }

    /// Kills the guest, and with it everything inside; then tells those who still listen.
    fn farewell(&mut self, state: SandboxState) {
        let _ = pidfd_send_signal(&self.given.guest_process, Signal::KILL);
        let until = boottime() + FAREWELL;
        wait_until_readable(&self.given.guest_process, until);
        let termination = if state == SandboxState::Lost { Termination::Lost } else { Termination::Killed };
        // What the guest had said before it died still counts.
        while let Ok(Presence::Open) = self.guest.fill(&mut self.buffer) {
            let mut any = false;
            while let Ok(Some(frame)) = self.guest.next_frame() {
                self.on_guest_frame(&frame);
                any = true;
            }
            if !any {
                break;
            }
        }
        for execution in self.executions.values_mut() {
            execution.start_us.get_or_insert(0);
            execution.outcome.get_or_insert(Outcome {
                termination,
                usage: Usage::default(),
                duration: Duration::ZERO,
                oom_kills: None,
            });
        }
        for client in self.clients.values_mut() {
            let last = match client.role {
                Role::AwaitsEnd => Answer::Done,
                Role::Files { .. } | Role::New => Answer::Failed(gone(state)),
                Role::Follower { .. } | Role::Closing => continue,
            };
            client.link.queue(&answer(&last));
            client.role = Role::Closing;
        }
        write_ended(&self.given.spool, state);
        while !self.clients.is_empty() && boottime() < until {
            if self.pump() {
                continue;
            }
            let mut polled: Vec<PollFd<'_>> =
                self.clients.values().map(|client| PollFd::new(&client.link, PollFlags::OUT)).collect();
            if !polled.is_empty() {
                let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                let _ = poll(&mut polled, Some(&second));
            }
        }
    }
}

struct Ready {
    guest: PollFlags,
    listener: bool,
    tie: bool,
    clients: Vec<(u64, PollFlags)>,
}

/// The guest keeps the same deadline a little later, so that a living monitor is the one to say why it ended.
pub(crate) fn guest_deadline(deadline: Duration) -> u64 {
    u64::try_from(deadline.saturating_add(Duration::from_millis(200)).as_millis()).unwrap_or(u64::MAX)
}

fn answer(answer: &Answer) -> Frame {
    Frame::control(CONVERSATION, answer)
}

fn finished(outcome: &Outcome) -> Answer {
    Answer::Finished {
        termination: outcome.termination,
        usage: outcome.usage,
        duration_us: outcome.duration.as_micros() as u64,
        oom_kills: outcome.oom_kills,
    }
}

fn stream_number(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => wire::stream::OUTPUT,
        Stream::Stderr => wire::stream::ERROR,
    }
}

fn no_such_execution(exec: ExecId) -> Error {
    Error::new(ErrorCode::NotFound, format!("no execution {exec} in this sandbox"))
        .hint("`belljar inspect ID` lists its executions")
}

fn gone(state: SandboxState) -> Error {
    Error::new(ErrorCode::SandboxGone, format!("the sandbox has ended ({state})"))
}

fn wait_until_readable(fd: &OwnedFd, until: Duration) {
    loop {
        let left = until.saturating_sub(boottime());
        if left.is_zero() {
            return;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut polled = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Leaves word of how the sandbox ended, unless there is some already.
pub(crate) fn write_ended(spool: impl AsFd, state: SandboxState) {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(spool, ENDED_FILE, flags, Mode::from_raw_mode(0o600)) else { return };
    let text = serde_json::to_vec(&Ended { state }).unwrap_or_default();
    let _ = io::Write::write_all(&mut std::fs::File::from(file), &text);
}

fn remove_spool(parent: &OwnedFd, id: u32) {
    use rustix::fs::{AtFlags, Dir, openat, unlinkat};
    let name = id.to_string();
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = openat(parent, &name, flags, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&directory) else { return };
    for entry in entries.flatten() {
        let _ = unlinkat(&directory, entry.file_name(), AtFlags::empty());
    }
    let _ = unlinkat(parent, &name, AtFlags::REMOVEDIR);
}
