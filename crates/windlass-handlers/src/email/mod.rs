//! Sends e-mail: over SMTP or a provider's HTTP API, with text, HTML and attached files. The id of the message
//! comes from the job, a sent e-mail is noted before the job ends, and `EMAIL_SENT` is in the audit log.

mod letter;
mod provider;

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use lettre::message::Mailbox;
use serde::{Deserialize, Serialize};
use windlass_core::{Error, HandlerOptions, HandlerRef, InvalidInput, JobContext, JobError, JobHandler, TenantId};

use crate::reply;
use crate::root::{Root, blocking, disk};
use letter::Attached;
pub use letter::{AttachmentRef, EmailInput};
pub use provider::{Graph, Resend, Smtp};

/// The handler, for those who submit.
pub const HANDLER: HandlerRef<EmailInput, EmailSent> = HandlerRef::new(Email::ID);

/// The action of the entry in the audit log.
pub const EMAIL_SENT: &str = "EMAIL_SENT";

/// All attachments of an e-mail together: more than that most servers refuse.
const ATTACHED_BYTES: u64 = 20 * 1024 * 1024;
/// How long an attempt may take: connecting, logging in and sending have 60 s each.
const ATTEMPT: Duration = Duration::from_secs(300);
/// E-mails at once on a node: servers count connections.
const AT_ONCE: usize = 4;

/// What was sent. Also what an attempt saves once the server has taken the e-mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmailSent {
    /// The `Message-ID`.
    pub message_id: String,
    /// How many recipients it went to.
    pub recipients: usize,
    /// What the server said, such as the id that it knows it by.
    pub reply: String,
}

/// Sends e-mail by one provider.
///
/// ```no_run
/// # async fn example(store: std::sync::Arc<windlass_core::MemoryStore>) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_core::JobService;
/// use windlass_handlers::email::{self, Email, EmailInput, Smtp};
/// use windlass_handlers::{Handlers, Secret};
///
/// let server = Smtp::starttls("mail.example.org").login("ops", Secret::env("SMTP_PASSWORD"));
/// let handler = Email::smtp(server, "Ops <ops@example.org>")?;
/// let jobs = JobService::builder(store).email(handler).start().await?;
/// email::HANDLER.submit(&jobs, EmailInput::new("ada@example.org", "Hello", "Your report is ready.")).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Email {
    by: By,
    senders: Vec<Mailbox>,
    attachments: Option<Root>,
    options: HandlerOptions,
}

#[derive(Debug)]
enum By {
    Smtp(Smtp),
    Resend(Resend),
    Graph(Graph),
}

impl Email {
    /// Sends over SMTP, from `from` unless a job names another allowed sender.
    pub fn smtp(server: Smtp, from: &str) -> Result<Email, InvalidInput> {
        Email::by(By::Smtp(server), from)
    }

    /// Sends by Resend.
    pub fn resend(service: Resend, from: &str) -> Result<Email, InvalidInput> {
        Email::by(By::Resend(service), from)
    }

    /// Sends by Microsoft Graph, as the user whose address `from` is.
    pub fn graph(service: Graph, from: &str) -> Result<Email, InvalidInput> {
        Email::by(By::Graph(service), from)
    }

    fn by(by: By, from: &str) -> Result<Email, InvalidInput> {
        let options = HandlerOptions::new().timeout(ATTEMPT).concurrency(AT_ONCE);
        Ok(Email { by, senders: vec![letter::mailbox("from", from)?], attachments: None, options })
    }

    /// Also lets jobs send from this address.
    pub fn sender(mut self, from: &str) -> Result<Email, InvalidInput> {
        self.senders.push(letter::mailbox("from", from)?);
        Ok(self)
    }

    /// Lets jobs attach files of this directory; those of other tenants than the root one from a directory of their id
    /// below it.
    pub fn attachments_from(mut self, directory: impl AsRef<Path>) -> std::io::Result<Email> {
        self.attachments = Some(Root::open(directory.as_ref())?);
        Ok(self)
    }

    /// Sets timeout, retries, concurrency and more.
    #[must_use]
    pub fn options(mut self, options: HandlerOptions) -> Self {
        self.options = options;
        self
    }

    fn check(&self, input: &EmailInput, id: &str) -> Result<letter::Letter, InvalidInput> {
        if self.attachments.is_none() && !input.attachments.is_empty() {
            return Err(InvalidInput::new("attachments", "the handler has no directory to attach files from"));
        }
        letter::letter(input, &self.senders, id)
    }

    /// Reads what is to be attached.
    async fn attached(&self, tenant: TenantId, input: &EmailInput) -> Result<Vec<Attached>, JobError> {
        let Some(root) = self.attachments.clone().filter(|_| !input.attachments.is_empty()) else {
            return Ok(Vec::new());
        };
        let wanted = input.attachments.clone();
        blocking(move || {
            let failed = |error: std::io::Error| disk("read an attachment", &error);
            let dir = root.of(tenant).map_err(failed)?;
            let mut room = ATTACHED_BYTES;
            let mut read = Vec::new();
            for attachment in &wanted {
                let mut bytes = Vec::new();
                let file = dir.open(&attachment.file).map_err(failed)?;
                file.take(room + 1).read_to_end(&mut bytes).map_err(failed)?;
                let too_large =
                    || JobError::terminal("too_large", "attachments have more than 20971520 bytes together");
                room = room.checked_sub(bytes.len() as u64).ok_or_else(too_large)?;
                let (name, kind) = (attachment.shown_name().to_owned(), attachment.kind().to_owned());
                read.push(Attached { name, kind, bytes });
            }
            Ok(read)
        })
        .await
    }
}

impl JobHandler for Email {
    const ID: &'static str = "email.send";
    type Input = EmailInput;
    type Output = EmailSent;

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    fn validate(&self, input: &EmailInput) -> Result<(), InvalidInput> {
        self.check(input, "0").map(drop)
    }

    async fn execute(&self, ctx: &JobContext, input: EmailInput) -> Result<EmailSent, JobError> {
        let letter = self.check(&input, &ctx.job_id().to_string()).map_err(reply::invalid)?;
        if let Ok(Some(sent)) = ctx.checkpoint::<EmailSent>() {
            // An earlier attempt has sent it and died before it could say so.
            return audited(ctx, sent).await;
        }
        let files = self.attached(ctx.tenant(), &input).await?;
        let recipients = letter.to.len() + letter.cc.len() + letter.bcc.len();
        let sending = async {
            match &self.by {
                By::Smtp(server) => server.send(&letter, &files).await,
                By::Resend(service) => service.send(&letter, &files).await,
                By::Graph(service) => service.send(&letter, &files).await,
            }
        };
        let reply = tokio::select! {
            biased;
            () = ctx.cancellation().cancelled() => return Err(JobError::cancelled()),
            reply = sending => reply?,
        };
        let sent = EmailSent { message_id: letter.message_id, recipients, reply };
        match ctx.save_checkpoint(&sent).await {
            Err(error @ Error::LeaseLost(_)) => return Err(error.into()),
            // The e-mail is gone; failing now would only send it again.
            Err(error) => {
                tracing::warn!(job = %ctx.job_id(), %error, "job {}: the sending could not be noted", ctx.job_id())
            }
            Ok(()) => {}
        }
        audited(ctx, sent).await
    }
}

/// Says so in the audit log: at least once for each e-mail.
async fn audited(ctx: &JobContext, sent: EmailSent) -> Result<EmailSent, JobError> {
    ctx.audit(EMAIL_SENT, &format!("{} to {} recipients", sent.message_id, sent.recipients)).await?;
    Ok(sent)
}
