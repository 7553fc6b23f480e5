//! The `belljar` command: parses, wires, runs, prints, and passes on how it went. A library, so that the fuzz targets can
//! reach what reads foreign bytes; the program in `main.rs` only calls [`main`].

#![forbid(unsafe_code)]

mod args;
mod commands;
mod door;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
mod host_files;
mod interrupt;
mod log;
mod outcome;
mod outlet;
mod pack;
mod print;
mod terminal;
#[cfg(test)]
mod testing;
mod transfer;
mod unpack;
mod wiring;

use std::process::ExitCode;

use crate::args::{Cli, Parsed};
use crate::outcome::{Failure, Status};
use crate::print::Printer;

/// The whole program: reads the command line, does what it says, and answers with the exit status.
pub fn main() -> ExitCode {
    let printer = Printer::from_environment();
    #[cfg(feature = "ablation")]
    if let Err(error) = belljar_core::wall::ablation::read() {
        return finish(printer, Err(error.into()));
    }
    if let Some(status) = door::part().or_else(belljar_providers::unpacker::part) {
        return status;
    }
    match args::parse(std::env::args_os()) {
        Parsed::Command(cli) => {
            let printer = printer.with(&cli.global);
            finish(printer, run(*cli, printer))
        }
        Parsed::Text(text) => finish(printer, printer.out(&text).map(|()| Status::SUCCESS)),
        Parsed::Refused { error, json } => finish(Printer { json, ..printer }, Err(error.into())),
    }
}

fn run(cli: Cli, printer: Printer) -> Result<Status, Failure> {
    log::start(cli.global.log.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the event loop: {error}")))?;
    let result = runtime.block_on(commands::dispatch(cli, printer));
    // A write to a pipe that nobody reads any more must not hold up our own end.
    runtime.shutdown_background();
    result
}

fn finish(printer: Printer, result: Result<Status, Failure>) -> ExitCode {
    let status = match &result {
        Ok(status) => *status,
        Err(failure) => {
            printer.failure(failure);
            failure.status()
        }
    };
    status.into()
}
