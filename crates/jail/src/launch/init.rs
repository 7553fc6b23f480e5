//! What the guest is told about its sandbox.

use std::time::Duration;

use belljar_core::wire::{self, Account};
use belljar_core::{Limits, Wall};
use rustix::process::getrlimit;

use crate::doorway;
use crate::inside::{FIRST_CGROUP_FD, ROOT_RULES_FD, USER_RULES_FD, locks_fd, questions_fd};
use crate::landlock;
use crate::monitor::guest_deadline;
use crate::plan::{Plan, User};
use crate::policy;

/// Sockets in the sandbox's network that are the door's, and leave those inside as many as they would have without it.
struct DoorSockets {
    /// What it has taken in, at most.
    connections: u32,
    /// Of each family one.
    listeners: u32,
    /// Of each family one.
    dns_sockets: u32,
}

const DOORWAY: DoorSockets =
    DoorSockets { connections: doorway::MAX_CONNECTIONS, listeners: 2, dns_sockets: 2 };
const NO_DOORWAY: DoorSockets = DoorSockets { connections: 0, listeners: 0, dns_sockets: 0 };

/// The first message to the guest. `leaves` says of each directory for leaves whether it is of version two; `joins`
/// directories follow them. `word` is what the filter knows the guest by.
pub(super) fn init(
    plan: &Plan,
    deadline: Duration,
    privileged: bool,
    leaves: Vec<bool>,
    joins: usize,
    word: u64,
) -> wire::Init {
    let landlock = landlock::abi() >= 1;
    let doorway = if plan.doorway { DOORWAY } else { NO_DOORWAY };
    let memory = plan.limits.memory.0;
    let leaf_dirs: Vec<wire::LeafDir> = leaves
        .into_iter()
        .enumerate()
        .map(|(index, v2)| wire::LeafDir { fd: FIRST_CGROUP_FD + index as i32, v2 })
        .collect();
    let first_join = FIRST_CGROUP_FD + leaf_dirs.len() as i32;
    let cgroups = leaf_dirs.len() + joins;
    // Without root there is one id inside.
    let User { uid, gid, home } = if privileged { plan.user.clone() } else { User::default() };
    let is_root = uid == 0;
    let root_capabilities = policy::bits(policy::ROOT_CAPABILITIES);
    let user = Account {
        uid,
        gid,
        home,
        directory: plan.directory.clone(),
        capabilities: if is_root { root_capabilities } else { 0 },
        landlock_fd: landlock.then_some(if is_root { ROOT_RULES_FD } else { USER_RULES_FD }),
    };
    let root = Account {
        uid: 0,
        gid: 0,
        home: "/root".into(),
        directory: plan.directory.clone(),
        capabilities: root_capabilities,
        landlock_fd: landlock.then_some(ROOT_RULES_FD),
    };
    wire::Init {
        protocol: wire::PROTOCOL,
        deadline_ms: guest_deadline(deadline),
        user,
        root: privileged.then_some(root),
        env: plan.env.clone(),
        shell: plan.shell.clone(),
        leaf_dirs,
        join_dirs: (0..joins as i32).map(|index| first_join + index).collect(),
        rlimits: rlimits(&plan.limits, privileged),
        questions: Wall::Seccomp.stands().then(|| wire::Questions {
            fd: questions_fd(cgroups),
            word,
            netlink_sockets: if Wall::NetlinkCount.stands() { netlink_sockets(memory) } else { u32::MAX },
            unaccepted: memory / 8,
            datagram_sockets: datagram_sockets(memory) + doorway.dns_sockets,
            stream_sockets: stream_sockets(memory) + doorway.connections + doorway.listeners,
            foreign_listeners: doorway.listeners,
        }),
        locks_fd: Wall::LockCount.stands().then(|| locks_fd(cgroups)),
    }
}

/// How many netlink sockets may be open at a time: what can wait in them stays within an eighth of the sandbox's memory,
/// unless that is less than a few.
fn netlink_sockets(memory: u64) -> u32 {
    const FEWEST: u64 = 4;
    const MOST: u64 = 32;
    // The kernel doubles what is asked for. Where it does not say, it is the largest default there has been.
    let each = 2 * of_sockets("rmem_max").unwrap_or(4 << 20).max(1 << 12);
    (memory / 8 / each).clamp(FEWEST, MOST) as u32
}

/// How many UDP and ICMP sockets there may be at a time. Copies of what was sent wait in each, as much as it may
/// receive (`rmem_default`, for the filter lets nobody change it), and a datagram that was begun and not finished.
fn datagram_sockets(memory: u64) -> u32 {
    const UNFINISHED: u64 = 64 << 10;
    const LEAST_EACH: u64 = 256 << 10;
    let each = (of_sockets("rmem_default").unwrap_or(0) + UNFINISHED).max(LEAST_EACH);
    (memory / 8 / each).clamp(64, 1024) as u32
}

/// How many TCP sockets there may be at a time: the kernel lets each have some 16 KiB, whatever the limit of its group.
fn stream_sockets(memory: u64) -> u32 {
    const EACH: u64 = 16 << 10;
    (memory / 8 / EACH).clamp(512, 8192) as u32
}

/// A number that the kernel has for all sockets.
fn of_sockets(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(std::path::Path::new("/proc/sys/net/core").join(name)).ok()?;
    text.trim().parse().ok()
}

/// The kernel's per-process limits, never above what we have ourselves.
fn rlimits(limits: &Limits, privileged: bool) -> Vec<(u32, u64, u64)> {
    use rustix::process::Resource;
    let open_files = u64::from(limits.open_files);
    let mut wanted = vec![
        (Wall::OpenFiles, Resource::Nofile, libc::RLIMIT_NOFILE, open_files, open_files),
        (Wall::FileSize, Resource::Fsize, libc::RLIMIT_FSIZE, limits.disk.0, limits.disk.0),
        // Not 0: that stops core files, but not a core pattern that starts a program of the host.
        (Wall::CoreSize, Resource::Core, libc::RLIMIT_CORE, 1, 1),
        (Wall::LockedMemory, Resource::Memlock, libc::RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
        (Wall::StackSize, Resource::Stack, libc::RLIMIT_STACK, 8 << 20, 64 << 20),
        (Wall::PendingSignals, Resource::Sigpending, libc::RLIMIT_SIGPENDING, 4096, 4096),
        (Wall::MessageQueues, Resource::Msgqueue, libc::RLIMIT_MSGQUEUE, 819_200, 819_200),
        (Wall::NiceLimit, Resource::Nice, libc::RLIMIT_NICE, 0, 0),
        (Wall::RealTimeLimit, Resource::Rtprio, libc::RLIMIT_RTPRIO, 0, 0),
    ];
    if !privileged {
        // Without cgroups these are the nearest there is.
        wanted.push((
            Wall::PidsLimit,
            Resource::Nproc,
            libc::RLIMIT_NPROC,
            limits.pids.into(),
            limits.pids.into(),
        ));
        wanted.push((Wall::MemoryLimit, Resource::Data, libc::RLIMIT_DATA, limits.memory.0, limits.memory.0));
    }
    wanted
        .into_iter()
        .filter(|(wall, ..)| wall.stands())
        .map(|(_, resource, number, soft, hard)| {
            let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
            (number, soft.min(most), hard.min(most))
        })
        .collect()
}
