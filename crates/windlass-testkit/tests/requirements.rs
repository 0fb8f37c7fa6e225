//! Which test shows which requirement: `docs/requirements.md` is made from the tests themselves, and a requirement that
//! is claimed but has no test fails here. `WINDLASS_WRITE_DOCS=1 cargo test -p windlass-testkit --test requirements`
//! writes the page anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use windlass_testkit::behaviour::BEHAVIOURS;
use windlass_testkit::conformance::cases;

/// What is claimed to be done, with a word on what it is. An id is added here with the work that keeps its promise.
const CLAIMED: &[(&str, &str)] = &[
    ("SUB-1", "submit returns a sortable id that is never reused"),
    ("SUB-2", "options of a submit"),
    ("SUB-3", "submit inside the caller's transaction, and from plain SQL"),
    ("SUB-4", "many at once; concurrent submits share a write"),
    ("SUB-5", "a bad batch names every bad item"),
    ("SUB-6", "idempotency keys"),
    ("SUB-7", "unique by content"),
    ("SUB-8", "the tenant comes from the caller alone"),
    ("SUB-9", "input is checked before anything is written"),
    ("SUB-10", "unknown handlers"),
    ("SUB-11", "non-restartable closures"),
    ("SUB-12", "submit and wait"),
    ("SUB-13", "a batch with an idempotency key can be repeated"),
    ("RUN-1", "handlers: types and plain functions"),
    ("RUN-2", "handlers on threads of their own"),
    ("RUN-3", "start within milliseconds"),
    ("RUN-4", "leases and fences"),
    ("RUN-5", "jobs of lost nodes run again, a bounded number of times"),
    ("RUN-6", "timeouts"),
    ("RUN-7", "panics"),
    ("RUN-8", "what a running job can see and save"),
    ("RUN-9", "completing inside the handler's transaction"),
    ("RUN-10", "graceful shutdown"),
    ("RUN-11", "limits per node and per handler"),
    ("RUN-12", "handlers that are missing here"),
    ("RUN-13", "long jobs keep their lease"),
    ("RUN-14", "handlers whose jobs are not stored, served by the same calls"),
    ("RUN-15", "attempts without a timeout, policies without retries"),
    ("RUN-16", "who submitted a job, its nominal time, when progress was updated"),
    ("ORD-1", "priorities"),
    ("ORD-2", "bands"),
    ("ORD-3", "fairness between tenants"),
    ("ORD-4", "ordering keys"),
    ("ERR-1", "retry policies"),
    ("ERR-2", "classified errors"),
    ("ERR-3", "history"),
    ("ERR-4", "dead letters and replay"),
    ("ERR-5", "callbacks"),
    ("ERR-7", "snooze and discard"),
    ("ERR-8", "errors of a handler's own, with code and details, converted by `?`"),
    ("ERR-9", "a dead letter is replayed as a new job once"),
    ("ERR-10", "a handler is missing from when its last node was gone"),
    ("OPS-1", "get, status, result, history, list"),
    ("OPS-2", "progress"),
    ("OPS-3", "cancel"),
    ("OPS-4", "pause and resume"),
    ("OPS-5", "audit log"),
    ("OPS-6", "what jobs cost"),
    ("OPS-7", "retention"),
    ("OPS-8", "status events: in process, from every node, and by webhook"),
    ("OPS-9", "tick"),
    ("OPS-10", "workers outside the process"),
    ("OPS-11", "entries of success, of every permanent failure and of e-mail sent in the audit log"),
    ("OPS-12", "callbacks without a flag"),
    ("OPS-13", "dead letters with a time to live"),
    ("OPS-14", "what a job has cost, shown with it"),
    ("TIM-1", "delayed jobs"),
    ("TIM-2", "schedules in Rust: cron in time zones, each nominal time once"),
    ("TIM-3", "the store's clock decides"),
    ("HND-1", "downloads: resumed at their byte, checked, inside their directory"),
    ("HND-2", "HTTP calls: signed, retried by status class, safe addresses and secrets"),
    ("HND-3", "e-mail over SMTP and HTTP providers"),
    ("HND-4", "commands: allowed by name, without a shell, ended with their group"),
    ("SEC-1", "tenants neither see nor touch each other's jobs"),
    ("SEC-2", "payloads sealed at rest with keys of the tenant; secrets stay out of logs and errors"),
    ("SEC-4", "a view of jobs without payload, for the platform's mapper"),
    ("API-1", "status, result and list over HTTP, with problems for errors"),
    ("API-2", "the rest of the service over HTTP, described by a document made from the routes"),
    ("API-3", "API keys and tokens, bound to tenant, user and rights"),
    ("API-4", "the command line, on a database or a server"),
    ("API-5", "the dashboard, in a real browser"),
    ("API-6", "metrics and charts from counters that are kept as jobs move"),
    ("API-7", "traces across processes"),
    ("API-8", "health: depth, running, stale, nodes"),
    ("API-9", "metrics under the names of both families, all documented"),
    ("API-10", "a process without handlers claims nothing"),
    ("BEY-1", "why a job is not running"),
    ("BEY-2", "paced replay that stops when too many fail again"),
    ("BEY-3", "failures grouped by signature"),
    ("BEY-4", "expiry and deadlines"),
    ("BEY-5", "editing, running now, rescheduling and cloning jobs"),
    ("BEY-6", "one filter, previews and acts on many jobs"),
    ("BEY-7", "log lines of jobs"),
    ("BEY-8", "shares, caps and quotas per tenant"),
    ("BEY-10", "doctor"),
    ("BEY-11", "test helpers"),
    ("BEY-14", "backlog and wait by handler for autoscalers"),
    ("BEY-17", "PostgreSQL 15, 16, 17 and 18, with the same tests"),
    ("SEC-3", "limits on everything that comes from outside"),
];

#[test]
fn every_claimed_requirement_has_a_test() {
    let tests = tests_by_requirement();
    let missing: Vec<&str> = CLAIMED.iter().map(|(id, _)| *id).filter(|id| !tests.contains_key(*id)).collect();
    assert!(missing.is_empty(), "no test names {}", missing.join(", "));
}

#[test]
fn the_page_of_requirements_is_current() {
    let page = root().join("docs/requirements.md");
    let current = written(&tests_by_requirement());
    if std::env::var_os("WINDLASS_WRITE_DOCS").is_some() {
        std::fs::write(&page, &current).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(found == current, "docs/requirements.md is out of date: write it anew with WINDLASS_WRITE_DOCS=1");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

type Tests = BTreeMap<String, BTreeSet<String>>;

/// From the suites' registries, and from the comments of every other test.
fn tests_by_requirement() -> Tests {
    let mut tests = Tests::new();
    let mut add = |id: &str, test: String| {
        tests.entry(id.to_owned()).or_default().insert(test);
    };
    for (name, ids) in BEHAVIOURS {
        ids.iter().for_each(|id| add(id, format!("`behaviour::{name}`")));
    }
    for case in cases() {
        case.requirements.iter().for_each(|id| add(id, format!("`conformance::{}`", case.name)));
    }
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file can be read");
        let shown = file.strip_prefix(root().join("crates")).expect("below crates").display().to_string();
        for (name, comment) in commented_tests(&text) {
            ids_in(&comment).into_iter().for_each(|id| add(&id, format!("`{name}` in {shown}")));
        }
    }
    tests
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Each test function of a file with the comment above it.
fn commented_tests(text: &str) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    let (mut comment, mut is_test) = (String::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push_str(words);
        } else if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else {
            // A scenario that the HTTP tests run on every store has no attribute of its own.
            is_test |= line.starts_with("pub(crate) async fn") && line.contains("(rig: &Rig)");
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                tests.push((name.to_owned(), std::mem::take(&mut comment)));
            }
            comment.clear();
            is_test = false;
        }
    }
    tests
}

/// The requirement ids in a text: three capitals, a hyphen, a number.
fn ids_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_id = |word: &&str| {
        word.split_once('-').is_some_and(|(area, number)| {
            area.len() == 3
                && area.bytes().all(|b| b.is_ascii_uppercase())
                && !number.is_empty()
                && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    words.filter(is_id).map(str::to_owned).collect()
}

fn written(tests: &Tests) -> String {
    let mut page = String::from(
        "# Requirements and the tests that show them\n\n\
         Made from the tests by `WINDLASS_WRITE_DOCS=1 cargo test -p windlass-testkit --test requirements`; a requirement\n\
         without a test fails the build. `behaviour::` and `conformance::` tests run on memory, SQLite and PostgreSQL, and\n\
         `conformance::` ones on PostgreSQL behind PgBouncer as well (in the short tier those of RUN-4 and SEC-1).\n\n\
         | id | promise | tests |\n|---|---|---|\n",
    );
    for (id, promise) in CLAIMED {
        let shown: Vec<&str> = tests.get(*id).into_iter().flatten().map(String::as_str).collect();
        writeln!(page, "| {id} | {promise} | {} |", shown.join("<br>")).expect("writing to a string");
    }
    page
}

#[test]
fn comments_of_tests_are_found() {
    let text = "/// ERR-5: twice.\n#[tokio::test]\nasync fn calls_back() {}\n\n/// ERR-7.\nfn helper() {}\n";
    assert_eq!(commented_tests(text), [("calls_back".to_owned(), " ERR-5: twice.".to_owned())]);
    assert_eq!(ids_in("SUB-3 and RUN-9, not F17 or x-1"), ["SUB-3", "RUN-9"]);
}
