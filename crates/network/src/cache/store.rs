//! Where files are kept: each under the hash of its address, what it is, and who may have it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_core::{CACHE, Tenant};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use rustix::io::Errno;
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
/// How often it is looked whether it does, in bytes of a file.
const LOOKED_EVERY: u64 = 16 << 20;
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
    /// How many are on their way.
    on_the_way: Arc<AtomicU64>,
}

impl Store {
    /// That of a data directory.
    pub fn of(home: &Path) -> Self {
        Self { directory: home.join(CACHE), total: Mutex::default(), on_the_way: Arc::default() }
    }

    fn objects(&self) -> PathBuf {
        self.directory.join("objects")
    }

    fn arriving(&self) -> PathBuf {
        self.directory.join("arriving")
    }

    /// Where a file is, if it is there.
    fn path(&self, wanted: &Wanted, tenant: Option<&Tenant>) -> Option<PathBuf> {
        // The address as everybody writes it.
        let url = wanted.url.parse::<Url>().ok().filter(|url| url.origin().is_tuple())?;
        let private = wanted.credentials.as_ref().map(|credentials| {
            let whose = tenant.map(|tenant| tenant.0.as_str());
            [if whose.is_some() { "tenant" } else { "nobody" }, whose.unwrap_or(""), credentials.as_str()]
        });
        let mut hasher = blake3::Hasher::new();
        let digest = wanted.digest.to_string();
        for part in [url.as_str(), &digest].into_iter().chain(private.into_iter().flatten()) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let name = hasher.finalize().to_string();
        Some(self.objects().join(&name[..2]).join(&name[2..]))
    }

    /// Opens a file at its content, and says how long that is; nothing if there is none.
    pub(crate) fn open(&self, wanted: &Wanted, tenant: Option<&Tenant>) -> io::Result<Option<(File, u64)>> {
        let Some(path) = self.path(wanted, tenant) else { return Ok(None) };
        let Some(Ok((file, _, offset))) = look_into(&path) else {
            // What is there and is none of ours is in the way.
            let _ = fs::remove_file(&path);
            return Ok(None);
        };
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
        let most = LARGEST.min(self.limit() / 2);
        let taken = OnTheWay(self.on_the_way.clone(), 0);
        Ok(Arriving { file, path, check: wanted.digest.check(), most, taken })
    }

    /// Keeps a file that has arrived, if it is what it was said to be.
    pub(crate) fn keep(&self, arriving: Arriving) -> io::Result<bool> {
        let Arriving { file, path, check, taken, .. } = arriving;
        if !check.passes() {
            return Ok(false);
        }
        let bytes = occupied(file.as_file().metadata()?.len());
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
        drop(taken);
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
                let Some(Ok((file, label, _))) = look_into(&path) else { continue };
                let Ok(metadata) = file.metadata() else { continue };
                let Label { url, digest, private } = label;
                let used_ms = metadata.mtime().saturating_mul(1000) + metadata.mtime_nsec() / 1_000_000;
                all.push(Kept { url, digest, private, bytes: occupied(metadata.len()), used_ms, path });
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

    /// Removes everything that is there, whatever it is.
    pub fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.objects()) {
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

/// How much of the disk a file of this length takes, with what is written down of it elsewhere.
fn occupied(length: u64) -> u64 {
    const BLOCK: u64 = 4096;
    length.div_ceil(BLOCK).saturating_add(1).saturating_mul(BLOCK)
}

/// A file with its label, and where its content begins; nothing if there is none. Nobody waits for what is not a file.
fn look_into(path: &Path) -> Option<io::Result<(File, Label, u64)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return None,
        file => file.map(File::from).map_err(io::Error::from),
    };
    Some(file.and_then(|file| {
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (label, offset) = label(&file)?;
        Ok((file, label, offset))
    }))
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
    most: u64,
    taken: OnTheWay,
}

/// Bytes that are on their way, until this is dropped.
#[derive(Debug)]
struct OnTheWay(Arc<AtomicU64>, u64);

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Arriving {
    /// More of it.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let more = bytes.len() as u64;
        // All that are on their way together take no more than one may.
        let OnTheWay(all, written) = &mut self.taken;
        let all = all.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        let is_looked_at = *written == 0 || (*written + more) / LOOKED_EVERY > *written / LOOKED_EVERY;
        *written += more;
        if all > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if is_looked_at {
            let room = rustix::fs::fstatvfs(self.file.as_file())?;
            if room.f_bavail.saturating_mul(room.f_frsize) < LEFT_FREE {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
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
        // Nowhere else: an address can be a secret.
        for other in [
            "https://f.example/b.whl",
            "https://g.example/a.whl",
            "http://f.example/a.whl",
            "https://f.example:444/a.whl",
        ] {
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
        assert_eq!(store.on_the_way.load(Ordering::Relaxed), 0);
        // Several at once have no more room than one.
        let mut both: Vec<_> = (0..2)
            .map(|n| store.begin(&wanted(&format!("https://f.example/{n}"), &[]), None).unwrap())
            .collect();
        both[0].push(&big[..30_000]).unwrap();
        assert_eq!(both[1].push(&big[..30_000]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        drop(both);
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
        assert!(store.open(&file, None).unwrap().is_none());
        assert!(bring(&store, &file, None, b"a"), "it was in the way");
        assert_eq!(content(&store, &file, None).unwrap(), b"a");
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR).unwrap();
        assert!(store.list().unwrap().is_empty());
        assert!(store.open(&file, None).unwrap().is_none());
        store.clear().unwrap();
        assert!(store.path(&Wanted { url: "data:x".into(), ..file }, None).is_none());
    }
}
