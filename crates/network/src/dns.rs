//! The little of DNS that a sandbox needs: one question, and an answer that was made up here. Written by hand, because
//! what must be understood is a header, one name and one option, and everything else is refused; a library of the whole
//! protocol would be larger than the door.

use std::net::IpAddr;

use belljar_core::HostName;

/// The longest message that is read.
pub const MAX_QUERY: usize = 1232;

/// The most addresses in one answer, so that it fits into the smallest datagram.
pub const MAX_ADDRESSES: usize = 8;

const HEADER: usize = 12;
const CLASS_IN: u16 = 1;
const TYPE_OPT: u16 = 41;

/// A question that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The name that is asked for.
    pub name: HostName,
    /// What is asked of it.
    pub kind: Kind,
    asked: Asked,
}

/// What is asked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its addresses of version four.
    A,
    /// Its addresses of version six.
    Aaaa,
    /// How to connect to it (SVCB, HTTPS): answered with nothing, so that nobody is told to hide the name.
    Service,
    /// Anything else, by its number.
    Other(u16),
}

impl Kind {
    fn of(number: u16) -> Self {
        match number {
            1 => Self::A,
            28 => Self::Aaaa,
            64 | 65 => Self::Service,
            other => Self::Other(other),
        }
    }
}

/// Why a message is not answered as a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoQuery {
    /// Nothing is sent back: it is too short to have been a question, or is an answer itself.
    Silence,
    /// This is sent back.
    Reply(Code, Vec<u8>),
}

/// What an answer says besides addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The message could not be read.
    FormErr,
    /// The look-up failed, and may succeed later.
    ServFail,
    /// There is no such name.
    NxDomain,
    /// Questions of this kind are not understood.
    NotImp,
    /// The name may not be asked for.
    Refused,
}

impl Code {
    fn number(self) -> u8 {
        match self {
            Self::FormErr => 1,
            Self::ServFail => 2,
            Self::NxDomain => 3,
            Self::NotImp => 4,
            Self::Refused => 5,
        }
    }
}

/// What an answer repeats of the question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    id: [u8; 2],
    recursion: bool,
    /// The question as it was sent, letter case included: resolvers check that.
    question: Vec<u8>,
    extended: bool,
}

impl Query {
    /// Reads one message, without the length that precedes it on TCP.
    pub fn read(message: &[u8]) -> Result<Self, NoQuery> {
        let Some((header, mut rest)) = message.split_first_chunk::<HEADER>() else {
            return Err(NoQuery::Silence);
        };
        let is_answer = header[2] & 0x80 != 0;
        if is_answer {
            return Err(NoQuery::Silence);
        }
        let mut asked =
            Asked { id: [header[0], header[1]], recursion: header[2] & 1 != 0, ..Asked::default() };
        let refuse = |asked: &Asked, code| NoQuery::Reply(code, asked.reply(code.number(), &[], 0));
        if header[2] & 0x78 != 0 {
            return Err(refuse(&asked, Code::NotImp));
        }
        let truncated = header[2] & 2 != 0;
        let counts = [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        if message.len() > MAX_QUERY || truncated || !matches!(counts, [1, 0, 0, 0 | 1]) {
            return Err(refuse(&asked, Code::FormErr));
        }
        let question = rest;
        let Some(name) = take_name(&mut rest) else { return Err(refuse(&asked, Code::FormErr)) };
        let (Some(kind), Some(class)) = (take_u16(&mut rest), take_u16(&mut rest)) else {
            return Err(refuse(&asked, Code::FormErr));
        };
        asked.question = question[..question.len() - rest.len()].to_vec();
        if counts[3] == 1 {
            asked.extended = take_option(&mut rest).is_some();
        }
        if !rest.is_empty() || asked.extended != (counts[3] == 1) {
            asked.question.clear();
            return Err(refuse(&asked, Code::FormErr));
        }
        match name {
            Ok(name) if class == CLASS_IN => Ok(Self { name, kind: Kind::of(kind), asked }),
            _ => Err(refuse(&asked, Code::Refused)),
        }
    }

    /// The answer when the name may be known and has these addresses. Whatever else was asked of it has no answer.
    pub fn known(&self, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
        let wanted = |address: &&IpAddr| match self.kind {
            Kind::A => address.is_ipv4(),
            Kind::Aaaa => address.is_ipv6(),
            Kind::Service | Kind::Other(_) => false,
        };
        let addresses: Vec<IpAddr> = addresses.iter().filter(wanted).take(MAX_ADDRESSES).copied().collect();
        self.asked.reply(0, &addresses, ttl)
    }

    /// The answer when there is none.
    pub fn refuse(&self, code: Code) -> Vec<u8> {
        self.asked.reply(code.number(), &[], 0)
    }
}

impl Asked {
    fn reply(&self, code: u8, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
        let mut reply = Vec::with_capacity(HEADER + self.question.len() + 28 * addresses.len() + 11);
        reply.extend(self.id);
        reply.extend([0x80 | u8::from(self.recursion), 0x80 | code]);
        reply.extend(u16::from(!self.question.is_empty()).to_be_bytes());
        reply.extend((addresses.len() as u16).to_be_bytes());
        reply.extend([0, 0]);
        reply.extend(u16::from(self.extended).to_be_bytes());
        reply.extend(&self.question);
        for address in addresses {
            // The name is the one in the question.
            reply.extend([0xc0, HEADER as u8]);
            let (kind, bytes) = match address {
                IpAddr::V4(address) => (1_u16, address.octets().to_vec()),
                IpAddr::V6(address) => (28, address.octets().to_vec()),
            };
            reply.extend(kind.to_be_bytes());
            reply.extend(CLASS_IN.to_be_bytes());
            reply.extend(ttl.to_be_bytes());
            reply.extend((bytes.len() as u16).to_be_bytes());
            reply.extend(bytes);
        }
        if self.extended {
            reply.push(0);
            reply.extend(TYPE_OPT.to_be_bytes());
            reply.extend((MAX_QUERY as u16).to_be_bytes());
            reply.extend([0; 6]);
        }
        reply
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    take(rest, 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// A name that is written out, which may still not be that of a host. Nothing where it is not written out.
fn take_name(rest: &mut &[u8]) -> Option<Result<HostName, ()>> {
    let mut text = Vec::new();
    let mut labels_hold_dots = false;
    loop {
        let length = usize::from(take(rest, 1)?[0]);
        match length {
            0 => break,
            1..=63 => {}
            // A pointer, or something that was never defined.
            _ => return None,
        }
        let label = take(rest, length)?;
        labels_hold_dots |= label.contains(&b'.');
        text.extend(label);
        text.push(b'.');
        if text.len() > 254 {
            return None;
        }
    }
    if labels_hold_dots {
        return Some(Err(()));
    }
    Some(HostName::from_wire(&text).map_err(|_| ()))
}

/// The record that says that longer answers are understood. What else it says is not needed.
fn take_option(rest: &mut &[u8]) -> Option<()> {
    let root = take(rest, 1)?[0];
    let kind = take_u16(rest)?;
    let _size = take_u16(rest)?;
    let flags = take(rest, 4)?;
    let length = take_u16(rest)?;
    take(rest, length.into())?;
    (root == 0 && kind == TYPE_OPT && flags[1] == 0).then_some(())
}

/// Splits the first message from a TCP stream, and says how many bytes it took with its length; nothing while it is
/// incomplete.
pub fn unframe(stream: &[u8]) -> Result<Option<(&[u8], usize)>, TooLong> {
    let Some((length, rest)) = stream.split_first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length > MAX_QUERY {
        return Err(TooLong(length));
    }
    Ok(rest.get(..length).map(|message| (message, length + 2)))
}

/// The message with its length before it, as TCP carries it.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend(&message[..length.into()]);
    framed
}

/// A message on TCP is longer than any question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes is longer than any question")]
pub struct TooLong(pub usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &[&[u8]], kind: u16, class: u16, option: &[u8]) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!option.is_empty())];
        for label in name {
            message.push(label.len() as u8);
            message.extend(*label);
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend(class.to_be_bytes());
        message.extend(option);
        message
    }

    const OPTION: [u8; 11] = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];

    fn code(result: Result<Query, NoQuery>) -> Option<Code> {
        match result {
            Err(NoQuery::Reply(code, reply)) => {
                assert_eq!(reply[3] & 0xf, code.number());
                assert_eq!((&reply[..2], reply[2] & 0x80), (&[0xab, 0xcd][..], 0x80));
                Some(code)
            }
            _ => None,
        }
    }

    #[test]
    fn a_question_is_answered() {
        let message = query(&[b"ExAmple", b"org"], 1, 1, &[]);
        let read = Query::read(&message).unwrap();
        assert_eq!((read.name.as_str(), read.kind), ("example.org", Kind::A));
        let addresses =
            ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let reply = read.known(&addresses, 60);
        assert_eq!(reply[..12], [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
        assert_eq!(reply[12..message.len()], message[12..], "the question is repeated as it was");
        assert_eq!(
            reply[message.len()..],
            [
                [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1],
                [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 2]
            ]
            .concat()
        );
        let read = Query::read(&query(&[b"example", b"org"], 28, 1, &OPTION)).unwrap();
        let reply = read.known(&addresses, 60);
        assert_eq!((reply[7], reply[11]), (1, 1));
        assert!(reply.ends_with(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]));
        assert!(
            reply
                .windows(16)
                .any(|window| window == [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
        );
    }

    #[test]
    fn other_kinds_have_no_data() {
        for (kind, expected) in
            [(64, Kind::Service), (65, Kind::Service), (16, Kind::Other(16)), (255, Kind::Other(255))]
        {
            let read = Query::read(&query(&[b"a", b"org"], kind, 1, &[])).unwrap();
            assert_eq!(read.kind, expected);
            let reply = read.known(&["192.0.2.1".parse().unwrap()], 60);
            assert_eq!((reply[3] & 0xf, reply[7]), (0, 0));
        }
        let read = Query::read(&query(&[b"a", b"org"], 1, 1, &[])).unwrap();
        for code in [Code::FormErr, Code::ServFail, Code::NxDomain, Code::NotImp, Code::Refused] {
            assert_eq!(read.refuse(code)[3] & 0xf, code.number());
        }
        assert_eq!(read.known(&["192.0.2.1".parse().unwrap(); 100], 60)[7], 8);
    }

    #[test]
    fn what_is_not_a_question() {
        let good = query(&[b"a", b"org"], 1, 1, &[]);
        let with = |at: usize, byte: u8| {
            let mut message = good.clone();
            message[at] = byte;
            message
        };
        assert_eq!(Query::read(&good[..11]), Err(NoQuery::Silence));
        assert_eq!(Query::read(&with(2, 0x81)), Err(NoQuery::Silence), "an answer");
        let long = [&[b'a'; 63][..]; 4];
        for (message, expected) in [
            (with(2, 0x29), Code::NotImp),
            (with(2, 0x03), Code::FormErr),
            (with(5, 0), Code::FormErr),
            (with(5, 2), Code::FormErr),
            (with(7, 1), Code::FormErr),
            (with(9, 1), Code::FormErr),
            (with(11, 1), Code::FormErr),
            (with(11, 2), Code::FormErr),
            (with(12, 0xc0), Code::FormErr),
            (with(12, 0x40), Code::FormErr),
            (with(12, 63), Code::FormErr),
            (good[..good.len() - 1].to_vec(), Code::FormErr),
            ([&good[..], b"x"].concat(), Code::FormErr),
            (query(&long, 1, 1, &[]), Code::FormErr),
            (query(&[b"a", b"org"], 1, 1, &[0, 0, 41, 4, 208, 0, 1, 0, 0, 0, 0]), Code::FormErr),
            (query(&[b"a", b"org"], 1, 1, &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 9]), Code::FormErr),
            (query(&[b"a", b"org"], 1, 1, &[0, 0, 1, 4, 208, 0, 0, 0, 0, 0, 0]), Code::FormErr),
            (query(&[b"a", b"org"], 1, 1, &[OPTION, OPTION].concat()), Code::FormErr),
            (
                [query(&[b"a", b"org"], 1, 1, &[0, 0, 41, 4, 208, 0, 0, 0, 0, 8, 0]), vec![0; 2048]].concat(),
                Code::FormErr,
            ),
            (query(&[b"a", b"org"], 1, 3, &[]), Code::Refused),
            (query(&[b"a", b"org"], 1, 255, &[]), Code::Refused),
            (query(&[], 2, 1, &[]), Code::Refused),
            (query(&[b"_dns", b"org"], 65, 1, &[]), Code::Refused),
            (query(&[b"a.org"], 1, 1, &[]), Code::Refused),
            (query(&[b"a.evil", b"org"], 1, 1, &[]), Code::Refused),
            (query(&[b"a\0", b"org"], 1, 1, &[]), Code::Refused),
            (query(&[b"127", b"1"], 1, 1, &[]), Code::Refused),
            (query(&[b"caf\xc3\xa9", b"org"], 1, 1, &[]), Code::Refused),
        ] {
            assert_eq!(code(Query::read(&message)), Some(expected), "{message:x?}");
        }
    }

    #[test]
    fn messages_on_a_stream() {
        let message = query(&[b"a", b"org"], 1, 1, &[]);
        let stream = [frame(&message), frame(b"next")].concat();
        for end in 0..message.len() + 2 {
            assert_eq!(unframe(&stream[..end]), Ok(None));
        }
        assert_eq!(unframe(&stream), Ok(Some((&message[..], message.len() + 2))));
        assert_eq!(unframe(&[0xff, 0xff]), Err(TooLong(65535)));
        assert_eq!(frame(&[0; 70_000]).len(), 65_537);
    }
}
