//! Requests of HTTP/1 on one connection.

use belljar_network::http::{
    Bad, BodyReader, Framing, Head, HeadReader, LAST_CHUNK, Piece, Progress, write_chunk,
};

use crate::script::Script;

/// A request that was found: its head, its content, and whether its end was seen.
type Found = (Head, Vec<u8>, bool);

/// Reads the input whole and in pieces, and reads again what would be sent on.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let size = script.below(64) + 1;
    let bytes = script.rest();
    let (whole, end) = connection(bytes, bytes.len().max(1));
    assert_eq!(connection(bytes, size), (whole.clone(), end), "cutting changes nothing");
    let mut sent_on = Vec::new();
    let complete: Vec<Found> = whole.into_iter().filter(|(_, _, over)| *over).collect();
    for (head, content, _) in &complete {
        written(head);
        sent_on.extend(head.write());
        match head.framing {
            Framing::None => assert!(content.is_empty()),
            Framing::Length(length) => {
                assert_eq!(content.len() as u64, length);
                sent_on.extend(content);
            }
            Framing::Chunked => {
                write_chunk(content, &mut sent_on);
                sent_on.extend(LAST_CHUNK);
            }
        }
    }
    assert_eq!(connection(&sent_on, sent_on.len().max(1)), (complete, None), "a server sees what was judged");
}

/// What is found on a connection, and the error that ended it.
fn connection(bytes: &[u8], size: usize) -> (Vec<Found>, Option<Bad>) {
    let mut found: Vec<Found> = Vec::new();
    let mut reader = HeadReader::new();
    let mut body: Option<BodyReader> = None;
    for piece in bytes.chunks(size) {
        let mut rest = piece;
        while !rest.is_empty() {
            match &mut body {
                None => match reader.push(rest) {
                    Err(bad) => return (found, Some(bad)),
                    Ok(Progress::More) => rest = &[],
                    Ok(Progress::Done(head, taken)) => {
                        rest = &rest[taken..];
                        reader = HeadReader::new();
                        let next = BodyReader::new(head.framing);
                        found.push((*head, Vec::new(), next.is_over()));
                        body = Some(next).filter(|body| !body.is_over());
                    }
                },
                Some(reader) => match reader.take(rest) {
                    Err(bad) => return (found, Some(bad)),
                    Ok(Piece { content, taken }) => {
                        assert!(taken > 0 && taken <= rest.len() && content.len() <= taken);
                        rest = &rest[taken..];
                        let (_, all, over) = found.last_mut().unwrap();
                        all.extend(content);
                        *over = reader.is_over();
                        if *over {
                            body = None;
                        }
                    }
                },
            }
        }
    }
    (found, None)
}

/// What is sent on has one host, at most one length, and lines that end as lines do.
fn written(head: &Head) {
    let bytes = head.write();
    let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let count = |name: &str| text.matches(&format!("\r\n{name}:")).count();
    assert_eq!(count("host"), 1);
    assert!(count("content-length") + count("transfer-encoding") <= 1);
    assert_eq!(count("upgrade") + count("te") + count("keep-alive"), 0);
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), text.matches("\r\n").count());
    assert_eq!(text.matches("\r\n\r\n").count(), 1);
    let line = text.lines().next().unwrap();
    assert_eq!(line.matches(' ').count(), 2);
}
