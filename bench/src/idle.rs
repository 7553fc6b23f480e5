//! Many idle sandboxes at once: what each takes of the machine's memory, and that nothing is left of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::args::Args;
use crate::bell::{Bell, create_all, remove_all};
use crate::error::{BenchError, Result, at};
use crate::print;
use crate::report::{Report, Table, meminfo};

/// How long the last processes may take to be reaped before they count as left behind.
const SETTLING: Duration = Duration::from_secs(10);
/// The parts of the kernel's memory that grow with sandboxes.
const KERNEL: [(&str, &str); 6] = [
    ("SUnreclaim", "slab"),
    ("SReclaimable", "reclaimable_slab"),
    ("PageTables", "page_tables"),
    ("KernelStack", "kernel_stacks"),
    ("Percpu", "per_cpu"),
    ("Shmem", "tmpfs"),
];
const ROLES: [&str; 3] = ["launcher", "monitor", "guest"];

/// Holds many sandboxes, weighs them, removes them and counts.
pub(crate) async fn measure(args: &Args, bell: &Bell, report: &mut Report) -> Result<()> {
    let count = args.idle.unwrap_or(if args.quick { 200 } else { 2400 }).max(1);
    raise_open_files();
    let before: BTreeSet<u32> = processes(bell.home())?.into_keys().collect();
    let memory_before = read("/proc/meminfo")?;
    eprintln!("idle: making {count} sandboxes");
    let start = Instant::now();
    let sandboxes = create_all(bell, count, 2).await?;
    let made_in = start.elapsed();
    let memory = read("/proc/meminfo")?;
    let processes = weigh(bell.home())?;
    let traces = Traces::of(bell.home(), before)?;
    let missing = ROLES.iter().find(|role| processes.get(*role).is_none_or(|weight| weight.count < count));
    if let Some(role) = missing {
        return Err(BenchError::Invalid(format!("not every one of {count} sandboxes has its {role}")));
    }
    eprintln!("idle: removing them");
    let start = Instant::now();
    remove_all(sandboxes).await?;
    let removed_in = start.elapsed();
    let left = settle(&traces, bell.home()).await?;

    report.set("idle.count", count as f64);
    report.set("idle.made_seconds", made_in.as_secs_f64());
    report.set("idle.removed_seconds", removed_in.as_secs_f64());
    let share = |kib: f64| kib / count as f64;
    let mut table =
        Table::new(&format!("{count} idle sandboxes at once, KiB each"), &["what", "KiB", "PSS KiB"]);
    let mut sum = 0.0;
    for role in ROLES {
        let Some(weight) = processes.get(role) else { continue };
        let (private, pss) = (share(weight.private as f64), share(weight.pss as f64));
        report.set(format!("idle.{role}.private_kib"), private);
        report.set(format!("idle.{role}.pss_kib"), pss);
        print::row(&mut table, &format!("{role}, private memory"), &[Some(private), Some(pss)]);
        sum += private;
    }
    for (field, name) in KERNEL {
        let grown = grown(&memory_before, &memory, field);
        report.set(format!("idle.kernel.{name}_kib"), share(grown));
        print::row(&mut table, &format!("kernel, {}", name.replace('_', " ")), &[Some(share(grown)), None]);
        sum += share(grown);
    }
    let available = share(-grown(&memory_before, &memory, "MemAvailable"));
    let free = share(-grown(&memory_before, &memory, "MemFree"));
    // What the machine lost and what we can account for should agree; the promise is about the larger.
    let each = sum.max(available);
    for (name, value) in [("sum of these", sum), ("less MemAvailable", available), ("less MemFree", free)] {
        print::row(&mut table, name, &[Some(value), None]);
    }
    report.set("idle.accounted_kib", sum);
    report.set("idle.available_kib", available);
    report.set("idle.free_kib", free);
    report.set("idle.each_mib", each / 1024.0);
    table.notes.push(format!(
        "Made in {:.1} s by two callers, removed in {:.1} s.",
        made_in.as_secs_f64(),
        removed_in.as_secs_f64()
    ));
    table.notes.push(tell(report, &left));
    report.tables.push(table);
    Ok(())
}

/// A tied sandbox keeps a descriptor open here; thousands need more than the usual bound.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(at(Path::new(path)))
}

fn grown(before: &str, after: &str, field: &str) -> f64 {
    let value = |text: &str| meminfo(text, field).unwrap_or(0) as f64;
    value(after) - value(before)
}

/// What all processes of one kind take, in KiB.
#[derive(Debug, Default, PartialEq, Eq)]
struct Weight {
    count: usize,
    private: u64,
    pss: u64,
}

/// Weighs the processes whose program lies in the data directory.
fn weigh(home: &Path) -> Result<BTreeMap<&'static str, Weight>> {
    let mut weights: BTreeMap<&'static str, Weight> = BTreeMap::new();
    let ours: BTreeMap<u32, String> = processes(home)?;
    let parents: BTreeMap<u32, u32> = ours.keys().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
    let is_guest = |pid: &u32| ours.get(pid).is_some_and(|program| program.starts_with("belljar-guest"));
    let launchers: BTreeSet<u32> =
        parents.iter().filter(|(pid, _)| is_guest(pid)).map(|(_, parent)| *parent).collect();
    for pid in ours.keys() {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
        // Launcher and monitor run the same program; the launcher is the parent of the other two.
        let role = match parents.get(pid) {
            _ if is_guest(pid) => "guest",
            _ if launchers.contains(pid) => "launcher",
            Some(parent) if launchers.contains(parent) => "monitor",
            _ => continue,
        };
        let weight = weights.entry(role).or_default();
        weight.count += 1;
        weight.private += private_memory(&text);
        weight.pss += meminfo(&text, "Pss").unwrap_or(0);
    }
    Ok(weights)
}

/// Pages that would be free if this process were not there. Clean private pages of a file stay in the page cache.
fn private_memory(rollup: &str) -> u64 {
    meminfo(rollup, "Private_Dirty").unwrap_or(0)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// All processes of the machine.
fn pids() -> Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir("/proc").map_err(at(Path::new("/proc")))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// The processes whose program lies in the data directory, with the program's name.
fn processes(home: &Path) -> Result<BTreeMap<u32, String>> {
    let mut ours = BTreeMap::new();
    for pid in pids()? {
        let program =
            fs::read_link(format!("/proc/{pid}/exe")).ok().filter(|program| program.starts_with(home));
        if let Some(name) = program.as_deref().and_then(Path::file_name) {
            ours.insert(pid, name.to_string_lossy().into_owned());
        }
    }
    Ok(ours)
}

/// By what our sandboxes can be found once they are gone, told apart from those of others on this machine.
#[derive(Debug, Default)]
struct Traces {
    /// Processes that were there before the sandboxes, and may stay.
    before: BTreeSet<u32>,
    network_namespaces: BTreeSet<u64>,
    slots: BTreeSet<u32>,
}

impl Traces {
    fn of(home: &Path, before: BTreeSet<u32>) -> Result<Self> {
        let mut traces = Self { before, ..Self::default() };
        for (pid, program) in processes(home)? {
            if program.starts_with("belljar-guest") {
                traces.network_namespaces.extend(network_namespace(pid));
                let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
                traces.slots.extend(slots(&groups));
            }
        }
        Ok(traces)
    }
}

/// The slots in a process's list of cgroups.
fn slots(groups: &str) -> impl Iterator<Item = u32> + '_ {
    let below = groups.lines().filter_map(|line| line.split_once("/belljar/"));
    below.filter_map(|(_, rest)| rest.split('/').next()?.parse().ok())
}

fn network_namespace(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// How much of each kind is left of the sandboxes.
type Left = [(&'static str, usize); 5];

fn count(traces: &Traces, home: &Path) -> Result<Left> {
    let mounts = read("/proc/self/mountinfo")?;
    let hierarchies = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let groups = hierarchies.filter_map(|line| line.split(' ').nth(4)).flat_map(|mount| {
        let folder = Path::new(mount).join("belljar");
        traces.slots.iter().filter(move |slot| folder.join(slot.to_string()).exists())
    });
    let namespaces: BTreeSet<u64> = pids()?.filter_map(network_namespace).collect();
    let sandboxes = home.join("sandboxes");
    let home_text = home.to_string_lossy();
    Ok([
        ("processes", processes(home)?.keys().filter(|pid| !traces.before.contains(pid)).count()),
        ("mounts", mounts.lines().filter(|line| line.contains(&*home_text)).count()),
        ("cgroups", groups.count()),
        ("network_namespaces", namespaces.intersection(&traces.network_namespaces).count()),
        ("files", fs::read_dir(&sandboxes).map_err(at(&sandboxes))?.count()),
    ])
}

/// Waits until nothing is left, or for so long that something is.
async fn settle(traces: &Traces, home: &Path) -> Result<Left> {
    let start = Instant::now();
    loop {
        let left = count(traces, home)?;
        if left.iter().all(|(_, count)| *count == 0) || start.elapsed() > SETTLING {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn tell(report: &mut Report, left: &Left) -> String {
    let mut words = Vec::new();
    for (name, count) in left {
        report.set(format!("idle.left.{name}"), *count as f64);
        words.push(format!("{count} {}", name.replace('_', " ")));
    }
    format!("Left afterwards: {}.", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_signed() {
        let (before, after) = ("MemFree: 100 kB\nSlab: 5 kB\n", "MemFree: 60 kB\nSlab: 9 kB\n");
        assert_eq!(grown(before, after, "MemFree"), -40.0);
        assert_eq!(grown(before, after, "Slab"), 4.0);
        assert_eq!(grown(before, after, "Percpu"), 0.0);
    }

    #[test]
    fn slots_are_read_from_lists_of_cgroups() {
        let groups = "8:pids:/belljar/17/guest\n4:memory:/belljar/17\n1:cpu:/\n0::/belljar/2400/box/3\n";
        assert_eq!(slots(groups).collect::<Vec<_>>(), [17, 17, 2400]);
        assert_eq!(slots("0::/belljar/x\n0::/user.slice\n").count(), 0);
    }

    #[test]
    fn something_left_is_told_from_nothing() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("sandboxes/one")).unwrap();
        let own = network_namespace(std::process::id()).unwrap();
        let traces =
            Traces { network_namespaces: [own].into(), slots: [u32::MAX].into(), ..Traces::default() };
        let left = count(&traces, home.path()).unwrap();
        assert_eq!(left.map(|(_, count)| count), [0, 0, 0, 1, 1]);
        let mut report = Report::new(true);
        assert!(tell(&mut report, &left).ends_with("1 network namespaces, 1 files."));
        assert_eq!(report.get("idle.left.files"), Some(1.0));
    }

    #[test]
    fn our_own_parent_is_found() {
        assert_eq!(parent(std::process::id()), Some(std::os::unix::process::parent_id()));
        assert!(processes(Path::new("/no/such/place")).unwrap().is_empty());
    }
}
