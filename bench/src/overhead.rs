//! The same work inside and outside of a sandbox, in turn.

use std::path::Path;
use std::process::Command;

use belljar_core::ExecRequest;

use crate::args::Args;
use crate::bell::{self, Bell, beside};
use crate::error::{BenchError, Result, at};
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// Name, what it does, and how often per measurement.
const KINDS: [(&str, &str, u64); 3] = [
    ("cpu", "numbers mixed", 60_000_000),
    ("syscalls", "getppid, pipe write and read", 150_000),
    ("files", "small files made, read, removed on tmpfs", 20_000),
];

/// Measures how much slower each kind of work is inside.
pub(crate) async fn measure(args: &Args, bell: &Bell, report: &mut Report) -> Result<()> {
    let rounds = args.rounds_or(25, 11);
    let sandbox = bell.create().await?;
    let inside_program = bell.bring_work(&*sandbox).await?;
    let outside_program = beside("belljar-work")?;
    let outside_folder = tempfile::Builder::new()
        .prefix("belljar-bench-")
        .tempdir_in("/dev/shm")
        .map_err(at(Path::new("/dev/shm")))?;
    bell::run(&*sandbox, ExecRequest::argv(["mkdir", "/tmp/files"])).await?;
    let mut samples = KINDS.map(|_| (Samples::default(), Samples::default()));
    for round in 0..rounds {
        eprint!("\roverhead: round {} of {rounds}", round + 1);
        for ((kind, _, count), (inside, outside)) in KINDS.into_iter().zip(&mut samples) {
            let arguments = |folder: &str| {
                let mut words = vec![kind.to_owned(), count.to_string()];
                words.extend((kind == "files").then(|| folder.to_owned()));
                words
            };
            let words = [inside_program.to_owned()].into_iter().chain(arguments("/tmp/files"));
            let result = bell::run(&*sandbox, ExecRequest::argv(words)).await?;
            let within = milliseconds(&result.stdout.to_bytes())?;
            let mut command = Command::new(&outside_program);
            command.args(arguments(&outside_folder.path().display().to_string()));
            let output = command
                .output()
                .map_err(|source| BenchError::Start { program: "belljar-work".into(), source })?;
            let without = milliseconds(&output.stdout)?;
            // The first round warms both up.
            if round > 0 || rounds == 1 {
                inside.push(within);
                outside.push(without);
            }
        }
    }
    eprintln!();
    sandbox.cleanup().await?;
    let columns = ["work", "inside ms", "outside ms", "slower by %", "by the best of each %"];
    let mut table = Table::new("The same work inside and outside", &columns);
    for ((kind, words, _), (inside, outside)) in KINDS.into_iter().zip(&samples) {
        report.set_times(&format!("overhead.{kind}.inside"), inside);
        report.set_times(&format!("overhead.{kind}.outside"), outside);
        let percent = |inside: Option<f64>, outside: Option<f64>| Some((inside? / outside? - 1.0) * 100.0);
        let median = percent(inside.median(), outside.median());
        let best = percent(inside.least(), outside.least());
        for (name, value) in [("percent", median), ("best_percent", best)] {
            if let Some(value) = value {
                report.set(format!("overhead.{kind}.{name}"), value);
            }
        }
        print::row(
            &mut table,
            &format!("{kind} ({words})"),
            &[inside.median(), outside.median(), median, best],
        );
    }
    table.notes.push(format!("Medians of {rounds} rounds in turn; the program times its own loop."));
    report.tables.push(table);
    Ok(())
}

fn milliseconds(output: &[u8]) -> Result<f64> {
    let text = String::from_utf8_lossy(output);
    let nanoseconds: Option<f64> = text.trim().parse().ok();
    nanoseconds.map(|nanoseconds| nanoseconds / 1e6).ok_or_else(|| BenchError::Failed {
        program: "belljar-work".into(),
        why: format!("it said `{}` instead of a time", text.trim().escape_debug()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(milliseconds(b"2500000\n").unwrap(), 2.5);
        assert!(milliseconds(b"").is_err() && milliseconds(b"fast\n").is_err());
    }
}
