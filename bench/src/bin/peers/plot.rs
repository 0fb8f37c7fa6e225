//! The result in pictures: horizontal bars as SVG, a file for each bench. Pure; called by `main`.
//! Rates and times are on logarithmic scales, because peers differ by powers of ten; shares are on a linear one.

use std::fmt::Write;

use crate::figures::is_windlass;
use crate::plan::{Bench, MOST_JOBS, Store};
use crate::report::{Measured, Results, milliseconds, percent, thousands};

/// The pictures: file name, title, text of the file. A bench nobody has figures of has none.
pub(crate) fn plots(results: &Results) -> Vec<(String, String, String)> {
    Bench::ALL
        .iter()
        .filter_map(|bench| {
            let plot = plot(results, *bench)?;
            Some((format!("{}.svg", bench.name()), plot.title.to_owned(), draw(&plot)))
        })
        .collect()
}

/// A picture before it is drawn.
struct Plot {
    title: &'static str,
    subtitle: String,
    scale: Scale,
    groups: Vec<(&'static str, Vec<Bar>)>,
}

/// One peer.
struct Bar {
    label: String,
    value: f64,
    /// A second value, drawn as a whisker from the bar.
    whisker: Option<f64>,
    text: String,
    look: Look,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Windlass,
    Queue,
    Reference,
}

/// From a value to its place between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Between two powers of ten.
    Logarithmic { from: i32, to: i32 },
    /// From nothing.
    Linear { to: f64 },
}

impl Scale {
    /// Whole decades around all values, with some length left for the smallest bar.
    fn decades(values: &[f64]) -> Self {
        let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let from = (smallest * 0.8).log10().floor() as i32;
        Scale::Logarithmic { from, to: (largest.log10().ceil() as i32).max(from + 1) }
    }

    fn place(self, value: f64) -> f64 {
        let place = match self {
            Scale::Logarithmic { from, to } => (value.log10() - f64::from(from)) / f64::from(to - from),
            Scale::Linear { to } => value / to,
        };
        place.clamp(0.0, 1.0)
    }

    /// Where lines are drawn, and what they are called.
    fn lines(self) -> Vec<(f64, String)> {
        match self {
            Scale::Logarithmic { from, to } => (from..=to).map(|power| (10f64.powi(power), decade(power))).collect(),
            Scale::Linear { to } => {
                let steps = (to / 0.25).round() as i32;
                (0..=steps).map(|step| f64::from(step) * 0.25).map(|share| (share, percent(share))).collect()
            }
        }
    }
}

/// A power of ten in words.
fn decade(power: i32) -> String {
    match power {
        ..0 => format!("{:.*}", power.unsigned_abs() as usize, 10f64.powi(power)),
        _ => thousands(10f64.powi(power)).replace("1.0", "1"),
    }
}

fn plot(results: &Results, bench: Bench) -> Option<Plot> {
    let groups = [(Store::Postgres, "on PostgreSQL"), (Store::File, "in a file of the process (SQLite, redb)")];
    let groups: Vec<(&'static str, Vec<Bar>)> = groups
        .into_iter()
        .map(|(store, name)| (name, bars(results, bench, store)))
        .filter(|(_, bars)| !bars.is_empty())
        .collect();
    let values: Vec<f64> =
        groups.iter().flat_map(|(_, bars)| bars).flat_map(|bar| [Some(bar.value), bar.whisker]).flatten().collect();
    let largest = values.iter().copied().reduce(f64::max)?;
    let scale = match bench {
        Bench::Held => Scale::Linear { to: (largest.max(1.0) * 4.0).ceil() / 4.0 },
        _ => Scale::decades(&values),
    };
    let (title, what) = match bench {
        Bench::Bulk => ("Bulk submit", "jobs per second, by the peer's bulk call"),
        Bench::Enqueue16 => ("One by one from 16 callers", "submitted jobs per second"),
        Bench::Enqueue64 => ("One by one from 64 callers", "submitted jobs per second"),
        Bench::Drain => ("Drain", "jobs per second, from the start of the worker until the store has recorded all"),
        Bench::Latency => ("Pickup", "milliseconds from submit to start on an idle worker: bar to p50, whisker to p99"),
        Bench::Held => {
            ("Under a held snapshot", "rate while another transaction holds its snapshot, of the rate before")
        }
    };
    let log = if bench == Bench::Held { "" } else { "; logarithmic" };
    let repeats = if results.repeats == 1 { "one run".into() } else { format!("medians of {} runs", results.repeats) };
    Some(Plot { title, subtitle: format!("{what}{log}; {repeats}"), scale, groups })
}

/// The peers on one kind of store that have figures, best first.
fn bars(results: &Results, bench: Bench, store: Store) -> Vec<Bar> {
    let on_store = results.peers.iter().filter(|measured| measured.peer.store == store);
    let mut bars: Vec<Bar> = on_store.filter_map(|measured| bar(results, measured, bench)).collect();
    bars.sort_by(|a, b| b.value.total_cmp(&a.value));
    if bench == Bench::Latency {
        bars.reverse();
    }
    bars
}

fn bar(results: &Results, measured: &Measured, bench: Bench) -> Option<Bar> {
    let summary = results.summary(measured, bench).ok()?;
    let value = |metric: &str| summary.medians.get(metric).copied().filter(|value| *value > 0.0);
    let (value, whisker, text) = match bench {
        Bench::Latency => {
            let (p50, p99) = (value("p50_ms")?, value("p99_ms")?);
            (p50, Some(p99), format!("{} / {}", milliseconds(p50), milliseconds(p99)))
        }
        Bench::Held => {
            let ratio = summary.medians.get("ratio").copied()?;
            (ratio, None, percent(ratio))
        }
        _ => {
            let rate = value("jobs_per_second")?;
            let fewer = bench == Bench::Drain && measured.peer.runs.drain_jobs < MOST_JOBS;
            let jobs = if fewer { format!(" ({} jobs)", thousands(summary.jobs as f64)) } else { String::new() };
            (rate, None, thousands(rate) + &jobs)
        }
    };
    let look = match () {
        () if is_windlass(measured.peer) => Look::Windlass,
        () if measured.peer.name.contains("(reference)") => Look::Reference,
        () => Look::Queue,
    };
    Some(Bar { label: measured.peer.name.replace(" (reference)", ""), value, whisker, text, look })
}

const WIDTH: f64 = 860.0;
/// Where bars begin, and the most they take; the rest is for their labels and texts.
const LEFT: f64 = 190.0;
const SPAN: f64 = 540.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 66.0;

fn draw(plot: &Plot) -> String {
    let rows: usize = plot.groups.iter().map(|(_, bars)| bars.len() + 1).sum();
    let bottom = HEAD + rows as f64 * ROW + 6.0;
    let height = bottom + 54.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"#1f2937\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"18\" font-weight=\"bold\">{}</text>\n\
         <text x=\"16\" y=\"48\" fill=\"#6b7280\">{}</text>\n",
        escape(plot.title),
        escape(&plot.subtitle)
    );
    for (value, name) in plot.scale.lines() {
        let x = LEFT + plot.scale.place(value) * SPAN;
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{HEAD}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"#6b7280\">{name}</text>",
            bottom + 16.0
        );
    }
    let mut y = HEAD;
    for (name, bars) in &plot.groups {
        let _ = writeln!(svg, "<text x=\"16\" y=\"{:.1}\" font-weight=\"bold\">{}</text>", y + 17.0, escape(name));
        y += ROW;
        for bar in bars {
            draw_bar(&mut svg, plot.scale, bar, y);
            y += ROW;
        }
    }
    legend(&mut svg, bottom + 40.0);
    svg + "</svg>\n"
}

fn colour(look: Look) -> &'static str {
    match look {
        Look::Windlass => "#0f766e",
        Look::Queue => "#94a3b8",
        Look::Reference => "#e2c48d",
    }
}

fn draw_bar(svg: &mut String, scale: Scale, bar: &Bar, y: f64) {
    let end = LEFT + scale.place(bar.value) * SPAN;
    let weight = if bar.look == Look::Windlass { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\"{weight}>{}</text>\
         <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"2\" fill=\"{}\"/>",
        LEFT - 8.0,
        y + 17.0,
        escape(&bar.label),
        y + 4.0,
        (end - LEFT).max(1.0),
        colour(bar.look)
    );
    let mut text_at = end;
    if let Some(whisker) = bar.whisker {
        text_at = text_at.max(LEFT + scale.place(whisker) * SPAN);
        let middle = y + 12.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{end:.1} {middle:.1} H{text_at:.1} M{text_at:.1} {:.1} v10\" stroke=\"#475569\" stroke-width=\"1.5\" fill=\"none\"/>",
            middle - 5.0
        );
    }
    let _ =
        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\"{weight}>{}</text>", text_at + 6.0, y + 17.0, escape(&bar.text));
}

fn legend(svg: &mut String, y: f64) {
    let entries =
        [(Look::Windlass, "Windlass"), (Look::Queue, "job queues"), (Look::Reference, "references, not job queues")];
    for (place, (look, name)) in (0u8..).zip(entries) {
        let x = LEFT + f64::from(place) * 120.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\" font-size=\"12\">{name}</text>",
            y - 10.0,
            colour(look),
            x + 18.0
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_enclose_every_value() {
        assert_eq!(Scale::decades(&[166.0, 60_000.0]), Scale::Logarithmic { from: 2, to: 5 });
        // A bar at the very edge would have no length.
        assert_eq!(Scale::decades(&[100.0, 900.0]), Scale::Logarithmic { from: 1, to: 3 });
        assert_eq!(Scale::decades(&[0.5, 0.6]), Scale::Logarithmic { from: -1, to: 0 });
        for value in [0.5, 0.6] {
            assert!((0.0..=1.0).contains(&Scale::decades(&[0.5, 0.6]).place(value)));
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let log = Scale::Logarithmic { from: 2, to: 4 };
        assert_eq!((log.place(100.0), log.place(1_000.0), log.place(10_000.0)), (0.0, 0.5, 1.0));
        let linear = Scale::Linear { to: 1.25 };
        assert_eq!((linear.place(0.0), linear.place(1.25)), (0.0, 1.0));
    }

    #[test]
    fn lines_are_named_for_people() {
        let names = |scale: Scale| scale.lines().into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(Scale::Logarithmic { from: -1, to: 1 }), ["0.1", "1", "10"]);
        assert_eq!(names(Scale::Logarithmic { from: 3, to: 4 }), ["1,000", "10,000"]);
        assert_eq!(names(Scale::Linear { to: 1.0 }), ["0 %", "25 %", "50 %", "75 %", "100 %"]);
    }

    #[test]
    fn a_drawing_is_well_formed_and_complete() {
        let bar =
            |label: &str, look| Bar { label: label.into(), value: 50.0, whisker: Some(80.0), text: "50".into(), look };
        let plot = Plot {
            title: "T",
            subtitle: "a < b & c".into(),
            scale: Scale::Logarithmic { from: 0, to: 2 },
            groups: vec![("g", vec![bar("one", Look::Windlass), bar("two", Look::Reference)])],
        };
        let svg = draw(&plot);
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains(">one</text>") && svg.contains(">two</text>"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
