//! The commands about templates: what sandboxes start from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use belljar_core::{ByteSize, Error, ErrorCode, Limits, NetworkPolicy, Result, Rule, Span};
use belljar_layers::is_name;
use belljar_templates::How;
use clap::{Args, Subcommand};

use super::sandbox::value;
use super::{NetworkOptions, in_option, pairs, wrong};

/// Make, look at and remove templates: what sandboxes start from
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  docker save my-image | belljar template import - my-image
  belljar run --template my-image -- cat /etc/os-release
  belljar template ls"
)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    pub(crate) command: TemplateVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateVerb {
    /// Build a template from a recipe: template.toml, a Dockerfile, or one that is ready-made
    ///
    /// Every step runs in a sandbox, and is not done again as long as nothing that it depends on changes. Steps reach the package
    /// registries that this machine is set up to use, and what is allowed besides.
    #[command(after_long_help = "\
Examples:
  belljar template build data
  belljar template build my-app ./my-app --build-arg VERSION=1.2
  belljar template build tools --file tools.toml --allow github")]
    Build(Box<TemplateBuildArgs>),
    /// Take an image in: what `docker save` writes, or an archive in the layout of OCI
    #[command(after_long_help = "\
Examples:
  docker save my-image | belljar template import - my-image
  belljar template import image.tar my-image")]
    Import(TemplateImportArgs),
    /// Write a template as an archive in the layout of OCI, which `import` takes in, and others too unless it lies on the host's programs
    #[command(after_long_help = "Examples:\n  belljar template export my-image image.tar")]
    Export(TemplateExportArgs),
    /// List the templates there are
    #[command(after_long_help = "Examples:\n  belljar template ls\n  belljar template ls --json")]
    Ls,
    /// Print what a template is made of
    #[command(after_long_help = "Examples:\n  belljar template inspect my-image --json")]
    Inspect(TemplateNameArgs),
    /// List files of a template, without starting it
    #[command(after_long_help = "Examples:\n  belljar template files my-image /etc")]
    Files(TemplateFileArgs),
    /// Print a file of a template, without starting it
    #[command(after_long_help = "Examples:\n  belljar template cat my-image /etc/os-release")]
    Cat(TemplateFileArgs),
    /// Print what is different between two templates: A is added, M modified, D removed
    #[command(after_long_help = "Examples:\n  belljar template diff my-image my-state")]
    Diff(TemplateDiffArgs),
    /// Take the names of templates away; `gc` removes what nobody needs any more
    #[command(after_long_help = "Examples:\n  belljar template rm my-image")]
    Rm(TemplateRmArgs),
    /// Check that the files of a template are what they were
    #[command(after_long_help = "Examples:\n  belljar template verify my-image")]
    Verify(TemplateNameArgs),
    /// Remove what no template, no sandbox and no recent work needs
    #[command(after_long_help = "Examples:\n  belljar template gc\n  belljar template gc --all")]
    Gc(TemplateGcArgs),
}

/// What is to be installed before a sandbox is used.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// Lines for the shell.
    pub(crate) commands: Vec<String>,
    /// Files that they read.
    pub(crate) files: Vec<String>,
    /// What they may reach besides registries.
    pub(crate) allow: Vec<Rule>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateBuildArgs {
    /// What the template is to be called; python, data and agent are ready-made
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The folder with template.toml or Dockerfile, from which files are copied [default: the current directory]
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// The recipe; what ends in .toml is read as template.toml, all else as a Dockerfile
    #[arg(long, short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// An argument of the Dockerfile; may be repeated
    #[arg(long = "build-arg", value_name = "K=V")]
    pub(crate) args: Vec<String>,
    /// Do all steps again, whatever was done before
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// How long a step may take [default: 1h]
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) timeout: Option<String>,
    /// Memory of a step [default: 4g]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) memory: Option<String>,
    /// Bytes that a step can write [default: a quarter of what is free, 2g to 10g]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) disk: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
}

/// A checked `template build`.
#[derive(Debug)]
pub(crate) struct BuildPlan {
    pub(crate) name: String,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) args: BTreeMap<String, String>,
    pub(crate) anew: bool,
    pub(crate) timeout: Duration,
    /// Nothing where nothing was said.
    pub(crate) memory: Option<ByteSize>,
    pub(crate) disk: Option<ByteSize>,
    /// What was said of the network; nothing if nothing was.
    pub(crate) network: Option<NetworkPolicy>,
}

impl TemplateBuildArgs {
    pub(crate) fn plan(self) -> Result<BuildPlan> {
        let memory = value::<ByteSize>("--memory", self.memory.as_deref())?;
        let disk = value::<ByteSize>("--disk", self.disk.as_deref())?;
        let mut limits = Limits::default();
        limits.memory = memory.unwrap_or(limits.memory);
        limits.disk = disk.unwrap_or(limits.disk);
        limits.check().map_err(|(field, problem)| wrong(&format!("--{field}"), problem))?;
        let timeout = value::<Span>("--timeout", self.timeout.as_deref())?;
        let network = self.network.is_given().then(|| self.network.policy()).transpose()?;
        Ok(BuildPlan {
            name: new_name(&self.name)?,
            folder: self.folder,
            file: self.file,
            args: pairs("--build-arg", &self.args, |name| format!("write --build-arg {name}=VALUE"))?,
            anew: self.no_cache,
            timeout: timeout.map_or(How::DEFAULT_TIMEOUT, |span| span.0),
            memory,
            disk,
            network,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct TemplateImportArgs {
    /// The archive, packed or not; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What the template is to be called; another that has this name loses it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateExportArgs {
    /// The template, by its name or its digest
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The archive; - is standard output
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateNameArgs {
    /// The template, by its name or its digest
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateFileArgs {
    /// The template, by its name or its digest
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Where, inside
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateDiffArgs {
    /// A template, by its name or its digest
    #[arg(value_name = "FIRST")]
    pub(crate) first: String,
    /// The one that it is compared with
    #[arg(value_name = "SECOND")]
    pub(crate) second: String,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateRmArgs {
    /// The templates
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateGcArgs {
    /// Keep the steps of builds and installations that were needed within this time [default: 7d]
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true)]
    pub(crate) unused: Option<String>,
    /// Keep none of them
    #[arg(long, conflicts_with = "unused")]
    pub(crate) all: bool,
}

impl TemplateGcArgs {
    pub(crate) fn unused(&self) -> Result<Duration> {
        if self.all {
            return Ok(Duration::ZERO);
        }
        let given = value::<Span>("--unused", self.unused.as_deref())?;
        Ok(given.map_or(Duration::from_secs(7 * 86_400), |span| span.0))
    }
}

/// Keep the files of a sandbox as a template
#[derive(Debug, Args)]
#[command(after_long_help = "\
The sandbox stands still meanwhile, and goes on afterwards. What is in /tmp and /run is left out.

Examples:
  belljar snapshot bj-5h2k9m3p7q1rt my-state
  belljar run --template my-state -- ls")]
pub(crate) struct SnapshotArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// What the template is to be called; another that has this name loses it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Refuses what cannot be the name of a new template.
pub(crate) fn new_name(name: &str) -> Result<String> {
    if name == belljar_providers::template::HOST {
        return Err(Error::new(ErrorCode::InvalidArgument, "`host` is this machine's own programs")
            .hint("choose another name"));
    }
    known_name(name)
}

/// Refuses what cannot be the name of a template, or its digest.
pub(super) fn known_name(name: &str) -> Result<String> {
    if is_name(name) || name.parse::<belljar_layers::Digest>().is_ok() {
        return Ok(name.to_owned());
    }
    let shown: String = name.escape_debug().take(200).collect();
    Err(Error::new(ErrorCode::InvalidArgument, format!("`{shown}` cannot be the name of a template"))
        .hint("use small letters, digits and `.`, `_`, `-`, with `/` and `:` between them"))
}

/// Reads `--template`.
pub(super) fn template_option(name: &str) -> Result<String> {
    known_name(name).map_err(|error| in_option("--template", error))
}
