//! Being told to stop: Ctrl-C and SIGTERM as values, so that a sandbox is never left behind.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::outcome::Failure;

/// Which signal told us to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Ctrl-C.
    Int,
    /// SIGTERM.
    Term,
}

/// From its making on, these signals no longer end the process by themselves.
pub(crate) struct Interrupts {
    int: Signal,
    term: Signal,
}

impl Interrupts {
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))
        };
        Ok(Self { int: listen(SignalKind::interrupt())?, term: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one. May be dropped and called again without loss.
    pub(crate) async fn next(&mut self) -> Interrupt {
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
        }
    }

    /// Does the work unless told to stop meanwhile; then the work is dropped where it stands.
    pub(crate) async fn guard<T, E: Into<Failure>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            interrupt = self.next() => Err(Failure::Interrupted(interrupt)),
            done = work => done.map_err(Into::into),
        }
    }
}
