//! How long a small command takes in one sandbox while another sandbox tries to take everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_core::{ExecEvent, ExecRequest, Sandbox};

use crate::args::Args;
use crate::bell::{self, Bell, bomb_limits};
use crate::error::{BenchError, Result};
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// How long a bomb burns at most; its sandbox is removed before.
const FUSE: Duration = Duration::from_secs(120);

/// Name and script of every bomb. Each says something once it burns; `WORK` is the program of the load.
const BOMBS: [(&str, &str); 6] = [
    ("fork", "echo lit; :(){ :|:& };:; while :; do :; done"),
    ("memory", "while :; do WORK bomb memory 100; done"),
    ("processors", "WORK bomb processors 100"),
    ("output", "yes"),
    ("disk", "echo lit; while :; do cat /dev/zero > /tmp/full 2>/dev/null; rm -f /tmp/full; done"),
    ("sockets", "WORK bomb sockets 100 & WORK bomb sockets 100; wait"),
];

/// Measures the neighbour alone, beside each bomb, and alone again.
pub(crate) async fn measure(args: &Args, bell: &Bell, report: &mut Report) -> Result<()> {
    let rounds = args.rounds_or(300, 100);
    let neighbour = bell.create().await?;
    latencies(&*neighbour, 20).await?;
    eprint!("neighbour: quiet");
    let quiet_before = latencies(&*neighbour, rounds).await?;
    let mut beside = Vec::new();
    for (name, script) in BOMBS.into_iter().filter(|(name, _)| args.wants_contestant(name)) {
        eprint!(", {name}");
        beside.push((name, beside_bomb(bell, &*neighbour, name, script, rounds).await?));
    }
    eprintln!(", quiet");
    let quiet_after = latencies(&*neighbour, rounds).await?;
    neighbour.cleanup().await?;

    let mut quiet = quiet_before.clone();
    quiet.extend(&quiet_after);
    let limits = bomb_limits();
    let title = format!(
        "Latency of /bin/true in a neighbour (bombs have {} processors of {})",
        limits.cpus, report.machine.processors
    );
    let mut table = Table::new(&title, &["beside", "p50 ms", "p99 ms", "p99/quiet p99", "p50/quiet p50"]);
    let mut worst: f64 = 0.0;
    for (name, samples) in [("quiet_before", &quiet_before), ("quiet_after", &quiet_after), ("quiet", &quiet)]
        .into_iter()
        .chain(beside.iter().map(|(name, samples)| (*name, samples)))
    {
        report.set_times(&format!("neighbour.{name}"), samples);
        let over = |of: fn(&Samples) -> Option<f64>| Some(of(samples)? / of(&quiet)?);
        let (tail, middle) = (over(Samples::p99), over(Samples::median));
        if !name.starts_with("quiet") {
            for (what, value) in [("over_quiet", tail), ("median_over_quiet", middle)] {
                report.set(format!("neighbour.{name}.{what}"), value.unwrap_or(0.0));
            }
            worst = worst.max(tail.unwrap_or(0.0));
        }
        print::row(&mut table, &name.replace('_', " "), &[samples.median(), samples.p99(), tail, middle]);
    }
    report.set("neighbour.worst_over_quiet", worst);
    report.set("neighbour.bomb_cpus", f64::from(limits.cpus.0) / 1000.0);
    table.notes.push(format!(
        "{rounds} executions each, in a sandbox that exists. Bombs: {}, {} processes, disk {}.",
        limits.memory, limits.pids, limits.disk
    ));
    report.tables.push(table);
    Ok(())
}

async fn latencies(neighbour: &dyn Sandbox, rounds: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let start = Instant::now();
        bell::run(neighbour, ExecRequest::argv(["/bin/true"])).await?;
        samples.push_time(start.elapsed());
    }
    Ok(samples)
}

async fn beside_bomb(
    bell: &Bell,
    neighbour: &dyn Sandbox,
    name: &str,
    script: &str,
    rounds: usize,
) -> Result<Samples> {
    let victim: Arc<dyn Sandbox> = bell.create_with(bomb_limits()).await?;
    let work = bell.bring_work(&*victim).await?;
    let mut request = ExecRequest::shell(script.replace("WORK", work));
    request.timeout = FUSE;
    let bomb = victim.execs()?.start(request).await?;
    // Its first words say that it burns.
    loop {
        match bomb.next().await? {
            Some(ExecEvent::Output { .. }) => break,
            Some(ExecEvent::Finished { termination, .. }) => {
                return Err(dud(name, &format!("{termination:?}")));
            }
            Some(_) => {}
            None => return Err(dud(name, "without a word")),
        }
    }
    drop(bomb);
    let samples = latencies(neighbour, rounds).await?;
    let burning = victim.control()?.stats().await?.executions;
    victim.cleanup().await?;
    if burning == 0 { Err(dud(name, "before the neighbour was done")) } else { Ok(samples) }
}

fn dud(name: &str, how: &str) -> BenchError {
    BenchError::Invalid(format!("the {name} bomb ended: {how}"))
}
