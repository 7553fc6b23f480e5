//! Messages with descriptors between the processes of the door: one packet each. What is longer than a packet goes into a file in
//! memory that is sent along.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// The longest message of somebody who is not trusted.
const MAX_WORD: usize = 16 * 1024;
/// What fits into a packet with room to spare.
const PACKET: usize = 48 * 1024;
/// The longest message, in memory.
const MAX_MESSAGE: u64 = 16 << 20;
/// Descriptors that can come with one message: four sockets, the file of a recording and one in memory.
const MOST: usize = 6;
const HERE: u8 = b'.';
const ALONG: u8 = b'@';

/// One end. Packets are what datagrams are to the library, and unlike those they end when the other side does.
#[derive(Debug)]
pub(crate) struct Channel(UnixDatagram);

/// Both ends; the second is to be handed to another process.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(UnixDatagram::from_std(socket.into())?))
    }

    /// Sends a message, and copies of these descriptors.
    pub(crate) async fn send(&self, message: &impl Serialize, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let (packet, memory) = if bytes.len() < PACKET {
            ([&[HERE], &bytes[..]].concat(), None)
        } else {
            let memory = rustix::fs::memfd_create("belljar-order", MemfdFlags::CLOEXEC)?;
            File::from(memory.try_clone()?).write_all(&bytes)?;
            (vec![ALONG], Some(memory))
        };
        let descriptors: Vec<BorrowedFd<'_>> =
            memory.iter().map(AsFd::as_fd).chain(with.iter().copied()).collect();
        self.0.async_io(Interest::WRITABLE, || send(&self.0, &packet, &descriptors)).await
    }

    /// The next message and its descriptors; nothing when the other side is gone.
    pub(crate) async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut buffer = vec![0; PACKET + 1];
        let (length, descriptors) =
            self.0.async_io(Interest::READABLE, || receive(&self.0, &mut buffer)).await?;
        let mut descriptors = descriptors.into_iter();
        let message = match buffer[..length].split_first() {
            None => return Ok(None),
            Some((&HERE, rest)) => serde_json::from_slice(rest)?,
            Some(_) => {
                let memory = descriptors.next().ok_or(io::ErrorKind::InvalidData)?;
                serde_json::from_slice(&contents(&File::from(memory))?)?
            }
        };
        Ok(Some((message, descriptors.collect())))
    }

    /// The next message of somebody who is not trusted: short, and without descriptors, which are not taken.
    pub(crate) async fn receive_word<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let mut buffer = vec![0; MAX_WORD];
        let received = || Ok(rustix::io::read(&self.0, &mut buffer)?);
        let length = self.0.async_io(Interest::READABLE, received).await?;
        match buffer[..length].split_first() {
            None => Ok(None),
            Some((&HERE, rest)) => Ok(Some(serde_json::from_slice(rest)?)),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn contents(memory: &File) -> io::Result<Vec<u8>> {
    let length = memory.metadata()?.len();
    if length > MAX_MESSAGE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    memory.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn send(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received.bytes, descriptors.flatten().collect()))
}
