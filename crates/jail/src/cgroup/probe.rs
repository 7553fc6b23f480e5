//! What a sandbox uses, read through descriptors that outlive the privilege to open them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What the executions of a sandbox use and used; `None` where the kernel cannot say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of memory in use, page cache included.
    pub memory_current: Option<u64>,
    /// The most bytes of memory ever in use, or since [`Probe::reset_memory_peak`].
    pub memory_peak: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Microseconds of processor time.
    pub cpu_usec: Option<u64>,
    /// Processes and threads that exist.
    pub pids_current: Option<u64>,
    /// The most processes and threads that ever existed at a time.
    pub pids_peak: Option<u64>,
    /// Bytes read from block devices.
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices.
    pub write_bytes: Option<u64>,
}

/// Open descriptors on a sandbox's counters; see [`super::Group::probe`].
#[derive(Debug)]
pub struct Probe(Meters);

impl Probe {
    pub(super) fn new(meters: Meters) -> Probe {
        Probe(meters)
    }

    /// Reads all counters.
    pub fn read(&self) -> Usage {
        Usage {
            memory_current: self.memory_current(),
            memory_peak: self.0.memory_peak.read(),
            oom_kills: self.oom_kills(),
            cpu_usec: self.0.cpu_usec.read(),
            pids_current: self.0.pids_current.read(),
            pids_peak: self.0.pids_peak.read(),
            read_bytes: self.0.read_bytes.read(),
            write_bytes: self.0.write_bytes.read(),
        }
    }

    /// Reads the one counter.
    pub fn memory_current(&self) -> Option<u64> {
        self.0.memory_current.read()
    }

    /// Reads the one counter.
    pub fn oom_kills(&self) -> Option<u64> {
        self.0.oom_kills.read()
    }

    /// Starts the peak of memory anew at what is in use now; false if this kernel cannot, and keeps the old peak.
    pub fn reset_memory_peak(&self) -> bool {
        match &self.0.memory_peak {
            Meter(Some((file, _))) => file.write_at(b"0", 0).is_ok(),
            Meter(None) => false,
        }
    }
}

/// One counter for each field of [`Usage`].
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) memory_current: Meter,
    pub(super) memory_peak: Meter,
    pub(super) oom_kills: Meter,
    pub(super) cpu_usec: Meter,
    pub(super) pids_current: Meter,
    pub(super) pids_peak: Meter,
    pub(super) read_bytes: Meter,
    pub(super) write_bytes: Meter,
}

/// How a counter's file says its number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    /// Nothing but the number.
    Number,
    /// Nothing but the number, a thousand times too large.
    Nanoseconds,
    /// On the line that begins with this word.
    Key(&'static str),
    /// On every line, as `word=number`, to be added up.
    Sum(&'static str),
}

/// A counter, if the kernel has it.
#[derive(Debug, Default)]
pub(super) struct Meter(Option<(File, Format)>);

impl Meter {
    /// Opens the counter. A kernel too old to have the file leaves the meter without a reading.
    pub(super) fn open(&mut self, path: &Path, format: Format) {
        self.0 = File::open(path).ok().map(|file| (file, format));
    }

    /// As [`Meter::open`], for writing too where the kernel lets it be reset.
    pub(super) fn open_resettable(&mut self, path: &Path, format: Format) {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => self.0 = Some((file, format)),
            Err(_) => self.open(path, format),
        }
    }

    fn read(&self) -> Option<u64> {
        let (file, format) = self.0.as_ref()?;
        format.parse(&read_from_start(file).ok()?)
    }
}

impl Format {
    fn parse(self, text: &str) -> Option<u64> {
        match self {
            Format::Number => text.trim().parse().ok(),
            Format::Nanoseconds => text.trim().parse::<u64>().ok().map(|nanoseconds| nanoseconds / 1000),
            Format::Key(key) => text.lines().find_map(|line| {
                let (name, number) = line.split_once(' ')?;
                if name == key { number.trim().parse().ok() } else { None }
            }),
            Format::Sum(key) => Some(
                text.split_whitespace()
                    .filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok())
                    .sum(),
            ),
        }
    }
}

fn read_from_start(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match file.read_at(&mut buffer, bytes.len() as u64)? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            count => bytes.extend(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        assert_eq!(Format::Number.parse("4096\n"), Some(4096));
        assert_eq!(Format::Number.parse("max\n"), None);
        assert_eq!(Format::Nanoseconds.parse("1234567\n"), Some(1234));
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(Format::Key("oom_kill").parse(events), Some(1));
        assert_eq!(Format::Key("absent").parse(events), None);
        let io = "8:0 rbytes=10 wbytes=1 rios=3 wios=4 dbytes=0 dios=0\n7:1 rbytes=5 wbytes=2\n";
        assert_eq!(Format::Sum("rbytes").parse(io), Some(15));
        assert_eq!(Format::Sum("wbytes").parse(io), Some(3));
        assert_eq!(Format::Sum("rbytes").parse(""), Some(0));
    }
}
