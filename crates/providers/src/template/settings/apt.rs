//! apt: where packages come from, and how apt behaves without an account of its own to drop to.

use std::path::{Path, PathBuf};

use super::super::certificates;
use super::super::source::Source;
use super::{PackageTool, Settings};

/// Where keys that verify packages may lie; they are in the root or in `/usr`.
const KEY_PLACES: &[&str] = &["/usr/share/keyrings", "/etc/apt/keyrings", "/etc/apt/trusted.gpg.d"];

/// One line of `sources.list`, before it is cleaned.
#[derive(Default)]
struct Line<'a> {
    kind: &'a str,
    options: Vec<(&'a str, &'a str)>,
    address: &'a str,
    suite: &'a str,
    components: Vec<&'a str>,
}

pub(super) fn read(source: &Source, settings: &mut Settings) {
    if !source.is_dir(Path::new("/etc/apt")) {
        return;
    }
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = Path::new("/etc/apt/sources.list.d");
    files.extend(source.names(parts).into_iter().map(|name| parts.join(name)));
    let mut list = String::new();
    for path in files {
        let stanzas = path.extension().is_some_and(|extension| extension == "sources");
        if !stanzas && path.extension().is_none_or(|extension| extension != "list") {
            continue;
        }
        let Some(text) = source.settings(&path) else { continue };
        let lines = if stanzas { deb822_lines(&text) } else { text.lines().filter_map(one_line).collect() };
        for line in lines {
            list.extend(line.clean(settings, &path));
        }
    }
    settings.write("/etc/apt/sources.list", list);
    settings.write(
        "/etc/apt/apt.conf.d/90sandbox",
        format!(
            "APT::Sandbox::User \"root\";\nAPT::Install-Recommends \"false\";\nAcquire::Languages \"none\";\n\
             Acquire::https::CaInfo \"{}\";\nDpkg::Use-Pty \"false\";\n\
             Dpkg::Options {{ \"--force-confdef\"; \"--force-confold\"; }};\n",
            certificates::BUNDLE
        ),
    );
}

fn one_line(line: &str) -> Option<Line<'_>> {
    let (kind, rest) = line.split('#').next()?.trim().split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(bracket) => bracket.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    Some(Line {
        kind,
        options: options.split_whitespace().filter_map(|option| option.split_once('=')).collect(),
        address: words.next()?,
        suite: words.next()?,
        components: words.collect(),
    })
}

fn deb822_lines(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut stanza: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).chain([""]) {
        if line.trim().is_empty() {
            lines.extend(stanza_lines(&stanza));
            stanza.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, words)) = stanza.last_mut() {
                words.extend(line.split_whitespace());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            stanza.push((name.trim(), value.split_whitespace().collect()));
        }
    }
    lines
}

fn stanza_lines<'a>(stanza: &[(&'a str, Vec<&'a str>)]) -> Vec<Line<'a>> {
    let field = |name: &str| {
        stanza
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map_or(&[][..], |(_, words)| words.as_slice())
    };
    if field("Enabled").first().is_some_and(|word| ["no", "false"].contains(word)) {
        return Vec::new();
    }
    let mut options = Vec::new();
    for (option, name) in [("arch", "Architectures"), ("signed-by", "Signed-By"), ("trusted", "Trusted")] {
        if let [value] = field(name) {
            options.push((option, *value));
        }
    }
    let mut lines = Vec::new();
    for kind in field("Types") {
        for address in field("URIs") {
            for suite in field("Suites") {
                let components = field("Components").to_vec();
                lines.push(Line { kind, options: options.clone(), address, suite, components });
            }
        }
    }
    lines
}

impl Line<'_> {
    fn clean(&self, settings: &mut Settings, path: &Path) -> Option<String> {
        let plain = |word: &str| {
            word.len() <= 128
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./+-_~".contains(&byte))
        };
        if !["deb", "deb-src"].contains(&self.kind) || !plain(self.suite) {
            return None;
        }
        let address = settings.keep(PackageTool::Apt, self.address, &path.display().to_string())?;
        let mut options = String::new();
        for (name, value) in &self.options {
            let keep = match *name {
                "arch" => value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b",-".contains(&byte)),
                "trusted" => *value == "yes",
                "signed-by" => {
                    plain(value) && KEY_PLACES.iter().any(|place| Path::new(value).starts_with(place))
                }
                _ => false,
            };
            if keep {
                options.push_str(&format!(" {name}={value}"));
            }
        }
        let options = if options.is_empty() { options } else { format!("[{}] ", options.trim_start()) };
        let mut line = format!("{} {options}{} {}", self.kind, address.url(), self.suite);
        for component in self.components.iter().filter(|component| plain(component)) {
            line.push(' ');
            line.push_str(component);
        }
        line.push('\n');
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn both_formats_become_clean_lines() {
        let host = FakeHost::new();
        host.write(
            "/etc/apt/sources.list",
            "# comment\ndeb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg foo=bar] https://u:p@a.example/d stable main # c\n\
             deb cdrom:[x]/ stable main\ndeb file:/srv/d stable main\n",
            0o644,
        );
        host.write(
            "/etc/apt/sources.list.d/b.sources",
            "Types: deb deb-src\nURIs: http://b.example/d\nSuites: one\n two\nComponents: main\nSigned-By: /root/k.gpg\n\n\
             Enabled: no\nTypes: deb\nURIs: http://off.example/\nSuites: x\n",
            0o644,
        );
        host.write("/etc/apt/sources.list.d/c.list.save", "deb http://save.example/ x y\n", 0o644);
        let mut settings = Settings::default();
        read(&host.source(&[]), &mut settings);
        assert_eq!(
            settings.files[0].1,
            "deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://a.example/d stable main\n\
             deb http://b.example/d one main\ndeb http://b.example/d two main\n\
             deb-src http://b.example/d one main\ndeb-src http://b.example/d two main\n"
        );
    }
}
