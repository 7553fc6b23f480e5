//! Policies in files. A file that is not wholly understood is no policy, and every error says where it is.

use std::fmt;
use std::ops::Range;

use belljar_core::{NetLimits, NetworkPolicy, Rule, RuleError, Rules};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// The largest file that is read.
pub const MAX_SIZE: usize = 1 << 20;

/// The most errors that are told of one file.
pub const MAX_ERRORS: usize = 20;

/// What is wrong with a file: at least one thing, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FileErrors {
    /// What is wrong, and where.
    pub errors: Vec<FileError>,
    /// How many more there are.
    pub left_out: usize,
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong and how to write it.
    pub reason: String,
}

impl FileError {
    /// Something wrong at a place of a text, counted in bytes.
    pub(crate) fn at(text: &str, at: usize, reason: &str) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            reason: reason.to_owned(),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}, column {}: {}", self.line, self.column, self.reason)
    }
}

impl fmt::Display for FileErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.errors.iter().enumerate() {
            write!(formatter, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        match self.left_out {
            0 => Ok(()),
            more => write!(formatter, "\nand {more} more"),
        }
    }
}

/// Reads the bytes of a file as a policy: JSON if they begin with a brace, else TOML.
pub fn read(bytes: &[u8]) -> Result<NetworkPolicy, FileErrors> {
    let at_start =
        |reason: String| FileErrors { errors: vec![FileError { line: 1, column: 1, reason }], left_out: 0 };
    if bytes.len() > MAX_SIZE {
        return Err(at_start(format!("the file has {} bytes, and {MAX_SIZE} is the most", bytes.len())));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
            let mut reader = Reader::new(&valid);
            reader.wrong(valid.len()..valid.len(), "the file is not UTF-8");
            return Err(reader.into_errors());
        }
    };
    if text.trim().is_empty() {
        return Err(at_start("the file is empty; write at least `mode = \"none\"`".into()));
    }
    if text.trim_start().starts_with('{') {
        return read_json(text);
    }
    let mut reader = Reader::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.wrong(error.span().unwrap_or(0..0), error.message());
    }
    // What was recovered from a broken file says little about what was meant.
    if reader.is_happy()
        && let Some(policy) = reader.policy(table)
    {
        return Ok(policy);
    }
    Err(reader.into_errors())
}

/// Reads JSON, whose first error is told, as what comes after it has no place any more.
fn read_json(text: &str) -> Result<NetworkPolicy, FileErrors> {
    let at = |line: usize, column: usize, reason: String| FileErrors {
        errors: vec![FileError { line: line.max(1), column: column.max(1), reason }],
        left_out: 0,
    };
    let policy: NetworkPolicy = serde_json::from_str(text).map_err(|error| {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let reason = error.to_string();
        // Its columns are bytes.
        let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
        let before = line.char_indices().take_while(|(at, _)| at + 1 < error.column()).count();
        at(error.line(), before + 1, reason.strip_suffix(&place).unwrap_or(&reason).to_owned())
    })?;
    policy.check().map_err(|error| at(1, 1, error.message))?;
    Ok(policy)
}

struct Reader<'a> {
    text: &'a str,
    errors: Vec<(usize, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Allowlist,
    Open,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, errors: Vec::new() }
    }

    fn is_happy(&self) -> bool {
        self.errors.is_empty()
    }

    fn wrong(&mut self, span: Range<usize>, reason: impl Into<String>) {
        self.errors.push((span.start, reason.into()));
    }

    fn into_errors(mut self) -> FileErrors {
        self.errors.sort_by_key(|(at, _)| *at);
        let left_out = self.errors.len().saturating_sub(MAX_ERRORS);
        self.errors.truncate(MAX_ERRORS);
        let errors = self.errors.iter().map(|(at, reason)| FileError::at(self.text, *at, reason));
        FileErrors { errors: errors.collect(), left_out }
    }

    /// The policy, if nothing is wrong with it.
    fn policy(&mut self, table: Spanned<DeTable<'a>>) -> Option<NetworkPolicy> {
        let mut mode = None;
        let mut rules = Rules::default();
        let mut granting = None;
        for (key, value) in table.into_inner() {
            let key_span = key.span();
            match key.get_ref().as_ref() {
                "mode" => mode = self.mode(&value),
                "allow" => rules.allow = self.rules(value, Rule::check_allowing, &mut granting),
                "deny" => rules.deny = self.rules(value, Rule::check_denying, &mut granting),
                "limits" => {
                    granting.get_or_insert(key_span);
                    rules.limits = self.limits(value);
                }
                other => {
                    let other = other.escape_debug().take(80).collect::<String>();
                    self.wrong(
                        key_span,
                        format!("`{other}` is unknown; there are mode, allow, deny and limits"),
                    );
                }
            }
        }
        if mode.is_none() && self.is_happy() {
            self.wrong(0..0, "`mode` is missing; write mode = \"allowlist\", \"open\" or \"none\"");
        }
        if let (Some(Mode::None), Some(span)) = (mode, granting) {
            self.wrong(
                span,
                "the mode `none` has no rules and no limits; write mode = \"allowlist\" or leave them out",
            );
        }
        let policy = match mode? {
            Mode::None => NetworkPolicy::None,
            Mode::Allowlist => NetworkPolicy::Allowlist(rules),
            Mode::Open => NetworkPolicy::Open(rules),
        };
        if let (true, Err(error)) = (self.is_happy(), policy.check()) {
            self.wrong(0..0, error.message);
        }
        self.is_happy().then_some(policy)
    }

    fn mode(&mut self, value: &Spanned<DeValue<'a>>) -> Option<Mode> {
        let mode = match value.get_ref().as_str() {
            Some("none") => Some(Mode::None),
            Some("allowlist") => Some(Mode::Allowlist),
            Some("open") => Some(Mode::Open),
            _ => None,
        };
        if mode.is_none() {
            self.wrong(value.span(), "the mode is \"allowlist\", \"open\" or \"none\"");
        }
        mode
    }

    fn rules(
        &mut self,
        value: Spanned<DeValue<'a>>,
        check: fn(&Rule) -> Result<(), RuleError>,
        granting: &mut Option<Range<usize>>,
    ) -> Vec<Rule> {
        let span = value.span();
        let DeValue::Array(items) = value.into_inner() else {
            self.wrong(span, "rules are a list, such as [\"example.org\", \"pypi\"]");
            return Vec::new();
        };
        let mut rules = Vec::new();
        for item in items {
            let item_span = item.span();
            granting.get_or_insert(item_span.clone());
            match Rule::deserialize(ValueDeserializer::from(item)) {
                Ok(rule) => match check(&rule) {
                    Ok(()) => rules.push(rule),
                    Err(error) => self.wrong(item_span, error.to_string()),
                },
                Err(error) => self.wrong(within(error.span(), item_span), error.message()),
            }
        }
        rules
    }

    fn limits(&mut self, value: Spanned<DeValue<'a>>) -> NetLimits {
        let span = value.span();
        let limits = match NetLimits::deserialize(ValueDeserializer::from(value)) {
            Ok(limits) => limits,
            Err(error) => {
                self.wrong(within(error.span(), span), error.message());
                return NetLimits::default();
            }
        };
        if let Err((field, problem)) = limits.check() {
            self.wrong(span, format!("`{field}`: {problem}"));
        }
        limits
    }
}

/// The narrower place, where there is one.
fn within(inner: Option<Range<usize>>, outer: Range<usize>) -> Range<usize> {
    inner.filter(|inner| inner.start >= outer.start && inner.start <= outer.end).unwrap_or(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<(usize, usize, String)> {
        let errors = read(text.as_bytes()).expect_err(text).errors;
        errors.into_iter().map(|error| (error.line, error.column, error.reason)).collect()
    }

    #[test]
    fn a_whole_file() {
        let text = r#"
            mode = "allowlist"
            allow = [
                "pypi",
                "*.example.org",
                { host = "db.example.org", ports = [5432, "8000-8100"], private = true },
                { net = "192.0.2.0/24", ports = [22] },
                { set = "npm" },
                "GET,HEAD http://api.example.org/v1/*",
            ]
            deny = ["evil.example.org"]
            [limits]
            connections = 8
            total_bytes = "1g"
        "#;
        let policy = read(text.as_bytes()).unwrap();
        assert_eq!(
            policy.to_string(),
            "allowlist; allow pypi, *.example.org, db.example.org:5432,8000-8100 private, 192.0.2.0/24:22, npm, \
             GET,HEAD api.example.org:80/v1/*; deny evil.example.org"
        );
        assert_eq!(policy.rules().unwrap().limits.connections, 8);
        assert_eq!(read(b"mode = \"none\""), Ok(NetworkPolicy::None));
        assert_eq!(read(b"mode = \"open\""), Ok(NetworkPolicy::Open(Rules::default())));
        let tables = "mode = \"open\"\n[[deny]]\nhost = \"a.org\"\n[[deny]]\nnet = \"192.0.2.0/24\"\n";
        assert_eq!(read(tables.as_bytes()).unwrap().to_string(), "open; deny a.org, 192.0.2.0/24");
    }

    #[test]
    fn json_is_read_as_well() {
        let policy =
            read(b"\n {\"mode\": \"allowlist\", \"allow\": [\"pypi\", {\"host\": \"a.org\"}]}").unwrap();
        assert_eq!(policy.to_string(), "allowlist; allow pypi, a.org");
        assert_eq!(read(b"\"mode\" = \"open\"").unwrap().mode(), "open", "TOML may begin with a quote");
        for (text, line, says) in [
            ("{\n\"mode\": \"allowlist\",\n\"allow\": [\"exa mple.org\"]}", 3, "not a method"),
            ("{\"mode\": \"all\"}", 1, "all"),
            ("{\"mode\": \"open\",\n\"alow\": []}", 2, "alow"),
            ("{\"mode\": \"open\"} x", 1, "trailing"),
            ("{", 1, "EOF"),
            ("{}", 1, "mode"),
            ("{\"mode\": \"allowlist\", \"allow\": [\"192.0.2.0/24\"]}", 1, "names no port"),
        ] {
            let found = errors(text);
            assert!(found[0].0 == line && found[0].2.contains(says) && found.len() == 1, "{text}: {found:?}");
            assert!(!found[0].2.contains("column"), "{found:?}");
        }
        let (plain, accented) = ("{\"ee\" 1}", "{\"\u{e9}\u{e9}\" 1}");
        assert_eq!(errors(plain)[0].1, errors(accented)[0].1, "columns are characters");
    }

    #[test]
    fn each_error_has_its_place() {
        let text = "mode = \"allowlist\"\nallow = [\n  \"example.org\",\n  \"exa mple.org\",\n  { host = \"a.org\", port = 80 },\n  \
                    \"192.0.2.0/24\",\n]\ndeny = [7]\nalow = []\n[limits]\nconnections = 0\n";
        let found = errors(text);
        let places: Vec<_> = found.iter().map(|(line, column, _)| (*line, *column)).collect();
        assert_eq!(places, [(4, 3), (5, 21), (6, 3), (8, 9), (9, 1), (10, 1)], "{found:?}");
        for ((_, _, reason), says) in found.iter().zip([
            "not a method",
            "unknown field `port`",
            "names no port",
            "a rule: text",
            "`alow` is unknown",
            "`connections`: 0",
        ]) {
            assert!(reason.contains(says), "{reason} does not say {says}");
        }
    }

    #[test]
    fn no_broken_file_is_a_policy() {
        for (text, line, column, says) in [
            ("", 1, 1, "empty"),
            (" \n\t\n", 1, 1, "empty"),
            ("# nothing", 1, 1, "`mode` is missing"),
            ("allow = []", 1, 1, "`mode` is missing"),
            ("mode = \"all\"", 1, 8, "the mode is"),
            ("mode = true", 1, 8, "the mode is"),
            ("mode = \"none\"\nallow = [\"a.org\"]", 2, 10, "has no rules"),
            ("mode = \"none\"\n[limits]", 2, 2, "has no rules"),
            ("mode = \"open\"\nmode = \"open\"", 2, 1, "duplicate"),
            ("mode = \"open", 1, 13, ""),
            ("mode = \"open\"\nallow = \"a.org\"", 2, 9, "are a list"),
            ("mode = \"open\"\nallow = [\"GET a.org\"]", 1, 1, "in the mode `open`"),
            ("mode = \"open\"\nlimits = 7", 2, 10, ""),
            ("mode = \"open\"\nlimits = { total_bytes = \"much\" }", 2, 26, "not a size"),
            ("mode = \"open\"\ndeny = [\"*\"]", 2, 9, "`*` is not a host"),
        ] {
            let found = errors(text);
            let (at_line, at_column, reason) = &found[0];
            assert!(reason.contains(says), "{text:?}: {found:?}");
            assert_eq!((*at_line, *at_column), (line, column), "{text:?}: {found:?}");
        }
        let found = read(b"mode = \"open\"\n# \xff").unwrap_err();
        assert_eq!(found.to_string(), "line 2, column 3: the file is not UTF-8");
        let large = [b"mode = \"open\" #".to_vec(), vec![b'x'; MAX_SIZE]].concat();
        assert!(read(&large).unwrap_err().to_string().contains("is the most"));
    }

    #[test]
    fn there_is_an_end_to_errors() {
        let text = format!("mode = \"open\"\ndeny = [{}]", "7,".repeat(5000));
        let found = read(text.as_bytes()).unwrap_err();
        assert_eq!((found.errors.len(), found.left_out), (MAX_ERRORS, 4980));
        let many = format!("mode = \"open\"\ndeny = [{}]", "\"a.org\",".repeat(1001));
        assert!(read(many.as_bytes()).unwrap_err().to_string().contains("1001 rules"));
        let deep = format!("mode = {}", "[".repeat(100_000));
        assert!(read(deep.as_bytes()).is_err());
    }
}
