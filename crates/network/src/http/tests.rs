use super::*;
use crate::policy::Destination;

fn head(text: &str) -> Result<Head, Bad> {
    head_of(text.as_bytes())
}

fn head_of(bytes: &[u8]) -> Result<Head, Bad> {
    match HeadReader::new().push(bytes)? {
        Progress::Done(head, taken) => {
            assert_eq!(taken, bytes.len());
            Ok(*head)
        }
        Progress::More => panic!("incomplete: {:?}", String::from_utf8_lossy(bytes)),
    }
}

fn written(head: &Head) -> String {
    String::from_utf8(head.write()).unwrap()
}

/// Every request on a connection: its first line, and the content of its body.
fn requests(bytes: &[u8], piece: usize) -> Result<Vec<(String, Vec<u8>)>, Bad> {
    let mut found = Vec::new();
    let mut reader = HeadReader::new();
    let mut body: Option<BodyReader> = None;
    for bytes in bytes.chunks(piece) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match &mut body {
                None => match reader.push(rest)? {
                    Progress::More => rest = &[],
                    Progress::Done(head, taken) => {
                        rest = &rest[taken..];
                        reader = HeadReader::new();
                        body = Some(BodyReader::new(head.framing)).filter(|body| !body.is_over());
                        found.push((format!("{} {}", head.method, head.target), Vec::new()));
                    }
                },
                Some(reader) => {
                    let Piece { content, taken } = reader.take(rest)?;
                    found.last_mut().unwrap().1.extend(content);
                    rest = &rest[taken..];
                    if reader.is_over() {
                        body = None;
                    }
                }
            }
        }
    }
    assert!(body.is_none() && reader.is_empty(), "everything was read");
    Ok(found)
}

#[test]
fn a_head_is_understood_and_written_anew() {
    let read = head(
        "GET /v1/a?b=c HTTP/1.1\r\nhOsT: Example.org:8080\r\nAccept: */*\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\n\
         X-Other:  a b \t\r\nX-Empty:\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Connection: x\r\n\r\n",
    )
    .unwrap();
    assert_eq!(read.host, Destination::Name("example.org".parse().unwrap()));
    assert_eq!((read.method.as_str(), read.port, read.target.as_str()), ("GET", 8080, "/v1/a?b=c"));
    assert_eq!((read.framing, read.keep_alive), (Framing::None, true));
    let text = written(&read);
    assert_eq!(
        text,
        "GET /v1/a?b=c HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\nX-Other: a b\r\nX-Empty: \r\n\r\n"
    );
    assert_eq!(head(&text).unwrap(), read);
}

#[test]
fn hosts_and_targets() {
    for (first, host, line, written_host) in [
        ("GET http://a.org/x HTTP/1.1", "a.org", "GET /x", "a.org"),
        ("GET HTTP://A.org:80/x HTTP/1.1", "a.ORG", "GET /x", "a.org"),
        ("GET http://a.org HTTP/1.1", "a.org", "GET /", "a.org"),
        ("GET http://a.org?q HTTP/1.1", "a.org", "GET /?q", "a.org"),
        ("OPTIONS * HTTP/1.1", "a.org.", "OPTIONS *", "a.org"),
        ("GET //x/../y HTTP/1.1", "192.0.2.7:81", "GET //x/../y", "192.0.2.7:81"),
        ("GET / HTTP/1.1", "[2001:db8::1]:81", "GET /", "[2001:db8::1]:81"),
    ] {
        let read = head(&format!("{first}\r\nHost: {host}\r\n\r\n")).unwrap();
        assert_eq!(written(&read), format!("{line} HTTP/1.1\r\nHost: {written_host}\r\n\r\n"), "{first}");
    }
    for host in [
        "",
        "a.org:",
        "a.org:0",
        "a.org:080",
        "a.org:+80",
        "a.org:65536",
        "a.org:80:80",
        "u@a.org",
        "u:p@a.org",
        "a.org/x",
        "a_b.org",
        "127.1",
        "0x7f.1",
        "[::1",
        "[::1]x",
        "[a.org]",
        "::1",
        "[fe80::1%25eth0]",
        "a.org, b.org",
        "a org",
        "*.org",
        "a.org#",
        "a\\b",
    ] {
        assert_eq!(head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), Err(Bad::Host), "{host}");
    }
    assert_eq!(head_of(b"GET / HTTP/1.1\r\nHost: caf\xc3\xa9.org\r\n\r\n"), Err(Bad::Host));
    for (first, expected) in [
        ("GET http://b.org/ HTTP/1.1", Bad::HostsDiffer),
        ("GET http://a.org:81/ HTTP/1.1", Bad::HostsDiffer),
        ("GET http://u@a.org/ HTTP/1.1", Bad::Host),
        ("GET http://a.org\\@b.org/ HTTP/1.1", Bad::Target),
        ("GET http:/// HTTP/1.1", Bad::Host),
        ("GET https://a.org/ HTTP/1.1", Bad::Target),
        ("GET a.org/ HTTP/1.1", Bad::Target),
        ("GET * HTTP/1.1", Bad::Target),
        ("GET /a#b HTTP/1.1", Bad::Target),
        ("CONNECT a.org:443 HTTP/1.1", Bad::Connect),
        ("connect / HTTP/1.1", Bad::Connect),
        ("GET / HTTP/2.0", Bad::Version),
        ("GET / HTTP/1.2", Bad::Version),
        ("GET / http/1.1", Bad::Version),
        ("GET /", Bad::RequestLine),
        ("GET  / HTTP/1.1", Bad::RequestLine),
        ("GET / HTTP/1.1 ", Bad::RequestLine),
        (" GET / HTTP/1.1", Bad::RequestLine),
        ("GET\t/ HTTP/1.1", Bad::RequestLine),
        ("G\u{e9}T / HTTP/1.1", Bad::RequestLine),
        ("G(T / HTTP/1.1", Bad::RequestLine),
        ("GET /\u{e9} HTTP/1.1", Bad::RequestLine),
        ("GET /a\tb HTTP/1.1", Bad::RequestLine),
    ] {
        assert_eq!(head(&format!("{first}\r\nHost: a.org\r\n\r\n")), Err(expected), "{first}");
    }
    assert_eq!(head("GET / HTTP/1.1\r\n\r\n"), Err(Bad::Hosts));
    assert_eq!(head("GET http://a.org/ HTTP/1.0\r\n\r\n"), Err(Bad::Hosts));
    assert_eq!(head("GET / HTTP/1.1\r\nHost: a.org\r\nHOST: a.org\r\n\r\n"), Err(Bad::Hosts));
}

/// The row NW-12 and its relatives: each is refused before a server could see a second request in it.
#[test]
fn smuggling_is_refused() {
    use Bad::*;
    for (headers, expected) in [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", TwoLengths),
        ("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", TwoLengths),
        ("Content-Length: 6\r\nTransfer-Encoding: identity\r\n", TwoLengths),
        ("Content-Length: 6\r\nContent-Length: 6\r\n", ContentLength),
        ("Content-Length: 6\r\nContent-Length: 7\r\n", ContentLength),
        ("Content-Length: 6\r\ncontent-length: 0\r\n", ContentLength),
        ("Content-Length: 6, 6\r\n", ContentLength),
        ("Content-Length: +6\r\n", ContentLength),
        ("Content-Length: -1\r\n", ContentLength),
        ("Content-Length: 0x6\r\n", ContentLength),
        ("Content-Length: 6 6\r\n", ContentLength),
        ("Content-Length: 6.0\r\n", ContentLength),
        ("Content-Length:\r\n", ContentLength),
        ("Content-Length: 99999999999999999999\r\n", ContentLength),
        ("Transfer-Encoding: xchunked\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked, identity\r\n", TransferEncoding),
        ("Transfer-Encoding: gzip, chunked\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked, chunked\r\n", TransferEncoding),
        ("Transfer-Encoding: \"chunked\"\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked;x=y\r\n", TransferEncoding),
        ("Transfer-Encoding:\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", TransferEncoding),
        ("Transfer-Encoding:\r\n chunked\r\n", Folded),
        ("X: a\r\n\tTransfer-Encoding: chunked\r\n", Folded),
        (" Transfer-Encoding: chunked\r\n", Folded),
        ("Transfer-Encoding : chunked\r\n", Header),
        ("Transfer-Encoding\t: chunked\r\n", Header),
        ("Transfer_Encoding: chunked\r\n", Header),
        ("Content_Length: 6\r\n", Header),
        ("Transfer-Encoding\r\n", Header),
        (": x\r\n", Header),
        ("X(: x\r\n", Header),
        ("X\u{e9}: x\r\n", Header),
        ("Transfer-Encoding:\u{b}chunked\r\n", Control),
        ("Transfer-Encoding: chunked\u{c}\r\n", Control),
        ("X: a\0b\r\n", Control),
        ("X: a\u{7f}\r\n", Control),
        ("X: a\nTransfer-Encoding: chunked\r\n", LineEnd),
        ("X: a\rTransfer-Encoding: chunked\r\n", LineEnd),
        ("X: a\r\r\nTransfer-Encoding: chunked\r\n", LineEnd),
        ("Connection: content-length\r\nContent-Length: 6\r\n", Connection),
        ("Connection: close, Host\r\n", Connection),
        ("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n", Connection),
        ("Connection: upgrade\r\nUpgrade: websocket\r\n", Upgrade),
        ("Upgrade: h2c, websocket\r\n", Upgrade),
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: a.org\r\n{headers}\r\n");
        assert_eq!(head(&text), Err(expected), "{headers:?}");
    }
    assert_eq!(
        head("POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Err(TransferEncoding)
    );
    assert_eq!(head("\r\n"), Err(RequestLine));
    assert_eq!(
        HeadReader::new().push(b"GET / HTTP/1.1\n"),
        Err(LineEnd),
        "at once, and not when the head is over"
    );
    let offered = head(
        "GET / HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
    );
    assert_eq!(written(&offered.unwrap()), "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n");
}

#[test]
fn heads_are_bounded() {
    let with = |headers: usize| {
        head(&format!("GET / HTTP/1.1\r\nHost: a.org\r\n{}\r\n", "X: y\r\n".repeat(headers - 1)))
    };
    assert!(with(MAX_HEADERS).is_ok());
    assert_eq!(with(MAX_HEADERS + 1), Err(Bad::TooManyHeaders));
    let mut reader = HeadReader::new();
    assert_eq!(reader.push(&vec![b'a'; MAX_HEAD]), Ok(Progress::More));
    assert_eq!(reader.push(b"a"), Err(Bad::HeadTooLong));
    assert!(reader.bytes_held() <= MAX_HEAD);
}

#[test]
fn connections_that_stay_and_that_end() {
    for (version, connection, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: Keep-Alive\r\nConnection: Close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
    ] {
        let read = head(&format!("GET / HTTP/{version}\r\nHost: a.org\r\n{connection}\r\n")).unwrap();
        assert_eq!(read.keep_alive, keep_alive, "{version} {connection}");
        assert_eq!(head(&written(&read)).unwrap(), read);
    }
}

#[test]
fn pipelined_requests_are_found_one_by_one() {
    let bytes = b"GET /1 HTTP/1.1\r\nHost: a.org\r\n\r\n\
        POST /2 HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\nGET /\
        POST /3 HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n00A\r\n0123456789\r\n0\r\nX-T: y\r\n\r\n\
        PUT /4 HTTP/1.1\r\nHost: a.org\r\nContent-Length: 0\r\n\r\n\
        POST /5 HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
        GET /6 HTTP/1.1\r\nHost: a.org\r\n\r\n";
    let expected: Vec<(String, Vec<u8>)> = [
        ("GET /1", ""),
        ("POST /2", "GET /"),
        ("POST /3", "hello0123456789"),
        ("PUT /4", ""),
        ("POST /5", ""),
        ("GET /6", ""),
    ]
    .map(|(line, body)| (line.to_owned(), body.as_bytes().to_vec()))
    .to_vec();
    for piece in 1..bytes.len() {
        assert_eq!(requests(bytes, piece), Ok(expected.clone()), "in pieces of {piece}");
    }
}

#[test]
fn bodies_that_are_no_bodies() {
    for (body, expected) in [
        ("\r\n", Bad::Chunk),
        ("5\nhello\r\n", Bad::Chunk),
        ("5\r\nhello!\r\n", Bad::Chunk),
        ("5\r\nhello\n0\r\n\r\n", Bad::Chunk),
        ("5\r\nhello\r0\r\n\r\n", Bad::Chunk),
        ("5\r\nhello!\n0\r\n\r\n", Bad::Chunk),
        ("5\r\nhello\n\n0\r\n\r\n", Bad::Chunk),
        ("5;x=y\r\nhello\r\n", Bad::Chunk),
        ("5 \r\nhello\r\n", Bad::Chunk),
        (" 5\r\nhello\r\n", Bad::Chunk),
        ("+5\r\nhello\r\n", Bad::Chunk),
        ("-5\r\n", Bad::Chunk),
        ("0x5\r\nhello\r\n", Bad::Chunk),
        ("g\r\n", Bad::Chunk),
        ("0000000000000005\r\n", Bad::Chunk),
        ("fffffffffffffffff\r\n", Bad::Chunk),
        ("5\r\r\n", Bad::Chunk),
        ("0\r\nX\r\n\r\n", Bad::Trailers),
        ("0\r\n: x\r\n\r\n", Bad::Trailers),
        ("0\r\nX : x\r\n\r\n", Bad::Trailers),
        ("0\r\n X: x\r\n\r\n", Bad::Trailers),
        ("0\r\nX: x\n\r\n", Bad::Trailers),
        ("0\r\nX: x\rY: y\r\n\r\n", Bad::Trailers),
        ("0\r\nX: \0\r\n\r\n", Bad::Trailers),
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        for piece in [1, 2, bytes.len()] {
            assert_eq!(requests(bytes.as_bytes(), piece), Err(expected), "{body:?} in pieces of {piece}");
        }
    }
    let mut reader = BodyReader::new(Framing::Chunked);
    assert_eq!(reader.take(format!("0\r\nX: {}", "x".repeat(MAX_TRAILERS)).as_bytes()), Err(Bad::Trailers));
}

#[test]
fn chunks_are_written_anew() {
    let mut out = Vec::new();
    write_chunk(b"", &mut out);
    write_chunk(b"0123456789abcdef", &mut out);
    out.extend(LAST_CHUNK);
    assert_eq!(out, b"10\r\n0123456789abcdef\r\n0\r\n\r\n");
    let mut reader = BodyReader::new(Framing::Chunked);
    let Piece { content, taken } = reader.take(&out).unwrap();
    assert_eq!(content, b"0123456789abcdef");
    assert_eq!(reader.take(&out[taken..]), Ok(Piece { content: &[], taken: out.len() - taken }));
    assert!(reader.is_over());
}

#[test]
fn a_body_of_known_length_can_be_passed_over() {
    let mut reader = BodyReader::new(Framing::Length(10));
    assert_eq!(reader.plain(), Some(10));
    assert_eq!(reader.take(b"abc").unwrap().taken, 3);
    reader.pass_over(6);
    assert_eq!((reader.plain(), reader.is_over()), (Some(1), false));
    reader.pass_over(1);
    assert_eq!((reader.plain(), reader.is_over()), (None, true));
    assert_eq!(reader.take(b"GET").unwrap().taken, 0, "the next request");
    assert_eq!(BodyReader::new(Framing::Chunked).plain(), None);
}
