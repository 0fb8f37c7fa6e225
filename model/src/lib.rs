//! The protocols of Windlass as models: small copies of what the code does, which a checker takes through every order of
//! events within bounds. Called by its own tests only; nothing that users get depends on it. `docs/model.md` says what is
//! modelled and what is not.

mod check;
pub mod cron;
pub mod lease;
pub mod pause;
mod store;

pub use check::{Explored, check, find, stuck};
pub use store::{Counts, End, Finish, LeaseRow, Store, Transition};

/// A step of a protocol that is left out or done wrong, to show that the properties notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// A finish is carried out wherever the job is, lease or not.
    FencingOff,
    /// A finish looks for the job in any lease, not in the one it names.
    FinishByJobAlone,
    /// A job comes back from a lost node without one more recovery.
    RecoveryNotCounted,
    /// Silence is measured with a time that the node wrote, so a node whose clock is behind looks lost at once.
    ReaperTrustsTheNodesClock,
    /// A finish of some jobs of a lease removes the whole lease.
    PartialFinishDropsTheRest,
    /// A release counts as a failed attempt.
    ReleaseCountsAnAttempt,
    /// A requested cancel is told to the node, but is not in the lease where the finish would meet it.
    CancelNotOnTheLease,
    /// A node looks at its own clock only after a heartbeat has failed, which may take longer than the lease.
    StopsOnlyAfterAFailedBeat,
    /// A node measures its lease from the answer to a heartbeat, not from the question.
    RenewedWhenAnswered,
    /// A claim or leased submit whose outcome is unknown is forgotten, although the store may hold its lease.
    ForgetsUnknownWrites,
    /// A node starts what it has claimed however late the answer comes, even if it has become another node meanwhile.
    StartsWhateverItClaimed,
    /// A node leaves while a claim or leased submit of its own is under way.
    LeavesDuringAClaim,
    /// Recovery looks only at leases of nodes that it has just removed, not at orphans.
    OrphansNotLookedFor,
    /// A job that was claimed before its node learned of the pause starts all the same.
    PauseIgnoredByClaimsInFlight,
    /// A job parked by a pause that is over stays parked.
    GatesNotOpenedAgain,
    /// The leader writes without naming its term.
    LeaderWritesWithoutItsTerm,
    /// A scheduled run is stored without its unique key.
    CronWithoutUniqueKey,
    /// A pause is seen by those who read a schedule, but not by a fire that is under way.
    PauseOnlyWhenRead,
    /// A fire does not compare the version that it has read.
    FireWithoutVersion,
    /// An edit does not compare the version that it has read.
    EditsOverwrite,
}
