//! The rows of alerts in memory.

use std::collections::BTreeMap;

use rondel_core::alert::expect::ExpectKind;
use rondel_core::alert::{Incident, Standing};
use rondel_core::{AlertRuleId, IncidentId, JobId, JobSpec, MaintenanceId, NamespaceId, RunId, SilenceId, Timestamp};

use crate::alerts::{
    AlertEvent, ExpectCheck, IncidentRecord, MaintenanceRecord, RuleRecord, SilenceRecord, first_looks,
};

/// The rows of the alerts' tables.
#[derive(Debug, Default)]
pub(super) struct AlertRows {
    pub(super) versions: BTreeMap<NamespaceId, i64>,
    pub(super) rules: BTreeMap<AlertRuleId, RuleRecord>,
    pub(super) incidents: BTreeMap<IncidentId, (NamespaceId, IncidentRecord)>,
    pub(super) silences: BTreeMap<SilenceId, SilenceRecord>,
    pub(super) windows: BTreeMap<MaintenanceId, MaintenanceRecord>,
    pub(super) events: BTreeMap<RunId, (NamespaceId, AlertEvent)>,
    pub(super) looks: BTreeMap<(JobId, ExpectKind), (NamespaceId, ExpectCheck)>,
    /// When open runs are next compared with the expectations of their jobs.
    pub(super) open_looks: BTreeMap<NamespaceId, Timestamp>,
}

impl AlertRows {
    pub(super) fn raise(&mut self, namespace: NamespaceId) {
        *self.versions.entry(namespace).or_default() += 1;
    }

    pub(super) fn rules_of(&self, namespace: NamespaceId) -> Vec<RuleRecord> {
        let mut rules: Vec<_> = self.rules.values().filter(|rule| rule.namespace == namespace).cloned().collect();
        rules.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        rules
    }

    pub(super) fn open_of(&self, rule: AlertRuleId) -> impl Iterator<Item = &Incident> {
        let its = self.incidents.values().filter(move |(_, record)| record.rule == rule);
        its.map(|(_, record)| &record.incident).filter(|incident| incident.standing == Standing::Firing)
    }

    /// Replaces the expectations of a job that is created or saved now.
    pub(super) fn write_expects(
        &mut self,
        (namespace, job): (NamespaceId, JobId),
        spec: Option<&JobSpec>,
        (now, is_new): (Timestamp, bool),
    ) {
        let count = self.looks.len();
        self.looks.retain(|(of, _), _| *of != job);
        let looks = spec.and_then(JobSpec::expectations).map(|expected| first_looks(&expected, job, (now, is_new)));
        let looks = looks.unwrap_or_default();
        if !looks.is_empty() || self.looks.len() < count {
            self.raise(namespace);
        }
        for look in looks {
            if look.kind.is_about_open_runs() {
                self.open_looks.insert(namespace, now);
            }
            self.looks.insert((job, look.kind), (namespace, look));
        }
    }

    /// Removes the rows of a namespace.
    pub(super) fn leave(&mut self, namespace: NamespaceId) {
        self.versions.remove(&namespace);
        self.rules.retain(|_, rule| rule.namespace != namespace);
        self.incidents.retain(|_, (of, _)| *of != namespace);
        self.silences.retain(|_, silence| silence.namespace != namespace);
        self.events.retain(|_, (of, _)| *of != namespace);
        self.looks.retain(|_, (of, _)| *of != namespace);
        self.open_looks.remove(&namespace);
        self.windows.retain(|_, record| record.window.namespace != namespace);
    }
}
