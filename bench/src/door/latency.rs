//! What the door adds to a small request: on a connection of its own, and on one that is kept.

use super::TURNS;
use super::world::{Inside, Way, World};
use crate::args::Args;
use crate::error::Result;
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// How requests are made, and the words for it.
const KINDS: [(&str, &str); 2] = [("fresh", "a new connection each"), ("kept", "one connection")];
/// Requests that one client makes. The first is told apart.
const REQUESTS: usize = 101;

/// What one way was measured to take.
#[derive(Default)]
struct Found {
    first: Samples,
    all: Samples,
    turns: [Samples; TURNS],
}

impl Found {
    /// The least of the medians of the turns.
    fn best(&self) -> Option<f64> {
        self.turns.iter().filter_map(Samples::median).min_by(f64::total_cmp)
    }
}

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let rounds = args.rounds_or(10, 4);
    let inside = world.inside().await?;
    let mut found = KINDS.map(|_| Way::ALL.map(|_| Found::default()));
    for turn in 0..TURNS {
        for round in 0..rounds {
            eprint!("\rdoor, requests: round {} of {}", turn * rounds + round + 1, rounds * TURNS);
            for ((kind, _), found) in KINDS.into_iter().zip(&mut found) {
                for (way, found) in Way::ALL.into_iter().zip(found) {
                    let words = ["ask", kind, &REQUESTS.to_string()];
                    let times = world.run_client(way, &inside, &words).await?;
                    for (number, time) in times.into_iter().map(|time| time / 1e6).enumerate() {
                        if number == 0 {
                            found.first.push(time);
                        } else {
                            found.all.push(time);
                            found.turns[turn].push(time);
                        }
                    }
                }
            }
        }
    }
    eprintln!();
    Inside::remove_all(inside).await?;
    for ((kind, words), found) in KINDS.into_iter().zip(&found) {
        let table = tell(report, kind, words, found);
        report.tables.push(table);
    }
    Ok(())
}

fn tell(report: &mut Report, kind: &str, words: &str, found: &[Found; Way::ALL.len()]) -> Table {
    let columns = [
        "way",
        "p50 ms",
        "p99 ms",
        "more p50 ms",
        "more p99 ms",
        "best p50 ms",
        "more than best",
        "first ms",
    ];
    let mut table = Table::new(&format!("A small request of HTTP to this machine, {words}"), &columns);
    let direct = &found[0];
    for (way, found) in Way::ALL.into_iter().zip(found) {
        let place = format!("door.latency.{kind}.{}", way.key());
        let less = |of: fn(&Found) -> Option<f64>| Some(of(found)? - of(direct)?);
        let (p50, p99) = (less(|found| found.all.median()), less(|found| found.all.p99()));
        let best = less(Found::best);
        report.set_times(&place, &found.all);
        for (name, value) in [("best_ms", found.best()), ("first_ms", found.first.median())] {
            report.set(format!("{place}.{name}"), value.unwrap_or(f64::NAN));
        }
        if way != Way::Direct {
            for (name, value) in [("added_ms", p50), ("added_p99_ms", p99), ("best_added_ms", best)] {
                report.set(format!("{place}.{name}"), value.unwrap_or(f64::NAN));
            }
        }
        print::row(
            &mut table,
            way.title(),
            &[found.all.median(), found.all.p99(), p50, p99, found.best(), best, found.first.median()],
        );
    }
    table.notes.push(format!(
        "{} requests each, in turn; best is the least of the medians of {TURNS} turns. First: the median of the first \
         requests of {} clients, not among the others.",
        direct.all.len(),
        direct.first.len()
    ));
    table
}
