use std::collections::BTreeMap;

use libc::sock_filter;
use proptest::prelude::*;

use super::argument::{ADDR_NO_RANDOMIZE, Check, NAMESPACE_FLAGS, PERSONALITY_QUERY, SOCK_PACKET};
use super::policy::{ALLOWED, ALLOWED_HERE, CHECKED, Call, DEBUG, GUEST_ONLY, REFUSED, REFUSED_HERE};
use super::tree::{ARCHITECTURE, X32_BIT};
use super::{Profile, Program, compile};

const DEFAULT: Profile = Profile { debug: false };
const DEBUGGER: Profile = Profile { debug: true };

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
    let [first, second, third] = [arguments[0] as u32, arguments[1] as u32, arguments[2] as u32];
    let allowed_if = |allowed, otherwise| if allowed { libc::SECCOMP_RET_ALLOW } else { errno(otherwise) };
    if lists(&[ALLOWED, ALLOWED_HERE, GUEST_ONLY], number) {
        return libc::SECCOMP_RET_ALLOW;
    }
    if lists(&[DEBUG], number) {
        return allowed_if(profile.debug, libc::EPERM);
    }
    if lists(&[REFUSED, REFUSED_HERE], number) {
        return errno(libc::EPERM);
    }
    match CHECKED.iter().find(|(call, _)| call.1 == libc::c_long::from(number)) {
        None => errno(libc::ENOSYS),
        Some((_, Check::Clone)) => allowed_if(first & 0x7e02_0080 == 0, libc::EPERM),
        Some((_, Check::Fcntl)) => allowed_if(second != 1024 && second != 1026, libc::EPERM),
        Some((_, Check::Prlimit)) => allowed_if(first == 0, libc::EPERM),
        Some((_, Check::Ioctl)) => allowed_if(second != 0x5412 && second != 0x541c, libc::EPERM),
        Some((_, Check::Personality)) => {
            let debugger = profile.debug && first == 0x40000;
            allowed_if(first == 0 || first == u32::MAX || debugger, libc::EPERM)
        }
        Some((_, Check::Mknod { mode })) => {
            let mode = if *mode == 1 { second } else { third };
            allowed_if([0, 0x1000, 0x8000, 0xc000].contains(&(mode & 0xf000)), libc::EPERM)
        }
        Some((_, Check::Prctl)) => allowed_if(first != 35, libc::EPERM),
        Some((_, Check::Socket)) => {
            let allowed = match first {
                1 | 10 => true,
                2 => second & 0xf != 10,
                16 => third == 0,
                _ => false,
            };
            allowed_if(allowed, libc::EAFNOSUPPORT)
        }
        Some((_, Check::Socketpair)) => allowed_if(first == 1, libc::EAFNOSUPPORT),
    }
}

/// Values at which some check changes its mind, each also with rubbish in the upper half.
fn telling_values() -> Vec<u64> {
    let mut values: Vec<u64> = (0..=46).collect();
    values.extend([0x2180, 0x6180, 0x1180, 0x8180, 0xc180, 0x41ff]);
    values.extend([1023, 1024, 1025, 1026, 1027]);
    values.extend([0x5411, 0x5412, 0x5413, 0x541b, 0x541c, 0x541d, 0x80, 0x8000a, 0x80002]);
    values.extend([PERSONALITY_QUERY, ADDR_NO_RANDOMIZE, NAMESPACE_FLAGS, SOCK_PACKET].map(u64::from));
    values.extend((0..32).map(|bit| 1 << bit));
    values.extend(values.clone().iter().map(|value| value | 0x1_0000_0000));
    values
}

#[test]
fn the_tree_says_what_the_tables_say() {
    let values = telling_values();
    for profile in [DEFAULT, DEBUGGER] {
        let program = compile(profile);
        for number in 0..=600 {
            for &value in &values {
                for arguments in
                    [[value; 6], [value, 0, 0, 0, 0, 0], [2, value, 0, 0, 0, 0], [16, 3, value, 0, 0, 0]]
                {
                    assert_eq!(
                        evaluate(&program, number, ARCHITECTURE, arguments),
                        expected(number, arguments, profile),
                        "call {number} with {arguments:x?} under {profile:?}"
                    );
                }
            }
        }
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
    let checked: Vec<Call> = CHECKED.iter().map(|(call, _)| *call).collect();
    for (name, number) in [ALLOWED, ALLOWED_HERE, GUEST_ONLY, REFUSED, REFUSED_HERE, DEBUG, &checked].concat()
    {
        if let Some(other) = seen.insert(number, name) {
            panic!("{name} and {other} are the same call, {number}");
        }
    }
}

#[test]
fn far_jumps_reach() {
    // Alternating rules cannot be merged, so this tree needs jumps longer than a conditional one can be.
    let rules = (0..2000).map(|number| (number * 2, super::Rule::Allow)).collect();
    let program = Program(super::tree::assemble(&rules, super::Rule::Errno(libc::ENOSYS), DEFAULT));
    for number in 0..4100 {
        let allowed = number < 4000 && number % 2 == 0;
        let wanted = if allowed { libc::SECCOMP_RET_ALLOW } else { errno(libc::ENOSYS) };
        assert_eq!(evaluate(&program, number, ARCHITECTURE, [0; 6]), wanted, "call {number}");
    }
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

fn attempts() -> [(libc::c_long, u64, u64, u64, i32); 8] {
    [
        (libc::SYS_fcntl, 0, libc::F_SETLEASE as u64, libc::F_RDLCK as u64, libc::EPERM),
        (libc::SYS_prlimit64, u64::from(std::process::id()), libc::RLIMIT_NOFILE as u64, 0, libc::EPERM),
        (libc::SYS_unshare, libc::CLONE_NEWUSER as u64, 0, 0, libc::EPERM),
        (libc::SYS_io_uring_setup, 0, 0, 0, libc::ENOSYS),
        (libc::SYS_socket, libc::AF_VSOCK as u64, libc::SOCK_STREAM as u64, 0, libc::EAFNOSUPPORT),
        (libc::SYS_ioctl, 0, 0x1_0000_5412, 0, libc::EPERM),
        (libc::SYS_socket, libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 6, libc::EAFNOSUPPORT),
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
