//! Where the output of sandboxed commands goes: bytes as they came, standard output and error apart.

use belljar_core::Stream;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::outcome::Failure;

/// A pair of sinks. Writing waits while the reader does, and can be abandoned meanwhile.
pub(crate) struct Outlet {
    stdout: Box<dyn AsyncWrite + Unpin>,
    stderr: Box<dyn AsyncWrite + Unpin>,
}

impl Outlet {
    /// This process's own standard output and error.
    pub(crate) fn standard() -> Self {
        Self::new(tokio::io::stdout(), tokio::io::stderr())
    }

    /// Any pair of sinks.
    pub(crate) fn new(
        stdout: impl AsyncWrite + Unpin + 'static,
        stderr: impl AsyncWrite + Unpin + 'static,
    ) -> Self {
        Self { stdout: Box::new(stdout), stderr: Box::new(stderr) }
    }

    /// Passes on every byte.
    pub(crate) async fn write(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
        let sink = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let written = async {
            sink.write_all(bytes).await?;
            sink.flush().await
        };
        written.await.map_err(|error| Failure::output(&error))
    }
}
