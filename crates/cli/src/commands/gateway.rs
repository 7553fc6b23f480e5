//! `belljar gateway`: what the gateway does, and whether it has its keys.

use belljar_core::{Error, ErrorCode};
use belljar_network::gateway::config::{Config, FILE};
use belljar_network::gateway::operation::Operation;
use belljar_network::gateway::process;
use belljar_providers::home::Home;
use serde_json::json;

use super::Context;
use crate::outcome::{Failure, Status};
use crate::print::table::table;

pub(crate) fn check(context: &Context) -> Result<Status, Failure> {
    let printer = context.printer;
    let home = Home::open(context.home.clone())?;
    let config = process::configuration(home.path()).map_err(|wrong| {
        Error::new(ErrorCode::InvalidArgument, format!("the gateway cannot be set up: {wrong}"))
            .hint(format!("docs/gateway.md says how {FILE} is written"))
    })?;
    let missing: Vec<(&String, String)> =
        config.secrets.iter().filter_map(|(name, source)| Some((name, source.read().err()?))).collect();
    let status = if missing.is_empty() { Status::SUCCESS } else { Status::UNFIT };
    if printer.json {
        let operations: Vec<_> = config.operations.values().map(described).collect();
        let missing: Vec<_> =
            missing.iter().map(|(name, why)| json!({ "secret": name, "reason": why })).collect();
        printer.object(&json!({ "operations": operations, "missing": missing }))?;
        return Ok(status);
    }
    printer.out(&table(&["OPERATION", "KIND", "AT", "UPSTREAM", "KEY"], &rows(&config)))?;
    for (name, why) in &missing {
        printer.complaint(&format!("the key `{name}` is missing: {why}"));
    }
    Ok(status)
}

fn rows(config: &Config) -> Vec<Vec<String>> {
    let row = |operation: &Operation| {
        vec![
            operation.name.to_string(),
            operation.kind.to_string(),
            operation.mount.clone(),
            address(operation),
            operation.secret.clone().unwrap_or_else(|| "-".into()),
        ]
    };
    config.operations.values().map(row).collect()
}

fn address(operation: &Operation) -> String {
    let upstream = &operation.upstream;
    let scheme = if upstream.tls { "https" } else { "http" };
    format!("{scheme}://{}{}", upstream.authority(), upstream.base)
}

fn described(operation: &Operation) -> serde_json::Value {
    json!({
        "name": operation.name,
        "kind": operation.kind,
        "mount": operation.mount,
        "upstream": address(operation),
        "secret": operation.secret,
        "models": operation.models,
    })
}
