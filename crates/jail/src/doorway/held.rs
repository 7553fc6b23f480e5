//! The doorway's sockets on their way to whoever holds them: from the child that makes them to its launcher, and from the
//! monitor to the door.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_core::wire::{Decoder, Frame, MAX_CONTROL};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};

use super::Doorway;
use crate::control::{Answer, CONVERSATION, Caller, Open, PROTOCOL, Request, SOCKET_FILE};

/// A monitor that says nothing for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one waits between two tries to be let in.
const AGAIN: Duration = Duration::from_millis(5);
/// An answer here is no longer.
const ANSWER: usize = 4096;
/// Two sockets of each family.
const MOST: usize = 4;

/// Sends bytes with these descriptors: all of them, or none, to a socket at which nothing waits. Answers how many bytes went.
pub(crate) fn pass(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Receives up to so many bytes, and the sockets that came with them.
pub(crate) fn take(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received.bytes, descriptors.flatten().collect()))
}

/// The sockets at which a sandbox's traffic arrives, from its monitor. `state_dir` is the sandbox's own directory.
///
/// Waits for a monitor that is busy, for some seconds at most. A sandbox that was made without a network has none to give:
/// then the error is [`io::ErrorKind::Unsupported`]. One that has ended is [`io::ErrorKind::NotFound`] or
/// [`io::ErrorKind::ConnectionRefused`].
pub fn fetch(state_dir: &Path) -> io::Result<Doorway> {
    match ask(state_dir, Request::Doorway)? {
        (Answer::Doorway { marks }, descriptors) => Doorway::from_descriptors(descriptors, marks)
            .ok_or_else(|| unexpected("the monitor sent another number of sockets than it should")),
        (other, _) => Err(failure(other)),
    }
}

/// The execution of a sandbox whose packets have this mark; `None` if there is none, or it ended long ago. Waits and fails as
/// [`fetch`] does.
pub fn whose(state_dir: &Path, mark: u32) -> io::Result<Option<Caller>> {
    match ask(state_dir, Request::Whose { mark })? {
        (Answer::Whose(caller), _) => Ok(caller),
        (other, _) => Err(failure(other)),
    }
}

/// The file system of a sandbox's own files, from its monitor: `upper0` has those of the root, `upper1` those of the first
/// layer that is mounted over it, and so on. Waits and fails as [`fetch`] does.
pub fn disk(state_dir: &Path) -> io::Result<OwnedFd> {
    match ask(state_dir, Request::Disk)? {
        (Answer::Disk, mut descriptors) => {
            descriptors.pop().ok_or_else(|| unexpected("the monitor sent no file system"))
        }
        (other, _) => Err(failure(other)),
    }
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn failure(answer: Answer) -> io::Error {
    use belljar_core::ErrorCode::{SandboxGone, Unsupported};
    match answer {
        Answer::Failed(error) if error.code == Unsupported => {
            io::Error::new(io::ErrorKind::Unsupported, error)
        }
        Answer::Failed(error) if error.code == SandboxGone => io::Error::new(io::ErrorKind::NotFound, error),
        Answer::Failed(error) => io::Error::other(error),
        _ => unexpected("the monitor answered something else"),
    }
}

/// One question, its answer, and the descriptors that came with it.
fn ask(state_dir: &Path, request: Request) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let until = Instant::now() + PATIENCE;
    let mut socket = enter(state_dir, until)?;
    let mut bytes = Vec::new();
    // The door is no engine, and has no number.
    Frame::control(CONVERSATION, &Open { protocol: PROTOCOL, epoch: None, request }).encode(&mut bytes);
    socket.set_write_timeout(Some(left(until)?))?;
    socket.write_all(&bytes).map_err(silent)?;
    let (mut decoder, mut descriptors) = (Decoder::new(MAX_CONTROL), Vec::new());
    let mut buffer = [0; ANSWER];
    loop {
        if let Some(frame) = decoder.next_frame().map_err(|error| unexpected(&error.to_string()))? {
            let answer = frame.message().map_err(|error| unexpected(&error.to_string()))?;
            return Ok((answer, descriptors));
        }
        socket.set_read_timeout(Some(left(until)?))?;
        let count = if descriptors.is_empty() {
            let (count, arrived) = take(&socket, &mut buffer).map_err(silent)?;
            descriptors = arrived;
            count
        } else {
            socket.read(&mut buffer).map_err(silent)?
        };
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the monitor closed without an answer"));
        }
        decoder.feed(&buffer[..count]);
    }
}

/// Connects to the monitor. By descriptor, because the path may be longer than a socket address can hold.
fn enter(state_dir: &Path, until: Instant) -> io::Result<UnixStream> {
    let directory = File::open(state_dir)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // With many callers before it, one has to wait.
            Err(Errno::AGAIN) => {
                left(until)?;
                std::thread::sleep(AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// What the kernel says when the time for one call is over.
fn silent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "the sandbox's monitor does not answer")
        }
        _ => error,
    }
}
