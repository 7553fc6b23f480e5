//! What the door takes of memory when many sandboxes hold connections through it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::{ExecEvent, ExecRequest, Sandbox};
use tokio::task::JoinSet;

use super::world::{World, hold};
use crate::args::Args;
use crate::bell::remove_all;
use crate::error::{BenchError, Result, at};
use crate::idle::raise_open_files;
use crate::print;
use crate::report::{Report, Table, meminfo};

/// How many make sandboxes at once.
const CALLERS: usize = 2;
/// How long a connection is held at most; its sandbox is removed before.
const HELD: Duration = Duration::from_secs(1200);

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let count = args.sandboxes.unwrap_or(if args.quick { 100 } else { 1000 }).max(1);
    raise_open_files();
    let supervisor = world.supervisor()?;
    let before = weigh(supervisor)?;
    eprintln!("door, memory: making {count} sandboxes");
    let sandboxes = hold_all(world, count).await?;
    let after = weigh(supervisor)?;
    let flows = connections(supervisor)?;
    eprintln!("door, memory: removing them");
    remove_all(sandboxes).await?;
    if world.supervisor()? != supervisor || flows < count {
        return Err(BenchError::Invalid(format!("of {count} connections the door holds {flows}")));
    }
    let mut table = Table::new(
        &format!("The door with {count} sandboxes, each with a connection through it"),
        &["process", "private KiB", "PSS KiB", "PSS before KiB", "PSS KiB each"],
    );
    let mut each = 0.0;
    for ((name, after), (_, before)) in after.iter().zip(&before) {
        report.set(format!("door.memory.{name}.private_kib"), after.private as f64);
        report.set(format!("door.memory.{name}.pss_kib"), after.pss as f64);
        let share = after.pss as f64 / count as f64;
        each += share;
        let numbers = [after.private as f64, after.pss as f64, before.pss as f64, share].map(Some);
        print::row(&mut table, name, &numbers);
    }
    report.set("door.memory.count", count as f64);
    report.set("door.memory.each_mib", each / 1024.0);
    table.notes.push("All that both processes take, what they take without any sandbox included.".into());
    report.tables.push(table);
    Ok(())
}

/// Makes sandboxes, and has each hold a connection.
async fn hold_all(world: &World, count: usize) -> Result<Vec<Arc<dyn Sandbox>>> {
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let share = count / CALLERS + usize::from(caller < count % CALLERS);
        let bell = world.bell.clone();
        let policy = super::world::policy()?;
        tasks.spawn(async move {
            let mut sandboxes = Vec::with_capacity(share);
            for _ in 0..share {
                let sandbox = bell.create_granted(belljar_core::Limits::default(), policy.clone()).await?;
                connect(&*sandbox).await?;
                sandboxes.push(sandbox);
            }
            Ok::<_, BenchError>(sandboxes)
        });
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done.map_err(|error| BenchError::Invalid(format!("a caller failed: {error}")))??);
    }
    Ok(all)
}

async fn connect(sandbox: &dyn Sandbox) -> Result<()> {
    await_word(sandbox, &["bash", "-c", &hold()], "held").await
}

/// Starts a command that goes on, and waits until it says this.
pub(super) async fn await_word(sandbox: &dyn Sandbox, words: &[&str], word: &str) -> Result<()> {
    let mut request = ExecRequest::argv(words.iter().copied());
    request.timeout = HELD;
    let holder = sandbox.execs()?.start(request).await?;
    loop {
        match holder.next().await? {
            Some(ExecEvent::Output { bytes, .. }) if bytes.starts_with(word.as_bytes()) => return Ok(()),
            Some(ExecEvent::Output { bytes, .. }) => {
                return Err(BenchError::Invalid(String::from_utf8_lossy(&bytes).into_owned()));
            }
            Some(ExecEvent::Finished { termination, .. }) => {
                return Err(BenchError::Invalid(format!("a connection was not held: {termination:?}")));
            }
            Some(_) => {}
            None => return Err(BenchError::Invalid("a connection was not held".into())),
        }
    }
}

/// What a process takes, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    private: u64,
    pub(super) pss: u64,
}

impl Weight {
    fn read(rollup: &str) -> Option<Self> {
        let field = |name: &str| meminfo(rollup, name);
        let private = field("Private_Clean")? + field("Private_Dirty")?;
        Some(Self { private, pss: field("Pss")? })
    }
}

/// What the processes of the door take, in this order: its supervisor, its worker, and the gateway if there is one.
pub(super) fn weigh(supervisor: u32) -> Result<Vec<(&'static str, Weight)>> {
    let weigh = |pid: u32| {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
        Weight::read(&text).ok_or_else(|| BenchError::Invalid(format!("{path} cannot be understood")))
    };
    let mut weights = vec![("supervisor", weigh(supervisor)?), ("worker", weigh(worker(supervisor)?)?)];
    if let Some(gateway) = child(supervisor, "door-gateway")? {
        weights.push(("gateway", weigh(gateway)?));
    }
    Ok(weights)
}

/// The process of the door that passes bytes on.
pub(super) fn worker(supervisor: u32) -> Result<u32> {
    child(supervisor, "door-worker")?.ok_or_else(|| BenchError::Invalid("the door has no worker".into()))
}

/// The child of the supervisor that is this part of the door.
fn child(supervisor: u32, part: &str) -> Result<Option<u32>> {
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(part.as_bytes())
    };
    Ok(children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it))
}

/// How many connections of sandboxes the worker has: besides the four sockets of each there are two for each of them.
fn connections(supervisor: u32) -> Result<usize> {
    let path = format!("/proc/{}/net/tcp", worker(supervisor)?);
    let table = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
    // Connections to the server, in the door's own network: remote port 80, established.
    let is_held = |line: &str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|remote| remote.ends_with(":0050")) && fields.next() == Some("01")
    };
    Ok(table.lines().filter(|line| is_held(line)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read() {
        let rollup =
            "Rss: 900 kB\nPss: 700 kB\nPss_Dirty: 3 kB\nPrivate_Clean: 20 kB\nPrivate_Dirty: 500 kB\n";
        assert_eq!(Weight::read(rollup), Some(Weight { private: 520, pss: 700 }));
        assert_eq!(Weight::read("Rss: 1 kB\n"), None);
    }
}
