//! The contract of every store: run by the tests of this crate on memory, SQLite, PostgreSQL and MySQL/MariaDB.
//!
//! Each check is a function over a store, and panics if the store is wrong. Checks that race two callers poll both futures in one task, so
//! on a database their transactions overlap.

#![expect(clippy::unwrap_used, reason = "a check is a test: what it did not expect ends it")]

mod access;
mod adoption;
mod alert_groups;
mod alerts;
mod broadcasts;
mod calendars;
mod catalog;
mod changes;
mod channel_uses;
mod channels;
mod claims;
mod cluster;
mod declarations;
mod delays;
mod dispatch;
mod edits;
mod followers;
mod healing;
mod homes;
mod lineage;
mod logs;
mod maintenance;
mod orphans;
mod outbox;
mod pages;
mod pumps;
mod records;
mod relay;
mod reports;
mod request_keys;
mod requests;
mod results;
mod rollups;
mod saved_filters;
mod scripts;
mod search;
mod shadow;
mod stats;
mod traces;
mod upkeep;
mod xxl;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::run::RunJob;
use rondel_core::{
    AppId, ExecutorId, IdGen, Job, JobId, JobSpec, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger,
};

use crate::catalog::{JobCreated, JobRecord, NewJob};
use crate::cluster::{Join, JoinRequest, StreamEnd};
use crate::ledger::{AttemptEnd, ClaimJob, ClaimResult, DueJob, DueRange, EndOutcome, Finisher};
use crate::{LeaseToken, Store};

pub use self::access::*;
pub use self::adoption::*;
pub use self::alerts::*;
pub use self::broadcasts::*;
pub use self::calendars::*;
pub use self::catalog::*;
pub use self::changes::*;
pub use self::channel_uses::*;
pub use self::channels::*;
pub use self::claims::*;
pub use self::cluster::*;
pub use self::declarations::*;
pub use self::delays::*;
pub use self::dispatch::*;
pub use self::edits::*;
pub use self::followers::*;
pub use self::healing::*;
pub use self::homes::*;
pub use self::lineage::*;
pub use self::logs::*;
pub use self::maintenance::*;
pub use self::outbox::*;
pub use self::pages::*;
pub use self::pumps::*;
pub use self::relay::*;
pub use self::reports::*;
pub use self::request_keys::*;
pub use self::requests::*;
pub use self::results::*;
pub use self::rollups::*;
pub use self::saved_filters::*;
pub use self::scripts::*;
pub use self::search::*;
pub use self::shadow::*;
pub use self::stats::*;
pub use self::traces::*;
pub use self::upkeep::*;
pub use self::xxl::*;

use self::edits::{change, expect_saved};
use self::records::executor;

/// Calls a macro with the name of every check.
#[macro_export]
macro_rules! for_each_conformance_check {
    ($with:ident) => {
        $with! {
            namespaces_and_apps_are_found_by_name,
            jobs_are_read_as_they_were_written,
            runs_are_found_by_all_that_a_search_names,
            a_search_looks_at_a_bounded_number_of_rows,
            jobs_come_in_pages_by_name,
            many_jobs_are_created_at_once,
            names_differ_by_case_and_are_free_after_deletion,
            namespaces_are_made_and_removed_when_empty,
            lists_keep_to_the_apps_that_may_be_seen,
            accounts_are_read_as_they_were_written,
            the_last_admin_account_stays,
            a_sign_in_ends_with_its_password_rights_or_token,
            a_link_is_used_once,
            attempts_are_counted_and_bounded,
            addresses_of_an_account_are_remembered,
            servers_share_a_key,
            tokens_are_counted_found_by_place_and_forgotten,
            tokens_are_found_by_their_hash,
            a_token_is_replaced_with_an_overlap,
            everything_that_a_token_created_ends_with_it,
            a_token_does_not_outlive_the_one_that_made_it,
            rotation_keeps_everything_that_a_token_created,
            a_token_that_rotates_itself_stays_one_token,
            a_series_of_tokens_outlives_its_first_ones,
            the_audit_log_is_read_by_each_filter,
            an_audit_entry_is_completed_once,
            calendars_are_read_as_they_were_written,
            calendars_saved_at_once_get_a_version_each,
            a_used_calendar_is_not_deleted,
            a_calendar_is_not_deleted_under_a_job_that_is_saved,
            jobs_behind_their_calendar_are_found,
            scripts_are_read_as_they_were_written,
            scripts_saved_at_once_get_a_version_each,
            old_versions_of_a_script_are_forgotten_unless_a_job_names_them,
            a_used_script_is_not_deleted,
            a_script_is_not_deleted_under_a_job_that_is_saved,
            a_rule_is_read_as_it_was_saved,
            expectations_are_looked_at_by_their_definition,
            a_save_leaves_the_check_of_a_passed_deadline_due,
            a_failure_is_dead_until_it_is_acknowledged,
            a_window_is_read_as_it_was_planned,
            windows_are_bounded,
            a_fire_that_is_held_back_is_the_next_fire,
            a_run_is_skipped_by_a_window,
            a_decision_is_written_from_the_newest_version_alone,
            incidents_are_found_by_each_filter,
            a_silence_has_an_end,
            verdicts_leave_events_where_a_rule_waits_for_them,
            watched_jobs_are_read_in_pages,
            a_channel_is_read_as_it_was_saved,
            a_message_about_an_incident_is_written_once,
            a_channel_has_one_sender_at_a_time,
            a_used_channel_is_not_deleted,
            the_default_channel_is_used_by_expectations_without_one,
            a_channel_is_not_deleted_while_its_user_is_saved,
            messages_of_an_incident_keep_their_order,
            tries_are_recorded_once_and_forgotten_with_age,
            versions_are_those_that_held,
            changes_are_read_as_they_stand,
            a_declaration_is_stored_in_addition_to_the_definition,
            an_edit_keeps_settles_and_reopens,
            runs_that_may_have_been_sent_before_a_step_back_stay,
            a_run_that_is_reopened_at_a_dead_home_is_adopted,
            a_change_of_route_moves_unsent_rows,
            edits_that_meet_see_each_other,
            a_deleted_job_settles_its_rows,
            overdue_fires_of_an_edited_job_are_one_row,
            an_instant_that_was_ahead_when_it_was_checked_fires,
            the_end_of_a_run_gives_the_next_fire_of_a_delay,
            a_delay_counts_by_the_clock_of_the_database,
            the_last_shard_gives_the_next_fire_of_a_delay,
            an_edit_finds_the_run_that_a_delay_follows,
            an_edit_meets_the_end_of_the_run_that_a_delay_follows,
            an_edit_sees_rows_that_jitter_puts_off,
            executors_of_xxl_job_keep_their_ids,
            executors_of_xxl_job_are_registered_by_hand,
            a_number_of_xxl_job_is_sent_once,
            the_first_report_of_xxl_job_counts,
            a_trace_is_found_by_its_run_and_forgotten_with_age,
            the_clock_moves_forward,
            a_lease_is_held_by_one,
            concurrent_joins_get_distinct_ids_and_ordinals,
            sessions_record_which_node_hears_which_executor,
            an_incarnation_with_a_secret_cannot_be_taken,
            a_lease_given_back_ends_where_the_clock_was,
            open_sessions_are_witnesses,
            a_session_ends_with_its_last_stream,
            runs_due_soon_after_a_takeover_may_have_been_sent_ahead,
            a_run_that_no_executor_could_receive_was_not_sent,
            an_executor_that_ended_in_order_has_left,
            due_jobs_come_in_order,
            dense_instants_are_counted,
            unsent_runs_of_a_job_come_in_order,
            fires_with_rows_are_found,
            a_job_is_claimed_once,
            a_claim_needs_its_lease,
            a_claim_leaves_existing_rows_as_they_are,
            a_batch_may_be_large,
            a_requested_run_belongs_to_the_home,
            a_run_keeps_the_executor_that_its_caller_named,
            a_key_is_held_by_one_open_run,
            a_key_is_forgotten_with_its_run,
            a_planned_run_is_taken_up_when_it_comes_due,
            waiting_runs_wake_when_due,
            marks_are_won_once,
            waits_and_reasons_keep_their_parameters,
            a_request_to_drop_is_not_a_request_to_cancel,
            fences_are_relayed_by_a_server_that_hears_the_executor,
            running_is_noted_for_pending_runs,
            a_run_in_an_executors_queue_has_not_begun,
            a_cancel_is_recorded_until_the_run_has_ended,
            a_cancel_is_read_by_nodes_that_hear_the_executor,
            a_covered_run_has_that_reason,
            a_limit_has_one_home,
            unsent_runs_are_handed_over,
            runs_that_a_lease_did_not_send_wait_for_the_next,
            all_open_runs_of_a_job_are_found_and_cancelled,
            a_broadcast_is_expanded_once,
            the_last_shard_gives_the_verdict,
            shards_that_end_at_once_give_one_verdict,
            a_retry_by_hand_is_not_a_shard,
            a_fire_may_be_of_some_shards,
            a_result_is_stored_once,
            only_the_owner_ends_a_run_by_itself,
            a_run_under_way_does_not_end_as_unsent,
            a_run_that_began_is_never_skipped,
            an_attempt_without_executor_uses_no_retry,
            results_of_other_attempts_are_kept_beside,
            an_unknown_verdict_becomes_the_true_one,
            a_cancel_without_a_report_becomes_the_true_end,
            parents_are_checked_when_saved,
            edits_that_meet_make_no_circle,
            no_child_is_due_before_the_instant_of_its_fire,
            the_last_of_a_diamond_runs_once,
            parents_that_end_at_once_release_one_child,
            children_that_were_not_meant_are_skipped,
            a_late_result_releases_nothing_twice,
            a_skipped_run_that_ran_releases_its_children,
            a_run_may_end_with_its_children,
            a_failed_attempt_is_followed_by_another,
            one_batch_may_hold_two_results_of_a_run,
            a_batch_may_hold_a_late_report_and_the_next_end,
            results_that_arrive_twice_at_once_are_stored_once,
            text_is_kept_as_far_as_it_fits,
            orphans_are_adopted_by_one,
            an_unmarked_run_with_a_recorded_wait_was_not_sent,
            jobs_are_adopted_whole,
            the_latest_end_of_a_lease_counts,
            a_fenced_node_cannot_renew,
            a_fenced_lease_is_left_to_its_fencer,
            nodes_report_their_state,
            switches_stay_as_they_are_set,
            executors_are_switched_by_name,
            runs_in_hand_are_counted_by_executor,
            jobs_move_with_their_unsent_runs,
            jobs_carry_the_count_of_their_fires,
            jobs_of_the_dead_are_freed,
            nodes_are_forgotten,
            runs_are_counted_by_hour,
            batches_of_any_size_are_counted_once,
            failures_are_counted_by_message_and_day,
            a_message_names_the_jobs_that_had_it_most,
            a_message_of_many_jobs_names_some,
            a_weekly_report_is_written_once,
            points_add_up_to_the_runs,
            failing_jobs_are_those_whose_newest_runs_failed,
            activity_is_read_of_runs_and_schedule,
            drawings_read_whole_runs,
            counts_stay_with_a_job_that_moves,
            pages_of_runs_have_no_gaps,
            pages_keep_to_their_filters,
            runs_that_follow_are_found_by_their_parents,
            logs_are_kept_once,
            old_logs_are_removed_by_size_and_leave_a_line,
            a_failed_run_is_reported_once,
            a_skip_is_reported_where_its_job_asks_for_it,
            a_message_is_in_one_hand,
            no_namespace_waits_behind_the_messages_of_another,
            old_runs_are_removed_with_all_their_rows,
            a_broadcast_is_removed_as_a_whole,
            a_pass_is_begun_by_one,
            a_job_whose_run_has_ended_is_healed,
            a_completed_job_is_not_stuck,
            homeless_jobs_are_freed,
            planned_rows_are_those_of_the_schedule,
            executors_are_forgotten,
            declared_sets_are_as_old_as_first_seen,
            saved_filters_are_kept_by_name_and_bounded,
            observed_fires_are_kept_once_and_removed_by_age,
            a_pump_job_is_known_until_it_is_forgotten,
            items_change_hands_one_owner_at_a_time,
            items_are_changed_by_their_home_alone,
            many_items_are_dealt_at_once,
            a_group_that_yields_continues_as_its_next_attempt,
            a_users_cancel_replaces_the_planned_end_of_a_pump,
            a_keyed_call_is_made_once,
            keyed_calls_are_forgotten
        }
    };
}

/// Runs every check, one after the other.
pub async fn exercise(store: Arc<dyn Store>) {
    macro_rules! run_all {
        ($($name:ident),+) => { $( Box::pin($name(store.as_ref())).await; )+ };
    }
    for_each_conformance_check!(run_all);
}

const DEFAULT: NamespaceId = NamespaceId::new(1);
const LEASE: Duration = Duration::from_secs(60);

/// A number that no other check uses.
fn next_id() -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(1_000_000_000_000_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn name(word: &str) -> String {
    format!("{word}-{}", next_id())
}

async fn join(store: &dyn Store) -> LeaseToken {
    let request = JoinRequest {
        name: name("node"),
        lease: LEASE,
        advertise_url: None,
        server_version: "0.2.0".to_owned(),
        may_take_over: false,
        held: None,
        waited_for_takeover: Duration::ZERO,
    };
    match store.join(&request).await.unwrap() {
        Join::Joined { token, .. } => token,
        refused @ (Join::Living { .. } | Join::BeingTakenOver) => unreachable!("{refused:?}"),
    }
}

fn spec(name: &str, change: serde_json::Value) -> JobSpec {
    let mut document = serde_json::json!({"name": name, "app": "conformance", "handler": "h"});
    if let (Some(document), serde_json::Value::Object(change)) = (document.as_object_mut(), change) {
        document.extend(change);
    }
    serde_json::from_value(document).unwrap()
}

fn compile(spec: &JobSpec) -> Job {
    spec.compile().unwrap()
}

async fn app(store: &dyn Store) -> AppId {
    let now = store.now().await.unwrap();
    store.ensure_app(AppId::new(next_id()), DEFAULT, "conformance", now).await.unwrap().id
}

/// A job that fires each second from `next_fire_at` on.
async fn job(store: &dyn Store, next_fire_at: Option<Timestamp>) -> JobRecord {
    let change = serde_json::json!({"schedule": {"every": "1s"}});
    job_with(store, spec(&name("job"), change), next_fire_at).await
}

async fn job_with(store: &dyn Store, spec: JobSpec, next_fire_at: Option<Timestamp>) -> JobRecord {
    let now = store.now().await.unwrap();
    let new = NewJob {
        id: JobId::new(next_id()),
        namespace: DEFAULT,
        app: app(store).await,
        spec,
        anchor: now.ceil_second(),
        next_fire_at,
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    };
    expect_created(store.create_job(new).await.unwrap())
}

#[track_caller]
fn expect_created(created: JobCreated) -> JobRecord {
    match created {
        JobCreated::Saved(record) => *record,
        other => unreachable!("not created: {other:?}"),
    }
}

/// A run that the lease `token` owns, as if that lease had claimed it.
fn run(job: &JobRecord, token: LeaseToken, fire_at: Timestamp) -> Run {
    let run_job = RunJob { namespace: job.namespace, job: job.id, job_version: job.version, app: job.app };
    Run::new(RunId::new(next_id()), run_job, fire_at, Trigger::Interval, (token.node, token.epoch))
}

fn requested_run(job: &JobRecord, token: LeaseToken, now: Timestamp) -> Run {
    let run = run(job, token, now);
    Run { cause: run.id.get(), trigger: Trigger::Api, ..run }
}

/// Gives this node a stream to an executor of the jobs' app, so that due runs may have been sent.
async fn open_stream(store: &dyn Store, token: LeaseToken) {
    let executor = executor(app(store).await, store.now().await.unwrap());
    assert!(store.open_session(token, &executor, None).await.unwrap().is_some());
}

/// The end of a stream of a node whose clock did not step back.
fn stream_end(opened_at: Timestamp) -> StreamEnd {
    StreamEnd { opened_at, reached: Timestamp::EPOCH }
}

async fn due_job(store: &dyn Store, job: &JobRecord, homes: &[NodeId]) -> Option<DueJob> {
    let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 10_000 };
    store.due_jobs(homes, range).await.unwrap().into_iter().find(|due| due.job == job.id)
}

/// Claims a job for this lease, with these runs.
async fn claim(store: &dyn Store, token: LeaseToken, job: &JobRecord, runs: Vec<Run>) -> ClaimResult {
    let due = due_job(store, job, &[NodeId::new(0), token.node]).await.unwrap();
    let (recent_fires, next_fire_at) = (due.recent_fires, Some(due.next_fire_at + Duration::from_secs(60)));
    let claim = ClaimJob { recent_fires, expected_row: due, held_from: None, next_fire_at, runs, awaited_run: None };
    store.claim(token, &[claim]).await.unwrap()
}

/// A pending run, owned by `token`, of a job that has no other run.
async fn pending_run(store: &dyn Store, token: LeaseToken) -> Run {
    let now = store.now().await.unwrap();
    let job = job(store, Some(now.ceil_second())).await;
    let run = run(&job, token, now.ceil_second());
    assert!(claim(store, token, &job, vec![run.clone()]).await.existing.is_empty());
    run
}

async fn read_run(store: &dyn Store, id: RunId) -> Run {
    store.runs(&[id]).await.unwrap().pop().unwrap()
}

const POLICY: NextStepPolicy = NextStepPolicy {
    retry_max: 0,
    backoff: Duration::from_secs(10),
    backoff_max: Duration::from_secs(10),
    at_least_once: true,
    has_fixed_delay: false,
    awaits_children: false,
    is_pump: false,
};

fn finish(run: &Run, outcome: Outcome) -> AttemptEnd {
    AttemptEnd {
        run: run.id,
        job: run.job,
        attempt: run.attempt,
        outcome,
        policy: POLICY,
        executor: Some((ExecutorId::new(77), "executor-a".to_owned())),
        started_at: Some(run.due_at + Duration::from_millis(5)),
        finished_at: run.due_at + Duration::from_millis(105),
        message: None,
        result: None,
        trace: Some("{\"route\":\"first\",\"of\":[\"executor-a\"]}".to_owned()),
        detail: None,
        jitter: 0.5,
        owner: None,
        is_unsent: false,
        is_unfinished: false,
    }
}

fn finisher(token: LeaseToken) -> Finisher<'static> {
    static IDS: IdGen = IdGen::new(1023);
    Finisher { token, ids: &IDS }
}

/// Stores ends that release no run, and returns their outcomes.
async fn finish_all(store: &dyn Store, batch: &[AttemptEnd]) -> Vec<EndOutcome> {
    let no_node = LeaseToken { node: NodeId::new(0), epoch: 0 };
    let ends = store.finish(finisher(no_node), batch).await.unwrap();
    assert_eq!(ends.released_runs, []);
    ends.outcomes
}

async fn finish_one(store: &dyn Store, attempt_end: AttemptEnd) -> EndOutcome {
    let [outcome]: [EndOutcome; 1] = finish_all(store, &[attempt_end]).await.try_into().unwrap();
    outcome
}

fn verdict(status: RunStatus) -> EndOutcome {
    EndOutcome::Stored(rondel_core::outcome::NextStep::Verdict { status, reason: None }, None)
}

const FAILED: Outcome = Outcome::Failed { retryable: true };
