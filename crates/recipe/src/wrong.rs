//! What is wrong with a recipe, and where.

use std::fmt;

use belljar_core::{Error, ErrorCode};

/// The first thing that is wrong with a recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Wrong {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, as a lower-case fragment.
    pub what: String,
    /// How to write it instead, where there is a way.
    pub hint: Option<String>,
}

impl Wrong {
    pub(crate) fn at(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.what)
    }
}

impl From<Wrong> for Error {
    fn from(wrong: Wrong) -> Self {
        let error = Self::new(ErrorCode::InvalidArgument, wrong.to_string());
        match wrong.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// Foreign text as it may stand in a message: escaped, and not too long.
pub(crate) fn quoted(text: &str) -> String {
    const MOST: usize = 80;
    let mut shown = String::with_capacity(MOST + 4);
    shown.push('`');
    shown.extend(text.chars().take(MOST).flat_map(char::escape_debug));
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown.push('`');
    // Quotes are escaped as in a literal, which nobody needs between backticks.
    shown.replace("\\\"", "\"").replace("\\'", "'")
}
