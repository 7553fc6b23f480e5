//! What the door costs, in a network of its own, from which nothing leaves the machine.
//!
//! The bench starts itself once more in that network; whatever it starts there, sandboxes and the door among it, is there too.

mod cache;
mod latency;
mod memory;
mod opened;
mod recording;
mod start;
mod streams;
mod throughput;
mod world;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use self::world::World;
use crate::args::Args;
use crate::error::{BenchError, Result, at};
use crate::report::Report;

/// What is measured more than once is measured in so many turns, and the best of their medians is told apart from the median of all.
const TURNS: usize = 3;

/// Measures in a network of its own, and takes over what was found.
pub(crate) fn measure(args: &Args, scratch: &Path, report: &mut Report) -> Result<()> {
    let own = std::env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
    let results = scratch.join("door.json");
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "--"])
        .arg(own)
        .args(["--only", "door", "--in-own-network"])
        .arg(&results);
    command.args(args.quick.then_some("--quick"));
    for (name, value) in [("--rounds", args.rounds), ("--sandboxes", args.sandboxes)] {
        if let Some(value) = value {
            command.arg(name).arg(value.to_string());
        }
    }
    for name in &args.contestant {
        command.arg("--contestant").arg(name);
    }
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(|source| BenchError::Start { program: "unshare".into(), source })?;
    if !status.success() {
        return Err(BenchError::Failed { program: "the bench of the door".into(), why: status.to_string() });
    }
    let found = fs::read(&results).map_err(at(&results))?;
    let found: Report = serde_json::from_slice(&found).map_err(|error| at(&results)(error.into()))?;
    report.values.extend(found.values);
    report.not_available.extend(found.not_available);
    report.tables.extend(found.tables);
    Ok(())
}

/// Measures here, which must be such a network, and writes what was found to a file.
pub(crate) async fn measure_here(args: &Args, scratch: &Path, results: &Path) -> Result<()> {
    let world = World::new(scratch)?;
    let mut report = Report::new(args.quick);
    // The first sandbox finds the host's tool chains and opens the door.
    world.create().await?.cleanup().await?;
    if args.wants_contestant("latency") {
        latency::measure(args, &world, &mut report).await?;
    }
    if args.wants_contestant("throughput") {
        throughput::measure(args, &world, &mut report).await?;
    }
    if args.wants_contestant("opened") {
        opened::measure(args, &world, scratch, &mut report).await?;
    }
    if args.wants_contestant("recording") {
        recording::measure(args, &world, &mut report).await?;
    }
    if args.wants_contestant("cache") {
        cache::measure(args, &world, scratch, &mut report).await?;
    }
    if args.wants_contestant("start") {
        start::measure(args, &world, &mut report).await?;
    }
    if args.wants_contestant("memory") {
        memory::measure(args, &world, &mut report).await?;
    }
    if args.wants_contestant("streams") {
        streams::measure(args, &world, &mut report).await?;
    }
    world.leave()?;
    let json = serde_json::to_vec(&report).map_err(|error| at(results)(error.into()))?;
    fs::write(results, json).map_err(at(results))
}
