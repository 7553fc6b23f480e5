//! What each provider promises, as `promises.toml` says it.

use std::collections::BTreeMap;

/// What is promised about an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// It is stopped.
    Stopped,
    /// Nothing is promised, for this reason.
    NotPromised(String),
    /// It cannot be tried there, for this reason.
    NotApplicable(String),
}

/// What is promised on newer kernels only.
const BEFORE: &str = "not promised before Linux ";

/// The first two numbers of a kernel's version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', '-', '\n']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Those of the kernel that runs; what cannot be read is held to everything.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).unwrap_or((u32::MAX, 0))
}

/// The promises of one provider.
pub(crate) struct Promises(BTreeMap<String, Promise>);

impl Promises {
    /// Reads the section of a provider. The file is a plain subset of TOML: `[section]`, `name = "text"`, comments.
    pub(crate) fn read(text: &str, provider: &str) -> Result<Self, String> {
        let mut promises = BTreeMap::new();
        let mut here = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                here = section == provider;
                continue;
            }
            let wrong = || format!("promises.toml, line {}: not `name = \"text\"`: {line}", number + 1);
            let (name, value) = line.split_once(" = ").ok_or_else(wrong)?;
            let value =
                value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).ok_or_else(wrong)?;
            let promise = match value.split_once(": ") {
                None if value == "stopped" => Promise::Stopped,
                Some(("not promised", why)) => Promise::NotPromised(why.to_owned()),
                Some((when, why)) if when.starts_with(BEFORE) => match version(&when[BEFORE.len()..]) {
                    Some(then) if kernel() < then => Promise::NotPromised(why.to_owned()),
                    Some(_) => Promise::Stopped,
                    None => return Err(wrong()),
                },
                Some(("not applicable", why)) => Promise::NotApplicable(why.to_owned()),
                _ => return Err(wrong()),
            };
            if here && promises.insert(name.to_owned(), promise).is_some() {
                return Err(format!("promises.toml, line {}: {name} is promised twice", number + 1));
            }
        }
        if promises.is_empty() {
            return Err(format!("promises.toml says nothing about {provider}"));
        }
        Ok(Self(promises))
    }

    /// The promise for an attack: its own, that of its class, or with a network that of the same without.
    pub(crate) fn of(&self, id: &str) -> Option<&Promise> {
        let class = |id: &str| id.split('-').next().unwrap_or_default().to_owned();
        let without = id.strip_prefix("DW-").unwrap_or_default();
        let named = self.0.get(id).or_else(|| self.0.get(without)).or_else(|| self.0.get(&class(without)));
        named.or_else(|| self.0.get(&class(id)))
    }

    /// Names that no attack has.
    pub(crate) fn strangers(&self, ids: &[&str]) -> Vec<&str> {
        let known = |name: &str| ids.iter().any(|id| *id == name || id.split('-').next() == Some(name));
        self.0.keys().map(String::as_str).filter(|name| !known(name)).collect()
    }
}
