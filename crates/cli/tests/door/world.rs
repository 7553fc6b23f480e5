//! A world of its own for each test: a network that leads to another in which addresses of the internet are, and no further, and
//! names that lead to them.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::surroundings::{announce, belljar, patience, processes};

/// What is public, and what is not.
pub const SERVER: &str = "93.184.215.14";
pub const OTHER: &str = "93.184.215.15";
pub const PRIVATE: &str = "10.1.2.3";
pub const METADATA: &str = "169.254.169.254";
pub const SIX: &str = "2606:2800:21f:cb07:6820:80da:af6b:8b2c";
/// What is the host's own.
pub const OWN: &str = "93.184.215.99";
pub const OWN_PRIVATE: &str = "10.9.9.9";
pub const OWN_SIX: &str = "2606:2800:21f:cb07::99";

/// Names and where they lead.
const HOSTS: [(&str, &str); 11] = [
    (SERVER, "server.test"),
    (SERVER, "files.server.test"),
    (SERVER, "same.test"),
    (OTHER, "other.test"),
    (PRIVATE, "mirror.test"),
    (PRIVATE, "rebound.test"),
    (METADATA, "metadata.test"),
    ("127.0.0.1", "local.test"),
    (SIX, "six.test"),
    (OWN, "own.test"),
    (OWN_PRIVATE, "own-mirror.test"),
];

/// The cable between here and abroad: this end, and the other.
const CABLE: [(&str, &str); 2] = [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")];

thread_local! {
    /// The network abroad, of the world that this thread is in.
    static ABROAD: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// The world of a test, and a data directory in it.
pub struct World {
    pub home: tempfile::TempDir,
}

impl World {
    /// Takes the current thread, and all that it will start, into a world of its own.
    pub fn new() -> Self {
        // SAFETY: plain system call; it concerns this thread only.
        let apart = unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) };
        assert_eq!(apart, 0, "{}", std::io::Error::last_os_error());
        // Longer than the address of a socket can be.
        let home = tempfile::Builder::new().prefix(&"long-".repeat(24)).tempdir().unwrap();
        let hosts = home.path().join("hosts");
        let lines: Vec<_> = HOSTS.iter().map(|(address, name)| format!("{address} {name}\n")).collect();
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{}", lines.concat())).unwrap();
        let resolver = home.path().join("resolv.conf");
        std::fs::write(&resolver, format!("nameserver {SERVER}\noptions timeout:1 attempts:1\n")).unwrap();
        let here = |path: &Path| path.to_str().unwrap().to_owned();
        run("mount", &["--make-rprivate", "/"]);
        run("mount", &["--bind", &here(&hosts), "/etc/hosts"]);
        run("mount", &["--bind", &here(&resolver), "/etc/resolv.conf"]);
        // Another thread goes abroad, and lays the cable.
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        let abroad = std::thread::spawn(move || {
            // SAFETY: plain system call; it concerns this thread only.
            let apart = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(apart, 0, "{}", std::io::Error::last_os_error());
            // Hosts on a network say at once that nobody listens, to whoever asks however often.
            for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
                std::fs::write(format!("/proc/sys/net/{limit}"), "0").unwrap();
            }
            run("ip", &["link", "add", "abroad", "type", "veth", "peer", "name", "home"]);
            let network = File::open("/proc/thread-self/ns/net").unwrap();
            let home = format!("/proc/{}/fd/{}", std::process::id(), here.as_raw_fd());
            run("ip", &["link", "set", "home", "netns", &home]);
            configure(
                "abroad",
                &[SERVER, OTHER, PRIVATE, METADATA, SIX],
                CABLE.map(|(here, there)| (there, here)),
            );
            OwnedFd::from(network)
        });
        let abroad = abroad.join().unwrap();
        configure("home", &[OWN, OWN_PRIVATE, OWN_SIX], CABLE);
        // Routes of the newer family come a moment later.
        until("there is a way to it", || {
            let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
            socket.connect(format!("[{SIX}]:9")).is_ok()
        });
        ABROAD.set(Some(abroad));
        Self { home }
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        command.args(words).env("BELLJAR_HOME", self.home.path()).env_remove("BELLJAR_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command, which must come to an end.
    pub fn run(&self, words: &[&str]) -> Output {
        let child = self.command(words).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let (what, limit) = (format!("{words:?}"), patience(Duration::from_secs(240)));
        let watch = std::thread::spawn(move || {
            let hangs = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if hangs {
                announce(&format!("{what} hangs:\n{}", processes::threads(pid)));
                processes::send(pid, rustix::process::Signal::KILL);
            }
            hangs
        });
        let output = child.wait_with_output().unwrap();
        drop(done);
        assert!(!watch.join().unwrap(), "{words:?} hung; the door says:\n{}", self.log());
        output
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("door.log")).unwrap_or_default()
    }

    pub fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[&[words[0], "--json"], &words[1..]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Makes a sandbox that lasts, with these options.
    pub fn create(&self, options: &[&str]) -> String {
        let made = self.json(&[&["create"], options].concat());
        made["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// Runs a line of shell in a sandbox.
    pub fn shell(&self, id: &str, script: &str) -> Value {
        self.json(&["exec", id, "--", "sh", "-c", script])
    }

    /// What went through the door, or wanted to.
    pub fn flows(&self, id: &str) -> Vec<Value> {
        self.json(&["egress", id])["flows"].as_array().unwrap().clone()
    }

    /// The processes of the door: the supervisor and its worker.
    pub fn door(&self, part: &str) -> Option<i32> {
        let home = self.home.path().to_str().unwrap().as_bytes().to_vec();
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let supervisor = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.get(1) == Some(&&b"door-supervisor"[..]) && words.get(2) == Some(&&home[..])
        };
        let supervisor = pids.find(supervisor)?;
        if part == "supervisor" {
            return Some(supervisor);
        }
        let children =
            std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let list = self.run(&["ls", "-aq"]);
        let ids = String::from_utf8_lossy(&list.stdout).into_owned();
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if !ids.is_empty() {
            self.run(&[&["rm", "-f"], &ids[..]].concat());
        }
        if let Some(supervisor) = self.door("supervisor") {
            processes::send(supervisor, rustix::process::Signal::KILL);
        }
        if std::thread::panicking() {
            eprintln!("the door says:\n{}", self.log());
        }
    }
}

/// Gives the network of this thread its end of the cable, and addresses.
fn configure(cable: &str, addresses: &[&str], ends: [(&str, &str); 2]) {
    run("ip", &["link", "set", "lo", "up"]);
    run("ip", &["link", "set", cable, "up"]);
    for address in addresses {
        run("ip", &["address", "add", address, "dev", "lo", "nodad"]);
    }
    for ((own, other), length) in ends.into_iter().zip([24, 64]) {
        run("ip", &["address", "add", &format!("{own}/{length}"), "dev", cable, "nodad"]);
        run("ip", &["route", "add", "default", "via", other, "dev", cable]);
    }
}

/// Does something in the network abroad, if there is one and `address` is not of this machine.
pub fn where_it_is<T>(address: &str, act: impl FnOnce() -> T) -> T {
    let home = ["127.", "0.0.0.0", OWN, OWN_PRIVATE].iter().any(|own| address.starts_with(own))
        || address.trim_start_matches('[').starts_with(OWN_SIX);
    let go = |network: &dyn AsRawFd| {
        // SAFETY: plain system call; it concerns this thread only.
        let there = unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(there, 0, "{}", std::io::Error::last_os_error());
    };
    ABROAD.with_borrow(|abroad| match abroad {
        Some(abroad) if !home => {
            let here = File::open("/proc/thread-self/ns/net").unwrap();
            go(abroad);
            let done = act();
            go(&here);
            done
        }
        _ => act(),
    })
}

/// A socket that takes in connections at an address, wherever that is.
pub fn listen(address: &str) -> TcpListener {
    where_it_is(address, || TcpListener::bind(address).unwrap())
}

/// The same for datagrams.
pub fn datagrams(address: &str) -> UdpSocket {
    where_it_is(address, || UdpSocket::bind(address).unwrap())
}

fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until something is so.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + patience(Duration::from_secs(30));
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server of plain HTTP that says what it was asked, and by which name it was called.
pub struct HttpServer {
    asked: Arc<Mutex<Vec<String>>>,
}

impl HttpServer {
    pub fn start(address: &str) -> Self {
        let listener = listen(address);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let server = Self { asked: asked.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let asked = asked.clone();
                std::thread::spawn(move || answer(&stream, &asked));
            }
        });
        server
    }

    /// The first lines of all requests, with the host that they named.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(stream: &TcpStream, asked: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut host, mut length) = (String::new(), String::new(), 0);
        if !matches!(reader.read_line(&mut first), Ok(count) if count > 0) {
            return;
        }
        loop {
            let mut line = String::new();
            if !matches!(reader.read_line(&mut line), Ok(count) if count > 0) {
                return;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("host:") {
                host = value.trim().to_owned();
            }
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        asked.lock().unwrap().push(format!("{} {host}", first.trim()));
        let path = first.split_whitespace().nth(1).unwrap_or_default();
        let reply = match path.strip_prefix("/redirect-to/") {
            Some(elsewhere) => {
                format!("HTTP/1.1 302 Found\r\nLocation: http://{elsewhere}/\r\nContent-Length: 0\r\n\r\n")
            }
            None => {
                let body = format!("served {} for {host}\n", first.trim());
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
        };
        if (&mut &*stream).write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// Takes in connections and says who came; to see that nobody did.
pub struct Canary {
    pub address: SocketAddr,
    visits: Arc<Mutex<usize>>,
}

impl Canary {
    pub fn start(address: &str) -> Self {
        let listener = listen(address);
        let visits = Arc::new(Mutex::new(0));
        let canary = Self { address: listener.local_addr().unwrap(), visits: visits.clone() };
        std::thread::spawn(move || {
            // None is closed from this side.
            let mut held = Vec::new();
            for mut stream in listener.incoming().map_while(Result::ok) {
                *visits.lock().unwrap() += 1;
                let _ = stream.write_all(b"canary\n");
                held.push(stream);
            }
        });
        canary
    }

    pub fn visits(&self) -> usize {
        *self.visits.lock().unwrap()
    }
}

/// A program that is gone with this value.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A key and a certificate for these names, and the certificate of whoever vouches for it.
#[derive(Clone)]
pub struct Certified {
    pub key: PathBuf,
    pub certificate: PathBuf,
    pub authority: PathBuf,
}

impl Certified {
    /// Makes them, in files of these names.
    pub fn make(world: &World, prefix: &str, names: &[&str]) -> Self {
        let at = |name: &str| world.home.path().join(format!("{prefix}{name}"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let made =
            Self { key: at("key.pem"), certificate: at("certificate.pem"), authority: at("authority.pem") };
        let (authority_key, request, extensions) = (at("authority.key"), at("request.pem"), at("extensions"));
        let names: Vec<_> = names.iter().map(|name| format!("DNS:{name}")).collect();
        std::fs::write(
            &extensions,
            format!("subjectAltName={}\nbasicConstraints=CA:FALSE\n", names.join(",")),
        )
        .unwrap();
        let key =
            ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test"];
        let new = |words: &[&str], key_file: &Path, out: &Path| {
            run(
                "openssl",
                &[&["req"], words, &key, &["-keyout", &text(key_file), "-out", &text(out)]].concat(),
            );
        };
        new(&["-x509", "-days", "2"], &authority_key, &made.authority);
        new(&[], &made.key, &request);
        let [request, authority, authority_key, extensions, out] =
            [&request, &made.authority, &authority_key, &extensions, &made.certificate]
                .map(|path| text(path));
        let by = ["-CA", &authority, "-CAkey", &authority_key, "-CAcreateserial", "-days", "2"];
        let files = ["-in", &request, "-extfile", &extensions, "-out", &out];
        run("openssl", &[&["x509", "-req"], &by[..], &files].concat());
        made
    }
}

/// A server of TLS with a certificate for these names, which answers HTTP. The file comes along with whom to believe.
pub fn tls_server(world: &World, address: &str, names: &[&str]) -> (Program, PathBuf) {
    let Certified { key, certificate, authority } = Certified::make(world, "", names);
    let (key_path, certificate_path) = (key.to_str().unwrap(), certificate.to_str().unwrap());
    let script = "import ssl, sys, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = b'served inside TLS\\n'
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
host, port = sys.argv[1].rsplit(':', 1)
server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[3], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print('ready', flush=True)
server.serve_forever()";
    let mut server = Command::new("python3");
    server.args(["-c", script, address, key_path, certificate_path]).stdout(Stdio::piped());
    let mut child = where_it_is(address, || server.spawn().unwrap());
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    (Program(child), authority)
}
