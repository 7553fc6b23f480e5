//! `belljar exec`: a command in a sandbox that is there.

use std::cell::Cell;
use std::time::Duration;

use belljar_core::{
    Error, ErrorCode, ExecEvent, ExecRequest, OutputMode, Sandbox, Stdin, Stream, Termination,
};
use tracing::Instrument;

use super::{Context, calls};
use crate::args::ExecArgs;
use crate::follow::{self, Wishes};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::outlet::Outlet;
use crate::print::json::{self, Execution};

pub(crate) async fn exec(context: &Context, args: ExecArgs) -> Result<Status, Failure> {
    let detach = args.detach;
    let wishes =
        Wishes { interactive: args.execution.interactive, tty: args.execution.tty, can_take_input: true };
    let (id, request) = args.plan()?;
    let sandbox = context.open(&id).await?;
    let span = tracing::error_span!("exec", sandbox = %id, exec = tracing::field::Empty);
    let key = request.key.clone();
    let outcome = if detach {
        in_background(context, sandbox.as_ref(), request).instrument(span).await
    } else {
        let mut outlet = Outlet::standard();
        in_foreground(context, sandbox.as_ref(), request, wishes, &mut outlet).instrument(span).await
    };
    match (outcome, key) {
        (Err(Failure::Error(error)), Some(key)) if error.code == ErrorCode::AlreadyExists => {
            Err(with_way_to(sandbox.as_ref(), &key, error).await.into())
        }
        (outcome, _) => outcome,
    }
}

/// Says how to come to the execution that has the key. One that ended long ago is not listed any more.
async fn with_way_to(sandbox: &dyn Sandbox, key: &str, error: Error) -> Error {
    let listed = match sandbox.execs() {
        Ok(execs) => execs.list().await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    match listed.iter().find(|info| info.key.as_deref() == Some(key)) {
        Some(info) => {
            let (id, exec) = (sandbox.id(), info.exec);
            error.hint(format!(
                "`belljar attach {id} {exec}` follows it, `belljar logs {id} {exec}` shows what it wrote; \
                 to run a command anew, give it another key"
            ))
        }
        None => error,
    }
}

/// Starts a command and leaves it.
async fn in_background(
    context: &Context,
    sandbox: &dyn Sandbox,
    mut request: ExecRequest,
) -> Result<Status, Failure> {
    (request.stdin, request.output) = (Stdin::Empty, OutputMode::Spool);
    let handle = sandbox.execs()?.start(request).await?;
    let exec = loop {
        match handle.next().await? {
            Some(ExecEvent::Started { exec, .. }) => break exec,
            Some(_) => {}
            None => return Ok(Status::of(Termination::Lost)),
        }
    };
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "sandbox_id": sandbox.id(), "exec": exec }))?;
    } else {
        context.printer.out(&format!("{exec}\n"))?;
    }
    Ok(Status::SUCCESS)
}

/// Runs a command to its end; it does not outlive our interest in it.
async fn in_foreground(
    context: &Context,
    sandbox: &dyn Sandbox,
    request: ExecRequest,
    wishes: Wishes,
    outlet: &mut Outlet,
) -> Result<Status, Failure> {
    let printer = context.printer;
    let timeout = request.timeout;
    let started = Cell::new(None);
    let mut interrupts = Interrupts::new()?;
    let work = follow::run_and_follow(sandbox, request, wishes, outlet, printer, &started);
    let result = match interrupts.guard(work).await {
        Ok(result) => result,
        Err(failure) => {
            if let (Some(exec), Ok(execs)) = (started.get(), sandbox.execs())
                && let Err(error) = execs.kill(exec).await
            {
                tracing::debug!("kill: {error}");
            }
            return Err(failure);
        }
    };
    if printer.json {
        let totals = calls::totals(sandbox, Some(result.exec)).await;
        let object = json::line(&Execution::new(&result, Duration::ZERO, sandbox.id()).with_gateway(totals))?;
        outlet.write(Stream::Stdout, object.as_bytes()).await?;
    }
    follow::explain(&result, timeout, None, printer);
    Ok(Status::of(result.termination))
}
