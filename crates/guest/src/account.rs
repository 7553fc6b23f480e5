//! Becoming one of the sandbox's users, for good.
//!
//! Runs between fork and exec: nothing here allocates.

use belljar_core::Wall;
use belljar_core::wire::Account;
use libc::c_long;

use crate::filter;
use crate::step::{Step, Stopped, check};

/// What a child process turns into.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    uid: u32,
    gid: u32,
    capabilities: u64,
    landlock: Option<i32>,
    change_ids: bool,
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
struct CapabilitySet {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

impl Identity {
    /// The identity of an account. Without a mapped root (`change_ids` false) there is one id only, and no right to
    /// change ids or the bounding set.
    pub(crate) fn new(account: &Account, change_ids: bool) -> Self {
        Self {
            uid: account.uid,
            gid: account.gid,
            capabilities: account.capabilities,
            landlock: account.landlock_fd,
            change_ids,
        }
    }

    /// Gives up everything this identity does not have.
    pub(crate) fn assume(&self) -> Result<(), Stopped> {
        if self.change_ids {
            self.leave_groups_and_bounds()?;
            self.change_ids()?;
        }
        self.keep_capabilities()?;
        self.enter_landlock()?;
        if Wall::GuestFilter.stands() { filter::give_up_guest_calls() } else { Ok(()) }
    }

    fn leave_groups_and_bounds(&self) -> Result<(), Stopped> {
        // SAFETY: a count of zero makes the kernel ignore the pointer.
        check(Step::Groups, unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) })?;
        let last = if Wall::BoundingSet.stands() && Wall::Capabilities.stands() { 64 } else { 0 };
        for capability in 0..last {
            if self.capabilities & (1 << capability) != 0 {
                continue;
            }
            // SAFETY: this prctl takes a number only.
            let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as c_long, 0, 0, 0) };
            match check(Step::Bounding, c_long::from(dropped)) {
                // The first number that the kernel does not know is past the last capability.
                Err(stopped) if stopped.errno == libc::EINVAL => break,
                other => other?,
            };
        }
        Ok(())
    }

    fn change_ids(&self) -> Result<(), Stopped> {
        // SAFETY: these calls take numbers only.
        unsafe {
            libc::prctl(libc::PR_SET_KEEPCAPS, c_long::from(!Wall::Capabilities.stands()), 0, 0, 0);
            check(Step::Ids, libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid))?;
            check(Step::Ids, libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid))?;
        }
        Ok(())
    }

    fn keep_capabilities(&self) -> Result<(), Stopped> {
        if !Wall::Capabilities.stands() {
            return keep_those_of_the_guest();
        }
        let kept = if self.uid == 0 && self.change_ids { self.capabilities } else { 0 };
        let half =
            |bits: u64| CapabilitySet { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
        let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
        let sets = [half(kept), half(kept >> 32)];
        // SAFETY: header and sets have the layout of version 3 and outlive the call.
        unsafe {
            libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
            check(Step::Capabilities, libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()))?;
        }
        Ok(())
    }

    fn enter_landlock(&self) -> Result<(), Stopped> {
        let Some(ruleset) = self.landlock.filter(|_| Wall::LandlockExecution.stands()) else { return Ok(()) };
        // SAFETY: this call takes numbers only.
        check(Step::Landlock, unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) })?;
        Ok(())
    }
}

/// For a test that takes this wall down: hands what the guest itself has to the program that is started next.
fn keep_those_of_the_guest() -> Result<(), Stopped> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let empty = || CapabilitySet { effective: 0, permitted: 0, inheritable: 0 };
    let mut sets = [empty(), empty()];
    // SAFETY: header and sets have the layout of version 3 and outlive the calls; the last takes numbers only.
    unsafe {
        check(Step::Capabilities, libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()))?;
        for half in &mut sets {
            half.effective = half.permitted;
            half.inheritable = half.permitted;
        }
        check(Step::Capabilities, libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()))?;
        for capability in 0..64 {
            libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability as c_long, 0, 0);
        }
    }
    Ok(())
}
