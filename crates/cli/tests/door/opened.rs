//! TLS that is opened where a rule looks inside, and nowhere else.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::provider::{KEY, search_inside};
use crate::world::{Certified, OTHER, Program, SERVER, World, where_it_is};

/// A server of HTTP/1.1 and HTTP/2 over TLS, which says what it was asked.
pub struct Server {
    _program: Program,
    asked: PathBuf,
    certified: Certified,
}

const SERVE: &str = "const [key, cert, address, log, files] = process.argv.slice(1);
const fs = require('fs');
const server = require('http2').createSecureServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert), allowHTTP1: true });
server.on('request', (request, response) => {
  if (request.url === '/v1/early') { response.end('early\\n'); request.on('data', (data) => fs.appendFileSync(log + '.early', data)); return; }
  let length = 0;
  request.on('data', (data) => { length += data.length; });
  request.on('end', () => {
    const host = request.headers[':authority'] || request.headers.host;
    fs.appendFileSync(log, `${request.httpVersion} ${request.method} ${host} ${request.url} [${request.headers.authorization || ''}]\\n`);
    if (request.url === '/v1/long') { response.write('begun\\n'); return; }
    if (request.url === '/v1/hang') { return; }
    if (request.url === '/v1/trailers') { response.write('body\\n'); response.addTrailers({ 'x-late': 'late-value' }); response.end(); return; }
    if (request.url === '/v1/big') { response.end(Buffer.alloc(8 << 20)); return; }
    if (request.url.startsWith('/private/') && request.headers.authorization !== 'Basic YW5uOnNlY3JldA==') {
      response.statusCode = 401; response.setHeader('www-authenticate', 'Basic'); response.end(); return;
    }
    const file = files + request.url.split('?')[0];
    const kinds = { '': '', 'index.html': 'text/html', '.json': 'application/json', '.page': 'application/vnd.pypi.simple.v1+json' };
    for (const [ending, kind] of Object.entries(kinds)) {
      if (!fs.existsSync(file + ending) || !fs.statSync(file + ending).isFile()) continue;
      if (kind) response.setHeader('content-type', kind);
      if (kind && /gzip/.test(request.headers['accept-encoding'])) {
        response.setHeader('content-encoding', 'gzip');
        response.end(require('zlib').gzipSync(fs.readFileSync(file + ending))); return;
      }
      response.end(fs.readFileSync(file + ending)); return;
    }
    if (/git\\/|cargo\\/.*\\//.test(request.url)) { response.statusCode = 404; response.end(); return; }
    response.setHeader('x-length', String(length));
    response.end(`served ${request.method} ${request.url} by ${request.httpVersion} with ${length} bytes\\n`);
  });
});
server.on('secureConnection', () => fs.appendFileSync(log + '.connections', 'x'));
server.listen(443, address, () => console.log('ready'));";

impl Server {
    pub fn start(world: &World, address: &str, prefix: &str, names: &[&str]) -> Self {
        let made = Certified::make(world, prefix, names);
        let asked = world.home.path().join(format!("{prefix}asked"));
        std::fs::write(&asked, "").unwrap();
        Self::serve(world, address, asked, made)
    }

    /// The same at another address, with the certificate of another.
    pub fn again(world: &World, address: &str, other: &Self) -> Self {
        Self::serve(world, address, other.asked.clone(), other.certified.clone())
    }

    fn serve(world: &World, address: &str, asked: PathBuf, certified: Certified) -> Self {
        let mut command = Command::new("node");
        command.arg("-e").arg(SERVE).args([&certified.key, &certified.certificate]).arg(address).arg(&asked);
        command.arg(world.home.path().join("files"));
        let mut child = where_it_is(address, || command.stdout(Stdio::piped()).spawn().unwrap());
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        Self { _program: Program(child), asked, certified }
    }

    /// The variable by which a door believes it.
    pub fn believed(&self) -> (&str, &Path) {
        ("SSL_CERT_FILE", &self.certified.authority)
    }

    pub fn asked(&self) -> Vec<String> {
        std::fs::read_to_string(&self.asked).unwrap().lines().map(str::to_owned).collect()
    }
}

/// Makes a sandbox, at a door that believes this server.
pub fn create(world: &World, server: &Server, options: &[&str]) -> String {
    let mut command = world.command(&[&["create", "--json"], options].concat());
    let output = command.envs([server.believed()]).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    made["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

pub fn said(ran: &Value) -> &str {
    ran["stdout"].as_str().unwrap_or_else(|| panic!("{ran}"))
}

const ISSUER: &str = "openssl s_client -connect server.test:443 -servername server.test </dev/null 2>/dev/null | openssl x509 -noout -issuer";

#[test]
fn requests_inside_are_judged_one_by_one() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(
        &world,
        &server,
        &["--allow", "GET,POST https://server.test/v1/*", "--deny", "POST server.test/v1/secret"],
    );
    for (version, name) in [("--http2", "2.0"), ("--http1.1", "1.1")] {
        let get = |words: &str| {
            let script = format!("curl -sS {version} --max-time 20 -w ' %{{http_code}}' {words}");
            world.shell(&id, &script)
        };
        let ran = get("https://server.test/v1/x?y=1");
        assert_eq!(said(&ran), format!("served GET /v1/x?y=1 by {name} with 0 bytes\n 200"), "{ran}");
        let ran = get("--data-binary @/usr/bin/env https://server.test/v1/upload");
        assert!(said(&ran).ends_with("200") && !said(&ran).contains("with 0 bytes"), "{ran}");
        // Two on one connection, of which one may be made.
        let ran = get("https://server.test/v2/x https://server.test/v1/after");
        assert!(said(&ran).contains("403") && said(&ran).contains("served GET /v1/after"), "{ran}");
        assert!(said(&ran).contains("--allow 'GET https://server.test:443/v2/x'"), "{ran}");
        assert_eq!(ran["denied"][0]["reason"], "request_not_listed", "{ran}");
        let ran = get("-d x https://server.test/v1/secret");
        assert!(said(&ran).contains("403"), "{ran}");
        let ran = get("-H 'X-HTTP-Method-Override: DELETE' https://server.test/v1/x");
        assert!(said(&ran).contains("400"), "{ran}");
        let ran = get("-H 'Host: other.test' https://server.test/v1/x");
        assert!(said(&ran).contains("403") || said(&ran).contains("400"), "{ran}");
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 6, "{asked:?}");
    assert!(asked.iter().all(|line| line.contains(" server.test /v1/")), "{asked:?}");
    let flows = world.flows(&id);
    let of = |request: &str| flows.iter().filter(|flow| flow["request"] == request).collect::<Vec<_>>();
    let upload = of("POST /v1/upload");
    assert!(upload.iter().all(|flow| flow["kind"] == "tls" && flow["verdict"] == "allowed"), "{upload:?}");
    assert!(
        upload.len() == 2 && upload[0]["sent"].as_u64() > Some(1000) && upload[0]["exec"].is_u64(),
        "{upload:?}"
    );
    assert!(of("GET /v2/x").iter().all(|flow| flow["reason"] == "request_not_listed"), "{flows:?}");
    let ran = world.shell(&id, ISSUER);
    assert!(said(&ran).contains(&format!("Belljar sandbox {id}")), "{ran}");
}

#[test]
fn what_no_rule_looks_into_stays_closed() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "server.test", "--allow", "GET https://other.test/*"]);
    let ran = world.shell(&id, ISSUER);
    assert_eq!(said(&ran).trim(), "issuer=CN = test", "{ran}");
    // One that was made without such rules cannot be given any.
    let plain = create(&world, &server, &["--allow", "server.test"]);
    let set = world.run(&["net", "set", &plain, "--allow", "GET https://server.test/v1/*"]);
    let stderr = String::from_utf8_lossy(&set.stderr);
    assert!(
        !set.status.success() && stderr.contains("made without any") && stderr.contains("hint: "),
        "{stderr}"
    );
    // And one that has them can be given others, which hold at once.
    let set = world.run(&["net", "set", &id, "--allow", "GET https://server.test/v1/*"]);
    assert!(set.status.success(), "{set:?}");
    let ran =
        world.shell(&id, "curl -sS https://server.test/v1/x https://server.test/v2/x -w '%{http_code} '");
    assert!(said(&ran).contains("served GET /v1/x") && said(&ran).ends_with("403 "), "{ran}");
}

/// A client that knows whom to believe, and an upstream that nobody believes.
#[test]
fn distrust_is_told_on_both_sides() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let _other = Server::start(&world, OTHER, "other-", &["other.test"]);
    let id = create(
        &world,
        &server,
        &["--allow", "GET https://server.test/*", "--allow", "GET https://other.test/*"],
    );
    let pinned = format!(
        "cat > own.pem <<'END'\n{}END\ncurl -sS --cacert own.pem --capath /nowhere https://server.test/v1/x; echo $?",
        std::fs::read_to_string(server.believed().1).unwrap()
    );
    let ran = world.shell(&id, &pinned);
    assert_eq!(said(&ran), "60\n", "{ran}");
    let flows = world.flows(&id);
    let told = flows.iter().any(|flow| {
        flow["error"].as_str().is_some_and(|error| {
            error.contains("does not believe the certificate") && error.contains("rule without methods")
        })
    });
    assert!(told, "{flows:?}");
    let ran = world.shell(&id, "curl -sS https://other.test/v1/x -w '%{http_code}'");
    assert!(said(&ran).contains("certificate") && said(&ran).ends_with("502"), "{ran}");
    assert_eq!(server.asked().len(), 0);
}

#[test]
fn a_stream_cannot_name_another_host() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test", "other.test"]);
    let id = create(
        &world,
        &server,
        &["--allow", "GET https://server.test/*", "--allow", "GET https://other.test/*"],
    );
    let script = "const http2 = require('http2');
const client = http2.connect('https://server.test');
const ask = (headers) => new Promise((done) => {
  const stream = client.request(headers);
  stream.on('response', (answer) => { stream.resume(); stream.on('end', () => done(answer[':status'])); });
  stream.on('error', (error) => done(error.code));
});
(async () => {
  console.log(await ask({ ':path': '/a' }), await ask({ ':path': '/b', ':authority': 'other.test' }), await ask({ ':path': '/c', host: 'other.test' }),
    await ask({ ':path': '/d', ':scheme': 'http' }), await ask({ ':path': '/e' }));
  client.close();
})();";
    let ran = world.json(&["exec", &id, "--", "node", "-e", script]);
    let words: Vec<&str> = said(&ran).split_whitespace().collect();
    assert!(words.len() == 5 && words[0] == "200" && words[4] == "200", "{ran}");
    assert!(words[1..4].iter().all(|word| *word == "403" || *word == "400"), "{ran}");
    let asked = server.asked();
    assert_eq!(asked, ["2.0 GET server.test /a []", "2.0 GET server.test /e []"]);
}

#[test]
fn a_policy_that_is_tightened_cuts_what_is_under_way() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "GET https://server.test/v1/*"]);
    let begun = world.json(&[
        "exec",
        "-d",
        &id,
        "--",
        "sh",
        "-c",
        "curl -sSN https://server.test/v1/long > out; echo $? > ended",
    ]);
    let exec = begun["exec"].to_string();
    crate::world::until("it has begun", || {
        said(&world.shell(&id, "cat out 2>/dev/null; true")).contains("begun")
    });
    let set = world.run(&["net", "set", &id, "--allow", "GET https://server.test/v2/*"]);
    assert!(set.status.success(), "{set:?}");
    world.run(&["attach", &id, &exec]);
    let ran = world.shell(&id, "cat ended");
    assert_ne!(said(&ran), "0\n", "{ran}");
}

/// Puts a repository and a registry with one package where the server finds them.
pub fn furnish(world: &World) {
    let place = world.home.path().join("files/v1");
    let script = "set -e; mkdir -p cargo/1 work b-1.0.0/src; cd work
git init -q .; echo served > file; git add .; git -c user.name=a -c user.email=a@b.test commit -qm First; cd ..
git clone -q --bare work git; git -C git update-server-info
printf '[package]\\nname = \"b\"\\nversion = \"1.0.0\"\\n' > b-1.0.0/Cargo.toml; touch b-1.0.0/src/lib.rs
tar czf cargo/b.crate b-1.0.0; sum=$(sha256sum cargo/b.crate | cut -d' ' -f1)
echo '{\"dl\":\"https://server.test/v1/cargo/b.crate?\"}' > cargo/config.json
echo '{\"name\":\"b\",\"vers\":\"1.0.0\",\"deps\":[],\"features\":{},\"yanked\":false,\"cksum\":\"'$sum'\"}' > cargo/1/b";
    std::fs::create_dir_all(&place).unwrap();
    let output = Command::new("bash").args(["-c", script]).current_dir(&place).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

const JAVA: &str = "public class Ask { public static void main(String[] words) throws Exception {
  var request = java.net.http.HttpRequest.newBuilder(java.net.URI.create(words[0])).build();
  System.out.print(java.net.http.HttpClient.newHttpClient().send(request, java.net.http.HttpResponse.BodyHandlers.ofString()).body());
} }";

const GO: &str = "package main
import (\"fmt\"; \"io\"; \"net/http\"; \"os\")
func main() {
  answer, err := http.Get(os.Args[1])
  if err != nil { fmt.Println(err); os.Exit(1) }
  text, _ := io.ReadAll(answer.Body)
  fmt.Print(string(text))
}";

/// The programs that people's code uses to speak HTTP.
#[test]
fn everyday_clients_do_not_notice() {
    let world = World::new();
    furnish(&world);
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let packages = format!("{}:/home/user/agent", crate::agents::agents().join("smolagents").display());
    let options =
        ["--memory", "2g", "--disk", "2g", "--file", &packages, "--allow", "GET https://server.test/v1/*"];
    let id = create(&world, &server, &options);
    let python =
        |library: &str, ask: &str| format!("PYTHONPATH=agent python3 -c \"import {library}; {ask}\"");
    for (name, program, script) in [
        ("curl", "curl", "curl -sS $URL".to_owned()),
        ("urllib", "python3", python("os, urllib.request", "print(urllib.request.urlopen(os.environ['URL']).read())")),
        ("requests", "python3", python("os, requests", "print(requests.get(os.environ['URL']).text)")),
        ("httpx", "python3", python("os, httpx", "print(httpx.get(os.environ['URL']).text)")),
        ("node", "node", "node -e 'fetch(process.env.URL).then((answer) => answer.text()).then(console.log)'".to_owned()),
        ("git", "git", "git clone -q $URL cloned && cat cloned/file".to_owned()),
        (
            "cargo",
            "cargo",
            "mkdir -p c/src && cd c && touch src/lib.rs && printf '[package]\\nname=\"a\"\\nversion=\"0.1.0\"\\n[dependencies]\\nb={version=\"1\",registry=\"own\"}\\n' > Cargo.toml \
             && cargo fetch --config \"registries.own.index='sparse+$URL/'\" && echo served"
                .to_owned(),
        ),
        ("java", "javac", format!("cat > Ask.java <<'END'\n{JAVA}\nEND\njava Ask.java $URL")),
        ("go", "go", format!("cat > ask.go <<'END'\n{GO}\nEND\ngo run ask.go $URL")),
    ] {
        let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        if !there.status.success() {
            crate::surroundings::announce(&format!("this machine has no {program}, so that was not tried"));
            continue;
        }
        let url = format!("URL=https://server.test/v1/{name}");
        let ran = world.json(&["exec", "--timeout", "100s", "-e", &url, &id, "--", "sh", "-c", &script]);
        assert!(ran["exit_code"] == 0 && said(&ran).contains("served"), "{name}: {ran}");
        let asked = server.asked();
        assert!(asked.iter().any(|line| line.contains(&format!("/v1/{name}"))), "{name}: {asked:?}");
    }
    // All of it was seen.
    let flows = world.flows(&id);
    let seen = flows.iter().filter(|flow| flow["kind"] == "tls" && flow["request"].is_string()).count();
    assert_eq!(seen, server.asked().len(), "{flows:?}");
}

/// A program that knows nothing of a gateway asks a host by its name, and the key is put in on the way.
#[test]
fn a_key_is_put_in_on_the_way_to_the_host_that_it_is_for() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    std::fs::write(world.home.path().join("key"), KEY).unwrap();
    let config = format!(
        "[secrets]\nkey = {{ file = \"{}\" }}\n[operations.\"forge:read\"]\nkind = \"http\"\nupstream = \"https://server.test\"\nsecret = \"key\"\n\
         header = \"authorization\"\nvalue = \"Bearer {{}}\"\nmethods = [\"GET\"]\npaths = [\"/v1/*\"]\nin_place = true\n",
        world.home.path().join("key").display()
    );
    std::fs::write(world.home.path().join("gateway.toml"), config).unwrap();
    // A rule that would leave TLS closed does not keep the key out.
    let id = create(&world, &server, &["--grant", "forge:read", "--allow", "server.test"]);
    let ask = |words: &str| world.shell(&id, &format!("curl -sS --max-time 20 -w ' %{{http_code}}' {words}"));
    for version in ["--http1.1", "--http2"] {
        let ran = ask(&format!(
            "{version} -H 'Authorization: Bearer own' -H 'X-Api-Key: own' https://server.test/v1/x?y"
        ));
        assert!(said(&ran).starts_with("served GET /v1/x?y") && said(&ran).ends_with(" 200"), "{ran}");
    }
    let keys = std::fs::read_to_string(&server.asked).unwrap();
    assert_eq!(keys.matches(&format!("[Bearer {KEY}]")).count(), 2, "{keys}");
    assert!(!keys.contains("own"), "what the client sent in its place is dropped: {keys}");
    for words in ["-d x https://server.test/v1/x", "https://server.test/v2/x"] {
        let ran = ask(words);
        assert!(said(&ran).contains("Belljar refused") && !said(&ran).ends_with(" 200"), "{ran}");
    }
    assert_eq!(server.asked().len(), 2);
    // Another sandbox may reach the host, and has no key.
    let other = create(&world, &server, &["--allow", "GET https://server.test/*"]);
    let ran = world.shell(&other, "curl -sS https://server.test/v1/other");
    assert!(said(&ran).starts_with("served"), "{ran}");
    let last = server.asked().pop().unwrap();
    assert!(last.contains("/v1/other") && !last.contains(KEY), "{last}");
    // Taken back, it is a host like others.
    let token = world.json(&["token", "ls", &id])["tokens"][0]["token_id"].as_str().unwrap().to_owned();
    assert!(world.run(&["token", "revoke", &id, &token]).status.success());
    let ran = ask("https://server.test/v1/after --insecure");
    assert!(said(&ran).starts_with("served"), "{ran}");
    let last = server.asked().pop().unwrap();
    assert!(last.contains("/v1/after") && !last.contains(KEY), "{last}");
    search_inside(&world, &id);
}

/// Whoever goes away before there is an answer has asked all the same.
#[test]
fn requests_whose_client_goes_away_are_written_down() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "POST https://server.test/v1/*"]);
    for version in ["--http2", "--http1.1"] {
        let script = format!(
            "head -c 50000 /dev/zero > f; curl -sS {version} -m 2 --data-binary @f https://server.test/v1/hang"
        );
        assert_ne!(world.shell(&id, &script)["exit_code"], 0);
    }
    assert_eq!(server.asked().len(), 2);
    let told = || {
        let flows = world.flows(&id);
        flows.into_iter().filter(|flow| flow["request"] == "POST /v1/hang").collect::<Vec<_>>()
    };
    crate::world::until("both are told", || told().len() == 2);
    assert!(told().iter().all(|flow| flow["sent"] == 50_000 && flow["verdict"] == "failed"), "{:?}", told());
}

/// What could fill the list is told together.
#[test]
fn requests_that_come_too_fast_do_not_wash_away_what_is_written_down() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let policy = world.home.path().join("policy.toml");
    std::fs::write(&policy, "mode = \"allowlist\"\nallow = [\"GET https://server.test/v1/*\"]\n[limits]\nrequests_per_second = 5\n").unwrap();
    let id = create(&world, &server, &["--policy", policy.to_str().unwrap()]);
    let script = "const http2 = require('http2');
const client = http2.connect('https://server.test');
let left = 2000, codes = {};
const ask = () => {
  if (left-- <= 0) { client.close(); console.log(JSON.stringify(codes)); return; }
  const stream = client.request({ ':path': '/v1/x', ':authority': left % 2 ? 'user@server.test' : 'server.test' });
  stream.on('response', (answer) => { codes[answer[':status']] = (codes[answer[':status']] || 0) + 1; });
  stream.on('error', () => {}); stream.resume(); stream.on('close', ask);
};
for (let i = 0; i < 30; i++) ask();
setTimeout(() => process.exit(), 20000);";
    world.json(&["exec", "--timeout", "40s", &id, "--", "node", "-e", script]);
    let flows = world.flows(&id);
    assert!(flows.len() < 400, "{} entries, at five in a second", flows.len());
}

/// Also of methods that rarely have one, whether its length is known before or not.
#[test]
fn bodies_go_on_whatever_the_method() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "GET,DELETE https://server.test/v1/*"]);
    for version in ["--http1.1", "--http2"] {
        for method in ["GET", "DELETE"] {
            for length in ["", "-H 'Transfer-Encoding: chunked'"] {
                let script = format!(
                    "head -c 3000 /dev/zero | curl -sS {version} -X {method} {length} --data-binary @- https://server.test/v1/x"
                );
                let ran = world.shell(&id, &script);
                assert!(said(&ran).ends_with("with 3000 bytes\n"), "{version} {method} {length}: {ran}");
            }
        }
        let ran = world.shell(&id, &format!("curl -sS {version} https://server.test/v1/x"));
        assert!(said(&ran).ends_with("with 0 bytes\n"), "{ran}");
    }
}

/// As many connections lead to the host as a client of its own would have opened.
#[test]
fn connections_to_the_host_are_kept() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "GET https://server.test/v1/*"]);
    for version in ["--http1.1", "--http2"] {
        let script = format!("curl -sS {version} 'https://server.test/v1/[1-60]' | grep -c served");
        assert_eq!(said(&world.shell(&id, &script)), "60\n");
    }
    let script =
        "curl -sS --http2 --parallel --parallel-max 20 'https://server.test/v1/[1-60]' | grep -c served";
    assert_eq!(said(&world.shell(&id, script)), "60\n");
    let opened = std::fs::read_to_string(server.asked.with_extension("connections")).unwrap().len();
    assert!(opened <= 3, "{opened} for three clients");
}

/// What is no request is heard for a while, and not for ever.
#[test]
fn a_client_that_says_no_request_is_not_listened_to() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "GET https://server.test/v1/*"]);
    let script = "import socket, ssl, sys
context = ssl.create_default_context()
def say(piece, alpn):
    context.set_alpn_protocols([alpn])
    s = context.wrap_socket(socket.create_connection(('server.test', 443), timeout=60), server_hostname='server.test')
    said = 0
    try:
        while said < 64 << 20: s.sendall(piece); said += len(piece)
    except OSError: return 'cut'
    return said
head = b'GET /v1/x HTTP/1.1\\r\\nHost: server.test\\r\\n'
preface = b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n'
print(say(b'x' * 65536, 'http/1.1'), say(head + b'a: b\\r\\n' * 9000, 'http/1.1'), say(b'\\r\\n' * 32768, 'http/1.1'), say(preface + b'\\0' * 65536, 'h2'), say(b'x' * 65536, 'h2'))";
    let ran = world.json(&["exec", "--timeout", "120s", &id, "--", "python3", "-c", script]);
    assert_eq!(said(&ran), "cut cut cut cut cut\n", "{ran}");
    assert_eq!(server.asked().len(), 0);
    assert!(said(&world.shell(&id, "curl -sS https://server.test/v1/x")).contains("served"));
}

/// An upload that goes on after its answer has come is still one that the policy is about.
#[test]
fn an_upload_that_was_answered_early_is_cut_and_counted() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "POST https://server.test/v1/*"]);
    let script = "const stream = require('http2').connect('https://server.test').request({ ':method': 'POST', ':path': '/v1/early' });
stream.on('error', () => {}); stream.resume();
setInterval(() => { if (!stream.destroyed) stream.write(Buffer.alloc(1000)); }, 20);";
    world.json(&["exec", "-d", "--timeout", "60s", &id, "--", "node", "-e", script]);
    let early = server.asked.with_extension("early");
    let size = || std::fs::metadata(&early).map_or(0, |file| file.len());
    crate::world::until("it is uploaded", || size() > 10_000);
    let set = world.run(&["net", "set", &id, "--allow", "POST https://server.test/v2/*"]);
    assert!(set.status.success(), "{set:?}");
    let mut last = 0;
    crate::world::until("nothing comes any more", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        size() == std::mem::replace(&mut last, size())
    });
    let flows = world.flows(&id);
    let told =
        flows.iter().find(|flow| flow["request"] == "POST /v1/early").unwrap_or_else(|| panic!("{flows:?}"));
    assert!(told["sent"].as_u64() >= Some(last), "{told}, and {last} came");
}

/// A client with wide windows that does not read.
#[test]
fn answers_that_are_not_read_take_little_memory() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let id = create(&world, &server, &["--allow", "GET https://server.test/v1/*"]);
    let script = "import socket, ssl, struct, time
def frame(kind, flags, stream, data): return struct.pack('>I', len(data))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + data
def text(name, value): return b'\\0' + bytes([len(name)]) + name + bytes([len(value)]) + value
context = ssl.create_default_context(); context.set_alpn_protocols(['h2'])
held = []
for _ in range(20):
    s = context.wrap_socket(socket.create_connection(('server.test', 443), timeout=20), server_hostname='server.test')
    s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + frame(4, 0, 0, struct.pack('>HI', 4, 2**31 - 1)) + frame(8, 0, 0, struct.pack('>I', 2**31 - 1 - 65535)))
    head = text(b':method', b'GET') + text(b':scheme', b'https') + text(b':authority', b'server.test') + text(b':path', b'/v1/big')
    for number in range(30): s.sendall(frame(1, 5, 1 + 2 * number, head))
    held.append(s)
open('held', 'w').close()
time.sleep(600)";
    let worker = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", world.door("worker").unwrap())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = worker();
    world.json(&["exec", "-d", "--timeout", "600s", &id, "--", "python3", "-c", script]);
    crate::world::until("all have asked", || world.shell(&id, "test -e held")["exit_code"] == 0);
    crate::world::until("they were passed on", || server.asked().len() >= 20);
    let mut last = 0;
    crate::world::until("nothing moves", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = worker();
        now.abs_diff(std::mem::replace(&mut last, now)) < 1024
    });
    let each = last.saturating_sub(before) / 20;
    assert!(each < 2048, "{each} KiB for a connection with 30 answers");
}
