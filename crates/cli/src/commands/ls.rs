//! `belljar ls`: the sandboxes there are, or the files in one.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use belljar_core::{Entry, Error, ErrorCode, FileKind, SandboxInfo, UserName};

use super::Context;
use crate::args::{LsArgs, Place};
use crate::outcome::{Failure, Status};
use crate::print::Printer;
use crate::print::table::{moment, span, table};
use crate::wiring;

pub(crate) async fn ls(context: &Context, args: LsArgs) -> Result<Status, Failure> {
    match &args.place {
        Some(place) => files(context, place, &args.user).await,
        None => sandboxes(context, args.all).await,
    }
}

async fn sandboxes(context: &Context, all: bool) -> Result<Status, Failure> {
    let mut infos = wiring::lasting(context.home.clone()).await?.list().await?;
    infos.retain(|info| all || info.state.is_alive());
    // `inspect` tells them.
    infos.iter_mut().for_each(|info| info.stats = None);
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "sandboxes": infos }))?;
    } else if context.printer.quiet {
        infos.iter().try_for_each(|info| context.printer.out(&format!("{}\n", info.id)))?;
    } else {
        context.printer.out(&sandbox_table(&infos, now_ms(), context.printer))?;
    }
    Ok(Status::SUCCESS)
}

/// Labels in one cell of a table.
pub(super) fn label_list(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn sandbox_table(infos: &[SandboxInfo], now_ms: u64, printer: Printer) -> String {
    let row = |info: &SandboxInfo| {
        vec![
            info.id.to_string(),
            info.state.to_string(),
            span(Duration::from_millis(now_ms.saturating_sub(info.created_ms) / 1000 * 1000)),
            info.remaining.map_or_else(|| "-".to_owned(), span),
            printer.foreign(&info.spec.template).into_owned(),
            info.spec.limits.memory.to_string(),
            printer.foreign(&label_list(&info.spec.labels)).into_owned(),
        ]
    };
    let rows: Vec<_> = infos.iter().map(row).collect();
    table(&["ID", "STATE", "AGE", "LEFT", "TEMPLATE", "MEMORY", "LABELS"], &rows)
}

async fn files(context: &Context, place: &str, user: &str) -> Result<Status, Failure> {
    let user: UserName = user.parse()?;
    let Place::Inside(id, path) = Place::parse(place)? else {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("`{}` is not a place in a sandbox", place.escape_debug()),
        )
        .hint("write ID:PATH, such as bj-k3m9x2p4q7w8z:/home/user; without it, `belljar ls` lists sandboxes")
        .into());
    };
    let sandbox = context.open(&id).await?;
    let entries = sandbox.files()?.list(&path, user, 1).await?;
    if context.printer.json {
        context.printer.object(&serde_json::json!({ "entries": entries }))?;
    } else {
        context.printer.out(&file_table(&entries, context.printer))?;
    }
    Ok(Status::SUCCESS)
}

fn file_table(entries: &[Entry], printer: Printer) -> String {
    let row = |entry: &Entry| {
        let kind = match entry.kind {
            FileKind::File => '-',
            FileKind::Directory => 'd',
            FileKind::Symlink => 'l',
            FileKind::Other => '?',
        };
        let target = entry.target.as_ref().map_or(String::new(), |target| format!(" -> {target}"));
        let name = format!("{}{target}", entry.name);
        vec![
            format!("{kind}{}", permissions(entry.mode)),
            entry.size.to_string(),
            moment(entry.modified_ms),
            printer.foreign(&name).into_owned(),
        ]
    };
    table(&["MODE", "SIZE", "MODIFIED", "NAME"], &entries.iter().map(row).collect::<Vec<_>>())
}

fn permissions(mode: u32) -> String {
    (0..9).map(|bit| if mode & (0o400 >> bit) != 0 { ['r', 'w', 'x'][bit % 3] } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use belljar_core::{ProviderName, SandboxId, SandboxSpec, SandboxState};

    use super::*;

    #[test]
    fn sandboxes_in_columns() {
        let mut spec = SandboxSpec::default();
        spec.labels.insert("job".into(), "night\x1bly".into());
        let info = SandboxInfo {
            id: SandboxId::from_random([0; 16]),
            provider: ProviderName::Jail,
            state: SandboxState::Running,
            spec,
            created_ms: 1000,
            remaining: Some(Duration::from_secs(250)),
            stats: None,
            losses: Vec::new(),
        };
        let printer = Printer { to_terminal: true, ..Printer::default() };
        insta::assert_snapshot!(sandbox_table(&[info], 51_000, printer), @r"
        ID                STATE    AGE  LEFT  TEMPLATE  MEMORY  LABELS
        bj-aaaaaaaaaaaaa  running  50s  4m    host      2 GiB   job=night\x1bly
        ");
    }

    #[test]
    fn files_in_columns() {
        let entry = |name: &str, kind, mode, target: Option<&str>| Entry {
            name: name.into(),
            path: name.into(),
            kind,
            size: 12,
            mode,
            uid: 1000,
            gid: 1000,
            modified_ms: 0,
            target: target.map(str::to_owned),
        };
        let entries =
            [entry("a\nb", FileKind::File, 0o640, None), entry("l", FileKind::Symlink, 0o777, Some("/etc"))];
        let printer = Printer { to_terminal: true, ..Printer::default() };
        insta::assert_snapshot!(file_table(&entries, printer), @r"
        MODE        SIZE  MODIFIED          NAME
        -rw-r-----  12    1970-01-01 00:00  a\nb
        lrwxrwxrwx  12    1970-01-01 00:00  l -> /etc
        ");
    }
}
