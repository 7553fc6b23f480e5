//! What a request asks for, as far as it bounds what the answer can cost.

use serde_json::Value;

use super::Wire;
use crate::gateway::body::{BadBody, LONGEST, Members};

/// What a request asks for. What it does not say is `None`; the provider then has its own choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The model. Gemini's stands in the path of a request, and not here.
    pub model: Option<String>,
    /// The most tokens of output of each answer. Where two members say it, the larger.
    pub max_output: Option<u64>,
    /// Whether the answer is to be streamed. With Gemini that too stands in the path.
    pub streams: bool,
    /// How many answers are asked for.
    pub answers: u64,
    /// Whether the answer will say what was used. Chat Completions do not in a stream, unless asked to.
    pub tells_usage: bool,
}

/// A member of a request that bounds what it may cost, and that cannot be read with certainty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{member}` {problem}")]
pub struct Malformed {
    /// The member, with those that it stands in.
    pub member: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Asked {
    /// Reads the members of a request's body: their names, and their values as JSON texts. Members that say nothing of
    /// costs are not looked at. A name that comes twice is refused, because servers take one or the other.
    pub fn read<'a>(
        wire: Wire,
        members: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Malformed> {
        let mut asked = Self { answers: 1, tells_usage: true, ..Self::default() };
        let mut seen = Vec::new();
        let mut told = false;
        for (name, text) in members {
            let Some(member) = wanted(wire, name) else { continue };
            if seen.contains(&member) {
                return Err(malformed(name, "is there twice"));
            }
            seen.push(member);
            asked.member(wire, name, member, text, &mut told)?;
        }
        asked.tells_usage = wire != Wire::OpenaiChat || !asked.streams || told;
        Ok(asked)
    }

    fn member(
        &mut self,
        wire: Wire,
        name: &str,
        member: Member,
        text: &str,
        told: &mut bool,
    ) -> Result<(), Malformed> {
        let value = || value(name, text);
        match member {
            Member::Model => self.model = string(name, &value()?)?,
            Member::Streams => self.streams = boolean(name, &value()?)?,
            Member::MaxOutput(_) => self.max_output = self.max_output.max(number(wire, name, &value()?)?),
            Member::Answers(_) => {
                self.answers = self.answers.max(number(wire, name, &value()?)?.unwrap_or(1));
            }
            Member::StreamOptions => {
                for (inner, value) in object(name, text, |inner| inner == "include_usage")? {
                    if inner == "include_usage" {
                        *told = boolean("stream_options.include_usage", &value)?;
                    }
                }
            }
            Member::GenerationConfig => {
                let members = object(name, text, |inner| generation(inner).is_some())?;
                for (at, (inner, value)) in members.iter().enumerate() {
                    let path = format!("{name}.{inner}");
                    let Some(member) = generation(inner) else { continue };
                    if members[..at].iter().any(|(before, _)| generation(before) == Some(member)) {
                        return Err(malformed(&path, "is there twice"));
                    }
                    let number = number(wire, &path, value)?;
                    match member {
                        Generation::MaxOutput => self.max_output = number,
                        Generation::Answers => self.answers = number.unwrap_or(1),
                    }
                }
            }
        }
        Ok(())
    }
}

/// The members that are looked at, and which of several names for the same it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Model,
    Streams,
    MaxOutput(u8),
    Answers(u8),
    StreamOptions,
    GenerationConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generation {
    MaxOutput,
    Answers,
}

fn wanted(wire: Wire, name: &str) -> Option<Member> {
    match (wire, name) {
        // Gemini reads both ways of writing a name.
        (Wire::Gemini, "generationConfig" | "generation_config") => Some(Member::GenerationConfig),
        (Wire::Gemini, _) => None,
        (_, "model") => Some(Member::Model),
        (_, "stream") => Some(Member::Streams),
        (Wire::AnthropicMessages | Wire::OpenaiChat, "max_tokens") => Some(Member::MaxOutput(0)),
        (Wire::OpenaiChat, "max_completion_tokens") => Some(Member::MaxOutput(1)),
        (Wire::OpenaiChat, "n") => Some(Member::Answers(0)),
        (Wire::OpenaiChat, "best_of") => Some(Member::Answers(1)),
        (Wire::OpenaiChat, "stream_options") => Some(Member::StreamOptions),
        (Wire::OpenaiResponses, "max_output_tokens") => Some(Member::MaxOutput(0)),
        _ => None,
    }
}

fn generation(name: &str) -> Option<Generation> {
    match name {
        "maxOutputTokens" | "max_output_tokens" => Some(Generation::MaxOutput),
        "candidateCount" | "candidate_count" => Some(Generation::Answers),
        _ => None,
    }
}

fn malformed(member: &str, problem: &'static str) -> Malformed {
    Malformed { member: member.chars().take(100).collect(), problem }
}

fn string(name: &str, value: &Value) -> Result<Option<String>, Malformed> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(malformed(name, "is not a string")),
    }
}

fn boolean(name: &str, value: &Value) -> Result<bool, Malformed> {
    value
        .as_bool()
        .or(value.is_null().then_some(false))
        .ok_or_else(|| malformed(name, "is neither true nor false"))
}

/// A number of things. Gemini reads numbers in strings too.
fn number(wire: Wire, name: &str, value: &Value) -> Result<Option<u64>, Malformed> {
    let quoted = || {
        let digits = value
            .as_str()
            .filter(|text| wire == Wire::Gemini && text.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse().ok())
    };
    match value {
        Value::Null => Ok(None),
        _ => value
            .as_u64()
            .or_else(quoted)
            .map(Some)
            .ok_or_else(|| malformed(name, "is not a whole number from 0")),
    }
}

/// The members of an object that are wanted, in order; none of `null`.
fn object(name: &str, text: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Value)>, Malformed> {
    if text.trim() == "null" {
        return Ok(Vec::new());
    }
    let members = Members::parse(text.as_bytes()).map_err(|bad| match bad {
        BadBody::Twice(_) => malformed(name, "has a member twice"),
        _ => malformed(name, "is not an object"),
    })?;
    let wanted = members.texts().filter(|(inner, _)| wanted(inner));
    wanted.map(|(inner, text)| Ok((inner.to_owned(), value(name, text)?))).collect()
}

/// A value that is a word or a number.
fn value(name: &str, text: &str) -> Result<Value, Malformed> {
    if text.len() > LONGEST {
        return Err(malformed(name, "is too long"));
    }
    serde_json::from_str(text).map_err(|_| malformed(name, "is not JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a body of members whose values hold no commas outside of objects, as a caller would have them.
    fn read(wire: Wire, body: &str) -> Result<Asked, Malformed> {
        let mut members = Vec::new();
        let mut rest = body.strip_prefix('{').unwrap().strip_suffix('}').unwrap();
        while !rest.is_empty() {
            let (name, value) = rest.split_once(':').unwrap();
            let end = match value.starts_with(['{', '[']) {
                true => value.find(['}', ']']).unwrap() + 1,
                false => value.find(',').unwrap_or(value.len()),
            };
            members.push((name.trim_matches('"'), &value[..end]));
            rest = value[end..].trim_start_matches(',');
        }
        Asked::read(wire, members)
    }

    #[test]
    fn each_wire_has_its_own_names() {
        let asked = |model: Option<&str>, max_output, streams, answers, tells_usage| Asked {
            model: model.map(str::to_owned),
            max_output,
            streams,
            answers,
            tells_usage,
        };
        for (wire, body, expected) in [
            (
                Wire::AnthropicMessages,
                r#"{"model":"m","max_tokens":64000,"stream":true,"n":9}"#,
                asked(Some("m"), Some(64000), true, 1, true),
            ),
            (
                Wire::AnthropicMessages,
                r#"{"messages":["max_tokens"],"max_output_tokens":5}"#,
                asked(None, None, false, 1, true),
            ),
            (
                Wire::OpenaiChat,
                r#"{"model":"m","max_tokens":10,"max_completion_tokens":20,"n":3}"#,
                asked(Some("m"), Some(20), false, 3, true),
            ),
            (
                Wire::OpenaiChat,
                r#"{"max_completion_tokens":20,"max_tokens":30,"n":2,"best_of":4,"stream":true}"#,
                asked(None, Some(30), true, 4, false),
            ),
            (
                Wire::OpenaiChat,
                r#"{"stream":true,"stream_options":{"include_usage":true},"max_tokens":null}"#,
                asked(None, None, true, 1, true),
            ),
            (
                Wire::OpenaiChat,
                r#"{"stream":true,"stream_options":null,"n":null}"#,
                asked(None, None, true, 1, false),
            ),
            (
                Wire::OpenaiResponses,
                r#"{"model":"m","max_output_tokens":7,"stream":true,"max_tokens":"x"}"#,
                asked(Some("m"), Some(7), true, 1, true),
            ),
            (
                Wire::Gemini,
                r#"{"generationConfig":{"maxOutputTokens":8,"candidateCount":2,"temperature":1}}"#,
                asked(None, Some(8), false, 2, true),
            ),
            (
                Wire::Gemini,
                r#"{"generation_config":{"max_output_tokens":"8","candidate_count":null}}"#,
                asked(None, Some(8), false, 1, true),
            ),
            (Wire::Gemini, r#"{"contents":[]}"#, asked(None, None, false, 1, true)),
        ] {
            assert_eq!(read(wire, body), Ok(expected), "{wire:?} {body}");
        }
    }

    #[test]
    fn what_servers_could_read_differently_is_refused() {
        for (wire, body, member) in [
            (Wire::AnthropicMessages, r#"{"max_tokens":1,"max_tokens":2}"#, "max_tokens"),
            (Wire::AnthropicMessages, r#"{"max_tokens":"1"}"#, "max_tokens"),
            (Wire::OpenaiChat, r#"{"max_tokens":-1}"#, "max_tokens"),
            (Wire::OpenaiChat, r#"{"max_tokens":1.5}"#, "max_tokens"),
            (Wire::OpenaiChat, r#"{"n":1e3}"#, "n"),
            (Wire::OpenaiChat, r#"{"n":1,"n":2}"#, "n"),
            (Wire::OpenaiChat, r#"{"stream":"yes"}"#, "stream"),
            (Wire::OpenaiChat, r#"{"stream_options":[]}"#, "stream_options"),
            (Wire::OpenaiResponses, r#"{"model":["m"]}"#, "model"),
            (
                Wire::Gemini,
                r#"{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":2}}"#,
                "generationConfig",
            ),
            (
                Wire::Gemini,
                r#"{"generationConfig":{"maxOutputTokens":1,"maxOutputTokens":2}}"#,
                "generationConfig",
            ),
            (Wire::Gemini, r#"{"generationConfig":{},"generation_config":{}}"#, "generation_config"),
            (
                Wire::Gemini,
                r#"{"generationConfig":{"candidateCount":"+2"}}"#,
                "generationConfig.candidateCount",
            ),
            (Wire::Gemini, r#"{"generationConfig":5}"#, "generationConfig"),
        ] {
            assert_eq!(read(wire, body).unwrap_err().member, member, "{wire:?} {body}");
        }
    }
}
