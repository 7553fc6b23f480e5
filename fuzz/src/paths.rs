//! Names and paths: of archives in both directions, of requests, and the sides of `cp`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use belljar_cli::fuzzing;
use belljar_core::{FilePath, SandboxId};

use crate::guest_protocol;
use crate::script::Script;

/// Holds every reader of paths against the same bytes.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let depth = script.below(6);
    let name = script.rest();
    names(name);
    link(name, depth);
    let Ok(text) = std::str::from_utf8(name) else { return };
    if let Ok(path) = text.parse::<FilePath>() {
        guest_protocol::path(&path);
        assert_eq!(path.as_str(), text, "a path is taken as it is");
        let place = belljar_guest::fuzzing::place("/home/user", &path);
        assert!(place.is_absolute() && !place.as_os_str().as_bytes().contains(&0));
        assert_eq!(text.starts_with('/'), place == Path::new(text), "only relative ones start at home");
    }
    if let Ok(id) = text.parse::<SandboxId>() {
        let mut parts = Path::new(id.as_str()).components();
        assert!(
            matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none(),
            "one plain name"
        );
        assert_eq!(id.as_str(), text);
    }
    match fuzzing::side_of_copy(text) {
        Ok(Some((id, path))) => {
            assert!(text.starts_with(id.as_str()));
            guest_protocol::path(&path);
        }
        Ok(None) => assert!(!text.is_empty() && !text.contains('\0')),
        Err(error) => assert!(error.hint.is_some(), "no next step: {error:?}"),
    }
}

/// Names in archives: what is taken stays below where it starts, and both readers agree on what leaves.
fn names(name: &[u8]) {
    let outside = Path::new(OsStr::from_bytes(name))
        .components()
        .any(|part| matches!(part, Component::ParentDir | Component::RootDir | Component::Prefix(_)));
    let into = belljar_guest::fuzzing::inside(name);
    assert_eq!(into.is_err(), outside, "{name:?}");
    if let Ok(path) = &into {
        plain(path);
    }
    for strip in [false, true] {
        let Ok(out) = fuzzing::components(name, strip) else {
            assert!(
                outside || name.contains(&0) || name.len() > FilePath::MAX,
                "refused without a reason: {name:?}"
            );
            continue;
        };
        assert!(!outside && !name.contains(&0) && name.len() <= FilePath::MAX);
        let parts: PathBuf = out.iter().map(|part| OsStr::from_bytes(part)).collect();
        plain(&parts);
        let whole = into.clone().unwrap();
        let expected: PathBuf = whole.components().skip(usize::from(strip)).collect();
        assert_eq!(parts, expected, "both directions read a name the same");
    }
}

fn plain(path: &Path) {
    for part in path.components() {
        let Component::Normal(part) = part else { panic!("{path:?} is not plain") };
        assert!(!part.is_empty() && part != ".." && part != "." && !part.as_bytes().contains(&b'/'));
    }
}

/// A link that may be made leads to somewhere inside, whatever the names in it are: the worst they can be is links to
/// the top.
fn link(target: &[u8], depth: usize) {
    if !fuzzing::stays_inside(target, depth) {
        return;
    }
    let path = Path::new(OsStr::from_bytes(target));
    assert!(path.is_relative());
    for named_is_top in [false, true] {
        let mut level = depth as i64;
        for part in path.components() {
            match part {
                Component::ParentDir => level -= 1,
                Component::Normal(_) if named_is_top => level = 0,
                Component::Normal(_) => level += 1,
                _ => {}
            }
            assert!(level >= 0, "{path:?} leaves from depth {depth}");
        }
    }
}
