//! What code in a sandbox that is recorded tries: to have a secret written down, and to get something through that is not.

use serde_json::Value;

use crate::opened::{Server, create, said};
use crate::recording::{SPEAK, echo, remove, talker};
use crate::world::{HttpServer, SERVER, World, tls_server, until};

/// Speaks HTTP on ports where hosts may have the first word: after a silence, plain and inside TLS, and after the host has spoken.
const LATE: &str = "import socket, ssl, time
def late(port, tls=False, hears=False):
    s = socket.create_connection(('server.test', port), timeout=20)
    if hears: print(s.recv(100))
    else: time.sleep(1.5)
    if tls: s = ssl.create_default_context().wrap_socket(s, server_hostname='server.test')
    s.sendall(b'GET /late-%d HTTP/1.1\\r\\nHost: server.test:%d\\r\\n\\r\\n' % (port, port))
    print(s.recv(1000).split(b'\\r\\n')[0])
late(9001); late(9443, tls=True); late(9000, hears=True)";

#[test]
fn what_is_said_late_is_recorded() {
    let world = World::new();
    let plain = HttpServer::start(&format!("{SERVER}:9001"));
    let (tls, authority) = tls_server(&world, &format!("{SERVER}:9443"), &["server.test"]);
    talker(&format!("{SERVER}:9000"));
    let ports = ["--allow", "server.test:9000", "--allow", "server.test:9001", "--allow", "server.test:9443"];
    let mut command = world.command(&[&["create", "--json", "--record", "late"], &ports[..]].concat());
    let made = command.env("SSL_CERT_FILE", &authority).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
    let id = made["sandbox_id"].as_str().unwrap();
    let first = world.json(&["exec", id, "--", "python3", "-c", LATE]);
    let lines: Vec<&str> = said(&first).lines().collect();
    assert_eq!(lines[..3], ["b'HTTP/1.1 200 OK'", "b'HTTP/1.1 200 OK'", "b'welcome'"], "{first}");
    assert!(lines[3].contains("you said"), "{first}");
    assert_eq!(plain.asked(), ["GET /late-9001 HTTP/1.1 server.test:9001"]);
    remove(&world, id);
    let shown = world.json(&["recording", "show", "late"]);
    let all = shown["entries"].as_array().unwrap();
    let of = |kind: &str| all.iter().filter(|entry| entry["kind"] == kind).collect::<Vec<_>>();
    let targets: Vec<_> = of("request").iter().map(|entry| entry["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["/late-9001", "/late-9443"], "{shown}");
    let streams = of("stream");
    assert!(
        streams.len() == 1 && streams[0]["port"] == 9000 && streams[0]["sent"].as_u64() > Some(30),
        "{shown}"
    );
    drop(tls);
    let id = world.create(&["--replay", "late"]);
    let again = world.json(&["exec", &id, "--", "python3", "-c", LATE]);
    assert_eq!(said(&again), said(&first), "{again}");
}

/// Says a value in many forms, in what is asked and in bodies.
const LEAK: &str = "import base64, gzip, http.client, os, urllib.parse as u
K = os.environ['API_KEY']
def ask(path, body=None, headers={}, method=None):
    c = http.client.HTTPConnection('server.test', timeout=20)
    c.request(method or ('POST' if body else 'GET'), path, body, headers); print(c.getresponse().read())
ask('/files/' + K)
ask('/x', headers={'X-Note': K, 'Referer': 'http://a/?api_key=' + K})
for body in [K, u.quote(K), u.quote_plus(K), u.quote(u.quote(K, safe=''), safe=''), K.encode().hex().upper()]: ask('/body', body)
ask('/lines', base64.encodebytes(b'some words before it, and ' + K.encode() * 3))
ask('/wide', K.encode('utf-16le'))
ask('/packed', gzip.compress(b'x' + K.encode(), 0))
ask('/innocent', headers={'Cookie': 'a=/admin/delete-all'})
ask('/admin/delete-all', method='DELETE')";

#[test]
fn the_variables_of_a_command_are_not_recorded() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let key = "Run-Secret+Value 77";
    let variable = format!("API_KEY={key}");
    let options = ["--allow", "server.test", "--record", "r", "-e", &variable];
    let missing = world.run(&[&["run"], &options[..], &["--redact", "DSN", "--", "true"]].concat());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("`DSN`"), "{missing:?}");
    let leak = LEAK.replace("'/files/' + K", "'/files/' + K.replace(' ', '%20')");
    let ran = world.json(&[&["run"], &options[..], &["--", "python3", "-c", &leak]].concat());
    assert_eq!(ran["exit_code"], 0, "{ran}");
    assert!(server.asked().iter().any(|line| line.contains("/files/Run-Secret")), "the control: it was sent");
    let mut everything = std::fs::read(world.home.path().join("recordings/r.bjr")).unwrap();
    everything.extend(world.run(&["recording", "export", "r", "-"]).stdout);
    everything.extend(world.run(&["recording", "show", "--json", "r"]).stdout);
    let text = String::from_utf8_lossy(&everything).replace("\\n", "");
    assert!(text.contains("/innocent") && text.contains("/packed"), "the control: it is there");
    let hex: String = key.bytes().map(|byte| format!("{byte:02X}")).collect();
    // The middle of it is enough: the ends may be hidden with what is beside them.
    for secret in ["Run-Secret", "Value", &hex[4..20], "R\0u\0n\0", "UnVuLVNl", "J1bi1TZW", "dW4tU2Vj"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    // What was taken out is not judged, and what the sandbox called a secret itself is.
    let rules = ["--allow", "GET http://server.test/*"];
    let tested = world.json(&[&["policy", "test"], &rules[..], &["--recording", "r"]].concat());
    let results = tested["results"].as_array().unwrap();
    let status = |words: &str| {
        let is_it = |result: &&Value| result["url"].as_str().is_some_and(|url| url.contains(words));
        results.iter().find(is_it).map(|result| result["status"].clone())
    };
    assert_eq!(status("/files/***"), Some("unclear".into()), "{tested}");
    assert_eq!(status("DELETE http://server.test:80/admin/delete-all"), Some("denied".into()), "{tested}");
    assert_eq!(status("/innocent"), Some("allowed".into()), "{tested}");
    let id = world.create(&["--allow", "server.test", "--record", "other"]);
    let refused = world.run(&["exec", "-e", &variable, &id, "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("could not be kept out"), "{said}");
}

#[test]
fn nothing_goes_through_once_a_recording_has_ended() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let files = world.home.path().join("files/v1");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("noise"), noise()).unwrap();
    let id = create(&world, &server, &["--allow", "server.test", "--record", "r", "--record-max", "100k"]);
    let first = world.shell(&id, "curl -sS --http2 -D - https://server.test/v1/trailers");
    assert!(said(&first).contains("body") && said(&first).contains("x-late: late-value"), "{first}");
    world.shell(&id, "curl -sS https://server.test/v1/noise -o /dev/null");
    let mut last = Value::Null;
    until("it is refused", || {
        last = world.shell(&id, "curl -sS https://server.test/v1/after");
        last["denied"][0]["reason"] == "recording_ended"
    });
    let asked = server.asked().len();
    let again =
        world.shell(&id, "curl -sS --resolve server.test:443:93.184.215.14 https://server.test/v1/again");
    assert!(!again["denied"].as_array().unwrap().is_empty() && server.asked().len() == asked, "{again}");
    let flows = world.flows(&id);
    assert!(flows.iter().any(|flow| flow["reason"] == "recording_ended"), "{flows:?}");
    let told = |flow: &Value| {
        flow["host"] == "*" && flow.to_string().contains("the recording ended: it has as many")
    };
    until("it is told", || world.flows(&id).iter().any(told));
    remove(&world, &id);
    // What is there is said again, to what is behind it.
    let id = world.create(&["--replay", "r"]);
    let again = world.shell(&id, "curl -sS --http2 -D - https://server.test/v1/trailers");
    assert!(said(&again).contains("body") && said(&again).contains("x-late: late-value"), "{again}");
}

/// A file of which no two pieces are equal.
fn noise() -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(1 << 20).collect()
}

/// What is said after a connection has gone over to another protocol is no request, and no rule about requests allows it.
#[test]
fn a_web_socket_does_not_survive_rules_about_requests() {
    let world = World::new();
    let _server = echo();
    let id = world.create(&["--allow", "server.test", "--record", "ws"]);
    let stay = format!(
        "{SPEAK}\nopen('open', 'w').close()\ns.settimeout(None)\ntry: print(s.recv(1))\nexcept OSError: print(b'')\nopen('cut', 'w').close()"
    );
    world.json(&["exec", "-d", "--timeout", "100s", &id, "--", "python3", "-c", &stay, "one"]);
    until("it is open", || world.shell(&id, "test -e open")["exit_code"] == 0);
    let set = world.run(&["net", "set", &id, "--allow", "GET http://server.test/*"]);
    assert!(set.status.success(), "{set:?}");
    until("it is cut", || world.shell(&id, "test -e cut")["exit_code"] == 0);
    until("it is told", || world.flows(&id).iter().any(|flow| flow["reason"] == "unseen"));
}
