//! What an action did, said on the page after it. Travels in the address as a word of this list and a number, so that no
//! link can make a page say anything else.

use super::ask::Fields;
use super::words;

macro_rules! dids {
    ($($name:ident $code:literal $sentence:literal),* $(,)?) => {
        /// What an action did.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Did { $($name),* }

        impl Did {
            const ALL: &[Did] = &[$(Did::$name),*];

            /// Its word in the address.
            pub(crate) fn code(self) -> &'static str {
                match self { $(Did::$name => $code),* }
            }

            fn words(self) -> &'static str {
                match self { $(Did::$name => $sentence),* }
            }
        }
    };
}

dids! {
    Canceled "canceled" "Canceled. A running job stops within its grace.",
    Replayed "replayed" "Back to work, with a clean count of attempts.",
    Started "started" "It starts as soon as a worker is free.",
    Rescheduled "rescheduled" "Its start has been moved.",
    Reprioritised "reprioritised" "Its priority has been changed.",
    Edited "edited" "Saved.",
    Cloned "cloned" "This is the clone; it is linked to the job it was made of.",
    Purged "purged" "Removed for good.",
    Submitted "submitted" "Submitted.",
    Duplicate "duplicate" "A job with this idempotency key was there before; this is it.",
    Paused "paused" "Paused. Running jobs go on.",
    Resumed "resumed" "Resumed.",
    QuotaSet "quota_set" "The quota is set.",
    QuotaCleared "quota_cleared" "The quota is cleared.",
    KeyRevoked "key_revoked" "The key is revoked.",
    HookRemoved "hook_removed" "The webhook is removed.",
    Stopped "stopped" "It stops after the job it is at.",
    Acted "acted" "Done.",
}

impl Did {
    /// From the address.
    pub(crate) fn read(query: &Fields) -> Option<Did> {
        Did::ALL.iter().copied().find(|did| did.code() == query.get("did"))
    }

    /// What the page says.
    pub(crate) fn sentence(self, n: Option<u64>) -> String {
        match n {
            Some(n) => format!("{} {}", self.words(), words::counted(n, "job.", "jobs.")),
            None => self.words().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_the_list_are_said() {
        let said = |did: &str| Did::read(&Fields(vec![("did".into(), did.into())]));
        assert_eq!(said("canceled"), Some(Did::Canceled));
        assert_eq!(said("Your session has expired, log in at evil.example"), None);
        assert!(Did::ALL.iter().all(|did| said(did.code()) == Some(*did)), "each has a word of its own");
        assert_eq!(Did::Acted.sentence(Some(1)), "Done. 1 job.");
    }
}
