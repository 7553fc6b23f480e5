//! Passing bytes on between two connections, without a buffer for one that is idle.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::Shutdown;
use tokio::net::TcpStream;

use super::dial::Width;
use super::limits::{Limits, Reached, Way};
use super::tape::Conversation;
use crate::recording;

/// How much is read at once. One buffer serves all, for each is written out before another is read.
const AT_ONCE: usize = 256 * 1024;
/// After so many pieces others have their turn.
const TURN: u32 = 8;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; AT_ONCE]);
}

/// Bytes that went one way.
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

impl Tally {
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why no more is passed on.
#[derive(Debug)]
pub(super) enum Broken {
    Io(io::Error),
    Limit(Reached),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Reached> for Broken {
    fn from(reached: Reached) -> Self {
        Self::Limit(reached)
    }
}

/// One way between two connections, piece by piece.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    width: &'a Width<'a>,
    tape: Option<(&'a Conversation, recording::Way)>,
    moved: u64,
    count: u32,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(from: &'a TcpStream, to: &'a TcpStream, width: &'a Width<'a>) -> Self {
        Self { from, to, width, tape: None, moved: 0, count: 0 }
    }

    /// Has what is passed on be written down.
    pub(super) fn taped(self, tape: Option<&'a Conversation>, way: recording::Way) -> Self {
        Self { tape: tape.map(|tape| (tape, way)), ..self }
    }

    /// Passes on what comes until it ends, and then says so on the other side.
    pub(super) async fn pass(&mut self, tally: &Tally, (limits, way): (&Limits, Way)) -> Result<(), Broken> {
        loop {
            let bytes = self.pass_on(u64::MAX).await?;
            if bytes == 0 {
                break;
            }
            tally.add(bytes);
            limits.passed(way, bytes).await?;
        }
        // The other side may be gone already, which is as good.
        let _ = rustix::net::shutdown(self.to, Shutdown::Write);
        Ok(())
    }

    /// Passes on what there is next, at most so much. Says how much it was: nothing at the end.
    pub(super) async fn pass_on(&mut self, most: u64) -> io::Result<u64> {
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(TURN) {
            tokio::task::yield_now().await;
        }
        let (count, rest) = loop {
            self.from.readable().await?;
            let size = AT_ONCE.min(usize::try_from(most).unwrap_or(AT_ONCE));
            let hear = || self.tape.map_or(Ok(()), |(tape, way)| tape.hear(way));
            let step = BUFFER.with_borrow_mut(|buffer| {
                let step = step(self.from, self.to, &mut buffer[..size], hear)?;
                // Whoever writes it down has a copy of its own.
                let copy = |count: usize| self.tape.map(|_| buffer[..count].to_vec());
                io::Result::Ok(step.map(|(count, rest)| (count, rest, copy(count))))
            });
            if let Some((count, rest, copy)) = step? {
                if let (Some((tape, way)), Some(copy)) = (self.tape, copy)
                    && count > 0
                {
                    tape.say(way, copy).await;
                }
                break (count, rest);
            }
        };
        send(self.to, &rest).await?;
        self.moved += count as u64;
        self.width.moved(self.moved);
        Ok(count as u64)
    }
}

/// Reads once and writes what can be written at once, if it may be: how much there was, and what is left of it. Nothing if there was
/// nothing.
fn step(
    from: &TcpStream,
    to: &TcpStream,
    buffer: &mut [u8],
    may_be: impl FnOnce() -> io::Result<()>,
) -> io::Result<Option<(usize, Vec<u8>)>> {
    let count = match from.try_read(buffer) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    if count > 0 {
        may_be()?;
    }
    let written = match to.try_write(&buffer[..count]) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    Ok(Some((count, buffer[written..count].to_vec())))
}

/// Writes all of it.
pub(super) async fn send(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads what there is next, at most so much; nothing at the end.
pub(super) async fn receive(from: &TcpStream, most: usize) -> io::Result<Vec<u8>> {
    loop {
        from.readable().await?;
        let read = BUFFER.with_borrow_mut(|buffer| {
            let most = most.min(buffer.len());
            from.try_read(&mut buffer[..most]).map(|count| buffer[..count].to_vec())
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::{ByteSize, Moved, NetLimits};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::door::worker::dial::Room;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (connected, accepted) = tokio::join!(connect, listener.accept());
        (connected.unwrap(), accepted.unwrap().0)
    }

    fn limits() -> Limits {
        let bounds = NetLimits {
            bytes_per_second: ByteSize(1 << 40),
            total_bytes: ByteSize(1 << 60),
            ..NetLimits::default()
        };
        Limits::new(bounds, Moved::default())
    }

    /// Bytes whose order can be seen.
    fn content(length: usize) -> Vec<u8> {
        (0..length as u64).map(|number| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }

    /// There is little room and the reader takes odd amounts, so that writes fall short.
    #[tokio::test]
    async fn everything_arrives_in_order_at_one_who_takes_little() {
        let content = content(9_000_001);
        let ((mut near, from), (to, mut far)) = (pair().await, pair().await);
        rustix::net::sockopt::set_socket_send_buffer_size(&to, 4096).unwrap();
        let tally = Tally::default();
        let limits = limits();
        let write = async {
            near.write_all(&content).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let read = async {
            let mut all = Vec::new();
            let mut some = [0; 1999];
            loop {
                match far.read(&mut some).await.unwrap() {
                    0 => return all,
                    count => all.extend_from_slice(&some[..count]),
                }
            }
        };
        let room = Room::default();
        let width = Width::new(&room, &to);
        let mut pieces = Pieces::new(&from, &to, &width);
        let ((), passed, arrived) = tokio::join!(write, pieces.pass(&tally, (&limits, Way::In)), read);
        passed.unwrap();
        assert!(arrived == content, "{} of {} bytes arrived", arrived.len(), content.len());
        assert_eq!((tally.get(), limits.moved().received), (9_000_001, 9_000_001));
    }

    #[tokio::test]
    async fn no_more_is_passed_on_than_was_asked_for() {
        let ((mut near, from), (to, mut far)) = (pair().await, pair().await);
        near.write_all(b"bodynext").await.unwrap();
        near.shutdown().await.unwrap();
        let room = Room::default();
        let width = Width::new(&room, &to);
        let mut pieces = Pieces::new(&from, &to, &width);
        assert_eq!(pieces.pass_on(4).await.unwrap(), 4);
        let mut arrived = [0; 4];
        far.read_exact(&mut arrived).await.unwrap();
        assert_eq!(&arrived, b"body");
        assert_eq!(receive(&from, 64).await.unwrap(), b"next");
        assert_eq!(pieces.pass_on(4).await.unwrap(), 0, "the end");
    }
}
