//! The options that decide what a sandbox looks like.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use belljar_core::{ByteSize, CpuCount, Grant, Limits, ProviderName, Result, Rule, SandboxSpec, Span};
use clap::Args;

use super::network::read_rules;
use super::template::{Installation, template_option};
use super::token::{BudgetWords, grant};
use super::{NetworkOptions, RecordingOptions, in_option, pairs, wrong};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxOptions {
    /// What holds the walls: jail (the default) or local (no isolation at all, for development)
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// What to start from: host, the programs of this machine, read-only (the default), or a template of `belljar template ls`
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Install this first, or have it from where it was installed before: a line for the shell such as "pip install -r
    /// requirements.txt", run once for the same template, files and variables; may be repeated
    #[arg(long, value_name = "LINE", help_heading = "Installation")]
    pub(crate) install: Vec<String>,
    /// A file that the installation reads, below the current directory; those that pip, npm and cargo are known to read need not be
    /// named; may be repeated
    #[arg(long, value_name = "FILE", requires = "install", help_heading = "Installation")]
    pub(crate) install_file: Vec<String>,
    /// Let the installation reach this, besides the package registries that this machine is set up to use; may be repeated
    #[arg(
        long,
        value_name = "RULE",
        requires = "install",
        allow_hyphen_values = true,
        help_heading = "Installation"
    )]
    pub(crate) install_allow: Vec<String>,
    /// How long the sandbox lives [default: 5m, or the time-out and a minute if that is longer]
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,
    /// A word to find it by; may be repeated
    #[arg(long = "label", value_name = "K=V")]
    pub(crate) labels: Vec<String>,
    /// Memory of all processes and the disk together [default: 2g]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) memory: Option<String>,
    /// Share of processors [default: 2]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) cpus: Option<String>,
    /// Processes and threads at once [default: 512]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) pids: Option<String>,
    /// Bytes that can be written to its file system [default: half of the memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) disk: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
    /// Have the files of this package registry from disk where they have been fetched before, and keep those that are fetched: pypi,
    /// npm, crates or a host; its TLS is opened for that, and it must be allowed as well; may be repeated
    #[arg(long, value_name = "REGISTRY", allow_hyphen_values = true, help_heading = "Network")]
    pub(crate) cache: Vec<String>,
    #[command(flatten)]
    pub(crate) recording: RecordingOptions,
    /// Let it call this operation of the gateway, by a token in its environment; the key stays outside; may be repeated
    #[arg(long, value_name = "OPERATION", help_heading = "Network")]
    pub(crate) grant: Vec<String>,
    /// How long that token is good, such as 30s, 10m or 1h [default: 5m; with an engine, as long as the sandbox lives]
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        requires = "grant",
        help_heading = "Network"
    )]
    pub(crate) token_ttl: Option<String>,
    /// The most calls that can be made with that token
    #[arg(
        long,
        value_name = "COUNT",
        allow_hyphen_values = true,
        requires = "grant",
        help_heading = "Network"
    )]
    pub(crate) budget_requests: Option<String>,
    /// The most tokens of models that can be used with it
    #[arg(
        long,
        value_name = "COUNT",
        allow_hyphen_values = true,
        requires = "grant",
        help_heading = "Network"
    )]
    pub(crate) budget_tokens: Option<String>,
    /// The most money that can be spent with it
    #[arg(
        long,
        value_name = "AMOUNT",
        allow_hyphen_values = true,
        requires = "grant",
        help_heading = "Network"
    )]
    pub(crate) budget_dollars: Option<String>,
}

/// Reads the value of an option if it was given.
pub(super) fn value<T>(option: &str, given: Option<&str>) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: Display,
{
    given.map(|text| text.parse().map_err(|error| wrong(option, error))).transpose()
}

impl SandboxOptions {
    /// The provider asked for.
    pub(crate) fn provider(&self) -> Result<ProviderName> {
        match &self.provider {
            None => Ok(ProviderName::Jail),
            Some(name) => name.parse().map_err(|error| in_option("--provider", error)),
        }
    }

    /// The time to live, if one was given.
    pub(crate) fn ttl(&self) -> Result<Option<std::time::Duration>> {
        Ok(value::<Span>("--ttl", self.ttl.as_deref())?.map(|span| span.0))
    }

    /// What the sandbox is made from; variables and ties are left to the caller.
    pub(crate) fn spec(&self) -> Result<SandboxSpec> {
        let network = self.network.policy()?;
        let mut spec = SandboxSpec { limits: self.limits()?, network, ..SandboxSpec::default() };
        if let Some(template) = &self.template {
            spec.template = template_option(template)?;
        }
        if let Some(ttl) = self.ttl()? {
            spec.ttl = ttl;
        }
        spec.labels = labels(&self.labels)?;
        spec.grant = self.grant()?;
        spec.recording = self.recording.recording()?;
        spec.check_recording()?;
        spec.cache = read_rules("--cache", &self.cache, Rule::check_allowing)?;
        spec.check_cache().map_err(|error| in_option("--cache", error))?;
        Ok(spec)
    }

    /// What is to be installed first.
    pub(crate) fn installation(&self) -> Result<Option<Installation>> {
        if self.install.is_empty() {
            return Ok(None);
        }
        if self.provider()? == ProviderName::Local {
            return Err(wrong("--install", "the `local` provider installs nothing"));
        }
        let allow = read_rules("--install-allow", &self.install_allow, Rule::check_allowing)?;
        Ok(Some(Installation { commands: self.install.clone(), files: self.install_file.clone(), allow }))
    }

    fn grant(&self) -> Result<Option<Grant>> {
        if self.grant.is_empty() {
            return Ok(None);
        }
        let budget = BudgetWords {
            requests: ("--budget-requests", self.budget_requests.as_deref()),
            tokens: ("--budget-tokens", self.budget_tokens.as_deref()),
            dollars: ("--budget-dollars", self.budget_dollars.as_deref()),
        };
        let life = ("--token-ttl", self.token_ttl.as_deref());
        grant(&self.grant, life, budget.read()?, None).map(Some)
    }

    fn limits(&self) -> Result<Limits> {
        let mut limits = Limits::default();
        if let Some(memory) = value::<ByteSize>("--memory", self.memory.as_deref())? {
            limits.memory = memory;
            limits.disk = Limits::default_disk(memory);
        }
        if let Some(cpus) = value::<CpuCount>("--cpus", self.cpus.as_deref())? {
            limits.cpus = cpus;
        }
        if let Some(pids) = &self.pids {
            limits.pids = pids.parse().map_err(|_| {
                wrong("--pids", format!("`{}` is not a count of processes", pids.escape_debug()))
                    .hint("give a whole number from 4 to 100000")
            })?;
        }
        if let Some(disk) = value::<ByteSize>("--disk", self.disk.as_deref())? {
            limits.disk = disk;
        }
        limits.check().map_err(|(field, problem)| {
            let given = match field {
                "memory" => self.memory.as_deref(),
                "pids" => self.pids.as_deref(),
                "disk" => self.disk.as_deref(),
                _ => None,
            };
            match given {
                Some(given) => wrong(&format!("--{field} {given}"), problem),
                None => wrong(&format!("--{field}"), problem),
            }
        })?;
        Ok(limits)
    }
}

/// Reads `--label`, as what a sandbox is given or found by.
pub(super) fn labels(given: &[String]) -> Result<BTreeMap<String, String>> {
    let labels = pairs("--label", given, |text| format!("write --label {text}=VALUE"))?;
    SandboxSpec::check_labels(&labels).map_err(|error| in_option("--label", error))?;
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut SandboxOptions)) -> Result<SandboxSpec> {
        let mut options = SandboxOptions::default();
        change(&mut options);
        options.provider()?;
        options.spec()
    }

    #[test]
    fn every_way_to_write_two_gibibytes_works() {
        for text in ["2g", "2gb", "2GiB", "2048m"] {
            let spec = with(|options| options.memory = Some(text.into())).unwrap();
            assert_eq!(spec.limits.memory, ByteSize::gib(2), "{text}");
            assert_eq!(spec.limits.disk, ByteSize::gib(1), "half of the memory");
        }
    }

    #[test]
    fn an_asked_for_disk_is_not_halved() {
        let spec = with(|options| {
            options.memory = Some("256m".into());
            options.disk = Some("200m".into());
        });
        assert_eq!(spec.unwrap().limits.disk, ByteSize::mib(200));
    }

    #[test]
    fn a_refusal_names_the_option_and_shows_what_was_given() {
        type Set = fn(&mut SandboxOptions, String);
        let cases: [(&str, Set, &str); 13] = [
            ("--memory", |options, text| options.memory = Some(text), "-1"),
            ("--memory", |options, text| options.memory = Some(text), "1e30"),
            ("--memory", |options, text| options.memory = Some(text), "lots"),
            ("--memory", |options, text| options.memory = Some(text), "8m"),
            ("--disk", |options, text| options.disk = Some(text), "1k"),
            ("--cpus", |options, text| options.cpus = Some(text), "many"),
            ("--pids", |options, text| options.pids = Some(text), "1.5"),
            ("--pids", |options, text| options.pids = Some(text), "2"),
            ("--ttl", |options, text| options.ttl = Some(text), "soon"),
            ("--net", |options, text| options.network.net = Some(text), "all"),
            ("--template", |options, text| options.template = Some(text), "../etc"),
            ("--provider", |options, text| options.provider = Some(text), "docker"),
            ("--allow", |options, text| options.network.allow = vec![text], "exa mple.org"),
        ];
        for (option, set, text) in cases {
            let error = with(|options| set(options, text.into())).unwrap_err();
            assert!(error.message.contains(option), "{error}");
            assert!(error.message.contains(text), "{error}");
        }
    }

    #[test]
    fn labels_are_pairs() {
        let spec = with(|options| options.labels = vec!["job=a=b".into()]).unwrap();
        assert_eq!(spec.labels["job"], "a=b");
        assert!(with(|options| options.labels = vec!["job".into()]).is_err());
        assert!(with(|options| options.labels = vec!["=x".into()]).is_err());
        let many = (0..65).map(|number| format!("{number}=x")).collect();
        for bad in [vec![format!("{}=x", "n".repeat(64))], vec![format!("n={}", "v".repeat(256))], many] {
            let error = with(|options| options.labels = bad).unwrap_err();
            assert!(error.message.contains("--label") && error.hint.is_some(), "{error:?}");
        }
    }
}
