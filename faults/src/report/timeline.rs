//! The picture of a row: a lane for each process, a bar for each attempt, a band for each fault, a mark for each broken
//! promise. Pure: from a history to the text of an SVG, which needs nothing else to be shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{RowResult, time};
use crate::event::{End, What};
use crate::history::History;

const WIDTH: f64 = 1400.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 24.0;
/// One line of bars.
const BAR: f64 = 9.0;
/// Bars of one process that run at once get lines of their own, so many at most; the rest share the last.
const LINES: usize = 8;
/// Bars closer than this are drawn as one, so that a lane of a hundred thousand attempts is still a picture.
const FINEST: f64 = 0.4;
/// Broken promises that are marked and listed; the report has all.
const MARKED: usize = 12;

/// What happened in a row, drawn.
pub fn timeline(row: &RowResult, history: &History) -> String {
    let scale = Scale::of(history);
    let lanes = lanes(history, &scale, &suspects(row));
    let faults = faults(history, &scale);
    let marks = marks(row, &scale);

    let head = 64.0;
    let labels = faults.iter().map(|fault| fault.line + 1).max().unwrap_or(0) as f64 * 14.0;
    let top = head + labels + 8.0;
    let mut tops = Vec::new();
    let mut bottom = top;
    for lane in &lanes {
        tops.push(bottom);
        bottom += lane.height();
    }
    let height = bottom + 44.0 + marks.len() as f64 * 17.0 + 34.0;

    let mut svg = String::new();
    let _ = write!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">{STYLE}"#
    );
    let _ = write!(svg, r#"<rect class="paper" width="{WIDTH}" height="{height}"/>"#);
    draw_head(&mut svg, row, history);
    draw_axis(&mut svg, &scale, top, bottom);
    draw_faults(&mut svg, &faults, head, top, bottom);
    for (lane, top) in lanes.iter().zip(&tops) {
        draw_lane(&mut svg, lane, *top);
    }
    draw_marks(&mut svg, &marks, top, bottom);
    draw_key(&mut svg, height - 14.0);
    svg.push_str("</svg>\n");
    svg
}

const STYLE: &str = "<style>\
text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#24292f}\
.paper{fill:#fff}.title{font-size:18px;font-weight:600}.bad{fill:#c1121f}.dim{fill:#6e7781}.small{font-size:11px}\
.grid{stroke:#eaeef2}.lane{stroke:#d0d7de}\
.band{fill:#e8a33d;fill-opacity:.16}.edge{stroke:#b36b00;stroke-opacity:.6}.fault{fill:#8a5200}\
.succeeded{fill:#2e8b57}.failed{fill:#e07b00}.snoozed{fill:#4a8fd9}.stopped{fill:#8c959f}.lost{fill:#c1121f;fill-opacity:.55}\
.suspect{stroke:#5b2a9d;stroke-width:1.6}.suspectname{fill:#5b2a9d;font-size:10px}\
.fenced{fill:#fff;stroke:#c1121f;stroke-width:1.4}.mark{stroke:#c1121f;stroke-width:1.4;stroke-dasharray:4 3}\
.flag{fill:#c1121f}.flagname{fill:#fff;font-size:10px;font-weight:600;text-anchor:middle}\
</style>";

// ---- what there is to draw

/// From moments to places.
struct Scale {
    from: u64,
    until: u64,
}

impl Scale {
    fn of(history: &History) -> Scale {
        let times = history.events.iter().map(|event| event.mono);
        let from = times.clone().min().unwrap_or(0);
        let until = times.max().unwrap_or(0).max(from + 1_000);
        Scale { from, until }
    }

    fn x(&self, at: u64) -> f64 {
        let part = (at.clamp(self.from, self.until) - self.from) as f64 / (self.until - self.from) as f64;
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }
}

/// A process.
struct Lane {
    name: String,
    /// From its first sign to its last.
    alive: (f64, f64),
    bars: Vec<Bar>,
    /// Where an end was refused because its fence was stale.
    fenced: Vec<f64>,
    lines: usize,
}

impl Lane {
    fn height(&self) -> f64 {
        (self.lines.max(2) as f64) * BAR + 10.0
    }
}

/// An attempt, or several too close to be told apart.
struct Bar {
    from: f64,
    until: f64,
    line: usize,
    how: &'static str,
    /// The job, if something is wrong with it.
    suspect: Option<i64>,
}

/// An attempt by its times.
struct Attempt {
    job: i64,
    from: u64,
    until: u64,
    how: &'static str,
}

fn suspects(row: &RowResult) -> BTreeSet<i64> {
    row.violations.iter().take(MARKED).filter_map(|violation| violation.job).collect()
}

/// A process while its events are read.
#[derive(Default)]
struct Signs {
    name: Option<String>,
    first: Option<u64>,
    last: u64,
    /// Attempts that have begun, by job and lease.
    running: BTreeMap<(i64, i64), u64>,
    attempts: Vec<Attempt>,
    fenced: Vec<f64>,
}

fn lanes(history: &History, scale: &Scale, suspects: &BTreeSet<i64>) -> Vec<Lane> {
    let mut signs: BTreeMap<u32, Signs> = BTreeMap::new();
    for event in &history.events {
        let signs = signs.entry(event.proc).or_default();
        signs.first.get_or_insert(event.mono);
        signs.last = event.mono;
        match &event.what {
            What::Up { role, pid } => signs.name = Some(format!("{} {role} · pid {pid}", event.proc)),
            What::Start { job, lease, .. } => {
                signs.running.insert((*job, *lease), event.mono);
            }
            What::End { job, lease, how, .. } => {
                let Some(from) = signs.running.remove(&(*job, *lease)) else { continue };
                let how = match how {
                    End::Succeeded => "succeeded",
                    End::Failed => "failed",
                    End::Snoozed => "snoozed",
                    End::Stopped => "stopped",
                };
                signs.attempts.push(Attempt { job: *job, from, until: event.mono, how });
            }
            What::FinishReply { replies, .. } if replies.iter().any(Option::is_none) => {
                signs.fenced.push(scale.x(event.mono));
            }
            _ => {}
        }
    }
    signs.into_iter().map(|(proc, signs)| lane(proc, signs, scale, suspects)).collect()
}

fn lane(proc: u32, signs: Signs, scale: &Scale, suspects: &BTreeSet<i64>) -> Lane {
    let Signs { name, first, last, running, mut attempts, mut fenced } = signs;
    // A handler that never returned: its process was killed, or the handler was stopped where it stood.
    attempts.extend(running.into_iter().map(|((job, _), from)| Attempt { job, from, until: last, how: "lost" }));
    attempts.sort_by_key(|attempt| attempt.from);
    fenced.dedup_by(|one, other| (*one - *other).abs() < 3.0);
    let (bars, lines) = pack(&attempts, scale, suspects);
    let name = name.unwrap_or_else(|| format!("process {proc}"));
    Lane { name, alive: (scale.x(first.unwrap_or(last)), scale.x(last)), bars, fenced, lines }
}

/// Puts attempts into as few lines as they need, and joins those too small to be told apart.
fn pack(attempts: &[Attempt], scale: &Scale, suspects: &BTreeSet<i64>) -> (Vec<Bar>, usize) {
    let mut free: Vec<u64> = Vec::new();
    let mut latest: BTreeMap<(usize, &'static str), usize> = BTreeMap::new();
    let mut bars: Vec<Bar> = Vec::new();
    for attempt in attempts {
        let line = match free.iter().position(|until| *until <= attempt.from) {
            Some(line) => line,
            None if free.len() < LINES => {
                free.push(0);
                free.len() - 1
            }
            None => LINES - 1,
        };
        free[line] = free[line].max(attempt.until);
        let (from, until) = (scale.x(attempt.from), scale.x(attempt.until));
        let suspect = suspects.contains(&attempt.job).then_some(attempt.job);
        let before = latest.get(&(line, attempt.how)).copied();
        if let Some(before) = before.map(|n| &mut bars[n])
            && suspect.is_none()
            && before.suspect.is_none()
            && from - before.until < FINEST
        {
            before.until = before.until.max(until);
            continue;
        }
        latest.insert((line, attempt.how), bars.len());
        bars.push(Bar { from, until, line, how: attempt.how, suspect });
    }
    (bars, free.len())
}

/// A fault, from when it was brought about to when it was healed.
struct Fault {
    name: String,
    from: f64,
    until: Option<f64>,
    /// The line of its name.
    line: usize,
}

fn faults(history: &History, scale: &Scale) -> Vec<Fault> {
    /// Names beyond so many lines are left out; their bands are there.
    const NAMES: usize = 6;
    let mut faults: Vec<(String, u64, Option<u64>)> = Vec::new();
    for event in &history.events {
        match &event.what {
            What::Fault { fault } => faults.push((fault.clone(), event.mono, None)),
            What::Healed { fault } => {
                let open = faults.iter_mut().rev().find(|(name, _, until)| name == fault && until.is_none());
                if let Some((_, _, until)) = open {
                    *until = Some(event.mono);
                }
            }
            _ => {}
        }
    }
    let mut ends = [f64::MIN; NAMES];
    let placed = faults.into_iter().map(|(name, from, until)| {
        let (from, until) = (scale.x(from), until.map(|until| scale.x(until)));
        let line = ends.iter().position(|end| *end <= from).unwrap_or(NAMES);
        if let Some(end) = ends.get_mut(line) {
            *end = from + name.chars().count() as f64 * 6.4 + 12.0;
        }
        Fault { name, from, until, line }
    });
    placed.collect()
}

/// A broken promise.
struct Mark {
    at: Option<f64>,
    invariant: &'static str,
    text: String,
}

fn marks(row: &RowResult, scale: &Scale) -> Vec<Mark> {
    let shown = row.violations.iter().take(MARKED);
    shown
        .map(|violation| Mark {
            at: violation.at.map(|at| scale.x(at)),
            invariant: violation.invariant,
            text: violation.text.clone(),
        })
        .collect()
}

// ---- drawing

fn draw_head(svg: &mut String, row: &RowResult, history: &History) {
    let (class, verdict) = match (row.passed, &row.waiting) {
        (_, Some(_)) => ("dim", "waiting".to_owned()),
        (true, _) => ("dim", "passed".to_owned()),
        (false, _) => match row.violations.len() {
            0 if row.error.is_some() => ("bad", "failed: it could not be run to its end".to_owned()),
            0 => ("bad", "failed: no promise broken, a criterion not met".to_owned()),
            1 => ("bad", "failed: 1 broken promise".to_owned()),
            n => ("bad", format!("failed: {n} broken promises")),
        },
    };
    let title = format!("{} on {} · {}", row.id, row.store, row.title);
    let _ = write!(svg, r#"<text class="title" x="12" y="26">{}</text>"#, escape(&short(&title, 120)));
    let facts = &row.facts;
    let line = format!(
        "seed {} · {} faults · {} jobs · {} attempts · {} recoveries · {} fenced · {}",
        row.seed,
        row.faults,
        facts.submitted,
        facts.started,
        facts.recoveries,
        facts.fenced,
        time(history.events.last().map_or(0, |last| last.mono - history.events[0].mono)),
    );
    let _ = write!(
        svg,
        r#"<text x="12" y="48"><tspan class="{class}" font-weight="600">{}</tspan><tspan class="dim" dx="10">{}</tspan></text>"#,
        escape(&verdict),
        escape(&line)
    );
}

fn draw_axis(svg: &mut String, scale: &Scale, top: f64, bottom: f64) {
    let span = (scale.until - scale.from) as f64 / 1e6;
    let step = tick(span);
    let mut at = 0.0;
    while at <= span {
        let x = scale.x(scale.from + (at * 1e6) as u64);
        let _ = write!(svg, r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#);
        let label = if step < 1.0 { format!("{at:.2} s") } else { format!("{at:.0} s") };
        let y = bottom + 16.0;
        let _ = write!(svg, r#"<text class="dim small" x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#);
        at += step;
    }
}

/// A round number of seconds that gives about ten ticks.
fn tick(span: f64) -> f64 {
    let rough = (span / 10.0).max(0.001);
    let ten = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| nice * ten >= rough);
    nice.unwrap_or(10.0) * ten
}

fn draw_faults(svg: &mut String, faults: &[Fault], head: f64, top: f64, bottom: f64) {
    for fault in faults {
        let from = fault.from;
        let label = head + fault.line as f64 * 14.0 + 10.0;
        let named = label + 2.0 <= top;
        let start = if named { label - 8.0 } else { top };
        if let Some(until) = fault.until {
            let (width, height) = ((until - from).max(1.0), bottom - top);
            let _ = write!(
                svg,
                r#"<rect class="band" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/>"#
            );
        }
        let _ = write!(svg, r#"<line class="edge" x1="{from:.1}" x2="{from:.1}" y1="{start:.1}" y2="{bottom:.1}"/>"#);
        if named {
            // A name at the right edge is written towards the left.
            let (x, anchor) = if from > WIDTH - 160.0 { (from - 4.0, "end") } else { (from + 4.0, "start") };
            let name = escape(&short(&fault.name, 40));
            let _ = write!(
                svg,
                r#"<text class="fault small" x="{x:.1}" y="{label:.1}" text-anchor="{anchor}">{name}</text>"#
            );
        }
    }
}

fn draw_lane(svg: &mut String, lane: &Lane, top: f64) {
    let (height, middle) = (lane.height(), top + lane.height() / 2.0 + 4.0);
    let right = WIDTH - RIGHT;
    let _ = write!(svg, r#"<line class="lane" x1="12" x2="{right}" y1="{top:.1}" y2="{top:.1}"/>"#);
    let name = escape(&short(&lane.name, 23));
    let _ = write!(svg, r#"<text class="small" x="12" y="{middle:.1}">{name}</text>"#);
    let (from, until) = lane.alive;
    let line = top + height - 2.0;
    let _ = write!(
        svg,
        r##"<line stroke="#8c959f" stroke-width="2" x1="{from:.1}" x2="{until:.1}" y1="{line:.1}" y2="{line:.1}"/>"##
    );
    for bar in &lane.bars {
        let y = top + 4.0 + bar.line as f64 * BAR;
        let (x, width, tall) = (bar.from, (bar.until - bar.from).max(0.8), BAR - 2.0);
        let class = bar.how;
        let suspect = if bar.suspect.is_some() { " suspect" } else { "" };
        let _ =
            write!(svg, r#"<rect class="{class}{suspect}" x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{tall}"/>"#);
        if let Some(job) = bar.suspect {
            let (x, y) = (bar.until + 4.0, y + tall);
            let _ = write!(svg, r#"<text class="suspectname" x="{x:.1}" y="{y:.1}">{job}</text>"#);
        }
    }
    for x in &lane.fenced {
        let _ = write!(svg, r#"<circle class="fenced" cx="{x:.1}" cy="{line:.1}" r="3.2"/>"#);
    }
}

fn draw_marks(svg: &mut String, marks: &[Mark], top: f64, bottom: f64) {
    for (n, mark) in marks.iter().enumerate() {
        let y = bottom + 44.0 + n as f64 * 17.0;
        let text = escape(&short(&mark.text, 190));
        let name = mark.invariant;
        let _ = write!(
            svg,
            r#"<text class="small" x="12" y="{y:.1}"><tspan class="bad" font-weight="600">{name}</tspan><tspan dx="8">{text}</tspan></text>"#
        );
        let Some(x) = mark.at else { continue };
        let _ = write!(svg, r#"<line class="mark" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#);
        let (left, flag, base) = (x - 13.0, top - 8.0, top + 4.0);
        let _ = write!(svg, r#"<rect class="flag" x="{left:.1}" y="{flag:.1}" width="26" height="15" rx="3"/>"#);
        let _ = write!(svg, r#"<text class="flagname" x="{x:.1}" y="{base:.1}">{name}</text>"#);
    }
}

fn draw_key(svg: &mut String, y: f64) {
    let mut x = 12.0;
    let classes = [
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("snoozed", "snoozed"),
        ("stopped", "stopped on request"),
        ("lost", "never returned"),
        ("band", "fault"),
    ];
    for (class, name) in classes {
        let (box_y, text_x) = (y - 9.0, x + 16.0);
        let _ = write!(svg, r#"<rect class="{class}" x="{x:.1}" y="{box_y:.1}" width="12" height="10"/>"#);
        let _ = write!(svg, r#"<text class="dim small" x="{text_x:.1}" y="{y:.1}">{name}</text>"#);
        x = text_x + name.len() as f64 * 6.4 + 18.0;
    }
    let (middle, text_x) = (y - 4.0, x + 12.0);
    let _ = write!(svg, r#"<circle class="fenced" cx="{x:.1}" cy="{middle:.1}" r="3.2"/>"#);
    let _ =
        write!(svg, r#"<text class="dim small" x="{text_x:.1}" y="{y:.1}">an end refused: the fence was stale</text>"#);
}

fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut text: String = text.chars().take(most - 1).collect();
    text.push('…');
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
