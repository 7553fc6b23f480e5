//! Columns for people, and the figures in them.

use std::time::Duration;

use belljar_core::ByteSize;

/// Lays out rows under a heading; the last column is not padded.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    let heading: Vec<String> = heading.iter().map(|&word| word.to_owned()).collect();
    for row in std::iter::once(&heading).chain(rows) {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A span in its largest unit: `45s`, `12m`, `3h`, `2d`.
pub(crate) fn span(duration: Duration) -> String {
    match duration.as_secs() {
        0 if duration.subsec_millis() > 0 => format!("{}ms", duration.subsec_millis()),
        seconds @ 0..=119 => format!("{seconds}s"),
        seconds @ 120..=7199 => format!("{}m", seconds / 60),
        seconds @ 7200..=172_799 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A size, or `-` where the kernel cannot say.
pub(crate) fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string())
}

/// A count, or `-` where the kernel cannot say.
pub(crate) fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

/// Milliseconds since 1970 as a date and time of day, in UTC.
pub(crate) fn moment(milliseconds: i64) -> String {
    let minutes = milliseconds.div_euclid(60_000);
    let (days, minute) = (minutes.div_euclid(1440), minutes.rem_euclid(1440));
    // Howard Hinnant's civil_from_days: years of the era begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + carry;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minute / 60, minute % 60)
}

/// The same to the millisecond.
pub(crate) fn exact_moment(milliseconds: i64) -> String {
    let in_minute = milliseconds.rem_euclid(60_000);
    format!("{}:{:02}.{:03}", moment(milliseconds), in_minute / 1000, in_minute % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text =
            table(&["ID", "STATE"], &[vec!["long-id".into(), "x".into()], vec!["a".into(), String::new()]]);
        assert_eq!(text, "ID       STATE\nlong-id  x\na\n");
    }

    #[test]
    fn spans_and_moments() {
        for (seconds, text) in [(0, "0s"), (45, "45s"), (300, "5m"), (7200, "2h"), (200_000, "2d")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        assert_eq!(span(Duration::from_millis(250)), "250ms");
        assert_eq!(moment(0), "1970-01-01 00:00");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00");
        assert_eq!(moment(1_767_225_599_000), "2025-12-31 23:59");
        assert_eq!(exact_moment(951_782_461_007), "2000-02-29 00:01:01.007");
        assert_eq!(moment(-60_000), "1969-12-31 23:59");
    }
}
