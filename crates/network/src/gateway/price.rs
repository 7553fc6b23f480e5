//! What usage costs, in whole numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::usage::{Report, Usage};

/// A price in millionths of a dollar for a million tokens, which is the same number of millionths of a millionth of a
/// dollar for one. Written as dollars for a million tokens, as providers do: `0.075`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// An amount of money in thousand-millionths of a dollar. Written as dollars: `0.000000001`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanodollars(pub u64);

/// A text that is no amount of dollars.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an amount of dollars with at most {places} places, such as 3 or 0.25")]
pub struct NoAmount {
    text: String,
    places: usize,
}

/// What the tokens of a model cost. A price that is not there is not known, and is never taken for 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// Of input that has to do with no cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncached: Option<Rate>,
    /// Of input that is read from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<Rate>,
    /// Of input that is written to a cache for five minutes, or for as long as the provider chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_5m: Option<Rate>,
    /// Of input that is written to a cache for an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<Rate>,
    /// Of output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Rate>,
    /// Of the output that is reasoning, where it differs from that of `output`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Rate>,
    /// Of each request, beside its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Nanodollars>,
    /// Of each search of the web that the provider makes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_search: Option<Nanodollars>,
}

impl Prices {
    /// What one request cost that used this. The sum is exact, and is rounded once, up to the next thousand-millionth
    /// of a dollar. It is unknown if the price of anything that was used is, or if no price is known at all. A sum
    /// that is too large for the type is the largest one.
    pub fn cost(&self, usage: &Usage) -> Option<Nanodollars> {
        let reasoning = usage.reasoning.min(usage.output);
        self.sum(&[
            (usage.uncached, self.uncached),
            (usage.cache_read, self.cache_read),
            (usage.cache_write_5m, self.cache_write_5m),
            (usage.cache_write_1h, self.cache_write_1h),
            (usage.output - reasoning, self.output),
            (reasoning, self.reasoning.or(self.output)),
        ])
    }

    /// What an answer cost by its own account: at least, if that is provisional. Unknown as with [`cost`](Self::cost), and
    /// if the account says nothing, or of other models too.
    pub fn cost_of(&self, report: &Report) -> Option<Nanodollars> {
        let tokens = report.usage.usage().filter(|_| !report.other_models)?;
        let searches = match report.web_searches {
            0 => 0,
            count => self.web_search?.0.saturating_mul(count),
        };
        Some(self.cost(&tokens)?.plus(Nanodollars(searches)))
    }

    /// The most that one request can cost with at most so many tokens of input and of output, whatever caches do: all
    /// input at the dearest of its prices, all output at the dearer of its two. It is unknown if the price of plain
    /// input or output is. Prices that are not there are not among those compared, for usage that needs one has no
    /// cost either.
    pub fn at_most(&self, input: u64, output: u64) -> Option<Nanodollars> {
        let (uncached, plain) = (self.uncached?, self.output?);
        let dearest = [self.cache_read, self.cache_write_5m, self.cache_write_1h]
            .into_iter()
            .flatten()
            .fold(uncached, Rate::max);
        self.sum(&[(input, Some(dearest)), (output, self.reasoning.max(Some(plain)))])
    }

    fn sum(&self, parts: &[(u64, Option<Rate>)]) -> Option<Nanodollars> {
        if *self == Self::default() {
            return None;
        }
        let mut pico = self.request.map_or(0, |request| u128::from(request.0) * 1000);
        for (tokens, rate) in parts {
            if *tokens > 0 {
                pico = pico.saturating_add(u128::from(*tokens) * u128::from((*rate)?.0));
            }
        }
        Some(Nanodollars(u64::try_from(pico.div_ceil(1000)).unwrap_or(u64::MAX)))
    }
}

impl Rate {
    /// A price in millionths of a dollar for a million tokens.
    pub const fn micros_per_million(micros: u64) -> Self {
        Self(micros)
    }
}

impl Nanodollars {
    /// Both together, or the largest amount there is.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Reads an amount of dollars as a number of the last of so many places.
fn amount(text: &str, places: usize) -> Result<u64, NoAmount> {
    let wrong = || NoAmount { text: text.chars().take(40).collect(), places };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if whole.is_empty() || part.is_empty() || part.len() > places || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    format!("{whole}{part:0<places$}").parse().map_err(|_| wrong())
}

/// Writes it again, without places that say nothing.
fn write_amount(formatter: &mut fmt::Formatter<'_>, number: u64, places: usize) -> fmt::Result {
    let text = format!("{number:0>width$}", width = places + 1);
    let (whole, part) = text.split_at(text.len() - places);
    match part.trim_end_matches('0') {
        "" => formatter.write_str(whole),
        part => write!(formatter, "{whole}.{part}"),
    }
}

/// Amounts as texts, because numbers with a point are not exact.
macro_rules! amounts {
    ($($amount:ident: $places:literal),*) => {$(
        impl FromStr for $amount {
            type Err = NoAmount;

            fn from_str(text: &str) -> Result<Self, NoAmount> {
                amount(text, $places).map(Self)
            }
        }

        impl fmt::Display for $amount {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_amount(formatter, self.0, $places)
            }
        }

        impl Serialize for $amount {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $amount {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Amount)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

amounts!(Rate: 6, Nanodollars: 9);

/// An amount as it may stand in a file: a text, or a whole number of dollars.
struct Amount;

impl de::Visitor<'_> for Amount {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("dollars in quotes, such as \"0.25\", or a whole number of them")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Option<Rate> {
        Some(text.parse().unwrap())
    }

    fn prices() -> Prices {
        Prices {
            uncached: rate("3"),
            cache_read: rate("0.3"),
            cache_write_5m: rate("3.75"),
            cache_write_1h: rate("6"),
            output: rate("15"),
            ..Prices::default()
        }
    }

    #[test]
    fn costs_are_exact() {
        let usage = Usage {
            uncached: 1,
            cache_read: 1,
            cache_write_5m: 1,
            cache_write_1h: 1,
            output: 1,
            reasoning: 0,
        };
        // 3000 + 300 + 3750 + 6000 + 15000 thousand-millionths.
        assert_eq!(prices().cost(&usage), Some(Nanodollars(28_050)));
        let usage = Usage { uncached: 1_000_000, output: 1_000_000, reasoning: 400_000, ..Usage::default() };
        assert_eq!(prices().cost(&usage).unwrap().to_string(), "18");
        let own = Prices { reasoning: rate("30"), ..prices() };
        assert_eq!(own.cost(&usage).unwrap().to_string(), "24");
        let request = Prices { request: Some("0.01".parse().unwrap()), ..prices() };
        assert_eq!(request.cost(&Usage::default()).unwrap().to_string(), "0.01");
    }

    #[test]
    fn the_sum_is_rounded_up_once() {
        let cheap = Prices { uncached: rate("0.0003"), output: rate("0.0003"), ..Prices::default() };
        let used = |uncached, output| cheap.cost(&Usage { uncached, output, ..Usage::default() });
        assert_eq!(used(1, 0), Some(Nanodollars(1)));
        assert_eq!(used(1, 1), Some(Nanodollars(1)));
        assert_eq!(used(2, 2), Some(Nanodollars(2)));
        assert_eq!(used(5, 5), Some(Nanodollars(3)));
        assert_eq!(used(0, 0), Some(Nanodollars(0)));
    }

    #[test]
    fn what_is_not_known_is_not_nothing() {
        let some = Prices { uncached: rate("1"), output: rate("2"), ..Prices::default() };
        assert!(some.cost(&Usage { uncached: 5, output: 5, ..Usage::default() }).is_some());
        for usage in [
            Usage { cache_read: 1, ..Usage::default() },
            Usage { cache_write_5m: 1, ..Usage::default() },
            Usage { cache_write_1h: 1, ..Usage::default() },
        ] {
            assert_eq!(some.cost(&usage), None);
        }
        assert_eq!(Prices::default().cost(&Usage::default()), None);
        let input_only = Prices { uncached: rate("1"), ..Prices::default() };
        assert_eq!(input_only.cost(&Usage { output: 1, reasoning: 1, ..Usage::default() }), None);
        assert_eq!(input_only.at_most(1, 1), None);
        let free = Prices { uncached: rate("0"), output: rate("0"), ..Prices::default() };
        assert_eq!(free.cost(&Usage { uncached: 5, output: 5, ..Usage::default() }), Some(Nanodollars(0)));
    }

    #[test]
    fn answers_cost_what_they_say() {
        use crate::gateway::usage::Known;
        let usage = Usage { uncached: 1_000_000, ..Usage::default() };
        let report = Report { usage: Known::Final(usage), ..Report::default() };
        assert_eq!(prices().cost_of(&report).unwrap().to_string(), "3");
        let cut_off = Report { usage: Known::Provisional(usage), ..report.clone() };
        assert_eq!(prices().cost_of(&cut_off).unwrap().to_string(), "3");
        let searched = Report { web_searches: 3, ..report.clone() };
        assert_eq!(prices().cost_of(&searched), None);
        let priced = Prices { web_search: Some("0.01".parse().unwrap()), ..prices() };
        assert_eq!(priced.cost_of(&searched).unwrap().to_string(), "3.03");
        assert_eq!(prices().cost_of(&Report { usage: Known::Unknown, ..report.clone() }), None);
        assert_eq!(prices().cost_of(&Report { other_models: true, ..report }), None);
    }

    #[test]
    fn amounts_are_read_and_written_exactly() {
        for (text, micros) in
            [("0", 0), ("3", 3_000_000), ("0.075", 75_000), ("0.000001", 1), ("15.50", 15_500_000)]
        {
            assert_eq!(text.parse(), Ok(Rate::micros_per_million(micros)), "{text}");
        }
        assert_eq!(Nanodollars(u64::MAX).to_string(), "18446744073.709551615");
        assert_eq!(Rate(10_250_000).to_string(), "10.25");
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", "0.0000001", "1,5", " 1", "99999999999999", "٣"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        let prices: Prices =
            serde_json::from_str(r#"{"uncached":3,"output":"0.25","request":"0.005"}"#).unwrap();
        assert_eq!((prices.uncached, prices.output), (rate("3"), rate("0.25")));
        assert_eq!(
            serde_json::to_string(&prices).unwrap(),
            r#"{"uncached":"3","output":"0.25","request":"0.005"}"#
        );
        for wrong in [r#"{"output":0.25}"#, r#"{"output":-1}"#, r#"{"outputs":"1"}"#, r#"{"output":"free"}"#]
        {
            assert!(serde_json::from_str::<Prices>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn too_much_is_the_most() {
        let dear = Prices {
            uncached: Some(Rate(u64::MAX)),
            output: Some(Rate(u64::MAX)),
            request: Some(Nanodollars(u64::MAX)),
            ..Prices::default()
        };
        let usage = Usage { uncached: u64::MAX, output: u64::MAX, ..Usage::default() };
        assert_eq!(dear.cost(&usage), Some(Nanodollars(u64::MAX)));
        assert_eq!(Nanodollars(u64::MAX).plus(Nanodollars(1)), Nanodollars(u64::MAX));
    }

    proptest! {
        #[test]
        fn amounts_survive_being_written(number in any::<u64>()) {
            prop_assert_eq!(Rate(number).to_string().parse(), Ok(Rate(number)));
            prop_assert_eq!(Nanodollars(number).to_string().parse(), Ok(Nanodollars(number)));
        }

        #[test]
        fn nothing_costs_more_than_was_bounded(
            counts in prop::array::uniform5(0u64..10_000_000),
            reasoning in 0u64..20_000_000,
            rates in prop::array::uniform6(0u64..100_000_000),
        ) {
            let [uncached, cache_read, cache_write_5m, cache_write_1h, output] = counts;
            let usage = Usage { uncached, cache_read, cache_write_5m, cache_write_1h, output, reasoning: reasoning.min(output) };
            let [a, b, c, d, e, f] = rates.map(|rate| Some(Rate(rate)));
            let prices = Prices { uncached: a, cache_read: b, cache_write_5m: c, cache_write_1h: d, output: e, reasoning: f, ..Prices::default() };
            prop_assert!(prices.cost(&usage) <= prices.at_most(usage.input(), usage.output));
            // The same in another way: part by part, with fractions of a thousand-millionth kept.
            let exact: u128 = [(uncached, 0), (cache_read, 1), (cache_write_5m, 2), (cache_write_1h, 3), (output - usage.reasoning, 4), (usage.reasoning, 5)]
                .iter().map(|(tokens, at)| u128::from(*tokens) * u128::from(rates[*at])).sum();
            let cost = u128::from(prices.cost(&usage).unwrap().0) * 1000;
            prop_assert!(cost >= exact && cost - exact < 1000);
        }
    }
}
