//! The sockets between launcher, child, monitor and clients.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, bind, listen, sendmsg, socket_with, socketpair,
};

use super::error::LaunchError;
use crate::control::SOCKET_FILE;

/// Listens in the sandbox's directory, whose path may be too long for a socket address.
pub(super) fn listen_in(directory: &File) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd());
    // SAFETY: plain system calls; the socket file is made for its owner alone.
    let previous = unsafe { libc::umask(0o177) };
    let bound = bind(&socket, &SocketAddrUnix::new(path)?);
    // SAFETY: as above.
    unsafe { libc::umask(previous) };
    bound?;
    listen(&socket, 1024)?;
    Ok(socket)
}

pub(super) fn stream_pair(what: &'static str) -> Result<(OwnedFd, OwnedFd), LaunchError> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| LaunchError::Channel { what, source: error.into() })
}

/// Lets the child go on, into this root if we built it.
pub(super) fn release(socket: &OwnedFd, root: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = root.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn write_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(socket, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
