//! What hostile code would love to reach: a file, a variable, listeners, a process. Each is watched.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;

use serde_json::{Value, json};

/// The two builds of the program.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) normal: PathBuf,
    pub(crate) ablated: PathBuf,
}

/// Where one worker of the suite tries attacks: a data directory, canaries, and room.
pub(crate) struct Field {
    pub(crate) directory: PathBuf,
    pub(crate) programs: Programs,
    pub(crate) canaries: Canaries,
    _temporary: tempfile::TempDir,
}

impl Field {
    pub(crate) fn new(programs: &Programs) -> Self {
        let temporary = tempfile::Builder::new().prefix("belljar-escape-").tempdir().expect("a directory");
        let directory = temporary.path().canonicalize().expect("its path");
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("its mode");
        let canaries = Canaries::set_up(&directory.join("outside"));
        Self { directory, programs: programs.clone(), canaries, _temporary: temporary }
    }

    /// The data directory.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// A data directory whose launcher does as the suite says.
    pub(crate) fn patched_home(&self) -> PathBuf {
        self.directory.join("patched")
    }

    pub(crate) fn homes(&self) -> Vec<PathBuf> {
        [self.home(), self.patched_home()].into_iter().filter(|home| home.exists()).collect()
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.directory.join("outside")
    }
}

/// Sixteen random bytes as text.
pub(crate) fn random_word() -> String {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The canaries of one worker.
pub(crate) struct Canaries {
    pub(crate) directory: PathBuf,
    /// In the environment of every `belljar`.
    pub(crate) secret: String,
    /// In a file for root alone.
    flag: String,
    /// In a file for everybody who finds it.
    open_flag: String,
    /// In shared memory, a queue and other places of the victim.
    shared: String,
    streams: Vec<(TcpListener, &'static str)>,
    datagrams: Vec<(UdpSocket, &'static str)>,
    sockets: Vec<(UnixListener, &'static str)>,
    abstract_name: String,
    victim: Mutex<Victim>,
}

struct Victim {
    child: Child,
    input: Option<ChildStdin>,
    told: Value,
    output: BufReader<std::process::ChildStdout>,
}

/// A process that has things to lose: shared memory, a queue, a terminal, and itself.
const VICTIM: &str = r#"
import ctypes, json, os, select, sys, termios, tty
token = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
shm = libc.shmget(0, 4096, 0o1666)
at = libc.shmat(shm, None, 0)
if shm >= 0 and at != ctypes.c_void_p(-1).value: ctypes.memmove(at, token.encode(), len(token))
name = "/" + token[:12]
queue = -1
class Attributes(ctypes.Structure): _fields_ = [("all", ctypes.c_long * 8)]
attributes = Attributes((ctypes.c_long * 8)(0, 4, 64, 0))
os.umask(0)
librt = ctypes.CDLL("librt.so.1", use_errno=True)
try: queue = librt.mq_open(name.encode(), os.O_RDWR | os.O_CREAT, 0o666, ctypes.byref(attributes))
except AttributeError: pass
if queue >= 0: librt.mq_send(queue, token.encode(), len(token), 0)
master, slave = os.openpty()
tty.setraw(slave)
os.chmod(os.ttyname(slave), 0o666)
memory = "/dev/shm/" + token[:12]
with open(memory, "w") as file: file.write(token)
print(json.dumps({"pid": os.getpid(), "shm": shm, "queue": name, "terminal": os.ttyname(slave), "memory": memory}), flush=True)
for line in sys.stdin:
    typed = b""
    while select.select([master], [], [], 0)[0]: typed += os.read(master, 4096)
    print(json.dumps({"typed": typed.decode(errors="replace")}), flush=True)
os.unlink(memory)
if queue >= 0: librt.mq_unlink(name.encode())
libc.shmctl(shm, 0, None)
"#;

impl Victim {
    fn start(token: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", VICTIM, token])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the suite needs python3");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let told = line(&mut output);
        Self { child, input, told, output }
    }

    /// What was typed on its terminal, or that it is gone.
    fn state(&mut self) -> Option<String> {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(b"?\n").and_then(|()| input.flush());
        }
        let told = line(&mut self.output);
        match told["typed"].as_str() {
            Some("") => None,
            Some(typed) => Some(format!("{typed:?} arrived on a terminal of the host")),
            None => Some("a process of the host was ended".to_owned()),
        }
    }
}

fn line(from: &mut impl BufRead) -> Value {
    let mut line = String::new();
    let _ = from.read_line(&mut line);
    serde_json::from_str(&line).unwrap_or(Value::Null)
}

impl Canaries {
    fn set_up(directory: &Path) -> Self {
        fs::create_dir_all(directory).expect("a directory for canaries");
        fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("its mode");
        let [secret, flag, open_flag, shared] =
            std::array::from_fn(|_| format!("{}{}", random_word(), random_word()));
        for (name, content, mode) in [("flag", &flag, 0o600), ("open-flag", &open_flag, 0o644)] {
            fs::write(directory.join(name), content).expect("a canary");
            fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).expect("its mode");
        }
        // Forgotten on purpose, as callers do: every program that is started from here on inherits it.
        let forgotten = fs::File::open(directory.join("flag")).expect("a canary");
        let left_open = rustix::io::fcntl_dupfd_cloexec(forgotten.as_fd(), 200).expect("a descriptor");
        rustix::io::fcntl_setfd(&left_open, rustix::io::FdFlags::empty()).expect("a descriptor");
        std::mem::forget(left_open);

        let (mut streams, mut datagrams, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
        let own = own_address();
        let places = [
            ("loopback", Some("127.0.0.1".to_owned())),
            ("loopback6", Some("[::1]".to_owned())),
            ("own", own),
        ];
        for (name, address) in places {
            let Some(address) = address else { continue };
            let Ok(stream) = TcpListener::bind(format!("{address}:0")) else { continue };
            let Ok(datagram) = UdpSocket::bind(format!("{address}:0")) else { continue };
            stream.set_nonblocking(true).expect("a socket");
            datagram.set_nonblocking(true).expect("a socket");
            streams.push((stream, name));
            datagrams.push((datagram, name));
        }
        let abstract_name = random_word();
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name");
        sockets.push((UnixListener::bind_addr(&address).expect("a socket"), "the abstract socket"));
        let path = directory.join("socket");
        sockets.push((UnixListener::bind(&path).expect("a socket"), "the socket in a directory"));
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("its mode");
        for (socket, _) in &sockets {
            socket.set_nonblocking(true).expect("a socket");
        }
        let victim = Mutex::new(Victim::start(&shared));
        Self {
            directory: directory.to_owned(),
            secret,
            flag,
            open_flag,
            shared,
            streams,
            datagrams,
            sockets,
            abstract_name,
            victim,
        }
    }

    /// What attackers are told: where everything is, and nothing of what it holds.
    pub(crate) fn told(&self) -> Value {
        let port = |name: &str, stream: bool| {
            let tcp = self.streams.iter().find(|(_, place)| *place == name).map(|(s, _)| s.local_addr());
            let udp = self.datagrams.iter().find(|(_, place)| *place == name).map(|(s, _)| s.local_addr());
            let address = if stream { tcp } else { udp };
            address.and_then(Result::ok).map(|address| json!([address.ip().to_string(), address.port()]))
        };
        let listeners: Vec<Value> = ["loopback", "loopback6", "own"]
            .into_iter()
            .map(|name| json!({"name": name, "tcp": port(name, true), "udp": port(name, false)}))
            .collect();
        let victim = self.victim.lock().expect("nobody panics with it").told.clone();
        json!({
            "flag": self.directory.join("flag"), "open_flag": self.directory.join("open-flag"),
            "directory": self.directory, "listeners": listeners, "abstract": self.abstract_name,
            "socket": self.directory.join("socket"), "victim": victim, "pid": std::process::id(),
            "hostname": fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim(),
        })
    }

    pub(crate) fn victim_pid(&self) -> i32 {
        self.victim.lock().expect("nobody panics with it").told["pid"].as_i64().unwrap_or(-1) as i32
    }

    /// Whether any of their bytes are in there.
    pub(crate) fn leaked(&self, bytes: &[u8]) -> Option<String> {
        let named = [
            ("the environment", &self.secret),
            ("the flag", &self.flag),
            ("the open flag", &self.open_flag),
            ("the victim", &self.shared),
        ];
        let found = named
            .into_iter()
            .find(|(_, token)| bytes.windows(token.len()).any(|window| window == token.as_bytes()))?;
        Some(format!("what {} holds came out", found.0))
    }

    /// Whether anything came to a listener, the victim or the files since this was last asked.
    pub(crate) fn touched(&self) -> Option<String> {
        let mut found = Vec::new();
        for (listener, name) in &self.streams {
            while listener.accept().is_ok() {
                found.push(format!("a connection to {name}"));
            }
        }
        for (socket, name) in &self.datagrams {
            while socket.recv(&mut [0; 64]).is_ok() {
                found.push(format!("a datagram to {name}"));
            }
        }
        for (socket, name) in &self.sockets {
            while socket.accept().is_ok() {
                found.push(format!("a connection to {name}"));
            }
        }
        let mut victim = self.victim.lock().expect("nobody panics with it");
        if let Some(what) = victim.state() {
            found.push(what);
            if victim.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                *victim = Victim::start(&self.shared);
            }
        }
        for (name, content, mode) in [("flag", &self.flag, 0o600), ("open-flag", &self.open_flag, 0o644)] {
            let path = self.directory.join(name);
            let same = fs::read_to_string(&path).is_ok_and(|now| now == *content)
                && fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o7777 == mode);
            if !same {
                found.push(format!("the file {name} was changed"));
                let _ = fs::remove_file(&path);
                let _ = fs::write(&path, content);
                let _ = fs::set_permissions(&path, Permissions::from_mode(mode));
            }
        }
        let known = ["flag", "open-flag", "socket"];
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if !known.iter().any(|name| entry.file_name() == *name) {
                found.push(format!("{:?} appeared outside", entry.file_name()));
                let path = entry.path();
                let _ = if path.is_dir() && !path.is_symlink() {
                    fs::remove_dir_all(path)
                } else {
                    fs::remove_file(path)
                };
            }
        }
        (!found.is_empty()).then(|| found.join(", "))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It takes down what it put up when nobody talks to it any more.
        self.input = None;
        let _ = self.child.wait();
    }
}

/// An address of this machine that is not a loopback one, if it has a route anywhere. Sends nothing.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}
