//! `belljar completions` and `belljar version`.

use super::Context;
use crate::args::{CompletionsArgs, definition};
use crate::outcome::{Failure, Status};

pub(crate) fn completions(context: &Context, args: CompletionsArgs) -> Result<Status, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "belljar", &mut script);
    let script = String::from_utf8_lossy(&script);
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "shell": args.shell.to_string(), "script": script }))?;
    } else {
        context.printer.out(&script)?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) fn version(context: &Context) -> Result<Status, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if context.printer.json {
        let protocol = belljar_core::wire::PROTOCOL;
        context.printer.object(&serde_json::json!({ "version": version, "protocol": protocol }))?;
    } else {
        context.printer.out(&format!("belljar {version}\n"))?;
    }
    Ok(Status::SUCCESS)
}
