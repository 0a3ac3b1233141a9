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
use rondel_store::channels::NewMessage;

use super::facts::{self, JobFacts, is_full};
use super::states;
use crate::node::Node;

/// Maximum number of events per look.
pub(super) const EVENT_COUNT: u32 = 500;
/// Maximum number of due incidents per look.
const DUE_COUNT: u32 = 200;
/// Maximum number of open incidents that a look compares with the current state.
const OPEN_INCIDENTS_MAX: u32 = 2_000;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookResult {
    /// The look's decisions are stored.
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
    pub(super) expect_checks: Vec<ExpectCheck>,
    pub(super) open_runs_check: Option<OpenRunsCheck>,
    pub(super) has_more: bool,
}

/// Data that all rules of a namespace share.
pub(super) struct LookContext<'a> {
    pub(super) node: &'a Node,
    pub(super) facts: JobFacts<'a>,
    pub(super) namespace: NamespaceId,
    namespace_name: String,
    channels: HashMap<String, ChannelId>,
    silences: Vec<Silence>,
    events: Vec<AlertEvent>,
    pub(super) due_incidents: BTreeMap<AlertRuleId, Vec<IncidentRecord>>,
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
    let evaluated_runs: Vec<RunId> = context.events.iter().map(|event| event.run).collect();
    let due_count = context.due_incidents.values().map(Vec::len).sum::<usize>();
    let has_more = findings.has_more || is_full(evaluated_runs.len(), EVENT_COUNT) || is_full(due_count, DUE_COUNT);
    let write = AlertWrite {
        namespace,
        version,
        incidents: &findings.incidents,
        messages: &findings.messages,
        evaluated_events: &evaluated_runs,
        checks: &findings.checks,
        expect_checks: &findings.expect_checks,
        open_runs_check: findings.open_runs_check,
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
        let mut due_incidents: BTreeMap<AlertRuleId, Vec<IncidentRecord>> = BTreeMap::new();
        for record in store.due_incidents(namespace, now, DUE_COUNT).await? {
            due_incidents.entry(record.rule).or_default().push(record);
        }
        let (name, channels) = name_and_channels(node, namespace).await?;
        Ok(Self {
            node,
            facts: JobFacts::read(node, (&events, due_incidents.values().flatten())).await?,
            namespace,
            namespace_name: name,
            channels,
            silences: silences(node, namespace, now).await?,
            events,
            due_incidents,
            now,
        })
    }

    async fn look_at(&self, rule: &RuleRecord, findings: &mut Findings) -> Result<(), StoreError> {
        let no_incidents = Vec::new();
        let due_incidents = self.due_incidents.get(&rule.id).unwrap_or(&no_incidents);
        let (outdated_incidents, current_incidents): (Vec<_>, Vec<_>) =
            due_incidents.iter().cloned().partition(|record| is_outdated(&rule.spec, record));
        // The rule is checked only after the incidents of its previous definition have ended. Otherwise the rule would report their end as a
        // recovery.
        let is_check_due = rule.check_at.is_some_and(|at| at <= self.now) && outdated_incidents.is_empty();
        let mut observations: Vec<Observation> =
            outdated_incidents.iter().map(|record| unwatched_observation(&record.incident)).collect();
        findings.has_more |= !observations.is_empty();
        let mut check = None;
        if !rule.spec.enabled {
            observations.extend(current_incidents.iter().map(|record| unwatched_observation(&record.incident)));
            check = rule.check_at.map(|_| RuleCheck { rule: rule.id, at: None, progress: None });
        } else {
            match rule.spec.condition.kind() {
                ConditionKind::Events => {
                    observations.extend(self.facts.observe_events(rule, &self.events, &current_incidents))
                }
                ConditionKind::Instant if is_check_due => {
                    let sweep_result = facts::sweep_page(self.node, rule, self.now).await?;
                    (observations, check) = (sweep_result.observations, Some(sweep_result.rule_check));
                    findings.has_more |= sweep_result.has_more;
                }
                ConditionKind::Polled if is_check_due => {
                    let namespace = (self.namespace, self.namespace_name.as_str());
                    let open_incidents = self.node.store().open_incidents_of_rule(rule.id, OPEN_INCIDENTS_MAX).await?;
                    // A state that is not known yet neither opens nor closes an incident.
                    if let Some(polled) =
                        states::observe(self.node, namespace, (&rule.spec, &open_incidents), self.now).await?
                    {
                        observations = polled;
                        self.observe_unobserved_incidents(rule, &open_incidents, &mut observations).await?;
                    }
                    let at = Some(
                        self.now
                            + states::check_period(&rule.spec.condition, self.node.shared().config.alert_rules_period),
                    );
                    check = Some(RuleCheck { rule: rule.id, at, progress: None });
                }
                ConditionKind::Instant | ConditionKind::Polled => {}
            }
            if rule.spec.condition.kind() == ConditionKind::Instant {
                let observed_ids: BTreeSet<i64> =
                    observations.iter().map(|observation| observation.subject.id).collect();
                let recheck_observations = self.facts.recheck_instants(rule, &current_incidents, self.now).await?;
                observations.extend(
                    recheck_observations
                        .into_iter()
                        .filter(|observation| !observed_ids.contains(&observation.subject.id)),
                );
            }
        }
        findings.checks.extend(check);
        if observations.is_empty() && due_incidents.is_empty() {
            return Ok(());
        }
        self.decide(rule, (observations, due_incidents), findings).await
    }

    /// Adds an observation for each open incident that `observations` lacks: such an incident has ended. Its end does not count as a recovery
    /// if the rule no longer watches the job, or if the server is gone.
    async fn observe_unobserved_incidents(
        &self,
        rule: &RuleRecord,
        open_incidents: &[Incident],
        observations: &mut Vec<Observation>,
    ) -> Result<(), StoreError> {
        let subject = |subject_ref: &Subject| (subject_ref.kind, subject_ref.id);
        let observed_subjects: BTreeSet<(SubjectKind, i64)> =
            observations.iter().map(|observation| subject(&observation.subject)).collect();
        let unobserved_incidents: Vec<&Incident> =
            open_incidents.iter().filter(|incident| !observed_subjects.contains(&subject(&incident.subject))).collect();
        let job_incidents = unobserved_incidents.iter().filter(|incident| incident.subject.kind == SubjectKind::Job);
        let ids: Vec<JobId> = job_incidents.map(|incident| JobId::new(incident.subject.id)).collect();
        let jobs = self.node.store().watched_jobs_by_id(&ids).await?;
        let jobs_in_scope = jobs.iter().filter(|job| facts::is_in_scope(&rule.spec.scope, job));
        let watched_jobs: BTreeSet<i64> = jobs_in_scope.map(|job| job.id.get()).collect();
        let is_watched = |incident: &Incident| match incident.subject.kind {
            SubjectKind::Job => watched_jobs.contains(&incident.subject.id),
            SubjectKind::Node => matches!(rule.spec.condition, Condition::NodeLost {}),
            SubjectKind::App | SubjectKind::Namespace | SubjectKind::Token | SubjectKind::Group => true,
        };
        observations.extend(unobserved_incidents.into_iter().map(|incident| {
            if is_watched(incident) { cleared_observation(incident) } else { unwatched_observation(incident) }
        }));
        Ok(())
    }

    pub(super) async fn decide(
        &self,
        rule: &RuleRecord,
        (observations, due_incidents): (Vec<Observation>, &[IncidentRecord]),
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let subjects: Vec<(SubjectKind, i64)> =
            observations.iter().map(|observation| (observation.subject.kind, observation.subject.id)).collect();
        let mut open_incidents: OpenIncidents =
            self.node.store().open_incidents(self.namespace, rule.id, &subjects).await?;
        let is_group = |incident: &Incident| incident.subject.kind == SubjectKind::Group;
        for record in due_incidents.iter().filter(|record| !is_group(&record.incident)) {
            if !open_incidents.incidents.iter().any(|incident| incident.id == record.incident.id) {
                open_incidents.incidents.push(record.incident.clone());
            }
        }
        let incidents_before: BTreeMap<IncidentId, Incident> = open_incidents
            .incidents
            .iter()
            .chain(&open_incidents.group)
            .map(|incident| (incident.id, incident.clone()))
            .collect();
        let has_open_incidents = !incidents_before.is_empty();
        let has_condition = observations.iter().any(|observation| !observation.state.is_clear());
        if !has_open_incidents && !has_condition {
            return Ok(());
        }
        let missing_channels = missing_channels(&rule.spec, &self.channels);
        let rule_view =
            RuleView { spec: &rule.spec, namespace: &self.namespace_name, missing_channels: &missing_channels };
        let mut next_id = || IncidentId::new(self.node.new_id());
        let decision = decide(rule_view, open_incidents, &observations, &self.silences, (self.now, &mut next_id));
        let changed_incidents =
            decision.incidents.into_iter().filter(|incident| incidents_before.get(&incident.id) != Some(incident));
        // If the rule no longer watches the subject, the record gets a disabled copy of the rule: the incident ended without a recovery.
        let record = |incident: Incident| {
            let enabled = rule.spec.enabled && !decision.unwatched.contains(&incident.id);
            IncidentRecord { incident, rule: rule.id, spec: RuleSpec { enabled, ..rule.spec.clone() } }
        };
        findings.incidents.extend(changed_incidents.map(record));
        let mut drafts = decision.messages;
        self.add_former_channels(rule, &incidents_before, decision.ends, &mut drafts).await?;
        let place = (self.namespace, &self.channels);
        findings.messages.extend(address_messages(self.node, place, drafts, self.now));
        Ok(())
    }

    /// If a rule was edited during an incident, adds the message about the incident's end for the channels to which the incident was reported
    /// before. Some services keep an incident open until they receive that message. Expectations need no such message, since an edited
    /// expectation is another rule.
    async fn add_former_channels(
        &self,
        rule: &RuleRecord,
        incidents_before: &BTreeMap<IncidentId, Incident>,
        ends: Vec<MessageDraft>,
        drafts: &mut Vec<MessageDraft>,
    ) -> Result<(), StoreError> {
        let is_edited =
            |id: &IncidentId| incidents_before.get(id).is_some_and(|incident| incident.started_at <= rule.updated_at);
        for end in ends.into_iter().filter(|end| !is_expectation(rule.id) && is_edited(&end.incident)) {
            let mut former_channels = self.node.store().channels_of_incident(end.incident).await?;
            let gets_end = |channel: &String| {
                let mut end_drafts = drafts.iter().filter(|draft| draft.notice.kind == NoticeKind::Resolved);
                end_drafts.any(|draft| draft.incident == end.incident && draft.channel == *channel)
            };
            former_channels.retain(|channel| !gets_end(channel));
            drafts.extend(former_channels.into_iter().map(|channel| MessageDraft { channel, ..end.clone() }));
        }
        Ok(())
    }
}

/// Acknowledges an incident, and writes the messages about this. Returns false if another decision was stored first; returns true also if there
/// is nothing to acknowledge.
pub(super) async fn acknowledge_once(
    node: &Node,
    namespace: NamespaceId,
    id: IncidentId,
    author: &str,
) -> Result<bool, StoreError> {
    let (store, now) = (node.store(), node.now());
    let Some(version) = store.alert_version(namespace).await? else { return Ok(true) };
    let Some(mut record) = store.incident(namespace, id).await? else { return Ok(true) };
    if record.incident.state == IncidentState::Resolved || record.incident.acknowledged_at.is_some() {
        return Ok(true);
    }
    let (name, channels) = name_and_channels(node, namespace).await?;
    let silences = silences(node, namespace, now).await?;
    let missing_channels = missing_channels(&record.spec, &channels);
    let rule_view = RuleView { spec: &record.spec, namespace: &name, missing_channels: &missing_channels };
    let drafts = acknowledge(rule_view, (&mut record.incident, author), &silences, now);
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

async fn name_and_channels(
    node: &Node,
    namespace: NamespaceId,
) -> Result<(String, HashMap<String, ChannelId>), StoreError> {
    let store = node.store();
    let name = store.namespaces().await?.into_iter().find(|record| record.id == namespace).map(|record| record.name);
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
    let user_silences = store.silences(namespace, now).await?.into_iter();
    let mut silences: Vec<Silence> = user_silences
        .map(|record| Silence { spec: record.spec, ends_at: record.ends_at, is_maintenance: false })
        .collect();
    let windows = store.maintenance(Some(namespace), now).await?;
    let open_windows = windows.into_iter().filter(|window_record| window_record.window.has(now));
    // If its app was deleted, a window covers no jobs.
    let windows_in_force =
        open_windows.filter(|window_record| window_record.window.app.is_none() || window_record.app_name.is_some());
    silences.extend(windows_in_force.map(|window_record| Silence {
        spec: SilenceSpec { app: window_record.app_name, ..SilenceSpec::default() },
        ends_at: window_record.window.ends_at,
        is_maintenance: true,
    }));
    Ok(silences)
}

/// Whether an incident began under another condition or scope than its rule has now. The incident of a group never counts as outdated: it ends
/// with the incidents of its members.
fn is_outdated(spec: &RuleSpec, record: &IncidentRecord) -> bool {
    record.incident.subject.kind != SubjectKind::Group && !judge::have_same_condition_and_scope(&record.spec, spec)
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
