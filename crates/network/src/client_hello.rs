//! The first words of a TLS client, read without taking part: which name it asks for.

use belljar_core::HostName;

/// The longest hello, in bytes of its message.
pub const MAX_HELLO: usize = 64 * 1024;

/// In how many records a hello may come.
pub const MAX_RECORDS: usize = 32;

const MAX_RECORD: usize = 1 << 14;
const MAX_PROTOCOLS: usize = 64;

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Not enough to say.
    More,
    /// A client that speaks TLS.
    Tls(ClientHello),
    /// Something else than TLS.
    NotTls,
    /// TLS, or nearly, but nothing that a server should see.
    Bad(Bad),
}

/// What a client says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The name that it asks for.
    pub sni: Option<HostName>,
    /// The protocols that it offers to speak inside.
    pub alpn: Vec<Vec<u8>>,
    /// Whether it sends an encrypted hello with perhaps another name inside. Some clients send nonsense there, to keep
    /// others used to it; a server that was not told a key through DNS ignores it.
    pub ech: bool,
}

/// Why a hello is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// A hello of SSL 2, which has no names.
    #[error("it is a hello of SSL 2")]
    Ssl2,
    /// A record that is empty, too long, of another kind or another version.
    #[error("a record is empty, too long, or of another kind")]
    Record,
    /// More than [`MAX_RECORDS`].
    #[error("the hello is spread over more than 32 records")]
    Records,
    /// More than [`MAX_HELLO`].
    #[error("the hello is longer than 64 KiB")]
    TooLong,
    /// Another message than a hello.
    #[error("the first message is not a client's hello")]
    Message,
    /// Lengths that do not add up.
    #[error("the hello is malformed")]
    Malformed,
    /// The same extension twice.
    #[error("an extension is there twice")]
    Twice,
    /// Several names, or names of several kinds.
    #[error("it asks for several names")]
    Names,
    /// A name that is none.
    #[error("the name that it asks for is not a host's")]
    Name,
}

/// Reads a hello as it arrives, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Reader {
    state: State,
    message: Vec<u8>,
    records: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// The header of a record, as far as it is there.
    Header { bytes: [u8; 5], count: usize },
    /// Inside a record.
    Record { left: usize },
    /// All is known.
    Over(Hello),
}

impl Default for Reader {
    fn default() -> Self {
        Self { state: State::Header { bytes: [0; 5], count: 0 }, message: Vec::new(), records: 0 }
    }
}

impl Reader {
    /// A reader that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes that follow and says what all of them are. Once it has said something else than `More`, it stays
    /// with that.
    pub fn push(&mut self, mut bytes: &[u8]) -> Hello {
        loop {
            let step = match &mut self.state {
                State::Over(hello) => return hello.clone(),
                _ if bytes.is_empty() => return Hello::More,
                State::Header { bytes: header, count } => {
                    let (first, rest) = (bytes[0], &bytes[1..]);
                    bytes = rest;
                    header[*count] = first;
                    *count += 1;
                    let (header, count) = (*header, *count);
                    self.header(&header[..count])
                }
                State::Record { left } => {
                    let (part, rest) = bytes.split_at((*left).min(bytes.len()));
                    bytes = rest;
                    *left -= part.len();
                    let left = *left;
                    self.message.extend(part);
                    self.message(left)
                }
            };
            if let Some(state) = step {
                self.state = state;
            }
        }
    }

    /// What comes after this much of a record's header, if anything else than more of it.
    fn header(&mut self, header: &[u8]) -> Option<State> {
        let over = |hello| Some(State::Over(hello));
        if self.records == 0 {
            match *header {
                // Two bytes of length with the highest bit set, a hello, and the version.
                [first, ..] if first & 0x80 != 0 => {
                    return match *header {
                        [_, _, 1, 0 | 2 | 3, ..] => over(Hello::Bad(Bad::Ssl2)),
                        [_] | [_, _] | [_, _, 1] => None,
                        _ => over(Hello::NotTls),
                    };
                }
                [22] | [22, 3, ..] => {}
                _ => return over(Hello::NotTls),
            }
        }
        match *header {
            [22] | [22, 3] | [22, 3, 0..=4] | [22, 3, 0..=4, _] => None,
            [22, 3, 0..=4, high, low] => {
                let left = usize::from(u16::from_be_bytes([high, low]));
                self.records += 1;
                if self.records > MAX_RECORDS {
                    return over(Hello::Bad(Bad::Records));
                }
                if left == 0 || left > MAX_RECORD {
                    return over(Hello::Bad(Bad::Record));
                }
                Some(State::Record { left })
            }
            _ => over(Hello::Bad(Bad::Record)),
        }
    }

    /// What comes after the message so far, with this much of its record to come.
    fn message(&mut self, left: usize) -> Option<State> {
        let over = |hello| Some(State::Over(hello));
        let next = (left == 0).then_some(State::Header { bytes: [0; 5], count: 0 });
        match *self.message {
            [kind, ..] if kind != 1 => return over(Hello::Bad(Bad::Message)),
            [_, high, middle, low, ..] => {
                let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                if length > MAX_HELLO {
                    return over(Hello::Bad(Bad::TooLong));
                }
                let end = 4 + length;
                let in_sight = self.message.len() + left;
                // A record that goes on after the hello would be part of it to somebody else.
                if in_sight > end {
                    return over(Hello::Bad(Bad::Malformed));
                }
                if self.message.len() == end {
                    let hello = read_hello(&self.message[4..]);
                    self.message = Vec::new();
                    return over(hello.map_or_else(Hello::Bad, Hello::Tls));
                }
            }
            _ => {}
        }
        next
    }
}

/// What is left of a message, read from its beginning.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Bad::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Bad> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Result<u16, Bad> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// What follows a length of one byte.
    fn short(&mut self) -> Result<Fields<'a>, Bad> {
        let length = self.byte()?;
        self.take(length.into()).map(Fields)
    }

    /// What follows a length of two bytes.
    fn long(&mut self) -> Result<Fields<'a>, Bad> {
        let length = self.word()?;
        self.take(length.into()).map(Fields)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

fn require(condition: bool) -> Result<(), Bad> {
    condition.then_some(()).ok_or(Bad::Malformed)
}

fn read_hello(message: &[u8]) -> Result<ClientHello, Bad> {
    let mut fields = Fields(message);
    require(fields.byte()? == 3)?;
    fields.take(1 + 32)?;
    require(fields.short()?.0.len() <= 32)?;
    let ciphers = fields.long()?;
    require(!ciphers.is_over() && ciphers.0.len().is_multiple_of(2))?;
    require(!fields.short()?.is_over())?;
    let mut hello = ClientHello::default();
    if fields.is_over() {
        return Ok(hello);
    }
    let mut extensions = fields.long()?;
    require(fields.is_over())?;
    let mut seen = Vec::new();
    while !extensions.is_over() {
        let kind = extensions.word()?;
        let content = extensions.long()?;
        seen.push(kind);
        match kind {
            0 => hello.sni = Some(read_name(content)?),
            16 => hello.alpn = read_protocols(content)?,
            // The encrypted hello, and the encrypted name that came before it.
            0xfe0d | 0xffce => hello.ech = true,
            _ => {}
        }
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() == count { Ok(hello) } else { Err(Bad::Twice) }
}

fn read_name(mut content: Fields<'_>) -> Result<HostName, Bad> {
    let mut names = content.long()?;
    require(content.is_over())?;
    let kind = names.byte()?;
    let name = names.long()?;
    if !names.is_over() || kind != 0 {
        return Err(Bad::Names);
    }
    // Servers need not know that a dot at the end means nothing.
    if name.0.ends_with(b".") {
        return Err(Bad::Name);
    }
    HostName::from_wire(name.0).map_err(|_| Bad::Name)
}

fn read_protocols(mut content: Fields<'_>) -> Result<Vec<Vec<u8>>, Bad> {
    let mut names = content.long()?;
    require(content.is_over() && !names.is_over())?;
    let mut protocols = Vec::new();
    while !names.is_over() {
        let name = names.short()?;
        require(!name.is_over() && protocols.len() < MAX_PROTOCOLS)?;
        protocols.push(name.0.to_vec());
    }
    Ok(protocols)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &long(content)].concat()
    }

    fn sni(name: &[u8]) -> Vec<u8> {
        extension(0, &long(&[&[0][..], &long(name)].concat()))
    }

    /// The message of a hello with these extensions.
    fn message(extensions: &[u8]) -> Vec<u8> {
        let body =
            [&[3, 3][..], &[7; 32], &[2, 1, 2], &long(&[0x13, 1, 0x13, 2]), &[1, 0], &long(extensions)]
                .concat();
        [&[1, 0][..], &long(&body)].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[22, 3, 1][..], &long(part)].concat()).collect()
    }

    fn read(bytes: &[u8]) -> Hello {
        Reader::new().push(bytes)
    }

    fn tls(extensions: &[u8]) -> Hello {
        read(&records(&message(extensions), MAX_RECORD))
    }

    fn name(text: &str) -> Option<HostName> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn hellos() {
        let all = [
            extension(0x0a0a, &[]),
            sni(b"Example.org"),
            extension(16, &long(b"\x02h2\x08http/1.1")),
            extension(0xfe0d, &[0; 9]),
        ]
        .concat();
        let expected = ClientHello {
            sni: name("example.org"),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ech: true,
        };
        assert_eq!(tls(&all), Hello::Tls(expected));
        assert_eq!(tls(&[]), Hello::Tls(ClientHello::default()));
        let old =
            [&[1, 0][..], &long(&[&[3, 1][..], &[7; 32], &[0], &long(&[0, 5]), &[1, 0]].concat())].concat();
        assert_eq!(read(&records(&old, 999)), Hello::Tls(ClientHello::default()), "without extensions");
    }

    #[test]
    fn in_pieces_of_any_size() {
        let bytes = records(&message(&sni(b"example.org")), 7);
        let expected = ClientHello { sni: name("example.org"), ..ClientHello::default() };
        for size in 1..bytes.len() {
            let mut reader = Reader::new();
            let answers: Vec<_> = bytes.chunks(size).map(|piece| reader.push(piece)).collect();
            let (last, before) = answers.split_last().unwrap();
            assert_eq!(*last, Hello::Tls(expected.clone()));
            assert!(before.iter().all(|answer| *answer == Hello::More));
            assert_eq!(reader.push(b"what comes later"), *last);
        }
        assert_eq!(read(&[bytes, b"early data".to_vec()].concat()), Hello::Tls(expected));
    }

    #[test]
    fn what_is_not_tls() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x\r\n",
            b"\0",
            b"\x16\x01",
            b"\x80\x2e\x07",
            b"\xff\xff\xff\xff",
            b"\x17\x03\x03",
        ] {
            assert_eq!(read(bytes), Hello::NotTls, "{bytes:x?}");
        }
        for bytes in
            [&b""[..], b"\x16", b"\x16\x03", b"\x16\x03\x01\x00", b"\x80", b"\x80\x2e", b"\x80\x2e\x01"]
        {
            assert_eq!(read(bytes), Hello::More, "{bytes:x?}");
        }
    }

    #[test]
    fn what_no_server_should_see() {
        let good = message(&sni(b"example.org"));
        let changed = |at: usize, byte: u8| {
            let mut message = good.clone();
            message[at] = byte;
            records(&message, MAX_RECORD)
        };
        let bad_names: Vec<Vec<u8>> = [
            &b"exam\0ple.org"[..],
            b"127.0.0.1",
            b"::1",
            b"2130706433",
            b"example.org.",
            b"",
            b"a_b.org",
            b"*.org",
            b"caf\xc3\xa9.org",
        ]
        .iter()
        .map(|name| records(&message(&sni(name)), MAX_RECORD))
        .collect();
        for bytes in bad_names {
            assert_eq!(read(&bytes), Hello::Bad(Bad::Name), "{bytes:x?}");
        }
        let two = extension(0, &long(&[&[0][..], &long(b"a.org"), &[0], &long(b"b.org")].concat()));
        let other_kind = extension(0, &long(&[&[1][..], &long(b"a.org")].concat()));
        let mut mixed = records(&good, 20);
        mixed[25] = 23;
        let mut trailing = good.clone();
        trailing.push(0);
        for (bytes, expected) in [
            (b"\x80\x2e\x01\x00\x02".to_vec(), Bad::Ssl2),
            (b"\x80\x2e\x01\x03\x01".to_vec(), Bad::Ssl2),
            (records(&message(&two), 99), Bad::Names),
            (records(&message(&other_kind), 99), Bad::Names),
            (records(&message(&[sni(b"a.org"), sni(b"b.org")].concat()), 99), Bad::Twice),
            (records(&message(&[extension(5, &[]), extension(5, &[])].concat()), 99), Bad::Twice),
            (records(&good, 2), Bad::Records),
            (mixed, Bad::Record),
            (vec![22, 3, 9], Bad::Record),
            (vec![22, 3, 1, 0, 0], Bad::Record),
            (vec![22, 3, 1, 0x40, 1], Bad::Record),
            (changed(0, 2), Bad::Message),
            (changed(1, 1), Bad::TooLong),
            (changed(1, 2), Bad::TooLong),
            (changed(4, 2), Bad::Malformed),
            (changed(38, 33), Bad::Malformed),
            (records(&trailing, MAX_RECORD), Bad::Malformed),
            (records(&message(&extension(16, &long(&[0]))), 99), Bad::Malformed),
            (records(&message(&extension(16, &[])), 99), Bad::Malformed),
            (records(&message(&extension(16, &long(&b"\x01a".repeat(65)))), 999), Bad::Malformed),
            (records(&message(&[0, 0, 0]), 99), Bad::Malformed),
            (records(&message(&extension(0, &[])), 99), Bad::Malformed),
        ] {
            assert_eq!(read(&bytes), Hello::Bad(expected), "{bytes:x?}");
        }
        let huge = message(&extension(21, &vec![0; 65_000]));
        assert_eq!(read(&records(&huge, MAX_RECORD)), Hello::Tls(ClientHello::default()));
        assert!(matches!(read(&records(&huge, 100)), Hello::Bad(Bad::Records)));
    }
}
