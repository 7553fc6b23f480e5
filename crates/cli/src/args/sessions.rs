//! Which sessions to list.

use belljar_core::Result;
use belljar_engine::session::{SessionState, Tenant};
use belljar_engine::store::Query;

use super::sandbox::labels;
use super::{SessionsArgs, wrong};

/// The most sessions on one page.
const MOST: u32 = 1000;

impl SessionsArgs {
    /// Checks everything.
    pub(crate) fn query(self) -> Result<Query> {
        Ok(Query {
            tenant: self.tenant.map(Tenant),
            states: self.states.into_iter().map(state).collect::<Result<_>>()?,
            labels: labels(&self.labels)?,
            cursor: self.after.as_deref().map(cursor).transpose()?,
            limit: limit(&self.limit)?,
        })
    }
}

fn state(name: String) -> Result<String> {
    if SessionState::NAMES.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(wrong("--state", format!("there is no state `{}`", name.escape_debug()))
        .hint(format!("the states are: {}", SessionState::NAMES.join(", "))))
}

fn limit(text: &str) -> Result<u32> {
    text.parse().ok().filter(|limit| (1..=MOST).contains(limit)).ok_or_else(|| {
        wrong("--limit", format!("`{}` is not a number of sessions", text.escape_debug()))
            .hint(format!("give a whole number from 1 to {MOST}"))
    })
}

fn cursor(text: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        wrong("--after", format!("`{}` is not where a page ended", text.escape_debug()))
            .hint("give the number that the page before ended with")
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    fn query(line: &[&str]) -> Result<Query> {
        match Cli::try_parse_from(["belljar", "sessions"].iter().chain(line)).unwrap().command {
            Verb::Sessions(args) => args.query(),
            _ => panic!("not sessions"),
        }
    }

    #[test]
    fn what_is_left_out_filters_nothing() {
        assert_eq!(query(&[]).unwrap(), Query { limit: 50, ..Query::default() });
        let line =
            ["--state", "ended", "--state", "paused", "--label", "a=b", "--tenant", "t", "--after", "7"];
        let query = query(&line).unwrap();
        assert_eq!((query.states, query.cursor), (vec!["ended".to_owned(), "paused".to_owned()], Some(7)));
        assert_eq!((&*query.labels["a"], query.tenant), ("b", Some(Tenant("t".to_owned()))));
    }

    #[test]
    fn a_refusal_names_the_option_and_says_what_there_is() {
        for (option, value) in [
            ("--state", "gone"),
            ("--label", "x"),
            ("--limit", "0"),
            ("--limit", "1001"),
            ("--limit", "-1"),
            ("--after", "-1"),
            ("--after", "x"),
        ] {
            let error = query(&[option, value]).unwrap_err();
            assert!(error.message.contains(option) && error.message.contains(value), "{error}");
            assert!(error.hint.is_some());
        }
        let hint = query(&["--state", "Ended"]).unwrap_err().hint.unwrap();
        assert!(SessionState::NAMES.iter().all(|name| hint.contains(name)), "{hint}");
    }
}
