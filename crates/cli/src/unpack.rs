//! Unpacking an archive that came out of a sandbox. Nothing in it is trusted: every name is walked from a descriptor
//! of the destination, component by component, without following any link; files are always new files; what could
//! reach or change anything outside is not made.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use belljar_core::{Error, ErrorCode, FilePath, Result, Wall};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::EntryType;

use crate::args;
use crate::print::escape::escape;
use crate::transfer::Limit;

/// How a name is looked up: below the directory, and through no link.
fn resolve() -> ResolveFlags {
    if !Wall::ArchiveLinks.stands() {
        return ResolveFlags::empty();
    }
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

fn no_follow() -> OFlags {
    if Wall::ArchiveLinks.stands() { OFlags::NOFOLLOW } else { OFlags::empty() }
}

/// The most that may stand between one entry and the next: headers, long names, extensions. All of it is kept in memory.
const MOST_BETWEEN: u64 = 1 << 20;

/// What an entry costs besides its content.
const HEADER: u64 = 512;

/// How many of the entries that were left out are named.
const NAMED: usize = 20;

/// The entries that were not made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// The first of them, each with the reason.
    pub(crate) first: Vec<String>,
    /// How many there were.
    pub(crate) count: usize,
}

impl LeftOut {
    fn add(&mut self, name: &[u8], reason: &str) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(format!("{}: {reason}", shown(name)));
        }
    }
}

/// An archive under a bound on what is read before the next entry is known.
struct Gate<'a, R> {
    archive: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Gate<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(bytes.len());
        if most == 0 && !bytes.is_empty() {
            return Err(io::Error::other("a name or an extension in it is too long"));
        }
        let count = self.archive.read(&mut bytes[..most])?;
        self.left.set(self.left.get().saturating_sub(count as u64));
        Ok(count)
    }
}

/// Unpacks below `directory`, which is made if it is not there; `strip` leaves out the first component of each name.
/// Answers the entries that were left out. A name that leaves the destination ends everything.
pub(crate) fn unpack(
    archive: &mut impl Read,
    directory: &Path,
    strip: bool,
    mut limit: Limit,
) -> Result<LeftOut> {
    let root = open_root(directory).map_err(|errno| args::unwritable(directory, &errno.into()))?;
    let between = Cell::new(MOST_BETWEEN);
    let mut archive = tar::Archive::new(Gate { archive, left: &between });
    let mut left_out = LeftOut::default();
    for entry in archive.entries().map_err(|error| broken(&error))? {
        let mut entry = entry.map_err(|error| broken(&error))?;
        // From here to the end of its content, bytes count against the limit.
        between.set(u64::MAX);
        limit.spend(HEADER)?;
        let name = entry.path_bytes().into_owned();
        if let Some(parts) = components(&name, strip)? {
            match place(&root, &mut entry, &parts, strip, &mut limit) {
                Ok(()) => {}
                Err(Trouble::LeftOut(reason)) => left_out.add(&name, &reason),
                Err(Trouble::Failed(error)) => return Err(error),
            }
        }
        pass_over(&mut entry, &mut limit)?;
        between.set(MOST_BETWEEN);
    }
    drain(&mut archive.into_inner().archive)?;
    Ok(left_out)
}

/// Reads what is left of an entry that was not made or has no use for its content.
fn pass_over<R: Read>(entry: &mut tar::Entry<'_, R>, limit: &mut Limit) -> Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        match entry.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => limit.spend(count as u64)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(&error)),
        }
    }
}

/// What a new directory takes of the limit: about what it takes of the disk.
const DIRECTORY_COST: u64 = 4096;

/// Reads on after the archive's end: only the stream's own end says that nothing is missing.
fn drain(rest: &mut impl Read) -> Result<()> {
    const PADDING: u64 = 1 << 20;
    let read = io::copy(&mut rest.take(PADDING), &mut io::sink()).map_err(|error| broken(&error))?;
    if read < PADDING { Ok(()) } else { Err(broken(&io::Error::other("it does not end"))) }
}

/// Why an entry was not made.
enum Trouble {
    /// It must not be made; the rest may.
    LeftOut(String),
    /// There is no point in going on.
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn broken(error: &io::Error) -> Error {
    Error::new(ErrorCode::Lost, format!("the archive from the sandbox is broken: {error}"))
        .hint("copy again; if it happens again, copy single files")
}

fn shown(name: &[u8]) -> String {
    escape(&String::from_utf8_lossy(name)).into_owned()
}

fn open_root(directory: &Path) -> rustix::io::Result<OwnedFd> {
    match fs::mkdir(directory, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The parts of a name that stays below the destination; `None` if it names the destination itself.
pub(crate) fn components(name: &[u8], strip: bool) -> Result<Option<Vec<&std::ffi::OsStr>>> {
    let hostile = |why: &str| {
        Error::new(
            ErrorCode::PermissionDenied,
            format!("the archive from the sandbox {why}: `{}`", shown(name)),
        )
        .hint("the sandbox tried to write outside the destination; nothing was written there")
    };
    if name.contains(&0) {
        return Err(hostile("holds a name with a NUL byte"));
    }
    if name.len() > FilePath::MAX {
        let message = format!("the archive from the sandbox holds a path of {} bytes", name.len());
        return Err(Error::new(ErrorCode::ResourceExhausted, message)
            .hint("this machine takes paths of up to 4095 bytes; copy a directory further down"));
    }
    let mut parts = Vec::new();
    for component in Path::new(std::ffi::OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            other if !Wall::ArchiveNames.stands() => parts.push(other.as_os_str()),
            Component::ParentDir => return Err(hostile("holds a name with `..`")),
            Component::RootDir | Component::Prefix(_) => return Err(hostile("holds an absolute name")),
        }
    }
    if strip && !parts.is_empty() {
        parts.remove(0);
    }
    Ok(Some(parts).filter(|parts| !parts.is_empty()))
}

fn place<R: Read>(
    root: &OwnedFd,
    entry: &mut tar::Entry<'_, R>,
    parts: &[&std::ffi::OsStr],
    strip: bool,
    limit: &mut Limit,
) -> std::result::Result<(), Trouble> {
    let Some((name, parents)) = parts.split_last() else { return Ok(()) };
    let kind = entry.header().entry_type();
    let permissions = if Wall::ArchiveModes.stands() { 0o777 } else { 0o7777 };
    let mode = Mode::from_raw_mode(entry.header().mode().unwrap_or(0o644) & permissions);
    let failed = |errno: Errno| {
        Trouble::from(args::unwritable(&parts.iter().collect::<std::path::PathBuf>(), &errno.into()))
    };
    match kind {
        EntryType::XGlobalHeader => return Ok(()),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {}
        EntryType::Directory | EntryType::Symlink | EntryType::Link => {}
        EntryType::Char | EntryType::Block => return Err(Trouble::LeftOut("a device".into())),
        EntryType::Fifo => return Err(Trouble::LeftOut("a pipe".into())),
        _ => return Err(Trouble::LeftOut("neither file, directory nor link".into())),
    }
    let parent = descend(root, parents, limit)?;
    match kind {
        EntryType::Directory => {
            enter(parent.as_fd(), name, mode | Mode::RWXU, limit)?;
        }
        EntryType::Symlink => {
            let target = link_target(entry)?;
            if Wall::ArchiveLinks.stands() && !stays_inside(&target, parents.len()) {
                return Err(Trouble::LeftOut(format!(
                    "a link that leaves the destination, to {}",
                    shown(&target)
                )));
            }
            clear(parent.as_fd(), name)?;
            fs::symlinkat(std::ffi::OsStr::from_bytes(&target), &parent, *name).map_err(failed)?;
        }
        EntryType::Link => {
            let target = link_target(entry)?;
            let leaves = || {
                Trouble::LeftOut(format!("a hard link that leaves the destination, to {}", shown(&target)))
            };
            let Ok(Some(target_parts)) = components(&target, strip) else { return Err(leaves()) };
            let Some((target_name, target_parents)) = target_parts.split_last() else { return Err(leaves()) };
            let target_parent = descend(root, target_parents, limit)?;
            let found = fs::statat(&target_parent, *target_name, AtFlags::SYMLINK_NOFOLLOW);
            let is_file = |stat: &fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            let Some(found) = found.ok().filter(is_file) else {
                return Err(Trouble::LeftOut(format!("a hard link to what is no file, {}", shown(&target))));
            };
            // Making room for a link to itself would remove the file.
            let here = fs::statat(&parent, *name, AtFlags::SYMLINK_NOFOLLOW);
            if here.is_ok_and(|here| (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)) {
                return Ok(());
            }
            clear(parent.as_fd(), name)?;
            fs::linkat(&target_parent, *target_name, &parent, *name, AtFlags::empty()).map_err(failed)?;
        }
        _ => {
            clear(parent.as_fd(), name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = fs::openat2(&parent, *name, flags, mode | Mode::WUSR, resolve()).map_err(failed)?;
            let file = File::from(file);
            // Made writable to be written; what it is to be in the end is set by descriptor, and no more open than
            // the caller's umask left it.
            let settled = file.try_clone().map_err(|_| failed(Errno::MFILE))?;
            let made = Mode::from_raw_mode(fs::fstat(&settled).map_err(failed)?.st_mode & permissions);
            fill(file, entry, limit).map_err(|trouble| match trouble {
                Filling::Limit(error) => error.into(),
                Filling::Reading(error) => broken(&error).into(),
                Filling::Writing(errno) => failed(errno),
            })?;
            fs::fchmod(&settled, mode & made).map_err(failed)?;
        }
    }
    Ok(())
}

fn link_target<R: Read>(entry: &tar::Entry<'_, R>) -> std::result::Result<Vec<u8>, Trouble> {
    let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
    if target.is_empty() || target.contains(&0) {
        return Err(Trouble::LeftOut("a link to nothing".into()));
    }
    Ok(target)
}

/// Whether a link in a directory this deep stays inside. `..` may only stand in front: after a name it would start
/// from wherever that name leads.
pub(crate) fn stays_inside(target: &[u8], depth: usize) -> bool {
    let mut climbed = 0;
    let mut named = false;
    for component in Path::new(std::ffi::OsStr::from_bytes(target)).components() {
        match component {
            Component::ParentDir if named => return false,
            Component::ParentDir => climbed += 1,
            Component::Normal(_) => named = true,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    climbed <= depth
}

/// Walks to a directory below the root, making what is missing.
fn descend(
    root: &OwnedFd,
    parts: &[&std::ffi::OsStr],
    limit: &mut Limit,
) -> std::result::Result<OwnedFd, Trouble> {
    let mut here = root.try_clone().map_err(|error| args::unwritable(Path::new("."), &error))?;
    for part in parts {
        here = enter(here.as_fd(), part, Mode::from_raw_mode(0o777), limit)?;
    }
    Ok(here)
}

/// Enters a directory, making it if it is missing; a link in its place is refused.
fn enter(
    parent: BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    mode: Mode,
    limit: &mut Limit,
) -> std::result::Result<OwnedFd, Trouble> {
    let failed = |errno: Errno| match errno {
        Errno::LOOP | Errno::NOTDIR | Errno::XDEV => {
            Trouble::LeftOut(format!("`{}` is in the way and is no directory", shown(name.as_bytes())))
        }
        errno => args::unwritable(Path::new(name), &errno.into()).into(),
    };
    match fs::mkdirat(parent, name, mode) {
        Ok(()) => limit.spend(DIRECTORY_COST)?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | no_follow();
    fs::openat2(parent, name, flags, Mode::empty(), resolve()).map_err(failed)
}

/// Removes a file or link that has the name of what is to come, never what it points to.
fn clear(parent: BorrowedFd<'_>, name: &std::ffi::OsStr) -> std::result::Result<(), Trouble> {
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => Err(Trouble::LeftOut("a directory of that name is in the way".into())),
        Err(errno) => Err(args::unwritable(Path::new(name), &errno.into()).into()),
    }
}

enum Filling {
    Limit(Error),
    Reading(io::Error),
    Writing(Errno),
}

fn fill<R: Read>(
    mut file: File,
    entry: &mut tar::Entry<'_, R>,
    limit: &mut Limit,
) -> std::result::Result<(), Filling> {
    let mut buffer = vec![0; 128 * 1024];
    let write_error = |error: &io::Error| Filling::Writing(Errno::from_io_error(error).unwrap_or(Errno::IO));
    loop {
        let count = match entry.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Filling::Reading(error)),
        };
        limit.spend(count as u64).map_err(Filling::Limit)?;
        file.write_all(&buffer[..count]).map_err(|error| write_error(&error))?;
    }
    let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
    if let Some(tv_sec) = seconds {
        let time = Timespec { tv_sec, tv_nsec: 0 };
        let _ = fs::futimens(&file, &Timestamps { last_access: time, last_modification: time });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        archive: tar::Builder<Vec<u8>>,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("canary"), "alive").unwrap();
            Self { dir, archive: tar::Builder::new(Vec::new()) }
        }

        fn target(&self) -> PathBuf {
            self.dir.path().join("out")
        }

        /// Writes a header by hand: the builder refuses hostile names.
        fn add(&mut self, kind: EntryType, name: &str, link: &str, content: &[u8], mode: u32) -> &mut Self {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_mtime(1_000_000_000);
            header.set_size(content.len() as u64);
            header.set_cksum();
            self.archive.append(&header, content).unwrap();
            self
        }

        fn file(&mut self, name: &str, content: &str) -> &mut Self {
            self.add(EntryType::Regular, name, "", content.as_bytes(), 0o644)
        }

        fn link(&mut self, name: &str, target: &str) -> &mut Self {
            self.add(EntryType::Symlink, name, target, b"", 0o777)
        }

        /// Unpacks, and checks that nothing happened outside the destination.
        fn unpack(&mut self, limit: u64) -> Result<LeftOut> {
            let bytes =
                std::mem::replace(&mut self.archive, tar::Builder::new(Vec::new())).into_inner().unwrap();
            let answer = unpack(&mut bytes.as_slice(), &self.target(), false, Limit::new(limit));
            assert_eq!(std::fs::read_to_string(self.dir.path().join("canary")).unwrap(), "alive");
            let mut outside: Vec<_> =
                std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            outside.sort();
            assert_eq!(outside, ["canary", "out"], "nothing new outside");
            assert_eq!(std::fs::metadata(self.dir.path().join("canary")).unwrap().nlink(), 1);
            answer
        }
    }

    const PLENTY: u64 = 1 << 30;

    #[test]
    fn honest_trees_arrive_whole() {
        let mut bench = Bench::new();
        bench.add(EntryType::Directory, "a/", "", b"", 0o755).file("a/b", "text").link("a/to-b", "b");
        bench.link("up", "a/b").add(EntryType::Link, "hard", "a/b", b"", 0o644);
        bench.add(EntryType::Regular, "a/tool", "", b"#!", 0o6755).link("a/above", "../up");
        assert_eq!(bench.unpack(PLENTY).unwrap(), LeftOut::default());
        let read = |name: &str| std::fs::read_to_string(bench.target().join(name)).unwrap();
        assert_eq!(
            (read("a/b"), read("a/to-b"), read("up"), read("hard")),
            ("text".into(), "text".into(), "text".into(), "text".into())
        );
        let tool = std::fs::metadata(bench.target().join("a/tool")).unwrap();
        assert_eq!(tool.permissions().mode() & 0o7100, 0o100, "executable, not set-user-id");
        assert_eq!(tool.mtime(), 1_000_000_000);
    }

    #[test]
    fn names_that_leave_end_everything() {
        for name in ["../canary", "a/../../canary", "/canary", "..", "a/.."] {
            let mut bench = Bench::new();
            let error = bench.file(name, "evil").unpack(PLENTY).unwrap_err();
            assert_eq!(error.code, ErrorCode::PermissionDenied, "{name}");
        }
    }

    #[test]
    fn links_that_leave_are_left_out() {
        for target in ["../canary", "/etc/passwd", "..", "a/../../canary", "a/..", "./../x"] {
            let mut bench = Bench::new();
            let left_out = bench.link("link", target).unpack(PLENTY).unwrap().first;
            assert_eq!(left_out.len(), 1, "{target}");
            assert!(std::fs::symlink_metadata(bench.target().join("link")).is_err());
        }
    }

    #[test]
    fn a_chain_of_links_cannot_climb_out() {
        let mut bench = Bench::new();
        bench.link("d/e/top", "../..").link("out", "d/e/top/../canary").file("out", "evil");
        let left_out = bench.unpack(PLENTY).unwrap().first;
        assert_eq!(left_out.len(), 1, "{left_out:?}");
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let mut bench = Bench::new();
        std::fs::create_dir(bench.target()).unwrap();
        std::os::unix::fs::symlink("..", bench.target().join("there")).unwrap();
        std::os::unix::fs::symlink("../canary", bench.target().join("file")).unwrap();
        bench.file("there/canary", "evil").file("file", "new").file("there/new", "evil");
        bench.add(EntryType::Directory, "there/", "", b"", 0o777);
        let left_out = bench.unpack(PLENTY).unwrap().first;
        assert_eq!(left_out.len(), 3, "{left_out:?}");
        assert_eq!(
            std::fs::read_to_string(bench.target().join("file")).unwrap(),
            "new",
            "a new file took its place"
        );

        let mut bench = Bench::new();
        bench.add(EntryType::Directory, "a/", "", b"", 0o755).link("b", "a").file("b/x", "through the link");
        assert_eq!(bench.unpack(PLENTY).unwrap().count, 1, "not even through one that stays inside");
    }

    #[test]
    fn hard_links_reach_only_files_of_the_destination() {
        for target in ["../canary", "/etc/passwd", "missing", "a"] {
            let mut bench = Bench::new();
            bench.add(EntryType::Directory, "a/", "", b"", 0o755).add(
                EntryType::Link,
                "hard",
                target,
                b"",
                0o644,
            );
            assert_eq!(bench.unpack(PLENTY).unwrap().count, 1, "{target}");
        }
        let mut bench = Bench::new();
        std::fs::create_dir(bench.target()).unwrap();
        std::os::unix::fs::symlink("../canary", bench.target().join("link")).unwrap();
        bench.add(EntryType::Link, "hard", "link", b"", 0o644).file("hard", "evil");
        assert_eq!(bench.unpack(PLENTY).unwrap().count, 1);
    }

    #[test]
    fn a_file_replaces_a_hard_link_instead_of_writing_through_it() {
        let mut bench = Bench::new();
        bench.file("a", "first").add(EntryType::Link, "b", "a", b"", 0o644).file("b", "second");
        assert!(bench.unpack(PLENTY).unwrap().count == 0);
        assert_eq!(std::fs::read_to_string(bench.target().join("a")).unwrap(), "first");
    }

    #[test]
    fn devices_and_pipes_are_left_out() {
        let mut bench = Bench::new();
        bench.add(EntryType::Char, "null", "", b"", 0o666).add(EntryType::Block, "disk", "", b"", 0o666);
        bench.add(EntryType::Fifo, "pipe", "", b"", 0o666).file("rest", "x");
        assert_eq!(bench.unpack(PLENTY).unwrap().count, 3);
        assert!(bench.target().join("rest").exists());
    }

    #[test]
    fn names_with_escapes_are_shown_harmless() {
        let mut bench = Bench::new();
        let left_out = bench.add(EntryType::Char, "\x1b[2J", "", b"", 0o666).unpack(PLENTY).unwrap().first;
        assert!(!left_out[0].contains('\x1b'), "{left_out:?}");
    }

    #[test]
    fn too_much_is_refused() {
        let mut bench = Bench::new();
        let error = bench.file("big", &"x".repeat(4096)).unpack(2048).unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
    }

    #[test]
    fn a_broken_archive_is_an_error() {
        let mut bytes: &[u8] = &[7; 700];
        let dir = tempfile::tempdir().unwrap();
        assert!(unpack(&mut bytes, &dir.path().join("out"), false, Limit::new(PLENTY)).is_err());
    }

    #[test]
    fn a_name_without_end_is_refused_before_it_fills_the_memory() {
        struct Counted<'a>(&'a Cell<u64>);
        impl Read for Counted<'_> {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                bytes.fill(b'a');
                self.0.set(self.0.get() + bytes.len() as u64);
                Ok(bytes.len())
            }
        }
        for kind in [b'L', b'K', b'x'] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(EntryType::new(kind));
            header.set_size(8 << 30);
            header.set_cksum();
            let read = Cell::new(0);
            let mut archive = header.as_bytes().as_slice().chain(Counted(&read));
            let dir = tempfile::tempdir().unwrap();
            let error = unpack(&mut archive, &dir.path().join("out"), false, Limit::new(PLENTY)).unwrap_err();
            assert!(error.message.contains("too long"), "{error}");
            assert!(read.get() <= MOST_BETWEEN, "{} bytes were read", read.get());
        }
    }

    #[test]
    fn what_is_left_out_counts_too_and_only_some_of_it_is_kept() {
        let mut bench = Bench::new();
        for _ in 0..100 {
            bench.add(EntryType::Char, "device", "", b"content of a device", 0o666);
        }
        let bytes = bench.archive.into_inner().unwrap();
        let target = bench.dir.path().join("out");
        let left_out = unpack(&mut bytes.as_slice(), &target, false, Limit::new(PLENTY)).unwrap();
        assert_eq!((left_out.count, left_out.first.len()), (100, NAMED));
        let error = unpack(&mut bytes.as_slice(), &target, false, Limit::new(90 * HEADER)).unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
    }

    #[test]
    fn directories_are_not_free() {
        let mut bench = Bench::new();
        let deep = "d/".repeat(20);
        let error = bench.add(EntryType::Directory, &deep, "", b"", 0o755).unpack(20 * 1024).unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
    }

    #[test]
    fn a_hard_link_to_itself_keeps_the_file() {
        let mut bench = Bench::new();
        bench.file("a", "text").add(EntryType::Link, "a", "a", b"", 0o644);
        assert_eq!(bench.unpack(PLENTY).unwrap(), LeftOut::default());
        assert_eq!(std::fs::read_to_string(bench.target().join("a")).unwrap(), "text");
    }
}
