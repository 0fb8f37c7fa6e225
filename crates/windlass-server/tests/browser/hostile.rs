//! Scenarios of attackers: markup in every text of a job (S15), requests from other sites (S16), and a key that may do
//! less than its owner would like (S08).

use std::time::Duration;

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use serde_json::json;
use windlass::{OperatorRight, Status, SubmitOptions};

use crate::Stage;
use crate::site::{HOSTILE_HANDLERS, context};
use crate::using::expect_refusals;

/// What browsers have run where a page was careless. Each sets `window.pwned` or opens a dialog if it does.
const CORPUS: [&str; 12] = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1>",
    "\"><svg/onload=window.pwned=1>",
    "' onmouseover='window.pwned=1' x='",
    "</title><script>window.pwned=1</script>",
    "</textarea><script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href=\"javascript:window.pwned=1\">click</a>",
    "{{constructor.constructor('window.pwned=1')()}}",
];

/// S15: handlers, tags, errors, progress, keys, users and reasons are shown as the text they are.
pub(crate) async fn text_of_jobs_is_shown_and_never_run(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let mut ids = Vec::new();
    for (index, text) in CORPUS.iter().enumerate() {
        let options = SubmitOptions::new().tag("xss").tag(*text).correlation_id(*text).ordering_key(*text);
        let handler = HOSTILE_HANDLERS[index % HOSTILE_HANDLERS.len()];
        ids.push((site.submit(handler, json!({ "error": text, *text: text }), options).await, text));
    }
    for (id, _) in &ids {
        site.until_status(*id, Status::DeadLettered).await;
    }
    let hostile = context().with_user(CORPUS[1]);
    let waiting = SubmitOptions::new().tag("xss").delay(Duration::from_secs(3_600));
    let canceled = site.submit("images.resize", json!({}), waiting).await;
    site.service.cancel(&hostile, canceled, CORPUS[0]).await.expect("canceled");
    let target = windlass::store::PauseTarget::Handler(HOSTILE_HANDLERS[0].to_owned());
    site.service.operator(OperatorRight::assume()).pause(&hostile, &target, CORPUS[2]).await.expect("paused");

    let lists = [
        "/",
        "/jobs?cols=status,id,handler,tags,note",
        "/jobs?q=tag%3Axss",
        "/failures",
        "/dead",
        "/handlers",
        "/audit",
        "/nodes",
        "/bulk?q=tag%3Axss&scope=filter&action=purge",
    ];
    for path in lists {
        browser.goto(&site.at(path)).await;
        nothing_ran(stage, path).await;
    }
    for (id, text) in &ids {
        browser.goto(&site.at(&format!("/jobs/{id}"))).await;
        browser.until_text("#facts", text).await;
        browser.until_text("#job-now", text).await;
        nothing_ran(stage, text).await;
    }
    // In forms texts stand inside of fields, where the first and the seventh of the corpus try to get out.
    for (id, text) in [ids[0], ids[6]] {
        browser.goto(&site.at(&format!("/jobs/{id}/clone"))).await;
        nothing_ran(stage, text).await;
        browser.goto(&site.at(&format!("/audit?action={0}&target={0}", encode(text)))).await;
        nothing_ran(stage, text).await;
    }
    for text in CORPUS {
        browser.goto(&site.at(&format!("/jobs?q={}", encode(text)))).await;
        nothing_ran(stage, text).await;
    }
    site.service.operator(OperatorRight::assume()).resume(&hostile, &target).await.expect("resumed");
    expect_refusals(stage).await;
}

async fn nothing_ran(stage: &Stage, where_: &str) {
    let found = "[window.pwned ?? 0, document.querySelectorAll('main script, main iframe, main img, [onload], [onerror], [onmouseover], a[href^=\"javascript:\"]').length]";
    assert_eq!(stage.browser.value(found).await, json!([0, 0]), "{where_}");
}

fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// S16: a page of another site cannot make the browser act with the session, neither by a form nor by a request; not even
/// one on another port of the same host, which browsers send cookies from.
pub(crate) async fn another_site_cannot_act(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let page = "<!doctype html><html data-ready><title>Elsewhere</title><p>You have won.";
    let elsewhere = Router::new().route("/", get(move || async move { Html(page) }));
    let serving = tokio::spawn(async move { axum::serve(listener, elsewhere).await });

    for host in ["127.0.0.1", "localhost"] {
        let id = site.submit("images.resize", json!({}), SubmitOptions::new().delay(Duration::from_secs(3_600))).await;
        for (path, body) in [(format!("/jobs/{id}/cancel"), "confirmed=1"), (format!("/api/v1/jobs/{id}/cancel"), "{}")]
        {
            browser.goto(&format!("http://{host}:{port}/")).await;
            let form = format!(
                "(() => {{ const form = document.createElement('form'); form.method = 'post'; form.action = {}; \
                 form.enctype = 'text/plain'; const field = document.createElement('input'); field.name = {}; \
                 form.append(field); document.body.append(form); setTimeout(() => form.submit()); return true; }})()",
                json!(site.at(&path)),
                json!(body),
            );
            browser.value(&form).await;
            browser.until("the answer", &format!("location.href === {}", json!(site.at(&path)))).await;

            browser.goto(&format!("http://{host}:{port}/")).await;
            let fetch = format!(
                "fetch({}, {{ method: 'POST', mode: 'no-cors', credentials: 'include', headers: {{ 'content-type': 'text/plain' }}, \
                 body: {} }}).then(() => {{ window.sent = 1 }}, () => {{ window.sent = 2 }}), true",
                json!(site.at(&path)),
                json!(body),
            );
            browser.value(&fetch).await;
            browser.until("it was sent", "window.sent").await;
        }
        assert_eq!(site.service.status(&context(), id).await.expect("status"), Status::Scheduled, "from {host}");
        // The same click on the page itself works.
        browser.goto(&site.at(&format!("/jobs/{id}"))).await;
        browser.click_and_confirm("form[action$='/cancel'] button").await;
        site.until_status(id, Status::Canceled).await;
    }
    serving.abort();
    drop(browser.console().await);
}

/// S08: hiding a button is no authorisation; the server refuses what the page does not offer.
pub(crate) async fn a_key_without_rights_sees_no_buttons_and_is_refused(stage: &Stage) {
    let Stage { browser, site, .. } = stage;
    stage.log_in_anew().await;
    browser.goto(&site.at("/keys")).await;
    browser.fill("form[action$='/keys'] input[name=name]", "looker").await;
    browser.click("form[action$='/keys'] button[type=submit]").await;
    let secret = browser.text(".secret code").await;
    let id =
        site.submit("images.resize", json!({ "image": "owl", "password": "secret-input" }), SubmitOptions::new()).await;
    site.until_status(id, Status::Succeeded).await;

    browser.click("form[action$='/logout'] button").await;
    browser.arrive("/login").await;
    browser.fill("#key", &secret).await;
    browser.click("form[action$='/login'] button").await;
    browser.until_text("h1", "Overview").await;
    browser.goto(&site.at(&format!("/jobs/{id}"))).await;
    assert_eq!(browser.value("document.querySelectorAll('.actions form').length").await, json!(0));
    assert!(!browser.text("main").await.contains("secret-input"), "inputs need a right of their own");
    assert_eq!(browser.value("document.querySelector('nav.side a[data-key=k]')").await, json!(null));
    for (index, path) in
        [format!("/jobs/{id}/purge"), "/pause".to_owned(), "/keys".to_owned(), "/submit".to_owned()].iter().enumerate()
    {
        let body = "confirmed=1&target=all&name=x&right=admin&handler=images.resize&input=1&reason=x";
        let post = format!(
            "fetch({}, {{ method: 'POST', headers: {{ 'content-type': 'application/x-www-form-urlencoded' }}, body: {} }})\
             .then((answer) => {{ window.answer{index} = answer.status }}), true",
            json!(site.at(path)),
            json!(body),
        );
        browser.value(&post).await;
        assert_eq!(browser.until(path, &format!("window.answer{index}")).await, json!(403), "{path}");
    }
    assert_eq!(site.service.status(&context(), id).await.expect("it is still there"), Status::Succeeded);
    expect_refusals(stage).await;
}
