//! OpenAI's Chat Completions, and the servers that speak it too. A stream says what was used in its last chunk, if it
//! was asked to (`stream_options.include_usage`); some servers say it in every chunk, some in places of their own.

use serde_json::Value;

use super::facts::{Facts, Inclusive, count};
use super::prune::Want;

pub(super) static WANT: Want = Want::Members(&[
    ("id", Want::Whole),
    ("model", Want::Whole),
    ("usage", Want::Whole),
    ("error", Want::Whole),
    ("x_groq", Want::Members(&[("usage", Want::Whole)])),
    (
        "choices",
        Want::Each(&Want::Members(&[
            ("index", Want::Whole),
            ("finish_reason", Want::Whole),
            ("usage", Want::Whole),
        ])),
    ),
]);

/// What ends a stream in place of an event.
pub(super) const DONE: &[u8] = b"[DONE]";

/// A completion that is not streamed.
pub(super) fn whole(completion: &Value, facts: &mut Facts) {
    facts.named(&completion["id"], &completion["model"]);
    facts.failed(&completion["error"]);
    facts.settled = used(completion, facts) == Some(true);
    facts.ended = true;
}

/// One chunk of a stream.
pub(super) fn chunk(chunk: &Value, facts: &mut Facts) {
    facts.named(&chunk["id"], &chunk["model"]);
    facts.failed(&chunk["error"]);
    let choices = chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    for choice in choices {
        facts.choice(&choice["index"], !choice["finish_reason"].is_null());
    }
    if let Some(both) = used(chunk, facts) {
        let last = choices.is_empty() || facts.choices_complete();
        facts.settled = both && last;
        // Not every server says that it is done.
        facts.ended |= choices.is_empty() && facts.choices_complete();
    } else if !choices.is_empty() {
        // More of an answer, of which what was said before did not know.
        facts.settled = false;
    }
}

/// Puts in what was used; answers whether both input and output were said, or nothing if nothing was.
fn used(said: &Value, facts: &mut Facts) -> Option<bool> {
    let alone = said["choices"].as_array().filter(|choices| choices.len() == 1);
    let places =
        [&said["usage"], &said["x_groq"]["usage"], alone.map_or(&Value::Null, |one| &one[0]["usage"])];
    let usage = places.into_iter().find(|usage| usage.is_object())?;
    let figures = Inclusive {
        input: count(usage, "prompt_tokens"),
        input_details: &usage["prompt_tokens_details"],
        output: count(usage, "completion_tokens"),
        output_details: &usage["completion_tokens_details"],
        usage,
    };
    Some(figures.put(facts))
}
