//! The one place where an error number of the kernel becomes an [`Error`] that names its path.

use std::fmt::Display;
use std::io;

use belljar_core::{Error, ErrorCode};
use rustix::io::Errno;

/// The error for a path (or whatever else it happened to) and an error number.
pub(crate) fn at(what: impl Display, errno: Errno) -> Error {
    let (code, words) = explain(errno);
    let error = Error::new(code, format!("`{what}`: {words}"));
    match errno {
        Errno::NOSPC | Errno::DQUOT => {
            error.hint("the sandbox's disk is full; delete something or give it more with --disk")
        }
        Errno::MFILE | Errno::NFILE => error.hint("too many files are open in the sandbox"),
        _ => error,
    }
}

/// The error for a path and an error of the standard library.
pub(crate) fn at_io(what: impl Display, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(number) => at(what, Errno::from_raw_os_error(number)),
        None => Error::new(ErrorCode::Internal, format!("`{what}`: {error}")),
    }
}

/// The error for a path with an offence of our own wording.
pub(crate) fn offence(what: impl Display, offence: &str) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("`{what}`: {offence}"))
}

fn explain(errno: Errno) -> (ErrorCode, String) {
    let (code, words) = match errno {
        Errno::NOENT => (ErrorCode::NotFound, "no such file or directory"),
        Errno::ACCESS => (ErrorCode::PermissionDenied, "permission denied"),
        Errno::PERM => (ErrorCode::PermissionDenied, "operation not permitted"),
        Errno::ROFS => (ErrorCode::PermissionDenied, "the file system is read-only"),
        Errno::EXIST => (ErrorCode::AlreadyExists, "it exists already"),
        Errno::NOSPC | Errno::DQUOT => (ErrorCode::ResourceExhausted, "the disk limit is reached"),
        Errno::FBIG => (ErrorCode::ResourceExhausted, "the file size limit is reached"),
        Errno::MFILE | Errno::NFILE => (ErrorCode::ResourceExhausted, "too many open files"),
        Errno::AGAIN => (ErrorCode::ResourceExhausted, "the kernel has no room for it now"),
        Errno::NOMEM => (ErrorCode::ResourceExhausted, "out of memory"),
        Errno::ISDIR => (ErrorCode::InvalidArgument, "is a directory"),
        Errno::NOTDIR => (ErrorCode::InvalidArgument, "a part of the path is not a directory"),
        Errno::LOOP => (ErrorCode::InvalidArgument, "too many symbolic links"),
        Errno::NAMETOOLONG => (ErrorCode::InvalidArgument, "the name is too long"),
        Errno::INVAL => (ErrorCode::InvalidArgument, "the kernel calls it invalid"),
        Errno::XDEV => (ErrorCode::InvalidArgument, "it would leave its file system"),
        Errno::NXIO => (ErrorCode::InvalidArgument, "is not a regular file"),
        Errno::BUSY | Errno::TXTBSY => (ErrorCode::InvalidArgument, "is in use"),
        Errno::NOTEMPTY => (ErrorCode::AlreadyExists, "the directory is not empty"),
        other => return (ErrorCode::Internal, io::Error::from(other).to_string()),
    };
    (code, words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_names_its_path_and_says_why_in_words() {
        let error = at("/data/x", Errno::NOSPC);
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
        assert_eq!(error.message, "`/data/x`: the disk limit is reached");
        assert_eq!(at("y", Errno::IO).code, ErrorCode::Internal);
    }
}
