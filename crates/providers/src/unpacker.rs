//! Whoever unpacks archives of strangers: a process of its own, which can read the layers below, make files in the new one, and do
//! nothing else.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use belljar_jail::rights;
use belljar_layers::{Bounds, Offence, Refused, Stack, Unpacked, Unpacker, unpack};
use serde::{Deserialize, Serialize};

/// How the program is told to play this part.
const PART: &str = "unpack-layer";
/// The longest answer.
const LONGEST: u64 = 64 << 10;

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(Unpacked),
    Offence { offence: String, what: String },
    Failed { what: String, code: Option<i32>, why: String },
}

/// Has the program itself play the part.
#[derive(Clone, Debug)]
pub struct Confined {
    program: PathBuf,
}

impl Confined {
    /// With this program, whose `main` asks [`part`].
    pub fn new(program: PathBuf) -> Self {
        Self { program }
    }
}

fn failed(what: &str, source: io::Error) -> Refused {
    Refused::Io { what: what.to_owned(), source }
}

impl Unpacker for Confined {
    fn unpack(
        &self,
        archive: File,
        into: &Path,
        below: &[PathBuf],
        bounds: Bounds,
    ) -> Result<Unpacked, Refused> {
        let mut command = Command::new(&self.program);
        command.arg(PART).args([bounds.bytes.to_string(), bounds.entries.to_string()]).arg(into).args(below);
        command.env_clear().stdin(archive).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let starting = |error| failed("cannot start who unpacks it", error);
        let mut child = command.spawn().map_err(starting)?;
        let mut said = Vec::new();
        let heard = child.stdout.take().map(|stdout| stdout.take(LONGEST).read_to_end(&mut said));
        let ended = child.wait().map_err(starting)?;
        heard.transpose().map_err(starting)?;
        match serde_json::from_slice(&said) {
            Ok(Answer::Done(unpacked)) => Ok(unpacked),
            Ok(Answer::Offence { offence, what }) => {
                let offence = Offence::named(&offence).unwrap_or(Offence::Broken);
                Err(Refused::Offence { offence, what: what.chars().take(1000).collect() })
            }
            Ok(Answer::Failed { what, code, why }) => {
                let source = code.map_or_else(|| io::Error::other(why), io::Error::from_raw_os_error);
                Err(Refused::Io { what, source })
            }
            Err(_) => Err(failed("who unpacks it died", io::Error::other(ended.to_string()))),
        }
    }
}

/// Plays the part if the command line asks for it.
pub fn part() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [part, bytes, entries, into, below @ ..] = &words[..] else { return None };
    if part != PART {
        return None;
    }
    let number = |word: &OsString| word.to_str()?.parse::<u64>().ok();
    let bounds = Bounds { bytes: number(bytes)?, entries: number(entries)? };
    let answer = match play(Path::new(into), below, bounds) {
        Ok(unpacked) => Answer::Done(unpacked),
        Err(Refused::Offence { offence, what }) => {
            Answer::Offence { offence: offence.as_str().to_owned(), what }
        }
        Err(Refused::Io { what, source }) => {
            Answer::Failed { what, code: source.raw_os_error(), why: source.to_string() }
        }
    };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    Some(if io::stdout().write_all(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play(into: &Path, below: &[OsString], bounds: Bounds) -> Result<Unpacked, Refused> {
    let confining = |error| failed("cannot give up rights", error);
    rights::close_others().map_err(confining)?;
    let open = |path: &Path| {
        File::open(path).map(OwnedFd::from).map_err(|error| failed("cannot open a layer", error))
    };
    let into = open(into)?;
    let below = below.iter().map(|path| open(Path::new(path))).collect::<Result<Vec<_>, _>>()?;
    let readable: Vec<_> = below.iter().map(AsFd::as_fd).collect();
    rights::confine_unpacker(&readable, into.as_fd()).map_err(confining)?;
    let archive = BufReader::with_capacity(128 << 10, io::stdin().lock());
    unpack(archive, into, &Stack::new(below), bounds)
}
