//! What is different between two stacks of layers, without looking at what they share.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::stack::{DEEPEST, Kind, Stack, is_opaque_at, names_in, open_beneath};
use crate::store::{Layer, Store};

/// How a file is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is only in the second.
    Added,
    /// It is only in the first.
    Removed,
    /// It is in both, and another.
    Modified,
}

/// A file that is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Where, without the first slash.
    pub path: PathBuf,
    /// How.
    pub change: Change,
}

/// What is different between two stacks, each the lowest first, that lie on this directory, if they do on any. A directory that is only in one of them stands for all that is in it, and one
/// whose files alone are different is not named.
pub fn changes(
    store: &Store,
    first: &[Layer],
    second: &[Layer],
    ground: Option<&Path>,
) -> io::Result<Vec<Changed>> {
    let shared = first.iter().zip(second).take_while(|(one, other)| one.digest == other.digest).count();
    let open = |layer: &Layer| std::fs::File::open(store.tree(&layer.digest)).map(OwnedFd::from);
    let stack = |layers: &[Layer]| -> io::Result<Stack> {
        let ground = ground.map(|ground| std::fs::File::open(ground).map(OwnedFd::from));
        Ok(Stack::new(layers.iter().rev().map(open).chain(ground).collect::<io::Result<_>>()?))
    };
    let below = stack(&first[..shared])?;
    let mut places = BTreeSet::new();
    for layer in first[shared..].iter().chain(&second[shared..]) {
        collect(&open(layer)?, Path::new(""), &below, &mut places)?;
    }
    let (first, second) = (stack(first)?, stack(second)?);
    let mut changed: Vec<Changed> = Vec::new();
    for path in places {
        let is_told = changed
            .last()
            .is_some_and(|last| last.change != Change::Modified && path.starts_with(&last.path));
        if is_told {
            continue;
        }
        if let Some(change) = compare(&first, &second, &path)? {
            changed.push(Changed { path, change });
        }
    }
    Ok(changed)
}

/// Every place that a layer says something of.
fn collect(root: &OwnedFd, place: &Path, below: &Stack, places: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    if place.components().count() > DEEPEST {
        return Ok(());
    }
    if is_opaque_at(root, place)? {
        // All that lies below is hidden.
        places.extend(below.list(place)?.unwrap_or_default().into_iter().map(|listed| listed.path));
    }
    let Ok(directory) = open_beneath(root, place) else { return Ok(()) };
    for name in names_in(&directory)? {
        let inner = place.join(name);
        collect(root, &inner, below, places)?;
        places.insert(inner);
    }
    Ok(())
}

fn compare(first: &Stack, second: &Stack, path: &Path) -> io::Result<Option<Change>> {
    Ok(match (first.stat(path)?, second.stat(path)?) {
        (None, None) => None,
        (None, Some(_)) => Some(Change::Added),
        (Some(_), None) => Some(Change::Removed),
        (Some(one), Some(other)) if one != other => Some(Change::Modified),
        (Some(one), Some(_)) if one.kind == Kind::File => {
            let same = match (first.open(path)?, second.open(path)?) {
                (Some(one), Some(other)) => same_content(one, other)?,
                _ => false,
            };
            (!same).then_some(Change::Modified)
        }
        _ => None,
    })
}

fn same_content(mut one: impl Read, mut other: impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let count = one.read(&mut left)?;
        if count == 0 {
            return Ok(other.read(&mut right[..1])? == 0);
        }
        match other.read_exact(&mut right[..count]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}
