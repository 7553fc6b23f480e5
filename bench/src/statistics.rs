//! Medians and tails of repeated measurements.

use std::time::Duration;

/// Repeated measurements of one thing, in the order they were taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds one, in whatever unit all of them have.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Adds a duration, in milliseconds.
    pub(crate) fn push_time(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e3);
    }

    /// Adds all of another's.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value below which this share of them lies: the smallest that is at least as large as `share` of all. `None`
    /// if there are none.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }

    /// The middle one, or the mean of the two in the middle.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0) }
    }

    /// The 99th percentile; with fewer than a hundred it is the largest.
    pub(crate) fn p99(&self) -> Option<f64> {
        self.quantile(0.99)
    }

    /// The smallest.
    pub(crate) fn least(&self) -> Option<f64> {
        self.0.iter().copied().min_by(f64::total_cmp)
    }
}

/// Whether something that is to happen `wanted` times in `rounds` happens in this round, evenly spread.
pub(crate) fn takes_part(round: usize, rounds: usize, wanted: usize) -> bool {
    let wanted = wanted.min(rounds);
    (round + 1) * wanted / rounds > round * wanted / rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(samples(&[7.0]).median(), Some(7.0));
        assert_eq!(samples(&[]).median(), None);
    }

    #[test]
    fn tails() {
        let hundred = Samples((1..=100).map(f64::from).collect());
        assert_eq!(hundred.p99(), Some(99.0));
        assert_eq!(hundred.quantile(0.5), Some(50.0));
        assert_eq!(hundred.quantile(0.0), Some(1.0));
        assert_eq!(hundred.quantile(1.0), Some(100.0));
        assert_eq!(samples(&[5.0, 9.0]).p99(), Some(9.0));
        assert_eq!(samples(&[]).p99(), None);
        assert_eq!(samples(&[5.0, 2.0]).least(), Some(2.0));
    }

    #[test]
    fn rare_ones_are_spread_over_all_rounds() {
        for (rounds, wanted) in [(200, 24), (10, 10), (10, 1), (7, 3), (5, 50)] {
            let taken: Vec<usize> = (0..rounds).filter(|round| takes_part(*round, rounds, wanted)).collect();
            assert_eq!(taken.len(), wanted.min(rounds), "{wanted} of {rounds}");
            let gaps = taken.windows(2).map(|pair| pair[1] - pair[0]);
            let (least, most) = gaps.fold((usize::MAX, 0), |(low, high), gap| (low.min(gap), high.max(gap)));
            assert!(taken.len() < 2 || most - least <= 1, "{wanted} of {rounds}: {taken:?}");
        }
    }

    #[test]
    fn times_are_milliseconds() {
        let mut all = Samples::default();
        all.push_time(Duration::from_micros(1500));
        all.extend(&samples(&[2.5]));
        assert_eq!((all.median(), all.len()), (Some(2.0), 2));
    }
}
