//! Measures what Belljar's walls cost, beside what people would use instead, and holds the numbers against the
//! promises of SPECIFICATION.md.

#![forbid(unsafe_code)]

mod args;
mod bell;
mod door;
mod error;
mod idle;
mod neighbour;
mod overhead;
mod plot;
mod print;
mod promise;
mod rate;
mod report;
mod start;
mod statistics;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Part};
use crate::bell::Bell;
use crate::error::{BenchError, Result, at};
use crate::promise::Verdict;
use crate::report::Report;

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::runtime::Runtime::new()
        .map_err(at(Path::new("the async runtime")))
        // In a task of the runtime: a future driven from outside would be woken on another thread each time.
        .and_then(|runtime| runtime.block_on(async { tokio::spawn(run(args)).await.map_err(panicked)? }));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("belljar-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn panicked(error: tokio::task::JoinError) -> BenchError {
    BenchError::Invalid(format!("the bench itself failed: {error}"))
}

/// Measures, prints, writes, and judges if asked to; answers whether all promises hold.
async fn run(args: Args) -> Result<bool> {
    let report = match &args.from {
        Some(path) => {
            let text = fs::read(path).map_err(at(path))?;
            serde_json::from_slice(&text).map_err(|error| at(path)(error.into()))?
        }
        None => {
            if let Some(results) = &args.in_own_network {
                return door::measure_here(&args, scratch()?.path(), results).await.map(|()| true);
            }
            let report = measure(&args).await?;
            write(&args, &report)?;
            report
        }
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).unwrap_or_default());
    } else {
        print!("{}", print::plain(&report));
    }
    if args.check { check(&args, &report) } else { Ok(true) }
}

async fn measure(args: &Args) -> Result<Report> {
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::Invalid("measuring needs root; try again with sudo".into()));
    }
    let mut report = Report::new(args.quick);
    let scratch = scratch()?;
    let bell = Bell::open(scratch.path())?;
    // The first sandbox finds the host's tool chains and builds the template.
    bell.create().await?.cleanup().await?;
    if args.wants(Part::Start) {
        start::measure(args, &bell, scratch.path(), &mut report).await?;
    }
    if args.wants(Part::Rate) {
        rate::measure(args, &bell, &mut report).await?;
    }
    if args.wants(Part::Overhead) {
        overhead::measure(args, &bell, &mut report).await?;
    }
    if args.wants(Part::Neighbour) {
        neighbour::measure(args, &bell, &mut report).await?;
    }
    if args.wants(Part::Door) {
        door::measure(args, scratch.path(), &mut report)?;
    }
    if args.wants(Part::Idle) {
        idle::measure(args, &bell, &mut report).await?;
    }
    Ok(report)
}

/// A folder for this run.
fn scratch() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("belljar-bench-").tempdir().map_err(at(&std::env::temp_dir()))
}

fn write(args: &Args, report: &Report) -> Result<()> {
    let own = std::env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
    let folder = args.output.clone().unwrap_or_else(|| own.with_file_name("bench-results"));
    let mut places = vec![(folder, "results")];
    if args.keep {
        places.push((PathBuf::from("bench/results"), "latest"));
    }
    let json = serde_json::to_string_pretty(report).unwrap_or_default() + "\n";
    let svg = plot::draw(report, &start::panels(report));
    let markdown = print::markdown(report);
    for (folder, name) in places {
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let markdown = markdown.replace("latest.svg", &format!("{name}.svg"));
        for (ending, text) in [("json", &json), ("svg", &svg), ("md", &markdown)] {
            let path = folder.join(format!("{name}.{ending}"));
            fs::write(&path, text).map_err(at(&path))?;
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}

fn check(args: &Args, report: &Report) -> Result<bool> {
    let text = fs::read_to_string(&args.specification).map_err(at(&args.specification))?;
    let mut holds = true;
    eprintln!("\nPromises ({}):", args.specification.display());
    for promise in promise::parse(&text)? {
        let verdict = promise.judge(report);
        let (word, value) = match verdict {
            Verdict::Kept(value) => ("kept", print::number(value)),
            Verdict::WithinNoise(value) => ("kept within noise", print::number(value)),
            Verdict::Broken(value) => ("BROKEN", print::number(value)),
            Verdict::NotMeasured => ("NOT MEASURED", "-".to_owned()),
        };
        eprintln!(
            "  {word:<17} {value:>8}  {} ({}, tolerance {} %)",
            promise.words, promise.bound, promise.tolerance
        );
        holds &= match verdict {
            Verdict::Kept(_) | Verdict::WithinNoise(_) => true,
            Verdict::Broken(_) => false,
            Verdict::NotMeasured => args.allow_missing,
        };
    }
    Ok(holds)
}
