//! What is known of an answer so far, and how it grows. The wires put in what they read.

use serde_json::Value;

use super::{Failure, Known, Report, Usage};
use crate::policy::shortened;

/// The longest id or name of a model that is kept, in bytes.
const MAX_WORD: usize = 256;

/// What is known of an answer so far.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) ended: bool,
    /// The figures are those of the end of the answer, and nothing came after them that was not understood.
    pub(super) settled: bool,
    pub(super) error: Option<Failure>,
    pub(super) web_searches: u64,
    pub(super) other_models: bool,
    input: Option<Input>,
    output: Option<Output>,
    choices: Choices,
}

/// What was put in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) uncached: u64,
    pub(super) cache_read: u64,
    pub(super) cache_write_5m: u64,
    pub(super) cache_write_1h: u64,
}

/// What came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) all: u64,
    pub(super) reasoning: u64,
}

/// Which of several answers to one question have begun, and which are complete. Those beyond 64 are not followed.
#[derive(Clone, Copy, Debug, Default)]
struct Choices {
    begun: u64,
    complete: u64,
}

impl Input {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            uncached: self.uncached.saturating_add(other.uncached),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write_5m: self.cache_write_5m.saturating_add(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
        }
    }
}

impl Output {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            all: self.all.saturating_add(other.all),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}

impl Facts {
    /// What was put in, by a later word than any before. Figures are cumulative, so the later word replaces the
    /// earlier; but no input at all is what servers say that have counted it before.
    pub(super) fn put_in(&mut self, input: Input) {
        if input != Input::default() || self.input.is_none() {
            self.input = Some(input);
        }
    }

    /// What came out, likewise.
    pub(super) fn came_out(&mut self, output: Output) {
        if output != Output::default() || self.output.is_none() {
            let reasoning = output.reasoning.min(output.all);
            self.output = Some(Output { reasoning, ..output });
        }
    }

    /// The id and the model, by the first word that says them.
    pub(super) fn named(&mut self, id: &Value, model: &Value) {
        for (kept, said) in [(&mut self.id, id), (&mut self.model, model)] {
            if let (None, Some(said)) = (&kept, said.as_str())
                && (1..=MAX_WORD).contains(&said.len())
            {
                *kept = Some(said.to_owned());
            }
        }
    }

    /// One of the answers, and whether this is its end.
    pub(super) fn choice(&mut self, index: &Value, complete: bool) {
        let bit = index
            .as_u64()
            .unwrap_or(0)
            .try_into()
            .ok()
            .and_then(|index| 1u64.checked_shl(index))
            .unwrap_or(0);
        self.choices.begun |= bit;
        if complete {
            self.choices.complete |= bit;
        }
    }

    /// Whether answers have begun, and all of these are complete.
    pub(super) fn choices_complete(&self) -> bool {
        self.choices.begun != 0 && self.choices.begun == self.choices.complete
    }

    /// An error, if the value is one. The first is kept.
    pub(super) fn failed(&mut self, error: &Value) {
        let words = |name: &str| error[name].as_str().filter(|word| !word.is_empty());
        let (kind, message) = match error {
            Value::Null | Value::Bool(false) => return,
            Value::String(message) => (None, Some(message.as_str())),
            _ => (words("type").or(words("status")).or(words("code")), words("message")),
        };
        self.error.get_or_insert_with(|| Failure {
            kind: shortened(kind.unwrap_or("error")),
            message: shortened(message.unwrap_or_default()),
        });
    }

    /// What is known.
    pub(super) fn report(&self) -> Report {
        let known = self.input.is_some() || self.output.is_some();
        let complete = self.input.is_some() && self.output.is_some();
        let (input, output) = (self.input.unwrap_or_default(), self.output.unwrap_or_default());
        let usage = Usage {
            uncached: input.uncached,
            cache_read: input.cache_read,
            cache_write_5m: input.cache_write_5m,
            cache_write_1h: input.cache_write_1h,
            output: output.all,
            reasoning: output.reasoning,
        };
        Report {
            usage: match known {
                false => Known::Unknown,
                true if complete && self.ended && self.settled => Known::Final(usage),
                true => Known::Provisional(usage),
            },
            id: self.id.clone(),
            model: self.model.clone(),
            ended: self.ended,
            error: self.error.clone(),
            web_searches: self.web_searches,
            other_models: self.other_models,
        }
    }
}

/// A count, as a member of an object. Some servers write whole numbers with a point.
pub(super) fn count(object: &Value, name: &str) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let value = &object[name];
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..EXACT).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

/// Figures in the words of OpenAI's wires, in which input contains what was read from a cache and written to one.
pub(super) struct Inclusive<'a> {
    pub(super) input: Option<u64>,
    pub(super) input_details: &'a Value,
    pub(super) output: Option<u64>,
    pub(super) output_details: &'a Value,
    pub(super) usage: &'a Value,
}

impl Inclusive<'_> {
    /// Puts them in; answers whether both sides were said.
    ///
    /// Some servers count reasoning in the total alone, beside input and output; it is output all the same. And where
    /// one of the three is missing, the other two say it.
    pub(super) fn put(&self, facts: &mut Facts) -> bool {
        let total = count(self.usage, "total_tokens");
        let input = self.input.or_else(|| total?.checked_sub(self.output?));
        let rest = total.zip(input).map(|(total, input)| total.saturating_sub(input));
        if let Some(input) = input {
            let read = count(self.input_details, "cached_tokens")
                .or_else(|| count(self.usage, "prompt_cache_hit_tokens"))
                .or_else(|| count(self.usage, "cached_tokens"))
                .unwrap_or(0);
            let written = count(self.input_details, "cache_write_tokens").unwrap_or(0);
            facts.put_in(Input {
                uncached: input.saturating_sub(read).saturating_sub(written),
                cache_read: read,
                cache_write_5m: written,
                cache_write_1h: 0,
            });
        }
        if let Some(all) = self.output.max(rest) {
            let beside = all - self.output.unwrap_or(all);
            let reasoning = count(self.output_details, "reasoning_tokens").unwrap_or(0).max(beside);
            facts.came_out(Output { all, reasoning });
        }
        input.is_some() && self.output.max(rest).is_some()
    }
}
