//! What the sandboxes of a tenant may use together.

use rustix::process::Signal;
use serde_json::Value;

use crate::command_line::engine;
use crate::provider::{ASK, Provider, gateway, message, set_up};
use crate::surroundings::processes::send;
use crate::world::{HttpServer, Program, SERVER, World, until};

/// Holds as many connections as it can have, up to this, until it is told to stop.
const HOLD: &str = "import os, socket, sys, time
held = []
for _ in range(int(sys.argv[1])):
    try:
        s = socket.create_connection(('server.test', 80), timeout=20)
        s.sendall(b'GET / HTTP/1.1\\r\\nHost: server.test\\r\\n\\r\\n')
        if s.recv(12) == b'HTTP/1.1 200': held.append(s)
    except OSError: pass
print(len(held), flush=True)
open('held', 'w').close()
while not os.path.exists('stop'): time.sleep(0.05)";

/// An engine with these limits.
fn with(world: &World, limits: &str) -> Program {
    let file = world.home.path().join("limits.toml");
    std::fs::write(&file, limits).unwrap();
    engine(world, &["--tenants", file.to_str().unwrap()])
}

fn of(world: &World, tenant: &str) -> String {
    world.create(&["--tenant", tenant, "--allow", "server.test"])
}

fn has(denied: &Value, reason: &str) -> bool {
    denied["denied"].as_array().unwrap().iter().any(|denial| denial["reason"] == reason)
}

/// Asks for this many bytes' worth of answers.
fn fetch(world: &World, id: &str, times: u32) -> Value {
    let script = "import sys, urllib.request
for _ in range(int(sys.argv[1])): urllib.request.urlopen('http://server.test/', timeout=20).read()";
    world.json(&["exec", "--timeout", "60s", id, "--", "python3", "-c", script, &times.to_string()])
}

#[test]
fn connections_are_shared_by_the_sandboxes_of_a_tenant_and_by_nobody_else() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let _engine = with(&world, "[each.network]\nconnections = 4\n");
    let [one, two, other] = [of(&world, "acme"), of(&world, "acme"), of(&world, "umbra")];
    let begun = world.json(&["exec", "-d", &one, "--", "python3", "-c", HOLD, "3"])["exec"].to_string();
    until("they are held", || world.shell(&one, "test -e held")["exit_code"] == 0);
    let hold = |id: &str| {
        assert_eq!(world.shell(id, "touch stop")["exit_code"], 0);
        world.json(&["exec", "--timeout", "60s", id, "--", "python3", "-c", HOLD, "4"])
    };
    let ran = hold(&two);
    assert_eq!(ran["stdout"], "1\n", "one was left: {ran}");
    assert!(has(&ran, "tenant_too_many_connections"), "{ran}");
    let how = ran["denied"][0]["how_to_grant"].as_str().unwrap();
    assert!(how.contains("tenant") && how.contains("whoever runs the engine"), "{how}");
    let ran = hold(&other);
    assert_eq!((&ran["stdout"], ran["denied"].as_array().unwrap().len()), (&"4\n".into(), 0), "{ran}");
    assert_eq!(world.shell(&one, "touch stop")["exit_code"], 0);
    let ended = world.run(&["attach", &one, &begun]);
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "3\n");
    until("they are free again", || hold(&two)["stdout"] == "4\n");
}

#[test]
fn what_a_tenant_has_moved_today_is_known_whoever_dies() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let serving = with(&world, "[tenants.acme.network]\ntotal_bytes = 20000\n");
    let [one, two, other] = [of(&world, "acme"), of(&world, "acme"), of(&world, "umbra")];
    let file = world.home.path().join("tenants/acme.json");
    let counted = || {
        let text = std::fs::read(&file).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).map_or(0, |day| day["bytes"].as_u64().unwrap())
    };
    let moved = |id: &str| {
        let flows = world.flows(id);
        flows
            .iter()
            .map(|flow| flow["sent"].as_u64().unwrap() + flow["received"].as_u64().unwrap())
            .sum::<u64>()
    };
    let ran = fetch(&world, &one, 20);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    until("it is written down", || counted() == moved(&one));
    let before = counted();
    assert!(before > 2000 && before < 18_000, "{before}");

    send(world.door("worker").unwrap(), Signal::KILL);
    let ran = fetch(&world, &two, 10);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    until("it is added up", || counted() == before + moved(&two));
    // The sandbox that moved most is gone, and so is everybody who knew.
    assert!(world.run(&["rm", "-f", &one]).status.success());
    send(world.door("supervisor").unwrap(), Signal::KILL);
    drop(serving);
    let _serving = with(&world, "[tenants.acme.network]\ntotal_bytes = 20000\n");
    let after = counted();
    assert!(after > before, "{after}");
    let ran = fetch(&world, &two, 400);
    assert_ne!(ran["exit_code"], 0, "{ran}");
    assert!(has(&ran, "tenant_volume_used_up"), "{ran}");
    let said = world.shell(&two, "curl -sS -i --max-time 20 http://server.test/");
    // The name is not even told.
    assert!(has(&said, "tenant_volume_used_up"), "{said}");
    until("all is counted", || counted() >= 20_000);
    assert!(counted() < 25_000, "no more than was under way: {}", counted());
    let third = of(&world, "acme");
    assert!(has(&fetch(&world, &third, 1), "tenant_volume_used_up"), "a new sandbox changes nothing");
    let ran = fetch(&world, &other, 100);
    assert_eq!(ran["exit_code"], 0, "another tenant's: {ran}");
}

#[test]
fn limits_that_are_changed_hold_for_those_that_run() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let serving = with(&world, "");
    let id = of(&world, "acme");
    assert_eq!(fetch(&world, &id, 5)["exit_code"], 0);
    drop(serving);
    let serving = with(&world, "[each.network]\ntotal_bytes = 500\n");
    until("it holds", || has(&fetch(&world, &id, 5), "tenant_volume_used_up"));
    drop(serving);
    let _serving = with(&world, "[each.network]\ntotal_bytes = \"1g\"\n");
    until("it holds no more", || fetch(&world, &id, 5)["exit_code"] == 0);
}

#[test]
fn where_the_limits_are_not_known_nothing_goes_through() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let _serving = with(&world, "[each.network]\ntotal_bytes = \"1g\"\n");
    let known = of(&world, "acme");
    assert_eq!(fetch(&world, &known, 1)["exit_code"], 0);
    let limits = world.home.path().join("tenants.json");
    let text = std::fs::read(&limits).unwrap();
    for broken in [None, Some("{")] {
        match broken {
            Some(broken) => std::fs::write(&limits, broken).unwrap(),
            None => std::fs::remove_file(&limits).unwrap(),
        }
        let output = world.run(&["create", "--tenant", "acme", "--allow", "server.test"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains("tenants.json"), "{stderr}");
    }
    std::fs::write(&limits, text).unwrap();
    let count = world.home.path().join("tenants/umbra.json");
    std::fs::create_dir_all(count.parent().unwrap()).unwrap();
    std::fs::write(&count, "{").unwrap();
    let output = world.run(&["create", "--tenant", "umbra", "--allow", "server.test"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("tenants/umbra.json"), "{stderr}");
    // Those of others, and those without a network, are not concerned.
    assert_eq!(fetch(&world, &known, 1)["exit_code"], 0);
    assert_eq!(fetch(&world, &of(&world, "third"), 1)["exit_code"], 0);
    world.create(&["--tenant", "umbra"]);
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn a_file_that_is_not_understood_is_refused() {
    let world = World::new();
    let file = world.home.path().join("limits.toml");
    std::fs::write(&file, "[each.network]\nconections = 4\n").unwrap();
    let output = world.run(&["engine", "--tenants", file.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("--tenants") && stderr.contains("line 2, column 1") && stderr.contains("hint: "),
        "{stderr}"
    );
    let output = world.run(&["engine", "--tenants", "/nonexistent.toml"]);
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("/nonexistent.toml")
    );
}

/// What the gateway does counts for all sandboxes of a tenant, whoever dies meanwhile.
#[test]
fn a_budget_is_shared_by_the_sandboxes_of_a_tenant_for_the_day() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let _engine = with(&world, "[each.gateway]\nrequests = 3\n[tenants.umbra.gateway]\nrequests = 1\n");
    let create = |tenant: &str| world.create(&["--tenant", tenant, "--grant", "llm:chat"]);
    let status = |id: &str| {
        let ran = world.shell(id, &format!("{ASK} -o /tmp/answer -w '%{{http_code}}'; cat /tmp/answer"));
        ran["stdout"].as_str().unwrap().to_owned()
    };
    let [one, two, other] = [create("acme"), create("acme"), create("umbra")];
    for id in [&one, &two, &one] {
        assert!(status(id).starts_with("200"));
    }
    let refused = status(&two);
    assert!(refused.starts_with("402") && refused.contains("the tenant's budget of 3 requests"), "{refused}");
    assert!(status(&other).starts_with("200"), "its own");
    assert!(status(&other).starts_with("402"));
    for part in ["gateway", "supervisor"] {
        let pid = if part == "gateway" { gateway(&world) } else { world.door(part).unwrap() };
        send(pid, Signal::KILL);
        until("it is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
        let refused = status(&one);
        assert!(refused.starts_with("402"), "after the death of the {part}: {refused}");
    }
    // Nor does another sandbox have more.
    assert!(status(&create("acme")).starts_with("402"));
    assert_eq!(provider.got().len(), 4);
}
