//! What a run found: numbers by key, tables for people, and what could not be measured.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::statistics::Samples;

/// Everything a run found. This is the JSON document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The version of Belljar.
    pub(crate) belljar: String,
    /// When, in UTC.
    pub(crate) taken: String,
    /// Where.
    pub(crate) machine: Machine,
    /// Whether the shorter form was run.
    pub(crate) quick: bool,
    /// The numbers; SPECIFICATION.md names them by key.
    pub(crate) values: BTreeMap<String, f64>,
    /// What could not be measured, and why.
    pub(crate) not_available: BTreeMap<String, String>,
    /// The numbers again, as tables.
    pub(crate) tables: Vec<Table>,
}

/// What the numbers depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The processors' name.
    pub(crate) processor: String,
    /// How many there are.
    pub(crate) processors: usize,
    /// Memory, in MiB.
    pub(crate) memory_mib: u64,
    /// Processes that wanted a processor during the last minute before the run; well above zero means a busy machine.
    pub(crate) load_before: f64,
}

/// Rows of text under headings. The first column is words, the others are numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    /// What it shows.
    pub(crate) title: String,
    /// The headings.
    pub(crate) columns: Vec<String>,
    /// The cells.
    pub(crate) rows: Vec<Vec<String>>,
    /// What to know when reading it.
    pub(crate) notes: Vec<String>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl Report {
    /// An empty report of this machine, now.
    pub(crate) fn new(quick: bool) -> Self {
        Self {
            belljar: env!("CARGO_PKG_VERSION").to_owned(),
            taken: utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            machine: Machine::here(),
            quick,
            values: BTreeMap::new(),
            not_available: BTreeMap::new(),
            tables: Vec::new(),
        }
    }

    /// Notes a number.
    pub(crate) fn set(&mut self, key: impl Into<String>, value: f64) {
        self.values.insert(key.into(), (value * 1e4).round() / 1e4);
    }

    /// Notes the median, the tail and the count of repeated measurements in milliseconds.
    pub(crate) fn set_times(&mut self, key: &str, samples: &Samples) {
        if let (Some(median), Some(p99)) = (samples.median(), samples.p99()) {
            self.set(format!("{key}.median_ms"), median);
            self.set(format!("{key}.p99_ms"), p99);
            self.set(format!("{key}.rounds"), samples.len() as f64);
        }
    }

    /// A number, if it was measured.
    pub(crate) fn get(&self, key: &str) -> Option<f64> {
        self.values.get(key).copied()
    }

    /// Notes that something could not be measured.
    pub(crate) fn lacks(&mut self, key: impl Into<String>, why: impl Into<String>) {
        self.not_available.insert(key.into(), why.into());
    }
}

impl Machine {
    fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let name = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: name.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: meminfo(&read("/proc/meminfo"), "MemTotal").unwrap_or(0) / 1024,
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

/// A field of `/proc/meminfo` or of a file like it, in KiB.
pub(crate) fn meminfo(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Seconds since 1970 as `2026-01-31 23:59 UTC`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", day + 1, rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(utc(1_735_689_600), "2025-01-01 00:00 UTC");
    }

    #[test]
    fn fields_of_meminfo() {
        let text = "MemTotal:       24682740 kB\nMemFree:        1 kB\nSlab:  77 kB\n";
        assert_eq!(meminfo(text, "Slab"), Some(77));
        assert_eq!(meminfo(text, "Mem"), None);
        assert_eq!(meminfo(text, "Swap"), None);
    }

    #[test]
    fn a_report_survives_json() {
        let mut report = Report::new(true);
        report.set("start.true.floor.median_ms", 2.0 / 3.0);
        report.lacks("start.podman", "not installed");
        let back: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(back.get("start.true.floor.median_ms"), Some(0.6667));
        assert_eq!(back.not_available["start.podman"], "not installed");
    }
}
