//! What the default user inside cannot see, reach or do. Where it is cheap, the same attempt is made on the host, where
//! it succeeds: the test would notice if it tried the wrong thing.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::surroundings::processes::{FIRST_ID, IDS_PER_SLOT};
use crate::{
    Bell, Process, in_slot, is_rootless, long, marked, marker, not_promised_rootless, text, until, users,
};

/// Attempts by name: what came of each, "done" or the name of the error.
type Attempts = BTreeMap<String, String>;

/// Each argument is an attempt; they are told as one JSON object.
const CONNECT: &str = r#"
import errno, json, os, socket, sys
def attempt(what):
    kind, _, rest = what.partition(":")
    if kind == "abstract":
        socket.socket(socket.AF_UNIX).connect("\0" + rest)
    elif kind == "path":
        socket.socket(socket.AF_UNIX).connect(rest)
    elif kind == "name":
        socket.getaddrinfo(rest, 80)
    elif kind == "socket":
        socket.socket(*[int(number) for number in rest.split(",")])
    else:
        address, _, port = rest.rpartition(":")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        made.settimeout(50)
        if kind == "udp": made.sendto(b"hello", (address, int(port)))
        else: made.connect((address, int(port)))
told = {}
for what in sys.argv[1:]:
    try:
        attempt(what)
        told[what] = "done"
    except socket.gaierror as error: told[what] = "unresolved"
    except TimeoutError: told[what] = "timeout"
    except OSError as error: told[what] = errno.errorcode.get(error.errno, str(error))
print(json.dumps(told))
"#;

fn attempts_inside(bell: &Bell, script: &str, what: &[&str]) -> Attempts {
    let object = bell.json(&[&["run", "--", "python3", "-c", script], what].concat());
    let told = object["stdout"].as_str().unwrap_or_else(|| panic!("{object}"));
    serde_json::from_str(told).unwrap_or_else(|_| panic!("{object}"))
}

fn attempts_outside(script: &str, what: &[&str]) -> Attempts {
    let output = Command::new("python3").arg("-c").arg(script).args(what).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// An address of this machine that is not a loopback one, if it has a route anywhere.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

#[test]
fn no_listener_of_the_host_is_reached() {
    let bell = Bell::new();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let addresses: Vec<String> =
        ["127.0.0.1".to_owned()].into_iter().chain(own_address()).chain(["::1".to_owned()]).collect();
    let mut what = Vec::new();
    let mut streams = Vec::new();
    let mut datagrams = Vec::new();
    for address in &addresses {
        let bind = if address.contains(':') { format!("[{address}]:0") } else { format!("{address}:0") };
        let Ok(listener) = TcpListener::bind(&bind) else { continue };
        let datagram = UdpSocket::bind(&bind).unwrap();
        what.push(format!("tcp:{address}:{}", listener.local_addr().unwrap().port()));
        what.push(format!("udp:{address}:{}", datagram.local_addr().unwrap().port()));
        listener.set_nonblocking(true).unwrap();
        datagram.set_nonblocking(true).unwrap();
        streams.push(listener);
        datagrams.push(datagram);
    }
    let name = marker();
    let path = directory.path().join("socket");
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let _path = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    what.push(format!("abstract:{name}"));
    what.push(format!("path:{}", path.display()));
    let what: Vec<&str> = what.iter().map(String::as_str).collect();

    let inside = attempts_inside(&bell, CONNECT, &what);
    for (what, came) in &inside {
        // A datagram to an address of the sandbox's own loopback leaves the socket and arrives nowhere.
        assert!(
            came != "done" || what.starts_with("udp:127.") || what.starts_with("udp:::1"),
            "{what}: {came}"
        );
    }
    for listener in &streams {
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    for datagram in &datagrams {
        assert_eq!(datagram.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    let outside = attempts_outside(CONNECT, &what);
    assert!(outside.values().all(|came| came == "done"), "{outside:?}");
    for datagram in &datagrams {
        assert_eq!(datagram.recv(&mut [0; 16]).unwrap(), 5, "the control arrives");
    }
}

#[test]
fn there_is_no_route_and_no_name_service() {
    let bell = Bell::new();
    let what = [
        "tcp:1.1.1.1:443",
        "tcp:169.254.169.254:80",
        "udp:8.8.8.8:53",
        "tcp:192.168.0.1:80",
        "tcp:2606:4700:4700::1111:443",
        "tcp:10.0.0.1:22",
        "udp:255.255.255.255:67",
        "udp:224.0.0.251:5353",
    ];
    for (what, came) in attempts_inside(&bell, CONNECT, &what) {
        assert!(["ENETUNREACH", "EPERM", "EACCES", "EADDRNOTAVAIL"].contains(&&*came), "{what}: {came}");
    }
    let came = attempts_inside(&bell, CONNECT, &["name:example.com"]);
    assert_eq!(came["name:example.com"], "unresolved");
    let object = bell.json(&[
        "run",
        "--",
        "sh",
        "-c",
        "cat /proc/net/route; ls /proc/sys/net/ipv4/conf; cat /proc/net/dev",
    ]);
    let told = object["stdout"].as_str().unwrap();
    assert!(!told.contains("eth") && told.lines().filter(|line| line.contains(':')).count() == 1, "{told}");
}

#[test]
fn only_sockets_that_stay_inside_can_be_made() {
    let bell = Bell::new();
    // Family, type, protocol: packet, raw, ping, vsock, crypto, bluetooth, xdp, tipc, key, rds, can, llc, x25.
    let refused = [
        "socket:17,3,768",
        "socket:17,2,768",
        "socket:2,3,1",
        "socket:2,3,255",
        "socket:10,3,58",
        "socket:2,2,1",
        "socket:40,1,0",
        "socket:38,5,0",
        "socket:31,3,1",
        "socket:44,3,0",
        "socket:30,1,0",
        "socket:15,3,2",
        "socket:21,5,0",
        "socket:29,3,1",
        "socket:26,1,0",
        "socket:9,5,0",
        "socket:39,1,1",
        "socket:16,2,9",
    ];
    for (what, came) in attempts_inside(&bell, CONNECT, &refused) {
        assert_ne!(came, "done", "{what}");
    }
    let netlink: Vec<String> = (1..23).map(|protocol| format!("socket:16,3,{protocol}")).collect();
    let netlink: Vec<&str> = netlink.iter().map(String::as_str).collect();
    for (what, came) in attempts_inside(&bell, CONNECT, &netlink) {
        assert_ne!(came, "done", "{what}");
    }
    let allowed = ["socket:2,1,0", "socket:2,2,0", "socket:10,1,0", "socket:1,1,0", "socket:16,3,0"];
    let came = attempts_inside(&bell, CONNECT, &allowed);
    assert!(came.values().all(|came| came == "done"), "{came:?}");

    if not_promised_rootless(
        "nothing less; but the host's ordinary users cannot make these either, so there is no control",
    ) {
        return;
    }
    let control = ["socket:17,3,768", "socket:2,3,1", "socket:16,3,16"];
    let came = attempts_outside(CONNECT, &control);
    assert!(came.values().all(|came| came == "done"), "{came:?}");
}

#[test]
fn no_process_of_the_host_or_of_a_neighbour_is_seen_or_touched() {
    let bell = Bell::new();
    let (mark, other) = (marker(), marker());
    let mut host = Command::new("sh").args(["-c", "read line", &mark]).stdin(Stdio::piped()).spawn().unwrap();
    let neighbour = bell.create(&[]);
    let background =
        bell.json(&["exec", "-d", &neighbour, "--", "sh", "-c", "while :; do sleep 1; done", &other]);
    assert_eq!(background["exec"], 1);
    until("the neighbour runs", long(), || !marked(&other).is_empty());
    let seen = |own: &str| processes_with(own).len();
    assert!(seen(&mark) >= 1 && seen(&other) >= 1, "the host sees both");

    let script = r"
import ctypes, errno, glob, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
words = os.environ['MARKS'].split()
for path in glob.glob('/proc/[0-9]*/cmdline'):
    text = open(path).read()
    print('seen' if any(word in text for word in words) else 'other', path)
for pid in map(int, os.environ['PIDS'].split()):
    for call in (lambda: os.kill(pid, 0), lambda: os.kill(pid, 9), lambda: os.pidfd_open(pid), lambda: os.stat(f'/proc/{pid}'),
                 lambda: os.killpg(pid, 9), lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)):
        try:
            call()
            print('touched', pid)
        except OSError as error:
            assert error.errno in (errno.ESRCH, errno.ENOENT, errno.EPERM), error
print('finished', flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try: os.kill(-1, signal.SIGTERM)
except ProcessLookupError: pass
";
    let pids: Vec<String> = [host.id() as i32, marked(&other)[0].pid, std::process::id() as i32]
        .iter()
        .map(ToString::to_string)
        .collect();
    let (marks, pids) = (format!("MARKS={mark} {other}"), format!("PIDS={}", pids.join(" ")));
    let object = bell.json(&["run", "--env", &marks, "--env", &pids, "--", "python3", "-c", script]);
    let told = object["stdout"].as_str().unwrap();
    assert!(told.ends_with("finished\n"), "{object}");
    assert!(!told.contains("seen") && !told.contains("touched"), "{told}");
    assert!(told.lines().count() < 8, "{told}");
    assert_eq!(host.try_wait().unwrap(), None, "the host's process lives");
    assert_eq!(marked(&other).len(), 1, "the neighbour's process lives");
    host.kill().unwrap();
    host.wait().unwrap();
}

/// The processes of the host with this word, whoever they belong to.
fn processes_with(mark: &str) -> Vec<Process> {
    let mut found = crate::processes();
    found.retain(|process| process.command.contains(mark));
    found
}

#[test]
fn no_file_of_the_host_is_read_or_written() {
    let bell = Bell::new();
    let name = marker();
    let mut kept = Vec::new();
    let mut paths = Vec::new();
    for parent in ["/tmp", "/var/tmp", "/root", "/home", "/opt", "/run", "/srv", "/var/lib", "/mnt"] {
        let made = tempfile::Builder::new().prefix("belljar-canary").tempdir_in(parent);
        // An ordinary user has fewer places to leave something readable.
        if is_rootless() && made.is_err() {
            continue;
        }
        let directory = made.unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        let path = directory.path().join(&name);
        fs::write(&path, "canary").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        paths.push(path.to_str().unwrap().to_owned());
        kept.push(directory);
    }
    let script = r"
import os, sys
for path in sys.argv[1:]:
    for way in ('', '/proc/1/root', '/proc/self/root', '/proc/self/cwd/../../..', '/../../..', '/proc/2/root'):
        for mode in ('rb', 'r+b', 'ab'):
            try:
                open(way + path, mode).read(1)
                print('opened', way + path, mode)
            except OSError: pass
print('finished')
";
    assert!(paths.len() >= 2, "{paths:?}");
    let id = bell.create(&[]);
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    for &user in users() {
        let exec = ["exec", "--user", user, &id, "--", "python3", "-c", script];
        let object = bell.json(&[&exec[..], &words].concat());
        assert_eq!(object["stdout"], "finished\n", "{user}: {object}");
    }
    for path in &paths {
        assert_eq!(fs::read_to_string(path).unwrap(), "canary", "the control is readable and unchanged");
    }

    // Neither by name anywhere, nor the data directory, nor what is private on a host.
    let home = bell.home.path().display().to_string();
    let looks = format!(
        "find / -path /proc -prune -o -name '{name}' -print 2>/dev/null; for path in {home} /var/lib/belljar /run/belljar \
         /root/.ssh /root/.bash_history /root/.config /boot /sys /lost+found /var/log /dev/vda /dev/kmsg /dev/mem \
         /dev/kvm /dev/fuse /dev/loop0 /proc/kcore /proc/1/fd/0 /proc/1/mem /proc/1/environ; do \
         [ \"$(head -c1 $path 2>/dev/null | wc -c)\" = 0 ] || echo read $path; ls $path/ 2>/dev/null; done; ls -A /home; echo finished"
    );
    let object = bell.shell(&id, &looks);
    assert_eq!(object["stdout"], "user\nfinished\n", "{object}");

    // Accounts are the template's; no password of the host's comes along.
    if not_promised_rootless("nothing less; but an ordinary user has no host's passwords to compare with") {
        return;
    }
    let shadow = fs::read_to_string("/etc/shadow").unwrap();
    let object = bell.json(&[
        "exec",
        "--user",
        "root",
        &id,
        "--",
        "sh",
        "-c",
        "cat /etc/shadow 2>&1; cat /etc/machine-id 2>&1",
    ]);
    let told = object["stdout"].as_str().unwrap();
    for secret in shadow.lines().filter_map(|line| line.split(':').nth(1)).filter(|field| field.len() > 4) {
        assert!(!told.contains(secret));
    }
    if let Ok(machine) = fs::read_to_string("/etc/machine-id")
        && !machine.trim().is_empty()
    {
        assert!(!told.contains(machine.trim()), "the machine's id stays outside");
    }
}

#[test]
fn the_programs_of_the_host_stay_as_they_are() {
    let bell = Bell::new();
    let before = fs::metadata("/usr/bin/env").unwrap();
    let script = "echo broken > /usr/bin/env; rm -f /usr/bin/env; chmod 777 /usr/bin/env; touch /usr/bin/new /usr/new; true";
    for &user in users() {
        let object = bell.json(&["run", "--user", user, "--", "/bin/sh", "-c", script]);
        assert_eq!(object["exit_code"], 0);
    }
    let after = fs::metadata("/usr/bin/env").unwrap();
    assert_eq!((before.len(), before.permissions()), (after.len(), after.permissions()));
    assert!(!fs::exists("/usr/bin/new").unwrap() && !fs::exists("/usr/new").unwrap());
    assert_eq!(
        bell.json(&["run", "--", "/usr/bin/env", "true"])["exit_code"],
        0,
        "nor does the next sandbox see it"
    );
}

#[test]
fn no_variable_of_the_host_comes_along() {
    let bell = Bell::new();
    let (secret, mark) = (marker(), marker());
    let script = "env; cat /proc/*/environ | tr '\\0' '\\n'; echo finished; while :; do sleep 1; done";
    let mut child = bell
        .command(&["run", "--env", "GIVEN=gift", "--", "sh", "-c", script, &mark])
        .env("SECRET", &secret)
        .env("LD_LIBRARY_PATH", format!("/{secret}"))
        .env("PIP_INDEX_URL", format!("https://me:{secret}@pypi.example/simple"))
        .env("HTTPS_PROXY", format!("http://me:{secret}@proxy.example"))
        .env("npm_config_registry", format!("https://me:{secret}@npm.example"))
        .env("AWS_SECRET_ACCESS_KEY", &secret)
        .spawn()
        .unwrap();
    until("the command runs", long(), || !marked(&mark).is_empty());
    let slot = marked(&mark)[0].slot().unwrap();
    let control = fs::read(format!("/proc/{}/environ", child.id())).unwrap();
    assert!(String::from_utf8_lossy(&control).contains(&secret), "the command line has it");
    for process in in_slot(slot) {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains(&secret), "{process:?}");
    }
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap())).map(Result::unwrap);
    let told: Vec<String> = lines.by_ref().take_while(|line| line != "finished").collect();
    assert!(told.iter().any(|line| line == "GIVEN=gift"), "{told:?}");
    assert!(!told.iter().any(|line| line.contains(&secret)), "{told:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn there_is_no_capability_and_no_host_root() {
    let bell = Bell::new();
    let (id, mark) = (bell.create(&[]), marker());
    let status = bell.shell(&id, "cat /proc/self/status")["stdout"].as_str().unwrap().to_owned();
    let field = |name: &str| -> Vec<&str> {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split_whitespace().skip(1).collect()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("NoNewPrivs"), ["1"]);
    assert_eq!(field("Seccomp"), ["2"]);
    assert_eq!(field("Uid"), ["1000"; 4]);
    assert_eq!(field("Gid"), ["1000"; 4]);
    assert!(field("Groups").iter().all(|group| *group == "1000"));

    if not_promised_rootless("ids of its own: processes inside have the caller's") {
        let ids = rustix::process::geteuid().as_raw();
        let told = bell.shell(&id, "cat /proc/self/uid_map")["stdout"].as_str().unwrap().to_owned();
        let numbers: Vec<u32> = told.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers, [1000, ids, 1], "the caller's id and no other");
        return;
    }
    for map in ["uid_map", "gid_map"] {
        let told = bell.shell(&id, &format!("cat /proc/self/{map} /proc/1/{map}"))["stdout"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(!told.trim().is_empty());
        for line in told.lines() {
            let numbers: Vec<u32> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
            assert!(numbers[1] >= FIRST_ID && numbers[2] < IDS_PER_SLOT, "{map}: {line}");
        }
    }

    for &user in users() {
        let mark = format!("{mark}-{user}");
        bell.json(&["exec", "-d", "--user", user, &id, "--", "sh", "-c", "while :; do sleep 1; done", &mark]);
        until("it runs", long(), || !processes_with(&mark).is_empty());
        for process in processes_with(&mark) {
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap();
            for ids in ["Uid:", "Gid:", "Groups:"] {
                let line = status.lines().find(|line| line.starts_with(ids)).unwrap();
                let high = line.split_whitespace().skip(1).all(|id| id.parse::<u32>().unwrap() >= FIRST_ID);
                assert!(high, "{process:?}: {line}");
            }
            let own = fs::read_link("/proc/self/ns/user").unwrap();
            assert_ne!(fs::read_link(format!("/proc/{}/ns/user", process.pid)).unwrap(), own);
        }
    }
    // Everything of it except the launcher, which takes the walls down, runs without privileges on the host.
    let keepers = bell.keepers(&id);
    let monitor = fs::read_to_string(format!("/proc/{}/status", keepers.monitor)).unwrap();
    assert!(monitor.contains("CapEff:\t0000000000000000"), "{monitor}");
    // It has a directory for its spools, counters to read, locks, sockets, and a log that it can only add to; nothing
    // else of the host's or the sandbox's.
    let spool = bell.directory(&id).join("spool");
    for entry in fs::read_dir(format!("/proc/{}/fd", keepers.monitor)).unwrap().flatten() {
        let target = fs::read_link(entry.path()).unwrap();
        let is_way_in = target.ends_with("tasks") || target.ends_with("cgroup.procs");
        let is_counter = target.starts_with("/sys/fs/cgroup") && !target.is_dir() && !is_way_in;
        let is_own =
            target.starts_with(&spool) || target.starts_with(bell.directory(&id)) && target.is_file();
        let is_disk = target.ends_with("stage/disk") || target == std::path::Path::new("/");
        let is_lock = target.starts_with("/run/belljar/slots");
        let is_log = target.ends_with("sandboxes.log");
        let unnamed = !target.starts_with("/");
        let meant = is_counter || is_own || is_disk || is_lock || is_log || unnamed;
        assert!(meant, "the monitor has {} open", target.display());
    }
}

#[test]
fn each_namespace_is_the_sandboxs_own() {
    let bell = Bell::new();
    let (first, second) = (bell.create(&[]), bell.create(&[]));
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let of = |id: &str| bell.shell(id, &format!("readlink /proc/self/ns/{kind}"))["stdout"].to_string();
        let host = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
        let (one, other) = (of(&first), of(&second));
        assert!(one.contains(kind) && one != other && !one.contains(&host), "{kind}: {one} {other} {host}");
    }
}

#[test]
fn the_kernel_is_not_adjusted_from_inside() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let script = r"
import glob, os
for path in glob.glob('/proc/sys/**', recursive=True) + ['/proc/sysrq-trigger', '/proc/self/../1/oom_score_adj', '/proc/1/uid_map',
    '/proc/1/setgroups', '/proc/1/attr/current', '/proc/timer_list', '/proc/irq/default_smp_affinity', '/proc/mtrr', '/proc/acpi/wakeup']:
    if os.path.isfile(path):
        try:
            os.close(os.open(path, os.O_WRONLY))
            print('opened', path)
        except OSError: pass
for root, directories, files in os.walk('/'):
    if root == '/': directories.remove('proc'); directories.remove('usr')
    for name in files + directories:
        if name in ('release_agent', 'notify_on_release', 'cgroup.procs', 'core_pattern', 'uevent_helper', 'debugfs', 'securityfs'):
            print('found', root, name)
print(os.path.exists('/sys'), os.path.exists('/proc/sys/kernel/core_pattern'))
";
    for &user in users() {
        let object = bell.json(&["exec", "--user", user, &id, "--", "python3", "-c", script]);
        assert_eq!(object["stdout"], "False True\n", "{user}: {object}");
    }
    if !is_rootless() {
        let opened = fs::OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern");
        assert!(opened.is_ok(), "the host's root can");
    }
    let told = bell.shell(&id, "mount")["stdout"].as_str().unwrap().to_owned();
    for word in ["cgroup", "sysfs", "debugfs", "tracefs", "securityfs", "bpf", "configfs", "mqueue"] {
        assert!(!told.lines().any(|line| line.contains(&format!(" type {word} "))), "{word}: {told}");
    }
    for line in told.lines() {
        // What is not nodev shows devices that are meant to be there, and the null device in place of what is masked.
        let device = line.contains(" type devtmpfs ")
            || line.starts_with("devpts on ")
            || line.contains(" on /dev type ")
            || line.starts_with("belljar on /proc/");
        assert!(line.contains("nosuid") && (device || line.contains("nodev")), "{line}");
    }
}

/// Files of layers that may hold credentials are covered; what covers them is no file of the host's or a neighbour's.
#[test]
fn what_covers_a_file_is_the_sandboxs_own() {
    let bell = Bell::new();
    let script = r"
import os
for line in open('/proc/self/mountinfo'):
    print('mount', line.strip())
    place = line.split()[4]
    if os.path.isfile(place) and not place.startswith(('/proc/', '/dev/')):
        found = os.stat(place)
        try: written = os.close(os.open(place, os.O_WRONLY)) is None
        except OSError: written = False
        print('covered', place, found.st_dev, found.st_size, found.st_uid, written)
";
    let seen = [0, 1].map(|_| {
        let id = bell.create(&[]);
        let user = if is_rootless() { "user" } else { "root" };
        let object = bell.json(&["exec", "--user", user, &id, "--", "python3", "-c", script]);
        object["stdout"].as_str().unwrap().to_owned()
    });
    let home = bell.home.path().file_name().unwrap().to_str().unwrap();
    let covered = seen.each_ref().map(|seen| {
        assert!(seen.contains("mount ") && !seen.contains(home), "the data directory is told: {seen}");
        let lines = seen.lines().filter_map(|line| line.strip_prefix("covered "));
        lines.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    });
    let prefixes = [Path::new("/usr"), Path::new("/usr/local")];
    let files = prefixes
        .iter()
        .flat_map(|prefix| ["pip.conf", "etc/npmrc", "etc/gitconfig"].map(|name| prefix.join(name)));
    for file in files.filter(|file| file.symlink_metadata().is_ok_and(|data| data.is_file())) {
        let found = covered.each_ref().map(|covered| {
            let found = covered.iter().find(|words| Path::new(&words[0]) == file);
            let found = found.unwrap_or_else(|| panic!("{} is not covered: {covered:?}", file.display()));
            assert_eq!(found[2..], ["0", if is_rootless() { &found[3] } else { "0" }, "False"], "{found:?}");
            &found[1]
        });
        assert_ne!(found[0], found[1], "both sandboxes have one file over {}", file.display());
    }
}

#[test]
fn devices_are_the_expected_ones() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let told = bell.shell(&id, "ls -A /dev | sort | tr '\\n' ' '; ls -A /dev/pts /dev/shm")["stdout"]
        .as_str()
        .unwrap()
        .to_owned();
    let names = told.lines().next().unwrap().split(' ').take_while(|name| !name.starts_with("/dev"));
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let expected = [
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom",
        "zero",
    ];
    assert_eq!(names, expected, "{told}");
    let find = "find / -path /proc -prune -o \\( -type b -o -type c \\) -print 2>/dev/null | grep -v '^/dev/\\(full\\|null\\|random\\|tty\\|urandom\\|zero\\|pts/ptmx\\|pts/[0-9]*\\)$'";
    assert_eq!(bell.shell(&id, find)["stdout"], "");
}

#[test]
fn set_user_id_programs_give_nothing() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    if !is_rootless() {
        own_set_user_id_program(&bell, &id);
    }
    let object = bell.shell(&id, "for name in su sudo mount umount passwd newgrp chsh; do find /usr/bin/$name -perm /6000 2>/dev/null; done");
    let found = object["stdout"].as_str().unwrap().to_owned();
    for program in found.lines() {
        let object = bell.shell(&id, &format!("{program} -c id </dev/null 2>&1; {program} -h </dev/null >/dev/null 2>&1; grep CapEff /proc/self/status"));
        let told = object["stdout"].as_str().unwrap();
        assert!(!told.contains("uid=0") && told.contains("CapEff:\t0000000000000000"), "{program}: {told}");
    }
}

/// One that root inside made.
fn own_set_user_id_program(bell: &Bell, id: &str) {
    let prepare = "cp /usr/bin/id /home/user/id && chown 0:0 /home/user/id && chmod 6755 /home/user/id && stat -c %a /home/user/id";
    let object = bell.json(&["exec", "--user", "root", id, "--", "sh", "-c", prepare]);
    assert_eq!(object["stdout"], "6755\n", "the control: the bits are there: {object}");
    assert_eq!(bell.shell(id, "/home/user/id -u; /home/user/id -g")["stdout"], "1000\n1000\n");
}

/// Tries system calls, each in a process of its own, and tells `name errno` (0: it went through).
const CALLS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#define CALL(label, ...) if (wanted(label, argc, argv)) { fflush(stdout); pid_t child = fork(); if (child == 0) { \
    errno = 0; long r = (__VA_ARGS__); int e = r == -1 ? errno : 0; \
    if (r == 0 && getpid() != self && strstr(label, "clone")) { if (getppid() != self) _exit(0); } \
    printf("%s %d\n", label, e); fflush(stdout); _exit(0); } int s; waitpid(child, &s, 0); \
    if (WIFSIGNALED(s)) printf("%s signal\n", label); }
static int wanted(const char *label, int argc, char **argv) {
    if (argc < 2) return 1;
    for (int i = 1; i < argc; i++) if (!strcmp(argv[i], label)) return 1;
    return 0;
}
int main(int argc, char **argv) {
    pid_t self = getpid();
    char zero[256]; memset(zero, 0, sizeof zero);
    struct { unsigned long flags, pidfd, ctid, ptid, sig, stack, size, tls; } args = { 0x10000000, 0, 0, 0, SIGCHLD, 0, 0, 0 };
    int one[32] = { 1, 4, 4, 1 };
    unsigned attributes[12] = { 48, 0, 0, 0, 0, 0, 100000 };
    struct { unsigned type, size; unsigned long config; char rest[104]; } perf = { 1, 112, 0, {0} };
    CALL("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
    CALL("mount_bind", syscall(SYS_mount, "/", "/mnt", 0, 4096 | 16384, 0));
    CALL("mount_remount", syscall(SYS_mount, 0, "/", 0, 32, 0));
    CALL("umount", syscall(SYS_umount2, "/proc/sys", 2));
    CALL("unshare", syscall(SYS_unshare, CLONE_NEWUTS));
    CALL("unshare_user", syscall(SYS_unshare, CLONE_NEWUSER));
    CALL("unshare_all", syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET));
    CALL("setns", syscall(SYS_setns, open("/proc/self/ns/uts", O_RDONLY), 0));
    CALL("pivot_root", syscall(SYS_pivot_root, "/tmp", "/tmp"));
    CALL("chroot", syscall(SYS_chroot, "/tmp"));
    CALL("ptrace_traceme", syscall(SYS_ptrace, 0, 0, 0, 0));
    CALL("ptrace_seize", syscall(SYS_ptrace, 0x4206, self, 0, 0));
    CALL("process_vm_readv", syscall(SYS_process_vm_readv, self, zero, 0, zero, 0, 0));
    CALL("process_vm_writev", syscall(SYS_process_vm_writev, self, zero, 0, zero, 0, 0));
    CALL("bpf", syscall(SYS_bpf, 0, one, 72));
    CALL("perf_event_open", syscall(SYS_perf_event_open, &perf, 0, -1, -1, 0));
    CALL("userfaultfd", syscall(SYS_userfaultfd, 1));
    CALL("keyctl", syscall(SYS_keyctl, 0, -3, 1));
    CALL("add_key", syscall(SYS_add_key, "user", "x", "y", 1, -3));
    CALL("request_key", syscall(SYS_request_key, "user", "x", 0, 0));
    CALL("io_uring_setup", syscall(SYS_io_uring_setup, 8, zero));
    CALL("clone3_newuser", syscall(SYS_clone3, &args, sizeof args));
    CALL("sched_setattr", syscall(SYS_sched_setattr, 0, attributes, 0));
    CALL("clone_newuser", syscall(SYS_clone, 0x10000000 | SIGCHLD, 0, 0, 0, 0));
    CALL("clone_newnet_high", syscall(SYS_clone, 0x4000000000000000UL | 0x40000000 | SIGCHLD, 0, 0, 0, 0));
    CALL("mknod_char", syscall(SYS_mknodat, AT_FDCWD, "/tmp/null", S_IFCHR | 0666, makedev(1, 3)));
    CALL("mknod_block", syscall(SYS_mknodat, AT_FDCWD, "/tmp/vda", S_IFBLK | 0666, makedev(254, 0)));
    CALL("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, zero, 0));
    CALL("name_to_handle_at", syscall(SYS_name_to_handle_at, AT_FDCWD, "/", zero, zero + 128, 0));
    CALL("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    CALL("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    CALL("move_mount", syscall(SYS_move_mount, AT_FDCWD, "/", AT_FDCWD, "/tmp", 0));
    CALL("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
    CALL("init_module", syscall(SYS_init_module, zero, 0, ""));
    CALL("finit_module", syscall(SYS_finit_module, -1, "", 0));
    CALL("kexec_load", syscall(SYS_kexec_load, 0, 0, 0, 0));
    CALL("reboot", syscall(SYS_reboot, 1, 2, 3, 0));
    CALL("swapon", syscall(SYS_swapon, "/nonexistent", 0));
    CALL("sethostname", syscall(SYS_sethostname, "x", 1));
    CALL("settimeofday", syscall(SYS_settimeofday, zero, 0));
    CALL("syslog", syscall(SYS_syslog, 3, zero, 100));
    CALL("acct", syscall(SYS_acct, 0));
    CALL("quotactl", syscall(SYS_quotactl, 0, 0, 0, 0));
    CALL("pidfd_getfd", syscall(SYS_pidfd_getfd, -1, 0, 0));
    CALL("kcmp", syscall(SYS_kcmp, self, self, 0, 0, 0));
    CALL("tiocsti", ioctl(open("/dev/ptmx", O_RDWR), TIOCSTI, "x"));
    CALL("tiocsti_high", syscall(SYS_ioctl, open("/dev/ptmx", O_RDWR), 0x100000000UL | TIOCSTI, "x"));
    CALL("tioclinux", ioctl(open("/dev/ptmx", O_RDWR), 0x541C, zero));
#ifdef __x86_64__
    CALL("iopl", syscall(SYS_iopl, 3));
    CALL("ioperm", syscall(SYS_ioperm, 0, 8, 1));
    CALL("modify_ldt", syscall(SYS_modify_ldt, 1, zero, 16));
    CALL("x32_mount", syscall(0x40000000 | SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
    CALL("x32_getpid", syscall(0x40000000 | SYS_getpid));
#endif
    puts("finished 1");
}
"#;

#[test]
fn dangerous_system_calls_are_refused() {
    let bell = Bell::new();
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("calls.c");
    fs::write(&source, CALLS).unwrap();
    let id = bell.create(&["--file", &format!("{}:calls.c", source.display())]);
    let object = bell.shell(&id, "gcc -w -o calls calls.c && ./calls");
    let told = object["stdout"].as_str().unwrap();
    assert!(told.ends_with("finished 1\n") && told.lines().count() > 45, "{object}");
    let passed: Vec<&str> = told.lines().filter(|line| line.ends_with(" 0")).collect();
    assert!(passed.is_empty(), "went through: {passed:?}");
    for line in told.lines().filter(|line| !line.starts_with("finished")) {
        let (name, error) = line.split_once(' ').unwrap();
        let refused =
            error.parse().is_ok_and(|error: i32| [libc::EPERM, libc::ENOSYS, libc::EACCES].contains(&error));
        assert!(refused || error == "signal", "{name} was refused for another reason: {error}");
    }
    // Root inside may do a little more, but nothing of this.
    if !not_promised_rootless("the same as root inside: there is no `--user root`") {
        refused_to_root(&bell, &id);
    }

    // On the host, where nothing is refused, the same program gets through.
    let program = directory.path().join("calls");
    let built = Command::new("gcc").arg("-w").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(built.success());
    let by_root = ["unshare", "chroot", "setns"];
    let by_anyone = ["unshare_user", "ptrace_traceme", "clone_newuser", "clone3_newuser", "sched_setattr"];
    let control = if is_rootless() { by_anyone.to_vec() } else { [&by_root[..], &by_anyone].concat() };
    let output = Command::new(&program).args(&control).output().unwrap();
    let told = text(&output.stdout);
    for name in control {
        assert!(told.lines().any(|line| line == format!("{name} 0")), "{name}: {told}");
    }
}

fn refused_to_root(bell: &Bell, id: &str) {
    let object = bell.json(&["exec", "--user", "root", id, "--", "/home/user/calls"]);
    let told = object["stdout"].as_str().unwrap();
    let passed: Vec<&str> =
        told.lines().filter(|line| line.ends_with(" 0") && !line.starts_with("chroot")).collect();
    assert!(told.ends_with("finished 1\n") && passed.is_empty(), "as root: {passed:?} {told}");
}

#[test]
fn the_object_says_no_loss() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    if not_promised_rootless("that nothing is missing; `work::rootless` sees that what is missing is said") {
        return;
    }
    let object: Value = bell.json(&["inspect", &id]);
    assert_eq!(object["sandbox"]["losses"], Value::Array(Vec::new()), "as root nothing is missing: {object}");
}
