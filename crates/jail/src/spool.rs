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

use belljar_core::{Position, Stream};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

/// Bytes of a segment's header: both streams' positions.
const SEGMENT_HEADER: u64 = 16;
/// Bytes of a record's header: the stream and the length.
const RECORD_HEADER: u64 = 5;
/// The longest record.
const MAX_RECORD: usize = 64 * 1024;

/// More segments than any spool has.
const MOST_SEGMENTS: usize = 1024;

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
    /// The fewest bytes that a spool can be made for.
    pub const LEAST: u64 = 64 << 10;

    /// At most this many bytes, and not many less: half from the beginning, half from the end.
    pub fn within(bytes: u64) -> Self {
        let segment = (bytes / 8).clamp(Self::LEAST / 8, 1 << 20);
        let half = u32::try_from(bytes / segment / 2).unwrap_or(u32::MAX / 2);
        Self { segment, head: half.max(1), tail: half.max(1) }
    }

    /// How many bytes that is.
    pub fn bytes(&self) -> u64 {
        self.segment * (u64::from(self.head) + u64::from(self.tail))
    }
}

impl Default for Bounds {
    /// 64 MiB.
    fn default() -> Self {
        Self::within(64 << 20)
    }
}

/// What is passed over on the way to `there`, one stream at a time; `here` has then come that far.
fn skip_to(here: &mut Position, there: Position) -> Option<Piece> {
    for stream in [Stream::Stdout, Stream::Stderr] {
        let missing = there.get(stream).saturating_sub(here.get(stream));
        if missing > 0 {
            *here.of(stream) += missing;
            return Some(Piece::Gap(stream, missing));
        }
    }
    None
}

fn encode(position: Position) -> [u8; SEGMENT_HEADER as usize] {
    let mut bytes = [0; SEGMENT_HEADER as usize];
    bytes[..8].copy_from_slice(&position.stdout.to_le_bytes());
    bytes[8..].copy_from_slice(&position.stderr.to_le_bytes());
    bytes
}

fn decode(bytes: [u8; SEGMENT_HEADER as usize]) -> Position {
    let word = |range: std::ops::Range<usize>| {
        bytes[range].iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
    };
    Position { stdout: word(0..8), stderr: word(8..16) }
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
    /// A spool that will be in a new directory `name`, for output from its beginning on.
    pub fn create(parent: impl AsFd, name: &str, bounds: Bounds) -> io::Result<Self> {
        Self::create_at(parent, name, bounds, Position::START)
    }

    /// The same for output of which this much has gone elsewhere.
    pub fn create_at(parent: impl AsFd, name: &str, bounds: Bounds, from: Position) -> io::Result<Self> {
        Ok(Self {
            parent: parent.as_fd().try_clone_to_owned()?,
            name: name.to_owned(),
            directory: None,
            bounds,
            total: from,
            first_tail: bounds.head,
            current: 0,
            file: None,
            written: 0,
        })
    }

    /// The spool of an execution that is over, of which only the disk still knows, and that had said this much. Nothing in
    /// it is believed: whoever wrote it may have been taken over.
    pub fn of_ended(parent: impl AsFd, name: &str, total: Position) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(&parent, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => None,
            opened => Some(opened?),
        };
        let mut numbers = match &directory {
            Some(directory) => segments(directory)?,
            None => Vec::new(),
        };
        numbers.sort_unstable();
        let head = numbers.iter().zip(0..).take_while(|(number, expected)| *number == expected).count();
        let current = numbers.last().map_or(0, |last| last + 1);
        Ok(Self {
            bounds: Bounds { head: head as u32, ..Bounds::default() },
            first_tail: numbers.get(head).copied().unwrap_or(current),
            current,
            directory,
            ..Self::create_at(parent, name, Bounds::default(), total)?
        })
    }

    /// Takes output. If the disk refuses it, the bytes are counted as missing and the command goes on.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        let longest = self.bounds.segment.saturating_sub(SEGMENT_HEADER + RECORD_HEADER);
        for piece in bytes.chunks(usize::try_from(longest).unwrap_or(MAX_RECORD).clamp(1, MAX_RECORD)) {
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
        file.write_all_at(&encode(self.total), 0)?;
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
        Reader { segment: 0, file: None, offset: 0, at: Position::START, position: Position::START }
    }

    /// A reader from this position on, unless that is beyond the [end](Self::end).
    pub fn reader_from(&self, from: Position) -> Option<Reader> {
        if !from.is_within(self.total) {
            return None;
        }
        let tail = (self.first_tail..=self.current).rev();
        let head = (0..self.bounds.head.min(self.current.saturating_add(1))).rev();
        let before = |number: &u32| self.beginning(*number).is_some_and(|begins| begins.is_within(from));
        // From the last segment on that holds nothing but what comes after; all of the others is behind the reader.
        let segment = if from == Position::START { None } else { tail.chain(head).find(before) };
        Some(Reader { segment: segment.unwrap_or(0), position: from, ..self.reader() })
    }

    /// How much has been written, kept or not.
    pub fn end(&self) -> Position {
        self.total
    }

    /// The most bytes that it may come to have on disk.
    pub fn most(&self) -> u64 {
        self.bounds.bytes()
    }

    /// The most bytes that it has on disk now.
    pub fn kept(&self) -> u64 {
        let head = u64::from(self.current.min(self.bounds.head));
        let tail = u64::from(self.current.saturating_sub(self.first_tail));
        (head + tail) * self.bounds.segment + self.written
    }

    /// Where a segment begins, if there is one of that number.
    fn beginning(&self, number: u32) -> Option<Position> {
        let file = open_segment(self.directory.as_ref()?, number).ok()?;
        read_beginning(&file).ok()
    }
}

fn make_directory(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        // An earlier attempt may have got only so far.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// The numbers of the segments there are.
fn segments(directory: &OwnedFd) -> io::Result<Vec<u32>> {
    let names = Dir::read_from(directory)?.take(MOST_SEGMENTS);
    let number = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse::<u32>().ok();
    Ok(names.flatten().filter_map(number).filter(|number| *number < u32::MAX / 2).collect())
}

fn segment_name(number: u32) -> String {
    format!("{number:08}")
}

fn open_segment(directory: &OwnedFd, number: u32) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(directory, segment_name(number), flags, Mode::empty())?.into())
}

fn read_beginning(file: &File) -> io::Result<Position> {
    let mut header = [0; SEGMENT_HEADER as usize];
    file.read_exact_at(&mut header, 0)?;
    Ok(decode(header))
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
    /// What came before the place in the file.
    at: Position,
    /// What has been told; never behind that place.
    position: Position,
}

impl Reader {
    /// The next piece, or `None` when the reader has caught up with what was written so far.
    pub fn next(&mut self, spool: &Spool) -> io::Result<Option<Piece>> {
        loop {
            if self.file.is_none() && !self.open(spool)? {
                return Ok(skip_to(&mut self.position, spool.total));
            }
            let Some(file) = &self.file else { continue };
            if self.offset == SEGMENT_HEADER {
                self.at = read_beginning(file)?;
                if let Some(gap) = skip_to(&mut self.position, self.at) {
                    return Ok(Some(gap));
                }
            }
            let live = self.segment == spool.current && spool.file.is_some();
            if live && self.offset >= spool.written {
                return Ok(None);
            }
            let told = self.position;
            match read_record(file, self.offset, |stream| {
                told.get(stream).saturating_sub(self.at.get(stream))
            })? {
                Some(Record { stream, length, bytes }) => {
                    self.offset += RECORD_HEADER + length;
                    let at = self.at.of(stream);
                    *at = at.saturating_add(length);
                    if !bytes.is_empty() {
                        *self.position.of(stream) = self.at.get(stream);
                        return Ok(Some(Piece::Bytes(stream, bytes)));
                    }
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
        self.file = Some(open_segment(directory, self.segment)?);
        self.offset = SEGMENT_HEADER;
        Ok(true)
    }
}

struct Record {
    stream: Stream,
    length: u64,
    /// Those of its bytes that are wanted.
    bytes: Vec<u8>,
}

/// The record at this place, without as many of its first bytes as are not wanted of its stream; or `None` at the end of
/// a finished segment (or at a record that was cut short when the disk was full).
fn read_record(file: &File, offset: u64, unwanted: impl FnOnce(Stream) -> u64) -> io::Result<Option<Record>> {
    let mut header = [0; RECORD_HEADER as usize];
    match file.read_exact_at(&mut header, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
    if !(1..=MAX_RECORD).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a spool record of an impossible length"));
    }
    let stream = if header[0] == 0 { Stream::Stdout } else { Stream::Stderr };
    let unwanted = unwanted(stream).min(length as u64);
    let mut bytes = vec![0; length - unwanted as usize];
    match file.read_exact_at(&mut bytes, offset + RECORD_HEADER + unwanted) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    Ok(Some(Record { stream, length: length as u64, bytes }))
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

    #[test]
    fn what_is_on_disk_stays_within_the_bounds() {
        for bytes in [Bounds::LEAST, 100_000, 2 << 20, (3 << 20) + 17] {
            let bounds = Bounds::within(bytes);
            assert!(bounds.bytes() <= bytes && bounds.bytes() > bytes / 2, "{bytes}: {bounds:?}");
            let (directory, mut spool) = spool(bounds);
            for length in [1, 70_000, 9_000, 200_000].into_iter().cycle().take(100) {
                spool.append(Stream::Stdout, &vec![b'x'; length]);
                let files = std::fs::read_dir(directory.path().join("1")).unwrap();
                let there: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
                assert!(there <= spool.kept() && spool.kept() <= spool.most(), "{there} {}", spool.kept());
                assert!(spool.most() <= bytes);
            }
            assert!(spool.kept() > bytes / 2);
        }
    }

    /// What pieces say of each stream, byte by byte; `None` is one that is missing.
    fn flat(pieces: Vec<Piece>) -> [Vec<Option<u8>>; 2] {
        let mut flat = [Vec::new(), Vec::new()];
        for piece in pieces {
            match piece {
                Piece::Bytes(stream, bytes) => flat[stream as usize].extend(bytes.into_iter().map(Some)),
                Piece::Gap(stream, missing) => flat[stream as usize].extend((0..missing).map(|_| None)),
            }
        }
        flat
    }

    fn written(spool: &mut Spool, writes: &[(bool, usize)]) {
        for (number, (error, length)) in writes.iter().enumerate() {
            let stream = if *error { Stream::Stderr } else { Stream::Stdout };
            spool.append(stream, &vec![number as u8; *length]);
        }
    }

    #[test]
    fn output_that_begins_elsewhere_has_a_gap_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let (parent, from) = (File::open(directory.path()).unwrap(), Position { stdout: 100, stderr: 7 });
        let mut spool = Spool::create_at(&parent, "1", SMALL, from).unwrap();
        let gaps = [Piece::Gap(Stream::Stdout, 100), Piece::Gap(Stream::Stderr, 7)];
        assert_eq!(drain(&mut spool.reader(), &spool), gaps);
        spool.append(Stream::Stdout, b"rest");
        let rest = Piece::Bytes(Stream::Stdout, b"rest".to_vec());
        assert_eq!(drain(&mut spool.reader(), &spool), [&gaps[..], std::slice::from_ref(&rest)].concat());
        let mut reader = spool.reader_from(Position { stdout: 90, stderr: 7 }).unwrap();
        assert_eq!(drain(&mut reader, &spool), [Piece::Gap(Stream::Stdout, 10), rest]);
    }

    #[test]
    fn what_is_no_spool_is_an_error_and_nobody_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let parent = File::open(directory.path()).unwrap();
        let end = Position { stdout: 5, stderr: 0 };
        let read = |name: &str| {
            let spool = Spool::of_ended(&parent, name, end)?;
            let mut reader = spool.reader();
            std::iter::from_fn(|| reader.next(&spool).transpose()).take(10).collect::<io::Result<Vec<_>>>()
        };
        let gap = [Piece::Gap(Stream::Stdout, 5)];
        assert_eq!(read("missing").unwrap(), gap, "all of it is missing");
        std::os::unix::fs::symlink("/", directory.path().join("link")).unwrap();
        assert!(read("link").is_err());
        let plant = |name: &str| {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            directory.path().join(name).join("00000000")
        };
        std::os::unix::fs::symlink("/etc/passwd", plant("1")).unwrap();
        assert!(read("1").is_err());
        let pipe = std::ffi::CString::new(plant("2").to_str().unwrap()).unwrap();
        // SAFETY: a valid string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert!(read("2").is_err());
        // Larger than anyone could read through, and nothing in it.
        File::create(plant("3")).unwrap().set_len(1 << 40).unwrap();
        assert!(read("3").is_err());
        std::fs::write(plant("4"), [255; 16]).unwrap();
        assert_eq!(read("4").unwrap().len(), 2, "gaps, and no overflow");
        std::fs::write(plant("5").with_file_name("not a number"), "").unwrap();
        assert_eq!(read("5").unwrap(), gap);
    }

    proptest! {
        /// From wherever one reads on, what came before and what comes then are one reader's whole.
        #[test]
        fn reading_on_repeats_and_loses_nothing(
            writes in proptest::collection::vec((any::<bool>(), 0usize..90), 0..80),
            bounds in (20u64..120, 0u32..4, 1u32..4),
            cuts in proptest::collection::vec((0.0f64..=1.0, 0.0f64..=1.0), 1..20),
            piece in 0usize..100,
        ) {
            let bounds = Bounds { segment: bounds.0, head: bounds.1, tail: bounds.2 };
            let (_directory, mut spool) = spool(bounds);
            written(&mut spool, &writes);
            let pieces = drain(&mut spool.reader(), &spool);
            let whole = flat(pieces.clone());
            let end = spool.end();
            prop_assert_eq!([whole[0].len() as u64, whole[1].len() as u64], [end.stdout, end.stderr]);

            // Where a reader may stop: after any piece, and anywhere else.
            let mut stop = Position::START;
            for piece in pieces.iter().take(piece) {
                match piece {
                    Piece::Bytes(stream, bytes) => *stop.of(*stream) += bytes.len() as u64,
                    Piece::Gap(stream, missing) => *stop.of(*stream) += missing,
                }
            }
            let part = |length: u64, part: f64| (length as f64 * part) as u64;
            let anywhere = cuts.iter().map(|(one, other)| Position {
                stdout: part(end.stdout, *one),
                stderr: part(end.stderr, *other),
            });
            for from in anywhere.chain([stop, end]) {
                let rest = flat(drain(&mut spool.reader_from(from).unwrap(), &spool));
                prop_assert_eq!(&rest[0][..], &whole[0][from.stdout as usize..], "from {}", from);
                prop_assert_eq!(&rest[1][..], &whole[1][from.stderr as usize..], "from {}", from);
                // And from the disk alone, when its writer is gone.
                let ended = Spool::of_ended(&spool.parent, "1", end).unwrap();
                prop_assert_eq!(&flat(drain(&mut ended.reader_from(from).unwrap(), &ended)), &rest);
            }
            for stream in [Stream::Stdout, Stream::Stderr] {
                let mut beyond = end;
                *beyond.of(stream) += 1;
                prop_assert!(spool.reader_from(beyond).is_none());
            }
        }

        /// The same while it is being written: what was read before is kept, what is read then adds up.
        #[test]
        fn reading_on_while_it_is_written_adds_up(
            before in proptest::collection::vec((any::<bool>(), 0usize..90), 0..40),
            after in proptest::collection::vec((any::<bool>(), 0usize..90), 0..40),
            pieces in 0usize..60,
        ) {
            let (_directory, mut spool) = spool(SMALL);
            written(&mut spool, &before);
            let mut first = spool.reader();
            let read: Vec<Piece> = std::iter::from_fn(|| first.next(&spool).unwrap()).take(pieces).collect();
            let read = flat(read);
            let from = Position { stdout: read[0].len() as u64, stderr: read[1].len() as u64 };
            let mut second = spool.reader_from(from).unwrap();
            written(&mut spool, &after);
            // The first reader goes on as well, and both are told the same.
            let (one, other) = (flat(drain(&mut first, &spool)), flat(drain(&mut second, &spool)));
            let end = spool.end();
            for stream in [Stream::Stdout, Stream::Stderr] {
                let which = stream as usize;
                prop_assert_eq!((read[which].len() + other[which].len()) as u64, end.get(stream));
                prop_assert_eq!(one[which].len(), other[which].len());
                let differ = one[which].iter().zip(&other[which]).any(|(one, other)| {
                    matches!((one, other), (Some(one), Some(other)) if one != other)
                });
                prop_assert!(!differ);
            }
        }

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
