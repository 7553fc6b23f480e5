//! Unpacking a layer. Every name is walked from a descriptor of the layer's directory, as a sandbox would see it: links of this layer and of
//! those below lead where they lead inside, and nothing outside is touched. What is not honest ends it, by name.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tar::EntryType;

use crate::archive::{Counted, unpacking};
use crate::digest::Digest;
use crate::offence::{Offence, Refused};
use crate::stack::{DEEPEST, OPAQUE, Stack, open_beneath};

/// The most that may stand between one entry and the next: headers, long names, extensions. All of it is kept in memory.
const MOST_BETWEEN: u64 = 1 << 20;
/// What an entry costs besides its content.
const HEADER: u64 = 512;
/// The longest name, and the longest of its components.
const LONGEST: usize = 4095;
const LONGEST_COMPONENT: usize = 255;
/// So many zeros in a row are left out on the disk.
const HOLE: usize = 4096;
/// Whose files are whose owner a sandbox does not know.
pub(crate) const NOBODY: u32 = 65_534;
pub(crate) const MOST_IDS: u64 = 65_536;
/// How names begin that take something away, and the one that takes all of a directory's away.
const WHITEOUT: &[u8] = b".wh.";
const ALL_AWAY: &[u8] = b".wh..wh..opq";

/// How much may come of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes, unpacked.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 4_000_000 }
    }
}

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// The digest of the archive, unpacked: what OCI calls the layer's diff id.
    pub content: Digest,
    /// How many entries there were.
    pub entries: u64,
    /// How many bytes of content.
    pub bytes: u64,
}

/// Who unpacks archives: somebody who may be taken over by what is in them, and should have nothing to lose.
pub trait Unpacker: Send + Sync {
    /// Unpacks an archive into an empty directory that is to lie over these layers, the uppermost first.
    fn unpack(
        &self,
        archive: File,
        into: &Path,
        below: &[PathBuf],
        bounds: Bounds,
    ) -> Result<Unpacked, Refused>;
}

/// Whoever asks, without any walls: for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Myself;

impl Unpacker for Myself {
    fn unpack(
        &self,
        archive: File,
        into: &Path,
        below: &[PathBuf],
        bounds: Bounds,
    ) -> Result<Unpacked, Refused> {
        let opening = || Refused::io("cannot open a layer");
        let open = |path: &PathBuf| File::open(path).map(OwnedFd::from);
        let below = below.iter().map(open).collect::<io::Result<Vec<_>>>().map_err(opening())?;
        let into = File::open(into).map_err(opening())?.into();
        unpack(BufReader::with_capacity(128 << 10, archive), into, &Stack::new(below), bounds)
    }
}

/// Unpacks an archive, packed or not, into an empty directory that is to lie over these layers.
pub fn unpack(
    archive: impl BufRead,
    into: OwnedFd,
    below: &Stack,
    bounds: Bounds,
) -> Result<Unpacked, Refused> {
    let reading = || Refused::io("cannot read the archive");
    let between = Rc::new(Cell::new(None));
    let source = unpacking(archive).map_err(reading())?;
    let gate = Gate { inner: Counted::new(source, bounds.bytes), between: between.clone() };
    let mut archive = tar::Archive::new(gate);
    let stack = into.try_clone().and_then(|top| Stack::over(top, below)).map_err(reading())?;
    let mut tree = Tree { root: into, stack, made: HashSet::new(), times: BTreeMap::new() };
    let (mut entries, mut bytes) = (0, 0);
    let walked = (|| {
        let mut all = archive.entries().map_err(broken)?;
        loop {
            between.set(Some(MOST_BETWEEN));
            let Some(entry) = all.next() else { return Ok(()) };
            between.set(None);
            let mut entry = entry.map_err(broken)?;
            entries += 1;
            if entries > bounds.entries {
                let why = format!("is one more than the {} entries that are allowed", bounds.entries);
                return Err(Refused::offence(Offence::TooMany, &entry.path_bytes(), why));
            }
            bytes += tree.place(&mut entry)?;
        }
    })();
    between.set(None);
    let Gate { inner: counted, .. } = archive.into_inner();
    if counted.is_over() {
        let why = format!("has more than the {} bytes that are allowed", bounds.bytes);
        return Err(Refused::offence(Offence::Bomb, b"the archive", why));
    }
    walked?;
    tree.set_times()?;
    // What follows the last entry counts.
    let (content, is_over) = counted.finish().map_err(broken)?;
    if is_over {
        return Err(Refused::offence(Offence::Bomb, b"the archive", "goes on after its end"));
    }
    Ok(Unpacked { content, entries, bytes: bytes - entries * HEADER })
}

fn broken(error: io::Error) -> Refused {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Refused::offence(Offence::SizeLie, b"the archive", "ends before it is over")
        }
        io::ErrorKind::QuotaExceeded => {
            Refused::offence(Offence::Broken, b"the archive", "has headers without end")
        }
        _ => Refused::offence(Offence::Broken, b"the archive", format!("cannot be read: {error}")),
    }
}

/// An archive under a bound on what is read before the next entry is known.
struct Gate<R> {
    inner: Counted<R>,
    between: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Gate<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(left) = self.between.get() {
            let left = left.checked_sub(count as u64).ok_or(io::ErrorKind::QuotaExceeded)?;
            self.between.set(Some(left));
        }
        Ok(count)
    }
}

/// Whose a file is, what may be done with it, and when it changed.
#[derive(Clone, Copy, Debug)]
struct Nature {
    mode: u32,
    uid: u32,
    gid: u32,
    changed: i64,
}

/// Attributes of a file: their names and values.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// The layer that is being made.
struct Tree {
    root: OwnedFd,
    stack: Stack,
    /// Places that entries have named.
    made: HashSet<PathBuf>,
    /// When directories changed: set once nothing changes any more.
    times: BTreeMap<PathBuf, i64>,
}

impl Tree {
    /// Makes what an entry says; answers what it counts.
    fn place<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<u64, Refused> {
        let name = entry.path_bytes().into_owned();
        let refuse = |offence, why: &str| Err(Refused::offence(offence, &name, why));
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            io::copy(entry, &mut io::sink()).map_err(broken)?;
            return Ok(HEADER);
        }
        let clean = plain(&name)?;
        let nature = nature(entry.header()).map_err(broken)?;
        let size = entry.size();
        if kind != EntryType::Regular
            && kind != EntryType::Continuous
            && kind != EntryType::GNUSparse
            && size > 0
        {
            return refuse(Offence::SizeLie, "has content, and is no file");
        }
        let attributes = attributes(entry, &name)?;
        let Some(last) = clean.file_name().map(OsStr::to_owned) else {
            // The root itself.
            if kind != EntryType::Directory {
                return refuse(Offence::BelowFile, "is the root, and no directory");
            }
            self.dress(Path::new(""), nature, &attributes)?;
            return Ok(HEADER);
        };
        let place = self.stack.resolve(&clean).map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::LOOP.raw_os_error() => {
                Refused::offence(Offence::SymbolicLink, &name, "is behind links that lead to each other")
            }
            _ => Refused::io(format!("cannot look up `{}`", clean.display()))(error),
        })?;
        if place.file_name() != Some(&last) {
            return refuse(Offence::Traversal, "leads to the root");
        }
        if let Some(away) = last.as_bytes().strip_prefix(WHITEOUT) {
            return self.take_away(&place, last.as_bytes(), away, &name).map(|()| HEADER);
        }
        let is_directory = kind == EntryType::Directory;
        let parent = self.parent(&place, &name)?;
        let there = self.look_here(&parent, &last)?;
        match there {
            Some(FileType::Directory) if is_directory => {}
            Some(_) => return refuse(Offence::Duplicate, "is there twice"),
            None => match kind {
                EntryType::Directory => {
                    rustix::fs::mkdirat(&parent, &last, Mode::RWXU).map_err(failed(&name, "make"))?;
                }
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    fill(entry, &parent, &last, (size, &name))?;
                }
                EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default();
                    if target.is_empty() || target.len() > LONGEST || target.contains(&0) {
                        return refuse(Offence::SymbolicLink, "is a link that leads nowhere");
                    }
                    rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent, &last)
                        .map_err(failed(&name, "make"))?;
                }
                EntryType::Link => {
                    let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                    self.link(&target, (&parent, &last), &name)?;
                    self.made.insert(place);
                    return Ok(HEADER);
                }
                EntryType::Char | EntryType::Block => return refuse(Offence::Device, "is a device"),
                _ => return refuse(Offence::Special, "is neither a file, a directory nor a link"),
            },
        }
        if !self.made.insert(place.clone()) && !is_directory {
            return refuse(Offence::Duplicate, "is there twice");
        }
        if kind == EntryType::Symlink {
            let (uid, gid) = owner(nature);
            rustix::fs::chownat(&parent, &last, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed(&name, "give"))?;
            set_time(&parent, &last, nature.changed).map_err(failed(&name, "date"))?;
        } else {
            self.dress(&place, nature, &attributes)?;
        }
        Ok(size + HEADER)
    }

    /// What this layer has of this name in a directory of its own.
    fn look_here(&self, parent: &OwnedFd, name: &OsStr) -> Result<Option<FileType>, Refused> {
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed(name.as_bytes(), "look at")(error)),
        }
    }

    /// The directory that a place is in, made with those above it where only lower layers have them: as they are there.
    fn parent(&self, place: &Path, name: &[u8]) -> Result<OwnedFd, Refused> {
        let above: Vec<&Path> = place.ancestors().skip(1).collect();
        for directory in above.into_iter().rev().filter(|above| !above.as_os_str().is_empty()) {
            let seen = self.stack.look(directory).map_err(Refused::io("cannot look at the layers below"))?;
            let is_here = match open_beneath(&self.root, directory) {
                Ok(_) => true,
                Err(Errno::NOENT) => false,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    return Err(Refused::offence(Offence::BelowFile, name, "is below what is no directory"));
                }
                Err(error) => return Err(failed(name, "open the directory of")(error)),
            };
            if is_here {
                continue;
            }
            let nature = match seen {
                Some(seen) if seen.kind() == FileType::Directory => Nature {
                    mode: seen.stat.st_mode & 0o7777,
                    uid: seen.stat.st_uid,
                    gid: seen.stat.st_gid,
                    changed: seen.stat.st_mtime,
                },
                Some(_) => {
                    return Err(Refused::offence(Offence::BelowFile, name, "is below what is no directory"));
                }
                None => Nature { mode: 0o755, uid: 0, gid: 0, changed: 0 },
            };
            let (parent, last) = (directory.parent().unwrap_or(Path::new("")), directory.file_name());
            let parent = open_beneath(&self.root, parent).map_err(failed(name, "open the directory of"))?;
            let last = last.unwrap_or_default();
            rustix::fs::mkdirat(&parent, last, Mode::RWXU).map_err(failed(name, "make the directory of"))?;
            let made =
                open_beneath(&parent, Path::new(last)).map_err(failed(name, "open the directory of"))?;
            apply(&made, nature).map_err(failed(name, "give the directory of"))?;
        }
        open_beneath(&self.root, place.parent().unwrap_or(Path::new("")))
            .map_err(failed(name, "open the directory of"))
    }

    /// Takes away what lower layers have at a place.
    fn take_away(&mut self, mark: &Path, last: &[u8], away: &[u8], name: &[u8]) -> Result<(), Refused> {
        let refuse = |why: &str| Err(Refused::offence(Offence::Whiteout, name, why));
        let parent = self.parent(mark, name)?;
        if last == ALL_AWAY {
            rustix::fs::fsetxattr(&parent, OPAQUE, b"y", XattrFlags::empty())
                .map_err(failed(name, "mark the directory of"))?;
            return Ok(());
        }
        if away.is_empty() || away == b"." || away == b".." || away.starts_with(WHITEOUT) {
            return refuse("takes nothing away");
        }
        let away = OsStr::from_bytes(away);
        if self.look_here(&parent, away)?.is_some() {
            return Err(Refused::offence(Offence::Duplicate, name, "takes away what is there"));
        }
        rustix::fs::mknodat(&parent, away, FileType::CharacterDevice, Mode::empty(), 0)
            .map_err(failed(name, "make the mark"))?;
        self.made.insert(mark.with_file_name(away));
        Ok(())
    }

    /// Another name for a file of this archive.
    fn link(&self, target: &[u8], (parent, last): (&OwnedFd, &OsStr), name: &[u8]) -> Result<(), Refused> {
        let refuse = || {
            Err(Refused::offence(Offence::HardLink, name, "is another name for what is not there before it"))
        };
        let Ok(target) = plain(target) else { return refuse() };
        let Ok(target) = self.stack.resolve(&target) else { return refuse() };
        let (Some(file), true) = (target.file_name(), self.made.contains(&target)) else { return refuse() };
        let Ok(from) = open_beneath(&self.root, target.parent().unwrap_or(Path::new(""))) else {
            return refuse();
        };
        if self.look_here(&from, file)? != Some(FileType::RegularFile) {
            return refuse();
        }
        rustix::fs::linkat(&from, file, parent, last, AtFlags::empty()).map_err(failed(name, "link"))
    }

    /// Gives a file or a directory of this layer its nature and attributes.
    fn dress(&mut self, place: &Path, nature: Nature, attributes: &Attributes) -> Result<(), Refused> {
        let shown = place.as_os_str().as_bytes();
        let parent = open_beneath(&self.root, place.parent().unwrap_or(Path::new("")));
        let parent = parent.map_err(failed(shown, "open the directory of"))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let last = place.file_name().unwrap_or(OsStr::new("."));
        let node = rustix::fs::openat(&parent, last, flags, Mode::empty()).map_err(failed(shown, "open"))?;
        for (name, value) in attributes {
            match rustix::fs::fsetxattr(&node, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                Ok(()) | Err(Errno::NOTSUP) => {}
                Err(error) => return Err(failed(shown, "give attributes to")(error)),
            }
        }
        apply(&node, nature).map_err(failed(shown, "give"))?;
        let is_directory = rustix::fs::fstat(&node)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if is_directory {
            self.times.insert(place.to_owned(), nature.changed);
        }
        Ok(())
    }

    /// Sets when directories changed, once nothing in them does.
    fn set_times(&self) -> Result<(), Refused> {
        for (place, changed) in self.times.iter().rev() {
            let shown = place.as_os_str().as_bytes();
            let node = open_beneath(&self.root, place).map_err(failed(shown, "open"))?;
            rustix::fs::futimens(&node, &times(*changed)).map_err(failed(shown, "date"))?;
        }
        Ok(())
    }
}

fn failed(name: &[u8], what: &str) -> impl FnOnce(Errno) -> Refused {
    let shown: String = String::from_utf8_lossy(name).escape_debug().take(200).collect();
    let what = format!("cannot {what} `{shown}`");
    move |error| Refused::Io { what, source: error.into() }
}

/// A name without what says nothing; it must stay below the root.
fn plain(name: &[u8]) -> Result<PathBuf, Refused> {
    if name.len() > LONGEST || name.contains(&0) {
        return Err(Refused::offence(Offence::Name, name, "cannot be the name of a file"));
    }
    let mut clean = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(name)).components() {
        match part {
            Component::Normal(part) if part.len() > LONGEST_COMPONENT => {
                return Err(Refused::offence(Offence::Name, name, "has a part that is too long"));
            }
            Component::Normal(part) => clean.push(part),
            Component::ParentDir => {
                return Err(Refused::offence(Offence::Traversal, name, "leads out of a directory"));
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if clean.components().count() > DEEPEST {
        return Err(Refused::offence(Offence::Name, name, "is too deep"));
    }
    Ok(clean)
}

fn nature(header: &tar::Header) -> io::Result<Nature> {
    let id = |id: u64| u32::try_from(id).ok().filter(|_| id < MOST_IDS).unwrap_or(NOBODY);
    Ok(Nature {
        mode: header.mode()? & 0o7777,
        // Some leave out what they do not know.
        uid: id(header.uid().unwrap_or(0)),
        gid: id(header.gid().unwrap_or(0)),
        changed: i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0),
    })
}

fn owner(nature: Nature) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(nature.uid)), Some(Gid::from_raw(nature.gid)))
}

/// Whose it is comes first: giving a file away takes some of its mode.
fn apply(node: &OwnedFd, nature: Nature) -> rustix::io::Result<()> {
    let (uid, gid) = owner(nature);
    rustix::fs::fchown(node, uid, gid)?;
    rustix::fs::fchmod(node, Mode::from_raw_mode(nature.mode))?;
    rustix::fs::futimens(node, &times(nature.changed))
}

fn times(changed: i64) -> Timestamps {
    let moment = Timespec { tv_sec: changed, tv_nsec: 0 };
    Timestamps { last_access: moment, last_modification: moment }
}

fn set_time(parent: &OwnedFd, name: &OsStr, changed: i64) -> rustix::io::Result<()> {
    rustix::fs::utimensat(parent, name, &times(changed), AtFlags::SYMLINK_NOFOLLOW)
}

/// The attributes that an entry brings along, those that mean something inside.
fn attributes<R: Read>(entry: &mut tar::Entry<'_, R>, name: &[u8]) -> Result<Attributes, Refused> {
    const XATTR: &[u8] = b"SCHILY.xattr.";
    let mut found = Vec::new();
    let Some(extensions) = entry.pax_extensions().map_err(broken)? else { return Ok(found) };
    for extension in extensions {
        let extension = extension.map_err(broken)?;
        let Some(attribute) = extension.key_bytes().strip_prefix(XATTR) else { continue };
        let is = |prefix: &str| attribute.starts_with(prefix.as_bytes());
        if is("trusted.overlay.") || is("user.overlay.") {
            return Err(Refused::offence(Offence::OverlayAttribute, name, "has an attribute of overlays"));
        }
        // What is about the host's own security means nothing inside.
        if is("security.") || is("system.") {
            continue;
        }
        if !is("user.") || attribute.len() > LONGEST_COMPONENT || attribute.contains(&0) {
            return Err(Refused::offence(
                Offence::Attribute,
                name,
                "has an attribute that files must not bring along",
            ));
        }
        found.push((attribute.to_vec(), extension.value_bytes().to_vec()));
    }
    Ok(found)
}

/// Makes a new file of as many bytes as were said; runs of zeros take no room.
fn fill<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    parent: &OwnedFd,
    last: &OsStr,
    (size, name): (u64, &[u8]),
) -> Result<(), Refused> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(parent, last, flags, Mode::RUSR | Mode::WUSR).map_err(failed(name, "make"))?;
    let mut file = File::from(file);
    let writing = || Refused::io(format!("cannot write `{}`", String::from_utf8_lossy(name).escape_debug()));
    let mut buffer = vec![0; 128 * 1024];
    let mut written = 0;
    loop {
        let count = entry.read(&mut buffer).map_err(broken)?;
        if count == 0 {
            break;
        }
        written += count as u64;
        for piece in buffer[..count].chunks(HOLE) {
            if piece.len() == HOLE && piece.iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(HOLE as i64)).map_err(writing())?;
            } else {
                file.write_all(piece).map_err(writing())?;
            }
        }
    }
    if written != size {
        return Err(Refused::offence(
            Offence::SizeLie,
            name,
            format!("has {written} bytes, and says {size}"),
        ));
    }
    file.set_len(size).map_err(writing())
}
