//! What is written down of an exchange.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::file::Hash;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A sandbox whose network is written down from here on.
    Meta(Meta),
    /// A name was looked up.
    Lookup(Lookup),
    /// A request and its answer.
    Exchange(Box<Exchange>),
    /// A connection on which something else was said.
    Stream(Box<Stream>),
    /// There was no room for more.
    Full,
}

/// Whose network it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The sandbox.
    pub sandbox: String,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Variables that it was given to find the gateway by, without the token.
    pub env: BTreeMap<String, String>,
}

/// A name that was looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The name.
    pub name: String,
    /// Whether it leads anywhere.
    pub found: bool,
}

/// A header, with its name as it was written.
pub type Header = (String, String);

/// What the first header of this name says.
pub(super) fn header<'a>(headers: &'a [Header], name: &str) -> Option<&'a str> {
    headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// A request and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exchange {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The execution that asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<u32>,
    /// Whom it asked: a name or an address.
    pub host: String,
    /// And the port.
    pub port: u16,
    /// Whether inside TLS.
    pub tls: bool,
    /// The version that the client spoke: `1.1` or `2`.
    pub version: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Headers of the request.
    pub headers: Vec<Header>,
    /// Its body.
    pub body: Content,
    /// Headers behind that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trailers: Vec<Header>,
    /// The status of the answer; 0 if there was none.
    pub status: u16,
    /// Its headers.
    pub answer_headers: Vec<Header>,
    /// Its body.
    pub answer: Content,
    /// Headers behind that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer_trailers: Vec<Header>,
    /// How long the head of the answer took, in microseconds.
    pub waited_us: u64,
    /// Why it did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A connection on which something else than HTTP was said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The execution that connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<u32>,
    /// Where it leads: a name or an address.
    pub host: String,
    /// And the port.
    pub port: u16,
    /// The request by which it began, where it was one for another protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Box<Exchange>>,
    /// What was said, by whom, in order.
    pub said: Vec<(Way, Content)>,
    /// Why it did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Out of the sandbox.
    Out,
    /// Into it.
    In,
}

/// Bytes that are kept elsewhere in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Content {
    /// How many.
    pub length: u64,
    /// In these pieces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Hash>,
    /// When they came, where that is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Whether they are not kept, since a secret could not be taken out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
    /// Whether they broke off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Bytes that came together: how many, and so many microseconds after the beginning.
pub type Mark = (u64, u64);
