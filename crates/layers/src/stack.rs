//! Layers as a sandbox sees them, one over the other: where a name leads, without leaving the root.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// The attribute of a directory that hides what is below it in lower layers.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";
/// The deepest directory of a layer: each on the way is held open.
pub(crate) const DEEPEST: usize = 256;
/// How many links are followed on the way to one name.
const MOST_LINKS: usize = 40;

/// Layers, the uppermost first.
#[derive(Debug, Default)]
pub struct Stack(Vec<OwnedFd>);

/// What is seen at a place.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) stat: Stat,
    /// Which of the layers it is in, from the uppermost.
    layer: usize,
}

impl Seen {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl Stack {
    /// Of these directories, the uppermost first.
    pub fn new(layers: Vec<OwnedFd>) -> Self {
        Self(layers)
    }

    /// With another on top.
    pub(crate) fn over(top: OwnedFd, below: &Self) -> io::Result<Self> {
        let copies = below.0.iter().map(OwnedFd::try_clone);
        Ok(Self([Ok(top)].into_iter().chain(copies).collect::<io::Result<_>>()?))
    }

    /// What is at a place of plain components, none of which is followed.
    pub(crate) fn look(&self, place: &Path) -> io::Result<Option<Seen>> {
        for (layer, root) in self.0.iter().enumerate() {
            match beneath(root, place) {
                Ok(Some(stat)) if is_whiteout(&stat) => return Ok(None),
                Ok(Some(stat)) => return Ok(Some(Seen { stat, layer })),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            if self.hides(root, place)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Whether a layer hides what lower ones have at a place: something above it is a mark, no directory, or opaque.
    fn hides(&self, root: &OwnedFd, place: &Path) -> io::Result<bool> {
        for above in place.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let Some(stat) = beneath(root, above)? else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || is_opaque(root, above)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The start of a file, wherever its name leads inside; `None` if there is no file.
    pub fn read(&self, name: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open(name)? else { return Ok(None) };
        let mut content = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, most), &mut content)?;
        Ok(Some(content))
    }

    /// A file, wherever its name leads inside; `None` if there is none.
    pub fn open(&self, name: &Path) -> io::Result<Option<std::fs::File>> {
        let place = self.follow(name)?;
        let Some(seen) = self.look(&place)?.filter(|seen| seen.kind() == FileType::RegularFile) else {
            return Ok(None);
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Some(
            rustix::fs::openat2(&self.0[seen.layer], &place, flags, Mode::empty(), beneath_all())?.into(),
        ))
    }

    /// Whether there is a directory, wherever its name leads inside.
    pub fn is_dir(&self, name: &Path) -> io::Result<bool> {
        Ok(self.look(&self.follow(name)?)?.is_some_and(|seen| seen.kind() == FileType::Directory))
    }

    /// What is in a directory, wherever its name leads inside, by name; `None` if there is none.
    pub fn list(&self, name: &Path) -> io::Result<Option<Vec<Listed>>> {
        let place = self.follow(name)?;
        if !self.look(&place)?.is_some_and(|seen| seen.kind() == FileType::Directory) {
            return Ok(None);
        }
        let mut names = BTreeSet::new();
        for root in &self.0 {
            // What is no directory here, or hides what is below it, ends it.
            match open_beneath(root, &place) {
                Ok(directory) => names.extend(names_in(&directory)?),
                Err(Errno::NOENT) => {}
                Err(_) => break,
            }
            if is_opaque_at(root, &place)? || self.hides(root, &place)? {
                break;
            }
        }
        let mut listed = Vec::new();
        for name in names {
            if let Some(entry) = self.stat(&place.join(&name))? {
                listed.push(entry);
            }
        }
        Ok(Some(listed))
    }

    /// What is at a place of plain components, none of which is followed.
    pub fn stat(&self, place: &Path) -> io::Result<Option<Listed>> {
        let Some(seen) = self.look(place)? else { return Ok(None) };
        let target = match seen.kind() {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&self.0[seen.layer], place, Vec::new())?;
                Some(OsStr::from_bytes(target.to_bytes()).to_owned())
            }
            _ => None,
        };
        let kind = match seen.kind() {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            _ => Kind::File,
        };
        let Stat { st_mode, st_uid, st_gid, st_size, .. } = seen.stat;
        let size = if kind == Kind::File { st_size as u64 } else { 0 };
        Ok(Some(Listed {
            path: place.to_owned(),
            kind,
            mode: st_mode & 0o7777,
            uid: st_uid,
            gid: st_gid,
            size,
            target,
        }))
    }

    /// Where a name leads inside, the last link included.
    fn follow(&self, name: &Path) -> io::Result<PathBuf> {
        let mut place = self.resolve(name)?;
        for _ in 0..MOST_LINKS {
            match self.look(&place)? {
                Some(seen) if seen.kind() == FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&self.0[seen.layer], &place, Vec::new())?;
                    let target = Path::new(OsStr::from_bytes(target.to_bytes())).to_owned();
                    let from = place.parent().unwrap_or(Path::new(""));
                    place = self.resolve(&if target.is_absolute() { target } else { from.join(target) })?;
                }
                _ => return Ok(place),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Where a name leads: each link but the last component is followed as inside the root. Answers plain components.
    pub(crate) fn resolve(&self, name: &Path) -> io::Result<PathBuf> {
        let parts = |path: &Path| -> Vec<OsString> {
            path.components()
                .filter_map(|part| match part {
                    Component::Normal(name) => Some(name.to_owned()),
                    Component::ParentDir => Some("..".into()),
                    _ => None,
                })
                .collect()
        };
        let mut left: VecDeque<OsString> = parts(name).into();
        let (mut place, mut links) = (PathBuf::new(), 0);
        while let Some(part) = left.pop_front() {
            if part == ".." {
                place.pop();
                continue;
            }
            place.push(&part);
            if left.is_empty() {
                break;
            }
            let Some(seen) = self.look(&place)? else { continue };
            if seen.kind() == FileType::Symlink {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = rustix::fs::readlinkat(&self.0[seen.layer], &place, Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.to_bytes())).to_owned();
                if target.is_absolute() {
                    place.clear();
                } else {
                    place.pop();
                }
                parts(&target).into_iter().rev().for_each(|part| left.push_front(part));
            }
        }
        Ok(place)
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

/// A file of a stack, as a sandbox would see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is, without the first slash.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Its rights.
    pub mode: u32,
    /// Whose it is.
    pub uid: u32,
    /// And whose group's.
    pub gid: u32,
    /// How many bytes it has.
    pub size: u64,
    /// Where it leads, if it is a link.
    pub target: Option<OsString>,
}

/// The names in a directory of a layer.
pub(crate) fn names_in(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Whether a layer has a directory here that hides what lies below it.
pub(crate) fn is_opaque_at(root: &OwnedFd, place: &Path) -> io::Result<bool> {
    match open_beneath(root, place) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(_) => is_opaque(root, place),
    }
}

/// What a layer has at a place, through no link.
fn beneath(root: &OwnedFd, place: &Path) -> io::Result<Option<Stat>> {
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        return Ok(Some(rustix::fs::fstat(root)?));
    };
    let parent = match open_beneath(root, parent) {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory of a layer, through no link.
pub(crate) fn open_beneath(root: &OwnedFd, place: &Path) -> rustix::io::Result<OwnedFd> {
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(root, place, flags, Mode::empty(), beneath_all())
}

/// Below the root, through no link and onto no other file system.
fn beneath_all() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}

/// Whether it is the mark that takes something of a lower layer away.
fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_opaque(root: &OwnedFd, place: &Path) -> io::Result<bool> {
    let directory = open_beneath(root, place)?;
    let mut value = [0; 1];
    match rustix::fs::fgetxattr(&directory, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
