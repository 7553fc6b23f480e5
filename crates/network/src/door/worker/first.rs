//! The first words of a client: which language it speaks.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::relay::receive;
use crate::client_hello::{self, ClientHello, Hello};
use crate::http::is_token;

/// How long the rest may take once the first byte is there.
const PATIENCE: Duration = Duration::from_secs(30);
/// A first line that is longer is taken for one of HTTP if it could be one.
const LONGEST_LINE: usize = 16 * 1024;
/// How much is read at a time.
const AT_ONCE: usize = 16 * 1024;

/// What a client speaks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    Tls(ClientHello),
    BadTls(client_hello::Bad),
    Http,
    /// Something else, or nothing at all.
    Other,
}

/// What has been read and not passed on.
#[derive(Debug, Default)]
pub(super) struct Opening {
    pub(super) bytes: Vec<u8>,
}

/// Reads until it is clear which language it is. The first byte may take as long as it likes: there are protocols in which the
/// other side begins.
pub(super) async fn first_words(client: &TcpStream, opening: &mut Opening) -> io::Result<First> {
    let mut hello = client_hello::Reader::new();
    let mut piece = receive(client, AT_ONCE).await?;
    let rest = async {
        loop {
            if piece.is_empty() {
                return Ok(cut_off(&opening.bytes));
            }
            let tls = hello.push(&piece);
            opening.bytes.append(&mut piece);
            match tls {
                Hello::Tls(hello) => return Ok(First::Tls(hello)),
                Hello::Bad(bad) => return Ok(First::BadTls(bad)),
                Hello::NotTls if is_other_record(&opening.bytes) => {
                    return Ok(First::BadTls(client_hello::Bad::Record));
                }
                Hello::NotTls => {
                    if let Some(http) = is_http(&opening.bytes) {
                        return Ok(if http { First::Http } else { First::Other });
                    }
                }
                Hello::More => {}
            }
            piece = receive(client, AT_ONCE).await?;
        }
    };
    tokio::time::timeout(PATIENCE, rest).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}

/// Whether these bytes begin a request of HTTP, however wrong; nothing while that cannot be said.
fn is_http(bytes: &[u8]) -> Option<bool> {
    // Some servers pass over blank lines.
    let start = bytes.iter().position(|byte| !b"\r\n \t".contains(byte))?;
    let line = &bytes[start..];
    let word = line.iter().position(|byte| !is_token(*byte)).unwrap_or(line.len());
    if word == 0 {
        return Some(false);
    }
    // No server takes a method as long as that.
    let Some(after) = line.get(word) else { return (line.len() >= LONGEST_LINE).then_some(false) };
    if !after.is_ascii_whitespace() {
        return Some(false);
    }
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return (line.len() >= LONGEST_LINE).then_some(true);
    };
    let line = line[..end].to_ascii_lowercase();
    let versioned = line.windows(6).any(|part| part[0].is_ascii_whitespace() && &part[1..] == b"http/");
    // The oldest kind has no version; and what proxies say to servers comes before a request.
    let target = line[word..].iter().find(|byte| !byte.is_ascii_whitespace());
    Some(versioned || target == Some(&b'/') || line[..word] == *b"proxy")
}

/// What the first words were of a client that says no more: some servers take a line, or a hello, that is not ended for a whole one.
fn cut_off(bytes: &[u8]) -> First {
    match bytes {
        [22, ..] => First::BadTls(client_hello::Bad::Malformed),
        _ if is_http(&[bytes, b"\n"].concat()) == Some(true) => First::Http,
        _ => First::Other,
    }
}

/// Whether this is a record of TLS that is no handshake, or of a version that is none: no server should see one first.
fn is_other_record(bytes: &[u8]) -> bool {
    matches!(bytes, [20 | 21 | 23 | 24, 3, ..] | [22, 0..=2 | 4..=15, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_what_it_would_have_been() {
        assert_eq!(cut_off(b"GET http://other.test/ HTTP/1.0"), First::Http);
        assert_eq!(cut_off(b"GET /x"), First::Http);
        assert_eq!(cut_off(b"\x16\x03\x01\x02"), First::BadTls(client_hello::Bad::Malformed));
        for other in ["", "EHLO a", "QUIT", "GET"] {
            assert_eq!(cut_off(other.as_bytes()), First::Other, "{other}");
        }
        assert!(is_other_record(&[22, 2, 0, 0, 5]) && !is_other_record(&[22, 3, 1, 0, 5]));
    }

    #[test]
    fn requests_are_known_however_wrong_they_are() {
        for http in [
            "GET / HTTP/1.1\r\n",
            "get / http/1.1\n",
            "\r\n\r\nGET / HTTP/1.1\r\n",
            "GET\t/\tHTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n",
            "X-Y / HTTP/9\n",
            "G3T / HTTP/1.1\r\n",
            "M! / HTTP/1.1\r\n",
            "GET /\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n",
        ] {
            assert_eq!(is_http(http.as_bytes()), Some(true), "{http:?}");
        }
        let long = format!("GET /{}", "a".repeat(LONGEST_LINE));
        assert_eq!(is_http(long.as_bytes()), Some(true));
        assert_eq!(is_http("G".repeat(LONGEST_LINE).as_bytes()), Some(false));
        let method = format!("{} / HTTP/1.1\r\n", "G".repeat(40));
        assert_eq!(is_http(method.as_bytes()), Some(true));
        for other in [
            "SSH-2.0-OpenSSH_9.2 Debian\r\n",
            "PING\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "\0\0\0\x08",
            "EHLO a b\r\n",
        ] {
            assert_eq!(is_http(other.as_bytes()), Some(false), "{other:?}");
        }
        for unclear in ["", "\r\n", "GE", "GET", "GET /", "GET / HTTP/1.1"] {
            assert_eq!(is_http(unclear.as_bytes()), None, "{unclear:?}");
        }
    }
}
