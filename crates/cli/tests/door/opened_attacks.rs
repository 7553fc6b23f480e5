//! Ways to harm others by TLS that is opened, which were found by attacking it, and are closed.

use serde_json::Value;

use crate::opened::{Server, create, said};
use crate::world::{OTHER, SERVER, World, listen, until};

/// What is said about the memory of the door's worker, in kibibytes.
fn worker_memory(world: &World, field: &str) -> u64 {
    let worker = world.door("worker").unwrap();
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const ALLOWED: [&str; 4] =
    ["--allow", "GET https://server.test/v1/*", "--allow", "GET https://other.test/v1/*"];

fn is_served(world: &World, id: &str) -> bool {
    let ran = world.shell(id, "curl -sS --max-time 30 https://server.test/v1/x");
    said(&ran).contains("served")
}

/// Many requests with many headers, to a host that takes them in and says nothing.
#[test]
fn heads_of_requests_take_little_memory() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let _silent = listen(&format!("{OTHER}:443"));
    let id = create(&world, &server, &ALLOWED);
    assert!(is_served(&world, &id));
    let script = "import itertools, socket, ssl, string, struct, sys
def frame(kind, flags, stream, data): return struct.pack('>I', len(data))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + data
def text(name, value): return b'\\0' + bytes([len(name)]) + name + bytes([len(value)]) + value
context = ssl.create_default_context(); context.set_alpn_protocols(['h2'])
letters = string.ascii_lowercase.encode(); held = []
names = [text(bytes(name), b'') for name in itertools.islice(itertools.product(letters, letters, letters), int(sys.argv[1]))]
head = text(b':method', b'GET') + text(b':scheme', b'https') + text(b':authority', b'other.test') + text(b':path', b'/v1/x') + b''.join(names)
for _ in range(60):
    s = context.wrap_socket(socket.create_connection(('other.test', 443), timeout=20), server_hostname='other.test')
    s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + frame(4, 0, 0, b'') + b''.join(frame(1, 5, 1 + 2 * n, head) for n in range(32)))
    # All of it was read.
    s.sendall(frame(6, 0, 0, b'are you?')); got = b''
    while b'are you?' not in got: got = got[-8:] + s.recv(65536)
    held.append(s)
print('held')";
    let before = worker_memory(&world, "VmRSS");
    // More than may be, as many as fit, and as many as are read.
    for headers in ["1780", "450", "90"] {
        let ran = world.json(&["exec", "--timeout", "100s", &id, "--", "python3", "-c", script, headers]);
        assert_eq!(said(&ran), "held\n", "{ran}");
        let took = (worker_memory(&world, "VmHWM") - before) >> 10;
        eprintln!("60 connections with 32 requests of {headers} headers take {took} MiB");
        assert!(took < 100, "{took} MiB for 60 connections with 32 requests of {headers} headers");
    }
    let malformed = |flow: &Value| {
        flow["reason"] == "malformed" && flow["what"].as_str().is_some_and(|what| what.contains("headers"))
    };
    assert!(world.flows(&id).iter().any(malformed), "{:?}", world.flows(&id).last());
    assert!(is_served(&world, &id));
}

/// Only so many requests are under way in a sandbox, and those beyond are told together.
#[test]
fn requests_under_way_are_bounded() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let _silent = listen(&format!("{OTHER}:443"));
    let id = create(&world, &server, &ALLOWED);
    let script = "const refused = {};
let count = 0;
for (let c = 0; c < 12; c++) {
  const client = require('http2').connect('https://other.test');
  client.on('error', () => {});
  for (let i = 0; i < 32; i++) {
    const stream = client.request({ ':path': '/v1/x' });
    stream.on('error', () => {}); stream.resume();
    stream.on('response', (answer) => {
      if (answer[':status'] !== 429 || answer['x-belljar-denied'] !== 'no_room') console.log(answer);
      if (++count == 128) { console.log('refused'); process.exit(); }
    });
  }
}
setTimeout(() => { console.log(count); process.exit(); }, 60000);";
    let ran = world.json(&["exec", "--timeout", "100s", &id, "--", "node", "-e", script]);
    assert_eq!(said(&ran), "refused\n", "{ran}");
    let told = || {
        let flows = world.flows(&id).into_iter();
        flows.filter(|flow| flow["reason"] == "no_room").collect::<Vec<_>>()
    };
    until("it is told", || !told().is_empty());
    let told = told();
    assert!(told.len() < 10, "{told:?}");
    assert!(told[0]["what"].as_str().unwrap().ends_with("requests inside TLS within a second"), "{told:?}");
    assert!(told[0]["how_to_grant"].as_str().unwrap().contains("ask again"), "{told:?}");
    // Once they have ended there is room again.
    until("there is room", || is_served(&world, &id));
}

/// Sandboxes that hold every place with connections on which they ask nothing.
#[test]
fn whoever_asks_nothing_holds_no_place_that_others_need() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let script = "import socket, ssl, time
context = ssl.create_default_context(); context.set_alpn_protocols(['h2']); held = []
for _ in range(64):
    s = context.wrap_socket(socket.create_connection(('server.test', 443), timeout=60), server_hostname='server.test')
    s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0'); held.append(s)
open('held', 'w').close()
time.sleep(600)";
    let idle: Vec<_> = (0..16).map(|_| create(&world, &server, &ALLOWED)).collect();
    for id in &idle {
        world.json(&["exec", "-d", "--timeout", "600s", id, "--", "python3", "-c", script]);
    }
    for id in &idle {
        until("it holds its places", || world.shell(id, "test -e held")["exit_code"] == 0);
    }
    let neighbour = create(&world, &server, &ALLOWED);
    for _ in 0..3 {
        assert!(is_served(&world, &neighbour), "{:?}", world.flows(&neighbour));
    }
    // One that has as many as it may have is told what it can do about it.
    let ran = world.shell(&idle[15], "curl -sS https://server.test/v1/x");
    assert_eq!(ran["denied"][0]["reason"], "no_room", "{ran}");
    let gave_way =
        |flow: &Value| flow["error"].as_str().is_some_and(|error| error.contains("went to another"));
    let told = idle.iter().filter(|id| world.flows(id).iter().any(gave_way)).count();
    assert!((1..=3).contains(&told), "{told} gave way");
}

/// Refusals whose number would push out what was done, and a list that says what it does not keep.
#[test]
fn refused_requests_do_not_wash_away_what_was_done() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let policy = world.home.path().join("policy.toml");
    let text = "mode = \"allowlist\"\nallow = [\"GET https://server.test/v1/*\"]\n[limits]\nrequests_per_second = 100000\n";
    std::fs::write(&policy, text).unwrap();
    let id = create(&world, &server, &["--policy", policy.to_str().unwrap()]);
    assert!(is_served(&world, &id));
    let script = "const client = require('http2').connect('https://server.test');
let left = 15000;
const ask = () => {
  if (left-- <= 0) { client.close(); return; }
  const stream = client.request({ ':path': '/v2/' + left + '%EE'.repeat(80) });
  stream.on('error', () => {}); stream.resume(); stream.on('close', ask);
};
for (let i = 0; i < 30; i++) ask();";
    let ran = world.json(&["exec", "--timeout", "200s", &id, "--", "node", "-e", script]);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    let listed = world.json(&["egress", &id]);
    let flows = listed["flows"].as_array().unwrap();
    let kept = flows.iter().any(|flow| flow["request"] == "GET /v1/x" && flow["verdict"] == "allowed");
    assert!(kept, "{} are left, from number {}", flows.len(), flows[0]["seq"]);
    let last = flows.last().unwrap()["seq"].as_u64().unwrap();
    let missing = listed["not_kept"].as_u64().unwrap();
    assert!(missing > 0 && missing + flows.len() as u64 == last, "{missing} of {last}, {} kept", flows.len());
    let printed = world.run(&["egress", &id]);
    let told = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(told.contains(&format!("{missing} earlier entries are not kept")), "{told}");
    let printed = world.run(&["egress", "--after", &(last - 1).to_string(), &id]);
    assert_eq!(String::from_utf8_lossy(&printed.stderr), "");
}
