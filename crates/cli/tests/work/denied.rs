//! Real tool chains need nothing that the filter denies: the kernel is asked which calls it refused while they worked.
//!
//! A call that the filter denies never reaches the kernel's own code, but its end is traced like any other's. The trace
//! is the kernel's, taken outside, so it slows nothing down and nothing inside can keep out of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Host, not_promised_rootless, tool};

/// Denied calls that these tools try and do well without.
const EXPECTED: &[(&str, &str)] = &[
    ("clone3", "libc falls back to clone, whose flags the filter can see"),
    (
        "get_mempolicy",
        "node and numerical libraries ask about memory of several processors' own, and take no for none",
    ),
    ("io_uring_setup", "node and cargo look whether it is there, and use threads"),
    ("seccomp", "package managers would filter their own helpers"),
    ("splice", "coreutils and libc fall back to read and write"),
];

#[test]
fn tool_chains_need_nothing_that_is_denied() {
    if not_promised_rootless("nothing less; but an ordinary user cannot have the kernel trace its answers") {
        return;
    }
    let host = Host::new();
    let wheels = host.path("wheels");
    let download = ["-m", "pip", "download", "-q", "pytest", "ipython", "-d"];
    tool(Command::new("python3").args(download).arg(&wheels));
    host.file("c/hello.c", "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n");
    host.file("c/Makefile", "hello: hello.c\n\tgcc -O2 -o $@ $<\n");
    host.file("rust/Cargo.toml", "[package]\nname = \"one\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    host.file("rust/src/main.rs", "fn main() { println!(\"one\"); }\n#[test]\nfn one() {}\n");
    host.file("app/package.json", r#"{"name":"app","version":"1.0.0","scripts":{"test":"node check.js"}}"#);
    host.file(
        "app/check.js",
        "require('os').networkInterfaces(); require('fs').watch('.').close(); console.log('ok')",
    );
    host.file("tests/test_one.py", "import asyncio, multiprocessing\ndef test_one(tmp_path): assert multiprocessing.Pool(2).map(abs, [-1]) == [1]\n");
    let control = "Package: bell-one\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.invalid>\nDescription: a test\n";
    host.file("deb/DEBIAN/control", control);
    tool(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "--build"])
            .arg(host.path("deb"))
            .arg(host.path("one.deb")),
    );
    let names = ["wheels", "c", "rust", "app", "tests", "one.deb"];
    let files = names.map(|name| format!("{}:{name}", host.path(name).display()));
    let options: Vec<&str> = files.iter().flat_map(|file| ["--file", file]).collect();
    let id = host.create(&options);

    let trace = Trace::of(host.guest());
    let work = "set -euo pipefail
        make -C c; c/hello
        git init -q repository; cd repository; touch file; git add file; git commit -qm One; git gc -q; cd ..
        git clone -q repository copy
        python3 -m venv env; env/bin/pip install -q --no-index --find-links wheels pytest ipython
        env/bin/pytest -q tests; env/bin/ipython -c 'import sys; print(6 * 7)'
        cd app; npm run --silent test; npm pack --silent; cd ..
        cd rust; cargo build --offline -q; cargo test --offline -q; cd ..
        tar -czf all.tgz c rust; gzip -dc all.tgz | tar -t > list; cp -a c d; curl -s http://localhost:1 || true";
    host.ok(&["exec", "--timeout", "4m", &id, "--", "bash", "-c", work]);
    host.ok(&[
        "exec",
        "--timeout",
        "4m",
        "--user",
        "root",
        &id,
        "--",
        "apt-get",
        "install",
        "-y",
        "/home/user/one.deb",
    ]);
    let denied = trace.denied();
    drop(trace);

    let expected: BTreeSet<&str> = EXPECTED.iter().map(|(name, _)| *name).collect();
    let needed: Vec<&String> = denied.iter().filter(|name| !expected.contains(name.as_str())).collect();
    assert!(needed.is_empty(), "tool chains were denied {needed:?}; all that was denied: {denied:?}");
    assert!(denied.contains("clone3"), "the trace saw nothing: {denied:?}");
}

impl Host {
    /// The one guest of this data directory: process 1 of a pid namespace.
    fn guest(&self) -> i32 {
        let is_first = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line =
                status.lines().find(|line| line.starts_with("NSpid:")).map(str::to_owned).unwrap_or_default();
            let numbers: Vec<&str> = line.split_whitespace().skip(1).collect();
            numbers.len() > 1 && numbers.last() == Some(&"1")
        };
        self.processes().into_iter().find(is_first).expect("a guest")
    }
}

/// The kernel's trace of ended calls of one process and all that come from it.
struct Trace {
    mount: tempfile::TempDir,
    instance: PathBuf,
}

impl Trace {
    fn of(pid: i32) -> Self {
        let mount = tempfile::tempdir().unwrap();
        tool(Command::new("mount").args(["-t", "tracefs", "belljar"]).arg(mount.path()));
        let instance = mount.path().join(format!("instances/belljar-{pid}"));
        let trace = Self { mount, instance };
        fs::create_dir(&trace.instance).unwrap();
        trace.set("buffer_size_kb", "8192");
        trace.set("options/event-fork", "1");
        trace.set("set_event_pid", &pid.to_string());
        // ENOSYS, EPERM, EAFNOSUPPORT and EPROTONOSUPPORT: what the filter answers, and little else does.
        trace.set(
            "events/raw_syscalls/sys_exit/filter",
            "ret == -38 || ret == -1 || ret == -97 || ret == -93",
        );
        trace.set("events/raw_syscalls/sys_exit/enable", "1");
        trace
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.instance.join(file);
        fs::write(&path, value)
            .unwrap_or_else(|error| panic!("cannot write {value} to {}: {error}", path.display()));
    }

    /// The names of the calls that the filter denied.
    fn denied(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.instance.join("trace")).unwrap();
        let lost = text.lines().any(|line| line.contains("EVENTS DROPPED") || line.contains("LOST"));
        assert!(!lost, "the trace is not whole");
        let ends = text.lines().filter_map(|line| line.split_once("sys_exit: NR ")).filter_map(|(_, end)| {
            let (number, result) = end.split_once(" = ")?;
            Some((number.trim().parse::<u32>().ok()?, result.trim().parse::<i32>().ok()?))
        });
        let names = names_of_calls();
        let refused = refused_calls();
        let denied = ends.filter_map(|(number, result)| {
            let name = names.get(&number).cloned().unwrap_or_else(|| format!("call {number}"));
            (result == -38 || refused.contains(&name)).then_some(name)
        });
        denied.collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A directory of the kernel's, which goes without being emptied.
        let _ = fs::remove_dir(&self.instance);
        let _ = Command::new("umount").arg(self.mount.path()).status();
    }
}

/// The calls of this machine by number, as the C library's headers have them.
fn names_of_calls() -> BTreeMap<u32, String> {
    let headers = tool(Command::new("sh").args(["-c", "echo '#include <asm/unistd.h>' | cc -E -dM -"]));
    let defined = headers.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
    defined.filter_map(|(name, number)| Some((number.trim().parse().ok()?, name.to_owned()))).collect()
}

/// The calls to which the filter itself says that they may not be, by the page that is written from the policy.
fn refused_calls() -> BTreeSet<String> {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy.md")).unwrap();
    // What follows is about our own processes outside.
    let page = page.split("\n## What the ").next().unwrap_or_default();
    let section = page.split("\n## ").filter(|section| section.starts_with("Refused"));
    let listed = section.flat_map(|section| section.lines().skip(1).flat_map(|line| line.split(", ")));
    let denied = ["`EPERM` |", "`EAFNOSUPPORT` |", "`EPROTONOSUPPORT` |"];
    let checked = page.lines().filter(|line| denied.iter().any(|end| line.ends_with(end)));
    let names = listed.chain(checked.filter_map(|line| line.split(" | ").next()));
    names
        .map(|name| name.trim_matches([' ', '|', '`', ',']).to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}
