//! File operations, as the outside sees them.

#![allow(clippy::unwrap_used, reason = "a test that fails has to fail loudly")]

mod harness;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use belljar_core::wire::{Event, FileOperation, FileRequest, Request};
use belljar_core::{Entry, ErrorCode, FileKind, UserName, WatchEvent, WatchKind};
use harness::{Guest, Outcome, path};
use tar::{Builder, EntryType, Header};

fn entries(outcome: &Outcome) -> Vec<Entry> {
    let lists = outcome.events.iter().filter_map(|event| match event {
        Event::Entries(entries) => Some(entries.clone()),
        _ => None,
    });
    lists.flatten().collect()
}

fn binary(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

#[test]
fn a_file_comes_back_as_it_went_in() {
    let mut guest = Guest::start();
    let content = binary(3 << 20);
    let place = path("new/directories/data.bin");
    let written = guest.file_with(FileOperation::Write { path: place.clone(), mode: 0o640 }, &content);
    assert_eq!(written.events, [Event::Done], "{written:?}");
    let made = guest.home.path().join("new/directories/data.bin");
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o7777, 0o640);
    assert!(guest.file(FileOperation::Read { path: place.clone() }).output == content);

    guest.file_with(FileOperation::Write { path: place.clone(), mode: 0o600 }, b"short");
    assert_eq!(guest.file(FileOperation::Read { path: place }).text(), "short", "the old content is cut off");
    assert_eq!(
        guest.file_with(FileOperation::Write { path: path("empty"), mode: 0o644 }, b"").events,
        [Event::Done]
    );
    assert_eq!(guest.file(FileOperation::Read { path: path("empty") }).output, b"");
}

#[test]
fn a_full_disk_is_named() {
    let mut guest = Guest::start();
    let full = guest.file_with(FileOperation::Write { path: path("/dev/full"), mode: 0o644 }, b"x");
    assert_eq!(full.failure().code, ErrorCode::InvalidArgument, "a device is refused before it is written");
}

#[test]
fn only_regular_files_are_read_and_written() {
    let mut guest = Guest::start();
    let fifo = guest.home.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (name, word) in
        [("/dev/zero", "device"), ("fifo", "pipe"), (".", "directory"), ("missing", "no such")]
    {
        let failure = guest.file(FileOperation::Read { path: path(name) });
        assert!(failure.failure().message.contains(word), "{failure:?}");
        assert!(failure.failure().message.starts_with(&format!("`{name}`: ")), "{failure:?}");
    }
    for name in ["/dev/zero", "fifo", "."] {
        let failure = guest.file_with(FileOperation::Write { path: path(name), mode: 0o644 }, b"x");
        assert_eq!(failure.failure().code, ErrorCode::InvalidArgument, "{failure:?}");
    }
    let status = guest.file(FileOperation::Read { path: path("/proc/self/status") });
    assert!(status.text().contains("Name:"), "a file of /proc has content though its size is 0");
}

#[test]
fn a_listing_is_sorted_bounded_in_depth_and_follows_no_link() {
    let mut guest = Guest::start();
    let home = guest.home.path();
    std::fs::create_dir_all(home.join("top/b/c/d")).unwrap();
    std::fs::write(home.join("top/a"), "four").unwrap();
    symlink("/etc", home.join("top/link")).unwrap();
    let list = |guest: &mut Guest, depth| {
        let found = entries(&guest.file(FileOperation::List { path: path("top"), depth }));
        found.into_iter().map(|entry| entry.path).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut guest, 1), ["top/a", "top/b", "top/link"]);
    assert_eq!(list(&mut guest, 2), ["top/a", "top/b", "top/b/c", "top/link"]);
    assert_eq!(list(&mut guest, 99), ["top/a", "top/b", "top/b/c", "top/b/c/d", "top/link"]);

    let found = entries(&guest.file(FileOperation::Stat { path: path("top/link") }));
    assert_eq!((found[0].kind, found[0].target.as_deref()), (FileKind::Symlink, Some("/etc")));
    let found = entries(&guest.file(FileOperation::Stat { path: path("top/a") }));
    assert_eq!((found[0].size, found[0].name.as_str(), found[0].path.as_str()), (4, "a", "top/a"));
    let failure = guest.file(FileOperation::List { path: path("top/a"), depth: 1 });
    assert_eq!(failure.failure().code, ErrorCode::InvalidArgument);
}

#[test]
fn a_long_listing_comes_in_pieces() {
    let mut guest = Guest::start();
    let many = guest.home.path().join("many");
    std::fs::create_dir(&many).unwrap();
    (0..1000).for_each(|number| std::fs::write(many.join(format!("{number:04}")), "").unwrap());
    let outcome = guest.file(FileOperation::List { path: path("many"), depth: 1 });
    assert_eq!(entries(&outcome).len(), 1000);
    assert!(outcome.events.iter().all(|event| !matches!(event, Event::Entries(list) if list.len() > 256)));
    assert_eq!(outcome.events.last(), Some(&Event::Done));
}

#[test]
fn directories_are_made_and_things_renamed() {
    let mut guest = Guest::start();
    let make = |guest: &mut Guest, name| guest.file(FileOperation::MakeDir { path: path(name) });
    assert_eq!(make(&mut guest, "a/b/c").events, [Event::Made { new: true }]);
    assert_eq!(make(&mut guest, "a/b/c").events, [Event::Made { new: false }]);
    std::fs::write(guest.home.path().join("file"), "").unwrap();
    assert_eq!(make(&mut guest, "file").failure().code, ErrorCode::AlreadyExists);

    let rename =
        |guest: &mut Guest, from, to| guest.file(FileOperation::Rename { from: path(from), to: path(to) });
    assert_eq!(rename(&mut guest, "file", "a/b/moved").events, [Event::Done]);
    assert!(guest.home.path().join("a/b/moved").exists());
    let failure = rename(&mut guest, "gone", "elsewhere");
    assert_eq!(
        (failure.failure().code, failure.failure().message.contains("`gone`")),
        (ErrorCode::NotFound, true)
    );
}

/// Makes a tree deeper than a path can be long, so step by step.
fn make_deep(top: &std::path::Path, depth: usize) {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    std::fs::create_dir(top).unwrap();
    let mut current = std::os::fd::OwnedFd::from(std::fs::File::open(top).unwrap());
    for _ in 0..depth {
        mkdirat(&current, "ddd", Mode::RWXU).unwrap();
        openat(&current, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        current = openat(&current, "ddd", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    }
}

#[test]
fn a_deep_tree_is_removed_and_what_links_point_to_is_not() {
    let mut guest = Guest::start();
    let home = guest.home.path().to_owned();
    make_deep(&home.join("deep"), 2000);
    std::fs::create_dir(home.join("kept")).unwrap();
    std::fs::write(home.join("kept/file"), "").unwrap();
    symlink(home.join("kept"), home.join("deep/link")).unwrap();
    symlink(home.join("kept"), home.join("link")).unwrap();

    for name in ["deep", "link"] {
        let removed = guest.file(FileOperation::Remove { path: path(name) });
        assert_eq!(removed.events, [Event::Done], "{removed:?}");
        assert!(!home.join(name).exists() && home.join("kept/file").exists());
    }
    assert_eq!(guest.file(FileOperation::Remove { path: path("deep") }).failure().code, ErrorCode::NotFound);
    for name in ["/", "..", "/.."] {
        let refused = guest.file(FileOperation::Remove { path: path(name) });
        assert_eq!(refused.failure().code, ErrorCode::InvalidArgument);
    }
}

#[test]
fn a_tree_survives_the_way_through_an_archive() {
    let mut guest = Guest::start();
    let home = guest.home.path().to_owned();
    let long = "long".repeat(50);
    std::fs::create_dir_all(home.join("tree/sub").join(&long)).unwrap();
    std::fs::write(home.join("tree/data"), binary(200_000)).unwrap();
    std::fs::write(home.join("tree/sub").join(&long).join(&long), "deep").unwrap();
    std::fs::set_permissions(home.join("tree/data"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    symlink("../elsewhere", home.join("tree/link")).unwrap();
    assert!(Command::new("mkfifo").arg(home.join("tree/fifo")).status().unwrap().success());
    std::fs::create_dir(home.join("tree/closed")).unwrap();
    std::fs::write(home.join("tree/closed/inside"), "in").unwrap();
    std::fs::set_permissions(home.join("tree/closed"), std::fs::Permissions::from_mode(0o555)).unwrap();

    let packed = guest.file(FileOperation::Pack { path: path("tree") });
    assert_eq!(packed.events, [Event::Done]);
    let unpacked = guest.file_with(FileOperation::Unpack { path: path("copy/here") }, &packed.output);
    assert_eq!(unpacked.events, [Event::Done], "{unpacked:?}");
    let copy = home.join("copy/here/tree");
    assert_eq!(std::fs::read(copy.join("data")).unwrap(), binary(200_000));
    assert_eq!(
        copy.join("data").metadata().unwrap().permissions().mode() & 0o7777,
        0o751,
        "no set-user-id bit"
    );
    assert_eq!(std::fs::read(copy.join("sub").join(&long).join(&long)).unwrap(), b"deep");
    assert_eq!(std::fs::read_link(copy.join("link")).unwrap().to_str(), Some("../elsewhere"));
    assert_eq!(std::fs::read(copy.join("closed/inside")).unwrap(), b"in");
    assert_eq!(copy.join("closed").metadata().unwrap().permissions().mode() & 0o777, 0o555);
    assert!(!copy.join("fifo").exists());

    let one = guest.file(FileOperation::Pack { path: path("tree/data") });
    let mut archive = tar::Archive::new(one.output.as_slice());
    let names: Vec<_> =
        archive.entries().unwrap().map(|it| it.unwrap().path().unwrap().into_owned()).collect();
    assert_eq!(names, [std::path::Path::new("data")]);
}

/// An entry whose name is written as it is, past the checks of the crate.
fn raw_entry(archive: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    archive.append(&header, content).unwrap();
}

#[test]
fn hostile_archives_are_refused_by_name_of_the_offence() {
    let mut guest = Guest::start();
    let home = guest.home.path().to_owned();
    std::fs::create_dir(home.join("outside")).unwrap();
    std::fs::write(home.join("outside/secret"), "untouched").unwrap();
    let outside = home.join("outside").to_str().unwrap().to_owned();
    let absolute = format!("{outside}/x");
    let secret = format!("{outside}/secret");
    type Item<'a> = (EntryType, &'a str, &'a str);
    let (file, link, hard) = (EntryType::Regular, EntryType::Symlink, EntryType::Link);
    let cases: [(&[Item], &str, &str); 11] = [
        (&[(file, "../outside/x", "")], "../outside/x", "`..`"),
        (&[(file, "a/../../outside/x", "")], "a/../../outside/x", "`..`"),
        (&[(file, &absolute, "")], &absolute, "absolute"),
        (&[(link, "l", &outside), (file, "l/x", "")], "l/x", "symbolic link"),
        (&[(link, "l", "../outside"), (EntryType::Directory, "l/", "")], "l/", "symbolic link"),
        (&[(link, "l", &secret), (file, "l", "")], "l", "symbolic link"),
        (&[(link, "l", &outside), (hard, "h", "l/secret")], "h", "symbolic link"),
        (&[(hard, "h", "../outside/secret")], "h", "leads out"),
        (&[(link, "l", &secret), (hard, "h", "l")], "h", "not a regular file"),
        (&[(EntryType::Block, "d", "")], "d", "device"),
        (&[(EntryType::Fifo, "p", "")], "p", "pipe"),
    ];
    for (number, (items, name, offence)) in cases.into_iter().enumerate() {
        let mut archive = Builder::new(Vec::new());
        for (kind, name, link) in items {
            let content: &[u8] = if *kind == file { b"hostile" } else { b"" };
            raw_entry(&mut archive, *kind, name, link, content);
        }
        let place = path(&format!("target{number}"));
        let bytes = archive.into_inner().unwrap();
        let refused = guest.file_with(FileOperation::Unpack { path: place }, &bytes);
        let error = refused.failure();
        assert_eq!(error.code, ErrorCode::InvalidArgument, "{name}: {error:?}");
        assert!(
            error.message.starts_with(&format!("`{name}`: ")) && error.message.contains(offence),
            "{error:?}"
        );
        let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["secret"], "{name}");
        assert_eq!(std::fs::read(&secret).unwrap(), b"untouched", "{name}");
    }
    // The control: the same entries without the offence are unpacked.
    let mut archive = Builder::new(Vec::new());
    raw_entry(&mut archive, file, "a/x", "", b"good");
    raw_entry(&mut archive, hard, "h", "a/x", b"");
    let bytes = archive.into_inner().unwrap();
    assert_eq!(guest.file_with(FileOperation::Unpack { path: path("good") }, &bytes).events, [Event::Done]);
    assert_eq!(std::fs::read(home.join("good/h")).unwrap(), b"good");
    let garbage = guest.file_with(FileOperation::Unpack { path: path("bad") }, &[0x41; 2048]);
    assert_eq!(garbage.failure().code, ErrorCode::InvalidArgument);
}

#[test]
fn an_archive_that_wants_all_memory_gets_none() {
    let mut guest = Guest::start();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(100 << 20, b'a');
    let refused = guest.file_with(FileOperation::Unpack { path: path("x") }, &bytes);
    refused.failure();
    assert_eq!(guest.run(harness::argv(&["true"])).exit().code, Some(0), "the guest goes on");
}

#[test]
fn a_watch_tells_what_changes() {
    let mut guest = Guest::start();
    let home = guest.home.path().to_owned();
    std::fs::create_dir(home.join("watched")).unwrap();
    let operation = FileOperation::Watch { path: path("watched") };
    let id = guest.begin(&Request::File(FileRequest { user: UserName::User, operation }));
    assert_eq!(guest.event(id), Event::Done);
    std::fs::write(home.join("watched/new"), "x").unwrap();
    std::fs::remove_file(home.join("watched/new")).unwrap();
    let change = |kind| WatchEvent { kind, path: "new".to_owned() };
    let expected = [WatchKind::Created, WatchKind::Written, WatchKind::Removed].map(change);
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let Event::Changed(changes) = guest.event(id) else { panic!("not a change") };
        seen.extend(changes);
    }
    assert_eq!(seen, expected);
    guest.send(id, &Request::Kill);
    let Event::Failed(error) = guest.event(id) else { panic!("goes on") };
    assert_eq!(error.code, ErrorCode::Lost);

    let operation = FileOperation::Watch { path: path("watched") };
    let id = guest.begin(&Request::File(FileRequest { user: UserName::User, operation }));
    assert_eq!(guest.event(id), Event::Done);
    std::fs::remove_dir(home.join("watched")).unwrap();
    assert!(matches!(guest.event(id), Event::Changed(_)));
    let Event::Failed(error) = guest.event(id) else { panic!("goes on") };
    assert_eq!(error.code, ErrorCode::NotFound);
}
