//! The file operations, as they run in a worker: as the user who asked, in the sandbox's own view.

mod descent;
mod list;
mod pack;
mod place;
mod read_write;
mod unpack;
mod watch;

use std::path::{Path, PathBuf};

use belljar_core::wire::{Event, FileOperation};
use belljar_core::{Error, ErrorCode, FilePath};

use crate::worker::Answer;
use place::Place;

pub use unpack::inside;

/// Does one operation and answers for it; an error is for the caller to answer.
pub(crate) fn run(operation: FileOperation, home: &str, answer: &mut Answer) -> Result<(), Error> {
    let at = |path: &FilePath| Place::new(home, path);
    match operation {
        FileOperation::Read { path } => read_write::read(&at(&path), answer)?,
        FileOperation::Write { path, mode } => read_write::write(&at(&path), mode)?,
        FileOperation::Stat { path } => return list::stat(&at(&path), answer),
        FileOperation::List { path, depth } => list::list(&at(&path), depth, answer)?,
        FileOperation::MakeDir { path } => {
            let new = place::make_directories(&at(&path))?;
            return answer.event(&Event::Made { new });
        }
        FileOperation::Rename { from, to } => place::rename(&at(&from), &at(&to))?,
        FileOperation::Remove { path } => descent::remove(&at(&path))?,
        FileOperation::Unpack { path } => unpack::unpack(read_write::input(), &at(&path))?,
        FileOperation::Pack { path } => pack::pack(&at(&path), answer)?,
        FileOperation::Watch { path } => return watch::watch(&at(&path), answer),
    }
    answer.event(&Event::Done)
}

/// Takes an archive apart below a directory.
pub(crate) fn unpack_from(archive: &[u8], directory: &Path) -> Result<(), Error> {
    let text = directory.to_str().ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "not a text"))?;
    unpack::unpack(archive, &Place::new("/", &text.parse()?))
}

/// Where a path of a request is.
pub(crate) fn place_of(home: &str, path: &FilePath) -> PathBuf {
    Place::new(home, path).path().to_owned()
}
