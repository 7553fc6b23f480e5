//! cargo: registries, and the sources that replace others.
//!
//! The few keys that matter are picked out of the TOML by a small reader that skips what it does not understand.

use std::collections::{BTreeMap, BTreeSet};

use super::super::source::Source;
use super::{PackageTool, Settings};

type Entry = (Vec<String>, String);

pub(super) fn read(source: &Source, settings: &mut Settings) {
    let mut entries: Vec<Entry> = Vec::new();
    if let Some(home) = source.directory("CARGO_HOME", ".cargo") {
        for name in ["config", "config.toml"] {
            entries.extend(
                source.settings(&home.join(name)).map(|text| string_entries(&text)).unwrap_or_default(),
            );
        }
    }
    for (name, value) in source.env() {
        let registry = name.strip_prefix("CARGO_REGISTRIES_").and_then(|rest| rest.strip_suffix("_INDEX"));
        if let Some(registry) = registry {
            let registry = registry.to_ascii_lowercase().replace('_', "-");
            entries.push((vec!["registries".to_owned(), registry, "index".to_owned()], value.clone()));
        }
    }
    if let Some(default) = source.var("CARGO_REGISTRY_DEFAULT") {
        entries.push((vec!["registry".to_owned(), "default".to_owned()], default.to_owned()));
    }
    let text = render(settings, &entries);
    if !text.is_empty() {
        settings.write("/home/user/.cargo/config.toml", text);
    }
}

fn render(settings: &mut Settings, entries: &[Entry]) -> String {
    let mut sources = BTreeMap::new();
    let mut registries = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    let mut default = None;
    for (path, value) in entries {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["source", name, "registry"] if is_name(name) => {
                if let Some(address) = settings.keep(PackageTool::Cargo, value, "cargo's config.toml") {
                    sources.insert((*name).to_owned(), address.with_protocol());
                }
            }
            ["registries", name, "index"] if is_name(name) => {
                if let Some(address) = settings.keep(PackageTool::Cargo, value, "cargo's config.toml") {
                    registries.insert((*name).to_owned(), address.with_protocol());
                }
            }
            ["source", name, "replace-with"] if is_name(name) && is_name(value) => {
                replaced.insert((*name).to_owned(), value.clone());
            }
            ["registry", "default"] if is_name(value) => default = Some(value.clone()),
            ["http", "cainfo"] => settings.bundles.push(value.into()),
            _ => {}
        }
    }
    // A replacement by something that was not kept (a local directory, say) would make every cargo command fail.
    replaced.retain(|_, by| sources.contains_key(by) || registries.contains_key(by));
    if replaced.contains_key("crates-io") {
        settings.settled.push(PackageTool::Cargo);
    }
    let mut text = String::new();
    if let Some(default) = default.filter(|name| registries.contains_key(name)) {
        text.push_str(&format!("[registry]\ndefault = \"{default}\"\n"));
    }
    for (name, index) in &registries {
        text.push_str(&format!("[registries.{name}]\nindex = \"{index}\"\n"));
    }
    let names: BTreeSet<&String> = sources.keys().chain(replaced.keys()).collect();
    for name in names {
        text.push_str(&format!("[source.{name}]\n"));
        if let Some(registry) = sources.get(name) {
            text.push_str(&format!("registry = \"{registry}\"\n"));
        }
        if let Some(by) = replaced.get(name) {
            text.push_str(&format!("replace-with = \"{by}\"\n"));
        }
    }
    text
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Every `key = "string"` with the whole path of its key; inline tables are opened one level deep.
fn string_entries(text: &str) -> Vec<Entry> {
    let mut table = Vec::new();
    let mut entries = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            table = key_path(header.0);
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let mut path = table.clone();
        path.extend(key_path(key));
        let value = value.trim();
        if let Some(inner) = value.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            for (key, value) in inner.0.split(',').filter_map(|pair| pair.split_once('=')) {
                let mut path = path.clone();
                path.extend(key_path(key));
                entries.extend(string(value.trim()).map(|value| (path, value)));
            }
        } else {
            entries.extend(string(value).map(|value| (path, value)));
        }
    }
    entries
}

fn key_path(text: &str) -> Vec<String> {
    text.split('.').map(|part| part.trim().trim_matches(['"', '\'']).to_owned()).collect()
}

fn string(value: &str) -> Option<String> {
    let quote = value.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let (content, _) = value[1..].split_once(quote)?;
    (!content.contains('\\')).then(|| content.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacements_keep_their_meaning() {
        let text = "[source.crates-io]\nreplace-with = 'mirror'\n[source]\nmirror = { registry = \"sparse+https://u:p@m.example/i/\" }\n\
                    [source.vendored]\ndirectory = \"/home/ann/vendor\"\n[source.\"other\"]\nreplace-with = \"vendored\"\n\
                    [registries]\ncorp.index = \"https://c.example/index\" # note\n[registry]\ndefault = \"gone\"\n";
        let rendered = render(&mut Settings::default(), &string_entries(text));
        assert_eq!(
            rendered,
            "[registries.corp]\nindex = \"https://c.example/index\"\n\
             [source.crates-io]\nreplace-with = \"mirror\"\n\
             [source.mirror]\nregistry = \"sparse+https://m.example/i/\"\n"
        );
    }

    #[test]
    fn nonsense_is_skipped() {
        assert!(string_entries("[[[\n=\nx = \"\na = {b = }\n]").is_empty());
    }
}
