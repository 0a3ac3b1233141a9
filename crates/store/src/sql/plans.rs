//! Statements that run each second, or over a table that grows, must be answered by an index. SQLite explains how it would
//! answer them; the others have the same indexes.

use sqlx::{AssertSqlSafe, Row};

use super::dialect::Dialect;
use super::query::Statement;
use super::{SqlStore, StoreConfig};
use super::{
    access, activity, alerts, calendars, catalog, changes, channel_users, channels, declarations, executors, heal,
    incident_messages, logs, outbox, pumps, reports, request_keys, rollups, run, saved_filters, scripts, shadow, xxl,
};
use crate::DatabaseUrl;

async fn check_plan(store: &SqlStore, statement: &Statement, index: &str) {
    let text = format!("EXPLAIN QUERY PLAN {}", Dialect::Sqlite.render(statement, 2));
    let mut query = sqlx::query(AssertSqlSafe(text.clone()));
    for _ in 0..text.matches('?').count() {
        query = query.bind(1_i64);
    }
    let rows = query.fetch_all(&store.pools.current().read).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.try_get::<String, _>(3).unwrap()).collect();
    let scans = plan.iter().any(|step| step.starts_with("SCAN run ") || step == "SCAN run" || step == "SCAN job_due");
    let searches = plan.iter().any(|step| step.contains("SEARCH") && step.contains(index));
    // A partial index that holds only the wanted rows is read as a whole, without SEARCH.
    let searches = searches || plan.iter().any(|step| step.ends_with(&format!(" USING INDEX {index}")));
    assert!(!scans && searches, "{} does not use {index}: {plan:#?}", statement.name);
}

#[tokio::test]
async fn what_runs_often_is_answered_by_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("plans.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    for (statement, index) in [
        (&run::claim::READ_DUE, "job_due_next (home=? AND next_fire_at_ms>? AND next_fire_at_ms<?)"),
        (&run::dispatch::LOCK_WAITING, "run_open (node_id=? AND node_epoch=? AND status=? AND due_at_ms<?)"),
        (&run::cancel::READ_OPEN, "run_open_job (node_id=? AND status=? AND job_id=? AND node_epoch=?)"),
        (&run::dispatch::READ_OWN_PENDING, "run_open (node_id=? AND node_epoch=? AND status=? AND due_at_ms>?)"),
        (&run::cancel::READ_CANCELS, "run USING INTEGER PRIMARY KEY"),
        (&run::cancel::READ_DROPS, "run USING INTEGER PRIMARY KEY"),
        (&run::cancel::READ_CANCELS_ELSEWHERE, "run USING INTEGER PRIMARY KEY"),
        (&pumps::READ_PUMP_ROOTS, "(job_id=?)"),
        (&pumps::READ_OPEN_PUMP_ROOTS, "run_open_job (node_id=? AND status=? AND job_id=?)"),
        (&run::cancel::READ_OPEN_OF_FIRE, "(job_id=? AND fire_at_ms=?)"),
        (
            &run::read::READ_OPEN_KEYS,
            "run_open (node_id=? AND node_epoch=? AND status=? AND due_at_ms>? AND due_at_ms<?)",
        ),
        (&run::adopt::FIND_ORPHAN, "run_open (node_id=? AND node_epoch<?)"),
        (&run::adopt::COUNT_ORPHANS, "run_open_job (node_id=? AND status=?)"),
        (&run::open::READ_OPEN_OF_JOBS, "run_open_job (node_id=? AND status=? AND job_id=? AND node_epoch<?)"),
        (&run::open::READ_JOBS_WITH_OPEN, "run_open_job (node_id=? AND status=? AND job_id=? AND node_epoch<?)"),
        (&run::delay::LOCK_FOLLOWED, "INTEGER PRIMARY KEY"),
        (&run::finish::LOCK_RUNS, "INTEGER PRIMARY KEY"),
        (&run::relay::READ_REQUESTS, "fence_request_asked (asked_at_ms>?)"),
        (&run::broadcast::READ_SHARDS, "(job_id=? AND fire_at_ms=? AND cause=? AND shard_index>?)"),
        (&run::follow::FIND_PARENTS, "job_parent_parent (parent_id=?)"),
        (&run::follow::LOCK_ROOTS, "INTEGER PRIMARY KEY"),
        (&run::follow::READ_MEMBERS, "(job_id=? AND fire_at_ms=? AND cause=? AND shard_index=?)"),
        (&catalog::change::LOCK_FUTURE, "(job_id=? AND fire_at_ms>?)"),
        (&calendars::READ_JOBS_BEHIND, "job_calendar (calendar_id=? AND calendar_version<?)"),
        (&calendars::LIST_USERS, "job_calendar (calendar_id=?)"),
        (&scripts::LIST_SCRIPT_USERS, "script_use_name (namespace_id=? AND script_name=?)"),
        (&channel_users::LIST_EXPECTING, "job_expect_kind (namespace_id=? AND kind=?"),
        (&incident_messages::LIST_MESSAGES, "(incident_id=?)"),
        (&incident_messages::READ_LAST_ERROR, "alert_delivery_channel (channel_id=? AND id>? AND id<?)"),
        (&channel_users::LIST_EXPECTING, "PRIMARY KEY (job_id=? AND version=?)"),
        (&catalog::read::READ_VERSIONS, "PRIMARY KEY (job_id=? AND version>?)"),
        (&run::read::COUNT_HELD, "run_held (namespace_id=?)"),
        (&run::read::LIST_HELD, "run_held (namespace_id=? AND app_id=? AND executor=?)"),
        (&run::read::READ_CHECKS, "run USING INTEGER PRIMARY KEY"),
        (&run::read::READ_CHECKS, "job_due USING INTEGER PRIMARY KEY"),
        (
            &access::accounts::LOCK_ADMINS,
            "role_grant_place (namespace_id=? AND role=? AND app_id=? AND subject_kind=?)",
        ),
        (&access::accounts::READ_GRANTS, "PRIMARY KEY (subject_kind=? AND subject_id=?)"),
        (&access::sign_ins::LIST_SESSIONS, "web_session_account (account_id=?)"),
        (&access::lineage::DELETE_BEGUN[0], "web_session_token (token_id=?)"),
        (&access::lineage::DELETE_BEGUN[1], "web_session_minted (minted_by=?)"),
        (&access::lineage::LOCK_MINTED, "api_token_minted (minted_by=?)"),
        (&access::lineage::LOCK_SERIES, "api_token_series (series_id=?)"),
        (&access::tokens::COUNT_LIVING_OF_LINE, "api_token_line (line_id=?)"),
        (&access::tokens::LIST_TOKENS_OF, "api_token_owner (owner_id=? AND id<?)"),
        (&access::audit::LIST_AUDIT_OF_ACTOR, "audit_actor (actor=?"),
        (&access::audit::LIST_AUDIT_OF_OBJECT, "audit_object (object=?"),
        (&access::audit::LIST_AUDIT_OF_NAMESPACE, "audit_namespace (namespace=?"),
        (&run::read::LIST_OF_APPS, "run_list (namespace_id=? AND id<?)"),
        (&run::read::LIST_ALL, "run_list (namespace_id=? AND id<?)"),
        (&run::read::LIST_BY_STATUS, "run_list (namespace_id=? AND id<?)"),
        (&run::read::LIST_OPEN_OF_APPS, "run_open_list (namespace_id=? AND id<?)"),
        (&run::read::LIST_TROUBLE_OF_APPS, "run_trouble (namespace_id=? AND id<?)"),
        (&run::read::LIST_OPEN, "run_open_list (namespace_id=? AND id<?)"),
        (&run::search::SEARCH_ALL[0], "run_list (namespace_id=? AND id>? AND id<?)"),
        (&run::search::SEARCH_ALL[1], "run_list (namespace_id=? AND id>? AND id<?)"),
        (&run::search::SEARCH_ALL[2], "run_list (namespace_id=? AND id>? AND id<?)"),
        (&run::search::SEARCH_OPEN[0], "run_open_list (namespace_id=? AND id>? AND id<?)"),
        (&run::search::SEARCH_TROUBLE[0], "run_trouble (namespace_id=? AND id>? AND id<?)"),
        (&run::search::SEARCH_TROUBLE[4], "run_trouble (namespace_id=? AND id>? AND id<?)"),
        (&run::search::SEARCH_DEAD[0], "dead_letter_list (namespace_id=?)"),
        (&run::search::END_OF_DEAD[0], "dead_letter_list (namespace_id=?)"),
        (&alerts::dead::DELETE_OVERTAKEN, "dead_letter_job (job_id=?"),
        (&alerts::dead::COUNT_DEAD, "dead_letter_list (namespace_id=?"),
        (&run::search::SEARCH_OF_JOB[0], "(job_id=? AND fire_at_ms>? AND fire_at_ms<?)"),
        (&run::search::END_OF_ALL[0], "run_list (namespace_id=? AND id<?)"),
        (&run::search::END_OF_JOB, "(job_id=? AND fire_at_ms<?)"),
        (&run::read::LIST_TROUBLE, "run_trouble (namespace_id=? AND id<?)"),
        (&run::read::LIST_OF_JOB, "(job_id=? AND fire_at_ms<?)"),
        (&run::read::LIST_OF_JOB_BY_STATUS, "(job_id=? AND fire_at_ms<?)"),
        (&run::read::LIST_SHARDS, "(job_id=? AND fire_at_ms=? AND cause=? AND shard_index>?)"),
        (&run::read::LIST_BELOW, "run_parent (parent_id=?)"),
        (&changes::READ_RUNS_AFTER, "INTEGER PRIMARY KEY (rowid>?)"),
        (&changes::READ_RUNS_NOW, "INTEGER PRIMARY KEY"),
        (&changes::READ_RUNS_OF_LEASE, "run_open (node_id=? AND node_epoch=? AND status=?)"),
        (&changes::READ_JOBS_SAVED, "job_saved (updated_at_ms>?)"),
        (&declarations::READ_MARKS, "declared_set_seen"),
        (&shadow::LIST_FIRES, "shadow_fire_job (job_id=? AND started_at_ms>? AND started_at_ms<?)"),
        (&shadow::FIRST_FIRE, "PRIMARY KEY (namespace_id=? AND source=?)"),
        (&shadow::LAST_FIRE, "PRIMARY KEY (namespace_id=? AND source=?)"),
        (&shadow::FIND_OLD_FIRES, "shadow_fire_age (started_at_ms<?)"),
        (&saved_filters::READ_FILTERS, "(owner_id=?)"),
        (&saved_filters::DELETE_FILTER, "(owner_id=? AND page=? AND name=?)"),
        (&xxl::READ_EXECUTOR, "(app_id=? AND address=?)"),
        (&xxl::LIST_EXECUTORS, "xxl_executor_seen (last_seen_at_ms>?)"),
        (&xxl::LIST_FIXED, "xxl_executor_by_hand (by_hand_at_ms>?)"),
        (&xxl::LIST_FIXED_OF, "(app_id=?)"),
        (&xxl::READ_UNSETTLED, "xxl_run_unsettled (executor_id=?)"),
        (&xxl::LIST_REPORTED, "xxl_executor_seen (last_seen_at_ms<?)"),
        (&xxl::LIST_REPORTED, "xxl_run_unsettled (executor_id=?)"),
        (&xxl::FIND_OLD_RUNS, "xxl_run_settled (reported_at_ms<?)"),
        (&xxl::FIND_LEFT_RUNS, "xxl_run_unsettled"),
        (&xxl::FIND_OLD_EXECUTORS, "xxl_executor_seen (last_seen_at_ms<?)"),
        (&xxl::FIND_OLD_EXECUTORS, "xxl_run_unsettled (executor_id=?)"),
        (&saved_filters::DELETE_FILTERS_OF_OWNER, "(owner_id=?)"),
        (&saved_filters::DELETE_ORPHANED_FILTERS, "api_token_line (line_id=?)"),
        (&request_keys::FIND_OLD_CALL, "request_key_began (began_at_ms<?)"),
        (&outbox::FIND_ANY_OUTBOX, "outbox_due (due_at_ms<?)"),
        (&outbox::FIND_DUE_NAMESPACES, "COVERING INDEX outbox_turn (namespace_id=?)"),
        (&outbox::FIND_DUE_OUTBOX, "outbox_turn (namespace_id=? AND due_at_ms<?)"),
        (&channels::FIND_ANY_MESSAGE, "alert_message_due (state=? AND next_try_at_ms<?)"),
        (&channels::FIND_DUE_CHANNELS, "COVERING INDEX alert_message_turn (channel_id=? AND state=?)"),
        (&channels::READ_DUE_MESSAGES, "alert_message_turn (channel_id=? AND state=? AND next_try_at_ms<?)"),
        (&channels::LIST_DELIVERIES, "alert_delivery_channel (channel_id=? AND id<?)"),
        (&alerts::FIND_DUE_SPACES, "alert_event_turn (namespace_id=?)"),
        (&alerts::FIND_DUE_SPACES, "alert_rule_check (namespace_id=? AND check_at_ms<?)"),
        (&alerts::FIND_DUE_SPACES, "incident_act (namespace_id=? AND act_at_ms<?)"),
        (&alerts::FIND_DUE_SPACES, "job_expect_look (namespace_id=? AND look_at_ms<?)"),
        (&alerts::expects::LIST_DUE_EXPECTS, "job_expect_look (namespace_id=? AND look_at_ms<?)"),
        (&alerts::maintenance::LIST_ALL, "maintenance_end (ends_at_ms>?)"),
        (&alerts::maintenance::COUNT_OPEN, "maintenance_end (ends_at_ms>?)"),
        (&alerts::maintenance::FIND_OLD, "maintenance_end (ends_at_ms<?)"),
        (&alerts::maintenance::LIST_OF, "maintenance_list (namespace_id=? AND ends_at_ms>?)"),
        (&alerts::expects::FIND_EXPECT, "job_expect_kind (namespace_id=? AND kind=?)"),
        (&alerts::incidents::READ_OPEN, "(rule_id=? AND subject_kind=? AND subject_id=?"),
        (&alerts::incidents::LIST_DUE, "incident_act (namespace_id=? AND act_at_ms<?)"),
        (&alerts::incidents::LIST_ALL, "incident_list (namespace_id=? AND id<?)"),
        (&alerts::incidents::LIST_OPEN, "incident_open (namespace_id=? AND is_open=? AND id<?)"),
        (&alerts::incidents::LIST_OF_GROUP, "incident_group (group_id=?)"),
        (&logs::READ_CHUNK_SIZES, "(run_id=? AND attempt=? AND sequence>?)"),
        (&logs::READ_LOG_SIZES, "COVERING INDEX run_log_size (namespace_id=? AND run_id<?)"),
        (&logs::READ_LOGGED_RUNS, "COVERING INDEX run_log_size (namespace_id=? AND run_id>? AND run_id<?)"),
        (&run::read::READ_NEXT_OF_JOB, "(job_id=? AND fire_at_ms>?)"),
        (&run::read::LIST_PLANNED, "(job_id=? AND fire_at_ms>? AND fire_at_ms<?)"),
        (&run::read::READ_PLANNED_BEFORE, "(job_id=? AND fire_at_ms<?)"),
        (&rollups::READ_POINTS, "(owner_id=? AND kind=? AND step_ms=? AND at_ms>? AND at_ms<?)"),
        (&rollups::READ_VERDICTS, "(owner_id=? AND kind=? AND step_ms=? AND at_ms>? AND at_ms<?)"),
        (&rollups::READ_SUMMED_VERDICTS, "(owner_id=? AND kind=? AND step_ms=? AND at_ms>? AND at_ms<?)"),
        (&rollups::READ_OLD_POINTS, "stat_point_age (kind=? AND step_ms=? AND at_ms<?)"),
        (&reports::READ_FAILURES, "failure_stat_namespace (namespace_id=? AND day_at_ms>? AND day_at_ms<?)"),
        (&reports::READ_FAILURES_OF_JOBS, "(job_id=? AND day_at_ms>? AND day_at_ms<?)"),
        (&reports::READ_FAILING_WITH, "failure_stat_namespace (namespace_id=? AND day_at_ms>? AND day_at_ms<?)"),
        (&reports::READ_FAILING_WITH_OF_JOBS, "(job_id=? AND day_at_ms>? AND day_at_ms<?)"),
        (&reports::READ_OLD_FAILURES, "failure_stat_day (day_at_ms<?)"),
        (&reports::FIND_DUE, "report_schedule_next (next_at_ms<?)"),
        (&rollups::READ_FAILING, "job_pulse_failing (namespace_id=? AND streak_count>?)"),
        (&rollups::READ_TROUBLED, "run_trouble (namespace_id=? AND id>?)"),
        (&rollups::READ_MARKS, "(job_id=? AND fire_at_ms>? AND fire_at_ms<?)"),
        (&rollups::READ_MARKS_OF_ALL, "run_list (namespace_id=? AND id>? AND id<?)"),
        (&rollups::READ_OPEN_MARKS, "run_open_job (node_id=? AND status=?)"),
        (&rollups::READ_OPEN_JOBS, "run_open (node_id=? AND node_epoch=? AND status=? AND due_at_ms<?)"),
        (&rollups::READ_LEFT_OPEN_JOBS, "run_open (node_id=? AND node_epoch<?)"),
        (&activity::READ_ACTIVITY, "run_open_job (node_id=? AND status=? AND job_id=?)"),
        (&activity::READ_ACTIVITY, "run USING INDEX sqlite_autoindex_run_1 (job_id=?)"),
        (&activity::READ_ACTIVITY, "job_due USING INTEGER PRIMARY KEY"),
        (&run::r#move::READ_HOMES, "job_due USING INTEGER PRIMARY KEY"),
        (&activity::READ_ACTIVITY, "job_pulse USING INTEGER PRIMARY KEY"),
        (&rollups::READ_COMING, "job_due_next (home=? AND next_fire_at_ms<?)"),
        (&heal::READ_STUCK, "job_due_stuck"),
        (&rollups::READ_IDLE, "job_due_idle"),
        (&heal::READ_FOLLOWED, "job_due_follows (follows_run_id>?)"),
        (&heal::NEXT_HOME, "job_due_next (home>?)"),
        (&heal::READ_HOMELESS, "job_due_next (home=?"),
        (&executors::READ_SESSIONS, "executor_session_seen"),
        (&executors::READ_ENDED_SESSIONS, "executor_session_ended"),
        (&executors::READ_OPEN_SESSIONS, "executor_session_ended (ended_at_ms=? AND node_id=?)"),
        (&executors::READ_EXECUTORS, "executor_session_seen"),
    ] {
        check_plan(&store, statement, index).await;
    }
    store.close().await;
}
