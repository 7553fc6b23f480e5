//! The way to the door. In a sandbox's own network there is nothing but loopback: every address of the world is local to it, and
//! whatever goes to one of them arrives at sockets that are made here and held outside. There is no packet path to the host, so
//! whatever these rules do not catch goes nowhere.
//!
//! - TCP to any address and port, and DNS to any resolver, come to the door's sockets, which see where they were meant to go.
//! - Other datagrams are refused at once, so that programs fall back quickly; everything else is dropped.
//! - What goes to loopback, or to the sandbox's own address, stays inside. The door's own port is refused.
//! - Packets carry the number of the execution's cgroup as their mark, and accepted connections keep it. Nobody inside can set
//!   one: it is written over on every packet. This needs no entry for each execution, and none for each connection: connections
//!   are not tracked, which would be memory that nobody counts.

mod held;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_core::Wall;
use rustix::net::{
    AddressFamily, Protocol, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, bind, ipproto, listen,
    netlink, socket_with, sockopt,
};

pub use self::held::{disk, fetch, whose};
pub(crate) use self::held::{pass, take};

use crate::netlink::{APPEND, Attributes, CREATE, Messages};

/// The sandbox's own addresses, from which its connections come.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 1);
/// The same in the other family.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6a, 0, 0, 0, 0, 0, 1);
/// Where connections arrive: a port that nobody uses.
pub const DOOR_PORT: u16 = 1;
/// Where questions about names arrive, and where answers must come from.
pub const DNS_PORT: u16 = 53;
/// The most connections of one sandbox that the door has at a time, whatever its policy says.
pub const MAX_CONNECTIONS: u32 = 1024;
/// Connections that wait for the door.
const BACKLOG: i32 = 128;

/// The sockets of one family, in the sandbox's network.
#[derive(Debug)]
pub struct Sockets {
    /// Connections.
    pub tcp: OwnedFd,
    /// Questions about names.
    pub dns: OwnedFd,
}

/// What is held outside.
#[derive(Debug)]
pub struct Doorway {
    /// Of the older family.
    pub v4: Sockets,
    /// Of the newer, if the kernel has it.
    pub v6: Option<Sockets>,
    /// Whether what arrives has the mark of its execution.
    pub marks: bool,
}

impl Doorway {
    /// All its sockets, in an order that [`from_descriptors`](Self::from_descriptors) knows.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let families = std::iter::once(&self.v4).chain(&self.v6);
        families.flat_map(|sockets| [sockets.tcp.as_fd(), sockets.dns.as_fd()]).collect()
    }

    /// The same from what arrived; `None` if it is something else.
    pub(crate) fn from_descriptors(arrived: Vec<OwnedFd>, marks: bool) -> Option<Self> {
        let whole = matches!(arrived.len(), 2 | 4);
        let mut arrived = arrived.into_iter();
        let mut family = || Some(Sockets { tcp: arrived.next()?, dns: arrived.next()? });
        let (v4, v6) = (family()?, family());
        whole.then_some(Self { v4, v6, marks })
    }
}

/// Makes the way in the current network namespace, whose loopback is up. `level` is how deep below the root the cgroup of an
/// execution is, where each has one: below that of the current cgroup namespace, as newer kernels count.
pub fn open(level: Option<u32>) -> io::Result<Doorway> {
    let v6 = add_addresses().map_err(|error| during("addresses and routes", &error))?;
    rules(level).send(Some(netlink::NETFILTER)).map_err(|error| during("nftables", &error))?;
    let sockets = || {
        let v6 = v6.then(sockets_v6).transpose()?;
        Ok(Doorway { v4: sockets_v4()?, v6, marks: level.is_some() })
    };
    sockets().map_err(|error| during("sockets", &error))
}

fn during(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

const LOOPBACK: u32 = 1;

/// Whether there is the newer family as well.
fn add_addresses() -> io::Result<bool> {
    let route = |messages: Messages| messages.send(None);
    route(address(libc::AF_INET, 32, &OWN_V4.octets()))?;
    route(default_route(libc::AF_INET, &OWN_V4.octets()))?;
    match route(address(libc::AF_INET6, 128, &OWN_V6.octets())) {
        Ok(()) => route(default_route(libc::AF_INET6, &OWN_V6.octets())).map(|()| true),
        // A kernel without it. What it would carry cannot even be sent.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EACCES | libc::EAFNOSUPPORT)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn one(add: impl FnOnce(&mut Messages)) -> Messages {
    let mut messages = Messages::default();
    add(&mut messages);
    messages.acknowledge_last();
    messages
}

fn address(family: i32, length: u8, own: &[u8]) -> Messages {
    const LOCAL: u16 = 2;
    const ADDRESS: u16 = 1;
    let mut header = vec![family as u8, length, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE];
    header.extend_from_slice(&LOOPBACK.to_ne_bytes());
    one(|messages| {
        messages.add(libc::RTM_NEWADDR, CREATE, &header, |attributes| {
            attributes.put(LOCAL, own).put(ADDRESS, own);
        });
    })
}

/// Every address is local, and reached from the sandbox's own.
fn default_route(family: i32, own: &[u8]) -> Messages {
    const OUTPUT: u16 = 4;
    const SOURCE: u16 = 7;
    let scope = if family == libc::AF_INET { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    let mut header =
        vec![family as u8, 0, 0, 0, libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT, scope, libc::RTN_LOCAL];
    header.extend_from_slice(&0u32.to_ne_bytes());
    one(|messages| {
        messages.add(libc::RTM_NEWROUTE, CREATE, &header, |attributes| {
            attributes.put(OUTPUT, &LOOPBACK.to_ne_bytes()).put(SOURCE, own);
        });
    })
}

// The kernel's numbers for what rules are made of.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
const INET: u8 = 1;
const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
/// Before everything else that could be there.
const PRIORITY: i32 = -150;
const TABLE: &str = "belljar";
const LEAVING: &str = "leaving";
const ARRIVING: &str = "arriving";

const VERDICT: u32 = 0;
const REGISTER: u32 = 1;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const META_MARK: u32 = 3;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const SOCKET_CGROUP: u32 = 3;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const REJECT_UNREACHABLE: u32 = 2;
const REJECT_RESET: u32 = 1;
const PORT_UNREACHABLE: u8 = 1;

/// All rules, as one transaction.
fn rules(level: Option<u32>) -> Messages {
    let mut rules = Rules(Messages::default());
    rules.bound(BATCH_BEGIN);
    rules.0.add(NEW_TABLE, CREATE, &header(), |attributes| {
        attributes.name(1, TABLE);
    });
    rules.chain(LEAVING, OUTPUT);
    rules.chain(ARRIVING, PREROUTING);
    if let Some(level) = level.filter(|_| Wall::FlowMarks.stands()) {
        // The first four of the number's eight bytes: on this kind of machine the lower half, which no two have at once.
        rules.rule(LEAVING, |parts| parts.cgroup(level).set_mark());
    }
    // Whoever knows the door's port gets nothing from it.
    for own in OWN.into_iter().filter(|_| Wall::DoorPort.stands()) {
        rules.rule(LEAVING, |parts| parts.to(own).protocol(libc::IPPROTO_TCP).port(DOOR_PORT).reset());
    }
    for chain in [LEAVING, ARRIVING] {
        for own in OWN {
            rules.rule(chain, |parts| parts.to(own).verdict(ACCEPT));
        }
    }
    rules.rule(LEAVING, |parts| parts.protocol(libc::IPPROTO_TCP).verdict(ACCEPT));
    rules.rule(LEAVING, |parts| parts.protocol(libc::IPPROTO_UDP).port(DNS_PORT).verdict(ACCEPT));
    rules.rule(LEAVING, |parts| parts.protocol(libc::IPPROTO_UDP).unreachable());
    rules.rule(LEAVING, |parts| parts.verdict(DROP));
    rules.rule(ARRIVING, |parts| parts.protocol(libc::IPPROTO_TCP).divert(DOOR_PORT).verdict(ACCEPT));
    rules.rule(ARRIVING, |parts| {
        parts.protocol(libc::IPPROTO_UDP).port(DNS_PORT).divert(DNS_PORT).verdict(ACCEPT)
    });
    rules.rule(ARRIVING, |parts| parts.verdict(DROP));
    rules.0.acknowledge_last();
    rules.bound(BATCH_END);
    rules.0
}

/// What stays inside: destinations, with how many of their bits count.
#[derive(Clone, Copy)]
enum Own {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16]),
}

const OWN: [Own; 4] = [
    Own::V4([127, 0, 0, 0], [255, 0, 0, 0]),
    Own::V4(OWN_V4.octets(), [255; 4]),
    Own::V6(Ipv6Addr::LOCALHOST.octets()),
    Own::V6(OWN_V6.octets()),
];

fn header() -> [u8; 4] {
    [INET, 0, 0, 0]
}

struct Rules(Messages);

impl Rules {
    fn bound(&mut self, kind: u16) {
        let [high, low] = SUBSYSTEM.to_be_bytes();
        self.0.add(kind, 0, &[0, 0, high, low], |_| {});
    }

    fn chain(&mut self, name: &str, hook: u32) {
        self.0.add(NEW_CHAIN, CREATE, &header(), |attributes| {
            attributes.name(1, TABLE).name(3, name).name(7, "filter");
            attributes.nest(4, |inner| {
                inner.number(1, hook).put(2, &PRIORITY.to_be_bytes());
            });
        });
    }

    fn rule(&mut self, chain: &str, parts: impl FnOnce(Parts) -> Parts) {
        let parts = parts(Parts(Vec::new())).0;
        self.0.add(NEW_RULE, CREATE | APPEND, &header(), |attributes| {
            attributes.name(1, TABLE).name(2, chain).nest(4, |list| {
                for part in parts {
                    list.nest(1, |one| {
                        one.name(1, part.name).nest(2, part.fill);
                    });
                }
            });
        });
    }
}

/// What a rule consists of: each looks at something, or does something.
struct Parts(Vec<Part>);

struct Part {
    name: &'static str,
    fill: Box<dyn FnOnce(&mut Attributes<'_>)>,
}

impl Parts {
    fn with(mut self, name: &'static str, fill: impl FnOnce(&mut Attributes<'_>) + 'static) -> Self {
        self.0.push(Part { name, fill: Box::new(fill) });
        self
    }

    fn load(self, key: u32) -> Self {
        self.with("meta", move |part| {
            part.number(1, REGISTER).number(2, key);
        })
    }

    fn is(self, value: Vec<u8>) -> Self {
        const EQUAL: u32 = 0;
        self.with("cmp", move |part| {
            part.number(1, REGISTER).number(2, EQUAL).nest(3, |data| {
                data.put(1, &value);
            });
        })
    }

    fn payload(self, base: u32, offset: u32, length: u32) -> Self {
        self.with("payload", move |part| {
            part.number(1, REGISTER).number(2, base).number(3, offset).number(4, length);
        })
    }

    fn to(self, own: Own) -> Self {
        match own {
            Own::V4(address, mask) => self
                .load(META_FAMILY)
                .is(vec![libc::NFPROTO_IPV4 as u8])
                .payload(NETWORK_HEADER, 16, 4)
                .with("bitwise", move |part| {
                    part.number(1, REGISTER).number(2, REGISTER).number(3, 4);
                    part.nest(4, |data| {
                        data.put(1, &mask);
                    });
                    part.nest(5, |data| {
                        data.put(1, &[0; 4]);
                    });
                })
                .is(address.to_vec()),
            Own::V6(address) => self
                .load(META_FAMILY)
                .is(vec![libc::NFPROTO_IPV6 as u8])
                .payload(NETWORK_HEADER, 24, 16)
                .is(address.to_vec()),
        }
    }

    fn protocol(self, number: i32) -> Self {
        self.load(META_PROTOCOL).is(vec![number as u8])
    }

    fn port(self, port: u16) -> Self {
        self.payload(TRANSPORT_HEADER, 2, 2).is(port.to_be_bytes().to_vec())
    }

    fn cgroup(self, level: u32) -> Self {
        self.with("socket", move |part| {
            part.number(1, SOCKET_CGROUP).number(2, REGISTER).number(3, level);
        })
    }

    fn set_mark(self) -> Self {
        self.with("meta", |part| {
            part.number(2, META_MARK).number(3, REGISTER);
        })
    }

    fn verdict(self, verdict: u32) -> Self {
        self.with("immediate", move |part| {
            part.number(1, VERDICT).nest(2, |data| {
                data.nest(2, |code| {
                    code.number(1, verdict);
                });
            });
        })
    }

    fn reset(self) -> Self {
        self.with("reject", |part| {
            part.number(1, REJECT_RESET).put(2, &[0]);
        })
    }

    fn unreachable(self) -> Self {
        self.with("reject", |part| {
            part.number(1, REJECT_UNREACHABLE).put(2, &[PORT_UNREACHABLE]);
        })
    }

    /// Hands it to the socket at this port, whatever address and port it was meant for.
    fn divert(self, port: u16) -> Self {
        const ANY_FAMILY: u32 = 0;
        self.with("immediate", move |part| {
            part.number(1, REGISTER).nest(2, |data| {
                data.put(1, &port.to_be_bytes());
            });
        })
        .with("tproxy", |part| {
            part.number(1, ANY_FAMILY).number(3, REGISTER);
        })
    }
}

fn sockets_v4() -> io::Result<Sockets> {
    let any = |port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let tcp = transparent(AddressFamily::INET, SocketType::STREAM, ipproto::TCP)?;
    bind(&tcp, &any(DOOR_PORT))?;
    let dns = transparent(AddressFamily::INET, SocketType::DGRAM, ipproto::UDP)?;
    set(&dns, libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR)?;
    bind(&dns, &any(DNS_PORT))?;
    finish(tcp, dns)
}

fn sockets_v6() -> io::Result<Sockets> {
    let any = |port| SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    let tcp = transparent(AddressFamily::INET6, SocketType::STREAM, ipproto::TCP)?;
    sockopt::set_ipv6_v6only(&tcp, true)?;
    bind(&tcp, &any(DOOR_PORT))?;
    let dns = transparent(AddressFamily::INET6, SocketType::DGRAM, ipproto::UDP)?;
    sockopt::set_ipv6_v6only(&dns, true)?;
    set(&dns, libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR)?;
    bind(&dns, &any(DNS_PORT))?;
    finish(tcp, dns)
}

fn finish(tcp: OwnedFd, dns: OwnedFd) -> io::Result<Sockets> {
    /// Tells the mark with every datagram; libc does not know it yet.
    const SO_RCVMARK: i32 = 75;
    // Connections have this from whom they were accepted from. Nothing is lost or late on the way, and what others do against
    // that costs time: a host may have them all paced by timers.
    sockopt::set_tcp_congestion(&tcp, "reno")?;
    listen(&tcp, BACKLOG)?;
    set(&dns, libc::SOL_SOCKET, SO_RCVMARK)?;
    Ok(Sockets { tcp, dns })
}

/// A socket to which packets for others can be handed.
fn transparent(family: AddressFamily, kind: SocketType, protocol: Protocol) -> io::Result<OwnedFd> {
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))?;
    if family == AddressFamily::INET {
        set(&socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT)?;
    } else {
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)?;
    }
    Ok(socket)
}

/// Switches an option on.
fn set(socket: impl AsFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an int, which lives across the call.
    let done = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd()),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    crate::namespaces::check(done).map(drop)
}
