//! Everything a [`Store`] promises, tested once for all stores. A store's crate calls [`conformance_tests!`] and
//! [`model::run_model`](crate::conformance::model::run_model) with a function that opens a fresh, empty store; the cases
//! never name a store and never sleep: time moves by [`TestStore::advance`].
//!
//! [`conformance_tests!`]: crate::conformance_tests

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::Store;

mod access;
mod costing;
mod editing;
mod failing;
mod feed;
mod filtering;
mod keys;
mod leases;
mod schedules;
mod groups;
mod logging;
pub mod looks;
pub mod model;
mod ordering;
mod past;
mod quotas;
mod rig;
mod running;
mod submitting;
mod time;
mod watching;

pub use rig::{Job, Rig};

/// A future that can be kept and sent.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Moves a store's time.
pub type Advance = dyn Fn(Duration) -> BoxFuture<()> + Send + Sync;

/// Opens a store's data again.
pub type Reopen = dyn Fn() -> BoxFuture<Arc<dyn Store>> + Send + Sync;

/// A fresh, empty store under test, with a hold on its time.
pub struct TestStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Moves the store's clock by at least so much: a manual clock jumps, a database's own clock is waited for.
    pub advance: Box<Advance>,
    /// Opens the same data again after `store` was dropped; absent where nothing outlives the store.
    pub reopen: Option<Box<Reopen>>,
    /// What must live as long as the store: a directory, a database to be dropped.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl TestStore {
    /// A store whose time moves by `advance`.
    pub fn new<A, F>(store: Arc<dyn Store>, advance: A) -> Self
    where
        A: Fn(Duration) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let advance = Box::new(move |by| Box::pin(advance(by)) as BoxFuture<()>);
        TestStore { store, advance, reopen: None, keep: Box::new(()) }
    }

    /// Drops `guard` after the store.
    #[must_use]
    pub fn keeping(mut self, guard: impl Any + Send + Sync) -> Self {
        self.keep = Box::new(guard);
        self
    }

    /// Says how the same data is opened again, so that the cases about restarts have something to restart.
    #[must_use]
    pub fn reopened_by<O, F>(mut self, open: O) -> Self
    where
        O: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Arc<dyn Store>> + Send + 'static,
    {
        self.reopen = Some(Box::new(move || Box::pin(open())));
        self
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestStore").field("store", &self.store.name()).finish_non_exhaustive()
    }
}

/// One claim about every store.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The claim.
    pub name: &'static str,
    /// The requirements it proves, or lays the ground for.
    pub requirements: &'static [&'static str],
    /// Checks it on a fresh store; panics where it does not hold.
    pub run: fn(TestStore) -> BoxFuture<()>,
}

/// A case that takes longer hangs. Long enough for a database on a busy machine.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// Runs the case called `name` on a store that `make_store` opens. Panics where the claim does not hold.
pub fn run_case<M, F>(name: &str, make_store: M)
where
    M: FnOnce() -> F,
    F: Future<Output = TestStore>,
{
    let case = cases().into_iter().find(|case| case.name == name).expect("the macro names only registered cases");
    runtime().block_on(async {
        let store = make_store().await;
        if tokio::time::timeout(CASE_LIMIT, (case.run)(store)).await.is_err() {
            panic!("{name} did not end within {CASE_LIMIT:?}");
        }
    });
}

/// Several threads, because half of what a store promises is about callers that come at once.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a test can start a runtime")
}

/// Lists every case once: for [`cases`] and for the macro that makes a test of each.
/// The first argument is a dollar sign, which a macro cannot write into another one by itself.
macro_rules! suite {
    ($d:tt $( $module:ident: $( $name:ident [$($requirement:literal)*] )* ; )*) => {
        /// Every case, in the order of a job's life.
        pub fn cases() -> Vec<Case> {
            vec![$($(Case {
                name: stringify!($name),
                requirements: &[$($requirement),*],
                run: |store| Box::pin(async move { $module::$name(Rig::new(store).await).await }),
            }),*),*]
        }

        /// Makes a test of every case. Takes the path of an `async fn() -> TestStore` that opens a fresh, empty store.
        ///
        /// ```text
        /// windlass_testkit::conformance_tests!(fresh_store);
        /// ```
        #[macro_export]
        macro_rules! conformance_tests {
            ($d make_store:path) => {
                $($(
                    #[test]
                    fn $name() {
                        $d crate::conformance::run_case(stringify!($name), $d make_store);
                    }
                )*)*
            };
        }
    };
}

suite! { $
    submitting:
        submitted_ids_keep_their_order_and_read_back ["SUB-1"]
        every_option_of_a_submit_reads_back ["SUB-2"]
        a_plain_job_reads_back_with_nothing_set ["SUB-2"]
        many_jobs_are_stored_by_one_call_in_input_order ["SUB-4"]
        an_empty_submit_or_read_answers_with_nothing ["SUB-4" "OPS-1"]
        input_and_output_come_back_byte_for_byte ["SUB-2" "SUB-12"]
        awkward_texts_are_data ["SUB-2"]
        a_duplicate_key_answers_with_the_existing_job_and_stores_nothing ["SUB-6"]
        a_key_stays_taken_when_its_job_has_ended ["SUB-6"]
        the_same_key_of_another_tenant_or_handler_is_another_key ["SUB-6" "SEC-1"]
        a_repeated_submit_of_the_same_id_is_a_duplicate ["SUB-1" "SUB-6"]
        a_key_twice_in_one_submit_is_one_job ["SUB-6" "SUB-4"]
        a_purged_job_frees_its_key ["SUB-6"]
        a_job_past_its_retention_frees_its_key ["SUB-6" "OPS-7"]
        of_many_submits_at_once_with_one_key_one_is_stored ["SUB-6"]
        a_key_never_has_two_jobs_while_its_jobs_end_and_are_purged ["SUB-6"]
        a_unique_job_blocks_its_like_until_it_has_ended ["SUB-7"]
        a_unique_window_ends_by_time_whatever_becomes_of_the_job ["SUB-7"]
        a_unique_key_belongs_to_one_tenant ["SUB-7" "SEC-1"]
        another_tenants_scope_sees_and_steers_nothing ["SUB-8" "SEC-1"]
        a_job_born_leased_runs_at_once_and_is_fenced_like_any_other ["SUB-4" "RUN-3" "RUN-4"]
        only_plain_jobs_that_are_due_are_born_leased ["SUB-4" "SUB-6" "ORD-4"]
        a_job_born_to_a_dead_node_is_not_lost ["RUN-5"]
        the_outcome_of_a_job_can_be_read ["SUB-12"]
    ;
    running:
        a_node_can_ask_what_it_holds ["RUN-5"]
        a_submitted_job_can_be_claimed_at_once ["RUN-3"]
        a_claim_takes_no_more_than_asked_for_in_all_or_per_queue ["RUN-3" "RUN-11"]
        limits_without_end_take_all_there_is ["RUN-3"]
        a_claim_leaves_other_queues_alone ["RUN-3"]
        jobs_of_one_lease_end_in_any_order_each_once ["RUN-4"]
        a_claim_of_part_of_a_chunk_leaves_the_rest_in_order ["RUN-3" "SUB-4"]
        claimers_at_once_take_every_job_exactly_once ["RUN-4"]
        a_write_under_a_lost_lease_is_refused ["RUN-4"]
        a_job_ends_only_once ["RUN-4"]
        only_the_node_and_lease_that_hold_a_job_can_end_it ["RUN-4"]
        answers_to_finishes_come_in_their_order ["RUN-4"]
        many_finishes_fit_in_one_call ["RUN-4"]
        of_two_finishes_at_once_one_is_accepted ["RUN-4"]
        a_lost_nodes_job_is_the_next_attempt_in_the_suspect_queue ["RUN-5"]
        recoveries_are_counted_and_a_suspect_stays_suspect ["RUN-5"]
        a_loss_tells_who_may_have_been_the_cause ["RUN-5" "ERR-4"]
        a_dead_node_is_fenced_everywhere ["RUN-5" "RUN-4"]
        recovery_happens_once_however_many_nodes_ask ["RUN-5"]
        only_a_node_that_was_seen_silent_is_declared_dead ["RUN-5"]
        a_finish_and_a_recovery_at_once_have_one_winner ["RUN-4" "RUN-5"]
        a_busy_store_loses_and_doubles_nothing ["RUN-4" "RUN-5" "ORD-4"]
        heartbeats_keep_a_long_job_where_it_is ["RUN-13"]
        a_checkpoint_comes_back_with_the_next_attempt ["RUN-8"]
        a_released_job_costs_nothing_and_comes_first ["RUN-10"]
        released_jobs_keep_their_order ["RUN-10"]
        a_node_that_leaves_releases_what_it_holds ["RUN-10"]
        a_routed_job_waits_in_the_other_queue ["RUN-12"]
        a_handler_is_served_until_its_last_node_is_gone ["ERR-10"]
        a_worker_outside_can_claim_and_report_by_hand ["OPS-10"]
        nodes_that_register_at_once_get_slots_of_their_own ["SUB-1" "CLU-10"]
        the_slot_of_a_gone_node_is_not_given_out_again_soon ["SUB-1" "CLU-10"]
        nodes_read_back_newest_first ["CLU-10" "API-8"]
    ;
    ordering:
        higher_priority_goes_first_and_equals_keep_their_order ["ORD-1" "ORD-2"]
        each_band_gets_its_quota ["ORD-2"]
        what_one_band_leaves_goes_to_the_most_urgent_waiting ["ORD-2"]
        without_quotas_the_most_urgent_band_takes_all ["ORD-2"]
        a_claim_tells_which_bands_have_more ["ORD-2"]
        one_job_does_not_wait_for_another_tenants_bulk ["ORD-3"]
        one_job_does_not_wait_for_another_tenants_many_submits ["ORD-3"]
        a_tenant_that_comes_late_starts_where_service_is ["ORD-3"]
        a_claim_for_one_tenant_leaves_the_others_their_turn ["OPS-10" "ORD-3"]
        an_ordering_key_runs_its_jobs_one_by_one_in_order ["ORD-4"]
        an_ordering_key_of_one_submit_keeps_its_order ["ORD-4" "SUB-4"]
        a_holder_keeps_its_key_through_retry_snooze_and_release ["ORD-4"]
        a_holder_keeps_its_key_when_its_node_is_lost ["ORD-4" "RUN-5"]
        a_canceled_holder_hands_its_key_on ["ORD-4" "OPS-3"]
        a_canceled_waiter_leaves_the_line ["ORD-4" "OPS-3"]
        a_dead_holder_hands_its_key_on_and_queues_again_when_replayed ["ORD-4" "ERR-4"]
        a_scheduled_holder_keeps_later_jobs_waiting ["ORD-4" "TIM-1"]
        a_waiter_whose_start_is_ahead_becomes_scheduled ["ORD-4" "TIM-1"]
        ordering_keys_of_tenants_are_independent ["ORD-4" "SEC-1"]
        claimers_at_once_never_run_a_key_twice ["ORD-4"]
        a_line_moves_on_while_its_jobs_are_canceled ["ORD-4" "OPS-3"]
        submits_at_once_with_one_ordering_key_have_one_holder ["ORD-4"]
    ;
    failing:
        a_retry_waits_for_its_delay_and_counts_the_failure ["ERR-1"]
        a_long_row_of_failures_is_counted ["ERR-1"]
        the_history_has_every_attempt_with_its_node_times_and_error ["ERR-2" "ERR-3"]
        the_history_tells_of_lost_nodes_and_running_attempts ["ERR-3" "RUN-5"]
        an_error_reads_back_whole ["ERR-2"]
        dead_letters_are_listed_by_handler_reason_and_time ["ERR-4"]
        a_dead_letter_may_have_a_time_to_live ["OPS-13"]
        a_dead_letter_is_kept_until_replayed_or_purged ["ERR-4" "OPS-7"]
        a_replay_in_place_starts_the_job_anew ["ERR-4"]
        only_dead_letters_can_be_replayed ["ERR-4"]
        of_replays_at_once_one_counts ["ERR-4"]
        a_letter_replayed_as_another_job_is_marked_and_kept_a_while ["ERR-4"]
        a_letter_is_replayed_as_another_job_once ["ERR-9"]
        a_refused_replay_as_another_job_marks_nothing ["ERR-9" "BEY-8"]
        only_ended_jobs_can_be_purged ["ERR-4"]
        a_follow_up_is_stored_with_the_finish_it_belongs_to ["ERR-5"]
        a_follow_up_of_a_refused_or_canceled_finish_is_not_stored ["ERR-5"]
        a_follow_up_respects_its_keys ["ERR-5" "SUB-6" "ORD-4"]
        a_dead_letter_has_as_many_failures_as_its_last_attempt_says ["ERR-1" "ERR-4"]
        a_lost_node_is_the_same_error_whichever_it_was ["RUN-5" "ERR-3"]
        a_snooze_costs_no_attempt ["ERR-7"]
        a_discarded_job_ends_as_canceled ["ERR-7"]
    ;
    watching:
        each_filter_of_a_list_works_alone ["OPS-1"]
        filters_of_a_list_combine ["OPS-1"]
        a_list_is_newest_first_and_pages_by_keyset_while_jobs_arrive ["OPS-1"]
        a_list_pages_by_offset_and_keeps_its_limit ["OPS-1"]
        a_get_of_many_ids_answers_for_those_that_exist ["OPS-1"]
        the_latest_progress_is_kept_and_fenced ["OPS-2" "RUN-16"]
        a_waiting_job_is_canceled_at_once_wherever_it_waits ["OPS-3"]
        a_canceled_job_of_a_bulk_is_never_claimed ["OPS-3" "SUB-4"]
        a_running_job_is_asked_to_cancel_and_never_succeeds ["OPS-3"]
        a_requested_cancel_wins_over_every_transition ["OPS-3"]
        a_requested_cancel_survives_a_lost_node ["OPS-3" "RUN-5"]
        a_requested_cancel_survives_a_node_that_leaves ["OPS-3" "RUN-10"]
        a_canceled_job_whose_attempt_fails_is_kept_as_long_as_it_asks ["OPS-3" "OPS-7"]
        notes_say_who_canceled_what_and_why ["OPS-3" "OPS-5"]
        an_exhausted_job_is_audited_by_its_code ["OPS-5" "SEC-2"]
        a_cancel_of_an_ended_or_unknown_job_changes_nothing ["OPS-3"]
        a_cancel_and_a_finish_at_once_have_one_winner ["OPS-3"]
        a_cancel_and_a_claim_at_once_have_one_winner ["OPS-3"]
        a_pause_is_kept_until_resumed ["OPS-4"]
        parked_jobs_come_back_in_order_when_resumed ["OPS-4"]
        a_resume_lets_go_only_what_it_paused ["OPS-4"]
        a_job_parked_after_the_pause_ended_is_let_go ["OPS-4"]
        pauses_and_waiting_jobs_survive_a_restart ["OPS-4" "OPS-3"]
        steering_writes_the_audit_log ["OPS-5" "OPS-11"]
        the_audit_log_filters_and_keeps_to_its_scope ["OPS-5" "SEC-1"]
        a_success_is_audited_where_it_is_asked_for ["OPS-11"]
        ended_jobs_disappear_when_their_time_is_over ["OPS-7"]
        cleaning_is_bounded_and_counts ["OPS-7"]
        counts_are_what_the_lists_show ["OPS-1" "OPS-7" "API-8"]
        counts_are_right_after_a_mix_of_everything ["OPS-1" "API-8"]
        whereabouts_tell_why_a_job_is_not_running ["BEY-1"]
        a_survey_misses_nothing_there_is_to_do ["RUN-3" "RUN-5" "TIM-1" "OPS-4" "BEY-4"]
    ;
    editing:
        a_waiting_job_can_be_edited_wherever_it_waits ["BEY-5" "OPS-5"]
        a_start_can_be_moved_both_ways ["BEY-5" "TIM-1"]
        an_edit_opens_no_gate_and_keeps_the_line ["BEY-5" "ORD-4" "OPS-4"]
        only_waiting_jobs_of_the_scope_are_edited ["BEY-5" "SEC-1"]
        an_edit_and_a_claim_at_once_have_one_winner ["BEY-5"]
        edits_at_once_are_each_whole ["BEY-5"]
        an_edited_input_counts_against_the_quota ["BEY-5" "BEY-8"]
        edits_survive_a_restart ["BEY-5"]
    ;
    filtering:
        a_filter_means_the_same_everywhere ["BEY-6" "OPS-1"]
        a_search_finds_everything_page_by_page ["BEY-6" "OPS-1"]
        a_filter_by_tenant_does_not_widen_the_scope ["BEY-6" "SEC-1"]
        times_and_ids_are_asked_alike ["BEY-6" "OPS-1"]
        a_count_goes_up_to_its_cap ["BEY-6"]
        failing_jobs_are_told_with_their_signatures ["BEY-3"]
    ;
    logging:
        log_lines_are_kept_in_order_over_attempts ["BEY-7" "SEC-1"]
        a_repeated_report_of_lines_adds_nothing ["BEY-7"]
        only_the_newest_lines_are_kept ["BEY-7"]
        lines_under_a_lost_lease_are_refused ["BEY-7" "RUN-4"]
        notes_of_all_kinds_are_kept_by_one_call ["BEY-7" "RUN-4" "RUN-8" "OPS-2"]
    ;
    costing:
        a_cost_is_recorded_with_its_finish ["OPS-6" "OPS-14" "RUN-4"]
        costs_of_many_finishes_in_one_call ["OPS-6" "RUN-4"]
        usage_keeps_to_its_scope ["OPS-6" "SEC-1"]
        an_operators_cost_is_audited ["OPS-6" "OPS-5" "OPS-14"]
        a_reader_of_usage_events_misses_none ["OPS-6"]
    ;
    time:
        a_scheduled_job_is_promoted_when_due_and_not_before ["TIM-1"]
        a_promotion_tells_when_the_next_job_is_due ["TIM-1"]
        a_promotion_is_bounded ["TIM-1"]
        promotions_at_once_make_each_job_ready_once ["TIM-1"]
        a_start_in_the_past_is_now ["TIM-1"]
        delays_count_from_the_stores_clock ["TIM-3"]
        waiting_jobs_expire_with_their_reason ["BEY-4"]
        a_job_that_has_started_does_not_expire ["BEY-4"]
        a_job_that_was_turned_away_expires ["BEY-4"]
        a_job_that_is_turned_away_late_expires ["BEY-4"]
    ;
    keys:
        data_keys_read_back_in_their_scope ["SEC-2" "SEC-1"]
        a_key_version_is_kept_once_and_never_again ["SEC-2"]
        of_keys_made_at_once_one_is_kept ["SEC-2"]
        a_rewrap_replaces_only_what_it_read ["SEC-2"]
    ;
    quotas:
        a_submit_beyond_the_queued_quota_is_refused ["BEY-8"]
        a_repeat_of_a_stored_key_needs_no_room ["BEY-8" "SUB-6"]
        a_submit_beyond_the_bytes_quota_is_refused ["BEY-8"]
        a_submit_beyond_the_rate_is_refused_until_tokens_come ["BEY-8"]
        a_default_policy_holds_for_tenants_without_their_own ["BEY-8"]
        policies_can_be_read_and_are_audited ["BEY-8" "OPS-5"]
        quotas_and_counts_survive_a_restart ["BEY-8"]
        submits_at_once_fill_a_quota_exactly ["BEY-8"]
        callbacks_and_replays_are_not_refused_but_counted ["BEY-8" "ERR-4" "ERR-5"]
        no_more_jobs_of_a_tenant_run_than_may ["BEY-8" "BEY-1"]
        claims_at_once_keep_to_the_cap ["BEY-8"]
        the_jobs_of_a_lost_node_free_the_cap ["BEY-8" "RUN-5"]
        a_larger_share_gets_more_turns ["BEY-8" "ORD-3"]
    ;
    access:
        api_keys_read_back_in_their_scope ["API-3" "SEC-1"]
        a_revoked_api_key_stays_revoked ["API-3" "OPS-5" "SEC-1"]
        the_last_use_of_an_api_key_moves_on ["API-3"]
        a_setting_is_set_once ["API-3"]
        a_setting_is_kept_for_its_time ["API-3"]
    ;
    past:
        what_is_added_is_in_one_bucket_of_each_length ["API-6"]
        a_tenant_reads_its_own_past_and_operators_that_of_all ["API-6" "SEC-1"]
        additions_at_once_lose_nothing ["API-6"]
        the_past_is_removed_when_its_time_is_over ["API-6"]
        jobs_are_counted_by_status_once_for_each_bucket ["API-6" "API-8"]
        a_backlog_tells_what_waits_and_runs_by_handler ["BEY-14" "SEC-1"]
        blocked_jobs_are_part_of_the_backlog ["BEY-14" "OPS-4"]
        a_large_backlog_is_estimated ["BEY-14"]
        a_handler_late_in_a_long_line_of_blocked_jobs_is_seen ["BEY-14"]
        vitals_tell_how_long_the_oldest_job_is_due ["API-8"]
        vitals_count_the_dead_letters_there_are ["API-6" "ERR-4"]
    ;
    feed:
        status_events_are_kept_while_somebody_wants_them ["OPS-8"]
        every_change_of_status_leaves_an_event ["OPS-8"]
        status_events_are_read_on_from_a_sequence ["OPS-8"]
        webhooks_are_kept_in_their_scope ["OPS-8" "OPS-5" "SEC-1"]
    ;
    leases:
        a_lease_has_one_holder_at_a_time ["OPS-8"]
        of_many_that_want_a_lease_at_once_one_holds_it ["OPS-8"]
        a_lease_that_ran_out_is_taken_over_under_a_higher_epoch ["OPS-8"]
        a_lease_that_is_let_go_is_free_at_once ["OPS-8"]
        the_holders_of_leases_are_listed_by_prefix ["OPS-8"]
    ;
    schedules:
        schedules_are_kept_in_their_scope ["TIM-2"]
        a_schedule_is_changed_in_the_version_that_is_meant ["TIM-2"]
        due_schedules_are_found ["TIM-2"]
        a_nominal_time_is_fired_once ["TIM-2"]
        a_deposed_scheduler_fires_nothing ["TIM-2"]
        nothing_fires_after_the_answer_of_a_pause ["TIM-2"]
    ;
    groups:
        a_batch_is_opened_once_for_its_key ["FLW-4"]
        a_part_is_added_once ["FLW-4"]
        counts_of_a_batch_are_exact ["FLW-4"]
        a_member_of_a_lost_node_is_counted ["FLW-4"]
        a_batch_is_completed_once ["FLW-4"]
        an_empty_batch_is_complete_when_it_is_sealed ["FLW-4"]
        a_job_waits_for_its_parents ["FLW-3"]
        a_settled_job_takes_its_place ["FLW-3"]
        a_job_ends_with_its_parents ["FLW-3"]
        edges_go_with_the_child ["FLW-3"]
        a_batch_is_waited_for ["FLW-3" "FLW-4"]
        a_survey_finds_what_is_to_be_settled ["FLW-3" "FLW-4"]
        batches_are_listed ["FLW-4"]
    ;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [&str; 18] = [
        include_str!("submitting.rs"),
        include_str!("running.rs"),
        include_str!("ordering.rs"),
        include_str!("failing.rs"),
        include_str!("watching.rs"),
        include_str!("editing.rs"),
        include_str!("filtering.rs"),
        include_str!("logging.rs"),
        include_str!("costing.rs"),
        include_str!("time.rs"),
        include_str!("keys.rs"),
        include_str!("quotas.rs"),
        include_str!("access.rs"),
        include_str!("past.rs"),
        include_str!("feed.rs"),
        include_str!("leases.rs"),
        include_str!("schedules.rs"),
        include_str!("groups.rs"),
    ];

    /// The doc comment right above `pub(super) async fn name(`.
    fn doc_of(name: &str) -> String {
        let head = format!("pub(super) async fn {name}(");
        let source = SOURCES.iter().find(|source| source.contains(&head)).expect("every case is a function");
        let above: Vec<&str> = source.split(&head).next().expect("split has a first part").lines().rev().collect();
        above.into_iter().take_while(|line| line.starts_with("///")).collect()
    }

    #[test]
    fn every_case_names_its_requirements_in_its_comment() {
        for case in cases() {
            let doc = doc_of(case.name);
            assert!(!case.requirements.is_empty(), "{} proves nothing", case.name);
            for requirement in case.requirements {
                assert!(doc.contains(requirement), "the comment of {} does not name {requirement}", case.name);
            }
        }
    }

    #[test]
    fn every_case_function_is_registered() {
        let written: usize = SOURCES.iter().map(|source| source.matches("pub(super) async fn ").count()).sum();
        assert_eq!(written, cases().len());
    }
}
