//! The reader takes instructions one by one and knows what is in force.

use std::collections::{BTreeMap, BTreeSet};

use super::lines::Instruction;
use super::list::list;
use super::scope::Scope;
use super::words::{self, Form};
use super::{Known, MAX_EXPANSION, MAX_STAGES, MAX_TOTAL};
use crate::check::{self, Checked};
use crate::model::{Action, Base, Recipe, Stage, Step, shown};
use crate::wrong::{Wrong, quoted};

/// Arguments that need no value from anybody.
const PLATFORM: [(&str, &str); 8] = [
    ("BUILDPLATFORM", "linux/amd64"),
    ("BUILDOS", "linux"),
    ("BUILDARCH", "amd64"),
    ("BUILDVARIANT", ""),
    ("TARGETPLATFORM", "linux/amd64"),
    ("TARGETOS", "linux"),
    ("TARGETARCH", "amd64"),
    ("TARGETVARIANT", ""),
];

pub(super) struct Reader<'a> {
    pub escape: char,
    given: &'a BTreeMap<String, String>,
    bases: &'a BTreeMap<Base, Known>,
    /// Arguments before the first stage, and those of the platform.
    globals: BTreeMap<String, String>,
    declared: BTreeSet<String>,
    pub stages: Vec<Stage>,
    /// What is in force at the end of each stage; the last is the one that is read.
    scopes: Vec<Scope>,
    /// What is in force before the first stage: nothing.
    before: Scope,
    pub notes: Vec<String>,
    spent: usize,
}

impl<'a> Reader<'a> {
    pub fn new(escape: char, given: &'a BTreeMap<String, String>, bases: &'a BTreeMap<Base, Known>) -> Self {
        let platform = PLATFORM.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut globals = BTreeMap::from(platform);
        for (name, value) in &mut globals {
            if let Some(given) = given.get(name) {
                value.clone_from(given);
            }
        }
        Self {
            escape,
            given,
            bases,
            declared: globals.keys().cloned().collect(),
            globals,
            stages: Vec::new(),
            scopes: Vec::new(),
            before: Scope::new(None),
            notes: Vec::new(),
            spent: 0,
        }
    }

    pub fn finish(mut self) -> Result<Recipe, Wrong> {
        if self.stages.is_empty() {
            return Err(
                Wrong::at(1, "there is no FROM").hint("begin with FROM and what the template is based on")
            );
        }
        if let Some(name) = self.given.keys().find(|name| !self.declared.contains(*name)) {
            return Err(Wrong::at(1, format!("no ARG declares the build argument {}", quoted(name)))
                .hint("write ARG and its name where it is used, or leave it out"));
        }
        for (stage, scope) in self.stages.iter_mut().zip(self.scopes) {
            stage.wants = scope.wants.into_inner();
        }
        Ok(Recipe { stages: self.stages, notes: self.notes })
    }

    pub fn read(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let line = instruction.line;
        let keyword = instruction.keyword.as_str();
        if !["FROM", "RUN", "COPY", "ADD", "HEALTHCHECK"].contains(&keyword)
            && let Some((flag, _)) = instruction.flags.first()
        {
            return Err(Wrong::at(
                line,
                format!("{} takes no options such as --{}", quoted(keyword), quoted(flag)),
            ));
        }
        let is_empty = instruction.rest.is_empty() && keyword != "HEALTHCHECK";
        match keyword {
            "FROM" | "ARG" | "RUN" | "COPY" | "ADD" | "ENV" | "LABEL" | "WORKDIR" | "USER" | "SHELL" | "CMD"
            | "ENTRYPOINT" | "EXPOSE" | "HEALTHCHECK" | "STOPSIGNAL" | "MAINTAINER"
                if is_empty =>
            {
                Err(Wrong::at(line, format!("{keyword} says nothing")))
            }
            "FROM" => self.from(instruction),
            "ARG" => self.arg(instruction),
            "VOLUME" => Err(Wrong::at(line, "VOLUME is not supported: a template has no volumes")
                .hint("leave it out; what is written there stays in the sandbox")),
            "ONBUILD" => Err(Wrong::at(line, "ONBUILD is not supported")
                .hint("write what it says into what is based on this")),
            "RUN" | "COPY" | "ADD" | "ENV" | "LABEL" | "WORKDIR" | "USER" | "SHELL" | "CMD" | "ENTRYPOINT" | "EXPOSE"
            | "HEALTHCHECK" | "STOPSIGNAL" | "MAINTAINER"
                if self.stages.is_empty() =>
            {
                Err(Wrong::at(line, format!("{keyword} stands before the first FROM")).hint("only ARG may"))
            }
            "RUN" => self.run(instruction),
            "COPY" | "ADD" => self.copy(instruction),
            "ENV" => self.env(instruction),
            "LABEL" => self.label(instruction),
            "WORKDIR" => self.working_directory(instruction),
            "USER" => {
                let user = self.expand(line, &instruction.rest)?;
                self.check(line, || check::owner(&user))?;
                self.step(instruction, Action::User(user))
            }
            "SHELL" => self.shell(instruction),
            "CMD" => self.command(instruction).and_then(|it| self.step(instruction, Action::Command(it))),
            "ENTRYPOINT" => self.command(instruction).and_then(|it| self.step(instruction, Action::Entrypoint(it))),
            "EXPOSE" => Ok(()),
            "HEALTHCHECK" | "STOPSIGNAL" | "MAINTAINER" => {
                self.notes.push(format!("line {line}: {keyword} means nothing here and is left out"));
                Ok(())
            }
            _ => Err(Wrong::at(line, format!("{} is not an instruction", quoted(keyword))).hint(
                "there are FROM, ARG, RUN, COPY, ADD, ENV, LABEL, WORKDIR, USER, SHELL, CMD, ENTRYPOINT and EXPOSE",
            )),
        }
    }

    fn from(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let line = instruction.line;
        for (flag, value) in &instruction.flags {
            let value = match flag.as_str() {
                "platform" => self.expand_global(line, value.as_deref().unwrap_or_default())?,
                _ => return Err(Wrong::at(line, format!("FROM has no option --{}", quoted(flag)))),
            };
            if value != "linux/amd64" {
                return Err(Wrong::at(line, format!("the platform {} is not supported", quoted(&value)))
                    .hint("leave it out, or write linux/amd64"));
            }
        }
        let words = words::split(&instruction.rest, self.escape);
        let (reference, name) = match words.as_slice() {
            [reference] => (*reference, None),
            [reference, word, name] if word.eq_ignore_ascii_case("as") => (*reference, Some(*name)),
            _ => {
                return Err(
                    Wrong::at(line, "FROM is not understood").hint("write FROM base, or FROM base AS name")
                );
            }
        };
        let reference = self.expand_global(line, reference)?;
        let base = match reference.as_str() {
            "" => {
                return Err(Wrong::at(line, "nothing is left of the base once its variables are replaced")
                    .hint("only what ARG sets before the first FROM is known here"));
            }
            "scratch" => Base::Scratch,
            "host" => Base::Host,
            other => match self.stage_named(other) {
                Some(at) => Base::Stage(at),
                None => {
                    self.refuse(line, check::image(other))?;
                    Base::Image(reference)
                }
            },
        };
        let name = name.map(|name| self.stage_name(line, name)).transpose()?;
        if self.stages.len() == MAX_STAGES {
            return Err(Wrong::at(line, format!("there are more than {MAX_STAGES} stages")));
        }
        let scope = match base {
            Base::Stage(at) => self.scopes[at].clone(),
            Base::Scratch => Scope::new(Some(self.bases.get(&base).unwrap_or(&Known::default()))),
            _ => Scope::new(self.bases.get(&base)),
        };
        self.spend(line, scope.size())?;
        self.scopes.push(scope);
        self.stages.push(Stage { name, base, steps: Vec::new(), line, wants: BTreeSet::new() });
        Ok(())
    }

    fn stage_name(&self, line: usize, name: &str) -> Result<String, Wrong> {
        let name = name.to_ascii_lowercase();
        let fits = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        if !fits || name.len() > 100 {
            return Err(Wrong::at(line, format!("{} is not the name of a stage", quoted(&name)))
                .hint("names have letters, digits, dots and dashes, and a letter in front"));
        }
        if ["host", "scratch"].contains(&name.as_str()) {
            return Err(Wrong::at(line, format!("no stage can be called {}", quoted(&name))));
        }
        match self.stage_named(&name) {
            None => Ok(name),
            Some(at) => {
                let other = self.stages[at].line;
                Err(Wrong::at(line, format!("the stage of line {other} is called {} already", quoted(&name))))
            }
        }
    }

    /// The stage of this name, in any case.
    pub fn stage_named(&self, name: &str) -> Option<usize> {
        self.stages
            .iter()
            .position(|stage| stage.name.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name)))
    }

    /// Arguments take the value that was given; else their own; else, in a stage, the one from before the stages.
    fn arg(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let line = instruction.line;
        let mut values = Vec::new();
        for word in words::split(&instruction.rest, self.escape) {
            let (name, default) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            self.refuse(line, check::variable(name))?;
            self.declared.insert(name.to_owned());
            let value = match (self.given.get(name), default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(default)) if self.stages.is_empty() => Some(self.expand_global(line, default)?),
                (None, Some(default)) => Some(self.expand(line, default)?),
                (None, None) => self.globals.get(name).cloned(),
            };
            let Some(value) = value else { continue };
            self.spend(line, name.len() + value.len())?;
            if self.stages.is_empty() {
                self.globals.insert(name.to_owned(), value);
            } else {
                values.push((name.to_owned(), value));
            }
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.args.extend(values);
        }
        Ok(())
    }

    fn env(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let pairs = self.pairs(instruction)?;
        if let Some((name, _)) = pairs.iter().find(|(name, _)| name.chars().any(char::is_whitespace)) {
            return Err(Wrong::at(
                instruction.line,
                format!("{} is not the name of a variable", quoted(name)),
            ));
        }
        for (name, value) in &pairs {
            self.spend(instruction.line, name.len() + value.len())?;
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.env.extend(pairs.iter().cloned());
        }
        self.step(instruction, Action::Env(pairs))
    }

    fn label(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let pairs = self.pairs(instruction)?;
        self.step(instruction, Action::Label(pairs))
    }

    /// `name=value name=value`, or the old form, `name value`.
    fn pairs(&mut self, instruction: &Instruction) -> Result<Vec<(String, String)>, Wrong> {
        let line = instruction.line;
        let (name, value) = words::first(&instruction.rest, self.escape);
        let mut written = Vec::new();
        if name.contains('=') {
            for word in words::split(&instruction.rest, self.escape) {
                let Some(pair) = word.split_once('=') else {
                    return Err(Wrong::at(line, format!("{} has no value", quoted(word)))
                        .hint("write name=value, with quotes around values that have spaces"));
                };
                written.push(pair);
            }
        } else if value.is_empty() {
            return Err(Wrong::at(line, format!("{} has no value", quoted(name))).hint("write name=value"));
        } else {
            written.push((name, value));
        }
        let mut pairs = Vec::new();
        for (name, value) in written {
            let name = self.expand(line, name)?;
            let value = self.expand(line, value)?;
            if self.scope().is_certain() && (name.is_empty() || name.contains('=')) {
                return Err(Wrong::at(line, format!("{} is not a name", quoted(&name))));
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }

    fn working_directory(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let line = instruction.line;
        let directory = self.expand(line, &instruction.rest)?;
        self.check(line, || check::target(&directory))?;
        let resolved = self.scope().directory(&directory);
        if let Some(resolved) = &resolved {
            self.check(line, || check::target(resolved))?;
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.working_directory.clone_from(&resolved);
        }
        self.step(instruction, Action::WorkingDirectory(resolved.unwrap_or(directory)))
    }

    fn shell(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let shell =
            list(&instruction.rest).filter(|shell| shell.first().is_some_and(|first| !first.is_empty()));
        let Some(shell) = shell else {
            return Err(Wrong::at(instruction.line, "SHELL is not a list of texts")
                .hint("write it as in SHELL [\"/bin/bash\", \"-c\"]"));
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.shell.clone_from(&shell);
        }
        self.step(instruction, Action::Shell(shell))
    }

    /// What is in force now.
    pub fn scope(&self) -> &Scope {
        self.scopes.last().unwrap_or(&self.before)
    }

    /// Adds a step to the stage that is read.
    pub fn step(&mut self, instruction: &Instruction, action: Action) -> Result<(), Wrong> {
        if let Some(stage) = self.stages.last_mut() {
            let flags = instruction.flags.iter().map(|(name, value)| match value {
                Some(value) => format!(" --{name}={value}"),
                None => format!(" --{name}"),
            });
            let text = format!("{}{} {}", instruction.keyword, flags.collect::<String>(), instruction.rest);
            stage.steps.push(Step { line: instruction.line, text: shown(&text), action });
        }
        Ok(())
    }

    /// A word of a stage with its variables replaced.
    pub fn expand(&mut self, line: usize, text: &str) -> Result<String, Wrong> {
        let form = Form { escape: self.escape, quotes: true, most: MAX_EXPANSION };
        self.expand_as(line, text, form)
    }

    /// A text of a stage with its variables replaced.
    pub fn expand_as(&mut self, line: usize, text: &str, form: Form) -> Result<String, Wrong> {
        let scope = self.scope();
        let expanded = words::expand(text, form, &|name| scope.value(name), &|| scope.is_certain());
        let expanded = expanded.map_err(|what| Wrong::at(line, what))?;
        self.spend(line, expanded.len())?;
        Ok(expanded)
    }

    fn expand_global(&mut self, line: usize, text: &str) -> Result<String, Wrong> {
        let form = Form { escape: self.escape, quotes: true, most: MAX_EXPANSION };
        let lookup = |name: &str| self.globals.get(name).map(String::as_str);
        let expanded = words::expand(text, form, &lookup, &|| true).map_err(|what| Wrong::at(line, what))?;
        self.spend(line, expanded.len())?;
        Ok(expanded)
    }

    /// Refuses a value that does not fit, unless it may yet become another.
    pub fn check(&self, line: usize, check: impl FnOnce() -> Checked) -> Result<(), Wrong> {
        if self.scope().is_certain() { self.refuse(line, check()) } else { Ok(()) }
    }

    pub fn refuse<T>(&self, line: usize, checked: Checked<T>) -> Result<T, Wrong> {
        checked.map_err(|(what, hint)| Wrong { line, what, hint: hint.map(str::to_owned) })
    }

    /// Counts what the recipe holds, so that a short text does not become a large one.
    pub fn spend(&mut self, line: usize, bytes: usize) -> Result<(), Wrong> {
        self.spent = self.spent.saturating_add(bytes);
        if self.spent > MAX_TOTAL {
            return Err(Wrong::at(
                line,
                format!("more than {MAX_TOTAL} bytes come of all values up to here"),
            ));
        }
        Ok(())
    }
}
