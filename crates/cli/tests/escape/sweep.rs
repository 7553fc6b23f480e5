//! Whether the host is as it was before an attack: processes, mounts, cgroups, loop devices, files, modules, settings.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attack::within;

/// The first host id of the first sandbox slot, and how many ids a slot has.
pub(crate) const FIRST_ID: u32 = 0x7000_0000;
pub(crate) const IDS_PER_SLOT: u32 = 65_536;
const SLOTS: u32 = 4096;

/// How long what is ending may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Settings of the host that an attack could want to change.
const SETTINGS: &[&str] = &[
    "kernel/hostname",
    "kernel/domainname",
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/sysrq",
    "kernel/panic",
    "kernel/kptr_restrict",
    "kernel/randomize_va_space",
    "kernel/unprivileged_bpf_disabled",
    "kernel/perf_event_paranoid",
    "fs/suid_dumpable",
    "fs/protected_hardlinks",
    "user/max_user_namespaces",
    "vm/overcommit_memory",
    "vm/swappiness",
    "net/ipv4/ip_forward",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/core/somaxconn",
];

/// What the host is like.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State {
    settings: BTreeMap<&'static str, String>,
    modules: Vec<String>,
    mounts: Vec<String>,
    loops: Vec<String>,
    files: Vec<PathBuf>,
}

impl State {
    /// As far as these data directories are concerned.
    pub(crate) fn of(homes: &[PathBuf]) -> Self {
        let read = |name: &&'static str| {
            (*name, fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default())
        };
        let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
        let ours = |text: &str| homes.iter().any(|home| text.contains(&*home.to_string_lossy()));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let loops = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let files: Vec<PathBuf> =
            homes.iter().flat_map(|home| ["", "sandboxes", "programs"].map(|part| home.join(part))).collect();
        let mut files: Vec<PathBuf> = files
            .iter()
            .flat_map(|part| fs::read_dir(part).into_iter().flatten().flatten().map(|entry| entry.path()))
            .collect();
        files.sort();
        Self {
            settings: SETTINGS.iter().map(read).collect(),
            modules: modules.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect(),
            mounts: mounts.lines().filter(|line| ours(line)).map(str::to_owned).collect(),
            loops: loops
                .filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok())
                .filter(|file| ours(file))
                .collect(),
            files,
        }
    }

    fn difference(&self, after: &Self) -> Option<String> {
        let changed = self.settings.iter().find(|(name, value)| after.settings.get(*name) != Some(value));
        if let Some((name, before)) = changed {
            return Some(format!(
                "the setting {name} was {:?} and is {:?}",
                before,
                after.settings.get(name)
            ));
        }
        let parts = [
            ("modules", format!("{:?}", self.modules), format!("{:?}", after.modules)),
            ("mounts", format!("{:?}", self.mounts), format!("{:?}", after.mounts)),
            ("loop devices", format!("{:?}", self.loops), format!("{:?}", after.loops)),
            ("files", format!("{:?}", self.files), format!("{:?}", after.files)),
        ];
        let (what, before, after) = parts.into_iter().find(|(_, before, after)| before != after)?;
        Some(format!("{what} were {before} and are {after}"))
    }
}

/// Compares the host with what it was, and sees that nothing is left of these sandboxes.
pub(crate) fn sweep(before: &State, homes: &[PathBuf], sandboxes: &[String]) -> Result<(), String> {
    let mut left = None;
    let clean = within(PATIENCE, || {
        left = before.difference(&State::of(homes)).or_else(|| remains(homes, sandboxes));
        left.is_none()
    });
    if clean { Ok(()) } else { Err(left.unwrap_or_default()) }
}

fn remains(homes: &[PathBuf], sandboxes: &[String]) -> Option<String> {
    let processes = processes();
    let ours =
        |process: &&Process| homes.iter().any(|home| process.below(&home.join("programs"), &processes));
    if let Some(process) = processes.iter().find(ours) {
        return Some(format!("process {} ({}) is left", process.pid, process.command));
    }
    for id in sandboxes {
        let slot = slot_of(id);
        if is_held(slot) {
            // Another sandbox has it by now.
            continue;
        }
        let first = FIRST_ID + slot * IDS_PER_SLOT;
        if let Some(process) =
            processes.iter().find(|process| (first..first + IDS_PER_SLOT).contains(&process.uid))
        {
            return Some(format!("process {} ({}) with an id of {id} is left", process.pid, process.command));
        }
        if let Some(cgroup) = cgroups(slot).first().filter(|_| !is_held(slot)) {
            return Some(format!("{} of {id} is left", cgroup.display()));
        }
    }
    None
}

/// The slot at which the search of a sandbox began; it is that one unless it was taken.
fn slot_of(id: &str) -> u32 {
    id.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % SLOTS
}

fn is_held(slot: u32) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = fs::File::open(format!("/run/belljar/slots/{slot}")) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

/// A process as the host sees it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) uid: u32,
    pub(crate) command: String,
}

impl Process {
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            status.lines().find(|line| line.starts_with(name))?.split_whitespace().nth(1).map(str::to_owned)
        };
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        (field("State:")? != "Z").then_some(())?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(Self { pid, parent: field("PPid:")?.parse().ok()?, uid: field("Uid:")?.parse().ok()?, command })
    }

    /// Whether it is one of these programs, or was started by one.
    pub(crate) fn below(&self, programs: &Path, all: &[Self]) -> bool {
        let programs = programs.to_string_lossy();
        let mut here = Some(self);
        for _ in 0..32 {
            let Some(process) = here else { return false };
            if process.command.starts_with(&*programs) {
                return true;
            }
            here = all.iter().find(|other| other.pid == process.parent);
        }
        false
    }
}

pub(crate) fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The cgroups of a slot, in every hierarchy.
fn cgroups(slot: u32) -> Vec<PathBuf> {
    let number = slot.to_string();
    let mut roots = vec![PathBuf::from("/sys/fs/cgroup")];
    roots.extend(fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path()));
    roots.iter().map(|root| root.join("belljar").join(&number)).filter(|path| path.is_dir()).collect()
}
