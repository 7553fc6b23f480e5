//! Tokens of sandboxes that run: given, extended and taken back, and what was done with them; with and without an engine.

use std::io::{Read, Write};
use std::process::Output;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command_line::engine;
use crate::provider::{ASK, Provider, message, set_up};
use crate::surroundings::processes::send;
use crate::world::{World, until};

/// What one answer of the provider costs: 1000 at 3, 200 at 0.3 and 30 at 15 dollars a million.
const COST: u64 = 3_000_000 + 60_000 + 450_000;

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// `belljar token VERB --json ...`
fn token(world: &World, words: &[&str]) -> Value {
    json_of(&world.run(&[&["token", words[0], "--json"], &words[1..]].concat()))
}

/// What a refused command says.
fn refusal(world: &World, words: &[&str]) -> String {
    let output = world.run(words);
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Asks for a message with this token; the answer, and what is told of the execution.
fn ask(world: &World, id: &str, token: &str) -> (String, Value) {
    let base = "ANTHROPIC_BASE_URL=http://gateway.belljar/anthropic";
    let ran = world.json(&["exec", "-e", base, "-e", &format!("TOKEN={token}"), id, "--", "sh", "-c", ASK]);
    (ran["stdout"].as_str().unwrap().to_owned(), ran)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_else(|| panic!("{field}: {object}"))
}

#[test]
fn a_token_is_made_used_extended_and_taken_back() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(
        &world,
        &provider,
        "[operations.\"llm:other\"]\nkind = \"openai-chat\"\nupstream = \"http://127.0.0.1:1\"\n",
    );
    let mut asked = 0;
    for by_engine in [false, true] {
        let _engine = by_engine.then(|| engine(&world, &[]));
        // Nothing was granted when it was made.
        let id = world.create(&["--net", "allowlist"]);
        let made = token(&world, &["create", &id, "--grant", "llm:chat", "--agent", "critic", "--ttl", "2m"]);
        let (secret, first) = (text(&made, "token").to_owned(), text(&made, "token_id").to_owned());
        assert!(secret.starts_with("bjt_") && made["env"]["BELLJAR_TOKEN"] == secret, "{made}");
        assert_eq!((text(&made, "state"), text(&made, "agent")), ("good", "critic"), "{made}");
        let (said, ran) = ask(&world, &id, &secret);
        assert!(said.contains("msg_1"), "engine {by_engine}: {ran}");
        // It stays within reach when the policy is changed.
        assert!(world.run(&["net", "set", &id, "--allow", "server.test"]).status.success());
        let (said, ran) = ask(&world, &id, &secret);
        assert!(said.contains("msg_1"), "engine {by_engine}: {ran}");
        asked += 2;
        // A second one, without --json: the token and nothing else, and good beside the first.
        let output = world.run(&["token", "create", &id, "--grant", "llm:chat"]);
        let second = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        assert!(second.starts_with("bjt_") && second.len() == 68 && second != secret, "{second}");
        for good in [&secret, &second] {
            assert!(ask(&world, &id, good).0.contains("msg_1"), "engine {by_engine}");
            asked += 1;
        }
        // What is listed and kept does not show them.
        let listed = world.run(&["token", "ls", &id]);
        let listed = String::from_utf8(listed.stdout).unwrap() + &token(&world, &["ls", &id]).to_string();
        let kept = std::fs::read_to_string(world.home.path().join("sandboxes").join(&id).join("tokens.json"));
        for told in [&listed, &kept.unwrap()] {
            assert!(told.contains(&first) && told.contains("llm:chat") && told.contains("critic"), "{told}");
            assert!([&secret, &second].iter().all(|token| !told.contains(&token[4..])), "{told}");
        }
        // Extended from outside, and never far ahead where an engine renews it.
        let extended = token(&world, &["extend", &id, &first, "--ttl", "3h"]);
        let ahead = extended["expires_ms"].as_u64().unwrap() - made["issued_ms"].as_u64().unwrap();
        let minutes = ahead / 60_000;
        assert!(if by_engine { minutes <= 15 } else { minutes >= 180 }, "{minutes} minutes: {extended}");
        // Taken back: that one, and no other; for good.
        assert_eq!(text(&token(&world, &["revoke", &id, &first]), "state"), "revoked");
        let (said, ran) = ask(&world, &id, &secret);
        assert!(said.contains("no longer valid"), "engine {by_engine}: {ran}");
        assert!(ask(&world, &id, &second).0.contains("msg_1"), "engine {by_engine}");
        asked += 1;
        let said = refusal(&world, &["token", "extend", &id, &first, "--ttl", "1h"]);
        assert!(said.contains("is revoked, and stays so") && said.contains("token create"), "{said}");
        assert_eq!(text(&token(&world, &["revoke", &id, &first]), "state"), "revoked");
        assert!(ask(&world, &id, &secret).0.contains("no longer valid"));
        // What does not work says what does.
        let said = refusal(&world, &["token", "create", &id, "--grant", "llm:nothing"]);
        assert!(said.contains("no operation `llm:nothing`") && said.contains("llm:chat"), "{said}");
        let said = refusal(&world, &["token", "revoke", &id, "tk-0"]);
        assert!(said.contains("no token `tk-0`") && said.contains("token ls"), "{said}");
        let walled = world.create(&[]);
        let said = refusal(&world, &["token", "create", &walled, "--grant", "llm:chat"]);
        assert!(said.contains("without a network") && said.contains("--net allowlist"), "{said}");
        // An engine's log tells of it, without the tokens.
        if by_engine {
            let events = world.json(&["events", &id])["events"].as_array().unwrap().clone();
            let about = |event: &&Value| text(event, "event").starts_with("token_");
            let told: Vec<_> = events.iter().filter(about).collect();
            let names: Vec<_> = told.iter().map(|event| text(event, "event")).collect();
            let expected =
                ["token_issued", "token_issued", "token_extended", "token_revoked", "token_revoked"];
            assert_eq!(names, expected, "{told:?}");
            assert_eq!((text(told[0], "token"), &told[0]["operations"]), (&*first, &json!(["llm:chat"])));
            // Nor are those that were handed to executions in it.
            let all = json!(events).to_string();
            assert!([&secret, &second].iter().all(|token| !all.contains(&token[4..])), "{all}");
        }
        // After the end nothing is given any more, and what was done can still be told.
        assert!(world.run(&["kill", &id]).status.success());
        let said = refusal(&world, &["token", "create", &id, "--grant", "llm:chat"]);
        assert!(said.contains("has ended"), "{said}");
        let calls = world.json(&["calls", &id]);
        assert_eq!(calls["totals"]["calls"], 5, "{calls}");
        assert_eq!(provider.got().len(), asked, "nothing else was asked");
    }
}

#[test]
fn what_was_used_adds_up() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    for by_engine in [false, true] {
        let _engine = by_engine.then(|| engine(&world, &[]));
        let id = world.create(&["--grant", "llm:chat", "--budget-requests", "4"]);
        let expected = |calls: u64, refused: u64| {
            let tokens = json!({
                "uncached": 1000 * calls, "cache_read": 200 * calls, "cache_write_5m": 0, "cache_write_1h": 0,
                "output": 30 * calls, "reasoning": 0,
            });
            let nano = COST * calls;
            json!({
                "calls": calls, "refused": refused, "tokens": tokens, "nano_dollars": nano, "unknown": 0,
                "dollars": nano as f64 / 1e9,
            })
        };
        // Nothing is told of an execution that had nothing to do with it.
        let ran = world.shell(&id, "true");
        assert!(ran.get("gateway").is_none(), "{ran}");
        // In one execution, to the token.
        let ran = world.shell(&id, &format!("{ASK}; {ASK}; TOKEN=wrong; {ASK}"));
        assert_eq!(ran["gateway"], expected(2, 1), "engine {by_engine}: {ran}");
        // In the next, two more, and two that the budget does not allow.
        let ran = world.shell(&id, &format!("for i in 1 2 3 4; do {ASK}; done"));
        assert_eq!(ran["gateway"], expected(2, 2), "engine {by_engine}: {ran}");
        assert!(ran["stdout"].as_str().unwrap().contains("budget of 4 requests"), "{ran}");
        // All together.
        let calls = world.json(&["calls", &id]);
        assert_eq!(calls["totals"], expected(4, 3), "{calls}");
        let list = calls["calls"].as_array().unwrap();
        assert_eq!(list.len(), 7);
        assert_eq!(
            (&list[0]["operation"], &list[0]["model"], &list[0]["exec"]),
            (&json!("llm:chat"), &json!("small"), &json!(2))
        );
        let later = world.json(&["calls", "--after", "5", &id]);
        assert_eq!(later["calls"].as_array().unwrap().len(), 2, "{later}");
        let stats = world.json(&["stats", &id]);
        assert_eq!(stats["sandboxes"][0]["stats"]["gateway"], expected(4, 3), "{stats}");
        let shown = String::from_utf8(world.run(&["stats", &id]).stdout).unwrap();
        assert!(shown.contains("CALLS") && shown.contains("4920") && shown.contains("$0.01404"), "{shown}");
        let shown = String::from_utf8(world.run(&["calls", &id]).stdout).unwrap();
        assert!(
            shown.contains("llm:chat") && shown.contains("$0.00351") && shown.contains("refused: "),
            "{shown}"
        );
        // Another token has a budget of its own.
        let more = token(&world, &["create", &id, "--grant", "llm:chat", "--tokens", "2000"]);
        let more = text(&more, "token");
        assert!(ask(&world, &id, more).0.contains("msg_1"));
        assert!(ask(&world, &id, more).0.contains("msg_1"), "one call may go over");
        assert!(ask(&world, &id, more).0.contains("budget of 2000 tokens"));
        // And so it is in a sandbox for one command.
        let ran = world.json(&["run", "--grant", "llm:chat", "--", "sh", "-c", ASK]);
        assert_eq!(ran["gateway"], expected(1, 0), "engine {by_engine}: {ran}");
    }
}

#[test]
fn what_streams_while_its_token_is_revoked_is_counted_and_the_next_call_is_refused() {
    let world = World::new();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let provider = Provider::start(move |_, stream| {
        let piece = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_7\",\"model\":\"small\",\"usage\":{\"input_tokens\":11,\"output_tokens\":1}}}\n\n";
        stream.write_all((head.to_owned() + &piece(start)).as_bytes()).unwrap();
        goes_on.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        let _ = stream.write_all((piece(end) + "0\r\n\r\n").as_bytes());
        let _ = stream.read(&mut [0; 1]);
    });
    set_up(&world, &provider, "[budget.session]\nrequests = 1\n");
    let id = world.create(&["--grant", "llm:chat"]);
    let token_id = token(&world, &["ls", &id])["tokens"][0]["token_id"].as_str().unwrap().to_owned();
    let body = r#"BODY={"model":"small","stream":true}"#;
    let script = format!("{ASK} -N > /tmp/out");
    let begun = world.json(&["exec", "-d", "-e", body, &id, "--", "sh", "-c", &script]);
    let exec = begun["exec"].as_u64().unwrap().to_string();
    until("it streams", || world.shell(&id, "grep -c msg_7 /tmp/out")["stdout"] == "1\n");
    assert_eq!(text(&token(&world, &["revoke", &id, &token_id]), "state"), "revoked");
    assert!(world.shell(&id, ASK)["stdout"].as_str().unwrap().contains("no longer valid"));
    // What was set aside for the call that is being made still counts for whoever comes with another token.
    let other = token(&world, &["create", &id, "--grant", "llm:chat"]);
    let (said, ran) = ask(&world, &id, text(&other, "token"));
    assert!(said.contains("budget of 1 requests"), "{ran}");
    go_on.send(()).unwrap();
    assert!(world.run(&["attach", &id, &exec]).status.success());
    let ran = world.shell(&id, "grep -c message_stop /tmp/out");
    assert_ne!(ran["stdout"], "0\n", "it came to its end: {ran}");
    let calls = world.json(&["calls", &id]);
    assert_eq!((&calls["totals"]["calls"], &calls["totals"]["refused"]), (&json!(1), &json!(2)), "{calls}");
    let tokens = &calls["totals"]["tokens"];
    assert_eq!((&tokens["uncached"], &tokens["output"]), (&json!(11), &json!(5)), "{calls}");
    let (said, ran) = ask(&world, &id, text(&other, "token"));
    assert!(said.contains("budget of 1 requests"), "what it was is still known: {ran}");
    assert_eq!(provider.got().len(), 1);
}

#[test]
fn an_engine_renews_tokens_for_a_while_and_the_next_one_goes_on() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let serving = engine(&world, &[]);
    let id = world.create(&["--grant", "llm:chat"]);
    let brief = world.create(&["--grant", "llm:chat", "--token-ttl", "1s"]);
    let record = |id: &str| token(&world, &["ls", id])["tokens"][0].clone();
    let first = record(&id);
    let ahead = first["expires_ms"].as_u64().unwrap() - first["issued_ms"].as_u64().unwrap();
    assert!(first["renewed"] == true && ahead <= 600_000, "dead within ten minutes of a crash: {first}");
    until("its own time is over", || record(&brief)["state"] == "expired");
    // The next engine renews what is good, at once, and nothing else.
    send(i32::try_from(serving.0.id()).unwrap(), Signal::KILL);
    drop(serving);
    let now = record(&id);
    assert_eq!(now["expires_ms"], first["expires_ms"], "nobody renews it: {now}");
    let _serving = engine(&world, &[]);
    until("it is renewed", || record(&id)["expires_ms"].as_u64() > first["expires_ms"].as_u64());
    assert_eq!(record(&brief)["state"], "expired");
    assert!(world.shell(&id, ASK)["stdout"].as_str().unwrap().contains("msg_1"));
    assert!(world.shell(&brief, ASK)["stdout"].as_str().unwrap().contains("no longer valid"));
}
