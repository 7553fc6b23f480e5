//! Programs that take all they can get: each is stopped at its sandbox's own limit, and a neighbour notices nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::{
    Bell, cgroups, in_slot, is_rootless, long, not_promised_rootless, patience, second, span, until,
};

/// What any sandbox can do at any time: processes, memory, disk, files, watches, arithmetic.
const WORK: &str = r#"
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
children = []
for _ in range(50):
    child = os.fork()
    if child == 0: os._exit(7)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 7 << 8 for child in children)
assert len(b"x" * (256 << 20)) == 256 << 20
for place in ("/home/user", "/tmp"):
    path = place + "/work"
    with open(path, "wb") as file: file.write(b"y" * (64 << 20)); file.flush(); os.fsync(file.fileno())
    assert os.path.getsize(path) == 64 << 20
    os.remove(path)
os.makedirs("many", exist_ok=True)
for number in range(1000): open(f"many/{number}", "w").close()
subprocess.run(["rm", "-r", "many"], check=True)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(2000)]
for file in files: os.close(file)
watchers = [libc.inotify_init1(0) for _ in range(64)]
assert min(watchers) >= 0, ctypes.get_errno()
for number in range(500):
    os.makedirs(f"/tmp/watched/{number}", exist_ok=True)
    assert libc.inotify_add_watch(watchers[0], f"/tmp/watched/{number}".encode(), 0xfff) >= 0, ctypes.get_errno()
subprocess.run(["rm", "-r", "/tmp/watched"], check=True)
print(sum(range(1000001)))
"#;

/// How long a turn at the processor is, in nanoseconds: an execution's and that of the process that started it. Kernels
/// without turns of one's own say 0.
const TURNS: &str = r#"
import ctypes, json, struct
def turn(process):
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(315, process, attributes, 48, 0) == 0
    return struct.unpack("IIQiIQQQ", attributes.raw)[5]
print(json.dumps([turn(0), turn(1)]))
"#;

/// A sandbox with a bomb in it, and another that was there before and must not notice.
struct Field {
    bell: Bell,
    id: String,
    slot: u32,
    neighbour: String,
}

impl Field {
    fn new(options: &[&str]) -> Self {
        let bell = Bell::new();
        let neighbour = bell.create(&[]);
        let id = bell.create(options);
        let slot = bell.keepers(&id).slot;
        assert!(
            (is_rootless() || !cgroups(slot).is_empty()) && !in_slot(slot).is_empty(),
            "the control: there is something to be gone"
        );
        let field = Self { bell, id, slot, neighbour };
        field.neighbour_works();
        field
    }

    fn neighbour_works(&self) {
        let object =
            self.bell.json(&["exec", "--timeout", &span(120), &self.neighbour, "--", "python3", "-c", WORK]);
        assert_eq!(object["stdout"], "500000500000\n", "{object}");
        assert_eq!((&object["termination"], &object["oom_kills"]), (&Value::from("exited"), &no_kill()));
    }

    /// Starts a bomb that says `held` when it has all it can get and then keeps it; answers what it said.
    fn hold(&self, script: &str) -> String {
        let said = self.bell.background(&self.id, script, "held");
        self.neighbour_works();
        assert_eq!(self.bell.state(&self.id).as_deref(), Some("running"));
        said
    }

    /// Kills the sandbox with the bomb in it, and sees that nothing is left and the neighbour works on.
    fn clear(self) {
        let Self { bell, id, slot, neighbour } = &self;
        let removed = bell.run(&["rm", "-f", id]);
        assert!(removed.status.success(), "{removed:?}");
        assert_eq!(
            cgroups(*slot),
            Vec::<std::path::PathBuf>::new(),
            "its cgroups are gone when `rm` returns"
        );
        assert!(!bell.directory(id).exists(), "its directory is gone");
        bell.assert_gone(*slot);
        assert_eq!(bell.state(id), None);
        assert_eq!(bell.state(neighbour).as_deref(), Some("running"));
        self.neighbour_works();
    }
}

/// What is said of kills for want of memory where there was none: without cgroups nobody counts them.
fn no_kill() -> Value {
    if is_rootless() { Value::Null } else { 0.into() }
}

/// The number after `held`.
fn held(said: &str) -> u64 {
    let line = said.lines().find(|line| line.starts_with("held")).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_fork_bomb_gets_no_more_than_its_processes() {
    let field = Field::new(&["--pids", "100"]);
    let said = field.hold(
        r#"
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        count += 1
except BlockingIOError:
    print("held", count, flush=True)
time.sleep(1000)
"#,
    );
    assert!((50..=100).contains(&held(&said)), "{said}");
    assert!(in_slot(field.slot).len() <= 100 + 2, "guest and monitor besides");
    assert!(field.bell.run(&["kill", "--exec", "1", &field.id]).status.success());
    until("there is room again", long(), || field.bell.shell(&field.id, "true")["exit_code"] == 0);
    field.clear();
}

#[test]
fn the_classic_fork_bomb_is_contained_and_cleared_away() {
    let field = Field::new(&["--pids", "200", "--cpus", "1"]);
    let words = [
        "exec",
        "--json",
        "--timeout",
        &span(3),
        &field.id,
        "--",
        "bash",
        "-c",
        ":(){ :|:& };:; while :; do :; done",
    ];
    let child = field.bell.command(&words).spawn().unwrap();
    until("the bomb is at its limit", long(), || in_slot(field.slot).len() > 100);
    field.neighbour_works();
    let output = child.wait_with_output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["termination"], "timed_out", "{object}");
    until("its processes are gone", second(), || in_slot(field.slot).len() <= 2);
    assert_eq!(field.bell.shell(&field.id, "echo $((6*7)) | cat")["stdout"], "42\n");
    field.clear();
}

#[test]
fn a_memory_bomb_is_killed_alone() {
    if not_promised_rootless("memory is bounded per process, not for the sandbox") {
        return;
    }
    let field = Field::new(&["--memory", "256m"]);
    for script in [
        "x = []\nwhile True: x.append(b'x' * (8 << 20))",
        // Many small processes, none of which is large.
        "import os, time\nfor n in range(200):\n  if os.fork() == 0:\n    x = b'x' * (16 << 20); time.sleep(1000)\ntime.sleep(1000)",
        // Memory that is no process's: files without names.
        "import os\nwhile True: os.write(os.memfd_create('x'), b'x' * (8 << 20))",
    ] {
        let object =
            field.bell.json(&["exec", "--timeout", &span(5), &field.id, "--", "python3", "-c", script]);
        let ended = object["termination"].as_str().unwrap_or_else(|| panic!("{object}"));
        assert!(["out_of_memory", "timed_out"].contains(&ended), "{object}");
        assert!(object["oom_kills"].as_u64().unwrap() >= 1, "{object}");
        field.neighbour_works();
        assert_eq!(field.bell.shell(&field.id, "echo well")["stdout"], "well\n");
    }
    field.clear();
}

#[test]
fn a_disk_filler_gets_no_space_and_is_not_killed() {
    let sizes: [(&[&str], u64); 7] = [
        (&["--memory", "256m"], 128 << 20),
        (&["--memory", "256m", "--disk", "32m"], 32 << 20),
        (&["--memory", "256m", "--disk", "192m"], 192 << 20),
        (&["--memory", "256m", "--disk", "256m"], 256 << 20),
        (&["--memory", "256m", "--disk", "1g"], 1 << 30),
        (&["--memory", "1g"], 512 << 20),
        (&["--memory", "128m"], 64 << 20),
    ];
    let on_image = |disk: u64, options: &[&str]| options.contains(&"256m") && disk > 192 << 20;
    for (options, disk) in sizes {
        if on_image(disk, options) && not_promised_rootless("disks larger than three quarters of the memory")
        {
            continue;
        }
        let field = Field::new(options);
        let script = r"
import errno, json, os
told = {}
for place in ('/home/user', '/tmp', '/var/tmp', '/dev/shm'):
    written = 0
    number = 0
    while True:
        try:
            fd = os.open(f'{place}/fill{number}', os.O_WRONLY | os.O_CREAT)
            while written < (number + 1) << 24:
                written += os.write(fd, b'z' * (1 << 20))
            number += 1
            os.close(fd)
        except OSError as error:
            told[place] = [written, errno.errorcode[error.errno]]
            break
print(json.dumps(told))
";
        let object =
            field.bell.json(&["exec", "--timeout", &span(60), &field.id, "--", "python3", "-c", script]);
        assert_eq!(
            (&object["termination"], &object["exit_code"]),
            (&Value::from("exited"), &Value::from(0)),
            "{options:?}: {object}"
        );
        assert_eq!(object["oom_kills"], no_kill(), "{options:?}: {object}");
        let told: BTreeMap<String, (u64, String)> =
            serde_json::from_str(object["stdout"].as_str().unwrap()).unwrap();
        assert!(told.values().all(|(_, error)| error == "ENOSPC"), "{options:?}: {told:?}");
        let on_disk: u64 =
            told.iter().filter(|(place, _)| *place != "/dev/shm").map(|(_, (written, _))| written).sum();
        assert!((disk / 4 * 3..=disk).contains(&on_disk), "{options:?}: {told:?}");
        field.neighbour_works();
        // One large file meets the same end.
        let object = field.bell.shell(&field.id, "rm -f /home/user/fill* /tmp/fill* /var/tmp/fill* /dev/shm/fill*; dd if=/dev/zero of=one bs=1M; rm one; echo room > one && cat one");
        assert_eq!(
            (&object["stdout"], &object["oom_kills"]),
            (&Value::from("room\n"), &no_kill()),
            "{options:?}: {object}"
        );
        assert!(
            object["stderr"].as_str().unwrap().contains("No space left on device"),
            "{options:?}: {object}"
        );
        field.clear();
    }
}

#[test]
fn an_inode_filler_gets_no_space_and_is_not_killed() {
    for options in
        [&["--memory", "256m"][..], &["--memory", "128m"], &[], &["--memory", "256m", "--disk", "512m"]]
    {
        if options.contains(&"512m")
            && not_promised_rootless("disks larger than three quarters of the memory")
        {
            continue;
        }
        let field = Field::new(options);
        let limits = field.bell.json(&["inspect", &field.id])["sandbox"]["spec"]["limits"].clone();
        let script = r"
import errno, os, sys
count = 0
try:
    while True:
        if count % 1000 == 0: os.mkdir(f'd{count // 1000}')
        os.close(os.open(f'd{count // 1000}/{count}', os.O_WRONLY | os.O_CREAT))
        count += 1
except OSError as error: print(count, errno.errorcode[error.errno])
";
        let words = ["exec", "--timeout", &span(120), &field.id, "--", "python3", "-c", script];
        let object = field.bell.json(&words);
        assert_eq!(
            (&object["termination"], &object["oom_kills"]),
            (&Value::from("exited"), &no_kill()),
            "{options:?}: {object}"
        );
        let told = object["stdout"].as_str().unwrap();
        let (count, error) = told.trim().split_once(' ').unwrap_or_else(|| panic!("{object}"));
        assert_eq!(error, "ENOSPC", "{options:?}: {object}");
        let most = limits["inodes"].as_u64().unwrap();
        let count: u64 = count.parse().unwrap();
        assert!((100..=most).contains(&count), "{options:?}: {count} of {most}");
        field.neighbour_works();
        assert_eq!(field.bell.shell(&field.id, "echo well")["stdout"], "well\n", "{options:?}");
        field.clear();
    }
}

#[test]
fn a_filler_of_inodes_and_bytes_together_is_not_killed() {
    for options in [&["--memory", "256m"][..], &["--memory", "512m"], &[]] {
        let field = Field::new(options);
        let script = r"
import errno, os
count = 0
ends = []
try:
    while True:
        if count % 1000 == 0: os.mkdir(f'd{count // 1000}')
        os.close(os.open(f'd{count // 1000}/{count}', os.O_WRONLY | os.O_CREAT))
        count += 1
except OSError as error: ends.append(errno.errorcode[error.errno])
number = 0
try:
    while True:
        fd = os.open(f'd0/{number}', os.O_WRONLY)
        for _ in range(16): os.write(fd, b'z' * (1 << 20))
        os.close(fd)
        number += 1
except OSError as error: ends.append(errno.errorcode[error.errno])
print(*ends)
";
        let words = ["exec", "--timeout", &span(120), &field.id, "--", "python3", "-c", script];
        let object = field.bell.json(&words);
        assert_eq!(object["stdout"], "ENOSPC ENOSPC\n", "{options:?}: {object}");
        assert_eq!(object["oom_kills"], no_kill(), "{options:?}: {object}");
        field.neighbour_works();
        assert_eq!(field.bell.shell(&field.id, "echo well")["stdout"], "well\n", "{options:?}");
        field.clear();
    }
}

#[test]
fn a_hoarder_of_open_files_gets_no_more_than_its_own() {
    let field = Field::new(&["--memory", "512m"]);
    let said = field.hold(
        r#"
import errno, os, time
def hoard():
    kept = []
    try:
        while True: kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error: return len(kept), errno.errorcode[error.errno]
ready, done = os.pipe()
for _ in range(40):
    if os.fork() == 0:
        hoard()
        os.write(done, b"x")
        time.sleep(1000)
count = 0
while count < 40: count += len(os.read(ready, 40))
print("held", *hoard(), flush=True)
time.sleep(1000)
"#,
    );
    assert!(said.contains("EMFILE"), "{said}");
    assert!((1000..=4096).contains(&held(&said)), "{said}");
    assert!(std::fs::File::open("/dev/null").is_ok(), "the host can open files");
    field.clear();
}

#[test]
fn a_hoarder_of_watches_takes_none_of_a_neighbours() {
    if not_promised_rootless("the kernel counts watches by user, and all sandboxes of a user share them") {
        return;
    }
    let field = Field::new(&["--memory", "512m"]);
    let said = field.hold(
        r#"
import ctypes, errno, os, time
libc = ctypes.CDLL(None, use_errno=True)
count = 0
first = None
while True:
    made = libc.inotify_init1(0)
    if made < 0: break
    first = made if first is None else first
    count += 1
told = errno.errorcode[ctypes.get_errno()]
watches = 0
while watches < 20000:
    os.makedirs(f"/tmp/w/{watches}")
    if libc.inotify_add_watch(first, f"/tmp/w/{watches}".encode(), 0xfff) < 0: break
    watches += 1
print("held", count, told, watches, flush=True)
time.sleep(1000)
"#,
    );
    assert!(said.contains("EMFILE") && held(&said) >= 64, "{said}");
    let flags = rustix::fs::inotify::CreateFlags::CLOEXEC;
    let made: Vec<_> = (0..32).map(|_| rustix::fs::inotify::init(flags)).collect();
    assert!(made.iter().all(Result::is_ok), "the host can watch");
    field.clear();
}

const FLOOD: u64 = 200_000_000;

/// The bytes that were kept, without the line that marks the gap, and how many that line says are missing.
fn kept_and_marked(stdout: &str) -> (u64, u64) {
    let strange: Vec<&str> = stdout.split('\n').filter(|line| !["y", ""].contains(line)).collect();
    let told = strange.iter().map(|line| {
        let number =
            line.strip_prefix("[belljar: ").and_then(|rest| rest.strip_suffix(" bytes dropped here]"));
        number.unwrap_or_else(|| panic!("a strange line: {line}")).parse::<u64>().unwrap()
    });
    let marks: usize = strange.iter().map(|line| line.len() + 2).sum();
    ((stdout.len() - marks) as u64, told.sum())
}

#[test]
fn a_flood_of_output_is_bounded_and_its_gap_exact() {
    let field = Field::new(&[]);
    let script = format!("yes | head -c {FLOOD}");
    for words in [&["run", "--", "sh", "-c", &script][..], &["exec", &field.id, "--", "sh", "-c", &script]] {
        let object = field.bell.json(words);
        assert_eq!((&object["termination"], &object["exit_code"]), (&Value::from("exited"), &Value::from(0)));
        let (kept, marked) = kept_and_marked(object["stdout"].as_str().unwrap());
        let gap = object["stdout_gap"].as_u64().unwrap();
        assert_eq!(kept + gap, FLOOD, "{words:?}: exact");
        assert_eq!(marked, gap, "{words:?}: the mark says the same");
        assert_eq!(object["truncated"], gap > 0, "{words:?}");
        assert!(kept <= 64 << 20, "{words:?}: bounded, but {kept} bytes were kept");
    }
    field.neighbour_works();
    field.clear();
}

#[test]
fn a_flood_that_nobody_reads_is_bounded_on_the_hosts_disk() {
    let field = Field::new(&[]);
    let script = format!("yes | head -c {FLOOD}; touch /tmp/finished; while :; do sleep 1; done");
    field.bell.json(&["exec", "-d", "--timeout", &span(300), &field.id, "--", "sh", "-c", &script]);
    let spooled = || -> u64 {
        let spool = std::fs::read_dir(field.bell.directory(&field.id).join("spool")).unwrap();
        spool.flatten().map(|entry| size(&entry.path())).sum()
    };
    let mut most = 0;
    until("the flood is over", patience(Duration::from_secs(60)), || {
        most = most.max(spooled());
        field.bell.run(&["exec", &field.id, "--", "test", "-e", "/tmp/finished"]).status.success()
    });
    let (mut kept, mut marked, mut gap) = (0, 0, 0);
    until("its last bytes are there", patience(Duration::from_secs(60)), || {
        let object = &field.bell.json(&["logs", &field.id, "1"])["executions"][0];
        (kept, marked) = kept_and_marked(object["stdout"].as_str().unwrap());
        gap = object["stdout_gap"].as_u64().unwrap();
        kept + gap == FLOOD
    });
    assert_eq!(marked, gap);
    assert!(most <= 66 << 20, "{most} bytes on the host's disk");
    assert!(kept >= 32 << 20, "head and tail are kept: {kept}");
    assert!(kept <= 64 << 20, "bounded, but {kept} bytes were kept");
    field.neighbour_works();
    field.clear();
}

/// The bytes of a file, or of all below a directory.
fn size(path: &std::path::Path) -> u64 {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| size(&entry.path())).sum(),
        Err(_) => std::fs::metadata(path).map_or(0, |data| data.len()),
    }
}

#[test]
fn a_full_disk_without_files_left_is_its_own_while_it_lasts() {
    let field = Field::new(&["--memory", "512m"]);
    let said = field.hold(
        r#"
import errno, os, time
told = []
try:
    with open("/home/user/fill", "wb", buffering=0) as fill:
        while True: fill.write(bytes(1 << 20))
except OSError as error: told.append(errno.errorcode[error.errno])
os.truncate("/home/user/fill", os.path.getsize("/home/user/fill") // 2)
count = 0
try:
    while True:
        open(f"/tmp/{count}", "w").close()
        count += 1
except OSError as error: told.append(errno.errorcode[error.errno])
print("held", count, *told, flush=True)
time.sleep(1000)
"#,
    );
    assert!(said.contains("ENOSPC ENOSPC"), "{said}");
    field.clear();
}

#[test]
fn memory_held_to_the_limit_is_its_own_while_it_lasts() {
    let field = Field::new(&["--memory", "256m"]);
    // What is beyond the limit is killed again and again, while the first process keeps the rest.
    let said = field.hold(
        r#"
import os, time
kept = bytearray(os.urandom(1 << 20)) * 200
for _ in range(3):
    if os.fork() == 0: bytearray(os.urandom(1 << 20)) * 400
    os.wait()
print("held", len(kept) >> 20, flush=True)
while True:
    if os.fork() == 0: bytearray(os.urandom(1 << 20)) * 400
    os.wait()
"#,
    );
    assert_eq!(held(&said), 200, "{said}");
    field.clear();
}

#[test]
fn a_flood_of_output_harms_no_neighbour_while_it_lasts() {
    let field = Field::new(&[]);
    field.hold("import os\nos.write(1, b'held\\n')\nwhile True: os.write(1, b'x' * 65536)");
    field.clear();
}

#[test]
fn those_who_serve_are_let_in_before_those_who_compute() {
    let bell = Bell::new();
    let id = bell.create(&[]);
    let turns = |of: &Value| -> Vec<u64> { serde_json::from_str(of["stdout"].as_str().unwrap()).unwrap() };
    let [execution, guest] = turns(&bell.python(&id, TURNS))[..] else { panic!("two processes") };
    if execution == 0 {
        return eprintln!("skipped: this kernel gives turns of the same length to all");
    }
    assert!(guest * 5 <= execution, "{guest} against {execution}");
    let quiet = bell.python(&id, "import os; os.nice(5); print(os.nice(0))");
    assert_eq!(quiet["stdout"], "5\n", "what else the scheduler knows of a process is its own");
}
