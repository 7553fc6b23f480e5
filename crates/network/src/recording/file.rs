//! The file of a recording: frames, one after the other, of which some are pieces of content under their hashes and the others say
//! what happened; and an index at the end. A file that was cut off is read as far as it goes.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::entry::{Content, Entry, Meta, Way, header};

/// What every recording begins with.
const MAGIC: &[u8; 20] = b"belljar recording 1\n";
/// What one that was finished ends with, after the place of its index.
const END: &[u8; 8] = b"bjrindex";
/// The most bytes of a piece.
pub const MAX_PIECE: usize = 64 << 10;
/// The most bytes of what else is in a frame, unpacked.
const MAX_ENTRY: usize = 16 << 20;
/// The most bytes of an index, unpacked, and how many times less it may be as it is: where there would be more, all is read instead.
const MAX_INDEX: usize = 64 << 20;
const MOST_PACKED: usize = 64;
/// How much of an index is made, about: it is in memory until it is written.
const MOST_INDEX: usize = 24 << 20;
/// What a piece, and an entry without its words, take there.
const PIECE_IN_INDEX: usize = 40;
const ENTRY_IN_INDEX: usize = 200;
/// The most that is unpacked of a file without an index: this, and so many times its length.
const MOST_SCANNED: u64 = 64 << 20;
const SCANNED_PER_BYTE: u64 = 32;
/// How hard it is tried to make pieces smaller: hardly, for nobody waits for disks as for networks.
const LEVEL: i32 = 1;
/// Bytes of a frame before its content: its kind, how it is packed, its length as it is and unpacked.
const HEAD: usize = 10;

/// The address of a piece: what is in it decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash([u8; 32]);

impl Hash {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl FromStr for Hash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes())).map_err(|_| "not a hash")
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Piece,
    Entry,
    Index,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Self::Piece => b'P',
            Self::Entry => b'E',
            Self::Index => b'I',
        }
    }

    fn most(self) -> usize {
        match self {
            Self::Piece => MAX_PIECE,
            Self::Entry => MAX_ENTRY,
            Self::Index => MAX_INDEX,
        }
    }
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: Kind,
    is_packed: bool,
    stored: u32,
    unpacked: u32,
}

impl Head {
    fn bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[0] = self.kind.byte();
        bytes[1] = u8::from(self.is_packed);
        bytes[2..6].copy_from_slice(&self.stored.to_le_bytes());
        bytes[6..].copy_from_slice(&self.unpacked.to_le_bytes());
        bytes
    }

    fn read(bytes: [u8; HEAD]) -> io::Result<Self> {
        let kind = match bytes[0] {
            b'P' => Kind::Piece,
            b'E' => Kind::Entry,
            b'I' => Kind::Index,
            _ => return Err(damaged("a frame of no kind")),
        };
        let is_packed = match bytes[1] {
            0 => false,
            1 => true,
            _ => return Err(damaged("a frame that is packed in no way")),
        };
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let head = Self { kind, is_packed, stored: number(2), unpacked: number(6) };
        // What cannot be made smaller is kept as it is.
        let is_likely = kind != Kind::Index
            || head.unpacked as usize
                <= (head.stored as usize).saturating_mul(MOST_PACKED).saturating_add(1 << 20);
        let fits = head.unpacked as usize <= kind.most() && head.stored <= head.unpacked && is_likely;
        if fits { Ok(head) } else { Err(damaged("a frame that is too long")) }
    }

    /// How far it is to the next.
    fn span(self) -> u64 {
        let address = if self.kind == Kind::Piece { 32 } else { 0 };
        HEAD as u64 + address + u64::from(self.stored)
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the recording is damaged: it has {what}"))
}

/// What an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Whose network is written down from here on.
    Meta,
    /// A name that was looked up.
    Lookup,
    /// A request and its answer.
    Request,
    /// A connection on which something else was said.
    Stream,
    /// There was no room for more.
    Full,
}

impl What {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Lookup => "lookup",
            Self::Request => "request",
            Self::Stream => "stream",
            Self::Full => "full",
        }
    }
}

/// An entry as the index has it: enough to list it, and to know a request again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Where it is.
    at: u64,
    /// What it tells of.
    pub kind: What,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// With whom.
    pub host: String,
    /// On which port.
    pub port: u16,
    /// Whether inside TLS.
    pub tls: bool,
    /// The method of a request.
    pub method: String,
    /// Its path and query.
    pub target: String,
    /// Which part it asks for, if not for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub range: String,
    /// The status of its answer.
    pub status: u16,
    /// Bytes out of the sandbox.
    pub sent: u64,
    /// And into it.
    pub received: u64,
}

impl Summary {
    fn new(at: u64, entry: &Entry) -> Self {
        let mut summary = Self {
            at,
            kind: What::Full,
            at_ms: 0,
            host: String::new(),
            port: 0,
            tls: false,
            method: String::new(),
            target: String::new(),
            range: String::new(),
            status: 0,
            sent: 0,
            received: 0,
        };
        match entry {
            Entry::Meta(meta) => {
                (summary.kind, summary.at_ms, summary.host) = (What::Meta, meta.at_ms, meta.sandbox.clone());
            }
            Entry::Lookup(lookup) => {
                (summary.kind, summary.at_ms, summary.host) =
                    (What::Lookup, lookup.at_ms, lookup.name.clone());
                summary.status = u16::from(lookup.found);
            }
            Entry::Exchange(exchange) => {
                (summary.kind, summary.at_ms) = (What::Request, exchange.at_ms);
                (summary.host, summary.port, summary.tls) =
                    (exchange.host.clone(), exchange.port, exchange.tls);
                (summary.method, summary.target) = (exchange.method.clone(), exchange.target.clone());
                summary.range = header(&exchange.headers, "range").unwrap_or_default().to_owned();
                summary.status = exchange.status;
                (summary.sent, summary.received) = (exchange.body.length, exchange.answer.length);
            }
            Entry::Stream(stream) => {
                (summary.kind, summary.at_ms) = (What::Stream, stream.at_ms);
                (summary.host, summary.port) = (stream.host.clone(), stream.port);
                if let Some(upgrade) = &stream.upgrade {
                    summary.tls = upgrade.tls;
                    (summary.method, summary.target) = (upgrade.method.clone(), upgrade.target.clone());
                    summary.status = upgrade.status;
                }
                for (way, content) in &stream.said {
                    match way {
                        Way::Out => summary.sent = summary.sent.saturating_add(content.length),
                        Way::In => summary.received = summary.received.saturating_add(content.length),
                    }
                }
            }
            Entry::Full => {}
        }
        summary
    }

    /// How much of an index it takes, about.
    fn length(&self) -> usize {
        let Self { host, method, target, range, .. } = self;
        ENTRY_IN_INDEX + [host, method, target, range].iter().map(|word| word.len()).sum::<usize>()
    }
}

/// Writes a recording.
pub struct Writer {
    file: File,
    at: u64,
    most: u64,
    pieces: HashMap<Hash, u64>,
    entries: Vec<Summary>,
    packer: zstd::bulk::Compressor<'static>,
    /// How long the index is, about.
    index: usize,
    is_full: bool,
    in_haste: bool,
}

impl fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Writer").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Writer {
    /// Goes on writing where a file ends, or begins one. It is written to its end, so no two may do so at once.
    pub fn new(file: File, most: u64) -> io::Result<Self> {
        let packer = zstd::bulk::Compressor::new(LEVEL)?;
        let length = file.metadata()?.len();
        if length == 0 {
            (&file).write_all(MAGIC)?;
            let (pieces, entries) = (HashMap::new(), Vec::new());
            let (at, index) = (MAGIC.len() as u64, 0);
            return Ok(Self {
                file,
                at,
                most,
                pieces,
                entries,
                packer,
                index,
                is_full: false,
                in_haste: false,
            });
        }
        let Reader { pieces, entries, length: good, .. } = Reader::new(file.try_clone()?)?;
        if good < length {
            // Half a frame, of one who was killed.
            file.set_len(good)?;
        }
        let is_full = entries.iter().any(|entry| entry.kind == What::Full);
        let index = pieces.len() * PIECE_IN_INDEX + entries.iter().map(Summary::length).sum::<usize>();
        Ok(Self { file, at: good, most, pieces, entries, packer, index, is_full, in_haste: false })
    }

    /// Whose network was written down last, in a file that was not new.
    pub fn whose(&self) -> Option<&str> {
        self.entries.iter().rfind(|entry| entry.kind == What::Meta).map(|entry| entry.host.as_str())
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether somebody waits, so that pieces are written as they are.
    pub fn hurry(&mut self, in_haste: bool) {
        self.in_haste = in_haste;
    }

    /// Keeps a piece, once.
    pub fn piece(&mut self, bytes: &[u8]) -> io::Result<Hash> {
        let hash = Hash::of(bytes);
        if !self.pieces.contains_key(&hash) && self.has_room(bytes.len(), PIECE_IN_INDEX)? {
            self.index += PIECE_IN_INDEX;
            self.pieces.insert(hash, self.at);
            self.frame(Kind::Piece, Some(hash), bytes)?;
        }
        Ok(hash)
    }

    /// Writes down something that happened.
    pub fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        let text = serde_json::to_vec(entry)?;
        let summary = Summary::new(self.at, entry);
        let more = if text.len() > MAX_ENTRY { MOST_INDEX } else { summary.length() };
        if !self.has_room(text.len(), more)? {
            return Ok(());
        }
        self.index += more;
        self.entries.push(summary);
        self.frame(Kind::Entry, None, &text)
    }

    /// Whether there is room for so many bytes, and so many in the index; says so in the file once there is not.
    fn has_room(&mut self, bytes: usize, in_index: usize) -> io::Result<bool> {
        let is_too_much = self.at.saturating_add(bytes as u64) > self.most
            || self.index.saturating_add(in_index) > MOST_INDEX;
        if !self.is_full && is_too_much {
            self.is_full = true;
            self.entries.push(Summary::new(self.at, &Entry::Full));
            self.frame(Kind::Entry, None, &serde_json::to_vec(&Entry::Full)?)?;
        }
        Ok(!self.is_full)
    }

    fn frame(&mut self, kind: Kind, address: Option<Hash>, content: &[u8]) -> io::Result<()> {
        let packed = if self.in_haste && kind == Kind::Piece {
            None
        } else {
            self.packer.compress(content).ok().filter(|packed| packed.len() < content.len())
        };
        let stored = packed.as_deref().unwrap_or(content);
        let number = |length: usize| u32::try_from(length).map_err(|_| damaged("a frame that is too long"));
        let head = Head {
            kind,
            is_packed: packed.is_some(),
            stored: number(stored.len())?,
            unpacked: number(content.len())?,
        };
        let mut bytes = Vec::with_capacity(HEAD + 32 + stored.len());
        bytes.extend(head.bytes());
        bytes.extend(address.into_iter().flat_map(|hash| hash.0));
        bytes.extend_from_slice(stored);
        self.file.write_all_at(&bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Writes the index. More can be written afterwards, in its place.
    pub fn finish(&mut self) -> io::Result<()> {
        let place = self.at;
        let mut content = Vec::new();
        content.extend(u32::try_from(self.pieces.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (hash, at) in &self.pieces {
            content.extend(hash.0);
            content.extend(at.to_le_bytes());
        }
        serde_json::to_writer(&mut content, &self.entries)?;
        if content.len() > MAX_INDEX {
            return Ok(());
        }
        self.frame(Kind::Index, None, &content)?;
        let mut end = place.to_le_bytes().to_vec();
        end.extend(END);
        self.file.write_all_at(&end, self.at)?;
        self.file.set_len(self.at + end.len() as u64)?;
        self.at = place;
        Ok(())
    }
}

/// Reads a recording.
#[derive(Debug)]
pub struct Reader {
    file: File,
    pieces: HashMap<Hash, u64>,
    entries: Vec<Summary>,
    /// How far it is whole, without its index.
    length: u64,
}

impl Reader {
    /// Opens a file.
    pub fn new(file: File) -> io::Result<Self> {
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, 0).map_err(|_| no_recording())?;
        if magic != *MAGIC {
            return Err(no_recording());
        }
        let mut reader =
            Self { file, pieces: HashMap::new(), entries: Vec::new(), length: MAGIC.len() as u64 };
        if !reader.read_index().unwrap_or(false) {
            reader.scan()?;
        }
        Ok(reader)
    }

    /// Everything that happened, in the order in which it ended.
    pub fn entries(&self) -> &[Summary] {
        &self.entries
    }

    /// Whose network was written down last.
    pub fn meta(&self) -> Option<Meta> {
        let last = self.entries.iter().rfind(|entry| entry.kind == What::Meta)?;
        match self.entry(last) {
            Ok(Entry::Meta(meta)) => Some(meta),
            _ => None,
        }
    }

    /// One of them.
    pub fn entry(&self, summary: &Summary) -> io::Result<Entry> {
        let text = self.frame(summary.at, Kind::Entry)?.1;
        serde_json::from_slice(&text).map_err(|_| damaged("an entry that cannot be read"))
    }

    /// A piece of content.
    pub fn piece(&self, hash: Hash) -> io::Result<Vec<u8>> {
        let at = *self.pieces.get(&hash).ok_or_else(|| damaged("lost a piece of content"))?;
        let (address, bytes) = self.frame(at, Kind::Piece)?;
        // What it says it is, it is.
        if address != Some(hash) || Hash::of(&bytes) != hash {
            return Err(damaged("a piece that is another"));
        }
        Ok(bytes)
    }

    /// All of a content, if it is not longer.
    pub fn content(&self, content: &Content, most: u64) -> io::Result<Vec<u8>> {
        if content.length > most {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the content is too long"));
        }
        let mut bytes = Vec::new();
        for hash in &content.pieces {
            bytes.extend(self.piece(*hash)?);
            if bytes.len() as u64 > most {
                return Err(damaged("more content than it says"));
            }
        }
        Ok(bytes)
    }

    fn head(&self, at: u64) -> io::Result<Head> {
        let mut bytes = [0; HEAD];
        self.file.read_exact_at(&mut bytes, at)?;
        Head::read(bytes)
    }

    fn frame(&self, at: u64, kind: Kind) -> io::Result<(Option<Hash>, Vec<u8>)> {
        let head = self.head(at)?;
        if head.kind != kind {
            return Err(damaged("a frame where another should be"));
        }
        let mut from = at.saturating_add(HEAD as u64);
        let mut address = None;
        if kind == Kind::Piece {
            let mut bytes = [0; 32];
            self.file.read_exact_at(&mut bytes, from)?;
            (address, from) = (Some(Hash(bytes)), from + 32);
        }
        // Only as much is made room for as there is.
        let left = self.file.metadata()?.len().saturating_sub(from);
        if u64::from(head.stored) > left {
            return Err(damaged("a frame that is cut off"));
        }
        let mut bytes = vec![0; head.stored as usize];
        self.file.read_exact_at(&mut bytes, from)?;
        if head.is_packed {
            bytes = zstd::bulk::decompress(&bytes, head.unpacked as usize)
                .map_err(|_| damaged("a frame that cannot be unpacked"))?;
        }
        if bytes.len() != head.unpacked as usize {
            return Err(damaged("a frame of another length than it says"));
        }
        Ok((address, bytes))
    }

    /// Reads the index at the end, if there is one.
    fn read_index(&mut self) -> io::Result<bool> {
        let length = self.file.metadata()?.len();
        let Some(at) = length.checked_sub(16) else { return Ok(false) };
        let mut end = [0; 16];
        self.file.read_exact_at(&mut end, at)?;
        let (place, word) = end.split_at(8);
        if word != END {
            return Ok(false);
        }
        let place = u64::from_le_bytes(place.try_into().unwrap_or_default());
        let content = self.frame(place, Kind::Index)?.1;
        let (count, rest) = content.split_at_checked(4).ok_or_else(|| damaged("half an index"))?;
        let count = u32::from_le_bytes(count.try_into().unwrap_or_default()) as usize;
        let (pieces, entries) = count
            .checked_mul(40)
            .and_then(|bytes| rest.split_at_checked(bytes))
            .ok_or_else(|| damaged("half an index"))?;
        self.entries =
            serde_json::from_slice(entries).map_err(|_| damaged("an index that cannot be read"))?;
        self.pieces = HashMap::with_capacity(count);
        self.pieces.extend(pieces.chunks_exact(40).filter_map(|piece| {
            let (hash, at) = piece.split_at(32);
            Some((Hash(hash.try_into().ok()?), u64::from_le_bytes(at.try_into().ok()?)))
        }));
        self.length = place;
        Ok(true)
    }

    /// Reads all frames, as far as they are whole.
    fn scan(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        (self.pieces, self.entries) = (HashMap::new(), Vec::new());
        let mut at = MAGIC.len() as u64;
        let mut left = MOST_SCANNED.saturating_add(length.saturating_mul(SCANNED_PER_BYTE));
        while let Ok(head) = self.head(at) {
            let next = at.saturating_add(head.span());
            if next > length {
                break;
            }
            match head.kind {
                Kind::Piece => {
                    let mut bytes = [0; 32];
                    self.file.read_exact_at(&mut bytes, at + HEAD as u64)?;
                    self.pieces.insert(Hash(bytes), at);
                }
                Kind::Entry => {
                    left = left
                        .checked_sub(u64::from(head.unpacked))
                        .ok_or_else(|| damaged("more in it than its length allows"))?;
                    let Ok((_, text)) = self.frame(at, Kind::Entry) else { break };
                    let Ok(entry) = serde_json::from_slice(&text) else { break };
                    self.entries.push(Summary::new(at, &entry));
                }
                // Written over by whoever went on.
                Kind::Index => break,
            }
            at = next;
        }
        self.length = at;
        Ok(())
    }
}

fn no_recording() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is not a recording")
}

#[cfg(test)]
mod tests {
    use super::super::{Exchange, Lookup, Stream};
    use super::*;

    fn lookup(number: u64) -> Entry {
        Entry::Lookup(Lookup { at_ms: number, name: format!("{number}.example"), found: true })
    }

    fn writer(file: &File) -> Writer {
        Writer::new(file.try_clone().unwrap(), 1 << 30).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let file = tempfile::tempfile().unwrap();
        let mut writer = writer(&file);
        let content: Vec<u8> = (0..MAX_PIECE).map(|number| (number / 7) as u8).collect();
        let pieces = vec![writer.piece(&content).unwrap(), writer.piece(b"short").unwrap()];
        assert_eq!(writer.piece(b"short").unwrap(), pieces[1], "once");
        let answer = Content { length: content.len() as u64 + 5, pieces, ..Content::default() };
        let exchange = Exchange { host: "a.example".into(), status: 200, answer, ..Exchange::default() };
        writer.entry(&Entry::Exchange(Box::new(exchange.clone()))).unwrap();
        writer.finish().unwrap();
        let written = file.metadata().unwrap().len();
        assert!(written < 20_000, "{written} bytes");
        let reader = Reader::new(file.try_clone().unwrap()).unwrap();
        let [summary] = reader.entries() else { panic!("{:?}", reader.entries()) };
        assert_eq!(
            (summary.kind, summary.status, summary.received),
            (What::Request, 200, exchange.answer.length)
        );
        let Entry::Exchange(read) = reader.entry(summary).unwrap() else { panic!("another kind") };
        assert_eq!(*read, exchange);
        assert_eq!(reader.content(&read.answer, 1 << 20).unwrap(), [&content[..], b"short"].concat());
        assert!(reader.content(&read.answer, 1 << 10).is_err(), "as much as one asks for, and no more");
    }

    #[test]
    fn what_was_written_in_haste_is_read() {
        let file = tempfile::tempfile().unwrap();
        let mut writer = writer(&file);
        let mut lengths = Vec::new();
        for (number, in_haste) in [false, true, false].into_iter().enumerate() {
            writer.hurry(in_haste);
            let content = vec![number as u8; MAX_PIECE];
            let before = writer.at;
            let hash = writer.piece(&content).unwrap();
            lengths.push(writer.at - before);
            writer.entry(&lookup(number as u64)).unwrap();
            writer.finish().unwrap();
            assert_eq!(Reader::new(file.try_clone().unwrap()).unwrap().piece(hash).unwrap(), content);
        }
        assert!(lengths[1] > MAX_PIECE as u64 && lengths[0] < 1000, "{lengths:?}");
    }

    #[test]
    fn writing_goes_on_wherever_it_was_cut_off() {
        let file = tempfile::tempfile().unwrap();
        let mut first = writer(&file);
        for number in 0..5 {
            first.entry(&lookup(number)).unwrap();
            first.piece(&number.to_le_bytes()).unwrap();
        }
        let without_index = file.metadata().unwrap().len();
        first.finish().unwrap();
        let with_index = file.metadata().unwrap().len();
        for length in (21..=with_index).rev() {
            let copy = tempfile::tempfile().unwrap();
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            copy.write_all_at(&bytes, 0).unwrap();
            let mut next = writer(&copy);
            next.entry(&lookup(9)).unwrap();
            if length % 2 == 0 {
                next.finish().unwrap();
            }
            let reader = Reader::new(copy).unwrap();
            let names: Vec<u64> = reader.entries().iter().map(|entry| entry.at_ms).collect();
            let (last, before) = names.split_last().unwrap();
            assert_eq!((*last, before), (9, &[0, 1, 2, 3, 4][..before.len()]), "{length}");
            assert!(length < without_index || before.len() == 5, "{length}");
        }
    }

    #[test]
    fn no_more_is_written_than_there_is_room_for() {
        let file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(file.try_clone().unwrap(), 100_000).unwrap();
        let noise = |number: u64| -> Vec<u8> {
            let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            (0..10_000)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 32) as u8
                })
                .collect()
        };
        for number in 0..50 {
            writer.piece(&noise(number)).unwrap();
            writer.entry(&lookup(number)).unwrap();
        }
        assert!(writer.is_full());
        writer.finish().unwrap();
        assert!(file.metadata().unwrap().len() < 110_000);
        let reader = Reader::new(file.try_clone().unwrap()).unwrap();
        assert_eq!(reader.entries().iter().filter(|entry| entry.kind == What::Full).count(), 1);
        assert!(Writer::new(file, 100_000).unwrap().is_full(), "and it stays so");
    }

    #[test]
    fn what_is_kept_in_memory_is_bounded() {
        let file = tempfile::tempfile().unwrap();
        let mut writer = writer(&file);
        let target = "a".repeat(60_000);
        for _ in 0..1000 {
            let exchange = Exchange { target: target.clone(), ..Exchange::default() };
            writer.entry(&Entry::Exchange(Box::new(exchange))).unwrap();
        }
        assert!(writer.is_full() && writer.index <= MOST_INDEX && writer.entries.len() < 500);
        writer.finish().unwrap();
        let entries = writer.entries.len();
        assert!(file.metadata().unwrap().len() < 1 << 20);
        // The index is much smaller packed than it may be, so that all is read: the same comes of it.
        assert_eq!(Reader::new(file).unwrap().entries().len(), entries);
    }

    /// A file of these frames: as many as this, of an entry padded with as many spaces.
    fn padded(frames: usize, spaces: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        let mut writer = writer(&file);
        let text = [&serde_json::to_vec(&lookup(1)).unwrap()[..], &vec![b' '; spaces]].concat();
        for _ in 0..frames {
            writer.frame(Kind::Entry, None, &text).unwrap();
        }
        file
    }

    #[test]
    fn small_files_that_say_much_are_damaged() {
        assert_eq!(Reader::new(padded(3, 1 << 20)).unwrap().entries().len(), 3);
        assert!(Reader::new(padded(80, 1 << 20)).is_err());
        let huge = Content { length: u64::MAX, ..Content::default() };
        let stream = Stream { said: vec![(Way::Out, huge.clone()), (Way::Out, huge)], ..Stream::default() };
        assert_eq!(Summary::new(0, &Entry::Stream(Box::new(stream))).sent, u64::MAX);
    }

    #[test]
    fn it_is_known_whose_a_file_is() {
        let file = tempfile::tempfile().unwrap();
        let mut first = writer(&file);
        assert_eq!(first.whose(), None);
        first.entry(&Entry::Meta(Meta { sandbox: "bj-one".into(), ..Meta::default() })).unwrap();
        assert_eq!(writer(&file).whose(), Some("bj-one"));
    }

    #[test]
    fn what_is_no_recording_is_none() {
        for bytes in [&b""[..], b"belljar recording 2\n", b"{}", &[0; 4096]] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(bytes, 0).unwrap();
            assert!(Reader::new(file).is_err(), "{bytes:?}");
        }
    }
}
