//! Remembers the last answer, together with what it depended on.
//!
//! To know that an answer still holds, the same files are looked at again (their stamps, not their content) and the
//! same variables compared. Values of variables are only ever stored as part of a hash.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::source::Source;
use super::{Template, TemplateError};

/// Raised whenever the same host would now give another answer.
const FORMAT: u32 = 7;

#[derive(Deserialize)]
struct Stored {
    key: String,
    inputs: Vec<PathBuf>,
    template: Template,
}

#[derive(Serialize)]
struct StoredRef<'a> {
    key: String,
    inputs: Vec<&'a Path>,
    template: &'a Template,
}

/// The last answer, if nothing it depends on has changed.
pub(super) fn load(source: &Source, cache_dir: &Path) -> Option<Template> {
    let Stored { key: stored, inputs, template } =
        serde_json::from_slice(&fs::read(file(cache_dir)).ok()?).ok()?;
    let now = inputs.iter().map(|path| (path.as_path(), source.stamp(path)));
    let valid = key(source, now) == stored
        && template.root.is_dir()
        && template.mounts.iter().all(|mount| mount.source.exists());
    valid.then_some(template)
}

/// Keeps an answer for the next call, replacing the last one at once or not at all.
pub(super) fn store(source: &Source, cache_dir: &Path, template: &Template) -> Result<(), TemplateError> {
    let path = file(cache_dir);
    let seen = source.seen();
    let stored = StoredRef {
        key: key(source, seen.iter().map(|(path, stamp)| (path.as_path(), stamp.clone()))),
        inputs: seen.iter().map(|(path, _)| path.as_path()).collect(),
        template,
    };
    let written = tempfile::NamedTempFile::new_in(cache_dir).and_then(|mut temporary| {
        temporary.write_all(&serde_json::to_vec(&stored)?)?;
        temporary.persist(&path).map_err(|error| error.error)?;
        Ok(())
    });
    written.map_err(|source| TemplateError::Store { path, source })
}

fn file(cache_dir: &Path) -> PathBuf {
    cache_dir.join("host.json")
}

/// The boot is part of it: after a crash of the machine the root on disk may be half written, and a first call that
/// is not answered from the cache reads it back and compares.
fn key<'a>(source: &Source, stamps: impl Iterator<Item = (&'a Path, String)>) -> String {
    let mut hash = Sha256::new();
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    hash.update(format!("{FORMAT} {} ", rustix::process::geteuid().as_raw()));
    hash.update(boot);
    for (name, value) in source.env() {
        hash.update(format!("{}:{name}={}:{value}", name.len(), value.len()));
    }
    for (path, stamp) in stamps {
        hash.update(format!("{}\0{stamp}\0", path.display()));
    }
    hex(&hash.finalize())
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
