use std::path::PathBuf;

use super::super::settings;
use super::super::source::testing::FakeHost;
use super::*;

/// A program that plays a toolchain's, at `/opt/tool/bin`.
fn tool(host: &FakeHost, language: Language, name: &str, script: &str) -> Interpreter {
    let prefix = PathBuf::from(format!("/opt/{name}"));
    let program = prefix.join("bin").join(name);
    host.write(program.to_str().unwrap(), script, 0o755);
    Interpreter { language, program, version: "3.12.1".to_owned(), prefix }
}

fn texts(sets: &BTreeMap<SetName, Vec<Rule>>, set: SetName) -> Vec<String> {
    sets.get(&set).map(|rules| rules.iter().map(Rule::to_string).collect()).unwrap_or_default()
}

fn resolved(host: &FakeHost, tools: &[Interpreter]) -> (BTreeMap<SetName, Vec<Rule>>, Vec<String>) {
    let source = host.source(&[]);
    let mut notes = Vec::new();
    let sets = resolve(&source, &settings::read(&source, &[]), tools, &mut notes);
    (sets, notes)
}

/// Asks its proxy for a host, as cargo does, and waits for the answer.
const CARGO: &str = "#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/${CARGO_HTTP_PROXY##*:}
printf 'CONNECT index.example:443 HTTP/1.1\\r\\nHost: index.example:443\\r\\n\\r\\n' >&3
read -r answer <&3
exit 101
";

#[test]
fn what_is_set_up_is_granted_and_nobody_is_asked() {
    let host = FakeHost::new();
    settings::testing::plant(&host);
    host.write(
        "/home/ann/.cargo/registry/index/crates.example-0123456789abcdef/config.json",
        "{\"dl\": \"https://t0ken@dl.example:8443/{crate}/{version}\", \"api\": \"https://api.example\"}",
        0o644,
    );
    let never = "#!/bin/sh\nexit 1\n";
    let tools = [
        tool(&host, Language::Python, "python3", never),
        tool(&host, Language::Node, "node", never),
        tool(&host, Language::Rust, "cargo", never),
    ];
    let (sets, notes) = resolved(&host, &tools);
    let pypi = ["extra.example:443 private", "mirror.example:443 private", "two.example:443 private"];
    assert_eq!(texts(&sets, SetName::Pypi), pypi);
    assert_eq!(texts(&sets, SetName::Npm), ["corp.example:443 private", "npm.example:443 private"]);
    assert_eq!(texts(&sets, SetName::Crates), ["crates.example:443 private", "dl.example:8443 private"]);
    assert_eq!(texts(&sets, SetName::Debian), ["deb.example:443 private"]);
    assert_eq!(texts(&sets, SetName::Github), ["git.example:443 private"], "in place of the forge");
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn tools_without_settings_say_what_they_use() {
    let host = FakeHost::new();
    let script = "#!/bin/sh\necho https://index.example/simple\necho https://files.example/\n";
    let python = tool(&host, Language::Python, "python3", script);
    // It is given npm's own script, and then what to ask of it.
    let script = "#!/bin/sh\n[ \"$2 $3 $4\" = 'config get registry' ] && echo https://npm.example/\n";
    let node = tool(&host, Language::Node, "node", script);
    host.write("/opt/node/bin/npm", "", 0o755);
    let cargo = tool(&host, Language::Rust, "cargo", CARGO);
    host.write(
        "/home/ann/.cargo/registry/index/index.example-0123456789abcdef/config.json",
        "{\"dl\": \"https://static.example/crates\"}",
        0o644,
    );
    host.write(
        "/home/ann/.cargo/registry/index/other.example-0123456789abcdef/config.json",
        "{\"dl\": 7}",
        0o644,
    );
    let (sets, notes) = resolved(&host, &[python, node, cargo]);
    assert_eq!(texts(&sets, SetName::Pypi), ["files.example:443 private", "index.example:443 private"]);
    assert_eq!(texts(&sets, SetName::Npm), ["npm.example:443 private"]);
    assert_eq!(texts(&sets, SetName::Crates), ["index.example:443 private", "static.example:443 private"]);
    assert_eq!(sets.get(&SetName::Debian), None);
    let forge = texts(&sets, SetName::Github);
    assert!(forge.contains(&"github.com:443".to_owned()) && forge.contains(&"api.github.com:443".to_owned()));
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn extra_sources_do_not_replace_what_is_built_in() {
    let host = FakeHost::new();
    host.write("/etc/pip.conf", "[global]\nextra-index-url = http://10.0.0.7:3141/simple\n", 0o644);
    host.write(
        "/home/ann/.cargo/config.toml",
        "[registries.corp]\nindex = \"sparse+https://c.example/\"\n",
        0o644,
    );
    let python = tool(&host, Language::Python, "python3", "#!/bin/sh\necho https://index.example/simple\n");
    let cargo = tool(&host, Language::Rust, "cargo", CARGO);
    let (sets, notes) = resolved(&host, &[python, cargo]);
    assert_eq!(texts(&sets, SetName::Pypi), ["10.0.0.7:3141 private", "index.example:443 private"]);
    assert_eq!(texts(&sets, SetName::Crates), ["c.example:443 private", "index.example:443 private"]);
    assert!(notes.iter().all(|note| note.contains("never fetched from")) && notes.len() == 2, "{notes:?}");
}

#[test]
fn what_does_not_answer_is_a_note() {
    let host = FakeHost::new();
    let tools = [
        tool(&host, Language::Python, "python3", "#!/bin/sh\nexit 1\n"),
        tool(&host, Language::Node, "node", "#!/bin/sh\necho undefined\n"),
        tool(&host, Language::Rust, "cargo", "#!/bin/sh\nexit 101\n"),
    ];
    let (sets, notes) = resolved(&host, &tools);
    assert_eq!(sets.keys().collect::<Vec<_>>(), [&SetName::Github]);
    for (tool, note) in ["pip", "npm", "cargo"].iter().zip(&notes) {
        assert!(note.starts_with(&format!("{tool} could not be asked")) && note.contains("; "), "{note}");
    }
    assert_eq!(notes.len(), 3, "{notes:?}");
}

#[test]
fn the_tools_of_this_machine_answer() {
    let source = Source::current();
    let found = super::super::interpreter::find(&source);
    for found in &found.interpreters {
        let has = |arguments: &[&str]| probe::ask(&source, &found.program, arguments).is_ok();
        let (tool, is_there, told) = match found.language {
            Language::Python => ("pip", has(&["-m", "pip", "--version"]), pip_default(&source, found)),
            Language::Node => {
                ("npm", found.program.with_file_name("npm").exists(), npm_default(&source, found))
            }
            Language::Rust => ("cargo", true, cargo_default(&source, &found.program)),
        };
        if !is_there {
            eprintln!("NOT TRIED: {} has no {tool}", found.program.display());
            continue;
        }
        let told = told.unwrap_or_else(|| panic!("{tool} of {} does not answer", found.program.display()));
        assert!(!told.is_empty() && told.iter().all(|url| Address::clean(url).is_some()), "{tool}: {told:?}");
    }
}
