//! The first words of TLS clients.

use belljar_core::HostName;
use belljar_network::client_hello::{Hello, Reader};

use crate::script::Script;

/// Reads the input whole and in pieces.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let size = script.below(64) + 1;
    let bytes = script.rest();
    let whole = Reader::new().push(bytes);
    let mut reader = Reader::new();
    let mut last = Hello::More;
    for piece in bytes.chunks(size) {
        let now = reader.push(piece);
        assert!(last == Hello::More || last == now, "an answer stays");
        last = now;
    }
    assert_eq!(last, whole, "cutting changes nothing");
    if let Hello::Tls(hello) = whole {
        assert!(bytes.starts_with(&[22, 3]) && hello.alpn.len() <= 64);
        if let Some(name) = hello.sni {
            assert_eq!(HostName::parse(name.as_str()).as_ref(), Ok(&name));
            assert!(contains(bytes, name.as_str().as_bytes()), "the name is the one that was sent");
        }
    }
}

/// Whether the bytes hold the name in this order, in letters of either case, perhaps with headers of records between.
fn contains(bytes: &[u8], name: &[u8]) -> bool {
    let mut wanted = name.iter();
    let mut next = wanted.next();
    for byte in bytes {
        if next.is_some_and(|next| byte.eq_ignore_ascii_case(next)) {
            next = wanted.next();
        }
    }
    next.is_none()
}
