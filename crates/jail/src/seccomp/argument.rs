//! System calls that depend on their arguments, each as a few instructions that end in a verdict.

use libc::{BPF_JEQ, BPF_JSET, sock_filter};

use super::Profile;
use super::tree::{allow, fail, jump, load_argument, mask};

/// Every flag that makes a namespace. CLONE_NEWTIME shares its bit with the exit signal of `clone`, which reaches no
/// higher than 64, so refusing it costs nothing.
pub(super) const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32
    | 0x80;

/// The low bits of a socket's type; the rest are SOCK_CLOEXEC and the like.
const SOCKET_TYPE: u32 = 0xf;
pub(super) const SOCK_PACKET: u32 = 10;
pub(super) const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;
/// Asks for the personality and changes nothing.
pub(super) const PERSONALITY_QUERY: u32 = 0xffff_ffff;

/// Which argument decides, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// No new namespaces.
    Clone,
    /// Nothing that makes whoever else opens a file wait, or reports on it: files may be shared with the host.
    Fcntl,
    /// Nothing that types into a terminal.
    Ioctl,
    /// Pipes, sockets and plain files, but no devices. Calls differ in which argument is the mode.
    Mknod {
        /// Its place.
        mode: u32,
    },
    /// The default personality, and in debug profiles the one without address randomisation.
    Personality,
    /// Anything but moving the parts of the memory map.
    Prctl,
    /// The caller's own limits only, not those of another process, the guest among them.
    Prlimit,
    /// Unix, the internet families, and netlink for routes.
    Socket,
    /// Unix only.
    Socketpair,
}

impl Check {
    pub(super) fn code(self, profile: Profile) -> Vec<sock_filter> {
        match self {
            Check::Clone => {
                vec![load_argument(0), jump(BPF_JSET, NAMESPACE_FLAGS, 0, 1), fail(libc::EPERM), allow()]
            }
            Check::Fcntl => vec![
                load_argument(1),
                jump(BPF_JEQ, libc::F_SETLEASE as u32, 1, 0),
                jump(BPF_JEQ, libc::F_NOTIFY as u32, 0, 1),
                fail(libc::EPERM),
                allow(),
            ],
            Check::Prlimit => vec![load_argument(0), jump(BPF_JEQ, 0, 1, 0), fail(libc::EPERM), allow()],
            Check::Ioctl => vec![
                load_argument(1),
                jump(BPF_JEQ, libc::TIOCSTI as u32, 1, 0),
                jump(BPF_JEQ, libc::TIOCLINUX as u32, 0, 1),
                fail(libc::EPERM),
                allow(),
            ],
            Check::Mknod { mode } => vec![
                load_argument(mode),
                mask(libc::S_IFMT),
                jump(BPF_JEQ, libc::S_IFIFO, 4, 0),
                jump(BPF_JEQ, libc::S_IFSOCK, 3, 0),
                jump(BPF_JEQ, libc::S_IFREG, 2, 0),
                jump(BPF_JEQ, 0, 1, 0),
                fail(libc::EPERM),
                allow(),
            ],
            Check::Personality => {
                let randomisation = if profile.debug { ADDR_NO_RANDOMIZE } else { 0 };
                vec![
                    load_argument(0),
                    jump(BPF_JEQ, 0, 3, 0),
                    jump(BPF_JEQ, PERSONALITY_QUERY, 2, 0),
                    jump(BPF_JEQ, randomisation, 1, 0),
                    fail(libc::EPERM),
                    allow(),
                ]
            }
            Check::Prctl => vec![
                load_argument(0),
                jump(BPF_JEQ, libc::PR_SET_MM as u32, 0, 1),
                fail(libc::EPERM),
                allow(),
            ],
            Check::Socket => vec![
                load_argument(0),
                jump(BPF_JEQ, libc::AF_UNIX as u32, 8, 0),
                jump(BPF_JEQ, libc::AF_INET6 as u32, 7, 0),
                jump(BPF_JEQ, libc::AF_INET as u32, 3, 0),
                jump(BPF_JEQ, libc::AF_NETLINK as u32, 0, 6),
                load_argument(2),
                jump(BPF_JEQ, libc::NETLINK_ROUTE as u32, 3, 4),
                // The kernel turns an internet socket of this type into a packet socket, another family.
                load_argument(1),
                mask(SOCKET_TYPE),
                jump(BPF_JEQ, SOCK_PACKET, 1, 0),
                allow(),
                fail(libc::EAFNOSUPPORT),
            ],
            Check::Socketpair => vec![
                load_argument(0),
                jump(BPF_JEQ, libc::AF_UNIX as u32, 0, 1),
                allow(),
                fail(libc::EAFNOSUPPORT),
            ],
        }
    }
}
