//! What launcher and monitor say for people: lines in the log of the data directory.

use std::fmt;
use std::io::{self, Write};

/// Writes a line, or does without: the disk may be full, and nothing here is worth dying for.
pub(crate) fn note(words: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{words}");
}
