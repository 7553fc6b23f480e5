//! Command lines: what is typed, and what comes of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use belljar_cli::fuzzing::{self, Understood};
use belljar_core::{ByteSize, CpuCount, SandboxSpec, Span};

use crate::guest_protocol;

/// Reads the input as the words of a command line, one per line, and each word as every kind of value.
pub fn check(bytes: &[u8]) {
    let words: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').take(24).collect();
    for word in words.iter().filter_map(|word| std::str::from_utf8(word).ok()) {
        values(word);
    }
    // A file of this machine is opened for `--file` and for scripts: nothing but what lies in an empty directory.
    if words.iter().any(|word| word.starts_with(b"/") || word.windows(2).any(|pair| pair == b"..")) {
        return;
    }
    let line = [b"belljar".to_vec()].into_iter().chain(words.iter().map(|word| word.to_vec()));
    match fuzzing::understand(line.map(OsString::from_vec).collect()) {
        Err(error) => {
            assert!(!error.message.is_empty(), "a refusal says why");
        }
        Ok(Understood { spec, request, inside }) => {
            if let Some(spec) = spec {
                assert!(spec.check().is_ok() && spec.limits.check().is_ok());
                assert!(spec.ttl <= SandboxSpec::MAX_TTL && !spec.ttl.is_zero());
                assert!(spec.labels.iter().all(|(name, value)| name.len() <= 63 && value.len() <= 255));
            }
            if let Some(request) = request {
                assert!(request.check().is_ok() && !request.timeout.is_zero());
                assert!(request.timeout <= SandboxSpec::MAX_TTL);
                assert!(request.env.keys().all(|name| !name.is_empty() && !name.contains(['=', '\0'])));
                request.cwd.iter().for_each(guest_protocol::path);
            }
            inside.iter().for_each(guest_protocol::path);
        }
    }
}

/// Sizes, counts and spans against arithmetic that does not round.
fn values(word: &str) {
    let size = word.parse::<ByteSize>();
    if let Ok(size) = size {
        assert!((1..=16 << 40).contains(&size.0), "{word:?} is {size:?}");
        assert!(size.to_string().chars().next().is_some_and(|first| first.is_ascii_digit()));
    }
    if let Some((thousandths, unit)) = exact(word) {
        let factor: Option<u128> = match unit.to_ascii_lowercase().as_str() {
            "b" => Some(1),
            "k" | "kb" | "kib" => Some(1 << 10),
            "m" | "mb" | "mib" => Some(1 << 20),
            "g" | "gb" | "gib" => Some(1 << 30),
            "t" | "tb" | "tib" => Some(1 << 40),
            _ => None,
        };
        let bytes =
            factor.map(|factor| thousandths * factor / 1000).filter(|bytes| (1..=16 << 40).contains(bytes));
        let read = size.ok().map(|size| u128::from(size.0));
        assert!(near(read, bytes), "{word:?} is {read:?}, not {bytes:?}");
        let milliseconds = match unit {
            "ms" => Some(thousandths / 1000),
            "" | "s" => Some(thousandths),
            "m" | "min" => Some(thousandths * 60),
            "h" => Some(thousandths * 3600),
            "d" => Some(thousandths * 86_400),
            _ => None,
        };
        let milliseconds = milliseconds.filter(|span| (1..=31_536_000_000).contains(span));
        let read = word.parse::<Span>().ok().map(|span| span.0.as_millis());
        assert!(near(read, milliseconds), "{word:?} is {read:?} ms, not {milliseconds:?}");
    }
    if let Ok(span) = word.parse::<Span>() {
        assert!(
            span.0 >= Duration::from_micros(999) && span.0 <= SandboxSpec::MAX_TTL,
            "{word:?} is {span:?}"
        );
    }
    if let Ok(count) = word.parse::<CpuCount>() {
        assert!((10..=1_024_000).contains(&count.0), "{word:?} is {count:?}");
        assert!(near(
            count.to_string().parse::<CpuCount>().ok().map(|count| u128::from(count.0)),
            Some(u128::from(count.0))
        ));
    }
}

/// The same to within what a rounding can do; at the bounds one may be refused that the other takes.
fn near(one: Option<u128>, other: Option<u128>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) <= 1 + one / 1_000_000_000_000,
        (None, None) => true,
        (Some(one), None) | (None, Some(one)) => one <= 1 || one >= 31_536_000_000,
    }
}

/// A plain number with at most three decimals, in thousandths, and its unit.
fn exact(word: &str) -> Option<(u128, &str)> {
    let word = word.trim();
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 15 || part.len() > 3 || !digits(whole) || !digits(part) {
        return None;
    }
    Some((format!("{whole}{part:0<3}").parse().ok()?, unit.trim_start()))
}
