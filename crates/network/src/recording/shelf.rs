//! Where recordings are kept: files in a directory of the data directory.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, RECORDINGS, Recording, RecordingName, Result};

use super::file::Reader;

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

/// Removes a recording.
pub fn remove(home: &Path, name: &RecordingName) -> Result<()> {
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
        Recording::Replay(_) => Ok(open(home, name)?.meta().unwrap_or_default().env),
        Recording::Record(_) => make(home, name).map(|()| BTreeMap::new()),
    }
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
            // Somebody who made room for it, and got no further, left nothing in it.
            let is_empty = fs::metadata(path(home, name)).is_ok_and(|metadata| metadata.len() == 0);
            if is_empty {
                return Ok(());
            }
            let wrong = format!("there is a recording `{name}` already");
            Err(Error::new(ErrorCode::AlreadyExists, wrong)
                .hint(format!("choose another name, or remove it with `belljar recording rm {name}`")))
        }
        made => made.map_err(|error| problem(name, &error)),
    }
}
