//! Which cgroup hierarchies this host has, read from its mount table.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::CgroupError;

/// How a host arranges its cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A hierarchy for every controller.
    V1,
    /// As [`Kind::V1`], and a version-two hierarchy beside them that has no controllers of its own.
    Hybrid,
    /// One hierarchy with all controllers.
    V2,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::V1 => "v1",
            Kind::Hybrid => "hybrid",
            Kind::V2 => "v2",
        })
    }
}

/// A part of the kernel that accounts for, or bounds, what a group uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Memory, swap included.
    Memory,
    /// Processes and threads.
    Pids,
    /// Shares and quotas of processor time.
    Cpu,
    /// Block devices; used on [`Kind::V2`] where the host offers it.
    Io,
    /// Processor time used; only version one tells it from [`Controller::Cpu`].
    Cpuacct,
    /// Pausing; only version one makes it a controller.
    Freezer,
}

impl Controller {
    const REQUIRED: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
            Controller::Io => "io",
            Controller::Cpuacct => "cpuacct",
            Controller::Freezer => "freezer",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// One mounted tree of cgroups, with those of its controllers that we use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    /// Whether processes may be born or moved only within their cgroup namespace, as systemd mounts version two.
    pub(super) nsdelegate: bool,
}

impl Hierarchy {
    pub(super) fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }

    /// Whether each execution has a group of its own here, rather than sharing `box`.
    pub(super) fn has_leaves(&self) -> bool {
        self.version == Version::Two || self.has(Controller::Pids)
    }
}

/// The hierarchies a sandbox needs on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    kind: Kind,
    /// The version-two one, if any, comes first.
    hierarchies: Vec<Hierarchy>,
}

impl Layout {
    /// Looks at the host's mounts.
    pub fn detect() -> Result<Layout, CgroupError> {
        let read = |path: PathBuf| match fs::read_to_string(&path) {
            Ok(text) => Ok(text),
            Err(source) => Err(CgroupError::Read { path, source }),
        };
        let mounts = Mounts::parse(&read("/proc/self/mountinfo".into())?);
        let (available, enabled) = match &mounts.v2 {
            Some(mount) => {
                (read(mount.join("cgroup.controllers"))?, read(mount.join("cgroup.subtree_control"))?)
            }
            None => Default::default(),
        };
        Layout::choose(mounts, &available, &enabled)
    }

    /// As a host would look that has the version-one hierarchies of this one, and nothing else.
    #[cfg(test)]
    pub(super) fn detect_without_v2() -> Result<Layout, CgroupError> {
        let mounts = Mounts::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
        Layout::choose_v1(Mounts { v2: None, ..mounts })
    }

    /// How the host arranges its cgroups.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the version-two hierarchy is mounted, if there is one.
    pub fn v2_mount(&self) -> Option<&Path> {
        let v2 = self.hierarchies.iter().find(|hierarchy| hierarchy.version == Version::Two)?;
        Some(&v2.mount)
    }

    /// The slots for which some group exists, in no order.
    pub fn slots(&self) -> Vec<u32> {
        let directories = self
            .hierarchies
            .iter()
            .filter_map(|hierarchy| fs::read_dir(hierarchy.mount.join("belljar")).ok());
        let names = directories.flatten().flatten().map(|entry| entry.file_name());
        let mut slots: Vec<u32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    pub(super) fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Chooses among `mounts`, given the contents of `cgroup.controllers` and `cgroup.subtree_control` at the root of
    /// the version-two hierarchy.
    fn choose(mounts: Mounts, available: &str, enabled: &str) -> Result<Layout, CgroupError> {
        match mounts.v2 {
            Some(mount)
                if !Controller::REQUIRED.iter().any(|&controller| mounts.v1(controller).is_some()) =>
            {
                Layout::choose_v2(mount, mounts.nsdelegate, available, enabled)
            }
            _ => Layout::choose_v1(mounts),
        }
    }

    fn choose_v2(
        mount: PathBuf,
        nsdelegate: bool,
        available: &str,
        enabled: &str,
    ) -> Result<Layout, CgroupError> {
        let names = |text: &str, controller: Controller| {
            text.split_whitespace().any(|word| word == controller.name())
        };
        if let Some(&controller) =
            Controller::REQUIRED.iter().find(|&&controller| !names(available, controller))
        {
            return Err(CgroupError::MissingController { controller });
        }
        let disabled: Vec<_> =
            Controller::REQUIRED.into_iter().filter(|&controller| !names(enabled, controller)).collect();
        if !disabled.is_empty() {
            let path = mount.join("cgroup.subtree_control");
            return Err(CgroupError::NotEnabled { line: enabling(&disabled), path });
        }
        let mut controllers = Controller::REQUIRED.to_vec();
        if names(enabled, Controller::Io) {
            controllers.push(Controller::Io);
        }
        let hierarchies = vec![Hierarchy { mount, version: Version::Two, controllers, nsdelegate }];
        Ok(Layout { kind: Kind::V2, hierarchies })
    }

    fn choose_v1(mounts: Mounts) -> Result<Layout, CgroupError> {
        let (kind, required, optional): (_, &[_], &[_]) = match mounts.v2 {
            // Version two accounts for processor time and freezes without a controller, and freezes better.
            Some(_) => (Kind::Hybrid, &Controller::REQUIRED, &[]),
            None => (
                Kind::V1,
                &[Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Freezer],
                &[Controller::Cpuacct],
            ),
        };
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for &controller in required.iter().chain(optional) {
            let Some(mount) = mounts.v1(controller) else {
                if optional.contains(&controller) {
                    continue;
                }
                return Err(CgroupError::MissingController { controller });
            };
            match hierarchies.iter_mut().find(|hierarchy| hierarchy.mount == mount) {
                Some(shared) => shared.controllers.push(controller),
                None => hierarchies.push(Hierarchy {
                    mount: mount.into(),
                    version: Version::One,
                    controllers: vec![controller],
                    nsdelegate: false,
                }),
            }
        }
        if let Some(mount) = mounts.v2 {
            let (version, controllers, nsdelegate) = (Version::Two, Vec::new(), mounts.nsdelegate);
            hierarchies.insert(0, Hierarchy { mount, version, controllers, nsdelegate });
        }
        Ok(Layout { kind, hierarchies })
    }
}

/// What `cgroup.subtree_control` must be told to enable `controllers`.
pub(super) fn enabling(controllers: &[Controller]) -> String {
    controllers.iter().map(|controller| format!("+{controller}")).collect::<Vec<_>>().join(" ")
}

/// The cgroup mounts of `/proc/self/mountinfo`.
#[derive(Debug, Default)]
struct Mounts {
    v1: Vec<(PathBuf, Vec<String>)>,
    v2: Option<PathBuf>,
    /// An option of the version-two one.
    nsdelegate: bool,
}

impl Mounts {
    fn parse(mountinfo: &str) -> Mounts {
        let mut mounts = Mounts::default();
        for line in mountinfo.lines() {
            let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
            // A bind mount of some inner group has another root; the first whole hierarchy is the one to use.
            let mut fields = mount.split(' ').skip(3);
            let (Some("/"), Some(point)) = (fields.next(), fields.next()) else { continue };
            let mut fields = filesystem.split(' ');
            let (kind, options) = (fields.next(), fields.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup2") if mounts.v2.is_none() => {
                    mounts.v2 = Some(unescape(point));
                    mounts.nsdelegate = options.split(',').any(|option| option == "nsdelegate");
                }
                Some("cgroup") => {
                    mounts.v1.push((unescape(point), options.split(',').map(String::from).collect()));
                }
                _ => {}
            }
        }
        mounts
    }

    fn v1(&self, controller: Controller) -> Option<&Path> {
        let found =
            self.v1.iter().find(|(_, options)| options.iter().any(|option| option == controller.name()));
        found.map(|(mount, _)| mount.as_path())
    }
}

/// Undoes the octal escapes that mountinfo uses for white space and backslashes.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let octal =
            tail.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => bytes.push(*first),
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 1 0:22 / /sys/fs/cgroup rw,relatime shared:4 - tmpfs tmpfs rw,mode=755
25 24 0:23 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw,nsdelegate
26 24 0:24 / /sys/fs/cgroup/systemd rw shared:6 - cgroup cgroup rw,xattr,name=systemd
27 24 0:25 /docker/1 /mnt/inner rw - cgroup cgroup rw,memory
28 24 0:25 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory
29 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:8 - cgroup cgroup rw,cpu,cpuacct
30 24 0:27 / /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids
31 24 0:28 / /sys/fs/cgroup/freezer rw shared:10 - cgroup cgroup rw,freezer
32 24 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn layout(mountinfo: &str, available: &str, enabled: &str) -> Result<Layout, CgroupError> {
        Layout::choose(Mounts::parse(mountinfo), available, enabled)
    }

    fn summary(layout: &Layout) -> Vec<String> {
        let line = |hierarchy: &Hierarchy| {
            format!("{} {}", hierarchy.mount.display(), enabling(&hierarchy.controllers)).trim().to_owned()
        };
        layout.hierarchies.iter().map(line).collect()
    }

    fn without(text: &str, word: &str) -> String {
        text.lines().filter(|line| !line.contains(word)).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn hybrid() {
        let layout = layout(HYBRID, "", "").unwrap();
        assert_eq!(layout.kind().to_string(), "hybrid");
        assert_eq!(
            summary(&layout),
            [
                "/sys/fs/cgroup/unified",
                "/sys/fs/cgroup/memory +memory",
                "/sys/fs/cgroup/pids +pids",
                "/sys/fs/cgroup/cpu,cpuacct +cpu",
            ]
        );
    }

    #[test]
    fn v1() {
        let layout = layout(&without(HYBRID, "cgroup2"), "", "").unwrap();
        assert_eq!(layout.kind().to_string(), "v1");
        assert_eq!(
            summary(&layout),
            [
                "/sys/fs/cgroup/memory +memory",
                "/sys/fs/cgroup/pids +pids",
                "/sys/fs/cgroup/cpu,cpuacct +cpu +cpuacct",
                "/sys/fs/cgroup/freezer +freezer",
            ]
        );
    }

    #[test]
    fn v2() {
        let layout = layout(V2, "cpuset cpu io memory pids\n", "cpu io memory pids\n").unwrap();
        assert_eq!(layout.kind().to_string(), "v2");
        assert_eq!(summary(&layout), ["/sys/fs/cgroup +memory +pids +cpu +io"]);
    }

    #[test]
    fn a_hierarchy_that_keeps_to_namespaces_is_known() {
        let controllers = "cpu memory pids";
        for (mountinfo, expected) in [
            (V2.to_owned(), true),
            (V2.replace("nsdelegate", "memory_recursiveprot"), false),
            (V2.replace("rw,nsdelegate", "rw,nsdelegate,memory_recursiveprot"), true),
            (HYBRID.to_owned(), true),
            (HYBRID.replace(",nsdelegate", ""), false),
        ] {
            let layout = layout(&mountinfo, controllers, controllers).unwrap();
            assert_eq!(layout.hierarchies[0].nsdelegate, expected, "{mountinfo}");
            assert!(layout.hierarchies[1..].iter().all(|hierarchy| !hierarchy.nsdelegate));
        }
    }

    #[test]
    fn a_missing_controller_is_named() {
        for (mountinfo, available, missing) in [
            (without(HYBRID, "pids"), "", "pids"),
            (without(&without(HYBRID, "cgroup2"), "freezer"), "", "freezer"),
            (V2.to_owned(), "cpu pids", "memory"),
            (String::new(), "", "memory"),
        ] {
            let error = layout(&mountinfo, available, available).unwrap_err();
            assert_eq!(error.to_string(), format!("this host has no cgroup controller `{missing}`"));
        }
    }

    #[test]
    fn the_operator_is_told_what_to_write() {
        let error = layout(V2, "cpuset cpu io memory pids", "memory").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cgroup controllers are not enabled: as root, write `+pids +cpu` to /sys/fs/cgroup/cgroup.subtree_control"
        );
    }

    #[test]
    fn mount_points_may_hold_odd_characters() {
        let mountinfo = "30 23 0:26 / /a\\040b\\134c\\0 rw - cgroup2 none rw\n";
        assert_eq!(Mounts::parse(mountinfo).v2.unwrap(), Path::new("/a b\\c\\0"));
    }
}
