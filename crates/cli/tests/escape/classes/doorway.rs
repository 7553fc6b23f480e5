//! DW: what a sandbox that is granted a network has more than others: the way to the door, the door, and its worker, should
//! somebody have taken that over. And attacks of other classes again, because being granted a network must weaken no wall.

use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belljar_core::Wall::{
    BoundingSet, Capabilities, DoorPeers, DoorPolicy, DoorPort, FlowMarks, HostAddresses, LandlockExecution,
    ProcReadOnly, PublicAddresses, Seccomp, StreamCount, WorkerFilter, WorkerLandlock, WorkerLimits,
    WorkerUser,
};
use serde_json::json;

use super::monitor::{
    Deed, become_root, fork, make_namespace, make_ring, map_code, open, read_flag, read_open_flag,
    set_host_name, signal_victim, write_file,
};
use super::{namespaces, network, proc, resources, syscalls};
use crate::attack::{Attack, Control, Outcome, Ring, finish, inside, outside, text, within};
use crate::canary::random_word;
use crate::door;
use crate::possess::{Argument, Possessed};
use crate::sweep::processes;

/// Options of a sandbox with a network in which there is nothing.
pub(crate) const NETWORK: &[&str] = &["--allow", "granted.invalid"];

/// A host of nobody, at which connections are seen without leading anywhere.
const NOBODY: &str = "203.0.113.9";

pub(crate) fn attacks() -> Vec<Attack> {
    [again(), ways(), of_the_door(), of_its_worker()].into_iter().flatten().collect()
}

/// Attacks of other classes, in a sandbox with a network.
fn again() -> Vec<Attack> {
    let all = [
        network::attacks(),
        namespaces::attacks(),
        proc::attacks(),
        resources::attacks(),
        syscalls::attacks(),
    ];
    let mut all: Vec<Attack> = all.into_iter().flatten().collect();
    let mut take = |id: &&str| {
        let place = all.iter().position(|attack| attack.id == *id).expect("an attack of this name");
        all.swap_remove(place).with_network()
    };
    let same = [
        "NW-path-socket",
        "NW-vsock",
        "NW-packet",
        "NW-raw",
        "NW-loopback-down",
        "NS-unshare-user",
        "NS-unshare-network",
        "NS-setns",
        "NS-more-capabilities",
        "PS-network-settings",
        "RS-sockets",
        "RS-netlink",
        "RS-listeners",
        "RS-unaccepted",
        "RS-datagrams-unfinished",
        "RS-datagrams-at-once",
        "RS-keys-of-connections",
        "RS-options-that-keep",
        "SY-netlink",
        "SY-netlink-audit",
        "SY-families",
        "SY-mptcp",
    ];
    // The way to the door is only made in a network of the sandbox's own, so that wall cannot be taken down.
    let apart = [
        "NW-loopback-tcp",
        "NW-loopback-udp",
        "NW-loopback-v6",
        "NW-own-address-udp",
        "NW-resolver",
        "NW-abstract-socket",
        "NW-connections",
    ];
    let mut taken: Vec<Attack> = same.iter().map(&mut take).collect();
    taken.extend(apart.iter().map(|id| take(id).control(Control::Local)));
    taken
}

/// Asks the door for a name, as a resolver is asked, wherever that may be.
const ASK: &str = r#"
def ask(name, server=("192.0.2.53", 53)):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    way = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); way.settimeout(8)
    way.sendto(struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1), server)
    answer = way.recv(4096)
    if answer[3] & 15 or not answer[7]: raise OSError(f"no address for {name}: {answer.hex()}")
    return socket.inet_ntoa(answer[-4:])
def knock(host, port):
    way = socket.create_connection((host, port), 8); way.settimeout(3)
    way.sendall(b"hello\n"); print("heard", way.recv(64))
"#;

/// Ways out of the sandbox, and ways to be taken for somebody else on the one that there is.
fn ways() -> Vec<Attack> {
    let asking = |program: &str| -> &'static str { String::leak(format!("{ASK}{program}")) };
    let inside = |id, tries, walls, program| inside(id, tries, walls, program).with(NETWORK);
    vec![
        inside(
            "DW-host-loopback",
            "have the door connect to the host's loopback, by a name for it",
            &[DoorPolicy, PublicAddresses, HostAddresses],
            asking(r#"knock(ask("localhost"), C["listeners"][0]["tcp"][1])"#),
        ),
        inside(
            "DW-own-address",
            "connect to the machine's own address",
            &[DoorPolicy],
            asking(
                r#"
own = C["listeners"][2]["tcp"]
if own: knock(*own)
else: knock(ask("localhost"), C["listeners"][0]["tcp"][1])
"#,
            ),
        )
        .also(&[PublicAddresses, HostAddresses]),
        inside(
            "DW-open-loopback",
            "have a door that is open to the world connect to the host's loopback",
            &[PublicAddresses, HostAddresses],
            asking(r#"knock(ask("localhost"), C["listeners"][0]["tcp"][1])"#),
        )
        .with(&["--net", "open"]),
        inside(
            "DW-door-port",
            "connect to the socket at which the door waits",
            &[DoorPort],
            r#"
for host in ["127.0.0.1", "127.9.9.9", "10.255.255.1", "0.0.0.0", "::1", "fd62:6a::1", "::ffff:10.255.255.1"]:
    try: won(host, socket.create_connection((host, 1), 3))
    except OSError as error: print(host, error)
"#,
        ),
        outside("DW-door-place", "take the door's ports, and get what is for the door", &[], |ring| {
            ring.python("root", if ring.sabotage { &[] } else { NETWORK }, false, PLACES)
        })
        .control(Control::Sabotage),
        outside("DW-address-of-another", "answer in the place of a host of the world", &[], |ring| {
            // What goes to loopback stays inside.
            let host = if ring.sabotage { "127.0.0.1" } else { NOBODY };
            ring.python("user", NETWORK, false, &format!("host = {host:?}\n{IMPOSTOR}"))
        })
        .control(Control::Sabotage),
        inside(
            "DW-mark",
            "mark its packets as another's",
            &[BoundingSet, Capabilities],
            r#"
socket.socket().setsockopt(socket.SOL_SOCKET, 36, 7)
won("marked")
"#,
        )
        .by_root(),
        outside(
            "DW-forged-mark",
            "have another execution blamed for what it does",
            &[FlowMarks, BoundingSet, Capabilities],
            forged_mark,
        ),
        inside(
            "DW-transparent",
            "be handed what is meant for others, as the door is",
            &[BoundingSet, Capabilities],
            r#"
socket.socket().setsockopt(socket.IPPROTO_IP, 19, 1)
won("of version four")
socket.socket(socket.AF_INET6).setsockopt(socket.IPPROTO_IPV6, 75, 1)
won("of version six")
"#,
        )
        .by_root(),
        inside(
            "DW-rules",
            "take away the rules by which packets come to the door",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
def message(kind, body, flags=1): return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
name = b"belljar\0"
table = struct.pack(">BBH", 1, 0, 0) + struct.pack("=HH", 4 + len(name), 1) + name
batch = struct.pack(">BBH", 0, 0, 10)
rules = socket.socket(16, socket.SOCK_RAW, 12); rules.settimeout(5)
rules.send(message(16, batch) + message(10 << 8 | 2, table, 5) + message(17, batch))
error = struct.unpack_from("=i", rules.recv(4096), 16)[0]
if error: raise OSError(-error, os.strerror(-error))
won("they are gone")
"#,
        )
        .by_root(),
        inside(
            "DW-routes",
            "change where packets go",
            &[BoundingSet, Capabilities],
            r#"
body = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 0, 255, 2, 0)
routes = socket.socket(16, socket.SOCK_RAW, 0); routes.settimeout(5)
routes.send(struct.pack("=IHHII", 16 + len(body), 25, 5, 1, 0) + body)
error = struct.unpack_from("=i", routes.recv(4096), 16)[0]
if error: raise OSError(-error, os.strerror(-error))
won("the route to the door is gone")
"#,
        )
        .by_root(),
        inside(
            "DW-settings",
            "have marks forgotten when a connection is accepted",
            &[ProcReadOnly, LandlockExecution],
            r#"
with open("/proc/sys/net/ipv4/tcp_fwmark_accept", "w") as file: file.write("0")
won(read("/proc/sys/net/ipv4/tcp_fwmark_accept"))
"#,
        )
        .by_root()
        .also(&[BoundingSet, Capabilities]),
        inside(
            "DW-streams",
            "have more connections than those of the door are counted for",
            &[StreamCount],
            r#"
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
listener, held = socket.create_server(("127.0.0.1", 0), backlog=16), []
try:
    for _ in range(900):
        one = socket.create_connection(listener.getsockname(), 5); held += [one, listener.accept()[0]]
except OSError as error: print(error)
if len(held) > 1540: won(len(held), "ends of connections")
print(len(held), "ends")
"#,
        )
        .with(&["--memory", "64m", "--allow", "granted.invalid"])
        .mortal(),
    ]
}

/// The ports at which connections and questions arrive, with every option by which ports are had together.
const PLACES: &str = r#"
for family, host in [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::"), (socket.AF_INET6, "::1")]:
    for kind, port in [(socket.SOCK_STREAM, 1), (socket.SOCK_DGRAM, 53)]:
        for option in [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT]:
            one = socket.socket(family, kind)
            try:
                if option: one.setsockopt(socket.SOL_SOCKET, option, 1)
                one.bind((host, port))
                if kind == socket.SOCK_STREAM: one.listen(1)
                won("port", port, "of", host)
            except OSError as error: print(host, port, error)
            one.close()
"#;

/// Listens wherever it can, and connects as a victim would.
const IMPOSTOR: &str = r#"
def serve(place):
    server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((place, 8080)); server.listen(4)
    def answer():
        while True: server.accept()[0].send(b"impostor")
    threading.Thread(target=answer, daemon=True).start()
for place in [host, "0.0.0.0"]:
    try: serve(place)
    except OSError as error: print(place, error)
victim = socket.create_connection((host, 8080), 8); victim.settimeout(3)
if victim.recv(64) == b"impostor": won("the impostor was heard as", host)
"#;

/// Two executions: one of them marks its connection as the other's.
fn forged_mark(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(NETWORK) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    // A length by which it is found.
    let length = format!("{}", 100_000 + u32::from_str_radix(&random_word()[..6], 16).unwrap_or(0));
    let victim = ring.json(&["exec", "-d", &id, "--", "sleep", &length])["exec"].clone();
    let mut mark = None;
    let found = within(Duration::from_secs(10), || {
        let sleeps = format!("sleep {length} ");
        let process = processes().into_iter().find(|process| process.command == sleeps);
        mark = process.and_then(|process| cgroup_number(process.pid));
        mark.is_some()
    });
    let (true, Some(mark)) = (found, mark) else {
        return Outcome::Broken("the cgroup of an execution is not found".into());
    };
    let program = format!(
        "import socket\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, 36, {mark})\ns.settimeout(8)\n\
         s.connect(('{NOBODY}', 9))\nprint('connected')\ns.recv(1)"
    );
    let forger = ring.json(&["exec", "--user", "root", &id, "--", "python3", "-c", &program]);
    let said = format!("{} {}", text(&forger["stdout"]), text(&forger["stderr"]));
    let flows = ring.json(&["egress", &id]);
    let flow =
        flows["flows"].as_array().and_then(|all| all.iter().find(|flow| flow["host"] == NOBODY)).cloned();
    match flow {
        Some(flow) if flow["exec"] == victim => Outcome::Won(format!("{flow}")),
        Some(flow) => Outcome::Stopped(format!("it is told as {}", flow["exec"])),
        None if said.contains("PermissionError") => Outcome::Stopped("it may not set a mark".into()),
        None => Outcome::Broken(format!("nothing was seen of it: {said} {flows}")),
    }
}

/// What its packets are marked with: the lower half of its cgroup's number.
fn cgroup_number(pid: i32) -> Option<u32> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(std::fs::metadata(Path::new(&mount).join(group)).ok()?.ino() as u32)
}

/// The door itself, as the users of the host see it.
fn of_the_door() -> Vec<Attack> {
    vec![
        outside("DW-strange-user", "ask the door as another user of the host", &[DoorPeers], strange_user),
        outside("DW-garbage", "send the door garbage as a client", &[], garbage).control(Control::Sabotage),
    ]
}

const ASK_THE_DOOR: &str = r#"
import json, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
door = socket.socket(socket.AF_UNIX)
door.settimeout(5)
door.connect(sys.argv[1])
door.sendall(json.dumps({"denials": {"sandbox": sys.argv[2], "exec": 1}}).encode() + b"\n")
print(door.recv(4096))
"#;

/// Somebody opened the data directory to everybody; the door itself still knows its owner.
fn strange_user(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(NETWORK) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let (home, socket) = (ring.field.home(), ring.field.home().join("door.sock"));
    let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    if let Err(error) = set(&home, 0o755).and_then(|()| set(&socket, 0o666)) {
        return Outcome::Broken(format!("the door's socket cannot be opened to others: {error}"));
    }
    let asked =
        finish(Command::new("python3").args(["-c", ASK_THE_DOOR]).arg(&socket).arg(&id).current_dir("/"));
    let _ = set(&home, 0o700);
    let said = asked.text();
    let refused =
        said.contains("b''") || asked.stderr.contains("reset") || asked.stderr.contains("Broken pipe");
    match said.contains("denials") {
        true => Outcome::Won(format!("it answered: {said}")),
        false if refused => Outcome::Stopped(said),
        false => Outcome::Broken(format!("{asked:?}")),
    }
}

/// Whether the door is the same and serves after this.
fn still_serves(ring: &Ring<'_>, id: &str, before: Option<i32>) -> Outcome {
    if let (true, Some(pid)) = (ring.sabotage, before.and_then(rustix::process::Pid::from_raw)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    // A name that is asked for once is in the list, if there is somebody to refuse it.
    let name = format!("{}.invalid", random_word());
    let serves = within(Duration::from_secs(10), || {
        ring.json(&["exec", id, "--", "getent", "hosts", &name]);
        let flows = ring.json(&["egress", id]);
        flows["flows"].as_array().is_some_and(|all| all.iter().any(|flow| flow["host"] == name.as_str()))
    });
    match (serves, door::supervisor(&ring.field.home())) {
        (true, now) if now == before => Outcome::Stopped("it serves on".into()),
        (true, now) => Outcome::Won(format!("the door was {before:?} and is {now:?}")),
        (false, _) => Outcome::Won("the door does not serve any more".into()),
    }
}

fn garbage(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(NETWORK) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let before = door::supervisor(&ring.field.home());
    let pieces: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"{\"see_to\":{\"sandbox\":\"../../../etc\"}}\n",
        b"{\"denials\":{\"sandbox\":\"x\",\"exec\":-1}}\n",
        b"\n",
        &[b'['; 70_000],
        &[0xff; 300_000],
    ];
    let mut held = Vec::new();
    for piece in pieces {
        let Ok(mut stream) = UnixStream::connect(ring.field.home().join("door.sock")) else { continue };
        let _ = stream.set_write_timeout(Some(Duration::from_secs(2)));
        let _ = stream.write_all(piece);
        held.push(stream);
    }
    if before.is_none() || held.len() != pieces.len() {
        return Outcome::Broken("there is no door to be talked to".into());
    }
    still_serves(ring, &id, before)
}

/// The worker, taken over by what it reads.
fn of_its_worker() -> Vec<Attack> {
    let as_worker =
        |id, tries, walls, deed: Deed| outside(id, tries, walls, move |ring| possessed(ring, deed));
    vec![
        as_worker(
            "DW-worker-flag",
            "as a worker taken over, read root's file",
            &[WorkerUser, WorkerLandlock],
            read_flag,
        ),
        as_worker(
            "DW-worker-open-flag",
            "as a worker taken over, read a file for everybody",
            &[WorkerLandlock],
            read_open_flag,
        ),
        as_worker(
            "DW-worker-write",
            "as a worker taken over, leave a file for the host",
            &[WorkerLandlock],
            write_file,
        ),
        as_worker(
            "DW-worker-data",
            "as a worker taken over, read the data directory",
            &[WorkerUser, WorkerLandlock],
            |ring, held| {
                let file =
                    open(held, &ring.field.home().join("sandboxes"), libc::O_RDONLY | libc::O_DIRECTORY)?;
                Ok(format!("descriptor {file}"))
            },
        ),
        as_worker(
            "DW-worker-environment",
            "as a worker taken over, read the secrets of its supervisor",
            &[WorkerUser, WorkerLandlock],
            |ring, held| {
                let path = format!("/proc/{}/environ", supervisor(ring)?);
                let file = open(held, &PathBuf::from(path), libc::O_RDONLY)?;
                let read = held.read(file, 4096)?;
                // What it holds does not matter; that there is something does.
                (!read.is_empty())
                    .then(|| format!("{} bytes", read.len()))
                    .ok_or_else(|| io::Error::other("nothing"))
            },
        ),
        as_worker(
            "DW-worker-own-environment",
            "as a worker taken over, find secrets in its own environment",
            &[],
            |ring, held| {
                // The control gives away the secret that its supervisor has.
                let of = if ring.sabotage { supervisor(ring)? } else { held.pid() };
                let environment = std::fs::read(format!("/proc/{of}/environ"))?;
                ring.field.canaries.leaked(&environment).ok_or_else(|| io::Error::other("no secret is there"))
            },
        )
        .control(Control::Sabotage),
        as_worker(
            "DW-worker-kill",
            "as a worker taken over, signal a process of the host",
            &[WorkerUser, WorkerLandlock, WorkerFilter],
            signal_victim,
        ),
        as_worker(
            "DW-worker-trace",
            "as a worker taken over, take its supervisor over",
            &[WorkerUser, WorkerLandlock, WorkerFilter],
            |ring, held| {
                let numbers = [i64::from(libc::PTRACE_SEIZE), i64::from(supervisor(ring)?), 0, 0];
                held.call(libc::SYS_ptrace, &numbers.map(Argument::Number))?;
                Ok("it is traced".into())
            },
        ),
        as_worker(
            "DW-worker-root",
            "as a worker taken over, become root again",
            &[WorkerUser, WorkerFilter],
            become_root,
        ),
        as_worker(
            "DW-worker-capabilities",
            "as a worker taken over, use its supervisor's capabilities",
            &[WorkerUser, WorkerFilter],
            set_host_name,
        ),
        as_worker(
            "DW-worker-program",
            "as a worker taken over, start a program",
            &[WorkerFilter],
            |_, held| {
                // None is started: it is enough that the kernel looks for it.
                match held.call(libc::SYS_execve, &[Argument::Bytes(b"/nonexistent\0"), Argument::Number(0)])
                {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok("it was looked for".into()),
                    Err(error) => Err(error),
                    Ok(_) => Ok("it was started".into()),
                }
            },
        ),
        as_worker("DW-worker-fork", "as a worker taken over, leave a process behind", &[WorkerFilter], fork),
        as_worker(
            "DW-worker-namespace",
            "as a worker taken over, make a user namespace",
            &[WorkerFilter],
            make_namespace,
        ),
        as_worker(
            "DW-worker-io-uring",
            "as a worker taken over, call past the filter",
            &[WorkerFilter],
            make_ring,
        ),
        as_worker("DW-worker-code", "as a worker taken over, run code of its own", &[WorkerFilter], map_code),
        as_worker(
            "DW-worker-packet",
            "as a worker taken over, read every packet of the host",
            &[WorkerUser, WorkerFilter],
            |_, held| {
                let numbers =
                    [libc::AF_PACKET, libc::SOCK_RAW, 0].map(|number| Argument::Number(number.into()));
                Ok(format!("descriptor {}", held.call(libc::SYS_socket, &numbers)?))
            },
        ),
        as_worker(
            "DW-worker-memory",
            "as a worker taken over, have memory without a bound",
            &[WorkerLimits],
            |_, held| {
                // Room only, of which nothing is used.
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                let numbers = [0, 3 << 30, i64::from(rights), i64::from(flags), -1, 0];
                Ok(format!("at {:#x}", held.call(libc::SYS_mmap, &numbers.map(Argument::Number))?))
            },
        ),
        as_worker(
            "DW-worker-abstract",
            "as a worker taken over, connect to an abstract socket of the host",
            &[WorkerLandlock, WorkerFilter],
            |ring, held| {
                let name = format!("\0{}", text(&ring.field.canaries.told()["abstract"]));
                connect(held, name.as_bytes())
            },
        ),
        as_worker(
            "DW-worker-monitor",
            "as a worker taken over, ask a monitor",
            &[WorkerUser, WorkerFilter],
            |ring, held| {
                let id = ring.sandboxes.borrow().first().cloned().unwrap_or_default();
                connect(held, format!("{}\0", ring.directory(&id).join("control.sock").display()).as_bytes())
            },
        ),
        outside("DW-worker-lies", "as a worker taken over, confuse its supervisor", &[], lies)
            .control(Control::Sabotage),
    ]
}

fn supervisor(ring: &Ring<'_>) -> io::Result<i32> {
    door::supervisor(&ring.field.home()).ok_or_else(|| io::Error::other("there is no supervisor"))
}

/// Makes it connect to a unix socket.
fn connect(held: &Possessed, name: &[u8]) -> io::Result<String> {
    let kind = [libc::AF_UNIX, libc::SOCK_STREAM, 0].map(|number| Argument::Number(number.into()));
    let socket = held.call(libc::SYS_socket, &kind)?;
    let address = [&(libc::AF_UNIX as u16).to_ne_bytes(), name].concat();
    let length = address.len() as i64;
    held.call(
        libc::SYS_connect,
        &[Argument::Number(socket), Argument::Bytes(&address), Argument::Number(length)],
    )?;
    Ok("connected".into())
}

/// Takes hold of the worker of a sandbox with a network.
fn hold(ring: &Ring<'_>) -> Result<(String, Possessed), Outcome> {
    let id = ring.create(NETWORK)?;
    let mut worker = None;
    within(Duration::from_secs(10), || {
        worker = door::worker(&ring.field.home());
        worker.is_some()
    });
    let worker = worker.ok_or_else(|| Outcome::Broken("the door has no worker".into()))?;
    let held = Possessed::hold(worker)
        .map_err(|error| Outcome::Broken(format!("the worker {worker} cannot be held: {error}")))?;
    // That it can be made to call at all is part of the control.
    match held.call(libc::SYS_getpid, &[]) {
        Ok(own) if own == i64::from(worker) => Ok((id, held)),
        other => Err(Outcome::Broken(format!("the worker does not do what it is told: {other:?}"))),
    }
}

/// Takes a worker over and does something in its name.
fn possessed(ring: &Ring<'_>, deed: Deed) -> Outcome {
    let held = match hold(ring) {
        Ok((_, held)) => held,
        Err(outcome) => return outcome,
    };
    match deed(ring, &held) {
        Ok(evidence) => Outcome::Won(evidence),
        Err(error) => Outcome::Stopped(error.to_string()),
    }
}

/// Says what no worker should, at the channel to its supervisor, which it has as its standard input.
fn lies(ring: &Ring<'_>) -> Outcome {
    let (id, held) = match hold(ring) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let before = door::supervisor(&ring.field.home());
    // Lies in words that it knows, about a sandbox that is not there as well; then what are no words.
    let other = format!("{}{}", &id[..id.len() - 1], if id.ends_with('2') { '3' } else { '2' });
    let more = json!({"sent": u64::MAX, "received": u64::MAX, "complete": true});
    let lies = [
        json!({"done": {"serial": u64::MAX}}),
        json!({"told": {"sandbox": id, "trip": u64::MAX}}),
        json!({"moved": {"sandbox": id, "more": more}}),
        json!({"moved": {"sandbox": other, "more": more}}),
        json!({"whose": {"sandbox": other, "mark": 7, "serial": 7}}),
    ];
    let words = lies.iter().map(|word| format!(".{word}").into_bytes());
    let nonsense = [b"@".to_vec(), b".{}".to_vec(), vec![0xff; 4000], b".".to_vec()];
    let words: Vec<Vec<u8>> = words.chain(nonsense).collect();
    for (said, word) in words.iter().enumerate() {
        let numbers = [libc::MSG_DONTWAIT, 0, 0].map(|number| Argument::Number(number.into()));
        let [flags, to, size] = numbers;
        let call = [
            Argument::Number(0),
            Argument::Bytes(word),
            Argument::Number(word.len() as i64),
            flags,
            to,
            size,
        ];
        // A supervisor may end a worker that makes no sense.
        if let Err(error) = held.call(libc::SYS_sendto, &call) {
            if said < lies.len() {
                return Outcome::Broken(format!("after {said} lies of {}: {error}", lies.len()));
            }
            break;
        }
    }
    drop(held);
    still_serves(ring, &id, before)
}
