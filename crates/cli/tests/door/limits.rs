//! How much may be used, and what happens to those who would use up everything.

use crate::world::{Canary, HttpServer, SERVER, World};

#[test]
fn limits_are_kept_and_said() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let _canary = Canary::start(&format!("{SERVER}:2525"));
    let policy = world.home.path().join("policy.toml");
    let with = |limits: &str, script: &str| {
        std::fs::write(
            &policy,
            format!("mode = \"allowlist\"\nallow = [\"server.test:80,2525\"]\n[limits]\n{limits}\n"),
        )
        .unwrap();
        world.json(&[
            "run",
            "--timeout",
            "60s",
            "--policy",
            policy.to_str().unwrap(),
            "--",
            "python3",
            "-c",
            script,
        ])
    };
    let hold = "import socket
held = []
for _ in range(6):
    try:
        s = socket.create_connection(('server.test', 2525), timeout=5); s.recv(10); held.append(s)
    except OSError: pass
print(len(held))";
    let ran = with("connections = 4", hold);
    assert_eq!(ran["stdout"], "4\n", "{ran}");
    assert!(
        ran["denied"].as_array().unwrap().iter().any(|denial| denial["reason"] == "too_many_connections"),
        "{ran}"
    );
    let ask = "import urllib.request, time
began = time.monotonic()
for _ in range(10): urllib.request.urlopen('http://server.test/').read()
print(time.monotonic() - began)";
    let quick: f64 = with("", ask)["stdout"].as_str().unwrap().trim().parse().unwrap();
    // Each costs a look-up, a connection and a request.
    let ran = with("requests_per_second = 10", ask);
    let slow: f64 = ran["stdout"].as_str().unwrap().trim().parse().unwrap_or_else(|_| panic!("{ran}"));
    assert!(slow > 1.5 && slow > quick, "{slow} against {quick}");
    let ran = with(
        "total_bytes = 2000",
        "import urllib.request
for _ in range(50): urllib.request.urlopen('http://server.test/').read()",
    );
    assert_ne!(ran["exit_code"], 0);
    assert!(
        ran["denied"].as_array().unwrap().iter().any(|denial| denial["reason"] == "volume_used_up"),
        "{ran}"
    );
}

#[test]
fn idlers_and_slow_ones_cost_little_and_hold_nobody_up() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let idlers = world.create(&["--allow", "server.test"]);
    let neighbour = world.create(&["--allow", "server.test"]);
    let before = resident(world.door("worker").unwrap());
    let script = "import socket, time
held = []
for number in range(400):
    try:
        s = socket.create_connection(('server.test', 80), timeout=5)
        if number % 2: s.sendall(b'GET / HT')
        held.append(s)
    except OSError: pass
open('held', 'w').close()
time.sleep(600)";
    let ran = world.json(&["exec", "-d", "--timeout", "10m", &idlers, "--", "python3", "-c", script]);
    assert!(ran["exec"].is_u64(), "{ran}");
    crate::world::until("they are held", || world.shell(&idlers, "test -e held")["exit_code"] == 0);
    let served = world.shell(&neighbour, "curl -sS --max-time 10 http://server.test/x");
    assert!(served["stdout"].as_str().unwrap().starts_with("served"), "{served}");
    let grown = resident(world.door("worker").unwrap()).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for 256 connections");
}

fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
