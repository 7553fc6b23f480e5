//! MO: the monitor and the launcher, attacked by the guest, by other users, and by whoever took the monitor over.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar_core::Wall::{
    FrameBounds, MonitorFilter, MonitorLandlock, MonitorPeers, MonitorUser, WaitingBound,
};
use serde_json::{Value, json};

use crate::attack::{Attack, Control, Outcome, Ring, finish, outside, within};
use crate::hostile::{Hostile, Nursery};
use crate::possess::{Argument, Possessed};

pub(crate) fn attacks() -> Vec<Attack> {
    let liar =
        |id, tries, mood: &'static str| outside(id, tries, &[FrameBounds], move |ring| believed(ring, mood));
    let odd = |id, tries, mood: &'static str| {
        let attempt = move |ring: &Ring<'_>| believed(ring, if ring.sabotage { "plain" } else { mood });
        outside(id, tries, &[], attempt).control(Control::Sabotage)
    };
    let plan = |id, tries, change: fn(&mut Value)| {
        let attempt = move |ring: &Ring<'_>| launched(ring, if ring.sabotage { |_| {} } else { change });
        outside(id, tries, &[], attempt).control(Control::Sabotage)
    };
    vec![
        liar("MO-large-message", "send the monitor a message larger than any should be", "large-control"),
        liar("MO-large-data", "send the monitor a larger piece of data than any should be", "large-data"),
        liar("MO-large-credit", "send the monitor a grant that is none", "large-credit")
            .control(Control::Naive(Box::new(|ring| believed(ring, "plain")))),
        odd("MO-unknown-kind", "send the monitor a frame of no kind", "unknown-kind"),
        odd("MO-unknown-stream", "send the monitor a frame of no stream", "unknown-stream"),
        odd("MO-reserved-bytes", "send the monitor a frame from the future", "reserved-bytes"),
        odd("MO-endless-length", "have the monitor wait for four gigabytes", "endless-length"),
        outside("MO-confusion", "confuse the monitor with frames that make no sense", &[], confused)
            .control(Control::Sabotage),
        outside(
            "MO-flood",
            "fill the monitor's memory past a caller that does not read",
            &[WaitingBound],
            flood,
        ),
        outside(
            "MO-strange-user",
            "ask the monitor as another user of the host",
            &[MonitorPeers],
            strange_user,
        ),
        outside("MO-garbage", "send the monitor garbage as a client", &[], |ring| survives(ring, garbage))
            .control(Control::Sabotage),
        outside("MO-half-frames", "leave the monitor waiting for the rest of a frame", &[], |ring| {
            survives(ring, half_frames)
        })
        .control(Control::Sabotage),
        outside("MO-many-clients", "take all the monitor's places", &[], |ring| survives(ring, many_clients))
            .control(Control::Sabotage),
        outside("MO-hasty-clients", "connect and go away before being heard", &[], |ring| {
            survives(ring, hasty_clients)
        })
        .control(Control::Sabotage),
        outside(
            "MO-own-flag",
            "as a monitor taken over, read root's file",
            &[MonitorUser, MonitorLandlock],
            |ring| possessed(ring, read_flag),
        ),
        outside(
            "MO-open-flag",
            "as a monitor taken over, read a file for everybody",
            &[MonitorLandlock],
            |ring| possessed(ring, read_open_flag),
        ),
        outside(
            "MO-write",
            "as a monitor taken over, leave a file for the host",
            &[MonitorLandlock],
            |ring| possessed(ring, write_file),
        ),
        outside("MO-program", "as a monitor taken over, start a program", &[MonitorLandlock], |ring| {
            possessed(ring, start_program)
        }),
        outside(
            "MO-kill",
            "as a monitor taken over, signal a process of the host",
            &[MonitorUser, MonitorFilter],
            |ring| possessed(ring, signal_victim),
        ),
        outside(
            "MO-root",
            "as a monitor taken over, become root again",
            &[MonitorUser, MonitorFilter],
            |ring| possessed(ring, become_root),
        ),
        outside("MO-socket", "as a monitor taken over, reach the host's network", &[MonitorFilter], |ring| {
            possessed(ring, make_socket)
        }),
        outside("MO-namespace", "as a monitor taken over, make a user namespace", &[MonitorFilter], |ring| {
            possessed(ring, make_namespace)
        }),
        outside("MO-fork", "as a monitor taken over, leave a process behind", &[MonitorFilter], |ring| {
            possessed(ring, fork)
        }),
        outside(
            "MO-unlock",
            "as a monitor taken over, make the sandbox look dead while it lives",
            &[MonitorFilter],
            |ring| possessed(ring, unlock),
        ),
        outside("MO-io-uring", "as a monitor taken over, call past the filter", &[MonitorFilter], |ring| {
            possessed(ring, make_ring)
        }),
        outside("MO-new-code", "as a monitor taken over, run code of its own", &[MonitorFilter], |ring| {
            possessed(ring, map_code)
        }),
        outside(
            "MO-capabilities",
            "as a monitor taken over, use the launcher's capabilities",
            &[MonitorUser, MonitorFilter],
            |ring| possessed(ring, set_host_name),
        ),
        plan("MO-plan-unknown-field", "slip the launcher a field that it does not know", |plan| {
            plan["privileged"] = json!(true)
        }),
        plan("MO-plan-name", "give the launcher a name that is a path", |plan| {
            plan["id"] = json!("../../../../tmp/x")
        }),
        plan("MO-plan-target", "have the launcher mount outside the sandbox's tree", |plan| {
            plan["layers"] =
                json!([{"source": "/etc", "target": "/srv/../../../../mnt", "copy_on_write": false}])
        }),
        plan("MO-plan-relative-target", "have the launcher mount on a relative path", |plan| {
            plan["layers"] = json!([{"source": "/etc", "target": "mnt", "copy_on_write": false}])
        }),
        plan("MO-plan-limits", "have the launcher leave out a limit", |plan| {
            plan["limits"]["memory"] = Value::Null
        }),
        plan("MO-plan-garbage", "give the launcher what is no plan", |plan| *plan = json!("launch")),
        plan("MO-plan-huge", "give the launcher more than it should read", |plan| {
            plan["shell"] = json!("x".repeat(9 << 20))
        }),
        plan("MO-plan-nested", "give the launcher lists without end", |plan| *plan = nested(400)),
    ]
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!([]), |inner, _| json!([inner]))
}

/// Whether a guest in this mood is still listened to.
fn believed(ring: &Ring<'_>, mood: &str) -> Outcome {
    let hostile = match Hostile::create(ring, mood, &[]) {
        Ok(hostile) => hostile,
        Err(outcome) => return outcome,
    };
    match hostile.is_believed(ring) {
        (true, said) => Outcome::Won(format!("the monitor went on: {said}")),
        (false, said) => Outcome::Stopped(said),
    }
}

fn confused(ring: &Ring<'_>) -> Outcome {
    let hostile = match Hostile::create(ring, "confused", &[]) {
        Ok(hostile) => hostile,
        Err(outcome) => return outcome,
    };
    let first = hostile.is_believed(ring);
    if ring.sabotage {
        kill(monitor_of(&hostile.home, &hostile.id));
    }
    match hostile.is_believed(ring) {
        (true, _) => Outcome::Stopped("it serves on".into()),
        (false, said) => Outcome::Won(format!("the monitor did not survive: {first:?} {said}")),
    }
}

fn monitor_of(home: &str, id: &str) -> i32 {
    let path = Path::new(home).join("sandboxes").join(id).join("lock");
    let built: Value = std::fs::read_to_string(path)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    built["monitor"]["pid"].as_i64().unwrap_or(-1) as i32
}

fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid).filter(|pid| pid.as_raw_pid() > 1) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        within(Duration::from_secs(5), || rustix::process::test_kill_process(pid).is_err());
    }
}

/// A caller asks for output and does not take it; the guest sends all the same.
fn flood(ring: &Ring<'_>) -> Outcome {
    let hostile = match Hostile::create(ring, "flood", &[]) {
        Ok(hostile) => hostile,
        Err(outcome) => return outcome,
    };
    let words = ["exec", "--home", &hostile.home, &hostile.id, "--", "x"];
    let mut command = ring.belljar(&words);
    let Ok(mut child) = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else {
        return Outcome::Broken("belljar cannot be started".into());
    };
    let monitor = monitor_of(&hostile.home, &hostile.id);
    let mut peak = 0;
    let full = within(Duration::from_secs(8), || {
        peak = peak.max(memory_peak(monitor));
        // Either it is let go, or it holds what should not be held.
        peak > 30 << 10 || child.try_wait().is_ok_and(|ended| ended.is_some())
    });
    let _ = child.kill();
    let _ = child.wait();
    match (peak, full) {
        (0, _) => Outcome::Broken("the monitor's memory cannot be seen".into()),
        (peak, _) if peak > 30 << 10 => Outcome::Won(format!("the monitor holds {} MiB", peak >> 10)),
        (peak, _) => Outcome::Stopped(format!("the monitor held {} MiB at most", peak >> 10)),
    }
}

/// The most memory, in KiB, that a process ever had.
fn memory_peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

const ASK: &str = r#"
import json, os, socket, struct, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
monitor = socket.socket(socket.AF_UNIX)
monitor.settimeout(5)
monitor.connect(sys.argv[1])
message = json.dumps({"protocol": 2, "request": "status"}).encode()
monitor.sendall(struct.pack("<IIBBBB", len(message), 1, 0, 0, 0, 0) + message)
print(monitor.recv(4096))
"#;

/// Somebody opened the data directory to everybody; the monitor itself still knows its owner.
fn strange_user(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let directory = ring.directory(&id);
    let opened: [PathBuf; 3] = [ring.field.home(), ring.field.home().join("sandboxes"), directory.clone()];
    for path in &opened {
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
    }
    let socket = directory.join("control.sock");
    let _ = std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666));
    let asked = finish(Command::new("python3").args(["-c", ASK]).arg(&socket).current_dir("/"));
    for path in &opened {
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700));
    }
    let said = asked.text();
    if said.contains("remaining") {
        return Outcome::Won(format!("it answered: {said}"));
    }
    let refused =
        said.contains("b''") || asked.stderr.contains("reset") || asked.stderr.contains("Broken pipe");
    if refused { Outcome::Stopped(said) } else { Outcome::Broken(format!("{asked:?}")) }
}

/// Whether a sandbox serves its owner while and after a client behaves so.
fn survives(ring: &Ring<'_>, behave: fn(&Path) -> Vec<UnixStream>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let directory = ring.directory(&id);
    let held = behave(&directory.join("control.sock"));
    if held.is_empty() {
        return Outcome::Broken("no connection could be made".into());
    }
    if ring.sabotage {
        kill(monitor_of(&ring.field.home().to_string_lossy(), &id));
    }
    drop(held);
    let mut said = Value::Null;
    // Those who went away have to be noticed first.
    let serves = within(Duration::from_secs(if ring.sabotage { 1 } else { 10 }), || {
        said = ring.shell(&id, "echo works");
        said["stdout"] == "works\n"
    });
    if serves {
        Outcome::Stopped("it serves on".into())
    } else {
        Outcome::Won(format!("it does not serve any more: {said}"))
    }
}

fn garbage(socket: &Path) -> Vec<UnixStream> {
    let pieces: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0; 64],
        b"{}",
        b"\x02\0\0\0\x01\0\0\0\0\0\0\0{}",
        &[7; 70_000],
    ];
    pieces
        .iter()
        .filter_map(|piece| {
            let mut stream = UnixStream::connect(socket).ok()?;
            let _ = stream.set_write_timeout(Some(Duration::from_secs(2)));
            let _ = stream.write_all(piece);
            Some(stream)
        })
        .collect()
}

fn half_frames(socket: &Path) -> Vec<UnixStream> {
    (1..12)
        .filter_map(|length| {
            let mut stream = UnixStream::connect(socket).ok()?;
            let _ = stream.write_all(&[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..length]);
            Some(stream)
        })
        .collect()
}

fn many_clients(socket: &Path) -> Vec<UnixStream> {
    (0..600)
        .filter_map(|_| {
            let stream = UnixStream::connect(socket).ok()?;
            Some(stream)
        })
        .collect()
}

fn hasty_clients(socket: &Path) -> Vec<UnixStream> {
    for _ in 0..300 {
        let Ok(mut stream) = UnixStream::connect(socket) else { continue };
        let _ = stream.write_all(b"\x40\0\0\0\x01\0\0\0\0\0\0\0{\"protocol\":");
    }
    UnixStream::connect(socket).into_iter().collect()
}

pub(super) type Deed = fn(&Ring<'_>, &Possessed) -> std::io::Result<String>;

/// Takes a monitor over and does something in its name.
fn possessed(ring: &Ring<'_>, deed: Deed) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let monitor = monitor_of(&ring.field.home().to_string_lossy(), &id);
    let held = match Possessed::hold(monitor) {
        Ok(held) => held,
        Err(error) => return Outcome::Broken(format!("the monitor {monitor} cannot be held: {error}")),
    };
    // That it can be made to call at all is part of the control.
    match held.call(libc::SYS_getpid, &[]) {
        Ok(own) if own == i64::from(monitor) => {}
        other => return Outcome::Broken(format!("the monitor does not do what it is told: {other:?}")),
    }
    match deed(ring, &held) {
        Ok(evidence) => Outcome::Won(evidence),
        Err(error) => Outcome::Stopped(error.to_string()),
    }
}

pub(super) fn open(held: &Possessed, path: &Path, flags: i32) -> std::io::Result<i64> {
    let mut text = path.to_string_lossy().into_owned().into_bytes();
    text.push(0);
    held.call(
        libc::SYS_openat,
        &[
            Argument::Number(-100),
            Argument::Bytes(&text),
            Argument::Number(flags.into()),
            Argument::Number(0o644),
        ],
    )
}

pub(super) fn read_flag(ring: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let file = open(held, &ring.field.outside().join("flag"), libc::O_RDONLY)?;
    Ok(String::from_utf8_lossy(&held.read(file, 64)?).into_owned())
}

pub(super) fn read_open_flag(ring: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let file = open(held, &ring.field.outside().join("open-flag"), libc::O_RDONLY)?;
    Ok(String::from_utf8_lossy(&held.read(file, 64)?).into_owned())
}

pub(super) fn write_file(ring: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let place = ring.scratch.join("for-everybody");
    std::fs::create_dir(&place)?;
    std::fs::set_permissions(&ring.scratch, std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777))?;
    let file = open(held, &place.join("planted"), libc::O_WRONLY | libc::O_CREAT)?;
    Ok(format!("descriptor {file}"))
}

fn start_program(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    // Only asked whether it may: opening a program to execute it is what execution begins with.
    let file = open(held, Path::new("/bin/sh"), libc::O_RDONLY)?;
    Ok(format!("descriptor {file}"))
}

pub(super) fn signal_victim(ring: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let pid = i64::from(ring.field.canaries.victim_pid());
    held.call(libc::SYS_kill, &[Argument::Number(pid), Argument::Number(libc::SIGWINCH.into())])?;
    Ok(format!("signalled {pid}"))
}

pub(super) fn become_root(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    held.call(libc::SYS_setresuid, &[Argument::Number(0), Argument::Number(0), Argument::Number(0)])?;
    Ok("it is root".into())
}

fn make_socket(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let numbers = [libc::AF_INET, libc::SOCK_STREAM, 0].map(|number| Argument::Number(number.into()));
    Ok(format!("descriptor {}", held.call(libc::SYS_socket, &numbers)?))
}

pub(super) fn make_namespace(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    held.call(libc::SYS_unshare, &[Argument::Number(libc::CLONE_NEWUSER.into())])?;
    Ok("it has a user namespace".into())
}

pub(super) fn fork(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let flags = Argument::Number(libc::SIGCHLD.into());
    let child = held.call(libc::SYS_clone, &[flags, Argument::Number(0)])?;
    // It goes on as a second monitor otherwise.
    if let Some(pid) = rustix::process::Pid::from_raw(child as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    Ok(format!("process {child}"))
}

fn unlock(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let mut unlocked = 0;
    for descriptor in 3..64 {
        let call = [Argument::Number(descriptor), Argument::Number(libc::LOCK_UN.into())];
        unlocked += i32::from(held.call(libc::SYS_flock, &call).is_ok());
    }
    if unlocked > 0 {
        Ok(format!("{unlocked} locks were let go"))
    } else {
        Err(std::io::Error::other("refused"))
    }
}

pub(super) fn make_ring(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let ring = held.call(libc::SYS_io_uring_setup, &[Argument::Number(1), Argument::Bytes(&[0; 120])])?;
    Ok(format!("descriptor {ring}"))
}

pub(super) fn map_code(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let numbers = [0, 4096, rights, flags, -1, 0].map(|number| Argument::Number(number.into()));
    Ok(format!("at {:#x}", held.call(libc::SYS_mmap, &numbers)?))
}

pub(super) fn set_host_name(_: &Ring<'_>, held: &Possessed) -> std::io::Result<String> {
    // To what it is: what counts is whether it may.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let name = name.trim().as_bytes();
    held.call(libc::SYS_sethostname, &[Argument::Bytes(name), Argument::Number(name.len() as i64)])?;
    Ok("it may name the host".into())
}

/// Gives the launcher a changed plan and sees whether it builds anything.
fn launched(ring: &Ring<'_>, change: fn(&mut Value)) -> Outcome {
    let (mut plan, launcher) = match honest_plan(ring) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    change(&mut plan);
    let said = match launch(&launcher, &format!("{plan}\n")) {
        Ok(said) => said,
        Err(error) => return Outcome::Broken(error.to_string()),
    };
    match (said.contains("\"ready\""), said.contains("\"failed\"")) {
        (true, _) => Outcome::Won(format!("it was built: {said}")),
        (false, true) => Outcome::Stopped(said),
        (false, false) => Outcome::Broken(format!("it said {said:?}")),
    }
}

/// Gives a launcher this text and hears its answer. A sandbox that was made ends with the connection.
fn launch(launcher: &Path, plan: &str) -> std::io::Result<String> {
    let nursery = Nursery::start(launcher)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    nursery.order(&theirs)?;
    drop(theirs);
    ours.set_read_timeout(Some(Duration::from_secs(30)))?;
    ours.set_write_timeout(Some(Duration::from_secs(5)))?;
    // It may not read to the end of what is too long.
    let _ = ours.write_all(plan.as_bytes());
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(b"\n") && said.len() < 4096 && ours.read(&mut byte)? == 1 {
        said.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&said).chars().take(300).collect())
}

/// A plan as Belljar makes it, for a directory of the attempt's own, and the launcher that it is for.
fn honest_plan(ring: &Ring<'_>) -> Result<(Value, PathBuf), Outcome> {
    let broken = |what: String| Outcome::Broken(what);
    let (plan, real) = crate::hostile::captured_plan(ring)?;
    let directory = ring.scratch.join("state");
    std::fs::create_dir(&directory).map_err(|error| broken(error.to_string()))?;
    let mut plan = plan;
    plan["state_dir"] = json!(directory);
    Ok((plan, real))
}
