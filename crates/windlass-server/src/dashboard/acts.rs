//! What people do on the dashboard: every form that changes something. Each calls the same function of the service as the
//! API's route for it, which writes the audit entry, and then goes to a page that says what was done. Called by the
//! router, behind the same needs as the API.
//!
//! Every action is asked for twice: by the script's dialog, or by a page where the script does not run.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::Markup;
use windlass_core::store::PauseTarget;
use windlass_core::text::{parse_duration, parse_time};
use windlass_core::{
    BulkAction, BulkId, BulkOptions, Edit, Error, JobFilter, JobId, NewApiKey, NewWebhook, OperatorRight, Payload,
    Priority, Quota, Right, Rights, SecurityContext, Start, Status, SubmitOptions, SubmitRate, TenantId,
};

use super::ask::{self, Ask, Fields, Form};
use super::did::Did;
use super::views::{job, problem, submit};
use crate::extract::PathJob;
use crate::problem::Problem;

type Answer = Result<Response, Problem>;

/// What the audit log calls a look at a job's input.
pub(crate) const INPUT_READ: &str = "INPUT_READ";

/// Asks whether to go on, unless the user has said so.
async fn unless_confirmed(ask: &Ask, form: &Fields, path: &str) -> Result<Option<Response>, Problem> {
    if form.is_confirmed() {
        return Ok(None);
    }
    let confirm = problem::Confirm { path: path.to_owned(), fields: form.0.clone(), back: ask.back(form) };
    Ok(Some(problem::confirm(&ask.frame().await?, &confirm).into_response()))
}

// ---- one job

/// The actions on one job that take at most a field or two.
#[derive(Clone, Copy)]
enum OnJob {
    Cancel,
    Retry,
    RunNow,
    Reschedule,
    Reprioritise,
    Purge,
}

pub(crate) async fn cancel(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(ask, id, form, OnJob::Cancel).await
}

pub(crate) async fn retry(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(ask, id, form, OnJob::Retry).await
}

pub(crate) async fn run_now(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(ask, id, form, OnJob::RunNow).await
}

pub(crate) async fn reschedule(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(ask, id, form, OnJob::Reschedule).await
}

pub(crate) async fn reprioritise(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(ask, id, form, OnJob::Reprioritise).await
}

pub(crate) async fn purge(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(ask, id, form, OnJob::Purge).await
}

async fn on_job(ask: Ask, id: JobId, form: Fields, act: OnJob) -> Answer {
    let (name, did) = match act {
        OnJob::Cancel => ("cancel", Did::Canceled),
        OnJob::Retry => ("retry", Did::Replayed),
        OnJob::RunNow => ("run-now", Did::Started),
        OnJob::Reschedule => ("reschedule", Did::Rescheduled),
        OnJob::Reprioritise => ("priority", Did::Reprioritised),
        OnJob::Purge => ("purge", Did::Purged),
    };
    if let Some(question) = unless_confirmed(&ask, &form, &format!("/jobs/{id}/{name}")).await? {
        return Ok(question);
    }
    let service = &ask.app.service;
    let ctx = ask.caller.context_of(&ask.app, id).await?;
    match act {
        OnJob::Cancel => {
            service.cancel(&ctx, id, form.get("reason")).await?;
        }
        OnJob::Retry => retry_one(&ask, &ctx, id).await?,
        OnJob::RunNow => service.run_now(&ctx, id).await?,
        OnJob::Reschedule => {
            let start = start(&form)?.ok_or_else(|| Problem::invalid("run_at", "say when: a delay or a time"))?;
            service.reschedule(&ctx, id, start).await?;
        }
        OnJob::Reprioritise => service.reprioritise(&ctx, id, priority(&form)?.unwrap_or(Priority::NORMAL)).await?,
        OnJob::Purge => {
            service.purge(&ctx, id).await?;
            return Ok(ask.done(&ask.urls.path("/jobs"), did, None));
        }
    }
    Ok(ask.done(&ask.urls.job(id), did, None))
}

/// Runs a retrying job now, and replays a dead letter.
async fn retry_one(ask: &Ask, ctx: &SecurityContext, id: JobId) -> Result<(), Problem> {
    let service = &ask.app.service;
    match service.status(ctx, id).await? {
        Status::Retrying => service.run_now(ctx, id).await?,
        _ => service.replay(ctx, id).await?,
    }
    Ok(())
}

/// When a job starts, from a delay or a time; none where both are empty.
fn start(form: &Fields) -> Result<Option<Start>, Problem> {
    let wrong = |field: &'static str| move |message: String| Problem::invalid(field, message);
    match (form.given("delay"), form.given("run_at")) {
        (None, None) => Ok(None),
        (Some(delay), None) => Ok(Some(Start::After(parse_duration(delay).map_err(wrong("delay"))?))),
        (None, Some(at)) => Ok(Some(Start::At(parse_time(at).map_err(wrong("run_at"))?))),
        (Some(_), Some(_)) => Err(Problem::invalid("run_at", "give a delay or a time, not both")),
    }
}

fn priority(form: &Fields) -> Result<Option<Priority>, Problem> {
    let read = |text: &str| {
        Priority::parse(text).ok_or_else(|| Problem::invalid("priority", "is critical, high, normal, low or a number"))
    };
    form.given("priority").map(read).transpose()
}

/// The input of a form: JSON as it was typed. A field that was left as it stood changes nothing.
fn input(ask: &Ask, form: &Fields) -> Result<Option<Payload>, Problem> {
    let max = ask.app.service.config().limits.payload_bytes;
    form.given("input").map(|text| Ok(Payload::check("input", text, max)?)).transpose()
}

/// Changes a waiting job.
pub(crate) async fn edit(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    let ctx = ask.caller.context_of(&ask.app, id).await?;
    let edited = async {
        let record = ask.app.service.get(&ctx, id).await?;
        let mut edit = Edit::new();
        if let Some(input) = changed_input(&ask, &ctx, id, &form).await? {
            edit = edit.input(input);
        }
        if let Some(priority) = priority(&form)?.filter(|priority| *priority != record.priority) {
            edit = edit.priority(priority);
        }
        if let Some(start) = start(&form)? {
            edit = edit.start(start);
        }
        match edit.is_empty() {
            true => Ok(()),
            false => Ok::<(), Problem>(ask.app.service.edit(&ctx, id, edit).await?),
        }
    };
    match edited.await {
        Ok(()) => Ok(ask.done(&ask.urls.job(id), Did::Edited, None)),
        Err(problem) => change_again(&ask, &ctx, id, &form, false, problem).await,
    }
}

/// Makes a job like another.
pub(crate) async fn clone(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    let ctx = ask.caller.context_of(&ask.app, id).await?;
    let cloned = async {
        let input = changed_input(&ask, &ctx, id, &form).await?;
        Ok::<JobId, Problem>(ask.app.service.clone_job(&ctx, id, input).await?)
    };
    match cloned.await {
        Ok(new) => Ok(ask.done(&ask.urls.job(new), Did::Cloned, None)),
        Err(problem) => change_again(&ask, &ctx, id, &form, true, problem).await,
    }
}

/// The input that was typed, if it is another than the job has. The form shows it with line breaks, so the two are
/// compared as the form shows them.
async fn changed_input(ask: &Ask, ctx: &SecurityContext, id: JobId, form: &Fields) -> Result<Option<Payload>, Problem> {
    let Some(typed) = input(ask, form)? else { return Ok(None) };
    // Who may not see the input was shown none, and may not find out by trying either.
    ask.caller.require(Right::Payload)?;
    let kept = ask.app.service.input(ctx, id).await?;
    let same = super::words::pretty(kept.as_str()) == super::words::pretty(typed.as_str());
    Ok((!same).then_some(typed))
}

/// The form again, as it was filled in, with what was wrong.
async fn change_again(
    ask: &Ask,
    ctx: &SecurityContext,
    id: JobId,
    form: &Fields,
    is_clone: bool,
    problem: Problem,
) -> Answer {
    if problem.status != 422 && problem.status != 409 {
        return Err(problem);
    }
    let record = ask.app.service.get(ctx, id).await?;
    let change = job::Change {
        record,
        is_clone,
        input: ask.may().payload.then(|| form.get("input").to_owned()),
        priority: form.get("priority").to_owned(),
        start: (form.get("delay").to_owned(), form.get("run_at").to_owned()),
        problem: Some(problem.detail.clone()),
    };
    Ok((problem.status_code(), job::change(&ask.frame().await?, &change)).into_response())
}

/// Submits a job.
pub(crate) async fn submit(ask: Ask, Form(form): Form) -> Answer {
    match submitted(&ask, &form).await {
        Ok((id, did)) => Ok(ask.done(&ask.urls.job(id), did, None)),
        Err(problem) if (400..500).contains(&problem.status) => {
            let again = submit::Form {
                handler: form.get("handler").to_owned(),
                input: form.get("input").to_owned(),
                priority: form.get("priority").to_owned(),
                delay: form.get("delay").to_owned(),
                run_at: form.get("run_at").to_owned(),
                idempotency_key: form.get("idempotency_key").to_owned(),
                ordering_key: form.get("ordering_key").to_owned(),
                tags: form.get("tags").to_owned(),
                queue: form.get("queue").to_owned(),
                timeout: form.get("timeout").to_owned(),
                tenant: form.get("tenant").to_owned(),
                problem: Some(problem.detail.clone()),
                handlers: Vec::new(),
            };
            Ok((problem.status_code(), ask.submit_page(again).await?).into_response())
        }
        Err(problem) => Err(problem),
    }
}

async fn submitted(ask: &Ask, form: &Fields) -> Result<(JobId, Did), Problem> {
    let ctx = in_tenant(ask, form)?;
    let mut options = SubmitOptions::new();
    options.priority = priority(form)?;
    options.start = start(form)?.unwrap_or_default();
    options.idempotency_key = form.given("idempotency_key").map(str::to_owned);
    options.ordering_key = form.given("ordering_key").map(str::to_owned);
    options.queue = form.given("queue").map(str::to_owned);
    options.tags =
        form.get("tags").split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    if let Some(timeout) = form.given("timeout") {
        options = options.timeout(parse_duration(timeout).map_err(|message| Problem::invalid("timeout", message))?);
    }
    let payload = input(ask, form)?.unwrap_or_else(Payload::null);
    let (_, answers) =
        ask.app.service.submit_payloads(&ctx, form.get("handler"), vec![Ok(payload)], options, false).await?;
    let answer = answers.into_iter().next().ok_or_else(Problem::internal)??;
    if !answer.duplicate {
        let detail = Some(format!("handler {}", form.get("handler")));
        ask.app.service.audit(&ctx, "JOB_SUBMITTED", &answer.id.to_string(), detail).await?;
    }
    Ok((answer.id, if answer.duplicate { Did::Duplicate } else { Did::Submitted }))
}

/// The asker in the tenant that a form names; the one they look at, or their own, where it names none.
fn in_tenant(ask: &Ask, form: &Fields) -> Result<SecurityContext, Problem> {
    let ctx = ask.context();
    let Some(named) = form.given("tenant") else { return Ok(ctx) };
    let tenant = TenantId::parse(named)?;
    if tenant != ctx.tenant {
        ask.caller.require_all()?;
    }
    Ok(ask.caller.in_tenant(tenant))
}

// ---- many jobs

fn bulk_action(form: &Fields) -> Result<BulkAction, Problem> {
    Ok(match form.get("action") {
        "cancel" => BulkAction::Cancel { reason: form.get("reason").to_owned() },
        "replay" => BulkAction::Replay,
        "purge" => BulkAction::Purge,
        "run_now" => BulkAction::RunNow,
        "retry" => BulkAction::Retry,
        "reprioritise" => BulkAction::Reprioritise(priority(form)?.unwrap_or(Priority::NORMAL)),
        _ => return Err(Problem::invalid("action", "choose what to do")),
    })
}

/// The filter of those jobs to which an action can be done.
pub(crate) fn narrowed(ask: &Ask, action: &str, filter: &str) -> Result<JobFilter, Problem> {
    let action = bulk_action(&Fields(vec![("action".to_owned(), action.to_owned())]))?;
    Ok(action.narrow(&ask.filter(filter)?)?)
}

/// Acts on many jobs: on those that were chosen by hand at once, on those that pass a filter in the background.
pub(crate) async fn bulk(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/bulk").await? {
        return Ok(question);
    }
    let action = bulk_action(&form)?;
    let chosen: Vec<JobId> =
        form.all("id").iter().filter_map(|id| id.parse().ok()).take(windlass_core::Page::MAX).collect();
    if !chosen.is_empty() {
        let mut done = 0;
        for id in chosen {
            done += u64::from(act_on_one(&ask, id, &action).await?);
        }
        return Ok(ask.done(&ask.back(&form), Did::Acted, Some(done)));
    }
    let filter = ask.filter(form.get("q"))?;
    let cap = form.number("cap")?.unwrap_or(BulkOptions::default().cap);
    // Nothing is done to more jobs than the user has seen counted.
    let expected: u64 =
        form.number("expected")?.ok_or_else(|| Problem::invalid("expected", "look at the preview first"))?;
    let mut options = BulkOptions::default().cap(cap.min(usize::try_from(expected).unwrap_or(usize::MAX)).max(1));
    if let Some(rate) = form.number("per_second")? {
        options = options.per_second(rate);
    }
    if let Some(percent) = form.number::<f64>("stop_when_failing")? {
        options = options.stop_when_failing(percent / 100.0, JUDGE_AFTER);
    }
    let bulk = match ask.operator() {
        Some(operator) => operator.bulk(&ask.context(), &filter, action, options).await?,
        None => ask.app.service.bulk(&ask.context(), &filter, action, options).await?,
    };
    Ok(ask::see(&ask.urls.path(&format!("/bulk/{}", bulk.id()))))
}

/// Jobs that have ended before it is judged whether too many fail again: fewer say nothing.
const JUDGE_AFTER: usize = 10;

/// Acts on one of many. False where the job has moved on meanwhile, so that there was nothing to do.
async fn act_on_one(ask: &Ask, id: JobId, action: &BulkAction) -> Result<bool, Problem> {
    let service = &ask.app.service;
    let ctx = match ask.caller.context_of(&ask.app, id).await {
        Ok(ctx) => ctx,
        Err(problem) if problem.status == 404 => return Ok(false),
        Err(problem) => return Err(problem),
    };
    let acted = match action {
        BulkAction::Cancel { reason } => service.cancel(&ctx, id, reason).await.map(|_| ()),
        BulkAction::Replay => service.replay(&ctx, id).await,
        BulkAction::Purge => service.purge(&ctx, id).await,
        BulkAction::RunNow => service.run_now(&ctx, id).await,
        BulkAction::Reprioritise(priority) => service.reprioritise(&ctx, id, *priority).await,
        _ => match service.status(&ctx, id).await {
            Ok(Status::Retrying) => service.run_now(&ctx, id).await,
            Ok(_) => service.replay(&ctx, id).await,
            Err(error) => Err(error),
        },
    };
    match acted {
        Ok(()) => Ok(true),
        Err(Error::Conflict { .. } | Error::NotFound(_) | Error::AlreadyFinished { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Ends an action on many jobs.
pub(crate) async fn bulk_stop(ask: Ask, PathJob(id): PathJob, Form(form): Form) -> Answer {
    let path = format!("/bulk/{id}/stop");
    if let Some(question) = unless_confirmed(&ask, &form, &path).await? {
        return Ok(question);
    }
    let stopped = match ask.operator() {
        Some(operator) => operator.bulk_stop(BulkId(id)),
        None => ask.app.service.bulk_stop(&ask.context(), BulkId(id)),
    };
    match stopped {
        true => Ok(ask.done(&ask.urls.path(&format!("/bulk/{id}")), Did::Stopped, None)),
        false => Err(Problem::not_found("there is no such action in this process")),
    }
}

// ---- pauses, quotas

pub(crate) async fn pause(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/pause").await? {
        return Ok(question);
    }
    let target = pause_target(&ask, &form)?;
    ask.app.service.pause(&ask.context(), &target, form.get("reason")).await?;
    Ok(ask.done(&ask.back(&form), Did::Paused, None))
}

pub(crate) async fn resume(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/resume").await? {
        return Ok(question);
    }
    let target = pause_target(&ask, &form)?;
    // Somebody may have been quicker; then it is resumed all the same.
    ask.app.service.resume(&ask.context(), &target).await?;
    Ok(ask.done(&ask.back(&form), Did::Resumed, None))
}

/// What may be paused: one's own tenant, or anything by who operates the whole installation.
fn pause_target(ask: &Ask, form: &Fields) -> Result<PauseTarget, Problem> {
    let expected = || Problem::invalid("target", "is `all`, `handler:ID` or `tenant:UUID`");
    let target = PauseTarget::parse(form.get("target")).ok_or_else(expected)?;
    match &target {
        PauseTarget::Tenant(tenant) if *tenant == ask.context().tenant => {}
        _ => ask.caller.require_all()?,
    }
    Ok(target)
}

pub(crate) async fn set_quota(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/tenants/quota").await? {
        return Ok(question);
    }
    let mut quota = Quota::new();
    quota.weight = form.number("weight")?;
    quota.queued = form.number("queued")?;
    quota.running = form.number("running")?;
    quota.bytes = form.number("bytes")?;
    if let Some(per_second) = form.number::<f64>("per_second")? {
        let burst = form.number("burst")?.unwrap_or(per_second.ceil().max(1.0) as u64);
        quota.submit_rate = Some(SubmitRate { per_second, burst });
    }
    whole(&ask)?.set_quota(&ask.context(), quota_of(&form)?, &quota).await?;
    Ok(ask.done(&ask.urls.path("/tenants"), Did::QuotaSet, None))
}

pub(crate) async fn clear_quota(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/tenants/quota/clear").await? {
        return Ok(question);
    }
    whole(&ask)?.clear_quota(&ask.context(), quota_of(&form)?).await?;
    Ok(ask.done(&ask.urls.path("/tenants"), Did::QuotaCleared, None))
}

fn quota_of(form: &Fields) -> Result<Option<TenantId>, Problem> {
    match form.get("tenant") {
        "default" => Ok(None),
        tenant => Ok(Some(TenantId::parse(tenant)?)),
    }
}

/// Acting on the whole installation, also while one looks at one tenant.
fn whole(ask: &Ask) -> Result<windlass_core::Operator, Problem> {
    ask.caller.require_all()?;
    Ok(ask.app.service.operator(OperatorRight::assume()))
}

// ---- keys, webhooks

/// Makes a key and shows its secret, in the answer and nowhere else.
pub(crate) async fn create_key(ask: Ask, Form(form): Form) -> Answer {
    let made = async {
        let rights = form.all("right").iter().map(|name| Right::parse(name)).collect::<Result<Vec<_>, _>>()?;
        let rights = Rights::of(rights);
        if !ask.caller.principal.rights.cover(rights) {
            return Err(Problem::forbidden("a key cannot have rights that its maker has not"));
        }
        let mut key = NewApiKey::new(form.get("name"), rights).environment(ask.app.config.environment.clone());
        key.user = form.given("user").map(str::to_owned);
        if let Some(days) = form.number::<u32>("days")? {
            let lasts = std::time::Duration::from_secs(u64::from(days) * 86_400);
            key.expires_at = Some(ask.app.service.now() + lasts);
        }
        let ctx = in_tenant(&ask, &form)?;
        key.all_tenants = form.get("all_tenants") == "1";
        let (key, secret) = match key.all_tenants {
            true => whole(&ask)?.create_key(&ctx, key).await?,
            false => ask.app.service.create_key(&ctx, key).await?,
        };
        Ok((key.name, secret))
    };
    match made.await {
        Ok(fresh) => Ok(ask.keys_page(Some(fresh), None).await?.into_response()),
        Err(problem) => again(problem, async |message| ask.keys_page(None, message).await).await,
    }
}

pub(crate) async fn revoke_key(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/keys/revoke").await? {
        return Ok(question);
    }
    let (ctx, id) = (ask.context(), form.get("id"));
    let revoked = match ask.operator() {
        Some(operator) => operator.revoke_key(&ctx, id).await?,
        None => ask.app.service.revoke_key(&ctx, id).await?,
    };
    match revoked {
        true => Ok(ask.done(&ask.urls.path("/keys"), Did::KeyRevoked, None)),
        false => Err(Problem::not_found("there is no such key, or it was revoked before")),
    }
}

/// Adds a webhook and shows the secret that signs its deliveries, once.
pub(crate) async fn add_hook(ask: Ask, Form(form): Form) -> Answer {
    let added = async {
        let events = form.all("event").iter().map(|status| Status::parse(status)).collect::<Result<Vec<_>, _>>()?;
        let egress = &ask.app.config.webhook_egress;
        egress.check(form.get("url")).map_err(|error| Problem::invalid("url", error.to_string()))?;
        let mut hook = NewWebhook::new(form.get("url"));
        if !events.is_empty() {
            hook.events = events;
        }
        hook.handler = form.given("handler").map(str::to_owned);
        let (hook, secret) = ask.app.service.add_webhook(&in_tenant(&ask, &form)?, hook).await?;
        Ok::<_, Problem>((hook.url, secret))
    };
    match added.await {
        Ok(fresh) => Ok(ask.hooks_page(Some(fresh), None).await?.into_response()),
        Err(problem) => again(problem, async |message| ask.hooks_page(None, message).await).await,
    }
}

pub(crate) async fn remove_hook(ask: Ask, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&ask, &form, "/webhooks/remove").await? {
        return Ok(question);
    }
    let ctx = in_tenant(&ask, &form)?;
    match ask.app.service.remove_webhook(&ctx, form.get("id")).await? {
        true => Ok(ask.done(&ask.urls.path("/webhooks"), Did::HookRemoved, None)),
        false => Err(Problem::not_found("there is no such webhook")),
    }
}

/// The page with the form again, and what was wrong with it.
async fn again(problem: Problem, page: impl AsyncFnOnce(Option<String>) -> Result<Markup, Problem>) -> Answer {
    if !(400..500).contains(&problem.status) {
        return Err(problem);
    }
    Ok((problem.status_code(), page(Some(problem.detail.clone())).await?).into_response())
}

// ---- how pages look

/// Dark or light, for browsers without the script.
pub(crate) async fn theme(ask: Ask, Form(form): Form) -> Answer {
    let theme = super::shell::Theme::parse(form.get("theme"));
    let cookie = ask::cookie_header(&ask.urls, ask::THEME_COOKIE, theme.as_str());
    Ok(with_cookie(ask::see(&ask.back(&form)), cookie))
}

/// Which tenant who operates all of them looks at; empty for all.
pub(crate) async fn tenant(ask: Ask, Form(form): Form) -> Answer {
    ask.caller.require_all()?;
    let tenant = form.given("tenant").map(TenantId::parse).transpose()?.map(|tenant| tenant.to_string());
    let cookie = ask::cookie_header(&ask.urls, ask::TENANT_COOKIE, &tenant.unwrap_or_default());
    Ok(with_cookie(ask::see(&ask.back(&form)), cookie))
}

fn with_cookie(mut response: Response, cookie: axum::http::HeaderValue) -> Response {
    response.headers_mut().append(header::SET_COOKIE, cookie);
    response
}
