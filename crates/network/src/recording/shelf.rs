//! Where recordings are kept: files in a directory of the data directory.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use belljar_core::{Error, ErrorCode, RECORDINGS, Recording, RecordingName, Result};

use super::file::Reader;
use crate::gateway::issue::is_variable;

/// How long the door may take to let go of a recording when a sandbox has ended.
const LETTING_GO: Duration = Duration::from_secs(2);

/// A recording on the shelf.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name.
    pub name: RecordingName,
    /// Where it is.
    pub path: PathBuf,
    /// How many bytes it has.
    pub bytes: u64,
    /// When something was last written into it, in milliseconds since 1970.
    pub changed_ms: i64,
}

/// The file of a recording.
pub fn path(home: &Path, name: &RecordingName) -> PathBuf {
    home.join(RECORDINGS).join(name.file())
}

/// All of them, by name.
pub fn list(home: &Path) -> io::Result<Vec<Kept>> {
    let entries = match fs::read_dir(home.join(RECORDINGS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let file_name = entry.file_name();
        let name = file_name.to_str().and_then(|name| name.strip_suffix(RecordingName::ENDING));
        let Some(name) = name.and_then(|name| name.parse().ok()) else { continue };
        // One that is removed meanwhile is not an error.
        let Ok(metadata) = entry.metadata() else { continue };
        let changed_ms = metadata.mtime().saturating_mul(1000) + metadata.mtime_nsec() / 1_000_000;
        all.push(Kept { name, path: entry.path(), bytes: metadata.len(), changed_ms });
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// Opens a recording to be read.
pub fn open(home: &Path, name: &RecordingName) -> Result<Reader> {
    let path = path(home, name);
    let file = File::open(&path).map_err(|error| problem(name, &error))?;
    Reader::new(file).map_err(|error| problem(name, &error))
}

/// Removes a recording that no sandbox has to do with.
pub fn remove(home: &Path, name: &RecordingName) -> Result<()> {
    let file = File::open(path(home, name)).map_err(|error| problem(name, &error))?;
    // The door shares it for as long as it needs it, and a moment longer.
    let is_free = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    let end = Instant::now() + LETTING_GO;
    while !is_free() {
        if Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let wrong = format!("a sandbox is recorded into `{name}`, or answered from it");
        return Err(Error::new(ErrorCode::AlreadyExists, wrong)
            .hint("remove that sandbox first: `belljar ls` lists them"));
    }
    fs::remove_file(path(home, name)).map_err(|error| problem(name, &error))
}

fn problem(name: &RecordingName, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::new(ErrorCode::NotFound, format!("there is no recording `{name}`"))
            .hint("`belljar recording ls` lists those there are");
    }
    Error::new(ErrorCode::Internal, format!("recording `{name}`: {error}"))
}

/// Makes room for a recording that is to be made, or looks into the one that is to be answered from: the variables of its sandbox.
pub(crate) fn prepare(home: &Path, recording: &Recording) -> Result<BTreeMap<String, String>> {
    let name = recording.name();
    match recording {
        Recording::Replay(_) => {
            let mut env = open(home, name)?.meta().unwrap_or_default().env;
            // Whoever made the recording has no other say in what is set.
            env.retain(|name, value| is_variable(name) && is_plain(value));
            Ok(env)
        }
        Recording::Record(_) => make(home, name).map(|()| BTreeMap::new()),
    }
}

/// Whether a value is a word that a client of the gateway can take.
fn is_plain(value: &str) -> bool {
    value.len() <= 1024 && value.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Takes in what was kept elsewhere.
pub fn import(home: &Path, name: &RecordingName, from: &mut dyn io::Read) -> Result<()> {
    make(home, name)?;
    let path = path(home, name);
    let copied = OpenOptions::new().write(true).open(&path).and_then(|mut file| io::copy(from, &mut file));
    copied.map(drop).map_err(|error| {
        // Half of one would be taken for one.
        let _ = fs::remove_file(&path);
        problem(name, &error)
    })
}

fn make(home: &Path, name: &RecordingName) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(home.join(RECORDINGS)).and_then(|()| {
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(path(home, name)).map(drop)
    });
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let wrong = format!("there is a recording `{name}` already");
            Err(Error::new(ErrorCode::AlreadyExists, wrong)
                .hint(format!("choose another name, or remove it with `belljar recording rm {name}`")))
        }
        made => made.map_err(|error| problem(name, &error)),
    }
}
