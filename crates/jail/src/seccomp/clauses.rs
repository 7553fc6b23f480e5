//! System calls that depend on their arguments: from clauses to a few instructions that end in an answer.

use libc::{BPF_JEQ, BPF_JSET, sock_filter};

use super::Profile;
use super::tree::{give, jump, load_argument, mask};
use crate::policy::{Checked, Clause, Condition, Test};

/// Code that asks the clauses in order. It refers to nothing outside itself.
pub(super) fn code(checked: &Checked, profile: Profile) -> Vec<sock_filter> {
    let clauses = checked.clauses.iter().filter(|clause| profile.debug || !clause.debug_only);
    clauses.flat_map(ask).chain([give(checked.otherwise)]).collect()
}

/// Answers if all the conditions hold, else goes on behind.
fn ask(clause: &Clause) -> Vec<sock_filter> {
    let mut behind = vec![give(clause.then)];
    for condition in clause.when.iter().rev() {
        behind.splice(0..0, decide(condition, behind.len() as u8));
    }
    behind
}

/// Goes on if the condition holds, else skips `rest` instructions more.
fn decide(condition: &Condition, rest: u8) -> Vec<sock_filter> {
    let mut code = vec![load_argument(condition.argument)];
    match condition.test {
        Test::AnyBit => code.push(jump(BPF_JSET, condition.mask, 0, rest)),
        Test::OneOf(values) => {
            if condition.mask != u32::MAX {
                code.push(mask(condition.mask));
            }
            for (left, value) in (0..values.len() as u8).rev().zip(values) {
                let otherwise = if left == 0 { rest } else { 0 };
                code.push(jump(BPF_JEQ, *value, left, otherwise));
            }
        }
    }
    code
}
