//! Whether something may leave a sandbox: one policy, judged in stages as the door comes to know more.

mod address;
pub mod decide;
mod denied;
pub mod file;
mod reading;

use std::collections::BTreeMap;

use belljar_core::{Rule, Rules, SetName, Target};

pub use decide::{Allowed, Destination, Look, Request};
pub(crate) use denied::shortened;
pub use denied::{Denied, List, Reason, RuleRef};

/// Replaces each set by the rules that it was resolved to. A set that was not resolved stays, and then allows nothing,
/// or, where it is denied, denies everything.
#[must_use]
pub fn expand(rules: &Rules, resolved: &BTreeMap<SetName, Vec<Rule>>) -> Rules {
    let list = |rules: &[Rule]| rules.iter().flat_map(|rule| members(rule, resolved)).collect();
    Rules { allow: list(&rules.allow), deny: list(&rules.deny), limits: rules.limits }
}

fn members(rule: &Rule, resolved: &BTreeMap<SetName, Vec<Rule>>) -> Vec<Rule> {
    let members = match &rule.target {
        Target::Set(name) => resolved.get(name),
        Target::Host(_) | Target::Net(_) => None,
    };
    match members {
        Some(members) => members
            .iter()
            .map(|member| Rule { private: member.private || rule.private, ..member.clone() })
            .collect(),
        None => vec![rule.clone()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_become_their_members() {
        let rule = |text: &str| text.parse::<Rule>().unwrap();
        let rules = Rules {
            allow: vec![rule("pypi"), rule("a.org"), rule("npm private")],
            deny: vec![rule("github")],
            ..Rules::default()
        };
        let resolved = BTreeMap::from([
            (SetName::Pypi, vec![rule("index.example:443"), rule("files.example:443 private")]),
            (SetName::Npm, vec![rule("npm.example")]),
        ]);
        let expanded = expand(&rules, &resolved);
        let texts: Vec<_> = expanded.allow.iter().map(Rule::to_string).collect();
        assert_eq!(texts, ["index.example:443", "files.example:443 private", "a.org", "npm.example private"]);
        assert_eq!(expanded.deny, rules.deny, "what is not resolved stays");
        assert_eq!(expand(&expanded, &resolved), expanded);
    }
}
