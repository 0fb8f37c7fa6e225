//! A walk over every page, in light, dark and phone width: nothing is cut off or wider than the window, the console is
//! silent. `cargo xtask screenshots` keeps what it sees.

use std::time::Duration;

use serde_json::json;
use windlass::activity::Addition;
use windlass::{
    Missed, Overlap, Payload, Priority, RetryPolicy, Schedule, SecurityContext, Status, SubmitOptions, Sums, TenantId,
};
use windlass_testkit::servers::screenshots_dir;

use crate::Stage;
use crate::driver::{PHONE, Screen, WIDE};
use crate::site::mail;

/// The longest picture: a page of jobs, not a scroll.
const LONGEST: u32 = 1_600;

pub(crate) const MODES: [(&str, Screen, bool); 3] =
    [("light", WIDE, false), ("dark", WIDE, true), ("phone", PHONE, false)];

/// API-5: every page, three ways.
pub(crate) async fn every_page_fits_in_light_dark_and_phone_width(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let running = busy_day(stage).await;
    let job = format!("/jobs/{running}");
    let edit = format!("/jobs/{}/edit", later(stage).await);
    let pages = [
        ("overview", "/"),
        ("jobs", "/jobs"),
        ("jobs-filtered", "/jobs?q=status%3Adead_lettered%20handler%3Amail.send"),
        ("job", &job),
        ("job-edit", &edit),
        ("failures", "/failures"),
        ("dead-letters", "/dead"),
        ("bulk", "/bulk?q=handler%3Amail.send%20status%3Adead_lettered&scope=filter&action=replay"),
        ("schedules", "/schedules"),
        ("schedule", "/schedules/nightly-report"),
        ("schedule-edit", "/schedules/nightly-report/edit"),
        ("handlers", "/handlers"),
        ("tenants", "/tenants"),
        ("nodes", "/nodes"),
        ("audit", "/audit"),
        ("keys", "/keys"),
        ("webhooks", "/webhooks"),
        ("submit", "/submit"),
    ];
    for (name, path) in pages {
        for (mode, screen, dark) in MODES {
            browser.screen(screen).await;
            browser.prefer_dark(dark).await;
            browser.goto(&site.at(path)).await;
            look(stage, name, mode, screen).await;
        }
    }
    // The pages for who is not logged in; that of the API has no script.
    browser.forget_cookies().await;
    for (mode, screen, dark) in MODES {
        browser.screen(screen).await;
        browser.prefer_dark(dark).await;
        browser.goto(&site.at("/login")).await;
        look(stage, "login", mode, screen).await;
        browser.open(&site.at("/docs")).await;
        look(stage, "api", mode, screen).await;
    }
    site.controls.allow_pages(5);
    site.until_status(running, Status::Succeeded).await;
    site.controls.allow_pages(0);
}

/// Whether the page that is open fits its window; a picture of it where one is wanted.
async fn look(stage: &Stage, name: &str, mode: &str, screen: Screen) {
    assert_eq!(stage.browser.overflow().await, 0, "{name} is wider than the window ({mode})");
    if let Some(directory) = screenshots_dir() {
        let picture = stage.browser.picture(screen, LONGEST).await;
        std::fs::write(directory.join(format!("{name}-{mode}.png")), picture).expect("write a picture");
    }
}

/// The counts of an hour before, as nodes would have added them: charts have something to show, and more of it at noon
/// than at night.
async fn past(stage: &Stage) {
    const STEP: Duration = Duration::from_secs(30);
    const STEPS: u32 = 130;
    let (store, now) = (stage.site.service.store(), stage.site.service.now());
    for step in 1..STEPS {
        let wave = 1.0 + 0.6 * (f64::from(step) / 17.0).sin() + 0.2 * (f64::from(step) / 3.0).sin();
        let mut additions = Vec::new();
        for (handler, rate, milliseconds) in
            [("images.resize", 900.0, 40), ("mail.send", 240.0, 180), ("reports.generate", 12.0, 2_600)]
        {
            let mut sums = Sums::default();
            sums.submitted = (rate * wave) as u64;
            sums.failed = if handler == "mail.send" && step % 40 < 6 { sums.submitted / 5 } else { 0 };
            sums.dead_lettered = sums.failed / 6;
            sums.retried = sums.failed - sums.dead_lettered;
            sums.succeeded = sums.submitted - sums.dead_lettered;
            sums.started = sums.submitted + sums.retried;
            for sample in 1..=20u32 {
                let spread = 0.4 + f64::from(sample * sample) / 130.0;
                sums.run.record(Duration::from_millis((f64::from(milliseconds) * spread) as u64));
                sums.wait.record(Duration::from_micros((1_500.0 * wave * spread * spread) as u64));
            }
            for tenant in [None, Some(TenantId::ROOT)] {
                additions.push(Addition { tenant, handler: handler.to_owned(), sums: sums.clone() });
            }
        }
        store.add_activity(now - STEP * step, additions).await.expect("add to the past");
    }
}

/// Schedules of every kind: often, seldom, paused, with runs.
async fn schedules(stage: &Stage) {
    let (service, ctx) = (&stage.site.service, SecurityContext::system());
    let input = || Payload::check("input", r#"{"image":"cover"}"#, 100).expect("JSON");
    let schedule = |name: &str, cron: &str| Schedule::cron(name, cron).starts_named("images.resize", input());
    let all = [
        schedule("nightly-report", "30 2 * * *").zone("Europe/Berlin").missed(Missed::Once).overlap(Overlap::Skip),
        schedule("stock-sync", "*/15 7-19 * * MON-FRI").zone("America/New_York").jitter(Duration::from_secs(30)),
        schedule("heartbeat", "*/5 * * * *"),
        schedule("month-end", "0 6 L * *").zone("Asia/Tokyo").tag("accounting"),
        schedule("old-import", "@hourly"),
    ];
    for schedule in all {
        service.schedules().put(&ctx, schedule).await.expect("a schedule");
    }
    service.schedules().pause(&ctx, "old-import").await.expect("it exists");
    for _ in 0..3 {
        let run = service.schedules().trigger(&ctx, "nightly-report").await.expect("a job");
        stage.site.until_status(run.id, Status::Succeeded).await;
    }
}

/// Jobs of every kind, as on a day with some trouble; answers one that runs and has come halfway.
async fn busy_day(stage: &Stage) -> windlass::JobId {
    let site = &stage.site;
    past(stage).await;
    schedules(stage).await;
    let mut letters = Vec::new();
    for number in 0..40u32 {
        let options = SubmitOptions::new().tag("import").correlation_id(format!("order-{}", 7_000 + number));
        let options = if number % 9 == 0 { options.priority(Priority::HIGH) } else { options };
        site.submit("images.resize", json!({ "image": format!("photo-{number}"), "width": 640 }), options).await;
        if number % 8 == 0 {
            let (handler, input, options) = mail();
            letters.push(site.submit(handler, input, options.tag("newsletter")).await);
        }
    }
    for id in letters {
        site.until_status(id, Status::DeadLettered).await;
    }
    let again = RetryPolicy::fixed(8, Duration::from_secs(900));
    for order in 7_003..7_009 {
        let options =
            SubmitOptions::new().retry(again.clone()).priority(Priority::HIGH).correlation_id(format!("order-{order}"));
        let id = site.submit("payments.capture", json!({ "order": order, "cents": 12_900 }), options).await;
        site.until_status(id, Status::Retrying).await;
    }
    for tenant in ["0190b3a2-7c1e-7000-8000-00000000a11c", "0190b3a2-7c1e-7000-8000-0000000b0b01"] {
        let ctx = SecurityContext::parse(tenant, "importer").expect("a tenant");
        for image in 0..5 {
            let input = json!({ "image": format!("scan-{image}") });
            site.service.submit_named(&ctx, "images.resize", &input, SubmitOptions::new()).await.expect("submit");
        }
    }
    site.controls.allow_pages(2);
    let report = site
        .submit("reports.generate", json!({ "month": "2026-11", "format": "pdf" }), SubmitOptions::new().tag("monthly"))
        .await;
    site.until_status(report, Status::Running).await;
    report
}

/// A job that waits for tomorrow.
async fn later(stage: &Stage) -> windlass::JobId {
    let tomorrow = SubmitOptions::new().delay(Duration::from_secs(24 * 3_600)).tag("nightly");
    stage.site.submit("reports.generate", json!({ "month": "2026-12" }), tomorrow).await
}
