//! Secrets that jobs name and never hold: read at run time from the environment or a file, and only for the hosts and
//! tenants they were registered for. Used by the handlers of HTTP calls and e-mail.

use std::path::PathBuf;

use windlass_core::{JobError, Sensitive, TenantId};

/// The largest secret: keys and tokens have hundreds of bytes.
const SECRET_BYTES: u64 = 16 * 1024;

/// Where a secret comes from and who may use it. Read anew for each attempt, so that a rotated one is used at once.
///
/// ```
/// use windlass_handlers::Secret;
/// let key = Secret::env("PAYMENTS_KEY").for_host("api.payments.example");
/// assert!(!format!("{key:?}").contains("sk_live"), "it knows where the secret is, and not the secret");
/// ```
#[derive(Clone, Debug)]
pub struct Secret {
    source: Source,
    hosts: Vec<String>,
    tenants: Vec<TenantId>,
}

#[derive(Clone, Debug)]
enum Source {
    Env(String),
    File(PathBuf),
}

impl Secret {
    /// A variable of the environment.
    pub fn env(name: impl Into<String>) -> Self {
        Secret::of(Source::Env(name.into()))
    }

    /// A file, without the line break at its end.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Secret::of(Source::File(path.into()))
    }

    fn of(source: Source) -> Self {
        Secret { source, hosts: Vec::new(), tenants: vec![TenantId::ROOT] }
    }

    /// Also sends it to this host. A secret goes to no other: whoever may submit a job could otherwise have it sent to
    /// a server of his own.
    #[must_use]
    pub fn for_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into().to_ascii_lowercase());
        self
    }

    /// Also lets jobs of this tenant use it. Those of the root tenant always may.
    #[must_use]
    pub fn for_tenant(mut self, tenant: TenantId) -> Self {
        self.tenants.push(tenant);
        self
    }

    /// Whether a job of `tenant` may send it to `host`.
    #[cfg(feature = "http")]
    pub(crate) fn allows(&self, tenant: TenantId, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.tenants.contains(&tenant) && self.hosts.contains(&host)
    }

    /// The secret. An error names the source, never what is in it.
    pub(crate) fn read(&self) -> Result<Sensitive<String>, JobError> {
        let missing = |what: String| JobError::new("secret_missing", what);
        let text = match &self.source {
            Source::Env(name) => std::env::var(name).map_err(|_| missing(format!("the variable {name} is not set")))?,
            Source::File(path) => {
                let failed = |_| missing(format!("the file {} cannot be read", path.display()));
                let bytes = std::fs::metadata(path).map_err(failed)?.len();
                if bytes > SECRET_BYTES {
                    return Err(missing(format!("the file {} is too large for a secret", path.display())));
                }
                std::fs::read_to_string(path).map_err(failed)?
            }
        };
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(missing("the secret is empty".to_owned())),
            text => Ok(text.to_owned().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_anew_without_its_line_break() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("key");
        let secret = Secret::file(&path);
        let error = secret.read().expect_err("missing");
        assert_eq!((error.code.as_str(), error.is_retryable()), ("secret_missing", true));
        for value in ["first", "second"] {
            std::fs::write(&path, format!("{value}\n")).expect("writes");
            assert_eq!(secret.read().expect("reads").expose(), value);
        }
        std::fs::write(&path, "\n").expect("writes");
        assert!(secret.read().is_err());
    }

    /// HND-2: a secret goes only where it was registered for.
    #[cfg(feature = "http")]
    #[test]
    fn a_secret_goes_to_its_hosts_for_its_tenants() {
        let acme = TenantId::parse("0199a1a0-0000-7000-8000-000000000001").expect("a UUID");
        let secret = Secret::env("X").for_host("API.example.org");
        assert!(secret.allows(TenantId::ROOT, "api.example.org") && secret.allows(TenantId::ROOT, "API.EXAMPLE.ORG."));
        for host in ["example.org", "api.example.org.evil.org", "xapi.example.org", ""] {
            assert!(!secret.allows(TenantId::ROOT, host), "{host}");
        }
        assert!(!secret.allows(acme, "api.example.org"));
        assert!(secret.for_tenant(acme).allows(acme, "api.example.org"));
    }
}
