//! `belljar template build`, and what is built on the way to a sandbox: templates that are ready-made, and installations.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use belljar_core::{Error, ErrorCode, NetworkPolicy, Result, Rule, Rules, SandboxSpec, Tenant};
use belljar_layers::Record;
use belljar_providers::jail::Jail;
use belljar_providers::jail::templates::catalog;
use belljar_providers::template::HOST;
use belljar_templates::{
    How, Ingredients, Install, Progress, Workshop, build, install, installed, ready, registries,
};

use super::Context;
use super::template::tell_of;
use crate::args::{Installation, TemplateBuildArgs};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::escape::escape;
use crate::wiring;

/// The names of recipes in a folder.
const RECIPES: [&str; 2] = ["template.toml", "Dockerfile"];
/// The longest recipe that is read.
const LONGEST: u64 = 1 << 20;

pub(crate) async fn template_build(context: &Context, args: TemplateBuildArgs) -> Result<Status, Failure> {
    let plan = args.plan()?;
    let source = Source::find(&plan.name, plan.folder.as_deref(), plan.file.as_deref())?;
    let mut interrupts = Interrupts::new()?;
    let work = async {
        let jail = wiring::own_jail(context.home.clone())?;
        let (reached, cache) = registries(&jail).await?;
        let network = match plan.network {
            None => allowing(reached),
            Some(NetworkPolicy::Allowlist(rules)) => {
                NetworkPolicy::Allowlist(Rules { allow: [reached, rules.allow].concat(), ..rules })
            }
            Some(other) => other,
        };
        let cache = if network == NetworkPolicy::None { Vec::new() } else { cache };
        context.printer.notice(&format!("network of the build: {network}"));
        let mut limits = How::default_limits(jail.home().path());
        limits.memory = plan.memory.unwrap_or(limits.memory);
        limits.disk = plan.disk.unwrap_or(limits.disk);
        let how = How { network, cache, limits, timeout: plan.timeout, anew: plan.anew };
        let workshop = Workshop::new(jail, wiring::unpacker()?, how)?;
        source.build(&workshop, &plan.name, &plan.args, context.printer).await
    };
    let (named, record) = interrupts.guard(work).await?;
    tell_of(context, &plan.name, &named, &record)
}

/// Where a recipe is.
enum Source {
    /// One of ours.
    Ready(&'static str),
    /// A file, and the folder that files are copied from.
    File { path: PathBuf, text: String, folder: PathBuf },
}

impl Source {
    fn find(name: &str, folder: Option<&Path>, file: Option<&Path>) -> Result<Self> {
        if let (None, None, Some(recipe)) = (folder, file, ready(name)) {
            return Ok(Self::Ready(recipe));
        }
        let folder = folder.unwrap_or(Path::new("."));
        let path = match file {
            Some(file) => file.to_owned(),
            None => {
                RECIPES.iter().map(|name| folder.join(name)).find(|path| path.exists()).ok_or_else(|| {
                    let wrong = format!("{} has neither template.toml nor Dockerfile", folder.display());
                    Error::new(ErrorCode::NotFound, wrong)
                        .hint("name another folder, or the recipe with `--file`")
                })?
            }
        };
        let unreadable = |why: String| {
            Error::new(ErrorCode::InvalidArgument, format!("cannot read {}: {why}", path.display()))
        };
        let length = fs::metadata(&path).map_err(|error| unreadable(error.to_string()))?.len();
        if length > LONGEST {
            return Err(unreadable("it is too long for a recipe".into()));
        }
        let text = fs::read_to_string(&path).map_err(|error| unreadable(error.to_string()))?;
        Ok(Self::File { path, text, folder: folder.to_owned() })
    }

    async fn build(
        &self,
        workshop: &Workshop,
        name: &str,
        args: &BTreeMap<String, String>,
        printer: Printer,
    ) -> Result<(belljar_layers::Named, Record)> {
        let mut shown = Shown::new(printer);
        let mut tell = |progress| shown.tell(progress);
        let (record, origin) = match self {
            Self::Ready(recipe) => {
                (build(workshop, Ingredients::Toml(recipe), None, &mut tell).await?, "ready-made".to_owned())
            }
            Self::File { path, text, folder } => {
                let is_toml = path.extension().is_some_and(|extension| extension == "toml");
                let ingredients =
                    if is_toml { Ingredients::Toml(text) } else { Ingredients::Dockerfile(text, args) };
                let record =
                    build(workshop, ingredients, Some(folder), &mut tell).await.map_err(|error| Error {
                        message: format!("{}: {}", path.display(), error.message),
                        ..error
                    })?;
                (record, format!("built from {}", path.file_name().unwrap_or_default().to_string_lossy()))
            }
        };
        let named = workshop.name(name, &record, &origin)?;
        shown.done();
        Ok((named, record))
    }
}

fn allowing(rules: Vec<Rule>) -> NetworkPolicy {
    if rules.is_empty() {
        return NetworkPolicy::None;
    }
    NetworkPolicy::Allowlist(Rules { allow: rules, ..Rules::default() })
}

/// What a template runs if nothing else is said.
pub(crate) fn own_command(context: &Context, template: &str) -> Result<Vec<String>> {
    let catalog = catalog(&wiring::home(context.home.clone())?)?;
    let found = catalog.find(template).map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
    let settings = found.map(|record| record.settings).unwrap_or_default();
    let command = [settings.entrypoint, settings.command].concat();
    if command.is_empty() {
        let wrong = format!("the template `{}` does not say what it runs", template.escape_debug());
        return Err(Error::new(ErrorCode::InvalidArgument, wrong).hint("say a command, after `--`"));
    }
    Ok(command)
}

/// Sees to it that what a sandbox is to be made from is there: builds a template that is ready-made, and installs what is to be
/// installed, unless that was done before.
pub(crate) async fn prepare(
    context: &Context,
    spec: &mut SandboxSpec,
    env: &BTreeMap<String, String>,
    installation: Option<&Installation>,
    tenant: Option<&Tenant>,
) -> Result<()> {
    let is_ready_made = ready(&spec.template).is_some();
    if installation.is_none() && !is_ready_made {
        return Ok(());
    }
    let home = wiring::home(context.home.clone())?;
    let found = match spec.template.as_str() {
        HOST => Some(Record::host()),
        name => {
            catalog(&home)?.find(name).map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?
        }
    };
    if found.is_some() && installation.is_none() {
        return Ok(());
    }
    let base = found.clone();
    let jail = wiring::own_jail(context.home.clone())?;
    let folder =
        std::env::current_dir().map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
    let commands = installation.map_or(&[][..], |installation| &installation.commands);
    let files = installation.map_or(&[][..], |installation| &installation.files);
    let asked = |command| Install { command, folder: &folder, files, env, tenant };
    // Mostly all of it is there, and nothing else is needed.
    let mut record = found;
    for command in commands {
        let Some(base) = record else { break };
        record = installed(&jail, &base, &asked(command)).await.map_err(in_install)?;
    }
    if let Some(record) = record {
        spec.template = record.digest().to_string();
        return Ok(());
    }
    let how = how(&jail, installation).await?;
    let workshop = Workshop::new(jail, wiring::unpacker()?, how)?;
    let mut record = match (base, ready(&spec.template)) {
        (Some(record), _) => record,
        (None, Some(recipe)) => {
            context.printer.notice(&format!("building the template `{}`, which is done once", spec.template));
            let source = Source::Ready(recipe);
            source.build(&workshop, &spec.template, &BTreeMap::new(), context.printer).await?.1
        }
        // Whoever makes the sandbox says so.
        (None, None) => return Ok(()),
    };
    if commands.is_empty() {
        return Ok(());
    }
    for command in commands {
        let mut shown = Shown::new(context.printer);
        let mut tell = |progress| shown.tell(progress);
        record = install(&workshop, &record, &asked(command), &mut tell).await.map_err(in_install)?;
        shown.done();
    }
    spec.template = record.digest().to_string();
    Ok(())
}

fn in_install(error: Error) -> Error {
    Error { message: format!("option `--install`: {}", error.message), ..error }
}

/// Under which conditions ready-made templates are built and installations done.
async fn how(jail: &Jail, installation: Option<&Installation>) -> Result<How> {
    let (mut reached, cache) = registries(jail).await?;
    reached.extend(installation.iter().flat_map(|installation| installation.allow.clone()));
    let network = allowing(reached);
    let cache = if network == NetworkPolicy::None { Vec::new() } else { cache };
    let limits = How::default_limits(jail.home().path());
    Ok(How { network, cache, limits, timeout: How::DEFAULT_TIMEOUT, anew: false })
}

/// A build as it is shown: a line for each step, and under it what its program says.
struct Shown {
    printer: Printer,
    begun: Option<Instant>,
    is_in_line: bool,
}

impl Shown {
    fn new(printer: Printer) -> Self {
        Self { printer, begun: None, is_in_line: false }
    }

    fn tell(&mut self, progress: Progress) {
        if self.printer.quiet {
            return;
        }
        match progress {
            Progress::Step { number, all, text, kept } => {
                self.done();
                self.begun = (!kept).then(Instant::now);
                let kept = if kept { "  (done before)" } else { "" };
                let _ = writeln!(io::stderr(), "[{number}/{all}] {}{kept}", escape(&text));
            }
            Progress::Output { bytes, .. } => self.output(&String::from_utf8_lossy(&bytes)),
            Progress::Note(note) => self.printer.notice(&note),
        }
    }

    /// What hostile programs say is shown without what steers terminals.
    fn output(&mut self, text: &str) {
        let mut stderr = io::stderr().lock();
        for piece in text.split_inclusive('\n') {
            let start = if self.is_in_line { "" } else { "    " };
            let is_whole = piece.ends_with('\n');
            let line = escape(piece.trim_end_matches(['\n', '\r'])).into_owned();
            let _ = write!(stderr, "{start}{line}{}", if is_whole { "\n" } else { "" });
            self.is_in_line = !is_whole;
        }
    }

    /// Says how long the last step took.
    fn done(&mut self) {
        if self.is_in_line {
            let _ = writeln!(io::stderr());
            self.is_in_line = false;
        }
        if let Some(begun) = self.begun.take().filter(|begun| begun.elapsed().as_secs() > 0) {
            let _ = writeln!(io::stderr(), "    took {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
}
