//! Changes of rules, incidents and silences by callers.

use std::time::Duration;

use rondel_core::alert::deadline::Deadline;
use rondel_core::alert::expect;
use rondel_core::alert::judge::{self, EndedRun};
use rondel_core::alert::{
    Condition, ConditionKind, ConditionState, Incident, Observation, RuleSpec, Scope, SilenceSpec, Subject,
};
use rondel_core::words::counted;
use rondel_core::{
    AlertRuleId, FieldError, IdGen, IncidentId, JobId, NamespaceId, Reason, RunId, RunStatus, SilenceId, Timestamp,
    name,
};
use rondel_store::StoreError;
use rondel_store::alerts::{
    RULE_COUNT_MAX, RuleChange, RuleDeleted, RuleRecord, RuleSaved, SILENCE_COUNT_MAX, SilenceRecord, WatchedJob,
};

use super::warnings::{rule_warnings, scope_warning};
use super::{facts, look, states};
use crate::jobs::missing_channel_error;
use crate::node::Node;
use crate::store_once::store_once;

/// The longest silence.
const SILENCE_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
/// Maximum length of the reason for a silence, in characters.
const REASON_LEN_MAX: usize = 1_000;
/// How many times the server tries to store an acknowledgement together with its message. A try fails if another decision of the namespace
/// is stored first.
const ACKNOWLEDGE_TRIES: u32 = 5;
/// Maximum number of pages of jobs that a dry run checks.
const DRY_RUN_PAGES_MAX: u32 = 4;
/// Maximum number of jobs with failed or skipped runs that a dry run evaluates, all in the scope of its rule.
const DRY_RUN_JOBS_MAX: u32 = 100;
/// Maximum number of subjects that a dry run names.
const NAMED_SUBJECTS_MAX: usize = 20;
/// How far back a dry run looks for failed and skipped runs.
const UNSUCCESSFUL_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of failed or skipped runs that a dry run reads.
const UNSUCCESSFUL_ROWS_MAX: u32 = 10_000;

/// Why a change was refused.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The document is invalid.
    #[error("the rule has {}, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// Another caller changed the rule first.
    #[error("the rule was changed meanwhile, its version is {version}")]
    Conflict {
        /// The rule's current version; 0 if it was deleted.
        version: i64,
    },
    /// The namespace has reached its maximum.
    #[error("the namespace has {count} {what}, the maximum")]
    TooMany {
        /// The kind of object.
        what: &'static str,
        /// The maximum.
        count: u32,
    },
    /// All namespaces together have reached their maximum.
    #[error("all namespaces together have {count} {what}, the maximum")]
    TooManyInAll {
        /// The kind of object.
        what: &'static str,
        /// The maximum.
        count: u32,
    },
    /// There is no such rule, incident or silence, or it has ended.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRule {
    /// The rule as it is stored after the save.
    pub record: RuleRecord,
    /// Whether the rule was created.
    pub is_new: bool,
    /// Warnings for the rule's author, although the rule is valid.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct SilenceRequest {
    /// The incidents that the silence matches.
    pub spec: SilenceSpec,
    /// The user's reason, shown with the silence.
    pub reason: String,
    pub ends_at: Timestamp,
}

/// Result of a dry run: the rule as it would be evaluated now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// The first subjects for which the condition holds.
    pub subjects: Vec<Subject>,
    /// The number of such subjects among the checked subjects.
    pub count: u64,
    /// How many subjects were checked; `None` if all were.
    pub looked_at: Option<u64>,
    /// The instant of the evaluation.
    pub at: Timestamp,
    /// The deadline of a rule with a time of day; `None` for any other rule.
    pub deadline: Option<ResolvedDeadline>,
    /// Reasons why the rule may observe nothing.
    pub warnings: Vec<String>,
}

/// The deadline of a rule with a time of day, at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedDeadline {
    pub zone: String,
    /// Runs planned at or after this instant count.
    pub counts_from: Timestamp,
    /// When the rule is next due; `None` if no future day of the rule's calendar is on one of the rule's weekdays.
    pub next: Option<Timestamp>,
}

/// Saves a rule if it has the expected version; `None` means any.
///
/// # Errors
/// [`RuleError`].
pub async fn save_rule(
    node: &Node,
    namespace: NamespaceId,
    (spec, expected_version): (&RuleSpec, Option<i64>),
    author: &str,
) -> Result<SavedRule, RuleError> {
    check(node, namespace, spec).await?;
    let now = node.now();
    let change = RuleChange {
        id: AlertRuleId::new(node.new_id()),
        namespace,
        expected_version,
        spec,
        author,
        check_at: facts::first_check(spec, now),
        now,
    };
    let warnings = rule_warnings(node, namespace, spec).await?;
    match node.store().save_alert_rule(change).await? {
        RuleSaved::Created(record) => Ok(SavedRule { record: *record, is_new: true, warnings }),
        RuleSaved::Changed(record) => Ok(SavedRule { record: *record, is_new: false, warnings }),
        RuleSaved::Conflict(version) => Err(RuleError::Conflict { version }),
        RuleSaved::NoChannel(name) => Err(RuleError::Invalid(vec![deleted_channel_error(spec, &name)])),
        RuleSaved::Full => Err(RuleError::TooMany { what: "rules", count: RULE_COUNT_MAX }),
    }
}

/// Checks a rule, and that the channels and the calendar that it names exist.
async fn check(node: &Node, namespace: NamespaceId, spec: &RuleSpec) -> Result<(), RuleError> {
    spec.check().map_err(RuleError::Invalid)?;
    let mut errors = Vec::new();
    let channels = node.store().channels(namespace).await?;
    let channel_names: Vec<&str> = channels.iter().map(|channel| channel.name.as_str()).collect();
    let unknown_channel_error =
        |pointer: String, name: &str| missing_channel_error(pointer, name, channel_names.iter().copied());
    for (index, channel) in spec.channels.iter().enumerate().filter(|(_, name)| !channel_names.contains(&name.as_str()))
    {
        errors.push(unknown_channel_error(format!("/channels/{index}"), channel));
    }
    if let Some(to) = spec.escalate.as_ref().filter(|to| !channel_names.contains(&to.channel.as_str())) {
        errors.push(unknown_channel_error("/escalate/channel".to_owned(), &to.channel));
    }
    if let Condition::NotSucceededBy { calendar: Some(calendar), .. } = &spec.condition
        && node.store().calendar(namespace, calendar).await?.is_none()
    {
        errors.push(FieldError::new("/condition/calendar", format!("there is no calendar {calendar:?}")));
    }
    if errors.is_empty() { Ok(()) } else { Err(RuleError::Invalid(errors)) }
}

/// The error for a channel that was deleted while the rule was checked.
fn deleted_channel_error(spec: &RuleSpec, name: &str) -> FieldError {
    let pointer = match spec.channels.iter().position(|channel| channel == name) {
        Some(index) => format!("/channels/{index}"),
        None => "/escalate/channel".to_owned(),
    };
    FieldError::new(pointer, format!("there is no channel {name:?}: it was deleted meanwhile"))
}

/// Deletes a rule if it has the expected version; `None` means any. The rule's open incidents are resolved without a message.
///
/// # Errors
/// [`RuleError::NotFound`], [`RuleError::Conflict`], or the store's.
pub async fn delete_rule(
    node: &Node,
    namespace: NamespaceId,
    name: &str,
    expected_version: Option<i64>,
) -> Result<(), RuleError> {
    match node.store().delete_alert_rule(namespace, name, expected_version, node.now()).await? {
        RuleDeleted::Deleted => Ok(()),
        RuleDeleted::Conflict(version) => Err(RuleError::Conflict { version }),
        RuleDeleted::NotFound => Err(RuleError::NotFound("rule")),
    }
}

/// Acknowledges an incident: its message is not repeated, and it does not escalate. The channels to which the incident was reported get a
/// message, unless another decision is stored first at each try. Returns the incident as it is now.
///
/// # Errors
/// [`RuleError::NotFound`], or the store's.
pub async fn acknowledge(
    node: &Node,
    namespace: NamespaceId,
    id: IncidentId,
    author: &str,
) -> Result<Incident, RuleError> {
    let mut is_stored = false;
    for _ in 0..ACKNOWLEDGE_TRIES {
        is_stored = is_stored || look::acknowledge_once(node, namespace, id, author).await?;
    }
    if !is_stored {
        node.store().acknowledge_incident(namespace, id, author, node.now()).await?;
    }
    let record = node.store().incident(namespace, id).await?;
    record.map(|record| record.incident).ok_or(RuleError::NotFound("incident"))
}

/// Adds a silence.
///
/// # Errors
/// [`RuleError`].
pub async fn add_silence(
    node: &Node,
    namespace: NamespaceId,
    request: SilenceRequest,
    author: &str,
) -> Result<SilenceRecord, RuleError> {
    let now = node.now();
    let mut errors = Vec::new();
    if request.ends_at <= now || request.ends_at > now + SILENCE_MAX {
        let days = SILENCE_MAX.as_secs() / (24 * 3600);
        let message = format!("{} is not between now and {days} days from now", request.ends_at);
        errors.push(FieldError::new("/ends_at", message));
    }
    if request.reason.chars().count() > REASON_LEN_MAX {
        errors.push(FieldError::new("/reason", format!("at most {REASON_LEN_MAX} characters")));
    }
    let spec = &request.spec;
    for (pointer, matched_name) in [("/rule", &spec.rule), ("/job", &spec.job), ("/app", &spec.app)] {
        let is_expectation = pointer == "/rule" && matched_name.as_deref().is_some_and(expect::is_rule_name);
        if let Some(Err(message)) = matched_name.as_deref().filter(|_| !is_expectation).map(name::check) {
            errors.push(FieldError::new(pointer, message));
        }
    }
    if !errors.is_empty() {
        return Err(RuleError::Invalid(errors));
    }
    let silence = SilenceRecord {
        id: SilenceId::new(node.new_id()),
        namespace,
        spec: request.spec,
        author: author.to_owned(),
        reason: request.reason,
        created_at: now,
        ends_at: request.ends_at,
    };
    match store_once(|| node.store().add_silence(&silence)).await? {
        true => Ok(silence),
        false => Err(RuleError::TooMany { what: "silences", count: SILENCE_COUNT_MAX }),
    }
}

/// Ends a silence now.
///
/// # Errors
/// [`RuleError::NotFound`], or the store's.
pub async fn end_silence(node: &Node, namespace: NamespaceId, id: SilenceId) -> Result<(), RuleError> {
    match node.store().end_silence(namespace, id, node.now()).await? {
        true => Ok(()),
        false => Err(RuleError::NotFound("silence that has not ended")),
    }
}

/// Evaluates a rule now, without saving anything.
///
/// # Errors
/// [`RuleError`].
pub async fn dry_run(node: &Node, namespace: (NamespaceId, &str), spec: &RuleSpec) -> Result<DryRun, RuleError> {
    spec.check().map_err(RuleError::Invalid)?;
    let now = node.now();
    let (observations, looked_at) = match spec.condition.kind() {
        ConditionKind::Polled => (states::observe(node, namespace, (spec, &[]), now).await?.unwrap_or_default(), None),
        ConditionKind::Instant => observe_scope(node, namespace.0, spec, now).await?,
        ConditionKind::Events => observe_unsuccessful_jobs(node, namespace.0, spec, now).await?,
    };
    let holds = |observation: &&Observation| matches!(observation.state, ConditionState::Holds { .. });
    let subjects: Vec<Subject> =
        observations.iter().filter(holds).map(|observation| observation.subject.clone()).collect();
    let count = u64::try_from(subjects.len()).unwrap_or(u64::MAX);
    let deadline = match &spec.condition {
        Condition::NotSucceededBy { time, zone, weekdays, .. } => match Deadline::parse(time, zone, weekdays) {
            Ok(deadline) => Some(ResolvedDeadline {
                zone: zone.clone(),
                counts_from: deadline.counts_from(now),
                next: deadline.next_after(now, facts::day_filter(node, namespace.0, spec).await?),
            }),
            Err(_) => None,
        },
        _ => None,
    };
    Ok(DryRun {
        subjects: subjects.into_iter().take(NAMED_SUBJECTS_MAX).collect(),
        count,
        looked_at,
        at: now,
        deadline,
        warnings: scope_warning(node, namespace.0, spec).await?.into_iter().collect(),
    })
}

/// The observations for the jobs in the scope of a rule, and the number of checked jobs, which is `None` if all jobs were checked.
async fn observe_scope(
    node: &Node,
    namespace: NamespaceId,
    spec: &RuleSpec,
    now: Timestamp,
) -> Result<(Vec<Observation>, Option<u64>), StoreError> {
    let (mut observations, mut after_name) = (Vec::new(), String::new());
    for _ in 0..DRY_RUN_PAGES_MAX {
        let (jobs, last_name) = facts::watched_page(node, namespace, &spec.scope, &after_name).await?;
        observations.extend(facts::observe_page(node, spec, &jobs, (now, now)).await?.0);
        match last_name {
            Some(last_name) => after_name = last_name,
            None => return Ok((observations, None)),
        }
    }
    let checked_count = u64::try_from(observations.len()).unwrap_or(u64::MAX);
    Ok((observations, Some(checked_count)))
}

/// The observations for the jobs in the scope of a rule that currently fail or are skipped, and the number of checked jobs, which is `None` if
/// all such jobs were checked.
async fn observe_unsuccessful_jobs(
    node: &Node,
    namespace: NamespaceId,
    spec: &RuleSpec,
    now: Timestamp,
) -> Result<(Vec<Observation>, Option<u64>), StoreError> {
    let (mut jobs, mut are_all_checked) = unsuccessful_jobs(node, namespace, &spec.scope, now).await?;
    let job_count_max = usize::try_from(DRY_RUN_JOBS_MAX).unwrap_or(usize::MAX);
    are_all_checked &= jobs.len() <= job_count_max;
    jobs.truncate(job_count_max);
    let mut observations = Vec::new();
    for job in &jobs {
        let newest_ends = facts::newest_ends(node, job.id, now).await?;
        let mut state = facts::judge_runs(&spec.condition, &newest_ends.runs, &[]);
        if let Condition::Skipped { reasons } = &spec.condition
            && !state.is_clear()
            && !has_counted_skip(node, reasons, &newest_ends.runs).await?
        {
            state = ConditionState::Clear;
        }
        observations.push(Observation { subject: facts::job_subject(job), state, samples: Vec::new() });
    }
    let checked_count = u64::try_from(observations.len()).unwrap_or(u64::MAX);
    Ok((observations, (!are_all_checked).then_some(checked_count)))
}

/// The jobs in a scope whose newest runs may have failed or been skipped, and whether these are all such jobs.
async fn unsuccessful_jobs(
    node: &Node,
    namespace: NamespaceId,
    scope: &Scope,
    now: Timestamp,
) -> Result<(Vec<WatchedJob>, bool), StoreError> {
    if matches!(scope, Scope::Job(_)) {
        return Ok((facts::watched_page(node, namespace, scope, "").await?.0, true));
    }
    let store = node.store();
    let first_id = RunId::new(IdGen::first_at(now - UNSUCCESSFUL_WITHIN));
    let recent_runs = store.unsuccessful_runs(namespace, first_id, UNSUCCESSFUL_ROWS_MAX).await?;
    let failing_jobs = store.failing_jobs(namespace, None, DRY_RUN_JOBS_MAX).await?;
    let are_all_read = !recent_runs.is_cut && !facts::is_full(failing_jobs.len(), DRY_RUN_JOBS_MAX);
    let mut ids: Vec<JobId> = recent_runs.counts.iter().map(|runs| runs.job).collect();
    ids.extend(failing_jobs.iter().map(|pulse| pulse.job));
    ids.sort_unstable();
    ids.dedup();
    let mut jobs = store.watched_jobs_by_id(&ids).await?;
    jobs.retain(|job| facts::is_in_scope(scope, job));
    Ok((jobs, are_all_read))
}

/// Whether one of the skipped runs at the beginning of `newest_runs` was skipped for a reason that the rule counts.
async fn has_counted_skip(node: &Node, reasons: &[Reason], newest_runs: &[EndedRun]) -> Result<bool, StoreError> {
    let newest_skips = newest_runs.iter().take_while(|run| run.status == RunStatus::Skipped);
    let ids: Vec<RunId> = newest_skips.map(|run| run.run).collect();
    let runs = node.store().runs(&ids).await?;
    Ok(runs.iter().any(|run| run.reason.is_some_and(|reason| judge::counts_skip(reasons, reason))))
}
