//! The picture that `up` draws: counts, throughput, long jobs with their bars, and what ended lately. Drawn in place
//! with a few escape codes, cut to the terminal's width and height. Reads the store; never changes anything.

use console::{Style, Term, truncate_str};
use windlass::store::Counts;
use windlass::{JobFilter, JobId, JobRecord, JobService, OperatorRight, Page, Scope, Status};

use super::LogLines;
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

/// What does not change while it runs.
pub(super) struct Picture {
    database: String,
    link: String,
    hint: String,
    concurrency: u16,
    log: LogLines,
}

impl Picture {
    pub(super) fn new(place: &Place, link: &str, args: &UpArgs, log: LogLines) -> Picture {
        let (database, link) = (place.describe(), link.to_owned());
        Picture { database, link, hint: hint(place), concurrency: args.concurrency, log }
    }
}

/// How to look around from another terminal.
fn hint(place: &Place) -> String {
    let default = Place::in_directory(std::path::Path::new(crate::connect::DATA_DIR));
    let db = if *place == default { String::new() } else { format!(" --db {}", place.describe()) };
    match place {
        Place::Memory => "Everything is in memory and gone when this ends.".to_owned(),
        _ => format!(
            "From another terminal: windlass{db} --all-tenants list\n\
             Likewise top, show ID, watch ID, cancel ID, failures list, dead replay --all, pause handler demo.flaky, doctor."
        ),
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
        let size @ (height, width) = self.term.size();
        // The last column stays free: some terminals wrap when it is used.
        let width = usize::from(width.max(20)).saturating_sub(1).min(WIDEST);
        let mut lines = self.lines(seen, width);
        // A picture higher than the terminal would scroll away and leave copies behind.
        lines.truncate(usize::from(height.max(4)).saturating_sub(1));
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
            text.push_str(&truncate_str(line, width, "…"));
            text.push_str("\x1b[K\n");
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        self.term.write_str(&text)?;
        Ok(self.term.flush()?)
    }

    /// Leaves the last picture standing, without the `^C` that the terminal has put under it.
    pub(super) fn close(self) -> Result {
        self.term.write_str("\r\x1b[K")?;
        Ok(self.term.flush()?)
    }

    fn lines(&self, seen: &Seen, width: usize) -> Vec<String> {
        let dim = |text: &str| self.out.paint(&Style::new().dim(), text);
        let heading = |text: &str| self.out.paint(&Style::new().bold(), text);
        let mut lines = vec![
            format!(
                "{} {} on {}",
                self.out.paint(&Style::new().bold().cyan(), "windlass"),
                env!("CARGO_PKG_VERSION"),
                self.picture.database
            ),
            format!("{}  {}", dim("Dashboard, the link works once:"), self.picture.link),
            String::new(),
        ];
        lines.extend(self.counts(&seen.counts, width));
        lines.push(String::new());
        lines.push(format!(
            "  {} jobs/s   {} of {} slots busy",
            self.out.paint(&Style::new().bold(), format_args!("{:>5.1}", seen.rate)),
            seen.running,
            self.picture.concurrency
        ));
        lines.push(String::new());
        lines.push(heading("Long jobs"));
        // Always the same height, so that what stands below does not jump.
        lines.extend((0..BARS).map(|n| match seen.long.get(n) {
            Some(job) => self.bar(job, width),
            None if n == 0 => dim("  none at the moment"),
            None => String::new(),
        }));
        lines.push(String::new());
        lines.push(heading("Lately"));
        if seen.lately.is_empty() {
            lines.push(dim("  nothing yet"));
        }
        lines.extend(seen.lately.iter().map(|job| self.job(job, seen.now)));
        lines.push(String::new());
        lines.extend(self.picture.hint.lines().map(dim));
        lines.push(dim("Ctrl-C stops; started again, it goes on where it stopped."));
        lines.extend(self.picture.log.lock().iter().map(|line| self.out.paint(&Style::new().yellow(), line)));
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
