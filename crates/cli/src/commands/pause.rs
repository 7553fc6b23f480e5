//! `belljar pause` and `belljar resume`: sandboxes that stand still in memory.

use super::{Context, each};
use crate::args::{PauseArgs, ResumeArgs};
use crate::outcome::{Failure, Status};

pub(crate) async fn pause(context: &Context, args: PauseArgs) -> Result<Status, Failure> {
    each(context, &args.ids, async |id| context.open(id).await?.control()?.pause().await).await
}

pub(crate) async fn resume(context: &Context, args: ResumeArgs) -> Result<Status, Failure> {
    each(context, &args.ids, async |id| context.open(id).await?.control()?.resume().await).await
}
