//! Connections that go over to WebSocket, where everything is recorded: only there are they seen at all.

use std::io;
use std::sync::Arc;

use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::tape::Said;
use super::Passing;
use crate::recording::{Unmask, Way};

/// How much is read at a time.
const AT_ONCE: usize = 16 * 1024;

/// Whether a request asks for WebSocket.
pub(in super::super) fn is_asked(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Writes the wish into a head that was written anew, or an answer.
pub(in super::super) fn ask(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Both sides of a connection that has gone over.
pub(super) struct Bridge {
    pub(super) client: OnUpgrade,
    pub(super) host: OnUpgrade,
    pub(super) passing: Arc<Passing>,
}

impl Bridge {
    /// Passes on what either side says, until both have no more to say.
    pub(super) async fn carry(self) -> io::Result<()> {
        let (client, host) = tokio::try_join!(self.client, self.host).map_err(io::Error::other)?;
        let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
        let (from_host, to_host) = tokio::io::split(TokioIo::new(host));
        let side = |way| Side { passing: &self.passing, way, frames: Unmask::default() };
        let (out, back) = (side(Way::Out), side(Way::In));
        tokio::try_join!(out.pass(from_client, to_host), back.pass(from_host, to_client)).map(drop)
    }
}

/// One way.
struct Side<'a> {
    passing: &'a Passing,
    way: Way,
    frames: Unmask,
}

impl Side<'_> {
    async fn pass(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; AT_ONCE];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return to.shutdown().await;
            }
            self.note(&buffer[..count]).await?;
            to.write_all(&buffer[..count]).await?;
        }
    }

    async fn note(&mut self, bytes: &[u8]) -> io::Result<()> {
        let tally = match self.way {
            Way::Out => &self.passing.sent,
            Way::In => &self.passing.received,
        };
        tally.add(bytes.len() as u64);
        if let Some(conversation) = self.passing.conversation.get() {
            conversation.hear(self.way).inspect_err(|error| self.passing.failed(error.to_string()))?;
            let (bytes, heads) = self.frames.framed(bytes);
            conversation.say(self.way, Said { bytes, heads }).await;
        }
        Ok(())
    }
}
