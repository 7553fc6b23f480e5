//! The options that decide what may be reached: from words and files to a checked policy.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, NetworkPolicy, Result, Rule, RuleError, Rules};
use belljar_network::policy::file::{self, FileErrors};
use clap::Args;

use super::{in_option, wrong};

const HOW_TO_WRITE: &str = "write example.org, example.org:8443, *.example.org, 192.0.2.0/24:5432, \
                            'GET http://example.org/v1/*' or a set such as pypi; docs/policy-files.md has them all";

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkOptions {
    /// What may be reached: none (the default), allowlist (what is allowed and nothing else; the default with --allow or
    /// --policy) or open (whatever is public)
    #[arg(long, value_name = "MODE")]
    pub(crate) net: Option<String>,
    /// Let this be reached: example.org, '*.example.org:8443', 192.0.2.0/24:5432, 'GET http://example.org/v1/*', or what a
    /// package tool is set up to use: pypi, npm, crates, debian, github; may be repeated
    #[arg(long, value_name = "RULE", allow_hyphen_values = true)]
    pub(crate) allow: Vec<String>,
    /// Let this not be reached, whatever is allowed; may be repeated
    #[arg(long, value_name = "RULE", allow_hyphen_values = true)]
    pub(crate) deny: Vec<String>,
    /// Read the policy from a file of TOML or JSON; --allow and --deny add to it
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
}

/// What a policy is, without its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    None,
    Allowlist,
    Open,
}

impl Mode {
    const ALL: [Self; 3] = [Self::None, Self::Allowlist, Self::Open];

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Allowlist => "allowlist",
            Self::Open => "open",
        }
    }

    fn parse(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| {
            wrong("--net", format!("there is no mode `{}`", text.escape_debug()))
                .hint("choose none, allowlist (with --allow) or open")
        })
    }

    fn of(policy: &NetworkPolicy) -> Self {
        match policy {
            NetworkPolicy::None => Self::None,
            NetworkPolicy::Allowlist(_) => Self::Allowlist,
            NetworkPolicy::Open(_) => Self::Open,
        }
    }
}

impl NetworkOptions {
    /// Whether any of them was given.
    pub(crate) fn is_given(&self) -> bool {
        self.net.is_some() || self.policy.is_some() || !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// The policy that they say together; without any it is `none`.
    pub(crate) fn policy(&self) -> Result<NetworkPolicy> {
        let asked = self.net.as_deref().map(Mode::parse).transpose()?;
        let from_file = self.policy.as_deref().map(read_option).transpose()?;
        let mode = self.mode(asked, from_file.as_ref())?;
        let mut rules = from_file.as_ref().and_then(NetworkPolicy::rules).cloned().unwrap_or_default();
        rules.allow.extend(read_rules("--allow", &self.allow, Rule::check_allowing)?);
        rules.deny.extend(read_rules("--deny", &self.deny, Rule::check_denying)?);
        let policy = match mode {
            Mode::None if rules == Rules::default() => NetworkPolicy::None,
            Mode::None => return Err(self.nothing_to_rule(asked)),
            Mode::Allowlist => NetworkPolicy::Allowlist(rules),
            Mode::Open => NetworkPolicy::Open(rules),
        };
        let option = if self.allow.is_empty() { "--deny" } else { "--allow" };
        policy.check().map_err(|error| in_option(option, error))?;
        Ok(policy)
    }

    fn mode(&self, asked: Option<Mode>, from_file: Option<&NetworkPolicy>) -> Result<Mode> {
        match (asked, from_file.map(Mode::of)) {
            (Some(asked), Some(in_file)) if asked != in_file => Err(wrong(
                "--net",
                format!(
                    "`{}` contradicts the policy file, whose mode is `{}`",
                    asked.as_str(),
                    in_file.as_str()
                ),
            )
            .hint("leave --net out, or change the mode in the file")),
            (Some(mode), _) | (None, Some(mode)) => Ok(mode),
            (None, None) if self.allow.is_empty() => Ok(Mode::None),
            (None, None) => Ok(Mode::Allowlist),
        }
    }

    /// Rules where there is no network.
    fn nothing_to_rule(&self, asked: Option<Mode>) -> Error {
        let option = if self.allow.is_empty() { "--deny" } else { "--allow" };
        let error = match (asked, &self.policy) {
            (Some(_), _) => wrong(option, "`--net none` lets nothing be reached, and has no rules"),
            (None, Some(_)) => wrong(option, "the policy file has the mode `none`, which has no rules"),
            (None, None) => wrong(option, "nothing is allowed, so there is nothing to deny"),
        };
        error.hint("for a few hosts use --allow; for everything public but some hosts use --net open --deny")
    }
}

pub(super) fn read_rules(
    option: &str,
    texts: &[String],
    check: fn(&Rule) -> Result<(), RuleError>,
) -> Result<Vec<Rule>> {
    let read = |text: &String| {
        let rule: Rule = text.parse()?;
        check(&rule).map(|()| rule)
    };
    texts
        .iter()
        .map(|text| {
            read(text).map_err(|error| {
                let shown: String = text.escape_debug().take(120).collect();
                wrong(&format!("{option} {shown}"), error).hint(HOW_TO_WRITE)
            })
        })
        .collect()
}

/// What came of reading a policy file.
pub(crate) type FromFile = std::result::Result<NetworkPolicy, FileErrors>;

/// Reads a policy file. What is wrong with its content is told apart from a file that cannot be read.
pub(crate) fn read_file(path: &Path) -> Result<FromFile> {
    let unreadable = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::InvalidArgument,
        };
        Error::new(code, format!("cannot read the policy file {}: {error}", path.display()))
            .hint("docs/policy-files.md tells how one is written")
    };
    let mut bytes = Vec::new();
    let most = file::MAX_SIZE as u64 + 1;
    File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(file::read(&bytes))
}

fn read_option(path: &Path) -> Result<NetworkPolicy> {
    let read = read_file(path).map_err(|error| in_option("--policy", error))?;
    read.map_err(|found| {
        let first = found.errors.first().map(ToString::to_string).unwrap_or_default();
        let more = match found.errors.len() + found.left_out {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        wrong("--policy", format!("{}: {first}{more}", path.display()))
            .hint(format!("`belljar policy check {}` tells all that is wrong", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[(&str, &str)]) -> NetworkOptions {
        let mut options = NetworkOptions::default();
        for (option, value) in words {
            match *option {
                "--net" => options.net = Some((*value).to_owned()),
                "--allow" => options.allow.push((*value).to_owned()),
                "--deny" => options.deny.push((*value).to_owned()),
                _ => options.policy = Some(value.into()),
            }
        }
        options
    }

    fn policy(words: &[(&str, &str)]) -> String {
        options(words).policy().unwrap_or_else(|error| panic!("{words:?}: {error}")).to_string()
    }

    #[test]
    fn words_become_a_policy() {
        assert_eq!(policy(&[]), "none");
        assert!(!options(&[]).is_given());
        assert_eq!(policy(&[("--net", "none")]), "none");
        assert_eq!(policy(&[("--net", "open")]), "open");
        assert_eq!(policy(&[("--net", "allowlist")]), "allowlist");
        assert_eq!(
            policy(&[("--allow", "PyPI"), ("--allow", "a.org:8443")]),
            "allowlist; allow pypi, a.org:8443"
        );
        assert_eq!(policy(&[("--net", "open"), ("--deny", "a.org")]), "open; deny a.org");
        assert_eq!(
            policy(&[("--allow", "*.a.org"), ("--deny", "b.a.org")]),
            "allowlist; allow *.a.org; deny b.a.org"
        );
    }

    #[test]
    fn a_file_is_added_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        std::fs::write(&path, "mode = \"open\"\nallow = [\"10.0.0.0/8:443\"]\n[limits]\nconnections = 7\n")
            .unwrap();
        let file = path.to_str().unwrap();
        let read = options(&[("--policy", file), ("--deny", "a.org"), ("--net", "open")]).policy().unwrap();
        assert_eq!(read.to_string(), "open; allow 10.0.0.0/8:443; deny a.org");
        assert_eq!(read.rules().unwrap().limits.connections, 7);
        std::fs::write(&path, "{\"mode\": \"allowlist\", \"allow\": [\"a.org\"]}").unwrap();
        assert_eq!(policy(&[("--policy", file), ("--allow", "b.org")]), "allowlist; allow a.org, b.org");

        let error = options(&[("--policy", file), ("--net", "open")]).policy().unwrap_err();
        assert!(error.message.contains("--net") && error.message.contains("allowlist"), "{error}");
        std::fs::write(&path, "mode = \"none\"\n").unwrap();
        assert_eq!(policy(&[("--policy", file)]), "none");
        let error = options(&[("--policy", file), ("--allow", "a.org")]).policy().unwrap_err();
        assert!(error.message.contains("--allow") && error.message.contains("none"), "{error}");
        std::fs::write(&path, "mode = \"all\"\nallow = [7]\n").unwrap();
        let error = options(&[("--policy", file)]).policy().unwrap_err();
        assert!(error.message.contains("--policy") && error.message.contains("line 1, column 8"), "{error}");
        assert!(error.message.contains("(and 1 more)") && error.hint.is_some(), "{error}");
    }

    #[test]
    fn a_refusal_names_the_option_and_says_how_to_write_it() {
        for (words, option, says) in [
            (&[("--net", "all")][..], "--net", "`all`"),
            (&[("--net", "none"), ("--allow", "a.org")], "--allow", "--net none"),
            (&[("--deny", "a.org")], "--deny", "nothing to deny"),
            (&[("--allow", "exa mple.org")], "--allow exa mple.org", "method"),
            (&[("--allow", "*")], "--allow *", "open"),
            (&[("--allow", "192.0.2.0/24")], "--allow 192.0.2.0/24", "port"),
            (&[("--allow", "a.org"), ("--deny", "b.org private")], "--deny b.org private", "private"),
            (&[("--net", "open"), ("--allow", "GET a.org")], "--allow", "in the mode `open`"),
            (&[("--policy", "/nonexistent/policy.toml")], "--policy", "/nonexistent/policy.toml"),
            (&[("--policy", "/dev/null")], "--policy", "empty"),
            (&[("--policy", "/")], "--policy", "cannot read"),
        ] {
            let error = options(words).policy().unwrap_err();
            assert!(error.message.contains(&format!("option `{option}`")), "{words:?}: {error}");
            assert!(error.message.contains(says), "{words:?}: {error}");
            assert!(error.hint.is_some(), "{words:?}: {error}");
        }
        let many = vec!["a.org".to_owned(); 1001];
        let error = NetworkOptions { allow: many, ..NetworkOptions::default() }.policy().unwrap_err();
        assert!(error.message.contains("1001 rules"), "{error}");
    }
}
