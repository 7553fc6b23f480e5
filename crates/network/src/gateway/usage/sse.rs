//! A stream of server-sent events, taken apart as it passes. Nothing of an event is held here but its name.

/// The longest name of an event that is told, in bytes. Longer ones are told as none.
const MAX_NAME: usize = 64;

/// Who is told what is in a stream.
pub(super) trait Sink {
    /// More of the data of the event that is under way. Lines of data are joined by line feeds.
    fn data(&mut self, bytes: &[u8]);

    /// The event is complete.
    fn dispatch(&mut self, name: &str);
}

/// Takes a stream apart, in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    line: Line,
    /// The last byte was a carriage return, so that a line feed belongs to it.
    returned: bool,
    name: Vec<u8>,
    /// The event has at least one line of data.
    has_data: bool,
}

/// Where we are in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// In the name of a field: how much of it there is.
    Field { name: [u8; 5], length: usize },
    /// Before the value of a field, where one space does not count.
    Space(Field),
    /// In the value of a field.
    Value(Field),
    /// In a comment, or in a field that says nothing to us.
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Data,
    Event,
}

impl Default for Line {
    fn default() -> Self {
        Self::Field { name: [0; 5], length: 0 }
    }
}

impl Splitter {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8], sink: &mut impl Sink) {
        while let Some((&byte, rest)) = bytes.split_first() {
            let after_return = std::mem::take(&mut self.returned);
            match (self.line, byte) {
                (_, b'\n') if after_return => {}
                (_, b'\r' | b'\n') => {
                    self.returned = byte == b'\r';
                    self.end_line(sink);
                }
                (Line::Field { name, length }, b':') => {
                    self.line = match &name[..length] {
                        b"data" => self.begin(Field::Data, sink),
                        b"event" => self.begin(Field::Event, sink),
                        _ => Line::Ignored,
                    };
                }
                (Line::Field { mut name, length }, _) => {
                    self.line = match name.get_mut(length) {
                        Some(place) => {
                            *place = byte;
                            Line::Field { name, length: length + 1 }
                        }
                        None => Line::Ignored,
                    };
                }
                (Line::Space(field), b' ') => self.line = Line::Value(field),
                (Line::Space(field) | Line::Value(field), _) => {
                    self.line = Line::Value(field);
                    let count = until_end(bytes);
                    match field {
                        Field::Data => sink.data(&bytes[..count]),
                        Field::Event => {
                            let room = (MAX_NAME + 1).saturating_sub(self.name.len());
                            self.name.extend(&bytes[..count.min(room)]);
                        }
                    }
                    bytes = &bytes[count..];
                    continue;
                }
                (Line::Ignored, _) => {
                    bytes = &bytes[until_end(bytes)..];
                    continue;
                }
            }
            bytes = rest;
        }
    }

    /// The stream is over: an event whose empty line is missing is complete all the same.
    pub(super) fn end(&mut self, sink: &mut impl Sink) {
        self.end_line(sink);
        self.dispatch(sink);
    }

    fn begin(&mut self, field: Field, sink: &mut impl Sink) -> Line {
        match field {
            Field::Data if std::mem::replace(&mut self.has_data, true) => sink.data(b"\n"),
            Field::Data => {}
            Field::Event => self.name.clear(),
        }
        Line::Space(field)
    }

    fn end_line(&mut self, sink: &mut impl Sink) {
        if let Line::Field { name, length } = std::mem::take(&mut self.line) {
            match &name[..length] {
                b"" => self.dispatch(sink),
                b"data" => _ = self.begin(Field::Data, sink),
                b"event" => _ = self.begin(Field::Event, sink),
                _ => {}
            }
        }
    }

    fn dispatch(&mut self, sink: &mut impl Sink) {
        let name = std::mem::take(&mut self.name);
        if std::mem::take(&mut self.has_data) {
            let name = Some(name).filter(|name| name.len() <= MAX_NAME);
            sink.dispatch(std::str::from_utf8(&name.unwrap_or_default()).unwrap_or_default());
        }
    }
}

/// How many of the bytes are before the end of the line.
fn until_end(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Collected {
        data: Vec<u8>,
        events: Vec<(String, Vec<u8>)>,
    }

    impl Sink for Collected {
        fn data(&mut self, bytes: &[u8]) {
            self.data.extend(bytes);
        }

        fn dispatch(&mut self, name: &str) {
            self.events.push((name.to_owned(), std::mem::take(&mut self.data)));
        }
    }

    fn split(bytes: &[u8], size: usize) -> Vec<(String, Vec<u8>)> {
        let mut splitter = Splitter::default();
        let mut collected = Collected::default();
        for piece in bytes.chunks(size) {
            splitter.push(piece, &mut collected);
        }
        collected.events
    }

    /// The same by the letter of the standard, with the whole stream at hand.
    fn by_the_letter(text: &str) -> Vec<(String, Vec<u8>)> {
        let lines = text.replace("\r\n", "\n").replace('\r', "\n");
        let complete = lines.rfind('\n').map_or("", |end| &lines[..end]);
        let (mut events, mut data, mut name) = (Vec::new(), String::new(), String::new());
        for line in complete.split('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    data.pop();
                    events.push((std::mem::take(&mut name), std::mem::take(&mut data).into_bytes()));
                }
                name.clear();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => data = data + value + "\n",
                "event" => name = value.to_owned(),
                _ => {}
            }
        }
        events
    }

    #[test]
    fn events_are_as_the_standard_has_them() {
        let event = |name: &str, data: &str| (name.to_owned(), data.as_bytes().to_vec());
        for (text, events) in [
            ("data: a\n\n", vec![event("", "a")]),
            ("data:a\rdata: b\r\rdata:  c\r\n\r\n", vec![event("", "a\nb"), event("", " c")]),
            (": hello\nevent: x\ndata\ndata\n\n\n\ndata: y\n\n", vec![event("x", "\n"), event("", "y")]),
            ("event: lost\n\ndata: z\n\n", vec![event("", "z")]),
            ("data: cut off\n", vec![]),
            ("datas: no\ndat: no\nid: 1\nretry: 3\n data: no\n\n", vec![]),
            ("data: [DONE]\n\n", vec![event("", "[DONE]")]),
        ] {
            assert_eq!(by_the_letter(text), events, "{text:?}");
            for size in 1..=text.len() {
                assert_eq!(split(text.as_bytes(), size), events, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn the_last_event_needs_no_empty_line() {
        for text in ["data: a", "data: a\n", "data: a\r\n", "event: n\ndata: a"] {
            let mut splitter = Splitter::default();
            let mut collected = Collected::default();
            splitter.push(text.as_bytes(), &mut collected);
            splitter.end(&mut collected);
            splitter.end(&mut collected);
            assert_eq!(collected.events.len(), 1, "{text:?}");
            assert_eq!(collected.events[0].1, b"a");
        }
    }

    #[test]
    fn a_name_without_end_takes_no_memory() {
        let mut splitter = Splitter::default();
        let mut collected = Collected::default();
        splitter.push(b"event: ", &mut collected);
        for _ in 0..10_000 {
            splitter.push(&[b'x'; 100], &mut collected);
        }
        assert!(splitter.name.len() <= MAX_NAME + 1);
        splitter.push(b"\ndata: 1\n\n", &mut collected);
        assert_eq!(collected.events, [(String::new(), b"1".to_vec())]);
    }

    proptest! {
        #[test]
        fn any_stream_is_split_by_the_letter(
            parts in prop::collection::vec(
                prop::sample::select(vec!["data", "event", ":", " ", "\n", "\r", "\r\n", "{}", "x", "data: ", "é", "\n\n"]),
                0..40,
            ),
            size in 1usize..9,
        ) {
            let text = parts.concat();
            prop_assert_eq!(split(text.as_bytes(), size), by_the_letter(&text));
        }

        #[test]
        fn cutting_any_bytes_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 1usize..9) {
            prop_assert_eq!(split(&bytes, size), split(&bytes, bytes.len().max(1)));
        }
    }
}
