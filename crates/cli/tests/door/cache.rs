//! What registries serve and never change: fetched once, and had from disk by the sandboxes to come.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command_line::engine_with;
use crate::opened::{Server, create, said};
use crate::world::{OTHER, SERVER, World, until};

/// Where the servers' files are.
fn place(world: &World) -> PathBuf {
    world.home.path().join("files")
}

fn shell(directory: &Path, script: &str) {
    fs::create_dir_all(directory).unwrap();
    let output = Command::new("bash").args(["-ec", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A wheel of this name, which says something when it is imported, and its page in an index.
fn wheel(directory: &Path, name: &str, word: &str) {
    let script = format!(
        "import zipfile
with zipfile.ZipFile('{name}-1.0-py3-none-any.whl', 'w') as z:
    z.writestr(zipfile.ZipInfo('{name}.py'), 'print(\"{word}\")')
    z.writestr(zipfile.ZipInfo('filler'), 'x' * 300_000)
    z.writestr(zipfile.ZipInfo('{name}-1.0.dist-info/METADATA'), 'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n')
    z.writestr(zipfile.ZipInfo('{name}-1.0.dist-info/WHEEL'), 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr(zipfile.ZipInfo('{name}-1.0.dist-info/RECORD'), '')"
    );
    fs::create_dir_all(directory).unwrap();
    assert!(Command::new("python3").args(["-c", &script]).current_dir(directory).status().unwrap().success());
}

fn sum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

/// An index page of pip at `at` that names this file with this hash.
fn page(world: &World, at: &str, url: &str, hash: &str) {
    let directory = place(world).join(at);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("index.html"), format!("<html><a href=\"{url}#sha256={hash}\">file</a></html>"))
        .unwrap();
}

const WHEEL: &str = "tiny-1.0-py3-none-any.whl";

/// A registry of pip with one wheel, in a place of the server's.
fn with_wheel(world: &World, prefix: &str, word: &str) -> PathBuf {
    let directory = place(world).join(prefix).join("files");
    wheel(&directory, "tiny", word);
    let file = directory.join(WHEEL);
    page(world, &format!("{prefix}/simple/tiny"), &format!("../../files/{WHEEL}"), &sum(&file));
    file
}

/// Registries of npm and cargo as well.
fn with_others(world: &World) {
    let files = place(world).join("v1");
    shell(
        &files.join("npm/small/-"),
        "mkdir package; echo '{\"name\":\"small\",\"version\":\"1.0.0\"}' > package/package.json; echo 1 > package/index.js
tar czf small-1.0.0.tgz package; hash=$(openssl dgst -sha512 -binary small-1.0.0.tgz | base64 -w0)
printf '{\"name\":\"small\",\"dist-tags\":{\"latest\":\"1.0.0\"},\"versions\":{\"1.0.0\":{\"name\":\"small\",\"version\":\"1.0.0\",\"dist\":{\"tarball\":\"https://server.test/v1/npm/small/-/small-1.0.0.tgz\",\"integrity\":\"sha512-%s\"}}}}' $hash > ../../small.json",
    );
    shell(
        &files.join("crates"),
        "mkdir -p index/1 b-1.0.0/src; printf '[package]\\nname = \"b\"\\nversion = \"1.0.0\"\\n' > b-1.0.0/Cargo.toml; touch b-1.0.0/src/lib.rs
tar czf b-1.0.0.crate b-1.0.0; sum=$(sha256sum b-1.0.0.crate | cut -d' ' -f1)
echo '{\"dl\":\"https://server.test/v1/crates/{crate}-{version}.crate\"}' > index/config.json
echo '{\"name\":\"b\",\"vers\":\"1.0.0\",\"deps\":[],\"features\":{},\"yanked\":false,\"cksum\":\"'$sum'\"}' > index/1/b",
    );
}

const PIP: &str = "pip install -q --no-compile --retries 0 --disable-pip-version-check --target site";

fn kept(world: &World) -> Vec<Value> {
    world.json(&["cache", "ls"])["files"].as_array().unwrap().clone()
}

/// What of these the server was asked for.
fn files_asked(server: &Server) -> Vec<String> {
    let is_file = |line: &String| [".whl", ".tgz", ".crate "].iter().any(|ending| line.contains(ending));
    server.asked().into_iter().filter(is_file).collect()
}

#[test]
fn the_next_sandbox_fetches_no_file() {
    let world = World::new();
    with_wheel(&world, "v1", "installed");
    with_others(&world);
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let install = format!(
        "set -e
{PIP} -i https://server.test/v1/simple tiny && PYTHONPATH=site python3 -Bc 'import tiny'
npm install --silent --no-audit --no-fund --prefix node --registry https://server.test/v1/npm/ small
mkdir -p c/src && cd c && touch src/lib.rs
printf '[package]\\nname=\"a\"\\nversion=\"0.1.0\"\\n[dependencies]\\nb={{version=\"1\",registry=\"own\"}}\\n' > Cargo.toml
CARGO_HOME=$HOME/c/home cargo fetch -q --config \"registries.own.index='sparse+https://server.test/v1/crates/index/'\"
cd .. && find site node/node_modules c/home/registry/src -type f ! -name .package-lock.json ! -name .cargo-ok | sort | xargs sha256sum"
    );
    let run = |options: &[&str]| {
        let id = create(&world, &server, &[&["--allow", "server.test", "--ttl", "10m"], options].concat());
        let ran = world.json(&["exec", "--timeout", "200s", &id, "--", "sh", "-c", &install]);
        assert_eq!(ran["exit_code"], 0, "{ran}");
        (said(&ran).to_owned(), world.flows(&id))
    };
    let (first, flows) = run(&["--cache", "server.test"]);
    assert!(
        first.starts_with("installed\n") && first.contains("small/index.js") && first.contains("b-1.0.0"),
        "{first}"
    );
    assert!(flows.iter().all(|flow| flow["cached"].is_null()), "{flows:?}");
    until("all are kept", || kept(&world).len() == 3);
    let asked = files_asked(&server).len();
    assert_eq!(asked, 3);
    let (second, flows) = run(&["--cache", "server.test"]);
    assert_eq!(second, first);
    assert_eq!(files_asked(&server).len(), asked, "{:?}", server.asked());
    let had: Vec<_> = flows.iter().filter(|flow| flow["cached"].as_u64() > Some(0)).collect();
    assert_eq!(had.len(), 3, "{flows:?}");
    assert!(had.iter().all(|flow| flow["received"] == 0 && flow["verdict"] == "allowed"), "{had:?}");
    // Indexes are asked for each time.
    let indexes = server.asked().iter().filter(|line| line.contains("/simple/tiny/")).count();
    assert_eq!(indexes, 2);
    // Who does not want it does without.
    run(&[]);
    assert_eq!(files_asked(&server).len(), 2 * asked);
    // The files of one are removed by name, and fetched again.
    assert_eq!(world.json(&["cache", "rm", WHEEL])["removed"], 1);
    run(&["--cache", "server.test"]);
    assert_eq!(files_asked(&server).len(), 2 * asked + 1);
    until("it is kept again", || kept(&world).len() == 3);
    assert_eq!(world.json(&["cache", "rm", "--all"])["removed"], 3);
    assert!(kept(&world).is_empty());
}

#[test]
fn nothing_is_planted() {
    let world = World::new();
    let file = with_wheel(&world, "v1", "true");
    let whole = fs::read(&file).unwrap();
    let server = Server::start(&world, SERVER, "", &["server.test", "other.test"]);
    let _other = Server::again(&world, OTHER, &server);
    let new = || {
        create(
            &world,
            &server,
            &[
                "--allow",
                "server.test",
                "--allow",
                "other.test",
                "--cache",
                "server.test",
                "--cache",
                "other.test",
                "--ttl",
                "10m",
            ],
        )
    };
    let install = |id: &str| {
        world.json(&["exec", "--timeout", "60s", id, "--", "sh", "-c", &format!(
            "rm -rf site; {PIP} --no-cache-dir -i https://server.test/v1/simple tiny && PYTHONPATH=site python3 -Bc 'import tiny'")])
    };
    let fetch = |id: &str, url: &str| world.shell(id, &format!("curl -sS {url} | sha256sum"));
    let address = format!("https://server.test/v1/files/{WHEEL}");

    // The server has another file than its index says.
    let one = new();
    wheel(file.parent().unwrap(), "tiny", "false");
    let other = fs::read(&file).unwrap();
    assert_ne!(install(&one)["exit_code"], 0);
    assert!(kept(&world).is_empty());
    // One that breaks off.
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_ne!(install(&one)["exit_code"], 0);
    assert!(kept(&world).is_empty());

    // An index of the attacker's own says what is at the registry: it is believed of nobody else's files, and by nobody else.
    fs::write(&file, &whole).unwrap();
    let evil = place(&world).join("evil/files");
    fs::create_dir_all(&evil).unwrap();
    fs::write(evil.join(WHEEL), &other).unwrap();
    let hash = sum(&evil.join(WHEEL));
    page(&world, "evil/simple/tiny", &format!("https://other.test/evil/files/{WHEEL}"), &hash);
    page(&world, "evil/simple/lie", &address, &hash);
    world.shell(&one, "curl -sS https://other.test/evil/simple/tiny/");
    assert!(said(&fetch(&one, &format!("https://other.test/evil/files/{WHEEL}"))).starts_with(&hash));
    until("it is kept, for its own host", || kept(&world).len() == 1);
    world.shell(&one, "curl -sS https://other.test/evil/simple/lie/");
    let true_hash = sum(&file);
    assert!(said(&fetch(&one, &address)).starts_with(&true_hash), "not even by itself");
    assert_eq!(kept(&world).len(), 1, "{:?}", kept(&world));
    let two = new();
    let ran = install(&two);
    assert_eq!(said(&ran), "true\n", "{ran}");
    until("the true one is kept", || kept(&world).len() == 2);

    // Who may not go to the registry does not have its files from here.
    page(&world, "evil/simple/true", &address, &true_hash);
    let (host, other) = ("server.test", "other.test");
    let away = create(
        &world,
        &server,
        &["--allow", host, "--allow", other, "--deny", SERVER, "--cache", host, "--cache", other],
    );
    world.shell(&away, "curl -sS https://other.test/evil/simple/true/");
    let ran = world.shell(&away, &format!("curl -sS -o got -w '%{{http_code}}' {address}"));
    assert_eq!((said(&ran), &ran["denied"][0]["reason"]), ("403", &"denied_by_rule".into()), "{ran}");

    // What is spoiled on disk is not handed out, and does not stay.
    let objects = world.home.path().join("cache/objects");
    let found = Command::new("grep").args(["-rl", &address]).arg(&objects).output().unwrap();
    let path = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let three = new();
    assert_ne!(install(&three)["exit_code"], 0);
    until("it is thrown away", || !path.exists());
    assert_eq!(said(&install(&three)), "true\n");
    // Who asks for a part gets that part.
    assert_eq!(
        said(&world.shell(&three, &format!("curl -sS -r 0-1 {address} | wc -c"))).trim(),
        whole.len().to_string()
    );
}

#[test]
fn what_needs_credentials_is_for_those_who_have_them() {
    let world = World::new();
    let file = with_wheel(&world, "private", "secret");
    let hash = sum(&file);
    let address = format!("https://server.test/private/files/{WHEEL}");
    page(&world, "open/simple/tiny", &address, &hash);
    let server = Server::start(&world, SERVER, "", &["server.test"]);
    let limits = world.home.path().join("limits.toml");
    fs::write(&limits, "").unwrap();
    let _engine = engine_with(&world, &["--tenants", limits.to_str().unwrap()], &[server.believed()]);
    let of = |tenant: &str| {
        world.create(&[
            "--tenant",
            tenant,
            "--allow",
            "server.test",
            "--cache",
            "server.test",
            "--ttl",
            "10m",
        ])
    };
    let install = |id: &str, who: &str| {
        let script = format!(
            "rm -rf site; {PIP} --no-cache-dir -i https://{who}server.test/private/simple tiny </dev/null && PYTHONPATH=site python3 -Bc 'import tiny'"
        );
        world.json(&["exec", "--timeout", "60s", id, "--", "sh", "-c", &script])
    };
    let acme = of("acme");
    assert_eq!(said(&install(&acme, "ann:secret@")), "secret\n");
    until("it is kept", || kept(&world).len() == 1);
    assert_eq!(kept(&world)[0]["private"], true);
    let asked = files_asked(&server).len();
    // The same tenant with the same credentials.
    assert_eq!(said(&install(&of("acme"), "ann:secret@")), "secret\n");
    assert_eq!(files_asked(&server).len(), asked);
    // Without them, with others, and after another index has named the file and its hash.
    let again = of("acme");
    for who in ["", "ann:wrong@"] {
        assert_ne!(install(&again, who)["exit_code"], 0);
    }
    for (tenant, id) in [("acme", again), ("umbra", of("umbra"))] {
        world.shell(&id, "curl -sS https://server.test/open/simple/tiny/");
        for with in ["", "-u ann:wrong", "-H 'x-api-key: secret'"] {
            let ran = world.shell(
                &id,
                &format!("curl -sS -o got -w '%{{http_code}}' {with} {address}; ! grep -q secret got"),
            );
            assert_eq!((said(&ran), &ran["exit_code"]), ("401", &0.into()), "{tenant} {with}: {ran}");
        }
    }
    // Another tenant who has them fetches it.
    let before = files_asked(&server).len();
    assert_eq!(said(&install(&of("umbra"), "ann:secret@")), "secret\n");
    assert!(files_asked(&server).len() > before);
    until("it is kept for that one too", || kept(&world).len() == 2);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    for (options, word) in [
        (&["--cache", "pypi"][..], "--allow pypi --cache pypi"),
        (&["--replay", "x", "--cache", "server.test"], "leave `--cache` out"),
        (&["--allow", "server.test", "--cache", "GET https://server.test/x"], "name its host"),
        (&["--allow", "server.test", "--cache", "no such host"], "docs/policy-files.md"),
    ] {
        let output = world.run(&[&["create"], options].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{options:?}");
        assert!(said.contains(word) && said.contains("--cache"), "{options:?}: {said}");
    }
    let output = world.run(&["cache", "rm", "nothing"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("belljar cache ls"), "{output:?}");
    assert_eq!(world.json(&["cache", "limit"])["limit"], 10_u64 << 30);
    assert_eq!(world.json(&["cache", "limit", "1g"])["limit"], 1_u64 << 30);
}
