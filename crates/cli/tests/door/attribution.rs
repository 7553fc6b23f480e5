//! Whose flow it was.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value;

use crate::command_line::engine;
use crate::surroundings::processes::send;
use crate::world::{Canary, HttpServer, SERVER, World, until};

/// Makes flows of all kinds; the port says who it was.
const FLOWS: &str = "import os, random, socket, struct, sys, time
me, port, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(me)
def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()
def one(kind):
    if kind == 'name':
        try: socket.getaddrinfo(me + '.server.test', port)
        except OSError: pass
        return
    s = socket.socket()
    s.connect(('93.184.215.14', port))
    if kind == 'stay':
        try: s.recv(1)
        except OSError: pass
    if kind == 'reset': reset(s)
    else: s.close()
def fork(depth, kind):
    if depth == 0: return one(kind)
    pid = os.fork()
    if pid == 0:
        try:
            if depth == 2: os.setsid()
            fork(depth - 1, kind)
        finally: os._exit(0)
    if dice.random() < 0.7: os.waitpid(pid, 0)
for _ in range(rounds):
    fork(dice.randrange(3), dice.choice(['stay', 'reset', 'close', 'name']))
time.sleep(0.2)";

#[test]
fn every_flow_is_its_executions_or_denied() {
    let world = World::new();
    let _canaries: Vec<Canary> =
        (0..10).map(|number| Canary::start(&format!("{SERVER}:{}", 3000 + number))).collect();
    let sandboxes = [
        world.create(&["--allow", &format!("{SERVER}:3000-3009"), "--allow", "*.server.test"]),
        world.create(&["--allow", &format!("{SERVER}:3000-3009"), "--allow", "*.server.test"]),
    ];
    // Ten executions at once, five in each sandbox, each with a port and names of its own.
    let mut begun = Vec::new();
    for number in 0..10 {
        let id = &sandboxes[number % 2];
        let port = (3000 + number).to_string();
        let made = world.json(&[
            "exec",
            "-d",
            "--timeout",
            "5m",
            id,
            "--",
            "python3",
            "-c",
            FLOWS,
            &format!("e{number}"),
            &port,
            "100",
        ]);
        begun.push((id.clone(), made["exec"].as_u64().unwrap_or_else(|| panic!("{made}")), number));
    }
    for (id, exec, _) in &begun {
        let waited = world.run(&["attach", id, &exec.to_string()]);
        assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    }
    let owner: BTreeMap<(String, u64), usize> =
        begun.iter().map(|(id, exec, number)| ((id.clone(), *exec), *number)).collect();
    let mut seen = 0;
    let mut counted = BTreeMap::new();
    until("all flows are written down", || {
        let now = sandboxes.iter().map(|id| world.flows(id).len()).sum::<usize>();
        let settled = now == seen && now >= 1000;
        seen = now;
        settled
    });
    for id in &sandboxes {
        for flow in world.flows(id) {
            let Some(exec) = flow["exec"].as_u64() else {
                assert_eq!(flow["verdict"], "denied", "{flow}");
                continue;
            };
            let who = match (flow["port"].as_u64(), flow["host"].as_str().unwrap().split_once('.')) {
                (Some(port), _) => usize::try_from(port - 3000).unwrap(),
                (None, Some((name, _))) => name[1..].parse().unwrap(),
                other => panic!("{other:?}: {flow}"),
            };
            assert_eq!(owner.get(&(id.clone(), exec)), Some(&who), "{flow}");
            *counted.entry(who).or_insert(0) += 1;
        }
    }
    println!("{seen} flows, by execution: {counted:?}");
    assert_eq!(counted.len(), 10, "{counted:?}");
    assert!(counted.values().sum::<usize>() >= 950, "most can be told: {counted:?}");
}

#[test]
fn what_a_daemon_of_an_earlier_call_does_is_that_calls() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "server.test"]);
    let first = world.shell(&id, "setsid sh -c 'while [ ! -e go ]; do sleep 0.05; done; curl -sS http://server.test/daemon; touch gone' >/dev/null 2>&1 & echo $!");
    assert_eq!(first["exit_code"], 0, "{first}");
    let second = world
        .shell(&id, "touch go; while [ ! -e gone ]; do sleep 0.05; done; curl -sS http://server.test/second");
    assert_eq!(second["exit_code"], 0, "{second}");
    let flows = world.flows(&id);
    for (path, exec) in [("/daemon", 1), ("/second", 2)] {
        let flow = flows.iter().find(|flow| flow["request"].as_str().is_some_and(|text| text.contains(path)));
        assert_eq!(flow.unwrap_or_else(|| panic!("{path}: {flows:?}"))["exec"], exec);
    }
}

/// The stages and tool calls of all that an execution did, without repetition.
fn purposes(flows: &[Value], exec: &Value) -> Vec<(Value, Value)> {
    let its = flows.iter().filter(|flow| flow["exec"] == *exec);
    let mut found: Vec<_> = its.map(|flow| (flow["stage"].clone(), flow["tool_call"].clone())).collect();
    found.dedup();
    found
}

#[test]
fn a_flow_says_what_it_was_part_of_and_whose_it_was_whatever_dies() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    // Allowed and denied, looked up and connected to, and a request that is seen.
    let script =
        "curl -sS http://server.test/x; curl -sS http://93.184.215.15/; getent hosts other.test; true";
    for with_engine in [false, true] {
        let serving = with_engine.then(|| engine(&world, &[]));
        let tenant: &[&str] = if with_engine { &["--tenant", "acme"] } else { &[] };
        let id = world.create(&[tenant, &["--allow", "server.test"]].concat());
        let exec = |words: &[&str]| {
            let began = world.json(&[&["exec", "-d"], words, &[&id, "--", "sh", "-c", script]].concat());
            let exec = began["exec"].clone();
            let ended = world.run(&["attach", &id, &exec.to_string()]);
            assert!(ended.status.success(), "{ended:?}");
            exec
        };
        let told = [
            exec(&["--stage", "coder", "--tool-call", "toolu_01"]),
            exec(&["--tool-call", "functions.run:2"]),
            exec(&[]),
        ];
        send(world.door("worker").unwrap(), Signal::KILL);
        let after = exec(&["--stage", "after"]);
        let expected = [
            vec![("coder".into(), "toolu_01".into())],
            vec![(Value::Null, "functions.run:2".into())],
            vec![(Value::Null, Value::Null)],
            vec![("after".into(), Value::Null)],
        ];
        let check = |when: &str| {
            let flows = world.flows(&id);
            for (exec, expected) in told.iter().chain([&after]).zip(&expected) {
                assert_eq!(purposes(&flows, exec), *expected, "execution {exec}, {when}: {flows:?}");
            }
            for flow in &flows {
                let (tenant, session) =
                    if with_engine { ("acme".into(), (*id).into()) } else { Default::default() };
                assert_eq!((&flow["tenant"], &flow["session"]), (&tenant, &session), "{when}");
            }
            let reasons = |reason: &str| flows.iter().filter(|flow| flow["reason"] == reason).count();
            assert!(reasons("not_listed") >= 8, "{flows:?}");
        };
        check("while it runs");
        let table = String::from_utf8(world.run(&["egress", &id]).stdout).unwrap();
        let ends = |end: &str| table.lines().filter(|line| line.ends_with(end)).count();
        assert!(ends("  stage coder  call toolu_01") >= 4 && ends("  call functions.run:2") >= 4, "{table}");
        let killed = world.run(&["kill", &id]);
        assert!(killed.status.success(), "{killed:?}");
        send(world.door("supervisor").unwrap(), Signal::KILL);
        drop(serving);
        check("after everything");
    }
}

#[test]
fn words_that_cannot_be_told_are_refused() {
    let world = World::new();
    let id = world.create(&[]);
    let long = "x".repeat(65);
    for (option, word) in
        [("--stage", ""), ("--stage", "two words"), ("--tool-call", "\u{1b}[2J"), ("--tool-call", &*long)]
    {
        let output = world.run(&["exec", option, word, &id, "--", "true"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{stderr}");
        assert!(stderr.contains(option) && stderr.contains("hint: "), "{stderr}");
    }
    let output = world.run(&["create", "--tenant", "a/b"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("--tenant") && stderr.contains("hint: "), "{stderr}");
    let output = world.run(&["create", "--tenant", "acme"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("option `--tenant` needs an engine"), "{stderr}");
}
