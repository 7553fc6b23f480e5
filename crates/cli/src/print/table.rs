//! Columns for people, and the figures in them.

use std::time::Duration;

use belljar_core::ByteSize;
pub(crate) use belljar_core::{exact_moment, moment};

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
    fn spans_are_short() {
        for (seconds, text) in [(0, "0s"), (45, "45s"), (300, "5m"), (7200, "2h"), (200_000, "2d")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        assert_eq!(span(Duration::from_millis(250)), "250ms");
    }
}
