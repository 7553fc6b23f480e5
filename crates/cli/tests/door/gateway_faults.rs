//! The gateway when something is not as it should be: providers that fail, keys and files that are not there, a full disk.

use std::fs;
use std::net::Shutdown;
use std::process::Command;
use std::time::Duration;

use crate::opened::{Server, create, said};
use crate::provider::{ASK, KEY, Provider, amend, calls, gateway, gateway_now, message, send, set_up};
use crate::surroundings::processes;
use crate::world::{OTHER, SERVER, World, until};

/// Whoever was asked may have done it, and wants to be paid.
#[test]
fn what_a_provider_may_have_done_counts() {
    let world = World::new();
    let provider = Provider::start(|got, stream| match got.json()["way"].as_str() {
        // Until the caller is gone.
        Some("late") => drop(std::io::Read::read(stream, &mut [0])),
        Some("broken") => drop(stream.shutdown(Shutdown::Both)),
        Some("error") => send(stream, "500 Internal Server Error", "{}"),
        _ => message(got, stream),
    });
    set_up(
        &world,
        &provider,
        "[operations.\"llm:away\"]\nkind = \"openai-chat\"\nupstream = \"http://127.0.0.1:1\"\n",
    );
    amend(&world, "max_output = 100\n", "max_output = 100\ntimeout = \"2s\"\n");
    let id = world.create(&["--grant", "llm:chat", "--grant", "llm:away", "--budget-tokens", "200"]);
    let ask = |way: &str| {
        let body = format!("BODY={{\"model\":\"small\",\"way\":\"{way}\"}}");
        world.json(&["exec", "-e", &body, &id, "--", "sh", "-c", ASK])
    };
    let away = "curl -sS -H \"x-api-key: $BELLJAR_TOKEN\" -d '{\"model\":\"m\",\"max_tokens\":100}' $BELLJAR_GATEWAY/openai/v1/chat/completions";
    let ran = world.shell(&id, away);
    assert!(said(&ran).contains("cannot be reached"), "{ran}");
    for (way, words) in
        [("error", "{}"), ("late", "did not answer within 2 s"), ("broken", "broke off before it answered")]
    {
        let ran = ask(way);
        assert!(said(&ran).contains(words), "{ran}");
    }
    assert_eq!(provider.got().len(), 3);
    let ran = ask("well");
    assert!(said(&ran).contains("budget of 200 tokens is used up"), "{ran}");
    assert_eq!(provider.got().len(), 3, "{ran}");
    until("all are told", || calls(&world, &id).len() == 5);
    let told: Vec<(String, bool)> = calls(&world, &id)
        .iter()
        .map(|call| {
            let error = call["error"].as_str().unwrap_or_default();
            let word = error.split(':').next().unwrap_or_default().to_owned();
            (word, call["counted_tokens"].as_u64().is_some_and(|count| count >= 100))
        })
        .collect();
    let expected = [
        ("upstream_unreachable", false),
        ("", false),
        ("upstream_timed_out", true),
        ("upstream_failed", true),
        ("budget_used_up", false),
    ];
    assert_eq!(told, expected.map(|(word, counts)| (word.to_owned(), counts)));
}

/// Whoever kills the gateway while it works has not got the work for nothing.
#[test]
fn calls_that_are_under_way_when_the_gateway_dies_count() {
    let world = World::new();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let provider = Provider::start(move |got, stream| {
        let _ = wait.lock().unwrap().recv();
        message(got, stream);
    });
    set_up(&world, &provider, "");
    for victim in ["gateway", "supervisor"] {
        let asked = provider.got().len();
        let id = world.create(&["--grant", "llm:chat", "--budget-requests", "1"]);
        world.json(&["exec", "-d", "--timeout", "60s", &id, "--", "sh", "-c", ASK]);
        until("it is asked", || provider.got().len() == asked + 1);
        let pid = if victim == "gateway" { gateway(&world) } else { world.door("supervisor").unwrap() };
        processes::send(pid, rustix::process::Signal::KILL);
        until("it is gone", || gateway_now(&world) != Some(pid) && world.door("supervisor") != Some(pid));
        go_on.send(()).unwrap();
        let mut ran = serde_json::Value::Null;
        until("there is another", || {
            ran = world.shell(&id, ASK);
            said(&ran).contains("Belljar refused")
        });
        assert!(said(&ran).contains("budget of 1 requests"), "{victim}: {ran}");
        assert_eq!(provider.got().len(), asked + 1, "{victim}");
        let first = &world.json(&["calls", &id])["calls"][0];
        assert!(first["error"].as_str().unwrap().contains("nobody knows how it ended"), "{victim}: {first}");
        assert!(first["counted_tokens"].as_u64() >= Some(100), "{victim}: {first}");
    }
}

/// A key is not sent before it is known to whom.
#[test]
fn a_provider_that_nobody_vouches_for_gets_no_key() {
    let world = World::new();
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let other = Server::start(&world, OTHER, "other-", &["other.test"]);
    fs::write(world.home.path().join("key"), KEY).unwrap();
    let mut config = format!("[secrets]\nkey = {{ file = \"{}/key\" }}\n", world.home.path().display());
    for (name, host) in [("good", "server.test"), ("named", "same.test"), ("unknown", "other.test")] {
        config += &format!(
            "[operations.\"data:{name}\"]\nkind = \"http\"\nupstream = \"https://{host}\"\nsecret = \"key\"\n\
             header = \"authorization\"\nvalue = \"Bearer {{}}\"\nmethods = [\"GET\"]\npaths = [\"/v1/*\"]\n"
        );
    }
    fs::write(world.home.path().join("gateway.toml"), config).unwrap();
    let grants = ["--grant", "data:good", "--grant", "data:named", "--grant", "data:unknown"];
    let id = create(&world, &server, &grants);
    let ask = |name: &str| {
        let script = format!(
            "curl -sS -H \"x-api-key: $BELLJAR_TOKEN\" -w ' %{{http_code}}' $BELLJAR_GATEWAY/data/{name}/v1/x"
        );
        world.shell(&id, &script)
    };
    for name in ["named", "unknown"] {
        let ran = ask(name);
        assert!(said(&ran).contains("cannot be reached") && said(&ran).ends_with("502"), "{ran}");
    }
    assert!(server.asked().is_empty() && other.asked().is_empty());
    until("both are told", || calls(&world, &id).len() == 2);
    for call in calls(&world, &id) {
        assert!(
            call["error"].as_str().is_some_and(|error| error.contains("certificate")),
            "why it was: {call}"
        );
    }
    assert!(said(&ask("good")).ends_with("200"), "the control");
    assert!(server.asked()[0].contains(KEY));
}

/// Keys that a command says, which may be others the next time.
#[test]
fn keys_by_command_are_got_whenever_a_gateway_starts() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let file = world.home.path().join("key");
    amend(
        &world,
        &format!("{{ file = \"{}\" }}", file.display()),
        &format!("{{ command = [\"cat\", \"{}\"] }}", file.display()),
    );
    let id = world.create(&["--grant", "llm:chat"]);
    assert!(said(&world.shell(&id, ASK)).contains("msg_1"));
    assert_eq!(provider.got()[0].header("x-api-key"), Some(KEY));
    let restart = || {
        let before = gateway(&world);
        processes::send(before, rustix::process::Signal::KILL);
        until("it is gone", || gateway_now(&world) != Some(before));
    };
    fs::write(&file, "sk-test-another").unwrap();
    restart();
    until("it is asked with the other", || {
        world.shell(&id, ASK);
        provider.got().last().and_then(|got| got.header("x-api-key").map(str::to_owned)).as_deref()
            == Some("sk-test-another")
    });
    fs::remove_file(&file).unwrap();
    restart();
    let asked = provider.got().len();
    until("it has no key", || said(&world.shell(&id, ASK)).contains("does not have the key"));
    assert_eq!(provider.got().len(), asked);
    let log = fs::read_to_string(world.home.path().join("door.log")).unwrap();
    assert!(log.contains("the command `cat`: it ended with exit status: 1"), "{log}");
    assert!(!log.contains(KEY) && !log.contains("sk-test-another"));
}

/// Whoever kept a token of a sandbox that is gone has nothing, whatever else was killed.
#[test]
fn a_token_does_not_outlive_its_sandbox() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let heir = world.create(&["--grant", "llm:chat"]);
    let kill_the_door = || {
        let parts = [gateway_now(&world), world.door("worker"), world.door("supervisor")];
        for pid in parts.into_iter().flatten().filter_map(rustix::process::Pid::from_raw) {
            // Each may be gone with another.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    };
    let with =
        |token: &str| world.json(&["exec", "-e", &format!("TOKEN={token}"), &heir, "--", "sh", "-c", ASK]);
    for ending in ["kill", "rm", "everything"] {
        let id = world.create(&["--grant", "llm:chat", "--token-ttl", "2m"]);
        let token = said(&world.shell(&id, "echo $BELLJAR_TOKEN")).trim().to_owned();
        assert!(said(&world.shell(&id, ASK)).contains("msg_1"), "the control");
        let asked = provider.got().len();
        match ending {
            "kill" => assert!(world.run(&["kill", &id]).status.success()),
            "rm" => assert!(world.run(&["rm", "-f", &id]).status.success()),
            _ => {
                // Its launcher and its monitor, and with them all that is inside.
                let lock = world.home.path().join("sandboxes").join(&id).join("lock");
                let all = processes::holding(&lock);
                assert_eq!(all.len(), 2, "{all:?}");
                all.iter().for_each(|process| processes::send(process.pid, rustix::process::Signal::KILL));
                kill_the_door();
            }
        }
        assert!(said(&with(&token)).contains("Belljar refused"), "{ending}");
        kill_the_door();
        assert!(said(&with(&token)).contains("Belljar refused"), "{ending}, and the door after it");
        assert_eq!(provider.got().len(), asked, "{ending}");
    }
    assert!(said(&world.shell(&heir, ASK)).contains("msg_1"), "its own is good");
}

/// What is not understood grants nothing, whoever reads it first.
#[test]
fn tokens_that_cannot_be_read_grant_nothing() {
    let world = World::new();
    let provider = Provider::start(message);
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat"]);
    assert!(said(&world.shell(&id, ASK)).contains("msg_1"), "the control");
    let file = world.home.path().join("sandboxes").join(&id).join("tokens.json");
    let good = fs::read(&file).unwrap();
    for bad in [&b"not what it should be"[..], b"", &good[..good.len() / 2], b"\xff\xfe[]"] {
        fs::write(&file, bad).unwrap();
        let ran = world.shell(&id, ASK);
        assert!(said(&ran).contains("Belljar refused"), "{ran}");
        processes::send(world.door("supervisor").unwrap(), rustix::process::Signal::KILL);
        let ran = world.shell(&id, ASK);
        assert!(!said(&ran).contains("msg_1"), "{ran}");
        // Nor is it made good by accident.
        let made = world.run(&["token", "create", &id, "--grant", "llm:chat"]);
        assert!(!made.status.success(), "{made:?}");
    }
    assert_eq!(provider.got().len(), 1);
    fs::write(&file, good).unwrap();
    assert!(said(&world.shell(&id, ASK)).contains("msg_1"), "what was good is good again");
}

/// What cannot be written down is not done; and once there is room again, it goes on with all that had counted.
#[test]
fn a_full_disk_makes_no_call_free() {
    let world = World::new();
    let provider = Provider::start(message);
    let home = world.home.path();
    let mount = ["-t", "tmpfs", "-o", "size=64m", "small"];
    assert!(Command::new("mount").args(mount).arg(home).status().unwrap().success());
    set_up(&world, &provider, "");
    let id = world.create(&["--grant", "llm:chat", "--budget-requests", "40"]);
    let forever = format!("while sleep 0.1; do {ASK} > said; grep -o 'written down' said >> refused; done");
    world.json(&["exec", "-d", "--timeout", "600s", &id, "--", "sh", "-c", &forever]);
    let asked = |count: usize| until("there are more calls", || provider.got().len() >= count);
    asked(1);
    let filler = home.join("filler");
    let full = fs::write(&filler, vec![1; 80 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{full}");
    // Until what was left of a page is used up too.
    let mut last = 0;
    until("no more calls are made", || {
        let (now, before) = (provider.got().len(), last);
        last = now;
        std::thread::sleep(Duration::from_secs(1));
        before == now
    });
    processes::send(world.door("supervisor").unwrap(), rustix::process::Signal::KILL);
    fs::remove_file(&filler).unwrap();
    // Whoever asks about it has the door be there again.
    world.json(&["calls", &id]);
    asked(last + 1);
    assert!(said(&world.shell(&id, "cat refused")).contains("written down"));
    let totals = || {
        world.json(&["calls", &id]);
        world.json(&["stats", &id])["sandboxes"][0]["stats"]["gateway"].clone()
    };
    until("more is refused", || totals()["refused"].as_u64() >= Some(5));
    assert_eq!((totals()["calls"].as_u64(), provider.got().len()), (Some(40), 40));
    assert!(world.run(&["rm", "-f", &id]).status.success());
    processes::send(world.door("supervisor").unwrap(), rustix::process::Signal::KILL);
    assert!(Command::new("umount").arg("--lazy").arg(home).status().unwrap().success());
}
