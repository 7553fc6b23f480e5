//! `belljar logs`: the kept output of executions.

use std::cell::Cell;
use std::time::Duration;

use belljar_core::{Error, ErrorCode, ExecInfo, ExecResult, Execs, Position, SandboxId, Stream};

use super::inspect::words;
use super::{Context, exec_number};
use crate::args::LogsArgs;
use crate::follow::{Ours, Sink, follow};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::outlet::Outlet;
use crate::print::escape::Sieve;
use crate::print::json::Execution;

pub(crate) async fn logs(context: &Context, args: LogsArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let wanted = args.exec.as_deref().map(exec_number).transpose()?;
    let sandbox = context.open(&id).await?;
    let execs = sandbox.execs()?;
    let mut known = execs.list().await?;
    if let Some(wanted) = wanted {
        known.retain(|exec| exec.exec == wanted);
        if known.is_empty() {
            return Err(Error::new(ErrorCode::NotFound, format!("sandbox {id} has no execution {wanted}"))
                .hint("`belljar inspect ID` lists the executions")
                .into());
        }
    }
    if args.follow && known.len() > 1 {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "option `--follow`: there are several executions",
        )
        .hint("name one: belljar logs --follow ID EXEC")
        .into());
    }
    let mut interrupts = Interrupts::new()?;
    if context.printer.json {
        let mut objects = Vec::new();
        for exec in &known {
            let result = interrupts.guard(kept(execs, exec, args.follow)).await?;
            let mut object = serde_json::to_value(Execution::new(&result, Duration::ZERO, &id))
                .map_err(|error| Failure::internal(format!("cannot write JSON: {error}")))?;
            if exec.termination.is_none() && !args.follow {
                object["termination"] = serde_json::Value::Null;
            }
            object["exec"] = exec.exec.0.into();
            object["command"] = serde_json::json!(exec.command);
            objects.push(object);
        }
        context.printer.object(&serde_json::json!({ "executions": objects }))?;
        return Ok(Status::SUCCESS);
    }
    let mut outlet = Outlet::standard();
    for exec in &known {
        if known.len() > 1 {
            let command = words(&exec.command);
            let heading = format!("==> {}: {} <==\n", exec.exec, context.printer.foreign(&command));
            outlet.write(Stream::Stdout, heading.as_bytes()).await?;
        }
        interrupts.guard(show(context, execs, exec, &args, &mut outlet)).await?;
    }
    Ok(Status::SUCCESS)
}

async fn show(
    context: &Context,
    execs: &dyn Execs,
    exec: &ExecInfo,
    args: &LogsArgs,
    outlet: &mut Outlet,
) -> Result<(), Failure> {
    let to_terminal = context.printer.to_terminal || context.printer.errors_to_terminal;
    if !args.follow && exec.termination.is_none() {
        let result = kept(execs, exec, false).await?;
        let mut sieve = Sieve::default();
        for (stream, output) in [(Stream::Stdout, &result.stdout), (Stream::Stderr, &result.stderr)] {
            let bytes = output.to_bytes();
            let bytes = if to_terminal && !args.raw { sieve.pass(&bytes).into_bytes() } else { bytes };
            outlet.write(stream, &bytes).await?;
        }
        return Ok(());
    }
    let handle = execs.attach(exec.exec, Position::START).await?;
    let sink =
        if to_terminal && !args.raw { Sink::Sieve(outlet, Box::default()) } else { Sink::Pass(outlet) };
    let started = Cell::new(Some(exec.exec));
    follow(execs, handle, Ours::default(), sink, context.printer, &started).await?;
    Ok(())
}

/// What an execution has written: all of it if it ended or is to be followed, else what there is now.
async fn kept(execs: &dyn Execs, exec: &ExecInfo, to_the_end: bool) -> Result<ExecResult, Failure> {
    let mut result = ExecResult::collect([]);
    let handle = match execs.attach(exec.exec, Position::START).await {
        // One that streams to its caller keeps nothing.
        Err(error) if error.code == ErrorCode::NotFound => return Ok(result),
        attached => attached?,
    };
    let ends = to_the_end || exec.termination.is_some();
    let mut at = Position::START;
    while ends || !exec.said.is_within(at) {
        match handle.next().await? {
            Some(event) => {
                at.pass(&event);
                result.apply(event);
            }
            None => break,
        }
    }
    Ok(result)
}
