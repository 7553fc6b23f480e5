//! `belljar doctor`: what this host can and cannot do.

use super::Context;
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::wiring::{self, Check, Health};

pub(crate) async fn doctor(context: &Context) -> Result<Status, Failure> {
    let checks = wiring::examine(context.home.clone()).await;
    let fit = checks.iter().all(|check| check.status != Health::Missing);
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "ok": fit, "checks": checks }))?;
    } else {
        context.printer.out(&report(&checks, context.printer, crate::print::stdout_has_colour()))?;
    }
    Ok(if fit { Status::SUCCESS } else { Status::UNFIT })
}

fn report(checks: &[Check], printer: Printer, colour: bool) -> String {
    let mut text = String::new();
    let mut area = None;
    for check in checks {
        if area != Some(check.area) {
            area = Some(check.area);
            text += &format!("{}{}\n", if text.is_empty() { "" } else { "\n" }, check.area);
        }
        let (word, paint) = match check.status {
            Health::Ok => ("ok", "\x1b[32m"),
            Health::Degraded => ("degraded", "\x1b[33m"),
            Health::Missing => ("missing", "\x1b[31m"),
        };
        let (paint, plain) = if colour { (paint, "\x1b[0m") } else { ("", "") };
        text +=
            &format!("  {paint}{word:<8}{plain}  {:<24} {}\n", check.name, printer.foreign(&check.finding));
        if let Some(advice) = &check.advice {
            text += &format!("            {:<24} {}\n", "", printer.foreign(advice));
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    text += &match (count(Health::Missing), count(Health::Degraded)) {
        (0, 0) => "\neverything that the walls need is here\n".to_owned(),
        (0, degraded) => format!("\nsandboxes work; {degraded} found degraded, see above\n"),
        (missing, _) => format!("\nsandboxes do not work here: {missing} missing, see above\n"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wiring::Area;

    #[test]
    fn findings_are_grouped_and_advice_stands_below() {
        let check = |name: &str, area, status, advice: Option<&str>| Check {
            name: name.into(),
            area,
            status,
            finding: "tried".into(),
            advice: advice.map(str::to_owned),
        };
        let checks = [
            check("user namespaces", Area::Walls, Health::Ok, None),
            check("landlock", Area::Walls, Health::Degraded, Some("use Linux 5.13 or newer")),
            check("memory", Area::Limits, Health::Missing, Some("mount a cgroup hierarchy")),
        ];
        insta::assert_snapshot!(report(&checks, Printer::default(), false), @r"
        walls
          ok        user namespaces          tried
          degraded  landlock                 tried
                                             use Linux 5.13 or newer

        limits
          missing   memory                   tried
                                             mount a cgroup hierarchy

        sandboxes do not work here: 1 missing, see above
        ");
    }
}
