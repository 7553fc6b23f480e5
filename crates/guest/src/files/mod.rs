//! The file operations, as they run in a worker: as the user who asked, in the sandbox's own view.

mod descent;
mod list;
mod pack;
mod place;
mod read_write;
mod unpack;
mod watch;

use belljar_core::Error;
use belljar_core::wire::{Event, FileOperation};

use crate::worker::Answer;
use place::Place;

/// Does one operation and answers for it; an error is for the caller to answer.
pub(crate) fn run(operation: FileOperation, home: &str, answer: &mut Answer) -> Result<(), Error> {
    let at = |path: &belljar_core::FilePath| Place::new(home, path);
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
        FileOperation::Unpack { path } => unpack::unpack(&at(&path))?,
        FileOperation::Pack { path } => pack::pack(&at(&path), answer)?,
        FileOperation::Watch { path } => return watch::watch(&at(&path), answer),
    }
    answer.event(&Event::Done)
}
