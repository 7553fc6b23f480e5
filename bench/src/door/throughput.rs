//! How fast one connection is through the door.

use super::TURNS;
use super::world::{Inside, Way, World};
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

/// What the door is divided by, in keys.
const RATIOS: [&str; 4] = ["over_stand_in", "over_proxy", "best_over_stand_in", "best_over_proxy"];

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let bytes: u64 = if args.quick { 256 << 20 } else { 1 << 30 };
    let turns = args.rounds_or(2 * TURNS + 1, TURNS);
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
    Inside::remove_all(inside).await?;
    let mut columns = vec!["what", "direct", "proxy", "stand-in", "door"];
    columns.extend(["door/stand-in", "door/proxy", "door/direct", "best/best stand-in", "best/best proxy"]);
    let mut table = Table::new("One connection on this machine, MiB/s", &columns);
    let mut worst = [f64::MAX; 4];
    for ((kind, _), found) in KINDS.into_iter().zip(&found) {
        let medians = found.each_ref().map(|samples| samples.median().unwrap_or(f64::NAN));
        let best = found.each_ref().map(|samples| samples.quantile(1.0).unwrap_or(f64::NAN));
        for (way, (median, best)) in Way::ALL.into_iter().zip(medians.into_iter().zip(best)) {
            let place = format!("door.throughput.{kind}.{}", way.key());
            report.set(format!("{place}.mib_per_second"), median);
            report.set(format!("{place}.best_mib_per_second"), best);
        }
        let [direct, proxy, stand_in, door] = medians;
        let [_, best_proxy, best_stand_in, best_door] = best;
        let ratios = [door / stand_in, door / proxy, best_door / best_stand_in, best_door / best_proxy];
        for ((name, ratio), worst) in RATIOS.into_iter().zip(ratios).zip(&mut worst) {
            report.set(format!("door.throughput.{kind}.{name}"), ratio);
            *worst = worst.min(ratio);
        }
        report.set(format!("door.throughput.{kind}.over_direct"), door / direct);
        let mut numbers = medians.map(Some).to_vec();
        numbers.extend([ratios[0], ratios[1], door / direct, ratios[2], ratios[3]].map(Some));
        print::row(&mut table, &kind.replace('_', " "), &numbers);
    }
    for (name, worst) in RATIOS.into_iter().zip(worst) {
        report.set(format!("door.throughput.worst_{name}"), worst);
    }
    table.notes.push(format!(
        "{} MiB each, medians of {turns} turns; best is the fastest turn of each.",
        bytes >> 20
    ));
    table.notes.push(
        "Direct and proxy: the client is outside. Stand-in: the client is in a sandbox, and the same proxy is where the door \
         would be. What a sandbox may receive before it reads is bounded (32 KiB), which bounds what comes down there."
            .into(),
    );
    report.tables.push(table);
    Ok(())
}
