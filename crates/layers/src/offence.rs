//! Why an archive is refused.

use std::io;

use thiserror::Error;

/// What is wrong with an entry, or with all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offence {
    /// A name that leads out of the root.
    Traversal,
    /// A name that cannot be one: too long, or with a zero in it.
    Name,
    /// A device.
    Device,
    /// A pipe, a socket, or something of no kind that is known.
    Special,
    /// The same name twice.
    Duplicate,
    /// Something below what is not a directory.
    BelowFile,
    /// A hard link to what is not a file of this archive.
    HardLink,
    /// A symbolic link without a target, or with one that cannot be.
    SymbolicLink,
    /// A mark that takes away what it cannot.
    Whiteout,
    /// An attribute by which the kernel would take a file for something else.
    OverlayAttribute,
    /// Another attribute that files must not bring along.
    Attribute,
    /// More or less content than was said.
    SizeLie,
    /// More bytes than are allowed.
    Bomb,
    /// More entries than are allowed.
    TooMany,
    /// A header that cannot be read.
    Broken,
    /// Another digest than was promised.
    Digest,
}

impl Offence {
    /// Every offence.
    pub const ALL: [Self; 16] = [
        Self::Traversal,
        Self::Name,
        Self::Device,
        Self::Special,
        Self::Duplicate,
        Self::BelowFile,
        Self::HardLink,
        Self::SymbolicLink,
        Self::Whiteout,
        Self::OverlayAttribute,
        Self::Attribute,
        Self::SizeLie,
        Self::Bomb,
        Self::TooMany,
        Self::Broken,
        Self::Digest,
    ];

    /// The offence of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|offence| offence.as_str() == name)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traversal => "traversal",
            Self::Name => "name",
            Self::Device => "device",
            Self::Special => "special_file",
            Self::Duplicate => "duplicate",
            Self::BelowFile => "below_file",
            Self::HardLink => "hard_link",
            Self::SymbolicLink => "symbolic_link",
            Self::Whiteout => "whiteout",
            Self::OverlayAttribute => "overlay_attribute",
            Self::Attribute => "attribute",
            Self::SizeLie => "size_lie",
            Self::Bomb => "bomb",
            Self::TooMany => "too_many",
            Self::Broken => "broken",
            Self::Digest => "digest",
        }
    }
}

/// An archive that is refused, or could not be unpacked.
#[derive(Debug, Error)]
pub enum Refused {
    /// Something in it is an offence.
    #[error("{}: {what}", offence.as_str())]
    Offence {
        /// Which.
        offence: Offence,
        /// Where, in words that are safe to print.
        what: String,
    },
    /// Nothing is wrong with it, as far as that is known.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
        what: String,
        /// Why it was not.
        source: io::Error,
    },
}

impl Refused {
    pub(crate) fn offence(offence: Offence, name: &[u8], why: impl std::fmt::Display) -> Self {
        let name: String = String::from_utf8_lossy(name).escape_debug().take(200).collect();
        // Others' words may have names in them too.
        let steers = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let why: String = why.to_string().chars().take(1000).map(steers).collect();
        Self::Offence { offence, what: format!("`{name}` {why}") }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The offence, if it is one.
    pub fn is_offence(&self) -> Option<Offence> {
        match self {
            Self::Offence { offence, .. } => Some(*offence),
            Self::Io { .. } => None,
        }
    }
}
