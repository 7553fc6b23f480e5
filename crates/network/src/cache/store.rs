//! Where files are kept: each under the hash of where it comes from, what it is, and who may have it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use belljar_core::{CACHE, Tenant};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use url::Url;

use super::digest::{Check, Digest};
use super::learned::Wanted;

/// How many bytes are kept, unless something else is said.
pub const DEFAULT_LIMIT: u64 = 10 << 30;
/// The largest file.
const LARGEST: u64 = 4 << 30;
/// So much of the disk stays free.
const LEFT_FREE: u64 = 1 << 30;
/// The longest label of a file.
const LONGEST_LABEL: u64 = 16 * 1024;

/// What stands at the beginning of a file, as a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Label {
    url: String,
    digest: Digest,
    #[serde(default)]
    private: bool,
}

/// A file that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it came from.
    pub url: String,
    /// What it is.
    pub digest: Digest,
    /// Whether it was fetched with credentials, and is only for those who have them.
    pub private: bool,
    /// How many bytes it has on disk.
    pub bytes: u64,
    /// When it was last asked for, in milliseconds since 1970.
    pub used_ms: i64,
    path: PathBuf,
}

/// The place where they are.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    /// How many bytes there are, as far as that is known.
    total: Mutex<Option<u64>>,
}

impl Store {
    /// That of a data directory.
    pub fn of(home: &Path) -> Self {
        Self { directory: home.join(CACHE), total: Mutex::default() }
    }

    fn objects(&self) -> PathBuf {
        self.directory.join("objects")
    }

    fn arriving(&self) -> PathBuf {
        self.directory.join("arriving")
    }

    /// Where a file is, if it is there.
    fn path(&self, wanted: &Wanted, tenant: Option<&Tenant>) -> Option<PathBuf> {
        let origin = wanted.url.parse::<Url>().ok()?.origin();
        if !origin.is_tuple() {
            return None;
        }
        let private = wanted.credentials.as_ref().map(|credentials| {
            let whose = tenant.map(|tenant| tenant.0.as_str());
            [if whose.is_some() { "tenant" } else { "nobody" }, whose.unwrap_or(""), credentials.as_str()]
        });
        let mut hasher = blake3::Hasher::new();
        let (origin, digest) = (origin.ascii_serialization(), wanted.digest.to_string());
        for part in [origin.as_str(), &digest].into_iter().chain(private.into_iter().flatten()) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let name = hasher.finalize().to_string();
        Some(self.objects().join(&name[..2]).join(&name[2..]))
    }

    /// Opens a file at its content, and says how long that is; nothing if there is none.
    pub(crate) fn open(&self, wanted: &Wanted, tenant: Option<&Tenant>) -> io::Result<Option<(File, u64)>> {
        let Some(path) = self.path(wanted, tenant) else { return Ok(None) };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let (_, offset) = label(&file)?;
        let length = file.metadata()?.len().saturating_sub(offset);
        (&file).seek(SeekFrom::Start(offset))?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        // Whoever cannot write it down still has it.
        let _ = futimens(&file, &Timestamps { last_access: same, last_modification: now });
        Ok(Some((file, length)))
    }

    /// Makes room for a file that is on its way.
    pub(crate) fn begin(&self, wanted: &Wanted, tenant: Option<&Tenant>) -> io::Result<Arriving> {
        let path = self.path(wanted, tenant).ok_or(io::ErrorKind::InvalidInput)?;
        for directory in [self.arriving(), self.objects()] {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = NamedTempFile::new_in(self.arriving())?;
        let label =
            Label { url: wanted.url.clone(), digest: wanted.digest, private: wanted.credentials.is_some() };
        let mut line = serde_json::to_vec(&label)?;
        line.push(b'\n');
        if line.len() as u64 > LONGEST_LABEL {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        file.write_all(&line)?;
        let room = rustix::fs::statvfs(&self.directory)?;
        let free = room.f_bavail.saturating_mul(room.f_frsize).saturating_sub(LEFT_FREE);
        let most = LARGEST.min(self.limit() / 2).min(free);
        Ok(Arriving { file, path, check: wanted.digest.check(), left: most })
    }

    /// Keeps a file that has arrived, if it is what it was said to be.
    pub(crate) fn keep(&self, arriving: Arriving) -> io::Result<bool> {
        let Arriving { file, path, check, .. } = arriving;
        if !check.is_right() {
            return Ok(false);
        }
        let bytes = file.as_file().metadata()?.len();
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        match file.persist_noclobber(&path) {
            // Somebody else was faster.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Ok(true),
            kept => kept.map_err(|error| error.error)?,
        };
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = match *total {
            Some(known) => known.saturating_add(bytes),
            None => self.list()?.iter().map(|kept| kept.bytes).sum(),
        };
        let limit = self.limit();
        *total = Some(if sum > limit { self.shrink(limit / 10 * 9)? } else { sum });
        Ok(true)
    }

    /// Removes a file that was found not to be what it should be.
    pub(crate) fn discard(&self, wanted: &Wanted, tenant: Option<&Tenant>) {
        if let Some(path) = self.path(wanted, tenant) {
            let _ = fs::remove_file(path);
        }
    }

    /// Removes what was on its way when whoever kept it died.
    pub(crate) fn tidy(&self) {
        let _ = fs::remove_dir_all(self.arriving());
    }

    /// Removes what was not asked for the longest, until there are no more than so many bytes; answers how many there are then.
    pub fn shrink(&self, most: u64) -> io::Result<u64> {
        let mut all = self.list()?;
        all.sort_by_key(|kept| kept.used_ms);
        let mut sum: u64 = all.iter().map(|kept| kept.bytes).sum();
        for kept in all {
            if sum <= most {
                break;
            }
            self.remove(&kept)?;
            sum = sum.saturating_sub(kept.bytes);
        }
        Ok(sum)
    }

    /// All that is kept.
    pub fn list(&self) -> io::Result<Vec<Kept>> {
        let mut all = Vec::new();
        for directory in entries(&self.objects())? {
            for path in entries(&directory)? {
                // One that is removed meanwhile is not an error, and one that is broken is nobody's.
                let Ok(file) = File::open(&path) else { continue };
                let (Ok((label, _)), Ok(metadata)) = (label(&file), file.metadata()) else { continue };
                let Label { url, digest, private } = label;
                let used_ms = metadata.mtime().saturating_mul(1000) + metadata.mtime_nsec() / 1_000_000;
                all.push(Kept { url, digest, private, bytes: metadata.len(), used_ms, path });
            }
        }
        all.sort_by(|one, other| one.url.cmp(&other.url).then_with(|| one.path.cmp(&other.path)));
        Ok(all)
    }

    /// Removes a file; the next who asks for it has it from its registry.
    pub fn remove(&self, kept: &Kept) -> io::Result<()> {
        match fs::remove_file(&kept.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn limit_file(&self) -> PathBuf {
        self.directory.join("limit")
    }

    /// How many bytes are kept at most.
    pub fn limit(&self) -> u64 {
        let text = fs::read_to_string(self.limit_file()).unwrap_or_default();
        text.trim().parse().unwrap_or(DEFAULT_LIMIT)
    }

    /// Has no more than so many bytes be kept from now on.
    pub fn set_limit(&self, most: u64) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut file = NamedTempFile::new_in(&self.directory)?;
        writeln!(file, "{most}")?;
        file.persist(self.limit_file()).map_err(|error| error.error)?;
        self.shrink(most).map(drop)
    }
}

/// What is in a directory, which may not be there.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries?.flatten().map(|entry| entry.path()).collect()),
    }
}

/// What stands at the beginning of a file, and where its content begins.
fn label(file: &File) -> io::Result<(Label, u64)> {
    let mut line = Vec::new();
    BufReader::new(file).take(LONGEST_LABEL).read_until(b'\n', &mut line)?;
    Ok((serde_json::from_slice(&line)?, line.len() as u64))
}

/// A file that is on its way; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Arriving {
    file: NamedTempFile,
    path: PathBuf,
    check: Check,
    left: u64,
}

impl Arriving {
    /// More of it.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        self.check.push(bytes);
        self.file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use sha2::Digest as _;

    use super::*;
    use crate::cache::Credentials;

    fn wanted(url: &str, content: &[u8]) -> Wanted {
        let digest = Digest::Sha256(sha2::Sha256::digest(content).into());
        Wanted { url: url.into(), digest, credentials: None }
    }

    fn bring(store: &Store, wanted: &Wanted, tenant: Option<&Tenant>, content: &[u8]) -> bool {
        let mut arriving = store.begin(wanted, tenant).unwrap();
        arriving.push(content).unwrap();
        store.keep(arriving).unwrap()
    }

    fn content(store: &Store, wanted: &Wanted, tenant: Option<&Tenant>) -> Option<Vec<u8>> {
        let (mut file, length) = store.open(wanted, tenant).unwrap()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content.len() as u64, length);
        Some(content)
    }

    #[test]
    fn what_is_kept_is_what_it_should_be() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::of(home.path());
        let file = wanted("https://f.example/a.whl", b"the content");
        assert_eq!(content(&store, &file, None), None);
        assert!(!bring(&store, &file, None, b"other content"), "another content is not kept");
        assert_eq!(content(&store, &file, None), None);
        assert!(bring(&store, &file, None, b"the content"));
        assert_eq!(content(&store, &file, None).unwrap(), b"the content");
        assert!(bring(&store, &file, None, b"the content"), "twice is no error");
        // The same from the same host under another name; not from another host.
        assert!(content(&store, &wanted("https://f.example/b.whl", b"the content"), None).is_some());
        for other in ["https://g.example/a.whl", "http://f.example/a.whl", "https://f.example:444/a.whl"] {
            assert_eq!(content(&store, &wanted(other, b"the content"), None), None, "{other}");
        }
        store.discard(&file, None);
        assert_eq!(content(&store, &file, None), None);
        assert_eq!(fs::read_dir(store.arriving()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_private_is_for_those_who_have_the_credentials() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::of(home.path());
        let url: Url = "https://f.example/a.whl".parse().unwrap();
        let with = |secret: &'static str| -> Option<Credentials> {
            let headers = [(hyper::header::AUTHORIZATION, secret.parse().unwrap())].into_iter().collect();
            crate::cache::credentials(&url, &headers)
        };
        let public = wanted(url.as_str(), b"secret");
        let private = Wanted { credentials: with("one"), ..public.clone() };
        let (acme, other) = (Tenant("acme".into()), Tenant("other".into()));
        assert!(bring(&store, &private, Some(&acme), b"secret"));
        assert!(content(&store, &private, Some(&acme)).is_some());
        assert_eq!(content(&store, &private, Some(&other)), None);
        assert_eq!(content(&store, &private, None), None);
        assert_eq!(content(&store, &public, Some(&acme)), None);
        assert_eq!(content(&store, &Wanted { credentials: with("two"), ..public }, Some(&acme)), None);
        let all = store.list().unwrap();
        assert_eq!(all.len(), 1);
        assert!(all[0].private);
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::of(home.path());
        store.set_limit(100_000).unwrap();
        let big = vec![1; 60_000];
        let mut arriving = store.begin(&wanted("https://f.example/x", &big), None).unwrap();
        assert_eq!(arriving.push(&big).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        drop(arriving);
        for number in 0..10_u8 {
            let content = vec![number; 20_000];
            assert!(bring(&store, &wanted(&format!("https://f.example/{number}"), &content), None, &content));
        }
        let sum: u64 = store.list().unwrap().iter().map(|kept| kept.bytes).sum();
        assert!((40_000..=100_000).contains(&sum), "{sum}");
        store.set_limit(0).unwrap();
        assert!(store.list().unwrap().is_empty());
    }

    #[test]
    fn files_that_are_none_of_ours_are_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::of(home.path());
        assert!(store.list().unwrap().is_empty());
        let file = wanted("https://f.example/a", b"a");
        assert!(bring(&store, &file, None, b"a"));
        let path = store.list().unwrap()[0].path.clone();
        fs::write(&path, b"no label").unwrap();
        assert!(store.list().unwrap().is_empty());
        assert!(store.open(&file, None).is_err());
        assert!(store.path(&Wanted { url: "data:x".into(), ..file }, None).is_none());
    }
}
