//! What the pages of the dashboard say against what the API and the metrics say (API-5). Pages are read as text; what
//! needs a browser is in `tests/browser`.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::rig::{Answer, Rig, SOON};

/// A page of the dashboard as text.
pub(crate) async fn page(rig: &Rig, key: &str, path: &str) -> String {
    let answer = rig.client.get(format!("{}{path}", rig.url)).bearer_auth(key).send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "{path}");
    answer.text().await.expect("a page")
}

/// The text between two marks that follow each other.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let start = text.find(from)? + from.len();
    text[start..].find(to).map(|end| &text[start..start + end])
}

/// Where a tab leads, and the number it shows.
fn tab(page: &str, status: &str) -> (String, String) {
    let tabs = between(page, "id=\"tabs\"", "</nav>").expect("tabs");
    let tab =
        tabs.split("<a ").find(|tab| tab.contains(&format!("class=\"s-{status}\""))).expect("a tab of the status");
    let address = between(tab, "href=\"", "\"").expect("an address").replace("&amp;", "&");
    (address, between(tab, "class=\"n\">", "<").unwrap_or_default().to_owned())
}

/// How many jobs a list shows.
fn rows(page: &str) -> usize {
    between(page, "id=\"list\"", "</section>").expect("a list").matches("<tr data-href").count()
}

/// Fails `n` jobs for good.
async fn dead_letters(rig: &Rig, n: usize) {
    let inputs: Vec<usize> = (0..n).collect();
    assert_eq!(rig.post("/jobs/batch", json!({ "handler": "fail", "inputs": inputs })).await.status, 201);
    let all_dead = async {
        while rig.get("/counts").await.body["dead_lettered"] != n {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, all_dead).await.expect("all become dead letters");
}

/// API-5: a tab shows as many jobs as it leads to, whatever the filter beside it.
pub(crate) async fn a_tab_leads_to_as_many_jobs_as_it_shows(rig: &Rig) {
    for n in 0..3 {
        let id = rig.submit("echo", json!(n), json!({ "tags": ["mine"] })).await;
        rig.wait_for(&id, "succeeded").await;
    }
    let id = rig.submit("echo", json!(9), json!({ "tags": ["other"] })).await;
    rig.wait_for(&id, "succeeded").await;
    dead_letters(rig, 2).await;
    let filters = [
        ("", "4", "2"),
        ("tag:mine", "3", "0"),
        ("tag:mine -status:succeeded", "3", "0"),
        ("-status:succeeded,dead_lettered", "4", "2"),
        ("status:running handler:fail", "0", "2"),
        ("tag:nobody", "0", "0"),
    ];
    for (filter, succeeded, dead) in filters {
        let list = page(rig, &rig.key, &format!("/jobs?q={}", filter.replace(' ', "%20"))).await;
        for (status, expected) in [("succeeded", succeeded), ("dead_lettered", dead), ("running", "0")] {
            let (address, shown) = tab(&list, status);
            assert_eq!(shown, expected, "{status} of `{filter}`");
            let led = page(rig, &rig.key, &address).await;
            assert_eq!(rows(&led).to_string(), shown, "`{filter}` leads to {address}");
        }
    }
    let wrong = page(rig, &rig.key, "/jobs?q=status:daed").await;
    assert_eq!(tab(&wrong, "succeeded").1, "", "a filter with a mistake counts nothing");
}

/// API-5, API-6, ERR-4: purged dead letters are counted nowhere: not by the API, the metrics, the tabs or the list.
pub(crate) async fn purged_jobs_are_counted_nowhere(rig: &Rig) {
    dead_letters(rig, 100).await;
    agree_on(rig, 100).await;
    let purge = json!({ "action": "purge", "filter": "status:dead", "confirm": 100 });
    let purged = rig.post("/jobs/bulk", purge).await;
    assert_eq!(purged.status, 202, "{purged:?}");
    crate::acting::finished(rig, purged.body["id"].as_str().expect("an id"), 100).await;
    agree_on(rig, 0).await;
    for (path, says) in [("/", "There are no jobs now"), ("/jobs", "No jobs")] {
        let text = page(rig, &rig.key, path).await;
        assert!(text.contains(says) && !text.contains("submitted yet"), "{path}: {text}");
    }
}

/// Everything that counts dead letters says `n`: at once, or, where one look at the store is shared, within seconds.
async fn agree_on(rig: &Rig, n: usize) {
    let listed = n.min(50);
    assert_eq!(rig.get("/counts").await.body["dead_lettered"], n);
    assert_eq!(rig.get("/jobs?status=dead_lettered&limit=200").await.body["jobs"].as_array().map(Vec::len), Some(n));
    assert_eq!(rig.get("/dead-letters?limit=200").await.body["jobs"].as_array().map(Vec::len), Some(n));
    let text = page(rig, &rig.key, "/jobs").await;
    let (address, shown) = tab(&text, "dead_lettered");
    assert_eq!((shown, rows(&page(rig, &rig.key, &address).await)), (n.to_string(), listed));
    let operators = Answer::of(rig.ask_as(&rig.operator, Method::GET, "/counts")).await;
    assert_eq!(operators.body["dead_lettered"], n);
    let wanted = [format!("jobs_queue_depth{{status=\"dead_lettered\"}} {n}\n"), format!("jobs_dlq_size {n}\n")];
    let metrics = async {
        loop {
            let text = page(rig, &rig.operator, "/metrics").await;
            if wanted.iter().all(|line| text.contains(line)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(SOON, metrics).await.unwrap_or_else(|_| panic!("metrics never said {wanted:?}"));
}

/// API-5: the box leads to the jobs of a handler that no live node has, and anything else unknown to the errors.
pub(crate) async fn the_box_knows_handlers_whose_nodes_are_down(rig: &Rig) {
    let find = async |key: &str, text: &str| {
        let asked = rig.client.get(format!("{}/find?q={text}", rig.url)).bearer_auth(key);
        Answer::of(asked).await.header("location").to_owned()
    };
    assert_eq!(find(&rig.key, "elsewhere").await, "/jobs?q=error%3Aelsewhere", "no job is for it");
    rig.submit("elsewhere", json!(1), json!({})).await;
    assert_eq!(find(&rig.key, "elsewhere").await, "/jobs?q=handler%3Aelsewhere");
    assert_eq!(find(&rig.key, "elsewher").await, "/jobs?q=error%3Aelsewher");
    assert_eq!(find(&rig.other, "elsewhere").await, "/jobs?q=error%3Aelsewhere", "another tenant's job is not told of");
    assert_eq!(find(&rig.key, "echo").await, "/jobs?q=handler%3Aecho");
}

/// API-5: a number is the id of a job, and where there is none the text of an error, such as a status of HTTP. Where nothing
/// fails with it the page says so and still leads to the jobs with this text.
pub(crate) async fn a_number_that_is_no_job_leads_to_the_errors(rig: &Rig) {
    let find = async |key: &str, text: &str| {
        let asked = rig.client.get(format!("{}/find?q={text}", rig.url)).bearer_auth(key);
        let answer = Answer::of(asked).await;
        (answer.header("location").to_owned(), answer.body.as_str().unwrap_or_default().to_owned())
    };
    let id = rig.submit("fail", json!(503), json!({})).await;
    rig.wait_for(&id, "dead_lettered").await;
    assert_eq!(find(&rig.key, &id).await.0, format!("/jobs/{id}"));
    assert_eq!(find(&rig.key, "503").await.0, "/failures?q=error%3A503");
    for (key, text) in [(&rig.other, "503"), (&rig.key, "40404"), (&rig.other, id.as_str())] {
        let (location, page) = find(key, text).await;
        assert_eq!(location, "", "{text}");
        assert!(page.contains(&format!("There is no job {text}")), "{page}");
        assert!(page.contains(&format!("href=\"/jobs?q=error%3A{text}\"")), "{page}");
    }
    let (location, page) = find(&rig.key, "job%20503").await;
    assert!(location.is_empty() && page.contains("There is no job 503"), "who says job means a job: {location}");
}
