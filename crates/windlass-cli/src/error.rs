//! What can go wrong in a command, and the one place where a code becomes an exit code. Made everywhere, read by `main`
//! and `output`. Never prints.

use std::io;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::Deserialize;
use windlass::{Error, InvalidInput, KeyError, store};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum CliError {
    /// What the service or the store answered.
    Service(Error),
    /// Something that was named is not there: a database file, a pause.
    NotFound(String),
    /// The role, account or key that was used may not do this.
    NotAllowed(String),
    /// A server does not answer.
    Unavailable(String),
    /// What a server answered.
    Problem(Box<Problem>),
    /// The command line cannot be understood.
    Usage(String),
    /// The command ran and what it found is bad; it has said so itself.
    Failed(String),
    /// Several things were asked for and some failed; each was reported. Holds the code of the first.
    Some(String, String),
    /// Nobody reads the output any more. Not an error: the reader has seen enough.
    BrokenPipe,
    /// The machine failed us: a file, a terminal, a thread.
    Io(io::Error),
}

/// The result of a command.
pub(crate) type Result<T = ()> = std::result::Result<T, CliError>;

impl CliError {
    /// A field that cannot be accepted.
    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        InvalidInput::new(field, message).into()
    }

    /// From a command line that clap refused.
    pub(crate) fn from_clap(error: &clap::Error) -> Self {
        let argument = match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::ValueValidation | ErrorKind::InvalidValue, Some(ContextValue::String(argument))) => argument,
            _ => return CliError::Usage(first_paragraph(error)),
        };
        // `--created-after <TIME>` is the field `created_after`, `<HANDLER>` is `handler`.
        let name = argument.split_whitespace().next().unwrap_or_default();
        let name = name.trim_start_matches('-').trim_matches(['<', '>', '[', ']', '.']);
        let field = name.replace('-', "_").to_lowercase();
        let message = match std::error::Error::source(error) {
            Some(source) => source.to_string(),
            None => first_paragraph(error),
        };
        CliError::invalid(&field, message)
    }

    /// The stable name of the failure.
    pub(crate) fn code(&self) -> &str {
        match self {
            CliError::Service(error) => error.code(),
            CliError::NotFound(_) => "not_found",
            CliError::NotAllowed(_) => "unauthorized",
            CliError::Unavailable(_) => "unavailable",
            CliError::Problem(problem) => &problem.code,
            CliError::Usage(_) => "usage",
            CliError::Failed(_) => "failed",
            CliError::Some(code, _) => code,
            CliError::BrokenPipe => "broken_pipe",
            CliError::Io(_) => "io",
        }
    }

    /// The field that was wrong, where one was.
    pub(crate) fn field(&self) -> Option<&str> {
        match self {
            CliError::Service(Error::InvalidInput(invalid) | Error::Store(store::Error::InvalidInput(invalid))) => {
                Some(&invalid.field)
            }
            CliError::Problem(problem) => problem.errors.first().map(|bad| bad.field.as_str()),
            _ => None,
        }
    }

    /// What the shell gets.
    pub(crate) fn exit_code(&self) -> Exit {
        exit_code(self.code())
    }
}

/// What a server says went wrong (RFC 9457), as far as the command line looks at it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Problem {
    /// The stable name, the same as on a database.
    pub(crate) code: String,
    /// For people.
    pub(crate) detail: String,
    /// The fields that were wrong.
    #[serde(default)]
    pub(crate) errors: Vec<InvalidInput>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.errors.as_slice() {
            // As it reads where the library answers itself.
            [bad] => write!(f, "{bad}"),
            _ => f.write_str(&self.detail),
        }
    }
}

/// The exit codes, stable for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// It failed.
    Failure = 1,
    /// The command line or an input is wrong.
    Usage = 2,
    /// What was named does not exist.
    NotFound = 3,
    /// It exists, and its state does not allow this.
    Conflict = 4,
    /// The caller may not do this.
    Unauthorised = 5,
    /// The store cannot be reached, or it took too long. Worth trying again.
    Unavailable = 6,
}

/// The exit code for an error's stable name. Names that are not here are failures.
pub(crate) fn exit_code(code: &str) -> Exit {
    match code {
        "broken_pipe" => Exit::Ok,
        "usage" | "invalid_input" | "too_large" => Exit::Usage,
        "not_found" | "job_not_found" | "handler_not_found" | "schedule_not_found" => Exit::NotFound,
        "conflict" | "count_changed" | "already_finished" | "refused" | "lease_lost" | "schedule_changed" => {
            Exit::Conflict
        }
        "unauthorized" | "forbidden" | "sealed" => Exit::Unauthorised,
        "unavailable" | "key_unavailable" | "unknown_outcome" | "storage_full" | "job_timeout" | "timeout"
        | "backpressure" | "rate_limited" | "shut_down" | "quota_exceeded" => Exit::Unavailable,
        _ => Exit::Failure,
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CliError::Service(error @ Error::Keys(KeyError::NotConfigured)) => {
                write!(f, "{error}; name the key file with --key-file")
            }
            CliError::Service(error @ Error::Sealed { source, .. }) => write!(f, "{error}: {source}"),
            CliError::Service(error) => write!(f, "{error}"),
            CliError::Problem(problem) => match problem.code.as_str() {
                "unauthorized" => write!(f, "{problem}; put an API key into WINDLASS_API_KEY or a profile"),
                _ => write!(f, "{problem}"),
            },
            CliError::NotFound(message)
            | CliError::NotAllowed(message)
            | CliError::Unavailable(message)
            | CliError::Usage(message)
            | CliError::Failed(message)
            | CliError::Some(_, message) => f.write_str(message),
            CliError::BrokenPipe => f.write_str("the reader of the output has closed it"),
            CliError::Io(error) => write!(f, "{error}"),
        }
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        CliError::Service(error)
    }
}

impl From<store::Error> for CliError {
    fn from(error: store::Error) -> Self {
        CliError::Service(error.into())
    }
}

impl From<InvalidInput> for CliError {
    fn from(error: InvalidInput) -> Self {
        CliError::Service(error.into())
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::BrokenPipe,
            _ => CliError::Io(error),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        // Writing JSON to a pipe that was closed arrives as an error of the writer below it.
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => CliError::Failed(error.to_string()),
        }
    }
}

/// What clap says before it comes to usage and hints, on one line.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_exit_code_scripts_rely_on() {
        let expected = [
            ("invalid_input", Exit::Usage),
            ("job_not_found", Exit::NotFound),
            ("already_finished", Exit::Conflict),
            ("schedule_not_found", Exit::NotFound),
            ("schedule_changed", Exit::Conflict),
            ("refused", Exit::Conflict),
            ("unauthorized", Exit::Unauthorised),
            ("forbidden", Exit::Unauthorised),
            ("rate_limited", Exit::Unavailable),
            ("count_changed", Exit::Conflict),
            ("unavailable", Exit::Unavailable),
            ("job_timeout", Exit::Unavailable),
            ("quota_exceeded", Exit::Unavailable),
            ("handler_error", Exit::Failure),
            ("internal_error", Exit::Failure),
            ("broken_pipe", Exit::Ok),
        ];
        for (code, exit) in expected {
            assert_eq!(exit_code(code), exit, "{code}");
        }
    }

    #[test]
    fn a_problem_reads_as_the_same_error_of_the_library() {
        let answered = r#"{"type":"urn:windlass:problem:invalid_input","title":"t","status":422,"detail":"d","code":
            "invalid_input","errors":[{"field":"delay","message":"is negative"}]}"#;
        let error = CliError::Problem(Box::new(serde_json::from_str(answered).expect("a problem")));
        let own = CliError::invalid("delay", "is negative");
        assert_eq!((error.code(), error.field()), (own.code(), own.field()));
        assert_eq!(error.to_string(), own.to_string());
        assert_eq!(error.exit_code(), Exit::Usage);
    }

    #[test]
    fn a_closed_pipe_is_not_a_failure() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(error.exit_code(), Exit::Ok);
    }
}
