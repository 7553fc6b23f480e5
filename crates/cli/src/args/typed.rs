//! What was typed, as clap reads it. Values stay text here, so that every refusal is in our own words.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use belljar_core::{Error, ErrorCode, NetworkPolicy, RecordingName, Result, SandboxId};

use super::{
    CacheArgs, CallsArgs, CommandOptions, NetworkOptions, RecordingArgs, SandboxOptions, SnapshotArgs,
    TemplateArgs, TokenArgs, in_option,
};

/// Run untrusted code behind real walls.
///
/// A sandbox has no network unless you grant it, none of your files, none of your environment, and bounds on memory, processors, processes,
/// disk and time. There is no daemon: a sandbox that was created lives on under its own small monitor until its time is
/// over or it is removed.
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    infer_long_args = false,
    disable_help_subcommand = true,
    after_help = "`belljar COMMAND --help` explains a command with examples.",
    after_long_help = "\
Examples:
  belljar run -- python3 -c 'print(6*7)'
  belljar run analysis.py
  belljar run --json --timeout 5s --memory 256m -- ./a.out
  id=$(belljar create --ttl 1h) && belljar exec $id -- git init && belljar rm -f $id

Exit status:
  that of the command; 124 timed out, 125 Belljar itself failed, 126 the command cannot be executed,
  127 the command was not found, 137 out of memory or killed, 130 and 143 interrupted.

Environment:
  BELLJAR_HOME  the data directory, as --home
  BELLJAR_LOG   the log level, as --log
  NO_COLOR      no colours, even on a terminal"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Verb,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Print one JSON object instead of text
    #[arg(long, global = true, display_order = 900)]
    pub(crate) json: bool,
    /// Keep the data here instead of $BELLJAR_HOME or the platform's data directory
    #[arg(long, global = true, value_name = "DIR", display_order = 901)]
    pub(crate) home: Option<PathBuf>,
    /// Say nothing but results and errors
    #[arg(long, short, global = true, display_order = 902)]
    pub(crate) quiet: bool,
    /// Log to standard error: error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL", display_order = 903)]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(RunArgs),
    Create(CreateArgs),
    Exec(ExecArgs),
    Attach(AttachArgs),
    Cp(CpArgs),
    Ls(LsArgs),
    Inspect(InspectArgs),
    Logs(LogsArgs),
    Stats(StatsArgs),
    Extend(ExtendArgs),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    Kill(KillArgs),
    Rm(RmArgs),
    Net(NetArgs),
    Egress(EgressArgs),
    Policy(PolicyArgs),
    Template(TemplateArgs),
    Snapshot(SnapshotArgs),
    Recording(RecordingArgs),
    Cache(CacheArgs),
    Gateway(GatewayArgs),
    Token(TokenArgs),
    Calls(CallsArgs),
    Engine(EngineArgs),
    Sessions(SessionsArgs),
    Events(EventsArgs),
    Usage(UsageArgs),
    Backup(BackupArgs),
    Restore(RestoreArgs),
    /// Explain what this host can and cannot do, by trying it
    ///
    /// Every kernel feature and program that the walls need is tried, not looked up. Exits with 1 when one is missing.
    #[command(after_long_help = "Examples:\n  belljar doctor\n  belljar doctor --json")]
    Doctor,
    Completions(CompletionsArgs),
    /// Print the version
    #[command(after_long_help = "Examples:\n  belljar version\n  belljar version --json")]
    Version,
}

/// Run a command in a new sandbox, then remove the sandbox
///
/// The command's output is passed on byte for byte, its exit status becomes ours, and nothing of the sandbox is left
/// afterwards, whatever happened. Standard input is forwarded unless it is a terminal (then ask with -i).
///
/// A single argument that is a file on this machine with a known extension (.py .js .mjs .cjs .ts .sh .R), or with a
/// slash or dot in its name and a `#!` line, is copied to /home/user and run by its interpreter.
#[derive(Debug, Args)]
#[command(
    override_usage = "belljar run [OPTIONS] [--] CMD...\n       belljar run [OPTIONS] FILE",
    after_long_help = "\
Examples:
  belljar run -- python3 -c 'print(6*7)'
  belljar run analysis.py
  belljar run --file data.csv:data.csv --out plot.png -- python3 plot.py
  belljar run --json --timeout 1s -- sleep 60
  belljar run -it -- bash
  belljar run --allow pypi -- pip install requests
  belljar run --allow 'GET http://api.example.org/v1/*' --allow db.example.org:5432 -- ./job
  belljar run --net open --deny '*.example.net' -- curl https://example.org
  belljar run --grant llm:chat --budget-dollars 0.50 -- claude --print 'What is here?'
  tar c src | belljar run -- sh -c 'tar x && make -C src test'

Exit status:
  that of the command, or 128 and the number of the signal that ended it; 124 timed out,
  125 Belljar itself failed, 126 cannot be executed, 127 not found, 137 out of memory or killed,
  130 and 143 interrupted.

JSON:
  one object with exit_code, termination (exited, signaled, timed_out, out_of_memory,
  too_many_locks, killed or lost), signal, stdout, stderr, truncated, duration_ms, start_ms, usage {cpu_ms,
  peak_memory_bytes, read_bytes, write_bytes, processes}, denied (what it wanted of the network and did not
  get), gateway (what it had the gateway do, if anything), sandbox_id; docs/cli.md has them all."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,
    #[command(flatten)]
    pub(crate) execution: CommandOptions,
    /// Copy a file or directory in before the command runs; may be repeated
    #[arg(long = "file", value_name = "SRC:DST", help_heading = "Files")]
    pub(crate) files: Vec<String>,
    /// Copy a file or directory out after the command ran, into the current directory or to DEST; may be repeated
    #[arg(long = "out", value_name = "PATH[:DEST]", help_heading = "Files")]
    pub(crate) outs: Vec<String>,
    /// The command and its arguments, or one script of this machine; with a template that says what it runs, it can be left out
    #[arg(
        value_name = "CMD",
        required_unless_present = "template",
        trailing_var_arg = true,
        help_heading = "Arguments"
    )]
    pub(crate) command: Vec<String>,
}

/// Make a sandbox that lives on, and print its id
///
/// It ends by itself when its time to live is over, also if every process of Belljar was killed meanwhile.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  id=$(belljar create --ttl 1h --label job=nightly)
  belljar create --memory 4g --file project:/home/user/project --json
  belljar create --policy policy.toml --allow npm
  belljar create --ttl 8h --idle 10m --on-idle pause --key order-1742
  belljar create --tenant acme --allow pypi")]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,
    /// Set a variable for every execution; nothing is inherited; may be repeated
    #[arg(long = "env", short = 'e', value_name = "K=V", help_heading = "Sandbox")]
    pub(crate) env: Vec<String>,
    /// Copy a file or directory in; may be repeated
    #[arg(long = "file", value_name = "SRC:DST", help_heading = "Files")]
    pub(crate) files: Vec<String>,
    /// End it when nothing was run or copied in it for this long; needs an engine
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true, help_heading = "Engine")]
    pub(crate) idle: Option<String>,
    /// What happens then: end (the default) or pause
    #[arg(long, value_name = "WHAT", requires = "idle", help_heading = "Engine")]
    pub(crate) on_idle: Option<String>,
    /// Make it only once: a second create with this key prints the same id; needs an engine
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, help_heading = "Engine")]
    pub(crate) key: Option<String>,
    /// Whose it is [default: local]; needs an engine
    #[arg(long, value_name = "NAME", allow_hyphen_values = true, help_heading = "Engine")]
    pub(crate) tenant: Option<String>,
}

/// Run a command in a sandbox that is there
///
/// Every execution is a fresh process; files stay between executions, variables and directories changed by `cd` do not.
#[derive(Debug, Args)]
#[command(
    override_usage = "belljar exec [OPTIONS] ID [--] CMD...",
    after_long_help = "\
Examples:
  belljar exec bj-k3m9x2p4q7w8z -- pytest -q
  belljar exec -d bj-k3m9x2p4q7w8z -- python3 -m http.server 8000
  belljar exec -it bj-k3m9x2p4q7w8z -- bash
  belljar exec --user root bj-k3m9x2p4q7w8z -- apt-get install ./tool.deb
  belljar exec --key migrate-7 bj-k3m9x2p4q7w8z -- ./migrate.sh
  belljar exec --stage coder --tool-call toolu_01 bj-k3m9x2p4q7w8z -- pip install requests

Exit status and JSON are those of `belljar run`."
)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) execution: CommandOptions,
    /// Let it run in the background (until the sandbox ends, unless --timeout is given) and print its number
    #[arg(long, short = 'd', conflicts_with_all = ["interactive", "tty"], help_heading = "Execution")]
    pub(crate) detach: bool,
    /// Run it only once: a second command with this key is refused
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, help_heading = "Execution")]
    pub(crate) key: Option<String>,
    /// The stage of the work that it is a part of, told with all that it does on the network
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, help_heading = "Execution")]
    pub(crate) stage: Option<String>,
    /// The tool call that asked for it, told likewise
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, help_heading = "Execution")]
    pub(crate) tool_call: Option<String>,
    /// The sandbox
    #[arg(value_name = "ID", help_heading = "Arguments")]
    pub(crate) id: String,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, help_heading = "Arguments")]
    pub(crate) command: Vec<String>,
}

/// Follow an execution that runs or has run: its kept output, then live
///
/// Ctrl-C (or Ctrl-P Ctrl-Q with -t) leaves it running. The exit status is that of the execution.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar attach bj-k3m9x2p4q7w8z 1
  belljar attach -it bj-k3m9x2p4q7w8z 3")]
pub(crate) struct AttachArgs {
    /// Forward standard input
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// The execution has a terminal: make ours raw and pass on its size
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The number of the execution
    #[arg(value_name = "EXEC")]
    pub(crate) exec: String,
}

/// Copy files into or out of a sandbox
///
/// One side is ID:PATH; a relative PATH starts at /home/user. The other is a path of this machine, or `-` for the bytes
/// of one file on standard input or output. Directories are copied whole. What comes out is not trusted: names that
/// leave the destination end the copy, links that leave it and devices are left out and reported, set-user-id bits are
/// dropped.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar cp data.csv bj-k3m9x2p4q7w8z:data.csv
  belljar cp bj-k3m9x2p4q7w8z:/home/user/results ./results
  belljar cp bj-k3m9x2p4q7w8z:report.html - | less")]
pub(crate) struct CpArgs {
    /// Copy as this user of the sandbox: user or root
    #[arg(long, value_name = "USER", default_value = "user")]
    pub(crate) user: String,
    /// Refuse to bring out more than this
    #[arg(long, value_name = "SIZE", default_value = "16g", allow_hyphen_values = true)]
    pub(crate) max_size: String,
    /// From here
    #[arg(value_name = "SRC")]
    pub(crate) from: String,
    /// To there
    #[arg(value_name = "DST")]
    pub(crate) to: String,
}

/// List sandboxes, or the files in one
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar ls
  belljar ls -a --json
  belljar ls bj-k3m9x2p4q7w8z:/home/user")]
pub(crate) struct LsArgs {
    /// Also those that have ended and were not removed
    #[arg(long, short)]
    pub(crate) all: bool,
    /// List files as this user of the sandbox: user or root
    #[arg(long, value_name = "USER", default_value = "user")]
    pub(crate) user: String,
    /// A directory in a sandbox
    #[arg(value_name = "ID:PATH")]
    pub(crate) place: Option<String>,
}

/// Tell everything that is known of a sandbox
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar inspect bj-k3m9x2p4q7w8z
  belljar inspect --json bj-k3m9x2p4q7w8z")]
pub(crate) struct InspectArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Show the kept output of executions
///
/// On a terminal, escape sequences other than colours are removed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar logs bj-k3m9x2p4q7w8z
  belljar logs --follow bj-k3m9x2p4q7w8z 2")]
pub(crate) struct LogsArgs {
    /// Go on with what is still written, until the execution ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Leave escape sequences as they are, also on a terminal
    #[arg(long)]
    pub(crate) raw: bool,
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The number of the execution; all of them if left out
    #[arg(value_name = "EXEC")]
    pub(crate) exec: Option<String>,
}

/// Show what sandboxes use now
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar stats
  belljar stats --json bj-k3m9x2p4q7w8z")]
pub(crate) struct StatsArgs {
    /// The sandbox; all running ones if left out
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// Let a sandbox live longer (or shorter): this long from now
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  belljar extend bj-k3m9x2p4q7w8z 2h")]
pub(crate) struct ExtendArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Its new time to live, such as 30s, 5m or 2h
    #[arg(value_name = "TTL", allow_hyphen_values = true)]
    pub(crate) ttl: String,
}

/// Let sandboxes stand still in memory
///
/// All processes of their executions stop where they are, and so do the time to live and the time-outs. Meanwhile no command
/// can be started; files and kept output can be had, and `kill` and `rm -f` work. Needs sandboxes made by root.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar pause bj-k3m9x2p4q7w8z
  belljar pause $(belljar ls -q)")]
pub(crate) struct PauseArgs {
    /// The sandboxes; one that is paused already is no error
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

/// Let paused sandboxes go on where they stood
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  belljar resume bj-k3m9x2p4q7w8z")]
pub(crate) struct ResumeArgs {
    /// The sandboxes; one that runs is no error
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

/// End every process of a sandbox, or one execution
///
/// The record of the sandbox stays until `belljar rm`; its files do not.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar kill bj-k3m9x2p4q7w8z
  belljar kill --exec 2 bj-k3m9x2p4q7w8z
  belljar kill --exec 2 --signal INT bj-k3m9x2p4q7w8z")]
pub(crate) struct KillArgs {
    /// Only this execution, with its whole process tree
    #[arg(long, value_name = "N")]
    pub(crate) exec: Option<String>,
    /// Send this signal to the execution instead of killing it: a name or a number
    #[arg(long, short, value_name = "SIGNAL", requires = "exec")]
    pub(crate) signal: Option<String>,
    /// The sandboxes
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

/// Remove sandboxes with everything in them
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar rm bj-k3m9x2p4q7w8z
  belljar rm -f $(belljar ls -q)")]
pub(crate) struct RmArgs {
    /// Also those that are running; one that is gone already is no error
    #[arg(long, short)]
    pub(crate) force: bool,
    /// The sandboxes; with --force there may be none
    #[arg(value_name = "ID", required_unless_present = "force")]
    pub(crate) ids: Vec<String>,
}

/// See and change what a sandbox may reach, while it runs
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  belljar net show bj-k3m9x2p4q7w8z
  belljar net set bj-k3m9x2p4q7w8z --allow pypi --allow example.org:8443"
)]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    pub(crate) command: NetVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetVerb {
    Set(NetSetArgs),
    Show(NetShowArgs),
}

/// Give a sandbox another policy, in place of the one it has
///
/// It holds from the moment this returns: connections that it does not allow are cut. A sandbox that was made without a
/// network cannot be given one; make it with `--net allowlist` to grant hosts later.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar net set bj-k3m9x2p4q7w8z --allow pypi --allow example.org:8443
  belljar net set bj-k3m9x2p4q7w8z --policy policy.toml
  belljar net set bj-k3m9x2p4q7w8z --net allowlist    # nothing any more")]
pub(crate) struct NetSetArgs {
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
    /// The sandbox
    #[arg(value_name = "ID", help_heading = "Arguments")]
    pub(crate) id: String,
}

impl NetSetArgs {
    /// Checks everything.
    pub(crate) fn plan(self) -> Result<(SandboxId, NetworkPolicy)> {
        let id = self.id.parse()?;
        if !self.network.is_given() {
            return Err(Error::new(ErrorCode::InvalidArgument, "no policy was given")
                .hint("say what may be reached, with --net, --allow, --deny or --policy"));
        }
        Ok((id, self.network.policy()?))
    }
}

/// Print the policy in force, sets resolved
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar net show bj-k3m9x2p4q7w8z
  belljar net show --json bj-k3m9x2p4q7w8z")]
pub(crate) struct NetShowArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Print what left a sandbox, or wanted to: every name looked up, every connection, every request that can be seen
///
/// EXEC is the execution whose process opened the socket. OUT and IN are bytes. Where its caller said of which stage it is a part
/// or for which tool call it runs, that is at the end of the line; --json also has tenant and session, under an engine.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar egress bj-k3m9x2p4q7w8z
  belljar egress --follow --json bj-k3m9x2p4q7w8z
  belljar egress --after 120 bj-k3m9x2p4q7w8z")]
pub(crate) struct EgressArgs {
    /// Go on until the sandbox has ended
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only what came after the entry with this number
    #[arg(long, value_name = "SEQ", default_value = "0", allow_hyphen_values = true)]
    pub(crate) after: String,
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

impl EgressArgs {
    /// Checks everything.
    pub(crate) fn plan(&self) -> Result<(SandboxId, u64)> {
        let after = self.after.parse().map_err(|_| {
            let problem = format!("`{}` is not the number of an entry", self.after.escape_debug());
            in_option("--after", Error::new(ErrorCode::InvalidArgument, problem))
                .hint("entries count from 1; --json shows their numbers as `seq`")
        })?;
        Ok((self.id.parse()?, after))
    }
}

/// Check network policies, and try what they would decide
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  belljar policy check policy.toml
  belljar policy test policy.toml https://example.org/ example.org:5432"
)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) command: PolicyVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyVerb {
    Check(PolicyCheckArgs),
    Test(PolicyTestArgs),
}

/// Print a policy file as it is understood, or everything that is wrong with it, with line and column
///
/// Exits with 1 when something is wrong.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar policy check policy.toml
  belljar policy check --json policy.toml")]
pub(crate) struct PolicyCheckArgs {
    /// The file, TOML or JSON
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Say what a policy would decide, and by which rule
///
/// Of single requests, or of all that were made when a recording was. Nothing is looked up or connected to; so whether a host's
/// addresses are public, which is judged when they are dialled, is not told. Sets are those of this machine. Exits with 1 when
/// something would be denied.
#[derive(Debug, Args)]
#[command(
    override_usage = "belljar policy test FILE URL...\n       belljar policy test --allow RULE... URL...\n       belljar policy test --policy FILE --recording NAME",
    after_long_help = "\
Examples:
  belljar policy test policy.toml https://example.org/ example.org:5432
  belljar policy test --allow 'GET http://example.org/v1/*' 'POST http://example.org/v1/items'
  belljar policy test --policy policy.toml --recording install"
)]
pub(crate) struct PolicyTestArgs {
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
    /// The policy file, unless options say the policy; then what would be wanted: https://HOST/, 'METHOD http://HOST/PATH' or
    /// HOST:PORT
    #[arg(value_name = "URL", required_unless_present = "recording", help_heading = "Arguments")]
    pub(crate) words: Vec<String>,
    /// Ask about everything in this recording
    #[arg(long, value_name = "NAME")]
    pub(crate) recording: Option<String>,
}

impl PolicyTestArgs {
    /// The policy, and what to ask it.
    pub(crate) fn plan(mut self) -> Result<(NetworkPolicy, Vec<String>, Option<RecordingName>)> {
        let recording = self.recording.as_deref().map(str::parse).transpose();
        let recording = recording.map_err(|error| in_option("--recording", error))?;
        if !self.network.is_given() && !self.words.is_empty() {
            self.network.policy = Some(self.words.remove(0).into());
        }
        let policy = self.network.policy()?;
        if self.words.is_empty() && recording.is_none() {
            return Err(Error::new(ErrorCode::InvalidArgument, "nothing was named that could be wanted")
                .hint("name at least one, such as https://example.org/ or example.org:5432"));
        }
        Ok((policy, self.words, recording))
    }
}

/// Look after the gateway, which makes calls that need a key for sandboxes that have none
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  belljar gateway check
  belljar run --grant llm:chat -- sh -c 'curl -H \"x-api-key: $BELLJAR_TOKEN\" $ANTHROPIC_BASE_URL/v1/models'"
)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    pub(crate) command: GatewayVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GatewayVerb {
    /// Print what the gateway does and where its keys come from, or everything that is wrong with its configuration
    ///
    /// Reads `gateway.toml` in the data directory, and tries to get every key; none is printed. Exits with 1 when something is
    /// wrong or a key is missing.
    #[command(after_long_help = "Examples:\n  belljar gateway check\n  belljar gateway check --json")]
    Check,
}

/// Serve this data directory: remember sessions, let them in when there is room, keep their log
///
/// While an engine serves a data directory every other command goes through it: what is done is written down before and
/// after, and survives whatever happens to the engine. It may be killed at any moment; the next one takes over the
/// sandboxes that run. Without an engine the same commands work, and nobody remembers.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar engine
  belljar engine --room 200 --line 1000 --keep 7d
  belljar engine --tenants tenants.toml")]
pub(crate) struct EngineArgs {
    /// How many sandboxes there is room for at once
    #[arg(long, value_name = "N", default_value = "2400")]
    pub(crate) room: String,
    /// How many requests may wait for room at once
    #[arg(long, value_name = "N", default_value = "10000")]
    pub(crate) line: String,
    /// How long a request waits for room
    #[arg(long, value_name = "SPAN", default_value = "60s")]
    pub(crate) patience: String,
    /// How long what has ended is remembered
    #[arg(long, value_name = "SPAN", default_value = "24h")]
    pub(crate) keep: String,
    /// How many ended sandboxes are remembered at most
    #[arg(long, value_name = "N", default_value = "10000")]
    pub(crate) most: String,
    /// What the sandboxes of a tenant may use together, a file of TOML; without it nothing is limited by tenant
    #[arg(long, value_name = "FILE")]
    pub(crate) tenants: Option<PathBuf>,
    /// How long callers may finish what they are at when the engine is told to stop; told twice, it stops at once
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub(crate) grace: String,
}

/// List what the engine remembers, the newest first, also of sandboxes that are gone
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar sessions
  belljar sessions --state ended --label job=nightly
  belljar sessions --json --limit 1000 --after 51000")]
pub(crate) struct SessionsArgs {
    /// Only those that are queued, creating, running, paused, ending or ended; may be repeated
    #[arg(long = "state", value_name = "NAME")]
    pub(crate) states: Vec<String>,
    /// Only those with this label; may be repeated, and then all are needed
    #[arg(long = "label", value_name = "K=V")]
    pub(crate) labels: Vec<String>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// How many at most, up to 1000
    #[arg(long, value_name = "N", default_value = "50", allow_hyphen_values = true)]
    pub(crate) limit: String,
    /// Go on where the last page ended
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    pub(crate) after: Option<String>,
}

/// Print what happened in a sandbox, as the engine wrote it down
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar events bj-k3m9x2p4q7w8z
  belljar events --json --after 12 bj-k3m9x2p4q7w8z
  belljar events --follow bj-k3m9x2p4q7w8z")]
pub(crate) struct EventsArgs {
    /// Go on until the sandbox has ended
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only what came after the entry with this number
    #[arg(long, value_name = "SEQ", default_value = "0")]
    pub(crate) after: String,
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Print what ended sandboxes used, and what that costs
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar usage
  belljar usage --json --tenant local")]
pub(crate) struct UsageArgs {
    /// Whose
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub(crate) tenant: String,
}

/// Copy what the engine remembers to a file, while everything goes on
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar backup monday.db")]
pub(crate) struct BackupArgs {
    /// The file; it must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Put a copy back that `belljar backup` made; no engine may be running
///
/// Sandboxes that run and are not in the copy are taken over by the next engine; those in the copy that no longer run have
/// ended as `lost`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar restore monday.db")]
pub(crate) struct RestoreArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar
  belljar completions fish > ~/.config/fish/completions/belljar.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}
