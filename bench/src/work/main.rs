//! The load that the bench puts inside and outside of a sandbox: the same program in both places. It says how long
//! its loop took, in nanoseconds, so that its start does not count. Its bombs are for the inside of a sandbox only.

#![forbid(unsafe_code)]

mod client;
#[path = "../flow.rs"]
mod flow;
mod secure;

use std::fs;
use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::flow::Kind;

const HELP: &str = "\
The load of the bench: prints how many nanoseconds its loop took.

Usage: belljar-work cpu COUNT            mix numbers, without a system call
       belljar-work syscalls COUNT       getppid, and one byte written and read back
       belljar-work files COUNT FOLDER   create, write, read, stat and remove small files
       belljar-work ask fresh|kept COUNT HOST:PORT
                                         make requests of HTTP, each on a connection of its own or all on one; prints
                                         the nanoseconds of each, its connection included
       belljar-work move down|up raw|http BYTES HOST:PORT
                                         move this much on one connection
       belljar-work pace down|up noise|text BYTES-A-SECOND BYTES HOST:PORT [CERTIFICATES]
                                         move this much by HTTP, of this kind and no faster; over TLS, with certificates
       belljar-work ask-tls COUNT HOST:PORT CERTIFICATES
                                         make requests over TLS, all on one connection
       belljar-work load-tls CONNECTIONS SECONDS HOST:PORT CERTIFICATES
                                         make as many as can be made on so many; prints how many in a second
       belljar-work stream COUNT         hold so many answers of the gateway's that stream
       belljar-work bomb KIND SECONDS    take all there is: processors, memory or sockets (only inside a sandbox!)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let outcome = match arguments.as_slice() {
        ["--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["cpu", count] if number(count).is_some() => timed(|| mix(number(count).unwrap_or(0))),
        ["syscalls", count] if number(count).is_some() => timed(|| calls(number(count).unwrap_or(0))),
        ["files", count, folder] if number(count).is_some() => {
            timed(|| files(number(count).unwrap_or(0), Path::new(folder)))
        }
        ["ask", how @ ("fresh" | "kept"), count, host] if number(count).is_some() => {
            client::ask(*how == "kept", number(count).unwrap_or(0), host)
        }
        ["move", way @ ("down" | "up"), form @ ("raw" | "http"), bytes, host] if number(bytes).is_some() => {
            let bytes = number(bytes).unwrap_or(0);
            let load =
                client::Load { up: *way == "up", http: *form == "http", bytes, kind: Kind::Same, pace: None };
            client::connect(host).and_then(|stream| load.carry(stream, host))
        }
        ["pace", way @ ("down" | "up"), kind @ ("noise" | "text"), pace, bytes, host, believed @ ..]
            if number(pace).is_some() && number(bytes).is_some() && believed.len() < 2 =>
        {
            let kind = if *kind == "text" { Kind::Text } else { Kind::Noise };
            let (pace, bytes) = (number(pace), number(bytes).unwrap_or(0));
            let load = client::Load { up: *way == "up", http: true, bytes, kind, pace };
            match believed {
                [believed] => secure::Server::new(host, Path::new(believed))
                    .and_then(|server| load.carry(server.connect()?, host)),
                _ => client::connect(host).and_then(|stream| load.carry(stream, host)),
            }
        }
        ["ask-tls", count, host, believed] if number(count).is_some() => {
            secure::Server::new(host, Path::new(believed))
                .and_then(|server| server.ask(number(count).unwrap_or(0)))
        }
        ["load-tls", connections, seconds, host, believed]
            if number(connections).is_some() && number(seconds).is_some() =>
        {
            let span = Duration::from_secs(number(seconds).unwrap_or(0));
            secure::Server::new(host, Path::new(believed))
                .and_then(|server| server.load(number(connections).unwrap_or(0), span))
        }
        ["stream", count] if number(count).is_some() => secure::stream(number(count).unwrap_or(0)),
        ["bomb", kind @ ("processors" | "memory" | "sockets"), seconds] if number(seconds).is_some() => {
            bomb(kind, Duration::from_secs(number(seconds).unwrap_or(0)))
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("belljar-work: {error}");
            ExitCode::FAILURE
        }
    }
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    work()?;
    println!("{}", start.elapsed().as_nanos());
    Ok(())
}

/// A chain of multiplications, each of which needs the one before.
fn mix(count: u64) -> io::Result<()> {
    let mut state = black_box(0x9E37_79B9_7F4A_7C15u64);
    for number in 0..count {
        state = (state ^ number).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state ^= state >> 27;
    }
    black_box(state);
    Ok(())
}

fn calls(count: u64) -> io::Result<()> {
    let (mut reader, mut writer) = io::pipe()?;
    let mut byte = [0];
    for _ in 0..count {
        black_box(std::os::unix::process::parent_id());
        black_box(std::os::unix::process::parent_id());
        writer.write_all(b"x")?;
        reader.read_exact(&mut byte)?;
    }
    Ok(())
}

fn files(count: u64, folder: &Path) -> io::Result<()> {
    let content = [b'b'; 1024];
    let mut back = Vec::with_capacity(content.len());
    for number in 0..count {
        let path = folder.join(format!("file-{}", number % 512));
        let mut file = fs::File::options().read(true).write(true).create_new(true).open(&path)?;
        file.write_all(&content)?;
        file.seek(SeekFrom::Start(0))?;
        back.clear();
        file.read_to_end(&mut back)?;
        if fs::metadata(&path)?.len() != back.len() as u64 {
            return Err(io::Error::other("a file came back short"));
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

/// Takes what it can for this long. Whatever it asks for is bounded by the sandbox around it.
fn bomb(kind: &str, span: Duration) -> io::Result<()> {
    println!("lit");
    io::stdout().flush()?;
    let end = Instant::now() + span;
    match kind {
        "processors" => {
            let spin = move || {
                while Instant::now() < end {
                    let _ = mix(100_000);
                }
            };
            let others: Vec<_> = (0..3).map(|_| std::thread::spawn(spin)).collect();
            spin();
            for other in others {
                let _ = other.join();
            }
        }
        "memory" => {
            let mut held = Vec::new();
            while Instant::now() < end {
                held.push(black_box(vec![1u8; 1 << 20]));
            }
        }
        _ => {
            while Instant::now() < end {
                let mut held = Vec::new();
                while Instant::now() < end {
                    let Ok((mut one, other)) = UnixStream::pair() else { break };
                    one.set_nonblocking(true)?;
                    while one.write(&[0; 4096]).is_ok() {}
                    held.push((one, other));
                }
            }
        }
    }
    Ok(())
}
