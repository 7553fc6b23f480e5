//! FS: out of the sandbox's own file system, or into files that it must not have.

use belljar_core::Wall::{
    BoundingSet, Capabilities, DescriptorsClosed, GuestFilter, HostTreeDetached, LandlockExecution,
    LandlockSandbox, NoDev, NoNewPrivileges, NoSuid, NoSys, OwnDev, OwnDevices, OwnLayer, OwnTerminals,
    ReadOnlyLayers, Seccomp,
};

use crate::attack::{Attack, Control, Outcome, Ring, inside, outside};
use crate::hostile;

const MOUNTING: &[belljar_core::Wall] =
    &[Seccomp, BoundingSet, Capabilities, LandlockSandbox, LandlockExecution];
const HOST_TREE: &[belljar_core::Wall] = &[HostTreeDetached, LandlockSandbox, LandlockExecution];

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        inside("FS-chroot", "change the root and climb out of it", &[Seccomp, BoundingSet, Capabilities], r#"
os.makedirs("/tmp/deep", exist_ok=True)
os.chroot("/tmp/deep")
won("the root is", os.listdir("/"))
"#).by_root(),
        inside("FS-above-the-root", "find the host's tree under the root's own parent", HOST_TREE, r#"
won(read("/.." + C["open_flag"]))
"#),
        inside("FS-many-parents", "climb from a deep directory until something else is there", HOST_TREE, r#"
os.makedirs("/tmp/" + "d/" * 20)
os.chdir("/tmp/" + "d/" * 20)
for _ in range(60): os.chdir("..")
os.chdir("/..")
won(read(C["open_flag"].lstrip("/")))
"#),
        inside("FS-workspace-link", "read the host's file through a link", HOST_TREE, r#"
os.symlink("/.." + C["open_flag"], "link")
won(read("link"))
"#),
        inside("FS-plain-path", "read the host's file by its path, and through each process's root", &[], r#"
paths = [C["open_flag"], C["flag"]]
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    paths += [f"/proc/{pid}/root{C['open_flag']}", f"/proc/{pid}/cwd/../../../../../..{C['open_flag']}"]
for path in paths:
    try: won(path, read(path))
    except OSError: pass
"#).control(Control::Local),
        inside("FS-open-descriptor", "read from descriptors that somebody left open", &[DescriptorsClosed], r#"
for number in range(3, 1024):
    try: won("descriptor", number, os.pread(number, 64, 0))
    except OSError: pass
"#),
        inside("FS-descriptor-links", "open what the descriptors of others lead to", &[DescriptorsClosed], r#"
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    try: links = os.listdir(f"/proc/{pid}/fd")
    except OSError: continue
    for link in links:
        try: target = os.readlink(f"/proc/{pid}/fd/{link}")
        except OSError: continue
        if target.endswith("/flag"): won(link, "leads to", target)
"#),
        inside("FS-host-sys", "look at the host's devices in /sys", &[NoSys], r#"
won(os.listdir("/sys/class/net"), os.listdir("/sys/kernel"))
"#),
        inside("FS-host-shared-memory", "read shared memory of the host in /dev/shm", &[OwnDev], r#"
won(read(C["victim"]["memory"]))
"#),
        inside("FS-host-devices", "find devices of the host", &[OwnDev], r#"
known = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
strange = [name for name in os.listdir("/dev") if name not in known]
if strange: won(strange)
"#),
        inside("FS-host-terminal", "type on a terminal of the host", &[OwnTerminals], r#"
with open(C["victim"]["terminal"], "wb", buffering=0) as terminal: terminal.write(b"rm -rf\n")
won("typed")
"#),
        outside("FS-device-lock", "hold a lock on a device that the host uses", &[OwnDevices], device_lock),
        outside("FS-device-node-of-host", "have the host's own device nodes, and their times", &[OwnDevices], device_node),
        outside("FS-layer-write", "change a file of the host that a layer shows", &[OwnLayer, ReadOnlyLayers], layer_write),
        outside("FS-layer-append", "append to a file of the host through a hard link", &[OwnLayer, ReadOnlyLayers], layer_link),
        outside("FS-layer-mode", "change the mode of a file of the host that a layer shows", &[OwnLayer, ReadOnlyLayers], layer_mode),
        outside("FS-layer-device", "use a device node that a layer holds", &[NoDev], layer_device),
        outside("FS-layer-setuid", "become root by a set-user-id program that a layer holds", &[NoSuid, NoNewPrivileges], layer_setuid)
            .also(&[GuestFilter, LandlockExecution]),
        outside("FS-layer-capabilities", "gain a capability by a program that a layer holds", &[NoSuid, NoNewPrivileges, BoundingSet], layer_capabilities)
            .also(&[GuestFilter, LandlockExecution]),
        inside("FS-own-setuid", "become root again by a set-user-id program of its own", &[NoSuid, NoNewPrivileges], r#"
os.system("cp $(command -v id) /tmp/id && chmod 4755 /tmp/id")
child = subprocess.run(["/tmp/id", "-u"], preexec_fn=lambda: (os.setgid(1000), os.setuid(1000)), capture_output=True)
if child.stdout.strip() == b"0": won("user 1000 became", child.stdout)
"#).by_root().also(&[GuestFilter, LandlockExecution]),
        inside("FS-root-directory", "put a directory beside those that the sandbox was given", &[LandlockSandbox, LandlockExecution], r#"
os.mkdir("/belljar-was-here")
won(os.listdir("/"))
"#).by_root(),
        inside("FS-device-node", "make a device node of the host's memory", &[], r#"
os.mknod("node", stat.S_IFCHR | 0o600, os.makedev(1, 5))
won(os.stat("node"))
os.unlink("node")
"#).by_root().control(Control::Local),
        inside("FS-overlay-attribute", "forge the attributes by which an overlay finds its files", &[], r#"
open("file", "w").close()
os.setxattr("file", "trusted.overlay.redirect", b"/etc")
won(os.getxattr("file", "trusted.overlay.redirect"))
os.unlink("file")
"#).by_root().control(Control::Local),
        inside("FS-mount", "mount a file system", MOUNTING, r#"
os.makedirs("/tmp/here", exist_ok=True)
call(165, b"none", b"/tmp/here", b"tmpfs", 0, None)
won([line for line in open("/proc/self/mountinfo") if "/tmp/here" in line])
"#).by_root(),
        inside("FS-mount-cgroups", "mount the cgroups, to steer the host from there", MOUNTING, r#"
os.makedirs("/tmp/here", exist_ok=True)
call(165, b"none", b"/tmp/here", b"cgroup2", 0, None)
won(os.listdir("/tmp/here"))
"#).by_root(),
        inside("FS-mount-bind", "put one file over another", MOUNTING, r#"
call(165, b"/etc/hostname", b"/etc/hosts", None, 4096, None)
won(read("/etc/hosts"))
"#).by_root(),
        inside("FS-mount-new", "mount by the newer calls", &[Seccomp, BoundingSet, Capabilities], r#"
won("descriptor", call(430, b"tmpfs", 0))
"#).by_root(),
        inside("FS-mount-tree", "take a copy of the tree of mounts", &[Seccomp, BoundingSet, Capabilities], r#"
won("descriptor", call(428, -100, b"/", 0x8001))
"#).by_root(),
        inside("FS-unmask", "uncover what a mask hides", MOUNTING, r#"
call(166, b"/proc/kallsyms", 2)
won(read("/proc/kallsyms")[:80])
"#).by_root(),
        inside("FS-remount", "make the read-only parts of /proc writable", MOUNTING, r#"
call(165, None, b"/proc/sys", None, 32 | 4096, None)
won([line for line in open("/proc/self/mountinfo") if " /proc/sys " in line])
"#).by_root(),
        inside("FS-pivot", "change the root as the launcher did", MOUNTING, r#"
os.chdir("/")
call(155, b"/tmp", b"/tmp")
won(os.listdir("/"))
"#).by_root().control(Control::Moot("the root of a sandbox is locked by the kernel in any case: /tmp is no root of a mount of its own")),
        inside("FS-handle", "name a file by its handle, past all directories", &[Seccomp], r#"
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
call(303, -100, b"/tmp", handle, ctypes.byref(mount), 0)
won(handle.raw[:16])
"#),
        inside("FS-lease", "make whoever opens a shared file wait", &[Seccomp], r#"
fcntl.fcntl(open("/usr/bin/env"), fcntl.F_SETLEASE, fcntl.F_RDLCK)
won("leased")
"#).by_root(),
        inside("FS-notify", "be told of what others do in a directory, the old way", &[Seccomp], r#"
fcntl.fcntl(os.open("/usr", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
won("told")
"#),
        inside("FS-fanotify", "be told of what others do with files", &[Seccomp], r#"
won("descriptor", call(300, 0x200, 0))
"#),
        inside("FS-proc-write", "write to files of its own in /proc", &[LandlockExecution], r#"
with open("/proc/self/comm", "w") as file: file.write("kworker")
won(read("/proc/self/comm"))
"#),
        inside("FS-swap", "swap to a file", &[], r#"
call(167, b"/tmp/none", 0)
won("swapped")
"#).by_root().control(Control::Moot("swapping needs a prepared file; the call is refused by the filter and by the kernel")),
    ]
}

/// Runs a shell script as root inside, with a directory of the host as the layer `/srv`.
fn with_layer(
    ring: &Ring<'_>,
    user: &str,
    prepare: &str,
    script: &str,
) -> Result<(std::path::PathBuf, String), Outcome> {
    let layer = ring.scratch.join("layer");
    std::fs::create_dir(&layer).map_err(|error| Outcome::Broken(error.to_string()))?;
    let prepared =
        crate::attack::finish(std::process::Command::new("sh").args(["-ec", prepare]).current_dir(&layer));
    if prepared.code != Some(0) {
        return Err(Outcome::Broken(format!("the layer could not be made: {prepared:?}")));
    }
    let patch = serde_json::json!({"layers": [{"source": layer, "target": "/srv", "copy_on_write": true}]});
    let ran = hostile::run_patched(ring, &patch, &["--user", user, "--", "sh", "-c", script])?;
    Ok((layer, ran))
}

fn layer_write(ring: &Ring<'_>) -> Outcome {
    let made = with_layer(ring, "root", "echo before > file", "echo after > /srv/file; cat /srv/file");
    judge_layer(made, |layer| std::fs::read_to_string(layer.join("file")).is_ok_and(|now| now != "before\n"))
}

fn layer_link(ring: &Ring<'_>) -> Outcome {
    let script = "ln /srv/file /srv/other; echo more >> /srv/other; cat /srv/other";
    let made = with_layer(ring, "root", "echo before > file", script);
    judge_layer(made, |layer| std::fs::read_to_string(layer.join("file")).is_ok_and(|now| now != "before\n"))
}

fn layer_mode(ring: &Ring<'_>) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    let made =
        with_layer(ring, "root", "echo before > file; chmod 600 file", "chmod 666 /srv/file; ls -l /srv");
    judge_layer(made, |layer| {
        std::fs::metadata(layer.join("file")).is_ok_and(|found| found.permissions().mode() & 0o777 != 0o600)
    })
}

fn judge_layer(
    made: Result<(std::path::PathBuf, String), Outcome>,
    changed: fn(&std::path::Path) -> bool,
) -> Outcome {
    match made {
        Err(outcome) => outcome,
        Ok((layer, said)) if changed(&layer) => Outcome::Won(format!("the host's file was changed; {said}")),
        Ok((_, said)) => Outcome::Stopped(said),
    }
}

fn judge_said(made: Result<(std::path::PathBuf, String), Outcome>, won: &str) -> Outcome {
    match made {
        Err(outcome) => outcome,
        Ok((_, said)) if said.contains(won) => Outcome::Won(said),
        Ok((_, said)) => Outcome::Stopped(said),
    }
}

fn layer_device(ring: &Ring<'_>) -> Outcome {
    let script = "head -c 8 /srv/zero | od -An -tx1";
    judge_said(with_layer(ring, "user", "mknod -m 666 zero c 1 5", script), "00 00 00 00 00 00 00 00")
}

fn layer_setuid(ring: &Ring<'_>) -> Outcome {
    let prepare = "cp \"$(command -v id)\" become; chmod 4755 become";
    judge_said(with_layer(ring, "user", prepare, "echo I am $(/srv/become -u)"), "I am 0")
}

fn layer_capabilities(ring: &Ring<'_>) -> Outcome {
    // The attribute says: version 2, effective, permitted CAP_DAC_OVERRIDE.
    let prepare = "cp \"$(command -v cat)\" reader; chmod 755 reader; echo secret-of-root > secret; chmod 600 secret; \
        python3 -c \"import os; os.setxattr('reader', 'security.capability', bytes([1, 0, 0, 2, 2] + [0] * 15))\"";
    judge_said(with_layer(ring, "user", prepare, "/srv/reader /srv/secret"), "secret-of-root")
}

/// A lock that is held inside must not be seen outside.
fn device_lock(ring: &Ring<'_>) -> Outcome {
    use rustix::fs::{FlockOperation, flock};
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let hold = "import fcntl, time\nfile = open('/dev/full')\nfcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\n\
        time.sleep(60)";
    let exec = ring.json(&["exec", "-d", &id, "--", "python3", "-c", hold]);
    let number = exec["exec"].to_string();
    let held = crate::attack::within(std::time::Duration::from_secs(20), || {
        ring.run(&["logs", &id, &number]).text().contains("held")
    });
    let Ok(device) = std::fs::File::open("/dev/full") else { return Outcome::Broken("no /dev/full".into()) };
    match (held, flock(&device, FlockOperation::NonBlockingLockExclusive)) {
        (false, _) => Outcome::Broken("the lock is not held inside".into()),
        (true, Ok(())) => Outcome::Stopped("the host's device is free".into()),
        (true, Err(error)) => Outcome::Won(format!("the host has to wait: {error}")),
    }
}

/// Whoever has the node itself has its times and its locks.
fn device_node(ring: &Ring<'_>) -> Outcome {
    use std::os::unix::fs::MetadataExt;
    let object = ring.json(&["run", "--", "stat", "-c", "%i %d", "/dev/full"]);
    let said = crate::attack::text(&object["stdout"]);
    let Ok(own) = std::fs::metadata("/dev/full") else { return Outcome::Broken("no /dev/full".into()) };
    if said.trim().is_empty() {
        return Outcome::Broken(object.to_string());
    }
    if said.trim() == format!("{} {}", own.ino(), own.dev()) {
        return Outcome::Won("the sandbox has the host's own node".into());
    }
    Outcome::Stopped(said)
}
