//! How fast one connection is through the door.

use super::TURNS;
use super::world::{Way, World};
use crate::args::Args;
use crate::error::Result;
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// What is moved, with the words for the client.
const KINDS: [(&str, [&str; 2]); 4] = [
    ("raw_down", ["down", "raw"]),
    ("raw_up", ["up", "raw"]),
    ("http_down", ["down", "http"]),
    ("http_up", ["up", "http"]),
];

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let bytes: u64 = if args.quick { 256 << 20 } else { 1 << 30 };
    let turns = args.rounds_or(TURNS, TURNS);
    let inside = world.inside().await?;
    let mut found = KINDS.map(|_| Way::ALL.map(|_| Samples::default()));
    for turn in 0..turns {
        eprint!("\rdoor, bytes: turn {} of {turns}", turn + 1);
        for ((_, [way_words, form]), found) in KINDS.into_iter().zip(&mut found) {
            for (way, samples) in Way::ALL.into_iter().zip(found) {
                let words = ["move", way_words, form, &bytes.to_string()];
                for time in world.run_client(way, &inside, &words).await? {
                    samples.push(bytes as f64 / (1 << 20) as f64 / (time / 1e9));
                }
            }
        }
    }
    eprintln!();
    inside.sandbox.cleanup().await?;
    let columns = [
        "what",
        "direct",
        "proxy",
        "door",
        "door/proxy",
        "door/direct",
        "best proxy",
        "best door",
        "best/best",
    ];
    let mut table = Table::new("One connection on this machine, MiB/s", &columns);
    let (mut worst, mut best_worst) = (f64::MAX, f64::MAX);
    for ((kind, _), found) in KINDS.into_iter().zip(&found) {
        let [direct, proxy, door] = found.each_ref().map(|samples| samples.median().unwrap_or(f64::NAN));
        let [_, best_proxy, best_door] =
            found.each_ref().map(|samples| samples.quantile(1.0).unwrap_or(f64::NAN));
        for (way, (median, samples)) in Way::ALL.into_iter().zip([direct, proxy, door].into_iter().zip(found))
        {
            let place = format!("door.throughput.{kind}.{}", way.key());
            report.set(format!("{place}.mib_per_second"), median);
            report.set(format!("{place}.best_mib_per_second"), samples.quantile(1.0).unwrap_or(f64::NAN));
        }
        let (ratio, best_ratio) = (door / proxy, best_door / best_proxy);
        report.set(format!("door.throughput.{kind}.over_proxy"), ratio);
        report.set(format!("door.throughput.{kind}.over_direct"), door / direct);
        report.set(format!("door.throughput.{kind}.best_over_proxy"), best_ratio);
        (worst, best_worst) = (worst.min(ratio), best_worst.min(best_ratio));
        let numbers =
            [direct, proxy, door, ratio, door / direct, best_proxy, best_door, best_ratio].map(Some);
        print::row(&mut table, &kind.replace('_', " "), &numbers);
    }
    report.set("door.throughput.worst_over_proxy", worst);
    report.set("door.throughput.best_worst_over_proxy", best_worst);
    table.notes.push(format!(
        "{} MiB each, medians of {turns} turns; best is the fastest turn of each. Direct and proxy have their client \
         outside, the door has it in a sandbox.",
        bytes >> 20
    ));
    report.tables.push(table);
    Ok(())
}
