//! What can go wrong while measuring.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be measured. A rival that cannot be started is not an error of the bench; it is reported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A file could not be read or written.
    #[error("cannot use {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A program was started and failed.
    #[error("{program} failed: {why}")]
    Failed {
        /// Which.
        program: String,
        /// Its exit status and last words.
        why: String,
    },
    /// A program that is built with this one is not beside it.
    #[error("{0} is missing; `make bench` builds all that is needed")]
    Unbuilt(PathBuf),
    /// Belljar could not do what was asked.
    #[error("{message}{}", .hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default())]
    Belljar {
        /// What it said.
        message: String,
        /// What it advised.
        hint: Option<String>,
    },
    /// Something that must hold for a number to mean anything does not.
    #[error("{0}")]
    Invalid(String),
}

impl From<belljar_core::Error> for BenchError {
    fn from(error: belljar_core::Error) -> Self {
        Self::Belljar { message: error.message, hint: error.hint }
    }
}

/// The result of measuring.
pub(crate) type Result<T> = std::result::Result<T, BenchError>;

/// Says which file it was.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> BenchError {
    let path = path.to_owned();
    move |source| BenchError::File { path, source }
}
