//! SY: calls of the kernel that have nothing for honest programs, or too much for hostile ones.

use belljar_core::Wall::{GuestFilter, Seccomp};

use crate::attack::{Attack, Control, inside};

/// A path that exists only where the kernel was built with something.
fn exists(path: &str, why: &'static str) -> Control {
    if std::path::Path::new(path).exists() { Control::WallsDown } else { Control::Moot(why) }
}

fn ciphers() -> Control {
    use rustix::net::{AddressFamily, SocketType, socket};
    match socket(AddressFamily::from_raw(38), SocketType::SEQPACKET, None) {
        Ok(_) => Control::WallsDown,
        Err(_) => Control::Moot("this kernel has no sockets for ciphers"),
    }
}

/// A protocol that the kernel may lack.
fn protocol(kind: rustix::net::SocketType, number: u32) -> Control {
    use rustix::net::{AddressFamily, Protocol, socket};
    let protocol = std::num::NonZeroU32::new(number).map(Protocol::from_raw);
    match socket(AddressFamily::INET, kind, protocol) {
        Ok(_) => Control::WallsDown,
        Err(_) => Control::Moot("this kernel has no such protocol"),
    }
}

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        inside(
            "SY-io-uring",
            "make calls that no filter sees",
            &[Seccomp],
            r#"
won("descriptor", call(425, 4, ctypes.create_string_buffer(240)))
"#,
        ),
        inside(
            "SY-bpf",
            "load a program into the kernel",
            &[],
            r#"
attributes = ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 8, 1, 0) + bytes(100))
descriptor = call(321, 0, attributes, 72)
won("descriptor", descriptor)
os.close(descriptor)
"#,
        )
        .by_root()
        .control(Control::Local),
        inside(
            "SY-perf",
            "count what the processor does",
            &[Seccomp],
            r#"
attributes = ctypes.create_string_buffer(struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 0b1100001) + bytes(64))
won("descriptor", call(298, attributes, 0, -1, -1, 0))
"#,
        ),
        inside(
            "SY-userfaultfd",
            "make the kernel wait for a page",
            &[Seccomp],
            r#"
won("descriptor", call(323, 1))
"#,
        ),
        inside(
            "SY-keys",
            "use the kernel's keyrings",
            &[Seccomp],
            r#"
won("keyring", call(250, 0, -3, 1))
"#,
        ),
        inside(
            "SY-add-key",
            "leave a key for others",
            &[Seccomp],
            r#"
won("key", call(248, b"user", b"belljar", b"x", 1, -2))
"#,
        ),
        inside(
            "SY-request-key",
            "ask for a key",
            &[Seccomp],
            r#"
try: call(249, b"user", b"nothing", None, -2)
except OSError as error:
    if error.errno not in (errno.EPERM, errno.ENOSYS): won("the kernel looked for it:", error)
"#,
        ),
        inside(
            "SY-vmsplice",
            "give pages to a pipe",
            &[Seccomp],
            r#"
page = ctypes.create_string_buffer(4096)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(page), 4096)
won(call(278, os.pipe()[1], vector, 1, 0))
"#,
        ),
        inside(
            "SY-splice",
            "move pages from a shared file into a pipe",
            &[Seccomp],
            r#"
won(call(275, os.open("/usr/bin/env", os.O_RDONLY), None, os.pipe()[1], None, 4096, 0))
"#,
        ),
        inside(
            "SY-crypto-socket",
            "use the kernel's ciphers",
            &[Seccomp],
            r#"
won(socket.socket(38, socket.SOCK_SEQPACKET, 0))
"#,
        )
        .control(ciphers()),
        inside(
            "SY-netlink",
            "speak to parts of the kernel other than routes",
            &[Seccomp],
            r#"
won(socket.socket(16, socket.SOCK_RAW, 16))
"#,
        ),
        inside(
            "SY-netlink-audit",
            "speak to the kernel's audit",
            &[Seccomp],
            r#"
done = []
for protocol in range(1, 23):
    try: done.append((protocol, socket.socket(16, socket.SOCK_RAW, protocol)))
    except OSError: pass
if done: won([number for number, _ in done])
"#,
        ),
        inside(
            "SY-families",
            "use any of the odd families of sockets",
            &[Seccomp],
            r#"
done = []
for family in [3, 4, 5, 6, 8, 9, 11, 12, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 29, 30, 31, 33, 34, 35, 36, 37, 39, 41, 42, 43, 44, 45]:
    for kind in (1, 2, 3, 5):
        try: socket.socket(family, kind).close(); done.append((family, kind))
        except OSError: pass
for family in (40, 38):
    try: socket.socket(family, 1 if family == 40 else 5).close(); done.append(family)
    except OSError: pass
if done: won(done)
"#,
        ),
        inside(
            "SY-old-packet",
            "make a packet socket of an internet one",
            &[Seccomp],
            r#"
try: socket.socket(socket.AF_INET, 10, 3)
except OSError as error:
    if error.errno == errno.EPERM: won("the kernel took it for a packet socket:", error)
    raise
won("made")
"#,
        ),
        inside(
            "SY-mlockall",
            "lock all its memory",
            &[Seccomp],
            r#"
call(151, 2)
won("locked")
"#,
        ),
        inside(
            "SY-scheduler",
            "change how it is scheduled",
            &[Seccomp],
            r#"
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
won(os.sched_getscheduler(0))
"#,
        ),
        inside(
            "SY-scheduler-new",
            "the same by the newer call",
            &[GuestFilter],
            r#"
call(314, 0, struct.pack("IIQiIQQQ", 48, 3, 0, 0, 0, 0, 0, 0), 0)
won(os.sched_getscheduler(0))
"#,
        ),
        inside(
            "SY-memory-policy",
            "choose where its memory is",
            &[Seccomp],
            r#"
call(238, 0, None, 0)
won("set")
"#,
        )
        .control(exists("/proc/self/numa_maps", "this kernel has no memory policies")),
        inside(
            "SY-ldt",
            "write the processor's descriptor table",
            &[Seccomp],
            r#"
won(call(154, 0, ctypes.create_string_buffer(16), 16))
"#,
        ),
        inside(
            "SY-kernel-log",
            "read the kernel's log",
            &[],
            r#"
won("bytes", call(103, 10, None, 0))
"#,
        )
        .by_root()
        .control(Control::Local),
        inside(
            "SY-personality",
            "have its memory executable",
            &[Seccomp],
            r#"
call(135, 0x0400000)
won(hex(call(135, 0xffffffff)))
"#,
        ),
        inside(
            "SY-no-randomisation",
            "switch off the randomisation of addresses",
            &[Seccomp],
            r#"
call(135, 0x0040000)
won(hex(call(135, 0xffffffff)))
"#,
        ),
        inside("SY-type-ahead", "type into its own terminal, for whoever reads it next", &[Seccomp], TYPE),
        inside("SY-type-ahead-wide", "the same with bits that a filter may overlook", &[Seccomp], TYPE_WIDE),
        inside(
            "SY-console",
            "reach the console's own requests",
            &[Seccomp],
            r#"
pid, terminal = os.forkpty()
if pid == 0:
    try: fcntl.ioctl(0, 0x541C, b"\x06")
    except OSError as error: os._exit(1 if error.errno == errno.EPERM else 0)
    os._exit(0)
if os.waitpid(pid, 0)[1] == 0: won("the kernel answered")
"#,
        ),
        inside(
            "SY-other-architecture",
            "call as a program of another architecture",
            &[Seccomp],
            r#"
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
# mov eax, 20 (getpid); int 0x80; ret
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
answer = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
if answer == os.getpid(): won("it answered", answer)
"#,
        )
        .mortal()
        .control(if cfg!(target_arch = "x86_64") {
            Control::WallsDown
        } else {
            Control::Moot("there is no such architecture here")
        }),
        inside(
            "SY-newest-calls",
            "find calls that were added after the filter was written",
            &[Seccomp],
            r#"
known = {449, 452, 462}
found = []
for number in [450, 451] + list(range(453, 500)):
    try: call(number, -1, -1, -1, -1, -1, -1); found.append(number)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM): found.append(number)
if found: won(found)
"#,
        ),
        inside(
            "SY-filter",
            "put filters of its own into the kernel",
            &[GuestFilter],
            r#"
program = struct.pack("HBBI", 6, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(program)
call(317, 1, 0, struct.pack("HxxxxxxQ", 1, ctypes.addressof(held)))
won("one filter is in place")
"#,
        ),
        inside(
            "SY-filter-listener",
            "have a filter that asks itself",
            &[GuestFilter],
            r#"
program = struct.pack("HBBI", 6, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(program)
won("descriptor", call(317, 1, 8, struct.pack("HxxxxxxQ", 1, ctypes.addressof(held))))
"#,
        )
        .also(&[Seccomp]),
        inside(
            "SY-filter-old",
            "the same by the older call",
            &[Seccomp],
            r#"
program = struct.pack("HBBI", 6, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(program)
call(157, 22, 2, struct.pack("HxxxxxxQ", 1, ctypes.addressof(held)), 0, 0)
won("one filter is in place")
"#,
        ),
        inside(
            "SY-socket-filter",
            "put a filter on a socket",
            &[Seccomp],
            r#"
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffff))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt(1, 26, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
won("one filter is in place")
"#,
        ),
        inside(
            "SY-group-filter",
            "put a filter on a group of sockets",
            &[Seccomp],
            r#"
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group.setsockopt(1, 15, 1)
group.bind(("127.0.0.1", 0))
group.setsockopt(1, 51, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
won("one filter is in place")
"#,
        ),
        inside(
            "SY-error-queue",
            "have errors queued without a bound",
            &[Seccomp],
            r#"
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.setsockopt(0, 11, 1)
if asked.getsockopt(0, 11): won("errors are queued")
"#,
        ),
        inside(
            "SY-error-queue-v6",
            "the same with version six",
            &[Seccomp],
            r#"
asked = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
asked.setsockopt(41, 25, 1)
if asked.getsockopt(41, 25): won("errors are queued")
"#,
        ),
        inside(
            "SY-time-stamps",
            "have copies of what was sent queued without a bound",
            &[Seccomp],
            r#"
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.setsockopt(1, 37, 0x18)
if asked.getsockopt(1, 37): won("copies are queued")
"#,
        ),
        inside(
            "SY-flow-labels",
            "take the machine's flow labels away from others",
            &[Seccomp],
            r#"
asked = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
label = socket.inet_pton(socket.AF_INET6, "::1") + bytes(4) + struct.pack("=BBHHHI", 0, 1, 1, 6, 6, 0)
asked.setsockopt(41, 32, label)
won("one label is taken")
"#,
        ),
        inside(
            "SY-groups",
            "be in groups of version six, which nobody counts or bounds",
            &[Seccomp],
            r#"
asked = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
group, interface = socket.inet_pton(socket.AF_INET6, "ff02::7:1"), socket.if_nametoindex("lo")
address = struct.pack("=HHI16sI", 10, 0, 0, group, 0).ljust(128, b"\0")
source = struct.pack("=HHI16sI", 10, 0, 0, socket.inet_pton(socket.AF_INET6, "::1"), 0).ljust(128, b"\0")
ways = {
    20: group + struct.pack("I", interface),
    42: struct.pack("=II", interface, 0) + address,
    46: struct.pack("=II", interface, 0) + address + source,
}
for option, value in ways.items():
    try: asked.setsockopt(41, option, value); won("by option", option)
    except OSError as error: print(option, error)
"#,
        ),
        inside(
            "SY-mptcp",
            "use a protocol whose sockets are counted otherwise than those of TCP",
            &[Seccomp],
            r#"
won(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
"#,
        )
        .control(protocol(rustix::net::SocketType::STREAM, 262)),
        inside(
            "SY-mptcp-v6",
            "the same with version six",
            &[Seccomp],
            r#"
won(socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262))
"#,
        )
        .control(protocol(rustix::net::SocketType::STREAM, 262)),
        inside(
            "SY-udp-lite",
            "use a protocol that hardly anybody has looked at",
            &[Seccomp],
            r#"
won(socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136))
"#,
        )
        .control(protocol(rustix::net::SocketType::DGRAM, 136)),
        inside(
            "SY-sync",
            "have the host write out its file systems",
            &[Seccomp],
            r#"
# The kernel itself would say that there is no such descriptor.
try: call(306, -1)
except OSError as error:
    if error.errno == errno.EBADF: won(error)
"#,
        ),
        inside("SY-drop-cache", "drop the host's files from its page cache", &[Seccomp], DROP_BY_DESCRIPTOR)
            .by_root(),
        inside(
            "SY-page-out",
            "drop the host's files from its page cache, by mapping them",
            &[Seccomp],
            DROP_BY_MAP,
        )
        .by_root(),
        inside(
            "SY-move-memory-map",
            "move the parts of its memory map",
            &[],
            r#"
call(157, 35, 8, 0x10000, 0, 0)
won("moved")
"#,
        )
        .control(Control::Moot("only a process with CAP_SYS_RESOURCE may; nobody here has it")),
        inside(
            "SY-reboot",
            "switch the machine off",
            &[],
            r#"
# With numbers that are wrong: whoever may is told so, and nothing happens.
try: call(169, 1, 2, 3, None)
except OSError as error:
    if error.errno == errno.EINVAL: won("it may:", error)
    raise
"#,
        )
        .by_root()
        .control(Control::Local),
        inside(
            "SY-modules",
            "load a module into the kernel",
            &[],
            r#"
try: call(313, os.open("/usr/bin/env", os.O_RDONLY), b"", 0)
except OSError as error:
    if error.errno in (errno.ENOEXEC, errno.ENOSYS): won("it may:", error)
    raise
"#,
        )
        .by_root()
        .control(Control::Moot("this kernel has no modules, and loading one is no harmless control")),
    ]
}

/// Reads files of a layer and lets them go by some way; the kernel tells their owner, root inside, what is still there.
/// What others have mapped cannot go, so there are several, and each attack has its own.
macro_rules! drop_files {
    ($first:literal, $way:literal) => {
        concat!(
            r#"
import itertools
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
paths = (os.path.join(place, name) for place, _, names in os.walk("/usr/share") for name in names)
files = (path for path in paths if not os.path.islink(path) and 65536 < os.path.getsize(path) < 1 << 20)
for path in itertools.islice(files, "#,
            $first,
            r#", 16, 2):
    size = os.path.getsize(path)
    read(path, size)
    file = os.open(path, os.O_RDONLY)
    at = libc.mmap(None, size, 1, 1, file, 0)
    seen = ctypes.create_string_buffer((size + 4095) // 4096)
    def held():
        libc.mincore(at, size, seen)
        return sum(byte & 1 for byte in seen.raw)
    before = held()
"#,
            $way,
            r#"
    if before and not held(): won(path, before, "pages are gone")
"#
        )
    };
}

const DROP_BY_DESCRIPTOR: &str = drop_files!("0", "    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)");

const DROP_BY_MAP: &str = drop_files!(
    "1",
    r#"
    [ctypes.c_char.from_address(at + place).value for place in range(0, size, 4096)]
    call(28, at, size, 21)"#
);

const TYPE: &str = r#"
pid, terminal = os.forkpty()
if pid == 0:
    time.sleep(0)
    try: fcntl.ioctl(0, 0x5412, b"x")
    except OSError: os._exit(1)
    os._exit(0)
if os.waitpid(pid, 0)[1] == 0: won("typed")
"#;

const TYPE_WIDE: &str = r#"
pid, terminal = os.forkpty()
if pid == 0:
    try: call(16, 0, 0x100005412, b"x")
    except OSError: os._exit(1)
    os._exit(0)
if os.waitpid(pid, 0)[1] == 0: won("typed")
"#;
