//! Questions of DNS, and the answers to them.

use std::net::IpAddr;

use belljar_network::dns::{Code, MAX_QUERY, NoQuery, Query, frame, unframe};

/// Reads the input as a message, and as a stream of messages.
pub fn check(bytes: &[u8]) {
    message(bytes);
    let mut stream = bytes;
    while let Ok(Some((inner, taken))) = unframe(stream) {
        assert!(inner.len() <= MAX_QUERY && taken == inner.len() + 2);
        assert_eq!(frame(inner), stream[..taken]);
        message(inner);
        stream = &stream[taken..];
    }
}

fn message(bytes: &[u8]) {
    match Query::read(bytes) {
        Ok(query) => {
            let addresses: [IpAddr; 20] =
                std::array::from_fn(
                    |at| if at % 2 == 0 { [192, 0, 2, 1].into() } else { [0x2001; 8].into() },
                );
            let known = query.known(&addresses, 60);
            answer(bytes, &known, 0);
            answer(bytes, &query.refuse(Code::Refused), 5);
            // The name that is judged is the one in the question, label by label.
            let mut labels = Vec::new();
            let mut at = 12;
            while bytes[at] != 0 {
                let end = at + 1 + usize::from(bytes[at]);
                labels.push(String::from_utf8(bytes[at + 1..end].to_ascii_lowercase()).unwrap());
                at = end;
            }
            assert!(query.name.labels().eq(labels.iter().map(String::as_str)));
            assert_eq!(known[12..at + 5], bytes[12..at + 5], "the question is repeated");
        }
        Err(NoQuery::Reply(_, reply)) => answer(bytes, &reply, reply[3] & 0xf),
        Err(NoQuery::Silence) => assert!(bytes.len() < 12 || bytes[2] & 0x80 != 0),
    }
}

/// An answer fits into any datagram, is to this question, and is not itself a question.
fn answer(bytes: &[u8], reply: &[u8], code: u8) {
    assert!((12..=512).contains(&reply.len()));
    assert_eq!(reply[..2], bytes[..2]);
    assert_eq!((reply[2] & 0x80, reply[3] & 0xf), (0x80, code));
    assert_eq!(Query::read(reply), Err(NoQuery::Silence), "no answer is answered");
}
