//! Recordings: the options by which they are made and answered from, and the commands about them.

use std::path::PathBuf;

use belljar_core::{Error, ErrorCode, Matching, Record, Recording, RecordingName, Replay, Result, Rule};
use clap::{Args, Subcommand};

use super::sandbox::value;
use super::{in_option, wrong};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Recording")]
pub(crate) struct RecordingOptions {
    /// Write everything that goes through the door into a recording of this name, without secrets; what may go through is up to the
    /// network options
    #[arg(long, value_name = "NAME", conflicts_with = "replay")]
    pub(crate) record: Option<String>,
    /// Answer from this recording; nothing goes out
    #[arg(long, value_name = "NAME")]
    pub(crate) replay: Option<String>,
    /// The most bytes of a recording [default: 4g]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, requires = "record")]
    pub(crate) record_max: Option<String>,
    /// Leave the TLS of this host closed, so that only bytes are recorded of it; may be repeated
    #[arg(long, value_name = "HOST", requires = "record")]
    pub(crate) record_closed: Vec<String>,
    /// The value of this variable must not be in the recording, beside those whose names say that they are secret; may be repeated
    #[arg(long, value_name = "VARIABLE", requires = "record")]
    pub(crate) redact: Vec<String>,
    /// Nor must the value of this header, beside the usual ones; may be repeated
    #[arg(long, value_name = "HEADER", requires = "record")]
    pub(crate) redact_header: Vec<String>,
    /// By what requests are known again, beside method and host: path, path,query, path,body or path,query,body (the default)
    #[arg(long = "match", value_name = "WORDS", requires = "replay")]
    pub(crate) matching: Option<String>,
    /// A parameter of queries or a member of JSON bodies whose value does not count; may be repeated
    #[arg(long, value_name = "NAME", requires = "replay")]
    pub(crate) ignore: Vec<String>,
    /// Have answers take as long as they took
    #[arg(long, requires = "replay")]
    pub(crate) timing: bool,
}

impl RecordingOptions {
    /// What they say together.
    pub(crate) fn recording(&self) -> Result<Option<Recording>> {
        if let Some(name) = &self.record {
            let closed =
                |text: &String| text.parse::<Rule>().map_err(|error| wrong("--record-closed", error));
            return Ok(Some(Recording::Record(Record {
                name: name.parse().map_err(|error| in_option("--record", error))?,
                most: value("--record-max", self.record_max.as_deref())?.unwrap_or_else(Record::most),
                closed: self.record_closed.iter().map(closed).collect::<Result<_>>()?,
                secrets: self.redact.clone(),
                headers: self.redact_header.clone(),
            })));
        }
        let Some(name) = &self.replay else { return Ok(None) };
        let matching = self.matching.as_deref().map(str::parse::<Matching>).transpose();
        Ok(Some(Recording::Replay(Replay {
            name: name.parse().map_err(|error| in_option("--replay", error))?,
            matching: matching.map_err(|error| in_option("--match", error))?.unwrap_or_default(),
            ignore: self.ignore.clone(),
            timing: self.timing,
        })))
    }
}

/// Look at recordings of sandboxes' networks, pass them on and remove them
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_long_help = "\
Examples:
  belljar run --allow pypi --record install -- pip install requests
  belljar run --replay install -- pip install requests
  belljar recording show install"
)]
pub(crate) struct RecordingArgs {
    #[command(subcommand)]
    pub(crate) command: RecordingVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecordingVerb {
    /// List the recordings there are
    #[command(after_long_help = "Examples:\n  belljar recording ls\n  belljar recording ls --json")]
    Ls,
    /// Print what is in a recording, in the order in which it ended
    #[command(
        after_long_help = "Examples:\n  belljar recording show install\n  belljar recording show --json install"
    )]
    Show(RecordingShowArgs),
    /// Write a recording to a file: as it is, or as an HTTP archive for browsers and their tools
    #[command(
        after_long_help = "Examples:\n  belljar recording export install install.har\n  belljar recording export --format bjr install install.bjr"
    )]
    Export(RecordingExportArgs),
    /// Take a recording in that was exported as it is
    #[command(after_long_help = "Examples:\n  belljar recording import install.bjr install")]
    Import(RecordingImportArgs),
    /// Remove recordings
    #[command(after_long_help = "Examples:\n  belljar recording rm install")]
    Rm(RecordingRmArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RecordingShowArgs {
    /// The recording
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct RecordingExportArgs {
    /// The recording
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The file; `-` is standard output
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// har, an HTTP archive (the default), or bjr, the recording as it is
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,
}

/// In which form a recording is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Har,
    Own,
}

impl RecordingExportArgs {
    pub(crate) fn plan(&self) -> Result<(RecordingName, Format)> {
        let format = match self.format.as_deref() {
            None | Some("har") => Format::Har,
            Some("bjr") => Format::Own,
            Some(other) => {
                return Err(wrong("--format", format!("there is no format `{}`", other.escape_debug()))
                    .hint("choose har or bjr"));
            }
        };
        Ok((self.name.parse()?, format))
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecordingImportArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Its name [default: that of the file]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

impl RecordingImportArgs {
    pub(crate) fn name(&self) -> Result<RecordingName> {
        match &self.name {
            Some(name) => name.parse(),
            None => {
                let stem = self.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
                stem.parse().map_err(|_| {
                    let wrong = format!("`{}` does not tell a name", self.file.display());
                    Error::new(ErrorCode::InvalidArgument, wrong).hint("give one after the file")
                })
            }
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecordingRmArgs {
    /// The recordings
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}
