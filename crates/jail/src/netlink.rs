//! Messages to the kernel about networks, written by hand: a few kinds, each sent once.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// A message's header.
const HEADER: usize = 16;
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
/// Makes what is not there.
pub(crate) const CREATE: u16 = 0x400;
/// After what is there.
pub(crate) const APPEND: u16 = 0x800;
/// The kind of an answer that says how it went.
const ERROR: u16 = 0x2;
const NESTED: u16 = 0x8000;

/// Messages that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    bytes: Vec<u8>,
    /// Where the last one begins.
    last: usize,
    count: u32,
}

impl Messages {
    /// Adds a message: its own header, then attributes.
    pub(crate) fn add(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.count += 1;
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
        self.bytes.extend_from_slice(&self.count.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(header);
        fill(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - self.last) as u32;
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Asks for word of how the last message went.
    pub(crate) fn acknowledge_last(&mut self) {
        let flags = self.last + 6;
        let asked = u16::from_ne_bytes([self.bytes[flags], self.bytes[flags + 1]]) | ACKNOWLEDGE;
        self.bytes[flags..flags + 2].copy_from_slice(&asked.to_ne_bytes());
    }

    /// Sends them all, and waits for the kernel's word on the one that asked for it, or on the first that went wrong.
    pub(crate) fn send(&self, protocol: Option<Protocol>) -> io::Result<()> {
        self.ask(protocol).map(drop)
    }

    /// Sends them all, and waits for the first answer: what comes after its header, and nothing where it says only that all
    /// went well.
    pub(crate) fn ask(&self, protocol: Option<Protocol>) -> io::Result<Vec<u8>> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        sendto(&socket, &self.bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        hear(&socket)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn hear(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 8192];
    let (length, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
    let heard = &buffer[..length.min(buffer.len())];
    let word = |at: usize| {
        heard.get(at..at + 4).map(|bytes| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = heard.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match (kind, word(HEADER)) {
        (Some(ERROR), Some(0)) => Ok(Vec::new()),
        (Some(ERROR), Some(negative)) => Err(io::Error::from_raw_os_error(-negative)),
        (Some(_), Some(_)) => Ok(heard[HEADER..].to_vec()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel answered something else")),
    }
}

/// The attributes of a message, or inside another attribute.
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    /// Adds one.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.with(kind, |bytes| bytes.extend_from_slice(value))
    }

    /// Adds a number, in the order of the network.
    pub(crate) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Adds a name.
    pub(crate) fn name(&mut self, kind: u16, name: &str) -> &mut Self {
        self.with(kind, |bytes| {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        })
    }

    /// Adds one that consists of others.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.with(kind | NESTED, |bytes| fill(&mut Attributes(bytes)))
    }

    fn with(&mut self, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        let begin = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        fill(self.0);
        let length = (self.0.len() - begin) as u16;
        self.0[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_paddings_are_as_the_kernel_wants_them() {
        let mut messages = Messages::default();
        messages.add(7, CREATE, &[9; 4], |attributes| {
            attributes.put(1, b"abc").nest(2, |inner| {
                inner.number(3, 5).name(4, "x");
            });
        });
        messages.acknowledge_last();
        let expected: Vec<u8> = [
            &48u32.to_ne_bytes()[..],
            &7u16.to_ne_bytes(),
            &(CREATE | REQUEST | ACKNOWLEDGE).to_ne_bytes(),
            &1u32.to_ne_bytes(),
            &[0; 4],
            &[9; 4],
            &7u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            b"abc\0",
            &20u16.to_ne_bytes(),
            &(2 | NESTED).to_ne_bytes(),
            &8u16.to_ne_bytes(),
            &3u16.to_ne_bytes(),
            &5u32.to_be_bytes(),
            &6u16.to_ne_bytes(),
            &4u16.to_ne_bytes(),
            b"x\0\0\0",
        ]
        .concat();
        assert_eq!(messages.bytes(), expected);
    }
}
