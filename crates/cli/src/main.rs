//! The `belljar` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    belljar_cli::main()
}
