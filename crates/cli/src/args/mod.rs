//! Arguments: from what was typed (`typed`) to what is validated and knows how to build things (`sandbox`, `command`,
//! `network`, `transfers`, `place`). Nothing is created before every argument has been checked.

mod cache;
mod command;
mod network;
mod place;
mod recording;
mod sandbox;
mod sessions;
mod template;
mod token;
mod transfers;
mod typed;

use std::ffi::{OsStr, OsString};

use belljar_core::{Error, ErrorCode};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

pub(crate) use cache::{CacheArgs, CacheLimitArgs, CacheRmArgs, CacheVerb};
pub(crate) use command::{CommandOptions, CreatePlan, Plan};
pub(crate) use network::{NetworkOptions, read_file};
pub(crate) use place::Place;
pub(crate) use recording::{
    Format, RecordingArgs, RecordingExportArgs, RecordingImportArgs, RecordingOptions, RecordingRmArgs,
    RecordingShowArgs, RecordingVerb,
};
pub(crate) use sandbox::SandboxOptions;
pub(crate) use template::{
    Installation, SnapshotArgs, TemplateArgs, TemplateBuildArgs, TemplateDiffArgs, TemplateExportArgs,
    TemplateFileArgs, TemplateGcArgs, TemplateImportArgs, TemplateNameArgs, TemplateRmArgs, TemplateVerb,
    new_name,
};
pub(crate) use token::{
    CallsArgs, TokenArgs, TokenCreateArgs, TokenExtendArgs, TokenLsArgs, TokenRevokeArgs, TokenVerb,
};
pub(crate) use transfers::{Fetch, Source, Upload, unreadable, unwritable};
pub(crate) use typed::{
    AttachArgs, BackupArgs, Cli, CompletionsArgs, CpArgs, CreateArgs, EgressArgs, EngineArgs, EventsArgs,
    ExecArgs, ExtendArgs, GatewayVerb, Global, InspectArgs, KillArgs, LogsArgs, LsArgs, NetSetArgs,
    NetShowArgs, NetVerb, PauseArgs, PolicyCheckArgs, PolicyTestArgs, PolicyVerb, RestoreArgs, ResumeArgs,
    RmArgs, RunArgs, SessionsArgs, StatsArgs, UsageArgs, Verb,
};

/// What came of reading the command line.
pub(crate) enum Parsed {
    /// Something to do.
    Command(Box<Cli>),
    /// A text that was asked for: help or version.
    Text(String),
    /// Something wrong.
    Refused {
        /// What.
        error: Error,
        /// Whether `--json` stands on the line that could not be read.
        json: bool,
    },
}

/// Reads a command line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Parsed {
    let words: Vec<OsString> = words.into_iter().collect();
    match Cli::try_parse_from(&words) {
        Ok(cli) => Parsed::Command(Box::new(cli)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            let text = error.render();
            Parsed::Text(if crate::print::stdout_has_colour() {
                text.ansi().to_string()
            } else {
                text.to_string()
            })
        }
        Err(error) => {
            let json = words.iter().take_while(|word| *word != OsStr::new("--")).any(|word| word == "--json");
            Parsed::Refused { error: refusal(&error), json }
        }
    }
}

/// The whole command, for the completions.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// Says what clap found wrong in our own form: one line on what was wrong, one on what to do.
fn refusal(error: &clap::Error) -> Error {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Error::new(ErrorCode::InvalidArgument, "no command was given")
            .hint("`belljar --help` lists the commands; to begin: belljar run -- echo hello");
    }
    let text = error.render().to_string();
    let (problem, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let problem = problem.split_whitespace().collect::<Vec<_>>().join(" ");
    let tip = rest.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    let usage = rest.lines().find_map(|line| line.strip_prefix("Usage: "));
    let hint = match (tip, usage) {
        (Some(tip), _) => tip.to_owned(),
        (None, Some(usage)) => format!("usage: {usage}"),
        (None, None) => "`belljar --help` explains every command and option".to_owned(),
    };
    Error::new(ErrorCode::InvalidArgument, problem.strip_prefix("error: ").unwrap_or(&problem)).hint(hint)
}

/// The same error, with the option it is about in front.
fn in_option(option: &str, error: Error) -> Error {
    Error { message: format!("option `{option}`: {}", error.message), ..error }
}

/// An option with a wrong value.
fn wrong(option: &str, problem: impl std::fmt::Display) -> Error {
    in_option(option, Error::new(ErrorCode::InvalidArgument, problem.to_string()))
}

/// Splits the `K=V` of `--env` and `--label`.
fn pairs(
    option: &str,
    given: &[String],
    without_value: impl Fn(&str) -> String,
) -> belljar_core::Result<std::collections::BTreeMap<String, String>> {
    let mut pairs = std::collections::BTreeMap::new();
    for text in given {
        match text.split_once('=') {
            Some(("", _)) => {
                return Err(wrong(option, format!("`{}` has no name", text.escape_debug()))
                    .hint(format!("write {option} NAME=VALUE")));
            }
            Some((name, value)) => pairs.insert(name.to_owned(), value.to_owned()),
            None => {
                return Err(wrong(option, format!("`{}` has no value", text.escape_debug()))
                    .hint(without_value(text)));
            }
        };
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &[&str]) -> Error {
        match parse(line.iter().map(OsString::from)) {
            Parsed::Refused { error, .. } => error,
            _ => panic!("{line:?} was taken"),
        }
    }

    #[test]
    fn the_command_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn what_clap_refuses_is_said_in_our_form() {
        let error = refused(&["belljar", "run", "--memroy", "2g", "--", "true"]);
        assert!(error.message.contains("--memroy"), "{error}");
        assert!(error.hint.is_some_and(|hint| hint.contains("--memory")));
        let error = refused(&["belljar", "exec"]);
        assert!(error.message.contains("<ID>") && error.hint.is_some(), "{error:?}");
        assert!(refused(&["belljar"]).message.contains("no command"));
        assert!(refused(&["belljar", "frobnicate"]).message.contains("frobnicate"));
    }

    #[test]
    fn json_is_noticed_even_where_the_line_is_wrong() {
        let json = |line: &[&str]| match parse(line.iter().map(OsString::from)) {
            Parsed::Refused { json, .. } => json,
            _ => panic!("{line:?} was taken"),
        };
        assert!(json(&["belljar", "run", "--json", "--nope"]));
        assert!(!json(&["belljar", "run", "--nope", "--", "--json"]));
    }

    #[test]
    fn options_after_the_command_belong_to_the_command() {
        let Parsed::Command(cli) =
            parse(["belljar", "run", "python3", "-c", "1", "--json"].iter().map(OsString::from))
        else {
            panic!("refused");
        };
        assert!(!cli.global.json);
        let Verb::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.command, ["python3", "-c", "1", "--json"]);
        let line = ["belljar", "exec", "bj-aaaaaaaaaaaaa", "ls", "-l", "--quiet"];
        let Parsed::Command(cli) = parse(line.iter().map(OsString::from)) else { panic!("refused") };
        let Verb::Exec(exec) = cli.command else { panic!("not exec") };
        assert_eq!(exec.command, ["ls", "-l", "--quiet"]);
    }
}
