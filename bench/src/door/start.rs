//! How much longer a sandbox with a way to the door takes to start.

use std::time::Instant;

use belljar_core::{ExecRequest, Limits, NetworkPolicy};

use super::TURNS;
use super::world::{World, policy};
use crate::args::Args;
use crate::bell;
use crate::error::Result;
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// With a door that is open already, and without a network.
const KINDS: [&str; 2] = ["without", "with"];

#[derive(Default)]
struct Found {
    all: Samples,
    gone: Samples,
    created: Samples,
    turns: [Samples; TURNS],
}

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let rounds = args.rounds_or(70, 25);
    let mut found = KINDS.map(|_| Found::default());
    for turn in 0..TURNS {
        for round in 0..rounds {
            eprint!("\rdoor, starts: round {} of {}", turn * rounds + round + 1, rounds * TURNS);
            for (kind, found) in KINDS.into_iter().zip(&mut found) {
                let policy = if kind == "with" { policy()? } else { NetworkPolicy::None };
                let start = Instant::now();
                let sandbox = world.bell.create_granted(Limits::default(), policy).await?;
                found.created.push_time(start.elapsed());
                bell::run(&*sandbox, ExecRequest::argv(["/bin/true"])).await?;
                let reaped = start.elapsed();
                sandbox.cleanup().await?;
                found.all.push_time(reaped);
                found.turns[turn].push_time(reaped);
                found.gone.push_time(start.elapsed());
            }
        }
    }
    eprintln!();
    let columns = ["sandbox", "p50 ms", "p99 ms", "created ms", "gone ms", "best p50 ms"];
    let mut table = Table::new("Start, run /bin/true and be reaped, with the door and without", &columns);
    let best = |found: &Found| {
        found.turns.iter().filter_map(Samples::median).min_by(f64::total_cmp).unwrap_or(f64::NAN)
    };
    for (kind, found) in KINDS.into_iter().zip(&found) {
        let place = format!("door.start.{kind}");
        report.set_times(&place, &found.all);
        report.set(format!("{place}.best_ms"), best(found));
        report.set(format!("{place}.created_ms"), found.created.median().unwrap_or(f64::NAN));
        report.set(format!("{place}.gone_ms"), found.gone.median().unwrap_or(f64::NAN));
        let numbers = [
            found.all.median(),
            found.all.p99(),
            found.created.median(),
            found.gone.median(),
            Some(best(found)),
        ];
        print::row(&mut table, &format!("{kind} the door"), &numbers);
    }
    let [without, with] = &found;
    let less = |of: fn(&Found) -> Option<f64>| Some(of(with)? - of(without)?);
    let differences = [
        less(|found| found.all.median()),
        less(|found| found.all.p99()),
        less(|found| found.created.median()),
        less(|found| found.gone.median()),
        Some(best(with) - best(without)),
    ];
    report.set("door.start.slower_ms", differences[0].unwrap_or(f64::NAN));
    report.set("door.start.best_slower_ms", differences[4].unwrap_or(f64::NAN));
    print::row(&mut table, "difference", &differences);
    table.notes.push(format!(
        "Library calls, {} of each in turn, the door open already; best is the least of the medians of {TURNS} turns.",
        with.all.len()
    ));
    report.tables.push(table);
    Ok(())
}
