//! `belljar engine` and what can be asked of it: `events`, `usage`, `backup`, `restore`.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use belljar_core::{Error, ErrorCode, Result, SandboxId, Span, TenantLimits};
use belljar_engine::Config;
use belljar_engine::admission::Capacity;
use belljar_engine::event::Event;
use belljar_engine::session::Tenant;
use belljar_engine::store::Store;
use belljar_network::policy::file;
use tokio::sync::oneshot;

use super::Context;
use crate::args::{BackupArgs, EngineArgs, EventsArgs, RestoreArgs, UsageArgs};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::wiring;

/// How many entries of a log are asked for at a time.
const AT_ONCE: u32 = 500;

pub(crate) async fn engine(context: &Context, args: EngineArgs) -> Result<Status, Failure> {
    let config = Config {
        capacity: Capacity { running: number("--room", &args.room)?, waiting: number("--line", &args.line)? },
        patience: span("--patience", &args.patience)?,
        keep: span("--keep", &args.keep)?,
        most_kept: number("--most", &args.most)?,
        tenants: args.tenants.as_deref().map(tenants).transpose()?.unwrap_or_default(),
        ..Config::default()
    };
    let grace = span("--grace", &args.grace)?;
    let mut interrupts = Interrupts::new()?;
    let (engine, _lock, reception, home) = wiring::new_engine(context.home.clone(), config).await?;
    let (running, _) = engine.counts();
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "serves": home, "taken_over": running }))?;
    } else {
        context.printer.out(&format!("serving {} ({running} sandboxes taken over)\n", home.display()))?;
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = reception.serve(&engine, async { drop(stopped.await) });
    let told_to_stop = async {
        interrupts.next().await;
        tracing::info!(?grace, "shutting down: callers may finish, and a second signal ends this at once");
        drop(stop);
        tokio::select! {
            _ = interrupts.next() => {}
            () = tokio::time::sleep(grace) => {}
        }
        tracing::warn!("callers were left behind");
    };
    // Sandboxes go on in any case; the next engine takes them over.
    tokio::select! {
        () = serve => {}
        () = told_to_stop => {}
    }
    Ok(Status::SUCCESS)
}

pub(crate) async fn events(context: &Context, args: EventsArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let mut after: u64 = number("--after", &args.after)?;
    let engine = wiring::engine(context.home.clone()).await?;
    let mut all = Vec::new();
    loop {
        if !args.follow {
            // What is there now, and no waiting for more.
            let last = engine.last_event(&id).await?;
            if after >= last {
                break;
            }
        }
        let events = engine.events(&id, after, AT_ONCE).await?;
        let Some(last) = events.last() else { break };
        after = last.seq;
        if context.printer.json && !args.follow {
            all.extend(events);
            continue;
        }
        for event in &events {
            if context.printer.json {
                context.printer.object(event)?;
            } else {
                context.printer.out(&line(event, context.printer))?;
            }
        }
    }
    if context.printer.json && !args.follow {
        context.printer.object(&serde_json::json!({ "events": all }))?;
    }
    Ok(Status::SUCCESS)
}

/// An entry in one line: number, word, and the rest as JSON without what is there already.
fn line(event: &Event, printer: Printer) -> String {
    let mut rest = serde_json::to_value(&event.what).unwrap_or_default();
    if let Some(object) = rest.as_object_mut() {
        object.remove("event");
        object.remove("request");
    }
    let rest =
        if rest.as_object().is_none_or(serde_json::Map::is_empty) { String::new() } else { rest.to_string() };
    format!("{:>5}  {:<20} {}\n", event.seq, event.what.name(), printer.foreign(&rest))
}

pub(crate) async fn usage(context: &Context, args: UsageArgs) -> Result<Status, Failure> {
    let (meter, cost) = wiring::engine(context.home.clone()).await?.used(&Tenant(args.tenant)).await?;
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "meter": meter, "cost": cost }))?;
        return Ok(Status::SUCCESS);
    }
    for (name, amount) in meter.figures() {
        let unknown =
            if amount.unknown == 0 { String::new() } else { format!("  and {} unknown", amount.unknown) };
        context.printer.out(&format!("{name:<14} {}{unknown}\n", amount.known))?;
    }
    let least = if cost.at_least { "at least " } else { "" };
    context.printer.out(&format!("{:<14} {least}${:.6}\n", "cost", cost.micros as f64 / 1e6))?;
    Ok(Status::SUCCESS)
}

pub(crate) async fn backup(context: &Context, args: BackupArgs) -> Result<Status, Failure> {
    if args.file.symlink_metadata().is_ok() {
        return Err(Error::new(
            ErrorCode::AlreadyExists,
            format!("{} is there already", args.file.display()),
        )
        .hint("choose another name, or remove it first")
        .into());
    }
    let store = wiring::store(context.home.clone()).await?;
    store.backup(&args.file).await.map_err(Error::from)?;
    told(context, "backup", &args.file)
}

pub(crate) async fn restore(context: &Context, args: RestoreArgs) -> Result<Status, Failure> {
    wiring::restore(context.home.clone(), &args.file).await?;
    told(context, "restored", &args.file)
}

fn told(context: &Context, what: &str, file: &std::path::Path) -> Result<Status, Failure> {
    if context.printer.json {
        context.printer.object(&serde_json::json!({ what: file }))?;
    }
    Ok(Status::SUCCESS)
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("option `{option}`: `{}` is not a number", text.escape_debug()),
        )
        .hint("give a whole number")
    })
}

/// Reads what tenants may use.
fn tenants(path: &Path) -> Result<TenantLimits> {
    let wrong = |code, problem: String| {
        Error::new(code, format!("option `--tenants`: {}: {problem}", path.display()))
            .hint("docs/engine.md tells how the file is written")
    };
    let mut bytes = Vec::new();
    let most = file::MAX_SIZE as u64 + 1;
    File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::InvalidArgument,
        };
        wrong(code, error.to_string())
    })?;
    belljar_network::tenants::read(&bytes)
        .map_err(|error| wrong(ErrorCode::InvalidArgument, error.to_string()))
}

fn span(option: &str, text: &str) -> Result<Duration> {
    let span: Span = text
        .parse()
        .map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("option `{option}`: {error}")))?;
    Ok(span.0)
}
