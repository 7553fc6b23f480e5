//! `belljar rm`: nothing of a sandbox is left.

use belljar_core::{Error, ErrorCode};

use super::{Context, each};
use crate::args::RmArgs;
use crate::outcome::{Failure, Status};

pub(crate) async fn rm(context: &Context, args: RmArgs) -> Result<Status, Failure> {
    each(context, &args.ids, async |id| {
        let sandbox = match context.open(id).await {
            Err(error) if args.force && error.code == ErrorCode::NotFound => return Ok(()),
            opened => opened?,
        };
        let state = sandbox.control()?.info().await?.state;
        if !args.force && state.is_alive() {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("sandbox {id} is {state}"))
                .hint("end and remove it with `belljar rm -f`, or end it first with `belljar kill`"));
        }
        sandbox.cleanup().await
    })
    .await
}
