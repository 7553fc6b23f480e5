//! Dependency layers: an installation that is done once, and had by every sandbox that asks for the same.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_core::{Error, ErrorCode, Result, Tenant, UserName};
use belljar_layers::{Digest, Ground, Record};
use belljar_providers::jail::Jail;
use belljar_providers::jail::templates::catalog;

use crate::step::Run;
use crate::workshop::{Progress, Tell, Workshop, failed};

/// Raised whenever the same installation would now make something else.
const FORMAT: u32 = 1;
/// The longest of the files that an installation reads.
const LONGEST: u64 = 64 << 20;
/// Where the files are put.
const HOME: &str = "/home/user";

/// Files that tools read without being told so, by the first words of what runs them.
const READ: [(&[&str], &[&str]); 10] = [
    (&["npm", "ci"], &["package.json", "package-lock.json", ".npmrc"]),
    (&["npm", "install"], &["package.json", "package-lock.json", ".npmrc"]),
    (&["npm", "i"], &["package.json", "package-lock.json", ".npmrc"]),
    (&["yarn"], &["package.json", "yarn.lock"]),
    (&["pnpm"], &["package.json", "pnpm-lock.yaml"]),
    (&["cargo", "fetch"], &["Cargo.toml", "Cargo.lock", "src/main.rs", "src/lib.rs"]),
    (&["poetry"], &["pyproject.toml", "poetry.lock"]),
    (&["uv", "sync"], &["pyproject.toml", "uv.lock"]),
    (&["bundle"], &["Gemfile", "Gemfile.lock"]),
    (&["go", "mod"], &["go.mod", "go.sum"]),
];

/// An installation.
#[derive(Debug)]
pub struct Install<'a> {
    /// A line for the shell.
    pub command: &'a str,
    /// Where the files are that it reads.
    pub folder: &'a Path,
    /// Further files that it reads, relative to that.
    pub files: &'a [String],
    /// Variables of the sandbox.
    pub env: &'a BTreeMap<String, String>,
    /// Whose it is: nobody has what was installed for somebody else.
    pub tenant: Option<&'a Tenant>,
}

/// The template with what is installed over it, if that was done before.
pub async fn installed(jail: &Jail, base: &Record, install: &Install<'_>) -> Result<Option<Record>> {
    let key = key(jail, base, install, &files(install)?).await?;
    catalog(jail.home())?.recall(&key).map_err(failed)
}

/// The template with what is installed over it. What fails is not kept, and leaves nothing.
pub async fn install(
    workshop: &Workshop,
    base: &Record,
    install: &Install<'_>,
    tell: Tell<'_>,
) -> Result<Record> {
    let files = files(install)?;
    let key = key(&workshop.jail, base, install, &files).await?;
    if let Some(record) = workshop.recall(&key)? {
        return Ok(record);
    }
    tell(Progress::Step { number: 1, all: 1, text: install.command.to_owned(), kept: false });
    let run = Run {
        command: vec!["/bin/sh".into(), "-c".into(), install.command.into()],
        env: install.env.clone(),
        user: if is_for_root(install.command) { UserName::Root } else { UserName::User },
        directory: Some(HOME.into()),
        files,
    };
    let record = workshop.run(base, run, tell).await?;
    workshop.catalog.remember(&workshop.held, &key, &record, install.command).map_err(failed)?;
    Ok(record)
}

/// By what an installation is known again: all that it depends on.
async fn key(
    jail: &Jail,
    base: &Record,
    install: &Install<'_>,
    files: &[(String, Vec<u8>)],
) -> Result<Digest> {
    let host = if base.ground == Ground::Host { jail.host_digest().await? } else { String::new() };
    let files: Vec<(&str, Digest)> =
        files.iter().map(|(name, content)| (name.as_str(), Digest::of(content))).collect();
    let depends = (FORMAT, host, base.digest(), install.command, files, install.env, install.tenant);
    Ok(Digest::of(&serde_json::to_vec(&depends).unwrap_or_default()))
}

/// The files that an installation reads, and where they are inside.
fn files(install: &Install<'_>) -> Result<Vec<(String, Vec<u8>)>> {
    let names = files_of(install)?.into_iter();
    names.map(|name| Ok((format!("{HOME}/{name}"), read(install.folder, &name)?))).collect()
}

/// Debian's packages are installed for everybody.
fn is_for_root(command: &str) -> bool {
    command.split_whitespace().any(|word| matches!(word, "apt" | "apt-get" | "dpkg"))
}

/// The files that an installation reads: those that are named, and those that everybody knows it reads.
fn files_of(install: &Install<'_>) -> Result<Vec<String>> {
    let words: Vec<&str> = install.command.split_whitespace().collect();
    let mut files: Vec<String> = install.files.to_vec();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).map(|next| (*next).to_owned());
        match *word {
            "-r" | "--requirement" | "-c" | "--constraint"
                if words.iter().any(|word| word.contains("pip")) =>
            {
                files.extend(next);
            }
            _ => files.extend(
                ["--requirement=", "--constraint="]
                    .iter()
                    .filter_map(|option| word.strip_prefix(option))
                    .map(str::to_owned),
            ),
        }
    }
    for (tool, read) in READ {
        if words.windows(tool.len()).any(|words| words == tool) {
            files.extend(
                read.iter().filter(|name| install.folder.join(name).is_file()).map(|name| (*name).to_owned()),
            );
        }
    }
    files.sort();
    files.dedup();
    let leads_out = |file: &&String| {
        let path = Path::new(file);
        path.is_absolute() || path.components().any(|part| part == std::path::Component::ParentDir)
    };
    match files.iter().find(leads_out) {
        None => Ok(files),
        Some(file) => Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("`{}` is not below the folder that the installation reads from", file.escape_debug()),
        )
        .hint("copy it there, and name it as it is there")),
    }
}

/// Reads a file below a folder. The folder may be somebody else's: a link in it does not lead out of it.
fn read(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let path = &folder.join(name);
    let wrong = |why: &str| {
        Error::new(ErrorCode::InvalidArgument, format!("cannot read {}: {why}", path.display()))
            .hint("the files that an installation reads are looked for where you are")
    };
    let real = |path: &Path| path.canonicalize().map_err(|error| wrong(&error.to_string()));
    let (folder, path) = (&real(folder)?, &real(path)?);
    if !path.starts_with(folder) {
        return Err(wrong("it leads out of the folder"));
    }
    let data = std::fs::metadata(path).map_err(|error| wrong(&error.to_string()))?;
    if !data.is_file() || data.len() > LONGEST {
        return Err(wrong("it is no file, or too long"));
    }
    std::fs::read(path).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_are_read_are_known() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["package.json", "package-lock.json"] {
            std::fs::write(folder.path().join(name), "{}").expect("a file");
        }
        let env = BTreeMap::new();
        let files = |command| {
            let install = Install { command, folder: folder.path(), files: &[], env: &env, tenant: None };
            files_of(&install)
        };
        assert_eq!(
            files("pip install -r requirements.txt -c c.txt").ok(),
            Some(vec!["c.txt".into(), "requirements.txt".into()])
        );
        assert_eq!(files("npm ci").ok(), Some(vec!["package-lock.json".into(), "package.json".into()]));
        assert!(files("pip install -r ../x").is_err());
        assert!(files("pip install -r /etc/passwd").is_err());
    }
}
