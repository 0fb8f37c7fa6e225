//! What people do on the dashboard: every form that changes something. Each calls the same function of the service as the
//! API's route for it, which writes the audit entry, and then goes to a page that says what was done. Called by the
//! router, behind the same needs as the API.
//!
//! Every action is asked for twice: by the script's dialog, or by a page where the script does not run.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::Markup;
use windlass_core::store::PauseTarget;
use windlass_core::text::{parse_duration, parse_time, parse_timeout};
use windlass_core::{
    BulkAction, BulkId, BulkOptions, Edit, Error, JobFilter, JobId, NewApiKey, NewWebhook, OperatorRight, Payload,
    Priority, Quota, Right, Rights, SecurityContext, Start, Status, SubmitOptions, SubmitRate, TenantId,
};

use super::notices::Notice;
use super::request::{self, Fields, Form, PageRequest};
use super::views::{job, problem, submit};
use crate::extract::PathJob;
use crate::problem::Problem;

type Answer = Result<Response, Problem>;

/// Asks whether to go on, unless the user has said so.
pub(crate) async fn unless_confirmed(
    request: &PageRequest,
    form: &Fields,
    path: &str,
) -> Result<Option<Response>, Problem> {
    if form.is_confirmed() {
        return Ok(None);
    }
    let confirm = problem::Confirm { path: path.to_owned(), fields: form.0.clone(), back: request.back(form) };
    Ok(Some(problem::confirm(&request.frame().await?, &confirm).into_response()))
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

pub(crate) async fn cancel(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(request, id, form, OnJob::Cancel).await
}

pub(crate) async fn retry(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(request, id, form, OnJob::Retry).await
}

pub(crate) async fn run_now(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(request, id, form, OnJob::RunNow).await
}

pub(crate) async fn reschedule(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(request, id, form, OnJob::Reschedule).await
}

pub(crate) async fn reprioritise(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(request, id, form, OnJob::Reprioritise).await
}

pub(crate) async fn purge(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    on_job(request, id, form, OnJob::Purge).await
}

async fn on_job(request: PageRequest, id: JobId, form: Fields, act: OnJob) -> Answer {
    let (name, notice) = match act {
        OnJob::Cancel => ("cancel", Notice::Canceled),
        OnJob::Retry => ("retry", Notice::Replayed),
        OnJob::RunNow => ("run-now", Notice::Started),
        OnJob::Reschedule => ("reschedule", Notice::Rescheduled),
        OnJob::Reprioritise => ("priority", Notice::Reprioritised),
        OnJob::Purge => ("purge", Notice::Purged),
    };
    if let Some(question) = unless_confirmed(&request, &form, &format!("/jobs/{id}/{name}")).await? {
        return Ok(question);
    }
    let service = &request.app.service;
    let ctx = request.caller.context_of(&request.app, id).await?;
    match act {
        OnJob::Cancel => {
            service.cancel(&ctx, id, form.get("reason")).await?;
        }
        OnJob::Retry => service.retry(&ctx, id).await?,
        OnJob::RunNow => service.run_now(&ctx, id).await?,
        OnJob::Reschedule => {
            let start = start(&form)?.ok_or_else(|| Problem::invalid("run_at", "give a delay or a time"))?;
            service.reschedule(&ctx, id, start).await?;
        }
        OnJob::Reprioritise => service.reprioritise(&ctx, id, priority(&form)?.unwrap_or(Priority::NORMAL)).await?,
        OnJob::Purge => {
            service.purge(&ctx, id).await?;
            return Ok(request.done(&request.urls.path("/jobs"), notice, None));
        }
    }
    Ok(request.done(&request.urls.job(id), notice, None))
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

pub(crate) fn priority(form: &Fields) -> Result<Option<Priority>, Problem> {
    let read = |text: &str| {
        Priority::parse(text)
            .ok_or_else(|| Problem::invalid("priority", "must be critical, high, normal, low or a number"))
    };
    form.given("priority").map(read).transpose()
}

/// Labels, with commas between them.
pub(crate) fn tags(form: &Fields) -> Vec<String> {
    form.get("tags").split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

/// The input of a form: JSON as it was typed. A field that was left as it stood changes nothing.
pub(crate) fn input(request: &PageRequest, form: &Fields) -> Result<Option<Payload>, Problem> {
    let max = request.app.service.config().limits.payload_bytes;
    form.given("input").map(|text| Ok(Payload::check("input", text, max)?)).transpose()
}

/// Changes a waiting job.
pub(crate) async fn edit(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    let ctx = request.caller.context_of(&request.app, id).await?;
    let edited = async {
        let record = request.app.service.get(&ctx, id).await?;
        let mut edit = Edit::new();
        if let Some(input) = changed_input(&request, &ctx, id, &form).await? {
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
            false => Ok::<(), Problem>(request.app.service.edit(&ctx, id, edit).await?),
        }
    };
    match edited.await {
        Ok(()) => Ok(request.done(&request.urls.job(id), Notice::Edited, None)),
        Err(problem) => change_again(&request, &ctx, id, &form, false, problem).await,
    }
}

/// Makes a job like another.
pub(crate) async fn clone(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    let ctx = request.caller.context_of(&request.app, id).await?;
    let cloned = async {
        let input = changed_input(&request, &ctx, id, &form).await?;
        Ok::<JobId, Problem>(request.app.service.clone_job(&ctx, id, input).await?)
    };
    match cloned.await {
        Ok(new) => Ok(request.done(&request.urls.job(new), Notice::Cloned, None)),
        Err(problem) => change_again(&request, &ctx, id, &form, true, problem).await,
    }
}

/// The input that was typed, if it is another than the job has. The form shows it with line breaks, so the two are
/// compared as the form shows them.
async fn changed_input(
    request: &PageRequest,
    ctx: &SecurityContext,
    id: JobId,
    form: &Fields,
) -> Result<Option<Payload>, Problem> {
    let Some(typed) = input(request, form)? else { return Ok(None) };
    // Who may not see the input was shown none, and may not find out by trying either.
    request.caller.require(Right::Payload)?;
    let kept = request.app.service.input(ctx, id).await?;
    let same = super::format::pretty(kept.as_str()) == super::format::pretty(typed.as_str());
    Ok((!same).then_some(typed))
}

/// The form again, as it was filled in, with what was wrong.
async fn change_again(
    request: &PageRequest,
    ctx: &SecurityContext,
    id: JobId,
    form: &Fields,
    is_clone: bool,
    problem: Problem,
) -> Answer {
    if problem.status != 422 && problem.status != 409 {
        return Err(problem);
    }
    let record = request.app.service.get(ctx, id).await?;
    let change = job::Change {
        record,
        is_clone,
        input: request.may().payload.then(|| form.get("input").to_owned()),
        priority: form.get("priority").to_owned(),
        start: (form.get("delay").to_owned(), form.get("run_at").to_owned()),
        problem: Some(problem.detail.clone()),
    };
    Ok((problem.status_code(), job::change(&request.frame().await?, &change)).into_response())
}

/// Submits a job.
pub(crate) async fn submit(request: PageRequest, Form(form): Form) -> Answer {
    match submitted(&request, &form).await {
        Ok((id, notice)) => Ok(request.done(&request.urls.job(id), notice, None)),
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
            Ok((problem.status_code(), request.submit_page(again).await?).into_response())
        }
        Err(problem) => Err(problem),
    }
}

async fn submitted(request: &PageRequest, form: &Fields) -> Result<(JobId, Notice), Problem> {
    let ctx = in_tenant(request, form)?;
    let mut options = SubmitOptions::new();
    options.priority = priority(form)?;
    options.start = start(form)?.unwrap_or_default();
    options.idempotency_key = form.given("idempotency_key").map(str::to_owned);
    options.ordering_key = form.given("ordering_key").map(str::to_owned);
    options.queue = form.given("queue").map(str::to_owned);
    options.tags = tags(form);
    if let Some(timeout) = form.given("timeout") {
        options = options.timeout(parse_timeout(timeout).map_err(|message| Problem::invalid("timeout", message))?);
    }
    let payload = input(request, form)?.unwrap_or_else(Payload::null);
    let answer = request.app.service.submit_by_hand(&ctx, form.get("handler"), &payload, options).await?;
    Ok((answer.id, if answer.duplicate { Notice::Duplicate } else { Notice::Submitted }))
}

/// The asker in the tenant that a form names; the one they look at, or their own, where it names none.
fn in_tenant(request: &PageRequest, form: &Fields) -> Result<SecurityContext, Problem> {
    let ctx = request.context();
    let Some(named) = form.given("tenant") else { return Ok(ctx) };
    let tenant = TenantId::parse(named)?;
    if tenant != ctx.tenant {
        request.caller.require_all()?;
    }
    Ok(request.caller.in_tenant(tenant))
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
        _ => return Err(Problem::invalid("action", "choose an action")),
    })
}

/// The filter of those jobs to which an action can be done.
pub(crate) fn narrowed(request: &PageRequest, action: &str, filter: &str) -> Result<JobFilter, Problem> {
    let action = bulk_action(&Fields(vec![("action".to_owned(), action.to_owned())]))?;
    Ok(action.narrow(&request.filter(filter)?)?)
}

/// Acts on many jobs: on those that were chosen by hand at once, on those that pass a filter in the background.
pub(crate) async fn bulk(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/bulk").await? {
        return Ok(question);
    }
    let action = bulk_action(&form)?;
    let chosen: Vec<JobId> =
        form.all("id").iter().filter_map(|id| id.parse().ok()).take(windlass_core::Page::MAX).collect();
    if !chosen.is_empty() {
        let mut done = 0;
        for id in chosen {
            done += u64::from(act_on_one(&request, id, &action).await?);
        }
        return Ok(request.done(&request.back(&form), Notice::Acted, Some(done)));
    }
    let filter = request.filter(form.get("q"))?;
    let cap = form.number("cap")?.unwrap_or(BulkOptions::default().cap);
    // Nothing is done to more jobs than the user has seen counted.
    let expected: u64 =
        form.number("expected")?.ok_or_else(|| Problem::invalid("expected", "open the preview first"))?;
    let mut options = BulkOptions::default().cap(cap.min(usize::try_from(expected).unwrap_or(usize::MAX)).max(1));
    if let Some(rate) = form.number("per_second")? {
        options = options.per_second(rate);
    }
    if let Some(percent) = form.number::<f64>("stop_when_failing")? {
        options = options.stop_when_failing(percent / 100.0, JUDGE_AFTER);
    }
    let bulk = request.within().bulk(&request.context(), &filter, action, options).await?;
    Ok(request::see(&request.urls.path(&format!("/bulk/{}", bulk.id()))))
}

/// Jobs that have ended before it is judged whether too many fail again: fewer say nothing.
const JUDGE_AFTER: usize = 10;

/// Acts on one of many. False where the job has moved on meanwhile, so that there was nothing to do.
async fn act_on_one(request: &PageRequest, id: JobId, action: &BulkAction) -> Result<bool, Problem> {
    let service = &request.app.service;
    let ctx = match request.caller.context_of(&request.app, id).await {
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
        _ => service.retry(&ctx, id).await,
    };
    match acted {
        Ok(()) => Ok(true),
        Err(Error::Conflict { .. } | Error::NotFound(_) | Error::AlreadyFinished { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Ends an action on many jobs.
pub(crate) async fn bulk_stop(request: PageRequest, PathJob(id): PathJob, Form(form): Form) -> Answer {
    let path = format!("/bulk/{id}/stop");
    if let Some(question) = unless_confirmed(&request, &form, &path).await? {
        return Ok(question);
    }
    let stopped = request.within().bulk_stop(BulkId(id)).await?;
    match stopped {
        true => Ok(request.done(&request.urls.path(&format!("/bulk/{id}")), Notice::Stopped, None)),
        false => Err(Problem::not_found("there is no such action")),
    }
}

// ---- pauses, quotas

pub(crate) async fn pause(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/pause").await? {
        return Ok(question);
    }
    let (target, reason) = (pause_target(&form)?, form.get("reason"));
    request.caller.within_reach(&request.app).pause(&request.context(), &target, reason).await?;
    Ok(request.done(&request.back(&form), Notice::Paused, None))
}

pub(crate) async fn resume(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/resume").await? {
        return Ok(question);
    }
    let target = pause_target(&form)?;
    // Somebody may have been quicker; then it is resumed all the same.
    request.caller.within_reach(&request.app).resume(&request.context(), &target).await?;
    Ok(request.done(&request.back(&form), Notice::Resumed, None))
}

fn pause_target(form: &Fields) -> Result<PauseTarget, Problem> {
    let expected = || Problem::invalid("target", "must be `all`, `handler:ID` or `tenant:UUID`");
    PauseTarget::parse(form.get("target")).ok_or_else(expected)
}

pub(crate) async fn set_quota(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/tenants/quota").await? {
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
    whole(&request)?.set_quota(&request.context(), quota_of(&form)?, &quota).await?;
    Ok(request.done(&request.urls.path("/tenants"), Notice::QuotaSet, None))
}

pub(crate) async fn clear_quota(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/tenants/quota/clear").await? {
        return Ok(question);
    }
    whole(&request)?.clear_quota(&request.context(), quota_of(&form)?).await?;
    Ok(request.done(&request.urls.path("/tenants"), Notice::QuotaCleared, None))
}

fn quota_of(form: &Fields) -> Result<Option<TenantId>, Problem> {
    match form.get("tenant") {
        "default" => Ok(None),
        tenant => Ok(Some(TenantId::parse(tenant)?)),
    }
}

/// Acting on the whole installation, also while one looks at one tenant.
fn whole(request: &PageRequest) -> Result<windlass_core::Within, Problem> {
    request.caller.require_all()?;
    Ok(request.app.service.operator(OperatorRight::assume()))
}

// ---- keys, webhooks

/// Makes a key and shows its secret, in the answer and nowhere else.
pub(crate) async fn create_key(request: PageRequest, Form(form): Form) -> Answer {
    let made = async {
        let rights = form.all("right").iter().map(|name| Right::parse(name)).collect::<Result<Vec<_>, _>>()?;
        let mut key =
            NewApiKey::new(form.get("name"), Rights::of(rights)).environment(request.app.config.environment.clone());
        key.user = form.given("user").map(str::to_owned);
        if let Some(days) = form.number::<u32>("days")? {
            let lasts = std::time::Duration::from_secs(u64::from(days) * 86_400);
            key.expires_at = Some(request.app.service.now() + lasts);
        }
        let ctx = in_tenant(&request, &form)?;
        key.all_tenants = form.get("all_tenants") == "1";
        let within = if key.all_tenants { whole(&request)? } else { request.app.service.within(ctx.scope()) };
        let (key, secret) = within.create_key_as(&ctx, request.caller.principal.rights, key).await?;
        Ok::<_, Problem>((key.name, secret))
    };
    match made.await {
        Ok(fresh) => Ok(request.keys_page(Some(fresh), None).await?.into_response()),
        Err(problem) => again(problem, async |message| request.keys_page(None, message).await).await,
    }
}

pub(crate) async fn revoke_key(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/keys/revoke").await? {
        return Ok(question);
    }
    let (ctx, id) = (request.context(), form.get("id"));
    let revoked = request.within().revoke_key(&ctx, id).await?;
    match revoked {
        true => Ok(request.done(&request.urls.path("/keys"), Notice::KeyRevoked, None)),
        false => Err(Problem::not_found("there is no such key, or it is already revoked")),
    }
}

/// Adds a webhook and shows the secret that signs its deliveries, once.
pub(crate) async fn add_hook(request: PageRequest, Form(form): Form) -> Answer {
    let added = async {
        let events = form.all("event").iter().map(|status| Status::parse(status)).collect::<Result<Vec<_>, _>>()?;
        let egress = &request.app.config.webhook_egress;
        egress.check(form.get("url")).map_err(|error| Problem::invalid("url", error.to_string()))?;
        let mut hook = NewWebhook::new(form.get("url"));
        if !events.is_empty() {
            hook.events = events;
        }
        hook.handler = form.given("handler").map(str::to_owned);
        let (hook, secret) = request.app.service.add_webhook(&in_tenant(&request, &form)?, hook).await?;
        Ok::<_, Problem>((hook.url, secret))
    };
    match added.await {
        Ok(fresh) => Ok(request.hooks_page(Some(fresh), None).await?.into_response()),
        Err(problem) => again(problem, async |message| request.hooks_page(None, message).await).await,
    }
}

pub(crate) async fn remove_hook(request: PageRequest, Form(form): Form) -> Answer {
    if let Some(question) = unless_confirmed(&request, &form, "/webhooks/remove").await? {
        return Ok(question);
    }
    let ctx = in_tenant(&request, &form)?;
    match request.app.service.remove_webhook(&ctx, form.get("id")).await? {
        true => Ok(request.done(&request.urls.path("/webhooks"), Notice::HookRemoved, None)),
        false => Err(Problem::not_found("there is no such webhook")),
    }
}

pub(crate) async fn pause_hook(request: PageRequest, Form(form): Form) -> Answer {
    set_hook_paused(&request, &form, "/webhooks/pause", true, Notice::HookPaused).await
}

pub(crate) async fn resume_hook(request: PageRequest, Form(form): Form) -> Answer {
    set_hook_paused(&request, &form, "/webhooks/resume", false, Notice::HookResumed).await
}

async fn set_hook_paused(request: &PageRequest, form: &Fields, path: &str, paused: bool, notice: Notice) -> Answer {
    if let Some(question) = unless_confirmed(request, form, path).await? {
        return Ok(question);
    }
    match request.app.service.pause_webhook(&in_tenant(request, form)?, form.get("id"), paused).await? {
        true => Ok(request.done(&request.urls.path("/webhooks"), notice, None)),
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
pub(crate) async fn theme(request: PageRequest, Form(form): Form) -> Answer {
    let theme = super::shell::Theme::parse(form.get("theme"));
    let cookie = request::cookie_header(&request.urls, request::THEME_COOKIE, theme.as_str());
    Ok(with_cookie(request::see(&request.back(&form)), cookie))
}

/// Which tenant who operates all of them looks at; empty for all.
pub(crate) async fn tenant(request: PageRequest, Form(form): Form) -> Answer {
    request.caller.require_all()?;
    let tenant = form.given("tenant").map(TenantId::parse).transpose()?.map(|tenant| tenant.to_string());
    let cookie = request::cookie_header(&request.urls, request::TENANT_COOKIE, &tenant.unwrap_or_default());
    Ok(with_cookie(request::see(&request.back(&form)), cookie))
}

fn with_cookie(mut response: Response, cookie: axum::http::HeaderValue) -> Response {
    response.headers_mut().append(header::SET_COOKIE, cookie);
    response
}
