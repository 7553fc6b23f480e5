//! git: a neutral identity, and the addresses that stand in for others.

use std::path::PathBuf;

use super::super::source::Source;
use super::address::{self, Address};
use super::{FORGE, PackageTool, Settings, ini_lines};

const NEUTRAL: &str = "[user]
\tname = Belljar User
\temail = user@sandbox.invalid
[init]
\tdefaultBranch = main
[safe]
\tdirectory = *
[advice]
\tdetachedHead = false
";

pub(super) fn read(source: &Source, settings: &mut Settings) {
    let mut files = vec![PathBuf::from("/etc/gitconfig")];
    files.extend(source.directory("XDG_CONFIG_HOME", ".config").map(|config| config.join("git/config")));
    files.extend(source.home().map(|home| home.join(".gitconfig")));
    let mut text = NEUTRAL.to_owned();
    for path in files {
        let Some(content) = source.settings(&path) else { continue };
        for (section, line) in ini_lines(&content) {
            let Some((key, value)) = line.split_once('=') else { continue };
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            if section.eq_ignore_ascii_case("http") && key == "sslcainfo" {
                settings.bundles.push(PathBuf::from(value));
            }
            let base = section.strip_prefix("url ").map(|base| base.trim().trim_matches('"'));
            let (Some(base), "insteadof") = (base, key.as_str()) else { continue };
            let Some(written) = written_address(value) else { continue };
            let Some(base) = settings.keep(PackageTool::Git, base, &path.display().to_string()) else {
                continue;
            };
            if is_forge(&written) && !is_forge(base.url()) {
                settings.forge.push(base.url().to_owned());
            }
            // Without its credential a rewriting often says nothing any more.
            if base.url() != written {
                text.push_str(&format!("[url \"{}\"]\n\tinsteadOf = {written}\n", base.url()));
            }
        }
    }
    settings.write("/etc/gitconfig", text);
}

/// Whether an address leads to the forge, or `git@host:path` does.
fn is_forge(address: &str) -> bool {
    let place = address.split_once("://").map_or(address, |(_, rest)| rest);
    let place = place.strip_prefix("git@").unwrap_or(place);
    place.split([':', '/']).next().is_some_and(|host| host.eq_ignore_ascii_case(FORGE))
}

/// What people write in place of an address: another one, or `git@host:path`, whose user is no secret.
fn written_address(text: &str) -> Option<String> {
    if let Some(address) = Address::clean(text) {
        return Some(address.url().to_owned());
    }
    let bare = text.strip_prefix("ssh://").unwrap_or(text).strip_prefix("git@")?;
    let (host, path) = bare.split_once([':', '/'])?;
    (address::is_place(host) && address::is_path(path)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn rewritings_stay_without_their_credentials() {
        let host = FakeHost::new();
        host.write(
            "/home/ann/.gitconfig",
            "[url \"https://x:t@github.com/\"]\n\tinsteadOf = https://github.com/\n\tinsteadOf = git@github.com:\n\
             [url \"https://mirror.example/\"]\n\tinsteadOf = https://upstream.example/\n",
            0o644,
        );
        let mut settings = Settings::default();
        read(&host.source(&[]), &mut settings);
        assert_eq!(
            settings.files[0].1.strip_prefix(NEUTRAL),
            Some(
                "[url \"https://github.com/\"]\n\tinsteadOf = git@github.com:\n\
                 [url \"https://mirror.example/\"]\n\tinsteadOf = https://upstream.example/\n"
            )
        );
    }
}
