//! `belljar calls`: what a sandbox had the gateway do.

use belljar_core::{Call, CallTotals, ExecId, Sandbox};
use belljar_network::gateway::budget::dollars;
use serde_json::json;

use super::Context;
use super::gaps::{self, Gaps};
use crate::args::CallsArgs;
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::json;
use crate::print::table::{exact_moment, table};

pub(crate) async fn calls(context: &Context, args: CallsArgs) -> Result<Status, Failure> {
    let (id, after) = args.plan()?;
    let printer = context.printer;
    let sandbox = context.open(&id).await?;
    let calls = sandbox.gateway()?.calls(after).await?;
    let mut gaps = Gaps::after(after);
    calls.iter().for_each(|call| _ = gaps.see(call.seq));
    if printer.json {
        let totals = json::gateway(&CallTotals::of(&calls));
        printer.object(
            &json!({ "sandbox_id": id, "calls": calls, "totals": totals, "not_kept": gaps.missing }),
        )?;
    } else {
        let rows: Vec<_> = calls.iter().map(|call| row(call, printer)).collect();
        let heading = ["TIME", "EXEC", "OPERATION", "MODEL", "STATUS", "TOKENS", "COST", "REQUEST"];
        printer.out(&table(&heading, &rows))?;
        gaps::tell(printer, gaps.missing);
    }
    Ok(Status::SUCCESS)
}

fn row(call: &Call, printer: Printer) -> Vec<String> {
    let none = || "-".to_owned();
    let foreign = |text: &str| printer.foreign(text).into_owned();
    let cost = match call.nano_dollars {
        Some(nano) => format!("${}", dollars(nano)),
        None if call.model.is_some() && !call.refused => "?".to_owned(),
        None => none(),
    };
    let request = match &call.error {
        Some(error) if call.refused => format!("{}: refused: {error}", call.request),
        Some(error) => format!("{}: {error}", call.request),
        None => call.request.clone(),
    };
    vec![
        exact_moment(i64::try_from(call.time_ms).unwrap_or(i64::MAX)),
        call.exec.map_or_else(none, |exec| exec.to_string()),
        call.operation.as_ref().map_or_else(none, ToString::to_string),
        call.model.as_deref().map_or_else(none, foreign),
        call.status.to_string(),
        call.usage.map_or_else(none, |usage| usage.total().to_string()),
        cost,
        foreign(&request),
    ]
}

/// What a sandbox had the gateway do, in one execution or in all, if anything. Where that cannot be told, the result of the
/// execution is still the result.
pub(super) async fn totals(sandbox: &dyn Sandbox, exec: Option<ExecId>) -> Option<CallTotals> {
    let gateway = sandbox.gateway().ok()?;
    let calls = match gateway.calls(0).await {
        Ok(calls) => calls,
        Err(error) => {
            tracing::warn!(%error, "cannot tell what the gateway did");
            return None;
        }
    };
    let counted = calls.iter().filter(|call| exec.is_none() || call.exec == exec);
    Some(CallTotals::of(counted)).filter(|totals| !totals.is_empty())
}

#[cfg(test)]
mod tests {
    use belljar_core::ModelUsage;

    use super::*;

    #[test]
    fn calls_in_columns() {
        let usage = ModelUsage { uncached: 1000, output: 30, ..ModelUsage::default() };
        let call = Call {
            seq: 1,
            time_ms: 951_782_400_123,
            request_id: "r".into(),
            exec: Some(ExecId(3)),
            token: Some("tk-1".into()),
            operation: Some("llm:chat".parse().unwrap()),
            request: "POST /v1/messages".into(),
            model: Some("small\u{1b}[2J".into()),
            status: 200,
            error: None,
            refused: false,
            free: false,
            usage: Some(usage),
            is_final: true,
            nano_dollars: Some(3_450_000),
            counted_tokens: 1030,
            counted_nano_dollars: 3_450_000,
            duration_us: 7,
        };
        let printer = Printer { to_terminal: true, ..Printer::default() };
        let told = row(&call, printer).join(" ");
        assert_eq!(
            told,
            "2000-02-29 00:00:00.123 3 llm:chat small\\x1b[2J 200 1030 $0.00345 POST /v1/messages"
        );
        let unknown = Call { nano_dollars: None, ..call.clone() };
        assert!(row(&unknown, printer).contains(&"?".to_owned()));
        let refused = Call {
            refused: true,
            usage: None,
            nano_dollars: None,
            error: Some("its token is for other operations".into()),
            ..call
        };
        let told = row(&refused, printer).join(" ");
        assert!(
            told.ends_with("- - POST /v1/messages: refused: its token is for other operations"),
            "{told}"
        );
    }
}
