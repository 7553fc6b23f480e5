//! What people do with an engine that nobody kills.

use belljar_engine::store::Query;

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

/// Their first output overtook the word that they had begun, and they were told as refused.
#[test]
fn quick_commands_are_told_as_what_they_were() {
    let mut house = House::new();
    house.start(None);
    let id = house.create(600);
    for number in 0..60 {
        let output = house.run(&["exec", &id, "--", "echo", "mine"]);
        assert_eq!(
            (output.status.code(), &*output.stdout),
            (Some(0), &b"mine\n"[..]),
            "{number}: {output:?}"
        );
    }
    let counts = counted(&house.events(&id));
    assert_eq!((counts["exec_finished"], counts.get("exec_refused")), (60, None), "{counts:?}");
}

#[test]
fn lists_are_as_long_as_they_are() {
    let mut house = House::new();
    house.start(None);
    let large = format!("A={}", "x".repeat(120_000));
    let ids: Vec<String> = (0..12)
        .map(|_| {
            let words = ["create", "--env", &large, "--env", &large.replace('A', "B")];
            house.json(&words)["sandbox_id"].as_str().unwrap().to_owned()
        })
        .collect();
    let listed = house.json(&["ls"]);
    assert!(listed.to_string().len() > 2 << 20, "the control: longer than one answer");
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), ids.len());
    for number in 0..12 {
        let long = format!("{number}{}", "\u{1}".repeat(100_000));
        house.run(&["exec", &ids[0], "--", "true", &long]);
    }
    let events = house.events(&ids[0]);
    assert!(events.iter().map(|event| event.to_string().len()).sum::<usize>() > 4 << 20, "the control");
    assert_eq!(counted(&events)["exec_finished"], 12);
}

#[test]
fn a_sandbox_that_could_not_be_read_again_is_not_made() {
    let house = House::new();
    let variables: Vec<String> =
        (0..2).map(|number| format!("V{number}={}", "\u{1}".repeat(100_000))).collect();
    let words: Vec<&str> =
        ["create"].into_iter().chain(variables.iter().flat_map(|variable| ["--env", variable])).collect();
    let refused = house.json(&words);
    assert_eq!(refused["error"]["code"], "invalid_argument", "{refused}");
    assert!(house.keepers().is_empty());
}

#[test]
fn whoever_leaves_the_line_gets_nothing() {
    let mut house = House::new();
    house.start_with(&["--room", "1", "--patience", "60s"]);
    let first = house.create(600);
    let (runtime, client) = (crate::runtime(), crate::runtime().block_on(house.client()));
    let in_line = || {
        let query = Query { states: vec!["queued".into()], limit: 10, ..Query::default() };
        runtime.block_on(client.sessions(query)).unwrap().sessions.len()
    };
    let mut waiting: Vec<_> = (0..3).map(|_| house.command(&["create"]).spawn().unwrap()).collect();
    until("they wait", || in_line() == 3);
    for caller in &mut waiting {
        caller.kill().unwrap();
        caller.wait().unwrap();
    }
    until("they have left the line", || in_line() == 0);
    assert!(house.run(&["rm", "-f", &first]).status.success());
    let next = house.create(600);
    assert_eq!(house.json(&["ls"])["sandboxes"].as_array().unwrap().len(), 1, "{next} and nobody else");
}

#[test]
fn callers_that_go_away_leave_nothing_open() {
    let mut house = House::new();
    house.start(None);
    let id = house.create(600);
    let pid = house.engine.as_ref().unwrap().id();
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = open();
    let mut followers: Vec<_> =
        (0..30).map(|_| house.command(&["events", "--follow", &id]).spawn().unwrap()).collect();
    until("they follow", || open() >= before + 30);
    for follower in &mut followers {
        follower.kill().unwrap();
        follower.wait().unwrap();
    }
    // The database may have opened some files of its own.
    until("they are forgotten", || open() < before + 16);
}

#[test]
fn a_run_does_not_outlive_the_engine_it_was_tied_to() {
    let mut house = House::new();
    house.start(None);
    let mut caller = house.command(&["run", "--", "sleep", "600"]).spawn().unwrap();
    until("it runs", || !house.keepers().is_empty());
    house.kill();
    assert_eq!(caller.wait().unwrap().code(), Some(125));
    house.start(None);
    until("nothing of it runs", || house.keepers().is_empty());
    assert!(house.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().is_empty());
}

#[test]
fn a_copy_is_its_owners_and_only_a_copy_is_put_back() {
    use std::os::unix::fs::PermissionsExt;
    let mut house = House::new();
    house.start(None);
    let id = house.create(600);
    let directory = house.directory.path().to_owned();
    let place = |name: &str| directory.join(name);
    let copy = place("copy.db");
    assert!(house.run(&["backup", copy.to_str().unwrap()]).status.success());
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::os::unix::fs::symlink(place("elsewhere"), place("link")).unwrap();
    assert!(!house.run(&["backup", place("link").to_str().unwrap()]).status.success());
    assert!(!place("elsewhere").exists(), "a link is not followed");
    // An engine that has come and gone, so that the copy is behind.
    for _ in 0..3 {
        house.kill();
        house.start(None);
    }
    house.kill();
    std::fs::write(place("empty"), "").unwrap();
    std::fs::write(place("text"), "no database".repeat(1000)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
    for odd in ["empty", "text", "pipe", "missing", "."] {
        let refused = house.run(&["restore", place(odd).to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(125), "{odd}: {refused:?}");
    }
    assert!(house.run(&["restore", copy.to_str().unwrap()]).status.success());
    let mode = house.home().join("engine.db").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    house.start(None);
    assert_eq!(house.shell(&id, "echo still")["stdout"], "still\n", "what lives is not taken for lost");
    assert!(house.run(&["kill", &id]).status.success());
    until("nothing of it runs", || house.keepers().is_empty());
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
