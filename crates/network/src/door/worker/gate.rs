//! The way to the gateway, which is a process of its own: for the door it is one host among others.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use belljar_core::{ExecId, HostName, SandboxId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::channel::Channel;
use crate::gateway::message::Visit;

/// How long a caller waits for a gateway that is away.
const PATIENCE: Duration = Duration::from_secs(10);

/// Leads to the gateway as it is now. All copies are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<watch::Sender<Option<Arc<Channel>>>>);

impl Gate {
    /// There is another gateway, to which the first of these leads.
    pub(super) fn replace(&self, sockets: Vec<OwnedFd>) {
        let channel = sockets.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into());
        match channel.and_then(Channel::new) {
            Ok(channel) => drop(self.0.send_replace(Some(Arc::new(channel)))),
            Err(error) => tracing::error!(%error, "cannot reach the gateway"),
        }
    }

    /// Brings a caller to the gateway, and answers its end of the connection.
    pub(super) async fn bring(
        &self,
        sandbox: &SandboxId,
        exec: Option<ExecId>,
        host: Option<&HostName>,
    ) -> io::Result<TcpStream> {
        let brought = async {
            let mut gates = self.0.subscribe();
            loop {
                let gate = gates.borrow_and_update().clone();
                if let Some(gate) = gate {
                    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                    let visit = Visit { sandbox: sandbox.clone(), exec, host: host.cloned() };
                    if gate.send(&visit, &[theirs.as_fd()]).await.is_ok() {
                        // To the library a stream is a stream.
                        return TcpStream::from_std(ours.into());
                    }
                }
                // The one that is gone will be replaced.
                gates.changed().await.map_err(io::Error::other)?;
            }
        };
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "the gateway is away"));
        tokio::time::timeout(PATIENCE, brought).await.unwrap_or_else(|_| late())
    }
}
