//! What people do with an engine that nobody kills.

use std::fs;

use belljar_engine::store::Query;
use serde_json::Value;

use crate::{House, counted, until};

#[test]
fn commands_go_through_the_engine_and_are_remembered() {
    let mut house = House::new();
    house.start(None);
    let ran = house.run(&["run", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((ran.status.code(), &*ran.stdout), (Some(3), &b"out\n"[..]), "{ran:?}");
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
    // The copy does not know of this one, and the sandbox does.
    assert_eq!(house.shell(&kept, "echo 2")["stdout"], "2\n");
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

impl House {
    /// What the engine remembers of a sandbox.
    fn session(&self, id: &str) -> Value {
        let listed = self.json(&["sessions", "--limit", "1000"]);
        let found = listed["sessions"].as_array().unwrap().iter().find(|session| session["id"] == id);
        found.unwrap_or_else(|| panic!("no {id}: {listed}")).clone()
    }

    /// Makes a sandbox with these options.
    fn create_with(&self, options: &[&str]) -> String {
        let made = self.json(&[&["create"], options].concat());
        made["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// The ids on one page, and where it ended.
    fn page(&self, options: &[&str]) -> (Vec<String>, Option<u64>) {
        let listed = self.json(&[&["sessions"], options].concat());
        let ids = listed["sessions"].as_array().unwrap_or_else(|| panic!("{listed}")).iter();
        (ids.map(|one| one["id"].as_str().unwrap().to_owned()).collect(), listed["cursor"].as_u64())
    }
}

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_nobody_uses_ends_and_what_is_used_does_not() {
    let mut house = House::new();
    house.start(None);
    let used = house.create_with(&["--idle", "3s"]);
    // A command that runs is use, for as long as it runs.
    house.begin(&used, "sleep 600");
    let idle = house.create_with(&["--idle", "3s"]);
    until("the idle one has ended", || house.session(&idle)["state"] == "ended");
    assert_eq!(house.session(&idle)["reason"], "idle");
    assert_eq!(house.state(&used), "running");
    let events = house.events(&idle);
    assert_eq!(events.last().unwrap()["reason"], "idle", "{events:?}");
}

#[test]
fn what_nobody_uses_is_paused_once_and_goes_on_when_it_is_resumed() {
    let mut house = House::new();
    house.start(None);
    let id = house.create_with(&["--idle", "2s", "--on-idle", "pause"]);
    until("it is paused", || house.session(&id)["state"] == "paused");
    let refused = house.json(&["exec", &id, "--", "true"]);
    assert_eq!(refused["error"]["code"], "paused", "{refused}");
    // Rounds go on: another sandbox that idles later is put to rest in one of them.
    let later = house.create_with(&["--idle", "1s"]);
    until("a later one has ended", || house.session(&later)["state"] == "ended");
    assert_eq!(counted(&house.events(&id))["paused"], 1, "once");
    // On a slow machine its time may be over again before the command comes.
    until("it goes on", || {
        assert!(house.run(&["resume", &id]).status.success());
        house.json(&["exec", &id, "--", "echo", "4"])["stdout"] == "4\n"
    });
    until("it is paused again", || house.session(&id)["state"] == "paused");
    let events = house.events(&id);
    let last = |name: &str| events.iter().rfind(|event| event["event"] == name).unwrap()["time_ms"].as_u64();
    assert!(
        last("paused") >= last("exec_finished").map(|time| time + 1_900),
        "use gives it time: {events:?}"
    );
    // The next engine knows that it stands still.
    house.kill();
    house.start(None);
    let later = house.create_with(&["--idle", "3s"]);
    until("a later one has ended", || house.session(&later)["state"] == "ended");
    assert_eq!(counted(&house.events(&id))["paused"], counted(&events)["paused"]);
    assert_eq!(house.state(&id), "paused");
}

#[test]
fn a_key_makes_one_sandbox_whoever_is_killed_meanwhile() {
    let mut house = House::new();
    house.start(None);
    let file = house.directory.path().join("file");
    fs::write(&file, "first").unwrap();
    let upload = format!("{}:file", file.display());
    let with_file = ["--key", "k 1", "--file", &upload];
    let id = house.create_with(&with_file);
    fs::write(&file, "second").unwrap();
    assert_eq!(house.create_with(&with_file), id);
    assert_eq!(house.shell(&id, "cat file; echo third > file")["stdout"], "first", "nothing is copied again");
    house.kill();
    house.start(None);
    assert_eq!(house.create_with(&with_file), id);
    assert_eq!(house.shell(&id, "cat file")["stdout"], "third\n");
    assert_ne!(house.create_with(&["--key", "k 2"]), id);
    assert_eq!(house.json(&["ls"])["sandboxes"].as_array().unwrap().len(), 2);
    // After its end as well: who asks again is told the same, and why it is of no use.
    assert!(house.run(&["rm", "-f", &id]).status.success());
    let again = house.run(&["create", "--key", "k 1"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), id);
    assert!(told(&again).contains("has ended: killed"), "{again:?}");
    assert_eq!(house.json(&["ls"])["sandboxes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_failed_copy_removes_what_this_call_made_and_nothing_else() {
    let mut house = House::new();
    house.start(None);
    let file = house.directory.path().join("file");
    fs::write(&file, "x").unwrap();
    let upload = format!("{}:/proc/none/file", file.display());
    let id = house.create_with(&["--key", "mine"]);
    assert_eq!(house.create_with(&["--key", "mine", "--file", &upload]), id);
    assert_eq!(house.state(&id), "running");
    let failed = house.run(&["create", "--key", "other", "--file", &upload]);
    assert_eq!(failed.status.code(), Some(125), "{failed:?}");
    assert!(told(&failed).contains("its key is spent"), "{failed:?}");
    let all = house.json(&["ls", "-a"]);
    assert_eq!(all["sandboxes"].as_array().unwrap().len(), 1, "{all}");
}

#[test]
fn what_needs_an_engine_says_so() {
    let house = House::new();
    for options in [["--idle", "5s"], ["--key", "k"]] {
        let refused = house.json(&[&["create"][..], &options].concat());
        assert_eq!(refused["error"]["code"], "unavailable", "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(options[0]), "{refused}");
        assert!(refused["error"]["hint"].as_str().unwrap().contains("belljar engine"), "{refused}");
    }
    let refused = house.json(&["sessions"]);
    let like = house.json(&["events", "bj-k3m9x2p4q7w8z"]);
    assert_eq!(refused, like);
    assert_eq!(refused["error"]["code"], "not_found", "{refused}");
    assert!(house.json(&["ls", "-a"])["sandboxes"].as_array().unwrap().is_empty());
}

#[test]
fn a_command_with_a_key_runs_once_with_and_without_an_engine() {
    let mut house = House::new();
    let id = house.create(600);
    for place in ["without", "with"] {
        let script = format!("echo {place} >> proof; echo said {place}");
        let once = ["exec", "-d", "--key", place, &id, "--", "sh", "-c", &script];
        let exec = house.json(&once)["exec"].as_u64().unwrap();
        let again = house.json(&once);
        assert_eq!(again["error"]["code"], "already_exists", "{again}");
        let hint = again["error"]["hint"].as_str().unwrap();
        for word in ["attach", "logs"] {
            assert!(hint.contains(&format!("belljar {word} {id} {exec}")), "{again}");
        }
        // What the hint says works.
        let said = house.run(&["attach", &id, &exec.to_string()]);
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("said {place}\n"), "{said:?}");
        if place == "without" {
            house.start(None);
        }
    }
    assert_eq!(house.shell(&id, "cat proof")["stdout"], "without\nwith\n");
}

#[test]
fn sessions_are_paged_and_filtered_and_outlast_their_sandboxes() {
    let mut house = House::new();
    house.start(None);
    let made: Vec<String> = (0..5)
        .map(|number| house.create_with(&["--label", &format!("half={}", number % 2), "--label", "all=yes"]))
        .collect();
    assert!(house.run(&["rm", "-f", &made[1]]).status.success());
    let left = house.home.join("sandboxes").join(&made[1]);
    assert!(!left.exists(), "{} is gone", left.display());
    let gone = house.session(&made[1]);
    assert_eq!((&gone["state"], &gone["reason"]), (&"ended".into(), &"killed".into()), "{gone}");
    assert!(gone["meter"]["cpu_us"]["known"].is_u64(), "{gone}");

    let (mut all, mut after, mut pages) = (Vec::new(), "1000000".to_owned(), 0);
    loop {
        let (ids, cursor) = house.page(&["--limit", "2", "--after", &after]);
        assert!(ids.len() <= 2);
        all.extend(ids);
        pages += 1;
        match cursor {
            Some(cursor) => after = cursor.to_string(),
            None => break,
        }
    }
    let newest_first: Vec<String> = made.iter().rev().cloned().collect();
    assert_eq!((all, pages), (newest_first, 3));

    let odd = vec![made[3].clone(), made[1].clone()];
    assert_eq!(house.page(&["--label", "half=1", "--label", "all=yes"]), (odd, None));
    assert_eq!(house.page(&["--label", "half=1", "--state", "ended"]).0, [made[1].clone()]);
    assert_eq!(house.page(&["--state", "running", "--state", "paused"]).0.len(), 4);
    assert_eq!(house.page(&["--tenant", "nobody"]).0.len(), 0);
    let quiet = house.run(&["sessions", "-q", "--limit", "2"]);
    assert_eq!(String::from_utf8_lossy(&quiet.stdout), format!("{}\n{}\n", made[4], made[3]));
    let table = house.run(&["sessions", "--limit", "4"]);
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(&made[1])).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("ended: killed") && line.contains("half=1"), "{line}");
    assert!(told(&table).contains("--after"), "{table:?}");
    let wrong = house.json(&["sessions", "--state", "gone"]);
    assert_eq!(wrong["error"]["code"], "invalid_argument", "{wrong}");
    assert!(wrong["error"]["hint"].as_str().unwrap().contains("queued, creating, running"), "{wrong}");
}
