//! What arrives at the doorway of a sandbox: who sent it, where it was meant to go, and answers that seem to come from there.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::netlink::Messages;

/// A datagram as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Who sent it.
    pub from: SocketAddr,
    /// Where it was meant to go.
    pub meant: SocketAddr,
    /// The number of its execution's cgroup, as far as a mark holds it; 0 where there is none.
    pub mark: u32,
    /// How many bytes it has.
    pub length: usize,
}

/// The mark of a connection.
pub fn mark(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut mark: u32 = 0;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a number that lives across the call.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            (&raw mut mark).cast(),
            &raw mut length,
        )
    };
    if got == 0 { Ok(mark) } else { Err(io::Error::last_os_error()) }
}

/// Whether what is sent to this address stays on the host.
pub fn leads_here(ip: IpAddr) -> io::Result<bool> {
    /// Where the kind of a route stands in the message that says it, and the one kind that leads elsewhere.
    const KIND: usize = 7;
    const UNICAST: u8 = 1;
    let mut messages = Messages::default();
    let (family, address) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let header = [family as u8, (address.len() * 8) as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    messages.add(libc::RTM_GETROUTE, 0, &header, |attributes| {
        attributes.put(libc::RTA_DST, &address);
    });
    let route = messages.ask(None)?;
    let kind = route.get(KIND).ok_or(io::ErrorKind::InvalidData)?;
    Ok(*kind != UNICAST)
}

/// Has the kernel choose again how much it keeps for a connection, after it was told a size.
pub fn unlock_buffers(socket: BorrowedFd<'_>) -> io::Result<()> {
    /// Which sizes hold; libc does not know it yet.
    const SO_BUF_LOCK: i32 = 72;
    let none: i32 = 0;
    // SAFETY: the kernel reads a number of the length that is given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BUF_LOCK,
            (&raw const none).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for what the kernel tells of a datagram, aligned as it wants it.
#[repr(C, align(8))]
struct Ancillary([u8; 256]);

/// Takes the next datagram.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Arrival> {
    // SAFETY: all-zero bytes are a valid value of this plain type.
    let mut from: libc::sockaddr_storage = unsafe { zeroed() };
    let mut ancillary = Ancillary([0; 256]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: as above; every pointer that is set lives across the call.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    message.msg_controllen = ancillary.0.len();
    // SAFETY: the message points to buffers of the lengths that it says.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let (mut meant, mut mark) = (None, 0);
    // SAFETY: the kernel has filled in the message; the macros stay within the control buffer.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so it points to a whole header within the buffer, followed by its data, which is read only as far
        // as its length says.
        unsafe {
            let data = libc::CMSG_DATA(header);
            let length = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) | (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => {
                    meant = address(data, length);
                }
                (libc::SOL_SOCKET, libc::SO_MARK) if length >= size_of::<u32>() => {
                    mark = ptr::read_unaligned(data.cast::<u32>());
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    // SAFETY: the storage is that long and initialised.
    let from = unsafe { address((&raw const from).cast(), message.msg_namelen as usize) };
    match (from, meant) {
        (Some(from), Some(meant)) => Ok(Arrival { from, meant, mark, length }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a datagram without addresses")),
    }
}

/// Reads an address of either family.
///
/// # Safety
/// There must be `length` readable bytes at `bytes`.
unsafe fn address(bytes: *const u8, length: usize) -> Option<SocketAddr> {
    if length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: there are at least as many bytes; every read is checked against the length, and alignment is not assumed.
    unsafe {
        match i32::from(ptr::read_unaligned(bytes.cast::<libc::sa_family_t>())) {
            libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                let address = ptr::read_unaligned(bytes.cast::<libc::sockaddr_in>());
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(address.sin_port))))
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                let address = ptr::read_unaligned(bytes.cast::<libc::sockaddr_in6>());
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                let port = u16::from_be(address.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

/// Answers a datagram, from where it was meant to go.
pub fn answer(socket: BorrowedFd<'_>, arrival: &Arrival, content: &[u8]) -> io::Result<()> {
    let (mut to, to_length) = raw(arrival.from);
    let mut ancillary = Ancillary([0; 256]);
    let mut piece = libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: content.len() };
    // SAFETY: all-zero bytes are a valid value of this plain type; every pointer that is set lives across the calls, and the
    // control buffer has room for the one message that is written to it, with its own length.
    let sent = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_name = to.as_mut_ptr().cast();
        message.msg_namelen = to_length;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = ancillary.0.as_mut_ptr().cast();
        message.msg_controllen = ancillary.0.len();
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let space = match arrival.meant.ip() {
            IpAddr::V4(ip) => {
                let source = libc::in_addr { s_addr: u32::from(ip).to_be() };
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: source,
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                put(header, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
            IpAddr::V6(ip) => {
                let source = libc::in6_addr { s6_addr: ip.octets() };
                let info = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: 0 };
                put(header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            }
        };
        message.msg_controllen = space;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes one control message, and says how much room it takes.
///
/// # Safety
/// There must be room for it at `header`.
unsafe fn put<T>(header: *mut libc::cmsghdr, level: i32, kind: i32, value: T) -> usize {
    let size = size_of::<T>() as u32;
    // SAFETY: there is room, as the caller says; alignment of the value is not assumed.
    unsafe {
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
        ptr::write_unaligned(libc::CMSG_DATA(header).cast::<T>(), value);
        libc::CMSG_SPACE(size) as usize
    }
}

/// An address as the kernel wants it.
fn raw(address: SocketAddr) -> (MaybeUninit<libc::sockaddr_storage>, libc::socklen_t) {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let place = storage.as_mut_ptr();
    // SAFETY: the storage is large and aligned enough for either family, and starts as zeroes.
    unsafe {
        match address {
            SocketAddr::V4(address) => {
                place.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                });
                (storage, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(address) => {
                place.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                });
                (storage, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }
}
