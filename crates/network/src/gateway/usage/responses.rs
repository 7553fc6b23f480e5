//! OpenAI's Responses. A stream says what was used in the event that ends it.

use serde_json::Value;

use super::facts::{Facts, Inclusive, count};
use super::prune::Want;

pub(super) static WANT: Want = Want::Members(&[
    ("type", Want::Whole),
    ("id", Want::Whole),
    ("model", Want::Whole),
    ("status", Want::Whole),
    ("usage", Want::Whole),
    ("error", Want::Whole),
    ("code", Want::Whole),
    ("message", Want::Whole),
    (
        "response",
        Want::Members(&[
            ("id", Want::Whole),
            ("model", Want::Whole),
            ("status", Want::Whole),
            ("usage", Want::Whole),
            ("error", Want::Whole),
        ]),
    ),
]);

/// A response that is not streamed. One that is made in the background is not over when it is told of.
pub(super) fn whole(response: &Value, facts: &mut Facts) {
    facts.settled = read(response, facts);
    facts.ended = !matches!(response["status"].as_str(), Some("queued" | "in_progress"));
}

/// One event of a stream.
pub(super) fn event(name: &str, event: &Value, facts: &mut Facts) {
    let response = &event["response"];
    match event["type"].as_str().unwrap_or(name) {
        "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
            facts.settled = read(response, facts);
            facts.ended = true;
        }
        "error" if event["error"].is_null() => {
            let kind = event["code"].as_str().unwrap_or("error");
            facts.failed(&serde_json::json!({ "type": kind, "message": event["message"] }));
        }
        "error" => facts.failed(&event["error"]),
        _ => _ = read(response, facts),
    }
}

/// Answers whether both input and output were said.
fn read(response: &Value, facts: &mut Facts) -> bool {
    facts.named(&response["id"], &response["model"]);
    if let Some(code) = response["error"]["code"].as_str() {
        facts.failed(&serde_json::json!({ "type": code, "message": response["error"]["message"] }));
    } else {
        facts.failed(&response["error"]);
    }
    if response["status"] == "failed" {
        facts.failed(&Value::Bool(true));
    }
    let usage = &response["usage"];
    let figures = Inclusive {
        input: count(usage, "input_tokens"),
        input_details: &usage["input_tokens_details"],
        output: count(usage, "output_tokens"),
        output_details: &usage["output_tokens_details"],
        usage,
    };
    figures.put(facts)
}
