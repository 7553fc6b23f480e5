//! Real work inside: the tools of the host are usable, and what needs root is possible with `--user root` alone.

use std::fs;
use std::process::Command;

use super::{Host, lacks_rootless, not_promised_rootless, tool};

/// A wheel is a zip with three notes about itself; made by hand it needs no network and no build tools.
const WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/bell_greeting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("bell_greeting.py", "def greet(who):\n    return 'hello ' + who\n")
    info = "bell_greeting-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: bell-greeting\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "bell_greeting.py,,\n" + "".join(info + n + ",,\n" for n in ("METADATA", "WHEEL", "RECORD")))
"#;

fn with_wheel(host: &Host) -> String {
    let wheels = host.path("wheels");
    fs::create_dir(&wheels).unwrap();
    tool(Command::new("python3").args(["-c", WHEEL]).arg(&wheels));
    format!("{}:wheels", wheels.display())
}

#[test]
fn c_is_compiled_with_make_and_runs() {
    let host = Host::new();
    let source =
        host.file("project/hello.c", "#include <stdio.h>\nint main(void) { puts(GREETING); return 0; }\n");
    let makefile = "hello: hello.c\n\tgcc -O2 -Wall -Werror -DGREETING='\"hello from C\"' -o $@ $<\n";
    host.file("project/Makefile", makefile);
    let project = source.replace("/hello.c", ":project");
    assert!(host.bash(&["--file", &project], "make -C project && project/hello").ends_with("hello from C\n"));
}

#[test]
fn a_cargo_project_is_built_tested_and_run() {
    if lacks_rootless("cargo") {
        return;
    }
    let host = Host::new();
    host.file("double/Cargo.toml", "[package]\nname = \"double\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    host.file(
        "double/src/lib.rs",
        "pub fn double(n: i64) -> i64 { n * 2 }\n#[test]\nfn twice() { assert_eq!(double(21), 42); }\n",
    );
    host.file("double/src/main.rs", "fn main() { println!(\"{}\", double::double(21)); }\n");
    let file = format!("{}:double", host.path("double").display());
    let options = ["--file", &file];
    let said = host.bash(&options, "cd double; cargo test --offline 2>&1; cargo run --offline --release");
    assert!(said.contains("test twice ... ok") && said.ends_with("42\n"), "{said}");
}

#[test]
fn node_runs_scripts_and_npm_runs_theirs() {
    if lacks_rootless("npm") {
        return;
    }
    let host = Host::new();
    let script = host.file("sum.js", "console.log([1, 2, 39].reduce((a, b) => a + b));");
    assert_eq!(host.ok(&["run", &script]), "42\n");

    host.file("app/package.json", r#"{"name":"app","version":"1.0.0","scripts":{"test":"node check.mjs"}}"#);
    host.file(
        "app/check.mjs",
        "import assert from 'node:assert'; assert.equal(6 * 7, 42); console.log('checked');",
    );
    let file = format!("{}:app", host.path("app").display());
    assert!(host.bash(&["--file", &file], "cd app; npm run --silent test").ends_with("checked\n"));
}

#[test]
fn npm_installs_a_tarball_that_was_brought_in() {
    if lacks_rootless("npm") {
        return;
    }
    let host = Host::new();
    host.file("package/package.json", r#"{"name":"bell-triple","version":"1.0.0","main":"index.js"}"#);
    host.file("package/index.js", "module.exports = n => n * 3;");
    let tarball = host.path("bell-triple-1.0.0.tgz");
    tool(Command::new("tar").arg("-czf").arg(&tarball).arg("-C").arg(host.path("")).arg("package"));
    let file = format!("{}:triple.tgz", tarball.display());
    let script = "mkdir app; cd app; npm init -y >/dev/null; npm install --offline --no-audit --no-fund ../triple.tgz >&2
        node -p 'require(\"bell-triple\")(14)'";
    assert_eq!(host.bash(&["--file", &file], script), "42\n");
}

#[test]
fn git_keeps_a_history() {
    let host = Host::new();
    let script = "git init -q work; cd work; echo one > file; git add file; git commit -qm 'First'
        echo two >> file; git commit -qam 'Second'; git checkout -qb side; git log --format=%s; git status --short
        git clone -q . ../copy; git -C ../copy rev-list --count HEAD; git diff --stat HEAD~1 | tail -1";
    assert_eq!(host.bash(&[], script), "Second\nFirst\n2\n 1 file changed, 1 insertion(+)\n");
}

#[test]
fn pip_installs_a_wheel_into_a_venv_and_for_the_user() {
    let host = Host::new();
    let wheels = with_wheel(&host);
    let greeting = "import bell_greeting; print(bell_greeting.greet('jar'), bell_greeting.__file__)";
    let script = format!(
        "python3 -m venv env; env/bin/pip install -q --no-index --find-links wheels bell-greeting
        env/bin/python -c \"{greeting}\"
        python3 -m pip install -q --user --no-index wheels/*.whl; python3 -c \"{greeting}\""
    );
    let said = host.bash(&["--file", &wheels], &script);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("hello jar /home/user/env/"), "{said}");
    assert!(lines[1].starts_with("hello jar /home/user/.local/"), "{said}");
}

#[test]
fn pytest_runs_and_a_failing_test_is_seen() {
    let host = Host::new();
    let wheels = host.path("wheels");
    tool(Command::new("python3").args(["-m", "pip", "download", "-q", "pytest", "-d"]).arg(&wheels));
    let wheels = format!("{}:wheels", wheels.display());
    let tests = "import pytest\n@pytest.fixture\ndef six(): return 6\ndef test_good(six, tmp_path): assert six * 7 == 42\n";
    let good = format!("{}:test_good.py", host.file("test_good.py", tests));
    let bad = format!("{}:test_bad.py", host.file("test_bad.py", "def test_bad(): assert 6 * 7 == 41\n"));
    let script = "python3 -m venv env; env/bin/pip install -q --no-index --find-links wheels pytest
        env/bin/pytest -q test_good.py; if env/bin/pytest -q test_bad.py; then false; else echo status $?; fi";
    let said = host.bash(&["--file", &wheels, "--file", &good, "--file", &bad], script);
    assert!(said.contains("1 passed") && said.contains("1 failed") && said.ends_with("status 1\n"), "{said}");
}

#[test]
fn a_server_is_tested_from_the_same_sandbox() {
    let host = Host::new();
    let script = "echo 'served page' > page.html
        python3 - <<'END'
import http.server, threading, urllib.request, subprocess
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://localhost:8000/page.html').read().decode(), end='')
print(subprocess.run(['curl', '-sS', 'http://127.0.0.1:8000/page.html'], check=True, capture_output=True, text=True).stdout, end='')
server.shutdown()
END";
    assert_eq!(host.bash(&[], script), "served page\nserved page\n");
}

#[test]
fn a_server_in_the_background_serves_later_executions() {
    let host = Host::new();
    let id = host.create(&[]);
    host.ok(&["exec", &id, "--", "sh", "-c", "echo later > page.html"]);
    host.ok(&["exec", "-d", &id, "--", "python3", "-m", "http.server", "8000"]);
    let get = "curl -sS --retry 100 --retry-delay 0 --retry-connrefused http://localhost:8000/page.html";
    assert_eq!(host.ok(&["exec", &id, "--", "sh", "-c", &format!("{get} 2>/dev/null")]), "later\n");
}

#[test]
fn root_installs_a_package_whose_script_runs() {
    if not_promised_rootless("there is no root inside") {
        return;
    }
    let host = Host::new();
    host.file(
        "deb/DEBIAN/control",
        "Package: bell-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.invalid>\nDescription: a test\n",
    );
    host.file("deb/usr/bin/bell-tool", "#!/bin/sh\necho tool works\n");
    host.file("deb/DEBIAN/postinst", "#!/bin/sh\nset -e\necho configured > /var/lib/bell-tool.state\n");
    for program in ["deb/usr/bin/bell-tool", "deb/DEBIAN/postinst"] {
        tool(Command::new("chmod").arg("0755").arg(host.path(program)));
    }
    let package = host.path("bell-tool.deb");
    tool(
        Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(host.path("deb")).arg(&package),
    );
    let file = format!("{}:bell-tool.deb", package.display());
    let check = "bell-tool; cat /var/lib/bell-tool.state; dpkg-query -W -f '${Status}' bell-tool; stat -c ' %U' /usr/bin/bell-tool";
    let expected = "tool works\nconfigured\ninstall ok installed root\n";
    let install = format!("apt-get install -y ./bell-tool.deb >&2; {check}");
    assert_eq!(host.bash(&["--user", "root", "--file", &file], &install), expected);

    let id = host.create(&["--file", &file]);
    let install = ["apt-get", "install", "-y", "/home/user/bell-tool.deb"];
    host.ok(&[&["exec", "--timeout", "4m", "--user", "root", &id, "--"], &install[..]].concat());
    assert_eq!(host.ok(&["exec", &id, "--", "sh", "-c", check]), expected, "the default user can use it");
    assert!(!std::path::Path::new("/usr/bin/bell-tool").exists(), "it went to the host");
}

const BIND: &str = "import socket, sys
s = socket.socket()
try:
    s.bind(('', int(sys.argv[1]))); print('bound')
except OSError as error:
    print(type(error).__name__)";

#[test]
fn what_needs_root_works_as_root_and_not_as_the_default_user() {
    if not_promised_rootless("there is no root inside") {
        return;
    }
    let host = Host::new();
    let id = host.create(&[]);
    let run =
        |user: &str, words: &[&str]| host.belljar(&[&["exec", "--user", user, &id, "--"], words].concat());
    let floor = run("user", &["cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"]).text();
    let floor: u16 = floor.trim().parse().unwrap();
    assert_eq!(run("root", &["python3", "-c", BIND, "80"]).text(), "bound\n");
    let low = run("user", &["python3", "-c", BIND, "80"]).text();
    assert_eq!(low, if floor > 80 { "PermissionError\n" } else { "bound\n" });
    assert_eq!(run("user", &["python3", "-c", BIND, "8080"]).text(), "bound\n");

    let own = "cd /srv; touch mine theirs; chown user:user theirs; chmod 600 mine; stat -c %U:%G mine theirs; id -un";
    assert_eq!(run("root", &["sh", "-c", own]).success(own), "root:root\nuser:user\nroot\n");
    assert!(!run("user", &["cat", "/srv/mine"]).status.success());
    for denied in ["touch /usr/x", "touch /etc/x", "chown root ~/.profile", "mkdir /x", "touch /srv/x"] {
        assert!(!run("user", &["sh", "-c", denied]).status.success(), "{denied}");
    }
    for allowed in [
        "touch /usr/local/bin/x",
        "useradd -m other && setpriv --reuid other --regid other --clear-groups sh -c 'test $(id -un) = other'",
    ] {
        run("root", &["sh", "-c", allowed]).success(allowed);
    }
}

#[test]
fn root_can_give_a_directory_to_the_default_user() {
    if not_promised_rootless("there is no root inside") {
        return;
    }
    let host = Host::new();
    let id = host.create(&[]);
    host.ok(&["exec", "--user", "root", &id, "--", "sh", "-c", "mkdir /srv/data; chown -R user /srv"]);
    let said = host.ok(&["exec", &id, "--", "sh", "-c", "echo given > /srv/data/file; cat /srv/data/file"]);
    assert_eq!(said, "given\n");
}

#[test]
fn shells_do_what_shells_do() {
    let host = Host::new();
    let script = r#"seq 1 1000 | awk '{s += $1} END {print s}' | tee sum | rev
        diff <(seq 3) <(seq 3) && echo same; cat sum - <<< here; (exit 7) || echo $?
        printf '%s\n' b a c | sort | paste -sd,; echo $((6*7)) > /tmp/t; mktemp -d >/dev/null; cat /tmp/t
        sleep 100 & kill %1; wait %1 || echo killed; trap 'echo bye' EXIT;
        ulimit -n >/dev/null; find / -xdev -maxdepth 1 >/dev/null; xargs -n1 -P4 echo < <(echo x) ; ps >/dev/null && echo ps"#;
    let said = host.bash(&[], script);
    assert_eq!(said, "005005\nsame\n500500\nhere\n7\na,b,c\n42\nkilled\nx\nps\nbye\n");
}

#[test]
fn python_has_what_programs_expect_of_a_machine() {
    let host = Host::new();
    let script = r#"
import asyncio, multiprocessing, multiprocessing.shared_memory, os, pty, select, signal, socket, sqlite3, ssl, sys, tempfile, threading, time

def square(n): return n * n

async def shell():
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate(b"through cat")
    return said

if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool: print(sum(pool.map(square, range(10))))
    queue = multiprocessing.get_context("spawn").Queue()
    lock = multiprocessing.Lock()
    with lock: print("lock")
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    memory.buf[0] = 42; print(memory.buf[0], os.path.exists("/dev/shm/" + memory.name)); memory.close(); memory.unlink()
    print(asyncio.run(shell()).decode())
    database = sqlite3.connect("data.db"); database.execute("pragma journal_mode=wal")
    database.execute("create table t (n)"); database.executemany("insert into t values (?)", [(n,) for n in range(100)])
    database.commit(); print(database.execute("select sum(n) from t").fetchone()[0])
    child, terminal = pty.fork()
    if child == 0: os.execvp("sh", ["sh", "-c", "test -t 0 && stty size >/dev/null && echo terminal"])
    said = b""
    try:
        while piece := os.read(terminal, 100): said += piece
    except OSError: pass
    os.waitpid(child, 0); print(said.decode().strip())
    with tempfile.TemporaryFile(dir="/tmp") as file: file.write(b"x" * (1 << 20)); print(file.tell())
    a, b = socket.socketpair(); a.send(b"pair"); print(b.recv(4).decode())
    reader = select.epoll(); reader.register(b.fileno()); print(len(reader.poll(1)))
    ssl.create_default_context(); print(len(os.urandom(8)), socket.gethostname() != "")
    threads = [threading.Thread(target=square, args=(n,)) for n in range(50)]
    [t.start() for t in threads]; [t.join() for t in threads]; print("threads")
"#;
    let file = format!("{}:machine.py", host.file("machine.py", script));
    let said = host.ok(&["run", "--timeout", "4m", "--file", &file, "--", "python3", "machine.py"]);
    let expected = [
        "285",
        "lock",
        "42 True",
        "through cat",
        "4950",
        "terminal",
        "1048576",
        "pair",
        "1",
        "8 True",
        "threads",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}
