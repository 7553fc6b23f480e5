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
    /// Whether something was counted that could not be written down, or not whole.
    is_behind: bool,
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
        Ok(Self { files, file, length, counts, is_behind: true })
    }

    pub(crate) fn counts(&self) -> &C {
        &self.counts
    }

    /// To take back what could not be written.
    pub(crate) fn counts_mut(&mut self) -> &mut C {
        &mut self.counts
    }

    /// Writes down an entry. It counts whether that is possible or not, and the next that can be written says so.
    pub(crate) fn push(&mut self, entry: &C::Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let ready = self.make_ready(line.len());
        self.counts.count(entry);
        let written = ready.and_then(|()| self.write(&line));
        self.is_behind = written.is_err();
        written
    }

    fn make_ready(&mut self, more: usize) -> io::Result<()> {
        if self.length + more as u64 > MOST_BYTES {
            return self.turn();
        }
        if self.is_behind {
            // A line that was cut off must not spoil the next.
            self.write(b"\n")?;
            self.begin()?;
        }
        Ok(())
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
        match fs::rename(newer, older) {
            // It was done before, and there was no room for another.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Sum(u64);

    #[derive(Serialize, Deserialize)]
    struct Amount {
        amount: u64,
        text: String,
    }

    impl Counts for Sum {
        type Entry = Amount;

        fn count(&mut self, entry: &Amount) {
            self.0 += entry.amount;
        }
    }

    const NAMES: [&str; 2] = ["list", "list.before"];

    fn open(directory: &Path) -> Journal<Sum> {
        Journal::open(directory, NAMES, |_| ()).unwrap()
    }

    /// A file system of half a mebibyte, as long as this lives.
    struct Small(tempfile::TempDir);

    impl Small {
        fn new() -> Self {
            let small = Self(tempfile::tempdir().unwrap());
            let mount = ["-t", "tmpfs", "-o", "size=512k", "small"];
            assert!(Command::new("mount").args(mount).arg(small.0.path()).status().unwrap().success());
            small
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0.path()).status();
        }
    }

    #[test]
    fn what_found_no_room_is_counted_once_there_is_some() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let small = Small::new();
        let mut journal = open(small.0.path());
        let amount = || Amount { amount: 1, text: "x".repeat(3000) };
        journal.push(&amount()).unwrap();
        let filler = small.0.path().join("filler");
        fs::write(&filler, vec![0; 500_000]).unwrap();
        let failed = (0..40).filter(|_| journal.push(&amount()).is_err()).count();
        assert!(failed > 20, "{failed}");
        assert_eq!(journal.counts(), &Sum(41));
        fs::remove_file(&filler).unwrap();
        journal.push(&amount()).unwrap();
        drop(journal);
        assert_eq!(open(small.0.path()).counts(), &Sum(42));
    }

    #[test]
    fn a_list_goes_on_in_another_file_wherever_that_was_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let amount = || Amount { amount: 1, text: "x".repeat(400_000) };
        let mut journal = open(directory.path());
        for number in 0..30 {
            if number == 5 {
                // As if there had been no room for the next.
                fs::rename(directory.path().join(NAMES[0]), directory.path().join(NAMES[1])).unwrap();
            }
            journal.push(&amount()).unwrap();
        }
        drop(journal);
        let mut cut = OpenOptions::new().append(true).open(directory.path().join(NAMES[0])).unwrap();
        cut.write_all(b"{\"amount\":1,\"te").unwrap();
        let mut journal = open(directory.path());
        assert_eq!(journal.counts(), &Sum(30));
        journal.push(&amount()).unwrap();
        drop(journal);
        assert_eq!(open(directory.path()).counts(), &Sum(31));
    }
}
