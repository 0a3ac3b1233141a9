//! One look: evaluates the rules of a namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::alert::expect::is_expectation;
use rondel_core::alert::{
    Condition, ConditionKind, ConditionState, Incident, IncidentState, MessageDraft, Observation, OpenIncidents,
    RuleSpec, RuleView, Silence, SilenceSpec, Subject, SubjectKind, acknowledge, decide, judge,
};
use rondel_core::notice::NoticeKind;
use rondel_core::{AlertRuleId, ChannelId, IncidentId, JobId, MessageId, NamespaceId, RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::alerts::{AlertEvent, AlertWrite, ExpectCheck, IncidentRecord, OpenRunsCheck, RuleCheck, RuleRecord};
use rondel_store::channels::{INCIDENT_MESSAGE_COUNT_MAX, NewMessage};

use super::facts::{self, JobFacts, is_full};
use super::states;
use crate::node::Node;

/// Maximum number of events per look.
pub(super) const EVENT_COUNT: u32 = 500;
/// Maximum number of due incidents per look.
const DUE_COUNT: u32 = 200;
/// Maximum number of open incidents that a look compares with the current state.
const OPEN_COUNT: u32 = 2_000;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookResult {
    /// Its decisions are stored.
    Done {
        /// How many incidents changed.
        count: u64,
        /// Whether there may be more to look at.
        has_more: bool,
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
    pub(super) has_more: bool,
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
        return Ok(LookResult::Done { count: 0, has_more: false });
    };
    let rules = store.alert_rules(namespace).await?;
    let context = LookContext::read(node, namespace).await?;
    let mut findings = Findings::default();
    for rule in &rules {
        context.look_at(rule, &mut findings).await?;
    }
    context.look_at_expects(&mut findings).await?;
    let done: Vec<RunId> = context.events.iter().map(|event| event.run).collect();
    let due_count = context.due.values().map(Vec::len).sum::<usize>();
    let has_more = findings.has_more || is_full(done.len(), EVENT_COUNT) || is_full(due_count, DUE_COUNT);
    let write = AlertWrite {
        namespace,
        version,
        incidents: &findings.incidents,
        messages: &findings.messages,
        evaluated_events: &done,
        checks: &findings.checks,
        expect_checks: &findings.looks,
        open_runs_check: findings.open_look,
    };
    if !store.write_alerts(&write).await? {
        return Ok(LookResult::Lost);
    }
    Ok(LookResult::Done { count: u64::try_from(findings.incidents.len()).unwrap_or(u64::MAX), has_more })
}

impl<'a> LookContext<'a> {
    async fn read(node: &'a Node, namespace: NamespaceId) -> Result<Self, StoreError> {
        let (store, now) = (node.store(), node.now());
        let events = store.alert_events(namespace, EVENT_COUNT).await?;
        let mut due: BTreeMap<AlertRuleId, Vec<IncidentRecord>> = BTreeMap::new();
        for record in store.due_incidents(namespace, now, DUE_COUNT).await? {
            due.entry(record.rule).or_default().push(record);
        }
        let (name, channels) = names(node, namespace).await?;
        Ok(Self {
            node,
            facts: JobFacts::read(node, (&events, due.values().flatten())).await?,
            namespace,
            name,
            channels,
            silences: silences(node, namespace, now).await?,
            events,
            due,
            now,
        })
    }

    async fn look_at(&self, rule: &RuleRecord, findings: &mut Findings) -> Result<(), StoreError> {
        let no_due = Vec::new();
        let due = self.due.get(&rule.id).unwrap_or(&no_due);
        let (outdated, current): (Vec<_>, Vec<_>) = due.iter().cloned().partition(|one| is_outdated(&rule.spec, one));
        // The rule is checked only after the incidents of its previous definition have ended. Otherwise the rule would report their end as a
        // recovery.
        let is_checked = rule.check_at.is_some_and(|at| at <= self.now) && outdated.is_empty();
        let mut seen: Vec<Observation> =
            outdated.iter().map(|record| unwatched_observation(&record.incident)).collect();
        findings.has_more |= !seen.is_empty();
        let mut check = None;
        if !rule.spec.enabled {
            seen.extend(current.iter().map(|record| unwatched_observation(&record.incident)));
            check = rule.check_at.map(|_| RuleCheck { rule: rule.id, at: None, progress: None });
        } else {
            match rule.spec.condition.kind() {
                ConditionKind::Events => seen.extend(self.facts.observe_events(rule, &self.events, &current)),
                ConditionKind::Instant if is_checked => {
                    let swept = facts::sweep(self.node, rule, self.now).await?;
                    (seen, check) = (swept.seen, Some(swept.check));
                    findings.has_more |= swept.has_more;
                }
                ConditionKind::Polled if is_checked => {
                    let namespace = (self.namespace, self.name.as_str());
                    let open = self.node.store().open_incidents_of(rule.id, OPEN_COUNT).await?;
                    // A state that is not known yet neither opens nor closes an incident.
                    if let Some(observed) = states::observe(self.node, namespace, (&rule.spec, &open), self.now).await?
                    {
                        seen = observed;
                        self.observe_rest(rule, &open, &mut seen).await?;
                    }
                    let at = Some(
                        self.now + states::period(&rule.spec.condition, self.node.shared().config.alert_rules_period),
                    );
                    check = Some(RuleCheck { rule: rule.id, at, progress: None });
                }
                ConditionKind::Instant | ConditionKind::Polled => {}
            }
            if rule.spec.condition.kind() == ConditionKind::Instant {
                let known: BTreeSet<i64> = seen.iter().map(|one| one.subject.id).collect();
                let rest = self.facts.recheck_instants(rule, &current, self.now).await?;
                seen.extend(rest.into_iter().filter(|one| !known.contains(&one.subject.id)));
            }
        }
        findings.checks.extend(check);
        if seen.is_empty() && due.is_empty() {
            return Ok(());
        }
        self.decide(rule, (seen, due), findings).await
    }

    /// Adds an observation for each open incident that `seen` lacks: such an incident has ended. Its end does not count as a recovery if
    /// the rule no longer watches the job, or if the server is gone.
    async fn observe_rest(
        &self,
        rule: &RuleRecord,
        open: &[Incident],
        seen: &mut Vec<Observation>,
    ) -> Result<(), StoreError> {
        let subject = |one: &Subject| (one.kind, one.id);
        let known: BTreeSet<(SubjectKind, i64)> = seen.iter().map(|one| subject(&one.subject)).collect();
        let rest: Vec<&Incident> = open.iter().filter(|one| !known.contains(&subject(&one.subject))).collect();
        let of_jobs = rest.iter().filter(|one| one.subject.kind == SubjectKind::Job);
        let ids: Vec<JobId> = of_jobs.map(|one| JobId::new(one.subject.id)).collect();
        let jobs = self.node.store().watched_jobs_by_id(&ids).await?;
        let in_scope = jobs.iter().filter(|job| facts::is_in_scope(&rule.spec.scope, job));
        let watched: BTreeSet<i64> = in_scope.map(|job| job.id.get()).collect();
        let is_watched = |one: &Incident| match one.subject.kind {
            SubjectKind::Job => watched.contains(&one.subject.id),
            SubjectKind::Node => matches!(rule.spec.condition, Condition::NodeLost {}),
            SubjectKind::App | SubjectKind::Namespace | SubjectKind::Token | SubjectKind::Group => true,
        };
        seen.extend(
            rest.into_iter()
                .map(|one| if is_watched(one) { cleared_observation(one) } else { unwatched_observation(one) }),
        );
        Ok(())
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
        let holds = seen.iter().any(|one| !one.state.is_clear());
        if !has_open && !holds {
            return Ok(());
        }
        let missing = missing_channels(&rule.spec, &self.channels);
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
        let mut drafts = decision.messages;
        self.add_former_channels(rule, &before, &mut drafts).await?;
        let place = (self.namespace, &self.channels);
        findings.messages.extend(address_messages(self.node, place, drafts, self.now));
        Ok(())
    }

    /// If a rule was edited during an incident, adds the message about the incident's end for the channels that the incident was reported to
    /// before. Some services keep an incident open until they receive that message. Expectations need no such message, since an edited
    /// expectation is another rule.
    async fn add_former_channels(
        &self,
        rule: &RuleRecord,
        before: &BTreeMap<IncidentId, Incident>,
        drafts: &mut Vec<MessageDraft>,
    ) -> Result<(), StoreError> {
        let is_edited = |id: &IncidentId| before.get(id).is_some_and(|one| one.started_at <= rule.updated_at);
        let ends = drafts.iter().filter(|draft| draft.notice.kind == NoticeKind::Resolved);
        let ends: BTreeMap<IncidentId, MessageDraft> =
            ends.filter(|draft| is_edited(&draft.incident)).map(|draft| (draft.incident, draft.clone())).collect();
        for (id, end) in ends.into_iter().filter(|_| !is_expectation(rule.id)) {
            let messages = self.node.store().incident_messages(id, INCIDENT_MESSAGE_COUNT_MAX).await?;
            let mut former: BTreeSet<String> = messages.into_iter().map(|message| message.channel).collect();
            let gets_end = |channel: &String| {
                let mut ends = drafts.iter().filter(|draft| draft.notice.kind == NoticeKind::Resolved);
                ends.any(|draft| draft.incident == id && draft.channel == *channel)
            };
            former.retain(|channel| !gets_end(channel));
            drafts.extend(former.into_iter().map(|channel| MessageDraft { channel, ..end.clone() }));
        }
        Ok(())
    }
}

/// Acknowledges an incident, with the message about that; `false` if another decision was stored first.
pub(super) async fn acknowledge_once(
    node: &Node,
    namespace: NamespaceId,
    id: IncidentId,
    by: &str,
) -> Result<bool, StoreError> {
    let (store, now) = (node.store(), node.now());
    let Some(version) = store.alert_version(namespace).await? else { return Ok(true) };
    let Some(mut record) = store.incident(namespace, id).await? else { return Ok(true) };
    if record.incident.state == IncidentState::Resolved || record.incident.acknowledged_at.is_some() {
        return Ok(true);
    }
    let (name, channels) = names(node, namespace).await?;
    let silences = silences(node, namespace, now).await?;
    let missing = missing_channels(&record.spec, &channels);
    let view = RuleView { spec: &record.spec, namespace: &name, missing_channels: &missing };
    let drafts = acknowledge(view, (&mut record.incident, by), &silences, now);
    let messages = address_messages(node, (namespace, &channels), drafts, now);
    let write = AlertWrite {
        namespace,
        version,
        incidents: &[record],
        messages: &messages,
        evaluated_events: &[],
        checks: &[],
        expect_checks: &[],
        open_runs_check: None,
    };
    store.write_alerts(&write).await
}

async fn names(node: &Node, namespace: NamespaceId) -> Result<(String, HashMap<String, ChannelId>), StoreError> {
    let store = node.store();
    let name = store.namespaces().await?.into_iter().find(|one| one.id == namespace).map(|one| one.name);
    let channels = store.channels(namespace).await?.into_iter().map(|channel| (channel.name, channel.id));
    Ok((name.unwrap_or_default(), channels.collect()))
}

/// The channels that a rule names and that do not exist.
fn missing_channels(spec: &RuleSpec, channels: &HashMap<String, ChannelId>) -> Vec<String> {
    spec.channel_names().filter(|name| !channels.contains_key(*name)).map(str::to_owned).collect()
}

/// The messages to channels that exist; messages to deleted channels are dropped.
fn address_messages(
    node: &Node,
    (namespace, channels): (NamespaceId, &HashMap<String, ChannelId>),
    drafts: Vec<MessageDraft>,
    now: Timestamp,
) -> Vec<NewMessage> {
    let message = |draft: MessageDraft| {
        Some(NewMessage {
            id: MessageId::new(node.new_id()),
            namespace,
            channel: *channels.get(&draft.channel)?,
            incident: draft.incident,
            number: i32::try_from(draft.number).unwrap_or(i32::MAX),
            notice: draft.notice,
            created_at: now,
        })
    };
    drafts.into_iter().filter_map(message).collect()
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

/// Whether an incident began under another condition or scope than its rule has now. The incident of a group never counts as outdated: it ends
/// with the incidents of its members.
fn is_outdated(spec: &RuleSpec, record: &IncidentRecord) -> bool {
    record.incident.subject.kind != SubjectKind::Group && !judge::watches_same(&record.spec, spec)
}

/// The observation for an incident whose subject its rule no longer watches.
pub(super) fn unwatched_observation(incident: &Incident) -> Observation {
    Observation { state: ConditionState::Unwatched, ..cleared_observation(incident) }
}

pub(super) fn cleared_observation(incident: &Incident) -> Observation {
    debug_assert_eq!(incident.state, IncidentState::Firing, "resolved ones are not looked at");
    Observation { subject: incident.subject.clone(), state: ConditionState::Clear, samples: Vec::new() }
}

#[cfg(test)]
mod tests;
