//! The system-call filter: what a sandbox may ask of the kernel at all.
//!
//! One default-deny filter serves everything inside, PID 1 and root-inside included; the guest takes the calls that
//! are its own from whatever it starts. It is compiled from [`crate::policy`] as a binary search over system-call
//! numbers, which loads faster than a list and decides in a dozen instructions.

mod clauses;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

use crate::policy::{self, Answer};
use tree::Rule;

/// What the filter grants beyond the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Debuggers work: `ptrace`, `process_vm_readv` and switching off address randomisation.
    pub debug: bool,
}

/// A compiled filter, ready to be installed.
#[derive(Clone, Debug)]
pub struct Program(Vec<libc::sock_filter>);

/// Compiles the policy for the architecture this code was built for.
pub fn compile(profile: Profile) -> Program {
    let refuse = Rule::Answer(Answer::Errno(libc::EPERM));
    let allow = Rule::Answer(Answer::Allow);
    let mut rules = BTreeMap::new();
    let mut put = |calls: &[policy::Call], rule| rules.extend(calls.iter().map(|call| (call.1 as u32, rule)));
    for calls in [policy::ALLOWED, policy::ALLOWED_HERE, policy::GUEST_ONLY] {
        put(calls, allow);
    }
    for calls in [policy::REFUSED, policy::REFUSED_HERE] {
        put(calls, refuse);
    }
    put(policy::DEBUG, if profile.debug { allow } else { refuse });
    for checked in policy::CHECKED {
        put(&[checked.call], Rule::Check(checked));
    }
    Program(tree::assemble(&rules, Rule::Answer(Answer::Errno(libc::ENOSYS)), profile))
}

impl Program {
    /// Puts the calling thread, and all it will start, under the filter for good.
    ///
    /// The thread must have `no_new_privs` set. Neither allocates nor locks, so it may run between fork and exec.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` points to `len` instructions that outlive the call; the kernel only reads them.
        let result =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The instructions as text, one a line, jump targets as line numbers.
    pub fn disassemble(&self) -> String {
        let mut text = String::new();
        for (line, instruction) in self.0.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line:3} {}", tree::mnemonic(line, instruction));
        }
        text
    }
}
