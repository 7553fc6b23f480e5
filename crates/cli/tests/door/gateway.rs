//! The gateway: calls that need a key, from sandboxes that have none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{HttpServer, SERVER, World, until};

/// A key, which must not be seen anywhere inside.
pub const KEY: &str = "sk-test-canary-5dd1a7c0e3";

/// A request as an upstream got it.
#[derive(Clone, Debug)]
pub struct Got {
    line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Got {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A provider of the test's own, on the host's loopback, where only the host's programs are.
pub struct Provider {
    pub port: u16,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Provider {
    pub fn start(reply: impl Fn(&Got, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let provider = Self { port: listener.local_addr().unwrap().port(), got: Arc::default() };
        let (got, reply) = (provider.got.clone(), Arc::new(reply));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (got, reply) = (got.clone(), reply.clone());
                std::thread::spawn(move || serve(stream, &got, &*reply));
            }
        });
        provider
    }

    pub fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, all: &Mutex<Vec<Got>>, reply: &dyn Fn(&Got, &mut TcpStream)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut got = Got { line: String::new(), headers: Vec::new(), body: String::new() };
        if !matches!(reader.read_line(&mut got.line), Ok(count) if count > 0) {
            return;
        }
        got.line = got.line.trim().to_owned();
        loop {
            let mut line = String::new();
            if !matches!(reader.read_line(&mut line), Ok(count) if count > 0) {
                return;
            }
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            got.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let length = got.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        got.body = String::from_utf8(body).unwrap();
        all.lock().unwrap().push(got.clone());
        reply(&got, &mut stream);
    }
}

pub fn send(stream: &mut TcpStream, status: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // Whoever asked may be gone.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

/// A message as Anthropic says it, with what it was asked with.
pub fn message(got: &Got, stream: &mut TcpStream) {
    let text = format!("you said {:?}", got.headers);
    let message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": got.json()["model"],
        "content": [{ "type": "text", "text": text }], "stop_reason": "end_turn",
        "usage": { "input_tokens": 1000, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 0, "output_tokens": 30 },
    });
    send(stream, "200 OK", &message.to_string());
}

/// Sets the gateway up, with one operation `llm:chat` that leads to this provider, and this besides.
pub fn set_up(world: &World, provider: &Provider, more: &str) {
    std::fs::write(world.home.path().join("key"), format!("{KEY}\n")).unwrap();
    let text = format!(
        "[secrets]\nkey = {{ file = \"{}\" }}\n\
         [operations.\"llm:chat\"]\nkind = \"anthropic\"\nupstream = \"http://127.0.0.1:{}\"\nsecret = \"key\"\n\
         models = [\"small\"]\nmax_output = 100\n\
         [operations.\"llm:chat\".prices.small]\nuncached = \"3\"\ncache_read = \"0.3\"\noutput = \"15\"\n{more}",
        world.home.path().join("key").display(),
        provider.port,
    );
    std::fs::write(world.home.path().join("gateway.toml"), text).unwrap();
}

/// Asks for a message.
pub const ASK: &str = "curl -sS --max-time 20 -H \"x-api-key: ${TOKEN:-$BELLJAR_TOKEN}\" -d \"${BODY:-{\\\"model\\\":\\\"small\\\"\\}}\" $ANTHROPIC_BASE_URL/v1/messages";

/// What a sandbox had the gateway do.
pub fn calls(world: &World, id: &str) -> Vec<Value> {
    let path = world.home.path().join("sandboxes").join(id).join("calls");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line["seq"].is_u64())
        .collect()
}

/// Looks for the key in everything that can be read inside, as its root: the environment and the memory of every process, and the files.
pub fn search_inside(world: &World, id: &str) {
    let search = "import os, sys
key = sys.argv[1][::-1].encode()
seen = looked = 0
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('environ', 'cmdline', 'mem'):
        try:
            with open(f'/proc/{pid}/{name}', 'rb') as f:
                if name != 'mem':
                    looked += 1; seen += key in f.read(); continue
                for line in open(f'/proc/{pid}/maps'):
                    a, b = (int(x, 16) for x in line.split()[0].split('-'))
                    if pid == str(os.getpid()) or not line.split()[1].startswith('r') or b - a > 1 << 28: continue
                    try: f.seek(a); looked += 1; seen += key in f.read(b - a)
                    except (OSError, ValueError, OverflowError): pass
        except OSError: pass
for top in ('/home', '/tmp', '/etc', '/run', '/var', '/root', '/dev/shm'):
    for place, _, files in os.walk(top):
        for name in files:
            try:
                path = os.path.join(place, name)
                if os.path.isfile(path): looked += 1; seen += key in open(path, 'rb').read()
            except OSError: pass
print(seen, looked > 100)";
    let backwards: String = KEY.chars().rev().collect();
    let ran = world.json(&[
        "exec",
        "--user",
        "root",
        "--timeout",
        "100s",
        id,
        "--",
        "python3",
        "-c",
        search,
        &backwards,
    ]);
    assert_eq!(ran["stdout"], "0 True\n", "{ran}");
}

#[test]
fn a_call_is_made_with_the_key_and_the_key_is_nowhere_inside() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let body = r#"{"model":"small","max_tokens":64000,"unknown":{"a":1.50}}"#;
    let ran = world.json(&["exec", "-e", &format!("BODY={body}"), &id, "--", "sh", "-c", ASK]);
    let said: Value =
        serde_json::from_str(ran["stdout"].as_str().unwrap()).unwrap_or_else(|_| panic!("{ran}"));
    assert_eq!(said["usage"]["output_tokens"], 30, "{ran}");
    // The provider says back what it got, and its key is not among it.
    assert!(!ran["stdout"].as_str().unwrap().contains(KEY), "{ran}");
    let got = &provider.got()[0];
    assert_eq!(got.header("x-api-key"), Some(KEY));
    assert_eq!(got.body, r#"{"model":"small","max_tokens":100,"unknown":{"a":1.50}}"#);
    assert!(!format!("{got:?}").contains("bjt_"), "the token stays here: {got:?}");
    // What it cost, to the token: 1000 at 3, 200 at 0.3 and 30 at 15 dollars a million.
    until("it is told", || calls(&world, &id).len() == 1);
    let call = &calls(&world, &id)[0];
    assert_eq!(
        (call["nano_dollars"].as_u64(), call["is_final"].as_bool()),
        (Some(3_000_000 + 60_000 + 450_000), Some(true)),
        "{call}"
    );
    assert_eq!((call["operation"].as_str(), call["exec"].as_u64()), (Some("llm:chat"), Some(1)), "{call}");
    search_inside(&world, &id);
    // Nor is it, or the token, where we write things down.
    let token = world.shell(&id, "echo $BELLJAR_TOKEN")["stdout"].as_str().unwrap().trim().to_owned();
    assert!(token.starts_with("bjt_"));
    let written = std::process::Command::new("grep")
        .args(["-rlaF", "-e", KEY, "-e", &token, "--exclude=key", "--exclude-dir=spool"])
        .arg(world.home.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&written.stdout), "", "only its hash is kept");
}

#[test]
fn a_token_is_good_for_one_sandbox_and_for_as_long_as_it_says() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat", "--token-ttl", "5m"]);
    let token = world.shell(&id, "echo $BELLJAR_TOKEN")["stdout"].as_str().unwrap().trim().to_owned();
    let refused = |id: &str, token: &str| {
        let ran = world.json(&["exec", "-e", &format!("TOKEN={token}"), id, "--", "sh", "-c", ASK]);
        let answer: Value =
            serde_json::from_str(ran["stdout"].as_str().unwrap()).unwrap_or_else(|_| panic!("{ran}"));
        assert_eq!(answer["error"]["type"], "permission_error", "{ran}");
    };
    // The control.
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
    // From another sandbox, although that has a token of its own.
    let other = world.create(&["--grant", "llm:chat"]);
    refused(&other, &token);
    for worthless in ["bjt_", "x", "null", &token.to_uppercase(), &token[..40]] {
        refused(&id, worthless);
    }
    // After its time.
    let brief = world.create(&["--grant", "llm:chat", "--token-ttl", "1s"]);
    let waiting = format!("sleep 1.2; {ASK}");
    let ran = world.shell(&brief, &waiting);
    assert!(ran["stdout"].as_str().unwrap().contains("no longer valid"), "{ran}");
    assert_eq!(provider.got().len(), 1, "nothing of it was asked");
    // After everything was killed, the same token is good again for the rest of its time, and no longer.
    for part in ["worker", "supervisor"] {
        crate::surroundings::processes::send(world.door(part).unwrap(), rustix::process::Signal::KILL);
    }
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
    refused(&other, &token);
    let ran = world.shell(&brief, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("no longer valid"), "{ran}");
}

#[test]
fn what_is_not_granted_is_refused_told_and_survived() {
    let world = World::new();
    let provider = Provider::start(message);
    let canary = HttpServer::start(&format!("{SERVER}:80"));
    set_up(
        &world,
        &provider,
        "[operations.\"llm:other\"]\nkind = \"openai-chat\"\nupstream = \"http://127.0.0.1:1\"\n",
    );
    let id = world.create(&["--grant", "llm:chat"]);
    let ask = |path: &str, more: &str| {
        let script =
            format!("curl -sS --path-as-is --max-time 20 -H \"x-api-key: $BELLJAR_TOKEN\" {more} '{path}'");
        world.shell(&id, &script)["stdout"].as_str().unwrap().to_owned()
    };
    let base = "http://gateway.belljar";
    let model = |name: &str| format!("-d '{{\"model\":\"{name}\"}}'");
    let small = model("small");
    for (path, more) in [
        (format!("{base}/openai/v1/chat/completions"), &small),
        (format!("{base}/anthropic/v1/files"), &small),
        (format!("{base}/anthropic/v1/messages/../files"), &small),
        (format!("{base}/anthropic/v1/messages%2f..%2ffiles"), &small),
        (format!("{base}/anthropic//v1/messages"), &small),
        (format!("{base}/ANTHROPIC/v1/messages"), &small),
        (format!("{base}/anthropic/v1/messages"), &model("large")),
        (format!("{base}/anthropic/v1/messages"), &"-X DELETE".to_owned()),
        (format!("{base}/anthropic/v1/messages"), &format!("-H 'authorization: Bearer other' {small}")),
        (format!("{base}/anthropic/v1/messages"), &format!("-H 'content-encoding: gzip' {small}")),
        (
            format!("{base}/anthropic/v1/messages"),
            &"-d '{\"model\":\"small\",\"Model\":\"large\"}'".to_owned(),
        ),
        (
            format!("{base}/anthropic/v1/messages"),
            &"-d '{\"model\":\"small\",\"mcp_servers\":[{\"url\":\"http://server.test\"}]}'".to_owned(),
        ),
        (format!("{base}/{SERVER}/"), &small),
    ] {
        let said = ask(&path, more);
        assert!(
            said.contains("Belljar refused") && said.contains("Do not try another route"),
            "{path} {more}: {said}"
        );
    }
    assert_eq!((provider.got().len(), canary.asked().len()), (0, 0));
    until("all are told", || calls(&world, &id).len() >= 10);
    assert!(calls(&world, &id).iter().all(|call| call["refused"] == true && call["error"].is_string()));
    // It goes on.
    assert!(ask(&format!("{base}/anthropic/v1/messages"), &small).contains("msg_1"));
}

#[test]
fn a_budget_holds_against_many_at_once() {
    let world = World::new();
    let provider = Provider::start(|got, stream| {
        std::thread::sleep(Duration::from_millis(30));
        message(got, stream);
    });
    set_up(&world, &provider, "[budget.session]\nrequests = 10\n");
    let id = world.create(&["--grant", "llm:chat"]);
    let script = format!("for i in $(seq 100); do {ASK} -o /tmp/out.$i -w '%{{http_code}}\\n' & done; wait");
    let ran = world.json(&["exec", "--timeout", "120s", &id, "--", "sh", "-c", &script]);
    let said = ran["stdout"].as_str().unwrap();
    assert_eq!((said.matches("200").count(), said.matches("402").count()), (10, 90), "{ran}");
    assert_eq!(provider.got().len(), 10);
    // A gateway that dies forgets nothing of what was spent.
    crate::surroundings::processes::send(gateway(&world), rustix::process::Signal::KILL);
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("budget of 10 requests"), "{ran}");
}

/// The process that holds the keys.
pub fn gateway(world: &World) -> i32 {
    let supervisor = world.door("supervisor").unwrap();
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = std::fs::read_to_string(path).unwrap();
    let is_gateway = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .windows(12)
            .any(|word| word == b"door-gateway")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_gateway).unwrap()
}

#[test]
fn a_stream_passes_as_it_comes_and_ends_when_nobody_listens() {
    let world = World::new();
    let (told, ended) = std::sync::mpsc::channel();
    let told = Mutex::new(told);
    let provider = Provider::start(move |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let event = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_7\",\"model\":\"small\",\"usage\":{\"input_tokens\":11,\"output_tokens\":1}}}\n\n";
        let piece = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        stream.write_all(piece(event).as_bytes()).unwrap();
        // Nothing more, until somebody hangs up.
        let ended = stream.read(&mut [0; 1]);
        let _ = told.lock().unwrap().send(matches!(ended, Ok(0) | Err(_)));
    });
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    // What has come is there although the rest has not; then the client goes away.
    let script = format!(
        "{ASK} -N > /tmp/out & pid=$!; until grep -q msg_7 /tmp/out 2>/dev/null; do sleep 0.02; done; kill -9 $pid; echo seen"
    );
    let ran = world.shell(&id, &script);
    assert_eq!(ran["stdout"], "seen\n", "{ran}");
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(true), "the provider was told");
    until("it is told", || calls(&world, &id).len() == 1);
    let call = &calls(&world, &id)[0];
    assert_eq!(
        (call["usage"]["uncached"].as_u64(), call["is_final"].as_bool()),
        (Some(11), Some(false)),
        "{call}"
    );
}

#[test]
fn a_redirect_is_not_followed_and_a_key_goes_nowhere_else() {
    let world = World::new();
    let canary = Provider::start(message);
    let elsewhere = format!("http://127.0.0.1:{}/v1/messages", canary.port);
    let provider = Provider::start(move |_, stream| {
        let _ = stream.write_all(
            format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n")
                .as_bytes(),
        );
    });
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let ran = world.shell(&id, &format!("{ASK} -L -w '%{{http_code}}'"));
    assert!(ran["stdout"].as_str().unwrap().contains("307") || ran["exit_code"] != 0, "{ran}");
    assert_eq!((provider.got().len(), canary.got().len()), (1, 0));
    // Whatever host the request names, the key goes where the configuration says.
    let script = format!(
        "{ASK} -H 'Host: gateway.belljar' -H 'X-Forwarded-Host: server.test' -H 'Forwarded: host=server.test' -o /dev/null -w '%{{http_code}}'"
    );
    let ran = world.shell(&id, &script);
    assert_eq!(ran["stdout"], "307", "{ran}");
    let got = provider.got();
    assert!(got[1].header("x-forwarded-host").is_none() && got[1].header("forwarded").is_none(), "{got:?}");
    assert!(got[1].header("host").unwrap().starts_with("127.0.0.1:"), "{got:?}");
}

#[test]
fn what_is_not_set_up_is_said() {
    let world = World::new();
    let ran = world.run(&["run", "--grant", "llm:chat", "--", "true"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        !ran.status.success() && said.contains("gateway.toml") && said.contains("gateway check"),
        "{said}"
    );
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let ran = world.run(&["run", "--grant", "llm:nothing", "--", "true"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("no operation `llm:nothing`") && said.contains("it has: llm:chat"), "{said}");
    let checked = world.json(&["gateway", "check"]);
    assert_eq!(checked["operations"][0]["name"], "llm:chat", "{checked}");
    assert_eq!(checked["missing"], json!([]), "{checked}");
    // A key that is not there is no reason not to start, and a plain answer.
    std::fs::remove_file(world.home.path().join("key")).unwrap();
    let ran = world.json(&["run", "--grant", "llm:chat", "--", "sh", "-c", ASK]);
    assert!(ran["stdout"].as_str().unwrap().contains("does not have the key"), "{ran}");
    let checked = world.run(&["gateway", "check"]);
    let (said, complaint) =
        (String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
    assert!(said.contains("llm:chat") && complaint.contains("the key `key` is missing"), "{said}{complaint}");
    assert_eq!(checked.status.code(), Some(1));
}

#[test]
fn commands_about_a_sandbox_do_not_give_it_more() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let path = world.home.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("max_output = 100\n", "max_output = 100\nrequests_per_minute = 3\n"))
        .unwrap();
    let id = world.create(&["--grant", "llm:chat"]);
    let status = format!("{ASK} -o /dev/null -w '%{{http_code}} '");
    let said: String = (0..3)
        .map(|_| world.shell(&id, &format!("{status}; {status}"))["stdout"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, "200 200 200 429 429 429 ");
}

#[test]
fn a_call_that_is_long_to_tell_is_told_and_counted() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "[budget.session]\nrequests = 2\n");
    let path = world.home.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("models = [\"small\"]\n", "")).unwrap();
    let id = world.create(&["--grant", "llm:chat"]);
    let before = {
        world.shell(&id, ASK);
        gateway(&world)
    };
    let script = "python3 -c \"print('{\\\"model\\\":\\\"' + 'm' * 20000 + '\\\"}')\" > body; \
                  ask() { curl -sS -o /dev/null -w '%{http_code} ' -H \"x-api-key: $BELLJAR_TOKEN\" -d @body $ANTHROPIC_BASE_URL/v1/messages; }; ask; ask";
    let ran = world.shell(&id, script);
    assert_eq!(ran["stdout"], "200 402 ", "{ran}");
    assert_eq!(gateway(&world), before, "it lives");
    until("all are told", || calls(&world, &id).len() == 3);
}

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
    let path = world.home.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("models = [\"small\"]\n", "")).unwrap();
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
