//! The URL of a store. Read by [`open`](crate::open) and by the command line. Opens nothing.

use std::fmt;
use std::path::PathBuf;

use windlass_core::InvalidInput;

/// The store that a URL names: `memory:`, `sqlite:PATH` or `postgres://…`. Displayed without its password.
///
/// ```
/// use windlass::Address;
/// let address = Address::parse("postgres://ann:hunter2@db.example/app?password=hunter2").unwrap();
/// assert_eq!(address.to_string(), "postgres://ann@db.example/app");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// In memory: lost when the process ends.
    Memory,
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A PostgreSQL server, with its URL.
    Postgres(String),
}

impl Address {
    /// Parses a URL. The error does not repeat the URL, because it may contain a password.
    pub fn parse(url: &str) -> Result<Address, InvalidInput> {
        let known = "write sqlite:PATH or postgres://USER@HOST/DATABASE";
        match url.split_once(':') {
            Some(("memory", _)) => Ok(Address::Memory),
            Some(("sqlite", path)) => match path.trim_start_matches("//") {
                "" => Err(InvalidInput::new("url", "the path is empty; write sqlite:PATH")),
                path => Ok(Address::Sqlite(path.into())),
            },
            Some(("postgres" | "postgresql", _)) => Ok(Address::Postgres(url.to_owned())),
            // Only what can be a scheme is one; anything else before a colon may be a user, or a password.
            Some((scheme, rest)) if rest.starts_with("//") && is_scheme(scheme) => {
                Err(InvalidInput::new("url", format!("unknown scheme `{scheme}`; {known}")))
            }
            _ => Err(InvalidInput::new("url", format!("not a URL; {known}"))),
        }
    }
}

fn is_scheme(text: &str) -> bool {
    text.len() <= 20
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Memory => f.write_str("memory:"),
            Address::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Address::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", ""));
    // Options may hold a password too.
    let rest = rest.split('?').next().unwrap_or_default();
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (user.split(':').next().unwrap_or_default(), place),
        None => ("", rest),
    };
    if user.is_empty() { format!("{scheme}://{place}") } else { format!("{scheme}://{user}@{place}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_place() {
        let sqlite = |path: &str| Address::Sqlite(path.into());
        assert_eq!(Address::parse("sqlite:jobs.db"), Ok(sqlite("jobs.db")));
        assert_eq!(Address::parse("sqlite:///tmp/jobs.db"), Ok(sqlite("/tmp/jobs.db")));
        assert!(matches!(Address::parse("postgres://localhost/app"), Ok(Address::Postgres(_))));
        for bad in ["jobs.db", "sqlite:", "mysql://localhost", ""] {
            assert_eq!(Address::parse(bad).expect_err(bad).field, "url");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = |url: &str| Address::parse(url).expect("a URL").to_string();
        assert_eq!(shown("postgres://ann:s3cret@db.example:5432/app"), "postgres://ann@db.example:5432/app");
        assert_eq!(shown("postgres://ann:p@ss@db/app?password=x"), "postgres://ann@db/app");
        assert_eq!(shown("postgres://db/app"), "postgres://db/app");
        for url in ["pg://u:hunter2@h/d", "hunter2:x@host", "hunter2://", "ann:hunter2@db/app"] {
            let error = Address::parse(url).expect_err("unknown").to_string();
            assert!(!error.contains("hunter2") || url == "hunter2://", "{error}");
        }
    }
}
