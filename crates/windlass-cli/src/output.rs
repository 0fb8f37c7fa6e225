//! Everything that is printed: data on stdout, talk on stderr, tables for people and JSON for programs. Called by every
//! command. The only place that writes to stdout, so that a reader who goes away is noticed once.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::{Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use console::Style;
use serde::Serialize;
use windlass::{Status, TenantId, Timestamp};

use crate::args::Global;
use crate::error::{CliError, Result};
use windlass::text::show_time;

/// Where a command's words go.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    quiet: bool,
    color: bool,
    terminal: bool,
}

impl Out {
    /// As the options, the environment and the terminal ask for.
    pub(crate) fn new(global: &Global) -> Out {
        let no_color = global.no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let terminal = std::io::stdout().is_terminal();
        let color = terminal && !no_color && !global.json && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        // Styles are asked for explicitly below; what the library would guess must not differ.
        console::set_colors_enabled(color);
        Out { json: global.json, quiet: global.quiet, color, terminal }
    }

    /// Whether programs read the output.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }

    /// Whether colours are wanted.
    pub(crate) fn has_color(&self) -> bool {
        self.color
    }

    /// Whether stdout is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Prints one line of data.
    pub(crate) fn line(&self, text: impl std::fmt::Display) -> Result {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{text}")?;
        Ok(stdout.flush()?)
    }

    /// Prints data as it is, without a line end.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Prints one JSON document: on one line for programs, indented for people.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result {
        let text = if self.terminal { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        self.line(text?)
    }

    /// A remark for people, not part of the data.
    pub(crate) fn say(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            talk(&text);
        }
    }

    /// A remark about something that may be wrong.
    pub(crate) fn warn(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            let word = Style::new().yellow().for_stderr().force_styling(self.color).apply_to("warning:");
            talk(&format_args!("{word} {text}"));
        }
    }

    /// Says why the command failed.
    pub(crate) fn error(&self, error: &CliError) {
        match error {
            CliError::BrokenPipe => {}
            error if self.json => print_json_error(error),
            error => {
                let word = Style::new().red().bold().for_stderr().force_styling(self.color).apply_to("error:");
                talk(&format_args!("{word} {error}"));
            }
        }
    }

    /// Asks a yes-or-no question on the terminal; anything but yes is no.
    pub(crate) fn ask(&self, question: &str) -> Result<bool> {
        let mut stderr = std::io::stderr().lock();
        write!(stderr, "{question} [y/N] ")?;
        stderr.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Asks for a text that is not shown while it is typed.
    pub(crate) fn ask_secret(&self, question: &str) -> Result<String> {
        let terminal = console::Term::stderr();
        terminal.write_str(question)?;
        Ok(terminal.read_secure_line()?)
    }

    /// Colours text, where colours are wanted.
    pub(crate) fn paint(&self, style: &Style, text: impl std::fmt::Display) -> String {
        style.clone().force_styling(self.color).apply_to(text).to_string()
    }

    /// How many columns there are to write in; in a pipe there is no end.
    pub(crate) fn width(&self) -> usize {
        if self.terminal { console::Term::stdout().size().1.into() } else { usize::MAX }
    }

    /// A tenant in a table: in full in a pipe, by its first digits on a terminal, where room is scarce.
    pub(crate) fn tenant(&self, tenant: TenantId) -> String {
        match (self.terminal, tenant) {
            (false, tenant) => tenant.to_string(),
            (true, TenantId::ROOT) => "root".to_owned(),
            (true, tenant) => format!("{:.8}…", tenant.to_string()),
        }
    }

    /// A time in a table: in full in a pipe; on a terminal the time of day if it is less than a day ago, else the date.
    pub(crate) fn time(&self, at: Timestamp, now: Timestamp) -> String {
        let shown = show_time(at);
        match shown.split_once(' ') {
            Some((_, time)) if self.terminal && now.since(at) < DAY => time.to_owned(),
            Some((date, _)) if self.terminal => date.to_owned(),
            _ => shown,
        }
    }

    /// A table with these columns.
    pub(crate) fn table(&self, columns: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_truncation_indicator("…");
        table.set_header(columns.iter().map(|name| {
            let cell = Cell::new(name);
            if self.color { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        match self.color {
            true => table.enforce_styling(),
            false => table.force_no_tty(),
        };
        if self.terminal {
            let width = u16::try_from(self.width()).unwrap_or(u16::MAX).max(MIN_TABLE_WIDTH);
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        } else {
            // Programs such as grep and awk want one line for one thing, however long.
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table
    }

    /// Prints a table. On a terminal, all columns but `give` keep their width; that one makes room.
    pub(crate) fn print_table(&self, mut table: Table, give: usize) -> Result {
        let columns = table.column_count();
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if index + 1 == columns { 0 } else { 2 }));
            if index == give {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(12)));
            } else {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        self.line(table.trim_fmt())
    }

    /// A status in its colour.
    pub(crate) fn status(&self, status: Status) -> Cell {
        let cell = Cell::new(status);
        if !self.color {
            return cell;
        }
        use comfy_table::Color;
        match status {
            Status::Succeeded => cell.fg(Color::Green),
            Status::Running => cell.fg(Color::Cyan),
            Status::Retrying => cell.fg(Color::Yellow),
            Status::DeadLettered => cell.fg(Color::Red),
            Status::Canceled => cell.fg(Color::DarkGrey),
            _ => cell,
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A terminal narrower than this gets lines that are too long instead of unreadable columns.
const MIN_TABLE_WIDTH: u16 = 60;

/// A number, at the right of its column.
pub(crate) fn number(value: impl std::fmt::Display) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

/// A duration, at the right of its column.
pub(crate) fn duration(value: Duration) -> Cell {
    number(windlass::text::show_duration(value))
}

/// Text from outside on one line: control characters cannot move the cursor of whoever looks at it.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The style of a status.
pub(crate) fn status_style(status: Status) -> Style {
    let style = Style::new();
    match status {
        Status::Succeeded => style.green(),
        Status::Running => style.cyan(),
        Status::Retrying => style.yellow(),
        Status::DeadLettered => style.red(),
        Status::Canceled => style.dim(),
        _ => style,
    }
}

/// Prints an error as one JSON object on stderr.
pub(crate) fn print_json_error(error: &CliError) {
    let mut body = serde_json::json!({ "code": error.code(), "message": error.to_string() });
    if let Some(field) = error.field() {
        body["field"] = field.into();
    }
    talk(&serde_json::json!({ "error": body }));
}

/// Writes a line to stderr. If nobody listens there, there is nobody to tell.
fn talk(text: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc"), "a [2Jb c");
    }
}
