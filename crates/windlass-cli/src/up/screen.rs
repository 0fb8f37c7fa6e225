//! The picture that `up` draws: counts, throughput, long jobs with their bars, and what ended lately. Drawn in place
//! with a few escape codes, cut to the terminal's width and height but for its link and hints. Reads the store; never changes anything.

use console::{Style, Term, measure_text_width, truncate_str};
use windlass::store::Counts;
use windlass::{JobFilter, JobId, JobRecord, JobService, OperatorRight, Page, Scope, Status};

use super::LogLines;
use super::reach::Hint;
use crate::args::UpArgs;
use crate::connect::Place;
use crate::error::Result;
use crate::output::{Out, plain, status_style};
use windlass::text::show_duration;

/// Long jobs with a bar of their own.
const BARS: usize = 2;
/// What one count takes: its name, seven digits and space around.
const COUNT_COLUMNS: usize = 25;
/// Columns of a progress bar on a wide terminal; a narrow one gets what is left.
const BAR_COLUMNS: usize = 30;
/// No line is longer than this, however wide the terminal: the eye would lose it.
const WIDEST: usize = 110;
/// What stands above the link.
const DASHBOARD: &str = "Dashboard, with a link that works once (`login`, see below, prints another):";

/// What does not change while it runs.
pub(super) struct Picture {
    database: String,
    link: String,
    hints: Vec<Hint>,
    concurrency: u16,
    log: LogLines,
}

impl Picture {
    pub(super) fn new(place: &Place, link: &str, hints: Vec<Hint>, args: &UpArgs, log: LogLines) -> Picture {
        Picture { database: place.describe(), link: link.to_owned(), hints, concurrency: args.concurrency, log }
    }
}

/// What is drawn.
pub(super) struct Seen {
    counts: Counts,
    rate: f64,
    running: usize,
    long: Vec<JobRecord>,
    lately: Vec<JobRecord>,
    now: windlass::Timestamp,
}

/// Looks at the store for one picture.
pub(super) async fn look(service: &JobService, lately: &[JobId], counts: Counts, rate: f64) -> Result<Seen> {
    let running = JobFilter::all().status(Status::Running);
    let running = service.operator(OperatorRight::assume()).list(&running, Page::first(Page::MAX)).await?;
    let long = running.iter().filter(|job| job.progress.is_some()).rev().take(BARS).cloned().collect();
    let found = service.store().get(Scope::All(OperatorRight::assume()), lately).await?;
    // In the order in which they were heard of, which the store does not keep.
    let lately = lately.iter().filter_map(|id| found.iter().find(|job| job.id == *id).cloned()).collect();
    Ok(Seen { counts, rate, running: service.running(), long, lately, now: service.now() })
}

/// A terminal being drawn on.
pub(super) struct Screen<'a> {
    picture: Picture,
    out: &'a Out,
    term: Term,
    drawn: usize,
    size: (u16, u16),
}

impl<'a> Screen<'a> {
    pub(super) fn new(picture: Picture, out: &'a Out) -> Screen<'a> {
        let term = Term::buffered_stdout();
        let _ = term.hide_cursor();
        Screen { picture, out, size: term.size(), term, drawn: 0 }
    }

    /// Replaces the last picture.
    pub(super) fn draw(&mut self, seen: &Seen) -> Result {
        let size @ (height, columns) = self.term.size();
        // The last column stays free: some terminals wrap when it is used.
        let width = usize::from(columns.max(20)).saturating_sub(1).min(WIDEST);
        let lines = self.lines(seen, width, usize::from(height.max(4)).saturating_sub(1));
        let mut text = String::new();
        if size != self.size {
            // The terminal has wrapped the old picture anew, so nobody knows where it begins.
            self.size = size;
            text.push_str("\x1b[2J\x1b[H");
        } else if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A\r", self.drawn));
        }
        for line in &lines {
            // Cleared after writing, not before: an empty moment would flicker.
            text.push_str(line);
            text.push_str("\x1b[K\n");
        }
        text.push_str("\x1b[J");
        self.drawn = lines.iter().map(|line| rows(line, columns.into())).sum();
        self.term.write_str(&text)?;
        Ok(self.term.flush()?)
    }

    /// Leaves the last picture standing, without the `^C` that the terminal has put under it.
    pub(super) fn close(self) -> Result {
        self.term.write_str("\r\x1b[K")?;
        Ok(self.term.flush()?)
    }

    /// The picture in at most `height` rows: the link and the hints stay whole, what happens gets the room between.
    fn lines(&self, seen: &Seen, width: usize, height: usize) -> Vec<String> {
        let dim = |text: &str| self.out.paint(&Style::new().dim(), text);
        let heading = |text: &str| self.out.paint(&Style::new().bold(), text);
        let cut = |line: String| truncate_str(&line, width, "…").into_owned();
        let name = self.out.paint(&Style::new().bold().cyan(), "windlass");
        let shows_login = self.picture.hints.iter().any(|hint| matches!(hint, Hint::Command(_)));
        let mut top = vec![
            cut(format!("{name} {} on {}", env!("CARGO_PKG_VERSION"), self.picture.database)),
            cut(dim(if shows_login { DASHBOARD } else { "Dashboard, with a link that works once:" })),
            // Never cut: half a link opens nothing. On a line of its own, so that it seldom wraps.
            self.picture.link.clone(),
            String::new(),
        ];
        top.extend(self.counts(&seen.counts, width));
        top.push(cut(format!(
            "  {} jobs/s   {} of {} slots busy",
            self.out.paint(&Style::new().bold(), format_args!("{:>5.1}", seen.rate)),
            seen.running,
            self.picture.concurrency
        )));
        let mut bottom = vec![String::new()];
        bottom.extend(self.picture.hints.iter().flat_map(|hint| match hint {
            Hint::Words(words) => wrap(words, width).iter().map(|line| dim(line)).collect(),
            // As long as it is: the terminal wraps it, and copies it as one line.
            Hint::Command(command) => vec![format!("  {command}")],
        }));
        bottom.push(dim("Ctrl-C stops; after a restart it continues where it stopped."));
        let log = self.picture.log.lock();
        bottom.extend(log.iter().map(|line| cut(self.out.paint(&Style::new().yellow(), line))));

        let mut long = vec![String::new(), heading("Long jobs")];
        // Always the same height, so that what stands below does not jump.
        long.extend((0..BARS).map(|n| match seen.long.get(n) {
            Some(job) => cut(self.bar(job, width)),
            None if n == 0 => dim("  none at the moment"),
            None => String::new(),
        }));
        let mut lately = vec![String::new(), heading("Lately")];
        if seen.lately.is_empty() {
            lately.push(dim("  nothing yet"));
        }
        lately.extend(seen.lately.iter().map(|job| cut(self.job(job, seen.now))));
        let taken: usize = top.iter().chain(&bottom).map(|line| rows(line, width)).sum();
        let mut lines = top;
        lines.extend(share(long, lately, height.saturating_sub(taken)));
        lines.extend(bottom);
        // A picture higher than the terminal would scroll away and leave copies behind.
        lines.truncate(height);
        lines
    }

    /// The counts in columns, as many as fit but no more than three.
    fn counts(&self, counts: &Counts, width: usize) -> Vec<String> {
        let columns = (width / COUNT_COLUMNS).clamp(1, 3);
        let rows = Status::ALL.len().div_ceil(columns);
        let cell = |status: Status| {
            let count = counts.get(status);
            let style = if count == 0 { Style::new().dim() } else { status_style(status) };
            let count = self.out.paint(&style.clone().bold(), format_args!("{count:>7}"));
            format!("  {}{count}   ", self.out.paint(&style, format_args!("{:<13}", status.as_str())))
        };
        let row = |row: usize| Status::ALL.iter().skip(row).step_by(rows).map(|status| cell(*status)).collect();
        (0..rows).map(row).collect()
    }

    fn bar(&self, job: &JobRecord, width: usize) -> String {
        let Some(progress) = &job.progress else { return String::new() };
        let columns = BAR_COLUMNS.min(width.saturating_sub(40)).max(8);
        let full = (progress.percent / 100.0 * columns as f32).round() as usize;
        let done = self.out.paint(&Style::new().cyan(), "━".repeat(full.min(columns)));
        let rest = self.out.paint(&Style::new().dim(), "─".repeat(columns - full.min(columns)));
        let message = plain(&progress.message);
        format!("  {:<15} {done}{rest} {:>3.0} %  {message}", plain(&job.handler), progress.percent)
    }

    fn job(&self, job: &JobRecord, now: windlass::Timestamp) -> String {
        let took = match (job.started_at, job.finished_at) {
            (Some(started), Some(finished)) => show_duration(finished.since(started)),
            _ => String::new(),
        };
        let status = self.out.paint(&status_style(job.status), format_args!("{:<13}", job.status.as_str()));
        let attempt = if job.attempt > 1 { format!("attempt {}", job.attempt) } else { String::new() };
        let remark = match (&job.error, job.run_at) {
            (Some(error), Some(at)) if job.status == Status::Retrying => {
                format!("{}, again in {}", error.message, show_duration(at.since(now)))
            }
            (Some(error), _) if job.status != Status::Succeeded => error.message.clone(),
            _ => String::new(),
        };
        let handler = plain(&job.handler);
        format!("  {}  {handler:<15} {status} {took:>8}  {attempt:<10} {}", job.id, plain(&remark))
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self.term.show_cursor();
        let _ = self.term.flush();
    }
}

/// What fits of two lists below each other: the second gives way first, down to one entry, then the first goes.
fn share(mut first: Vec<String>, mut second: Vec<String>, room: usize) -> Vec<String> {
    /// A blank line, a heading and one entry.
    const LEAST: usize = 3;
    if first.len() + LEAST > room {
        first.clear();
    }
    second.truncate(room - first.len());
    if second.len() < LEAST {
        second.clear();
    }
    first.extend(second);
    first
}

/// The rows of a terminal that a line takes.
fn rows(line: &str, columns: usize) -> usize {
    measure_text_width(line).div_ceil(columns.max(1)).max(1)
}

/// A text in lines of this width, broken between words. A word that is longer has a line of its own, whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one at least");
        if line.is_empty() {
            line.push_str(word);
        } else if measure_text_width(line) + 1 + measure_text_width(word) <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_long_words_stay_whole() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("see http://a-long-link now", 8), ["see", "http://a-long-link", "now"]);
        assert_eq!((rows("", 10), rows("0123456789", 10), rows("0123456789a", 10)), (1, 1, 2));
    }

    #[test]
    fn what_happened_lately_gives_way_first() {
        let section = |name: &str, entries: usize| -> Vec<String> {
            let entries = (0..entries).map(|n| format!("{name} {n}"));
            [String::new(), name.to_owned()].into_iter().chain(entries).collect()
        };
        let lengths = |room| {
            let shared = share(section("long", 2), section("lately", 8), room);
            let count = |name: &str| shared.iter().filter(|line| line.starts_with(name)).count();
            (count("long"), count("lately"), shared.len() <= room)
        };
        assert_eq!(lengths(20), (3, 9, true));
        assert_eq!(lengths(10), (3, 5, true));
        assert_eq!(lengths(6), (0, 5, true), "one list that says something, not two that do not");
        assert_eq!(lengths(2), (0, 0, true));
    }
}
