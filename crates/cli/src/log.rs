//! Logging to standard error: off unless asked for, and every line names the sandbox and the execution it is about.

use std::fmt;

use belljar_core::{Error, ErrorCode, Result};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts logging at the level given by `--log`, or else by `BELLJAR_LOG`.
pub(crate) fn start(option: Option<&str>) -> Result<()> {
    let (name, level) = match (option, std::env::var("BELLJAR_LOG")) {
        (Some(level), _) => ("option `--log`", level.to_owned()),
        (None, Ok(level)) if !level.is_empty() => ("variable `BELLJAR_LOG`", level),
        _ => return Ok(()),
    };
    let filter = EnvFilter::try_new(&level).ok().filter(|_| is_level(&level)).ok_or_else(|| {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("{name}: `{}` is not a log level", level.escape_debug()),
        )
        .hint("use error, warn, info, debug or trace")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Where nothing can be written, nothing can be said about that either.
        .log_internal_errors(false)
        .fmt_fields(debug_fn(bracketed).delimited(" "))
        .event_format(Line)
        .init();
    Ok(())
}

/// A bare word must be a level; anything with `=` or `,` is a filter for those who know the modules.
fn is_level(text: &str) -> bool {
    text.contains(['=', ',']) || text.parse::<tracing_subscriber::filter::LevelFilter>().is_ok()
}

fn bracketed(writer: &mut Writer<'_>, field: &tracing::field::Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() == "message" {
        write!(writer, "{value:?}")
    } else {
        write!(writer, "[{field} {value:?}]")
    }
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{:<5} ", event.metadata().level().as_str().to_ascii_lowercase())?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                write!(writer, "{} ", fields.fields)?;
            }
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
