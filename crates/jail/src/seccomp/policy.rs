//! Which system calls a sandbox may make. The lists ran compilers, package managers, interpreters and databases
//! unchanged; what is in none of them answers ENOSYS, so that libc falls back and newer kernels add nothing.

use super::argument::Check;

/// A system call as the tables name it.
pub(super) type Call = (&'static str, libc::c_long);

macro_rules! calls {
    ($($call:ident),* $(,)?) => { &[$((stringify!($call), libc::$call)),*] };
}

/// Allowed to the guest, which needs it to have children born in their cgroups, and taken by the guest from all it
/// starts: its arguments, new namespaces among them, lie in memory where no filter sees them.
pub(super) const GUEST_ONLY: &[Call] = calls! { SYS_clone3 };

/// Allowed whatever the arguments.
pub(super) const ALLOWED: &[Call] = calls! {
    SYS_accept, SYS_accept4, SYS_bind, SYS_brk, SYS_capget, SYS_capset, SYS_chdir, SYS_clock_getres,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_close_range, SYS_connect, SYS_copy_file_range,
    SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
    SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_faccessat2, SYS_fadvise64,
    SYS_fallocate, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat,
    SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr, SYS_flock, SYS_fremovexattr, SYS_fsetxattr, SYS_fstat,
    SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_futex, SYS_futex_waitv, SYS_get_robust_list, SYS_getcpu,
    SYS_getcwd, SYS_getdents64, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getitimer,
    SYS_getpeername, SYS_getpgid, SYS_getpid, SYS_getppid, SYS_getpriority, SYS_getrandom, SYS_getresgid,
    SYS_getresuid, SYS_getrusage, SYS_getsid, SYS_getsockname, SYS_getsockopt, SYS_gettid,
    SYS_gettimeofday, SYS_getuid, SYS_getxattr, SYS_inotify_add_watch, SYS_inotify_init1,
    SYS_inotify_rm_watch, SYS_ioprio_get, SYS_ioprio_set, SYS_kill, SYS_landlock_add_rule,
    SYS_landlock_create_ruleset, SYS_landlock_restrict_self, SYS_lgetxattr, SYS_linkat, SYS_listen,
    SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lseek, SYS_lsetxattr, SYS_madvise,
    SYS_membarrier, SYS_memfd_create, SYS_mincore, SYS_mkdirat, SYS_mlock, SYS_mlock2, SYS_mmap,
    SYS_mprotect, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open, SYS_mq_timedreceive, SYS_mq_timedsend,
    SYS_mq_unlink, SYS_mremap, SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_msync, SYS_munlock,
    SYS_munlockall, SYS_munmap, SYS_nanosleep, SYS_newfstatat, SYS_openat, SYS_openat2, SYS_pidfd_open,
    SYS_pidfd_send_signal, SYS_pipe2, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_ppoll,
    SYS_pread64, SYS_preadv, SYS_preadv2,  SYS_pselect6, SYS_pwrite64, SYS_pwritev,
    SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlinkat, SYS_readv, SYS_recvfrom, SYS_recvmmsg,
    SYS_recvmsg, SYS_removexattr, SYS_renameat2, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction,
    SYS_rt_sigpending, SYS_rt_sigprocmask, SYS_rt_sigqueueinfo, SYS_rt_sigreturn, SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_getaffinity, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_rr_get_interval, SYS_sched_setaffinity, SYS_sched_yield, SYS_seccomp, SYS_semctl,
    SYS_semget, SYS_semop, SYS_semtimedop, SYS_sendfile, SYS_sendmmsg, SYS_sendmsg, SYS_sendto,
    SYS_set_robust_list, SYS_set_tid_address, SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups,
    SYS_setitimer, SYS_setpgid, SYS_setpriority, SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid,
    SYS_setsid, SYS_setsockopt, SYS_setuid, SYS_setxattr, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget,
    SYS_shutdown, SYS_sigaltstack, SYS_signalfd4, SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync,
    SYS_syncfs, SYS_sysinfo, SYS_tgkill, SYS_timer_create, SYS_timer_delete, SYS_timer_getoverrun,
    SYS_timer_gettime, SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime,
    SYS_times, SYS_tkill, SYS_truncate, SYS_umask, SYS_uname, SYS_unlinkat, SYS_utimensat, SYS_wait4,
    SYS_waitid, SYS_write, SYS_writev
};

/// Allowed, and known to one architecture only.
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_HERE: &[Call] = calls! {
    SYS_access, SYS_alarm, SYS_arch_prctl, SYS_chmod, SYS_chown, SYS_creat, SYS_dup2, SYS_epoll_create,
    SYS_epoll_ctl_old, SYS_epoll_wait, SYS_epoll_wait_old, SYS_eventfd, SYS_fork, SYS_futimesat,
    SYS_get_thread_area, SYS_getdents, SYS_getpgrp, SYS_getrlimit, SYS_inotify_init, SYS_lchown, SYS_link,
    SYS_lstat, SYS_mkdir, SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename, SYS_renameat,
    SYS_rmdir, SYS_select, SYS_set_thread_area, SYS_setrlimit, SYS_signalfd, SYS_stat, SYS_symlink,
    SYS_sync_file_range, SYS_time, SYS_unlink, SYS_utime, SYS_utimes, SYS_vfork
};

/// Allowed, and known to one architecture only. The libc crate lacks some of these names on this architecture.
#[cfg(target_arch = "aarch64")]
pub(super) const ALLOWED_HERE: &[Call] =
    &[("SYS_renameat", 38), ("SYS_sync_file_range", 84), ("SYS_getrlimit", 163), ("SYS_setrlimit", 164)];

/// Refused with EPERM: they exist, and a program that asks should hear that it may not.
pub(super) const REFUSED: &[Call] = calls! {
    SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf, SYS_chroot, SYS_clock_adjtime, SYS_clock_settime,
    SYS_delete_module, SYS_fanotify_init, SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen,
    SYS_fspick, SYS_init_module, SYS_kcmp, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind,
    SYS_migrate_pages, SYS_mlockall, SYS_mount, SYS_mount_setattr, SYS_move_mount,
    SYS_move_pages, SYS_name_to_handle_at, SYS_nfsservctl, SYS_open_by_handle_at, SYS_open_tree,
    SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root, SYS_process_madvise, SYS_process_vm_writev,
    SYS_quotactl, SYS_quotactl_fd, SYS_reboot, SYS_request_key, SYS_sched_setattr, SYS_sched_setparam,
    SYS_sched_setscheduler, SYS_set_mempolicy, SYS_set_mempolicy_home_node, SYS_setdomainname,
    SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2,
    SYS_unshare, SYS_userfaultfd, SYS_vhangup, SYS_vmsplice
};

/// Refused, and known to one architecture only.
#[cfg(target_arch = "x86_64")]
pub(super) const REFUSED_HERE: &[Call] = calls! {
    SYS_ioperm, SYS_iopl, SYS_kexec_file_load, SYS_modify_ldt
};

/// Refused, and known to one architecture only.
#[cfg(target_arch = "aarch64")]
pub(super) const REFUSED_HERE: &[Call] = &[("SYS_kexec_file_load", 294)];

/// Refused, except under a debugger's profile.
pub(super) const DEBUG: &[Call] = calls! {
    SYS_process_vm_readv, SYS_ptrace
};

/// Allowed or refused by their arguments.
pub(super) const CHECKED: &[(Call, Check)] = &[
    (("SYS_clone", libc::SYS_clone), Check::Clone),
    (("SYS_fcntl", libc::SYS_fcntl), Check::Fcntl),
    (("SYS_ioctl", libc::SYS_ioctl), Check::Ioctl),
    (("SYS_mknodat", libc::SYS_mknodat), Check::Mknod { mode: 2 }),
    #[cfg(target_arch = "x86_64")]
    (("SYS_mknod", libc::SYS_mknod), Check::Mknod { mode: 1 }),
    (("SYS_personality", libc::SYS_personality), Check::Personality),
    (("SYS_prctl", libc::SYS_prctl), Check::Prctl),
    (("SYS_prlimit64", libc::SYS_prlimit64), Check::Prlimit),
    (("SYS_socket", libc::SYS_socket), Check::Socket),
    (("SYS_socketpair", libc::SYS_socketpair), Check::Socketpair),
];
