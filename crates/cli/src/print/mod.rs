//! What people and programs read: results on standard output, errors and notices on standard error.

pub(crate) mod escape;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod table;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use belljar_core::Error;
use serde::Serialize;

use crate::args::Global;
use crate::outcome::Failure;

/// How to print.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Printer {
    /// One JSON object instead of text.
    pub(crate) json: bool,
    /// No notices.
    pub(crate) quiet: bool,
    /// Whether standard output is a terminal.
    pub(crate) to_terminal: bool,
    /// Whether standard error is a terminal.
    pub(crate) errors_to_terminal: bool,
    /// Whether messages on standard error may have colours.
    pub(crate) colour: bool,
}

/// Whether texts on standard output may have colours.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && colour_wanted()
}

fn colour_wanted() -> bool {
    let unset_or_empty = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
    unset_or_empty("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

impl Printer {
    /// As the terminal and `NO_COLOR` say.
    pub(crate) fn from_environment() -> Self {
        let errors_to_terminal = io::stderr().is_terminal();
        Self {
            json: false,
            quiet: false,
            to_terminal: io::stdout().is_terminal(),
            errors_to_terminal,
            colour: errors_to_terminal && colour_wanted(),
        }
    }

    /// As the options say on top.
    pub(crate) fn with(self, global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet, ..self }
    }

    /// Prints a text on standard output.
    pub(crate) fn out(self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::output(&error))
    }

    /// Prints one JSON object and a newline on standard output.
    pub(crate) fn object(self, object: &impl Serialize) -> Result<(), Failure> {
        self.out(&json::line(object)?)
    }

    /// A name or text that came from inside a sandbox: harmless on a terminal, unchanged elsewhere.
    pub(crate) fn foreign(self, text: &str) -> Cow<'_, str> {
        if self.to_terminal { escape::escape(text) } else { Cow::Borrowed(text) }
    }

    /// Says something on standard error that is not an error, unless told to be quiet.
    pub(crate) fn notice(self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "belljar: {}", escape::escape(text));
        }
    }

    /// Says on standard error what is wrong with something that was looked at.
    pub(crate) fn complaint(self, text: &str) {
        let _ = writeln!(io::stderr(), "{}", escape::escape(text));
    }

    /// Prints what went wrong: always on standard error, and as an object on standard output with `--json`.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure::Error(error) = failure else { return };
        self.error(error);
        if self.json {
            let _ = self.object(&serde_json::json!({ "error": json::error(error) }));
        }
    }

    /// Prints an error on standard error.
    pub(crate) fn error(self, error: &Error) {
        let _ = io::stderr().write_all(self.error_text(error).as_bytes());
    }

    fn error_text(self, error: &Error) -> String {
        let (red, cyan, plain) =
            if self.colour { ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") } else { ("", "", "") };
        let mut text = format!("{red}error:{plain} {}\n", escape::escape(&error.message));
        if let Some(hint) = &error.hint {
            text += &format!("  {cyan}hint:{plain} {}\n", escape::escape(hint));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::ErrorCode;

    use super::*;

    #[test]
    fn an_error_is_two_lines_whatever_is_in_it() {
        let error = Error::new(ErrorCode::NotFound, "no file `a\x1b[2J\nb`").hint("look again");
        let text = Printer::default().error_text(&error);
        assert_eq!(text, "error: no file `a\\x1b[2J\\nb`\n  hint: look again\n");
        let coloured = Printer { colour: true, ..Printer::default() }.error_text(&error);
        assert!(coloured.starts_with("\x1b[1;31merror:\x1b[0m no file"));
    }
}
