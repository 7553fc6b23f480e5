//! The digest of a layer: of everything about its files that a sandbox can see, and of nothing else.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// SHA-256, written as `sha256:…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub(crate) [u8; 32]);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest that these bytes are.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its digits, without the name of the algorithm.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{}` is not a digest", text.escape_debug());
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            *byte =
                digit(pair[0]).zip(digit(pair[1])).map(|(high, low)| high << 4 | low).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// The digest of a tree. Names, kinds, modes, owners, attributes, targets of links, which names are one file, and content count; times do not.
pub fn digest(tree: impl AsFd) -> io::Result<Digest> {
    let mut walk = Walk { hash: Sha256::new(), seen: std::collections::HashMap::new() };
    let root = rustix::fs::openat(&tree, ".", directory(), Mode::empty())?;
    walk.node(&root, b"")?;
    walk.below(&root, &mut Vec::new())?;
    Ok(Digest(walk.hash.finalize().into()))
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

struct Walk {
    hash: Sha256,
    /// Files with several names, by what the kernel knows them by, and the first of their names.
    seen: std::collections::HashMap<(u64, u64), Vec<u8>>,
}

impl Walk {
    fn part(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    /// What is seen of an open file or directory.
    fn node(&mut self, node: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let stat = rustix::fs::fstat(node)?;
        self.part(name);
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            self.hash.update(number.to_le_bytes());
        }
        let mut list = vec![0; 64 * 1024];
        let length = match rustix::fs::flistxattr(node, &mut list[..]) {
            Err(rustix::io::Errno::NOTSUP) => 0,
            length => length?,
        };
        let mut names: Vec<&[u8]> =
            list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        self.hash.update((names.len() as u64).to_le_bytes());
        for name in names {
            let mut value = vec![0; 64 * 1024];
            let length = rustix::fs::fgetxattr(node, OsStr::from_bytes(name), &mut value[..])?;
            self.part(name);
            self.part(&value[..length]);
        }
        Ok(())
    }

    fn below(&mut self, directory_fd: &OwnedFd, path: &mut Vec<u8>) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory_fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        for name in names {
            let length = path.len();
            path.push(b'/');
            path.extend_from_slice(&name);
            self.entry(directory_fd, &name, path)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(&mut self, parent: &OwnedFd, name: &[u8], path: &mut Vec<u8>) -> io::Result<()> {
        let name = OsStr::from_bytes(name);
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let node = rustix::fs::openat(parent, name, directory(), Mode::empty())?;
                self.node(&node, &path.clone())?;
                self.below(&node, path)
            }
            FileType::RegularFile => {
                if stat.st_nlink > 1 {
                    let first =
                        self.seen.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| path.clone()).clone();
                    if first != *path {
                        self.part(path);
                        self.part(&first);
                        return Ok(());
                    }
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let node = rustix::fs::openat(parent, name, flags, Mode::empty())?;
                self.node(&node, &path.clone())?;
                self.hash.update((stat.st_size as u64).to_le_bytes());
                let mut file = std::fs::File::from(node);
                let mut buffer = vec![0; 128 * 1024];
                loop {
                    match file.read(&mut buffer)? {
                        0 => return Ok(()),
                        count => self.hash.update(&buffer[..count]),
                    }
                }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())?;
                self.part(path);
                self.hash.update([stat.st_uid, stat.st_gid].map(u32::to_le_bytes).concat());
                self.part(target.to_bytes());
                Ok(())
            }
            // A mark that takes something away; there is nothing else.
            _ => {
                self.part(path);
                self.hash.update(stat.st_mode.to_le_bytes());
                self.hash.update((stat.st_rdev as u64).to_le_bytes());
                Ok(())
            }
        }
    }
}
