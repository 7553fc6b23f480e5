//! Lists that grow, in a sandbox's directory: lines of JSON in two files of bounded size, the newer and what was before. The newer begins
//! with what had been counted before it. When it becomes the older, entries of which something came are kept of what was before, and
//! the rest gives way: nobody pushes out what was done by asking for what is refused.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A file that is longer than this becomes the older one, after at most as much of what was before.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// What has been counted of a list.
pub(crate) trait Counts: Clone + Default + Serialize + DeserializeOwned {
    /// What the list consists of.
    type Entry: Serialize + DeserializeOwned;

    /// Counts an entry.
    fn count(&mut self, entry: &Self::Entry);

    /// Whether nothing came of it, so that it is dropped before others.
    fn gives_way(entry: &Self::Entry) -> bool;
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
        if let Err(error) = append_to_what_was_done::<C>(older, newer) {
            tracing::warn!(list = %newer.display(), %error, "cannot keep what is older");
        }
        match fs::rename(newer, older) {
            // It was done before, or there was no room for another.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(newer)?;
        self.length = 0;
        self.begin()
    }
}

/// Puts what was done in front of the newer file, in place of the older one; seen whole or not at all.
fn append_to_what_was_done<C: Counts>(older: &Path, newer: &Path) -> io::Result<()> {
    let done = done::<C>(older)?;
    if done.is_empty() || !newer.exists() {
        return Ok(());
    }
    let path = older.with_extension("new");
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
    let mut file = BufWriter::new(file);
    let mut write = || {
        done.iter().try_for_each(|line| file.write_all(line))?;
        io::copy(&mut File::open(newer)?, &mut file)?;
        file.flush()
    };
    match write() {
        Ok(()) => {
            fs::rename(&path, older)?;
            // It may be there twice for a moment, and is told once.
            fs::remove_file(newer)
        }
        Err(error) => {
            let _ = fs::remove_file(&path);
            Err(error)
        }
    }
}

/// The newest lines of a file of which something came, as many as are kept.
fn done<C: Counts>(path: &Path) -> io::Result<VecDeque<Vec<u8>>> {
    let (mut kept, mut length) = (VecDeque::new(), 0);
    for line in lines(path)? {
        let mut line = line?;
        if !serde_json::from_slice::<C::Entry>(&line).is_ok_and(|entry| !C::gives_way(&entry)) {
            continue;
        }
        line.push(b'\n');
        length += line.len() as u64;
        kept.push_back(line);
        while length > MOST_BYTES {
            length -= kept.pop_front().map_or(length, |line: Vec<u8>| line.len() as u64);
        }
    }
    Ok(kept)
}

/// The lines of a file; none where there is no such file.
fn lines(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
    let file = match File::open(path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(file.into_iter().flat_map(|file| BufReader::new(file.take(4 * MOST_BYTES)).split(b'\n')))
}

fn read<C: Counts>(path: &Path, counts: &mut C, each: &mut impl FnMut(&C::Entry)) -> io::Result<()> {
    for line in lines(path)? {
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

        fn gives_way(entry: &Amount) -> bool {
            entry.amount == 0
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
    fn what_was_done_is_not_pushed_out_by_what_was_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(directory.path());
        let push = |journal: &mut Journal<Sum>, amount, count, text: &str| {
            (0..count).for_each(|_| journal.push(&Amount { amount, text: text.to_owned() }).unwrap());
        };
        let seen = |text: &str| {
            let mut seen = 0;
            Journal::<Sum>::open(directory.path(), NAMES, |entry| seen += u64::from(entry.text == text))
                .unwrap();
            seen
        };
        let long = "x".repeat(400_000);
        push(&mut journal, 1, 3, "first");
        push(&mut journal, 0, 1, "refused");
        push(&mut journal, 0, 50, &long);
        push(&mut journal, 1, 2, "later");
        push(&mut journal, 0, 50, &long);
        assert_eq!((seen("first"), seen("refused"), seen("later")), (3, 0, 2));
        let sizes = NAMES.map(|name| directory.path().join(name).metadata().unwrap().len());
        assert!(sizes[0] <= MOST_BYTES && sizes[1] <= 2 * MOST_BYTES, "{sizes:?}");
        drop(journal);
        let mut journal = open(directory.path());
        assert_eq!(journal.counts(), &Sum(5));
        // Only what was done later pushes it out.
        push(&mut journal, 1, 50, &long);
        push(&mut journal, 1, 1, "last");
        assert_eq!((seen("first"), seen("last")), (0, 1));
        let sizes = NAMES.map(|name| directory.path().join(name).metadata().unwrap().len());
        assert!(sizes[0] <= MOST_BYTES && sizes[1] <= 2 * MOST_BYTES, "{sizes:?}");
        assert_eq!(open(directory.path()).counts(), &Sum(56));
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
