//! A sandbox's control groups: its share of memory, processes and processor time, and the switch that ends it.
//!
//! In each hierarchy the sandbox in slot `n` has the group `belljar/n`. Inside it executions live in `box`, which has
//! the limits. PID 1 and its file workers live in `guest` beside it or, in version one, right in `belljar/n`, which has
//! slightly larger limits, so that running out of memory kills an execution and never PID 1. Where
//! [`Group::leaf_dirs`] says so, the guest makes a group in `box` for each execution.
//!
//! Only `belljar` and what is below is ever written to.

mod detect;
mod freezer;
mod probe;
#[cfg(test)]
mod tests;
mod tree;
mod v1;
mod v2;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

pub use detect::{Controller, Kind, Layout};
pub use freezer::Freezer;
pub use probe::{Probe, Usage};
use rustix::fs::CWD;
use tree::{Tree, is_gone, open_directory, write};

const CPU_PERIOD_MICROS: u64 = 100_000;
/// The kernel takes no smaller quota.
const MIN_CPU_QUOTA_MICROS: u64 = 1_000;
/// What the guest may use above the limits of the executions.
const GUEST_MEMORY: u64 = 32 << 20;
const GUEST_PIDS: u32 = 32;
/// What the guest may use of each period beside the executions: a fifth of a processor.
const GUEST_CPU_MICROS: u64 = CPU_PERIOD_MICROS / 5;

const KILL_PATIENCE: Duration = Duration::from_secs(5);
const FREEZE_PATIENCE: Duration = Duration::from_secs(2);
const REMOVE_PATIENCE: Duration = Duration::from_secs(2);

/// What all executions of a sandbox may use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory. There is no swap.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Thousandths of one processor; less than ten count as ten.
    pub cpu_millis: u32,
}

impl Limits {
    fn cpu_quota_micros(&self) -> u64 {
        (u64::from(self.cpu_millis) * CPU_PERIOD_MICROS / 1000).max(MIN_CPU_QUOTA_MICROS)
    }
}

/// What can go wrong with a sandbox's control groups.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
pub enum CgroupError {
    /// No hierarchy has a controller that we need.
    #[error("this host has no cgroup controller `{controller}`")]
    MissingController { controller: Controller },
    /// The operator must hand the controllers down.
    #[error("cgroup controllers are not enabled: as root, write `{line}` to {path}")]
    NotEnabled { line: String, path: PathBuf },
    /// The slot is in use.
    #[error("cgroup slot {slot} still has processes")]
    SlotBusy { slot: u32 },
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    /// A group could not be made.
    #[error("cannot make cgroup {path}")]
    Make { path: PathBuf, source: io::Error },
    /// A group's controllers could not be enabled.
    #[error("cannot enable `{line}` in {path}")]
    Enable { path: PathBuf, line: String, source: io::Error },
    /// A limit could not be set.
    #[error("cannot set {path} to {value}")]
    Limit { path: PathBuf, value: String, source: io::Error },
    /// A process could not be moved into a group.
    #[error("cannot move process {pid} into cgroup {path}")]
    Enter { path: PathBuf, pid: i32, source: io::Error },
    /// A file or directory could not be given to the guest.
    #[error("cannot give {path} to user {uid}")]
    Delegate { path: PathBuf, uid: u32, source: io::Error },
    /// A group could not be opened.
    #[error("cannot open cgroup {path}")]
    Open { path: PathBuf, source: io::Error },
    /// It could not be told who is left in a group.
    #[error("cannot list the processes of cgroup {path}")]
    List { path: PathBuf, source: io::Error },
    /// The processes of a group could not be killed.
    #[error("cannot kill the processes of cgroup {path}")]
    Kill { path: PathBuf, source: io::Error },
    /// Processes outlived SIGKILL for longer than we wait.
    #[error("cgroup slot {slot} still has processes {waited:?} after they were killed")]
    Undead { slot: u32, waited: Duration },
    /// A group could not be frozen or thawed.
    #[error("cannot write {path} to freeze or thaw")]
    Freeze { path: PathBuf, source: io::Error },
    /// Processes did not stop for longer than we wait. They have been let go again.
    #[error("cgroup slot {slot} did not freeze within {waited:?}")]
    Restless { slot: u32, waited: Duration },
    /// A group could not be removed.
    #[error("cannot remove cgroup {path}")]
    Remove { path: PathBuf, source: io::Error },
}

/// A directory in which the guest makes a group for each execution.
#[derive(Debug)]
pub struct LeafDir {
    /// The directory `box`.
    pub fd: OwnedFd,
    /// Whether it is of version two.
    pub v2: bool,
}

/// How a child gets into `guest`; see [`Group::entrance`] and [`Group::monitors_desk`].
#[derive(Debug)]
pub struct Entrance {
    /// The version-two group, for a child to be born in.
    pub birthplace: Option<OwnedFd>,
    /// Files of version one, to which the child writes `0` while it has a single thread.
    pub tasks: Vec<fs::File>,
    /// A file of version two, to which the child writes `0` once it has its own cgroup namespace.
    pub onward: Option<fs::File>,
}

/// The control groups of one sandbox. Dropping it leaves them in place.
#[derive(Debug)]
pub struct Group {
    slot: u32,
    /// The version-two one, if any, comes first.
    trees: Vec<Tree>,
}

impl Group {
    /// Makes the groups of slot `slot` with their limits; empty ones left by an earlier sandbox are replaced. The caller
    /// sees to it that no two sandboxes are made in one slot at a time. On error nothing is left behind.
    pub fn create(layout: &Layout, slot: u32, limits: &Limits) -> Result<Group, CgroupError> {
        let group = Group::prepare(layout, slot)?;
        match group.bound(limits).and_then(|()| group.settle(limits)) {
            Ok(()) => Ok(group),
            Err(error) => {
                let _ = group.remove();
                Err(error)
            }
        }
    }

    /// The same, still without limits: [`Group::bound`] must follow before a child enters by [`Group::entrance`], and
    /// [`Group::settle`] once it is in.
    pub fn prepare(layout: &Layout, slot: u32) -> Result<Group, CgroupError> {
        let group = Group::named(layout, slot);
        if group.exists() {
            if group.is_populated()? {
                return Err(CgroupError::SlotBusy { slot });
            }
            group.remove()?;
        }
        match group.trees.iter().try_for_each(build) {
            Ok(()) => Ok(group),
            Err(error) => {
                // The first error is the one worth telling; the reaper finds what this leaves.
                let _ = group.remove();
                Err(error)
            }
        }
    }

    /// Sets the limits that can be set before the guest is inside.
    pub fn bound(&self, limits: &Limits) -> Result<(), CgroupError> {
        let mut early = self.trees.iter().filter(|tree| !tree.hierarchy().nsdelegate);
        early.try_for_each(|tree| limit(tree, limits))
    }

    /// Sets all other limits. Until then nothing but the guest may run inside.
    ///
    /// A host may let processes be born only within the cgroup namespace of their parent. That of the guest must then
    /// hold `guest` and `box`, so it is made in the group around both. But no process may be there once groups inside
    /// have limits.
    pub fn settle(&self, limits: &Limits) -> Result<(), CgroupError> {
        let mut late = self.trees.iter().filter(|tree| tree.hierarchy().nsdelegate);
        late.try_for_each(|tree| limit(tree, limits))
    }

    /// The groups of slot `slot`, or what there is of them; `None` if there is nothing.
    pub fn open_existing(layout: &Layout, slot: u32) -> Option<Group> {
        Some(Group::named(layout, slot)).filter(Group::exists)
    }

    fn named(layout: &Layout, slot: u32) -> Group {
        let trees = layout.hierarchies().iter().map(|hierarchy| Tree::new(hierarchy, slot)).collect();
        Group { slot, trees }
    }

    fn exists(&self) -> bool {
        self.trees.iter().any(|tree| tree.top().exists())
    }

    /// Whether any process is in the groups.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        for tree in &self.trees {
            if tree.is_populated().map_err(|source| CgroupError::List { path: tree.top(), source })? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens the ways by which a child enters `guest` on its own. Moving a process by its number makes the kernel wait
    /// for all processors, which costs milliseconds; these do not.
    pub fn entrance(&self) -> Result<Entrance, CgroupError> {
        let mut entrance = Entrance { birthplace: None, tasks: Vec::new(), onward: None };
        for tree in &self.trees {
            if tree.hierarchy().nsdelegate {
                entrance.birthplace = Some(open(&tree.top())?);
                let path = tree.guest().join("cgroup.procs");
                let file = fs::OpenOptions::new().write(true).open(&path);
                entrance.onward = Some(file.map_err(|source| CgroupError::Open { path, source })?);
                continue;
            }
            if tree.is_v2() {
                entrance.birthplace = Some(open(&tree.guest())?);
                continue;
            }
            entrance.tasks.push(open_tasks(tree)?);
        }
        Ok(entrance)
    }

    /// How the monitor comes to spend of the sandbox's processor time and not of everybody's: it works for the sandbox.
    pub fn monitors_desk(&self) -> Result<Entrance, CgroupError> {
        let mut desk = Entrance { birthplace: None, tasks: Vec::new(), onward: None };
        for tree in self.trees.iter().filter(|tree| tree.has(Controller::Cpu)) {
            if tree.is_v2() {
                desk.birthplace = Some(open(&tree.guest())?);
            } else {
                desk.tasks.push(open_tasks(tree)?);
            }
        }
        Ok(desk)
    }

    /// Moves a process into `guest`. It must not have forked yet: its children would stay behind.
    #[cfg(test)]
    fn enter_guest(&self, pid: i32) -> Result<(), CgroupError> {
        self.trees.iter().try_for_each(|tree| enter(&tree.guest(), pid))
    }

    /// Lets the guest, which runs as `uid` on the host, make leaves and move its own children into `box`. The limits
    /// stay out of its reach.
    pub fn delegate(&self, uid: u32, gid: u32) -> Result<(), CgroupError> {
        let give = |path: PathBuf| {
            chown(&path, Some(uid), Some(gid)).map_err(|source| CgroupError::Delegate { path, uid, source })
        };
        for tree in &self.trees {
            if tree.hierarchy().has_leaves() {
                // Leaves belong to whoever makes them, so their own files need nothing more.
                give(tree.executions())?;
            } else {
                give(tree.executions().join("tasks"))?;
            }
            if tree.is_v2() {
                // To move a process one must be able to write to the nearest group that holds both ends.
                give(tree.top().join("cgroup.procs"))?;
                give(tree.guest().join("cgroup.procs"))?;
            }
        }
        Ok(())
    }

    /// The `box` directories of version one whose `tasks` each execution joins itself, by writing `0`.
    pub fn join_dirs(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let shared = self.trees.iter().filter(|tree| !tree.hierarchy().has_leaves());
        shared.map(|tree| open(&tree.executions())).collect()
    }

    /// The `box` directories in which each execution gets a group of its own, that of version two first.
    pub fn leaf_dirs(&self) -> Result<Vec<LeafDir>, CgroupError> {
        let split = self.trees.iter().filter(|tree| tree.hierarchy().has_leaves());
        split.map(|tree| Ok(LeafDir { fd: open(&tree.executions())?, v2: tree.is_v2() })).collect()
    }

    /// How deep below the root of the version-two hierarchy the group of an execution is, if there is such a hierarchy.
    pub fn leaf_level(&self) -> Option<u32> {
        let tree = self.trees.iter().find(|tree| tree.is_v2())?;
        let below = tree.executions();
        let below = below.strip_prefix(&tree.hierarchy().mount).ok()?;
        Some(below.components().count() as u32 + 1)
    }

    /// Opens the counters of `box`.
    pub fn probe(&self) -> Result<Probe, CgroupError> {
        let mut meters = probe::Meters::default();
        for tree in &self.trees {
            let path = tree.executions();
            fs::metadata(&path).map_err(|source| CgroupError::Open { path, source })?;
            if tree.is_v2() {
                v2::open_meters(tree, &mut meters);
            } else {
                v1::open_meters(tree, &mut meters);
            }
        }
        Ok(Probe::new(meters))
    }

    /// The switch that stops all executions, if they share one. In version two each has its own.
    pub fn freezer_switch(&self) -> Result<Option<Freezer>, CgroupError> {
        if self.trees.iter().any(Tree::is_v2) {
            return Ok(None);
        }
        let Some(tree) = self.freezer() else { return Ok(None) };
        let path = tree.executions().join("freezer.state");
        Freezer::open(&path).map(Some).map_err(|source| CgroupError::Open { path, source })
    }

    /// Lets go on what was stopped by that switch: signals do not reach it.
    pub fn thaw_executions(&self) {
        if let Ok(Some(switch)) = self.freezer_switch() {
            switch.request(false);
        }
    }

    /// Kills every process in the groups, frozen or not, and waits until they are gone.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let gone = patiently(KILL_PATIENCE, || {
            // Whatever the switch does not reach, because a kernel lacks it or a process never got as far as the
            // version-two group, is killed one by one.
            if !self.pull_kill_switch()? {
                self.kill_each()?;
            }
            Ok(!self.is_populated()?)
        })?;
        if gone { Ok(()) } else { Err(CgroupError::Undead { slot: self.slot, waited: KILL_PATIENCE }) }
    }

    /// Kills all processes of the version-two group at once; `false` if there are none or there is no such switch.
    fn pull_kill_switch(&self) -> Result<bool, CgroupError> {
        let Some(tree) = self.trees.iter().find(|tree| tree.is_v2()) else { return Ok(false) };
        if !tree.is_populated().map_err(|source| CgroupError::List { path: tree.top(), source })? {
            return Ok(false);
        }
        let path = tree.top().join("cgroup.kill");
        match write(&path, "1") {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(source) => Err(CgroupError::Kill { path, source }),
        }
    }

    fn kill_each(&self) -> Result<(), CgroupError> {
        // Frozen processes cannot fork away from the list. The signal acts when they thaw.
        self.request_freeze(true)?;
        let killed = self.trees.iter().try_for_each(|tree| {
            tree.kill_each().map_err(|source| CgroupError::Kill { path: tree.top(), source })
        });
        self.request_freeze(false)?;
        self.thaw_executions();
        killed
    }

    /// Stops every process in the groups, PID 1 included, and waits until they stand still; or lets them go on.
    pub fn freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        self.request_freeze(frozen)?;
        if !frozen || patiently(FREEZE_PATIENCE, || self.is_frozen())? {
            return Ok(());
        }
        self.request_freeze(false)?;
        Err(CgroupError::Restless { slot: self.slot, waited: FREEZE_PATIENCE })
    }

    fn request_freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        let Some(tree) = self.freezer() else { return Ok(()) };
        let (path, value) = match (tree.is_v2(), frozen) {
            (true, true) => (tree.top().join("cgroup.freeze"), "1"),
            (true, false) => (tree.top().join("cgroup.freeze"), "0"),
            (false, true) => (tree.top().join("freezer.state"), "FROZEN"),
            (false, false) => (tree.top().join("freezer.state"), "THAWED"),
        };
        write(&path, value).map_err(|source| CgroupError::Freeze { path, source })
    }

    fn is_frozen(&self) -> Result<bool, CgroupError> {
        let Some(tree) = self.freezer() else { return Ok(false) };
        let (path, sign) = match tree.is_v2() {
            true => (tree.top().join("cgroup.events"), "frozen 1"),
            false => (tree.top().join("freezer.state"), "FROZEN"),
        };
        match fs::read_to_string(&path) {
            Ok(state) => Ok(state.lines().any(|line| line == sign)),
            Err(source) => Err(CgroupError::Read { path, source }),
        }
    }

    /// The tree that can freeze, if it exists; every [`Layout`] has one.
    fn freezer(&self) -> Option<&Tree> {
        self.trees.iter().find(|tree| (tree.is_v2() || tree.has(Controller::Freezer)) && tree.top().exists())
    }

    /// Removes the groups, waiting a little for processes that are on their way out. Removing what is not there
    /// succeeds. The directory `belljar` stays, for other sandboxes.
    pub fn remove(&self) -> Result<(), CgroupError> {
        for tree in &self.trees {
            let mut busy = None;
            let removed = patiently(REMOVE_PATIENCE, || match tree.remove() {
                Ok(()) => Ok(true),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    busy = Some(error);
                    Ok(false)
                }
                Err(source) => Err(CgroupError::Remove { path: tree.top(), source }),
            })?;
            if let (false, Some(source)) = (removed, busy) {
                return Err(CgroupError::Remove { path: tree.top(), source });
            }
        }
        Ok(())
    }
}

fn build(tree: &Tree) -> Result<(), CgroupError> {
    let shared = tree.shared();
    match fs::create_dir(&shared) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(CgroupError::Make { path: shared, source });
        }
        _ => {}
    }
    enable_in(tree, shared)?;
    make(tree.top())?;
    if tree.guest() != tree.top() {
        make(tree.guest())?;
    }
    make(tree.executions())
}

/// Hands the controllers down and sets the limits. Nobody is in the group around `guest` and `box`.
fn limit(tree: &Tree, limits: &Limits) -> Result<(), CgroupError> {
    enable_in(tree, tree.top())?;
    enable_in(tree, tree.executions())?;
    let settings = if tree.is_v2() { v2::settings(tree, limits) } else { v1::settings(tree, limits) };
    for tree::Setting { path, value, optional } in settings.into_iter().filter(tree::Setting::stands) {
        match write(&path, &value) {
            Err(error) if !(optional && is_gone(&error)) => {
                return Err(CgroupError::Limit { path, value, source: error });
            }
            _ => {}
        }
    }
    Ok(())
}

fn enable_in(tree: &Tree, group: PathBuf) -> Result<(), CgroupError> {
    let Some((path, line)) = tree.is_v2().then(|| v2::enabled_in(tree, group)).flatten() else {
        return Ok(());
    };
    write(&path, &line).map_err(|source| CgroupError::Enable { path, line, source })
}

fn make(path: PathBuf) -> Result<(), CgroupError> {
    fs::create_dir(&path).map_err(|source| CgroupError::Make { path, source })
}

#[cfg(test)]
fn enter(group: &Path, pid: i32) -> Result<(), CgroupError> {
    write(&group.join("cgroup.procs"), &pid.to_string()).map_err(|source| CgroupError::Enter {
        path: group.into(),
        pid,
        source,
    })
}

fn open_tasks(tree: &Tree) -> Result<fs::File, CgroupError> {
    let path = tree.guest().join("tasks");
    fs::OpenOptions::new().write(true).open(&path).map_err(|source| CgroupError::Open { path, source })
}

fn open(path: &Path) -> Result<OwnedFd, CgroupError> {
    open_directory(CWD, path).map_err(|errno| CgroupError::Open { path: path.into(), source: errno.into() })
}

/// Tries until it is done or `patience` is over, and says which.
fn patiently(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<bool, CgroupError>,
) -> Result<bool, CgroupError> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_micros(200);
    loop {
        if attempt()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
