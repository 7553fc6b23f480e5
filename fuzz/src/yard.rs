//! A place to unpack into and everything around it, which must stay as it is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// An empty directory, in memory where the machine has such a place.
pub(crate) fn empty() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("belljar-fuzz-").tempdir_in(parent).unwrap()
}

/// A directory with a target, and beside it files and directories that hostile names lead to.
pub(crate) struct Yard {
    directory: TempDir,
    before: BTreeMap<PathBuf, Seen>,
}

/// What can be told of a file without following it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    links: u64,
    changed: (i64, i64),
    content: Vec<u8>,
}

/// The links that lie in the target before anything is unpacked.
const TRAPS: [&str; 2] = ["out", "up"];

impl Yard {
    pub(crate) fn new(with_traps: bool) -> Self {
        let directory = empty();
        let root = directory.path();
        fs::write(root.join("canary"), "alive").unwrap();
        fs::create_dir(root.join("outside")).unwrap();
        fs::write(root.join("outside/a"), "untouched").unwrap();
        fs::create_dir(root.join("target")).unwrap();
        if with_traps {
            symlink("../outside", root.join("target/out")).unwrap();
            symlink("..", root.join("target/up")).unwrap();
            fs::create_dir(root.join("target/d")).unwrap();
            fs::write(root.join("target/d/old"), "old").unwrap();
        }
        let before = around(root);
        Self { directory, before }
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    /// Nothing beside the target has changed in any way.
    pub(crate) fn check_around(&self) {
        assert_eq!(around(self.directory.path()), self.before, "something beside the target changed");
    }

    /// Everything below the target, by path; directories that keep their owner out are opened first.
    pub(crate) fn inside(&self) -> Vec<(PathBuf, fs::Metadata)> {
        let mut found = Vec::new();
        walk(&self.target(), &mut found);
        found
    }

    /// What is true of a tree that was made from an archive nobody trusts: no devices, no special bits, and, where
    /// links were sifted too, none that leads out.
    pub(crate) fn check_inside(&self, links_stay: bool) {
        let target = self.target();
        for (path, metadata) in self.inside() {
            let kind = metadata.file_type();
            assert!(
                !(kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()),
                "{path:?} is neither file, directory nor link"
            );
            if kind.is_symlink() {
                let trap = TRAPS.iter().any(|name| path == target.join(name));
                if links_stay
                    && !trap
                    && let Ok(real) = fs::canonicalize(&path)
                {
                    let through_trap = leads_through_trap(&target, &path);
                    assert!(real.starts_with(&target) || through_trap, "{path:?} leads out, to {real:?}");
                }
            } else {
                assert_eq!(metadata.permissions().mode() & 0o7000, 0, "{path:?} has special bits");
            }
        }
    }
}

/// Whether a link's own target goes through one that lay there before: those are the caller's.
fn leads_through_trap(target: &Path, link: &Path) -> bool {
    let mut here = link.to_owned();
    for _ in 0..40 {
        if TRAPS.iter().any(|name| here.starts_with(target.join(name))) {
            return target.join("out").is_symlink() || target.join("up").is_symlink();
        }
        let Ok(next) = fs::read_link(&here) else { return false };
        let Some(parent) = here.parent() else { return false };
        let mut joined = parent.to_owned();
        for component in next.components() {
            match component {
                std::path::Component::ParentDir => {
                    joined.pop();
                }
                other => joined.push(other),
            }
            if joined.is_symlink() {
                break;
            }
        }
        here = joined;
    }
    false
}

fn around(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if path.ends_with("target") {
            continue;
        }
        if metadata.is_dir() {
            walk(&path, &mut found);
        }
        found.push((path, metadata));
    }
    // The yard itself: nothing new in it, nothing gone.
    found.push((root.to_owned(), fs::symlink_metadata(root).unwrap()));
    found
        .into_iter()
        .map(|(path, metadata)| {
            let content = match metadata.file_type() {
                kind if kind.is_file() => fs::read(&path).unwrap(),
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
                _ => Vec::new(),
            };
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            (path, Seen { mode: metadata.mode(), links: metadata.nlink(), changed, content })
        })
        .collect()
}

fn walk(directory: &Path, found: &mut Vec<(PathBuf, fs::Metadata)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            walk(&path, found);
        }
        found.push((path, metadata));
    }
}
