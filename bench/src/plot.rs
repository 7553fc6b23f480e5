//! The plot: how long each takes to start, on a logarithmic scale, as an SVG of our own making.

use std::fmt::Write;

use crate::report::Report;

/// One bar: a median with a line up to the 99th percentile.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// What it says on the left.
    pub(crate) label: String,
    /// The length of the bar, in milliseconds.
    pub(crate) median: f64,
    /// The end of the line, in milliseconds.
    pub(crate) p99: f64,
    /// Whether it is ours.
    pub(crate) ours: bool,
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 110.0;
const STEP: f64 = 24.0;
const TOP: f64 = 56.0;

/// Several panels below each other, all with the same scale.
pub(crate) fn draw(report: &Report, panels: &[(String, Vec<Bar>)]) -> String {
    let times = || panels.iter().flat_map(|(_, bars)| bars).flat_map(|bar| [bar.median, bar.p99]);
    let least = times().fold(f64::MAX, f64::min).max(1e-3);
    let most = times().fold(0.0, f64::max).max(least * 10.0);
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    let place = |time: f64| LEFT + (time.max(1e-3).log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let rows: usize = panels.iter().map(|(_, bars)| bars.len() + 3).sum();
    let height = TOP + rows as f64 * STEP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    text(&mut svg, 12.0, 22.0, "start", "#111", "Time to start, run and be gone (median; line to p99)");
    let machine = format!("Belljar {}, {}, Linux {}", report.belljar, report.taken, report.machine.kernel);
    text(&mut svg, 12.0, 40.0, "start", "#666", &machine);
    let mut y = TOP;
    for (title, bars) in panels {
        y += STEP;
        text(&mut svg, 12.0, y, "start", "#111", title);
        let (from, to) = (y + 8.0, y + 8.0 + bars.len() as f64 * STEP);
        for power in low as i32..=high as i32 {
            let x = place(10f64.powi(power));
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\" stroke=\"#ddd\"/>"
            );
            text(&mut svg, x, to + 14.0, "middle", "#666", &scale(power));
        }
        for bar in bars {
            let middle = y + 8.0 + STEP / 2.0;
            let (start, end, tail) = (place(10f64.powf(low)), place(bar.median), place(bar.p99));
            let colour = if bar.ours { "#0a7d55" } else { "#8aa0b8" };
            text(&mut svg, LEFT - 8.0, middle + 4.0, "end", "#111", &bar.label);
            let _ = writeln!(
                svg,
                "<rect x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" fill=\"{colour}\"/>\n\
                 <line x1=\"{end:.1}\" y1=\"{middle:.1}\" x2=\"{tail:.1}\" y2=\"{middle:.1}\" stroke=\"#444\"/>",
                middle - 7.0,
                (end - start).max(1.0)
            );
            text(
                &mut svg,
                tail + 6.0,
                middle + 4.0,
                "start",
                "#111",
                &format!("{} ms", crate::print::number(bar.median)),
            );
            y += STEP;
        }
        y += 2.0 * STEP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn scale(power: i32) -> String {
    if power >= 3 { format!("{} s", 10f64.powi(power - 3)) } else { format!("{} ms", 10f64.powi(power)) }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, median: f64) -> Bar {
        Bar { label: label.into(), median, p99: median * 2.0, ours: label == "belljar" }
    }

    #[test]
    fn bars_are_as_long_as_their_times_say() {
        let bars = vec![bar("belljar", 5.0), bar("docker <run> & rm", 500.0)];
        let svg = draw(&Report::new(true), &[("/bin/true".into(), bars)]);
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("height=\"14\""))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 2);
        // A hundred times longer is two decades further on the same scale.
        let decade = (WIDTH - LEFT - RIGHT) / 3.0;
        assert!((widths[1] - widths[0] - 2.0 * decade).abs() < 0.2, "{widths:?}");
        assert!(svg.contains("docker &lt;run&gt; &amp; rm"));
        assert_eq!(svg.matches("#0a7d55").count(), 1);
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn nothing_measured_is_still_a_picture() {
        assert!(draw(&Report::new(true), &[]).contains("</svg>"));
        assert!(draw(&Report::new(true), &[("x".into(), vec![bar("one", 0.0)])]).contains("</svg>"));
    }
}
