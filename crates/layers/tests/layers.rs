//! Layers from archives, honest and hostile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use belljar_layers::{
    Bounds, Catalog, Digest, Offence, Record, Refused, Stack, Unpacked, digest, is_name, unpack,
};
use tar::{EntryType, Header};

/// An archive under construction.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn header(kind: EntryType, name: &[u8], size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.as_gnu_mut().unwrap().name[..name.len().min(100)]
            .copy_from_slice(&name[..name.len().min(100)]);
        header.set_cksum();
        header
    }

    fn raw(mut self, header: &Header, content: &[u8]) -> Self {
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn add(self, kind: EntryType, name: &str, content: &[u8]) -> Self {
        let header = Self::header(kind, name.as_bytes(), content.len() as u64);
        self.raw(&header, content)
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.add(EntryType::Regular, name, content.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        self.add(EntryType::Directory, name, b"")
    }

    fn link(self, kind: EntryType, name: &str, target: &str) -> Self {
        let mut header = Self::header(kind, name.as_bytes(), 0);
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.raw(&header, b"")
    }

    /// The next entry has this extension.
    fn extended(self, key: &str, value: &str) -> Self {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len();
        while (length.to_string() + &rest).len() != length {
            length = (length.to_string() + &rest).len();
        }
        let record = format!("{length}{rest}");
        self.add(EntryType::XHeader, "pax", record.as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn open(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

fn try_unpack(archive: &[u8], into: &Path, below: &[&Path]) -> Result<Unpacked, Refused> {
    let stack = Stack::new(below.iter().map(|path| open(path)).collect());
    unpack(archive, open(into), &stack, Bounds { bytes: 64 << 20, entries: 1000 })
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn honest_archives_arrive_whole() {
    let into = directory();
    let mut sparse = vec![0; 1 << 20];
    sparse[500_000] = 1;
    let mut owned = Archive::header(EntryType::Regular, b"usr/owned", 2);
    owned.set_uid(1000);
    owned.set_gid(70_000);
    owned.set_mode(0o4755);
    owned.set_cksum();
    let archive = Archive::default()
        .directory("./")
        .file("/etc/hosts", "localhost")
        .directory("usr/")
        .raw(&owned, b"ab")
        .add(EntryType::Regular, "sparse", &sparse)
        .link(EntryType::Symlink, "bin", "usr/bin")
        .file("bin/tool", "through a link")
        .link(EntryType::Link, "usr/same", "usr/owned")
        .extended("SCHILY.xattr.user.word", "value")
        .file("usr/marked", "")
        .end();
    let unpacked = try_unpack(&archive, into.path(), &[]).unwrap();
    assert_eq!(unpacked.content, Digest::of(&archive));
    let at = |name: &str| into.path().join(name);
    assert_eq!(fs::read(at("etc/hosts")).unwrap(), b"localhost");
    assert_eq!(fs::read(at("usr/bin/tool")).unwrap(), b"through a link");
    let owned = at("usr/owned").metadata().unwrap();
    assert_eq!(
        (owned.permissions().mode() & 0o7777, owned.nlink(), owned.mtime()),
        (0o4755, 2, 1_000_000_000)
    );
    if rustix::process::geteuid().is_root() {
        assert_eq!((owned.uid(), owned.gid()), (1000, 65_534), "ids that no sandbox has are nobody's");
    }
    assert_eq!(fs::read(at("sparse")).unwrap(), sparse);
    assert!(at("sparse").metadata().unwrap().blocks() * 512 < 64 << 10, "zeros take no room");
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(at("usr/marked"), "user.word", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"value");
    assert_eq!(at("usr").metadata().unwrap().mtime(), 1_000_000_000);
    // The same, packed, is the same.
    for packed in [gzip(&archive), zstd::encode_all(&archive[..], 3).unwrap()] {
        let again = directory();
        assert_eq!(try_unpack(&packed, again.path(), &[]).unwrap().content, unpacked.content);
        assert_eq!(digest(open(again.path())).unwrap(), digest(open(into.path())).unwrap());
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn layers_lie_over_each_other() {
    let [base, top] = [directory(), directory()];
    let lower = Archive::default()
        .directory("usr/lib")
        .link(EntryType::Symlink, "lib", "usr/lib")
        .link(EntryType::Symlink, "up", "/../../usr/lib")
        .file("etc/old", "1")
        .file("etc/kept", "2")
        .file("var/a", "3");
    let mut private = Archive::header(EntryType::Directory, b"private", 0);
    private.set_mode(0o700);
    private.set_cksum();
    try_unpack(&lower.raw(&private, b"").end(), base.path(), &[]).unwrap();
    let upper = Archive::default()
        .file("lib/new", "into usr/lib")
        .file("up/other", "into usr/lib too")
        .file("etc/.wh.old", "")
        .file("var/.wh..wh..opq", "")
        .file("private/x", "y")
        .end();
    // A mark has no content.
    try_unpack(&upper, top.path(), &[base.path()]).unwrap();
    let at = |name: &str| top.path().join(name);
    assert_eq!(fs::read(at("usr/lib/new")).unwrap(), b"into usr/lib");
    assert_eq!(fs::read(at("usr/lib/other")).unwrap(), b"into usr/lib too");
    assert!(!at("lib").exists() && !at("up").exists(), "links of the layer below stay what they are");
    let mark = at("etc/old").symlink_metadata().unwrap();
    assert!(mark.file_type().is_char_device() && mark.rdev() == 0);
    assert_eq!(at("private").metadata().unwrap().permissions().mode() & 0o777, 0o700, "as it is below");
    let mut value = [0; 4];
    assert_eq!(rustix::fs::getxattr(at("var"), "user.overlay.opaque", &mut value[..]), Ok(1));
}

#[test]
fn hostile_archives_are_refused_by_name() {
    use EntryType::{Block, Char, Fifo, Link, Regular, Symlink};
    let empty = Archive::default;
    let mut cut = empty().file("a", &"x".repeat(2000)).0;
    cut.truncate(1500);
    let lie = Archive::header(Regular, b"a", 1 << 40);
    let long = Archive::header(EntryType::GNULongName, b"././@LongLink", 8 << 20);
    for (offence, archive) in [
        (Offence::Traversal, empty().file("../a", "").end()),
        (Offence::Traversal, empty().file("a/../../b", "").end()),
        (Offence::Name, empty().extended("path", &"a/".repeat(3000)).file("x", "").end()),
        (Offence::Name, empty().extended("path", &"a".repeat(300)).file("x", "").end()),
        (Offence::Device, empty().add(Char, "null", b"").end()),
        (Offence::Device, empty().add(Block, "disk", b"").end()),
        (Offence::Special, empty().add(Fifo, "pipe", b"").end()),
        (Offence::Duplicate, empty().file("a", "1").file("a", "2").end()),
        (Offence::Duplicate, empty().file("a", "1").file("./a", "2").end()),
        (Offence::Duplicate, empty().file("a", "1").directory("a").end()),
        (Offence::Duplicate, empty().directory("a").link(Symlink, "a", "b").end()),
        (Offence::Duplicate, empty().file("a", "1").file(".wh.a", "").end()),
        (Offence::BelowFile, empty().file("a", "1").file("a/b", "2").end()),
        (Offence::HardLink, empty().link(Link, "a", "/etc/passwd").end()),
        (Offence::HardLink, empty().link(Link, "a", "../../etc/passwd").end()),
        (Offence::HardLink, empty().directory("d").link(Link, "a", "d").end()),
        (Offence::HardLink, empty().link(Symlink, "s", "/etc/passwd").link(Link, "a", "s").end()),
        (Offence::SymbolicLink, empty().link(Symlink, "a", "").end()),
        (
            Offence::SymbolicLink,
            empty().link(Symlink, "a", "b").link(Symlink, "b", "a").file("a/x", "").end(),
        ),
        (Offence::Whiteout, empty().file(".wh.", "").end()),
        (Offence::Whiteout, empty().file(".wh...", "").end()),
        (Offence::Whiteout, empty().file("d/.wh..wh.x", "").end()),
        (
            Offence::OverlayAttribute,
            empty().extended("SCHILY.xattr.user.overlay.opaque", "y").directory("d").end(),
        ),
        (
            Offence::OverlayAttribute,
            empty().extended("SCHILY.xattr.trusted.overlay.redirect", "/").file("f", "").end(),
        ),
        (Offence::Attribute, empty().extended("SCHILY.xattr.trusted.x", "y").file("f", "").end()),
        (Offence::SizeLie, cut),
        (Offence::SizeLie, empty().add(Symlink, "a", b"content").end()),
        (Offence::SizeLie, empty().raw(&lie, b"short").0),
        (Offence::Bomb, gzip(&empty().add(Regular, "zeros", &vec![0; 65 << 20]).end())),
        (Offence::TooMany, (0..1001).fold(empty(), |archive, n| archive.file(&n.to_string(), "")).end()),
        (Offence::Broken, empty().raw(&long, &vec![b'a'; 8 << 20]).file("x", "").end()),
        (Offence::Broken, b"this is no archive, and long enough to be read as if it were one".repeat(20)),
    ] {
        let [outside, _] = [directory(), directory()];
        let into = outside.path().join("in");
        fs::create_dir(&into).unwrap();
        let refused =
            try_unpack(&archive, &into, &[]).map_err(|refused| (refused.is_offence(), refused.to_string()));
        let (found, said) = refused.expect_err(offence.as_str());
        assert_eq!(found, Some(offence), "{said}");
        assert!(said.starts_with(offence.as_str()), "{said}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "nothing outside: {said}");
    }
}

#[test]
fn links_do_not_lead_out() {
    let outside = directory();
    let into = outside.path().join("in");
    fs::create_dir(&into).unwrap();
    let archive = Archive::default()
        .link(EntryType::Symlink, "up", "../..")
        .file("up/a", "1")
        .link(EntryType::Symlink, "root", "/")
        .file("root/b", "2")
        .link(EntryType::Symlink, "here", outside.path().to_str().unwrap())
        .file("here/c", "3")
        .end();
    try_unpack(&archive, &into, &[]).unwrap();
    assert_eq!(fs::read(into.join("a")).unwrap(), b"1");
    assert_eq!(fs::read(into.join("b")).unwrap(), b"2");
    let inside = into.join(outside.path().strip_prefix("/").unwrap()).join("c");
    assert_eq!(fs::read(inside).unwrap(), b"3", "where it would be inside");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn everything_that_is_seen_counts() {
    let of = |archive: Archive| {
        let into = directory();
        try_unpack(&archive.end(), into.path(), &[]).unwrap();
        digest(open(into.path())).unwrap()
    };
    let base = || Archive::default().file("a", "1").file("b", "1");
    let linked = Archive::default().file("a", "1").link(EntryType::Link, "b", "a");
    let mut mode = Archive::header(EntryType::Regular, b"b", 1);
    mode.set_mode(0o600);
    mode.set_cksum();
    let mut times = Archive::header(EntryType::Regular, b"b", 1);
    times.set_mtime(5);
    times.set_cksum();
    let same = of(base());
    assert_eq!(of(Archive::default().file("b", "1").file("a", "1")), same, "whatever the order");
    assert_eq!(of(Archive::default().file("a", "1").raw(&times, b"1")), same, "whenever");
    for (what, other) in [
        ("content", Archive::default().file("a", "1").file("b", "2")),
        ("name", Archive::default().file("a", "1").file("c", "1")),
        ("mode", Archive::default().file("a", "1").raw(&mode, b"1")),
        ("one file", linked),
        ("a mark", base().file(".wh.c", "")),
        ("attribute", Archive::default().file("a", "1").extended("SCHILY.xattr.user.x", "y").file("b", "1")),
        ("link", base().link(EntryType::Symlink, "c", "a")),
    ] {
        assert_ne!(of(other), same, "{what}");
    }
}

#[test]
fn a_store_keeps_what_is_wanted() {
    let home = directory();
    let catalog = Catalog::open(home.path()).unwrap();
    let store = catalog.store();
    let add = |word: &str| {
        let held = store.hold().unwrap();
        let archive = Archive::default().file("word", word).end();
        let fill = |_: &Path, tree| {
            let unpacked = unpack(&archive[..], tree, &Stack::default(), Bounds::default())?;
            Ok(((), Some(unpacked.content), unpacked.bytes))
        };
        store.add(&held, fill).unwrap().0
    };
    let (one, two) = (add("one"), add("two"));
    assert_eq!(add("one"), one, "the same is there once");
    assert_eq!(store.list().unwrap().len(), 2);
    assert_eq!(fs::read(store.tree(&one.digest).join("word")).unwrap(), b"one");
    assert!(store.verify(&one.digest).unwrap());
    fs::write(store.tree(&two.digest).join("word"), "2wo").unwrap();
    assert!(!store.verify(&two.digest).unwrap());
    // One that fails leaves nothing, and what others left half done goes with what nobody wants.
    let failed = store.add(&store.hold().unwrap(), |_, _| {
        Err::<((), _, _), _>(Refused::Io { what: "no".into(), source: io::ErrorKind::Other.into() })
    });
    assert!(failed.is_err());
    fs::create_dir_all(home.path().join("store/new-left/tree")).unwrap();
    fs::create_dir_all(home.path().join("store/gone-left/tree")).unwrap();
    let record = Record::host().with(one.clone());
    let unused = Duration::from_secs(60);
    catalog.name(&store.hold().unwrap(), "one", &record, "here").unwrap();
    assert_eq!(catalog.collect(|| Ok(Vec::new()), unused).unwrap().layers, [two]);
    let left: Vec<_> =
        fs::read_dir(home.path().join("store")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "the layer and the lock: {left:?}");
    assert!(store.get(&one.digest).unwrap().is_some());
    assert_eq!(catalog.find("one").unwrap(), Some(record.clone()));
    assert_eq!(catalog.find(&record.digest().to_string()).unwrap(), Some(record.clone()));
    // What was found out is kept as long as it was asked for lately, and its layers with it.
    let key = Digest::of(b"a step");
    catalog.remember(&store.hold().unwrap(), &key, &record, "a step").unwrap();
    assert!(catalog.forget("one").unwrap() && !catalog.forget("one").unwrap());
    assert!(catalog.collect(|| Ok(Vec::new()), unused).unwrap().layers.is_empty());
    assert_eq!(catalog.recall(&key).unwrap(), Some(record.clone()));
    assert!(
        catalog.collect(|| Ok(vec![record.clone()]), Duration::ZERO).unwrap().layers.is_empty(),
        "it is in use"
    );
    assert_eq!(catalog.recall(&key).unwrap(), None);
    assert_eq!(catalog.collect(|| Ok(Vec::new()), Duration::ZERO).unwrap().layers, [one]);
    assert_eq!(catalog.find(&record.digest().to_string()).unwrap(), None);
}

#[test]
fn names_are_names() {
    for good in ["data", "library/python:3.12-slim", "a.b_c", "x1", "registry.example/a/b:c"] {
        assert!(is_name(good), "{good}");
    }
    let long = "a".repeat(129);
    for bad in [
        "",
        ".",
        "..",
        "a/../b",
        "/a",
        "a/",
        "A",
        "a b",
        "a+b",
        "a@b",
        "a\0b",
        "sha256:aa",
        "-a",
        "a//b",
        &long,
    ] {
        assert!(!is_name(bad), "{bad}");
    }
}
