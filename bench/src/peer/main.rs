//! What the client of the bench speaks with: a server, and the least that a proxy can be.

#![forbid(unsafe_code)]

mod proxy;
mod server;

use std::process::ExitCode;

const HELP: &str = "\
The server and the proxy of the bench. Each says `ready` once it can be reached, and ends when it is killed.

Usage: belljar-peer serve ADDRESS           answer `GET /BYTES` and `PUT /` of HTTP/1.1, and `down BYTES` and `up BYTES`
       belljar-peer proxy ADDRESS SERVER    pass on every connection to a server as it is; with the address `-`,
                                           those to the socket at standard input
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["serve", address] => server::run(address),
        ["proxy", address, server] => proxy::run(address, server),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("belljar-peer: {error}");
            ExitCode::FAILURE
        }
    }
}
