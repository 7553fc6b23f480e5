//! The way from a jail to the door, with the test as the door: what arrives there, whose it is, and who may have it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::wire::Frame;
use belljar_core::{
    Capability, Denial, Door, Error, ErrorCode, ExecEvent, ExecHandle, ExecId, ExecRequest, FLOW_FILES,
    NetworkPolicy, POLICY_FILE, Position, Provider, Result, Rules, Sandbox, SandboxId, SandboxSpec,
    Termination, UserName,
};
use belljar_jail::arrival::{self, Arrival};
use belljar_jail::control::{CONVERSATION, LOCK_FILE, Open, PROTOCOL, Request, SOCKET_FILE};
use belljar_jail::doorway::{self, Doorway};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use futures_util::StreamExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, acceptfrom_with};

/// A data directory, and the sandboxes made in it.
struct House {
    directory: tempfile::TempDir,
    door: Arc<Porter>,
}

/// Stands at the door: sees to it that what it is told is so.
#[derive(Debug)]
struct Porter {
    sandboxes: PathBuf,
    seen: Mutex<Vec<(SandboxId, NetworkPolicy)>>,
    refuses: Mutex<bool>,
    denied: Mutex<Result<Vec<Denial>>>,
}

#[async_trait]
impl Door for Porter {
    async fn see_to(&self, sandbox: &SandboxId) -> Result<()> {
        if *self.refuses.lock().unwrap() {
            return Err(Error::new(ErrorCode::Unavailable, "nobody is at the door"));
        }
        let place = self.sandboxes.join(sandbox.as_str());
        let file = std::fs::metadata(place.join(POLICY_FILE)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        let policy = serde_json::from_slice(&std::fs::read(place.join(POLICY_FILE)).unwrap()).unwrap();
        doorway::fetch(&place).unwrap();
        self.seen.lock().unwrap().push((sandbox.clone(), policy));
        Ok(())
    }

    async fn denials(&self, _: &SandboxId, _: ExecId) -> Result<Vec<Denial>> {
        self.denied.lock().unwrap().clone()
    }
}

impl House {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let door = Porter {
            sandboxes: directory.path().join("home/sandboxes"),
            seen: Mutex::default(),
            refuses: Mutex::default(),
            denied: Mutex::new(Ok(Vec::new())),
        };
        Self { directory, door: Arc::new(door) }
    }

    fn without_door(&self) -> Jail {
        Jail::new(Home::open(Some(self.directory.path().join("home"))).unwrap()).unwrap()
    }

    fn jail(&self) -> Jail {
        self.without_door().with_door(self.door.clone())
    }

    fn place(&self, sandbox: &dyn Sandbox) -> PathBuf {
        self.door.sandboxes.join(sandbox.id().as_str())
    }
}

fn policy(rule: &str) -> NetworkPolicy {
    NetworkPolicy::Allowlist(Rules { allow: vec![rule.parse().unwrap()], ..Rules::default() })
}

/// The execution that has a mark.
fn whose(place: &Path, mark: u32) -> Option<ExecId> {
    doorway::whose(place, mark).unwrap().map(|caller| caller.exec)
}

fn networked() -> SandboxSpec {
    SandboxSpec { network: policy("example.org"), ..SandboxSpec::default() }
}

fn python(script: &str) -> ExecRequest {
    ExecRequest::argv(["python3", "-c", script])
}

fn await_readable(socket: BorrowedFd<'_>) {
    let longest = Timespec { tv_sec: 30, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&longest)).unwrap();
    assert_eq!(ready, 1, "nothing has come");
}

/// Takes in the next connection: where it was meant to go, and its mark.
fn take_in(listener: &OwnedFd) -> (TcpStream, SocketAddr, u32) {
    await_readable(listener.as_fd());
    let (accepted, _) = acceptfrom_with(listener, SocketFlags::CLOEXEC).unwrap();
    let mark = arrival::mark(accepted.as_fd()).unwrap();
    let stream = TcpStream::from(accepted);
    let meant = stream.local_addr().unwrap();
    (stream, meant, mark)
}

fn nothing_waits(doorway: &Doorway) {
    let families = std::iter::once(&doorway.v4).chain(&doorway.v6);
    for socket in families.flat_map(|family| [&family.tcp, &family.dns]) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)).unwrap(), 0);
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Whether this host can tell executions apart: only root can give each a version-two cgroup.
fn tells_executions() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    rustix::process::geteuid().is_root() && mounts.contains(" - cgroup2 ")
}

/// What is said of the packets of an execution: where it cannot be told, that they are nobody's.
fn told(exec: ExecId) -> Option<ExecId> {
    tells_executions().then_some(exec)
}

/// Runs something to its end, and answers which execution it was.
async fn run(sandbox: &dyn Sandbox, request: ExecRequest) -> ExecId {
    let result = sandbox.execute(request).await.unwrap();
    assert!(result.termination.is_success(), "{result:?}");
    result.exec
}

/// What something says that runs to its end.
async fn said(sandbox: &dyn Sandbox, request: ExecRequest) -> String {
    let result = sandbox.execute(request).await.unwrap();
    assert!(result.termination.is_success(), "{result:?}");
    String::from_utf8(result.stdout.head).unwrap()
}

/// Which execution it is, of one that has started.
async fn started(running: &dyn ExecHandle) -> ExecId {
    match running.next().await.unwrap() {
        Some(ExecEvent::Started { exec, .. }) => exec,
        other => panic!("{other:?}"),
    }
}

async fn succeeds(running: &dyn ExecHandle) {
    let mut said = Vec::new();
    while let Some(event) = running.next().await.unwrap() {
        match event {
            ExecEvent::Output { bytes, .. } => said.extend(bytes),
            ExecEvent::Finished { termination, .. } => {
                assert_eq!(
                    termination,
                    Termination::Exited { code: 0 },
                    "{}",
                    String::from_utf8_lossy(&said)
                );
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_arrive_with_where_they_were_meant_to_go_and_whose_they_are() {
    let house = House::new();
    let sandbox = house.jail().create(networked()).await.unwrap();
    let place = house.place(&*sandbox);
    let doorway = doorway::fetch(&place).unwrap();
    let whose = |mark| whose(&place, mark);

    // One that is there, and is answered.
    let talk = "import socket; s = socket.create_connection(('93.184.215.14', 443)); s.sendall(b'hello'); \
                assert s.recv(9) == b'answer'";
    let running = sandbox.execs().unwrap().start(python(talk)).await.unwrap();
    let exec = started(&*running).await;
    let (mut stream, meant, mark) = take_in(&doorway.v4.tcp);
    assert_eq!((meant, whose(mark)), (address("93.184.215.14:443"), told(exec)));
    let mut said = [0; 5];
    io::Read::read_exact(&mut stream, &mut said).unwrap();
    assert_eq!(&said, b"hello");
    io::Write::write_all(&mut stream, b"answer").unwrap();
    succeeds(&*running).await;

    // Several that were closed, half of them with a reset, by executions that are gone before anyone looks.
    let mut gone = Vec::new();
    for last in 1..=6 {
        let linger = if last % 2 == 0 { "s.setsockopt(1, 13, struct.pack('ii', 1, 0))" } else { "pass" };
        let short = format!(
            "import socket, struct; s = socket.create_connection(('203.0.113.{last}', 80)); {linger}; s.close()"
        );
        gone.push((run(&*sandbox, python(&short)).await, address(&format!("203.0.113.{last}:80"))));
    }
    for (exec, far) in gone {
        let (_, meant, mark) = take_in(&doorway.v4.tcp);
        assert_eq!((meant, whose(mark)), (far, told(exec)));
    }

    // The other family.
    let sockets = doorway.v6.as_ref().expect("this machine has both families");
    let exec =
        run(&*sandbox, python("import socket; socket.create_connection(('2606:2800:21f::1', 443))")).await;
    let (_, meant, mark) = take_in(&sockets.tcp);
    assert_eq!((meant, whose(mark)), (address("[2606:2800:21f::1]:443"), told(exec)));

    // What an execution has left behind is that execution's, however far it has gone from it.
    let daemon = "import os, socket, time\n\
                  if os.fork(): os._exit(0)\n\
                  os.setsid()\n\
                  if os.fork(): os._exit(0)\n\
                  [os.close(fd) for fd in (0, 1, 2)]\n\
                  while not os.path.exists('go'): time.sleep(0.01)\n\
                  socket.create_connection(('198.51.100.7', 25))";
    let left_by = run(&*sandbox, python(daemon)).await;
    run(&*sandbox, ExecRequest::argv(["true"])).await;
    let go = Box::pin(futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"x"))]));
    sandbox.upload(&"go".parse().unwrap(), UserName::User, go).await.unwrap();
    let (_, meant, mark) = take_in(&doorway.v4.tcp);
    assert_eq!((meant, whose(mark)), (address("198.51.100.7:25"), told(left_by)));

    // Nobody's.
    for mark in [0, 1, mark.wrapping_add(1 << 20)] {
        assert_eq!(whose(mark), None);
    }
    if let Some(files) = leaf(&place, "files") {
        assert_eq!(whose(files), None, "file operations are no executions");
    }
    nothing_waits(&doorway);
    sandbox.cleanup().await.unwrap();
    let after = doorway::fetch(&place).unwrap_err();
    assert_eq!(after.kind(), io::ErrorKind::NotFound, "{after}");
}

/// The mark of what comes from one of the groups in a sandbox's `box`, if this host has it.
fn leaf(place: &Path, name: &str) -> Option<u32> {
    let built = std::fs::read(place.join(LOCK_FILE)).unwrap();
    let slot = serde_json::from_slice::<serde_json::Value>(&built).unwrap()["slot"].as_u64()?;
    let number = |mount: &str| std::fs::metadata(format!("{mount}/belljar/{slot}/box/{name}")).ok();
    let found = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().find_map(number)?;
    Some(found.ino() as u32)
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_about_names_arrive_and_are_answered_from_where_they_were_sent() {
    let house = House::new();
    let sandbox = house.jail().create(networked()).await.unwrap();
    let place = house.place(&*sandbox);
    let doorway = doorway::fetch(&place).unwrap();
    let ask = |socket: BorrowedFd<'_>| -> (Arrival, Vec<u8>) {
        await_readable(socket);
        let mut buffer = [0; 2048];
        let arrival = arrival::receive(socket, &mut buffer).unwrap();
        (arrival, buffer[..arrival.length].to_vec())
    };
    let v6 = doorway.v6.as_ref().unwrap();
    for (family, dns, resolver) in
        [("AF_INET", &doorway.v4.dns, "9.9.9.9"), ("AF_INET6", &v6.dns, "2620:fe::fe")]
    {
        let script = format!(
            "import socket; s = socket.socket(socket.{family}, socket.SOCK_DGRAM); s.connect(('{resolver}', 53)); \
             s.send(b'question'); s.settimeout(30); assert s.recv(99) == b'answer'"
        );
        let running = sandbox.execs().unwrap().start(python(&script)).await.unwrap();
        let exec = started(&*running).await;
        let (arrival, question) = ask(dns.as_fd());
        assert_eq!((question.as_slice(), arrival.meant.port()), (&b"question"[..], 53));
        assert_eq!(arrival.meant.ip(), resolver.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(whose(&place, arrival.mark), told(exec));
        arrival::answer(dns.as_fd(), &arrival, b"answer").unwrap();
        // It takes answers from there only.
        succeeds(&*running).await;
    }
    // What programs look names up with is set up for it. One who is gone has asked all the same.
    let execs = sandbox.execs().unwrap();
    let look_up = python("import socket; socket.getaddrinfo('example.org', 80)");
    let exec = started(&*execs.start(look_up).await.unwrap()).await;
    await_readable(doorway.v4.dns.as_fd());
    execs.kill(exec).await.unwrap();
    execs.wait(exec).await.unwrap();
    let (arrival, question) = ask(doorway.v4.dns.as_fd());
    assert_eq!(arrival.meant, address("10.255.255.53:53"));
    assert!(question.windows(7).any(|part| part == b"example"), "{question:?}");
    assert_eq!(whose(&place, arrival.mark), told(exec));
    // Other datagrams go nowhere.
    let other = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30)\n\
                 try: s.connect(('9.9.9.9', 443)); s.send(b'x'); s.recv(9)\n\
                 except (ConnectionRefusedError, PermissionError): print('refused')";
    assert_eq!(said(&*sandbox, python(other)).await, "refused\n");
    sandbox.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sandboxes_do_not_mix() {
    let house = House::new();
    let jail = house.jail();
    let (one, other) = (jail.create(networked()).await.unwrap(), jail.create(networked()).await.unwrap());
    let places = [house.place(&*one), house.place(&*other)];
    let doorways = places.each_ref().map(|place| doorway::fetch(place).unwrap());
    let mut marks = Vec::new();
    for (sandbox, last) in [(&one, 1), (&other, 2)] {
        let script = format!("import socket; socket.create_connection(('192.0.2.{last}', 1234))");
        assert_eq!(run(&**sandbox, python(&script)).await, ExecId(1), "the same number in both");
    }
    for (doorway, last) in doorways.iter().zip(1..) {
        let (_, meant, mark) = take_in(&doorway.v4.tcp);
        assert_eq!(meant, address(&format!("192.0.2.{last}:1234")));
        nothing_waits(doorway);
        marks.push(mark);
    }
    for (place, (own, others)) in places.iter().zip([(marks[0], marks[1]), (marks[1], marks[0])]) {
        assert_eq!(whose(place, own), told(ExecId(1)));
        assert_eq!(whose(place, others), None);
    }
    // Neither ends the other.
    one.cleanup().await.unwrap();
    run(&*other, python("import socket; socket.create_connection(('192.0.2.3', 1234))")).await;
    assert_eq!(take_in(&doorways[1].v4.tcp).1, address("192.0.2.3:1234"));
    other.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_network_there_is_nothing_to_give() {
    let house = House::new();
    let sandbox = house.jail().create(SandboxSpec::default()).await.unwrap();
    let refused = doorway::fetch(&house.place(&*sandbox)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "{refused}");
    assert_eq!(whose(&house.place(&*sandbox), 7), None);
    let out = "import socket, errno\n\
               try: socket.create_connection(('93.184.215.14', 443))\n\
               except OSError as error: print(errno.errorcode[error.errno])";
    assert_eq!(said(&*sandbox, python(out)).await, "ENETUNREACH\n");
    assert!(house.door.seen.lock().unwrap().is_empty(), "the door has nothing to do with it");
    let network = sandbox.network().unwrap();
    assert_eq!(network.policy().await.unwrap(), NetworkPolicy::None);
    let refused = network.set_policy(policy("example.org")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported, "{refused}");
    assert!(refused.hint.is_some());
    assert!(!house.place(&*sandbox).join(POLICY_FILE).exists());
    assert_eq!(network.flows(0, false).await.unwrap().count().await, 0);
    sandbox.cleanup().await.unwrap();
}

/// Connects to a sandbox's monitor and says this; prints how many descriptors come, or that it was turned away.
const CALLER: &str = "import socket, sys\n\
    s = socket.socket(socket.AF_UNIX); s.settimeout(30); s.connect(sys.argv[1])\n\
    try: s.sendall(bytes.fromhex(sys.argv[2])); said, fds, _, _ = socket.recv_fds(s, 4096, 8)\n\
    except (BrokenPipeError, ConnectionResetError): said, fds = b'', []\n\
    print(len(fds) if said else 'turned away')";

#[tokio::test(flavor = "multi_thread")]
async fn strangers_get_neither_sockets_nor_answers() {
    if !rustix::process::geteuid().is_root() {
        let allowed = std::env::var_os("BELLJAR_ALLOW_UNPRIVILEGED_TESTS").is_some_and(|value| value == "1");
        assert!(allowed, "this test needs root; BELLJAR_ALLOW_UNPRIVILEGED_TESTS=1 lets it be skipped");
        return eprintln!("SKIPPED: this test needs root, to be somebody else");
    }
    let house = House::new();
    let sandbox = house.jail().create(networked()).await.unwrap();
    let place = house.place(&*sandbox);
    // The permissions of files are not what this is about.
    let open = std::fs::Permissions::from_mode(0o777);
    let socket = place.join(SOCKET_FILE);
    for path in socket.ancestors().take_while(|path| *path != Path::new("/tmp") && *path != Path::new("/")) {
        std::fs::set_permissions(path, open.clone()).unwrap();
    }
    let owner = rustix::process::geteuid().as_raw();
    for (request, own) in [(Request::Doorway, "4\n"), (Request::Whose { mark: 1 }, "0\n")] {
        let mut frame = Vec::new();
        Frame::control(CONVERSATION, &Open { protocol: PROTOCOL, epoch: None, request }).encode(&mut frame);
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        for (uid, expected) in [(owner, own), (54_321, "turned away\n")] {
            let mut caller = Command::new("/usr/bin/env");
            caller.args(["python3", "-c", CALLER]).arg(&socket).arg(&hex).env("HOME", "/");
            let said = caller.uid(uid).gid(uid).output().unwrap();
            let errors = String::from_utf8_lossy(&said.stderr);
            assert_eq!(String::from_utf8_lossy(&said.stdout), expected, "as {uid}: {errors}");
        }
    }
    sandbox.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_a_network_only_where_there_is_a_door() {
    let house = House::new();
    let (without, with) = (house.without_door(), house.jail());
    assert!(!without.capabilities().has(Capability::Network) && with.capabilities().has(Capability::Network));
    let Err(refused) = without.create(networked()).await else { panic!("it was made") };
    assert_eq!(refused.code, ErrorCode::Unsupported, "{refused}");

    *house.door.refuses.lock().unwrap() = true;
    let Err(refused) = with.create(networked()).await else { panic!("it was made") };
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    assert_eq!(std::fs::read_dir(&house.door.sandboxes).unwrap().count(), 0, "nothing of it is left");
    *house.door.refuses.lock().unwrap() = false;

    let sandbox = with.create(networked()).await.unwrap();
    let seen = || house.door.seen.lock().unwrap().clone();
    assert_eq!(seen(), [(sandbox.id().clone(), policy("example.org"))]);
    let network = sandbox.network().unwrap();
    assert_eq!(network.policy().await.unwrap(), policy("example.org"));
    network.set_policy(policy("example.net")).await.unwrap();
    assert_eq!(network.policy().await.unwrap(), policy("example.net"));
    assert_eq!(seen().last().unwrap().1, policy("example.net"), "the door has heard of it");
    let wrong = Rules { allow: vec!["example.org".parse().unwrap(); Rules::MAX + 1], ..Rules::default() };
    let refused = network.set_policy(NetworkPolicy::Allowlist(wrong)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidArgument, "{refused}");
    assert_eq!(network.policy().await.unwrap(), policy("example.net"), "and nothing has changed");

    // Sets are resolved before anyone judges by them; this machine may have no tool that knows what one stands for.
    match network.set_policy(policy("crates")).await {
        Ok(()) => {
            let resolved = network.policy().await.unwrap();
            assert!(resolved.rules().unwrap().unresolved().is_none(), "{resolved}");
            assert_eq!(seen().last().unwrap().1, resolved);
        }
        Err(error) => assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}"),
    }

    // Whoever comes later has the door look again.
    let count = seen().len();
    let opened = with.open(sandbox.id()).await.unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while seen().len() == count {
        assert!(std::time::Instant::now() < until, "the door was not asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = without.open(sandbox.id()).await.unwrap();
    assert_eq!(refused.network().err().unwrap().code, ErrorCode::Unsupported);

    opened.control().unwrap().kill().await.unwrap();
    let refused = network.set_policy(policy("example.org")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::SandboxGone, "{refused}");
    opened.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_execution_comes_with_what_it_was_denied() {
    let house = House::new();
    let jail = house.jail();
    let sandbox = jail.create(networked()).await.unwrap();
    let denial = Denial {
        what: "example.net:443".into(),
        reason: "not_allowed".into(),
        rule: None,
        how_to_grant: "Ask for `--allow example.net`.".into(),
        times: 2,
    };
    assert_eq!(sandbox.execute(ExecRequest::argv(["true"])).await.unwrap().denied, []);
    *house.door.denied.lock().unwrap() = Ok(vec![denial.clone()]);
    let result = sandbox.execute(ExecRequest::argv(["true"])).await.unwrap();
    assert_eq!(result.denied, std::slice::from_ref(&denial));
    let last = |handle: Box<dyn ExecHandle>| async move {
        let mut events = Vec::new();
        while let Some(event) = handle.next().await.unwrap() {
            events.push(event);
        }
        let end = events.split_off(events.len() - 2);
        assert!(!events.iter().any(|event| matches!(event, ExecEvent::Denied(_))), "once");
        end
    };
    let is_told = |end: &[ExecEvent]| matches!(end, [ExecEvent::Denied(denied), ExecEvent::Finished { .. }] if *denied == [denial.clone()]);
    let execs = sandbox.execs().unwrap();
    let end = last(execs.start(ExecRequest::shell("echo said")).await.unwrap()).await;
    assert!(is_told(&end), "{end:?}");
    let end = last(execs.attach(result.exec, Position::START).await.unwrap()).await;
    assert!(is_told(&end), "{end:?}");
    sandbox.control().unwrap().kill().await.unwrap();
    let end = last(execs.attach(result.exec, Position::START).await.unwrap()).await;
    assert!(is_told(&end), "also afterwards: {end:?}");

    // A door that cannot say is no reason to fail.
    *house.door.denied.lock().unwrap() = Err(Error::new(ErrorCode::Unavailable, "nobody is at the door"));
    let end = last(execs.attach(result.exec, Position::START).await.unwrap()).await;
    assert!(matches!(end.last(), Some(ExecEvent::Finished { .. })), "{end:?}");
    sandbox.cleanup().await.unwrap();

    // Those without a network are asked nothing.
    *house.door.denied.lock().unwrap() = Ok(vec![denial]);
    let sandbox = jail.create(SandboxSpec::default()).await.unwrap();
    assert_eq!(sandbox.execute(ExecRequest::argv(["true"])).await.unwrap().denied, []);
    sandbox.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_went_through_is_told_while_it_happens() {
    let house = House::new();
    let sandbox = house.jail().create(networked()).await.unwrap();
    let file = house.place(&*sandbox).join(FLOW_FILES[0]);
    let line = |seq: u64| {
        format!(
            "{{\"seq\":{seq},\"time_ms\":1,\"exec\":1,\"kind\":\"tcp\",\"host\":\"example.org\",\"verdict\":\"allowed\",\
             \"sent\":1,\"received\":2,\"duration_us\":3}}\n"
        )
    };
    std::fs::write(&file, [line(1), line(2)].concat()).unwrap();
    let network = sandbox.network().unwrap();
    let told: Vec<u64> = network.flows(1, false).await.unwrap().map(|flow| flow.unwrap().seq).collect().await;
    assert_eq!(told, [2]);
    let mut followed = network.flows(0, true).await.unwrap();
    for seq in 1..=2 {
        assert_eq!(followed.next().await.unwrap().unwrap().seq, seq);
    }
    std::fs::write(&file, [line(1), line(2), line(3)].concat()).unwrap();
    assert_eq!(followed.next().await.unwrap().unwrap().seq, 3);
    sandbox.control().unwrap().kill().await.unwrap();
    assert!(followed.next().await.is_none());
    sandbox.cleanup().await.unwrap();
}

/// Makes sockets until there is no room for more, and says how many there were.
fn as_many(make: &str) -> ExecRequest {
    python(&format!(
        "import socket\n\
         made = []\n\
         try:\n\
         \x20   while len(made) < 3000: {make}\n\
         except OSError: print(len(made), end='')"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doors_sockets_are_not_counted_as_the_sandboxs_own() {
    let house = House::new();
    // So little memory that the bounds are at their least.
    let mut spec = networked();
    spec.limits.memory = belljar_core::ByteSize::mib(48);
    spec.limits.disk = belljar_core::ByteSize::mib(16);
    let mut numbers = Vec::new();
    for network in [NetworkPolicy::None, spec.network.clone()] {
        let sandbox = house.jail().create(SandboxSpec { network, ..spec.clone() }).await.unwrap();
        let mut count = Vec::new();
        for make in [
            "s = socket.socket(); s.listen(); made.append(s)",
            "made.append(socket.socket(type=socket.SOCK_DGRAM))",
            "made.append(socket.socket())",
        ] {
            count.push(said(&*sandbox, as_many(make)).await.parse::<u32>().unwrap());
        }
        numbers.push(count);
        sandbox.cleanup().await.unwrap();
    }
    let (without, with) = (&numbers[0], &numbers[1]);
    assert!(without.iter().all(|count| (1..3000).contains(count)), "bounded: {without:?}");
    assert_eq!(with[..2], without[..2], "as many listen, and send datagrams");
    // Nobody has taken in what it leaves room for.
    assert!(with[2] > without[2], "{with:?} {without:?}");
}
