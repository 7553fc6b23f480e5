//! The promises of SPECIFICATION.md, and whether the numbers keep them.

use std::fmt;

use crate::error::BenchError;
use crate::report::Report;

/// One line of the specification.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Promise {
    /// In words.
    pub(crate) words: String,
    /// The number it is about.
    pub(crate) key: String,
    /// What it must be.
    pub(crate) bound: Bound,
    /// By how much it may miss the bound before we call it broken rather than noise, in percent.
    pub(crate) tolerance: f64,
}

/// Which side of a number is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The number is within its bound.
    Kept(f64),
    /// It is not, but within the tolerance.
    WithinNoise(f64),
    /// It is beyond both.
    Broken(f64),
    /// There is no number.
    NotMeasured,
}

impl Promise {
    /// Judges one run.
    pub(crate) fn judge(&self, report: &Report) -> Verdict {
        let Some(value) = report.get(&self.key) else { return Verdict::NotMeasured };
        let share = self.tolerance / 100.0;
        let (kept, tolerated) = match self.bound {
            Bound::AtMost(most) => (value <= most, value <= most * (1.0 + share)),
            Bound::AtLeast(least) => (value >= least, value >= least * (1.0 - share)),
        };
        match (kept, tolerated) {
            (true, _) => Verdict::Kept(value),
            (false, true) => Verdict::WithinNoise(value),
            (false, false) => Verdict::Broken(value),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(formatter, "at most {most}"),
            Self::AtLeast(least) => write!(formatter, "at least {least}"),
        }
    }
}

/// Reads the rows of every table whose columns are promise, key, bound and tolerance. A row that has a key but cannot
/// be read is an error: a promise must not vanish because of a typing mistake.
pub(crate) fn parse(text: &str) -> Result<Vec<Promise>, BenchError> {
    let mut promises = Vec::new();
    let mut within = false;
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = match line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|')) {
            Some(line) => line.split('|').map(str::trim).collect(),
            None => {
                within = false;
                continue;
            }
        };
        if cells == ["promise", "key", "bound", "tolerance"] {
            within = true;
        } else if within && !cells.iter().all(|cell| cell.chars().all(|c| matches!(c, '-' | ':'))) {
            promises.push(promise(&cells).ok_or_else(|| {
                BenchError::Invalid(format!(
                    "line {} of the specification is not `| words | \\`key\\` | <= 1.5 | 10 % |`: {line}",
                    number + 1
                ))
            })?);
        }
    }
    if promises.is_empty() {
        return Err(BenchError::Invalid("the specification holds no table of promises".into()));
    }
    Ok(promises)
}

fn promise(cells: &[&str]) -> Option<Promise> {
    let [words, key, bound, tolerance] = cells else { return None };
    let key = key.strip_prefix('`')?.strip_suffix('`')?;
    let bound = if let Some(most) = bound.strip_prefix("<=") {
        Bound::AtMost(most.trim().parse().ok()?)
    } else {
        Bound::AtLeast(bound.strip_prefix(">=")?.trim().parse().ok()?)
    };
    let tolerance = tolerance.strip_suffix('%')?.trim().parse().ok()?;
    Some(Promise { words: (*words).to_owned(), key: key.to_owned(), bound, tolerance })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Numbers

| other | table |
|---|---|
| a | b |

| promise | key | bound | tolerance |
|---|---|--:|--:|
| twice the floor | `start.true.library.over_floor` | <= 2 | 10 % |
| many | `rate.best_per_second` | >= 150 | 20 % |
";

    fn report(key: &str, value: f64) -> Report {
        let mut report = Report::new(true);
        report.set(key, value);
        report
    }

    #[test]
    fn tables_are_read() {
        let promises = parse(TEXT).unwrap();
        assert_eq!(promises.len(), 2);
        assert_eq!(promises[0].key, "start.true.library.over_floor");
        assert_eq!(promises[0].bound, Bound::AtMost(2.0));
        assert_eq!((promises[1].bound, promises[1].tolerance), (Bound::AtLeast(150.0), 20.0));
    }

    #[test]
    fn a_promise_cannot_vanish() {
        for (from, to) in [("<= 2", "< 2"), ("10 %", "10"), ("`start.true", "start.true"), ("| 20 % |", "|")]
        {
            assert!(parse(&TEXT.replace(from, to)).is_err(), "{to}");
        }
        assert!(parse("# nothing\n").is_err());
    }

    #[test]
    fn bounds_have_two_sides_and_a_tolerance() {
        let promises = parse(TEXT).unwrap();
        let judge = |number: usize, value| {
            let promise: &Promise = &promises[number];
            promise.judge(&report(&promise.key, value))
        };
        assert_eq!(judge(0, 2.0), Verdict::Kept(2.0));
        assert_eq!(judge(0, 2.19), Verdict::WithinNoise(2.19));
        assert_eq!(judge(0, 2.21), Verdict::Broken(2.21));
        assert_eq!(judge(1, 151.0), Verdict::Kept(151.0));
        assert_eq!(judge(1, 121.0), Verdict::WithinNoise(121.0));
        assert_eq!(judge(1, 119.0), Verdict::Broken(119.0));
        assert_eq!(promises[0].judge(&report("other", 1.0)), Verdict::NotMeasured);
    }

    #[test]
    fn the_promises_of_this_repository_can_be_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../SPECIFICATION.md");
        let promises = parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(promises.len() >= 9, "{promises:?}");
    }
}
