//! The host's side of a copy: streams from its files and directories, and files written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use belljar_core::{ByteStream, Error, ErrorCode, Result};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::args::Source;
use crate::transfer::Limit;
use crate::{args, pack, unpack};

const PIECE: usize = 256 * 1024;

/// The bytes of anything readable.
pub(crate) fn bytes_of(
    reader: impl tokio::io::AsyncRead + Unpin + Send + 'static,
    path: PathBuf,
) -> ByteStream {
    Box::pin(stream::unfold(Some((reader, path)), |state| async move {
        let (mut reader, path) = state?;
        let mut piece = BytesMut::with_capacity(PIECE);
        match reader.read_buf(&mut piece).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(piece.freeze()), Some((reader, path)))),
            Err(error) => Some((Err(args::unreadable(&path, &error)), None)),
        }
    }))
}

/// A file or directory as a tar stream: a directory's content, or the file under `name`.
pub(crate) fn tar_of(source: Source, name: String) -> ByteStream {
    let (sender, receiver) = mpsc::channel(4);
    let pack = move || {
        let mut archive = tar::Builder::new(io::BufWriter::with_capacity(PIECE, Pipe(sender.clone())));
        let packed = match source {
            Source::File { path, file } => pack::append_file(&mut archive, &path, &file, Path::new(&name)),
            Source::Directory { path, directory } => {
                pack::append_directory(&mut archive, &path, &directory, Path::new(""))
            }
        };
        let finished = packed.and_then(|()| {
            let whole = archive.into_inner().and_then(|mut buffer| buffer.flush());
            whole.map_err(|error| Error::new(ErrorCode::Internal, format!("cannot end the archive: {error}")))
        });
        if let Err(error) = finished {
            let _ = sender.blocking_send(Err(error));
        }
    };
    tokio::task::spawn_blocking(pack);
    Box::pin(stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    }))
}

/// The writing end of a stream; it fails when nobody reads any more.
struct Pipe(mpsc::Sender<Result<Bytes>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a stream to a file of the host. What was there stays until everything has arrived.
pub(crate) async fn write_file(path: &Path, content: ByteStream, limit: Limit) -> Result<()> {
    let unwritable = |error: io::Error| args::unwritable(path, &error);
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(_) => path.to_owned(),
    };
    let in_place = fs::metadata(&target).is_ok_and(|metadata| !metadata.is_file());
    if in_place {
        let file = tokio::fs::OpenOptions::new().write(true).open(&target).await.map_err(unwritable)?;
        return pour(path, content, file, limit).await;
    }
    let draft = Draft::beside(&target).map_err(unwritable)?;
    let file = draft.file.try_clone().map_err(unwritable)?;
    pour(path, content, tokio::fs::File::from_std(file), limit).await?;
    draft.rename(&target).map_err(unwritable)
}

async fn pour(
    path: &Path,
    mut content: ByteStream,
    mut file: tokio::fs::File,
    mut limit: Limit,
) -> Result<()> {
    while let Some(piece) = content.next().await {
        let piece = piece?;
        limit.spend(piece.len() as u64)?;
        file.write_all(&piece).await.map_err(|error| args::unwritable(path, &error))?;
    }
    file.flush().await.map_err(|error| args::unwritable(path, &error))
}

/// A file that is removed again unless it is renamed to what it was made for.
struct Draft {
    file: File,
    path: Option<PathBuf>,
}

impl Draft {
    fn beside(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut draft_name = std::ffi::OsString::from(".");
        let short: String = name.to_string_lossy().chars().take(40).collect();
        draft_name.push(format!("{short}.belljar-{}", std::process::id()));
        let path = target.with_file_name(draft_name);
        // Never more open than what it will replace.
        let mode = fs::metadata(target).map_or(0o666, |before| before.mode() & 0o777);
        let file = File::options().write(true).create_new(true).mode(mode).open(&path)?;
        Ok(Self { file, path: Some(path) })
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        if let Some(path) = &self.path {
            if let Ok(before) = fs::metadata(target) {
                // New content does not inherit the right to run as another user.
                self.file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))?;
            }
            fs::rename(path, target)?;
            self.path = None;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Unpacks a tar stream from a sandbox below a directory of the host; answers what was left out and why.
pub(crate) async fn unpack_into(
    directory: PathBuf,
    strip: bool,
    content: ByteStream,
    limit: Limit,
) -> Result<unpack::LeftOut> {
    let (sender, receiver) = mpsc::channel::<Result<Bytes>>(4);
    let feed = async move {
        let mut content = content;
        while let Some(piece) = content.next().await {
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    };
    let work = tokio::task::spawn_blocking(move || {
        let mut reader = Arriving { receiver, piece: Bytes::new(), failure: None };
        let unpacked = unpack::unpack(&mut reader, &directory, strip, limit);
        // A stream that broke off looks like a short archive; its own error says why.
        reader.failure.map_or(unpacked, Err)
    });
    let ((), unpacked) = tokio::join!(feed, work);
    unpacked.map_err(|error| Error::new(ErrorCode::Internal, format!("the unpacking failed: {error}")))?
}

/// The reading end of a stream, for code that blocks.
struct Arriving {
    receiver: mpsc::Receiver<Result<Bytes>>,
    piece: Bytes,
    failure: Option<Error>,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => {
                    self.failure = Some(error.clone());
                    return Err(io::Error::other(error));
                }
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
