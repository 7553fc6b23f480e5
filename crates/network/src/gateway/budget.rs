//! How much may be spent, and how much has been. What a call may cost at most is set aside before it is made, and what it did
//! cost is written down when it is over; so that calls at the same time do not spend the same money twice.

use belljar_core::{Budget, Call};
use serde::{Deserialize, Serialize};

/// What was spent, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Calls.
    pub requests: u64,
    /// Tokens.
    pub tokens: u64,
    /// Money, in thousandths of a millionth of a dollar.
    pub nano_dollars: u64,
    /// Calls of which nobody knows what they cost.
    pub unknown: u64,
}

impl Spent {
    /// What a call cost, as far as that is known.
    pub fn of(call: &Call) -> Self {
        let made = !call.refused && !call.free;
        Self {
            requests: u64::from(made),
            tokens: call.counted_tokens,
            nano_dollars: call.counted_nano_dollars,
            unknown: u64::from(
                made && call.model.is_some() && (call.usage.is_none() || call.nano_dollars.is_none()),
            ),
        }
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.saturating_add(other.tokens),
            nano_dollars: self.nano_dollars.saturating_add(other.nano_dollars),
            unknown: self.unknown.saturating_add(other.unknown),
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: self.tokens.saturating_sub(other.tokens),
            nano_dollars: self.nano_dollars.saturating_sub(other.nano_dollars),
            unknown: self.unknown.saturating_sub(other.unknown),
        }
    }
}

/// A budget that would be exceeded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the budget of {most} {what} is used up")]
pub struct UsedUp {
    /// Of what.
    pub what: &'static str,
    /// How much there was.
    pub most: String,
}

/// One account: of a token, a session or a tenant.
#[derive(Clone, Debug, Default)]
pub struct Account {
    budget: Budget,
    spent: Spent,
    aside: Spent,
    /// Where it is for a day: which.
    day: Option<u64>,
}

impl Account {
    /// An account from which so much was spent before.
    pub fn new(budget: Budget, spent: Spent) -> Self {
        Self { budget, spent, aside: Spent::default(), day: None }
    }

    /// One for each day, from which so much was spent on this one.
    pub fn daily(budget: Budget, spent: Spent, day: u64) -> Self {
        Self { day: Some(day), ..Self::new(budget, spent) }
    }

    /// It is this day now. On another one nothing is spent yet; a clock that is set back gives nobody another day's worth.
    pub fn turn(&mut self, today: u64) {
        if let Some(day) = &mut self.day
            && today > *day
        {
            *day = today;
            self.spent = Spent::default();
        }
    }

    /// Changes what may be spent.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Whether it is bounded in money.
    pub fn has_money(&self) -> bool {
        self.budget.micro_dollars.is_some()
    }

    /// What was spent.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// Whether a call that may cost so much can be made now. One alone may exceed what is left, for what it may cost is seldom
    /// what it does; two at once may not.
    pub fn check(&self, most: Spent) -> Result<(), UsedUp> {
        let now = self.spent.and(self.aside);
        let alone = self.aside.requests == 0;
        let figures = [
            ("requests", self.budget.requests, now.requests, most.requests, false),
            ("tokens", self.budget.tokens, now.tokens, most.tokens, alone),
            (
                "dollars",
                self.budget.micro_dollars.map(|budget| budget.saturating_mul(1000)),
                now.nano_dollars,
                most.nano_dollars,
                alone,
            ),
        ];
        for (what, budget, now, more, alone) in figures {
            let Some(budget) = budget else { continue };
            if now >= budget || (now.saturating_add(more) > budget && !alone) {
                let most = if what == "dollars" { dollars(budget) } else { budget.to_string() };
                return Err(UsedUp { what, most });
            }
        }
        Ok(())
    }

    /// Sets aside what a call may cost.
    pub fn set_aside(&mut self, most: Spent) {
        self.aside = self.aside.and(most);
    }

    /// Writes down what it did cost.
    pub fn settle(&mut self, aside: Spent, cost: Spent) {
        self.aside = self.aside.without(aside);
        self.spent = self.spent.and(cost);
    }
}

/// An amount in nano-dollars, as people write it.
pub fn dollars(nano: u64) -> String {
    let (whole, rest) = (nano / 1_000_000_000, nano % 1_000_000_000);
    let digits = format!("{rest:09}");
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() { whole.to_string() } else { format!("{whole}.{digits}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(tokens: u64, nano_dollars: u64) -> Spent {
        Spent { requests: 1, tokens, nano_dollars, unknown: 0 }
    }

    #[test]
    fn calls_are_counted_exactly() {
        let mut account = Account::new(Budget { requests: Some(2), ..Budget::default() }, Spent::default());
        for _ in 0..2 {
            account.check(call(1, 1)).unwrap();
            account.set_aside(call(1, 1));
        }
        let error = account.check(call(1, 1)).unwrap_err();
        assert_eq!(error.to_string(), "the budget of 2 requests is used up");
        account.settle(call(1, 1), Spent::default());
        account.check(call(1, 1)).unwrap();
    }

    #[test]
    fn one_alone_may_go_over_and_none_after_it() {
        let budget = Budget { micro_dollars: Some(1), tokens: Some(10), ..Budget::default() };
        let mut account = Account::new(budget, call(9, 999));
        account.check(call(500, 5000)).unwrap();
        account.set_aside(call(500, 5000));
        assert!(account.check(call(1, 1)).is_err(), "what is set aside counts");
        account.settle(call(500, 5000), call(400, 4000));
        let error = account.check(call(0, 0)).unwrap_err();
        assert_eq!(error, UsedUp { what: "tokens", most: "10".into() });
        assert_eq!(account.spent(), Spent { requests: 2, tokens: 409, nano_dollars: 4999, unknown: 0 });
    }

    #[test]
    fn money_is_written_as_people_write_it() {
        for (nano, text) in [(0, "0"), (1, "0.000000001"), (1_500_000_000, "1.5"), (20_000_000_000, "20")] {
            assert_eq!(dollars(nano), text);
        }
    }

    proptest! {
        /// However calls overlap, and whatever they cost up to what was set aside for them.
        #[test]
        fn a_budget_is_not_exceeded_by_more_than_one_call(
            steps in proptest::collection::vec((0u64..50, 0u64..=100, any::<bool>()), 1..200),
            budget in 1u64..500,
        ) {
            let bounds = Budget { tokens: Some(budget), ..Budget::default() };
            let mut account = Account::new(bounds, Spent::default());
            let mut open: Vec<(Spent, Spent)> = Vec::new();
            let mut dearest = 0;
            for (most, share, ends) in steps {
                let aside = call(most, 0);
                if account.check(aside).is_ok() {
                    account.set_aside(aside);
                    dearest = dearest.max(most);
                    open.push((aside, call(most * share / 100, 0)));
                }
                if ends && !open.is_empty() {
                    let (aside, cost) = open.remove(0);
                    account.settle(aside, cost);
                }
            }
            for (aside, cost) in open {
                account.settle(aside, cost);
            }
            prop_assert!(account.spent().tokens <= budget + dearest);
        }
    }

    #[test]
    fn a_daily_budget_begins_anew_with_the_day_and_not_before() {
        let budget = Budget { requests: Some(2), ..Budget::default() };
        let one = Spent { requests: 1, ..Spent::default() };
        let mut account = Account::daily(budget, Spent { requests: 1, ..Spent::default() }, 10);
        account.turn(10);
        account.check(one).unwrap();
        account.set_aside(one);
        account.settle(one, one);
        for day in [10, 9, 0] {
            account.turn(day);
            account.check(one).unwrap_err();
        }
        account.turn(11);
        account.check(one).unwrap();
        let mut whole = Account::new(budget, Spent { requests: 2, ..Spent::default() });
        whole.turn(99);
        whole.check(one).unwrap_err();
    }
}
