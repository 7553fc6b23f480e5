//! The ready-made sets of hosts: what the package tools inside will want to reach.
//!
//! A set is made of the addresses that the host's settings name. Where they leave a tool with the source that is built into
//! it, the tool itself is asked: no registry is named here.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use belljar_core::{Rule, SetName, Target};
use serde::Deserialize;

use super::interpreter::{Interpreter, Language};
use super::probe;
use super::settings::{Address, FORGE, PackageTool, Settings};
use super::source::{SETTINGS_LIMIT, Source};

/// What git and gh ask for beside the forge itself: its interface, archives, and files that users keep there.
const FORGE_COMPANIONS: &[&str] = &[
    "api.github.com",
    "codeload.github.com",
    "raw.githubusercontent.com",
    "media.githubusercontent.com",
    "objects.githubusercontent.com",
    "release-assets.githubusercontent.com",
];

/// Imports the one small module of pip that knows its default index, from wherever this Python keeps packages. Without
/// `site`, as no start-up file of the host's owner shall run.
const PIP_QUESTION: &str = "import sys, sysconfig
for scheme in sysconfig.get_scheme_names():
    place = sysconfig.get_path('purelib', scheme)
    if place and place not in sys.path and not scheme.endswith('user'):
        sys.path.append(place)
from pip._internal.models.index import PyPI
print(PyPI.simple_url)
print('https://' + PyPI.file_storage_domain + '/')";

/// How long a tool may take to say what it wants of the proxy.
const WORD: Duration = Duration::from_secs(5);

/// Resolves every set that can be. What cannot is told in `notes` and left out.
pub(super) fn resolve(
    source: &Source,
    settings: &Settings,
    interpreters: &[Interpreter],
    notes: &mut Vec<String>,
) -> BTreeMap<SetName, Vec<Rule>> {
    let mut sets = Sets { hosts: BTreeMap::new(), notes };
    for kept in &settings.sources {
        let set = match kept.tool {
            PackageTool::Apt => SetName::Debian,
            PackageTool::Cargo => SetName::Crates,
            PackageTool::Npm => SetName::Npm,
            PackageTool::Pip => SetName::Pypi,
            // Most of what git is told to use instead of something else has nothing to do with the forge.
            PackageTool::Git => continue,
        };
        sets.add(set, &kept.url);
    }
    let program = |language| interpreters.iter().find(|found| found.language == language);
    let asks = |tool| !settings.settled.contains(&tool);
    if let Some(python) = program(Language::Python).filter(|_| asks(PackageTool::Pip)) {
        sets.told(SetName::Pypi, "pip", pip_default(source, python));
    }
    if let Some(node) = program(Language::Node).filter(|_| asks(PackageTool::Npm)) {
        sets.told(SetName::Npm, "npm", npm_default(source, node));
    }
    if let Some(rust) = program(Language::Rust).filter(|_| asks(PackageTool::Cargo)) {
        sets.told(SetName::Crates, "cargo", cargo_default(source, &rust.program));
    }
    sets.add_downloads(source);
    sets.add_forge(&settings.forge);
    sets.hosts.into_iter().map(|(set, rules)| (set, rules.into_values().collect())).collect()
}

struct Sets<'a> {
    /// The rules of each set by their text, so that none comes twice.
    hosts: BTreeMap<SetName, BTreeMap<String, Rule>>,
    notes: &'a mut Vec<String>,
}

impl Sets<'_> {
    /// Adds the host and port of an address. A mirror of one's own, and whatever a company's name server makes of a public
    /// name, may have a private address.
    fn add(&mut self, set: SetName, url: &str) {
        let Some(address) = Address::clean(url) else { return };
        let scheme = address.url().split("://").next().unwrap_or_default();
        match format!("{scheme}://{} private", address.place()).parse::<Rule>() {
            Ok(rule) => {
                self.hosts.entry(set).or_default().insert(rule.to_string(), rule);
            }
            Err(error) => self.notes.push(format!(
                "the set {set} does not have {}, since {error}; grant it by its address.",
                address.place()
            )),
        }
    }

    /// Adds what a tool said that it uses.
    fn told(&mut self, set: SetName, tool: &str, told: Option<Vec<String>>) {
        let told = told.unwrap_or_default();
        let known = told.iter().filter(|url| Address::clean(url).is_some());
        if known.map(|url| self.add(set, url)).count() == 0 {
            self.notes.push(format!(
                "{tool} could not be asked where it fetches from, so the set {set} lacks that; grant the host by its \
                 name, or write the address into {tool}'s settings."
            ));
        }
    }

    /// A registry of crates keeps them elsewhere than its index, and the index says where. Cargo keeps what it was told.
    fn add_downloads(&mut self, source: &Source) {
        #[derive(Deserialize)]
        struct Index {
            dl: String,
        }
        let indexes: BTreeSet<String> = match self.hosts.get(&SetName::Crates) {
            Some(rules) => rules.values().filter_map(host).collect(),
            None => return,
        };
        let Some(kept) = source.directory("CARGO_HOME", ".cargo").map(|home| home.join("registry/index"))
        else {
            return;
        };
        let mut unknown = indexes;
        for name in source.names(&kept) {
            let Some((host, _)) = name.rsplit_once('-').filter(|(host, _)| unknown.contains(*host)) else {
                continue;
            };
            let Some(bytes) = source.read(&kept.join(&name).join("config.json"), SETTINGS_LIMIT) else {
                continue;
            };
            let Ok(index) = serde_json::from_slice::<Index>(&bytes) else { continue };
            unknown.remove(host);
            self.add(SetName::Crates, &without_path(&index.dl));
        }
        for host in unknown {
            self.notes.push(format!(
                "cargo has never fetched from {host} on this host, so it is not known where that keeps its crates, and \
                 the set crates may lack it; fetch any crate once, outside."
            ));
        }
    }

    /// What stands in for the forge, or else the forge with what belongs to it.
    fn add_forge(&mut self, instead: &[String]) {
        for url in instead {
            self.add(SetName::Github, url);
        }
        if instead.is_empty() {
            let hosts = [FORGE].into_iter().chain(FORGE_COMPANIONS.iter().copied());
            // By TLS only, and never at a private address, since nobody has set them up here.
            let rules = hosts.filter_map(|host| format!("https://{host}").parse::<Rule>().ok());
            self.hosts.entry(SetName::Github).or_default().extend(rules.map(|rule| (rule.to_string(), rule)));
        }
    }
}

/// The host of a rule, as cargo names what it keeps of it.
fn host(rule: &Rule) -> Option<String> {
    match &rule.target {
        Target::Host(host) => Some(host.to_string()),
        Target::Net(net) => Some(net.address().to_string()),
        Target::Set(_) => None,
    }
}

/// The scheme, host and port of an address, whose path may hold what is yet to be filled in.
fn without_path(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            format!("{scheme}://{}/", rest.split(['/', '?', '#']).next().unwrap_or_default())
        }
        None => url.to_owned(),
    }
}

fn pip_default(source: &Source, python: &Interpreter) -> Option<Vec<String>> {
    let minor = python.version.rsplit_once('.').map_or(python.version.as_str(), |(minor, _)| minor);
    // Where a pip that is not there yet would come to be.
    for packages in [format!("lib/python{minor}/site-packages"), "lib/python3/dist-packages".to_owned()] {
        source.watch(&python.prefix.join(packages).join("pip"));
    }
    probe::ask(source, &python.program, &["-I", "-S", "-c", PIP_QUESTION]).ok()
}

/// npm has no setting of its owner's before it when it answers, as it has none inside.
fn npm_default(source: &Source, node: &Interpreter) -> Option<Vec<String>> {
    let npm = node.program.with_file_name("npm");
    source.watch(&npm);
    let script = source.at(&source.canonical(&npm)?);
    // It writes logs even when it is only asked.
    let scratch = tempfile::tempdir().ok()?;
    let cache = format!("--cache={}", scratch.path().display());
    // Two names for nothing: npm refuses to read one file twice.
    let settings = ["--userconfig=/dev/null", "--globalconfig=/dev/null/none"];
    let arguments = [script.to_str()?, "config", "get", "registry", &cache, settings[0], settings[1]];
    probe::ask(source, &node.program, &arguments).ok()
}

/// Cargo has no command that tells its default index. So it is asked for a crate, with an empty home and a proxy that
/// hears which host it wants and lets nothing through.
fn cargo_default(source: &Source, cargo: &Path) -> Option<Vec<String>> {
    let home = tempfile::tempdir().ok()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let proxy = listener.local_addr().ok()?;
    let heard = thread::spawn(move || wanted(&listener.accept().ok()?.0));
    let variables = [
        ("CARGO_HOME", home.path().to_str()?),
        ("CARGO_HTTP_PROXY", &format!("http://{proxy}")),
        ("CARGO_NET_RETRY", "0"),
        ("CARGO_TERM_QUIET", "true"),
    ];
    // It fails, as it cannot fetch anything.
    let _ = probe::ask_with(source, cargo, &["info", "belljar"], &variables);
    // Whatever came of it, nobody waits any longer.
    drop(TcpStream::connect(proxy));
    let host = heard.join().ok()??;
    Some(vec![format!("https://{host}/")])
}

/// The host and port that a client of a proxy asks for.
fn wanted(client: &TcpStream) -> Option<String> {
    client.set_read_timeout(Some(WORD)).ok()?;
    let mut line = String::new();
    BufReader::new(client.take(1024)).read_line(&mut line).ok()?;
    let host = line.strip_prefix("CONNECT ")?.split(' ').next()?;
    Some(host.strip_suffix(":443").unwrap_or(host).to_owned())
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
