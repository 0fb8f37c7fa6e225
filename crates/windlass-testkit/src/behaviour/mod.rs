//! What the service promises its users, once for every store: each behaviour is an async function over a fresh store,
//! driven through the public API. Store crates hold only the call to `behaviour_tests!`. The store-level twin is
//! `conformance`.

mod access;
mod acting;
mod counting;
mod editing;
mod failing;
mod faulting;
mod feed;
mod limits;
mod observing;
mod ordering;
mod quotas;
mod running;
mod sealing;
mod steering;
mod submitting;
mod telling;
mod grouping;
mod timing;

pub(crate) use counting::Counting;

pub use access::*;
pub use acting::*;
pub use editing::*;
pub use failing::*;
pub use faulting::*;
pub use feed::*;
pub use grouping::*;
pub use limits::*;
pub use observing::*;
pub use ordering::*;
pub use quotas::*;
pub use running::*;
pub use sealing::*;
pub use steering::*;
pub use submitting::*;
pub use telling::*;
pub use timing::*;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use uuid::Uuid;
use windlass_core::store::Store;
use windlass_core::{
    Builder, Encryption, Error, JobId, JobService, OperatorRight, RetryPolicy, SecurityContext, Status, TenantId,
};

/// Calls `$callback! { ($args) name [requirements], … }` with every behaviour. The one list of them.
#[macro_export]
macro_rules! for_each_behaviour {
    ($callback:path, ($($args:tt)*)) => {
        $callback! { ($($args)*)
            a_submitted_job_runs_and_its_result_can_be_read ["SUB-1", "RUN-1", "RUN-3"],
            a_plain_function_is_a_handler_with_state ["RUN-1"],
            options_reach_the_handler ["SUB-2", "RUN-8", "RUN-16"],
            many_jobs_are_submitted_in_order_with_one_batch ["SUB-4"],
            a_batch_with_a_key_can_be_repeated ["SUB-13"],
            a_bad_batch_names_every_bad_item_and_stores_nothing ["SUB-5", "SUB-9"],
            a_partial_batch_stores_what_is_good ["SUB-5"],
            concurrent_submits_are_coalesced ["SUB-4"],
            sixty_four_submits_with_one_key_make_one_job ["SUB-6"],
            equal_content_is_one_job_while_it_waits ["SUB-7"],
            bad_input_is_refused_by_field_and_nothing_is_written ["SUB-8", "SUB-9", "SUB-10"],
            an_unknown_handler_is_refused_unless_another_node_has_it ["SUB-10"],
            names_of_the_engine_are_refused_wherever_a_caller_can_give_one ["SUB-9", "OPS-8"],
            spawned_closures_have_status_cancel_and_backpressure ["SUB-11"],
            a_spawned_closure_can_panic_and_time_out ["SUB-11"],
            spawned_closures_are_served_by_the_same_calls ["SUB-11", "RUN-14"],
            jobs_that_are_not_restartable_are_served_by_the_same_calls ["RUN-14"],
            jobs_in_memory_keep_their_place_until_they_end ["SUB-11", "RUN-14"],
            a_job_in_memory_that_has_begun_does_not_expire ["RUN-14", "BEY-4"],
            a_dead_letter_is_not_stored_for_a_handler_in_memory ["RUN-14", "ERR-9"],
            submit_and_wait_returns_the_typed_output_and_error ["SUB-12"],
            many_waiters_share_one_look ["SUB-12"],
            a_job_starts_within_milliseconds_of_its_submit ["RUN-3"],
            a_quiet_node_asks_its_store_for_little ["RUN-3"],
            handlers_run_on_threads_of_their_own ["RUN-2"],
            a_job_longer_than_the_lease_runs_once ["RUN-4", "RUN-13"],
            a_timeout_cancels_then_aborts_and_is_retried ["RUN-6"],
            a_blocked_thread_is_written_off ["RUN-6"],
            an_attempt_without_a_timeout_takes_as_long_as_it_likes ["RUN-15"],
            a_panic_is_a_failed_attempt ["RUN-7"],
            a_handler_that_panics_while_it_is_dropped_fails_its_attempt ["RUN-7", "SUB-11"],
            jobs_end_although_the_store_panics ["RUN-7", "API-8"],
            ends_outlive_a_store_that_fails_and_panics ["RUN-7"],
            a_call_that_panics_says_so_and_is_counted ["RUN-7", "API-8"],
            a_node_that_cannot_save_takes_no_more_jobs ["RUN-10", "API-8", "OPS-9", "OPS-10"],
            a_node_that_saves_nothing_for_a_lease_says_so ["RUN-10", "API-8"],
            a_checkpoint_survives_the_attempt ["RUN-8"],
            shutdown_hands_running_jobs_back_without_cost ["RUN-10"],
            no_more_jobs_run_than_the_node_and_the_handler_allow ["RUN-11"],
            a_job_waits_for_a_node_that_has_its_handler ["RUN-12"],
            a_job_nobody_can_run_becomes_a_dead_letter ["RUN-12"],
            a_process_without_handlers_claims_nothing ["API-10"],
            an_old_job_survives_a_restart_of_its_workers ["ERR-10"],
            jobs_that_workers_outside_take_are_not_given_up ["ERR-10", "OPS-10"],
            names_that_nothing_waits_by_are_not_written_down ["ERR-10", "OPS-10"],
            a_higher_priority_starts_first ["ORD-1"],
            bands_share_capacity_and_low_is_not_starved ["ORD-2"],
            a_deep_queue_does_not_hold_up_another ["ORD-2"],
            strict_bands_serve_the_best_first ["ORD-2"],
            a_flood_of_one_tenant_does_not_hold_up_another ["ORD-3"],
            an_ordering_key_runs_one_at_a_time_in_order ["ORD-4"],
            the_next_of_an_ordering_key_starts_when_the_one_before_has_ended ["ORD-4"],
            failures_are_retried_until_success ["ERR-1"],
            a_terminal_error_is_a_dead_letter_at_once ["ERR-2"],
            a_handlers_own_errors_are_kept_as_it_names_them ["ERR-8", "ERR-2"],
            every_attempt_is_in_the_history ["ERR-3"],
            dead_letters_are_listed_replayed_and_purged ["ERR-4", "ERR-9"],
            a_paced_replay_stops_when_too_many_fail_again ["ERR-4"],
            callbacks_run_exactly_once ["ERR-5", "OPS-12"],
            callbacks_need_no_flag_and_cost_nothing_where_there_is_none ["OPS-12"],
            a_handler_can_snooze_and_discard ["ERR-7"],
            lists_filter_and_page ["OPS-1"],
            concurrent_look_ups_share_one_query ["OPS-1"],
            progress_is_streamed_and_resumable ["OPS-2", "RUN-16"],
            a_waiting_job_is_canceled_at_once ["OPS-3"],
            a_running_job_is_canceled_cooperatively_then_by_force ["OPS-3"],
            a_cancel_from_another_node_reaches_the_handler ["OPS-3"],
            a_pause_holds_handler_tenant_or_everything ["OPS-4"],
            a_tenant_pauses_itself_and_nobody_else ["OPS-4", "SEC-1"],
            a_scope_reaches_its_own_jobs_only ["SEC-1"],
            what_people_do_by_hand_is_in_the_audit_log ["OPS-5"],
            a_handler_that_nobody_knows_is_paused_only_by_force ["OPS-4"],
            operator_actions_are_in_the_audit_log ["OPS-5"],
            ended_jobs_are_removed_after_their_retention ["OPS-7"],
            successes_stay_in_the_audit_log_where_a_handler_asks ["OPS-11"],
            a_handler_writes_entries_of_its_own_into_the_audit_log ["OPS-11"],
            dead_letters_live_as_long_as_handler_or_service_say ["OPS-13"],
            subscribers_see_status_events_of_their_tenant ["OPS-8"],
            tick_runs_at_most_n_jobs_in_the_callers_process ["OPS-9"],
            a_tick_that_is_dropped_leaves_no_job_behind ["OPS-9"],
            a_tick_runs_the_callers_jobs_only ["OPS-9", "SEC-1"],
            jobs_can_be_checked_out_and_marked_by_hand ["OPS-10"],
            a_checkout_hands_out_the_callers_jobs_only ["OPS-10", "SEC-1"],
            what_must_not_start_is_not_checked_out ["OPS-10", "OPS-4", "BEY-4"],
            a_checkout_is_reported_on_at_any_node ["OPS-10", "BEY-12"],
            a_silent_worker_fails_its_attempt_unless_another_node_heard_of_it ["OPS-10", "BEY-12"],
            a_canceled_checkout_ends_when_its_worker_hears_of_it ["OPS-10", "OPS-3"],
            a_checkout_ends_with_its_deadline ["OPS-10", "BEY-4"],
            a_checkout_that_nobody_receives_is_given_back ["OPS-10", "BEY-4"],
            a_checkout_that_panics_gives_its_jobs_back ["OPS-10", "RUN-7"],
            a_job_that_too_many_nodes_were_lost_with_is_not_checked_out ["OPS-10", "RUN-5"],
            a_delayed_job_starts_when_it_is_due ["TIM-1", "TIM-3"],
            why_names_what_a_job_waits_for ["BEY-1"],
            failures_are_grouped_and_replayed_as_a_group ["BEY-3"],
            a_bulk_action_does_what_its_preview_shows ["BEY-6"],
            a_bulk_action_keeps_its_pace_and_can_be_stopped ["BEY-6", "BEY-2"],
            a_bulk_action_is_shown_and_stopped_by_every_process ["BEY-6"],
            a_tenant_has_a_share_of_the_bulk_actions ["BEY-6"],
            a_bulk_action_whose_caller_goes_away_leaves_its_place ["BEY-6"],
            a_bulk_replay_stops_when_too_many_fail_again ["BEY-2"],
            an_operators_bulk_action_reaches_every_tenant ["BEY-6", "SEC-1"],
            expired_and_overdue_jobs_do_not_start ["BEY-4"],
            an_attempt_runs_until_its_deadline ["BEY-4"],
            a_sealed_job_lives_like_any_other_and_the_store_sees_nothing ["SEC-2"],
            a_payload_that_looks_sealed_is_taken_as_it_is ["SEC-2"],
            sealed_jobs_are_unique_by_content_without_showing_it ["SEC-2", "SUB-7"],
            sealed_text_of_another_tenant_or_job_does_not_open ["SEC-2", "SEC-1"],
            keys_rotate_and_are_wrapped_anew_without_touching_jobs ["SEC-2"],
            destroyed_keys_make_dead_letters ["SEC-2"],
            sealed_failures_are_grouped_without_showing_their_messages ["SEC-2", "BEY-3"],
            a_failing_key_provider_delays_and_loses_nothing ["SEC-2"],
            a_node_without_keys_leaves_sealed_jobs_to_others ["SEC-2"],
            every_limit_is_allowed_and_one_more_is_refused ["SEC-3", "SUB-9"],
            a_service_beyond_the_hard_maxima_does_not_start ["SEC-3"],
            outputs_and_errors_are_kept_up_to_their_limit_and_marked_beyond ["SEC-3"],
            hostile_payloads_come_back_unchanged_or_are_refused ["SEC-3", "SUB-9"],
            a_noisy_tenant_is_held_to_its_quota_and_holds_nobody_up ["BEY-8", "ORD-3"],
            only_the_tenant_beyond_its_quota_is_refused ["BEY-8", "SUB-4"],
            a_tenant_at_its_cap_waits_and_why_says_so ["BEY-8", "BEY-1"],
            a_waiting_job_is_edited_and_runs_as_edited ["BEY-5"],
            a_job_that_is_run_now_starts_at_once ["BEY-5"],
            a_retry_replays_dead_letters_and_runs_retrying_jobs_now ["BEY-5"],
            a_job_is_cloned_whatever_its_status ["BEY-5"],
            an_api_key_opens_its_tenant_and_nothing_else_does ["API-3"],
            a_revoked_api_key_is_refused_on_every_node_within_seconds ["API-3"],
            an_api_key_expires_and_tells_when_it_was_used ["API-3"],
            what_happens_to_jobs_is_counted ["API-6"],
            charts_show_how_many_jobs_wait ["API-6"],
            a_backlog_shows_what_waits_and_runs ["BEY-14"],
            a_paused_handler_has_a_backlog ["BEY-14", "OPS-4"],
            health_shows_depth_nodes_and_the_store ["API-8"],
            a_trace_travels_with_the_job ["API-7"],
            log_lines_are_kept_with_the_attempts_of_a_job ["BEY-7"],
            a_schedule_starts_a_job_at_each_of_its_times ["TIM-2"],
            overlapping_runs_follow_the_policy ["TIM-2"],
            a_schedule_that_cannot_fire_is_refused_by_field ["TIM-2"],
            schedules_of_the_code_are_kept_in_step ["TIM-2"],
            idle_schedules_cost_no_call ["TIM-2"],
            a_batch_calls_back_once_when_all_have_ended ["FLW-4"],
            a_batch_is_watched_and_canceled ["FLW-4"],
            a_graph_runs_in_order ["FLW-3"],
            jobs_wait_for_what_is_there ["FLW-3", "SUB-2"],
            what_jobs_cost_is_recorded_and_added_up ["OPS-6"],
            the_feed_of_one_node_tells_what_happens_on_another ["OPS-8"],
            the_feed_goes_on_after_the_last_event_seen ["OPS-8"],
            a_webhook_is_told_by_one_job_for_each_event ["OPS-8"],
            a_webhook_for_a_handler_that_nobody_knows_is_refused ["OPS-8"],
            a_webhook_is_never_off_without_the_reason ["OPS-8"],
        }
    };
}

macro_rules! list {
    (() $($name:ident [$($id:literal),*],)*) => {
        /// Every behaviour with the requirements it shows.
        pub const BEHAVIOURS: &[(&str, &[&str])] = &[$((stringify!($name), &[$($id),*])),*];
    };
}
for_each_behaviour!(list, ());

/// Makes one test of each behaviour. The argument is an async function that returns a fresh store and a guard that
/// keeps it alive.
#[macro_export]
macro_rules! behaviour_tests {
    ($make:ident) => {
        $crate::for_each_behaviour!($crate::make_behaviour_tests, ($make));
    };
}

/// The part of `behaviour_tests!` that `for_each_behaviour!` calls.
#[doc(hidden)]
#[macro_export]
macro_rules! make_behaviour_tests {
    (($make:ident) $($name:ident [$($id:literal),*],)*) => {
        mod behaviour {
            $(
                #[test]
                fn $name() {
                    $crate::behaviour::check(async {
                        let (store, _guard) = super::$make().await;
                        $crate::behaviour::$name(store).await;
                    });
                }
            )*
        }
    };
}

/// Calls `$callback! { ($args) name [], … }` with the behaviours in which payloads, results or keys travel: those that
/// must hold as well where everything is sealed.
#[macro_export]
macro_rules! for_each_sealed_behaviour {
    ($callback:path, ($($args:tt)*)) => {
        $callback! { ($($args)*)
            a_submitted_job_runs_and_its_result_can_be_read [],
            options_reach_the_handler [],
            many_jobs_are_submitted_in_order_with_one_batch [],
            a_bad_batch_names_every_bad_item_and_stores_nothing [],
            a_partial_batch_stores_what_is_good [],
            sixty_four_submits_with_one_key_make_one_job [],
            equal_content_is_one_job_while_it_waits [],
            submit_and_wait_returns_the_typed_output_and_error [],
            many_waiters_share_one_look [],
            a_panic_is_a_failed_attempt [],
            a_checkpoint_survives_the_attempt [],
            shutdown_hands_running_jobs_back_without_cost [],
            a_job_nobody_can_run_becomes_a_dead_letter [],
            an_ordering_key_runs_one_at_a_time_in_order [],
            failures_are_retried_until_success [],
            a_terminal_error_is_a_dead_letter_at_once [],
            every_attempt_is_in_the_history [],
            dead_letters_are_listed_replayed_and_purged [],
            callbacks_run_exactly_once [],
            a_handler_can_snooze_and_discard [],
            lists_filter_and_page [],
            progress_is_streamed_and_resumable [],
            a_running_job_is_canceled_cooperatively_then_by_force [],
            tick_runs_at_most_n_jobs_in_the_callers_process [],
            jobs_can_be_checked_out_and_marked_by_hand [],
            expired_and_overdue_jobs_do_not_start [],
            a_waiting_job_is_edited_and_runs_as_edited [],
            a_job_is_cloned_whatever_its_status [],
            log_lines_are_kept_with_the_attempts_of_a_job [],
            the_feed_of_one_node_tells_what_happens_on_another [],
            a_webhook_is_told_by_one_job_for_each_event [],
        }
    };
}

/// Makes one test of each behaviour that must hold where everything is sealed.
#[macro_export]
macro_rules! sealed_behaviour_tests {
    ($make:ident) => {
        $crate::for_each_sealed_behaviour!($crate::make_sealed_behaviour_tests, ($make));
    };
}

/// The part of `sealed_behaviour_tests!` that `for_each_sealed_behaviour!` calls.
#[doc(hidden)]
#[macro_export]
macro_rules! make_sealed_behaviour_tests {
    (($make:ident) $($name:ident [],)*) => {
        mod sealed_behaviour {
            $(
                #[test]
                fn $name() {
                    $crate::behaviour::check($crate::behaviour::sealed(async {
                        let (store, _guard) = super::$make().await;
                        $crate::behaviour::$name(store).await;
                    }));
                }
            )*
        }
    };
}

tokio::task_local! {
    static SEALED: ();
}

/// Runs a behaviour whose services seal everything.
pub async fn sealed(behaviour: impl Future<Output = ()>) {
    SEALED.scope((), behaviour).await;
}

/// Runs one behaviour with a limit, so that a hang fails and says so.
pub fn check(behaviour: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be built").block_on(async {
        tokio::time::timeout(TIME_LIMIT, behaviour).await.expect("the behaviour ends within its time limit");
    });
}

/// Far above what any behaviour takes, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How long anything that should happen soon is waited for.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Runs at most `n` ready jobs of every tenant.
pub(crate) async fn tick(jobs: &JobService, n: usize) -> Result<usize, Error> {
    jobs.operator(OperatorRight::assume()).tick(n).await
}

pub(crate) fn tenant(n: u128) -> SecurityContext {
    SecurityContext::new(TenantId(Uuid::from_u128(n))).with_user(format!("user-{n}"))
}

/// A service with short waits.
pub(crate) fn service(store: &Arc<dyn Store>) -> Builder {
    let builder = JobService::builder(store.clone());
    let builder = match SEALED.try_with(|()| ()) {
        Ok(()) => builder.encryption(Encryption::new(sealing::keys("first"))),
        Err(_) => builder,
    };
    builder.configure(|config| {
        config.poll = Duration::from_millis(200);
        config.grace = Duration::from_millis(200);
        config.shutdown_deadline = Duration::from_secs(5);
        config.retention_floor = Duration::ZERO;
        config.concurrency = 16;
        config.key_retry = Duration::from_millis(50);
    })
}

/// Retries without delay.
pub(crate) fn quick_retries(attempts: u16) -> RetryPolicy {
    RetryPolicy::fixed(attempts, Duration::from_millis(1))
}

/// Waits until `probe` says so, and fails with `what` if it does not soon.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut probe: impl FnMut() -> F) {
    let wait = async {
        while !probe().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("waited for: {what}"));
}

pub(crate) async fn until_status(jobs: &JobService, ctx: &SecurityContext, id: JobId, status: Status) {
    until(&format!("job {id} to be {status}"), || async {
        jobs.get(ctx, id).await.is_ok_and(|record| record.status == status)
    })
    .await;
}

/// How often something of a process has panicked, as its health shows it.
pub(crate) fn panics(jobs: &JobService, name: &str) -> u64 {
    jobs.loops().iter().filter(|health| health.name == name).map(|health| health.panics).sum()
}

/// Lets each call come as far as it gets without the store, so that all of them wait for it at the same time.
pub(crate) async fn begin_all<F: Future + Unpin>(calls: &mut [F]) {
    // Without a budget: a runtime that stops in the middle would leave some of them for later.
    tokio::task::unconstrained(async {
        for call in calls {
            assert!(futures_util::poll!(call).is_pending(), "the call waits for the store");
        }
    })
    .await;
}

/// Counts things, from handlers.
#[derive(Clone, Default)]
pub(crate) struct Counter(Arc<AtomicUsize>);

impl Counter {
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A handler that stays until it is let go.
#[derive(Clone)]
pub(crate) struct Door {
    open: tokio::sync::watch::Sender<bool>,
    pub(crate) waiting: Counter,
}

impl Door {
    pub(crate) fn closed() -> Door {
        Door { open: tokio::sync::watch::Sender::new(false), waiting: Counter::default() }
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) async fn pass(&self) {
        self.waiting.add();
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}
