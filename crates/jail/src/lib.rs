//! The walls: namespaces, mounts, cgroups, seccomp and Landlock; the launcher that builds them and the monitor that
//! watches over one sandbox. Synchronous, single-threaded where it forks, and the home of the workspace's `unsafe`.

pub mod arrival;
pub mod cgroup;
pub mod clock;
pub mod control;
mod disk;
pub mod doctor;
pub mod doorway;
mod inside;
pub mod landlock;
pub mod launch;
mod log;
mod monitor;
mod mounts;
mod namespaces;
mod netlink;
pub mod nursery;
pub mod plan;
mod policy;
pub mod record;
pub mod rights;
pub mod seccomp;
pub mod slot;
#[doc(hidden)]
pub mod spool;
pub mod sweep;
