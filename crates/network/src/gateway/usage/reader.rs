//! Reading an answer as it passes.

use serde_json::Value;

use super::facts::Facts;
use super::prune::{Pruner, Want};
use super::sse::{Sink, Splitter};
use super::{Report, Wire, anthropic, chat, gemini, responses};

/// How much of the data of an event is compared with what ends a stream.
const MAX_OPENING: usize = 16;

/// Reads the body of one answer. Whether it is one JSON text, an array of them or a stream of events is seen from how
/// it begins, since servers are not to be relied on to say so.
#[derive(Debug)]
pub struct Reader {
    form: Form,
    answer: Answer,
}

#[derive(Debug)]
enum Form {
    /// Nothing has come but blanks, and so much of a byte order mark.
    Start { mark: usize },
    /// JSON texts: one, or the elements of an array.
    Texts { array: bool, current: Option<Pruner> },
    /// A stream of events.
    Events(Splitter),
    /// The only text has come to its end, and what follows is not read.
    Over,
}

/// What the answer is about, and the event that is under way.
#[derive(Debug)]
struct Answer {
    wire: Wire,
    facts: Facts,
    said: anthropic::Said,
    event: Pruner,
    opening: Vec<u8>,
}

impl Reader {
    /// A reader for an answer in this language.
    pub fn new(wire: Wire) -> Self {
        let answer = Answer {
            wire,
            facts: Facts::default(),
            said: anthropic::Said::default(),
            event: Pruner::new(want(wire)),
            opening: Vec::new(),
        };
        Self { form: Form::Start { mark: 0 }, answer }
    }

    /// Takes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while let (Form::Start { mark }, Some(byte)) = (&mut self.form, bytes.get(at)) {
            match byte {
                _ if b"\xef\xbb\xbf".get(*mark) == Some(byte) => *mark += 1,
                b' ' | b'\t' | b'\r' | b'\n' => *mark = usize::MAX,
                b'{' | b'[' => {
                    self.form = Form::Texts { array: *byte == b'[', current: None };
                    at += usize::from(*byte == b'[');
                    break;
                }
                _ => {
                    self.form = Form::Events(Splitter::default());
                    break;
                }
            }
            at += 1;
        }
        let mut rest = bytes.get(at..).unwrap_or_default();
        match &mut self.form {
            Form::Start { .. } | Form::Over => {}
            Form::Events(splitter) => splitter.push(rest, &mut self.answer),
            Form::Texts { array, current } => {
                while !rest.is_empty() {
                    let Some(pruner) = current else {
                        // Between texts are blanks and commas.
                        let next = rest.iter().position(|byte| *byte == b'{').unwrap_or(rest.len());
                        rest = &rest[next..];
                        if !rest.is_empty() {
                            *current = Some(Pruner::new(want(self.answer.wire)));
                        }
                        continue;
                    };
                    let taken = pruner.push(rest);
                    rest = &rest[taken..];
                    if pruner.is_over() {
                        let text = pruner.finish(want(self.answer.wire));
                        *current = None;
                        self.answer.text(text, *array);
                        if !*array {
                            self.form = Form::Over;
                            return;
                        }
                    }
                }
            }
        }
    }

    /// The body is over, whether it was cut off or not. Only what it says without its last empty line is new.
    pub fn end(&mut self) {
        if let Form::Events(splitter) = &mut self.form {
            splitter.end(&mut self.answer);
        }
    }

    /// What is known by now.
    pub fn report(&self) -> Report {
        self.answer.facts.report()
    }
}

impl Answer {
    /// A JSON text that was not an event: all there is, or one of several.
    fn text(&mut self, text: Option<Value>, one_of_several: bool) {
        let facts = &mut self.facts;
        let Some(text) = text else {
            facts.settled = false;
            return;
        };
        match self.wire {
            Wire::AnthropicMessages => anthropic::whole(&text, &mut self.said, facts),
            Wire::OpenaiChat => chat::whole(&text, facts),
            Wire::OpenaiResponses => responses::whole(&text, facts),
            Wire::Gemini if one_of_several => gemini::chunk(&text, facts),
            Wire::Gemini => gemini::whole(&text, facts),
        }
    }
}

impl Sink for Answer {
    fn data(&mut self, bytes: &[u8]) {
        let room = MAX_OPENING.saturating_sub(self.opening.len());
        self.opening.extend(&bytes[..bytes.len().min(room)]);
        self.event.push(bytes);
    }

    fn dispatch(&mut self, name: &str) {
        let event = self.event.finish(want(self.wire));
        let done = self.opening.trim_ascii() == chat::DONE;
        self.opening.clear();
        let facts = &mut self.facts;
        match (self.wire, event.filter(Value::is_object)) {
            (_, None) if done => facts.ended |= self.wire == Wire::OpenaiChat,
            // Whatever it was, it may have said something else of what was used.
            (_, None) => facts.settled = false,
            (Wire::AnthropicMessages, Some(event)) => anthropic::event(name, &event, &mut self.said, facts),
            (Wire::OpenaiChat, Some(event)) => chat::chunk(&event, facts),
            (Wire::OpenaiResponses, Some(event)) => responses::event(name, &event, facts),
            (Wire::Gemini, Some(event)) => gemini::chunk(&event, facts),
        }
    }
}

fn want(wire: Wire) -> &'static Want {
    match wire {
        Wire::AnthropicMessages => &anthropic::WANT,
        Wire::OpenaiChat => &chat::WANT,
        Wire::OpenaiResponses => &responses::WANT,
        Wire::Gemini => &gemini::WANT,
    }
}
