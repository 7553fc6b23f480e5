//! A file operation as the guest sees it: a worker process that speaks frames, forwarded under credit.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_core::wire::{Decoder, Event, FileRequest, Frame, FrameKind, MAX_CONTROL, WINDOW, stream};
use belljar_core::{Error, ErrorCode};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::connection::Connection;
use crate::end::End;
use crate::flow::Inlet;
use crate::polls::{Part, Polls};
use crate::reap::Ended;
use crate::setup::Setup;
use crate::worker::{self, Worker};

/// How long a worker that was killed is waited for, in naps.
const NAP: Duration = Duration::from_millis(1);
const MOST_NAPS: u32 = 100;

/// One file operation.
pub(crate) struct Operation {
    id: u32,
    worker: Option<i32>,
    input: Inlet,
    results: Option<OwnedFd>,
    decoder: Decoder,
    pending: Option<Frame>,
    /// May fall below nothing: a message goes whole or not at all.
    credit: i64,
    answered: bool,
    end: Option<Ended>,
}

impl Operation {
    /// Forks a worker for this request.
    pub(crate) fn begin(id: u32, request: FileRequest, setup: &Setup) -> Result<Self, Error> {
        let Worker { pid, input, results } = worker::start(request, setup)?;
        Ok(Self {
            id,
            worker: Some(pid),
            input: Inlet::new(Some(input), false),
            results: Some(results),
            decoder: Decoder::new(MAX_CONTROL),
            pending: None,
            credit: i64::from(WINDOW),
            answered: false,
            end: None,
        })
    }

    /// Says what it waits for.
    pub(crate) fn wait<'fd>(&'fd self, polls: &mut Polls<'fd>, congested: bool) {
        if let Some(results) = self.results.as_ref().filter(|_| !congested && self.pending.is_none()) {
            polls.read(results.as_fd(), self.id, Part::Results);
        }
        if let Some(fd) = self.input.writable() {
            polls.write(fd, self.id, Part::Input);
        }
    }

    /// Goes on with a part that is ready.
    pub(crate) fn ready(&mut self, part: Part, connection: &mut Connection, scratch: &mut [u8]) {
        match part {
            Part::Input => self.input.pump(self.id, connection),
            Part::Results => {
                let Some(results) = &self.results else { return };
                match rustix::io::read(results, &mut *scratch) {
                    Ok(count) if count > 0 => self.decoder.feed(&scratch[..count]),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Ok(_) | Err(_) => self.results = None,
                }
                self.forward(connection);
            }
            Part::Report | Part::Status | Part::Output(_) => {}
        }
    }

    /// Sends on what the worker said, as far as credit goes.
    fn forward(&mut self, connection: &mut Connection) {
        while let Some(mut frame) = self.pending.take().or_else(|| self.next_frame()) {
            match frame.kind {
                FrameKind::Data(_) => {
                    let count = frame.payload.len().min(usize::try_from(self.credit).unwrap_or(0));
                    if count < frame.payload.len() {
                        let rest = frame.payload.split_off(count);
                        self.pending = Some(Frame { payload: rest, ..frame.clone() });
                    }
                    if count > 0 || self.pending.is_none() {
                        connection.data(self.id, stream::OUTPUT, &frame.payload);
                        self.credit -= count as i64;
                    }
                    if self.pending.is_some() {
                        return;
                    }
                }
                // A long listing is as many bytes as a long file.
                FrameKind::Control if self.credit <= 0 => {
                    self.pending = Some(frame);
                    return;
                }
                FrameKind::Control => match frame.message::<Event>() {
                    Ok(event) => {
                        self.answered = true;
                        self.credit -= frame.payload.len() as i64;
                        connection.event(self.id, &event);
                    }
                    Err(_) => self.kill(),
                },
                FrameKind::Credit(_) => {}
            }
        }
        self.conclude(connection);
    }

    fn next_frame(&mut self) -> Option<Frame> {
        match self.decoder.next_frame() {
            Ok(frame) => frame,
            Err(_) => {
                self.kill();
                None
            }
        }
    }

    /// Answers for a worker that ended without an answer.
    fn conclude(&mut self, connection: &mut Connection) {
        let (None, None, Some(end), false) = (&self.results, &self.pending, self.end, self.answered) else {
            return;
        };
        let how = match (end.code(), end.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let error = Error::new(ErrorCode::Internal, format!("the file operation ended early with {how}"));
        connection.event(self.id, &Event::Failed(error));
        self.answered = true;
    }

    /// Takes note that its worker was reaped.
    pub(crate) fn reaped(&mut self, ended: Ended, connection: &mut Connection) {
        self.worker = None;
        self.end = Some(ended);
        self.conclude(connection);
    }

    /// Takes bytes for it.
    pub(crate) fn accept(&mut self, bytes: &[u8], connection: &mut Connection) -> Result<(), End> {
        self.input.accept(self.id, bytes, connection)
    }

    /// Takes note of credit.
    pub(crate) fn grant(&mut self, bytes: u32, connection: &mut Connection) {
        self.credit = self.credit.saturating_add(i64::from(bytes));
        self.forward(connection);
    }

    /// Breaks it off. What it did until then stays done, so how far it came is not known.
    pub(crate) fn break_off(&mut self, connection: &mut Connection) {
        self.kill();
        self.await_death();
        self.results = None;
        self.pending = None;
        self.decoder = Decoder::new(MAX_CONTROL);
        self.answered = true;
        let error = Error::new(ErrorCode::Lost, "the file operation was broken off");
        connection.event(self.id, &Event::Failed(error));
    }

    fn kill(&mut self) {
        // It is not reaped, so the number is its own.
        if let Some(pid) = self.worker.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits a moment for a worker that was killed: what it is writing must not come after what the next one writes.
    fn await_death(&self) {
        let Some(pid) = self.worker.and_then(Pid::from_raw) else { return };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        for _ in 0..MOST_NAPS {
            match waitid(WaitId::Pid(pid), options) {
                Ok(None) => std::thread::sleep(NAP),
                _ => return,
            }
        }
    }

    /// Whether it can be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        self.worker.is_none() && self.results.is_none() && self.pending.is_none()
    }

    /// Its worker, until it is reaped.
    pub(crate) fn child(&self) -> Option<i32> {
        self.worker
    }
}
