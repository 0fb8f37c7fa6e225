//! The way to a database: its URL, and how what is said on the way is kept from others. Modes and names are those of
//! PostgreSQL's own clients. Called by `connect` and `wake` for every connection; never retries, and never falls back to plain
//! text where the URL asks for more.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config, Connection, Error as PgError, Socket};
use windlass_core::InvalidInput;

/// What makes a connection secure.
#[cfg(feature = "tls")]
type Connector = tokio_postgres_rustls::MakeRustlsConnect;
#[cfg(not(feature = "tls"))]
type Connector = tokio_postgres::NoTls;

type Stream = <Connector as MakeTlsConnect<Socket>>::Stream;

/// Where a database is and how to get there.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) config: Config,
    connector: Connector,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration hides its password by itself.
        f.debug_struct("Route").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Route {
    /// Reads a URL or a `key=value` string, and the files that it names.
    pub(crate) fn parse(url: &str) -> Result<Route, InvalidInput> {
        let (rest, wishes) = Wishes::split(url)?;
        let mut config: Config =
            rest.parse().map_err(|error| InvalidInput::new("url", format!("cannot be read: {error}")))?;
        let mode = match (wishes.mode, config.get_ssl_mode()) {
            // A socket does not leave the machine, and servers do not encrypt what goes through one.
            _ if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) => Mode::Disable,
            (Some(mode), _) => mode,
            (None, SslMode::Disable) => Mode::Disable,
            (None, SslMode::Require) => Mode::Require,
            (None, _) => Mode::Prefer,
        };
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        Ok(Route { config, connector: connector(mode, &wishes)? })
    }

    pub(crate) async fn connect(&self) -> Result<(Client, Connection<Socket, Stream>), PgError> {
        self.config.connect(self.connector.clone()).await
    }

    /// Asks the server to stop what another connection does.
    pub(crate) async fn cancel(&self, token: CancelToken) -> Result<(), PgError> {
        token.cancel_query(self.connector.clone()).await
    }
}

/// How far the server must show who it is: `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Plain text.
    Disable,
    /// Encrypted if the server offers it.
    Prefer,
    /// Encrypted, whoever the server is; with `sslrootcert` as `VerifyCa`.
    Require,
    /// Encrypted, with a certificate from a known authority.
    VerifyCa,
    /// The same, and the certificate names the host.
    VerifyFull,
}

/// What a URL says about encryption that the driver does not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wishes {
    mode: Option<Mode>,
    /// Whose certificates are believed; `None` means the system's authorities.
    authorities: Option<PathBuf>,
    /// With what this side shows who it is: certificate and key.
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Wishes {
    /// Takes them out of a URL. Answers with the rest of it.
    fn split(url: &str) -> Result<(String, Wishes), InvalidInput> {
        let mut wishes = Wishes::default();
        let Some((place, query)) = url.split_once('?') else { return Ok((url.to_owned(), wishes)) };
        let mut rest = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => wishes.mode = Some(mode(&text())?),
                "sslrootcert" => wishes.authorities = Some(text()).filter(|from| from != "system").map(PathBuf::from),
                "sslcert" => wishes.certificate = Some(text().into()),
                "sslkey" => wishes.key = Some(text().into()),
                _ => rest.push(pair),
            }
        }
        if wishes.mode == Some(Mode::Require) && wishes.authorities.is_some() {
            wishes.mode = Some(Mode::VerifyCa);
        }
        if wishes.certificate.is_some() != wishes.key.is_some() {
            return Err(InvalidInput::new("url", "has one of `sslcert` and `sslkey` without the other"));
        }
        let rest = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
        Ok((rest, wishes))
    }
}

fn mode(name: &str) -> Result<Mode, InvalidInput> {
    match name {
        "disable" => Ok(Mode::Disable),
        // What others call `allow` begins in plain text; we never prefer that.
        "allow" | "prefer" => Ok(Mode::Prefer),
        "require" => Ok(Mode::Require),
        "verify-ca" => Ok(Mode::VerifyCa),
        "verify-full" => Ok(Mode::VerifyFull),
        _ => {
            let known = "disable, allow, prefer, require, verify-ca or verify-full";
            Err(InvalidInput::new("url", format!("has the unknown sslmode `{name}`; use {known}")))
        }
    }
}

#[cfg(not(feature = "tls"))]
fn connector(mode: Mode, _: &Wishes) -> Result<Connector, InvalidInput> {
    match mode {
        Mode::Disable | Mode::Prefer => Ok(tokio_postgres::NoTls),
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => {
            let message = "requires an encrypted connection, which needs the feature `tls` of windlass-postgres";
            Err(InvalidInput::new("url", message))
        }
    }
}

#[cfg(feature = "tls")]
use secure::connector;

/// Whether a connection failed because of a certificate, or because the server does not encrypt: trying again does not help.
pub(crate) fn is_refused(error: &PgError) -> bool {
    #[cfg(feature = "tls")]
    let bad_certificate = secure::is_bad_certificate(error);
    #[cfg(not(feature = "tls"))]
    let bad_certificate = false;
    bad_certificate
        || std::error::Error::source(error).is_some_and(|cause| cause.to_string() == "server does not support TLS")
}

#[cfg(feature = "tls")]
mod secure {
    use std::path::Path;
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
    use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
    use tokio_postgres::Error as PgError;
    use tokio_postgres_rustls::MakeRustlsConnect;
    use windlass_core::InvalidInput;

    use super::{Mode, Wishes};

    /// What makes connections in a mode.
    pub(super) fn connector(mode: Mode, wishes: &Wishes) -> Result<MakeRustlsConnect, InvalidInput> {
        // Named, because a process may have none of its own, or two to choose from.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = Verifier::of(mode, wishes, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| InvalidInput::new("url", format!("requires TLS options that are not supported: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&wishes.certificate, &wishes.key) {
            (Some(certificate), Some(key)) => {
                let (chain, secret) = (certificates("sslcert", certificate)?, private_key(key)?);
                config.with_client_auth_cert(chain, secret).map_err(|error| file("sslcert", certificate, &error))?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(MakeRustlsConnect::new(config))
    }

    /// How a server's certificate is looked at. Signatures of the handshake are checked in every mode.
    #[derive(Debug)]
    enum Verifier {
        /// Not at all: who listens only is kept out, who stands in between is not.
        Anybody(Arc<CryptoProvider>),
        /// It comes from an authority that is believed, whatever its name.
        Authority(Arc<WebPkiServerVerifier>),
        /// And it names the host.
        Host(Arc<WebPkiServerVerifier>),
    }

    impl Verifier {
        fn of(mode: Mode, wishes: &Wishes, provider: &Arc<CryptoProvider>) -> Result<Verifier, InvalidInput> {
            let believed = || {
                let builder = WebPkiServerVerifier::builder_with_provider(authorities(wishes)?, provider.clone());
                builder.build().map_err(|error| InvalidInput::new("sslrootcert", format!("cannot be used: {error}")))
            };
            Ok(match mode {
                Mode::Disable | Mode::Prefer | Mode::Require => Verifier::Anybody(provider.clone()),
                Mode::VerifyCa => Verifier::Authority(believed()?),
                Mode::VerifyFull => Verifier::Host(believed()?),
            })
        }
    }

    impl ServerCertVerifier for Verifier {
        fn verify_server_cert(
            &self,
            end_entity: &CertificateDer<'_>,
            intermediates: &[CertificateDer<'_>],
            server_name: &ServerName<'_>,
            ocsp_response: &[u8],
            now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            let looked_at = |verifier: &WebPkiServerVerifier| {
                verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            };
            match self {
                Verifier::Anybody(_) => Ok(ServerCertVerified::assertion()),
                Verifier::Host(verifier) => looked_at(verifier),
                // The name is looked at last, when everything else is as it should be.
                Verifier::Authority(verifier) => match looked_at(verifier) {
                    Err(Error::InvalidCertificate(
                        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                    )) => Ok(ServerCertVerified::assertion()),
                    other => other,
                },
            }
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            match self {
                Verifier::Anybody(provider) => rustls::crypto::verify_tls12_signature(
                    message,
                    cert,
                    dss,
                    &provider.signature_verification_algorithms,
                ),
                Verifier::Authority(verifier) | Verifier::Host(verifier) => {
                    verifier.verify_tls12_signature(message, cert, dss)
                }
            }
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            match self {
                Verifier::Anybody(provider) => rustls::crypto::verify_tls13_signature(
                    message,
                    cert,
                    dss,
                    &provider.signature_verification_algorithms,
                ),
                Verifier::Authority(verifier) | Verifier::Host(verifier) => {
                    verifier.verify_tls13_signature(message, cert, dss)
                }
            }
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            match self {
                Verifier::Anybody(provider) => provider.signature_verification_algorithms.supported_schemes(),
                Verifier::Authority(verifier) | Verifier::Host(verifier) => verifier.supported_verify_schemes(),
            }
        }
    }

    /// The authorities of the file that the URL names, or of the system.
    fn authorities(wishes: &Wishes) -> Result<Arc<RootCertStore>, InvalidInput> {
        let mut roots = RootCertStore::empty();
        match &wishes.authorities {
            Some(path) => {
                for certificate in certificates("sslrootcert", path)? {
                    roots.add(certificate).map_err(|error| file("sslrootcert", path, &error))?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        Ok(Arc::new(roots))
    }

    fn certificates(field: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidInput> {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = found.map_err(|error| file(field, path, &error))?;
        match found.is_empty() {
            true => Err(file(field, path, &"it contains no certificate")),
            false => Ok(found),
        }
    }

    fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, InvalidInput> {
        PrivateKeyDer::from_pem_file(path).map_err(|error| file("sslkey", path, &error))
    }

    fn file(field: &str, path: &Path, error: &dyn std::fmt::Display) -> InvalidInput {
        InvalidInput::new(field, format!("{} cannot be used: {error}", path.display()))
    }

    pub(super) fn is_bad_certificate(error: &PgError) -> bool {
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let inner = inner.and_then(|inner| inner.downcast_ref::<Error>()).or_else(|| error.downcast_ref());
            if let Some(error) = inner {
                return matches!(error, Error::InvalidCertificate(_));
            }
            cause = error.source();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(url: &str) -> (SslMode, Option<Mode>) {
        let wishes = Wishes::split(url).expect("a URL").1;
        (Route::parse(url).expect("a URL").config.get_ssl_mode(), wishes.mode)
    }

    #[test]
    fn a_url_says_how_far_the_server_must_show_who_it_is() {
        let check = |query: &str, expected| assert_eq!(mode_of(&format!("postgres://u@h/db{query}")).0, expected);
        check("", SslMode::Prefer);
        check("?sslmode=prefer", SslMode::Prefer);
        check("?application_name=x&sslmode=disable", SslMode::Disable);
        assert_eq!(
            mode_of("postgres://u@%2Ftmp/db?sslmode=prefer").0,
            SslMode::Disable,
            "a socket stays on the machine"
        );
        assert_eq!(mode_of("host=/tmp user=u").0, SslMode::Disable);
        assert_eq!(mode_of("host=h user=u sslmode=disable").0, SslMode::Disable);
    }

    #[test]
    fn the_rest_of_a_url_is_left_as_it_is() {
        let (rest, wishes) =
            Wishes::split("postgres://u@h/db?application_name=a%20b&sslmode=require&sslrootcert=%2Fetc%2Fca.pem")
                .expect("a URL");
        assert_eq!(rest, "postgres://u@h/db?application_name=a%20b");
        assert_eq!(wishes.authorities, Some("/etc/ca.pem".into()));
        assert_eq!(wishes.mode, Some(Mode::VerifyCa), "who names authorities wants them to be asked");
        let (_, system) = Wishes::split("postgres://h/?sslmode=verify-full&sslrootcert=system").expect("a URL");
        assert_eq!((system.mode, system.authorities), (Some(Mode::VerifyFull), None));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, says) in [
            ("postgres://h/?sslmode=verify", "unknown sslmode `verify`; use disable"),
            ("postgres://h/?sslmode=require&sslcert=a.pem", "without the other"),
        ] {
            let error = Route::parse(url).expect_err(url);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Route::parse("postgres://h/?sslmode=verify-full&sslrootcert=/no/such.pem").expect_err("no file");
        assert!(error.to_string().contains("/no/such.pem"), "{error}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_says_so() {
        let error = Route::parse("postgres://h/?sslmode=require").expect_err("no TLS");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }
}
