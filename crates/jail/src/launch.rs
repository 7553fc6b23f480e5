//! The launcher: builds one sandbox, forks its monitor, and stays only to take the walls down afterwards. It has no
//! input but its plan, and after set-up waits for nothing but the end of its two children.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::wire::{self, Account, Frame};
use belljar_core::{Error, ErrorCode, SandboxState};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, bind, listen, sendmsg, socket_with, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, getrlimit, wait};

use crate::cgroup::{self, CgroupError, Group, Layout, Probe};
use crate::clock::boottime;
use crate::control::{LOCK_FILE, SOCKET_FILE, SPOOL_DIR};
use crate::inside::{
    self, FIRST_CGROUP_FD, Failure, Inside, ROOT_CAPABILITIES, ROOT_RULES_FD, Step, USER_RULES_FD,
};
use crate::landlock;
use crate::monitor::{Monitor, guest_deadline, write_ended};
use crate::mounts::{self, MountError, Ownership, Tree};
use crate::namespaces::{self, Forked, check};
use crate::plan::{Plan, Ready, Report};
use crate::seccomp::{self, Profile};
use crate::slot::{self, Slot, SlotError};

/// The default user inside.
const USER_ID: u32 = 1000;
/// The longest plan that is read.
const MAX_PLAN: u64 = 8 << 20;

/// Which step of a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The plan did not arrive whole.
    #[error("cannot read the plan: {0}")]
    Plan(String),
    /// A file or directory of the sandbox's own could not be made or opened.
    #[error("cannot prepare {path}: {source}")]
    State {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process holds this sandbox's lock.
    #[error("sandbox directory {0} is in use")]
    InUse(PathBuf),
    /// A socket or pipe could not be made.
    #[error("cannot make {what}: {source}")]
    Channel {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// No slot.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// No cgroups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// No file system.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// No namespaces.
    #[error("cannot create namespaces: {0}")]
    Namespaces(io::Error),
    /// No id maps.
    #[error("cannot map user ids: {0}")]
    IdMap(io::Error),
    /// The child stopped on its way in.
    #[error("{}: {}", .0.step.what(), .0.error)]
    Inside(Failure),
    /// No monitor.
    #[error("cannot start the monitor: {0}")]
    Monitor(io::Error),
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        let message = format!("cannot create the sandbox: {}", with_causes(&error));
        let full = |source: &io::Error| source.kind() == io::ErrorKind::StorageFull;
        let (code, hint) = match &error {
            LaunchError::Plan(_) | LaunchError::InUse(_) | LaunchError::Monitor(_) => {
                (ErrorCode::Internal, None)
            }
            LaunchError::State { source, .. } if full(source) => {
                (ErrorCode::ResourceExhausted, Some("the host's disk is full: free some space"))
            }
            LaunchError::State { .. } | LaunchError::Channel { .. } => (ErrorCode::Internal, None),
            LaunchError::Slot(SlotError::Exhausted) => (
                ErrorCode::ResourceExhausted,
                Some("remove sandboxes that are not needed: `belljar ls`, `belljar rm`"),
            ),
            LaunchError::Mount(MountError::Disk(_)) => (
                ErrorCode::ResourceExhausted,
                Some("ask for less with `--disk`, or free space where Belljar keeps its data"),
            ),
            LaunchError::Inside(Failure { step: Step::Exec | Step::Released, .. }) => {
                (ErrorCode::Internal, None)
            }
            _ => (
                ErrorCode::HostFeature,
                Some("`belljar doctor` shows what this host lacks and how to enable it"),
            ),
        };
        let error = Self::new(code, message);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// An error with what lies behind it, where its own words do not tell.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// Reads the plan, builds the sandbox, reports, and stays until it has ended.
pub fn run() -> i32 {
    let launched = read_plan().and_then(|plan| Launch::prepare(plan)?.build());
    match launched {
        Ok(running) => {
            running.wait();
            0
        }
        Err(error) => {
            report(&Report::Failed(error.into()));
            1
        }
    }
}

fn report(report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    let mut stdout = io::stdout();
    let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
}

fn read_plan() -> Result<Plan, LaunchError> {
    let mut line = Vec::new();
    // Unbuffered beyond the line: what stays open on standard input afterwards is the tie to our creator.
    let stdin = io::stdin();
    stdin
        .lock()
        .take(MAX_PLAN)
        .read_until(b'\n', &mut line)
        .map_err(|error| LaunchError::Plan(error.to_string()))?;
    serde_json::from_slice(&line).map_err(|error| LaunchError::Plan(error.to_string()))
}

/// Everything that exists before the child does.
struct Launch {
    plan: Plan,
    deadline: Duration,
    lock: File,
    spool: OwnedFd,
    listener: OwnedFd,
    host_end: OwnedFd,
    /// Ours only until the guest has it, or its going away would go unnoticed.
    guest_end: Option<OwnedFd>,
    privileged: Option<Privileged>,
}

/// What only root of the host can give.
struct Privileged {
    slot: Slot,
    group: Group,
}

impl Launch {
    fn prepare(plan: Plan) -> Result<Self, LaunchError> {
        // The sandbox does not share the fate of the terminal it was started from.
        // SAFETY: plain system calls on numbers.
        unsafe {
            libc::setsid();
            libc::umask(0o022);
        }
        let dir = plan.state_dir.clone();
        let at = |name: &str| {
            let path = dir.join(name);
            move |source: io::Error| LaunchError::State { path, source }
        };
        let state = File::open(&dir).map_err(at(""))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join(LOCK_FILE))
            .map_err(at(LOCK_FILE))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| LaunchError::InUse(dir.clone()))?;
        let spool_path = dir.join(SPOOL_DIR);
        DirBuilder::new().mode(0o700).create(&spool_path).map_err(at(SPOOL_DIR))?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let spool =
            rustix::fs::open(&spool_path, flags, Mode::empty()).map_err(|e| at(SPOOL_DIR)(e.into()))?;
        let listener = listen_in(&state)
            .map_err(|source| LaunchError::Channel { what: "the monitor's socket", source })?;
        let (host_end, guest_end) = stream_pair("the control socket")?;
        // Last, because from here on there is something to take down.
        let privileged = if rustix::process::geteuid().is_root() { Some(take_slot(&plan)?) } else { None };
        let deadline = boottime().saturating_add(plan.ttl);
        Ok(Self { plan, deadline, lock, spool, listener, host_end, guest_end: Some(guest_end), privileged })
    }

    fn build(mut self) -> Result<Running, LaunchError> {
        let handed_over = self.try_build().and_then(|built| self.fork_monitor(built));
        let Self { plan, spool, lock, privileged, .. } = self;
        let running = Running { state_dir: plan.state_dir, spool, _lock: lock, privileged };
        match handed_over {
            Ok(ready) => {
                report(&Report::Ready(ready));
                Ok(running)
            }
            Err(error) => {
                running.remove_cgroups();
                Err(error)
            }
        }
    }

    /// Forks the child, gives it its ids, cgroups and file system, and sees it become the guest.
    fn try_build(&mut self) -> Result<Built, LaunchError> {
        let Some(guest_end) = self.guest_end.take() else {
            return Err(LaunchError::InUse(self.plan.state_dir.clone()));
        };
        let channel =
            |what| move |error: rustix::io::Errno| LaunchError::Channel { what, source: error.into() };
        let guest = File::open(&self.plan.guest)
            .map_err(|source| LaunchError::State { path: self.plan.guest.clone(), source })?;
        let program = seccomp::compile(Profile::default());
        let (mut join_dirs, mut leaf_dirs) = (Vec::new(), Vec::new());
        let mut entrance = None;
        let mut probe = None;
        if let Some(Privileged { slot, group }) = &self.privileged {
            std::os::unix::fs::fchown(&self.spool, Some(slot.owner_id()), Some(slot.owner_id())).map_err(
                |error| LaunchError::State { path: self.plan.state_dir.join(SPOOL_DIR), source: error },
            )?;
            probe = Some(group.probe()?);
            group.delegate(slot.root_id(), slot.root_id())?;
            entrance = Some(group.entrance()?);
            join_dirs = group.join_dirs()?;
            leaf_dirs = group.leaf_dirs()?;
        }
        let cgroups: Vec<BorrowedFd<'_>> =
            leaf_dirs.iter().map(|leaf| leaf.fd.as_fd()).chain(join_dirs.iter().map(AsFd::as_fd)).collect();
        let init = self.init(leaf_dirs.iter().map(|leaf| leaf.v2), join_dirs.len());

        let (release_write, release_read) = stream_pair("a socket")?;
        let (report_read, report_write) = pipe_with(PipeFlags::CLOEXEC).map_err(channel("a pipe"))?;
        if self.privileged.is_some() {
            // SAFETY: plain system call; the process is single-threaded.
            check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map_err(LaunchError::Namespaces)?;
            mounts::make_private()?;
        }
        let forked = match &self.privileged {
            Some(Privileged { slot, .. }) => {
                let birthplace = entrance.as_ref().and_then(|entrance| entrance.birthplace.as_ref());
                namespaces::clone_as_owner(slot, birthplace.map(AsFd::as_fd))
            }
            None => namespaces::clone_into_namespaces(None),
        };
        let (pid, pidfd) = match forked.map_err(LaunchError::Namespaces)? {
            Forked::Child => {
                drop((release_write, report_read));
                let inside = Inside {
                    plan: &self.plan,
                    rootless: self.privileged.is_none(),
                    guest: guest.as_fd(),
                    control: guest_end.as_fd(),
                    cgroup_tasks: entrance.as_ref().map_or(&[], |entrance| &entrance.tasks),
                    cgroups: &cgroups,
                    seccomp: &program,
                };
                inside::enter(&inside, release_read, report_write)
            }
            Forked::Parent { pid, pidfd } => (pid, pidfd),
        };
        drop((release_read, report_write));
        let child = Child { pid, pidfd: Some(pidfd) };
        let tree = self.furnish(pid)?;
        let mut bytes = Vec::new();
        Frame::control(0, &wire::Request::Init(Box::new(init))).encode(&mut bytes);
        write_all(&self.host_end, &bytes)
            .and_then(|()| release(&release_write, tree.as_ref().map(|tree| tree.root.as_fd())))
            .map_err(|source| LaunchError::Channel { what: "the control socket", source })?;
        drop(release_write);
        let mut said = Vec::new();
        let _ = File::from(report_read).take(4096).read_to_end(&mut said);
        if let Some(failure) = Failure::parse(&said) {
            return Err(LaunchError::Inside(failure));
        }
        if self.privileged.is_some() {
            // The sandbox has its own copy; ours would only keep the disk alive.
            let _ = rustix::mount::unmount(
                self.plan.state_dir.join("stage"),
                rustix::mount::UnmountFlags::DETACH,
            );
        }
        Ok(Built { pidfd: child.keep(), pid, probe, disk: tree.map(|tree| tree.disk) })
    }

    /// Ids, cgroups and file system for the waiting child.
    fn furnish(&self, pid: i32) -> Result<Option<Tree>, LaunchError> {
        let Some(Privileged { slot, .. }) = &self.privileged else {
            namespaces::map_single(pid, USER_ID).map_err(LaunchError::IdMap)?;
            return Ok(None);
        };
        namespaces::map_block(pid, slot).map_err(LaunchError::IdMap)?;
        let user_namespace = namespaces::user_namespace(pid).map_err(LaunchError::IdMap)?;
        let ownership = Ownership::Mapped { user_namespace: user_namespace.as_fd(), root_id: slot.root_id() };
        Ok(Some(mounts::assemble(&self.plan, ownership)?))
    }

    fn init(&self, leaves: impl Iterator<Item = bool>, joins: usize) -> wire::Init {
        let landlock = landlock::abi() >= 1;
        let leaf_dirs: Vec<wire::LeafDir> = leaves
            .enumerate()
            .map(|(index, v2)| wire::LeafDir { fd: FIRST_CGROUP_FD + index as i32, v2 })
            .collect();
        let first_join = FIRST_CGROUP_FD + leaf_dirs.len() as i32;
        let user = Account {
            uid: USER_ID,
            gid: USER_ID,
            home: "/home/user".into(),
            capabilities: 0,
            landlock_fd: landlock.then_some(USER_RULES_FD),
        };
        let root = Account {
            uid: 0,
            gid: 0,
            home: "/root".into(),
            capabilities: ROOT_CAPABILITIES,
            landlock_fd: landlock.then_some(ROOT_RULES_FD),
        };
        wire::Init {
            protocol: wire::PROTOCOL,
            deadline_ms: guest_deadline(self.deadline),
            user,
            root: self.privileged.is_some().then_some(root),
            env: self.plan.env.clone(),
            shell: self.plan.shell.clone(),
            leaf_dirs,
            join_dirs: (0..joins as i32).map(|index| first_join + index).collect(),
            rlimits: self.rlimits(),
        }
    }

    /// The kernel's per-process limits, never above what we have ourselves.
    fn rlimits(&self) -> Vec<(u32, u64, u64)> {
        use rustix::process::Resource;
        let limits = &self.plan.limits;
        let open_files = u64::from(limits.open_files);
        let mut wanted = vec![
            (Resource::Nofile, libc::RLIMIT_NOFILE, open_files, open_files),
            (Resource::Fsize, libc::RLIMIT_FSIZE, limits.disk.0, limits.disk.0),
            (Resource::Core, libc::RLIMIT_CORE, 0, 0),
            (Resource::Memlock, libc::RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
            (Resource::Stack, libc::RLIMIT_STACK, 8 << 20, 64 << 20),
            (Resource::Sigpending, libc::RLIMIT_SIGPENDING, 4096, 4096),
            (Resource::Msgqueue, libc::RLIMIT_MSGQUEUE, 819_200, 819_200),
            (Resource::Nice, libc::RLIMIT_NICE, 0, 0),
            (Resource::Rtprio, libc::RLIMIT_RTPRIO, 0, 0),
        ];
        if self.privileged.is_none() {
            // Without cgroups these are the nearest there is.
            wanted.push((Resource::Nproc, libc::RLIMIT_NPROC, limits.pids.into(), limits.pids.into()));
            wanted.push((Resource::Data, libc::RLIMIT_DATA, limits.memory.0, limits.memory.0));
        }
        wanted
            .into_iter()
            .map(|(resource, number, soft, hard)| {
                let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
                (number, soft.min(most), hard.min(most))
            })
            .collect()
    }

    fn losses(&self) -> Vec<String> {
        let mut losses = Vec::new();
        if self.privileged.is_none() {
            losses.push("rootless: memory is bounded per process, not for the whole sandbox".into());
            losses.push("rootless: processor time is not bounded".into());
            losses.push("rootless: there is no root inside (`--user root`), only the default user".into());
            losses.push(
                "rootless: processes inside run as your own user id, kept apart by namespaces only".into(),
            );
        }
        if landlock::abi() < 1 {
            losses
                .push("this kernel has no Landlock: files are guarded by mounts and permissions only".into());
        }
        losses
    }

    /// Forks the monitor, which from then on is the sandbox's only voice.
    fn fork_monitor(&self, built: Built) -> Result<Ready, LaunchError> {
        // SAFETY: the process is single-threaded, so the child may go on as after any fork.
        match check(unsafe { libc::fork() }).map_err(LaunchError::Monitor)? {
            0 => {
                let status = match self.monitor(built) {
                    Ok(_) => 0,
                    Err(error) => {
                        eprintln!("[sandbox {}] monitor: {error}", self.plan.id);
                        1
                    }
                };
                std::process::exit(status)
            }
            monitor_pid => Ok(Ready {
                guest_pid: built.pid,
                monitor_pid,
                slot: self.privileged.as_ref().map(|privileged| privileged.slot.number()),
                losses: self.losses(),
            }),
        }
    }

    /// In the monitor's process: gives up everything and serves.
    fn monitor(&self, built: Built) -> io::Result<SandboxState> {
        let monitor = Monitor {
            guest: self.host_end.try_clone()?,
            guest_process: built.pidfd,
            listener: self.listener.try_clone()?,
            tie: Some(io::stdin().as_fd().try_clone_to_owned()?),
            deadline: self.deadline,
            probe: built.probe,
            disk: built.disk,
            spool: self.spool.try_clone()?,
            peer_uid: rustix::process::geteuid().as_raw(),
        };
        confine_monitor(
            self.privileged.as_ref().map(|privileged| privileged.slot.owner_id()),
            &monitor.spool,
        )?;
        monitor.run()
    }
}

/// Takes the monitor's privileges away: it becomes the sandbox's own unmapped user, and may touch nothing of the
/// file system but its spool.
fn confine_monitor(owner: Option<u32>, spool: &OwnedFd) -> io::Result<()> {
    if let Some(owner) = owner {
        // SAFETY: plain system calls on numbers and valid pointers; the process is single-threaded. All capabilities
        // are cleared by hand, because the launcher's securebits keep them across changes of user.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) as i32)?;
            check(libc::syscall(libc::SYS_setresgid, owner, owner, owner) as i32)?;
            check(libc::syscall(libc::SYS_setresuid, owner, owner, owner) as i32)?;
            let header: [u32; 2] = [0x2008_0522, 0];
            let none = [0u32; 6];
            check(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) as i32)?;
        }
    }
    // SAFETY: plain system calls on numbers.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
    }
    if landlock::abi() >= 1 {
        let spool = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(spool)));
        let rules =
            landlock::ruleset(&[], &[&spool], &[], landlock::Reach::Anywhere).map_err(io::Error::other)?;
        landlock::restrict_self(rules.as_fd())?;
    }
    Ok(())
}

fn take_slot(plan: &Plan) -> Result<Privileged, LaunchError> {
    let layout = Layout::detect()?;
    let limits = cgroup::Limits {
        memory: plan.limits.memory.0,
        pids: plan.limits.pids,
        cpu_millis: plan.limits.cpus.0,
    };
    let (slot, group) = slot::acquire(Path::new(slot::DIRECTORY), plan.id.as_str().as_bytes(), |slot| {
        match Group::create(&layout, slot.number(), &limits) {
            Ok(group) => Ok(Some(group)),
            Err(CgroupError::SlotBusy { .. }) => Ok(None),
            Err(error) => Err(LaunchError::from(error)),
        }
    })?;
    Ok(Privileged { slot, group })
}

/// Listens in the sandbox's directory, whose path may be too long for a socket address.
fn listen_in(directory: &File) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = format!("/proc/self/fd/{}/{SOCKET_FILE}", std::os::fd::AsRawFd::as_raw_fd(directory));
    // SAFETY: plain system calls; the socket file is made for its owner alone.
    let previous = unsafe { libc::umask(0o177) };
    let bound = bind(&socket, &SocketAddrUnix::new(path)?);
    // SAFETY: as above.
    unsafe { libc::umask(previous) };
    bound?;
    listen(&socket, 128)?;
    Ok(socket)
}

fn stream_pair(what: &'static str) -> Result<(OwnedFd, OwnedFd), LaunchError> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| LaunchError::Channel { what, source: error.into() })
}

/// Lets the child go on, into this root if we built it.
fn release(socket: &OwnedFd, root: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = root.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn write_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(socket, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A child that dies with its launch unless the launch succeeds.
struct Child {
    pid: i32,
    pidfd: Option<OwnedFd>,
}

impl Child {
    fn keep(mut self) -> OwnedFd {
        match self.pidfd.take() {
            Some(pidfd) => pidfd,
            None => unreachable!("taken only here and on drop"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pidfd) = &self.pidfd {
            let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
            if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            }
        }
    }
}

/// A guest that runs.
struct Built {
    pid: i32,
    pidfd: OwnedFd,
    probe: Option<Probe>,
    disk: Option<OwnedFd>,
}

/// A sandbox with its monitor.
struct Running {
    state_dir: PathBuf,
    spool: OwnedFd,
    _lock: File,
    privileged: Option<Privileged>,
}

impl Running {
    /// Waits for guest and monitor, and removes what only root can remove.
    fn wait(self) {
        // The creator waits for our end of these; and a tie must break when it goes, not when we do.
        for fd in 0..2 {
            // SAFETY: closes descriptors that nothing here uses any more.
            unsafe { libc::close(fd) };
        }
        while !matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {}
        self.remove_cgroups();
        write_ended(&self.spool, SandboxState::Lost);
        let _ = fs::remove_file(self.state_dir.join(SOCKET_FILE));
        let _ = fs::remove_dir(self.state_dir.join("stage"));
    }

    fn remove_cgroups(&self) {
        if let Some(Privileged { group, .. }) = &self.privileged {
            let _ = group.kill();
            if let Err(error) = group.remove() {
                eprintln!("cannot remove cgroups: {error}");
            }
        }
    }
}
