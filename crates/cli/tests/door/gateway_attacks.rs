//! What was tried against the gateway.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::provider::{ASK, KEY, Provider, amend, calls, gateway, message, send, set_up};
use crate::world::{World, until};

#[test]
fn long_bodies_of_one_sandbox_do_not_fill_the_gateway() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat", "--memory", "256m"]);
    let other = world.create(&["--grant", "llm:chat"]);
    world.shell(&other, ASK);
    // Twenty bodies of thirty megabytes that never end.
    let script = "import os, socket, threading, time
held, sent = [], []
def send():
    s = socket.create_connection(('gateway.belljar', 80), timeout=600); held.append(s)
    s.sendall(f'POST /anthropic/v1/messages HTTP/1.1\\r\\nHost: gateway.belljar\\r\\nx-api-key: {os.environ[\"BELLJAR_TOKEN\"]}\\r\\nContent-Length: 31000000\\r\\n\\r\\n'.encode())
    try:
        for _ in range(300): s.sendall(b'x' * 100000); sent.append(1)
    except OSError: pass
threads = [threading.Thread(target=send, daemon=True) for _ in range(20)]
for t in threads: t.start()
# Until nobody takes any more of them.
before = 0
while not before or len(sent) > before: before = len(sent); time.sleep(1)
print('sent', len(sent), flush=True)
time.sleep(600)";
    let out = world.home.path().join("sent");
    let mut command = world.command(&["exec", "--timeout", "600s", &id, "--", "python3", "-c", script]);
    let child = command.stdout(std::fs::File::create(&out).unwrap()).spawn().unwrap();
    let _program = crate::world::Program(child);
    until("all is sent that can be", || std::fs::read_to_string(&out).unwrap().ends_with('\n'));
    let sent = std::fs::read_to_string(&out).unwrap();
    let pieces: u64 = sent.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(pieces > 300, "at least one whole body was taken: {sent}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway(&world))).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 300 << 10, "{kib} KiB");
    // A neighbour does not notice.
    let ran = world.shell(&other, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
}

/// However an upstream says a key back.
#[test]
fn a_key_that_is_said_back_is_not_passed_on() {
    let world = World::new();
    let provider = Provider::start(|got, stream| {
        let key = got.header("x-api-key").unwrap_or_default().to_owned();
        let ways = got.json()["way"].as_str().unwrap_or_default().to_owned();
        let (reason, headers, body) = match ways.as_str() {
            "header" => ("OK".to_owned(), format!("x-echo: {key}\r\n").into_bytes(), "{}".to_owned()),
            "odd header" => {
                ("OK".to_owned(), [&b"x-echo: \xff"[..], key.as_bytes(), b"\r\n"].concat(), "{}".to_owned())
            }
            "reason" => (format!("you gave {key}"), Vec::new(), "{}".to_owned()),
            "encoded" => ("OK".to_owned(), b"content-encoding: x-odd\r\n".to_vec(), key),
            "compressed" => ("OK".to_owned(), b"content-encoding: gzip\r\n".to_vec(), key),
            "range" => (
                "OK".to_owned(),
                format!("x-range: {:?}\r\n", got.header("range")).into_bytes(),
                "{}".to_owned(),
            ),
            _ => {
                let error = json!({ "type": "error", "error": { "type": "bad", "message": format!("wrong key {key}") } });
                ("OK".to_owned(), Vec::new(), error.to_string())
            }
        };
        let head = format!("HTTP/1.1 200 {reason}\r\ncontent-length: {}\r\n", body.len());
        let _ = stream.write_all(&[head.as_bytes(), &headers, b"\r\n", body.as_bytes()].concat());
    });
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    for way in ["header", "odd header", "reason", "encoded", "compressed", "range", "error"] {
        let body = format!("BODY={{\"model\":\"small\",\"way\":\"{way}\"}}");
        let script = format!("{ASK} -i -H 'Range: bytes=0-5' | base64 -w0");
        let ran = world.json(&["exec", "-e", &body, &id, "--", "sh", "-c", &script]);
        let said = ran["stdout"].as_str().unwrap();
        let decoded = std::process::Command::new("base64")
            .args(["-d"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .and_then(|mut child| {
                child.stdin.take().unwrap().write_all(said.as_bytes())?;
                child.wait_with_output()
            })
            .unwrap();
        let text = String::from_utf8_lossy(&decoded.stdout);
        assert!(
            text.starts_with("HTTP/1.1 ") && !text.contains(KEY) && !text.contains("bytes=0-5"),
            "{way}: {text}"
        );
    }
    assert!(provider.got().iter().all(|got| got.header("x-api-key") == Some(KEY)), "the control");
    until("all are told", || calls(&world, &id).len() == 7);
    let told = calls(&world, &id);
    assert!(!format!("{told:?}").contains(KEY), "{told:?}");
    assert!(
        told.iter().any(|call| call["error"].as_str().is_some_and(|error| error.contains("wrong key ***"))),
        "{told:?}"
    );
}

#[test]
fn what_could_pass_unseen_does_not() {
    let world = World::new();
    let provider = Provider::start(|_, stream| send(stream, "200 OK", "{}"));
    let more = format!(
        "[operations.\"data:read\"]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{}\"\nmethods = [\"GET\", \"POST\"]\n\
         paths = [\"/v1/*\"]\ndeny = [\"danger\"]\n[budget.session]\ndollars = 1\n",
        provider.port
    );
    set_up(&world, &provider, &more);
    amend(&world, "models = [\"small\"]\n", "");
    let id = world.create(&["--net", "open", "--grant", "llm:chat", "--grant", "data:read"]);
    let ask = |words: &str| {
        let script = format!("curl -sS --max-time 20 -H \"x-api-key: $BELLJAR_TOKEN\" {words}");
        world.shell(&id, &script)["stdout"].as_str().unwrap().to_owned()
    };
    let data = "http://gateway.belljar/data/read/v1/x";
    for words in [
        format!("-X GET -d '{{\"danger\":1}}' {data}"),
        format!("-d '{{\"danger\":\"\\ud800\"}}' {data}"),
        format!("-H 'X-HTTP-Method-Override: DELETE' {data}"),
        format!("-H 'X-Original-URL: /admin' {data}"),
        // There is a budget in dollars, and nobody knows what this one costs.
        "-d '{\"model\":\"priceless\"}' http://gateway.belljar/anthropic/v1/messages".to_owned(),
    ] {
        let said = ask(&words);
        assert!(said.contains("Belljar refused"), "{words}: {said}");
    }
    // What is HTTP to the gateway is HTTP to the door, in every mode.
    let script = "import os, socket
s = socket.create_connection(('gateway.belljar', 80), timeout=10)
s.sendall(b'G' * 17000 + b' /data/read/v1/x HTTP/1.1\\r\\nHost: gateway.belljar\\r\\n\\r\\n' + f'GET /data/read/v1/x HTTP/1.1\\r\\nHost: gateway.belljar\\r\\nx-api-key: {os.environ[\"BELLJAR_TOKEN\"]}\\r\\n\\r\\n'.encode())
try: print(s.recv(100)[:12])
except OSError as error: print(type(error).__name__)";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    assert!(!ran["stdout"].as_str().unwrap().contains("200"), "{ran}");
    assert_eq!(provider.got().len(), 0, "{:?}", provider.got());
    assert_eq!(ask(data), "{}", "the control");
}

/// What people try with tokens of other kinds, and with ours.
#[test]
fn tokens_that_are_none_open_nothing() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let script = "import base64, json, os, urllib.request, urllib.error
own = os.environ['BELLJAR_TOKEN']
def part(value): return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip('=')
def jwt(head, claims, sign='c2ln'): return '.'.join([part(head), part(claims), sign])
claims = {'sub': 'admin', 'operations': ['*'], 'exp': 99999999999, 'sandbox': 'any'}
heads = [{'alg': a} for a in ('none', 'None', 'NONE', 'nOnE', 'HS256', 'RS256', 'ES256', '')]
heads += [{'alg': 'HS256', 'kid': k} for k in ('../../../../dev/null', \"' OR 1=1 --\", '/etc/hostname', 'http://server.test/k')]
heads += [{'alg': 'RS256', k: 'http://server.test/k'} for k in ('jku', 'x5u')] + [{'alg': 'HS256', 'jwk': {'kty': 'oct', 'k': ''}}]
tokens = [jwt(h, claims) for h in heads] + [jwt(heads[0], claims, ''), jwt(heads[0], {**claims, 'iat': -1}), jwt(heads[0], {**claims, 'exp': -1})]
tokens += ['', ' ', '0', 'null', 'undefined', 'true', '[]', '{}', '*', 'bjt_', 'bjt_*', 'bjt_%', 'Bearer', 'Bearer ' + own, own[:-1], own + 'A', own + own, own[::-1], own.swapcase(), own.replace('bjt_', 'BJT_'), own[4:], 'bjt_' + 'A' * 43, 'bjt_' + 'A' * 60000, own + ' ', own + ',' + own, own + ';x', '\"' + own + '\"', own + '%00', own.replace('_', '-')]
def ask(token, header='x-api-key'):
    request = urllib.request.Request(os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages', b'{\"model\":\"small\"}', {header: token})
    try: return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error: return error.code
    except OSError: return 0
# White space around a header's value is not part of it.
worthless = [token for token in tokens if token.strip() != own]
print(len(worthless), [t[:80] for t in worthless if ask(t) == 200], [t[:80] for t in worthless if ask('Bearer ' + t, 'authorization') == 200 and t != 'Bearer ' + own])
for place in ('?token=', '?key=', '?api_key='):
    request = urllib.request.Request(os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages' + place + own, b'{\"model\":\"small\"}')
    try: print(urllib.request.urlopen(request, timeout=20).status)
    except urllib.error.HTTPError as error: print('refused')
print(ask(own), ask('Bearer ' + own, 'authorization'))";
    let ran = world.json(&["exec", "--timeout", "120s", &id, "--", "python3", "-c", script]);
    let said = ran["stdout"].as_str().unwrap();
    assert_eq!(said, "46 [] []\nrefused\nrefused\nrefused\n200 200\n", "{ran}");
    assert_eq!(provider.got().len(), 2);
}

/// An answer without end, to one who does not read it; and one that comes a byte at a time.
#[test]
fn slow_readers_and_slow_upstreams_cost_little() {
    let world = World::new();
    let written = Arc::new(Mutex::new(0_usize));
    let count = written.clone();
    let provider = Provider::start(move |got, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        if got.json()["slow"] == true {
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
            return;
        }
        while stream.write_all(&[b' '; 65536]).is_ok() {
            *count.lock().unwrap() += 65536;
        }
    });
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let other = world.create(&["--grant", "llm:chat"]);
    let script = "import os, socket, time
held = []
for number in range(40):
    s = socket.create_connection(('gateway.belljar', 80), timeout=20); held.append(s)
    body = b'{\"model\":\"small\",\"slow\":' + (b'true' if number % 2 else b'false') + b'}'
    s.sendall(f'POST /anthropic/v1/messages HTTP/1.1\\r\\nHost: gateway.belljar\\r\\nx-api-key: {os.environ[\"BELLJAR_TOKEN\"]}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n'.encode() + body)
print('held', flush=True)
time.sleep(600)";
    let out = world.home.path().join("held");
    let mut command = world.command(&["exec", "--timeout", "600s", &id, "--", "python3", "-c", script]);
    let child = command.stdout(std::fs::File::create(&out).unwrap()).spawn().unwrap();
    let _program = crate::world::Program(child);
    until("all have asked", || provider.got().len() == 40);
    let mut last = 0;
    until("nobody takes any more", || {
        let now = *written.lock().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        now > 0 && now == std::mem::replace(&mut last, now)
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway(&world))).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 100 << 10, "{kib} KiB for 40 answers of which {last} bytes were taken");
    // A neighbour is answered at once.
    let ran = world.shell(&other, &format!("BODY='{{\"model\":\"large\"}}'; {ASK}"));
    assert!(ran["stdout"].as_str().unwrap().contains("Belljar refused"), "{ran}");
}

/// A body that is long in coming, and a token that is taken back meanwhile.
#[test]
fn a_call_does_not_begin_once_its_token_is_revoked() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let script = "import os, socket, time
body = b'{\"model\":\"small\"}'
s = socket.create_connection(('gateway.belljar', 80), timeout=30)
s.sendall(f'POST /anthropic/v1/messages HTTP/1.1\\r\\nHost: gateway.belljar\\r\\nx-api-key: {os.environ[\"BELLJAR_TOKEN\"]}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n'.encode() + body[:-1])
open('sent', 'w').close()
while not os.path.exists('go'): time.sleep(0.05)
s.sendall(body[-1:]); print(s.recv(20))";
    let exec = world.json(&["exec", "-d", "--timeout", "60s", &id, "--", "python3", "-c", script])["exec"]
        .to_string();
    until("most of it is sent", || world.shell(&id, "test -e sent")["exit_code"] == 0);
    let token = world.json(&["token", "ls", &id])["tokens"][0]["token_id"].as_str().unwrap().to_owned();
    assert!(world.run(&["token", "revoke", &id, &token]).status.success());
    assert_eq!(world.shell(&id, "touch go")["exit_code"], 0);
    let said = world.run(&["attach", &id, &exec]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("403"), "{said:?}");
    assert_eq!(provider.got().len(), 0);
}

/// Bodies that are announced and do not come, from many sandboxes.
#[test]
fn announcing_much_holds_nobody_up() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let script = "import os, socket, time
held = []
for _ in range(4):
    s = socket.create_connection(('gateway.belljar', 80), timeout=30); held.append(s)
    s.sendall(f'POST /anthropic/v1/messages HTTP/1.1\\r\\nHost: gateway.belljar\\r\\nx-api-key: {os.environ[\"BELLJAR_TOKEN\"]}\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\n{{\\r\\n'.encode())
open('held', 'w').close()
time.sleep(60)";
    for _ in 0..9 {
        let id = world.create(&["--grant", "llm:chat"]);
        world.json(&["exec", "-d", "--timeout", "60s", &id, "--", "python3", "-c", script]);
        until("they are held", || world.shell(&id, "test -e held")["exit_code"] == 0);
    }
    let ran = world.shell(&world.create(&["--grant", "llm:chat"]), ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
}

#[test]
fn tokens_in_queries_are_not_written_down() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let ran = world.shell(
        &id,
        "curl -sS \"$BELLJAR_GATEWAY/gemini/v1beta/x?key=$BELLJAR_TOKEN\"; echo; echo $BELLJAR_TOKEN",
    );
    let token = ran["stdout"].as_str().unwrap().trim().lines().last().unwrap().to_owned();
    assert!(token.starts_with("bjt_"), "{ran}");
    until("it is told", || {
        world
            .flows(&id)
            .iter()
            .any(|flow| flow["request"].as_str().is_some_and(|text| text.contains("key=bjt_***")))
    });
    let written = std::process::Command::new("grep")
        .args(["-rlaF", &token, "--exclude-dir=spool"])
        .arg(world.home.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&written.stdout), "");
}
