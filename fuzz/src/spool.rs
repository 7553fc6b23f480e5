//! Spools: writes, readers that lag, segments that were cut short and segments that could not be made.

use std::fs::{self, File};
use std::path::Path;

use belljar_core::{Position, Stream};
use belljar_jail::spool::{Bounds, Piece, Reader, Spool};

use crate::script::Script;
use crate::yard;

const SEGMENT_HEADER: u64 = 16;
const RECORD_HEADER: u64 = 5;

/// Reads the input as steps of a writer, its readers and its disk.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let bounds = Bounds {
        segment: [24, 40, 64, 300][script.below(4)],
        head: script.below(4) as u32,
        tail: script.below(3) as u32 + 1,
    };
    let directory = yard::empty();
    let spool = Spool::create(File::open(directory.path()).unwrap(), "1", bounds).unwrap();
    let mut desk = Desk {
        path: directory.path().join("1"),
        spool,
        written: [Vec::new(), Vec::new()],
        readers: Vec::new(),
        cost: SEGMENT_HEADER,
        intact: true,
    };
    for _ in 0..400 {
        if script.is_over() {
            break;
        }
        desk.step(&mut script);
    }
    desk.settle(bounds);
}

struct Desk {
    path: std::path::PathBuf,
    spool: Spool,
    /// All that was ever written to each stream.
    written: [Vec<u8>; 2],
    readers: Vec<Follower>,
    /// What all of it takes in one segment, headers included.
    cost: u64,
    /// Whether the disk kept everything so far.
    intact: bool,
}

struct Follower {
    reader: Reader,
    at: [usize; 2],
    gaps: u64,
}

impl Desk {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(8) {
            0..=3 => {
                let which = script.below(2);
                let length = usize::from(script.word()) % 700;
                let first = self.written[which].len();
                // Every byte says where it stands, so that one in a wrong place is seen.
                let piece: Vec<u8> =
                    (first..first + length).map(|at| (at % 251) as u8 ^ (which as u8) << 7).collect();
                self.written[which].extend_from_slice(&piece);
                self.cost += if length == 0 { 0 } else { RECORD_HEADER + length as u64 };
                self.spool.append([Stream::Stdout, Stream::Stderr][which], &piece);
            }
            4 if self.readers.len() < 4 => {
                let at = self.written.each_ref().map(|all| usize::from(script.word()) % (all.len() + 1));
                let from = Position { stdout: at[0] as u64, stderr: at[1] as u64 };
                let reader = self.spool.reader_from(from).expect("no position is beyond what was written");
                self.readers.push(Follower { reader, at, gaps: 0 });
            }
            5 | 6 => {
                let count = self.readers.len().max(1);
                if let Some(follower) = self.readers.get_mut(script.below(count)) {
                    follower.read(&self.spool, &self.written, script.below(8));
                }
            }
            _ => self.harm(script),
        }
    }

    /// What a full disk can do: a finished segment ends in the middle of a record, the next one cannot be made, or can
    /// again.
    fn harm(&mut self, script: &mut Script<'_>) {
        // There is no directory before there is something to keep.
        let mut names: Vec<_> =
            fs::read_dir(&self.path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let newest = names.last().cloned();
        let number = |path: &Path| path.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap();
        match (script.below(3), newest) {
            (0, Some(_)) => {
                let segments: Vec<_> = names.iter().filter(|name| name.is_file()).collect();
                // The newest may still be written to.
                let Some((_, finished)) = segments.split_last().filter(|(_, finished)| !finished.is_empty())
                else {
                    return;
                };
                let segment = finished[script.below(finished.len())];
                let file = File::options().write(true).open(segment).unwrap();
                let length = file.metadata().unwrap().len();
                let cut = SEGMENT_HEADER + u64::from(script.word()) % (length - SEGMENT_HEADER + 1);
                file.set_len(cut).unwrap();
                self.intact = false;
            }
            (1, Some(newest)) => {
                let _ = fs::create_dir(self.path.join(format!("{:08}", number(&newest) + 1)));
                self.intact = false;
            }
            (_, Some(newest)) => {
                let _ = fs::remove_dir(newest);
            }
            (_, None) => {}
        }
    }

    /// Every reader comes to the end, and knows exactly what it missed.
    fn settle(mut self, bounds: Bounds) {
        let reader = self.spool.reader();
        self.readers.push(Follower { reader, at: [0, 0], gaps: 0 });
        for follower in &mut self.readers {
            follower.read(&self.spool, &self.written, usize::MAX);
            assert_eq!(follower.at, [self.written[0].len(), self.written[1].len()], "bytes and gaps add up");
        }
        let entries = fs::read_dir(&self.path).into_iter().flatten().map(|entry| entry.unwrap());
        // What stands in the way of a segment is a directory, and ours.
        let files: Vec<_> = entries.filter(|entry| entry.file_type().unwrap().is_file()).collect();
        let most = (bounds.head + bounds.tail) as usize;
        assert!(files.len() <= most, "{} segments where {most} are allowed", files.len());
        if self.intact && self.cost <= bounds.segment {
            assert!(self.readers.iter().all(|follower| follower.gaps == 0), "a gap where everything fits");
        }
    }
}

impl Follower {
    fn read(&mut self, spool: &Spool, written: &[Vec<u8>; 2], most: usize) {
        let bound = 4 * (written[0].len() + written[1].len()) + 1000;
        for step in 0..most {
            assert!(step < bound, "a reader does not come to an end");
            match self.reader.next(spool) {
                Ok(None) => return,
                Ok(Some(Piece::Bytes(stream, bytes))) => {
                    let which = usize::from(stream == Stream::Stderr);
                    let there = self.at[which]..self.at[which] + bytes.len();
                    assert_eq!(written[which].get(there), Some(&bytes[..]), "bytes in their place");
                    self.at[which] += bytes.len();
                }
                Ok(Some(Piece::Gap(stream, missing))) => {
                    assert!(missing > 0, "a gap of nothing");
                    self.gaps += 1;
                    self.at[usize::from(stream == Stream::Stderr)] += missing as usize;
                }
                Err(error) => panic!("a reader fails: {error}"),
            }
            assert!(
                self.at[0] <= written[0].len() && self.at[1] <= written[1].len(),
                "beyond what was written"
            );
        }
    }
}
