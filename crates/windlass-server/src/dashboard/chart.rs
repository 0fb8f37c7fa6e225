//! Charts as SVG, drawn on the server: lines, stacked areas, bars, and the lifeline of a job. Pure. Colours
//! come from the stylesheet by class, sizes from the page around them: nothing here carries a style.
//!
//! The plot is stretched to its box (`preserveAspectRatio="none"`), so labels are HTML around it and never distorted.
//! Every chart has its numbers as a table beside it, for screen readers and for who wants to copy them.

use std::fmt::Write as _;
use std::time::Duration;

use maud::{Markup, html};
use windlass_core::Timestamp;

use super::words;

/// A chart over time.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// Stable name, unique on its page.
    pub(crate) id: &'static str,
    /// What it shows.
    pub(crate) title: &'static str,
    /// What its numbers are.
    pub(crate) unit: Unit,
    /// How it is drawn.
    pub(crate) kind: Kind,
    /// The start of each step.
    pub(crate) times: Vec<Timestamp>,
    /// How long a step is.
    pub(crate) step: Duration,
    /// What is drawn, each with one value for each time.
    pub(crate) series: Vec<Series>,
}

/// One line, area or part of the bars.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: &'static str,
    /// The class that colours it: `k-…` of the stylesheet.
    pub(crate) class: &'static str,
    /// A value for each step; none where nothing was measured.
    pub(crate) values: Vec<Option<f64>>,
}

/// What the numbers of a chart are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Jobs each second.
    PerSecond,
    /// Jobs.
    Jobs,
    /// Seconds.
    Seconds,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One line for each series, the first with a tinted area below.
    Lines,
    /// Areas on top of each other.
    Stacked,
    /// Bars on top of each other.
    Bars,
}

/// The most steps a chart draws: more cannot be told apart on a phone, and the page stays small.
pub(crate) const MAX_STEPS: usize = 60;

/// The plot's own measure; the page stretches it.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Unit::PerSecond => format!("{}/s", words::short(value)),
            Unit::Jobs => words::short(value),
            Unit::Seconds => words::duration(Duration::from_secs_f64(value.clamp(0.0, 1e9))),
        }
    }

    fn axis(self, value: f64) -> String {
        if value == 0.0 { "0".to_owned() } else { self.write(value) }
    }
}

impl Chart {
    /// The figure: title, latest values, plot with axes, table.
    pub(crate) fn render(&self) -> Markup {
        let top = self.top();
        let has_data = self.series.iter().any(|series| series.values.iter().flatten().any(|value| *value > 0.0));
        html! {
            figure.chart id={ "chart-" (self.id) } data-chart {
                figcaption.chart-head {
                    h3 { (self.title) }
                    output.chart-readout aria-hidden="true" {}
                }
                ul.legend { @for series in &self.series { (self.legend(series)) } }
                div.chart-box {
                    div.chart-y aria-hidden="true" {
                        span { (self.unit.axis(top)) }
                        span { (self.unit.axis(top / 2.0)) }
                        span { "0" }
                    }
                    div.chart-plot {
                        (self.plot(top))
                        @if !has_data { p.chart-empty { "Nothing in this time" } }
                    }
                    div.chart-x aria-hidden="true" { @for at in self.x_labels() { (self.x_label(at)) } }
                }
                (self.table())
            }
        }
    }

    fn legend(&self, series: &Series) -> Markup {
        let latest = series.values.iter().rev().flatten().next();
        html! {
            li {
                span class={ "swatch " (series.class) } {}
                (series.name)
                @if let Some(value) = latest { " " b { (self.unit.write(*value)) } }
            }
        }
    }

    fn plot(&self, top: f64) -> Markup {
        let (steps, bars) = (self.times.len().max(1), self.kind == Kind::Bars);
        let column = WIDTH / steps as f64;
        html! {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(self.label()) {
                @for part in 0..=2 {
                    @let y = HEIGHT * f64::from(part) / 2.0;
                    line.grid x1="0" x2=(WIDTH) y1=(y) y2=(y) {}
                }
                @if bars { (self.bars(top, column)) }
                @if self.kind == Kind::Stacked { (self.areas(top)) }
                @if self.kind == Kind::Lines {
                    @if let Some(first) = self.series.first() {
                        @for run in self.runs(&first.values, top) {
                            path class={ "area " (first.class) } d=(area_below(&run)) {}
                        }
                    }
                    @for series in self.series.iter().rev() {
                        @for run in self.runs(&series.values, top) {
                            path class={ "line " (series.class) } d=(line_through(&run)) {}
                        }
                    }
                }
                @for (index, at) in self.times.iter().enumerate() {
                    rect.hit x=(two(column * index as f64)) y="0" width=(two(column)) height=(HEIGHT) {
                        title { (self.tip(index, *at)) }
                    }
                }
            }
        }
    }

    fn bars(&self, top: f64, column: f64) -> Markup {
        let gap = column * 0.18;
        html! {
            @for (index, stack) in self.stacks().iter().enumerate() {
                @for (series, (from, to)) in self.series.iter().zip(stack) {
                    @if to > from {
                        rect class={ "bar " (series.class) } x=(two(column * index as f64 + gap / 2.0))
                            width=(two(column - gap)) y=(two(height_of(*to, top)))
                            height=(two(height_of(*from, top) - height_of(*to, top))) {}
                    }
                }
            }
        }
    }

    fn areas(&self, top: f64) -> Markup {
        let stacks = self.stacks();
        html! {
            @for (place, series) in self.series.iter().enumerate() {
                @let upper = stacks.iter().enumerate().map(|(i, stack)| (self.x(i), height_of(stack[place].1, top)));
                @let lower = stacks.iter().enumerate().rev().map(|(i, stack)| (self.x(i), height_of(stack[place].0, top)));
                @let around: Vec<(f64, f64)> = upper.chain(lower).collect();
                @if series.values.iter().flatten().any(|value| *value > 0.0) {
                    path class={ "stack " (series.class) } d={ (line_through(&around)) "Z" } {}
                }
            }
        }
    }

    /// For each step, from where to where each series reaches on top of those before it.
    fn stacks(&self) -> Vec<Vec<(f64, f64)>> {
        let stack = |index: usize| {
            let mut below = 0.0;
            let place = |series: &Series| {
                let from = below;
                below += series.values.get(index).copied().flatten().unwrap_or(0.0).max(0.0);
                (from, below)
            };
            self.series.iter().map(place).collect()
        };
        (0..self.times.len()).map(stack).collect()
    }

    /// The stretches of a series without a hole, as points of the plot.
    fn runs(&self, values: &[Option<f64>], top: f64) -> Vec<Vec<(f64, f64)>> {
        let points = values.iter().enumerate().map(|(i, v)| v.map(|value| (self.x(i), height_of(value, top))));
        let points: Vec<Option<(f64, f64)>> = points.collect();
        points
            .split(Option::is_none)
            .filter(|run| !run.is_empty())
            .map(|run| run.iter().flatten().copied().collect())
            .collect()
    }

    fn x(&self, index: usize) -> f64 {
        match self.times.len() {
            0 | 1 => WIDTH / 2.0,
            steps => WIDTH * index as f64 / (steps - 1) as f64,
        }
    }

    /// The number at the top of the axis: the first round one that is not below any value.
    fn top(&self) -> f64 {
        let highest = match self.kind {
            Kind::Lines => {
                self.series.iter().flat_map(|series| series.values.iter().flatten().copied()).fold(0.0, f64::max)
            }
            _ => self.stacks().iter().filter_map(|stack| stack.last()).map(|(_, to)| *to).fold(0.0, f64::max),
        };
        round_up(highest, self.unit == Unit::Jobs)
    }

    fn x_labels(&self) -> Vec<Timestamp> {
        let last = self.times.len().saturating_sub(1);
        let mut places = vec![0, last / 3, last * 2 / 3, last];
        places.dedup();
        places.into_iter().filter_map(|place| self.times.get(place).copied()).collect()
    }

    fn x_label(&self, at: Timestamp) -> Markup {
        let (text, format) = match self.step.saturating_mul(self.times.len() as u32).as_secs() {
            secs if secs > 2 * 86_400 => (words::day(at), "day"),
            secs if secs < 900 => (words::clock_seconds(at), "seconds"),
            _ => (words::clock(at), "minutes"),
        };
        html! { time datetime=(at) data-clock=(format) { (text) } }
    }

    fn tip(&self, index: usize, at: Timestamp) -> String {
        let mut tip = words::absolute(at);
        for series in &self.series {
            if let Some(value) = series.values.get(index).copied().flatten() {
                let _ = write!(tip, " · {} {}", series.name, self.unit.write(value));
            }
        }
        tip
    }

    /// What a screen reader says of the picture.
    fn label(&self) -> String {
        let mut label = format!("{}:", self.title);
        for series in &self.series {
            let latest = series.values.iter().rev().flatten().next();
            let _ = write!(label, " {} {},", series.name, latest.map_or("unknown".to_owned(), |v| self.unit.write(*v)));
        }
        label.trim_end_matches(',').to_owned()
    }

    fn table(&self) -> Markup {
        html! {
            details.chart-data {
                summary { "Table" }
                div.scroll {
                    table.plain {
                        thead { tr { th scope="col" { "From" } @for series in &self.series { th scope="col" { (series.name) } } } }
                        tbody {
                            @for (index, at) in self.times.iter().enumerate().rev() {
                                tr {
                                    th scope="row" { (words::absolute(*at)) }
                                    @for series in &self.series {
                                        td.num { (series.values.get(index).copied().flatten().map_or("–".to_owned(), |v| self.unit.write(v))) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One stretch of a job's life.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stretch {
    /// From when.
    pub(crate) from: Timestamp,
    /// Until when.
    pub(crate) to: Timestamp,
    /// The class that colours it: `s-…` of the stylesheet.
    pub(crate) class: &'static str,
    /// What it was, for the tip.
    pub(crate) what: String,
}

/// The life of a job as one bar, each stretch as wide as it took. Short ones stay visible.
pub(crate) fn lifeline(stretches: &[Stretch]) -> Markup {
    /// The least part of the bar that a stretch takes, so that a millisecond beside an hour can still be pointed at.
    const LEAST: f64 = WIDTH / 100.0;
    let total: f64 = stretches.iter().map(|part| part.to.since(part.from).as_secs_f64()).sum();
    let wide =
        |part: &Stretch| LEAST + if total > 0.0 { part.to.since(part.from).as_secs_f64() / total * WIDTH } else { 0.0 };
    let whole: f64 = stretches.iter().map(wide).sum::<f64>().max(1.0);
    let mut end = 0.0;
    let placed = stretches.iter().map(|part| {
        let (start, width) = (end, wide(part) / whole * WIDTH);
        end += width;
        (part, start, width)
    });
    html! {
        svg.lifeline viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label="The job's life" {
            @for (part, start, width) in placed {
                rect class=(part.class) x=(two(start)) y="0" width=(two((width - 1.0).max(0.5))) height="10" {
                    title { (part.what) " · " (words::duration(part.to.since(part.from))) }
                }
            }
        }
    }
}

/// Puts neighbours together until at most [`MAX_STEPS`] are left: how many go into one.
pub(crate) fn fold_by(steps: usize) -> usize {
    steps.div_ceil(MAX_STEPS).max(1)
}

fn height_of(value: f64, top: f64) -> f64 {
    HEIGHT - HEIGHT * (value / top).clamp(0.0, 1.0)
}

/// The next of 1, 2, 4 (or 5) times a power of ten, so that the middle of the axis is a plain number too.
fn round_up(value: f64, whole: bool) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return if whole { 2.0 } else { 1.0 };
    }
    let power = 10f64.powf(value.log10().floor());
    let rounded = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].map(|m| m * power).into_iter().find(|top| *top >= value * 0.999_999);
    let rounded = rounded.unwrap_or(10.0 * power);
    if whole { rounded.max(2.0) } else { rounded }
}

fn line_through(points: &[(f64, f64)]) -> String {
    let mut path = String::with_capacity(points.len() * 12);
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{} {}", if index == 0 { 'M' } else { 'L' }, two(*x), two(*y));
    }
    if points.len() == 1 {
        // A single point would be invisible: a short dash.
        path.push_str("h4");
    }
    path
}

fn area_below(points: &[(f64, f64)]) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return String::new() };
    format!("{}L{} {HEIGHT}L{} {HEIGHT}Z", line_through(points), two(last.0), two(first.0))
}

/// Two digits after the point are finer than a pixel.
fn two(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(kind: Kind, values: Vec<Vec<Option<f64>>>) -> Chart {
        let start = 1_800_000_000_000;
        let steps = values[0].len();
        let names = ["submitted", "succeeded", "failed"];
        let series = |(index, values)| Series { name: names[index], class: "k-submitted", values };
        Chart {
            id: "t",
            title: "Throughput",
            unit: Unit::PerSecond,
            kind,
            times: (0..steps).map(|i| Timestamp::from_millis(start + 10_000 * i as i64)).collect(),
            step: Duration::from_secs(10),
            series: values.into_iter().enumerate().map(series).collect(),
        }
    }

    #[test]
    fn a_line_breaks_where_nothing_was_measured() {
        let html =
            chart(Kind::Lines, vec![vec![Some(1.0), Some(2.0), None, Some(4.0), Some(3.0)]]).render().into_string();
        assert_eq!(html.matches("class=\"line").count(), 2);
        assert!(html.contains("submitted <b>3/s</b>"), "the legend has the latest value");
        assert!(html.contains("<td class=\"num\">–</td>"), "the table says that nothing was measured");
    }

    #[test]
    fn the_axis_ends_at_a_round_number_not_below_any_value() {
        let tops = [0.0, 0.3, 1.0, 3.0, 19.0, 61.0, 950.0].map(|value| round_up(value, false));
        assert_eq!(tops, [1.0, 0.4, 1.0, 4.0, 20.0, 80.0, 1_000.0]);
        assert_eq!(round_up(1.0, true), 2.0, "half a job is no label");
    }

    #[test]
    fn bars_and_areas_stand_on_each_other() {
        let stacks = chart(Kind::Bars, vec![vec![Some(1.0), None], vec![Some(2.0), Some(5.0)]]).stacks();
        assert_eq!(stacks, vec![vec![(0.0, 1.0), (1.0, 3.0)], vec![(0.0, 0.0), (0.0, 5.0)]]);
        let html = chart(Kind::Bars, vec![vec![Some(1.0), None], vec![Some(2.0), Some(5.0)]]).render().into_string();
        assert_eq!(html.matches("class=\"bar").count(), 3, "nothing is drawn for nothing");
    }

    #[test]
    fn an_empty_chart_says_so() {
        for kind in [Kind::Lines, Kind::Stacked, Kind::Bars] {
            let html = chart(kind, vec![vec![Some(0.0); 3]]).render().into_string();
            assert!(html.contains("Nothing in this time"), "{kind:?}");
            assert!(!html.contains("NaN") && !html.contains("inf"), "{kind:?}");
            let nothing = chart(kind, vec![vec![]]).render().into_string();
            assert!(!nothing.contains("NaN"), "{kind:?}");
        }
    }

    #[test]
    fn every_step_has_its_numbers_as_a_tip_and_as_a_row() {
        let html = chart(Kind::Stacked, vec![vec![Some(1.0); 4], vec![Some(2.5); 4]]).render().into_string();
        assert_eq!(html.matches("<title>").count(), 4);
        assert_eq!(html.matches("<th scope=\"row\">").count(), 4);
        assert!(html.contains("submitted 1/s · succeeded 2.5/s"));
    }

    #[test]
    fn a_millisecond_beside_an_hour_can_still_be_seen() {
        let at = |ms: i64| Timestamp::from_millis(1_800_000_000_000 + ms);
        let stretch = |from, to| Stretch { from: at(from), to: at(to), class: "s-running", what: "ran".into() };
        let html = lifeline(&[stretch(0, 1), stretch(1, 3_600_001)]).into_string();
        let first = html.split("width=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a width");
        assert!(first.parse::<f64>().expect("a number") > 3.0, "{first}");
        assert!(html.contains("ran · 1 ms"));
    }

    #[test]
    fn many_steps_are_folded() {
        assert_eq!([0, 30, 60, 61, 360, 1_440].map(fold_by), [1, 1, 1, 2, 6, 24]);
    }
}
