//! What an action did, said on the page after it. Travels in the address as a word of this list and a number, so that no
//! link can make a page say anything else.

use super::format;
use super::request::Fields;

macro_rules! dids {
    ($($name:ident $code:literal $sentence:literal),* $(,)?) => {
        /// What an action did.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Notice { $($name),* }

        impl Notice {
            const ALL: &[Notice] = &[$(Notice::$name),*];

            /// Its word in the address.
            pub(crate) fn code(self) -> &'static str {
                match self { $(Notice::$name => $code),* }
            }

            fn words(self) -> &'static str {
                match self { $(Notice::$name => $sentence),* }
            }
        }
    };
}

dids! {
    Canceled "canceled" "Canceled. A running job stops within its grace period.",
    Replayed "replayed" "The job runs again, with its attempts reset.",
    Started "started" "It starts as soon as a worker is free.",
    Rescheduled "rescheduled" "Its start was changed.",
    Reprioritised "reprioritised" "Its priority was changed.",
    Edited "edited" "Saved.",
    Cloned "cloned" "This is the clone; it refers to the original job.",
    Purged "purged" "Removed permanently.",
    Submitted "submitted" "Submitted.",
    Duplicate "duplicate" "A job with this idempotency key already existed; this is it.",
    Paused "paused" "Paused. Running jobs continue.",
    Resumed "resumed" "Resumed.",
    QuotaSet "quota_set" "The quota was set.",
    QuotaCleared "quota_cleared" "The quota was cleared.",
    KeyRevoked "key_revoked" "The key was revoked.",
    HookRemoved "hook_removed" "The webhook was removed.",
    HookPaused "hook_paused" "The webhook receives nothing until it is resumed.",
    HookResumed "hook_resumed" "The webhook receives events from now on.",
    ScheduleAdded "schedule_added" "The schedule was added.",
    SchedulePaused "schedule_paused" "Paused. Nothing fires until it is resumed.",
    ScheduleResumed "schedule_resumed" "Resumed. It fires again from its next time on.",
    ScheduleSkipped "schedule_skipped" "An earlier job of this schedule has not ended; this is it.",
    ScheduleRemoved "schedule_removed" "The schedule was removed. Jobs that it has started stay.",
    Stopped "stopped" "It stops after the current job.",
    Acted "acted" "Done.",
}

impl Notice {
    /// From the address.
    pub(crate) fn read(query: &Fields) -> Option<Notice> {
        Notice::ALL.iter().copied().find(|notice| notice.code() == query.get("did"))
    }

    /// What the page says.
    pub(crate) fn sentence(self, n: Option<u64>) -> String {
        match n {
            Some(n) => format!("{} {}", self.words(), format::counted(n, "job.", "jobs.")),
            None => self.words().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_the_list_are_said() {
        let said = |notice: &str| Notice::read(&Fields(vec![("did".into(), notice.into())]));
        assert_eq!(said("canceled"), Some(Notice::Canceled));
        assert_eq!(said("Your session has expired, log in at evil.example"), None);
        assert!(Notice::ALL.iter().all(|notice| said(notice.code()) == Some(*notice)), "each has a word of its own");
        assert_eq!(Notice::Acted.sentence(Some(1)), "Done. 1 job.");
    }
}
