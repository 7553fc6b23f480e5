//! PS: what `/proc` tells about the host, and what in it steers the host.

use belljar_core::Wall::{
    BoundingSet, Capabilities, CgroupNamespace, HostTreeDetached, LandlockExecution, PidNamespace, ProcMasks,
    ProcReadOnly, UserIds, UtsNamespace,
};

use crate::attack::{Attack, Control, inside};

/// A directory that the kernel may lack, or have nothing in.
fn listed(path: &str) -> Control {
    let holds_something = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    if holds_something { Control::WallsDown } else { Control::Moot("this kernel has nothing there") }
}

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        inside(
            "PS-core-pattern",
            "name a program of its own for the host to start",
            &[UserIds, ProcReadOnly, LandlockExecution],
            r#"
# The same that is there: what counts is that it would be taken.
before = read("/proc/sys/kernel/core_pattern")
with open("/proc/sys/kernel/core_pattern", "wb", buffering=0) as file: file.write(before)
won("it was taken")
"#,
        )
        .by_root(),
        inside(
            "PS-modprobe",
            "name a program for the host to load modules with",
            &[UserIds, ProcReadOnly, LandlockExecution],
            r#"
before = read("/proc/sys/kernel/modprobe")
with open("/proc/sys/kernel/modprobe", "wb", buffering=0) as file: file.write(before)
won("it was taken")
"#,
        )
        .by_root()
        .control(if std::path::Path::new("/proc/sys/kernel/modprobe").exists() {
            Control::WallsDown
        } else {
            Control::Moot("this kernel loads no modules")
        }),
        inside(
            "PS-sysrq",
            "press the host's emergency keys",
            &[UserIds, ProcMasks, LandlockExecution],
            r#"
file = os.open("/proc/sysrq-trigger", os.O_WRONLY)
if not stat.S_ISCHR(os.fstat(file).st_mode): won("the file is open; nothing is pressed")
"#,
        )
        .by_root()
        .control(if std::path::Path::new("/proc/sysrq-trigger").exists() {
            Control::WallsDown
        } else {
            Control::Moot("this kernel has no such keys")
        }),
        inside(
            "PS-network-settings",
            "change settings of the network",
            &[ProcReadOnly, LandlockExecution],
            r#"
with open("/proc/sys/net/ipv4/ip_default_ttl", "w") as file: file.write("77")
won(read("/proc/sys/net/ipv4/ip_default_ttl"))
"#,
        )
        .by_root()
        .also(&[BoundingSet, Capabilities]),
        inside(
            "PS-kernel-addresses",
            "learn where the kernel's functions are",
            &[ProcMasks],
            r#"
if read("/proc/kallsyms"): won(read("/proc/kallsyms")[:60])
"#,
        ),
        inside(
            "PS-boot-line",
            "read how the host was started",
            &[ProcMasks],
            r#"
if read("/proc/cmdline"): won(read("/proc/cmdline")[:60])
"#,
        ),
        inside(
            "PS-interrupts",
            "watch the host's interrupts, which tell keys from silence",
            &[ProcMasks],
            r#"
if read("/proc/interrupts"): won(read("/proc/interrupts")[:60])
"#,
        ),
        inside(
            "PS-locks",
            "see which files the host has locked",
            &[ProcMasks],
            r#"
file = open("lock", "w"); fcntl.flock(file, fcntl.LOCK_EX)
if read("/proc/locks"): won(read("/proc/locks")[:60])
"#,
        ),
        inside(
            "PS-disks",
            "see the host's disks and what they do",
            &[ProcMasks],
            r#"
if read("/proc/partitions") or read("/proc/diskstats"): won(read("/proc/partitions")[:80])
"#,
        ),
        inside(
            "PS-pressure",
            "measure what the neighbours do",
            &[ProcMasks],
            r#"
if os.listdir("/proc/pressure"): won(os.listdir("/proc/pressure"))
"#,
        )
        .control(if std::path::Path::new("/proc/pressure").exists() {
            Control::WallsDown
        } else {
            Control::Moot("this kernel measures no pressure")
        }),
        inside(
            "PS-file-systems",
            "watch how the disks of the host and of neighbours fill",
            &[ProcMasks],
            r#"
if os.listdir("/proc/fs"): won(os.listdir("/proc/fs"))
"#,
        )
        .control(listed("/proc/fs")),
        inside(
            "PS-buses",
            "see the host's hardware",
            &[ProcMasks],
            r#"
if os.listdir("/proc/bus"): won(os.listdir("/proc/bus"))
"#,
        )
        .control(listed("/proc/bus")),
        inside(
            "PS-interrupt-lines",
            "see the host's interrupts one by one",
            &[ProcMasks],
            r#"
if os.listdir("/proc/irq"): won(os.listdir("/proc/irq"))
"#,
        )
        .control(listed("/proc/irq")),
        inside(
            "PS-memory-zones",
            "see how the host's memory is laid out",
            &[ProcMasks],
            r#"
if read("/proc/zoneinfo") or read("/proc/buddyinfo"): won(read("/proc/zoneinfo")[:80])
"#,
        ),
        inside(
            "PS-host-processes",
            "see processes of the host and what they were told",
            &[PidNamespace],
            r#"
me = str(os.getpid())
for pid in [name for name in os.listdir("/proc") if name.isdigit() and name != me]:
    try: words = read(f"/proc/{pid}/cmdline")
    except OSError: continue
    if b"escape" in words or pid == str(C["victim"]["pid"]) and words: won(pid, words[:80])
"#,
        ),
        inside(
            "PS-host-environment",
            "read variables of the host's processes",
            &[],
            r#"
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    try: words = read(f"/proc/{pid}/environ", 1 << 20)
    except OSError: continue
    if b"BELLJAR_CANARY" in words: won("found in", pid)
"#,
        )
        .by_root()
        .control(Control::Local),
        inside(
            "PS-host-memory",
            "read the memory of a process of the host",
            &[],
            r#"
maps = open(f"/proc/{C['victim']['pid']}/maps").readlines()
start = int(maps[0].split("-")[0], 16)
with open(f"/proc/{C['victim']['pid']}/mem", "rb") as memory:
    memory.seek(start)
    won(memory.read(16))
"#,
        )
        .by_root()
        .control(Control::Local),
        inside(
            "PS-cgroup-path",
            "learn its place among the host's cgroups",
            &[CgroupNamespace],
            r#"
if b"belljar" in read("/proc/self/cgroup"): won(read("/proc/self/cgroup")[:200])
"#,
        ),
        inside(
            "PS-host-name",
            "learn the name of the host",
            &[UtsNamespace],
            r#"
if C["hostname"] and os.uname().nodename == C["hostname"]: won(os.uname().nodename)
"#,
        ),
        inside(
            "PS-host-mounts",
            "see the host's mounts",
            &[HostTreeDetached],
            r#"
lines = open("/proc/self/mountinfo").readlines()
roots = [line for line in lines if line.split()[4] == "/"]
if len(roots) > 1: won(roots)
"#,
        ),
        inside(
            "PS-nested-setting",
            "allow itself user namespaces again",
            &[ProcReadOnly, LandlockExecution],
            r#"
with open("/proc/sys/user/max_user_namespaces", "w") as file: file.write("100")
won(read("/proc/sys/user/max_user_namespaces"))
"#,
        )
        .by_root()
        .also(&[BoundingSet, Capabilities]),
        inside(
            "PS-oom-score",
            "be the last to be killed when memory runs out",
            &[LandlockExecution],
            r#"
with open("/proc/self/oom_score_adj", "w") as file: file.write("0")
won(read("/proc/self/oom_score_adj"))
"#,
        ),
    ]
}
