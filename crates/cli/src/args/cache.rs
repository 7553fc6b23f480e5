//! The commands about what is kept of package registries.

use belljar_core::{ByteSize, Result};
use clap::{Args, Subcommand};

use super::sandbox::value;

/// Look at the files of package registries that are kept, and remove them
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  belljar run --allow pypi --cache pypi -- pip install requests
  belljar cache ls
  belljar cache limit 20g"
)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: CacheVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheVerb {
    /// List the files that are kept
    #[command(after_long_help = "Examples:\n  belljar cache ls\n  belljar cache ls --json")]
    Ls,
    /// Remove files, so that the next who needs them fetches them
    #[command(after_long_help = "Examples:\n  belljar cache rm numpy\n  belljar cache rm --all")]
    Rm(CacheRmArgs),
    /// Print how much is kept at most, or change it
    #[command(after_long_help = "Examples:\n  belljar cache limit\n  belljar cache limit 20g")]
    Limit(CacheLimitArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CacheRmArgs {
    /// Words in the addresses of the files
    #[arg(value_name = "WORD", required_unless_present = "all")]
    pub(crate) words: Vec<String>,
    /// Remove all of them
    #[arg(long, conflicts_with = "words")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CacheLimitArgs {
    /// How much, such as 500m or 20g; what was not asked for the longest goes first
    #[arg(value_name = "SIZE")]
    pub(crate) size: Option<String>,
}

impl CacheLimitArgs {
    pub(crate) fn size(&self) -> Result<Option<ByteSize>> {
        value("SIZE", self.size.as_deref())
    }
}
