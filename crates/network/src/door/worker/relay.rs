//! Passing bytes on between two connections, without a buffer for one that is idle.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::Shutdown;
use tokio::net::TcpStream;

use super::limits::{Limits, Reached, Way};

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

/// Passes on what comes until it ends, and then says so on the other side.
pub(super) async fn pass(
    from: &TcpStream,
    to: &TcpStream,
    tally: &Tally,
    (limits, way): (&Limits, Way),
) -> Result<(), Broken> {
    let mut pieces = 0;
    loop {
        from.readable().await?;
        let Some((count, rest)) = BUFFER.with_borrow_mut(|buffer| step(from, to, buffer))? else { continue };
        if count == 0 {
            break;
        }
        send(to, &rest).await?;
        tally.add(count as u64);
        limits.passed(way, count as u64).await?;
        pieces += 1;
        if pieces % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    // The other side may be gone already, which is as good.
    let _ = rustix::net::shutdown(to, Shutdown::Write);
    Ok(())
}

/// Reads once and writes what can be written at once: how much there was, and what is left of it. Nothing if there was nothing.
fn step(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<u8>)>> {
    let count = match from.try_read(buffer) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
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
