//! The trait `Reports` for the store in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::{JobId, NamespaceId, Timestamp};

use crate::mem::{MemStore, State, to_usize};
use crate::reports::{
    DUE_COUNT_MAX, FailureGains, FailureKey, FailureMessage, FailureQuery, ReportChange, ReportDeleted, ReportSaved,
    ReportWrite, ScheduledReport, most_frequent,
};
use crate::upkeep::CountedRun;
use crate::{Channels, Reports, Result};

#[async_trait]
impl Reports for MemStore {
    async fn failure_messages(&self, query: &FailureQuery<'_>) -> Result<Vec<FailureMessage>> {
        let state = self.state();
        let present_app = |job: &JobId| state.jobs.get(job).map(|stored| stored.record.app);
        let mut messages: BTreeMap<i64, (FailureMessage, BTreeMap<JobId, u64>)> = BTreeMap::new();
        for ((job, day, key), gain) in &state.failures {
            let is_selected = gain.namespace == query.namespace
                && (query.from..query.to).contains(day)
                && match (query.jobs, query.apps) {
                    (Some(jobs), None) => jobs.contains(job),
                    (Some(jobs), Some(_)) => jobs.contains(job) && present_app(job) == Some(gain.app),
                    (None, apps) => apps.is_none_or(|apps| apps.contains(&gain.app)),
                };
            if !is_selected {
                continue;
            }
            let (sum, jobs) = messages.entry(*key).or_insert_with(|| {
                let message = gain.message.clone();
                let empty_message = FailureMessage {
                    key: *key,
                    message,
                    count: 0,
                    job_count: 0,
                    jobs: Vec::new(),
                    newest: gain.newest,
                };
                (empty_message, BTreeMap::new())
            });
            let count = u64::try_from(gain.count).unwrap_or(0);
            (sum.count, sum.newest) = (sum.count + count, sum.newest.max(gain.newest));
            *jobs.entry(*job).or_default() += count;
        }
        let messages = messages.into_values().map(|(mut message, jobs)| {
            message.job_count = u64::try_from(jobs.len()).unwrap_or(u64::MAX);
            message.name_jobs(jobs);
            message
        });
        Ok(most_frequent(messages.collect(), query.limit))
    }

    async fn forget_failure_stats(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut old_keys: Vec<FailureKey> =
            state.failures.keys().filter(|(_, day, _)| *day < before).copied().collect();
        old_keys.sort_by_key(|(_, day, _)| *day);
        old_keys.truncate(to_usize(limit));
        for key in &old_keys {
            state.failures.remove(key);
        }
        Ok(u64::try_from(old_keys.len()).unwrap_or(u64::MAX))
    }

    async fn report_schedule(&self, namespace: NamespaceId) -> Result<Option<ScheduledReport>> {
        Ok(self.state().report_schedules.get(&namespace).cloned())
    }

    async fn save_report_schedule(&self, change: ReportChange<'_>) -> Result<ReportSaved> {
        let mut state = self.state();
        if state.channel_rows.find_by_name(change.namespace, &change.spec.channel).is_none() {
            return Ok(ReportSaved::NoChannel);
        }
        let report_before = state.report_schedules.get(&change.namespace);
        let version = report_before.map_or(0, |report_before| report_before.version);
        if change.expected_version.is_some_and(|expected| expected != version) {
            return Ok(ReportSaved::Conflict(version));
        }
        let due_at = report_before.and_then(|report_before| report_before.next_at).filter(|at| *at <= change.now);
        let saved_report = ScheduledReport {
            namespace: change.namespace,
            version: version + 1,
            spec: change.spec.clone(),
            author: change.author.to_owned(),
            updated_at: change.now,
            next_at: due_at.or(change.next_at),
            sent_at: report_before.and_then(|report_before| report_before.sent_at),
        };
        let replaced_report = state.report_schedules.insert(change.namespace, saved_report);
        Ok(if replaced_report.is_none() { ReportSaved::Created } else { ReportSaved::Changed })
    }

    async fn delete_report_schedule(
        &self,
        namespace: NamespaceId,
        expected_version: Option<i64>,
    ) -> Result<ReportDeleted> {
        let mut state = self.state();
        let version = state.report_schedules.get(&namespace).map(|stored_report| stored_report.version);
        let Some(version) = version else { return Ok(ReportDeleted::NotFound) };
        if expected_version.is_some_and(|expected| expected != version) {
            return Ok(ReportDeleted::Conflict(version));
        }
        state.report_schedules.remove(&namespace);
        Ok(ReportDeleted::Deleted)
    }

    async fn due_reports(&self, now: Timestamp, limit: u32) -> Result<Vec<ScheduledReport>> {
        let state = self.state();
        let is_due = |report: &&ScheduledReport| report.next_at.is_some_and(|at| at <= now);
        let mut due_schedules: Vec<ScheduledReport> = state.report_schedules.values().filter(is_due).cloned().collect();
        due_schedules.sort_by_key(|report| (report.next_at, report.namespace));
        due_schedules.truncate(to_usize(limit.min(DUE_COUNT_MAX)));
        Ok(due_schedules)
    }

    async fn write_report(&self, write: &ReportWrite<'_>) -> Result<bool> {
        {
            let mut state = self.state();
            let Some(schedule) = state.report_schedules.get_mut(&write.schedule.namespace) else { return Ok(false) };
            if (schedule.version, schedule.next_at) != (write.schedule.version, write.schedule.next_at) {
                return Ok(false);
            }
            (schedule.next_at, schedule.sent_at) = (write.next_at, Some(write.now));
        }
        if let Some(message) = write.message {
            self.write_messages(std::slice::from_ref(message)).await?;
        }
        Ok(true)
    }
}

impl State {
    pub(in crate::mem) fn add_failures(&mut self, runs: &[CountedRun]) {
        let mut failure_gains = FailureGains::default();
        for run in runs {
            let message = self.runs.get(&run.id).and_then(|run| run.message.clone());
            failure_gains.add(run, message.as_deref());
        }
        let stored_apps = self.failures.iter().map(|(key, gain)| (*key, gain.app)).collect();
        for (key, gain) in failure_gains.bounded(stored_apps) {
            match self.failures.get_mut(&key) {
                Some(sum) => (sum.count, sum.newest) = (sum.count + gain.count, sum.newest.max(gain.newest)),
                None => {
                    self.failures.insert(key, gain);
                }
            }
        }
    }
}
