//! Nothing else is reachable. Each way has a control: it works where it is granted, or outside.

use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use crate::world::{Canary, HttpServer, METADATA, OTHER, PRIVATE, SERVER, SIX, World};

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
fn datagrams_and_other_resolvers_lead_nowhere() {
    let world = World::new();
    let quic = UdpSocket::bind(format!("{SERVER}:443")).unwrap();
    let resolver = UdpSocket::bind(format!("{OTHER}:53")).unwrap();
    let own = UdpSocket::bind(format!("{SERVER}:53")).unwrap();
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
