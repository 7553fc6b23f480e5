//! The way to the door, in a network of the test's own.

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
                assert_eq!(taken(&doorway.v4.tcp).0, address("93.184.215.14:80"), "it is the older family");
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
        let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
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
        let v2 = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a version-two hierarchy");
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
