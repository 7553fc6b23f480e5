//! Gemini's `generateContent` and `streamGenerateContent`. Every chunk of a stream says what was used so far. Prompts
//! contain what was read from a cache, but not what tools put in; candidates do not contain thoughts. What is 0 is
//! left out.

use serde_json::Value;

use super::facts::{Facts, Input, Output, count};
use super::prune::Want;

pub(super) static WANT: Want = Want::Members(&[
    ("responseId", Want::Whole),
    ("modelVersion", Want::Whole),
    ("usageMetadata", Want::Whole),
    ("error", Want::Whole),
    ("promptFeedback", Want::Members(&[("blockReason", Want::Whole)])),
    ("candidates", Want::Each(&Want::Members(&[("index", Want::Whole), ("finishReason", Want::Whole)]))),
]);

/// An answer that is not streamed.
pub(super) fn whole(answer: &Value, facts: &mut Facts) {
    facts.settled = read(answer, facts) == Some(true);
    facts.ended = true;
}

/// One chunk of a stream.
pub(super) fn chunk(chunk: &Value, facts: &mut Facts) {
    let used = read(chunk, facts);
    for candidate in chunk["candidates"].as_array().into_iter().flatten() {
        facts.choice(&candidate["index"], candidate["finishReason"].is_string());
    }
    if chunk["promptFeedback"]["blockReason"].is_string() {
        facts.choice(&Value::Null, true);
    }
    facts.ended = facts.choices_complete();
    if let Some(both) = used {
        facts.settled = both && facts.ended;
    }
}

/// Answers whether both input and output were said, or nothing if nothing was.
fn read(answer: &Value, facts: &mut Facts) -> Option<bool> {
    facts.named(&answer["responseId"], &answer["modelVersion"]);
    facts.failed(&answer["error"]);
    let usage = &answer["usageMetadata"];
    let prompt = count(usage, "promptTokenCount");
    let candidates = count(usage, "candidatesTokenCount");
    let thoughts = count(usage, "thoughtsTokenCount");
    if let Some(prompt) = prompt {
        let read = count(usage, "cachedContentTokenCount").unwrap_or(0);
        let tools = count(usage, "toolUsePromptTokenCount").unwrap_or(0);
        let uncached = prompt.saturating_sub(read).saturating_add(tools);
        facts.put_in(Input { uncached, cache_read: read, ..Input::default() });
    }
    if prompt.or(candidates).or(thoughts).is_some() {
        let reasoning = thoughts.unwrap_or(0);
        facts.came_out(Output { all: candidates.unwrap_or(0).saturating_add(reasoning), reasoning });
    }
    usage.is_object().then_some(prompt.is_some())
}
