//! Recordings: every exchange of a sandbox in one file, and the same run again from it.

mod entry;
mod file;
mod find;
mod forms;
mod frames;
mod har;
pub mod shelf;
mod veil;

pub use entry::{Content, Entry, Exchange, Header, Lookup, Mark, Meta, Stream, Way};
pub use file::{Hash, MAX_PIECE, Reader, Summary, What, Writer};
pub use find::{Finder, Missing, Question};
pub use frames::Unmask;
pub use har::har;
pub use veil::{Veil, Veiling};
