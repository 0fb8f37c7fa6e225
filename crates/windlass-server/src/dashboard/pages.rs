//! The pages that are looked at: each loads what it shows from the service and hands it to its view. Called by the
//! router. Reads within bounds only: maintained counters and keyset pages, never a count over jobs; changes nothing but
//! the audit log, where somebody looks at an input.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use windlass_core::store::{AuditEntry, AuditFilter, Counts, NodeRecord, PauseTarget};
use windlass_core::{
    BulkId, BulkOptions, Error, FailureGroup, Found, JobFilter, JobId, JobRecord, Page, Span, Status, TenantUse,
};

use super::diagnose::{self, Facts, HookOff};
use super::find::{Lead, lead};
use super::request::{PageRequest, bare_shell, see};
use super::shell::{self, Live, Place, find_form};
use super::views::jobs::{Seen, TABS};
use super::views::{access, audit, bulk, failures, handlers, job, jobs, login, nodes, overview, submit, tenants};
use super::{actions, activity, components};
use crate::App;
use crate::extract::PathJob;
use crate::problem::Problem;

type Answer = Result<Markup, Problem>;

/// Jobs on a page.
const PAGE_JOBS: usize = 50;

/// Groups of failures on a page: who has more problems at once works them off from the top.
const GROUPS: usize = 50;

/// Tenants on a page; the busiest are shown.
const TENANTS: usize = 200;

/// Webhooks that are off and named on the overview: each costs a look at the audit log, and their page has the others.
const HOOKS_OFF: usize = 5;

/// Audit entries on a page.
const ENTRIES: usize = 200;

/// The time that rates on the page of handlers look back.
const RATES: Span = Span::Hour;

impl PageRequest {
    async fn counts(&self) -> Result<Counts, Problem> {
        Ok(self.within().counts().await?)
    }

    /// A page of jobs that pass. Looks at so many candidates and no more, whatever the filter.
    async fn search(&self, filter: &JobFilter) -> Result<Found, Problem> {
        self.search_page(filter, Page { limit: PAGE_JOBS, before: self.before()?, offset: 0 }).await
    }

    async fn search_page(&self, filter: &JobFilter, page: Page) -> Result<Found, Problem> {
        Ok(self.within().search(filter, page).await?)
    }

    async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>, Problem> {
        Ok(self.within().failures(filter, limit).await?)
    }

    async fn activity(&self, span: Span) -> Result<windlass_core::Activity, Problem> {
        Ok(self.within().activity(span).await?)
    }

    async fn backlog(&self) -> Result<Vec<windlass_core::Backlog>, Problem> {
        Ok(self.within().backlog().await?)
    }

    /// How the installation is, for who operates it.
    async fn health(&self) -> Result<Option<windlass_core::Health>, Problem> {
        match self.caller.principal.all_tenants {
            true => Ok(Some(self.app.service.health().await?)),
            false => Ok(None),
        }
    }

    /// Webhooks that are told nothing now, the first few, with why.
    async fn hooks_off(&self) -> Result<Vec<HookOff>, Problem> {
        let hooks = self.within().webhooks().await?;
        let may_resume = self.may().admin;
        let mut off = Vec::new();
        for hook in hooks.into_iter().filter(|hook| hook.paused).take(HOOKS_OFF) {
            let mut filter = AuditFilter::default();
            (filter.target, filter.limit) = (Some(hook.id.clone()), diagnose::WHY_OFF);
            let last = diagnose::why_off(self.audit_log(&filter).await?);
            off.push(HookOff { id: hook.id, last, may_resume });
        }
        Ok(off)
    }

    async fn audit_log(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Problem> {
        Ok(self.within().audit_log(filter).await?)
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>, Problem> {
        Ok(self.app.service.nodes().await?)
    }

    /// Handlers that live nodes have, in order.
    pub(crate) async fn handlers(&self) -> Result<Vec<String>, Problem> {
        let names: BTreeSet<String> = self.nodes().await?.into_iter().flat_map(|node| node.info.handlers).collect();
        Ok(names.into_iter().collect())
    }
}

/// The first page.
pub(crate) async fn overview(request: PageRequest) -> Answer {
    let span = Span::parse(request.query.get("span")).unwrap_or(Span::Hour);
    let everything = JobFilter::all();
    let (counts, activity, groups, backlog, pauses, hooks, health) = tokio::try_join!(
        request.counts(),
        request.activity(span),
        request.failures(&everything, diagnose::GROUPS),
        request.backlog(),
        request.pauses(),
        request.hooks_off(),
        request.health()
    )?;
    let usage = match &health {
        Some(_) => None,
        None => Some(request.app.service.usage(&request.context()).await?),
    };
    let facts = Facts {
        now: request.app.service.now(),
        counts: &counts,
        pauses: &pauses,
        groups: &groups,
        backlog: &backlog,
        hooks: &hooks,
        health: health.as_ref(),
        usage: usage.as_ref(),
    };
    let page = overview::Overview {
        span: span.as_str().to_owned(),
        charts: activity::charts(&activity, request.app.service.now()),
        busiest: activity::busiest(&activity),
        troubles: diagnose::troubles(&facts),
        vitals: diagnose::vitals(&facts),
        counts,
    };
    Ok(overview::page(&request.shell(&pauses), &page))
}

/// Leads to what was typed into the box.
pub(crate) async fn find(request: PageRequest) -> Result<Response, Problem> {
    let typed = request.query.get("q").to_owned();
    let urls = &request.urls;
    match lead(&typed, &request.handlers().await?, request.app.service.now()) {
        Lead::Nowhere => Ok(request.find_page(&typed, html! {}).await?.into_response()),
        Lead::Job(id) | Lead::Number(id, _) if !request.get(&[id]).await?.is_empty() => Ok(see(&urls.job(id))),
        Lead::Job(id) => Ok(request.find_page(&typed, components::problem(&no_job(id))).await?.into_response()),
        Lead::Number(_, filter) if request.has_failures(&filter).await? => {
            Ok(see(&urls.query("/failures", &[("q", &filter)])))
        }
        Lead::Number(id, filter) => {
            let instead = html! {
                (components::problem(&no_job(id)))
                p { a href=(urls.jobs(&filter)) { "Jobs with " (typed.trim()) " in their error" } }
            };
            Ok(request.find_page(&typed, instead).await?.into_response())
        }
        Lead::Jobs(filter) => Ok(see(&urls.jobs(&filter))),
        // Its nodes may be down, which is when people look for its jobs.
        Lead::Failures(_) if request.has_jobs_of(&typed).await? => {
            Ok(see(&urls.jobs(&super::urls::term("handler", &typed))))
        }
        Lead::Failures(filter) => {
            // What fails now stands in groups; what failed once is still found among the jobs.
            let fails = request.has_failures(&filter).await?;
            Ok(see(&if fails { urls.query("/failures", &[("q", &filter)]) } else { urls.jobs(&filter) }))
        }
    }
}

fn no_job(id: JobId) -> String {
    format!("There is no job {id}, it was removed, or it belongs to another tenant.")
}

impl PageRequest {
    /// The box as a page, for who has no script and for what was not found.
    async fn find_page(&self, typed: &str, found: Markup) -> Answer {
        let shell = self.frame().await?;
        let content = html! {
            (found)
            section.panel.form-panel { (find_form(&shell.urls, typed)) }
        };
        Ok(shell.page(shell::Page {
            place: Place::Elsewhere,
            title: "Find",
            aside: html! {},
            content,
            live: Live::default(),
        }))
    }

    /// Whether something fails now that passes a filter.
    async fn has_failures(&self, filter: &str) -> Result<bool, Problem> {
        Ok(!self.failures(&self.filter(filter)?, 1).await?.is_empty())
    }

    /// Whether a text is the name of a handler that jobs are for, though no live node has it.
    async fn has_jobs_of(&self, text: &str) -> Result<bool, Problem> {
        let filter = super::urls::term("handler", text);
        match JobFilter::parse(&filter, self.app.service.now()) {
            Ok(filter) => Ok(!self.search_page(&filter, Page::first(1)).await?.jobs.is_empty()),
            // No name reads like this.
            Err(_) => Ok(false),
        }
    }

    /// The filter of the address: `q`, or `filter` as the API calls it.
    fn filter_text(&self) -> String {
        self.query.given("q").unwrap_or_else(|| self.query.get("filter")).to_owned()
    }
}

/// The jobs that pass a filter.
pub(crate) async fn jobs(request: PageRequest) -> Answer {
    let text = request.filter_text();
    let (pauses, handlers) = tokio::try_join!(request.pauses(), request.handlers())?;
    let mut list = jobs::Jobs {
        problem: None,
        tabs: Vec::new(),
        status: None,
        jobs: Vec::new(),
        columns: columns(&request),
        is_later: request.query.given("before").is_some(),
        next: None,
        suggestions: suggestions(&handlers, true),
        filter: text.clone(),
    };
    match request.filter(&text) {
        Ok(filter) => {
            list.status = <[Status; 1]>::try_from(filter.statuses.clone()).ok().map(|[status]| status);
            let of_any_status = request.filter(&jobs::with_status(&text, None))?;
            let (found, tabs) = tokio::try_join!(request.search(&filter), request.tabs(&of_any_status))?;
            Found { jobs: list.jobs, next: list.next } = found;
            list.tabs = tabs;
        }
        Err(problem) => list.problem = Some(what_is_wrong(&problem)),
    }
    Ok(jobs::page(&request.shell(&pauses), &list))
}

/// Jobs that a tab counts under a filter; what is beyond is shown as `200+`. As many as a page of a search may have.
const TAB_JOBS: usize = Page::MAX;

impl PageRequest {
    /// How many jobs of each status pass a filter: what the tabs lead to. Looks at so many candidates and no more.
    async fn tabs(&self, filter: &JobFilter) -> Result<Vec<(Status, Seen)>, Problem> {
        if filter.terms() == 0 {
            let counts = self.counts().await?;
            return Ok(TABS.map(|status| (status, Seen { n: counts.get(status), or_more: false })).to_vec());
        }
        let all = self.search_page(filter, Page::first(TAB_JOBS)).await?;
        if all.next.is_none() {
            let of = |status| all.jobs.iter().filter(|job| job.status == status).count() as u64;
            return Ok(TABS.map(|status| (status, Seen { n: of(status), or_more: false })).to_vec());
        }
        // Too many for one look: those of each status by themselves, of which some are few and kept apart.
        let one = async |status| {
            let mut narrowed = filter.clone();
            narrowed.statuses = vec![status];
            let found = self.search_page(&narrowed, Page::first(TAB_JOBS)).await?;
            Ok((status, Seen { n: found.jobs.len() as u64, or_more: found.next.is_some() }))
        };
        futures_util::future::try_join_all(TABS.map(one)).await
    }
}

/// The columns that the address asks for, as one name with commas or as many boxes that were ticked.
fn columns(request: &PageRequest) -> String {
    match request.query.given("cols") {
        Some(columns) => columns.to_owned(),
        None => request.query.all("col").join(","),
    }
}

/// What a filter can say, for the list under its field.
fn suggestions(handlers: &[String], with_status: bool) -> Vec<String> {
    let statuses = Status::ALL.iter().filter(|_| with_status).map(|status| format!("status:{status}"));
    let handlers = handlers.iter().map(|handler| super::urls::term("handler", handler));
    let others = [
        "tag:",
        "error:",
        "key:",
        "queue:",
        "priority:high",
        "created>1h",
        "created<1d",
        "ended>1h",
        "attempt>1",
        "ran>10s",
        "waited>10s",
        "-status:succeeded",
        "id:",
        "correlation:",
        "batch:",
        "node:",
        "tenant:",
        "signature:",
        "input.",
    ];
    statuses.chain(handlers).chain(others.map(str::to_owned)).collect()
}

fn what_is_wrong(problem: &Problem) -> String {
    problem.detail.clone()
}

/// Dead letters.
pub(crate) async fn dead(request: PageRequest) -> Answer {
    let text = request.filter_text();
    let with_replayed = request.query.get("show") == "all";
    let (pauses, handlers) = tokio::try_join!(request.pauses(), request.handlers())?;
    let mut list = jobs::Jobs {
        problem: None,
        tabs: Vec::new(),
        status: Some(Status::DeadLettered),
        jobs: Vec::new(),
        columns: columns(&request),
        is_later: request.query.given("before").is_some(),
        next: None,
        suggestions: suggestions(&handlers, false),
        filter: text.clone(),
    };
    match request.filter(&text) {
        Ok(mut filter) => {
            filter.statuses = vec![Status::DeadLettered];
            filter.replayed = filter.replayed.or(if with_replayed { None } else { Some(false) });
            Found { jobs: list.jobs, next: list.next } = request.search(&filter).await?;
        }
        Err(problem) => list.problem = Some(what_is_wrong(&problem)),
    }
    Ok(failures::dead(&request.shell(&pauses), &list, with_replayed))
}

/// Failures by what is wrong.
pub(crate) async fn failures(request: PageRequest) -> Answer {
    let text = request.filter_text();
    let (pauses, handlers) = tokio::try_join!(request.pauses(), request.handlers())?;
    let (groups, problem) = match request.filter(&text) {
        Ok(filter) => (request.failures(&filter, GROUPS).await?, None),
        Err(problem) => (Vec::new(), Some(what_is_wrong(&problem))),
    };
    let page = failures::Failures {
        filter: text,
        problem,
        groups: groups.into_iter().map(failures::Group::from).collect(),
        suggestions: suggestions(&handlers, false),
    };
    Ok(failures::page(&request.shell(&pauses), &page))
}

impl From<FailureGroup> for failures::Group {
    fn from(group: FailureGroup) -> Self {
        failures::Group {
            signature: group.signature.to_string(),
            handler: group.handler,
            code: group.code,
            message: group.message,
            sample: group.sample,
            dead: group.dead,
            retrying: group.retrying,
            first_at: group.first_at,
            last_at: group.last_at,
            latest: group.latest,
        }
    }
}

/// One job.
pub(crate) async fn job(request: PageRequest, PathJob(id): PathJob) -> Answer {
    let service = &request.app.service;
    let ctx = request.caller.context_of(&request.app, id).await?;
    let record = service.get(&ctx, id).await?;
    let has_ended = record.status.is_terminal();
    let (history, why, logs, pauses) = tokio::try_join!(
        async { Ok::<_, Problem>(service.history(&ctx, id).await?) },
        async { if has_ended { Ok(None) } else { Ok(Some(service.why(&ctx, id).await?)) } },
        async { Ok(service.logs(&ctx, id, 0).await?) },
        request.pauses()
    )?;
    // The script puts fresh parts in place often; the input is not one of them, and looking at it is written down.
    let input = match (request.may().payload, request.query.get("show") == "input" && !request.is_refresh) {
        (false, _) => job::Input::Forbidden,
        (true, false) => job::Input::Offered,
        (true, true) => match service.read_input(&ctx, id).await {
            Ok(input) => job::Input::Shown(input.as_str().to_owned()),
            Err(error @ Error::Sealed { .. }) => job::Input::Closed(error.to_string()),
            Err(error) => return Err(error.into()),
        },
    };
    let json = serde_json::to_string(&crate::model::Job::from(record.clone())).map_err(|_| Problem::internal())?;
    let page = job::Job {
        commands: commands(&request, id),
        logs_dropped: dropped(&logs),
        logs: logs.into_iter().map(job::LogRow::from).collect(),
        record,
        history,
        why,
        input,
        json,
    };
    Ok(job::page(&request.shell(&pauses), &page))
}

impl From<windlass_core::LogLine> for job::LogRow {
    fn from(line: windlass_core::LogLine) -> Self {
        job::LogRow { at: line.at, attempt: line.attempt, level: line.level.as_str(), message: line.message }
    }
}

/// Lines count from 1; those before the first that is left were dropped.
fn dropped(lines: &[windlass_core::LogLine]) -> u64 {
    lines.first().map_or(0, |line| line.sequence.saturating_sub(1))
}

/// Commands that show the same job elsewhere. The host is quoted for the shell; the id is a number.
fn commands(request: &PageRequest, id: JobId) -> Vec<(&'static str, String)> {
    let origin = request.origin.replace('\'', "");
    vec![
        ("curl", format!("curl -H \"Authorization: Bearer $WINDLASS_API_KEY\" '{origin}/api/v1/jobs/{id}'")),
        ("CLI", format!("windlass --url '{origin}' show {id}")),
    ]
}

/// The form that changes a waiting job.
pub(crate) async fn edit(request: PageRequest, PathJob(id): PathJob) -> Answer {
    change(request, id, false).await
}

/// The form that makes a job like another.
pub(crate) async fn clone(request: PageRequest, PathJob(id): PathJob) -> Answer {
    change(request, id, true).await
}

async fn change(request: PageRequest, id: JobId, is_clone: bool) -> Answer {
    let service = &request.app.service;
    let ctx = request.caller.context_of(&request.app, id).await?;
    let record = service.get(&ctx, id).await?;
    let input = match request.may().payload {
        true => Some(service.read_input(&ctx, id).await?.as_str().to_owned()),
        false => None,
    };
    let priority = job::priority_value(&record);
    let change = job::Change { record, is_clone, input, priority, start: Default::default(), problem: None };
    Ok(job::change(&request.frame().await?, &change))
}

/// What an action on many jobs would do.
pub(crate) async fn bulk(request: PageRequest) -> Answer {
    let chosen: Vec<JobId> = request.query.all("id").iter().filter_map(|id| id.parse().ok()).take(Page::MAX).collect();
    let action = request.query.given("action").unwrap_or("retry").to_owned();
    let cap = request.query.number("cap")?.unwrap_or(BulkOptions::default().cap).clamp(1, BulkOptions::MAX_CAP);
    let mut preview = bulk::Preview {
        filter: request.filter_text(),
        jobs: chosen.len() as u64,
        more: false,
        sample: Vec::new(),
        back: request.back(&request.query),
        problem: None,
        action,
        chosen,
        cap,
    };
    let looked = match (preview.chosen.is_empty(), request.query.get("scope") == "filter") {
        (false, _) => request.get(&preview.chosen).await.map(|sample| preview.sample = sample),
        (true, true) => request.look_at_many(&mut preview).await,
        (true, false) => Err(Problem::invalid("id", "select some jobs first")),
    };
    preview.problem = looked.err().filter(|problem| problem.status < 500).map(|problem| what_is_wrong(&problem));
    Ok(bulk::preview(&request.frame().await?, &preview))
}

impl PageRequest {
    /// The jobs with these ids that the asker may see.
    async fn get(&self, ids: &[JobId]) -> Result<Vec<JobRecord>, Problem> {
        Ok(self.app.service.store().get(self.caller.scope(), ids).await?)
    }

    async fn look_at_many(&self, preview: &mut bulk::Preview) -> Result<(), Problem> {
        let filter = actions::narrowed(self, &preview.action, &preview.filter)?;
        let seen = self.within().preview(&filter, preview.cap).await?;
        (preview.jobs, preview.more, preview.sample) = (seen.jobs, seen.more, seen.sample);
        Ok(())
    }
}

/// How far an action on many jobs has come.
pub(crate) async fn bulk_progress(request: PageRequest, PathJob(id): PathJob) -> Answer {
    let found = request.within().bulk_progress(BulkId(id)).await?;
    let progress = found.ok_or_else(|| Problem::not_found("there is no such action"))?;
    let page = bulk::Running {
        id: id.to_string(),
        action: progress.action,
        filter: progress.filter,
        done: progress.done,
        failed: progress.failed,
        skipped: progress.skipped,
        total: progress.total,
        state: serde_json::to_value(progress.state)
            .ok()
            .and_then(|state| state.as_str().map(str::to_owned))
            .unwrap_or_default(),
        error: progress.error,
    };
    Ok(bulk::running(&request.frame().await?, &page))
}

/// The handlers.
pub(crate) async fn handlers(request: PageRequest) -> Answer {
    let (nodes, backlog, past, lately, pauses) = tokio::try_join!(
        request.nodes(),
        request.backlog(),
        request.activity(RATES),
        request.activity(Span::Minutes5),
        request.pauses()
    )?;
    let mut rows = Rows::default();
    for handler in nodes.iter().flat_map(|node| &node.info.handlers) {
        let row = rows.of(handler);
        row.nodes += 1;
        // A live node has it: what is not in the backlog neither waits nor runs.
        (row.waiting, row.running) = (Some(0), Some(0));
    }
    for waits in &backlog {
        let row = rows.of(&waits.handler);
        (row.waiting, row.running) = (Some(waits.waiting), Some(waits.running));
        row.blocked = waits.blocked;
        row.oldest = (waits.waiting > 0).then_some(waits.oldest_wait);
    }
    for (handler, sums) in &past.by_handler {
        let row = rows.of(handler);
        (row.succeeded, row.failed) = (sums.succeeded, sums.failed);
        (row.wait_p95, row.run_p95) = (sums.wait.quantile(0.95), sums.run.quantile(0.95));
    }
    let seconds = lately.step.as_secs_f64() * lately.points.len().max(1) as f64;
    for (handler, sums) in &lately.by_handler {
        rows.of(handler).per_second = (sums.succeeded + sums.failed) as f64 / seconds;
    }
    for (handler, limit) in request.app.service.handler_limits() {
        rows.of(&handler).limit = Some(limit);
    }
    for pause in &pauses {
        if let PauseTarget::Handler(handler) = &pause.target {
            rows.of(handler).pause = Some(pause.clone());
        }
    }
    let other_pauses = pauses.iter().filter(|pause| matches!(pause.target, PauseTarget::Tenant(_))).cloned().collect();
    let page = handlers::Handlers { handlers: rows.0.into_values().collect(), other_pauses, span: RATES.as_str() };
    Ok(handlers::page(&request.shell(&pauses), &page))
}

/// The rows of the page of handlers, in order of name.
#[derive(Default)]
struct Rows(BTreeMap<String, handlers::Handler>);

impl Rows {
    fn of(&mut self, handler: &str) -> &mut handlers::Handler {
        let new = || handlers::Handler { name: handler.to_owned(), ..Default::default() };
        self.0.entry(handler.to_owned()).or_insert_with(new)
    }
}

/// The tenants.
pub(crate) async fn tenants(request: PageRequest) -> Answer {
    let pauses = request.pauses().await?;
    let (mut uses, default) = match request.caller.operator() {
        Some(_) => (request.within().tenants().await?, request.within().quotas().await?.default),
        None => (vec![request.app.service.usage(&request.context()).await?], None),
    };
    let more = uses.len() > TENANTS;
    uses.sort_by_key(|used: &TenantUse| std::cmp::Reverse((used.queued, used.running)));
    uses.truncate(TENANTS);
    let of_tenants = pauses.iter().filter(|pause| matches!(pause.target, PauseTarget::Tenant(_))).cloned().collect();
    Ok(tenants::page(&request.shell(&pauses), &tenants::Tenants { uses, pauses: of_tenants, default, more }))
}

/// The nodes.
pub(crate) async fn nodes(request: PageRequest) -> Answer {
    let (nodes, pauses) = tokio::try_join!(request.nodes(), request.pauses())?;
    let page = nodes::Nodes {
        nodes,
        lease: request.app.service.config().lease,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(nodes::page(&request.shell(&pauses), &page))
}

/// The audit log.
pub(crate) async fn audit(request: PageRequest) -> Answer {
    let (action, target) = (request.query.get("action"), request.query.get("target"));
    let mut filter = AuditFilter::default();
    filter.action = request.query.given("action").map(str::to_owned);
    filter.target = request.query.given("target").map(str::to_owned);
    filter.limit = ENTRIES;
    filter.before = request.query.number("before")?;
    let entries = request.audit_log(&filter).await?;
    let next = entries.last().filter(|_| entries.len() == ENTRIES).map(|entry| entry.sequence.to_string());
    let is_later = filter.before.is_some();
    let page = audit::Audit { action: action.to_owned(), target: target.to_owned(), entries, next, is_later };
    Ok(audit::page(&request.frame().await?, &page))
}

/// The API keys.
pub(crate) async fn keys(request: PageRequest) -> Answer {
    request.keys_page(None, None).await
}

impl PageRequest {
    /// The page of keys, with a key that was just made or with what was wrong with making one.
    pub(crate) async fn keys_page(&self, fresh: Option<(String, String)>, problem: Option<String>) -> Answer {
        let keys = self.within().api_keys().await?;
        let keys = keys.into_iter().map(access::Key::from).collect();
        Ok(access::keys(&self.frame().await?, &access::Keys { keys, fresh, problem }))
    }

    /// The page of webhooks, likewise.
    pub(crate) async fn hooks_page(&self, fresh: Option<(String, String)>, problem: Option<String>) -> Answer {
        let hooks = self.within().webhooks().await?;
        let (hooks, handlers) = (hooks.into_iter().map(access::Hook::from).collect(), self.handlers().await?);
        Ok(access::webhooks(&self.frame().await?, &access::Webhooks { hooks, fresh, problem, handlers }))
    }

    /// The form that submits a job, as it was filled in.
    pub(crate) async fn submit_page(&self, form: submit::Form) -> Answer {
        let form = submit::Form { handlers: self.handlers().await?, ..form };
        Ok(submit::page(&self.frame().await?, &form))
    }
}

impl From<windlass_core::ApiKey> for access::Key {
    fn from(key: windlass_core::ApiKey) -> Self {
        access::Key {
            id: key.id,
            name: key.name,
            tenant: key.tenant,
            all_tenants: key.all_tenants,
            user: key.user,
            rights: key.rights.to_string(),
            created_at: key.created_at,
            created_by: key.created_by,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

impl From<windlass_core::Webhook> for access::Hook {
    fn from(hook: windlass_core::Webhook) -> Self {
        access::Hook {
            id: hook.id,
            tenant: hook.tenant,
            url: hook.url,
            events: hook.events,
            handler: hook.handler,
            created_at: hook.created_at,
            created_by: hook.created_by,
            paused: hook.paused,
        }
    }
}

/// The webhooks.
pub(crate) async fn webhooks(request: PageRequest) -> Answer {
    request.hooks_page(None, None).await
}

/// The form that submits a job. The address may fill in its handler.
pub(crate) async fn submit(request: PageRequest) -> Answer {
    let handler = request.query.get("handler").to_owned();
    request.submit_page(submit::Form { handler, ..submit::Form::default() }).await
}

/// The login page. Nobody needs to be known to see it.
pub(crate) async fn login(State(app): State<App>, headers: HeaderMap) -> Markup {
    login_page(&app, &headers, None)
}

/// The same, with what was wrong with the last try.
pub(crate) fn login_page(app: &App, headers: &HeaderMap, problem: Option<String>) -> Markup {
    let is_local = app.config.auth == crate::Auth::Local;
    login::page(&bare_shell(app, headers), &login::Login { problem, is_local })
}
