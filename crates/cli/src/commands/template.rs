//! `belljar template` and `belljar snapshot`: what sandboxes start from.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use belljar_core::{Error, ErrorCode, Result, SandboxId, SandboxState};
use belljar_layers::{
    Bounds, Catalog, Change, Changed, Ground, Image, Kind, Listed, Named, Progress, Record, Settings, Stack,
    Times, changes, export, import,
};
use belljar_providers::jail::templates::{catalog, refusal};
use belljar_providers::template::{HOST, host};
use serde_json::{Value, json};

use super::Context;
use crate::args::{
    SnapshotArgs, TemplateDiffArgs, TemplateExportArgs, TemplateFileArgs, TemplateGcArgs, TemplateImportArgs,
    TemplateNameArgs, TemplateRmArgs, new_name,
};
use crate::interrupt::Interrupts;
use crate::outcome::{Failure, Status};
use crate::print::escape::escape;
use crate::print::table::{exact_moment, size, table};
use crate::wiring;

fn failed(error: io::Error) -> Error {
    Error::new(ErrorCode::Internal, format!("cannot use the templates: {error}"))
}

fn open(context: &Context) -> Result<Catalog> {
    catalog(&wiring::home(context.home.clone())?)
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no template `{}`", name.escape_debug()))
        .hint("`belljar template ls` lists those there are")
}

fn find(catalog: &Catalog, name: &str) -> Result<Record> {
    catalog.find(name).map_err(failed)?.ok_or_else(|| unknown(name))
}

/// Says which template there is now.
pub(super) fn tell_of(
    context: &Context,
    name: &str,
    named: &Named,
    record: &Record,
) -> Result<Status, Failure> {
    if context.printer.json {
        context.printer.object(&described(Some((name, named)), record))?;
    } else {
        let layers = record.layers.len();
        let words = format!("{name}  {}  {layers} layers, {}\n", named.digest, size(Some(record.bytes())));
        context.printer.out(&words)?;
    }
    Ok(Status::SUCCESS)
}

fn described(named: Option<(&str, &Named)>, record: &Record) -> Value {
    json!({
        "name": named.map(|(name, _)| name),
        "digest": record.digest(),
        "ground": record.ground,
        "layers": record.layers,
        "bytes": record.bytes(),
        "settings": record.settings,
        "made_ms": named.map(|(_, named)| named.made_ms),
        "origin": named.map(|(_, named)| &named.origin),
    })
}

pub(crate) async fn take_in(context: &Context, args: TemplateImportArgs) -> Result<Status, Failure> {
    let name = new_name(&args.name)?;
    let (catalog, printer) = (open(context)?, context.printer);
    let unpacker = wiring::unpacker()?;
    let work = move || -> Result<(String, Named, Record)> {
        let held = catalog.store().hold().map_err(failed)?;
        let told = |progress| {
            let Progress::Layer(number, all) = progress;
            printer.notice(&format!("layer {number} of {all}"));
        };
        let image = read(&args.file, |archive| {
            import(catalog.store(), &held, archive, (&*unpacker, Bounds::default()), told)
                .map_err(|refused| refusal(&refused))
        })?;
        let record = record_of(image);
        let origin = format!("imported from {}", origin(&args.file));
        let named = catalog.name(&held, &name, &record, &origin).map_err(failed)?;
        Ok((name, named, record))
    };
    let (name, named, record) = wiring::aside(work).await?;
    tell_of(context, &name, &named, &record)
}

pub(crate) async fn give_out(context: &Context, args: TemplateExportArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let (name, file) = (args.name.clone(), args.file.clone());
    let work = move || -> Result<Record> {
        let _held = catalog.store().hold().map_err(failed)?;
        let record = find(&catalog, &name)?;
        let unwritable = |error: io::Error| {
            Error::new(ErrorCode::InvalidArgument, format!("cannot write {}: {error}", file.display()))
        };
        if file == Path::new("-") {
            export(catalog.store(), &record, io::stdout().lock()).map_err(unwritable)?;
            return Ok(record);
        }
        // Whole or not at all.
        let directory =
            file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(directory).map_err(unwritable)?;
        export(catalog.store(), &record, io::BufWriter::new(&mut new)).map_err(unwritable)?;
        new.persist(&file).map_err(|error| unwritable(error.error))?;
        Ok(record)
    };
    let record = wiring::aside(work).await?;
    if context.printer.json && args.file != Path::new("-") {
        context
            .printer
            .object(&json!({ "name": args.name, "digest": record.digest(), "bytes": record.bytes() }))?;
    }
    Ok(Status::SUCCESS)
}

fn origin(file: &Path) -> String {
    match file.file_name() {
        _ if file == Path::new("-") => "standard input".to_owned(),
        Some(name) => name.to_string_lossy().escape_debug().to_string(),
        None => file.display().to_string(),
    }
}

fn read<T>(file: &Path, work: impl FnOnce(&mut dyn BufRead) -> Result<T>) -> Result<T> {
    if file == Path::new("-") {
        return work(&mut BufReader::with_capacity(128 << 10, io::stdin().lock()));
    }
    let opened = File::open(file).map_err(|error| {
        Error::new(ErrorCode::InvalidArgument, format!("cannot read {}: {error}", file.display()))
    })?;
    work(&mut BufReader::with_capacity(128 << 10, opened))
}

/// The template that an image is.
fn record_of(image: Image) -> Record {
    if let Some((ground, settings)) = image.own {
        return Record { ground, layers: image.layers, settings };
    }
    let config = image.config;
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let settings = Settings {
        env: config.env.iter().filter_map(pair).collect(),
        user: given(config.user),
        working_directory: given(config.working_dir),
        entrypoint: config.entrypoint,
        command: config.cmd,
        ..Settings::default()
    };
    Record { ground: Ground::Nothing, layers: image.layers, settings }
}

pub(crate) fn ls(context: &Context) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let names = catalog.names().map_err(failed)?;
    let printer = context.printer;
    let mut all = Vec::new();
    for (name, named) in &names {
        if let Some(record) = catalog.get(&named.digest).map_err(failed)? {
            all.push((name, named, record));
        }
    }
    if printer.json {
        let all: Vec<_> =
            all.iter().map(|(name, named, record)| described(Some((name, named)), record)).collect();
        printer.object(&json!({ "templates": all }))?;
        return Ok(Status::SUCCESS);
    }
    let host =
        vec!["host".to_owned(), String::new(), String::new(), String::new(), "this machine".to_owned()];
    let rows = all.iter().map(|(name, named, record)| {
        vec![
            (*name).clone(),
            named.digest.hex()[..12].to_owned(),
            exact_moment(i64::try_from(named.made_ms).unwrap_or(i64::MAX)),
            size(Some(record.bytes())),
            escape(&named.origin).into_owned(),
        ]
    });
    let rows: Vec<_> = std::iter::once(host).chain(rows).collect();
    printer.out(&table(&["NAME", "DIGEST", "MADE", "SIZE", "FROM"], &rows))?;
    Ok(Status::SUCCESS)
}

pub(crate) fn inspect(context: &Context, args: &TemplateNameArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let record = find(&catalog, &args.name)?;
    let named = catalog.named(&args.name).map_err(failed)?;
    let described = described(named.as_ref().map(|named| (args.name.as_str(), named)), &record);
    if context.printer.json {
        context.printer.object(&described)?;
    } else {
        let text = serde_json::to_string_pretty(&described).unwrap_or_default();
        context.printer.out(&format!("{text}\n"))?;
    }
    Ok(Status::SUCCESS)
}

/// The layers of a template, as a sandbox would see them.
fn stack(catalog: &Catalog, name: &str) -> Result<Stack> {
    catalog.stack(&find(catalog, name)?, None).map_err(failed)
}

fn no_file(args: &TemplateFileArgs) -> Failure {
    let path = args.path.display().to_string();
    let wrong = format!("`{}` has no `{}` in its layers", args.name, path.escape_debug());
    Error::new(ErrorCode::NotFound, wrong).hint("`belljar template files NAME` lists what there is").into()
}

pub(crate) fn files(context: &Context, args: &TemplateFileArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let _held = catalog.store().hold().map_err(failed)?;
    let listed =
        stack(&catalog, &args.name)?.list(&args.path).map_err(failed)?.ok_or_else(|| no_file(args))?;
    let kind = |kind| match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Link => "link",
    };
    let path = |listed: &Listed| format!("/{}", listed.path.display());
    if context.printer.json {
        let one = |listed: &Listed| {
            let target = listed.target.as_ref().map(|target| target.to_string_lossy());
            json!({ "path": path(listed), "kind": kind(listed.kind), "mode": listed.mode, "uid": listed.uid,
                "gid": listed.gid, "size": listed.size, "target": target })
        };
        context.printer.object(&json!({ "files": listed.iter().map(one).collect::<Vec<_>>() }))?;
        return Ok(Status::SUCCESS);
    }
    let rows: Vec<_> = listed
        .iter()
        .map(|listed| {
            let target = listed
                .target
                .as_ref()
                .map_or(String::new(), |target| format!(" -> {}", target.to_string_lossy()));
            vec![
                kind(listed.kind).to_owned(),
                format!("{:o}", listed.mode),
                format!("{}:{}", listed.uid, listed.gid),
                listed.size.to_string(),
                escape(&format!("{}{target}", path(listed))).into_owned(),
            ]
        })
        .collect();
    context.printer.out(&table(&["KIND", "MODE", "OWNER", "SIZE", "PATH"], &rows))?;
    Ok(Status::SUCCESS)
}

pub(crate) fn cat(context: &Context, args: &TemplateFileArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let _held = catalog.store().hold().map_err(failed)?;
    let mut file =
        stack(&catalog, &args.name)?.open(&args.path).map_err(failed)?.ok_or_else(|| no_file(args))?;
    match io::copy(&mut file, &mut io::stdout().lock()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error).into()),
        _ => Ok(Status::SUCCESS),
    }
}

pub(crate) fn diff(context: &Context, args: &TemplateDiffArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let _held = catalog.store().hold().map_err(failed)?;
    let record = |name: &str| if name == HOST { Ok(Record::host()) } else { find(&catalog, name) };
    let (first, second) = (record(&args.first)?, record(&args.second)?);
    let ground = [&first, &second].iter().any(|record| record.ground == Ground::Host).then(|| {
        let home = wiring::home(context.home.clone())?;
        host(&home.templates()).map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))
    });
    let ground = ground.transpose()?.map(|template| template.root);
    let changed =
        changes(catalog.store(), &first.layers, &second.layers, ground.as_deref()).map_err(failed)?;
    let path = |changed: &Changed| format!("/{}", changed.path.display());
    if context.printer.json {
        let word = |change| match change {
            Change::Added => "added",
            Change::Modified => "modified",
            Change::Removed => "removed",
        };
        let one = |changed: &Changed| json!({ "path": path(changed), "change": word(changed.change) });
        context.printer.object(&json!({ "changes": changed.iter().map(one).collect::<Vec<_>>() }))?;
        return Ok(Status::SUCCESS);
    }
    for changed in &changed {
        let letter = match changed.change {
            Change::Added => 'A',
            Change::Modified => 'M',
            Change::Removed => 'D',
        };
        context.printer.out(&format!("{letter} {}\n", escape(&path(changed))))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) fn rm(context: &Context, args: &TemplateRmArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let missing = |name: &&String| !matches!(catalog.named(name), Ok(Some(_)));
    if let Some(name) = args.names.iter().find(missing) {
        return Err(unknown(name).into());
    }
    for name in &args.names {
        catalog.forget(name).map_err(failed)?;
    }
    if context.printer.json {
        context.printer.object(&json!({ "removed": args.names }))?;
    } else {
        args.names.iter().try_for_each(|name| context.printer.out(&format!("{name}\n")))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) fn verify(context: &Context, args: &TemplateNameArgs) -> Result<Status, Failure> {
    let catalog = open(context)?;
    let record = find(&catalog, &args.name)?;
    let _held = catalog.store().hold().map_err(failed)?;
    for layer in &record.layers {
        if !catalog.store().verify(&layer.digest).map_err(failed)? {
            let wrong = format!("layer {} is not what it was", layer.digest);
            return Err(Error::new(ErrorCode::Internal, wrong)
                .hint("somebody changed files in the data directory; remove the template and make it again")
                .into());
        }
    }
    if context.printer.json {
        context
            .printer
            .object(&json!({ "digest": record.digest(), "layers": record.layers.len(), "good": true }))?;
    } else {
        context.printer.out(&format!(
            "{}: all {} layers are what they were\n",
            args.name,
            record.layers.len()
        ))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) async fn gc(context: &Context, args: TemplateGcArgs) -> Result<Status, Failure> {
    let jail = wiring::own_jail(context.home.clone())?;
    let collected = jail.collect(args.unused()?).await?;
    let bytes: u64 = collected.layers.iter().map(|layer| layer.bytes).sum();
    if context.printer.json {
        let layers: Vec<_> = collected.layers.iter().map(|layer| layer.digest).collect();
        context.printer.object(&json!({ "layers": layers, "bytes": bytes, "steps": collected.outcomes }))?;
    } else {
        let words = format!("removed {} layers, {}\n", collected.layers.len(), size(Some(bytes)));
        context.printer.out(&words)?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) async fn snapshot(context: &Context, args: SnapshotArgs) -> Result<Status, Failure> {
    let name = new_name(&args.name)?;
    let id: SandboxId = args.id.parse()?;
    let sandbox = context.open(&id).await?;
    let control = sandbox.control()?;
    let was_running = control.info().await?.state == SandboxState::Running;
    // Whoever interrupts it does not leave the sandbox standing still.
    let mut interrupts = Interrupts::new()?;
    if was_running {
        control.pause().await?;
    }
    let kept = interrupts.guard(keep(context, &id, &name)).await;
    if was_running {
        control.resume().await?;
    }
    let (named, record) = kept?;
    tell_of(context, &name, &named, &record)
}

async fn keep(context: &Context, id: &SandboxId, name: &str) -> Result<(Named, Record)> {
    let jail = wiring::own_jail(context.home.clone())?;
    let catalog = open(context)?;
    let (record, captured, held) = jail.capture(id, Times::Kept).await?;
    if captured.left_out > 0 {
        let words = format!("{} pipes, sockets and devices were left out", captured.left_out);
        context.printer.notice(&words);
    }
    let named = catalog.name(&held, name, &record, &format!("snapshot of {id}")).map_err(failed)?;
    Ok((named, record))
}
