//! Recordings: the same run again, with the network in a file.

use std::io::{Read, Write};
use std::process::Command;

use serde_json::Value;

use crate::agents;
use crate::opened::{self, Server, create, said};
use crate::provider::{KEY, Provider};
use crate::world::{HttpServer, OTHER, Program, SERVER, World, listen, until, where_it_is};

/// Everything that a program says to hosts, by all ways that are recorded.
const ASK: &str = "set -e
curl -sS http://server.test/plain?x=1
curl -sS http://server.test/plain?x=1
curl -sS --http2 https://other.test/v1/two
curl -sS --http1.1 -d '{\"a\": 1, \"nonce\": \"'$NONCE'\"}' -H 'Content-Type: application/json' https://other.test/v1/one
curl -sS https://other.test/v1/big | sha256sum
python3 -c \"
import socket
s = socket.create_connection(('server.test', 9000), timeout=20)
print(s.recv(100)); s.sendall(b'hello\\n'); print(s.recv(100)); s.sendall(b'more\\n'); print(s.recv(100))\"
curl -sS http://nowhere.test/ || echo none";

/// A host that has the first word.
pub fn talker(address: &str) {
    let listener = listen(address);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let _ = stream.write_all(b"welcome");
                let mut bytes = [0; 100];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let _ = stream.write_all(format!("you said {count} bytes").as_bytes());
                }
            });
        }
    });
}

pub fn remove(world: &World, id: &str) {
    assert!(world.run(&["rm", "-f", id]).status.success());
}

#[test]
fn a_run_is_the_same_again_without_a_network() {
    let world = World::new();
    let plain = HttpServer::start(&format!("{SERVER}:80"));
    let server = Server::start(&world, OTHER, "", &["other.test"]);
    talker(&format!("{SERVER}:9000"));
    let options = [
        "--allow",
        "server.test:80",
        "--allow",
        "server.test:9000",
        "--allow",
        "other.test",
        "--allow",
        "nowhere.test",
    ];
    let id = create(&world, &server, &[&options[..], &["--record", "run"]].concat());
    let first = world.json(&["exec", "-e", "NONCE=1", &id, "--", "sh", "-c", ASK]);
    assert_eq!(first["exit_code"], 0, "{first}");
    assert!(said(&first).contains("served POST /v1/one by 1.1 with 22 bytes"), "{first}");
    assert!(said(&first).contains("by 2.0") && said(&first).contains("you said 6 bytes"), "{first}");
    remove(&world, &id);
    let (asked, asked_plain) = (server.asked().len(), plain.asked().len());
    let shown = world.json(&["recording", "show", "run"]);
    let kinds = |kind: &str| {
        shown["entries"].as_array().unwrap().iter().filter(|entry| entry["kind"] == kind).count()
    };
    assert_eq!((kinds("request"), kinds("stream")), (5, 1), "{shown}");
    // Nobody is there any more, and nobody is asked.
    for (nonce, options) in
        [("1", &[][..]), ("2", &["--ignore", "nonce"]), ("3", &["--match", "path,query", "--timing"])]
    {
        let id = world.create(&[&["--replay", "run"], options].concat());
        let again = world.json(&["exec", "-e", &format!("NONCE={nonce}"), &id, "--", "sh", "-c", ASK]);
        assert_eq!((said(&again), &again["exit_code"]), (said(&first), &first["exit_code"]), "{again}");
        assert_eq!(again["denied"], Value::Array(Vec::new()), "{again}");
        remove(&world, &id);
    }
    // What was not asked then is refused by name, beside what was.
    let id = world.create(&["--replay", "run"]);
    let ran = world.shell(&id, "curl -sS -d '{\"a\": 2}' -H 'Content-Type: application/json' https://other.test/v1/one; curl -sS http://unknown.test/; echo $?");
    for words in
        ["POST https://other.test/v1/one is not in the recording", "- /a: 1", "+ /a: 2", "- /nonce: \"1\""]
    {
        assert!(said(&ran).contains(words), "{words}: {ran}");
    }
    assert!(said(&ran).ends_with("6\n"), "{ran}");
    let reasons: Vec<_> =
        ran["denied"].as_array().unwrap().iter().map(|denial| denial["reason"].as_str()).collect();
    assert_eq!(reasons, [Some("not_recorded"), Some("not_recorded")], "{ran}");
    assert_eq!((server.asked().len(), plain.asked().len()), (asked, asked_plain));
    // The list, the archive, and the end of it.
    let listed = world.json(&["recording", "ls"]);
    assert_eq!(listed["recordings"][0]["name"], "run", "{listed}");
    let archive = world.run(&["recording", "export", "run", "-"]);
    let archive: Value = serde_json::from_slice(&archive.stdout).unwrap();
    assert_eq!(archive["log"]["entries"].as_array().unwrap().len(), 5);
    let again = world.run(&["create", "--net", "open", "--record", "run"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("already"), "{again:?}");
    remove(&world, &id);
    assert!(world.run(&["recording", "rm", "run"]).status.success());
    let gone = world.run(&["create", "--replay", "run"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no recording `run`"), "{gone:?}");
}

/// What is secret is in no recording, in whatever form.
#[test]
fn secrets_are_not_recorded() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let own = "plain-value-of-a-variable/+";
    let id = create(
        &world,
        &server,
        &[
            "--allow",
            "server.test",
            "-e",
            &format!("API_KEY={KEY}"),
            "-e",
            &format!("DSN={own}"),
            "--redact",
            "DSN",
            "--record",
            "r",
        ],
    );
    let ask = "set -e
ask() { curl -sS \"$@\" >> out; }
B=https://server.test/v1
ask -H \"Authorization: Bearer $API_KEY\" -H \"X-Api-Key: other-secret-1\" -H 'Cookie: a=other-secret-2' $B/x
ask -d \"{\\\"key\\\":\\\"$API_KEY\\\",\\\"dsn\\\":\\\"$DSN\\\"}\" $B/body
ask -u \"user:$DSN\" $B/basic
ask --data-urlencode \"x=$DSN\" $B/form
ask \"$B/query?api_key=other-secret-3&q=$API_KEY\"
ask \"$B/path/$API_KEY/x\"
printf %s \"$API_KEY\" | base64 | ask --data-binary @- $B/encoded
ask -H \"X-Own: $DSN\" $B/header";
    let ran = world.shell(&id, ask);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    assert!(server.asked().iter().any(|line| line.contains(KEY)), "the control: it was sent");
    remove(&world, &id);
    let file = world.home.path().join("recordings/r.bjr");
    until("it is finished", || std::fs::read(&file).unwrap().ends_with(b"bjrindex"));
    let mut everything = std::fs::read(&file).unwrap();
    everything.extend(world.run(&["recording", "export", "r", "-"]).stdout);
    everything.extend(world.run(&["recording", "show", "--json", "r"]).stdout);
    let text = String::from_utf8_lossy(&everything);
    assert!(text.contains("/v1/encoded"), "the control: it is there");
    let encoded =
        Command::new("sh").args(["-c", "printf %s \"$1\" | base64", "sh", KEY]).output().unwrap().stdout;
    let encoded = String::from_utf8(encoded).unwrap();
    for secret in [
        KEY,
        own,
        "other-secret",
        &own.replace('/', "%2F").replace('+', "%2B"),
        encoded.trim().trim_end_matches('='),
    ] {
        assert!(!text.contains(secret), "{secret}");
    }
    // And it is known again all the same.
    let id = world.create(&["--replay", "r", "-e", "API_KEY=another-key-that-is-there", "-e", "DSN=x"]);
    let ran = world.shell(&id, "curl -sS -H \"Authorization: Bearer $API_KEY\" https://server.test/v1/x");
    assert!(said(&ran).starts_with("served GET /v1/x"), "{ran}");
}

/// Tools that fetch what people build on: the same files again, to the byte, with every registry unreachable.
#[test]
fn installations_are_the_same_again() {
    let world = World::new();
    opened::furnish(&world);
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let make = "import zipfile
with zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('tiny.py', 'print(1)')
    z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')
    z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('tiny-1.0.dist-info/RECORD', '')";
    let files = world.home.path().join("files/v1");
    assert!(Command::new("python3").args(["-c", make]).current_dir(&files).status().unwrap().success());
    let npm = "mkdir -p package && echo '{\"name\":\"small\",\"version\":\"1.0.0\"}' > package/package.json && echo 1 > package/index.js && tar czf small.tgz package";
    assert!(Command::new("sh").args(["-c", npm]).current_dir(&files).status().unwrap().success());
    let install = "set -e
git clone -q https://server.test/v1/git cloned
mkdir -p c/src && cd c && touch src/lib.rs
printf '[package]\\nname=\"a\"\\nversion=\"0.1.0\"\\n[dependencies]\\nb={version=\"1\",registry=\"own\"}\\n' > Cargo.toml
CARGO_HOME=$HOME/c/home cargo fetch -q --config \"registries.own.index='sparse+https://server.test/v1/cargo/'\"
cd .. && pip install -q --no-compile --target site https://server.test/v1/tiny-1.0-py3-none-any.whl
npm install --silent --no-audit --no-fund --prefix node https://server.test/v1/small.tgz
find cloned site node/node_modules c/home/registry/src -type f ! -path '*/.git/*' ! -name .package-lock.json ! -name .cargo-ok | sort | xargs sha256sum";
    let run = |id: &str| world.json(&["exec", "--timeout", "200s", id, "--", "sh", "-c", install]);
    let id = create(&world, &server, &["--allow", "server.test", "--record", "install", "--ttl", "10m"]);
    let first = run(&id);
    assert_eq!(first["exit_code"], 0, "{first}");
    for name in ["cloned/file", "site/tiny.py", "small/index.js", "b-1.0.0/Cargo.toml"] {
        assert!(said(&first).contains(name), "{name}: {first}");
    }
    remove(&world, &id);
    let asked = server.asked().len();
    drop(server);
    let id = world.create(&["--replay", "install", "--ttl", "10m"]);
    let again = run(&id);
    assert_eq!((said(&again), &again["exit_code"]), (said(&first), &first["exit_code"]), "{again}");
    assert!(asked > 5);
}

/// What an agent says it did, without what is another each time.
fn events(said: &str) -> Vec<String> {
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .map(|event| {
            let [kind, subtype, result] = ["type", "subtype", "result"].map(|name| event[name].clone());
            let content = &event["message"]["content"];
            let parts = content.as_array().into_iter().flatten().map(|part| {
                // What its tools said is another: there is another reason for which something is out of reach.
                let [text, input] = ["text", "input"].map(|name| part[name].clone());
                format!("{} {text} {input}", part["type"])
            });
            format!("{kind} {subtype} {result} {}", parts.collect::<String>())
        })
        .collect()
}

/// An agent's session with its model, streams and all, once the model is gone.
#[test]
fn an_agent_works_again_without_its_model() {
    let world = World::new();
    let provider = Provider::start(agents::as_anthropic);
    agents::set_up(&world, "anthropic", &provider);
    let file = format!("{}:/home/user/agent", agents::claude().display());
    let options = ["--memory", "3g", "--disk", "3g", "--ttl", "10m", "--file", &file];
    let work = |id: &str| {
        let ran = world.json(&["exec", "--timeout", "3m", id, "--", "sh", "-c", agents::CLAUDE]);
        let made = world.shell(id, "cat made");
        (events(said(&ran)), ran["exit_code"].clone(), made["stdout"].clone())
    };
    let id = world.create(&[&options[..], &["--grant", "llm:chat", "--record", "session"]].concat());
    let first = work(&id);
    assert!(first.2 == "made\n" && first.0.len() > 4, "{first:?}");
    remove(&world, &id);
    let asked = provider.got().len();
    std::fs::remove_file(world.home.path().join("gateway.toml")).unwrap();
    let id = world.create(&[&options[..], &["--replay", "session", "--match", "path", "--timing"]].concat());
    assert_eq!(work(&id), first);
    assert_eq!(provider.got().len(), asked, "nobody was asked");
    let raw = std::fs::read(world.home.path().join("recordings/session.bjr")).unwrap();
    let shown = world.run(&["recording", "export", "session", "-"]).stdout;
    for place in [raw, shown] {
        let text = String::from_utf8_lossy(&place).into_owned();
        let token =
            text.match_indices("bjt_").map(|(at, _)| text[at + 4..].chars().take(16).collect::<String>());
        let bare: Vec<String> =
            token.filter(|digits| digits.chars().all(|digit| digit.is_ascii_hexdigit())).collect();
        assert!(!text.contains(KEY) && bare.is_empty(), "{bare:?}");
    }
}

/// What a policy would have stopped is what it stops.
#[test]
fn a_policy_is_tried_on_what_happened() {
    let world = World::new();
    let _plain = HttpServer::start(&format!("{SERVER}:80"));
    let server = Server::start(&world, OTHER, "", &["other.test"]);
    talker(&format!("{SERVER}:9000"));
    let ask = "curl -sS http://server.test/one; curl -sS -d x http://server.test/two; curl -sS https://other.test/v1/a
curl -sS -X DELETE https://other.test/v1/b; curl -sS https://other.test/v2/c
python3 -c \"import socket; print(socket.create_connection(('server.test', 9000), timeout=5).recv(9))\"; true";
    let id = create(&world, &server, &["--net", "open", "--record", "all"]);
    let ran = world.shell(&id, ask);
    assert_eq!((ran["exit_code"].as_u64(), &ran["denied"]), (Some(0), &Value::Array(Vec::new())), "{ran}");
    remove(&world, &id);
    for rules in [
        &["--allow", "GET http://server.test/*", "--allow", "GET,DELETE https://other.test/v1/*"][..],
        &["--allow", "other.test"],
        &["--net", "open", "--deny", "DELETE https://other.test/*", "--deny", "server.test:9000"],
        &[
            "--allow",
            "server.test:80",
            "--allow",
            "server.test:9000",
            "--allow",
            "GET https://other.test/v2/*",
        ],
    ] {
        let tested = world.json(&[&["policy", "test"], rules, &["--recording", "all"]].concat());
        let judged =
            |word: &Value| (word["url"].as_str().unwrap().to_owned(), word["allowed"].as_bool().unwrap());
        let tested: Vec<_> = tested["results"].as_array().unwrap().iter().map(judged).collect();
        assert_eq!(tested.len(), 6, "{tested:?}");
        let id = create(&world, &server, rules);
        world.shell(&id, ask);
        let flows = world.flows(&id);
        for (url, allowed) in &tested {
            let (host, what) = match url.split_once(' ') {
                None => ("server.test", None),
                Some((method, rest)) => {
                    let (host, path) = rest.split_once("://").unwrap().1.split_once(':').unwrap();
                    let path = &path[path.find('/').unwrap()..];
                    (host, Some(format!("{method} {path}")))
                }
            };
            let mine: Vec<_> = flows
                .iter()
                .filter(|flow| {
                    let is_it = match &what {
                        // What nobody looks into is allowed as a whole.
                        Some(what) => {
                            flow["request"] == what.as_str()
                                || (flow["kind"] == "tls" && flow["request"].is_null())
                        }
                        None => flow["port"] == 9000,
                    };
                    flow["host"] == host && is_it
                })
                .collect();
            // Where the host is out of reach, there is no request to be seen.
            let went = mine.iter().any(|flow| flow["verdict"] != "denied");
            assert_eq!(went, *allowed, "{rules:?} {url}: {mine:?}");
        }
    }
}

/// A server of WebSocket that says back what it hears.
const ECHO: &str = "import base64, hashlib, socket, sys, threading
def serve(s):
    head = b''
    while b'\\r\\n\\r\\n' not in head: head += s.recv(1000)
    key = [l.split(b':')[1].strip() for l in head.split(b'\\r\\n') if l.lower().startswith(b'sec-websocket-key')][0]
    accept = base64.b64encode(hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
    s.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + accept + b'\\r\\n\\r\\n')
    s.sendall(b'\\x81\\x05' + (b'packs' if b'extensions' in head.lower() else b'hello'))
    while True:
        two = s.recv(2, socket.MSG_WAITALL)
        if len(two) < 2: return s.close()
        mask = s.recv(4, socket.MSG_WAITALL); data = s.recv(two[1] & 127, socket.MSG_WAITALL)
        text = b'you said ' + bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        s.sendall(bytes([0x81, len(text)]) + text)
l = socket.create_server((sys.argv[1], 80)); print('ready', flush=True)
while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()";

pub fn echo() -> Program {
    let mut command = Command::new("python3");
    command.args(["-c", ECHO, SERVER]).stdout(std::process::Stdio::piped());
    let mut child = where_it_is(SERVER, || command.spawn().unwrap());
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    Program(child)
}

/// A client of it, which masks what it says with other numbers each time.
pub const SPEAK: &str = "import base64, os, socket, sys
s = socket.create_connection(('server.test', 80), timeout=20)
key = base64.b64encode(os.urandom(16)).decode()
s.sendall(f'GET /ws?x=1 HTTP/1.1\\r\\nHost: server.test\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Key: {key}\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Extensions: permessage-deflate\\r\\n\\r\\n'.encode())
head = b''
while b'\\r\\n\\r\\n' not in head: head += s.recv(1)
print(head.split()[1])
def hear():
    two = s.recv(2, socket.MSG_WAITALL); print(s.recv(two[1], socket.MSG_WAITALL))
hear()
for word in sys.argv[1:]:
    mask = os.urandom(4)
    s.sendall(bytes([0x81, 0x80 | len(word)]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(word.encode()))); hear()";

#[test]
fn web_sockets_are_the_same_again() {
    let world = World::new();
    let server = echo();
    let speak =
        |id: &str, words: &[&str]| world.json(&[&["exec", id, "--", "python3", "-c", SPEAK], words].concat());
    let id = world.create(&["--allow", "server.test", "--record", "ws"]);
    let first = speak(&id, &["one", "two"]);
    assert_eq!(said(&first), "b'101'\nb'hello'\nb'you said one'\nb'you said two'\n", "{first}");
    let flows = world.flows(&id);
    until("it is told", || world.flows(&id).iter().any(|flow| flow["request"] == "GET /ws?x=1"));
    assert!(flows.iter().all(|flow| flow["verdict"] == "allowed"), "{flows:?}");
    remove(&world, &id);
    drop(server);
    let id = world.create(&["--replay", "ws"]);
    assert_eq!(said(&speak(&id, &["one", "two"])), said(&first));
    let id = world.create(&["--replay", "ws"]);
    let other = speak(&id, &["one", "three"]);
    assert!(other["exit_code"] != 0 && other["denied"][0]["reason"] == "not_recorded", "{other}");
    assert!(other["denied"][0]["what"].as_str().unwrap().contains("another from byte"), "{other}");
}

/// A sandbox that is answered from a recording takes no more of the door's memory than another.
#[test]
fn long_bodies_at_a_recording_take_little_memory() {
    let world = World::new();
    let _plain = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "server.test", "--record", "r"]);
    assert!(said(&world.shell(&id, "curl -sS -d x http://server.test/x")).contains("served"));
    remove(&world, &id);
    let id = world.create(&["--replay", "r", "--memory", "256m"]);
    let script = "import socket, threading, time
sent = []
def send():
    s = socket.create_connection(('server.test', 80), timeout=60)
    try:
        s.sendall(b'POST /x HTTP/1.1\\r\\nHost: server.test\\r\\nContent-Length: 15000000\\r\\n\\r\\n')
        for _ in range(149): s.sendall(b'x' * 100000); sent.append(1)
        time.sleep(60)
    except OSError: pass
for _ in range(40): threading.Thread(target=send, daemon=True).start()
# Until nobody takes any more of them.
before = 0
while not before or len(sent) > before: before = len(sent); time.sleep(1)
open('held', 'w').close()
time.sleep(60)";
    world.json(&["exec", "-d", "--timeout", "100s", &id, "--", "python3", "-c", script]);
    until("they are held", || world.shell(&id, "test -e held")["exit_code"] == 0);
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.door("worker").unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 200 << 10, "{kib} KiB");
    let ran = world.shell(&world.create(&["--replay", "r"]), "curl -sS -d x http://server.test/x");
    assert!(said(&ran).contains("served"), "{ran}");
}
