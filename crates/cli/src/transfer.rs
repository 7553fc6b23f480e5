//! Copying between the host and a sandbox, for `cp`, `--file` and `--out`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_core::{ByteSize, Error, ErrorCode, FileKind, FilePath, Result, Sandbox, UserName, Wall};

use crate::args::{Fetch, Source, Upload};
use crate::host_files;
use crate::print::Printer;
use crate::print::progress::shown;
use crate::unpack::LeftOut;

/// The most that `--out` brings out of a sandbox, as for `cp --max-size` when none is given.
pub(crate) const MOST: ByteSize = ByteSize::gib(16);

/// How many bytes may still come out of a sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    most: u64,
    left: u64,
}

impl Limit {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, left: most }
    }

    /// Takes so many bytes off, or says that it was too much.
    pub(crate) fn spend(&mut self, bytes: u64) -> Result<()> {
        if !Wall::CopyBound.stands() {
            return Ok(());
        }
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            Error::new(
                ErrorCode::ResourceExhausted,
                format!("more came out of the sandbox than {}", ByteSize(self.most)),
            )
            .hint("allow more with `belljar cp --max-size SIZE`, or copy less")
        })?;
        Ok(())
    }
}

/// One side of a copy and how it is made.
#[derive(Clone, Copy)]
pub(crate) struct Transfer<'a> {
    /// The sandbox.
    pub(crate) sandbox: &'a dyn Sandbox,
    /// As whom.
    pub(crate) user: UserName,
    /// How to show progress and what was left out.
    pub(crate) printer: Printer,
}

impl Transfer<'_> {
    /// Copies what `--file` named.
    pub(crate) async fn upload(&self, upload: Upload) -> Result<()> {
        let name = upload.to.as_str().rsplit('/').find(|part| !part.is_empty()).unwrap_or("file").to_owned();
        match upload.source {
            Source::Directory { path, directory } => self.directory_in(path, directory, &upload.to).await,
            Source::File { path, file } => self.file_in(path, file, &upload.to, name).await,
        }
    }

    async fn directory_in(&self, path: PathBuf, directory: std::fs::File, to: &FilePath) -> Result<()> {
        let files = self.sandbox.files()?;
        files.make_dir(to, self.user).await?;
        let name = path.display().to_string();
        let archive = host_files::tar_of(Source::Directory { path, directory }, String::new());
        files.unpack(to, self.user, shown(archive, self.printer, &name, None)).await
    }

    /// A plain upload carries bytes only, so an executable goes as an archive of one file where that can be.
    async fn file_in(&self, path: PathBuf, file: std::fs::File, to: &FilePath, name: String) -> Result<()> {
        let metadata = file.metadata().map_err(|error| crate::args::unreadable(&path, &error))?;
        let title = path.display().to_string();
        let total = Some(metadata.len()).filter(|_| metadata.is_file());
        let executable = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
        if let (true, Ok(files)) = (executable, self.sandbox.files()) {
            let parent: FilePath = match to.as_str().trim_end_matches('/').rsplit_once('/') {
                None => ".".parse()?,
                Some(("", _)) => "/".parse()?,
                Some((parent, _)) => parent.parse()?,
            };
            files.make_dir(&parent, self.user).await?;
            let archive = host_files::tar_of(Source::File { path, file }, name);
            return files.unpack(&parent, self.user, shown(archive, self.printer, &title, total)).await;
        }
        let content = host_files::bytes_of(tokio::fs::File::from_std(file), path);
        self.sandbox.upload(to, self.user, shown(content, self.printer, &title, total)).await.map(drop)
    }

    /// Copies a file or directory into an existing directory, or to that very path.
    pub(crate) async fn copy_in(&self, source: Source, to: &FilePath) -> Result<()> {
        let path = match &source {
            Source::File { path, .. } | Source::Directory { path, .. } => path.clone(),
        };
        let into_directory = to.as_str().ends_with('/') || self.is_directory(to).await?;
        let to = match into_directory {
            false => to.clone(),
            true => {
                let whole = path.canonicalize().map_err(|error| crate::args::unreadable(&path, &error))?;
                let name = whole.file_name().and_then(|name| name.to_str()).ok_or_else(|| nameless(&path))?;
                format!("{}/{name}", to.as_str().trim_end_matches('/')).parse()?
            }
        };
        self.upload(Upload { source, to }).await
    }

    async fn is_directory(&self, path: &FilePath) -> Result<bool> {
        let Ok(files) = self.sandbox.files() else { return Ok(false) };
        match files.stat(path, self.user).await {
            Ok(entry) => Ok(entry.kind == FileKind::Directory),
            Err(error) if error.code == ErrorCode::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies what `--out` named.
    pub(crate) async fn fetch(&self, fetch: &Fetch) -> Result<()> {
        self.copy_out(&fetch.from, &fetch.to, Limit::new(MOST.0)).await
    }

    /// Copies a file or directory of the sandbox into an existing directory of the host, or to that very path.
    pub(crate) async fn copy_out(&self, from: &FilePath, to: &Path, limit: Limit) -> Result<()> {
        let entry = match self.sandbox.files() {
            Ok(files) => Some(files.stat(from, self.user).await?),
            Err(_) => None,
        };
        let name = from
            .as_str()
            .rsplit('/')
            .find(|part| !part.is_empty())
            .filter(|part| !matches!(*part, "." | ".."));
        let to = match (to.is_dir(), name) {
            (false, _) => to.to_owned(),
            (true, Some(name)) => to.join(name),
            (true, None) => return Err(nameless(Path::new(from.as_str()))),
        };
        match entry {
            Some(entry) if entry.kind == FileKind::Directory => {
                let archive = self.sandbox.files()?.pack(from, self.user).await?;
                let archive = shown(archive, self.printer, from.as_str(), None);
                left_out(host_files::unpack_into(to, name.is_some(), archive, limit).await?, self.printer)
            }
            Some(entry) if entry.kind == FileKind::Other && Wall::RegularFiles.stands() => {
                let message = format!("`{}` is neither a file nor a directory", from.as_str().escape_debug());
                Err(Error::new(ErrorCode::InvalidArgument, message).hint("copy a file or a directory"))
            }
            entry => {
                let total = entry.filter(|entry| entry.kind == FileKind::File).map(|entry| entry.size);
                let content = self.sandbox.download(from, self.user).await?;
                host_files::write_file(&to, shown(content, self.printer, from.as_str(), total), limit).await
            }
        }
    }
}

fn nameless(path: &Path) -> Error {
    let shown = path.display().to_string();
    Error::new(ErrorCode::InvalidArgument, format!("`{}` has no name to copy it under", shown.escape_debug()))
        .hint("name the destination in full, as a path that does not exist yet")
}

/// Names what was not made, and fails if there was anything.
fn left_out(entries: LeftOut, printer: Printer) -> Result<()> {
    let LeftOut { first, count } = entries;
    if count == 0 {
        return Ok(());
    }
    first.iter().for_each(|entry| printer.notice(&format!("left out {entry}")));
    if count > first.len() {
        printer.notice(&format!("left out {} more", count - first.len()));
    }
    let plural = if count == 1 { "entry was" } else { "entries were" };
    Err(Error::new(ErrorCode::PermissionDenied, format!("{count} {plural} not copied; everything else was"))
        .hint("links that leave the destination, devices and pipes never come out of a sandbox"))
}
