//! Tokens of the gateway, and what was done with them.

use std::time::Duration;

use belljar_core::{Budget, Error, ErrorCode, Grant, OperationName, Result, SandboxId, Span};
use clap::{Args, Subcommand};

use super::sandbox::value;
use super::{in_option, wrong};

/// Grant a sandbox operations of the gateway while it runs, and take them back
///
/// A token is good from one sandbox only, for the operations that it was granted, until its time is over. What is kept of it is its
/// hash; it is printed once, when it is made. docs/gateway.md has more.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  token=$(belljar token create bj-k3m9x2p4q7w8z --grant llm:chat --ttl 10m)
  belljar token ls bj-k3m9x2p4q7w8z
  belljar token revoke bj-k3m9x2p4q7w8z tk-1f0c9a27be44"
)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    Create(TokenCreateArgs),
    Ls(TokenLsArgs),
    Revoke(TokenRevokeArgs),
    Extend(TokenExtendArgs),
}

/// Make a token for a sandbox that runs, and print it, once
///
/// It is good from the moment that this returns. The sandbox must have been made with a network (`--grant`, `--allow`, `--net`); the
/// gateway comes within its reach. With --json there is also what is kept of the token, and `env`: the variables by which
/// clients of the operations find the gateway, to be given to an execution with `-e`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar token create bj-k3m9x2p4q7w8z --grant llm:chat
  belljar token create bj-k3m9x2p4q7w8z --grant llm:chat --grant search:web --ttl 1h --agent critic
  belljar token create bj-k3m9x2p4q7w8z --grant llm:chat --requests 20 --tokens 50000 --dollars 0.25")]
pub(crate) struct TokenCreateArgs {
    /// What it is good for: an operation of the gateway; may be repeated
    #[arg(long, value_name = "OPERATION", required = true)]
    pub(crate) grant: Vec<String>,
    /// How long it is good, such as 30s, 10m or 1h [default: 5m; with an engine, as long as the sandbox lives]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// In whose hands it is meant to be; a word of your own
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) agent: Option<String>,
    /// The most calls that can be made with it
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub(crate) requests: Option<String>,
    /// The most tokens of models that can be used with it
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub(crate) tokens: Option<String>,
    /// The most money that can be spent with it
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub(crate) dollars: Option<String>,
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,
}

/// List a sandbox's tokens: what they are good for, and until when; never the tokens themselves
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar token ls bj-k3m9x2p4q7w8z
  belljar token ls --json bj-k3m9x2p4q7w8z")]
pub(crate) struct TokenLsArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,
}

/// Take a token back, for good
///
/// Once this returns no call begins with it; one that is being made may come to its end.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  belljar token revoke bj-k3m9x2p4q7w8z tk-1f0c9a27be44")]
pub(crate) struct TokenRevokeArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,
    /// The token, by its id
    #[arg(value_name = "TOKEN_ID", allow_hyphen_values = true)]
    pub(crate) token: String,
}

/// Let a token be good for longer (or shorter): this long from now
///
/// One whose time is over, or that was revoked, stays so.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  belljar token extend bj-k3m9x2p4q7w8z tk-1f0c9a27be44 --ttl 30m")]
pub(crate) struct TokenExtendArgs {
    /// How long from now, such as 30s, 10m or 1h
    #[arg(long, value_name = "TIME", required = true, allow_hyphen_values = true)]
    pub(crate) ttl: String,
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,
    /// The token, by its id
    #[arg(value_name = "TOKEN_ID", allow_hyphen_values = true)]
    pub(crate) token: String,
}

/// Print what a sandbox had the gateway do, and what was refused
///
/// TOKENS are those of models, of all kinds. COST is in dollars, as the prices in `gateway.toml` say; `?` where it is not known.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  belljar calls bj-k3m9x2p4q7w8z
  belljar calls --json --after 120 bj-k3m9x2p4q7w8z")]
pub(crate) struct CallsArgs {
    /// Only what came after the call with this number
    #[arg(long, value_name = "SEQ", default_value = "0", allow_hyphen_values = true)]
    pub(crate) after: String,
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,
}

/// The options by which a budget is given; each with the name it has where it stands.
pub(super) struct BudgetWords<'a> {
    pub(super) requests: (&'static str, Option<&'a str>),
    pub(super) tokens: (&'static str, Option<&'a str>),
    pub(super) dollars: (&'static str, Option<&'a str>),
}

impl BudgetWords<'_> {
    pub(super) fn read(&self) -> Result<Budget> {
        let count = |(option, given): (&'static str, Option<&str>)| {
            let read = |text: &str| {
                text.parse::<u64>().map_err(|_| {
                    wrong(option, format!("`{}` is not a count", text.escape_debug()))
                        .hint("give a whole number, such as 100")
                })
            };
            given.map(read).transpose()
        };
        let (option, dollars) = self.dollars;
        let amount = |text: &str| {
            let read = text.parse::<f64>().ok().and_then(|dollars| Budget::micro(dollars).ok());
            read.ok_or_else(|| {
                wrong(option, format!("`{}` is not an amount of dollars", text.escape_debug()))
                    .hint("give a number, such as 5 or 0.25")
            })
        };
        Ok(Budget {
            requests: count(self.requests)?,
            tokens: count(self.tokens)?,
            micro_dollars: dollars.map(amount).transpose()?,
        })
    }
}

/// What a token is to be good for.
pub(super) fn grant(
    operations: &[String],
    life: (&'static str, Option<&str>),
    budget: Budget,
    agent: Option<String>,
) -> Result<Grant> {
    let names = operations.iter().map(|name| name.parse::<OperationName>());
    let names = names.collect::<Result<Vec<_>>>().map_err(|error| in_option("--grant", error))?;
    let (option, text) = life;
    let life = value::<Span>(option, text)?.map(|span| span.0);
    life.map_or(Ok(()), Grant::check_life).map_err(|error| in_option(option, error))?;
    let grant = Grant { life, budget, agent, ..Grant::of(names) };
    grant.check().map_err(|error| in_option("--grant", error))?;
    Ok(grant)
}

impl TokenCreateArgs {
    /// Checks everything.
    pub(crate) fn plan(self) -> Result<(SandboxId, Grant)> {
        let budget = BudgetWords {
            requests: ("--requests", self.requests.as_deref()),
            tokens: ("--tokens", self.tokens.as_deref()),
            dollars: ("--dollars", self.dollars.as_deref()),
        };
        let grant = grant(&self.grant, ("--ttl", self.ttl.as_deref()), budget.read()?, self.agent)?;
        Ok((self.id.parse()?, grant))
    }
}

impl TokenExtendArgs {
    /// Checks everything.
    pub(crate) fn plan(self) -> Result<(SandboxId, String, Duration)> {
        let life = self.ttl.parse::<Span>().map_err(|error| wrong("--ttl", error))?.0;
        Grant::check_life(life).map_err(|error| in_option("--ttl", error))?;
        Ok((self.id.parse()?, self.token, life))
    }
}

impl CallsArgs {
    /// Checks everything.
    pub(crate) fn plan(&self) -> Result<(SandboxId, u64)> {
        let after = self.after.parse().map_err(|_| {
            let problem = format!("`{}` is not the number of a call", self.after.escape_debug());
            in_option("--after", Error::new(ErrorCode::InvalidArgument, problem))
                .hint("calls count from 1; --json shows their numbers as `seq`")
        })?;
        Ok((self.id.parse()?, after))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    const ID: &str = "bj-k3m9x2p4q7w8z";

    fn create(line: &[&str]) -> Result<Grant> {
        let words = ["belljar", "token", "create", ID, "--grant", "llm:chat"];
        match Cli::try_parse_from(words.iter().chain(line)).unwrap().command {
            Verb::Token(TokenArgs { command: TokenVerb::Create(args) }) => {
                args.plan().map(|(_, grant)| grant)
            }
            _ => panic!("not token create"),
        }
    }

    #[test]
    fn words_become_a_grant() {
        assert_eq!(create(&[]).unwrap(), Grant::of(vec!["llm:chat".parse().unwrap()]));
        let grant =
            create(&["--ttl", "1h", "--agent", "critic", "--requests", "3", "--dollars", "0.25"]).unwrap();
        assert_eq!((grant.life, grant.agent.as_deref()), (Some(Duration::from_secs(3600)), Some("critic")));
        let budget = Budget { requests: Some(3), tokens: None, micro_dollars: Some(250_000) };
        assert_eq!(grant.budget, budget);
    }

    #[test]
    fn a_refusal_names_the_option() {
        for (option, value) in [
            ("--ttl", "soon"),
            ("--ttl", "25h"),
            ("--ttl", "0s"),
            ("--requests", "-1"),
            ("--tokens", "many"),
            ("--dollars", "-1"),
            ("--dollars", "NaN"),
            ("--dollars", "1e30"),
            ("--grant", "No Operation"),
        ] {
            let error = create(&[option, value]).unwrap_err();
            assert!(error.message.contains(option), "{option} {value}: {error}");
        }
    }
}
