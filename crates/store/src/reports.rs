//! The data of reports that is not in the counts of runs: messages of failed runs, [folded](rondel_core::report::fold) (numbers, ids and
//! instants become `#`) and counted by day, and the report schedules of namespaces.
//!
//! [`Stats::roll_up`](crate::Stats::roll_up) counts the messages, each run once. The transaction that writes a due report as a message to
//! its channel also sets when the next report is due. Therefore each report is written once, even if the server dies before or after that
//! transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::report::{FOLDED_COUNT_MAX, REST_KEY, ReportSchedule, fold, fold_key};
use rondel_core::sketch::Step;
use rondel_core::{AppId, JobId, NamespaceId, RunId, RunStatus, Timestamp};

use crate::channels::NewMessage;
use crate::error::Result;
use crate::upkeep::CountedRun;

/// Maximum number of messages that one call returns.
pub const MESSAGE_COUNT_MAX: u32 = 200;
/// Maximum number of jobs that are named per message.
pub const MESSAGE_JOB_COUNT_MAX: u32 = 5;
/// Maximum number of schedules that one call returns.
pub const DUE_COUNT_MAX: u32 = 200;

/// How often runs failed with one message in a range of days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureMessage {
    /// The key of the message. [`REST_KEY`] stands for all messages beyond the maximum number of messages per job, day and app.
    pub key: i64,
    /// The folded message; empty for [`REST_KEY`].
    pub message: String,
    /// How many runs failed, timed out, or ended unknown with this message.
    pub count: u64,
    /// Number of different jobs among these runs.
    pub job_count: u64,
    /// The jobs with the most such runs, at most [`MESSAGE_JOB_COUNT_MAX`], each with its number of runs.
    pub jobs: Vec<(JobId, u64)>,
    pub newest: RunId,
}

impl FailureMessage {
    /// Whether `jobs` is final: it has all jobs, or it has [`MESSAGE_JOB_COUNT_MAX`] jobs with at least `unread_max` runs each. `unread_max`
    /// is the maximum number of runs of a job that was not read.
    pub(crate) fn has_final_jobs(&self, unread_max: u64) -> bool {
        let job_count_max = usize::try_from(MESSAGE_JOB_COUNT_MAX).unwrap_or(usize::MAX);
        let is_whole = u64::try_from(self.jobs.len()).unwrap_or(u64::MAX) >= self.job_count;
        is_whole || (self.jobs.len() >= job_count_max && self.jobs.last().is_some_and(|(_, last)| *last >= unread_max))
    }

    /// Adds these jobs, and keeps those with the most runs.
    pub(crate) fn name_jobs(&mut self, jobs: impl IntoIterator<Item = (JobId, u64)>) {
        self.jobs.extend(jobs);
        self.jobs.sort_by_key(|(job, count)| (std::cmp::Reverse(*count), *job));
        self.jobs.truncate(usize::try_from(MESSAGE_JOB_COUNT_MAX).unwrap_or(usize::MAX));
    }
}

/// Sorts the most frequent first, and keeps at most `limit`.
pub(crate) fn most_frequent(mut messages: Vec<FailureMessage>, limit: u32) -> Vec<FailureMessage> {
    messages.sort_by_key(|message| (std::cmp::Reverse(message.count), message.key));
    messages.truncate(usize::try_from(limit.min(MESSAGE_COUNT_MAX)).unwrap_or(usize::MAX));
    messages
}

/// Selects failures by message.
#[derive(Clone, Copy, Debug)]
pub struct FailureQuery<'a> {
    pub namespace: NamespaceId,
    /// Only failures of these jobs.
    pub jobs: Option<&'a [JobId]>,
    /// Only failures in these apps, at most 512. Together with `jobs`, the list itself is ignored: only failures in the app to which each
    /// job now belongs are selected, and the caller must check that it may see that app. Failures from before a move of the job to another
    /// app are then left out.
    pub apps: Option<&'a [AppId]>,
    /// Only days (in UTC) that begin at or after this instant.
    pub from: Timestamp,
    /// Only days that begin before this instant.
    pub to: Timestamp,
    /// Maximum number of messages.
    pub limit: u32,
}

/// The stored report schedule of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledReport {
    pub namespace: NamespaceId,
    /// The number of its definition, from 1.
    pub version: i64,
    pub spec: ReportSchedule,
    /// Name of the caller that saved it.
    pub author: String,
    /// When it was last saved.
    pub updated_at: Timestamp,
    /// When the next report is due; `None` if there is no next one.
    pub next_at: Option<Timestamp>,
    /// When the last report was written.
    pub sent_at: Option<Timestamp>,
}

/// A schedule to be saved, new or changed.
#[derive(Clone, Copy, Debug)]
pub struct ReportChange<'a> {
    pub namespace: NamespaceId,
    /// The definition to save, validated.
    pub spec: &'a ReportSchedule,
    /// Name of the caller that saves it.
    pub author: &'a str,
    /// The version that is replaced, 0 for a new schedule; `None` means any.
    pub expected_version: Option<i64>,
    /// When the first report is due. A report that is already due and not written yet stays due.
    pub next_at: Option<Timestamp>,
    pub now: Timestamp,
}

/// Outcome of saving a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportSaved {
    /// There was none before.
    Created,
    /// It replaced an earlier one.
    Changed,
    /// Another caller saved or deleted it first; its current version, 0 if there is none.
    Conflict(i64),
    /// Its channel does not exist.
    NoChannel,
}

/// Outcome of deleting a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportDeleted {
    /// The schedule is deleted.
    Deleted,
    /// Another caller saved it first; its current version.
    Conflict(i64),
    /// There is none.
    NotFound,
}

/// A due report to write.
#[derive(Clone, Copy, Debug)]
pub struct ReportWrite<'a> {
    /// The schedule as it was read.
    pub schedule: &'a ScheduledReport,
    /// When the next report is due; `None` if there is no next one.
    pub next_at: Option<Timestamp>,
    pub now: Timestamp,
    /// The message; `None` if the channel was deleted.
    pub message: Option<&'a NewMessage>,
}

#[async_trait]
pub trait Reports {
    /// Failures by message, the most frequent first.
    async fn failure_messages(&self, query: &FailureQuery<'_>) -> Result<Vec<FailureMessage>>;

    /// Removes the counts of days that began before `before`: at most `limit` rows, plus the other messages of the same jobs and days.
    /// Returns how many rows were removed.
    async fn forget_failure_stats(&self, before: Timestamp, limit: u32) -> Result<u64>;

    async fn report_schedule(&self, namespace: NamespaceId) -> Result<Option<ScheduledReport>>;

    async fn save_report_schedule(&self, change: ReportChange<'_>) -> Result<ReportSaved>;

    /// Deletes the report schedule of a namespace if it has the expected version; `None` means any.
    async fn delete_report_schedule(
        &self,
        namespace: NamespaceId,
        expected_version: Option<i64>,
    ) -> Result<ReportDeleted>;

    /// Schedules whose report is due, the longest due first, at most `limit`.
    async fn due_reports(&self, now: Timestamp, limit: u32) -> Result<Vec<ScheduledReport>>;

    /// Writes the message of a due report, and sets when the next report is due. `false`, with nothing written, if another server has
    /// already done so or the schedule has changed.
    async fn write_report(&self, write: &ReportWrite<'_>) -> Result<bool>;
}

/// The key of a count: the job, an instant within the first milliseconds of the day (see [`FailureGains::bounded`]), and the key of the
/// message.
pub(crate) type FailureKey = (JobId, Timestamp, i64);

/// An addition to the count of a [`FailureKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureGain {
    pub(crate) namespace: NamespaceId,
    pub(crate) app: AppId,
    /// The message, folded.
    pub(crate) message: String,
    pub(crate) count: i64,
    pub(crate) newest: RunId,
}

/// The additions of a batch of runs, by job, day, the app of the runs, and the key of the message.
#[derive(Debug, Default)]
pub(crate) struct FailureGains {
    gains: BTreeMap<(JobId, Timestamp, AppId, i64), FailureGain>,
}

/// Whether the message of a run counts. It does if the run failed, is no shard, and was not counted as a failure before.
pub(crate) fn is_new_failure(run: &CountedRun, before: Option<RunStatus>) -> bool {
    let is_failure = |status| matches!(status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown);
    !run.is_shard && is_failure(run.status) && !before.is_some_and(is_failure)
}

impl FailureGains {
    /// Counts a failure by its message. Without a message its reason counts instead, and without a reason its verdict.
    pub(crate) fn add(&mut self, run: &CountedRun, message: Option<&str>) {
        let reason = || run.reason.map_or(run.status.as_str(), |reason| reason.as_str());
        let folded_message = fold(message.filter(|message| !message.trim().is_empty()).unwrap_or_else(reason));
        let key = (run.job, Step::Day.floor(run.fire_at), run.app, fold_key(&folded_message));
        let gain = self.gains.entry(key).or_insert(FailureGain {
            namespace: run.namespace,
            app: run.app,
            message: folded_message,
            count: 0,
            newest: run.id,
        });
        gain.count += run.span_count.max(1);
        gain.newest = gain.newest.max(run.id);
    }

    /// These additions by the keys under which they are stored, with at most [`FOLDED_COUNT_MAX`] messages per job, day and app. All other
    /// messages are counted together. A job that moves to another app on that day has failures in both apps. The failures of the first app
    /// are stored at the beginning of the day, and the failures of each later app one millisecond later.
    pub(crate) fn bounded(self, mut stored_apps: BTreeMap<FailureKey, AppId>) -> BTreeMap<FailureKey, FailureGain> {
        let mut counts: BTreeMap<(JobId, Timestamp, AppId), usize> = BTreeMap::new();
        for ((job, at, _), app) in stored_apps.iter().filter(|((.., key), _)| *key != REST_KEY) {
            *counts.entry((*job, Step::Day.floor(*at), *app)).or_default() += 1;
        }
        let mut gains: BTreeMap<FailureKey, FailureGain> = BTreeMap::new();
        for ((job, day, app, key), gain) in self.gains {
            let count = counts.entry((job, day, app)).or_default();
            let place = stored_key((job, day, key), app, &stored_apps);
            let is_known = stored_apps.contains_key(&place);
            if is_known || *count < FOLDED_COUNT_MAX {
                *count += usize::from(!is_known);
                stored_apps.insert(place, app);
                gains.insert(place, gain);
                continue;
            }
            let rest_key = stored_key((job, day, REST_KEY), app, &stored_apps);
            stored_apps.insert(rest_key, app);
            let rest_gain =
                gains.entry(rest_key).or_insert(FailureGain { message: String::new(), count: 0, ..gain.clone() });
            rest_gain.count += gain.count;
            rest_gain.newest = rest_gain.newest.max(gain.newest);
        }
        gains
    }

    /// The jobs of these additions, the beginning of their first day, and the end of their last day.
    pub(crate) fn range(&self) -> (BTreeSet<JobId>, Timestamp, Timestamp) {
        let jobs = self.gains.keys().map(|(job, ..)| *job).collect();
        let days = || self.gains.keys().map(|(_, day, ..)| *day);
        let last_day = days().max().unwrap_or(Timestamp::EPOCH);
        (jobs, days().min().unwrap_or(Timestamp::EPOCH), last_day + Step::Day.length())
    }
}

/// The key for failures of an app: at the first millisecond of the day that has no failures of another app with this message.
fn stored_key((job, day, key): FailureKey, app: AppId, stored_apps: &BTreeMap<FailureKey, AppId>) -> FailureKey {
    let mut at = day;
    while stored_apps.get(&(job, at, key)).is_some_and(|stored_app| *stored_app != app) {
        at = at + Duration::from_millis(1);
    }
    (job, at, key)
}
