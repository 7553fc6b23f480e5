//! The cgroups of the floor: four directories and three limits of version one, or one directory of version two.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// How the host arranges its cgroups, as far as the floor cares.
pub(crate) enum Hierarchies {
    /// One mount for each of cpu, memory, pids and freezer.
    One([PathBuf; 4]),
    /// One mount for all.
    Two(PathBuf),
}

/// The limits set: files and values. They are generous; setting them is what is measured.
const ONE: [(usize, &str, &str); 3] =
    [(0, "cpu.cfs_quota_us", "200000"), (1, "memory.limit_in_bytes", "1073741824"), (2, "pids.max", "256")];
const TWO: [(&str, &str); 3] =
    [("cpu.max", "200000 100000"), ("memory.max", "1073741824"), ("pids.max", "256")];

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
        if let Some(cpu) = of_controller("cpu") {
            let other = |name| of_controller(name).ok_or_else(|| missing(name));
            return Ok(Self::One([cpu, other("memory")?, other("pids")?, other("freezer")?]));
        }
        let unified = fields().find(|mount| mount.get(2) == Some(&"cgroup2"));
        unified.map(|mount| Self::Two(PathBuf::from(mount[1]))).ok_or_else(|| missing("cpu"))
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
    pub(crate) fn make(hierarchies: &Hierarchies, name: &str) -> io::Result<Self> {
        let mut groups = Self { made: Vec::with_capacity(4), tasks: Vec::with_capacity(4), birthplace: None };
        match hierarchies {
            Hierarchies::One(mounts) => {
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
            Hierarchies::Two(mount) => {
                groups.make_one(mount.join(name))?;
                for (file, value) in TWO {
                    set(&groups.made[0].join(file), value)?;
                }
                groups.birthplace = Some(File::open(&groups.made[0])?);
            }
        }
        Ok(groups)
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
        for path in &self.made {
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
        let Ok(Hierarchies::One(mounts)) = Hierarchies::choose(HYBRID) else { panic!("not version one") };
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
