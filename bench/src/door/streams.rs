//! Many answers that the gateway streams at once, and what that takes of memory.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use belljar_core::{Grant, NetworkPolicy, Rules};

use super::memory::{Weight, await_word, weigh};
use super::world::{Program, World, free};
use crate::args::Args;
use crate::bell::remove_all;
use crate::error::{BenchError, Result, at};
use crate::idle::raise_open_files;
use crate::print;
use crate::report::{Report, Table};

/// Where the provider is, and how often each of its answers has another word.
const PROVIDER: &str = "127.0.0.1:8999";
const EVERY_MS: &str = "200";
/// How many sandboxes share the streams.
const SANDBOXES: usize = 4;
const OPERATION: &str = "llm:chat";
/// How long they stream.
const LOOKED_AT: Duration = Duration::from_secs(20);

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let count = if args.quick { 400 } else { 2000 };
    raise_open_files();
    let config = world.bell.home().join("gateway.toml");
    let text =
        format!("[operations.\"{OPERATION}\"]\nkind = \"anthropic\"\nupstream = \"http://{PROVIDER}\"\n");
    fs::write(&config, text).map_err(at(&config))?;
    let _provider = Program::start(&["provide", PROVIDER, EVERY_MS], Stdio::null())?;
    let mut sandboxes = Vec::new();
    for number in 0..SANDBOXES {
        eprint!("\rdoor, streams: {} of {count}", count * number / SANDBOXES);
        let policy = NetworkPolicy::Allowlist(Rules { limits: free(), ..Rules::default() });
        let sandbox = world.bell.create_for(policy, Some(Grant::of(vec![OPERATION.parse()?]))).await?;
        let program = world.bell.bring_work(&*sandbox).await?;
        await_word(&*sandbox, &[program, "stream", &(count / SANDBOXES).to_string()], "streaming").await?;
        sandboxes.push(sandbox);
    }
    eprintln!("\rdoor, streams: {count} of {count}");
    let supervisor = world.supervisor()?;
    let before = weigh(supervisor)?;
    tokio::time::sleep(LOOKED_AT).await;
    let after = weigh(supervisor)?;
    remove_all(sandboxes).await?;
    if before.len() != 3 || after.len() != 3 {
        return Err(BenchError::Invalid("somebody is missing at the door".into()));
    }
    let seconds = LOOKED_AT.as_secs();
    let title = format!("{count} answers that the gateway streams at once, for {seconds} s");
    let columns = ["process", "PSS KiB", "later PSS KiB", "later/first", "KiB a stream"];
    let mut table = Table::new(&title, &columns);
    for ((name, Weight { pss: first, .. }), (_, Weight { pss: later, .. })) in before.iter().zip(&after) {
        let (first, later) = (*first as f64, *later as f64);
        report.set(format!("door.streams.{name}.pss_kib"), later);
        report.set(format!("door.streams.{name}.growth"), later / first);
        print::row(&mut table, name, &[first, later, later / first, later / count as f64].map(Some));
    }
    report.set("door.streams.count", count as f64);
    table.notes.push(format!("Each has another word every {EVERY_MS} ms, and is read."));
    report.tables.push(table);
    Ok(())
}
