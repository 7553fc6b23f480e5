//! Every wall and every limit by its name, so that a test can take one down and see who notices.
//!
//! Code that builds a wall asks [`Wall::stands`] first. In a build for use that is the constant `true`, and nothing can
//! change it. Only a build with the feature `ablation`, which the escape suite makes for itself, takes walls down: those
//! that the environment variable `BELLJAR_ABLATE` names.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorCode};

macro_rules! walls {
    ($($(#[doc = $doc:literal])+ $wall:ident = $name:literal,)+) => {
        /// Something that stands between a sandbox and the rest of the world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Wall {
            $($(#[doc = $doc])+ $wall,)+
        }

        impl Wall {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$wall),+];

            /// The wall's name, as people type it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$wall => $name,)+
                }
            }
        }
    };
}

walls! {
    /// A sandbox has a block of host ids to itself, and host root is not among them.
    UserIds = "user-ids",
    /// Processes of the host are not seen.
    PidNamespace = "pid-namespace",
    /// A network with loopback and nothing else.
    NetNamespace = "net-namespace",
    /// Shared memory, semaphores and queues of its own.
    IpcNamespace = "ipc-namespace",
    /// A host name of its own.
    UtsNamespace = "uts-namespace",
    /// Its place among the host's cgroups is not seen.
    CgroupNamespace = "cgroup-namespace",
    /// The host's tree is let go of after the root was changed.
    HostTreeDetached = "host-tree-detached",
    /// What is written goes to a layer of the sandbox's own.
    OwnLayer = "own-layer",
    /// Directories of the host are mounted read-only.
    ReadOnlyLayers = "read-only-layers",
    /// Set-user-id bits and file capabilities do nothing.
    NoSuid = "nosuid",
    /// Device nodes in layers and on disks do nothing.
    NoDev = "nodev",
    /// What is started inside has no capabilities, or the few of root inside.
    Capabilities = "capabilities",
    /// Nothing inside can gain further capabilities by starting a program.
    BoundingSet = "bounding-set",
    /// No program gives privileges to whoever starts it.
    NoNewPrivileges = "no-new-privileges",
    /// The system-call filter of the whole sandbox.
    Seccomp = "seccomp",
    /// What the guest takes from all it starts on top of that.
    GuestFilter = "guest-filter",
    /// Landlock around the whole sandbox.
    LandlockSandbox = "landlock-sandbox",
    /// Landlock around each execution.
    LandlockExecution = "landlock-execution",
    /// What `/proc` tells about the host reads as empty.
    ProcMasks = "proc-masks",
    /// What in `/proc` steers the host cannot be written to.
    ProcReadOnly = "proc-read-only",
    /// A `/dev` with a handful of harmless devices.
    OwnDev = "own-dev",
    /// Device nodes of its own, where root makes them.
    OwnDevices = "own-devices",
    /// There is no `/sys`.
    NoSys = "no-sys",
    /// Terminals of its own.
    OwnTerminals = "own-terminals",
    /// No user namespace can be made inside.
    NoNestedNamespaces = "no-nested-namespaces",
    /// Memory of all processes together.
    MemoryLimit = "memory-limit",
    /// Processes and threads.
    PidsLimit = "pids-limit",
    /// Processor time.
    CpuLimit = "cpu-limit",
    /// Memory in socket buffers.
    SocketMemoryLimit = "socket-memory-limit",
    /// Netlink sockets, in which memory waits that nobody counts.
    NetlinkCount = "netlink-count",
    /// Connections that nobody has accepted, which nobody counts: few listeners, each with a short queue.
    ListenerCount = "listener-count",
    /// UDP sockets, in which memory waits that nobody counts.
    DatagramCount = "datagram-count",
    /// TCP sockets, each of which has a little, whatever the limit.
    StreamCount = "stream-count",
    /// Locks on files, which nobody counts.
    LockCount = "lock-count",
    /// Open files of a process.
    OpenFiles = "open-files",
    /// The size of a file.
    FileSize = "file-size",
    /// The size of a core dump.
    CoreSize = "core-size",
    /// Memory that is locked.
    LockedMemory = "locked-memory",
    /// The size of a stack.
    StackSize = "stack-size",
    /// Signals and timers that wait.
    PendingSignals = "pending-signals",
    /// Bytes in message queues.
    MessageQueues = "message-queues",
    /// Being nicer to oneself.
    NiceLimit = "nice-limit",
    /// Priorities above everybody.
    RealTimeLimit = "real-time-limit",
    /// Bytes of the sandbox's disk.
    DiskBytes = "disk-bytes",
    /// Files on the sandbox's disk.
    DiskFiles = "disk-files",
    /// Bytes of `/dev/shm`.
    SharedMemoryBytes = "shared-memory-bytes",
    /// How many terminals there are.
    TerminalCount = "terminal-count",
    /// No descriptor of those outside is left open.
    DescriptorsClosed = "descriptors-closed",
    /// No variable of those outside is passed on.
    CleanEnvironment = "clean-environment",
    /// A command ends when its time is over.
    TimeOut = "time-out",
    /// A sandbox ends when its time is over.
    TimeToLive = "time-to-live",
    /// The monitor is a user without privileges.
    MonitorUser = "monitor-user",
    /// The monitor reaches no files but its spool.
    MonitorLandlock = "monitor-landlock",
    /// The monitor makes no system calls but those it serves with.
    MonitorFilter = "monitor-filter",
    /// The monitor hears its owner and root only.
    MonitorPeers = "monitor-peers",
    /// What is marked as an execution's is that execution's, whatever it says itself.
    FlowMarks = "flow-marks",
    /// The door's own port answers nobody.
    DoorPort = "door-port",
    /// The door lets through what the sandbox's policy grants.
    DoorPolicy = "door-policy",
    /// The door leads to public addresses, and to others only if just those are granted.
    PublicAddresses = "public-addresses",
    /// The door leads to no address of the host, unless just that is granted.
    HostAddresses = "host-addresses",
    /// The door hears its owner and root only.
    DoorPeers = "door-peers",
    /// The door's worker is a user without privileges.
    WorkerUser = "worker-user",
    /// The door's worker reaches no files but those it looks up names with.
    WorkerLandlock = "worker-landlock",
    /// The door's worker makes no system calls but those it works with.
    WorkerFilter = "worker-filter",
    /// Memory and threads of the door's worker.
    WorkerLimits = "worker-limits",
    /// Frames have a largest size.
    FrameBounds = "frame-bounds",
    /// What waits for a caller that does not read has a largest size.
    WaitingBound = "waiting-bound",
    /// Kept output has a largest size.
    SpoolBound = "spool-bound",
    /// Names in an archive that comes out stay below the destination.
    ArchiveNames = "archive-names",
    /// Links in an archive that comes out lead nowhere else, and nothing is written through a link.
    ArchiveLinks = "archive-links",
    /// Permissions of what comes out are plain ones.
    ArchiveModes = "archive-modes",
    /// What comes out has a largest size.
    CopyBound = "copy-bound",
    /// Only regular files are read for a download.
    RegularFiles = "regular-files",
    /// Names and kept output do not steer the terminal.
    TerminalFilter = "terminal-filter",
    /// The name of a sandbox is one that was given out.
    SandboxNames = "sandbox-names",
}

impl Wall {
    /// Whether this wall is to be built: always, unless this is a build to take walls down in.
    #[cfg(not(feature = "ablation"))]
    #[inline(always)]
    pub const fn stands(self) -> bool {
        true
    }

    /// Whether this wall is to be built: unless it was taken down.
    #[cfg(feature = "ablation")]
    pub fn stands(self) -> bool {
        ablation::stands(self)
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Wall {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.iter().copied().find(|wall| wall.name() == name).ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|wall| wall.name()).collect();
            Error::new(ErrorCode::InvalidArgument, format!("there is no wall `{}`", name.escape_debug()))
                .hint(format!("the walls are {}", all.join(", ")))
        })
    }
}

/// Taking walls down, for tests.
#[cfg(feature = "ablation")]
pub mod ablation {
    use std::sync::OnceLock;

    use super::{Error, Wall};

    /// The variable that names the walls to take down, with commas between.
    pub const VARIABLE: &str = "BELLJAR_ABLATE";

    static DOWN: OnceLock<u128> = OnceLock::new();
    const _: () = assert!(Wall::ALL.len() <= 128);

    /// Reads the variable. Until then all walls stand; what it does not know is an error.
    pub fn read() -> Result<(), Error> {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        let mut down = 0;
        for name in names.split(',').filter(|name| !name.is_empty()) {
            down |= 1 << name.parse::<Wall>()? as u32;
        }
        DOWN.get_or_init(|| down);
        Ok(())
    }

    /// The variable for the next program. Only what was read is passed on.
    pub fn passed_on() -> (&'static str, String) {
        let down = Wall::ALL.iter().filter(|wall| !stands(**wall)).map(|wall| wall.name());
        (VARIABLE, down.collect::<Vec<_>>().join(","))
    }

    /// Neither allocates nor locks, so it may be asked between fork and exec.
    pub(super) fn stands(wall: Wall) -> bool {
        DOWN.get().is_none_or(|down| down & (1 << wall as u32) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walls_have_names_of_their_own() {
        for wall in Wall::ALL {
            assert_eq!(wall.name().parse::<Wall>().unwrap(), *wall);
        }
        assert!("".parse::<Wall>().is_err());
        assert!("paper".parse::<Wall>().unwrap_err().hint.unwrap().contains("seccomp"));
    }

    #[test]
    #[cfg(not(feature = "ablation"))]
    fn a_build_for_use_has_all_its_walls() {
        assert!(Wall::ALL.iter().all(|wall| wall.stands()));
    }
}
