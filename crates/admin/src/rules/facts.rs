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
const SAMPLES_EACH: usize = 3;
/// Maximum number of sample runs in one look.
const SAMPLES_MAX: usize = 60;
/// How far into the future runs are read: future fires have no row yet, but a run that was requested for a later
/// instant has one.
const AHEAD: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of deadlines skipped because they passed while no server ran: only the last one counts.
const PASSED_MAX: u32 = 1_000;

/// Data about the jobs with events, and about jobs with incidents that are due for a check.
pub(super) struct JobFacts<'a> {
    node: &'a Node,
    jobs: BTreeMap<JobId, WatchedJob>,
    ended: HashMap<JobId, NewestEnds>,
    samples: HashMap<RunId, RunSample>,
}

impl<'a> JobFacts<'a> {
    pub(super) async fn read(
        node: &'a Node,
        (events, due): (&[AlertEvent], impl Iterator<Item = &IncidentRecord>),
    ) -> Result<Self, StoreError> {
        let (store, now) = (node.store(), node.now());
        let rechecked = due.filter(|record| record.incident.subject.kind == SubjectKind::Job);
        let mut ids: BTreeSet<JobId> = rechecked.map(|record| JobId::new(record.incident.subject.id)).collect();
        ids.extend(events.iter().map(|event| event.job));
        let ids: Vec<JobId> = ids.into_iter().collect();
        let jobs: BTreeMap<JobId, WatchedJob> =
            store.watched_jobs_by_id(&ids).await?.into_iter().map(|job| (job.id, job)).collect();
        let mut ended = HashMap::new();
        for job in jobs.keys() {
            ended.insert(*job, newest_ends(node, *job, now).await?);
        }
        let mut facts = Self { node, jobs, ended, samples: HashMap::new() };
        facts.read_samples(events).await?;
        Ok(facts)
    }

    async fn read_samples(&mut self, events: &[AlertEvent]) -> Result<(), StoreError> {
        let mut of_job: HashMap<JobId, usize> = HashMap::new();
        let mut wanted: Vec<RunId> = Vec::new();
        for event in events.iter().rev() {
            let count = of_job.entry(event.job).or_default();
            if *count < SAMPLES_EACH && wanted.len() < SAMPLES_MAX {
                *count += 1;
                wanted.push(event.run);
            }
        }
        for run in self.node.store().runs(&wanted).await? {
            let Some(job) = self.jobs.get(&run.job) else { continue };
            let reason = run.reason.map(|reason| reason.as_str().to_owned());
            let message = run.message.clone().or(reason).unwrap_or_else(|| run.status.as_str().to_owned());
            self.samples
                .insert(run.id, RunSample { run: run.id, job: job.name.clone(), fire_at: run.fire_at, message });
        }
        Ok(())
    }

    /// The job with this id, if it is one of these.
    pub(super) fn job(&self, id: JobId) -> Option<&WatchedJob> {
        self.jobs.get(&id)
    }

    /// The observations of a rule about events: of the jobs with events, and of its incidents that are due for a check.
    pub(super) fn observe_events(
        &self,
        rule: &RuleRecord,
        events: &[AlertEvent],
        due: &[IncidentRecord],
    ) -> Vec<Observation> {
        let mut events_by_job: BTreeMap<JobId, Vec<&AlertEvent>> = BTreeMap::new();
        for event in events.iter().filter(|event| is_wanted(&rule.spec.condition, event)) {
            events_by_job.entry(event.job).or_default().push(event);
        }
        for record in due.iter().filter(|record| record.incident.subject.kind == SubjectKind::Job) {
            events_by_job.entry(JobId::new(record.incident.subject.id)).or_default();
        }
        let none = NewestEnds::default();
        let mut seen = Vec::new();
        for (id, events) in events_by_job {
            let Some(job) = self.jobs.get(&id).filter(|job| is_in_scope(&rule.spec.scope, job)) else {
                // The job was deleted, or the rule no longer watches it.
                let record = due.iter().find(|record| record.incident.subject.id == id.get());
                let subject = record.map(|record| record.incident.subject.clone());
                seen.extend(subject.map(|subject| Observation {
                    subject,
                    state: ConditionState::Unwatched,
                    samples: Vec::new(),
                }));
                continue;
            };
            let runs: Vec<RunId> = events.iter().map(|event| event.run).collect();
            let ended = self.ended.get(&id).unwrap_or(&none);
            let newest = with_older(&ended.runs, &events);
            let state = match judge_runs(&rule.spec.condition, &newest, &runs) {
                ConditionState::Clear if !ended.show_end(&rule.spec.condition) => ConditionState::Unknown,
                // The runs that showed the condition were removed, which does not count as a recovery.
                ConditionState::Clear if !ended.has_end(&rule.spec.condition) => ConditionState::Unwatched,
                state => state,
            };
            let samples = events.iter().rev().filter_map(|event| self.samples.get(&event.run)).take(SAMPLES_EACH);
            seen.push(Observation { subject: subject(job), state, samples: samples.cloned().collect() });
        }
        seen
    }

    /// Checks whether the open incidents of a rule about instants still hold.
    pub(super) async fn recheck_instants(
        &self,
        rule: &RuleRecord,
        due: &[IncidentRecord],
        now: Timestamp,
    ) -> Result<Vec<Observation>, StoreError> {
        let mut seen = Vec::new();
        for record in due.iter().filter(|record| record.incident.subject.kind == SubjectKind::Job) {
            let incident = &record.incident;
            let job = self.jobs.get(&JobId::new(incident.subject.id)).filter(|job| is_in_scope(&rule.spec.scope, job));
            let state = match (job, &rule.spec.condition) {
                (Some(job), Condition::NotSucceededBy { time, zone, weekdays, .. }) => {
                    let from = Deadline::parse(time, zone, weekdays).map(|one| one.counts_from(incident.started_at));
                    let from = from.unwrap_or(incident.started_at);
                    let newest = self.node.store().newest_successes_since(&[job.id], from).await?;
                    judge::missed_deadline(incident.started_at, from, newest.first().map(|(_, at)| *at))
                }
                (Some(job), Condition::NoSuccessFor { length }) => {
                    let newest = self.node.store().newest_successes_since(&[job.id], now - *length).await?;
                    let known = newest.first().map(|(_, at)| *at).max(job.succeeded_at);
                    judge::overdue(Some(known.unwrap_or(job.created_at)), *length, now)
                }
                _ => ConditionState::Unwatched,
            };
            seen.push(Observation { subject: incident.subject.clone(), state, samples: Vec::new() });
        }
        Ok(seen)
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
pub(super) fn judge_runs(condition: &Condition, newest: &[EndedRun], events: &[RunId]) -> ConditionState {
    match condition {
        Condition::FailuresInRow { count } => judge::failures_in_row(*count, newest, events),
        Condition::Skipped { .. } => judge::skipped(newest, events),
        _ => judge::failures_in_row(1, newest, events),
    }
}

/// The newest runs of a job, followed by older ones from its events. In a flood of failures, a look takes more events than it reads runs,
/// and each event must count.
fn with_older(newest: &[EndedRun], events: &[&AlertEvent]) -> Vec<EndedRun> {
    let known: BTreeSet<RunId> = newest.iter().map(|run| run.run).collect();
    let mut older: Vec<EndedRun> = events
        .iter()
        .filter(|event| !known.contains(&event.run))
        .map(|event| EndedRun { run: event.run, job: event.job, fire_at: event.fire_at, status: event.status })
        .collect();
    older.sort_by_key(|run| std::cmp::Reverse((run.fire_at, run.run)));
    [newest, &older].concat()
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
    /// Whether the job has older runs, which were not read.
    has_older: bool,
}

impl NewestEnds {
    /// Whether these runs suffice to conclude that a condition does not hold. Waiting runs may fill the page that was read, so that older
    /// runs with a verdict are missing.
    fn show_end(&self, condition: &Condition) -> bool {
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
    let runs = node.store().chart_runs(&[job], Timestamp::EPOCH, now + AHEAD, limit).await?;
    Ok(NewestEnds { runs: ended_runs(&runs), has_older: is_full(runs.len(), limit) })
}

/// The runs that have a verdict, in their order. A shard is omitted if the row of its fire is in the list too.
fn ended_runs(runs: &[ChartRun]) -> Vec<EndedRun> {
    let fires: BTreeSet<(RunId, Timestamp)> = runs.iter().map(|run| (run.id, run.fire_at)).collect();
    let is_shard = |run: &ChartRun| run.parent.is_some_and(|parent| fires.contains(&(parent, run.fire_at)));
    let ended = runs.iter().filter(|run| run.status.is_terminal() && !is_shard(run));
    let ended = ended.map(|run| EndedRun { run: run.id, job: run.job, fire_at: run.fire_at, status: run.status });
    ended.collect()
}

pub(super) fn is_in_scope(scope: &Scope, job: &WatchedJob) -> bool {
    match scope {
        Scope::All => true,
        Scope::App(app) => job.app_name == *app,
        Scope::Job(name) => job.name == *name,
        Scope::Label(label) => {
            label.split_once('=').is_some_and(|(key, value)| job.labels.get(key).is_some_and(|its| its == value))
        }
    }
}

pub(super) fn subject(job: &WatchedJob) -> Subject {
    Subject { kind: SubjectKind::Job, id: job.id.get(), name: job.name.clone(), app: Some(job.app_name.clone()) }
}

/// A page of the jobs that a rule watches, with the name of the last job read; `None` instead of a name on the last page.
pub(super) async fn page(
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
    let last = jobs.last().filter(|_| is_full).map(|job| job.name.clone());
    jobs.retain(|job| is_in_scope(scope, job));
    Ok((jobs, last))
}

/// Result for a page of jobs.
pub(super) struct SweepResult {
    pub(super) seen: Vec<Observation>,
    pub(super) check: RuleCheck,
    pub(super) has_more: bool,
}

pub(super) async fn sweep(node: &Node, rule: &RuleRecord, now: Timestamp) -> Result<SweepResult, StoreError> {
    let is_day = day_filter(node, rule.namespace, &rule.spec).await?;
    let from = rule.check_at.unwrap_or(now);
    let begun = |at| RuleProgress { at, after: String::new(), next: None };
    let sweep = rule.progress.clone().or_else(|| last_deadline(&rule.spec, from, now, &is_day).map(begun));
    let Some(mut sweep) = sweep else {
        let check = RuleCheck { rule: rule.id, at: next_check(&rule.spec, now, None), progress: None };
        return Ok(SweepResult { seen: Vec::new(), check, has_more: false });
    };
    let (jobs, last) = page(node, rule.namespace, &rule.spec.scope, &sweep.after).await?;
    let (seen, next) = observe_page(node, &rule.spec, &jobs, (sweep.at, now)).await?;
    sweep.next = earlier_of(sweep.next, next);
    let check = match last {
        Some(after) => RuleCheck { rule: rule.id, at: Some(now), progress: Some(RuleProgress { after, ..sweep }) },
        None => RuleCheck { rule: rule.id, at: next_check(&rule.spec, now, sweep.next), progress: None },
    };
    Ok(SweepResult { seen, has_more: check.progress.is_some(), check })
}

/// When a rule about instants is next due. The rule is due at every deadline, even on a day that is not in its calendar, because the
/// calendar's days may change until then. The calendar is read when the rule is due.
fn next_check(spec: &RuleSpec, now: Timestamp, next: Option<Timestamp>) -> Option<Timestamp> {
    match &spec.condition {
        Condition::NotSucceededBy { time, zone, weekdays, .. } => {
            Deadline::parse(time, zone, weekdays).ok()?.next_after(now, |_| true)
        }
        // A job created later cannot be overdue before this instant.
        Condition::NoSuccessFor { length } => Some(next.map_or(now + *length, |next| next.min(now + *length))),
        _ => None,
    }
}

/// When a rule that is saved now becomes due for the first time.
pub(super) fn first_check(spec: &RuleSpec, now: Timestamp) -> Option<Timestamp> {
    match (spec.condition.kind(), &spec.condition) {
        _ if !spec.enabled => None,
        (ConditionKind::Events, _) => None,
        (_, Condition::NotSucceededBy { .. }) => next_check(spec, now, None),
        _ => Some(now),
    }
}

/// The instant that a check due at `from` evaluates: the last deadline since `from` on a day of the calendar; `None` if there is none. For
/// a condition without a deadline, it is the present.
fn last_deadline(
    spec: &RuleSpec,
    from: Timestamp,
    now: Timestamp,
    is_day: &impl Fn(chrono::NaiveDate) -> bool,
) -> Option<Timestamp> {
    let Condition::NotSucceededBy { time, zone, weekdays, .. } = &spec.condition else { return Some(now) };
    let deadline = Deadline::parse(time, zone, weekdays).ok()?;
    let (mut last, mut after) = (None, from - Duration::from_millis(1));
    for _ in 0..PASSED_MAX {
        match deadline.next_after(after, is_day) {
            Some(next) if next <= now => (last, after) = (Some(next), next),
            _ => break,
        }
    }
    last
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
    let (from, length) = match &spec.condition {
        Condition::NotSucceededBy { time, zone, weekdays, .. } => {
            let deadline = Deadline::parse(time, zone, weekdays);
            (deadline.map_or(at, |deadline| deadline.counts_from(at)), None)
        }
        Condition::NoSuccessFor { length } => (now - *length, Some(*length)),
        _ => return Ok((Vec::new(), None)),
    };
    // A success that is already counted need not be looked up in the ledger.
    let doubtful: Vec<JobId> =
        jobs.iter().filter(|job| job.succeeded_at.is_none_or(|done| done < from)).map(|job| job.id).collect();
    let newest: HashMap<JobId, Timestamp> =
        node.store().newest_successes_since(&doubtful, from).await?.into_iter().collect();
    let (mut seen, mut next) = (Vec::with_capacity(jobs.len()), None);
    for job in jobs {
        let succeeded = newest.get(&job.id).copied().max(job.succeeded_at);
        let state = match length {
            None => judge::missed_deadline(at, from, succeeded),
            Some(length) => {
                let base = succeeded.unwrap_or(job.created_at);
                let state = judge::overdue(Some(base), length, now);
                next = earlier_of(next, state.is_clear().then_some(base + length));
                state
            }
        };
        seen.push(Observation { subject: subject(job), state, samples: Vec::new() });
    }
    Ok((seen, next))
}

#[cfg(test)]
mod tests;
