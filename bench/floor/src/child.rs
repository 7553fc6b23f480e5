//! What the child does between its birth in new namespaces and the exec: plain system calls, no allocation.

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use libc::{MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC, c_char, c_int, c_ulong};

/// Everything the child needs, prepared by the parent.
pub(crate) struct Birth<'a> {
    /// Descriptors of `tasks` files to write `0` to; -1 where there is none.
    pub(crate) joins: [c_int; 4],
    /// Readable when the parent has written the id maps.
    pub(crate) released: c_int,
    /// Where the program's output goes.
    pub(crate) output: c_int,
    /// Where the new root is put together; the child covers it for itself alone.
    pub(crate) stage: &'a CStr,
    /// The options of the overlay.
    pub(crate) overlay: &'a CStr,
    /// What is mounted besides, where all of a sandbox's mounts are wanted.
    pub(crate) more: Option<&'a More>,
    /// Program and arguments, ended by a null.
    pub(crate) argv: &'a [*const c_char],
}

/// Where each device is, and where it goes; the stage is the current directory.
const DEVICES: [(&CStr, &CStr); 4] = [
    (c"/dev/null", c"root/dev/null"),
    (c"/dev/zero", c"root/dev/zero"),
    (c"/dev/random", c"root/dev/random"),
    (c"/dev/urandom", c"root/dev/urandom"),
];

/// Takes every step and becomes the program. Each step has a number, which is the exit status when it fails.
pub(crate) fn become_program(birth: &Birth<'_>) -> ! {
    let failed_step = steps(birth);
    // SAFETY: ends this process at once.
    unsafe { libc::_exit(failed_step) }
}

fn steps(birth: &Birth<'_>) -> c_int {
    // What needs no mapped id is done while the parent writes the maps on another processor.
    for descriptor in birth.joins.into_iter().filter(|descriptor| *descriptor >= 0) {
        // SAFETY: writes one byte from a constant to an open descriptor.
        if unsafe { libc::write(descriptor, c"0".as_ptr().cast(), 1) } != 1 {
            return 101;
        }
    }
    // SAFETY: plain system calls on numbers; the name is as long as said.
    unsafe {
        if libc::unshare(libc::CLONE_NEWCGROUP) != 0 {
            return 102;
        }
        if libc::sethostname(c"floor".as_ptr(), 5) != 0 {
            return 103;
        }
    }
    if !loopback_up() {
        return 104;
    }
    let mut byte = 0u8;
    // SAFETY: reads one byte into a local; then plain system calls on numbers.
    unsafe {
        if libc::read(birth.released, (&raw mut byte).cast(), 1) != 1 {
            return 105;
        }
        if libc::syscall(libc::SYS_setresgid, 0, 0, 0) != 0
            || libc::syscall(libc::SYS_setresuid, 0, 0, 0) != 0
        {
            return 106;
        }
    }
    let failed = mounts(birth.stage, birth.overlay, birth.more);
    if failed != 0 {
        return failed;
    }
    exec(birth.argv, birth.output)
}

/// Becomes the program, or answers with the step's number.
pub(crate) fn exec(argv: &[*const c_char], output: c_int) -> c_int {
    let environment: [*const c_char; 2] = [c"PATH=/usr/bin:/bin".as_ptr(), null()];
    // SAFETY: plain system call on numbers; then both arrays end in null and hold valid strings.
    unsafe {
        libc::dup2(output, libc::STDOUT_FILENO);
        libc::execve(argv[0], argv.as_ptr(), environment.as_ptr());
    }
    120
}

/// The mounts that the jail has besides, prepared by the parent.
pub(crate) struct More {
    /// Directories to make on the stage before anything is mounted on them, and links.
    pub(crate) directories: Vec<CString>,
    /// Copy-on-write layers: options and target.
    pub(crate) layers: Vec<(CString, CString)>,
    /// Links in `/dev`: where to, and where.
    pub(crate) links: Vec<(&'static CStr, &'static CStr)>,
    /// What of `/proc` is covered by a device, by an empty directory, or by itself and read-only.
    pub(crate) masks: [Vec<CString>; 3],
}

impl More {
    /// Before the root is built: a disk, and the directories on it.
    fn disk(&self) -> bool {
        mount(c"floor", c"disk", c"tmpfs", MS_NOSUID | MS_NODEV, Some(c"size=1g,nr_inodes=131072,mode=0755"))
            && self.directories.iter().all(|path| {
                // SAFETY: the path ends in null.
                unsafe { libc::mkdir(path.as_ptr(), 0o755) == 0 }
            })
    }

    /// On the root: layers, directories of its own, shared memory, terminals.
    fn on_root(&self) -> bool {
        let plain = MS_NOSUID | MS_NODEV;
        self.layers.iter().all(|(options, target)| mount(c"floor", target, c"overlay", plain, Some(options)))
            && mount(c"disk/run", c"root/run", c"", MS_BIND, None)
    }

    fn in_dev(&self) -> bool {
        // SAFETY: every path ends in null.
        let made = unsafe {
            self.links.iter().all(|(to, at)| libc::symlink(to.as_ptr(), at.as_ptr()) == 0)
                && libc::mkdir(c"root/dev/shm".as_ptr(), 0o1777) == 0
                && libc::mkdir(c"root/dev/pts".as_ptr(), 0o755) == 0
        };
        let plain = MS_NOSUID | MS_NOEXEC;
        made && mount(c"floor", c"root/dev/shm", c"tmpfs", plain | MS_NODEV, Some(c"size=64m,mode=1777"))
            && mount(
                c"devpts",
                c"root/dev/pts",
                c"devpts",
                plain,
                Some(c"newinstance,ptmxmode=0666,mode=0620"),
            )
    }

    /// After the pivot: what `/proc` is not to tell.
    fn masks(&self) -> bool {
        let [files, directories, read_only] = &self.masks;
        let flags = MS_NOSUID | MS_NODEV;
        files.iter().all(|path| mount(c"/dev/null", path, c"", MS_BIND, None))
            && directories.first().is_none_or(|first| {
                mount(c"floor", first, c"tmpfs", flags | libc::MS_RDONLY, Some(c"size=0"))
                    && directories[1..].iter().all(|path| mount(first, path, c"", MS_BIND, None))
            })
            && read_only.iter().all(|path| {
                let again = MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY | flags | MS_NOEXEC;
                mount(path, path, c"", MS_BIND, None) && mount(c"", path, c"", again, None)
            })
    }
}

fn mounts(stage: &CStr, overlay: &CStr, more: Option<&More>) -> c_int {
    let plain = MS_NOSUID | MS_NODEV;
    if !mount(c"floor", stage, c"tmpfs", plain, Some(c"mode=0755")) {
        return 107;
    }
    // SAFETY: every path ends in null.
    unsafe {
        if libc::chdir(stage.as_ptr()) != 0
            || libc::mkdir(c"disk".as_ptr(), 0o755) != 0
            || libc::mkdir(c"root".as_ptr(), 0o755) != 0
            || !more.is_none_or(More::disk)
            || libc::mkdir(c"disk/upper".as_ptr(), 0o755) != 0
            || libc::mkdir(c"disk/work".as_ptr(), 0o755) != 0
        {
            return 108;
        }
    }
    if !mount(c"floor", c"root", c"overlay", plain, Some(overlay)) {
        return 109;
    }
    let usr = match more {
        Some(more) => more.on_root(),
        None => mount(c"/usr", c"root/usr", c"", MS_BIND | MS_REC, None),
    };
    if !usr {
        return 115;
    }
    if !mount(c"proc", c"root/proc", c"proc", plain | MS_NOEXEC, None) {
        return 110;
    }
    let tmp = match more {
        Some(_) => mount(c"disk/tmp", c"root/tmp", c"", MS_BIND, None),
        None => mount(c"floor", c"root/tmp", c"tmpfs", plain, Some(c"mode=1777")),
    };
    if !tmp {
        return 111;
    }
    if !mount(c"floor", c"root/dev", c"tmpfs", MS_NOSUID | MS_NOEXEC, Some(c"mode=0755")) {
        return 112;
    }
    for (source, target) in DEVICES {
        // SAFETY: a constant path; the descriptor is closed at once.
        let made = unsafe {
            let file = libc::open(target.as_ptr(), libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC, 0o666);
            file >= 0 && libc::close(file) == 0
        };
        if !made || !mount(source, target, c"", MS_BIND, None) {
            return 113;
        }
    }
    if !more.is_none_or(More::in_dev) {
        return 116;
    }
    // SAFETY: constant paths. The old root lies on top of the new one after the pivot, and is let go.
    unsafe {
        if libc::chdir(c"root".as_ptr()) != 0
            || libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) != 0
            || libc::umount2(c".".as_ptr(), libc::MNT_DETACH) != 0
            || libc::chdir(c"/".as_ptr()) != 0
        {
            return 114;
        }
    }
    if more.is_none_or(More::masks) { 0 } else { 117 }
}

fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: c_ulong, options: Option<&CStr>) -> bool {
    let options = options.map_or(null_mut(), |options| options.as_ptr().cast_mut());
    // SAFETY: every string ends in null and outlives the call.
    unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.cast()) == 0 }
}

fn loopback_up() -> bool {
    // SAFETY: an all-zero ifreq is valid and its name field is longer than "lo"; SIOCSIFFLAGS reads an ifreq.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return false;
        }
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as c_char;
        request.ifr_name[1] = b'o' as c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let up = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) == 0;
        libc::close(socket) == 0 && up
    }
}
