//! Output on disk, bounded: the head and the tail are kept, what falls out between them is counted.
//!
//! A spool is a directory of numbered segments. The first ones are never removed, of the later ones only the newest
//! stay. A segment begins with how many bytes of each stream came before it, so a reader that moves from one segment
//! to the next knows exactly what it missed. Readers never hold up the writer: one that is behind keeps reading an
//! open segment even when its name is gone, and finds the gap after it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use belljar_core::Stream;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};

/// Bytes of a segment's header: both streams' positions.
const SEGMENT_HEADER: u64 = 16;
/// Bytes of a record's header: the stream and the length.
const RECORD_HEADER: u64 = 5;
/// The longest record.
const MAX_RECORD: usize = 64 * 1024;

/// How much a spool keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes in one segment, headers included.
    pub segment: u64,
    /// Segments kept from the beginning.
    pub head: u32,
    /// Segments kept at the end, at least one.
    pub tail: u32,
}

impl Bounds {
    /// 2 MiB, for where there are many.
    pub const SMALL: Self = Self { segment: 256 << 10, head: 4, tail: 4 };
}

impl Default for Bounds {
    /// 64 MiB: half from the beginning, half from the end.
    fn default() -> Self {
        Self { segment: 1 << 20, head: 32, tail: 32 }
    }
}

/// How far a stream pair has come, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    stdout: u64,
    stderr: u64,
}

impl Position {
    fn of(&mut self, stream: Stream) -> &mut u64 {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Goes on to `there`, one stream at a time, telling what is passed over.
    fn skip_to(&mut self, mut there: Self) -> Option<Piece> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let here = self.of(stream);
            let missing = there.of(stream).saturating_sub(*here);
            if missing > 0 {
                *here += missing;
                return Some(Piece::Gap(stream, missing));
            }
        }
        None
    }

    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.stdout.to_le_bytes());
        bytes[8..].copy_from_slice(&self.stderr.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; 16]) -> Self {
        let word = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
        };
        Self { stdout: word(0..8), stderr: word(8..16) }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Spool {
    parent: OwnedFd,
    name: String,
    /// Made when there is something to keep: most commands say little, and many nothing.
    directory: Option<OwnedFd>,
    bounds: Bounds,
    total: Position,
    /// The oldest segment kept beyond the head.
    first_tail: u32,
    /// The newest segment.
    current: u32,
    file: Option<File>,
    written: u64,
}

impl Spool {
    /// A spool that will be in a new directory `name`.
    pub fn create(parent: impl AsFd, name: &str, bounds: Bounds) -> io::Result<Self> {
        Ok(Self {
            parent: parent.as_fd().try_clone_to_owned()?,
            name: name.to_owned(),
            directory: None,
            bounds,
            total: Position::default(),
            first_tail: bounds.head,
            current: 0,
            file: None,
            written: 0,
        })
    }

    /// Takes output. If the disk refuses it, the bytes are counted as missing and the command goes on.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.chunks(MAX_RECORD) {
            if self.write_record(stream, piece).is_err() {
                // What follows goes into a new segment, whose header tells the gap.
                self.close_segment();
            }
            *self.total.of(stream) += piece.len() as u64;
        }
    }

    fn write_record(&mut self, stream: Stream, piece: &[u8]) -> io::Result<()> {
        let needed = RECORD_HEADER + piece.len() as u64;
        if self.written + needed > self.bounds.segment && self.written > SEGMENT_HEADER {
            self.close_segment();
        }
        if self.file.is_none() {
            self.open_segment()?;
        }
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let mut header = [0; RECORD_HEADER as usize];
        header[0] = u8::from(stream == Stream::Stderr);
        header[1..].copy_from_slice(&(piece.len() as u32).to_le_bytes());
        file.write_all_at(&header, self.written)?;
        file.write_all_at(piece, self.written + RECORD_HEADER)?;
        self.written += needed;
        Ok(())
    }

    fn open_segment(&mut self) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let directory = match &self.directory {
            Some(directory) => directory,
            None => self.directory.insert(make_directory(&self.parent, &self.name)?),
        };
        let file =
            File::from(openat(directory, segment_name(self.current), flags, Mode::from_raw_mode(0o600))?);
        file.write_all_at(&self.total.encode(), 0)?;
        self.file = Some(file);
        self.written = SEGMENT_HEADER;
        Ok(())
    }

    fn close_segment(&mut self) {
        if self.file.take().is_none() {
            // Nothing could be opened under this number: it is used again.
            self.remove_segment(self.current);
            return;
        }
        self.current += 1;
        self.written = 0;
        while self.current >= self.first_tail + self.bounds.tail {
            self.remove_segment(self.first_tail);
            self.first_tail += 1;
        }
    }

    fn remove_segment(&self, number: u32) {
        if let Some(directory) = &self.directory {
            let _ = unlinkat(directory, segment_name(number), AtFlags::empty());
        }
    }

    /// A reader from the beginning.
    pub fn reader(&self) -> Reader {
        Reader { segment: 0, file: None, offset: 0, position: Position::default() }
    }
}

fn make_directory(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        // An earlier attempt may have got only so far.
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn segment_name(number: u32) -> String {
    format!("{number:08}")
}

/// What a reader finds next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Output, in the order it was written.
    Bytes(Stream, Vec<u8>),
    /// This many bytes of a stream are missing here.
    Gap(Stream, u64),
}

/// A reading end; it belongs to the spool that made it.
#[derive(Debug)]
pub struct Reader {
    segment: u32,
    file: Option<File>,
    offset: u64,
    position: Position,
}

impl Reader {
    /// The next piece, or `None` when the reader has caught up with what was written so far.
    pub fn next(&mut self, spool: &Spool) -> io::Result<Option<Piece>> {
        loop {
            if self.file.is_none() && !self.open(spool)? {
                return Ok(self.position.skip_to(spool.total));
            }
            let Some(file) = &self.file else { continue };
            if self.offset == SEGMENT_HEADER {
                let mut header = [0; SEGMENT_HEADER as usize];
                file.read_exact_at(&mut header, 0)?;
                if let Some(gap) = self.position.skip_to(Position::decode(header)) {
                    return Ok(Some(gap));
                }
            }
            let live = self.segment == spool.current && spool.file.is_some();
            if live && self.offset >= spool.written {
                return Ok(None);
            }
            match read_record(file, self.offset)? {
                Some((stream, bytes)) => {
                    self.offset += RECORD_HEADER + bytes.len() as u64;
                    *self.position.of(stream) += bytes.len() as u64;
                    return Ok(Some(Piece::Bytes(stream, bytes)));
                }
                None => {
                    self.file = None;
                    self.segment += 1;
                }
            }
        }
    }

    /// Opens the next segment that is still there; false when there is none yet.
    fn open(&mut self, spool: &Spool) -> io::Result<bool> {
        if self.segment >= spool.bounds.head {
            self.segment = self.segment.max(spool.first_tail);
        }
        if self.segment > spool.current || (self.segment == spool.current && spool.file.is_none()) {
            return Ok(false);
        }
        let Some(directory) = &spool.directory else { return Ok(false) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.file = Some(openat(directory, segment_name(self.segment), flags, Mode::empty())?.into());
        self.offset = SEGMENT_HEADER;
        Ok(true)
    }
}

/// The record at this place, or `None` at the end of a finished segment (or at a record that was cut short when the
/// disk was full).
fn read_record(file: &File, offset: u64) -> io::Result<Option<(Stream, Vec<u8>)>> {
    let mut header = [0; RECORD_HEADER as usize];
    match file.read_exact_at(&mut header, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
    if length > MAX_RECORD {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a spool record is too long"));
    }
    let mut bytes = vec![0; length];
    match file.read_exact_at(&mut bytes, offset + RECORD_HEADER) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let stream = if header[0] == 0 { Stream::Stdout } else { Stream::Stderr };
    Ok(Some((stream, bytes)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: Bounds = Bounds { segment: 64, head: 2, tail: 2 };

    fn spool(bounds: Bounds) -> (tempfile::TempDir, Spool) {
        let directory = tempfile::tempdir().unwrap();
        let parent = File::open(directory.path()).unwrap();
        let spool = Spool::create(&parent, "1", bounds).unwrap();
        (directory, spool)
    }

    fn drain(reader: &mut Reader, spool: &Spool) -> Vec<Piece> {
        std::iter::from_fn(|| reader.next(spool).unwrap()).collect()
    }

    #[test]
    fn what_fits_comes_back_in_order() {
        let (_directory, mut spool) = spool(SMALL);
        spool.append(Stream::Stdout, b"one");
        spool.append(Stream::Stderr, b"two");
        let mut reader = spool.reader();
        let pieces = drain(&mut reader, &spool);
        assert_eq!(
            pieces,
            [Piece::Bytes(Stream::Stdout, b"one".to_vec()), Piece::Bytes(Stream::Stderr, b"two".to_vec())]
        );
        spool.append(Stream::Stdout, b"more");
        assert_eq!(drain(&mut reader, &spool), [Piece::Bytes(Stream::Stdout, b"more".to_vec())]);
    }

    #[test]
    fn the_number_of_files_stays_bounded() {
        let (directory, mut spool) = spool(SMALL);
        for _ in 0..10_000 {
            spool.append(Stream::Stdout, b"0123456789");
        }
        assert!(std::fs::read_dir(directory.path().join("1")).unwrap().count() <= 4);
    }

    proptest! {
        /// Whatever is written and however far a reader lags: bytes and gaps add up, head and tail are true.
        #[test]
        fn nothing_is_lost_without_being_counted(
            writes in proptest::collection::vec((any::<bool>(), 0usize..40, any::<bool>()), 0..200)
        ) {
            let (_directory, mut spool) = spool(SMALL);
            let mut lagging = spool.reader();
            let mut seen = Vec::new();
            let mut all = [Vec::new(), Vec::new()];
            for (number, (error, length, read)) in writes.iter().enumerate() {
                let stream = if *error { Stream::Stderr } else { Stream::Stdout };
                let bytes = vec![number as u8; *length];
                all[usize::from(*error)].extend_from_slice(&bytes);
                spool.append(stream, &bytes);
                if *read {
                    seen.extend(lagging.next(&spool).unwrap());
                }
            }
            seen.extend(drain(&mut lagging, &spool));
            for pieces in [seen, drain(&mut spool.reader(), &spool)] {
                let mut at = [0usize, 0];
                for piece in pieces {
                    match piece {
                        Piece::Bytes(stream, bytes) => {
                            let which = usize::from(stream == Stream::Stderr);
                            prop_assert_eq!(&all[which][at[which]..at[which] + bytes.len()], &bytes[..]);
                            at[which] += bytes.len();
                        }
                        Piece::Gap(stream, missing) => at[usize::from(stream == Stream::Stderr)] += missing as usize,
                    }
                }
                prop_assert_eq!(at, [all[0].len(), all[1].len()]);
            }
        }
    }
}
