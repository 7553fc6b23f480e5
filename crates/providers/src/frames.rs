//! Frames over a unix socket, in both directions at once.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use belljar_core::wire::{Decoder, Frame, MAX_CONTROL, MAX_DATA};
use belljar_core::{Error, ErrorCode, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The half that is written.
#[derive(Debug)]
pub struct FrameSender {
    half: OwnedWriteHalf,
    /// What a call that was dropped midway left; it goes first, so that frames stay whole.
    unsent: Vec<u8>,
}

/// The half that is read.
#[derive(Debug)]
pub struct FrameReceiver {
    half: OwnedReadHalf,
    decoder: Decoder,
    buffer: Vec<u8>,
}

/// Connects to a socket in a directory. By descriptor, because the path may be longer than a socket address can hold.
pub async fn connect_in(directory: &Path, socket: &str) -> io::Result<UnixStream> {
    let directory = File::open(directory)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{socket}", directory.as_raw_fd())).await
}

/// Both halves of a connection.
pub fn split(socket: UnixStream) -> (FrameSender, FrameReceiver) {
    let (read, write) = socket.into_split();
    let receiver = FrameReceiver { half: read, decoder: Decoder::new(MAX_CONTROL), buffer: Vec::new() };
    (FrameSender { half: write, unsent: Vec::new() }, receiver)
}

impl FrameSender {
    /// Sends the frame that says what is wanted. Whoever refuses it says why before closing, so that the answer tells.
    pub async fn begin(&mut self, frame: &Frame) -> Result<()> {
        // What is said of it later has a few words more.
        const MOST: usize = MAX_CONTROL - 64 * 1024;
        if frame.payload.len() > MOST {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("the request has {} bytes; the most is {MOST}", frame.payload.len()),
            )
            .hint("send large content as a file or on standard input"));
        }
        let _ = self.send(frame).await;
        Ok(())
    }

    /// Sends a frame. If the future is dropped, the rest of the frame goes before the next one.
    pub async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        frame.encode(&mut self.unsent);
        while !self.unsent.is_empty() {
            let count = self.half.write(&self.unsent).await?;
            self.unsent.drain(..count);
        }
        Ok(())
    }
}

impl FrameReceiver {
    /// The next frame; `None` when the other side closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            self.buffer.clear();
            self.buffer.reserve(MAX_DATA);
            match self.half.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => self.decoder.feed(&self.buffer),
            }
        }
    }
}
