//! `belljar attach`: back to a command that runs or has run.

use std::cell::Cell;
use std::time::Duration;

use belljar_core::{Position, SandboxId, Stream};
use tracing::Instrument;

use super::{Context, exec_number};
use crate::args::AttachArgs;
use crate::follow::{Followed, Ours, Sink, follow};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::outlet::Outlet;
use crate::print::json::{self, Execution};

pub(crate) async fn attach(context: &Context, args: AttachArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let exec = exec_number(&args.exec)?;
    let sandbox = context.open(&id).await?;
    let execs = sandbox.execs()?;
    let span = tracing::error_span!("attach", sandbox = %id, exec = exec.0);
    let mut outlet = Outlet::standard();
    let started = Cell::new(Some(exec));
    let mut interrupts = Interrupts::new()?;
    let work = async {
        let handle = execs.attach(exec, Position::START).await?;
        let ours = Ours::new(args.interactive || args.tty, args.tty, true)?;
        if args.tty {
            execs.resize(exec, crate::terminal::size()).await?;
        }
        let sink = if context.printer.json { Sink::Keep } else { Sink::Pass(&mut outlet) };
        follow(execs, handle, ours, sink, context.printer, &started).await
    };
    match interrupts.guard(work.instrument(span)).await? {
        Followed::Left => {
            context.printer.notice(&format!("left execution {exec} running"));
            Ok(Status::SUCCESS)
        }
        Followed::Ended(result) => {
            if context.printer.json {
                let object = json::line(&Execution::new(&result, Duration::ZERO, &id))?;
                outlet.write(Stream::Stdout, object.as_bytes()).await?;
            }
            Ok(Status::of(result.termination))
        }
    }
}
