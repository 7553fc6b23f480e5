//! How long it takes to start a program behind walls until it is reaped, and until everything is gone again.
//!
//! All contestants are measured in turn, round by round, so that whatever else the machine does hits all alike.

mod docker;
mod floor;
mod image;
mod podman;
mod process;
mod rivals;

use std::path::Path;
use std::time::{Duration, Instant};

use belljar_core::ExecRequest;

use self::floor::Floor;
use self::process::Launch;
use crate::args::Args;
use crate::bell::{self, Bell, beside};
use crate::error::Result;
use crate::plot::Bar;
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::{Samples, takes_part};

/// What is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The least a program can do.
    True,
    /// The least that an interpreter can do.
    Python,
}

impl Program {
    const ALL: [Self; 2] = [Self::True, Self::Python];

    /// Its name in keys.
    fn key(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::Python => "python",
        }
    }

    /// Its name for people.
    fn title(self) -> &'static str {
        match self {
            Self::True => "/bin/true",
            Self::Python => "python3 -c 'print(1)'",
        }
    }

    /// Program and arguments, by whole path, so that all start the same one.
    pub(crate) fn argv(self) -> &'static [&'static str] {
        match self {
            Self::True => &["/bin/true"],
            Self::Python => &["/usr/bin/python3", "-c", "print(1)"],
        }
    }
}

/// Every contestant: its key, its name for people, whether it is ours, and what it is.
const CONTESTANTS: [(&str, &str, bool); 11] = [
    ("bare", "bare fork and exec", false),
    ("least", "least launcher", false),
    ("floor", "floor launcher", false),
    ("library", "belljar, library call", true),
    ("run", "belljar run", true),
    ("bwrap", "bwrap --unshare-all", false),
    ("runc", "runc run (bundle)", false),
    ("podman", "podman run --rm", false),
    ("docker_run", "docker run --rm", false),
    ("docker_exec", "docker exec", false),
    ("docker_runsc", "docker run, runsc (gVisor)", false),
];

/// What the others are divided by.
const REFERENCES: [(&str, &str); 4] =
    [("least", "/least"), ("floor", "/floor"), ("bwrap", "/bwrap"), ("run", "/run")];

/// How long one start took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Until the program was waited for and its result known.
    reaped: Duration,
    /// Until nothing of what was built around it was left.
    gone: Duration,
}

impl Times {
    /// A command that has ended leaves nothing to wait for.
    fn of_command(time: Duration) -> Self {
        Self { reaped: time, gone: time }
    }
}

/// How one contestant starts a program.
enum How<'a> {
    Bare,
    Least,
    Floor,
    Library(&'a Bell),
    Process(Launch),
}

struct Contestant<'a> {
    key: &'static str,
    program: Program,
    how: How<'a>,
    wanted: usize,
    samples: Samples,
    until_gone: Samples,
}

impl Contestant<'_> {
    async fn once(&mut self, floor: &mut Floor) -> Result<Times> {
        match &mut self.how {
            How::Bare => floor.bare(self.program.argv()),
            How::Least => floor.least(self.program.argv()),
            How::Floor => floor.floor(self.program.argv()),
            How::Library(bell) => {
                let start = Instant::now();
                let sandbox = bell.create().await?;
                bell::run(&*sandbox, ExecRequest::argv(self.program.argv().iter().copied())).await?;
                let reaped = start.elapsed();
                sandbox.cleanup().await?;
                Ok(Times { reaped, gone: start.elapsed() })
            }
            How::Process(launch) => launch.once(self.program),
        }
    }
}

/// Measures all contestants that can be started here.
pub(crate) async fn measure(args: &Args, bell: &Bell, scratch: &Path, report: &mut Report) -> Result<()> {
    let rounds = args.rounds_or(200, 60);
    let budget = Duration::from_secs(if args.quick { 4 } else { 12 });
    let mut floor = Floor::start(&beside("belljar-floor")?, &mounts(bell).await?)?;
    let rivals = rivals::prepare(scratch, |key| args.wants_contestant(key));
    let mut contestants = Vec::new();
    for (key, _, _) in CONTESTANTS.into_iter().filter(|(key, ..)| args.wants_contestant(key)) {
        for program in Program::ALL {
            let how = match key {
                "bare" => Ok(How::Bare),
                "least" => Ok(How::Least),
                "floor" => Ok(How::Floor),
                "library" => Ok(How::Library(bell)),
                "run" => Ok(How::Process(Launch::belljar_run(&beside("belljar")?, bell.home()))),
                rival => rivals.launch(rival, program).map(How::Process),
            };
            let place = format!("start.{}.{key}", program.key());
            match how {
                Ok(how) => {
                    let (samples, until_gone) = (Samples::default(), Samples::default());
                    let mut contestant =
                        Contestant { key, program, how, wanted: rounds, samples, until_gone };
                    match warm_up(&mut contestant, &mut floor, budget, rounds).await {
                        Ok(()) => contestants.push(contestant),
                        Err(error) => report.lacks(place, error.to_string()),
                    }
                }
                Err(why) => report.lacks(place, why),
            }
        }
    }
    for round in 0..rounds {
        eprint!("\rstart: round {} of {rounds}", round + 1);
        for contestant in &mut contestants {
            if takes_part(round, rounds, contestant.wanted) {
                let times = contestant.once(&mut floor).await?;
                contestant.samples.push_time(times.reaped);
                contestant.until_gone.push_time(times.gone);
            }
        }
    }
    eprintln!();
    drop(rivals);
    for contestant in &contestants {
        let place = format!("start.{}.{}", contestant.program.key(), contestant.key);
        report.set_times(&place, &contestant.samples);
        if let Some(median) = contestant.until_gone.median() {
            report.set(format!("{place}.gone_ms"), median);
        }
    }
    for program in Program::ALL {
        ratios(report, program);
        let table = table(report, program);
        report.tables.push(table);
    }
    Ok(())
}

/// The layers of a sandbox besides its root and what it masks, as it sees them itself and the floor is told them.
async fn mounts(bell: &Bell) -> Result<Vec<String>> {
    let sandbox = bell.create().await?;
    let told = bell::run(&*sandbox, ExecRequest::argv(["cat", "/proc/self/mounts"])).await?;
    sandbox.cleanup().await?;
    let told = String::from_utf8_lossy(&told.stdout.to_bytes()).into_owned();
    let mounts = told.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        match (fields.next()?, fields.next()?) {
            ("/" | "/proc", _) => None,
            (path, "overlay") => Some(path.to_owned()),
            (path, "proc") => Some(format!("ro:{path}")),
            (path, _) => path.starts_with("/proc/").then(|| path.to_owned()),
        }
    });
    Ok(mounts.collect())
}

/// Starts it three times: does it work, is it warm, and how often can it be measured in the time there is.
async fn warm_up(
    contestant: &mut Contestant<'_>,
    floor: &mut Floor,
    budget: Duration,
    rounds: usize,
) -> Result<()> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        best = best.min(contestant.once(floor).await?.gone);
    }
    let affordable = budget.as_secs_f64() / best.as_secs_f64().max(1e-6);
    contestant.wanted = (affordable as usize).clamp(8, rounds.max(8));
    Ok(())
}

fn ratios(report: &mut Report, program: Program) {
    let median = |report: &Report, key: &str| report.get(&format!("start.{}.{key}.median_ms", program.key()));
    for (reference, _) in REFERENCES {
        let Some(divisor) = median(report, reference) else { continue };
        for (key, _, _) in CONTESTANTS {
            if let Some(value) = median(report, key) {
                report.set(format!("start.{}.{key}.over_{reference}", program.key()), value / divisor);
            }
        }
    }
}

fn table(report: &Report, program: Program) -> Table {
    let mut columns = vec!["what", "median ms", "p99 ms", "rounds", "gone ms"];
    columns.extend(REFERENCES.map(|(_, heading)| heading));
    let mut table = Table::new(&format!("Start, run and be reaped: {}", program.title()), &columns);
    for (key, label, _) in CONTESTANTS {
        let place = format!("start.{}.{key}", program.key());
        let get = |what: &str| report.get(&format!("{place}.{what}"));
        if get("median_ms").is_none() && !report.not_available.contains_key(&place) {
            continue;
        }
        if report.not_available.contains_key(&place) {
            table.rows.push(vec![label.to_owned(), "not available".to_owned()]);
            continue;
        }
        let mut numbers = vec![get("median_ms"), get("p99_ms"), get("rounds"), get("gone_ms")];
        numbers.extend(REFERENCES.map(|(reference, _)| get(&format!("over_{reference}"))));
        print::row(&mut table, label, &numbers);
        if let (Some(row), Some(rounds)) = (table.rows.last_mut(), get("rounds")) {
            row[3] = format!("{rounds:.0}");
        }
    }
    table.notes.push("Interleaved; with fewer than a hundred rounds p99 is the slowest.".into());
    table.notes.push(
        "Times and ratios are until the program was reaped; gone is the median until nothing is left.".into(),
    );
    table.notes.push(
        "runc, podman and docker run without a network and without a user namespace; runsc without cgroups."
            .into(),
    );
    table
}

/// The bars of the plot.
pub(crate) fn panels(report: &Report) -> Vec<(String, Vec<Bar>)> {
    let bars = |program: Program| {
        let bar = |(key, label, ours): (&str, &str, bool)| {
            let get = |what: &str| report.get(&format!("start.{}.{key}.{what}", program.key()));
            Some(Bar { label: label.to_owned(), median: get("median_ms")?, p99: get("p99_ms")?, ours })
        };
        (program.title().to_owned(), CONTESTANTS.into_iter().filter_map(bar).collect::<Vec<_>>())
    };
    Program::ALL.into_iter().map(bars).filter(|(_, bars)| !bars.is_empty()).collect()
}
