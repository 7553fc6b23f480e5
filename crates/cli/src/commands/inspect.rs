//! `belljar inspect`: everything that is known of a sandbox.

use belljar_core::{Command, ExecInfo, SandboxId, SandboxInfo, SandboxStats};

use super::Context;
use crate::args::InspectArgs;
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::json;
use crate::print::table::{count, moment, size, span};
use crate::wiring;

pub(crate) async fn inspect(context: &Context, args: InspectArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let provider = wiring::lasting(context.home.clone()).await?;
    let sandbox = provider.open(&id).await?;
    let mut info = sandbox.control()?.info().await?;
    // One that has ended is still worth describing: by what it left word of.
    let left = info.stats.take();
    let stats = sandbox.control()?.stats().await.ok().or(left);
    let execs = match sandbox.execs() {
        Ok(execs) => execs.list().await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    if context.printer.json {
        context.printer.object(&serde_json::json!({
            "sandbox": info,
            "capabilities": provider.capabilities(),
            "stats": stats.as_ref().map(json::stats),
            "executions": execs,
        }))?;
        return Ok(Status::SUCCESS);
    }
    let abilities: Vec<String> = provider.capabilities().iter().map(|ability| ability.to_string()).collect();
    context.printer.out(&describe(&info, &abilities.join(" "), stats.as_ref(), &execs, context.printer))?;
    Ok(Status::SUCCESS)
}

fn describe(
    info: &SandboxInfo,
    abilities: &str,
    stats: Option<&SandboxStats>,
    execs: &[ExecInfo],
    printer: Printer,
) -> String {
    let limits = &info.spec.limits;
    let mut lines = vec![
        ("sandbox", info.id.to_string()),
        ("state", info.state.to_string()),
        ("provider", format!("{} ({abilities})", info.provider)),
        ("template", info.spec.template.clone()),
        ("network", info.spec.network.to_string()),
        ("created", format!("{} UTC", moment(i64::try_from(info.created_ms).unwrap_or(i64::MAX)))),
        ("left", info.remaining.map_or_else(|| "-".to_owned(), span)),
        (
            "limits",
            format!(
                "memory {}, cpus {}, pids {}, disk {}, inodes {}, open files {}",
                limits.memory, limits.cpus, limits.pids, limits.disk, limits.inodes, limits.open_files
            ),
        ),
    ];
    if let Some(stats) = stats {
        let used = format!(
            "memory {} (peak {}), processes {}, disk {}, cpu {} ms",
            size(stats.memory_bytes),
            size(stats.peak_memory_bytes),
            count(stats.processes),
            size(stats.disk_bytes),
            count(stats.cpu_us.map(|us| us / 1000))
        );
        lines.push(("uses", used));
    }
    lines.extend(info.spec.env.keys().map(|name| ("variable", name.clone())));
    lines.extend(info.spec.labels.iter().map(|(name, value)| ("label", format!("{name}={value}"))));
    lines.extend(info.losses.iter().map(|loss| ("lacks", loss.clone())));
    lines.extend(execs.iter().map(|exec| {
        let state = exec.termination.map_or("running", belljar_core::Termination::as_str);
        ("execution", format!("{} {state} as {}: {}", exec.exec, exec.user, words(&exec.command)))
    }));
    lines.into_iter().map(|(name, value)| format!("{name:<10} {}\n", printer.foreign(&value))).collect()
}

/// A command on one line.
pub(super) fn words(command: &Command) -> String {
    match command {
        Command::Argv(argv) => argv.join(" "),
        Command::Shell(line) => line.clone(),
    }
}
