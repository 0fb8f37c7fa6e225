//! A checked e-mail, ready for any provider. Pure but for reading attachments, which `mod` does. Nothing that is built
//! here can hold a header that its writer did not mean.

use lettre::message::header::ContentType;
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use serde::{Deserialize, Serialize};
use windlass_core::InvalidInput;

use crate::root::check_path;

/// Recipients of one e-mail, all kinds together; lists are sent one job per recipient.
const RECIPIENTS: usize = 100;
/// The longest subject; a line of a header may have 998 bytes.
const SUBJECT_BYTES: usize = 900;
/// The longest text, of each kind.
const TEXT_BYTES: usize = 1024 * 1024;
/// Attachments of one e-mail.
const ATTACHMENTS: usize = 20;
/// The longest name of an attachment.
const NAME_BYTES: usize = 255;

/// An e-mail to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmailInput {
    /// From whom, if not from the handler's default sender; one of those that it allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// To whom: `ada@example.org` or `Ada <ada@example.org>`.
    #[serde(default)]
    pub to: Vec<String>,
    /// Who gets a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    /// Who gets a copy that the others do not see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    /// Where replies go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// What it is about.
    pub subject: String,
    /// What it says, as plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What it says, as HTML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Files to attach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<AttachmentRef>,
}

impl EmailInput {
    /// An e-mail of plain text.
    pub fn new(to: impl Into<String>, subject: impl Into<String>, text: impl Into<String>) -> Self {
        EmailInput { to: vec![to.into()], subject: subject.into(), text: Some(text.into()), ..EmailInput::default() }
    }
}

/// A file to attach, by its name below the handler's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachmentRef {
    /// The file, relative to the handler's directory of attachments.
    pub file: String,
    /// The name that the recipient sees; that of the file if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is, such as `application/pdf`; `application/octet-stream` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

impl AttachmentRef {
    pub(crate) fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.file.rsplit('/').next().unwrap_or_default())
    }

    pub(crate) fn kind(&self) -> &str {
        self.content_type.as_deref().unwrap_or("application/octet-stream")
    }
}

/// A checked e-mail without its attachments.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) message_id: String,
    pub(crate) from: Mailbox,
    pub(crate) to: Vec<Mailbox>,
    pub(crate) cc: Vec<Mailbox>,
    pub(crate) bcc: Vec<Mailbox>,
    pub(crate) reply_to: Option<Mailbox>,
    pub(crate) subject: String,
    pub(crate) text: Option<String>,
    pub(crate) html: Option<String>,
}

/// A file that was read.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) bytes: Vec<u8>,
}

/// Reads an e-mail, from one of `senders`, whose first is the default. `id` makes its `Message-ID`.
pub(crate) fn letter(input: &EmailInput, senders: &[Mailbox], id: &str) -> Result<Letter, InvalidInput> {
    let bad = |field: &str, message: &str| InvalidInput::new(field, message);
    let from = match &input.from {
        None => senders.first().cloned(),
        Some(from) => {
            let from = mailbox("from", from)?;
            senders.iter().any(|sender| sender.email == from.email).then_some(from)
        }
    };
    let from = from.ok_or_else(|| bad("from", "the handler does not allow this sender"))?;
    let many = |field: &str, list: &[String]| list.iter().map(|one| mailbox(field, one)).collect::<Result<Vec<_>, _>>();
    let (to, cc, bcc) = (many("to", &input.to)?, many("cc", &input.cc)?, many("bcc", &input.bcc)?);
    if to.is_empty() || to.len() + cc.len() + bcc.len() > RECIPIENTS {
        return Err(bad("to", "an e-mail must have 1 to 100 recipients, copies included"));
    }
    let reply_to = input.reply_to.as_deref().map(|one| mailbox("reply_to", one)).transpose()?;
    if input.subject.is_empty() || input.subject.len() > SUBJECT_BYTES || has_controls(&input.subject) {
        return Err(bad("subject", "it must have 1 to 900 bytes without line breaks or control characters"));
    }
    let too_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > TEXT_BYTES);
    match (&input.text, &input.html) {
        (None, None) => return Err(bad("text", "an e-mail needs `text`, `html` or both")),
        (text, _) if too_long(text) => return Err(bad("text", "it must have at most 1048576 bytes")),
        (_, html) if too_long(html) => return Err(bad("html", "it must have at most 1048576 bytes")),
        _ => {}
    }
    check_attachments(&input.attachments)?;
    Ok(Letter {
        message_id: format!("<{id}@{}>", from.email.domain()),
        from,
        to,
        cc,
        bcc,
        reply_to,
        subject: input.subject.clone(),
        text: input.text.clone(),
        html: input.html.clone(),
    })
}

fn check_attachments(attachments: &[AttachmentRef]) -> Result<(), InvalidInput> {
    let bad = |message: &str| Err(InvalidInput::new("attachments", message));
    if attachments.len() > ATTACHMENTS {
        return bad("at most 20 files can be attached");
    }
    for attachment in attachments {
        check_path("attachments", &attachment.file)?;
        let name = attachment.shown_name();
        if name.is_empty() || name.len() > NAME_BYTES || has_controls(name) || name.contains(['/', '\\', '"']) {
            return bad("a name must have 1 to 255 bytes without slashes, quotes or control characters");
        }
        if has_controls(attachment.kind()) || ContentType::parse(attachment.kind()).is_err() {
            return bad("a content type must be like `application/pdf`");
        }
    }
    Ok(())
}

/// One address. The name before it may be anything but a line break.
pub(crate) fn mailbox(field: &str, text: &str) -> Result<Mailbox, InvalidInput> {
    let parsed = if has_controls(text) { None } else { text.parse::<Mailbox>().ok() };
    let ascii = parsed.filter(|mailbox| mailbox.email.to_string().is_ascii());
    ascii.ok_or_else(|| InvalidInput::new(field, "it must be like `ada@example.org` or `Ada <ada@example.org>`"))
}

fn has_controls(text: &str) -> bool {
    text.chars().any(char::is_control)
}

impl Letter {
    /// The message as it goes over SMTP.
    pub(crate) fn message(&self, files: &[Attached]) -> Result<lettre::Message, lettre::error::Error> {
        let mut builder = lettre::Message::builder().from(self.from.clone()).subject(&self.subject).date_now();
        builder = builder.message_id(Some(self.message_id.clone()));
        builder = self.to.iter().cloned().fold(builder, |builder, to| builder.to(to));
        builder = self.cc.iter().cloned().fold(builder, |builder, cc| builder.cc(cc));
        builder = self.bcc.iter().cloned().fold(builder, |builder, bcc| builder.bcc(bcc));
        if let Some(reply_to) = &self.reply_to {
            builder = builder.reply_to(reply_to.clone());
        }
        let body = match (&self.text, &self.html) {
            (Some(text), Some(html)) => MultiPart::alternative_plain_html(text.clone(), html.clone()),
            (text, None) => MultiPart::mixed().singlepart(SinglePart::plain(text.clone().unwrap_or_default())),
            (None, Some(html)) => MultiPart::mixed().singlepart(SinglePart::html(html.clone())),
        };
        if files.is_empty() {
            return match (&self.text, &self.html) {
                (Some(text), None) => builder.singlepart(SinglePart::plain(text.clone())),
                (None, Some(html)) => builder.singlepart(SinglePart::html(html.clone())),
                _ => builder.multipart(body),
            };
        }
        let attach = |parts: MultiPart, file: &Attached| {
            let kind = ContentType::parse(&file.kind).unwrap_or(ContentType::TEXT_PLAIN);
            parts.singlepart(Attachment::new(file.name.clone()).body(file.bytes.clone(), kind))
        };
        builder.multipart(files.iter().fold(MultiPart::mixed().multipart(body), attach))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn senders() -> Vec<Mailbox> {
        vec!["Ops <ops@example.org>".parse().expect("a mailbox"), "news@example.org".parse().expect("a mailbox")]
    }

    fn check(change: impl FnOnce(&mut EmailInput), field: &str) {
        let mut input = EmailInput::new("ada@example.org", "Hello", "text");
        change(&mut input);
        let error = letter(&input, &senders(), "7").err().unwrap_or_else(|| panic!("{input:?} passed"));
        assert_eq!(error.field, field, "{input:?}");
    }

    /// HND-3: bad input is refused by field, before anything is sent.
    #[test]
    fn every_field_is_checked() {
        for address in ["", "ada", "ada@", "@example.org", "a b@example.org", "ada@example.org\r\nBcc: eve@example.org"]
        {
            check(|input| input.to = vec![address.into()], "to");
            check(|input| input.cc = vec![address.into()], "cc");
            check(|input| input.bcc = vec![address.into()], "bcc");
            check(|input| input.reply_to = Some(address.into()), "reply_to");
            check(|input| input.from = Some(address.into()), "from");
        }
        check(|input| input.from = Some("boss@example.org".into()), "from");
        check(|input| input.to.clear(), "to");
        check(|input| input.bcc = vec!["a@example.org".into(); 100], "to");
        for subject in ["", "a\r\nBcc: eve@example.org", "a\nb", "a\0", &"x".repeat(901)] {
            check(|input| input.subject = subject.into(), "subject");
        }
        check(|input| input.text = None, "text");
        check(|input| input.text = Some("x".repeat(TEXT_BYTES + 1)), "text");
        check(|input| input.html = Some("x".repeat(TEXT_BYTES + 1)), "html");
        let attach = |file: &str, name: Option<&str>, kind: Option<&str>| AttachmentRef {
            file: file.into(),
            name: name.map(Into::into),
            content_type: kind.map(Into::into),
        };
        for bad in [
            attach("../x", None, None),
            attach("/etc/passwd", None, None),
            attach("x", Some("a\r\nb"), None),
            attach("x", Some("../x"), None),
            attach("x", Some(""), None),
            attach("x", None, Some("pdf")),
            attach("x", None, Some("text/plain\r\nX: y")),
        ] {
            check(|input| input.attachments = vec![bad], "attachments");
        }
        check(|input| input.attachments = vec![attach("x", None, None); 21], "attachments");
    }

    /// HND-3: the id of the message comes from the job, so that a second sending can be seen to be one.
    #[test]
    fn a_message_has_its_parts_and_hides_blind_copies() {
        let mut input = EmailInput::new("Ada <ada@example.org>", "Grüße", "plain text");
        (input.html, input.bcc) = (Some("<p>html</p>".into()), vec!["eve@example.org".into()]);
        let letter = letter(&input, &senders(), "7").expect("good");
        assert_eq!(letter.message_id, "<7@example.org>");
        let file = Attached { name: "a.pdf".into(), kind: "application/pdf".into(), bytes: b"%PDF".to_vec() };
        let message = letter.message(&[file]).expect("a message");
        let text = String::from_utf8(message.formatted()).expect("text");
        for part in ["Message-ID: <7@example.org>", "multipart/mixed", "multipart/alternative", "plain text", "a.pdf"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!text.contains("eve@example.org"), "{text}");
        assert_eq!(message.envelope().to().len(), 2);
    }

    proptest! {
        /// HND-3: whatever passes, no field begins a header of its own.
        #[test]
        fn no_header_can_be_injected(subject in "\\PC{0,20}[\r\n]{0,2}(Bcc: eve@example.org)?", name in "\\PC{0,12}[\r\n]{0,2}[a-z:]{0,6}") {
            let mut input = EmailInput::new("ada@example.org", subject, "text");
            input.to.push(format!("{name} <bob@example.org>"));
            if let Ok(letter) = letter(&input, &senders(), "7") {
                let text = String::from_utf8_lossy(&letter.message(&[]).expect("a message").formatted()).into_owned();
                let head = text.split("\r\n\r\n").next().unwrap_or_default();
                prop_assert!(!head.lines().any(|line| line.starts_with("Bcc:")), "{head}");
            }
        }
    }
}
