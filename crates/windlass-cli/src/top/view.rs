//! How `top` looks. Draws what `app` holds; changes nothing but what scrolls.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState, Tabs, Wrap};
use windlass::text::{show_duration, show_time};
use windlass::{JobRecord, Status};

use super::app::{App, Asked, Detail, Over, View};
use crate::commands::jobs::attempts;
use crate::output::plain;

/// Columns of the bar of a running job.
const BAR: usize = 12;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
    draw_head(frame, app, head);
    match app.view {
        View::Overview => draw_overview(frame, app, body),
        View::Jobs => draw_jobs(frame, app, body),
        View::Failures => draw_failures(frame, app, body),
        View::Nodes => draw_nodes(frame, app, body),
    }
    draw_foot(frame, app, foot);
    match &app.over {
        Over::Nothing => {}
        Over::Help => draw_over(frame, "Keys", help(), 60),
        Over::Sure(asked) => draw_over(frame, "Sure?", Text::from(question(*asked)), 60),
        Over::Job(detail) => draw_over(frame, "Job", describe(detail, app.color), 110),
    }
}

fn draw_head(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let [left, right] = Layout::horizontal([Constraint::Min(20), Constraint::Length(34)]).areas(area);
    let whose = if app.all_tenants { ", every tenant" } else { "" };
    let title = Line::from(vec![
        Span::styled("windlass", paint(app.color, Color::Cyan).add_modifier(Modifier::BOLD)),
        Span::raw(format!(" {}{whose}", app.place)),
    ]);
    let names = View::ALL.iter().enumerate().map(|(n, view)| format!("{} {}", n + 1, view.name()));
    let at = View::ALL.iter().position(|view| *view == app.view).unwrap_or(0);
    let [top, bottom] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(left);
    frame.render_widget(title, top);
    let highlight = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
    frame.render_widget(Tabs::new(names).select(at).highlight_style(highlight).divider(" "), bottom);
    let state = if app.paused { "paused, p resumes" } else { "" };
    let clock = format!("{state}  {}", show_time(app.seen.now));
    frame.render_widget(Paragraph::new(clock).alignment(Alignment::Right), right);
}

fn draw_foot(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let line = match &app.message {
        Some(Ok(text)) => Line::styled(plain(text), paint(app.color, Color::Green)),
        Some(Err(text)) => Line::styled(format!("error: {}", plain(text)), paint(app.color, Color::Red)),
        None => Line::styled(
            "1-4 view  j/k line  Enter show  c cancel  r retry  p pause  ? keys  q quit",
            Style::new().dim(),
        ),
    };
    frame.render_widget(line, area);
}

fn draw_overview(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let height = Status::ALL.len() as u16 + 2;
    let [top, bottom] = Layout::vertical([Constraint::Length(height), Constraint::Min(4)]).areas(area);
    let [left, right] = Layout::horizontal([Constraint::Length(30), Constraint::Min(20)]).areas(top);
    let counts = Status::ALL.map(|status| {
        let count = app.seen.counts.get(status);
        let style = if count == 0 { Style::new().dim() } else { status_style(app.color, status) };
        Row::new(vec![Cell::new(status.as_str()), Cell::new(Text::from(count.to_string()).right_aligned())])
            .style(style)
    });
    let table = Table::new(counts, [Constraint::Min(13), Constraint::Length(12)]).block(block("Jobs"));
    frame.render_widget(table, left);
    draw_rates(frame, app, right);
    let columns = [Constraint::Length(20), Constraint::Length(24), Constraint::Length(10), Constraint::Min(30)];
    let rows = app.seen.running.iter().map(|job| {
        let ran = job.started_at.map(|at| show_duration(app.seen.now.since(at))).unwrap_or_default();
        Row::new(vec![job.id.to_string(), plain(&job.handler), ran, bar(job)])
    });
    let title = format!("Running, {}", app.seen.counts.get(Status::Running));
    draw_table(frame, app, bottom, &title, ["JOB", "HANDLER", "FOR", "PROGRESS"], &columns, rows.collect());
}

fn draw_rates(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let inner = block("Per second").inner(area);
    frame.render_widget(block("Per second"), area);
    let [numbers, line] = Layout::vertical([Constraint::Length(4), Constraint::Min(1)]).areas(inner);
    let rate = |name: &str, status: Status| {
        let rate = format!("{:>9.1} ", app.rate(status));
        Line::from(vec![Span::styled(rate, status_style(app.color, status)), Span::raw(name.to_owned())])
    };
    let waiting = app.seen.backlog.iter().max_by_key(|backlog| backlog.oldest_wait_ms);
    let oldest = waiting.filter(|backlog| backlog.waiting > 0).map(|backlog| {
        let wait = show_duration(std::time::Duration::from_millis(backlog.oldest_wait_ms));
        Line::raw(format!("  oldest waits {wait}: {}", plain(&backlog.handler)))
    });
    let mut lines = vec![
        rate("succeeded", Status::Succeeded),
        rate("dead-lettered", Status::DeadLettered),
        rate("canceled", Status::Canceled),
    ];
    let blocked = app.seen.counts.get(Status::Blocked);
    lines.extend(oldest.or_else(|| (blocked > 0).then(|| Line::raw(format!("  nothing waits, {blocked} blocked")))));
    frame.render_widget(Paragraph::new(lines), numbers);
    let throughput = app.throughput();
    let shown = throughput.len().min(line.width as usize);
    let sparkline = Sparkline::default().data(&throughput[throughput.len() - shown..]);
    frame.render_widget(sparkline.style(paint(app.color, Color::Cyan)), line);
}

fn draw_jobs(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let columns = [
        Constraint::Length(20),
        Constraint::Length(24),
        Constraint::Length(14),
        Constraint::Length(4),
        Constraint::Length(10),
        Constraint::Min(20),
    ];
    let rows = app.seen.recent.iter().map(|job| {
        let remark = match (&job.error, &job.reason) {
            _ if job.status == Status::Running => bar(job),
            (Some(error), _) if job.status != Status::Succeeded => error.to_string(),
            (_, reason) => reason.clone().unwrap_or_default(),
        };
        let age = show_duration(app.seen.now.since(job.created_at));
        Row::new(vec![
            Cell::new(job.id.to_string()),
            Cell::new(plain(&job.handler)),
            Cell::new(job.status.as_str()).style(status_style(app.color, job.status)),
            Cell::new(job.attempt.to_string()),
            Cell::new(age),
            Cell::new(plain(&remark)),
        ])
    });
    let head = ["JOB", "HANDLER", "STATUS", "ATT", "AGE", "WHAT"];
    draw_table(frame, app, area, "Newest jobs", head, &columns, rows.collect());
}

fn draw_failures(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let columns = [
        Constraint::Length(16),
        Constraint::Length(20),
        Constraint::Length(14),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Min(20),
    ];
    let rows = app.seen.failures.iter().map(|group| {
        Row::new(vec![
            group.signature.to_string(),
            plain(&group.handler),
            plain(&group.code),
            group.dead.to_string(),
            group.retrying.to_string(),
            show_duration(app.seen.now.since(group.last_at)),
            plain(&group.message),
        ])
    });
    let head = ["SIGNATURE", "HANDLER", "CODE", "DEAD", "RETRY", "LAST", "WHAT WENT WRONG"];
    draw_table(frame, app, area, "Failures by cause", head, &columns, rows.collect());
}

fn draw_nodes(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let columns = [
        Constraint::Length(8),
        Constraint::Length(20),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(10),
        Constraint::Min(20),
    ];
    let rows = app.seen.nodes.iter().map(|node| {
        Row::new(vec![
            node.node.0.to_string(),
            plain(&node.info.host),
            node.info.pid.to_string(),
            format!("{}/{}", node.running, node.info.capacity),
            show_duration(app.seen.now.since(node.heartbeat_at)),
            plain(&node.info.handlers.join(", ")),
        ])
    });
    let head = ["NODE", "HOST", "PID", "RUNNING", "HEARD OF", "HANDLERS"];
    draw_table(frame, app, area, "Nodes", head, &columns, rows.collect());
}

fn draw_table<const N: usize>(
    frame: &mut Frame<'_>,
    app: &App,
    area: Rect,
    title: &str,
    head: [&'static str; N],
    columns: &[Constraint; N],
    rows: Vec<Row<'_>>,
) {
    if rows.is_empty() {
        return frame.render_widget(Paragraph::new("nothing").dim().block(block(title)), area);
    }
    let table = Table::new(rows, columns)
        .header(Row::new(head).style(Style::new().dim()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(block(title));
    let mut state = TableState::default().with_selected(Some(app.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

/// Something over the view, as large as it needs.
fn draw_over(frame: &mut Frame<'_>, title: &str, text: Text<'_>, width: u16) {
    let area = frame.area();
    let width = width.min(area.width.saturating_sub(2));
    let wrapped = |line: &Line<'_>| line.width().div_ceil(usize::from(width.saturating_sub(2)).max(1)).max(1);
    let height = text.lines.iter().map(wrapped).sum::<usize>() + 2;
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(area.height.saturating_sub(2));
    let over = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, over);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block(title)), over);
}

fn help() -> Text<'static> {
    Text::from(vec![
        Line::raw("1 2 3 4, Tab      choose a view"),
        Line::raw("j k, arrows       choose a line"),
        Line::raw("Enter             show the job"),
        Line::raw("c                 cancel it"),
        Line::raw("r                 retry it now"),
        Line::raw("p, space          pause the display"),
        Line::raw("q, Esc            leave"),
    ])
}

fn question(asked: Asked) -> String {
    match asked {
        Asked::Cancel(id) => format!("Cancel job {id}? Press y to confirm, any other key to keep it."),
        Asked::Retry(id) => format!("Retry job {id} now? Press y to confirm, any other key to leave it."),
        Asked::Show(id) => format!("Show job {id}?"),
    }
}

fn describe(detail: &Detail, color: bool) -> Text<'static> {
    let job = &detail.job;
    let field = |name: &str, value: String| Line::from(vec![Span::raw(format!("{name:<10}")).dim(), Span::raw(value)]);
    let mut lines = vec![
        field("job", job.id.to_string()),
        field("handler", plain(&job.handler)),
        Line::from(vec![
            Span::raw(format!("{:<10}", "status")).dim(),
            Span::styled(job.status.as_str(), status_style(color, job.status)),
        ]),
        field("why", plain(&detail.why)),
        field("tenant", job.tenant.to_string()),
        field("attempt", attempts(job)),
        field("created", show_time(job.created_at)),
    ];
    let error = job.error.as_ref().map(|error| field("error", plain(&error.to_string())));
    let tags = (!job.tags.is_empty()).then(|| field("tags", plain(&job.tags.join(", "))));
    lines.extend(error.into_iter().chain(tags));
    lines.push(Line::raw(""));
    lines.extend(detail.history.iter().map(|entry| {
        let what = entry.error.as_ref().map(ToString::to_string).or(entry.note.clone()).unwrap_or_default();
        Line::from(vec![
            Span::raw(format!("{}  ", show_time(entry.at))).dim(),
            Span::styled(format!("{:<14}", entry.status.as_str()), status_style(color, entry.status)),
            Span::raw(format!("{:<3}", entry.attempt)),
            Span::raw(plain(&what)),
        ])
    }));
    Text::from(lines)
}

/// How far a job has come, as a bar of characters.
fn bar(job: &JobRecord) -> String {
    let Some(progress) = &job.progress else { return String::new() };
    let full = ((progress.percent / 100.0).clamp(0.0, 1.0) * BAR as f32).round() as usize;
    let (done, rest) = ("━".repeat(full), "─".repeat(BAR - full));
    format!("{done}{rest} {:>3.0} % {}", progress.percent, plain(&progress.message))
}

fn block(title: &str) -> Block<'_> {
    Block::new().borders(Borders::ALL).border_style(Style::new().dim()).title(title)
}

fn paint(color: bool, wanted: Color) -> Style {
    if color { Style::new().fg(wanted) } else { Style::new() }
}

fn status_style(color: bool, status: Status) -> Style {
    match status {
        Status::Succeeded => paint(color, Color::Green),
        Status::Running => paint(color, Color::Cyan),
        Status::Retrying => paint(color, Color::Yellow),
        Status::DeadLettered => paint(color, Color::Red),
        Status::Canceled => Style::new().dim(),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::app::tests::{app, job};

    /// The screen as text.
    fn drawn(app: &mut App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        terminal.draw(|frame| draw(frame, app)).expect("it draws");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>() + "\n";
        (0..height).map(line).collect()
    }

    #[test]
    fn the_overview_shows_counts_and_running_jobs() {
        let screen = drawn(&mut app(), 100, 30);
        for part in ["sqlite:jobs.db", "1 Overview", "succeeded", "10", "Running, 2", "email.send", "q quit"] {
            assert!(screen.contains(part), "{part} in\n{screen}");
        }
    }

    #[test]
    fn every_view_and_popup_fits_any_terminal() {
        for (width, height) in [(1, 1), (10, 3), (20, 8), (80, 24), (300, 100)] {
            for view in View::ALL {
                let mut app = app();
                app.view = view;
                drawn(&mut app, width, height);
                app.over = Over::Help;
                drawn(&mut app, width, height);
                let detail = Detail { job: job(1, Status::Running), why: "it runs".to_owned(), history: Vec::new() };
                app.over = Over::Job(Box::new(detail));
                drawn(&mut app, width, height);
            }
        }
    }

    /// API-5: what was lost with a node is counted as `show` counts it.
    #[test]
    fn a_job_shows_its_attempts_as_show_does() {
        let mut app = app();
        let mut of = job(1, Status::Retrying);
        (of.attempt, of.failed, of.recoveries) = (3, 2, 1);
        let entry = |attempt| windlass::HistoryEntry::new(of.created_at, Status::Pending, attempt);
        let history = (0..=3).map(entry).collect();
        let detail = Detail { job: of, why: String::new(), history };
        app.over = Over::Job(Box::new(detail));
        let screen = drawn(&mut app, 120, 40);
        assert!(screen.contains("3 (2 failed, 1 node lost with it)"), "{screen}");
        for attempt in 0..=3 {
            assert!(screen.contains(&format!("Z  pending       {attempt} ")), "{attempt} in\n{screen}");
        }
    }

    #[test]
    fn text_from_outside_cannot_steer_the_terminal() {
        let mut app = app();
        app.seen.running[0].handler = "a\u{1b}[2Jb".to_owned();
        assert!(!drawn(&mut app, 80, 24).contains('\u{1b}'));
    }
}
