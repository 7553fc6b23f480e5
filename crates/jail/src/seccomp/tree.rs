//! From rules by system-call number to BPF: ranges, then a binary search over them.

use std::collections::BTreeMap;

use libc::sock_filter;

use super::Profile;
use super::clauses::code;
use crate::policy::{Answer, Checked};

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Set in the number of every x32 call; no other architecture has numbers this high.
pub(super) const X32_BIT: u32 = 0x4000_0000;

const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

/// What happens to a system call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Answer(Answer),
    Check(&'static Checked),
}

impl Rule {
    /// Whether neighbours with these rules can share one leaf of the tree.
    fn merges_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Answer(one), Self::Answer(another)) if one == another)
    }
}

/// Compiles `rules`; numbers without one follow `default`.
pub(super) fn assemble(rules: &BTreeMap<u32, Rule>, default: Rule, profile: Profile) -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        kill(),
        load(NUMBER_OFFSET),
        jump(libc::BPF_JGE, X32_BIT, 0, 1),
        kill(),
    ];
    program.extend(search(&ranges(rules, default), profile));
    program
}

/// Cuts the numbers into the fewest ranges of equal rule; each is given by its first number and reaches to the next.
fn ranges(rules: &BTreeMap<u32, Rule>, default: Rule) -> Vec<(u32, Rule)> {
    let mut ranges: Vec<(u32, Rule)> = Vec::new();
    let mut push = |first, rule| {
        if ranges.last().is_none_or(|(_, last)| !last.merges_with(rule)) {
            ranges.push((first, rule));
        }
    };
    let mut next = 0;
    for (&number, &rule) in rules {
        if number > next {
            push(next, default);
        }
        push(number, rule);
        next = number + 1;
    }
    push(next, default);
    ranges
}

/// Code that finds the accumulator's range and follows its rule. It refers to nothing outside itself, so it can be
/// put anywhere.
fn search(ranges: &[(u32, Rule)], profile: Profile) -> Vec<sock_filter> {
    if let [(_, rule)] = ranges {
        return match rule {
            Rule::Answer(answer) => vec![give(*answer)],
            Rule::Check(checked) => code(checked, profile),
        };
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (below, above) = (search(low, profile), search(high, profile));
    let mut code = match u8::try_from(below.len()) {
        Ok(distance) => vec![jump(libc::BPF_JGE, high[0].0, distance, 0)],
        // Conditional jumps reach 255 instructions; farther needs an unconditional one.
        Err(_) => vec![jump(libc::BPF_JGE, high[0].0, 0, 1), jump(libc::BPF_JA, below.len() as u32, 0, 0)],
    };
    code.extend(below);
    code.extend(above);
    code
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

/// Loads the low half of an argument.
pub(super) fn load_argument(index: u32) -> sock_filter {
    load(ARGUMENTS_OFFSET + 8 * index)
}

/// Keeps the accumulator's bits that are in `mask`.
pub(super) fn mask(mask: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0, 0)
}

/// Compares the accumulator to `k`, and skips `yes` or `no` instructions.
pub(super) fn jump(comparison: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    instruction(libc::BPF_JMP | comparison | libc::BPF_K, k, yes, no)
}

/// Ends the filter with an answer.
pub(super) fn give(answer: Answer) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, verdict(answer), 0, 0)
}

/// An answer as the kernel has it.
pub(super) fn verdict(answer: Answer) -> u32 {
    match answer {
        Answer::Allow => libc::SECCOMP_RET_ALLOW,
        Answer::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
        Answer::Ask => libc::SECCOMP_RET_USER_NOTIF,
    }
}

fn kill() -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0)
}

/// One instruction as text; `line` is its own place, from which jumps are counted.
pub(super) fn mnemonic(line: usize, instruction: &sock_filter) -> String {
    let sock_filter { code, jt, jf, k } = *instruction;
    let target = |distance: u32| line + 1 + distance as usize;
    let branch = |name: &str| format!("{name} {k:#x} then {} else {}", target(jt.into()), target(jf.into()));
    match u32::from(code) {
        code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => match k {
            NUMBER_OFFSET => "load number".into(),
            ARCHITECTURE_OFFSET => "load architecture".into(),
            _ => format!("load argument {}", (k - ARGUMENTS_OFFSET) / 8),
        },
        code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => format!("and {k:#x}"),
        code if code == libc::BPF_JMP | libc::BPF_JA => format!("goto {}", target(k)),
        code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => branch("if =="),
        code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => {
            format!("if >= {k} then {} else {}", target(jt.into()), target(jf.into()))
        }
        code if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => branch("if any of"),
        _ => match k {
            libc::SECCOMP_RET_ALLOW => "allow".into(),
            libc::SECCOMP_RET_USER_NOTIF => "ask the guest".into(),
            libc::SECCOMP_RET_KILL_PROCESS => "kill".into(),
            _ => format!("errno {}", k & libc::SECCOMP_RET_DATA),
        },
    }
}
