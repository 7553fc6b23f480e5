//! Connecting to hosts: which of a name's addresses, whether it may be, and how much the kernel keeps for it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_core::{ExecId, GATEWAY_NAME, NetworkPolicy};
use belljar_jail::arrival;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Stop;
use super::served::Served;
use crate::policy::{Allowed, Denied, Destination, decide};

/// How long a host may take to accept a connection.
const DIAL: Duration = Duration::from_secs(10);
/// Where the gateway listens.
const GATEWAY_PORT: u16 = 80;
/// How many addresses of a host are tried.
const MOST_DIALS: usize = 4;

/// Where a connection may lead.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// To another host.
    Host(IpAddr),
    /// To an address of the host's own.
    Own(IpAddr),
    /// To the gateway.
    Gateway,
}

impl Peer {
    fn new(ip: IpAddr) -> io::Result<Self> {
        let is_own = arrival::leads_here(ip)? || arrival::leads_here(ip.to_canonical())?;
        Ok(if is_own { Self::Own(ip) } else { Self::Host(ip) })
    }

    /// The address, where there is one.
    pub(super) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Host(ip) | Self::Own(ip) => Some(ip),
            Self::Gateway => None,
        }
    }

    /// Whether it may be dialled for what was allowed, by the policy as it is now.
    pub(super) fn judge(self, policy: &NetworkPolicy, allowed: &Allowed) -> Result<(), Denied> {
        match self {
            Self::Host(ip) => decide::address(policy, allowed, ip),
            Self::Own(ip) => {
                decide::address(policy, allowed, ip)?;
                decide::own_address(policy, allowed, ip)
            }
            Self::Gateway => Ok(()),
        }
    }
}

/// Connects to one of the addresses that may be dialled.
pub(super) async fn dial(
    (served, exec): (&Served, Option<ExecId>),
    policy: &NetworkPolicy,
    allowed: &Allowed,
) -> Result<(TcpStream, Peer), Stop> {
    if matches!(&allowed.destination, Destination::Name(name) if name.as_str() == GATEWAY_NAME) {
        if allowed.port != GATEWAY_PORT {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        return Ok((served.gate.bring(&served.id, exec, None).await?, Peer::Gateway));
    }
    let addresses = match &allowed.destination {
        Destination::Address(address) => vec![*address],
        Destination::Name(name) => served.look_up(name).await.map_err(io::Error::other)?,
    };
    let (mut refused, mut failed, mut tried) = (None, None, 0);
    for address in addresses {
        let peer = match Peer::new(address) {
            Ok(peer) => peer,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        if let Err(denied) = peer.judge(policy, allowed) {
            refused = Some(denied);
            continue;
        }
        if tried == MOST_DIALS {
            break;
        }
        tried += 1;
        let dial = TcpStream::connect(SocketAddr::new(address, allowed.port));
        match tokio::time::timeout(DIAL, dial).await {
            Ok(Ok(upstream)) => {
                upstream.set_nodelay(true)?;
                narrow(&upstream)?;
                return Ok((upstream, peer));
            }
            Ok(Err(error)) => failed = Some(error),
            Err(_) => failed = Some(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(match (refused, failed) {
        (_, Some(error)) if tried > 0 => error.into(),
        (Some(denied), _) => denied.into(),
        (None, Some(error)) => error.into(),
        (None, None) => io::Error::from(io::ErrorKind::AddrNotAvailable).into(),
    })
}

/// What the kernel keeps of one connection on its way, each way; it takes twice as much for itself.
const NARROW: usize = 32 * 1024;
/// After as many bytes a connection is worth more.
const WORTH_MORE: u64 = 256 * 1024;
/// So many connections of one sandbox are given as much as the host gives to anybody, which can be megabytes: whoever reads
/// fast and then no more, on many of them, would have the host keep it all.
const MOST_WIDE: usize = 8;

fn narrow(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size(socket, NARROW)?;
    sockopt::set_socket_send_buffer_size(socket, NARROW)?;
    Ok(())
}

/// The places for connections with much room.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_WIDE)))
    }
}

impl Room {
    /// Gives a connection more room that has moved so much and has no place yet, if there is any.
    pub(super) fn widen(&self, socket: &TcpStream, moved: u64) -> Option<OwnedSemaphorePermit> {
        if moved < WORTH_MORE {
            return None;
        }
        let place = self.0.clone().try_acquire_owned().ok()?;
        arrival::unlock_buffers(socket.as_fd()).ok().map(|()| place)
    }
}

/// How much room a connection has.
#[derive(Debug)]
pub(super) struct Width<'a> {
    room: &'a Room,
    socket: &'a TcpStream,
    place: OnceLock<OwnedSemaphorePermit>,
}

impl<'a> Width<'a> {
    pub(super) fn new(room: &'a Room, socket: &'a TcpStream) -> Self {
        Self { room, socket, place: OnceLock::new() }
    }

    /// Gives a connection more room that has moved much, if there is any.
    pub(super) fn moved(&self, bytes: u64) {
        if self.place.get().is_none()
            && let Some(place) = self.room.widen(self.socket, bytes)
        {
            // It has none yet, and nobody else gives it one.
            let _ = self.place.set(place);
        }
    }
}
