//! Whether the walls behind the namespaces stand: no new privileges, the system-call filter, Landlock. Each is
//! tried with a control: what it refuses was possible just before.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::probe::{Failing, Proof, in_child, refused};
use super::{Area, Check};
use crate::landlock::{self, Reach};
use crate::namespaces::check;
use crate::seccomp::{self, Profile};

/// The first version that keeps signals and abstract sockets inside.
const SCOPING_ABI: i32 = 6;

pub(super) fn examine() -> Vec<Check> {
    vec![
        Check::required(
            Area::Walls,
            "no new privileges",
            in_child(no_new_privileges),
            "needs Linux 3.5 or newer",
        ),
        Check::required(
            Area::Walls,
            "system-call filter",
            in_child(system_call_filter),
            "needs a kernel with CONFIG_SECCOMP and CONFIG_SECCOMP_FILTER; a container must not forbid seccomp",
        ),
        landlock(landlock::abi()),
    ]
}

fn forbid_new_privileges() -> Result<(), String> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop).failing("set no_new_privs")
}

fn no_new_privileges() -> Proof {
    forbid_new_privileges()?;
    let status = fs::read_to_string("/proc/self/status").failing("read /proc/self/status")?;
    match status.lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"])) {
        true => Ok("set, and the kernel confirms it: set-user-id programs give nothing".into()),
        false => Err("no_new_privs was set, but the kernel does not show it".into()),
    }
}

/// Asks for no namespace at all, which everyone may.
fn harmless_unshare() -> io::Result<i32> {
    // SAFETY: plain system call on a number.
    check(unsafe { libc::unshare(0) })
}

fn system_call_filter() -> Proof {
    forbid_new_privileges()?;
    let program = seccomp::compile(Profile::default()).with_word(0);
    harmless_unshare().failing("call unshare before the filter is installed")?;
    program.install().failing("install a system-call filter (seccomp)")?;
    refused("unshare behind the filter", harmless_unshare(), libc::EPERM)?;
    Ok("installed the filter of every sandbox, and it refused unshare, which was allowed before".into())
}

fn landlock(abi: i32) -> Check {
    let name = "Landlock";
    if abi < 1 {
        return Check::degraded(
            Area::Walls,
            name,
            "this kernel has none: files are guarded by mounts and permissions only",
            "use a kernel from 5.13 on with CONFIG_SECURITY_LANDLOCK, and `landlock` in the lsm= boot parameter"
                .to_owned(),
        );
    }
    match in_child(|| landlock_refuses(abi)) {
        Ok(finding) if abi < SCOPING_ABI => Check::degraded(
            Area::Walls,
            name,
            format!("{finding}; this version cannot keep signals inside, so namespaces alone do"),
            "use Linux 6.12 or newer".to_owned(),
        ),
        Ok(finding) => Check::ok(Area::Walls, name, finding),
        Err(finding) => Check::missing(
            Area::Walls,
            name,
            finding,
            "Landlock is there and does not do its work: report this, with the kernel's version".to_owned(),
        ),
    }
}

fn landlock_refuses(abi: i32) -> Proof {
    let (allowed, denied) = (Path::new("/usr"), Path::new("/etc"));
    let place = fs::File::open(allowed).failing("open /usr")?;
    let rules =
        landlock::ruleset(&[place.as_fd()], &[], &[], Reach::OwnDomain).failing("make Landlock rules")?;
    fs::read_dir(denied).failing("open /etc before the rules apply")?;
    forbid_new_privileges()?;
    landlock::restrict_self(rules.as_fd()).failing("apply Landlock rules")?;
    fs::read_dir(allowed).failing("open /usr, which the rules allow")?;
    refused("opening /etc behind the rules", fs::read_dir(denied), libc::EACCES)?;
    Ok(format!("version {abi}: /usr could be opened and /etc could not, as the rules said"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_kernel_without_landlock_loses_a_wall_and_not_sandboxes() {
        let check = landlock(0);
        assert_eq!(check.status, Status::Degraded);
        assert!(check.advice.unwrap().contains("CONFIG_SECURITY_LANDLOCK"));
    }
}
