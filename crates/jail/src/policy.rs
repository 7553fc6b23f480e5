//! What a sandbox may ask of the kernel: the one file that says it. The filter is compiled from it, and `docs/policy.md`
//! is written from it. The lists ran compilers, package managers, interpreters and databases unchanged; a call that is
//! in none of them answers ENOSYS, so that libc falls back and newer kernels add nothing.

#[cfg(test)]
mod page;

/// A system call as the tables name it.
pub type Call = (&'static str, libc::c_long);

macro_rules! calls {
    ($($call:ident),* $(,)?) => { &[$((stringify!($call), libc::$call)),*] };
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel does it.
    Allow,
    /// This error instead. Error 0 says that it was done, and it was not.
    Errno(i32),
    /// The guest does it for the caller, or answers with an error.
    Ask,
}

/// A call whose arguments decide. The first clause that fits answers.
#[derive(Debug)]
pub struct Checked {
    /// Which call.
    pub call: Call,
    /// Asked in order.
    pub clauses: &'static [Clause],
    /// If none fits.
    pub otherwise: Answer,
}

/// What happens to a call with certain arguments, and why.
#[derive(Debug)]
pub struct Clause {
    /// In words, for the page.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the page's test"))]
    pub says: &'static str,
    /// All must hold.
    pub when: &'static [Condition],
    /// The answer then.
    pub then: Answer,
    /// Holds only where debuggers are to work.
    pub debug_only: bool,
}

/// A condition on one argument. The kernel reads all the arguments we check as 32-bit numbers, so the upper half does
/// not count.
#[derive(Debug)]
pub struct Condition {
    /// Its place, from 0.
    pub argument: u32,
    /// What of it counts.
    pub mask: u32,
    /// What that is compared with.
    pub test: Test,
}

/// How an argument is compared.
#[derive(Debug)]
pub enum Test {
    /// It is one of these.
    OneOf(&'static [u32]),
    /// Some bit is left.
    AnyBit,
}

const fn is(argument: u32, values: &'static [u32]) -> Condition {
    Condition { argument, mask: u32::MAX, test: Test::OneOf(values) }
}

const fn masked(argument: u32, mask: u32, values: &'static [u32]) -> Condition {
    Condition { argument, mask, test: Test::OneOf(values) }
}

const fn has(argument: u32, mask: u32) -> Condition {
    Condition { argument, mask, test: Test::AnyBit }
}

const fn clause(says: &'static str, when: &'static [Condition], then: Answer) -> Clause {
    Clause { says, when, then, debug_only: false }
}

/// Every flag that makes a namespace. CLONE_NEWTIME shares its bit with the exit signal of `clone`, which reaches no
/// higher than 64, so refusing it costs nothing.
const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32
    | 0x80;

/// The low bits of a socket's type; the rest are SOCK_CLOEXEC and the like.
const SOCKET_TYPE: u32 = 0xf;
const SOCK_PACKET: u32 = 10;
const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;
/// Asks for the personality and changes nothing.
const PERSONALITY_QUERY: u32 = 0xffff_ffff;
const INTERNET: &[u32] = &[libc::AF_INET as u32, libc::AF_INET6 as u32];
/// 0 is the family's own for the type.
const PROTOCOLS: &[u32] = &[
    0,
    libc::IPPROTO_ICMP as u32,
    libc::IPPROTO_TCP as u32,
    libc::IPPROTO_UDP as u32,
    libc::IPPROTO_ICMPV6 as u32,
];

/// What may be set of any socket. Not here, because the kernel would keep memory that nobody counts: filters
/// (SO_ATTACH_*), copies of what was sent (SO_TIMESTAMPING, SO_TXTIME, SO_ZEROCOPY, SO_WIFI_STATUS), memory set aside
/// (SO_RESERVE_MEM).
const SOCKET_OPTIONS: &[u32] = &[
    libc::SO_DEBUG as u32,
    libc::SO_REUSEADDR as u32,
    libc::SO_DONTROUTE as u32,
    libc::SO_BROADCAST as u32,
    libc::SO_SNDBUF as u32,
    libc::SO_KEEPALIVE as u32,
    libc::SO_OOBINLINE as u32,
    libc::SO_NO_CHECK as u32,
    libc::SO_PRIORITY as u32,
    libc::SO_LINGER as u32,
    libc::SO_BSDCOMPAT as u32,
    libc::SO_REUSEPORT as u32,
    libc::SO_PASSCRED as u32,
    libc::SO_RCVTIMEO as u32,
    libc::SO_SNDTIMEO as u32,
    libc::SO_BINDTODEVICE as u32,
    libc::SO_DETACH_FILTER as u32,
    libc::SO_TIMESTAMP as u32,
    libc::SO_SNDBUFFORCE as u32,
    libc::SO_RCVBUFFORCE as u32,
    libc::SO_PASSSEC as u32,
    libc::SO_TIMESTAMPNS as u32,
    libc::SO_MARK as u32,
    libc::SO_RXQ_OVFL as u32,
    libc::SO_PEEK_OFF as u32,
    libc::SO_BUSY_POLL as u32,
    libc::SO_MAX_PACING_RATE as u32,
    libc::SO_INCOMING_CPU as u32,
    libc::SO_BINDTOIFINDEX as u32,
    63, // SO_TIMESTAMP_NEW
    64, // SO_TIMESTAMPNS_NEW
    66, // SO_RCVTIMEO_NEW
    67, // SO_SNDTIMEO_NEW
    72, // SO_BUF_LOCK
    76, // SO_PASSPIDFD
    83, // SO_PASSRIGHTS
];

/// What may be set of TCP. Not here: keys of connections (TCP_MD5SIG, TCP_AO_*), which take up to 128 KiB of each socket;
/// saved packets (TCP_SAVE_SYN); protocols on top (TCP_ULP); what repairs connections or delays packets.
const TCP_OPTIONS: &[u32] = &[
    libc::TCP_NODELAY as u32,
    libc::TCP_MAXSEG as u32,
    libc::TCP_CORK as u32,
    libc::TCP_KEEPIDLE as u32,
    libc::TCP_KEEPINTVL as u32,
    libc::TCP_KEEPCNT as u32,
    libc::TCP_SYNCNT as u32,
    libc::TCP_LINGER2 as u32,
    libc::TCP_DEFER_ACCEPT as u32,
    libc::TCP_WINDOW_CLAMP as u32,
    libc::TCP_QUICKACK as u32,
    libc::TCP_CONGESTION as u32,
    libc::TCP_THIN_LINEAR_TIMEOUTS as u32,
    libc::TCP_THIN_DUPACK as u32,
    libc::TCP_USER_TIMEOUT as u32,
    libc::TCP_FASTOPEN as u32,
    libc::TCP_NOTSENT_LOWAT as u32,
    libc::TCP_FASTOPEN_CONNECT as u32,
    libc::TCP_FASTOPEN_NO_COOKIE as u32,
    libc::TCP_INQ as u32,
    44, // TCP_RTO_MAX_MS
    45, // TCP_RTO_MIN_US
    46, // TCP_DELACK_MAX_US
];

/// What may be set of UDP: corking, checksums of version six, segments and their merging.
const UDP_OPTIONS: &[u32] = &[1, 101, 102, 103, 104];

/// What may be set of version four. Not here: options in packets (IP_OPTIONS), lists of sources (IP_ADD_SOURCE_MEMBERSHIP,
/// IP_MSFILTER, MCAST_MSFILTER and the like), policies. Groups are bounded by the kernel, at twenty a socket.
const IP_OPTIONS: &[u32] = &[
    libc::IP_TOS as u32,
    libc::IP_TTL as u32,
    libc::IP_HDRINCL as u32,
    libc::IP_RECVOPTS as u32,
    libc::IP_RETOPTS as u32,
    libc::IP_PKTINFO as u32,
    libc::IP_MTU_DISCOVER as u32,
    libc::IP_RECVTTL as u32,
    libc::IP_RECVTOS as u32,
    libc::IP_FREEBIND as u32,
    libc::IP_TRANSPARENT as u32,
    libc::IP_RECVORIGDSTADDR as u32,
    libc::IP_MINTTL as u32,
    libc::IP_NODEFRAG as u32,
    libc::IP_CHECKSUM as u32,
    libc::IP_BIND_ADDRESS_NO_PORT as u32,
    libc::IP_RECVFRAGSIZE as u32,
    libc::IP_MULTICAST_IF as u32,
    libc::IP_MULTICAST_TTL as u32,
    libc::IP_MULTICAST_LOOP as u32,
    libc::IP_ADD_MEMBERSHIP as u32,
    libc::IP_DROP_MEMBERSHIP as u32,
    libc::MCAST_JOIN_GROUP as u32,
    libc::MCAST_LEAVE_GROUP as u32,
    libc::IP_MULTICAST_ALL as u32,
    libc::IP_UNICAST_IF as u32,
    51, // IP_LOCAL_PORT_RANGE
];

/// What may be set of version six. Not here: headers in packets (IPV6_RTHDR, IPV6_DSTOPTS and the like), flow labels,
/// groups, anycast, turning a socket into one of version four (IPV6_ADDRFORM).
const IPV6_OPTIONS: &[u32] = &[
    libc::IPV6_2292PKTINFO as u32,
    libc::IPV6_2292HOPLIMIT as u32,
    libc::IPV6_UNICAST_HOPS as u32,
    libc::IPV6_MULTICAST_IF as u32,
    libc::IPV6_MULTICAST_HOPS as u32,
    libc::IPV6_MULTICAST_LOOP as u32,
    libc::IPV6_MTU_DISCOVER as u32,
    libc::IPV6_MTU as u32,
    libc::IPV6_V6ONLY as u32,
    29, // IPV6_MULTICAST_ALL
    33, // IPV6_FLOWINFO_SEND
    libc::IPV6_RECVPKTINFO as u32,
    libc::IPV6_PKTINFO as u32,
    libc::IPV6_RECVHOPLIMIT as u32,
    libc::IPV6_HOPLIMIT as u32,
    libc::IPV6_RECVPATHMTU as u32,
    libc::IPV6_DONTFRAG as u32,
    libc::IPV6_RECVTCLASS as u32,
    libc::IPV6_TCLASS as u32,
    70, // IPV6_AUTOFLOWLABEL
    72, // IPV6_ADDR_PREFERENCES
    73, // IPV6_MINHOPCOUNT
    74, // IPV6_RECVORIGDSTADDR
    75, // IPV6_TRANSPARENT
    76, // IPV6_UNICAST_IF
    77, // IPV6_RECVFRAGSIZE
    78, // IPV6_FREEBIND
];

/// What may be set of netlink sockets, of which there are few.
const NETLINK_OPTIONS: &[u32] = &[
    libc::NETLINK_ADD_MEMBERSHIP as u32,
    libc::NETLINK_DROP_MEMBERSHIP as u32,
    libc::NETLINK_PKTINFO as u32,
    libc::NETLINK_BROADCAST_ERROR as u32,
    libc::NETLINK_NO_ENOBUFS as u32,
    libc::NETLINK_CAP_ACK as u32,
    11, // NETLINK_EXT_ACK
    12, // NETLINK_GET_STRICT_CHK
];

/// Stand for the two halves of the guest's word, which is another in every sandbox.
pub const WORD_LOW: u32 = 0x6c6c_6562;
/// See [`WORD_LOW`].
pub const WORD_HIGH: u32 = 0x2172_616a;

const REFUSE: Answer = Answer::Errno(libc::EPERM);
const NO_SUCH_FAMILY: Answer = Answer::Errno(libc::EAFNOSUPPORT);
const NO_SUCH_OPTION: Answer = Answer::Errno(libc::ENOPROTOOPT);
const NO_SUCH_PROTOCOL: Answer = Answer::Errno(libc::EPROTONOSUPPORT);
const NO_SUCH_DEVICE: Answer = Answer::Errno(libc::ENODEV);
/// As where none is set aside.
const NO_MEMORY: Answer = Answer::Errno(libc::ENOMEM);
/// As if it had been done.
pub const IN_APPEARANCE: Answer = Answer::Errno(0);

const KINDS_OF_NODES: &[u32] = &[libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFREG, 0];
const HUGE_PAGES: &str = "no huge pages that the host has set aside: they are in no memory limit";
const NO_DEVICES: &str = "pipes, sockets and plain files, but no devices";

/// Allowed or refused by their arguments.
pub const CHECKED: &[Checked] = &[
    Checked {
        call: ("SYS_clone", libc::SYS_clone),
        clauses: &[
            clause("no new namespaces", &[has(0, NAMESPACE_FLAGS)], REFUSE),
            clause(
                "no descriptors in common but between threads: locks taken by one who is gone would be nobody's, and not counted",
                &[masked(0, (libc::CLONE_FILES | libc::CLONE_THREAD) as u32, &[libc::CLONE_FILES as u32])],
                REFUSE,
            ),
        ],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_fadvise64", libc::SYS_fadvise64),
        clauses: &[clause(
            "nothing is dropped from the page cache, which is the host's for files of the host",
            &[is(3, &[libc::POSIX_FADV_DONTNEED as u32])],
            IN_APPEARANCE,
        )],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_fcntl", libc::SYS_fcntl),
        clauses: &[
            clause(
                "nothing that makes others who open a file wait, or reports on them: files may be shared with the host",
                &[is(1, &[libc::F_SETLEASE as u32, libc::F_NOTIFY as u32])],
                REFUSE,
            ),
            clause(
                "no locks that are no process's, as on old kernels: they would not be counted",
                &[is(1, &[libc::F_OFD_SETLK as u32, libc::F_OFD_SETLKW as u32])],
                Answer::Errno(libc::EINVAL),
            ),
        ],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_ioctl", libc::SYS_ioctl),
        clauses: &[clause(
            "nothing that types into a terminal",
            &[is(1, &[libc::TIOCSTI as u32, libc::TIOCLINUX as u32])],
            REFUSE,
        )],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_madvise", libc::SYS_madvise),
        clauses: &[clause(
            "the same by a map of the file, for root inside passes for the owner of files of the host",
            &[is(2, &[libc::MADV_PAGEOUT as u32])],
            IN_APPEARANCE,
        )],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_memfd_create", libc::SYS_memfd_create),
        clauses: &[clause(HUGE_PAGES, &[has(1, libc::MFD_HUGETLB)], Answer::Errno(libc::EINVAL))],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_mmap", libc::SYS_mmap),
        clauses: &[clause(HUGE_PAGES, &[has(3, libc::MAP_HUGETLB as u32)], NO_MEMORY)],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_mknodat", libc::SYS_mknodat),
        clauses: &[clause(NO_DEVICES, &[masked(2, libc::S_IFMT, KINDS_OF_NODES)], Answer::Allow)],
        otherwise: REFUSE,
    },
    #[cfg(target_arch = "x86_64")]
    Checked {
        call: ("SYS_mknod", libc::SYS_mknod),
        clauses: &[clause(NO_DEVICES, &[masked(1, libc::S_IFMT, KINDS_OF_NODES)], Answer::Allow)],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_personality", libc::SYS_personality),
        clauses: &[
            clause("the default, and asking which it is", &[is(0, &[0, PERSONALITY_QUERY])], Answer::Allow),
            Clause {
                says: "without address randomisation, for debuggers",
                when: &[is(0, &[ADDR_NO_RANDOMIZE])],
                then: Answer::Allow,
                debug_only: true,
            },
        ],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_prctl", libc::SYS_prctl),
        clauses: &[
            clause("no moving of the parts of the memory map", &[is(0, &[libc::PR_SET_MM as u32])], REFUSE),
            clause(
                "no filters of its own, as with `seccomp`",
                &[is(0, &[libc::PR_SET_SECCOMP as u32])],
                Answer::Errno(libc::EINVAL),
            ),
        ],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_prlimit64", libc::SYS_prlimit64),
        clauses: &[clause(
            "the caller's own limits, not those of another process",
            &[is(0, &[0])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_setsockopt", libc::SYS_setsockopt),
        clauses: &[
            clause(
                "of any socket: what is in common use, and keeps nothing in the kernel but numbers; so no filters on sockets, \
                 and no copies of what was sent",
                &[is(1, &[libc::SOL_SOCKET as u32]), is(2, SOCKET_OPTIONS)],
                Answer::Allow,
            ),
            clause(
                "what may wait unread is the sandbox's to say: connections have it from their listener, and nobody counts it \
                 before they are accepted",
                &[
                    is(1, &[libc::SOL_SOCKET as u32]),
                    is(2, &[libc::SO_RCVBUF as u32, libc::SO_RCVLOWAT as u32]),
                ],
                IN_APPEARANCE,
            ),
            clause(
                "of TCP: the same; so no keys of connections, no saved packets, no protocols on top",
                &[is(1, &[libc::IPPROTO_TCP as u32]), is(2, TCP_OPTIONS)],
                Answer::Allow,
            ),
            clause(
                "of UDP: the same; so no tunnels",
                &[is(1, &[libc::IPPROTO_UDP as u32]), is(2, UDP_OPTIONS)],
                Answer::Allow,
            ),
            clause(
                "of version four: the same; so no lists of sources, and no options in packets",
                &[is(1, &[libc::IPPROTO_IP as u32]), is(2, IP_OPTIONS)],
                Answer::Allow,
            ),
            clause(
                "errors of datagrams are not queued either; resolvers ask for it and must believe they have it",
                &[is(1, &[libc::IPPROTO_IP as u32]), is(2, &[libc::IP_RECVERR as u32])],
                IN_APPEARANCE,
            ),
            clause(
                "of version six: the same; so no flow labels, of which one table serves the whole machine",
                &[is(1, &[libc::IPPROTO_IPV6 as u32]), is(2, IPV6_OPTIONS)],
                Answer::Allow,
            ),
            clause(
                "errors of datagrams of version six",
                &[is(1, &[libc::IPPROTO_IPV6 as u32]), is(2, &[libc::IPV6_RECVERR as u32])],
                IN_APPEARANCE,
            ),
            clause(
                "no groups of version six, as if no interface had any: being in one is memory that nobody counts, and \
                 only version four bounds their number",
                &[
                    is(1, &[libc::IPPROTO_IPV6 as u32]),
                    is(
                        2,
                        &[
                            libc::IPV6_ADD_MEMBERSHIP as u32,
                            libc::MCAST_JOIN_GROUP as u32,
                            libc::MCAST_JOIN_SOURCE_GROUP as u32,
                        ],
                    ),
                ],
                NO_SUCH_DEVICE,
            ),
            clause(
                "of netlink: what `ip` and libraries set",
                &[is(1, &[libc::SOL_NETLINK as u32]), is(2, NETLINK_OPTIONS)],
                Answer::Allow,
            ),
        ],
        otherwise: NO_SUCH_OPTION,
    },
    Checked {
        call: ("SYS_shmget", libc::SYS_shmget),
        clauses: &[clause(HUGE_PAGES, &[has(2, libc::SHM_HUGETLB as u32)], NO_MEMORY)],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_socket", libc::SYS_socket),
        clauses: &[
            clause("unix", &[is(0, &[libc::AF_UNIX as u32])], Answer::Allow),
            clause(
                "not the type that the kernel turns into a packet socket, another family",
                &[is(0, &[libc::AF_INET as u32]), masked(1, SOCKET_TYPE, &[SOCK_PACKET])],
                NO_SUCH_FAMILY,
            ),
            clause(
                "versions four and six, TCP, UDP and ICMP: a bounded number at a time, because some of what waits in them is \
                 memory that nobody counts",
                &[is(0, INTERNET), is(2, PROTOCOLS)],
                Answer::Ask,
            ),
            clause(
                "no other protocols on top of them (MPTCP, UDP-Lite, SCTP): seldom used, seldom looked at",
                &[is(0, INTERNET)],
                NO_SUCH_PROTOCOL,
            ),
            clause(
                "netlink for routes, to the guest: it adds the word that only it was told",
                &[
                    is(0, &[libc::AF_NETLINK as u32]),
                    is(2, &[libc::NETLINK_ROUTE as u32]),
                    is(3, &[WORD_LOW]),
                    is(4, &[WORD_HIGH]),
                ],
                Answer::Allow,
            ),
            clause(
                "netlink for routes: a bounded number at a time, because what waits in them is memory that nobody counts",
                &[is(0, &[libc::AF_NETLINK as u32]), is(2, &[libc::NETLINK_ROUTE as u32])],
                Answer::Ask,
            ),
        ],
        otherwise: NO_SUCH_FAMILY,
    },
    Checked {
        call: ("SYS_socketpair", libc::SYS_socketpair),
        clauses: &[clause("unix", &[is(0, &[libc::AF_UNIX as u32])], Answer::Allow)],
        otherwise: NO_SUCH_FAMILY,
    },
];

/// Allowed to the guest, which takes them from all it starts (it answers ENOSYS to those). The guest needs `clone3` to
/// have children born in their cgroups; its arguments, new namespaces among them, lie in memory where no filter sees
/// them. It needs `sched_setattr` to give children longer turns at the processor than its own, and `seccomp` to take
/// all three away; filters are programs in the kernel's memory, whose number and cost nobody bounds.
pub const GUEST_ONLY: &[Call] = calls! { SYS_clone3, SYS_sched_setattr, SYS_seccomp };

/// All that a monitor may ask: to read, write and wait on what it has, to take in callers, to keep output in its spool,
/// to kill its guest, and memory. No sockets of its own, no locks, no processes.
pub const MONITOR: &[Call] = calls! {
    SYS_accept4, SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_exit, SYS_exit_group, SYS_fstat,
    SYS_fstatfs, SYS_futex, SYS_getdents64, SYS_getpid, SYS_getrandom, SYS_getsockopt, SYS_gettid, SYS_lseek,
    SYS_madvise, SYS_mkdirat, SYS_mremap, SYS_munmap, SYS_newfstatat, SYS_openat, SYS_pidfd_send_signal, SYS_ppoll,
    SYS_pread64, SYS_pwrite64, SYS_read, SYS_recvfrom, SYS_restart_syscall, SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_rt_sigreturn, SYS_sendto, SYS_shutdown, SYS_sigaltstack, SYS_statx, SYS_tgkill, SYS_unlinkat, SYS_write,
    SYS_writev
};

/// What a monitor may ask with some arguments.
pub const MONITOR_CHECKED: &[Checked] = &[
    Checked {
        call: ("SYS_fcntl", libc::SYS_fcntl),
        clauses: &[clause(
            "copies and flags of descriptors, but no locks",
            &[is(1, &[libc::F_DUPFD_CLOEXEC as u32, F_GETFD, F_SETFD, F_GETFL])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_ioctl", libc::SYS_ioctl),
        clauses: &[clause("whether to wait (`FIONBIO`)", &[is(1, &[libc::FIONBIO as u32])], Answer::Allow)],
        otherwise: REFUSE,
    },
    Checked { call: ("SYS_mmap", libc::SYS_mmap), clauses: NO_NEW_CODE, otherwise: Answer::Allow },
    Checked { call: ("SYS_mprotect", libc::SYS_mprotect), clauses: NO_NEW_CODE, otherwise: Answer::Allow },
    Checked {
        call: ("SYS_sendmsg", libc::SYS_sendmsg),
        clauses: &[clause(
            "an answer with the sockets of its network, to the door; without waiting",
            &[is(2, &[(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
];

/// All that the door's worker may ask: connections, what it needs to look up names, threads and memory.
pub const WORKER: &[Call] = calls! {
    SYS_accept4, SYS_bind, SYS_brk, SYS_clock_getres, SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_connect,
    SYS_dup, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_eventfd2, SYS_exit, SYS_exit_group, SYS_faccessat,
    SYS_faccessat2, SYS_fstat, SYS_ftruncate, SYS_futex, SYS_getdents64, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getpeername, SYS_getpid,
    SYS_getrandom, SYS_getsockname, SYS_getsockopt, SYS_gettid, SYS_getuid, SYS_lseek, SYS_madvise, SYS_mremap,
    SYS_munmap, SYS_newfstatat, SYS_openat, SYS_ppoll, SYS_pread64, SYS_pwrite64, SYS_read, SYS_readlinkat, SYS_readv, SYS_recvfrom,
    SYS_recvmmsg, SYS_recvmsg, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sched_getaffinity, SYS_sched_yield, SYS_sendmmsg, SYS_sendmsg, SYS_sendto, SYS_set_robust_list, SYS_shutdown,
    SYS_sigaltstack, SYS_statfs, SYS_statx, SYS_tgkill, SYS_uname, SYS_write, SYS_writev
};

/// The same, and known to one architecture only.
#[cfg(target_arch = "x86_64")]
pub const WORKER_HERE: &[Call] = calls! { SYS_access, SYS_epoll_wait, SYS_poll, SYS_readlink };
/// The same, and known to one architecture only.
#[cfg(not(target_arch = "x86_64"))]
pub const WORKER_HERE: &[Call] = &[];

/// What it may ask with some arguments.
pub const WORKER_CHECKED: &[Checked] = &[
    Checked {
        call: ("SYS_clone", libc::SYS_clone),
        clauses: &[clause(
            "a thread",
            &[masked(0, libc::CLONE_THREAD as u32, &[libc::CLONE_THREAD as u32])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    // Its arguments cannot be seen; libc takes `clone` instead.
    Checked { call: ("SYS_clone3", libc::SYS_clone3), clauses: &[], otherwise: Answer::Errno(libc::ENOSYS) },
    Checked {
        call: ("SYS_fcntl", libc::SYS_fcntl),
        clauses: &[clause(
            "copies and flags of descriptors, but no locks",
            &[is(1, &[libc::F_DUPFD_CLOEXEC as u32, F_GETFD, F_SETFD, F_GETFL, libc::F_SETFL as u32])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_ioctl", libc::SYS_ioctl),
        clauses: &[clause(
            "whether to wait, and how much there is (`FIONBIO`, `FIONREAD`)",
            &[is(1, &[libc::FIONBIO as u32, libc::FIONREAD as u32])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked { call: ("SYS_mmap", libc::SYS_mmap), clauses: NO_NEW_CODE, otherwise: Answer::Allow },
    Checked { call: ("SYS_mprotect", libc::SYS_mprotect), clauses: NO_NEW_CODE, otherwise: Answer::Allow },
    Checked {
        call: ("SYS_prctl", libc::SYS_prctl),
        clauses: &[clause(
            "names of threads and of memory",
            &[is(0, &[libc::PR_SET_NAME as u32, libc::PR_SET_VMA as u32])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_setsockopt", libc::SYS_setsockopt),
        clauses: &[clause(
            "filters, which are programs in the kernel",
            &[
                is(1, &[libc::SOL_SOCKET as u32]),
                is(
                    2,
                    &[
                        libc::SO_ATTACH_FILTER as u32,
                        libc::SO_ATTACH_BPF as u32,
                        libc::SO_ATTACH_REUSEPORT_CBPF as u32,
                        libc::SO_ATTACH_REUSEPORT_EBPF as u32,
                    ],
                ),
            ],
            REFUSE,
        )],
        otherwise: Answer::Allow,
    },
    Checked {
        call: ("SYS_prlimit64", libc::SYS_prlimit64),
        clauses: &[clause("its own limits, as they are", &[is(0, &[0]), is(2, &[0])], Answer::Allow)],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_socket", libc::SYS_socket),
        clauses: &[
            clause(
                "TCP and UDP",
                &[
                    is(0, INTERNET),
                    masked(1, SOCKET_TYPE, &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32]),
                    is(2, &[0, libc::IPPROTO_TCP as u32, libc::IPPROTO_UDP as u32]),
                ],
                Answer::Allow,
            ),
            clause(
                "routes and addresses, to be read",
                &[is(0, &[libc::AF_NETLINK as u32]), is(2, &[libc::NETLINK_ROUTE as u32])],
                Answer::Allow,
            ),
        ],
        otherwise: NO_SUCH_FAMILY,
    },
    Checked {
        call: ("SYS_socketpair", libc::SYS_socketpair),
        clauses: &[clause("unix", &[is(0, &[libc::AF_UNIX as u32])], Answer::Allow)],
        otherwise: NO_SUCH_FAMILY,
    },
];

/// All that whoever unpacks a stranger's archive may ask: to read it, to make files below what it has, and memory. No sockets, no
/// processes, no threads.
pub const UNPACKER: &[Call] = calls! {
    SYS_brk, SYS_clock_gettime, SYS_close, SYS_exit, SYS_exit_group, SYS_fchmod, SYS_fchown, SYS_fchownat, SYS_fgetxattr,
    SYS_flistxattr, SYS_fsetxattr, SYS_fstat, SYS_ftruncate, SYS_futex, SYS_getdents64, SYS_getpid, SYS_getrandom, SYS_gettid,
    SYS_linkat, SYS_lseek, SYS_madvise, SYS_mkdirat, SYS_mremap, SYS_munmap, SYS_newfstatat, SYS_openat, SYS_openat2, SYS_read,
    SYS_readlinkat, SYS_restart_syscall, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_statx,
    SYS_symlinkat, SYS_tgkill, SYS_utimensat, SYS_write, SYS_writev
};

/// What it may ask with some arguments.
pub const UNPACKER_CHECKED: &[Checked] = &[
    Checked {
        call: ("SYS_fcntl", libc::SYS_fcntl),
        clauses: &[clause(
            "copies and flags of descriptors, but no locks",
            &[is(1, &[libc::F_DUPFD_CLOEXEC as u32, F_GETFD, F_SETFD, F_GETFL])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked {
        call: ("SYS_mknodat", libc::SYS_mknodat),
        clauses: &[clause(
            "the mark that takes a file of a lower layer away, and no device",
            &[is(3, &[0])],
            Answer::Allow,
        )],
        otherwise: REFUSE,
    },
    Checked { call: ("SYS_mmap", libc::SYS_mmap), clauses: NO_NEW_CODE, otherwise: Answer::Allow },
    Checked { call: ("SYS_mprotect", libc::SYS_mprotect), clauses: NO_NEW_CODE, otherwise: Answer::Allow },
];

const F_GETFD: u32 = libc::F_GETFD as u32;
const F_SETFD: u32 = libc::F_SETFD as u32;
const F_GETFL: u32 = libc::F_GETFL as u32;
const NO_NEW_CODE: &[Clause] =
    &[clause("memory that can be executed", &[has(2, libc::PROT_EXEC as u32)], REFUSE)];

/// Left to the guest, whatever the arguments. Connections that wait at a listener are memory that nobody counts until
/// they are accepted, so the guest bounds how many listen. Each connection that is accepted may hold more than its
/// group's limit leaves, and one end that connects again and again makes many, so they are bounded like sockets that
/// are made.
pub const ASKED: &[Call] = calls! { SYS_accept, SYS_accept4, SYS_listen };

/// Allowed whatever the arguments.
pub const ALLOWED: &[Call] = calls! {
    SYS_bind, SYS_brk, SYS_capget, SYS_capset, SYS_chdir, SYS_clock_getres,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_close_range, SYS_connect, SYS_copy_file_range,
    SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
    SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_faccessat2,
    SYS_fallocate, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat,
    SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr, SYS_flock, SYS_fremovexattr, SYS_fsetxattr, SYS_fstat,
    SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_futex, SYS_futex_waitv, SYS_get_robust_list, SYS_getcpu,
    SYS_getcwd, SYS_getdents64, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getitimer,
    SYS_getpeername, SYS_getpgid, SYS_getpid, SYS_getppid, SYS_getpriority, SYS_getrandom, SYS_getresgid,
    SYS_getresuid, SYS_getrusage, SYS_getsid, SYS_getsockname, SYS_getsockopt, SYS_gettid,
    SYS_gettimeofday, SYS_getuid, SYS_getxattr, SYS_inotify_add_watch, SYS_inotify_init1,
    SYS_inotify_rm_watch, SYS_ioprio_get, SYS_ioprio_set, SYS_kill, SYS_landlock_add_rule,
    SYS_landlock_create_ruleset, SYS_landlock_restrict_self, SYS_lgetxattr, SYS_linkat,
    SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lseek, SYS_lsetxattr,
    SYS_membarrier, SYS_mincore, SYS_mkdirat, SYS_mlock, SYS_mlock2,
    SYS_mprotect, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open, SYS_mq_timedreceive, SYS_mq_timedsend,
    SYS_mq_unlink, SYS_mremap, SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_msync, SYS_munlock,
    SYS_munlockall, SYS_munmap, SYS_nanosleep, SYS_newfstatat, SYS_openat, SYS_openat2, SYS_pidfd_open,
    SYS_pidfd_send_signal, SYS_pipe2, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_ppoll,
    SYS_pread64, SYS_preadv, SYS_preadv2, SYS_pselect6, SYS_pwrite64, SYS_pwritev,
    SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlinkat, SYS_readv, SYS_recvfrom, SYS_recvmmsg,
    SYS_recvmsg, SYS_removexattr, SYS_renameat2, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction,
    SYS_rt_sigpending, SYS_rt_sigprocmask, SYS_rt_sigqueueinfo, SYS_rt_sigreturn, SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_getaffinity, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_rr_get_interval, SYS_sched_setaffinity, SYS_sched_yield, SYS_semctl,
    SYS_semget, SYS_semop, SYS_semtimedop, SYS_sendfile, SYS_sendmmsg, SYS_sendmsg, SYS_sendto,
    SYS_set_robust_list, SYS_set_tid_address, SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups,
    SYS_setitimer, SYS_setpgid, SYS_setpriority, SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid,
    SYS_setsid, SYS_setuid, SYS_setxattr, SYS_shmat, SYS_shmctl, SYS_shmdt,
    SYS_shutdown, SYS_sigaltstack, SYS_signalfd4, SYS_statfs, SYS_statx, SYS_symlinkat,
    SYS_sysinfo, SYS_tgkill, SYS_timer_create, SYS_timer_delete, SYS_timer_getoverrun,
    SYS_timer_gettime, SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime,
    SYS_times, SYS_tkill, SYS_truncate, SYS_umask, SYS_uname, SYS_unlinkat, SYS_utimensat, SYS_wait4,
    SYS_waitid, SYS_write, SYS_writev
};

/// Allowed, and known to one architecture only.
#[cfg(target_arch = "x86_64")]
pub const ALLOWED_HERE: &[Call] = calls! {
    SYS_access, SYS_alarm, SYS_arch_prctl, SYS_chmod, SYS_chown, SYS_creat, SYS_dup2, SYS_epoll_create,
    SYS_epoll_ctl_old, SYS_epoll_wait, SYS_epoll_wait_old, SYS_eventfd, SYS_fork, SYS_futimesat,
    SYS_get_thread_area, SYS_getdents, SYS_getpgrp, SYS_getrlimit, SYS_inotify_init, SYS_lchown, SYS_link,
    SYS_lstat, SYS_mkdir, SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename, SYS_renameat,
    SYS_rmdir, SYS_select, SYS_set_thread_area, SYS_setrlimit, SYS_signalfd, SYS_stat, SYS_symlink,
    SYS_sync_file_range, SYS_time, SYS_unlink, SYS_utime, SYS_utimes, SYS_vfork
};

/// Allowed, and known to one architecture only. The libc crate lacks some of these names on this architecture.
#[cfg(target_arch = "aarch64")]
pub const ALLOWED_HERE: &[Call] =
    &[("SYS_renameat", 38), ("SYS_sync_file_range", 84), ("SYS_getrlimit", 163), ("SYS_setrlimit", 164)];

/// Done in appearance only: they would have the file systems of the host written out, with whatever waits there. What a
/// program asks of its own files (`fsync` and the like) is done.
pub const PRETENDED: &[Call] = calls! { SYS_sync, SYS_syncfs };

/// Refused with EPERM: they exist, and a program that asks should hear that it may not.
pub const REFUSED: &[Call] = calls! {
    SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf, SYS_chroot, SYS_clock_adjtime, SYS_clock_settime,
    SYS_delete_module, SYS_fanotify_init, SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen,
    SYS_fspick, SYS_init_module, SYS_kcmp, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind,
    SYS_migrate_pages, SYS_mlockall, SYS_mount, SYS_mount_setattr, SYS_move_mount,
    SYS_move_pages, SYS_name_to_handle_at, SYS_nfsservctl, SYS_open_by_handle_at, SYS_open_tree,
    SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root, SYS_process_madvise, SYS_process_vm_writev,
    SYS_quotactl, SYS_quotactl_fd, SYS_reboot, SYS_request_key, SYS_sched_setparam,
    SYS_sched_setscheduler, SYS_set_mempolicy, SYS_set_mempolicy_home_node, SYS_setdomainname,
    SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2,
    SYS_unshare, SYS_userfaultfd, SYS_vhangup, SYS_vmsplice
};

/// Refused, and known to one architecture only.
#[cfg(target_arch = "x86_64")]
pub const REFUSED_HERE: &[Call] = calls! {
    SYS_ioperm, SYS_iopl, SYS_kexec_file_load, SYS_modify_ldt
};

/// Refused, and known to one architecture only.
#[cfg(target_arch = "aarch64")]
pub const REFUSED_HERE: &[Call] = &[("SYS_kexec_file_load", 294)];

/// Refused, except under a debugger's profile.
pub const DEBUG: &[Call] = calls! {
    SYS_process_vm_readv, SYS_ptrace
};

/// A capability by its number in the kernel.
pub type Capability = (&'static str, u32);

/// What root inside keeps: enough for chown, package managers and low ports. The default user keeps none.
pub const ROOT_CAPABILITIES: &[Capability] = &[
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("FOWNER", 3),
    ("FSETID", 4),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
    ("NET_BIND_SERVICE", 10),
];

/// What the guest has besides, to lower the bounding set of what it starts.
pub const GUEST_CAPABILITIES: &[Capability] = &[("SETPCAP", 8)];

/// A set of capabilities as the kernel has it.
pub const fn bits(capabilities: &[Capability]) -> u64 {
    let mut set = 0;
    let mut index = 0;
    while index < capabilities.len() {
        set |= 1 << capabilities[index].1;
        index += 1;
    }
    set
}
