//! A JSON text cut down to the members that are wanted while it passes, so that an answer of any length is read in
//! little memory: the last event of a stream may repeat the whole conversation, or hold a picture.
//!
//! What is kept is a JSON text again, and is read strictly; what is left out is only followed to its end.

use serde_json::Value;

/// The longest value that is kept whole, in bytes. In place of a longer one stands `true`.
pub(super) const MAX_VALUE: usize = 32 * 1024;

/// The most that is kept of one text, in bytes. Nothing is kept of one that has more.
pub(super) const MAX_KEPT: usize = 64 * 1024;

/// The longest name of a member that can be wanted, in bytes and as it is written.
const MAX_NAME: usize = 128;

/// What is wanted of a value.
#[derive(Debug)]
pub(super) enum Want {
    /// All of it.
    Whole,
    /// These members of an object.
    Members(&'static [(&'static str, Want)]),
    /// This of each element of an array.
    Each(&'static Want),
}

/// One text on its way, in pieces of any size.
#[derive(Debug)]
pub(super) struct Pruner {
    kept: Vec<u8>,
    levels: Vec<Level>,
    name: Vec<u8>,
    state: State,
    lost: bool,
}

/// An object or an array that is looked into.
#[derive(Clone, Copy, Debug)]
enum Level {
    Object { members: &'static [(&'static str, Want)], empty: bool },
    Array { each: &'static Want, empty: bool },
}

#[derive(Debug)]
enum State {
    /// Before a value.
    Value(Option<&'static Want>),
    /// After the bracket of an array: a value, or its end.
    First,
    /// In an object: the name of a member, or the end.
    Names,
    /// In the name of a member.
    Name { escaped: bool },
    /// Between a name and its value.
    Colon(Option<&'static Want>),
    /// In a string.
    Text { kept: Option<usize>, escaped: bool },
    /// In a number, `true`, `false` or `null`.
    Word { kept: Option<usize> },
    /// In an object or an array that is kept or left out whole.
    Inside { kept: Option<usize>, depth: u64, text: bool, escaped: bool },
    /// After a value.
    After,
    /// After the whole text.
    Over,
    /// Not JSON.
    Broken,
}

impl Pruner {
    /// For a text that is an object, or anything else that is then not kept.
    pub(super) fn new(want: &'static Want) -> Self {
        Self {
            kept: Vec::new(),
            levels: Vec::new(),
            name: Vec::new(),
            state: State::Value(Some(want)),
            lost: false,
        }
    }

    /// Whether the text came to its end.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Takes the next bytes, up to the end of the text; answers how many they were.
    pub(super) fn push(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && !self.is_over() {
            at += self.pass(&bytes[at..]);
            if at < bytes.len() && !self.is_over() {
                // A word ends with the byte after it, which is then looked at again.
                at += usize::from(self.step(bytes[at]));
            }
        }
        at
    }

    /// What was kept, if the text is whole and what was wanted of it is JSON and not too much. Then the next text begins.
    pub(super) fn finish(&mut self, want: &'static Want) -> Option<Value> {
        let whole = self.is_over() && !self.lost;
        let kept = whole.then(|| serde_json::from_slice(&self.kept).ok()).flatten();
        self.kept.clear();
        self.levels.clear();
        self.state = State::Value(Some(want));
        self.lost = false;
        kept
    }

    /// Passes over bytes that change nothing; answers how many they were.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let (kept, count) = match &self.state {
            State::Text { kept, escaped: false } | State::Inside { kept, text: true, escaped: false, .. } => {
                (*kept, bytes.iter().position(|byte| matches!(byte, b'"' | b'\\')))
            }
            State::Inside { kept, text: false, .. } => {
                (*kept, bytes.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']')))
            }
            State::Broken => return bytes.len(),
            _ => return 0,
        };
        let count = count.unwrap_or(bytes.len());
        if let Some(start) = kept {
            self.keep(&bytes[..count], start);
        }
        count
    }

    /// One byte; answers whether it is done with.
    fn step(&mut self, byte: u8) -> bool {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match &mut self.state {
            State::Value(_) | State::First | State::Names | State::Colon(_) | State::After if space => {}
            State::Value(want) => {
                let want = *want;
                self.begin(want, byte);
            }
            State::First if byte == b']' => self.close(byte),
            State::First => {
                let want = self.element();
                self.begin(want, byte);
            }
            State::Names => match byte {
                b'"' => {
                    self.name.clear();
                    self.state = State::Name { escaped: false };
                }
                b'}' => self.close(byte),
                _ => self.state = State::Broken,
            },
            State::Name { escaped } => match byte {
                b'"' if !*escaped => self.named(),
                _ => {
                    *escaped = byte == b'\\' && !*escaped;
                    if self.name.len() <= MAX_NAME {
                        self.name.push(byte);
                    }
                }
            },
            State::Colon(want) => {
                self.state = if byte == b':' { State::Value(*want) } else { State::Broken };
            }
            State::Text { kept, escaped } => {
                let (start, over) = (*kept, byte == b'"' && !*escaped);
                *escaped = byte == b'\\' && !*escaped;
                if let Some(start) = start {
                    self.keep(&[byte], start);
                }
                if over {
                    self.after();
                }
            }
            State::Word { kept } => {
                let start = *kept;
                if space || matches!(byte, b',' | b'}' | b']') {
                    self.after();
                    return false;
                }
                if let Some(start) = start {
                    self.keep(&[byte], start);
                }
            }
            State::Inside { kept, depth, text, escaped } => {
                let start = *kept;
                match (*text, byte) {
                    (true, b'"') if !*escaped => *text = false,
                    (true, _) => *escaped = byte == b'\\' && !*escaped,
                    (false, b'"') => *text = true,
                    (false, b'{' | b'[') => *depth += 1,
                    (false, b'}' | b']') => *depth -= 1,
                    _ => {}
                }
                let over = *depth == 0;
                if let Some(start) = start {
                    self.keep(&[byte], start);
                }
                if over {
                    self.after();
                }
            }
            State::After => match (byte, self.levels.last()) {
                (b',', Some(Level::Object { .. })) => self.state = State::Names,
                (b',', Some(Level::Array { .. })) => self.state = State::Value(self.element()),
                _ => self.close(byte),
            },
            State::Over | State::Broken => {}
        }
        true
    }

    /// What is wanted of the elements of the array we are in.
    fn element(&self) -> Option<&'static Want> {
        match self.levels.last() {
            Some(Level::Array { each, .. }) => Some(each),
            _ => None,
        }
    }

    /// The name of a member is complete. It is written down at once if the member is wanted.
    fn named(&mut self) {
        let Some(Level::Object { members, .. }) = self.levels.last().copied() else {
            self.state = State::Broken;
            return;
        };
        self.lost |= self.kept.len() > MAX_KEPT;
        let raw = self.name.as_slice();
        let found = if self.lost {
            None
        } else if raw.contains(&b'\\') {
            let quoted = [b"\"", raw, b"\""].concat();
            let name: Option<String> = serde_json::from_slice(&quoted).ok();
            members.iter().find(|(wanted, _)| name.as_deref() == Some(wanted))
        } else {
            members.iter().find(|(wanted, _)| wanted.as_bytes() == raw)
        };
        if let Some((wanted, _)) = found {
            self.separate();
            self.kept.push(b'"');
            self.kept.extend(wanted.bytes());
            self.kept.extend(b"\":");
        }
        self.state = State::Colon(found.map(|(_, want)| want));
    }

    /// A comma, if this is not the first that is kept of the object or array we are in.
    fn separate(&mut self) {
        if let Some(Level::Object { empty, .. } | Level::Array { empty, .. }) = self.levels.last_mut()
            && !std::mem::replace(empty, false)
        {
            self.kept.push(b',');
        }
    }

    /// A value begins.
    fn begin(&mut self, want: Option<&'static Want>, byte: u8) {
        self.lost |= self.kept.len() > MAX_KEPT;
        let want = want.filter(|_| !self.lost);
        if want.is_some() && matches!(self.levels.last(), Some(Level::Array { .. })) {
            self.separate();
        }
        let kept = match (want, byte) {
            (Some(Want::Members(members)), b'{') => {
                self.levels.push(Level::Object { members, empty: true });
                self.kept.push(byte);
                self.state = State::Names;
                return;
            }
            (Some(Want::Each(each)), b'[') => {
                self.levels.push(Level::Array { each, empty: true });
                self.kept.push(byte);
                self.state = State::First;
                return;
            }
            (Some(Want::Whole), _) => {
                let start = self.kept.len();
                self.kept.push(byte);
                Some(start)
            }
            // Something else than what is wanted.
            (Some(_), _) => {
                self.kept.extend(b"null");
                None
            }
            (None, _) => None,
        };
        self.state = match byte {
            b'{' | b'[' => State::Inside { kept, depth: 1, text: false, escaped: false },
            b'"' => State::Text { kept, escaped: false },
            // A text that is no object and no array says nothing, and could not be seen to end.
            _ if self.levels.is_empty() => State::Broken,
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => State::Word { kept },
            _ => State::Broken,
        };
    }

    /// Keeps more of the value that began at `start`, unless it has become too long.
    fn keep(&mut self, bytes: &[u8], start: usize) {
        if self.kept.len() + bytes.len() - start <= MAX_VALUE {
            self.kept.extend(bytes);
            return;
        }
        self.kept.truncate(start);
        self.kept.extend(b"true");
        if let State::Text { kept, .. } | State::Word { kept } | State::Inside { kept, .. } = &mut self.state
        {
            *kept = None;
        }
    }

    fn after(&mut self) {
        self.state = if self.levels.is_empty() { State::Over } else { State::After };
    }

    /// The end of the object or array we are in.
    fn close(&mut self, byte: u8) {
        match (byte, self.levels.pop()) {
            (b'}', Some(Level::Object { .. })) | (b']', Some(Level::Array { .. })) => {
                self.kept.push(byte);
                self.after();
            }
            _ => self.state = State::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    static WANT: Want = Want::Members(&[
        ("a", Want::Whole),
        ("o", Want::Members(&[("a", Want::Whole)])),
        ("l", Want::Each(&Want::Members(&[("a", Want::Whole)]))),
    ]);

    fn prune(text: &[u8], size: usize) -> Option<Value> {
        let mut pruner = Pruner::new(&WANT);
        let mut taken = 0;
        for piece in text.chunks(size) {
            taken += pruner.push(piece);
        }
        assert!(taken <= text.len());
        pruner.finish(&WANT)
    }

    #[test]
    fn wanted_members_are_kept_and_the_others_left_out() {
        for (text, kept) in [
            (r#"{}"#, json!({})),
            (
                r#" { "a" : 1 , "b":[{"a":2}], "c":"\"}", "o":{"x":{"a":3},"a":[4,{"a":"\\"}]} } "#,
                json!({"a":1,"o":{"a":[4,{"a":"\\"}]}}),
            ),
            (
                r#"{"l":[{"a":1,"b":2},{"b":3},{},5,"x",[6],{"a":null}],"b":-1e9}"#,
                json!({"l":[{"a":1},{},{},null,null,null,{"a":null}]}),
            ),
            (r#"{"l":[],"o":{},"a":{}}"#, json!({"l":[],"o":{},"a":{}})),
            (r#"{"l":{"a":1},"o":[1],"a":true}"#, json!({"l":null,"o":null,"a":true})),
            (r#"{"\u0061":1,"b\"":2,"\\":3}"#, json!({"a":1})),
            (r#"[{"a":1}]"#, Value::Null),
            (r#""a""#, Value::Null),
        ] {
            assert_eq!(prune(text.as_bytes(), text.len()), Some(kept), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_or_not_whole_is_nothing() {
        for text in [
            "",
            " ",
            "{",
            "{]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":tru}",
            "{\"a\":1",
            "5",
            "x",
            "{\"o\":{\"a\":1]}",
            "{,}",
        ] {
            assert_eq!(prune(text.as_bytes(), 1), None, "{text}");
        }
    }

    #[test]
    fn long_values_are_replaced_and_what_follows_is_kept() {
        let long = "x".repeat(MAX_VALUE);
        let text =
            format!(r#"{{"a":"{long}","o":{{"a":["{long}"]}},"b":"{long}{long}{long}","l":[{{"a":7}}]}}"#);
        for size in [1, 100, text.len()] {
            assert_eq!(prune(text.as_bytes(), size), Some(json!({"a":true,"o":{"a":true},"l":[{"a":7}]})));
        }
        let fits = format!(r#"{{"a":"{}"}}"#, &long[2..]);
        assert_eq!(prune(fits.as_bytes(), 3), serde_json::from_str(&fits).ok());
    }

    #[test]
    fn memory_is_bounded() {
        let mut pruner = Pruner::new(&WANT);
        pruner.push(b"{\"l\":[");
        for _ in 0..100_000 {
            pruner.push(br#"{"a":"0123456789"},"#);
        }
        assert!(pruner.kept.len() <= MAX_KEPT + 64, "{}", pruner.kept.len());
        pruner.push(b"{}]}");
        assert!(pruner.is_over());
        assert_eq!(pruner.finish(&WANT), None);
        let mut deep = Pruner::new(&WANT);
        deep.push(b"{\"a\":");
        for _ in 0..100_000 {
            deep.push(b"[");
        }
        assert!(deep.kept.len() <= MAX_VALUE);
    }

    proptest! {
        #[test]
        fn cutting_changes_nothing(text in r#"[\[\]{},:"\\aol1 ]{0,40}"#, size in 1usize..8) {
            let whole = prune(text.as_bytes(), text.len().max(1));
            prop_assert_eq!(&prune(text.as_bytes(), size), &whole);
            // Nothing is made up: what is kept of a text that is JSON is in it.
            if let (Ok(Value::Object(all)), Some(Value::Object(kept))) = (serde_json::from_str::<Value>(&text), whole) {
                prop_assert_eq!(kept.get("a"), all.get("a"));
                prop_assert_eq!(kept.contains_key("o"), all.contains_key("o"));
                prop_assert!(kept.keys().all(|name| ["a", "o", "l"].contains(&name.as_str())));
            }
        }

        #[test]
        fn any_json_is_followed_to_its_end(a in ".{0,20}", b in ".{0,20}", n in any::<i64>()) {
            let all = json!({"b": {"a": [b, {"a": a}]}, "a": {"x": a, "y": [n, b]}, "o": {"b": b, "a": n}});
            let text = all.to_string();
            prop_assert_eq!(prune(text.as_bytes(), 1), Some(json!({"a": all["a"], "o": {"a": n}})));
        }
    }
}
