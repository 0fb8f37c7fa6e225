//! The progress bar: on stderr, and only where a person looks at it. Used by the scenarios.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tokio::task::JoinHandle;

/// How often it is drawn: often enough to look alive, seldom enough not to show in what is measured.
const REDRAW: Duration = Duration::from_millis(200);

/// Whether and how progress is shown.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    shown: bool,
    scenario: &'static str,
}

impl Progress {
    pub(crate) fn new(scenario: &'static str, quiet: bool) -> Progress {
        Progress { shown: !quiet && std::io::stderr().is_terminal(), scenario }
    }

    /// Shows how `done` grows towards `total` until the answer is dropped.
    pub(crate) fn show(&self, doing: &str, total: u64, done: Arc<AtomicU64>) -> Shown {
        let template = "{prefix} {msg} {wide_bar} {human_pos}/{human_len} {rate:>12} {elapsed:>4}";
        self.draw(template, doing, total, move || done.load(Ordering::Relaxed))
    }

    /// Shows how time passes until the answer is dropped.
    pub(crate) fn wait(&self, doing: &str, total: Duration) -> Shown {
        let begun = Instant::now();
        self.draw("{prefix} {msg} {wide_bar} {pos}/{len} s", doing, total.as_secs(), move || begun.elapsed().as_secs())
    }

    fn draw(&self, template: &str, doing: &str, total: u64, done: impl Fn() -> u64 + Send + 'static) -> Shown {
        if !self.shown {
            return Shown(None);
        }
        let style = ProgressStyle::with_template(template).expect("the template is written above").with_key(
            "rate",
            |state: &ProgressState, text: &mut dyn std::fmt::Write| {
                // A bar has no way to report that it could not be written.
                let _ = write!(text, "{:.0}/s", state.per_sec());
            },
        );
        let bar = ProgressBar::new(total).with_style(style).with_prefix(self.scenario).with_message(doing.to_owned());
        let drawn = bar.clone();
        let task = tokio::spawn(async move {
            loop {
                drawn.set_position(done().min(total));
                tokio::time::sleep(REDRAW).await;
            }
        });
        Shown(Some((bar, task)))
    }
}

/// A bar that is there until this is dropped.
pub(crate) struct Shown(Option<(ProgressBar, JoinHandle<()>)>);

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((bar, task)) = self.0.take() {
            task.abort();
            bar.finish_and_clear();
        }
    }
}
