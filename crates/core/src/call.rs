//! What sandboxes had the gateway do, as it is told afterwards.

use serde::{Deserialize, Serialize};

use crate::{ExecId, OperationName};

/// A call of an operation, made or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its place in the sandbox's list, from 1.
    pub seq: u64,
    /// When it was made, in milliseconds since 1970.
    pub time_ms: u64,
    /// Names it, in the answer's header `x-request-id` as well.
    pub request_id: String,
    /// The execution whose process made it; none where the host cannot tell.
    pub exec: Option<ExecId>,
    /// The token, by its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The operation; none if it was none that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationName>,
    /// Method and path, safe to print.
    pub request: String,
    /// The model that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The status of the answer.
    pub status: u16,
    /// Why it was refused, or did not work out, in words; nothing if it went well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether it was refused here, so that nothing of it was sent on.
    pub refused: bool,
    /// Whether it counts against no budget, since nothing was asked of anybody for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// What a model used, as far as its provider has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ModelUsage>,
    /// Whether the provider has said so to the end.
    pub is_final: bool,
    /// What it cost, in thousandths of a millionth of a dollar; nothing if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_dollars: Option<u64>,
    /// Tokens that count against budgets: what was used if that is known to the end, and else what had been set aside for it.
    pub counted_tokens: u64,
    /// Money that counts, likewise.
    pub counted_nano_dollars: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// Tokens that a model used, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelUsage {
    /// Read by it, and not from a cache.
    pub uncached: u64,
    /// Read from a cache.
    pub cache_read: u64,
    /// Written to a cache for five minutes.
    pub cache_write_5m: u64,
    /// Written to a cache for an hour.
    pub cache_write_1h: u64,
    /// Said by it, thoughts included.
    pub output: u64,
    /// Thought by it; part of what it said.
    pub reasoning: u64,
}

impl ModelUsage {
    /// Counts these as well.
    pub fn add(&mut self, more: Self) {
        let Self { uncached, cache_read, cache_write_5m, cache_write_1h, output, reasoning } = self;
        for (sum, part) in [
            (uncached, more.uncached),
            (cache_read, more.cache_read),
            (cache_write_5m, more.cache_write_5m),
            (cache_write_1h, more.cache_write_1h),
            (output, more.output),
            (reasoning, more.reasoning),
        ] {
            *sum = sum.saturating_add(part);
        }
    }

    /// All input.
    pub fn input(&self) -> u64 {
        let cached = [self.cache_read, self.cache_write_5m, self.cache_write_1h];
        cached.iter().fold(self.uncached, |sum, part| sum.saturating_add(*part))
    }

    /// All tokens.
    pub fn total(&self) -> u64 {
        self.input().saturating_add(self.output)
    }
}

/// What calls came to, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallTotals {
    /// Calls that were made.
    pub calls: u64,
    /// Calls that were refused, so that nothing of them was sent on.
    pub refused: u64,
    /// What models used, as far as their providers have said.
    pub tokens: ModelUsage,
    /// What is known of what that cost, in thousandths of a millionth of a dollar.
    pub nano_dollars: u64,
    /// Calls of models of which it is not known to the end what they used or what that cost.
    pub unknown: u64,
}

impl CallTotals {
    /// Counts a call.
    pub fn add(&mut self, call: &Call) {
        if call.refused {
            self.refused = self.refused.saturating_add(1);
            return;
        }
        self.calls = self.calls.saturating_add(1);
        self.tokens.add(call.usage.unwrap_or_default());
        self.nano_dollars = self.nano_dollars.saturating_add(call.nano_dollars.unwrap_or(0));
        let known = call.usage.is_some() && call.is_final && call.nano_dollars.is_some();
        self.unknown = self.unknown.saturating_add(u64::from(call.model.is_some() && !known));
    }

    /// Of these calls.
    pub fn of<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Self {
        let mut totals = Self::default();
        calls.into_iter().for_each(|call| totals.add(call));
        totals
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The files in a sandbox's directory that hold its calls as lines of JSON: the newer, and the one before.
pub const CALL_FILES: [&str; 2] = ["calls", "calls.old"];
