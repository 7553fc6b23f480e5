//! `belljar recording`: recordings of sandboxes' networks.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use belljar_core::{Error, ErrorCode, RecordingName};
use belljar_network::recording::{Reader, Summary, What, har, shelf};
use belljar_providers::home::Home;
use serde_json::json;

use super::Context;
use crate::args::{Format, RecordingExportArgs, RecordingImportArgs, RecordingRmArgs, RecordingShowArgs};
use crate::outcome::{Failure, Status};
use crate::print::escape::escape;
use crate::print::table::{exact_moment, size, table};

pub(crate) fn ls(context: &Context) -> Result<Status, Failure> {
    let home = Home::open(context.home.clone())?;
    let all = shelf::list(home.path())
        .map_err(|error| Error::new(ErrorCode::Internal, format!("cannot list recordings: {error}")))?;
    let printer = context.printer;
    if printer.json {
        let all: Vec<_> = all
            .iter()
            .map(|kept| json!({ "name": kept.name, "bytes": kept.bytes, "changed_ms": kept.changed_ms }))
            .collect();
        printer.object(&json!({ "recordings": all }))?;
    } else {
        let rows: Vec<_> = all
            .iter()
            .map(|kept| vec![kept.name.to_string(), size(Some(kept.bytes)), exact_moment(kept.changed_ms)])
            .collect();
        printer.out(&table(&["NAME", "SIZE", "CHANGED"], &rows))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) fn show(context: &Context, args: &RecordingShowArgs) -> Result<Status, Failure> {
    let name: RecordingName = args.name.parse()?;
    let home = Home::open(context.home.clone())?;
    let reader = shelf::open(home.path(), &name)?;
    let printer = context.printer;
    if printer.json {
        printer.object(&json!({ "name": name, "meta": reader.meta(), "entries": reader.entries() }))?;
        return Ok(Status::SUCCESS);
    }
    let rows: Vec<_> = reader.entries().iter().map(row).collect();
    printer.out(&table(&["TIME", "KIND", "STATUS", "SENT", "RECEIVED", "WHAT"], &rows))?;
    if reader.entries().iter().any(|entry| entry.kind == What::Full) {
        printer.complaint("there was no room for more: `--record-max` makes some");
    }
    Ok(Status::SUCCESS)
}

fn row(entry: &Summary) -> Vec<String> {
    let what = match entry.kind {
        What::Request | What::Stream if !entry.method.is_empty() => {
            let scheme = if entry.tls { "https" } else { "http" };
            format!("{} {scheme}://{}:{}{}", entry.method, entry.host, entry.port, entry.target)
        }
        What::Stream => format!("{}:{}", entry.host, entry.port),
        _ => entry.host.clone(),
    };
    let status = match entry.kind {
        What::Request => entry.status.to_string(),
        What::Lookup if entry.status == 0 => "unknown".to_owned(),
        _ => "-".to_owned(),
    };
    vec![
        exact_moment(i64::try_from(entry.at_ms).unwrap_or(i64::MAX)),
        entry.kind.as_str().to_owned(),
        status,
        size(Some(entry.sent)),
        size(Some(entry.received)),
        // One entry is one line, wherever it is printed.
        escape(&what).into_owned(),
    ]
}

pub(crate) fn export(context: &Context, args: &RecordingExportArgs) -> Result<Status, Failure> {
    let (name, format) = args.plan()?;
    let home = Home::open(context.home.clone())?;
    let reader = shelf::open(home.path(), &name)?;
    let unwritable = |error: io::Error| {
        Error::new(ErrorCode::Internal, format!("cannot write {}: {error}", args.file.display()))
    };
    if args.file.as_os_str() == "-" {
        write(&reader, &home, (&name, format), &mut io::stdout().lock()).map_err(unwritable)?;
        return Ok(Status::SUCCESS);
    }
    let own = std::fs::metadata(shelf::path(home.path(), &name)).map_err(unwritable)?;
    if std::fs::metadata(&args.file).is_ok_and(|file| (file.dev(), file.ino()) == (own.dev(), own.ino())) {
        let wrong = format!("{} is the recording itself", args.file.display());
        return Err(Error::new(ErrorCode::InvalidArgument, wrong).hint("name another file").into());
    }
    let written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&args.file).and_then(
            |file| {
                let mut file = BufWriter::new(file);
                write(&reader, &home, (&name, format), &mut file)?;
                file.flush()
            },
        );
    written.map_err(unwritable)?;
    Ok(Status::SUCCESS)
}

fn write(
    reader: &Reader,
    home: &Home,
    (name, format): (&RecordingName, Format),
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Har => har(reader, out),
        Format::Own => io::copy(&mut File::open(shelf::path(home.path(), name))?, out).map(drop),
    }
}

pub(crate) fn import(context: &Context, args: &RecordingImportArgs) -> Result<Status, Failure> {
    let name = args.name()?;
    let home = Home::open(context.home.clone())?;
    let unreadable = |error: io::Error| {
        Error::new(ErrorCode::InvalidArgument, format!("cannot take {} in: {error}", args.file.display()))
    };
    let mut file = File::open(&args.file).map_err(unreadable)?;
    Reader::new(file.try_clone().map_err(unreadable)?).map_err(unreadable)?;
    shelf::import(home.path(), &name, &mut file)?;
    if context.printer.json {
        context.printer.object(&json!({ "name": name }))?;
    } else {
        context.printer.out(&format!("{name}\n"))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) fn rm(context: &Context, args: &RecordingRmArgs) -> Result<Status, Failure> {
    let names = args.names.iter().map(|name| name.parse()).collect::<Result<Vec<RecordingName>, _>>()?;
    let home = Home::open(context.home.clone())?;
    for name in &names {
        shelf::remove(home.path(), name)?;
    }
    let printer = context.printer;
    if printer.json {
        printer.object(&json!({ "removed": names }))?;
    } else {
        printer.out(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    }
    Ok(Status::SUCCESS)
}
