//! The head of a request: read strictly, written anew.

use std::net::IpAddr;

use belljar_core::HostName;

use super::{Bad, Framing, MAX_HEAD, MAX_HEADERS, is_token};
use crate::policy::Destination;

/// The port of requests that name none.
const PLAIN_PORT: u16 = 80;

/// The head of a request as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its method.
    pub method: String,
    /// The host that it names.
    pub host: Destination,
    /// The port that it names, or 80.
    pub port: u16,
    /// The path and query as they were sent, or `*`.
    pub target: String,
    /// Its version.
    pub version: Version,
    /// How the end of its body is found.
    pub framing: Framing,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
    headers: Vec<(String, Vec<u8>)>,
}

/// A version of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How far a head was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All bytes were taken, and more are needed.
    More,
    /// The head is complete; this many of the bytes were part of it.
    Done(Box<Head>, usize),
}

/// Reads a head as it arrives, in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct HeadReader {
    bytes: Vec<u8>,
}

impl HeadReader {
    /// A reader that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing of a head has come, so that the connection may as well end here.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[cfg(test)]
    pub(super) fn bytes_held(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the bytes that follow. After an error, and after a head, the reader is done with.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Progress, Bad> {
        for (at, byte) in bytes.iter().enumerate() {
            check_byte(self.bytes.last().copied(), *byte)?;
            if self.bytes.len() == MAX_HEAD {
                return Err(Bad::HeadTooLong);
            }
            self.bytes.push(*byte);
            if *byte == b'\n' {
                if self.bytes == b"\r\n" {
                    return Err(Bad::RequestLine);
                }
                if let Some(head) = self.bytes.strip_suffix(b"\r\n\r\n") {
                    return Ok(Progress::Done(Box::new(read_head(head)?), at + 1));
                }
            }
        }
        Ok(Progress::More)
    }
}

/// What no head holds, whatever follows: so that it is refused at once and not waited on.
fn check_byte(before: Option<u8>, byte: u8) -> Result<(), Bad> {
    match (before, byte) {
        (Some(b'\r'), b'\n') => Ok(()),
        (Some(b'\r'), _) | (_, b'\n') => Err(Bad::LineEnd),
        (_, b'\r' | b'\t') => Ok(()),
        (_, 0..0x20 | 0x7f) => Err(Bad::Control),
        _ => Ok(()),
    }
}

fn read_head(head: &[u8]) -> Result<Head, Bad> {
    // Every line feed follows a carriage return.
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (method, target, version) = read_request_line(lines.next().unwrap_or_default())?;
    let mut headers = Vec::new();
    for line in lines {
        if headers.len() == MAX_HEADERS {
            return Err(Bad::TooManyHeaders);
        }
        headers.push(read_header(line)?);
    }
    let framing = read_framing(&headers, version)?;
    let [host] = values(&headers, "host")[..] else { return Err(Bad::Hosts) };
    let (host, port) = read_authority(host, PLAIN_PORT)?;
    let target = read_target(&method, target, (&host, port))?;
    check_upgrade(&headers)?;
    let connection = tokens(&headers, "connection");
    if connection.iter().any(|name| NEVER_DROPPED.contains(&name.as_str())) {
        return Err(Bad::Connection);
    }
    let says = |word: &str| connection.iter().any(|token| token == word);
    let keep_alive = match version {
        Version::Http11 => !says("close"),
        Version::Http10 => says("keep-alive") && !says("close"),
    };
    headers.retain(|(name, _)| {
        let name = name.to_ascii_lowercase();
        !DROPPED.contains(&name.as_str()) && !connection.contains(&name)
    });
    Ok(Head { method, host, port, target, version, framing, keep_alive, headers })
}

fn read_request_line(line: &[u8]) -> Result<(String, &str, Version), Bad> {
    let line = std::str::from_utf8(line).ok().filter(|line| line.is_ascii()).ok_or(Bad::RequestLine)?;
    let [method, target, version] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(Bad::RequestLine);
    };
    let is_method = (1..=32).contains(&method.len()) && method.bytes().all(is_token);
    if !is_method || target.is_empty() || !line.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Err(Bad::RequestLine);
    }
    let version = match version {
        "HTTP/1.1" => Version::Http11,
        "HTTP/1.0" => Version::Http10,
        _ => return Err(Bad::Version),
    };
    Ok((method.to_owned(), target, version))
}

fn read_header(line: &[u8]) -> Result<(String, Vec<u8>), Bad> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err(Bad::Folded);
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Bad::Header)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(Bad::Header);
    }
    let name = String::from_utf8(name.to_vec()).map_err(|_| Bad::Header)?;
    // Some servers take these for the same header with a hyphen.
    let hyphened = name.replace('_', "-").to_ascii_lowercase();
    if name.contains('_') && NEVER_DROPPED.contains(&hyphened.as_str()) {
        return Err(Bad::Header);
    }
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |at| at + 1);
    Ok((name, value[start..end].to_vec()))
}

/// Headers by which a request is understood: nothing may take them away.
pub(crate) const NEVER_DROPPED: [&str; 3] = ["host", "content-length", "transfer-encoding"];

/// Headers that are about one connection, or that are written anew.
const DROPPED: [&str; 11] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "http2-settings",
];

fn values<'a>(headers: &'a [(String, Vec<u8>)], name: &str) -> Vec<&'a [u8]> {
    headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..]).collect()
}

/// The words of a list, in lower case.
fn tokens(headers: &[(String, Vec<u8>)], name: &str) -> Vec<String> {
    let lists = values(headers, name).into_iter().flat_map(|value| value.split(|byte| *byte == b','));
    lists
        .map(|word| String::from_utf8_lossy(word).trim().to_ascii_lowercase())
        .filter(|word| !word.is_empty())
        .collect()
}

fn read_framing(headers: &[(String, Vec<u8>)], version: Version) -> Result<Framing, Bad> {
    let lengths = values(headers, "content-length");
    let encodings = values(headers, "transfer-encoding");
    match (&lengths[..], &encodings[..]) {
        ([], []) => Ok(Framing::None),
        ([_, ..], [_, ..]) => Err(Bad::TwoLengths),
        ([length], []) => read_length(length).map(Framing::Length).ok_or(Bad::ContentLength),
        ([], [encoding]) if encoding.eq_ignore_ascii_case(b"chunked") && version == Version::Http11 => {
            Ok(Framing::Chunked)
        }
        ([_, ..], []) => Err(Bad::ContentLength),
        ([], [_, ..]) => Err(Bad::TransferEncoding),
    }
}

fn read_length(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let plain = (1..=18).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// Reads `host`, `host:port`, and the same with an address; without a port it is the usual one.
pub(crate) fn read_authority(text: &[u8], usual_port: u16) -> Result<(Destination, u16), Bad> {
    let text = std::str::from_utf8(text).map_err(|_| Bad::Host)?;
    let host_end = match text.strip_prefix('[') {
        Some(rest) => rest.find(']').ok_or(Bad::Host)? + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at(host_end);
    let port = match port.strip_prefix(':') {
        Some(digits) => read_port(digits).ok_or(Bad::Host)?,
        None if port.is_empty() => usual_port,
        None => return Err(Bad::Host),
    };
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = match (bracketed, host.parse()) {
        (Some(inner), _) => Destination::Address(IpAddr::V6(inner.parse().map_err(|_| Bad::Host)?)),
        (None, Ok(address)) => Destination::Address(IpAddr::V4(address)),
        (None, Err(_)) => Destination::Name(HostName::from_wire(host.as_bytes()).map_err(|_| Bad::Host)?),
    };
    Ok((host, port))
}

fn read_port(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    if plain { digits.parse().ok() } else { None }
}

/// The path and query of a target, which must not name another host than this one.
fn read_target(method: &str, target: &str, host: (&Destination, u16)) -> Result<String, Bad> {
    if method.eq_ignore_ascii_case("CONNECT") {
        return Err(Bad::Connect);
    }
    if target.contains('#') {
        return Err(Bad::Target);
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok(target.to_owned());
    }
    let scheme =
        target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://")).ok_or(Bad::Target)?;
    let rest = &target[scheme.len()..];
    let (authority, path) = rest.split_at(rest.find(['/', '?', '\\']).unwrap_or(rest.len()));
    let (own, port) = read_authority(authority.as_bytes(), PLAIN_PORT)?;
    if (&own, port) != host {
        return Err(Bad::HostsDiffer);
    }
    match path.as_bytes().first() {
        None => Ok("/".into()),
        Some(b'/') => Ok(path.to_owned()),
        Some(b'?') => Ok(format!("/{path}")),
        Some(_) => Err(Bad::Target),
    }
}

/// An offer to speak HTTP/2 is passed over, as servers may; any other protocol would be one that nobody judges.
fn check_upgrade(headers: &[(String, Vec<u8>)]) -> Result<(), Bad> {
    if tokens(headers, "upgrade").iter().all(|protocol| protocol == "h2c") {
        Ok(())
    } else {
        Err(Bad::Upgrade)
    }
}

/// Headers by which some servers take another method or another target than the request's own.
pub(crate) const OVERRIDES: [&str; 9] = [
    "x-original-method",
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
    "x-forwarded-uri",
    "x-forwarded-prefix",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

impl Head {
    /// A header by which some servers take this for another request than it is, if it has one.
    pub fn overriding(&self) -> Option<&str> {
        let names = self.headers.iter().map(|(name, _)| name.as_str());
        // Some servers take the one for the other.
        names
            .into_iter()
            .find(|name| OVERRIDES.contains(&name.to_ascii_lowercase().replace('_', "-").as_str()))
    }

    /// The head written anew, from what was understood: one host, one length, and nothing that is about the connection
    /// to the door.
    pub fn write(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(256);
        let version = match self.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        };
        let Self { method, target, host, port, .. } = self;
        head.extend(format!("{method} {target} {version}\r\nHost: {host}").bytes());
        if *port != PLAIN_PORT {
            head.extend(format!(":{port}").bytes());
        }
        head.extend(b"\r\n");
        for (name, value) in &self.headers {
            head.extend(name.bytes());
            head.extend(b": ");
            head.extend(value);
            head.extend(b"\r\n");
        }
        match self.framing {
            Framing::None => {}
            Framing::Length(length) => head.extend(format!("Content-Length: {length}\r\n").bytes()),
            Framing::Chunked => head.extend(b"Transfer-Encoding: chunked\r\n"),
        }
        match (self.version, self.keep_alive) {
            (Version::Http10, true) => head.extend(b"Connection: keep-alive\r\n"),
            (Version::Http11, false) => head.extend(b"Connection: close\r\n"),
            _ => {}
        }
        head.extend(b"\r\n");
        head
    }
}
