//! Steps that copy files: they need no sandbox but the one that files are copied from, and become a layer of their own.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use belljar_core::{ByteStream, Error, ErrorCode, FileKind, FilePath, Result, UserName};
use belljar_layers::{Arrival, Bounds, Record, Stack};
use belljar_providers::jail::templates::refusal;
use bytes::Bytes;
use futures_util::StreamExt;

use crate::glob::{Ignore, fits, is_pattern};
use crate::pack::{Dress, Packed, Packer, as_archive};
use crate::workshop::{Workshop, failed};

/// The most that is copied by one step, and the most pieces of it that wait to be written.
const MOST: Bounds = Bounds { bytes: 64 << 30, entries: 2_000_000 };
const WAITING: usize = 16;

/// What is copied where.
pub(crate) struct Copied<'a> {
    pub(crate) sources: &'a [String],
    /// Absolute; a directory if it ends with a slash.
    pub(crate) target: &'a str,
    pub(crate) unpack: bool,
}

/// The folder that files are copied from, and what of it is left out.
pub(crate) struct Context {
    root: PathBuf,
    ignore: Ignore,
}

impl Context {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let wrong = |error: io::Error| {
            Error::new(
                ErrorCode::InvalidArgument,
                format!("cannot use the folder {}: {error}", root.display()),
            )
        };
        let root = root.canonicalize().map_err(wrong)?;
        let ignore = match std::fs::read_to_string(root.join(".dockerignore")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ignore::default(),
            text => Ignore::read(&text.map_err(wrong)?),
        };
        Ok(Self { root, ignore })
    }

    fn relative<'a>(&self, path: &'a Path) -> std::borrow::Cow<'a, str> {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy()
    }

    fn is_left_out(&self, path: &Path) -> bool {
        let is_left_out = self.ignore.leaves_out(&self.relative(path));
        // What is in a directory may be taken back one by one.
        is_left_out && !(self.ignore.takes_back() && path.is_dir())
    }

    /// What a source stands for. Links may lead elsewhere in the folder, and not out of it.
    fn find(&self, source: &str) -> Result<Vec<PathBuf>> {
        let missing = || {
            Error::new(ErrorCode::NotFound, format!("there is no `{}` in the folder", source.escape_debug()))
                .hint(format!("files are copied from {}", self.root.display()))
        };
        let plain = source.trim_start_matches('/');
        let found = if is_pattern(plain) {
            let mut found = Vec::new();
            self.matching(&self.root, plain, &mut found)?;
            found
        } else {
            vec![self.root.join(plain)]
        };
        let mut all = Vec::new();
        for path in found {
            let real = path.canonicalize().map_err(|_| missing())?;
            if !real.starts_with(&self.root) {
                let wrong = format!("`{}` leads out of the folder", source.escape_debug());
                return Err(Error::new(ErrorCode::InvalidArgument, wrong).hint("copy it into the folder"));
            }
            if real == self.root || !self.is_left_out(&real) {
                all.push(real);
            }
        }
        if all.is_empty() { Err(missing()) } else { Ok(all) }
    }

    fn matching(&self, directory: &Path, pattern: &str, found: &mut Vec<PathBuf>) -> Result<()> {
        let entries = std::fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(failed)?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            if self.is_left_out(&path) {
                continue;
            }
            if fits(pattern, &self.relative(&path)) {
                found.push(path);
            } else if entry.file_type().map_err(failed)?.is_dir() {
                self.matching(&path, pattern, found)?;
            }
        }
        Ok(())
    }
}

/// Where files go.
struct Destination {
    /// Without the first slash.
    path: PathBuf,
    is_directory: bool,
    is_there: bool,
}

impl Destination {
    fn new(target: &str, sources: usize, stack: &Stack) -> Result<Self> {
        let path: PathBuf = Path::new(target)
            .components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
            .collect();
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("`{}` leads out", target.escape_debug()),
            ));
        }
        let is_there = stack.is_dir(&path).map_err(failed)?;
        let is_directory = target.ends_with(['/', '.']) || sources > 1 || is_there;
        Ok(Self { path, is_directory, is_there })
    }

    fn of_file(&self, name: &std::ffi::OsStr) -> PathBuf {
        if self.is_directory { self.path.join(name) } else { self.path.clone() }
    }

    /// Makes it a directory, unless it is one.
    fn make(&self, packer: &mut Packer) -> Result<()> {
        if self.is_there { Ok(()) } else { packer.directory(&self.path, 0o755) }
    }
}

impl Workshop {
    /// Whose files are that are said to be this one's.
    pub(crate) async fn owner(&self, record: &Record, said: Option<&str>) -> Result<(u32, u32)> {
        match said {
            None => Ok((0, 0)),
            Some(said) => self.jail.account(record, said).await,
        }
    }

    /// An archive of files of the folder.
    pub(crate) async fn pack_context(
        &self,
        record: &Record,
        context: &Context,
        copied: &Copied<'_>,
        dress: Dress,
    ) -> Result<Packed> {
        let stack = self.jail.stack(record).await?;
        let mut found = Vec::new();
        for source in copied.sources {
            found.extend(context.find(source)?);
        }
        let destination = Destination::new(copied.target, found.len(), &stack)?;
        let mut packer = Packer::new(dress)?;
        let is_left_out = |path: &Path| context.is_left_out(path);
        if destination.is_directory || found.iter().any(|path| path.is_dir()) {
            destination.make(&mut packer)?;
        }
        for path in &found {
            if path.is_dir() {
                let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
                let mut entries = entries.map_err(failed)?;
                entries.sort_by_key(std::fs::DirEntry::file_name);
                for entry in entries.iter().filter(|entry| !is_left_out(&entry.path())) {
                    packer.tree(&destination.path.join(entry.file_name()), &entry.path(), &is_left_out)?;
                }
                continue;
            }
            match if copied.unpack { as_archive(path)? } else { None } {
                Some(archive) => packer.archive(archive, |name| destination.path.join(plain(name)))?,
                None => packer.tree(
                    &destination.of_file(path.file_name().unwrap_or_default()),
                    path,
                    &is_left_out,
                )?,
            }
        }
        packer.finish()
    }

    /// An archive of files of another template, which are had from a sandbox of it.
    pub(crate) async fn pack_template(
        &self,
        record: &Record,
        from: &Record,
        copied: &Copied<'_>,
        dress: Dress,
    ) -> Result<Packed> {
        let stack = self.jail.stack(record).await?;
        let sandbox = self.quiet_sandbox(from).await?;
        let work = async {
            let files = sandbox.files()?;
            let mut found = Vec::new();
            for source in copied.sources {
                let path = format!("/{}", source.trim_start_matches('/').trim_end_matches('/'));
                if !is_pattern(&path) {
                    found.push(path);
                    continue;
                }
                let (parent, pattern) = path.rsplit_once('/').unwrap_or(("", &path));
                let listed = files.list(&format!("{parent}/").parse()?, UserName::Root, 1).await?;
                let named = listed.iter().map(|entry| &entry.name).filter(|name| fits(pattern, name));
                found.extend(named.map(|name| format!("{parent}/{name}")));
            }
            let destination = Destination::new(copied.target, found.len(), &stack)?;
            let mut packer = Packer::new(dress)?;
            for path in &found {
                let place: FilePath = path.parse()?;
                let is_directory = files.stat(&place, UserName::Root).await?.kind == FileKind::Directory;
                let target = if is_directory {
                    destination.path.clone()
                } else {
                    destination.of_file(Path::new(path).file_name().unwrap_or_default())
                };
                if is_directory {
                    destination.make(&mut packer)?;
                }
                let stream = files.pack(&place, UserName::Root).await?;
                // What is packed begins with the last component of what was asked for.
                let relocate = move |name: &Path| {
                    let inner: PathBuf = plain(name).components().skip(1).collect();
                    if inner.as_os_str().is_empty() && is_directory {
                        PathBuf::new()
                    } else {
                        join(&target, &inner)
                    }
                };
                packer = repacked(packer, stream, relocate).await?;
            }
            packer.finish()
        };
        let packed = work.await;
        let ended = sandbox.cleanup().await;
        let packed = packed?;
        ended?;
        Ok(packed)
    }

    /// A template with the files of an archive on top.
    pub(crate) async fn lay(&self, record: &Record, packed: Packed) -> Result<Record> {
        let ground = self.jail.ground(record).await?;
        let arrival = Arrival {
            archive: packed.file,
            expected: None,
            below: &record.layers,
            ground: ground.as_deref(),
        };
        let laid = self.catalog.store().unpack(&self.held, (&*self.unpacker, MOST), arrival);
        Ok(record.clone().with(laid.map_err(|refused| refusal(&refused))?))
    }
}

fn join(target: &Path, inner: &Path) -> PathBuf {
    if inner.as_os_str().is_empty() { target.to_owned() } else { target.join(inner) }
}

/// A name without what says nothing.
fn plain(name: &Path) -> PathBuf {
    name.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir)).collect()
}

/// Takes what an archive has that comes piece by piece.
async fn repacked(
    mut packer: Packer,
    mut stream: ByteStream,
    relocate: impl Fn(&Path) -> PathBuf + Send + 'static,
) -> Result<Packer> {
    let (give, take) = tokio::sync::mpsc::channel::<Result<Bytes>>(WAITING);
    let reading = tokio::task::spawn_blocking(move || {
        packer.archive(Pieces { take, piece: Bytes::new() }, relocate).map(|()| packer)
    });
    while let Some(piece) = stream.next().await {
        let is_over = piece.is_err();
        if give.send(piece).await.is_err() || is_over {
            break;
        }
    }
    drop(give);
    reading
        .await
        .map_err(|error| Error::new(ErrorCode::Internal, format!("a worker thread failed: {error}")))?
}

/// Pieces as one file.
struct Pieces {
    take: tokio::sync::mpsc::Receiver<Result<Bytes>>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.take.blocking_recv() {
                None => return Ok(0),
                Some(Err(error)) => return Err(io::Error::other(error)),
                Some(Ok(piece)) => self.piece = piece,
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
