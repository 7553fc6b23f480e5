//! What was used, and how amounts are added up.
//!
//! A figure that nobody can give is unknown, never 0, and stays so in every sum it is part of.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// A sum of which parts may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// What the known parts come to.
    pub known: u64,
    /// How many parts are unknown. The true sum is `known` if this is 0, and at least `known` otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self { known: 0, unknown: 0 };

    /// One part that nobody knows.
    pub const UNKNOWN: Self = Self { known: 0, unknown: 1 };

    /// The figure, if all of it is known.
    pub fn exact(self) -> Option<u64> {
        (self.unknown == 0).then_some(self.known)
    }
}

impl From<u64> for Amount {
    fn from(known: u64) -> Self {
        Self { known, unknown: 0 }
    }
}

impl From<Option<u64>> for Amount {
    fn from(figure: Option<u64>) -> Self {
        figure.map_or(Self::UNKNOWN, Self::from)
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            known: self.known.saturating_add(other.known),
            unknown: self.unknown.saturating_add(other.unknown),
        }
    }
}

/// What an execution, a session or a tenant used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// Processor time, in microseconds.
    pub cpu_us: Amount,
    /// Memory held over time, in bytes times seconds. It is the session's; executions have none of their own.
    pub memory_byte_seconds: Amount,
    /// Bytes read from disks.
    pub read_bytes: Amount,
    /// Bytes written to disks.
    pub write_bytes: Amount,
    /// Storage held over time, likewise.
    pub disk_byte_seconds: Amount,
    /// Bytes sent to the network.
    pub egress_bytes: Amount,
    /// Tokens that models were given.
    pub input_tokens: Amount,
    /// Tokens that models answered with.
    pub output_tokens: Amount,
}

impl Meter {
    /// Nothing was used.
    pub const ZERO: Self = Self {
        cpu_us: Amount::ZERO,
        memory_byte_seconds: Amount::ZERO,
        read_bytes: Amount::ZERO,
        write_bytes: Amount::ZERO,
        disk_byte_seconds: Amount::ZERO,
        egress_bytes: Amount::ZERO,
        input_tokens: Amount::ZERO,
        output_tokens: Amount::ZERO,
    };

    /// How many figures there are.
    pub const FIGURES: usize = 8;

    /// Names and figures, in the order in which they are kept.
    pub fn figures(&self) -> [(&'static str, Amount); Self::FIGURES] {
        [
            ("cpu_us", self.cpu_us),
            ("memory_byte_seconds", self.memory_byte_seconds),
            ("read_bytes", self.read_bytes),
            ("write_bytes", self.write_bytes),
            ("disk_byte_seconds", self.disk_byte_seconds),
            ("egress_bytes", self.egress_bytes),
            ("input_tokens", self.input_tokens),
            ("output_tokens", self.output_tokens),
        ]
    }

    /// The meter with these figures, in the order of [`figures`](Self::figures).
    pub fn from_figures(figures: [Amount; Self::FIGURES]) -> Self {
        let [
            cpu_us,
            memory_byte_seconds,
            read_bytes,
            write_bytes,
            disk_byte_seconds,
            egress_bytes,
            input_tokens,
            output_tokens,
        ] = figures;
        Self {
            cpu_us,
            memory_byte_seconds,
            read_bytes,
            write_bytes,
            disk_byte_seconds,
            egress_bytes,
            input_tokens,
            output_tokens,
        }
    }
}

impl Add for Meter {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (ours, theirs) = (self.figures(), other.figures());
        Self::from_figures(std::array::from_fn(|index| ours[index].1 + theirs[index].1))
    }
}

impl AddAssign for Meter {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Meter {
    fn sum<I: Iterator<Item = Self>>(meters: I) -> Self {
        meters.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_stays_unknown() {
        let sum = Amount::from(5) + Amount::from(None) + Amount::from(7);
        assert_eq!((sum.known, sum.exact()), (12, None));
        assert_eq!((Amount::from(5) + Amount::from(0)).exact(), Some(5));
        assert_eq!(serde_json::to_string(&Amount::from(5)).unwrap(), r#"{"known":5}"#);
    }

    #[test]
    fn figures_are_named_and_kept_in_one_order() {
        let meter = Meter::from_figures(std::array::from_fn(|index| Amount::from(index as u64 + 1)));
        assert_eq!(Meter::from_figures(meter.figures().map(|(_, amount)| amount)), meter);
        let json = serde_json::to_value(meter).unwrap();
        for (name, amount) in meter.figures() {
            assert_eq!(json[name]["known"], amount.known, "{name}");
        }
        assert_eq!([meter, meter].into_iter().sum::<Meter>(), meter + meter);
    }
}
