//! Providers of the tests' own, and what sandboxes ask them by way of the gateway.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::world::World;

/// A key, which must not be seen anywhere inside.
pub const KEY: &str = "sk-test-canary-5dd1a7c0e3";

/// A request as an upstream got it.
#[derive(Clone, Debug)]
pub struct Got {
    pub line: String,
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
        let Ok(body) = whole_body(&mut reader, &got) else { return };
        got.body = String::from_utf8(body).unwrap();
        all.lock().unwrap().push(got.clone());
        reply(&got, &mut stream);
    }
}

/// The body to its end, however its length is told: who answers sooner races what is still to come.
fn whole_body(reader: &mut impl BufRead, got: &Got) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    let mut more = |reader: &mut dyn BufRead, length: usize| {
        let before = body.len();
        body.resize(before + length, 0);
        reader.read_exact(&mut body[before..])
    };
    if let Some(length) = got.header("content-length") {
        more(reader, length.parse().unwrap())?;
    } else if got.header("transfer-encoding").is_some() {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            more(reader, length)?;
            reader.read_line(&mut line)?;
            if length == 0 {
                break;
            }
        }
    }
    Ok(body)
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

/// Changes what was set up.
pub fn amend(world: &World, from: &str, to: &str) {
    let path = world.home.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replace(from, to)).unwrap();
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

/// The process that holds the keys.
pub fn gateway(world: &World) -> i32 {
    gateway_now(world).unwrap()
}

/// The same, if there is one.
pub fn gateway_now(world: &World) -> Option<i32> {
    let supervisor = world.door("supervisor")?;
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
    let is_gateway = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(12).any(|word| word == b"door-gateway")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_gateway)
}
