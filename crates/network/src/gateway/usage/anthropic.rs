//! Anthropic's Messages. `input_tokens` are without those of caches. A stream says the input in `message_start` and
//! the output in `message_delta`, which is cumulative and may say the input again.

use serde_json::Value;

use super::facts::{Facts, Input, Output, count};
use super::prune::Want;

pub(super) static WANT: Want = Want::Members(&[
    ("type", Want::Whole),
    ("id", Want::Whole),
    ("model", Want::Whole),
    ("usage", Want::Whole),
    ("error", Want::Whole),
    ("message", Want::Members(&[("id", Want::Whole), ("model", Want::Whole), ("usage", Want::Whole)])),
]);

/// What was last said, member by member, because a later word may leave some out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    message: Members,
    /// What the provider did beside the message itself, which is not in the message's own figures.
    beside: (Input, Output),
}

#[derive(Clone, Copy, Debug, Default)]
struct Members {
    uncached: Option<u64>,
    read: Option<u64>,
    written: Option<u64>,
    /// The part of `written` that is for an hour.
    for_an_hour: Option<u64>,
}

/// A message that is not streamed.
pub(super) fn whole(message: &Value, said: &mut Said, facts: &mut Facts) {
    facts.named(&message["id"], &message["model"]);
    facts.failed(&message["error"]);
    facts.settled = used(&message["usage"], said, facts);
    facts.ended = true;
}

/// One event of a stream.
pub(super) fn event(name: &str, event: &Value, said: &mut Said, facts: &mut Facts) {
    match event["type"].as_str().unwrap_or(name) {
        "message_start" => {
            let message = &event["message"];
            facts.named(&message["id"], &message["model"]);
            used(&message["usage"], said, facts);
        }
        "message_delta" => facts.settled |= used(&event["usage"], said, facts),
        "message_stop" => facts.ended = true,
        _ => facts.failed(&event["error"]),
    }
}

/// Puts in what a `usage` says; answers whether it said the output.
fn used(usage: &Value, said: &mut Said, facts: &mut Facts) -> bool {
    let now = Members::read(usage);
    let filled = now.or(said.message);
    // A word about some of the members that makes the input smaller is a server's that does not know any more.
    if filled.total() >= said.message.total() || now.is_complete() && now.total() > 0 {
        said.message = filled;
    }
    if let Some(iterations) = usage["iterations"].as_array() {
        said.beside = (Input::default(), Output::default());
        for other in iterations {
            let kind = other["type"].as_str().unwrap_or("message");
            if kind != "message" {
                said.beside.0 = said.beside.0.plus(Members::read(other).input());
                said.beside.1 = said.beside.1.plus(output(other).unwrap_or_default());
                facts.other_models |= kind != "compaction";
            }
        }
    }
    if said.message.is_said() {
        facts.put_in(said.message.input().plus(said.beside.0));
    }
    let output = output(usage);
    if let Some(output) = output {
        facts.came_out(output.plus(said.beside.1));
    }
    let searches = count(&usage["server_tool_use"], "web_search_requests").unwrap_or(0);
    facts.web_searches = facts.web_searches.max(searches);
    output.is_some()
}

impl Members {
    fn read(usage: &Value) -> Self {
        let parts = &usage["cache_creation"];
        let (short, long) =
            (count(parts, "ephemeral_5m_input_tokens"), count(parts, "ephemeral_1h_input_tokens"));
        let sum = || Some(short?.saturating_add(long?));
        Self {
            uncached: count(usage, "input_tokens"),
            read: count(usage, "cache_read_input_tokens"),
            written: count(usage, "cache_creation_input_tokens").or_else(sum),
            for_an_hour: long,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            uncached: self.uncached.or(other.uncached),
            read: self.read.or(other.read),
            written: self.written.or(other.written),
            for_an_hour: self.for_an_hour.or(other.for_an_hour),
        }
    }

    fn is_said(&self) -> bool {
        self.uncached.or(self.read).or(self.written).is_some()
    }

    fn is_complete(&self) -> bool {
        self.uncached.is_some() && self.read.is_some() && self.written.is_some()
    }

    fn total(&self) -> u64 {
        [self.uncached, self.read, self.written].into_iter().flatten().fold(0, u64::saturating_add)
    }

    fn input(&self) -> Input {
        let written = self.written.unwrap_or(0);
        let for_an_hour = self.for_an_hour.unwrap_or(0).min(written);
        Input {
            uncached: self.uncached.unwrap_or(0),
            cache_read: self.read.unwrap_or(0),
            cache_write_5m: written - for_an_hour,
            cache_write_1h: for_an_hour,
        }
    }
}

fn output(usage: &Value) -> Option<Output> {
    let reasoning = count(&usage["output_tokens_details"], "thinking_tokens").unwrap_or(0);
    count(usage, "output_tokens").map(|all| Output { all, reasoning })
}
