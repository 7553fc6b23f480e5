//! `belljar run`: a sandbox for one command. Whatever happens, it does not stay behind.

use std::cell::Cell;
use std::time::{Duration, Instant};

use belljar_core::{Capability, Command, Error, ErrorCode, Provider, ProviderName, Sandbox, Stream};
use tracing::Instrument;

use super::{Context, build, calls};
use crate::args::{Plan, RunArgs};
use crate::follow::{self, Wishes};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::outlet::Outlet;
use crate::print::json::{self, Execution};
use crate::transfer::Transfer;
use crate::wiring;

/// How long removing a sandbox may hold us up; it is tied to this process and goes with it anyway.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(context: &Context, args: RunArgs) -> Result<Status, Failure> {
    let mut plan = args.plan()?;
    if plan.provider == ProviderName::Jail {
        let mut interrupts = Interrupts::new()?;
        let env = plan.request.env.clone();
        let prepared = build::prepare(context, &mut plan.spec, &env, plan.installation.as_ref(), None);
        interrupts.guard(prepared).await?;
    }
    if plan.runs_own {
        plan.request.command = Command::Argv(build::own_command(context, &plan.spec.template)?);
    }
    let provider = wiring::provider(plan.provider, context.home.clone()).await?;
    one_shot(context, provider.as_ref(), plan, &mut Outlet::standard()).await
}

/// Makes a sandbox, does the work in it, and removes it, also when interrupted or when nobody reads any more.
async fn one_shot(
    context: &Context,
    provider: &dyn Provider,
    plan: Plan,
    outlet: &mut Outlet,
) -> Result<Status, Failure> {
    let mut interrupts = Interrupts::new()?;
    let begun = Instant::now();
    let sandbox = interrupts.guard(provider.create(plan.spec.clone())).await?;
    let launch = begun.elapsed();
    let span = tracing::error_span!("run", sandbox = %sandbox.id(), exec = tracing::field::Empty);
    let can_take_input = provider.capabilities().has(Capability::Stdin);
    let work = work(context, sandbox.as_ref(), plan, can_take_input, launch, outlet).instrument(span.clone());
    let worked = interrupts.guard(work).await;
    remove(context, sandbox.as_ref(), &mut interrupts).instrument(span).await;
    worked
}

async fn work(
    context: &Context,
    sandbox: &dyn Sandbox,
    plan: Plan,
    can_take_input: bool,
    launch: Duration,
    outlet: &mut Outlet,
) -> Result<Status, Failure> {
    let printer = context.printer;
    tracing::info!("created in {launch:?}");
    say_losses(context, sandbox).await;
    let transfer = Transfer { sandbox, user: plan.request.user, printer };
    for upload in plan.files {
        transfer.upload(upload).await?;
    }
    let wishes = Wishes { interactive: plan.interactive, tty: plan.tty, can_take_input };
    let (timeout, command) = (plan.request.timeout, plan.request.command.clone());
    let started = Cell::new(None);
    let followed = follow::run_and_follow(sandbox, plan.request, wishes, outlet, printer, &started).await;
    let result = followed.map_err(|failure| with_script_hint(failure, &command))?;

    let mut status = Status::of(result.termination);
    let mut missed = Vec::new();
    for fetch in &plan.outs {
        if let Err(error) = transfer.fetch(fetch).await {
            missed.push(Error { message: format!("option `--out`: {}", error.message), ..error });
        }
    }
    if printer.json {
        let totals = if plan.spec.grant.is_some() { calls::totals(sandbox, None).await } else { None };
        let object = json::line(&Execution::new(&result, launch, sandbox.id()).with_gateway(totals))?;
        outlet.write(Stream::Stdout, object.as_bytes()).await?;
    }
    follow::explain(&result, timeout, Some(plan.spec.limits.memory.to_string()), printer);
    if !missed.is_empty() {
        missed.iter().for_each(|error| printer.error(error));
        if result.termination.is_success() {
            status = Status::FAILED;
        }
    }
    Ok(status)
}

/// Tells a person, not a script, which walls this host could not give.
async fn say_losses(context: &Context, sandbox: &dyn Sandbox) {
    if !context.printer.errors_to_terminal || context.printer.quiet || context.printer.json {
        return;
    }
    if let Ok(control) = sandbox.control()
        && let Ok(info) = control.info().await
    {
        info.losses.iter().for_each(|loss| context.printer.notice(loss));
    }
}

/// `run tool.py argument` names a file of the host where a command of the sandbox is meant.
fn with_script_hint(failure: Failure, command: &Command) -> Failure {
    let (Failure::Error(error), Command::Argv(argv)) = (&failure, command) else { return failure };
    let path = std::path::Path::new(&argv[0]);
    if error.code != ErrorCode::CommandNotFound || !path.is_file() {
        return failure;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hint = format!(
        "`{0}` is a file of this machine: bring it in with --file {0}:{name}, and name its interpreter",
        argv[0]
    );
    Failure::Error(error.clone().hint(hint))
}

async fn remove(context: &Context, sandbox: &dyn Sandbox, interrupts: &mut Interrupts) {
    let removed = tokio::time::timeout(PATIENCE, interrupts.guard(sandbox.cleanup())).await;
    match removed {
        Ok(Ok(())) => tracing::info!("removed"),
        Ok(Err(Failure::Error(error))) => {
            context.printer.notice(&format!("sandbox {} was not removed: {error}", sandbox.id()));
        }
        Ok(Err(_)) | Err(_) => tracing::warn!("left the removal to the next sweep"),
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::{Denial, ExecEvent, Termination, Usage};
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};
    use crate::print::Printer;
    use crate::testing::{Scripted, Sunk, outlet};

    fn plan(line: &[&str]) -> Plan {
        match Cli::try_parse_from(["belljar", "run"].iter().chain(line)).unwrap().command {
            Verb::Run(args) => args.plan().unwrap(),
            _ => panic!("not run"),
        }
    }

    async fn run_in(provider: &Scripted, json: bool, line: &[&str]) -> (Result<Status, Failure>, Sunk) {
        let context = Context { home: None, printer: Printer { json, quiet: true, ..Printer::default() } };
        let (mut outlet, sunk) = outlet();
        let result = one_shot(&context, provider, plan(line), &mut outlet).await;
        (result, sunk)
    }

    fn output(stream: Stream, bytes: &'static [u8]) -> ExecEvent {
        ExecEvent::Output { stream, bytes: bytes.into() }
    }

    fn finished(termination: Termination) -> ExecEvent {
        let duration = Duration::from_millis(3);
        ExecEvent::Finished { termination, usage: Usage::default(), duration, oom_kills: None }
    }

    #[tokio::test]
    async fn output_is_passed_on_byte_for_byte_and_the_sandbox_goes() {
        let provider = Scripted::new(vec![
            output(Stream::Stdout, b"\xff\x00\x1b[2J"),
            output(Stream::Stderr, b"oops"),
            output(Stream::Stdout, b"more"),
            finished(Termination::Exited { code: 3 }),
        ]);
        let (result, sunk) = run_in(&provider, false, &["--", "x"]).await;
        assert_eq!(result.unwrap(), Status::of(Termination::Exited { code: 3 }));
        assert_eq!(sunk.stdout(), b"\xff\x00\x1b[2Jmore");
        assert_eq!(sunk.stderr(), b"oops");
        assert_eq!(provider.removed(), 1);
        assert_eq!(provider.request().output, belljar_core::OutputMode::Flow);
    }

    #[tokio::test]
    async fn json_is_one_object_with_the_documented_fields() {
        let provider =
            Scripted::new(vec![output(Stream::Stdout, b"42\n"), finished(Termination::Exited { code: 0 })]);
        let (result, sunk) = run_in(&provider, true, &["--", "x"]).await;
        assert_eq!(result.unwrap(), Status::SUCCESS);
        let object: serde_json::Value = serde_json::from_slice(&sunk.stdout()).unwrap();
        let mut fields: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
        fields.sort();
        let documented = [
            "denied",
            "duration_ms",
            "exit_code",
            "oom_kills",
            "sandbox_id",
            "signal",
            "start_ms",
            "stderr",
            "stderr_gap",
            "stdout",
            "stdout_gap",
            "termination",
            "truncated",
            "usage",
        ];
        assert_eq!(fields, documented);
        assert_eq!(object["stdout"], "42\n");
        assert_eq!(provider.request().output, belljar_core::OutputMode::Spool);
    }

    #[tokio::test]
    async fn what_was_denied_is_in_the_object_and_not_in_the_output() {
        let denial = Denial {
            what: "a connection to a.org port 443".into(),
            reason: "not_listed".into(),
            rule: None,
            how_to_grant: "Say --allow a.org\u{1b}[2J".into(),
            times: 2,
        };
        let script =
            || vec![ExecEvent::Denied(vec![denial.clone()]), finished(Termination::Exited { code: 1 })];
        let (result, sunk) = run_in(&Scripted::new(script()), true, &["--", "x"]).await;
        assert_eq!(result.unwrap(), Status::of(Termination::Exited { code: 1 }));
        let object: serde_json::Value = serde_json::from_slice(&sunk.stdout()).unwrap();
        let expected = serde_json::json!([{
            "what": denial.what, "reason": "not_listed", "how_to_grant": denial.how_to_grant, "times": 2,
        }]);
        assert_eq!(object["denied"], expected);
        assert!(!sunk.stdout().contains(&0x1b), "it cannot steer a terminal");
        let (_, sunk) = run_in(&Scripted::new(script()), false, &["--", "x"]).await;
        assert_eq!((sunk.stdout(), sunk.stderr()), (Vec::new(), Vec::new()), "the command wrote nothing");
    }

    #[tokio::test]
    async fn a_failed_start_leaves_nothing_behind() {
        let provider = Scripted::failing(Error::new(ErrorCode::CommandNotFound, "no `x`"));
        let (result, _) = run_in(&provider, false, &["--", "x"]).await;
        assert!(matches!(result, Err(Failure::Error(error)) if error.code == ErrorCode::CommandNotFound));
        assert_eq!(provider.removed(), 1);
    }

    #[tokio::test]
    async fn a_reader_that_went_away_ends_the_run_and_the_sandbox() {
        let provider = Scripted::new(vec![output(Stream::Stdout, b"x")]);
        let context = Context { home: None, printer: Printer { quiet: true, ..Printer::default() } };
        let (closed, other) = tokio::io::duplex(1);
        drop(other);
        let mut outlet = Outlet::new(closed, tokio::io::sink());
        let result = one_shot(&context, &provider, plan(&["--", "x"]), &mut outlet).await;
        assert!(matches!(result, Err(Failure::BrokenPipe)));
        assert_eq!(provider.removed(), 1);
    }

    #[tokio::test]
    async fn files_go_in_before_and_come_out_after() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::write(&source, b"\x00\xff").unwrap();
        let provider = Scripted::new(vec![finished(Termination::Exited { code: 0 })]);
        let file = format!("{}:data", source.display());
        let out = format!("data:{}", target.display());
        let (result, _) = run_in(&provider, true, &["--file", &file, "--out", &out, "--", "x"]).await;
        assert_eq!(result.unwrap(), Status::SUCCESS);
        assert_eq!(std::fs::read(&target).unwrap(), b"\x00\xff");

        let out = format!("missing:{}", target.display());
        let provider = Scripted::new(vec![finished(Termination::Exited { code: 0 })]);
        let (result, sunk) = run_in(&provider, true, &["--out", &out, "--", "x"]).await;
        assert_eq!(result.unwrap(), Status::FAILED, "the command succeeded, its result is missing");
        assert!(serde_json::from_slice::<serde_json::Value>(&sunk.stdout()).is_ok());
        assert_eq!(std::fs::read(&target).unwrap(), b"\x00\xff", "what was there is untouched");
    }

    #[tokio::test]
    async fn contact_lost_is_not_success() {
        let provider = Scripted::new(vec![]);
        let (result, _) = run_in(&provider, true, &["--", "x"]).await;
        assert_eq!(result.unwrap(), Status::FAILED);
    }
}
