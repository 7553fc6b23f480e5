//! `belljar create`: a sandbox that lives on.

use std::sync::Arc;

use belljar_core::{Error, ErrorCode, Provider, ProviderName, Result, Sandbox, SandboxId, UserName};
use belljar_engine::session::{Session, SessionRequest};
use belljar_engine::store::Accepted;
use tracing::Instrument;

use super::{Context, build};
use crate::args::{CreateArgs, CreatePlan, Upload};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::transfer::Transfer;
use crate::wiring;

pub(crate) async fn create(context: &Context, args: CreateArgs) -> Result<Status, Failure> {
    let CreatePlan { provider, mut request, needs_engine, files, installation } = args.plan()?;
    if provider == ProviderName::Local {
        return Err(Error::new(
            ErrorCode::Unsupported,
            "option `--provider`: sandboxes of the `local` provider end with the command that makes them",
        )
        .hint("use `belljar run --provider local`, or leave `--provider` out")
        .into());
    }
    let keyed = request.key.is_some();
    let mut interrupts = Interrupts::new()?;
    let tenant = Some(request.tenant.clone()).filter(|_| needs_engine.is_some());
    let env = request.spec.env.clone();
    let prepared = build::prepare(context, &mut request.spec, &env, installation.as_ref(), tenant.as_ref());
    interrupts.guard(prepared).await?;
    let made = interrupts.guard(make(context, provider, request, needs_engine)).await?;
    match made {
        Made::New(sandbox) => furnish(context, &*sandbox, files, keyed, &mut interrupts).await,
        Made::Before(session) => found(context, &session, !files.is_empty()),
    }
}

/// What came of asking for a sandbox.
enum Made {
    /// This call made it.
    New(Arc<dyn Sandbox>),
    /// An earlier call with the same key did. It is not ours to fill or to remove.
    Before(Box<Session>),
}

async fn make(
    context: &Context,
    provider: ProviderName,
    request: SessionRequest,
    needs_engine: Option<&str>,
) -> Result<Made> {
    let Some(option) = needs_engine else {
        let provider = wiring::provider(provider, context.home.clone()).await?;
        return Ok(Made::New(provider.create(request.spec).await?));
    };
    let engine = wiring::engine(context.home.clone()).await.map_err(|error| needed_for(option, error))?;
    Ok(match engine.session_for(request).await? {
        Accepted::New(session) => Made::New(Provider::open(&engine, &session.id).await?),
        Accepted::Known(session) => Made::Before(Box::new(session)),
    })
}

fn needed_for(option: &str, error: Error) -> Error {
    match error.code {
        ErrorCode::NotFound => Error {
            code: ErrorCode::Unavailable,
            message: format!("option `{option}` needs an engine, and {}", error.message),
            ..error
        },
        _ => error,
    }
}

/// Copies in what was asked for and says the name; a sandbox that cannot be had complete is not left behind.
async fn furnish(
    context: &Context,
    sandbox: &dyn Sandbox,
    files: Vec<Upload>,
    keyed: bool,
    interrupts: &mut Interrupts,
) -> Result<Status, Failure> {
    let transfer = Transfer { sandbox, user: UserName::User, printer: context.printer };
    let uploads = async {
        for upload in files {
            transfer.upload(upload).await?;
        }
        Ok::<(), Error>(())
    };
    let span = tracing::error_span!("create", sandbox = %sandbox.id());
    let ready = match interrupts.guard(uploads.instrument(span)).await {
        Ok(()) => say(context, sandbox.id()),
        Err(failure) => Err(failure),
    };
    if let Err(failure) = ready {
        // Nobody learnt its name, so nobody could remove it.
        match sandbox.cleanup().await {
            Err(error) => {
                context.printer.notice(&format!("sandbox {} was not removed: {error}", sandbox.id()))
            }
            Ok(()) if keyed => context
                .printer
                .notice("the sandbox was removed, and its key is spent: try again with another"),
            Ok(()) => {}
        }
        return Err(failure);
    }
    if let Ok(control) = sandbox.control()
        && let Ok(info) = control.info().await
    {
        info.losses.iter().for_each(|loss| context.printer.notice(loss));
    }
    Ok(Status::SUCCESS)
}

/// Answers as the call did that made it.
fn found(context: &Context, session: &Session, has_files: bool) -> Result<Status, Failure> {
    say(context, &session.id)?;
    if let Some(reason) = session.state.reason() {
        context.printer.notice(&format!("sandbox {} has ended: {reason}", session.id));
    } else if has_files {
        context.printer.notice("an earlier call made the sandbox; no files were copied in by this one");
    }
    Ok(Status::SUCCESS)
}

fn say(context: &Context, id: &SandboxId) -> Result<(), Failure> {
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "sandbox_id": id }))
    } else {
        context.printer.out(&format!("{id}\n"))
    }
}
