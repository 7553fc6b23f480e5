//! How many sandboxes can be made per second, one after the other and several at once.

use std::time::Instant;

use crate::args::Args;
use crate::bell::{Bell, create_all, remove_all};
use crate::error::Result;
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// How many callers at once, and the name of that in keys.
const CALLERS: [(usize, &str); 3] = [(1, "sequential"), (2, "two_at_once"), (4, "four_at_once")];
/// The three kinds are tried in turn this often.
const TURNS: usize = 3;

/// Measures how fast sandboxes come to be. Their removal is not counted here; the start times hold it.
pub(crate) async fn measure(args: &Args, bell: &Bell, report: &mut Report) -> Result<()> {
    let count = args.rounds_or(120, 40);
    let mut rates = CALLERS.map(|_| Samples::default());
    for turn in 0..TURNS {
        eprint!("\rrate: turn {} of {TURNS}", turn + 1);
        for ((callers, _), samples) in CALLERS.into_iter().zip(&mut rates) {
            let start = Instant::now();
            let sandboxes = create_all(bell, count, callers).await?;
            samples.push(count as f64 / start.elapsed().as_secs_f64());
            remove_all(sandboxes).await?;
        }
    }
    eprintln!();
    let mut table = Table::new("Sandboxes created per second", &["callers", "per second"]);
    let mut best: f64 = 0.0;
    for ((_, name), samples) in CALLERS.into_iter().zip(&rates) {
        let rate = samples.median().unwrap_or(0.0);
        best = best.max(rate);
        report.set(format!("rate.{name}_per_second"), rate);
        print::row(&mut table, &name.replace('_', " "), &[Some(rate)]);
    }
    report.set("rate.best_per_second", best);
    table
        .notes
        .push(format!("Library calls, {count} sandboxes in each of {TURNS} turns, median of the turns."));
    report.tables.push(table);
    Ok(())
}
