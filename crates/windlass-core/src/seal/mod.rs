//! Which texts of a job are sealed at rest, and where on their way: input when it is submitted, the others when an
//! attempt hands them over; all are opened where a handler or a caller gets them. The job's spec says whether a job is
//! sealed, never the shape of a text. Called by the service, `run`, `context` and `watch`; the cryptography is in
//! `crypt`. Without the feature `encryption` nothing is sealed, and sealed jobs wait for a node that can open them.

#[cfg(feature = "encryption")]
pub(crate) mod crypt;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::life::logs::LogLine;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::{ClaimedJob, HistoryEntry, JobRecord, NewJob, Progress};
use crate::model::payload::Payload;
use crate::model::tenant::TenantId;
use crate::store::{self, Transition};

#[cfg(feature = "encryption")]
use crate::seal::crypt::{Envelope, TenantKeys, Vault};
#[cfg(not(feature = "encryption"))]
use absent::{Envelope, TenantKeys, Vault};

/// Why a text could not be sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The provider or the store did not hand out the key. Trying again later may help.
    #[error("the key is not available: {0}")]
    Unavailable(String),
    /// This process has no key provider, so it can neither seal nor open.
    #[error("this process has no key provider")]
    NotConfigured,
    /// The key is gone for good, and with it everything it has sealed.
    #[error("version {version} of the data key of tenant {tenant} is destroyed")]
    Destroyed {
        /// Whose key it was.
        tenant: TenantId,
        /// Which version.
        version: u32,
    },
    /// The sealed text was changed, or belongs to another tenant or job.
    #[error("the sealed text was changed, or belongs to another tenant or job")]
    Damaged,
}

impl KeyError {
    /// A stable name for programs, and the reason of dead letters: `key_unavailable`, `sealed`, `key_destroyed`,
    /// `seal_broken`.
    pub fn code(&self) -> &'static str {
        match self {
            KeyError::Unavailable(_) => "key_unavailable",
            KeyError::NotConfigured => "sealed",
            KeyError::Destroyed { .. } => "key_destroyed",
            KeyError::Damaged => "seal_broken",
        }
    }

    /// Whether the same may succeed later, or on another node.
    pub fn is_transient(&self) -> bool {
        matches!(self, KeyError::Unavailable(_) | KeyError::NotConfigured)
    }
}

impl From<store::Error> for KeyError {
    fn from(error: store::Error) -> Self {
        KeyError::Unavailable(error.to_string())
    }
}

/// What a sealed text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Input = 1,
    Output = 2,
    Checkpoint = 3,
    Error = 4,
    Progress = 5,
    Log = 6,
    /// The secret of a webhook, sealed under the webhook's id.
    Secret = 16,
    /// The input of a schedule, sealed under its id.
    Schedule = 17,
    /// What the callback of a batch gets, sealed under the batch's id.
    Batch = 18,
}

/// What is shown of a text that cannot be opened here.
pub(crate) const SEALED: &str = "[sealed]";

/// Whether a text may be sealed. Only a hint that it is worth asking the job.
pub(crate) fn looks_sealed(text: &str) -> bool {
    text.trim_start_matches('"').starts_with("wls1:")
}

/// The means to seal and open, where the service has any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seals(Option<Arc<Vault>>);

/// Seals the texts of one attempt or one submit, with keys that are at hand.
#[derive(Clone, Debug)]
pub(crate) struct Sealer(Arc<TenantKeys>);

impl Seals {
    #[cfg(feature = "encryption")]
    pub(crate) fn new(vault: Option<Arc<Vault>>) -> Seals {
        Seals(vault)
    }

    #[cfg(feature = "encryption")]
    pub(crate) fn vault(&self) -> Result<&Vault, KeyError> {
        self.0.as_deref().ok_or(KeyError::NotConfigured)
    }

    /// What seals new jobs of a tenant; `None` if nothing is sealed here.
    pub(crate) async fn sealer(&self, tenant: TenantId) -> Result<Option<Sealer>, KeyError> {
        match &self.0 {
            None => Ok(None),
            Some(vault) => Ok(Some(Sealer(vault.for_sealing(tenant).await?))),
        }
    }

    /// Opens a claimed job, if it is sealed, and answers what seals its results. They are sealed exactly if its input is.
    pub(crate) async fn open_job(&self, job: &mut ClaimedJob) -> Result<Option<Sealer>, KeyError> {
        if !job.spec.sealed {
            return Ok(None);
        }
        let payload = self.open(job.tenant, job.id, Kind::Input, &job.payload).await?;
        let checkpoint = match &job.checkpoint {
            Some(checkpoint) => Some(self.open(job.tenant, job.id, Kind::Checkpoint, checkpoint).await?),
            None => None,
        };
        let sealer = self.sealer(job.tenant).await?.ok_or(KeyError::NotConfigured)?;
        (job.payload, job.checkpoint) = (payload, checkpoint);
        Ok(Some(sealer))
    }

    /// Opens one text of a sealed job.
    pub(crate) async fn open(
        &self,
        tenant: TenantId,
        job: JobId,
        kind: Kind,
        payload: &Payload,
    ) -> Result<Payload, KeyError> {
        if payload.is_null() {
            return Ok(Payload::null());
        }
        Ok(Payload::from_store(self.open_text(tenant, job, kind, payload.as_str()).await?))
    }

    async fn open_text(&self, tenant: TenantId, job: JobId, kind: Kind, text: &str) -> Result<String, KeyError> {
        let vault = self.0.as_deref().ok_or(KeyError::NotConfigured)?;
        let envelope = Envelope::parse(text).ok_or(KeyError::Damaged)?;
        vault.for_opening(tenant, envelope.version).await?.open(job, kind, &envelope)
    }

    /// Opens what can be opened of records, and marks the rest as sealed. Tenants do not wait for one another's keys.
    pub(crate) async fn open_records(&self, records: &mut [JobRecord]) {
        if records.iter().any(|record| record.spec.sealed) {
            join_all(records.iter_mut().map(|record| self.open_record(record))).await;
        }
    }

    /// The same for one record.
    pub(crate) async fn open_record(&self, record: &mut JobRecord) {
        if !record.spec.sealed {
            return;
        }
        let (tenant, id) = (record.tenant, record.id);
        if let Some(output) = &mut record.output {
            *output = match self.open(tenant, id, Kind::Output, output).await {
                Ok(opened) => opened,
                Err(_) => output.marked_sealed(),
            };
        }
        if let Some(error) = &mut record.error {
            self.open_error(tenant, id, error).await;
        }
        if let Some(progress) = &mut record.progress {
            let opened = self.open_text(tenant, id, Kind::Progress, &progress.message).await;
            progress.message = opened.unwrap_or_else(|_| SEALED.to_owned());
        }
    }

    /// Whether the keys of a record are at hand or not needed, so that opening it asks nobody. If not, they are asked
    /// for in the background.
    pub(crate) fn is_at_hand(&self, record: &JobRecord) -> bool {
        let Some(vault) = self.0.as_ref().filter(|_| record.spec.sealed) else { return true };
        if vault.held(record.tenant).is_some() {
            return true;
        }
        if !vault.is_busy_with(record.tenant) {
            let (vault, tenant) = (vault.clone(), record.tenant);
            // Any version: all are read. A failure is logged there, and found again by whoever asks next.
            tokio::spawn(async move { drop(vault.for_opening(tenant, 0).await) });
        }
        false
    }

    /// Opens the errors of a sealed job's history.
    pub(crate) async fn open_history(&self, tenant: TenantId, id: JobId, history: &mut [HistoryEntry]) {
        for error in history.iter_mut().filter_map(|entry| entry.error.as_mut()) {
            self.open_error(tenant, id, error).await;
        }
    }

    /// Opens the log lines of a sealed job, and marks those that cannot be opened.
    pub(crate) async fn open_lines(&self, tenant: TenantId, id: JobId, lines: &mut [LogLine]) {
        for line in lines {
            let opened = self.open_text(tenant, id, Kind::Log, &line.message).await;
            line.message = opened.unwrap_or_else(|_| SEALED.to_owned());
        }
    }

    /// Opens an error of a sealed job, if its keys can be had in time; else it stays marked.
    pub(crate) async fn open_error_within(&self, at_most: Duration, tenant: TenantId, id: JobId, error: &mut JobError) {
        if tokio::time::timeout(at_most, self.open_error(tenant, id, error)).await.is_err() {
            error.details = None;
        }
    }

    /// An error of a sealed job has its text in its details; those that the engine wrote without keys have none.
    async fn open_error(&self, tenant: TenantId, id: JobId, error: &mut JobError) {
        let Some(sealed) = error.details.as_ref().and_then(|details| details.as_str()) else { return };
        let opened = self.open_text(tenant, id, Kind::Error, sealed).await;
        match opened.ok().and_then(|text| serde_json::from_str(&text).ok()) {
            Some((message, details)) => (error.message, error.details) = (message, details),
            None => error.details = None,
        }
    }
}

/// Opens sealed jobs that were read from a store without a service, as tools do that only look.
#[cfg(feature = "encryption")]
#[derive(Clone, Debug)]
pub struct Opener(Seals);

#[cfg(feature = "encryption")]
impl Opener {
    /// With keys, or with none: then it only marks what is sealed. Never writes to the store.
    pub fn new(store: Arc<dyn store::Store>, encryption: Option<crate::seal::crypt::Encryption>) -> Opener {
        Opener(Seals(encryption.map(|options| Vault::new(store, options))))
    }

    pub(crate) fn seals(&self) -> &Seals {
        &self.0
    }

    /// Opens what can be opened of records, and marks the rest.
    pub async fn open_records(&self, records: &mut [JobRecord]) {
        self.0.open_records(records).await;
    }

    /// The input of a job, opened if it is sealed.
    pub async fn open_input(&self, job: &JobRecord, input: Payload) -> Result<Payload, KeyError> {
        if job.spec.sealed { self.0.open(job.tenant, job.id, Kind::Input, &input).await } else { Ok(input) }
    }

    /// Opens the errors in the history of a job, if it is sealed.
    pub async fn open_history(&self, job: &JobRecord, history: &mut [HistoryEntry]) {
        if job.spec.sealed {
            self.0.open_history(job.tenant, job.id, history).await;
        }
    }
}

impl Sealer {
    /// The content key of a job that is unique by content: equal for equal contents, and telling nothing else.
    pub(crate) fn content_key(&self, content: &str) -> Result<String, KeyError> {
        self.0.content_key(content)
    }

    /// Seals a new job and marks it.
    pub(crate) fn seal_new(&self, job: &mut NewJob) {
        job.payload = self.seal(job.id, Kind::Input, &job.payload);
        job.spec.sealed = true;
    }

    /// Seals a text that is JSON. `null` says nothing, so it stays.
    pub(crate) fn seal(&self, job: JobId, kind: Kind, payload: &Payload) -> Payload {
        if payload.is_null() {
            return Payload::null();
        }
        Payload::from_store(format!("\"{}\"", self.0.seal(job, kind, payload.as_str())))
    }

    /// Seals what a transition carries: output, or the message and details of an error.
    pub(crate) fn seal_transition(&self, job: JobId, transition: Transition) -> Transition {
        match transition {
            Transition::Succeed { output, keep } => {
                Transition::Succeed { output: output.map(|output| self.seal(job, Kind::Output, &output)), keep }
            }
            Transition::Retry { failed, delay, error } => {
                Transition::Retry { failed, delay, error: self.seal_error(job, error) }
            }
            Transition::DeadLetter { failed, reason, error, keep } => {
                Transition::DeadLetter { failed, reason, error: self.seal_error(job, error), keep }
            }
            other => other,
        }
    }

    fn seal_error(&self, job: JobId, mut error: JobError) -> JobError {
        let text = serde_json::to_string(&(&error.message, &error.details)).expect("strings and JSON are JSON");
        error.message = SEALED.to_owned();
        error.details = Some(serde_json::Value::String(self.0.seal(job, Kind::Error, &text)));
        error
    }

    pub(crate) fn seal_line(&self, job: JobId, message: &str) -> String {
        self.0.seal(job, Kind::Log, message)
    }

    pub(crate) fn seal_progress(&self, job: JobId, progress: Progress) -> Progress {
        let message = self.0.seal(job, Kind::Progress, &progress.message);
        Progress { message, ..progress }
    }
}

/// Stand-ins that cannot exist, so that nothing else has to know whether the feature is there.
#[cfg(not(feature = "encryption"))]
mod absent {
    use std::sync::Arc;

    use super::{KeyError, Kind};
    use crate::model::id::JobId;
    use crate::model::tenant::TenantId;

    #[derive(Debug)]
    pub(crate) enum Vault {}

    #[derive(Debug)]
    pub(crate) enum TenantKeys {}

    pub(crate) struct Envelope {
        pub(crate) version: u32,
    }

    impl Vault {
        pub(crate) async fn for_sealing(&self, _: TenantId) -> Result<Arc<TenantKeys>, KeyError> {
            match *self {}
        }

        pub(crate) async fn for_opening(&self, _: TenantId, _: u32) -> Result<Arc<TenantKeys>, KeyError> {
            match *self {}
        }

        pub(crate) fn is_busy_with(&self, _: TenantId) -> bool {
            match *self {}
        }

        pub(crate) fn held(&self, _: TenantId) -> Option<Arc<TenantKeys>> {
            match *self {}
        }
    }

    impl TenantKeys {
        pub(crate) fn seal(&self, _: JobId, _: Kind, _: &str) -> String {
            match *self {}
        }

        pub(crate) fn open(&self, _: JobId, _: Kind, _: &Envelope) -> Result<String, KeyError> {
            match *self {}
        }

        pub(crate) fn content_key(&self, _: &str) -> Result<String, KeyError> {
            match *self {}
        }
    }

    impl Envelope {
        pub(crate) fn parse(_: &str) -> Option<Envelope> {
            None
        }
    }
}
