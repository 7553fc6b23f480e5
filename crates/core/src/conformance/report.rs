//! What a run of the suite found.

use std::fmt;

use super::Need;
use crate::ProviderName;

/// What became of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The promise is kept.
    Kept,
    /// The provider does not declare what the case needs.
    NotPromised(Need),
    /// The promise is broken, and how.
    Broken(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => formatter.write_str("pass"),
            Self::NotPromised(need) => write!(formatter, "not promised ({need})"),
            Self::Broken(reason) => write!(formatter, "FAIL: {reason}"),
        }
    }
}

/// The verdicts of one run, in order.
#[derive(Clone, Debug)]
pub struct Report {
    provider: ProviderName,
    verdicts: Vec<(&'static str, Verdict)>,
}

impl Report {
    pub(super) fn new(provider: ProviderName) -> Self {
        Self { provider, verdicts: Vec::new() }
    }

    pub(super) fn push(&mut self, case: &'static str, verdict: Verdict) {
        self.verdicts.push((case, verdict));
    }

    /// Every case with its verdict.
    pub fn verdicts(&self) -> &[(&'static str, Verdict)] {
        &self.verdicts
    }

    /// The broken promises: case and reason.
    pub fn failures(&self) -> Vec<(&'static str, &str)> {
        self.verdicts
            .iter()
            .filter_map(|(case, verdict)| match verdict {
                Verdict::Broken(reason) => Some((*case, reason.as_str())),
                Verdict::Kept | Verdict::NotPromised(_) => None,
            })
            .collect()
    }

    /// Prints the summary and panics if a promise is broken, or if nothing was checked at all.
    #[track_caller]
    pub fn assert_kept(&self) {
        println!("{self}");
        assert!(self.verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Kept), "no case was run");
        assert!(self.failures().is_empty(), "{} broke its promises:{self}", self.provider);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures = self.failures();
        let kept = self.verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Kept).count();
        let rest = self.verdicts.len() - kept - failures.len();
        for (case, reason) in &failures {
            write!(formatter, "\n  {case}: {reason}")?;
        }
        write!(formatter, "\n{}: {kept} kept, {rest} not promised, {} broken", self.provider, failures.len())
    }
}
