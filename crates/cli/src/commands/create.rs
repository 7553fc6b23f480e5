//! `belljar create`: a sandbox that lives on.

use belljar_core::{Error, ErrorCode, ProviderName};
use tracing::Instrument;

use super::Context;
use crate::args::CreateArgs;
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::transfer::Transfer;
use crate::wiring;

pub(crate) async fn create(context: &Context, args: CreateArgs) -> Result<Status, Failure> {
    let (name, spec, files) = args.plan()?;
    if name == ProviderName::Local {
        return Err(Error::new(
            ErrorCode::Unsupported,
            "option `--provider`: sandboxes of the `local` provider end with the command that makes them",
        )
        .hint("use `belljar run --provider local`, or leave `--provider` out")
        .into());
    }
    let provider = wiring::provider(name, context.home.clone()).await?;
    let mut interrupts = Interrupts::new()?;
    let sandbox = interrupts.guard(provider.create(spec)).await?;
    let span = tracing::error_span!("create", sandbox = %sandbox.id());

    let transfer =
        Transfer { sandbox: sandbox.as_ref(), user: belljar_core::UserName::User, printer: context.printer };
    let uploads = async {
        for upload in files {
            transfer.upload(upload).await?;
        }
        Ok::<(), Error>(())
    };
    let ready = match interrupts.guard(uploads.instrument(span)).await {
        Ok(()) if context.printer.json => {
            context.printer.object(&serde_json::json!({ "sandbox_id": sandbox.id() }))
        }
        Ok(()) => context.printer.out(&format!("{}\n", sandbox.id())),
        Err(failure) => Err(failure),
    };
    if let Err(failure) = ready {
        // Nobody learnt its name, so nobody could remove it.
        if let Err(error) = sandbox.cleanup().await {
            context.printer.notice(&format!("sandbox {} was not removed: {error}", sandbox.id()));
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
