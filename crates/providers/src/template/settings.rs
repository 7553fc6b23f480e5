//! The package tools' settings of the host, reduced to what a sandbox may know: where to fetch from.
//!
//! Files and variables are read here, outside. Only addresses that pass [`address::Address::clean`] go on, into files
//! written anew; a credential that belongs to one of them is added later, where traffic leaves the sandbox.

mod address;
mod apt;
mod cargo;
mod git;
mod npm;
mod pip;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::source::Source;
pub(super) use address::Address;

/// The host that the set `github` is about.
pub(super) const FORGE: &str = "github.com";

/// A tool that fetches packages or sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageTool {
    /// Debian packages.
    Apt,
    /// Rust crates.
    Cargo,
    /// Repositories.
    Git,
    /// JavaScript packages.
    Npm,
    /// Python packages.
    Pip,
}

/// An address a package tool inside was told to use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackageSource {
    /// The tool.
    pub tool: PackageTool,
    /// `http` or `https`, without user, password, query or fragment.
    pub url: String,
}

/// Everything that was kept.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Files to write, by their path inside.
    pub(super) files: Vec<(PathBuf, String)>,
    pub(super) sources: Vec<PackageSource>,
    /// The tools that were told what to use in place of what is built into them.
    pub(super) settled: Vec<PackageTool>,
    /// What git is told to use in place of [`FORGE`].
    pub(super) forge: Vec<String>,
    /// Certificate bundles the settings name, for the merged bundle.
    pub(super) bundles: Vec<PathBuf>,
    pub(super) notes: Vec<String>,
}

impl Settings {
    /// Turns a value into an address; one that may hide a credential is left out, and where it was is said.
    fn keep(&mut self, tool: PackageTool, value: &str, place: &str) -> Option<Address> {
        let kept = Address::clean(value);
        match &kept {
            Some(address) => {
                self.sources.push(PackageSource { tool, url: address.url().to_owned() });
            }
            None => self.notes.push(format!(
                "an address in {place} was not passed on, since it is not plain http(s) or may hold a credential; \
                 write it there without the credential."
            )),
        }
        kept
    }

    fn write(&mut self, path: &str, content: String) {
        self.files.push((PathBuf::from(path), content));
    }
}

/// Reads all tools' settings. `prefixes` are the toolchains' directories, which may hold settings too.
pub(super) fn read(source: &Source, prefixes: &[&Path]) -> Settings {
    let mut settings = Settings::default();
    pip::read(source, prefixes, &mut settings);
    npm::read(source, prefixes, &mut settings);
    cargo::read(source, &mut settings);
    git::read(source, &mut settings);
    apt::read(source, &mut settings);
    settings.sources.sort();
    settings.sources.dedup();
    settings.notes.sort();
    settings.notes.dedup();
    settings
}

/// Settings files inside mounted directories, which must be covered because they are not ours to clean.
pub(super) fn covered(source: &Source, prefixes: &[&Path]) -> Vec<PathBuf> {
    let system = [Path::new("/usr"), Path::new("/usr/local")];
    let mut found = Vec::new();
    for prefix in system.iter().chain(prefixes) {
        for name in ["pip.conf", "etc/npmrc", "etc/gitconfig", ".condarc"] {
            let path = prefix.join(name);
            source.watch(&path);
            if source.at(&path).symlink_metadata().is_ok_and(|data| data.is_file()) && !found.contains(&path)
            {
                found.push(path);
            }
        }
    }
    found
}

/// Lines of an INI-like file: the section in force and the line, without comments and blank lines.
fn ini_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut section = "";
    text.lines().filter_map(move |line| {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            return None;
        }
        if let Some(rest) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            section = rest.0.trim();
            return None;
        }
        Some((section, line))
    })
}

#[cfg(test)]
pub(super) mod testing {
    use super::super::source::testing::FakeHost;
    use super::*;

    /// What must never come out again.
    pub(crate) const PLANTED: &[&str] =
        &["hunter2", "npm_tok3n", "cargo_tok3n", "apt_passw0rd", "git_tok3n", "alice"];

    /// Plants credentials in every place where tools of this kind keep them.
    pub(crate) fn plant(host: &FakeHost) {
        host.write(
            "/home/ann/.config/pip/pip.conf",
            "[global]\nindex-url = https://alice:hunter2@mirror.example/pypi/simple\n\
             extra-index-url =\n    https://hunter2@extra.example/simple\n    https://two.example/simple?t=hunter2\n\
             find-links = /home/alice/wheels\ntrusted-host = mirror.example hunter2.example\nproxy = http://alice:hunter2@p\n\
             client-cert = /home/alice/key.pem\n",
            0o600,
        );
        host.write("/usr/pip.conf", "[global]\npassword = hunter2\n", 0o644);
        host.write(
            "/home/ann/.npmrc",
            "registry=https://alice:npm_tok3n@npm.example/\n//npm.example/:_authToken=npm_tok3n\n_auth=npm_tok3n\n\
             @corp:registry = https://corp.example/npm/\nemail=alice@x\npassword=npm_tok3n\nkey=npm_tok3n\n\
             @bad:registry=https://x.example/${npm_tok3n}/\n",
            0o600,
        );
        host.write(
            "/home/ann/.cargo/config.toml",
            "[registry]\ntoken = \"cargo_tok3n\"\ndefault = \"corp\"\n[registries.corp]\n\
             index = \"sparse+https://alice:cargo_tok3n@crates.example/index/\"\ntoken = \"cargo_tok3n\"\n\
             credential-provider = [\"cargo:token-from-stdout\", \"cargo_tok3n\"]\n\
             [source.crates-io]\nreplace-with = \"corp-mirror\"\n[source.corp-mirror]\n\
             registry = \"https://alice:cargo_tok3n@crates.example/git/index\"\n\
             [http]\nproxy = \"alice:cargo_tok3n@proxy\"\n[env]\nX = \"cargo_tok3n\"\n",
            0o600,
        );
        host.write("/home/ann/.cargo/credentials.toml", "[registry]\ntoken = \"cargo_tok3n\"\n", 0o600);
        host.write(
            "/home/ann/.gitconfig",
            "[user]\n\tname = alice\n[url \"https://oauth2:git_tok3n@git.example/\"]\n\tinsteadOf = https://github.com/\n\
             [http]\n\textraHeader = \"Authorization: git_tok3n\"\n[credential]\n\thelper = store --file git_tok3n\n",
            0o600,
        );
        host.write("/home/ann/.git-credentials", "https://alice:git_tok3n@git.example\n", 0o600);
        host.write(
            "/etc/apt/sources.list",
            "deb [arch=amd64 signed-by=/home/alice/k.gpg] https://alice:apt_passw0rd@deb.example/debian stable main\n",
            0o644,
        );
        host.write("/etc/apt/auth.conf", "machine deb.example login alice password apt_passw0rd\n", 0o600);
        host.write(
            "/etc/apt/apt.conf.d/proxy",
            "Acquire::http::Proxy \"http://alice:apt_passw0rd@p\";\n",
            0o644,
        );
        host.write("/etc/profile", "export TOKEN=hunter2\n", 0o644);
        host.write("/etc/java-17/management/jmxremote.password", "alice hunter2\n", 0o600);
        host.write("/etc/java-17/ok.properties", "a=b\n", 0o644);
        host.write("/etc/fonts/fonts.conf", "<fontconfig/>\n", 0o644);
        host.link("/etc/fonts/leak", "/home/alice/hunter2");
    }

    #[test]
    fn no_planted_byte_survives_and_addresses_do() {
        let host = FakeHost::new();
        plant(&host);
        let source = host.source(&[
            ("PIP_EXTRA_INDEX_URL", "https://alice:hunter2@env.example/simple"),
            ("NPM_CONFIG__AUTHTOKEN", "npm_tok3n"),
            ("npm_config_@env:registry", "https://npm_tok3n@envnpm.example/"),
            ("CARGO_REGISTRIES_EXTRA_INDEX", "sparse+https://cargo_tok3n@envcrates.example/"),
            ("CARGO_REGISTRIES_EXTRA_TOKEN", "cargo_tok3n"),
        ]);
        let settings = read(&source, &[Path::new("/usr")]);
        let all = format!("{settings:?}");
        for planted in PLANTED {
            assert!(!all.contains(planted), "{planted} in {all}");
        }
        let hosts = ["mirror", "env", "npm", "corp", "envnpm", "crates", "envcrates", "git", "deb"];
        for name in hosts {
            let address = format!("https://{name}.example/");
            assert!(settings.sources.iter().any(|kept| kept.url.starts_with(&address)), "{address} in {all}");
        }
        assert!(settings.notes.iter().any(|note| note.contains("find-links")), "{:?}", settings.notes);
    }

    #[test]
    fn settings_inside_mounted_directories_are_covered() {
        let host = FakeHost::new();
        host.write("/usr/etc/npmrc", "", 0o644);
        host.write("/opt/py/3.12/pip.conf", "", 0o644);
        let covered = covered(&host.source(&[]), &[Path::new("/opt/py/3.12")]);
        assert_eq!(covered, [Path::new("/usr/etc/npmrc"), Path::new("/opt/py/3.12/pip.conf")]);
    }
}
