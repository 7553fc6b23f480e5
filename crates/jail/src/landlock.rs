//! Landlock, the second wall behind the mounts: should one of them be wrong, files stay out of reach all the same.
//!
//! A ruleset is made in the sandbox's view and travels as a descriptor to the program that applies it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{Mode, OFlags};

/// The newest version of Landlock whose rights this module knows; an older kernel handles those it has.
const NEWEST: ABI = ABI::V7;
const CREATE_RULESET_VERSION: u32 = 1;

/// How far signals and abstract unix sockets reach from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only processes that share the very call of [`restrict_self`], as descendants of its caller do, and what those
    /// restrict further. Two processes that each applied the same ruleset are strangers to each other.
    OwnDomain,
    /// Wherever namespaces and credentials allow.
    Anywhere,
}

/// Why there is no ruleset.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel was built or booted without Landlock, or has one too old to be of use.
    #[error("the kernel has no usable Landlock")]
    Unsupported,
    /// The kernel refused to make a ruleset.
    #[error("cannot create a Landlock ruleset")]
    Create(#[source] RulesetError),
    /// A path exists and cannot be opened.
    #[error("cannot open {path} for a Landlock rule")]
    Open {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a rule.
    #[error("cannot add a Landlock rule")]
    AddRule(#[source] RulesetError),
    /// A ruleset could not be put where it is wanted.
    #[error("cannot copy a descriptor: {0}")]
    Descriptor(io::Error),
}

/// The version of Landlock the kernel speaks; 0 when it has none.
pub fn abi() -> i32 {
    // SAFETY: with this flag the kernel takes no attributes and only returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    version.max(0) as i32
}

/// Opens what rules are to be about. Paths that do not exist are skipped.
pub fn places(paths: &[&str]) -> Result<Vec<OwnedFd>, LandlockError> {
    let open = |path: &&str| match rustix::fs::open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Some(Ok(fd)),
        Err(rustix::io::Errno::NOENT) => None,
        Err(errno) => Some(Err(LandlockError::Open { path: path.into(), source: errno.into() })),
    };
    paths.iter().filter_map(open).collect()
}

/// Makes a ruleset that denies every handled file access except reading and executing below `read_only`, all but
/// device nodes and device ioctls below `read_write`, and reading, writing and ioctls on `devices`.
///
/// Network access is not handled. The caller's own rights do not change.
pub fn ruleset(
    read_only: &[BorrowedFd<'_>],
    read_write: &[BorrowedFd<'_>],
    devices: &[BorrowedFd<'_>],
    reach: Reach,
) -> Result<OwnedFd, LandlockError> {
    let all = AccessFs::from_all(NEWEST);
    let mut handled = Ruleset::default().handle_access(all).map_err(LandlockError::Create)?;
    if reach == Reach::OwnDomain {
        handled = handled.scope(Scope::from_all(NEWEST)).map_err(LandlockError::Create)?;
    }
    let mut rules = handled.create().map_err(LandlockError::Create)?;

    let write = all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let device = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev;
    for (places, access) in [(read_only, AccessFs::from_read(NEWEST)), (read_write, write), (devices, device)]
    {
        for place in places {
            rules = rules.add_rule(PathBeneath::new(place, access)).map_err(LandlockError::AddRule)?;
        }
    }
    Option::<OwnedFd>::from(rules).ok_or(LandlockError::Unsupported)
}

/// The same for whoever makes a layer of files: reading below `readable`, and all below `writable` but devices of blocks. The marks
/// by which layers take files away are made as devices of characters.
pub fn layer_ruleset(
    readable: &[BorrowedFd<'_>],
    writable: BorrowedFd<'_>,
) -> Result<OwnedFd, LandlockError> {
    let all = AccessFs::from_all(NEWEST);
    let handled = Ruleset::default().handle_access(all).map_err(LandlockError::Create)?;
    let handled = handled.scope(Scope::from_all(NEWEST)).map_err(LandlockError::Create)?;
    let mut rules = handled.create().map_err(LandlockError::Create)?;
    let write = all & !(AccessFs::MakeBlock | AccessFs::IoctlDev | AccessFs::Execute);
    let places = readable.iter().map(|place| (*place, AccessFs::ReadFile | AccessFs::ReadDir));
    for (place, access) in places.chain([(writable, write)]) {
        rules = rules.add_rule(PathBeneath::new(place, access)).map_err(LandlockError::AddRule)?;
    }
    Option::<OwnedFd>::from(rules).ok_or(LandlockError::Unsupported)
}

/// Puts the calling thread, and all it will start, under a ruleset for good.
///
/// The thread must have `no_new_privs` set. Neither allocates nor locks, so it may run between fork and exec.
pub fn restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor and no pointers.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    const IMPOSSIBLE: i32 = 99;

    fn wait(child: i32) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "child ended with status {status:#x}");
        libc::WEXITSTATUS(status)
    }

    fn fork(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only makes system calls and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            let code = body();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) };
        }
        child
    }

    fn errno() -> i32 {
        // SAFETY: errno's location is always valid for the thread.
        unsafe { *libc::__errno_location() }
    }

    /// Applies `ruleset`, then runs `body`.
    fn confined(ruleset: BorrowedFd<'_>, body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: takes no pointers.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0
            || restrict_self(ruleset).is_err()
        {
            return IMPOSSIBLE;
        }
        body()
    }

    fn open_errno(path: &CString, flags: i32) -> i32 {
        // SAFETY: `path` is a C string that outlives the call.
        if unsafe { libc::open(path.as_ptr(), flags, 0o600) } >= 0 { 0 } else { errno() }
    }

    fn in_confinement(ruleset: &OwnedFd, path: &Path, flags: i32) -> i32 {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        wait(fork(|| confined(ruleset.as_fd(), || open_errno(&path, flags))))
    }

    #[test]
    fn only_what_is_listed_can_be_reached() {
        assert!(abi() >= 1, "this test needs a kernel with Landlock");
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for directory in ["library", "work", "secret"] {
            fs::create_dir(path(directory)).unwrap();
            fs::write(path(directory).join("file"), "x").unwrap();
        }
        let open = |path: &Path| places(&[path.to_str().unwrap()]).unwrap();
        assert!(open(&path("missing")).is_empty());
        let (library, work, null) =
            (open(&path("library")), open(&path("work")), open(Path::new("/dev/null")));
        let rules =
            ruleset(&[library[0].as_fd()], &[work[0].as_fd()], &[null[0].as_fd()], Reach::OwnDomain).unwrap();

        let opened = |name: &str, flags| in_confinement(&rules, &path(name), flags);
        assert_eq!(opened("library/file", libc::O_RDONLY), 0);
        assert_eq!(opened("library", libc::O_RDONLY | libc::O_DIRECTORY), 0);
        assert_eq!(opened("library/file", libc::O_WRONLY), libc::EACCES);
        assert_eq!(opened("library/new", libc::O_WRONLY | libc::O_CREAT), libc::EACCES);
        assert_eq!(opened("work/new", libc::O_RDWR | libc::O_CREAT), 0);
        assert_eq!(opened("work/file", libc::O_RDWR | libc::O_TRUNC), 0);
        assert_eq!(opened("secret/file", libc::O_RDONLY), libc::EACCES);
        assert_eq!(in_confinement(&rules, Path::new("/dev/null"), libc::O_RDWR | libc::O_TRUNC), 0);
        assert_eq!(in_confinement(&rules, Path::new("/dev/zero"), libc::O_RDONLY), libc::EACCES);

        let control = CString::new(path("secret/file").as_os_str().as_bytes()).unwrap();
        assert_eq!(wait(fork(|| open_errno(&control, libc::O_RDONLY))), 0, "readable without the ruleset");
    }

    #[test]
    fn device_nodes_cannot_be_made_in_writable_places() {
        let root = tempfile::tempdir().unwrap();
        let place = places(&[root.path().to_str().unwrap()]).unwrap();
        let rules = ruleset(&[], &[place[0].as_fd()], &[], Reach::OwnDomain).unwrap();
        let make = |name: &str, mode| {
            let path = CString::new(root.path().join(name).as_os_str().as_bytes()).unwrap();
            wait(fork(|| {
                confined(rules.as_fd(), || {
                    // SAFETY: `path` is a C string that outlives the call.
                    if unsafe { libc::mknod(path.as_ptr(), mode, libc::makedev(1, 3)) } == 0 {
                        0
                    } else {
                        errno()
                    }
                })
            }))
        };
        assert_eq!(make("pipe", libc::S_IFIFO | 0o600), 0);
        assert_ne!(make("null", libc::S_IFCHR | 0o600), 0);
        assert_ne!(make("disk", libc::S_IFBLK | 0o600), 0);
    }

    fn signal_errno(pid: i32) -> i32 {
        // SAFETY: takes no pointers; signal 0 only asks whether one could be sent.
        if unsafe { libc::kill(pid, 0) } == 0 { 0 } else { errno() }
    }

    /// Forks a child that stays until it is killed.
    fn idle() -> i32 {
        fork(|| {
            loop {
                // SAFETY: takes no arguments.
                unsafe { libc::pause() };
            }
        })
    }

    fn end(child: i32) {
        // SAFETY: takes no pointers; `child` is an unreaped child of ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn signals_reach_relatives_but_not_outsiders() {
        if abi() < 6 {
            println!("skipped: this kernel's Landlock does not scope signals");
            return;
        }
        let outside = idle();
        let scoped = ruleset(&[], &[], &[], Reach::OwnDomain).unwrap();
        let open = ruleset(&[], &[], &[], Reach::Anywhere).unwrap();
        let to_outsider = |rules: &OwnedFd| wait(fork(|| confined(rules.as_fd(), || signal_errno(outside))));
        assert_eq!(to_outsider(&scoped), libc::EPERM);
        assert_eq!(to_outsider(&open), 0);

        let to_sibling = wait(fork(|| {
            confined(scoped.as_fd(), || {
                let first = idle();
                let second = fork(|| signal_errno(first));
                let answer = wait(second);
                end(first);
                answer
            })
        }));
        assert_eq!(to_sibling, 0);
        end(outside);
    }

    #[test]
    fn two_applications_of_one_ruleset_are_two_domains() {
        if abi() < 6 {
            println!("skipped: this kernel's Landlock does not scope signals");
            return;
        }
        let answer = |reach| {
            let rules = ruleset(&[], &[], &[], reach).unwrap();
            let (ready, report) = io::pipe().unwrap();
            let first = fork(|| {
                confined(rules.as_fd(), || {
                    let _ = rustix::io::write(&report, b"!");
                    loop {
                        // SAFETY: takes no arguments.
                        unsafe { libc::pause() };
                    }
                })
            });
            assert_eq!(rustix::io::read(&ready, &mut [0u8; 1]), Ok(1));
            let answer = wait(fork(|| confined(rules.as_fd(), || signal_errno(first))));
            end(first);
            answer
        };
        assert_eq!(answer(Reach::OwnDomain), libc::EPERM);
        assert_eq!(answer(Reach::Anywhere), 0);
    }
}
