//! The door's processes may die at any time: nothing gets through meanwhile, and afterwards all is as before.

use std::collections::BTreeSet;

use rustix::process::Signal;

use crate::surroundings::processes::send;
use crate::world::{Canary, HttpServer, OTHER, SERVER, World, until};

#[test]
fn a_door_that_is_killed_again_and_again_lets_nothing_through_and_comes_back() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let forbidden = Canary::start(&format!("{OTHER}:80"));
    let sandboxes: Vec<String> =
        (0..3).map(|_| world.create(&["--allow", "server.test", "--ttl", "10m"])).collect();
    let script = "import os, socket, urllib.request
served = 0
while not os.path.exists('stop'):
    try: served += urllib.request.urlopen('http://server.test/', timeout=5).status == 200
    except OSError: pass
    try: socket.create_connection(('93.184.215.15', 80), timeout=0.2).close()
    except OSError: pass
print(served)";
    let begun: Vec<String> = sandboxes
        .iter()
        .map(|id| {
            world.json(&["exec", "-d", "--timeout", "10m", id, "--", "python3", "-c", script])["exec"]
                .to_string()
        })
        .collect();
    let mut killed = BTreeSet::new();
    while killed.len() < 50 {
        let mut found = None;
        until("there is a worker", || {
            found = world.door("worker").filter(|pid| !killed.contains(pid));
            found.is_some()
        });
        send(found.unwrap(), Signal::KILL);
        killed.extend(found);
        if killed.len() % 10 == 0 {
            // In the middle of all this the sandboxes are served.
            for id in &sandboxes {
                let served = world.shell(id, "curl -sS --retry 20 --retry-all-errors --retry-delay 0 --max-time 30 http://server.test/x");
                assert!(served["stdout"].as_str().unwrap().contains("served"), "{served}");
            }
        }
    }
    for (id, exec) in sandboxes.iter().zip(&begun) {
        assert_eq!(world.shell(id, "touch stop")["exit_code"], 0);
        let output = world.run(&["attach", id, exec]);
        let served: u32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(served > 0, "it was served in between");
    }
    assert_eq!(forbidden.visits(), 0);
    // Sequence numbers have no repetition, and the list no gap that is not told.
    for id in &sandboxes {
        let numbers: Vec<u64> = world.flows(id).iter().map(|flow| flow["seq"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
    }
    let descriptors =
        std::fs::read_dir(format!("/proc/{}/fd", world.door("supervisor").unwrap())).unwrap().count();
    assert!(descriptors < 64, "{descriptors} descriptors after fifty workers");
}

#[test]
fn without_a_supervisor_nothing_gets_through_and_the_next_command_brings_one() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "server.test"]);
    let exec = world.json(&[
        "exec",
        "-d",
        "--timeout",
        "5m",
        &id,
        "--",
        "sh",
        "-c",
        "sleep 1; curl -sS --max-time 3 http://server.test/away",
    ]);
    let exec = exec["exec"].to_string();
    let (supervisor, worker) = (world.door("supervisor").unwrap(), world.door("worker").unwrap());
    send(supervisor, Signal::KILL);
    until("its worker ends with it", || !std::path::Path::new(&format!("/proc/{worker}")).exists());
    // Nothing of ours runs meanwhile that could open it again.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(server.asked(), Vec::<String>::new());
    let output = world.run(&["attach", &id, &exec]);
    assert!(!output.status.success(), "it waited in vain: {output:?}");
    let served = world.shell(&id, "curl -sS --max-time 20 http://server.test/after");
    assert!(served["stdout"].as_str().unwrap().contains("served GET /after"), "{served}");
}

#[test]
fn whoever_runs_a_sandbox_opens_the_door_again() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let script = "for n in 1 2 3; do curl -sS --retry 20 --retry-all-errors --retry-delay 0 --max-time 30 http://server.test/$n; sleep 0.5; done";
    let run = world
        .command(&["run", "--allow", "server.test", "--timeout", "2m", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    for count in 1..3 {
        until("it was served", || server.asked().len() >= count);
        let supervisor = world.door("supervisor").unwrap();
        send(supervisor, Signal::KILL);
        until("another is there", || world.door("supervisor").is_some_and(|pid| pid != supervisor));
    }
    let output = run.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("served GET /3"), "{output:?}");
}

#[test]
fn the_door_closes_what_belongs_to_sandboxes_that_have_ended() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let keeper = world.create(&["--allow", "server.test"]);
    let count = |part| std::fs::read_dir(format!("/proc/{}/fd", world.door(part).unwrap())).unwrap().count();
    let before = (count("supervisor"), count("worker"));
    for _ in 0..10 {
        let ran = world.json(&["run", "--allow", "server.test", "--", "curl", "-sS", "http://server.test/x"]);
        assert_eq!(ran["exit_code"], 0, "{ran}");
    }
    until("all is closed", || (count("supervisor"), count("worker")) <= before);
    assert!(world.run(&["rm", "-f", &keeper]).status.success());
}
