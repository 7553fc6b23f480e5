//! The program that is the first process inside every sandbox; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    belljar_guest::main()
}
