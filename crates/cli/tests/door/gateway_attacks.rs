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

/// Bodies that take much more memory to understand than to send.
#[test]
fn no_body_is_too_much_for_the_gateway() {
    let world = World::new();
    let provider = Provider::start(message);
    let more = format!(
        "[operations.\"data:read\"]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{}\"\nmethods = [\"POST\"]\npaths = [\"/v1/*\"]\ndeny = [\"danger\"]\n",
        provider.port
    );
    set_up(&world, &provider, &more);
    let id = world.create(&["--grant", "llm:chat", "--grant", "data:read", "--memory", "512m"]);
    assert!(world.shell(&id, ASK)["stdout"].as_str().unwrap().contains("msg_1"));
    let before = gateway(&world);
    let script = "import os, sys, threading, urllib.request, urllib.error
token, base = os.environ['BELLJAR_TOKEN'], os.environ['BELLJAR_GATEWAY']
def ask(path, name, item, size):
    body = ('{\"model\":\"small\",\"' + name + '\":[' + ','.join([item] * (size // (len(item) + 1))) + ']}').encode()
    request = urllib.request.Request(base + path, body, {'x-api-key': token})
    try: said = urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error: said = error.code
    except OSError as error: said = error
    sys.stdout.write(f'{name} {said}\\n')
for name in ('mcp_servers', 'model', 'tools', 'stream', 'plugins'): ask('/anthropic/v1/messages', name, '{\"\":0}', 31 << 20)
for name in ('danger', 'fine'): ask('/data/read/v1/x', name, '{\"\":0}', 31 << 20)
threads = [threading.Thread(target=ask, args=('/anthropic/v1/messages', 'tools', '{}', 2 << 20)) for _ in range(12)]
for t in threads: t.start()
for t in threads: t.join()";
    let ran = world.json(&["exec", "--timeout", "240s", &id, "--", "python3", "-c", script]);
    let said = ran["stdout"].as_str().unwrap();
    assert_eq!(said.lines().count(), 19, "{ran}");
    let expected =
        ["mcp_servers 400", "model 400", "tools 400", "stream 400", "plugins 400", "danger 400", "fine 200"];
    assert_eq!(said.lines().take(7).collect::<Vec<_>>(), expected, "{ran}");
    assert!(said.lines().skip(7).all(|line| ["tools 400", "tools 429"].contains(&line)), "{said}");
    assert_eq!(gateway(&world), before, "it lives");
}

/// What is cut off on its way has been on its way.
#[test]
fn bodies_that_are_too_long_count() {
    let world = World::new();
    let provider = Provider::start(|_, stream| send(stream, "200 OK", "{}"));
    let more = format!(
        "[operations.\"data:write\"]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{}\"\nmethods = [\"POST\"]\npaths = [\"/v1/*\"]\nmax_body = \"64k\"\n",
        provider.port
    );
    set_up(&world, &provider, &more);
    let id = world.create(&["--grant", "data:write", "--budget-requests", "1"]);
    let script = "head -c 1000000 /dev/zero > f; for i in 1 2 3; do curl -sS -o /dev/null -w '%{http_code} ' -H 'Transfer-Encoding: chunked' \
        -H \"x-api-key: $BELLJAR_TOKEN\" --data-binary @f $BELLJAR_GATEWAY/data/write/v1/x; done";
    let ran = world.shell(&id, script);
    assert!(!ran["stdout"].as_str().unwrap().contains("200"), "{ran}");
    until("all are told", || calls(&world, &id).len() == 3);
    let told: Vec<_> =
        calls(&world, &id).iter().map(|call| (call["error"].clone(), call["refused"].clone())).collect();
    let expected =
        [("body_too_large: the body is too long", false), ("budget_used_up", true), ("budget_used_up", true)];
    assert_eq!(told, expected.map(|(error, refused)| (json!(error), json!(refused))));
}

/// What a request has a model read that is not in it is set aside too.
#[test]
fn input_that_is_kept_elsewhere_is_set_aside() {
    let world = World::new();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let provider = Provider::start(move |got, stream| {
        let _ = wait.lock().unwrap().recv();
        message(got, stream);
    });
    set_up(&world, &provider, "");
    amend(&world, "max_output = 100\n", "max_output = 100\nmax_input = 5000\n");
    let id = world.create(&["--grant", "llm:chat", "--budget-tokens", "9000"]);
    let body =
        "BODY={\"model\":\"small\",\"messages\":[{\"content\":[{\"source\":{\"\\u0066ile_id\":\"f\"}}]}]}";
    world.json(&["exec", "-d", "-e", body, &id, "--", "sh", "-c", ASK]);
    until("one is under way", || provider.got().len() == 1);
    let ran = world.json(&["exec", "-e", body, &id, "--", "sh", "-c", ASK]);
    assert!(ran["stdout"].as_str().unwrap().contains("budget of 9000 tokens"), "{ran}");
    go_on.send(()).unwrap();
    until("it is told", || calls(&world, &id).len() == 2);
    // What is in the request is set aside as it is.
    go_on.send(()).unwrap();
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
}

/// Bodies that come slowly, once there was more than a little of them.
#[test]
fn slow_bodies_hold_nobody_up() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let script = "import os, socket, time
held = []
for length in ('Content-Length: 31000000', 'Transfer-Encoding: chunked'):
    s = socket.create_connection(('gateway.belljar', 80), timeout=30); held.append(s)
    s.sendall(f'POST /anthropic/v1/messages HTTP/1.1\\r\\nHost: gateway.belljar\\r\\nx-api-key: {os.environ[\"BELLJAR_TOKEN\"]}\\r\\n{length}\\r\\n\\r\\n'.encode())
    some = b' ' * 140000
    s.sendall(b'%x\\r\\n%s\\r\\n' % (len(some), some) if 'chunked' in length else some)
open('held', 'w').close()
time.sleep(60)";
    for _ in 0..9 {
        let id = world.create(&["--grant", "llm:chat"]);
        world.json(&["exec", "-d", "--timeout", "60s", &id, "--", "python3", "-c", script]);
        until("they are held", || world.shell(&id, "test -e held")["exit_code"] == 0);
    }
    let id = world.create(&["--grant", "llm:chat"]);
    let ask = "(printf '{\"model\":\"small\",\"x\":\"'; head -c 20000000 /dev/zero | tr '\\0' x; printf '\"}') > body; \
        curl -sS --max-time 30 -H \"x-api-key: $BELLJAR_TOKEN\" -d @body $ANTHROPIC_BASE_URL/v1/messages | head -c 3000";
    let ran = world.shell(&id, ask);
    assert!(ran["stdout"].as_str().unwrap().contains("you said"), "{ran}");
}

/// What was read as JSON is JSON to whoever gets it; and credentials are found however they are written.
#[test]
fn what_goes_on_is_what_was_read() {
    let world = World::new();
    let provider = Provider::start(|_, stream| send(stream, "200 OK", "{}"));
    let more = format!(
        "[operations.\"data:write\"]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{0}\"\nsecret = \"key\"\nheader = \"x-key\"\nmethods = [\"POST\"]\n\
         paths = [\"/v1/*\"]\ndeny = [\"danger\"]\n\
         [operations.\"llm:gem\"]\nkind = \"gemini\"\nupstream = \"http://127.0.0.1:{0}\"\nsecret = \"key\"\n\
         [operations.\"llm:open\"]\nkind = \"openai-chat\"\nupstream = \"http://127.0.0.1:{0}\"\nsecret = \"key\"\nmodels = [\"small\"]\n",
        provider.port
    );
    set_up(&world, &provider, &more);
    let id = world.create(&["--grant", "data:write", "--grant", "llm:gem", "--grant", "llm:open"]);
    let ask = |words: &str| {
        let script = format!("curl -sS -w ' %{{http_code}}' -H \"x-api-key: $BELLJAR_TOKEN\" {words}");
        world.shell(&id, &script)["stdout"].as_str().unwrap().to_owned()
    };
    let form =
        "-H 'Content-Type: application/x-www-form-urlencoded' -H 'X_Key: own' -H 'Authorization_: own'";
    assert_eq!(
        ask(&format!("{form} -d '{{\"a\":\"&danger=1\"}}' $BELLJAR_GATEWAY/data/write/v1/x")),
        "{} 200"
    );
    let got = provider.got().pop().unwrap();
    assert_eq!((got.header("content-type"), got.header("x-key")), (Some("application/json"), Some(KEY)));
    assert!(!format!("{got:?}").contains("own"), "{got:?}");
    let query = "?alt=sse&%6bey=ATT&KEY=ATT&access_token=ATT";
    assert_eq!(
        ask(&format!("-d '{{}}' \"$BELLJAR_GATEWAY/gemini/v1beta/models/g:generateContent{query}\"")),
        "{} 200"
    );
    let got = provider.got().pop().unwrap();
    assert!(got.line.contains("?alt=sse ") && !format!("{got:?}").contains("ATT"), "{got:?}");
    let count = provider.got().len();
    let chat = "$BELLJAR_GATEWAY/openai/v1/chat/completions";
    for words in [
        format!("-d '{{\"model\":\"small\",\"models\":[\"large\"]}}' {chat}"),
        format!("-d '{{\"model\":\"small\",\"api_base\":\"http://server.test\"}}' {chat}"),
        format!("-d '{{\"model\":\"small\",\"enable_search\":true}}' {chat}"),
        format!("-d '{{\"model\":\"small\"}}' '{chat}?%6dodel=large'")
            .replace("'$BELLJAR_GATEWAY", "$BELLJAR_GATEWAY'"),
    ] {
        let said = ask(&words);
        assert!(said.ends_with(" 400") && said.contains("Belljar refused"), "{words}: {said}");
    }
    assert_eq!(provider.got().len(), count);
}
