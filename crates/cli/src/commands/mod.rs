//! One file per command. Each takes its checked arguments, does its work and answers with a status.

mod attach;
mod build;
mod cache;
mod calls;
mod completions;
mod cp;
mod create;
mod doctor;
mod engine;
mod exec;
mod gaps;
mod gateway;
mod inspect;
mod kill;
mod logs;
mod ls;
mod net;
mod pause;
mod policy;
mod recording;
mod rm;
mod run;
mod sessions;
mod stats;
mod template;
mod token;

use std::path::PathBuf;
use std::sync::Arc;

use belljar_core::{Error, ErrorCode, ExecId, Result, Sandbox, SandboxId};

use crate::args::{
    CacheVerb, Cli, GatewayVerb, NetVerb, PolicyVerb, RecordingVerb, TemplateVerb, TokenVerb, Verb,
};
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::wiring;

/// What every command needs to know.
pub(crate) struct Context {
    /// The data directory, if one was named.
    pub(crate) home: Option<PathBuf>,
    /// How to print.
    pub(crate) printer: Printer,
}

impl Context {
    /// Finds a sandbox that an earlier command made.
    async fn open(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        wiring::lasting(self.home.clone()).await?.open(id).await
    }
}

/// Does what was asked.
pub(crate) async fn dispatch(cli: Cli, printer: Printer) -> Result<Status, Failure> {
    let context = Context { home: cli.global.home, printer };
    match cli.command {
        Verb::Run(args) => run::run(&context, args).await,
        Verb::Create(args) => create::create(&context, args).await,
        Verb::Exec(args) => exec::exec(&context, args).await,
        Verb::Attach(args) => attach::attach(&context, args).await,
        Verb::Cp(args) => cp::cp(&context, args).await,
        Verb::Ls(args) => ls::ls(&context, args).await,
        Verb::Inspect(args) => inspect::inspect(&context, args).await,
        Verb::Logs(args) => logs::logs(&context, args).await,
        Verb::Stats(args) => stats::stats(&context, args).await,
        Verb::Extend(args) => kill::extend(&context, args).await,
        Verb::Pause(args) => pause::pause(&context, args).await,
        Verb::Resume(args) => pause::resume(&context, args).await,
        Verb::Kill(args) => kill::kill(&context, args).await,
        Verb::Rm(args) => rm::rm(&context, args).await,
        Verb::Net(args) => match args.command {
            NetVerb::Set(args) => net::set(&context, args).await,
            NetVerb::Show(args) => net::show(&context, args).await,
        },
        Verb::Egress(args) => net::egress(&context, args).await,
        Verb::Cache(args) => match args.command {
            CacheVerb::Ls => cache::ls(&context),
            CacheVerb::Rm(args) => cache::rm(&context, &args),
            CacheVerb::Limit(args) => cache::limit(&context, &args),
        },
        Verb::Template(args) => match args.command {
            TemplateVerb::Build(args) => build::template_build(&context, *args).await,
            TemplateVerb::Import(args) => template::take_in(&context, args).await,
            TemplateVerb::Export(args) => template::give_out(&context, args).await,
            TemplateVerb::Ls => template::ls(&context),
            TemplateVerb::Inspect(args) => template::inspect(&context, &args),
            TemplateVerb::Files(args) => template::files(&context, &args),
            TemplateVerb::Cat(args) => template::cat(&context, &args),
            TemplateVerb::Diff(args) => template::diff(&context, &args),
            TemplateVerb::Rm(args) => template::rm(&context, &args),
            TemplateVerb::Verify(args) => template::verify(&context, &args),
            TemplateVerb::Gc(args) => template::gc(&context, args).await,
        },
        Verb::Snapshot(args) => template::snapshot(&context, args).await,
        Verb::Recording(args) => match args.command {
            RecordingVerb::Ls => recording::ls(&context),
            RecordingVerb::Show(args) => recording::show(&context, &args),
            RecordingVerb::Export(args) => recording::export(&context, &args),
            RecordingVerb::Import(args) => recording::import(&context, &args),
            RecordingVerb::Rm(args) => recording::rm(&context, &args),
        },
        Verb::Policy(args) => match args.command {
            PolicyVerb::Check(args) => policy::check(&context, &args),
            PolicyVerb::Test(args) => policy::test(&context, args).await,
        },
        Verb::Gateway(args) => match args.command {
            GatewayVerb::Check => gateway::check(&context),
        },
        Verb::Token(args) => match args.command {
            TokenVerb::Create(args) => token::create(&context, args).await,
            TokenVerb::Ls(args) => token::ls(&context, args).await,
            TokenVerb::Revoke(args) => token::revoke(&context, args).await,
            TokenVerb::Extend(args) => token::extend(&context, args).await,
        },
        Verb::Calls(args) => calls::calls(&context, args).await,
        Verb::Engine(args) => engine::engine(&context, args).await,
        Verb::Sessions(args) => sessions::sessions(&context, args).await,
        Verb::Events(args) => engine::events(&context, args).await,
        Verb::Usage(args) => engine::usage(&context, args).await,
        Verb::Backup(args) => engine::backup(&context, args).await,
        Verb::Restore(args) => engine::restore(&context, args).await,
        Verb::Doctor => doctor::doctor(&context).await,
        Verb::Completions(args) => completions::completions(&context, args),
        Verb::Version => completions::version(&context),
    }
}

/// Reads the number of an execution.
fn exec_number(text: &str) -> Result<ExecId> {
    text.parse().ok().filter(|number| *number > 0).map(ExecId).ok_or_else(|| {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("`{}` is not the number of an execution", text.escape_debug()),
        )
        .hint("executions count from 1; `belljar inspect ID` lists them")
    })
}

/// Does the same to several sandboxes: all are tried, and the first failure is the answer.
async fn each(
    context: &Context,
    ids: &[String],
    mut work: impl AsyncFnMut(&SandboxId) -> Result<()>,
) -> Result<Status, Failure> {
    let ids = ids.iter().map(|id| id.parse()).collect::<Result<Vec<SandboxId>>>()?;
    let mut failure = None;
    let mut done = Vec::new();
    for id in &ids {
        match work(id).await {
            Ok(()) => done.push(id),
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    context.printer.error(&earlier);
                }
            }
        }
    }
    if let Some(error) = failure {
        return Err(error.into());
    }
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "sandbox_ids": done }))?;
    } else {
        done.iter().try_for_each(|id| context.printer.out(&format!("{id}\n")))?;
    }
    Ok(Status::SUCCESS)
}
