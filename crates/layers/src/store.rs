//! Where layers are kept: each in a directory of the name of its digest, whole or not at all.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};

use crate::catalog::locked;
use crate::digest::{Digest, digest};
use crate::offence::{Offence, Refused};
use crate::unpack::{Bounds, Unpacked, Unpacker};

/// How directories are named in which layers are made, and those that are on their way out.
const NEW: &str = "new-";
const GONE: &str = "gone-";
const TREE: &str = "tree";
const LABEL: &str = "layer.json";
const LOCK: &str = "lock";

/// A layer that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// What it is.
    pub digest: Digest,
    /// The digest of the archive that it came in, unpacked, if it came in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
    /// How many bytes its files have.
    pub bytes: u64,
}

/// The place where they are.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
}

/// An archive that is to become a layer.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The archive.
    pub archive: File,
    /// The digest that it must have, unpacked, if that is known.
    pub expected: Option<Digest>,
    /// The layers that it lies over, the lowest first.
    pub below: &'a [Layer],
    /// A directory that these lie on, if they do on any.
    pub ground: Option<&'a Path>,
}

/// As long as this lives nothing is collected.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "it is locked")] File);

/// As long as this lives nobody holds anything.
#[derive(Debug)]
pub(crate) struct Alone(#[expect(dead_code, reason = "it is locked")] File);

impl Store {
    /// Opens a store, making it where it is missing.
    pub fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Keeps everything from being collected, until somebody refers to it.
    pub fn hold(&self) -> io::Result<Held> {
        locked(&self.directory.join(LOCK), FlockOperation::LockShared).map(Held)
    }

    /// Waits until nothing is held, and lets nobody hold anything.
    pub(crate) fn alone(&self) -> io::Result<Alone> {
        locked(&self.directory.join(LOCK), FlockOperation::LockExclusive).map(Alone)
    }

    fn place(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.hex())
    }

    /// The directory of a layer's files.
    pub fn tree(&self, digest: &Digest) -> PathBuf {
        self.place(digest).join(TREE)
    }

    /// A layer, if it is there.
    pub fn get(&self, digest: &Digest) -> io::Result<Option<Layer>> {
        match fs::read(self.place(digest).join(LABEL)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice(&text?)?)),
        }
    }

    /// All of them.
    pub fn list(&self) -> io::Result<Vec<Layer>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let digest = name.to_str().and_then(|name| format!("sha256:{name}").parse().ok());
            if let Some(layer) = digest.map(|digest| self.get(&digest)).transpose()?.flatten() {
                all.push(layer);
            }
        }
        all.sort_by_key(|layer| layer.digest);
        Ok(all)
    }

    /// Makes a layer of an archive.
    pub fn unpack(
        &self,
        held: &Held,
        (unpacker, bounds): (&dyn Unpacker, Bounds),
        arrival: Arrival<'_>,
    ) -> Result<Layer, Refused> {
        let below = arrival.below.iter().rev().map(|layer| self.tree(&layer.digest));
        let below: Vec<PathBuf> = below.chain(arrival.ground.map(Path::to_owned)).collect();
        let fill = |tree: &Path, _| {
            let Unpacked { content, bytes, .. } = unpacker.unpack(arrival.archive, tree, &below, bounds)?;
            match arrival.expected {
                Some(expected) if content != expected => {
                    let why = format!("is {content} and should be {expected}");
                    Err(Refused::offence(Offence::Digest, b"the archive", why))
                }
                _ => Ok(((), Some(content), bytes)),
            }
        };
        Ok(self.add(held, fill)?.0)
    }

    /// Makes a layer of what is put into an empty directory. Of one that is there already the new one is dropped.
    pub fn add<T>(
        &self,
        held: &Held,
        fill: impl FnOnce(&Path, OwnedFd) -> Result<(T, Option<Digest>, u64), Refused>,
    ) -> Result<(Layer, T), Refused> {
        let _ = held;
        let making = || Refused::io("cannot make a layer");
        let new = tempfile::Builder::new().prefix(NEW).tempdir_in(&self.directory).map_err(making())?;
        // Nobody takes it for one that was left behind.
        let _own =
            File::open(new.path()).and_then(|own| Ok(flock(&own, FlockOperation::LockShared).map(|()| own)?));
        let tree = new.path().join(TREE);
        DirBuilder::new().mode(0o755).create(&tree).map_err(making())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&tree, flags, Mode::empty()).map_err(io::Error::from);
        let (made, content, bytes) = fill(&tree, open().map_err(making())?)?;
        let digest = open().and_then(digest).map_err(making())?;
        let layer = Layer { digest, content, bytes };
        let label = serde_json::to_vec(&layer).map_err(io::Error::from).map_err(making())?;
        fs::write(new.path().join(LABEL), label).map_err(making())?;
        match fs::rename(new.path(), self.place(&digest)) {
            Ok(()) => drop(new.keep()),
            // It is there, and the same.
            Err(error) if self.place(&digest).join(LABEL).exists() => drop(error),
            Err(error) => return Err(making()(error)),
        }
        Ok((layer, made))
    }

    /// A directory for what is only needed for a while.
    pub(crate) fn scratch(&self) -> io::Result<tempfile::TempDir> {
        tempfile::Builder::new().prefix(NEW).tempdir_in(&self.directory)
    }

    fn chains(&self) -> PathBuf {
        self.directory.join("chains")
    }

    /// The layer that came of an archive over others, if that is known.
    pub(crate) fn known(&self, chain: &Digest) -> io::Result<Option<Layer>> {
        let digest = match fs::read_to_string(self.chains().join(chain.hex())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?.trim().parse().map_err(io::Error::other)?,
        };
        self.get(&digest)
    }

    /// Writes down which layer came of it.
    pub(crate) fn note(&self, chain: &Digest, layer: &Layer) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.chains())?;
        let mut file = tempfile::NamedTempFile::new_in(self.chains())?;
        io::Write::write_all(&mut file, layer.digest.to_string().as_bytes())?;
        file.persist(self.chains().join(chain.hex())).map(drop).map_err(|error| error.error)
    }

    /// Whether a layer is still what it was.
    pub fn verify(&self, layer: &Digest) -> io::Result<bool> {
        Ok(digest(File::open(self.tree(layer))?)? == *layer)
    }

    /// Removes every layer that is not among these, and whatever was left half made or half removed. Answers what was removed.
    pub(crate) fn collect(&self, _alone: &Alone, wanted: &HashSet<Digest>) -> io::Result<Vec<Layer>> {
        let mut removed = Vec::new();
        for layer in self.list()? {
            if wanted.contains(&layer.digest) {
                continue;
            }
            // Gone at once, whatever happens while its files are removed.
            let gone = self.directory.join(format!("{GONE}{}", layer.digest.hex()));
            fs::rename(self.place(&layer.digest), gone)?;
            removed.push(layer);
        }
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_left = |prefix: &str| name.to_str().is_some_and(|name| name.starts_with(prefix));
            let is_made = || {
                File::open(entry.path())
                    .is_ok_and(|own| flock(&own, FlockOperation::NonBlockingLockExclusive).is_err())
            };
            if is_left(GONE) || (is_left(NEW) && !is_made()) {
                remove(&entry.path())?;
            }
        }
        for chain in self.chains().read_dir().into_iter().flatten() {
            let path = chain?.path();
            let layer = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<Digest>().ok());
            if layer.is_none_or(|layer| !self.place(&layer).exists()) {
                fs::remove_file(path)?;
            }
        }
        Ok(removed)
    }
}

/// Removes what was left behind. Whoever unpacked something there for a process that was killed may be about to end, and still
/// make a file.
fn remove(path: &Path) -> io::Result<()> {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return Ok(()),
            removed => return removed,
        }
    }
    fs::remove_dir_all(path)
}
