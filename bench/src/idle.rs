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
const KERNEL: [(&str, &str); 5] = [
    ("Slab", "slab"),
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
    let before = Counts::take(bell.home())?;
    let memory_before = read("/proc/meminfo")?;
    eprintln!("idle: making {count} sandboxes");
    let start = Instant::now();
    let sandboxes = create_all(bell, count, 2).await?;
    let made_in = start.elapsed();
    let memory = read("/proc/meminfo")?;
    let processes = weigh(bell.home())?;
    let missing = ROLES.iter().find(|role| processes.get(*role).is_none_or(|weight| weight.count < count));
    if let Some(role) = missing {
        return Err(BenchError::Invalid(format!("not every one of {count} sandboxes has its {role}")));
    }
    eprintln!("idle: removing them");
    let start = Instant::now();
    remove_all(sandboxes).await?;
    let removed_in = start.elapsed();
    let after = settle(&before, bell.home()).await?;

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
    table.notes.push(left(report, &before, &after));
    report.tables.push(table);
    Ok(())
}

/// A tied sandbox keeps a descriptor open here; thousands need more than the usual bound.
fn raise_open_files() {
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
    for (pid, program) in &ours {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
        let role = match program.as_str() {
            guest if guest.starts_with("belljar-guest") => "guest",
            // The monitor is forked by the launcher and runs the same program.
            _ if parent(*pid).is_some_and(|parent| ours.contains_key(&parent)) => "monitor",
            _ => "launcher",
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

/// The processes whose program lies in the data directory, with the program's name.
fn processes(home: &Path) -> Result<BTreeMap<u32, String>> {
    let mut ours = BTreeMap::new();
    for entry in fs::read_dir("/proc").map_err(at(Path::new("/proc")))?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let program =
            fs::read_link(entry.path().join("exe")).ok().filter(|program| program.starts_with(home));
        if let Some(name) = program.as_deref().and_then(Path::file_name) {
            ours.insert(pid, name.to_string_lossy().into_owned());
        }
    }
    Ok(ours)
}

/// What a sandbox could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Counts([(&'static str, u64); 5]);

impl Counts {
    fn take(home: &Path) -> Result<Self> {
        let mounts = read("/proc/self/mountinfo")?;
        let groups = mounts
            .lines()
            .filter(|line| line.contains(" - cgroup"))
            .filter_map(|line| line.split(' ').nth(4));
        let groups = groups.map(|mount| entries(&Path::new(mount).join("belljar"))).sum();
        Ok(Self([
            ("processes", processes(home)?.len() as u64),
            ("mounts", mounts.lines().count() as u64),
            ("cgroups", groups),
            ("network_namespaces", network_namespaces()),
            ("files", entries(&home.join("sandboxes"))),
        ]))
    }

    /// Whether nothing was added.
    fn within(&self, before: &Self) -> bool {
        self.0.iter().zip(&before.0).all(|((_, now), (_, then))| now <= then)
    }
}

/// Subdirectories of a directory; none if it is not there.
fn entries(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count() as u64
}

fn network_namespaces() -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let inodes = processes.filter_map(|entry| Some(fs::metadata(entry.path().join("ns/net")).ok()?.ino()));
    inodes.collect::<BTreeSet<u64>>().len() as u64
}

/// Waits until nothing is left, or for so long that something is.
async fn settle(before: &Counts, home: &Path) -> Result<Counts> {
    let start = Instant::now();
    loop {
        let after = Counts::take(home)?;
        if after.within(before) || start.elapsed() > SETTLING {
            return Ok(after);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn left(report: &mut Report, before: &Counts, after: &Counts) -> String {
    let mut words = Vec::new();
    for ((name, now), (_, then)) in after.0.iter().zip(&before.0) {
        let left = now.saturating_sub(*then);
        report.set(format!("idle.left.{name}"), left as f64);
        words.push(format!("{left} {}", name.replace('_', " ")));
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
    fn something_left_is_told_from_nothing() {
        let counts = |value| Counts(["a", "b", "c", "d", "e"].map(|name| (name, value)));
        assert!(counts(3).within(&counts(3)) && counts(2).within(&counts(3)));
        assert!(!counts(4).within(&counts(3)));
        let mut report = Report::new(true);
        assert!(left(&mut report, &counts(3), &counts(5)).contains("2 a"));
        assert_eq!(report.get("idle.left.e"), Some(2.0));
    }

    #[test]
    fn our_own_parent_is_found() {
        assert_eq!(parent(std::process::id()), Some(std::os::unix::process::parent_id()));
        assert!(processes(Path::new("/no/such/place")).unwrap().is_empty());
    }
}
