//! `belljar cache`: what is kept of package registries.

use std::io;

use belljar_core::{ByteSize, Error, ErrorCode};
use belljar_network::cache::{Kept, Store};
use belljar_providers::home::Home;
use serde_json::json;

use super::Context;
use crate::args::{CacheLimitArgs, CacheRmArgs};
use crate::outcome::{Failure, Status};
use crate::print::escape::escape;
use crate::print::table::{exact_moment, size, table};

fn open(context: &Context) -> Result<Store, Failure> {
    Ok(Store::of(Home::open(context.home.clone())?.path()))
}

fn failed(error: io::Error) -> Error {
    Error::new(ErrorCode::Internal, format!("cannot use the cache: {error}"))
}

pub(crate) fn ls(context: &Context) -> Result<Status, Failure> {
    let store = open(context)?;
    let all = store.list().map_err(failed)?;
    let printer = context.printer;
    let sum: u64 = all.iter().map(|kept| kept.bytes).sum();
    if printer.json {
        let files: Vec<_> = all.iter().map(described).collect();
        printer.object(&json!({ "files": files, "bytes": sum, "limit": store.limit() }))?;
        return Ok(Status::SUCCESS);
    }
    let rows: Vec<_> = all
        .iter()
        .map(|kept| {
            vec![
                exact_moment(kept.used_ms),
                size(Some(kept.bytes)),
                if kept.private { "private" } else { "public" }.to_owned(),
                escape(&kept.url).into_owned(),
            ]
        })
        .collect();
    printer.out(&table(&["USED", "SIZE", "FOR", "FILE"], &rows))?;
    Ok(Status::SUCCESS)
}

fn described(kept: &Kept) -> serde_json::Value {
    json!({
        "url": kept.url,
        "digest": kept.digest,
        "private": kept.private,
        "bytes": kept.bytes,
        "used_ms": kept.used_ms,
    })
}

pub(crate) fn rm(context: &Context, args: &CacheRmArgs) -> Result<Status, Failure> {
    let store = open(context)?;
    let all = store.list().map_err(failed)?;
    let is_meant = |kept: &&Kept| args.all || args.words.iter().any(|word| kept.url.contains(word));
    let meant: Vec<&Kept> = all.iter().filter(is_meant).collect();
    if let Some(word) = args.words.iter().find(|word| !all.iter().any(|kept| kept.url.contains(*word))) {
        let wrong = format!("nothing is kept from an address with `{}` in it", word.escape_debug());
        return Err(Error::new(ErrorCode::NotFound, wrong)
            .hint("`belljar cache ls` lists all there is")
            .into());
    }
    for kept in &meant {
        store.remove(kept).map_err(failed)?;
    }
    if args.all {
        store.clear().map_err(failed)?;
    }
    let printer = context.printer;
    let bytes: u64 = meant.iter().map(|kept| kept.bytes).sum();
    if printer.json {
        printer.object(&json!({ "removed": meant.len(), "bytes": bytes }))?;
    } else {
        printer.out(&format!("removed {} files, {}\n", meant.len(), size(Some(bytes))))?;
    }
    Ok(Status::SUCCESS)
}

pub(crate) fn limit(context: &Context, args: &CacheLimitArgs) -> Result<Status, Failure> {
    let wanted = args.size()?;
    let store = open(context)?;
    if let Some(ByteSize(most)) = wanted {
        store.set_limit(most).map_err(failed)?;
    }
    let printer = context.printer;
    if printer.json {
        printer.object(&json!({ "limit": store.limit() }))?;
    } else {
        printer.out(&format!("{}\n", size(Some(store.limit()))))?;
    }
    Ok(Status::SUCCESS)
}
