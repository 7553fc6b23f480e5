//! A recording as browsers and their tools know it: an HTTP archive, version 1.2.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belljar_core::exact_moment;
use serde_json::{Value, json};

use super::entry::{Content, Entry, Exchange, Header, header};
use super::file::{Reader, What};

/// The longest body that is put into an archive, and how much of all bodies.
const MAX_BODY: u64 = 64 << 20;
const MAX_BODIES: u64 = 4 << 30;

/// Writes all requests as entries of an archive.
pub fn har(reader: &Reader, out: &mut dyn io::Write) -> io::Result<()> {
    let creator = json!({ "name": "belljar", "version": env!("CARGO_PKG_VERSION") });
    write!(out, "{{\"log\":{{\"version\":\"1.2\",\"creator\":{creator},\"entries\":[")?;
    let (mut is_first, mut left) = (true, MAX_BODIES);
    for summary in reader.entries().iter().filter(|entry| entry.kind == What::Request) {
        let Entry::Exchange(exchange) = reader.entry(summary)? else { continue };
        if !std::mem::take(&mut is_first) {
            out.write_all(b",")?;
        }
        write!(out, "\n{}", entry(reader, &exchange, &mut left)?)?;
    }
    out.write_all(b"\n]}}\n")
}

fn entry(reader: &Reader, exchange: &Exchange, left: &mut u64) -> io::Result<Value> {
    let scheme = if exchange.tls { "https" } else { "http" };
    let usual = if exchange.tls { 443 } else { 80 };
    let port = if exchange.port == usual { String::new() } else { format!(":{}", exchange.port) };
    let (_, query) = exchange.target.split_once('?').unwrap_or_default();
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        json!({ "name": name, "value": value })
    });
    let version = format!("HTTP/{}", exchange.version);
    let milliseconds = |us: u64| us as f64 / 1000.0;
    let received = exchange.answer.marks.last().map_or(0, |(_, us)| *us);
    let mut request = json!({
        "method": exchange.method,
        "url": format!("{scheme}://{}{port}{}", exchange.host, exchange.target),
        "httpVersion": version,
        "cookies": [],
        "headers": headers(&exchange.headers),
        "queryString": pairs.collect::<Vec<_>>(),
        "headersSize": -1,
        "bodySize": exchange.body.length,
    });
    if exchange.body.length > 0 {
        let mut body = content(reader, &exchange.body, &exchange.headers, left)?;
        if let Some(object) = body.as_object_mut() {
            object.remove("size");
        }
        request["postData"] = body;
    }
    let mut entry = json!({
        "startedDateTime": date(exchange.at_ms),
        "time": milliseconds(exchange.waited_us.saturating_add(received)),
        "request": request,
        "response": {
            "status": exchange.status,
            "statusText": "",
            "httpVersion": version,
            "cookies": [],
            "headers": headers(&exchange.answer_headers),
            "content": content(reader, &exchange.answer, &exchange.answer_headers, left)?,
            "redirectURL": header(&exchange.answer_headers, "location").unwrap_or_default(),
            "headersSize": -1,
            "bodySize": exchange.answer.length,
        },
        "cache": {},
        "timings": { "send": 0, "wait": milliseconds(exchange.waited_us), "receive": milliseconds(received) },
    });
    if let Some(error) = &exchange.error {
        entry["_error"] = error.clone().into();
    }
    if let Some(exec) = exchange.exec {
        entry["_exec"] = exec.into();
    }
    Ok(entry)
}

fn headers(headers: &[Header]) -> Vec<Value> {
    headers.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

fn content(reader: &Reader, content: &Content, headers: &[Header], left: &mut u64) -> io::Result<Value> {
    let kind = header(headers, "content-type").unwrap_or_default();
    let mut object = json!({ "size": content.length, "mimeType": kind });
    if content.withheld {
        object["comment"] = "withheld: a secret could not be taken out".into();
    } else if content.length > MAX_BODY.min(*left) {
        object["comment"] = "too long to be here".into();
    } else {
        let bytes = reader.content(content, MAX_BODY.min(*left))?;
        *left -= bytes.len() as u64;
        match String::from_utf8(bytes) {
            Ok(text) => object["text"] = text.into(),
            Err(error) => {
                object["text"] = STANDARD.encode(error.as_bytes()).into();
                object["encoding"] = "base64".into();
            }
        }
    }
    Ok(object)
}

/// A time as archives have it.
fn date(ms: u64) -> String {
    format!("{}Z", exact_moment(i64::try_from(ms).unwrap_or(i64::MAX)).replace(' ', "T"))
}

#[cfg(test)]
mod tests {
    use super::super::Writer;
    use super::*;

    #[test]
    fn times_are_written_as_everybody_does() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_794_839_371_262, "2026-11-16T14:29:31.262Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(date(ms), text);
        }
    }

    #[test]
    fn an_archive_has_every_request() {
        let file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(file.try_clone().unwrap(), 1 << 30).unwrap();
        for (number, body) in [&b"text"[..], b"\xff\x00"].into_iter().enumerate() {
            let answer = Content {
                length: body.len() as u64,
                pieces: vec![writer.piece(body).unwrap()],
                ..Content::default()
            };
            let exchange = Exchange {
                host: "a.example".into(),
                port: 8080,
                target: format!("/{number}?x=1"),
                status: 200,
                answer,
                ..Exchange::default()
            };
            writer.entry(&Entry::Exchange(Box::new(exchange))).unwrap();
        }
        let mut out = Vec::new();
        har(&Reader::new(file).unwrap(), &mut out).unwrap();
        let archive: Value = serde_json::from_slice(&out).unwrap();
        let entries = archive["log"]["entries"].as_array().unwrap();
        assert_eq!(entries[0]["request"]["url"], "http://a.example:8080/0?x=1");
        assert_eq!(entries[0]["response"]["content"]["text"], "text");
        assert_eq!(entries[1]["response"]["content"]["encoding"], "base64");
        assert_eq!(entries[1]["request"]["queryString"][0]["value"], "1");
    }
}
