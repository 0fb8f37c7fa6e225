//! The dashboard as people use it: one Chromium, one server on SQLite, one scenario after the other (API-5). Run by
//! `cargo xtask test`, and by `cargo xtask screenshots` for the pictures that the last scenario takes.

mod driver;
mod hostile;
mod pages;
mod site;
mod using;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Instant;

use futures_util::FutureExt;

use driver::{Browser, WIDE};
use fantoccini::cookies::Cookie;
use site::Site;

/// The variable that names the scenarios to run, by parts of their names with commas between them; all without it.
const ONLY_VAR: &str = "WINDLASS_SCENARIOS";

/// What every scenario gets.
pub(crate) struct Stage {
    pub(crate) browser: Browser,
    pub(crate) site: Site,
    /// The session of an administrator.
    session: Vec<Cookie<'static>>,
}

impl Stage {
    async fn set() -> Self {
        let (browser, site) = (Browser::start().await, Site::start("", |_| {}).await);
        browser.goto(&site.link()).await;
        let session = browser.cookies().await;
        assert!(!session.is_empty(), "the link has logged in");
        Stage { browser, site, session }
    }

    /// A session of its own, for a scenario that ends it.
    pub(crate) async fn log_in_anew(&self) {
        self.browser.forget_cookies().await;
        self.browser.goto(&self.site.link()).await;
    }
}

type Scenario = (&'static str, for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = ()> + 'a>>);

macro_rules! scenarios {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((stringify!($name), |stage| Box::pin($module::$name(stage)))),*]
    };
}

/// In this order: the last one looks at what all have left behind.
const SCENARIOS: [Scenario; 23] = scenarios![
    using::a_link_logs_in_once,
    using::a_key_made_on_its_page_logs_in,
    using::a_job_is_submitted_from_the_form,
    using::a_wrong_input_is_explained_and_nothing_is_lost,
    using::progress_moves_without_a_reload,
    using::a_running_job_is_canceled,
    using::dead_letters_are_replayed_together,
    using::a_group_of_failures_is_retried,
    using::a_handler_is_paused_and_resumed,
    using::a_schedule_is_added_run_paused_and_removed,
    using::a_filter_stands_in_the_address_and_back_takes_it_away,
    using::the_keyboard_is_enough,
    using::a_list_waits_while_somebody_is_at_it,
    using::rows_stay_under_the_pointer_and_the_focus,
    using::one_box_leads_to_jobs_handlers_and_errors,
    using::a_login_keeps_the_page_that_was_asked_for,
    using::charts_have_one_clock_and_lead_to_their_jobs,
    using::colours_follow_the_system_and_the_button,
    using::a_base_path_and_read_only_are_kept,
    hostile::text_of_jobs_is_shown_and_never_run,
    hostile::another_site_cannot_act,
    hostile::a_key_without_rights_sees_no_buttons_and_is_refused,
    pages::every_page_fits_in_light_dark_and_phone_width,
];

#[tokio::test(flavor = "multi_thread")]
async fn people_use_the_dashboard() {
    let only = std::env::var(ONLY_VAR).unwrap_or_default();
    let is_wanted = |name: &str| only.is_empty() || only.split(',').any(|part| name.contains(part.trim()));
    let stage = Stage::set().await;
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| is_wanted(name)) {
        let start = Instant::now();
        let outcome = AssertUnwindSafe(run(&stage, *scenario)).catch_unwind().await;
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        eprintln!("{verdict:<6} {:>5.1} s  {name}", start.elapsed().as_secs_f64());
        if outcome.is_err() {
            keep_picture(&stage.browser, name).await;
            failed.push(*name);
        }
    }
    stage.site.stop().await;
    assert!(failed.is_empty(), "failed scenarios: {}", failed.join(", "));
}

/// Begins where the scenario before has not been: logged in, on a wide and light window. Whatever a scenario does, no
/// page says a word on the console, and none asks another host for anything.
async fn run(stage: &Stage, scenario: fn(&Stage) -> Pin<Box<dyn Future<Output = ()> + '_>>) {
    let Stage { browser, site, session } = stage;
    browser.screen(WIDE).await;
    browser.prefer_dark(false).await;
    browser.goto(&site.at("/login")).await;
    browser.set_cookies(session).await;
    drop((browser.console().await, browser.requests().await));
    scenario(stage).await;
    assert_eq!(browser.console().await, Vec::<String>::new(), "the console is silent");
    for url in browser.requests().await {
        let own = ["http://127.0.0.1:", "http://localhost:", "data:", "about:"];
        assert!(own.iter().any(|start| url.starts_with(start)), "a page asked {url}");
    }
}

/// What was seen when a scenario failed.
async fn keep_picture(browser: &Browser, name: &str) {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.png"));
    let picture = AssertUnwindSafe(browser.picture(WIDE, 2_000)).catch_unwind().await;
    if let Ok(picture) = picture
        && std::fs::write(&path, picture).is_ok()
    {
        eprintln!("       what was seen: {}", path.display());
    }
}
