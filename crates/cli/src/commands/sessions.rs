//! `belljar sessions`: what the engine remembers.

use std::time::Duration;

use belljar_engine::meter::Amount;
use belljar_engine::session::Session;

use super::Context;
use super::ls::{label_list, now_ms};
use crate::args::SessionsArgs;
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::table::{span, table};
use crate::wiring;

pub(crate) async fn sessions(context: &Context, args: SessionsArgs) -> Result<Status, Failure> {
    let query = args.query()?;
    let page = wiring::engine(context.home.clone()).await?.sessions(query).await?;
    let printer = context.printer;
    if printer.json {
        printer.object(&page)?;
    } else if printer.quiet {
        page.sessions.iter().try_for_each(|session| printer.out(&format!("{}\n", session.id)))?;
    } else {
        printer.out(&session_table(&page.sessions, now_ms(), printer))?;
        if let Some(cursor) = page.cursor {
            printer.notice(&format!("there are more: say the same with --after {cursor}"));
        }
    }
    Ok(Status::SUCCESS)
}

fn session_table(sessions: &[Session], now_ms: u64, printer: Printer) -> String {
    let row = |session: &Session| {
        vec![
            session.id.to_string(),
            match session.state.reason() {
                Some(reason) => format!("{}: {reason}", session.state),
                None => session.state.to_string(),
            },
            span(Duration::from_millis(now_ms.saturating_sub(session.created_ms) / 1000 * 1000)),
            session.meter.map_or_else(|| "-".to_owned(), |meter| cpu(meter.cpu_us)),
            printer.foreign(&label_list(&session.request.spec.labels)).into_owned(),
        ]
    };
    table(&["ID", "STATE", "AGE", "CPU", "LABELS"], &sessions.iter().map(row).collect::<Vec<_>>())
}

/// Processor time; what is not known of it is not called nothing.
fn cpu(amount: Amount) -> String {
    let known = span(Duration::from_micros(amount.known));
    match amount.exact() {
        Some(_) => known,
        None if amount.known == 0 => "-".to_owned(),
        None => format!(">{known}"),
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::{ProviderName, SandboxId};
    use belljar_engine::meter::Meter;
    use belljar_engine::session::{EndReason, SessionRequest, SessionState};
    use belljar_engine::store::accepted;

    use super::*;

    #[test]
    fn sessions_in_columns() {
        let mut request = SessionRequest::default();
        request.spec.labels.insert("job".into(), "night\x1bly".into());
        let id = |number| SandboxId::from_random([number; 16]);
        let mut ended = accepted(id(1), ProviderName::Jail, request, 1_000);
        ended.state = SessionState::Ended { reason: EndReason::Expired };
        ended.meter = Some(Meter { cpu_us: Amount::from(14_000), ..Meter::default() });
        let waits = accepted(id(2), ProviderName::Jail, SessionRequest::default(), 5_000);
        let printer = Printer { to_terminal: true, ..Printer::default() };
        let text = session_table(&[waits, ended], 61_500, printer);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["ID", "STATE", "AGE", "CPU", "LABELS"]);
        assert_eq!(lines[1], [id(2).as_str(), "queued", "56s", "-"]);
        assert_eq!(lines[2], [id(1).as_str(), "ended:", "expired", "60s", "14ms", "job=night\\x1bly"]);
    }

    #[test]
    fn unknown_time_is_not_called_nothing() {
        assert_eq!(cpu(Amount::from(2_000_000)), "2s");
        assert_eq!(cpu(Amount::UNKNOWN), "-");
        assert_eq!(cpu(Amount::UNKNOWN + Amount::from(2_000_000)), ">2s");
    }
}
