//! Requests of HTTP/1 on plain connections, read strictly and written anew, so that a server sees what was judged.
//! Written by hand: parsers made for servers let pass what makes two of them disagree (bare line feeds, folded lines,
//! repeated lengths).
//!
//! A connection is a [`HeadReader`], then a [`BodyReader`] for what its head announces, then the next head, and so on.

mod body;
mod head;

pub use body::{BodyReader, LAST_CHUNK, Piece, write_chunk};
pub use head::{Head, HeadReader, Progress, Version};
pub(crate) use head::{NEVER_DROPPED, OVERRIDES, read_authority};

/// The longest head, in bytes.
pub const MAX_HEAD: usize = 64 * 1024;

/// The most headers of a request.
pub const MAX_HEADERS: usize = 100;

/// The longest trailers, in bytes. They are read and not passed on.
pub const MAX_TRAILERS: usize = 8 * 1024;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// By its length.
    Length(u64),
    /// By its last chunk.
    Chunked,
}

/// Why a request is refused: two servers could read it differently, or it wants out of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// More than [`MAX_HEAD`].
    #[error("the head of the request is longer than 64 KiB")]
    HeadTooLong,
    /// More than [`MAX_HEADERS`].
    #[error("the request has more than 100 headers")]
    TooManyHeaders,
    /// A line feed without a carriage return, or the reverse.
    #[error("lines end with a carriage return and a line feed, and neither stands alone")]
    LineEnd,
    /// A control character.
    #[error("there is a control character in the head")]
    Control,
    /// Not `METHOD TARGET HTTP/1.x`.
    #[error("the first line is not a request")]
    RequestLine,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("the version is neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// Neither a path nor an address of plain HTTP.
    #[error("the target is neither a path nor an http:// address")]
    Target,
    /// A tunnel.
    #[error("CONNECT is not served; connect to the host itself")]
    Connect,
    /// Another protocol on the same connection.
    #[error("switching to another protocol is not served")]
    Upgrade,
    /// Not `Name: value`.
    #[error("a header is malformed")]
    Header,
    /// A line that goes on in the next.
    #[error("a header is folded over two lines")]
    Folded,
    /// None, or several.
    #[error("the request does not have exactly one Host")]
    Hosts,
    /// Not a host.
    #[error("the Host is not a host, or names a user or a wrong port")]
    Host,
    /// Two hosts that differ.
    #[error("the target names another host than Host")]
    HostsDiffer,
    /// A length that is no number, or several.
    #[error("Content-Length is not exactly one number")]
    ContentLength,
    /// Anything but `chunked`.
    #[error("Transfer-Encoding is not exactly `chunked`")]
    TransferEncoding,
    /// Both a length and chunks.
    #[error("the request has both Content-Length and Transfer-Encoding")]
    TwoLengths,
    /// `Connection` names a header that others rely on.
    #[error("Connection names a header that it may not take away")]
    Connection,
    /// A chunk that is malformed.
    #[error("a chunk of the body is malformed")]
    Chunk,
    /// Trailers that are malformed or more than [`MAX_TRAILERS`].
    #[error("the trailers are malformed or longer than 8 KiB")]
    Trailers,
}

/// Whether the byte may stand in a method or in the name of a header.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;
