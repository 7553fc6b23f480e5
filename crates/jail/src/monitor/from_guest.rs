//! What the guest says: output, ends, answers about files.

use std::os::fd::OwnedFd;
use std::time::Duration;

use belljar_core::wire::{self, Event, Exit, Frame, FrameKind};
use belljar_core::{Ending, ExecId, Stream, Usage, Wall};
use rustix::fs::{Mode, OFlags};

use super::client::Role;
use super::execution::{Execution, Sink, termination};
use super::link::Presence;
use super::{FIRST_FILE_CONVERSATION, KEPT_EXECUTIONS, KEPT_KEYS, MOST_WAITING, Service, answer};
use crate::control::{Answer, CONVERSATION};

impl Service {
    /// Takes what the guest sent; false when it is gone.
    pub(super) fn hear_guest(&mut self) -> bool {
        // A guest that sends and never reads is not ours any more.
        let reads = self.guest.pending() < MOST_WAITING || !Wall::WaitingBound.stands();
        let present = reads && matches!(self.guest.fill(&mut self.buffer), Ok(Presence::Open));
        loop {
            match self.guest.next_frame() {
                Ok(Some(frame)) => self.on_guest_frame(&frame),
                Ok(None) => return present,
                Err(_) => return false,
            }
        }
    }

    pub(super) fn on_guest_frame(&mut self, frame: &Frame) {
        if frame.id >= FIRST_FILE_CONVERSATION {
            self.on_file_frame(frame);
            return;
        }
        if frame.id == 0 {
            if let Ok(Event::Paused { serial }) = frame.message() {
                self.on_paused(serial);
            }
            return;
        }
        if let FrameKind::Data(number) = frame.kind {
            return self.on_output(frame, number);
        }
        let Some(execution) = self.executions.get_mut(&frame.id) else { return };
        match frame.kind {
            FrameKind::Data(_) => {}
            FrameKind::Credit(_) => {
                execution.input.grant(frame.credit_bytes().unwrap_or(0));
                execution.input.send(frame.id, &mut self.guest);
            }
            FrameKind::Control => match frame.message() {
                Ok(Event::Leaf { cgroup }) => self.on_leaf(ExecId(frame.id), cgroup),
                Ok(Event::Started { start_us, .. }) => {
                    execution.start_us = Some(start_us);
                    // Before any of its output, whoever takes that.
                    self.tell_start(ExecId(frame.id), start_us);
                }
                Ok(Event::Exited(exit)) => self.on_exit(frame.id, &exit),
                // About one that has started this only says that it is over, to whoever wanted to steer it.
                Ok(Event::Failed(_)) if execution.start_us.is_some() => {}
                Ok(Event::Failed(error)) => {
                    self.executions.remove(&frame.id);
                    remove_spool(&self.given.spool, frame.id);
                    self.answer_followers(ExecId(frame.id), &Answer::Failed(error));
                }
                _ => {}
            },
        }
    }

    /// Output goes to the client that takes it directly, or is kept.
    pub(super) fn on_output(&mut self, frame: &Frame, number: u8) {
        let stream = wire::stream::output(number);
        // What has ended says no more; a guest that says otherwise is not believed, for nobody has set room aside for it.
        let Some(Execution { sink, passed, outcome: None, .. }) = self.executions.get(&frame.id) else {
            return;
        };
        match sink {
            Sink::Client(client) if self.follows(*client, ExecId(frame.id)) => {
                self.pass_on(*client, frame);
                if let Some(execution) = self.executions.get_mut(&frame.id) {
                    *execution.passed.of(stream) += frame.payload.len() as u64;
                }
            }
            _ if frame.payload.is_empty() => {}
            Sink::Client(_) => {
                // Its caller is gone or has its answer; what comes now is kept like any other output.
                let sink = self.new_spool(frame.id, *passed);
                self.keep(frame.id, Some(sink), stream, frame);
            }
            _ => self.keep(frame.id, None, stream, frame),
        }
    }

    pub(super) fn follows(&self, client: u64, exec: ExecId) -> bool {
        self.clients.get(&client).is_some_and(
            |client| matches!(&client.role, Role::Follower { exec: followed, .. } if *followed == exec),
        )
    }

    /// Keeps output, in a new place if one is given, and lets the guest send as much again.
    pub(super) fn keep(&mut self, id: u32, sink: Option<Sink>, stream: Stream, frame: &Frame) {
        let Some(execution) = self.executions.get_mut(&id) else { return };
        if let Some(sink) = sink {
            execution.sink = sink;
        }
        execution.keep(stream, &frame.payload);
        self.guest.queue(&Frame::credit(id, wire::stream::number(stream), frame.payload.len() as u32));
    }

    /// Lets the guest send again what a client has taken, or never will.
    pub(super) fn grant(&mut self, conversation: u32, owed: [u32; 3]) {
        for (stream, bytes) in owed.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            self.guest.queue(&Frame::credit(conversation, stream as u8, bytes));
        }
    }

    /// Whether a client has left more waiting than the rules let the guest send: it stands still, or the guest lies.
    fn is_overdue(&self, client: u64) -> bool {
        Wall::WaitingBound.stands()
            && self.clients.get(&client).is_some_and(|client| client.link.pending() > MOST_WAITING)
    }

    /// Hands a guest's data frame to a client at that client's pace.
    pub(super) fn pass_on(&mut self, client: u64, frame: &Frame) {
        let FrameKind::Data(stream) = frame.kind else { return };
        if self.is_overdue(client) {
            return self.drop_client(client);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            let passed = Frame { id: CONVERSATION, ..frame.clone() };
            client.link.queue(&passed);
            if let Some(owed) = client.owed.get_mut(usize::from(stream)) {
                *owed += frame.payload.len() as u32;
            }
        }
    }

    pub(super) fn on_exit(&mut self, id: u32, exit: &Exit) {
        // Once is enough; and a second word of it would be counted twice.
        if self.executions.get(&id).is_none_or(|execution| execution.outcome.is_some()) {
            return;
        }
        let (now, _) = self.read_meters();
        let claimed = Usage {
            cpu_us: exit.cpu_us,
            peak_memory_bytes: None,
            read_bytes: exit.read_bytes,
            write_bytes: exit.write_bytes,
            processes: exit.processes,
        };
        let usage = self.usage_to_tell(claimed, now.as_ref());
        let Some(execution) = self.executions.get_mut(&id) else { return };
        let oom_kills = match (now.as_ref().and_then(|usage| usage.oom_kills), execution.oom_baseline) {
            (Some(now), Some(before)) => Some(now.saturating_sub(before)),
            _ => None,
        };
        let peak = now.and_then(|usage| usage.memory_peak).filter(|_| execution.peak_is_ours);
        execution.outcome = Some(Ending {
            termination: termination(exit, oom_kills),
            usage: Usage { peak_memory_bytes: peak, ..usage },
            duration: Duration::from_micros(exit.duration_us),
            oom_kills,
        });
        self.forget_old_executions();
    }

    pub(super) fn forget_old_executions(&mut self) {
        let finished: Vec<u32> = self
            .executions
            .iter()
            .filter(|(_, execution)| execution.outcome.is_some())
            .map(|(id, _)| *id)
            .collect();
        let followed =
            |id: u32| self.clients.values().any(|client| client.role.execution() == Some(ExecId(id)));
        let surplus = finished.len().saturating_sub(KEPT_EXECUTIONS);
        let old: Vec<u32> = finished.into_iter().take(surplus).filter(|id| !followed(*id)).collect();
        for id in old {
            let forgotten = self.executions.remove(&id);
            if let Some(key) = forgotten.and_then(|execution| execution.key) {
                if self.old_keys.len() >= KEPT_KEYS {
                    self.old_keys.pop_front();
                }
                self.old_keys.push_back((key, ExecId(id)));
            }
            remove_spool(&self.given.spool, id);
        }
    }

    pub(super) fn on_file_frame(&mut self, frame: &Frame) {
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
            FrameKind::Control if self.is_overdue(id) => self.drop_client(id),
            FrameKind::Control => {
                if let (Ok(event), Some(client)) = (frame.message::<Event>(), self.clients.get_mut(&id)) {
                    client.link.queue(&answer(&Answer::Guest(event)));
                    client.owed[usize::from(wire::stream::OUTPUT)] += frame.payload.len() as u32;
                }
            }
        }
    }
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
