//! A monitor, or the door's worker, under somebody else's will: the suite makes system calls in its place, as a bug in it
//! would let others do.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::attack::within;

/// What these programs rest in.
const RESTING: [i64; 3] = [libc::SYS_ppoll, libc::SYS_epoll_wait, libc::SYS_epoll_pwait];

/// A process that is held.
pub(crate) struct Possessed {
    pid: i32,
    before: libc::user_regs_struct,
    memory: File,
}

impl Possessed {
    /// Takes hold of a process once it waits in a system call.
    pub(crate) fn hold(pid: i32) -> io::Result<Self> {
        let waits = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            call.split(' ')
                .next()
                .and_then(|number| number.parse().ok())
                .is_some_and(|at| RESTING.contains(&at))
        };
        if !within(Duration::from_secs(10), waits) {
            return Err(io::Error::other("it does not come to rest"));
        }
        request(libc::PTRACE_ATTACH, pid, 0)?;
        stopped(pid)?;
        let before = registers(pid)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self { pid, before, memory })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Makes it call. Text that an argument points to is put on its stack, one after the other.
    pub(crate) fn call(&self, number: i64, arguments: &[Argument<'_>]) -> io::Result<i64> {
        let mut set = self.before;
        // It waits in a call, so the two bytes before this place are the instruction that calls.
        set.rip -= 2;
        let mut instruction = [0; 2];
        self.memory.read_exact_at(&mut instruction, set.rip)?;
        if instruction != [0x0f, 0x05] {
            return Err(io::Error::other("it does not wait in a system call"));
        }
        let mut room = self.before.rsp - 16_384;
        let mut values = [0; 6];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => *number as u64,
                Argument::Bytes(bytes) => {
                    self.memory.write_all_at(bytes, room)?;
                    room += (bytes.len() as u64).next_multiple_of(16);
                    room - (bytes.len() as u64).next_multiple_of(16)
                }
            };
        }
        [set.rdi, set.rsi, set.rdx, set.r10, set.r8, set.r9] = values;
        set.rax = number as u64;
        set.orig_rax = u64::MAX;
        write_registers(self.pid, &set)?;
        request(libc::PTRACE_SINGLESTEP, self.pid, 0)?;
        stopped(self.pid)?;
        let result = registers(self.pid)?.rax as i64;
        if (-4095..0).contains(&result) {
            Err(io::Error::from_raw_os_error(-result as i32))
        } else {
            Ok(result)
        }
    }

    /// Reads from a descriptor of its.
    pub(crate) fn read(&self, descriptor: i64, most: usize) -> io::Result<Vec<u8>> {
        let space = vec![0; most];
        let count = self.call(
            libc::SYS_read,
            &[Argument::Number(descriptor), Argument::Bytes(&space), Argument::Number(most as i64)],
        )?;
        let mut bytes = vec![0; count as usize];
        self.memory.read_exact_at(&mut bytes, self.before.rsp - 16_384)?;
        Ok(bytes)
    }
}

impl Drop for Possessed {
    fn drop(&mut self) {
        let _ = write_registers(self.pid, &self.before);
        let _ = request(libc::PTRACE_DETACH, self.pid, 0);
    }
}

/// One argument of a call.
pub(crate) enum Argument<'a> {
    Number(i64),
    Bytes(&'a [u8]),
}

fn request(request: libc::c_uint, pid: i32, data: u64) -> io::Result<()> {
    // SAFETY: the requests used here take numbers only.
    let result = unsafe { libc::ptrace(request, pid, 0, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn stopped(pid: i32) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    if waited == pid && libc::WIFSTOPPED(status) { Ok(()) } else { Err(io::Error::other("it did not stop")) }
}

fn registers(pid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a valid set of registers, and the kernel fills it.
    let mut set: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is what this request writes to.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut set) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(set) }
}

fn write_registers(pid: i32, set: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: the structure is what this request reads from.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const *set) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
