//! Where the tests run: which program they try, how slow the machine is, and whether they have root. Everything is
//! told by the environment, so that built tests can be taken to another machine (see `scripts/test-hosts`).
//!
//! | variable | meaning |
//! |---|---|
//! | `BELLJAR_TEST_BINARY` | the program to try, if it is not the one that was built beside the tests |
//! | `BELLJAR_TEST_ABLATED` | the one that is only for tests, if it is not to be built |
//! | `BELLJAR_TEST_PATIENCE` | a whole number: how many times slower than a usual machine this one is |
//! | `BELLJAR_TEST_ROOTLESS` | `1`: try what rootless sandboxes promise, as an ordinary user |

#![allow(dead_code, reason = "every suite uses some of it")]

pub mod processes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

/// The program to try.
pub fn belljar() -> PathBuf {
    let given = std::env::var_os("BELLJAR_TEST_BINARY");
    given.map_or_else(|| env!("CARGO_BIN_EXE_belljar").into(), PathBuf::from)
}

/// The program as it is only for tests: walls can be taken down, and the engine dies at chosen places. It is built here,
/// unless `BELLJAR_TEST_ABLATED` names one.
pub fn ablated() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("BELLJAR_TEST_ABLATED") {
        return Ok(given.into());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--locked", "--bin", "belljar"]);
    cargo.args(["--profile", "ablation", "--features", "ablation", "--target-dir"]).arg(target_directory());
    let status = cargo.status().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !status.success() {
        return Err("the build whose walls can be taken down failed".into());
    }
    Ok(target_directory().join("ablation/belljar"))
}

/// Where cargo builds, as seen from this program, which is in `<target>/<profile>/deps`.
pub fn target_directory() -> PathBuf {
    let here = std::env::current_exe().expect("this program has a path");
    here.ancestors().nth(3).map_or_else(|| PathBuf::from("target"), Path::to_path_buf)
}

/// A small file system that can be full, gone with this value.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// Makes and mounts one here. Not a tmpfs: before Linux 6.3 its files cannot be given to a sandbox.
    pub fn mount(place: PathBuf) -> Self {
        std::fs::create_dir(&place).unwrap();
        let image = place.with_extension("image");
        std::fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
        let ran = |command: &mut Command| command.status().unwrap().success();
        assert!(ran(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-F"]).arg(&image)));
        assert!(ran(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place)));
        Self(place)
    }

    /// Leaves no room; [`Self::relieve`] does.
    pub fn fill(&self) {
        std::fs::write(self.0.join("full"), vec![0; 64 << 20]).unwrap_err();
    }

    /// Makes room again.
    pub fn relieve(&self) {
        std::fs::remove_file(self.0.join("full")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// How many times longer things take here than on a usual machine.
pub fn slowness() -> u32 {
    static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
        let Ok(text) = std::env::var("BELLJAR_TEST_PATIENCE") else { return 1 };
        let factor = text.parse().ok().filter(|factor| (1..=100).contains(factor));
        factor
            .unwrap_or_else(|| panic!("BELLJAR_TEST_PATIENCE is {text:?}, not a whole number from 1 to 100"))
    });
    *SLOWNESS
}

/// What this span of a usual machine is here. For bounds, and for the times that sandboxes are given.
pub fn patience(span: Duration) -> Duration {
    span * slowness()
}

/// The same as an argument of the command line.
pub fn span(seconds: u32) -> String {
    format!("{}s", seconds * slowness())
}

/// Says something where it is seen even if the test passes.
pub fn announce(what: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "{test}: {what}");
}

/// Whether to try what is promised without root. Without root, and without having been asked for that, tests fail: they
/// would pass without having seen the walls.
pub fn is_rootless() -> bool {
    let asked = std::env::var_os("BELLJAR_TEST_ROOTLESS").is_some_and(|value| value == "1");
    let root = rustix::process::geteuid().is_root();
    assert!(root || asked, "this test needs root, or BELLJAR_TEST_ROOTLESS=1 to try what rootless promises");
    assert!(!root || !asked, "BELLJAR_TEST_ROOTLESS=1 is for an ordinary user, and this is root");
    asked
}

/// Whether the test (or the rest of it) must be left out, because rootless sandboxes do not promise that. Says so where
/// it is seen even if the test passes.
pub fn not_promised_rootless(why: &str) -> bool {
    let rootless = is_rootless();
    if rootless {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(std::io::stderr(), "not promised rootless: {test}: {why}");
    }
    rootless
}

/// Whether the test must be left out because the ordinary user does not have a program that root has.
pub fn lacks_rootless(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|place| place.join(program).exists()));
    is_rootless() && !found && not_promised_rootless(&format!("nothing less; but this user has no {program}"))
}
