//! `belljar net` and `belljar egress`: what a sandbox may reach, and what it has reached.

use belljar_core::{Flow, Network, SandboxId, Verdict};
use futures_util::StreamExt;

use super::Context;
use super::gaps::{self, Gaps};
use super::policy::describe;
use crate::args::{EgressArgs, NetSetArgs, NetShowArgs};
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::table::{exact_moment, size};

pub(crate) async fn set(context: &Context, args: NetSetArgs) -> Result<Status, Failure> {
    let (id, policy) = args.plan()?;
    let sandbox = context.open(&id).await?;
    sandbox.network()?.set_policy(policy).await?;
    tell(context, &id, sandbox.network()?).await
}

pub(crate) async fn show(context: &Context, args: NetShowArgs) -> Result<Status, Failure> {
    let id: SandboxId = args.id.parse()?;
    let sandbox = context.open(&id).await?;
    tell(context, &id, sandbox.network()?).await
}

async fn tell(context: &Context, id: &SandboxId, network: &dyn Network) -> Result<Status, Failure> {
    let policy = network.policy().await?;
    let printer = context.printer;
    if printer.json {
        printer.object(&serde_json::json!({ "sandbox_id": id, "policy": policy }))?;
    } else {
        printer.out(&describe(&policy, printer))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) async fn egress(context: &Context, args: EgressArgs) -> Result<Status, Failure> {
    let (id, after) = args.plan()?;
    let (printer, follow) = (context.printer, args.follow);
    let sandbox = context.open(&id).await?;
    let mut flows = sandbox.network()?.flows(after, follow).await?;
    let (mut all, mut gaps) = (Vec::new(), Gaps::after(after));
    if !printer.json && !printer.quiet {
        printer.out(&row(&HEADING.map(str::to_owned)))?;
    }
    while let Some(flow) = flows.next().await {
        let flow = flow?;
        let missing = gaps.see(flow.seq);
        if follow {
            gaps::tell(printer, missing);
        }
        match (printer.json, follow) {
            (true, true) => printer.object(&flow)?,
            (true, false) => all.push(flow),
            (false, _) => printer.out(&line(&flow, printer))?,
        }
    }
    match (printer.json, follow) {
        (true, false) => printer.object(&serde_json::json!({ "flows": all, "not_kept": gaps.missing }))?,
        (false, false) => gaps::tell(printer, gaps.missing),
        (_, true) => {}
    }
    Ok(Status::SUCCESS)
}

const HEADING: [&str; 7] = ["TIME", "EXEC", "KIND", "WHAT", "VERDICT", "OUT", "IN"];

/// One line of the table. Its columns are as wide as most need, since more lines may be to come.
fn row(cells: &[String; 7]) -> String {
    let [time, exec, kind, what, verdict, sent, received] = cells;
    format!("{time:<23}  {exec:<4}  {kind:<4}  {what:<40}  {verdict:<24}  {sent:>8}  {received:>8}\n")
}

fn line(flow: &Flow, printer: Printer) -> String {
    let place = match flow.port {
        Some(port) => format!("{}:{port}", flow.host),
        None => flow.host.clone(),
    };
    let what = match &flow.request {
        Some(request) => format!("{place} {request}"),
        None => place,
    };
    let verdict = match &flow.verdict {
        Verdict::Allowed if flow.cached > 0 => format!("cached: {}", size(Some(flow.cached))),
        Verdict::Allowed => "allowed".to_owned(),
        Verdict::Denied { reason, .. } => format!("denied: {reason}"),
        Verdict::Failed { error } => format!("failed: {error}"),
    };
    let words = [("stage", &flow.purpose.stage), ("call", &flow.purpose.tool_call)];
    let words =
        words.map(|(name, word)| word.as_ref().map(|word| format!("  {name} {}", printer.foreign(word))));
    let mut line = row(&[
        exact_moment(i64::try_from(flow.time_ms).unwrap_or(i64::MAX)),
        flow.exec.map_or_else(|| "-".to_owned(), |exec| exec.to_string()),
        flow.kind.to_string(),
        printer.foreign(&what).into_owned(),
        printer.foreign(&verdict).into_owned(),
        size(Some(flow.sent)),
        size(Some(flow.received)),
    ]);
    line.truncate(line.trim_end().len());
    line.extend(words.into_iter().flatten());
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use belljar_core::{ExecId, FlowKind, Purpose};

    use super::*;

    #[test]
    fn flows_in_columns() {
        let flow = Flow {
            seq: 1,
            time_ms: 951_782_400_123,
            exec: Some(ExecId(3)),
            purpose: Purpose::default(),
            owner: None,
            kind: FlowKind::Http,
            host: "a.org".into(),
            port: Some(80),
            request: Some("GET /x\x1b[2J".into()),
            address: None,
            verdict: Verdict::Denied {
                reason: "not_listed".into(),
                what: "it".into(),
                how_to_grant: "ask".into(),
            },
            rule: None,
            sent: 120,
            received: 0,
            cached: 0,
            duration_us: 7,
        };
        let printer = Printer { to_terminal: true, ..Printer::default() };
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            words(&line(&flow, printer)),
            words("2000-02-29 00:00:00.123 3 http a.org:80 GET /x\\x1b[2J denied: not_listed 120 B 0 B")
        );
        let purpose = Purpose { stage: Some("coder".into()), tool_call: Some("toolu_01".into()) };
        let told = line(&Flow { purpose, ..flow.clone() }, printer);
        assert!(told.ends_with("120 B       0 B  stage coder  call toolu_01\n"), "{told}");
        let looked_up = Flow {
            exec: None,
            kind: FlowKind::Dns,
            port: None,
            request: None,
            verdict: Verdict::Failed { error: "no such name".into() },
            ..flow
        };
        let text = line(&looked_up, printer);
        assert!(text.contains(" -     dns   a.org ") && text.contains("failed: no such name"), "{text}");
        assert_eq!(words(&row(&HEADING.map(str::to_owned))), HEADING);
    }
}
