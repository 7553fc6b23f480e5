//! What was typed.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures what Belljar's walls cost, beside what people would use instead.
///
/// Needs root, and an otherwise idle machine for numbers worth keeping. The results go to a table on the terminal and
/// to `results.json`, `results.svg` and `results.md` in the output folder.
#[derive(Debug, Parser)]
#[command(name = "belljar-bench", version)]
pub(crate) struct Args {
    /// Measure only this part; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<Part>,

    /// Of the start times, the bombs or what the door costs, measure only this one, by its key in the JSON; may be given
    /// several times
    #[arg(long, value_name = "KEY")]
    pub(crate) contestant: Vec<String>,

    /// How often each thing is measured; slow rivals are measured less often
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,

    /// How many idle sandboxes to hold at once [default: 2400, or 200 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) idle: Option<usize>,

    /// How many sandboxes hold a connection through the door at once [default: 1000, or 100 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) sandboxes: Option<usize>,

    /// The shorter form: fewer rounds everywhere
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Compare with the promises of the specification; fails when one is broken
    #[arg(long)]
    pub(crate) check: bool,

    /// With --check: a promise whose number could not be measured is no failure
    #[arg(long, requires = "check")]
    pub(crate) allow_missing: bool,

    /// Judge the results in this file instead of measuring
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(crate) from: Option<PathBuf>,

    /// Where the promises are
    #[arg(long, value_name = "FILE", default_value = "SPECIFICATION.md")]
    pub(crate) specification: PathBuf,

    /// Where the results go [default: beside the program, in `bench-results`]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    /// Keep the results in the repository too, as bench/results/latest.{json,svg,md}
    #[arg(long)]
    pub(crate) keep: bool,

    /// Measure the door in this network, which must be of our own, and put the numbers into this file
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) in_own_network: Option<PathBuf>,
}

/// The parts of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Start times of Belljar, the floor and the rivals
    Start,
    /// Sandboxes created per second
    Rate,
    /// Many idle sandboxes at once: memory of each, and what is left afterwards
    Idle,
    /// The same work inside and outside
    Overhead,
    /// A command's latency beside bombs in another sandbox
    Neighbour,
    /// Latency, throughput and memory of the way out, and what it adds to a start
    Door,
}

impl Args {
    /// Whether a part is to be measured.
    pub(crate) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Whether a contestant's start times, or the latency beside a bomb, are to be measured.
    pub(crate) fn wants_contestant(&self, key: &str) -> bool {
        self.contestant.is_empty() || self.contestant.iter().any(|wanted| wanted == key)
    }

    /// The number of rounds: as typed, or one of these.
    pub(crate) fn rounds_or(&self, full: usize, quick: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { quick } else { full }).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn parts_can_be_chosen() {
        let args = Args::try_parse_from(["bench", "--only", "rate", "--only", "idle", "--quick"]).unwrap();
        assert!(args.wants(Part::Idle) && args.wants(Part::Rate) && !args.wants(Part::Start));
        assert_eq!((args.rounds_or(200, 50), args.only.len()), (50, 2));
        assert!(Args::try_parse_from(["bench"]).unwrap().wants(Part::Start));
        assert!(Args::try_parse_from(["bench", "--only", "speed"]).is_err());
        assert_eq!(Args::try_parse_from(["bench", "--rounds", "0"]).unwrap().rounds_or(5, 5), 1);
    }
}
