//! The pages that are looked at: each loads what it shows from the service and hands it to its view. Called by the
//! router. Reads within bounds only: maintained counters and keyset pages, never a count over jobs; changes nothing but
//! the audit log, where somebody looks at an input.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::HeaderMap;
use maud::Markup;
use windlass_core::store::{AuditFilter, Counts, NodeRecord, PauseTarget};
use windlass_core::{
    BulkId, BulkOptions, Error, FailureGroup, Found, JobFilter, JobId, JobRecord, Page, Span, Status, TenantUse,
};

use super::ask::{Ask, bare_shell};
use super::diagnose::{self, Facts};
use super::views::{access, audit, bulk, failures, handlers, job, jobs, login, nodes, overview, submit, tenants};
use super::{acts, past};
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

/// Audit entries on a page.
const ENTRIES: usize = 200;

/// The time that rates on the page of handlers look back.
const RATES: Span = Span::Hour;

impl Ask {
    async fn counts(&self) -> Result<Counts, Problem> {
        Ok(match self.operator() {
            Some(operator) => operator.counts().await?,
            None => self.app.service.counts(&self.context()).await?,
        })
    }

    /// A page of jobs that pass. Looks at so many candidates and no more, whatever the filter.
    async fn search(&self, filter: &JobFilter) -> Result<Found, Problem> {
        let page = Page { limit: PAGE_JOBS, before: self.before()?, offset: 0 };
        Ok(match self.operator() {
            Some(operator) => operator.search(filter, page).await?,
            None => self.app.service.search(&self.context(), filter, page).await?,
        })
    }

    async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>, Problem> {
        Ok(match self.operator() {
            Some(operator) => operator.failures(filter, limit).await?,
            None => self.app.service.failures(&self.context(), filter, limit).await?,
        })
    }

    async fn activity(&self, span: Span) -> Result<windlass_core::Activity, Problem> {
        Ok(match self.operator() {
            Some(operator) => operator.activity(span).await?,
            None => self.app.service.activity(&self.context(), span).await?,
        })
    }

    async fn backlog(&self) -> Result<Vec<windlass_core::Backlog>, Problem> {
        Ok(match self.operator() {
            Some(operator) => operator.backlog().await?,
            None => self.app.service.backlog(&self.context()).await?,
        })
    }

    /// How the installation is, for who operates it.
    async fn health(&self) -> Result<Option<windlass_core::Health>, Problem> {
        match self.caller.principal.all_tenants {
            true => Ok(Some(self.app.service.health().await?)),
            false => Ok(None),
        }
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
pub(crate) async fn overview(ask: Ask) -> Answer {
    let span = Span::parse(ask.query.get("span")).unwrap_or(Span::Hour);
    let everything = JobFilter::all();
    let (counts, activity, groups, backlog, pauses, health) = tokio::try_join!(
        ask.counts(),
        ask.activity(span),
        ask.failures(&everything, diagnose::GROUPS),
        ask.backlog(),
        ask.pauses(),
        ask.health()
    )?;
    let usage = match &health {
        Some(_) => None,
        None => Some(ask.app.service.usage(&ask.context()).await?),
    };
    let facts = Facts {
        now: ask.app.service.now(),
        counts: &counts,
        pauses: &pauses,
        groups: &groups,
        backlog: &backlog,
        health: health.as_ref(),
        usage: usage.as_ref(),
    };
    let page = overview::Overview {
        span: span.as_str().to_owned(),
        charts: past::charts(&activity, ask.app.service.now()),
        busiest: past::busiest(&activity),
        troubles: diagnose::troubles(&facts),
        vitals: diagnose::vitals(&facts),
        counts,
    };
    Ok(overview::page(&ask.shell(&pauses), &page))
}

/// The jobs that pass a filter.
pub(crate) async fn jobs(ask: Ask) -> Answer {
    let text = ask.query.get("q").to_owned();
    let (pauses, counts, handlers) = tokio::try_join!(ask.pauses(), ask.counts(), ask.handlers())?;
    let mut list = jobs::Jobs {
        problem: None,
        counts,
        status: None,
        jobs: Vec::new(),
        columns: columns(&ask),
        is_later: ask.query.given("before").is_some(),
        next: None,
        suggestions: suggestions(&handlers, true),
        filter: text.clone(),
    };
    match ask.filter(&text) {
        Ok(filter) => {
            list.status = <[Status; 1]>::try_from(filter.statuses.clone()).ok().map(|[status]| status);
            Found { jobs: list.jobs, next: list.next } = ask.search(&filter).await?;
        }
        Err(problem) => list.problem = Some(what_is_wrong(&problem)),
    }
    Ok(jobs::page(&ask.shell(&pauses), &list))
}

/// The columns that the address asks for, as one name with commas or as many boxes that were ticked.
fn columns(ask: &Ask) -> String {
    match ask.query.given("cols") {
        Some(columns) => columns.to_owned(),
        None => ask.query.all("col").join(","),
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
pub(crate) async fn dead(ask: Ask) -> Answer {
    let text = ask.query.get("q").to_owned();
    let with_replayed = ask.query.get("show") == "all";
    let (pauses, counts, handlers) = tokio::try_join!(ask.pauses(), ask.counts(), ask.handlers())?;
    let mut list = jobs::Jobs {
        problem: None,
        counts,
        status: Some(Status::DeadLettered),
        jobs: Vec::new(),
        columns: columns(&ask),
        is_later: ask.query.given("before").is_some(),
        next: None,
        suggestions: suggestions(&handlers, false),
        filter: text.clone(),
    };
    match ask.filter(&text) {
        Ok(mut filter) => {
            filter.statuses = vec![Status::DeadLettered];
            filter.replayed = filter.replayed.or(if with_replayed { None } else { Some(false) });
            Found { jobs: list.jobs, next: list.next } = ask.search(&filter).await?;
        }
        Err(problem) => list.problem = Some(what_is_wrong(&problem)),
    }
    Ok(failures::dead(&ask.shell(&pauses), &list, with_replayed))
}

/// Failures by what is wrong.
pub(crate) async fn failures(ask: Ask) -> Answer {
    let text = ask.query.get("q").to_owned();
    let (pauses, handlers) = tokio::try_join!(ask.pauses(), ask.handlers())?;
    let (groups, problem) = match ask.filter(&text) {
        Ok(filter) => (ask.failures(&filter, GROUPS).await?, None),
        Err(problem) => (Vec::new(), Some(what_is_wrong(&problem))),
    };
    let page = failures::Failures {
        filter: text,
        problem,
        groups: groups.into_iter().map(failures::Group::from).collect(),
        suggestions: suggestions(&handlers, false),
    };
    Ok(failures::page(&ask.shell(&pauses), &page))
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
pub(crate) async fn job(ask: Ask, PathJob(id): PathJob) -> Answer {
    let service = &ask.app.service;
    let ctx = ask.caller.context_of(&ask.app, id).await?;
    let record = service.get(&ctx, id).await?;
    let has_ended = record.status.is_terminal();
    let (history, why, logs, pauses) = tokio::try_join!(
        async { Ok::<_, Problem>(service.history(&ctx, id).await?) },
        async { if has_ended { Ok(None) } else { Ok(Some(service.why(&ctx, id).await?)) } },
        async { Ok(service.logs(&ctx, id, 0).await?) },
        ask.pauses()
    )?;
    // The script puts fresh parts in place often; the input is not one of them, and looking at it is written down.
    let input = match (ask.may().payload, ask.query.get("show") == "input" && !ask.is_refresh) {
        (false, _) => job::Input::Forbidden,
        (true, false) => job::Input::Offered,
        (true, true) => match service.input(&ctx, id).await {
            Ok(input) => {
                service.audit(&ctx, acts::INPUT_READ, &id.to_string(), None).await?;
                job::Input::Shown(input.as_str().to_owned())
            }
            Err(error @ Error::Sealed { .. }) => job::Input::Closed(error.to_string()),
            Err(error) => return Err(error.into()),
        },
    };
    let json = serde_json::to_string(&crate::model::Job::from(record.clone())).map_err(|_| Problem::internal())?;
    let page = job::Job {
        commands: commands(&ask, id),
        logs_dropped: dropped(&logs),
        logs: logs.into_iter().map(job::LogRow::from).collect(),
        record,
        history,
        why,
        input,
        json,
    };
    Ok(job::page(&ask.shell(&pauses), &page))
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
fn commands(ask: &Ask, id: JobId) -> Vec<(&'static str, String)> {
    let origin = ask.origin.replace('\'', "");
    vec![
        ("curl", format!("curl -H \"Authorization: Bearer $WINDLASS_KEY\" '{origin}/api/v1/jobs/{id}'")),
        ("CLI", format!("windlass --url '{origin}' show {id}")),
    ]
}

/// The form that changes a waiting job.
pub(crate) async fn edit(ask: Ask, PathJob(id): PathJob) -> Answer {
    change(ask, id, false).await
}

/// The form that makes a job like another.
pub(crate) async fn clone(ask: Ask, PathJob(id): PathJob) -> Answer {
    change(ask, id, true).await
}

async fn change(ask: Ask, id: JobId, is_clone: bool) -> Answer {
    let service = &ask.app.service;
    let ctx = ask.caller.context_of(&ask.app, id).await?;
    let record = service.get(&ctx, id).await?;
    let input = match ask.may().payload {
        true => {
            let input = service.input(&ctx, id).await?;
            service.audit(&ctx, acts::INPUT_READ, &id.to_string(), None).await?;
            Some(input.as_str().to_owned())
        }
        false => None,
    };
    let priority = job::priority_value(&record);
    let change = job::Change { record, is_clone, input, priority, start: Default::default(), problem: None };
    Ok(job::change(&ask.frame().await?, &change))
}

/// What an action on many jobs would do.
pub(crate) async fn bulk(ask: Ask) -> Answer {
    let chosen: Vec<JobId> = ask.query.all("id").iter().filter_map(|id| id.parse().ok()).take(Page::MAX).collect();
    let action = ask.query.given("action").unwrap_or("retry").to_owned();
    let cap = ask.query.number("cap")?.unwrap_or(BulkOptions::default().cap).clamp(1, BulkOptions::MAX_CAP);
    let mut preview = bulk::Preview {
        filter: ask.query.get("q").to_owned(),
        jobs: chosen.len() as u64,
        more: false,
        sample: Vec::new(),
        back: ask.back(&ask.query),
        problem: None,
        action,
        chosen,
        cap,
    };
    let looked = match (preview.chosen.is_empty(), ask.query.get("scope") == "filter") {
        (false, _) => ask.get(&preview.chosen).await.map(|sample| preview.sample = sample),
        (true, true) => ask.look_at_many(&mut preview).await,
        (true, false) => Err(Problem::invalid("id", "select some jobs first")),
    };
    preview.problem = looked.err().filter(|problem| problem.status < 500).map(|problem| what_is_wrong(&problem));
    Ok(bulk::preview(&ask.frame().await?, &preview))
}

impl Ask {
    /// The jobs with these ids that the asker may see.
    async fn get(&self, ids: &[JobId]) -> Result<Vec<JobRecord>, Problem> {
        let scope = match self.caller.operator() {
            Some(right) => windlass_core::Scope::All(right),
            None => self.context().scope(),
        };
        Ok(self.app.service.store().get(scope, ids).await?)
    }

    async fn look_at_many(&self, preview: &mut bulk::Preview) -> Result<(), Problem> {
        let filter = acts::narrowed(self, &preview.action, &preview.filter)?;
        let seen = match self.operator() {
            Some(operator) => operator.preview(&filter, preview.cap).await?,
            None => self.app.service.preview(&self.context(), &filter, preview.cap).await?,
        };
        (preview.jobs, preview.more, preview.sample) = (seen.jobs, seen.more, seen.sample);
        Ok(())
    }
}

/// How far an action on many jobs has come.
pub(crate) async fn bulk_progress(ask: Ask, PathJob(id): PathJob) -> Answer {
    let found = match ask.operator() {
        Some(operator) => operator.bulk_by_id(BulkId(id)),
        None => ask.app.service.bulk_by_id(&ask.context(), BulkId(id)),
    };
    let progress = found.ok_or_else(|| Problem::not_found("there is no such action in this process"))?.progress();
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
    Ok(bulk::running(&ask.frame().await?, &page))
}

/// The handlers.
pub(crate) async fn handlers(ask: Ask) -> Answer {
    let (nodes, backlog, past, lately, pauses) =
        tokio::try_join!(ask.nodes(), ask.backlog(), ask.activity(RATES), ask.activity(Span::Minutes5), ask.pauses())?;
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
    for (handler, limit) in ask.app.service.handler_limits() {
        rows.of(&handler).limit = Some(limit);
    }
    for pause in &pauses {
        if let PauseTarget::Handler(handler) = &pause.target {
            rows.of(handler).pause = Some(pause.clone());
        }
    }
    let other_pauses = pauses.iter().filter(|pause| matches!(pause.target, PauseTarget::Tenant(_))).cloned().collect();
    let page = handlers::Handlers { handlers: rows.0.into_values().collect(), other_pauses, span: RATES.as_str() };
    Ok(handlers::page(&ask.shell(&pauses), &page))
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
pub(crate) async fn tenants(ask: Ask) -> Answer {
    let pauses = ask.pauses().await?;
    let (mut uses, default) = match ask.operator() {
        Some(operator) => (operator.tenants().await?, operator.quotas().await?.default),
        None => (vec![ask.app.service.usage(&ask.context()).await?], None),
    };
    let more = uses.len() > TENANTS;
    uses.sort_by_key(|used: &TenantUse| std::cmp::Reverse((used.queued, used.running)));
    uses.truncate(TENANTS);
    let of_tenants = pauses.iter().filter(|pause| matches!(pause.target, PauseTarget::Tenant(_))).cloned().collect();
    Ok(tenants::page(&ask.shell(&pauses), &tenants::Tenants { uses, pauses: of_tenants, default, more }))
}

/// The nodes.
pub(crate) async fn nodes(ask: Ask) -> Answer {
    let (nodes, pauses) = tokio::try_join!(ask.nodes(), ask.pauses())?;
    let page =
        nodes::Nodes { nodes, lease: ask.app.service.config().lease, version: env!("CARGO_PKG_VERSION").to_owned() };
    Ok(nodes::page(&ask.shell(&pauses), &page))
}

/// The audit log.
pub(crate) async fn audit(ask: Ask) -> Answer {
    let (action, target) = (ask.query.get("action"), ask.query.get("target"));
    let mut filter = AuditFilter::default();
    filter.action = ask.query.given("action").map(str::to_owned);
    filter.target = ask.query.given("target").map(str::to_owned);
    filter.limit = ENTRIES;
    filter.before = ask.query.number("before")?;
    let entries = match ask.operator() {
        Some(operator) => operator.audit_log(&filter).await?,
        None => ask.app.service.audit_log(&ask.context(), &filter).await?,
    };
    let next = entries.last().filter(|_| entries.len() == ENTRIES).map(|entry| entry.sequence.to_string());
    let is_later = filter.before.is_some();
    let page = audit::Audit { action: action.to_owned(), target: target.to_owned(), entries, next, is_later };
    Ok(audit::page(&ask.frame().await?, &page))
}

/// The API keys.
pub(crate) async fn keys(ask: Ask) -> Answer {
    ask.keys_page(None, None).await
}

impl Ask {
    /// The page of keys, with a key that was just made or with what was wrong with making one.
    pub(crate) async fn keys_page(&self, fresh: Option<(String, String)>, problem: Option<String>) -> Answer {
        let keys = match self.operator() {
            Some(operator) => operator.api_keys().await?,
            None => self.app.service.api_keys(&self.context()).await?,
        };
        let keys = keys.into_iter().map(access::Key::from).collect();
        Ok(access::keys(&self.frame().await?, &access::Keys { keys, fresh, problem }))
    }

    /// The page of webhooks, likewise.
    pub(crate) async fn hooks_page(&self, fresh: Option<(String, String)>, problem: Option<String>) -> Answer {
        let hooks = match self.operator() {
            Some(operator) => operator.webhooks().await?,
            None => self.app.service.webhooks(&self.context()).await?,
        };
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
pub(crate) async fn webhooks(ask: Ask) -> Answer {
    ask.hooks_page(None, None).await
}

/// The form that submits a job. The address may fill in its handler.
pub(crate) async fn submit(ask: Ask) -> Answer {
    let handler = ask.query.get("handler").to_owned();
    ask.submit_page(submit::Form { handler, ..submit::Form::default() }).await
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
