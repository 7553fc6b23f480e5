//! The floor: how fast a process can be put into the same namespaces, mounts and cgroups that Belljar's jail uses, when
//! nothing else is done; and, as the least, into one of each kind. No filter, no Landlock, no guest, no monitor, no template. It is what the bench
//! divides by, so it is written to be fast and is of no other use: it is not a sandbox.

mod cgroup;
mod child;
mod launch;
mod stage;

use std::ffi::CString;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use cgroup::Hierarchies;
use launch::{Extent, Launcher, Times};
use stage::Mount;

const HELP: &str = "\
The least that a sandbox can cost on this machine.

Usage: belljar-floor ROUNDS [PROGRAM ARGUMENT...]   time so many launches (default program: /bin/true)
       belljar-floor check                          show from inside that every part is there
       belljar-floor serve [MOUNT...]               launch what each line of standard input asks for

A line for `serve` is `bare`, `least` or `floor`, then the program and its arguments, separated by tabs. The floor has
the mounts of a sandbox that are given: a directory is a copy-on-write layer, a path below /proc is covered, and behind
`ro:` it is only to be read (default: a few); and its own directories, devices and cgroups. The least has one of each. The answer is a line
of two numbers, in nanoseconds: until the program was reaped, and until its cgroups were removed as well.

Needs root. It is a measure, not a sandbox: it has none of the filters.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["--help" | "-h" | "help"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["serve", mounts @ ..] => serve(mounts),
        ["check"] => check(),
        [rounds, command @ ..] if rounds.parse::<usize>().is_ok_and(|rounds| rounds > 0) => {
            let command = if command.is_empty() { &["/bin/true"] } else { command };
            measure(rounds.parse().unwrap_or(1), command)
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn strings(words: &[&str]) -> io::Result<Vec<CString>> {
    words.iter().map(|word| CString::new(*word).map_err(io::Error::other)).collect()
}

fn measure(rounds: usize, command: &[&str]) -> io::Result<()> {
    let command = strings(command)?;
    let mut launcher = launcher(&[])?;
    let (mut bare, mut least, mut reaped, mut removed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare.push(launcher.bare(&command)?.reaped);
        least.push(launcher.floor(&command, Extent::Least)?.reaped);
        let times = launcher.floor(&command, Extent::Same)?;
        reaped.push(times.reaped);
        removed.push(times.removed);
    }
    println!("{:<34} {:>9} {:>9}", format!("{rounds} rounds, in milliseconds"), "median", "p99");
    for (name, mut times) in [
        ("bare fork and exec", bare),
        ("least, reaped", least),
        ("floor, reaped", reaped),
        ("floor, cgroups removed", removed),
    ] {
        times.sort_unstable();
        let at = |percent: usize| times[((times.len() - 1) * percent).div_ceil(100)] as f64 / 1e6;
        println!("{name:<34} {:>9.3} {:>9.3}", at(50), at(99));
    }
    Ok(())
}

fn launcher(mounts: &[&str]) -> io::Result<Launcher> {
    let few = &["/usr", "/proc/keys", "/proc/kmsg", "/proc/fs", "/proc/irq", "ro:/proc/sys"];
    let mounts = if mounts.is_empty() { few } else { mounts };
    let mounts: Vec<Mount> = mounts.iter().map(|word| Mount::parse(word)).collect();
    Launcher::new(Hierarchies::detect()?, &mounts)
}

fn serve(mounts: &[&str]) -> io::Result<()> {
    let mut launcher = launcher(mounts)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        let Times { reaped, removed } = match words.as_slice() {
            ["bare", command @ ..] if !command.is_empty() => launcher.bare(&strings(command)?)?,
            ["least", command @ ..] if !command.is_empty() => {
                launcher.floor(&strings(command)?, Extent::Least)?
            }
            ["floor", command @ ..] if !command.is_empty() => {
                launcher.floor(&strings(command)?, Extent::Same)?
            }
            _ => return Err(io::Error::other(format!("`{}` is not a request", line.escape_debug()))),
        };
        let mut output = io::stdout().lock();
        writeln!(output, "{reaped} {removed}")?;
        output.flush()?;
    }
    Ok(())
}

/// What must hold inside, as a shell sees it; a floor that lacks a part would be too low to divide by.
const INSIDE: &str = r#"
fail() { echo "floor: $1" >&2; exit 1; }
[ "$$" = 1 ] || fail "not process 1 of a pid namespace"
[ "$(id -u)" = 0 ] || fail "not root of a user namespace"
read -r first outside count < /proc/self/uid_map
[ "$first $count" = "0 65536" ] && [ "$outside" != 0 ] || fail "no id map of its own"
echo kept > /floor-was-here && [ "$(cat /floor-was-here)" = kept ] || fail "the root cannot be written to"
echo kept > /tmp/file || fail "/tmp cannot be written to"
echo gone > /dev/null && [ -c /dev/zero ] && [ -c /dev/urandom ] && [ -c /dev/random ] || fail "devices are missing"
[ "$(ls /proc | grep -c '^[0-9]')" -le 4 ] || fail "/proc shows other processes"
[ "$(tail -n +3 /proc/net/dev | wc -l)" = 1 ] || fail "there is a network besides loopback"
grep -q '^ *lo:' /proc/net/dev || fail "loopback is missing"
[ "$(uname -n)" = floor ] || fail "the host name is the host's"
[ "$(wc -l < /proc/self/mounts)" -le "$1" ] || fail "mounts of the host are left"
[ "$(wc -l < /proc/self/mounts)" -ge "$2" ] || fail "mounts are missing"
! grep -q belljar-floor /proc/self/cgroup || fail "the cgroup namespace was entered before the cgroup"
"#;

fn check() -> io::Result<()> {
    let mut launcher = launcher(&[])?;
    for (extent, most, fewest) in [(Extent::Least, "12", "8"), (Extent::Same, "30", "16")] {
        launcher.floor(&strings(&["/bin/sh", "-c", INSIDE, "sh", most, fewest])?, extent)?;
    }
    println!("every part of the floor is there");
    Ok(())
}
