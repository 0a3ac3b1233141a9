//! Facts about the runs of jobs, for rules about events and rules about instants.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use rondel_core::alert::deadline::Deadline;
use rondel_core::alert::judge::{self, EndedRun};
use rondel_core::alert::{
    Condition, ConditionKind, ConditionState, Observation, RuleSpec, STREAK_MAX, Scope, Subject, SubjectKind,
};
use rondel_core::calendar::Calendar;
use rondel_core::notice::RunSample;
use rondel_core::time::earlier_of;
use rondel_core::{AppId, JobId, NamespaceId, RunId, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::alerts::{AlertEvent, IncidentRecord, PAGE_MAX, RuleCheck, RuleProgress, RuleRecord, WatchedJob};
use rondel_store::rollups::ChartRun;

use crate::node::Node;

/// Number of runs read in addition to the longest streak, so that a later success that has ended the streak is found.
const BEYOND_STREAK: u32 = 50;
/// Maximum number of sample runs for one job in a message.
const SAMPLES_PER_JOB_MAX: usize = 3;
/// Maximum number of sample runs in one look.
const SAMPLES_MAX: usize = 60;
/// How far into the future runs are read. Future fires have no row yet, but a run that was requested for a later instant has a row.
const READ_AHEAD: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of passed deadlines that are examined to find the last one. More than one passes only while no server runs.
const PASSED_DEADLINES_MAX: u32 = 1_000;

/// Data about the jobs with events, and about jobs with incidents that are due for a check.
pub(super) struct JobFacts<'a> {
    node: &'a Node,
    jobs: BTreeMap<JobId, WatchedJob>,
    ends_by_job: HashMap<JobId, NewestEnds>,
    samples: HashMap<RunId, RunSample>,
}

impl<'a> JobFacts<'a> {
    pub(super) async fn read(
        node: &'a Node,
        (events, due_incidents): (&[AlertEvent], impl Iterator<Item = &IncidentRecord>),
    ) -> Result<Self, StoreError> {
        let (store, now) = (node.store(), node.now());
        let rechecked_incidents = due_incidents.filter(|record| record.incident.subject.kind == SubjectKind::Job);
        let mut ids: BTreeSet<JobId> =
            rechecked_incidents.map(|record| JobId::new(record.incident.subject.id)).collect();
        ids.extend(events.iter().map(|event| event.job));
        let ids: Vec<JobId> = ids.into_iter().collect();
        let jobs: BTreeMap<JobId, WatchedJob> =
            store.watched_jobs_by_id(&ids).await?.into_iter().map(|job| (job.id, job)).collect();
        let mut ends_by_job = HashMap::new();
        for job in jobs.keys() {
            ends_by_job.insert(*job, newest_ends(node, *job, now).await?);
        }
        let mut facts = Self { node, jobs, ends_by_job, samples: HashMap::new() };
        facts.read_samples(events).await?;
        Ok(facts)
    }

    async fn read_samples(&mut self, events: &[AlertEvent]) -> Result<(), StoreError> {
        let mut counts_by_job: HashMap<JobId, usize> = HashMap::new();
        let mut sample_runs: Vec<RunId> = Vec::new();
        for event in events.iter().rev() {
            let count = counts_by_job.entry(event.job).or_default();
            if *count < SAMPLES_PER_JOB_MAX && sample_runs.len() < SAMPLES_MAX {
                *count += 1;
                sample_runs.push(event.run);
            }
        }
        for run in self.node.store().runs(&sample_runs).await? {
            let Some(job) = self.jobs.get(&run.job) else { continue };
            let reason = run.reason.map(|reason| reason.as_str().to_owned());
            let message = run.message.clone().or(reason).unwrap_or_else(|| run.status.as_str().to_owned());
            self.samples
                .insert(run.id, RunSample { run: run.id, job: job.name.clone(), fire_at: run.fire_at, message });
        }
        Ok(())
    }

    /// The job with this id; `None` if these facts do not include it.
    pub(super) fn job(&self, id: JobId) -> Option<&WatchedJob> {
        self.jobs.get(&id)
    }

    /// The observations of a rule about events, for the jobs with events, and for the rule's incidents that are due for a check.
    pub(super) fn observe_events(
        &self,
        rule: &RuleRecord,
        events: &[AlertEvent],
        due_incidents: &[IncidentRecord],
    ) -> Vec<Observation> {
        let mut events_by_job: BTreeMap<JobId, Vec<&AlertEvent>> = BTreeMap::new();
        for event in events.iter().filter(|event| is_wanted(&rule.spec.condition, event)) {
            events_by_job.entry(event.job).or_default().push(event);
        }
        for record in due_incidents.iter().filter(|record| record.incident.subject.kind == SubjectKind::Job) {
            events_by_job.entry(JobId::new(record.incident.subject.id)).or_default();
        }
        let empty_ends = NewestEnds::default();
        let mut observations = Vec::new();
        for (id, events) in events_by_job {
            let Some(job) = self.jobs.get(&id).filter(|job| is_in_scope(&rule.spec.scope, job)) else {
                // The job was deleted, or the rule no longer watches it.
                let record = due_incidents.iter().find(|record| record.incident.subject.id == id.get());
                let subject = record.map(|record| record.incident.subject.clone());
                observations.extend(subject.map(|subject| Observation {
                    subject,
                    state: ConditionState::Unwatched,
                    samples: Vec::new(),
                }));
                continue;
            };
            let runs: Vec<RunId> = events.iter().map(|event| event.run).collect();
            let newest_ends = self.ends_by_job.get(&id).unwrap_or(&empty_ends);
            let newest_runs = with_older(&newest_ends.runs, &events);
            let state = match judge_runs(&rule.spec.condition, &newest_runs, &runs) {
                ConditionState::Clear if !newest_ends.suffice_to_clear(&rule.spec.condition) => ConditionState::Unknown,
                // The runs that showed the condition were removed, which does not count as a recovery.
                ConditionState::Clear if !newest_ends.has_end(&rule.spec.condition) => ConditionState::Unwatched,
                state => state,
            };
            let samples =
                events.iter().rev().filter_map(|event| self.samples.get(&event.run)).take(SAMPLES_PER_JOB_MAX);
            observations.push(Observation { subject: job_subject(job), state, samples: samples.cloned().collect() });
        }
        observations
    }

    /// Checks whether the open incidents of a rule about instants still hold.
    pub(super) async fn recheck_instants(
        &self,
        rule: &RuleRecord,
        due_incidents: &[IncidentRecord],
        now: Timestamp,
    ) -> Result<Vec<Observation>, StoreError> {
        let mut observations = Vec::new();
        for record in due_incidents.iter().filter(|record| record.incident.subject.kind == SubjectKind::Job) {
            let incident = &record.incident;
            let job = self.jobs.get(&JobId::new(incident.subject.id)).filter(|job| is_in_scope(&rule.spec.scope, job));
            let state = match (job, &rule.spec.condition) {
                (Some(job), Condition::NotSucceededBy { time, zone, weekdays, .. }) => {
                    let counts_from =
                        Deadline::parse(time, zone, weekdays).map(|deadline| deadline.counts_from(incident.started_at));
                    let counts_from = counts_from.unwrap_or(incident.started_at);
                    let successes = self.node.store().newest_successes_since(&[job.id], counts_from).await?;
                    judge::missed_deadline(incident.started_at, counts_from, successes.first().map(|(_, at)| *at))
                }
                (Some(job), Condition::NoSuccessFor { length }) => {
                    let successes = self.node.store().newest_successes_since(&[job.id], now - *length).await?;
                    let newest_success = successes.first().map(|(_, at)| *at).max(job.succeeded_at);
                    judge::overdue(Some(newest_success.unwrap_or(job.created_at)), *length, now)
                }
                _ => ConditionState::Unwatched,
            };
            observations.push(Observation { subject: incident.subject.clone(), state, samples: Vec::new() });
        }
        Ok(observations)
    }
}

fn is_wanted(condition: &Condition, event: &AlertEvent) -> bool {
    match condition {
        Condition::Skipped { reasons } => {
            let is_counted = |reason| judge::counts_skip(reasons, reason);
            event.status == RunStatus::Skipped && event.reason.is_some_and(is_counted)
        }
        _ => event.status != RunStatus::Skipped,
    }
}

/// Whether the newest runs of a job fulfil the condition; `events` are the runs that the rule has not seen yet.
pub(super) fn judge_runs(condition: &Condition, newest_runs: &[EndedRun], events: &[RunId]) -> ConditionState {
    match condition {
        Condition::FailuresInRow { count } => judge::failures_in_row(*count, newest_runs, events),
        Condition::Skipped { .. } => judge::skipped(newest_runs, events),
        _ => judge::failures_in_row(1, newest_runs, events),
    }
}

/// The newest runs of a job, followed by older runs from the job's events. In a flood of failures, a look takes more events than it reads runs,
/// and each event must count.
fn with_older(newest_runs: &[EndedRun], events: &[&AlertEvent]) -> Vec<EndedRun> {
    let known_runs: BTreeSet<RunId> = newest_runs.iter().map(|run| run.run).collect();
    let mut older_runs: Vec<EndedRun> = events
        .iter()
        .filter(|event| !known_runs.contains(&event.run))
        .map(|event| EndedRun { run: event.run, job: event.job, fire_at: event.fire_at, status: event.status })
        .collect();
    older_runs.sort_by_key(|run| std::cmp::Reverse((run.fire_at, run.run)));
    [newest_runs, &older_runs].concat()
}

/// Whether there may be more rows than were read.
pub(super) fn is_full(count: usize, limit: u32) -> bool {
    count >= usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The runs with a verdict among the newest runs of a job.
#[derive(Debug, Default)]
pub(super) struct NewestEnds {
    /// The runs, the newest first.
    pub(super) runs: Vec<EndedRun>,
    /// Whether the job may have older runs, which were not read.
    has_older: bool,
}

impl NewestEnds {
    /// Whether these runs suffice to conclude that a condition does not hold. Waiting runs may fill the page that was read, so that older
    /// runs with a verdict are missing.
    fn suffice_to_clear(&self, condition: &Condition) -> bool {
        !self.has_older || self.has_end(condition)
    }

    /// Whether one of these runs ends an incident about a condition.
    fn has_end(&self, condition: &Condition) -> bool {
        self.runs.iter().any(|run| match condition {
            Condition::Skipped { .. } => run.status != RunStatus::Skipped,
            _ => run.status == RunStatus::Succeeded,
        })
    }
}

pub(super) async fn newest_ends(node: &Node, job: JobId, now: Timestamp) -> Result<NewestEnds, StoreError> {
    let limit = STREAK_MAX + BEYOND_STREAK;
    let runs = node.store().chart_runs(&[job], Timestamp::EPOCH, now + READ_AHEAD, limit).await?;
    Ok(NewestEnds { runs: ended_runs(&runs), has_older: is_full(runs.len(), limit) })
}

/// The runs that have a verdict, in their order. A shard is omitted if the row of its fire is in the list too.
fn ended_runs(runs: &[ChartRun]) -> Vec<EndedRun> {
    let fire_keys: BTreeSet<(RunId, Timestamp)> = runs.iter().map(|run| (run.id, run.fire_at)).collect();
    let is_shard = |run: &ChartRun| run.parent.is_some_and(|parent| fire_keys.contains(&(parent, run.fire_at)));
    let ended_runs = runs.iter().filter(|run| run.status.is_terminal() && !is_shard(run));
    let ended_runs =
        ended_runs.map(|run| EndedRun { run: run.id, job: run.job, fire_at: run.fire_at, status: run.status });
    ended_runs.collect()
}

pub(super) fn is_in_scope(scope: &Scope, job: &WatchedJob) -> bool {
    match scope {
        Scope::All => true,
        Scope::App(app) => job.app_name == *app,
        Scope::Job(name) => job.name == *name,
        Scope::Label(label) => label
            .split_once('=')
            .is_some_and(|(key, value)| job.labels.get(key).is_some_and(|job_value| job_value == value)),
    }
}

pub(super) fn job_subject(job: &WatchedJob) -> Subject {
    Subject { kind: SubjectKind::Job, id: job.id.get(), name: job.name.clone(), app: Some(job.app_name.clone()) }
}

/// A page of the jobs that a rule watches, with the name of the last job read; `None` instead of a name on the last page.
pub(super) async fn watched_page(
    node: &Node,
    namespace: NamespaceId,
    scope: &Scope,
    after: &str,
) -> Result<(Vec<WatchedJob>, Option<String>), StoreError> {
    let store = node.store();
    if let Scope::Job(name) = scope {
        let record = store.job(namespace, name).await?;
        let ids: Vec<JobId> = record.into_iter().map(|record| record.id).collect();
        return Ok((store.watched_jobs_by_id(&ids).await?, None));
    }
    let app: Option<AppId> = match scope {
        Scope::App(name) => match store.app(namespace, name).await? {
            Some(app) => Some(app.id),
            None => return Ok((Vec::new(), None)),
        },
        Scope::All | Scope::Label(_) | Scope::Job(_) => None,
    };
    let mut jobs = store.watched_jobs(namespace, app, after, PAGE_MAX).await?;
    let is_full = jobs.len() >= usize::try_from(PAGE_MAX).unwrap_or(usize::MAX);
    let last_name = jobs.last().filter(|_| is_full).map(|job| job.name.clone());
    jobs.retain(|job| is_in_scope(scope, job));
    Ok((jobs, last_name))
}

/// Result of checking a page of jobs.
pub(super) struct SweepResult {
    pub(super) observations: Vec<Observation>,
    pub(super) rule_check: RuleCheck,
    pub(super) has_more: bool,
}

pub(super) async fn sweep_page(node: &Node, rule: &RuleRecord, now: Timestamp) -> Result<SweepResult, StoreError> {
    let is_day = day_filter(node, rule.namespace, &rule.spec).await?;
    let due_at = rule.check_at.unwrap_or(now);
    let new_progress = |at| RuleProgress { at, after: String::new(), next: None };
    let sweep = rule.progress.clone().or_else(|| last_deadline(&rule.spec, due_at, now, &is_day).map(new_progress));
    let Some(mut sweep) = sweep else {
        let rule_check = RuleCheck { rule: rule.id, at: next_check(&rule.spec, now, None), progress: None };
        return Ok(SweepResult { observations: Vec::new(), rule_check, has_more: false });
    };
    let (jobs, last_name) = watched_page(node, rule.namespace, &rule.spec.scope, &sweep.after).await?;
    let (observations, next_check_at) = observe_page(node, &rule.spec, &jobs, (sweep.at, now)).await?;
    sweep.next = earlier_of(sweep.next, next_check_at);
    let rule_check = match last_name {
        Some(after) => RuleCheck { rule: rule.id, at: Some(now), progress: Some(RuleProgress { after, ..sweep }) },
        None => RuleCheck { rule: rule.id, at: next_check(&rule.spec, now, sweep.next), progress: None },
    };
    Ok(SweepResult { observations, has_more: rule_check.progress.is_some(), rule_check })
}

/// When a rule about instants is next due. The rule is due at every deadline, even on a day that is not in its calendar, because the
/// calendar's days may change until then. The calendar is read when the rule is due.
fn next_check(spec: &RuleSpec, now: Timestamp, next_at: Option<Timestamp>) -> Option<Timestamp> {
    match &spec.condition {
        Condition::NotSucceededBy { time, zone, weekdays, .. } => {
            Deadline::parse(time, zone, weekdays).ok()?.next_after(now, |_| true)
        }
        // A job created later cannot be overdue before this instant.
        Condition::NoSuccessFor { length } => Some(next_at.map_or(now + *length, |next| next.min(now + *length))),
        _ => None,
    }
}

/// When a rule that is saved now becomes due for the first time; `None` for a disabled rule and for a rule about events.
pub(super) fn first_check(spec: &RuleSpec, now: Timestamp) -> Option<Timestamp> {
    match (spec.condition.kind(), &spec.condition) {
        _ if !spec.enabled => None,
        (ConditionKind::Events, _) => None,
        (_, Condition::NotSucceededBy { .. }) => next_check(spec, now, None),
        _ => Some(now),
    }
}

/// The instant that a check due at `due_at` evaluates: the last deadline since `due_at` on a day of the calendar; `None` if there is none. For
/// a condition without a deadline, it is the present.
fn last_deadline(
    spec: &RuleSpec,
    due_at: Timestamp,
    now: Timestamp,
    is_day: &impl Fn(chrono::NaiveDate) -> bool,
) -> Option<Timestamp> {
    let Condition::NotSucceededBy { time, zone, weekdays, .. } = &spec.condition else { return Some(now) };
    let deadline = Deadline::parse(time, zone, weekdays).ok()?;
    let (mut last_deadline, mut search_after) = (None, due_at - Duration::from_millis(1));
    for _ in 0..PASSED_DEADLINES_MAX {
        match deadline.next_after(search_after, is_day) {
            Some(next) if next <= now => (last_deadline, search_after) = (Some(next), next),
            _ => break,
        }
    }
    last_deadline
}

pub(super) async fn day_filter(
    node: &Node,
    namespace: NamespaceId,
    spec: &RuleSpec,
) -> Result<impl Fn(chrono::NaiveDate) -> bool + use<>, StoreError> {
    let calendar = match &spec.condition {
        Condition::NotSucceededBy { calendar: Some(name), .. } => {
            let record = node.store().calendar(namespace, name).await?;
            record.and_then(|record| Calendar::of_rule(name, &record.expanded_rule).ok())
        }
        _ => None,
    };
    // If the calendar was deleted, every day counts. A day counts if any part of it is in the calendar, since a calendar with times of day
    // may contain no whole day.
    Ok(move |day| calendar.as_ref().is_none_or(|calendar| calendar.has_part_of(day)))
}

/// The observations of a page of jobs, and the first instant at which one of these jobs must be checked again.
pub(super) async fn observe_page(
    node: &Node,
    spec: &RuleSpec,
    jobs: &[WatchedJob],
    (at, now): (Timestamp, Timestamp),
) -> Result<(Vec<Observation>, Option<Timestamp>), StoreError> {
    let (counts_from, length) = match &spec.condition {
        Condition::NotSucceededBy { time, zone, weekdays, .. } => {
            let deadline = Deadline::parse(time, zone, weekdays);
            (deadline.map_or(at, |deadline| deadline.counts_from(at)), None)
        }
        Condition::NoSuccessFor { length } => (now - *length, Some(*length)),
        _ => return Ok((Vec::new(), None)),
    };
    // A success that is already counted need not be looked up in the ledger.
    let doubtful_jobs: Vec<JobId> =
        jobs.iter().filter(|job| job.succeeded_at.is_none_or(|done| done < counts_from)).map(|job| job.id).collect();
    let newest_successes: HashMap<JobId, Timestamp> =
        node.store().newest_successes_since(&doubtful_jobs, counts_from).await?.into_iter().collect();
    let (mut observations, mut next_check_at) = (Vec::with_capacity(jobs.len()), None);
    for job in jobs {
        let newest_success = newest_successes.get(&job.id).copied().max(job.succeeded_at);
        let state = match length {
            None => judge::missed_deadline(at, counts_from, newest_success),
            Some(length) => {
                let counted_since = newest_success.unwrap_or(job.created_at);
                let state = judge::overdue(Some(counted_since), length, now);
                next_check_at = earlier_of(next_check_at, state.is_clear().then_some(counted_since + length));
                state
            }
        };
        observations.push(Observation { subject: job_subject(job), state, samples: Vec::new() });
    }
    Ok((observations, next_check_at))
}

#[cfg(test)]
mod tests;
