//! What use costs: a table of prices, each valid from a day on.

use serde::{Deserialize, Serialize};

use crate::meter::{Amount, Meter};

/// Prices in millionths of a dollar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// From when on they are valid, in milliseconds since 1970.
    pub from_ms: u64,
    /// For an hour of one processor.
    pub cpu_hour: u64,
    /// For holding a GiB of memory for an hour.
    pub memory_gib_hour: u64,
    /// For holding a GiB of storage for a month of 30 days.
    pub storage_gib_month: u64,
    /// For sending a GiB to the network.
    pub egress_gib: u64,
    /// For a million tokens given to models.
    pub input_million_tokens: u64,
    /// For a million tokens that models answer with.
    pub output_million_tokens: u64,
}

/// Prices over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PriceTable(Vec<Prices>);

/// What something cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// In millionths of a dollar, for what is known.
    pub micros: u64,
    /// Whether some of the use is unknown, or has no price: then it cost at least this much.
    pub at_least: bool,
}

impl Default for PriceTable {
    /// What renting the like costs; whoever runs their own machines sets their own.
    fn default() -> Self {
        Self(vec![Prices {
            from_ms: 0,
            cpu_hour: 50_000,
            memory_gib_hour: 16_000,
            storage_gib_month: 80_000,
            egress_gib: 90_000,
            input_million_tokens: 3_000_000,
            output_million_tokens: 15_000_000,
        }])
    }
}

impl PriceTable {
    /// A table of these prices.
    pub fn new(mut prices: Vec<Prices>) -> Self {
        prices.sort_by_key(|prices| prices.from_ms);
        Self(prices)
    }

    /// What this use cost at this time. What was used before the first price has none.
    pub fn cost(&self, meter: &Meter, at_ms: u64) -> Cost {
        let Some(prices) = self.0.iter().rev().find(|prices| prices.from_ms <= at_ms) else {
            return Cost { micros: 0, at_least: *meter != Meter::default() };
        };
        const HOUR: u128 = 3600;
        const GIB: u128 = 1 << 30;
        let lines = [
            (meter.cpu_us, prices.cpu_hour, HOUR * 1_000_000),
            (meter.memory_byte_seconds, prices.memory_gib_hour, HOUR * GIB),
            (meter.disk_byte_seconds, prices.storage_gib_month, HOUR * 24 * 30 * GIB),
            (meter.egress_bytes, prices.egress_gib, GIB),
            (meter.input_tokens, prices.input_million_tokens, 1_000_000),
            (meter.output_tokens, prices.output_million_tokens, 1_000_000),
        ];
        // One common rounding at the end would need one denominator; to the nearest in each line is exact enough to add up
        // to less than half a millionth of a dollar each.
        let price = |amount: Amount, price: u64, unit: u128| {
            (u128::from(amount.known) * u128::from(price) + unit / 2) / unit
        };
        let sum: u128 = lines.iter().map(|(amount, per, unit)| price(*amount, *per, *unit)).sum();
        Cost {
            micros: u64::try_from(sum).unwrap_or(u64::MAX),
            at_least: lines.iter().any(|(amount, ..)| amount.unknown > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> PriceTable {
        let prices = |from_ms, cpu_hour| Prices { from_ms, cpu_hour, ..PriceTable::default().0[0].clone() };
        PriceTable::new(vec![prices(2000, 200_000), prices(1000, 100_000)])
    }

    #[test]
    fn an_hour_costs_what_an_hour_costs_at_the_time() {
        let hour = Meter { cpu_us: Amount::from(3_600_000_000), ..Meter::default() };
        let micros = |at| table().cost(&hour, at).micros;
        assert_eq!((micros(1000), micros(1999), micros(2000)), (100_000, 100_000, 200_000));
        assert_eq!(table().cost(&hour, 999), Cost { micros: 0, at_least: true }, "no price is not free");
    }

    #[test]
    fn unknown_use_makes_the_cost_a_lower_bound() {
        let meter = Meter { cpu_us: Amount::from(None), ..Meter::default() };
        assert_eq!(table().cost(&meter, 1000), Cost { micros: 0, at_least: true });
        assert_eq!(table().cost(&Meter::default(), 1000), Cost::default());
    }

    #[test]
    fn large_use_does_not_overflow() {
        let meter = Meter::from_figures([Amount::from(u64::MAX); Meter::FIGURES]);
        assert!(table().cost(&meter, 5000).micros > 0);
    }
}
