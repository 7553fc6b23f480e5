//! Which templates there are: by name, and by what they are; and what came of work that need not be done again.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::record::Record;
use crate::stack::Stack;
use crate::store::{Held, Layer, Store};

/// The longest of the files that are read here.
const LONGEST: u64 = 4 << 20;
/// The longest name of a template.
const LONGEST_NAME: usize = 128;
const RECORDS: &str = "records";
const NAMES: &str = "names";
const RESULTS: &str = "results";

/// The templates of a data directory.
#[derive(Debug)]
pub struct Catalog {
    directory: PathBuf,
    store: Store,
}

/// A template that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// What it is.
    pub digest: Digest,
    /// When it was named, in milliseconds since 1970.
    pub made_ms: u64,
    /// What it was made from, in a few words.
    pub origin: String,
}

/// What came of a step of a build, or of an installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The template that it led to.
    pub digest: Digest,
    /// What it was.
    pub what: String,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Layers.
    pub layers: Vec<Layer>,
    /// Outcomes that nobody asked for in a while.
    pub outcomes: usize,
}

/// Whether a template can have this name.
pub fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/:".contains(c);
    let parts_are_good = name.split(['/', ':']).all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && !part.contains("..") && !part.ends_with('.')
    });
    name.len() <= LONGEST_NAME && name.chars().all(good) && parts_are_good && !name.starts_with("sha256:")
}

/// A name as that of a file.
fn file_name(name: &str) -> String {
    name.replace('/', "+").replace(':', "@")
}

fn from_file_name(name: &str) -> String {
    name.replace('+', "/").replace('@', ":")
}

impl Catalog {
    /// Opens the one in this directory, making it where it is missing.
    pub fn open(directory: &Path) -> io::Result<Self> {
        for part in [RECORDS, NAMES, RESULTS] {
            DirBuilder::new().recursive(true).mode(0o700).create(directory.join(part))?;
        }
        Ok(Self { directory: directory.to_owned(), store: Store::open(&directory.join("store"))? })
    }

    /// Where its layers are.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The layers of a template as a sandbox would see them, over this directory if they lie on one.
    pub fn stack(&self, record: &Record, ground: Option<&Path>) -> io::Result<Stack> {
        let layers = record.layers.iter().rev().map(|layer| self.store.tree(&layer.digest));
        let opened = layers.chain(ground.map(Path::to_owned)).map(|tree| File::open(tree).map(OwnedFd::from));
        Ok(Stack::new(opened.collect::<io::Result<_>>()?))
    }

    fn record_file(&self, digest: &Digest) -> PathBuf {
        self.directory.join(RECORDS).join(digest.hex())
    }

    fn name_file(&self, name: &str) -> PathBuf {
        self.directory.join(NAMES).join(file_name(name))
    }

    fn result_file(&self, key: &Digest) -> PathBuf {
        self.directory.join(RESULTS).join(key.hex())
    }

    /// Writes a template down, without a name.
    pub fn put(&self, _held: &Held, record: &Record) -> io::Result<Digest> {
        let digest = record.digest();
        write(&self.record_file(&digest), record)?;
        Ok(digest)
    }

    /// Gives a template a name; another that had it loses it.
    pub fn name(&self, held: &Held, name: &str, record: &Record, origin: &str) -> io::Result<Named> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no name of a template"));
        }
        let digest = self.put(held, record)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let named = Named { digest, made_ms: now.as_millis() as u64, origin: origin.to_owned() };
        write(&self.name_file(name), &named)?;
        Ok(named)
    }

    /// The template of this name, or of this digest; `None` if there is none, or it lacks a layer.
    pub fn find(&self, name: &str) -> io::Result<Option<Record>> {
        let digest = match name.parse() {
            Ok(digest) => digest,
            Err(_) => match self.named(name)? {
                Some(named) => named.digest,
                None => return Ok(None),
            },
        };
        self.get(&digest)
    }

    /// The template of this digest.
    pub fn get(&self, digest: &Digest) -> io::Result<Option<Record>> {
        let Some(record) = read::<Record>(&self.record_file(digest))? else { return Ok(None) };
        let whole = record.layers.iter().all(|layer| self.store.tree(&layer.digest).is_dir());
        Ok(whole.then_some(record))
    }

    /// What is known of a name.
    pub fn named(&self, name: &str) -> io::Result<Option<Named>> {
        if is_name(name) { read(&self.name_file(name)) } else { Ok(None) }
    }

    /// All names.
    pub fn names(&self) -> io::Result<BTreeMap<String, Named>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(self.directory.join(NAMES))? {
            let path = entry?.path();
            let name =
                path.file_name().and_then(|name| name.to_str()).map(from_file_name).unwrap_or_default();
            if let (true, Some(named)) = (is_name(&name), read(&path)?) {
                all.insert(name, named);
            }
        }
        Ok(all)
    }

    /// Takes a name away; whether there was one.
    pub fn forget(&self, name: &str) -> io::Result<bool> {
        if !is_name(name) {
            return Ok(false);
        }
        match fs::remove_file(self.name_file(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    /// What came of this, if it was done before and is still there.
    pub fn recall(&self, key: &Digest) -> io::Result<Option<Record>> {
        let path = self.result_file(key);
        let Some(outcome) = read::<Outcome>(&path)? else { return Ok(None) };
        let record = self.get(&outcome.digest)?;
        if record.is_some() {
            // Whoever asks for it again keeps it.
            let now = SystemTime::now();
            File::options().write(true).open(&path)?.set_modified(now)?;
        }
        Ok(record)
    }

    /// Writes down what came of it.
    pub fn remember(&self, held: &Held, key: &Digest, record: &Record, what: &str) -> io::Result<()> {
        let digest = self.put(held, record)?;
        write(&self.result_file(key), &Outcome { digest, what: what.to_owned() })
    }

    /// Removes whatever nobody refers to: neither a name, nor who is in use then, nor an outcome that was asked for not longer ago
    /// than this. Waits until nothing is held.
    pub fn collect(
        &self,
        in_use: impl FnOnce() -> io::Result<Vec<Record>>,
        unused: Duration,
    ) -> io::Result<Collected> {
        let alone = self.store.alone()?;
        let mut collected = Collected::default();
        let in_use = in_use()?;
        let mut wanted: HashSet<Digest> = in_use.iter().map(Record::digest).collect();
        wanted.extend(self.names()?.values().map(|named| named.digest));
        for path in files(&self.directory.join(RESULTS))? {
            let age = fs::metadata(&path)?.modified()?.elapsed().unwrap_or_default();
            match read::<Outcome>(&path).ok().flatten() {
                Some(outcome) if age < unused => {
                    wanted.insert(outcome.digest);
                }
                _ => {
                    fs::remove_file(&path)?;
                    collected.outcomes += 1;
                }
            }
        }
        let mut layers: HashSet<Digest> =
            in_use.iter().flat_map(|used| &used.layers).map(|layer| layer.digest).collect();
        for path in files(&self.directory.join(RECORDS))? {
            let record = read::<Record>(&path).ok().flatten();
            match record.filter(|record| wanted.contains(&record.digest())) {
                Some(record) => layers.extend(record.layers.iter().map(|layer| layer.digest)),
                None => fs::remove_file(&path)?,
            }
        }
        // Half-written ones.
        for path in files(&self.directory.join(NAMES))? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".tmp")) {
                fs::remove_file(&path)?;
            }
        }
        collected.layers = self.store.collect(&alone, &layers)?;
        Ok(collected)
    }
}

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?.take(LONGEST).read_to_end(&mut text)?,
    };
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Whole or not at all.
fn write(path: &Path, what: &impl Serialize) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    io::Write::write_all(&mut file, &serde_json::to_vec(what)?)?;
    file.as_file().sync_data()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Locks a file.
pub(crate) fn locked(path: &Path, operation: FlockOperation) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    flock(&file, operation)?;
    Ok(file)
}
