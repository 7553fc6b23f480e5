//! Headers: where a token is found, and what does not go on, either way.

use base64::Engine as _;
use hyper::header::{self, HeaderMap, HeaderValue};

use super::redact::Redactor;
use super::refusal::Cause;

/// Where tokens are looked for.
const TOKEN_HEADERS: [&str; 4] = ["x-api-key", "x-goog-api-key", "api-key", "x-subscription-token"];

/// The token of a request, and its query without it, where it may stand there. Whoever gives two different ones gives none.
pub(super) fn credentials(
    headers: &HeaderMap,
    query: Option<&str>,
    in_query: bool,
) -> Result<(Option<String>, Option<String>), Cause> {
    let mut found: Vec<String> = Vec::new();
    let text =
        |value: &HeaderValue| value.to_str().map(|text| text.trim().to_owned()).map_err(|_| Cause::BadToken);
    for name in TOKEN_HEADERS {
        for value in headers.get_all(name) {
            found.push(text(value)?);
        }
    }
    for value in headers.get_all(header::AUTHORIZATION) {
        let value = text(value)?;
        let (scheme, rest) = value.split_once(' ').ok_or(Cause::BadToken)?;
        if scheme.eq_ignore_ascii_case("bearer") {
            found.push(rest.trim().to_owned());
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair =
                base64::engine::general_purpose::STANDARD.decode(rest.trim()).map_err(|_| Cause::BadToken)?;
            let pair = String::from_utf8(pair).map_err(|_| Cause::BadToken)?;
            found.push(pair.split_once(':').ok_or(Cause::BadToken)?.1.to_owned());
        } else {
            return Err(Cause::BadToken);
        }
    }
    let mut rest: Vec<&str> = Vec::new();
    for part in query.into_iter().flat_map(|query| query.split('&')) {
        match part.strip_prefix("key=").filter(|_| in_query) {
            Some(key) => found.push(key.to_owned()),
            None => rest.push(part),
        }
    }
    found.dedup();
    if found.len() > 1 {
        return Err(Cause::BadToken);
    }
    let rest = (!rest.is_empty()).then(|| rest.join("&"));
    Ok((found.pop(), rest))
}

/// Headers about one connection only.
const HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub(super) fn is_hop(name: &str) -> bool {
    HOP.contains(&name)
}

/// Headers of a request that do not go on: about the connection, about who somebody is, and about ways.
pub(super) fn is_dropped(name: &str) -> bool {
    is_hop(name)
        || TOKEN_HEADERS.contains(&name)
        || name.starts_with("x-forwarded-")
        || matches!(
            name,
            "host"
                | "content-length"
                | "authorization"
                | "cookie"
                | "forwarded"
                | "via"
                | "expect"
                | "accept-encoding"
                | "x-real-ip"
                | "range"
                | "if-range"
        )
}

/// A value without these keys, if it has one of them.
pub(super) fn without(value: &HeaderValue, keys: &[String]) -> Option<HeaderValue> {
    let mut redactor = Redactor::new(keys.iter().map(String::as_str));
    let mut clean = redactor.pass(value.as_bytes());
    clean.extend(redactor.finish());
    (clean != value.as_bytes())
        .then(|| HeaderValue::from_bytes(&clean).unwrap_or(HeaderValue::from_static("")))
}
