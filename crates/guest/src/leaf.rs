//! The cgroups that an execution has to itself, one in each hierarchy that the launcher opened for it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use belljar_core::wire::LeafDir;
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::members;

/// An execution's own cgroups.
pub(crate) struct Leaf {
    name: String,
    places: Vec<Place>,
}

struct Place {
    parent: OwnedFd,
    directory: OwnedFd,
    v2: bool,
}

impl Leaf {
    /// Makes the cgroups for this conversation. What was made before a failure is removed again.
    pub(crate) fn create(parents: &[(OwnedFd, LeafDir)], id: u32) -> Result<Self, Errno> {
        let mut leaf = Self { name: format!("e{id}"), places: Vec::new() };
        parents.iter().try_for_each(|(parent, kind)| leaf.add(parent, kind.v2))?;
        Ok(leaf)
    }

    /// Makes the cgroup of version two that all file operations share; that of version one has none, they join those
    /// of the sandbox as a whole.
    pub(crate) fn for_files(parents: &[(OwnedFd, LeafDir)]) -> Result<Self, Errno> {
        let mut leaf = Self { name: "files".to_owned(), places: Vec::new() };
        let parents = parents.iter().filter(|(_, kind)| kind.v2);
        parents.map(|(parent, _)| leaf.add(parent, true)).collect::<Result<Vec<()>, Errno>>()?;
        Ok(leaf)
    }

    fn add(&mut self, parent: &OwnedFd, v2: bool) -> Result<(), Errno> {
        let parent = rustix::io::fcntl_dupfd_cloexec(parent, 3)?;
        rustix::fs::mkdirat(&parent, &self.name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = rustix::fs::openat(&parent, &self.name, flags, Mode::empty()).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&parent, &self.name, AtFlags::REMOVEDIR);
        })?;
        self.places.push(Place { parent, directory, v2 });
        Ok(())
    }

    /// The files through which a process enters those of version one.
    pub(crate) fn doors(&self) -> Result<Vec<OwnedFd>, Errno> {
        self.places.iter().filter(|place| !place.v2).map(|place| door(&place.directory)).collect()
    }

    /// The one of version two, for a process to be born in.
    pub(crate) fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        self.places.iter().find(|place| place.v2).map(|place| place.directory.as_fd())
    }

    /// The number by which the kernel knows the one of version two.
    pub(crate) fn number(&self) -> Result<Option<u64>, Errno> {
        self.birthplace().map(|directory| Ok(rustix::fs::fstat(directory)?.st_ino)).transpose()
    }

    /// The processes in it, by their numbers in the guest's own namespace.
    pub(crate) fn members(&self) -> Vec<i32> {
        let place = self.places.iter().find(|place| place.v2).or(self.places.first());
        let text = place.and_then(|place| place.read("cgroup.procs")).unwrap_or_default();
        // A process of another namespace is shown as 0.
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
    }

    /// Kills every process in it; forks that race against a v1 cgroup may need it again.
    pub(crate) fn kill(&self) {
        let killed =
            self.places.iter().filter(|place| place.v2).any(|place| place.write("cgroup.kill", b"1"));
        if !killed {
            members::signal(|| self.members(), Signal::KILL);
        }
    }

    /// Stops every process in it, or lets them go on; only one of version two can do that by itself.
    pub(crate) fn freeze(&self, frozen: bool) {
        for place in self.places.iter().filter(|place| place.v2) {
            place.write("cgroup.freeze", if frozen { b"1" } else { b"0" });
        }
    }

    /// Whether every process in it stands still, as far as it can see to that.
    pub(crate) fn is_frozen(&self) -> bool {
        self.places.iter().filter(|place| place.v2).all(|place| {
            place.read("cgroup.events").is_some_and(|text| text.lines().any(|line| line == "frozen 1"))
        })
    }

    /// Processor time of everything that ever ran in it.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        let v2 = self.places.iter().filter(|place| place.v2).find_map(|place| {
            let text = place.read("cpu.stat")?;
            text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok())
        });
        let v1 =
            || self.places.iter().find_map(|place| place.number("cpuacct.usage")).map(|nanos| nanos / 1000);
        v2.or_else(v1)
    }

    /// The most processes and threads that were in it at once.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.places.iter().find_map(|place| place.number("pids.peak"))
    }

    /// Removes the cgroups that are empty; whether none is left.
    pub(crate) fn remove(&mut self) -> bool {
        self.places.retain(|place| {
            let removed = rustix::fs::unlinkat(&place.parent, &self.name, AtFlags::REMOVEDIR);
            matches!(removed, Err(Errno::BUSY | Errno::INTR))
        });
        self.places.is_empty()
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Place {
    fn read(&self, file: &str) -> Option<String> {
        let fd = rustix::fs::openat(&self.directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
        std::io::read_to_string(std::fs::File::from(fd)).ok()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    fn write(&self, file: &str, bytes: &[u8]) -> bool {
        rustix::fs::openat(&self.directory, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|fd| rustix::io::write(fd, bytes))
            .is_ok()
    }
}

/// Opens the file through which a process with a single thread enters the version-one cgroup of this directory.
pub(crate) fn door(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, c"tasks", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a version-one cgroup does nothing but stop processes. Files can be had while those stand still.
pub(crate) fn only_freezes(directory: &OwnedFd) -> bool {
    let has = |file: &str| rustix::fs::accessat(directory, file, Access::EXISTS, AtFlags::empty()).is_ok();
    has("freezer.state") && !has("memory.usage_in_bytes") && !has("cpu.cfs_quota_us")
}

/// Takes over a descriptor that the launcher named, under a number that children do not inherit.
pub(crate) fn adopt(fd: i32) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is only duplicated; if it names nothing, the kernel says so.
    let named = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(named, rustix::io::FdFlags::CLOEXEC)?;
    let own = rustix::io::fcntl_dupfd_cloexec(named, 3)?;
    debug_assert_ne!(own.as_raw_fd(), fd);
    Ok(own)
}
