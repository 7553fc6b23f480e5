//! What a sandbox had the gateway do, as it is written down in its directory: lines of JSON in a file that is put aside when it has
//! grown. Each file begins with what was counted before it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use belljar_core::{CALL_FILES, Call, CallTotals, SandboxStats};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

/// The most that is read of a file; ours are smaller.
const MAX_FILE: u64 = 16 << 20;

#[derive(Deserialize)]
struct Beginning {
    before: Before,
}

#[derive(Deserialize)]
struct Before {
    #[serde(default)]
    totals: CallTotals,
}

/// The calls that are kept, the oldest first, and what all came to, those included that are not kept any more.
pub(super) fn read(state_dir: &Path) -> io::Result<(Vec<Call>, CallTotals)> {
    let [newer, older] = CALL_FILES;
    // Opened in this order: one that is put aside meanwhile is found twice, not never.
    let newer = open(&state_dir.join(newer))?;
    let older = open(&state_dir.join(older))?;
    let mut calls: Vec<Call> = Vec::new();
    let mut totals = CallTotals::default();
    for file in [older, newer].into_iter().flatten() {
        for line in BufReader::new(file.take(MAX_FILE)).split(b'\n') {
            let line = line?;
            if let Ok(Beginning { before }) = serde_json::from_slice(&line) {
                totals = before.totals;
            } else if let Ok(call) = serde_json::from_slice::<Call>(&line) {
                totals.add(&call);
                if calls.last().is_none_or(|last| last.seq < call.seq) {
                    calls.push(call);
                }
            }
        }
    }
    Ok((calls, totals))
}

/// Adds what the sandbox had the gateway do, if anything.
pub(super) fn with_totals(stats: SandboxStats, state_dir: &Path) -> SandboxStats {
    let totals = read(state_dir).ok().map(|(_, totals)| totals);
    SandboxStats { gateway: totals.filter(|totals| !totals.is_empty()), ..stats }
}

/// `None` if there is no such file.
fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use belljar_core::ModelUsage;

    use super::*;

    fn call(seq: u64, refused: bool) -> Call {
        let usage = (!refused).then(|| ModelUsage { uncached: 10, output: 1, ..ModelUsage::default() });
        Call {
            seq,
            time_ms: 1,
            request_id: "r".into(),
            exec: None,
            token: None,
            operation: None,
            request: "POST /".into(),
            model: Some("small".into()),
            status: 200,
            error: None,
            refused,
            free: false,
            usage,
            is_final: true,
            nano_dollars: (!refused).then_some(5),
            counted_tokens: 11,
            counted_nano_dollars: 5,
            duration_us: 1,
        }
    }

    #[test]
    fn what_is_not_kept_any_more_is_counted() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(read(place.path()).unwrap(), (Vec::new(), CallTotals::default()));
        let line = |call: &Call| serde_json::to_string(call).unwrap();
        let before = CallTotals { calls: 7, nano_dollars: 100, ..CallTotals::default() };
        let beginning =
            format!("{{\"before\":{{\"seq\":7,\"spent\":{{}},\"totals\":{}}}}}", serde_json::json!(before));
        fs::write(
            place.path().join(CALL_FILES[0]),
            format!("{beginning}\n{}\nhalf a li\n{}\n", line(&call(8, false)), line(&call(9, true))),
        )
        .unwrap();
        fs::write(place.path().join(CALL_FILES[1]), format!("{}\n", line(&call(7, false)))).unwrap();
        let (calls, totals) = read(place.path()).unwrap();
        assert_eq!(calls.iter().map(|call| call.seq).collect::<Vec<_>>(), [7, 8, 9]);
        let tokens = ModelUsage { uncached: 10, output: 1, ..ModelUsage::default() };
        assert_eq!(totals, CallTotals { calls: 8, refused: 1, tokens, nano_dollars: 105, unknown: 0 });
    }
}
