//! Moving bytes: from spools to those who follow them, from queues to sockets, and credit back to the guest.

use belljar_core::wire::{self, Frame};
use belljar_core::{Ending, Error, ErrorCode, ExecId, Stream};

use super::client::Role;
use super::execution::{Execution, Sink};
use super::{CLIENT_BUFFER, Service, answer};
use crate::control::{Answer, CONVERSATION, no_such_execution};
use crate::spool::Piece;

impl Service {
    /// Moves everything that can move: spools to their followers, bytes to sockets, credit to the guest. Whether a
    /// follower that would take more has been left behind, for the sake of the others.
    pub(super) fn pump(&mut self) -> bool {
        let mut behind = false;
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            // Its input may have been waiting for credit that has come meanwhile.
            self.take_client_frames(id);
            self.tell_end(id);
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
                    self.grant(conversation, owed);
                }
            }
        }
        // An error here shows as the guest's end at the next read.
        let _ = self.guest.flush();
        behind
    }

    /// Tells all who follow an execution that it runs.
    pub(super) fn tell_start(&mut self, exec: ExecId, start_us: u64) {
        for client in self.clients.values_mut() {
            if let Role::Follower { exec: followed, started: started @ false, .. } = &mut client.role
                && *followed == exec
            {
                *started = true;
                client.link.queue(&answer(&Answer::Started { exec, start_us }));
            }
        }
    }

    /// Tells one who waits for it that an execution has ended, if it has.
    fn tell_end(&mut self, id: u64) {
        let Some(Role::Waits { exec }) = self.clients.get(&id).map(|client| &client.role) else { return };
        match self.executions.get(&exec.0) {
            Some(Execution { outcome: Some(outcome), .. }) => {
                let finished = finished(outcome);
                self.finish(id, &finished);
            }
            Some(_) => {}
            None => {
                let error = no_such_execution(*exec);
                self.finish(id, &Answer::Failed(error));
            }
        }
    }

    /// Gives a follower what there is for it, as far as its buffer goes; true if the buffer was the limit.
    pub(super) fn pump_follower(&mut self, id: u64) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        let Role::Follower { exec, reader, from, started, .. } = &mut client.role else { return false };
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
                        client.link.queue(&Frame::data(CONVERSATION, wire::stream::number(stream), &bytes));
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
        // Whoever takes it directly has had it all.
        if !matches!(execution.sink, Sink::Client(direct) if direct == id)
            && let Some(end) = execution.unkept()
        {
            for stream in [Stream::Stdout, Stream::Stderr] {
                let bytes = end.get(stream).saturating_sub(from.get(stream));
                if bytes > 0 {
                    client.link.queue(&answer(&Answer::Gap { stream, bytes }));
                }
            }
        }
        let (exec, owed) = (*exec, std::mem::take(&mut client.owed));
        self.finish(id, &finished(&outcome));
        self.grant(exec.0, owed);
        false
    }
}

fn finished(outcome: &Ending) -> Answer {
    Answer::Finished {
        termination: outcome.termination,
        usage: outcome.usage,
        duration_us: outcome.duration.as_micros() as u64,
        oom_kills: outcome.oom_kills,
    }
}
