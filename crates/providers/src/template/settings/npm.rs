//! npm: the registry, and registries of scopes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::source::Source;
use super::{PackageTool, Settings};

pub(super) fn read(source: &Source, prefixes: &[&Path], settings: &mut Settings) {
    let mut registries = BTreeMap::new();
    for path in files(source, prefixes) {
        let Some(text) = source.settings(&path) else { continue };
        for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
            let Some((key, value)) = line.split_once('=') else { continue };
            take(settings, &mut registries, key.trim(), value.trim(), &path.display().to_string());
        }
    }
    for (name, value) in source.env() {
        let lower = name.to_ascii_lowercase();
        if let Some(key) = lower.strip_prefix("npm_config_").filter(|_| !value.is_empty()) {
            take(settings, &mut registries, key, value, "an npm_config_ variable");
        }
    }
    if registries.contains_key("registry") {
        settings.settled.push(PackageTool::Npm);
    }
    let mut text = "fund=false\nupdate-notifier=false\n".to_owned();
    for (key, url) in registries {
        text.push_str(&format!("{key}={url}\n"));
    }
    settings.write("/etc/npmrc", text);
}

/// Weakest first, as npm reads them.
fn files(source: &Source, prefixes: &[&Path]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        ["/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/npmrc"].map(PathBuf::from).into();
    files.extend(prefixes.iter().map(|prefix| prefix.join("etc/npmrc")));
    let named = |upper: &str, lower: &str| source.var(upper).or_else(|| source.var(lower)).map(PathBuf::from);
    files.extend(named("NPM_CONFIG_GLOBALCONFIG", "npm_config_globalconfig"));
    files.extend(
        named("NPM_CONFIG_USERCONFIG", "npm_config_userconfig")
            .or_else(|| source.home().map(|home| home.join(".npmrc"))),
    );
    files
}

fn take(settings: &mut Settings, kept: &mut BTreeMap<String, String>, key: &str, value: &str, place: &str) {
    if key == "cafile" {
        settings.bundles.push(PathBuf::from(value.trim_matches('"')));
    }
    let scope = key.strip_suffix(":registry").and_then(|scope| scope.strip_prefix('@'));
    let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if (key == "registry" || scope.is_some_and(plain))
        && let Some(address) = settings.keep(PackageTool::Npm, value, place)
    {
        kept.insert(key.to_owned(), address.url().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn registries_stay_and_everything_else_goes() {
        let host = FakeHost::new();
        host.write("/usr/etc/npmrc", "registry=https://weak.example/\n", 0o644);
        host.write(
            "/home/ann/.npmrc",
            "registry = https://strong.example/\n//strong.example/:_authToken=t\n@a:registry=https://a.example/\n",
            0o600,
        );
        let mut settings = Settings::default();
        read(&host.source(&[]), &[], &mut settings);
        assert_eq!(
            settings.files[0].1,
            "fund=false\nupdate-notifier=false\n@a:registry=https://a.example/\nregistry=https://strong.example/\n"
        );
    }
}
