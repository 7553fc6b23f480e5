//! NS: namespaces, ids, capabilities, and the processes and objects of others.

use std::collections::BTreeSet;

use belljar_core::Wall::{
    BoundingSet, Capabilities, CleanEnvironment, GuestFilter, IpcNamespace, LandlockExecution,
    LandlockSandbox, NoNestedNamespaces, PidNamespace, Seccomp, UserIds,
};

use crate::attack::{Attack, Control, Outcome, Ring, inside, outside, within};
use crate::sweep::{FIRST_ID, IDS_PER_SLOT, processes};

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        inside(
            "NS-unshare-user",
            "become root of a user namespace of its own",
            &[Seccomp, NoNestedNamespaces],
            r#"
call(272, 0x10000000)
won(read("/proc/self/uid_map"))
"#,
        ),
        inside(
            "NS-clone-user",
            "have a child in a user namespace of its own",
            &[Seccomp, NoNestedNamespaces],
            r#"
child = call(56, 0x10000000 | 17, 0, 0, 0, 0)
if child == 0: os._exit(0)
won("child", child)
"#,
        ),
        inside(
            "NS-clone3-user",
            "the same by the newer call, whose flags no filter sees",
            &[GuestFilter, NoNestedNamespaces],
            r#"
arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
child = call(435, arguments, 88)
if child == 0: os._exit(0)
won("child", child)
"#,
        ),
        inside(
            "NS-clone3",
            "use the newer call at all",
            &[GuestFilter],
            r#"
arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
child = call(435, arguments, 88)
if child == 0: os._exit(0)
won("child", child)
"#,
        ),
        inside(
            "NS-unshare-mounts",
            "have mounts of its own",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
call(272, 0x20000)
won("done")
"#,
        )
        .by_root(),
        inside(
            "NS-unshare-network",
            "have a network of its own",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
call(272, 0x40000000)
won("done")
"#,
        )
        .by_root(),
        inside(
            "NS-unshare-cgroups",
            "have a view of cgroups of its own",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
call(272, 0x2000000)
won("done")
"#,
        )
        .by_root(),
        inside(
            "NS-setns",
            "enter a namespace",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
call(308, os.open("/proc/self/ns/uts", os.O_RDONLY), 0)
won("entered")
"#,
        )
        .by_root(),
        inside(
            "NS-host-name-change",
            "rename the host",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
socket.sethostname("hijacked")
won(os.uname().nodename)
"#,
        )
        .by_root(),
        inside(
            "NS-domain-name-change",
            "rename the host's domain",
            &[Seccomp, BoundingSet, Capabilities],
            r#"
call(171, b"hijacked", 8)
won("done")
"#,
        )
        .by_root(),
        inside(
            "NS-clock",
            "reach the kernel's clock discipline",
            &[Seccomp],
            r#"
state = ctypes.create_string_buffer(256)
won("state", call(159, state))
"#,
        ),
        inside(
            "NS-set-clock",
            "set the host's clock",
            &[],
            r#"
# To what it is: nothing changes where it is allowed.
now = time.clock_gettime(time.CLOCK_REALTIME)
time.clock_settime(time.CLOCK_REALTIME, now)
won("set")
"#,
        )
        .by_root()
        .control(Control::Moot(
            "setting a clock is no harmless control; filter, capabilities and the kernel each refuse it",
        )),
        inside(
            "NS-net-bind",
            "take a low port as the default user",
            &[Capabilities],
            r#"
file = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
file.bind(("127.0.0.1", 1))
won("bound")
"#,
        ),
        inside(
            "NS-write-anywhere",
            "write where only root may, as the default user",
            &[Capabilities],
            r#"
os.mkdir("/srv/mine")
won(os.stat("/srv/mine"))
"#,
        ),
        inside(
            "NS-chown",
            "give its file to root",
            &[Capabilities],
            r#"
open("file", "w").close()
os.chown("file", 0, 0)
won(os.stat("file"))
"#,
        ),
        inside(
            "NS-setuid",
            "become root inside",
            &[Capabilities],
            r#"
os.setuid(0)
won(os.getuid())
"#,
        ),
        inside(
            "NS-kill-others",
            "signal processes of another user inside",
            &[Capabilities],
            r#"
os.kill(1, signal.SIGCONT)
won("signalled the first process")
"#,
        ),
        inside(
            "NS-more-capabilities",
            "gain further capabilities as root inside",
            &[BoundingSet, Capabilities],
            r#"
effective = int([line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1], 16)
if effective & ~0x5fb: won(hex(effective))
"#,
        )
        .by_root(),
        inside(
            "NS-environment",
            "find secrets of the caller in its environment",
            &[CleanEnvironment],
            r#"
for name, value in os.environ.items():
    if name == "BELLJAR_CANARY": won(name, value)
"#,
        ),
        inside(
            "NS-shared-memory",
            "read System V shared memory of the host",
            &[IpcNamespace],
            r#"
libc.shmat.restype = ctypes.c_void_p
ctypes.set_errno(0)
at = libc.shmat(C["victim"]["shm"], None, 0o10000)
if at == ctypes.c_void_p(-1).value: raise OSError(ctypes.get_errno(), "shmat")
won(ctypes.string_at(at, 64))
"#,
        ),
        inside(
            "NS-message-queue",
            "read a message queue of the host",
            &[IpcNamespace, LandlockSandbox, LandlockExecution],
            r#"
librt = ctypes.CDLL("librt.so.1", use_errno=True)
queue = librt.mq_open(C["victim"]["queue"].encode(), os.O_RDONLY | os.O_NONBLOCK)
if queue < 0: raise OSError(ctypes.get_errno(), "mq_open")
won("queue", queue)
"#,
        ),
        inside(
            "NS-semaphores",
            "list the host's System V objects",
            &[IpcNamespace],
            r#"
if len(open("/proc/sysvipc/shm").readlines()) > 1: won(open("/proc/sysvipc/shm").readlines()[1])
"#,
        ),
        inside(
            "NS-kill-host",
            "signal a process of the host",
            &[PidNamespace, UserIds, LandlockSandbox],
            r#"
os.kill(C["victim"]["pid"], signal.SIGWINCH)
won("signalled", C["victim"]["pid"])
"#,
        )
        .by_root(),
        inside(
            "NS-pidfd-host",
            "hold a process of the host",
            &[PidNamespace],
            r#"
won("descriptor", os.pidfd_open(C["victim"]["pid"]))
"#,
        ),
        inside(
            "NS-nice-host",
            "slow down a process of the host",
            &[],
            r#"
os.setpriority(os.PRIO_PROCESS, C["victim"]["pid"], os.getpriority(os.PRIO_PROCESS, C["victim"]["pid"]))
won("set")
"#,
        )
        .by_root()
        .control(Control::Local),
        outside("NS-host-ids", "run with an id of the host, or of a neighbour", &[UserIds], host_ids),
        inside(
            "NS-ptrace",
            "trace another process",
            &[Seccomp],
            r#"
child = os.fork()
if child == 0: time.sleep(30)
try:
    call(101, 0x4206, child, 0, 0)
    won("traced", child)
finally: os.kill(child, 9)
"#,
        ),
        inside(
            "NS-ptrace-me",
            "be traced",
            &[Seccomp],
            r#"
child = os.fork()
if child == 0:
    try: call(101, 0, 0, 0, 0)
    except OSError: os._exit(1)
    os._exit(0)
if os.waitpid(child, 0)[1] == 0: won("traced")
"#,
        ),
        inside(
            "NS-steal-descriptor",
            "take a descriptor from another process",
            &[Seccomp],
            r#"
child = os.fork()
if child == 0: time.sleep(30)
try: won(call(438, os.pidfd_open(child), 0, 0))
finally: os.kill(child, 9)
"#,
        ),
        inside(
            "NS-read-memory",
            "read the memory of another process",
            &[Seccomp],
            r#"
target = ctypes.create_string_buffer(b"secret of the child")
child = os.fork()
if child == 0: time.sleep(30)
copy = ctypes.create_string_buffer(8)
local = (ctypes.c_uint64 * 2)(ctypes.addressof(copy), 8)
remote = (ctypes.c_uint64 * 2)(ctypes.addressof(target), 8)
try: won(call(310, child, local, 1, remote, 1, 0), copy.raw)
finally: os.kill(child, 9)
"#,
        ),
        inside(
            "NS-write-memory",
            "write the memory of another process",
            &[Seccomp],
            r#"
target = ctypes.create_string_buffer(b"secret of the child")
child = os.fork()
if child == 0: time.sleep(30)
local = (ctypes.c_uint64 * 2)(ctypes.addressof(ctypes.create_string_buffer(b"x" * 8)), 8)
remote = (ctypes.c_uint64 * 2)(ctypes.addressof(target), 8)
try: won(call(311, child, local, 1, remote, 1, 0))
finally: os.kill(child, 9)
"#,
        ),
        inside(
            "NS-compare",
            "learn kernel pointers by comparing processes",
            &[Seccomp],
            r#"
won(call(312, os.getpid(), os.getpid(), 0, 0, 1))
"#,
        ),
        inside(
            "NS-limits-of-the-guest",
            "take the first process's descriptors away",
            &[Seccomp],
            r#"
was = resource.prlimit(1, resource.RLIMIT_NOFILE)
resource.prlimit(1, resource.RLIMIT_NOFILE, was)
won("set", was)
"#,
        )
        .by_root(),
    ]
}

/// Starts a process as each user in two sandboxes and looks at them from outside.
fn host_ids(ring: &Ring<'_>) -> Outcome {
    let mut blocks = Vec::new();
    for _ in 0..2 {
        let id = match ring.create(&[]) {
            Ok(id) => id,
            Err(outcome) => return outcome,
        };
        let word = crate::canary::random_word();
        for user in ["user", "root"] {
            ring.json(&[
                "exec",
                "-d",
                "--user",
                user,
                &id,
                "--",
                "sh",
                "-c",
                "while :; do sleep 1; done",
                &word,
            ]);
        }
        let mut ids = BTreeSet::new();
        let seen = within(std::time::Duration::from_secs(20), || {
            let all = processes();
            let ours = all
                .iter()
                .filter(|process| process.command.starts_with("sh -c") && process.command.contains(&word));
            ids = ours.map(|process| process.uid).collect();
            ids.len() == 2
        });
        if !seen {
            return Outcome::Broken(format!("the processes are not seen: {ids:?}"));
        }
        if let Some(uid) = ids.iter().find(|uid| **uid < FIRST_ID) {
            return Outcome::Won(format!("a process inside is user {uid} of the host"));
        }
        blocks.push(ids.iter().map(|uid| (uid - FIRST_ID) / IDS_PER_SLOT).collect::<BTreeSet<_>>());
    }
    if blocks[0].intersection(&blocks[1]).next().is_some() {
        return Outcome::Won(format!("two sandboxes share ids: {blocks:?}"));
    }
    Outcome::Stopped(format!("blocks {blocks:?}"))
}
