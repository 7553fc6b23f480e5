//! Finds python, node and rust wherever the host keeps them, and decides what of it a sandbox may see.
//!
//! A name on `PATH` is often a shim of a version manager or a virtual environment. The program itself is asked where
//! it lives; exactly that directory is mounted, at the same path, and nothing above it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::accounts;
use super::prefix::{self, Refusal};
use super::probe::{self, ProbeError};
use super::source::Source;

/// A language whose toolchain the template looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// `python3`
    Python,
    /// `node`
    Node,
    /// `cargo` and `rustc`
    Rust,
}

/// A toolchain that a sandbox can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// The language.
    pub language: Language,
    /// The real program, no shim, at the same path inside and outside.
    pub program: PathBuf,
    /// Its version, as it says it.
    pub version: String,
    /// The directory the toolchain lives in; `/usr` if it came with the system.
    pub prefix: PathBuf,
}

impl Interpreter {
    /// True if it lives outside `/usr` and so needs a mount of its own.
    pub(super) fn needs_mount(&self) -> bool {
        !self.prefix.starts_with("/usr")
    }
}

/// What a search of the host gave.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) interpreters: Vec<Interpreter>,
    /// Other names of a prefix (`versions/3.11` for `versions/3.11.7`), which scripts inside it may use.
    pub(super) aliases: Vec<(PathBuf, PathBuf)>,
    pub(super) notes: Vec<String>,
}

/// What a program says of itself, before it is believed.
struct Answer {
    prefix: PathBuf,
    program: PathBuf,
    version: String,
}

/// More programs of one name than this are not asked.
const CANDIDATE_LIMIT: usize = 6;

const PYTHON_QUESTION: &str = "import os, sys
print(sys.base_prefix)
print(os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable))
print('%d.%d.%d' % sys.version_info[:3])";

const NODE_QUESTION: &str = "console.log(process.execPath); console.log(process.version)";

/// Looks for every language. What is missing is a note, never an error.
pub(super) fn find(source: &Source) -> Found {
    let homes = accounts::homes(source);
    let mut found = Found::default();
    for language in [Language::Python, Language::Node, Language::Rust] {
        find_one(source, language, &homes, &mut found);
    }
    found
}

fn find_one(source: &Source, language: Language, homes: &[PathBuf], found: &mut Found) {
    let command = language.command();
    for candidate in candidates(source, language) {
        let shown = candidate.display();
        let answer = match language.ask(source, &candidate) {
            Ok(answer) => answer,
            Err(error) => {
                found.notes.push(format!("{shown} {error}; run `{shown} --version` on the host to see why."));
                continue;
            }
        };
        let stated = answer.prefix.clone();
        match accept(source, language, answer, homes) {
            Ok(interpreter) => {
                if interpreter.needs_mount() && prefix::is_alias(&stated, &interpreter.prefix) {
                    found.aliases.push((stated, interpreter.prefix.clone()));
                }
                found.interpreters.push(interpreter);
                return;
            }
            Err(refusal) => found.notes.push(format!(
                "{command} lives in {}, which is not shown to sandboxes because {refusal}; install it in a \
                 directory of its own (a version manager does).",
                stated.display()
            )),
        }
    }
    found.notes.push(format!(
        "no usable {command} was found on this host, so sandboxes have none; install {command} or add its directory \
         to PATH."
    ));
}

impl Language {
    fn command(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Rust => "cargo",
        }
    }

    fn ask(self, source: &Source, candidate: &Path) -> Result<Answer, ProbeError> {
        match self {
            Self::Python => {
                // Isolated and without `site`: no start-up file of the host's owner runs.
                let lines = probe::ask(source, candidate, &["-I", "-S", "-c", PYTHON_QUESTION])?;
                let [prefix, program, version, ..] = lines.as_slice() else { return Err(ProbeError::Answer) };
                Ok(Answer { prefix: prefix.into(), program: program.into(), version: version.clone() })
            }
            Self::Node => {
                let lines = probe::ask(source, candidate, &["-e", NODE_QUESTION])?;
                let [program, version, ..] = lines.as_slice() else { return Err(ProbeError::Answer) };
                let program = PathBuf::from(program);
                let prefix = match program.parent() {
                    Some(bin) if bin.ends_with("bin") => bin.parent().map(Path::to_owned),
                    _ => None,
                };
                Ok(Answer {
                    prefix: prefix.ok_or(ProbeError::Answer)?,
                    program,
                    version: version.trim_start_matches('v').to_owned(),
                })
            }
            Self::Rust => {
                let compiler = candidate.with_file_name("rustc");
                source.watch(&compiler);
                let sysroot = probe::ask(source, &compiler, &["--print", "sysroot"])?;
                let prefix = PathBuf::from(sysroot.first().ok_or(ProbeError::Answer)?);
                let program = prefix.join("bin/cargo");
                if !source.is_file(&program) {
                    return Err(ProbeError::Answer);
                }
                let version = probe::ask(source, &prefix.join("bin/rustc"), &["--version"])?;
                let version = version.first().and_then(|line| line.split_whitespace().nth(1));
                Ok(Answer { program, prefix, version: version.ok_or(ProbeError::Answer)?.to_owned() })
            }
        }
    }

    /// Where version managers keep the program when `PATH` does not say: directories, each with what it holds.
    fn known_places(self, source: &Source) -> Vec<PathBuf> {
        let mise = source
            .var("MISE_DATA_DIR")
            .map(PathBuf::from)
            .or_else(|| source.directory("XDG_DATA_HOME", ".local/share").map(|data| data.join("mise")));
        let asdf = source.directory("ASDF_DATA_DIR", ".asdf").map(|root| root.join("shims"));
        let (shims, versions) = match self {
            Self::Python => {
                let pyenv = source.directory("PYENV_ROOT", ".pyenv");
                (
                    [pyenv.as_ref().map(|root| root.join("shims")), asdf],
                    [pyenv.map(|root| root.join("versions")), mise.map(|root| root.join("installs/python"))],
                )
            }
            Self::Node => (
                [source.directory("VOLTA_HOME", ".volta").map(|root| root.join("bin")), asdf],
                [
                    source.directory("NVM_DIR", ".nvm").map(|root| root.join("versions/node")),
                    mise.map(|root| root.join("installs/node")),
                ],
            ),
            Self::Rust => (
                [source.directory("CARGO_HOME", ".cargo").map(|root| root.join("bin")), None],
                [source.directory("RUSTUP_HOME", ".rustup").map(|root| root.join("toolchains")), None],
            ),
        };
        let mut places: Vec<PathBuf> = shims.into_iter().flatten().collect();
        for parent in versions.into_iter().flatten() {
            let mut names = source.names(&parent);
            names.sort_by_key(|name| std::cmp::Reverse(version_order(name)));
            places.extend(names.into_iter().map(|name| parent.join(name).join("bin")));
        }
        places
    }
}

/// Every program of the language's name, in the order in which it is tried, each file once.
fn candidates(source: &Source, language: Language) -> Vec<PathBuf> {
    if let Some(pyenv) = source.directory("PYENV_ROOT", ".pyenv") {
        source.watch(&pyenv.join("version"));
    }
    if let Some(rustup) = source.directory("RUSTUP_HOME", ".rustup") {
        source.watch(&rustup.join("settings.toml"));
    }
    if let Some(home) = source.home() {
        source.watch(&home.join(".tool-versions"));
    }
    let on_path = source.var("PATH").unwrap_or_default().split(':').map(PathBuf::from);
    let mut result = Vec::new();
    let mut files = Vec::new();
    // What `/usr` holds is seen inside in any case, even if a service's PATH forgets it.
    let system = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let places = on_path.chain(language.known_places(source)).chain(system);
    for directory in places.filter(|directory| directory.is_absolute()) {
        let path = directory.join(language.command());
        source.watch(&path);
        if language == Language::Python {
            source.watch(&directory.with_file_name("pyvenv.cfg"));
        }
        let Ok(data) = std::fs::metadata(source.at(&path)) else { continue };
        let file = (data.dev(), data.ino());
        if data.is_file() && data.mode() & 0o111 != 0 && !files.contains(&file) {
            files.push(file);
            result.push(path);
        }
    }
    result.truncate(CANDIDATE_LIMIT);
    result
}

fn accept(
    source: &Source,
    language: Language,
    answer: Answer,
    homes: &[PathBuf],
) -> Result<Interpreter, Refusal> {
    let prefix = source.canonical(&answer.prefix).ok_or(Refusal::Missing)?;
    if let Some(refusal) = prefix::refusal(source, &prefix, homes) {
        return Err(refusal);
    }
    let program = source.canonical(&answer.program).filter(|program| program.starts_with(&prefix));
    // A framework or a patched build may name a program elsewhere; the one beside its library is the one that is seen.
    let program = match program {
        Some(program) => program,
        None => {
            let beside = prefix.join("bin").join(language.command());
            source.canonical(&beside).filter(|path| path.starts_with(&prefix)).ok_or(Refusal::Missing)?
        }
    };
    source.watch(&prefix);
    source.watch(&program);
    Ok(Interpreter { language, program, version: answer.version, prefix })
}

/// Numbers in a version name, so that 3.10 comes after 3.9.
fn version_order(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::FakeHost;
    use super::*;

    fn python_shim(prefix: &str) -> String {
        format!("#!/bin/sh\necho {prefix}\necho {prefix}/bin/python3\necho 3.12.1\n")
    }

    #[test]
    fn shim_is_resolved_to_the_real_prefix() {
        let host = FakeHost::new();
        host.write("/home/ann/.pyenv/versions/3.12.1/bin/python3", "", 0o755);
        host.write("/opt/shims/python3", &python_shim("/home/ann/.pyenv/versions/3.12.1"), 0o755);
        let found = find(&host.source(&[]));
        let python = &found.interpreters[0];
        assert_eq!(python.prefix, Path::new("/home/ann/.pyenv/versions/3.12.1"));
        assert_eq!(python.program, Path::new("/home/ann/.pyenv/versions/3.12.1/bin/python3"));
        assert_eq!(python.version, "3.12.1");
        assert!(python.needs_mount());
        assert_eq!(found.notes.len(), 2, "node and cargo are missing: {:?}", found.notes);
    }

    #[test]
    fn linked_prefix_is_mounted_once_and_keeps_its_other_name() {
        let host = FakeHost::new();
        host.write("/opt/py/3.12.1/bin/python3", "", 0o755);
        host.link("/opt/py/3.12", "3.12.1");
        host.write("/opt/shims/python3", &python_shim("/opt/py/3.12"), 0o755);
        let found = find(&host.source(&[]));
        assert_eq!(found.interpreters[0].prefix, Path::new("/opt/py/3.12.1"));
        assert_eq!(found.aliases, [("/opt/py/3.12".into(), "/opt/py/3.12.1".into())]);
    }

    #[test]
    fn broken_shim_falls_through_to_the_next() {
        let host = FakeHost::new();
        host.write("/opt/shims/python3", "#!/bin/sh\nexit 127\n", 0o755);
        host.write("/usr/bin/python3", &python_shim("/usr"), 0o755);
        let found = find(&host.source(&[]));
        assert_eq!(found.interpreters[0].prefix, Path::new("/usr"));
        assert!(!found.interpreters[0].needs_mount());
        assert!(found.notes[0].starts_with("/opt/shims/python3 failed"), "{:?}", found.notes);
    }

    #[test]
    fn known_places_are_searched_newest_first() {
        let host = FakeHost::new();
        for version in ["v9.1.0", "v20.2.0", "v18.0.0"] {
            let prefix = format!("/home/ann/.nvm/versions/node/{version}");
            let shim = format!("#!/bin/sh\necho {prefix}/bin/node\necho {version}\n");
            host.write(&format!("{prefix}/bin/node"), &shim, 0o755);
        }
        let found = find(&host.source(&[]));
        assert_eq!(found.interpreters[0].version, "20.2.0");
        assert_eq!(found.interpreters[0].language, Language::Node);
    }

    #[test]
    fn rust_is_its_sysroot() {
        let host = FakeHost::new();
        let sysroot = "/home/ann/.rustup/toolchains/stable";
        host.write("/opt/shims/cargo", "#!/bin/sh\n", 0o755);
        host.write("/opt/shims/rustc", &format!("#!/bin/sh\necho {sysroot}\n"), 0o755);
        host.write(&format!("{sysroot}/bin/cargo"), "", 0o755);
        host.write(&format!("{sysroot}/bin/rustc"), "#!/bin/sh\necho 'rustc 1.90.0 (abc)'\n", 0o755);
        let found = find(&host.source(&[]));
        assert_eq!(found.interpreters[0].program, Path::new(sysroot).join("bin/cargo"));
        assert_eq!(found.interpreters[0].version, "1.90.0");
    }

    #[test]
    fn program_living_in_a_home_directory_is_a_note() {
        let host = FakeHost::new();
        host.write("/home/ann/bin/python3", "", 0o755);
        host.write("/opt/shims/python3", &python_shim("/home/ann"), 0o755);
        let found = find(&host.source(&[]));
        assert!(found.interpreters.is_empty());
        assert!(found.notes[0].contains("home directory /home/ann"), "{:?}", found.notes);
    }
}
