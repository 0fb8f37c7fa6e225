//! Charts as SVG, drawn on the server: lines, stacked areas, bars, and the lifeline of a job. Pure. Colours
//! come from the stylesheet by class, sizes from the page around them: nothing here carries a style.
//!
//! The plot is stretched to its box (`preserveAspectRatio="none"`), so labels are HTML around it and never distorted.
//! Every chart has its numbers as a table beside it, for screen readers and for who wants to copy them.

use std::fmt::Write as _;
use std::time::Duration;

use maud::{Markup, html};
use windlass_core::{JobId, MachineSlot, Status, Timestamp};

use super::urls::Urls;
use super::{components, format};

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
    /// When it is drawn: a step that ends later is not over, and is marked.
    pub(crate) now: Timestamp,
    /// Which jobs a click on a step leads to.
    pub(crate) leads_to: LeadsTo,
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
    /// Which jobs a click on it leads to, if not to those of its step.
    pub(crate) leads_to: Option<LeadsTo>,
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

/// Which jobs belong to a step of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadsTo {
    /// Those that were submitted then.
    Submitted,
    /// Those that ended then.
    Ended,
    /// Those of them that did not succeed.
    EndedBadly,
    /// Those that ended then, in this status.
    EndedAs(Status),
}

/// How far from the point of a line a click still means the line, of the height of the plot.
const NEAR: f64 = 8.0;

impl LeadsTo {
    /// How far the time in a job's id may lie behind the end of the step in which it was submitted.
    const SLACK: Duration = Duration::from_secs(10);

    /// The list of these jobs. It begins at the end of the step and not at the newest job, because a search looks at a
    /// bounded number of jobs and would not come as far back on a busy day.
    pub(crate) fn address(self, urls: &Urls, from: Timestamp, to: Timestamp, now: Timestamp) -> String {
        let filter = match self {
            LeadsTo::Submitted => format!("created>{from} created<{to}"),
            LeadsTo::Ended => format!("ended>{from} ended<{to}"),
            LeadsTo::EndedBadly => format!("ended>{from} ended<{to} -status:succeeded"),
            LeadsTo::EndedAs(status) => format!("ended>{from} ended<{to} status:{status}"),
        };
        let behind = to + LeadsTo::SLACK;
        let before = (behind < now).then(|| JobId::from_parts(behind, MachineSlot::FIRST, 0).to_string());
        urls.query("/jobs", &[("q", &filter), ("before", before.as_deref().unwrap_or_default())])
    }
}

/// How values become heights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// From 0 to this.
    Linear(f64),
    /// From one power of ten to another, with a line every so many: a p99 of seconds does not flatten a p50 of
    /// milliseconds.
    Log { low: i32, high: i32, stride: i32 },
}

impl Scale {
    /// Lines of a log axis, the lowest not counted: more cannot be labelled.
    const DECADES: i32 = 4;

    fn log(values: impl Iterator<Item = f64> + Clone) -> Scale {
        /// Nothing is measured finer than a microsecond.
        const LEAST: f64 = 1e-6;
        let known = values.filter(|value| value.is_finite() && *value > 0.0).map(|value| value.max(LEAST));
        let lowest = known.clone().fold(f64::INFINITY, f64::min);
        let highest = known.fold(0.0, f64::max);
        if highest == 0.0 {
            return Scale::Log { low: -3, high: 0, stride: 1 };
        }
        let low = (lowest * 1.000_001).log10().floor() as i32;
        let high = ((highest * 0.999_999).log10().ceil() as i32).max(low + 1);
        let stride = (high - low + Scale::DECADES - 1) / Scale::DECADES;
        // Whole strides, so that the lines are evenly apart.
        let low = high - (high - low + stride - 1) / stride * stride;
        Scale::Log { low, high, stride }
    }

    fn height(self, value: f64) -> f64 {
        let part = match self {
            Scale::Linear(top) => value / top,
            Scale::Log { low, high, .. } => (value.max(1e-12).log10() - f64::from(low)) / f64::from(high - low),
        };
        HEIGHT - HEIGHT * part.clamp(0.0, 1.0)
    }

    /// What stands beside the axis, from the top down, evenly apart.
    fn labels(self, unit: Unit) -> Vec<String> {
        match self {
            Scale::Linear(top) => vec![unit.axis(top), unit.axis(top / 2.0), "0".to_owned()],
            Scale::Log { low, high, stride } => {
                (low..=high).rev().step_by(stride.max(1) as usize).map(power_of_ten).collect()
            }
        }
    }
}

/// Ten to the power of this in seconds, in one unit.
fn power_of_ten(power: i32) -> String {
    let (power, unit) = match power {
        ..-3 => (power + 6, "µs"),
        -3..0 => (power + 3, "ms"),
        _ => (power, "s"),
    };
    format!("{} {unit}", 10f64.powi(power))
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
            Unit::PerSecond => format!("{}/s", format::short(value)),
            Unit::Jobs => format::short(value),
            Unit::Seconds => format::duration(Duration::from_secs_f64(value.clamp(0.0, 1e9))),
        }
    }

    fn axis(self, value: f64) -> String {
        if value == 0.0 { "0".to_owned() } else { self.write(value) }
    }
}

impl Chart {
    /// The figure: title, latest values, plot with axes, table.
    pub(crate) fn render(&self, urls: &Urls) -> Markup {
        let scale = self.scale();
        let has_data = self.series.iter().any(|series| series.values.iter().flatten().any(|value| *value > 0.0));
        html! {
            figure.chart id={ "chart-" (self.id) } data-chart {
                figcaption.chart-head {
                    h3 { (self.title) }
                    output.chart-readout aria-hidden="true" {}
                }
                ul.legend {
                    @for series in &self.series { (self.legend(series)) }
                    @if self.is_unfinished() { li.faint { span.swatch.so-far {} "in progress" } }
                }
                div.chart-box {
                    div.chart-y aria-hidden="true" { @for label in scale.labels(self.unit) { span { (label) } } }
                    div.chart-plot {
                        (self.plot(scale, urls))
                        @if !has_data { p.chart-empty { "No data in this time" } }
                    }
                    div.chart-x aria-hidden="true" { @for at in self.x_labels() { (self.x_label(at)) } }
                }
                (self.table(urls))
            }
        }
    }

    /// Whether the last step goes on. How many jobs are where is a state and no sum: the newest is as true as any.
    fn is_unfinished(&self) -> bool {
        self.kind != Kind::Stacked && self.times.last().is_some_and(|at| *at + self.step > self.now)
    }

    /// The last value that stands: that of a step that is not over would look like a fall.
    fn latest(&self, series: &Series) -> Option<f64> {
        let over = if self.is_unfinished() { self.times.len().saturating_sub(1) } else { self.times.len() };
        series.values.iter().take(over).rev().flatten().next().copied()
    }

    fn address(&self, urls: &Urls, from: Timestamp) -> String {
        self.leads_to.address(urls, from, from + self.step, self.now)
    }

    fn legend(&self, series: &Series) -> Markup {
        html! {
            li {
                span class={ "swatch " (series.class) } {}
                (series.name)
                @if let Some(value) = self.latest(series) { " " b { (self.unit.write(value)) } }
            }
        }
    }

    fn plot(&self, scale: Scale, urls: &Urls) -> Markup {
        let (steps, bars) = (self.times.len().max(1), self.kind == Kind::Bars);
        let column = WIDTH / steps as f64;
        let lines = scale.labels(self.unit).len().saturating_sub(1).max(1);
        html! {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(self.label()) {
                @for line in 0..=lines {
                    @let y = two(HEIGHT * line as f64 / lines as f64);
                    line.grid x1="0" x2=(WIDTH) y1=(y) y2=(y) {}
                }
                @if self.is_unfinished() {
                    rect.so-far x=(two(WIDTH - column)) y="0" width=(two(column)) height=(HEIGHT) {}
                }
                @if bars { (self.bars(scale, column)) }
                @if self.kind == Kind::Stacked { (self.areas(scale)) }
                @if self.kind == Kind::Lines { (self.lines(scale)) }
                @for (index, at) in self.times.iter().enumerate() {
                    // The rows of the table are the way for the keyboard: hundreds of stops would be none.
                    a href=(self.address(urls, *at)) tabindex="-1" {
                        rect.hit data-at=(at) x=(two(column * index as f64)) y="0" width=(two(column)) height=(HEIGHT) {
                            title { (self.tip(index, *at)) }
                        }
                    }
                    (self.own_hits(scale, column, urls, index, *at))
                }
            }
        }
    }

    /// Over a step, what leads elsewhere than the step itself: the part of a bar, or the way around the point of a line.
    fn own_hits(&self, scale: Scale, column: f64, urls: &Urls, index: usize, at: Timestamp) -> Markup {
        let stacks = self.stacks();
        html! {
            @for (place, series) in self.series.iter().enumerate() {
                @let value = series.values.get(index).copied().flatten().filter(|value| *value > 0.0);
                @if let (Some(leads_to), Some(value)) = (series.leads_to, value) {
                    @let (from, to) = match self.kind {
                        Kind::Lines => (scale.height(value) + NEAR, scale.height(value) - NEAR),
                        _ => (scale.height(stacks[index][place].0), scale.height(stacks[index][place].1)),
                    };
                    a href=(leads_to.address(urls, at, at + self.step, self.now)) tabindex="-1" {
                        rect.hit data-at=(at) x=(two(column * index as f64)) y=(two(to)) width=(two(column)) height=(two(from - to)) {
                            title { (self.tip(index, at)) }
                        }
                    }
                }
            }
        }
    }

    /// A line for each series, dashed into a step that is not over; below the first a tinted area, where the axis begins
    /// at nothing.
    fn lines(&self, scale: Scale) -> Markup {
        let last = self.times.len().saturating_sub(1);
        let over = if self.is_unfinished() { last } else { self.times.len() };
        let so_far = |series: &Series| {
            let from = last.saturating_sub(1);
            let points = (from..=last).filter_map(|at| Some((self.x(at), scale.height((*series.values.get(at)?)?))));
            points.collect::<Vec<_>>()
        };
        html! {
            @if let (Scale::Linear(_), Some(first)) = (scale, self.series.first()) {
                @for run in self.runs(&first.values[..over.min(first.values.len())], scale) {
                    path class={ "area " (first.class) } d=(area_below(&run)) {}
                }
            }
            @for series in self.series.iter().rev() {
                @for run in self.runs(&series.values[..over.min(series.values.len())], scale) {
                    path class={ "line " (series.class) } d=(line_through(&run)) {}
                }
                @if self.is_unfinished() && series.values.get(last).is_some_and(Option::is_some) {
                    path class={ "line so-far " (series.class) } d=(line_through(&so_far(series))) {}
                }
            }
        }
    }

    fn bars(&self, scale: Scale, column: f64) -> Markup {
        let gap = column * 0.18;
        let unfinished = self.times.len().checked_sub(1).filter(|_| self.is_unfinished());
        html! {
            @for (index, stack) in self.stacks().iter().enumerate() {
                @for (series, (from, to)) in self.series.iter().zip(stack) {
                    @if to > from {
                        rect class={ "bar " (series.class) @if unfinished == Some(index) { " so-far" } }
                            x=(two(column * index as f64 + gap / 2.0)) width=(two(column - gap))
                            y=(two(scale.height(*to))) height=(two(scale.height(*from) - scale.height(*to))) {}
                    }
                }
            }
        }
    }

    fn areas(&self, scale: Scale) -> Markup {
        let stacks = self.stacks();
        html! {
            @for (place, series) in self.series.iter().enumerate() {
                @let upper = stacks.iter().enumerate().map(|(i, stack)| (self.x(i), scale.height(stack[place].1)));
                @let lower = stacks.iter().enumerate().rev().map(|(i, stack)| (self.x(i), scale.height(stack[place].0)));
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
    fn runs(&self, values: &[Option<f64>], scale: Scale) -> Vec<Vec<(f64, f64)>> {
        let points = values.iter().enumerate().map(|(i, v)| v.map(|value| (self.x(i), scale.height(value))));
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

    /// The axis: times by powers of ten, everything else up to the first round number that is not below any value.
    fn scale(&self) -> Scale {
        if self.unit == Unit::Seconds {
            return Scale::log(self.series.iter().flat_map(|series| series.values.iter().flatten().copied()));
        }
        let highest = match self.kind {
            Kind::Lines => {
                self.series.iter().flat_map(|series| series.values.iter().flatten().copied()).fold(0.0, f64::max)
            }
            _ => self.stacks().iter().filter_map(|stack| stack.last()).map(|(_, to)| *to).fold(0.0, f64::max),
        };
        Scale::Linear(round_up(highest, self.unit == Unit::Jobs))
    }

    fn x_labels(&self) -> Vec<Timestamp> {
        let last = self.times.len().saturating_sub(1);
        let mut places = vec![0, last / 3, last * 2 / 3, last];
        places.dedup();
        places.into_iter().filter_map(|place| self.times.get(place).copied()).collect()
    }

    fn x_label(&self, at: Timestamp) -> Markup {
        let (text, format) = match self.step.saturating_mul(self.times.len() as u32).as_secs() {
            secs if secs > 2 * 86_400 => (format::day(at), "day"),
            secs if secs < 900 => (format::clock_seconds(at), "seconds"),
            _ => (format::clock(at), "minutes"),
        };
        html! { time datetime=(at) data-clock=(format) { (text) } }
    }

    fn is_so_far(&self, index: usize) -> bool {
        index + 1 == self.times.len() && self.is_unfinished()
    }

    /// Begins with the time, which the script writes in the zone of the page.
    fn tip(&self, index: usize, at: Timestamp) -> String {
        let mut tip = format::absolute(at);
        if self.is_so_far(index) {
            tip.push_str(" · so far");
        }
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
            let latest = self.latest(series).map_or("unknown".to_owned(), |value| self.unit.write(value));
            let _ = write!(label, " {} {latest},", series.name);
        }
        label.trim_end_matches(',').to_owned()
    }

    fn table(&self, urls: &Urls) -> Markup {
        html! {
            details.chart-data {
                summary { "Table" }
                div.scroll {
                    table.plain {
                        thead { tr { th scope="col" { "From" } @for series in &self.series { th scope="col" { (series.name) } } } }
                        tbody {
                            @for (index, at) in self.times.iter().enumerate().rev() {
                                tr {
                                    th scope="row" {
                                        a href=(self.address(urls, *at)) { (components::clock(*at)) }
                                        @if self.is_so_far(index) { " so far" }
                                    }
                                    @for series in &self.series {
                                        @let value = series.values.get(index).copied().flatten();
                                        @let text = value.map_or("–".to_owned(), |v| self.unit.write(v));
                                        td.num {
                                            @match series.leads_to.filter(|_| value.is_some_and(|value| value > 0.0)) {
                                                Some(leads_to) => a href=(leads_to.address(urls, *at, *at + self.step, self.now)) { (text) },
                                                None => (text),
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
                    title { (part.what) " · " (format::duration(part.to.since(part.from))) }
                }
            }
        }
    }
}

/// Puts neighbours together until at most [`MAX_STEPS`] are left: how many go into one.
pub(crate) fn fold_by(steps: usize) -> usize {
    steps.div_ceil(MAX_STEPS).max(1)
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
        let series = |(index, values)| Series { name: names[index], class: "k-submitted", values, leads_to: None };
        Chart {
            id: "t",
            title: "Throughput",
            unit: Unit::PerSecond,
            kind,
            times: (0..steps).map(|i| Timestamp::from_millis(start + 10_000 * i as i64)).collect(),
            step: Duration::from_secs(10),
            now: Timestamp::from_millis(start + 10_000 * steps as i64),
            leads_to: LeadsTo::Submitted,
            series: values.into_iter().enumerate().map(series).collect(),
        }
    }

    fn shown(chart: &Chart) -> String {
        chart.render(&Urls::new("/ops")).into_string()
    }

    /// The last step is not over: its line is dashed, its bar pale, and no number of it stands in the legend.
    #[test]
    fn a_step_that_is_not_over_is_marked() {
        for kind in [Kind::Lines, Kind::Bars] {
            let mut chart = chart(kind, vec![vec![Some(8.0), Some(9.0), Some(1.0)]]);
            assert!(!shown(&chart).contains("so-far") && shown(&chart).contains("<b>1/s</b>"), "{kind:?}");
            chart.now = chart.now - Duration::from_secs(4);
            let html = shown(&chart);
            assert!(html.contains("in progress") && html.contains("<b>9/s</b>"), "{kind:?}: {html}");
            let mark = if kind == Kind::Lines { "line so-far" } else { "k-submitted so-far" };
            assert_eq!(html.matches(mark).count(), 1, "{kind:?}");
            assert!(html.contains(" · so far · submitted 1/s") && html.contains("</a> so far</th>"), "{kind:?}");
        }
    }

    /// A tail of seconds leaves the middle of milliseconds visible.
    #[test]
    fn times_stand_on_an_axis_of_powers_of_ten() {
        let mut chart = chart(Kind::Lines, vec![vec![Some(0.002); 3], vec![Some(40.0); 3]]);
        chart.unit = Unit::Seconds;
        assert_eq!(chart.scale(), Scale::Log { low: -4, high: 2, stride: 2 });
        assert_eq!(chart.scale().labels(Unit::Seconds), ["100 s", "1 s", "10 ms", "100 µs"]);
        let (p50, p99) = (chart.scale().height(0.002), chart.scale().height(40.0));
        assert!(HEIGHT - p50 > HEIGHT / 6.0 && p99 > 0.0 && p50 - p99 > HEIGHT / 3.0, "{p50} {p99}");
        let of = |values: &[f64]| Scale::log(values.iter().copied());
        assert_eq!(of(&[]), Scale::Log { low: -3, high: 0, stride: 1 });
        assert_eq!(of(&[0.01]), Scale::Log { low: -2, high: -1, stride: 1 });
        assert_eq!(of(&[0.0, 0.001, 1.0]), Scale::Log { low: -3, high: 0, stride: 1 });
    }

    /// A click leads to the jobs of its step, and the table has the same links for the keyboard.
    #[test]
    fn every_step_leads_to_its_jobs() {
        let mut chart = chart(Kind::Lines, vec![vec![Some(1.0); 3]]);
        let link = "/ops/jobs?q=created%3E2027-01-15T08%3A00%3A00Z%20created%3C2027-01-15T08%3A00%3A10Z&amp;before=";
        let html = shown(&chart);
        assert_eq!(html.matches(link).count(), 2, "{html}");
        assert_eq!(html.matches("href=\"/ops/jobs?q=").count(), 6);
        assert!(!html.contains("20Z&amp;before="), "the newest step begins at the newest job: {html}");
        chart.leads_to = LeadsTo::EndedBadly;
        assert!(shown(&chart).contains("ended%3C2027-01-15T08%3A00%3A10Z%20-status%3Asucceeded"));
    }

    /// API-5: what is drawn of one kind of jobs leads to these, in the picture and in the table.
    #[test]
    fn a_series_leads_to_the_jobs_that_it_shows() {
        for kind in [Kind::Lines, Kind::Bars] {
            let mut chart = chart(kind, vec![vec![Some(1.0), Some(0.0)], vec![Some(2.0), None]]);
            chart.series[0].leads_to = Some(LeadsTo::EndedAs(Status::Canceled));
            chart.series[1].leads_to = Some(LeadsTo::EndedAs(Status::Succeeded));
            let html = shown(&chart);
            assert_eq!(html.matches("10Z%20status%3Acanceled\"").count(), 2, "{kind:?}: {html}");
            assert_eq!(html.matches("10Z%20status%3Asucceeded\"").count(), 2, "{kind:?}: {html}");
            assert_eq!(html.matches("href=").count(), 8, "nothing is nowhere to go: {kind:?}: {html}");
        }
    }

    #[test]
    fn a_line_breaks_where_nothing_was_measured() {
        let html = shown(&chart(Kind::Lines, vec![vec![Some(1.0), Some(2.0), None, Some(4.0), Some(3.0)]]));
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
        let html = shown(&chart(Kind::Bars, vec![vec![Some(1.0), None], vec![Some(2.0), Some(5.0)]]));
        assert_eq!(html.matches("class=\"bar").count(), 3, "nothing is drawn for nothing");
    }

    #[test]
    fn an_empty_chart_says_so() {
        for kind in [Kind::Lines, Kind::Stacked, Kind::Bars] {
            let html = shown(&chart(kind, vec![vec![Some(0.0); 3]]));
            assert!(html.contains("No data in this time"), "{kind:?}");
            assert!(!html.contains("NaN") && !html.contains("inf"), "{kind:?}");
            let nothing = shown(&chart(kind, vec![vec![]]));
            assert!(!nothing.contains("NaN"), "{kind:?}");
        }
    }

    #[test]
    fn every_step_has_its_numbers_as_a_tip_and_as_a_row() {
        let html = shown(&chart(Kind::Stacked, vec![vec![Some(1.0); 4], vec![Some(2.5); 4]]));
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
