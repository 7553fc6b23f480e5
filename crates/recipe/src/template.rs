//! `template.toml`: the small way to say what a template is made of.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::check::{self, Checked};
use crate::dockerfile::MAX_INSTRUCTIONS;
use crate::model::{Action, Base, Origin, Recipe, Stage, Step, Tool, shown};
use crate::wrong::{Wrong, quoted};

/// What may stand at the top.
const KEYS: [&str; 9] =
    ["base", "run", "user", "working_directory", "preload", "env", "packages", "files", "start"];

type Value<'a> = Spanned<DeValue<'a>>;

/// A key, its place, and its value.
type Entry<'v, 'a> = (&'v str, Range<usize>, &'v Value<'a>);

/// Reads a `template.toml`.
///
/// Whatever order it is written in, variables are set first; then come packages of apt, pip and npm, files, commands,
/// the working directory, the user, modules to preload, and what is started. Files keep the order of the text. Commands
/// are lines for `/bin/sh`, or lists; variables are replaced by the shell, and nowhere else.
///
/// ```
/// let recipe = belljar_recipe::template("base = \"debian\"\n[packages]\napt = [\"git\"]\n")?;
/// assert_eq!(recipe.stages[0].steps[0].text, "apt git");
/// # Ok::<(), belljar_recipe::Wrong>(())
/// ```
pub fn template(text: &str) -> Result<Recipe, Wrong> {
    check::text(text)?;
    let reader = Reader {
        ends: text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect(),
    };
    let table = DeTable::parse(text)
        .map_err(|error| Wrong::at(reader.line(error.span().unwrap_or(0..0)), shown(error.message())))?;
    reader.recipe(&table)
}

struct Reader {
    /// Where lines end.
    ends: Vec<usize>,
}

impl Reader {
    fn recipe(&self, table: &Spanned<DeTable<'_>>) -> Result<Recipe, Wrong> {
        let table = table.get_ref();
        self.known(table, &KEYS)?;
        let Some(base) = table.get("base") else {
            return Err(
                Wrong::at(1, "`base` is missing").hint("write base = \"host\", \"debian\" or an image")
            );
        };
        let line = self.line(base.span());
        let base = self.base(base)?;
        let mut notes = Vec::new();
        let mut steps = Vec::new();
        if let Some(value) = table.get("env") {
            steps.extend(self.env(value, &mut notes)?);
        }
        if let Some(value) = table.get("packages") {
            steps.extend(self.packages(value)?);
        }
        if let Some(value) = table.get("files") {
            steps.extend(self.files(value)?);
        }
        if let Some(value) = table.get("run") {
            for item in self.list(value)? {
                let command = self.shell(item)?;
                let text = shown(&format!("run {}", self.string(item)?));
                steps.push(self.step(item, text, Action::Run { command, args: Vec::new() }));
            }
        }
        if let Some(value) = table.get("working_directory") {
            let directory = self.checked(value, check::absolute)?;
            let text = shown(&format!("working directory {directory}"));
            steps.push(self.step(value, text, Action::WorkingDirectory(directory)));
        }
        if let Some(value) = table.get("user") {
            let user = self.checked(value, check::owner)?;
            steps.push(self.step(value, shown(&format!("user {user}")), Action::User(user)));
        }
        if let Some(value) = table.get("preload") {
            let modules = self.each(value, check::module)?;
            if !modules.is_empty() {
                let text = shown(&format!("preload {}", modules.join(" ")));
                steps.push(self.step(value, text, Action::Preload(modules)));
            }
        }
        if let Some(value) = table.get("start") {
            steps.push(self.start(value)?);
        }
        if let Some(step) = steps.get(MAX_INSTRUCTIONS) {
            return Err(Wrong::at(step.line, format!("there are more than {MAX_INSTRUCTIONS} steps")));
        }
        let stage = Stage { name: None, base, steps, line, wants: Default::default() };
        Ok(Recipe { stages: vec![stage], notes })
    }

    fn base(&self, value: &Value<'_>) -> Result<Base, Wrong> {
        let base = self.checked(value, check::image)?;
        let suite = base.strip_prefix("debian:");
        Ok(match base.as_str() {
            "host" => Base::Host,
            "scratch" => Base::Scratch,
            "debian" => Base::Debian(None),
            _ => match suite.filter(|suite| suite.bytes().all(|byte| byte.is_ascii_lowercase())) {
                Some(suite) if !suite.is_empty() => Base::Debian(Some(suite.to_owned())),
                // Versions and variants, such as `12` and `bookworm-slim`, are names that only images have.
                _ => Base::Image(base),
            },
        })
    }

    fn env(&self, value: &Value<'_>, notes: &mut Vec<String>) -> Result<Option<Step>, Wrong> {
        let mut pairs = Vec::new();
        for (name, key, value) in self.entries(value)? {
            self.check(key.clone(), check::variable(name))?;
            if KEYS.contains(&name) {
                notes.push(format!(
                    "line {}: `{name}` is a variable here; the setting belongs above the first [table]",
                    self.line(key)
                ));
            }
            let text = self.string(value)?;
            if [format!("${name}"), format!("${{{name}}}")].iter().any(|itself| text.contains(itself)) {
                notes.push(format!(
                    "line {}: `{}` is set to what is written; variables in it are not replaced",
                    self.line(value.span()),
                    shown(name)
                ));
            }
            pairs.push((name.to_owned(), text.to_owned()));
        }
        let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
        let text = shown(&format!("env {}", names.join(" ")));
        Ok((!pairs.is_empty()).then(|| self.step(value, text, Action::Env(pairs))))
    }

    fn packages(&self, value: &Value<'_>) -> Result<Vec<Step>, Wrong> {
        let tools = [Tool::Apt, Tool::Pip, Tool::Npm];
        let table = self.table(value)?;
        self.known(table, &tools.map(Tool::as_str))?;
        let mut steps = Vec::new();
        for tool in tools {
            let Some(list) = table.get(tool.as_str()) else { continue };
            let packages = self.each(list, |package| check::package(tool, package))?;
            if !packages.is_empty() {
                let text = shown(&format!("{} {}", tool.as_str(), packages.join(" ")));
                steps.push(self.step(list, text, Action::Packages { tool, packages }));
            }
        }
        Ok(steps)
    }

    fn files(&self, value: &Value<'_>) -> Result<Vec<Step>, Wrong> {
        let mut steps = Vec::new();
        for (target, key, value) in self.entries(value)? {
            if KEYS.contains(&target) {
                return Err(self
                    .wrong(key, format!("`{target}` is no file"))
                    .hint("settings belong above the first [table]"));
            }
            self.check(key.clone(), check::absolute(target))?;
            let action = self.file(target, value)?;
            let text = match &action {
                Action::Copy { sources, .. } => format!("copy {} {target}", sources.join(" ")),
                _ => format!("write {target}"),
            };
            steps.push(Step { line: self.line(key), text: shown(&text), action });
        }
        Ok(steps)
    }

    fn file(&self, target: &str, value: &Value<'_>) -> Result<Action, Wrong> {
        let copy = |source: String, owner, mode| Action::Copy {
            origin: Origin::Context,
            sources: vec![source],
            target: target.to_owned(),
            owner,
            mode,
            unpack: false,
        };
        if value.get_ref().as_str().is_some() {
            return Ok(copy(self.checked(value, relative)?, None, None));
        }
        if !value.get_ref().is_table() {
            return Err(self.wrong(value.span(), "a file is neither text nor a table").hint(
                "write \"/target\" = \"source\", or \"/target\" = { text = \"...\", mode = \"755\" }",
            ));
        }
        let table = self.table(value)?;
        self.known(table, &["source", "text", "mode", "owner"])?;
        let mode = table.get("mode").map(|mode| self.mode(mode)).transpose()?;
        let owner = table.get("owner").map(|owner| self.checked(owner, check::owner)).transpose()?;
        match (table.get("source"), table.get("text")) {
            (Some(source), None) => Ok(copy(self.checked(source, relative)?, owner, mode)),
            (None, Some(text)) => Ok(Action::Write {
                content: self.raw(text)?.as_bytes().to_vec(),
                target: target.to_owned(),
                owner,
                mode,
            }),
            _ => Err(self.wrong(value.span(), "a file has either a `source` or a `text`")),
        }
    }

    fn mode(&self, value: &Value<'_>) -> Result<u32, Wrong> {
        match value.get_ref().as_str() {
            Some(text) => self.check(value.span(), check::mode(text)),
            None => Err(self.wrong(value.span(), "a mode is text").hint("write mode = \"755\"")),
        }
    }

    fn start(&self, value: &Value<'_>) -> Result<Step, Wrong> {
        let table = self.table(value)?;
        self.known(table, &["command", "ready"])?;
        let Some(written) = table.get("command") else {
            return Err(self.wrong(value.span(), "`start` has no `command`"));
        };
        let command = self.command(written)?;
        let ready = table.get("ready").map(|ready| self.command(ready)).transpose()?;
        let shown_command = command.last().filter(|_| written.get_ref().is_str()).cloned();
        let text = shown(&format!("start {}", shown_command.unwrap_or_else(|| command.join(" "))));
        Ok(self.step(written, text, Action::Start { command, ready }))
    }

    /// A line for the shell, or a program and its arguments.
    fn command(&self, value: &Value<'_>) -> Result<Vec<String>, Wrong> {
        if value.get_ref().as_str().is_some() {
            return self.shell(value);
        }
        let command = self.each(value, |_| Ok(()))?;
        match command.first() {
            Some(program) if !program.is_empty() => Ok(command),
            _ => Err(self.wrong(value.span(), "a command names no program")),
        }
    }

    fn shell(&self, value: &Value<'_>) -> Result<Vec<String>, Wrong> {
        let line = self.string(value)?;
        if line.trim().is_empty() {
            return Err(self.wrong(value.span(), "a command is empty"));
        }
        Ok(vec!["/bin/sh".into(), "-c".into(), line.to_owned()])
    }

    fn step(&self, value: &Value<'_>, text: String, action: Action) -> Step {
        Step { line: self.line(value.span()), text, action }
    }

    /// Refuses a table with keys that mean nothing.
    fn known(&self, table: &DeTable<'_>, keys: &[&str]) -> Result<(), Wrong> {
        let unknown = table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => Err(self
                .wrong(key.span(), format!("{} is unknown", quoted(key.get_ref())))
                .hint(format!("there are {}", keys.join(", ")))),
        }
    }

    /// The entries of a table in the order of the text.
    fn entries<'v, 'a>(&self, value: &'v Value<'a>) -> Result<Vec<Entry<'v, 'a>>, Wrong> {
        let table = self.table(value)?;
        let mut entries: Vec<_> =
            table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value)).collect();
        entries.sort_by_key(|(_, span, _)| span.start);
        Ok(entries)
    }

    fn table<'v, 'a>(&self, value: &'v Value<'a>) -> Result<&'v DeTable<'a>, Wrong> {
        value.get_ref().as_table().ok_or_else(|| self.wrong(value.span(), "this is to be a table"))
    }

    fn list<'v, 'a>(&self, value: &'v Value<'a>) -> Result<&'v [Value<'a>], Wrong> {
        let list = value.get_ref().as_array().map(|list| &**list);
        list.ok_or_else(|| {
            self.wrong(value.span(), "this is to be a list").hint("write as in [\"one\", \"two\"]")
        })
    }

    fn raw<'v>(&self, value: &'v Value<'_>) -> Result<&'v str, Wrong> {
        value
            .get_ref()
            .as_str()
            .ok_or_else(|| self.wrong(value.span(), "this is to be text").hint("put it in quotes"))
    }

    /// A text that can be an argument or a variable.
    fn string<'v>(&self, value: &'v Value<'_>) -> Result<&'v str, Wrong> {
        let text = self.raw(value)?;
        if text.contains('\0') {
            return Err(self.wrong(value.span(), "this holds a zero byte"));
        }
        Ok(text)
    }

    fn checked(&self, value: &Value<'_>, check: impl Fn(&str) -> Checked) -> Result<String, Wrong> {
        let text = self.string(value)?;
        self.check(value.span(), check(text))?;
        Ok(text.to_owned())
    }

    fn each(&self, value: &Value<'_>, check: impl Fn(&str) -> Checked) -> Result<Vec<String>, Wrong> {
        self.list(value)?.iter().map(|item| self.checked(item, &check)).collect()
    }

    fn check<T>(&self, span: Range<usize>, checked: Checked<T>) -> Result<T, Wrong> {
        checked.map_err(|(what, hint)| Wrong { line: self.line(span), what, hint: hint.map(str::to_owned) })
    }

    fn wrong(&self, span: Range<usize>, what: impl Into<String>) -> Wrong {
        Wrong::at(self.line(span), what)
    }

    fn line(&self, span: Range<usize>) -> usize {
        self.ends.partition_point(|end| *end < span.start) + 1
    }
}

/// A source beside the file.
fn relative(text: &str) -> Checked {
    if text.starts_with('/') {
        return Err((
            format!("{} is an absolute path", quoted(text)),
            Some("sources are relative to the file that names them"),
        ));
    }
    check::source(text)
}

#[cfg(test)]
mod tests;
