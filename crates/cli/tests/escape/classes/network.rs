//! NW: any network at all, the host's loopback and sockets included.

use belljar_core::Wall::{
    BoundingSet, Capabilities, HostTreeDetached, LandlockSandbox, ListenerCount, NetNamespace, Seccomp,
};

use crate::attack::{Attack, Outcome, Ring, inside, outside, within};

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        inside(
            "NW-loopback-tcp",
            "connect to a server on the host's loopback",
            &[NetNamespace],
            r#"
socket.create_connection(tuple(C["listeners"][0]["tcp"]), 3).close()
won("connected")
"#,
        ),
        inside(
            "NW-loopback-udp",
            "send a datagram to the host's loopback",
            &[NetNamespace],
            r#"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", tuple(C["listeners"][0]["udp"]))
"#,
        ),
        inside(
            "NW-loopback-v6",
            "connect to a server on the host's loopback of version six",
            &[NetNamespace],
            r#"
socket.create_connection(tuple(C["listeners"][1]["tcp"] or C["listeners"][0]["tcp"]), 3).close()
won("connected")
"#,
        ),
        inside(
            "NW-own-address-tcp",
            "connect to the machine's own address",
            &[NetNamespace],
            r#"
socket.create_connection(tuple(C["listeners"][2]["tcp"] or C["listeners"][0]["tcp"]), 3).close()
won("connected")
"#,
        ),
        inside(
            "NW-own-address-udp",
            "send a datagram to the machine's own address",
            &[NetNamespace],
            r#"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", tuple(C["listeners"][2]["udp"] or C["listeners"][0]["udp"]))
"#,
        ),
        inside(
            "NW-resolver",
            "ask a name server on the host's loopback",
            &[NetNamespace],
            r#"
query = struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0) + b"\x07exfiltr\x07example\x00" + struct.pack(">HH", 1, 1)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, tuple(C["listeners"][0]["udp"]))
"#,
        ),
        inside(
            "NW-abstract-socket",
            "connect to an abstract socket of the host",
            &[NetNamespace, LandlockSandbox],
            r#"
socket.socket(socket.AF_UNIX).connect("\0" + C["abstract"])
won("connected")
"#,
        ),
        inside(
            "NW-path-socket",
            "connect to a socket in a directory of the host",
            &[HostTreeDetached],
            r#"
os.chdir("/.." + C["directory"])
socket.socket(socket.AF_UNIX).connect("socket")
won("connected")
"#,
        ),
        inside(
            "NW-interfaces",
            "find an interface that leads anywhere",
            &[NetNamespace],
            r#"
names = [name for _, name in socket.if_nameindex() if name != "lo"]
if names: won(names)
"#,
        ),
        inside(
            "NW-route",
            "find a way to the metadata service of a cloud (nothing is sent)",
            &[NetNamespace],
            r#"
way = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
way.connect(("169.254.169.254", 80))
won(way.getsockname())
"#,
        ),
        inside(
            "NW-route-v6",
            "find a way out of version six (nothing is sent)",
            &[NetNamespace],
            r#"
way = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
way.connect(("2001:db8::1", 443))
won(way.getsockname())
"#,
        ),
        inside(
            "NW-connections",
            "see the host's connections",
            &[NetNamespace],
            r#"
port = "%04X" % C["listeners"][0]["tcp"][1]
if any(port in line for line in open("/proc/net/tcp")): won("the canary's port is listed")
"#,
        ),
        inside(
            "NW-vsock",
            "speak to the machine's hypervisor",
            &[Seccomp],
            r#"
won(socket.socket(40, socket.SOCK_STREAM))
"#,
        ),
        inside(
            "NW-packet",
            "read every packet",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
won(socket.socket(17, socket.SOCK_RAW, socket.htons(3)))
"#,
        )
        .by_root(),
        inside(
            "NW-raw",
            "write packets of its own",
            &[BoundingSet, Capabilities],
            r#"
won(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
"#,
        )
        .by_root(),
        inside(
            "NW-loopback-down",
            "reconfigure the network",
            &[BoundingSet, Capabilities],
            r#"
request = struct.pack("16sh22x", b"lo", 0)
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, request)
won("loopback is down")
"#,
        )
        .by_root(),
        // The host's own listeners would count as the sandbox's.
        outside("NW-squat", "answer on a port of the host in somebody's place", &[NetNamespace], squat)
            .also(&[ListenerCount]),
    ]
}

/// A server inside must not be reached by those who mean one of the host.
fn squat(ring: &Ring<'_>) -> Outcome {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("its number").port()
    };
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let server = format!(
        "import socket\nserver = socket.create_server(('0.0.0.0', {port}))\nprint('listening', flush=True)\nserver.accept()"
    );
    let exec = ring.json(&["exec", "-d", &id, "--", "python3", "-c", &server]);
    let number = exec["exec"].to_string();
    let listening = within(std::time::Duration::from_secs(20), || {
        ring.run(&["logs", &id, &number]).text().contains("listening")
    });
    if !listening {
        return Outcome::Broken("the server inside does not listen".into());
    }
    match std::net::TcpStream::connect(("127.0.0.1", port)) {
        Ok(_) => Outcome::Won(format!("the sandbox answers on port {port} of the host")),
        Err(error) => Outcome::Stopped(error.to_string()),
    }
}
