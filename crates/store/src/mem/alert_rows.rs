//! The rows of alerts in memory.

use std::collections::BTreeMap;

use rondel_core::alert::{Incident, Standing};
use rondel_core::{AlertRuleId, IncidentId, NamespaceId, RunId, SilenceId};

use crate::alerts::{AlertEvent, IncidentRecord, RuleRecord, SilenceRecord};

/// What the alerts' tables hold.
#[derive(Debug, Default)]
pub(super) struct AlertRows {
    pub(super) versions: BTreeMap<NamespaceId, i64>,
    pub(super) rules: BTreeMap<AlertRuleId, RuleRecord>,
    pub(super) incidents: BTreeMap<IncidentId, (NamespaceId, IncidentRecord)>,
    pub(super) silences: BTreeMap<SilenceId, SilenceRecord>,
    pub(super) events: BTreeMap<RunId, (NamespaceId, AlertEvent)>,
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

    /// Forgets a namespace.
    pub(super) fn leave(&mut self, namespace: NamespaceId) {
        self.versions.remove(&namespace);
        self.rules.retain(|_, rule| rule.namespace != namespace);
        self.incidents.retain(|_, (of, _)| *of != namespace);
        self.silences.retain(|_, silence| silence.namespace != namespace);
        self.events.retain(|_, (of, _)| *of != namespace);
    }
}
