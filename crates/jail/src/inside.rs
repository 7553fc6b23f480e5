//! From a bare child in new namespaces to the guest behind its walls: the steps that the child itself takes.
//!
//! The child of a single-threaded process goes through these in order and then becomes the guest. A step that fails
//! ends it: the step and the error go back through a pipe, and no sandbox comes to be.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use belljar_core::Wall;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_remount, move_mount, open_tree, unmount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::doorway;
use crate::landlock::{self, Reach};
use crate::mounts::{self, Ownership};
use crate::namespaces::{self, become_root, check, loopback_up};
use crate::plan::Plan;
use crate::policy::{self, bits};
use crate::seccomp::Program;

/// The control socket, as the guest finds it.
pub const CONTROL_FD: RawFd = 3;
/// The Landlock ruleset of the default user.
pub const USER_RULES_FD: RawFd = 4;
/// The Landlock ruleset of root inside.
pub const ROOT_RULES_FD: RawFd = 5;
/// The first of the cgroup directories.
pub const FIRST_CGROUP_FD: RawFd = 6;
/// Where the guest hears what the filter asks: behind its cgroup directories.
pub const fn questions_fd(cgroups: usize) -> RawFd {
    FIRST_CGROUP_FD + cgroups as RawFd
}

/// The table of locks, behind that.
pub const fn locks_fd(cgroups: usize) -> RawFd {
    questions_fd(cgroups) + 1
}

/// Above every descriptor that the guest is given.
const FIRST_FREE_FD: RawFd = 64;

/// What stays in the bounding set while the guest runs.
const GUEST_CAPABILITIES: u64 = bits(policy::ROOT_CAPABILITIES) | bits(policy::GUEST_CAPABILITIES);

/// What of `/proc` tells about the host or steers it, and reads as empty inside.
const MASKED_FILES: [&str; 27] = [
    "buddyinfo",
    "cmdline",
    "config.gz",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "locks",
    "modules",
    "mtrr",
    "pagetypeinfo",
    "partitions",
    "sched_debug",
    "schedstat",
    "slabinfo",
    "softirqs",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
    "zoneinfo",
];
const MASKED_DIRECTORIES: [&str; 8] = ["acpi", "asound", "bus", "driver", "fs", "irq", "pressure", "scsi"];
const READ_ONLY: [&str; 2] = ["sys", "tty"];

/// Directories that the default user may write to, as far as permissions go.
const USER_WRITABLE: [&str; 8] = ["/dev/shm", "/home", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var"];
/// So many directories of a template's own root are looked at.
const MOST_DIRECTORIES: usize = 1024;
/// Directories that only root inside may write to.
const ROOT_WRITABLE: [&str; 6] = ["/bin", "/etc", "/lib", "/root", "/sbin", "/usr"];

/// The step at which the child stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Entering its cgroups.
    Cgroups,
    /// Waiting for the parent to map its ids.
    Released,
    /// Becoming root of the user namespace.
    Identity,
    /// Entering the other namespaces.
    Namespaces,
    /// Building the file system (rootless only; otherwise the parent did).
    FileSystem,
    /// Mounting a fresh `/proc`.
    Proc,
    /// Mounting terminals of its own.
    Terminals,
    /// Making the tree the root, and letting go of the host's.
    Pivot,
    /// Bounding the connections that wait to be accepted.
    Backlog,
    /// Having connections keep the mark of their execution.
    Marks,
    /// Hiding what `/proc` says about the host.
    Masks,
    /// Forbidding further namespaces.
    NestedNamespaces,
    /// Setting the host name.
    HostName,
    /// Bringing up loopback.
    Loopback,
    /// Making the way to the door.
    Doorway,
    /// Making Landlock rules.
    LandlockRules,
    /// Leaving the launcher's session.
    Session,
    /// Putting descriptors in their places.
    Descriptors,
    /// Dropping capabilities.
    Capabilities,
    /// Forbidding new privileges.
    NoNewPrivileges,
    /// Entering Landlock.
    Landlock,
    /// Installing the system-call filter.
    Seccomp,
    /// Becoming the guest.
    Exec,
}

impl Step {
    const ALL: [Self; 23] = [
        Self::Cgroups,
        Self::Released,
        Self::Identity,
        Self::Namespaces,
        Self::FileSystem,
        Self::Proc,
        Self::Terminals,
        Self::Pivot,
        Self::Backlog,
        Self::Marks,
        Self::Masks,
        Self::NestedNamespaces,
        Self::HostName,
        Self::Loopback,
        Self::Doorway,
        Self::LandlockRules,
        Self::Session,
        Self::Descriptors,
        Self::Capabilities,
        Self::NoNewPrivileges,
        Self::Landlock,
        Self::Seccomp,
        Self::Exec,
    ];

    /// What failed, in words.
    pub fn what(self) -> &'static str {
        match self {
            Self::Cgroups => "cannot enter its cgroups",
            Self::Released => "the launcher went away",
            Self::Identity => "cannot become root of the user namespace",
            Self::Namespaces => "cannot enter namespaces",
            Self::FileSystem => "cannot build the file system",
            Self::Proc => "cannot mount a fresh /proc",
            Self::Terminals => "cannot mount terminals (devpts)",
            Self::Pivot => "cannot change the root (pivot_root)",
            Self::Backlog => "cannot bound the connections that wait to be accepted (net.core.somaxconn)",
            Self::Marks => "cannot have connections tell whose they are (net.ipv4.tcp_fwmark_accept)",
            Self::Masks => "cannot mask parts of /proc",
            Self::NestedNamespaces => "cannot forbid nested namespaces",
            Self::HostName => "cannot set the host name",
            Self::Loopback => "cannot bring up the loopback interface",
            Self::Doorway => "cannot make the way to the door",
            Self::LandlockRules => "cannot make Landlock rules",
            Self::Session => "cannot leave the session",
            Self::Descriptors => "cannot arrange file descriptors",
            Self::Capabilities => "cannot drop capabilities",
            Self::NoNewPrivileges => "cannot set no_new_privs",
            Self::Landlock => "cannot enter Landlock",
            Self::Seccomp => "cannot install the system-call filter (seccomp)",
            Self::Exec => "cannot start the guest program",
        }
    }
}

/// What the child says when it fails: one byte for the step, then the error in words.
#[derive(Debug)]
pub struct Failure {
    /// Where it stopped.
    pub step: Step,
    /// Why.
    pub error: String,
}

impl Failure {
    /// Reads what came through the pipe; nothing means success.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first()?;
        let step = Step::ALL.get(usize::from(*first)).copied().unwrap_or(Step::Exec);
        Some(Self { step, error: String::from_utf8_lossy(rest).into_owned() })
    }
}

/// What the child needs.
#[derive(Debug)]
pub struct Inside<'a> {
    /// The plan of the sandbox.
    pub plan: &'a Plan,
    /// Whether only one id is mapped and the child builds its own file system.
    pub rootless: bool,
    /// The guest program, open.
    pub guest: BorrowedFd<'a>,
    /// The guest's end of the control socket.
    pub control: BorrowedFd<'a>,
    /// Files through which it enters its cgroups.
    pub cgroup_tasks: &'a [File],
    /// The file through which it goes on within its cgroup namespace, where that is necessary.
    pub cgroup_onward: Option<&'a File>,
    /// Directories of its cgroups.
    pub cgroups: &'a [BorrowedFd<'a>],
    /// How deep the version-two cgroup of an execution is, where each has one.
    pub leaf_level: Option<u32>,
    /// The compiled filter.
    pub seccomp: &'a Program,
}

trait At<T> {
    fn at(self, step: Step) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> At<T> for Result<T, E> {
    fn at(self, step: Step) -> Result<T, Failure> {
        self.map_err(|error| Failure { step, error: error.to_string() })
    }
}

/// Takes all the steps; does not return unless one fails, which it says on `report`.
pub fn enter(inside: &Inside<'_>, release: OwnedFd, report: OwnedFd) -> ! {
    // Out of the way of the places that the guest's descriptors will take.
    let report = lift(report.as_fd()).unwrap_or(report);
    let Err(failure) = become_guest(inside, release);
    let mut message = vec![failure.step as u8];
    message.extend_from_slice(failure.error.as_bytes());
    let _ = File::from(report).write_all(&message);
    // SAFETY: ends this process at once, without running the parent's exit handlers.
    unsafe { libc::_exit(1) }
}

fn become_guest(inside: &Inside<'_>, release: OwnedFd) -> Result<std::convert::Infallible, Failure> {
    for mut tasks in inside.cgroup_tasks {
        tasks.write_all(b"0").at(Step::Cgroups)?;
    }
    // What needs neither ids nor files is done while the parent sees to those.
    if inside.plan.doorway {
        // Its rules count cgroups from the root of the cgroup namespace in which they are made, so that must be the host's.
        own_network(inside)?;
        make_doorway(inside, &release)?;
    }
    if let Some(mut onward) = inside.cgroup_onward {
        if Wall::CgroupNamespace.stands() {
            // SAFETY: plain system call; the process is single-threaded.
            check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }).at(Step::Namespaces)?;
        }
        onward.write_all(b"0").at(Step::Cgroups)?;
        // The parent waits for this to set limits.
        rustix::io::write(&release, &[0]).at(Step::Cgroups)?;
    }
    if !inside.plan.doorway {
        own_network(inside)?;
    }
    // SAFETY: plain system call; not a group leader yet, being freshly forked.
    check(unsafe { libc::setsid() }).at(Step::Session)?;
    if Wall::BoundingSet.stands() {
        // Without root inside nobody there will ever hold one, and the guest has none to lower the set with.
        let kept = if inside.rootless { 0 } else { GUEST_CAPABILITIES };
        drop_bounding_set(kept).at(Step::Capabilities)?;
    }
    let root = await_release(&release).at(Step::Released)?;
    drop(release);
    if let Some(root) = &root {
        become_root().at(Step::Identity)?;
        // By descriptor, for the sandbox's user may not walk there; and before the mount namespace is entered, which
        // takes the current directory along.
        rustix::process::fchdir(root).at(Step::FileSystem)?;
    }
    // SAFETY: plain system call; the process is single-threaded.
    check(unsafe { libc::unshare(own_namespaces(inside)) }).at(Step::Namespaces)?;
    mounts::make_private().at(Step::Namespaces)?;
    if root.is_none() {
        mounts::assemble(inside.plan, Ownership::Own).at(Step::FileSystem)?;
        std::env::set_current_dir("root").at(Step::FileSystem)?;
    }
    own_tree().at(Step::Pivot)?;
    proc_and_terminals(inside.rootless)?;
    pivot().at(Step::Pivot)?;
    if Wall::NoNestedNamespaces.stands() {
        fs::write("/proc/sys/user/max_user_namespaces", "0").at(Step::NestedNamespaces)?;
    }
    bound_socket_buffers();
    bound_backlogs().at(Step::Backlog)?;
    if inside.plan.doorway && inside.leaf_level.is_some() {
        fs::write("/proc/sys/net/ipv4/tcp_fwmark_accept", "1").at(Step::Marks)?;
    }
    // Nobody inside may read it, but the guest.
    let locks = File::open("/proc/locks").at(Step::Masks)?;
    mask_proc().at(Step::Masks)?;
    walls(inside, locks.into())
}

/// Enters the namespaces that need no ids, and gives them what every sandbox has there.
fn own_network(inside: &Inside<'_>) -> Result<(), Failure> {
    namespaces::enter_namespaces().at(Step::Namespaces)?;
    if Wall::UtsNamespace.stands() {
        rustix::system::sethostname(inside.plan.id.as_str().as_bytes()).at(Step::HostName)?;
    }
    if Wall::NetNamespace.stands() {
        loopback_up().at(Step::Loopback)?;
    }
    Ok(())
}

/// Makes the way to the door, and gives the parent its sockets, of which none stays here.
fn make_doorway(inside: &Inside<'_>, parent: &OwnedFd) -> Result<(), Failure> {
    if !Wall::NetNamespace.stands() {
        // It would be the host's network in which it is made.
        return Err(io::Error::other("the sandbox has no network of its own")).at(Step::Doorway);
    }
    let doorway = doorway::open(inside.leaf_level).at(Step::Doorway)?;
    doorway::pass(parent, &[u8::from(doorway.marks)], &doorway.descriptors()).at(Step::Doorway).map(drop)
}

/// The namespaces that the child enters by itself.
fn own_namespaces(inside: &Inside<'_>) -> libc::c_int {
    let cgroup = Wall::CgroupNamespace.stands() && inside.cgroup_onward.is_none();
    libc::CLONE_NEWNS | if cgroup { libc::CLONE_NEWCGROUP } else { 0 }
}

/// Waits for the parent. If it built the file system, its root comes along.
fn await_release(release: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(release, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// Puts a copy of the tree on top of itself and steps into it: only a mount that this namespace made itself can
/// become its root.
fn own_tree() -> io::Result<()> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, ".", flags)?;
    move_mount(&tree, c"", CWD, ".", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(rustix::process::fchdir(&tree)?)
}

fn proc_and_terminals(rootless: bool) -> Result<(), Failure> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if Wall::PidNamespace.stands() {
        mount("proc", "proc", "proc", flags, None).at(Step::Proc)?;
    } else {
        mount_bind_recursive("/proc", "proc").at(Step::Proc)?;
    }
    if !Wall::OwnTerminals.stands() {
        return mount_bind_recursive("/dev/pts", "dev/pts").at(Step::Terminals);
    }
    let max = if Wall::TerminalCount.stands() { ",max=64" } else { "" };
    let group = if rootless { "" } else { ",gid=5" };
    let options = format!("newinstance,ptmxmode=0666,mode=0620{max}{group}\0");
    let options = CStr::from_bytes_until_nul(options.as_bytes()).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", "dev/pts", "devpts", flags, options).at(Step::Terminals)
}

fn pivot() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    if Wall::HostTreeDetached.stands() {
        unmount(".", UnmountFlags::DETACH)?;
    }
    std::env::set_current_dir("/")
}

/// Buffers of sockets are not always counted as the sandbox's memory (never in version-one cgroups without a limit of
/// their own), so each gets little. Best effort: the kernel may lack a family.
fn bound_socket_buffers() {
    if !Wall::SocketMemoryLimit.stands() {
        return;
    }
    // What has been received is charged to nobody until the connection is accepted, and the third number is what a
    // sender of single bytes can have it grow to; it is enough for more than a gigabyte a second through loopback.
    for (file, sizes) in [("tcp_rmem", "4096 8192 32768"), ("tcp_wmem", "4096 16384 131072")] {
        let _ = fs::write(Path::new("/proc/sys/net/ipv4").join(file), sizes);
    }
}

/// A connection is charged to whoever accepts it, and until then to nobody, so few may wait.
/// Before Linux 6.3 that cannot be said, and the guest lets fewer listen.
fn bound_backlogs() -> io::Result<()> {
    if !Wall::ListenerCount.stands() || !Wall::NetNamespace.stands() {
        return Ok(());
    }
    match fs::write("/proc/sys/net/core/somaxconn", "128") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

fn mask_proc() -> io::Result<()> {
    if Wall::ProcMasks.stands() {
        for name in MASKED_FILES {
            if_there(mount_bind("/dev/null", in_proc(name)))?;
        }
        // One empty file system serves all, for each costs the kernel memory in every memory cgroup of the machine.
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        let mut empty = None;
        for path in MASKED_DIRECTORIES.map(in_proc) {
            let masked = match &empty {
                Some(empty) => mount_bind(empty, &path),
                None => mount("belljar", &path, "tmpfs", flags, c"size=0"),
            };
            if if_there(masked)? {
                empty.get_or_insert(path);
            }
        }
    }
    if Wall::ProcReadOnly.stands() {
        let flags = MountFlags::BIND
            | MountFlags::RDONLY
            | MountFlags::NOSUID
            | MountFlags::NODEV
            | MountFlags::NOEXEC;
        for path in READ_ONLY.map(in_proc) {
            if if_there(mount_bind(&path, &path))? {
                mount_remount(&path, flags, c"")?;
            }
        }
    }
    Ok(())
}

fn in_proc(name: &str) -> PathBuf {
    Path::new("/proc").join(name)
}

/// Whether there was something to mount on: kernels differ in what `/proc` has.
fn if_there(mounted: rustix::io::Result<()>) -> io::Result<bool> {
    match mounted {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Landlock rulesets, descriptors, capabilities, no_new_privs, Landlock, seccomp, exec; from here on nothing can be
/// mounted or opened that the rules do not name.
fn walls(inside: &Inside<'_>, locks: OwnedFd) -> Result<std::convert::Infallible, Failure> {
    let guest = lift(inside.guest).at(Step::Descriptors)?;
    let rules = Rules::make(inside, &guest).at(Step::LandlockRules)?;
    let locks = lift(locks.as_fd()).at(Step::Descriptors)?;
    arrange_descriptors(inside, rules.as_ref()).at(Step::Descriptors)?;
    place(locks, locks_fd(inside.cgroups.len())).at(Step::Descriptors)?;
    if Wall::NoNewPrivileges.stands() {
        // SAFETY: plain system call.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).at(Step::NoNewPrivileges)?;
    }
    if let (Some(rules), true) = (&rules, Wall::LandlockSandbox.stands()) {
        landlock::restrict_self(rules.guest.as_fd()).at(Step::Landlock)?;
    }
    if Wall::Seccomp.stands() {
        let listener = inside.seccomp.install().at(Step::Seccomp)?;
        place(listener, questions_fd(inside.cgroups.len())).at(Step::Descriptors)?;
    }
    let argv = [c"belljar-guest".as_ptr(), std::ptr::null()];
    let environment = guest_environment();
    let envp: Vec<*const libc::c_char> =
        environment.iter().map(|variable| variable.as_ptr()).chain([std::ptr::null()]).collect();
    let empty: &CStr = c"";
    // SAFETY: both arrays end in null and hold valid strings; the descriptor is open.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            guest.as_raw_fd(),
            empty.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(io::Error::last_os_error()).at(Step::Exec)
}

/// The guest has no variables but, where walls can be taken down, the one that says which.
fn guest_environment() -> Vec<CString> {
    let mut environment = Vec::new();
    #[cfg(feature = "ablation")]
    environment.push(belljar_core::wall::ablation::passed_on());
    if !Wall::CleanEnvironment.stands() {
        environment.extend(std::env::vars().map(|(name, value)| (name.leak() as &str, value)));
    }
    environment.into_iter().filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok()).collect()
}

/// The three sets of Landlock rules.
struct Rules {
    guest: OwnedFd,
    user: OwnedFd,
    root: OwnedFd,
}

impl Rules {
    /// `None` where the kernel has no Landlock.
    fn make(inside: &Inside<'_>, guest: &OwnedFd) -> Result<Option<Self>, landlock::LandlockError> {
        if landlock::abi() < 1 {
            return Ok(None);
        }
        let [all, devices, proc] = [["/"], ["/dev"], ["/proc"]].map(|path| landlock::places(&path));
        let (all, devices, proc) = (all?, devices?, proc?);
        let own_root = inside.plan.own_root;
        let mut writable = if own_root { top_level()? } else { landlock::places(&USER_WRITABLE)? };
        let user =
            landlock::ruleset(&borrowed(&all), &borrowed(&writable), &borrowed(&devices), Reach::Anywhere)?;
        // Root inside may make further ones; what it could do with `/proc` is up to the mounts there.
        writable.extend(if own_root { landlock::places(&["/"])? } else { landlock::places(&ROOT_WRITABLE)? });
        let root =
            landlock::ruleset(&borrowed(&all), &borrowed(&writable), &borrowed(&devices), Reach::Anywhere)?;
        writable.extend(proc);
        let mut readable = borrowed(&all);
        readable.push(guest.as_fd());
        let mut writable = borrowed(&writable);
        writable.extend(inside.cgroups);
        let guest = landlock::ruleset(&readable, &writable, &borrowed(&devices), Reach::OwnDomain)?;
        Ok(Some(Self {
            guest: lift(guest.as_fd()).map_err(landlock::LandlockError::Descriptor)?,
            user,
            root,
        }))
    }
}

/// The directories of the root, but for those that are the kernel's.
fn top_level() -> Result<Vec<OwnedFd>, landlock::LandlockError> {
    let failed = |source| landlock::LandlockError::Open { path: "/".into(), source };
    let mut places = landlock::places(&["/dev/shm"])?;
    for entry in fs::read_dir("/").map_err(failed)?.take(MOST_DIRECTORIES) {
        let entry = entry.map_err(failed)?;
        let is_kernels = ["dev", "proc", "sys"].iter().any(|name| entry.file_name() == *name);
        if is_kernels || !entry.file_type().map_err(failed)?.is_dir() {
            continue;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(entry.path(), flags, Mode::empty());
        places.push(place.map_err(|error| failed(error.into()))?);
    }
    Ok(places)
}

fn borrowed(places: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    places.iter().map(AsFd::as_fd).collect()
}

/// A copy of a descriptor above every place that the guest's will take; closed when the guest starts.
fn lift(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE_FD)?)
}

/// Puts each descriptor where the guest expects it, and has all others closed when it starts.
fn arrange_descriptors(inside: &Inside<'_>, rules: Option<&Rules>) -> io::Result<()> {
    let mut wanted = vec![(lift(inside.control)?, CONTROL_FD)];
    if let Some(rules) = rules {
        wanted.push((lift(rules.user.as_fd())?, USER_RULES_FD));
        wanted.push((lift(rules.root.as_fd())?, ROOT_RULES_FD));
    }
    for (index, fd) in inside.cgroups.iter().enumerate() {
        wanted.push((lift(*fd)?, FIRST_CGROUP_FD + index as RawFd));
    }
    let null: OwnedFd = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
    for place in 0..3 {
        wanted.push((lift(null.as_fd())?, place));
    }
    for (from, place) in &wanted {
        // SAFETY: both are plain numbers; whatever stood at the place is not used again in this process.
        check(unsafe { libc::dup2(from.as_raw_fd(), *place) })?;
    }
    if !Wall::DescriptorsClosed.stands() {
        return Ok(());
    }
    let first_other = FIRST_CGROUP_FD + inside.cgroups.len() as RawFd;
    // SAFETY: marks descriptors, closes none.
    let marked = unsafe {
        libc::syscall(libc::SYS_close_range, first_other, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    check(marked as i32).map(drop)
}

fn place(fd: OwnedFd, place: RawFd) -> io::Result<()> {
    // It may have come to stand at its place, where a copy would keep the mark to be closed.
    let lifted = lift(fd.as_fd())?;
    drop(fd);
    // SAFETY: both are plain numbers; nothing of ours stands at the place.
    check(unsafe { libc::dup2(lifted.as_raw_fd(), place) }).map(drop)
}

fn drop_bounding_set(kept: u64) -> io::Result<()> {
    for capability in 0..64 {
        if kept & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: plain system call on a number.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            // The kernel knows no such capability: neither the higher ones.
            return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}
