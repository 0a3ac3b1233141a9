//! One look: evaluates the rules of a namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::alert::{
    ConditionKind, Incident, Observation, OpenIncidents, RuleSpec, RuleView, Sighting, Silence, SilenceSpec, Standing,
    SubjectKind, decide,
};
use rondel_core::{AlertRuleId, ChannelId, IncidentId, MessageId, NamespaceId, RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::alerts::{AlertEvent, AlertWrite, ExpectCheck, IncidentRecord, OpenRunsCheck, RuleCheck, RuleRecord};
use rondel_store::channels::NewMessage;

use super::facts::{self, JobFacts};
use super::states;
use crate::node::Node;

/// Maximum number of events per look.
pub(super) const EVENT_COUNT: u32 = 500;
/// Maximum number of due incidents per look.
const DUE_COUNT: u32 = 200;
/// Maximum number of open incidents that a look compares with the current state.
const OPEN_COUNT: u32 = 2_000;

/// Result of a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookResult {
    /// Its decisions are stored.
    Done {
        /// How many incidents changed.
        count: u64,
        /// Whether there may be more to look at.
        is_more: bool,
    },
    /// Another decision or a change was stored first: nothing was written.
    Lost,
}

/// The decisions of a look so far.
#[derive(Default)]
pub(super) struct Findings {
    incidents: Vec<IncidentRecord>,
    messages: Vec<NewMessage>,
    checks: Vec<RuleCheck>,
    pub(super) looks: Vec<ExpectCheck>,
    pub(super) open_look: Option<OpenRunsCheck>,
    pub(super) is_more: bool,
}

/// Data that all rules of a namespace share.
pub(super) struct LookContext<'a> {
    pub(super) node: &'a Node,
    pub(super) facts: JobFacts<'a>,
    pub(super) namespace: NamespaceId,
    name: String,
    channels: HashMap<String, ChannelId>,
    silences: Vec<Silence>,
    events: Vec<AlertEvent>,
    pub(super) due: BTreeMap<AlertRuleId, Vec<IncidentRecord>>,
    pub(super) now: Timestamp,
}

/// Evaluates everything that is due in a namespace, and stores the decisions.
pub(super) async fn evaluate_due(node: &Node, namespace: NamespaceId) -> Result<LookResult, StoreError> {
    let store = node.store();
    let Some(version) = store.alert_version(namespace).await? else {
        return Ok(LookResult::Done { count: 0, is_more: false });
    };
    let rules = store.alert_rules(namespace).await?;
    let space = LookContext::read(node, namespace).await?;
    let mut findings = Findings::default();
    for rule in &rules {
        space.look_at(rule, &mut findings).await?;
    }
    space.look_at_expects(&mut findings).await?;
    let done: Vec<RunId> = space.events.iter().map(|event| event.run).collect();
    let due_count = space.due.values().map(Vec::len).sum::<usize>();
    let is_more = findings.is_more || is_full(done.len(), EVENT_COUNT) || is_full(due_count, DUE_COUNT);
    let write = AlertWrite {
        namespace,
        version,
        incidents: &findings.incidents,
        messages: &findings.messages,
        done: &done,
        checks: &findings.checks,
        looks: &findings.looks,
        open_look: findings.open_look,
    };
    if !store.write_alerts(&write).await? {
        return Ok(LookResult::Lost);
    }
    Ok(LookResult::Done { count: u64::try_from(findings.incidents.len()).unwrap_or(u64::MAX), is_more })
}

pub(super) fn is_full(count: usize, limit: u32) -> bool {
    count >= usize::try_from(limit).unwrap_or(usize::MAX)
}

impl<'a> LookContext<'a> {
    async fn read(node: &'a Node, namespace: NamespaceId) -> Result<Self, StoreError> {
        let (store, now) = (node.store(), node.now());
        let events = store.alert_events(namespace, EVENT_COUNT).await?;
        let mut due: BTreeMap<AlertRuleId, Vec<IncidentRecord>> = BTreeMap::new();
        for record in store.due_incidents(namespace, now, DUE_COUNT).await? {
            due.entry(record.rule).or_default().push(record);
        }
        let silences = silences(node, namespace, now).await?;
        let name = store.namespaces().await?.into_iter().find(|one| one.id == namespace).map(|one| one.name);
        let channels = store.channels(namespace).await?;
        Ok(Self {
            node,
            facts: JobFacts::read(node, (&events, due.values().flatten())).await?,
            namespace,
            name: name.unwrap_or_default(),
            channels: channels.into_iter().map(|channel| (channel.name, channel.id)).collect(),
            silences,
            events,
            due,
            now,
        })
    }

    async fn look_at(&self, rule: &RuleRecord, findings: &mut Findings) -> Result<(), StoreError> {
        let no_due = Vec::new();
        let due = self.due.get(&rule.id).unwrap_or(&no_due);
        let is_checked = rule.spec.enabled && rule.check_at.is_some_and(|at| at <= self.now);
        let mut seen: Vec<Observation> = Vec::new();
        let (mut check, mut all_open) = (None, Vec::new());
        if !rule.spec.enabled {
            seen.extend(due.iter().map(|record| unwatched(&record.incident)));
            check = rule.check_at.map(|_| RuleCheck { rule: rule.id, at: None, sweep: None });
        } else {
            match rule.spec.condition.kind() {
                ConditionKind::Events => seen = self.facts.observe_events(rule, &self.events, due),
                ConditionKind::Instant if is_checked => {
                    let swept = facts::sweep(self.node, rule, self.now).await?;
                    (seen, check) = (swept.seen, Some(swept.check));
                    findings.is_more |= swept.is_more;
                }
                ConditionKind::Polled if is_checked => {
                    let space = (self.namespace, self.name.as_str());
                    let open = self.node.store().open_incidents_of(rule.id, OPEN_COUNT).await?;
                    // A state that is not known yet neither opens nor closes an incident.
                    if let Some(observed) = states::observe(self.node, space, (&rule.spec, &open), self.now).await? {
                        (seen, all_open) = (observed, open);
                    }
                    let at = Some(
                        self.now + states::period(&rule.spec.condition, self.node.shared().config.alert_rules_period),
                    );
                    check = Some(RuleCheck { rule: rule.id, at, sweep: None });
                }
                ConditionKind::Instant | ConditionKind::Polled => {}
            }
            if rule.spec.condition.kind() == ConditionKind::Instant {
                let known: BTreeSet<i64> = seen.iter().map(|one| one.subject.id).collect();
                let rest = self.facts.recheck_instants(rule, due, self.now).await?;
                seen.extend(rest.into_iter().filter(|one| !known.contains(&one.subject.id)));
            }
        }
        // An open incident ends when it is no longer observed.
        let subjects: BTreeSet<(SubjectKind, i64)> =
            seen.iter().map(|one| (one.subject.kind, one.subject.id)).collect();
        let gone = all_open.iter().filter(|one| !subjects.contains(&(one.subject.kind, one.subject.id)));
        seen.extend(gone.map(clear).collect::<Vec<_>>());
        findings.checks.extend(check);
        if seen.is_empty() && due.is_empty() {
            return Ok(());
        }
        self.decide(rule, (seen, due), findings).await
    }

    pub(super) async fn decide(
        &self,
        rule: &RuleRecord,
        (seen, due): (Vec<Observation>, &[IncidentRecord]),
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let subjects: Vec<(SubjectKind, i64)> = seen.iter().map(|one| (one.subject.kind, one.subject.id)).collect();
        let mut open: OpenIncidents = self.node.store().open_incidents(rule.id, &subjects).await?;
        let is_group = |incident: &Incident| incident.subject.kind == SubjectKind::Group;
        for record in due.iter().filter(|record| !is_group(&record.incident)) {
            if !open.incidents.iter().any(|incident| incident.id == record.incident.id) {
                open.incidents.push(record.incident.clone());
            }
        }
        let before: BTreeMap<IncidentId, Incident> =
            open.incidents.iter().chain(&open.group).map(|incident| (incident.id, incident.clone())).collect();
        let has_open = !before.is_empty();
        let holds = seen.iter().any(|one| !one.sighting.is_clear());
        if !has_open && !holds {
            return Ok(());
        }
        let named = rule.spec.channel_names().filter(|name| !self.channels.contains_key(*name));
        let missing: Vec<String> = named.map(str::to_owned).collect();
        let view = RuleView { spec: &rule.spec, namespace: &self.name, missing_channels: &missing };
        let mut next_id = || IncidentId::new(self.node.new_id());
        let decision = decide(view, open, &seen, &self.silences, (self.now, &mut next_id));
        let changed = decision.incidents.into_iter().filter(|incident| before.get(&incident.id) != Some(incident));
        // If the rule no longer watches the subject, the record gets a disabled copy of the rule: the incident ended without a recovery.
        let record = |incident: Incident| {
            let enabled = rule.spec.enabled && !decision.unwatched.contains(&incident.id);
            IncidentRecord { incident, rule: rule.id, spec: RuleSpec { enabled, ..rule.spec.clone() } }
        };
        findings.incidents.extend(changed.map(record));
        for message in decision.messages {
            // No message is sent to a channel that was deleted.
            let Some(channel) = self.channels.get(&message.channel).copied() else { continue };
            findings.messages.push(NewMessage {
                id: MessageId::new(self.node.new_id()),
                namespace: self.namespace,
                channel,
                incident: message.incident,
                number: i32::try_from(message.number).unwrap_or(i32::MAX),
                notice: message.notice,
                created_at: self.now,
            });
        }
        Ok(())
    }
}

/// Everything that suppresses messages: silences, and maintenance windows in progress.
async fn silences(node: &Node, namespace: NamespaceId, now: Timestamp) -> Result<Vec<Silence>, StoreError> {
    let store = node.store();
    let all = store.silences(namespace, now).await?.into_iter();
    let mut all: Vec<Silence> =
        all.map(|one| Silence { spec: one.spec, ends_at: one.ends_at, is_maintenance: false }).collect();
    let windows = store.maintenance(Some(namespace), now).await?;
    let open = windows.into_iter().filter(|one| one.window.has(now));
    // If its app was deleted, a window covers no jobs.
    let open = open.filter(|one| one.window.app.is_none() || one.app_name.is_some());
    all.extend(open.map(|one| Silence {
        spec: SilenceSpec { app: one.app_name, ..SilenceSpec::default() },
        ends_at: one.window.ends_at,
        is_maintenance: true,
    }));
    Ok(all)
}

/// The observation for an incident whose subject its rule no longer watches.
pub(super) fn unwatched(incident: &Incident) -> Observation {
    Observation { sighting: Sighting::Unwatched, ..clear(incident) }
}

pub(super) fn clear(incident: &Incident) -> Observation {
    debug_assert_eq!(incident.standing, Standing::Firing, "resolved ones are not looked at");
    Observation { subject: incident.subject.clone(), sighting: Sighting::Clear, samples: Vec::new() }
}
