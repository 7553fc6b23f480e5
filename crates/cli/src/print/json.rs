//! The objects that `--json` prints. Scripts rely on them; docs/cli.md lists every field.

use std::time::Duration;

use belljar_core::{CallTotals, Denial, Error, ExecResult, Output, SandboxId, SandboxStats, Usage};
use serde::Serialize;
use serde_json::Value;

use crate::outcome::Failure;
use crate::print::escape::escape_json;

/// How a command went.
#[derive(Debug, Serialize)]
pub(crate) struct Execution<'a> {
    exit_code: Option<i32>,
    termination: &'static str,
    signal: Option<i32>,
    stdout: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    truncated: bool,
    stdout_gap: u64,
    stderr_gap: u64,
    duration_ms: f64,
    start_ms: f64,
    usage: Figures,
    oom_kills: Option<u64>,
    denied: &'a [Denial],
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<Value>,
    sandbox_id: &'a SandboxId,
}

/// What an execution used.
#[derive(Debug, Serialize)]
struct Figures {
    cpu_ms: Option<u64>,
    peak_memory_bytes: Option<u64>,
    read_bytes: Option<u64>,
    write_bytes: Option<u64>,
    processes: Option<u64>,
}

impl From<Usage> for Figures {
    fn from(usage: Usage) -> Self {
        let Usage { cpu_us, peak_memory_bytes, read_bytes, write_bytes, processes } = usage;
        // Something is never told as nothing.
        let cpu_ms = cpu_us.map(|us| us.div_ceil(1000));
        Self { cpu_ms, peak_memory_bytes, read_bytes, write_bytes, processes }
    }
}

/// What calls came to, with their cost in dollars as well.
pub(crate) fn gateway(totals: &CallTotals) -> Value {
    let mut object = serde_json::json!(totals);
    object["dollars"] = (totals.nano_dollars as f64 / 1e9).into();
    object
}

/// What a sandbox uses, with processor time in milliseconds.
pub(crate) fn stats(stats: &SandboxStats) -> Value {
    let mut object = serde_json::json!(stats);
    if let Value::Object(fields) = &mut object {
        for (name, ms, us) in
            [("cpu_us", "cpu_ms", stats.cpu_us), ("besides_cpu_us", "besides_cpu_ms", stats.besides_cpu_us)]
        {
            fields.remove(name);
            fields.insert(ms.into(), us.map(|us| us / 1000).into());
        }
        if let Some(totals) = &stats.gateway {
            fields.insert("gateway".into(), gateway(totals));
        }
    }
    object
}

impl<'a> Execution<'a> {
    /// Describes a result; `launch` is the time it took to make the sandbox, where that was part of it.
    pub(crate) fn new(result: &'a ExecResult, launch: Duration, sandbox_id: &'a SandboxId) -> Self {
        let (stdout, stdout_base64) = text(&result.stdout);
        let (stderr, stderr_base64) = text(&result.stderr);
        Self {
            exit_code: result.termination.exit_code(),
            termination: result.termination.as_str(),
            signal: result.termination.signal(),
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            truncated: result.stdout.gap > 0 || result.stderr.gap > 0,
            stdout_gap: result.stdout.gap,
            stderr_gap: result.stderr.gap,
            duration_ms: milliseconds(result.duration),
            start_ms: milliseconds(launch + result.start),
            usage: Figures::from(result.usage),
            oom_kills: result.oom_kills,
            denied: &result.denied,
            gateway: None,
            sandbox_id,
        }
    }

    /// The same with what it had the gateway do, if anything.
    pub(crate) fn with_gateway(self, totals: Option<CallTotals>) -> Self {
        Self { gateway: totals.as_ref().map(gateway), ..self }
    }
}

/// One line for any object.
pub(crate) fn line(object: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(object)
        .map_err(|error| Failure::internal(format!("cannot write JSON: {error}")))?;
    Ok(escape_json(&text).into_owned() + "\n")
}

/// An error as an object; `hint` is null when there is none.
pub(crate) fn error(error: &Error) -> Value {
    let mut object = serde_json::json!({ "code": error.code, "message": error.message, "hint": error.hint });
    if let Some(after) = error.retry_after_ms {
        object["retry_after_ms"] = after.into();
    }
    object
}

/// Milliseconds with three decimals.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// The kept bytes as text and, where that loses something, as base64 too.
fn text(output: &Output) -> (String, Option<String>) {
    match String::from_utf8(output.to_bytes()) {
        Ok(text) => (text, None),
        Err(error) => {
            // The mark at a gap is for readers of the text.
            let exact = [output.head.as_slice(), output.tail.as_slice()].concat();
            (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(base64(&exact)))
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for piece in bytes.chunks(3) {
        let byte = |index: usize| u32::from(piece.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= piece.len() { letter as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use belljar_core::{ExecId, Termination};

    use super::*;

    fn result(stdout: &[u8], gap: u64, termination: Termination) -> ExecResult {
        ExecResult {
            exec: ExecId(1),
            termination,
            stdout: Output { head: stdout.to_vec(), gap, tail: Vec::new() },
            stderr: Output::default(),
            start: Duration::from_micros(1500),
            duration: Duration::from_millis(20),
            usage: Usage { cpu_us: Some(2001), ..Usage::default() },
            oom_kills: Some(0),
            denied: Vec::new(),
        }
    }

    fn object(result: &ExecResult) -> Value {
        let id = SandboxId::from_random([0; 16]);
        serde_json::to_value(Execution::new(result, Duration::from_millis(5), &id)).unwrap()
    }

    #[test]
    fn the_documented_fields_are_there_and_unknown_figures_are_null() {
        let object = object(&result(b"42\n", 0, Termination::Exited { code: 0 }));
        let expected = serde_json::json!({
            "exit_code": 0, "termination": "exited", "signal": null, "stdout": "42\n", "stderr": "",
            "truncated": false, "stdout_gap": 0, "stderr_gap": 0, "duration_ms": 20.0, "start_ms": 6.5,
            "usage": {
                "cpu_ms": 3, "peak_memory_bytes": null, "read_bytes": null, "write_bytes": null, "processes": null
            },
            "oom_kills": 0, "denied": [], "sandbox_id": "bj-aaaaaaaaaaaaa",
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn processor_time_of_sandboxes_is_told_in_milliseconds() {
        let object = stats(&SandboxStats { cpu_us: Some(12_345), executions: 2, ..SandboxStats::default() });
        assert_eq!((&object["cpu_ms"], &object["executions"]), (&Value::from(12), &Value::from(2)));
        assert_eq!(object["besides_cpu_ms"], Value::Null, "unknown is unknown");
        assert!(object.get("cpu_us").is_none() && object.get("besides_cpu_us").is_none());
    }

    #[test]
    fn exit_code_is_null_unless_the_command_exited_by_itself() {
        for (termination, word, signal) in [
            (Termination::Signaled { signal: 9 }, "signaled", Value::from(9)),
            (Termination::TimedOut, "timed_out", Value::Null),
            (Termination::OutOfMemory, "out_of_memory", Value::Null),
            (Termination::TooManyLocks, "too_many_locks", Value::Null),
            (Termination::Killed, "killed", Value::Null),
            (Termination::Lost, "lost", Value::Null),
        ] {
            let object = object(&result(b"", 0, termination));
            assert_eq!(object["exit_code"], Value::Null, "{word}");
            assert_eq!(object["termination"], word);
            assert_eq!(object["signal"], signal);
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_kept_whole() {
        let object = object(&result(b"a\xff\x00b", 7, Termination::Exited { code: 0 }));
        assert_eq!(object["truncated"], true);
        assert_eq!(object["stdout_gap"], 7);
        assert!(object["stdout"].as_str().unwrap().starts_with("a\u{fffd}\0b"));
        assert!(object["stdout_base64"].as_str().unwrap().starts_with("Yf8AY"));
        assert!(object.get("stderr_base64").is_none());
    }

    #[test]
    fn base64_pads() {
        let cases: [(&[u8], &str); 4] = [(b"", ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes), text);
        }
    }
}
