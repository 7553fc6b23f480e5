//! Whose flow it was.

use std::collections::BTreeMap;

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
