//! Nothing else is reachable. Each way has a control: it works where it is granted, or outside.

use std::net::TcpStream;
use std::time::Duration;

use crate::world::{
    Canary, HttpServer, METADATA, OTHER, OWN, OWN_PRIVATE, OWN_SIX, PRIVATE, SERVER, SIX, World,
};

/// Connects to each of the addresses given and says what came of it.
const CONNECT: &str = "import socket, sys
for word in sys.argv[1:]:
    host, port = word.rsplit('@', 1)
    try:
        s = socket.create_connection((host, int(port)), timeout=8)
        print(word, 'reached' if s.recv(100) else 'closed')
    except OSError as error:
        print(word, 'refused', type(error).__name__)";

#[test]
fn addresses_that_are_not_granted_are_not_reached() {
    let world = World::new();
    let places =
        [(SERVER, 2525), (OTHER, 2525), (PRIVATE, 2525), (METADATA, 80), ("127.0.0.1", 2626), (SIX, 2525)];
    let canaries: Vec<Canary> = places
        .iter()
        .map(|(host, port)| {
            Canary::start(&if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            })
        })
        .collect();
    // The control: they are there, for those who are outside.
    for canary in &canaries {
        TcpStream::connect(canary.address).unwrap();
    }
    let reached = || canaries.iter().map(Canary::visits).collect::<Vec<_>>();
    crate::world::until("all were reached", || reached() == vec![1; canaries.len()]);
    let id = world.create(&["--allow", "server.test:2525"]);
    let mut words: Vec<String> = places.iter().map(|(host, port)| format!("{host}@{port}")).collect();
    // Names that lead elsewhere, the host's own ports by its other addresses, and the door itself.
    words.extend(
        ["other.test@2525", "mirror.test@2525", "metadata.test@80", "local.test@2626", "six.test@2525"]
            .map(str::to_owned),
    );
    words.extend(
        [
            "server.test@2526",
            "10.255.255.1@1",
            "10.255.255.53@1",
            "0.0.0.0@2626",
            "::ffff:93.184.215.14@2525",
        ]
        .map(str::to_owned),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ran = world.json(&[&["exec", &id, "--", "python3", "-c", CONNECT], &words[..]].concat());
    let said = ran["stdout"].as_str().unwrap();
    assert!(!said.contains("reached") && said.lines().count() == words.len(), "{ran}");
    assert_eq!(reached(), vec![1; canaries.len()], "{ran}");
    // The control inside: the one that is granted, by its name.
    let ran = world.json(&["exec", &id, "--", "python3", "-c", CONNECT, "server.test@2525"]);
    assert_eq!(ran["stdout"], "server.test@2525 reached\n", "{ran}");
}

#[test]
fn addresses_that_are_not_public_need_their_own_grant() {
    let world = World::new();
    let canaries: Vec<Canary> =
        [PRIVATE, METADATA, "127.0.0.1"].iter().map(|host| Canary::start(&format!("{host}:2525"))).collect();
    let try_with = |options: &[&str], words: &[&str]| {
        let ran = world.json(&[&["run"], options, &["--", "python3", "-c", CONNECT], words].concat());
        ran["stdout"].as_str().unwrap().to_owned()
    };
    // A name that leads to one of them does not open it, in no mode.
    let names = ["mirror.test@2525", "metadata.test@2525", "local.test@2525"];
    let said = try_with(
        &["--allow", "mirror.test:2525", "--allow", "metadata.test:2525", "--allow", "local.test:2525"],
        &names,
    );
    assert_eq!(said.matches("refused").count() + said.matches("closed").count(), 3, "{said}");
    let said =
        try_with(&["--net", "open"], &[&names[..], &["10.1.2.3@2525", "169.254.169.254@2525"]].concat());
    assert!(!said.contains("reached"), "{said}");
    assert!(canaries.iter().all(|canary| canary.visits() == 0));
    // Granted as private, the mirror is reached; the others are not.
    let rules = [
        "--allow",
        "mirror.test:2525 private",
        "--allow",
        "metadata.test:2525 private",
        "--allow",
        "local.test:2525 private",
    ];
    let said = try_with(&rules, &names);
    assert!(said.contains("mirror.test@2525 reached") && said.matches("reached").count() == 1, "{said}");
    assert_eq!(canaries[0].visits(), 1);
}

#[test]
fn the_hosts_own_addresses_need_a_rule_about_each() {
    let world = World::new();
    let places = [format!("{OWN}:2525"), format!("{OWN_PRIVATE}:2525"), format!("[{OWN_SIX}]:2525")];
    let canaries = places.each_ref().map(|place| Canary::start(place));
    let reached = || canaries.iter().map(Canary::visits).collect::<Vec<_>>();
    let own = [
        format!("{OWN}@2525"),
        format!("{OWN_PRIVATE}@2525"),
        format!("{OWN_SIX}@2525"),
        format!("::ffff:{OWN}@2525"),
        "own.test@2525".into(),
        "own-mirror.test@2525".into(),
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let wide = ["--net", "open"];
    let names = ["--allow", "own.test:2525 private", "--allow", "own-mirror.test:2525 private"];
    let blocks = ["--allow", "93.184.215.0/24:2525 private", "--allow", "10.0.0.0/8:2525 private"];
    for options in [&wide[..], &names, &blocks] {
        let ran = world.json(&[&["run"], options, &["--", "python3", "-c", CONNECT], &own[..]].concat());
        assert!(!ran["stdout"].as_str().unwrap().contains("reached"), "{options:?}: {ran}");
        let denied = ran["denied"].as_array().unwrap();
        assert!(denied.iter().any(|denial| denial["reason"] == "host_itself"), "{options:?}: {ran}");
    }
    assert_eq!(reached(), [0, 0, 0]);
    // The control: each is reached where it is granted, by the grant that the refusal speaks of.
    let rules: Vec<String> = places.iter().map(|place| format!("--allow={place}")).collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let ran = world.json(&[&["run"], &rules[..], &["--", "python3", "-c", CONNECT], &own[..3]].concat());
    assert_eq!(ran["stdout"].as_str().unwrap().matches("reached").count(), 3, "{ran}");
    assert_eq!(reached(), [1, 1, 1]);
}

#[test]
fn datagrams_and_other_resolvers_lead_nowhere() {
    let world = World::new();
    let quic = crate::world::datagrams(&format!("{SERVER}:443"));
    let resolver = crate::world::datagrams(&format!("{OTHER}:53"));
    let own = crate::world::datagrams(&format!("{SERVER}:53"));
    let id = world.create(&["--allow", "server.test:1-65535", "--allow", "*.server.test"]);
    let script = "import socket
def ask(name, host, tcp=False):
    q = b'\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0' + b''.join(bytes([len(p)]) + p.encode() for p in name.split('.')) + b'\\0\\0\\1\\0\\1'
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    s.settimeout(8); s.connect((host, 53))
    s.send(len(q).to_bytes(2, 'big') + q if tcp else q)
    a = s.recv(600)[2 if tcp else 0:]
    return a[3] & 15, len(a)
for tcp in (False, True):
    print(ask('server.test', '93.184.215.15', tcp)[0], ask('6578.66696c.evil.test', '93.184.215.15', tcp)[0], ask('x' * 60 + '.other.test', '8.8.8.8', tcp)[0])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for host in ('93.184.215.14', '93.184.215.15'):
    try:
        s.connect((host, 443)); s.settimeout(3); s.send(b'x'); s.recv(1); print('reached')
    except OSError as error: print(type(error).__name__)";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    let said: Vec<&str> = ran["stdout"].as_str().unwrap().lines().collect();
    assert_eq!(said[..2], ["0 5 5", "0 5 5"], "{ran}");
    assert!(said[2..].iter().all(|line| line.contains("Error")) && said.len() == 4, "{ran}");
    for socket in [&quic, &resolver, &own] {
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let error = socket.recv(&mut [0; 1500]).unwrap_err();
        assert!(
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
            "{error}"
        );
    }
    let denied = ran["denied"].as_array().unwrap();
    assert!(
        denied.iter().any(|denial| denial["what"].as_str().unwrap().contains("6578.66696c.evil.test")),
        "{ran}"
    );
}

#[test]
fn redirects_to_what_is_denied_are_denied() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let other = HttpServer::start(&format!("{OTHER}:80"));
    let metadata = Canary::start(&format!("{METADATA}:80"));
    let id = world.create(&["--allow", "server.test"]);
    for elsewhere in ["other.test", OTHER, METADATA] {
        let ran =
            world.shell(&id, &format!("curl -sSL --max-time 10 http://server.test/redirect-to/{elsewhere}"));
        assert!(!ran["denied"].as_array().unwrap().is_empty(), "{ran}");
    }
    assert_eq!((other.asked().len(), metadata.visits(), server.asked().len()), (0, 0, 3));
    let granted = world.json(&[
        "run",
        "--allow",
        "server.test",
        "--allow",
        "other.test",
        "--",
        "curl",
        "-sSL",
        "http://server.test/redirect-to/other.test",
    ]);
    assert_eq!(granted["stdout"], "served GET / HTTP/1.1 for other.test\n", "the control: {granted}");
}

#[test]
fn requests_that_could_be_read_in_two_ways_are_not_passed_on() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "server.test"]);
    let script = "import socket, sys
for request in [
    'POST / HTTP/1.1\\r\\nHost: server.test\\r\\nContent-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /smuggled HTTP/1.1\\r\\nHost: server.test\\r\\n\\r\\n',
    'POST / HTTP/1.1\\r\\nHost: server.test\\r\\nContent-Length: 5\\r\\nContent-Length: 6\\r\\n\\r\\n123456',
    'POST / HTTP/1.1\\r\\nHost: server.test\\r\\nTransfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n',
    'GET / HTTP/1.1\\nHost: server.test\\n\\n',
    'GET / HTTP/1.1\\r\\nHost: server.test\\r\\nX: a\\r\\n folded\\r\\n\\r\\n',
    'GET / HTTP/1.1\\r\\nHost: server.test\\r\\nHost: other.test\\r\\n\\r\\n',
    'GET http://other.test/ HTTP/1.1\\r\\nHost: server.test\\r\\n\\r\\n',
    '\\r\\nGET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n',
    'CONNECT other.test:443 HTTP/1.1\\r\\nHost: other.test:443\\r\\n\\r\\n',
    'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n',
    'GET / HTTP/1.1\\r\\nHost: server.test\\r\\nX: ' + 'a' * 70000 + '\\r\\n\\r\\n',
    'GET / HTTP/1.1\\r\\nHost: server.test\\r\\n' + ''.join('X%d: a\\r\\n' % i for i in range(101)) + '\\r\\n',
]:
    s = socket.create_connection(('server.test', 80), timeout=10)
    try:
        s.sendall(request.encode())
        print(s.recv(1000).split(b'\\r\\n')[0].decode())
    except OSError as error: print(type(error).__name__)";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    let said: Vec<&str> = ran["stdout"].as_str().unwrap().lines().collect();
    assert_eq!(said.len(), 12, "{ran}");
    assert!(said.iter().all(|line| line.starts_with("HTTP/1.1 4")), "{said:?}");
    assert_eq!(server.asked(), Vec::<String>::new());
    let fine = world.shell(&id, "curl -sS -d 12345 http://server.test/fine; curl -sS -H 'Transfer-Encoding: chunked' -d abc http://server.test/x >/dev/null; true");
    assert!(fine["stdout"].as_str().unwrap().starts_with("served POST /fine"), "the control: {fine}");
}

#[test]
fn requests_that_mean_others_to_some_servers_are_refused_where_rules_are_about_requests() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let headers = ["X-Original-URL: /secret", "x_rewrite_url: /secret", "X-HTTP-Method-Override: DELETE"];
    let script = headers.map(|header| format!("curl -sS -H '{header}' http://server.test/v1/x;")).concat();
    let ran = world.json(&["run", "--allow", "GET http://server.test/v1/*", "--", "sh", "-c", &script]);
    assert_eq!(ran["denied"].as_array().unwrap().len(), headers.len(), "{ran}");
    assert_eq!(server.asked(), Vec::<String>::new());
    // The control: where everything is allowed they are nobody's business.
    let ran = world.json(&["run", "--allow", "server.test", "--", "sh", "-c", &script]);
    assert_eq!(
        (ran["denied"].as_array().map_or(0, Vec::len), server.asked().len()),
        (0, headers.len()),
        "{ran}"
    );
}

/// A resolver of the test's own: answers every question with the next of these addresses, and counts.
fn resolver(answers: &'static [[u8; 4]]) -> std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>> {
    let socket = crate::world::datagrams(&format!("{SERVER}:53"));
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = asked.clone();
    std::thread::spawn(move || {
        let (mut buffer, mut count) = ([0; 1500], 0);
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = &buffer[..length];
            let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_v4 = question[end - 4..end - 2] == [0, 1];
            let mut reply = question[..end].to_vec();
            reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
            if is_v4 {
                told.lock().unwrap().push(question[12..end - 4].to_vec());
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                reply.extend(answers[count % answers.len()]);
                count += 1;
            }
            socket.send_to(&reply, from).unwrap();
        }
    });
    asked
}

#[test]
fn a_name_whose_address_changes_leads_nowhere_that_was_not_judged() {
    let world = World::new();
    let asked = resolver(&[[93, 184, 215, 14], [127, 0, 0, 1], [169, 254, 169, 254], [10, 1, 2, 3]]);
    let good = Canary::start(&format!("{SERVER}:2525"));
    let bad: Vec<Canary> =
        ["127.0.0.1", METADATA, PRIVATE].iter().map(|host| Canary::start(&format!("{host}:2525"))).collect();
    let id = world.create(&["--allow", "*.rebinding.test:2525"]);
    let names: Vec<String> = (0..8).map(|number| format!("n{number}.rebinding.test@2525")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Each twice: what was looked up is what is dialled.
    for _ in 0..2 {
        let ran = world.json(&[&["exec", &id, "--", "python3", "-c", CONNECT], &names[..]].concat());
        let said = ran["stdout"].as_str().unwrap();
        assert_eq!(said.matches("reached").count(), 2, "those that lead to what is public: {ran}");
    }
    assert_eq!(good.visits(), 4);
    assert!(bad.iter().all(|canary| canary.visits() == 0));
    let before = asked.lock().unwrap().len();
    // What is not granted is not asked for, by nobody.
    let ran = world.shell(&id, "getent hosts 736563726574.evil.test; getent hosts rebinding.test");
    assert_eq!(ran["denied"].as_array().unwrap().len(), 2, "{ran}");
    assert_eq!(asked.lock().unwrap().len(), before);
}

#[test]
fn a_policy_that_cannot_be_read_grants_nothing() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "server.test"]);
    let fetch = "curl -sS --max-time 5 http://server.test/x";
    assert_eq!(world.shell(&id, fetch)["exit_code"], 0);
    let policy = world.home.path().join("sandboxes").join(&id).join("network.json");
    for broken in ["", "{", "{\"mode\": \"open\"", "{\"mode\": \"everything\"}", "[]"] {
        std::fs::write(&policy, broken).unwrap();
        // A new door, which knows nothing but what is there.
        crate::surroundings::processes::send(
            world.door("supervisor").unwrap(),
            rustix::process::Signal::KILL,
        );
        crate::world::until("it is gone", || world.door("supervisor").is_none());
        let ran = world.shell(&id, fetch);
        assert_ne!(ran["exit_code"], 0, "{broken:?}: {ran}");
    }
    assert_eq!(server.asked().len(), 1);
    assert!(world.run(&["net", "set", &id, "--allow", "server.test"]).status.success());
    assert_eq!(world.shell(&id, fetch)["exit_code"], 0, "and can be set again");
}

#[test]
fn sandboxes_cannot_take_the_places_of_the_door_or_of_each_other() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let other = Canary::start(&format!("{OTHER}:80"));
    let squatter = world.create(&["--allow", "server.test"]);
    let neighbour = world.create(&["--allow", "other.test"]);
    let script = "import socket
for family, host in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET, '10.255.255.1'), (socket.AF_INET, '127.0.0.1')):
    for kind, port in ((socket.SOCK_STREAM, 1), (socket.SOCK_DGRAM, 53), (socket.SOCK_STREAM, 53), (socket.SOCK_STREAM, 80)):
        s = socket.socket(family, kind); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError: pass
        try:
            s.bind((host, port))
            if kind == socket.SOCK_STREAM: s.listen()
            globals().setdefault('held', []).append(s)
        except OSError as error: print(host, port, error.strerror)
import subprocess
print(subprocess.run(['curl', '-sS', '--max-time', '10', 'http://server.test/x'], capture_output=True, text=True).stdout)";
    let ran = world.json(&["exec", "--user", "root", &squatter, "--", "python3", "-c", script]);
    assert!(ran["stdout"].as_str().unwrap().contains("served GET /x"), "it is served all the same: {ran}");
    let ran = world.shell(&neighbour, "curl -sS --max-time 5 http://server.test/x");
    assert_ne!(ran["exit_code"], 0, "what one may, the other may not: {ran}");
    let ran = world.shell(&squatter, "curl -sS --max-time 5 http://other.test/x");
    assert_ne!(ran["exit_code"], 0, "{ran}");
    assert_eq!(other.visits(), 0);
}

#[test]
fn malformed_tls_is_refused_and_told() {
    let world = World::new();
    let canary = Canary::start(&format!("{SERVER}:443"));
    let id = world.create(&["--allow", "server.test"]);
    let script = "import socket, ssl
def hello(name):
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    c = ssl.create_default_context().wrap_bio(into, out, server_hostname=name)
    try: c.do_handshake()
    except ssl.SSLWantReadError: pass
    return out.read()
good = hello('server.test')
body = good[5:]
def records(size): return b''.join(good[:3] + len(body[i:i + size]).to_bytes(2, 'big') + body[i:i + size] for i in range(0, len(body), size))
cases = {
    'ssl2': b'\\x80\\x2e\\x01\\x00\\x02' + b'\\0' * 43,
    'fragments': records(1),
    'other name': hello('other.test'),
    'empty record': good[:3] + b'\\0\\0' + good,
    'lengths': good[:5] + bytes([body[0]]) + b'\\xff\\xff\\xff' + body[4:],
    'whole in three': records(200),
}
for what, data in cases.items():
    s = socket.create_connection(('server.test', 443), timeout=10)
    try:
        s.sendall(data); print(what, s.recv(100)[:1])
    except OSError as error: print(what, type(error).__name__)";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    let said = ran["stdout"].as_str().unwrap();
    // Whatever came back to the refused is the beginning of an alert, or nothing. The canary speaks first, to all that got there.
    let reached = canary.visits();
    let denied = ran["denied"].as_array().unwrap();
    for what in ["SSL 2", "more than 32 records", "other.test", "empty", "longer than 64 KiB"] {
        assert!(
            denied.iter().any(|denial| denial["what"].as_str().unwrap().contains(what)),
            "{what}: {said} {denied:?}"
        );
    }
    assert_eq!((denied.len(), reached), (5, 6), "{ran}");
}
