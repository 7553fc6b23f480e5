//! Whoever unpacks a stranger's archive, taken over by it: nothing but the layer can be touched. Needs root.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use belljar_jail::rights::confine_unpacker;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Uid, chownat, mknodat, openat, unlinkat};
use rustix::process::{Pid, Signal, chroot, getppid, kill_process};

const TOLD: &str = "BELLJAR_TEST_UNPACKER";

/// What is tried, and whether it should be let.
fn tries([layer, below, outside]: [&OwnedFd; 3], parent: Pid) -> Vec<(&'static str, bool, io::Result<()>)> {
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let open = |directory: &OwnedFd, name: &str, flags| {
        openat(directory, name, flags, Mode::from_raw_mode(0o644)).map(drop).map_err(io::Error::from)
    };
    let node = |name: &str, device| {
        mknodat(layer, name, FileType::CharacterDevice, Mode::empty(), device).map_err(io::Error::from)
    };
    vec![
        ("make a file in the layer", true, open(layer, "file", write)),
        (
            "give it away",
            true,
            chownat(layer, "file", Some(Uid::from_raw(1234)), None, AtFlags::empty()).map_err(Into::into),
        ),
        ("make a mark", true, node("gone", 0)),
        ("read a layer below", true, open(below, "secret", OFlags::RDONLY)),
        ("write to a layer below", false, open(below, "secret", OFlags::WRONLY)),
        ("make a file in a layer below", false, open(below, "new", write)),
        (
            "remove a file of a layer below",
            false,
            unlinkat(below, "secret", AtFlags::empty()).map_err(Into::into),
        ),
        ("read by a descriptor that was left", false, open(outside, "secret", OFlags::RDONLY)),
        ("read what is beside the layer", false, open(layer, "../outside/secret", OFlags::RDONLY)),
        ("read the host's passwords", false, File::open("/etc/shadow").map(drop)),
        ("read of itself", false, File::open("/proc/self/environ").map(drop)),
        ("make a device", false, node("device", rustix::fs::makedev(1, 3))),
        ("run a program", false, Command::new("/bin/true").status().map(drop)),
        ("open a socket", false, TcpListener::bind("127.0.0.1:0").map(drop)),
        ("change its root again", false, chroot("/").map_err(Into::into)),
        ("signal whoever started it", false, kill_process(parent, Signal::CONT).map_err(Into::into)),
    ]
}

/// In a process of its own: confines itself, tries, and says what went otherwise.
fn play(place: &Path) -> ! {
    let open = |name: &str| OwnedFd::from(File::open(place.join(name)).unwrap());
    let (layer, below, outside) = (open("layer"), open("below"), open("outside"));
    let parent = getppid().unwrap();
    confine_unpacker(&[below.as_fd()], layer.as_fd()).unwrap();
    let otherwise = tries([&layer, &below, &outside], parent)
        .into_iter()
        .filter(|(_, may, result)| result.is_ok() != *may);
    let otherwise: Vec<String> = otherwise.map(|(what, _, result)| format!("{what}: {result:?}")).collect();
    let said = if otherwise.is_empty() { "all as it should be".to_owned() } else { otherwise.join("\n") };
    let _ = rustix::io::write(std::io::stderr(), said.as_bytes());
    std::process::exit(i32::from(!otherwise.is_empty()));
}

#[test]
fn taken_over_it_can_do_no_harm() {
    if let Some(place) = std::env::var_os(TOLD) {
        play(Path::new(&place));
    }
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let place = tempfile::tempdir().unwrap();
    for name in ["layer", "below", "outside"] {
        fs::create_dir(place.path().join(name)).unwrap();
        fs::write(place.path().join(name).join("secret"), "secret").unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "taken_over_it_can_do_no_harm", "--nocapture", "--test-threads", "1"])
        .env(TOLD, place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all as it should be"), "{:?}\n{said}", output.status);
    assert_eq!(fs::read_to_string(place.path().join("below/secret")).unwrap(), "secret");
}
