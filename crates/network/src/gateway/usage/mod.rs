//! What a provider's answer says was used, read from the answer as it passes.
//!
//! Four wires are known ([`Wire`]), each as one JSON text and as a stream of events. A [`Reader`] is given the bytes
//! of an answer's body, in pieces of any size, and says at any moment what is known ([`Report`]). It keeps a bounded
//! part of what it reads, whatever the length of the answer. The figures are the provider's own, brought to one
//! meaning ([`Usage`]); what a provider does not say is unknown, and never 0. [`Asked`] is the other side: what a
//! request may use at most.
//!
//! Bodies are read as they are meant: a caller who lets providers compress has to decompress before.

mod anthropic;
mod asked;
mod chat;
mod facts;
mod gemini;
mod prune;
mod reader;
mod responses;
mod sse;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use asked::{Asked, Malformed};
pub use belljar_core::ModelUsage as Usage;
pub use reader::Reader;

/// The languages in which providers are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Anthropic's Messages.
    AnthropicMessages,
    /// OpenAI's Chat Completions, and the many servers that speak it too.
    OpenaiChat,
    /// OpenAI's Responses.
    OpenaiResponses,
    /// Gemini's `generateContent` and `streamGenerateContent`.
    Gemini,
}

impl Wire {
    /// Every wire.
    pub const ALL: [Self; 4] =
        [Self::AnthropicMessages, Self::OpenaiChat, Self::OpenaiResponses, Self::Gemini];
}

/// How much is known of what was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "known", content = "usage", rename_all = "snake_case")]
pub enum Known {
    /// The provider said nothing.
    #[default]
    Unknown,
    /// The provider said this before the answer was cut off, or was not understood to the end: at least so much was
    /// used.
    Provisional(Usage),
    /// The provider's last word.
    Final(Usage),
}

impl Known {
    /// The figures, if there are any.
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Self::Unknown => None,
            Self::Provisional(usage) | Self::Final(usage) => Some(*usage),
        }
    }

    /// Whether this is the provider's last word.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Final(_))
    }
}

/// What an answer says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was used.
    pub usage: Known,
    /// The provider's id of the answer, by which it can be counted once.
    pub id: Option<String>,
    /// The model, as the provider calls it.
    pub model: Option<String>,
    /// Whether the answer came to its proper end.
    pub ended: bool,
    /// The error that the answer is, or that stands in it; a stream with one has begun with 200.
    pub error: Option<Failure>,
    /// Searches of the web that the provider made and counts (Anthropic).
    pub web_searches: u64,
    /// Some of the tokens are of another model than `model`, so that they cannot be priced as its own.
    pub other_models: bool,
}

/// An error that a provider reported in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its type, code or status, as the provider has it; `error` if it has none.
    pub kind: String,
    /// Its beginning in words, made safe to print.
    pub message: String,
}
