//! A text that must not be printed by accident: an API key. Made by `settings` and `profile`, read by `backend::http`.

use serde::{Deserialize, Serialize};

/// A secret. Shown as dots wherever it is printed; only [`Secret::reveal`] has the text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}
