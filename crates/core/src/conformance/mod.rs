//! The promises of [`Provider`] and [`Sandbox`](crate::Sandbox), as cases that every rung of the ladder is run against.
//!
//! A case is skipped only when the provider does not declare what the case needs, and the report says so by name. The
//! suite knows no async runtime: the caller lends it a way to sleep.
//!
//! ```text
//! #[tokio::test(flavor = "multi_thread")]
//! async fn local_keeps_its_promises() {
//!     let sleep = |span| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(span)) };
//!     conformance::check_all(&Local::new(), Programs::Real, sleep).await.assert_kept();
//! }
//! ```

#![expect(clippy::print_stdout, reason = "test code: the table of a run belongs on the test's output")]

/// Ends the case with a reason unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::conformance::trial::Failure::from(format!($($reason)+)));
        }
    };
}

/// Names functions of the surrounding module as cases: `group: name [what it needs], …`.
macro_rules! cases {
    ($group:literal: $($function:ident [$($need:expr),*],)+) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[$(
            $crate::conformance::Case {
                name: concat!($group, "::", stringify!($function)),
                needs: &[$($need),*],
                check: |trial| Box::pin($function(trial)),
            },
        )+];
    };
}

mod control;
mod endings;
mod environment;
mod execs;
mod execute;
mod files;
mod input;
mod life;
mod limits;
mod report;
mod transfer;
mod trial;
mod walls;

use std::fmt;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};

pub use report::{Report, Verdict};
use trial::{Outcome, Trial};

use crate::{Capability, Provider};

/// How long one case may take, after which it has failed. Far above what any case needs.
const CASE_LIMIT: Duration = Duration::from_secs(60);

/// A way to let time pass, lent by the caller's runtime.
pub type Sleep = fn(Duration) -> BoxFuture<'static, ()>;

/// What runs inside the provider's sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// A real `/bin/sh` with the usual small programs, as real processes.
    Real,
    /// A model that understands the small vocabulary of the basic cases.
    Model,
}

/// Something without which a case says nothing about a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The provider declares this ability.
    Ability(Capability),
    /// [`Programs::Real`].
    RealPrograms,
}

impl fmt::Display for Need {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ability(capability) => capability.fmt(formatter),
            Self::RealPrograms => formatter.write_str("real programs"),
        }
    }
}

/// The needs as the case tables spell them.
mod need {
    use super::Need;
    use crate::Capability;

    pub(super) const STREAM: Need = Need::Ability(Capability::Stream);
    pub(super) const STDIN: Need = Need::Ability(Capability::Stdin);
    pub(super) const PTY: Need = Need::Ability(Capability::Pty);
    pub(super) const SIGNAL: Need = Need::Ability(Capability::Signal);
    pub(super) const FILES: Need = Need::Ability(Capability::Files);
    pub(super) const CONTROL: Need = Need::Ability(Capability::Control);
    pub(super) const PAUSE: Need = Need::Ability(Capability::Pause);
    pub(super) const ROOT: Need = Need::Ability(Capability::Root);
    pub(super) const ISOLATION: Need = Need::Ability(Capability::Isolation);
    pub(super) const LIMITS: Need = Need::Ability(Capability::Limits);
    pub(super) const REAL: Need = Need::RealPrograms;
}

/// One promise, and how to see whether it is kept.
#[derive(Clone, Copy)]
pub struct Case {
    /// `group::promise`, unique.
    pub name: &'static str,
    /// Without these the case does not apply.
    pub needs: &'static [Need],
    check: for<'a, 'p> fn(&'a Trial<'p>) -> BoxFuture<'a, Outcome>,
}

impl fmt::Debug for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish()
    }
}

impl Case {
    /// Runs this case alone, in sandboxes of its own that are removed afterwards whatever happened.
    pub async fn run(&self, provider: &dyn Provider, programs: Programs, sleep: Sleep) -> Verdict {
        let capabilities = provider.capabilities();
        let missing = self.needs.iter().find(|need| match need {
            Need::Ability(capability) => !capabilities.has(*capability),
            Need::RealPrograms => programs == Programs::Model,
        });
        if let Some(&missing) = missing {
            return Verdict::NotPromised(missing);
        }

        let trial = Trial::new(provider, sleep);
        let outcome = within(sleep, (self.check)(&trial)).await;
        let cleaned = within(sleep, Box::pin(trial.cleanup())).await;
        match outcome.and(cleaned) {
            Ok(()) => Verdict::Kept,
            Err(failure) => Verdict::Broken(failure.to_string()),
        }
    }
}

/// The outcome, or a failure if it does not come in time.
async fn within(sleep: Sleep, work: BoxFuture<'_, Outcome>) -> Outcome {
    match select(work, sleep(CASE_LIMIT)).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(format!("no answer within {} s", CASE_LIMIT.as_secs()).into()),
    }
}

/// Every case, in the order in which they are run: the basic ones first.
pub fn cases() -> Vec<Case> {
    [
        execute::CASES,
        environment::CASES,
        endings::CASES,
        transfer::CASES,
        life::CASES,
        execs::CASES,
        input::CASES,
        files::CASES,
        control::CASES,
        walls::CASES,
        limits::CASES,
    ]
    .concat()
}

/// Runs every case, one after the other, and prints each verdict as it comes.
pub async fn check_all(provider: &dyn Provider, programs: Programs, sleep: Sleep) -> Report {
    check_matching(provider, programs, sleep, "").await
}

/// Runs the cases whose name holds `pattern`.
pub async fn check_matching(
    provider: &dyn Provider,
    programs: Programs,
    sleep: Sleep,
    pattern: &str,
) -> Report {
    let mut report = Report::new(provider.name());
    for case in cases().into_iter().filter(|case| case.name.contains(pattern)) {
        let verdict = case.run(provider, programs, sleep).await;
        println!("{:<7} {:<58} {verdict}", provider.name().to_string(), case.name);
        report.push(case.name, verdict);
    }
    report
}

/// Runs every case with tokio's timer: the usual body of a provider's conformance test.
///
/// ```text
/// belljar_core::conformance_test!(local_keeps_its_promises, Programs::Real, Local::new());
/// ```
#[macro_export]
macro_rules! conformance_test {
    ($test:ident, $programs:expr, $provider:expr) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            use $crate::conformance::{Programs, check_all};
            let programs: Programs = $programs;
            let provider = $provider;
            check_all(&provider, programs, |span| Box::pin(tokio::time::sleep(span))).await.assert_kept();
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let cases = cases();
        let names: BTreeSet<_> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
    }
}
