//! The content of a regular file, out and in.

use std::fs::File;
use std::io::{self, Read, Write};

use belljar_core::wire::MAX_DATA;
use belljar_core::{Error, Wall};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fstatfs, ftruncate, open};

use super::place::{self, Place};
use crate::failure;
use crate::worker::Answer;

/// The most that is read of a file of `/proc`, which does not know its own size.
const MAX_PROC: u64 = 16 * 1024 * 1024;

/// Sends a file, no more of it than there was when it was opened.
pub(crate) fn read(place: &Place, answer: &mut Answer) -> Result<(), Error> {
    let (file, stat) = open_regular(place, OFlags::RDONLY, Mode::empty())?;
    let of_proc = || fstatfs(&file).is_ok_and(|system| system.f_type == libc::PROC_SUPER_MAGIC);
    let size = if !Wall::RegularFiles.stands() || (stat.st_size == 0 && of_proc()) {
        MAX_PROC
    } else {
        stat.st_size as u64
    };
    copy(&mut file.take(size), answer).map_err(|error| place.failed_io(&error))?;
    answer.end()
}

/// Takes the worker's input as the new content of a file.
pub(crate) fn write(place: &Place, mode: u32) -> Result<(), Error> {
    place::make_parents(place)?;
    // A new file gets exactly the permissions that were asked for.
    let usual = rustix::process::umask(Mode::empty());
    let opened = open_regular(place, OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(mode & 0o777));
    rustix::process::umask(usual);
    let (mut file, _) = opened?;
    ftruncate(&file, 0).map_err(|errno| place.failed(errno))?;
    copy(&mut input(), &mut file).map_err(|error| place.failed_io(&error))
}

/// The worker's input.
pub(crate) fn input() -> impl Read {
    struct Input;
    impl Read for Input {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            Ok(rustix::io::read(rustix::stdio::stdin(), bytes)?)
        }
    }
    Input
}

/// Copies by reading and writing only; the kernel's ways to copy are not among the calls that a sandbox may make.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; MAX_DATA];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&piece[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens a file that must be regular, without ever waiting for a writer or becoming the owner of a terminal.
fn open_regular(place: &Place, flags: OFlags, mode: Mode) -> Result<(File, Stat), Error> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(place.path(), flags, mode).map_err(|errno| place.failed(errno))?;
    let stat = fstat(&file).map_err(|errno| place.failed(errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        _ if !Wall::RegularFiles.stands() => Ok((File::from(file), stat)),
        FileType::RegularFile => Ok((File::from(file), stat)),
        FileType::Directory => Err(failure::at(place, rustix::io::Errno::ISDIR)),
        FileType::Fifo => Err(place.offence("is a pipe, not a regular file")),
        FileType::Socket => Err(place.offence("is a socket, not a regular file")),
        _ => Err(place.offence("is a device, not a regular file")),
    }
}
