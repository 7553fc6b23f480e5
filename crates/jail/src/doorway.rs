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

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, bind, ipproto, listen,
    netlink, socket_with, sockopt,
};

use crate::netlink::{APPEND, Attributes, CREATE, Messages};

/// The sandbox's own addresses, from which its connections come.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 1);
/// The same in the other family.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6a, 0, 0, 0, 0, 0, 1);
/// Where connections arrive: a port that nobody uses.
pub const DOOR_PORT: u16 = 1;
/// Where questions about names arrive, and where answers must come from.
pub const DNS_PORT: u16 = 53;
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
}

/// Makes the way in the current network namespace, whose loopback is up. `level` is how deep below the root the cgroup of an
/// execution is, where each has one.
pub fn open(level: Option<u32>) -> io::Result<Doorway> {
    let v6 = add_addresses()?;
    rules(level).send(Some(netlink::NETFILTER))?;
    Ok(Doorway { v4: sockets_v4()?, v6: v6.then(sockets_v6).transpose()? })
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
    if let Some(level) = level {
        // The first four of the number's eight bytes: on this kind of machine the lower half, which no two have at once.
        rules.rule(LEAVING, |parts| parts.cgroup(level).set_mark());
    }
    // Whoever knows the door's port gets nothing from it.
    for own in OWN {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::time::Duration;

    use rustix::net::acceptfrom;

    use super::*;
    use crate::doctor::in_child_within;
    use crate::namespaces::{check, loopback_up};

    /// In a network of its own, with the way made.
    fn within(level: Option<u32>, test: impl FnOnce(Doorway)) {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("BELLJAR_ALLOW_UNPRIVILEGED_TESTS").is_some(), "this test needs root");
            return;
        }
        let answer = in_child_within(Duration::from_secs(30), || {
            // SAFETY: plain system call, in a process of one thread.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).unwrap();
            loopback_up().unwrap();
            fs::write("/proc/sys/net/ipv4/tcp_fwmark_accept", "1").unwrap();
            test(open(level).unwrap());
            Ok(String::new())
        });
        answer.unwrap();
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Takes in a connection that has been made: where it was meant to go, where it comes from, and its mark.
    fn taken(socket: &OwnedFd) -> (SocketAddr, SocketAddr, u32) {
        rustix::io::ioctl_fionbio(socket, false).unwrap();
        let (accepted, _) = acceptfrom(socket).unwrap();
        let mut mark: u32 = 0;
        let mut length = size_of::<u32>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, for which there is room.
        let got = unsafe {
            libc::getsockopt(
                accepted.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MARK,
                (&raw mut mark).cast(),
                &raw mut length,
            )
        };
        check(got).unwrap();
        let stream = TcpStream::from(accepted);
        (stream.local_addr().unwrap(), stream.peer_addr().unwrap_or(address("0.0.0.0:0")), mark)
    }

    #[test]
    fn whatever_leaves_comes_to_the_door() {
        within(None, |doorway| {
            for far in ["93.184.215.14:443", "10.0.0.1:22", "169.254.169.254:80", "192.0.2.1:1"] {
                let _stream = TcpStream::connect(address(far)).unwrap();
                let (meant, from, _) = taken(&doorway.v4.tcp);
                assert_eq!((meant, from.ip()), (address(far), OWN_V4.into()));
            }
            let sockets = doorway.v6.as_ref().expect("this machine has both families");
            for far in ["[2606:2800:21f::1]:443", "[fd00:ec2::254]:80", "[::ffff:93.184.215.14]:80"] {
                let Ok(_stream) = TcpStream::connect(address(far)) else { panic!("{far}") };
                if far.contains("ffff") {
                    assert_eq!(
                        taken(&doorway.v4.tcp).0,
                        address("93.184.215.14:80"),
                        "it is the older family"
                    );
                    continue;
                }
                let (meant, from, _) = taken(&sockets.tcp);
                assert_eq!((meant, from.ip()), (address(far), OWN_V6.into()));
            }
        });
    }

    #[test]
    fn what_is_meant_to_stay_stays() {
        within(None, |doorway| {
            for (listens, connects) in [
                ("127.0.0.1:8080", "127.0.0.1:8080"),
                ("0.0.0.0:8081", "127.1.2.3:8081"),
                ("0.0.0.0:8082", "10.255.255.1:8082"),
                ("[::]:8083", "[::1]:8083"),
                ("[::]:8084", "[fd62:6a::1]:8084"),
            ] {
                let listener = TcpListener::bind(listens).unwrap();
                let mut stream = TcpStream::connect(connects).unwrap();
                stream.write_all(b"inside").unwrap();
                drop(stream);
                let mut said = String::new();
                listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
                assert_eq!(said, "inside", "{connects}");
            }
            // The same port elsewhere does not reach who listens on all addresses.
            let _listener = TcpListener::bind("0.0.0.0:443").unwrap();
            let _stream = TcpStream::connect("93.184.215.14:443").unwrap();
            assert_eq!(taken(&doorway.v4.tcp).0, address("93.184.215.14:443"));
            for own in ["127.0.0.1:1", "10.255.255.1:1", "[::1]:1", "[fd62:6a::1]:1"] {
                let refused = TcpStream::connect(own).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{own}: {refused}");
            }
        });
    }

    #[test]
    fn other_datagrams_are_refused_and_the_rest_goes_nowhere() {
        within(None, |doorway| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for far in ["93.184.215.14:443", "8.8.8.8:123"] {
                let refused = socket.connect(far).and_then(|()| socket.send(b"x").map(drop)).and_then(|()| {
                    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
                    socket.recv(&mut [0; 10]).map(drop)
                });
                let refused = refused.unwrap_err();
                let at_once = [io::ErrorKind::PermissionDenied, io::ErrorKind::ConnectionRefused];
                assert!(at_once.contains(&refused.kind()), "{far}: {refused}");
            }
            // Inside, they work.
            let (one, other) =
                (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            one.send_to(b"inside", other.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 10];
            assert_eq!(other.recv(&mut buffer).unwrap(), 6);
            drop(doorway);
        });
    }

    #[test]
    fn questions_about_names_are_answered_by_the_door_and_by_nobody_else() {
        within(None, |doorway| {
            for (family, resolver) in
                [(&doorway.v4, "9.9.9.9:53"), (doorway.v6.as_ref().unwrap(), "[2620:fe::fe]:53")]
            {
                let any = if resolver.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
                let asks = UdpSocket::bind(any).unwrap();
                asks.connect(resolver).unwrap();
                asks.send(b"question").unwrap();
                let door = UdpSocket::from(family.dns.try_clone().unwrap());
                door.set_nonblocking(false).unwrap();
                let mut buffer = [0; 100];
                let (length, from) = door.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], b"question");
                assert_ne!(from.port(), 0);
            }
        });
    }

    /// A cgroup of the test's own, two below the root of the version-two hierarchy.
    struct Leaf(PathBuf);

    impl Leaf {
        fn make() -> Self {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let v2 =
                mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a version-two hierarchy");
            let root = PathBuf::from(v2.split(' ').nth(4).unwrap());
            let leaf = root.join(format!("belljar-doorway-{}", std::process::id())).join("leaf");
            fs::create_dir_all(&leaf).unwrap();
            Self(leaf)
        }
    }

    impl Drop for Leaf {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
            let _ = fs::remove_dir(self.0.parent().unwrap());
        }
    }

    #[test]
    fn connections_tell_whose_they_are_even_after_their_end() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let leaf = Leaf::make();
        let number = fs::metadata(&leaf.0).unwrap().ino() as u32;
        let procs = leaf.0.join("cgroup.procs");
        within(Some(2), |doorway| {
            let by_root = TcpStream::connect("93.184.215.14:80").unwrap();
            assert_ne!(taken(&doorway.v4.tcp).2, number, "the control: from elsewhere");
            drop(by_root);
            let inside = in_child_within(Duration::from_secs(10), || {
                fs::write(&procs, "0").unwrap();
                let kept = TcpStream::connect("93.184.215.14:80").unwrap();
                // Closed with a reset before anybody has taken it in.
                let short = TcpStream::connect("93.184.215.15:80").unwrap();
                rustix::net::sockopt::set_socket_linger(&short, Some(Duration::ZERO)).unwrap();
                drop((short, kept));
                Ok(String::new())
            });
            inside.unwrap();
            for last in [14, 15] {
                let (meant, _, mark) = taken(&doorway.v4.tcp);
                assert_eq!((meant, mark), (address(&format!("93.184.215.{last}:80")), number));
            }
        });
    }

    #[test]
    fn the_rules_are_as_reviewed() {
        let listed = rules(Some(4))
            .bytes()
            .chunks(16)
            .map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("\n");
        insta::assert_snapshot!(listed);
    }
}
