//! RS: more of the host's resources than were granted. Every bomb is bounded by itself, whatever the walls do.

use std::path::Path;
use std::time::Duration;

use belljar_core::Wall::{
    CoreSize, CpuLimit, DatagramCount, DiskBytes, DiskFiles, FileSize, GuestFilter, ListenerCount, LockCount,
    LockedMemory, MemoryLimit, MessageQueues, NetlinkCount, NiceLimit, OpenFiles, PendingSignals, PidsLimit,
    RealTimeLimit, Seccomp, SharedMemoryBytes, SocketMemoryLimit, SpoolBound, StackSize, StreamCount,
    TerminalCount,
};
use rustix::process::{Resource, getrlimit};

use crate::attack::{Attack, Control, Outcome, Ring, inside, outside, within};

/// A limit that the host itself does not exceed cannot be seen to be missing.
fn above(resource: Resource, ours: u64) -> Control {
    if getrlimit(resource).maximum.is_none_or(|most| most > ours) {
        Control::WallsDown
    } else {
        Control::Moot("this machine's own limit is no higher, and nobody here may raise it")
    }
}

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        inside("RS-memory", "take more memory than granted", &[MemoryLimit], r#"
held = [bytearray(b"x") * (8 << 20) for _ in range(16)]
won(sum(map(len, held)) >> 20, "MiB")
"#).with(&["--memory", "64m"]).mortal(),
        inside("RS-memory-of-children", "take memory in many processes", &[MemoryLimit], r#"
ready, tell = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b"x") * (16 << 20)
        os.write(tell, b"x"); signal.alarm(30); signal.pause()
        os._exit(0)
count, died = 0, 0
while count < 8 and not died:
    if select.select([ready], [], [], 0.02)[0]: count += len(os.read(ready, 8))
    died = os.waitpid(-1, os.WNOHANG)[0]
if count == 8: won(count, "children hold 16 MiB each")
print("TRIED", flush=True)
os.kill(0, 9)
"#).with(&["--memory", "64m"]).mortal(),
        inside("RS-page-cache", "take memory by files in memory", &[MemoryLimit], r#"
held = [os.memfd_create(str(n)) for n in range(16)]
for file in held: os.write(file, bytes(8 << 20))
won(sum(os.fstat(file).st_size for file in held) >> 20, "MiB")
"#).with(&["--memory", "64m"]).mortal(),
        inside("RS-sockets", "park memory in the buffers of sockets", &[SocketMemoryLimit], r#"
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
pairs, parked = [], 0
# Where they are counted apart they have a bound of their own, below that of memory.
apart = any(':memory:' in line for line in open('/proc/self/cgroup'))
most = (40 if apart else 80) << 20
try:
    while parked < most and len(pairs) < 1500:
        one = socket.create_connection(listener.getsockname(), 5)
        one.setblocking(False)
        pairs.append((one, listener.accept()[0]))
        try:
            while parked < most: parked += one.send(bytes(65536))
        except BlockingIOError: pass
except OSError as error: print(error)
if parked >= most: won(parked >> 20, "MiB in", len(pairs), "sockets")
"#).with(&["--memory", "64m"]).mortal(),
        inside("RS-fork-bomb", "have more processes than granted", &[PidsLimit], r#"
children = []
try:
    while len(children) < 48:
        child = os.fork()
        if child == 0: signal.alarm(20); signal.pause(); os._exit(0)
        children.append(child)
except OSError as error: print(error)
if len(children) == 48: won(len(children), "children")
for child in children: os.kill(child, 9)
"#).with(&["--pids", "16"]),
        inside("RS-thread-bomb", "have more threads than granted", &[PidsLimit], r#"
done, threads = threading.Event(), []
try:
    while len(threads) < 48:
        thread = threading.Thread(target=done.wait, args=(20,), daemon=True)
        thread.start(); threads.append(thread)
except RuntimeError as error: print(error)
if len(threads) == 48: won(len(threads), "threads")
done.set()
"#).with(&["--pids", "16"]),
        outside("RS-processor", "take more processor time than granted", &[CpuLimit], processor),
        inside("RS-disk-bytes", "write more than its disk holds", &[DiskBytes], r#"
for number in range(12):
    with open(f"/tmp/{number}", "wb") as file: file.write(bytes(1 << 20))
won(sum(os.stat(f"/tmp/{number}").st_size for number in range(12)) >> 20, "MiB")
"#).with(&["--memory", "64m", "--disk", "8m"]),
        inside("RS-disk-home", "write more than its disk holds, in its home", &[DiskBytes], r#"
with open("file", "wb") as file:
    for number in range(12): file.write(bytes(1 << 20)); file.flush()
won("12 MiB")
"#).with(&["--memory", "64m", "--disk", "8m"]).also(&[FileSize]),
        inside("RS-disk-files", "make more files than its disk holds", &[DiskFiles], r#"
os.mkdir("/tmp/many"); os.chdir("/tmp/many")
for number in range(6000): os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
won("6000 files")
"#).with(&["--memory", "64m", "--disk", "48m"]),
        inside("RS-shared-memory", "write more shared memory than granted", &[SharedMemoryBytes], r#"
with open("/dev/shm/file", "wb") as file:
    for number in range(16): file.write(bytes(1 << 20)); file.flush()
won("16 MiB")
"#).with(&["--memory", "64m"]),
        inside("RS-open-files", "open more files than granted", &[OpenFiles], r#"
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(4200)]
won(len(held), "files")
"#),
        inside("RS-file-size", "make a file larger than its disk", &[FileSize], r#"
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
open("file", "w").close()
os.truncate("file", 1 << 40)
won(os.stat("file").st_size)
"#),
        inside("RS-core-dump", "have the kernel write core files", &[CoreSize], r#"
most = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
os.mkdir("/tmp/crash"); os.chdir("/tmp/crash")
child = os.fork()
if child == 0: os.abort()
status = os.waitpid(child, 0)[1]
if os.WCOREDUMP(status) or os.listdir("."): won(os.listdir("."))
"#).control(core()),
        inside("RS-stack", "have stacks without a bound", &[StackSize], r#"
try: resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, 1 << 30))
except ValueError as error: raise OSError(str(error))
won(resource.getrlimit(resource.RLIMIT_STACK))
"#).control(above(Resource::Stack, 64 << 20)),
        inside("RS-timers", "have timers and signals without a bound", &[PendingSignals], r#"
made, timer = 0, ctypes.c_void_p()
while made < 4200 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: made += 1
if made == 4200: won(made, "timers")
"#).control(above(Resource::Sigpending, 4300)),
        inside("RS-locked-memory", "lock more memory than granted", &[LockedMemory], r#"
area = mmap.mmap(-1, 16 << 20)
call(149, ctypes.addressof(ctypes.c_char.from_buffer(area)), 16 << 20)
won("16 MiB are locked")
"#).control(above(Resource::Memlock, 16 << 20)),
        inside("RS-message-queues", "have queues without a bound", &[MessageQueues], r#"
librt = ctypes.CDLL("librt.so.1", use_errno=True)
attributes = (ctypes.c_long * 8)(0, 10, 8192)
made = 0
while made < 32 and librt.mq_open(f"/{made}".encode(), os.O_RDWR | os.O_CREAT, 0o600, attributes) >= 0: made += 1
if made == 32: won(made, "queues of 80 KiB")
"#).control(above(Resource::Msgqueue, 32 * 90_000)),
        inside("RS-nice", "be more important than others", &[NiceLimit], r#"
os.setpriority(os.PRIO_PROCESS, 0, -5)
won(os.getpriority(os.PRIO_PROCESS, 0))
"#).control(above(Resource::Nice, 20)),
        inside("RS-nice-root", "be more important than others, as root inside", &[], r#"
os.setpriority(os.PRIO_PROCESS, 0, -5)
won(os.getpriority(os.PRIO_PROCESS, 0))
"#).by_root().control(Control::Local),
        inside("RS-real-time", "be scheduled before everybody", &[Seccomp, RealTimeLimit], r#"
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
won(os.sched_getscheduler(0))
"#).control(above(Resource::Rtprio, 0)),
        inside("RS-real-time-root", "be scheduled before everybody, as root inside", &[], r#"
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
won(os.sched_getscheduler(0))
"#).by_root().control(Control::Local),
        inside("RS-short-turns", "be let in before others at the processor", &[GuestFilter], r#"
call(314, 0, struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, 100_000, 0, 0), 0)
won("turns of a tenth of a millisecond")
"#),
        inside(
            "RS-netlink",
            "have netlink sockets without a bound",
            &[NetlinkCount],
            r#"
held = [socket.socket(16, socket.SOCK_RAW, 0) for _ in range(40)]
won(len(held), "sockets")
"#,
        ),
        inside("RS-listeners", "have sockets that listen without a bound", &[ListenerCount], r#"
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(20)]
held += [socket.create_server(("::1", 0), family=socket.AF_INET6) for _ in range(20)]
won(len(held), "listeners")
"#).with(&["--memory", "64m"]),
        inside("RS-listeners-at-once", "have all threads listen before the first is seen to", &[ListenerCount], r#"
threading.stack_size(1 << 18)
barrier, listening = threading.Barrier(40), []
def listen():
    own = socket.socket(); own.bind(("127.0.0.1", 0)); barrier.wait(20)
    try: own.listen()
    except OSError: return
    listening.append(own)
threads = [threading.Thread(target=listen) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if len(listening) > 4: won(len(listening), "listeners")
print(len(listening), "listen")
"#).with(&["--memory", "64m", "--pids", "64"]),
        inside("RS-unaccepted", "leave connections waiting that nobody is charged for", &[ListenerCount], r#"
listener, ends = socket.create_server(("127.0.0.1", 0), backlog=4096), []
for _ in range(1000):
    end = socket.socket(); end.setblocking(False); end.connect_ex(listener.getsockname()); ends.append(end)
port = ":%04X" % listener.getsockname()[1]
rows = [row.split() for row in open("/proc/net/tcp")]
waiting = sum(row[1].endswith(port) and row[3] == "01" for row in rows)
if waiting > 200: won(waiting, "connections that nobody has accepted")
print(waiting, "wait")
"#).with(&["--memory", "64m"]).also(&[StreamCount]),
        inside("RS-unaccepted-bytes", "leave much waiting in connections that nobody is charged for", &[Seccomp], r#"
listener, ends = socket.create_server(("127.0.0.1", 0)), []
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
for _ in range(4):
    end = socket.create_connection(listener.getsockname(), 5); end.setblocking(False); ends.append(end)
    try:
        while True: end.send(bytes(65536))
    except BlockingIOError: pass
port = ":%04X" % listener.getsockname()[1]
rows = [row.split() for row in open("/proc/net/tcp")]
waiting = max(int(row[4].split(":")[1], 16) for row in rows if row[1].endswith(port) and row[3] == "01")
if waiting > 40000: won(waiting, "bytes in a connection")
print(waiting, "bytes wait")
"#).with(&["--memory", "64m"]),
        // Datagrams of unix sockets need no count: the kernel charges them to the sandbox (GFP_KERNEL_ACCOUNT), and a
        // `socketpair` is always of that family.
        inside("RS-datagrams-unfinished", "leave datagrams begun, which nobody is charged for", &[DatagramCount], r#"
waiting, held = 0, []
try:
    for _ in range(100):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.connect(("127.0.0.1", 9))
        one.send(bytes(60000), socket.MSG_MORE | socket.MSG_DONTWAIT); held.append(one)
except OSError as error: print(error)
for one in held: waiting += struct.unpack("i", fcntl.ioctl(one, 0x5411, bytes(4)))[0]
if len(held) > 64: won(waiting >> 20, "MiB wait in", len(held), "sockets")
print(waiting >> 20, "MiB in", len(held))
"#).with(&["--memory", "64m"]),
        inside("RS-datagrams-unbound", "make the sockets first, and use them when all are there", &[DatagramCount], r#"
held = []
try:
    for number in range(100): held.append(socket.socket(socket.AF_INET6 if number % 2 else socket.AF_INET, socket.SOCK_DGRAM))
except OSError as error: print(error)
if len(held) > 64: won(len(held), "sockets")
print(len(held), "sockets")
"#).with(&["--memory", "64m"]),
        inside("RS-datagrams-at-once", "have all threads make one before the first is seen to", &[DatagramCount], r#"
threading.stack_size(1 << 18)
barrier, held = threading.Barrier(40), []
def make():
    barrier.wait(20)
    try:
        for _ in range(4): held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    except OSError: pass
threads = [threading.Thread(target=make) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if len(held) > 64: won(len(held), "sockets")
print(len(held), "sockets")
"#).with(&["--memory", "64m", "--pids", "64"]),
        inside("RS-copies-of-datagrams", "have copies of what was sent kept, by asking with each datagram", &[DatagramCount], r#"
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sink.bind(("127.0.0.1", 0))
kept, held = 0, []
stamps = struct.pack("I", 1 << 1 | 1 << 8)
try:
    for _ in range(100):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); held.append(one)
        for _ in range(3):
            one.sendmsg([bytes(50000)], [(socket.SOL_SOCKET, 37, stamps)], socket.MSG_DONTWAIT, sink.getsockname())
            sink.recv(65536, socket.MSG_DONTWAIT)
except OSError as error: print(error)
for one in held:
    try: kept += len(one.recvmsg(65536, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT | socket.MSG_PEEK)[0]) > 0
    except OSError: pass
if kept > 64: won("copies are kept in", kept, "sockets")
print("copies are kept in", kept, "of", len(held))
"#).with(&["--memory", "64m"]),
        inside("RS-streams", "have so many connections that the least of each is too much", &[StreamCount], r#"
listener, held = socket.create_server(("127.0.0.1", 0), backlog=16), []
try:
    for _ in range(400):
        one = socket.create_connection(listener.getsockname(), 5); one.setblocking(False); held += [one, listener.accept()[0]]
        try: one.send(bytes(4096))
        except BlockingIOError: pass
except OSError as error: print(error)
if len(held) > 520: won(len(held), "ends of connections")
print(len(held), "ends")
"#).with(&["--memory", "64m"]),
        inside("RS-streams-closed", "leave connections closed, with bytes that nobody reads", &[StreamCount], r#"
listener, held = socket.create_server(("127.0.0.1", 0), backlog=16), []
try:
    for _ in range(400):
        one = socket.create_connection(listener.getsockname(), 5); one.setblocking(False); held.append(listener.accept()[0])
        try:
            while True: one.send(bytes(4096))
        except BlockingIOError: pass
        one.close()
except OSError as error: print(error)
there = len(open("/proc/net/tcp").readlines()) - 1
if there > 520: won(there, "ends, and", len(held), "descriptors")
print(there, "ends")
"#).with(&["--memory", "64m"]),
        inside("RS-streams-accepted", "have one socket connect again and again, and keep the other ends", &[StreamCount], r#"
listener, held = socket.create_server(("127.0.0.1", 0), backlog=16), []
name = listener.getsockname()
address = ctypes.create_string_buffer(struct.pack("=H", 2) + struct.pack(">H4s8x", name[1], socket.inet_aton(name[0])), 16)
one = socket.socket()
try:
    for _ in range(700):
        call(42, one.fileno(), address, 16)
        held.append(listener.accept()[0])
        one.send(bytes(512))
        call(42, one.fileno(), ctypes.create_string_buffer(16), 16)
except OSError as error: print(error)
if len(held) > 520: won(len(held), "ends by one socket")
print(len(held), "ends")
"#).with(&["--memory", "64m"]),
        inside("RS-keys-of-connections", "have the kernel keep keys of connections", &[Seccomp], r#"
made, one = 0, socket.socket()
while made < 100:
    key = struct.pack("=H", 2) + struct.pack(">H4s120x", 0, struct.pack(">I", 0x0a000000 + made)) + struct.pack("=BBHI80s", 0, 0, 8, 0, b"abcdefgh")
    one.setsockopt(socket.IPPROTO_TCP, 14, key); made += 1
won(made, "keys")
"#),
        inside("RS-options-that-keep", "have the kernel keep what options of sockets say", &[Seccomp], r#"
four, six, tcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), socket.socket()
group, source, own = (socket.inet_aton(name) for name in ("232.1.1.1", "10.0.0.1", "127.0.0.1"))
tries = [
    ("IP_OPTIONS", four, 0, 4, bytes([1] * 40)),
    ("IP_ADD_SOURCE_MEMBERSHIP", four, 0, 39, group + own + source),
    ("IP_MSFILTER", four, 0, 41, group + own + struct.pack("=II", 0, 1) + source),
    ("IP_BLOCK_SOURCE", four, 0, 38, group + own + source),
    ("IPV6_RTHDR", six, 41, 57, bytes([0, 2, 2, 1, 0, 0, 0, 0]) + socket.inet_pton(socket.AF_INET6, "::1")),
    ("IPV6_FLOWLABEL_MGR", six, 41, 32, socket.inet_pton(socket.AF_INET6, "::1") + struct.pack(">IBBHHHI", 0, 0, 255, 1, 6, 0, 0)),
    ("TCP_SAVE_SYN", tcp, 6, 27, struct.pack("i", 1)),
    ("TCP_FASTOPEN_KEY", tcp, 6, 33, bytes(16)),
    ("SO_RESERVE_MEM", tcp, 1, 73, struct.pack("i", 4096)),
    ("SO_TXTIME", four, 1, 61, struct.pack("iI", 1, 0)),
]
done = []
for name, one, level, option, value in tries:
    try: one.setsockopt(level, option, value)
    except OSError as error: print(name, error); continue
    done.append(name)
if done: won(done)
"#),
        inside("RS-huge-pages", "take pages that the host has set aside, which are in no memory limit", &[Seccomp], r#"
made, MAP_HUGETLB, MFD_HUGETLB, SHM_HUGETLB = [], 0x40000, 4, 0o4000
libc.mmap.restype = ctypes.c_long
if libc.mmap(0, ctypes.c_size_t(2 << 20), 3, 0x22 | MAP_HUGETLB, -1, ctypes.c_long(0)) != -1: made.append("memory")
# The file is made whether or not there are pages for it.
if libc.memfd_create(b"huge", MFD_HUGETLB) >= 0: made.append("a file")
shared = libc.shmget(0, ctypes.c_size_t(2 << 20), SHM_HUGETLB | 0o1600)
if shared >= 0: made.append("shared memory"); libc.shmctl(shared, 0, None)
if made: won(made)
"#).control(huge_pages()),
        inside("RS-locks", "hold more locks on files than anybody needs", &[LockCount], r#"
held = [open(str(number), "w") for number in range(8)]
for number in range(6000): fcntl.lockf(held[number % 8], fcntl.LOCK_EX, 1, 2 * (number // 8))
until = time.monotonic() + 5
while time.monotonic() < until: pass
won("6000 locks")
"#).with(&["--memory", "64m"]).mortal(),
        inside("RS-locks-on-timers", "lengthen the list that every close of a timer on the host walks", &[LockCount], r#"
timer, most = libc.timerfd_create(1, 0), 6000
for number in range(most): fcntl.lockf(timer, fcntl.LOCK_SH, 1, 2 * number)
until = time.monotonic() + 5
while time.monotonic() < until: pass
won(most, "locks")
"#).with(&["--memory", "64m"]).mortal(),
        inside("RS-locks-of-descriptors", "hold locks that are counted as no process's", &[Seccomp], r#"
for command in (37, 38):
    fcntl.fcntl(open("file", "w"), command, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
    won("command", command)
"#),
        inside("RS-locks-of-the-gone", "hold locks that were taken by one who is gone", &[Seccomp], r#"
held, CLONE_FILES = open("file", "w"), 0x400
child = call(56, CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    fcntl.lockf(held, fcntl.LOCK_EX)
    os._exit(0)
os.waitpid(child, 0)
won("it lives on in its descriptors")
"#),
        inside("RS-terminals", "use up the terminals", &[TerminalCount], r#"
held = [os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) for _ in range(80)]
won(len(held), "terminals")
"#),
        outside("RS-kept-output", "fill the host's disk with output that is kept", &[SpoolBound], |ring| {
            kept_output(ring, &["--memory", "256m"], 1, 80)
        }),
        outside("RS-kept-outputs", "the same with many small outputs, beyond its own disk", &[SpoolBound], |ring| {
            kept_output(ring, &["--memory", "64m", "--disk", "16m"], 3, 30)
        }),
    ]
}

/// A kernel may be built without huge pages.
fn huge_pages() -> Control {
    if Path::new("/proc/sys/vm/nr_hugepages").exists() {
        Control::WallsDown
    } else {
        Control::Moot("this kernel has no huge pages")
    }
}

/// Core files are seen only where the kernel writes them where the program is.
fn core() -> Control {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with(['|', '/']) {
        return Control::Moot("this machine's core pattern leads elsewhere");
    }
    above(Resource::Core, 1 << 20)
}

/// Spins for a while, and asks the kernel whether it was ever held back.
fn processor(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&["--cpus", "0.01"]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let spun = ring.json(&["exec", "--timeout", "1500ms", &id, "--", "sh", "-c", "while :; do :; done"]);
    let built = std::fs::read_to_string(ring.directory(&id).join("lock")).unwrap_or_default();
    let built: serde_json::Value = serde_json::from_str(&built).unwrap_or_default();
    let slot = built["slot"].to_string();
    let places = ["cpu", "cpu,cpuacct", ""]
        .map(|part| Path::new("/sys/fs/cgroup").join(part).join("belljar").join(&slot).join("box/cpu.stat"));
    let Some(text) = places.iter().find_map(|place| std::fs::read_to_string(place).ok()) else {
        return Outcome::Broken(format!("the sandbox's cgroup is not found: {spun}"));
    };
    let held = text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok());
    match held.unwrap_or(0) {
        0 => Outcome::Won("it span and was never held back".into()),
        times => Outcome::Stopped(format!("held back {times} times")),
    }
}

/// Has so many executions say so many mebibytes each, and looks at what is kept of it.
fn kept_output(ring: &Ring<'_>, options: &[&str], times: usize, mebibytes: u32) -> Outcome {
    let id = match ring.create(options) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let script = format!("head -c {mebibytes}m /dev/zero; echo end >&2");
    for _ in 0..times {
        ring.json(&["exec", "-d", &id, "--", "sh", "-c", &script]);
    }
    let ended = within(Duration::from_secs(60), || {
        let listed = ring.json(&["inspect", &id]);
        let ended = |number: usize| {
            !listed["executions"][number].is_null() && !listed["executions"][number]["termination"].is_null()
        };
        (0..times).all(ended)
    });
    if !ended {
        return Outcome::Broken(format!("the {times} executions do not end"));
    }
    let spool = ring.directory(&id).join("spool");
    let kept: u64 =
        files_below(&spool).iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum();
    match kept >> 20 {
        0 => Outcome::Broken("nothing was kept".into()),
        mebibytes if mebibytes > 66 => Outcome::Won(format!("{mebibytes} MiB are kept")),
        mebibytes => Outcome::Stopped(format!("{mebibytes} MiB are kept")),
    }
}

fn files_below(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { vec![entry.path()] })
        .collect()
}
