//! How much a sandbox may use, and the sizes, counts and spans that people type.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
const TIB: u64 = 1024 * GIB;

/// What was wrong with a size, count or span; the text says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not of the expected form.
    #[error("`{text}` is not {expected}")]
    Form {
        /// What was given, escaped.
        text: String,
        /// What was expected, with an example.
        expected: &'static str,
    },
    /// Of the right form but outside the bounds.
    #[error("`{text}` is out of range: {bounds}")]
    Range {
        /// What was given, escaped.
        text: String,
        /// The bounds, in words.
        bounds: &'static str,
    },
}

fn form(text: &str, expected: &'static str) -> ParseError {
    ParseError::Form { text: text.escape_debug().to_string(), expected }
}

fn range(text: &str, bounds: &'static str) -> ParseError {
    ParseError::Range { text: text.escape_debug().to_string(), bounds }
}

/// Splits `2.5g` into its digits and its unit.
fn number_and_unit<'a>(text: &'a str, expected: &'static str) -> Result<(f64, &'a str), ParseError> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = number.parse().map_err(|_| form(text, expected))?;
    Ok((number, unit.trim_start()))
}

/// A number of bytes. Units are binary, as in docker: `2g`, `2gb`, `2GiB` and `2048m` are the same.
///
/// ```
/// # use belljar_core::ByteSize;
/// assert_eq!("2g".parse::<ByteSize>().unwrap(), "2048MiB".parse().unwrap());
/// assert!("-1".parse::<ByteSize>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// This many mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count * MIB)
    }

    /// This many gibibytes.
    pub const fn gib(count: u64) -> Self {
        Self(count * GIB)
    }
}

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "a size: write a number with a unit, such as 512m, 2g or 1.5GiB";
        const BOUNDS: &str = "sizes go from 1 byte to 16 TiB";
        let (number, unit) = number_and_unit(text.trim(), EXPECTED)?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "b" => 1,
            "k" | "kb" | "kib" => KIB,
            "m" | "mb" | "mib" => MIB,
            "g" | "gb" | "gib" => GIB,
            "t" | "tb" | "tib" => TIB,
            _ => return Err(form(text, EXPECTED)),
        };
        let bytes = number * factor as f64;
        if !(1.0..=(16 * TIB) as f64).contains(&bytes) {
            return Err(range(text, BOUNDS));
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            size if size >= GIB => (GIB, "GiB"),
            size if size >= MIB => (MIB, "MiB"),
            size if size >= KIB => (KIB, "KiB"),
            size => return write!(formatter, "{size} B"),
        };
        if self.0.is_multiple_of(unit) {
            write!(formatter, "{} {name}", self.0 / unit)
        } else {
            write!(formatter, "{:.1} {name}", self.0 as f64 / unit as f64)
        }
    }
}

/// A share of processors, in thousandths: `1.5` is one and a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuCount(pub u32);

impl FromStr for CpuCount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "a number of processors, such as 2 or 0.5";
        let (number, unit) = number_and_unit(text.trim(), EXPECTED)?;
        if !unit.is_empty() {
            return Err(form(text, EXPECTED));
        }
        let thousandths = number * 1000.0;
        if !(10.0..=1_024_000.0).contains(&thousandths) {
            return Err(range(text, "processors go from 0.01 to 1024"));
        }
        Ok(Self(thousandths as u32))
    }
}

impl fmt::Display for CpuCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", f64::from(self.0) / 1000.0)
    }
}

/// A span of time as people type it: `500ms`, `30s`, `5m`, `2h`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const EXPECTED: &str = "a span of time, such as 500ms, 30s, 5m or 2h";
        let (number, unit) = number_and_unit(text.trim(), EXPECTED)?;
        let seconds = match unit {
            "ms" => number / 1000.0,
            "" | "s" => number,
            "m" | "min" => number * 60.0,
            "h" => number * 3600.0,
            "d" => number * 86_400.0,
            _ => return Err(form(text, EXPECTED)),
        };
        if !(0.001..=31_536_000.0).contains(&seconds) {
            return Err(range(text, "spans go from 1 ms to 365 days"));
        }
        Ok(Self(Duration::from_secs_f64(seconds)))
    }
}

/// How much one sandbox may use. Every field is always enforced; there is no "unlimited".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all processes, including files on a memory-backed disk.
    pub memory: ByteSize,
    /// Share of processors.
    pub cpus: CpuCount,
    /// Processes and threads at once.
    pub pids: u32,
    /// Bytes that can be written to the sandbox's own layer.
    pub disk: ByteSize,
    /// Files and directories in the sandbox's own layer.
    pub inodes: u64,
    /// Open files per process.
    pub open_files: u32,
}

impl Limits {
    /// The smallest memory in which a sandbox can start.
    pub const MIN_MEMORY: ByteSize = ByteSize::mib(16);

    /// The disk that a sandbox with this much memory gets when none is asked for: half of it, so that a full disk is
    /// an error of its own and never an out-of-memory kill.
    pub fn default_disk(memory: ByteSize) -> ByteSize {
        ByteSize(memory.0 / 2)
    }

    /// The same with no more files than fit beside the disk into the memory that holds both: files have a price of
    /// their own, and running out of them must be an error of the disk too, not an out-of-memory kill.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        const BYTES_PER_FILE: u64 = 1536;
        if self.disk < self.memory {
            self.inodes = self.inodes.min((self.memory.0 - self.disk.0) / 2 / BYTES_PER_FILE).max(64);
        }
        self
    }

    /// Names the first field that is out of bounds, with what would be right.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.memory < Self::MIN_MEMORY {
            return Err(("memory", format!("{} is less than the least, {}", self.memory, Self::MIN_MEMORY)));
        }
        if !(4..=100_000).contains(&self.pids) {
            return Err(("pids", format!("{} is out of range: 4 to 100000", self.pids)));
        }
        if self.disk < ByteSize::mib(1) {
            return Err(("disk", format!("{} is less than the least, 1 MiB", self.disk)));
        }
        if !(64..=100_000_000).contains(&self.inodes) {
            return Err(("inodes", format!("{} is out of range: 64 to 100000000", self.inodes)));
        }
        if !(16..=1_048_576).contains(&self.open_files) {
            return Err(("open_files", format!("{} is out of range: 16 to 1048576", self.open_files)));
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        let memory = ByteSize::gib(2);
        Self {
            memory,
            cpus: CpuCount(2000),
            pids: 512,
            disk: Self::default_disk(memory),
            inodes: 131_072,
            open_files: 4096,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_people_type() {
        for text in ["2g", "2gb", "2GiB", "2048m", "2G", " 2g ", "2 GiB", "2.0g"] {
            assert_eq!(text.parse(), Ok(ByteSize::gib(2)), "{text}");
        }
        assert_eq!("1.5k".parse(), Ok(ByteSize(1536)));
        for text in
            ["", "-1", "1e30", "lots", "0", "0g", "2", "g", "1..2g", "nan", "infg", "99999999t", "2x", "２g"]
        {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn spans_and_processors() {
        assert_eq!("1.5".parse(), Ok(CpuCount(1500)));
        assert_eq!("90".parse(), Ok(Span(Duration::from_secs(90))));
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        for text in ["", "0", "-1", "1e9h", "soon", "1w"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["0", "2cpus", "9999999"] {
            assert!(text.parse::<CpuCount>().is_err(), "{text}");
        }
    }

    #[test]
    fn display_is_exact_or_rounded() {
        assert_eq!(ByteSize::mib(256).to_string(), "256 MiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize(12).to_string(), "12 B");
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".*") {
            let _ = (text.parse::<ByteSize>(), text.parse::<CpuCount>(), text.parse::<Span>());
        }
    }
}
