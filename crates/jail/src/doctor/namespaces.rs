//! Whether a process can have users, processes, mounts, names and a network of its own.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};

use super::probe::{Failing, Proof, in_child, in_namespaces, refused};
use super::{Area, Check, is_root};
use crate::arrival;
use crate::cgroup::Layout;
use crate::doorway;
use crate::mounts;
use crate::namespaces::{check, loopback_up};

const ADVICE: &str = "needs a kernel with CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS and CONFIG_UTS_NS; inside a \
                      container, run that container with --privileged or use the host itself";

/// A connection within one machine that takes longer will not be made.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn examine() -> Vec<Check> {
    let required = |name, proof, advice: &str| Check::required(Area::Namespaces, name, proof, advice);
    let users = in_namespaces(users);
    let advice = if users.is_err() { user_namespace_advice(setting) } else { String::new() };
    vec![
        required("user namespaces", users, &advice),
        required("process isolation", in_namespaces(processes), ADVICE),
        required("network isolation", in_namespaces(network), ADVICE),
        required("host name", in_namespaces(host_name), ADVICE),
        required(
            "mounts of its own",
            in_namespaces(own_mounts),
            "needs CONFIG_CGROUPS and the right to mount in user namespaces: look for a security module (AppArmor, \
             SELinux) that forbids it in `dmesg`",
        ),
        required(
            "fresh /proc",
            in_namespaces(fresh_proc),
            "something is mounted over parts of /proc, as in most containers: use the host itself, or run the \
             container with --privileged or --security-opt systempaths=unconfined",
        ),
        required(
            "terminals",
            in_namespaces(terminals),
            "needs CONFIG_UNIX98_PTYS, and devpts mountable in user namespaces",
        ),
        required(
            "no nested namespaces",
            in_namespaces(no_nested),
            "needs /proc/sys writable in user namespaces of its own (CONFIG_SYSCTL, and not in a container that makes \
             it read-only)",
        ),
        Check::useful(
            Area::Namespaces,
            "way to the door",
            in_namespaces(way_to_the_door),
            "without it sandboxes can have no network (`--net`, `--allow`): needs nftables with transparent proxying \
             (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_TPROXY, CONFIG_NFT_REJECT, CONFIG_NFT_SOCKET with \
             CONFIG_SOCK_CGROUP_DATA); as root: modprobe -a nft_tproxy nft_socket nft_reject_inet",
        ),
        required(
            "process descriptors",
            in_child(process_descriptors),
            "needs Linux 5.11 or newer (pidfd_open, close_range)",
        ),
    ]
}

fn users() -> Proof {
    let inside = fs::read_to_string("/proc/self/uid_map").failing("read /proc/self/uid_map")?;
    let count = inside.split_whitespace().nth(2).unwrap_or("no");
    if is_root() {
        Ok(format!("created one with {count} ids, and became root in it"))
    } else {
        Ok(format!("created one with {count} id, as an ordinary user"))
    }
}

/// What stands in the way, found by looking at the settings that are known to.
fn user_namespace_advice(setting: impl Fn(&str) -> Option<String>) -> String {
    let is = |key: &str, value: &str| setting(key).is_some_and(|found| found == value);
    if !Path::new("/proc/self/ns/user").exists() {
        return "this kernel has no user namespaces: it needs CONFIG_USER_NS".into();
    }
    if is("user/max_user_namespaces", "0") {
        return "as root: sysctl -w user.max_user_namespaces=65536".into();
    }
    if is("kernel/unprivileged_userns_clone", "0") {
        return "as root: sysctl -w kernel.unprivileged_userns_clone=1, or run belljar as root".into();
    }
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run belljar as root"
            .into();
    }
    "a container or security module forbids it: use the host itself, or run the container with --privileged"
        .into()
}

fn setting(key: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(key)).ok().map(|text| text.trim().to_owned())
}

fn processes() -> Proof {
    match std::process::id() {
        1 => Ok("the first process inside is number 1, and sees no other".into()),
        number => Err(format!("the first process inside has number {number} instead of 1")),
    }
}

fn network() -> Proof {
    let interfaces = fs::read_to_string("/proc/net/dev").failing("read /proc/net/dev")?;
    let names: Vec<&str> =
        interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    // Kernels with tunnel modules put idle fallback devices into every namespace; none of them leads anywhere.
    let outward = names.iter().find(|name| name.starts_with("eth") || name.starts_with("en"));
    if let Some(name) = outward {
        return Err(format!("a new network namespace has the interface {name}"));
    }
    loopback_up().failing("bring up the loopback interface")?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").failing("listen on loopback")?;
    let address = listener.local_addr().failing("listen on loopback")?;
    std::net::TcpStream::connect(address).failing("connect over loopback")?;
    // A reserved address: were there a way out, this would wait instead of failing.
    refused("a connection to the outside", udp_connect("192.0.2.1:9"), libc::ENETUNREACH)?;
    Ok("loopback works, and there is no way out".into())
}

fn udp_connect(address: &str) -> io::Result<()> {
    std::net::UdpSocket::bind("0.0.0.0:0")?.connect(address)
}

fn host_name() -> Proof {
    rustix::system::sethostname(b"belljar-doctor").failing("set the host name")?;
    Ok("a sandbox has a host name of its own".into())
}

/// Enters mount and cgroup namespaces, as the first process of a sandbox does.
fn unshare_mounts() -> Result<(), String> {
    // SAFETY: plain system call; the process is single-threaded.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP) })
        .failing("enter mount and cgroup namespaces")?;
    mounts::make_private().map_err(|error| error.to_string())
}

/// An empty file system on `/tmp` with these directories.
fn stage(directories: &[&str]) -> Result<(), String> {
    unshare_mounts()?;
    mount("belljar", "/tmp", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"size=64k,mode=0755")
        .failing("mount a tmpfs")?;
    std::env::set_current_dir("/tmp").failing("enter /tmp")?;
    directories.iter().try_for_each(fs::create_dir).failing("make a directory")
}

fn own_mounts() -> Proof {
    stage(&["root"])?;
    fs::write("root/sign", "").failing("write a file")?;
    mount_bind_recursive("root", "root").failing("bind a directory")?;
    std::env::set_current_dir("root").failing("enter a directory")?;
    rustix::process::pivot_root(".", ".").failing("change the root (pivot_root)")?;
    unmount(".", UnmountFlags::DETACH).failing("let go of the host's root")?;
    std::env::set_current_dir("/").failing("enter the new root")?;
    match (Path::new("/sign").exists(), Path::new("/usr").exists()) {
        (true, false) => Ok("changed the root, and the host's files were out of sight".into()),
        _ => Err("after changing the root the host's files were still in sight".into()),
    }
}

fn mount_proc() -> Result<(), String> {
    stage(&["proc"])?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "proc", "proc", flags, None).failing("mount a fresh /proc")
}

fn fresh_proc() -> Proof {
    mount_proc()?;
    let entries = fs::read_dir("proc").failing("list /proc")?;
    let numbers: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    if numbers == ["1"] {
        Ok("mounted one that shows the sandbox's processes alone".into())
    } else {
        Err(format!("a fresh /proc shows {} processes instead of 1", numbers.len()))
    }
}

fn terminals() -> Proof {
    stage(&["pts"])?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", "pts", "devpts", flags, c"newinstance,ptmxmode=0666,mode=0620,max=64")
        .failing("mount terminals (devpts)")?;
    // The terminal is there as long as this end of it is open.
    let _controlling =
        fs::OpenOptions::new().read(true).write(true).open("pts/ptmx").failing("open a terminal")?;
    match Path::new("pts/0").exists() {
        true => Ok("mounted an instance of its own, and opened terminal 0 of it".into()),
        false => Err("a new instance of devpts did not begin with terminal 0".into()),
    }
}

fn no_nested() -> Proof {
    mount_proc()?;
    fs::write("proc/sys/user/max_user_namespaces", "0").failing("write user.max_user_namespaces")?;
    // SAFETY: plain system call; the process is single-threaded.
    let nested = check(unsafe { libc::unshare(libc::CLONE_NEWUSER) });
    refused("a namespace inside a sandbox", nested, libc::ENOSPC)?;
    Ok("a sandbox that was told to have no namespaces inside was refused one".into())
}

/// Where this process is in the version-two hierarchy: how deep, and the mark by which the kernel would know it.
fn own_leaf() -> Option<(u32, u32)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = Layout::detect().ok()?.v2_mount()?.to_owned();
    let number = fs::metadata(mount.join(path)).ok()?.ino();
    Some((Path::new(path).components().count() as u32, number as u32))
}

fn way_to_the_door() -> Proof {
    // Only where each execution has a group of its own; and of our own we know where it is.
    let leaf = if is_root() { own_leaf() } else { None };
    mount_proc()?;
    loopback_up().failing("bring up the loopback interface")?;
    if leaf.is_some() {
        fs::write("proc/sys/net/ipv4/tcp_fwmark_accept", "1").failing("write net.ipv4.tcp_fwmark_accept")?;
    }
    let doorway = doorway::open(leaf.map(|(level, _)| level)).failing("make it")?;
    let far = SocketAddr::from(([192, 0, 2, 1], 443));
    let _stream = TcpStream::connect_timeout(&far, PATIENCE).failing("connect to a far address")?;
    let (arrived, _) = rustix::net::acceptfrom(&doorway.v4.tcp).failing("take in a connection")?;
    let mark = arrival::mark(arrived.as_fd()).failing("read the mark of a connection")?;
    let meant = TcpStream::from(arrived).local_addr().failing("read where a connection was meant to go")?;
    match leaf {
        _ if meant != far => Err(format!("a connection to {far} arrived as one to {meant}")),
        Some((level, own)) if mark != own => Err(format!(
            "a connection had the mark {mark} instead of {own}, the number of its cgroup (at level {level})"
        )),
        Some(_) => Ok("a connection to a far address arrived at the door, and told whose it was".into()),
        None => Ok(
            "a connection to a far address arrived at the door; it does not tell which execution's it is, \
                    which needs root and cgroup v2"
                .into(),
        ),
    }
}

fn process_descriptors() -> Proof {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    let own = pidfd_open(getpid(), PidfdFlags::empty()).failing("open a process (pidfd_open)")?;
    rustix::io::fcntl_setfd(&own, rustix::io::FdFlags::empty()).failing("unmark a descriptor")?;
    // SAFETY: marks descriptors, closes none.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(marked as i32).failing("mark descriptors (close_range)")?;
    let flags = rustix::io::fcntl_getfd(&own).failing("read a descriptor's mark")?;
    match flags.contains(rustix::io::FdFlags::CLOEXEC) {
        true => Ok("opened a process, and marked a range of descriptors".into()),
        false => Err("close_range did not mark a descriptor".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_stands_in_the_way_is_named() {
        for (key, value) in [
            ("user/max_user_namespaces", "0"),
            ("kernel/unprivileged_userns_clone", "0"),
            ("kernel/apparmor_restrict_unprivileged_userns", "1"),
        ] {
            let advice = user_namespace_advice(|asked| (asked == key).then(|| value.to_owned()));
            assert!(advice.contains(&key.replace('/', ".")), "{advice}");
        }
        assert!(user_namespace_advice(|_| None).contains("container"));
    }
}
