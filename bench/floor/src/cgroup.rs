//! The cgroups of the floor. The least: four directories and three limits of version one, or one directory of version
//! two. Those of a sandbox: a group for all, one for executions and one for this execution, with the limits that the jail
//! sets.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::launch::Extent;

/// How the host arranges its cgroups, as far as the floor cares.
pub(crate) enum Hierarchies {
    /// One mount for each of cpu, memory, pids and freezer; and one of version two, if there is one.
    One([PathBuf; 4], Option<PathBuf>),
    /// One mount for all.
    Two(PathBuf),
}

/// The limits set: files and values. They are generous; setting them is what is measured.
const ONE: [(usize, &str, &str); 3] =
    [(0, "cpu.cfs_quota_us", "200000"), (1, "memory.limit_in_bytes", "1073741824"), (2, "pids.max", "256")];
const TWO: [(&str, &str); 3] =
    [("cpu.max", "200000 100000"), ("memory.max", "1073741824"), ("pids.max", "256")];
/// What the jail sets in each of its groups, the larger and the smaller. Files that this kernel lacks are passed over.
const JAILS: [(usize, &str, [&str; 2]); 6] = [
    (0, "cpu.cfs_period_us", ["100000", "100000"]),
    (0, "cpu.cfs_quota_us", ["220000", "200000"]),
    (1, "memory.limit_in_bytes", ["1107296256", "1073741824"]),
    (1, "memory.memsw.limit_in_bytes", ["1107296256", "1073741824"]),
    (1, "memory.kmem.tcp.limit_in_bytes", ["276824064", "268435456"]),
    (2, "pids.max", ["288", "256"]),
];

impl Hierarchies {
    /// Reads the mount table.
    pub(crate) fn detect() -> io::Result<Self> {
        Self::choose(&fs::read_to_string("/proc/self/mounts")?)
    }

    fn choose(mounts: &str) -> io::Result<Self> {
        let fields = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let of_controller = |name: &str| {
            fields()
                .find(|mount| matches!(mount[..], [_, _, "cgroup", options, ..] if options.split(',').any(|o| o == name)))
                .map(|mount| PathBuf::from(mount[1]))
        };
        let missing = |what: &str| io::Error::other(format!("no cgroup hierarchy for {what} is mounted"));
        let unified = fields().find(|mount| mount.get(2) == Some(&"cgroup2"));
        let unified = unified.map(|mount| PathBuf::from(mount[1]));
        if let Some(cpu) = of_controller("cpu") {
            let other = |name| of_controller(name).ok_or_else(|| missing(name));
            return Ok(Self::One([cpu, other("memory")?, other("pids")?, other("freezer")?], unified));
        }
        unified.map(Self::Two).ok_or_else(|| missing("cpu"))
    }
}

/// The groups of one launch, which are removed when this is dropped.
pub(crate) struct Groups {
    made: Vec<PathBuf>,
    /// What the child writes `0` to in order to join; version one only.
    pub(crate) tasks: Vec<File>,
    /// What the child is born in; version two only.
    pub(crate) birthplace: Option<File>,
}

impl Groups {
    /// Makes the groups and sets the limits.
    pub(crate) fn make(hierarchies: &Hierarchies, name: &str, extent: Extent) -> io::Result<Self> {
        let mut groups =
            Self { made: Vec::with_capacity(12), tasks: Vec::with_capacity(4), birthplace: None };
        match (hierarchies, extent) {
            (Hierarchies::One(mounts, _), Extent::Least) => {
                for mount in mounts {
                    groups.make_one(mount.join(name))?;
                }
                for (number, file, value) in ONE {
                    set(&groups.made[number].join(file), value)?;
                }
                for group in &groups.made {
                    groups.tasks.push(open(&group.join("tasks"))?);
                }
            }
            (Hierarchies::One(mounts, unified), Extent::Same) => {
                groups.make_jails(mounts, unified.as_deref(), name)?
            }
            // There the jail's groups differ in number alone, and the floor does with one.
            (Hierarchies::Two(mount), _) => {
                groups.make_one(mount.join(name))?;
                for (file, value) in TWO {
                    set(&groups.made[0].join(file), value)?;
                }
                groups.birthplace = Some(File::open(&groups.made[0])?);
            }
        }
        Ok(groups)
    }

    /// The groups that the jail makes where both versions are mounted: in each a group for all and `box` in it; of
    /// version two also `guest`, and for the execution a leaf there and in that of processes.
    fn make_jails(&mut self, mounts: &[PathBuf; 4], unified: Option<&Path>, name: &str) -> io::Result<()> {
        for (number, mount) in mounts.iter().take(3).enumerate() {
            let (all, executions) = (mount.join(name), mount.join(name).join("box"));
            self.make_one(all.clone())?;
            self.make_one(executions.clone())?;
            for (_, file, values) in JAILS.iter().filter(|(place, ..)| *place == number) {
                for (group, value) in [&all, &executions].into_iter().zip(values) {
                    match set(&group.join(file), value) {
                        Err(error) if group.join(file).exists() => return Err(error),
                        _ => {}
                    }
                }
            }
            let place = if number == 2 { executions.join("e1") } else { executions };
            if number == 2 {
                self.make_one(place.clone())?;
            }
            self.tasks.push(open(&place.join("tasks"))?);
        }
        if let Some(unified) = unified {
            for part in ["", "guest", "box", "box/e1"] {
                self.make_one(unified.join(name).join(part))?;
            }
            self.birthplace = Some(File::open(unified.join(name).join("box/e1"))?);
        }
        Ok(())
    }

    fn make_one(&mut self, path: PathBuf) -> io::Result<()> {
        fs::create_dir(&path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        self.made.push(path);
        Ok(())
    }

    /// The descriptors through which the child joins, in a form it can use after the clone.
    pub(crate) fn joins(&self) -> [i32; 4] {
        let mut joins = [-1; 4];
        for (place, file) in joins.iter_mut().zip(&self.tasks) {
            *place = file.as_raw_fd();
        }
        joins
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            let _ = fs::remove_dir(path);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let problem = |error| io::Error::other(format!("{}: {error}", path.display()));
    OpenOptions::new().write(true).open(path).map_err(problem)
}

fn set(path: &Path, value: &str) -> io::Result<()> {
    open(path)?
        .write_all(value.as_bytes())
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpuacct cgroup rw,relatime,cpuacct 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
";

    #[test]
    fn version_one_is_taken_where_it_has_the_controllers() {
        let Ok(Hierarchies::One(mounts, Some(_))) = Hierarchies::choose(HYBRID) else {
            panic!("not version one")
        };
        let names = mounts.map(|mount| mount.file_name().unwrap().to_owned());
        assert_eq!(names, ["cpu", "memory", "pids", "freezer"]);
    }

    #[test]
    fn a_missing_controller_is_named() {
        let without = HYBRID.replace("pids", "rdma");
        let Err(error) = Hierarchies::choose(&without) else { panic!("chosen without pids") };
        assert!(error.to_string().contains("pids"), "{error}");
    }

    #[test]
    fn version_two_alone_is_taken() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert!(
            matches!(Hierarchies::choose(mounts), Ok(Hierarchies::Two(path)) if path == Path::new("/sys/fs/cgroup"))
        );
        assert!(Hierarchies::choose("proc /proc proc rw 0 0\n").is_err());
    }
}
