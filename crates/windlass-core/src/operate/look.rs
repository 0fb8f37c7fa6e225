//! Reading: one job, many jobs, what happens to them, and the audit log. Called by the service's users. Concurrent reads of
//! jobs share one query (`operate/lookup.rs`), and watchers one look at the store (`operate/watch.rs`). Changes nothing.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use serde::de::DeserializeOwned;

use crate::model::error::{Error, InvalidInput, JobError};
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::job::{Found, HistoryEntry, JobRecord, Page, Status};
use crate::model::payload::Payload;
use crate::model::tenant::SecurityContext;
use crate::operate::watch::{JobEvent, JobView};
use crate::operate::why::{Why, explain};
use crate::operate::within::Within;
use crate::quota::TenantUse;
use crate::seal::{Kind, looks_sealed};
use crate::service::JobService;
use crate::store::{AuditEntry, AuditFilter, Counts, NodeRecord};

/// Candidates that a search examines for one page: about ten milliseconds of database time.
pub const SEARCHED_JOBS: usize = 10_000;

/// Reads of one tenant's jobs: short for [`JobService::within`] with the caller's scope.
impl JobService {
    /// A job, without its input. Concurrent calls share one query.
    pub async fn get(&self, ctx: &SecurityContext, id: JobId) -> Result<JobRecord, Error> {
        self.within(ctx.scope()).get(id).await
    }

    /// Where a job is in its life.
    pub async fn status(&self, ctx: &SecurityContext, id: JobId) -> Result<Status, Error> {
        self.within(ctx.scope()).status(id).await
    }

    /// The output of a job; `None` if it has not ended. Fails with [`Error::JobFailed`] if the job did not succeed.
    pub async fn result<T: DeserializeOwned>(&self, ctx: &SecurityContext, id: JobId) -> Result<Option<T>, Error> {
        self.within(ctx.scope()).result(id).await
    }

    /// Waits until a job has ended. All waiters of a process share one query.
    pub async fn wait(&self, ctx: &SecurityContext, id: JobId, at_most: Duration) -> Result<JobView, Error> {
        self.within(ctx.scope()).wait(id, at_most).await
    }

    /// Waits until a job has ended and returns its typed output.
    pub async fn wait_for<T: DeserializeOwned>(
        &self,
        ctx: &SecurityContext,
        id: JobId,
        at_most: Duration,
    ) -> Result<T, Error> {
        self.within(ctx.scope()).wait_for(id, at_most).await
    }

    /// The input of a job. Fails with [`Error::Sealed`] if it is encrypted and cannot be decrypted here.
    pub async fn input(&self, ctx: &SecurityContext, id: JobId) -> Result<Payload, Error> {
        self.within(ctx.scope()).input(id).await
    }

    /// A job's input for a person who looks at it: written into the audit log as `INPUT_READ`, in the job's tenant, before
    /// it is shown.
    pub async fn read_input(&self, ctx: &SecurityContext, id: JobId) -> Result<Payload, Error> {
        self.within(ctx.scope()).read_input(ctx, id).await
    }

    /// Every status change and every attempt of a job, oldest first.
    pub async fn history(&self, ctx: &SecurityContext, id: JobId) -> Result<Vec<HistoryEntry>, Error> {
        self.within(ctx.scope()).history(id).await
    }

    /// The caller's jobs, newest first.
    pub async fn list(&self, ctx: &SecurityContext, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>, Error> {
        self.within(ctx.scope()).list(filter, page).await
    }

    /// A page of the caller's jobs, newest first, in bounded time: it examines at most [`SEARCHED_JOBS`] candidates and
    /// returns where to continue. It pages by keyset only.
    pub async fn search(&self, ctx: &SecurityContext, filter: &JobFilter, page: Page) -> Result<Found, Error> {
        self.within(ctx.scope()).search(filter, page).await
    }

    /// The caller's dead letters, newest first.
    pub async fn dead_letters(
        &self,
        ctx: &SecurityContext,
        filter: JobFilter,
        page: Page,
    ) -> Result<Vec<JobRecord>, Error> {
        self.within(ctx.scope()).dead_letters(filter, page).await
    }

    /// How many of the caller's jobs are in each status.
    pub async fn counts(&self, ctx: &SecurityContext) -> Result<Counts, Error> {
        self.within(ctx.scope()).counts().await
    }

    /// Follows one job: yields every change of status and progress from now on, and ends with the job. A slow watcher gets
    /// only the latest. Progress up to the sequence `after` is left out.
    pub async fn watch(
        &self,
        ctx: &SecurityContext,
        id: JobId,
        after: u64,
    ) -> Result<Pin<Box<dyn Stream<Item = JobView> + Send>>, Error> {
        self.within(ctx.scope()).watch(id, after).await
    }

    /// Status events of the caller's tenant that this process causes, from now on.
    pub fn events(&self, ctx: &SecurityContext) -> Pin<Box<dyn Stream<Item = JobEvent> + Send>> {
        self.within(ctx.scope()).events()
    }

    /// Explains why a job is not running now, and when it will.
    pub async fn why(&self, ctx: &SecurityContext, id: JobId) -> Result<Why, Error> {
        self.within(ctx.scope()).why(id).await
    }

    /// The audit log of the caller's tenant, newest first.
    pub async fn audit_log(&self, ctx: &SecurityContext, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        self.within(ctx.scope()).audit_log(filter).await
    }

    /// The quota of the caller's tenant, and how much of it is used.
    pub async fn usage(&self, ctx: &SecurityContext) -> Result<TenantUse, Error> {
        let used = self.within(ctx.scope()).tenants().await?.into_iter().find(|used| used.tenant == ctx.tenant);
        match used {
            Some(used) => Ok(used),
            None => Ok(TenantUse::new(ctx.tenant, &self.store().quotas().await?)),
        }
    }

    /// The registered processes.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        Ok(self.worker().store.nodes().await?)
    }
}

impl Within {
    /// A job, as [`JobService::get`].
    pub async fn get(&self, id: JobId) -> Result<JobRecord, Error> {
        if let Some(record) = self.service().local().get(self.scope(), id) {
            return Ok(record);
        }
        let mut record = self.service().lookups().get(self.scope(), id).await?.ok_or(Error::NotFound(id))?;
        self.worker().seals.open_record(&mut record).await;
        Ok(record)
    }

    /// Where a job is in its life.
    pub async fn status(&self, id: JobId) -> Result<Status, Error> {
        Ok(self.get(id).await?.status)
    }

    /// What a job returned, as [`JobService::result`].
    pub async fn result<T: DeserializeOwned>(&self, id: JobId) -> Result<Option<T>, Error> {
        match self.status(id).await? {
            status if status.is_terminal() => self.wait_for(id, Duration::ZERO).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Waits until a job has ended, as [`JobService::wait`].
    pub async fn wait(&self, id: JobId, at_most: Duration) -> Result<JobView, Error> {
        // Watch before looking: an end between the two would otherwise be missed until the next look.
        let mut views = self.views(id);
        let record = self.get(id).await?;
        if record.status.is_terminal() {
            return Ok(crate::operate::watch::view_of(&record));
        }
        let ended = views.wait_for(|view| view.as_ref().is_some_and(|view| view.status.is_terminal()));
        match tokio::time::timeout(at_most, ended).await {
            Ok(Ok(view)) => Ok(view.clone().expect("an ended view is a view")),
            Ok(Err(_)) => Err(Error::ShutDown),
            Err(_) => Err(Error::Timeout(format!("job {id}"))),
        }
    }

    /// Waits until a job has ended and returns its typed output.
    pub async fn wait_for<T: DeserializeOwned>(&self, id: JobId, at_most: Duration) -> Result<T, Error> {
        let view = self.wait(id, at_most).await?;
        if view.status != Status::Succeeded {
            let error = view.error.unwrap_or_else(|| JobError::terminal(view.status.as_str(), "it did not succeed"));
            return Err(Error::JobFailed { job: id, status: view.status, error: Box::new(error) });
        }
        let mut output = view.output.unwrap_or_else(Payload::null);
        if output.is_sealed() {
            let tenant = self.tenant_of(id).await?;
            let opened = self.worker().seals.open(tenant, id, Kind::Output, &output).await;
            output = opened.map_err(|source| Error::Sealed { job: id, source })?;
        }
        output.decode().map_err(|source| Error::Output { job: id, source })
    }

    /// What happens to a job, in memory or in the store.
    fn views(&self, id: JobId) -> tokio::sync::watch::Receiver<Option<JobView>> {
        let local = self.service().local().watch(self.scope(), id);
        local.unwrap_or_else(|| self.worker().watchers.watch(id))
    }

    /// A job's input, as [`JobService::input`].
    pub async fn input(&self, id: JobId) -> Result<Payload, Error> {
        let input = self.store().input(self.scope(), id).await?.ok_or(Error::NotFound(id))?;
        // Only sealed input can look sealed, but what looks sealed need not be: the job itself says.
        if !looks_sealed(input.as_str()) {
            return Ok(input);
        }
        let record = self.get(id).await?;
        if !record.spec.sealed {
            return Ok(input);
        }
        let opened = self.worker().seals.open(record.tenant, id, Kind::Input, &input).await;
        opened.map_err(|source| Error::Sealed { job: id, source })
    }

    /// A job's input for a person who looks at it, as [`JobService::read_input`].
    pub async fn read_input(&self, by: &SecurityContext, id: JobId) -> Result<Payload, Error> {
        let input = self.input(id).await?;
        let by = self.caller_of(by, id).await?;
        self.service().audit(&by, "INPUT_READ", &id.to_string(), None).await?;
        Ok(input)
    }

    /// Every status change and every attempt of a job, oldest first.
    pub async fn history(&self, id: JobId) -> Result<Vec<HistoryEntry>, Error> {
        let mut history = self.store().history(self.scope(), id).await?;
        if history.is_empty() {
            return Err(Error::NotFound(id));
        }
        let texts = history.iter().filter_map(|entry| entry.error.as_ref()?.details.as_ref()?.as_str());
        if texts.into_iter().any(looks_sealed) {
            let record = self.get(id).await?;
            if record.spec.sealed {
                self.worker().seals.open_history(record.tenant, id, &mut history).await;
            }
        }
        Ok(history)
    }

    /// The jobs of the scope, newest first.
    pub async fn list(&self, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>, Error> {
        self.limits().check_page(page)?;
        self.limits().check_filter(filter)?;
        let mut records = self.store().find(self.scope(), filter, page, None).await?.jobs;
        self.worker().seals.open_records(&mut records).await;
        Ok(records)
    }

    /// A page of the jobs of the scope, as [`JobService::search`].
    pub async fn search(&self, filter: &JobFilter, page: Page) -> Result<Found, Error> {
        self.limits().check_page(page)?;
        self.limits().check_filter(filter)?;
        if page.offset > 0 {
            return Err(InvalidInput::new("offset", "a search has no offset; use `before`").into());
        }
        let mut found = self.store().find(self.scope(), filter, page, Some(SEARCHED_JOBS)).await?;
        self.worker().seals.open_records(&mut found.jobs).await;
        Ok(found)
    }

    /// The dead letters of the scope, newest first.
    pub async fn dead_letters(&self, filter: JobFilter, page: Page) -> Result<Vec<JobRecord>, Error> {
        self.list(&JobFilter { statuses: vec![Status::DeadLettered], ..filter }, page).await
    }

    /// How many jobs are in each status.
    pub async fn counts(&self) -> Result<Counts, Error> {
        Ok(self.store().counts(self.scope()).await?)
    }

    /// Follows one job, as [`JobService::watch`].
    pub async fn watch(&self, id: JobId, after: u64) -> Result<Pin<Box<dyn Stream<Item = JobView> + Send>>, Error> {
        let views = self.views(id);
        let first = crate::operate::watch::view_of(&self.get(id).await?);
        let state = Watching { views, first: Some(first), after, ended: false };
        Ok(Box::pin(unfold(state, |mut state| async { state.next().await.map(|view| (view, state)) })))
    }

    /// Status events of the scope caused by this process, from now on.
    pub fn events(&self) -> Pin<Box<dyn Stream<Item = JobEvent> + Send>> {
        self.worker().watchers.events(self.scope())
    }

    /// Why a job is not running now, and when it will.
    pub async fn why(&self, id: JobId) -> Result<Why, Error> {
        let facts = self.store().whereabouts(self.scope(), id).await?.ok_or(Error::NotFound(id))?;
        Ok(explain(&facts))
    }

    /// The audit log of the scope, newest first.
    pub async fn audit_log(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.store().audit_log(self.scope(), filter).await?)
    }

    /// What each tenant of the scope uses of what it may: those that have unfinished jobs or a policy of their own.
    pub async fn tenants(&self) -> Result<Vec<TenantUse>, Error> {
        Ok(self.store().tenant_uses(self.scope()).await?)
    }
}

struct Watching {
    views: tokio::sync::watch::Receiver<Option<JobView>>,
    first: Option<JobView>,
    after: u64,
    ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<JobView> {
        while !self.ended {
            let mut view = match self.first.take() {
                Some(view) => view,
                None => {
                    self.views.changed().await.ok()?;
                    let Some(view) = self.views.borrow_and_update().clone() else { continue };
                    view
                }
            };
            self.ended = view.status.is_terminal();
            match &view.progress {
                Some(progress) if progress.sequence <= self.after => view.progress = None,
                Some(progress) => self.after = progress.sequence,
                None => {}
            }
            return Some(view);
        }
        None
    }
}
