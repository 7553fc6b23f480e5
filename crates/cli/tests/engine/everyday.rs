//! What people do with an engine that nobody kills.

use crate::{House, counted, until};

#[test]
fn commands_go_through_the_engine_and_are_remembered() {
    let mut house = House::new();
    house.start(None);
    let ran = house.run(&["run", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((ran.status.code(), &*ran.stdout), (Some(3), &b"out\n"[..]));
    let id = house.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    let result = house.json(&["exec", &id, "--", "sh", "-c", "echo 1"]);
    assert_eq!(result["stdout"], "1\n", "{result}");
    assert!(house.run(&["pause", &id]).status.success());
    assert!(house.run(&["resume", &id]).status.success());
    assert!(house.run(&["rm", "-f", &id]).status.success());
    let events = house.events(&id);
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "accepted",
            "admitted",
            "created",
            "exec_accepted",
            "exec_started",
            "exec_finished",
            "paused",
            "resumed",
            "ending",
            "ended"
        ]
    );
    let used = house.json(&["usage"]);
    assert!(used["meter"]["cpu_us"]["known"].as_u64().unwrap() > 0, "{used}");
}

#[test]
fn sandboxes_made_without_an_engine_are_taken_over_and_those_of_one_are_had_without() {
    let mut house = House::new();
    let before = house.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    house.start(None);
    assert_eq!(house.json(&["exec", &before, "--", "echo", "1"])["stdout"], "1\n");
    assert_eq!(counted(&house.events(&before))["adopted"], 1);
    let with = house.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    house.kill();
    for id in [&before, &with] {
        assert_eq!(house.json(&["exec", id, "--", "echo", "2"])["stdout"], "2\n");
    }
}

#[test]
fn a_second_engine_is_refused_and_harms_nobody() {
    let mut house = House::new();
    house.start(None);
    let second = house.run(&["engine"]);
    assert_eq!(second.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another engine serves"), "{second:?}");
    assert!(house.run(&["run", "--", "true"]).status.success());
}

#[test]
fn a_run_whose_command_line_is_killed_leaves_nothing() {
    let mut house = House::new();
    house.start(None);
    let mut caller = house.command(&["run", "--", "sleep", "600"]).spawn().unwrap();
    until("it runs", || !house.keepers().is_empty());
    caller.kill().unwrap();
    caller.wait().unwrap();
    until("its sandbox is gone", || house.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().is_empty());
}

#[test]
fn what_was_copied_can_be_put_back() {
    let mut house = House::new();
    house.start(None);
    let kept = house.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    let gone = house.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    let copy = house.directory.path().join("copy.db");
    assert!(house.run(&["backup", copy.to_str().unwrap()]).status.success());
    assert!(!house.run(&["backup", copy.to_str().unwrap()]).status.success(), "it is there already");
    let later = house.json(&["create"])["sandbox_id"].as_str().unwrap().to_owned();
    assert!(house.run(&["rm", "-f", &gone]).status.success());
    assert!(!house.run(&["restore", copy.to_str().unwrap()]).status.success(), "an engine serves it");
    house.kill();
    assert!(house.run(&["restore", copy.to_str().unwrap()]).status.success());
    house.start(None);
    for id in [&kept, &later] {
        assert_eq!(house.json(&["exec", id, "--", "echo", "3"])["stdout"], "3\n");
    }
    let events = house.events(&gone);
    assert_eq!(events.last().unwrap()["reason"], "lost", "{events:?}");
}
