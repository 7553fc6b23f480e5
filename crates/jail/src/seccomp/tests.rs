use std::collections::BTreeMap;

use libc::sock_filter;
use proptest::prelude::*;

use super::tree::{ARCHITECTURE, X32_BIT, verdict};
use super::{Draft, Profile, Program};
use crate::policy::{
    ALLOWED, ALLOWED_HERE, ASKED, Answer, CHECKED, Call, Checked, Clause, Condition, DEBUG, GUEST_ONLY,
    PRETENDED, REFUSED, REFUSED_HERE, Test, WORD_HIGH, WORD_LOW,
};

const DEFAULT: Profile = Profile { debug: false };
const DEBUGGER: Profile = Profile { debug: true };

/// The word that stands in the tables themselves.
const WORD: u64 = (WORD_HIGH as u64) << 32 | WORD_LOW as u64;

fn compile(profile: Profile) -> Program {
    super::compile(profile).with_word(WORD)
}

/// Runs a filter as the kernel would.
fn evaluate(program: &Program, number: u32, architecture: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0u64.to_ne_bytes());
    data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
    let (mut line, mut accumulator) = (0, 0u32);
    loop {
        let sock_filter { code, jt, jf, k } = program.0[line];
        line += 1;
        let mut branch = |taken: bool| line += usize::from(if taken { jt } else { jf });
        match code {
            0x20 => accumulator = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap()),
            0x54 => accumulator &= k,
            0x05 => line += k as usize,
            0x15 => branch(accumulator == k),
            0x35 => branch(accumulator >= k),
            0x45 => branch(accumulator & k != 0),
            0x06 => return k,
            other => panic!("instruction {other:#x} is not one we emit"),
        }
    }
}

fn errno(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

fn lists(table: &[&[Call]], number: u32) -> bool {
    table.iter().any(|calls| calls.iter().any(|call| call.1 == libc::c_long::from(number)))
}

/// What the tables say, by a plain look-up.
fn expected(number: u32, arguments: [u64; 6], profile: Profile) -> u32 {
    if lists(&[ALLOWED, ALLOWED_HERE, GUEST_ONLY], number) || profile.debug && lists(&[DEBUG], number) {
        return libc::SECCOMP_RET_ALLOW;
    }
    if lists(&[PRETENDED], number) {
        return errno(0);
    }
    if lists(&[ASKED], number) {
        return libc::SECCOMP_RET_USER_NOTIF;
    }
    if lists(&[REFUSED, REFUSED_HERE, DEBUG], number) {
        return errno(libc::EPERM);
    }
    match CHECKED.iter().find(|checked| checked.call.1 == libc::c_long::from(number)) {
        None => errno(libc::ENOSYS),
        Some(checked) => verdict(answer(checked, arguments, profile, None)),
    }
}

/// What a checked call's clauses say, with one of them left out if asked.
fn answer(checked: &Checked, arguments: [u64; 6], profile: Profile, without: Option<usize>) -> Answer {
    let clauses = checked.clauses.iter().enumerate().filter(|(place, _)| Some(*place) != without);
    let mut fitting = clauses
        .map(|(_, clause)| clause)
        .filter(|clause| profile.debug || !clause.debug_only)
        .filter(|clause| clause.when.iter().all(|condition| holds(condition, arguments)));
    fitting.next().map_or(checked.otherwise, |clause| clause.then)
}

fn holds(condition: &Condition, arguments: [u64; 6]) -> bool {
    let value = arguments[condition.argument as usize] as u32 & condition.mask;
    match condition.test {
        Test::OneOf(values) => values.contains(&value),
        Test::AnyBit => value != 0,
    }
}

/// Values at which some clause changes its mind, with their neighbours, each also with rubbish in the upper half.
fn telling_values() -> Vec<u64> {
    let mut values: Vec<u64> = (0..32).map(|bit| 1 << bit).collect();
    for condition in CHECKED.iter().flat_map(|checked| checked.clauses).flat_map(|clause| clause.when) {
        if let Test::OneOf(them) = condition.test {
            values.extend(
                them.iter().flat_map(|it| [it.wrapping_sub(1), *it, it.wrapping_add(1)]).map(u64::from),
            );
        }
        values.extend([condition.mask, !condition.mask].map(u64::from));
    }
    values.sort_unstable();
    values.dedup();
    values.extend(values.clone().iter().map(|value| value | 0x1_0000_0000));
    values
}

/// Arguments at which this clause is asked: all its conditions hold.
fn fitting(clause: &Clause) -> [u64; 6] {
    let mut arguments = [0; 6];
    for condition in clause.when {
        arguments[condition.argument as usize] = u64::from(match condition.test {
            Test::OneOf(values) => values[0],
            Test::AnyBit => condition.mask,
        });
    }
    arguments
}

#[test]
fn the_tree_says_what_the_tables_say() {
    let values = telling_values();
    for profile in [DEFAULT, DEBUGGER] {
        let program = compile(profile);
        for number in 0..=600 {
            assert_eq!(
                evaluate(&program, number, ARCHITECTURE, [0; 6]),
                expected(number, [0; 6], profile),
                "call {number} under {profile:?}"
            );
        }
        for checked in CHECKED {
            let number = checked.call.1 as u32;
            let bases = checked.clauses.iter().map(fitting).chain([[0; 6]]);
            for (base, &value, place) in bases
                .flat_map(|base| values.iter().map(move |value| (base, value)))
                .flat_map(|(base, value)| (0..6).map(move |place| (base, value, place)))
            {
                let mut arguments = base;
                arguments[place] = value;
                assert_eq!(
                    evaluate(&program, number, ARCHITECTURE, arguments),
                    expected(number, arguments, profile),
                    "{} with {arguments:x?} under {profile:?}",
                    checked.call.0
                );
            }
        }
    }
}

/// A clause that could be taken out without changing any answer says nothing, or hides what another says.
#[test]
fn no_clause_is_redundant() {
    let values = telling_values();
    for checked in CHECKED {
        for (place, clause) in checked.clauses.iter().enumerate() {
            let profile = Profile { debug: clause.debug_only };
            let base = fitting(clause);
            let mut tried = values.iter().flat_map(|value| {
                (0..6).map(move |argument| {
                    let mut arguments = base;
                    arguments[argument] = *value;
                    arguments
                })
            });
            let matters = |arguments| {
                answer(checked, arguments, profile, None) != answer(checked, arguments, profile, Some(place))
            };
            assert!(tried.any(matters), "{}: \"{}\" changes nothing", checked.call.0, clause.says);
        }
    }
}

/// The numbers themselves, written down a second time: a slip in the policy's constants shows here.
#[test]
fn what_is_checked_is_what_was_meant() {
    let refused = |call: libc::c_long, arguments: [u64; 6]| {
        evaluate(&compile(DEFAULT), call as u32, ARCHITECTURE, arguments)
    };
    let cases = [
        (libc::SYS_clone, [0x1000_0000, 0, 0, 0, 0, 0], errno(1)),
        (libc::SYS_clone, [0x0002_0011, 0, 0, 0, 0, 0], errno(1)),
        (libc::SYS_clone, [0x0120_0011, 0, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_fadvise64, [3, 0, 0, 4, 0, 0], errno(0)),
        (libc::SYS_fadvise64, [3, 0, 0, 3, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_madvise, [0, 0, 21, 0, 0, 0], errno(0)),
        (libc::SYS_madvise, [0, 0, 4, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_sync, [0; 6], errno(0)),
        (libc::SYS_syncfs, [3, 0, 0, 0, 0, 0], errno(0)),
        (libc::SYS_fsync, [3, 0, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_fdatasync, [3, 0, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_fcntl, [0, 1024, 0, 0, 0, 0], errno(1)),
        (libc::SYS_fcntl, [0, 1026, 0, 0, 0, 0], errno(1)),
        (libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0], errno(1)),
        (libc::SYS_ioctl, [0, 0x541c, 0, 0, 0, 0], errno(1)),
        (libc::SYS_mknodat, [0, 0, 0x2180, 0, 0, 0], errno(1)),
        (libc::SYS_mknodat, [0, 0, 0x6180, 0, 0, 0], errno(1)),
        (libc::SYS_mknodat, [0, 0, 0x1180, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_personality, [0x40000, 0, 0, 0, 0, 0], errno(1)),
        (libc::SYS_prctl, [35, 0, 0, 0, 0, 0], errno(1)),
        (libc::SYS_prctl, [22, 2, 0, 0, 0, 0], errno(22)),
        (libc::SYS_prctl, [38, 1, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_prlimit64, [1, 7, 0, 0, 0, 0], errno(1)),
        (libc::SYS_setsockopt, [3, 1, 26, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 50, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 51, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 52, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 37, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 65, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 61, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 1, 60, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 31, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 14, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 32, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 38, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 42, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 27, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 17, 100, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 0, 4, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 0, 39, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 0, 48, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 41, 57, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 6, 1, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_setsockopt, [3, 1, 8, 0, 0, 0], errno(0)),
        (libc::SYS_setsockopt, [3, 270, 12, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_setsockopt, [3, 0, 11, 0, 0, 0], errno(0)),
        (libc::SYS_setsockopt, [3, 41, 25, 0, 0, 0], errno(0)),
        (libc::SYS_setsockopt, [3, 41, 32, 0, 0, 0], errno(92)),
        (libc::SYS_setsockopt, [3, 41, 20, 0, 0, 0], errno(19)),
        (libc::SYS_setsockopt, [3, 41, 42, 0, 0, 0], errno(19)),
        (libc::SYS_setsockopt, [3, 41, 46, 0, 0, 0], errno(19)),
        (libc::SYS_setsockopt, [3, 41, 26, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_setsockopt, [3, 0, 35, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_setsockopt, [3, 1, 2, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_setsockopt, [3, 6, 18, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_setsockopt, [3, 270, 26, 0, 0, 0], errno(92)),
        (libc::SYS_mmap, [0, 4096, 3, 0x22, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_mmap, [0, 4096, 3, 0x4_0022, 0, 0], errno(12)),
        (libc::SYS_memfd_create, [0, 1, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_memfd_create, [0, 4, 0, 0, 0, 0], errno(22)),
        (libc::SYS_shmget, [0, 4096, 0o1600, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_shmget, [0, 4096, 0o5600, 0, 0, 0], errno(12)),
        (libc::SYS_socket, [40, 1, 0, 0, 0, 0], errno(97)),
        (libc::SYS_socket, [2, 10, 0, 0, 0, 0], errno(97)),
        (libc::SYS_socket, [2, 0x8_000a, 0, 0, 0, 0], errno(97)),
        (libc::SYS_socket, [1, 1, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW),
        (libc::SYS_socket, [2, 0x8_0001, 0, 0, 0, 0], libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_socket, [10, 1, 6, 0, 0, 0], libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_socket, [10, 2, 17, 0, 0, 0], libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_socket, [2, 2, 1, 0, 0, 0], libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_socket, [10, 2, 58, 0, 0, 0], libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_socket, [2, 1, 262, 0, 0, 0], errno(93)),
        (libc::SYS_socket, [10, 1, 262, 0, 0, 0], errno(93)),
        (libc::SYS_socket, [2, 2, 136, 0, 0, 0], errno(93)),
        (libc::SYS_socket, [10, 5, 132, 0, 0, 0], errno(93)),
        (libc::SYS_socket, [16, 3, 6, 0, 0, 0], errno(97)),
        (libc::SYS_socket, [16, 3, 0, 0, 0, 0], libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_socketpair, [2, 1, 0, 0, 0, 0], errno(97)),
    ];
    for (call, arguments, wanted) in cases {
        assert_eq!(refused(call, arguments), wanted, "call {call} with {arguments:x?}");
    }
}

proptest! {
    #[test]
    fn the_tree_says_what_the_tables_say_for_any_call(number in 0..X32_BIT, arguments: [u64; 6], debug: bool) {
        let profile = Profile { debug };
        prop_assert_eq!(evaluate(&compile(profile), number, ARCHITECTURE, arguments), expected(number, arguments, profile));
    }

    #[test]
    fn x32_is_killed(number in X32_BIT..) {
        let verdict = evaluate(&compile(DEBUGGER), number, ARCHITECTURE, [0; 6]);
        prop_assert_eq!(verdict, libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn foreign_architectures_are_killed(number: u32, architecture: u32) {
        prop_assume!(architecture != ARCHITECTURE);
        let verdict = evaluate(&compile(DEBUGGER), number, architecture, [0; 6]);
        prop_assert_eq!(verdict, libc::SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn no_call_is_in_two_tables() {
    let mut seen = BTreeMap::new();
    let checked: Vec<Call> = CHECKED.iter().map(|checked| checked.call).collect();
    for (name, number) in
        [ALLOWED, ALLOWED_HERE, ASKED, GUEST_ONLY, PRETENDED, REFUSED, REFUSED_HERE, DEBUG, &checked].concat()
    {
        if let Some(other) = seen.insert(number, name) {
            panic!("{name} and {other} are the same call, {number}");
        }
    }
}

#[test]
fn far_jumps_reach() {
    // Alternating rules cannot be merged, so this tree needs jumps longer than a conditional one can be.
    let allow = super::Rule::Answer(Answer::Allow);
    let nothing = super::Rule::Answer(Answer::Errno(libc::ENOSYS));
    let rules = (0..2000).map(|number| (number * 2, allow)).collect();
    let program = Draft(super::tree::assemble(&rules, nothing, DEFAULT)).with_word(WORD);
    for number in 0..4100 {
        let allowed = number < 4000 && number % 2 == 0;
        let wanted = if allowed { libc::SECCOMP_RET_ALLOW } else { errno(libc::ENOSYS) };
        assert_eq!(evaluate(&program, number, ARCHITECTURE, [0; 6]), wanted, "call {number}");
    }
}

/// Only the guest's own word opens what it does for others, and a draft's placeholder is nobody's word.
#[test]
fn each_guest_has_its_own_word() {
    let program = super::compile(DEFAULT).with_word(0x1122_3344_5566_7788);
    let ask = |low: u64, high: u64| {
        evaluate(&program, libc::SYS_socket as u32, ARCHITECTURE, [16, 3, 0, low, high, 0])
    };
    assert_eq!(ask(0x5566_7788, 0x1122_3344), libc::SECCOMP_RET_ALLOW);
    assert_eq!(ask(0x5566_7788, 0), libc::SECCOMP_RET_USER_NOTIF);
    assert_eq!(ask(0, 0x1122_3344), libc::SECCOMP_RET_USER_NOTIF);
    assert_eq!(ask(WORD_LOW.into(), WORD_HIGH.into()), libc::SECCOMP_RET_USER_NOTIF);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_compiled_filter_is_as_reviewed() {
    insta::assert_snapshot!("x86_64", compile(DEFAULT).disassemble());
}

/// Forks a child that does nothing but `body`, and returns its exit code.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only makes system calls and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let code = body();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "child ended with status {status:#x}");
    libc::WEXITSTATUS(status)
}

fn errno_of(number: libc::c_long, first: u64, second: u64, third: u64) -> i32 {
    // SAFETY: the calls under test are given no pointers they could write through.
    if unsafe { libc::syscall(number, first, second, third, 0) } >= 0 {
        return 0;
    }
    // SAFETY: errno's location is always valid for the thread.
    unsafe { *libc::__errno_location() }
}

fn attempts() -> [(libc::c_long, u64, u64, u64, i32); 9] {
    [
        (libc::SYS_fcntl, 0, libc::F_SETLEASE as u64, libc::F_RDLCK as u64, libc::EPERM),
        (libc::SYS_prlimit64, u64::from(std::process::id()), libc::RLIMIT_NOFILE as u64, 0, libc::EPERM),
        (libc::SYS_unshare, libc::CLONE_NEWUSER as u64, 0, 0, libc::EPERM),
        (libc::SYS_io_uring_setup, 0, 0, 0, libc::ENOSYS),
        (libc::SYS_socket, libc::AF_VSOCK as u64, libc::SOCK_STREAM as u64, 0, libc::EAFNOSUPPORT),
        (libc::SYS_ioctl, 0, 0x1_0000_5412, 0, libc::EPERM),
        (libc::SYS_socket, libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 6, libc::EAFNOSUPPORT),
        (libc::SYS_setsockopt, u64::MAX, 1, libc::SO_ATTACH_FILTER as u64, libc::ENOPROTOOPT),
        (libc::SYS_getpid, 0, 0, 0, 0),
    ]
}

#[test]
fn the_kernel_enforces_the_filter() {
    let program = compile(DEFAULT);
    let failed = in_child(|| {
        // SAFETY: takes no pointers.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return 100;
        }
        if program.install().is_err() {
            return 101;
        }
        for (index, (number, first, second, third, wanted)) in attempts().into_iter().enumerate() {
            if errno_of(number, first, second, third) != wanted {
                return index as i32 + 1;
            }
        }
        0
    });
    assert_eq!(failed, 0, "100: no_new_privs, 101: install, else the attempt's place, from 1");
}

/// The positive control: without the filter the kernel answers these differently.
#[test]
fn without_the_filter_the_kernel_answers_otherwise() {
    let failed = in_child(|| {
        for (index, (number, first, second, third, refused)) in attempts().into_iter().enumerate() {
            let answer = errno_of(number, first, second, third);
            if refused != 0 && answer == refused {
                return index as i32 + 1;
            }
        }
        0
    });
    assert_eq!(failed, 0, "the attempt's place, from 1");
}
