//! What an attack on the whole thing once broke, and must not again. Each names what was at stake.

use std::fs;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::{Bell, belljar, not_promised_rootless, patience, send, span, text, until, users};

/// A lease on a file that the host uses makes whoever opens it there wait.
#[test]
fn nobody_inside_can_make_the_host_wait_for_a_file() {
    const LEASE: &str =
        "import fcntl, sys; fcntl.fcntl(open(sys.argv[1]), 1024, fcntl.F_RDLCK); print('leased')";
    let bell = Bell::new();
    let own = bell.home.path().join("own");
    fs::write(&own, "").unwrap();
    let control = std::process::Command::new("python3").args(["-c", LEASE]).arg(&own).output().unwrap();
    assert_eq!(text(&control.stdout), "leased\n", "the owner of a file may");
    for &user in users() {
        for file in ["/usr/bin/env", "/etc/hosts"] {
            let tried = bell.run(&["run", "--user", user, "--", "python3", "-c", LEASE, file]);
            assert!(!tried.status.success(), "{user} leased {file}");
            assert!(text(&tried.stderr).contains("Operation not permitted"), "{}", text(&tried.stderr));
        }
    }
}

/// Root inside could take the guest's file descriptors away, and with them every later execution.
#[test]
fn root_inside_cannot_change_the_limits_of_the_first_process() {
    if not_promised_rootless("there is no root inside") {
        return;
    }
    let bell = Bell::new();
    let id = bell.create(&[]);
    let script = "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (8, 8))";
    let tried = bell.json(&["exec", "--user", "root", &id, "--", "python3", "-c", script]);
    assert!(tried["stderr"].as_str().unwrap().contains("PermissionError"), "{tried}");
    assert_eq!(bell.shell(&id, "echo works")["stdout"], "works\n");
}

/// Buffers of sockets are memory too, and on some kernels nobody counts them.
#[test]
fn socket_buffers_do_not_escape_the_memory_limit() {
    if not_promised_rootless("memory is bounded per process, not for the sandbox") {
        return;
    }
    const FILL: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0), backlog=1000)
pairs, parked = [], 0
try:
    for _ in range(1500):
        one = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
        one.setblocking(False)
        pairs.append((one, other))
        try:
            while True:
                parked += one.send(bytes(65536))
        except BlockingIOError:
            pass
except OSError:
    pass
print(parked >> 20)
";
    let bell = Bell::new();
    let result = bell.json(&["run", "--memory", "64m", "--timeout", &span(60), "--", "python3", "-c", FILL]);
    let parked: u64 = match result["stdout"].as_str().unwrap().trim() {
        // Killed for it is as good.
        "" => return assert_eq!(result["termination"], "out_of_memory", "{result}"),
        number => number.parse().unwrap(),
    };
    assert!(parked < 128, "{parked} MiB are parked in sockets of a sandbox with 64 MiB");
}

/// What waits in a netlink socket is memory that nobody counts: a sandbox has a few at a time, unbound ones counted,
/// and what needs one works.
#[test]
fn netlink_sockets_are_few_and_work() {
    const OPEN: &str = "
import errno, os, socket, threading
print([name for _, name in socket.if_nameindex()])
threading.stack_size(1 << 18)
threads = [threading.Thread(target=socket.getaddrinfo, args=('localhost', 80)) for _ in range(40)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
def fill():
    held = []
    try:
        while len(held) < 100: held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    except OSError as error:
        return len(held), errno.errorcode[error.errno], any(os.get_inheritable(one.fileno()) for one in held)
    return held
count, name, inheritable = fill()
print(4 <= count <= 32, name, inheritable, fill() == fill())
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        fill()
        os._exit(0)
fill()
[os.waitpid(child, 0) for child in children]
for kind in (socket.SOCK_STREAM, 77):
    try: socket.socket(socket.AF_NETLINK, kind, 0); print('opened', kind)
    except OSError as error: print(errno.errorcode[error.errno])
print(len(socket.if_nameindex()))
";
    let bell = Bell::new();
    let result = bell.json(&["run", "--memory", "64m", "--", "python3", "-c", OPEN]);
    let said = result["stdout"].as_str().unwrap();
    let expected = "['lo']\nTrue ENOBUFS False True\nESOCKTNOSUPPORT\nESOCKTNOSUPPORT\n1\n";
    assert_eq!(said, expected, "{result}");
}

/// Connections that nobody has accepted are memory that nobody counts: a sandbox has a bounded number of listeners, with
/// short queues, and what serves works.
#[test]
fn listeners_are_bounded_and_work() {
    const LISTEN: &str = "
import errno, os, socket, threading
def listen(): return socket.create_server(('127.0.0.1', 0))
def fill():
    held = []
    try:
        while len(held) < 300: held.append(listen())
    except OSError as error:
        return len(held), errno.errorcode[error.errno]
for _ in range(200): listen().close()
count, name = fill()
print(4 <= count <= 256, name, fill() == (count, name))
threading.stack_size(1 << 18)
done, ready = threading.Event(), threading.Barrier(21)
def serve():
    own = socket.socket(socket.AF_UNIX); own.bind(str(threading.get_native_id())); own.listen(); ready.wait(); done.wait()
[threading.Thread(target=serve).start() for _ in range(20)]
ready.wait()
server = listen()
child = os.fork()
if child == 0:
    end = socket.create_connection(server.getsockname()); end.sendall(bytes(1 << 22)); os._exit(0)
end, got = server.accept()[0], 0
while piece := end.recv(1 << 16): got += len(piece)
# Those that have listened and wait now count no more: a listener of the internet's is the only one in the way.
print(got, fill() == (count - 1, name))
done.set()
";
    let bell = Bell::new();
    let result =
        bell.json(&["run", "--memory", "256m", "--timeout", &span(60), "--", "python3", "-c", LISTEN]);
    assert_eq!(result["stdout"], "True ENOBUFS True\n4194304 True\n", "{result}");
}

/// Some of what waits in sockets of the internet is memory that nobody counts: a sandbox has a bounded number of them, in
/// every state, and what connects, serves and sends works.
#[test]
fn sockets_of_the_internet_are_bounded_and_work() {
    const MAKE: &str = "
import errno, resource, socket, threading
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def fill(kind, also):
    held = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(200)]
    try:
        while len(held) < 1500: held.append(socket.socket(also if len(held) % 2 else socket.AF_INET, kind))
    except OSError as error:
        return len(held) - 200, errno.errorcode[error.errno]
print(*(fill(socket.SOCK_DGRAM, socket.AF_INET6) for _ in range(2)))
print(*(fill(socket.SOCK_STREAM, socket.AF_INET6) for _ in range(2)))
server, got = socket.create_server(('127.0.0.1', 0)), []
def serve():
    for _ in range(600):
        end = server.accept()[0]; got.append(end.recv(1)); end.close()
thread = threading.Thread(target=serve); thread.start()
for _ in range(600): end = socket.create_connection(server.getsockname()); end.send(b'x'); end.close()
thread.join()
one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
one.bind(('127.0.0.1', 0)); other.sendto(b'hello', one.getsockname())
print(len(got), one.recv(9))
held = []
try:
    while len(held) < 1000: held.append((socket.create_connection(server.getsockname()), server.accept()[0]))
except OSError as error: print(250 < len(held) <= 256, errno.errorcode[error.errno])
";
    let bell = Bell::new();
    let result = bell.json(&["run", "--memory", "64m", "--timeout", &span(60), "--", "python3", "-c", MAKE]);
    let expected =
        "(64, 'ENFILE') (64, 'ENFILE')\n(512, 'ENFILE') (512, 'ENFILE')\n600 b'hello'\nTrue ENFILE\n";
    assert_eq!(result["stdout"], expected, "{result}");
}

/// A disk that is an image is written past the host's page cache: no group is charged for what lies there, nor for the thread
/// of the kernel that copies it.
#[test]
fn disks_that_are_images_leave_the_hosts_page_cache_alone() {
    if not_promised_rootless("disks larger than three quarters of the memory") {
        return;
    }
    let bell = Bell::new();
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = rustix::fs::open(bell.home.path().join("direct"), flags, Mode::from_raw_mode(0o600)).is_ok();
    let id = bell.create(&["--memory", "64m", "--disk", "256m"]);
    let written = bell.json(&[
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "head -c 100m /dev/zero > file && sync file && wc -c < file",
    ]);
    assert_eq!(written["stdout"], "104857600\n", "{written}");
    let home = bell.home.path().to_string_lossy().into_owned();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let loops = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("loop"));
    let ours: Vec<String> = loops
        .filter(|entry| read(entry.join("backing_file")).starts_with(&home))
        .map(|entry| read(entry.join("dio")))
        .collect();
    assert_eq!(
        ours,
        [if direct { "1\n" } else { "0\n" }],
        "one device, and past the cache where that can be"
    );
}

/// Locks on files are memory that nobody counts, and slow down the whole machine: who holds too many is ended, and told
/// why; who holds many is not.
#[test]
fn a_hoard_of_locks_ends_its_execution_and_no_other() {
    const LOCK: &str = "
import fcntl, sys, time
count, seconds = int(sys.argv[1]), float(sys.argv[2])
held = open(sys.argv[1], 'w')
for number in range(count): fcntl.lockf(held, fcntl.LOCK_EX, 1, 2 * number)
until = time.monotonic() + seconds
while time.monotonic() < until: pass
print('still there')
";
    let bell = Bell::new();
    let id = bell.create(&["--memory", "128m"]);
    let many = ["exec", "--json", "-d", &id, "--", "python3", "-c", LOCK, "1000", "2"];
    assert!(bell.run(&many).status.success());
    let words = ["--timeout", &span(60), &id, "--", "python3", "-c", LOCK, "6000", "600"];
    let hoarded = bell.run(&[&["exec"], words.as_slice()].concat());
    assert_eq!(hoarded.status.code(), Some(137), "{hoarded:?}");
    assert!(text(&hoarded.stderr).contains("too many locks: "), "{hoarded:?}");
    let hoarded = bell.json(&[&["exec"], words.as_slice()].concat());
    assert_eq!(hoarded["termination"], "too_many_locks", "{hoarded}");
    let kept = bell.json(&["logs", "--follow", &id, "1"]);
    let kept_ending = bell.json(&["inspect", &id])["executions"][0]["termination"].clone();
    assert_eq!(kept_ending["termination"], "exited", "{kept} {kept_ending}");
}

/// One message that was too large for the monitor ended the sandbox.
#[test]
fn listing_hostile_links_harms_nobody() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let made = bell
        .python(&id, "import os; os.mkdir('d'); [os.symlink(b'\\x01' * 4095, f'd/{n}') for n in range(300)]");
    assert_eq!(made["exit_code"], 0, "{made}");
    let listed = bell.json(&["ls", &format!("{id}:d")]);
    assert_eq!(listed["entries"].as_array().unwrap().len(), 300);
    assert_eq!(bell.state(&id).as_deref(), Some("running"));
}

/// The command line's memory grew with whatever a directory held.
#[test]
fn a_listing_has_a_bound_in_bytes() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let made = bell
        .python(&id, "import os; os.mkdir('d'); [os.symlink('x' * 4000, f'd/{n}') for n in range(20000)]");
    assert_eq!(made["exit_code"], 0, "{made}");
    let listed = bell.json(&["ls", &format!("{id}:d")]);
    assert_eq!(listed["error"]["code"], "resource_exhausted", "{listed}");
    assert_eq!(bell.shell(&id, "echo works")["stdout"], "works\n");
}

/// A reader that stood still while much was listed lost contact.
#[test]
fn a_listing_waits_for_its_reader() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let made =
        bell.python(&id, "import os; os.mkdir('d'); [os.symlink('x' * 4000, f'd/{n}') for n in range(6000)]");
    assert_eq!(made["exit_code"], 0, "{made}");
    let mut reader = bell.command(&["ls", "--json", &format!("{id}:d")]).spawn().unwrap();
    let said = reader.stdout.take().unwrap();
    let said = std::thread::spawn(move || std::io::read_to_string(said));
    // It stands still for most of the time, and the guest has nobody else to wait for.
    let pid = reader.id().cast_signed();
    while reader.try_wait().unwrap().is_none() {
        for (signal, span) in [(Signal::STOP, 8), (Signal::CONT, 1)] {
            send(pid, signal);
            std::thread::sleep(Duration::from_millis(span));
        }
    }
    let listed: serde_json::Value = serde_json::from_str(&said.join().unwrap().unwrap()).unwrap();
    assert_eq!(listed["entries"].as_array().map(Vec::len), Some(6000), "{listed}");
}

/// A copy that lost files looked like a whole one.
#[test]
fn a_copy_that_is_not_whole_says_so() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    bell.shell(&id, "mkdir -p t/a t/m t/z; echo 2 > t/z/important; chmod 0 t/m");
    let copied = bell.run(&["cp", &format!("{id}:t"), bell.home.path().join("t").to_str().unwrap()]);
    assert_eq!(copied.status.code(), Some(125));
    assert!(text(&copied.stderr).contains("t/m"), "what was in the way: {}", text(&copied.stderr));
}

/// Names that no host takes made the copy slower with every level.
#[test]
fn a_tree_deeper_than_a_path_is_refused() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let made =
        bell.python(&id, "import os\nfor _ in range(200):\n os.mkdir('x' * 200)\n os.chdir('x' * 200)");
    assert_eq!(made["exit_code"], 0, "{made}");
    let to = bell.home.path().join("deep");
    let copied = bell.run(&["cp", &format!("{id}:{}", "x".repeat(200)), to.to_str().unwrap()]);
    assert_eq!(copied.status.code(), Some(125));
    assert!(text(&copied.stderr).contains("bytes"), "{}", text(&copied.stderr));
}

/// A monitor that hangs kept `ls` and `rm` waiting.
#[test]
fn a_sandbox_whose_monitor_hangs_can_be_listed_and_removed() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let keepers = bell.keepers(&id);
    send(keepers.monitor, Signal::STOP);
    assert!(bell.state(&id).is_some());
    let removed = bell.run(&["rm", "-f", &id]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    bell.assert_gone(keepers.slot);
}

/// A lock that the caller held stayed held as long as the sandbox lived.
#[test]
fn a_sandbox_keeps_nothing_that_its_creator_had_open() {
    let bell = Bell::new();
    let lock = bell.home.path().join("lock-of-the-caller");
    let script = format!("exec 9>'{}'; flock 9; exec '{}' create", lock.display(), belljar().display());
    let created = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("BELLJAR_HOME", bell.home.path())
        .output()
        .unwrap();
    assert!(created.status.success(), "{}", text(&created.stderr));
    let free = || {
        std::process::Command::new("flock").args(["-n"]).arg(&lock).arg("true").status().unwrap().success()
    };
    until("the lock is free", patience(Duration::from_secs(5)), free);
}

/// A monitor that could not write its log died of it, and its sandbox with it.
#[test]
fn a_full_disk_outside_ends_no_sandbox() {
    if not_promised_rootless("nothing less; but an ordinary user cannot mount the disk that this fills") {
        return;
    }
    let bell = Bell::new();
    let disk = crate::surroundings::SmallDisk::mount(bell.home.path().join("disk"));
    let home = disk.0.to_str().unwrap();
    let id = text(&bell.run(&["--home", home, "create"]).stdout).trim().to_owned();
    disk.fill();
    let result = bell.json(&["exec", "--home", home, &id, "--", "sh", "-c", "echo ran; exit 3"]);
    assert_eq!(result["exit_code"], 3, "{result}");
    assert!(result["stdout"] == "ran\n" || result["stdout_gap"] == 4, "told or counted: {result}");
    disk.relieve();
    let after = bell.json(&["exec", "--home", home, &id, "--", "echo", "works"]);
    assert_eq!(after["stdout"], "works\n", "{after}");
    assert!(bell.run(&["--home", home, "rm", "-f", &id]).status.success());
}

/// Commands that could not be started left their (empty) output behind for good, and long ones hid all others.
#[test]
fn odd_commands_leave_the_list_of_executions_usable() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    for _ in 0..3 {
        assert_eq!(bell.run(&["exec", &id, "--", "/nonexistent"]).status.code(), Some(127));
    }
    let spools = || fs::read_dir(bell.directory(&id).join("spool")).unwrap().count();
    assert_eq!(spools(), 0);
    let long = "x".repeat(120_000);
    for _ in 0..40 {
        assert!(bell.run(&["exec", &id, "--", "true", &long]).status.success());
    }
    let inspected = bell.json(&["inspect", &id]);
    assert_eq!(inspected["executions"].as_array().unwrap().len(), 40, "{inspected}");
    assert!(bell.run(&["logs", &id]).status.success());
}

/// More variables than a socket holds made the launch wait for itself.
#[test]
fn a_large_environment_does_not_hold_up_a_launch() {
    let bell = Bell::new();
    let variables: Vec<String> =
        ["A", "B", "C", "D"].map(|name| format!("{name}={}", "x".repeat(100_000))).into();
    let options: Vec<&str> = variables.iter().flat_map(|variable| ["--env", variable]).collect();
    let result = bell.json(&[&["run"], &options[..], &["--", "sh", "-c", "echo ${#A} ${#D}"]].concat());
    assert_eq!(result["stdout"], "100000 100000\n", "{result}");
}
