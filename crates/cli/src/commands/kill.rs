//! `belljar kill` and `belljar extend`: shorter and longer lives.

use belljar_core::{Error, ErrorCode, Result, SandboxId, Span};
use rustix::process::Signal;

use super::{Context, each, exec_number};
use crate::args::{ExtendArgs, KillArgs};
use crate::outcome::{Failure, Status};

pub(crate) async fn kill(context: &Context, args: KillArgs) -> Result<Status, Failure> {
    let exec = args.exec.as_deref().map(exec_number).transpose()?;
    let signal = args.signal.as_deref().map(signal_number).transpose()?;
    each(context, &args.ids, async |id| {
        let sandbox = context.open(id).await?;
        match (exec, signal) {
            (Some(exec), Some(signal)) => sandbox.execs()?.signal(exec, signal).await,
            (Some(exec), None) => sandbox.execs()?.kill(exec).await,
            (None, _) => sandbox.control()?.kill().await,
        }
    })
    .await
}

pub(crate) async fn extend(context: &Context, args: ExtendArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let ttl: Span = args
        .ttl
        .parse()
        .map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("argument `TTL`: {error}")))?;
    context.open(&id).await?.control()?.extend(ttl.0).await?;
    if context.printer.json {
        let ttl_ms = u64::try_from(ttl.0.as_millis()).unwrap_or(u64::MAX);
        context.printer.object(&serde_json::json!({ "sandbox_id": id, "ttl_ms": ttl_ms }))?;
    }
    Ok(Status::SUCCESS)
}

/// Reads `INT`, `SIGINT`, `int` or `2`.
fn signal_number(text: &str) -> Result<i32> {
    let name = text.to_ascii_uppercase();
    let named = match name.strip_prefix("SIG").unwrap_or(&name) {
        "HUP" => Some(Signal::HUP),
        "INT" => Some(Signal::INT),
        "QUIT" => Some(Signal::QUIT),
        "KILL" => Some(Signal::KILL),
        "USR1" => Some(Signal::USR1),
        "USR2" => Some(Signal::USR2),
        "PIPE" => Some(Signal::PIPE),
        "ALRM" => Some(Signal::ALARM),
        "TERM" => Some(Signal::TERM),
        "CONT" => Some(Signal::CONT),
        "STOP" => Some(Signal::STOP),
        "TSTP" => Some(Signal::TSTP),
        "WINCH" => Some(Signal::WINCH),
        _ => None,
    };
    let number = named.map(Signal::as_raw).or_else(|| text.parse().ok());
    number.filter(|number| (1..=64).contains(number)).ok_or_else(|| {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("option `--signal`: `{}` is not a signal", text.escape_debug()),
        )
        .hint("use a name such as TERM, INT, HUP, USR1 or KILL, or a number from 1 to 64")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_by_name_and_number() {
        for (text, number) in [("INT", 2), ("SIGINT", 2), ("sigterm", 15), ("9", 9), ("64", 64)] {
            assert_eq!(signal_number(text), Ok(number));
        }
        for text in ["", "0", "65", "-9", "NOPE"] {
            assert!(signal_number(text).is_err(), "{text}");
        }
    }
}
