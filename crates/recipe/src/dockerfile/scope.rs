//! What is in force at a place of a stage: variables, arguments, the working directory, the shell.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::Known;

/// What programs are searched in where nothing says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is in force.
#[derive(Clone)]
pub(super) struct Scope {
    /// Variables that were set, here or by the base.
    pub env: BTreeMap<String, String>,
    /// Build arguments that have a value.
    pub args: BTreeMap<String, String>,
    /// Where commands run, if that is known.
    pub working_directory: Option<String>,
    /// What lines are given to.
    pub shell: Vec<String>,
    /// Whether the base could bring variables that are not in `env`.
    pub known: bool,
    /// What was read and could only come from the base.
    pub wants: RefCell<BTreeSet<String>>,
}

impl Scope {
    /// On a base of which this much is known.
    pub fn new(base: Option<&Known>) -> Self {
        let known = base.is_some();
        let base = base.cloned().unwrap_or_default();
        let root = known.then(|| "/".to_owned());
        Self {
            env: base.env,
            args: BTreeMap::new(),
            working_directory: base.working_directory.or(root),
            shell: base.shell.unwrap_or_else(|| vec!["/bin/sh".into(), "-c".into()]),
            known,
            wants: RefCell::default(),
        }
    }

    /// The value of a variable; those that were set win over arguments.
    pub fn value(&self, name: &str) -> Option<&str> {
        let found = self.env.get(name).or_else(|| self.args.get(name));
        if found.is_none() && !self.known {
            self.wants.borrow_mut().insert(name.to_owned());
        }
        found.map(String::as_str).or((name == "PATH").then_some(PATH))
    }

    /// Whether all that was read so far is what it will be.
    pub fn is_certain(&self) -> bool {
        self.wants.borrow().is_empty()
    }

    /// Build arguments as a step gets them.
    pub fn args_in_force(&self) -> Vec<(String, String)> {
        let args = self.args.iter().filter(|(name, _)| !self.env.contains_key(*name));
        args.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        size(self.env.iter().chain(&self.args))
            + self.shell.iter().map(|word| word.len() + OVERHEAD).sum::<usize>()
            + self.wants.borrow().iter().map(|name| name.len() + OVERHEAD).sum::<usize>()
    }

    /// The directory that `to` leads to from the one in force, if that can be said.
    pub fn directory(&self, to: &str) -> Option<String> {
        let from = if to.starts_with('/') { "" } else { self.working_directory.as_deref()? };
        let mut parts = Vec::new();
        for part in from.split('/').chain(to.split('/')) {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        Some(format!("/{}", parts.join("/")))
    }
}

/// About how much a text takes besides its bytes.
pub(super) const OVERHEAD: usize = 32;

/// About how many bytes pairs take.
pub(super) fn size<'p>(pairs: impl Iterator<Item = (&'p String, &'p String)>) -> usize {
    pairs.map(|(name, value)| name.len() + value.len() + 2 * OVERHEAD).sum()
}
