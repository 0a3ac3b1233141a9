//! The trait `Alerts` for the store in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::alert::expect::ExpectKind;
use rondel_core::alert::{ConditionKind, Incident, IncidentState, OpenIncidents, SubjectKind, judge};
use rondel_core::{
    AlertRuleId, AppId, IncidentId, JobId, MaintenanceId, NamespaceId, Reason, Run, RunId, RunStatus, SilenceId,
    Timestamp,
};

use super::rollups::is_not_shard;
use super::{MemStore, State, StoredJob, to_usize};
use crate::alerts::{
    AlertEvent, AlertWrite, ExpectCheck, IncidentQuery, IncidentRecord, MAINTENANCE_COUNT_MAX, MAINTENANCE_TOTAL_MAX,
    MaintenanceRecord, OpenRunExpectations, RULE_COUNT_MAX, RuleChange, RuleDeleted, RuleRecord, RuleSaved,
    SILENCE_COUNT_MAX, SilenceRecord, WatchedJob, next_evaluation,
};
use crate::outbox::may_be_reported;
use crate::{Alerts, Result};

#[async_trait]
impl Alerts for MemStore {
    async fn alert_rules(&self, namespace: NamespaceId) -> Result<Vec<RuleRecord>> {
        Ok(self.state().alert_rows.rules_of(namespace))
    }

    async fn save_alert_rule(&self, change: RuleChange<'_>) -> Result<RuleSaved> {
        let state = &mut *self.state();
        let alert_rows = &mut state.alert_rows;
        let rules = alert_rows.rules_of(change.namespace);
        let rule_before = rules.iter().find(|rule| rule.spec.name == change.spec.name);
        let version = rule_before.map_or(0, |rule| rule.version);
        if change.expected_version.is_some_and(|expected| expected != version) {
            return Ok(RuleSaved::Conflict(version));
        }
        let mut names = change.spec.channel_names();
        if let Some(missing_channel) =
            names.find(|name| state.channel_rows.find_by_name(change.namespace, name).is_none())
        {
            return Ok(RuleSaved::NoChannel(missing_channel.to_owned()));
        }
        if rule_before.is_none() && rules.len() >= to_usize(RULE_COUNT_MAX) {
            return Ok(RuleSaved::Full);
        }
        let (check_at, progress) = next_evaluation(rule_before, &change);
        let record = RuleRecord {
            id: rule_before.map_or(change.id, |rule| rule.id),
            namespace: change.namespace,
            version: version + 1,
            spec: change.spec.clone(),
            author: change.author.to_owned(),
            created_at: rule_before.map_or(change.now, |rule| rule.created_at),
            updated_at: change.now,
            check_at,
            progress,
        };
        alert_rows.raise_version(change.namespace);
        alert_rows.rules.insert(record.id, record.clone());
        if rule_before.is_some_and(|rule| !judge::have_same_condition_and_scope(&rule.spec, change.spec)) {
            let incidents = alert_rows.incidents.values_mut().filter(|(_, incident)| incident.rule == record.id);
            for (_, record) in incidents.filter(|(_, record)| record.incident.state == IncidentState::Firing) {
                record.incident.check_at = Some(change.now);
            }
        }
        let record = Box::new(record);
        Ok(if version == 0 { RuleSaved::Created(record) } else { RuleSaved::Changed(record) })
    }

    async fn delete_alert_rule(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
        now: Timestamp,
    ) -> Result<RuleDeleted> {
        let alert_rows = &mut self.state().alert_rows;
        let Some(rule) = alert_rows.rules_of(namespace).into_iter().find(|rule| rule.spec.name == name) else {
            return Ok(RuleDeleted::NotFound);
        };
        if expected_version.is_some_and(|expected| expected != rule.version) {
            return Ok(RuleDeleted::Conflict(rule.version));
        }
        alert_rows.raise_version(namespace);
        alert_rows.rules.remove(&rule.id);
        let incidents = alert_rows.incidents.values_mut().filter(|(_, record)| record.rule == rule.id);
        for (_, record) in incidents.filter(|(_, record)| record.incident.state == IncidentState::Firing) {
            record.spec.enabled = false;
            let incident = &mut record.incident;
            (incident.state, incident.resolved_at, incident.check_at) = (IncidentState::Resolved, Some(now), None);
        }
        Ok(RuleDeleted::Deleted)
    }

    async fn namespaces_with_due_alerts(&self, now: Timestamp) -> Result<Vec<NamespaceId>> {
        let alert_rows = &self.state().alert_rows;
        let is_due = |namespace: &NamespaceId| {
            let has_passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
            alert_rows.events.values().any(|(owner, _)| owner == namespace)
                || alert_rows.rules.values().any(|rule| rule.namespace == *namespace && has_passed(rule.check_at))
                || alert_rows
                    .incidents
                    .values()
                    .any(|(owner, record)| owner == namespace && has_passed(record.incident.check_at))
                || alert_rows.expect_checks.values().any(|(owner, check)| owner == namespace && has_passed(check.at))
                || has_passed(alert_rows.open_runs_checks.get(namespace).copied())
        };
        Ok(alert_rows.versions.keys().copied().filter(is_due).collect())
    }

    async fn alert_version(&self, namespace: NamespaceId) -> Result<Option<i64>> {
        Ok(self.state().alert_rows.versions.get(&namespace).copied())
    }

    async fn alert_events(&self, namespace: NamespaceId, limit: u32) -> Result<Vec<AlertEvent>> {
        let state = self.state();
        let events = state.alert_rows.events.values().filter(|(owner, _)| *owner == namespace);
        Ok(events.map(|(_, event)| *event).take(to_usize(limit)).collect())
    }

    async fn open_incidents(
        &self,
        _namespace: NamespaceId,
        rule: AlertRuleId,
        subjects: &[(SubjectKind, i64)],
    ) -> Result<OpenIncidents> {
        let state = self.state();
        let open_incidents = || state.alert_rows.open_incidents_of_rule(rule);
        let is_group = |incident: &&Incident| incident.subject.kind == SubjectKind::Group;
        let is_selected = |incident: &&Incident| subjects.contains(&(incident.subject.kind, incident.subject.id));
        let count = |is_member| {
            let incidents =
                open_incidents().filter(|incident| !is_group(incident) && incident.group.is_some() == is_member);
            u64::try_from(incidents.count()).unwrap_or(u64::MAX)
        };
        let group = open_incidents().find(is_group).cloned();
        let is_of_group = |incident: &&Incident| {
            incident.group.is_some() && incident.group == group.as_ref().map(|incident| incident.id)
        };
        let all_incidents = state.alert_rows.incidents.values().map(|(_, record)| &record.incident);
        let counted_incidents = all_incidents.filter(is_of_group).filter(is_selected);
        Ok(OpenIncidents {
            incidents: open_incidents().filter(|incident| !is_group(incident)).filter(is_selected).cloned().collect(),
            counted_subjects: counted_incidents.map(|incident| (incident.subject.kind, incident.subject.id)).collect(),
            group,
            unreported_subjects: open_incidents()
                .filter(|incident| !is_group(incident) && incident.group.is_none() && incident.fired_at.is_none())
                .map(|incident| incident.subject.clone())
                .collect(),
            single_count: count(false),
            member_count: count(true),
        })
    }

    async fn open_incidents_of_rule(&self, rule: AlertRuleId, limit: u32) -> Result<Vec<Incident>> {
        let state = self.state();
        let incidents = state
            .alert_rows
            .open_incidents_of_rule(rule)
            .filter(|incident| incident.subject.kind != SubjectKind::Group);
        Ok(incidents.take(to_usize(limit)).cloned().collect())
    }

    async fn due_incidents(&self, namespace: NamespaceId, now: Timestamp, limit: u32) -> Result<Vec<IncidentRecord>> {
        let state = self.state();
        let is_due = |(owner, record): &&(NamespaceId, IncidentRecord)| {
            *owner == namespace && record.incident.check_at.is_some_and(|at| at <= now)
        };
        let mut due_records: Vec<IncidentRecord> =
            state.alert_rows.incidents.values().filter(is_due).map(|(_, record)| record.clone()).collect();
        due_records.sort_by_key(|record| record.incident.check_at);
        due_records.truncate(to_usize(limit));
        Ok(due_records)
    }

    async fn due_expectations(&self, namespace: NamespaceId, now: Timestamp, limit: u32) -> Result<Vec<ExpectCheck>> {
        let state = self.state();
        let checks =
            state.alert_rows.expect_checks.values().filter(|(owner, _)| *owner == namespace).map(|(_, check)| *check);
        let mut due_checks: Vec<ExpectCheck> = checks.filter(|check| check.at.is_some_and(|at| at <= now)).collect();
        due_checks.sort_by_key(|check| check.at);
        due_checks.truncate(to_usize(limit));
        Ok(due_checks)
    }

    async fn expect_checks_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<ExpectCheck>> {
        let state = self.state();
        let expect_checks = state.alert_rows.expect_checks.values().map(|(_, check)| *check);
        Ok(expect_checks.filter(|check| jobs.contains(&check.job)).collect())
    }

    async fn open_run_expectations(&self, namespace: NamespaceId) -> Result<OpenRunExpectations> {
        let state = self.state();
        let alert_rows = &state.alert_rows;
        let at = alert_rows.open_runs_checks.get(&namespace).copied();
        let has_check = |kind: &ExpectKind| {
            alert_rows.expect_checks.values().any(|(owner, check)| *owner == namespace && check.kind == *kind)
        };
        let open_kinds = ExpectKind::ALL.iter().copied().filter(|kind| at.is_some() && kind.is_about_open_runs());
        Ok(OpenRunExpectations { at, kinds: open_kinds.filter(has_check).collect() })
    }

    async fn write_alerts(&self, write: &AlertWrite<'_>) -> Result<bool> {
        let mut state = self.state();
        if state.alert_rows.versions.get(&write.namespace) != Some(&write.version) {
            return Ok(false);
        }
        let alert_rows = &mut state.alert_rows;
        alert_rows.raise_version(write.namespace);
        for record in write.incidents {
            alert_rows.incidents.insert(record.incident.id, (write.namespace, record.clone()));
        }
        for check in write.checks {
            if let Some(rule) = alert_rows.rules.get_mut(&check.rule) {
                (rule.check_at, rule.progress) = (check.at, check.progress.clone());
            }
        }
        for check in write.expect_checks {
            if let Some((_, stored_check)) = alert_rows.expect_checks.get_mut(&(check.job, check.kind)) {
                stored_check.at = check.at;
            }
        }
        match write.open_runs_check.map(|check| check.at) {
            Some(Some(at)) => drop(alert_rows.open_runs_checks.insert(write.namespace, at)),
            Some(None) => drop(alert_rows.open_runs_checks.remove(&write.namespace)),
            None => {}
        }
        alert_rows.events.retain(|run, _| !write.evaluated_events.contains(run));
        write.messages.iter().for_each(|message| {
            state.channel_rows.write_message(message);
        });
        Ok(true)
    }

    async fn incidents(&self, query: IncidentQuery<'_>) -> Result<Vec<IncidentRecord>> {
        Ok(self.state().alert_rows.list_incidents(&query, |_| true))
    }

    async fn ungrouped_incidents(&self, query: IncidentQuery<'_>) -> Result<Vec<IncidentRecord>> {
        Ok(self.state().alert_rows.list_incidents(&query, IncidentRecord::is_ungrouped))
    }

    async fn incidents_of_group(&self, group: IncidentId, limit: u32) -> Result<Vec<IncidentRecord>> {
        let state = self.state();
        let records = state.alert_rows.incidents.values().rev().map(|(_, record)| record);
        Ok(records.filter(|record| record.incident.group == Some(group)).take(to_usize(limit)).cloned().collect())
    }

    async fn incident(&self, namespace: NamespaceId, id: IncidentId) -> Result<Option<IncidentRecord>> {
        let state = self.state();
        let incident = state.alert_rows.incidents.get(&id).filter(|(owner, _)| *owner == namespace);
        Ok(incident.map(|(_, record)| record.clone()))
    }

    async fn acknowledge_incident(
        &self,
        namespace: NamespaceId,
        id: IncidentId,
        by: &str,
        now: Timestamp,
    ) -> Result<bool> {
        let alert_rows = &mut self.state().alert_rows;
        alert_rows.raise_version(namespace);
        let Some((_, record)) = alert_rows.incidents.get_mut(&id).filter(|(owner, _)| *owner == namespace) else {
            return Ok(false);
        };
        let incident = &mut record.incident;
        if incident.state == IncidentState::Resolved || incident.acknowledged_at.is_some() {
            return Ok(false);
        }
        (incident.acknowledged_by, incident.acknowledged_at) = (Some(by.to_owned()), Some(now));
        Ok(true)
    }

    async fn silences(&self, namespace: NamespaceId, after: Timestamp) -> Result<Vec<SilenceRecord>> {
        let state = self.state();
        let mut silences: Vec<SilenceRecord> = state.alert_rows.silences.values().cloned().collect();
        silences.retain(|silence| silence.namespace == namespace && silence.ends_at > after);
        silences.sort_by_key(|silence| (silence.ends_at, silence.id));
        Ok(silences)
    }

    async fn add_silence(&self, silence: &SilenceRecord) -> Result<bool> {
        let open_silences = self.silences(silence.namespace, silence.created_at).await?;
        if open_silences.iter().any(|known| known.id == silence.id) {
            return Ok(true);
        }
        if open_silences.len() >= to_usize(SILENCE_COUNT_MAX) {
            return Ok(false);
        }
        let alert_rows = &mut self.state().alert_rows;
        alert_rows.raise_version(silence.namespace);
        alert_rows.silences.insert(silence.id, silence.clone());
        Ok(true)
    }

    async fn end_silence(&self, namespace: NamespaceId, id: SilenceId, now: Timestamp) -> Result<bool> {
        let alert_rows = &mut self.state().alert_rows;
        alert_rows.raise_version(namespace);
        let is_open_here = |silence: &&mut SilenceRecord| silence.namespace == namespace && silence.ends_at > now;
        let Some(silence) = alert_rows.silences.get_mut(&id).filter(is_open_here) else { return Ok(false) };
        silence.ends_at = now;
        Ok(true)
    }

    async fn maintenance(&self, namespace: Option<NamespaceId>, after: Timestamp) -> Result<Vec<MaintenanceRecord>> {
        let state = self.state();
        let mut windows: Vec<MaintenanceRecord> = state.alert_rows.windows.values().cloned().collect();
        windows.retain(|record| {
            let window = &record.window;
            window.ends_at > after && namespace.is_none_or(|namespace| window.namespace == namespace)
        });
        windows.sort_by_key(|record| (record.window.ends_at, record.window.id));
        Ok(windows)
    }

    async fn add_maintenance(&self, record: &MaintenanceRecord) -> Result<bool> {
        let open_windows = self.maintenance(Some(record.window.namespace), record.created_at).await?;
        if open_windows.iter().any(|known| known.window.id == record.window.id) {
            return Ok(true);
        }
        let window_count = self.maintenance(None, record.created_at).await?.len();
        if open_windows.len() >= to_usize(MAINTENANCE_COUNT_MAX) || window_count >= to_usize(MAINTENANCE_TOTAL_MAX) {
            return Ok(false);
        }
        let alert_rows = &mut self.state().alert_rows;
        alert_rows.raise_version(record.window.namespace);
        alert_rows.windows.insert(record.window.id, record.clone());
        Ok(true)
    }

    async fn end_maintenance(&self, namespace: NamespaceId, id: MaintenanceId, now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        state.alert_rows.raise_version(namespace);
        let is_of_namespace = |record: &&mut MaintenanceRecord| record.window.namespace == namespace;
        let Some(record) = state.alert_rows.windows.get_mut(&id).filter(is_of_namespace) else { return Ok(false) };
        let window = &mut record.window;
        if window.ends_at > now {
            let ends_at = window.ends_at;
            (window.starts_at, window.ends_at) = (window.starts_at.min(now), now);
            for (_, record) in state.alert_rows.incidents.values_mut().filter(|(owner, _)| *owner == namespace) {
                if record.incident.check_at == Some(ends_at) {
                    record.incident.check_at = Some(now);
                }
            }
        }
        Ok(true)
    }

    async fn forget_incidents(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let alert_rows = &mut self.state().alert_rows;
        let incidents = alert_rows.incidents.values().map(|(_, record)| &record.incident);
        let old_ids =
            incidents.filter(|incident| incident.resolved_at.is_some_and(|at| at < before)).map(|incident| incident.id);
        let old_ids: Vec<IncidentId> = old_ids.take(to_usize(limit)).collect();
        alert_rows.incidents.retain(|id, _| !old_ids.contains(id));
        let count_before = alert_rows.silences.len() + alert_rows.windows.len();
        alert_rows.silences.retain(|_, silence| silence.ends_at >= before);
        alert_rows.windows.retain(|_, record| record.window.ends_at >= before);
        Ok(u64::try_from(old_ids.len() + count_before - alert_rows.silences.len() - alert_rows.windows.len())
            .unwrap_or(u64::MAX))
    }

    async fn watched_jobs(
        &self,
        namespace: NamespaceId,
        app: Option<AppId>,
        after_name: &str,
        limit: u32,
    ) -> Result<Vec<WatchedJob>> {
        let state = self.state();
        let is_selected = |job: &&StoredJob| {
            let record = &job.record;
            !job.is_deleted
                && record.namespace == namespace
                && app.is_none_or(|app| record.app == app)
                && record.spec.name.as_str() > after_name
        };
        let mut jobs: Vec<WatchedJob> =
            state.jobs.values().filter(is_selected).map(|job| state.watched_job(job)).collect();
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        jobs.truncate(to_usize(limit));
        Ok(jobs)
    }

    async fn watched_jobs_by_id(&self, jobs: &[JobId]) -> Result<Vec<WatchedJob>> {
        let state = self.state();
        let living_jobs = state.jobs.values().filter(|job| !job.is_deleted && jobs.contains(&job.record.id));
        Ok(living_jobs.map(|job| state.watched_job(job)).collect())
    }

    async fn acknowledge_dead_letters(&self, namespace: NamespaceId, runs: &[RunId]) -> Result<u64> {
        let mut state = self.state();
        let count_before = state.dead_letters.len();
        state.dead_letters.retain(|run, (owner, ..)| *owner != namespace || !runs.contains(run));
        Ok(u64::try_from(count_before - state.dead_letters.len()).unwrap_or(u64::MAX))
    }

    async fn dead_letter_count(&self, namespace: NamespaceId, limit: u32) -> Result<u64> {
        let state = self.state();
        let count = state.dead_letters.values().filter(|(owner, ..)| *owner == namespace).take(to_usize(limit)).count();
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    async fn newest_successes_since(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<(JobId, Timestamp)>> {
        let state = self.state();
        let mut newest_successes: BTreeMap<JobId, Timestamp> = BTreeMap::new();
        let is_success =
            |run: &&Run| run.status == RunStatus::Succeeded && run.reason != Some(Reason::Moved) && is_not_shard(run);
        let successful_runs = state.runs.values().filter(is_success).filter(|run| run.fire_at >= since);
        for run in successful_runs.filter(|run| jobs.contains(&run.job)) {
            let at = newest_successes.entry(run.job).or_insert(run.fire_at);
            *at = run.fire_at.max(*at);
        }
        Ok(newest_successes.into_iter().collect())
    }
}

impl State {
    /// Records a run that failed as a dead letter, and inserts an alert event for a run that failed or was skipped, if an enabled rule of
    /// its namespace evaluates events. Does nothing for a shard.
    pub(super) fn add_alert_event(&mut self, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| may_be_reported(run.status)) else { return };
        let is_shard = self.broadcast_of(run).is_some();
        let is_failure = matches!(run.status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown);
        if is_failure && !is_shard {
            self.dead_letters.insert(id, (run.namespace, run.job, run.fire_at));
        }
        let covers_run = |rule: &RuleRecord| {
            rule.namespace == run.namespace && rule.spec.enabled && rule.spec.condition.kind() == ConditionKind::Events
        };
        if is_shard || !self.alert_rows.rules.values().any(covers_run) {
            return;
        }
        let event = AlertEvent {
            run: id,
            app: run.app,
            job: run.job,
            status: run.status,
            reason: run.reason,
            fire_at: run.fire_at,
        };
        self.alert_rows.events.insert(id, (run.namespace, event));
    }

    fn watched_job(&self, job: &StoredJob) -> WatchedJob {
        let record = &job.record;
        WatchedJob {
            id: record.id,
            name: record.spec.name.clone(),
            app: record.app,
            app_name: record.spec.app.clone(),
            labels: record.spec.labels.clone(),
            created_at: record.created_at,
            succeeded_at: self.newest_outcomes.get(&record.id).and_then(|pulse| pulse.succeeded_at),
            expect: record.spec.expectations(),
        }
    }
}
