//! Refusals in the shape of each provider's own errors, so that real clients stop, say why, and leave the agent free
//! to go on.
//!
//! Clients retry what looks as if it might pass: any 5xx, 408, 409 and 429, and some of them 401 as well. A refusal
//! that will stand has another status and `x-should-retry: false`, which the providers' own libraries obey.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::usage::Wire;
use crate::policy::shortened;

/// The header that says the cause in one word ([`Cause::as_str`]), whatever the shape of the body.
pub const CAUSE_HEADER: &str = "x-belljar-refusal";

/// Why a request is not served. Nothing in it is secret: neither keys nor what is known of where they go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// There is no token, or it is none of this sandbox's.
    BadToken,
    /// The token was good until its time was over, or it was revoked.
    Expired,
    /// The token is good for other operations.
    OutOfScope,
    /// The operation is for other models.
    ModelNotAllowed {
        /// The one that was asked for, if any was.
        asked: Option<String>,
        /// Those that may be asked for.
        allowed: Vec<String>,
    },
    /// The operation does not take this parameter, or not with this value.
    ParameterNotAllowed {
        /// Its name.
        name: String,
        /// What is wrong with it, as the end of a sentence that begins with its name.
        problem: String,
    },
    /// Nothing is left of a budget, or not enough for what the request may cost at most.
    BudgetUsedUp {
        /// Which budget, as in "the session's budget of 100 requests".
        budget: String,
    },
    /// Requests come faster than they may.
    RateExceeded {
        /// When the next may come.
        retry_after: Duration,
    },
    /// The body cannot be read with certainty.
    BodyMalformed {
        /// What is wrong with it, as the end of a sentence that begins with "its body".
        problem: String,
    },
    /// The body is too long.
    BodyTooLarge {
        /// The longest there may be, in bytes.
        most: u64,
    },
    /// The provider cannot be connected to.
    UpstreamUnreachable,
    /// The provider does not answer.
    UpstreamTimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// The provider was asked, and there is no answer that could be passed on.
    UpstreamFailed {
        /// What is wrong with it, as the end of a sentence that begins with "the provider".
        problem: &'static str,
    },
    /// The gateway does not have the key that the operation needs.
    SecretMissing,
    /// There is no room to write the call down, and what is not written down is not done.
    NotWritten,
}

/// A request that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was tried: a method and a path, or an operation.
    pub what: String,
    /// Why it is not served.
    pub cause: Cause,
    /// The request's id here, by which its line in the log is found.
    pub request_id: String,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers, with small letters. The length is not among them.
    pub headers: Vec<(&'static str, String)>,
    /// The body, which ends with a line feed.
    pub body: Vec<u8>,
}

/// Whether it helps a client to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// It does not.
    Never,
    /// It does after a while.
    Later(Duration),
    /// Nobody knows; the client may do as it does with its provider.
    Perhaps,
}

impl Cause {
    /// The cause in one word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::BadToken => "bad_token",
            Self::Expired => "expired",
            Self::OutOfScope => "out_of_scope",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::ParameterNotAllowed { .. } => "parameter_not_allowed",
            Self::BudgetUsedUp { .. } => "budget_used_up",
            Self::RateExceeded { .. } => "rate_exceeded",
            Self::BodyMalformed { .. } => "body_malformed",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimedOut { .. } => "upstream_timed_out",
            Self::UpstreamFailed { .. } => "upstream_failed",
            Self::SecretMissing => "secret_missing",
            Self::NotWritten => "not_written",
        }
    }

    /// The status of the answer. Never 401: clients take it for a login that has to be renewed, and try again and
    /// again.
    pub fn status(&self) -> u16 {
        match self {
            Self::BadToken | Self::Expired | Self::OutOfScope | Self::ModelNotAllowed { .. } => 403,
            Self::ParameterNotAllowed { .. } | Self::BodyMalformed { .. } => 400,
            Self::BudgetUsedUp { .. } => 402,
            Self::BodyTooLarge { .. } => 413,
            Self::RateExceeded { .. } => 429,
            Self::UpstreamUnreachable | Self::UpstreamFailed { .. } => 502,
            Self::SecretMissing => 503,
            Self::NotWritten => 507,
            Self::UpstreamTimedOut { .. } => 504,
        }
    }

    /// Whether it is the provider's doing, and nothing was refused.
    pub fn is_upstream(&self) -> bool {
        matches!(self, Self::UpstreamUnreachable) || self.is_unanswered()
    }

    /// Whether the provider was asked, so that it may have done all of it and want to be paid.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::UpstreamTimedOut { .. } | Self::UpstreamFailed { .. })
    }

    fn retry(&self) -> Retry {
        match self {
            Self::RateExceeded { retry_after } => Retry::Later(*retry_after),
            _ if self.is_upstream() => Retry::Perhaps,
            _ => Retry::Never,
        }
    }

    /// Why, as a sentence without its end.
    fn reason(&self) -> String {
        match self {
            Self::BadToken => "it came without a token of this sandbox".to_owned(),
            Self::Expired => "its token is no longer valid".to_owned(),
            Self::OutOfScope => "its token is for other operations".to_owned(),
            Self::ModelNotAllowed { asked: None, .. } => "it names no model".to_owned(),
            Self::ModelNotAllowed { asked: Some(asked), .. } => {
                format!("the model `{}` is not among those it may use", shortened(asked))
            }
            Self::ParameterNotAllowed { name, problem } => {
                format!("its parameter `{}` {}", shortened(name), shortened(problem))
            }
            Self::BudgetUsedUp { budget } => format!("{budget} is used up"),
            Self::RateExceeded { retry_after } => {
                format!("requests come too fast; the next may come in {} s", seconds(*retry_after))
            }
            Self::BodyMalformed { problem } => format!("its body {}", shortened(problem)),
            Self::BodyTooLarge { most } => format!("its body is longer than {most} bytes"),
            Self::UpstreamUnreachable => "the provider cannot be reached".to_owned(),
            Self::UpstreamTimedOut { after } => {
                format!("the provider did not answer within {} s", seconds(*after))
            }
            Self::UpstreamFailed { problem } => format!("the provider {problem}"),
            Self::SecretMissing => "the gateway does not have the key for it".to_owned(),
            Self::NotWritten => "it cannot be written down, and so it is not made".to_owned(),
        }
    }

    /// What can be done, in whole sentences.
    fn advice(&self) -> String {
        match self {
            Self::BadToken => "Use the token from the environment as it is, or go on without this call.".to_owned(),
            Self::Expired => "It cannot be renewed from inside the sandbox; go on without this call.".to_owned(),
            Self::OutOfScope => "Go on without this call; whoever made the sandbox can grant the operation.".to_owned(),
            Self::ModelNotAllowed { allowed, .. } if allowed.is_empty() => "Go on without this call.".to_owned(),
            Self::ModelNotAllowed { allowed, .. } => {
                const SHOWN: usize = 8;
                let mut names: Vec<String> =
                    allowed.iter().take(SHOWN).map(|name| format!("`{}`", shortened(name))).collect();
                if allowed.len() > SHOWN {
                    names.push(format!("{} more", allowed.len() - SHOWN));
                }
                format!("Use one of {}, or go on without this call.", names.join(", "))
            }
            Self::ParameterNotAllowed { .. } => "Leave it out or change it, or go on without this call.".to_owned(),
            Self::BudgetUsedUp { .. } => {
                "Trying again does not help; finish with what there is. Whoever made the sandbox can raise the budget."
                    .to_owned()
            }
            Self::RateExceeded { .. } => "Wait so long, and then try again.".to_owned(),
            Self::BodyMalformed { .. } => "Correct it and try again, or go on without this call.".to_owned(),
            Self::BodyTooLarge { .. } => "Send less, or go on without this call.".to_owned(),
            Self::UpstreamUnreachable => "Try again later, or go on without this call.".to_owned(),
            Self::UpstreamTimedOut { .. } | Self::UpstreamFailed { .. } => {
                "It may have been done all the same. Try again later, or go on without this call.".to_owned()
            }
            Self::NotWritten => {
                "Go on without this call. The disk of the host's data directory may be full; whoever runs it can make room.".to_owned()
            }
            Self::SecretMissing => {
                "Trying again does not help; go on without this call. On the host `belljar gateway check` says what is missing."
                    .to_owned()
            }
        }
    }
}

impl Refusal {
    /// The refusal as one paragraph: what was tried, why it is refused, what can be done.
    pub fn message(&self) -> String {
        format!(
            "Belljar refused {}: {}. {} Do not try another route: there is none to this provider but the gateway.",
            shortened(&self.what),
            self.cause.reason(),
            self.cause.advice()
        )
    }

    /// The answer for a client that speaks this wire, or none of those known.
    pub fn answer(&self, wire: Option<Wire>) -> Answer {
        let json = ("content-type", "application/json".to_owned());
        let (kind, body) = match wire {
            None => (("content-type", "text/plain; charset=utf-8".to_owned()), self.message()),
            Some(Wire::AnthropicMessages) => (json, self.anthropic().to_string()),
            Some(Wire::OpenaiChat | Wire::OpenaiResponses) => (json, self.openai().to_string()),
            Some(Wire::Gemini) => (json, self.gemini().to_string()),
        };
        let mut headers = vec![
            kind,
            ("cache-control", "no-store".to_owned()),
            (CAUSE_HEADER, self.cause.as_str().to_owned()),
            // The names under which the providers' libraries look for it.
            ("request-id", self.request_id.clone()),
            ("x-request-id", self.request_id.clone()),
        ];
        match self.cause.retry() {
            Retry::Never => headers.push(("x-should-retry", "false".to_owned())),
            Retry::Later(after) => headers
                .extend([("retry-after", seconds(after).to_string()), ("x-should-retry", "true".to_owned())]),
            Retry::Perhaps => {}
        }
        Answer { status: self.cause.status(), headers, body: format!("{body}\n").into_bytes() }
    }

    fn anthropic(&self) -> Value {
        let kind = match self.cause.status() {
            400 => "invalid_request_error",
            402 => "billing_error",
            403 => "permission_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            504 => "timeout_error",
            _ => "api_error",
        };
        json!({
            "type": "error",
            "error": { "type": kind, "message": self.message() },
            "request_id": self.request_id,
        })
    }

    fn openai(&self) -> Value {
        let kind = match self.cause.status() {
            402 => "insufficient_quota",
            429 => "requests",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        // Clients know these codes for what they are; to the others they have no answer but to stop.
        let code = match &self.cause {
            Cause::BudgetUsedUp { .. } => "insufficient_quota",
            Cause::RateExceeded { .. } => "rate_limit_exceeded",
            other => other.as_str(),
        };
        let parameter = match &self.cause {
            Cause::ParameterNotAllowed { name, .. } => Some(shortened(name)),
            Cause::ModelNotAllowed { .. } => Some("model".to_owned()),
            _ => None,
        };
        json!({ "error": { "message": self.message(), "type": kind, "param": parameter, "code": code } })
    }

    fn gemini(&self) -> Value {
        let status = match self.cause.status() {
            402 => "FAILED_PRECONDITION",
            403 => "PERMISSION_DENIED",
            429 => "RESOURCE_EXHAUSTED",
            504 => "DEADLINE_EXCEEDED",
            500.. => "UNAVAILABLE",
            _ => "INVALID_ARGUMENT",
        };
        let mut error = json!({ "code": self.cause.status(), "message": self.message(), "status": status });
        if let Retry::Later(after) = self.cause.retry() {
            error["details"] = json!([{
                "@type": "type.googleapis.com/google.rpc.RetryInfo",
                "retryDelay": format!("{}s", seconds(after)),
            }]);
        }
        json!({ "error": error })
    }
}

/// Whole seconds, rounded up, and at least one.
fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes() -> Vec<Cause> {
        vec![
            Cause::BadToken,
            Cause::Expired,
            Cause::OutOfScope,
            Cause::ModelNotAllowed { asked: Some("big".to_owned()), allowed: vec!["small".to_owned()] },
            Cause::ParameterNotAllowed { name: "tools".to_owned(), problem: "is not taken".to_owned() },
            Cause::BudgetUsedUp { budget: "the session's budget of 5 requests".to_owned() },
            Cause::RateExceeded { retry_after: Duration::from_millis(2100) },
            Cause::BodyMalformed { problem: "is not JSON".to_owned() },
            Cause::BodyTooLarge { most: 1024 },
            Cause::UpstreamUnreachable,
            Cause::UpstreamTimedOut { after: Duration::from_secs(600) },
            Cause::UpstreamFailed { problem: "broke off" },
            Cause::SecretMissing,
            Cause::NotWritten,
        ]
    }

    fn refusal(cause: Cause) -> Refusal {
        Refusal { what: "POST /v1/messages".to_owned(), cause, request_id: "req_1".to_owned() }
    }

    fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
        answer.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str())
    }

    fn body(cause: Cause, wire: Wire) -> Value {
        serde_json::from_slice(&refusal(cause).answer(Some(wire)).body).unwrap()
    }

    #[test]
    fn every_cause_has_its_status_and_says_whether_to_retry() {
        let seen: Vec<(&str, u16, Option<bool>)> = causes()
            .into_iter()
            .map(|cause| {
                let answer = refusal(cause.clone()).answer(None);
                assert_eq!(header(&answer, CAUSE_HEADER), Some(cause.as_str()));
                let retry = header(&answer, "x-should-retry").map(|value| value.parse().unwrap());
                (cause.as_str(), answer.status, retry)
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("bad_token", 403, Some(false)),
                ("expired", 403, Some(false)),
                ("out_of_scope", 403, Some(false)),
                ("model_not_allowed", 403, Some(false)),
                ("parameter_not_allowed", 400, Some(false)),
                ("budget_used_up", 402, Some(false)),
                ("rate_exceeded", 429, Some(true)),
                ("body_malformed", 400, Some(false)),
                ("body_too_large", 413, Some(false)),
                ("upstream_unreachable", 502, None),
                ("upstream_timed_out", 504, None),
                ("upstream_failed", 502, None),
                ("secret_missing", 503, Some(false)),
                ("not_written", 507, Some(false)),
            ]
        );
    }

    #[test]
    fn a_rate_says_when_to_come_again() {
        let cause = Cause::RateExceeded { retry_after: Duration::from_millis(2100) };
        assert_eq!(header(&refusal(cause.clone()).answer(None), "retry-after"), Some("3"));
        assert_eq!(body(cause, Wire::Gemini)["error"]["details"][0]["retryDelay"], "3s");
        assert_eq!(seconds(Duration::ZERO), 1);
        for cause in causes().into_iter().filter(|cause| cause.status() != 429) {
            assert_eq!(header(&refusal(cause).answer(None), "retry-after"), None);
        }
    }

    #[test]
    fn every_wire_has_its_shape() {
        for cause in causes() {
            let message = refusal(cause.clone()).message();
            let anthropic = body(cause.clone(), Wire::AnthropicMessages);
            assert_eq!((&anthropic["type"], &anthropic["request_id"]), (&json!("error"), &json!("req_1")));
            assert_eq!(anthropic["error"]["message"], message);
            for wire in [Wire::OpenaiChat, Wire::OpenaiResponses] {
                let openai = body(cause.clone(), wire);
                assert_eq!(openai["error"]["message"], message);
                let members = openai["error"].as_object().unwrap();
                assert!(["message", "type", "param", "code"].iter().all(|name| members.contains_key(*name)));
            }
            let gemini = body(cause.clone(), Wire::Gemini);
            assert_eq!(
                (&gemini["error"]["code"], &gemini["error"]["message"]),
                (&json!(cause.status()), &json!(message))
            );
            assert_eq!(refusal(cause).answer(None).body, format!("{message}\n").into_bytes());
        }
        let kinds = |cause: Cause| {
            [
                body(cause.clone(), Wire::AnthropicMessages)["error"]["type"].clone(),
                body(cause.clone(), Wire::OpenaiChat)["error"]["code"].clone(),
                body(cause, Wire::Gemini)["error"]["status"].clone(),
            ]
        };
        assert_eq!(kinds(Cause::Expired), ["permission_error", "expired", "PERMISSION_DENIED"]);
        let budget = Cause::BudgetUsedUp { budget: "it".to_owned() };
        assert_eq!(kinds(budget), ["billing_error", "insufficient_quota", "FAILED_PRECONDITION"]);
        assert_eq!(
            kinds(Cause::BodyTooLarge { most: 1 }),
            ["request_too_large", "body_too_large", "INVALID_ARGUMENT"]
        );
        assert_eq!(kinds(Cause::UpstreamUnreachable), ["api_error", "upstream_unreachable", "UNAVAILABLE"]);
    }

    #[test]
    fn messages_say_what_why_and_what_next() {
        for cause in causes() {
            let message = refusal(cause).message();
            let lower = message.to_lowercase();
            assert!(message.starts_with("Belljar refused POST /v1/messages: "), "{message}");
            assert!(message.contains("Do not try another route"), "{message}");
            assert!(["go on", "finish", "try again"].iter().any(|way| lower.contains(way)), "{message}");
            assert!(!message.contains("..") && !message.contains("  "), "{message}");
        }
        let many =
            Cause::ModelNotAllowed { asked: None, allowed: (0..20).map(|n| format!("m{n}")).collect() };
        let message = refusal(many).message();
        assert!(
            message.contains("it names no model. Use one of `m0`, ") && message.contains("`m7`, 12 more"),
            "{message}"
        );
        let parameter =
            Cause::ParameterNotAllowed { name: "tools".to_owned(), problem: "is not taken".to_owned() };
        assert_eq!(body(parameter, Wire::OpenaiChat)["error"]["param"], "tools");
    }

    #[test]
    fn what_comes_from_inside_cannot_steer_a_terminal_or_fill_a_log() {
        let long = format!("\u{1b}[2J\n{}", "x".repeat(100_000));
        let cause = Cause::ModelNotAllowed { asked: Some(long.clone()), allowed: vec![long.clone()] };
        let message = Refusal { what: long, cause, request_id: "req_1".to_owned() }.message();
        assert!(message.len() < 2000 && !message.contains(['\u{1b}', '\n']), "{message}");
    }
}
