//! Entries of a list that are not kept, told by the numbers that are missing.

use crate::print::Printer;

/// What was seen of a list.
pub(super) struct Gaps {
    last: u64,
    /// How many are missing so far.
    pub(super) missing: u64,
}

impl Gaps {
    /// Nothing yet, of the list after this number.
    pub(super) fn after(number: u64) -> Self {
        Self { last: number, missing: 0 }
    }

    /// Takes note of the next entry; answers how many are missing just before it.
    pub(super) fn see(&mut self, number: u64) -> u64 {
        let missing = number.saturating_sub(self.last.saturating_add(1));
        (self.last, self.missing) = (number, self.missing.saturating_add(missing));
        missing
    }
}

/// Says that so many are missing, if any are.
pub(super) fn tell(printer: Printer, missing: u64) {
    match missing {
        0 => {}
        1 => printer.notice("1 earlier entry is not kept"),
        _ => printer.notice(&format!("{missing} earlier entries are not kept")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_counted() {
        let mut gaps = Gaps::after(0);
        assert_eq!([1, 2, 5, 6, 9].map(|number| gaps.see(number)), [0, 0, 2, 0, 2]);
        assert_eq!(gaps.missing, 4);
        let mut gaps = Gaps::after(7);
        assert_eq!([8, 10].map(|number| gaps.see(number)), [0, 1]);
        assert_eq!(Gaps::after(u64::MAX).see(3), 0);
    }
}
