//! The options that decide how a command runs, and what `run` makes of a script.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use belljar_core::{
    ExecRequest, FilePath, ProviderName, Purpose, Result, SandboxId, SandboxSpec, Span, Tenant,
};
use belljar_engine::session::{OnIdle, SessionRequest};
use clap::Args;

use super::sandbox::value;
use super::{CreateArgs, ExecArgs, Fetch, Installation, RunArgs, Upload, in_option, pairs, wrong};

/// How long an execution in the background may run: as long as any sandbox can live.
const BACKGROUND: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a sandbox made by `run` lives beyond its command's time-out, for copying in and out.
const MARGIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Execution")]
pub(crate) struct CommandOptions {
    /// Kill it after this long [default: 30s]
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true)]
    pub(crate) timeout: Option<String>,
    /// Set a variable; nothing is inherited; may be repeated
    #[arg(long = "env", short = 'e', value_name = "K=V")]
    pub(crate) env: Vec<String>,
    /// Run it as user (no capabilities, the default) or root (of the sandbox only)
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Run it in this directory [default: /home/user]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Forward standard input even if it is a terminal
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give it a terminal
    #[arg(long, short)]
    pub(crate) tty: bool,
}

/// A checked `run`.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What holds the walls.
    pub(crate) provider: ProviderName,
    /// What the sandbox is made from.
    pub(crate) spec: SandboxSpec,
    /// What to copy in first.
    pub(crate) files: Vec<Upload>,
    /// What to run.
    pub(crate) request: ExecRequest,
    /// Whether it is the template that says which command.
    pub(crate) runs_own: bool,
    /// Whether input is forwarded even from a terminal.
    pub(crate) interactive: bool,
    /// Whether it has a terminal.
    pub(crate) tty: bool,
    /// What to copy out afterwards.
    pub(crate) outs: Vec<Fetch>,
    /// What to install first.
    pub(crate) installation: Option<Installation>,
}

/// A checked `create`.
#[derive(Debug)]
pub(crate) struct CreatePlan {
    /// What holds the walls.
    pub(crate) provider: ProviderName,
    /// What to make.
    pub(crate) request: SessionRequest,
    /// The option that nobody but an engine can honour, if there is one.
    pub(crate) needs_engine: Option<&'static str>,
    /// What to copy in first.
    pub(crate) files: Vec<Upload>,
    /// What to install first.
    pub(crate) installation: Option<Installation>,
}

/// Refuses a variable without a value: people mean to pass theirs on, and nothing is passed on unasked.
fn environment(given: &[String]) -> Result<BTreeMap<String, String>> {
    pairs("--env", given, |name| {
        format!("nothing is inherited from your environment; say --env {name}=\"${name}\"")
    })
}

impl CommandOptions {
    fn request(&self, argv: Vec<String>) -> Result<ExecRequest> {
        let mut request = ExecRequest::argv(argv);
        if let Some(span) = value::<Span>("--timeout", self.timeout.as_deref())? {
            request.timeout = span.0;
        }
        request.env = environment(&self.env)?;
        if let Some(user) = &self.user {
            request.user = user.parse().map_err(|error| in_option("--user", error))?;
        }
        if let Some(dir) = &self.workdir {
            request.cwd = Some(dir.parse::<FilePath>().map_err(|error| in_option("--workdir", error))?);
        }
        request.check()?;
        Ok(request)
    }
}

impl RunArgs {
    /// Checks everything, and opens every file that is to be copied in.
    pub(crate) fn plan(self) -> Result<Plan> {
        let provider = self.sandbox.provider()?;
        let mut spec = self.sandbox.spec()?;
        let mut files = self.files.iter().map(|text| Upload::parse(text)).collect::<Result<Vec<_>>>()?;
        let outs = self.outs.iter().map(|text| Fetch::parse(text)).collect::<Result<Vec<_>>>()?;
        let runs_own = self.command.is_empty();
        let argv = match script(&self.command) {
            // Whatever the template says takes its place.
            None if runs_own => vec!["true".to_owned()],
            None => self.command,
            Some(Script { interpreter, name }) => {
                let inside = format!("/home/user/{name}");
                files.push(Upload::script(Path::new(&self.command[0]), inside.parse()?)?);
                let elsewhere = self.execution.workdir.is_some() || name.starts_with('-');
                interpreter.into_iter().chain([if elsewhere { inside } else { name }]).collect()
            }
        };
        let request = self.execution.request(argv)?;
        if self.sandbox.ttl()?.is_none() {
            spec.ttl = spec.ttl.max(request.timeout + MARGIN);
        }
        if spec.recording.is_some() {
            // The door knows secrets by the variables of the sandbox.
            spec.env = request.env.clone();
        }
        spec.tied_to_creator = true;
        spec.check()?;
        let (interactive, tty) = (self.execution.interactive, self.execution.tty);
        let installation = self.sandbox.installation()?;
        Ok(Plan { provider, spec, files, request, runs_own, interactive, tty, outs, installation })
    }
}

impl CreateArgs {
    /// Checks everything, and opens every file that is to be copied in.
    pub(crate) fn plan(self) -> Result<CreatePlan> {
        let provider = self.sandbox.provider()?;
        let mut spec = self.sandbox.spec()?;
        spec.env = environment(&self.env)?;
        let idle = value::<Span>("--idle", self.idle.as_deref())?.map(|span| span.0);
        let on_idle = self.on_idle.as_deref().map(on_idle).transpose()?.unwrap_or_default();
        if let Some(key) = &self.key {
            SessionRequest::check_key(key).map_err(|error| in_option("--key", error))?;
        }
        let tenant = self.tenant.map(Tenant);
        if let Some(tenant) = &tenant {
            tenant.check().map_err(|error| in_option("--tenant", error))?;
        }
        let engine =
            [("--idle", idle.is_some()), ("--key", self.key.is_some()), ("--tenant", tenant.is_some())];
        let needs_engine = engine.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
        let tenant = tenant.unwrap_or_default();
        let request =
            SessionRequest { spec, tenant, key: self.key, idle, on_idle, ..SessionRequest::default() };
        request.check()?;
        let installation = self.sandbox.installation()?;
        let files = self.files.iter().map(|text| Upload::parse(text)).collect::<Result<Vec<_>>>()?;
        Ok(CreatePlan { provider, request, needs_engine, files, installation })
    }
}

fn on_idle(text: &str) -> Result<OnIdle> {
    match text {
        "end" => Ok(OnIdle::End),
        "pause" => Ok(OnIdle::Pause),
        _ => Err(wrong("--on-idle", format!("`{}` is not what can happen", text.escape_debug()))
            .hint("an idle sandbox can `end` or `pause`")),
    }
}

impl ExecArgs {
    /// Checks everything.
    pub(crate) fn plan(self) -> Result<(SandboxId, ExecRequest)> {
        let id = self.id.parse()?;
        let mut request = self.execution.request(self.command)?;
        if self.detach && self.execution.timeout.is_none() {
            request.timeout = BACKGROUND;
        }
        for (option, what, word) in
            [("--stage", "stage", &self.stage), ("--tool-call", "tool call", &self.tool_call)]
        {
            if let Some(word) = word {
                Purpose::check_word(what, word).map_err(|error| in_option(option, error))?;
            }
        }
        request.purpose = Purpose { stage: self.stage, tool_call: self.tool_call };
        request.key = self.key;
        // Everything else has been checked.
        request.check_callers_key().map_err(|error| in_option("--key", error))?;
        Ok((id, request))
    }
}

/// A file of the host that `run` was given instead of a command.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    interpreter: Vec<String>,
    name: String,
}

/// Recognises a script: one word, an existing file, and a way to tell its interpreter.
fn script(command: &[String]) -> Option<Script> {
    let [word] = command else { return None };
    let path = Path::new(word);
    if !path.is_file() {
        return None;
    }
    let interpreter = match path.extension().and_then(|extension| extension.to_str()) {
        Some("py") => vec!["python3".to_owned()],
        Some("js" | "mjs" | "cjs" | "ts") => vec!["node".to_owned()],
        Some("sh") => vec!["bash".to_owned()],
        Some("R" | "r") => vec!["Rscript".to_owned()],
        _ if word.contains(['/', '.']) => hash_bang(path)?,
        _ => return None,
    };
    let name = path.file_name()?.to_str()?.to_owned();
    Some(Script { interpreter, name })
}

/// The interpreter that a `#!` line names, with its one argument, as the kernel reads it.
fn hash_bang(path: &Path) -> Option<Vec<String>> {
    let mut start = Vec::new();
    std::fs::File::open(path).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim();
    let (program, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let words = [program, argument.trim()].into_iter().filter(|word| !word.is_empty()).map(str::to_owned);
    Some(words.collect()).filter(|words: &Vec<String>| !words.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn plan(line: &[&str]) -> Result<Plan> {
        let words = ["belljar", "run"].iter().chain(line);
        match Cli::try_parse_from(words).unwrap().command {
            Verb::Run(run) => run.plan(),
            _ => panic!("not run"),
        }
    }

    #[test]
    fn defaults_are_those_of_the_specification() {
        let plan = plan(&["--", "true"]).unwrap();
        assert_eq!(plan.request.timeout, Duration::from_secs(30));
        assert_eq!(plan.spec.ttl, Duration::from_secs(300));
        assert_eq!(plan.spec.limits, belljar_core::Limits::default());
        assert!(plan.spec.tied_to_creator);
    }

    #[test]
    fn what_is_recorded_has_no_secret_that_the_door_does_not_know() {
        let record = ["--net", "open", "--record", "r", "-e", "API_KEY=one", "--redact"];
        let known = plan(&[&record[..], &["API_KEY", "--", "true"]].concat()).unwrap();
        assert_eq!(known.spec.env, known.request.env);
        assert_eq!(known.spec.env["API_KEY"], "one");
        let error = plan(&[&record[..], &["DSN", "--", "true"]].concat()).unwrap_err();
        let is_invalid = error.code == belljar_core::ErrorCode::InvalidArgument;
        assert!(is_invalid && error.message.contains("`DSN`"), "{error}");
        assert!(plan(&["-e", "API_KEY=one", "--", "true"]).unwrap().spec.env.is_empty());
    }

    #[test]
    fn the_sandbox_outlives_a_long_time_out() {
        let long = plan(&["--timeout", "10m", "--", "true"]).unwrap();
        assert_eq!(long.spec.ttl, Duration::from_secs(660));
        let asked = plan(&["--timeout", "10m", "--ttl", "1m", "--", "true"]).unwrap();
        assert_eq!(asked.spec.ttl, Duration::from_secs(60));
    }

    #[test]
    fn bad_values_name_their_option() {
        let cases: [(&[&str], &str); 6] = [
            (&["--memory", "-1", "--", "true"], "--memory"),
            (&["--timeout", "-5", "--", "true"], "--timeout"),
            (&["--env", "HOME", "--", "true"], "--env"),
            (&["--user", "nobody", "--", "true"], "--user"),
            (&["--workdir", "a\nb", "--", "true"], "--workdir"),
            (&["-w", "a\0b", "--", "true"], "--workdir"),
        ];
        for (line, option) in cases {
            let error = plan(line).unwrap_err();
            assert!(error.message.contains(option), "{error}");
        }
        let hint = plan(&["--env", "TOKEN", "--", "true"]).unwrap_err().hint.unwrap();
        assert!(hint.contains("--env TOKEN=\"$TOKEN\""), "{hint}");
        assert!(plan(&["-w", &"a/".repeat(2100), "--", "true"]).unwrap_err().message.contains("4095"));
        assert!(plan(&["--", ""]).unwrap_err().message.contains("empty"));
    }

    #[test]
    fn what_only_an_engine_can_do_is_known_and_checked() {
        let create = |line: &[&str]| match Cli::try_parse_from(["belljar", "create"].iter().chain(line))
            .unwrap()
            .command
        {
            Verb::Create(args) => args.plan(),
            _ => panic!("not create"),
        };
        assert_eq!(create(&[]).unwrap().needs_engine, None);
        assert_eq!(create(&["--key", "a"]).unwrap().needs_engine, Some("--key"));
        let idle = create(&["--idle", "90s", "--on-idle", "pause", "--key", "a b"]).unwrap();
        assert_eq!(idle.needs_engine, Some("--idle"));
        assert_eq!(idle.request.idle, Some(Duration::from_secs(90)));
        assert_eq!((idle.request.on_idle, idle.request.key.as_deref()), (OnIdle::Pause, Some("a b")));
        assert_eq!(create(&["--idle", "1s"]).unwrap().request.on_idle, OnIdle::End);
        for (option, text) in [
            ("--idle", "0"),
            ("--idle", "-1s"),
            ("--idle", "long"),
            ("--key", ""),
            ("--key", &"k".repeat(256)),
        ] {
            let error = create(&[option, text]).unwrap_err();
            assert!(error.message.contains(option), "{error}");
        }
        let error = create(&["--idle", "1s", "--on-idle", "sleep"]).unwrap_err();
        assert!(error.message.contains("--on-idle") && error.hint.unwrap().contains("pause"));
        let alone = Cli::try_parse_from(["belljar", "create", "--on-idle", "end"]).unwrap_err();
        assert!(alone.to_string().contains("--idle"), "{alone}");
    }

    #[test]
    fn a_key_of_a_command_is_checked() {
        let exec = |key: &str| {
            let line = ["belljar", "exec", "--key", key, "bj-aaaaaaaaaaaaa", "true"];
            match Cli::try_parse_from(line).unwrap().command {
                Verb::Exec(args) => args.plan(),
                _ => panic!("not exec"),
            }
        };
        assert_eq!(exec("once-1").unwrap().1.key.as_deref(), Some("once-1"));
        for bad in ["", "two words", "belljar.engine.1", &"k".repeat(65)] {
            let error = exec(bad).unwrap_err();
            assert!(error.message.contains("--key") && error.hint.is_some(), "{error:?}");
        }
    }

    #[test]
    fn a_script_of_the_host_is_copied_in_and_run_by_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let python = write("a.py", "print(1)");
        let plan = plan(&[&python]).unwrap();
        assert_eq!(plan.request.command, belljar_core::Command::Argv(vec!["python3".into(), "a.py".into()]));
        assert_eq!(plan.files[0].to.as_str(), "/home/user/a.py");

        let tool = write("tool", "#!/usr/bin/env -S python3 -u\nprint(1)");
        assert_eq!(
            script(&[tool]).unwrap().interpreter,
            ["/usr/bin/env".to_owned(), "-S python3 -u".to_owned()]
        );
        assert_eq!(script(&[write("plain", "text")]), None);
        assert_eq!(script(&[write("binary", "\u{7f}ELF")]), None);
        assert_eq!(script(&[python, "argument".into()]), None, "then it is a command");
        assert_eq!(script(&["/nonexistent.py".into()]), None);
    }
}
