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
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::policy::{self, Answer};
use tree::Rule;

/// What the filter grants beyond the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Debuggers work: `ptrace`, `process_vm_readv` and switching off address randomisation.
    pub debug: bool,
}

/// A compiled filter, the same for all sandboxes: it lacks the word of the guest that it is for.
#[derive(Clone, Debug)]
pub struct Draft(Vec<libc::sock_filter>);

/// A filter, ready to be installed.
#[derive(Clone, Debug)]
pub struct Program(Vec<libc::sock_filter>);

/// Compiles the policy for the architecture this code was built for.
pub fn compile(profile: Profile) -> Draft {
    let refuse = Rule::Answer(Answer::Errno(libc::EPERM));
    let allow = Rule::Answer(Answer::Allow);
    let mut rules = BTreeMap::new();
    let mut put = |calls: &[policy::Call], rule| rules.extend(calls.iter().map(|call| (call.1 as u32, rule)));
    for calls in [policy::ALLOWED, policy::ALLOWED_HERE, policy::GUEST_ONLY] {
        put(calls, allow);
    }
    put(policy::PRETENDED, Rule::Answer(policy::IN_APPEARANCE));
    for calls in [policy::REFUSED, policy::REFUSED_HERE] {
        put(calls, refuse);
    }
    put(policy::ASKED, Rule::Answer(Answer::Ask));
    put(policy::DEBUG, if profile.debug { allow } else { refuse });
    for checked in policy::CHECKED {
        put(&[checked.call], Rule::Check(checked));
    }
    Draft(tree::assemble(&rules, Rule::Answer(Answer::Errno(libc::ENOSYS)), profile))
}

/// Compiles what a monitor may ask.
pub fn compile_for_monitor() -> Program {
    outside(&[policy::MONITOR], policy::MONITOR_CHECKED)
}

/// Compiles what the door's worker may ask.
pub fn compile_for_worker() -> Program {
    outside(&[policy::WORKER, policy::WORKER_HERE], policy::WORKER_CHECKED)
}

/// Compiles what whoever unpacks a stranger's archive may ask.
pub fn compile_for_unpacker() -> Program {
    outside(&[policy::UNPACKER], policy::UNPACKER_CHECKED)
}

/// A filter for one of our own processes outside.
fn outside(allowed: &[&[policy::Call]], checked: &'static [policy::Checked]) -> Program {
    let allowed = allowed.concat().into_iter().map(|call| (call.1 as u32, Rule::Answer(Answer::Allow)));
    let checked = checked.iter().map(|checked| (checked.call.1 as u32, Rule::Check(checked)));
    let rules: BTreeMap<u32, Rule> = allowed.chain(checked).collect();
    Program(tree::assemble(&rules, Rule::Answer(Answer::Errno(libc::EPERM)), Profile::default()))
}

impl Draft {
    /// The filter of one sandbox, whose guest is told this word and nobody else is.
    pub fn with_word(&self, word: u64) -> Program {
        let mut program = self.0.clone();
        for instruction in &mut program {
            match instruction.k {
                policy::WORD_LOW => instruction.k = word as u32,
                policy::WORD_HIGH => instruction.k = (word >> 32) as u32,
                _ => {}
            }
        }
        Program(program)
    }
}

impl Program {
    /// Puts the calling thread, and all it will start, under the filter for good. Answers the descriptor on which
    /// the guest hears what it is asked; without it those calls do not exist.
    ///
    /// The thread must have `no_new_privs` set. Neither allocates nor locks, so it may run between fork and exec.
    pub fn install(&self) -> io::Result<OwnedFd> {
        // Once the guest has heard a call, only death interrupts it: otherwise a signal would make it be asked twice.
        let listener =
            self.load(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)?;
        // SAFETY: the kernel has just given us this descriptor, and only us.
        Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) })
    }

    /// The same for a filter that asks nobody.
    pub fn install_silently(&self) -> io::Result<()> {
        self.load(0).map(drop)
    }

    fn load(&self, flags: libc::c_ulong) -> io::Result<libc::c_long> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` points to `len` instructions that outlive the call; the kernel only reads them.
        let loaded = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
        };
        if loaded < 0 { Err(io::Error::last_os_error()) } else { Ok(loaded) }
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
