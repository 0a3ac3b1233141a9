//! Alert rules, their incidents and silences, and the runs that rules have not evaluated yet.
//!
//! The transaction that stores the verdict of a failed or skipped run also inserts an event, if an enabled rule of the run's namespace
//! evaluates events. The decisions of rules are written in one transaction: incidents, messages, the evaluated events, and when each rule is
//! evaluated next. The transaction names the version of the namespace's alerts that the decisions are based on; if that version is
//! outdated, nothing is written.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::alert::expect::{ExpectKind, Expectations};
use rondel_core::alert::{Incident, IncidentState, OpenIncidents, RuleSpec, SilenceSpec, SubjectKind, judge};
use rondel_core::maintenance::MaintenanceWindow;
use rondel_core::{
    AlertRuleId, AppId, IncidentId, JobId, JobSpec, MaintenanceId, NamespaceId, Reason, RunId, RunStatus, SilenceId,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::channels::NewMessage;
use crate::error::Result;

/// Maximum number of rules of a namespace.
pub const RULE_COUNT_MAX: u32 = 100;
/// Maximum number of silences of a namespace that have not ended.
pub const SILENCE_COUNT_MAX: u32 = 200;
/// Maximum number of maintenance windows of a namespace that have not ended.
pub const MAINTENANCE_COUNT_MAX: u32 = 100;
/// Maximum number of maintenance windows of all namespaces together that have not ended.
pub const MAINTENANCE_TOTAL_MAX: u32 = 10_000;
/// Maximum number of rows that one call reads.
pub const PAGE_MAX: u32 = 500;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRecord {
    pub id: AlertRuleId,
    pub namespace: NamespaceId,
    /// The number of its definition, from 1. A save whose `If-Match` names another number is refused.
    pub version: i64,
    pub spec: RuleSpec,
    /// Name of the caller that saved it.
    pub author: String,
    pub created_at: Timestamp,
    /// When it was last saved.
    pub updated_at: Timestamp,
    /// When it is evaluated next; `None` for never.
    pub check_at: Option<Timestamp>,
    /// How far the current evaluation has come; `None` if none is in progress.
    pub progress: Option<RuleProgress>,
}

/// The progress of an evaluation of a rule through the jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleProgress {
    /// The instant that the evaluation is for.
    pub at: Timestamp,
    /// The name of the last job that was checked.
    pub after: String,
    /// The earliest instant at which one of the jobs checked so far must be checked again.
    pub next: Option<Timestamp>,
}

/// A rule to be saved, whether it exists or not.
#[derive(Clone, Copy, Debug)]
pub struct RuleChange<'a> {
    /// The id to use if the rule does not exist yet.
    pub id: AlertRuleId,
    pub namespace: NamespaceId,
    /// The version that the author saw, 0 for none; `None` to overwrite any version.
    pub expected_version: Option<i64>,
    /// The definition to save, validated; its name identifies the rule.
    pub spec: &'a RuleSpec,
    /// Name of the caller that saves it.
    pub author: &'a str,
    /// When it is evaluated next; `None` for never. Ignored if an evaluation is due and the rule still watches the same things, because
    /// that evaluation stays due.
    pub check_at: Option<Timestamp>,
    pub now: Timestamp,
}

/// When a rule that is being saved is evaluated next, and how far its current evaluation has come. `before` is the stored rule that the
/// change replaces. An evaluation that is due stays due if the rule still watches the same things, because no evaluation has judged the
/// passed deadline yet.
pub(crate) fn next_evaluation(
    before: Option<&RuleRecord>,
    change: &RuleChange<'_>,
) -> (Option<Timestamp>, Option<RuleProgress>) {
    let is_due = |rule: &&RuleRecord| {
        let is_still_watched =
            rule.spec.enabled && change.spec.enabled && judge::have_same_condition_and_scope(&rule.spec, change.spec);
        is_still_watched && rule.check_at.is_some_and(|at| at <= change.now)
    };
    match before.filter(is_due) {
        Some(rule) => (rule.check_at, rule.progress.clone()),
        None => (change.check_at, None),
    }
}

/// Outcome of saving a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleSaved {
    /// The rule is new.
    Created(Box<RuleRecord>),
    /// It has a new definition.
    Changed(Box<RuleRecord>),
    /// Another caller changed it first; its current version, 0 if it was deleted.
    Conflict(i64),
    /// The namespace has [`RULE_COUNT_MAX`] rules.
    Full,
    /// The rule names this channel, which does not exist.
    NoChannel(String),
}

/// Outcome of deleting a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleDeleted {
    Deleted,
    /// Another caller changed it first; its current version.
    Conflict(i64),
    /// There is no such rule.
    NotFound,
}

/// A run that failed or was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertEvent {
    pub run: RunId,
    pub app: AppId,
    pub job: JobId,
    /// Its verdict.
    pub status: RunStatus,
    /// The reason of the verdict.
    pub reason: Option<Reason>,
    /// Its planned instant.
    pub fire_at: Timestamp,
}

/// An incident with its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncidentRecord {
    pub incident: Incident,
    pub rule: AlertRuleId,
    /// The rule as it was when the incident last changed. It is stored as disabled if the rule no longer watched the subject when the
    /// incident ended.
    pub spec: RuleSpec,
}

impl IncidentRecord {
    /// Whether the incident has messages of its own. The incidents of a group share the messages of the group.
    pub(crate) const fn is_ungrouped(&self) -> bool {
        self.incident.group.is_none()
    }
}

/// Selects incidents, the newest first.
#[derive(Clone, Copy, Debug)]
pub struct IncidentQuery<'a> {
    pub namespace: NamespaceId,
    /// `Some(true)` for only open incidents, `Some(false)` for only resolved ones.
    pub is_open: Option<bool>,
    /// Only incidents about this job.
    pub job: Option<JobId>,
    /// Only incidents with ids below this one.
    pub before: Option<IncidentId>,
    /// Only incidents about the apps with these names, or about jobs of these apps: the apps that the caller may see.
    pub within: Option<&'a [String]>,
    /// Maximum number of incidents.
    pub limit: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilenceRecord {
    pub id: SilenceId,
    pub namespace: NamespaceId,
    /// The incidents that it matches.
    pub spec: SilenceSpec,
    /// Name of the caller that created it.
    pub author: String,
    /// The reason that the author gave.
    pub reason: String,
    pub created_at: Timestamp,
    pub ends_at: Timestamp,
}

/// The decisions of one evaluation of a namespace's rules.
#[derive(Clone, Debug)]
pub struct AlertWrite<'a> {
    pub namespace: NamespaceId,
    /// The version of the namespace's alerts that the decisions are based on.
    pub version: i64,
    /// Changed incidents, in their new state.
    pub incidents: &'a [IncidentRecord],
    /// Messages to send.
    pub messages: &'a [NewMessage],
    /// Events that every rule has evaluated.
    pub evaluated_events: &'a [RunId],
    /// When rules are evaluated next, and how far their current evaluations have come.
    pub checks: &'a [RuleCheck],
    /// When expectations of jobs are checked next.
    pub expect_checks: &'a [ExpectCheck],
    /// When open runs are next compared with the expectations of their jobs; `None` if that instant does not change.
    pub open_runs_check: Option<OpenRunsCheck>,
}

/// When an expectation of a job is checked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectCheck {
    pub job: JobId,
    pub kind: ExpectKind,
    /// `None` for never, and for a kind that is checked on open runs: all such kinds share one [`OpenRunsCheck`].
    pub at: Option<Timestamp>,
}

/// When open runs are next compared with the expectations of their jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRunsCheck {
    /// `None` if no job expects anything of open runs.
    pub at: Option<Timestamp>,
}

/// The expectations that jobs of a namespace have of open runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenRunExpectations {
    /// When open runs are compared with them next.
    pub at: Option<Timestamp>,
    /// The kinds that at least one job expects; empty if open runs are not compared at all.
    pub kinds: Vec<ExpectKind>,
}

/// When the expectations of a job that is saved now are first checked. `before` is the job's previous definition with its checks; `None`
/// for a new job.
pub(crate) fn first_checks(
    job: JobId,
    (before, spec): (Option<(&JobSpec, &[ExpectCheck])>, &JobSpec),
    now: Timestamp,
) -> Vec<ExpectCheck> {
    let Some(expectations) = spec.expectations() else { return Vec::new() };
    let old_expectations = before.and_then(|(spec, expect_checks)| Some((spec.expectations()?, expect_checks)));
    // A check that is due stays due if its condition is unchanged, because no evaluation has judged the passed deadline yet.
    let due_check_at = |kind: ExpectKind| {
        let (_, expect_checks) = old_expectations
            .as_ref()
            .filter(|(old_expectations, _)| old_expectations.condition(kind) == expectations.condition(kind))?;
        expect_checks.iter().find(|check| check.kind == kind)?.at.filter(|at| *at <= now)
    };
    let check_at =
        |kind: ExpectKind| due_check_at(kind).or_else(|| expectations.first_check_at(kind, now, before.is_none()));
    expectations.kinds().map(|kind| ExpectCheck { job, kind, at: check_at(kind) }).collect()
}

/// When a rule is evaluated next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCheck {
    pub rule: AlertRuleId,
    /// `None` for never.
    pub at: Option<Timestamp>,
    /// How far the current evaluation has come; `None` if none is in progress.
    pub progress: Option<RuleProgress>,
}

/// A job as rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedJob {
    pub id: JobId,
    pub name: String,
    pub app: AppId,
    pub app_name: String,
    pub labels: BTreeMap<String, String>,
    pub created_at: Timestamp,
    /// The planned instant of the newest run that is known to have succeeded. A later success is perhaps not counted yet.
    pub succeeded_at: Option<Timestamp>,
    /// The expectations in its definition.
    pub expect: Option<Expectations>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceRecord {
    pub window: MaintenanceWindow,
    pub app_name: Option<String>,
    /// The reason that the author gave.
    pub reason: String,
    /// Name of the caller that planned it.
    pub author: String,
    pub created_at: Timestamp,
}

/// Rules, incidents, silences, maintenance windows, and the data that rules evaluate.
#[async_trait]
pub trait Alerts {
    /// Every rule of a namespace, sorted by name.
    async fn alert_rules(&self, namespace: NamespaceId) -> Result<Vec<RuleRecord>>;

    /// Saves a rule. If the rule now watches something else, its open incidents become due, so that the next evaluation resolves them.
    async fn save_alert_rule(&self, change: RuleChange<'_>) -> Result<RuleSaved>;

    /// Deletes a rule if it has the expected version; `None` means any. Its open incidents are resolved without a message.
    async fn delete_alert_rule(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
        now: Timestamp,
    ) -> Result<RuleDeleted>;

    /// The namespaces with something to evaluate: an event, or a rule, an incident or an expectation that is due.
    async fn namespaces_with_due_alerts(&self, now: Timestamp) -> Result<Vec<NamespaceId>>;

    /// The version of a namespace's alerts, on which a decision is based; `None` if the namespace never had a rule.
    async fn alert_version(&self, namespace: NamespaceId) -> Result<Option<i64>>;

    /// Events that rules have not evaluated yet, the oldest runs first, at most `limit`.
    async fn alert_events(&self, namespace: NamespaceId, limit: u32) -> Result<Vec<AlertEvent>>;

    /// The open incidents of a rule about these subjects, and the rule's open group. Also the number of open incidents outside the group,
    /// the subjects of those that were not reported, the number inside it, and which of the subjects the group has counted. The rule may
    /// belong to an expectation.
    async fn open_incidents(
        &self,
        namespace: NamespaceId,
        rule: AlertRuleId,
        subjects: &[(SubjectKind, i64)],
    ) -> Result<OpenIncidents>;

    /// The open incidents of a rule that a user saved, except groups, at most `limit`.
    async fn open_incidents_of_rule(&self, rule: AlertRuleId, limit: u32) -> Result<Vec<Incident>>;

    /// Incidents that are due, the longest due first, at most `limit`.
    async fn due_incidents(&self, namespace: NamespaceId, now: Timestamp, limit: u32) -> Result<Vec<IncidentRecord>>;

    /// Expectations of jobs that are due, the longest due first, at most `limit`.
    async fn due_expectations(&self, namespace: NamespaceId, now: Timestamp, limit: u32) -> Result<Vec<ExpectCheck>>;

    /// The checks of the expectations of these jobs.
    async fn expect_checks_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<ExpectCheck>>;

    /// The expectations that jobs of a namespace have of open runs.
    async fn open_run_expectations(&self, namespace: NamespaceId) -> Result<OpenRunExpectations>;

    /// Writes the decisions; `false`, with nothing written, if another decision or change came first.
    async fn write_alerts(&self, write: &AlertWrite<'_>) -> Result<bool>;

    /// Incidents, the newest first.
    async fn incidents(&self, query: IncidentQuery<'_>) -> Result<Vec<IncidentRecord>>;

    /// Incidents that no group reports, the newest first.
    async fn ungrouped_incidents(&self, query: IncidentQuery<'_>) -> Result<Vec<IncidentRecord>>;

    /// The incidents that a group reports, the newest first, at most `limit`.
    async fn incidents_of_group(&self, group: IncidentId, limit: u32) -> Result<Vec<IncidentRecord>>;

    async fn incident(&self, namespace: NamespaceId, id: IncidentId) -> Result<Option<IncidentRecord>>;

    /// Acknowledges an open incident; `false` if it is not open, or is acknowledged already.
    async fn acknowledge_incident(
        &self,
        namespace: NamespaceId,
        id: IncidentId,
        by: &str,
        now: Timestamp,
    ) -> Result<bool>;

    /// Silences of a namespace that end after an instant, sorted by their end.
    async fn silences(&self, namespace: NamespaceId, after: Timestamp) -> Result<Vec<SilenceRecord>>;

    /// Adds a silence. A repeated call with the same id adds no second one. `false` if the namespace already has [`SILENCE_COUNT_MAX`]
    /// silences that have not ended.
    async fn add_silence(&self, silence: &SilenceRecord) -> Result<bool>;

    /// Ends a silence now; `false` if there is no such silence, or it has ended.
    async fn end_silence(&self, namespace: NamespaceId, id: SilenceId, now: Timestamp) -> Result<bool>;

    /// The maintenance windows of one namespace, or of all, that end after an instant, sorted by their end.
    async fn maintenance(&self, namespace: Option<NamespaceId>, after: Timestamp) -> Result<Vec<MaintenanceRecord>>;

    /// Adds a maintenance window. A repeated call with the same id adds no second one. `false` if the namespace already has
    /// [`MAINTENANCE_COUNT_MAX`] windows that have not ended, or all namespaces together have [`MAINTENANCE_TOTAL_MAX`].
    async fn add_maintenance(&self, record: &MaintenanceRecord) -> Result<bool>;

    /// Ends a maintenance window now. A window that has not begun becomes empty; a window that has ended stays unchanged. `false` if there
    /// is no such window.
    async fn end_maintenance(&self, namespace: NamespaceId, id: MaintenanceId, now: Timestamp) -> Result<bool>;

    /// Removes incidents that were resolved, and silences and maintenance windows that ended, before an instant; at most `limit` of each.
    /// Returns how many were removed.
    async fn forget_incidents(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// The jobs of a namespace or an app, sorted by name, after `after_name`, at most `limit`.
    async fn watched_jobs(
        &self,
        namespace: NamespaceId,
        app: Option<AppId>,
        after_name: &str,
        limit: u32,
    ) -> Result<Vec<WatchedJob>>;

    /// The jobs with these ids, except deleted ones.
    async fn watched_jobs_by_id(&self, jobs: &[JobId]) -> Result<Vec<WatchedJob>>;

    /// Acknowledges these failed runs of a namespace. Returns how many of them had not been acknowledged before.
    async fn acknowledge_dead_letters(&self, namespace: NamespaceId, runs: &[RunId]) -> Result<u64>;

    /// Number of dead letters of a namespace, counted up to `limit`. A dead letter is a run that failed for good, was not acknowledged, and
    /// whose job has not succeeded since.
    async fn dead_letter_count(&self, namespace: NamespaceId, limit: u32) -> Result<u64>;

    /// For each of these jobs, the planned instant of its newest successful run, read from the ledger. Only runs planned from `since` on
    /// count. Shards do not count, and groups of a pump that moved to another executor do not count either. Jobs without such a run are
    /// left out.
    async fn newest_successes_since(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<(JobId, Timestamp)>>;
}

impl IncidentQuery<'_> {
    /// Whether it selects this incident. Checks only the state and the app, not the namespace, the job, the ids or the limit.
    pub(crate) fn admits(&self, record: &IncidentRecord) -> bool {
        let (subject, is_open) = (&record.incident.subject, record.incident.state == IncidentState::Firing);
        let app_of_subject = (subject.kind == SubjectKind::App).then_some(&subject.name);
        let app = subject.app.as_ref().or(app_of_subject);
        self.is_open.is_none_or(|must_be_open| must_be_open == is_open)
            && self.within.is_none_or(|apps| app.is_some_and(|app| apps.contains(app)))
    }
}
