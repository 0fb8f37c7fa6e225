//! Every page, with hostile text in every field: nothing that comes from a job becomes markup, no page carries code or a
//! style of its own, and no page leads to another host (S15, reliability.md 8.8).

use std::time::Duration;

use maud::Markup;
use windlass_core::store::{AuditEntry, Counts, NewNode, NodeId, NodeRecord, Pause, PauseTarget};
use windlass_core::{
    BatchId, HistoryEntry, JobError, JobId, JobRecord, MachineSlot, Payload, Progress, Quota, Quotas, Replayed, Status,
    TenantId, TenantUse, Timestamp, Why,
};

use super::super::chart::{Chart, Kind, LeadsTo, Series, Unit};
use super::super::shell::{May, Shell, Theme, Viewer};
use super::super::urls::Urls;
use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Strings that have broken dashboards.
const HOSTILE: [&str; 14] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "\" onfocus=\"alert(1)\" autofocus=\"",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</title><svg onload=alert(1)>",
    "<!--<script>alert(1)//-->",
    "../../../keys?x=1&y=2#z",
    "{{constructor.constructor('alert(1)')()}}",
    "\u{202e}txt.exe\u{0}\r\nSet-Cookie: a=b",
    "//evil.example/x",
    "<style>@import '//evil.example'</style><a href=\"https://evil.example\">",
];

fn shell(may: May, text: &str) -> Shell {
    Shell {
        urls: Urls::new("/ops"),
        now: NOW,
        theme: Theme::Auto,
        viewer: Viewer {
            user: text.to_owned(),
            tenant: None,
            all_tenants: true,
            may,
            read_only: may == May::default(),
            has_session: true,
        },
        here: format!("/ops/jobs?q={}", super::super::urls::encode(text)),
        flash: Some(text.to_owned()),
        paused: Some(pause(PauseTarget::All, text)),
    }
}

fn everything() -> May {
    May { submit: true, operate: true, admin: true, payload: true }
}

fn pause(target: PauseTarget, text: &str) -> Pause {
    Pause { target, by: text.to_owned(), reason: text.to_owned(), at: NOW - Duration::from_secs(60) }
}

fn record(status: Status, text: &str) -> JobRecord {
    let mut job =
        JobRecord::new(JobId::from_i64(7), TenantId::ROOT, text.into(), text.into(), NOW - Duration::from_secs(90));
    job.status = status;
    job.attempt = 2;
    job.run_at = Some(NOW + Duration::from_secs(30));
    job.started_at = Some(NOW - Duration::from_secs(60));
    job.finished_at = status.is_terminal().then_some(NOW);
    job.output = Payload::encode("output", text, 10_000).ok();
    job.error = Some(JobError::terminal(text, text).with_details(serde_json::json!({ text: text })));
    job.reason = Some(text.into());
    job.progress =
        Some(Progress { sequence: 3, percent: 41.5, message: text.into(), updated_at: Timestamp::default() });
    job.batch = Some(BatchId(JobId::from_i64(9)));
    job.tags = vec![text.into()];
    job.correlation_id = Some(text.into());
    job.ordering_key = Some(text.into());
    job.node = Some(NodeId(3));
    job.replayed = Some(Replayed { by: text.into(), at: NOW, as_job: JobId::from_i64(8) });
    job.spec.user = Some(text.into());
    job.spec.idempotency_key = Some(text.into());
    job.spec.parent = Some(JobId::from_i64(5));
    job.spec.headers.insert(text.into(), text.into());
    job
}

fn job(status: Status, text: &str, input: job::Input) -> job::Job {
    let mut failed = HistoryEntry::new(NOW - Duration::from_secs(50), Status::Retrying, 1);
    failed.started_at = Some(NOW - Duration::from_secs(60));
    failed.error = Some(JobError::retryable(text));
    failed.note = Some(text.into());
    let log = job::LogRow { at: NOW, attempt: 1, level: "warn", message: text.into() };
    job::Job {
        record: record(status, text),
        history: vec![HistoryEntry::new(NOW - Duration::from_secs(90), Status::Pending, 0), failed],
        why: Some(Why::Paused { pause: pause(PauseTarget::Handler(text.into()), text) }),
        logs: vec![log.clone(), job::LogRow { attempt: 2, ..log }],
        logs_dropped: 4,
        input,
        json: serde_json::json!({ "handler": text }).to_string(),
        commands: vec![("curl", format!("curl '{text}'")), ("CLI", format!("windlass show '{text}'"))],
    }
}

fn jobs(text: &str, filled: bool) -> jobs::Jobs {
    let statuses = Status::ALL.into_iter().filter(|_| filled);
    jobs::Jobs {
        filter: text.into(),
        problem: None,
        tabs: jobs::TABS.map(|status| (status, jobs::Seen { n: 200, or_more: true })).to_vec(),
        status: Some(Status::Running),
        jobs: statuses.map(|status| record(status, text)).collect(),
        columns: String::new(),
        is_later: filled,
        next: filled.then_some(JobId::from_i64(6)),
        suggestions: vec![text.into()],
    }
}

fn counts() -> Counts {
    let mut counts = Counts::default();
    Status::ALL.iter().for_each(|status| counts.add(*status, 12_345));
    counts
}

fn chart() -> Chart {
    let series = |name, class| Series { name, class, values: vec![Some(1.0), None, Some(3.5)], leads_to: None };
    Chart {
        id: "throughput",
        title: "Throughput",
        unit: Unit::PerSecond,
        kind: Kind::Lines,
        times: (0..3).map(|step| NOW - Duration::from_secs(step * 10)).collect(),
        step: Duration::from_secs(10),
        now: NOW,
        leads_to: LeadsTo::Submitted,
        series: vec![series("submitted", "k-submitted"), series("failed", "k-failed")],
    }
}

fn overview(text: &str) -> overview::Overview {
    let trouble = overview::Trouble {
        level: overview::Level::Bad,
        title: text.into(),
        detail: text.into(),
        at: Some(NOW),
        link: format!("/jobs?q={}", super::super::urls::encode(text)),
    };
    let vital =
        overview::Vital { name: text.into(), value: text.into(), level: overview::Level::Warn, note: text.into() };
    let busy = overview::Busy {
        handler: text.into(),
        succeeded: 3,
        failed: 1,
        run_p95: Some(Duration::from_millis(12)),
        wait_p95: None,
    };
    overview::Overview {
        counts: counts(),
        span: "1h".into(),
        charts: vec![chart()],
        troubles: vec![trouble],
        vitals: vec![vital],
        busiest: vec![busy],
    }
}

fn node(text: &str, age: u64) -> NodeRecord {
    let handlers = (0..6).map(|n| format!("{text}{n}")).collect();
    let info = NewNode { host: text.into(), pid: 1, version: text.into(), handlers, capacity: 8 };
    NodeRecord {
        node: NodeId(3),
        slot: MachineSlot::new(4).expect("a slot"),
        info,
        running: 5,
        started_at: NOW,
        heartbeat_at: NOW - Duration::from_secs(age),
    }
}

fn tenants(text: &str) -> tenants::Tenants {
    let quota = Quota::new().queued(100).running(4).bytes(10_000).submit_rate(10.0, 20);
    let mut quotas = Quotas { default: Some(quota.clone()), ..Quotas::default() };
    quotas.own.insert(TenantId::ROOT, quota.clone());
    let mut used = TenantUse::new(TenantId::ROOT, &quotas);
    (used.queued, used.running, used.bytes) = (90, 4, Some(5_000));
    tenants::Tenants {
        uses: vec![used],
        pauses: vec![pause(PauseTarget::Tenant(TenantId::ROOT), text)],
        default: Some(quota),
        more: true,
    }
}

fn handler(text: &str, paused: bool) -> handlers::Handler {
    handlers::Handler {
        name: text.into(),
        waiting: Some(3),
        oldest: Some(Duration::from_secs(5)),
        failed: 2,
        limit: Some(4),
        pause: paused.then(|| pause(PauseTarget::Handler(text.into()), text)),
        ..handlers::Handler::default()
    }
}

fn group(text: &str) -> failures::Group {
    failures::Group {
        signature: text.into(),
        handler: text.into(),
        code: text.into(),
        message: text.into(),
        sample: format!("{text}!"),
        dead: 4,
        retrying: 2,
        first_at: NOW - Duration::from_secs(9_000),
        last_at: NOW,
        latest: JobId::from_i64(7),
    }
}

fn key(text: &str, revoked: bool) -> access::Key {
    access::Key {
        id: text.into(),
        name: text.into(),
        tenant: TenantId::ROOT,
        all_tenants: revoked,
        user: text.into(),
        rights: text.into(),
        created_at: NOW,
        created_by: text.into(),
        expires_at: None,
        revoked_at: revoked.then_some(NOW),
        last_used_at: None,
    }
}

fn scheduled(text: &str, paused: bool) -> schedules::Shown {
    let owned = || text.to_owned();
    schedules::Shown {
        name: owned(),
        cron: owned(),
        zone: owned(),
        handler: owned(),
        missed: "once".to_owned(),
        overlap: "queue",
        jitter: Duration::from_secs(30),
        queue: Some(owned()),
        priority: None,
        tags: vec![owned()],
        timeout: Some(Duration::from_secs(5)),
        defined_by: Some(owned()),
        version: 3,
        paused,
        next_at: Some(NOW + Duration::from_secs(60)),
        last_at: Some(NOW),
        created_at: NOW,
        changed_at: NOW,
    }
}

fn schedule_list(text: &str, paused: bool) -> schedules::Schedules {
    let calendar = windlass_core::Calendar::new("*/30 * * * *", "UTC", NOW).expect("it fires");
    let mut day = super::super::strip::next_day(&calendar, NOW);
    day.label = text.to_owned();
    schedules::Schedules {
        schedules: vec![(scheduled(text, paused), Some(day)), (scheduled(text, !paused), None)],
        next: Some(text.to_owned()),
        is_later: true,
        form: schedule_form(text),
    }
}

fn schedule_page(text: &str, run: JobRecord) -> schedules::Schedule {
    let calendar = windlass_core::Calendar::new("@daily", "UTC", NOW).expect("it fires");
    schedules::Schedule {
        schedule: scheduled(text, true),
        days: super::super::strip::week(&calendar, "UTC", NOW),
        next: vec![NOW + Duration::from_secs(60)],
        runs: vec![run],
    }
}

fn schedule_form(text: &str) -> schedules::Form {
    let owned = || text.to_owned();
    schedules::Form {
        name: owned(),
        cron: owned(),
        zone: owned(),
        handler: owned(),
        input: Some(owned()),
        missed: owned(),
        missed_all: owned(),
        overlap: owned(),
        jitter: owned(),
        queue: owned(),
        priority: owned(),
        tags: owned(),
        timeout: owned(),
        version: 0,
        problem: Some(owned()),
        handlers: vec![owned()],
    }
}

fn hook(text: &str) -> access::Hook {
    access::Hook {
        id: text.into(),
        tenant: TenantId::ROOT,
        url: text.into(),
        events: vec![Status::Succeeded],
        handler: Some(text.into()),
        created_at: NOW,
        created_by: text.into(),
        paused: true,
    }
}

/// Every page in every shape, with `text` wherever text goes.
fn every_page(shell: &Shell, text: &str) -> Vec<(&'static str, Markup)> {
    let owned = || text.to_owned();
    let pretty = serde_json::json!({ "text": text }).to_string();
    let problem =
        |status| problem::Problem { status, message: owned(), request: Some(owned()), back: Some(shell.here.clone()) };
    let preview = |action: &str, chosen: Vec<JobId>| bulk::Preview {
        action: action.into(),
        filter: owned(),
        chosen,
        jobs: 2,
        more: true,
        sample: vec![record(Status::DeadLettered, text)],
        cap: 1_000,
        back: shell.here.clone(),
        problem: None,
    };
    let running = |state: &str| bulk::Running {
        id: "1".into(),
        action: owned(),
        filter: owned(),
        done: 1,
        failed: 1,
        skipped: 1,
        total: 9,
        state: state.into(),
        error: Some(owned()),
    };
    let change = |is_clone, input| job::Change {
        record: record(Status::Pending, text),
        is_clone,
        input,
        priority: owned(),
        start: (owned(), owned()),
        problem: Some(owned()),
    };
    let form = submit::Form {
        handler: owned(),
        input: owned(),
        priority: owned(),
        delay: owned(),
        run_at: owned(),
        idempotency_key: owned(),
        ordering_key: owned(),
        tags: owned(),
        queue: owned(),
        timeout: owned(),
        tenant: owned(),
        problem: Some(owned()),
        handlers: vec![owned()],
    };
    let entry = |target: String| AuditEntry {
        sequence: 0,
        at: NOW,
        actor: owned(),
        tenant: Some(TenantId::ROOT),
        action: owned(),
        target,
        detail: Some(owned()),
    };
    let empty = overview::Overview {
        counts: Counts::default(),
        troubles: vec![],
        vitals: vec![],
        busiest: vec![],
        ..overview(text)
    };
    let mut pages = vec![
        ("overview", overview::page(shell, &overview(text))),
        ("overview, new", overview::page(shell, &empty)),
        ("jobs", jobs::page(shell, &jobs(text, true))),
        ("jobs, none", jobs::page(shell, &jobs(text, false))),
        ("jobs, problem", jobs::page(shell, &jobs::Jobs { problem: Some(owned()), ..jobs(text, false) })),
        (
            "jobs, all columns",
            jobs::page(
                shell,
                &jobs::Jobs { columns: table::Column::ALL.map(table::Column::key).join(","), ..jobs(text, true) },
            ),
        ),
        ("dead", failures::dead(shell, &jobs(text, true), true)),
        ("dead, none", failures::dead(shell, &jobs("", false), false)),
        (
            "failures",
            failures::page(
                shell,
                &failures::Failures {
                    filter: owned(),
                    problem: None,
                    groups: vec![group(text)],
                    suggestions: vec![owned()],
                },
            ),
        ),
        (
            "failures, none",
            failures::page(
                shell,
                &failures::Failures { filter: String::new(), problem: None, groups: vec![], suggestions: vec![] },
            ),
        ),
        (
            "failures, problem",
            failures::page(
                shell,
                &failures::Failures { filter: owned(), problem: Some(owned()), groups: vec![], suggestions: vec![] },
            ),
        ),
        (
            "handlers",
            handlers::page(
                shell,
                &handlers::Handlers {
                    handlers: vec![handler(text, true), handler(text, false)],
                    other_pauses: vec![pause(PauseTarget::All, text)],
                    span: "1h",
                },
            ),
        ),
        (
            "handlers, none",
            handlers::page(shell, &handlers::Handlers { handlers: vec![], other_pauses: vec![], span: "1h" }),
        ),
        ("tenants", tenants::page(shell, &tenants(text))),
        (
            "nodes",
            nodes::page(
                shell,
                &nodes::Nodes {
                    nodes: vec![node(text, 1), node(text, 60)],
                    lease: Duration::from_secs(10),
                    version: "0.1.0".into(),
                },
            ),
        ),
        (
            "nodes, none",
            nodes::page(
                shell,
                &nodes::Nodes { nodes: vec![], lease: Duration::from_secs(10), version: "0.1.0".into() },
            ),
        ),
        (
            "audit",
            audit::page(
                shell,
                &audit::Audit {
                    action: owned(),
                    target: owned(),
                    entries: vec![entry(owned()), entry("77".into())],
                    next: Some(owned()),
                    is_later: true,
                },
            ),
        ),
        (
            "audit, none",
            audit::page(
                shell,
                &audit::Audit {
                    action: String::new(),
                    target: String::new(),
                    entries: vec![],
                    next: None,
                    is_later: false,
                },
            ),
        ),
        (
            "keys",
            access::keys(
                shell,
                &access::Keys {
                    keys: vec![key(text, true), key(text, false)],
                    fresh: Some((owned(), owned())),
                    problem: Some(owned()),
                },
            ),
        ),
        (
            "webhooks",
            access::webhooks(
                shell,
                &access::Webhooks {
                    hooks: vec![hook(text)],
                    fresh: Some((owned(), owned())),
                    problem: Some(owned()),
                    handlers: vec![owned()],
                },
            ),
        ),
        ("schedules", schedules::list(shell, &schedule_list(text, !shell.viewer.may.operate))),
        ("schedule", schedules::one(shell, &schedule_page(text, record(Status::Succeeded, text)))),
        ("schedule form", schedules::form(shell, &schedule_form(text))),
        ("submit", submit::page(shell, &form)),
        ("login", login::page(shell, &login::Login { problem: Some(owned()), is_local: true })),
        ("edit", job::change(shell, &change(false, Some(pretty.clone())))),
        ("clone", job::change(shell, &change(true, None))),
        ("bulk, running", bulk::running(shell, &running("running"))),
        ("bulk, failed", bulk::running(shell, &running("failed"))),
        (
            "confirm",
            problem::confirm(
                shell,
                &problem::Confirm {
                    path: "/pause".into(),
                    fields: vec![("target".into(), owned()), (owned(), owned())],
                    back: shell.here.clone(),
                },
            ),
        ),
    ];
    pages.extend(bulk::CHOICES.map(|choice| ("bulk", bulk::preview(shell, &preview(choice.name, vec![])))));
    pages.push(("bulk, chosen", bulk::preview(shell, &preview(text, vec![JobId::from_i64(7)]))));
    pages.extend(
        [400, 403, 404, 409, 413, 422, 429, 500, 503].map(|status| ("problem", problem::page(shell, &problem(status)))),
    );
    for status in Status::ALL {
        pages.push(("job", job::page(shell, &job(status, text, job::Input::Shown(pretty.clone())))));
    }
    for input in [job::Input::Forbidden, job::Input::Offered, job::Input::Closed(owned())] {
        pages.push(("job", job::page(shell, &job(Status::Running, text, input))));
    }
    pages
}

#[test]
fn hostile_text_never_becomes_markup() {
    for text in HOSTILE {
        for may in [everything(), May::default()] {
            let shell = shell(may, text);
            for (name, page) in every_page(&shell, text) {
                inspect(name, &page.into_string());
            }
        }
    }
}

#[test]
fn an_address_from_a_job_is_a_link_only_if_it_is_http() {
    let linked = |text: &str| super::super::components::linked(text).into_string();
    assert!(linked("https://traces.example/7").contains("rel=\"noopener noreferrer nofollow\""));
    for text in ["javascript:alert(1)", " https://a", "https://a b", "ftp://a", "//a", "see https://a"] {
        assert!(!linked(text).contains("<a"), "{text}");
    }
}

/// What a viewer may not do is not offered, on any page (API-5).
#[test]
fn without_rights_no_page_offers_an_action() {
    for (name, page) in every_page(&shell(May::default(), "plain"), "plain") {
        let html = page.into_string();
        let forms: Vec<&str> = html
            .split("<form")
            .skip(1)
            .filter(|form| form.split('>').next().is_some_and(|tag| tag.contains("method=\"post\"")))
            .collect();
        let actions = forms.iter().filter_map(|form| form.split("action=\"").nth(1)?.split('"').next());
        let own = ["/ops/theme", "/ops/tenant", "/ops/logout", "/ops/login"];
        // These pages are reached only by who may, and their routes refuse everyone else.
        let guarded =
            ["keys", "webhooks", "schedule form", "submit", "edit", "clone", "confirm", "bulk", "bulk, chosen"];
        let offered: Vec<&str> = actions.filter(|action| !own.contains(action)).collect();
        assert!(guarded.contains(&name) || offered.is_empty(), "{name} offers {offered:?}");
    }
}

#[test]
fn the_input_is_shown_only_to_who_asked_for_it() {
    let page = |input| job::page(&shell(everything(), "plain"), &job(Status::Succeeded, "plain", input)).into_string();
    assert!(page(job::Input::Shown("{\"secret\":12345678901234567890}".into())).contains("12345678901234567890"));
    assert!(page(job::Input::Offered).contains("Show the input"));
    assert!(page(job::Input::Forbidden).contains("do not have the right"));
    let reader = shell(May::default(), "plain");
    let html = job::page(&reader, &job(Status::Succeeded, "plain-header", job::Input::Forbidden)).into_string();
    assert!(!html.contains("<dt class=\"mono\">plain-header</dt>"), "headers travel with the input");
}

#[test]
fn every_page_stands_below_its_base_path() {
    for (name, page) in every_page(&shell(everything(), "plain"), "plain") {
        let html = page.into_string();
        assert!(!html.contains("href=\"/jobs") && !html.contains("action=\"/jobs"), "{name}");
        assert!(html.contains("href=\"/ops/assets/dashboard."), "{name} has its stylesheet");
    }
}

/// Reads a page tag by tag, and fails on any element, attribute or address that no view writes.
fn inspect(name: &str, html: &str) {
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a whole document");
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        if let Some(closing) = rest.strip_prefix('/') {
            let (tag, after) = closing.split_once('>').expect("a closed tag");
            assert!(ELEMENTS.contains(&tag), "{name}: </{tag}>");
            rest = after;
            continue;
        }
        let end = rest.find([' ', '>']).expect("a tag ends");
        let tag = &rest[..end];
        assert!(
            ELEMENTS.contains(&tag),
            "{name}: <{tag}> in …{}",
            &html[html.len() - rest.len()..].chars().take(80).collect::<String>()
        );
        rest = attributes(name, tag, &rest[end..]);
    }
}

fn attributes<'a>(name: &str, tag: &str, mut rest: &'a str) -> &'a str {
    let mut is_out = false;
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('>') {
            if tag == "script" {
                assert!(after.starts_with("</script>"), "{name}: code inside the page");
            }
            return after;
        }
        let end = rest.find(['=', ' ', '>']).expect("an attribute ends");
        let attribute = &rest[..end];
        let known = ATTRIBUTES.contains(&attribute) || attribute.starts_with("data-") || attribute.starts_with("aria-");
        assert!(known, "{name}: <{tag} {attribute}>");
        rest = &rest[end..];
        let Some(quoted) = rest.strip_prefix("=\"") else {
            assert!(!rest.starts_with('='), "{name}: <{tag} {attribute}> has a bare value");
            continue;
        };
        let (value, after) = quoted.split_once('"').expect("a quoted value ends");
        assert!(!value.contains('<'), "{name}: <{tag} {attribute}> has markup in its value");
        is_out |= tag == "a" && attribute == "class" && value == "out";
        if ["href", "src", "action"].contains(&attribute) {
            let is_own = value.starts_with("/ops/") && !value.starts_with("/ops//") && !value[5..].contains("../")
                || value.starts_with('#');
            assert!(is_own || is_out, "{name}: <{tag} {attribute}=\"{value}\"> leads away");
            assert!(tag != "script" || value.starts_with("/ops/assets/"), "{name}: {value}");
        }
        rest = after;
    }
}

/// Every element that views write. None of them can load anything by itself but `link` and `script`, whose addresses are
/// looked at.
const ELEMENTS: [&str; 67] = [
    "html",
    "head",
    "meta",
    "title",
    "link",
    "script",
    "body",
    "main",
    "header",
    "nav",
    "section",
    "article",
    "aside",
    "div",
    "span",
    "p",
    "h1",
    "h2",
    "h3",
    "ul",
    "ol",
    "li",
    "dl",
    "dt",
    "dd",
    "a",
    "b",
    "code",
    "pre",
    "kbd",
    "time",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "form",
    "label",
    "input",
    "button",
    "select",
    "option",
    "textarea",
    "fieldset",
    "legend",
    "datalist",
    "details",
    "summary",
    "dialog",
    "progress",
    "meter",
    "figure",
    "figcaption",
    "output",
    "svg",
    "path",
    "line",
    "rect",
    "title",
    "i",
    "em",
    "small",
    "strong",
    "hr",
    "br",
    "caption",
];

const ATTRIBUTES: [&str; 62] = [
    "lang",
    "charset",
    "name",
    "content",
    "rel",
    "type",
    "href",
    "src",
    "defer",
    "class",
    "id",
    "title",
    "role",
    "for",
    "hidden",
    "tabindex",
    "method",
    "action",
    "value",
    "placeholder",
    "autocomplete",
    "autocapitalize",
    "spellcheck",
    "list",
    "required",
    "maxlength",
    "min",
    "max",
    "low",
    "high",
    "optimum",
    "step",
    "rows",
    "checked",
    "selected",
    "open",
    "autofocus",
    "inputmode",
    "form",
    "scope",
    "datetime",
    "target",
    "viewBox",
    "preserveAspectRatio",
    "d",
    "x",
    "y",
    "x1",
    "x2",
    "y1",
    "y2",
    "width",
    "height",
    "focusable",
    "label",
    "colspan",
    "rowspan",
    "disabled",
    "readonly",
    "pattern",
    "size",
    "abbr",
];

/// API-5: no list that renews itself moves its rows under the hands of who is at it.
#[test]
fn every_live_list_waits_while_somebody_is_at_it() {
    let mut lists = 0;
    for (name, page) in every_page(&shell(everything(), "plain"), "plain") {
        let html = page.into_string();
        for section in html.split("<section ").skip(1).filter_map(|rest| rest.split("</section>").next()) {
            let (head, content) = section.split_once('>').expect("a section has an end");
            if head.contains("data-live") && content.contains("<table class=\"rows") {
                lists += 1;
                assert!(head.contains("data-hold"), "{name}: {head}");
                assert!(content.contains("data-rows"), "{name}: its rows are not known to the script");
                let (_, rows) = content.split_once("<tbody>").expect("a table has rows");
                for row in rows.split("<tr").skip(1) {
                    assert!(row.starts_with(" data-href=") || row.starts_with(" data-row="), "{name}: {row}");
                }
            }
        }
    }
    assert!(lists >= 7, "only {lists} lists were found");
}
