//! What the client of the bench speaks with: a server, and the least that a proxy can be.

#![forbid(unsafe_code)]

mod files;
#[path = "../flow.rs"]
mod flow;
mod proxy;
mod server;
mod tls;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
The server and the proxy of the bench. Each says `ready` once it can be reached, and ends when it is killed.

Usage: belljar-peer serve ADDRESS [KEY CERTIFICATE]
                                           answer `GET /BYTES`, `GET /noise|text/BYTES-A-SECOND/BYTES` and `PUT /` of HTTP/1.1,
                                           and `down BYTES` and `up BYTES`; over TLS, with a key
       belljar-peer proxy ADDRESS SERVER    pass on every connection to a server as it is; with the address `-`,
                                           those to the socket at standard input
       belljar-peer serve-tls ADDRESS KEY CERTIFICATE
                                           answer every request over TLS, of HTTP/1.1 or HTTP/2
       belljar-peer serve-files ADDRESS DIRECTORY BYTES-A-SECOND KEY CERTIFICATE
                                           the files of a directory over TLS, behind a line that all clients share
       belljar-peer provide ADDRESS MILLISECONDS
                                           stream an answer for as long as it is listened to, a word each time
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["serve", address] => server::run(address, None),
        ["serve", address, key, certificate] => {
            server::run(address, Some((Path::new(key), Path::new(certificate))))
        }
        ["serve-tls", address, key, certificate] => tls::run(address, Path::new(key), Path::new(certificate)),
        ["serve-files", address, directory, pace, key, certificate] if pace.parse::<u64>().is_ok() => {
            let identity = (Path::new(key), Path::new(certificate));
            files::run(address, Path::new(directory), pace.parse().unwrap_or(1), identity)
        }
        ["provide", address, every] if every.parse::<u64>().is_ok() => {
            tls::run_provider(address, Duration::from_millis(every.parse().unwrap_or(0)))
        }
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
