//! pip: index addresses.

use std::path::{Path, PathBuf};

use super::super::source::Source;
use super::{PackageTool, Settings, ini_lines};

#[derive(Default)]
struct Kept {
    index: Option<String>,
    extra: Vec<String>,
    trusted: Vec<String>,
    places: Vec<String>,
}

pub(super) fn read(source: &Source, prefixes: &[&Path], settings: &mut Settings) {
    let mut kept = Kept::default();
    for path in files(source, prefixes) {
        let Some(text) = source.settings(&path) else { continue };
        for (key, value) in entries(&text) {
            kept.take(settings, &key, &value, &path.display().to_string());
        }
    }
    for key in ["index-url", "extra-index-url", "find-links", "trusted-host"] {
        let name = format!("PIP_{}", key.replace('-', "_").to_ascii_uppercase());
        if let Some(value) = source.var(&name) {
            kept.take(settings, key, value, &name);
        }
    }
    if kept.index.is_some() {
        settings.settled.push(PackageTool::Pip);
    }
    settings.write("/etc/pip.conf", kept.render());
}

/// Weakest first, as pip reads them.
fn files(source: &Source, prefixes: &[&Path]) -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/xdg/pip/pip.conf"), PathBuf::from("/etc/pip.conf")];
    files.extend(source.home().map(|home| home.join(".pip/pip.conf")));
    files.extend(source.directory("XDG_CONFIG_HOME", ".config").map(|config| config.join("pip/pip.conf")));
    files.extend(prefixes.iter().map(|prefix| prefix.join("pip.conf")));
    files.extend(source.var("VIRTUAL_ENV").map(|environment| Path::new(environment).join("pip.conf")));
    files.extend(source.var("PIP_CONFIG_FILE").map(PathBuf::from));
    files
}

/// Keys in pip's own spelling, with the lines that continue a value joined to it.
fn entries(text: &str) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    for (_, line) in ini_lines(text) {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = entries.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(['=', ':']) {
            let key = key.trim().trim_start_matches('-').replace('_', "-").to_ascii_lowercase();
            entries.push((key, value.trim().to_owned()));
        }
    }
    entries
}

impl Kept {
    fn take(&mut self, settings: &mut Settings, key: &str, value: &str, place: &str) {
        match key {
            "index-url" => {
                if let Some(address) = settings.keep(PackageTool::Pip, value, place) {
                    self.places.push(address.place().to_owned());
                    self.index = Some(address.url().to_owned());
                }
            }
            "extra-index-url" => {
                for word in value.split_whitespace() {
                    let Some(address) = settings.keep(PackageTool::Pip, word, place) else { continue };
                    self.places.push(address.place().to_owned());
                    self.extra.push(address.url().to_owned());
                }
            }
            "trusted-host" => self.trusted.extend(value.split_whitespace().map(str::to_owned)),
            "find-links" => settings.notes.push(format!(
                "find-links in {place} was not passed on, since it may name directories of the host; serve the \
                 packages from an index, or upload them."
            )),
            "cert" => settings.bundles.push(PathBuf::from(value)),
            _ => {}
        }
    }

    fn render(&self) -> String {
        // The sandbox is thrown away, so pip may write where the distribution would rather it did not.
        let mut text = "[global]\nbreak-system-packages = true\n".to_owned();
        if let Some(index) = &self.index {
            text.push_str(&format!("index-url = {index}\n"));
        }
        if !self.extra.is_empty() {
            text.push_str(&format!("extra-index-url =\n    {}\n", self.extra.join("\n    ")));
        }
        let bare = |place: &str| place.split(':').next().unwrap_or("").to_owned();
        let mut trusted: Vec<&String> = self
            .trusted
            .iter()
            .filter(|host| self.places.iter().any(|place| place == *host || bare(place) == **host))
            .collect();
        trusted.sort();
        trusted.dedup();
        if !trusted.is_empty() {
            let hosts: Vec<&str> = trusted.into_iter().map(String::as_str).collect();
            text.push_str(&format!("trusted-host =\n    {}\n", hosts.join("\n    ")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn stronger_files_win_and_trusted_hosts_follow_the_addresses() {
        let host = FakeHost::new();
        host.write("/etc/pip.conf", "[global]\nindex_url: http://weak.example/\n", 0o644);
        host.write(
            "/home/ann/.config/pip/pip.conf",
            "[global]\nindex-url = http://u:p@strong.example:81/s\ntrusted-host = strong.example other.example\n",
            0o644,
        );
        let mut settings = Settings::default();
        read(&host.source(&[]), &[], &mut settings);
        assert_eq!(
            settings.files[0].1,
            "[global]\nbreak-system-packages = true\nindex-url = http://strong.example:81/s\n\
             trusted-host =\n    strong.example\n"
        );
    }
}
