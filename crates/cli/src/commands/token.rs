//! `belljar token`: what a sandbox may ask of the gateway, changed while it runs.

use std::time::Duration;

use belljar_core::{Budget, SandboxId, TokenRecord, TokenState};
use belljar_network::gateway::budget::dollars;
use serde_json::{Value, json};

use super::Context;
use super::ls::now_ms;
use crate::args::{TokenCreateArgs, TokenExtendArgs, TokenLsArgs, TokenRevokeArgs};
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::table::{span, table};

pub(crate) async fn create(context: &Context, args: TokenCreateArgs) -> Result<Status, Failure> {
    let (id, grant) = args.plan()?;
    let sandbox = context.open(&id).await?;
    let issued = sandbox.gateway()?.issue(grant).await?;
    if context.printer.json {
        let mut object = described(&issued.record, now_ms());
        object["sandbox_id"] = json!(id);
        object["token"] = json!(issued.token);
        object["env"] = json!(issued.env);
        context.printer.object(&object)?;
    } else {
        context.printer.out(&format!("{}\n", issued.token))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) async fn ls(context: &Context, args: TokenLsArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let sandbox = context.open(&id).await?;
    let (tokens, now) = (sandbox.gateway()?.tokens().await?, now_ms());
    if context.printer.json {
        let tokens: Vec<_> = tokens.iter().map(|record| described(record, now)).collect();
        context.printer.object(&json!({ "sandbox_id": id, "tokens": tokens }))?;
    } else {
        let rows: Vec<_> = tokens.iter().map(|record| row(record, now, context.printer)).collect();
        context
            .printer
            .out(&table(&["TOKEN ID", "STATE", "EXPIRES", "AGENT", "BUDGET", "OPERATIONS"], &rows))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) async fn revoke(context: &Context, args: TokenRevokeArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let sandbox = context.open(&id).await?;
    let record = sandbox.gateway()?.revoke(&args.token).await?;
    tell(context, &id, &record)
}

pub(crate) async fn extend(context: &Context, args: TokenExtendArgs) -> Result<Status, Failure> {
    let (id, token, life) = args.plan()?;
    let sandbox = context.open(&id).await?;
    let record = sandbox.gateway()?.extend(&token, life).await?;
    tell(context, &id, &record)
}

fn tell(context: &Context, id: &SandboxId, record: &TokenRecord) -> Result<Status, Failure> {
    if context.printer.json {
        let mut object = described(record, now_ms());
        object["sandbox_id"] = json!(id);
        context.printer.object(&object)?;
    } else {
        context.printer.out(&format!("{}\n", record.id))?;
    }
    Ok(Status::SUCCESS)
}

/// What is told of a token. Its hash is nobody's business.
fn described(record: &TokenRecord, now_ms: u64) -> Value {
    let TokenRecord { id, hash: _, grant, issued_ms, expires_ms, hosts, revoked_ms } = record;
    json!({
        "token_id": id,
        "state": record.state(now_ms),
        "operations": grant.operations,
        "hosts": hosts,
        "agent": grant.agent,
        "budget": grant.budget,
        "renewed": grant.renewed,
        "issued_ms": issued_ms,
        "expires_ms": expires_ms,
        "revoked_ms": revoked_ms,
    })
}

fn row(record: &TokenRecord, now_ms: u64, printer: Printer) -> Vec<String> {
    let state = record.state(now_ms);
    let left = Duration::from_millis(record.expires_ms.saturating_sub(now_ms));
    let operations: Vec<_> = record.grant.operations.iter().map(ToString::to_string).collect();
    vec![
        record.id.clone(),
        state.to_string(),
        if state == TokenState::Good { format!("in {}", span(left)) } else { "-".into() },
        record.grant.agent.as_deref().map_or_else(|| "-".into(), |agent| printer.foreign(agent).into_owned()),
        budget(record.grant.budget),
        operations.join(" "),
    ]
}

fn budget(budget: Budget) -> String {
    let parts = [
        budget.requests.map(|count| format!("{count} calls")),
        budget.tokens.map(|count| format!("{count} tokens")),
        budget.micro_dollars.map(|micro| format!("${}", dollars(micro.saturating_mul(1000)))),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use belljar_core::Grant;

    use super::*;

    #[test]
    fn a_token_is_told_without_what_it_is() {
        let mut grant = Grant::of(vec!["llm:chat".parse().unwrap(), "search:web".parse().unwrap()]);
        grant.budget = Budget { requests: Some(20), tokens: None, micro_dollars: Some(250_000) };
        grant.agent = Some("a\u{1b}[2Jb".into());
        let mut record = TokenRecord {
            id: "tk-1".into(),
            hash: "abcdef".into(),
            grant,
            issued_ms: 0,
            expires_ms: 300_000,
            hosts: Vec::new(),
            revoked_ms: None,
        };
        assert!(!described(&record, 0).to_string().contains("abcdef"));
        let printer = Printer { to_terminal: true, ..Printer::default() };
        let told = row(&record, 0, printer).join(" ");
        assert_eq!(told, "tk-1 good in 5m a\\x1b[2Jb 20 calls, $0.25 llm:chat search:web");
        record.revoke(7);
        let told = row(&record, 10, printer).join(" ");
        assert!(told.starts_with("tk-1 revoked - "), "{told}");
    }
}
