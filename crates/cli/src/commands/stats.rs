//! `belljar stats`: what sandboxes use now.

use belljar_core::{SandboxId, SandboxStats};
use belljar_network::gateway::budget::dollars;

use super::Context;
use crate::args::StatsArgs;
use crate::outcome::{Failure, Status};
use crate::print::json;
use crate::print::table::{count, size, table};
use crate::wiring;

pub(crate) async fn stats(context: &Context, args: StatsArgs) -> Result<Status, Failure> {
    let provider = wiring::lasting(context.home.clone()).await?;
    let ids: Vec<SandboxId> = match &args.id {
        Some(id) => vec![id.parse()?],
        None => {
            let mut infos = provider.list().await?;
            infos.retain(|info| info.state.is_alive());
            infos.into_iter().map(|info| info.id).collect()
        }
    };
    let mut all: Vec<(SandboxId, SandboxStats)> = Vec::new();
    for id in ids {
        let asked = async { provider.open(&id).await?.control()?.stats().await };
        match asked.await {
            Ok(stats) => all.push((id, stats)),
            // One of many may end between being listed and being asked.
            Err(error) if args.id.is_none() => tracing::debug!("stats of {id}: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
    if context.printer.json {
        let objects: Vec<_> = all
            .iter()
            .map(|(id, stats)| serde_json::json!({ "sandbox_id": id, "stats": json::stats(stats) }))
            .collect();
        context.printer.object(&serde_json::json!({ "sandboxes": objects }))?;
    } else {
        // Most sandboxes have nothing to do with the gateway.
        let calls = all.iter().any(|(_, stats)| stats.gateway.is_some());
        let rows: Vec<_> = all.iter().map(|(id, stats)| row(id, stats, calls)).collect();
        let mut heading =
            vec!["ID", "CPU MS", "MEMORY", "PEAK", "PROCESSES", "DISK", "OOM KILLS", "EXECUTIONS"];
        if calls {
            heading.extend(["CALLS", "REFUSED", "TOKENS", "COST"]);
        }
        context.printer.out(&table(&heading, &rows))?;
    }
    Ok(Status::SUCCESS)
}

fn row(id: &SandboxId, stats: &SandboxStats, calls: bool) -> Vec<String> {
    let mut row = vec![
        id.to_string(),
        count(stats.cpu_us.map(|us| us / 1000)),
        size(stats.memory_bytes),
        size(stats.peak_memory_bytes),
        count(stats.processes),
        size(stats.disk_bytes),
        count(stats.oom_kills),
        stats.executions.to_string(),
    ];
    if calls {
        let totals = stats.gateway.unwrap_or_default();
        // What is not known is more than what is told.
        let more = if totals.unknown > 0 { "+" } else { "" };
        row.extend([
            totals.calls.to_string(),
            totals.refused.to_string(),
            format!("{}{more}", totals.tokens.total()),
            format!("${}{more}", dollars(totals.nano_dollars)),
        ]);
    }
    row
}
