//! The kinds of operations that come ready-made: where they lead, what calls they consist of, and how clients find them.

use std::fmt;

use belljar_core::OperationName;
use serde::{Deserialize, Serialize};

/// What an operation speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Chat Completions, and what is compatible with them.
    OpenaiChat,
    /// OpenAI's Responses.
    OpenaiResponses,
    /// Gemini's generateContent.
    Gemini,
    /// Search of the web, as Brave offers it.
    BraveSearch,
    /// Repositories of git over HTTPS.
    Git,
    /// Any other HTTP.
    Http,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Anthropic => "anthropic",
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiResponses => "openai-responses",
            Self::Gemini => "gemini",
            Self::BraveSearch => "brave-search",
            Self::Git => "git",
            Self::Http => "http",
        })
    }
}

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A model is asked, which costs.
    Model,
    /// Something else.
    Other,
    /// Whether somebody is there; answered without asking anybody.
    Hello,
}

/// A call of a ready-made kind: its method, and its path with `{}` for one segment.
type Call = (&'static str, &'static str, CallKind);

const ANTHROPIC: &[Call] = &[
    ("POST", "/v1/messages", CallKind::Model),
    ("POST", "/v1/messages/count_tokens", CallKind::Other),
    ("GET", "/v1/models", CallKind::Other),
    ("GET", "/v1/models/{}", CallKind::Other),
];
const OPENAI_CHAT: &[Call] = &[
    ("POST", "/v1/chat/completions", CallKind::Model),
    ("GET", "/v1/models", CallKind::Other),
    ("GET", "/v1/models/{}", CallKind::Other),
];
const OPENAI_RESPONSES: &[Call] = &[
    ("POST", "/v1/responses", CallKind::Model),
    ("POST", "/v1/responses/input_tokens", CallKind::Other),
    ("GET", "/v1/models", CallKind::Other),
    ("GET", "/v1/models/{}", CallKind::Other),
];
const GEMINI: &[Call] = &[
    ("POST", "/v1beta/models/{}:generateContent", CallKind::Model),
    ("POST", "/v1beta/models/{}:streamGenerateContent", CallKind::Model),
    ("POST", "/v1beta/models/{}:countTokens", CallKind::Other),
    ("GET", "/v1beta/models", CallKind::Other),
    ("GET", "/v1beta/models/{}", CallKind::Other),
];
const BRAVE_SEARCH: &[Call] =
    &[("GET", "/res/v1/web/search", CallKind::Other), ("GET", "/res/v1/news/search", CallKind::Other)];

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Anthropic,
        Self::OpenaiChat,
        Self::OpenaiResponses,
        Self::Gemini,
        Self::BraveSearch,
        Self::Git,
        Self::Http,
    ];

    /// The calls it consists of; none where the configuration lists them.
    fn calls(self) -> &'static [Call] {
        match self {
            Self::Anthropic => ANTHROPIC,
            Self::OpenaiChat => OPENAI_CHAT,
            Self::OpenaiResponses => OPENAI_RESPONSES,
            Self::Gemini => GEMINI,
            Self::BraveSearch => BRAVE_SEARCH,
            Self::Git | Self::Http => &[],
        }
    }

    /// Whether the configuration says which calls there are.
    pub fn is_listed(self) -> bool {
        matches!(self, Self::Git | Self::Http)
    }

    /// Which call this is, and what stands for `{}` in its path.
    pub fn call<'a>(self, method: &str, path: &'a str) -> Option<(CallKind, Option<&'a str>)> {
        if !self.is_listed() && matches!(method, "GET" | "HEAD") && matches!(path, "" | "/") {
            return Some((CallKind::Hello, None));
        }
        self.calls().iter().find_map(|(own, pattern, kind)| {
            let same = *own == method || (*own == "GET" && method == "HEAD");
            same.then(|| segment(pattern, path)).flatten().map(|found| (*kind, found))
        })
    }

    /// Where it leads unless the configuration says otherwise.
    pub fn upstream(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::OpenaiChat | Self::OpenaiResponses => Some("https://api.openai.com"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com"),
            Self::BraveSearch => Some("https://api.search.brave.com"),
            Self::Git | Self::Http => None,
        }
    }

    /// The header in which its key goes, and how.
    pub fn header(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Anthropic => Some(("x-api-key", "{}")),
            Self::OpenaiChat | Self::OpenaiResponses => Some(("authorization", "Bearer {}")),
            Self::Gemini => Some(("x-goog-api-key", "{}")),
            Self::BraveSearch => Some(("x-subscription-token", "{}")),
            Self::Git | Self::Http => None,
        }
    }

    /// Where clients find it at the gateway, unless the configuration says otherwise.
    pub fn mount(self, name: &OperationName) -> String {
        match self {
            Self::Anthropic => "/anthropic".into(),
            Self::OpenaiChat | Self::OpenaiResponses => "/openai".into(),
            Self::Gemini => "/gemini".into(),
            Self::BraveSearch => "/search".into(),
            Self::Git => "/git".into(),
            Self::Http => format!("/{}", name.as_str().replace(':', "/")),
        }
    }

    /// The variables by which its usual clients find it: one for the address, one for the token.
    pub fn variables(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Anthropic => Some(("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN")),
            Self::OpenaiChat | Self::OpenaiResponses => Some(("OPENAI_BASE_URL", "OPENAI_API_KEY")),
            Self::Gemini => Some(("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY")),
            Self::BraveSearch | Self::Git | Self::Http => None,
        }
    }

    /// What those clients expect behind the address.
    pub fn base(self) -> &'static str {
        match self {
            Self::OpenaiChat | Self::OpenaiResponses => "/v1",
            _ => "",
        }
    }
}

/// Whether a path is as a pattern says, and what stands for `{}`: something, without a slash.
fn segment<'a>(pattern: &str, path: &'a str) -> Option<Option<&'a str>> {
    match pattern.split_once("{}") {
        None => (pattern == path).then_some(None),
        Some((before, after)) => {
            let found = path.strip_prefix(before)?.strip_suffix(after)?;
            (!found.is_empty() && !found.contains(['/', ':'])).then_some(Some(found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_method_and_path() {
        for (kind, method, path, expected) in [
            (Kind::Anthropic, "POST", "/v1/messages", Some((CallKind::Model, None))),
            (Kind::Anthropic, "HEAD", "/", Some((CallKind::Hello, None))),
            (Kind::Anthropic, "HEAD", "/v1/models", Some((CallKind::Other, None))),
            (Kind::Anthropic, "POST", "/v1/messages/", None),
            (Kind::Anthropic, "POST", "/v1/messages/batches", None),
            (Kind::Anthropic, "GET", "/v1/messages", None),
            (Kind::Anthropic, "POST", "/v1/files", None),
            (Kind::OpenaiChat, "POST", "/v1/responses", None),
            (
                Kind::Gemini,
                "POST",
                "/v1beta/models/g-1:generateContent",
                Some((CallKind::Model, Some("g-1"))),
            ),
            (Kind::Gemini, "POST", "/v1beta/models/g-1:batchGenerateContent", None),
            (Kind::Gemini, "POST", "/v1beta/models/a/b:generateContent", None),
            (Kind::Gemini, "POST", "/v1beta/models/a:x:generateContent", None),
            (Kind::Gemini, "POST", "/v1beta/models/:generateContent", None),
            (Kind::Http, "GET", "/", None),
        ] {
            assert_eq!(kind.call(method, path), expected, "{kind:?} {method} {path}");
        }
    }
}
