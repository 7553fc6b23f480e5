//! The gateway: calls that need a key, from sandboxes that have none.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::provider::{ASK, KEY, Provider, amend, calls, gateway, message, search_inside, set_up};
use crate::world::{HttpServer, SERVER, World, until};

#[test]
fn a_call_is_made_with_the_key_and_the_key_is_nowhere_inside() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let body = r#"{"model":"small","max_tokens":64000,"unknown":{"a":1.50}}"#;
    let ran = world.json(&["exec", "-e", &format!("BODY={body}"), &id, "--", "sh", "-c", ASK]);
    let said: Value =
        serde_json::from_str(ran["stdout"].as_str().unwrap()).unwrap_or_else(|_| panic!("{ran}"));
    assert_eq!(said["usage"]["output_tokens"], 30, "{ran}");
    // The provider says back what it got, and its key is not among it.
    assert!(!ran["stdout"].as_str().unwrap().contains(KEY), "{ran}");
    let got = &provider.got()[0];
    assert_eq!(got.header("x-api-key"), Some(KEY));
    assert_eq!(got.body, r#"{"model":"small","max_tokens":100,"unknown":{"a":1.50}}"#);
    assert!(!format!("{got:?}").contains("bjt_"), "the token stays here: {got:?}");
    // What it cost, to the token: 1000 at 3, 200 at 0.3 and 30 at 15 dollars a million.
    until("it is told", || calls(&world, &id).len() == 1);
    let call = &calls(&world, &id)[0];
    assert_eq!(
        (call["nano_dollars"].as_u64(), call["is_final"].as_bool()),
        (Some(3_000_000 + 60_000 + 450_000), Some(true)),
        "{call}"
    );
    assert_eq!((call["operation"].as_str(), call["exec"].as_u64()), (Some("llm:chat"), Some(1)), "{call}");
    search_inside(&world, &id);
    // Nor is it, or the token, where we write things down.
    let token = world.shell(&id, "echo $BELLJAR_TOKEN")["stdout"].as_str().unwrap().trim().to_owned();
    assert!(token.starts_with("bjt_"));
    let written = std::process::Command::new("grep")
        .args(["-rlaF", "-e", KEY, "-e", &token, "--exclude=key", "--exclude-dir=spool"])
        .arg(world.home.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&written.stdout), "", "only its hash is kept");
}

#[test]
fn a_token_is_good_for_one_sandbox_and_for_as_long_as_it_says() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat", "--token-ttl", "5m"]);
    let token = world.shell(&id, "echo $BELLJAR_TOKEN")["stdout"].as_str().unwrap().trim().to_owned();
    let refused = |id: &str, token: &str| {
        let ran = world.json(&["exec", "-e", &format!("TOKEN={token}"), id, "--", "sh", "-c", ASK]);
        let answer: Value =
            serde_json::from_str(ran["stdout"].as_str().unwrap()).unwrap_or_else(|_| panic!("{ran}"));
        assert_eq!(answer["error"]["type"], "permission_error", "{ran}");
    };
    // The control.
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
    // From another sandbox, although that has a token of its own.
    let other = world.create(&["--grant", "llm:chat"]);
    refused(&other, &token);
    for worthless in ["bjt_", "x", "null", &token.to_uppercase(), &token[..40]] {
        refused(&id, worthless);
    }
    // After its time.
    let brief = world.create(&["--grant", "llm:chat", "--token-ttl", "1s"]);
    let waiting = format!("sleep 1.2; {ASK}");
    let ran = world.shell(&brief, &waiting);
    assert!(ran["stdout"].as_str().unwrap().contains("no longer valid"), "{ran}");
    assert_eq!(provider.got().len(), 1, "nothing of it was asked");
    // After everything was killed, the same token is good again for the rest of its time, and no longer.
    for part in ["worker", "supervisor"] {
        crate::surroundings::processes::send(world.door(part).unwrap(), rustix::process::Signal::KILL);
    }
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("msg_1"), "{ran}");
    refused(&other, &token);
    let ran = world.shell(&brief, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("no longer valid"), "{ran}");
}

#[test]
fn what_is_not_granted_is_refused_told_and_survived() {
    let world = World::new();
    let provider = Provider::start(message);
    let canary = HttpServer::start(&format!("{SERVER}:80"));
    set_up(
        &world,
        &provider,
        "[operations.\"llm:other\"]\nkind = \"openai-chat\"\nupstream = \"http://127.0.0.1:1\"\n",
    );
    let id = world.create(&["--grant", "llm:chat"]);
    let ask = |path: &str, more: &str| {
        let script =
            format!("curl -sS --path-as-is --max-time 20 -H \"x-api-key: $BELLJAR_TOKEN\" {more} '{path}'");
        world.shell(&id, &script)["stdout"].as_str().unwrap().to_owned()
    };
    let base = "http://gateway.belljar";
    let model = |name: &str| format!("-d '{{\"model\":\"{name}\"}}'");
    let small = model("small");
    for (path, more) in [
        (format!("{base}/openai/v1/chat/completions"), &small),
        (format!("{base}/anthropic/v1/files"), &small),
        (format!("{base}/anthropic/v1/messages/../files"), &small),
        (format!("{base}/anthropic/v1/messages%2f..%2ffiles"), &small),
        (format!("{base}/anthropic//v1/messages"), &small),
        (format!("{base}/ANTHROPIC/v1/messages"), &small),
        (format!("{base}/anthropic/v1/messages"), &model("large")),
        (format!("{base}/anthropic/v1/messages"), &"-X DELETE".to_owned()),
        (format!("{base}/anthropic/v1/messages"), &format!("-H 'authorization: Bearer other' {small}")),
        (format!("{base}/anthropic/v1/messages"), &format!("-H 'content-encoding: gzip' {small}")),
        (
            format!("{base}/anthropic/v1/messages"),
            &"-d '{\"model\":\"small\",\"Model\":\"large\"}'".to_owned(),
        ),
        (
            format!("{base}/anthropic/v1/messages"),
            &"-d '{\"model\":\"small\",\"mcp_servers\":[{\"url\":\"http://server.test\"}]}'".to_owned(),
        ),
        (format!("{base}/{SERVER}/"), &small),
    ] {
        let said = ask(&path, more);
        assert!(
            said.contains("Belljar refused") && said.contains("Do not try another route"),
            "{path} {more}: {said}"
        );
    }
    assert_eq!((provider.got().len(), canary.asked().len()), (0, 0));
    until("all are told", || calls(&world, &id).len() >= 10);
    assert!(calls(&world, &id).iter().all(|call| call["refused"] == true && call["error"].is_string()));
    // It goes on.
    assert!(ask(&format!("{base}/anthropic/v1/messages"), &small).contains("msg_1"));
}

#[test]
fn a_budget_holds_against_many_at_once() {
    let world = World::new();
    let provider = Provider::start(|got, stream| {
        std::thread::sleep(Duration::from_millis(30));
        message(got, stream);
    });
    set_up(&world, &provider, "[budget.session]\nrequests = 10\n");
    let id = world.create(&["--grant", "llm:chat"]);
    let script = format!("for i in $(seq 100); do {ASK} -o /tmp/out.$i -w '%{{http_code}}\\n' & done; wait");
    let ran = world.json(&["exec", "--timeout", "120s", &id, "--", "sh", "-c", &script]);
    let said = ran["stdout"].as_str().unwrap();
    assert_eq!((said.matches("200").count(), said.matches("402").count()), (10, 90), "{ran}");
    assert_eq!(provider.got().len(), 10);
    // A gateway that dies forgets nothing of what was spent.
    crate::surroundings::processes::send(gateway(&world), rustix::process::Signal::KILL);
    let ran = world.shell(&id, ASK);
    assert!(ran["stdout"].as_str().unwrap().contains("budget of 10 requests"), "{ran}");
}

#[test]
fn a_stream_passes_as_it_comes_and_ends_when_nobody_listens() {
    let world = World::new();
    let (told, ended) = std::sync::mpsc::channel();
    let told = Mutex::new(told);
    let provider = Provider::start(move |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let event = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_7\",\"model\":\"small\",\"usage\":{\"input_tokens\":11,\"output_tokens\":1}}}\n\n";
        let piece = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        stream.write_all(piece(event).as_bytes()).unwrap();
        // Nothing more, until somebody hangs up.
        let ended = stream.read(&mut [0; 1]);
        let _ = told.lock().unwrap().send(matches!(ended, Ok(0) | Err(_)));
    });
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    // What has come is there although the rest has not; then the client goes away.
    let script = format!(
        "{ASK} -N > /tmp/out & pid=$!; until grep -q msg_7 /tmp/out 2>/dev/null; do sleep 0.02; done; kill -9 $pid; echo seen"
    );
    let ran = world.shell(&id, &script);
    assert_eq!(ran["stdout"], "seen\n", "{ran}");
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(true), "the provider was told");
    until("it is told", || calls(&world, &id).len() == 1);
    let call = &calls(&world, &id)[0];
    assert_eq!(
        (call["usage"]["uncached"].as_u64(), call["is_final"].as_bool()),
        (Some(11), Some(false)),
        "{call}"
    );
}

#[test]
fn a_redirect_is_not_followed_and_a_key_goes_nowhere_else() {
    let world = World::new();
    let canary = Provider::start(message);
    let elsewhere = format!("http://127.0.0.1:{}/v1/messages", canary.port);
    let provider = Provider::start(move |_, stream| {
        let _ = stream.write_all(
            format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n")
                .as_bytes(),
        );
    });
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    let ran = world.shell(&id, &format!("{ASK} -L -w '%{{http_code}}'"));
    assert!(ran["stdout"].as_str().unwrap().contains("307") || ran["exit_code"] != 0, "{ran}");
    assert_eq!((provider.got().len(), canary.got().len()), (1, 0));
    // Whatever host the request names, the key goes where the configuration says.
    let script = format!(
        "{ASK} -H 'Host: gateway.belljar' -H 'X-Forwarded-Host: server.test' -H 'Forwarded: host=server.test' -o /dev/null -w '%{{http_code}}'"
    );
    let ran = world.shell(&id, &script);
    assert_eq!(ran["stdout"], "307", "{ran}");
    let got = provider.got();
    assert!(got[1].header("x-forwarded-host").is_none() && got[1].header("forwarded").is_none(), "{got:?}");
    assert!(got[1].header("host").unwrap().starts_with("127.0.0.1:"), "{got:?}");
}

#[test]
fn what_is_not_set_up_is_said() {
    let world = World::new();
    let ran = world.run(&["run", "--grant", "llm:chat", "--", "true"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        !ran.status.success() && said.contains("gateway.toml") && said.contains("gateway check"),
        "{said}"
    );
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let ran = world.run(&["run", "--grant", "llm:nothing", "--", "true"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("no operation `llm:nothing`") && said.contains("it has: llm:chat"), "{said}");
    let checked = world.json(&["gateway", "check"]);
    assert_eq!(checked["operations"][0]["name"], "llm:chat", "{checked}");
    assert_eq!(checked["missing"], json!([]), "{checked}");
    // A key that is not there is no reason not to start, and a plain answer.
    std::fs::remove_file(world.home.path().join("key")).unwrap();
    let ran = world.json(&["run", "--grant", "llm:chat", "--", "sh", "-c", ASK]);
    assert!(ran["stdout"].as_str().unwrap().contains("does not have the key"), "{ran}");
    let checked = world.run(&["gateway", "check"]);
    let (said, complaint) =
        (String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
    assert!(said.contains("llm:chat") && complaint.contains("the key `key` is missing"), "{said}{complaint}");
    assert_eq!(checked.status.code(), Some(1));
}

#[test]
fn commands_about_a_sandbox_do_not_give_it_more() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    amend(&world, "max_output = 100\n", "max_output = 100\nrequests_per_minute = 3\n");
    let id = world.create(&["--grant", "llm:chat"]);
    let status = format!("{ASK} -o /dev/null -w '%{{http_code}} '");
    let said: String = (0..3)
        .map(|_| world.shell(&id, &format!("{status}; {status}"))["stdout"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, "200 200 200 429 429 429 ");
}

#[test]
fn a_call_that_is_long_to_tell_is_told_and_counted() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "[budget.session]\nrequests = 2\n");
    amend(&world, "models = [\"small\"]\n", "");
    let id = world.create(&["--grant", "llm:chat"]);
    let before = {
        world.shell(&id, ASK);
        gateway(&world)
    };
    let script = "python3 -c \"print('{\\\"model\\\":\\\"' + 'm' * 20000 + '\\\"}')\" > body; \
                  ask() { curl -sS -o /dev/null -w '%{http_code} ' -H \"x-api-key: $BELLJAR_TOKEN\" -d @body $ANTHROPIC_BASE_URL/v1/messages; }; ask; ask";
    let ran = world.shell(&id, script);
    assert_eq!(ran["stdout"], "200 402 ", "{ran}");
    assert_eq!(gateway(&world), before, "it lives");
    until("all are told", || calls(&world, &id).len() == 3);
}
