//! The system calls that the guest may make and what it starts may not.
//!
//! The sandbox's filter stands before the guest runs and lets it use `clone3`, to have children born in their
//! cgroups, `sched_setattr`, to give them longer turns at the processor than its own, and `seccomp`, to install this
//! filter. For everything else these calls are as if the kernel had none: libc falls back to `clone`, whose flags the
//! sandbox's filter can see, nobody inside pushes in before others, and nobody fills the kernel with filters.

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

use crate::step::{Step, Stopped, check};

const fn statement(code: u32, operand: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: operand }
}

/// Skips `yes` or `no` instructions, by the call's number.
const fn branch(call: libc::c_long, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: yes, jf: no, k: call as u32 }
}

/// The guest's own calls answer ENOSYS, everything else is left to the sandbox's filter.
static PROGRAM: [sock_filter; 6] = [
    statement(BPF_LD | BPF_W | BPF_ABS, 0),
    branch(libc::SYS_clone3, 2, 0),
    branch(libc::SYS_seccomp, 1, 0),
    branch(libc::SYS_sched_setattr, 0, 1),
    statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW),
];

/// Takes the guest's own calls away from this process and all it starts. Neither allocates nor locks.
pub(crate) fn give_up_guest_calls() -> Result<(), Stopped> {
    let program = libc::sock_fprog { len: PROGRAM.len() as u16, filter: PROGRAM.as_ptr().cast_mut() };
    // SAFETY: the program outlives the call, which only reads it.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    check(Step::Filter, result).map(drop)
}
