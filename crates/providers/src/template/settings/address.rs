//! An address that holds nothing but an address.

/// An `http` or `https` URL without user, password, query, fragment, or anything that looks like a token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::template) struct Address {
    /// Cargo's `sparse+` or `git+`, npm and the others have none.
    protocol: &'static str,
    url: String,
}

impl Address {
    /// Strips what may be secret, and refuses what cannot be told apart from a secret.
    ///
    /// The test is a list of what is allowed, so that an unusual spelling (a slash in a password, a variable to be
    /// expanded, an escaped character) is refused rather than half stripped.
    pub(in crate::template) fn clean(text: &str) -> Option<Self> {
        let text = text.trim().trim_matches(['"', '\'']);
        let (protocol, text) = ["sparse+", "registry+", "git+"]
            .into_iter()
            .find_map(|protocol| Some((protocol, text.strip_prefix(protocol)?)))
            .unwrap_or(("", text));
        let (scheme, rest) = text.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => "http",
            "https" => "https",
            _ => return None,
        };
        let rest = rest.split(['?', '#']).next()?;
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
        (is_place(place) && is_path(path))
            .then(|| Self { protocol, url: format!("{scheme}://{place}{path}") })
    }

    /// The bare URL.
    pub(in crate::template) fn url(&self) -> &str {
        &self.url
    }

    /// The URL the way cargo writes it.
    pub(super) fn with_protocol(&self) -> String {
        format!("{}{}", self.protocol, self.url)
    }

    /// The host, with the port if there is one.
    pub(in crate::template) fn place(&self) -> &str {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        rest.split('/').next().unwrap_or("")
    }
}

/// A host name or address with an optional port.
pub(super) fn is_place(place: &str) -> bool {
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            ("v6", port.strip_prefix(':').or(port.is_empty().then_some("0")))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some("0")),
        },
    };
    !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

/// A path of plain characters, no part of which looks random.
pub(super) fn is_path(path: &str) -> bool {
    path.len() <= 1024
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._~+-".contains(&byte))
        && !path.split(|c: char| !c.is_ascii_alphanumeric()).any(looks_random)
}

/// Some registries put the token into the path. Names are short, or words; tokens are long and mix digits in.
fn looks_random(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    word.len() >= 16 && digits >= 2 && digits < word.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> Option<String> {
        Address::clean(text).map(|address| address.with_protocol())
    }

    #[test]
    fn secrets_are_stripped() {
        let cases = [
            ("https://u:p@h.example/simple", "https://h.example/simple"),
            ("https://token@h.example:8443/a/b/", "https://h.example:8443/a/b/"),
            ("https://u:p@ss@h.example/", "https://h.example/"),
            ("HTTPS://h.example/a?token=1#x", "https://h.example/a"),
            ("sparse+https://t@h/index/", "sparse+https://h/index/"),
            ("http://[::1]:8080/x", "http://[::1]:8080/x"),
            ("http://10.0.0.7:3141/root/pypi/+simple/", "http://10.0.0.7:3141/root/pypi/+simple/"),
        ];
        for (text, expected) in cases {
            assert_eq!(cleaned(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(Address::clean("https://u@h:1/x").unwrap().place(), "h:1");
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        for text in [
            "",
            "file:///home/ann",
            "ssh://git@h/x",
            "https://",
            "https://user:pa/ss@h.example/simple",
            "https://user/pass@h.example/simple",
            "https://h.example/${TOKEN}/simple",
            "https://h.example/a%40b",
            "https://h.example:port/",
            "https://user%3Ap%40h.example/",
            "https://dl.example/abcd1234EFGH5678ijkl/org/simple",
            "https://h.example/a b",
            "https://[zz]/",
        ] {
            assert_eq!(cleaned(text), None, "{text}");
        }
    }
}
