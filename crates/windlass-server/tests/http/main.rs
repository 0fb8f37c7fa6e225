//! The server over real sockets, on every store: each case starts a server on a free port of loopback and asks it with a
//! real client. What must hold whatever the store is has its cases in `jobs` and `acting`; what does not depend on it
//! (credentials, limits, the inventory of routes) runs on the memory store alone.

mod acting;
mod bad_input;
mod deploy;
mod doors;
mod hooks;
mod inventory;
mod jobs;
mod live;
mod metrics;
mod pages;
mod rig;
mod schedules;
mod tokens;

use rig::{Rig, Where};

/// Runs each case on the memory store and on SQLite as a test of its own, and all of them on one PostgreSQL server.
macro_rules! on_every_store {
    ($($module:ident :: $case:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$module::$case(&super::Rig::start(super::Where::Memory).await).await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$module::$case(&super::Rig::start(super::Where::Sqlite).await).await;
            })*
        }
        /// One server for all: starting one takes longer than most cases.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn every_case_holds_on_postgres() {
            let server = rig::postgres();
            $({
                let name = stringify!($case);
                println!("postgres: {name}");
                $module::$case(&Rig::start(Where::Postgres(&server, name)).await).await;
            })*
        }
    };
}

on_every_store! {
    jobs::a_job_is_submitted_watched_and_read,
    jobs::a_key_makes_repeating_a_submit_safe,
    jobs::a_batch_is_stored_whole_or_in_part,
    jobs::a_batch_with_a_key_can_be_repeated,
    jobs::a_submitter_cannot_use_names_of_the_engine,
    jobs::jobs_are_listed_by_filter_and_page,
    jobs::another_tenants_job_does_not_exist,
    jobs::a_job_that_ended_badly_says_why,
    acting::a_waiting_job_is_changed_and_canceled,
    acting::dead_letters_are_replayed_and_purged,
    acting::many_jobs_are_acted_on_after_a_confirmed_preview,
    acting::pauses_hold_jobs_until_they_are_resumed,
    acting::quotas_are_set_and_refuse_what_is_beyond,
    acting::a_worker_outside_takes_jobs_and_reports,
    acting::a_worker_outside_reports_at_any_server,
    acting::a_tick_runs_what_is_ready,
    acting::keys_are_made_used_and_revoked,
    doors::a_logout_holds_on_every_server,
    live::a_job_is_followed_to_its_end,
    live::status_events_are_followed_and_resumed,
    hooks::a_webhook_is_told_signed_and_again_until_it_answers,
    hooks::a_webhook_that_keeps_failing_is_switched_off_until_it_is_resumed,
    schedules::a_schedule_is_created_changed_and_removed,
    schedules::next_runs_are_shown_in_two_zones,
    schedules::a_triggered_schedule_starts_a_job,
    schedules::a_bad_schedule_is_refused_by_its_field,
    schedules::schedules_belong_to_their_tenant,
    schedules::the_input_of_a_schedule_needs_its_right,
    schedules::schedules_are_managed_on_pages_without_a_script,
    schedules::what_schedules_fire_is_counted,
    acting::costs_and_logs_are_kept_with_a_job,
    metrics::metrics_are_exactly_those_documented,
    pages::a_tab_leads_to_as_many_jobs_as_it_shows,
    pages::purged_jobs_are_counted_nowhere,
    pages::the_box_knows_handlers_whose_nodes_are_down,
    pages::a_number_that_is_no_job_leads_to_the_errors,
    deploy::an_autoscaler_reads_what_waits,
    deploy::prometheus_reads_metrics_with_its_key,
    bad_input::bad_input_is_refused_and_writes_nothing,
}
