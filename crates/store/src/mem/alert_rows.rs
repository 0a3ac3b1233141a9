//! The rows of alerts in memory.

use std::collections::BTreeMap;

use rondel_core::alert::expect::ExpectKind;
use rondel_core::alert::{Incident, IncidentState, SubjectKind};
use rondel_core::{AlertRuleId, IncidentId, JobId, JobSpec, MaintenanceId, NamespaceId, RunId, SilenceId, Timestamp};

use crate::alerts::{
    AlertEvent, ExpectCheck, IncidentQuery, IncidentRecord, MaintenanceRecord, RuleRecord, SilenceRecord, first_checks,
};

#[derive(Debug, Default)]
pub(super) struct AlertRows {
    /// The version of each namespace's alerts.
    pub(super) versions: BTreeMap<NamespaceId, i64>,
    pub(super) rules: BTreeMap<AlertRuleId, RuleRecord>,
    pub(super) incidents: BTreeMap<IncidentId, (NamespaceId, IncidentRecord)>,
    pub(super) silences: BTreeMap<SilenceId, SilenceRecord>,
    pub(super) windows: BTreeMap<MaintenanceId, MaintenanceRecord>,
    /// Runs that rules have not evaluated yet.
    pub(super) events: BTreeMap<RunId, (NamespaceId, AlertEvent)>,
    pub(super) expect_checks: BTreeMap<(JobId, ExpectKind), (NamespaceId, ExpectCheck)>,
    /// When open runs are next compared with the expectations of their jobs.
    pub(super) open_runs_checks: BTreeMap<NamespaceId, Timestamp>,
}

impl AlertRows {
    pub(super) fn raise_version(&mut self, namespace: NamespaceId) {
        *self.versions.entry(namespace).or_default() += 1;
    }

    pub(super) fn rules_of(&self, namespace: NamespaceId) -> Vec<RuleRecord> {
        let mut rules: Vec<_> = self.rules.values().filter(|rule| rule.namespace == namespace).cloned().collect();
        rules.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        rules
    }

    pub(super) fn open_incidents_of_rule(&self, rule: AlertRuleId) -> impl Iterator<Item = &Incident> {
        let incidents = self.incidents.values().filter(move |(_, record)| record.rule == rule);
        incidents.map(|(_, record)| &record.incident).filter(|incident| incident.state == IncidentState::Firing)
    }

    pub(super) fn list_incidents(
        &self,
        query: &IncidentQuery<'_>,
        is_wanted: fn(&IncidentRecord) -> bool,
    ) -> Vec<IncidentRecord> {
        let is_selected = |record: &&IncidentRecord| {
            let subject = &record.incident.subject;
            let is_of_job = |job: JobId| subject.kind == SubjectKind::Job && subject.id == job.get();
            query.before.is_none_or(|before| record.incident.id < before)
                && query.job.is_none_or(is_of_job)
                && query.admits(record)
                && is_wanted(record)
        };
        let incidents = self.incidents.values().rev().filter(|(namespace, _)| *namespace == query.namespace);
        let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
        incidents.map(|(_, record)| record).filter(is_selected).take(limit).cloned().collect()
    }

    /// Replaces the expectations of a job that is saved or deleted now. `before` is its previous definition; `None` for a new job.
    pub(super) fn write_expect_checks(
        &mut self,
        (namespace, job): (NamespaceId, JobId),
        (before, spec): (Option<&JobSpec>, Option<&JobSpec>),
        now: Timestamp,
    ) {
        let old_checks: Vec<ExpectCheck> =
            self.expect_checks.values().map(|(_, check)| *check).filter(|check| check.job == job).collect();
        self.expect_checks.retain(|(checked_job, _), _| *checked_job != job);
        let before = before.map(|before| (before, old_checks.as_slice()));
        let expect_checks = spec.map(|spec| first_checks(job, (before, spec), now)).unwrap_or_default();
        if !expect_checks.is_empty() || !old_checks.is_empty() {
            self.raise_version(namespace);
        }
        for check in expect_checks {
            if check.kind.is_about_open_runs() {
                self.open_runs_checks.insert(namespace, now);
            }
            self.expect_checks.insert((job, check.kind), (namespace, check));
        }
    }

    pub(super) fn remove_namespace(&mut self, namespace: NamespaceId) {
        self.versions.remove(&namespace);
        self.rules.retain(|_, rule| rule.namespace != namespace);
        self.incidents.retain(|_, (owner, _)| *owner != namespace);
        self.silences.retain(|_, silence| silence.namespace != namespace);
        self.events.retain(|_, (owner, _)| *owner != namespace);
        self.expect_checks.retain(|_, (owner, _)| *owner != namespace);
        self.open_runs_checks.remove(&namespace);
        self.windows.retain(|_, record| record.window.namespace != namespace);
    }
}
