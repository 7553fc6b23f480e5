//! What docs/policy-files.md says of rules and files is so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use belljar_core::{NetLimits, NetworkPolicy, Rule, Rules};
use belljar_network::policy::file;

const PAGE: &str = include_str!("../../../docs/policy-files.md");

fn examples() -> Vec<&'static str> {
    PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The cells of a table's rows, below the row of its heads.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let rows = PAGE.split(head).nth(1).unwrap().lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect()
}

#[test]
fn every_example_is_a_policy() {
    let examples = examples();
    assert_eq!(examples.len(), 4);
    for example in examples {
        let policy = file::read(example.as_bytes()).unwrap_or_else(|errors| panic!("{example}\n{errors}"));
        assert!(policy.check().is_ok());
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<NetworkPolicy>(&json).unwrap(), policy);
    }
}

#[test]
fn every_rule_is_a_rule() {
    let rules = table("| rule | what it is about |");
    assert!(rules.len() >= 15);
    for rule in rules {
        let rule: Rule = rule[0].parse().unwrap_or_else(|error| panic!("{}: {error}", rule[0]));
        rule.check_allowing().unwrap();
    }
}

#[test]
fn defaults_are_those_written_down() {
    let NetLimits { connections, requests_per_second, bytes_per_second, total_bytes } =
        Rules::default().limits;
    let defaults = [
        connections.to_string(),
        requests_per_second.to_string(),
        bytes_per_second.to_string(),
        total_bytes.to_string(),
    ];
    let written: Vec<_> = table("| limit | default | what |").iter().map(|row| row[1]).collect();
    assert_eq!(written, defaults);
}
