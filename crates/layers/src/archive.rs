//! Archives as they come: packed in one of several ways, and longer than they look.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// How an archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    None,
    /// By gzip.
    Gzip,
    /// By zstd.
    Zstd,
}

impl Packing {
    /// By how it begins.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// Unpacks what begins as if it were packed.
pub fn unpacking<'a>(mut source: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match Packing::of(source.fill_buf()?) {
        Packing::None => Box::new(source),
        Packing::Gzip => Box::new(MultiGzDecoder::new(source)),
        Packing::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            // What takes more memory than that was not packed for anybody.
            decoder.window_log_max(27)?;
            Box::new(decoder)
        }
    })
}

/// Whatever is read, under a bound and with its digest.
pub(crate) struct Counted<R> {
    inner: R,
    hash: Sha256,
    left: u64,
    is_over: bool,
}

impl<R: Read> Counted<R> {
    pub(crate) fn new(inner: R, most: u64) -> Self {
        Self { inner, hash: Sha256::new(), left: most, is_over: false }
    }

    /// Whether there was more than is allowed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The digest of all that was read, and of the rest.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, bool)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest(self.hash.finalize().into()), self.is_over))
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => {
                self.is_over = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}
