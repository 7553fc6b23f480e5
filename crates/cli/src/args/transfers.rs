//! `--file SRC:DST` and `--out PATH[:DEST]`.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, FilePath, Result};

use super::{in_option, wrong};

/// Something of the host to copy in, opened when the arguments were checked.
#[derive(Debug)]
pub(crate) enum Source {
    /// One file.
    File {
        /// Where it is, for messages.
        path: PathBuf,
        /// It, open for reading.
        file: File,
    },
    /// A directory with everything in it.
    Directory {
        /// Where it is, for messages.
        path: PathBuf,
        /// It, open: whatever comes to stand at the path later is not what was asked for.
        directory: File,
    },
}

impl Source {
    /// Opens a file or directory of the host, which proves that it can be read.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // A pipe without a writer would keep us waiting.
        let file = File::options().read(true).custom_flags(NONBLOCK).open(path);
        let file = file.map_err(|error| unreadable(path, &error))?;
        let kind = file.metadata().map_err(|error| unreadable(path, &error))?.file_type();
        if kind.is_dir() {
            return Ok(Self::Directory { path: path.to_owned(), directory: file });
        }
        if kind.is_fifo() || kind.is_socket() || kind.is_block_device() {
            return Err(unreadable(path, &std::io::Error::other("it is neither a file nor a directory")));
        }
        Ok(Self::File { path: path.to_owned(), file })
    }
}

const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

/// A file of the host cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
        _ => ErrorCode::InvalidArgument,
    };
    Error::new(code, format!("cannot read `{}`: {}", escaped(path), reason(error)))
        .hint("give a file or directory of this machine that you can read")
}

/// A file of the host cannot be written.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::ResourceExhausted,
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
        _ => ErrorCode::InvalidArgument,
    };
    Error::new(code, format!("cannot write `{}`: {}", escaped(path), reason(error)))
        .hint("choose a place on this machine that exists, that you can write to, and that has room")
}

/// The system's words without the number behind them.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

fn escaped(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// One `--file`.
#[derive(Debug)]
pub(crate) struct Upload {
    /// What to copy in.
    pub(crate) source: Source,
    /// Where to.
    pub(crate) to: FilePath,
}

impl Upload {
    /// Reads `SRC:DST`, split at the last colon, and opens SRC.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (from, to) = text
            .rsplit_once(':')
            .filter(|(from, to)| !from.is_empty() && !to.is_empty())
            .ok_or_else(|| {
                wrong("--file", format!("`{}` is not SRC:DST", text.escape_debug()))
                    .hint("name a file here and a path in the sandbox, such as data.csv:/home/user/data.csv")
            })?;
        let to = to.parse().map_err(|error| in_option("--file", error))?;
        let source = Source::open(Path::new(from)).map_err(|error| in_option("--file", error))?;
        Ok(Self { source, to })
    }

    /// The script that `run` was given.
    pub(super) fn script(path: &Path, to: FilePath) -> Result<Self> {
        Ok(Self { source: Source::open(path)?, to })
    }
}

/// One `--out`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    /// What to copy out.
    pub(crate) from: FilePath,
    /// Where to.
    pub(crate) to: PathBuf,
}

impl Fetch {
    /// Reads `PATH[:DEST]`, split at the first colon; the directory for DEST must be there.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (from, to) = match text.split_once(':') {
            Some((from, to)) => (from, to),
            None => (text, "."),
        };
        let from = from.parse().map_err(|error| in_option("--out", error))?;
        if to.is_empty() {
            return Err(wrong("--out", format!("`{}` names no DEST after the colon", text.escape_debug()))
                .hint("write --out PATH to copy it into the current directory, or --out PATH:DEST"));
        }
        let to = PathBuf::from(to);
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !to.is_dir() && !parent.is_dir() {
            let error = unwritable(&to, &io::Error::from(io::ErrorKind::NotFound));
            return Err(in_option("--out", error));
        }
        Ok(Self { from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_options_are_checked_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in:put");
        std::fs::write(&file, "x").unwrap();
        let upload = Upload::parse(&format!("{}:data.csv", file.display())).unwrap();
        assert_eq!(upload.to.as_str(), "data.csv", "split at the last colon");
        assert!(matches!(upload.source, Source::File { .. }));
        let upload = Upload::parse(&format!("{}:data", dir.path().display())).unwrap();
        assert!(matches!(upload.source, Source::Directory { .. }));

        for (text, word) in [
            ("data.csv", "SRC:DST"),
            (":x", "SRC:DST"),
            ("x:", "SRC:DST"),
            ("/nonexistent/file:x", "/nonexistent/file"),
            ("/dev/null:a\nb", "newline"),
            ("/dev/null:a\0b", "NUL"),
        ] {
            let error = Upload::parse(text).unwrap_err();
            assert!(error.message.contains("--file") && error.message.contains(word), "{error}");
            assert!(error.hint.is_some());
        }
        let long = format!("/dev/null:{}", "a/".repeat(2100));
        assert!(Upload::parse(&long).unwrap_err().message.contains("4095"));
    }

    #[test]
    fn out_options_name_a_place_that_is_there() {
        assert_eq!(Fetch::parse("plot.png").unwrap().to, PathBuf::from("."));
        assert_eq!(Fetch::parse("plot.png:here.png").unwrap().to, PathBuf::from("here.png"));
        for text in ["", "plot.png:", "plot.png:/nonexistent/dir/plot.png", "a\nb"] {
            assert!(Fetch::parse(text).unwrap_err().message.contains("--out"), "{text}");
        }
    }
}
