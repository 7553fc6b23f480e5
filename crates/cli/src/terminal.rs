//! The user's terminal: its size, its raw mode while a command inside has it, and what is typed.

use std::io::{self, IsTerminal, Read};

use belljar_core::PtySize;
use bytes::Bytes;
use rustix::termios::{self, OptionalActions, Termios};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::outcome::Failure;

/// A terminal in raw mode; dropping it (also while panicking) gives it back as it was.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Makes standard input raw; `None` if it is no terminal.
    pub(crate) fn enter() -> Result<Option<Self>, Failure> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let failed = |errno| Failure::internal(format!("cannot set the terminal to raw mode: {errno}"));
        let before = termios::tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The size of the user's terminal, or the customary 24 by 80.
pub(crate) fn size() -> PtySize {
    match termios::tcgetwinsize(io::stdin()).or_else(|_| termios::tcgetwinsize(io::stdout())) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => PtySize { rows: size.ws_row, cols: size.ws_col },
        _ => PtySize { rows: 24, cols: 80 },
    }
}

/// Tells when the terminal's size changes.
pub(crate) struct Resizes(Signal);

impl Resizes {
    pub(crate) fn new() -> Result<Self, Failure> {
        signal(SignalKind::window_change())
            .map(Self)
            .map_err(|error| Failure::internal(format!("cannot listen for changes of size: {error}")))
    }

    /// The next new size. May be dropped and called again without loss.
    pub(crate) async fn next(&mut self) -> PtySize {
        self.0.recv().await;
        size()
    }
}

/// Reads standard input piece by piece; an empty piece is its end. The thread that reads cannot be woken from its
/// read, so it is left to the end of the process; it holds at most three pieces.
pub(crate) fn input() -> Result<mpsc::Receiver<Bytes>, Failure> {
    let (sender, receiver) = mpsc::channel(2);
    let read_all = move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let piece = match io::stdin().lock().read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) | Ok(0) => Bytes::new(),
                Ok(count) => Bytes::copy_from_slice(&buffer[..count]),
            };
            let end = piece.is_empty();
            if sender.blocking_send(piece).is_err() || end {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(read_all)
        .map_err(|error| Failure::internal(format!("cannot start a thread for standard input: {error}")))?;
    Ok(receiver)
}
