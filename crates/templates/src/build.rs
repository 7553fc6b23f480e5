//! From a recipe to a template.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_core::{Error, ErrorCode, Result, UserName};
use belljar_layers::{Digest, Ground, Record, Settings, Start};
use belljar_recipe::{Action, Base, Known, Origin, Recipe, Step, Tool, dockerfile_on, template};
use serde::Serialize;

use crate::files::{Context, Copied};
use crate::pack::{Dress, Packed, Packer};
use crate::step::Run;
use crate::workshop::{Progress, Tell, Workshop, failed};

/// Raised whenever the same step would now make something else.
const FORMAT: u32 = 1;

/// What a template is built from.
#[derive(Debug)]
pub enum Ingredients<'a> {
    /// A small text of our own.
    Toml(&'a str),
    /// A Dockerfile, with what its arguments are.
    Dockerfile(&'a str, &'a BTreeMap<String, String>),
}

/// Builds a template. Files are copied from the folder, if there is one.
pub async fn build(
    workshop: &Workshop,
    ingredients: Ingredients<'_>,
    folder: Option<&Path>,
    tell: Tell<'_>,
) -> Result<Record> {
    let recipe = read(workshop, &ingredients)?;
    for note in &recipe.notes {
        tell(Progress::Note(note.clone()));
    }
    let needed = recipe.needed();
    let all = needed.iter().map(|stage| recipe.stages[*stage].steps.len()).sum();
    let context = folder.map(Context::open).transpose()?;
    let host = workshop.jail.host_digest().await?;
    let mut building = Building { workshop, context, host, done: BTreeMap::new(), number: 0, all };
    for (at, stage) in recipe.stages.iter().enumerate().filter(|(at, _)| needed.contains(at)) {
        let base = building.base(&stage.base, tell).await.map_err(|error| in_line(stage.line, error))?;
        let mut state = State { record: base, has_command: false };
        for step in &stage.steps {
            state = building.step(state, step, tell).await.map_err(|error| in_line(step.line, error))?;
        }
        building.done.insert(at, state.record);
    }
    let last = building.done.pop_last().map(|(_, record)| record);
    last.ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "there is nothing to build"))
}

fn in_line(line: usize, error: Error) -> Error {
    if line == 0 { error } else { Error { message: format!("line {line}: {}", error.message), ..error } }
}

/// Reads the recipe; what a Dockerfile means depends on what its bases bring along.
fn read(workshop: &Workshop, ingredients: &Ingredients<'_>) -> Result<Recipe> {
    let (text, args) = match ingredients {
        Ingredients::Toml(text) => return Ok(template(text)?),
        Ingredients::Dockerfile(text, args) => (text, args),
    };
    let first = dockerfile_on(text, args, &BTreeMap::new())?;
    let mut known = BTreeMap::new();
    for stage in &first.stages {
        let settings = match &stage.base {
            Base::Stage(_) => continue,
            Base::Image(name) => named(workshop, name).map_err(|error| in_line(stage.line, error))?.settings,
            Base::Host | Base::Scratch | Base::Debian(_) => Settings::default(),
        };
        let shell = Some(settings.shell).filter(|shell| !shell.is_empty());
        let brought = Known { env: settings.env, working_directory: settings.working_directory, shell };
        known.insert(stage.base.clone(), brought);
    }
    Ok(dockerfile_on(text, args, &known)?)
}

/// A template that something is based on.
fn named(workshop: &Workshop, name: &str) -> Result<Record> {
    let found = workshop.catalog.find(name).map_err(failed)?;
    let found = match found {
        // As others write what they mean by a bare name.
        None if !name.contains(':') => workshop.catalog.find(&format!("{name}:latest")).map_err(failed)?,
        found => found,
    };
    found.ok_or_else(|| {
        Error::new(ErrorCode::NotFound, format!("there is no template or image `{}`", name.escape_debug()))
            .hint("take an image in with `docker save IMAGE | belljar template import - NAME`")
    })
}

/// What there is after some of the steps.
#[derive(Clone)]
struct State {
    record: Record,
    /// Whether the stage has said what is run: then an entry point leaves that alone.
    has_command: bool,
}

struct Building<'a> {
    workshop: &'a Workshop,
    context: Option<Context>,
    host: String,
    /// The stages that are done.
    done: BTreeMap<usize, Record>,
    number: usize,
    all: usize,
}

impl Building<'_> {
    async fn base(&self, base: &Base, tell: Tell<'_>) -> Result<Record> {
        match base {
            Base::Host => Ok(Record::host()),
            Base::Scratch => Ok(Record::nothing()),
            Base::Stage(at) => self.stage(*at),
            Base::Image(name) => named(self.workshop, name),
            Base::Debian(suite) => self.workshop.debian(suite.as_deref(), tell).await,
        }
    }

    fn stage(&self, at: usize) -> Result<Record> {
        let missing = || Error::new(ErrorCode::Internal, "a stage is needed that is not built");
        self.done.get(&at).cloned().ok_or_else(missing)
    }

    async fn step(&mut self, mut state: State, step: &Step, tell: Tell<'_>) -> Result<State> {
        self.number += 1;
        let said =
            Progress::Step { number: self.number, all: self.all, text: step.text.clone(), kept: false };
        let settings = &mut state.record.settings;
        match &step.action {
            Action::Env(pairs) => settings.env.extend(pairs.iter().cloned()),
            Action::User(user) => settings.user = Some(user.clone()),
            Action::Shell(shell) => settings.shell.clone_from(shell),
            Action::Command(command) => {
                settings.command.clone_from(command);
                state.has_command = true;
            }
            Action::Entrypoint(entrypoint) => {
                settings.entrypoint.clone_from(entrypoint);
                if !state.has_command {
                    settings.command.clear();
                }
            }
            Action::Label(_) => {}
            Action::Preload(modules) => settings.preload.clone_from(modules),
            Action::Start { command, ready } => {
                settings.start =
                    Some(Start { command: command.clone(), ready: ready.clone().unwrap_or_default() });
            }
            Action::WorkingDirectory(directory) => {
                let directory = joined(settings, directory);
                settings.working_directory = Some(directory.clone());
                tell(said);
                state.record = self.directory(state.record, &directory).await?;
                return Ok(state);
            }
            Action::Run { command, args } => {
                let mut env: BTreeMap<String, String> = args.iter().cloned().collect();
                env.retain(|name, _| !settings.env.contains_key(name));
                let run = run_of(settings, command.clone(), env);
                let key = self.key(&state.record, ("run", command, &run.env));
                state.record = self.kept(state.record, key, said, run, tell).await?;
                return Ok(state);
            }
            Action::Packages { tool, packages } => {
                let run = installing(*tool, packages);
                let key = self.key(&state.record, ("packages", &run.command, &run.env));
                state.record = self.kept(state.record, key, said, run, tell).await?;
                return Ok(state);
            }
            Action::Copy { .. } | Action::Write { .. } => {
                state.record = self.files(state.record, &step.action, said, tell).await?;
                return Ok(state);
            }
        }
        tell(said);
        Ok(state)
    }

    /// By what a step is known again: all that it depends on.
    fn key(&self, below: &Record, what: impl Serialize) -> Digest {
        let ground = if below.ground == Ground::Host { self.host.as_str() } else { "" };
        let said = serde_json::to_vec(&(FORMAT, ground, below.digest(), what));
        Digest::of(&said.unwrap_or_default())
    }

    /// Runs a program, unless that was done before.
    async fn kept(
        &self,
        below: Record,
        key: Digest,
        said: Progress,
        run: Run,
        tell: Tell<'_>,
    ) -> Result<Record> {
        if let Some(record) = self.workshop.recall(&key)? {
            tell(is_kept(said));
            return Ok(record);
        }
        tell(said.clone());
        let record = self.workshop.run(&below, run, tell).await?;
        self.remember(&key, &record, &said)?;
        Ok(record)
    }

    /// Puts files on top, unless that was done before.
    async fn files(&self, below: Record, action: &Action, said: Progress, tell: Tell<'_>) -> Result<Record> {
        // What another template has is known by what that is, and what comes from outside by what it is.
        let from = match action {
            Action::Copy { origin: Origin::Stage(at), .. } => Some(self.stage(*at)?),
            Action::Copy { origin: Origin::Image(name), .. } => Some(named(self.workshop, name)?),
            _ => None,
        };
        let packed = match from {
            Some(_) => None,
            None => Some(self.packed(&below, action, None).await?),
        };
        let key = match (&from, &packed) {
            (None, Some(packed)) => self.key(&below, ("files", packed.digest)),
            (from, _) => self.key(&below, ("copy", from.as_ref().map(Record::digest), action)),
        };
        if let Some(record) = self.workshop.recall(&key)? {
            tell(is_kept(said));
            return Ok(record);
        }
        tell(said.clone());
        let packed = match packed {
            Some(packed) => packed,
            None => self.packed(&below, action, from.as_ref()).await?,
        };
        let record = self.workshop.lay(&below, packed).await?;
        self.remember(&key, &record, &said)?;
        Ok(record)
    }

    fn remember(&self, key: &Digest, record: &Record, said: &Progress) -> Result<()> {
        let what = match said {
            Progress::Step { text, .. } => text.as_str(),
            _ => "",
        };
        self.workshop.catalog.remember(&self.workshop.held, key, record, what).map_err(failed)
    }

    /// Makes a directory, unless it is there.
    async fn directory(&self, record: Record, directory: &str) -> Result<Record> {
        let inner = Path::new(directory).strip_prefix("/").unwrap_or(Path::new(directory));
        if self.workshop.jail.stack(&record).await?.is_dir(inner).map_err(failed)? {
            return Ok(record);
        }
        let owner = self.workshop.owner(&record, record.settings.user.as_deref()).await?;
        let mut packer = Packer::new(Dress { owner: Some(owner), mode: None })?;
        packer.directory(inner, 0o755)?;
        self.workshop.lay(&record, packer.finish()?).await
    }

    /// The files that a step copies, from another template if there is one.
    async fn packed(&self, record: &Record, action: &Action, from: Option<&Record>) -> Result<Packed> {
        match action {
            Action::Copy { sources, target, owner, mode, unpack, .. } => {
                let owner = self.workshop.owner(record, owner.as_deref()).await?;
                let target = joined(&record.settings, target);
                let copied = Copied { sources, target: &target, unpack: *unpack };
                let dress = Dress { owner: Some(owner), mode: *mode };
                match (from, &self.context) {
                    (Some(from), _) => self.workshop.pack_template(record, from, &copied, dress).await,
                    (None, Some(context)) => {
                        self.workshop.pack_context(record, context, &copied, dress).await
                    }
                    (None, None) => {
                        Err(Error::new(ErrorCode::InvalidArgument, "there is no folder to copy files from"))
                    }
                }
            }
            Action::Write { content, target, owner, mode } => {
                let owner = self.workshop.owner(record, owner.as_deref()).await?;
                let target = joined(&record.settings, target);
                let mut packer = Packer::new(Dress { owner: Some(owner), mode: *mode })?;
                packer.bytes(Path::new(target.trim_start_matches('/')), 0o644, content)?;
                packer.finish()
            }
            _ => Err(Error::new(ErrorCode::Internal, "this copies nothing")),
        }
    }
}

fn is_kept(said: Progress) -> Progress {
    match said {
        Progress::Step { number, all, text, .. } => Progress::Step { number, all, text, kept: true },
        other => other,
    }
}

/// A path as it is meant in the working directory.
fn joined(settings: &Settings, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let from = settings.working_directory.as_deref().unwrap_or("/").trim_end_matches('/');
    let is_directory = path.is_empty() || path.ends_with('/') || path == "." || path.ends_with("/.");
    let path = path.trim_start_matches("./").trim_end_matches('.').trim_end_matches('/');
    match (path.is_empty(), is_directory) {
        (true, _) => format!("{from}/"),
        (false, true) => format!("{from}/{path}/"),
        (false, false) => format!("{from}/{path}"),
    }
}

/// How a line of the recipe is run: by root, unless somebody else is named.
fn run_of(settings: &Settings, command: Vec<String>, env: BTreeMap<String, String>) -> Run {
    let is_root =
        settings.user.as_deref().is_none_or(|user| matches!(user, "" | "0" | "root" | "0:0" | "root:root"));
    let user = if is_root { UserName::Root } else { UserName::User };
    let directory = settings.working_directory.clone().unwrap_or_else(|| "/".to_owned());
    Run { command, env, user, directory: Some(directory), files: Vec::new() }
}

/// How packages are installed, for everybody.
fn installing(tool: Tool, packages: &[String]) -> Run {
    let script = match tool {
        Tool::Apt => {
            "apt-get update -q && apt-get install -q -y --no-install-recommends \"$@\" && apt-get clean && \
             rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log \
             /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old"
        }
        Tool::Pip => "python3 -m pip install --no-cache-dir --no-input --progress-bar off \"$@\"",
        Tool::Npm => "npm install --global --no-audit --no-fund \"$@\" && rm -rf /root/.npm",
    };
    let command = ["/bin/sh", "-c", script, "install"].map(str::to_owned).into_iter();
    let env = [
        ("PIP_ROOT_USER_ACTION", "ignore"),
        ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
        ("npm_config_prefix", "/usr/local"),
        ("npm_config_update_notifier", "false"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let command = command.chain(packages.iter().cloned()).collect();
    Run { command, env, user: UserName::Root, directory: Some("/".into()), files: Vec::new() }
}
