//! Wrong input and hosts that lack something: the option or file is named, with what to do; the status says that it
//! was Belljar and not the command; nothing is made and nothing is lost.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use super::{Ended, Host, belljar, finish, not_promised_rootless, tool};

/// The error of `--json` is the one that a person is told.
#[track_caller]
fn assert_told_in_json(host: &Host, words: &[&str], code: &str) {
    let object = host.json(words);
    assert_eq!(object["error"]["code"], code, "{words:?}: {object}");
    assert!(object["error"]["hint"].is_string(), "{words:?} has no hint: {object}");
}

#[test]
fn wrong_options_are_named_with_what_to_do_and_nothing_is_made() {
    let host = Host::new();
    host.ok(&["ls"]);
    symlink("loop", host.path("loop")).unwrap();
    let deep = format!("/dev/null:{}x", "a/".repeat(2100));
    let wide = format!("/dev/null:{}", "a".repeat(5000));
    let out = format!("{}x:here", "a/".repeat(2100));
    let cases: &[(&[&str], &[&str], &str)] = &[
        (&["--template", "nope"], &["nope", "host"], "not_found"),
        (&["--file", "missing:x"], &["--file", "missing", "no such file"], "not_found"),
        (&["--file", "loop:x"], &["--file", "loop"], "invalid_argument"),
        (&["--file", "/dev/null:a\nb"], &["--file", "newline"], "invalid_argument"),
        (&["--file", &deep], &["--file", "4095"], "invalid_argument"),
        (&["--file", &wide], &["--file"], "invalid_argument"),
        (&["--out", "a\nb"], &["--out", "newline"], "invalid_argument"),
        (&["--out", &out], &["--out", "4095"], "invalid_argument"),
        (&["--out", "x:missing/x"], &["--out", "missing"], "not_found"),
        (&["--workdir", "a\nb"], &["--workdir", "newline"], "invalid_argument"),
        (&["--memory", "-1"], &["--memory", "-1", "512m"], "invalid_argument"),
        (&["--memory", "1e30"], &["--memory", "1e30", "512m"], "invalid_argument"),
        (&["--memory", "lots"], &["--memory", "lots", "512m"], "invalid_argument"),
        (&["--memory", ""], &["--memory"], "invalid_argument"),
        (&["--memory", "99999999t"], &["--memory", "16 TiB"], "invalid_argument"),
        (&["--memory", "1k"], &["memory", "16 MiB"], "invalid_argument"),
        (&["--disk", "-1"], &["--disk"], "invalid_argument"),
        (&["--pids", "-1"], &["--pids"], "invalid_argument"),
        (&["--cpus", "0"], &["--cpus"], "invalid_argument"),
        (&["--timeout", "soon"], &["--timeout", "soon", "30s"], "invalid_argument"),
        (&["--ttl", "-5s"], &["--ttl"], "invalid_argument"),
        (&["--user", "admin"], &["--user", "admin", "root"], "invalid_argument"),
        (&["--env", "=x"], &["--env"], "invalid_argument"),
    ];
    for (options, named, code) in cases {
        for verb in ["run", "create"] {
            if verb == "create" && ["--out", "--workdir", "--timeout", "--user"].contains(&options[0]) {
                continue;
            }
            let command: &[&str] = if verb == "run" { &["--", "true"] } else { &[] };
            let words = [&[verb], *options, command].concat();
            let ended = host.belljar(&words);
            ended.refused(125, named);
            assert!(ended.stdout.is_empty(), "{words:?}: {ended}");
            assert!(ended.stderr.len() < 1000, "a message that nobody reads: {ended}");
            let object = host.json(&words);
            assert_eq!(object["error"]["code"], *code, "{words:?}: {object}");
        }
    }
    host.assert_nothing_made("wrong options");
}

#[test]
fn sizes_as_people_type_them_are_the_same() {
    let host = Host::new();
    for size in ["2g", "2gb", "2GiB", "2048m"] {
        let id = host.create(&["--memory", size]);
        assert_eq!(
            host.json(&["inspect", &id])["sandbox"]["spec"]["limits"]["memory"],
            2_u64 << 30,
            "{size}"
        );
        host.ok(&["rm", "-f", &id]);
    }
    host.assert_nothing_made("after rm");
}

#[test]
fn a_failed_copy_in_leaves_no_sandbox() {
    let host = Host::new();
    let file = format!("{}:/usr/nowhere/x", host.file("file", "x"));
    for words in [&["run", "--file", &file, "--", "true"][..], &["create", "--file", &file]] {
        host.belljar(words).refused(125, &["/usr/nowhere"]);
        host.assert_nothing_made("a failed copy");
    }
}

#[test]
fn a_command_that_cannot_be_started_has_a_status_of_its_own() {
    let host = Host::new();
    let plain = format!("{}:plain", host.file("plain", "echo never"));
    let broken = host.file("broken", "#!/no/such/interpreter\n");
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let broken = format!("{broken}:broken");
    let cases: [(&[&str], i32, &str, &str); 7] = [
        (&["--", "no-such-command"], 127, "no-such-command", "command_not_found"),
        (&["--", "/no/such/command"], 127, "/no/such/command", "command_not_found"),
        (&["--", "./missing"], 127, "./missing", "command_not_found"),
        (&["--file", &broken, "--", "./broken"], 127, "/no/such/interpreter", "command_not_found"),
        (&["--file", &plain, "--", "./plain"], 126, "./plain", "command_not_executable"),
        (&["--", "/etc/passwd"], 126, "/etc/passwd", "command_not_executable"),
        (&["--", "/home/user"], 126, "/home/user", "command_not_executable"),
    ];
    for (words, status, named, code) in cases {
        let words = [&["run"], words].concat();
        host.belljar(&words).refused(status, &[named, "hint: "]);
        assert_told_in_json(&host, &words, code);
    }
    host.belljar(&["run", "--workdir", "/no/such", "--", "true"]).refused(125, &["/no/such"]);
    host.assert_nothing_made("commands that did not start");

    let id = host.create(&[]);
    host.belljar(&["exec", &id, "--", "no-such-command"]).refused(127, &["no-such-command"]);
    assert_eq!(host.ok(&["exec", &id, "--", "echo", "well"]), "well\n", "the sandbox is unharmed");
}

#[test]
fn bytes_that_are_not_text_pass_unchanged_and_json_has_them_exactly() {
    let host = Host::new();
    let print = ["--", "printf", r"\377\376\033[2Jx\000y"];
    let ended = host.belljar(&[&["run"], &print[..]].concat());
    assert_eq!(ended.stdout, b"\xff\xfe\x1b[2Jx\0y");
    let object = host.json(&[&["run"], &print[..]].concat());
    assert_eq!(object["stdout_base64"], "//4bWzJKeAB5");
    assert_eq!(object["stdout"], "\u{fffd}\u{fffd}\u{1b}[2Jx\0y");
    assert!(object.get("stderr_base64").is_none(), "only where it is needed: {object}");
    assert_eq!(object["truncated"], false);
}

/// Runs a program with its output on a terminal, and tells what the terminal got.
fn on_terminal(command: &mut Command) -> Vec<u8> {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let side: OwnedFd = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut child = command.stdout(side.try_clone().unwrap()).stderr(side).spawn().unwrap();
    // The parent's own copies of the other side would keep the terminal open for ever.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut terminal = fs::File::from(terminal);
    let mut shown = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = terminal.read(&mut piece) {
        shown.extend_from_slice(&piece[..count]);
    }
    assert!(child.wait().unwrap().success(), "{}", String::from_utf8_lossy(&shown));
    shown
}

#[test]
fn a_terminal_is_not_steered_by_what_a_sandbox_says() {
    let host = Host::new();
    let hostile = "\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[31mred\x1b[0m\x1b[1;1Hmoved\x1bc\x1bPdevice\x1b\\end\n";
    let file = format!("{}:hostile", host.file("hostile", hostile));
    let id = host.create(&["--file", &file]);
    host.json(&["exec", &id, "--", "cat", "hostile"]);
    host.json(&["exec", &id, "--", "sh", "-c", "cat hostile >&2; : '\x1b[2J\x1b]0;title\x07'"]);
    let raw = host.belljar(&["logs", &id]).stdout;
    assert!(
        raw.windows(4).any(|bytes| bytes == b"\x1b[2J"),
        "positive control: away from a terminal nothing is lost"
    );

    let shown = on_terminal(&mut host.command(&["logs", &id]));
    let text = String::from_utf8_lossy(&shown);
    assert!(text.contains("red") && text.contains("moved") && text.contains("end"), "{text:?}");
    for bad in ["\u{1b}]", "\u{7}", "\u{1b}[2J", "\u{1b}[1;1H", "\u{1b}c", "\u{1b}P", "ZXZpbA", "device"] {
        assert!(!text.contains(bad), "{bad:?} reached the terminal: {text:?}");
    }
    let shown = on_terminal(&mut host.command(&["logs", "--raw", &id]));
    assert!(String::from_utf8_lossy(&shown).contains("\u{1b}[2J"), "asked for");

    host.ok(&["exec", &id, "--", "sh", "-c", r#"touch "$(printf 'evil\033[2J\nname')""#]);
    let shown = on_terminal(&mut host.command(&["ls", &format!("{id}:/home/user")]));
    let text = String::from_utf8_lossy(&shown);
    assert!(text.contains("evil") && !text.contains("\u{1b}[2J") && !text.contains("\nname"), "{text:?}");
    let shown = on_terminal(&mut host.command(&["inspect", &id]));
    let text = String::from_utf8_lossy(&shown);
    assert!(!text.contains("\u{1b}]") && !text.contains("\u{1b}[2J"), "a command line steers it: {text:?}");
}

/// A small file system that can be full, gone with this value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(host: &Host, size: &str) -> Self {
        let path = host.path("disk");
        fs::create_dir(&path).unwrap();
        let size = std::ffi::CString::new(format!("size={size},mode=0700")).unwrap();
        mount("belljar-test", &path, "tmpfs", MountFlags::empty(), &*size).unwrap();
        Self(path)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        let error = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_data_directory_without_room_is_said_and_nothing_is_left() {
    if not_promised_rootless("nothing less; but an ordinary user cannot mount what this needs") {
        return;
    }
    for size in ["64k", "2m"] {
        let host = Host::new();
        let disk = SmallDisk::new(&host, size);
        let home = disk.0.join("data");
        let words = ["run", "--home", home.to_str().unwrap(), "--", "true"];
        host.belljar(&words).refused(125, &[home.to_str().unwrap(), "space", "hint: "]);
        assert_told_in_json(&host, &words, "resource_exhausted");
        assert_eq!(fs::read_dir(home.join("sandboxes")).into_iter().flatten().count(), 0);
        let partial = fs::read_dir(home.join("programs")).into_iter().flatten().flatten();
        for program in partial {
            assert!(program.metadata().unwrap().len() > 4096, "{program:?} is only begun");
        }
    }
}

#[test]
fn a_data_directory_that_fills_up_later_loses_nothing() {
    if not_promised_rootless("nothing less; but an ordinary user cannot mount what this needs") {
        return;
    }
    let host = Host::new();
    let disk = SmallDisk::new(&host, "32m");
    let home = disk.0.join("data");
    let home = home.to_str().unwrap();
    let id = host.ok(&["create", "--home", home, "--ttl", "1h"]).trim().to_owned();
    host.ok(&["exec", "--home", home, &id, "--", "sh", "-c", "echo kept > file"]);
    disk.fill();
    let ended = host.belljar(&["run", "--home", home, "--", "true"]);
    if !ended.status.success() {
        ended.refused(125, &["space", "hint: "]);
    }
    let object = host.json(&["exec", "--home", home, &id, "--", "sh", "-c", "cat file; seq 100000"]);
    let told = object["error"]["code"] == "resource_exhausted" || object["truncated"] == true;
    let whole = object["stdout"].as_str().is_some_and(|text| text.ends_with("\n100000\n"));
    assert!(told || whole, "output is missing and nobody says so: {object:.500}");
    fs::remove_file(disk.0.join("filler")).unwrap();
    assert_eq!(host.ok(&["exec", "--home", home, &id, "--", "cat", "file"]), "kept\n");
    host.ok(&["rm", "--home", home, "-f", &id]);
    let listed = host.json(&["ls", "--home", home, "-a"]);
    assert_eq!(listed["sandboxes"], serde_json::json!([]));
}

#[test]
fn a_full_destination_is_said_and_what_was_there_stays() {
    if not_promised_rootless("nothing less; but an ordinary user cannot mount what this needs") {
        return;
    }
    let host = Host::new();
    let disk = SmallDisk::new(&host, "2m");
    fs::write(disk.0.join("result"), "old").unwrap();
    let out = format!("big:{}", disk.0.join("result").display());
    let words = ["run", "--out", &out, "--", "head", "-c", "4000000", "/dev/zero"];
    let script = ["run", "--out", &out, "--", "sh", "-c", "head -c 4000000 /dev/zero > big"];
    host.belljar(&words).refused(125, &["--out", "big"]);
    host.belljar(&script).refused(125, &["--out", "result", "hint: "]);
    assert_eq!(fs::read(disk.0.join("result")).unwrap(), b"old");
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 1, "a part was left");

    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = host.command(&["run", "--", "echo", "lost"]);
    let child = child.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let (status, stderr, _) = super::wait(child);
    assert_eq!(status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("cannot write the output"), "{stderr}");
    host.assert_nothing_made("output that nobody could take");
}

#[test]
fn a_data_directory_of_another_version_is_refused_and_left_alone() {
    let host = Host::new();
    let id = host.create(&[]);
    let version = host.home().join("version");
    let ours = fs::read_to_string(&version).unwrap();
    fs::write(&version, "99\n").unwrap();
    let home = host.home();
    let exec = ["exec", &*id, "--", "true"];
    let words: [&[&str]; 5] = [&["run", "--", "true"], &["create"], &["ls"], &["rm", "-f", &id], &exec];
    for words in words {
        host.belljar(words).refused(125, &[home.to_str().unwrap(), "99", "hint: "]);
        assert_told_in_json(&host, words, "version");
    }
    assert_eq!(fs::read_to_string(&version).unwrap(), "99\n");
    fs::write(&version, ours).unwrap();
    assert_eq!(host.ok(&["exec", &id, "--", "echo", "alive"]), "alive\n");
}

/// Root of a user namespace that has no other user, as in many containers.
#[test]
fn root_that_may_not_do_what_root_does_is_told_so() {
    let host = Host::new();
    let run = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]).arg(belljar()).args(words);
        finish(command.env("BELLJAR_HOME", host.home()).env_remove("BELLJAR_LOG").stdin(Stdio::null()))
    };
    let ended = run(&["run", "--", "true"]);
    ended.refused(125, &["hint: "]);
    let said = ended.stderr.to_lowercase();
    assert!(
        said.contains("privilege") || said.contains("user id") || said.contains("namespace"),
        "what is missing: {said}"
    );
    assert!(!said.contains("--template host"), "a hint that does not help: {said}");
    let doctor = run(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor}");
    host.assert_nothing_made("root without privileges");
}

/// A host of its own with a shell and little else, made the root directory of a mount namespace for each call.
struct BareHost(Host);

impl BareHost {
    fn new() -> Self {
        let host = Host::new();
        let root = host.path("root");
        for directory in
            ["usr/bin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "run", "tmp", "old", "root"]
        {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for directory in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{directory}"), root.join(directory)).unwrap();
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        let copy = |from: &Path, to: &Path| {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            // Not by ourselves, so that no process which is started meanwhile has it open to be written.
            assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
        };
        let found =
            tool(Command::new("sh").args(["-c", "for name in sh cat ls id; do command -v $name; done"]));
        let ours = belljar();
        for program in found.lines().chain([ours.to_str().unwrap()]) {
            let name = Path::new(program).file_name().unwrap();
            copy(Path::new(program), &root.join("usr/bin").join(name));
            for word in tool(Command::new("ldd").arg(program)).split_whitespace() {
                if word.starts_with('/') {
                    copy(Path::new(word), &root.join(word.trim_start_matches('/')));
                }
            }
        }
        Self(host)
    }

    fn belljar(&self, words: &[&str]) -> Ended {
        let script = "set -e; mount --bind . .; cd \"$PWD\"
            mount --rbind /proc proc; mount --rbind /sys sys; mount --rbind /dev dev; mount --bind /run run
            pivot_root . old; cd /; exec /usr/bin/belljar \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).args(words);
        command.current_dir(self.0.path("root")).env("BELLJAR_HOME", "/data").env("HOME", "/root");
        finish(command.env_remove("BELLJAR_LOG").stdin(Stdio::null()))
    }
}

#[test]
fn a_host_without_python_runs_what_it_has_and_says_what_it_lacks() {
    if not_promised_rootless("nothing less; but an ordinary user cannot mount what this needs") {
        return;
    }
    let bare = BareHost::new();
    bare.belljar(&["run", "--", "python3", "-c", "print(6*7)"]).refused(127, &["python3", "hint: "]);
    assert_eq!(bare.belljar(&["run", "--", "sh", "-c", "echo works"]).success("sh"), "works\n");
    let doctor = bare.belljar(&["doctor", "--json"]);
    let checks: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let python = checks["checks"].as_array().unwrap().iter().find(|check| check["name"] == "python3");
    let python = python.unwrap_or_else(|| panic!("doctor does not speak of python3: {doctor}"));
    assert_eq!(python["status"], "degraded", "{python}");
    assert!(python["advice"].as_str().unwrap().contains("install"), "{python}");

    fs::write(bare.0.path("root/script.py"), "print(6*7)").unwrap();
    bare.belljar(&["run", "/script.py"]).refused(127, &["python3", "hint: "]);
    let listed = bare.belljar(&["ls", "-a", "-q"]);
    assert!(listed.stdout.is_empty(), "{listed}");
}
