//! Ways past the door, or to harm it, that were found by attacking it, and are closed.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::surroundings::processes::send;
use crate::world::{Canary, HttpServer, OTHER, PRIVATE, SERVER, World, until};

/// Writes a policy to a file of the world, and answers its path.
fn policy(world: &World, text: &str) -> String {
    let path = world.home.path().join("policy.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a script of Python in a sandbox, in the background.
fn begin(world: &World, id: &str, script: &str) -> String {
    let made = world.json(&["exec", "-d", "--timeout", "5m", id, "--", "python3", "-c", script]);
    made["exec"].as_u64().unwrap_or_else(|| panic!("{made}")).to_string()
}

#[test]
fn a_request_with_an_unusual_method_does_not_name_another_host() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "server.test"]);
    let script = "import socket
for method in ['GET', 'G3T', 'M!', 'A' * 33]:
    s = socket.create_connection(('server.test', 80), timeout=10)
    try:
        s.sendall(method.encode() + b' /x HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'); print(method, s.recv(100)[:20])
    except OSError as error: print(method, type(error).__name__)";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    assert_eq!(server.asked(), Vec::<String>::new(), "{ran}");
}

#[test]
fn requests_that_wait_are_judged_by_the_policy_as_it_is_when_they_leave() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let with = |path: &str| {
        format!(
            "mode = \"allowlist\"\nallow = [\"GET http://server.test/{path}\"]\n[limits]\nrequests_per_second = 4\n"
        )
    };
    let id = world.create(&["--policy", &policy(&world, &with("before"))]);
    let script = "import socket, threading
address = socket.gethostbyname('server.test')
def ask():
    try:
        s = socket.create_connection((address, 80), timeout=20)
        s.sendall(b'GET /before HTTP/1.1\\r\\nHost: server.test\\r\\n\\r\\n'); s.recv(100)
    except OSError: pass
threads = [threading.Thread(target=ask) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()";
    let exec = begin(&world, &id, script);
    until("one was asked", || !server.asked().is_empty());
    let set = world.run(&["net", "set", &id, "--policy", &policy(&world, &with("after"))]);
    assert!(set.status.success(), "{set:?}");
    let before = server.asked().len();
    world.run(&["attach", &id, &exec]);
    assert_eq!(server.asked().len(), before, "requests for what is not allowed any more");
}

#[test]
fn an_address_that_is_denied_later_is_not_asked_again_on_an_open_connection() {
    let world = World::new();
    let server = HttpServer::start(&format!("{PRIVATE}:80"));
    let allow = "mode = \"allowlist\"\nallow = [\"GET http://mirror.test/* private\"]\n";
    let id = world.create(&["--policy", &policy(&world, allow)]);
    let script = "import os, socket, time
s = socket.create_connection(('mirror.test', 80), timeout=20)
def ask(path):
    s.sendall(b'GET ' + path + b' HTTP/1.1\\r\\nHost: mirror.test\\r\\n\\r\\n'); s.recv(1000)
ask(b'/one')
while not os.path.exists('go'): time.sleep(0.05)
try: ask(b'/two')
except OSError: pass";
    let exec = begin(&world, &id, script);
    until("it is connected", || server.asked().len() == 1);
    let denied = policy(&world, &format!("{allow}deny = [\"10.0.0.0/8\"]\n"));
    let set = world.run(&["net", "set", &id, "--policy", &denied]);
    assert!(set.status.success(), "{set:?}");
    assert_eq!(world.shell(&id, "touch go")["exit_code"], 0);
    world.run(&["attach", &id, &exec]);
    assert_eq!(server.asked().len(), 1, "{:?}", server.asked());
}

#[test]
fn a_denied_name_is_not_reached_by_a_shorter_one_that_the_host_completes() {
    let world = World::new();
    let resolver = format!("nameserver {SERVER}\nsearch corp.test\noptions timeout:1 attempts:1\n");
    std::fs::write(world.home.path().join("resolv.conf"), resolver).unwrap();
    let socket = crate::world::datagrams(&format!("{SERVER}:53"));
    std::thread::spawn(move || {
        answer_names(&socket, |name| name == b"\x06secret\x04corp\x04test\0", |_| true)
    });
    let canary = Canary::start(&format!("{OTHER}:2525"));
    let id = world.create(&["--net", "open", "--deny", "*.corp.test"]);
    let script = "import socket, sys
for name in sys.argv[1:]:
    try: print(name, socket.create_connection((name, 2525), timeout=8).recv(10))
    except OSError as error: print(name, error)";
    let ran =
        world.json(&["exec", &id, "--", "python3", "-c", script, "secret.corp.test", "secret", "secret."]);
    assert_eq!(canary.visits(), 0, "{ran}");
}

#[test]
fn an_address_of_a_name_is_not_anothers_after_the_supervisor_died() {
    let world = World::new();
    let (_server, other) =
        (Canary::start(&format!("{SERVER}:2525")), Canary::start(&format!("{OTHER}:2525")));
    let id = world.create(&["--allow", "server.test:2525", "--allow", "other.test:2525"]);
    let script = "import os, socket, time
address = socket.gethostbyname('server.test'); open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.05)
try: print(socket.create_connection((address, 2525), timeout=8).recv(10))
except OSError as error: print(error)";
    let exec = begin(&world, &id, script);
    until("it has looked up the name", || world.shell(&id, "test -e ready")["exit_code"] == 0);
    let supervisor = world.door("supervisor").unwrap();
    send(supervisor, Signal::KILL);
    until("it is gone", || world.door("supervisor") != Some(supervisor));
    let ran = world.shell(&id, "python3 -c \"import socket; socket.gethostbyname('other.test')\"; touch go");
    world.run(&["attach", &id, &exec]);
    assert_eq!(other.visits(), 0, "what was meant for server.test: {ran}");
}

#[test]
fn names_that_nobody_answers_for_hold_no_neighbour_up() {
    let world = World::new();
    std::fs::write(world.home.path().join("resolv.conf"), format!("nameserver {SERVER}\n")).unwrap();
    let socket = crate::world::datagrams(&format!("{SERVER}:53"));
    let silent = |name: &[u8]| name.ends_with(b"\x04evil\x04test\0");
    std::thread::spawn(move || answer_names(&socket, |_| true, move |name| !silent(name)));
    let _server = HttpServer::start(&format!("{OTHER}:80"));
    let attacker = world.create(&["--allow", "*.evil.test"]);
    let neighbour = world.create(&["--allow", "*.good.test"]);
    let script = "import socket, struct, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(4000):
    label = b'n%d' % number
    s.sendto(struct.pack('>HHHHHH', number, 0x100, 1, 0, 0, 0) + bytes([len(label)]) + label + b'\\4evil\\4test\\0\\0\\1\\0\\1', ('9.9.9.9', 53))
    time.sleep(0.01)";
    begin(&world, &attacker, script);
    let begun = Instant::now();
    until("it has begun", || begun.elapsed() > Duration::from_secs(5));
    let served = world.shell(&neighbour, "curl -sS --max-time 30 http://a.good.test/");
    assert!(served["stdout"].as_str().unwrap().contains("served"), "{served}");
}

#[test]
fn a_body_of_tiny_chunks_holds_no_neighbour_up() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let sink = crate::world::listen(&format!("{SERVER}:81"));
    std::thread::spawn(move || {
        for mut stream in sink.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    let attacker = world.create(&["--allow", "server.test:81"]);
    let neighbour = world.create(&["--allow", "server.test:80"]);
    let script = "import socket
s = socket.create_connection(('server.test', 81))
s.sendall(b'POST / HTTP/1.1\\r\\nHost: server.test:81\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n')
chunks = b'1\\r\\nx\\r\\n' * 20000
open('begun', 'w').close()
while True: s.sendall(chunks)";
    begin(&world, &attacker, script);
    until("it has begun", || world.shell(&attacker, "test -e begun")["exit_code"] == 0);
    for _ in 0..10 {
        let served = world.shell(&neighbour, "curl -sS --max-time 10 http://server.test/");
        assert!(served["stdout"].as_str().unwrap().contains("served"), "{served}");
    }
}

#[test]
fn refused_connections_do_not_wash_away_what_is_written_down() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let text = "mode = \"allowlist\"\nallow = [\"server.test\"]\n[limits]\nrequests_per_second = 5\n";
    let id = world.create(&["--policy", &policy(&world, text)]);
    assert_eq!(world.shell(&id, "curl -sS http://server.test/evidence")["exit_code"], 0);
    let script = "import socket, struct, time
end = time.monotonic() + 20
while time.monotonic() < end:
    held = []
    for _ in range(100):
        s = socket.socket(); s.setblocking(False); s.connect_ex(('198.19.99.9', 80)); held.append(s)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    time.sleep(0.01)
    for s in held: s.close()";
    world.json(&["exec", "--timeout", "60s", &id, "--", "python3", "-c", script]);
    let flows = world.flows(&id);
    let kept =
        flows.iter().any(|flow| flow["request"].as_str().is_some_and(|text| text.contains("/evidence")));
    assert!(kept, "{} are left, from number {}", flows.len(), flows[0]["seq"]);
}

#[test]
fn what_went_through_is_written_down_although_the_worker_died() {
    let world = World::new();
    let canary = Canary::start(&format!("{SERVER}:2525"));
    let id = world.create(&["--allow", "server.test:2525"]);
    let script = "import socket
s = socket.create_connection(('server.test', 2525)); s.sendall(b'z' * 1000); s.recv(100); open('sent', 'w').close()
try: s.recv(1)
except OSError: pass";
    let exec = begin(&world, &id, script);
    until("it was sent", || world.shell(&id, "test -e sent")["exit_code"] == 0);
    assert_eq!(canary.visits(), 1);
    send(world.door("worker").unwrap(), Signal::KILL);
    world.run(&["attach", &id, &exec]);
    until("another works", || world.door("worker").is_some());
    let flows = world.flows(&id);
    assert!(flows.iter().any(|flow| flow["kind"] == "tcp"), "{flows:?}");
}

/// A server of names: those that are known lead to the other server, the rest does not exist; some get no answer.
fn answer_names(socket: &UdpSocket, known: impl Fn(&[u8]) -> bool, answered: impl Fn(&[u8]) -> bool) {
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let end = 12 + buffer[12..length].iter().position(|byte| *byte == 0).unwrap() + 1;
        let (name, question) = (&buffer[12..end], &buffer[12..end + 4]);
        if !answered(name) {
            continue;
        }
        let is_known = known(name);
        let with_address = is_known && buffer[end + 1] == 1;
        let code = if is_known { 0x80 } else { 0x83 };
        let counts = [0, 1, 0, u8::from(with_address), 0, 0, 0, 0];
        let mut reply = [&buffer[..2], &[0x81, code], &counts, question].concat();
        if with_address {
            reply.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04");
            reply.extend(OTHER.parse::<std::net::Ipv4Addr>().unwrap().octets());
        }
        socket.send_to(&reply, from).unwrap();
    }
}

#[test]
fn what_whoever_opens_the_door_has_open_is_not_handed_on() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let script = "exec 77</etc/hostname; exec \"$0\" create --allow server.test";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script]).arg(crate::surroundings::belljar()).env("BELLJAR_HOME", world.home.path());
    assert!(command.status().unwrap().success());
    for part in ["supervisor", "worker"] {
        let pid = world.door(part).unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}/fd/77")).exists(), "the {part} has it");
    }
}

/// A request whose first line does not end, and a hello that does not, of a client that says no more.
#[test]
fn first_words_that_are_cut_off_are_judged_as_what_they_would_have_been() {
    let world = World::new();
    let canary = Canary::start(&format!("{SERVER}:2525"));
    let id = world.create(&["--allow", "server.test:2525"]);
    let script = "import socket
for words in (b'GET http://other.test/x HTTP/1.0', b'\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01\\xfc', b'\\x16\\x02\\x00\\x00\\x05hello', b'other words'):
    s = socket.create_connection(('server.test', 2525), timeout=10)
    s.sendall(words); s.shutdown(socket.SHUT_WR)
    got = b''
    try:
        while d := s.recv(100): got += d
    except OSError as error: pass
    print(got[:6])";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    assert!(ran["denied"].as_array().unwrap().len() >= 2, "{ran}");
    let flows = world.flows(&id);
    let ended: Vec<_> =
        flows.iter().filter(|flow| flow["kind"] != "dns" && flow["verdict"] != "allowed").collect();
    assert_eq!(ended.len(), 3, "all but the other words: {flows:?}");
    assert!(ended.iter().all(|flow| flow["sent"] == 0), "nothing of them went out: {flows:?}");
    assert!(canary.visits() >= 1);
}
