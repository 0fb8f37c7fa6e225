//! The handlers that come with Windlass, as `up` and `serve` offer them: each section of a file turns one on
//! (`docs/handlers.md`). Called when their service is built. Nothing runs that the file does not name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use windlass::{Builder, TenantId};
use windlass_handlers::download::Download;
use windlass_handlers::egress::Egress;
use windlass_handlers::email::{Email, Graph, Resend, Smtp};
use windlass_handlers::http::HttpCall;
use windlass_handlers::{Handlers as _, Secret};

use crate::error::{CliError, Result};

/// What the file says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    download: Option<DownloadSettings>,
    http: Option<HttpSettings>,
    email: Option<EmailSettings>,
    #[cfg(unix)]
    command: Option<CommandSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DownloadSettings {
    directory: PathBuf,
    max_bytes: Option<u64>,
    #[serde(default)]
    egress: EgressSettings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSettings {
    #[serde(default)]
    egress: EgressSettings,
    #[serde(default)]
    secrets: BTreeMap<String, SecretSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmailSettings {
    from: String,
    #[serde(default)]
    senders: Vec<String>,
    attachments: Option<PathBuf>,
    smtp: Option<SmtpSettings>,
    resend: Option<ResendSettings>,
    graph: Option<GraphSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SmtpSettings {
    host: String,
    port: Option<u16>,
    #[serde(default)]
    security: Security,
    user: Option<String>,
    password: Option<SecretSettings>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Security {
    #[default]
    Starttls,
    Tls,
    None,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResendSettings {
    key: SecretSettings,
    endpoint: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphSettings {
    directory: String,
    application: String,
    secret: SecretSettings,
}

#[cfg(unix)]
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandSettings {
    programs: BTreeMap<String, PathBuf>,
    directory: Option<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EgressSettings {
    allow_private: bool,
    allow_http: bool,
    allow_any_port: bool,
    hosts: Vec<String>,
}

/// Where a secret is; never the secret.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretSettings {
    env: Option<String>,
    file: Option<PathBuf>,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    tenants: Vec<String>,
}

/// Adds the handlers that a file turns on; none without a file.
pub(crate) fn register(builder: Builder, file: Option<&Path>) -> Result<Builder> {
    let Some(file) = file else { return Ok(builder) };
    let bad = |message: String| CliError::invalid("handlers", format!("{}: {message}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    let settings: Settings = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    add(builder, settings).map_err(bad)
}

fn add(mut builder: Builder, settings: Settings) -> std::result::Result<Builder, String> {
    if let Some(download) = settings.download {
        let opened = Download::into(&download.directory);
        let handler = opened.map_err(|error| format!("[download] {}: {error}", download.directory.display()))?;
        let handler = handler.egress(egress(download.egress));
        builder = builder.download(match download.max_bytes {
            Some(bytes) => handler.max_bytes(bytes),
            None => handler,
        });
    }
    if let Some(http) = settings.http {
        let mut handler = HttpCall::new().egress(egress(http.egress));
        for (name, settings) in http.secrets {
            let place = format!("[http.secrets.{name}]");
            if settings.hosts.is_empty() {
                return Err(format!("{place} needs `hosts`, because a secret is sent to no other host"));
            }
            handler = handler.secret(name, secret(&place, settings)?);
        }
        builder = builder.http(handler);
    }
    if let Some(settings) = settings.email {
        builder = builder.email(email(settings)?);
    }
    #[cfg(unix)]
    if let Some(settings) = settings.command {
        builder = builder.command(command(settings)?);
    }
    Ok(builder)
}

fn email(settings: EmailSettings) -> std::result::Result<Email, String> {
    let EmailSettings { from, senders, attachments, smtp, resend, graph } = settings;
    let handler = match (smtp, resend, graph) {
        (Some(server), None, None) => Email::smtp(smtp_server(server)?, &from),
        (None, Some(service), None) => {
            let mut resend = Resend::new(secret("[email.resend] key", service.key)?);
            if let Some(url) = service.endpoint {
                resend = resend.endpoint(url);
            }
            Email::resend(resend, &from)
        }
        (None, None, Some(graph)) => {
            let key = secret("[email.graph] secret", graph.secret)?;
            Email::graph(Graph::new(graph.directory, graph.application, key), &from)
        }
        _ => return Err("[email] needs exactly one of `smtp`, `resend` and `graph`".to_owned()),
    };
    let handler =
        senders.iter().try_fold(handler.map_err(|e| format!("[email] {e}"))?, |handler, from| handler.sender(from));
    let handler = handler.map_err(|error| format!("[email] senders: {error}"))?;
    match attachments {
        Some(directory) => handler.attachments_from(directory).map_err(|error| format!("[email] attachments: {error}")),
        None => Ok(handler),
    }
}

fn smtp_server(settings: SmtpSettings) -> std::result::Result<Smtp, String> {
    let mut server = match settings.security {
        Security::Starttls => Smtp::starttls(settings.host),
        Security::Tls => Smtp::tls(settings.host),
        Security::None => Smtp::plain(settings.host),
    };
    if let Some(port) = settings.port {
        server = server.port(port);
    }
    match (settings.user, settings.password) {
        (Some(_), Some(_)) if matches!(settings.security, Security::None) => {
            Err("[email.smtp] logs in on encrypted connections only; set `security` to starttls or tls".to_owned())
        }
        (Some(user), Some(password)) => Ok(server.login(user, secret("[email.smtp] password", password)?)),
        (None, None) => Ok(server),
        _ => Err("[email.smtp] needs `user` and `password`, or neither".to_owned()),
    }
}

#[cfg(unix)]
fn command(settings: CommandSettings) -> std::result::Result<windlass_handlers::command::Command, String> {
    use windlass_handlers::command::Command;
    let relative = settings.programs.values().find(|program| !program.is_absolute());
    if let Some(program) = relative {
        return Err(format!("[command] {} must be an absolute path", program.display()));
    }
    let mut programs = settings.programs.into_iter();
    let (name, program) = programs.next().ok_or("[command] needs `programs`, a name and a path each")?;
    let mut handler =
        programs.fold(Command::allow(name, program), |handler, (name, program)| handler.also(name, program));
    if let Some(directory) = settings.directory {
        handler = handler.directory(directory);
    }
    Ok(settings.env.into_iter().fold(handler, |handler, (name, value)| handler.env(name, value)))
}

fn egress(settings: EgressSettings) -> Egress {
    let mut egress = Egress::default();
    egress.allow_private = settings.allow_private;
    egress.allow_http = settings.allow_http;
    egress.allow_any_port = settings.allow_any_port;
    egress.hosts = settings.hosts;
    egress
}

fn secret(place: &str, settings: SecretSettings) -> std::result::Result<Secret, String> {
    let secret = match (settings.env, settings.file) {
        (Some(name), None) => Secret::env(name),
        (None, Some(path)) => Secret::file(path),
        _ => return Err(format!("{place} needs exactly one of `env` and `file`")),
    };
    let secret = settings.hosts.into_iter().fold(secret, |secret, host| secret.for_host(host));
    settings.tenants.iter().try_fold(secret, |secret, tenant| {
        let tenant = TenantId::parse(tenant).map_err(|error| format!("{place} tenants: {error}"))?;
        Ok(secret.for_tenant(tenant))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass::{JobService, MemoryStore};

    use super::*;

    fn check(text: &str) -> std::result::Result<(), String> {
        let settings: Settings = toml::from_str(text).map_err(|error| error.to_string())?;
        add(JobService::builder(Arc::new(MemoryStore::new())), settings).map(drop)
    }

    /// HND-4: nothing is on that the file does not name.
    #[test]
    fn each_section_turns_a_handler_on() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = place.path().join("files");
        let text = format!("[download]\ndirectory = {:?}\nmax_bytes = 1000\n[http]\n", directory.display().to_string());
        assert_eq!(check(&text), Ok(()));
        assert!(directory.is_dir());
        assert_eq!(check(""), Ok(()));
        let email = "[email]\nfrom = 'ops@example.org'\n[email.smtp]\nhost = 'mail.example.org'\nuser = 'ops'\npassword = { env = 'P' }";
        assert_eq!(check(email), Ok(()));
        assert_eq!(check("[command.programs]\necho = '/bin/echo'"), Ok(()));
    }

    #[test]
    fn bad_settings_are_named() {
        for (text, part) in [
            ("[downlod]", "unknown field"),
            ("[download]", "directory"),
            ("[http.secrets.key]\nenv = 'K'", "needs `hosts`"),
            ("[http.secrets.key]\nhosts = ['a.example']", "exactly one of `env` and `file`"),
            ("[http.secrets.key]\nenv = 'K'\nhosts = ['a.example']\ntenants = ['acme']", "tenants"),
            ("[email]\nfrom = 'ops@example.org'", "exactly one of `smtp`"),
            ("[email]\nfrom = 'ops'\n[email.smtp]\nhost = 'h'", "[email]"),
            ("[email]\nfrom = 'o@e.org'\n[email.smtp]\nhost = 'h'\nuser = 'u'", "or neither"),
            (
                "[email]\nfrom = 'o@e.org'\n[email.smtp]\nhost = 'h'\nuser = 'u'\npassword = { env = 'P' }\nsecurity = 'none'",
                "encrypted connections only",
            ),
            ("[command.programs]\necho = 'echo'", "absolute path"),
            ("[command]\nprograms = {}", "needs `programs`"),
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
