//! Files and output in and out: all of it, exactly, in little memory, and never beyond where it was meant to go.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Ended, Host, MOST_MEMORY_KIB, finish, finish_into_sum, sum, sum_of, wait, write_noise};

/// Large transfers run one at a time, so that small machines can run these tests.
static LARGE: Mutex<()> = Mutex::new(());

const MIB: u64 = 1 << 20;

/// Every process of Belljar's that serves the sandboxes of this host stayed small. The sandboxes must be idle, so that
/// no process of a command is among them.
#[track_caller]
fn assert_small(host: &Host) {
    let processes = host.processes();
    assert!(processes.len() >= 2, "a launcher and a guest at least: {processes:?}");
    for pid in processes {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").trim();
        let peak: u64 = field("VmHWM:").trim_end_matches(" kB").parse().unwrap();
        assert!(peak < MOST_MEMORY_KIB, "{} ({pid}) had {peak} KiB", field("Name:"));
    }
}

fn noise(host: &Host, name: &str, length: u64) -> (String, String) {
    let path = host.path(name);
    write_noise(fs::File::create(&path).unwrap(), length);
    let sum = sum_of(&path);
    (path.to_str().unwrap().to_owned(), sum)
}

/// The file goes in and out by `cp`, and in and out by `run`, and is the same at each place.
fn there_and_back(length: u64) {
    let host = Host::new();
    let (file, expected) = noise(&host, "noise", length);
    let id = host.create(&[]);
    let inside = format!("{id}:noise");
    let back = host.path("back");
    for (from, to) in [(&*file, &*inside), (&*inside, back.to_str().unwrap())] {
        let ended = host.belljar(&["cp", from, to]);
        ended.success((from, to));
        assert!(ended.peak_kib < MOST_MEMORY_KIB, "cp {from} {to} had {} KiB", ended.peak_kib);
    }
    assert_eq!(sum_of(&back), expected);
    let said = host.ok(&["exec", "--timeout", "2m", &id, "--", "sha256sum", "noise"]);
    assert_eq!(said, format!("{expected}  noise\n"));
    let (ended, streamed) = finish_into_sum(&mut host.command(&["cp", &inside, "-"]));
    ended.success("cp to standard output");
    assert_eq!(streamed, expected);
    assert!(ended.peak_kib < MOST_MEMORY_KIB, "cp to standard output had {} KiB", ended.peak_kib);
    assert_small(&host);
    host.ok(&["rm", "-f", &id]);

    let brought = format!("{file}:noise");
    let fetched = format!("moved:{}", host.path("fetched").display());
    let options = ["run", "--timeout", "2m", "--file", &brought, "--out", &fetched];
    let ended = host.belljar(&[&options[..], &["--", "mv", "noise", "moved"]].concat());
    ended.success("run");
    assert!(ended.peak_kib < MOST_MEMORY_KIB, "run had {} KiB", ended.peak_kib);
    assert_eq!(sum_of(&host.path("fetched")), expected);
    host.assert_nothing_made("after run");
}

#[test]
fn a_mebibyte_of_noise_comes_back_identical() {
    there_and_back(MIB);
}

#[test]
fn half_a_gibibyte_comes_back_identical_in_little_memory() {
    let _alone = LARGE.lock().unwrap_or_else(|broken| broken.into_inner());
    there_and_back(500 * MIB);
}

#[test]
fn empty_and_odd_sizes_come_back_identical() {
    for length in [0, 1, 65_535, 65_536, 65_537] {
        there_and_back(length);
    }
}

const BILLION: u64 = 1_000_000_000;
const FLOOD: &str = "yes 0123456789abcdef | head -c 1000000000";

#[test]
fn a_billion_bytes_of_output_arrive_complete_with_flow_control() {
    let _alone = LARGE.lock().unwrap_or_else(|broken| broken.into_inner());
    let host = Host::new();
    let mut control = Command::new("sh").args(["-c", FLOOD]).stdout(Stdio::piped()).spawn().unwrap();
    let expected = sum(control.stdout.take().unwrap());
    control.wait().unwrap();

    let id = host.create(&[]);
    let words = ["exec", "--timeout", "4m", &id, "--", "sh", "-c", FLOOD];
    let (ended, arrived) = finish_into_sum(&mut host.command(&words));
    ended.success("exec");
    assert_eq!(arrived, expected, "exec");
    assert!(ended.peak_kib < MOST_MEMORY_KIB, "exec had {} KiB", ended.peak_kib);
    assert_small(&host);

    let words = ["run", "--timeout", "4m", "--", "sh", "-c", FLOOD];
    let (ended, arrived) = finish_into_sum(&mut host.command(&words));
    ended.success("run");
    assert_eq!(arrived, expected, "run");
    assert!(ended.peak_kib < MOST_MEMORY_KIB, "run had {} KiB", ended.peak_kib);
}

/// Runs a program to its end with its standard output in a file, so that this process stays small.
fn finish_into_file(command: &mut Command, path: &Path) -> Ended {
    let child = command.stdout(fs::File::create(path).unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    let (status, stderr, peak_kib) = wait(child);
    Ended { status, stdout: Vec::new(), stderr, peak_kib }
}

/// Without flow control nobody waits for a reader: what is kept is bounded, and what is not kept is counted.
#[test]
fn a_billion_bytes_of_output_are_bounded_without_flow_control() {
    let _alone = LARGE.lock().unwrap_or_else(|broken| broken.into_inner());
    let host = Host::new();
    let id = host.create(&[]);
    let path = host.path("result.json");
    let words = ["exec", "--json", "--timeout", "4m", &id, "--", "sh", "-c", FLOOD];
    let ended = finish_into_file(&mut host.command(&words), &path);
    ended.success("exec --json");
    let length = fs::metadata(&path).unwrap().len();
    assert!(length < 80 * MIB, "the spool keeps 64 MiB, and the object has {length} bytes");
    assert!(ended.peak_kib < 8 * MOST_MEMORY_KIB, "exec --json had {} KiB", ended.peak_kib);
    assert_small(&host);
    let object: serde_json::Value = serde_json::from_reader(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(object["truncated"], true);
    let text = object["stdout"].as_str().unwrap();
    assert!(text.starts_with("0123456789abcdef\n0123456789abcdef\n"), "the head is kept");
    let tail = &text[text.len() - 34..];
    assert!("0123456789abcdef\n".repeat(4).contains(tail), "the tail is kept: {tail:?}");
}

/// The kept bytes are all `+`, which no mark of a gap holds, so they can be counted beside it.
#[test]
fn the_gap_is_counted_to_the_byte() {
    let _alone = LARGE.lock().unwrap_or_else(|broken| broken.into_inner());
    let host = Host::new();
    let path = host.path("result.json");
    let flood = "head -c 1000000000 /dev/zero | tr '\\0' +; printf end >&2";
    let words = ["run", "--json", "--timeout", "4m", "--", "sh", "-c", flood];
    finish_into_file(&mut host.command(&words), &path).success("run --json");
    // Only the end of the object is parsed, since its text may be long.
    let (mut kept, mut rest) = (0, Vec::new());
    let mut file = std::io::BufReader::new(fs::File::open(&path).unwrap());
    let mut piece = vec![0; 1 << 16];
    while let count @ 1.. = file.read(&mut piece).unwrap() {
        kept += piece[..count].iter().filter(|byte| **byte == b'+').count() as u64;
        rest.extend(piece[..count].iter().filter(|byte| **byte != b'+'));
    }
    let object: serde_json::Value = serde_json::from_slice(&rest).unwrap();
    assert_eq!(kept + object["stdout_gap"].as_u64().unwrap(), BILLION);
    assert!(kept < BILLION && object["truncated"] == true, "{kept} bytes were kept");
    assert_eq!((&object["stderr"], &object["stderr_gap"]), (&"end".into(), &0.into()));
}

#[test]
fn standard_input_arrives_whole() {
    let host = Host::new();
    let (file, expected) = noise(&host, "noise", 50 * MIB);
    for words in [&["run", "--", "sha256sum"][..], &["run", "--json", "--", "sha256sum"]] {
        let ended = finish(host.command(words).stdin(fs::File::open(&file).unwrap()));
        assert!(ended.success(words).contains(&expected), "{ended}");
        assert!(ended.peak_kib < MOST_MEMORY_KIB, "run had {} KiB", ended.peak_kib);
    }
    // Through a pipe, and in pieces of odd sizes.
    let mut child = host.command(&["run", "--", "sha256sum"]);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut bytes = fs::File::open(&file).unwrap();
    let mut piece = vec![0; 99_991];
    while let count @ 1.. = bytes.read(&mut piece).unwrap() {
        stdin.write_all(&piece[..count]).unwrap();
    }
    drop(stdin);
    let stdout = child.stdout.take().unwrap();
    let (status, stderr, _) = wait(child);
    assert!(status.success(), "{stderr}");
    assert!(std::io::read_to_string(stdout).unwrap().contains(&expected));
}

/// Every path below a directory with its kind, mode and content.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mode = metadata.permissions().mode() & 0o7777;
            let content = if metadata.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else if metadata.is_dir() {
                left.push(path.clone());
                format!("directory {mode:o}")
            } else {
                format!("file {mode:o} {}", sum_of(&path))
            };
            found.insert(
                path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string(),
                content,
            );
        }
    }
    found
}

#[test]
fn directories_keep_modes_links_and_odd_names_both_ways() {
    let host = Host::new();
    let source = host.path("source");
    let long = "n".repeat(255);
    let names: [&[u8]; 9] = [
        b"plain",
        b"with space",
        b"quote'\"`$(x)",
        b"new\nline",
        b"not utf-8 \xff\xfe",
        b"-rf",
        b"tab\t*?[x]\\",
        "höhe 🔔".as_bytes(),
        long.as_bytes(),
    ];
    for (directory, names) in [("", &names[..]), ("deep/er", &names[..2])] {
        fs::create_dir_all(source.join(directory)).unwrap();
        for (index, name) in names.iter().enumerate() {
            let path = source.join(directory).join(OsStr::from_bytes(name));
            fs::write(&path, name).unwrap();
            let modes = [0o644, 0o755, 0o600, 0o640, 0o700];
            fs::set_permissions(&path, fs::Permissions::from_mode(modes[index % modes.len()])).unwrap();
        }
    }
    fs::create_dir_all(source.join("empty/inner")).unwrap();
    fs::create_dir(source.join("private")).unwrap();
    fs::set_permissions(source.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("plain", source.join("link")).unwrap();
    symlink("deep/er/plain", source.join("link deep")).unwrap();
    symlink("../plain", source.join("deep/up")).unwrap();
    let wanted = tree(&source);

    let id = host.create(&[]);
    host.ok(&["cp", source.to_str().unwrap(), &format!("{id}:copied")]);
    host.ok(&["cp", &format!("{id}:/home/user/copied"), "back"]);
    assert_eq!(tree(&host.path("back")), wanted);

    let brought = format!("{}:copied", source.display());
    let script = "mv copied moved; find moved -type l | wc -l; stat -c %U moved/plain";
    let said = host.bash(&["--file", &brought, "--out", "moved:fetched"], script);
    assert_eq!(said, "3\nuser\n");
    assert_eq!(tree(&host.path("fetched")), wanted);

    host.ok(&["cp", "back", &format!("{id}:copied")]);
    let said = host.ok(&["exec", &id, "--", "sh", "-c", "ls -d copied/back/deep"]);
    assert_eq!(said, "copied/back/deep\n", "into a directory that is there");
}

#[test]
fn files_that_nobody_may_write_stay_so_both_ways() {
    let host = Host::new();
    host.file("source/read-only", "x");
    fs::set_permissions(host.path("source/read-only"), fs::Permissions::from_mode(0o444)).unwrap();
    let id = host.create(&[]);
    host.ok(&["cp", "source", &format!("{id}:copied")]);
    assert_eq!(host.ok(&["exec", &id, "--", "stat", "-c", "%a", "copied/read-only"]), "444\n");
    host.ok(&["cp", &format!("{id}:copied"), "back"]);
    assert_eq!(tree(&host.path("back")), tree(&host.path("source")));
}

#[test]
fn what_cannot_be_copied_in_is_named() {
    let host = Host::new();
    host.file("source/good", "good");
    mknodat(CWD, host.path("source/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let id = host.create(&[]);
    let ended = host.belljar(&["cp", "source", &format!("{id}:copied")]);
    assert!(ended.stderr.contains("pipe"), "it is named: {ended}");
    let ended = host.belljar(&["cp", "source/pipe", &format!("{id}:pipe")]);
    ended.refused(125, &["pipe"]);
}

/// A directory of the host that nothing may reach, told by its content at the end.
fn canary(host: &Host) -> std::path::PathBuf {
    let canary = host.path("canary");
    host.file("canary/kept", "kept");
    canary
}

#[track_caller]
fn assert_untouched(canary: &Path) {
    let left: Vec<_> = fs::read_dir(canary).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kept"], "written outside of the destination");
    assert_eq!(fs::read(canary.join("kept")).unwrap(), b"kept");
}

#[test]
fn links_that_leave_are_left_out_and_named() {
    let host = Host::new();
    let canary = canary(&host);
    let id = host.create(&[]);
    let script = format!(
        "mkdir -p dir/sub; cd dir; echo good > good; ln -s {} absolute; ln -s ../../canary relative
        ln -s sub/../../../canary/kept tricky; ln -s good inner; ln -s / root; ln good hard; chmod u+s good",
        canary.display()
    );
    host.ok(&["exec", &id, "--", "sh", "-c", &script]);
    let ended = host.belljar(&["cp", &format!("{id}:/home/user/dir"), "dest"]);
    assert_eq!(ended.status.code(), Some(125), "{ended}");
    for name in ["absolute", "relative", "tricky", "root"] {
        assert!(ended.stderr.contains(name), "{name} is not named: {ended}");
        assert!(fs::symlink_metadata(host.path("dest").join(name)).is_err(), "{name} came out");
    }
    let dest = tree(&host.path("dest"));
    assert_eq!(dest["inner"], "link to good");
    assert!(dest["good"].starts_with("file 644"), "set-user-id is dropped: {dest:?}");
    assert!(dest["hard"].starts_with("file 644"), "{dest:?}");
    assert_untouched(&canary);
}

#[test]
fn nothing_is_written_through_links_of_the_destination() {
    let host = Host::new();
    let canary = canary(&host);
    let id = host.create(&[]);
    host.ok(&[
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "mkdir -p dir/a; echo hostile > dir/a/kept; echo hostile > dir/a/new",
    ]);
    fs::create_dir_all(host.path("dest/dir")).unwrap();
    symlink(&canary, host.path("dest/dir/a")).unwrap();
    host.belljar(&["cp", &format!("{id}:dir"), "dest"]);
    assert_untouched(&canary);
}

#[test]
fn names_that_change_while_they_come_out_stay_in_the_destination() {
    let host = Host::new();
    let canary = canary(&host);
    let id = host.create(&[]);
    let script = format!(
        "import os
os.makedirs('dir/real'); open('dir/real/hostile', 'w').write('hostile'); open('dir/real/kept', 'w').write('hostile')
os.symlink({:?}, 'dir/link')
open('ready', 'w').close()
while True:
    os.rename('dir/real', 'dir/a'); os.rename('dir/a', 'dir/real')
    os.rename('dir/link', 'dir/a'); os.rename('dir/a', 'dir/link')",
        canary.display()
    );
    host.ok(&["exec", "-d", &id, "--", "python3", "-c", &script]);
    host.ok(&["exec", &id, "--", "sh", "-c", "until test -e ready; do :; done"]);
    for round in 0..40 {
        let dest = host.path(&format!("dest{round}"));
        host.belljar(&["cp", &format!("{id}:dir"), dest.to_str().unwrap()]);
        assert_untouched(&canary);
        if dest.exists() {
            let left = tree(&dest).into_values().filter(|kind| kind.contains("canary")).count();
            assert_eq!(left, 0, "a link that leaves came out");
        }
    }
}

#[test]
fn what_has_no_end_is_refused() {
    let host = Host::new();
    let id = host.create(&[]);
    host.ok(&[
        "exec",
        &id,
        "--",
        "python3",
        "-c",
        "import socket; socket.socket(socket.AF_UNIX).bind('socket')",
    ]);
    for path in ["/dev/zero", "/dev/random", "/dev/full", "/proc/kmsg", "/home/user/socket"] {
        let from = format!("{id}:{path}");
        let (ended, streamed) = finish_into_sum(&mut host.command(&["cp", &from, "-"]));
        ended.refused(125, &[path]);
        assert_eq!(streamed, sum(Stdio::null()), "{path} gave bytes");
        host.belljar(&["cp", &from, "dest"]).refused(125, &[path]);
        assert!(!host.path("dest").exists(), "{path} left a file");
        let ended = host.belljar(&["run", "--out", &format!("{path}:dest"), "--", "true"]);
        assert_eq!(ended.status.code(), Some(125), "{path}: {ended}");
        assert!(ended.stderr.contains("--out") && !host.path("dest").exists(), "{path}: {ended}");
    }
}

#[test]
fn a_file_that_grows_while_it_comes_out_is_bounded() {
    let host = Host::new();
    let id = host.create(&["--disk", "64m"]);
    // Holes cost nothing, so this file outgrows any reader, and starts again when it may grow no more.
    let script = "import os
file = os.open('grows', os.O_CREAT | os.O_RDWR)
size = 0
while True:
    try:
        size += 1 << 20; os.ftruncate(file, size)
    except OSError: size = 0
    if size == 1 << 20: open('ready', 'w').close()";
    host.ok(&["exec", "-d", &id, "--", "python3", "-c", script]);
    host.ok(&["exec", &id, "--", "sh", "-c", "until test -e ready; do :; done"]);
    let from = format!("{id}:grows");
    let ended = host.belljar(&["cp", "--max-size", "16m", &from, "dest"]);
    match fs::metadata(host.path("dest")) {
        Ok(metadata) => assert!(ended.status.success() && metadata.len() <= 16 * MIB, "{ended}"),
        Err(_) => ended.refused(125, &["--max-size"]),
    }
    let streamed = host.path("streamed");
    finish_into_file(&mut host.command(&["cp", "--max-size", "16m", &from, "-"]), &streamed);
    let length = fs::metadata(&streamed).unwrap().len();
    assert!(length <= 16 * MIB, "{length} bytes");
}

#[test]
fn more_than_the_maximum_is_refused_and_leaves_nothing() {
    let host = Host::new();
    let id = host.create(&[]);
    host.ok(&[
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "mkdir d; head -c 3000000 /dev/zero > d/a; cp d/a d/b; cp d/a big",
    ]);
    fs::write(host.path("old"), "old").unwrap();
    for (from, to) in [("big", "new"), ("big", "old"), ("d", "new")] {
        let ended = host.belljar(&["cp", "--max-size", "2m", &format!("{id}:{from}"), to]);
        ended.refused(125, &["--max-size"]);
    }
    assert!(!host.path("new").is_file());
    assert_eq!(fs::read(host.path("old")).unwrap(), b"old", "what was there is untouched");
    let ended = host.belljar(&["cp", "--max-size", "4m", &format!("{id}:d"), "both"]);
    ended.refused(125, &["--max-size"]);
}

#[test]
fn a_file_never_replaces_a_directory() {
    let host = Host::new();
    let file = host.file("file", "content");
    let id = host.create(&[]);
    host.ok(&["exec", &id, "--", "mkdir", "-p", "there/file", "other"]);
    host.belljar(&["cp", &file, &format!("{id}:there")]).refused(125, &["there/file"]);
    finish(host.command(&["cp", "-", &format!("{id}:other")]).stdin(fs::File::open(&file).unwrap()))
        .refused(125, &["other", "directory"]);
    host.ok(&["cp", &file, &format!("{id}:other")]);
    assert_eq!(host.ok(&["exec", &id, "--", "cat", "other/file"]), "content");
    host.ok(&["exec", &id, "--", "test", "-d", "there/file"]);
    fs::create_dir_all(host.path("dest/file")).unwrap();
    host.belljar(&["cp", &format!("{id}:other/file"), "dest"]).refused(125, &["dest"]);
}

#[test]
fn paths_with_dots_stay_inside() {
    let host = Host::new();
    let file = host.file("file", "content");
    let id = host.create(&[]);
    let name = format!("belljar-dots-{}", std::process::id());
    let up = "../".repeat(20);
    for (n, prefix) in [up.clone(), format!("/{up}"), format!("/home/user/{up}")].iter().enumerate() {
        let ended = host.belljar(&["cp", &file, &format!("{id}:{prefix}tmp/{name}{n}")]);
        if ended.status.success() {
            assert_eq!(host.ok(&["exec", &id, "--", "cat", &format!("/tmp/{name}{n}")]), "content");
        } else {
            ended.refused(125, &[".."]);
        }
        assert!(!Path::new("/tmp").join(format!("{name}{n}")).exists(), "it went to the host");
        let ended = host.belljar(&["cp", &format!("{id}:{prefix}etc/passwd"), "-"]);
        assert!(!ended.status.success() || ended.text().contains("/home/user"), "{ended}");
    }
    // A link inside leads to a place inside, also when it names a directory of the host.
    let canary = canary(&host);
    host.ok(&["exec", &id, "--", "ln", "-s", canary.to_str().unwrap(), "link"]);
    host.belljar(&["cp", &file, &format!("{id}:link/new")]);
    let ended = host.belljar(&["cp", &format!("{id}:link/kept"), "-"]);
    assert_eq!(ended.status.code(), Some(125), "{ended}");
    assert_untouched(&canary);
}
