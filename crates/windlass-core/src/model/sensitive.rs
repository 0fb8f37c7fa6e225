//! A wrapper for the parts of a payload that must not be seen in logs. For users' types; nothing here looks inside.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A value that `Debug` and `Display` do not show. It is stored and passed to the handler unchanged.
/// The feature `encryption` keeps it from the database as well.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use windlass_core::Sensitive;
///
/// #[derive(Debug, Serialize, Deserialize)]
/// struct Login { user: String, password: Sensitive<String> }
///
/// let login = Login { user: "ada".into(), password: "hunter2".to_owned().into() };
/// assert_eq!(format!("{login:?}"), r#"Login { user: "ada", password: [redacted] }"#);
/// assert_eq!(serde_json::to_string(&login).unwrap(), r#"{"user":"ada","password":"hunter2"}"#);
/// assert_eq!(login.password.expose(), "hunter2");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sensitive<T>(T);

impl<T> Sensitive<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Sensitive(value)
    }

    /// The value. The caller must not log it.
    pub fn expose(&self) -> &T {
        &self.0
    }

    /// The value itself.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> From<T> for Sensitive<T> {
    fn from(value: T) -> Self {
        Sensitive(value)
    }
}

impl<T> fmt::Debug for Sensitive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T> fmt::Display for Sensitive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
