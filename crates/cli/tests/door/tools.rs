//! Unmodified tools, without any proxy variable, against servers of the test's own.

use std::process::Command;

use crate::world::{Program, SERVER, World, until, where_it_is};

/// A server of files, in a directory.
fn files(directory: &std::path::Path, address: &str, port: u16) -> Program {
    let mut server = Command::new("python3");
    server.args(["-m", "http.server", "--bind", address, &port.to_string()]).current_dir(directory);
    server.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let child = where_it_is(address, || server.spawn().unwrap());
    until("it serves", || std::net::TcpStream::connect((address, port)).is_ok());
    Program(child)
}

fn git(directory: &std::path::Path, words: &[&str]) {
    let ran = Command::new("git")
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@server.test", "-c", "init.defaultBranch=main"])
        .args(words)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn git_clones_from_a_server_that_is_granted_by_name() {
    let world = World::new();
    let place = world.home.path().join("served");
    std::fs::create_dir(&place).unwrap();
    git(&place, &["init", "-q", "work"]);
    std::fs::write(place.join("work/read-me"), "cloned\n").unwrap();
    git(&place.join("work"), &["add", "."]);
    git(&place.join("work"), &["commit", "-qm", "First"]);
    git(&place, &["clone", "-q", "--bare", "work", "project.git"]);
    git(&place.join("project.git"), &["update-server-info"]);
    let _server = files(&place, SERVER, 80);
    let clone = "git clone -q http://server.test/project.git && cat project/read-me";
    let ran = world.json(&["run", "--allow", "server.test", "--", "sh", "-c", clone]);
    assert_eq!(ran["stdout"], "cloned\n", "{ran}");
    let ran = world.json(&["run", "--allow", "other.test", "--", "sh", "-c", clone]);
    assert_ne!(ran["exit_code"], 0);
    assert!(ran["denied"][0]["how_to_grant"].as_str().unwrap().contains("--allow 'server.test'"), "{ran}");
}

#[test]
fn pip_installs_from_an_index_that_is_granted() {
    let world = World::new();
    let place = world.home.path().join("served");
    std::fs::create_dir_all(place.join("simple/tiny")).unwrap();
    let made = Command::new("python3")
        .args(["-c", "import zipfile
with zipfile.ZipFile('simple/tiny/tiny-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('tiny.py', 'print(\"installed\")')
    z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')
    z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('tiny-1.0.dist-info/RECORD', '')
open('simple/tiny/index.html', 'w').write('<a href=\"tiny-1.0-py3-none-any.whl\">tiny</a>')"])
        .current_dir(&place)
        .status()
        .unwrap();
    assert!(made.success());
    let _server = files(&place, SERVER, 80);
    let install = "pip install -q --no-warn-script-location --trusted-host server.test -i http://server.test/simple tiny && python3 -c 'import tiny'";
    let ran = world.json(&["run", "--timeout", "60s", "--allow", "server.test", "--", "sh", "-c", install]);
    assert_eq!(ran["stdout"], "installed\n", "{ran}");
    let ran = world.json(&[
        "run",
        "--timeout",
        "60s",
        "--allow",
        "GET server.test:80/simple/other/*",
        "--",
        "sh",
        "-c",
        &install.replace("pip install", "pip install --retries 0"),
    ]);
    assert_ne!(ran["exit_code"], 0);
    assert!(
        ran["denied"].as_array().unwrap().iter().any(|denial| denial["reason"] == "request_not_listed"),
        "{ran}"
    );
}
