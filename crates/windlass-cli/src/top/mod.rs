//! `windlass top`: the whole on a terminal. Looks at a database or a server now and then, draws what it saw, and carries
//! out what is typed. Called by `commands::run`. What a key means is decided in `app`, how it looks in `view`.

mod app;
mod view;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use windlass::{JobFilter, Page, Status};

use crate::args::{Global, TopArgs};
use crate::backend::Backend;
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::top::app::{App, Deed, Detail, Doing, Seen};

/// Keys that may wait to be looked at; who types faster than this leans on the keyboard.
const KEYS_WAITING: usize = 64;
/// How long the thread that reads keys looks before it asks whether it is still wanted.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Looking more often than this costs the store more than it shows.
const SOONEST: Duration = Duration::from_millis(100);
/// Running jobs, recent jobs and groups of failures that are read: more than a screen shows.
const JOBS: usize = 100;
const GROUPS: usize = 50;

/// Runs until it is left.
pub(crate) async fn run(global: &Global, backend: &Arc<dyn Backend>, args: &TopArgs, out: &Out) -> Result {
    if !out.is_terminal() || out.wants_json() {
        let message = "`windlass top` needs a terminal; programs can use `stats --json` and `events --follow`";
        return Err(CliError::Usage(message.to_owned()));
    }
    // A place that cannot be reached is told in words, not on a screen that is gone at once.
    let first = look(&**backend).await?;
    let mut screen = Screen::open()?;
    let app = App::new(backend.describe(), global.all_tenants, out.has_color(), first);
    drive(&mut screen, app, backend, args.every.max(SOONEST)).await
}

/// The terminal, given back when dropped.
struct Screen {
    terminal: ratatui::DefaultTerminal,
    keys: mpsc::Receiver<Event>,
}

impl Screen {
    fn open() -> Result<Screen> {
        let terminal = ratatui::try_init()?;
        let (sender, keys) = mpsc::channel(KEYS_WAITING);
        // A thread, because the terminal can only be read by waiting.
        std::thread::spawn(move || {
            while !sender.is_closed() {
                match event::poll(KEY_WAIT) {
                    Ok(false) => {}
                    Ok(true) => match event::read() {
                        // A full channel drops the key: whoever types sees that nothing happened.
                        Ok(event) => drop(sender.try_send(event)),
                        Err(_) => return,
                    },
                    Err(_) => return,
                }
            }
        });
        Ok(Screen { terminal, keys })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws, and waits for whatever comes next: a key, a look, or the end of what was asked for.
async fn drive(screen: &mut Screen, mut app: App, backend: &Arc<dyn Backend>, every: Duration) -> Result {
    let wanted = Arc::new(Notify::new());
    let mut looks = looking(backend.clone(), every, wanted.clone());
    let (done, mut deeds) = mpsc::channel::<Deed>(1);
    let mut acting: Option<JoinHandle<()>> = None;
    loop {
        screen.terminal.draw(|frame| view::draw(frame, &mut app))?;
        match next(&mut screen.keys, &mut looks, &mut deeds).await? {
            Next::Event(event) => {
                let Event::Key(key @ KeyEvent { kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
                    continue;
                };
                match app.key(key) {
                    Doing::Nothing => {}
                    Doing::Leave => {
                        // What was confirmed is carried out; what became of it nobody sees any more.
                        deeds.close();
                        if let Some(acting) = acting {
                            let _ = acting.await;
                        }
                        return Ok(());
                    }
                    Doing::Look => wanted.notify_one(),
                    Doing::Ask(asked) => {
                        let (backend, done, before) = (backend.clone(), done.clone(), acting.take());
                        acting = Some(tokio::spawn(async move {
                            // One after the other: each ends the node that it has started.
                            if let Some(before) = before {
                                let _ = before.await;
                            }
                            let deed = AssertUnwindSafe(carry_out(&*backend, asked)).catch_unwind().await;
                            let panicked = |_| Deed::Said(Err(CliError::Failed("it panicked, which is a bug".into())));
                            let deed = deed.unwrap_or_else(panicked);
                            // Acting takes a node. A terminal that stays open is none: others would count on it.
                            backend.close().await;
                            let _ = done.send(deed).await;
                        }));
                    }
                }
            }
            Next::Look(seen) => app.saw(*seen),
            Next::Deed(deed) => {
                app.did(deed);
                wanted.notify_one();
            }
            Next::Stop => return Ok(()),
        }
    }
}

/// What happens next.
enum Next {
    Event(Event),
    Look(Box<Result<Seen>>),
    Deed(Deed),
    Stop,
}

/// Waits for it. The thread that reads keys and the task that looks live as long as the screen: if one of them has ended,
/// by a panic or because the terminal is gone, so does `top`, because nobody restarts it and the screen would stand still.
async fn next(
    keys: &mut mpsc::Receiver<Event>,
    looks: &mut mpsc::Receiver<Result<Seen>>,
    deeds: &mut mpsc::Receiver<Deed>,
) -> Result<Next> {
    let gone = |what: &str| CliError::Failed(format!("{what} any more; start `windlass top` again"));
    tokio::select! {
        event = keys.recv() => event.map(Next::Event).ok_or_else(|| gone("the keyboard cannot be read")),
        seen = looks.recv() => {
            seen.map(|seen| Next::Look(Box::new(seen))).ok_or_else(|| gone("the store is not looked at"))
        }
        Some(deed) = deeds.recv() => Ok(Next::Deed(deed)),
        () = crate::up::asked_to_stop() => Ok(Next::Stop),
    }
}

/// Looks again and again, in the background: a slow store must not make keys slow.
fn looking(backend: Arc<dyn Backend>, every: Duration, wanted: Arc<Notify>) -> mpsc::Receiver<Result<Seen>> {
    let (sender, looks) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = wanted.notified() => {}
            }
            if sender.send(look(&*backend).await).await.is_err() {
                return;
            }
        }
    });
    looks
}

/// Everything the screen shows, in one look.
async fn look(backend: &dyn Backend) -> Result<Seen> {
    let running = JobFilter::all().status(Status::Running);
    let (counts, running, recent, nodes) = tokio::try_join!(
        backend.counts(),
        backend.list(&running, Page::first(JOBS)),
        async { backend.list(&JobFilter::all(), Page::first(JOBS)).await },
        async { Ok(backend.nodes().await.unwrap_or_default()) },
    )?;
    // Not everyone may see these, and none of them is worth an empty screen.
    let failures = backend.failures(&JobFilter::all(), GROUPS).await.unwrap_or_default();
    let backlog = backend.backlog().await.unwrap_or_default();
    let ended = backend.ended().await.unwrap_or_default();
    let now = backend.now().await?;
    Ok(Seen { now, counts, running, recent, failures, nodes, backlog, ended })
}

async fn carry_out(backend: &dyn Backend, asked: app::Asked) -> Deed {
    match asked {
        app::Asked::Cancel(id) => Deed::Said(
            backend.cancel(id, "canceled").await.map(|_| format!("job {id} is canceled, or was asked to stop")),
        ),
        app::Asked::Retry(id) => Deed::Said(backend.retry(id).await.map(|_| format!("job {id} runs again"))),
        app::Asked::Show(id) => {
            let detail = async {
                let (job, why) = (backend.job(id).await?, backend.why(id).await?);
                Ok(Detail { job, why: why.text().to_owned(), history: backend.history(id).await? })
            };
            Deed::Shown(detail.await.map(Box::new))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends whoever holds something, as a bug would.
    async fn panic_with(held: impl Send + 'static) {
        let panicking = tokio::spawn(async move {
            let _held = held;
            panic!("a bug");
        });
        assert!(panicking.await.is_err());
    }

    /// API-8: nothing restarts what `top` has started, and a screen that stands still must not stay.
    #[tokio::test]
    async fn a_keyboard_or_a_look_that_has_ended_ends_the_screen() {
        let (_done, mut deeds) = mpsc::channel(1);
        let (_seen, mut looks) = mpsc::channel(1);
        let (key, mut keys) = mpsc::channel(1);
        panic_with(key).await;
        let end = next(&mut keys, &mut looks, &mut deeds).await.map(drop).map_err(|error| error.to_string());
        assert_eq!(end, Err("the keyboard cannot be read any more; start `windlass top` again".to_owned()));

        let (_key, mut keys) = mpsc::channel(1);
        let (seen, mut looks) = mpsc::channel(1);
        panic_with(seen).await;
        let end = next(&mut keys, &mut looks, &mut deeds).await.map(drop).map_err(|error| error.to_string());
        assert_eq!(end, Err("the store is not looked at any more; start `windlass top` again".to_owned()));
    }
}
