//! `belljar cp`: files in and out.

use std::path::{Path, PathBuf};

use belljar_core::{ByteSize, Error, ErrorCode, Result, SandboxId, Stream, UserName};
use futures_util::StreamExt;

use super::Context;
use crate::args::{CpArgs, Place, Source};
use crate::host_files;
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::outlet::Outlet;
use crate::print::progress::shown;
use crate::transfer::{Limit, Transfer};

pub(crate) async fn cp(context: &Context, args: CpArgs) -> Result<Status, Failure> {
    let in_option = |option: &str, error: &dyn std::fmt::Display| {
        Error::new(ErrorCode::InvalidArgument, format!("option `{option}`: {error}"))
    };
    let user: UserName = args
        .user
        .parse()
        .map_err(|error: Error| Error { message: format!("option `--user`: {}", error.message), ..error })?;
    let most: ByteSize = args.max_size.parse().map_err(|error| in_option("--max-size", &error))?;
    let job = Job::new(Place::parse(&args.from)?, Place::parse(&args.to)?)?;
    let mut interrupts = Interrupts::new()?;
    interrupts.guard(job.run(context, user, Limit::new(most.0))).await?;
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "from": args.from, "to": args.to }))?;
    }
    Ok(Status::SUCCESS)
}

/// What is copied in which direction, with the host's side opened where it is the source.
enum Job {
    In { source: Source, id: SandboxId, to: belljar_core::FilePath },
    StreamIn { id: SandboxId, to: belljar_core::FilePath },
    Out { id: SandboxId, from: belljar_core::FilePath, to: PathBuf },
    StreamOut { id: SandboxId, from: belljar_core::FilePath },
}

impl Job {
    fn new(from: Place, to: Place) -> Result<Self> {
        match (from, to) {
            (Place::Host(path), Place::Inside(id, to)) => Ok(Self::In { source: Source::open(&path)?, id, to }),
            (Place::Stream, Place::Inside(id, to)) => Ok(Self::StreamIn { id, to }),
            (Place::Inside(id, from), Place::Host(to)) => Ok(Self::Out { id, from, to }),
            (Place::Inside(id, from), Place::Stream) => Ok(Self::StreamOut { id, from }),
            (Place::Inside(..), Place::Inside(..)) => Err(Error::new(
                ErrorCode::Unsupported,
                "both sides are in a sandbox",
            )
            .hint("copy to this machine first, then into the other sandbox; inside one sandbox use `belljar exec ID cp`")),
            _ => Err(Error::new(ErrorCode::InvalidArgument, "neither side is in a sandbox")
                .hint("write one side as ID:PATH, such as bj-k3m9x2p4q7w8z:/home/user/data.csv")),
        }
    }

    async fn run(self, context: &Context, user: UserName, mut limit: Limit) -> Result<(), Failure> {
        let (Self::In { id, .. }
        | Self::StreamIn { id, .. }
        | Self::Out { id, .. }
        | Self::StreamOut { id, .. }) = &self;
        let sandbox = context.open(id).await?;
        let transfer = Transfer { sandbox: sandbox.as_ref(), user, printer: context.printer };
        match self {
            Self::In { source, to, .. } => transfer.copy_in(source, &to).await?,
            Self::Out { from, to, .. } => transfer.copy_out(&from, &to, limit).await?,
            Self::StreamIn { to, .. } => {
                let content = host_files::bytes_of(tokio::io::stdin(), Path::new("-").to_owned());
                sandbox.upload(&to, user, shown(content, context.printer, "-", None)).await?;
            }
            Self::StreamOut { from, .. } => {
                let mut content = sandbox.download(&from, user).await?;
                let mut outlet = Outlet::standard();
                while let Some(piece) = content.next().await {
                    let piece = piece?;
                    limit.spend(piece.len() as u64)?;
                    outlet.write(Stream::Stdout, &piece).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(from: &str, to: &str) -> Result<Job> {
        Job::new(Place::parse(from)?, Place::parse(to)?)
    }

    #[test]
    fn exactly_one_side_is_in_a_sandbox() {
        const ID: &str = "bj-aaaaaaaaaaaaa:x";
        assert!(matches!(job("/dev/null", ID), Ok(Job::In { .. })));
        assert!(matches!(job("-", ID), Ok(Job::StreamIn { .. })));
        assert!(matches!(job(ID, "x"), Ok(Job::Out { .. })));
        assert!(matches!(job(ID, "-"), Ok(Job::StreamOut { .. })));
        for (from, to) in [("a", "b"), ("-", "-"), (ID, ID), ("/nonexistent", ID)] {
            assert!(job(from, to).is_err(), "{from} {to}");
        }
    }
}
