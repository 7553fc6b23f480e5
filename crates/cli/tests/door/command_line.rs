//! What the commands say of it, with and without an engine.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::world::{HttpServer, PRIVATE, Program, SERVER, World};

/// Looks up a name that nobody may know.
const LOOK_UP: [&str; 3] = ["getent", "hosts", "other.test"];

/// The notices about what was denied.
fn notices(output: &Output) -> usize {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    stderr
        .lines()
        .filter(|line| line.starts_with("belljar: denied ") && line.contains("--allow 'other.test'"))
        .count()
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An engine that serves the world from now on.
pub fn engine(world: &World, options: &[&str]) -> Program {
    engine_with(world, options, &[])
}

/// The same with variables.
pub fn engine_with(world: &World, options: &[&str], variables: &[(&str, &Path)]) -> Program {
    let mut command = world.command(&[&["engine"], options].concat());
    let mut child = command.envs(variables.iter().copied()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("serving "), "{said}");
    Program(child)
}

#[test]
fn what_was_denied_is_said_once() {
    let world = World::new();
    let told = |words: &[&str]| world.run(&[words, &["--"], &LOOK_UP].concat());
    let output = told(&["run", "--allow", "server.test"]);
    assert_eq!((notices(&output), output.stdout.len()), (1, 0), "{output:?}");
    assert_eq!(notices(&told(&["run", "--quiet", "--allow", "server.test"])), 0);
    let output = told(&["run", "--json", "--allow", "server.test"]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((notices(&output), object["denied"].as_array().unwrap().len()), (0, 1), "{object}");

    let id = world.create(&["--allow", "server.test"]);
    for engine in [None, Some(engine(&world, &[]))] {
        let by = if engine.is_some() { "an engine" } else { "itself" };
        assert_eq!(notices(&told(&["exec", &id])), 1, "by {by}");
        let object: Value = serde_json::from_slice(&told(&["exec", "--json", &id]).stdout).unwrap();
        assert_eq!(object["denied"][0]["reason"], "not_listed", "by {by}: {object}");
    }
}

#[test]
fn a_policy_is_shown_and_changed_and_what_came_of_it_is_told() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let file = world.home.path().join("policy.toml");
    std::fs::write(&file, "mode = \"allowlist\"\nallow = [\"other.test\"]\n[limits]\nconnections = 5\n")
        .unwrap();
    let file = file.to_str().unwrap();
    let ask = "curl -sS --max-time 10 http://server.test/";
    for engine in [None, Some(engine(&world, &[]))] {
        let asked = server.asked().len();
        let id = world.create(&["--policy", file]);
        assert_ne!(world.shell(&id, ask)["exit_code"], 0);
        let shown = text(world.run(&["net", "show", &id]));
        assert!(
            shown.starts_with("mode    allowlist\nallow   other.test\nlimits  connections 5,"),
            "{shown}"
        );
        let object = world.json(&["net", "set", &id, "--allow", "server.test:80"]);
        assert_eq!(object["policy"]["allow"], serde_json::json!(["server.test:80"]), "{object}");
        assert_eq!(world.shell(&id, ask)["exit_code"], 0);
        assert_eq!(server.asked().len(), asked + 1);

        let table = text(world.run(&["egress", &id]));
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("TIME ") && lines[0].ends_with(" IN"), "{table}");
        assert!(
            lines.iter().any(|line| line.contains("dns") && line.contains("denied: not_listed")),
            "{table}"
        );
        let served = |line: &&&str| line.contains("server.test:80 GET /") && line.contains(" allowed ");
        assert_eq!(lines.iter().filter(served).count(), 1, "{table}");

        let flows = world.flows(&id);
        let last = flows.last().unwrap()["seq"].as_u64().unwrap();
        let follow = ["egress", "--follow", "--json", "--after", &(last - 1).to_string(), &id];
        let mut following = Program(world.command(&follow).spawn().unwrap());
        let mut heard = BufReader::new(following.0.stdout.take().unwrap()).lines();
        let first: Value = serde_json::from_str(&heard.next().unwrap().unwrap()).unwrap();
        assert_eq!(first, *flows.last().unwrap());
        world.shell(&id, &LOOK_UP.join(" "));
        let next: Value = serde_json::from_str(&heard.next().unwrap().unwrap()).unwrap();
        assert_eq!((&next["host"], &next["verdict"]), (&"other.test".into(), &"denied".into()), "{next}");
        if engine.is_some() {
            let events = text(world.run(&["events", &id]));
            assert!(events.contains("network_set") && events.contains("server.test:80"), "{events}");
        }
        text(world.run(&["rm", "-f", &id]));
        assert!(heard.all(|line| line.is_ok()), "it ends with the sandbox");
        assert!(following.0.wait().unwrap().success());
    }
}

#[test]
fn what_was_made_without_a_network_stays_without() {
    let world = World::new();
    let id = world.create(&[]);
    let output = world.run(&["net", "set", &id, "--allow", "server.test"]);
    assert_eq!(output.status.code(), Some(125));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.starts_with("error: ") && stderr.contains("hint: "), "{stderr}");
    assert_eq!(text(world.run(&["net", "show", &id])), "mode    none\n");
}

#[test]
fn a_set_grants_what_the_tool_is_set_up_with_and_nothing_else() {
    let world = World::new();
    let mirror = HttpServer::start(&format!("{PRIVATE}:8081"));
    let with_mirror = |words: &[&str]| {
        let mut command = world.command(words);
        command.env("PIP_INDEX_URL", "http://ann:s3cret@mirror.test:8081/simple");
        command.env_remove("PIP_EXTRA_INDEX_URL").output().unwrap()
    };
    let id = text(with_mirror(&["create", "--allow", "pypi"])).trim().to_owned();
    let shown = text(world.run(&["net", "show", &id]));
    assert!(shown.starts_with("mode    allowlist\nallow   mirror.test:8081 private\nlimits "), "{shown}");
    let ask = |place: &str| world.shell(&id, &format!("curl -sS --max-time 10 http://{place}/simple/"));
    let served = ask("mirror.test:8081");
    assert_eq!(served["stdout"], "served GET /simple/ HTTP/1.1 for mirror.test:8081\n", "{served}");
    for place in ["rebound.test:8081", "mirror.test:80", &format!("{PRIVATE}:8081")] {
        let denied = ask(place);
        assert!(!denied["denied"].as_array().unwrap().is_empty(), "{place}: {denied}");
    }
    assert_eq!(mirror.asked().len(), 1, "{:?}", mirror.asked());
}
