//! What a request asks for, as the door understands it, and the request as it goes on.

use std::fmt;

use hyper::body::Body;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Uri, Version};

use crate::http::{Bad, MAX_HEADERS, NEVER_DROPPED, OVERRIDES, read_authority};
use crate::policy::{Destination, Request, shortened};

/// The longest method.
const LONGEST_METHOD: usize = 32;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Asked {
    /// Whether inside TLS.
    pub(in super::super) tls: bool,
    pub(in super::super) host: Destination,
    pub(in super::super) port: u16,
    pub(in super::super) method: String,
    pub(in super::super) target: String,
}

impl fmt::Display for Asked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, method, target, .. } = self;
        write!(formatter, "{} {}://{host}{}", shortened(method), scheme(*tls), shortened(target))
    }
}

fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}

/// The port of requests that name none.
fn usual_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

impl Asked {
    /// Understands a request, or refuses what could be understood in two ways.
    /// WebSocket may be asked for where that is said.
    pub(in super::super) fn read(parts: &Parts, (tls, upgrades): (bool, bool)) -> Result<Self, Bad> {
        let usual_port = usual_port(tls);
        if parts.headers.len() > MAX_HEADERS {
            return Err(Bad::TooManyHeaders);
        }
        if parts.method == Method::CONNECT {
            return Err(Bad::Connect);
        }
        if parts.method.as_str().len() > LONGEST_METHOD {
            return Err(Bad::RequestLine);
        }
        check_headers(&parts.headers, upgrades)?;
        let named =
            parts.uri.authority().map(|authority| read_authority(authority.as_str().as_bytes(), usual_port));
        let named = named.transpose()?;
        if named.is_some() && parts.uri.scheme_str().is_some_and(|named| named != scheme(tls)) {
            return Err(Bad::Target);
        }
        let mut hosts = parts.headers.get_all(HOST).iter();
        let header = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(read_authority(host.as_bytes(), usual_port)?),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(Bad::Hosts),
        };
        let (host, port) = match (named, header) {
            (Some(named), Some(header)) if named != header => return Err(Bad::HostsDiffer),
            // Only later versions name it in front of the headers alone.
            (Some(_), None) if parts.version < Version::HTTP_2 => return Err(Bad::Hosts),
            (Some(host), _) | (None, Some(host)) => host,
            (None, None) => return Err(Bad::Hosts),
        };
        let target = match parts.uri.path_and_query() {
            Some(target) if target.as_str().starts_with('/') => target.as_str(),
            Some(target) if target == "*" && parts.method == Method::OPTIONS => "*",
            None => "/",
            Some(_) => return Err(Bad::Target),
        };
        if !target.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
            return Err(Bad::Target);
        }
        Ok(Self { tls, host, port, method: parts.method.as_str().to_owned(), target: target.to_owned() })
    }

    /// For the judge.
    pub(super) fn request(&self) -> Request<'_> {
        let Self { tls, host, port, method, target } = self;
        Request { host, port: *port, method, target, tls: *tls }
    }

    /// The host as it is written in requests.
    fn authority(&self) -> String {
        if self.port == usual_port(self.tls) {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Writes a request anew for a host that speaks this version. Of a body whose length is not known it is said that it comes in
    /// chunks: with methods that rarely have one it would not be sent otherwise.
    pub(super) fn address(&self, parts: &mut Parts, version: Version, body: &impl Body) -> Result<(), Bad> {
        let connection = listed(&parts.headers, "connection");
        for name in connection.iter().map(String::as_str).chain(DROPPED) {
            parts.headers.remove(name);
        }
        if version != Version::HTTP_2 {
            parts.headers.remove(TE);
        }
        let authority = self.authority();
        parts.version = version;
        parts.uri = if version == Version::HTTP_2 {
            parts.headers.remove(HOST);
            format!("https://{authority}{}", self.target).parse::<Uri>()
        } else {
            parts.headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| Bad::Host)?);
            if !body.is_end_stream() && body.size_hint().exact().is_none() {
                parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            self.target.parse::<Uri>()
        }
        .map_err(|_| Bad::Target)?;
        Ok(())
    }
}

/// Headers that are about one connection, or that are written anew.
const DROPPED: [&str; 15] = [
    // Some servers take them for the host that is meant.
    "forwarded",
    "x-forwarded-host",
    "x-forwarded-server",
    "x-host",
    "x-original-host",
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The words of a list, in lower case.
fn listed(headers: &HeaderMap, name: &str) -> Vec<String> {
    let lists = headers.get_all(name).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    lists
        .map(|word| String::from_utf8_lossy(word).trim().to_ascii_lowercase())
        .filter(|word| !word.is_empty())
        .collect()
}

fn check_headers(headers: &HeaderMap, upgrades: bool) -> Result<(), Bad> {
    // Some servers take these for the same header with a hyphen.
    let doubtful =
        |name: &str| name.contains('_') && NEVER_DROPPED.contains(&name.replace('_', "-").as_str());
    if headers.keys().any(|name| doubtful(name.as_str())) {
        return Err(Bad::Header);
    }
    if listed(headers, "connection").iter().any(|name| NEVER_DROPPED.contains(&name.as_str())) {
        return Err(Bad::Connection);
    }
    let fits = |protocol: &String| protocol == "h2c" || (upgrades && protocol == "websocket");
    if !listed(headers, "upgrade").iter().all(fits) {
        return Err(Bad::Upgrade);
    }
    Ok(())
}

/// A header by which some servers take this for another request than it is, if there is one.
pub(super) fn overriding(headers: &HeaderMap) -> Option<&str> {
    headers.keys().map(HeaderName::as_str).find(|name| OVERRIDES.contains(&name.replace('_', "-").as_str()))
}

/// Takes out of an answer what is about the connection to the host.
pub(super) fn strip_answer(headers: &mut HeaderMap) {
    for name in listed(headers, "connection") {
        if !NEVER_DROPPED.contains(&name.as_str()) {
            headers.remove(name.as_str());
        }
    }
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    fn parts(version: Version, method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = hyper::Request::builder().version(version).method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn requests_are_understood_or_refused() {
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        let host = ("host", "a.example");
        for (version, method, uri, headers, expected) in [
            (one, "GET", "/x?y=1", &[host][..], Ok(("a.example", 443, "/x?y=1"))),
            (one, "GET", "/x", &[("host", "A.example:8443")], Ok(("a.example", 8443, "/x"))),
            (one, "OPTIONS", "*", &[host], Ok(("a.example", 443, "*"))),
            (one, "GET", "https://a.example/x", &[host], Ok(("a.example", 443, "/x"))),
            (two, "GET", "https://a.example", &[], Ok(("a.example", 443, "/"))),
            (two, "GET", "https://a.example/x", &[host], Ok(("a.example", 443, "/x"))),
            (one, "GET", "/x", &[], Err(Bad::Hosts)),
            (one, "GET", "/x", &[host, host], Err(Bad::Hosts)),
            (one, "GET", "https://a.example/x", &[], Err(Bad::Hosts)),
            (one, "GET", "https://b.example/x", &[host], Err(Bad::HostsDiffer)),
            (one, "GET", "http://a.example/x", &[host], Err(Bad::Target)),
            (two, "GET", "https://b.example/x", &[host], Err(Bad::HostsDiffer)),
            (one, "GET", "/x", &[("host", "user@a.example")], Err(Bad::Host)),
            (one, "CONNECT", "a.example:443", &[host], Err(Bad::Connect)),
            (one, "GET", "/x", &[host, ("connection", "host")], Err(Bad::Connection)),
            (one, "GET", "/x", &[host, ("upgrade", "websocket")], Err(Bad::Upgrade)),
            (one, "GET", "/x", &[host, ("upgrade", "h2c, websocket/13")], Err(Bad::Upgrade)),
            (one, "GET", "/x", &[host, ("transfer_encoding", "chunked")], Err(Bad::Header)),
        ] {
            let read = Asked::read(&parts(version, method, uri, headers), (true, false));
            let seen = read.as_ref().map(|asked| (asked.host.to_string(), asked.port, asked.target.as_str()));
            let seen = seen.map_err(Clone::clone);
            assert_eq!(
                seen,
                expected.map(|(host, port, target)| (host.to_owned(), port, target)),
                "{uri} {headers:?}"
            );
        }
    }

    #[test]
    fn few_headers_are_read() {
        let with = |count: usize| {
            let mut parts = parts(Version::HTTP_2, "GET", "https://a.example/", &[]);
            for number in 0..count {
                // Half of them have one name.
                let name = if number % 2 == 0 { "a".to_owned() } else { format!("a{number}") };
                parts.headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("b"));
            }
            Asked::read(&parts, (true, false)).map(drop)
        };
        assert_eq!(with(MAX_HEADERS), Ok(()));
        assert_eq!(with(MAX_HEADERS + 1), Err(Bad::TooManyHeaders));
    }

    #[test]
    fn requests_are_written_anew() {
        let headers = [
            ("host", "a.example"),
            ("connection", "close, x-own"),
            ("x-own", "1"),
            ("x-kept", "2"),
            ("proxy-authorization", "secret"),
            ("x-forwarded-host", "b.example"),
            ("transfer-encoding", "chunked"),
        ];
        for (version, uri, host) in
            [(Version::HTTP_11, "/x?y", Some("a.example")), (Version::HTTP_2, "https://a.example/x?y", None)]
        {
            let mut parts = parts(Version::HTTP_11, "GET", "/x?y", &headers);
            let body = Full::new(Bytes::from("of this length"));
            Asked::read(&parts, (true, false)).unwrap().address(&mut parts, version, &body).unwrap();
            assert_eq!(parts.uri.to_string(), uri);
            assert_eq!(parts.headers.get(HOST).map(|host| host.to_str().unwrap()), host);
            assert_eq!(parts.headers.len(), 1 + usize::from(host.is_some()), "{:?}", parts.headers);
        }
    }

    #[test]
    fn headers_that_mean_another_request_are_seen() {
        let parts = parts(Version::HTTP_2, "GET", "https://a.example/", &[("x_original_url", "/admin")]);
        assert_eq!(overriding(&parts.headers), Some("x_original_url"));
    }
}
