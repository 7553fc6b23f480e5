//! Tables for a terminal and for Markdown.

use std::fmt::Write;

use crate::report::{Report, Table};

/// The tables as plain text with aligned columns.
pub(crate) fn plain(report: &Report) -> String {
    let mut text = heading(report);
    for table in &report.tables {
        let _ = write!(text, "\n{}\n", table.title);
        let widths: Vec<usize> = (0..table.columns.len())
            .map(|column| {
                let cells = table.rows.iter().chain([&table.columns]).filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in [&table.columns].into_iter().chain(&table.rows) {
            let mut line = String::from(" ");
            for (number, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = if number == 0 {
                    write!(line, " {cell:<width$}")
                } else {
                    write!(line, "  {cell:>width$}")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for note in &table.notes {
            let _ = writeln!(text, "  {note}");
        }
    }
    for (key, why) in &report.not_available {
        let _ = write!(text, "\nnot available: {key}: {why}");
    }
    text.push('\n');
    text
}

/// The tables as Markdown.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = String::from("# Results of the bench\n\n");
    text.push_str(&heading(report));
    text.push_str("\n![Start times](latest.svg)\n");
    for table in &report.tables {
        let _ = write!(text, "\n## {}\n\n", table.title);
        markdown_row(&mut text, &table.columns);
        let rule: Vec<String> = (0..table.columns.len())
            .map(|column| if column == 0 { "---".into() } else { "--:".into() })
            .collect();
        markdown_row(&mut text, &rule);
        for row in &table.rows {
            markdown_row(&mut text, row);
        }
        for note in &table.notes {
            let _ = write!(text, "\n{note}\n");
        }
    }
    if !report.not_available.is_empty() {
        text.push_str("\n## Not available\n\n");
        for (key, why) in &report.not_available {
            let _ = writeln!(text, "- `{key}`: {why}");
        }
    }
    text
}

fn markdown_row(text: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn heading(report: &Report) -> String {
    let machine = &report.machine;
    let form = if report.quick { ", shorter form" } else { "" };
    format!(
        "Belljar {}, {}{form}\n{} x {}, {:.0} GiB, Linux {}, load {:.2} before the run\n",
        report.belljar,
        report.taken,
        machine.processors,
        machine.processor,
        machine.memory_mib as f64 / 1024.0,
        machine.kernel,
        machine.load_before
    )
}

/// A number with as many decimals as help.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The same, or a dash.
pub(crate) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Adds a row of a name and numbers.
pub(crate) fn row(table: &mut Table, name: &str, numbers: &[Option<f64>]) {
    table.rows.push([name.to_owned()].into_iter().chain(numbers.iter().map(|value| maybe(*value))).collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(false);
        let mut table = Table::new("Start", &["what", "median", "p99"]);
        row(&mut table, "a|b", &[Some(1.234), None]);
        row(&mut table, "longer name", &[Some(1234.5), Some(12.34)]);
        table.notes.push("in milliseconds".into());
        report.tables.push(table);
        report.lacks("start.podman", "not installed");
        report
    }

    #[test]
    fn columns_are_aligned() {
        let text = plain(&report());
        let lines: Vec<&str> = text.lines().skip_while(|line| *line != "Start").skip(1).take(3).collect();
        assert_eq!(lines[0], "  what         median   p99");
        assert_eq!(lines[1], "  a|b            1.23     -");
        assert_eq!(lines[2], "  longer name    1234  12.3");
        assert!(text.contains("not available: start.podman: not installed"));
    }

    #[test]
    fn markdown_is_escaped() {
        let text = markdown(&report());
        assert!(text.contains("| a\\|b | 1.23 | - |"), "{text}");
        assert!(text.contains("| --- | --: | --: |"));
        assert!(text.contains("- `start.podman`: not installed"));
    }
}
