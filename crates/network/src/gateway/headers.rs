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
        match (in_query, part.split_once('=')) {
            (true, Some(("key", key))) => found.push(key.to_owned()),
            (true, _) if is_credential(part) => {}
            _ => rest.push(part),
        }
    }
    found.dedup();
    if found.len() > 1 {
        return Err(Cause::BadToken);
    }
    let rest = (!rest.is_empty()).then(|| rest.join("&"));
    Ok((found.pop(), rest))
}

/// The name of a part of a query, however it is written.
pub(super) fn name_of(part: &str) -> String {
    let name = part.split('=').next().unwrap_or_default();
    let (mut bytes, mut plain) = (name.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        let mut digits = bytes.clone();
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (byte, digit(digits.next()), digit(digits.next())) {
            (b'%', Some(high), Some(low)) => {
                bytes = digits;
                plain.push((high * 16 + low) as u8);
            }
            _ => plain.push(byte),
        }
    }
    String::from_utf8_lossy(&plain).to_ascii_lowercase()
}

/// Whether a part of a query says who somebody is, to a provider that reads it there.
fn is_credential(part: &str) -> bool {
    matches!(name_of(part).as_str(), "key" | "api_key" | "access_token" | "oauth_token")
}

/// A query without what says who somebody is.
pub(super) fn without_credentials(query: &str) -> Option<String> {
    let rest: Vec<&str> = query.split('&').filter(|part| !is_credential(part)).collect();
    (!rest.is_empty()).then(|| rest.join("&"))
}

/// Whether a body is packed, by what its headers say.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONTENT_ENCODING).iter().any(|value| value != "identity")
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

/// Whether some servers take one name of a header for the other.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.replace('_', "-").trim_end_matches('-').eq_ignore_ascii_case(other)
}

/// Headers of a request that do not go on: about the connection, about who somebody is, and about ways.
pub(super) fn is_dropped(name: &str) -> bool {
    let plain = name.replace('_', "-");
    let name = plain.trim_end_matches('-');
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
