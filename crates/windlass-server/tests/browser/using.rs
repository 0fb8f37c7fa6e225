//! Scenarios of people at work: logging in, submitting, watching, canceling, replaying, pausing, filtering, typing.

use fantoccini::key::Key;
use serde_json::{Value, json};
use windlass::store::PauseTarget;
use windlass::{JobFilter, OperatorRight, Page, Status, SubmitOptions};

use crate::Stage;
use crate::driver::WIDE;
use crate::pages::MODES;
use crate::site::{Site, context, mail};

/// API-3: the link that `windlass up` prints works once.
pub(crate) async fn a_link_logs_in_once(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    browser.forget_cookies().await;
    let link = site.link();
    browser.goto(&link).await;
    browser.until_text("h1", "Overview").await;
    assert!(!browser.here().await.contains("login"), "the link does not stay in the address");

    browser.forget_cookies().await;
    browser.goto(&link).await;
    browser.until_text("main", "has already been used").await;
    browser.goto(&site.at("/jobs")).await;
    assert!(browser.here().await.contains("/login"), "nobody is logged in");
    expect_refusals(stage).await;
}

/// API-3: a key is shown once, lets its owner in by the form, and is out after the logout.
pub(crate) async fn a_key_made_on_its_page_logs_in(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    stage.log_in_anew().await;
    browser.goto(&site.at("/keys")).await;
    browser.fill("form[action$='/keys'] input[name=name]", "billing").await;
    browser.click("form[action$='/keys'] input[name=right][value=submit]").await;
    browser.click("form[action$='/keys'] button[type=submit]").await;
    let secret = browser.text(".secret code").await;
    assert!(secret.starts_with("wl_"), "{secret}");
    browser.goto(&site.at("/keys")).await;
    browser.until_text("#keys", "billing").await;
    let page = browser.value("document.documentElement.outerHTML").await;
    assert!(!page.as_str().unwrap_or_default().contains(&secret), "it is shown once");

    browser.click("form[action$='/logout'] button").await;
    browser.arrive("/login").await;
    browser.fill("#key", "wl_live_wrong").await;
    browser.click("form[action$='/login'] button").await;
    browser.until("a refusal", "document.querySelector('[role=alert]')?.textContent").await;
    browser.fill("#key", &secret).await;
    browser.click("form[action$='/login'] button").await;
    browser.until_text("h1", "Overview").await;
    expect_refusals(stage).await;
}

/// TIM-2, API-5: a schedule is added by the form, reached by the keyboard, run now, paused, changed and removed.
pub(crate) async fn a_schedule_is_added_run_paused_and_removed(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let form = "form[action$='/schedules']";
    browser.goto(&site.at("/")).await;
    browser.press("gc").await;
    browser.arrive("/schedules").await;
    browser.fill("#schedule-name", "by the form").await;
    browser.fill(&format!("{form} input[name=cron]"), "0 0 30 2 *").await;
    browser.fill("#schedule-handler", "images.resize").await;
    browser.click(&format!("{form} .buttons button")).await;
    browser.until_text("[role=alert]", "never fires").await;
    assert_eq!(browser.value("document.querySelector('#schedule-name').value").await, json!("by the form"));
    browser.fill(&format!("{form} input[name=cron]"), "30 2 * * *").await;
    browser.fill(&format!("{form} input[name=zone]"), "Europe/Berlin").await;
    browser.fill("#schedule-input", r#"{"image": "cat"}"#).await;
    browser.click(&format!("{form} .buttons button")).await;
    browser.until_text("h1", "by the form").await;
    browser.until("the week", "document.querySelectorAll('#schedule-week svg.strip').length === 7").await;
    browser.until("a run", "document.querySelectorAll('#schedule-week .strip-run').length >= 6").await;
    browser.until_text("#schedule-next thead", "Europe/Berlin").await;
    browser.time_zone("Asia/Kolkata").await;
    browser.goto(&site.at("/schedules/by%20the%20form")).await;
    browser.click("#schedule-next [data-zone]").await;
    browser.until_text("#schedule-next tbody", "GMT+5:30").await;
    browser.click("#schedule-next [data-zone]").await;
    browser.until_text("#schedule-next tbody", "UTC").await;
    browser.time_zone("UTC").await;

    browser.click_and_confirm("form[action$='/trigger'] button").await;
    browser.until_text("#job-head", "succeeded").await;
    browser.goto(&site.at("/schedules/by%20the%20form")).await;
    browser.until_text("#schedule-runs", "images.resize").await;
    browser.click_and_confirm("form[action$='/pause'] button").await;
    browser.until_text(".job-title", "paused").await;
    assert!(site.service.schedules().get(&context(), "by the form").await.expect("it is there").paused);
    browser.click("a[href$='/edit']").await;
    browser.until("the input", "document.querySelector('#schedule-input')?.value.includes('cat')").await;
    browser.choose(&format!("{form} select[name=overlap]"), "skip").await;
    browser.click(&format!("{form} .buttons button")).await;
    browser.until_text(".facts", "skip").await;
    browser.click_and_confirm("form[action$='/resume'] button").await;
    browser.until("resumed", "!document.querySelector('.job-title').textContent.includes('paused')").await;
    browser.click_and_confirm("form[action$='/remove'] button").await;
    browser.arrive("/schedules").await;
    let gone = site.service.schedules().get(&context(), "by the form").await.expect_err("it is gone");
    assert_eq!(gone.code(), "schedule_not_found");
    expect_refusals(stage).await;
}

/// The first job is submitted from the page, and its page opens.
pub(crate) async fn a_job_is_submitted_from_the_form(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    browser.goto(&site.at("/submit")).await;
    browser.fill("#handler", "images.resize").await;
    browser.fill("#job-input", r#"{"image": "cat"}"#).await;
    browser.choose("#job-priority", "high").await;
    browser.click("form details summary").await;
    browser.fill("input[name=tags]", "from-the-form").await;
    browser.click("form[action$='/submit'] .buttons button").await;
    browser.until_text("#job-head", "images.resize").await;
    browser.until_text("#job-head", "succeeded").await;
    browser.until_text("#facts", "from-the-form").await;

    let jobs =
        site.service.list(&context(), &JobFilter::all().tag("from-the-form"), Page::default()).await.expect("list");
    assert_eq!(jobs.len(), 1);
    assert!(browser.here().await.contains(&jobs[0].id.to_string()));
}

/// SUB-9: what is wrong is said beside what was typed.
pub(crate) async fn a_wrong_input_is_explained_and_nothing_is_lost(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    browser.goto(&site.at("/submit")).await;
    browser.fill("#handler", "images.resize").await;
    browser.fill("#job-input", "{\"image\":").await;
    browser.click("form[action$='/submit'] .buttons button").await;
    browser.until("an explanation", "document.querySelector('[role=alert]')?.textContent").await;
    assert_eq!(browser.value("document.querySelector('#job-input').value").await, json!("{\"image\":"));
    expect_refusals(stage).await;
}

/// OPS-2: the bar moves by itself, and the end is seen without a reload.
pub(crate) async fn progress_moves_without_a_reload(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    site.controls.allow_pages(1);
    let id = site.submit("reports.generate", json!({ "month": "2026-11" }), SubmitOptions::new()).await;
    browser.goto(&site.at(&format!("/jobs/{id}"))).await;
    browser.value("window.sameDocument = true").await;
    for page in 1..=4u32 {
        site.controls.allow_pages(page);
        browser.until_text("[data-progress-message]", &format!("page {page} of 4")).await;
        browser.until_text("[data-progress-percent]", &format!("{}%", page * 25)).await;
    }
    site.controls.allow_pages(5);
    browser.until_text("#job-head", "succeeded").await;
    assert_eq!(browser.value("window.sameDocument").await, json!(true), "the page was not loaded again");
    site.controls.allow_pages(0);
}

/// OPS-3, with the question first: a running job is asked to stop and ends as canceled.
pub(crate) async fn a_running_job_is_canceled(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let id = site.submit("reports.generate", json!({}), SubmitOptions::new()).await;
    site.until_status(id, Status::Running).await;
    browser.goto(&site.at(&format!("/jobs/{id}"))).await;
    // Saying no changes nothing.
    browser.click("form[action$='/cancel'] button").await;
    browser.until("the question", "document.querySelector('#confirm').open").await;
    browser.click("#confirm button[value=no]").await;
    browser.until("no question", "!document.querySelector('#confirm').open").await;
    assert_eq!(site.service.status(&context(), id).await.expect("status"), Status::Running);

    browser.click_and_confirm("form[action$='/cancel'] button").await;
    browser.until_text("#job-head", "canceled").await;
    assert_eq!(site.service.status(&context(), id).await.expect("status"), Status::Canceled);
    browser.goto(&site.at("/audit")).await;
    browser.until_text("#audit", &id.to_string()).await;
}

/// ERR-4, BEY-6: dead letters are replayed by filter, after a preview that counts them.
pub(crate) async fn dead_letters_are_replayed_together(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let ids = dead_mails(site, "replay-us", 3).await;
    browser.goto(&site.at("/dead?q=tag%3Areplay-us")).await;
    let rows = "document.querySelectorAll('#list tbody tr').length";
    browser.until("three letters", &format!("{rows} === 3")).await;

    site.controls.repair_mail(true);
    browser.click(".between a.primary").await;
    browser.arrive("/bulk").await;
    browser.until_text("main", "3 jobs").await;
    browser.click_and_confirm("form[method=post][action$='/bulk'] .buttons button").await;
    browser.until_text("#bulk-progress", "finished").await;
    for id in ids {
        site.until_status(id, Status::Succeeded).await;
    }
    browser.goto(&site.at("/dead?q=tag%3Areplay-us")).await;
    browser.until_text("#list", "No dead letter matches this filter").await;
    site.controls.repair_mail(false);
}

/// BEY-3: failures of one kind stand together and are retried together.
pub(crate) async fn a_group_of_failures_is_retried(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let ids = dead_mails(site, "a-group", 2).await;
    browser.goto(&site.at("/failures?q=tag%3Aa-group")).await;
    browser.until_text("#groups article", "connection refused").await;
    browser.until_text("#groups article .group-counts", "2").await;

    site.controls.repair_mail(true);
    browser.click("#groups article a.primary").await;
    browser.arrive("/bulk").await;
    browser.click_and_confirm("form[method=post][action$='/bulk'] .buttons button").await;
    browser.until_text("#bulk-progress", "finished").await;
    for id in ids {
        site.until_status(id, Status::Succeeded).await;
    }
    site.controls.repair_mail(false);
}

/// OPS-4: a handler is paused with a reason, its jobs say why they wait, and go on after the resume.
pub(crate) async fn a_handler_is_paused_and_resumed(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    browser.goto(&site.at("/handlers")).await;
    browser.click("summary[aria-label='Pause images.resize']").await;
    browser.fill("details[open] input[name=reason]", "the disk is full").await;
    browser.click_and_confirm("details[open] form[action$='/pause'] button").await;
    browser.until_text("#handlers", "the disk is full").await;

    let id = site.submit("images.resize", json!({ "image": "dog" }), SubmitOptions::new()).await;
    browser.goto(&site.at(&format!("/jobs/{id}"))).await;
    browser.until_text(".why", "paused").await;

    browser.goto(&site.at("/handlers")).await;
    browser.click_and_confirm("form[action$='/resume'] button").await;
    browser.until("no pause", "!document.querySelector('#handlers').textContent.includes('the disk is full')").await;
    site.until_status(id, Status::Succeeded).await;
}

/// The address holds the whole state: it can be sent to others, and `back` undoes.
pub(crate) async fn a_filter_stands_in_the_address_and_back_takes_it_away(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    for image in ["one", "two"] {
        site.submit("images.resize", json!({ "image": image }), SubmitOptions::new().tag(format!("pick-{image}")))
            .await;
    }
    browser.goto(&site.at("/jobs")).await;
    browser.fill("#filter", "handler:images.resize tag:pick-one").await;
    browser.click("form[data-filter] button[type=submit]").await;
    let rows = "document.querySelectorAll('#list tbody tr').length";
    browser.until("one job", &format!("location.search.includes('pick-one') && {rows} === 1")).await;
    let filtered = browser.here().await;

    browser.click("#tabs a.s-dead_lettered").await;
    browser.until_text("#list", "No job matches this filter").await;
    assert!(browser.here().await.contains("dead_lettered") && browser.here().await.contains("pick-one"));
    browser.back().await;
    browser.until("the filter before", &format!("{rows} === 1")).await;
    assert_eq!(browser.here().await, filtered);
    assert_eq!(
        browser.value("document.querySelector('#filter').value").await,
        json!("handler:images.resize tag:pick-one")
    );
    browser.back().await;
    browser.until("no filter", &format!("location.search === '' && {rows} > 1")).await;

    browser.goto(&site.at("/jobs?q=handlr%3Aimages")).await;
    browser
        .until("what is wrong with it", "document.querySelector('[role=alert]')?.textContent.includes('handler')")
        .await;
    expect_refusals(stage).await;
}

/// Everything by keys: go to the jobs, filter, walk the rows, open one, ask for help.
pub(crate) async fn the_keyboard_is_enough(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    for image in ["first", "second"] {
        site.submit("images.resize", json!({ "image": image }), SubmitOptions::new().tag("keys")).await;
    }
    browser.goto(&site.at("/")).await;
    browser.press("?").await;
    browser.until("the help", "document.querySelector('#help').open").await;
    browser.press_escape().await;
    browser.until("no help", "!document.querySelector('#help').open").await;
    browser.press("gj").await;
    browser.arrive("/jobs").await;
    browser.press("/").await;
    browser.press("tag:keys").await;
    browser.press_enter().await;
    browser
        .until(
            "the filtered rows",
            "location.search.includes('keys') && document.querySelectorAll('#list tbody tr').length === 2",
        )
        .await;
    browser.press("jj").await;
    let chosen = browser.until("a chosen row", "document.querySelector('#list tr.current')?.dataset.href").await;
    browser.press("x").await;
    browser.until_text("[data-bulk-count]", "1 job selected").await;
    browser.press_enter().await;
    browser.until_text("h1", "Job ").await;
    assert_eq!(json!(browser.here().await), chosen);
    browser.press("gd").await;
    browser.until_text("h1", "Dead letters").await;
}

/// A live list does not run away from who has chosen rows of it: new ones wait, and the chosen ones stay chosen.
pub(crate) async fn a_list_waits_while_somebody_is_at_it(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let submit = async |n: usize| {
        for _ in 0..n {
            site.submit("images.resize", json!({}), SubmitOptions::new().tag("hold")).await;
        }
    };
    let rows = "document.querySelectorAll('#list tbody tr').length";
    let chosen = "document.querySelectorAll('#list input[name=id]:checked').length";
    submit(3).await;
    let waits = site.submit("reports.generate", json!({}), SubmitOptions::new().tag("hold")).await;
    site.until_status(waits, Status::Running).await;
    browser.goto(&site.at("/jobs?q=tag%3Ahold")).await;
    browser.until("four rows", &format!("{rows} === 4")).await;
    browser.click("#list tbody tr:nth-child(1) input").await;
    browser.click("#list tbody tr:nth-child(3) input").await;
    browser.until_text("[data-bulk-count]", "2 jobs selected").await;
    let place = "document.querySelector('#list').getBoundingClientRect().top";
    let before = browser.value(place).await;

    submit(5).await;
    browser.until_text(".fresh-rows button", "5 new").await;
    assert_eq!(browser.value(place).await, before, "the list stays where it is");
    // What is shown stays where it is, and still tells the truth.
    site.controls.allow_pages(5);
    browser.until_text("#list tbody tr:nth-child(1) .c-status", "succeeded").await;
    site.controls.allow_pages(0);
    assert_eq!(browser.value(&format!("[{rows}, {chosen}]")).await, json!([4, 2]));
    picture(stage, "jobs-held").await;

    submit(55).await;
    browser.until_text(".fresh-rows button", "50+ new").await;
    browser.press("n").await;
    browser.until("the new rows, and those that are chosen", &format!("{rows} === 52 && {chosen} === 2")).await;
    browser.until_text("[data-bulk-count]", "2 jobs selected").await;
    let last =
        "[...document.querySelectorAll('#list tbody tr')].slice(-2).every((row) => row.querySelector('input').checked)";
    assert_eq!(browser.value(last).await, json!(true), "older than all others, they stand last");

    browser.click("[data-bulk-clear]").await;
    let newest = site.submit("images.resize", json!({}), SubmitOptions::new().tag("hold")).await;
    browser
        .until(
            "a list that moves again",
            &format!("document.querySelector('#list tbody tr').dataset.href.endsWith('/{newest}')"),
        )
        .await;
    assert_eq!(browser.value("document.querySelector('.fresh-rows')").await, Value::Null);
}

/// API-5: every list waits, also while a row of it is only pointed at, or has the focus.
pub(crate) async fn rows_stay_under_the_pointer_and_the_focus(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let operator = site.service.operator(OperatorRight::assume());
    // A pause is a row of its own on the page of handlers, and these stand before all others.
    let row = |name: &str| PauseTarget::Handler(name.to_owned());
    let add = async |name: &str| operator.force_pause(&context(), &row(name), "").await.expect("paused");
    let first = "document.querySelector('#handlers tbody tr').textContent";
    let mouse = browser.plug_in_mouse().await;
    browser.goto(&site.at("/handlers")).await;
    browser.point_at("#handlers tbody tr").await;
    add("!pointed").await;
    browser.until_text(".fresh-rows button", "1 new").await;
    let shown = browser.value(first).await;
    assert!(!shown.as_str().expect("text").contains("!pointed"), "{shown}");
    browser.point_at("h1").await;
    browser.until("a list that moves again", &format!("{first}.includes('!pointed')")).await;

    browser.value("document.querySelector('#handlers tbody tr a').focus()").await;
    add("!focused").await;
    browser.until_text(".fresh-rows button", "1 new").await;
    // What goes again before anybody has looked is not offered any more.
    operator.resume(&context(), &row("!focused")).await.expect("resumed");
    browser.until("no offer", "!document.querySelector('.fresh-rows')").await;
    add("!focused").await;
    browser.until_text(".fresh-rows button", "1 new").await;
    let shown = browser.value(first).await;
    assert!(shown.as_str().expect("text").contains("!pointed"), "{shown}");
    browser.press("n").await;
    browser.until("the new row", &format!("{first}.includes('!focused')")).await;
    for name in ["!pointed", "!focused"] {
        operator.resume(&context(), &row(name)).await.expect("resumed");
    }
    browser.unplug_mouse(mouse).await;
}

/// `/` and Ctrl K: one box that knows ids, handlers, errors and filters.
pub(crate) async fn one_box_leads_to_jobs_handlers_and_errors(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let id = site.submit("images.resize", json!({}), SubmitOptions::new().tag("boxed")).await;
    dead_mails(site, "boxed", 1).await;
    let find = async |keys: &str, text: &str| {
        browser.press(keys).await;
        browser.until("the box", "document.querySelector('#find').open && document.activeElement.name === 'q'").await;
        browser.press(text).await;
        browser.press_enter().await;
    };
    let control_k = format!("{}k", char::from(Key::Control));
    browser.goto(&site.at("/nodes")).await;
    find("/", &id.to_string()).await;
    browser.arrive(&format!("/jobs/{id}")).await;
    find(&control_k, "images.res*").await;
    browser
        .until(
            "the handler's jobs",
            "location.search === '?q=handler%3Aimages.res*' || location.search === '?q=handler%3Aimages.res%2A'",
        )
        .await;
    browser.until_text("#list", &id.to_string()).await;
    find("/", "connection refused").await;
    browser.arrive("/failures").await;
    browser.until_text("#groups article", "connection refused").await;
    find("/", "tag:boxed -status:dead").await;
    browser.arrive("/jobs").await;
    browser.until("one job", "document.querySelectorAll('#list tbody tr').length === 1").await;
    find("/", "17").await;
    browser.until_text("[role=alert]", "There is no job 17").await;
    browser.goto(&site.at("/jobs")).await;
    browser.press("/").await;
    browser.until("the box", "document.querySelector('#find').open").await;
    picture(stage, "find").await;
    browser.press_escape().await;

    // The name that the API has for a filter works in an address too.
    browser.goto(&site.at("/jobs?filter=tag%3Aboxed%20handler%3Amail.*")).await;
    browser.until("one mail", "document.querySelectorAll('#list tbody tr').length === 1").await;
    assert_eq!(browser.value("document.querySelector('#filter').value").await, json!("tag:boxed handler:mail.*"));
}

/// API-3: who is sent to the login comes to the page they wanted; a link on another site opens for who is logged in.
pub(crate) async fn a_login_keeps_the_page_that_was_asked_for(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let id = site.submit("images.resize", json!({}), SubmitOptions::new()).await;
    browser.forget_cookies().await;
    browser.goto(&site.at(&format!("/jobs/{id}?show=input"))).await;
    assert!(browser.here().await.ends_with("/login"));
    browser.goto(&site.link()).await;
    browser.arrive(&format!("/jobs/{id}")).await;
    assert!(browser.here().await.ends_with("?show=input"));

    let page = site.at(&format!("/jobs/{id}"));
    browser.goto(&site.at("/login").replace("127.0.0.1", "localhost")).await;
    browser.value(&format!("setTimeout(() => {{ location.href = {} }}), true", json!(page))).await;
    browser
        .until("the job", &format!("location.href === {} && document.querySelector('#job-head')", json!(page)))
        .await;
}

/// API-5: charts say which zone their times are in and keep to it; a click shows the jobs of that time.
pub(crate) async fn charts_have_one_clock_and_lead_to_their_jobs(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let id = site.submit("images.resize", json!({}), SubmitOptions::new().tag("charted")).await;
    site.until_status(id, Status::Succeeded).await;
    browser.time_zone("Asia/Kolkata").await;
    browser.goto(&site.at("/?span=1h")).await;
    let times = "(() => { const chart = document.querySelector('#chart-throughput'); \
        const label = chart.querySelector('.chart-x time'), hit = chart.querySelector('[data-at]'); \
        const row = [...chart.querySelectorAll('tbody th time')].at(-1); \
        return [label.dateTime.slice(11, 16), label.textContent, hit.querySelector('title').textContent.slice(11, 16), \
            row.textContent.slice(11, 16), row.textContent.slice(20), document.querySelector('[data-zone-name]').textContent]; })()";
    let read = async || browser.value(times).await.as_array().cloned().expect("times");
    let utc = read().await;
    assert!(utc[1..4].iter().all(|time| *time == utc[0]) && utc[4] == "UTC" && utc[5] == "UTC", "{utc:?}");
    browser.click("#main [data-zone]").await;
    browser.until_text("[data-zone-name]", "GMT+5:30").await;
    let here = read().await;
    assert!(here[1..4].iter().all(|time| *time == here[1] && *time != utc[0]), "{here:?}");
    assert!(here[4] == "GMT+5:30", "{here:?}");
    browser.goto(&site.at("/")).await;
    browser.until_text("[data-zone-name]", "GMT+5:30").await;
    browser.click("#main [data-zone]").await;
    browser.until_text("[data-zone-name]", "UTC").await;
    browser.time_zone("UTC").await;

    browser.goto(&site.at("/?span=1h")).await;
    browser.until_text("#chart-throughput .legend", "in progress").await;
    // The newest step; what is drawn over it leads to jobs of its own.
    let newest = "[...document.querySelectorAll('#chart-throughput svg a[href*=\"created%3E\"]')].at(-1)";
    let address = browser.value(&format!("{newest}.getAttribute('href')")).await;
    browser.goto(&site.at(address.as_str().expect("an address"))).await;
    browser.arrive("/jobs").await;
    browser.until_text("#list", &id.to_string()).await;
}

/// A picture of what a scenario has brought about, in each way, where pictures are wanted.
async fn picture(stage: &Stage, name: &str) {
    let Some(directory) = windlass_testkit::servers::screenshots_dir() else { return };
    for (mode, screen, dark) in MODES {
        stage.browser.screen(screen).await;
        stage.browser.prefer_dark(dark).await;
        assert_eq!(stage.browser.overflow().await, 0, "{name} is wider than the window ({mode})");
        let picture = stage.browser.picture(screen, screen.height).await;
        std::fs::write(directory.join(format!("{name}-{mode}.png")), picture).expect("write a picture");
    }
    stage.browser.screen(WIDE).await;
    stage.browser.prefer_dark(false).await;
}

/// Dark and light: as the system says, unless the button says otherwise, and that is remembered.
pub(crate) async fn colours_follow_the_system_and_the_button(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let brightness =
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)";
    let is_dark = async || browser.value(brightness).await.as_u64().expect("a colour") < 3 * 100;
    browser.goto(&site.at("/")).await;
    assert!(!is_dark().await, "light");
    browser.prefer_dark(true).await;
    browser.until("dark", &format!("{brightness} < 300")).await;
    browser.click("button[name=theme][value=light]").await;
    browser.until("light", &format!("{brightness} > 300")).await;
    browser.goto(&site.at("/jobs")).await;
    assert!(!is_dark().await, "the choice is remembered");
    browser.click("button[name=theme][value=auto]").await;
    browser.until("dark again", &format!("{brightness} < 300")).await;
}

/// Behind a base path every link stays below it; a read-only server says so and refuses.
pub(crate) async fn a_base_path_and_read_only_are_kept(stage: &Stage) {
    let browser = &stage.browser;
    let site = Site::start("/ops", |config| config.read_only = true).await;
    let id = site.submit("images.resize", json!({ "image": "owl" }), SubmitOptions::new()).await;
    browser.goto(&site.link()).await;
    browser.until_text(".banner", "Read-only").await;
    browser.click("nav.side a[data-key=j]").await;
    browser.arrive("/ops/jobs").await;
    browser.click("#list tbody tr a").await;
    browser.arrive(&format!("/ops/jobs/{id}")).await;
    let away = "[...document.querySelectorAll('a[href], form[action], link[href], script[src]')]\
        .map((part) => part.getAttribute('href') ?? part.getAttribute('action') ?? part.getAttribute('src'))\
        .filter((address) => !/^(\\/ops\\/|#)/.test(address))";
    assert_eq!(browser.value(away).await, json!([]), "addresses outside of the base path");
    assert_eq!(browser.value("document.querySelectorAll('.actions form').length").await, json!(0), "nothing to press");

    let post = format!(
        "fetch('/ops/jobs/{id}/purge', {{ method: 'POST', headers: {{ 'content-type': 'application/x-www-form-urlencoded' }}, body: 'confirmed=1' }})"
    );
    browser.value(&format!("{post}.then((answer) => {{ window.answered = answer.status }}), true")).await;
    assert_eq!(browser.until("an answer", "window.answered").await, json!(403));
    expect_refusals(stage).await;
    site.stop().await;
}

/// Mails that could not be sent and will not be tried again, with a tag.
async fn dead_mails(site: &Site, tag: &str, count: usize) -> Vec<windlass::JobId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let (handler, input, options): (_, Value, _) = mail();
        ids.push(site.submit(handler, input, options.tag(tag)).await);
    }
    for id in &ids {
        site.until_status(*id, Status::DeadLettered).await;
    }
    ids
}

/// Takes what the console says about refused requests, which a scenario has brought about; anything else is a failure.
pub(crate) async fn expect_refusals(stage: &Stage) {
    for line in stage.browser.console().await {
        assert!(line.contains("the server responded with a status of 4"), "{line}");
    }
}
