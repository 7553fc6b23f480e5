//! The launcher: builds one sandbox, forks its monitor, and stays only to take the walls down afterwards. It has no
//! input but its plan, and after set-up waits for nothing but the end of its two children.

mod channel;
mod error;
mod init;
mod running;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use belljar_core::wire::{self, Frame};
use belljar_core::{SandboxSpec, SandboxState, Wall};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::WaitOptions;

pub use self::error::LaunchError;

use self::channel::{listen_in, release, stream_pair, write_all};
use self::init::init;
use self::running::Running;
use crate::cgroup::{self, CgroupError, Group, Layout, Probe};
use crate::clock::boottime;
use crate::control::{LOCK_FILE, SPOOL_DIR};
use crate::doorway::{self, Doorway};
use crate::inside::{self, Failure, Inside};
use crate::landlock;
use crate::log::note;
use crate::monitor::{Monitor, confine};
use crate::mounts::{self, Ownership, Tree};
use crate::namespaces::{self, Forked, check, name_process};
use crate::plan::{Plan, Report, USER_ID};
use crate::record::{Built, ProcessMark};
use crate::seccomp::{self, Profile};
use crate::slot::{self, Slot};

/// A launch that takes longer has failed.
const LAUNCH_SECONDS: u32 = 60;
/// The longest plan that is read.
const MAX_PLAN: u64 = 8 << 20;
/// So much output of a sandbox is kept even if its disk is smaller.
const LEAST_KEPT: u64 = 64 << 20;

/// What is the same for every launch on this host, found out once for all the launchers that will be forked from here.
pub fn look_around() {
    let _ = KNOWN_LAYOUT.set(Layout::detect());
    let _ = FILTER.set(seccomp::compile(Profile::default()));
    let _ = MONITOR_FILTER.set(seccomp::compile_for_monitor());
}

static KNOWN_LAYOUT: OnceLock<Result<Layout, CgroupError>> = OnceLock::new();
static FILTER: OnceLock<seccomp::Draft> = OnceLock::new();
static MONITOR_FILTER: OnceLock<seccomp::Program> = OnceLock::new();

/// Reads the plan from standard input, builds the sandbox, reports on standard output, and stays until it has ended.
pub fn run() -> i32 {
    name_process(c"belljar-launch");
    // What the nursery has open is not for us to keep.
    if Wall::DescriptorsClosed.stands() {
        // SAFETY: nothing of ours has been opened yet.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    }
    match launch() {
        Ok(running) => {
            // SAFETY: plain system call on a number.
            unsafe { libc::alarm(0) };
            running.let_go_of_stage();
            running.wait();
            0
        }
        Err(error) => {
            report(&Report::Failed(error.into()));
            1
        }
    }
}

fn launch() -> Result<Running, LaunchError> {
    // The sandbox does not share the fate of the terminal it was started from.
    // SAFETY: plain system calls on numbers.
    unsafe {
        libc::setsid();
        libc::umask(0o022);
    }
    // What needs no plan is made while our creator still writes it.
    let privileged = if rustix::process::geteuid().is_root() { Some(Privileged::take()?) } else { None };
    let plan = read_plan()?;
    // A launch that hangs ends by itself. How long the plan takes is our creator's affair; if it goes, we hear that.
    // SAFETY: plain system call on a number.
    unsafe { libc::alarm(LAUNCH_SECONDS) };
    Launch::prepare(plan, privileged)?.build()
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
    host_end: OwnedFd,
    /// Ours only until the guest has it, or its going away would go unnoticed.
    guest_end: Option<OwnedFd>,
    privileged: Option<Privileged>,
}

/// The sandbox's own places in the data directory.
struct Places {
    lock: File,
    spool: OwnedFd,
    listener: OwnedFd,
}

impl Places {
    fn make(dir: &Path, owner: Option<u32>) -> Result<Self, LaunchError> {
        let at = |name: &str| {
            let path = dir.join(name);
            move |source: io::Error| LaunchError::State { path, source }
        };
        let state = File::open(dir).map_err(at(""))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join(LOCK_FILE))
            .map_err(at(LOCK_FILE))?;
        hold(&lock).map_err(|_| LaunchError::InUse(dir.to_owned()))?;
        let spool_path = dir.join(SPOOL_DIR);
        DirBuilder::new().mode(0o700).create(&spool_path).map_err(at(SPOOL_DIR))?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let spool =
            rustix::fs::open(&spool_path, flags, Mode::empty()).map_err(|e| at(SPOOL_DIR)(e.into()))?;
        if owner.is_some() {
            fchown(&spool, owner, owner).map_err(at(SPOOL_DIR))?;
        }
        let listener = listen_in(&state)
            .map_err(|source| LaunchError::Channel { what: "the monitor's socket", source })?;
        Ok(Self { lock, spool, listener })
    }
}

/// What the monitor alone holds of a sandbox.
struct Held {
    probe: Option<Probe>,
    disk: Option<OwnedFd>,
    doorway: Option<Doorway>,
    launcher: OwnedFd,
}

/// What only root of the host can give. It is taken down when this is dropped, which forked processes never do.
struct Privileged {
    slot: Slot,
    group: Group,
}

impl Privileged {
    fn take() -> Result<Self, LaunchError> {
        let found;
        let layout = match KNOWN_LAYOUT.get() {
            Some(Ok(layout)) => layout,
            _ => {
                found = Layout::detect()?;
                &found
            }
        };
        let seed = random_word()?.to_ne_bytes();
        let (slot, group) = slot::acquire(Path::new(slot::DIRECTORY), &seed, |slot| {
            match Group::prepare(layout, slot.number()) {
                Ok(group) => Ok(Some(group)),
                Err(CgroupError::SlotBusy { .. }) => Ok(None),
                Err(error) => Err(LaunchError::from(error)),
            }
        })?;
        Ok(Self { slot, group })
    }
}

impl Drop for Privileged {
    fn drop(&mut self) {
        let _ = self.group.kill();
        if let Err(error) = self.group.remove() {
            note(format_args!("cannot remove cgroups: {error}"));
        }
    }
}

impl Launch {
    fn prepare(plan: Plan, privileged: Option<Privileged>) -> Result<Self, LaunchError> {
        let (host_end, guest_end) = stream_pair("the control socket")?;
        if let Some(Privileged { group, .. }) = &privileged {
            group.bound(&limits(&plan))?;
        }
        let ttl = if Wall::TimeToLive.stands() { plan.ttl } else { SandboxSpec::MAX_TTL };
        let deadline = boottime().saturating_add(ttl);
        Ok(Self { plan, deadline, host_end, guest_end: Some(guest_end), privileged })
    }

    fn build(mut self) -> Result<Running, LaunchError> {
        let (Places { lock, spool, .. }, guest, word) = self.try_build()?;
        report(&Report::Ready);
        let _ = rustix::io::write(word, &[1]);
        let Self { plan, privileged, .. } = self;
        Ok(Running { plan, guest, spool, _lock: lock, privileged })
    }

    /// Forks the child, gives it its ids, cgroups and file system, forks the monitor meanwhile, and sees the child become
    /// the guest.
    fn try_build(&mut self) -> Result<(Places, OwnedFd, OwnedFd), LaunchError> {
        let Some(guest_end) = self.guest_end.take() else {
            return Err(LaunchError::InUse(self.plan.state_dir.clone()));
        };
        let channel =
            |what| move |error: rustix::io::Errno| LaunchError::Channel { what, source: error.into() };
        let guest = File::open(&self.plan.guest)
            .map_err(|source| LaunchError::State { path: self.plan.guest.clone(), source })?;
        let word = random_word()?;
        let program = FILTER.get_or_init(|| seccomp::compile(Profile::default())).with_word(word);
        let (mut join_dirs, mut leaf_dirs) = (Vec::new(), Vec::new());
        let (mut entrance, mut leaf_level) = (None, None);
        if let Some(Privileged { slot, group }) = &self.privileged {
            group.delegate(slot.root_id(), slot.root_id())?;
            entrance = Some(group.entrance()?);
            join_dirs = group.join_dirs()?;
            leaf_dirs = group.leaf_dirs()?;
            leaf_level = group.leaf_level();
        }
        let cgroups: Vec<BorrowedFd<'_>> =
            leaf_dirs.iter().map(|leaf| leaf.fd.as_fd()).chain(join_dirs.iter().map(AsFd::as_fd)).collect();
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
                    cgroup_onward: entrance.as_ref().and_then(|entrance| entrance.onward.as_ref()),
                    cgroups: &cgroups,
                    leaf_level,
                    seccomp: &program,
                };
                inside::enter(&inside, release_read, report_write)
            }
            Forked::Parent { pid, pidfd } => (pid, pidfd),
        };
        let (leaves, joins) = (leaf_dirs.iter().map(|leaf| leaf.v2).collect(), join_dirs.len());
        let goes_on = entrance.as_ref().is_some_and(|entrance| entrance.onward.is_some());
        // With the child's end gone, its own end is noticed while we write to it; and what is the child's alone is not for
        // the monitor to have, which is forked from here.
        drop((release_read, report_write, guest_end, guest, entrance, join_dirs, leaf_dirs));
        let child = Child { pid, pidfd, kept: false };
        let tree = self.furnish(pid)?;
        let doorway =
            if self.plan.doorway { Some(await_doorway(&release_write, &report_read)?) } else { None };
        if let Some(Privileged { group, .. }) = &self.privileged {
            if goes_on {
                await_entry(&release_write, &report_read)?;
            }
            group.settle(&limits(&self.plan))?;
        }
        let control = |source| LaunchError::Channel { what: "the control socket", source };
        release(&release_write, tree.as_ref().map(|tree| tree.root.as_fd())).map_err(control)?;
        drop(release_write);
        // The rest is done while the child puts up its walls.
        let init = init(&self.plan, self.deadline, self.privileged.is_some(), leaves, joins, word);
        let mut bytes = Vec::new();
        Frame::control(0, &wire::Request::Init(Box::new(init))).encode(&mut bytes);
        // Not before: it may be more than the socket holds, and somebody has to be on the way to read it.
        let told = write_all(&self.host_end, &bytes);
        let slot = self.privileged.as_ref().map(|privileged| &privileged.slot);
        let places = Places::make(&self.plan.state_dir, slot.map(Slot::owner_id))?;
        let probe = self.privileged.as_ref().map(|privileged| privileged.group.probe()).transpose()?;
        let (heard, word) = pipe_with(PipeFlags::CLOEXEC).map_err(channel("a pipe"))?;
        let not_its_own = [report_read.as_raw_fd(), word.as_raw_fd()];
        let disk = tree.map(|tree| tree.disk);
        let held = Held { probe, disk, doorway, launcher: heard };
        let monitor = self.fork_monitor(&places, &child, held, &not_its_own)?;
        let built = Built {
            slot: slot.map(Slot::number),
            monitor: ProcessMark::of(monitor.pid),
            losses: self.losses(),
        };
        let mut said = Vec::new();
        let _ = File::from(report_read).take(4096).read_to_end(&mut said);
        if let Some(failure) = Failure::parse(&said) {
            return Err(LaunchError::Inside(failure));
        }
        told.map_err(control)?;
        serde_json::to_vec(&built)
            .map_err(io::Error::from)
            .and_then(|built| (&places.lock).write_all(&built))
            .map_err(|source| LaunchError::State { path: self.plan.state_dir.join(LOCK_FILE), source })?;
        let guest = child.pidfd.try_clone();
        let guest = guest.map_err(|source| LaunchError::Channel { what: "a descriptor", source })?;
        child.keep();
        monitor.keep();
        Ok((places, guest, word))
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
        let leaf_level = self.privileged.as_ref().and_then(|privileged| privileged.group.leaf_level());
        if self.plan.doorway && leaf_level.is_none() {
            losses.push(
                "what leaves does not tell which execution sent it: that needs root and cgroup v2".into(),
            );
        }
        if landlock::abi() < 1 {
            losses
                .push("this kernel has no Landlock: files are guarded by mounts and permissions only".into());
        }
        losses
    }

    /// Forks the monitor, which from then on is the sandbox's only voice.
    fn fork_monitor(
        &self,
        places: &Places,
        guest: &Child,
        held: Held,
        not_its_own: &[RawFd],
    ) -> Result<Child, LaunchError> {
        let desk = self.privileged.as_ref().map(|privileged| privileged.group.monitors_desk()).transpose()?;
        let birthplace = desk.as_ref().and_then(|desk| desk.birthplace.as_ref());
        match namespaces::fork_into(birthplace.map(AsFd::as_fd)).map_err(LaunchError::Monitor)? {
            Forked::Child => {
                for descriptor in not_its_own {
                    // SAFETY: the monitor has no use for it, and leaves this process's memory by `exit`, which closes
                    // nothing.
                    unsafe { libc::close(*descriptor) };
                }
                name_process(c"belljar-monitor");
                let entered =
                    desk.iter().flat_map(|desk| &desk.tasks).try_for_each(|mut file| file.write_all(b"0"));
                drop(desk);
                let served = entered.and_then(|()| self.monitor(places, guest, held));
                let status = match served {
                    Ok(_) => 0,
                    Err(error) => {
                        note(format_args!("[sandbox {}] monitor: {error}", self.plan.id));
                        1
                    }
                };
                std::process::exit(status)
            }
            Forked::Parent { pid, pidfd } => Ok(Child { pid, pidfd, kept: false }),
        }
    }

    /// In the monitor's process: gives up everything and serves.
    fn monitor(&self, places: &Places, guest: &Child, held: Held) -> io::Result<SandboxState> {
        let Held { probe, disk, doorway, launcher } = held;
        let guest_process = guest.pidfd.try_clone()?;
        let switch = |privileged: &Privileged| privileged.group.freezer_switch();
        let freezer = self.privileged.as_ref().map(switch).transpose().map_err(io::Error::other)?.flatten();
        let monitor = Monitor {
            guest: self.host_end.try_clone()?,
            guest_process,
            listener: places.listener.try_clone()?,
            tie: Some(io::stdin().as_fd().try_clone_to_owned()?),
            launcher: Some(launcher),
            deadline: self.deadline,
            probe,
            can_pause: self.privileged.is_some(),
            freezer,
            disk,
            doorway,
            spool: places.spool.try_clone()?,
            keeps: self.plan.limits.disk.0.max(LEAST_KEPT),
            peer_uid: rustix::process::geteuid().as_raw(),
        };
        let owner = self.privileged.as_ref().map(|privileged| privileged.slot.owner_id());
        confine(owner, &monitor.spool, MONITOR_FILTER.get_or_init(seccomp::compile_for_monitor))?;
        monitor.run()
    }
}

fn random_word() -> Result<u64, LaunchError> {
    let mut word = [0; 8];
    rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| LaunchError::Channel { what: "random numbers", source: error.into() })?;
    Ok(u64::from_ne_bytes(word))
}

/// Takes the sandbox's lock; someone who only looks whether it is held may be in the way for a moment.
fn hold(lock: &File) -> rustix::io::Result<()> {
    for _ in 0..200 {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(1)),
            taken => return taken,
        }
    }
    Err(rustix::io::Errno::WOULDBLOCK)
}

/// Waits until the child is where no limit will be set; if it fails on the way, it says so on `report`.
fn await_entry(child: &OwnedFd, report: &OwnedFd) -> Result<(), LaunchError> {
    match rustix::io::read(child, &mut [0; 1]) {
        Ok(1..) => Ok(()),
        Ok(_) => Err(why_it_ended(report)),
        Err(error) => Err(unheard(error.into())),
    }
}

/// Waits for the sockets that the child makes; if it fails on the way, it says so on `report`.
fn await_doorway(child: &OwnedFd, report: &OwnedFd) -> Result<Doorway, LaunchError> {
    let mut marks = [0];
    let (count, descriptors) = doorway::take(child, &mut marks).map_err(unheard)?;
    if count == 0 {
        return Err(why_it_ended(report));
    }
    let incomplete = || unheard(io::Error::new(io::ErrorKind::InvalidData, "sockets are missing"));
    Doorway::from_descriptors(descriptors, marks == [1]).ok_or_else(incomplete)
}

/// What a child that is gone said last.
fn why_it_ended(report: &OwnedFd) -> LaunchError {
    let mut said = [0; 4096];
    let count = match rustix::io::read(report, &mut said) {
        Ok(count) => count,
        Err(error) => return unheard(error.into()),
    };
    let failure = Failure::parse(&said[..count]).map(LaunchError::Inside);
    failure.unwrap_or_else(|| unheard(io::ErrorKind::UnexpectedEof.into()))
}

fn unheard(source: io::Error) -> LaunchError {
    LaunchError::Channel { what: "a socket", source }
}

fn limits(plan: &Plan) -> cgroup::Limits {
    cgroup::Limits { memory: plan.limits.memory.0, pids: plan.limits.pids, cpu_millis: plan.limits.cpus.0 }
}

/// A child that dies with its launch unless the launch succeeds.
struct Child {
    pid: i32,
    pidfd: OwnedFd,
    kept: bool,
}

impl Child {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Our own child, not waited for yet, so the number is still its own.
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}
