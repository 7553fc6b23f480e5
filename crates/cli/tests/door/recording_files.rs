//! Files of recordings: whose they are, and what those do that others made.

use belljar_network::recording::{Entry, Exchange, Meta, Writer};

use crate::opened::said;
use crate::world::{HttpServer, SERVER, World};

#[test]
fn a_recording_is_one_sandboxes() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let record = ["create", "--allow", "server.test", "--record", "own"];
    let both: Vec<_> = (0..2).map(|_| world.command(&record).spawn().unwrap()).collect();
    let both: Vec<_> = both.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let good: Vec<_> = both.iter().filter(|output| output.status.success()).collect();
    assert_eq!(good.len(), 1, "{both:?}");
    let id = String::from_utf8(good[0].stdout.clone()).unwrap().trim().to_owned();
    let ran = world.shell(&id, "curl -sS http://server.test/first");
    assert!(said(&ran).starts_with("served"), "{ran}");
    let output = world.run(&["recording", "rm", "own"]);
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("belljar ls"),
        "{output:?}"
    );
    let file = world.home.path().join("recordings/own.bjr");
    let path = file.to_str().unwrap();
    assert!(!world.run(&["recording", "export", "--format", "bjr", "own", path]).status.success());
    assert!(file.metadata().unwrap().len() > 100);

    // Somebody takes it away all the same, and another sandbox is recorded under its name; then everybody dies.
    std::fs::remove_file(&file).unwrap();
    let other = world.create(&["--allow", "server.test", "--record", "own"]);
    world.shell(&other, "curl -sS http://server.test/others");
    for part in ["worker", "supervisor"] {
        crate::surroundings::processes::send(world.door(part).unwrap(), rustix::process::Signal::KILL);
    }
    let third = world.create(&["--allow", "server.test"]);
    assert!(said(&world.shell(&third, "curl -sS http://server.test/third")).starts_with("served"));
    let ran = world.shell(&other, "curl -sS --max-time 20 http://server.test/again");
    assert!(said(&ran).starts_with("served"), "{ran}");
    let ran = world.shell(&id, "curl -sS --max-time 3 http://server.test/lost");
    assert_ne!(ran["exit_code"], 0, "what cannot be recorded does not happen: {ran}");
    for id in [&id, &other] {
        assert!(world.run(&["rm", "-f", id]).status.success());
    }
    let shown = String::from_utf8(world.run(&["recording", "show", "own"]).stdout).unwrap();
    let has = |word: &str| shown.contains(word);
    assert!(has("/others") && has("/again") && !has("/lost") && !has("/first"), "{shown}");
    assert!(world.run(&["recording", "rm", "own"]).status.success());
}

#[test]
fn long_uploads_are_known_again() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let upload = "head -c 3000000 /dev/zero | curl -sS --data-binary @- http://server.test/up";
    let id = world.create(&["--allow", "server.test", "--record", "up"]);
    let first = world.shell(&id, upload);
    assert!(said(&first).starts_with("served POST /up"), "{first}");
    assert!(world.run(&["rm", "-f", &id]).status.success());
    let id = world.create(&["--replay", "up"]);
    let again = world.shell(&id, upload);
    assert_eq!(said(&again), said(&first), "{again}");
}

/// Somebody else's recording says nothing about a sandbox but what its network says.
#[test]
fn others_recordings_set_nothing() {
    let world = World::new();
    let file = world.home.path().join("theirs.bjr");
    let open =
        std::fs::OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&file).unwrap();
    let mut writer = Writer::new(open, 1 << 20).unwrap();
    let env = [
        ("LD_PRELOAD", "/tmp/x.so"),
        ("NODE_OPTIONS", "--x"),
        ("OPENAI_BASE_URL", "http://x\n"),
        ("OPENAI_API_KEY", "k"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    writer.entry(&Entry::Meta(Meta { sandbox: "bj-x".into(), at_ms: 1, env })).unwrap();
    let target = "/x\nallowed  http://server.test/forged\x1b[2J".to_owned();
    let exchange = Exchange {
        host: "server.test".into(),
        port: 80,
        method: "GET".into(),
        target,
        status: 200,
        ..Exchange::default()
    };
    writer.entry(&Entry::Exchange(Box::new(exchange))).unwrap();
    writer.finish().unwrap();
    assert!(world.run(&["recording", "import", file.to_str().unwrap(), "theirs"]).status.success());
    let id = world.create(&["--replay", "theirs"]);
    let ran = world.shell(&id, "env | grep -E '^(LD_PRELOAD|NODE_OPTIONS|OPENAI)' | sort");
    assert_eq!(said(&ran), "OPENAI_API_KEY=k\n", "{ran}");
    for words in
        [&["recording", "show", "theirs"][..], &["policy", "test", "--net", "open", "--recording", "theirs"]]
    {
        let output = world.run(words).stdout;
        let text = String::from_utf8(output).unwrap();
        assert!(
            text.contains("forged")
                && !text.contains('\x1b')
                && !text.contains("\nallowed  http://server.test/forged"),
            "{text}"
        );
    }
}
