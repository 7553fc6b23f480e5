//! Lists that grow, in a sandbox's directory: lines of JSON in two files of bounded size, the newer and the one before. Each file
//! begins with what had been counted before it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A file that is longer than this becomes the older one.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// What has been counted of a list.
pub(crate) trait Counts: Clone + Default + Serialize + DeserializeOwned {
    /// What the list consists of.
    type Entry: Serialize + DeserializeOwned;

    /// Counts an entry.
    fn count(&mut self, entry: &Self::Entry);
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Beginning<C> {
    before: C,
}

/// One list.
#[derive(Debug)]
pub(crate) struct Journal<C> {
    files: [PathBuf; 2],
    file: File,
    length: u64,
    counts: C,
}

impl<C: Counts> Journal<C> {
    /// Opens the list in a directory, and reads what is there.
    pub(crate) fn open(
        directory: &Path,
        names: [&str; 2],
        mut each: impl FnMut(&C::Entry),
    ) -> io::Result<Self> {
        let files = names.map(|name| directory.join(name));
        let file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&files[0])?;
        let length = file.metadata()?.len();
        let mut counts = C::default();
        for path in files.iter().rev() {
            read(path, &mut counts, &mut each)?;
        }
        let mut journal = Self { files, file, length, counts };
        if length == 0 {
            journal.begin()?;
        } else {
            // A line that was cut off must not spoil the next.
            journal.write(b"\n")?;
        }
        Ok(journal)
    }

    pub(crate) fn counts(&self) -> &C {
        &self.counts
    }

    /// Writes down an entry.
    pub(crate) fn push(&mut self, entry: &C::Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if self.length + line.len() as u64 > MOST_BYTES {
            self.turn()?;
        }
        self.counts.count(entry);
        self.write(&line)
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.length += line.len() as u64;
        self.file.write_all(line)
    }

    fn begin(&mut self) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Beginning { before: &self.counts })?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Makes the newer file the older, and begins another.
    fn turn(&mut self) -> io::Result<()> {
        let [newer, older] = &self.files;
        fs::rename(newer, older)?;
        self.file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(newer)?;
        self.length = 0;
        self.begin()
    }
}

fn read<C: Counts>(path: &Path, counts: &mut C, each: &mut impl FnMut(&C::Entry)) -> io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for line in BufReader::new(file.take(4 * MOST_BYTES)).split(b'\n') {
        let line = line?;
        if let Ok(Beginning { before }) = serde_json::from_slice(&line) {
            *counts = before;
        } else if let Ok(entry) = serde_json::from_slice::<C::Entry>(&line) {
            counts.count(&entry);
            each(&entry);
        }
    }
    Ok(())
}
